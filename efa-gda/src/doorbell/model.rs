//! Runs the proxy's code (`handoff.rs`) on the model checker's words, in every order that the memory model
//! allows with at most three forced switches of threads. Each entry of a send queue is one word: the producer index
//! after the entry, or 0 in a slot without one. The model leaves out pointers,
//! barriers for devices (`port.rs`, `store.rs`), the check of phases in a staging ring, and indices that wrap at 2^32.

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::handoff::{Handoff, PHASE, Port, RecordFault, copy_new};

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

    /// Acts as an adapter that has fetched `fetched` entries. Asserts that no entry in `ring` is more than `batch` past
    /// the doorbell, then fetches the entries that the doorbell covers, asserts that each was written, and completes
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
    fn record(&self) -> u32 {
        self.words.record.load(Ordering::Acquire)
    }

    fn place(&self, first: u32, count: u32) -> Result<u32, RecordFault> {
        let slots = (first..first + count).map(|counter| (counter % DEPTH) as usize);
        for slot in slots.filter(|_| STAGED) {
            let entry = self.words.entries[slot].load(Ordering::Relaxed);
            self.words.queue[slot].store(entry, Ordering::Relaxed);
        }
        Ok(count)
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
    // In mode `record` one doorbell covers all entries before the record, as in `DoorbellProxy::register`.
    Handoff::new(Model { words: words.clone() }, 0, DEPTH, if STAGED { batch } else { DEPTH })
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
        assert_eq!(handoff.index(), posted);
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
        assert_eq!((queue.index(), words.doorbell.load(Ordering::Relaxed)), (2, 2));
        proxy.join().unwrap();
    });
}

/// A completion queue, its copy, and the device's consumer index. An entry is a head, and a body whose value is the
/// completion's number plus 1.
#[derive(Default)]
struct Completions {
    queue: [[AtomicU64; 2]; DEPTH as usize],
    copy: [[AtomicU64; 2]; DEPTH as usize],
    consumed: AtomicU32,
    doorbell: AtomicU32,
}

impl Completions {
    fn head_of(index: u32) -> u64 {
        if index & DEPTH == 0 { PHASE } else { 0 }
    }

    /// Acts as an adapter, which has no more requests to complete than the device has free entries for.
    fn complete(&self, index: u32) -> bool {
        if index - self.consumed.load(Ordering::Acquire) >= DEPTH {
            return false;
        }
        let [head, body] = &self.queue[(index % DEPTH) as usize];
        body.store(u64::from(index) + 1, Ordering::Relaxed);
        head.store(Self::head_of(index), Ordering::Release);
        true
    }

    /// Acts as device code (`cq.h`): polls the copy once, and asserts that it reads the completion's own bytes.
    fn poll(&self, index: u32) -> u32 {
        let [head, body] = &self.copy[(index % DEPTH) as usize];
        if head.load(Ordering::Relaxed) != Self::head_of(index) {
            return index;
        }
        fence(Ordering::SeqCst);
        assert_eq!(body.load(Ordering::Relaxed), u64::from(index) + 1, "the body of another completion");
        fence(Ordering::SeqCst);
        self.consumed.store(index + 1, Ordering::Relaxed);
        index + 1
    }
}

impl Port for Arc<Completions> {
    fn record(&self) -> u32 {
        self.consumed.load(Ordering::Acquire)
    }

    fn place(&self, first: u32, count: u32) -> Result<u32, RecordFault> {
        let head = |index: u32| self.queue[(index % DEPTH) as usize][0].load(Ordering::Acquire);
        let copy = |index: u32, head| {
            let (from, to) = (&self.queue[(index % DEPTH) as usize], &self.copy[(index % DEPTH) as usize]);
            to[1].store(from[1].load(Ordering::Relaxed), Ordering::Relaxed);
            to[0].store(head, Ordering::Release);
        };
        Ok(copy_new(DEPTH, (first, count), head, copy))
    }

    fn ring(&self, consumed: u32) {
        self.doorbell.store(consumed, Ordering::Release);
    }
}

#[test]
fn a_device_reads_each_relayed_completion_whole_and_the_adapter_learns_that_it_did() {
    check(|| {
        let words = Arc::new(Completions::default());
        let spawn = |run: fn(&Completions) -> u32| {
            thread::spawn({
                let words = words.clone();
                move || run(&words)
            })
        };
        let adapter = spawn(|words| (0..3).take_while(|index| words.complete(*index)).count() as u32);
        let device = spawn(|words| (0..2).fold(0, |index, _| words.poll(index)));
        let mut relay = Handoff::relay(words.clone(), 0, DEPTH, 2 * DEPTH);
        relay.visit().unwrap();
        let (completed, read) = (adapter.join().unwrap(), device.join().unwrap());
        relay.visit().unwrap();
        let read = (read..completed).fold(read, |index, _| words.poll(index));
        relay.last_visit().unwrap();
        assert_eq!((read, words.doorbell.load(Ordering::Relaxed)), (completed, completed));
    });
}
