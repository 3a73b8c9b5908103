//! The operations that move data through libfabric. Clients drive the queues that the GDA operations expose, so all of
//! them return -ENOSYS.

use std::ffi::c_void;

use efa_gda_sys::fi;

use crate::libfabric::ffi::{self, Code, UNUSED};

pub(super) static MSG_OPS: ffi::Table<fi::fi_ops_msg> = ffi::Table::new(fi::fi_ops_msg {
    size: size_of::<fi::fi_ops_msg>(),
    recv: Some(recv),
    recvv: UNUSED,
    recvmsg: UNUSED,
    send: Some(send),
    sendv: UNUSED,
    sendmsg: UNUSED,
    inject: UNUSED,
    senddata: UNUSED,
    injectdata: UNUSED,
});

pub(super) static RMA_OPS: ffi::Table<fi::fi_ops_rma> = ffi::Table::new(fi::fi_ops_rma {
    size: size_of::<fi::fi_ops_rma>(),
    read: Some(read),
    readv: UNUSED,
    readmsg: UNUSED,
    write: Some(write),
    writev: UNUSED,
    writemsg: UNUSED,
    inject: UNUSED,
    writedata: UNUSED,
    injectdata: UNUSED,
});

/// A table for tagged, atomic and collective operations. It is longer than that of any release, and every
/// operation returns -ENOSYS.
#[repr(C)]
pub(super) struct OtherOps {
    size: usize,
    operations: [fi::fi_unused_op; 32],
}

pub(super) static OTHER_OPS: OtherOps = OtherOps { size: size_of::<OtherOps>(), operations: [UNUSED; 32] };

const NOT_PROVIDED: isize = Code::NOT_PROVIDED.returned() as isize;

pub(super) unsafe extern "C" fn cancel(_fid: fi::fid_t, _context: *mut c_void) -> isize {
    NOT_PROVIDED
}

unsafe extern "C" fn recv(
    _ep: *mut fi::fid_ep,
    _buf: *mut c_void,
    _len: usize,
    _desc: *mut c_void,
    _src: fi::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    NOT_PROVIDED
}

unsafe extern "C" fn send(
    _ep: *mut fi::fid_ep,
    _buf: *const c_void,
    _len: usize,
    _desc: *mut c_void,
    _dest: fi::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    NOT_PROVIDED
}

unsafe extern "C" fn read(
    _ep: *mut fi::fid_ep,
    _buf: *mut c_void,
    _len: usize,
    _desc: *mut c_void,
    _src: fi::fi_addr_t,
    _addr: u64,
    _key: u64,
    _context: *mut c_void,
) -> isize {
    NOT_PROVIDED
}

unsafe extern "C" fn write(
    _ep: *mut fi::fid_ep,
    _buf: *const c_void,
    _len: usize,
    _desc: *mut c_void,
    _dest: fi::fi_addr_t,
    _addr: u64,
    _key: u64,
    _context: *mut c_void,
) -> isize {
    NOT_PROVIDED
}
