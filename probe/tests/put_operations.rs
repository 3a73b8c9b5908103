//! `put` with every operation, with sizes around the limits of entries and requests.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use efa_gda_test_support::{Need, missing};
use serde_json::Value;
use support::{at_once, check, ended, says, soft, state};

const SIZES: [&str; 11] = ["0", "1", "31", "32", "33", "63", "64", "80", "81", "4096", "1048577"];

/// A put's document and status.
fn put(op: &str, args: &[&str], set: &[(&str, &str)]) -> (Value, i32) {
    let mut command = soft(&["put", "--executor", "host", "--op", op]);
    ended(command.args(args).envs(set.iter().copied()))
}

/// The sizes of an operation up to `most`.
fn sizes(op: &'static str, most: u64) -> impl Iterator<Item = (&'static str, &'static str)> {
    // A request of 0 bytes is verified by its arrival.
    let least = if matches!(op, "write-imm" | "send") { 0 } else { 1 };
    let valid = move |bytes: &&str| (least..=most).contains(&bytes.parse().unwrap());
    SIZES.into_iter().filter(valid).map(move |bytes| (op, bytes))
}

/// PUT-002 must report that `bytes` exceed `limit`, which is `most`.
fn refused_beyond(op: &str, bytes: &str, limit: &str, most: &str) {
    let (document, status) = put(op, &["--bytes", bytes], &[]);
    assert_eq!((state(&document, "PUT-002"), status), ("fail", 3));
    says(&document, "PUT-002", "observed", &[limit, most]);
    assert_eq!(document["put"]["completed"], 0, "nothing was posted");
    assert!(document["put"].get("microseconds").is_none(), "a put without requests has no duration");
    let fix = check(&document, "PUT-002")["fix"].as_str().unwrap();
    assert!(fix.contains("--bytes") && (fix.contains("--count") || fix.contains("--op")), "{fix}");
}

type Set = &'static [(&'static str, &'static str)];

const REORDER: Set = &[("SOFTEFA_REORDER", "16")];
const SHORT: Set = &[("SOFTEFA_MAX_RDMA_SIZE", "65536")];
const CONSUMING: Set = &[("SOFTEFA_UNSOLICITED_WRITE", "0")];

/// Operations, bytes, counts, doorbell modes and variables of puts that are verified.
const VERIFIED: [(&str, &str, u64, &str, Set); 17] = [
    ("write", "100", 5000, "auto", REORDER),
    ("write-imm", "100", 5000, "auto", REORDER),
    ("inline-write", "80", 5000, "auto", REORDER),
    ("read", "100", 5000, "auto", REORDER),
    ("send", "100", 5000, "auto", REORDER),
    ("write-imm", "100", 5000, "staged", &[]),
    ("inline-write", "80", 5000, "staged", &[]),
    ("read", "100", 5000, "staged", &[]),
    ("send", "100", 5000, "staged", &[]),
    // Many laps of each ring, and wraps of the doorbell.
    ("write", "64", 200_000, "auto", &[]),
    ("send", "64", 100_000, "auto", &[]),
    // Writes consume receives on this adapter.
    ("write-imm", "64", 5000, "auto", CONSUMING),
    // The longest requests.
    ("inline-write", "80", 1, "auto", &[]),
    ("send", "8928", 1, "auto", &[]),
    ("write", "65536", 1, "auto", SHORT),
    ("write-imm", "65536", 1, "auto", SHORT),
    ("read", "65536", 1, "auto", SHORT),
];

#[test]
fn every_operation_is_verified_reordered_over_many_laps_and_with_the_longest_request() {
    for case @ (op, bytes, count, doorbell, set) in VERIFIED {
        let args = ["--bytes", bytes, "--count", &count.to_string(), "--doorbell", doorbell];
        let (document, status) = put(op, &args, set);
        let put = &document["put"];
        assert_eq!(
            (&put["completed"], &put["verified"], status),
            (&count.into(), &true.into(), 0),
            "{case:?}: {put:#}"
        );
    }
}

/// Each operation, and its longest size.
const OPERATIONS: [(&str, u64); 5] =
    [("write", u64::MAX), ("write-imm", u64::MAX), ("read", u64::MAX), ("inline-write", 80), ("send", 8928)];

#[test]
fn every_size_of_every_operation_is_verified_with_and_without_reordering() {
    let cases = OPERATIONS.into_iter().flat_map(|(op, most)| sizes(op, most));
    let cases: Vec<_> = cases.flat_map(|case| [(case, "0"), (case, "16")]).collect();
    at_once(&cases, |((op, bytes), window)| {
        let args = ["--bytes", bytes, "--count", "3"];
        let (document, status) = put(op, &args, &[("SOFTEFA_REORDER", window)]);
        let put = &document["put"];
        assert_eq!((&put["verified"], status), (&true.into(), 0), "{bytes} bytes: {document:#}");
        assert_eq!((&put["op"], &put["completed"]), (&(*op).into(), &3.into()));
    });
}

#[test]
fn a_gibibyte_is_verified_if_memory_allows() {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let free: u64 = free.trim().trim_end_matches(" kB").parse().unwrap();
    if free < 4 << 20 {
        return missing(Need::Memory, format!("{free} KiB of memory are free, 4 GiB are needed"));
    }
    for (op, set) in [("write", &[("SOFTEFA_REORDER", "16")][..]), ("write-imm", &[]), ("read", &[])] {
        let (document, status) = put(op, &["--bytes", "1073741824"], set);
        assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
    }
}

#[test]
fn a_request_that_is_too_long_names_the_limit() {
    for (op, bytes, limit, most) in [
        ("send", "8929", "max_msg_size", "8928"),
        ("inline-write", "81", "inline limit", "80"),
        ("write", "1073741825", "max_rdma_size", "1073741824"),
        ("write-imm", "1073741825", "max_rdma_size", "1073741824"),
        ("read", "1073741825", "max_rdma_size", "1073741824"),
    ] {
        refused_beyond(op, bytes, limit, most);
    }
}

#[test]
fn an_inline_write_without_128_byte_entries_fails_fab_001() {
    let (document, status) = put("inline-write", &["--bytes", "8"], &[("SOFTEFA_ENTRIES_128", "0")]);
    assert_eq!(status, 3);
    says(&document, "FAB-001", "observed", &["128-byte entries"]);
}

#[test]
fn an_unsupported_read_fails_with_its_status_and_its_page() {
    let (document, status) = put("read", &["--bytes", "8"], &[("SOFTEFA_RDMA_READ", "0")]);
    assert_eq!(status, 3);
    let check = check(&document, "PUT-002");
    assert!(check["observed"].as_str().unwrap().contains("status 3"), "{check}");
    assert!(check["fix"].as_str().unwrap().contains("explain STATUS-3"), "{check}");
}

#[test]
fn a_put_stops_at_max_seconds_and_reports_its_progress() {
    let (document, status) = put("write", &["--count", "18446744073709551615", "--max-seconds", "1"], &[]);
    assert_eq!((state(&document, "PUT-002"), status), ("fail", 3));
    let observed = check(&document, "PUT-002")["observed"].as_str().unwrap();
    let done = document["put"]["completed"].as_u64().unwrap();
    let progress = format!(" s: {done} of 18446744073709551615 operations are done");
    assert!(observed.starts_with("stopped after ") && observed.contains(&progress), "{observed}: {done}");
    assert_eq!((&document["put"]["verified"], done > 0), (&false.into(), true));
    assert_eq!(state(&document, "PUT-005"), "pass");
}
