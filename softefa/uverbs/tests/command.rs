//! `softefa run` as a person calls it: what the program that it starts inherits.

#![allow(clippy::unwrap_used)] // a test says so by failing

use std::process::Command;

use efa_gda_test_support::{TempDir, output};

/// `softefa run -- program`, with an empty file to preload: the loader says so, and goes on.
fn run(name: &str, program: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new(name);
    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
    command.args(["run", "--quiet", "--"]).args(program);
    let output = output(command.env("SOFTEFA_PRELOAD", &empty).env_remove("SOFTEFA_SOCKET"));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn no_signal_is_blocked_in_the_program() {
    let (_, text) = run("signals", &["grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(text.split_whitespace().last(), Some("0000000000000000"), "{text}");
}

#[test]
fn the_status_is_the_programs() {
    assert_eq!(run("status", &["sh", "-c", "exit 7"]).0, Some(7));
}

#[test]
fn a_broker_that_is_not_there_is_told_before_anything_runs() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
    command.args(["run", "--", "printf", "ran"]).env("SOFTEFA_PRELOAD", env!("CARGO_BIN_EXE_softefa"));
    let output = output(command.env("SOFTEFA_SOCKET", "/nobody/here"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("no broker answers at /nobody/here"), "{words}");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{words}");
}

#[test]
fn a_program_that_a_signal_ends_has_the_shells_status_for_it() {
    assert_eq!(run("killed", &["sh", "-c", "kill -TERM $$"]).0, Some(128 + 15));
}

#[test]
fn help_is_told_for_each_command_and_a_programs_own_is_the_programs() {
    for arguments in [&["--help"][..], &["run", "--help"], &["serve", "--adapters", "2", "-h"]] {
        let output = output(Command::new(env!("CARGO_BIN_EXE_softefa")).args(arguments));
        assert!(output.status.success(), "{arguments:?}");
        assert!(output.stdout.starts_with(b"softefa run "), "{arguments:?}");
    }
    assert_eq!(run("help", &["printf", "%s\\n", "--help"]).1, "--help\n");
}
