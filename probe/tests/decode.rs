//! `gda-probe decode`.

mod support;

use std::io::Write;
use std::process::{Output, Stdio};

use support::{Machine, document, probe, run, status};

/// An RDMA write of 64 bytes: req_id 7, queue pair 101, address handle 3, phase 1. The bytes were written
/// by hand from the layout of the descriptor.
const WRITE: &str = "0700 82 1d 6500 0100 00000000 0300 00 00 34120000 000000000000 000000000000 \
                     40000000 bc0a0000 00000070 00000000 40000000 55000000 00100000 00000000";

fn field<'a>(document: &'a serde_json::Value, name: &str) -> &'a str {
    let fields = document["decode"]["fields"].as_array().expect("fields");
    let found = fields.iter().find(|field| field["name"] == name);
    found.and_then(|field| field["value"].as_str()).unwrap_or_else(|| panic!("no {name} in {fields:#?}"))
}

#[test]
fn decode_names_every_field_of_a_valid_entry() {
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
fn a_broken_rule_is_named_and_the_status_is_3() {
    // Without comp_req, bit 4 of ctrl2.
    let output = run(&["decode", "--json", "--wqe", &WRITE.replacen("1d", "0d", 1)]);
    assert_eq!(status(&output), 3);
    let broken = &document(&output)["decode"]["broken"];
    assert!(broken[0].as_str().unwrap().contains("comp_req"), "{broken}");
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
fn a_completion_without_a_queue_type_breaks_a_rule() {
    assert_eq!(status(&run(&["decode", "--cqe", "0700 00 00 6500 0000 0000000000000000"])), 3);
}

/// The bytes of an entry in hex.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |two| u8::from_str_radix(str::from_utf8(two).expect("ASCII"), 16).expect("two hex digits");
    digits.chunks(2).map(byte).collect()
}

fn with_stdin(args: &[&str], input: &[u8]) -> Output {
    let mut command = probe(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the probe starts");
    child.stdin.take().expect("it was piped").write_all(input).expect("the probe reads it");
    child.wait_with_output().expect("the probe ends")
}

#[test]
fn each_field_has_an_offset_and_a_meaning() {
    let document = document(&run(&["decode", "--json", "--wqe", WRITE]));
    let fields = document["decode"]["fields"].as_array().unwrap();
    let position = |name: &str| {
        let field = fields.iter().find(|field| field["name"] == name).unwrap();
        (field["offset"].as_u64().unwrap(), field["bits"].as_str().map(str::to_owned))
    };
    for (name, offset, bits) in [
        ("op_type", 2, Some("3:0")),
        ("phase", 3, Some("0")),
        ("qkey", 16, None),
        ("remote_mem.rkey", 36, None),
        ("local_mem.buf_addr", 56, None),
    ] {
        assert_eq!(position(name), (offset, bits.map(str::to_owned)), "{name}");
    }
    assert!(fields.iter().all(|field| !field["meaning"].as_str().unwrap().is_empty()));
}

#[test]
fn a_captured_line_is_its_entry() {
    let hex: String = WRITE.split_whitespace().collect();
    let line = format!("0 101 7 {hex}\n");
    let expected = document(&run(&["decode", "--json", "--wqe", WRITE]));
    assert_eq!(document(&with_stdin(&["decode", "--json", "--wqe"], line.as_bytes())), expected);
    let several = with_stdin(&["decode", "--json", "--wqe"], line.repeat(3).as_bytes());
    assert_eq!(several.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&several.stdout).contains("3 captured entries"), "{several:?}");
}

#[test]
fn an_entry_with_a_wide_request_id_leads_to_the_option() {
    // Bits 16 to 63 of the id, before the remote address.
    let wide = WRITE.replacen("000000000000 000000000000", "000000000000 010000000000", 1);
    let output = run(&["decode", "--wqe", &wide]);
    assert_eq!(status(&output), 3);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--request-id-bits 64"), "{output:?}");
    assert_eq!(status(&run(&["decode", "--request-id-bits", "64", "--wqe", &wide])), 0);
}

#[test]
fn an_entry_is_read_as_bytes_or_hex_from_a_file_or_stdin() {
    let machine = Machine::new("decode");
    machine.file("entry.hex", WRITE);
    std::fs::write(machine.path().join("entry.bin"), bytes(WRITE)).unwrap();
    let expected = document(&run(&["decode", "--json", "--wqe", WRITE]));
    for name in ["entry.hex", "entry.bin"] {
        let file = machine.path().join(name);
        let output = run(&["decode", "--json", "--wqe", "--file", file.to_str().unwrap()]);
        assert_eq!(document(&output), expected, "{name}");
    }
    for (args, input) in [
        (["decode", "--json", "--wqe"].as_slice(), bytes(WRITE)),
        (&["decode", "--json", "--wqe", "-"], WRITE.as_bytes().to_vec()),
        (&["decode", "--json", "--binary", "--file", "-", "--wqe"], bytes(WRITE)),
    ] {
        assert_eq!(document(&with_stdin(args, &input)), expected, "{args:?}");
    }
}

#[test]
fn a_wide_entry_shows_its_inline_bytes() {
    // SEND, inline, 40 bytes of 0xab in a 128-byte entry.
    let entry = format!(
        "0100 a0 1c 0200 2800 00000000 0000 00 00 00000000 000000000000 000000000000 {}{}",
        "ab".repeat(40),
        "00".repeat(56)
    );
    let output = run(&["decode", "--json", "--wqe", &entry]);
    assert_eq!(status(&output), 0);
    assert_eq!(field(&document(&output), "inline_data"), "ab".repeat(40));
}

#[test]
fn an_unknown_operation_breaks_a_rule_and_its_bytes_are_shown() {
    let output = run(&["decode", "--json", "--wqe", &WRITE.replacen("82", "8f", 1)]);
    let document = document(&output);
    assert_eq!(status(&output), 3, "{document:#}");
    assert_eq!(field(&document, "op_type"), "15 (unknown)");
    assert!(field(&document, "data").starts_with("40000000bc0a0000"));
}

#[test]
fn every_rule_that_an_entry_breaks_is_named() {
    // Without meta_desc and comp_req, and with a reserved byte set.
    let entry = WRITE.replacen("82 1d", "02 0d", 1).replacen("0300 00 00", "0300 00 01", 1);
    let document = document(&run(&["decode", "--json", "--wqe", &entry]));
    let broken: Vec<&str> =
        document["decode"]["broken"].as_array().unwrap().iter().map(|rule| rule.as_str().unwrap()).collect();
    assert_eq!(broken.len(), 3, "{broken:?}");
    for (name, rule) in ["meta_desc", "comp_req", "reserved"].iter().zip(&broken) {
        assert!(rule.starts_with(name), "{name}: {rule}");
    }
}

#[test]
fn a_receive_descriptor_is_an_entry_of_16_bytes() {
    let output = run(&["decode", "--json", "--wqe", "00100000 00000000 0500 0020 550000c0"]);
    let document = document(&output);
    assert_eq!((status(&output), &document["decode"]["kind"]), (0, &"rx".into()));
    for (name, value) in
        [("buf_addr", "0x1000"), ("req_id", "5"), ("length", "8192"), ("lkey", "0x55"), ("first", "1")]
    {
        assert_eq!(field(&document, name), value, "{name}");
    }
    assert_eq!(status(&run(&["decode", "--wqe", "00100000 00000000 0500 0020 550000c1"])), 3);
}

#[test]
fn a_32_byte_completion_has_the_length_of_a_write_in_two_halves() {
    // A receive of an RDMA write with immediate: 0x20010 bytes.
    let entry = format!("0000 00 ad 0100 1000 0300 0900 efbeadde 0200 {}", "00".repeat(14));
    let output = run(&["decode", "--json", "--cqe", &entry]);
    let document = document(&output);
    assert_eq!(status(&output), 0, "{document:#}");
    assert_eq!((field(&document, "length"), field(&document, "imm")), ("131088", "0xdeadbeef"));
}

#[test]
fn input_that_is_no_entry_is_a_usage_error() {
    for args in [
        &["--wqe", "00"][..],
        &["--wqe", "no hex"],
        &[],
        &["--wqe", WRITE, "--file", "/dev/null"],
        // Longer than any dump of an entry.
        &["--wqe", "--file", "/dev/zero"],
        // A truncated completion.
        &["--cqe", "0700 07 23 6500"],
    ] {
        assert_eq!(status(&run(&[&["decode"], args].concat())), 2, "{args:?}");
    }
}
