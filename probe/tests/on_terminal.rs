//! The probe on a terminal: colours, width and the live line, and none of them where they would be noise.

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;

use support::{Machine, probe};

/// A pseudo terminal of `columns`: what a program writes to the second end is read from the first.
fn terminal(columns: u16) -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: both numbers are writable, the size is valid for reading, and null pointers stand for defaults.
    let made = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), &raw const size)
    };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: openpty returned two new descriptors, which nobody else owns.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// What a command writes to a terminal that is its stdout and stderr.
fn shown(command: &mut Command, columns: u16) -> String {
    let (mut ours, theirs) = terminal(columns);
    let stderr = theirs.try_clone().expect("a second descriptor");
    let mut child = command.stdin(std::process::Stdio::null()).stdout(theirs).stderr(stderr);
    let mut running = child.spawn().expect("the probe starts");
    // The command holds the other end until it is closed here.
    child = child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let _ = child;
    let mut all = Vec::new();
    let mut part = [0; 4096];
    // EIO: the last writer has closed the terminal.
    while let Ok(length) = ours.read(&mut part) {
        all.extend_from_slice(&part[..length]);
    }
    running.wait().expect("the probe ends");
    String::from_utf8_lossy(&all).into_owned()
}

fn on(machine: &Machine) -> Command {
    let mut command = probe(&["--root", machine.arg(), "--gpu", "none", "--time-limit", "60000"]);
    command.env("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1").env_remove("COLUMNS").env("TERM", "xterm");
    command
}

#[test]
fn a_live_line_names_the_running_check_and_is_cleared() {
    let machine = Machine::new("live");
    machine.adapter(1);
    let text = shown(&mut on(&machine), 80);
    assert!(text.contains("\r\x1b[Krunning DEV-006"), "{text:?}");
    let (_, report) = text.rsplit_once("\r\x1b[K").expect("a cleared line");
    assert!(report.contains("Verdict:") && !report.contains("running "), "{text:?}");
}

#[test]
fn a_report_on_a_terminal_has_its_width_and_colours() {
    let machine = Machine::new("wide");
    let text = shown(&mut on(&machine), 60);
    let report = text.rsplit("\r\x1b[K").next().expect("a report");
    assert!(report.contains("\x1b[31;1mFAIL\x1b[0m"), "{text:?}");
    for line in report.lines() {
        let plain = line.split('\x1b').enumerate().map(|(index, part)| match index {
            0 => part.trim_end().chars().count(),
            _ => part.split_once('m').map_or(0, |(_, rest)| rest.trim_end_matches('\r').chars().count()),
        });
        let (count, longest) =
            (plain.sum::<usize>(), line.split_whitespace().map(str::len).max().unwrap_or(0));
        assert!(count <= 60.max(longest + 18), "{count}: {line:?}");
    }
}

#[test]
fn a_dumb_terminal_gets_no_escape_sequence() {
    let machine = Machine::new("dumb");
    assert!(!shown(on(&machine).env("TERM", "dumb"), 80).contains('\x1b'));
}

#[test]
fn no_color_keeps_the_live_line_and_removes_colours() {
    let machine = Machine::new("plain");
    let text = shown(on(&machine).env("NO_COLOR", "1"), 80);
    assert!(!text.contains("\x1b[3") && !text.contains("\x1b[1m"), "{text:?}");
}
