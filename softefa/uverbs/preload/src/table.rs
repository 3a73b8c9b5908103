//! The table of descriptors that are devices. The connections themselves are in `connection`.
//!
//! Every `close`, `ioctl` and `mmap` of the program looks its descriptor up here, so a lookup takes no lock.
//!
//! | word of a slot | written by | read by | ordered by |
//! |---|---|---|---|
//! | `socket` | [`insert`] after the device is open, [`remove`] | every lookup | release in `insert`, acquire in lookups; `remove` exchanges, so one caller alone closes the socket |
//! | `file`, `owner` | `insert`, before `socket` | lookups | `socket` |
//! | `exchange` | a thread with a request outstanding | other threads with the same device | the lock |
//!
//! A descriptor is the index of its slot, so the table holds at most `DESCRIPTORS` devices.
//!
//! # Children
//! A child of the process has the table: a copy of it after `fork`, the table itself after `vfork`. Its descriptors are
//! its own in both cases. So a child writes no slot. What it closes is seen at the socket: a slot counts only where its
//! socket's number still is that socket, and its own number still is the file that stands in for the device, which also
//! holds if the kernel closed descriptors without this library (`close_range`, `fclose`).

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use softefa_abi::Errno;

use crate::real;

/// Descriptors from this number on cannot be devices.
const DESCRIPTORS: usize = 4096;

/// The connection of one device.
struct Slot {
    /// 0 if the descriptor is not a device, otherwise the socket plus one.
    socket: AtomicI32,
    /// The socket's number in its file system, which no other socket has.
    file: AtomicU64,
    /// The number of the process that opened the device.
    owner: AtomicU32,
    /// Held from a request until its reply.
    exchange: Mutex<()>,
}

impl Slot {
    const fn new() -> Self {
        let (socket, file, owner) = (AtomicI32::new(0), AtomicU64::new(0), AtomicU32::new(0));
        Self { socket, file, owner, exchange: Mutex::new(()) }
    }

    /// The socket, if the descriptor is a device in this process.
    fn socket(&self) -> Option<i32> {
        let socket = self.socket.load(Ordering::Acquire) - 1;
        (socket >= 0 && socket_file(socket) == Some(self.file.load(Ordering::Relaxed))).then_some(socket)
    }

    fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == std::process::id()
    }
}

/// The signal number that marks an open file as the stand-in of a device. Nothing sends the signal: the file is of a kind
/// that has no events. Another file that gets the descriptor's number later does not have it.
const MARK: i32 = 63;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

/// Marks the open file of a descriptor.
fn mark(descriptor: i32) -> bool {
    // SAFETY: the arguments are integers.
    unsafe { libc::fcntl(descriptor, F_SETSIG, MARK) == 0 }
}

/// Whether the descriptor is that of a device still. Preserves `errno`.
fn is_marked(descriptor: i32) -> bool {
    // SAFETY: the arguments are integers, and `__errno_location` returns the address of this thread's errno.
    unsafe {
        let before = *libc::__errno_location();
        let mark = libc::fcntl(descriptor, F_GETSIG);
        *libc::__errno_location() = before;
        mark == MARK
    }
}

static SLOTS: [Slot; DESCRIPTORS] = [const { Slot::new() }; DESCRIPTORS];

/// The number of a socket in its file system. `None`: the descriptor is no socket. Preserves `errno`.
fn socket_file(descriptor: i32) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the buffer has the structure's size, and `__errno_location` returns the address of this thread's errno.
    let result = unsafe {
        let before = *libc::__errno_location();
        let result = libc::fstat(descriptor, status.as_mut_ptr());
        *libc::__errno_location() = before;
        result
    };
    // SAFETY: if the call succeeded, it filled the structure.
    let status = (result == 0).then(|| unsafe { status.assume_init() })?;
    (status.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(status.st_ino)
}

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
        if !self.slot.is_own() {
            return Err(Errno::EIO);
        }
        let lock = self.slot.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.slot.socket().ok_or(Errno::EBADF)?, lock))
    }
}

fn slot(descriptor: i32) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(descriptor).ok()?)
}

/// The device with this descriptor, if there is one.
pub(crate) fn find(descriptor: i32) -> Option<Entry> {
    let slot = slot(descriptor)?;
    slot.socket()?;
    if is_marked(descriptor) {
        return Some(Entry { slot });
    }
    // The program closed the device without this library, and the number is another file's.
    remove(descriptor);
    None
}

/// Makes `descriptor` the device of the connection `socket`.
///
/// # Errors
/// [`Errno::EMFILE`] if the descriptor is too large for the table. The socket is closed.
pub(crate) fn insert(descriptor: i32, socket: i32) -> Result<(), Errno> {
    let (Some(slot), Some(file), true) = (slot(descriptor), socket_file(socket), mark(descriptor)) else {
        real::close(socket);
        return Err(Errno::EMFILE);
    };
    slot.file.store(file, Ordering::Relaxed);
    slot.owner.store(std::process::id(), Ordering::Relaxed);
    slot.socket.store(socket + 1, Ordering::Release);
    Ok(())
}

/// Closes the connection of a descriptor that is being closed, if it is a device.
pub(crate) fn remove(descriptor: i32) {
    let Some(slot) = slot(descriptor) else { return };
    let Some(socket) = slot.socket() else { return };
    let exchanged = (slot.is_own())
        .then(|| slot.socket.compare_exchange(socket + 1, 0, Ordering::AcqRel, Ordering::Acquire));
    if exchanged.is_none_or(|result| result.is_ok()) {
        if exchanged.is_some() {
            // Ends the connection also if a child still has the socket.
            // SAFETY: the arguments are integers.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        }
        real::close(socket);
    }
}
