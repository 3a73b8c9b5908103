//! Fault injection: tests that the software adapter finds violations and that the report names them. A
//! hidden option enables it, under `--soft` only.

use std::time::{Duration, Instant};

use efa_gda::executor::host::{self, EntrySpec};
use efa_gda::queue::{MappedQueue, device_peer, doorbell_index};
use efa_gda::wire::Peer;

use crate::model::Fault;

/// Breaks a rule on a queue with nothing in flight. The queue cannot be used afterwards.
pub(crate) fn inject(fault: Fault, queue: &MappedQueue, peer: Peer) {
    let raw = queue.as_ptr().as_ptr();
    // SAFETY: the struct lives as long as `queue`, and nothing posts to it during this call.
    let doorbell_index = doorbell_index(unsafe { (&raw const (*raw).turn.word).read_volatile() });
    let send = queue.exposure().sq;
    let (entries, flip) = match fault {
        Fault::Phase => (1, true),
        Fault::Batch => (send.max_batch.saturating_add(1).min(send.num_entries), false),
        Fault::Backwards => (0, false),
    };
    for counter in (0..entries).map(|index| doorbell_index.wrapping_add(index)) {
        let lap_is_odd = counter / send.num_entries % 2 == 1;
        let peer = device_peer(peer);
        let entry =
            host::encode_entry(&EntrySpec { peer, phase: lap_is_odd != flip, ..EntrySpec::default() });
        // SAFETY: the rings live as long as `queue`; the slot is masked by the ring's depth.
        unsafe { host::write_raw(raw, counter & (send.num_entries - 1), &entry) };
    }
    let value = if fault == Fault::Backwards {
        doorbell_index.wrapping_sub(1)
    } else {
        doorbell_index.wrapping_add(entries)
    };
    // SAFETY: the doorbell lives as long as `queue`.
    unsafe { host::ring_raw(raw, value & 0xffff) };
}

/// Waits until `done` returns true, but not longer than `limit`.
pub(crate) fn wait_until(done: impl Fn() -> bool, limit: Duration) {
    let deadline = Instant::now() + limit;
    while !done() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
