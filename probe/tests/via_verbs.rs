//! `--via verbs` on machines without an adapter. `scripts/realstack.sh` tests it with an adapter of the uverbs
//! frontend.

mod support;

use std::path::Path;
use std::process::Command;

use efa_gda_test_support::copy_program;
use support::{Machine, check, document, output, probe, state, status};

fn codes(document: &serde_json::Value) -> Vec<&str> {
    let checks = document["checks"].as_array().expect("checks");
    checks.iter().filter_map(|check| check["code"].as_str()).collect()
}

#[test]
fn via_verbs_runs_the_checks_of_rdma_core_and_none_of_libfabric() {
    let machine = Machine::new("verbs");
    let mut command = probe(&["--json", "--via", "verbs", "--gpu", "none", "--root", machine.arg()]);
    command.env("RDMA_CORE_LIBDIR", "/nonexistent");
    let document = document(&output(&mut command));
    assert_eq!(state(&document, "VRB-001"), "fail");
    assert_eq!(check(&document, "PUT-002")["blocked_by"], "VRB-001");
    assert!(!codes(&document).iter().any(|code| code.starts_with("FAB-") || code.starts_with("GDA-")));
}

#[test]
fn without_queues_of_libfabric_rdma_core_is_queried_and_moves_no_bytes() {
    let machine = Machine::new("layers");
    let mut command = probe(&["--json", "--gpu", "none", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent").env("RDMA_CORE_LIBDIR", "/nonexistent");
    let document = document(&output(&mut command));
    assert_eq!(state(&document, "VRB-001"), "fail");
    assert_eq!(check(&document, "VRB-011")["blocked_by"], "VRB-001");
    assert_eq!(check(&document, "PUT-002")["blocked_by"], "LIB-001");
}

#[test]
fn a_put_via_verbs_without_rdma_core_fails_vrb_001() {
    let mut command = probe(&["put", "--json", "--via", "verbs"]);
    let output = output(command.env("RDMA_CORE_LIBDIR", "/nonexistent"));
    assert_eq!((status(&output), state(&document(&output), "VRB-001")), (3, "fail"));
}

#[test]
fn soft_via_verbs_without_the_program_softefa_names_the_packages_to_build() {
    let machine = Machine::new("alone");
    let alone = machine.path().join("a/b/gda-probe");
    std::fs::create_dir_all(alone.parent().expect("a parent")).expect("directories");
    copy_program(Path::new(env!("CARGO_BIN_EXE_gda-probe")), &alone);
    let mut command = Command::new(alone);
    command.args(["check", "--soft", "--via", "verbs"]).env_remove("SOFTEFA_SOCKET");
    let output = output(&mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(status(&output), 2, "{text}");
    assert!(text.contains(" -p softefa-uverbs -p softefa-preload"), "{text}");
}
