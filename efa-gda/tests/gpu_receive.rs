//! Receives that a GPU posts and reads, for messages that the host sends. The tests run on the first GPU, and on the
//! pretended GPU, where the host executor runs the same kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use efa_gda::ErrorKind;
use efa_gda::fabric::{Query, Region};
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::{Arrival, MappedQueue, ReceiveId, Received, Receives, WorkRequest};
use efa_gda::wire::{CompletionStatus, Peer};
use efa_gda_test_support::assert_error;
use support::kernel::Kernel;
use support::side::{Side, arrived, bytes_of, gpu_bytes, gpu_region, introduce, pattern};
use support::{SoftAdapter, assert_no_violations, with_gpu, with_pretended_gpu};

const WAIT: Duration = Duration::from_secs(20);
/// Bytes of a message.
const SIZE: usize = 64;
/// Messages in flight at once.
const CHUNK: usize = 256;
/// The number of the receive queue among the ranges that are registered.
const RECEIVE_QUEUE: &str = "4";

/// Variables with which the software adapter can access memory of a GPU.
const REAL: [(&str, &str); 2] = [("SOFTEFA_HMEM", "1"), ("SOFTEFA_MR_DMABUF", "1")];

/// Sends messages `from..from + count` of `source`, each with its number as immediate.
fn send(sender: &mut MappedQueue, peer: Peer, source: &Region, from: usize, count: usize) {
    let put = WorkRequest::send(peer, source).bytes(SIZE as u64).count(count as u64).stride(SIZE as u64);
    let put = put.offsets((from * SIZE) as u64, 0).immediate(from as u32).counting();
    sender.execute(&put.timeout(WAIT)).unwrap();
}

/// Checks a receive completion. Returns the number of its message, and the offset of its bytes if `first` is the receive at
/// offset 0.
fn number_and_offset(one: &Received, first: ReceiveId, sender: &MappedQueue) -> (usize, usize) {
    assert_eq!((one.status, one.length, one.arrival), (CompletionStatus::Ok, SIZE as u32, Arrival::Message));
    assert_eq!(one.source.queue_pair, sender.number());
    (one.immediate.unwrap() as usize, one.receive.unwrap().after(first) as usize * SIZE)
}

fn receive_exactly(queue: &mut GpuQueue, count: usize) -> Vec<Received> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(queue.receive_many(count - all.len(), WAIT).unwrap());
    }
    all
}

/// Receives one and a half times as many messages as the ring of receives has entries, chunk by chunk, into `region`.
fn receive_past_a_lap(
    adapter: &SoftAdapter,
    side: &Side,
    (receiver, sender, peer): (&mut GpuQueue, &mut MappedQueue, Peer),
    region: &Region,
    bytes_now: impl Fn(&Region) -> Vec<u8>,
) {
    let ring = receiver.mapped().limits().receives as usize;
    let total = (ring + ring / 2).next_multiple_of(CHUNK);
    let (bytes, source) = (pattern(SIZE * total), side.region(&pattern(SIZE * total)));
    let mut arrived_before = vec![false; total];
    for begin in (0..total).step_by(CHUNK) {
        let receives = Receives::new(region).bytes(SIZE as u64).count(CHUNK as u32).stride(SIZE as u64);
        let posted = receiver.post_receives(&receives).unwrap();
        assert_eq!((usize::from(posted.first.get()), posted.count as usize), (begin & 0xffff, CHUNK));
        send(sender, peer, &source, begin, CHUNK);
        let arrived = receive_exactly(receiver, CHUNK);
        let now = bytes_now(region);
        for one in arrived {
            let (number, at) = number_and_offset(&one, posted.first, sender);
            assert!(!std::mem::replace(&mut arrived_before[number], true), "message {number} arrived twice");
            assert!(now[at..at + SIZE] == bytes[number * SIZE..][..SIZE], "message {number}");
        }
    }
    assert!(arrived_before.into_iter().all(|arrived| arrived));
    let snapshot = receiver.snapshot().unwrap();
    println!("{snapshot}");
    assert!(
        snapshot.to_string().contains(&format!("{total} put into the inbox, {total} taken, 0 lost")),
        "{snapshot}"
    );
    assert_no_violations(adapter);
}

fn messages_into_host_memory(adapter: &SoftAdapter, gpu: &Gpu) {
    let side = Side::open(&Query::new());
    let (mut sender, receiver, peer) = side.pair();
    let mut receiver = GpuQueue::new(receiver, gpu).unwrap();
    receiver.posts_receives().unwrap();
    let parts: Vec<_> = receiver.registered().into_iter().map(|part| part.part).collect();
    assert!(parts.contains(&"receive queue") && parts.contains(&"receive doorbell"), "{parts:?}");
    let region = side.region(&[0; SIZE * CHUNK]);
    receive_past_a_lap(adapter, &side, (&mut receiver, &mut sender, peer), &region, bytes_of);
    receiver.close().unwrap();
}

