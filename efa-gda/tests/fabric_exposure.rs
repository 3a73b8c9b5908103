//! The rules for exposed queues, each broken by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use efa_gda::exposure::{Exposure, ExposureError, Queue, RawCompletionQueue, RawWorkQueue};
use efa_gda::wire::{EntrySize, RequestIdWidth};

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

fn send_error(raw: RawWorkQueue) -> ExposureError {
    Exposure::new(raw, receive(), completion()).unwrap_err()
}

fn completion_error(raw: RawCompletionQueue) -> ExposureError {
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
    let queue = Queue::Send;
    assert_eq!(send_error(RawWorkQueue { num_entries: 0, ..send() }), ExposureError::NoEntries { queue });
    assert_eq!(
        send_error(RawWorkQueue { num_entries: 3, ..send() }),
        ExposureError::DepthNotPowerOfTwo { queue, num_entries: 3 }
    );
}

#[test]
fn a_work_queue_deeper_than_half_the_doorbell_range_is_refused() {
    let deep = RawWorkQueue { num_entries: 65536, ..send() };
    assert_eq!(send_error(deep), ExposureError::TooDeep { queue: Queue::Send, num_entries: 65536 });
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
    assert!(matches!(wrong, ExposureError::EntrySize { queue: Queue::Send, entry_size: 96, .. }));
    let wrong =
        Exposure::new(send(), RawWorkQueue { entry_size: 64, ..receive() }, completion()).unwrap_err();
    assert!(matches!(wrong, ExposureError::EntrySize { queue: Queue::Receive, entry_size: 64, .. }));
    for entry_size in [8, 24, 64] {
        let wrong = completion_error(RawCompletionQueue { entry_size, ..completion() });
        assert!(matches!(wrong, ExposureError::EntrySize { queue: Queue::Completion, .. }));
    }
}

#[test]
fn null_buffers_and_doorbells_are_refused() {
    let queue = Queue::Send;
    assert_eq!(send_error(RawWorkQueue { buffer: at(0), ..send() }), ExposureError::NullBuffer { queue });
    assert_eq!(send_error(RawWorkQueue { doorbell: at(0), ..send() }), ExposureError::NullDoorbell { queue });
    let queue = Queue::Completion;
    let null = RawCompletionQueue { buffer: at(0), ..completion() };
    assert_eq!(completion_error(null), ExposureError::NullBuffer { queue });
}

#[test]
fn unaligned_addresses_are_refused() {
    let queue = Queue::Send;
    assert_eq!(
        send_error(RawWorkQueue { buffer: at(0x10008), ..send() }),
        ExposureError::UnalignedBuffer { queue, address: 0x10008 }
    );
    assert_eq!(
        send_error(RawWorkQueue { doorbell: at(0x20002), ..send() }),
        ExposureError::UnalignedDoorbell { queue, address: 0x20002 }
    );
    let queue = Queue::Completion;
    assert_eq!(
        completion_error(RawCompletionQueue { doorbell: at(0x20001), ..completion() }),
        ExposureError::UnalignedDoorbell { queue, address: 0x20001 }
    );
}

#[test]
fn a_batch_of_zero_is_refused() {
    let wrong = send_error(RawWorkQueue { max_batch: 0, ..send() });
    assert_eq!(wrong, ExposureError::NoBatch { queue: Queue::Send });
}

#[test]
fn a_receive_queue_of_invalid_depth_is_refused() {
    let wrong =
        Exposure::new(send(), RawWorkQueue { num_entries: 5, ..receive() }, completion()).unwrap_err();
    assert_eq!(wrong, ExposureError::DepthNotPowerOfTwo { queue: Queue::Receive, num_entries: 5 });
}

#[test]
fn an_error_states_the_value_and_the_expected_values() {
    let text = send_error(RawWorkQueue { entry_size: 96, ..send() }).to_string();
    assert!(text.contains("96") && text.contains("64 or 128"), "{text}");
}
