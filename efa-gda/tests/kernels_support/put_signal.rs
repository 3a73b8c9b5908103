//! The arguments of the kernels in kernels/examples/put_signal.cu, with addresses as numbers.

use efa_gda_sys::device::efa_gda_peer;

/// `struct put_signal_args`.
#[repr(C)]
pub(crate) struct PutSignal {
    pub(crate) queue: u64,
    pub(crate) peer: efa_gda_peer,
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) signal_words: u64,
    pub(crate) local_signals: u64,
    pub(crate) remote_signals: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) pieces: u32,
    pub(crate) piece_bytes: u32,
    pub(crate) timeout_ns: u64,
    pub(crate) status: u64,
}

/// `struct await_signal_args`.
#[repr(C)]
pub(crate) struct AwaitSignal {
    pub(crate) queue: u64,
    pub(crate) signals: u64,
    pub(crate) buffer: u64,
    pub(crate) part_bytes: u32,
    pub(crate) pattern: u32,
    pub(crate) timeout_ns: u64,
    pub(crate) status: u64,
}
