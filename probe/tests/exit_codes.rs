//! The contract of the command line: exit statuses, options that this version lacks, streams.

mod support;

use std::process::Stdio;

use support::{Machine, document, output, probe, run, soft, state, status};

fn complaint(args: &[&str]) -> (i32, String) {
    let output = run(args);
    // A node-problem-detector reads stdout.
    match args.contains(&"--npd") {
        true => assert!(output.stdout.starts_with(b"unknown: "), "{output:?}"),
        false => assert!(output.stdout.is_empty(), "a usage error is printed on stderr: {output:?}"),
    }
    (status(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_unknown_option_value_or_code_is_a_usage_error() {
    for args in [
        &["--no-such-option"][..],
        // For the node-problem-detector, 2 is unknown.
        &["--npd", "--no-such-option"],
        &["--gpu", "first"],
        &["check", "--soft", "--doorbell", "fourth"],
        &["--device", ""],
        &["--time-limit", "0"],
        &["explain", "ENV-999"],
    ] {
        assert_eq!(complaint(args).0, 2, "{args:?}");
    }
}

#[test]
fn an_option_that_the_command_would_ignore_is_refused() {
    for (args, named) in [
        (&["decode", "--soft", "--cqe", "00"][..], "--soft"),
        (&["--device", "x", "decode", "--wqe", "00"], "--device"),
        (&["explain", "ENV-001", "--gpu", "none"], "--gpu"),
        (&["explain", "ENV-001", "--npd"], "--npd"),
        (&["put", "--soft", "--pairs", "all"], "--pairs"),
        (&["bench", "--soft", "--pairs", "all"], "--pairs"),
        (&["check", "--via", "verbs", "--pairs", "all"], "--pairs"),
        (&["put", "--executor", "host", "--gpu", "0"], "--gpu"),
        (&["put", "--via", "verbs", "--gpu", "0"], "--gpu"),
        (&["decode", "--binary", "--wqe", "00"], "--binary"),
        (&["man", "--doorbell", "direct"], "--doorbell"),
    ] {
        let (status, text) = complaint(args);
        assert_eq!(status, 2, "{args:?}: {text}");
        assert!(text.contains(named) && text.contains("omit"), "{args:?}: {text}");
    }
}

#[test]
fn a_value_that_cannot_work_is_refused_with_what_is_expected() {
    let missing = Machine::new("no-root");
    let missing = missing.path().join("missing").display().to_string();
    for (args, expected) in [
        (&["--root", &missing][..], "cannot be read"),
        (&["--root", "/proc/self/status"], "Not a directory"),
        (&["put", "--soft", "--bytes", "0"], "at least 1"),
        (&["put", "--soft", "--bytes", "0", "--op", "read"], "at least 1"),
        (&["put", "--soft", "--count", "0"], "at least 1"),
        (&["ring", "--soft", "--spawn", "2", "--bytes", "0"], "at least 1"),
        (&["put", "--peer", "127.0.0.1:99999"], "\"99999\" is not a number from 1 to 65535"),
        (&["put", "--peer", ":29517"], "the name or the address of a host"),
        (&["put", "--listen", "127.0.0.1:0"], "\"0\" is not a number from 1 to 65535"),
        (&["bench", "--soft", "--wait", "3"], "add --peer HOST"),
        (&["bench", "--peer", "host", "--queues", "2"], "cannot be used with"),
        (&["ring", "--rendezvous", "host:port"], "\"port\" is not"),
        (&["--json", "check", "--npd"], "omit one"),
        (&["--prometheus", "file"], "gda-probe check"),
        (&["check", "--bytes", "4"], "gda-probe put, ring"),
        (&["explain", "FAB-099"], "the nearest are FAB-009"),
        (&["decode"], "give --wqe or --cqe"),
        (&["check", "--npd", "--prometheus", "-"], "name a file for --prometheus"),
        (&["bench", "--npd", "--html", "-"], "name a file for --html"),
    ] {
        let mut command = probe(args);
        let output = output(&mut command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(status(&output), 2, "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn an_option_that_the_help_hides_is_not_suggested() {
    assert!(!complaint(&["put", "--plnt", "phase"]).1.contains("--plant"));
    assert!(!complaint(&["_ranks"]).1.contains("__ranks"));
    assert!(complaint(&["put", "--per", "host"]).1.contains("--peer"), "others are");
}

#[test]
fn decode_names_the_file_that_it_cannot_use() {
    let machine = Machine::new("decode-files");
    machine.file("empty", "").file("words", "hello");
    for (file, expected) in [
        ("missing", "missing cannot be read: No such file"),
        ("empty", "empty is empty"),
        ("words", "words holds text that is not hex: 'h'"),
    ] {
        let path = machine.path().join(file).display().to_string();
        let (status, text) = complaint(&["decode", "--cqe", "--file", &path]);
        assert_eq!(status, 2, "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn metrics_and_the_archive_go_to_stdout_on_request() {
    let folder = Machine::new("dash");
    let run = |args: &[&str]| {
        let mut command = probe(args);
        let command = command.args(["--root", folder.arg()]).env("LIBFABRIC_PATH", "/nonexistent");
        output(command.current_dir(folder.path()))
    };
    let metrics = run(&["check", "--prometheus", "-"]);
    assert!(metrics.stdout.starts_with(b"# HELP gda_probe_info"), "{metrics:?}");
    assert_eq!(status(&metrics), 3);
    let archive = run(&["report", "--output", "-"]);
    assert_eq!((&archive.stdout[..11], &archive.stdout[257..262]), (&b"report.json"[..], &b"ustar"[..]));
    assert_eq!(status(&archive), 3, "that of the checks in it");
    assert!(!folder.path().join("-").exists());
}

#[test]
fn help_has_status_0() {
    assert_eq!(status(&run(&["--help"])), 0);
}

#[test]
fn an_option_that_this_version_lacks_is_named_with_status_2() {
    for args in [
        &["bench", "--via", "verbs"][..],
        &["put", "--executor", "cuda", "--via", "verbs"],
        &["ring", "--spawn", "2", "--executor", "cuda", "--via", "verbs"],
        &["put", "--soft", "--peer", "host", "--op", "read"],
    ] {
        let (status, text) = complaint(args);
        assert_eq!(status, 2, "{args:?}");
        assert!(text.contains("not in this version") && text.contains("missing:"), "{args:?}: {text}");
    }
}

#[test]
fn npd_statuses_replace_the_usual_statuses() {
    assert_eq!(complaint(&["ring", "--npd"]).0, 2, "unknown");
    let line = String::from_utf8(run(&["put", "--npd", "--count", "0"]).stdout).unwrap();
    assert!(
        line.starts_with("unknown: ") && line.ends_with('\n') && line.trim_end().chars().count() <= 80,
        "{line:?}"
    );
    let machine = Machine::new("npd");
    let mut command = probe(&["--npd", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent");
    assert_eq!(status(&output(&mut command)), 1, "a problem");
}

/// The document that replaces a report on an error, and the exit status.
fn refusal(command: &mut std::process::Command) -> (serde_json::Value, i32) {
    let output = output(command);
    let document = document(&output);
    let error = document["error"].as_str().unwrap_or_else(|| panic!("no error: {document:#}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Without a line break; an escape of one would show here.
    let words: Vec<&str> = stderr.split_whitespace().collect();
    assert!(words.join(" ").contains(error), "{error:?} is not on stderr: {stderr}");
    (document, status(&output))
}

#[test]
fn a_usage_error_is_a_document_with_json() {
    for (args, command) in [
        (&["ring", "--json"][..], "ring"),
        (&["--json", "ring", "--npes", "4"], "ring"),
        (&["put", "--json", "--count", "0"], "put"),
        (&["put", "--json", "--no-such-option"], "put"),
        (&["decode", "--json", "--wqe", "zz"], "decode"),
        (&["explain", "ENV-999", "--json"], "explain"),
        (&["explain", "ENV-001", "--soft", "--json"], "explain"),
        (&["completions", "bash", "--json"], "completions"),
        (&["report", "--json"], "report"),
        (&["--json", "--time-limit", "0"], "check"),
        (&["put", "--json", "--op", "none"], "put"),
    ] {
        let (document, status) = refusal(&mut probe(args));
        assert_eq!((&document["command"], status), (&command.into(), 2), "{args:?}");
    }
}

#[test]
fn an_internal_error_is_a_document_with_json() {
    let machine = Machine::new("files");
    // A limit of open files that is too low for the pipes to a worker process.
    let script =
        format!("ulimit -n 5; exec {} --json --root {}", env!("CARGO_BIN_EXE_gda-probe"), machine.arg());
    let (document, status) = refusal(std::process::Command::new("sh").args(["-c", &script]));
    assert_eq!((&document["command"], status), (&"check".into(), 1));
}

#[test]
fn explain_prints_a_document_with_json() {
    let document = document(&run(&["explain", "fab-004", "--json"]));
    assert_eq!((&document["code"], &document["title"]), (&"FAB-004".into(), &"The fabric opens".into()));
    assert!(document["text"].as_str().unwrap().starts_with("`fi_fabric`"), "{document:#}");
}

#[test]
fn explain_accepts_the_number_of_a_status() {
    assert_eq!(run(&["explain", "7"]).stdout, run(&["explain", "STATUS-7"]).stdout);
}

#[test]
fn a_closed_stdout_pipe_causes_no_panic() {
    let machine = Machine::new("pipe");
    for name in ["check", "put", "bench"] {
        let mut command = probe(&[name, "--root", machine.arg()]);
        command.env("LIBFABRIC_PATH", "/nonexistent").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((status(&output), output.stderr.as_slice()), (3, &b""[..]), "{name}");
    }
}

#[test]
fn a_closed_stderr_pipe_causes_no_panic() {
    let machine = Machine::new("logs-pipe");
    let mut command = probe(&["-vv", "--json", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((status(&output), state(&document(&output), "LIB-001")), (3, "fail"));
}

#[test]
fn closed_streams_do_not_change_the_status() {
    let machine = Machine::new("closed");
    for (name, closed) in ["check", "put"]
        .into_iter()
        .flat_map(|name| [">&-", "2>&-", "<&-", "<&- >&- 2>&-"].map(|all| (name, all)))
    {
        let probe = env!("CARGO_BIN_EXE_gda-probe");
        let script = format!("exec {probe} {name} --root {} {closed}", machine.arg());
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).env("LIBFABRIC_PATH", "/nonexistent");
        assert_eq!(status(&output(&mut shell)), 3, "{name} {closed}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
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
fn warnings_without_failures_have_status_4() {
    let mut command = soft(&["--gpu", "none"]);
    command.env("FI_HMEM_DISABLE_P2P", "1");
    let output = output(&mut command);
    assert_eq!(state(&document(&output), "ENV-006"), "warn");
    assert_eq!(status(&output), 4);
}

#[test]
fn logs_are_printed_on_stderr_and_the_document_stays_valid() {
    let machine = Machine::new("logs");
    let mut command = probe(&["-vv", "--json", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent");
    let output = output(&mut command);
    document(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("check done"));
}

/// A link has the name that a draft could be guessed to have: `exec` keeps the process id of the shell.
#[test]
fn a_file_is_replaced_through_no_link_that_another_user_planted() {
    let machine = Machine::new("planted");
    machine.file("victim", "root's").file("real.prom", "old").link("x.prom", "real.prom");
    let script = "cd \"$1\" && ln -s victim .real.prom.$$.tmp && ln -s victim .x.prom.$$.tmp && \
                  exec \"$0\" check --root . --prometheus x.prom >/dev/null";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_gda-probe"), machine.arg()]);
    assert_eq!(status(&output(command.env("LIBFABRIC_PATH", "/nonexistent"))), 3);
    let read = |name| std::fs::read_to_string(machine.path().join(name)).unwrap();
    assert_eq!(read("victim"), "root's");
    assert!(read("real.prom").contains("gda_probe"), "the file that the link names is replaced");
    assert!(machine.path().join("x.prom").is_symlink());
}

#[test]
fn a_pipe_or_a_device_is_refused_and_not_waited_for() {
    let machine = Machine::new("special");
    let pipe = machine.path().join("pipe");
    assert!(output(std::process::Command::new("mkfifo").arg(&pipe)).status.success());
    let rendezvous = ["ring", "--soft", "--rank", "0", "--ranks", "1", "--rendezvous", "127.0.0.1:34700"];
    for file in [pipe.to_str().unwrap(), "/dev/full"] {
        for args in [
            &["check", "--prometheus", file][..],
            &["decode", "--wqe", "--file", file],
            &[&rendezvous[..], &["--token-file", file]].concat(),
        ] {
            let (status, text) = complaint(args);
            assert!((1..=2).contains(&status) && text.contains("device"), "{args:?}: {status}: {text}");
        }
    }
}
