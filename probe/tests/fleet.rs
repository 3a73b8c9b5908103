//! What programs and operators of many nodes read: JSON's additions, Prometheus metrics, the archive for a bug
//! report, the list of codes, completions and the manual page.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use efa_gda_test_support::{TempDir, copy_program, soft::provider};
use serde_json::Value;
use support::{Machine, PATIENT, check, document, output, probe, run, status};

fn on(machine: &Machine, args: &[&str]) -> Command {
    let mut command = probe(args);
    command.args(PATIENT).args(["--root", machine.arg(), "--gpu", "none"]);
    command.env("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1");
    command
}

#[test]
fn a_document_states_version_time_host_and_kernel() {
    let machine = Machine::new("origin");
    machine.file("/proc/sys/kernel/hostname", "node-17\n").file("/proc/sys/kernel/osrelease", "6.1.2-efa\n");
    let document = machine.check(&[]);
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&document["host"], &document["kernel"]), (&"node-17".into(), &"6.1.2-efa".into()));
    let time = document["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 20, "{time}");
}

#[test]
fn problems_have_a_severity_and_an_action_and_other_results_have_none() {
    let machine = Machine::new("grades");
    machine.adapter(1).file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n");
    let document = machine.check(&[]);
    let grade =
        |code: &str| (check(&document, code)["severity"].clone(), check(&document, code)["action"].clone());
    assert_eq!(grade("DEV-004"), ("critical".into(), "isolate".into()));
    assert_eq!(grade("LIB-001"), ("critical".into(), "fix-pod".into()));
    assert_eq!(grade("DEV-001"), (Value::Null, Value::Null));
}

#[test]
fn metrics_name_problems_with_their_action_and_replace_the_file() {
    let machine = Machine::new("metrics");
    machine.adapter(1).file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n");
    let directory = TempDir::new("metrics");
    let file = directory.path().join("gda_probe.prom");
    std::fs::write(&file, "old").unwrap();
    let ended = output(&mut on(&machine, &["check", "--prometheus", file.to_str().unwrap()]));
    assert_eq!(status(&ended), 3);
    let metrics = std::fs::read_to_string(&file).unwrap();
    for line in [
        "gda_probe_exit_status 3",
        "gda_probe_problem{code=\"DEV-004\",subject=\"rdmap1s0\",severity=\"critical\",action=\"isolate\",who=\"host\"} 1",
        "gda_probe_verdict{gpu=\"none\",adapter=\"rdmap1s0\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    // Each sample has a type, and nothing but the file is left.
    let typed: BTreeSet<_> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for sample in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = sample.split(['{', ' ']).next().unwrap();
        assert!(typed.contains(name), "{sample}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn metrics_that_cannot_be_written_are_refused_before_the_check() {
    let ended = run(&["check", "--prometheus", "/nonexistent/x.prom"]);
    assert_eq!((status(&ended), ended.stdout.len()), (1, 0), "{ended:?}");
}

/// Packs a report and returns the text of its files.
fn packed(command: &mut Command, directory: &Path) -> String {
    let file = directory.join("report.tar");
    let ended = output(command.args(["--output", file.to_str().unwrap()]));
    // The status of the checks.
    assert!([0, 3, 4].contains(&status(&ended)), "{ended:?}");
    // Another program reads the archive.
    let listed = output(Command::new("tar").arg("-tf").arg(&file));
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout).lines().collect::<Vec<_>>(),
        ["report.json", "report.txt", "environment.txt", "machine.txt"]
    );
    let text = output(Command::new("tar").arg("-xOf").arg(&file));
    String::from_utf8(text.stdout).unwrap()
}

