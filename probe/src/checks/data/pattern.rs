//! Test bytes: pseudo-random from a seed, so that a comparison needs no copy of them. They are written and
//! compared in pieces.

use std::sync::LazyLock;

use efa_gda::gpu::GpuMemory;
use efa_gda::memory::Buffer;

use crate::checks::session::text;

/// Bytes handled at once.
const PIECE: usize = 64 << 10;
/// Places in `BYTES` at which a piece may begin.
const STARTS: usize = 1 << 20;
/// The value of the guard bytes after the target.
const GUARD: u8 = 0xa5;

/// Pseudo-random bytes, of which every piece is a part, and their complement.
static BYTES: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let bytes: Vec<u8> = (0..(STARTS + PIECE) as u64 / 8).flat_map(|word| mix(word).to_le_bytes()).collect();
    let complement = bytes.iter().map(|byte| !byte).collect();
    [bytes, complement]
});

/// Memory whose bytes the host copies in and out.
pub(crate) trait Bytes {
    /// The length in bytes.
    fn length(&self) -> usize;

    /// Copies `bytes` to `offset`.
    fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), String>;

    /// Copies from `offset` into all of `bytes`.
    fn get(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String>;
}

impl Bytes for Buffer {
    fn length(&self) -> usize {
        self.len()
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.write(offset, bytes).map_err(text)
    }

    fn get(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String> {
        self.read(offset, bytes).map_err(text)
    }
}

impl Bytes for GpuMemory {
    fn length(&self) -> usize {
        self.len()
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.write(offset, bytes).map_err(text)
    }

    fn get(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String> {
        self.read(offset, bytes).map_err(text)
    }
}

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

    /// The bytes from `offset` on, or their complement. `offset` is a multiple of `PIECE`.
    fn piece(self, offset: usize, is_complement: bool) -> &'static [u8] {
        let start = mix(self.seed ^ mix((offset / PIECE) as u64)) as usize % STARTS;
        &BYTES[usize::from(is_complement)][start..start + PIECE]
    }

    /// Prepares `source` ([`Self::fill`]) and `target` ([`Self::spoil`]).
    pub(crate) fn prepare(self, source: &dyn Bytes, target: &dyn Bytes, length: usize) -> Result<(), String> {
        self.fill(source, length)?;
        self.spoil(target, length)
    }

    /// Fills the first `length` bytes of `source` with the pattern.
    pub(crate) fn fill(self, source: &dyn Bytes, length: usize) -> Result<(), String> {
        self.write(source, length, false)
    }

    /// Fills the first `length` bytes of `target` with the pattern's complement, so that a byte that is not written is
    /// always wrong. The rest of `target` becomes the guard.
    pub(crate) fn spoil(self, target: &dyn Bytes, length: usize) -> Result<(), String> {
        self.write(target, length, true)?;
        target.put(length, &vec![GUARD; target.length() - length])
    }

    fn write(self, buffer: &dyn Bytes, length: usize, is_complement: bool) -> Result<(), String> {
        for offset in (0..length).step_by(PIECE) {
            buffer.put(offset, &self.piece(offset, is_complement)[..PIECE.min(length - offset)])?;
        }
        Ok(())
    }

    /// Compares the first `length` bytes of `target` with the pattern, and the rest with the guard.
    pub(crate) fn compare(self, target: &dyn Bytes, length: usize) -> Result<Option<Difference>, String> {
        let mut actual = vec![0; PIECE];
        for offset in (0..length).step_by(PIECE) {
            let size = PIECE.min(length - offset);
            target.get(offset, &mut actual[..size])?;
            let expected = &self.piece(offset, false)[..size];
            if let Some(difference) = first_difference(offset, &actual[..size], expected) {
                return Ok(Some(difference));
            }
        }
        let mut guard = vec![0; target.length() - length];
        target.get(length, &mut guard)?;
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
