//! Doorbell modes, their names and the fallback order.

use std::fmt;

/// Which side writes entries into the send queue, and which side rings. Each mode states which of the adapter's parts
/// for sending must be mapped into the device. In every mode the device also needs the completion queue, completion
/// counters, or a proxy that relays completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DoorbellMode {
    /// The device writes entries and rings. Send queue and doorbell must be mapped into the device.
    Direct,
    /// The device writes entries and a doorbell record; the host rings. The send queue must be mapped into the
    /// device. At most `max_batch` requests are in flight.
    Record,
    /// The device writes entries and a doorbell record into host memory; the host copies and rings. Neither the
    /// adapter's send queue nor its doorbell need be mapped into the device.
    Staged,
}

impl DoorbellMode {
    /// All modes in fallback order, the best first.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Record, Self::Staged];

    /// The modes to try, in fallback order: `only` this one, or all.
    pub fn candidates(only: Option<Self>) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |mode| only.is_none_or(|only| only == *mode))
    }

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Record => "record",
            Self::Staged => "staged",
        }
    }

    /// What the mode costs against [`DoorbellMode::Direct`].
    pub const fn cost(self) -> Option<&'static str> {
        match self {
            Self::Direct => None,
            Self::Record => Some(
                "a host thread rings: its latency delays each doorbell, and after a pause its sleep period delays the \
                 first one",
            ),
            Self::Staged => Some(
                "a host thread copies every entry and rings: its latency delays each doorbell, after a pause its \
                 sleep period delays the first one, and its copy rate bounds the rate of all queues together",
            ),
        }
    }
}

impl fmt::Display for DoorbellMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_mode_is_tried_first_and_a_named_mode_is_the_only_candidate() {
        assert!(DoorbellMode::candidates(None).eq(DoorbellMode::ALL));
        assert!(DoorbellMode::candidates(Some(DoorbellMode::Record)).eq([DoorbellMode::Record]));
    }
}
