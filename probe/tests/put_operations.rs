//! `put` with every operation, around the sizes where entries and limits change.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use efa_gda_test_support::{Need, missing};
use serde_json::Value;
use support::{check, document, output, soft, state, status};

const SIZES: [&str; 11] = ["0", "1", "31", "32", "33", "63", "64", "80", "81", "4096", "1048577"];

/// A put's document and status.
fn put(op: &str, args: &[&str], set: &[(&str, &str)]) -> (Value, i32) {
    let mut command = soft(&["put", "--executor", "host", "--op", op]);
    let output = output(command.args(args).envs(set.iter().copied()));
    (document(&output), status(&output))
}

/// Three of each size that `most` allows, with set variables.
fn verified_up_to(op: &str, most: u64, set: &[(&str, &str)]) {
    for bytes in SIZES.into_iter().filter(|bytes| bytes.parse::<u64>().unwrap() <= most) {
        let (document, status) = put(op, &["--bytes", bytes, "--count", "3"], set);
        let put = &document["put"];
        assert_eq!((&put["verified"], status), (&true.into(), 0), "{bytes} bytes: {document:#}");
        assert_eq!((&put["op"], &put["completed"]), (&op.into(), &3.into()));
    }
}

/// The check that compares bytes says that `bytes` are more than `limit`, which is `most`.
fn refused_past(op: &str, bytes: &str, limit: &str, most: &str) {
    let (document, status) = put(op, &["--bytes", bytes], &[]);
    assert_eq!((state(&document, "PUT-002"), status), ("fail", 3));
    let observed = check(&document, "PUT-002")["observed"].as_str().unwrap();
    assert!(observed.contains(limit) && observed.contains(most), "{observed}");
    assert_eq!(document["put"]["completed"], 0, "nothing was posted");
    assert!(document["put"].get("microseconds").is_none(), "nothing took time");
    let fix = check(&document, "PUT-002")["fix"].as_str().unwrap();
    assert!(fix.contains("--bytes") && (fix.contains("--count") || fix.contains("--op")), "{fix}");
}

#[test]
fn reads_of_every_size_are_verified() {
    verified_up_to("read", u64::MAX, &[]);
}

#[test]
fn writes_with_immediate_of_every_size_are_verified_and_learned_of() {
    verified_up_to("write-imm", u64::MAX, &[]);
}

#[test]
fn inline_writes_are_verified_up_to_the_entrys_limit() {
    verified_up_to("inline-write", 80, &[]);
}

#[test]
fn sends_are_verified_in_their_receives_up_to_a_message() {
    verified_up_to("send", 8928, &[]);
}

#[test]
fn every_operation_is_verified_however_requests_are_reordered() {
    for (op, bytes) in [("write-imm", "100"), ("inline-write", "80"), ("read", "100"), ("send", "100")] {
        let (document, status) =
            put(op, &["--bytes", bytes, "--count", "5000"], &[("SOFTEFA_REORDER", "16")]);
        assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
    }
}

#[test]
fn every_size_of_every_operation_is_verified_with_reordering() {
    for (op, most) in [
        ("write", u64::MAX),
        ("write-imm", u64::MAX),
        ("read", u64::MAX),
        ("inline-write", 80),
        ("send", 8928),
    ] {
        verified_up_to(op, most, &[("SOFTEFA_REORDER", "16")]);
    }
}

#[test]
fn sends_go_round_every_ring() {
    let (document, status) = put("send", &["--bytes", "64", "--count", "100000"], &[]);
    assert_eq!((&document["put"]["completed"], status), (&100_000.into(), 0), "{document:#}");
}

#[test]
fn immediates_use_receives_where_the_adapter_needs_them() {
    let (document, status) = put("write-imm", &["--count", "5000"], &[("SOFTEFA_UNSOLICITED_WRITE", "0")]);
    assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{document:#}");
}

#[test]
fn the_longest_of_each_is_verified() {
    for (op, bytes) in [("inline-write", "80"), ("send", "8928")] {
        let (document, status) = put(op, &["--bytes", bytes], &[]);
        assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
    }
    for op in ["write", "write-imm", "read"] {
        let (document, status) = put(op, &["--bytes", "65536"], &[("SOFTEFA_MAX_RDMA_SIZE", "65536")]);
        assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
    }
}

#[test]
fn a_gibibyte_is_verified_where_there_is_memory_for_it() {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let free: u64 = free.trim().trim_end_matches(" kB").parse().unwrap();
    if free < 4 << 20 {
        return missing(Need::Memory, format!("{free} KiB of memory are free, and this needs 4 GiB"));
    }
    for (op, set) in [("write", &[("SOFTEFA_REORDER", "16")][..]), ("write-imm", &[]), ("read", &[])] {
        let (document, status) = put(op, &["--bytes", "1073741824"], set);
        assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
    }
}

#[test]
fn one_byte_more_than_a_message_names_max_msg_size() {
    refused_past("send", "8929", "max_msg_size", "8928");
}

#[test]
fn one_byte_more_than_an_entry_carries_names_the_inline_limit() {
    refused_past("inline-write", "81", "inline limit", "80");
}

#[test]
fn one_byte_more_than_rdma_allows_names_max_rdma_size() {
    for op in ["write", "write-imm", "read"] {
        refused_past(op, "1073741825", "max_rdma_size", "1073741824");
    }
}

#[test]
fn an_inline_write_without_128_byte_entries_says_so() {
    let (document, status) = put("inline-write", &["--bytes", "8"], &[("SOFTEFA_ENTRIES_128", "0")]);
    assert_eq!(status, 3);
    let observed = check(&document, "FAB-001")["observed"].as_str().unwrap();
    assert!(observed.contains("128-byte entries"), "{observed}");
}

#[test]
fn a_read_that_the_adapter_lacks_fails_with_its_status_and_where_to_look() {
    let (document, status) = put("read", &["--bytes", "8"], &[("SOFTEFA_RDMA_READ", "0")]);
    assert_eq!(status, 3);
    let check = check(&document, "PUT-002");
    assert!(check["observed"].as_str().unwrap().contains("status 3"), "{check}");
    assert!(check["fix"].as_str().unwrap().contains("explain STATUS-3"), "{check}");
}

#[test]
fn a_put_that_would_go_on_for_ever_stops_and_says_how_far_it_got() {
    let (document, status) = put("write", &["--count", "18446744073709551615", "--max-seconds", "1"], &[]);
    assert_eq!((state(&document, "PUT-002"), status), ("fail", 3));
    let observed = check(&document, "PUT-002")["observed"].as_str().unwrap();
    let done = document["put"]["completed"].as_u64().unwrap();
    let far = format!(" s: {done} of 18446744073709551615 operations are done");
    assert!(observed.starts_with("stopped after ") && observed.contains(&far), "{observed}: {done}");
    assert_eq!((&document["put"]["verified"], done > 0), (&false.into(), true));
    assert_eq!(state(&document, "PUT-005"), "pass");
}
