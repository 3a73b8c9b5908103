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

/// `text` with an escape (`\n`, `\u{1b}`) for each character that is not visible ([`is_hidden`]).
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

/// Whether a character must not reach a report, because it is not visible where it stands: what Rust escapes (control and
/// format characters, marks of direction, spaces other than the usual one, marks that join the letter before), and letters
/// without a shape.
pub(crate) fn is_hidden(character: char) -> bool {
    let shapeless = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];
    let is_escaped = !['"', '\'', '\\'].contains(&character) && character.escape_debug().len() > 1;
    is_escaped || shapeless.contains(&character)
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
        assert_eq!(visible("a\u{200b}\u{2060}\u{ad}\u{e0041}\u{3164}b").matches("\\u{").count(), 5);
        assert_eq!(visible("\"it's\" \\"), "\"it's\" \\");
        assert_eq!(visible(&visible("\t")), "\\t");
    }
}
