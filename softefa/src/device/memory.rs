//! How the engine reaches a client's memory: pointers of this process, or whatever a face needs
//! (another process, a guest, a GPU). All raw access to registered memory is in this file.

use std::ptr::NonNull;

/// A client's memory, addressed as its entries address it.
///
/// The engine calls it only for ranges inside a registered region, from any adapter's thread, and
/// never after the region's deregistration returned. Client threads may write the same bytes at the
/// same time, as with DMA: an implementation must survive that, whatever bytes it then moves.
pub trait Memory: Send + Sync {
    /// Fills `into` with the bytes at `address`.
    ///
    /// # Errors
    /// [`MemoryFault`] where the memory is not there; the request then fails with the status that a
    /// bad key gives.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault>;

    /// Puts `from` at `address`. What was written is visible to the client before any store that
    /// the engine makes with release order afterwards.
    ///
    /// # Errors
    /// As [`Memory::read`].
    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault>;

    /// Where `length` bytes at `address` lie in this process, if they do: the engine then copies
    /// without a detour.
    fn host(&self, address: u64, length: u64) -> Option<HostRange> {
        let _ = (address, length);
        None
    }
}

/// Memory that is registered and cannot be reached: unmapped, its process gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory at {address:#x} ({length} bytes) is registered and cannot be reached")]
pub struct MemoryFault {
    /// Where.
    pub address: u64,
    /// How much.
    pub length: u64,
}

/// Bytes of this process that an engine may copy from and to. Only [`HostMemory`]'s unsafe
/// constructor makes one, so that safe code cannot point the engine at anything.
#[derive(Clone, Copy, Debug)]
pub struct HostRange {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a HostRange is an address and a length; what makes access to it sound on any thread is
// the promise given to HostMemory::new.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

/// Memory of this process; an address is a pointer's value.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory(HostRange);

impl HostMemory {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// From now until every region registered with this value (or a copy of it) is deregistered,
    /// the bytes must stay mapped, readable, and writable unless no region allows writing; and
    /// nobody may hold a Rust reference over them while requests that touch them are in flight
    /// (as with DMA), except to atomics.
    pub const unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self(HostRange { start, length })
    }
}

impl Memory for HostMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let length = into.len() as u64;
        self.host(address, length).ok_or(MemoryFault { address, length })?.read(0, into);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let length = from.len() as u64;
        self.host(address, length).ok_or(MemoryFault { address, length })?.write(0, from);
        Ok(())
    }

    fn host(&self, address: u64, length: u64) -> Option<HostRange> {
        let offset = address.checked_sub(self.0.start.as_ptr() as u64)?;
        self.0.part(offset, length)
    }
}

impl HostRange {
    /// `length` bytes from `offset` on.
    pub(crate) fn part(self, offset: u64, length: u64) -> Option<Self> {
        if offset.checked_add(length)? > self.length as u64 {
            return None;
        }
        // SAFETY: offset is at most self.length, so the result is inside, or one past, the bytes
        // that HostMemory::new's caller vouched for.
        let start = unsafe { self.start.add(offset as usize) };
        Some(Self { start, length: length as usize })
    }

    pub(crate) fn length(self) -> u64 {
        self.length as u64
    }

    /// Copies out of `self`, from `offset` on. Cut short at the end of the range.
    pub(crate) fn read(self, offset: usize, into: &mut [u8]) {
        let length = into.len().min(self.length.saturating_sub(offset));
        // SAFETY: both sides hold `length` bytes: the source by HostMemory::new's promise, which
        // lasts until deregistration, and an engine copies under the network's read lock while
        // deregistration takes it for writing; the destination is a slice.
        unsafe { copy(self.start.as_ptr().add(offset.min(self.length)), into.as_mut_ptr(), length) }
    }

    /// Copies into `self`, from `offset` on. Cut short at the end of the range.
    pub(crate) fn write(self, offset: usize, from: &[u8]) {
        let length = from.len().min(self.length.saturating_sub(offset));
        // SAFETY: as in `read`, with the sides exchanged.
        unsafe { copy(from.as_ptr(), self.start.as_ptr().add(offset.min(self.length)), length) }
    }

    /// Copies `from` into `self`; the two may overlap. The shorter length counts.
    pub(crate) fn copy_from(self, from: Self) {
        // SAFETY: both ranges are vouched for by HostMemory::new's callers, under the lock as in
        // `read`; `copy` takes overlapping ranges.
        unsafe { copy(from.start.as_ptr(), self.start.as_ptr(), from.length.min(self.length)) }
    }
}

/// `memmove` of the C library, not Rust's: other threads may access the bytes at the same time, as
/// with DMA, which a foreign function may meet and a Rust copy may not.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise is memmove's requirement.
    unsafe {
        libc::memmove(to.cast(), from.cast(), length);
    }
}
