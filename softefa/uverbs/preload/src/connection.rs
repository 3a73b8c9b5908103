//! The library's end of a connection to the broker: each request and its reply, with descriptors beside them.
//!
//! `softefa_abi::protocol` states the protocol. The broker decodes the ioctls; this module only finds the descriptors
//! that they name: it maps dmabufs, and sends completion channels along. It creates and closes descriptors through
//! [`real`], because the library replaces those functions.

use std::ffi::{CStr, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, read_unaligned, write_unaligned};

use nix::cmsg_space;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, connect, getsockopt, recvmsg, sendmsg,
};
use softefa_abi::protocol::{
    DescriptorSource, MAX_MAPPINGS, Mapping, REPLY_BYTES, Reply, Request, SOCKET_VARIABLE, channel_source,
    descriptor_sources,
};
use softefa_abi::sys::{
    IB_UVERBS_BUFFER_TYPE_DMABUF, ib_uverbs_attr, ib_uverbs_buffer_desc, ib_uverbs_ioctl_hdr,
};
use softefa_abi::{Errno, MAX_ATTRIBUTES};

use crate::real;
use crate::table::Entry;

/// Whether the environment names a broker.
pub(crate) fn configured() -> bool {
    path().is_some()
}

/// The path of the broker's socket.
fn path() -> Option<&'static CStr> {
    variable(VARIABLE)
}

/// A variable of the environment. An empty value counts as unset: it names no socket and no directory.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string. libibverbs reads the environment in the same way, so the program must not change
    // it at the same time.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returned a C string of the environment, which callers use before the program can change it.
    Some(unsafe { CStr::from_ptr(value) }).filter(|value| !value.is_empty())
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

/// Keeps this thread from being cancelled and from handling signals until the value is dropped. A thread that left an
/// exchange would leave its reply to the next one, and its locks.
struct Uninterrupted {
    signals: libc::sigset_t,
    cancellation: c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

impl Uninterrupted {
    fn new() -> Self {
        let (mut all, mut signals) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let mut cancellation = 0;
        // SAFETY: the calls fill the sets and the number, which are of this frame.
        unsafe {
            pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancellation);
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), signals.as_mut_ptr());
            Self { signals: signals.assume_init(), cancellation }
        }
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        // SAFETY: the arguments are what `new` stored.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, null_mut());
            pthread_setcancelstate(self.cancellation, null_mut());
        }
    }
}

/// Connects to the broker and opens `adapter`. Returns the socket.
pub(crate) fn open(adapter: u32) -> Result<c_int, Errno> {
    let _uninterrupted = Uninterrupted::new();
    let socket = connected()?;
    let memory = Descriptor::new(real::open_path(MEMORY, libc::O_RDWR | libc::O_CLOEXEC))?;
    let mappings = Descriptor::new(real::open_path(MAPPINGS, libc::O_RDONLY | libc::O_CLOEXEC))?;
    exchange(socket.0, &Request::Open { adapter }, &[memory.0, mappings.0])?;
    let number = socket.0;
    std::mem::forget(socket);
    Ok(number)
}

/// The value of an adapter's counter, which the broker states without an open device.
pub(crate) fn counter(adapter: u32, counter: u32) -> Result<u64, Errno> {
    let _uninterrupted = Uninterrupted::new();
    let socket = connected()?;
    exchange(socket.0, &Request::Counter { adapter, counter }, &[]).map(|(reply, _)| reply.value)
}

/// A connection to the broker, which nothing has been sent on.
fn connected() -> Result<Descriptor, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let socket = Descriptor::new(real::socket(libc::AF_UNIX, kind, 0))?;
    let path = path().ok_or(Errno::ENODEV)?;
    let address = UnixAddr::new(path.to_bytes()).map_err(|_| Errno::ENODEV)?;
    connect(socket.0, &address).map_err(|_| Errno::ENODEV)?;
    // The broker receives this process's memory, so a broker of another user must not be used.
    // SAFETY: the socket is open, and stays so until this function returns.
    let borrowed = unsafe { BorrowedFd::borrow_raw(socket.0) };
    let broker = getsockopt(&borrowed, PeerCredentials).map_err(|_| Errno::ENODEV)?;
    // SAFETY: geteuid has no preconditions.
    if broker.uid() != unsafe { libc::geteuid() } {
        return Err(Errno::EPERM);
    }
    Ok(socket)
}

/// Forwards an ioctl to the broker, and stores the number of the descriptor that it returns. Maps the dmabufs that the
/// ioctl names, and unmaps those of an object that it destroyed.
///
/// # Safety
/// `argument` must be null or point to an ioctl's header and its attributes.
pub(crate) unsafe fn ioctl(entry: &Entry, argument: *mut c_void) -> Result<(), Errno> {
    // Before signals are blocked: it reads what the program supplied, which may be a fault that the program handles.
    // SAFETY: by the caller.
    let (mappings, channel) = unsafe { descriptors(argument) }?;
    let _uninterrupted = Uninterrupted::new();
    let (socket, _lock) = entry.lock()?;
    let request = Request::Ioctl { address: argument as u64, mappings: mappings.0 };
    let (reply, received) = exchange(socket, &request, channel.as_slice())?;
    // They belong to the object now.
    std::mem::forget(mappings);
    drop(Mappings(reply.unmap));
    let output = reply.descriptor_output;
    match (received, output.width) {
        (None, _) => {}
        // SAFETY: the broker states an address that the ioctl named for this number.
        (Some(descriptor), 4) => unsafe { write_unaligned(output.address as *mut i32, descriptor) },
        // SAFETY: as above.
        (Some(descriptor), 8) => unsafe {
            write_unaligned(output.address as *mut i64, i64::from(descriptor))
        },
        (Some(descriptor), _) => {
            real::close(descriptor);
        }
    }
    Ok(())
}

