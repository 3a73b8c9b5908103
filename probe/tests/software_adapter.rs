//! The probe through libfabric and the software adapter: checks, verdicts, puts.

mod support;

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use support::{Machine, check, document, ended, output, says, soft, state, status};

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
}

#[test]
fn without_a_gpu_the_verdict_is_none_and_reports_working_queues() {
    let document = document(&output(&mut soft(&["--gpu", "none"])));
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

#[test]
fn many_puts_are_verified_over_many_laps_and_doorbell_wraps() {
    let (document, status) = put(&["--bytes", "64", "--count", "200000"], &[]);
    let put = &document["put"];
    assert_eq!(
        (&put["completed"], &put["verified"], status),
        (&200_000.into(), &true.into(), 0),
        "{document:#}"
    );
}

#[test]
fn a_put_is_verified_with_reordered_requests() {
    let (document, status) = put(&["--bytes", "100", "--count", "5000"], &[("SOFTEFA_REORDER", "16")]);
    assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{document:#}");
}

/// Without counters, whose check posts requests before the put: an injected status names a request by its number.
const UNCOUNTED: (&str, &str) = ("FI_EFA_USE_HW_CNTR", "0");

#[test]
fn an_error_completion_fails_the_put_with_its_status() {
    let (document, status) = put(&["--count", "4"], &[("SOFTEFA_INJECT", "3:13"), UNCOUNTED]);
    assert_eq!((&document["put"]["verified"], status), (&false.into(), 3));
    says(&document, "PUT-002", "observed", &["status 13"]);
}

#[test]
fn every_error_status_is_reported_with_its_number_and_its_page() {
    for code in (1..=15).chain([18]) {
        let (document, status) =
            put(&["--count", "4"], &[("SOFTEFA_INJECT", &format!("3:{code}")), UNCOUNTED]);
        let check = check(&document, "PUT-002");
        assert_eq!((&check["state"], status), (&"fail".into(), 3), "{code}");
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
fn a_count_of_0_is_a_usage_error() {
    assert_eq!(status(&output(soft(&["put"]).args(["--count", "0"]))), 2);
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
fn a_missing_adapter_is_named_with_the_adapters_found() {
    let document = document(&output(&mut soft(&["--device", "nothing"])));
    says(&document, "FAB-003", "observed", &["softefa0-rdm"]);
}

#[test]
fn the_provider_directory_is_removed_at_the_end() {
    let machine = Machine::new("tmp");
    std::fs::set_permissions(machine.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(status(&output(soft(&["put"]).env("TMPDIR", machine.path()))), 0);
    assert_eq!(std::fs::read_dir(machine.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_provider_fails_env_000_and_blocks_libfabric() {
    let (document, status) = ended(soft(&[]).env("SOFTEFA_LIBRARY", "/nonexistent/libsoftefa.so"));
    assert_eq!((state(&document, "ENV-000"), status), ("fail", 3));
    assert_eq!(check(&document, "LIB-001")["blocked_by"], "ENV-000");
}

#[test]
fn a_missing_tmpdir_fails_env_000() {
    let (document, status) = ended(soft(&[]).env("TMPDIR", "/nonexistent"));
    assert_eq!((state(&document, "ENV-000"), status), ("fail", 3));
    says(&document, "ENV-000", "fix", &["TMPDIR"]);
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
fn a_completion_queue_opens_in_external_memory() {
    let document = document(&output(&mut soft(&["check", "--gpu", "none"])));
    let check = check(&document, "GDA-009");
    assert_eq!((&check["state"], &check["kind"]), (&"pass".into(), &"proven".into()), "{check:#}");
    assert!(check["observed"].as_str().unwrap().starts_with("1024 entries"), "{check:#}");
}

#[test]
fn an_enabled_completion_counter_counts() {
    let mut command = soft(&["check", "--gpu", "none"]);
    let (document, status) = ended(command.env("FI_EFA_USE_HW_CNTR", "1").env("SOFTEFA_HW_CNTR", "1"));
    let check = check(&document, "GDA-010");
    assert_eq!((&check["state"], &check["kind"]), (&"pass".into(), &"proven".into()), "{check:#}");
    assert_eq!(check["observed"], "one success and one error");
    assert_eq!(status, 0);
}

#[test]
fn completion_counters_that_are_off_by_default_are_unknown_with_the_variable_to_set() {
    let (document, status) = ended(soft(&["check", "--gpu", "none"]).env("SOFTEFA_PROV_VERSION", "206.0"));
    let check = check(&document, "GDA-010");
    assert_eq!(check["state"], "unknown");
    assert!(check["why"].as_str().unwrap().contains("FI_EFA_USE_HW_CNTR=1"), "{check:#}");
    assert_eq!(status, 0);
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
fn a_colon_in_tmpdir_fails_env_000() {
    let machine = Machine::new("colon:tmp");
    let (document, status) = ended(soft(&[]).env("TMPDIR", machine.path()));
    assert_eq!((state(&document, "ENV-000"), status), ("fail", 3));
    says(&document, "ENV-000", "observed", &["colon"]);
}

#[test]
fn a_provider_that_is_not_a_library_fails_env_000() {
    for file in ["/etc/passwd", "/dev/zero", "/"] {
        let document = document(&output(soft(&[]).env("SOFTEFA_LIBRARY", file)));
        assert_eq!(state(&document, "ENV-000"), "fail", "{file}");
    }
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
