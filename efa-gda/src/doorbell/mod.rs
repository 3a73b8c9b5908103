//! Doorbells of queues that kernels post to: rung by the device, or by a host thread for the device.
//!
//! A program starts one [`DoorbellProxy`] ([`DoorbellProxy::start`]) and passes it to `GpuQueue::with_doorbell`, which
//! selects the mode. For a queue that the host executor drives, it passes the proxy
//! with a [`DoorbellMode`] to [`MappedQueue::set_doorbell`](crate::queue::MappedQueue::set_doorbell). The rest of this
//! module is for the implementation of queues.
//!
//! The same kernel runs in all three modes; the queue struct states where the device writes.
//!
//! | mode | the device writes entries to | the device stores its producer index to | the host |
//! |---|---|---|---|
//! | [`DoorbellMode::Direct`] | the send queue | the adapter's doorbell | does nothing |
//! | [`DoorbellMode::Record`] | the send queue | a doorbell record in host memory | rings |
//! | [`DoorbellMode::Staged`] | a staging ring in host memory | a doorbell record in host memory | copies entries, rings |
//!
//! A [`DoorbellProxy`] rings for many queues. "The proxy" below is the thread that holds its lock: its own thread, or a
//! caller of one of its methods or of a registration's. In every mode it can also relay completions to a device that
//! cannot map the completion queue ([`Service::Relay`]). This module knows rings, records and doorbells, and neither
//! libfabric nor CUDA; [`crate::queue`] registers queues with a proxy.
//!
//! # Protocol
//!
//! All indices are 32-bit counters that wrap; they are compared modulo 2^32. A *lap* is one pass over a ring; the phase
//! bit of entries flips with each lap, and begins as 0 in a send queue and as 1 in a completion queue. The *writer* of
//! a record is the group that owns the queue, or has the turn of a shared one (`turns.h`); it alone stores the record at
//! that time. In a *visit*
//! to a queue, the proxy loads the record once and rings at most once, for entries before that record, or it copies
//! completions. A *last visit* is all the visits that a detach or a stop makes to one queue.
//!
//! | word | written by | read by | ordered by |
//! |---|---|---|---|
//! | entries `[doorbell index, producer index)` of the ring that the queue struct names (`staged`: the staging ring) | the device; before it, `register` marks every slot of a staging ring as not written | the adapter (`record`), the proxy (`staged`); snapshots, if the ring is in ordinary memory | `record`: the device's system fence, see below; `staged`: that fence, and the proxy's acquire load of the record with the barrier after it; snapshots: nothing |
//! | entries of the send queue (`staged` only) | the proxy | the adapter | a store fence before the doorbell |
//! | doorbell record: all 32 bits of the device's producer index | the device; before it, `register` | the proxy, with acquire; [`Registration::unrung`] | the device's system fence before it |
//! | doorbell index: the producer index that the last doorbell carried | the proxy | the proxy; after the end, [`Registration::unrung`] | the proxy's lock; the copy in `Shared::end` |
//! | doorbell: the low 16 bits of the doorbell index | the proxy, with release | the adapter | see below |
//! | abort flag (`efa_gda_queue::abort`; the structs in host memory and in a GPU's memory have one each): a status once the proxy will not ring, or relay, again | the proxy, through an alarm ([`Registration::add_alarm`]), over 0 or 1; the host: 1 to abort waits, 0 to allow them again, and the status of an ended registration when a queue that is out of service leaves its GPU. The first status stays | every wait on the queue that has a bound | none needed: the word orders no other word |
//!
//! **Entries before the record.** The device stores entries, synchronises its group, executes `fence.acq_rel.sys` and
//! stores the record (`sq.h`, "RINGING"). The fence is cumulative: it orders before the record the entries of every
//! thread of the group, the entries of every group whose turn came before (T1 of `turns.h`), and every record stored
//! earlier. The proxy loads the
//! record with acquire, and executes `order_after_device_load` (`store.rs`) before it reads entries or rings. Fence,
//! store, acquire load and this barrier synchronise at system scope, so a proxy that reads producer index `p` can read
//! every entry below `p`. The proxy rings for no index past the record that it has loaded. The proxy reads values of
//! the record in the order in which writers stored them, because all of them store to one word.
//!
//! **The record before the doorbell.**
//! - `record`: the proxy stores the doorbell with release and writes no entries. The GPU's own stores carried the
//!   entries to the adapter, on another path than the doorbell. That the entries arrive first rests on the device's
//!   system fence alone: the fence completes when every earlier store is performed for the whole system, and a peer
//!   device's BAR is part of the system.
//! - `staged`: one thread at a time stores entries and doorbell to one device. The proxy writes entries with ordinary
//!   stores, which a write-combining mapping may merge, executes a store fence, then stores the doorbell. So a machine
//!   on which the argument for `record` fails can use `staged`.
//!
//! **The batch window.** The adapter takes at most `max_batch` entries past the last doorbell that it received.
//! - `staged`: a visit copies at most `max_batch` entries, and at most 256, rings, and executes a store fence, so that
//!   the entries of the next visit follow the doorbell. The device writes ordinary memory, which has no batch window:
//!   `max_batch` in its queue struct is `num_entries`.
//! - `record`: the device writes into the adapter. A fence after the record proves that the record is in host memory,
//!   but not that the proxy has rung. A completion proves it: a doorbell covered the completed request. If `n` requests
//!   of the queue have completed, in any order, the adapter received a doorbell of at least `n`. Device code in mode
//!   `record` therefore keeps at most `min(num_entries, max_batch)` requests in flight (`sq.h`, "DOORBELL RECORD"). So
//!   the device writes no entry past `completed + max_batch`, which is at most the last doorbell that the adapter
//!   received plus `max_batch`. A small `max_batch` limits the requests in flight in this mode, and only the entries of
//!   one visit in `staged`. A detach executes a store fence after its last doorbell, so that the entries that the host
//!   executor stores next, in mode `direct`, reach the adapter after that doorbell.
//!
//! **Reuse of slots.** The device writes entry `i + num_entries` over entry `i` only after it has counted at least
//! `i + 1` completions, of whichever requests (`free_slots.h`). At least one of them is for entry `i` or a later one.
//! Proxy and adapter take entries in ascending order, so entry `i` was copied, rung for and fetched before.
//!
//! **Bad records.** A valid record is ahead of the doorbell index by at most `num_entries`, and in mode `record` also
//! by at most `max_batch`, because the device's limit on requests in flight counts entries that wait for their
//! doorbell. A record outside that range ran backwards or past the limit. A staged entry with the phase bit of the
//! previous lap was never written. In each of these cases the proxy stores no doorbell in this visit, not even for
//! valid entries of the same batch; it rang for earlier batches in earlier visits. It ends the registration for good
//! and raises its alarms. A wait that reads the abort flag then ends with [`DeviceError::BadRecord`]. Such a wait
//! of a `Sender` also poisons the queue with that status, so later waits of other handles end with `EFA_GDA_POISONED`.
//!
//! **Detach and stop.** The proxy works on queues under one lock. [`Registration::detach`] takes the lock, visits the
//! queue until its record is rung for, removes it and raises its alarms. The number of visits is bounded, but enough
//! for every record whose store happens before the call. Entries that are posted later may never be rung for. On a GPU,
//! the alarm ends a wait for them that has a bound, with [`DeviceError::ProxyStopped`]. The abort flag of the host
//! ([`AbortFlag`](crate::queue::AbortFlag)) ignores the alarm of a detach, because the queue detaches itself and may
//! then be rung in another mode. After the call the proxy accesses neither the send queue, its doorbell, the record nor
//! the staging ring; a relay of the same queue's completions continues. [`DoorbellProxy::stop`] makes the last visits of
//! all queues, removes them, and raises their alarms with [`End::Stopped`], which the host's abort flag takes. If the
//! proxy's thread panics, the same happens without the last visits. A last visit that finds a bad record ends the
//! queue as any other visit does, and [`Registration::detach`] returns [`End::Fault`].
//!
//! # Relay
//!
//! [`Service::Relay`] copies each new entry of an adapter's completion queue to a ring in ordinary memory. The copy has
//! the depth, the entry size and the phases of the original, and entry `i` of one is entry `i` of the other. So device
//! code polls the copy as it polls a completion queue, and everything that a completion carries reaches it: receives,
//! errors, and their request ids.
//!
//! | word | written by | read by | ordered by |
//! |---|---|---|---|
//! | entries of the completion queue | the adapter: the body, then the 8 bytes that hold the phase | the proxy: those 8 bytes with acquire, then the body | `order_after_device_load` between the two |
//! | entries of the copy | the proxy: the body, then the 8 bytes that hold the phase, with release; before it, `register` marks every entry as not written | the device: those 8 bytes, then the body (`cq.h`, B1) | `order_stores` between the two |
//! | record: the consumer index, 16 bits of it | the device, after it read completions (`cq.h`, `cq.doorbell`); before it, `register` | the proxy, with acquire | `cq.h`, B2 |
//! | the adapter's completion doorbell, if it has one | the proxy: the consumer index, with release | the adapter | that release; the proxy loaded these entries before the store, because the device had already read their copies |
//!
//! **No overrun.** The proxy does not wait for free entries of the copy. It overwrites entry `i` with entry `i + depth`
//! only after the adapter did the same, and device code keeps the adapter from that: it counts a request, or a
//! posted receive, only after it read the completion in the copy. A proxy that lags delays these counts, so it does not
//! fall behind by more than the depth. Completions that no count bounds (of writes with immediate that use no posted
//! receive) can overrun the copy as they can overrun the completion queue (`cq.h`, NO OVERRUN). On a queue with
//! completion counters, device code counts requests whose completions it has not read. `GpuQueue` therefore relays no
//! such queue.
//!
//! # Waits
//!
//! A wait of a `Sender` has the bound of its handle (`post.h`), and a wait of `rq.h` or `signal.h` the bound
//! that its caller passes. The abort flag ends each of them early. The proxy waits for no device. `proxy.rs` states
//! the waits of host threads.
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

pub use handoff::RecordFault;
pub use mode::DoorbellMode;
pub use proxy::DoorbellProxy;
pub use proxy_queues::End;
pub use registration::{Registration, Ring, Service};
