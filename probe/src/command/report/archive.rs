//! Tar archives (POSIX ustar) of a few texts. Files belong to nobody and have no time, so that two reports of one
//! machine differ in their findings only.

/// Bytes of a header, and the multiple to which contents are padded.
const BLOCK: usize = 512;

/// An archive of these files: name and text.
pub(super) fn tar(files: &[(&str, String)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, text) in files {
        out.extend_from_slice(&header(name, text.len()));
        out.extend_from_slice(text.as_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end an archive.
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

/// The header of a file; `name` has at most 100 bytes.
fn header(name: &str, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // The checksum counts its own field as spaces.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
