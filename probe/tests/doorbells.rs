//! `--doorbell`: the same bytes, whoever rings.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use serde_json::Value;
use support::{check, document, output, soft, state, status};

fn run(args: &[&str]) -> (Value, i32) {
    let output = output(&mut soft(args));
    (document(&output), status(&output))
}

#[test]
fn a_put_is_verified_on_every_rung_and_says_which_and_what_is_lost() {
    for rung in ["direct", "record", "staged"] {
        let (document, status) = run(&["put", "--executor", "host", "--count", "20000", "--doorbell", rung]);
        let put = &document["put"];
        assert_eq!((&put["verified"], &put["doorbell"], status), (&true.into(), &rung.into(), 0), "{put}");
        assert_eq!(put.get("lost").is_some(), rung != "direct", "{put}");
        assert_eq!(state(&document, "PUT-003"), "pass", "{rung}: a rule was broken");
    }
}

#[test]
fn a_check_moves_its_bytes_on_the_rung_asked_for() {
    for rung in ["record", "staged"] {
        let (document, status) = run(&["check", "--gpu", "none", "--doorbell", rung]);
        assert_eq!((&document["put"]["doorbell"], status), (&rung.into(), 0), "{document:#}");
        assert!(check(&document, "QUE-008")["observed"].as_str().unwrap().starts_with(rung));
    }
}

#[test]
fn every_operation_is_verified_where_a_host_thread_copies() {
    for (op, bytes) in [("write-imm", "100"), ("inline-write", "80"), ("read", "100"), ("send", "100")] {
        let (document, status) =
            run(&["put", "--op", op, "--bytes", bytes, "--count", "5000", "--doorbell", "staged"]);
        assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
    }
}

#[test]
fn the_host_itself_reaches_the_best_rung() {
    let (document, _) = run(&["put", "--executor", "host", "--doorbell", "auto"]);
    assert_eq!(document["put"]["doorbell"], "direct");
}

#[test]
fn a_rung_that_there_is_not_is_a_usage_error() {
    assert_eq!(status(&output(&mut soft(&["check", "--doorbell", "fourth"]))), 2);
}
