//! The command `softefa`: what the program that `run` starts inherits, exit statuses, and help.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::process::Command;

use efa_gda_test_support::{TempDir, output};

/// Runs `softefa run -- program` with an empty file to preload: the loader warns and continues.
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
fn the_program_starts_with_no_signal_blocked() {
    let (_, text) = run("signals", &["grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(text.split_whitespace().last(), Some("0000000000000000"), "{text}");
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    assert_eq!(run("status", &["sh", "-c", "exit 7"]).0, Some(7));
}

#[test]
fn a_missing_broker_is_reported_before_the_program_starts() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
    command.args(["run", "--", "printf", "ran"]).env("SOFTEFA_PRELOAD", env!("CARGO_BIN_EXE_softefa"));
    let output = output(command.env("SOFTEFA_SOCKET", "/no/broker"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("no broker listens at /no/broker"), "{stderr}");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{stderr}");
}

#[test]
fn the_exit_status_after_a_signal_is_128_plus_its_number() {
    assert_eq!(run("killed", &["sh", "-c", "kill -TERM $$"]).0, Some(128 + 15));
}

#[test]
fn each_command_prints_help_and_the_programs_help_option_reaches_the_program() {
    for arguments in [&["--help"][..], &["run", "--help"], &["serve", "--adapters", "2", "-h"]] {
        let output = output(Command::new(env!("CARGO_BIN_EXE_softefa")).args(arguments));
        assert!(output.status.success(), "{arguments:?}");
        assert!(output.stdout.starts_with(b"softefa run "), "{arguments:?}");
    }
    assert_eq!(run("help", &["printf", "%s\\n", "--help"]).1, "--help\n");
}
