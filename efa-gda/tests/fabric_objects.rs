//! Order, ownership and errors of libfabric objects, on a hand-written provider.
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod fabric_fake;

use efa_gda::fabric::{
    Access, Bindings, Buffer, Domain, Endpoint, GdaOps, Region, UnavailableReason, Version,
};
use efa_gda::queue::MappedQueue;
use efa_gda::{Error, ErrorKind};
use efa_gda_sys::fi;
use efa_gda_test_support::assert_error;
use fabric_fake::{Fake, GuardedTable, gda_table};

fn endpoint(fake: &Fake, domain: &Domain) -> Endpoint {
    try_endpoint(fake, domain).unwrap()
}

fn try_endpoint(fake: &Fake, domain: &Domain) -> Result<Endpoint, Error> {
    let addresses = domain.address_vector(16).unwrap();
    let completions = domain.completion_queue(64).unwrap();
    domain.endpoint(&fake.info(), Bindings::shared(&addresses, &completions))
}

fn region(domain: &Domain) -> Result<Region, Error> {
    domain.register(Buffer::zeroed(4096).unwrap(), Access::ALL)
}

fn ops_error(fake: &Fake) -> Error {
    fake.domain().gda_ops().unwrap_err()
}

/// The close calls in the log, in order.
fn closes(fake: &Fake) -> Vec<String> {
    fake.log().into_iter().filter(|call| call.starts_with("close")).collect()
}

#[test]
fn an_endpoint_closes_before_its_bound_objects_even_if_dropped_last() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let addresses = domain.address_vector(16).unwrap();
    let completions = domain.completion_queue(64).unwrap();
    let endpoint = domain.endpoint(&fake.info(), Bindings::shared(&addresses, &completions)).unwrap();
    drop(domain);
    drop(completions);
    drop(addresses);
    drop(endpoint);
    assert_eq!(closes(&fake), ["close endpoint", "close cq", "close av"]);
}

#[test]
fn a_completion_queue_for_both_directions_is_bound_once() {
    let fake = Fake::new(206);
    drop(endpoint(&fake, &fake.domain()));
    let log = fake.log();
    assert_eq!(log[..6], ["open av", "open cq", "open endpoint", "bind av", "bind cq", "enable"]);
}

#[test]
fn two_completion_queues_are_bound_to_one_direction_each() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let addresses = domain.address_vector(16).unwrap();
    let (transmit, receive) = (domain.completion_queue(64).unwrap(), domain.completion_queue(64).unwrap());
    let bindings = Bindings { receive_completions: &receive, ..Bindings::shared(&addresses, &transmit) };
    let _endpoint = domain.endpoint(&fake.info(), bindings).unwrap();
    let log = fake.log();
    assert_eq!(log[log.len() - 3..], ["bind cq for transmit", "bind cq for receive", "enable"]);
}

#[test]
fn a_borrowed_domain_is_never_closed() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    drop(domain.clone());
    domain.close().unwrap();
    assert_eq!(closes(&fake), [""; 0]);
}

#[test]
fn closing_a_completion_queue_that_an_endpoint_uses_returns_busy() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let endpoint = endpoint(&fake, &domain);
    let queue = endpoint.send_completions().clone();
    let error = queue.close().unwrap_err();
    assert_error!(error, ErrorKind::Busy, "completion queue");
    assert_eq!(closes(&fake), [""; 0]);
}

#[test]
fn closing_a_region_with_another_owner_returns_busy() {
    let fake = Fake::new(206);
    let region = region(&fake.domain()).unwrap();
    let other = region.clone();
    let error = region.close().unwrap_err();
    assert_error!(error, ErrorKind::Busy, "the memory region was not closed: 1 other handle(s) use it;");
    other.close().unwrap();
    assert_eq!(closes(&fake), ["close mr"]);
}

#[test]
fn a_region_with_another_owner_is_handed_back_and_can_be_closed_later() {
    let fake = Fake::new(206);
    let region = region(&fake.domain()).unwrap();
    let other = region.clone();
    let region = region.try_close().unwrap_err();
    assert_eq!(closes(&fake), [""; 0]);
    drop(other);
    region.try_close().unwrap().unwrap();
    assert_eq!(closes(&fake), ["close mr"]);
}

