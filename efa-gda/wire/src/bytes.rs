//! Reads and writes little-endian fields at an offset. Every offset comes from the interface header and lies inside a
//! buffer whose length the public functions of this crate have checked.

#[inline]
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads an address that a descriptor stores in two halves: low at `lo`, high at `hi`.
#[inline]
pub(crate) fn get_address(bytes: &[u8], lo: usize, hi: usize) -> u64 {
    u64::from(get_u32(bytes, lo)) | u64::from(get_u32(bytes, hi)) << 32
}

#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn put_address(bytes: &mut [u8], lo: usize, hi: usize, value: u64) {
    put_u32(bytes, lo, value as u32);
    put_u32(bytes, hi, (value >> 32) as u32);
}

/// Shifts `value` to the bits of `mask`; drops bits that do not fit.
pub(crate) const fn field(mask: u32, value: u32) -> u32 {
    (value << mask.trailing_zeros()) & mask
}

/// Extracts the bits of `word` under `mask`, shifted down.
pub(crate) const fn extract(mask: u32, word: u32) -> u32 {
    (word & mask) >> mask.trailing_zeros()
}
