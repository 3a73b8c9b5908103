//! Questions to the broker, each with its answer; descriptors travel beside them.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, size_of};
use std::ptr::{read_unaligned, write_unaligned};

use softefa_abi::protocol::{
    Carrier, MAX_DESCRIPTORS, REPLY_BYTES, Reply, Request, SOCKET_VARIABLE, descriptors,
};
use softefa_abi::sys::{
    IB_UVERBS_BUFFER_TYPE_DMABUF, ib_uverbs_attr, ib_uverbs_buffer_desc, ib_uverbs_ioctl_hdr,
};
use softefa_abi::{Errno, MAX_ATTRIBUTES};

use crate::real;
use crate::table::Entry;

/// Whether this process has a broker to ask.
pub(crate) fn configured() -> bool {
    // SAFETY: a C string; the environment is read as libibverbs itself reads it.
    !unsafe { libc::getenv(VARIABLE.as_ptr()) }.is_null()
}

const VARIABLE: &std::ffi::CStr = c"SOFTEFA_SOCKET";
const _: () = assert!(VARIABLE.to_bytes().len() == SOCKET_VARIABLE.len());

fn last_error() -> Errno {
    Errno::of(&std::io::Error::last_os_error())
}

/// A connection to the broker that stands for one open of `adapter`.
pub(crate) fn open(adapter: u32) -> Result<c_int, Errno> {
    let socket = real::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
    if socket < 0 {
        return Err(last_error());
    }
    match greet(socket, adapter) {
        Ok(()) => Ok(socket),
        Err(error) => {
            real::close(socket);
            Err(error)
        }
    }
}

fn greet(socket: c_int, adapter: u32) -> Result<(), Errno> {
    // SAFETY: as in `configured`; the string is copied at once.
    let path = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if path.is_null() {
        return Err(Errno::ENODEV);
    }
    // SAFETY: getenv gives a C string.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_bytes();
    // SAFETY: all zeros is a valid socket address.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() >= address.sun_path.len() {
        return Err(Errno::ENODEV);
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = *byte as _;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: an initialised address of this length.
    if unsafe { libc::connect(socket, (&raw const address).cast(), length) } != 0 {
        return Err(Errno::ENODEV);
    }
    let (reply, _) = ask(socket, &Request::Open { adapter }, &[])?;
    // Where Yama limits who may look into a process, the broker may.
    // SAFETY: integers only; where there is no Yama the call fails and nothing is lost.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, reply.value, 0, 0, 0) };
    Ok(())
}

/// Passes an ioctl on.
///
/// # Safety
/// `argument` is the ioctl's header with its attributes, as the interface has it.
pub(crate) unsafe fn ioctl(entry: &Entry, argument: *mut c_void) -> Result<(), Errno> {
    let mut carried = [0; MAX_DESCRIPTORS];
    let mut count = 0;
    let mut present = 0;
    if !argument.is_null() {
        // SAFETY: the caller's promise; the fields may lie unaligned.
        let header = unsafe { read_unaligned(argument.cast::<ib_uverbs_ioctl_hdr>()) };
        let attributes = usize::from(header.num_attrs).min(MAX_ATTRIBUTES);
        for (index, carrier) in descriptors(header.object_id, header.method_id).iter().enumerate() {
            // SAFETY: the caller's promise: so many attributes follow the header.
            if let Some(descriptor) = unsafe { descriptor(argument, attributes, *carrier) } {
                carried[count] = descriptor;
                count += 1;
                present |= 1 << index;
            }
        }
    }
    let (socket, _turn) = entry.turn()?;
    let (reply, received) =
        ask(socket, &Request::Ioctl { address: argument as u64, present }, &carried[..count])?;
    for (descriptor, (address, width)) in received.iter().zip(reply.places) {
        match (*descriptor, width) {
            (-1, _) => {}
            // SAFETY: the broker names a place that the program gave for this number.
            (descriptor, 4) => unsafe { write_unaligned(address as *mut i32, descriptor) },
            // SAFETY: as above.
            (descriptor, 8) => unsafe { write_unaligned(address as *mut i64, i64::from(descriptor)) },
            (descriptor, _) => {
                real::close(descriptor);
            }
        }
    }
    Ok(())
}

