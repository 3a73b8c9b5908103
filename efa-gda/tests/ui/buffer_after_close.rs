//! A buffer that a region owns is not lent beyond the region.

use efa_gda::fabric::{Buffer, MemoryRegion};

fn keep(region: MemoryRegion) -> Option<usize> {
    let buffer: Option<&Buffer> = region.buffer();
    let _ = region.close();
    buffer.map(Buffer::len)
}

fn main() {}
