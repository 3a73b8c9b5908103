//! One side of a transfer on the software adapter: a domain, its queues and memory.

use efa_gda::executor::host;
use efa_gda::fabric::{
    Access, Bindings, Buffer, CompletionCounter, CompletionQueue, CountedOperations, Domain, Fabric, Info,
    Library, Query, Region, RemoteRegion,
};
use efa_gda::gpu::{Gpu, GpuMemory};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, Received, WorkRequest};
use efa_gda::wire::{CompletionStatus, Peer, RemoteKey};
use efa_gda_sys::device::{EFA_GDA_PUT_NO_WAIT, efa_gda_put_args, efa_gda_queue};
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use efa_gda_test_support::pattern;

/// A domain, on which tests open queues and register memory.
pub(crate) struct Side {
    pub(crate) info: Info,
    pub(crate) domain: Domain,
}

impl Side {
    pub(crate) fn open(query: &Query) -> Self {
        let library = Library::load().unwrap();
        let info = query.first(&library).unwrap();
        Self::on(&library, info)
    }

    pub(crate) fn on(library: &Library, info: Info) -> Self {
        let domain = Fabric::open(library, &info).unwrap().domain(&info).unwrap();
        Self { info, domain }
    }

    /// A queue with a separate completion queue. It retries without a bound while the receiver is not ready.
    pub(crate) fn queue(&self) -> MappedQueue {
        self.queue_on(self.domain.completion_queue(8192).unwrap())
    }

    /// Two queues that know each other, and the peer that addresses the second from the first.
    pub(crate) fn pair(&self) -> (MappedQueue, MappedQueue, Peer) {
        let (first, second) = (self.queue(), self.queue());
        let peer = introduce(&first, &second);
        (first, second, peer)
    }

    /// A queue whose `operations` `counter` counts. Its receives complete on a queue of their own.
    pub(crate) fn counted_queue(
        &self,
        counter: &CompletionCounter,
        operations: CountedOperations,
    ) -> MappedQueue {
        let addresses = self.domain.address_vector(16).unwrap();
        let [requests, receives] = [8192, 64].map(|entries| self.domain.completion_queue(entries).unwrap());
        let bindings = Bindings {
            address_vector: &addresses,
            send_completions: &requests,
            receive_completions: &receives,
            counters: &[(counter.clone(), operations)],
        };
        let endpoint = self.domain.endpoint(&self.info, bindings).unwrap();
        MappedQueue::new(endpoint, &self.domain.gda_ops().unwrap()).unwrap()
    }

    /// A queue whose requests and receives complete on `completions`.
    pub(crate) fn queue_on(&self, completions: CompletionQueue) -> MappedQueue {
        let addresses = self.domain.address_vector(16).unwrap();
        let bindings = Bindings::shared(&addresses, &completions);
        let endpoint = self.domain.endpoint(&self.info, bindings).unwrap();
        MappedQueue::new(endpoint, &self.domain.gda_ops().unwrap()).unwrap()
    }

    pub(crate) fn region(&self, bytes: &[u8]) -> Region {
        let buffer = Buffer::zeroed(bytes.len()).unwrap();
        buffer.write(0, bytes).unwrap();
        self.domain.register(buffer, Access::ALL).unwrap()
    }
}

/// Two queues of one adapter. `peer` addresses the second from the first, which the host drives, or a GPU.
pub(crate) struct Pair<Q = MappedQueue> {
    pub(crate) first: Q,
    pub(crate) second: MappedQueue,
    pub(crate) peer: Peer,
    pub(crate) side: Side,
}

impl Pair {
    pub(crate) fn open(query: &Query) -> Self {
        let side = Side::open(query);
        let (first, second, peer) = side.pair();
        Self { first, second, peer, side }
    }

    /// The pair with its first queue mapped into `gpu`.
    pub(crate) fn on(self, gpu: &Gpu) -> Pair<GpuQueue> {
        let Self { first, second, peer, side } = self;
        Pair { first: GpuQueue::new(first, gpu).unwrap(), second, peer, side }
    }
}

