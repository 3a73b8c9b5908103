//! The doorbell proxy on plain memory, round by round: the doorbells that it rings, the records that it refuses, and the
//! entries that stay unrung after a detach.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use efa_gda::doorbell::{
    DoorbellMode, DoorbellProxy, End, RecordFault, Registration, Ring as AdapterRing, Service,
};
use efa_gda::status::DeviceError;
use efa_gda::{ErrorKind, Result};
use efa_gda_sys::device::{EFA_GDA_BAD_RECORD, EFA_GDA_PROXY_STOPPED};
use efa_gda_test_support::assert_error;

const DEPTH: u32 = 64;
const ENTRY: usize = 64;

#[repr(align(64))]
struct Ring([AtomicU32; DEPTH as usize * ENTRY / 4]);

/// An adapter's memory. Dropped after the registration that refers to it.
struct Memory {
    ring: Ring,
    doorbell: AtomicU32,
}

/// Adds an alarm that stores its status in the returned word.
fn alarm(registration: &Registration) -> Arc<AtomicU32> {
    let word = Arc::new(AtomicU32::new(0));
    let raised = word.clone();
    registration.add_alarm(move |end| raised.store(end.status(), Ordering::Release));
    word
}

fn service(mode: DoorbellMode, max_batch: u32) -> Service {
    match mode {
        DoorbellMode::Staged => Service::Staged { max_batch, store_bytes: 16 },
        _ => Service::Record { max_batch },
    }
}

/// A queue that is registered with a proxy, and the stores of its device.
struct Bench {
    registration: Registration,
    alarm: Arc<AtomicU32>,
    memory: Box<Memory>,
}

impl Bench {
    fn new(proxy: &DoorbellProxy, mode: DoorbellMode, max_batch: u32, counter: u32) -> Self {
        Self::try_new(proxy, mode, max_batch, counter).unwrap()
    }

    fn try_new(proxy: &DoorbellProxy, mode: DoorbellMode, max_batch: u32, counter: u32) -> Result<Self> {
        let words = || std::array::from_fn(|_| AtomicU32::new(0xeeee_eeee));
        let memory = Box::new(Memory { ring: Ring(words()), doorbell: AtomicU32::new(counter & 0xffff) });
        let queue = AdapterRing {
            buffer: NonNull::from(&memory.ring).cast(),
            doorbell: NonNull::new(memory.doorbell.as_ptr()),
            entry_size: ENTRY as u32,
            num_entries: DEPTH,
            service: service(mode, max_batch),
        };
        // SAFETY: the memory is dropped after `registration`, which is declared first, and only the proxy stores to it.
        let registration = unsafe { proxy.register(queue, counter) }?;
        let alarm = alarm(&registration);
        Ok(Self { registration, alarm, memory })
    }

    /// Writes an entry like device code. Its first word holds the phase and the counter's low bits.
    fn write(&self, counter: u32) {
        let phase = u32::from(counter & DEPTH != 0) << 24;
        let at = (counter & (DEPTH - 1)) as usize * ENTRY;
        // SAFETY: the address is inside the ring that the device writes. Its words are accessed only as atomics, or
        // under the rules of the hand-off.
        let word = unsafe { AtomicU32::from_ptr(self.registration.buffer().as_ptr().add(at).cast()) };
        word.store(phase | counter & 0xffff, Ordering::Relaxed);
    }

    fn post(&self, from: u32, to: u32) {
        (0..to.wrapping_sub(from)).for_each(|index| self.write(from.wrapping_add(index)));
        self.record(to);
    }

    fn record(&self, counter: u32) {
        self.registration.record().store(counter, Ordering::Release);
    }

    fn doorbell(&self) -> u32 {
        self.memory.doorbell.load(Ordering::Acquire)
    }

    fn alarm(&self) -> u32 {
        self.alarm.load(Ordering::Acquire)
    }

    /// The first word of a slot as the adapter reads it.
    fn fetched(&self, counter: u32) -> u32 {
        self.memory.ring.0[(counter & (DEPTH - 1)) as usize * ENTRY / 4].load(Ordering::Acquire)
    }
}

#[test]
fn a_round_rings_once_for_posted_entries() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0);
    bench.post(0, 5);
    assert_eq!((proxy.round(), bench.doorbell()), (5, 5));
    assert_eq!(proxy.round(), 0);
}

#[test]
fn doorbells_have_16_bits_and_records_32() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0xffff_fffe);
    bench.post(0xffff_fffe, 3);
    proxy.round();
    assert_eq!((bench.doorbell(), bench.alarm()), (3, 0));
    let bench = Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0x1_fffe);
    bench.post(0x1_fffe, 0x2_0007);
    proxy.round();
    assert_eq!((bench.doorbell(), bench.alarm()), (7, 0));
}

