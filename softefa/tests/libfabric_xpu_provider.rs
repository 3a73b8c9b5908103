//! FI_XPU through the libfabric frontend: the provider's answers to correct and incorrect calls of the host, and its use of
//! the caller's memory callbacks. libfabric_xpu.rs has what a device does.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

#[path = "libfabric_xpu/callbacks.rs"]
mod callbacks;
#[path = "libfabric_xpu/device.rs"]
mod device;
mod libfabric_common;
#[path = "libfabric_xpu/program.rs"]
mod program;

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr;

use efa_gda_sys::device::{efa_gda_queue, efa_gda_xpu_cq, efa_gda_xpu_ep};
use efa_gda_sys::fi;
use libfabric_common::queues::ALL;
use libfabric_common::{
    Client, Hints, SoftAdapter, bind, close, gda_ops, insert, name_of, open_cq, query_queues, register,
    with_soft_adapter,
};
use program::{Launch, Options, Program, client, on_2_7, pattern};

const INVALID: c_int = -libc::EINVAL;
const NOT_PROVIDED: c_int = -libc::ENOSYS;
const BUSY: c_int = -libc::EBUSY;

#[test]
fn the_callers_callbacks_provide_all_memory_of_the_device() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options { callbacks: true, ..Options::default() });
        let (from, to) = (pattern(64), vec![0; 64]);
        let launch = Launch { threshold: 64, ..Launch::new(&from, &to) };
        assert_eq!(program.run(&launch).status, vec![0; 64]);
        assert!(std::hint::black_box(&to) == &from);
        let calls = callbacks::calls();
        // Endpoint, completion queue and counter.
        assert_eq!((calls.allocated, calls.freed), (3, 0));
        // Each block of memory once, page by page, and never as I/O memory.
        assert!(
            calls.imported.iter().all(|(start, bytes, _)| start % 4096 == 0 && bytes % 4096 == 0),
            "{calls:?}"
        );
        assert!(calls.imported.iter().all(|(.., flags)| *flags == fi::FI_XPU_IMPORT_DEVICEMAP), "{calls:?}");
        let starts: BTreeSet<usize> = calls.imported.iter().map(|(start, ..)| *start).collect();
        assert_eq!(starts.len(), calls.imported.len(), "{calls:?}");
        assert_eq!(close(program.context), BUSY);
        program.close();
        assert_eq!(callbacks::calls().freed, 3);
    });
}

#[test]
fn failures_of_the_callbacks_are_returned() {
    on_2_7(&[], |client| {
        for (fail, code) in [(callbacks::Fail::Alloc, -libc::ENOMEM), (callbacks::Fail::Import, -libc::EPERM)]
        {
            callbacks::fail(Some(fail));
            let program = Program::unexported(client, &Options { callbacks: true, ..Options::default() });
            let mut exported = fi::fid_xpu_ep::default();
            assert_eq!(call!((*program.ep).ops, export_xpu, program.ep, 0, &mut exported), code);
            callbacks::fail(None);
            assert_eq!(call!((*program.ep).ops, export_xpu, program.ep, 0, &mut exported), 0);
        }
        let calls = callbacks::calls();
        // Two structs of each program's second export, and that of the queue whose memory could not be imported.
        assert_eq!((calls.allocated, calls.freed), (5, 1), "{calls:?}");
    });
}

#[test]
fn fi_getinfo_offers_fi_xpu_to_programs_that_ask_for_it() {
    on_2_7(&[], |client| {
        let plain = client.info();
        // SAFETY: infos of this API, with their attributes.
        unsafe {
            assert_eq!(((*plain).caps & fi::FI_XPU, (*(*plain).domain_attr).max_xpu_ctx_cnt), (0, 0));
            let info = client.getinfo_with(program::hints).unwrap();
            let domain = *(*info).domain_attr;
            assert_eq!((*info).caps & fi::FI_XPU, fi::FI_XPU);
            assert_eq!(((*(*info).tx_attr).caps & domain.caps) & fi::FI_XPU, fi::FI_XPU);
            assert!(domain.max_xpu_ctx_cnt > 0);
            assert_eq!(domain.mr_mode & fi::FI_MR_XPU_DESC, fi::FI_MR_XPU_DESC);
            // The example of fi_xpu(3) does not set the mode.
            let without = |hints: &mut Hints| {
                program::hints(hints);
                hints.change_mr_mode(fi::FI_MR_XPU_DESC, 0);
            };
            let info = client.getinfo_with(without).unwrap();
            assert_eq!((*(*info).domain_attr).mr_mode & fi::FI_MR_XPU_DESC, 0);
            let plain_fabric = client.getinfo_with(|hints| {
                program::hints(hints);
                hints.fabric("efa");
            });
            assert_eq!(plain_fabric.map(|_| ()), Err(-libc::ENODATA));
        }
    });
}

