//! `gda-probe explain CODE`: the page of a check, from `docs/checks.md`.

use super::CommandError;

/// The pages, each under a heading of the form `### CODE title`.
const PAGES: &str = include_str!("../../../docs/checks.md");

/// The page of `code`, whatever its case.
pub(crate) fn page(code: &str) -> Result<&'static str, CommandError> {
    let wanted = code.trim().to_ascii_uppercase();
    pages().find(|(known, _)| *known == wanted).map(|(_, page)| page).ok_or_else(|| {
        CommandError::Input(format!("there is no check {code:?}; gda-probe check prints the codes there are"))
    })
}

/// Every page: its code and its text, heading included.
fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    let starts: Vec<usize> = PAGES.match_indices("\n### ").map(|(at, _)| at + 1).collect();
    let mut ends = starts.clone();
    ends.push(PAGES.len());
    starts.into_iter().zip(ends.into_iter().skip(1)).map(|(start, end)| {
        // A page ends where the next category begins.
        let text = &PAGES[start..end];
        let text = text.find("\n## ").map_or(text, |at| &text[..at]).trim_end();
        let code = text.trim_start_matches("### ").split_whitespace().next().unwrap_or_default();
        (code, text.trim_start_matches("### "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::registry;

    #[test]
    fn every_check_has_a_page() {
        for check in registry() {
            let page = page(check.code).unwrap();
            assert!(page.lines().next().unwrap().contains(check.title), "{}: another title", check.code);
        }
    }

    #[test]
    fn every_page_has_a_check() {
        for (code, _) in pages() {
            assert!(registry().iter().any(|check| check.code == code), "no check {code}");
        }
    }

    #[test]
    fn codes_are_unique() {
        let mut codes: Vec<_> = registry().iter().map(|check| check.code).collect();
        codes.sort_unstable();
        let count = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }
}
