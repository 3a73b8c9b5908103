//! Colour, width and level of detail of a report.

use crate::model::State;
use crate::terminal;

/// Colour, width and level of detail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    colour: bool,
    /// Columns of a line.
    pub(crate) width: usize,
    /// Whether every check is shown.
    pub(crate) verbose: bool,
}

/// Styles of a text, as parameters of an SGR sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paint {
    Bold,
    Good,
    Costly,
    Bad,
    Quiet,
}

impl Style {
    /// The style for stdout.
    pub(crate) fn of_stdout(verbose: bool) -> Self {
        let stdout = std::io::stdout();
        Self { colour: terminal::is_coloured(&stdout), width: terminal::width(&stdout), verbose }
    }

    /// The style of a file: without colour, 100 columns, every check.
    pub(crate) fn of_file() -> Self {
        Self { colour: false, width: 100, verbose: true }
    }

    /// `text` in a colour, if there are colours.
    pub(crate) fn paint(self, text: &str, paint: Paint) -> String {
        let code = match paint {
            Paint::Bold => "1",
            Paint::Good => "32;1",
            Paint::Costly => "33;1",
            Paint::Bad => "31;1",
            Paint::Quiet => "2",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The word for a state, four columns wide.
    pub(crate) fn mark(self, state: State) -> String {
        match state {
            State::Pass => self.paint("pass", Paint::Good),
            State::Warn => self.paint("WARN", Paint::Costly),
            State::Fail => self.paint("FAIL", Paint::Bad),
            State::Skip => self.paint("skip", Paint::Quiet),
            State::Unknown => self.paint("  ? ", Paint::Quiet),
        }
    }

    /// [`Self::wrapped`], with each command or line of a file, which backticks mark, unbroken on a line of its own.
    pub(crate) fn with_commands(self, first: &str, columns: usize, text: &str) -> String {
        let mut out = String::new();
        for (index, part) in text.split('`').enumerate() {
            let indent = " ".repeat(columns);
            match (index % 2, index) {
                (0, 0) => out.push_str(&self.wrapped(first, columns, part)),
                (0, _) if part.trim().is_empty() => {}
                (0, _) => out.push_str(&self.wrapped(&indent, columns, part)),
                _ => out.push_str(&format!("{indent}{part}\n")),
            }
        }
        out
    }

    /// `text` after `first`, wrapped; `first` has `columns` columns.
    pub(crate) fn wrapped(self, first: &str, columns: usize, text: &str) -> String {
        terminal::wrapped(first, columns, text, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::Style;

    #[test]
    fn a_command_is_on_a_line_of_its_own_and_is_never_broken() {
        let style = Style { colour: false, width: 20, verbose: false };
        let text =
            style.with_commands("fix ", 4, "first do this: `modprobe -r efa ib_uverbs` then reboot the host");
        assert_eq!(
            text,
            "fix first do this:\n    modprobe -r efa ib_uverbs\n    then reboot the\n    host\n"
        );
    }
}
