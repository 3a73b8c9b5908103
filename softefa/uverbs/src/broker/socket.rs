//! One program's connection: messages with descriptors beside them, and who it is.

use std::ffi::c_int;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use softefa_abi::protocol::{MAX_DESCRIPTORS, REPLY_BYTES, REQUEST_BYTES, Reply};

/// Room for the descriptors beside a message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Makes the broker's socket at `path`.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::InvalidInput`] for a path that is too long for a socket.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = at(path, libc::bind)?;
    // SAFETY: integers only.
    if unsafe { libc::listen(socket.as_raw_fd(), 128) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Whether a broker listens at `path`.
///
/// # Errors
/// As [`listen`]; the system's where nobody does.
pub(crate) fn answers(path: &Path) -> io::Result<()> {
    at(path, libc::connect).map(drop)
}

/// A socket that is bound, or connected, to `path`.
fn at(
    path: &Path,
    join: unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int,
) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeros is a valid socket address.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        let text = format!("{} is too long for a socket; use a shorter directory", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as _;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: bind or connect, with an initialised address of this length.
    if unsafe { join(socket.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// A program at the other end.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Waits for the next program.
    pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Self> {
        // SAFETY: no address is wanted.
        let socket = unsafe {
            libc::accept4(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(socket) } })
    }

    /// The process that connected, as the kernel knows it, and whether its user is this one's.
    pub(crate) fn peer(&self) -> io::Result<(libc::pid_t, bool)> {
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the option's structure and its length.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: always allowed.
        let own = unsafe { libc::geteuid() };
        Ok((who.pid, own == 0 || who.uid == own))
    }

    /// The next message and the descriptors beside it; none when the program went.
    pub(crate) fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        // One byte more than a message has, so that a longer one shows.
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
            match usize::try_from(length) {
                Ok(length) => break length,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        };
        let mut descriptors = Vec::new();
        // SAFETY: the kernel filled the control buffer; the macros stay inside it, and every
        // descriptor in it is new and ours.
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

    /// Answers.
    pub(crate) fn send(&self, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
        let mut bytes: [u8; REPLY_BYTES] = reply.encode();
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control([0; 64]);
        // SAFETY: all zeros is a valid message header.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let numbers: Vec<c_int> = descriptors.iter().take(MAX_DESCRIPTORS).map(AsRawFd::as_raw_fd).collect();
        if !numbers.is_empty() {
            let length = size_of_val(numbers.as_slice()) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: arithmetic.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
            // SAFETY: the control buffer is 64 bytes, enough for a header and two descriptors.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(length) as _;
                std::ptr::copy_nonoverlapping(
                    numbers.as_ptr(),
                    libc::CMSG_DATA(header).cast(),
                    numbers.len(),
                );
            }
        }
        loop {
            // SAFETY: the message points to buffers of this frame.
            if unsafe { libc::sendmsg(self.socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) } >= 0 {
                return Ok(());
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            }
        }
    }
}