#[test]
fn a_gpu_posts_and_reads_more_receives_than_the_ring_holds() {
    with_gpu(&REAL, messages_into_host_memory);
}

#[test]
fn the_pretended_gpu_posts_and_reads_more_receives_than_the_ring_holds() {
    with_pretended_gpu(&[], messages_into_host_memory);
}

/// Posts receives up to the ring's size and no further. Completed receives free their slots before they are read, and stay
/// in the inbox.
fn a_full_ring(adapter: &SoftAdapter, gpu: &Gpu) {
    const MORE: usize = 100;
    let side = Side::open(&Query::new());
    let (mut sender, receiver, peer) = side.pair();
    let mut receiver = GpuQueue::new(receiver, gpu).unwrap();
    let ring = receiver.mapped().limits().receives as usize;
    let (region, source) = (side.region(&vec![0; SIZE * (ring + MORE)]), side.region(&pattern(SIZE * MORE)));
    let receives = |from: usize, count: usize| {
        let receives = Receives::new(&region).bytes(SIZE as u64).count(count as u32).stride(SIZE as u64);
        receives.offset((from * SIZE) as u64).timeout(Duration::from_millis(100))
    };
    let error = receiver.post_receives(&receives(0, ring + MORE)).unwrap_err();
    assert_error!(error, ErrorKind::TimedOut, &format!("receives posted: {ring} of {}", ring + MORE));
    let received = receiver.receive_many(1, Duration::from_millis(20));
    assert_error!(received.unwrap_err(), ErrorKind::TimedOut);
    send(&mut sender, peer, &source, 0, MORE);
    let posted = receiver.post_receives(&receives(ring, MORE)).unwrap();
    assert_eq!((usize::from(posted.first.get()), posted.count as usize), (ring & 0xffff, MORE));
    let bytes = bytes_of(&source);
    for one in receive_exactly(&mut receiver, MORE) {
        // The software adapter completes receives in order. The id gives the offset of the bytes.
        let (number, now) = (one.immediate.unwrap() as usize, bytes_of(&region));
        let at = usize::from(one.receive.unwrap().get()) * SIZE;
        assert!(now[at..at + SIZE] == bytes[number * SIZE..][..SIZE], "message {number}");
    }
    let received = receiver.receive_many(1, Duration::from_millis(20));
    assert_error!(received.unwrap_err(), ErrorKind::TimedOut);
    assert_eq!(receiver.mapped().poison(), None, "a timeout must not poison the queue");
    // The adapter may still write to it.
    assert_error!(region.close().unwrap_err(), ErrorKind::Busy);
    assert_no_violations(adapter);
    receiver.close().unwrap();
}

#[test]
fn a_gpu_posts_no_more_receives_than_the_ring_holds() {
    with_gpu(&REAL, a_full_ring);
}

#[test]
fn the_pretended_gpu_posts_no_more_receives_than_the_ring_holds() {
    with_pretended_gpu(&[], a_full_ring);
}

/// Receives that host or GPU posted, and completions that they did not read, move with the queue from one to the other.
fn from_host_to_gpu_and_back(adapter: &SoftAdapter, gpu: &Gpu) {
    let side = Side::open(&Query::new());
    let (mut sender, mut receiver, peer) = side.pair();
    let (region, source) = (side.region(&[0; SIZE * 32]), side.region(&pattern(SIZE * 64)));
    let receives = |count| Receives::new(&region).bytes(SIZE as u64).count(count).stride(SIZE as u64);
    let first = receiver.post_receives(&receives(32)).unwrap().first;
    send(&mut sender, peer, &source, 0, 12);
    // One message is read here, so the host's inbox holds eleven and the completion queue none.
    let mut arrived = vec![arrived(receiver.receive_many(1, WAIT))];
    let mut on_gpu = GpuQueue::new(receiver, gpu).unwrap();
    arrived.extend(on_gpu.receive_many(5, WAIT).unwrap());
    send(&mut sender, peer, &source, 12, 12);
    // RDMA writes with immediate arrive in the same way and use no receive.
    let target = side.region(&[0; SIZE]);
    let write = WorkRequest::write(peer, &source, target.remote()).bytes(SIZE as u64).immediate(99);
    sender.execute(&write).unwrap();
    while arrived.len() < 20 {
        arrived.extend(on_gpu.receive_many(1, WAIT).unwrap());
    }
    let mut receiver = on_gpu.unmap().unwrap();
    send(&mut sender, peer, &source, 24, 8);
    while arrived.len() < 33 {
        arrived.extend(receiver.receive_many(33 - arrived.len(), WAIT).unwrap());
    }
    let writes: Vec<_> = arrived.extract_if(.., |one| one.arrival == Arrival::Write).collect();
    let [write] = writes[..] else { panic!("{writes:?}") };
    assert_eq!((write.receive, write.immediate, write.length), (None, Some(99), SIZE as u32));
    assert!(bytes_of(&target) == pattern(SIZE));
    let (now, bytes, mut numbers) = (bytes_of(&region), pattern(SIZE * 64), Vec::new());
    for one in &arrived {
        let (number, at) = number_and_offset(one, first, &sender);
        assert!(now[at..at + SIZE] == bytes[number * SIZE..][..SIZE], "message {number}");
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..32).collect::<Vec<_>>());
    // All receives completed, so nothing retains the memory.
    region.close().unwrap();
    assert_no_violations(adapter);
    receiver.close().unwrap();
}

