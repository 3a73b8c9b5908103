//! Fault injection: reordering, delay, a slow adapter, and injected statuses, which are legal behaviour of an SRD adapter
//! that a client must survive; and requests that vanish, as on some platforms ([`Faults::drop_loopback`]).

use std::time::Duration;

use efa_gda_wire::CompletionStatus;

/// The faults that one adapter applies to its requests; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests are executed in random order within a window of this many; 0 and 1 preserve the order, except that
    /// others overtake a request that waits for a receive.
    pub reorder_window: u32,
    /// Time that each request waits before it is executed.
    pub delay: Duration,
    /// Least time between two requests that a queue pair executes: a slow adapter that makes progress.
    pub interval: Duration,
    /// Requests that complete with an injected status and are not executed.
    pub injections: Vec<Injection>,
    /// Requests whose target is a queue pair of the same adapter vanish: they never complete, as on a platform that
    /// drops what an adapter sends to itself.
    pub drop_loopback: bool,
}

/// One injected status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The number of the request: counted from 1 over all send queues of the adapter, in the order in which
    /// the engine fetches entries. Entries that break a strict rule are not counted.
    pub nth: u64,
    /// The status with which it completes.
    pub status: CompletionStatus,
}

impl Faults {
    /// Whether there are no faults other than `drop_loopback`.
    pub(crate) fn none(&self) -> bool {
        self.reorder_window <= 1
            && self.delay.is_zero()
            && self.interval.is_zero()
            && self.injections.is_empty()
    }

    /// Parses `N:STATUS,…`. Returns `None` if the text is invalid.
    pub(crate) fn parse_injections(text: &str) -> Option<Vec<Injection>> {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (nth, status) = part.split_once(':')?;
                let nth = nth.trim().parse().ok().filter(|nth| *nth > 0)?;
                let status = CompletionStatus::from_code(status.trim().parse().ok()?);
                Some(Injection { nth, status })
            })
            .collect()
    }
}
