//! Memory registered with relaxed ordering ([`Access::RELAXED_ORDERING`](super::Access::RELAXED_ORDERING)): a write may
//! reach it after the request's completion is visible, and after later writes. The seed decides which writes are late,
//! for how long, and in which order they land. A read of the region lands all of them first, as a read on PCIe pushes
//! the writes before it.
//!
//! | word | written by | read by | ordered by |
//! |---|---|---|---|
//! | `Late` | engines that write to the region; the engine of the region's adapter, which lands writes | the same | the mutex, which no holder keeps while it takes another lock |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::next_random;
use super::memory::{Memory, MemoryFault};

/// Most writes that are late at once; a further one lands the oldest.
const MOST_LATE: usize = 64;

/// A region's memory whose writes may land late.
pub(crate) struct RelaxedMemory {
    memory: Arc<dyn Memory>,
    /// The longest time between a completion and its bytes.
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

    /// Lands the writes whose time has come. Returns whether any remain.
    pub(crate) fn land_due(&self) -> bool {
        let mut late = self.late();
        if late.writes.is_empty() {
            return false;
        }
        let now = Instant::now();
        while let Some(index) = late.writes.iter().position(|write| write.lands <= now) {
            self.land(late.writes.swap_remove(index));
        }
        !late.writes.is_empty()
    }

    fn land_all(&self) {
        let writes = std::mem::take(&mut self.late().writes);
        writes.into_iter().for_each(|write| self.land(write));
    }

    /// Writes the bytes. The request has completed, so nobody can be told that the memory cannot be reached any more.
    fn land(&self, write: LateWrite) {
        let _ = self.memory.write(write.address, &write.bytes);
    }
}

impl Memory for RelaxedMemory {
    fn client(&self) -> u64 {
        self.memory.client()
    }

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
        // The memory must be reachable now, because the request completes now.
        self.memory.read(address, &mut vec![0; from.len().min(1)])?;
        if late.writes.len() >= MOST_LATE {
            self.land(late.writes.remove(0));
        }
        let share = (number >> 32) as f64 / f64::from(u32::MAX);
        let lands = Instant::now() + self.longest.mul_f64(share);
        late.writes.push(LateWrite { address, bytes: from.to_vec(), lands });
        Ok(())
    }
}

impl Drop for RelaxedMemory {
    /// Deregistration drops the region before it returns, while the client's memory is still there.
    fn drop(&mut self) {
        self.land_all();
    }
}
