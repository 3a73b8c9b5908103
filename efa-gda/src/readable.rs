//! Whether this process can read memory that others vouch for, found out without a fault: the kernel
//! is asked to copy from it into a pipe.

use std::io::{Error, Read, Result};
use std::os::fd::AsRawFd;

/// Addresses looked at in one call; no pipe holds fewer bytes (`PIPE_BUF`), nor takes fewer pieces
/// (`IOV_MAX`).
const AT_ONCE: usize = 1024;

/// Whether the bytes at all of `addresses` can be read.
///
/// # Errors
/// Where there is no pipe (too many open files).
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
        // SAFETY: the pieces are given with their number; the kernel answers EFAULT, or fewer bytes,
        // for one that cannot be read. The pipe is empty and has room for all.
        let written = unsafe { libc::writev(into.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
        match usize::try_from(written) {
            Ok(bytes) if bytes == pieces.len() => from.read_exact(&mut drained[..bytes])?,
            Ok(_) => return Ok(false),
            Err(_) => {
                let error = Error::last_os_error();
                return if error.raw_os_error() == Some(libc::EFAULT) { Ok(false) } else { Err(error) };
            }
        }
    }
    Ok(true)
}

/// Whether all of `bytes` bytes from `start` on can be read: one byte of each page is looked at.
///
/// # Errors
/// As [`readable`].
pub(crate) fn readable_range(start: usize, bytes: usize) -> Result<bool> {
    /// No page is smaller.
    const PAGE: usize = 4096;
    let Some(last) = bytes.checked_sub(1) else { return Ok(true) };
    let Some(last) = start.checked_add(last) else { return Ok(false) };
    let pages = (start / PAGE + 1..=last / PAGE).map(|page| page * PAGE);
    readable(std::iter::once(start).chain(pages))
}

#[cfg(test)]
mod tests {
    use super::readable_range;

    #[test]
    fn what_is_mapped_is_readable_and_what_lies_behind_it_is_not() {
        const PAGES: usize = 3000 * 4096;
        // SAFETY: a new mapping at a place of the kernel's choice, whose last page becomes unreadable.
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
        assert!(readable_range(start + PAGES, 0).unwrap(), "no byte is looked at");
        assert!(!readable_range(usize::MAX, 2).unwrap());
    }
}
