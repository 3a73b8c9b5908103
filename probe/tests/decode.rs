//! `gda-probe decode`.

mod support;

use support::{document, run, status};

/// An RDMA write of 64 bytes: req_id 7, queue pair 101, address handle 3, phase 1. The bytes were
/// laid out by hand from the descriptor's table.
const WRITE: &str = "0700 82 1d 6500 0100 00000000 0300 00 00 34120000 000000000000 000000000000 \
                     40000000 bc0a0000 00000070 00000000 40000000 55000000 00100000 00000000";

fn field<'a>(document: &'a serde_json::Value, name: &str) -> &'a str {
    let fields = document["decode"]["fields"].as_array().expect("fields");
    let found = fields.iter().find(|field| field["name"] == name);
    found.and_then(|field| field["value"].as_str()).unwrap_or_else(|| panic!("no {name} in {fields:#?}"))
}

#[test]
fn a_good_entry_is_named_field_by_field() {
    let output = run(&["decode", "--json", "--wqe", WRITE]);
    let document = document(&output);
    assert_eq!(status(&output), 0, "{document:#}");
    for (name, value) in [
        ("req_id", "7"),
        ("op_type", "2 (RDMA WRITE)"),
        ("phase", "1"),
        ("dest_qp_num", "101"),
        ("ah", "3"),
        ("qkey", "0x1234"),
        ("remote_mem.rkey", "0xabc"),
        ("remote_mem.buf_addr", "0x70000000"),
        ("local_mem.length", "64"),
        ("local_mem.lkey", "0x55"),
        ("local_mem.buf_addr", "0x1000"),
    ] {
        assert_eq!(field(&document, name), value, "{name}");
    }
}

#[test]
fn a_broken_rule_is_named_and_is_status_3() {
    // comp_req, bit 4 of ctrl2, taken out.
    let output = run(&["decode", "--json", "--wqe", &WRITE.replacen("1d", "0d", 1)]);
    assert_eq!(status(&output), 3);
    let broken = &document(&output)["decode"]["broken"];
    assert!(broken[0].as_str().unwrap().contains("comp_req"), "{broken}");
}

#[test]
fn an_entry_of_another_size_is_malformed() {
    assert_eq!(status(&run(&["decode", "--wqe", "00"])), 2);
}

#[test]
fn what_is_no_hex_is_malformed() {
    assert_eq!(status(&run(&["decode", "--wqe", "no hex"])), 2);
}

#[test]
fn nothing_to_decode_is_a_usage_error() {
    assert_eq!(status(&run(&["decode"])), 2);
}

#[test]
fn a_completion_names_its_status() {
    // req_id 7, status 7, flags: phase 1, send queue, RDMA write.
    let output = run(&["decode", "--json", "--cqe", "0700 07 23 6500 0000 0000000000000000"]);
    let document = document(&output);
    assert_eq!(status(&output), 0, "an error status breaks no rule");
    assert!(field(&document, "status").starts_with("7 ("));
    assert_eq!((field(&document, "phase"), field(&document, "q_type")), ("1", "1 (send queue)"));
}

#[test]
fn a_completion_of_no_queue_breaks_a_rule() {
    assert_eq!(status(&run(&["decode", "--cqe", "0700 00 00 6500 0000 0000000000000000"])), 3);
}
