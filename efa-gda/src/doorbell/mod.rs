//! Who rings the doorbell of a queue that kernels post to: the device, or a host thread from a
//! record that the device leaves.
//!
//! Three rungs, one kernel: the queue struct says where the device writes.
//!
//! | rung | entries go to | the device's doorbell is | the host |
//! |---|---|---|---|
//! | [`DoorbellMode::Direct`] | the send queue | the adapter's | does nothing |
//! | [`DoorbellMode::Record`] | the send queue | a record in host memory | rings |
//! | [`DoorbellMode::Staged`] | a ring in host memory | a record in host memory | copies entries, rings |
//!
//! A [`DoorbellProxy`] is that host thread; one serves many queues. This module knows rings, records and
//! doorbells, and neither libfabric nor CUDA; [`crate::queue`] attaches queues to it.
//!
//! # The hand-off
//!
//! Words, each with one writer (32-bit counters, compared modulo 2^32):
//!
//! - *entries*: the device writes slots `[rung, posted)` of the ring that its struct names. Under
//!   `staged` that is the staging ring; only the proxy writes the send queue then.
//! - *record*: the device stores `posted`, the whole producer counter, after its fence.
//! - *rung*: the proxy's own; the last value that it put into the doorbell.
//! - *doorbell*: only the proxy stores it, always `rung`, 16 bits of it.
//! - *alarm*: the word at which a queue's waits look (`efa_gda_queue::abort`). The proxy stores a
//!   status there when it will not ring any more; nothing clears it.
//!
//! **Entries before the record.** The device stores entries, synchronises its group, executes
//! `fence.acq_rel.sys` and stores the record (`sq.h`, steps 1 to 4; the fence is cumulative, so it
//! covers every lane, every earlier holder of the turn, and the record before). The proxy loads the
//! record with acquire. Fence, store and acquire load synchronise at system scope, so everything
//! before the fence happens before everything after the load: a proxy that sees `posted` sees all
//! entries below it, and rings for no more than what it saw. Records reach it in their order, for
//! they are stores of one turn after another to one word.
//!
//! **The record before the doorbell.** Under `record` the proxy only stores the doorbell, with
//! release. The entries went to the adapter by the GPU's own writes, on another path than the
//! doorbell; that they are there first rests on the fence alone, which completes when what was stored
//! before it is performed for the whole system, a peer's BAR included. Under `staged` entries and
//! doorbell are stores of one CPU to one device: entries go by write-combining stores, a store fence
//! flushes these, then comes the doorbell. So `staged` is also the rung for a machine on which the
//! first argument should turn out not to hold.
//!
//! **The batch.** The adapter takes at most `max_batch` entries past the last doorbell that it has.
//! - `staged`: the proxy copies at most that many, rings, and executes a store fence before it copies
//!   on; one CPU's stores to one device stay in order. The device writes ordinary memory, and its
//!   struct names no batch.
//! - `record`: the device writes into the adapter, and its fence proves only that the *host* has the
//!   record. A completion proves more: its request was covered by a doorbell, so where `n` requests
//!   completed, in whatever order, the adapter has a doorbell of at least `n`. Device code that leaves
//!   records (`EFA_GDA_SQ_RECORD`) therefore has at most `min(num_entries, max_batch)` requests in
//!   flight (`sq.h`, "A doorbell record"), and writes nothing past `completed + max_batch`, which is
//!   at most the adapter's doorbell plus `max_batch`. A small batch costs rate here, not under `staged`.
//!
//! **Slots again.** The device writes a slot again when fewer than `num_entries` requests are in
//! flight. A request completes after the adapter fetched its entry, hence after its doorbell, hence
//! after the proxy copied the staged entry.
//!
//! **What is refused.** `posted - rung` is at most the ring, and under `record` at most `max_batch`, for
//! at least what was not rung is in flight. A record outside of that ran backwards or past the ring; a staged entry whose phase bit is
//! the last lap's was never written. The proxy then stores no doorbell, lets go of the queue for
//! good, and raises the alarm: whoever waits ends with [`DeviceError::BadRecord`].
//!
//! **The end.** All of the proxy's work on queues happens under one lock. Detaching a queue takes
//! it, serves the queue a last time, and removes it. What the device posted before that (the record's
//! store happens before the detaching call) is visible to the last visit, so it is rung; what it
//! posts later meets an alarm. After the call nothing of the proxy refers to the queue's memory.
//! Stopping does the same for all queues, and raises their alarms: [`DeviceError::ProxyStopped`].
//!
//! [`DeviceError::BadRecord`]: crate::status::DeviceError::BadRecord
//! [`DeviceError::ProxyStopped`]: crate::status::DeviceError::ProxyStopped

mod handoff;
mod memory;
mod mode;
#[cfg(test)]
mod model;
mod port;
mod proxy;
mod proxy_queues;
mod registration;
mod store;

pub use handoff::Fault;
pub use mode::{DoorbellChoice, DoorbellMode, ParseDoorbellModeError};
pub use proxy::{DoorbellProxy, ProxyError, ProxyOptions, StopError};
pub use proxy_queues::Counts;
pub use registration::{Alarm, End, RegisterError, Registration, SendQueue};
