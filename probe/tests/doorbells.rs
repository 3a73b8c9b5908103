//! `--doorbell`: the same bytes arrive in every doorbell mode.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use serde_json::Value;
use support::{check, ended, soft, state};

fn run(args: &[&str]) -> (Value, i32) {
    ended(&mut soft(args))
}

#[test]
fn a_put_is_verified_in_every_doorbell_mode_and_reports_the_mode_and_its_cost() {
    for mode in ["direct", "record", "staged"] {
        let (document, status) = run(&["put", "--executor", "host", "--count", "20000", "--doorbell", mode]);
        let put = &document["put"];
        assert_eq!((&put["verified"], &put["doorbell"], status), (&true.into(), &mode.into(), 0), "{put}");
        assert_eq!(put.get("lost").is_some(), mode != "direct", "{put}");
        assert_eq!(state(&document, "PUT-003"), "pass", "{mode}: a rule was broken");
    }
}

#[test]
fn a_check_moves_its_bytes_in_the_requested_doorbell_mode() {
    for mode in ["record", "staged"] {
        let (document, status) = run(&["check", "--gpu", "none", "--doorbell", mode]);
        assert_eq!((&document["put"]["doorbell"], status), (&mode.into(), 0), "{document:#}");
        assert!(check(&document, "QUE-008")["observed"].as_str().unwrap().starts_with(mode));
    }
}

#[test]
fn the_host_executor_uses_mode_direct_by_default() {
    let (document, _) = run(&["put", "--executor", "host", "--doorbell", "auto"]);
    assert_eq!(document["put"]["doorbell"], "direct");
}
