//! The turns of an adapter's engine. An access to a client's memory may take as long as the client likes: the kernel
//! waits for the lock of its address space, or for a page, and such a wait cannot be interrupted. Then another thread
//! becomes the engine and serves the other clients. The first thread ends when its access does.
//!
//! # Protocol
//! An engine states its accesses to memory of clients in [`Turns`]. The thread that watches it starts the next engine
//! when one access takes longer than `LONGEST_ACCESS`, and marks the client. No engine works for a marked client, so each
//! client has at most one thread that waits. Several engines of an adapter work beside each other as those of several
//! adapters do; a queue pair's send state is locked by one of them.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | `state` | engines, the thread that watches them | the same | its mutex, under which no other lock is acquired but that of `Shared::threads` |
//! | `turn` | the thread that watches: release | engines: acquire | a copy of `State::turn` |
//! | `any_blocked` | a holder of `state`: relaxed | engines: relaxed | a hint that saves the mutex; an engine that reads it late waits for the client, and is replaced |
//! | `last_client` | the engine: relaxed | the next engine: relaxed | orders no other word |

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::shared::lock;

/// The time of an access after which the engine is replaced.
const LONGEST_ACCESS: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    turn: AtomicU64,
    any_blocked: AtomicBool,
    /// The client that had the last turn of the engine. The next engine continues after it: if each began anew, the
    /// clients that block first could keep the others from theirs.
    pub(crate) last_client: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the engine's thread.
    turn: u64,
    /// When its access began, and the client whose request it executes.
    access: Option<(Instant, u64)>,
    /// Clients for which an earlier thread waits, by that thread's number.
    blocked: Vec<(u64, u64)>,
}

impl Turns {
    pub(crate) fn begin_access(&self, turn: u64, client: u64) {
        let mut state = lock(&self.state);
        if state.turn == turn {
            state.access = Some((Instant::now(), client));
        }
    }

    pub(crate) fn end_access(&self, turn: u64) {
        let mut state = lock(&self.state);
        if state.turn == turn {
            state.access = None;
        }
    }

    /// Whether a thread waits for this client.
    pub(crate) fn is_blocked(&self, client: u64) -> bool {
        self.any_blocked.load(Ordering::Relaxed)
            && lock(&self.state).blocked.iter().any(|(_, blocked)| *blocked == client)
    }

    pub(crate) fn is_replaced(&self, turn: u64) -> bool {
        self.turn.load(Ordering::Acquire) != turn
    }

    /// Starts the next engine if the access of this one takes too long. If that fails, this one stays.
    pub(crate) fn replace_if_blocked(&self, start: impl FnOnce(u64) -> io::Result<()>) {
        let mut state = lock(&self.state);
        let Some((_, client)) = state.access.filter(|(began, _)| began.elapsed() >= LONGEST_ACCESS) else {
            return;
        };
        let turn = state.turn;
        // Before the thread starts, which would end otherwise.
        self.turn.store(turn + 1, Ordering::Release);
        if start(turn + 1).is_err() {
            self.turn.store(turn, Ordering::Release);
            return;
        }
        state.blocked.push((turn, client));
        (state.turn, state.access) = (turn + 1, None);
        self.any_blocked.store(true, Ordering::Relaxed);
    }

    /// Ends the turn of a thread. Returns false if it is the engine still.
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
