//! What an adapter does wrong on request: reordering, delay, injected statuses. All of it is legal
//! behaviour of an SRD adapter that a client must survive.

use std::time::Duration;

use efa_gda_wire::CompletionStatus;

/// The faults of one adapter's send side; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests are executed in random order within this many; 0 and 1 keep the order.
    pub reorder_window: u32,
    /// Each request waits this long before it is executed.
    pub delay: Duration,
    /// Requests that complete with a given status and are not executed.
    pub injections: Vec<Injection>,
}

/// One injected status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Which request of the adapter, counted from 1 over all its send queues in the order in which
    /// they are fetched.
    pub nth: u64,
    /// What it completes with.
    pub status: CompletionStatus,
}

impl Faults {
    /// Whether requests go straight through.
    pub(crate) fn none(&self) -> bool {
        self.reorder_window <= 1 && self.delay.is_zero() && self.injections.is_empty()
    }

    /// `N:STATUS,…`
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
