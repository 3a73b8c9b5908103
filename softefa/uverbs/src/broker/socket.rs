//! The broker's socket, and its end of a program's connection: messages with descriptors beside them, and the process
//! that connected. The messages are decoded by `softefa_abi::protocol`.

use std::fs::{self, Permissions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    getsockopt, sendmsg, socket, sockopt,
};
use softefa_abi::protocol::{REQUEST_BYTES, Reply};

use super::BrokerError;

/// The most descriptors beside a message: those of [`softefa_abi::protocol::Request::Open`].
const MOST_DESCRIPTORS: usize = 2;

/// The broker's socket and its file.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, by which another broker's file at the path is recognised.
    file: (u64, u64),
}

impl Listener {
    /// Creates the broker's socket at `path` and listens. Its file is for this user only. A file that an ended broker left
    /// is replaced.
    ///
    /// # Errors
    /// [`BrokerError::Socket`] with the system's error; [`io::ErrorKind::InvalidInput`] if the path is empty or too long
    /// for a socket; [`io::ErrorKind::AddrInUse`] if a broker listens there, or the file is no socket.
    pub(crate) fn new(path: &Path) -> Result<Self, BrokerError> {
        Self::listen(path).map_err(|error| BrokerError::Socket { path: path.to_path_buf(), error })
    }

    fn listen(path: &Path) -> io::Result<Self> {
        let (socket, address) = unbound(path)?;
        match bind(socket.as_raw_fd(), &address) {
            Err(Errno::EADDRINUSE) if is_stale(path) => {
                fs::remove_file(path)?;
                bind(socket.as_raw_fd(), &address)?;
            }
            bound => bound?,
        }
        // No program can connect before `listen`.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        nix::sys::socket::listen(&socket, Backlog::new(128)?)?;
        Ok(Self { socket, path: path.to_path_buf(), file: identity(path)? })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Removes the file, unless another broker has put its own in its place.
    pub(crate) fn remove_file(&self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // An error means that another process has removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Whether the file at `path` is a socket at which no broker listens.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && try_connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to the broker at `path` and closes the connection. Does not wait: a broker that is busy counts as one.
///
/// # Errors
/// The system's if no broker listens there; [`io::ErrorKind::InvalidInput`] if the path is empty or too long for a socket.
pub(crate) fn try_connect(path: &Path) -> io::Result<()> {
    let (socket, address) = unbound(path)?;
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    match connect(socket.as_raw_fd(), &address) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A new socket, and the address that `path` is.
fn unbound(path: &Path) -> io::Result<(OwnedFd, UnixAddr)> {
    if path.as_os_str().is_empty() {
        // The system would choose a name that every user can open.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is empty"));
    }
    let address = UnixAddr::new(path).map_err(|error| match error {
        Errno::ENAMETOOLONG => {
            io::Error::new(io::ErrorKind::InvalidInput, "the path has more than 107 bytes, a socket's limit")
        }
        error => error.into(),
    })?;
    Ok((socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?, address))
}

/// The connection to one program.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Waits for the next program.
    pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Self> {
        let socket = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: accept4 returned a new descriptor, which has no other owner.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(socket) } })
    }

    /// The process that connected, as the kernel reports it.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        let peer = getsockopt(&self.socket, sockopt::PeerCredentials)?;
        Ok(Peer { process: peer.pid(), user: peer.uid() })
    }

    /// Waits for the next message and the descriptors beside it, or none if there were more than [`MOST_DESCRIPTORS`].
    /// Returns `None` if the program closed the connection, or the process that connected ended (`end` is readable); a
    /// child of that process may still have the connection.
    pub(crate) fn receive(&self, end: &OwnedFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut polled = [&self.socket, end].map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN));
        retry(|| poll(&mut polled, PollTimeout::NONE))?;
        if polled[1].any() == Some(true) {
            return Ok(None);
        }
        // One byte more than a message has, so that a longer message is recognised.
        let mut bytes = vec![0; REQUEST_BYTES + 1];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = cmsg_space!([RawFd; MOST_DESCRIPTORS]);
        // SAFETY: zeros are a header without memory.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.capacity());
        // Not nix's function, which does not return the descriptors of a truncated message, so that they would stay open.
        // SAFETY: the memory that the header names, with its sizes, lives during the call.
        let mut received =
            || unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        let length = retry(|| Errno::result(received()))? as usize;
        let mut descriptors = Vec::new();
        // SAFETY: the kernel filled the header: no control message, or one with descriptors, which have no other owner.
        unsafe {
            let rights = libc::CMSG_FIRSTHDR(&raw const header);
            if !rights.is_null() {
                let numbers = libc::CMSG_DATA(rights).cast::<RawFd>();
                let count = ((*rights).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                descriptors.extend((0..count).map(|index| OwnedFd::from_raw_fd(numbers.add(index).read())));
            }
        }
        if header.msg_flags & libc::MSG_CTRUNC != 0 {
            // The kernel has closed the others.
            descriptors.clear();
        }
        bytes.truncate(length);
        Ok((length > 0).then_some((bytes, descriptors)))
    }

    /// Sends a reply, with `descriptor` beside it. Does not wait for room: a program that does not read its replies loses
    /// the connection.
    pub(crate) fn send(&self, reply: &Reply, descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let bytes = reply.encode();
        let numbers: Vec<RawFd> = descriptor.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &[] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let parts = [IoSlice::new(&bytes)];
        retry(|| sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, flags, None))?;
        Ok(())
    }
}

/// Repeats a system call that a signal interrupts.
fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// The process that connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) process: libc::pid_t,
    pub(crate) user: libc::uid_t,
}
