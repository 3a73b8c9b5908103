//! The bytes of inline requests, which device code reads: where they are, and the copy that the host's device code
//! reads in their place.

use std::ops::Range;

use efa_gda_sys::device::{EFA_GDA_OP_INLINE_SEND, EFA_GDA_OP_INLINE_WRITE, efa_gda_put_args};

use crate::memory::Buffer;
use crate::readable::copy_readable;
use crate::{Error, Result};

/// Returns the memory from which device code reads the bytes of an inline request.
pub(crate) fn inline_bytes(args: &efa_gda_put_args) -> Option<Range<usize>> {
    let inline = matches!(args.op, EFA_GDA_OP_INLINE_WRITE | EFA_GDA_OP_INLINE_SEND);
    if !inline || args.bytes == 0 || args.count == 0 {
        return None;
    }
    let start = args.local_address as usize;
    Some(start..start + ((args.count - 1) * args.local_stride + args.bytes) as usize)
}

/// Copies the bytes of inline requests, and makes `args` name the copy. The caller must keep the copy until the
/// requests are posted. Device code then reads memory that no other thread accesses. Other threads may store to the
/// original during the copy. The buffer `owned` of a region that owns its memory is stored to by [`Buffer::write`]
/// only, so it is copied by atomic loads. Memory of the caller may be stored to in any way, so the operating system
/// copies it.
///
/// # Errors
/// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if this CPU cannot read the bytes.
pub(super) fn copy_inline_bytes(args: &mut efa_gda_put_args, owned: Option<&Buffer>) -> Result<Vec<u8>> {
    let Some(range) = inline_bytes(args) else { return Ok(Vec::new()) };
    let copy = |start: usize, bytes: &mut [u8]| {
        match owned {
        Some(buffer) => buffer.read(start - buffer.as_ptr() as usize, bytes).is_ok(),
        None => copy_readable(start, bytes).unwrap_or_else(|error| {
            // Too many open files. The bytes count as unreadable.
            tracing::warn!(%error, "no pipe can be opened to copy the bytes of inline requests; raise the limit of descriptors");
            false
        }),
    }
    };
    // The bytes between requests that are far apart are not copied.
    let apart = args.local_stride > args.bytes;
    let mut bytes = vec![0; if apart { (args.count * args.bytes) as usize } else { range.len() }];
    let pieces = if apart { args.bytes as usize } else { range.len() };
    let distance = if apart { args.local_stride as usize } else { range.len() };
    for (start, piece) in range.step_by(distance).zip(bytes.chunks_exact_mut(pieces)) {
        if !copy(start, piece) {
            return Err(Error::argument(
                "an inline request carries its bytes, and this CPU cannot read the memory of the local region",
            )
            .with_hint("use a request that is not inline, or post from the GPU that has the memory"));
        }
    }
    if apart {
        args.local_stride = args.bytes;
    }
    args.local_address = bytes.as_ptr() as u64;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies the bytes of 3 requests of 4 bytes from byte 8 of `memory` on. Returns what device code reads.
    fn read_by_device_code(memory: &Buffer, owned: Option<&Buffer>, stride: u64) -> Vec<[u8; 4]> {
        let mut args = efa_gda_put_args {
            op: EFA_GDA_OP_INLINE_WRITE,
            local_address: memory.as_ptr() as u64 + 8,
            bytes: 4,
            count: 3,
            local_stride: stride,
            ..Default::default()
        };
        let copy = copy_inline_bytes(&mut args, owned).unwrap();
        // A later store to the region changes nothing.
        memory.write(0, &[0xee; 64]).unwrap();
        let first = (args.local_address - copy.as_ptr() as u64) as usize;
        (0..3).map(|i| copy[first + i * args.local_stride as usize..][..4].try_into().unwrap()).collect()
    }

    fn numbered() -> Buffer {
        let memory = Buffer::zeroed(64).unwrap();
        memory.write(0, &std::array::from_fn::<u8, 64, _>(|i| i as u8)).unwrap();
        memory
    }

    #[test]
    fn device_code_reads_a_copy_that_no_other_thread_stores_to() {
        for stride in [0, 1, 4, 20] {
            let expected: Vec<_> =
                (0..3).map(|i| std::array::from_fn(|byte| 8 + i * stride as u8 + byte as u8)).collect();
            let memory = numbered();
            assert_eq!(read_by_device_code(&memory, Some(&memory), stride), expected, "owned, {stride}");
            assert_eq!(read_by_device_code(&numbered(), None, stride), expected, "the caller's, {stride}");
        }
    }

    #[test]
    fn other_requests_are_left_alone() {
        let mut args = efa_gda_put_args { bytes: 4, count: 1, local_address: 1, ..Default::default() };
        assert!(copy_inline_bytes(&mut args, None).unwrap().is_empty());
        assert_eq!(args.local_address, 1);
    }
}
