//! The terminal: its width, whether it accepts colours and live lines, and text wrapped to a width.

use std::io::IsTerminal;
use std::os::fd::AsFd;

/// Columns of a line where neither `COLUMNS` nor a terminal states them.
const DEFAULT_WIDTH: usize = 80;
/// The narrowest and the widest line; wider lines are hard to read, narrower ones hold no sentence.
const WIDTHS: (usize, usize) = (40, 120);

/// Whether a stream is a terminal that understands escape sequences.
pub(crate) fn is_live(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether a stream shows colours: it is a terminal that understands them, and NO_COLOR is not set.
pub(crate) fn is_coloured(stream: &impl IsTerminal) -> bool {
    is_live(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The columns of a line on `stream`: those that `COLUMNS` or a terminal states, or 80.
pub(crate) fn width(stream: &impl AsFd) -> usize {
    stated_width(stream).unwrap_or(DEFAULT_WIDTH)
}

/// The columns of a line on `stream`: `COLUMNS`, or the terminal's width. None in a pipe, where a line is one for a
/// script.
pub(crate) fn stated_width(stream: &impl AsFd) -> Option<usize> {
    let stated = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let of_terminal = || terminal_size::terminal_size_of(stream).map(|(width, _)| usize::from(width.0));
    let width = stated.filter(|columns| *columns > 0).or_else(of_terminal);
    Some(width.filter(|columns| *columns > 0)?.clamp(WIDTHS.0, WIDTHS.1))
}

/// `text` after `first`, in lines of at most `width` columns; further lines begin with spaces up to the end of
/// `first`. A word is not broken, so that paths can be copied; one that does not fit beside `first` begins further left.
/// `columns` is the width of `first` without escape sequences.
pub(crate) fn wrapped(first: &str, columns: usize, text: &str, width: usize) -> String {
    let mut out = first.to_owned();
    let mut column = columns;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if length <= width && columns + length > width {
            let left = width - length;
            out.truncate(out.trim_end().len());
            if !out.is_empty() {
                out.push('\n');
            }
            out.push_str(&" ".repeat(left));
            out.push_str(word);
            column = width;
            continue;
        }
        if column > columns {
            if column + 1 + length > width {
                out.push('\n');
                out.push_str(&" ".repeat(columns));
                column = columns;
            } else {
                out.push(' ');
                column += 1;
            }
        }
        out.push_str(word);
        column += length;
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// As [`wrapped`], but breaks a word that is longer than a line, at one of its parts if it has any.
pub(crate) fn wrapped_whole(first: &str, columns: usize, text: &str, width: usize) -> String {
    let mut words = Vec::new();
    for mut word in text.split_whitespace() {
        while let Some((end, _)) = word.char_indices().nth(width) {
            let part = word[..end].rfind(['_', '/', '=']).map_or(end, |at| at + 1);
            words.push(&word[..part]);
            word = &word[part..];
        }
        words.push(word);
    }
    wrapped(first, columns, &words.join(" "), width)
}

/// The lines of `text`, each wrapped to `width` columns with its own indent.
pub(crate) fn wrapped_lines(text: &str, width: usize) -> String {
    let wrap = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        wrapped(&line[..indent], indent, line, width)
    };
    text.lines().map(wrap).collect()
}

/// `text` with at most `width` characters; a shortened text ends with "…".
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_keep_the_indent_and_the_width() {
        let text = wrapped("  fix  ", 7, "one two three four five six seven", 20);
        assert_eq!(text, "  fix  one two three\n       four five six\n       seven\n");
    }

    #[test]
    fn a_long_word_is_not_broken() {
        assert_eq!(wrapped("a ", 2, "x /a/very/long/path y", 8), "a x\n  /a/very/long/path\n  y\n");
        assert_eq!(wrapped("    ab  ", 8, "x /a/path y", 10), "    ab  x\n   /a/path\n        y\n");
        assert_eq!(wrapped("    ab  ", 8, "/a/path y", 12), "    ab\n     /a/path\n        y\n");
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_is_broken_on_request() {
        assert_eq!(wrapped_whole("S-2 ", 4, "LOCAL_ERROR_BAD x", 10), "S-2 LOCAL_\n ERROR_BAD\n    x\n");
        assert_eq!(wrapped_whole("", 0, "abcdefgh", 5), "abcde\nfgh\n");
    }

    #[test]
    fn a_shortened_text_has_the_width_and_says_so() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abcde…");
    }
}