#[test]
fn staged_entries_are_copied_across_the_end_of_the_ring() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Staged, DEPTH, 60);
    bench.post(60, 70);
    proxy.round();
    assert_eq!(bench.doorbell(), 70);
    let all: Vec<u32> = (60..70).map(|counter| bench.fetched(counter) & 0xffff).collect();
    assert_eq!(all, (60..70).collect::<Vec<_>>());
    assert_eq!(bench.fetched(10), 0xeeee_eeee, "an entry that was not posted was copied");
}

#[test]
fn staged_entries_are_copied_in_batches_with_a_doorbell_each() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Staged, 4, 0);
    bench.post(0, 10);
    let doorbells: Vec<u32> = (0..3)
        .map(|_| {
            proxy.round();
            let index = bench.doorbell();
            assert!(
                index == 10 || bench.fetched(index) == 0xeeee_eeee,
                "an entry was written past the doorbell"
            );
            index
        })
        .collect();
    assert_eq!(doorbells, [4, 8, 10]);
}

#[test]
fn a_record_of_a_whole_ring_is_rung_and_one_more_entry_is_refused() {
    for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
        let proxy = DoorbellProxy::without_thread();
        let (whole, more) = (Bench::new(&proxy, mode, DEPTH, 7), Bench::new(&proxy, mode, DEPTH, 7));
        whole.post(7, 7 + DEPTH);
        more.post(7, 8 + DEPTH);
        proxy.round();
        assert_eq!((whole.doorbell(), whole.alarm()), (7 + DEPTH, 0));
        assert_eq!((more.doorbell(), more.alarm()), (7, EFA_GDA_BAD_RECORD));
        let fault = RecordFault::PastRing { doorbell: 7, record: 8 + DEPTH, limit: DEPTH };
        assert_eq!(more.registration.ended(), Some(End::Fault(fault)));
    }
}

#[test]
fn in_record_mode_more_entries_than_the_batch_are_refused() {
    let proxy = DoorbellProxy::without_thread();
    let (whole, more) =
        (Bench::new(&proxy, DoorbellMode::Record, 5, 0), Bench::new(&proxy, DoorbellMode::Record, 5, 0));
    whole.post(0, 5);
    more.post(0, 6);
    proxy.round();
    assert_eq!((whole.doorbell(), whole.alarm()), (5, 0));
    assert_eq!((more.doorbell(), more.alarm()), (0, EFA_GDA_BAD_RECORD));
}

#[test]
fn a_record_that_moves_backwards_is_refused_for_good() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0);
    bench.post(0, 5);
    proxy.round();
    bench.record(4);
    proxy.round();
    assert_eq!((bench.doorbell(), bench.alarm()), (5, EFA_GDA_BAD_RECORD));
    assert_eq!(
        bench.registration.ended(),
        Some(End::Fault(RecordFault::Backwards { doorbell: 5, record: 4 }))
    );
    bench.record(6);
    proxy.round();
    assert_eq!(bench.doorbell(), 5, "a refused queue was rung again");
}

#[test]
fn a_staged_entry_of_the_previous_lap_is_refused() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Staged, DEPTH, 0);
    bench.post(0, 3);
    bench.record(4);
    proxy.round();
    assert_eq!((bench.doorbell(), bench.alarm()), (0, EFA_GDA_BAD_RECORD));
    assert_eq!(bench.registration.ended(), Some(End::Fault(RecordFault::Unwritten { index: 3 })));
}

#[test]
fn faulty_queues_do_not_affect_the_others() {
    let proxy = DoorbellProxy::without_thread();
    let all: Vec<Bench> = (0..128).map(|_| Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0)).collect();
    for (index, bench) in all.iter().enumerate() {
        bench.post(0, if index % 50 == 7 { DEPTH + 1 } else { 1 });
    }
    proxy.round();
    for (index, bench) in all.iter().enumerate() {
        let expected = if index % 50 == 7 { (0, EFA_GDA_BAD_RECORD) } else { (1, 0) };
        assert_eq!((bench.doorbell(), bench.alarm()), expected, "queue {index}");
    }
}

#[test]
fn entries_before_a_detach_are_rung_and_later_entries_are_counted_as_unrung() {
    for mode in [DoorbellMode::Record, DoorbellMode::Staged] {
        let proxy = DoorbellProxy::without_thread();
        let bench = Bench::new(&proxy, mode, DEPTH, 0);
        bench.post(0, 40);
        assert_eq!(bench.registration.detach(), End::Detached);
        assert_eq!((bench.doorbell(), bench.registration.unrung()), (40, 0));
        bench.post(40, 43);
        proxy.round();
        assert_eq!(
            (bench.doorbell(), bench.registration.unrung(), bench.alarm()),
            (40, 3, EFA_GDA_PROXY_STOPPED)
        );
    }
}

