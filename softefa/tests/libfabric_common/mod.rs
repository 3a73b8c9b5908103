//! What the tests of the libfabric frontend share: a thin client that calls operations as C would and returns their
//! codes. `queues` drives the exposed queues.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod queues;

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use efa_gda_sys::{Libfabric, fi};
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use efa_gda_test_support::soft::{SoftAdapter, SoftefaStatistics, SoftefaViolation, with_soft_adapter};

/// Calls an operation out of a fid's table.
#[macro_export]
macro_rules! call {
    ($table:expr, $operation:ident $(, $argument:expr)*) => {
        // SAFETY: the fid is open and the provider filled its table; a test may close the fid first only where the
        // provider defines the result.
        unsafe { ((*$table).$operation.expect("the operation is there"))($($argument),*) }
    };
}

/// A change to hints.
pub type Change = fn(&mut Hints);

/// Hints of an application that uses GDA; tests change them.
pub struct Hints(pub *mut fi::fi_info);

impl Hints {
    pub fn new(library: &Libfabric) -> Self {
        // SAFETY: null asks for an empty info.
        let info = unsafe { library.dupinfo(ptr::null()) };
        assert!(!info.is_null());
        // SAFETY: an info with all its attributes; the strings are for libfabric to free.
        unsafe {
            (*info).caps = fi::FI_MSG | fi::FI_RMA;
            (*info).mode = fi::FI_CONTEXT2;
            (*(*info).ep_attr).type_ = fi::FI_EP_RDM;
            (*(*info).domain_attr).mr_mode =
                fi::FI_MR_LOCAL | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_VIRT_ADDR;
            (*(*info).fabric_attr).prov_name = libc_string("efa");
            (*(*info).fabric_attr).name = libc_string("efa-direct");
        }
        Self(info)
    }

    pub fn info(&mut self) -> &mut fi::fi_info {
        // SAFETY: made by `new`, owned.
        unsafe { &mut *self.0 }
    }

    pub fn tx(&mut self) -> &mut fi::fi_tx_attr {
        // SAFETY: fi_dupinfo made the attributes; this one has kept its length in every release.
        unsafe { &mut *(*self.0).tx_attr }
    }

    pub fn rx(&mut self) -> &mut fi::fi_rx_attr {
        // SAFETY: as in `tx`.
        unsafe { &mut *(*self.0).rx_attr }
    }

    /// Changes the endpoint's type. `fi_ep_attr` may be shorter than declared, so that no reference to it is made.
    pub fn endpoint_type(&mut self, kind: fi::fi_ep_type) {
        // SAFETY: fi_dupinfo made the attributes; the field is in every release's struct.
        unsafe { (*(*self.0).ep_attr).type_ = kind };
    }

    /// Changes the size of the longest message.
    pub fn max_msg_size(&mut self, bytes: usize) {
        // SAFETY: as in `endpoint_type`.
        unsafe { (*(*self.0).ep_attr).max_msg_size = bytes };
    }

    /// Changes the registration modes. `fi_domain_attr` may be shorter than declared, so that no
    /// reference to it is made.
    pub fn change_mr_mode(&mut self, remove: i32, add: i32) {
        // SAFETY: the field is in every release's struct.
        unsafe {
            let attr = (*self.0).domain_attr;
            (*attr).mr_mode = (*attr).mr_mode & !remove | add;
        }
    }

    pub fn domain(&mut self, name: &str) {
        // SAFETY: as above; a name that was there is the C allocator's.
        unsafe {
            let attr = (*self.0).domain_attr;
            libc::free((*attr).name.cast());
            (*attr).name = libc_string(name);
        }
    }

    pub fn fabric(&mut self, name: &str) {
        // SAFETY: made by `new`; the old name is the C allocator's.
        unsafe {
            libc::free((*(*self.0).fabric_attr).name.cast());
            (*(*self.0).fabric_attr).name = libc_string(name);
        }
    }
}

