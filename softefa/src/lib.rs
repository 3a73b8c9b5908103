//! A strict software EFA adapter.
//!
//! [`device`] is the adapter: protection domains, memory regions, address handles, queues, the
//! engine that executes what is posted, and the checker that names what hardware would hide. The
//! other modules are *faces*, each thin over it, through which unmodified programs reach it.

mod cuda;
pub mod device;
pub mod libfabric;
