//! The whole path on the software adapter, through this machine's libfabric: query, objects, exposure,
//! queue, device code on the CPU, completions, and a comparison of the bytes.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::executor::host;
use efa_gda::fabric::{Access, Bindings, Buffer, EFA_DIRECT, Fabric, Library, Query, Region};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::status::DeviceError;
use efa_gda::wire::{CompletionStatus, EntrySize, Peer};
use efa_gda::{ErrorKind, Progress, Result};
use efa_gda_sys::device::{EFA_GDA_PUT_NO_WAIT, EFA_GDA_TIMEOUT_LOCK, efa_gda_put_args};
use efa_gda_test_support::assert_error;
use support::side::{
    Pair, Side, bytes_of, introduce, pattern, post_without_doorbell, two_adapters, with_wrong_key,
};
use support::{SoftAdapter, assert_no_violations, with_pair, with_pair_of, with_soft_adapter};

#[test]
fn the_query_finds_the_direct_fabric() {
    with_soft_adapter(&[], |_| {
        let info = Query::new().first(&Library::load().unwrap()).unwrap();
        assert_eq!((&*info.provider_name(), &*info.fabric_name()), ("efa", EFA_DIRECT));
        assert!(info.matches_name(&info.domain_name()));
    });
}

#[test]
fn a_query_for_an_unknown_adapter_name_reports_the_adapters_that_exist() {
    with_soft_adapter(&[], |_| {
        let error = Query::new().adapter("absent").find(&Library::load().unwrap()).unwrap_err();
        assert_error!(
            error,
            ErrorKind::NoAdapter,
            "no adapter has the name absent; adapters found: softefa0"
        );
    });
}

#[test]
fn one_put_of_a_mebibyte_and_a_byte_arrives_whole() {
    with_pair(&[], |mut pair, _| {
        let [source, target] = pair.regions((1 << 20) + 1);
        let report = pair.first.execute(&WorkRequest::write(pair.peer, &source, target.remote())).unwrap();
        assert_eq!((report.posted, report.completed), (1, 1));
        assert!(bytes_of(&target) == bytes_of(&source));
    });
}

#[test]
fn two_hundred_thousand_puts_arrive_across_every_wrap() {
    with_pair(&[], |mut pair, _| {
        const COUNT: u64 = 200_000;
        let blocks = pair.blocks(COUNT);
        let report = pair.first.execute(&blocks.put).unwrap();
        assert_eq!((report.posted, report.completed), (COUNT, COUNT));
        blocks.assert_arrived();
        drop(blocks);
        pair.first.close().unwrap();
    });
}

#[test]
fn a_query_for_wide_entries_yields_128_byte_entries() {
    with_pair_of(&Query::new().wide_entries(true), &[], |mut pair, _| {
        assert_eq!(pair.first.exposure().sq.entry_size, EntrySize::B128);
        let blocks = pair.blocks(1000);
        pair.first.execute(&blocks.put).unwrap();
        blocks.assert_arrived();
    });
}

#[test]
fn one_adapter_can_write_to_another() {
    with_soft_adapter(&[("SOFTEFA_ADAPTERS", "2")], |adapter| {
        let (here, there) = two_adapters();
        let (mut first, second) = (here.queue(), there.queue());
        let peer = introduce(&first, &second);
        let (source, target) = (here.region(&pattern(100_000)), there.region(&[0; 100_000]));
        first.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
        assert!(bytes_of(&target) == bytes_of(&source));
        assert_no_violations(adapter);
    });
}

#[test]
fn every_object_closes_without_an_error() {
    with_soft_adapter(&[], |_| {
        let library = Library::load().unwrap();
        let info = Query::new().first(&library).unwrap();
        let fabric = Fabric::open(&library, &info).unwrap();
        let domain = fabric.domain(&info).unwrap();
        let addresses = domain.address_vector(16).unwrap();
        let completions = domain.completion_queue(64).unwrap();
        let region = domain.register(Buffer::zeroed(4096).unwrap(), Access::ALL).unwrap();
        let endpoint = domain.endpoint(&info, Bindings::shared(&addresses, &completions)).unwrap();
        endpoint.close().unwrap();
        region.close().unwrap();
        completions.close().unwrap();
        addresses.close().unwrap();
        domain.close().unwrap();
        fabric.close().unwrap();
    });
}

