//! Snapshots of a queue, as values and as text, and the end of waits for an adapter that died.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::executor::host;
use efa_gda::fabric::Query;
use efa_gda::queue::{Contents, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda::wire::{
    CompletionStatus, EntrySize, LocalKey, Operation, ProcessingHints, RemoteKey, RemoteMemory, Request,
    RequestId, RequestIdWidth, Segment,
};
use efa_gda::{ErrorKind, Progress};
use efa_gda_sys::device::efa_gda_queue;
use efa_gda_test_support::assert_error;
use support::side::Side;
use support::{with_pair, with_soft_adapter};

#[test]
fn a_snapshot_shows_the_completions_of_the_last_requests() {
    with_pair(&[], |mut pair, _| {
        let [source, target] = pair.regions(64);
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote()).count(20)).unwrap();
        let snapshot = pair.first.snapshot();
        assert_eq!((snapshot.reserved(), snapshot.doorbell_index(), snapshot.completed()), (20, 20, 20));
        let (Contents::Entries(pending), Contents::Entries(completions)) =
            (&snapshot.pending, &snapshot.completions)
        else {
            panic!("the software adapter's rings can be read: {snapshot:?}");
        };
        assert!(pending.is_empty() && !snapshot.is_in_use() && snapshot.poison().is_none());
        let ids: Vec<u64> = completions.iter().map(|one| one.completion.as_ref().unwrap().id.get()).collect();
        assert_eq!(ids, [12, 13, 14, 15, 16, 17, 18, 19]);
        assert!(completions.iter().all(|one| one.read));
    });
}

#[test]
fn a_snapshot_decodes_a_request_without_a_doorbell() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let (first, _second, peer) = side.pair();
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
        // SAFETY: these are the stores of a kernel that reserves two slots, writes the first, and hangs. Nothing else
        // uses the queue.
        unsafe {
            host::write_raw(queue, 0, &entry);
            (*queue).reserve.word = (1 << 32) | 2;
        }
        let snapshot = first.snapshot();
        assert!(snapshot.is_in_use());
        let Contents::Entries(pending) = &snapshot.pending else { panic!("{snapshot:?}") };
        assert_eq!((pending.len(), pending[0].entry.unwrap().request), (2, Some(request)));
        assert!(pending[1].entry.is_none(), "slot 1 was reserved but not written");
        let words = snapshot.to_string();
        assert!(words.contains("slot 0 (request 0): RDMA WRITE of length 48 to queue pair"), "{words}");
        assert!(words.contains("at 0xabcd0000, key 0x4d"), "{words}");
        assert!(words.contains("slot 1 (request 1): not written yet"), "{words}");
    });
}

#[test]
fn a_snapshot_reports_damaged_ring_geometry_and_does_not_follow_it() {
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
        for (field, damage) in damages {
            let queue = side.queue();
            // SAFETY: nothing else uses the queue's struct. The damage is that of a stray store of a kernel.
            unsafe {
                (*queue.as_ptr().as_ptr()).reserve.word = 3;
                damage(&mut *queue.as_ptr().as_ptr());
            }
            let snapshot = queue.snapshot();
            let (Contents::Unreadable(sends), Contents::Unreadable(completions)) =
                (&snapshot.pending, &snapshot.completions)
            else {
                panic!("{field}: {snapshot}");
            };
            assert!(sends.contains("damaged") && completions.contains("damaged"), "{field}: {snapshot}");
        }
    });
}

#[test]
fn a_snapshot_shows_the_last_doorbell_however_it_is_rung() {
    with_soft_adapter(&[], |_| {
        let mut queue = Side::open(&Query::new()).queue();
        let direct = queue.snapshot().to_string();
        assert!(direct.contains("0 rung (doorbell 0), 0 completed"), "{direct}");
        queue.set_doorbell(DoorbellMode::Record, &DoorbellProxy::without_thread()).unwrap();
        let record = queue.snapshot().to_string();
        assert!(record.contains("0 rung (doorbell 0), 0 completed"), "{record}");
    });
}

#[test]
fn a_snapshot_shows_the_first_error() {
    with_pair(&[("SOFTEFA_INJECT", "3:8")], |mut pair, _| {
        let [source, target] = pair.regions(64);
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote()).count(5)).unwrap_err();
        let snapshot = pair.first.snapshot();
        assert_eq!(snapshot.first_error(), Some((RequestId::new(2), CompletionStatus::RemoteAbort)));
        assert!(snapshot.to_string().contains("errors: 1, the first of request id 2"), "{snapshot}");
    });
}

#[test]
fn a_wait_for_an_adapter_that_died_times_out_and_the_queue_can_be_destroyed() {
    with_pair(&[], |mut pair, adapter| {
        let [source, target] = pair.regions(64);
        pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote())).unwrap();
        adapter.stop();
        let put = WorkRequest::write(pair.peer, &source, target.remote())
            .count(3)
            .timeout(Duration::from_millis(50));
        let error = pair.first.execute(&put).unwrap_err();
        assert_error!(error, ErrorKind::Device(_));
        let Progress { in_flight, .. } = error.progress().unwrap();
        let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
        assert_eq!((error, in_flight), (DeviceError::TimeoutCompletion, 3));
        drop(put);
        let snapshot = pair.first.snapshot();
        assert_eq!((snapshot.in_flight(), snapshot.poison()), (3, Some(DeviceError::TimeoutCompletion)));
        // Deregistration and `close` are refused while requests are in flight; `destroy` succeeds.
        assert_error!(source.close().unwrap_err(), ErrorKind::Busy);
        let refused = pair.first.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "3 request(s) of it were rung");
        assert!(refused.error.hint().starts_with("the queue is poisoned: destroy it"), "{}", refused.error);
        let queue = refused.queue.unwrap();
        queue.destroy().unwrap();
    });
}
