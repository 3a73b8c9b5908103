//! Completion channels of an open device: sockets from which a program that sleeps receives the events of its
//! completion queues. The device core decides when an event is due.
//!
//! A channel is a pair of sockets. The broker keeps the sending end, and gives the other one to the program. Sending
//! never waits, and a message is one event, so the program's `read`, `poll` and `O_NONBLOCK` act as on the kernel's
//! channel. When the program creates a queue with the channel, its library sends the receiving end back
//! (`softefa_abi::protocol`), and the broker holds it while such a queue exists. So when a queue is destroyed, the broker
//! can take back the events that the program has not read, as the kernel does, and state how many it has read: libibverbs
//! waits until the program has acknowledged that many.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::stat::fstat;
use softefa_abi::Errno;

use super::Shared;

/// Descriptors of a channel: both ends.
pub(super) const CHANNEL_DESCRIPTORS: u64 = 2;
/// Bytes of an event: the value that the program gave to the queue (`struct ib_uverbs_comp_event_desc`).
const EVENT_BYTES: usize = 8;

fn errno(error: nix::Error) -> Errno {
    Errno::new(error as i32)
}

/// Device and inode of a socket, which no other socket has while it is open.
type Identity = (u64, u64);

fn identity(socket: &OwnedFd) -> Result<Identity, Errno> {
    let status = fstat(socket).map_err(errno)?;
    Ok((status.st_dev, status.st_ino))
}

/// A completion channel.
pub(super) struct Channel {
    shared: Arc<Shared>,
    sender: OwnedFd,
    identity: Identity,
    /// The receiving end while a queue uses it. The lock also orders sending, in the engine's thread, and taking back. No
    /// thread waits while it holds the lock.
    receiver: Mutex<Weak<OwnedFd>>,
}

impl Channel {
    fn receiver(&self) -> MutexGuard<'_, Weak<OwnedFd>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was room. The caller holds the lock.
    fn send(&self, event: &[u8]) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(self.sender.as_raw_fd(), event, flags) == Ok(event.len())
    }

    /// Whether the receiving end is closed everywhere.
    fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(self.sender.as_fd(), PollFlags::empty())];
        let polls = poll(&mut polled, PollTimeout::ZERO).is_ok();
        polls && polled[0].revents().is_some_and(|found| found.contains(PollFlags::POLLHUP))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.shared.channels.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The channels of an open device.
#[derive(Default)]
pub(super) struct Channels(Vec<Arc<Channel>>);

impl Channels {
    /// Creates a channel and returns its receiving end. Forgets the channels that the program has closed, which it does
    /// without an ioctl.
    pub(super) fn create(&mut self, shared: &Arc<Shared>) -> Result<OwnedFd, Errno> {
        self.0.retain(|channel| !channel.is_closed());
        if !shared.has_descriptors(CHANNEL_DESCRIPTORS) {
            return Err(Errno::EMFILE);
        }
        let (sender, receiver) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(errno)?;
        let identity = identity(&receiver)?;
        shared.channels.fetch_add(1, Ordering::AcqRel);
        let (shared, none) = (shared.clone(), Mutex::default());
        self.0.push(Arc::new(Channel { shared, sender, identity, receiver: none }));
        Ok(receiver)
    }

    /// The events of a queue, whose program gave it `handle` and the channel with this receiving end.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if that is no channel of the open device.
    pub(super) fn events(&self, receiver: Option<OwnedFd>, handle: u64) -> Result<QueueEvents, Errno> {
        let receiver = receiver.ok_or(Errno::EBADF)?;
        let identity = identity(&receiver)?;
        let channel = self.0.iter().find(|channel| channel.identity == identity).ok_or(Errno::EBADF)?.clone();
        let mut held = channel.receiver();
        let receiver = held.upgrade().unwrap_or_else(|| Arc::new(receiver));
        *held = Arc::downgrade(&receiver);
        drop(held);
        Ok(QueueEvents { channel, receiver, handle, sent: AtomicU32::new(0) })
    }
}

/// The events of a completion queue.
pub(super) struct QueueEvents {
    channel: Arc<Channel>,
    receiver: Arc<OwnedFd>,
    handle: u64,
    /// Changed under the channel's lock.
    sent: AtomicU32,
}

impl QueueEvents {
    /// Sends an event. Returns whether there was room.
    pub(super) fn send(&self) -> bool {
        let _order = self.channel.receiver();
        let is_sent = self.channel.send(&self.handle.to_ne_bytes());
        self.sent.fetch_add(is_sent.into(), Ordering::Relaxed);
        is_sent
    }

    /// Takes the unread events back, and returns how many the program has read. The queue must have been destroyed. Events
    /// of other queues are sent again, in their order.
    pub(super) fn end(&self) -> u32 {
        let _order = self.channel.receiver();
        let mut unread = Vec::new();
        let mut event = [0; EVENT_BYTES];
        while recv(self.receiver.as_raw_fd(), &mut event, MsgFlags::MSG_DONTWAIT) == Ok(EVENT_BYTES) {
            unread.push(event);
        }
        let (own, others): (Vec<_>, Vec<_>) =
            unread.into_iter().partition(|event| *event == self.handle.to_ne_bytes());
        // There is room: they were there before.
        others.iter().for_each(|event| _ = self.channel.send(event));
        self.sent.load(Ordering::Relaxed).saturating_sub(own.len() as u32)
    }
}