#[test]
fn an_address_of_another_vector_is_refused_before_libfabric_sees_it() {
    with_pair(&[], |Pair { first, second, side, .. }, _| {
        let address = second.address().unwrap();
        let foreign = second.endpoint().unwrap().address_vector().insert(&address).unwrap();
        let error =
            side.domain.gda_ops().unwrap().query_addr(first.endpoint().unwrap(), foreign).unwrap_err();
        assert_error!(error, ErrorKind::Argument, "belongs to another address vector");
    });
}

/// Maps an endpoint whose requests complete on a queue of `entries` entries, and its receives there too unless
/// `separate`.
fn mapped_on(side: &Side, entries: usize, separate: bool) -> Result<MappedQueue> {
    let addresses = side.domain.address_vector(16).unwrap();
    let [completions, others] = [entries, 64].map(|entries| side.domain.completion_queue(entries).unwrap());
    let receive_completions = if separate { &others } else { &completions };
    let bindings = Bindings { receive_completions, ..Bindings::shared(&addresses, &completions) };
    let endpoint = side.domain.endpoint(&side.info, bindings).unwrap();
    MappedQueue::new(endpoint, &side.domain.gda_ops().unwrap())
}

#[test]
fn a_completion_queue_that_the_two_rings_can_overrun_is_refused() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let error = mapped_on(&side, 4096, false).unwrap_err();
        let text = "has 4096 entries, and up to 8192 may be written before one is read (4096 of the send queue, 4096 of";
        assert_error!(error, ErrorKind::Argument, text);
        mapped_on(&side, 4096, true).unwrap();
        mapped_on(&side, side.info.completions(), false).unwrap();
    });
}

#[test]
fn a_completion_queue_that_the_send_queue_can_overrun_is_refused() {
    with_soft_adapter(&[], |_| {
        let error = mapped_on(&Side::open(&Query::new()), 2048, true).unwrap_err();
        assert_error!(error, ErrorKind::Argument, "(4096 of the send queue, 0 of the receive queue)");
    });
}

#[test]
fn a_put_of_more_entries_than_can_be_counted_is_refused_and_posts_nothing() {
    with_pair(&[("SOFTEFA_MAX_RDMA_SIZE", "65536")], |mut pair, _| {
        let [source, target] = pair.regions(65537);
        let put = WorkRequest::write(pair.peer, &source, target.remote()).count(1 << 63);
        let error = pair.first.execute(&put).unwrap_err();
        assert_error!(error, ErrorKind::Argument, "of 2 entries each are more entries than can be counted");
        assert_eq!(pair.first.in_flight(), 0);
    });
}

/// Runs `body` with a queue that is its own peer, and a region of 96 bytes.
fn with_loopback(variables: &[(&str, &str)], body: impl FnOnce(MappedQueue, Peer, Region, &SoftAdapter)) {
    with_soft_adapter(variables, |adapter| {
        let side = Side::open(&Query::new());
        let queue = side.queue();
        let peer = introduce(&queue, &queue);
        body(queue, peer, side.region(&[7; 96]), adapter);
    });
}

/// Posts one write and does not wait for it, as a caller's kernel may.
fn post_without_waiting(queue: &mut MappedQueue, put: &WorkRequest) {
    let args = put.arguments(queue).unwrap();
    let args = efa_gda_put_args { flags: args.flags | EFA_GDA_PUT_NO_WAIT, ..args };
    // SAFETY: checked arguments of a queue that is borrowed exclusively; the region outlives the test.
    unsafe { host::put(&args, 1) }.unwrap().status.unwrap();
}

#[test]
fn close_returns_busy_until_the_queue_is_quiet() {
    with_loopback(&[], |mut queue, peer, region, adapter| {
        adapter.hold(true);
        post_without_waiting(&mut queue, &WorkRequest::write(peer, &region, region.remote()));
        let error = queue.close().unwrap_err();
        assert!(error.to_string().contains("1 request(s) of it were rung"), "{error}");
        let refused = error;
        assert_error!(refused.error, ErrorKind::Busy, "1 request(s) of it were rung");
        let mut queue = refused.queue.unwrap();
        adapter.hold(false);
        let report = queue.quiet(Duration::from_secs(30)).unwrap();
        assert_eq!((report.posted, report.completed, queue.in_flight()), (0, 1, 0));
        queue.close().unwrap();
        region.close().unwrap();
    });
}

