//! Reads memory of this process through the kernel, which copies it into a pipe: memory that cannot be read is no fault
//! then, and stores of other threads are no data race.

use std::io::{Error, PipeWriter, Read, Result};
use std::os::fd::AsRawFd;

/// Addresses tested in one call. Every pipe holds as many bytes (`PIPE_BUF`), and `writev` takes as many pieces
/// (`IOV_MAX`).
const AT_ONCE: usize = 1024;
/// Bytes copied in one call, which every pipe holds.
const BYTES_AT_ONCE: usize = libc::PIPE_BUF;

/// Returns whether the bytes at all of `addresses` can be read.
///
/// # Errors
/// If no pipe can be opened (too many open files).
pub(crate) fn readable(addresses: impl IntoIterator<Item = usize>) -> Result<bool> {
    let (mut from, into) = std::io::pipe()?;
    let mut addresses = addresses.into_iter().peekable();
    let mut drained = [0; AT_ONCE];
    while addresses.peek().is_some() {
        let pieces: Vec<libc::iovec> = addresses
            .by_ref()
            .take(AT_ONCE)
            .map(|address| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(address),
                iov_len: 1,
            })
            .collect();
        if !write_all(&into, &pieces, pieces.len())? {
            return Ok(false);
        }
        from.read_exact(&mut drained[..pieces.len()])?;
    }
    Ok(true)
}

/// Writes pieces of memory of `bytes` bytes in all, at most [`BYTES_AT_ONCE`], into an empty pipe. Returns whether all
/// of them can be read.
fn write_all(into: &PipeWriter, pieces: &[libc::iovec], bytes: usize) -> Result<bool> {
    // SAFETY: the array has as many pieces as its length says. For a piece that cannot be read the kernel returns
    // EFAULT, or fewer bytes. The pipe is empty and holds all bytes, so the call does not block.
    let written = unsafe { libc::writev(into.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
    match usize::try_from(written) {
        Ok(written) => Ok(written == bytes),
        Err(_) => match Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
            error => Err(error),
        },
    }
}

/// Copies memory from `start` until `into` is full. Returns whether all of it can be read.
///
/// # Errors
/// As [`readable`].
pub(crate) fn copy_readable(start: usize, into: &mut [u8]) -> Result<bool> {
    let (mut reader, writer) = std::io::pipe()?;
    for (number, piece) in into.chunks_mut(BYTES_AT_ONCE).enumerate() {
        let Some(from) = start.checked_add(number * BYTES_AT_ONCE) else { return Ok(false) };
        let iov_base = std::ptr::with_exposed_provenance_mut(from);
        if !write_all(&writer, &[libc::iovec { iov_base, iov_len: piece.len() }], piece.len())? {
            return Ok(false);
        }
        reader.read_exact(piece)?;
    }
    Ok(true)
}

/// Returns whether all of the `bytes` bytes from `start` on can be read: tests one byte of each page.
///
/// # Errors
/// As [`readable`].
pub(crate) fn readable_range(start: usize, bytes: usize) -> Result<bool> {
    /// The smallest page size of any host.
    const PAGE: usize = 4096;
    let Some(last) = bytes.checked_sub(1) else { return Ok(true) };
    let Some(last) = start.checked_add(last) else { return Ok(false) };
    let pages = (start / PAGE + 1..=last / PAGE).map(|page| page * PAGE);
    readable(std::iter::once(start).chain(pages))
}

#[cfg(test)]
mod tests {
    use super::{copy_readable, readable_range};

    #[test]
    fn mapped_memory_is_readable_and_memory_behind_it_is_not() {
        const PAGES: usize = 3000 * 4096;
        // SAFETY: a new mapping at an address that the kernel chooses. Its last page becomes unreadable.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), PAGES, libc::PROT_READ, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(PAGES - 4096), 4096, libc::PROT_NONE), 0);
            start.expose_provenance()
        };
        assert!(readable_range(start, PAGES - 4096).unwrap());
        assert!(!readable_range(start + 1, PAGES - 4096).unwrap());
        assert!(!readable_range(start, PAGES).unwrap());
        assert!(readable_range(start + PAGES, 0).unwrap(), "no byte is tested");
        assert!(!readable_range(usize::MAX, 2).unwrap());
    }

    #[test]
    fn a_copy_has_the_bytes_of_memory_that_can_be_read() {
        let bytes: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        let mut copy = vec![0; 9_999];
        assert!(copy_readable(bytes.as_ptr().expose_provenance() + 1, &mut copy).unwrap());
        assert!(copy == bytes[1..]);
        assert!(!copy_readable(usize::MAX - 1, &mut copy).unwrap());
    }
}
