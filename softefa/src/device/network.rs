//! The switch: connects the adapters of one process by GID.

use std::sync::{Arc, OnceLock};

/// A network of adapters that reach each other.
#[derive(Debug, Default)]
pub struct Network {}

impl Network {
    /// A network of its own.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The one network that faces of this process share.
    pub fn process() -> Arc<Self> {
        static NETWORK: OnceLock<Arc<Network>> = OnceLock::new();
        NETWORK.get_or_init(Self::new).clone()
    }
}
