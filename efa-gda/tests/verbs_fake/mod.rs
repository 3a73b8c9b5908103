//! A stand-in for rdma-core: tables of functions over objects that record their arguments. Each thread has its own
//! state, so that tests do not share it.
//!
//! Results and errors are those of rdma-core 65; no bytes move. Other tests cover the real libraries.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the library under test calls each function with the pointers that rdma-core's headers name"
)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_ulonglong, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use efa_gda::verbs::{Library, RdmaCore};
use efa_gda_sys::verbs::*;

/// The depth of the work queues that queries report.
pub(crate) const DEPTH: u32 = 256;

/// What a test sets, and what it reads.
#[derive(Default)]
pub(crate) struct State {
    /// Calls that fail, each with its errno.
    pub fail: HashMap<&'static str, c_int>,
    /// Calls in order.
    pub calls: Vec<&'static str>,
    /// Objects that exist, by kind.
    pub live: HashMap<&'static str, usize>,
    /// Attributes of the last `ibv_modify_qp` for each state.
    pub modified: Vec<(ibv_qp_state, u32, ibv_qp_attr)>,
    /// Arguments of the last queue pair.
    pub queue_pair: Option<(ibv_qp_init_attr_ex, efadv_qp_init_attr)>,
    /// Arguments of the last external completion queue.
    pub external: Option<efadv_cq_init_attr>,
    /// Access of the last registration.
    pub access: c_int,
    /// Offset, length, address and descriptor of the last dmabuf registration.
    pub dmabuf: Option<(u64, usize, u64, c_int)>,
    /// Arguments of the last counter.
    pub counter: Option<efadv_comp_cntr_init_attr>,
    /// The adapter's GID.
    pub gid: [u8; 16],
    /// Attributes of the last address handle.
    pub handle: Option<ibv_ah_attr>,
    /// Names of the devices.
    pub devices: Vec<&'static std::ffi::CStr>,
    /// Result of `efadv_query_device`.
    pub attributes: efadv_device_attr,
    /// Result of `efadv_query_qp_wqs` for the send queue.
    pub send: efadv_wq_attr,
    /// The number of the next queue pair.
    pub number: u32,
    /// The keys of the next region.
    pub keys: (u32, u32),
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::adapter());
}

/// Reads the state, or changes it.
pub(crate) fn state<T>(with: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(|state| with(&mut state.borrow_mut()))
}

/// Memory for rings that are never written, aligned as those of adapters are.
#[repr(C, align(4096))]
struct Rings([u8; 8192]);
static RINGS: Rings = Rings([0; 8192]);

fn ring(offset: usize) -> *mut u8 {
    (&raw const RINGS).cast::<u8>().wrapping_add(offset).cast_mut()
}

impl State {
    fn adapter() -> Self {
        Self {
            devices: vec![c"efa_0"],
            attributes: efadv_device_attr {
                max_sq_wr: 4096,
                max_rq_wr: 32768,
                max_sq_sge: 2,
                max_rq_sge: 3,
                inline_buf_size: 32,
                inline_buf_size_ex: 80,
                device_caps: 0x7f,
                max_rdma_size: 1 << 30,
                ..Default::default()
            },
            send: efadv_wq_attr {
                buffer: ring(0),
                entry_size: 64,
                num_entries: DEPTH,
                doorbell: ring(4096).cast(),
                max_batch: 16,
                caps: 1,
                ..Default::default()
            },
            gid: [0xfe; 16],
            number: 7,
            keys: (0x12_3456, 0xabcd_ef01),
            ..Default::default()
        }
    }

    /// The value of `live` when no object exists.
    pub(crate) fn leaked(&self) -> Vec<&'static str> {
        self.live.iter().filter(|(_, count)| **count > 0).map(|(kind, _)| *kind).collect()
    }
}

/// Records a call, and returns the errno with which it must fail.
fn called(name: &'static str) -> Option<c_int> {
    state(|state| {
        state.calls.push(name);
        state.fail.get(name).copied()
    })
}

fn set_errno(errno: c_int) {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Creates an object, or returns null with errno.
fn make<T>(name: &'static str, kind: &'static str, object: impl FnOnce() -> T) -> *mut T {
    if let Some(errno) = called(name) {
        set_errno(errno);
        return null_mut();
    }
    state(|state| *state.live.entry(kind).or_default() += 1);
    let raw = Box::into_raw(Box::new(object()));
    // Objects that a test does not destroy stay reachable for a leak checker.
    static MADE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    MADE.lock().unwrap().push(raw.expose_provenance());
    raw
}

/// Frees an object, or returns an errno.
///
/// # Safety
/// `raw` must come from `make` of the same type.
unsafe fn unmake<T>(name: &'static str, kind: &'static str, raw: *mut T) -> c_int {
    if let Some(errno) = called(name) {
        return errno;
    }
    state(|state| *state.live.entry(kind).or_default() -= 1);
    // SAFETY: the caller guarantees it.
    drop(unsafe { Box::from_raw(raw) });
    0
}

fn answer(name: &'static str, fill: impl FnOnce()) -> c_int {
    match called(name) {
        Some(errno) => errno,
        None => {
            fill();
            0
        }
    }
}

/// The bytes of libibverbs' incomplete types, which have no size.
type Opaque = [u64; 8];

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if let Some(errno) = called("ibv_get_device_list") {
        set_errno(errno);
        return null_mut();
    }
    let devices = state(|state| state.devices.len());
    unsafe { *count = devices as c_int };
    // A device is its index plus one, because null ends the list.
    let list: Vec<*mut ibv_device> = (1..=devices).chain([0]).map(|index| index as *mut ibv_device).collect();
    state(|state| *state.live.entry("list").or_default() += 1);
    Box::into_raw(list.into_boxed_slice()).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    called("ibv_free_device_list");
    state(|state| *state.live.entry("list").or_default() -= 1);
    let mut entries = 0;
    while !unsafe { list.add(entries).read() }.is_null() {
        entries += 1;
    }
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, entries + 1)) });
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    state(|state| state.devices[device as usize - 1].as_ptr())
}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> c_ulonglong {
    (device as c_ulonglong).to_be()
}

