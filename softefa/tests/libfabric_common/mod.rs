//! What the tests of the libfabric face share: a child process for each test, with the provider on
//! FI_PROVIDER_PATH, and a thin client that calls operations as C would and returns their codes.
//! Driving what they expose is in `queues`.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod queues;

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::time::{Duration, Instant};

use efa_gda_sys::{Libfabric, fi};

const CHILD: &str = "SOFTEFA_TEST_CHILD";

/// The provider's file, which cargo builds beside the tests.
pub fn provider() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let file = deps.join("libsoftefa.so");
    assert!(file.is_file(), "{} is missing: cargo builds it with the tests", file.display());
    file
}

/// Runs `body` in a process of its own, whose libfabric finds the provider and whose environment
/// holds `variables`. `test` is the calling test's path. A minute bounds it.
pub fn in_child(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return body();
    }
    let status = child(test, variables, Duration::from_secs(60)).expect("the test's process did not end");
    assert!(status.success(), "the test's process ended with {status}");
}

/// Runs the test `test` as a child; `None` when it did not end in time and was killed.
pub fn child(test: &str, variables: &[(&str, &str)], limit: Duration) -> Option<ExitStatus> {
    let directory =
        std::env::temp_dir().join(format!("softefa-{}-{}", std::process::id(), test.replace(':', "_")));
    std::fs::create_dir_all(&directory).unwrap();
    let link = directory.join("softefa-fi.so");
    let _ = std::fs::remove_file(&link);
    symlink(provider(), &link).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("SOFTEFA_") || name.starts_with("FI_"))
    {
        command.env_remove(name);
    }
    let output = directory.join("output");
    let file = std::fs::File::create(&output).unwrap();
    command.stdout(file.try_clone().unwrap()).stderr(file);
    command.env(CHILD, test).env("FI_PROVIDER_PATH", &directory).envs(variables.iter().copied());
    let mut process = command.spawn().unwrap();
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > deadline {
            process.kill().unwrap();
            process.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if !status.is_some_and(|status| status.success()) {
        eprintln!("{}", String::from_utf8_lossy(&std::fs::read(&output).unwrap()));
    }
    std::fs::remove_dir_all(&directory).unwrap();
    status
}

/// Calls an operation out of a fid's table.
#[macro_export]
macro_rules! call {
    ($table:expr, $operation:ident $(, $argument:expr)*) => {
        // SAFETY: the fid is open and its table whole, as its maker promises; a test may break the
        // former on purpose only where the provider says what happens.
        unsafe { ((*$table).$operation.expect("the operation is there"))($($argument),*) }
    };
}

/// A change to hints.
pub type Change = fn(&mut Hints);

/// Hints of an application that wants GDA; tests change them.
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

    pub fn ep(&mut self) -> &mut fi::fi_ep_attr {
        // SAFETY: fi_dupinfo made the attributes; this one is never shorter than declared.
        unsafe { &mut *(*self.0).ep_attr }
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

/// A libfabric, and what it answered.
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
        self.getinfo_with(|_| {}).expect("the usual hints have an answer")
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
        let info = client.getinfo_with(change).expect("the hints have an answer");
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

/// The adapter's own C interface, out of the file that libfabric loaded.
pub struct Softefa(*mut c_void);

impl Softefa {
    pub fn load() -> Self {
        let path = CString::new(provider().to_str().unwrap()).unwrap();
        // SAFETY: a library of this project, which libfabric has loaded already.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self(handle)
    }

    /// # Safety
    /// `F` is the function pointer type that softefa.h gives `name`.
    unsafe fn get<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: an open handle and a string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: the caller's contract.
        unsafe { std::mem::transmute_copy(&address) }
    }

    pub fn adapters(&self) -> usize {
        // SAFETY: softefa.h: size_t (void).
        unsafe { self.get::<extern "C" fn() -> usize>(c"softefa_adapter_count")() }
    }

    pub fn violations(&self) -> usize {
        // SAFETY: softefa.h: size_t (void).
        unsafe { self.get::<extern "C" fn() -> usize>(c"softefa_violation_count")() }
    }

    pub fn violation(&self, index: usize) -> Result<SoftefaViolation, c_int> {
        let mut violation = SoftefaViolation::default();
        type Function = unsafe extern "C" fn(usize, *mut SoftefaViolation) -> c_int;
        // SAFETY: softefa.h: int (size_t, struct softefa_violation *).
        match unsafe { self.get::<Function>(c"softefa_violation")(index, &mut violation) } {
            0 => Ok(violation),
            error => Err(error),
        }
    }

    pub fn violation_text(&self, index: usize) -> String {
        let mut text = vec![0_u8; 1024];
        type Function = unsafe extern "C" fn(usize, *mut u8, usize) -> usize;
        // SAFETY: softefa.h: size_t (size_t, char *, size_t).
        let length =
            unsafe { self.get::<Function>(c"softefa_violation_text")(index, text.as_mut_ptr(), text.len()) };
        text.truncate(length);
        String::from_utf8(text).unwrap()
    }

    pub fn statistics(&self) -> SoftefaStatistics {
        let mut statistics = SoftefaStatistics::default();
        type Function = unsafe extern "C" fn(*mut SoftefaStatistics) -> c_int;
        // SAFETY: softefa.h: int (struct softefa_statistics *).
        assert_eq!(unsafe { self.get::<Function>(c"softefa_statistics")(&mut statistics) }, 0);
        statistics
    }

    pub fn reset(&self) {
        // SAFETY: softefa.h: void (void).
        unsafe { self.get::<extern "C" fn()>(c"softefa_reset")() }
    }

    pub fn hold(&self, held: bool) {
        // SAFETY: softefa.h: void (int).
        unsafe { self.get::<extern "C" fn(c_int)>(c"softefa_hold")(held.into()) }
    }

    pub fn set_consumer_index(&self, cq: *mut fi::fid_cq, consumed: u64) -> c_int {
        type Function = unsafe extern "C" fn(*mut fi::fid_cq, u64) -> c_int;
        // SAFETY: softefa.h: int (struct fid_cq *, uint64_t).
        unsafe { self.get::<Function>(c"softefa_set_consumer_index")(cq, consumed) }
    }

    pub fn warnings(&self) -> Vec<String> {
        type Text = unsafe extern "C" fn(usize, *mut u8, usize) -> usize;
        // SAFETY: softefa.h: size_t (void), and size_t (size_t, char *, size_t).
        unsafe {
            let count = self.get::<extern "C" fn() -> usize>(c"softefa_warning_count")();
            let text = self.get::<Text>(c"softefa_warning_text");
            let one = |index| {
                let mut bytes = vec![0; text(index, ptr::null_mut(), 0) + 1];
                text(index, bytes.as_mut_ptr(), bytes.len());
                CString::from_vec_with_nul(bytes).unwrap().into_string().unwrap()
            };
            (0..count).map(one).collect()
        }
    }

    pub fn preset_counter(&self, counter: u64) -> c_int {
        // SAFETY: softefa.h: int (uint64_t).
        unsafe { self.get::<extern "C" fn(u64) -> c_int>(c"softefa_preset_counter")(counter) }
    }
}

pub use softefa::libfabric::capi::{SoftefaStatistics, SoftefaViolation};
