//! What C gives to EFA GPU-Direct Async, as Rust sees it.
//!
//! - [`io`]: the descriptors that an adapter reads and writes.
//! - [`fi`]: the part of libfabric's binary interface that is used, with its EFA extensions.
//! - [`device`]: the structs that kernels receive.
//! - [`verbs`]: the part of rdma-core's binary interface that is used, and opening it at run time.
//! - [`load`]: opening libfabric at run time. Nothing is linked, so that one binary runs in any
//!   container and a missing library is an error with a name.
//!
//! Layouts come from `third_party/efa_gda/` and `kernels/include/efa_gda/`; nothing here is safe
//! to use without the rules stated there. The crate `efa-gda` is the safe layer.

pub mod load;
pub mod verbs;

pub use load::{Libfabric, LoadError};

/// Descriptors of the adapter's queues, generated from `efa_io_defs.h`.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod io {
    include!(concat!(env!("OUT_DIR"), "/io.rs"));
}

/// libfabric's structures, tables and constants, generated from `fi_ext_efa.h` and what it includes.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod fi {
    include!(concat!(env!("OUT_DIR"), "/fi.rs"));

    /// A libfabric version: the major number in the high half, as `FI_VERSION` packs it.
    pub const fn fi_version(major: u32, minor: u32) -> u32 {
        (major << 16) | minor
    }
}

/// Structs that kernels receive, generated from `kernels/include/efa_gda/queue.h`.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod device {
    include!(concat!(env!("OUT_DIR"), "/device.rs"));
}