#[test]
fn receives_move_with_the_queue_to_a_gpu_and_back() {
    with_gpu(&REAL, from_host_to_gpu_and_back);
}

#[test]
fn receives_move_with_the_queue_to_the_pretended_gpu_and_back() {
    with_pretended_gpu(&[], from_host_to_gpu_and_back);
}

#[test]
fn receives_in_a_launch_or_out_of_bounds_are_refused_with_the_reason() {
    with_pretended_gpu(&[], |_, gpu| {
        let side = Side::open(&Query::new());
        let region = side.region(&[0; SIZE]);
        let mut queue = GpuQueue::new(side.queue(), gpu).unwrap();
        let launch = queue.begin_launch();
        let error = queue.post_receives(&Receives::new(&region)).unwrap_err();
        assert_error!(error, ErrorKind::Busy, "launch(es) use the queue", "1");
        let error = queue.receive_many(1, Duration::ZERO).unwrap_err();
        assert_error!(error, ErrorKind::Busy, "launch(es) use the queue", "1");
        drop(launch);
        let error = queue.post_receives(&Receives::new(&region).bytes(65_536)).unwrap_err();
        assert_error!(error, ErrorKind::TooLong { .. });
        let error = queue.post_receives(&Receives::new(&region).count(2).stride(SIZE as u64)).unwrap_err();
        assert_error!(error, ErrorKind::Argument, "is not in a region of length");
        assert_eq!(queue.snapshot().unwrap().state.receive.posted, 0);
        queue.close().unwrap();
    });
}

#[test]
fn a_receive_queue_that_does_not_map_is_reported_and_posting_requests_still_works() {
    with_pretended_gpu(&[("PRETEND_GPU_REFUSES", RECEIVE_QUEUE)], |adapter, gpu| {
        let side = Side::open(&Query::new());
        let (mut sender, mut receiver, peer) = side.pair();
        let back = introduce(&receiver, &sender);
        let (region, source) = (side.region(&[0; SIZE]), side.region(&pattern(SIZE)));
        receiver.post_receives(&Receives::new(&region)).unwrap();
        let mut receiver = GpuQueue::new(receiver, gpu).unwrap();
        let error = receiver.post_receives(&Receives::new(&region)).unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "the GPU cannot post receives");
        assert!(error.to_string().contains("cuMemHostRegister"), "{error}");
        assert!(receiver.registered().iter().all(|part| !part.part.starts_with("receive")));
        // The receive that the host posted before still completes.
        send(&mut sender, peer, &source, 0, 1);
        assert_eq!(arrived(receiver.receive_many(1, WAIT)).immediate, Some(0));
        assert!(bytes_of(&region) == pattern(SIZE));
        let target = side.region(&[0; SIZE]);
        receiver.execute(&WorkRequest::write(back, &source, target.remote())).unwrap();
        assert!(bytes_of(&target) == pattern(SIZE));
        assert_no_violations(adapter);
        receiver.close().unwrap();
    });
}

#[test]
fn messages_and_their_completions_arrive_in_gpu_memory() {
    with_gpu(&REAL, |adapter, gpu| {
        let side = Side::open(&Query::new().gpu_memory(true));
        let (completions, why) = gpu.completion_queue(&side.domain.gda_ops().unwrap(), 16_384).unwrap();
        println!("completions in memory of the host: {why:?}");
        let (mut receiver, mut sender) = (side.queue_on(completions), side.queue());
        let peer = introduce(&sender, &receiver);
        let region = gpu_region(&side, gpu, &[0; SIZE * CHUNK]).0;
        if why.is_none() {
            let error = receiver.post_receives(&Receives::new(&region)).unwrap_err();
            assert_error!(error, ErrorKind::Unsupported, "receiving on the host is not possible");
            let error = receiver.receive_many(1, Duration::ZERO).unwrap_err();
            assert_error!(error, ErrorKind::Unsupported, "receiving on the host is not possible");
        }
        let mut receiver = GpuQueue::new(receiver, gpu).unwrap();
        receive_past_a_lap(adapter, &side, (&mut receiver, &mut sender, peer), &region, gpu_bytes);
        receiver.close().unwrap();
    });
}

