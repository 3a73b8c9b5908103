//! The rungs, by name.

use std::fmt;
use std::str::FromStr;

/// Who writes entries into the send queue, and who rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rung {
    /// The device writes entries and rings. Needs both mapped.
    Direct,
    /// The device writes entries and a record; the host rings. Needs the send queue mapped.
    Record,
    /// The device writes entries and a record into host memory; the host copies and rings. Needs
    /// nothing of the adapter mapped but its completion queue.
    Staged,
}

impl Rung {
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

    /// What is lost against [`Rung::Direct`].
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

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rung that a caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RungChoice {
    /// The best that maps.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Rung),
}

impl RungChoice {
    /// The rungs to try, in order.
    pub fn candidates(self) -> impl Iterator<Item = Rung> {
        Rung::ALL.into_iter().filter(move |rung| match self {
            Self::Auto => true,
            Self::Only(only) => only == *rung,
        })
    }
}

impl From<Rung> for RungChoice {
    fn from(rung: Rung) -> Self {
        Self::Only(rung)
    }
}

impl fmt::Display for RungChoice {
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
pub struct ParseRungError(String);

impl FromStr for RungChoice {
    type Err = ParseRungError;

    fn from_str(word: &str) -> Result<Self, ParseRungError> {
        match word {
            "auto" => Ok(Self::Auto),
            _ => match Rung::ALL.into_iter().find(|rung| rung.name() == word) {
                Some(rung) => Ok(Self::Only(rung)),
                None => Err(ParseRungError(word.into())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for choice in Rung::ALL.map(RungChoice::from).into_iter().chain([RungChoice::Auto]) {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("Direct".parse::<RungChoice>().is_err());
    }

    #[test]
    fn auto_tries_the_best_first_and_a_forced_rung_nothing_else() {
        assert!(RungChoice::Auto.candidates().eq(Rung::ALL));
        assert!(RungChoice::Only(Rung::Record).candidates().eq([Rung::Record]));
    }
}