pub fn libc_string(text: &str) -> *mut std::ffi::c_char {
    let text = CString::new(text).unwrap();
    // SAFETY: a string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// A loaded libfabric.
pub struct Client {
    pub library: Libfabric,
}

impl Client {
    pub fn load() -> Self {
        Self { library: Libfabric::load().expect("a libfabric is installed") }
    }

    /// The infos for `hints`, or the error.
    pub fn getinfo(&self, hints: &Hints) -> Result<*mut fi::fi_info, c_int> {
        let mut list = ptr::null_mut();
        // SAFETY: hints of this library.
        match unsafe { self.library.getinfo(hints.0, &mut list) } {
            0 => Ok(list),
            error => Err(error),
        }
    }

    /// The infos for the usual hints, changed by `change`.
    pub fn getinfo_with(&self, change: impl FnOnce(&mut Hints)) -> Result<*mut fi::fi_info, c_int> {
        let mut hints = Hints::new(&self.library);
        change(&mut hints);
        let result = self.getinfo(&hints);
        // SAFETY: made by this library, not used again.
        unsafe { self.library.freeinfo(hints.0) };
        result
    }

    pub fn info(&self) -> *mut fi::fi_info {
        self.getinfo_with(|_| {}).expect("infos match the usual hints")
    }

    pub fn fabric(&self, info: *mut fi::fi_info) -> Result<*mut fi::fid_fabric, c_int> {
        let mut fabric = ptr::null_mut();
        // SAFETY: an info of this library.
        let code = unsafe { self.library.fabric((*info).fabric_attr, &mut fabric) };
        if code == 0 { Ok(fabric) } else { Err(code) }
    }
}

fn opened<T>(code: c_int, object: *mut T) -> Result<*mut T, c_int> {
    match code {
        0 => {
            assert!(!object.is_null());
            Ok(object)
        }
        error => Err(error),
    }
}

pub fn open_domain(
    fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
) -> Result<*mut fi::fid_domain, c_int> {
    let mut domain = ptr::null_mut();
    opened(call!((*fabric).ops, domain, fabric, info, &mut domain, ptr::null_mut()), domain)
}

pub fn open_av(domain: *mut fi::fid_domain) -> Result<*mut fi::fid_av, c_int> {
    let (mut attr, mut av) = (fi::fi_av_attr::default(), ptr::null_mut());
    opened(call!((*domain).ops, av_open, domain, &mut attr, &mut av, ptr::null_mut()), av)
}

pub fn open_cq(domain: *mut fi::fid_domain, size: usize) -> Result<*mut fi::fid_cq, c_int> {
    let mut attr = fi::fi_cq_attr { size, format: fi::FI_CQ_FORMAT_DATA, ..Default::default() };
    let mut cq = ptr::null_mut();
    opened(call!((*domain).ops, cq_open, domain, &mut attr, &mut cq, ptr::null_mut()), cq)
}

pub fn open_ep(domain: *mut fi::fid_domain, info: *mut fi::fi_info) -> Result<*mut fi::fid_ep, c_int> {
    let mut ep = ptr::null_mut();
    opened(call!((*domain).ops, endpoint, domain, info, &mut ep, ptr::null_mut()), ep)
}

pub fn register(domain: *mut fi::fid_domain, memory: &[u64], access: u64) -> Result<*mut fi::fid_mr, c_int> {
    let mut mr = ptr::null_mut();
    let (start, bytes) = (memory.as_ptr().cast(), size_of_val(memory));
    let code =
        call!((*domain).mr, reg, domain.cast(), start, bytes, access, 0, 0, 0, &mut mr, ptr::null_mut());
    opened(code, mr)
}

pub fn bind<T>(ep: *mut fi::fid_ep, object: *mut T, flags: u64) -> c_int {
    call!((*ep.cast::<fi::fid>()).ops, bind, ep.cast(), object.cast(), flags)
}

pub fn enable(ep: *mut fi::fid_ep) -> c_int {
    call!((*ep.cast::<fi::fid>()).ops, control, ep.cast(), fi::FI_ENABLE as c_int, ptr::null_mut())
}

pub fn close<T>(object: *mut T) -> c_int {
    let fid = object.cast::<fi::fid>();
    call!((*fid).ops, close, fid)
}

pub fn open_ops<T, O>(object: *mut T, name: &[u8]) -> Result<*const O, c_int> {
    let fid = object.cast::<fi::fid>();
    let name = CStr::from_bytes_with_nul(name).unwrap();
    let mut ops: *mut c_void = ptr::null_mut();
    let code = call!((*fid).ops, ops_open, fid, name.as_ptr(), 0, &mut ops, ptr::null_mut());
    opened(code, ops).map(|ops| ops.cast_const().cast())
}

pub fn gda_ops(domain: *mut fi::fid_domain) -> Result<*const fi::fi_efa_ops_gda, c_int> {
    open_ops(domain, fi::FI_EFA_GDA_OPS)
}

pub fn name_of(ep: *mut fi::fid_ep) -> [u8; 32] {
    let (mut address, mut length) = ([0_u8; 32], 32);
    let code = call!((*ep).cm, getname, ep.cast(), address.as_mut_ptr().cast(), &mut length);
    assert_eq!((code, length), (0, 32));
    address
}

pub fn insert(av: *mut fi::fid_av, address: &[u8; 32]) -> fi::fi_addr_t {
    let mut index = fi::FI_ADDR_NOTAVAIL;
    let inserted = call!((*av).ops, insert, av, address.as_ptr().cast(), 1, &mut index, 0, ptr::null_mut());
    assert_eq!(inserted, 1);
    index
}

/// Runs `body` with an enabled endpoint of the provider, in a process with these variables.
pub fn with_opened(variables: &[(&str, &str)], body: impl FnOnce(Opened)) {
    with_soft_adapter(variables, |_| body(Opened::new(&Client::load(), |_| {})));
}

/// Everything that an endpoint needs, enabled.
pub struct Opened {
    pub info: *mut fi::fi_info,
    pub fabric: *mut fi::fid_fabric,
    pub domain: *mut fi::fid_domain,
    pub av: *mut fi::fid_av,
    pub cq: *mut fi::fid_cq,
    pub ep: *mut fi::fid_ep,
}

impl Opened {
    pub fn new(client: &Client, change: impl FnOnce(&mut Hints)) -> Self {
        let info = client.getinfo_with(change).expect("infos match the hints");
        let fabric = client.fabric(info).unwrap();
        let domain = open_domain(fabric, info).unwrap();
        let av = open_av(domain).unwrap();
        let cq = open_cq(domain, 1024).unwrap();
        let ep = open_ep(domain, info).unwrap();
        assert_eq!(bind(ep, cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!(bind(ep, av, 0), 0);
        assert_eq!(enable(ep), 0);
        Self { info, fabric, domain, av, cq, ep }
    }

    pub fn close(self, client: &Client) {
        assert_eq!(close(self.ep), 0, "endpoint");
        assert_eq!(close(self.cq), 0, "completion queue");
        assert_eq!(close(self.av), 0, "address vector");
        assert_eq!(close(self.domain), 0, "domain");
        assert_eq!(close(self.fabric), 0, "fabric");
        // SAFETY: from this library's getinfo, not used again.
        unsafe { client.library.freeinfo(self.info) };
    }

    /// Send and receive queue as the provider exposes them.
    pub fn queues(&self) -> (fi::fi_efa_wq_attr, fi::fi_efa_wq_attr) {
        query_queues(self.domain, self.ep).expect("an enabled endpoint has queues")
    }
}

pub fn query_queues(
    domain: *mut fi::fid_domain,
    ep: *mut fi::fid_ep,
) -> Result<(fi::fi_efa_wq_attr, fi::fi_efa_wq_attr), c_int> {
    let ops = gda_ops(domain)?;
    let (mut sq, mut rq) = (fi::fi_efa_wq_attr::default(), fi::fi_efa_wq_attr::default());
    match call!(ops, query_qp_wqs, ep, &mut sq, &mut rq) {
        0 => Ok((sq, rq)),
        error => Err(error),
    }
}
