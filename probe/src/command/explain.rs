//! `gda-probe explain CODE`: prints the page of a check (`docs/checks.md`) or of a completion status
//! (`docs/statuses.md`).

use super::CommandError;

/// The pages of checks, each with a heading `### CODE title`.
const CHECKS: &str = include_str!("../../docs/checks.md");
/// The pages of statuses, each with a heading `### STATUS-N NAME`.
const STATUSES: &str = include_str!("../../docs/statuses.md");

/// The page of `code`, in any case. A status can also be named by its name or its number.
pub(crate) fn page(code: &str) -> Result<&'static str, CommandError> {
    let wanted = code.trim().to_ascii_uppercase();
    let wanted = wanted.parse::<u8>().map_or(wanted, |number| format!("STATUS-{number}"));
    let named = |page: &str| page.lines().next().is_some_and(|title| title.ends_with(&format!(" {wanted}")));
    let check = pages(CHECKS).find(|(known, _)| *known == wanted);
    let status = || pages(STATUSES).find(|(known, page)| *known == wanted || named(page));
    check.or_else(status).map(|(_, page)| page).ok_or_else(|| {
        CommandError::Input(format!(
            "{code:?} is not the code of a check or a status; gda-probe check prints the codes of checks, and \
             statuses are STATUS-0 to STATUS-18"
        ))
    })
}

/// The pages of a document: code, and text with the heading.
fn pages(document: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let starts: Vec<usize> = document.match_indices("\n### ").map(|(at, _)| at + 1).collect();
    let mut ends = starts.clone();
    ends.push(document.len());
    starts.into_iter().zip(ends.into_iter().skip(1)).map(move |(start, end)| {
        // The last page of a category ends at the next category.
        let text = &document[start..end];
        let text = text.find("\n## ").map_or(text, |at| &text[..at]).trim_end();
        let code = text.trim_start_matches("### ").split_whitespace().next().unwrap_or_default();
        (code, text.trim_start_matches("### "))
    })
}

#[cfg(test)]
mod tests {
    use efa_gda::wire::CompletionStatus;

    use super::*;
    use crate::checks::registry;

    #[test]
    fn every_status_has_a_page_by_number_and_by_name() {
        for status in CompletionStatus::ALL {
            let by_number = page(&format!("status-{}", status.code())).unwrap();
            assert!(by_number.lines().next().unwrap().ends_with(status.name()), "{status}");
            assert_eq!(page(status.name()).unwrap(), by_number);
        }
    }

    #[test]
    fn every_status_page_has_a_status() {
        assert_eq!(pages(STATUSES).count(), CompletionStatus::ALL.len());
    }

    #[test]
    fn every_check_has_a_page() {
        for check in registry() {
            let page = page(check.code).unwrap();
            assert!(page.lines().next().unwrap().contains(check.title), "{}: another title", check.code);
        }
    }

    #[test]
    fn every_page_has_a_check() {
        for (code, _) in pages(CHECKS) {
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
