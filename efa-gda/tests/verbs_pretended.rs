//! A queue of rdma-core on a GPU, with a fake adapter, a fake rdma-core and the pretended CUDA driver.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

#[allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
mod verbs_fake;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::exposure::Exposure;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::verbs::*;
use efa_gda::wire::{
    Completion, CompletionKind, CompletionStatus, DecodedRequest, OperationCode, Peer, QueuePairNumber,
    RequestId,
};
use efa_gda_sys::verbs::{efadv_cq_attr, efadv_wq_attr, ibv_cq};
use efa_gda_test_support::{complete_when_rung, cuda, in_child};
use verbs_fake::{DEPTH, library, state};

const COMPLETIONS: u32 = 1024;
/// The fake rdma-core's first queue pair number.
const NUMBER: u16 = 7;

/// The fake adapter's rings and doorbells.
#[repr(C, align(4096))]
struct Rings {
    send: UnsafeCell<[[u8; 64]; DEPTH as usize]>,
    completion: UnsafeCell<[[u8; 32]; COMPLETIONS as usize]>,
    doorbells: UnsafeCell<[u32; 2]>,
}

// SAFETY: the test's thread accesses it only while no kernel runs.
unsafe impl Sync for Rings {}

static RINGS: Rings = Rings {
    send: UnsafeCell::new([[0; 64]; DEPTH as usize]),
    completion: UnsafeCell::new([[0; 32]; COMPLETIONS as usize]),
    doorbells: UnsafeCell::new([0; 2]),
};

unsafe extern "C" fn query_cq(_: *mut ibv_cq, attr: *mut efadv_cq_attr, _: u32) -> c_int {
    // SAFETY: the caller passes a struct to fill in.
    unsafe {
        *attr = efadv_cq_attr {
            buffer: RINGS.completion.get().cast(),
            entry_size: 32,
            num_entries: COMPLETIONS,
            doorbell: RINGS.doorbells.get().cast::<u32>().add(1),
            ..Default::default()
        };
    }
    0
}

/// Runs `body` in a child process whose CUDA driver is the pretended one.
fn with_pretended_gpu(body: impl FnOnce(&Gpu)) {
    in_child(&cuda::VARIABLES, || body(&Gpu::open(0).unwrap()));
}

/// Runs `body`, and completes the requests when the last one is rung for.
fn completing<R>(
    requests: Range<usize>,
    status: CompletionStatus,
    exposure: &Exposure,
    body: impl FnOnce() -> R,
) -> R {
    let encode = |id: usize| {
        let completion = Completion {
            id: RequestId::new(id as u64),
            status,
            operation_code: OperationCode::Write as u8,
            queue_pair: QueuePairNumber::new(NUMBER),
            kind: CompletionKind::Send,
        };
        let mut entry = [0; 32];
        completion.encode(&mut entry, true, exposure.sq.request_ids);
        // SAFETY: other threads access the ring atomically.
        (unsafe { &*(&raw const (*RINGS.completion.get())[id]).cast::<[AtomicU64; 4]>() }, entry)
    };
    let arrivals: Vec<_> = requests.clone().map(encode).collect();
    // SAFETY: the same.
    let doorbell = unsafe { AtomicU32::from_ptr(RINGS.doorbells.get().cast()) };
    complete_when_rung(doorbell, requests.end as u32, &arrivals, body)
}

/// Opens a queue of the fake adapter, which is its own peer, and registers memory for its requests.
fn open() -> (MappedQueue, Peer, Region) {
    state(|state| {
        state.send = efadv_wq_attr {
            buffer: RINGS.send.get().cast(),
            doorbell: RINGS.doorbells.get().cast(),
            ..state.send
        };
    });
    let context = library(|_, efadv| efadv.efadv_query_cq = Some(query_cq)).adapter(None).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, COMPLETIONS).unwrap();
    let pair = QueuePair::open(&domain, &completions, &QueuePairOptions::default()).unwrap();
    let queue = MappedQueue::over_verbs(pair).unwrap();
    let region = domain.register(Buffer::zeroed(4096).unwrap(), Access::ALL).unwrap();
    let address = queue.address().unwrap();
    let peer = queue.insert_peer(&address).unwrap();
    (queue, peer, region)
}

#[test]
fn a_gpu_posts_to_a_queue_of_rdma_core() {
    with_pretended_gpu(|gpu| {
        let (queue, peer, region) = open();
        let exposure = *queue.exposure();
        let proxy = DoorbellProxy::start().unwrap();
        let (mut queue, refused) = GpuQueue::with_doorbell(queue, gpu, None, &proxy).unwrap();
        assert_eq!((queue.doorbell_mode(), refused), (DoorbellMode::Direct, vec![]));
        let write = WorkRequest::write(peer, &region, region.remote()).bytes(64).stride(64);
        let two = write.clone().count(2);
        let done = completing(0..2, CompletionStatus::Ok, &exposure, || queue.execute(&two));
        assert_eq!(done.unwrap().completed, 2);
        let failed = CompletionStatus::RemoteBadAddress;
        let error = completing(2..3, failed, &exposure, || queue.execute(&write)).unwrap_err();
        let ErrorKind::FailedRequest { status, request } = error.kind() else { panic!("{error:?}") };
        assert_eq!((status, request.get() & 0xffff), (CompletionStatus::RemoteBadAddress, 2));
        // SAFETY: no kernel runs.
        let (entry, doorbell) = unsafe { ((*RINGS.send.get())[1], (*RINGS.doorbells.get())[0]) };
        let entry = DecodedRequest::decode(&entry, exposure.sq.request_ids).unwrap().request.unwrap();
        assert_eq!((entry.id.get() & 0xffff, entry.operation.length(), doorbell), (1, 64, 3));

        let snapshot = queue.snapshot().unwrap();
        assert_eq!((snapshot.completed(), snapshot.in_flight()), (3, 0));
        drop(write);
        queue.unmap().unwrap().close().unwrap();
    });
}

#[test]
fn a_relay_rings_the_completion_doorbell_of_an_adapter_that_has_one() {
    // Send queue, doorbell, completion queue.
    let variables = [&cuda::VARIABLES[..], &[("PRETEND_GPU_REFUSES", "3")]].concat();
    in_child(&variables, || {
        let gpu = Gpu::open(0).unwrap();
        let (queue, peer, region) = open();
        let exposure = *queue.exposure();
        let proxy = DoorbellProxy::start().unwrap();
        let (mut queue, _) = GpuQueue::with_doorbell(queue, &gpu, None, &proxy).unwrap();
        assert!(queue.relayed().is_some());
        let write = WorkRequest::write(peer, &region, region.remote()).bytes(64).count(2);
        completing(0..2, CompletionStatus::Ok, &exposure, || queue.execute(&write)).unwrap();
        drop(write);
        // The end of the relay passes the last consumer index on.
        queue.unmap().unwrap().close().unwrap();
        // SAFETY: no kernel runs, and the proxy has let go of the queue.
        assert_eq!(unsafe { (*RINGS.doorbells.get())[1] }, 2);
    });
}
