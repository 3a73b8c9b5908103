//! The library's end of a connection to the broker: each request and its reply, with descriptors beside them.
//!
//! `softefa_abi::protocol` states the protocol. The broker decodes the ioctls; this module only finds the descriptors
//! that they carry. It creates and closes descriptors through [`real`], because the library replaces those functions.

use std::ffi::{CStr, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{read_unaligned, write_unaligned};

use nix::cmsg_space;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, connect, getsockopt, recvmsg, sendmsg,
};
use softefa_abi::protocol::{
    DescriptorSource, MAX_DESCRIPTORS, REPLY_BYTES, Reply, Request, SOCKET_VARIABLE, descriptor_sources,
};
use softefa_abi::sys::{
    IB_UVERBS_BUFFER_TYPE_DMABUF, ib_uverbs_attr, ib_uverbs_buffer_desc, ib_uverbs_ioctl_hdr,
};
use softefa_abi::{Errno, MAX_ATTRIBUTES, stands_for_several};

use crate::real;
use crate::table::Entry;

/// Whether the environment names a broker.
pub(crate) fn configured() -> bool {
    path().is_some()
}

/// The path of the broker's socket. An empty value counts as unset: as an address it would be any socket.
fn path() -> Option<&'static CStr> {
    // SAFETY: the name is a C string. libibverbs reads the environment in the same way, so the program must not change
    // it at the same time.
    let path = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if path.is_null() {
        return None;
    }
    // SAFETY: getenv returned a C string of the environment, which callers use before the program can change it.
    Some(unsafe { CStr::from_ptr(path) }).filter(|path| !path.is_empty())
}

const VARIABLE: &CStr = c"SOFTEFA_SOCKET";
const _: () = assert!(VARIABLE.to_bytes().len() == SOCKET_VARIABLE.len());
/// This process's memory and its mappings. A thread has them too after the first thread ended.
const MEMORY: &CStr = c"/proc/thread-self/mem";
const MAPPINGS: &CStr = c"/proc/thread-self/maps";

fn last_error() -> Errno {
    Errno::of(&std::io::Error::last_os_error())
}

/// A descriptor that is closed when the value is dropped.
struct Descriptor(c_int);

impl Descriptor {
    fn new(descriptor: c_int) -> Result<Self, Errno> {
        if descriptor < 0 { Err(last_error()) } else { Ok(Self(descriptor)) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        real::close(self.0);
    }
}

/// Connects to the broker and opens `adapter`. Returns the socket.
pub(crate) fn open(adapter: u32) -> Result<c_int, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let socket = Descriptor::new(real::socket(libc::AF_UNIX, kind, 0))?;
    handshake(socket.0, adapter)?;
    let number = socket.0;
    std::mem::forget(socket);
    Ok(number)
}

/// The start of a small file; empty if it cannot be read.
fn text_of<'a>(path: &CStr, buffer: &'a mut [u8; 64]) -> &'a str {
    let file = real::open_path(path, libc::O_RDONLY | libc::O_CLOEXEC);
    let Ok(file) = Descriptor::new(file) else { return "" };
    // SAFETY: the descriptor is open, and the buffer has this length.
    let length = unsafe { libc::read(file.0, buffer.as_mut_ptr().cast(), buffer.len()) };
    str::from_utf8(&buffer[..usize::try_from(length).unwrap_or(0)]).unwrap_or_default()
}

/// Whether this process gives its memory to a broker of this user: its own user or root, of whom there is one each.
fn trusts(user: u32) -> bool {
    let (mut uid_map, mut overflow) = ([0; 64], [0; 64]);
    let uid_map = text_of(c"/proc/self/uid_map", &mut uid_map);
    let overflow = text_of(c"/proc/sys/kernel/overflowuid", &mut overflow);
    // SAFETY: geteuid has no preconditions.
    let is_named = user == unsafe { libc::geteuid() } || user == 0;
    is_named && !stands_for_several(user, uid_map, overflow)
}

fn handshake(socket: c_int, adapter: u32) -> Result<(), Errno> {
    let path = path().ok_or(Errno::ENODEV)?;
    let address = UnixAddr::new(path.to_bytes()).map_err(|_| Errno::ENODEV)?;
    connect(socket, &address).map_err(|_| Errno::ENODEV)?;
    // The broker receives this process's memory, so nobody else's may answer at the path.
    // SAFETY: the socket is open, and stays so until this function returns.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let broker = getsockopt(&socket, PeerCredentials).map_err(|_| Errno::ENODEV)?;
    if !trusts(broker.uid()) {
        return Err(Errno::EPERM);
    }
    let memory = Descriptor::new(real::open_path(MEMORY, libc::O_RDWR | libc::O_CLOEXEC))?;
    let mappings = Descriptor::new(real::open_path(MAPPINGS, libc::O_RDONLY | libc::O_CLOEXEC))?;
    exchange(socket.as_raw_fd(), &Request::Open { adapter }, &[memory.0, mappings.0]).map(drop)
}

