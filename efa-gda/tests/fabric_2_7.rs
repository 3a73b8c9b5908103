//! What the library reads of libfabric 2.7, through this machine's libfabric and the software adapter: regions with
//! relaxed ordering, and fields of infos.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::ptr::NonNull;

use efa_gda::fabric::{Access, Buffer, Info, Library, Query, QueryOption, Region, RegionOrdering};
use efa_gda::queue::WorkRequest;
use efa_gda::{Error, ErrorKind};
use efa_gda_sys::fi;
use efa_gda_test_support::assert_error;
use support::side::{Side, bytes_of};
use support::{with_pair, with_soft_adapter};

fn relaxed(side: &Side) -> Result<Region, Error> {
    side.domain.register(Buffer::zeroed(4096).unwrap(), Access::ALL | Access::RELAXED_ORDERING)
}

#[test]
fn a_region_reports_the_order_of_its_writes() {
    with_soft_adapter(&[], |_| {
        let side = Side::open(&Query::new());
        assert_eq!(side.region(&[0; 64]).ordering(), RegionOrdering::Strict);
        let region = relaxed(&side).unwrap();
        assert_eq!(region.ordering(), RegionOrdering::Relaxed);
        assert!(region.access().contains(Access::ALL));
    });
}

/// Late writes land only when something lands them.
const LATE: (&str, &str) = ("SOFTEFA_LATE_WRITE_US", "3600000000");

#[test]
fn writes_to_a_region_with_relaxed_ordering_are_late_until_it_is_read() {
    with_pair(&[LATE], |mut pair, _| {
        let (source, sink) = (pair.side.region(&[0xff; 64]), pair.zeroes(64));
        let (strict, relaxed) = (pair.zeroes(64), relaxed(&pair.side).unwrap());
        for target in [&strict, &relaxed] {
            let each = WorkRequest::write(pair.peer, &source, target.remote()).bytes(1).stride(1).count(64);
            pair.first.execute(&each).unwrap();
        }
        assert_eq!(bytes_of(&strict), [0xff; 64]);
        let landed = bytes_of(&relaxed)[..64].iter().filter(|byte| **byte == 0xff).count();
        assert!((1..64).contains(&landed), "{landed} of 64 writes landed");
        pair.first.execute(&WorkRequest::read(pair.peer, &sink, relaxed.remote()).bytes(64)).unwrap();
        assert_eq!((&bytes_of(&relaxed)[..64], bytes_of(&sink)), (&[0xff; 64][..], vec![0xff; 64]));
    });
}

#[test]
fn a_libfabric_before_2_7_refuses_relaxed_ordering_and_the_error_says_so() {
    with_soft_adapter(&[("SOFTEFA_PROV_VERSION", "206.0")], |_| {
        let error = relaxed(&Side::open(&Query::new())).unwrap_err();
        assert_eq!((error.operation(), error.code()), (Some("fi_mr_reg"), Some(-(fi::FI_EBADFLAGS as i32))));
        assert!(error.hint().contains("libfabric 2.7"), "{error}");
    });
}

#[test]
fn the_number_of_device_contexts_is_read_from_api_2_7_on() {
    for (minor, expected) in [(7, Some(3)), (6, None)] {
        let mut domain = fi::fi_domain_attr { max_xpu_ctx_cnt: 3, ..Default::default() };
        let api_version = fi::fi_version(2, minor);
        let mut fabric = fi::fi_fabric_attr { api_version, ..Default::default() };
        let mut info =
            fi::fi_info { domain_attr: &mut domain, fabric_attr: &mut fabric, ..Default::default() };
        // SAFETY: a complete info, which outlives the borrow.
        let info = unsafe { Info::borrow(NonNull::from(&mut info)) };
        assert_eq!(info.max_xpu_contexts(), expected, "API 2.{minor}");
    }
}

#[test]
fn a_completion_queue_has_room_for_each_segment_of_each_receive() {
    let mut tx = fi::fi_tx_attr { size: 4096, ..Default::default() };
    let mut rx = fi::fi_rx_attr { size: 1024, iov_limit: 4, ..Default::default() };
    let mut info = fi::fi_info { tx_attr: &mut tx, rx_attr: &mut rx, ..Default::default() };
    // SAFETY: a complete info, which outlives the borrow.
    assert_eq!(unsafe { Info::borrow(NonNull::from(&mut info)) }.completions(), 8192);
}

#[test]
fn host_completions_need_libfabric_2_7() {
    with_soft_adapter(&[("SOFTEFA_PROV_VERSION", "206.0")], |_| {
        let error = Query::new().host_completions(true).find(&Library::load().unwrap()).unwrap_err();
        assert_error!(error, ErrorKind::WithoutOption(QueryOption::HostCompletions));
    });
}
