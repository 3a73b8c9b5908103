//! What libfabric 2.7 added, on the libfabric frontend: longer operation tables, regions with relaxed ordering, and
//! `efa-direct` without FI_CONTEXT2.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::{c_int, c_void};
use std::ptr;

use efa_gda_sys::fi;
use libfabric_common::queues::{ALL, Poster, memory, wait, write_to_self};
use libfabric_common::{
    Client, Hints, Opened, bind, close, open_cq, open_domain, open_ep, with_soft_adapter,
};

const BAD_FLAGS: c_int = -(fi::FI_EBADFLAGS as c_int);
const INVALID: c_int = -libc::EINVAL;
const NO_DATA: c_int = -libc::ENODATA;
const NOT_PROVIDED: c_int = -libc::ENOSYS;

/// Tables of libfabric 2.7, by the object in whose `ops` they are: pointers with the size, and the last operation, which
/// softefa does not provide. Its callers do not compare the size, but for `lookup2` (fi_xpu.h, fi_endpoint.h, fi_eq.h and
/// fi_domain.h of c459d6a51 to 739bccbba).
const TABLES_2_7: [(&str, usize, &str); 5] = [
    ("domain", 13, "xpu_ctx"),
    ("endpoint", 9, "export_xpu"),
    ("completion queue", 9, "export_xpu"),
    ("counter", 9, "export_xpu"),
    ("address vector", 12, "lookup2"),
];

#[test]
fn a_client_of_libfabric_2_7_finds_each_operation_within_its_table() {
    with_soft_adapter(&[("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")], |_| {
        let opened = Opened::new(&Client::load(), |_| {});
        let mut counter: *mut fi::fid_cntr = ptr::null_mut();
        let none = ptr::null_mut();
        let code = call!((*opened.domain).ops, cntr_open, opened.domain, ptr::null_mut(), &mut counter, none);
        assert_eq!(code, 0);
        // SAFETY: open objects; each begins with its fid, and its operations follow it.
        let tables = unsafe {
            [
                (*opened.domain).ops.cast::<usize>(),
                (*opened.ep).ops.cast(),
                (*opened.cq).ops.cast(),
                (*counter).ops.cast(),
                (*opened.av).ops.cast(),
            ]
        };
        for (table, (object, pointers, operation)) in tables.into_iter().zip(TABLES_2_7) {
            // SAFETY: every table begins with its size in bytes.
            let bytes = unsafe { table.read() };
            assert!(
                bytes >= pointers * size_of::<usize>(),
                "the {object}'s table ends before {operation}: {bytes}"
            );
            // SAFETY: within the size.
            let function = unsafe { table.add(pointers - 1).cast::<Option<Operation>>().read() };
            // SAFETY: the operation reads none of its arguments, of which this call has as many as the longest.
            let code = unsafe { function.expect("an operation")(none, 1, none, none, 1, none) };
            assert_eq!(code, NOT_PROVIDED, "{operation} of the {object}");
        }
    });
}

/// An operation with as many words as the longest in [`TABLES_2_7`].
type Operation = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, *mut c_void, u64, *mut c_void) -> c_int;

/// Registers memory with relaxed ordering by each of the three calls.
fn register_relaxed(domain: *mut fi::fid_domain, memory: &[u64]) -> [c_int; 3] {
    const FLAG: u64 = fi::FI_EFA_MR_RELAXED_ORDERING;
    let (fid, start, bytes) = (domain.cast(), memory.as_ptr().cast::<c_void>(), size_of_val(memory));
    let part = fi::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes as _ };
    let mut attr = fi::fi_mr_attr { iov_count: 1, access: ALL, ..Default::default() };
    attr.__bindgen_anon_1.mr_iov = &part;
    let (mut region, none) = (ptr::null_mut(), ptr::null_mut());
    let reg = call!((*domain).mr, reg, fid, start, bytes, ALL, 0, 0, FLAG, &mut region, none);
    let reg = closed(reg, region);
    let regv = call!((*domain).mr, regv, fid, &part, 1, ALL, 0, 0, FLAG, &mut region, none);
    let regv = closed(regv, region);
    let regattr = call!((*domain).mr, regattr, fid, &attr, FLAG, &mut region);
    [reg, regv, closed(regattr, region)]
}

