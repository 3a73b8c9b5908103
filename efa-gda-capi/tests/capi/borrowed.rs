//! Domains and endpoints of another transport, which opened them with libfabric.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use efa_gda::fabric::{
    Access, AddressVector, Bindings, Buffer, CompletionQueue, Domain, Enabled, Endpoint, Fabric, Info, Query,
};
use efa_gda_sys::{Libfabric, fi};
use efa_gda_test_support::soft::{assert_no_violations, with_soft_adapter};

use super::{libraries, library};

const ARGUMENT: c_int = -1;
const UNSUPPORTED: c_int = -4;
const BUSY: c_int = -8;

/// `struct nvshmemt_efa_gda_device_state`.
#[repr(C)]
#[derive(Debug)]
struct State {
    size: usize,
    domain: *mut c_void,
    mapped: *mut c_void,
    queue: *mut c_void,
    gpu: i32,
    store_bytes: u32,
}

impl State {
    const EMPTY: Self = Self {
        size: size_of::<Self>(),
        domain: null_mut(),
        mapped: null_mut(),
        queue: null_mut(),
        gpu: 9,
        store_bytes: 0,
    };
}

/// The functions of the header that the tests call.
struct Interface(libloading::Library);

impl Interface {
    fn load() -> Self {
        // SAFETY: the library's initialisers are sound.
        Self(unsafe { libloading::Library::new(library()) }.unwrap())
    }

    /// # Safety
    /// `F` must be the type of the function in the header.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller guarantees the type.
        unsafe { *self.0.get::<F>(name.as_bytes()).unwrap() }
    }

    fn last_error(&self) -> String {
        // SAFETY: const char *(void) of the header, which returns a string that is valid until the next call.
        unsafe {
            let text = self.function::<unsafe extern "C" fn() -> *const c_char>("efa_gda_last_error")();
            CStr::from_ptr(text).to_str().unwrap().to_owned()
        }
    }

    /// Calls init with pointers that are no objects, or objects that stay open until fini.
    fn init(&self, domain: *mut c_void, ep: *mut c_void) -> c_int {
        type Init = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
        // SAFETY: the type of the header; the callers keep it.
        unsafe { self.function::<Init>("nvshmemt_efa_gda_init_on_ep")(domain, ep) }
    }

    fn fini(&self) -> c_int {
        // SAFETY: int (void) of the header.
        unsafe { self.function::<unsafe extern "C" fn() -> c_int>("nvshmemt_efa_gda_fini")() }
    }

    fn state(&self, state: &mut State) -> c_int {
        type Get = unsafe extern "C" fn(*mut State) -> c_int;
        // SAFETY: the type of the header.
        unsafe { self.function::<Get>("nvshmemt_efa_gda_state")(state) }
    }

    fn borrow(&self, fid: *mut c_void, info: *mut c_void, handle: &mut *mut c_void) -> c_int {
        type Borrow = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
        // SAFETY: the type of the header; the callers keep domain and info open.
        unsafe { self.function::<Borrow>("efa_gda_domain_borrow")(fid, info, handle) }
    }

    fn register(&self, domain: *mut c_void, memory: &mut [u64], region: &mut *mut c_void) -> c_int {
        type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, *mut *mut c_void) -> c_int;
        let (start, bytes) = (memory.as_mut_ptr().cast(), size_of_val(memory));
        // SAFETY: the type of the header; the callers close the region before they drop the memory.
        unsafe {
            self.function::<Register>("efa_gda_region_register")(
                domain,
                start,
                bytes,
                Access::SEND.bits(),
                region,
            )
        }
    }

    fn close(&self, what: &str, handle: *mut c_void) -> c_int {
        // SAFETY: each close of the header takes a handle.
        unsafe { self.function::<unsafe extern "C" fn(*mut c_void) -> c_int>(what)(handle) }
    }

    fn refused(&self, code: c_int, expected: c_int, parts: &[&str]) {
        let text = self.last_error();
        assert_eq!(code, expected, "{text}");
        for part in parts {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }
}

/// A transport of its own, with an enabled endpoint.
struct Transport {
    endpoint: Endpoint<Enabled>,
    _completions: CompletionQueue,
    _addresses: AddressVector,
    domain: Domain,
    info: Info,
}

