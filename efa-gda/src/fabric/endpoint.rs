//! Endpoints, in three states that are types: what a state does not allow cannot be written.
//!
//! [`Building`] (options may be set) → [`Bound`] (has its address vector and completion queues) →
//! [`Enabled`] (its queue pair exists; only now may its queues be queried: releases up to 2.6 crash
//! on an earlier query).

use std::marker::PhantomData;

use efa_gda_sys::fi;

use super::domain::Domain;
use super::error::{Error, Result};
use super::memory::MemoryRegion;
use super::object::{Context, InContext, Object, bind, control, table_op};
use super::{AddressVector, CompletionCounter, CompletionQueue, Info};
use crate::memory::{CountedOperations, Limits, RetainedRegions};
use crate::polling::Completing;

mod sealed {
    pub trait Sealed {}
}

/// A state of an [`Endpoint`].
pub trait State: sealed::Sealed {}

/// Opened; options may be set.
#[derive(Debug)]
pub enum Building {}
/// Has its address vector and completion queues.
#[derive(Debug)]
pub enum Bound {}
/// Has its queue pair.
#[derive(Debug)]
pub enum Enabled {}

impl sealed::Sealed for Building {}
impl sealed::Sealed for Bound {}
impl sealed::Sealed for Enabled {}
impl State for Building {}
impl State for Bound {}
impl State for Enabled {}

/// An endpoint of the fabric `efa-direct`: one queue pair. Closed when dropped, before what it is
/// bound to.
#[derive(Debug)]
pub struct Endpoint<S: State> {
    object: Object<fi::fid_ep, EndpointParents>,
    state: PhantomData<fn() -> S>,
}

/// What [`Endpoint::bind`] binds an endpoint to. All objects must be of the endpoint's domain.
#[derive(Clone, Copy, Debug)]
pub struct Bindings<'a> {
    /// The peers that the endpoint exchanges data with.
    pub address_vector: &'a AddressVector,
    /// Receives the completions of requests that the endpoint posts to its send queue.
    pub send_completions: &'a CompletionQueue,
    /// Receives the completions of messages and writes that arrive. May be the same queue.
    pub receive_completions: &'a CompletionQueue,
}

impl<'a> Bindings<'a> {
    /// Binds one completion queue to both sides, which a mapped queue needs for receives.
    pub fn shared(address_vector: &'a AddressVector, completions: &'a CompletionQueue) -> Self {
        Self { address_vector, send_completions: completions, receive_completions: completions }
    }
}

/// How many bytes libfabric itself puts inside an entry. Device code goes by the entry's size
/// instead: 32 or 80, in writes too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectLimits {
    /// Of a SEND.
    pub message: usize,
    /// Of an RDMA write; 0 where it does not.
    pub rdma: usize,
}

/// Dropped after the endpoint is closed, in this order.
#[derive(Debug)]
struct EndpointParents {
    regions: RetainedRegions<MemoryRegion>,
    send_completions: Option<CompletionQueue>,
    receive_completions: Option<CompletionQueue>,
    address_vector: Option<AddressVector>,
    counters: Vec<(CompletionCounter, CountedOperations)>,
    completing: Vec<Completing>,
    domain: Domain,
    /// What it was opened with; the provider may read it until the endpoint is enabled.
    info: Info,
}

impl InContext for EndpointParents {
    fn context(&self) -> &Context {
        self.domain.context()
    }
}

impl Endpoint<Building> {
    /// Opens an endpoint with the attributes of `info`, which is of this domain.
    ///
    /// # Errors
    /// [`Error::OtherLibrary`] for an info of another library; [`Error::Call`] with the answer of
    /// `fi_endpoint`.
    pub fn open(domain: &Domain, info: &Info) -> Result<Self> {
        const OPERATION: &str = "fi_endpoint";
        domain.context().require_same_library(info, OPERATION)?;
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its table, or to none.
        let open = unsafe { table_op!((*raw).ops, fi_ops_domain.endpoint, OPERATION) }?;
        let mut endpoint = std::ptr::null_mut();
        let serialized = domain.context().serialize_calls();
        // SAFETY: the domain is open and the info valid; `endpoint` can be written.
        let code = unsafe { open(raw, info.as_ptr(), &mut endpoint, std::ptr::null_mut()) };
        drop(serialized);
        let parents = EndpointParents {
            regions: RetainedRegions::default(),
            send_completions: None,
            receive_completions: None,
            address_vector: None,
            counters: Vec::new(),
            completing: Vec::new(),
            domain: domain.clone(),
            info: info.clone(),
        };
        // SAFETY: the call that returned `code` opened `endpoint`, and nobody else knows it.
        let object = unsafe { Object::adopt(OPERATION, code, endpoint, parents) }?;
        Ok(Self { object, state: PhantomData })
    }

