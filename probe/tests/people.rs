//! The report for people: what it begins and ends with, how it folds, and how wide it is.

mod support;

use std::path::Path;
use std::process::Command;

use efa_gda_test_support::soft::provider;
use support::sound::{self, Broken, PLUGIN, Stack, broken, sound};
use support::{Machine, PATIENT, at_once, output, probe, status};

/// The probe on the software adapter, for people.
fn soft(args: &[&str]) -> Command {
    let mut command = probe(args);
    command.args(PATIENT).arg("--soft").env("SOFTEFA_LIBRARY", provider());
    command
}

/// The lines of a command's report; no line is wider than `width`, except for a word that is.
fn lines(command: &mut Command, width: usize) -> Vec<String> {
    let output = output(command);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for line in text.lines() {
        let widest = line.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0);
        assert!(line.chars().count() <= width.max(widest + 18), "wider than {width}: {line:?}");
    }
    text.lines().map(str::to_owned).collect()
}

/// The report on a made-up machine without libfabric.
fn on(machine: &Machine, args: &[&str]) -> Vec<String> {
    let mut command = probe(&["--root", machine.arg()]);
    lines(command.args(PATIENT).args(args).env("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1"), 80)
}

#[test]
fn a_check_without_a_problem_fits_one_screen_and_ends_in_success() {
    for adapters in ["1", "16"] {
        let shown = lines(soft(&["--gpu", "none"]).env("SOFTEFA_ADAPTERS", adapters), 80);
        assert!(shown.len() <= 24, "{adapters} adapters: {} lines: {shown:#?}", shown.len());
        let last = shown.last().expect("a line");
        assert!(last.starts_with("software adapter: all passed"), "{last}");
    }
}

#[test]
fn a_healthy_machine_with_gpus_and_many_adapters_fits_one_screen() {
    at_once(&["1", "8", "16"], |adapters| {
        let machine = sound(&format!("people-healthy-{adapters}"));
        let (mut command, _folder) = sound::command(Stack::Whole, &machine, &["check"]);
        let shown = lines(command.args(PATIENT).env("SOFTEFA_ADAPTERS", adapters), 80);
        assert!(shown.len() <= 24, "{adapters} adapters: {} lines: {shown:#?}", shown.len());
        assert!(shown[0].starts_with("Verdict: gda"), "{shown:#?}");
        assert!(shown.last().expect("a line").contains("passed"), "{shown:#?}");
    });
}

const INFINIBAND: &str = "/sys/bus/pci/devices/0000:01:00.0/infiniband";

const BROKEN: &[Broken] = broken! {
    // First, because its waits take the most time.
    "security-group" (Adapters) "host" "PUT-001", "security group": |_| {}, [("SOFTEFA_BREAK", "dead-endpoint")];
    "locked-memory" (Whole) "pod" "ENV-003", "memlock":
        |m| _ = m.memlock("65536").capabilities("00000000a80425fb"), [];
    "variable-that-aborts" (Whole) "pod" "ENV-005", "unset FI_EFA_MTU_SIZE": |_| {}, [("FI_EFA_MTU_SIZE", "4096")];
    "provider-that-excludes-efa" (Whole) "pod" "ENV-006", "unset FI_PROVIDER": |_| {}, [("FI_PROVIDER", "tcp")];
    "nodes-of-some-adapters" (Whole) "pod" "DEV-005", "vpc.amazonaws.com/efa":
        |m| _ = m.remove("/dev/infiniband/uverbs2"), [];
    "old-kernel-driver" (Whole) "host" "DEV-002", "EFA installer 1.50.0":
        |m| _ = m.file("/sys/module/efa/version", "3.2.9g"), [("SOFTEFA_BREAK", "no-counters")];
    "old-gdrdrv" (Whole) "host" "LIB-008", "upgrade the module gdrdrv to 2.5":
        |m| _ = m.file("/sys/module/gdrdrv/version", "2.4\n"), [];
    "old-plugin" (Whole) "image" "LIB-007", "aws-ofi-nccl 1.22":
        |m| _ = m.file(PLUGIN, "Initializing aws-ofi-nccl 1.20.0\0"), [];
    "no-peer-mapping" (Whole) "host" "CUDA-002", "PeerMappingOverride=1":
        |m| _ = m.nvidia(""), [("PRETEND_GPU_REFUSES", "1,2")];
    "unprivileged-pod" (Whole) "pod" "CUDA-014", "privileged: true":
        |m| _ = m.capabilities("00000000a80465fb"), [("SOFTEFA_BREAK", "gpu-memory-14")];
    "old-provider" (Whole) "image" "GDA-001", "libfabric 2.3":
        |m| _ = m.file("/usr/lib/libfabric.so.1", "x\0FABRIC_1.7\x002.2.0\0y"), [("SOFTEFA_PROV_VERSION", "202.0")];
    "gin-type-of-the-past" (Whole) "pod" "ENV-007", "set NCCL_GIN_TYPE=5": |_| {}, [("NCCL_GIN_TYPE", "3")];
    "lost-gpu" (Whole) "host" "DEV-008", "fallen off the bus":
        |m| _ = m.remove("/sys/bus/pci/devices/0000:18:00.0"), [];
    "queues-of-another-kind" (Adapters) "image" "QUE-001", "EFA installer": |_| {}, [("SOFTEFA_BREAK", "depth3")];
    "crash" (Adapters) "image" "FAB-001", "EFA installer": |_| {}, [("SOFTEFA_BREAK", "crash-getinfo")];
    "no-adapter" (Files) "host" "DEV-001", "in the AWS account: launch a type with GPU-Direct Async (p5en":
        |m| _ = m.remove("/sys/bus/pci"), [];
    "no-driver" (Files) "host" "DEV-003", "driver":
        |m| _ = m.remove("/sys/bus/pci/devices/0000:01:00.0/driver").remove(INFINIBAND), [];
    "port-down" (Files) "host" "DEV-004", "stop and start the instance":
        |m| _ = m.file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n"), [];
    "closed-node" (Files) "pod" "DEV-006", "device":
        |m| _ = m.remove("/dev/infiniband/uverbs1").directory("/dev/infiniband/uverbs1"), [];
    "wrong-libfabric-path" (Files) "pod" "LIB-001", "correct LIBFABRIC_PATH, or unset it":
        |_| {}, [("LIBFABRIC_PATH", "/opt/efa/libfabric.so.1")];
};

