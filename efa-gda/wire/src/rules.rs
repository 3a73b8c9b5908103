//! The rules of the send-queue entry format.

use std::fmt;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A rule of the descriptor format that an entry can break. The source of each rule is the comment of its
        /// field in `efa_io_defs.h`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule, in the order of the fields.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        impl fmt::Display for Rule {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

rules! {
    /// `meta_desc` of `ctrl1`.
    MetaDescSet = "meta_desc (ctrl1 bit 7) must be set",
    /// `meta_extension` of `ctrl1`.
    MetaExtensionZero = "meta_extension (ctrl1 bit 6) must be zero",
    /// `op_type` of `ctrl1`.
    KnownOperation = "op_type (ctrl1 bits 3:0) must be SEND 0, RDMA READ 1 or RDMA WRITE 2",
    /// `first` of `ctrl2`.
    FirstSet = "first (ctrl2 bit 2) must be set",
    /// `last` of `ctrl2`.
    LastSet = "last (ctrl2 bit 3) must be set",
    /// `comp_req` of `ctrl2`: rdma-core refuses unsignaled requests.
    CompletionRequested = "comp_req (ctrl2 bit 4) must be set: every request is signaled",
    /// Bits 1 and 7:5 of `ctrl2`.
    Ctrl2ReservedZero = "ctrl2 bits 1 and 7:5 must be zero",
    /// Bits 7:2 of `ctrl3`.
    Ctrl3ReservedZero = "ctrl3 bits 7:2 must be zero",
    /// `reserved` and `reserved2`.
    ReservedZero = "reserved bytes 15 and 20 to 25 must be zero",
    /// `req_id_ex` of a queue with 16-bit ids.
    ExtendedIdZero = "req_id_ex must be zero on a queue with 16-bit request ids",
    /// `length` of a request that is not inline.
    SegmentCount = "length must count at most 2 segments for SEND and exactly 1 for RDMA",
    /// `length` of an inline request.
    InlineLength = "inline data must be at most 32 bytes in a 64-byte entry and 80 in a 128-byte one",
    /// `inline_msg` with an operation or entry size that has no inline form.
    InlineSupported = "inline is for SEND, and for RDMA WRITE in 128-byte entries",
    /// `has_imm` of an RDMA read.
    ImmediateSupported = "RDMA READ carries no immediate data",
    /// `efa_io_tx_buf_desc::lkey`.
    LocalKeyWidth = "lkey must fit 24 bits",
    /// `efa_io_remote_mem_addr::length`.
    RemoteLength = "the remote length must equal the local one",
}

/// A set of [`Rule`]s.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules(u32);

impl Rules {
    /// No rule.
    pub const NONE: Self = Self(0);

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains `rule`.
    pub const fn contains(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }

    /// Adds `rule` unless `holds`.
    #[inline]
    pub(crate) fn require(&mut self, holds: bool, rule: Rule) {
        self.0 |= u32::from(!holds) << rule as u32;
    }

    /// The rules, in the order of [`Rule::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Rule> {
        Rule::ALL.iter().copied().filter(move |rule| self.contains(*rule))
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{rule}")?;
        }
        Ok(())
    }
}
