//! Lines on stderr. A stderr that is closed, full, or a pipe that nobody reads must not end or stop the broker: such a
//! line is lost, and after it every other.

use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, poll};

/// Milliseconds that a line waits for room.
const PATIENCE: u16 = 1000;
/// Bytes of a line. A pipe with room has room for 4,096 bytes, so that such a line cannot block.
const MAX_LINE: usize = 4000;

static LOST: AtomicBool = AtomicBool::new(false);

/// Writes `softefa: TEXT` to stderr, if stderr takes it.
pub(crate) fn say(text: &str) {
    if LOST.load(Ordering::Relaxed) {
        return;
    }
    let stderr = io::stderr();
    let mut line = format!("softefa: {text}").into_bytes();
    line.truncate(MAX_LINE);
    line.push(b'\n');
    let mut polled = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let has_room = poll(&mut polled, PATIENCE).is_ok_and(|ready| ready > 0);
    if !has_room || stderr.lock().write_all(&line).is_err() {
        LOST.store(true, Ordering::Relaxed);
    }
}
