//! Completion counters through an installed libfabric: the requests that they count, the memory that they are in, and
//! the calls that are refused.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use efa_gda_sys::fi;
use efa_gda_wire::{CompletionStatus, Operation, RemoteKey, Request};
use libfabric_common::queues::{Poller, Poster, memory, memory_file, write_to_self};
use libfabric_common::{
    Client, Hints, Opened, bind, close, enable, gda_ops, open_av, open_cq, open_domain, open_ep,
    with_soft_adapter,
};

const INVALID: c_int = -libc::EINVAL;
const NOT_SUPPORTED: c_int = -libc::EOPNOTSUPP;

/// Enables counters, for any API version of the installed libfabric.
const ON: &[(&str, &str)] = &[("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];

type Opening = Result<*mut fi::fid_cntr, c_int>;

fn open_cntr(domain: *mut fi::fid_domain, mut attr: fi::fi_cntr_attr) -> Opening {
    let mut counter = ptr::null_mut();
    match call!((*domain).ops, cntr_open, domain, &mut attr, &mut counter, ptr::null_mut()) {
        0 => Ok(counter),
        error => Err(error),
    }
}

fn waitable() -> fi::fi_cntr_attr {
    fi::fi_cntr_attr { wait_obj: fi::FI_WAIT_UNSPEC, ..Default::default() }
}

fn open_cntr_ext(domain: *mut fi::fid_domain, efa: *mut fi::fi_efa_comp_cntr_init_attr) -> Opening {
    let mut counter = ptr::null_mut();
    let (ops, mut attr) = (gda_ops(domain).unwrap(), waitable());
    match call!(ops, cntr_open_ext, domain, &mut attr, &mut counter, ptr::null_mut(), efa) {
        0 => Ok(counter),
        error => Err(error),
    }
}

/// Opens a counter with both words in memory of the caller.
fn open_at(domain: *mut fi::fid_domain, success: *mut u8, error: *mut u8) -> Opening {
    let at = |ptr| fi::fi_efa_memory_location { ptr, ..Default::default() };
    open_cntr_ext(domain, &mut both(at(success), at(error)))
}

fn both(
    comp_cntr_ext_mem: fi::fi_efa_memory_location,
    err_cntr_ext_mem: fi::fi_efa_memory_location,
) -> fi::fi_efa_comp_cntr_init_attr {
    let flags =
        fi::FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM | fi::FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    fi::fi_efa_comp_cntr_init_attr { flags, comp_cntr_ext_mem, err_cntr_ext_mem, ..Default::default() }
}

fn in_file(fd: c_int, offset: u64, ptr: *mut u8) -> fi::fi_efa_memory_location {
    fi::fi_efa_memory_location {
        ptr,
        dmabuf: fi::fi_efa_memory_location__bindgen_ty_1 { offset, fd, reserved: 0 },
        type_: fi::FI_EFA_MEMORY_LOCATION_DMABUF as u8,
        ..Default::default()
    }
}

/// The values of the two words.
fn values(counter: *mut fi::fid_cntr) -> (u64, u64) {
    (call!((*counter).ops, read, counter), call!((*counter).ops, readerr, counter))
}

/// The objects that an endpoint needs, and an endpoint that is bound to them and not enabled.
fn before_enable(client: &Client) -> Opened {
    let info = client.getinfo_with(|_: &mut Hints| {}).unwrap();
    let fabric = client.fabric(info).unwrap();
    let domain = open_domain(fabric, info).unwrap();
    let (av, cq) = (open_av(domain).unwrap(), open_cq(domain, 1024).unwrap());
    let ep = open_ep(domain, info).unwrap();
    assert_eq!(bind(ep, cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
    assert_eq!(bind(ep, av, 0), 0);
    Opened { info, fabric, domain, av, cq, ep }
}

/// Runs `body` with an endpoint that is not enabled.
fn with_endpoint(variables: &[(&str, &str)], body: impl FnOnce(Opened)) {
    with_soft_adapter(variables, |_| body(before_enable(&Client::load())));
}

/// The request with an rkey of no region.
fn broken(mut request: Request) -> Request {
    if let Operation::Write { remote, .. } = &mut request.operation {
        remote.key = RemoteKey::new(remote.key.get() ^ 0x55);
    }
    request
}

/// Posts three writes and one with a wrong key, each after the previous completion.
fn three_writes_and_a_broken_one(opened: &Opened) {
    let (from, to) = (memory(1, 1), memory(1, 0));
    let request = write_to_self(opened, &from, &to, 1);
    let (mut poster, mut poller) = (Poster::new(opened, 0), Poller::new(opened));
    for _ in 0..3 {
        poster.post(&request);
        assert_eq!(poller.next().status, CompletionStatus::Ok);
    }
    poster.post(&broken(request));
    assert_eq!(poller.next().status, CompletionStatus::RemoteBadAddress);
}

#[test]
fn each_counter_counts_successes_and_errors_of_the_operations_that_it_is_bound_to() {
    with_endpoint(ON, |opened| {
        let kinds =
            [fi::FI_READ, fi::FI_WRITE, fi::FI_SEND | fi::FI_RECV, fi::FI_REMOTE_WRITE, fi::FI_REMOTE_READ];
        let counters = kinds.map(|kind| {
            let counter = open_cntr(opened.domain, waitable()).unwrap();
            assert_eq!(bind(opened.ep, counter, kind), 0);
            counter
        });
        assert_eq!(enable(opened.ep), 0);
        // The endpoint writes to itself. A write that did not arrive is not counted at the target.
        three_writes_and_a_broken_one(&opened);
        assert_eq!(counters.map(values), [(0, 0), (3, 1), (0, 0), (3, 0), (0, 0)]);
    });
}

#[test]
fn a_word_in_a_file_without_an_address_is_written_and_not_read() {
    with_endpoint(ON, |opened| {
        let (fd, place) = memory_file(4096);
        let mut efa = both(in_file(fd, 64, ptr::null_mut()), in_file(fd, 128, place));
        let counter = open_cntr_ext(opened.domain, &mut efa).unwrap();
        assert_eq!(bind(opened.ep, counter, fi::FI_WRITE), 0);
        assert_eq!(enable(opened.ep), 0);
        three_writes_and_a_broken_one(&opened);
        // SAFETY: inside the file's mapping, aligned, and only accessed atomically.
        let word = |at: usize| unsafe { AtomicU64::from_ptr(place.add(at).cast()) }.load(Ordering::Acquire);
        assert_eq!((word(64), word(128)), (3, 1));
        assert_eq!(values(counter), (0, 1), "a word without an address is not read");
        assert_eq!(call!((*counter).ops, wait, counter, 0, 0), NOT_SUPPORTED, "a wait needs both words");
    });
}

#[test]
fn the_client_can_set_and_add_to_both_words() {
    with_endpoint(ON, |opened| {
        let counter = open_cntr(opened.domain, waitable()).unwrap();
        assert_eq!(values(counter), (0, 0));
        assert_eq!(call!((*counter).ops, set, counter, 10), 0);
        assert_eq!(call!((*counter).ops, add, counter, 5), 0);
        assert_eq!(call!((*counter).ops, seterr, counter, 20), 0);
        assert_eq!(call!((*counter).ops, adderr, counter, 1), 0);
        assert_eq!(values(counter), (15, 21));
    });
}

#[test]
fn a_wait_ends_at_the_threshold_an_error_or_the_timeout() {
    with_endpoint(ON, |opened| {
        let counter = open_cntr(opened.domain, waitable()).unwrap();
        let wait = |counter: *mut fi::fid_cntr, threshold, timeout| {
            call!((*counter).ops, wait, counter, threshold, timeout)
        };
        assert_eq!(call!((*counter).ops, set, counter, 4), 0);
        assert_eq!(wait(counter, 4, -1), 0, "reached");
        assert_eq!(wait(counter, 5, 1), -libc::ETIMEDOUT, "not reached");
        let polled = open_cntr(opened.domain, Default::default()).unwrap();
        assert_eq!(wait(polled, 0, 1), INVALID, "opened with FI_WAIT_NONE");

        let (address, done) = (counter.expose_provenance(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Adds errors continually, so that some arrive during the wait.
            scope.spawn(|| {
                let counter = ptr::with_exposed_provenance_mut::<fi::fid_cntr>(address);
                while !done.load(Ordering::Acquire) {
                    assert_eq!(call!((*counter).ops, adderr, counter, 1), 0);
                }
            });
            let ended = wait(counter, 5, 10_000);
            done.store(true, Ordering::Release);
            assert_eq!(ended, -(fi::FI_EAVAIL as c_int), "an error during the wait");
        });
    });
}

#[test]
fn a_counter_closes_after_its_endpoint_and_before_its_domain() {
    with_endpoint(ON, |opened| {
        let counter = open_cntr(opened.domain, waitable()).unwrap();
        assert_eq!(bind(opened.ep, counter, fi::FI_WRITE), 0);
        assert_eq!(close(counter), -libc::EBUSY, "bound");
        assert_eq!(enable(opened.ep), 0);
        assert_eq!(close(counter), -libc::EBUSY, "bound and enabled");
        assert_eq!((close(opened.ep), close(opened.cq), close(opened.av)), (0, 0, 0));
        assert_eq!(close(opened.domain), -libc::EBUSY, "the counter is open");
        assert_eq!((close(counter), close(opened.domain)), (0, 0));
    });
}

#[test]
fn a_bind_that_cannot_count_is_refused() {
    with_endpoint(ON, |opened| {
        let counter = open_cntr(opened.domain, waitable()).unwrap();
        let bad_flags = -(fi::FI_EBADFLAGS as c_int);
        assert_eq!(bind(opened.ep, counter, 0), bad_flags, "nothing to count");
        assert_eq!(bind(opened.ep, counter, fi::FI_TAGGED), bad_flags, "not a kind that is counted");
        assert_eq!(bind(opened.ep, counter, fi::FI_WRITE), 0);
        assert_eq!(bind(opened.ep, counter, fi::FI_WRITE | fi::FI_READ), INVALID, "writes have a counter");
        let elsewhere = open_domain(opened.fabric, opened.info).unwrap();
        let foreign = open_cntr(elsewhere, waitable()).unwrap();
        assert_eq!(bind(opened.ep, foreign, fi::FI_READ), INVALID, "another domain's counter");
        assert_eq!(enable(opened.ep), 0);
        assert_eq!(bind(opened.ep, counter, fi::FI_READ), INVALID, "after enable");
    });
}

#[test]
fn memory_that_cannot_hold_a_word_is_refused() {
    with_endpoint(ON, |opened| {
        let domain = opened.domain;
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let [success, error] = [0, 1].map(|index: usize| words[index].as_ptr().cast::<u8>());
        let null = ptr::null_mut();
        assert_eq!(open_cntr_ext(domain, ptr::null_mut()), Err(INVALID), "no attributes");
        assert_eq!(open_at(domain, null, error), Err(INVALID), "no address of successes");
        assert_eq!(open_at(domain, success, null), Err(INVALID), "no address of errors");
        assert_eq!(open_at(domain, success.wrapping_add(4), error), Err(INVALID), "not aligned");
        let unreachable = ptr::without_provenance_mut(8);
        assert_eq!(open_at(domain, success, unreachable), Err(-libc::EFAULT), "the CPU cannot reach it");
        let mut masked = fi::fi_efa_comp_cntr_init_attr { comp_mask: 1, ..Default::default() };
        assert_eq!(open_cntr_ext(domain, &mut masked), Err(INVALID), "an unknown field");
        let unknown = fi::fi_efa_memory_location { type_: 9, ..Default::default() };
        assert_eq!(open_cntr_ext(domain, &mut both(unknown, unknown)), Err(INVALID), "an unknown kind");
        let none = in_file(-1, 0, null);
        assert_eq!(open_cntr_ext(domain, &mut both(none, none)), Err(INVALID), "no file");
        let (fd, _) = memory_file(4096);
        let past = in_file(fd, 4096, null);
        assert_eq!(open_cntr_ext(domain, &mut both(past, past)), Err(INVALID), "past the file's end");
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let unmapped = in_file(pipe[0], 0, null);
        assert_eq!(
            open_cntr_ext(domain, &mut both(unmapped, unmapped)),
            Err(NOT_SUPPORTED),
            "a file that cannot be mapped"
        );
    });
}

#[test]
fn attributes_that_the_adapter_lacks_are_refused() {
    with_endpoint(ON, |opened| {
        let open = |attr| open_cntr(opened.domain, attr);
        let bytes = fi::fi_cntr_attr { events: fi::FI_CNTR_EVENTS_BYTES, ..waitable() };
        assert_eq!(open(bytes), Err(NOT_SUPPORTED), "bytes");
        let descriptor = fi::fi_cntr_attr { wait_obj: fi::FI_WAIT_FD, ..waitable() };
        assert_eq!(open(descriptor), Err(NOT_SUPPORTED), "a wait object");
        assert_eq!(open(fi::fi_cntr_attr { flags: 1, ..waitable() }), Err(NOT_SUPPORTED), "flags");
    });
}

/// Calls the `index`th operation after the end of a table, as a client of a newer libfabric does.
///
/// # Safety
/// `table` must be an operation table, which begins with its size.
unsafe fn call_past<T>(table: *mut T, index: usize) -> isize {
    type Operation = unsafe extern "C" fn(usize, usize, usize, usize) -> isize;
    // SAFETY: the caller's contract; this provider's tables are followed by operations.
    unsafe {
        let end = table.cast::<u8>().add(table.cast::<usize>().read()).cast::<Option<Operation>>();
        end.add(index).read().expect("an operation")(0, 0, 0, 0)
    }
}

#[test]
fn operations_of_newer_releases_return_enosys_past_the_end_of_every_table() {
    with_endpoint(ON, |opened| {
        let counter = open_cntr(opened.domain, waitable()).unwrap();
        for index in 0..8 {
            // SAFETY: the objects are open, and each member is an operation table of this provider.
            let results = unsafe {
                [
                    call_past((*opened.fabric).ops, index),
                    call_past((*opened.domain).ops, index),
                    call_past((*opened.domain).mr, index),
                    call_past((*opened.domain).fid.ops, index),
                    call_past((*opened.av).ops, index),
                    call_past((*opened.cq).ops, index),
                    call_past((*opened.ep).ops, index),
                    call_past((*opened.ep).cm, index),
                    call_past((*opened.ep).rma, index),
                    call_past((*counter).ops, index),
                ]
            };
            // An int or a ssize_t: only the low half is the result of both.
            assert!(results.iter().all(|result| *result as c_int == -libc::ENOSYS), "{index}: {results:?}");
        }
        assert_eq!(close(counter), 0);
    });
}

#[test]
fn counters_before_release_207_need_the_environment_variable() {
    with_endpoint(&[("SOFTEFA_HW_CNTR", "1"), ("SOFTEFA_PROV_VERSION", "206.0")], |opened| {
        assert_eq!(open_cntr(opened.domain, waitable()), Err(NOT_SUPPORTED));
        assert_eq!(
            open_cntr_ext(opened.domain, ptr::null_mut()),
            Err(NOT_SUPPORTED),
            "checked before the attributes"
        );
    });
}

#[test]
fn a_release_before_2_6_has_no_counters() {
    with_endpoint(&[ON[0], ON[1], ("SOFTEFA_PROV_VERSION", "205.1")], |opened| {
        assert_eq!(open_cntr(opened.domain, waitable()), Err(NOT_SUPPORTED));
    });
}

#[test]
fn a_domain_of_an_api_below_2_5_has_no_counters() {
    with_soft_adapter(&[("FI_EFA_USE_HW_CNTR", "1")], |_| {
        let client = Client::load();
        let opened = before_enable(&client);
        let old = client.library.version() < fi::fi_version(2, 5);
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let [success, error] = [0, 1].map(|index: usize| words[index].as_ptr().cast());
        let refused = |opening: Opening| opening.err().unwrap_or(0);
        let expected = if old { NOT_SUPPORTED } else { 0 };
        assert_eq!(refused(open_cntr(opened.domain, waitable())), expected);
        assert_eq!(refused(open_at(opened.domain, success, error)), expected);
    });
}

#[test]
fn hints_with_counters_match_if_counters_are_enabled() {
    with_soft_adapter(ON, |_| {
        // SAFETY: allocated by fi_dupinfo; every release's struct has the field.
        let info = Client::load().getinfo_with(|h| unsafe { (*h.info().domain_attr).cntr_cnt = 4 });
        assert!(info.is_ok());
    });
}