/// Forwards an ioctl to the broker, and stores the numbers of the descriptors that it returns.
///
/// # Safety
/// `argument` must be null or point to an ioctl's header and its attributes.
pub(crate) unsafe fn ioctl(entry: &Entry, argument: *mut c_void) -> Result<(), Errno> {
    let mut descriptors = [0; MAX_DESCRIPTORS];
    let mut count = 0;
    let mut present = 0;
    if !argument.is_null() {
        // SAFETY: by the caller, the header is readable. It may be unaligned.
        let header = unsafe { read_unaligned(argument.cast::<ib_uverbs_ioctl_hdr>()) };
        let attributes = usize::from(header.num_attrs).min(MAX_ATTRIBUTES);
        for (index, source) in descriptor_sources(header.object_id, header.method_id).iter().enumerate() {
            // SAFETY: by the caller, this number of attributes follows the header.
            if let Some(descriptor) = unsafe { descriptor(argument, attributes, *source) } {
                descriptors[count] = descriptor;
                count += 1;
                present |= 1 << index;
            }
        }
    }
    let (socket, _lock) = entry.lock()?;
    let (reply, received) =
        exchange(socket, &Request::Ioctl { address: argument as u64, present }, &descriptors[..count])?;
    for (descriptor, output) in received.iter().zip(reply.descriptor_outputs) {
        match (*descriptor, output.width) {
            (-1, _) => {}
            // SAFETY: the broker states an address that the ioctl named for this number.
            (descriptor, 4) => unsafe { write_unaligned(output.address as *mut i32, descriptor) },
            // SAFETY: as above.
            (descriptor, 8) => unsafe { write_unaligned(output.address as *mut i64, i64::from(descriptor)) },
            (descriptor, _) => {
                real::close(descriptor);
            }
        }
    }
    Ok(())
}

/// The descriptor that an ioctl carries in `source`, if there is one.
///
/// # Safety
/// `argument` must point to a header with `count` attributes after it.
unsafe fn descriptor(argument: *mut c_void, count: usize, source: DescriptorSource) -> Option<c_int> {
    let (DescriptorSource::Data(id) | DescriptorSource::BufferDescription(id)) = source;
    // SAFETY: by the caller, the attributes follow the header.
    let first = unsafe { argument.add(size_of::<ib_uverbs_ioctl_hdr>()).cast::<ib_uverbs_attr>() };
    let attribute = (0..count).find_map(|index| {
        // SAFETY: `index` is less than `count`.
        let attribute = unsafe { read_unaligned(first.add(index)) };
        (u32::from(attribute.attr_id) == id).then_some(attribute)
    })?;
    match source {
        DescriptorSource::Data(_) => Some(attribute.data as c_int),
        DescriptorSource::BufferDescription(_) => {
            if usize::from(attribute.len) < size_of::<ib_uverbs_buffer_desc>() || attribute.data == 0 {
                return None;
            }
            // SAFETY: by the interface, the attribute points to this structure. Its length was compared above.
            let buffer = unsafe { read_unaligned(attribute.data as *const ib_uverbs_buffer_desc) };
            (buffer.type_ == IB_UVERBS_BUFFER_TYPE_DMABUF).then_some(buffer.fd)
        }
    }
}

/// The memory of a key: a descriptor, which the caller must close, and the offset in it.
pub(crate) fn map(entry: &Entry, offset: u64, length: u64, writable: bool) -> Result<(c_int, u64), Errno> {
    let (socket, _lock) = entry.lock()?;
    let (reply, received) = exchange(socket, &Request::Map { offset, length, writable }, &[])?;
    match received[0] {
        -1 => Err(Errno::EIO),
        descriptor => Ok((descriptor, reply.value)),
    }
}

/// Sends a request and waits for the reply. Returns it with the descriptors beside it, -1 for none. The caller must
/// hold the connection's lock, or be the only user of the socket.
fn exchange(
    socket: c_int,
    request: &Request,
    descriptors: &[c_int],
) -> Result<(Reply, [c_int; MAX_DESCRIPTORS]), Errno> {
    send(socket, request, descriptors)?;
    let (bytes, received) = receive(socket)?;
    let reply = Reply::decode(&bytes)?;
    if reply.errno != 0 {
        received.iter().filter(|descriptor| **descriptor >= 0).for_each(|descriptor| {
            real::close(*descriptor);
        });
        return Err(Errno::new(reply.errno));
    }
    Ok((reply, received))
}

fn send(socket: c_int, request: &Request, descriptors: &[c_int]) -> Result<(), Errno> {
    let bytes = request.encode();
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[] } else { &rights[..] };
    loop {
        match sendmsg::<()>(socket, &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EBADF) => return Err(Errno::EBADF),
            // The broker closed the connection. It may have sent the reason before.
            Err(nix::Error::EPIPE) => return Ok(()),
            Err(_) => return Err(Errno::EIO),
        }
    }
}

fn receive(socket: c_int) -> Result<([u8; REPLY_BYTES], [c_int; MAX_DESCRIPTORS]), Errno> {
    let mut bytes = [0; REPLY_BYTES];
    let mut received = [-1; MAX_DESCRIPTORS];
    let mut control = cmsg_space!([c_int; MAX_DESCRIPTORS]);
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg::<()>(socket, &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) if message.bytes == REPLY_BYTES => {
                for control in message.cmsgs().map_err(|_| Errno::EIO)? {
                    if let ControlMessageOwned::ScmRights(descriptors) = control {
                        received.iter_mut().zip(descriptors).for_each(|(to, descriptor)| *to = descriptor);
                    }
                }
                return Ok((bytes, received));
            }
            // A connection that the broker refused is reset, once, before the reply that states the reason.
            Err(nix::Error::EINTR | nix::Error::ECONNRESET) => {}
            // The broker ended, or sent a message of another size.
            Ok(_) | Err(_) => return Err(Errno::EIO),
        }
    }
}
