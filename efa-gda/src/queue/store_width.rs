//! The width of the stores that write entries into a send queue.

use crate::smaps::{MemoryKind, mapping_of};

/// The width of the widest stores by which device code and the doorbell proxy write entries into a send queue.
///
/// A GPU writes entries fastest by stores of 16 bytes. rdma-core and NCCL write entries into an adapter by stores of 8
/// bytes; no published source uses wider ones. `gda-probe put --qualify-stores` tries them on an adapter. Its result is
/// for the caller to keep: this library stores it nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreWidth {
    /// 8 bytes.
    Eight,
    /// 16 bytes. For adapters of a kind for which the probe's qualification passed.
    Sixteen,
    /// 16 bytes for ordinary memory, such as a software adapter's or a staging ring, and 8 for I/O memory.
    #[default]
    Auto,
}

impl StoreWidth {
    /// Returns the width in bytes for a ring in memory of `kind`.
    pub(crate) fn bytes(self, kind: MemoryKind) -> u32 {
        match (self, kind) {
            (Self::Eight, _) | (Self::Auto, MemoryKind::Device) => 8,
            (Self::Sixteen, _) | (Self::Auto, MemoryKind::Ordinary) => 16,
        }
    }

    /// Returns the width in bytes for the ring of `length` bytes at `start`. Memory of an unknown kind counts as I/O
    /// memory.
    pub(super) fn bytes_at(self, start: usize, length: usize) -> u32 {
        self.bytes(mapping_of(start..start + length).map_or(MemoryKind::Device, |mapping| mapping.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_stores_8_bytes_into_io_memory_and_16_into_ordinary_memory() {
        let auto = StoreWidth::default();
        assert_eq!((auto.bytes(MemoryKind::Device), auto.bytes(MemoryKind::Ordinary)), (8, 16));
        for kind in [MemoryKind::Device, MemoryKind::Ordinary] {
            assert_eq!((StoreWidth::Eight.bytes(kind), StoreWidth::Sixteen.bytes(kind)), (8, 16));
        }
    }

    #[test]
    fn memory_of_an_unknown_kind_counts_as_io_memory() {
        assert_eq!(StoreWidth::Auto.bytes_at(16, 16), 8);
        let ordinary = [0_u8; 64];
        assert_eq!(StoreWidth::Auto.bytes_at(ordinary.as_ptr() as usize, 64), 16);
    }
}
