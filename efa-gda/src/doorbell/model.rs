//! The hand-off in every order that the memory model allows with at most three forced switches of threads: the proxy's
//! code (`handoff.rs`) on the model checker's words. Each entry is one word whose value is the number of the request
//! that it holds.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::handoff::{Handoff, Port, RecordFault};

const DEPTH: u32 = 2;

/// The words that device, proxy and adapter share.
struct Words {
    /// The ring that the device writes: the send queue, or the staging ring.
    entries: [AtomicU32; DEPTH as usize],
    /// The ring that the proxy copies to.
    queue: [AtomicU32; DEPTH as usize],
    record: AtomicU32,
    doorbell: AtomicU32,
    completed: AtomicU32,
    /// The most requests that the device keeps in flight.
    in_flight_limit: u32,
    /// The most entries that the adapter takes past the last doorbell that it received.
    batch: u32,
}

impl Words {
    fn new() -> Arc<Self> {
        Self::with(DEPTH, DEPTH)
    }

    fn with(in_flight_limit: u32, batch: u32) -> Arc<Self> {
        let words = || std::array::from_fn(|_| AtomicU32::new(0));
        let word = || AtomicU32::new(0);
        Arc::new(Self {
            entries: words(),
            queue: words(),
            record: word(),
            doorbell: word(),
            completed: word(),
            in_flight_limit,
            batch,
        })
    }

    /// The ring from which the adapter fetches.
    fn ring(&self, staged: bool) -> &[AtomicU32; DEPTH as usize] {
        if staged { &self.queue } else { &self.entries }
    }

    /// Acts as device code: if a slot is free, writes an entry, fences, stores the record. Returns whether it did.
    fn post(&self, counter: u32) -> bool {
        if counter + 1 - self.completed.load(Ordering::Acquire) > self.in_flight_limit {
            return false;
        }
        self.entries[(counter % DEPTH) as usize].store(counter + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.record.store(counter + 1, Ordering::Relaxed);
        true
    }

    /// Acts as an adapter that has fetched `fetched` entries. Asserts that the entries in `ring` are within the batch
    /// of the doorbell, then takes the entries that the doorbell covers, asserts that each was written, and completes
    /// it. Returns the new number of fetched entries.
    fn fetch(&self, ring: &[AtomicU32; DEPTH as usize], mut fetched: u32) -> u32 {
        let entries = ring.iter().map(|entry| entry.load(Ordering::Relaxed)).max().unwrap_or(0);
        fence(Ordering::Acquire);
        let doorbell = self.doorbell.load(Ordering::Acquire);
        assert!(entries <= doorbell + self.batch, "an entry past the batch of the last doorbell");
        assert!(doorbell >= fetched && doorbell - fetched <= DEPTH, "a stray doorbell");
        while fetched < doorbell {
            let entry = ring[(fetched % DEPTH) as usize].load(Ordering::Relaxed);
            assert_eq!(entry, fetched + 1, "an entry that was not written before its doorbell");
            fetched += 1;
            self.completed.store(fetched, Ordering::Release);
        }
        fetched
    }
}

/// The proxy's access to the words; with `STAGED` it copies entries.
struct Model<const STAGED: bool> {
    words: Arc<Words>,
}

impl<const STAGED: bool> Port for Model<STAGED> {
    const PLACES: bool = STAGED;

    fn record(&self) -> u32 {
        self.words.record.load(Ordering::Acquire)
    }

    fn place(&self, first: u32, count: u32) -> Result<(), RecordFault> {
        for slot in (first..first + count).map(|counter| (counter % DEPTH) as usize) {
            let entry = self.words.entries[slot].load(Ordering::Relaxed);
            self.words.queue[slot].store(entry, Ordering::Relaxed);
        }
        Ok(())
    }

    fn ring(&self, index: u32) {
        self.words.doorbell.store(index, Ordering::Release);
        if STAGED {
            // Stands for `order_stores`: entries placed later follow the doorbell.
            fence(Ordering::Release);
        }
    }
}

fn handoff<const STAGED: bool>(words: &Arc<Words>, batch: u32) -> Handoff<Model<STAGED>> {
    Handoff::new(Model { words: words.clone() }, 0, DEPTH, batch)
}

/// Explores all orders with at most three forced switches of threads.
fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Runs a device, a proxy and an adapter for a few steps each, without any wait for each other, then to the end.
fn every_entry_is_written_before_its_doorbell<const STAGED: bool>(in_flight_limit: u32, batch: u32) {
    check(move || {
        let words = Words::with(in_flight_limit, batch);
        let device = thread::spawn({
            let words = words.clone();
            move || (0..3).take_while(|counter| words.post(*counter)).count() as u32
        });
        let adapter = thread::spawn({
            let words = words.clone();
            move || (0..2).fold(0, |fetched, _| words.fetch(words.ring(STAGED), fetched))
        });
        let mut handoff = handoff::<STAGED>(&words, batch);
        for _ in 0..2 {
            handoff.visit().unwrap();
        }
        let (posted, fetched) = (device.join().unwrap(), adapter.join().unwrap());
        handoff.last_visit().unwrap();
        assert_eq!(handoff.doorbell_index(), posted);
        assert_eq!(
            words.fetch(words.ring(STAGED), fetched),
            posted,
            "the proxy rang for every entry that was posted"
        );
    });
}

#[test]
fn in_mode_record_every_entry_is_written_before_its_doorbell() {
    every_entry_is_written_before_its_doorbell::<false>(DEPTH, DEPTH);
}

#[test]
fn in_mode_record_no_entry_is_past_the_batch_if_in_flight_requests_are_bounded_by_it() {
    every_entry_is_written_before_its_doorbell::<false>(1, 1);
}

#[test]
#[should_panic(expected = "past the batch")]
fn in_mode_record_a_device_that_fills_the_ring_exceeds_a_smaller_batch() {
    every_entry_is_written_before_its_doorbell::<false>(DEPTH, 1);
}

#[test]
fn in_mode_staged_every_entry_is_written_before_its_doorbell() {
    every_entry_is_written_before_its_doorbell::<true>(DEPTH, DEPTH);
}

#[test]
fn in_mode_staged_no_entry_is_past_the_batch_although_the_device_fills_the_ring() {
    every_entry_is_written_before_its_doorbell::<true>(DEPTH, 1);
}

#[test]
fn entries_posted_before_a_detach_are_rung() {
    check(|| {
        let words = Words::new();
        // Stands for the proxy's lock with its queues.
        let queues = Arc::new(Mutex::new(Some(handoff::<true>(&words, 1))));
        let proxy = thread::spawn({
            let queues = queues.clone();
            move || {
                for _ in 0..2 {
                    if let Some(queue) = queues.lock().unwrap().as_mut() {
                        queue.visit().unwrap();
                    }
                }
            }
        });
        let device = thread::spawn({
            let words = words.clone();
            move || assert!((0..2).all(|counter| words.post(counter)))
        });
        device.join().unwrap();
        let mut queue = queues.lock().unwrap().take().unwrap();
        queue.last_visit().unwrap();
        assert_eq!((queue.doorbell_index(), words.doorbell.load(Ordering::Relaxed)), (2, 2));
        proxy.join().unwrap();
    });
}
