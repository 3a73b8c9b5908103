//! The table of descriptors that are devices. The connections themselves are in `connection`.
//!
//! Every `close`, `ioctl` and `mmap` of the program looks its descriptor up here, so a lookup takes no lock.
//!
//! | word of a slot | written by | read by | ordered by |
//! |---|---|---|---|
//! | `socket` | [`insert`] after the device is open, [`remove`] | every lookup | release in `insert`, acquire in lookups; `remove` swaps, so one caller alone closes the socket |
//! | `owner` | `insert`, before `socket` | [`Entry::lock`] | `socket` |
//! | `exchange` | a thread with a request outstanding | other threads with the same device | the lock |
//!
//! A slot has one number, the descriptor, so the table holds at most `DESCRIPTORS` devices.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use softefa_abi::Errno;

/// Descriptors from this number on cannot be devices.
const DESCRIPTORS: usize = 4096;

/// The connection of one device.
struct Slot {
    /// 0 if the descriptor is not a device, otherwise the socket plus one.
    socket: AtomicI32,
    /// The process that opened the device.
    owner: AtomicU32,
    /// Held from a request until its reply.
    exchange: Mutex<()>,
}

static SLOTS: [Slot; DESCRIPTORS] =
    [const { Slot { socket: AtomicI32::new(0), owner: AtomicU32::new(0), exchange: Mutex::new(()) } };
        DESCRIPTORS];

/// An open device.
pub(crate) struct Entry {
    slot: &'static Slot,
}

impl Entry {
    /// Locks the connection for one request and its reply, and returns its socket.
    ///
    /// # Errors
    /// [`Errno::EIO`] in a child of the process that opened the device: the broker would access the memory of the
    /// parent. [`Errno::EBADF`] if the device was closed meanwhile.
    pub(crate) fn lock(&self) -> Result<(i32, MutexGuard<'static, ()>), Errno> {
        if self.slot.owner.load(Ordering::Relaxed) != std::process::id() {
            return Err(Errno::EIO);
        }
        let lock = self.slot.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        match self.slot.socket.load(Ordering::Acquire) {
            0 => Err(Errno::EBADF),
            socket => Ok((socket - 1, lock)),
        }
    }
}

fn slot(descriptor: i32) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(descriptor).ok()?)
}

/// The device with this descriptor, if there is one.
pub(crate) fn find(descriptor: i32) -> Option<Entry> {
    let slot = slot(descriptor)?;
    (slot.socket.load(Ordering::Acquire) != 0).then_some(Entry { slot })
}

/// Makes `descriptor` the device of the connection `socket`.
///
/// # Errors
/// [`Errno::EMFILE`] if the descriptor is too large for the table. The socket is closed.
pub(crate) fn insert(descriptor: i32, socket: i32) -> Result<(), Errno> {
    let Some(slot) = slot(descriptor) else {
        super::real::close(socket);
        return Err(Errno::EMFILE);
    };
    slot.owner.store(std::process::id(), Ordering::Relaxed);
    slot.socket.store(socket + 1, Ordering::Release);
    Ok(())
}

/// Removes a descriptor that is about to be closed. If it was a device, returns its socket, which the caller must close.
pub(crate) fn remove(descriptor: i32) -> Option<i32> {
    match slot(descriptor)?.socket.swap(0, Ordering::AcqRel) {
        0 => None,
        socket => Some(socket - 1),
    }
}
