//! The rights of a registered region.

use std::ops::BitOr;

use efa_gda_sys::fi;

/// What an adapter may do with a memory region, for its own process and for peers.
///
/// The bits are libfabric's, which the `access` of `fi_mr_reg` and the C interface take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(u64);

impl Access {
    /// Messages may be sent from the region.
    pub const SEND: Self = Self(fi::FI_SEND);
    /// Receives may be posted to the region.
    pub const RECEIVE: Self = Self(fi::FI_RECV);
    /// The region may be the local source of an RDMA write.
    pub const WRITE: Self = Self(fi::FI_WRITE);
    /// The region may be the local target of an RDMA read.
    pub const READ: Self = Self(fi::FI_READ);
    /// Peers may write to the region.
    pub const REMOTE_WRITE: Self = Self(fi::FI_REMOTE_WRITE);
    /// Peers may read from the region.
    pub const REMOTE_READ: Self = Self(fi::FI_REMOTE_READ);
    /// All operations that this side starts.
    pub const LOCAL: Self = Self(fi::FI_SEND | fi::FI_RECV | fi::FI_WRITE | fi::FI_READ);
    /// All operations.
    pub const ALL: Self = Self(Self::LOCAL.0 | fi::FI_REMOTE_WRITE | fi::FI_REMOTE_READ);

    /// Whether `self` has every right of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights as libfabric's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The rights that libfabric's `bits` stand for. None for 0 and for a bit that is not a right.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 || bits & !Self::ALL.0 != 0 { None } else { Some(Self(bits)) }
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
