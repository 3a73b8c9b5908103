//! Who reads a completion queue in memory. One reader takes every completion that is there, so it must
//! be the only one, and nobody else's requests may complete there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What completes on a queue, and whether somebody reads it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polling(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Endpoints, or queue pairs, that complete on it.
    endpoints: usize,
    /// Whether somebody reads it. Never given back: the position and phase of the next entry are known
    /// to that one alone.
    claimed: bool,
}

/// Why a queue cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unclaimable {
    /// Somebody reads it.
    Taken,
    /// So many endpoints complete on it, and one may.
    Shared(usize),
}

/// An endpoint that completes on a queue, until this is dropped.
#[derive(Debug)]
pub(crate) struct Completing(Polling);

impl Polling {
    fn state(&self) -> MutexGuard<'_, State> {
        // Two words that no panic can leave half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another endpoint completes here; None where somebody reads the queue for himself.
    pub(crate) fn begin(&self) -> Option<Completing> {
        let mut state = self.state();
        if state.claimed {
            return None;
        }
        state.endpoints += 1;
        Some(Completing(self.clone()))
    }

    /// Makes the caller the one who reads, for the one endpoint that completes here.
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
    fn a_queue_on_which_others_complete_is_not_claimed_until_they_are_gone() {
        let polling = Polling::default();
        let (_first, second) = (polling.begin().unwrap(), polling.begin().unwrap());
        assert_eq!(polling.claim(), Err(Unclaimable::Shared(2)));
        drop(second);
        assert_eq!(polling.claim(), Ok(()));
        assert_eq!(polling.claim(), Err(Unclaimable::Taken));
        assert!(polling.begin().is_none());
    }
}
