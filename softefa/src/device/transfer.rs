//! Copies from and to views of registered memory.

use super::memory::{HostRange, MemoryFault};
use super::tables::View;

/// The most bytes of one access to memory that only calls reach. They fit a second-level cache.
pub(crate) const BOUNCE_BYTES: u64 = 64 << 10;

impl<'a> View<'a> {
    /// The `length` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not inside: the caller compared the request's length with the view's.
    pub(crate) fn part(self, offset: u64, length: u64) -> Self {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length());
        assert!(inside, "{length} bytes at {offset} are outside a view of {} bytes", self.length());
        match self {
            Self::Host(range) => match range.part(offset, length) {
                Some(part) => Self::Host(part),
                None => unreachable!("compared above"),
            },
            Self::Indirect(memory, address, _) => Self::Indirect(memory, address + offset, length),
        }
    }

    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Host(range) => range.length(),
            Self::Indirect(_, _, length) => *length,
        }
    }

    /// The range, if it is memory of this process.
    pub(crate) fn host(&self) -> Option<HostRange> {
        match self {
            Self::Host(range) => Some(*range),
            Self::Indirect(..) => None,
        }
    }

    /// Copies its bytes to `into`, which must have its length.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), MemoryFault> {
        match self {
            Self::Host(range) => range.read(into),
            Self::Indirect(memory, address, _) => memory.read(*address, into)?,
        }
        Ok(())
    }

    /// Copies `bytes`, which must have its length, to it.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), MemoryFault> {
        match self {
            Self::Host(range) => range.write(bytes),
            Self::Indirect(memory, address, _) => memory.write(*address, bytes)?,
        }
        Ok(())
    }
}

/// Copies views to `into`, one after the other.
pub(crate) fn gather(views: &[Option<View<'_>>], into: &mut [u8]) -> Result<(), MemoryFault> {
    let mut rest = into;
    for view in views.iter().flatten() {
        let (part, after) = rest.split_at_mut(view.length() as usize);
        view.read(part)?;
        rest = after;
    }
    Ok(())
}

/// Copies `bytes` to views, one after the other.
pub(crate) fn scatter(views: &[Option<View<'_>>], bytes: &[u8]) -> Result<(), MemoryFault> {
    let mut rest = bytes;
    for view in views.iter().flatten() {
        let (part, after) = rest.split_at(view.length() as usize);
        view.write(part)?;
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::super::memory::{HostMemory, Memory};
    use super::*;

    #[test]
    fn a_part_outside_its_view_fails_for_both_kinds_of_memory() {
        let mut bytes = [0; 16];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the bytes live until the end of the test, and nothing copies them.
        let memory = unsafe { HostMemory::new(start, bytes.len()) };
        let address = start.as_ptr() as u64;
        for (offset, length) in [(8, 9), (17, 0), (u64::MAX, 2)] {
            for is_host in [true, false] {
                let part = || {
                    let view = match is_host {
                        true => View::Host(memory.host(address, 16).unwrap()),
                        false => View::Indirect(&memory, address, 16),
                    };
                    view.part(offset, length);
                };
                assert!(std::panic::catch_unwind(part).is_err(), "{length} bytes at {offset}");
            }
        }
    }
}
