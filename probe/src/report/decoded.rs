//! A decoded entry for people.

use super::style::{Paint, Style};
use crate::decode::Decoded;

/// Appends the fields and the broken rules.
pub(super) fn render(out: &mut String, decoded: &Decoded, style: Style) {
    out.push_str(&format!("{} of {} bytes\n", decoded.kind, decoded.bytes));
    for field in &decoded.fields {
        let position = match &field.bits {
            Some(bits) => format!("{}[{bits}]", field.offset),
            None => field.offset.to_string(),
        };
        let first = format!("  {position:<9} {:<21} {:<20} ", field.name, field.value);
        // A narrow terminal has the meaning on lines of its own.
        let columns = if style.width >= 90 { first.chars().count() } else { 12 };
        let text = if columns == 12 { format!("{}\n", first.trim_end()) } else { String::new() };
        out.push_str(&text);
        let first = if columns == 12 { " ".repeat(12) } else { first };
        out.push_str(&style.wrapped(&first, columns, field.meaning));
    }
    for rule in &decoded.broken {
        let text = style.wrapped("  broken rule: ", 15, rule);
        out.push_str(&format!("{}\n", style.paint(text.trim_end(), Paint::Bad)));
    }
    if decoded.broken.is_empty() {
        out.push_str("  no rule is broken\n");
    }
}
