//! `gda-probe explain CODE`: prints the page of a check with its usual fix and who can apply it, or of a completion
//! status (`docs/statuses.md`). Without a code, all of them; with other text, what has it: symptoms of
//! `docs/troubleshooting.md`, and pages.

use serde::Serialize;

use super::CommandError;
use crate::check::Check;
use crate::checks::rows::rows;
use crate::model::{Action, CATEGORIES, Party, SCHEMA, Who};
use crate::terminal::wrapped_whole;

/// The pages of statuses, each with a heading `### STATUS-N NAME`.
const STATUSES: &str = include_str!("../../docs/statuses.md");

/// Tables of symptoms.
const TROUBLESHOOTING: &str = include_str!("../../docs/troubleshooting.md");

/// The page of `code`, in any case. A status can also be named by its name or its number.
fn page(code: &str) -> Option<Page> {
    let wanted = code.trim().to_ascii_uppercase();
    let wanted = wanted.parse::<u8>().map_or(wanted, |number| format!("STATUS-{number}"));
    all().find(|page| page.code == wanted || (page.fix.is_none() && page.title == wanted))
}

/// A row of the tables of symptoms.
#[derive(Debug)]
struct Symptom {
    text: String,
    helps: String,
    /// The codes of the checks that report it; none for a fault of a program.
    codes: Vec<&'static str>,
}

/// All rows of the tables of symptoms.
fn symptoms() -> impl Iterator<Item = Symptom> {
    let rows =
        TROUBLESHOOTING.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| symptom"));
    rows.filter_map(|line| {
        let mut columns = line.trim_matches('|').split(" | ").map(str::trim);
        let (text, helps) = (columns.next()?, columns.next()?);
        let codes = columns.next().unwrap_or_default().split('[').filter_map(|link| link.split(']').next());
        let codes = codes.filter_map(code_of).collect();
        Some(Symptom { text: plain(text), helps: plain(helps), codes })
    })
}

/// The code of a check; None for other text.
fn code_of(code: &str) -> Option<&'static str> {
    checks().map(|check| check.code).find(|known| *known == code)
}

/// Markdown without the addresses of links and without marks of code.
fn plain(text: &str) -> String {
    let mut out = text.replace('`', "");
    while let Some(end) = out.find("](") {
        let close = out[end..].find(')').map_or(out.len() - 1, |at| end + at);
        out.replace_range(end..=close, "");
        if let Some(open) = out[..end].rfind('[') {
            out.remove(open);
        }
    }
    out
}

/// What has `text`, without regard to case and marks: symptoms, and the pages of checks and statuses, those of the
/// symptoms first.
fn search(text: &str) -> Option<Pages> {
    let key = |text: &str| text.to_lowercase().replace('`', "");
    let wanted = key(text);
    let symptoms: Vec<_> = symptoms().filter(|one| key(&one.text).contains(&wanted)).collect();
    let is_named = |page: &Page| symptoms.iter().any(|one| one.codes.contains(&page.code));
    let has = |page: &Page| key(page.text).contains(&wanted) || key(page.title).contains(&wanted);
    let (mut codes, others): (Vec<_>, Vec<_>) = all().partition(is_named);
    codes.extend(others.into_iter().filter(has));
    (!codes.is_empty() || !symptoms.is_empty()).then_some(Pages::Found { codes, symptoms })
}

/// The three codes nearest to `wanted`, nearest first: codes of its category, as far as it has them.
fn nearest(wanted: &str) -> Vec<&'static str> {
    let mut codes: Vec<&str> = all().map(|page| page.code).collect();
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
    All {
        codes: Vec<Page>,
    },
    Found {
        codes: Vec<Page>,
        #[serde(skip)]
        symptoms: Vec<Symptom>,
    },
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
    who: Option<Vec<Who>>,
    #[serde(skip)]
    parties: &'static [Party],
    /// What is done with the node if its operator applies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
}

impl Page {
    fn of_check(check: &'static Check) -> Self {
        let mut who: Vec<Who> = check.who.iter().map(|party| party.role()).collect();
        who.dedup();
        let action = who.contains(&Who::Host).then_some(check.of_host);
        let (code, title, text) = (check.code, check.title, check.page);
        Self { code, title, text, fix: Some(check.fix), who: Some(who), parties: check.who, action }
    }

    /// The page of a status, whose first line holds code and title.
    fn of_status(page: &'static str) -> Self {
        let (heading, text) = page.split_once('\n').unwrap_or((page, ""));
        let (code, title) = heading.split_once(' ').unwrap_or((heading, ""));
        Self { code, title, text: text.trim(), fix: None, who: None, parties: &[], action: None }
    }

    fn text(&self, width: usize) -> String {
        let mut out = wrapped_whole(&format!("{} ", self.code), self.code.len() + 1, self.title, width);
        for paragraph in self.text.split("\n\n") {
            out.push('\n');
            out.push_str(&wrapped_whole("", 0, paragraph, width));
        }
        let Some(fix) = self.fix else { return out };
        out.push('\n');
        out.push_str(&wrapped_whole("fix   ", 6, fix, width));
        let mut roles: Vec<String> = self.parties.iter().map(|party| party.person().to_owned()).collect();
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
            Pages::All { codes } => list(codes, width),
            Pages::Found { codes, symptoms } => {
                let one = |symptom: &Symptom| {
                    let checks = symptom.codes.join(", ");
                    let by = if checks.is_empty() { String::new() } else { format!(" ({checks})") };
                    wrapped_whole("", 2, &symptom.text, width)
                        + &wrapped_whole("  helps  ", 9, &format!("{}{by}", symptom.helps), width)
                        + "\n"
                };
                symptoms.iter().map(one).collect::<String>() + &list(codes, width)
            }
        }
    }
}

