//! Raw bindings for GPU-driven queues of an AWS EFA adapter.
//!
//! - [`io`]: descriptors that an adapter reads and writes.
//! - [`fi`]: the part of libfabric's binary interface that this project uses, with its EFA extensions.
//! - [`device`]: structs that kernels receive.
//! - [`verbs`]: the part of rdma-core's binary interface that this project uses, and loading rdma-core at run time.
//! - [`load`]: loading libfabric at run time. Nothing is linked, so one binary runs in any container, and a missing
//!   library is an error that names it.
//!
//! Layouts come from the C headers in `third_party/efa_gda/` and `kernels/include/efa_gda/` of this package, which
//! state the rules for their use. The bindings are checked in under `src/generated/`; the feature `regenerate`
//! generates them during the build instead, with assertions of their layouts. The crate `efa-gda` is the safe layer.

pub mod load;
mod provider;
mod symbols;
pub mod verbs;

pub use load::{Libfabric, LoadError};

/// Includes a file of bindings: the checked-in one, or with the feature `regenerate` the one of this build.
macro_rules! bindings {
    ($file:literal) => {
        #[cfg(not(feature = "regenerate"))]
        include!(concat!("generated/", $file));
        #[cfg(feature = "regenerate")]
        include!(concat!(env!("OUT_DIR"), "/asserted/", $file));
    };
}
use bindings;

/// Descriptors of the adapter's queues, from `efa_io_defs.h`.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod io {
    super::bindings!("io.rs");
}

/// libfabric's structures, tables and constants, from `fi_ext_efa.h` and `libfabric_abi.h`.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod fi {
    super::bindings!("fi.rs");

    /// Packs a libfabric version as `FI_VERSION` does: the major number in the upper 16 bits.
    pub const fn fi_version(major: u32, minor: u32) -> u32 {
        (major << 16) | minor
    }
}

/// Structs that kernels receive, from `kernels/include/efa_gda/queue.h`.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
pub mod device {
    super::bindings!("device.rs");
}
