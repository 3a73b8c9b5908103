//! The rungs, by name.

use std::fmt;
use std::str::FromStr;

/// Who writes entries into the send queue, and who rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DoorbellMode {
    /// The device writes entries and rings. Needs both mapped.
    Direct,
    /// The device writes entries and a record; the host rings. Needs the send queue mapped.
    Record,
    /// The device writes entries and a record into host memory; the host copies and rings. Needs
    /// nothing of the adapter mapped but its completion queue.
    Staged,
}

impl DoorbellMode {
    /// All, the best first.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Record, Self::Staged];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Record => "record",
            Self::Staged => "staged",
        }
    }

    /// What is lost against [`DoorbellMode::Direct`].
    pub const fn lost(self) -> Option<&'static str> {
        match self {
            Self::Direct => None,
            Self::Record => {
                Some("a host thread rings: it adds its latency, and up to its period after a pause")
            }
            Self::Staged => Some(
                "a host thread copies every entry and rings: it adds its latency, its rate bounds all queues \
                 together, and up to its period after a pause",
            ),
        }
    }
}

impl fmt::Display for DoorbellMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rung that a caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellChoice {
    /// The best that maps.
    #[default]
    Auto,
    /// This one, or an error.
    Only(DoorbellMode),
}

impl DoorbellChoice {
    /// The rungs to try, in order.
    pub fn candidates(self) -> impl Iterator<Item = DoorbellMode> {
        DoorbellMode::ALL.into_iter().filter(move |rung| match self {
            Self::Auto => true,
            Self::Only(only) => only == *rung,
        })
    }
}

impl From<DoorbellMode> for DoorbellChoice {
    fn from(rung: DoorbellMode) -> Self {
        Self::Only(rung)
    }
}

impl fmt::Display for DoorbellChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(rung) => rung.fmt(f),
        }
    }
}

/// A word that names no rung.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to ring; direct, record, staged or auto was expected")]
pub struct ParseDoorbellModeError(String);

impl FromStr for DoorbellChoice {
    type Err = ParseDoorbellModeError;

    fn from_str(word: &str) -> Result<Self, ParseDoorbellModeError> {
        match word {
            "auto" => Ok(Self::Auto),
            _ => match DoorbellMode::ALL.into_iter().find(|rung| rung.name() == word) {
                Some(rung) => Ok(Self::Only(rung)),
                None => Err(ParseDoorbellModeError(word.into())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for choice in DoorbellMode::ALL.map(DoorbellChoice::from).into_iter().chain([DoorbellChoice::Auto]) {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("Direct".parse::<DoorbellChoice>().is_err());
    }

    #[test]
    fn auto_tries_the_best_first_and_a_forced_rung_nothing_else() {
        assert!(DoorbellChoice::Auto.candidates().eq(DoorbellMode::ALL));
        assert!(DoorbellChoice::Only(DoorbellMode::Record).candidates().eq([DoorbellMode::Record]));
    }
}
