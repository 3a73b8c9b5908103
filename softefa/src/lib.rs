//! A strict software EFA adapter.
//!
//! [`device`] is the device core: protection domains, memory regions, address handles, queues, the engine
//! that executes requests, and the checker that reports broken rules which hardware detects late or never.
//! The other modules are thin frontends, through which unmodified programs reach the device core.

mod cuda;
pub mod device;
pub mod libfabric;
