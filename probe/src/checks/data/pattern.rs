//! Test bytes: pseudo-random from a seed, so that a comparison needs no copy of them. They are written and
//! compared in pieces.

use efa_gda::memory::{Buffer, OutOfBounds};

/// Bytes handled at once.
const PIECE: usize = 64 << 10;
/// The value of the guard bytes after the target.
const GUARD: u8 = 0xa5;

/// A byte with a wrong value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Its offset in the buffer.
    pub(crate) offset: usize,
    /// Its value.
    pub(crate) actual: u8,
    /// The expected value.
    pub(crate) expected: u8,
}

/// The bytes of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The bytes of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Writes the bytes from `offset` on into `out`.
    fn piece(self, offset: usize, out: &mut [u8]) {
        for (index, word) in out.chunks_mut(8).enumerate() {
            let at = (offset / 8 + index) as u64;
            let bytes = mix(self.seed ^ mix(at)).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }

    /// Prepares `source` ([`Self::fill`]) and `target` ([`Self::spoil`]).
    pub(crate) fn prepare(self, source: &Buffer, target: &Buffer, length: usize) -> Result<(), OutOfBounds> {
        self.fill(source, length)?;
        self.spoil(target, length)
    }

    /// Fills the first `length` bytes of `source` with the pattern.
    pub(crate) fn fill(self, source: &Buffer, length: usize) -> Result<(), OutOfBounds> {
        self.write(source, length, |byte| byte)
    }

    /// Fills the first `length` bytes of `target` with the pattern's complement, so that a byte that is not written is
    /// always wrong. The rest of `target` becomes the guard.
    pub(crate) fn spoil(self, target: &Buffer, length: usize) -> Result<(), OutOfBounds> {
        self.write(target, length, |byte| !byte)?;
        target.write(length, &vec![GUARD; target.len() - length])
    }

    fn write(self, buffer: &Buffer, length: usize, value: impl Fn(u8) -> u8) -> Result<(), OutOfBounds> {
        let mut bytes = vec![0; PIECE];
        for offset in (0..length).step_by(PIECE) {
            let piece = &mut bytes[..PIECE.min(length - offset)];
            self.piece(offset, piece);
            piece.iter_mut().for_each(|byte| *byte = value(*byte));
            buffer.write(offset, piece)?;
        }
        Ok(())
    }

    /// Compares the first `length` bytes of `target` with the pattern, and the rest with the guard.
    pub(crate) fn compare(self, target: &Buffer, length: usize) -> Result<Option<Difference>, OutOfBounds> {
        let (mut expected, mut actual) = (vec![0; PIECE], vec![0; PIECE]);
        for offset in (0..length).step_by(PIECE) {
            let size = PIECE.min(length - offset);
            self.piece(offset, &mut expected[..size]);
            target.read(offset, &mut actual[..size])?;
            if let Some(difference) = first_difference(offset, &actual[..size], &expected[..size]) {
                return Ok(Some(difference));
            }
        }
        let mut guard = vec![0; target.len() - length];
        target.read(length, &mut guard)?;
        Ok(first_difference(length, &guard, &vec![GUARD; guard.len()]))
    }
}

fn first_difference(start: usize, actual: &[u8], expected: &[u8]) -> Option<Difference> {
    if actual == expected {
        return None;
    }
    let at = actual.iter().zip(expected).position(|(actual, expected)| actual != expected)?;
    Some(Difference { offset: start + at, actual: actual[at], expected: expected[at] })
}

/// SplitMix64's finaliser: spreads a counter over all bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 2 * PIECE + 5;

    fn prepared() -> (Pattern, Buffer, Buffer) {
        let (source, target) = (Buffer::zeroed(LENGTH).unwrap(), Buffer::zeroed(LENGTH + 64).unwrap());
        let pattern = Pattern::new(7);
        pattern.prepare(&source, &target, LENGTH).unwrap();
        (pattern, source, target)
    }

    fn copy(source: &Buffer, target: &Buffer) {
        let mut bytes = vec![0; LENGTH];
        source.read(0, &mut bytes).unwrap();
        target.write(0, &bytes).unwrap();
    }

    #[test]
    fn copied_bytes_compare_equal() {
        let (pattern, source, target) = prepared();
        copy(&source, &target);
        assert_eq!(pattern.compare(&target, LENGTH).unwrap(), None);
    }

    #[test]
    fn compare_finds_a_last_byte_that_was_not_written() {
        let (pattern, source, target) = prepared();
        copy(&source, &target);
        let mut last = [0];
        source.read(LENGTH - 1, &mut last).unwrap();
        target.write(LENGTH - 1, &[!last[0]]).unwrap();
        assert_eq!(pattern.compare(&target, LENGTH).unwrap().map(|actual| actual.offset), Some(LENGTH - 1));
    }

    #[test]
    fn compare_finds_a_byte_written_after_the_target() {
        let (pattern, source, target) = prepared();
        copy(&source, &target);
        target.write(LENGTH + 3, &[0]).unwrap();
        assert_eq!(pattern.compare(&target, LENGTH).unwrap().map(|actual| actual.offset), Some(LENGTH + 3));
    }
}