#[test]
fn a_retained_region_is_deregistered_after_the_endpoint_is_closed() {
    let fake = Fake::new(206);
    let domain = fake.domain();
    let mut queue = MappedQueue::new(endpoint(&fake, &domain), &domain.gda_ops().unwrap()).unwrap();
    queue.retain(region(&domain).unwrap()).unwrap();
    assert_eq!(closes(&fake), [""; 0]);
    queue.close().unwrap();
    assert_eq!(closes(&fake)[..2], ["close endpoint", "close mr"]);
}

#[test]
fn a_failed_close_is_reported_and_leaves_bound_objects_and_regions_open() {
    let fake = Fake::answering("close endpoint", -i64::from(libc::EBUSY));
    let domain = fake.domain();
    let mut queue = MappedQueue::new(endpoint(&fake, &domain), &domain.gda_ops().unwrap()).unwrap();
    queue.retain(region(&domain).unwrap()).unwrap();
    let error = queue.destroy().unwrap_err();
    assert_eq!((error.operation(), error.code()), (Some("fi_close(endpoint)"), Some(-libc::EBUSY)));
    assert_eq!(
        closes(&fake),
        ["close endpoint"],
        "completion queue and address vector must stay open, and the region registered"
    );
}

#[test]
fn a_failed_bind_closes_the_endpoint() {
    let fake = Fake::answering("bind cq", -i64::from(libc::EINVAL));
    let error = try_endpoint(&fake, &fake.domain()).unwrap_err();
    assert_eq!(error.operation(), Some("fi_ep_bind(completion queue)"));
    assert_eq!(closes(&fake), ["close endpoint", "close cq", "close av"]);
}

#[test]
fn binding_objects_of_two_domains_is_refused() {
    let (fake, other) = (Fake::new(206), Fake::new(206));
    let (domain, elsewhere) = (fake.domain(), other.domain());
    let addresses = elsewhere.address_vector(16).unwrap();
    let completions = domain.completion_queue(64).unwrap();
    let error = domain.endpoint(&fake.info(), Bindings::shared(&addresses, &completions)).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "belong to different domains");
}

#[test]
fn an_operation_table_that_ends_early_is_not_read_past_its_end() {
    let mut fake = Fake::new(206);
    fake.shorten_domain_table(std::mem::offset_of!(fi::fi_ops_domain, endpoint));
    let error = try_endpoint(&fake, &fake.domain()).unwrap_err();
    assert_error!(error, ErrorKind::Other, "is not in the object's operation table", "fi_endpoint", "24");
}

#[test]
fn success_without_an_object_is_an_error() {
    let fake = Fake::answering("open endpoint", 1);
    let error = try_endpoint(&fake, &fake.domain()).unwrap_err();
    assert_error!(error, ErrorKind::Other, "returned no object", "fi_endpoint");
}

#[test]
fn a_failed_open_reports_its_operation_code_and_text() {
    let fake = Fake::answering("open cq", -i64::from(libc::ENOMEM));
    let error = fake.domain().completion_queue(64).unwrap_err();
    assert_eq!((error.operation(), error.code()), (Some("fi_cq_open"), Some(-libc::ENOMEM)));
    assert!(error.what().contains("memory"), "{error}");
}

#[test]
fn an_address_that_the_provider_refuses_is_an_error() {
    let fake = Fake::answering("insert", 0);
    let error = fake.domain().address_vector(16).unwrap().insert(&[1; 32]).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "did not accept", "32");
}

#[test]
fn an_address_of_the_wrong_length_is_not_passed_to_the_provider() {
    let fake = Fake::new(206);
    let addresses = fake.domain().address_vector(16).unwrap();
    for length in [0, 3, 5, 31, 33, 64] {
        let error = addresses.insert(&vec![1; length]).unwrap_err();
        assert_error!(error, ErrorKind::Argument, "that of an efa endpoint has length 32");
        assert!(error.to_string().starts_with(&format!("the address has length {length};")), "{error}");
    }
    assert!(!fake.log().iter().any(|call| call == "insert"), "{:?}", fake.log());
}

