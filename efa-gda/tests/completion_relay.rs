//! The relay of completions on plain memory, round by round, and on the pretended CUDA driver, whose refusal of a
//! completion queue makes a queue use it.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use efa_gda::ErrorKind;
use efa_gda::doorbell::{DoorbellMode, DoorbellProxy, End, Registration, Ring, Service};
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use efa_gda::gpu_queue::{GpuQueue, RefusedMode};
use efa_gda::queue::{Receives, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda::wire::CompletionStatus;
use efa_gda_test_support::assert_error;
use efa_gda_test_support::cuda::Driver;
use support::side::{Pair, bytes_of, introduce, pattern, with_wrong_key};
use support::{assert_no_violations, with_pretended_gpu};

const DEPTH: u32 = 8;
/// Words of a completion.
const WORDS: usize = 4;
/// The phase bit in a completion's first word.
const PHASE: u64 = 1 << 24;

/// An adapter's completion queue. Dropped after the relay that refers to it.
struct Adapter {
    entries: Vec<AtomicU64>,
    doorbell: AtomicU32,
}

struct Bench {
    relay: Registration,
    adapter: Box<Adapter>,
}

/// The first word of completion `index`, which holds its phase and its number.
fn head(index: u32) -> u64 {
    let phase = if index & DEPTH == 0 { PHASE } else { 0 };
    phase | u64::from(index) << 32
}

impl Bench {
    /// A relay from completion `index` on. Entries before it are those of an adapter that completed `index` requests.
    fn new(proxy: &DoorbellProxy, index: u32) -> Self {
        let entries = (0..DEPTH as usize * WORDS).map(|_| AtomicU64::new(0)).collect();
        let adapter = Box::new(Adapter { entries, doorbell: AtomicU32::new(0xeeee) });
        let ring = Ring {
            buffer: NonNull::new(adapter.entries.as_ptr().cast_mut().cast()).unwrap(),
            doorbell: NonNull::new(adapter.doorbell.as_ptr()),
            entry_size: 8 * WORDS as u32,
            num_entries: DEPTH,
            service: Service::Relay,
        };
        let write_before = |back| {
            let before = index.wrapping_sub(back);
            adapter.entries[Self::at(before)].store(head(before), Ordering::Relaxed);
        };
        (1..=DEPTH).for_each(write_before);
        // SAFETY: the memory is dropped after `relay`, which is declared first, and only the proxy stores to the
        // doorbell.
        let relay = unsafe { proxy.register(ring, index) }.unwrap();
        Self { relay, adapter }
    }

    fn at(index: u32) -> usize {
        (index & (DEPTH - 1)) as usize * WORDS
    }

    /// Writes completion `index` like an adapter.
    fn complete(&self, index: u32) {
        let entry = &self.adapter.entries[Self::at(index)..][..WORDS];
        for (word, place) in entry.iter().enumerate().skip(1) {
            place.store(u64::from(index) << 8 | word as u64, Ordering::Relaxed);
        }
        entry[0].store(head(index), Ordering::Release);
    }

    /// The words of completion `index` in the copy, if it is new.
    fn read(&self, index: u32) -> Option<[u64; WORDS]> {
        let start = self.relay.buffer().cast::<AtomicU64>();
        // SAFETY: inside the copy, which the relay keeps allocated.
        let word = |word| unsafe { start.add(Self::at(index) + word).as_ref() }.load(Ordering::Acquire);
        let words = std::array::from_fn(word);
        ((words[0] & PHASE != 0) == (index & DEPTH == 0)).then_some(words)
    }

    fn doorbell(&self) -> u32 {
        self.adapter.doorbell.load(Ordering::Acquire)
    }
}

#[test]
fn each_completion_is_copied_whole_and_no_old_entry_looks_new() {
    for first in [0, 5, DEPTH, 3 * DEPTH + 1, u32::MAX - 2] {
        let proxy = DoorbellProxy::without_thread();
        let bench = Bench::new(&proxy, first);
        assert_eq!(proxy.round(), 0, "{first}: nothing new completed");
        for index in (0..4 * DEPTH).map(|ahead| first.wrapping_add(ahead)) {
            assert_eq!(bench.read(index), None, "{index} of {first}");
            bench.complete(index);
            assert_eq!(proxy.round(), 1);
            let body = |word| u64::from(index) << 8 | word;
            assert_eq!(bench.read(index), Some([head(index), body(1), body(2), body(3)]));
        }
        assert_eq!((proxy.relayed(), proxy.rung()), (4 * u64::from(DEPTH), 0));
    }
}

#[test]
fn the_devices_consumer_index_reaches_the_adapters_doorbell() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, 0x1_fffe);
    proxy.round();
    assert_eq!(bench.doorbell(), 0xeeee, "nothing was consumed");
    bench.relay.record().store(1, Ordering::Release);
    proxy.round();
    assert_eq!(bench.doorbell(), 1);
}