/// Closes a region that a call with this result registered.
fn closed(code: c_int, region: *mut fi::fid_mr) -> c_int {
    if code == 0 { close(region) } else { code }
}

#[test]
fn relaxed_ordering_needs_release_207_and_is_ignored_on_the_plain_fabric() {
    for (release, fabric, code) in
        [("207.0", "efa-direct", 0), ("206.0", "efa-direct", BAD_FLAGS), ("207.0", "efa", 0)]
    {
        with_soft_adapter(&[("SOFTEFA_PROV_VERSION", release), ("SOFTEFA_FABRICS", fabric)], |_| {
            let client = Client::load();
            let info = client.getinfo_with(|h| h.fabric(fabric)).unwrap();
            let domain = open_domain(client.fabric(info).unwrap(), info).unwrap();
            assert_eq!(register_relaxed(domain, &memory(8, 0)), [code; 3], "{fabric} of {release}");
        });
    }
}

/// Hints of a program that provides no contexts.
fn no_contexts(hints: &mut Hints) {
    hints.info().mode = 0;
}

#[test]
fn the_direct_fabric_without_fi_context2_injects_nothing() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let info = client.getinfo_with(no_contexts).unwrap();
        // SAFETY: an info of the returned list, with its attributes.
        let (mode, tx) = unsafe { ((*info).mode, *(*info).tx_attr) };
        assert_eq!((mode & fi::FI_CONTEXT2, tx.mode & fi::FI_CONTEXT2, tx.inject_size), (0, 0, 0));
        let injecting = client.getinfo_with(|h| {
            no_contexts(h);
            h.tx().inject_size = 1;
        });
        assert_eq!(injecting.map(|_| ()), Err(NO_DATA));
    });
}

#[test]
fn releases_before_207_need_fi_context2() {
    with_soft_adapter(&[("SOFTEFA_PROV_VERSION", "206.0")], |_| {
        for mode in [0, fi::FI_CONTEXT] {
            let refused = Client::load().getinfo_with(|h| h.info().mode = mode);
            assert_eq!(refused.map(|_| ()), Err(NO_DATA));
        }
    });
}

#[test]
fn a_completion_queue_takes_endpoints_of_one_mode_only() {
    const BOTH: u64 = fi::FI_TRANSMIT | fi::FI_RECV;
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let opened = Opened::new(&client, no_contexts);
        let with_contexts = open_ep(opened.domain, client.info()).unwrap();
        assert_eq!(bind(with_contexts, opened.cq, BOTH), INVALID);
        assert_eq!(bind(with_contexts, open_cq(opened.domain, 64).unwrap(), BOTH), 0);
        let without = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(bind(without, opened.cq, BOTH), 0);
    });
}

#[test]
fn fi_cq_read_returns_requests_that_a_device_posted_without_contexts() {
    with_soft_adapter(&[], |_| {
        let opened = Opened::new(&Client::load(), no_contexts);
        let (from, to) = (memory(512, 0x5a), memory(512, 0));
        let request = write_to_self(&opened, &from, &to, 3);
        Poster::new(&opened, 0).post(&request);
        let mut entry = fi::fi_cq_data_entry::default();
        let read = || {
            let count = call!((*opened.cq).ops, read, opened.cq, (&raw mut entry).cast(), 1);
            (count != -libc::EAGAIN as isize).then_some(count)
        };
        assert_eq!(wait("a completion", read), 1);
        assert_eq!(entry.flags, fi::FI_RMA | fi::FI_WRITE);
        assert_eq!(std::hint::black_box(&to), &from);
    });
}