/// The reports stay in cargo's directory of temporary files, for readers.
#[test]
fn cause_fix_and_responsible_party_are_within_the_first_15_lines() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-machines");
    std::fs::create_dir_all(&folder).expect("a folder");
    let cases: Vec<_> = BROKEN.iter().flat_map(|row| [(row, true), (row, false)]).collect();
    at_once(&cases, |&(&Broken { name, stack, who, codes, fix, make, set, .. }, json)| {
        let code = codes[0];
        let machine = sound(&format!("people-{name}"));
        make(&machine);
        let args: &[&str] = if json { &["check", "--json"] } else { &["check"] };
        let (mut command, _providers) = sound::command(stack, &machine, args);
        // Waits for an adapter that does not answer take half of the limit.
        command.args(["--time-limit", if name == "security-group" { "10000" } else { PATIENT[1] }]);
        let adapters = if name == "no-peer-mapping" { "1" } else { "2" };
        command.env("SOFTEFA_ADAPTERS", adapters).envs(set.iter().copied());
        if json {
            // Its states are frozen.
            output(&mut command);
            return;
        }
        let shown = lines(&mut command, 80);
        std::fs::write(folder.join(format!("{name}.txt")), shown.join("\n") + "\n").expect("a file");
        let begins = |line: &&String| line.get(6..).is_some_and(|rest| rest.starts_with(code));
        let begin = shown.iter().take(15).position(|line| begins(&line));
        let begin = begin.unwrap_or_else(|| panic!("no {code} in the first 15 lines: {shown:#?}"));
        let block = shown[begin..15].join("\n");
        let after =
            |name: &str| block.split(&format!("\n      {name:<10}")).nth(1).unwrap_or_default().to_owned();
        assert!(!after("observed").is_empty(), "{code}: {shown:#?}");
        assert!(shown[begin].contains("expected: "), "{code}: {shown:#?}");
        let words = after("fix").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(fix), "{code}: {shown:#?}");
        assert!(after("who").starts_with(&format!("{who}:")), "{code}: {shown:#?}");
        let (party, node) = after("who")
            .split_once(';')
            .map(|(party, node)| (party.to_owned(), node.to_owned()))
            .unwrap_or_default();
        assert!(!party.contains(','), "one party: {party}");
        let node = node.trim_start();
        let drained = node.starts_with("drain") || node.starts_with("isolate");
        assert!(drained || node.starts_with("keep the node"), "{code}: {shown:#?}");
        assert!(who == "host" || !drained, "{code}: the node is not at fault: {shown:#?}");
    });
}

#[test]
fn problems_of_host_pod_and_image_are_named_together_in_one_line() {
    let machine = Machine::new("people-three");
    machine.adapter(1).file("/proc/self/limits", "Max locked memory  65536  65536  bytes\n");
    machine.file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n");
    let shown = on(&machine, &["--gpu", "none"]).join("\n");
    let line = shown.split("failures: ").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("failures");
    for code in ["ENV-003 (pod)", "DEV-004 (host)", "LIB-005 (image)"] {
        assert!(line.replace('\n', " ").contains(code), "{code}: {line}");
    }
}

