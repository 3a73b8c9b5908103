//! Which descriptors are devices. Looked up on every `close`, `ioctl` and `mmap` of the program, so
//! that it takes no lock for others.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use softefa_abi::Errno;

/// Descriptors below this can be devices.
const DESCRIPTORS: usize = 4096;

/// One device's connection.
struct Slot {
    /// 0 where the descriptor is none of ours, else one more than the socket.
    socket: AtomicI32,
    /// The process that opened it.
    owner: AtomicU32,
    /// Held for one question and its answer.
    turn: Mutex<()>,
}

static SLOTS: [Slot; DESCRIPTORS] =
    [const { Slot { socket: AtomicI32::new(0), owner: AtomicU32::new(0), turn: Mutex::new(()) } };
        DESCRIPTORS];

/// A device that is open.
pub(crate) struct Entry {
    slot: &'static Slot,
}

impl Entry {
    /// Its socket, for one question and its answer.
    ///
    /// # Errors
    /// [`Errno::EIO`] in a child of the process that opened it: the broker would look into the wrong
    /// memory. [`Errno::EBADF`] where it was closed meanwhile.
    pub(crate) fn turn(&self) -> Result<(i32, MutexGuard<'static, ()>), Errno> {
        if self.slot.owner.load(Ordering::Relaxed) != std::process::id() {
            return Err(Errno::EIO);
        }
        let turn = self.slot.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match self.slot.socket.load(Ordering::Acquire) {
            0 => Err(Errno::EBADF),
            socket => Ok((socket - 1, turn)),
        }
    }
}

fn slot(descriptor: i32) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(descriptor).ok()?)
}

/// The device that `descriptor` is, if it is one.
pub(crate) fn find(descriptor: i32) -> Option<Entry> {
    let slot = slot(descriptor)?;
    (slot.socket.load(Ordering::Acquire) != 0).then_some(Entry { slot })
}

/// From now on `descriptor` is the device at the other end of `socket`.
///
/// # Errors
/// [`Errno::EMFILE`] for a descriptor that is too large; the socket is closed then.
pub(crate) fn insert(descriptor: i32, socket: i32) -> Result<(), Errno> {
    let Some(slot) = slot(descriptor) else {
        super::real::close(socket);
        return Err(Errno::EMFILE);
    };
    slot.owner.store(std::process::id(), Ordering::Relaxed);
    slot.socket.store(socket + 1, Ordering::Release);
    Ok(())
}

/// `descriptor` is about to be closed: its socket, if it had one.
pub(crate) fn remove(descriptor: i32) -> Option<i32> {
    match slot(descriptor)?.socket.swap(0, Ordering::AcqRel) {
        0 => None,
        socket => Some(socket - 1),
    }
}
