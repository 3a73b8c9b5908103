//! The hand-off under every order that the memory model allows: the proxy's own code on a model
//! checker's words. Entries are words whose value says which request they hold.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::handoff::{Fault, Handoff, Port};

const DEPTH: u32 = 2;

/// What device, proxy and adapter share.
struct Words {
    /// What the device writes: the send queue, or the staging ring.
    entries: [AtomicU32; DEPTH as usize],
    /// What the proxy copies to.
    queue: [AtomicU32; DEPTH as usize],
    record: AtomicU32,
    doorbell: AtomicU32,
    completed: AtomicU32,
    /// Requests that the device has in flight at most.
    room: u32,
    /// Entries that the adapter takes past the last doorbell that it has.
    batch: u32,
}

impl Words {
    fn new() -> Arc<Self> {
        Self::with(DEPTH, DEPTH)
    }

    fn with(room: u32, batch: u32) -> Arc<Self> {
        let words = || std::array::from_fn(|_| AtomicU32::new(0));
        let word = || AtomicU32::new(0);
        Arc::new(Self {
            entries: words(),
            queue: words(),
            record: word(),
            doorbell: word(),
            completed: word(),
            room,
            batch,
        })
    }

    /// Where the adapter fetches.
    fn ring(&self, staged: bool) -> &[AtomicU32; DEPTH as usize] {
        if staged { &self.queue } else { &self.entries }
    }

    /// As device code: if there is room, writes an entry, fences, stores the record.
    fn post(&self, counter: u32) -> bool {
        if counter + 1 - self.completed.load(Ordering::Acquire) > self.room {
            return false;
        }
        self.entries[(counter % DEPTH) as usize].store(counter + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.record.store(counter + 1, Ordering::Relaxed);
        true
    }

    /// As an adapter that fetched `fetched` entries: what is in `ring` must be within the batch of the
    /// doorbell that it has then. Takes what the doorbell covers, which must be there, and completes.
    fn fetch(&self, ring: &[AtomicU32; DEPTH as usize], mut fetched: u32) -> u32 {
        let entries = ring.iter().map(|entry| entry.load(Ordering::Relaxed)).max().unwrap_or(0);
        fence(Ordering::Acquire);
        let rung = self.doorbell.load(Ordering::Acquire);
        assert!(entries <= rung + self.batch, "an entry past the batch of the last doorbell");
        assert!(rung >= fetched && rung - fetched <= DEPTH, "a stray doorbell");
        while fetched < rung {
            let entry = ring[(fetched % DEPTH) as usize].load(Ordering::Relaxed);
            assert_eq!(entry, fetched + 1, "an entry that was not there at its doorbell");
            fetched += 1;
            self.completed.store(fetched, Ordering::Release);
        }
        fetched
    }
}

/// The proxy's words; `STAGED`: it copies.
struct Model<const STAGED: bool> {
    words: Arc<Words>,
}

impl<const STAGED: bool> Port for Model<STAGED> {
    const PLACES: bool = STAGED;

    fn record(&self) -> u32 {
        self.words.record.load(Ordering::Acquire)
    }

    fn place(&self, first: u32, count: u32) -> Result<(), Fault> {
        for slot in (first..first + count).map(|counter| (counter % DEPTH) as usize) {
            let entry = self.words.entries[slot].load(Ordering::Relaxed);
            self.words.queue[slot].store(entry, Ordering::Relaxed);
        }
        Ok(())
    }

    fn ring(&self, counter: u32) {
        self.words.doorbell.store(counter, Ordering::Release);
        if STAGED {
            // As `order_stores`: entries placed later follow the doorbell.
            fence(Ordering::Release);
        }
    }
}

fn handoff<const STAGED: bool>(words: &Arc<Words>, batch: u32) -> Handoff<Model<STAGED>> {
    Handoff::new(Model { words: words.clone() }, 0, DEPTH, batch)
}

/// Bounds the number of forced switches: beyond it, orders are not explored.
fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A device, an adapter and the proxy between them take a few steps each, without waiting for
/// each other, and then what is left.
fn every_entry_is_there_at_its_doorbell<const STAGED: bool>(room: u32, batch: u32) {
    check(move || {
        let words = Words::with(room, batch);
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
        assert_eq!(handoff.rung(), posted);
        assert_eq!(words.fetch(words.ring(STAGED), fetched), posted, "everything posted was rung");
    });
}

#[test]
fn under_record_every_entry_is_there_at_its_doorbell() {
    every_entry_is_there_at_its_doorbell::<false>(DEPTH, DEPTH);
}

#[test]
fn under_record_no_entry_is_past_the_batch_where_requests_in_flight_are_bounded_by_it() {
    every_entry_is_there_at_its_doorbell::<false>(1, 1);
}

#[test]
#[should_panic(expected = "past the batch")]
fn under_record_a_device_that_fills_the_ring_is_past_a_smaller_batch() {
    every_entry_is_there_at_its_doorbell::<false>(DEPTH, 1);
}

#[test]
fn under_staged_every_entry_is_there_at_its_doorbell() {
    every_entry_is_there_at_its_doorbell::<true>(DEPTH, DEPTH);
}

#[test]
fn under_staged_no_entry_is_past_the_batch_though_the_device_fills_the_ring() {
    every_entry_is_there_at_its_doorbell::<true>(DEPTH, 1);
}

#[test]
fn what_was_posted_before_a_detach_is_rung() {
    check(|| {
        let words = Words::new();
        // As the proxy's lock, with its queues.
        let lanes = Arc::new(Mutex::new(Some(handoff::<true>(&words, 1))));
        let proxy = thread::spawn({
            let lanes = lanes.clone();
            move || {
                for _ in 0..2 {
                    if let Some(lane) = lanes.lock().unwrap().as_mut() {
                        lane.visit().unwrap();
                    }
                }
            }
        });
        let device = thread::spawn({
            let words = words.clone();
            move || assert!((0..2).all(|counter| words.post(counter)))
        });
        device.join().unwrap();
        let mut lane = lanes.lock().unwrap().take().unwrap();
        lane.last_visit().unwrap();
        assert_eq!((lane.rung(), words.doorbell.load(Ordering::Relaxed)), (2, 2));
        proxy.join().unwrap();
    });
}