impl<Q> Pair<Q> {
    pub(crate) fn zeroes(&self, length: usize) -> Region {
        self.side.region(&vec![0; length])
    }

    /// A region of different bytes, and a region of as many zeroes.
    pub(crate) fn regions(&self, length: usize) -> [Region; 2] {
        [self.side.region(&pattern(length)), self.zeroes(length)]
    }

    pub(crate) fn blocks(&self, count: u64) -> Blocks {
        Blocks::new(&self.side, self.peer, count)
    }
}

/// Different blocks of 64 bytes, and a target for them.
pub(crate) struct Blocks {
    pub(crate) source: Region,
    pub(crate) target: Region,
    /// Writes each block once.
    pub(crate) put: WorkRequest,
}

impl Blocks {
    pub(crate) fn new(side: &Side, peer: Peer, count: u64) -> Self {
        let source = side.region(&pattern(64 * count as usize));
        let target = side.region(&vec![0; source.len()]);
        let put = WorkRequest::write(peer, &source, target.remote()).bytes(64).count(count).stride(64);
        Self { source, target, put }
    }

    #[track_caller]
    pub(crate) fn assert_arrived(&self) {
        assert!(bytes_of(&self.target) == bytes_of(&self.source));
    }
}

pub(crate) fn two_adapters() -> (Side, Side) {
    let library = Library::load().unwrap();
    let mut infos = Query::new().find(&library).unwrap();
    let (second, first) = (infos.swap_remove(1), infos.swap_remove(0));
    (Side::on(&library, first), Side::on(&library, second))
}

/// Registered memory of the GPU that holds `bytes`, and why it is no dmabuf.
pub(crate) fn gpu_region(side: &Side, gpu: &Gpu, bytes: &[u8]) -> (Region, Option<String>) {
    let memory = GpuMemory::zeroed(gpu, bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory.register(&side.domain, Access::ALL).unwrap()
}

pub(crate) fn gpu_bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.gpu_memory().unwrap().read(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.buffer().unwrap().read(0, &mut bytes).unwrap();
    bytes
}

/// The remote region with a key that belongs to no region.
pub(crate) fn with_wrong_key(remote: RemoteRegion) -> RemoteRegion {
    RemoteRegion { key: RemoteKey::new(!remote.key.get()), ..remote }
}

/// Inserts each queue's address into the other's address vector. Returns the peer that addresses the second queue from
/// the first.
pub(crate) fn introduce(first: &MappedQueue, second: &MappedQueue) -> Peer {
    second.insert_peer(&first.address().unwrap()).unwrap();
    first.insert_peer(&second.address().unwrap()).unwrap()
}

/// Writes the entries of a work request into the slots of `queue` without a doorbell, like a kernel that defers it.
///
/// # Safety
/// `queue` must be open, nothing else may use it, and the arguments must be for it.
pub(crate) unsafe fn post_without_doorbell(queue: *mut efa_gda_queue, args: &efa_gda_put_args) {
    let mut doorbell = 0;
    let mut copy = host::zeroed_queue();
    // SAFETY: the caller guarantees that only this call uses the queue. The copy writes into the same ring, and rings
    // into a local word.
    unsafe {
        *copy = queue.read();
        copy.sq.doorbell = &raw mut doorbell;
        let args = efa_gda_put_args { queue: &mut *copy, flags: args.flags | EFA_GDA_PUT_NO_WAIT, ..*args };
        host::put(&args, 1).unwrap().status.unwrap();
        let entries = copy.reserve.word.wrapping_sub((*queue).reserve.word) & 0xffff_ffff;
        (*queue).reserve = copy.reserve;
        // The low bits count entries that are not rung for.
        (*queue).turn.word = copy.turn.word | entries;
    }
}

/// The completion of the receive side that a call for one returned. It must be a success.
pub(crate) fn arrived<E: std::fmt::Debug>(received: Result<Vec<Received>, E>) -> Received {
    let one = received.unwrap()[0];
    assert_eq!(one.status, CompletionStatus::Ok);
    one
}
