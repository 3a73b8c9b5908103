//! The probe through libfabric and the software adapter: checks, verdicts, puts.

mod support;

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use support::{Machine, at_once, check, document, ended, output, soft, state, status};

/// A put's document and status.
fn put(args: &[&str], set: &[(&str, &str)]) -> (Value, i32) {
    let mut command = soft(&["put", "--op", "write", "--executor", "host"]);
    ended(command.args(args).envs(set.iter().copied()))
}

#[test]
fn a_check_passes_from_environment_to_verified_completion() {
    let (document, status) = ended(&mut soft(&["check", "--gpu", "none"]));
    assert_eq!(status, 0, "{document:#}");
    for code in
        ["LIB-001", "FAB-009", "GDA-003", "QUE-001", "QUE-006", "PUT-001", "PUT-002", "PUT-004", "PUT-005"]
    {
        assert_eq!(state(&document, code), "pass", "{code}");
    }
    assert_eq!(document["put"]["verified"], true);
    let verdict = &document["verdict"][0];
    assert_eq!((&verdict["gpu"], &verdict["result"]), (&"none".into(), &"none".into()));
    assert!(verdict["next"].as_str().unwrap().contains("work from the host"), "{verdict}");
}

#[test]
fn queue_geometry_is_reported() {
    let document = document(&output(&mut soft(&[])));
    let queues = &document["queues"];
    assert!(queues["sq"]["num_entries"].as_u64().unwrap().is_power_of_two());
    assert_eq!((&queues["rq"]["entry_size"], &queues["cq"]["phase"]), (&16.into(), &1.into()));
}

/// Without counters, whose check posts requests before the put: an injected status names a request by its number.
const UNCOUNTED: (&str, &str) = ("FI_EFA_USE_HW_CNTR", "0");

#[test]
fn every_error_status_is_reported_with_its_number_and_its_page() {
    for code in (1..=15).chain([18]) {
        let (document, status) =
            put(&["--count", "4"], &[("SOFTEFA_INJECT", &format!("3:{code}")), UNCOUNTED]);
        let check = check(&document, "PUT-002");
        let verified = &document["put"]["verified"];
        assert_eq!((&check["state"], verified, status), (&"fail".into(), &false.into(), 3), "{code}");
        assert!(check["observed"].as_str().unwrap().contains(&format!("status {code}: ")), "{check:#}");
        let page = format!("STATUS-{code}");
        assert!(check["fix"].as_str().unwrap().contains(&format!("explain {page} ")), "{check:#}");
        assert_eq!(status_of_explain(&page), 0);
    }
}

fn status_of_explain(page: &str) -> i32 {
    status(&support::run(&["explain", page]))
}

#[test]
fn an_unknown_status_stays_a_number_and_has_no_page() {
    let (document, _) = put(&["--count", "4"], &[("SOFTEFA_INJECT", "3:77"), UNCOUNTED]);
    let check = check(&document, "PUT-002");
    assert!(check["observed"].as_str().unwrap().contains("status 77"), "{check:#}");
    let fix = check["fix"].as_str().unwrap();
    assert!(!fix.contains("STATUS-77") && fix.contains("efa_io_defs.h"), "{fix}");
}

#[test]
fn a_broken_rule_is_named_and_fails_the_put() {
    for (fault, word) in [("phase", "phase"), ("batch", "batch"), ("backwards", "backward")] {
        // The software adapter checks the batch by the doorbell's advance, for which it must see every doorbell.
        let set = [("SOFTEFA_MAX_BATCH", "16"), ("SOFTEFA_EVERY_DOORBELL", "1")];
        let (document, status) = put(&["--count", "9", "--plant", fault], &set);
        assert_eq!((&document["put"]["verified"], status), (&false.into(), 3), "{fault}");
        let observed = check(&document, "PUT-003")["observed"].as_str().unwrap_or_default().to_lowercase();
        assert!(observed.contains(word), "{fault}: {document:#}");
    }
}

#[test]
fn a_put_that_exceeds_memory_fails_put_002() {
    let (document, status) = put(&["--bytes", "4611686018427387904"], &[]);
    assert_eq!((state(&document, "PUT-002"), status), ("fail", 3));
}

#[test]
fn each_adapter_has_separate_checks_and_a_verdict() {
    let document = document(&output(soft(&["--gpu", "none"]).env("SOFTEFA_ADAPTERS", "3")));
    let moved = document["checks"].as_array().unwrap().iter().filter(|check| check["code"] == "PUT-002");
    assert_eq!((moved.count(), document["verdict"].as_array().unwrap().len()), (3, 3));
}

#[test]
fn device_selects_one_of_several_adapters() {
    let document = document(&output(soft(&["--device", "softefa1"]).env("SOFTEFA_ADAPTERS", "3")));
    let adapters: Vec<_> =
        document["verdict"].as_array().unwrap().iter().map(|one| &one["adapter"]).collect();
    assert_eq!(adapters, ["softefa1-rdm"]);
}

