//! Endpoints: opened, bound and enabled in one call, so that no call is possible in an earlier state. libfabric releases
//! up to 2.6 crash on a query of queues before the endpoint is enabled.

use efa_gda_sys::fi;

use super::domain::Domain;
use super::error;
use super::object::{Context, Object, bind, control, table_op};
use super::{AddressVector, CompletionCounter, CompletionQueue, Info};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::memory::{CountedOperations, Limits, RetainedRegions};
use crate::polling::Completing;

/// An endpoint of the fabric `efa-direct`, which is one queue pair. It closes when it is dropped, before the
/// objects that it is bound to.
#[derive(Debug)]
pub struct Endpoint {
    object: Object<fi::fid_ep, EndpointParents>,
}

/// What an endpoint is bound to. All objects must be of the endpoint's domain.
#[derive(Clone, Copy, Debug)]
pub struct Bindings<'a> {
    /// The peers that the endpoint exchanges data with.
    pub address_vector: &'a AddressVector,
    /// Receives the completions of requests that the endpoint posts to its send queue.
    pub send_completions: &'a CompletionQueue,
    /// Receives the completions of messages and writes that arrive. May be the same queue.
    pub receive_completions: &'a CompletionQueue,
    /// Counters, each with the operations whose completions it counts for the endpoint. Each operation has at most one
    /// counter. One counter may count several operations and several endpoints.
    pub counters: &'a [(CompletionCounter, CountedOperations)],
}

impl<'a> Bindings<'a> {
    /// Binds one completion queue to both sides, which a mapped queue needs for receives.
    pub fn shared(address_vector: &'a AddressVector, completions: &'a CompletionQueue) -> Self {
        Self {
            address_vector,
            send_completions: completions,
            receive_completions: completions,
            counters: &[],
        }
    }
}

/// Objects that the endpoint refers to. They are dropped after the endpoint is closed, in this order.
#[derive(Debug)]
struct EndpointParents {
    regions: RetainedRegions,
    send_completions: CompletionQueue,
    receive_completions: CompletionQueue,
    address_vector: AddressVector,
    counters: Vec<(CompletionCounter, CountedOperations)>,
    completing: Vec<Completing>,
    domain: Domain,
    /// The info that the endpoint was opened with. The provider may read it until the endpoint is enabled.
    info: Info,
}

impl Endpoint {
    /// See [`Domain::endpoint`].
    pub(super) fn open(domain: &Domain, info: &Info, bindings: Bindings<'_>) -> Result<Self> {
        const OPERATION: &str = "fi_endpoint";
        const ADDRESSES: &str = "fi_ep_bind(address vector)";
        const COMPLETIONS: &str = "fi_ep_bind(completion queue)";
        const COUNTER: &str = "fi_ep_bind(completion counter)";
        let Bindings { address_vector, send_completions, receive_completions, counters } = bindings;
        domain.context().require_same_library(info, OPERATION)?;
        let counter_domains = counters.iter().map(|(counter, _)| (COUNTER, counter.domain()));
        for (operation, of) in [
            (ADDRESSES, address_vector.domain()),
            (COMPLETIONS, send_completions.domain()),
            (COMPLETIONS, receive_completions.domain()),
        ]
        .into_iter()
        .chain(counter_domains)
        {
            if !domain.is_same(of) {
                return Err(error::other_domain(operation));
            }
        }
        // The endpoint owns the objects before the provider refers to them, so it never outlives them.
        let parents = EndpointParents {
            regions: RetainedRegions::default(),
            send_completions: send_completions.clone(),
            receive_completions: receive_completions.clone(),
            address_vector: address_vector.clone(),
            counters: counters.to_vec(),
            completing: Vec::new(),
            domain: domain.clone(),
            info: info.clone(),
        };
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its operation table, or to null.
        let open = unsafe { table_op!((*raw).ops, fi_ops_domain.endpoint, OPERATION) }?;
        let call = |endpoint: *mut _| {
            // SAFETY: the domain is open and the info valid; `endpoint` can be written.
            unsafe { open(raw, info.as_ptr(), endpoint, std::ptr::null_mut()) }
        };
        // SAFETY: no other handle exists to the endpoint that the call opens.
        let mut object = unsafe { Object::open(OPERATION, domain.context(), parents, call) }?;
        let same = send_completions.as_ptr() == receive_completions.as_ptr();
        let completing = &mut object.parents_mut().completing;
        completing.push(send_completions.register_endpoint()?);
        if !same {
            completing.push(receive_completions.register_endpoint()?);
        }
        for (index, (counter, _)) in counters.iter().enumerate() {
            if !counters[..index].iter().any(|(other, _)| other.as_ptr() == counter.as_ptr()) {
                completing.push(counter.register_user()?);
            }
        }
        let bind_to = |other, flags, operation| {
            // SAFETY: both objects are open, of one domain, and the second is owned by the endpoint.
            unsafe { bind(object.library(), object.fid(), other, flags, operation) }
        };
        bind_to(address_vector.fid(), 0, ADDRESSES)?;
        let first = if same { fi::FI_TRANSMIT | fi::FI_RECV } else { fi::FI_TRANSMIT };
        bind_to(send_completions.fid(), first, COMPLETIONS)?;
        if !same {
            bind_to(receive_completions.fid(), fi::FI_RECV, COMPLETIONS)?;
        }
        for (counter, counted) in counters {
            bind_to(counter.fid(), counted.bits(), COUNTER)?;
        }
        // SAFETY: the endpoint is open and bound, as enabling requires.
        unsafe { control(object.library(), object.fid(), fi::FI_ENABLE, "fi_enable") }?;
        Ok(Self { object })
    }

