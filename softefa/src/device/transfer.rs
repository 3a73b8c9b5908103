//! Copies between views of registered memory.

use super::tables::View;

/// Bytes of the buffer for copies in which a side is not in this process. It fits a second-level cache.
const BOUNCE_BYTES: usize = 64 << 10;

/// The side of a copy whose memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    From,
    To,
}

/// Copies all of `from` to `to`, which must have the same length.
#[inline]
pub(crate) fn copy(to: View<'_>, from: View<'_>, scratch: &mut Vec<u8>) -> Result<(), Side> {
    if let (View::Host(to), View::Host(from)) = (to, from) {
        to.copy_from(from);
        return Ok(());
    }
    let length = from.length();
    scratch.resize(scratch.len().max(BOUNCE_BYTES), 0);
    for offset in (0..length).step_by(BOUNCE_BYTES) {
        let part = &mut scratch[..(length - offset).min(BOUNCE_BYTES as u64) as usize];
        read(from, offset, part)?;
        write(to, offset, part)?;
    }
    Ok(())
}

/// Copies views, whose lengths sum to `length`, one after the other to the start of `into`.
pub(crate) fn gather<'a>(
    views: impl Iterator<Item = View<'a>>,
    into: &mut Vec<u8>,
    length: usize,
) -> Result<(), Side> {
    into.resize(into.len().max(length), 0);
    let mut filled = 0;
    for view in views {
        let part = view.length() as usize;
        read(view, 0, &mut into[filled..filled + part])?;
        filled += part;
    }
    Ok(())
}

fn read(view: View<'_>, offset: u64, into: &mut [u8]) -> Result<(), Side> {
    match view {
        View::Host(range) => range.read(offset as usize, into),
        View::Indirect(memory, address, _) => {
            memory.read(address + offset, into).map_err(|_| Side::From)?;
        }
    }
    Ok(())
}

/// Copies `bytes` into a view, from `offset` on.
pub(crate) fn write(view: View<'_>, offset: u64, bytes: &[u8]) -> Result<(), Side> {
    match view {
        View::Host(range) => range.write(offset as usize, bytes),
        View::Indirect(memory, address, _) => {
            memory.write(address + offset, bytes).map_err(|_| Side::To)?;
        }
    }
    Ok(())
}

impl View<'_> {
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
}
