//! Counts of requests, bytes and packets by operation and direction, as the EFA driver has them.

use std::sync::atomic::{AtomicU64, Ordering};

use efa_gda_wire::{Operation, OperationCode};

/// Requests that succeeded, and what they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Requests.
    pub requests: u64,
    /// Bytes, without headers.
    pub bytes: u64,
    /// Packets of at most [`super::Limits::max_msg_size`] bytes, at least one of each request.
    pub packets: u64,
}

/// What an adapter has moved since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages sent.
    pub sent: Moved,
    /// Messages received.
    pub received: Moved,
    /// RDMA reads by this adapter: the bytes that it received.
    pub read: Moved,
    /// RDMA reads of this adapter's memory: the bytes that it sent.
    pub read_by_peers: Moved,
    /// RDMA writes by this adapter.
    pub written: Moved,
    /// RDMA writes to this adapter's memory.
    pub written_by_peers: Moved,
    /// RDMA reads by this adapter that completed with an error.
    pub read_errors: u64,
    /// RDMA writes by this adapter that completed with an error.
    pub write_errors: u64,
}

/// [`Moved`], counted by the engine.
#[derive(Debug, Default)]
struct Counter {
    requests: AtomicU64,
    bytes: AtomicU64,
    packets: AtomicU64,
}

impl Counter {
    fn count(&self, bytes: u64, packet_bytes: u32) {
        bump(&self.requests, 1);
        bump(&self.bytes, bytes);
        bump(&self.packets, bytes.div_ceil(packet_bytes.max(1).into()).max(1));
    }

    fn moved(&self) -> Moved {
        let [requests, bytes, packets] =
            [&self.requests, &self.bytes, &self.packets].map(|count| count.load(Ordering::Relaxed));
        Moved { requests, bytes, packets }
    }
}

/// Adds to a count that the engine alone writes, without the cost of an atomic addition.
fn bump(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// The counts of [`Traffic`], which the engine writes and any thread reads, relaxed.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounts {
    sent: Counter,
    received: Counter,
    read: Counter,
    read_by_peers: Counter,
    written: Counter,
    written_by_peers: Counter,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
}

impl TrafficCounts {
    /// Counts a request of this adapter to `peer` that succeeded.
    pub(super) fn count(&self, peer: &Self, operation: &Operation, packet_bytes: u32) {
        let (own, of_peer) = match operation.code() {
            OperationCode::Send => (&self.sent, &peer.received),
            OperationCode::Read => (&self.read, &peer.read_by_peers),
            OperationCode::Write => (&self.written, &peer.written_by_peers),
        };
        own.count(operation.length(), packet_bytes);
        of_peer.count(operation.length(), packet_bytes);
    }

    /// Counts a request of this adapter that completed with an error.
    pub(super) fn count_error(&self, operation: &Operation) {
        match operation.code() {
            OperationCode::Send => {}
            OperationCode::Read => bump(&self.read_errors, 1),
            OperationCode::Write => bump(&self.write_errors, 1),
        }
    }

    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            sent: self.sent.moved(),
            received: self.received.moved(),
            read: self.read.moved(),
            read_by_peers: self.read_by_peers.moved(),
            written: self.written.moved(),
            written_by_peers: self.written_by_peers.moved(),
            read_errors: self.read_errors.load(Ordering::Relaxed),
            write_errors: self.write_errors.load(Ordering::Relaxed),
        }
    }
}
