//! `gda-probe explain CODE`: prints the page of a check (`docs/checks.md`), with its usual fix and who can apply
//! it, or of a completion status (`docs/statuses.md`). Without a code, all of them.

use serde::Serialize;

use super::CommandError;
use crate::model::{Action, SCHEMA, Who};
use crate::remedy;
use crate::terminal::wrapped_whole;

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
            "{code:?} is not the code of a check or a status; the nearest are {}; gda-probe explain lists all codes",
            nearest(&wanted).join(", ")
        ))
    })
}

/// The three codes nearest to `wanted`, nearest first: codes of its category, as far as it has them.
fn nearest(wanted: &str) -> Vec<&'static str> {
    let mut codes: Vec<&str> = pages(CHECKS).chain(pages(STATUSES)).map(|(code, _)| code).collect();
    let near = |code: &str| strsim::jaro_winkler(wanted, code);
    codes.sort_by(|left, right| near(right).total_cmp(&near(left)));
    codes.truncate(3);
    codes
}

/// One page or all.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    schema: &'static str,
    command: &'static str,
    #[serde(flatten)]
    pages: Pages,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Pages {
    One(Page),
    All { codes: Vec<Page> },
}

/// A page: what a code means, and what is done about it.
#[derive(Debug, Serialize)]
struct Page {
    code: &'static str,
    title: &'static str,
    text: &'static str,
    /// The usual fix; absent for statuses, whose text has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'static str>,
    /// The roles that can apply it.
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'static [Who]>,
    /// What is done with the node if its operator applies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
}

impl Page {
    /// The page whose first line holds code and title.
    fn of(page: &'static str) -> Self {
        let (heading, text) = page.split_once('\n').unwrap_or((page, ""));
        let (code, title) = heading.split_once(' ').unwrap_or((heading, ""));
        let remedy = remedy::of(code);
        let of_host = remedy.filter(|remedy| remedy.who.contains(&Who::Host));
        Self {
            code,
            title,
            text: text.trim(),
            fix: remedy.map(|remedy| remedy.fix),
            who: remedy.map(|remedy| remedy.who),
            action: of_host.map(|remedy| remedy.of_host),
        }
    }

    fn text(&self, width: usize) -> String {
        let mut out = wrapped_whole(&format!("{} ", self.code), self.code.len() + 1, self.title, width);
        for paragraph in self.text.split("\n\n") {
            out.push('\n');
            out.push_str(&wrapped_whole("", 0, paragraph, width));
        }
        let Some((fix, who)) = self.fix.zip(self.who) else { return out };
        out.push('\n');
        out.push_str(&wrapped_whole("fix   ", 6, fix, width));
        let mut roles: Vec<String> = who.iter().map(|who| who.person().to_owned()).collect();
        roles.extend(self.action.map(|action| format!("on the host: {}", action.request())));
        out.push_str(&wrapped_whole("who   ", 6, &roles.join("; "), width));
        out
    }
}

impl Explained {
    /// The pages for people.
    pub(crate) fn text(&self, width: usize) -> String {
        match &self.pages {
            Pages::One(page) => page.text(width),
            Pages::All { codes } => {
                let line = |page: &Page| wrapped_whole(&format!("{:<10} ", page.code), 11, page.title, width);
                codes.iter().map(line).collect()
            }
        }
    }
}

/// Explains `code`, or all codes.
pub(crate) fn of(code: Option<&str>) -> Result<Explained, CommandError> {
    let pages = match code {
        Some(code) => Pages::One(Page::of(page(code)?)),
        None => Pages::All {
            codes: pages(CHECKS).chain(pages(STATUSES)).map(|(_, page)| Page::of(page)).collect(),
        },
    };
    Ok(Explained { schema: SCHEMA, command: "explain", pages })
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

    /// A page is wrapped, which would join the lines of a table, a list or a block of code.
    #[test]
    fn every_page_is_prose() {
        for (code, page) in pages(CHECKS).chain(pages(STATUSES)) {
            assert!(
                !page.split("\n\n").any(|part| part.starts_with(['|', '-', '`']) && part.contains('\n')),
                "{code}"
            );
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