/// Codes and titles, one page a line.
fn list(pages: &[Page], width: usize) -> String {
    let line = |page: &Page| wrapped_whole(&format!("{:<10} ", page.code), 11, page.title, width);
    pages.iter().map(line).collect()
}

/// Explains a code, or what has the text; without text, all codes.
pub(crate) fn of(text: &str) -> Result<Explained, CommandError> {
    let unknown = || {
        CommandError::Input(format!(
            "{text:?} is not the code of a check or a status, and no page has this text; the nearest are {}; gda-probe \
             explain lists all codes",
            nearest(&text.to_ascii_uppercase()).join(", ")
        ))
    };
    let pages = match page(text) {
        _ if text.is_empty() => Pages::All { codes: all().collect() },
        Some(page) => Pages::One(page),
        None => search(text).ok_or_else(unknown)?,
    };
    Ok(Explained { schema: SCHEMA, command: "explain", pages })
}

/// All pages: those of checks by category and number, then those of statuses.
fn all() -> impl Iterator<Item = Page> {
    checks().map(Page::of_check).chain(statuses().map(Page::of_status))
}

/// All checks by category and number.
fn checks() -> impl Iterator<Item = &'static Check> {
    CATEGORIES.iter().flat_map(|(category, _)| {
        let mut all: Vec<_> =
            rows().map(|row| &row.check).filter(|one| one.category() == *category).collect();
        all.sort_by_key(|check| check.code);
        all
    })
}

/// The pages of statuses, each with its heading.
fn statuses() -> impl Iterator<Item = &'static str> {
    STATUSES.split("\n### ").skip(1).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use efa_gda::wire::CompletionStatus;

    use super::*;

    #[test]
    fn every_status_has_a_page_by_number_and_by_name() {
        for status in CompletionStatus::ALL {
            let by_number = page(&format!("status-{}", status.code())).unwrap();
            assert!(by_number.title.ends_with(status.name()), "{status}");
            assert_eq!(page(status.name()).unwrap().text, by_number.text);
        }
    }

    #[test]
    fn every_status_page_has_a_status() {
        assert_eq!(statuses().count(), CompletionStatus::ALL.len());
    }

    #[test]
    fn text_that_people_search_for_leads_to_symptoms_and_pages() {
        for (text, code) in [
            ("strong signals are required", "ENV-007"),
            ("GDR_OPEN error", "DEV-009"),
            ("peermappingoverride", "CUDA-002"),
            ("fi_getinfo: -61", "FAB-001"),
        ] {
            let Some(Pages::Found { codes, .. }) = search(text) else { panic!("nothing has {text}") };
            assert!(codes.iter().any(|page| page.code == code), "{text}: {codes:?}");
        }
        let of_program = search("Unexpected number of remote rails");
        assert!(matches!(of_program, Some(Pages::Found { symptoms, .. }) if symptoms.len() == 1));
        assert!(search("no page has this").is_none());
    }

    #[test]
    fn links_and_marks_are_no_part_of_a_symptom() {
        assert_eq!(plain("`a` ([b](c.md#d)), [e](f) [95]"), "a (b), e [95]");
    }

    /// A page is wrapped, which would join the lines of a table, a list or a block of code.
    #[test]
    fn every_page_is_prose() {
        for page in all() {
            let is_block = |part: &str| part.starts_with(['|', '-', '`']) && part.contains('\n');
            assert!(!page.text.split("\n\n").any(is_block), "{}", page.code);
        }
    }

    /// Writes the section of each check into `docs/checks.md` with `EFA_GDA_BLESS=1`, and otherwise compares it.
    #[test]
    fn the_documentation_has_the_pages_of_the_rows() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/checks.md");
        let found = std::fs::read_to_string(file).unwrap();
        let (head, _) = found.split_once("\n## ENV: ").unwrap();
        let mut expected = head.to_owned();
        for (category, title) in CATEGORIES {
            let of_category = checks().filter(|check| check.category() == category);
            expected.push_str(&format!("\n## {category}: {}\n", lower(title)));
            for check in of_category {
                expected.push_str(&format!("\n### {} {}\n{}\n", check.code, check.title, check.page));
            }
        }
        if std::env::var_os("EFA_GDA_BLESS").is_some() {
            std::fs::write(file, &expected).unwrap();
            return;
        }
        assert!(
            found == expected,
            "{file} differs from the rows: EFA_GDA_BLESS=1 cargo test -p gda-probe --bins pages_of_the_rows"
        );
    }

    /// A title inside a heading: its first letter is small, unless it begins an abbreviation.
    fn lower(title: &str) -> String {
        match title.chars().nth(1) {
            Some(second) if second.is_uppercase() => title.to_owned(),
            _ => title[..1].to_lowercase() + &title[1..],
        }
    }
}
