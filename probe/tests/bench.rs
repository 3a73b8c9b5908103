//! `bench` with the host executor: the report names every measurement, and no test depends on speed.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use efa_gda_test_support::soft::provider;
use serde_json::Value;
use support::{document, ended, output, probe, state, status};

/// The command of a bench with this time limit on the software adapter.
fn command(milliseconds: &str, args: &[&str]) -> Command {
    let mut command =
        probe(&["bench", "--soft", "--json", "--executor", "host", "--time-limit", milliseconds]);
    command.args(args).env("SOFTEFA_LIBRARY", provider());
    command
}

fn bench(milliseconds: &str, args: &[&str]) -> (Value, i32) {
    let output = output(&mut command(milliseconds, args));
    assert!(output.stderr.is_empty(), "progress without a terminal: {output:?}");
    (document(&output), status(&output))
}

fn rows<'a>(document: &'a Value, name: &str) -> &'a Vec<Value> {
    document["bench"][name].as_array().unwrap()
}

/// Whether measurements of this name were left out, because a busy machine left no time for them.
fn late(document: &Value, name: &str) -> bool {
    let left_out = document["bench"].get("left_out").and_then(Value::as_array);
    left_out.is_some_and(|all| all.iter().any(|what| what.as_str().unwrap().contains(&format!(": {name}"))))
}

#[test]
fn every_doorbell_mode_is_measured_or_listed_as_left_out() {
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
fn figures_of_the_host_executor_name_it() {
    let (document, _) = bench("1000", &["--doorbell", "direct"]);
    assert_eq!(document["bench"]["executor"], "host");
    assert!(document["bench"].get("gpu").is_none());
}

#[test]
fn only_the_requested_doorbell_mode_is_measured() {
    let (document, _) = bench("3000", &["--doorbell", "staged"]);
    // On a slow machine the last measurements are left out.
    let all: Vec<_> =
        ["latency", "rate", "bandwidth"].into_iter().flat_map(|name| rows(&document, name)).collect();
    assert!(!all.is_empty() || late(&document, "latency"), "{document:#}");
    assert!(all.iter().all(|row| row["doorbell"] == "staged"), "{document:#}");
}

#[test]
fn a_median_is_between_minimum_and_maximum() {
    let (document, _) = bench("3000", &["--doorbell", "direct"]);
    assert!(!rows(&document, "rate").is_empty() || late(&document, "rate"), "{document:#}");
    for spread in rows(&document, "rate").iter().map(|row| &row["million_per_s"]) {
        let at = |name: &str| spread[name].as_f64().unwrap();
        // A busy machine's rate may be rounded to 0.
        assert!(0.0 <= at("min") && at("min") <= at("median") && at("median") <= at("max"), "{spread}");
    }
}

#[test]
fn measurements_without_time_are_listed_and_do_not_fail() {
    let (document, status) = bench("1", &[]);
    assert_eq!((state(&document, "PUT-006"), status), ("pass", 0), "{document:#}");
    assert!(!rows(&document, "left_out").is_empty());
}

#[test]
fn the_requested_number_of_queues_is_used() {
    let (document, _) = bench("1000", &["--doorbell", "direct", "--queues", "7"]);
    let is_used = rows(&document, "rate").iter().any(|row| row["queues"] == 7);
    assert!(is_used || late(&document, "rate"), "{document:#}");
}

#[test]
fn a_bench_whose_writes_fail_has_no_figures_and_fails() {
    let (document, status) = ended(command("1000", &[]).env("SOFTEFA_MAX_RDMA_SIZE", "32"));
    assert_eq!(status, 3, "{document:#}");
    assert!(document.get("bench").is_none_or(|bench| bench["rate"].as_array().unwrap().is_empty()));
    assert_eq!(state(&document, "PUT-002"), "fail");
}

#[test]
fn the_html_page_references_no_other_resource() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.html", std::process::id()));
    bench("1000", &["--doorbell", "direct", "--html", file.to_str().unwrap()]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(page.contains("<svg") || page.contains("--time-limit was reached"), "{page}");
    assert!(page.contains("host executor"));
    for foreign in ["http", "<link", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn a_page_on_stdout_replaces_the_report() {
    let mut command =
        probe(&["bench", "--soft", "--executor", "host", "--time-limit", "1000", "--html", "-"]);
    let output = output(command.env("SOFTEFA_LIBRARY", provider()));
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"), "{page}");
    let body = page.split("<body>\n").nth(1).unwrap();
    assert!(body.lines().next().unwrap().contains("Software adapter"), "{body}");
}

#[test]
fn the_error_for_a_page_that_cannot_be_written_names_the_file() {
    let output = output(&mut command("1", &["--html", "/nonexistent/page.html"]));
    assert_eq!(status(&output), 1);
    assert!(document(&output)["error"].as_str().unwrap().contains("/nonexistent/page.html"));
}
