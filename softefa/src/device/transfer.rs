//! Copies from and to views of registered memory.

use super::memory::MemoryFault;
use super::tables::View;

/// The most bytes of one access to memory that only calls reach. They fit a second-level cache.
pub(crate) const BOUNCE_BYTES: u64 = 64 << 10;

impl View {
    /// The `length` bytes from `offset` on, which must be inside.
    pub(crate) fn part(self, offset: u64, length: u64) -> Self {
        match self {
            Self::Host(range) => Self::Host(range.part(offset, length).unwrap_or(range)),
            Self::Indirect(memory, address, _) => Self::Indirect(memory, address + offset, length),
        }
    }

    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Host(range) => range.length(),
            Self::Indirect(_, _, length) => *length,
        }
    }

    /// Whether an access may block, so that the caller must not hold the network's lock.
    pub(crate) fn may_block(&self) -> bool {
        matches!(self, Self::Indirect(..))
    }

    /// Copies its bytes to `into`, which has its length.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), MemoryFault> {
        match self {
            Self::Host(range) => range.read(0, into),
            Self::Indirect(region, address, _) => region.memory.read(*address, into)?,
        }
        Ok(())
    }

    /// Copies `bytes`, which have its length, to it.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), MemoryFault> {
        match self {
            Self::Host(range) => range.write(0, bytes),
            Self::Indirect(region, address, _) => region.memory.write(*address, bytes)?,
        }
        Ok(())
    }
}

/// Copies views to `into`, one after the other: those that may block, or the others.
pub(crate) fn gather(views: &[Option<View>], into: &mut [u8], may_block: bool) -> Result<(), MemoryFault> {
    let mut filled = 0;
    for view in views.iter().flatten() {
        let end = filled + view.length() as usize;
        if view.may_block() == may_block {
            view.read(&mut into[filled..end])?;
        }
        filled = end;
    }
    Ok(())
}

/// Copies `bytes` to views, one after the other: to those that may block, or to the others.
pub(crate) fn scatter(views: &[Option<View>], bytes: &[u8], may_block: bool) -> Result<(), MemoryFault> {
    let mut rest = bytes;
    for view in views.iter().flatten() {
        let (part, after) = rest.split_at(view.length() as usize);
        if view.may_block() == may_block {
            view.write(part)?;
        }
        rest = after;
    }
    Ok(())
}