    /// How often the adapter sends again to a receiver that had no receive posted: 0 to 6 times,
    /// or 7 for ever. Without this call an efa-direct endpoint retries for ever
    /// (FI_OPT_EFA_RNR_RETRY).
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `fi_setopt`: ENOSYS where the adapter has no such setting.
    pub fn set_rnr_retry(&mut self, retries: usize) -> Result<()> {
        /// `FI_OPT_EFA_RNR_RETRY` of <rdma/fi_ext.h>: minus `FI_PROV_SPECIFIC_EFA`.
        const FI_OPT_EFA_RNR_RETRY: i32 = -(0xefa << 16);
        const OPERATION: &str = "fi_setopt(RNR retry)";
        let raw = self.object.raw();
        // SAFETY: an open endpoint points to its table, or to none.
        let setopt = unsafe { table_op!((*raw).ops, fi_ops_ep.setopt, OPERATION) }?;
        let context = self.object.context();
        let _serialized = context.serialize_calls();
        let value = (&raw const retries).cast();
        // SAFETY: the endpoint is open; the option is a size_t, of which the length is given.
        context.check(OPERATION, unsafe {
            setopt(
                self.object.fid(),
                fi::FI_OPT_ENDPOINT as i32,
                FI_OPT_EFA_RNR_RETRY,
                value,
                size_of::<usize>(),
            )
        })
    }

    /// Binds the endpoint to its address vector and to its completion queues, which may be one and
    /// the same. All are of the endpoint's domain.
    ///
    /// # Errors
    /// [`Error::CompletionQueuePolled`]; [`Error::Call`] with the answer of `fi_ep_bind`. The endpoint is
    /// then closed.
    pub fn bind(mut self, bindings: Bindings<'_>) -> Result<Endpoint<Bound>> {
        const ADDRESSES: &str = "fi_ep_bind(address vector)";
        const COMPLETIONS: &str = "fi_ep_bind(completion queue)";
        let Bindings { address_vector, send_completions, receive_completions } = bindings;
        let parents = self.object.parents_mut();
        let ours = parents.domain.clone();
        for (operation, domain) in [
            (ADDRESSES, address_vector.domain()),
            (COMPLETIONS, send_completions.domain()),
            (COMPLETIONS, receive_completions.domain()),
        ] {
            if !ours.is_same(domain) {
                return Err(Error::OtherDomain { operation });
            }
        }
        let same = send_completions.as_ptr() == receive_completions.as_ptr();
        for queue in std::iter::once(send_completions).chain((!same).then_some(receive_completions)) {
            parents.completing.push(queue.register_endpoint()?);
        }
        // Owned before the provider knows them, so that the endpoint never outlives them.
        parents.address_vector = Some(address_vector.clone());
        parents.send_completions = Some(send_completions.clone());
        parents.receive_completions = Some(receive_completions.clone());
        let (context, fid) = (self.object.context(), self.object.fid());
        let first = if same { fi::FI_TRANSMIT | fi::FI_RECV } else { fi::FI_TRANSMIT };
        // SAFETY: both objects are open, of one domain, and the second is owned by the endpoint.
        unsafe { bind(context, fid, address_vector.fid(), 0, ADDRESSES) }?;
        // SAFETY: as above.
        unsafe { bind(context, fid, send_completions.fid(), first, COMPLETIONS) }?;
        if !same {
            // SAFETY: as above.
            unsafe { bind(context, fid, receive_completions.fid(), fi::FI_RECV, COMPLETIONS) }?;
        }
        Ok(Endpoint { object: self.object, state: PhantomData })
    }
}

