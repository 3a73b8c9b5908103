//! Ownership of a completion queue in memory. A poller takes every completion that is there, so it must be the only
//! poller, and only one endpoint may complete there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The endpoints that complete on a queue, and whether a poller claimed it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polling(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Endpoints, or queue pairs, that complete on it.
    endpoints: usize,
    /// Whether a poller claimed it. A claim is never released, because only that poller knows the position and phase of
    /// the next entry.
    claimed: bool,
}

/// Why a queue cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unclaimable {
    /// Another poller claimed it.
    Taken,
    /// More than one endpoint completes on it: this many.
    Shared(usize),
}

/// Registers an endpoint that completes on a queue, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Completing(Polling);

impl Polling {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can occur between the changes of the two fields.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers one more endpoint; None if a poller claimed the queue.
    pub(crate) fn begin(&self) -> Option<Completing> {
        let mut state = self.state();
        if state.claimed {
            return None;
        }
        state.endpoints += 1;
        Some(Completing(self.clone()))
    }

    /// Claims the queue for the caller as the poller, for the only endpoint that completes here.
    ///
    /// # Errors
    /// [`Unclaimable`].
    pub(crate) fn claim(&self) -> Result<(), Unclaimable> {
        let mut state = self.state();
        if state.claimed {
            return Err(Unclaimable::Taken);
        }
        if state.endpoints > 1 {
            return Err(Unclaimable::Shared(state.endpoints));
        }
        state.claimed = true;
        Ok(())
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        self.0.state().endpoints -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Polling, Unclaimable};

    #[test]
    fn a_queue_on_which_two_endpoints_complete_cannot_be_claimed_until_one_is_dropped() {
        let polling = Polling::default();
        let (_first, second) = (polling.begin().unwrap(), polling.begin().unwrap());
        assert_eq!(polling.claim(), Err(Unclaimable::Shared(2)));
        drop(second);
        assert_eq!(polling.claim(), Ok(()));
        assert_eq!(polling.claim(), Err(Unclaimable::Taken));
        assert!(polling.begin().is_none());
    }
}