/// `ServeArgs` of serve.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Serve {
    queue: u64,
    memory: u64,
    taken: u64,
    out: u64,
    came: u64,
    pieces: u64,
    status: u64,
    timeout_ns: u64,
    lkey: u32,
    bytes: u32,
    window: u32,
    total: u32,
}

// SAFETY: a plain C struct with the same layout for the device's compiler.
unsafe impl DeviceRepr for Serve {}

#[test]
fn a_kernel_of_the_caller_reads_messages_while_they_arrive() {
    with_gpu(&REAL, |adapter, gpu| {
        const WINDOW: usize = 64;
        let side = Side::open(&Query::new().gpu_memory(true));
        let (mut sender, mut receiver, peer) = side.pair();
        let total = receiver.limits().receives as usize * 3 / 2;
        let source = side.region(&pattern(SIZE * total));
        let memory = gpu_region(&side, gpu, &[0; SIZE * WINDOW]).0;
        let lkey = receiver.retain(&memory).unwrap().get();
        let receiver = GpuQueue::new(receiver, gpu).unwrap();
        let Kernel { function, stream } =
            Kernel::compile(include_str!("gpu_receive/serve.cu"), "serve_kernel");
        let taken = stream.alloc_zeros::<u64>(16 * 4).unwrap();
        let out = stream.alloc_zeros::<u8>(SIZE * total).unwrap();
        let came = stream.alloc_zeros::<u32>(total).unwrap();
        let pieces = stream.alloc_zeros::<u32>(1 << 16).unwrap();
        let status = stream.clone_htod(&[99_u32]).unwrap();
        let launch = receiver.begin_launch();
        let serve = Serve {
            queue: launch.device_address() as u64,
            memory: memory.address(),
            taken: taken.device_ptr(&stream).0,
            out: out.device_ptr(&stream).0,
            came: came.device_ptr(&stream).0,
            pieces: pieces.device_ptr(&stream).0,
            status: status.device_ptr(&stream).0,
            timeout_ns: WAIT.as_nanos() as u64,
            lkey,
            bytes: SIZE as u32,
            window: WINDOW as u32,
            total: total as u32,
        };
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        stream.synchronize().unwrap();
        // SAFETY: the kernel takes one struct by value. Everything that it points to outlives the kernel, whose end is
        // awaited below.
        unsafe { stream.launch_builder(&function).arg(&serve).launch(one) }.unwrap();
        // The adapter retries a message for which no receive is posted.
        send(&mut sender, peer, &source, 0, total);
        assert_eq!(stream.clone_dtoh(&status).unwrap(), [0]);
        drop(launch);
        assert!(stream.clone_dtoh(&came).unwrap().iter().all(|count| *count == 1));
        assert!(stream.clone_dtoh(&out).unwrap() == pattern(SIZE * total));
        let snapshot = receiver.snapshot().unwrap();
        println!("{snapshot}");
        assert_eq!(snapshot.state.receive.taken as usize, total);
        assert_no_violations(adapter);
        receiver.close().unwrap();
    });
}

#[test]
fn messages_that_cannot_be_copied_back_are_reported_as_lost() {
    // The size of the inbox, which has as many entries as the completion queue: 8192 of 32 bytes.
    let fails = [("PRETEND_GPU_FAILS_COPY", "262144")];
    with_pretended_gpu(&fails, |_, gpu| {
        let side = Side::open(&Query::new());
        let (mut sender, mut receiver, peer) = side.pair();
        let (region, source) = (side.region(&[0; SIZE]), side.region(&pattern(SIZE)));
        // A whole lap, so that the host's inbox contains old messages.
        for _ in 0..8 {
            receiver.post_receives(&Receives::new(&region).count(1024)).unwrap();
            sender.execute(&WorkRequest::send(peer, &source).count(1024)).unwrap();
            let mut remaining = 1024;
            while remaining > 0 {
                remaining -= receiver.receive_many(remaining, WAIT).unwrap().len();
            }
        }
        receiver.post_receives(&Receives::new(&region).count(4)).unwrap();
        let mut on_gpu = GpuQueue::new(receiver, gpu).unwrap();
        sender.execute(&WorkRequest::send(peer, &source).count(4)).unwrap();
        arrived(on_gpu.receive_many(1, WAIT));
        let mut receiver = on_gpu.unmap().unwrap();
        let lost = receiver.receive_many(8, WAIT);
        assert_error!(lost.unwrap_err(), ErrorKind::Lost, "3");
    });
}
