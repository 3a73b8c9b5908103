//! The results of ranks, in the lines that NVSHMEM-style tests print, which scripts know.

use std::fmt::Write as _;

use super::style::{Paint, Style};
use crate::model::ranks::{Pe, Ranks};
use crate::model::{Document, Memory, Over};

/// Appends a line for each rank of this machine, and a last one if all ranks are known or the exchange failed.
pub(super) fn render(out: &mut String, ranks: &Ranks, document: &Document, style: Style) {
    for pe in ranks.pes.iter().filter(|pe| ranks.here.contains(&pe.rank)) {
        // A line is one for a script, however wide the terminal is.
        let (word, paint) = if pe.verified { ("PASS", Paint::Good) } else { ("FAIL", Paint::Bad) };
        let _ = writeln!(out, "[PE {}] {} - {}", pe.rank, style.paint(word, paint), sentence(pe, ranks));
    }
    // Rank 0 speaks for all.
    if !ranks.here.contains(&0) {
        return;
    }
    let text = conclusion(ranks, document.soft);
    let paint = if ranks.passed() { Paint::Good } else { Paint::Bad };
    // A rank that arrived has the exchange's failure as its own, and one that ended early has the failure's cause.
    let has = |error: &String| {
        let mut errors = ranks.pes.iter().filter_map(|pe| pe.error.as_ref());
        errors.any(|own| own.contains(error) || error.contains(own))
    };
    if let Some(error) = ranks.error.as_ref().filter(|error| !has(error)) {
        out.push_str(&style.wrapped("", 0, &format!("The exchange failed: {error}")));
    }
    let _ = writeln!(out, "{}", style.paint(style.wrapped("", 0, &text).trim_end(), paint));
}

/// How the ranks ended, as far as this process knows.
pub(super) fn conclusion(ranks: &Ranks, soft: bool) -> String {
    let passed = ranks.pes.iter().filter(|pe| pe.verified).count();
    let soft = if soft { "; software adapter: this says nothing of EFA hardware" } else { "" };
    let Ranks { size, bytes, count, via, pes, .. } = ranks;
    let memory = if pes.iter().any(|pe| pe.memory == Some(Memory::Gpu)) { " in GPU memory" } else { "" };
    let path = match pes.iter().filter(|pe| pe.over == Some(Over::Nvlink)).count() {
        0 => format!("via {via}"),
        all if all == pes.len() => "over NVLink".to_owned(),
        some => format!("{some} ranks over NVLink, the others via {via}"),
    };
    format!("{passed} of {size} ranks passed: {count} × {bytes} bytes each{memory}, {path}{soft}")
}

fn sentence(pe: &Pe, ranks: &Ranks) -> String {
    match (&pe.error, pe.got, pe.from) {
        (None, Some(got), Some(from)) => format!("Got expected value {got} from PE {from}"),
        (None, _, _) => {
            let to = pe.to.map_or_else(String::new, |to| format!(" to PE {to}"));
            format!("Put {} × {} bytes{to}", pe.completed, ranks.bytes)
        }
        (Some(error), Some(got), Some(from)) if pe.expected.is_some_and(|expected| expected != got) => {
            let expected = pe.expected.unwrap_or_default();
            format!("Got value {got} from PE {from}, expected {expected}: {error}")
        }
        (Some(error), _, _) => error.clone(),
    }
}