#[test]
fn alike_problems_and_verdicts_of_16_adapters_are_folded() {
    let machine = Machine::new("people-many");
    for number in 1..=16 {
        machine.adapter(number);
        std::fs::remove_file(machine.path().join(format!("dev/infiniband/uverbs{number}"))).expect("removed");
    }
    let shown = on(&machine, &["--gpu", "none"]);
    let starting = |with: &str| shown.iter().filter(|line| line.starts_with(with)).count();
    assert_eq!((starting("Verdict:"), starting("FAIL  DEV-005")), (1, 1), "{shown:#?}");
    assert!(
        shown.iter().any(|line| line.contains("[all 16") || line.contains("all 16 adapters")),
        "{shown:#?}"
    );
    // Observations are whole, and one of them names 16 device nodes.
    assert!(shown.len() <= 72, "{} lines: {shown:#?}", shown.len());
}

#[test]
fn skipped_checks_are_folded_into_the_code_that_blocks_them() {
    let machine = Machine::new("people-skips");
    let shown = on(&machine, &[]);
    assert!(shown.iter().all(|line| !line.contains("blocked by")), "{shown:#?}");
    let blocks = shown.iter().find(|line| line.starts_with("      blocks")).expect("a line");
    assert!(blocks.contains("DEV-002 to 008"), "{blocks}");
    assert!(on(&machine, &["-v"]).iter().any(|line| line.contains("blocked by DEV-001")));
}

#[test]
fn a_report_has_the_width_of_columns() {
    for columns in ["50", "100"] {
        let width = columns.parse().expect("a number");
        let shown = lines(soft(&["--gpu", "none", "-v"]).env("COLUMNS", columns), width);
        assert!(shown.iter().any(|line| line.chars().count() > width * 3 / 4), "{columns}: {shown:#?}");
    }
}

#[test]
fn a_put_is_reported_first_and_its_checks_in_a_line() {
    let shown = lines(&mut soft(&["put", "--count", "100"]), 80);
    assert!(shown[0].starts_with("Put: 100 × 64 bytes (write)"), "{shown:#?}");
    assert!(shown.len() <= 6 && shown.iter().any(|line| line.contains("a second")), "{shown:#?}");
}

#[test]
fn npd_prints_one_line_of_at_most_80_characters() {
    let machine = Machine::new("people-npd");
    let failing = on(&machine, &["--npd"]);
    assert_eq!(failing.len(), 1);
    assert!(failing[0].starts_with("DEV-001 (host) and ") && failing[0].chars().count() <= 80, "{failing:?}");
    let mut command = soft(&["--npd", "--gpu", "none"]);
    assert_eq!(lines(&mut command, 80).len(), 1);
    assert_eq!(status(&output(&mut command)), 0);
}

#[test]
fn help_and_usage_errors_keep_the_width() {
    for args in
        [&["put", "--help"][..], &["ring", "--help"], &["put", "--op", "none"], &["put", "--wait", "1"]]
    {
        let output = output(probe(args).env("COLUMNS", "60"));
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(!text.is_empty() && text.lines().all(|line| line.chars().count() <= 60), "{args:?}: {text}");
    }
}

#[test]
fn a_put_without_an_adapter_begins_with_the_machines_own_failure() {
    let machine = Machine::new("people-put");
    for command in ["put", "bench"] {
        let mut command = probe(&[command, "--root", machine.arg(), "--executor", "host"]);
        // No adapter of this machine has the name.
        let shown = lines(command.args(PATIENT).env("FI_EFA_IFACE", "none"), 80);
        let first = shown.iter().position(|line| line.starts_with("FAIL  DEV-001")).expect("DEV-001");
        let blamed = shown.iter().position(|line| line.starts_with("FAIL  FAB-001")).expect("FAB-001");
        assert!(first < blamed && shown[blamed + 1].contains("PCI bus"), "{shown:#?}");
        assert!(
            shown[blamed..].iter().any(|line| line.trim_start().starts_with("follows   from DEV-001")),
            "{shown:#?}"
        );
    }
}

#[test]
fn a_wrong_adapter_name_is_reported_with_the_adapters_found() {
    let shown = lines(&mut soft(&["put", "--device", "nope"]), 80);
    assert!(shown[0].starts_with("FAIL  FAB-003"), "{shown:#?}");
    assert!(shown[1].contains("softefa0-rdm"), "{shown:#?}");
    assert!(shown.iter().any(|line| line.contains("such as --device softefa0-rdm")), "{shown:#?}");
}
