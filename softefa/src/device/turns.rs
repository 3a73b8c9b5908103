//! Turns of an adapter's engine. A turn is the time in which one thread is the engine; it has a number.
//!
//! An access to a client's memory may take as long as the client likes: the kernel waits for the lock of the client's
//! address space, or for a page, and such a wait cannot be interrupted. Then another thread becomes the engine and
//! works for the other clients. The first thread ends when its access has returned.
//!
//! # Protocol
//! An engine states the beginning and the end of each access to a client's memory in [`Turns`]. The thread that watches
//! the engine (`engine::watch`) begins the next turn when an access takes longer than `LONGEST_ACCESS`: it starts a
//! thread, and marks the client for which the engine worked as blocked: the sender, also if the memory is its peer's.
//! An engine that sees the mark does not work for that client, so in general one thread waits for each client that is
//! marked. When the access returns, the replaced thread ends its round without taking up further requests, removes its
//! mark and ends. Until then it may work beside the new engine, as engines of several adapters do; each queue pair's
//! send state is locked by one of them.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `state` | engines, the thread that watches them | the same | its mutex, under which no other lock is acquired but that of `Shared::threads` |
//! | `turn` | the thread that watches: release | engines: acquire | orders no other word. A copy of `State::turn`, which decides (`Turns::end`) |
//! | `any_blocked` | a holder of `state`: relaxed | engines: relaxed | a hint that saves the mutex; an engine that reads an old value waits for the client's memory, and is replaced |
//! | `last_client`, `last_late`, `last_backlog` | the engine: relaxed | the next engine: relaxed | orders no other word |

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::shared::lock;

/// How long an access may take before the engine is replaced, at the next look of the thread that watches.
const LONGEST_ACCESS: Duration = Duration::from_millis(10);

/// The turns of one adapter.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    turn: AtomicU64,
    any_blocked: AtomicBool,
    /// The client that was served last. The next engine continues after it: if each began with the first, the clients
    /// that block could keep the others from being served.
    pub(crate) last_client: AtomicU64,
    /// The same for late writes, and for backlogs.
    pub(crate) last_late: AtomicU64,
    pub(crate) last_backlog: AtomicU64,
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
    /// States that the engine of this turn begins an access, to any client's memory, in its work for `client`.
    pub(crate) fn begin_access(&self, turn: u64, client: u64) {
        let mut state = lock(&self.state);
        if state.turn == turn {
            state.access = Some((Instant::now(), client));
        }
    }

    /// States that the access has returned.
    pub(crate) fn end_access(&self, turn: u64) {
        let mut state = lock(&self.state);
        if state.turn == turn {
            state.access = None;
        }
    }

    /// Whether a replaced thread waits for memory in its work for this client.
    pub(crate) fn is_blocked(&self, client: u64) -> bool {
        self.any_blocked.load(Ordering::Relaxed)
            && lock(&self.state).blocked.iter().any(|(_, blocked)| *blocked == client)
    }

    /// Whether a later turn has begun. `end` confirms it.
    pub(crate) fn is_replaced(&self, turn: u64) -> bool {
        self.turn.load(Ordering::Acquire) != turn
    }

    /// Begins the next turn, by `start` with its number, if the engine's access takes too long. If `start` fails, the
    /// engine stays.
    pub(crate) fn replace_if_blocked(&self, start: impl FnOnce(u64) -> io::Result<()>) {
        let mut state = lock(&self.state);
        let Some((_, client)) = state.access.filter(|(began, _)| began.elapsed() >= LONGEST_ACCESS) else {
            return;
        };
        let turn = state.turn;
        // Stored before the thread starts, so that it does not regard itself as replaced.
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
