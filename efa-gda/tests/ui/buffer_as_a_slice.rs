//! A buffer lends no slice, because the adapter and other threads may store to it.

use efa_gda::fabric::Region;

fn fill(region: &Region) {
    if let Some(buffer) = region.buffer() {
        let bytes: &mut [u8] = buffer.as_mut();
        bytes[0] = 1;
    }
}

fn main() {}