#[test]
fn eopnotsupp_from_open_ops_means_the_wrong_fabric() {
    let fake = Fake::answering("open ops", -95);
    let error = ops_error(&fake);
    assert_error!(error, ErrorKind::Unsupported, "on the fabric efa, libfabric drives the queues");
    assert!(error.hint().contains("efa-direct"));
}

#[test]
fn einval_from_open_ops_means_an_older_libfabric() {
    let fake = Fake::new(121);
    fake.answers("open ops", -22);
    let error = ops_error(&fake);
    assert_error!(error, ErrorKind::Unsupported, "efa provider 121.0 does not know these operations");
    assert!(error.hint().contains("2.3"));
}

#[test]
fn einval_from_provider_202_means_that_another_table_holds_the_operations() {
    let fake = Fake::new(202);
    fake.answers("open ops", -22);
    assert_error!(
        ops_error(&fake),
        ErrorKind::Unsupported,
        "2.2 has these operations in a table that no other release has"
    );
}

#[test]
fn a_table_from_a_provider_older_than_the_table_is_refused() {
    assert_error!(
        ops_error(&Fake::new(117)),
        ErrorKind::Unsupported,
        "203.0 is the first provider with a known table"
    );
}

fn counters(ops: &GdaOps) -> Result<(), UnavailableReason> {
    ops.available().into_iter().find(|(name, _)| *name == "cntr_open_ext").unwrap().1
}

#[test]
fn a_table_of_five_pointers_is_not_read_past_the_fifth() {
    let (table, fake) = (GuardedTable::of(5), Fake::new(205));
    fake.gives_table(table.as_ptr());
    let ops = fake.domain().gda_ops().unwrap();
    let (has, needs) = (Version::new(205, 0), Version::new(206, 0));
    assert_eq!(counters(&ops), Err(UnavailableReason::ProviderTooOld { has, needs }));
}

#[test]
fn a_domain_without_info_is_assumed_to_have_five_pointers() {
    let (table, fake) = (GuardedTable::of(5), Fake::new(206));
    fake.gives_table(table.as_ptr());
    assert_eq!(counters(&fake.bare_domain().gda_ops().unwrap()), Err(UnavailableReason::NoInfo));
}

#[test]
fn a_table_shorter_than_its_release_requires_is_detected() {
    let (table, fake) = (GuardedTable::of(5), Fake::new(206));
    fake.gives_table(table.as_ptr());
    let has = Version::new(206, 0);
    assert_eq!(counters(&fake.domain().gda_ops().unwrap()), Err(UnavailableReason::TableEndsEarly { has }));
}

#[test]
fn a_sixth_pointer_that_does_not_lead_to_code_is_not_called() {
    let fake = Fake::new(206);
    let not_code = 7_u64;
    let mut table = gda_table();
    // SAFETY: the field holds a pointer, and nothing calls the function that it claims to point to.
    unsafe { (&raw mut table.cntr_open_ext).cast::<*const u64>().write(&not_code) };
    fake.gives_table(&mut table);
    let ops = fake.domain().gda_ops().unwrap();
    let has = Version::new(206, 0);
    assert_eq!(counters(&ops), Err(UnavailableReason::TableEndsEarly { has }));
    let error = ops.cntr_open().unwrap_err();
    assert_error!(error, ErrorKind::Unavailable, "the provider's table ends before it");
    assert_eq!(error.operation(), Some("cntr_open_ext"));
}

#[test]
fn an_operation_whose_pointer_is_null_is_not_called() {
    let fake = Fake::new(206);
    let mut table = gda_table();
    table.query_cq = None;
    fake.gives_table(&mut table);
    let domain = fake.domain();
    let error = domain.gda_ops().unwrap().query_cq(&domain.completion_queue(64).unwrap()).unwrap_err();
    assert_error!(error, ErrorKind::Unavailable, "a null pointer", "query_cq cannot be called");
}