/// The codes of every operation of FI_XPU, on objects of a host.
fn codes(client: &Client, adapter: &SoftAdapter) -> Vec<c_int> {
    let opened = libfabric_common::Opened::new(client, |_| {});
    let (mut context, mut counter, none) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut attr = fi::fi_xpu_attr::default();
    let mut ep = ptr::null_mut();
    let opened_counter =
        call!((*opened.domain).ops, cntr_open, opened.domain, ptr::null_mut(), &mut counter, none);
    assert_eq!(opened_counter, 0);
    let (mut bytes, mut length) = ([0_u8; 32], 32);
    let region = register(opened.domain, &[0; 8], ALL).unwrap();
    let index = insert(opened.av, &name_of(opened.ep));
    let buf = bytes.as_mut_ptr().cast();
    let mut desc = fi::fi_mr_xpu_desc { buf, len: &mut length, flags: fi::FI_XPU, ctx: ptr::null_mut() };
    let command = fi::FI_GET_MR_XPU_DESC as c_int;
    assert_eq!(adapter.violation_count(), 0);
    vec![
        call!((*opened.domain).ops, xpu_ctx, opened.domain, &mut attr, &mut context, none),
        call!((*opened.domain).ops, endpoint2, opened.domain, opened.info, &mut ep, fi::FI_XPU, none),
        call!((*opened.ep).ops, export_xpu, opened.ep, 0, &mut fi::fid_xpu_ep::default()),
        call!((*opened.cq).ops, export_xpu, opened.cq, 0, &mut fi::fid_xpu_cq::default()),
        call!((*counter).ops, export_xpu, counter, 0, &mut fi::fid_xpu_cntr::default()),
        call!((*opened.av).ops, lookup2, opened.av, index, buf, &mut length, fi::FI_XPU, ptr::null_mut()),
        call!((*region.cast::<fi::fid>()).ops, control, region.cast(), command, (&raw mut desc).cast()),
    ]
}

#[test]
fn objects_of_the_host_are_not_exported() {
    with_soft_adapter(&[], |adapter| {
        let refused = [-libc::EOPNOTSUPP, -libc::EOPNOTSUPP, INVALID, INVALID, INVALID, INVALID, INVALID];
        assert_eq!(codes(&client(), adapter), refused);
    });
}