/// Memory of descriptors that this library mapped. It is unmapped when the value is dropped.
struct Mappings([Mapping; MAX_MAPPINGS]);

impl Drop for Mappings {
    fn drop(&mut self) {
        for mapping in self.0.iter().filter(|mapping| mapping.length > 0) {
            // SAFETY: `map_descriptor` mapped the range, and no object of the broker has it (any more).
            unsafe { libc::munmap(mapping.address as *mut c_void, mapping.length as usize) };
        }
    }
}

/// Maps the dmabufs that an ioctl names. Returns the mappings and the completion channel that the ioctl names.
///
/// # Safety
/// `argument` must be null or point to an ioctl's header and its attributes.
unsafe fn descriptors(argument: *mut c_void) -> Result<(Mappings, Option<c_int>), Errno> {
    let mut mappings = Mappings(Default::default());
    if argument.is_null() {
        return Ok((mappings, None));
    }
    // SAFETY: by the caller, the header is readable. It may be unaligned.
    let header = unsafe { read_unaligned(argument.cast::<ib_uverbs_ioctl_hdr>()) };
    let attributes = usize::from(header.num_attrs).min(MAX_ATTRIBUTES);
    // SAFETY: by the caller, this number of attributes follows the header.
    let named = |source| unsafe { descriptor(argument, attributes, source) };
    let sources = descriptor_sources(header.object_id, header.method_id);
    for (mapping, source) in mappings.0.iter_mut().zip(sources) {
        if let Some(descriptor) = named(*source) {
            *mapping = map_descriptor(descriptor)?;
        }
    }
    let channel = channel_source(header.object_id, header.method_id).and_then(named);
    Ok((mappings, channel))
}

/// The file system of dmabufs (`linux/magic.h`).
const DMA_BUF_MAGIC: libc::__fsword_t = 0x444d_4142;

/// Maps a dmabuf whole, or a memory file instead of one: a file that has seals.
///
/// # Errors
/// [`Errno::EBADF`] if there is no such descriptor; [`Errno::EINVAL`] if it is of another kind, is empty, or the CPU
/// cannot map it.
fn map_descriptor(descriptor: c_int) -> Result<Mapping, Errno> {
    // SAFETY: the arguments are integers.
    let has_seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) } >= 0;
    let length = if has_seals {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the buffer has the structure's size.
        if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
            return Err(last_error());
        }
        // SAFETY: the call succeeded, so it filled the structure.
        unsafe { status.assume_init() }.st_size
    } else {
        let mut system = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the buffer has the structure's size.
        if unsafe { libc::fstatfs(descriptor, system.as_mut_ptr()) } != 0 {
            return Err(last_error());
        }
        // SAFETY: the call succeeded, so it filled the structure.
        if unsafe { system.assume_init() }.f_type != DMA_BUF_MAGIC {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the arguments are integers. A dmabuf has no position that this could change.
        unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) }
    };
    let length = u64::try_from(length).ok().filter(|length| *length > 0).ok_or(Errno::EINVAL)?;
    let start = real::map(descriptor, length as usize).ok_or(Errno::EINVAL)?;
    Ok(Mapping { address: start as u64, length })
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
    let _uninterrupted = Uninterrupted::new();
    let (socket, _lock) = entry.lock()?;
    let (reply, received) = exchange(socket, &Request::Map { offset, length, writable }, &[])?;
    received.map(|descriptor| (descriptor, reply.value)).ok_or(Errno::EIO)
}

/// Sends a request and waits for the reply. Returns it with the descriptor beside it. The caller must hold the
/// connection's lock, or be the only user of the socket.
fn exchange(
    socket: c_int,
    request: &Request,
    descriptors: &[c_int],
) -> Result<(Reply, Option<c_int>), Errno> {
    send(socket, request, descriptors)?;
    let (bytes, received) = receive(socket)?;
    let reply = Reply::decode(&bytes)?;
    if reply.errno != 0 {
        received.map(real::close);
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

fn receive(socket: c_int) -> Result<([u8; REPLY_BYTES], Option<c_int>), Errno> {
    let mut bytes = [0; REPLY_BYTES];
    let mut received = None;
    let mut control = cmsg_space!(c_int);
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg::<()>(socket, &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) if message.bytes == REPLY_BYTES => {
                for control in message.cmsgs().map_err(|_| Errno::EIO)? {
                    if let ControlMessageOwned::ScmRights(descriptors) = control {
                        received = descriptors.first().copied();
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
