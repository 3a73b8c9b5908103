//! What completion counters count, and memory of the caller for their words.

use std::ops::BitOr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use efa_gda_sys::fi;

/// The operations of an endpoint or queue pair whose completions a counter counts. The bits are libfabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CountedOperations(u64);

impl CountedOperations {
    /// SENDs that this side posts.
    pub const SEND: Self = Self(fi::FI_SEND);
    /// Messages that this side receives.
    pub const RECEIVE: Self = Self(fi::FI_RECV);
    /// RDMA reads that this side posts.
    pub const READ: Self = Self(fi::FI_READ);
    /// RDMA writes that this side posts.
    pub const WRITE: Self = Self(fi::FI_WRITE);
    /// RDMA reads by peers.
    pub const REMOTE_READ: Self = Self(fi::FI_REMOTE_READ);
    /// RDMA writes by peers.
    pub const REMOTE_WRITE: Self = Self(fi::FI_REMOTE_WRITE);
    /// All operations that this side posts to its send queue. A mapped queue needs a counter for exactly
    /// these.
    pub const TRANSMIT: Self = Self(fi::FI_SEND | fi::FI_READ | fi::FI_WRITE);

    /// Whether `self` has every operation of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The operations that libfabric's `bits` stand for. None for 0 and for a bit that is no operation.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let all = Self::TRANSMIT.0 | fi::FI_RECV | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
        if bits == 0 || bits & !all != 0 { None } else { Some(Self(bits)) }
    }

    /// The operations as libfabric's flags (those of `fi_ep_bind`).
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for CountedOperations {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Addresses of the words of a counter that owns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterWords {
    /// Address of the word of successes, valid on `device` or on the host.
    pub success: u64,
    /// Address of the word of errors.
    pub error: u64,
    /// The CUDA ordinal of the GPU whose memory holds the words; None where the host reads them.
    pub device: Option<i32>,
}

/// A word of the caller for a counter: 8 bytes, aligned to 8. Store 0 in it before you open the counter: no upstream
/// source states whether a counter starts from the value in the word or from 0.
#[derive(Clone, Copy, Debug)]
pub struct CounterMemory<'a> {
    /// Address at which this process reads the word; null where it does not.
    pub(crate) mapped: *mut u64,
    /// The dmabuf of the word and its offset there; None for host memory.
    pub(crate) dmabuf: Option<(BorrowedFd<'a>, u64)>,
}

impl<'a> CounterMemory<'a> {
    /// A word of host memory.
    pub fn host(word: NonNull<u64>) -> Self {
        Self { mapped: word.as_ptr(), dmabuf: None }
    }

    /// The word at `offset` of a dmabuf, such as one of GPU memory.
    ///
    /// `mapped` is the address at which this process reads the word, or null. Where it is null, the
    /// library that opened the counter cannot read it for its callers.
    pub fn dmabuf(dmabuf: BorrowedFd<'a>, offset: u64, mapped: *mut u64) -> Self {
        Self { mapped, dmabuf: Some((dmabuf, offset)) }
    }
}
