//! Warnings for `SOFTEFA_*` environment variables that nothing reads, such as misspelt names. The values of
//! known variables are checked where they are read: in `config` and [`AdapterConfig::with_variables`].

use std::cell::RefCell;
use std::env;

use crate::device::{AdapterConfig, Gid, say};

use super::config::Config;

const PREFIX: &str = "SOFTEFA_";

/// The prefix of variables that tests set for themselves.
const TEST_PREFIX: &str = "SOFTEFA_TEST_";

/// Variables that this crate reads elsewhere than in its two configurations.
const READ_ELSEWHERE: [&str; 3] = ["SOFTEFA_LOG", "SOFTEFA_LIBCUDA", "SOFTEFA_CUDA_TIMEOUT_MS"];

/// Variables of other programs: `softefa run`, `softefa serve` and `gda-probe`. They are often set for a
/// whole session, so a program on the libfabric frontend inherits them.
const READ_BY_OTHERS: [&str; 6] = [
    "SOFTEFA_CAPTURE",
    "SOFTEFA_CQ_DOORBELL",
    "SOFTEFA_FIRST_COUNTER",
    "SOFTEFA_LIBRARY",
    "SOFTEFA_PRELOAD",
    "SOFTEFA_SOCKET",
];

/// Writes a line to stderr for each variable of this process whose name starts with `SOFTEFA_` and is not
/// known.
pub(super) fn warn_of_unknown_variables() {
    let known = known_names();
    for (name, _) in env::vars_os() {
        if let Some(warning) = warning(&name.to_string_lossy(), &known) {
            say(format_args!("warning: {warning}"));
        }
    }
}

/// The warning for the variable `name`; `None` if it is known, or not softefa's.
fn warning(name: &str, known: &[&str]) -> Option<String> {
    if !name.starts_with(PREFIX) || name.starts_with(TEST_PREFIX) || known.contains(&name) {
        return None;
    }
    let nearest = known.iter().min_by_key(|known| edit_distance(name, known))?;
    Some(format!(
        "the environment variable {name} is set, but softefa reads no variable of that name; the nearest known name \
         is {nearest}; correct the name or unset the variable"
    ))
}

/// The names of all known variables. The names in the two configurations are recorded by parsing an empty
/// environment.
fn known_names() -> Vec<&'static str> {
    let names = RefCell::new([&READ_ELSEWHERE[..], &READ_BY_OTHERS[..]].concat());
    let record = |name| {
        names.borrow_mut().push(name);
        None
    };
    // An empty environment has no invalid value, so both calls succeed and look up every variable.
    let _ = Config::parse(record);
    let _ = AdapterConfig::new(Gid([0; 16])).with_variables(record);
    names.into_inner()
}

/// The Levenshtein distance: the fewest insertions, deletions and replacements of a byte that turn one into
/// the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let to = to.as_bytes();
    // distances[i]: from the bytes of `from` read so far to the first i bytes of `to`.
    let mut distances: Vec<usize> = (0..=to.len()).collect();
    for (row, byte) in from.bytes().enumerate() {
        let mut diagonal = distances[0];
        distances[0] = row + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(byte != *other);
            diagonal = distances[column + 1];
            distances[column + 1] = replaced.min(diagonal + 1).min(distances[column] + 1);
        }
    }
    distances[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_reported_with_the_nearest_known_name() {
        for (misspelt, nearest) in [
            ("SOFTEFA_ADAPTER", "SOFTEFA_ADAPTERS"),
            ("SOFTEFA_MAXBATCH", "SOFTEFA_MAX_BATCH"),
            ("SOFTEFA_REODER", "SOFTEFA_REORDER"),
        ] {
            let warning = warning(misspelt, &known_names()).expect("the name is not known");
            assert!(warning.contains(&format!("{misspelt} is set")), "{warning}");
            assert!(warning.contains(&format!("the nearest known name is {nearest};")), "{warning}");
        }
    }

    #[test]
    fn known_names_and_other_prefixes_are_not_reported() {
        let known = known_names();
        for name in
            ["SOFTEFA_LOG", "SOFTEFA_BREAK", "SOFTEFA_SEED", "SOFTEFA_SOCKET", "SOFTEFA_TEST_X", "PATH"]
        {
            assert_eq!(warning(name, &known), None, "{name}");
        }
    }

    #[test]
    fn every_variable_of_the_manual_is_known() {
        let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/softefa.md");
        let manual = std::fs::read_to_string(manual).expect("the repository has the manual");
        let known = known_names();
        let rows = manual.lines().filter(|line| line.starts_with("| `SOFTEFA_"));
        let names: Vec<&str> = rows
            .filter_map(|row| row.split('|').nth(1))
            .flat_map(|cell| cell.split('`'))
            .filter(|part| part.starts_with(PREFIX))
            .collect();
        assert!(names.len() >= 30, "{names:?}");
        let unknown: Vec<&&str> = names.iter().filter(|name| !known.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
