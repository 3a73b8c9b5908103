//! The rights of a registered region, and the order of writes to it.

use std::fmt;
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
    /// Not a right, and not in [`Self::ALL`]: registers the region without the order that adapters keep by default
    /// ([`RegionOrdering::Strict`]). Through libfabric it needs the fabric `efa-direct` of 2.7 or newer
    /// (FI_EFA_MR_RELAXED_ORDERING); an older libfabric refuses the registration. Through rdma-core it is
    /// IBV_ACCESS_RELAXED_ORDERING, which rdma-core and kernel drivers that do not know it ignore.
    pub const RELAXED_ORDERING: Self = Self(fi::FI_EFA_MR_RELAXED_ORDERING);
    /// All operations.
    pub const ALL: Self = Self(Self::LOCAL.0 | fi::FI_REMOTE_WRITE | fi::FI_REMOTE_READ);

    /// Whether `self` has every right of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights as libfabric's bits.
    pub const fn bits(self) -> u64 {
        self.0 & Self::ALL.0
    }

    /// The flags of a registration with libfabric.
    pub(crate) const fn registration_flags(self) -> u64 {
        self.0 & Self::RELAXED_ORDERING.0
    }

    /// The rights that libfabric's `bits` stand for. None for 0 and for a bit that is not a right.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 || bits & !Self::ALL.0 != 0 { None } else { Some(Self(bits)) }
    }
}

impl RegionOrdering {
    /// The ordering of a region that was registered with `access`, where the flag is honoured.
    pub(crate) const fn requested_by(access: Access) -> Self {
        if access.contains(Access::RELAXED_ORDERING) { Self::Relaxed } else { Self::Strict }
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The order in which an adapter's writes to a region appear there: RDMA writes of peers, receives, and the data of
/// reads. Source: fi_efa(7) of libfabric 2.7, FI_EFA_MR_RELAXED_ORDERING, for which libfabric sets rdma-core's
/// IBV_ACCESS_RELAXED_ORDERING.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionOrdering {
    /// A completion with status 0 guarantees that later operations to the same endpoint appear after the completed one.
    /// The forms of a signal without read-back rely on this.
    Strict,
    /// A write may appear after its completion, and after later writes. Only a read of the region, by the adapter, is
    /// ordered after it: signals need the forms with read-back.
    Relaxed,
}

impl fmt::Display for RegionOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strict => "strictly ordered",
            Self::Relaxed => "relaxed ordering",
        })
    }
}