#[test]
fn a_detach_rings_for_all_posted_entries_even_with_small_batches() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Staged, 1, 0);
    bench.post(0, DEPTH);
    bench.registration.detach();
    assert_eq!(bench.doorbell(), DEPTH);
}

#[test]
fn a_bad_record_found_at_a_detach_rings_nothing() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Record, DEPTH, 9);
    bench.record(8);
    let fault = End::Fault(RecordFault::Backwards { doorbell: 9, record: 8 });
    assert_eq!((bench.registration.detach(), bench.doorbell()), (fault, 9));
}

#[test]
fn stopping_a_proxy_rings_posted_entries_and_raises_every_alarm() {
    let proxy = DoorbellProxy::start().unwrap();
    let all: Vec<Bench> = (0..5).map(|_| Bench::new(&proxy, DoorbellMode::Staged, 2, 0)).collect();
    all.iter().for_each(|bench| bench.post(0, 11));
    proxy.stop().unwrap();
    for bench in &all {
        assert_eq!((bench.doorbell(), bench.alarm()), (11, EFA_GDA_PROXY_STOPPED));
        assert_eq!(bench.registration.ended().unwrap().error(), DeviceError::ProxyStopped);
    }
    let error = Bench::try_new(&proxy, DoorbellMode::Staged, 2, 0).err();
    assert_error!(error.unwrap(), ErrorKind::Unsupported, "the doorbell proxy was stopped");
    proxy.stop().unwrap();
}

#[test]
fn an_alarm_that_panics_keeps_no_other_alarm_from_being_raised() {
    let proxy = DoorbellProxy::without_thread();
    let all: Vec<Bench> = (0..3).map(|_| Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0)).collect();
    let later = all.iter().map(|bench| {
        bench.registration.add_alarm(|_| panic!("an alarm that panics on purpose"));
        alarm(&bench.registration)
    });
    let later: Vec<Arc<AtomicU32>> = later.collect();
    all[0].post(0, DEPTH + 1);
    all[1].post(0, 1);
    proxy.round();
    assert_eq!((all[0].alarm(), later[0].load(Ordering::Acquire)), (EFA_GDA_BAD_RECORD, EFA_GDA_BAD_RECORD));
    assert_eq!(all[1].doorbell(), 1, "the panic kept another queue from its doorbell");
    proxy.stop().unwrap();
    for (bench, later) in all.iter().zip(&later).skip(1) {
        let raised = (bench.alarm(), later.load(Ordering::Acquire));
        assert_eq!(raised, (EFA_GDA_PROXY_STOPPED, EFA_GDA_PROXY_STOPPED));
    }
}

#[test]
fn an_alarm_added_after_the_detach_is_raised_at_once() {
    let proxy = DoorbellProxy::without_thread();
    let bench = Bench::new(&proxy, DoorbellMode::Record, DEPTH, 0);
    bench.registration.detach();
    let late = alarm(&bench.registration);
    assert_eq!(late.load(Ordering::Acquire), EFA_GDA_PROXY_STOPPED);
}

#[test]
fn impossible_queue_geometries_are_refused() {
    let proxy = DoorbellProxy::without_thread();
    let memory = Ring(std::array::from_fn(|_| AtomicU32::new(0)));
    let doorbell = AtomicU32::new(0);
    let right = AdapterRing {
        buffer: NonNull::from(&memory).cast(),
        doorbell: NonNull::new(doorbell.as_ptr()),
        entry_size: 64,
        num_entries: DEPTH,
        service: Service::Staged { max_batch: DEPTH, store_bytes: 16 },
    };
    let record = AdapterRing { service: Service::Record { max_batch: DEPTH }, ..right };
    // SAFETY: the pointer stays in the array.
    let skewed = unsafe { right.buffer.add(16) };
    for queue in [
        AdapterRing { num_entries: 48, ..right },
        AdapterRing { num_entries: 0, ..right },
        AdapterRing { entry_size: 96, ..record },
        AdapterRing { buffer: skewed, ..right },
        AdapterRing { doorbell: None, ..record },
        AdapterRing { service: Service::Record { max_batch: 0 }, ..right },
        AdapterRing { service: Service::Staged { max_batch: DEPTH, store_bytes: 4 }, ..right },
    ] {
        // SAFETY: the registration is refused, so the proxy uses no memory of the queue.
        let error = unsafe { proxy.register(queue, 0) }.unwrap_err();
        assert_error!(error, ErrorKind::Unsupported, "cannot be registered");
    }
}
