//! The broker's socket, and its end of a program's connection: messages with descriptors beside them, and the process
//! that connected. The messages are decoded by `softefa_abi::protocol`.

use std::ffi::c_int;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    getsockopt, sendmsg, socket, sockopt,
};
use nix::unistd::geteuid;
use softefa_abi::protocol::{REQUEST_BYTES, Reply};

/// Creates the broker's socket at `path` and listens.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::InvalidInput`] if the path is too long for a socket.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let (socket, address) = unbound(path)?;
    bind(socket.as_raw_fd(), &address)?;
    nix::sys::socket::listen(&socket, Backlog::new(128)?)?;
    Ok(socket)
}

/// Connects to the broker at `path` and closes the connection.
///
/// # Errors
/// As [`listen`]; the system's if no broker listens there.
pub(crate) fn try_connect(path: &Path) -> io::Result<()> {
    let (socket, address) = unbound(path)?;
    Ok(connect(socket.as_raw_fd(), &address)?)
}

/// A new socket, and the address that `path` is.
fn unbound(path: &Path) -> io::Result<(OwnedFd, UnixAddr)> {
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

    /// The process that connected, as the kernel reports it, and whether the broker serves its user: its own
    /// user, and every user if the broker runs as root.
    pub(crate) fn peer(&self) -> io::Result<(libc::pid_t, bool)> {
        let peer = getsockopt(&self.socket, sockopt::PeerCredentials)?;
        let user = geteuid();
        Ok((peer.pid(), user.is_root() || peer.uid() == user.as_raw()))
    }

    /// Waits for the next message and the descriptors beside it. `None`: the program closed the connection.
    ///
    /// This calls the C library instead of nix, whose `recvmsg` does not return the descriptors of a message
    /// that the kernel truncated. A program could use up the broker's descriptors that way.
    pub(crate) fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        // One byte more than a message has, so that a longer message is recognised.
        let mut bytes = vec![0; REQUEST_BYTES + 1];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control([0; 64]);
        // SAFETY: all zeros is a valid message header.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let length = loop {
            // SAFETY: the message points to buffers of this frame.
            let length =
                unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
            match Errno::result(length) {
                Ok(length) => break length as usize,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
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

    /// Sends a reply, with `descriptor` beside it.
    pub(crate) fn send(&self, reply: &Reply, descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let bytes = reply.encode();
        let numbers: Vec<RawFd> = descriptor.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &[] } else { &rights[..] };
        loop {
            let parts = [IoSlice::new(&bytes)];
            match sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Memory for received descriptors: 12 of them, aligned as the kernel requires. The kernel closes the rest.
#[repr(C, align(8))]
struct Control([u8; 64]);
