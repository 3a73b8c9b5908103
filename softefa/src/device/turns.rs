//! Turns of an adapter's engine. A turn is the time in which one thread is the engine; it has a number.
//!
//! An access is one `NetworkView::unlocked`. The client whose memory it reaches can make it take any time: the kernel
//! waits for the lock of the client's address space, or for a page, and such a wait cannot be interrupted. If
//! `Adapter::isolate_clients` was called and the engine works for a client other than 0, another thread then becomes
//! the engine and works for the other clients. The first thread is *replaced*: it ends soon after its access has
//! returned.
//!
//! # Protocol
//! An engine that works for a client other than 0 states the beginning and the end of each access in [`Turns`]. If an
//! access takes longer than `LONGEST_ACCESS`, the watch thread (`engine::watch`) begins the next turn: it starts a
//! thread, and marks the client for which the engine worked as blocked. That client is the sender's, also if the memory
//! is the target's; for late writes and backlogs, it is the client whose memory it is. An engine that sees the mark
//! does not work for that client, so usually (see `any_blocked`) one thread waits for each client that is marked. When
//! the access returns, the replaced thread finishes the try of a request that it had begun, begins no further one,
//! writes the queue pair's completions, flushes the queue pair if that left the ready state, removes its mark and ends.
//! Its accesses meanwhile are not watched. It may work beside the new engine, as engines of several adapters do; at most
//! one at a time holds a given queue pair's send state.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `state` | engines, the watch thread | the same | its mutex, under which no other lock is acquired but that of `Shared::threads` |
//! | `turn` | the watch thread, under `state`: release | engines: acquire | orders no other word. A copy of `State::turn`, except while the next turn's thread is being started: then it is already the next turn. `State::turn` decides (`Turns::end`) |
//! | `any_blocked` | a holder of `state`: relaxed | engines: relaxed | a hint that saves the mutex; an engine that reads an old value waits for the client's memory, and is replaced |
//! | `last_client`, the words of `late_writes` and `backlogs` | engines: relaxed | the same | orders no other word |

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::shared::lock;

/// How long an access may take. The watch thread replaces an engine that it finds in a longer one.
pub(super) const LONGEST_ACCESS: Duration = Duration::from_millis(10);

/// The turns of one adapter.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    turn: AtomicU64,
    any_blocked: AtomicBool,
    /// The client that had the last share, or was passed over in its place. The next round, also of another engine,
    /// continues after it: if each engine began with the first client, clients that block could keep the others from
    /// being served.
    pub(crate) last_client: AtomicU64,
    pub(crate) late_writes: Rotation,
    pub(crate) backlogs: Rotation,
}

/// Where the next round of late writes, or of backlogs, begins (`deferred.rs`).
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    /// The client that was served last. A client that is passed over does not change it.
    pub(crate) last: AtomicU64,
    /// The number of rounds so far, which decides which object of each client is served first.
    pub(crate) rounds: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the current turn.
    turn: u64,
    /// When the engine's access began, and the client for which it works.
    access: Option<(Instant, u64)>,
    /// The number of each replaced thread's turn, and the client for which it works.
    blocked: Vec<(u64, u64)>,
}

impl Turns {
    /// Records that the engine of this turn begins an access, to any client's memory, in its work for `client`. Does
    /// nothing if the calling thread is replaced; nor does [`Self::end_access`].
    pub(crate) fn begin_access(&self, turn: u64, client: u64) {
        let mut state = lock(&self.state);
        if state.turn == turn {
            state.access = Some((Instant::now(), client));
        }
    }

    /// Records that the access has returned.
    pub(crate) fn end_access(&self, turn: u64) {
        let mut state = lock(&self.state);
        if state.turn == turn {
            state.access = None;
        }
    }

    /// Whether a replaced thread has not ended its work for this client.
    pub(crate) fn is_blocked(&self, client: u64) -> bool {
        self.any_blocked.load(Ordering::Relaxed)
            && lock(&self.state).blocked.iter().any(|(_, blocked)| *blocked == client)
    }

    /// Whether a later turn has begun or its thread is being started. Only [`Self::end`] returning true means that it
    /// has begun.
    pub(crate) fn is_replaced(&self, turn: u64) -> bool {
        self.turn.load(Ordering::Acquire) != turn
    }

    /// Begins the next turn if the engine's access takes too long: `start` starts the turn's thread with its number. If
    /// `start` fails, the engine stays. It has not found itself replaced, because it is still in its access or waits
    /// for `state` in [`Self::end_access`].
    pub(crate) fn replace_if_blocked(&self, start: impl FnOnce(u64) -> io::Result<()>) {
        let mut state = lock(&self.state);
        let Some((_, client)) = state.access.filter(|(began, _)| began.elapsed() >= LONGEST_ACCESS) else {
            return;
        };
        let turn = state.turn;
        // Stored before the thread starts, so that the new thread does not regard itself as replaced.
        self.turn.store(turn + 1, Ordering::Release);
        if start(turn + 1).is_err() {
            self.turn.store(turn, Ordering::Release);
            return;
        }
        state.blocked.push((turn, client));
        (state.turn, state.access) = (turn + 1, None);
        self.any_blocked.store(true, Ordering::Relaxed);
    }

    /// Removes the mark of a replaced thread, which may then end. Returns false if this turn is still the current one.
    pub(crate) fn end(&self, turn: u64) -> bool {
        let mut state = lock(&self.state);
        if state.turn == turn {
            return false;
        }
        state.blocked.retain(|(blocked, _)| *blocked != turn);
        self.any_blocked.store(!state.blocked.is_empty(), Ordering::Relaxed);
        true
    }
}
