//! Memory registered with relaxed ordering ([`Access::RELAXED_ORDERING`](super::Access::RELAXED_ORDERING)): a write may
//! reach it after the completion at the peer that requested it, and after later writes. The adapter's seed decides which
//! writes are late and when each is due; the order in which they land also depends on when rounds and reads come. A read
//! of the region first lands all of its late writes, as a read on PCIe pushes the writes before it. So does a completion
//! of the adapter itself, of a receive or of a read: it shows all bytes that arrived before it, in any region
//! (`ibv_reg_mr(3)`, IBV_ACCESS_RELAXED_ORDERING).
//!
//! | word | written by | read by | ordered by |
//! |---|---|---|---|
//! | `Late` | the engine; the thread that drops it | the same | the mutex. Its holder may access the memory, and acquires no other lock of the device core but that of the warnings |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::next_random;
use super::memory::{Memory, MemoryFault};

/// Most writes to a region that are late at once; a further late write first lands one of them, not always the oldest.
const MOST_LATE: usize = 64;

/// A region's memory whose writes may land late.
pub(crate) struct RelaxedMemory {
    memory: Arc<dyn Memory>,
    /// The longest time after which a late write is due; the engine lands it in a later round.
    longest: Duration,
    late: Mutex<Late>,
}

struct Late {
    random_state: u64,
    writes: Vec<LateWrite>,
}

/// Bytes that were acknowledged and are not in the memory yet.
struct LateWrite {
    address: u64,
    bytes: Vec<u8>,
    lands: Instant,
}

impl RelaxedMemory {
    pub(crate) fn new(memory: Arc<dyn Memory>, longest: Duration, seed: u64) -> Self {
        Self { memory, longest, late: Mutex::new(Late { random_state: seed, writes: Vec::new() }) }
    }

    fn late(&self) -> MutexGuard<'_, Late> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lands the late writes that are due `by` then, or all of them. Returns whether any late writes remain. If the
    /// memory panics, the write during which it panicked is lost; the others still land.
    pub(crate) fn land_due(&self, by: Option<Instant>) -> bool {
        let mut late = self.late();
        while let Some(index) = late.writes.iter().position(|write| by.is_none_or(|by| write.lands <= by)) {
            let write = late.writes.swap_remove(index);
            // The panic hook has printed a panic of the memory.
            let _ = catch_unwind(AssertUnwindSafe(|| self.land(write)));
        }
        !late.writes.is_empty()
    }

    /// Lands every write. Holds the lock meanwhile, so that no other read accesses the memory before they have landed.
    /// If the memory panics, this panics, and only the write during which it panicked is lost.
    fn land_all(&self) {
        let mut late = self.late();
        while !late.writes.is_empty() {
            self.land(late.writes.remove(0));
        }
    }

    /// Writes the bytes. An error is ignored: the bytes count as moved, so no completion reports it.
    fn land(&self, write: LateWrite) {
        let _ = self.memory.write(write.address, &write.bytes);
    }
}

impl Memory for RelaxedMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.land_all();
        self.memory.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let mut late = self.late();
        let number = next_random(&mut late.random_state);
        if number & 1 == 0 || self.longest.is_zero() {
            return self.memory.write(address, from);
        }
        // The whole range must be reachable now, because the bytes count as moved now.
        let mut bytes = vec![0; from.len()];
        self.memory.read(address, &mut bytes)?;
        bytes.copy_from_slice(from);
        if late.writes.len() >= MOST_LATE {
            self.land(late.writes.remove(0));
        }
        let share = (number >> 32) as f64 / f64::from(u32::MAX);
        let lands = Instant::now() + self.longest.mul_f64(share);
        late.writes.push(LateWrite { address, bytes, lands });
        Ok(())
    }
}

impl Drop for RelaxedMemory {
    /// Deregistration and the drop of the adapter drop the region before they return, so that the memory still exists
    /// (`HostMemory::new`). A panic does not reach the caller; its message is on stderr.
    fn drop(&mut self) {
        self.land_due(None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    /// Memory that counts writes, and panics during the next one after `panics` was set.
    #[derive(Default)]
    struct Fragile {
        writes: AtomicU64,
        panics: AtomicBool,
    }

    impl Memory for Fragile {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
            assert!(!self.panics.swap(false, Ordering::AcqRel), "an injected panic");
            self.writes.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
    }

    /// Memory of [`END`] bytes.
    struct Short;

    const END: u64 = 2 << 12;

    impl Memory for Short {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
            self.write(address, into)
        }

        fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
            let length = from.len() as u64;
            if address + length > END { Err(MemoryFault { address, length }) } else { Ok(()) }
        }
    }

    #[test]
    fn a_write_past_the_end_of_the_memory_fails_also_if_it_would_be_late() {
        let relaxed = RelaxedMemory::new(Arc::new(Short), Duration::from_secs(3600), 1);
        let fail = |address| (0..16).filter(|_| relaxed.write(address, &[1; 16]).is_err()).count();
        assert_eq!([fail(END - 16), fail(END - 8)], [0, 16]);
    }

    /// Makes 16 writes of which some are late, lands them while one panics, and returns how many have landed.
    fn writes_that_land(land: impl FnOnce(RelaxedMemory)) -> u64 {
        let memory = Arc::new(Fragile::default());
        let relaxed = RelaxedMemory::new(memory.clone(), Duration::from_secs(3600), 1);
        (0..16).for_each(|_| relaxed.write(0, &[1]).unwrap());
        memory.panics.store(true, Ordering::Release);
        land(relaxed);
        memory.writes.load(Ordering::Acquire)
    }

    #[test]
    fn a_panic_while_late_writes_land_for_a_read_loses_one_of_them() {
        let landed = writes_that_land(|relaxed| {
            let read = || relaxed.read(0, &mut [0]);
            catch_unwind(AssertUnwindSafe(read)).unwrap_err();
            read().unwrap();
        });
        assert_eq!(landed, 15);
    }

    #[test]
    fn a_panic_while_late_writes_land_for_a_deregistration_loses_one_of_them() {
        assert_eq!(writes_that_land(drop), 15);
    }

    #[test]
    fn a_panic_while_late_writes_that_are_due_land_loses_one_of_them() {
        let landed = writes_that_land(|relaxed| {
            relaxed.late().writes.iter_mut().for_each(|write| write.lands = Instant::now());
            assert!(!relaxed.land_due(Some(Instant::now())), "late writes remain");
        });
        assert_eq!(landed, 15);
    }
}