unsafe extern "C" fn open_device(_: *mut ibv_device) -> *mut ibv_context {
    make("ibv_open_device", "context", Opaque::default).cast()
}

unsafe extern "C" fn close_device(raw: *mut ibv_context) -> c_int {
    unsafe { unmake("ibv_close_device", "context", raw.cast::<Opaque>()) }
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    answer("ibv_query_device", || unsafe {
        (*attr).max_cqe = 32768;
        (*attr).vendor_id = 0x1d0f;
        (*attr).vendor_part_id = 0xefa2;
        (*attr).fw_ver = [b'1' as c_char; 64];
    })
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int {
    assert_eq!(port, 1);
    answer("ibv_query_port", || unsafe {
        let attr = attr.cast::<ibv_port_attr>();
        (*attr).state = IBV_PORT_ACTIVE;
        (*attr).max_msg_sz = 8192;
        (*attr).gid_tbl_len = 1;
    })
}

unsafe extern "C" fn query_gid(_: *mut ibv_context, _: u8, _: c_int, gid: *mut ibv_gid) -> c_int {
    // As the real function: -1 with errno.
    if let Some(errno) = called("ibv_query_gid") {
        set_errno(errno);
        return -1;
    }
    unsafe { (*gid).raw = state(|state| state.gid) };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    make("ibv_alloc_pd", "pd", || ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn dealloc_pd(raw: *mut ibv_pd) -> c_int {
    unsafe { unmake("ibv_dealloc_pd", "pd", raw) }
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    let (lkey, rkey) = state(|state| {
        state.access = access;
        state.keys
    });
    make("ibv_reg_mr", "mr", || ibv_mr { context: null_mut(), pd, addr, length, handle: 0, lkey, rkey })
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    address: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    state(|state| state.dmabuf = Some((offset, length, address, fd)));
    unsafe { reg_mr(pd, address as *mut c_void, length, access) }
}

unsafe extern "C" fn dereg_mr(raw: *mut ibv_mr) -> c_int {
    unsafe { unmake("ibv_dereg_mr", "mr", raw) }
}

unsafe extern "C" fn create_cq(
    _: *mut ibv_context,
    _entries: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    make("ibv_create_cq", "cq", Opaque::default).cast()
}

unsafe extern "C" fn destroy_cq(raw: *mut ibv_cq) -> c_int {
    unsafe { unmake("ibv_destroy_cq", "cq", raw.cast::<Opaque>()) }
}

unsafe extern "C" fn modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    answer("ibv_modify_qp", || unsafe {
        let attr = *attr;
        state(|state| state.modified.push((attr.qp_state, mask as u32, attr)));
    })
}

unsafe extern "C" fn destroy_qp(raw: *mut ibv_qp) -> c_int {
    unsafe { unmake("ibv_destroy_qp", "qp", raw) }
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    state(|state| state.handle = Some(unsafe { *attr }));
    make("ibv_create_ah", "ah", || ibv_ah { context: null_mut(), pd, handle: 0 })
}

unsafe extern "C" fn destroy_ah(raw: *mut ibv_ah) -> c_int {
    unsafe { unmake("ibv_destroy_ah", "ah", raw) }
}

unsafe extern "C" fn destroy_comp_cntr(raw: *mut ibv_comp_cntr) -> c_int {
    unsafe { unmake("ibv_destroy_comp_cntr", "counter", raw.cast::<Opaque>()) }
}

unsafe extern "C" fn attach(
    _: *mut ibv_qp,
    _: *mut ibv_comp_cntr,
    _: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    answer("ibv_qp_attach_comp_cntr", || {})
}

unsafe extern "C" fn read_comp_cntr(_: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    answer("ibv_read_comp_cntr", || unsafe { *value = 1 << 31 })
}

unsafe extern "C" fn efa_query_device(_: *mut ibv_context, attr: *mut efadv_device_attr, size: u32) -> c_int {
    assert_eq!(size as usize, size_of::<efadv_device_attr>());
    answer("efadv_query_device", || unsafe { *attr = state(|state| state.attributes) })
}

unsafe extern "C" fn query_ah(_: *mut ibv_ah, attr: *mut efadv_ah_attr, _: u32) -> c_int {
    answer("efadv_query_ah", || unsafe { (*attr).ahn = 3 })
}

unsafe extern "C" fn create_qp(
    _: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    _: u32,
) -> *mut ibv_qp {
    let number = state(|state| {
        state.queue_pair = Some(unsafe { (*attr, *efa) });
        state.number
    });
    make("efadv_create_qp_ex", "qp", || {
        // A plain C structure, for which all zeros is a value.
        let mut qp: ibv_qp = unsafe { std::mem::zeroed() };
        qp.qp_num = number;
        qp
    })
}

unsafe extern "C" fn efa_create_cq(
    _: *mut ibv_context,
    _: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    _: u32,
) -> *mut ibv_cq_ex {
    state(|state| state.external = Some(unsafe { *efa }));
    make("efadv_create_cq", "cq", Opaque::default).cast()
}

unsafe extern "C" fn query_qp_wqs(
    _: *mut ibv_qp,
    send: *mut efadv_wq_attr,
    receive: *mut efadv_wq_attr,
    _: u32,
) -> c_int {
    answer("efadv_query_qp_wqs", || unsafe {
        *send = state(|state| state.send);
        *receive = efadv_wq_attr {
            buffer: ring(0),
            entry_size: 16,
            num_entries: DEPTH,
            doorbell: ring(4100).cast(),
            max_batch: DEPTH,
            ..Default::default()
        };
    })
}

unsafe extern "C" fn query_cq(_: *mut ibv_cq, attr: *mut efadv_cq_attr, _: u32) -> c_int {
    answer("efadv_query_cq", || unsafe {
        *attr = efadv_cq_attr {
            buffer: ring(0),
            entry_size: 32,
            num_entries: 1024,
            doorbell: ring(4104).cast(),
            ..Default::default()
        };
    })
}

/// Computes the depth as `efadv_get_max_sq_depth` does: the number of entries that fit in 256 KiB.
unsafe extern "C" fn max_sq_depth(_: *mut ibv_context, attr: *mut efadv_sq_depth_attr, _: u32) -> c_int {
    match called("efadv_get_max_sq_depth") {
        Some(errno) => -errno,
        None => (1 << 18) / if unsafe { (*attr).flags } == 0 { 64 } else { 128 },
    }
}

unsafe extern "C" fn create_comp_cntr(
    _: *mut ibv_context,
    _: *mut ibv_comp_cntr_init_attr,
    efa: *mut efadv_comp_cntr_init_attr,
    _: u32,
) -> *mut ibv_comp_cntr {
    state(|state| state.counter = Some(unsafe { *efa }));
    make("efadv_create_comp_cntr", "counter", Opaque::default).cast()
}

/// The functions of rdma-core 65 that the tests call; `change` may remove some.
pub(crate) fn library(change: impl FnOnce(&mut efa_gda_ibverbs_calls, &mut efa_gda_efadv_calls)) -> Library {
    let mut ibv = efa_gda_ibverbs_calls {
        ibv_get_device_list: Some(get_device_list),
        ibv_free_device_list: Some(free_device_list),
        ibv_get_device_name: Some(get_device_name),
        ibv_get_device_guid: Some(get_device_guid),
        ibv_open_device: Some(open_device),
        ibv_close_device: Some(close_device),
        ibv_query_device: Some(query_device),
        ibv_query_port: Some(query_port),
        ibv_query_gid: Some(query_gid),
        ibv_alloc_pd: Some(alloc_pd),
        ibv_dealloc_pd: Some(dealloc_pd),
        ibv_reg_mr: Some(reg_mr),
        ibv_reg_dmabuf_mr: Some(reg_dmabuf_mr),
        ibv_dereg_mr: Some(dereg_mr),
        ibv_create_cq: Some(create_cq),
        ibv_destroy_cq: Some(destroy_cq),
        ibv_modify_qp: Some(modify_qp),
        ibv_destroy_qp: Some(destroy_qp),
        ibv_create_ah: Some(create_ah),
        ibv_destroy_ah: Some(destroy_ah),
        ibv_destroy_comp_cntr: Some(destroy_comp_cntr),
        ibv_qp_attach_comp_cntr: Some(attach),
        ibv_read_comp_cntr: Some(read_comp_cntr),
        ..Default::default()
    };
    let mut efadv = efa_gda_efadv_calls {
        efadv_query_device: Some(efa_query_device),
        efadv_query_ah: Some(query_ah),
        efadv_create_qp_ex: Some(create_qp),
        efadv_create_cq: Some(efa_create_cq),
        efadv_query_qp_wqs: Some(query_qp_wqs),
        efadv_query_cq: Some(query_cq),
        efadv_get_max_sq_depth: Some(max_sq_depth),
        efadv_create_comp_cntr: Some(create_comp_cntr),
        ..Default::default()
    };
    change(&mut ibv, &mut efadv);
    // SAFETY: the functions above behave as those of rdma-core, on one thread.
    unsafe { RdmaCore::from_tables(ibv, efadv) }.into()
}
