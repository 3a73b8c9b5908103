//! Compares entries that rdma-core wrote into its send queues, as the software adapter fetched them, with
//! entries that the device code formats for the same requests, byte for byte. (`softefa compare` compares
//! them with the wire crate; `softefa/uverbs/src/compare.rs` describes the two files.)
//!
//! `EFA_GDA_CAPTURE` and `EFA_GDA_REQUESTS` name the files, which `scripts/realstack.sh` makes; without
//! them the test is skipped.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;

use efa_gda::executor::host::{EntrySpec, encode_entry, encode_inline_entry};
use efa_gda_sys::device::*;
use efa_gda_test_support::{Need, missing};

/// A queue pair's entries: their size, the ring's depth, and how many were posted.
struct Queue {
    entry: usize,
    depth: u32,
    posted: u32,
}

fn file(variable: &str) -> Option<String> {
    let Some(path) = std::env::var_os(variable) else {
        missing(Need::Capture, format!("{variable} names no file"));
        return None;
    };
    Some(std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Parses a segment into its address, length and key.
fn segment(text: &str) -> (u64, u32, u32) {
    let parts: Vec<&str> = text.split(':').collect();
    (number(parts[0]), number(parts[1]), number(parts[2]))
}

/// Formats the entry for the words of a request, with the device code.
fn format(words: &[&str], phase: bool) -> [u8; 128] {
    let [kind, id, handle, queue_pair, key, immediate, address, rkey, data @ ..] = words else {
        panic!("too few words: {words:?}");
    };
    let inline = data[0] == "inline";
    let op = match (*kind, inline) {
        ("send", false) => EFA_GDA_OP_SEND,
        ("send", true) => EFA_GDA_OP_INLINE_SEND,
        ("write", false) => EFA_GDA_OP_WRITE,
        ("write", true) => EFA_GDA_OP_INLINE_WRITE,
        ("read", false) => EFA_GDA_OP_READ,
        other => panic!("{other:?} is not a kind of request"),
    };
    let mut spec = EntrySpec {
        op,
        peer: efa_gda_peer { ah: number(handle), qpn: number(queue_pair), qkey: number(key) },
        request_id: number(id),
        wide_id: true,
        phase,
        has_immediate: *immediate != "-",
        ..EntrySpec::default()
    };
    if spec.has_immediate {
        spec.immediate = number(immediate);
    }
    if *address != "-" {
        (spec.remote_address, spec.rkey) = (number(address), number(rkey));
    }
    if inline {
        return encode_inline_entry(&spec, &bytes(data.get(1).copied().unwrap_or_default()));
    }
    (spec.local_address, spec.length, spec.lkey) = segment(data[0]);
    spec.pieces = data.len() as u32;
    if let Some(second) = data.get(1) {
        (spec.second_address, spec.second_length, spec.second_lkey) = segment(second);
    }
    encode_entry(&spec)
}

#[test]
fn entries_of_rdma_core_equal_those_of_the_device_code() {
    let Some(capture) = file("EFA_GDA_CAPTURE") else { return };
    let Some(requests) = file("EFA_GDA_REQUESTS") else { return };
    let mut captured = HashMap::new();
    for line in capture.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        captured.insert((number::<u16>(words[1]), number::<u32>(words[2])), bytes(words[3]));
    }
    let mut queues = HashMap::new();
    for line in requests.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["Q", queue_pair, entry, depth] = words.as_slice() {
            let queue = Queue { entry: number(entry), depth: number(depth), posted: 0 };
            queues.insert(number::<u16>(queue_pair), queue);
            continue;
        }
        let queue_pair = number(words[1]);
        let queue = queues.get_mut(&queue_pair).expect("a Q line precedes the R lines of its queue pair");
        let counter = queue.posted;
        queue.posted += 1;
        let formatted = format(&words[2..], counter / queue.depth % 2 == 1);
        let fetched =
            captured.remove(&(queue_pair, counter)).expect("the capture holds an entry for the request");
        assert_eq!(fetched, formatted[..queue.entry], "{line}");
    }
    assert!(captured.is_empty(), "{} captured entries belong to no request", captured.len());
    assert!(queues.values().any(|queue| queue.posted > 0), "the file of requests is empty");
}
