//! A provider without an adapter: it logs the calls on its domain and returns the results that a test sets. No bytes
//! move; tests check which calls are made, in which order, and what becomes of their results.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;

use efa_gda::fabric::{Domain, Info};
use efa_gda_sys::fi;

/// State of one fake domain; `fid::context` of every object points to it.
#[derive(Default)]
struct State {
    log: Mutex<Vec<String>>,
    answers: Mutex<HashMap<&'static str, i64>>,
    table: Mutex<usize>,
    rings: UnsafeCell<Rings>,
}

/// The depth of the fake's work queues.
pub(crate) const DEPTH: u32 = 16;

/// Ordinary memory, which no adapter reads.
#[repr(C, align(64))]
#[derive(Default)]
struct Rings {
    send: [[u64; 8]; DEPTH as usize],
    receive: [[u64; 2]; DEPTH as usize],
    completion: [[u64; 4]; 2 * DEPTH as usize],
    doorbells: [u32; 2],
}

impl State {
    /// Logs `call` and returns the result that the test set, or `usual`.
    fn call(&self, call: &'static str, usual: i64) -> i64 {
        self.log.lock().unwrap().push(call.to_owned());
        self.answers.lock().unwrap().get(call).copied().unwrap_or(usual)
    }
}

/// An object that lives until the process ends and stays reachable for a leak checker.
fn keep<T>(object: T) -> *mut T {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let raw = Box::into_raw(Box::new(object));
    KEPT.lock().unwrap().push(raw.expose_provenance());
    raw
}

/// # Safety
/// `fid` must belong to an object of a live [`Fake`].
unsafe fn state<'a>(fid: *mut fi::fid) -> &'a State {
    // SAFETY: the context of every object of a fake points to the fake's state.
    unsafe { &*(*fid).context.cast::<State>() }
}

pub(crate) struct Fake {
    state: Box<State>,
    domain: Box<fi::fid_domain>,
    ops: Box<fi::fi_ops>,
    domain_ops: Box<fi::fi_ops_domain>,
    mr_ops: Box<fi::fi_ops_mr>,
    fabric_attr: Box<fi::fi_fabric_attr>,
    ep_attr: Box<fi::fi_ep_attr>,
    info: Box<fi::fi_info>,
    _names: [CString; 2],
}

/// A GDA table that ends before an unreadable page, so that a read past its end ends the process.
pub(crate) struct GuardedTable {
    map: *mut c_void,
    table: *mut u8,
}

const PAGE: usize = 4096;