/// The descriptor that a call carries in `carrier`, if the program gave one.
///
/// # Safety
/// `argument` is a header with `count` attributes after it.
unsafe fn descriptor(argument: *mut c_void, count: usize, carrier: Carrier) -> Option<c_int> {
    let (Carrier::Data(wanted) | Carrier::BufferDescription(wanted)) = carrier;
    // SAFETY: the attributes begin after the header, by the caller's promise.
    let first = unsafe { argument.add(size_of::<ib_uverbs_ioctl_hdr>()).cast::<ib_uverbs_attr>() };
    let attribute = (0..count).find_map(|index| {
        // SAFETY: index is below count.
        let attribute = unsafe { read_unaligned(first.add(index)) };
        (u32::from(attribute.attr_id) == wanted).then_some(attribute)
    })?;
    match carrier {
        Carrier::Data(_) => Some(attribute.data as c_int),
        Carrier::BufferDescription(_) => {
            if usize::from(attribute.len) < size_of::<ib_uverbs_buffer_desc>() || attribute.data == 0 {
                return None;
            }
            // SAFETY: by the interface the attribute points to this structure, of this length.
            let buffer = unsafe { read_unaligned(attribute.data as *const ib_uverbs_buffer_desc) };
            (buffer.type_ == IB_UVERBS_BUFFER_TYPE_DMABUF).then_some(buffer.fd)
        }
    }
}

/// The memory behind a key: a descriptor, and where in it.
pub(crate) fn map(entry: &Entry, offset: u64, length: u64, writable: bool) -> Result<(c_int, u64), Errno> {
    let (socket, _turn) = entry.turn()?;
    let (reply, received) = ask(socket, &Request::Map { offset, length, writable }, &[])?;
    match received[0] {
        -1 => Err(Errno::EIO),
        descriptor => Ok((descriptor, reply.value)),
    }
}

/// One question and its answer, with the descriptors beside it (-1 for none).
fn ask(
    socket: c_int,
    request: &Request,
    carried: &[c_int],
) -> Result<(Reply, [c_int; MAX_DESCRIPTORS]), Errno> {
    send(socket, request, carried)?;
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

const DESCRIPTOR_BYTES: usize = MAX_DESCRIPTORS * size_of::<c_int>();

/// Room for the descriptors beside a message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn send(socket: c_int, request: &Request, carried: &[c_int]) -> Result<(), Errno> {
    let mut bytes = request.encode();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !carried.is_empty() {
        let length = size_of_val(carried) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the control buffer is 64 bytes, enough for a header and two descriptors.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(carried.as_ptr(), libc::CMSG_DATA(header).cast(), carried.len());
        }
    }
    loop {
        // SAFETY: the message points to buffers of this frame.
        if unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) } >= 0 {
            return Ok(());
        }
        match last_error() {
            error if error.get() == libc::EINTR => {}
            error if error == Errno::EBADF => return Err(error),
            _ => return Err(Errno::EIO),
        }
    }
}

fn receive(socket: c_int) -> Result<([u8; REPLY_BYTES], [c_int; MAX_DESCRIPTORS]), Errno> {
    let mut bytes = [0; REPLY_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    loop {
        // SAFETY: the message points to buffers of this frame.
        let length = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(length) {
            Ok(REPLY_BYTES) => break,
            // The broker went, or is none.
            Ok(_) => return Err(Errno::EIO),
            Err(_) if last_error().get() == libc::EINTR => {}
            Err(_) => return Err(Errno::EIO),
        }
    }
    let mut received = [-1; MAX_DESCRIPTORS];
    // SAFETY: the kernel filled the control buffer; the macros stay inside it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize).min(DESCRIPTOR_BYTES) / 4;
            std::ptr::copy_nonoverlapping(libc::CMSG_DATA(header).cast(), received.as_mut_ptr(), count);
        }
    }
    Ok((bytes, received))
}
