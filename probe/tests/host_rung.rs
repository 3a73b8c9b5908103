//! Verdicts when the GPU's driver refuses to map a part of the queue. The pretended CUDA driver refuses selected parts;
//! everything else is as on a GPU. The verdict depends on a put in the doorbell mode that still works.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::process::Command;

use efa_gda_test_support::cuda;
use efa_gda_test_support::soft::provider;
use serde_json::Value;
use support::{at_once, check, ended, output, probe, says, soft, status};

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
    ended(&mut command)
}

/// The frozen behaviour has the verdicts.
#[test]
fn a_put_of_the_gpu_is_verified_in_the_mode_that_the_mapped_parts_allow() {
    for (place, args, mode) in [
        (NONE, &["check"][..], "direct"),
        (DOORBELL, &["check"], "record"),
        (SEND_QUEUE, &["check"], "staged"),
        (COMPLETION_QUEUE, &["check"], "direct"),
        (NONE, &["check", "--doorbell", "staged"], "staged"),
    ] {
        let put = &refusing(place, args).0["put"];
        let found = [&put["executor"], &put["gpu"], &put["doorbell"], &put["verified"]];
        assert_eq!(found, [&Value::from("cuda"), &"0".into(), &mode.into(), &true.into()], "{place:?}");
    }
}

#[test]
fn the_report_names_the_refused_parts_and_the_cost_of_the_mode() {
    let (document, status) = refusing(SEND_QUEUE, &["check"]);
    let of_pair =
        |one: &&Value| one["code"] == "QUE-008" && one["subject"].as_str().unwrap().starts_with("0/");
    let mode = document["checks"].as_array().unwrap().iter().find(of_pair).unwrap();
    let observed = mode["observed"].as_str().unwrap();
    for words in ["staged: a host thread copies", "not direct:", "not record:", "cuMemHostRegister"] {
        assert!(observed.contains(words), "{observed}");
    }
    assert!(document["put"]["lost"].as_str().unwrap().contains("host thread"));
    let next = document["verdict"][0]["next"].as_str().unwrap();
    assert!(next.contains("--doorbell staged works") && next.contains("CUDA-008"), "{next}");
    assert_eq!(status, 3, "a queue that the GPU does not map is a failed check");
}

#[test]
fn a_host_thread_relays_completions_without_the_completion_queue() {
    let (document, _) = refusing(COMPLETION_QUEUE, &["check"]);
    let of_pair = |code: &str| {
        let checks = document["checks"].as_array().unwrap();
        let is = |one: &&Value| one["code"] == code && one["subject"].as_str().unwrap().starts_with("0/");
        checks.iter().find(is).unwrap().clone()
    };
    let mode = of_pair("QUE-008");
    assert!(mode["observed"].as_str().unwrap().contains("relays completions"), "{mode}");
    says(&document, "CUDA-012", "observed", &["efa-direct without FI_CONTEXT2 is offered"]);
}

#[test]
fn a_put_in_mode_direct_does_not_fall_back() {
    let put = ["put", "--executor", "cuda", "--doorbell", "direct"];
    let (document, status) = refusing(DOORBELL, &put);
    assert_eq!(status, 3, "{document:#}");
    assert!(document.get("put").is_none(), "no other doorbell mode may move the bytes");
}

#[test]
fn every_operation_is_verified_in_the_mode_that_still_works() {
    let operations = ["write", "write-imm", "inline-write", "read", "send"];
    let modes = [(DOORBELL, "record"), (SEND_QUEUE, "staged")];
    let cases = modes.map(|(place, mode)| operations.map(|op| (place, mode, op)));
    at_once(cases.as_flattened(), |&(place, mode, op)| {
        let put = ["put", "--executor", "cuda", "--op", op, "--count", "3000"];
        let (document, status) = refusing(place, &put);
        let put = &document["put"];
        assert_eq!((&put["verified"], &put["doorbell"]), (&true.into(), &mode.into()), "{op}: {document:#}");
        assert_eq!(status, 4, "{op}: a part that does not map is a warning if bytes arrive without it");
    });
}

/// The qualification of a put of two laps, and the whole document.
fn qualification(place: &str, more: &[(&str, &str)]) -> (Value, Value, i32) {
    let mut command = soft(&["put", "--qualify-stores", "2"]);
    command.envs(more.iter().copied());
    let (document, status) = run(place, command);
    (document["put"]["qualification"].clone(), document, status)
}

#[test]
fn a_qualification_writes_each_slot_in_every_lap_by_stores_of_16_bytes() {
    let (result, document, status) = qualification(NONE, &[]);
    let (put, slots) = (&document["put"], &document["queues"]["sq"]["num_entries"]);
    assert_eq!((&result["laps"], &result["passed"], status), (&2.into(), &true.into(), 0), "{document:#}");
    assert_eq!(put["completed"].as_u64(), slots.as_u64().map(|slots| 2 * slots), "{put:#}");
    assert_eq!((&put["store_bytes"], &put["executor"]), (&16.into(), &"cuda".into()), "{put:#}");
    assert!(result["next"].as_str().unwrap().contains("software adapter"), "{result}");
}

#[test]
fn a_qualification_fails_with_an_error_completion() {
    let (result, document, status) = qualification(NONE, &[("SOFTEFA_INJECT", "5000:8")]);
    assert_eq!((&result["passed"], status), (&false.into(), 3), "{document:#}");
    assert!(result["next"].as_str().unwrap().contains("StoreWidth::Auto"), "{result}");
}

#[test]
fn a_qualification_is_refused_where_no_gpu_writes_the_entries() {
    let (result, document, code) = qualification(SEND_QUEUE, &[]);
    assert_eq!((result, code), (Value::Null, 3), "{document:#}");
    for option in [["--executor", "host"], ["--doorbell", "staged"]] {
        let mut command = soft(&[&["put", "--qualify-stores"], &option[..]].concat());
        assert_eq!(status(&output(&mut command)), 2, "{option:?}");
    }
}

#[test]
fn the_bench_measures_the_modes_that_work_and_lists_the_others() {
    let mut command = probe(&["bench", "--soft", "--json", "--executor", "cuda", "--time-limit", "15000"]);
    command.env("SOFTEFA_LIBRARY", provider());
    let (document, status) = run(DOORBELL, command);
    let bench = &document["bench"];
    let left_out = bench["left_out"].as_array().unwrap();
    // On a busy machine no time is left for the last measurements.
    let late = |what: &str| left_out.iter().any(|left| left.as_str().unwrap().starts_with(what));
    for name in ["latency", "rate"] {
        let rows = bench[name].as_array().unwrap();
        for (doorbell, works) in [("direct", false), ("record", true), ("staged", true)] {
            let is_measured = rows.iter().any(|row| row["doorbell"] == doorbell);
            assert_eq!(
                is_measured || late(&format!("{doorbell}: {name}")),
                works,
                "{name}, {doorbell}: {bench:#}"
            );
        }
    }
    let best = bench["bandwidth"][0].get("doorbell");
    assert!(best.is_some_and(|mode| mode == "record") || late("record: bandwidth"), "{bench:#}");
    assert!(left_out.iter().any(|what| what.as_str().unwrap().contains("--doorbell direct")), "{left_out:?}");
    assert_eq!(status, 4, "a part that does not map is a warning if bytes arrive without it");
}

#[test]
fn a_bench_without_a_working_mode_fails_with_cudas_refusal() {
    // The first three are of the put's queue; no part of the bench's queues maps.
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