impl GuardedTable {
    /// The first `pointers` pointers of the fake's table.
    pub(crate) fn of(pointers: usize) -> Self {
        // SAFETY: an anonymous mapping of two pages, of which the second becomes unreadable; the copy ends with the
        // first.
        unsafe {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let map = libc::mmap(null_mut(), 2 * PAGE, access, kind, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(map.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            let table = map.cast::<u8>().add(PAGE - pointers * 8);
            let whole = gda_table();
            table.copy_from_nonoverlapping((&raw const whole).cast(), pointers * 8);
            Self { map, table }
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut fi::fi_efa_ops_gda {
        self.table.cast()
    }
}

impl Drop for GuardedTable {
    fn drop(&mut self) {
        // SAFETY: `of` mapped these pages, and no reference to them is left.
        unsafe { libc::munmap(self.map, 2 * PAGE) };
    }
}

/// All six operations of the fake.
pub(crate) fn gda_table() -> fi::fi_efa_ops_gda {
    fi::fi_efa_ops_gda {
        query_addr: Some(query_addr),
        query_qp_wqs: Some(query_qp_wqs),
        query_cq: Some(query_cq),
        cq_open_ext: Some(cq_open_ext),
        get_mr_lkey: Some(get_mr_lkey),
        cntr_open_ext: Some(cntr_open_ext),
    }
}

impl Fake {
    /// A domain whose provider reports version `major`.0.
    pub(crate) fn new(major: u16) -> Self {
        let state = Box::<State>::default();
        let context = (&raw const *state).cast_mut().cast();
        let mut ops = Box::new(fi::fi_ops {
            size: size_of::<fi::fi_ops>(),
            close: Some(close_domain),
            ops_open: Some(ops_open),
            ..Default::default()
        });
        let mut domain_ops = Box::new(fi::fi_ops_domain {
            size: size_of::<fi::fi_ops_domain>(),
            av_open: Some(av_open),
            cq_open: Some(cq_open),
            endpoint: Some(endpoint_open),
            ..Default::default()
        });
        let mut mr_ops = Box::new(fi::fi_ops_mr {
            size: size_of::<fi::fi_ops_mr>(),
            reg: Some(mr_reg),
            ..Default::default()
        });
        let fid = fi::fid { fclass: fi::FI_CLASS_DOMAIN as usize, context, ops: &mut *ops };
        let domain = Box::new(fi::fid_domain { fid, ops: &mut *domain_ops, mr: &mut *mr_ops });
        let names = [c"efa".to_owned(), c"efa-direct".to_owned()];
        let mut fabric_attr = Box::new(fi::fi_fabric_attr {
            name: names[1].as_ptr().cast_mut(),
            prov_name: names[0].as_ptr().cast_mut(),
            prov_version: fi::fi_version(major.into(), 0),
            ..Default::default()
        });
        let mut ep_attr = Box::new(fi::fi_ep_attr { max_msg_size: 1 << 30, ..Default::default() });
        let info = Box::new(fi::fi_info {
            fabric_attr: &mut *fabric_attr,
            ep_attr: &mut *ep_attr,
            ..Default::default()
        });
        let fake = Self { state, domain, ops, domain_ops, mr_ops, fabric_attr, ep_attr, info, _names: names };
        fake.gives_table(keep(gda_table()));
        fake
    }

    /// A domain of a provider of version 206.0 whose result of `call` is `answer`.
    pub(crate) fn answering(call: &'static str, answer: i64) -> Self {
        let fake = Self::new(206);
        fake.answers(call, answer);
        fake
    }

    /// Sets the result of `call`.
    pub(crate) fn answers(&self, call: &'static str, answer: i64) -> &Self {
        self.state.answers.lock().unwrap().insert(call, answer);
        self
    }

    /// Sets the table that `fi_open_ops` returns.
    pub(crate) fn gives_table(&self, table: *mut fi::fi_efa_ops_gda) {
        *self.state.table.lock().unwrap() = table as usize;
    }

    /// Makes the domain's operation table end after `size` bytes.
    pub(crate) fn shorten_domain_table(&mut self, size: usize) {
        self.domain_ops.size = size;
    }

    /// The last value of the send queue's doorbell.
    pub(crate) fn doorbell(&self) -> u32 {
        // SAFETY: this thread writes it.
        unsafe { (&raw const (*self.state.rings.get()).doorbells[0]).read_volatile() }
    }

    /// The calls that were made so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.state.log.lock().unwrap().clone()
    }

    pub(crate) fn info(&self) -> Info {
        // SAFETY: tests drop their objects before the fake.
        unsafe { Info::borrow(NonNull::from(&*self.info)) }
    }

    /// The domain, borrowed with its info.
    pub(crate) fn domain(&self) -> Domain {
        // SAFETY: tests drop their objects before the fake.
        unsafe { Domain::borrow(NonNull::from(&*self.domain), Some(self.info())) }
    }

    /// The domain, borrowed without its info.
    pub(crate) fn bare_domain(&self) -> Domain {
        // SAFETY: tests drop their objects before the fake.
        unsafe { Domain::borrow(NonNull::from(&*self.domain), None) }
    }
}

/// An object other than the domain; `close` reads its class.
fn new_fid(class: u32, parent: *mut fi::fid) -> fi::fid {
    // SAFETY: the parent is an object of a live fake.
    let context = unsafe { (*parent).context };
    let (close, bind, control) = (Some(close_object as _), Some(bind as _), Some(control as _));
    let ops = fi::fi_ops { size: size_of::<fi::fi_ops>(), close, bind, control, ..Default::default() };
    fi::fid { fclass: class as usize, context, ops: keep(ops) }
}

fn class_name(class: usize) -> &'static str {
    match class as u32 {
        fi::FI_CLASS_EP => "endpoint",
        fi::FI_CLASS_AV => "av",
        fi::FI_CLASS_CQ => "cq",
        fi::FI_CLASS_MR => "mr",
        _ => "object",
    }
}

unsafe extern "C" fn close_domain(fid: *mut fi::fid) -> c_int {
    // SAFETY: called on the fake's domain.
    unsafe { state(fid) }.call("close domain", 0) as c_int
}

unsafe extern "C" fn close_object(fid: *mut fi::fid) -> c_int {
    // SAFETY: called on an object of the fake. Objects are leaked, so that a use after close shows in the
    // log and not as a crash.
    let (state, class) = unsafe { (state(fid), (*fid).fclass) };
    let call = match class_name(class) {
        "endpoint" => "close endpoint",
        "av" => "close av",
        "cq" => "close cq",
        _ => "close mr",
    };
    state.call(call, 0) as c_int
}

unsafe extern "C" fn bind(fid: *mut fi::fid, other: *mut fi::fid, flags: u64) -> c_int {
    // SAFETY: called on objects of the fake.
    let (state, class) = unsafe { (state(fid), (*other).fclass) };
    let call = match (class_name(class), flags) {
        ("av", _) => "bind av",
        (_, fi::FI_TRANSMIT) => "bind cq for transmit",
        (_, fi::FI_RECV) => "bind cq for receive",
        _ => "bind cq",
    };
    state.call(call, 0) as c_int
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, _arg: *mut c_void) -> c_int {
    assert_eq!(command as u32, fi::FI_ENABLE);
    // SAFETY: called on an object of the fake.
    unsafe { state(fid) }.call("enable", 0) as c_int
}

unsafe extern "C" fn ops_open(
    fid: *mut fi::fid,
    name: *const c_char,
    _flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the name is a C string, `fid` is the fake's, and `ops` can be written.
    unsafe {
        assert_eq!(CStr::from_ptr(name), c"efa gda ops");
        let state = state(fid);
        let answer = state.call("open ops", 0);
        if answer == 0 {
            *ops = *state.table.lock().unwrap() as *mut c_void;
        }
        answer as c_int
    }
}

unsafe extern "C" fn av_open(
    domain: *mut fi::fid_domain,
    _attr: *mut fi::fi_av_attr,
    av: *mut *mut fi::fid_av,
    _context: *mut c_void,
) -> c_int {
    let ops =
        fi::fi_ops_av { size: size_of::<fi::fi_ops_av>(), insert: Some(av_insert), ..Default::default() };
    // SAFETY: called on the fake's domain; `av` can be written.
    unsafe {
        *av = keep(fi::fid_av { fid: new_fid(fi::FI_CLASS_AV, domain.cast()), ops: keep(ops) });
        state(domain.cast()).call("open av", 0) as c_int
    }
}

unsafe extern "C" fn av_insert(
    av: *mut fi::fid_av,
    _address: *const c_void,
    count: usize,
    inserted: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    assert_eq!(count, 1);
    // SAFETY: called on the fake's vector; one address can be written.
    unsafe {
        *inserted = 5;
        state(av.cast()).call("insert", 1) as c_int
    }
}

unsafe extern "C" fn cq_open(
    domain: *mut fi::fid_domain,
    _attr: *mut fi::fi_cq_attr,
    cq: *mut *mut fi::fid_cq,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: called on the fake's domain; `cq` can be written.
    unsafe {
        *cq = keep(fi::fid_cq { fid: new_fid(fi::FI_CLASS_CQ, domain.cast()), ops: null_mut() });
        state(domain.cast()).call("open cq", 0) as c_int
    }
}

unsafe extern "C" fn endpoint_open(
    domain: *mut fi::fid_domain,
    _info: *mut fi::fi_info,
    endpoint: *mut *mut fi::fid_ep,
    _context: *mut c_void,
) -> c_int {
    let cm = fi::fi_ops_cm { size: size_of::<fi::fi_ops_cm>(), getname: Some(getname), ..Default::default() };
    // SAFETY: called on the fake's domain; `endpoint` can be written.
    unsafe {
        let mut object = fi::fid_ep { fid: new_fid(fi::FI_CLASS_EP, domain.cast()), ..Default::default() };
        object.cm = keep(cm);
        let answer = state(domain.cast()).call("open endpoint", 0);
        *endpoint = if answer == 0 { keep(object) } else { null_mut() };
        // "no object": success without an object.
        if answer == 1 { 0 } else { answer as c_int }
    }
}

unsafe extern "C" fn getname(fid: *mut fi::fid, address: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: the caller's memory has `length` bytes.
    unsafe {
        assert!(*length >= 32);
        address.write_bytes(7, 32);
        *length = 32;
        state(fid).call("getname", 0) as c_int
    }
}

unsafe extern "C" fn mr_reg(
    domain: *mut fi::fid,
    _buf: *const c_void,
    _len: usize,
    _access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    mr: *mut *mut fi::fid_mr,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: called on the fake's domain; `mr` can be written.
    unsafe {
        let state = state(domain);
        let key = state.answers.lock().unwrap().get("rkey").copied().unwrap_or(0x77) as u64;
        *mr = keep(fi::fid_mr { fid: new_fid(fi::FI_CLASS_MR, domain), mem_desc: null_mut(), key });
        state.call("register", 0) as c_int
    }
}

unsafe extern "C" fn query_addr(
    endpoint: *mut fi::fid_ep,
    address: u64,
    handle: *mut u16,
    queue_pair: *mut u16,
    queue_key: *mut u32,
) -> c_int {
    assert_eq!(address, 5);
    // SAFETY: called on the fake's endpoint; results can be written.
    unsafe {
        (*handle, *queue_pair, *queue_key) = (3, 101, 0x1234);
        state(endpoint.cast()).call("query_addr", 0) as c_int
    }
}

unsafe extern "C" fn query_qp_wqs(
    endpoint: *mut fi::fid_ep,
    send: *mut fi::fi_efa_wq_attr,
    receive: *mut fi::fi_efa_wq_attr,
) -> c_int {
    // SAFETY: called on the fake's endpoint; results can be written. Like release 2.3, the
    // fake does not write `caps`.
    unsafe {
        let state = state(endpoint.cast());
        let rings = state.rings.get();
        (*send).buffer = (&raw mut (*rings).send).cast();
        (*send).doorbell = (&raw mut (*rings).doorbells).cast();
        (*receive).buffer = (&raw mut (*rings).receive).cast();
        (*receive).doorbell = (&raw mut (*rings).doorbells[1]).cast();
        for (attr, entry_size) in [(send, 64), (receive, 16)] {
            (*attr).entry_size = entry_size;
            (*attr).num_entries = DEPTH;
            (*attr).max_batch = DEPTH;
        }
        state.call("query_qp_wqs", 0) as c_int
    }
}

unsafe extern "C" fn query_cq(cq: *mut fi::fid_cq, attr: *mut fi::fi_efa_cq_attr) -> c_int {
    // SAFETY: called on the fake's queue; the result can be written.
    unsafe {
        let state = state(cq.cast());
        (*attr).buffer = (&raw mut (*state.rings.get()).completion).cast();
        (*attr).entry_size = 32;
        (*attr).num_entries = 2 * DEPTH;
        state.call("query_cq", 0) as c_int
    }
}

unsafe extern "C" fn cq_open_ext(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    _init: *mut fi::fi_efa_cq_init_attr,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called on the fake's domain; `cq` can be written.
    unsafe {
        let answer = state(domain.cast()).call("cq_open_ext", 0);
        if answer == 0 { cq_open(domain, attr, cq, context) } else { answer as c_int }
    }
}

unsafe extern "C" fn get_mr_lkey(mr: *mut fi::fid_mr) -> u64 {
    // SAFETY: called on the fake's region.
    unsafe { state(mr.cast()) }.call("get_mr_lkey", 0x55) as u64
}

unsafe extern "C" fn cntr_open_ext(
    _domain: *mut fi::fid_domain,
    _attr: *mut fi::fi_cntr_attr,
    _cntr: *mut *mut fi::fid_cntr,
    _context: *mut c_void,
    _init: *mut fi::fi_efa_comp_cntr_init_attr,
) -> c_int {
    -libc::ENOSYS
}