#[test]
fn the_provider_directory_is_removed_at_the_end() {
    let machine = Machine::new("tmp");
    std::fs::set_permissions(machine.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(status(&output(soft(&["put"]).env("TMPDIR", machine.path()))), 0);
    assert_eq!(std::fs::read_dir(machine.path()).unwrap().count(), 0);
}

/// A check: its options, variables, exit status, a code with its state, and words of that check.
type Case = (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    i32,
    &'static str,
    &'static [&'static str],
);

const CHECKS: &[Case] = &[
    (&["--gpu", "none"], &[], 0, "GDA-009 pass", &["\"proven\"", "\"1024 entries"]),
    (
        &["--gpu", "none"],
        &[("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")],
        0,
        "GDA-010 pass",
        &["\"proven\"", "\"one success and one error\""],
    ),
    // Counters are off by default before 2.7.
    (
        &["--gpu", "none"],
        &[("SOFTEFA_PROV_VERSION", "206.0")],
        0,
        "GDA-010 unknown",
        &["FI_EFA_USE_HW_CNTR=1"],
    ),
    (&["--device", "nothing"], &[], 3, "FAB-003 fail", &["softefa0-rdm"]),
    (&[], &[("SOFTEFA_LIBRARY", "/nonexistent/libsoftefa.so")], 3, "LIB-001 skip", &["ENV-000"]),
    (&[], &[("SOFTEFA_LIBRARY", "/etc/passwd")], 3, "ENV-000 fail", &[]),
    (&[], &[("SOFTEFA_LIBRARY", "/dev/zero")], 3, "ENV-000 fail", &[]),
    (&[], &[("SOFTEFA_LIBRARY", "/")], 3, "ENV-000 fail", &[]),
    (&[], &[("TMPDIR", "/nonexistent")], 3, "ENV-000 fail", &["TMPDIR"]),
];

#[test]
fn each_check_has_its_state_and_names_its_cause() {
    at_once(CHECKS, |&(args, set, status, expected, words)| {
        let (document, ended) = ended(soft(args).envs(set.iter().copied()));
        let (code, state) = expected.split_once(' ').expect("a code and a state");
        let found = check(&document, code);
        assert_eq!((&found["state"], ended), (&state.into(), status), "{args:?} {set:?}: {found:#}");
        let text = found.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "not all of {words:?}: {found:#}");
    });
}

#[test]
fn a_temporary_directory_with_a_colon_in_its_name_is_refused() {
    let machine = Machine::new("colon:tmp");
    let document = document(&output(soft(&[]).env("TMPDIR", machine.path())));
    let check = check(&document, "ENV-000");
    assert_eq!(check["state"], "fail");
    assert!(check["observed"].to_string().contains("separates directories in FI_PROVIDER_PATH"), "{check:#}");
}

#[test]
fn a_software_adapter_that_does_not_start_is_not_reported_as_missing_hardware() {
    let document = document(&output(soft(&[]).env("SOFTEFA_SEED", "x")));
    let check = check(&document, "FAB-001");
    assert_eq!(check["state"], "fail");
    assert!(check["observed"].as_str().unwrap().contains("SOFTEFA_SEED=x"), "{check:#}");
    let fix = check["fix"].as_str().unwrap();
    assert!(fix.contains("SOFTEFA_") && !fix.contains("/dev/infiniband"), "{fix}");
}

#[test]
fn a_libfabric_before_2_7_is_not_asked_for_fi_xpu() {
    let document = document(&output(&mut soft(&["check", "--gpu", "none"])));
    let observed = check(&document, "LIB-002")["observed"].as_str().unwrap();
    if !observed.starts_with("libfabric 1.") && !observed.starts_with("libfabric 2.1") {
        return efa_gda_test_support::skip("this libfabric has FI_XPU");
    }
    let check = check(&document, "FAB-011");
    assert_eq!(check["state"], "unknown");
    assert!(check["why"].as_str().unwrap().contains("libfabric 2.7"), "{check:#}");
}

#[test]
fn a_signal_that_the_parent_ignores_stays_ignored() {
    let (probe, provider) = (env!("CARGO_BIN_EXE_gda-probe"), efa_gda_test_support::soft::provider());
    // A worker process that hangs in libfabric keeps the probe running until the signal arrives.
    let script = format!(
        "trap \"\" HUP; {probe} --soft --gpu none --time-limit 1000 & sleep 0.3; kill -HUP $!; wait $!"
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).env("SOFTEFA_LIBRARY", provider).env("SOFTEFA_BREAK", "hang-getinfo");
    assert_eq!(status(&output(&mut shell)), 3, "the probe must complete its report");
}
