//! The live line on stderr: which check is running, and for how long. It exists on a terminal only, and not
//! with logs, which would be mixed with it.

use std::io::{Stderr, Write};
use std::time::{Duration, Instant};

use crate::checks::rows::row;
use crate::terminal;

/// How often the elapsed time is shown anew.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// Between two lines at least, so that quick checks do not flicker.
const PAUSE: Duration = Duration::from_millis(100);

/// The live line. It is cleared when the value is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    stderr: Stderr,
    live: bool,
    text: String,
    begun: Instant,
    painted: Option<Instant>,
}

impl Progress {
    /// A line that shows nothing yet, and never does without a terminal.
    pub(crate) fn new() -> Self {
        let stderr = std::io::stderr();
        let live = terminal::is_live(&stderr) && !tracing::enabled!(tracing::Level::INFO);
        Self { stderr, live, text: String::new(), begun: Instant::now(), painted: None }
    }

    /// Whether [`Self::tick`] shows anything.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Shows that a check began.
    pub(crate) fn check(&mut self, code: &str, subject: Option<&str>) {
        if !self.live {
            return;
        }
        let title = row(code).map(|row| row.check.title);
        let subject = subject.map(|subject| format!(" [{subject}]")).unwrap_or_default();
        self.show(format!("{code}{subject} {}", title.unwrap_or_default()), PAUSE);
    }

    /// Shows a step of a long check; an empty step ends the line.
    pub(crate) fn step(&mut self, done: usize, total: usize, now: &str) {
        if now.is_empty() {
            self.clear();
        } else {
            self.show(format!("[{done}/{total}] {now}"), Duration::ZERO);
        }
    }

    fn show(&mut self, text: String, pause: Duration) {
        self.text = text;
        self.begun = Instant::now();
        if self.painted.is_none_or(|painted| painted.elapsed() >= pause) {
            self.tick();
        }
    }

    /// Shows the line with the time that has passed since the check or the step began.
    pub(crate) fn tick(&mut self) {
        if !self.live || self.text.is_empty() {
            return;
        }
        let seconds = self.begun.elapsed().as_secs();
        let elapsed = if seconds == 0 { String::new() } else { format!(" ({seconds} s)") };
        let room = terminal::width(&self.stderr).saturating_sub(elapsed.len() + 1);
        let line = terminal::shortened(&format!("running {}", self.text), room);
        self.write(&format!("{line}{elapsed}"));
        self.painted = Some(Instant::now());
    }

    fn clear(&mut self) {
        self.text.clear();
        if self.painted.take().is_some() {
            self.write("");
        }
    }

    fn write(&mut self, line: &str) {
        // Progress is not part of the report, so a write error is ignored.
        let _ = write!(self.stderr, "\r\x1b[K{line}").and_then(|()| self.stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
