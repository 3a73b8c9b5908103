//! The exchange between the ranks of a job over TCP: every rank sends one message in each step, and receives the
//! messages of all ranks.
//!
//! A [`hub::Hub`] accepts a connection from each rank ([`member::Member`]), rank 0 included, which runs in the
//! process beside the hub. Both sides prove that they know the job's [`token::Token`] before anything else is read:
//! the hub sends a nonce, the rank answers with its own nonce and an HMAC over both, and the hub does the same. No
//! token goes over the wire, and each later message carries an HMAC under a key of this connection, with its
//! direction and number ([`channel`]). The contents are not encrypted: addresses and keys of a test's buffers, which
//! are worthless after it.
//!
//! Sizes and counts are bounded before memory is allocated for them. Every wait has a bound. The first failure ends the
//! exchange for all ranks, and each of them gets its text.

pub(crate) mod channel;
pub(crate) mod hub;
pub(crate) mod member;
pub(crate) mod token;

use std::time::{Duration, Instant};

/// The most ranks of one exchange.
pub(crate) const MOST_RANKS: u32 = 1024;
/// The most bytes of a rank's message.
pub(crate) const MOST_BYTES: usize = 8192;

/// What to do if a thread or a process cannot be started.
pub(crate) const RAISE_LIMIT: &str = "raise the limit of processes (ulimit -u, or the pod's limit of pids)";

/// What to do if a process has all the descriptors that it may have.
const RAISE_DESCRIPTORS: &str = "raise the limit of descriptors (RLIMIT_NOFILE: ulimit -n)";

/// What to do after a semicolon, if a limit kept a process, a thread or a connection from being started.
pub(crate) fn advice(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => format!("; {RAISE_LIMIT}"),
        Some(libc::EMFILE) => format!("; {RAISE_DESCRIPTORS}"),
        _ => String::new(),
    }
}

/// How long the ranks of a job wait for each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Until all ranks have arrived.
    pub(crate) arrival: Duration,
    /// Until each rank has sent its message of a step.
    pub(crate) step: Duration,
}

/// Who meets. Messages name the commands and the options that the users typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// The ranks of `ring`.
    Ranks,
    /// The ranks of `put --peer` and `put --listen`.
    Pair,
}

impl Party {
    /// What to do if nothing of this job listens at the hub's address.
    fn start_hub(self) -> &'static str {
        match self {
            Self::Ranks => "start rank 0 there, or name its address with --rendezvous",
            Self::Pair => "start gda-probe put --listen on that host, and let this host reach its port",
        }
    }

    /// What to do if the hub cannot be where it should.
    fn elsewhere(self) -> &'static str {
        match self {
            Self::Ranks => "use another --rendezvous",
            Self::Pair => {
                "name an address of the listening host and a free port, for --listen and for --peer"
            }
        }
    }

    /// What to do if ranks do not arrive.
    fn start_ranks(self) -> &'static str {
        match self {
            Self::Ranks => {
                "start every missing rank, let it reach this address, and give it the same token; --wait waits longer"
            }
            Self::Pair => {
                "start gda-probe put --peer HOST with this host's address, let it reach this port, and give it the \
                 same token; --wait waits longer"
            }
        }
    }
}

/// The longest time that an option sets: 34 years, and so little that sums of times do not overflow.
pub(crate) const LONGEST: Duration = Duration::from_secs(1 << 30);

/// How long what began before a deadline may go on after it: on a busy machine the last round of puts takes seconds, and
/// must not look like an adapter that does not answer.
const LAST: Duration = Duration::from_secs(5);

/// A point in time after which a wait fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// The point in time `after` from now.
    pub(crate) fn after(after: Duration) -> Self {
        Self(Instant::now() + after.min(LONGEST))
    }

    /// The time left; None after the deadline.
    pub(crate) fn left(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// `wait`, or the time left and [`LAST`] if that is shorter.
    pub(crate) fn bounds(self, wait: Duration) -> Duration {
        wait.min(self.left().unwrap_or_default() + LAST)
    }

    /// The earlier of two deadlines.
    pub(crate) fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// The messages of all ranks as one: for each, its length (u32, little-endian) and its bytes.
fn join(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::new();
    for message in messages {
        // At most MOST_BYTES.
        all.extend((message.len() as u32).to_le_bytes());
        all.extend(message);
    }
    all
}

/// The inverse of [`join`], for `count` messages. None if the bytes are not such messages.
fn split(mut all: &[u8], count: u32) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    for _ in 0..count {
        let (length, rest) = all.split_first_chunk::<4>()?;
        let (message, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        messages.push(message.to_vec());
        all = rest;
    }
    all.is_empty().then_some(messages)
}

#[cfg(test)]
mod tests;