impl Endpoint<Bound> {
    /// Lets `counter` count what `counted` names of this endpoint. Each kind has one counter at most;
    /// one counter may serve several kinds and several endpoints.
    ///
    /// # Errors
    /// [`Error::OtherDomain`]; [`Error::CounterInUse`] where a mapped queue goes by the counter;
    /// [`Error::Call`] with the answer of `fi_ep_bind`: EINVAL for a kind that has a counter.
    pub fn bind_counter(&mut self, counter: &CompletionCounter, counted: CountedOperations) -> Result<()> {
        const OPERATION: &str = "fi_ep_bind(completion counter)";
        let parents = self.object.parents_mut();
        if !parents.domain.is_same(counter.domain()) {
            return Err(Error::OtherDomain { operation: OPERATION });
        }
        if !parents.counters.iter().any(|(other, _)| other.as_ptr() == counter.as_ptr()) {
            parents.completing.push(counter.register_user()?);
        }
        // Owned before the provider knows it, so that the endpoint never outlives it.
        parents.counters.push((counter.clone(), CountedOperations::NONE));
        let (context, fid) = (self.object.context(), self.object.fid());
        // SAFETY: both objects are open, of one domain, and the second is owned by the endpoint.
        unsafe { bind(context, fid, counter.fid(), counted.bits(), OPERATION) }?;
        if let Some((_, counts)) = self.object.parents_mut().counters.last_mut() {
            *counts = counted;
        }
        Ok(())
    }

    /// Creates the queue pair.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `fi_enable`; the endpoint is then closed.
    pub fn enable(self) -> Result<Endpoint<Enabled>> {
        // SAFETY: the endpoint is open and has what enabling needs.
        unsafe { control(self.object.context(), self.object.fid(), fi::FI_ENABLE, "fi_enable") }?;
        Ok(Endpoint { object: self.object, state: PhantomData })
    }
}

impl Endpoint<Enabled> {
    /// The raw address that a peer inserts into its address vector.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `fi_getname`.
    pub fn address(&self) -> Result<Vec<u8>> {
        const OPERATION: &str = "fi_getname";
        let raw = self.object.raw();
        // SAFETY: an open endpoint points to its table, or to none.
        let getname = unsafe { table_op!((*raw).cm, fi_ops_cm.getname, OPERATION) }?;
        // An efa address has 32 bytes; a longer one is refused with FI_ETOOSMALL, not cut off.
        let mut address = vec![0; 256];
        let mut length = address.len();
        let context = self.object.context();
        let _serialized = context.serialize_calls();
        // SAFETY: the endpoint is open; `length` bytes can be written.
        context.check(OPERATION, unsafe {
            getname(self.object.fid(), address.as_mut_ptr().cast(), &mut length)
        })?;
        address.truncate(length);
        Ok(address)
    }

    /// How much one request carries. Providers that do not say (before libfabric 1.20, or without
    /// these options) are taken to mean `max_msg_size` for RDMA, and for messages the least that
    /// adapters have had.
    pub fn limits(&self) -> Limits {
        /// Messages of at most this many bytes fit an MTU on every EFA adapter.
        const SMALLEST_MESSAGE_LIMIT: usize = 4096;
        /// `FI_OPT_MAX_MSG_SIZE` and `FI_OPT_MAX_RMA_SIZE` of <rdma/fi_endpoint.h>.
        const FI_OPT_MAX_MSG_SIZE: i32 = 12;
        const FI_OPT_MAX_RMA_SIZE: i32 = 14;
        let most = self.object.parents().info.max_msg_size();
        Limits {
            message: self.size_option(FI_OPT_MAX_MSG_SIZE).unwrap_or(most.min(SMALLEST_MESSAGE_LIMIT)),
            rdma: self.size_option(FI_OPT_MAX_RMA_SIZE).unwrap_or(most),
        }
    }

