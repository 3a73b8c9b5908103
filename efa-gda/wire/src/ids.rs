//! The adapter's numbers, each a type of its own, so that one cannot be passed for another.

use std::fmt;

use efa_gda_sys::io;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $int:ty, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name($int);

        impl $name {
            /// Wraps the adapter's number.
            pub const fn new(number: $int) -> Self {
                Self(number)
            }

            /// The adapter's number.
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// A queue pair of one adapter (`efa_io_tx_meta_desc::dest_qp_num`).
    QueuePairNumber, u16, "{}"
);
number!(
    /// An adapter's handle for a remote address (`efa_io_tx_meta_desc::ah`).
    AddressHandle, u16, "{}"
);
number!(
    /// The key that a destination queue pair expects (`efa_io_tx_meta_desc::qkey`).
    QueueKey, u32, "{:#x}"
);
number!(
    /// A memory region's key for remote access (`efa_io_remote_mem_addr::rkey`).
    RemoteKey, u32, "{:#x}"
);
number!(
    /// The poster's name for a request, returned in its completion. 16 bits wide, or 64 if the queue has that
    /// capability ([`RequestIdWidth`]).
    RequestId, u64, "{}"
);

/// A memory region's key for local access: 24 bits (`EFA_IO_TX_BUF_DESC_LKEY_MASK`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalKey(u32);

/// A number that does not fit the 24 bits of a [`LocalKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "lkey {0:#x} is wider than 24 bits; descriptors cannot carry it: use the key that the registration returned"
)]
pub struct LocalKeyTooWide(pub u32);

impl LocalKey {
    /// Wraps the adapter's number.
    ///
    /// # Errors
    /// [`LocalKeyTooWide`] if a bit above the low 24 is set.
    pub const fn new(number: u32) -> Result<Self, LocalKeyTooWide> {
        if number & !io::EFA_IO_TX_BUF_DESC_LKEY_MASK == 0 {
            Ok(Self(number))
        } else {
            Err(LocalKeyTooWide(number))
        }
    }

    /// The low 24 bits of a descriptor's word; ignores the others.
    pub(crate) const fn from_word(word: u32) -> Self {
        Self(word & io::EFA_IO_TX_BUF_DESC_LKEY_MASK)
    }

    /// The adapter's number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for LocalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// How many bits of a request id the queue carries (`FI_EFA_WQ_CAPS_64_BIT_REQ_ID`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestIdWidth {
    /// `req_id` alone.
    #[default]
    Bits16,
    /// `req_id` and `req_id_ex`.
    Bits64,
}

impl RequestIdWidth {
    /// The largest id that fits.
    pub const fn largest(self) -> RequestId {
        match self {
            Self::Bits16 => RequestId(u16::MAX as u64),
            Self::Bits64 => RequestId(u64::MAX),
        }
    }
}
