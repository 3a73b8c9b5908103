//! Lines on stderr. A stderr that cannot be written, or a pipe that nobody reads, must not fail or stop the thread that
//! writes: such a line is lost.

use std::fmt::Arguments;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// Milliseconds that a line waits for room; 0 if the line before it was lost.
const PATIENCE: libc::c_int = 1000;
/// Bytes of a line. A pipe with room has room for 4,096 bytes, so such a line does not block, unless another
/// process takes the room.
const MAX_LINE: usize = 4000;

/// Whether the last line was lost. Relaxed: it orders nothing.
static LOST: AtomicBool = AtomicBool::new(false);

/// Writes `softefa: MESSAGE` to stderr, if stderr takes it. For softefa's own programs.
#[doc(hidden)]
pub fn say(message: Arguments<'_>) {
    let mut line = format!("softefa: {message}").into_bytes();
    line.truncate(MAX_LINE);
    line.push(b'\n');
    // Before the poll, so that no other thread takes the room.
    let mut stderr = io::stderr().lock();
    let mut polled = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    let patience = if LOST.load(Ordering::Relaxed) { 0 } else { PATIENCE };
    // SAFETY: one pollfd, which lives during the call.
    let has_room = unsafe { libc::poll(&raw mut polled, 1, patience) } > 0;
    // eprintln! would panic if stderr cannot be written.
    let is_written = has_room && stderr.write_all(&line).is_ok();
    LOST.store(!is_written, Ordering::Relaxed);
}
