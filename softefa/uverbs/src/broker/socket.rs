//! The broker's socket, and its end of a program's connection: messages with descriptors beside them, and the process
//! that connected. The messages are decoded by `softefa_abi::protocol`.

use std::ffi::c_int;
use std::fs::{self, File, Permissions};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    getsockopt, sendmsg, socket, sockopt,
};
use nix::unistd::geteuid;
use softefa_abi::protocol::{MAX_DESCRIPTORS, REQUEST_BYTES, Reply};

use super::BrokerError;
use super::path_lock::PathLock;
use super::process;

/// The interval at which a connection without messages is looked at, in milliseconds.
const LOOK_INTERVAL: u16 = 1000;
/// How long a reply waits while too many descriptors of this user are in flight, and the interval at which it tries.
const IN_FLIGHT_LIMIT: Duration = Duration::from_secs(5);
const IN_FLIGHT_INTERVAL: Duration = Duration::from_millis(10);
/// `SO_PEERPIDFD` of Linux 6.5 (`asm-generic/socket.h`).
const SO_PEERPIDFD: c_int = 77;

/// The broker's socket and its file.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, by which another broker's file at the path is recognised.
    file: (u64, u64),
}

impl Listener {
    /// Creates the broker's socket at `path` and listens. Its file is for this user only, or for `every_user`. A file
    /// that an ended broker left is replaced.
    ///
    /// # Errors
    /// [`BrokerError::Lock`] if the path cannot be locked; otherwise [`BrokerError::Socket`] with the system's error;
    /// [`io::ErrorKind::InvalidInput`] if the path is empty or too long for a socket; [`io::ErrorKind::AddrInUse`] if a
    /// broker listens there, or the file is no socket.
    pub(crate) fn new(path: &Path, every_user: bool) -> Result<Self, BrokerError> {
        let failed = |error| BrokerError::Socket { path: path.to_path_buf(), error };
        let (socket, address) = unbound(path).map_err(failed)?;
        // Until the socket listens, another broker would take its file for a stale one.
        let _lock = PathLock::new(path)?;
        Self::locked(socket, &address, path, every_user).map_err(failed)
    }

    /// As [`Self::new`]. The caller must hold the path's lock.
    fn locked(socket: OwnedFd, address: &UnixAddr, path: &Path, every_user: bool) -> io::Result<Self> {
        match bind(socket.as_raw_fd(), address) {
            Err(Errno::EADDRINUSE) if is_stale(path) => {
                fs::remove_file(path)?;
                bind(socket.as_raw_fd(), address)?;
            }
            bound => bound?,
        }
        // A process that can write the directory may have put another file there, or a link.
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.file_type().is_socket() || metadata.uid() != geteuid().as_raw() || metadata.nlink() != 1
        {
            return Err(io::Error::other(
                "another process replaced it; use a directory that only you can write",
            ));
        }
        let listener = Self { socket, path: path.to_path_buf(), file: (metadata.dev(), metadata.ino()) };
        // No program can connect before `listen`.
        let mode = if every_user { 0o666 } else { 0o600 };
        fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(mode))
            .and_then(|()| Ok(nix::sys::socket::listen(&listener.socket, Backlog::new(128)?)?))
            .inspect_err(|_| listener.remove_locked())?;
        Ok(listener)
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Removes the file, unless another broker has put its own in its place. If the path cannot be locked, the file
    /// stays; the next broker finds that it is stale.
    pub(crate) fn remove_file(&self) {
        if let Ok(_lock) = PathLock::new(&self.path) {
            self.remove_locked();
        }
    }

    /// As [`Self::remove_file`]. The caller must hold the path's lock.
    fn remove_locked(&self) {
        let metadata = fs::symlink_metadata(&self.path);
        if metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file) {
            // An error means that another process has removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
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
pub(super) fn unbound(path: &Path) -> io::Result<(OwnedFd, UnixAddr)> {
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

    /// A descriptor that becomes readable when the process that connected ends, whose number is `process`.
    ///
    /// # Errors
    /// [`EPERM`](softefa_abi::Errno::EPERM) if it is of another PID namespace, so that it has no number here; otherwise
    /// those of [`process::end_of`], which finds the process by its number on kernels before 6.5. If the number was used
    /// again before this call, it is then another process's end.
    pub(crate) fn end_of_peer(&self, process: libc::pid_t) -> Result<OwnedFd, softefa_abi::Errno> {
        if process <= 0 {
            return Err(softefa_abi::Errno::EPERM);
        }
        let (mut descriptor, mut length): (c_int, _) = (-1, size_of::<c_int>() as libc::socklen_t);
        let (socket, value) = (self.socket.as_raw_fd(), (&raw mut descriptor).cast());
        // SAFETY: the pointers are to values of this frame, and the length is that of the first.
        match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut length) } {
            // SAFETY: the call returned a new descriptor, which has no other owner.
            0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            _ if Errno::last() == Errno::ENOPROTOOPT => process::end_of(process),
            _ => Err(softefa_abi::Errno::of(&io::Error::last_os_error())),
        }
    }

