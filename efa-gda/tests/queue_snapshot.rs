//! Where a queue stands, in values and in words; and what becomes of those who wait for an adapter
//! that died.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::executor::host;
use efa_gda::fabric::{Error, Query};
use efa_gda::queue::{CloseError, Contents, WorkError, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda::wire::{
    CompletionStatus, EntrySize, LocalKey, Operation, ProcessingHints, RemoteKey, RemoteMemory, Request,
    RequestId, RequestIdWidth, Segment,
};
use efa_gda_sys::device::efa_gda_queue;
use support::side::{Side, introduce, pattern};
use support::{assert_no_violations, with_soft_adapter};

#[test]
fn a_fresh_queue_stands_at_zero() {
    with_soft_adapter(&[], |_| {
        let queue = Side::open(&Query::new()).queue();
        let seen = queue.snapshot();
        assert_eq!(
            (seen.reserved(), seen.doorbell_index(), seen.completed(), seen.in_flight()),
            (0, 0, 0, 0)
        );
        assert!(!seen.is_locked() && seen.poison().is_none() && seen.first_error().is_none());
        let (Contents::Entries(pending), Contents::Entries(completions)) = (&seen.pending, &seen.completions)
        else {
            panic!("the software adapter's rings can be read: {seen:?}");
        };
        assert!(pending.is_empty() && completions.is_empty());
    });
}

#[test]
fn the_last_completions_are_those_of_the_last_requests() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut first, second) = (side.queue(), side.queue());
        let peer = introduce(&first, &second);
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        first.execute(&WorkRequest::write(peer, &source, target.remote()).count(20)).unwrap();
        let seen = first.snapshot();
        assert_eq!((seen.reserved(), seen.doorbell_index(), seen.completed()), (20, 20, 20));
        let Contents::Entries(completions) = &seen.completions else { panic!("{seen:?}") };
        let ids: Vec<u64> = completions.iter().map(|one| one.completion.as_ref().unwrap().id.get()).collect();
        assert_eq!(ids, [12, 13, 14, 15, 16, 17, 18, 19]);
        assert!(completions.iter().all(|one| one.read));
        assert_no_violations(adapter);
    });
}

#[test]
fn a_request_that_nobody_rang_for_is_decoded() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (first, second) = (side.queue(), side.queue());
        let peer = introduce(&first, &second);
        let request = Request {
            id: RequestId::new(0),
            peer,
            immediate: None,
            hints: ProcessingHints::NONE,
            operation: Operation::Write {
                remote: RemoteMemory { address: 0xabcd_0000, key: RemoteKey::new(77) },
                local: Segment { address: 0x1000, length: 48, key: LocalKey::new(5).unwrap() },
            },
        };
        let entry = request.encode(EntrySize::B64, false, RequestIdWidth::Bits16).unwrap();
        let queue = first.as_ptr().as_ptr();
        // SAFETY: what a kernel does that reserves two slots, writes the first, and hangs; nobody else
        // uses the queue.
        unsafe {
            host::write_raw(queue, 0, &entry);
            (*queue).reserve.word = (1 << 32) | 2;
        }
        let seen = first.snapshot();
        assert!(seen.is_locked());
        let Contents::Entries(pending) = &seen.pending else { panic!("{seen:?}") };
        assert_eq!((pending.len(), pending[0].entry.unwrap().request), (2, Some(request)));
        assert!(pending[1].entry.is_none(), "reserved, not written");
        let words = seen.to_string();
        assert!(words.contains("slot 0 (request 0): RDMA WRITE of 48 bytes to queue pair"), "{words}");
        assert!(words.contains("at 0xabcd0000, key 0x4d"), "{words}");
        assert!(words.contains("slot 1 (request 1): not written yet"), "{words}");
    });
}

#[test]
fn a_struct_whose_geometry_was_written_over_is_told_and_not_followed() {
    with_soft_adapter(&[], |_| {
        type Damage = fn(&mut efa_gda_queue);
        let damages: [(&str, Damage); 5] = [
            ("entries", |queue| queue.sq.num_entries = 1 << 31),
            ("size of an entry", |queue| queue.sq.entry_size = 1 << 20),
            ("request ids", |queue| queue.sq.flags = !queue.sq.flags),
            ("completions", |queue| queue.cq.num_entries = 1 << 31),
            ("size of a completion", |queue| queue.cq.entry_size = 0),
        ];
        let side = Side::open(&Query::new());
        for (what, damage) in damages {
            let queue = side.queue();
            // SAFETY: the queue's own struct, which nobody uses, as a stray store of a kernel leaves it.
            unsafe {
                (*queue.as_ptr().as_ptr()).reserve.word = 3;
                damage(&mut *queue.as_ptr().as_ptr());
            }
            let seen = queue.snapshot();
            let (Contents::Unreadable(sends), Contents::Unreadable(completions)) =
                (&seen.pending, &seen.completions)
            else {
                panic!("{what}: {seen}");
            };
            assert!(sends.contains("damaged") && completions.contains("damaged"), "{what}: {seen}");
        }
    });
}

#[test]
fn an_error_is_in_the_snapshot() {
    with_soft_adapter(&[("SOFTEFA_INJECT", "3:8")], |_| {
        let side = Side::open(&Query::new());
        let (mut first, second) = (side.queue(), side.queue());
        let peer = introduce(&first, &second);
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        first.execute(&WorkRequest::write(peer, &source, target.remote()).count(5)).unwrap_err();
        let seen = first.snapshot();
        assert_eq!(seen.first_error(), Some((RequestId::new(2), CompletionStatus::RemoteAbort)));
        assert!(seen.to_string().contains("errors: 1, the first of request id 2"), "{seen}");
    });
}

#[test]
fn an_adapter_that_died_ends_waits_within_their_bound_and_is_closed_in_order() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut first, second) = (side.queue(), side.queue());
        let peer = introduce(&first, &second);
        let (source, target) = (side.region(&pattern(64)), side.region(&[0; 64]));
        first.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
        adapter.stop();
        let put =
            WorkRequest::write(peer, &source, target.remote()).count(3).timeout(Duration::from_millis(50));
        let error = first.execute(&put).unwrap_err();
        let WorkError::Device { error, in_flight, .. } = error else { panic!("{error:?}") };
        assert_eq!((error, in_flight), (DeviceError::TimeoutCompletion, 3));
        drop(put);
        let seen = first.snapshot();
        assert_eq!((seen.in_flight(), seen.poison()), (3, Some(DeviceError::TimeoutCompletion)));
        // Early deregistration and closing are refused, and the way out is open.
        assert!(matches!(source.close().unwrap_err(), Error::Busy { .. }));
        let error = first.close().unwrap_err();
        assert!(
            error.to_string().ends_with("the queue is poisoned; destroy it, which flushes them"),
            "{error}"
        );
        let CloseError::Busy { queue, in_flight: 3 } = error else { panic!("not busy") };
        queue.destroy().unwrap();
    });
}