#[test]
fn the_end_of_a_relay_copies_what_completed_and_passes_the_consumer_index_on() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, 0);
    (0..3).for_each(|index| bench.complete(index));
    bench.relay.record().store(2, Ordering::Release);
    proxy.stop().unwrap();
    assert!(bench.read(2).is_some() && bench.read(3).is_none());
    assert_eq!((bench.doorbell(), bench.relay.ended()), (2, Some(End::Stopped)));
    bench.complete(3);
    proxy.round();
    assert_eq!(bench.read(3), None, "the proxy touches no memory of a relay that ended");
}

#[test]
fn a_ring_that_no_adapter_has_is_refused() {
    let proxy = DoorbellProxy::without_thread();
    let memory = [AtomicU64::new(0)];
    let buffer = NonNull::from(&memory).cast::<u8>();
    let good = Ring { buffer, doorbell: None, entry_size: 32, num_entries: 8, service: Service::Relay };
    for bad in [
        Ring { num_entries: 12, ..good },
        Ring { num_entries: 1 << 17, ..good },
        Ring { entry_size: 0, ..good },
        Ring { entry_size: 12, ..good },
        // SAFETY: inside the word.
        Ring { buffer: unsafe { buffer.add(4) }, ..good },
    ] {
        // SAFETY: the ring is refused before it is read.
        let refused = unsafe { proxy.register(bad, 0) }.unwrap_err();
        assert_error!(refused, ErrorKind::Unsupported, "cannot be registered");
    }
}

/// The completion queue, by the order in which the ranges of a queue are mapped.
const COMPLETIONS: &str = "3";

/// Runs `body` on a driver that refuses to map these ranges of a queue.
fn refusing(ranges: &str, body: impl FnOnce(Pair, &Gpu, &DoorbellProxy)) {
    with_pretended_gpu(&[("PRETEND_GPU_REFUSES", ranges)], |adapter, gpu| {
        let proxy = DoorbellProxy::start().unwrap();
        body(Pair::open(&Query::new()), gpu, &proxy);
        assert_no_violations(adapter);
        assert_eq!(Driver::loaded().registered(), 0, "every part must be unregistered");
    });
}

/// Maps a pair's first queue in the doorbell mode that `auto` takes. Returns the modes that were refused, too.
fn mapped(pair: Pair, gpu: &Gpu, proxy: &DoorbellProxy) -> (Pair<GpuQueue>, Vec<RefusedMode>) {
    let Pair { first, second, peer, side } = pair;
    let (first, refused) = GpuQueue::with_doorbell(first, gpu, None, proxy).unwrap();
    (Pair { first, second, peer, side }, refused)
}

#[test]
fn a_gpu_that_maps_no_completion_queue_posts_past_its_laps_in_every_doorbell_mode() {
    // Doorbell or send queue are refused first; then the record or the staging ring count, before the completion queue.
    for (ranges, mode) in
        [(COMPLETIONS, DoorbellMode::Direct), ("2,4", DoorbellMode::Record), ("1,4", DoorbellMode::Staged)]
    {
        refusing(ranges, |pair, gpu, proxy| {
            let (mut pair, refused) = mapped(pair, gpu, proxy);
            let queue = &mut pair.first;
            assert_eq!(queue.doorbell_mode(), mode);
            assert!(refused.iter().all(|one| one.mode < mode), "{refused:?}");
            assert!(queue.relayed().unwrap().contains("cuMemHostRegister"), "{:?}", queue.relayed());
            let how = |part| queue.registered().into_iter().find(|one| one.part == part).unwrap().how;
            assert!(how("completion queue").starts_with("relayed; the copy is registered as"));
            let blocks = pair.blocks(20_000);
            let report = pair.first.execute(&blocks.put).unwrap();
            assert_eq!(report.completed, 20_000, "two laps of the completion queue");
            blocks.assert_arrived();
            assert_eq!(proxy.relayed(), 20_000);
            pair.first.close().unwrap();
        });
    }
}

#[test]
fn without_a_proxy_the_queue_is_handed_back_and_the_error_names_the_ways_out() {
    refusing(COMPLETIONS, |pair, gpu, _| {
        let error = GpuQueue::new(pair.first, gpu).unwrap_err();
        assert_error!(error.error, ErrorKind::Gpu, "cannot read the completion queue");
        let text = error.error.to_string();
        assert!(text.contains("with_doorbell") && text.contains("with_counters"), "{text}");
        error.queue.unwrap().close().unwrap();
    });
}

