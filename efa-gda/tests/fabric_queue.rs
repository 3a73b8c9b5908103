//! The mapped queue on a hand-written provider: its rings are ordinary memory without an adapter.
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod fabric_fake;

use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use efa_gda::fabric::{Access, Bindings, Buffer, Domain, Region};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda::wire::{DecodedRequest, Operation, Peer, RequestIdWidth};
use efa_gda::{Error, ErrorKind};
use efa_gda_test_support::assert_error;
use fabric_fake::{DEPTH, Fake};

fn region(domain: &Domain, access: Access) -> Region {
    domain.register(Buffer::zeroed(4096).unwrap(), access).unwrap()
}

fn queue(fake: &Fake, domain: &Domain) -> MappedQueue {
    let addresses = domain.address_vector(16).unwrap();
    let completions = domain.completion_queue(64).unwrap();
    let endpoint = domain.endpoint(&fake.info(), Bindings::shared(&addresses, &completions)).unwrap();
    MappedQueue::new(endpoint, &domain.gda_ops().unwrap()).unwrap()
}

fn peer(queue: &MappedQueue) -> Peer {
    queue.insert_peer(&queue.address().unwrap()).unwrap()
}

/// Runs `body` with a queue of a new provider and a region of 4096 bytes.
fn with_queue(body: impl FnOnce(&Fake, MappedQueue, Region)) {
    let fake = Fake::new(206);
    let domain = fake.domain();
    body(&fake, queue(&fake, &domain), region(&domain, Access::ALL));
}

/// Posts a put that never completes, and returns the error of its timeout.
fn unanswered(queue: &mut MappedQueue, region: &Region) -> Error {
    let put = WorkRequest::write(peer(queue), region, region.remote()).bytes(64);
    queue.execute(&put.timeout(Duration::from_millis(1)).lanes(1)).unwrap_err()
}

fn closes(fake: &Fake) -> Vec<String> {
    fake.log().into_iter().filter(|call| call.starts_with("close")).collect()
}

#[test]
fn the_mapped_struct_describes_the_endpoints_queues() {
    let fake = Fake::new(206);
    let queue = queue(&fake, &fake.domain());
    // SAFETY: the queue is alive, and no kernel runs.
    let shared = unsafe { queue.as_ptr().as_ref() };
    assert_eq!((shared.sq.entry_size, shared.sq.num_entries, shared.sq.max_batch), (64, DEPTH, DEPTH));
    assert_eq!((shared.rq.entry_size, shared.rq.num_entries), (16, DEPTH));
    assert_eq!((shared.cq.entry_size, shared.cq.num_entries), (32, 2 * DEPTH));
    assert_eq!((shared.qpn, shared.max_inline, shared.sq.flags), (101, 32, 0));
    assert!(!shared.abort.is_null());
}

#[test]
fn two_queues_cannot_poll_one_completion_queue() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let ops = domain.gda_ops().unwrap();
    let addresses = domain.address_vector(16).unwrap();
    let completions = domain.completion_queue(64).unwrap();
    let open = || domain.endpoint(&fake.info(), Bindings::shared(&addresses, &completions)).unwrap();
    let (first, second) = (open(), open());
    let error = MappedQueue::new(first, &ops).unwrap_err();
    assert_error!(error, ErrorKind::Busy, "endpoints complete on the completion queue", "2");
    // The failed call closed the first endpoint, whose completions may be in the queue.
    let error = MappedQueue::new(second, &ops).unwrap_err();
    assert_error!(error, ErrorKind::Busy, "an endpoint that was closed completed");
}

#[test]
fn a_polled_completion_queue_takes_no_other_endpoint() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let mapped = queue(&fake, &domain);
    let (addresses, completions) = {
        let endpoint = mapped.endpoint().unwrap();
        (endpoint.address_vector(), endpoint.send_completions())
    };
    let error = domain.endpoint(&fake.info(), Bindings::shared(addresses, completions)).unwrap_err();
    assert_error!(error, ErrorKind::Busy, "a mapped queue polls the completion queue");
}

#[test]
fn a_completion_timeout_poisons_the_queue() {
    with_queue(|fake, mut queue, region| {
        let error = unanswered(&mut queue, &region);
        assert_error!(error, ErrorKind::Device(DeviceError::TimeoutCompletion), "requests in flight: 1");
        assert!(queue.poison().is_some());
        let error = unanswered(&mut queue, &region);
        assert_error!(error, ErrorKind::Device(DeviceError::Poisoned));
        assert_eq!(fake.doorbell(), 1, "a poisoned queue must not ring for further requests");
    });
}

#[test]
fn a_poisoned_queue_retains_its_region_until_its_endpoint_is_destroyed() {
    with_queue(|fake, mut queue, region| {
        unanswered(&mut queue, &region);
        let error = region.close().unwrap_err();
        assert_error!(error, ErrorKind::Busy, "memory region");
        assert_eq!(closes(fake), [""; 0]);
        queue.destroy().unwrap();
        assert_eq!(closes(fake)[..2], ["close endpoint", "close mr"]);
    });
}

