//! Endpoints. An endpoint is bound to completion queues and an address vector and then enabled, which creates
//! its queue pair. Clients drive the queues that the GDA operations expose; the endpoint's send and write
//! calls return -ENOSYS.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_gda_sys::fi;
use efa_gda_wire::{QueueKey, QueuePairNumber, RequestIdWidth};

use crate::device::{QueuePair, QueuePairAttr, QueuePairState, RnrRetry};

use super::adapters;
use super::av::{AddressVector, EndpointAddress, Table};
use super::candidate::ADDRESS_LENGTH;
use super::cntr::{BoundCounters, Counter};
use super::config::{Config, Defect};
use super::cq::{CompletionQueue, Shared as SharedCq};
use super::domain::{Domain, Shared};
use super::ffi::{self, Code, Object, UNUSED};
use super::hints::Hints;
use super::options;
use super::references::Reference;

mod not_provided;
mod settings;

use not_provided::{MSG_OPS, OTHER_OPS, RMA_OPS};
use settings::Settings;

/// An open endpoint.
#[repr(C)]
pub(crate) struct Endpoint {
    fid: fi::fid_ep,
    domain: Arc<Shared>,
    settings: Settings,
    state: Mutex<State>,
    _reference: Reference,
}

/// The bound objects, and the queue pair after enable. The queue pair is declared first, so that it is
/// dropped before the objects that it uses.
#[derive(Default)]
struct State {
    queue_pair: Option<Enabled>,
    send_cq: Option<Bound<SharedCq>>,
    receive_cq: Option<Bound<SharedCq>>,
    av: Option<Bound<Table>>,
    counters: BoundCounters,
    rnr_retry: RnrRetries,
}

/// The number of retries if the receiver has no posted receive, as in `ibv_modify_qp`: 0 to 6, or 7 for no
/// limit, which is the default of an efa-direct endpoint.
struct RnrRetries(usize);

impl RnrRetries {
    const FOREVER: usize = 7;
}

impl Default for RnrRetries {
    fn default() -> Self {
        Self(Self::FOREVER)
    }
}

/// A bound object, with a reference that keeps it from being closed.
struct Bound<T> {
    object: Arc<T>,
    _reference: Reference,
}

/// A queue pair, destroyed with this value.
struct Enabled {
    pair: QueuePair,
    domain: Arc<Shared>,
}

impl Drop for Enabled {
    fn drop(&mut self) {
        if let Err(error) = self.domain.adapter.destroy_queue_pair(self.pair.number) {
            ffi::log(format_args!(
                "queue pair {}: destroying it with its endpoint failed: {error}",
                self.pair.number
            ));
        }
    }
}

static FID_OPS: ffi::Table<fi::fi_ops> = ffi::Table::new(fi::fi_ops {
    size: size_of::<fi::fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(ffi::no_ops_open),
    tostr: None,
    ops_set: None,
});

