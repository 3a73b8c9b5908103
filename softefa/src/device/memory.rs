//! Access of the engine to registered memory: through pointers of this process, or through a frontend's
//! [`Memory`] (another process, a guest, a GPU). This file has every raw access to registered memory.

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// A client's memory, with the addresses that its work-queue entries use.
///
/// The engine, control calls, and [`super::CompletionCounter::set`] and `add` call [`Self::read`] and [`Self::write`],
/// only for ranges inside a registered region, a completion queue or a counter's mirror. Except in `set` and `add`,
/// none calls them after the call that deregisters the region, destroys the queue or detaches the counter has returned,
/// nor after the drop of the adapter has returned. The engine holds the network's lock meanwhile: every adapter of the
/// network, and every control call, waits for an access. So an implementation must not call an adapter, nor keep a
/// reference to one: a frontend stores its warnings through a [`super::WarningLog`]. Client threads may write the same
/// bytes at the same time, as with DMA. An implementation must not fail because of that; the bytes that it then moves
/// are unspecified.
pub trait Memory: Send + Sync {
    /// Reads the bytes at `address` into `into`.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory cannot be reached. The request then fails with the status of a bad key. The
    /// error of a late write, a completion or a counter's mirror is ignored.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault>;

    /// Writes `from` to `address`. The written bytes must be visible to the client before those of any later write, of
    /// this or another `Memory`, and before any later release store of the engine.
    ///
    /// # Errors
    /// As [`Memory::read`].
    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault>;

    /// The `length` bytes at `address` as memory of this process, if they are. An adapter calls this once, when it
    /// registers a region, and the engine then copies the region's bytes directly.
    fn host(&self, address: u64, length: u64) -> Option<HostRange> {
        let _ = (address, length);
        None
    }
}

/// Memory that is registered and cannot be reached, because it was unmapped or its process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory at {address:#x} ({length} bytes) is registered and cannot be reached")]
pub struct MemoryFault {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Bytes of this process that the engine may copy from and to. Only [`HostMemory`]'s unsafe constructor
/// creates one, so that safe code cannot make the engine access arbitrary memory.
#[derive(Clone, Copy, Debug)]
pub struct HostRange {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a HostRange is an address and a length. The caller of HostMemory::new guarantees that every thread
// may access the bytes.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

/// Memory of this process. An address is the value of a pointer.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory(HostRange);

impl HostMemory {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must stay mapped and readable, and writable if a region allows writing, as long as this value or a
    /// copy of it is used. A region uses it until [`super::Adapter::deregister_memory`] or the drop of the adapter has
    /// returned; a completion queue, until it is destroyed; a counter's mirror, until [`super::CompletionCounter`] is
    /// not attached any more, and in calls of its `set` and `add`; other code, in calls of its methods. While requests
    /// that access the bytes are in flight, no Rust reference to them may exist except to atomics (as with DMA).
    pub const unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self(HostRange { start, length })
    }
}

impl Memory for HostMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let length = into.len() as u64;
        self.host(address, length).ok_or(MemoryFault { address, length })?.read(into);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let length = from.len() as u64;
        self.host(address, length).ok_or(MemoryFault { address, length })?.write(from);
        Ok(())
    }

    fn host(&self, address: u64, length: u64) -> Option<HostRange> {
        let offset = address.checked_sub(self.0.start.as_ptr() as u64)?;
        self.0.part(offset, length)
    }
}

impl HostRange {
    /// The `length` bytes from `offset` on, if they are inside.
    pub(crate) fn part(self, offset: u64, length: u64) -> Option<Self> {
        if offset.checked_add(length)? > self.length as u64 {
            return None;
        }
        // SAFETY: offset is at most self.length, so the result is inside, or one past the end of, the bytes
        // that the caller of HostMemory::new provided.
        let start = unsafe { self.start.add(offset as usize) };
        Some(Self { start, length: length as usize })
    }

    pub(crate) fn length(self) -> u64 {
        self.length as u64
    }

    /// Copies the range to `into`.
    ///
    /// # Panics
    /// If `into` has another length.
    pub(crate) fn read(self, into: &mut [u8]) {
        assert_eq!(self.length, into.len(), "a copy from registered memory: the lengths differ");
        // SAFETY: both sides have `length` bytes. The caller of HostMemory::new guarantees the source until
        // deregistration, or the drop of the adapter, has returned. The engine copies under the network's lock, which
        // excludes the removal of the region. Any other caller guarantees the source itself. The destination is a
        // slice.
        unsafe { copy(self.start.as_ptr(), into.as_mut_ptr(), self.length) }
    }

    /// Copies `from` to the range.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn write(self, from: &[u8]) {
        assert_eq!(self.length, from.len(), "a copy to registered memory: the lengths differ");
        // SAFETY: as in `read`, with source and destination exchanged.
        unsafe { copy(from.as_ptr(), self.start.as_ptr(), self.length) }
    }

    /// Copies `from` to `self`. They may overlap.
    ///
    /// # Panics
    /// If the ranges have different lengths.
    pub(crate) fn copy_from(self, from: Self) {
        assert_eq!(self.length, from.length, "a copy between registered memory: the lengths differ");
        // SAFETY: the callers of HostMemory::new guarantee both ranges, under the lock as in `read`. `copy`
        // accepts overlapping ranges.
        unsafe { copy(from.start.as_ptr(), self.start.as_ptr(), self.length) }
    }
}

/// Copies by `memmove` of the C library. A Rust copy would be undefined behaviour here, because other threads
/// may access the bytes at the same time, as with DMA.
///
/// # Safety
/// `from` must be readable and `to` writable for `length` bytes.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller guarantees what memmove requires.
    unsafe {
        libc::memmove(to.cast(), from.cast(), length);
    }
    // `Memory::write` promises this order, and on AArch64 a later plain or relaxed store could pass those of memmove.
    fence(Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bytes: &mut [u8]) -> HostRange {
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        HostRange { start, length: bytes.len() }
    }

    #[test]
    #[should_panic(expected = "the lengths differ")]
    fn a_read_of_more_bytes_than_the_range_has_fails() {
        range(&mut [1; 4]).read(&mut [0; 5]);
    }

    #[test]
    #[should_panic(expected = "the lengths differ")]
    fn a_write_of_more_bytes_than_the_range_has_fails() {
        range(&mut [1; 4]).write(&[0; 5]);
    }

    #[test]
    #[should_panic(expected = "the lengths differ")]
    fn a_copy_from_a_shorter_range_fails() {
        range(&mut [1; 4]).copy_from(range(&mut [1; 3]));
    }
}