#[test]
fn close_returns_a_queue_with_requests_in_flight_to_the_caller() {
    with_queue(|fake, mut queue, region| {
        unanswered(&mut queue, &region);
        let refused = queue.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "1 request(s) of it were rung");
        let queue = refused.queue.unwrap();
        assert_eq!(closes(fake), [""; 0]);
        drop(queue);
        assert_eq!(closes(fake)[0], "close endpoint");
    });
}

#[test]
fn a_retained_region_stays_registered_until_the_queue_is_closed() {
    with_queue(|fake, mut queue, region| {
        assert_eq!(queue.retain(&region).unwrap().get(), 0x55);
        drop(region);
        assert_eq!(closes(fake), [""; 0]);
        queue.close().unwrap();
        assert_eq!(closes(fake)[..2], ["close endpoint", "close mr"]);
    });
}

#[test]
fn a_raised_abort_flag_ends_a_wait() {
    with_queue(|_, mut queue, region| {
        queue.abort_flag().raise();
        let put = WorkRequest::write(peer(&queue), &region, region.remote()).bytes(64);
        let error = queue.execute(&put.timeout(Duration::from_secs(3600)).lanes(1)).unwrap_err();
        assert_error!(error, ErrorKind::Device(DeviceError::Aborted));
        assert!(
            region.close().is_err(),
            "the region of an aborted request may still be in use and must stay registered"
        );
    });
}

#[test]
fn a_put_outside_a_region_is_not_posted() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let mut queue = queue(&fake, &domain);
    let (local, peer) = (region(&domain, Access::ALL), peer(&queue));
    let mut short = local.remote();
    short.length = 100;
    let put = || WorkRequest::write(peer, &local, local.remote());
    for (side, put) in [
        ("local", put().bytes(4097)),
        ("local", put().bytes(64).count(65).stride(64)),
        ("local", put().bytes(1).offsets(4096, 0)),
        ("local", put().bytes(1).count(u64::MAX).stride(u64::MAX)),
        ("remote", WorkRequest::write(peer, &local, short).bytes(101)),
        ("remote", WorkRequest::write(peer, &local, short).bytes(50).count(2).stride(51)),
    ] {
        let error = queue.execute(&put).unwrap_err();
        assert_error!(error, ErrorKind::Argument, &format!("the {side} memory cannot be used"));
    }
    assert_eq!(fake.doorbell(), 0);
}

#[test]
fn a_put_from_a_region_without_the_required_access_is_refused() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let mut queue = queue(&fake, &domain);
    let region = region(&domain, Access::REMOTE_WRITE);
    let error = queue.execute(&WorkRequest::write(peer(&queue), &region, region.remote())).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "was registered for access");
}

#[test]
fn the_posted_entry_matches_the_work_request() {
    with_queue(|_, mut queue, region| {
        let put = WorkRequest::write(peer(&queue), &region, region.remote()).bytes(100).offsets(8, 16);
        queue.execute(&put.timeout(Duration::from_millis(1)).lanes(1)).unwrap_err();
        // SAFETY: the first slot of the fake's ring has 64 bytes, and no thread writes it now.
        let entry = unsafe { std::slice::from_raw_parts(queue.exposure().sq.buffer.as_ptr(), 64) };
        let decoded = DecodedRequest::decode(entry, RequestIdWidth::Bits16).unwrap();
        assert!(decoded.broken.is_empty(), "{:?}", decoded.broken);
        let request = decoded.request.unwrap();
        assert_eq!(request.peer, peer(&queue));
        let Operation::Write { remote, local } = request.operation else { panic!("{request:?}") };
        assert_eq!((local.address, local.length, local.key.get()), (region.address() + 8, 100, 0x55));
        assert_eq!((remote.address, remote.key), (region.address() + 16, region.remote_key()));
    });
}

#[test]
fn inline_bytes_that_the_cpu_cannot_read_are_an_error_and_nothing_is_posted() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let mut queue = queue(&fake, &domain);
    // SAFETY: a new mapping at an address that the kernel chooses. Like a GPU's memory, it is unreadable.
    let start = unsafe {
        libc::mmap(null_mut(), 4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    let start = NonNull::new(start.cast()).unwrap();
    // SAFETY: mapped until the process ends.
    let region = unsafe { domain.register_foreign(start, 4096, Access::ALL) }.unwrap();
    let put = WorkRequest::inline_send(peer(&queue), &region).bytes(32).stride(64).count(3);
    assert_error!(queue.execute(&put).unwrap_err(), ErrorKind::Argument, "this CPU cannot read");
    assert_eq!(queue.in_flight(), 0);
}
