//! A borrow of a region's buffer must not outlive the region.

use efa_gda::fabric::{Buffer, Region};

fn size(region: Region) -> Option<usize> {
    let buffer: Option<&Buffer> = region.buffer();
    let _ = region.close();
    buffer.map(Buffer::len)
}

fn main() {}
