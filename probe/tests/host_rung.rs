//! The verdict where a GPU's driver refuses to map some of the adapter: the pretended CUDA driver
//! refuses on purpose, and everything else is as on a GPU. The verdict rests on
//! bytes that were put on the rung which was left.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::process::Command;

use efa_gda_test_support::cuda;
use efa_gda_test_support::soft::provider;
use serde_json::Value;
use support::{check, document, output, probe, soft, status};

/// The places of a queue in the order in which they are mapped.
const NONE: &str = "";
const SEND_QUEUE: &str = "1";
const DOORBELL: &str = "2";
const COMPLETION_QUEUE: &str = "3";

/// The document and status of the probe with GPU 0, whose driver refuses a place.
fn refusing(place: &str, args: &[&str]) -> (Value, i32) {
    run(place, soft(args))
}

fn run(place: &str, mut command: Command) -> (Value, i32) {
    command.args(["--gpu", "0"]).envs(cuda::VARIABLES).env("PRETEND_GPU_REFUSES", place);
    let output = output(&mut command);
    (document(&output), status(&output))
}

/// The result of the verdict, and the doorbell mode in which the pair's bytes were put.
fn verdict(place: &str, args: &[&str]) -> (String, String) {
    let (document, _) = refusing(place, args);
    let put = &document["put"];
    assert_eq!(
        (&put["executor"], &put["gpu"], &put["verified"]),
        (&"cuda".into(), &"0".into(), &true.into())
    );
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    (word(&document["verdict"][0]["result"]), word(&put["doorbell"]))
}

fn assert_is(found: (String, String), result: &str, rung: &str) {
    assert_eq!(found, (result.to_owned(), rung.to_owned()));
}

#[test]
fn where_everything_maps_the_pair_is_gda() {
    assert_is(verdict(NONE, &["check"]), "gda", "direct");
}

#[test]
fn without_the_doorbell_the_pair_is_host_rung_from_a_record() {
    assert_is(verdict(DOORBELL, &["check"]), "host-rung", "record");
}

#[test]
fn without_the_send_queue_the_pair_is_host_rung_and_staged() {
    assert_is(verdict(SEND_QUEUE, &["check"]), "host-rung", "staged");
}

#[test]
fn a_rung_asked_for_is_the_one_that_the_verdict_rests_on() {
    assert_is(verdict(NONE, &["check", "--doorbell", "staged"]), "host-rung", "staged");
}

#[test]
fn the_report_says_what_was_refused_and_what_the_rung_loses() {
    let (document, status) = refusing(SEND_QUEUE, &["check"]);
    let of_pair =
        |one: &&Value| one["code"] == "QUE-008" && one["subject"].as_str().unwrap().starts_with("0/");
    let rung = document["checks"].as_array().unwrap().iter().find(of_pair).unwrap();
    let observed = rung["observed"].as_str().unwrap();
    for words in ["staged: a host thread copies", "not direct:", "not record:", "cuMemHostRegister"] {
        assert!(observed.contains(words), "{observed}");
    }
    assert!(document["put"]["lost"].as_str().unwrap().contains("host thread"));
    let next = document["verdict"][0]["next"].as_str().unwrap();
    assert!(next.contains("--doorbell staged works") && next.contains("CUDA-008"), "{next}");
    assert_eq!(status, 3, "that the GPU does not map the queue is a failed check");
}

#[test]
fn without_the_completion_queue_no_rung_is_left() {
    let (document, status) = refusing(COMPLETION_QUEUE, &["check"]);
    assert_eq!((&document["verdict"][0]["result"], status), (&"none".into(), 3), "{document:#}");
    assert_eq!(check(&document, "CUDA-012")["state"], "fail");
}

#[test]
fn a_put_that_may_only_ring_directly_does_not_fall_back() {
    let put = ["put", "--executor", "cuda", "--doorbell", "direct"];
    let (document, status) = refusing(DOORBELL, &put);
    assert_eq!(status, 3, "{document:#}");
    assert!(document.get("put").is_none(), "nothing was put in its place");
}

#[test]
fn every_operation_is_verified_on_the_rung_that_is_left() {
    for (place, rung) in [(DOORBELL, "record"), (SEND_QUEUE, "staged")] {
        for op in ["write", "write-imm", "inline-write", "read", "send"] {
            let put = ["put", "--executor", "cuda", "--op", op, "--count", "3000"];
            let (document, status) = refusing(place, &put);
            let put = &document["put"];
            assert_eq!(
                (&put["verified"], &put["doorbell"]),
                (&true.into(), &rung.into()),
                "{op}: {document:#}"
            );
            assert_eq!(status, 4, "{op}: that less maps is a warning where bytes arrive without");
        }
    }
}

#[test]
fn the_bench_measures_what_is_left_and_names_what_is_not() {
    let mut command = probe(&["bench", "--soft", "--json", "--executor", "cuda", "--time-limit", "15000"]);
    command.env("SOFTEFA_LIBRARY", provider());
    let (document, status) = run(DOORBELL, command);
    let bench = &document["bench"];
    for name in ["latency", "rate"] {
        let rows = bench[name].as_array().unwrap();
        for (doorbell, there) in [("direct", false), ("record", true), ("staged", true)] {
            assert_eq!(
                rows.iter().any(|row| row["doorbell"] == doorbell),
                there,
                "{name}, {doorbell}: {bench:#}"
            );
        }
    }
    assert_eq!(bench["bandwidth"][0]["doorbell"], "record", "the best that there is");
    let left_out = bench["left_out"].as_array().unwrap();
    assert!(left_out.iter().any(|what| what.as_str().unwrap().contains("--doorbell direct")), "{left_out:?}");
    assert_eq!(status, 4, "that less maps is a warning where bytes arrive without");
}

#[test]
fn a_bench_whose_queues_nobody_rings_for_fails_with_the_drivers_words() {
    // The first three are those of the queue that is put from; of the bench's own, none maps.
    let places = (4..1000).map(|place| place.to_string()).collect::<Vec<_>>().join(",");
    let mut command = probe(&["bench", "--soft", "--json", "--executor", "cuda", "--time-limit", "15000"]);
    command.env("SOFTEFA_LIBRARY", provider());
    let (document, status) = run(&places, command);
    let bench = check(&document, "PUT-006");
    assert_eq!((&bench["state"], status), (&"fail".into(), 3), "{document:#}");
    assert!(bench["observed"].as_str().unwrap().contains("cuMemHostRegister"), "{bench:#}");
    let left_out = document["bench"]["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 3, "{left_out:?}");
    assert!(left_out.iter().all(|what| what.as_str().unwrap().contains("cuMemHostRegister")), "{left_out:?}");
}