    /// Waits for the next message and, if `with_descriptors`, at most [`MAX_DESCRIPTORS`] beside it. Returns `None` if
    /// the connection is over:
    /// - The program closed it.
    /// - The process that connected ended (`end` is readable), or `is_over` returns true. A child of that process may
    ///   still have the connection.
    /// - The message has descriptors although not `with_descriptors`. It stays unread until the connection is closed,
    ///   because closing its descriptors can block.
    ///
    /// This calls the C library instead of nix, whose `recvmsg` does not return the descriptors of a message
    /// that the kernel truncated. A program could use up the broker's descriptors that way.
    pub(crate) fn receive(
        &self,
        end: &OwnedFd,
        with_descriptors: bool,
        is_over: impl Fn() -> bool,
    ) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut polled = [&self.socket, end].map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN));
        loop {
            match poll(&mut polled, LOOK_INTERVAL) {
                Ok(0) if is_over() => return Ok(None),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if polled[1].any() == Some(true) {
            return Ok(None);
        }
        // One byte more than a message has, so that a longer message is recognised.
        let mut bytes = vec![0; REQUEST_BYTES + 1];
        let mut control = Control([0; CONTROL_BYTES]);
        let control = if with_descriptors { &mut control.0[..] } else { &mut [] };
        if !with_descriptors
            && self.receive_part(&mut bytes, &mut [], libc::MSG_PEEK)?.1.msg_flags & libc::MSG_CTRUNC != 0
        {
            return Ok(None);
        }
        let (length, message) = self.receive_part(&mut bytes, control, libc::MSG_CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        // SAFETY: the kernel filled the control buffer; the macros stay inside it. Every descriptor in it is
        // new and has no other owner.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let first = libc::CMSG_DATA(header).cast::<c_int>();
                    for index in 0..bytes / size_of::<c_int>() {
                        descriptors.push(OwnedFd::from_raw_fd(first.add(index).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        if length == 0 {
            return Ok(None);
        }
        bytes.truncate(length);
        Ok(Some((bytes, descriptors)))
    }

    /// Receives a message, as much of it as fits. Returns its length, and the header that the kernel filled. The header
    /// points to the buffers.
    fn receive_part(
        &self,
        bytes: &mut [u8],
        control: &mut [u8],
        flags: c_int,
    ) -> nix::Result<(usize, libc::msghdr)> {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zeros is a valid message header.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !control.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = control.len() as _;
        }
        loop {
            // SAFETY: the message points to the callers' buffers and to this frame.
            let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
            match Errno::result(length) {
                Ok(length) => return Ok((length as usize, message)),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a reply, with `descriptor` beside it. Does not wait for room: a program that does not read its replies loses
    /// the connection. If this user has too many descriptors in flight, waits for at most [`IN_FLIGHT_LIMIT`], then sends
    /// that error instead.
    pub(crate) fn send(&self, reply: &Reply, descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let bytes = reply.encode();
        let numbers: Vec<RawFd> = descriptor.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &[] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let limit = Instant::now() + IN_FLIGHT_LIMIT;
        loop {
            let parts = [IoSlice::new(&bytes)];
            match sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::ETOOMANYREFS) if Instant::now() < limit => thread::sleep(IN_FLIGHT_INTERVAL),
                Err(Errno::ETOOMANYREFS) => {
                    return self.send(&Reply { errno: libc::ETOOMANYREFS, ..Reply::default() }, None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The process that connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) process: libc::pid_t,
    pub(crate) user: libc::uid_t,
}

/// Memory for received descriptors: [`MAX_DESCRIPTORS`], aligned as the kernel requires. The kernel closes the rest.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// A header, and the descriptors in multiples of 8 bytes.
const CONTROL_BYTES: usize =
    size_of::<libc::cmsghdr>() + (MAX_DESCRIPTORS * size_of::<c_int>()).next_multiple_of(8);