#[test]
fn the_error_of_a_request_reaches_the_gpu_with_status_and_request() {
    refusing(COMPLETIONS, |pair, gpu, proxy| {
        let (mut pair, _) = mapped(pair, gpu, proxy);
        let [source, target] = pair.regions(64);
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote()).count(7)).unwrap();
        let wrong = WorkRequest::write(pair.peer, &source, with_wrong_key(target.remote()));
        let error = pair.first.execute(&wrong).unwrap_err();
        let ErrorKind::FailedRequest { status, request } = error.kind() else { panic!("{error:?}") };
        assert_eq!((status, request.get() & 0xffff), (CompletionStatus::RemoteBadAddress, 7));
        pair.first.close().unwrap();
    });
}

#[test]
fn receives_are_relayed_too() {
    refusing(COMPLETIONS, |pair, gpu, proxy| {
        let back = introduce(&pair.second, &pair.first);
        let (mut pair, _) = mapped(pair, gpu, proxy);
        let [source, landing] = pair.regions(64 * 100);
        let receives = Receives::new(&landing).bytes(64).count(100).stride(64);
        let first = pair.first.post_receives(&receives).unwrap().first;
        let send = WorkRequest::send(back, &source).bytes(64).count(100).stride(64).immediate(500).counting();
        pair.second.execute(&send).unwrap();
        let mut arrived = Vec::new();
        while arrived.len() < 100 {
            arrived.extend(pair.first.receive_many(100, Duration::from_secs(30)).unwrap());
        }
        for one in arrived {
            let (sent, landed) = (one.immediate.unwrap() as usize - 500, one.receive.unwrap().after(first));
            let place = |number: usize| 64 * number..64 * (number + 1);
            assert_eq!(bytes_of(&landing)[place(landed.into())], pattern(64 * 100)[place(sent)]);
        }
        pair.first.close().unwrap();
    });
}

#[test]
fn a_queue_with_a_request_table_is_relayed() {
    refusing(COMPLETIONS, |pair, gpu, proxy| {
        let tracked = pair.first.with_request_table().unwrap();
        let (mut pair, _) = mapped(Pair { first: tracked, ..pair }, gpu, proxy);
        let blocks = pair.blocks(9000);
        assert_eq!(pair.first.execute(&blocks.put).unwrap().completed, 9000);
        pair.first.close().unwrap();
    });
}

#[test]
fn the_host_and_a_relayed_gpu_take_turns_on_a_queue() {
    refusing(COMPLETIONS, |mut pair, gpu, proxy| {
        let put = pair.blocks(5000);
        for _ in 0..4 {
            assert_eq!(pair.first.execute(&put.put).unwrap().completed, 5000);
            let (mut on_gpu, _) = mapped(pair, gpu, proxy);
            assert_eq!(on_gpu.first.execute(&put.put).unwrap().completed, 5000);
            let Pair { first, second, peer, side } = on_gpu;
            pair = Pair { first: first.unmap().unwrap(), second, peer, side };
        }
        pair.first.close().unwrap();
    });
}

/// Executes a write, whose wait must end with `expected` because the proxy stopped.
fn waits_end_with(expected: DeviceError, mut pair: Pair<GpuQueue>, proxy: &DoorbellProxy) {
    let [source, target] = pair.regions(64);
    proxy.stop().unwrap();
    let put = WorkRequest::write(pair.peer, &source, target.remote()).timeout(Duration::from_secs(600));
    let error = pair.first.execute(&put).unwrap_err();
    assert_error!(error, ErrorKind::Device(_));
    let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
    assert_eq!(error, expected);
    drop(put);
    pair.first.destroy().unwrap();
}

#[test]
fn a_proxy_that_stopped_ends_the_waits_of_a_relayed_queue() {
    refusing(COMPLETIONS, |pair, gpu, proxy| {
        waits_end_with(DeviceError::ProxyStopped, mapped(pair, gpu, proxy).0, proxy);
    });
}

#[test]
fn a_bad_record_ends_the_waits_of_a_queue_although_the_proxy_ends_its_relay_later() {
    // Mode `record`, and relayed.
    refusing("2,4", |pair, gpu, proxy| {
        let (pair, _) = mapped(pair, gpu, proxy);
        // SAFETY: in mode `record` the doorbell of the host's struct is the record, which lives as long as the queue.
        let record = unsafe { AtomicU32::from_ptr(pair.first.mapped().state().sq.doorbell) };
        record.store(u32::MAX, Ordering::Release);
        waits_end_with(DeviceError::BadRecord, pair, proxy);
    });
}