impl Transport {
    fn open() -> Self {
        let libfabric = efa_gda::fabric::Library::load().unwrap();
        let info = Query::new().first(&libfabric).unwrap();
        let domain = Fabric::open(&libfabric, &info).unwrap().domain(&info).unwrap();
        let addresses = domain.address_vector(16).unwrap();
        let completions = domain.completion_queue(info.completions()).unwrap();
        let endpoint =
            domain.endpoint(&info).unwrap().bind(Bindings::shared(&addresses, &completions)).unwrap();
        let endpoint = endpoint.enable().unwrap();
        Self { endpoint, _completions: completions, _addresses: addresses, domain, info }
    }

    fn domain(&self) -> *mut c_void {
        self.domain.as_ptr().cast()
    }

    fn ep(&self) -> *mut c_void {
        self.endpoint.as_ptr().cast()
    }
}

/// The library uses the host's processor.
const HOST: &[(&str, &str)] = &[("EFA_GDA_GPU", "-1")];

#[test]
fn init_opens_a_queue_beside_the_endpoint_of_another_transport_and_fini_closes_it() {
    libraries();
    with_soft_adapter(HOST, |adapter| {
        let (interface, transport) = (Interface::load(), Transport::open());
        let before = transport.endpoint.address().unwrap();
        // Twice: nothing of the first time is left.
        for _ in 0..2 {
            assert_eq!(interface.init(transport.domain(), transport.ep()), 0, "{}", interface.last_error());
            let mut state = State::EMPTY;
            assert_eq!(interface.state(&mut state), 0);
            assert!(!state.domain.is_null() && !state.mapped.is_null() && !state.queue.is_null());
            assert_eq!((state.gpu, state.store_bytes, state.size), (-1, 8, size_of::<State>()));
            // SAFETY: the struct of a queue that the host drives, until fini.
            let queue = unsafe { &*state.queue.cast::<efa_gda_sys::device::efa_gda_queue>() };
            let number = u16::from_ne_bytes([before[16], before[17]]);
            assert!(
                queue.sq.num_entries > 0 && queue.qpn != u32::from(number),
                "the queue pair is a dedicated one"
            );
            assert_eq!(interface.fini(), 0, "{}", interface.last_error());
        }
        assert_eq!(transport.endpoint.address().unwrap(), before);
        drop(transport.domain.register(Buffer::zeroed(64).unwrap(), Access::SEND).unwrap());
        assert_no_violations(adapter);
    });
}

#[test]
fn fini_returns_busy_while_regions_are_open_and_their_domain_can_be_closed_later() {
    libraries();
    with_soft_adapter(HOST, |_| {
        let (interface, transport) = (Interface::load(), Transport::open());
        assert_eq!(interface.init(transport.domain(), null_mut()), 0, "{}", interface.last_error());
        let mut state = State::EMPTY;
        assert_eq!(interface.state(&mut state), 0);
        let (mut memory, mut region) = ([0_u64; 8], null_mut());
        assert_eq!(interface.register(state.domain, &mut memory, &mut region), 0);
        interface.refused(interface.fini(), BUSY, &["1 region"]);
        interface.refused(interface.fini(), ARGUMENT, &["nothing is initialised"]);
        assert_eq!(interface.close("efa_gda_region_close", region), 0);
        assert_eq!(interface.close("efa_gda_domain_close", state.domain), 0);
    });
}

#[test]
fn misuse_of_init_and_fini_is_named() {
    libraries();
    with_soft_adapter(HOST, |_| {
        let (interface, transport) = (Interface::load(), Transport::open());
        interface.refused(interface.fini(), ARGUMENT, &["nothing is initialised"]);
        let mut empty = State::EMPTY;
        interface.refused(interface.state(&mut empty), ARGUMENT, &["nothing is initialised"]);
        interface.refused(interface.init(null_mut(), transport.ep()), ARGUMENT, &["the fid_domain is null"]);
        // Memory that cannot be read, that is no object, and objects of another class.
        let unmapped = std::ptr::without_provenance_mut(0x1000);
        interface.refused(interface.init(unmapped, null_mut()), ARGUMENT, &["fid_domain", "cannot read"]);
        interface.refused(interface.init(transport.domain(), unmapped), ARGUMENT, &["fid_ep", "cannot read"]);
        let mut zeroes = [0_u64; 64];
        let nothing = zeroes.as_mut_ptr().cast();
        interface.refused(
            interface.init(nothing, null_mut()),
            ARGUMENT,
            &["no object of libfabric", "fclass is 0"],
        );
        interface.refused(
            interface.init(transport.ep(), null_mut()),
            ARGUMENT,
            &["is a fid_ep", "expected 2"],
        );
        let (domain, ep) = (transport.domain(), transport.ep());
        interface.refused(interface.init(domain, domain), ARGUMENT, &["is a fid_domain", "expected 3"]);
        let mut handle = null_mut();
        interface.refused(
            interface.borrow(ep, transport.info.as_ptr().cast(), &mut handle),
            ARGUMENT,
            &["is a fid_ep"],
        );
        interface.refused(
            interface.borrow(domain, unmapped, &mut handle),
            ARGUMENT,
            &["the fi_info", "cannot read"],
        );

        assert_eq!(interface.init(domain, ep), 0, "{}", interface.last_error());
        interface.refused(
            interface.init(domain, ep),
            BUSY,
            &["initialised already", "nvshmemt_efa_gda_fini"],
        );
        assert_eq!(interface.fini(), 0, "{}", interface.last_error());
        interface.refused(interface.fini(), ARGUMENT, &["nothing is initialised"]);
    });
}

