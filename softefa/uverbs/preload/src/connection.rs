//! Questions to the broker, each with its answer; descriptors travel beside them.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::ptr::{read_unaligned, write_unaligned};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, connect, recvmsg, sendmsg};
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
    let address = UnixAddr::new(path).map_err(|_| Errno::ENODEV)?;
    connect(socket, &address).map_err(|_| Errno::ENODEV)?;
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

fn send(socket: c_int, request: &Request, carried: &[c_int]) -> Result<(), Errno> {
    let bytes = request.encode();
    let rights = [ControlMessage::ScmRights(carried)];
    let control = if carried.is_empty() { &[] } else { &rights[..] };
    loop {
        match sendmsg::<()>(socket, &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EBADF) => return Err(Errno::EBADF),
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
            Err(nix::Error::EINTR) => {}
            // The broker ended, or sent something else.
            Ok(_) | Err(_) => return Err(Errno::EIO),
        }
    }
}