#[test]
fn a_report_holds_no_short_name_and_no_unknown_part_of_a_setting() {
    let machine = Machine::new("short");
    machine.file("/proc/sys/kernel/hostname", "bob\n").file("/etc/os-release", "NAME=Debian of eve on bob\n");
    let directory = TempDir::new("short");
    let mut command = on(&machine, &["report"]);
    command
        .env("FI_PROVIDER", "efa;hunter2,tcp pass-phrase")
        .env("LD_LIBRARY_PATH", "/opt/amazon/efa/lib:/mnt/team/lib64");
    let text = packed(command.env("USER", "eve"), directory.path());
    for secret in ["bob", "hunter2", "phrase", "team"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    for needed in [
        "\"host\": \"<host>\"",
        "NAME=Debian of <user> on <host>",
        "FI_PROVIDER=efa;<redacted>,tcp <redacted>",
        "LD_LIBRARY_PATH=/opt/amazon/efa/lib:/<redacted>/<redacted>/lib64",
    ] {
        assert!(text.contains(needed), "{needed}: {text}");
    }
}

#[test]
fn a_report_holds_neither_values_nor_paths_of_nccls_files() {
    let machine = Machine::new("nccl-files");
    let user = nix::unistd::Uid::current();
    machine
        .file("/etc/passwd", &format!("carol:x:{user}:0::/srv/people/carol:/bin/sh\n"))
        .file("/srv/people/carol/.nccl.conf", "NCCL_GIN_TYPE=blue-smith\nNCCL_GIN_ENABLE=0\n")
        .file("/etc/nccl.conf", "NCCL_SYM_GIN_KERNELS_ENABLE=\n");
    let directory = TempDir::new("nccl-files");
    let mut command = on(&machine, &["report"]);
    let text = packed(command.env("NCCL_GIN_ENABLE", "0").env("FI_PROVIDER", "blue"), directory.path());
    for secret in ["carol", "people", "blue", "smith"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert!(text.contains("NCCL_GIN_TYPE=<redacted> (in /<redacted>"), "{text}");
}

#[test]
fn text_from_outside_forges_no_line_of_a_report() {
    let machine = Machine::new("forged");
    machine
        .file("/etc/os-release", "NAME=x\n==== /forged\n\u{1b}[31mred\u{1b}]0;title\u{7}\n")
        .file("/proc/self/status", "CapEff:\t0\u{1b}[2K\nState: R\n");
    let directory = TempDir::new("forged");
    let mut command = on(&machine, &["report"]);
    command.env("NCCL_GIN_TYPE", "5\nLIBFABRIC_PATH=/forged\u{1b}[31m").env("NCCL_\nFORGED", "1");
    let text = packed(&mut command, directory.path());
    let forged =
        |line: &str| ["LIBFABRIC_PATH=/f", "FORGED", "==== /forged"].iter().any(|it| line.starts_with(it));
    assert!(!text.lines().any(forged), "{text}");
    assert!(!text.trim_end_matches('\0').contains(['\u{1b}', '\u{7}']), "{text}");
}

#[test]
fn a_report_holds_the_checks_and_none_of_the_planted_secrets() {
    let machine = Machine::new("secrets");
    machine
        .adapter(1)
        .file("/proc/sys/kernel/hostname", "payroll-node-3\n")
        .file("/etc/hosts", "10.9.8.7 payroll-node-3\n")
        .file("/etc/ld.so.conf", "/home/alice/lib\n")
        .file("/home/alice/lib/libfabric.so.1", "x\0FABRIC_1.6\x002.1.0\0y")
        .file("/proc/self/environ", "AWS_SESSION_TOKEN=from-procfs\0")
        .file("/etc/os-release", "NAME=\"Debian\"\nBUILD_TOKEN=planted-build\n")
        .file("/root/.aws/credentials", "aws_secret_access_key = planted-file\n");
    let directory = TempDir::new("secrets");
    let mut command = on(&machine, &["report"]);
    command
        .env("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
        .env("HF_TOKEN", "plantedtoken")
        .env("FI_PROVIDER", "plantedtoken")
        .env("NCCL_COMM_ID", "10.9.8.7:4711")
        .env("FI_EFA_IFACE", "AKIAIOSFODNN7EXAMPLE")
        .env("LD_LIBRARY_PATH", "/home/alice/lib:/opt/x")
        .env("USER", "alicesmith")
        .env("MY_SETTING", "not-on-the-list");
    let text = packed(&mut command, directory.path());
    for secret in [
        "payroll",
        "10.9.8.7",
        "alice",
        "from-procfs",
        "planted",
        "wJalr",
        "AKIA",
        "4711",
        "not-on-the-list",
        "MY_SETTING",
    ] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    for needed in
        ["LIB-001", "NCCL_COMM_ID is set", "FI_PROVIDER=<redacted>", "NAME=\"Debian\"", "<home>/lib"]
    {
        assert!(text.contains(needed), "{needed}: {text}");
    }
}

#[test]
fn a_report_of_the_software_adapter_holds_its_put() {
    let directory = TempDir::new("soft-report");
    let mut command = probe(&["report", "--soft", "--gpu", "none"]);
    let text = packed(command.args(PATIENT).env("SOFTEFA_LIBRARY", provider()), directory.path());
    assert!(text.contains("\"verified\": true") && text.contains("QUE-001"), "{text}");
}

#[test]
fn explain_lists_all_codes_with_fix_and_roles() {
    let all = document(&run(&["explain", "--json"]));
    let codes = all["codes"].as_array().unwrap();
    let of = |code: &str| codes.iter().find(|page| page["code"] == code).unwrap();
    assert_eq!((&of("DEV-004")["who"][0], &of("DEV-004")["action"]), (&"host".into(), &"isolate".into()));
    assert!(of("GDA-001")["fix"].as_str().unwrap().contains("libfabric"));
    assert!(of("STATUS-7")["text"].as_str().is_some());
}

#[test]
fn explain_shows_fix_and_role_in_lines_of_the_terminals_width() {
    let shown = output(probe(&["explain", "cuda-002"]).env("COLUMNS", "70")).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.lines().all(|line| line.chars().count() <= 70), "{shown}");
    assert!(shown.contains("\nfix   ") && shown.contains("\nwho   host: "), "{shown}");
}

#[test]
fn explain_keeps_to_the_width_of_a_narrow_terminal() {
    let listed = output(probe(&["explain", "--json"]).env("COLUMNS", "40")).stdout;
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    let codes = listed["codes"].as_array().unwrap().iter().map(|page| vec![page["code"].as_str().unwrap()]);
    for code in codes.chain([vec![]]) {
        let shown = output(probe(&[&["explain"], &code[..]].concat()).env("COLUMNS", "40")).stdout;
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");
    }
}

#[test]
fn completions_parse_in_bash_and_know_commands_and_options() {
    let script = run(&["completions", "bash"]).stdout;
    let directory = TempDir::new("completions");
    let file = directory.path().join("gda-probe");
    std::fs::write(&file, &script).unwrap();
    assert!(output(Command::new("bash").arg("-n").arg(&file)).status.success());
    let script = String::from_utf8(script).unwrap();
    for word in ["bench", "explain", "--doorbell", "--prometheus", "verbs"] {
        assert!(script.contains(word), "{word}");
    }
    assert!(!script.contains("__worker"), "the worker's command is internal");
}

#[test]
fn the_manual_page_has_every_command_and_option_and_the_exit_statuses() {
    let page = String::from_utf8(run(&["man"]).stdout).unwrap();
    for part in
        [".TH gda-probe 1", "gda\\-probe put", "\\-\\-prometheus", "\\-\\-max\\-seconds", "EXIT STATUS"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(page.matches("\\-\\-time\\-limit\\fR \\fI<MS>").count(), 1, "common options are stated once");
    assert!(!page.contains("__worker") && !page.contains("\\-\\-plant"));
}

/// The status of the prolog, and what it asked `scontrol` for. As under Slurm, the environment has only what `job` adds
/// to the node's name, and no PATH: programs are found in the directories that the script names.
fn prolog(machine: &Machine, job: &[(&str, &str)]) -> (i32, String) {
    let script = include_str!("../../deploy/slurm/prolog.sh");
    let directory = TempDir::new("prolog");
    let asked = directory.path().join("asked");
    let make = |name: &str, text: &str| {
        let (path, written) = (directory.path().join(name), directory.path().join("text"));
        std::fs::write(&written, text).unwrap();
        copy_program(&written, &path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let program = env!("CARGO_BIN_EXE_gda-probe");
    let options = format!("--gpu none --time-limit 60000 --root {}", machine.arg());
    make("gda-probe", &format!("#!/bin/sh\nexec {program} \"$@\" {options}\n"));
    make("scontrol", &format!("#!/bin/sh\necho \"$*\" >> {}\n", asked.display()));
    let script = script.replace("=/usr/local/sbin:", &format!("={}:", directory.path().display()));
    let mut command = Command::new("/bin/sh");
    command
        .arg(make("prolog", &script))
        .env_clear()
        .env("SLURMD_NODENAME", "node-17")
        .envs(job.iter().copied());
    let ended = output(command.env("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1"));
    (status(&ended), std::fs::read_to_string(asked).unwrap_or_default())
}

#[test]
fn the_slurm_prolog_drains_a_faulty_node_and_not_one_with_a_wrong_image() {
    let (machine, job) = (Machine::new("prolog"), [("SLURM_JOB_ID", "7")]);
    machine.adapter(1);
    assert_eq!(prolog(&machine, &job), (0, String::new()), "libfabric is missing in the image");
    machine.file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n");
    let drained = "update nodename=node-17 state=drain reason=gda-probe: isolate\n".to_owned();
    assert_eq!(prolog(&machine, &job), (1, drained.clone()));
    assert_eq!(prolog(&machine, &[]), (0, drained), "as a health check");
}

#[test]
fn the_commands_of_the_operators_guide_are_accepted() {
    let guide = include_str!("../docs/fleets.md");
    let lines = guide.lines().map(str::trim).filter(|line| line.starts_with("gda-probe "));
    let mut count = 0;
    for line in lines {
        let command = line.split(['|', '>', '#', ';']).next().unwrap();
        let args: Vec<&str> = command.split_whitespace().skip(1).filter(|word| *word != "\\").collect();
        // With --help, clap parses all arguments before it and runs nothing.
        let ended = output(probe(&args).arg("--help"));
        assert_eq!(status(&ended), 0, "{line}: {ended:?}");
        count += 1;
    }
    assert!(count >= 4, "{count}");
}
