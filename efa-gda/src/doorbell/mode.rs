//! Doorbell modes, their names and the fallback order.

use std::fmt;
use std::str::FromStr;

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

/// The doorbell mode that a caller asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellChoice {
    /// The first mode of the fallback order whose parts can be mapped into the device.
    #[default]
    Auto,
    /// This mode, or an error.
    Only(DoorbellMode),
}

impl DoorbellChoice {
    /// The modes to try, in fallback order.
    pub fn candidates(self) -> impl Iterator<Item = DoorbellMode> {
        DoorbellMode::ALL.into_iter().filter(move |mode| match self {
            Self::Auto => true,
            Self::Only(only) => only == *mode,
        })
    }
}

impl From<DoorbellMode> for DoorbellChoice {
    fn from(mode: DoorbellMode) -> Self {
        Self::Only(mode)
    }
}

impl fmt::Display for DoorbellChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(mode) => mode.fmt(f),
        }
    }
}

/// A word that names no doorbell mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a doorbell mode; use direct, record, staged or auto")]
pub struct ParseDoorbellModeError(String);

impl FromStr for DoorbellChoice {
    type Err = ParseDoorbellModeError;

    fn from_str(word: &str) -> Result<Self, ParseDoorbellModeError> {
        match word {
            "auto" => Ok(Self::Auto),
            _ => match DoorbellMode::ALL.into_iter().find(|mode| mode.name() == word) {
                Some(mode) => Ok(Self::Only(mode)),
                None => Err(ParseDoorbellModeError(word.into())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_returns_the_mode_whose_name_was_printed() {
        for choice in DoorbellMode::ALL.map(DoorbellChoice::from).into_iter().chain([DoorbellChoice::Auto]) {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("Direct".parse::<DoorbellChoice>().is_err());
    }

    #[test]
    fn auto_tries_the_best_mode_first_and_a_forced_mode_is_the_only_candidate() {
        assert!(DoorbellChoice::Auto.candidates().eq(DoorbellMode::ALL));
        assert!(DoorbellChoice::Only(DoorbellMode::Record).candidates().eq([DoorbellMode::Record]));
    }
}