#[test]
fn init_names_the_variable_where_no_gpu_is_known() {
    libraries();
    with_soft_adapter(&[], |_| {
        let (interface, transport) = (Interface::load(), Transport::open());
        interface.refused(
            interface.init(transport.domain(), null_mut()),
            ARGUMENT,
            &["CUDA context", "EFA_GDA_GPU"],
        );
    });
    with_soft_adapter(&[("EFA_GDA_GPU", "first")], |_| {
        let (interface, transport) = (Interface::load(), Transport::open());
        let refused = interface.init(transport.domain(), null_mut());
        interface.refused(refused, ARGUMENT, &["EFA_GDA_GPU=\"first\""]);
    });
}

/// Opens a domain of the plain fabric `efa`, as a transport that never asked for efa-direct has it. All of it stays open.
fn plain_domain() -> (*mut c_void, *mut c_void) {
    let libfabric = Box::leak(Box::new(Libfabric::load().unwrap()));
    // SAFETY: hints of libfabric, with strings from malloc, as it frees them; objects of its own tables. Nothing is
    // closed.
    unsafe {
        let hints = libfabric.dupinfo(std::ptr::null());
        (*hints).mode = !0;
        (*(*hints).domain_attr).mr_mode =
            fi::FI_MR_LOCAL | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_VIRT_ADDR;
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"efa".as_ptr());
        (*(*hints).fabric_attr).name = libc::strdup(c"efa".as_ptr());
        let (mut info, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut());
        assert_eq!(libfabric.getinfo(hints, &mut info), 0);
        assert_eq!(CStr::from_ptr((*(*info).fabric_attr).name), c"efa");
        assert_eq!(libfabric.fabric((*info).fabric_attr, &mut fabric), 0);
        let open = (*(*fabric).ops).domain.unwrap();
        assert_eq!(open(fabric, info, &mut domain, null_mut()), 0);
        assert_eq!((*domain).fid.fclass, fi::FI_CLASS_DOMAIN as usize);
        (domain.cast(), info.cast())
    }
}

#[test]
fn a_domain_of_the_plain_fabric_is_refused() {
    libraries();
    with_soft_adapter(&[("EFA_GDA_GPU", "-1"), ("SOFTEFA_FABRICS", "efa,efa-direct")], |_| {
        let interface = Interface::load();
        let (domain, info) = plain_domain();
        interface.refused(interface.init(domain, null_mut()), UNSUPPORTED, &["efa-direct"]);
        let mut handle = null_mut();
        let refused = interface.borrow(domain, info, &mut handle);
        interface.refused(refused, UNSUPPORTED, &["the fabric \"efa\"", "\"efa-direct\""]);
        interface.refused(interface.fini(), ARGUMENT, &["nothing is initialised"]);
    });
}

#[test]
fn a_borrowed_domain_stays_open_after_its_handle_is_closed() {
    libraries();
    with_soft_adapter(&[], |_| {
        let (interface, transport) = (Interface::load(), Transport::open());
        let (mut handle, mut region, mut bytes) = (null_mut(), null_mut(), [0_u64; 8]);
        assert_eq!(interface.borrow(transport.domain(), transport.info.as_ptr().cast(), &mut handle), 0);
        assert_eq!(interface.register(handle, &mut bytes, &mut region), 0);
        assert_eq!(interface.close("efa_gda_domain_close", handle), BUSY);
        assert_eq!(interface.close("efa_gda_region_close", region), 0);
        assert_eq!(interface.close("efa_gda_domain_close", handle), 0);
        drop(transport.domain.register(Buffer::zeroed(64).unwrap(), Access::SEND).unwrap());
    });
}