static OPS: ffi::Table<fi::fi_ops_ep> = ffi::Table::new(fi::fi_ops_ep {
    size: size_of::<fi::fi_ops_ep>(),
    cancel: Some(not_provided::cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: UNUSED,
    rx_ctx: UNUSED,
    rx_size_left: UNUSED,
    tx_size_left: UNUSED,
    export_xpu: UNUSED,
});

static CM_OPS: ffi::Table<fi::fi_ops_cm> = ffi::Table::new(fi::fi_ops_cm {
    size: size_of::<fi::fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: UNUSED,
    connect: UNUSED,
    listen: UNUSED,
    accept: UNUSED,
    reject: UNUSED,
    shutdown: UNUSED,
    join: UNUSED,
});

// SAFETY: repr(C), begins with fid_ep, which begins with fid; only this type uses FID_OPS.
unsafe impl Object for Endpoint {
    const CLASS: u32 = fi::FI_CLASS_EP;
    fn ops() -> *const fi::fi_ops {
        FID_OPS.as_ptr()
    }
}

impl Endpoint {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue pair.
    ///
    /// # Errors
    /// [`Code::BAD_STATE`] before enable; the real provider dereferences a null pointer then.
    pub(crate) fn queue_pair(&self) -> Result<QueuePair, Code> {
        self.state().queue_pair.as_ref().map(|enabled| enabled.pair.clone()).ok_or(Code::BAD_STATE)
    }

    /// Whether the queue pair's request ids have 64 bits.
    pub(crate) fn has_wide_ids(&self) -> bool {
        adapters::request_ids(&self.domain) == RequestIdWidth::Bits64
    }

    /// The table of the bound address vector.
    ///
    /// # Errors
    /// [`Code::NO_AV`] if none is bound; the real provider dereferences a null pointer then.
    pub(crate) fn address_table(&self) -> Result<Arc<Table>, Code> {
        self.state().av.as_ref().map(|bound| Arc::clone(&bound.object)).ok_or(Code::NO_AV)
    }

    /// Creates the queue pair.
    ///
    /// # Errors
    /// [`Code::BAD_STATE`] if it exists; [`Code::NO_CQ`] if no completion queue is bound, or none for a side that the
    /// info's capabilities use; those of the device core. An address vector is not needed here, but by `query_addr`.
    fn enable(&self) -> Result<(), Code> {
        let mut state = self.state();
        if state.queue_pair.is_some() {
            return Err(Code::BAD_STATE);
        }
        let (send, receive) = (state.send_cq.as_ref(), state.receive_cq.as_ref());
        let missing =
            (self.settings.transmits && send.is_none()) || (self.settings.receives && receive.is_none());
        let (Some(send), Some(receive), false) = (send.or(receive), receive.or(send), missing) else {
            return Err(Code::NO_CQ);
        };
        let (domain, settings) = (&self.domain, &self.settings);
        let mut attr = QueuePairAttr::new(domain.pd, send.object.queue.number);
        attr.receive_cq = receive.object.queue.number;
        attr.sq_depth = settings.send_depth;
        attr.rq_depth = settings.receive_entries;
        attr.entry_size = settings.entry_size;
        attr.queue_key = QueueKey::new(random_key()?);
        attr.unsolicited_write_receive = !settings.posted_cq_data && adapters::unsolicited(domain);
        attr.request_ids = adapters::request_ids(domain);
        attr.counters = state.counters.counters();
        attr.first_counter = adapters::first_counter();
        attr.rnr_retry = match u8::try_from(state.rnr_retry.0) {
            Ok(times) if usize::from(times) < RnrRetries::FOREVER => RnrRetry::Times(times),
            _ => RnrRetry::Forever,
        };
        if Config::get().is_ok_and(|config| config.defect == Some(Defect::DeadEndpoint)) {
            attr.state = QueuePairState::Idle;
        }
        let pair = domain.adapter.create_queue_pair(attr)?;
        state.queue_pair = Some(Enabled { pair, domain: Arc::clone(domain) });
        Ok(())
    }

    fn bind_cq(&self, cq: &CompletionQueue, flags: u64) -> Result<(), Code> {
        const SIDES: u64 = fi::FI_TRANSMIT | fi::FI_RECV;
        if flags & SIDES == 0 || flags & !SIDES != 0 {
            return Err(Code::BAD_FLAGS);
        }
        let shared = cq.shared();
        if !self.domain.same(&shared.domain) {
            return Err(Code::INVALID);
        }
        let mut state = self.state();
        let already_bound = (flags & fi::FI_TRANSMIT != 0 && state.send_cq.is_some())
            || (flags & fi::FI_RECV != 0 && state.receive_cq.is_some());
        if already_bound || state.queue_pair.is_some() || !shared.takes(self.settings.contexts) {
            return Err(Code::INVALID);
        }
        let binding = || Some(Bound { object: Arc::clone(&shared), _reference: cq.add_reference() });
        if flags & fi::FI_TRANSMIT != 0 {
            state.send_cq = binding();
        }
        if flags & fi::FI_RECV != 0 {
            state.receive_cq = binding();
        }
        Ok(())
    }

    fn bind_av(&self, av: &AddressVector) -> Result<(), Code> {
        let table = av.table();
        let mut state = self.state();
        if !self.domain.same(&table.domain) || state.av.is_some() {
            return Err(Code::INVALID);
        }
        state.av = Some(Bound { object: table, _reference: av.add_reference() });
        Ok(())
    }

    /// Binds a counter. Returns an error after enable; the real provider accepts the bind then and counts
    /// nothing.
    fn bind_counter(&self, counter: &Counter, flags: u64) -> Result<(), Code> {
        let mut state = self.state();
        if state.queue_pair.is_some() {
            return Err(Code::INVALID);
        }
        state.counters.bind(&self.domain, counter, flags)
    }

    /// The endpoint's address; before enable, its queue pair number and queue key are 0.
    fn address(&self) -> EndpointAddress {
        let pair =
            self.state().queue_pair.as_ref().map(|enabled| (enabled.pair.number, enabled.pair.queue_key));
        let (queue_pair, queue_key) = pair.unwrap_or((QueuePairNumber::new(0), QueueKey::new(0)));
        EndpointAddress { gid: self.domain.description.gid, queue_pair, queue_key }
    }
}

/// A random queue key outside the privileged range. Privileged keys have the top bit set.
fn random_key() -> Result<u32, Code> {
    let mut key = [0_u8; 4];
    // SAFETY: the buffer has `key.len()` bytes.
    let written = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
    if written != key.len() as isize {
        return Err(Code::OTHER);
    }
    Ok(u32::from_ne_bytes(key) & 0x7fff_ffff)
}

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open domain, and an info of the loaded libfabric.
        let (domain, info) = unsafe { (ffi::object::<Domain>(domain.cast())?, Hints::read(info)) };
        let shared = domain.shared();
        let settings = Settings::read(&shared, &info.ok_or(Code::INVALID)?)?;
        let other_ops = (&raw const OTHER_OPS).cast_mut();
        let fid = fi::fid_ep {
            fid: ffi::header::<Endpoint>(context),
            ops: OPS.as_ptr(),
            cm: CM_OPS.as_ptr(),
            msg: MSG_OPS.as_ptr(),
            rma: RMA_OPS.as_ptr(),
            tagged: other_ops.cast(),
            atomic: other_ops.cast(),
            collective: other_ops.cast(),
        };
        let endpoint = Endpoint {
            fid,
            domain: shared,
            settings,
            state: Mutex::default(),
            _reference: domain.add_reference(),
        };
        // SAFETY: libfabric's contract: `ep` is null or can be written.
        unsafe { ffi::expose_to(ep, Box::new(endpoint)) }
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, bfid: *mut fi::fid, flags: u64) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: two open fids.
        let endpoint = unsafe { ffi::object::<Endpoint>(fid) }?;
        // SAFETY: as above. `object` returns an error for a fid of another class.
        if let Ok(cq) = unsafe { ffi::object::<CompletionQueue>(bfid) } {
            return endpoint.bind_cq(cq, flags);
        }
        // SAFETY: as above.
        if let Ok(counter) = unsafe { ffi::object::<Counter>(bfid) } {
            return endpoint.bind_counter(counter, flags);
        }
        // SAFETY: as above.
        endpoint.bind_av(unsafe { ffi::object::<AddressVector>(bfid) }?)
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, _arg: *mut c_void) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fid.
        let endpoint = unsafe { ffi::object::<Endpoint>(fid) }?;
        match u32::try_from(command) {
            Ok(fi::FI_ENABLE) => endpoint.enable(),
            _ => Err(Code::NOT_PROVIDED),
        }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    // SAFETY: libfabric's contract for close: an open fid, not used again.
    ffi::entry(|| unsafe { ffi::reclaim::<Endpoint>(fid) }.map(drop))
}