    /// How many bytes libfabric itself sends inside an entry: what the info says, for providers
    /// without these options.
    pub fn inject_limits(&self) -> InjectLimits {
        /// `FI_OPT_INJECT_MSG_SIZE` and `FI_OPT_INJECT_RMA_SIZE` of <rdma/fi_endpoint.h>.
        const FI_OPT_INJECT_MSG_SIZE: i32 = 16;
        const FI_OPT_INJECT_RMA_SIZE: i32 = 18;
        let most = self.object.parents().info.inject_size();
        InjectLimits {
            message: self.size_option(FI_OPT_INJECT_MSG_SIZE).unwrap_or(most),
            rdma: self.size_option(FI_OPT_INJECT_RMA_SIZE).unwrap_or(0),
        }
    }

    /// Whether RDMA writes with immediate that arrive use up a posted receive each: the endpoint was
    /// opened in the mode FI_RX_CQ_DATA, which adapters without unsolicited write receives need.
    pub fn writes_use_receives(&self) -> bool {
        self.object.parents().info.mode() & fi::FI_RX_CQ_DATA != 0
    }

    /// An option that is a number of bytes; None where the provider does not have it.
    fn size_option(&self, option: i32) -> Option<usize> {
        let raw = self.object.raw();
        // SAFETY: an open endpoint points to its table, or to none.
        let getopt = unsafe { table_op!((*raw).ops, fi_ops_ep.getopt, "fi_getopt") }.ok()?;
        let (mut value, mut length) = (0_usize, size_of::<usize>());
        let _serialized = self.object.context().serialize_calls();
        // SAFETY: the endpoint is open; `length` bytes can be written to the value.
        let code = unsafe {
            getopt(
                self.object.fid(),
                fi::FI_OPT_ENDPOINT as i32,
                option,
                (&raw mut value).cast(),
                &mut length,
            )
        };
        (code == 0 && length == size_of::<usize>()).then_some(value)
    }

    /// The address vector it is bound to.
    pub fn address_vector(&self) -> &AddressVector {
        self.object.parents().address_vector.as_ref().expect("an enabled endpoint was bound")
    }

    /// The queue for completions of what it sends.
    pub fn send_completions(&self) -> &CompletionQueue {
        self.object.parents().send_completions.as_ref().expect("an enabled endpoint was bound")
    }

    /// The queue for completions of what it receives.
    pub fn receive_completions(&self) -> &CompletionQueue {
        self.object.parents().receive_completions.as_ref().expect("an enabled endpoint was bound")
    }

    /// Keeps `region`, with its memory, until the endpoint is closed. For memory that the adapter
    /// may still reach when the caller no longer knows what is in flight.
    pub fn retain(&mut self, region: MemoryRegion) {
        self.object.parents_mut().regions.retain(region);
    }

    /// Keeps the memory of a posted receive until it completed, or the endpoint is closed.
    pub(crate) fn receive_posted(&mut self, id: u16, region: MemoryRegion) {
        self.object.parents_mut().regions.receive_posted(id, region);
    }

    /// Lets the memory of a receive go, for it completed.
    pub(crate) fn receive_completed(&mut self, id: u16) {
        self.object.parents_mut().regions.receive_completed(id);
    }

    /// Its counters, each with all that it counts of the endpoint.
    pub(crate) fn counters(&self) -> Vec<(&CompletionCounter, CountedOperations)> {
        let mut all: Vec<(&CompletionCounter, CountedOperations)> = Vec::new();
        for (counter, counted) in &self.object.parents().counters {
            match all.iter_mut().find(|(other, _)| other.as_ptr() == counter.as_ptr()) {
                Some((_, known)) => *known = *known | *counted,
                None => all.push((counter, *counted)),
            }
        }
        all
    }

    /// The domain it is on.
    pub fn domain(&self) -> &Domain {
        &self.object.parents().domain
    }
}

impl<S: State> Endpoint<S> {
    /// Closes the endpoint, with its queue pair, and says how that went. Where it fails, whatever
    /// the endpoint refers to stays allocated for the life of the process.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `fi_close`.
    pub fn close(self) -> Result<()> {
        self.object.close()
    }

    /// The endpoint itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut fi::fid_ep {
        self.object.raw()
    }

    pub(super) fn context(&self) -> &Context {
        self.object.context()
    }
}