    /// Returns the raw address that a peer inserts into its address vector.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `fi_getname` fails.
    pub fn address(&self) -> Result<Vec<u8>> {
        const OPERATION: &str = "fi_getname";
        let raw = self.object.raw();
        // SAFETY: an open endpoint points to its operation table, or to null.
        let getname = unsafe { table_op!((*raw).cm, fi_ops_cm.getname, OPERATION) }?;
        // An efa address has 32 bytes. A provider refuses a buffer that is too short with FI_ETOOSMALL and does
        // not truncate.
        let mut address = vec![0; 256];
        let mut length = address.len();
        let context = self.object.library();
        let _serialized = context.serialize_calls();
        // SAFETY: the endpoint is open; `length` bytes can be written.
        context.check(OPERATION, unsafe {
            getname(self.object.fid(), address.as_mut_ptr().cast(), &mut length)
        })?;
        address.truncate(length);
        Ok(address)
    }

    /// Returns how many bytes one request moves. Where the provider does not report it (before libfabric 1.20,
    /// or without these options), the result is `max_msg_size` for RDMA, and for messages the smallest limit
    /// that EFA adapters have had.
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
            // Providers of an adapter without RDMA reads have no info with FI_RMA on efa-direct.
            reads: self.object.parents().info.caps() & fi::FI_READ != 0,
        }
    }

    /// Whether each RDMA write with immediate that arrives consumes a posted receive. That is the case where
    /// the endpoint was opened in the mode FI_RX_CQ_DATA, which adapters without unsolicited write receives
    /// need.
    pub fn writes_use_receives(&self) -> bool {
        self.object.parents().info.mode() & fi::FI_RX_CQ_DATA != 0
    }

    /// Reads an option that is a number of bytes. None where the provider does not have it.
    fn size_option(&self, option: i32) -> Option<usize> {
        let raw = self.object.raw();
        // SAFETY: an open endpoint points to its operation table, or to null.
        let getopt = unsafe { table_op!((*raw).ops, fi_ops_ep.getopt, "fi_getopt") }.ok()?;
        let (mut value, mut length) = (0_usize, size_of::<usize>());
        let _serialized = self.object.library().serialize_calls();
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

    /// The address vector that the endpoint is bound to.
    pub fn address_vector(&self) -> &AddressVector {
        &self.object.parents().address_vector
    }

    /// The completion queue of requests that the endpoint posts to its send queue.
    pub fn send_completions(&self) -> &CompletionQueue {
        &self.object.parents().send_completions
    }

    /// The completion queue of messages and writes that arrive.
    pub(crate) fn receive_completions(&self) -> &CompletionQueue {
        &self.object.parents().receive_completions
    }

    /// The regions that the endpoint retains until it is closed.
    pub(crate) fn regions(&mut self) -> &mut RetainedRegions {
        &mut self.object.parents_mut().regions
    }

    /// The endpoint's counters, each with all operations that it counts for the endpoint.
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

    /// The domain of the endpoint.
    pub(crate) fn domain(&self) -> &Domain {
        &self.object.parents().domain
    }

    /// Closes the endpoint with its queue pair, and reports the result. Where it fails, everything that the
    /// endpoint refers to stays allocated until the process ends.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `fi_close` fails.
    pub fn close(self) -> Result<()> {
        self.object.close()
    }

    /// The raw endpoint, for calls that this library does not wrap.
    pub fn as_ptr(&self) -> *mut fi::fid_ep {
        self.object.raw()
    }

    pub(super) fn context(&self) -> &Context {
        self.object.library()
    }
}
