//! Ownership of a completion queue in memory. A poller reads every completion from the first entry on, so it must be
//! the only poller, and only one endpoint may ever have completed there: the completions of an endpoint that was closed
//! stay.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Error;

/// The endpoints that complete on a queue, and whether a poller claimed it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polling(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Endpoints, or queue pairs, that complete on it.
    endpoints: usize,
    /// Those that did, and were closed.
    closed: usize,
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
    /// Endpoints that were closed completed on it.
    Used,
}

/// Of a completion queue that a mapped queue claims.
impl From<Unclaimable> for Error {
    fn from(why: Unclaimable) -> Self {
        match why {
            Unclaimable::Taken => Self::busy("the completion queue already has a reader (another mapped queue)")
                .with_hint("open a completion queue for this endpoint, and bind the endpoint to it"),
            Unclaimable::Shared(endpoints) => Self::busy(format!(
                "{endpoints} endpoints complete on the completion queue, and a mapped queue would read the completions of \
                 all"
            ))
            .with_hint("open a completion queue for this endpoint alone"),
            Unclaimable::Used => Self::busy(
                "an endpoint that was closed completed on the completion queue, which may hold its completions",
            )
            .with_hint("open a completion queue for this endpoint"),
        }
    }
}

/// An endpoint that completes on a queue, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Completing(Polling);

impl Polling {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can occur between the changes of the fields.
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

    /// Claims the queue for the caller as the poller, for the only endpoint that completes, or ever completed, here.
    ///
    /// # Errors
    /// [`Unclaimable`].
    pub(crate) fn claim(&self) -> Result<(), Unclaimable> {
        self.claim_if(|state| state.closed == 0)
    }

    /// Like [`Self::claim`], for a caller that has checked that no completion of a closed endpoint is left here.
    ///
    /// # Errors
    /// [`Unclaimable::Taken`], [`Unclaimable::Shared`].
    pub(crate) fn claim_cleared(&self) -> Result<(), Unclaimable> {
        self.claim_if(|_| true)
    }

    fn claim_if(&self, unused: impl FnOnce(&State) -> bool) -> Result<(), Unclaimable> {
        let mut state = self.state();
        if state.claimed {
            return Err(Unclaimable::Taken);
        }
        if state.endpoints > 1 {
            return Err(Unclaimable::Shared(state.endpoints));
        }
        if !unused(&state) {
            return Err(Unclaimable::Used);
        }
        state.claimed = true;
        Ok(())
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.endpoints -= 1;
        state.closed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Polling, Unclaimable};

    #[test]
    fn a_queue_on_which_two_endpoints_complete_cannot_be_claimed() {
        let polling = Polling::default();
        let _endpoints = (polling.begin().unwrap(), polling.begin().unwrap());
        assert_eq!(polling.claim(), Err(Unclaimable::Shared(2)));
    }

    #[test]
    fn a_queue_on_which_a_closed_endpoint_completed_cannot_be_claimed() {
        let polling = Polling::default();
        drop(polling.begin().unwrap());
        let _endpoint = polling.begin().unwrap();
        assert_eq!(polling.claim(), Err(Unclaimable::Used));
        assert_eq!(polling.claim_cleared(), Ok(()));
    }

    #[test]
    fn a_claimed_queue_takes_no_other_endpoint_or_poller() {
        let polling = Polling::default();
        let _endpoint = polling.begin().unwrap();
        assert_eq!(polling.claim(), Ok(()));
        assert_eq!(polling.claim(), Err(Unclaimable::Taken));
        assert!(polling.begin().is_none());
    }
}