#[test]
fn fields_that_a_provider_does_not_fill_in_read_as_zero() {
    let fake = Fake::new(203);
    let domain = fake.domain();
    let queues = domain.gda_ops().unwrap().query_qp_wqs(&endpoint(&fake, &domain)).unwrap();
    assert_eq!(queues.send.caps, 0);
}

#[test]
fn an_unknown_address_is_reported() {
    let fake = Fake::answering("query_addr", -22);
    let domain = fake.domain();
    let endpoint = endpoint(&fake, &domain);
    let address = endpoint.address_vector().insert(&endpoint.address().unwrap()).unwrap();
    let error = domain.gda_ops().unwrap().query_addr(&endpoint, address).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "query_addr failed");
}

#[test]
fn enosys_from_a_query_means_not_built_in() {
    let fake = Fake::answering("query_qp_wqs", -38);
    let domain = fake.domain();
    let error = domain.gda_ops().unwrap().query_qp_wqs(&endpoint(&fake, &domain)).unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "was built with rdma-core");
}

#[test]
fn eopnotsupp_from_a_query_means_that_the_adapter_lacks_it() {
    let fake = Fake::answering("query_cq", -95);
    let domain = fake.domain();
    let error = domain.gda_ops().unwrap().query_cq(&domain.completion_queue(64).unwrap()).unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "use an adapter and kernel driver with the capability");
}

#[test]
fn an_object_of_another_domain_is_not_passed_to_the_provider() {
    let (fake, other) = (Fake::new(206), Fake::new(206));
    let elsewhere = other.domain();
    let ops = fake.domain().gda_ops().unwrap();
    let error = ops.query_cq(&elsewhere.completion_queue(64).unwrap()).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "belong to different domains", "query_cq");
}

#[test]
fn a_region_without_an_rkey_is_an_error_and_is_deregistered() {
    let fake = Fake::answering("rkey", -1);
    let error = region(&fake.domain()).unwrap_err();
    assert_error!(error, ErrorKind::Other, "has no such key", "fi_mr_key");
    assert_eq!(closes(&fake), ["close mr"]);
}

#[test]
fn a_region_without_an_lkey_is_an_error() {
    let fake = Fake::answering("get_mr_lkey", -1);
    let domain = fake.domain();
    let error = domain.gda_ops().unwrap().get_mr_lkey(&region(&domain).unwrap()).unwrap_err();
    assert_error!(error, ErrorKind::Other, "has no such key", "get_mr_lkey");
}

#[test]
fn an_lkey_of_more_than_24_bits_is_an_error() {
    let fake = Fake::answering("get_mr_lkey", 1 << 24);
    let domain = fake.domain();
    let error = domain.gda_ops().unwrap().get_mr_lkey(&region(&domain).unwrap()).unwrap_err();
    assert_error!(error, ErrorKind::Other, "an entry has", "24");
}

#[test]
fn a_remote_region_refuses_addresses_outside_itself() {
    let fake = Fake::new(206);
    let remote = region(&fake.domain()).unwrap().remote();
    assert_eq!(remote.at(4095, 1).unwrap().address, remote.address + 4095);
    for (offset, length) in [(4096, 1), (0, 4097), (u64::MAX, 2)] {
        let error = remote.at(offset, length).unwrap_err();
        let range =
            format!("the range of length {length} at offset {offset} is not in a region of length 4096");
        assert_error!(error, ErrorKind::Argument, &range);
    }
}

#[test]
fn a_buffer_refuses_copies_outside_itself() {
    let buffer = Buffer::zeroed(100).unwrap();
    buffer.write(97, &[1, 2, 3]).unwrap();
    let mut end = [9; 4];
    buffer.read(96, &mut end).unwrap();
    assert_eq!(end, [0, 1, 2, 3]);
    assert!(buffer.write(98, &[1, 2, 3]).is_err());
    assert!(buffer.read(usize::MAX, &mut end).is_err());
}