#[test]
fn a_release_before_2_7_has_none_of_the_operations() {
    let variables =
        [("SOFTEFA_PROV_VERSION", "206.0"), ("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];
    with_soft_adapter(&variables, |adapter| {
        let client = client();
        assert_eq!(codes(&client, adapter), [NOT_PROVIDED; 7]);
        assert_eq!(client.getinfo_with(program::hints).map(|_| ()), Err(-libc::ENODATA));
    });
}

#[test]
fn misuse_of_the_host_operations_is_an_error() {
    on_2_7(&[], |client| {
        let program = Program::unexported(client, &Options::default());
        let (domain, context, none) = (program.domain, program.context, ptr::null_mut());
        let mut other = ptr::null_mut();
        // Host-side reads of a queue and a counter that the device reads.
        let mut entry = fi::fi_cq_data_entry::default();
        let read = call!((*program.cq).ops, read, program.cq, (&raw mut entry).cast(), 1);
        assert_eq!(read, NOT_PROVIDED as isize);
        assert_eq!(call!((*program.cntr).ops, wait, program.cntr, 1, 0), NOT_PROVIDED);
        // FI_XPU without a context, and the memory interface of another device.
        let mut attr = fi::fi_cq_attr { flags: fi::FI_XPU, ..Default::default() };
        assert_eq!(call!((*domain).ops, cq_open, domain, &mut attr, &mut other, none), INVALID);
        let mut device = fi::fi_xpu_attr { iface: 7, ..Default::default() };
        let mut second = ptr::null_mut();
        assert_eq!(call!((*domain).ops, xpu_ctx, domain, &mut device, &mut second, none), NOT_PROVIDED);
        // Callbacks of a caller whose struct is shorter.
        let mut short = fi::fi_xpu_ops { size: 16, alloc: None, import: None, free: None };
        let mut device = fi::fi_xpu_attr { ops: &mut short, ..Default::default() };
        assert_eq!(call!((*domain).ops, xpu_ctx, domain, &mut device, &mut second, none), INVALID);
        // Objects of another context.
        let mut device = fi::fi_xpu_attr::default();
        assert_eq!(call!((*domain).ops, xpu_ctx, domain, &mut device, &mut second, none), 0);
        let mut attr = fi::fi_cq_attr { flags: fi::FI_XPU, xpu_ctx: second, ..Default::default() };
        assert_eq!(call!((*domain).ops, cq_open, domain, &mut attr, &mut other, none), 0);
        // SAFETY: the program's info, with its attributes.
        unsafe { (*(*program.info).ep_attr).xpu_ctx = context };
        let mut ep = ptr::null_mut();
        assert_eq!(call!((*domain).ops, endpoint2, domain, program.info, &mut ep, fi::FI_XPU, none), 0);
        assert_eq!(bind(ep, other, fi::FI_TRANSMIT | fi::FI_RECV), INVALID);
        // Before enable.
        assert_eq!(call!((*ep).ops, export_xpu, ep, 0, &mut fi::fid_xpu_ep::default()), INVALID);
        // An endpoint of the host takes no queue of a device.
        let host = libfabric_common::open_ep(domain, program.info).unwrap();
        assert_eq!(bind(host, other, fi::FI_TRANSMIT | fi::FI_RECV), INVALID);
        assert_eq!(bind(ep, open_cq(domain, 64).unwrap(), fi::FI_TRANSMIT | fi::FI_RECV), 0);
        // Short buffers are told the length.
        let (mut bytes, mut length) = ([0_u8; 8], 3);
        let index = insert(program.av, &name_of(program.ep));
        let buf = bytes.as_mut_ptr().cast();
        let lookup = |length: &mut usize| {
            call!((*program.av).ops, lookup2, program.av, index, buf, length, fi::FI_XPU, context)
        };
        assert_eq!((lookup(&mut length), length), (-(fi::FI_ETOOSMALL as c_int), 8));
        assert_eq!((lookup(&mut length), length), (0, 8));
    });
}

#[test]
fn the_gda_operations_return_the_queues_that_are_exported() {
    on_2_7(&[], |client| {
        let Program { exported: (ep, cq, _), domain, ep: endpoint, cq: queue, .. } =
            Program::new(client, &Options::default());
        // SAFETY: softefa's structs in memory of the host, which stay allocated while the objects are open.
        let (efa_gda_queue { sq, rq, .. }, cq) = unsafe {
            let ep = ep.fid.prov_ctx as *const efa_gda_xpu_ep;
            ((*ep).queue, &*(cq.fid.prov_ctx as *const efa_gda_xpu_cq))
        };
        let (send, receive) = query_queues(domain, endpoint).unwrap();
        let mut completions = fi::fi_efa_cq_attr::default();
        assert_eq!(call!(gda_ops(domain).unwrap(), query_cq, queue, &mut completions), 0);
        let of =
            |it: fi::fi_efa_wq_attr| (it.buffer, it.doorbell, it.entry_size, it.num_entries, it.max_batch);
        assert_eq!((sq.buffer, sq.doorbell, sq.entry_size, sq.num_entries, sq.max_batch), of(send));
        assert_eq!((rq.buffer, rq.doorbell, rq.entry_size, rq.num_entries, rq.max_batch), of(receive));
        assert_eq!(
            (cq.buffer, cq.entry_size, cq.num_entries),
            (completions.buffer.cast_const(), completions.entry_size, completions.num_entries)
        );
    });
}
