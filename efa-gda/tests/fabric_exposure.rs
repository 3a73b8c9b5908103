//! The rules for exposed queues, each broken by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use efa_gda::exposure::{Exposure, RawCompletionQueue, RawWorkQueue};
use efa_gda::wire::{EntrySize, RequestIdWidth};
use efa_gda::{Error, ErrorKind};
use efa_gda_test_support::assert_error;

/// An address that is never dereferenced.
fn at<T>(address: usize) -> *mut T {
    std::ptr::without_provenance_mut(address)
}

fn send() -> RawWorkQueue {
    RawWorkQueue {
        buffer: at(0x10000),
        entry_size: 64,
        num_entries: 256,
        doorbell: at(0x20004),
        max_batch: 17,
        caps: 0,
    }
}

fn receive() -> RawWorkQueue {
    RawWorkQueue { entry_size: 16, max_batch: 256, ..send() }
}

fn completion() -> RawCompletionQueue {
    RawCompletionQueue { buffer: at(0x30000), entry_size: 32, num_entries: 512, doorbell: at(0) }
}

fn send_error(raw: RawWorkQueue) -> Error {
    Exposure::new(raw, receive(), completion()).unwrap_err()
}

fn completion_error(raw: RawCompletionQueue) -> Error {
    Exposure::new(send(), receive(), raw).unwrap_err()
}

#[test]
fn valid_queues_are_accepted_unchanged() {
    let exposure = Exposure::new(send(), receive(), completion()).unwrap();
    assert_eq!(
        (exposure.sq.entry_size, exposure.sq.num_entries, exposure.sq.max_batch),
        (EntrySize::B64, 256, 17)
    );
    assert_eq!((exposure.rq.num_entries, exposure.rq.max_batch), (256, 256));
    assert_eq!((exposure.cq.entry_size, exposure.cq.num_entries, exposure.cq.doorbell), (32, 512, None));
}

#[test]
fn send_entries_of_128_bytes_are_accepted() {
    let exposure =
        Exposure::new(RawWorkQueue { entry_size: 128, ..send() }, receive(), completion()).unwrap();
    assert_eq!(exposure.sq.bytes(), 256 * 128);
}

#[test]
fn a_batch_larger_than_the_ring_is_accepted() {
    assert!(Exposure::new(RawWorkQueue { max_batch: 65535, ..send() }, receive(), completion()).is_ok());
}

#[test]
fn the_capability_bit_widens_request_ids() {
    let exposure = Exposure::new(RawWorkQueue { caps: 1, ..send() }, receive(), completion()).unwrap();
    assert_eq!(exposure.sq.request_ids, RequestIdWidth::Bits64);
}

#[test]
fn depths_of_zero_and_three_are_refused() {
    let none = send_error(RawWorkQueue { num_entries: 0, ..send() });
    assert_error!(none, ErrorKind::Exposure, "the send queue has 0 entries");
    let three = send_error(RawWorkQueue { num_entries: 3, ..send() });
    assert_error!(three, ErrorKind::Exposure, "the send queue has 3 entries; a power of two was expected");
}

#[test]
fn a_work_queue_deeper_than_half_the_doorbell_range_is_refused() {
    let deep = RawWorkQueue { num_entries: 65536, ..send() };
    assert_error!(send_error(deep), ErrorKind::Exposure, "the send queue has 65536 entries; at most 32768");
    assert!(Exposure::new(RawWorkQueue { num_entries: 32768, ..send() }, receive(), completion()).is_ok());
}

#[test]
fn a_completion_queue_may_be_deeper_than_a_work_queue() {
    let deep = RawCompletionQueue { num_entries: 1 << 17, ..completion() };
    assert!(Exposure::new(send(), receive(), deep).is_ok());
}

#[test]
fn unknown_entry_sizes_are_refused() {
    let wrong = send_error(RawWorkQueue { entry_size: 96, ..send() });
    assert_error!(wrong, ErrorKind::Unsupported, "entries of the send queue have 96 bytes");
    let wrong =
        Exposure::new(send(), RawWorkQueue { entry_size: 64, ..receive() }, completion()).unwrap_err();
    assert_error!(wrong, ErrorKind::Unsupported, "entries of the receive queue have 64 bytes");
    for entry_size in [8, 24, 64] {
        let wrong = completion_error(RawCompletionQueue { entry_size, ..completion() });
        assert_error!(wrong, ErrorKind::Unsupported, "entries of the completion queue");
    }
}

#[test]
fn null_buffers_and_doorbells_are_refused() {
    let buffer = send_error(RawWorkQueue { buffer: at(0), ..send() });
    assert_error!(buffer, ErrorKind::Exposure, "the send queue's buffer is null");
    let doorbell = send_error(RawWorkQueue { doorbell: at(0), ..send() });
    assert_error!(doorbell, ErrorKind::Exposure, "the send queue's doorbell is null");
    let null = RawCompletionQueue { buffer: at(0), ..completion() };
    assert_error!(completion_error(null), ErrorKind::Exposure, "the completion queue's buffer is null");
}

#[test]
fn unaligned_addresses_are_refused() {
    let buffer = send_error(RawWorkQueue { buffer: at(0x10008), ..send() });
    assert_error!(buffer, ErrorKind::Exposure, "the send queue's buffer is at 0x10008");
    let doorbell = send_error(RawWorkQueue { doorbell: at(0x20002), ..send() });
    assert_error!(doorbell, ErrorKind::Exposure, "the send queue's doorbell is at 0x20002");
    let completions = completion_error(RawCompletionQueue { doorbell: at(0x20001), ..completion() });
    assert_error!(completions, ErrorKind::Exposure, "the completion queue's doorbell is at 0x20001");
}

#[test]
fn a_batch_of_zero_is_refused() {
    let wrong = send_error(RawWorkQueue { max_batch: 0, ..send() });
    assert_error!(wrong, ErrorKind::Exposure, "the send queue's max_batch is 0");
}

#[test]
fn a_receive_queue_of_invalid_depth_is_refused() {
    let wrong =
        Exposure::new(send(), RawWorkQueue { num_entries: 5, ..receive() }, completion()).unwrap_err();
    assert_error!(wrong, ErrorKind::Exposure, "the receive queue has 5 entries; a power of two");
}

#[test]
fn an_error_states_the_value_and_the_expected_values() {
    let text = send_error(RawWorkQueue { entry_size: 96, ..send() }).to_string();
    assert!(text.contains("96") && text.contains("64 or 128"), "{text}");
}
