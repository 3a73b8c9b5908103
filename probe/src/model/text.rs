//! Text from outside: from sysfs, libraries, the environment and worker processes. It becomes part of a report only as
//! visible characters of one line, so that no text can pretend to be another line, or move a terminal's cursor.

use std::io::Write as _;

use serde_json::Value;

use crate::terminal;

/// Writes `text` to stderr as one line, wrapped if a terminal shows it. Every message of the probe goes through here.
/// Ignores errors, because there is no other place to report them.
pub(crate) fn note(text: &str) {
    let (mut stderr, text) = (std::io::stderr(), visible(text));
    let _ = match terminal::stated_width(&stderr) {
        Some(width) => write!(stderr, "{}", terminal::wrapped("", 0, &text, width)),
        None => writeln!(stderr, "{text}"),
    };
}

/// `text` with an escape (`\n`, `\u{1b}`) for each character that is not visible: control characters, line and
/// paragraph separators, and marks that change the direction of text.
pub(crate) fn visible(text: &str) -> String {
    if !text.chars().any(is_hidden) {
        return text.to_owned();
    }
    let escape = |character: char| match is_hidden(character) {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Whether a character must not reach a report: it is not visible where it stands.
pub(crate) fn is_hidden(character: char) -> bool {
    let marks = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{feff}'];
    let overrides = ['\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
    character.is_control()
        || marks.contains(&character)
        || overrides.iter().any(|range| range.contains(&character))
}

/// Makes every text in `value` visible, but not names of keys, which are ours.
pub(crate) fn make_visible(value: &mut Value) {
    match value {
        Value::String(text) => *text = visible(text),
        Value::Array(values) => values.iter_mut().for_each(make_visible),
        Value::Object(entries) => entries.values_mut().for_each(make_visible),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_visible_are_escaped_and_others_are_kept() {
        assert_eq!(visible("rdmap1s0 µ 名"), "rdmap1s0 µ 名");
        assert_eq!(visible("a\npass PUT-001\u{1b}[2K"), "a\\npass PUT-001\\u{1b}[2K");
        assert_eq!(visible("\u{9b}31m\u{7f}\u{202e}\u{2028}"), "\\u{9b}31m\\u{7f}\\u{202e}\\u{2028}");
        assert_eq!(visible(&visible("\t")), "\\t");
    }
}