unsafe extern "C" fn getname(fid: fi::fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fid.
        let endpoint = unsafe { ffi::object::<Endpoint>(fid) }?;
        if addrlen.is_null() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null, and can be read and written (libfabric's contract). Callers pass a length of 0 to
        // learn the required length.
        let capacity = unsafe { addrlen.replace(ADDRESS_LENGTH) };
        if capacity < ADDRESS_LENGTH {
            return Err(Code::TOO_SMALL);
        }
        // SAFETY: `store` returns an error for null; otherwise `addr` has at least 32 bytes, as checked
        // above.
        unsafe { ffi::store(addr.cast(), endpoint.address().to_bytes()) }
    })
}

unsafe extern "C" fn setname(_fid: fi::fid_t, _addr: *mut c_void, _addrlen: usize) -> c_int {
    Code::NOT_PROVIDED.returned()
}

unsafe extern "C" fn getopt(
    fid: fi::fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fid.
        let endpoint = unsafe { ffi::object::<Endpoint>(fid) }?;
        let retries = endpoint.state().rnr_retry.0;
        let value = options::get(level, optname, &endpoint.settings.sizes, retries)?;
        // SAFETY: libfabric's contract: `optval` has `*optlen` bytes; `store` returns an error for null.
        unsafe { value.store(optval, optlen) }
    })
}

unsafe extern "C" fn setopt(
    fid: fi::fid_t,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fid.
        let endpoint = unsafe { ffi::object::<Endpoint>(fid) }?;
        if !options::is_rnr_retry(level, optname) {
            return Err(Code::NO_OPTION);
        }
        if optlen != size_of::<usize>() || optval.is_null() {
            return Err(Code::INVALID);
        }
        let mut state = endpoint.state();
        if state.queue_pair.is_some() {
            return Err(Code::INVALID);
        }
        // SAFETY: not null, and `optlen` readable bytes of any alignment (libfabric's contract).
        state.rnr_retry = RnrRetries(unsafe { optval.cast::<usize>().read_unaligned() });
        Ok(())
    })
}