#[test]
fn a_put_that_fails_reports_how_many_requests_were_not_posted() {
    with_loopback(&[("SOFTEFA_MAX_RDMA_SIZE", "64")], |mut queue, peer, region, _| {
        queue.execute(&WorkRequest::write(peer, &region, region.remote()).bytes(64)).unwrap();
        let wrong = with_wrong_key(region.remote());
        // Each request takes two entries.
        let error = queue.execute(&WorkRequest::write(peer, &region, wrong).count(100_000)).unwrap_err();
        let words = error.to_string();
        let ErrorKind::FailedRequest { request, .. } = error.kind() else { panic!("{error:?}") };
        let Progress { posted, unposted, count, .. } = error.progress().unwrap();
        assert!(words.starts_with("request id 1 completed with status 7"), "{words}");
        let next = format!(", transfers not posted: {unposted} of 100000); run gda-probe explain STATUS-7");
        assert!(words.contains(&next), "{words}");
        assert_eq!((request.get(), count), (1, 100_000));
        assert!(unposted > 0 && unposted == 100_000 - posted / 2, "{words}");
    });
}

#[test]
fn close_refuses_a_queue_with_entries_that_no_doorbell_covered() {
    with_pair(&[], |pair, _| {
        let blocks = pair.blocks(3);
        let args = blocks.put.arguments(&pair.first).unwrap();
        let queue = pair.first;
        // SAFETY: arguments of this queue, which no kernel uses.
        unsafe { post_without_doorbell(queue.as_ptr().as_ptr(), &args) };
        assert_eq!(queue.in_flight(), 0);
        let error = queue.close().unwrap_err();
        assert!(error.to_string().contains("never rung for (3)"), "{error}");
        let refused = error;
        assert_error!(refused.error, ErrorKind::Busy, "never rung for (3)");
        let mut queue = refused.queue.unwrap();
        let proxy = DoorbellProxy::start().unwrap();
        let error = queue.set_doorbell(DoorbellMode::Staged, &proxy).unwrap_err();
        assert_error!(error, ErrorKind::Busy, "never rung for", "3");
        assert_eq!(queue.quiet(Duration::from_secs(30)).unwrap().completed, 3);
        blocks.assert_arrived();
        queue.close().unwrap();
    });
}

#[test]
fn a_queue_with_an_unclosed_sender_can_only_be_destroyed() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        let mut queue = side.queue();
        // Takes a ticket, as a `Sender` does that is never closed.
        // SAFETY: the queue is open, and no kernel runs.
        unsafe { (*queue.as_ptr().as_ptr()).reserve.word += 1 << 32 };
        let error = queue.quiet(Duration::from_secs(1)).unwrap_err();
        assert_error!(error, ErrorKind::Device(DeviceError::InUse));
        let refused = queue.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "without closing its Sender");
        let queue = refused.queue.unwrap();
        // SAFETY: as above.
        unsafe { (*queue.as_ptr().as_ptr()).error.poison = EFA_GDA_TIMEOUT_LOCK };
        let refused = queue.close().unwrap_err();
        assert_error!(refused.error, ErrorKind::Busy, "without closing its Sender");
        let queue = refused.queue.unwrap();
        queue.destroy().unwrap();
    });
}

#[test]
fn quiet_poisons_the_queue_at_its_time_limit() {
    with_loopback(&[], |mut queue, peer, region, adapter| {
        adapter.hold(true);
        post_without_waiting(&mut queue, &WorkRequest::write(peer, &region, region.remote()));
        let error = queue.quiet(Duration::from_millis(1)).unwrap_err();
        assert_error!(error, ErrorKind::Device(DeviceError::TimeoutCompletion), "requests in flight: 1");
        assert_eq!(queue.poison(), Some(DeviceError::TimeoutCompletion));
        adapter.hold(false);
        queue.destroy().unwrap();
    });
}

#[test]
fn quiet_returns_the_error_of_a_request_posted_without_a_wait() {
    with_loopback(&[], |mut queue, peer, region, _| {
        let wrong = with_wrong_key(region.remote());
        post_without_waiting(&mut queue, &WorkRequest::write(peer, &region, wrong));
        let error = queue.quiet(Duration::from_secs(30)).unwrap_err();
        assert!(
            error.to_string().contains(" (completions read: 1); run gda-probe explain STATUS-7"),
            "{error}"
        );
        let ErrorKind::FailedRequest { status, .. } = error.kind() else { panic!("{error:?}") };
        assert_eq!(status, CompletionStatus::RemoteBadAddress);
        queue.quiet(Duration::from_secs(30)).unwrap();
    });
}
