//! The command line's contract: statuses, what this version lacks, streams.

mod support;

use std::process::Stdio;

use support::{Machine, document, output, probe, run, soft, state, status};

fn complaint(args: &[&str]) -> (i32, String) {
    let output = run(args);
    assert!(output.stdout.is_empty(), "a refusal goes to stderr: {output:?}");
    (status(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_unknown_option_is_a_usage_error() {
    assert_eq!(complaint(&["--no-such-option"]).0, 2);
}

#[test]
fn a_gpu_is_a_number_or_none() {
    assert_eq!(complaint(&["--gpu", "first"]).0, 2);
}

#[test]
fn an_adapter_without_a_name_is_a_usage_error() {
    assert_eq!(complaint(&["--device", ""]).0, 2);
}

#[test]
fn help_is_fine() {
    assert_eq!(status(&run(&["--help"])), 0);
}

#[test]
fn what_this_version_lacks_is_said_and_is_status_2() {
    for args in [
        &["ring", "--npes", "4"][..],
        &["bench", "--via", "verbs"],
        &["put", "--executor", "cuda", "--via", "verbs"],
        &["put", "--soft", "--peer", "host"],
    ] {
        let (status, text) = complaint(args);
        assert_eq!(status, 2, "{args:?}");
        assert!(text.contains("not in this version") && text.contains("missing:"), "{args:?}: {text}");
    }
}

#[test]
fn npd_statuses_replace_the_table() {
    assert_eq!(complaint(&["ring", "--npd"]).0, 2, "unknown");
    let machine = Machine::new("npd");
    let mut command = probe(&["--npd", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent");
    assert_eq!(status(&output(&mut command)), 1, "a problem");
}

#[test]
fn npd_counts_a_usage_error_as_unknown() {
    assert_eq!(complaint(&["--npd", "--no-such-option"]).0, 2);
}

#[test]
fn explain_prints_the_page_of_a_code_in_any_case() {
    let output = run(&["explain", "env-005"]);
    assert_eq!(status(&output), 0);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("ENV-005 "));
}

/// The document that stands in for a report, and its status.
fn refusal(command: &mut std::process::Command) -> (serde_json::Value, i32) {
    let output = output(command);
    let document = document(&output);
    let error = document["error"].as_str().unwrap_or_else(|| panic!("no error: {document:#}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(error), "{error:?} is not on stderr: {stderr}");
    (document, status(&output))
}

#[test]
fn a_usage_error_is_a_document_where_json_was_asked_for() {
    for (args, command) in [
        (&["ring", "--json"][..], "ring"),
        (&["--json", "ring", "--npes", "4"], "ring"),
        (&["put", "--json", "--count", "0"], "put"),
        (&["put", "--json", "--no-such-option"], "put"),
        (&["decode", "--json", "--wqe", "zz"], "decode"),
        (&["explain", "ENV-999", "--json"], "explain"),
        (&["--json", "--time-limit", "0"], "check"),
    ] {
        let (document, status) = refusal(&mut probe(args));
        assert_eq!((&document["command"], status), (&command.into(), 2), "{args:?}");
    }
}

#[test]
fn an_internal_error_is_a_document_where_json_was_asked_for() {
    let machine = Machine::new("files");
    // Too few open files for the pipes to a child.
    let script =
        format!("ulimit -n 5; exec {} --json --root {}", env!("CARGO_BIN_EXE_gda-probe"), machine.arg());
    let (document, status) = refusal(std::process::Command::new("sh").args(["-c", &script]));
    assert_eq!((&document["command"], status), (&"check".into(), 1));
}

#[test]
fn explain_gives_the_page_as_a_document() {
    let document = document(&run(&["explain", "fab-004", "--json"]));
    assert_eq!((&document["code"], &document["title"]), (&"FAB-004".into(), &"The fabric opens".into()));
    assert!(document["text"].as_str().unwrap().starts_with("`fi_fabric`"), "{document:#}");
}

#[test]
fn explain_takes_a_bare_number_for_a_status() {
    assert_eq!(run(&["explain", "7"]).stdout, run(&["explain", "STATUS-7"]).stdout);
}

#[test]
fn no_time_at_all_is_a_usage_error() {
    assert_eq!(complaint(&["--time-limit", "0"]).0, 2);
}

#[test]
fn explain_refuses_a_code_that_is_none() {
    assert_eq!(complaint(&["explain", "ENV-999"]).0, 2);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let machine = Machine::new("pipe");
    let mut command = probe(&["--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((status(&output), output.stderr.as_slice()), (3, &b""[..]));
}

#[test]
fn logs_that_nobody_reads_are_no_panic() {
    let machine = Machine::new("logs-pipe");
    let mut command = probe(&["-vv", "--json", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((status(&output), state(&document(&output), "LIB-001")), (3, "fail"));
}

#[test]
fn closed_streams_change_no_status() {
    let machine = Machine::new("closed");
    for closed in [">&-", "2>&-", "<&-", "<&- >&- 2>&-"] {
        let probe = env!("CARGO_BIN_EXE_gda-probe");
        let script = format!("exec {probe} --root {} {closed}", machine.arg());
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).env("LIBFABRIC_PATH", "/nonexistent");
        assert_eq!(status(&output(&mut shell)), 3, "{closed}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    for args in ["--help", "--version", "explain 7", "decode --wqe 00100000000000000500002055000000"] {
        let script = format!("exec {} {args} >/dev/full", env!("CARGO_BIN_EXE_gda-probe"));
        assert_eq!(status(&output(std::process::Command::new("sh").args(["-c", &script]))), 1, "{args}");
    }
}

#[test]
fn a_report_into_a_pipe_has_no_colour() {
    let machine = Machine::new("colour");
    let mut command = probe(&["--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent");
    assert!(!command.output().unwrap().stdout.contains(&0x1b));
}

#[test]
fn warnings_alone_are_status_4() {
    let mut command = soft(&["--gpu", "none"]);
    command.env("FI_HMEM_P2P_DISABLED", "1");
    let output = output(&mut command);
    assert_eq!(state(&document(&output), "ENV-006"), "warn");
    assert_eq!(status(&output), 4);
}

#[test]
fn logs_go_to_stderr_and_leave_the_document_alone() {
    let machine = Machine::new("logs");
    let mut command = probe(&["-vv", "--json", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent");
    let output = output(&mut command);
    document(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("check done"));
}
