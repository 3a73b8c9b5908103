//! Moving bytes between views of registered memory.

use super::tables::View;

/// Bytes of the detour between memories that are not both in this process: fits a second-level cache.
const DETOUR_BYTES: usize = 64 << 10;

/// The side of a copy whose memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    From,
    To,
}

/// Copies all of `from` to `to`, which is as long.
#[inline]
pub(crate) fn copy(to: View<'_>, from: View<'_>, scratch: &mut Vec<u8>) -> Result<(), Side> {
    if let (View::Host(to), View::Host(from)) = (to, from) {
        to.copy_from(from);
        return Ok(());
    }
    let length = from.length();
    scratch.resize(scratch.len().max(DETOUR_BYTES), 0);
    for offset in (0..length).step_by(DETOUR_BYTES) {
        let part = &mut scratch[..(length - offset).min(DETOUR_BYTES as u64) as usize];
        read(from, offset, part)?;
        write(to, offset, part)?;
    }
    Ok(())
}

/// Gathers views, `length` bytes together, at the start of `into`.
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
        View::Through(memory, address, _) => {
            memory.read(address + offset, into).map_err(|_| Side::From)?;
        }
    }
    Ok(())
}

/// Puts `bytes` into a view, from `offset` on.
pub(crate) fn write(view: View<'_>, offset: u64, bytes: &[u8]) -> Result<(), Side> {
    match view {
        View::Host(range) => range.write(offset as usize, bytes),
        View::Through(memory, address, _) => {
            memory.write(address + offset, bytes).map_err(|_| Side::To)?;
        }
    }
    Ok(())
}

impl View<'_> {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Host(range) => range.length(),
            Self::Through(_, _, length) => *length,
        }
    }
}
