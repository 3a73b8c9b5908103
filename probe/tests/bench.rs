//! `bench`, with the host executor: what is measured is told whole, and nothing depends on how fast it
//! was.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use efa_gda_test_support::soft::provider;
use serde_json::Value;
use support::{document, output, probe, state, status};

/// A bench of so many milliseconds on the software adapter, before it starts.
fn command(milliseconds: &str, args: &[&str]) -> Command {
    let mut command =
        probe(&["bench", "--soft", "--json", "--executor", "host", "--time-limit", milliseconds]);
    command.args(args).env("SOFTEFA_LIBRARY", provider());
    command
}

fn bench(milliseconds: &str, args: &[&str]) -> (Value, i32) {
    let output = output(&mut command(milliseconds, args));
    assert!(output.stderr.is_empty(), "progress where there is no terminal: {output:?}");
    (document(&output), status(&output))
}

fn rows<'a>(document: &'a Value, name: &str) -> &'a Vec<Value> {
    document["bench"][name].as_array().unwrap()
}

#[test]
fn every_way_to_ring_is_measured_side_by_side_or_named_where_time_ran_out() {
    let (document, status) = bench("10000", &[]);
    assert_eq!(status, 0, "{document:#}");
    let left_out = document["bench"].get("left_out").and_then(Value::as_array).cloned().unwrap_or_default();
    for (name, cases) in [("latency", 2), ("rate", 6)] {
        for doorbell in ["direct", "record", "staged"] {
            let measured = rows(&document, name).iter().filter(|row| row["doorbell"] == doorbell).count();
            let begins = format!("{doorbell}: {name}");
            let named = left_out.iter().filter(|what| what.as_str().unwrap().starts_with(&begins)).count();
            assert_eq!(measured + named, cases, "{name}, {doorbell}: {document:#}");
        }
    }
}

#[test]
fn figures_of_the_host_executor_say_that_they_are() {
    let (document, _) = bench("1000", &["--doorbell", "direct"]);
    assert_eq!(document["bench"]["executor"], "host");
    assert!(document["bench"].get("gpu").is_none());
}

#[test]
fn the_doorbell_asked_for_is_the_only_one() {
    let (document, _) = bench("3000", &["--doorbell", "staged"]);
    // Slow machines leave the last ones out.
    let all: Vec<_> =
        ["latency", "rate", "bandwidth"].into_iter().flat_map(|name| rows(&document, name)).collect();
    assert!(!all.is_empty() && all.iter().all(|row| row["doorbell"] == "staged"), "{document:#}");
}

#[test]
fn a_median_lies_in_its_spread() {
    let (document, _) = bench("3000", &["--doorbell", "direct"]);
    assert!(!rows(&document, "rate").is_empty(), "{document:#}");
    for spread in rows(&document, "rate").iter().map(|row| &row["million_per_s"]) {
        let at = |name: &str| spread[name].as_f64().unwrap();
        assert!(0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"), "{spread}");
    }
}

#[test]
fn what_there_was_no_time_for_is_told_and_is_no_failure() {
    let (document, status) = bench("1", &[]);
    assert_eq!((state(&document, "PUT-006"), status), ("pass", 0), "{document:#}");
    assert!(!rows(&document, "left_out").is_empty());
}

#[test]
fn the_queues_asked_for_are_used() {
    let (document, _) = bench("1000", &["--doorbell", "direct", "--queues", "7"]);
    assert!(rows(&document, "rate").iter().any(|row| row["queues"] == 7), "{document:#}");
}

#[test]
fn writes_that_cannot_be_made_leave_no_figure_and_fail_the_bench() {
    let output = output(command("1000", &[]).env("SOFTEFA_MAX_RDMA_SIZE", "32"));
    let document = document(&output);
    assert_eq!(status(&output), 3, "{document:#}");
    assert!(document.get("bench").is_none_or(|bench| bench["rate"].as_array().unwrap().is_empty()));
    assert_eq!(state(&document, "PUT-002"), "fail");
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.html", std::process::id()));
    bench("1000", &["--doorbell", "direct", "--html", file.to_str().unwrap()]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(page.contains("<svg") && page.contains("host executor"));
    for foreign in ["http", "<link", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_that_names_it() {
    let output = output(&mut command("1", &["--html", "/nonexistent/page.html"]));
    assert_eq!(status(&output), 1);
    assert!(document(&output)["error"].as_str().unwrap().contains("/nonexistent/page.html"));
}
