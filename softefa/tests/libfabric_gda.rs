//! The operations that expose queues, through an installed libfabric: the result of each, the releases that have it,
//! and injected defects.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::time::Duration;

use efa_gda_sys::fi;
use efa_gda_test_support::child::{Child, End};
use efa_gda_test_support::soft::{on_provider, provider_folder};
use libfabric_common::queues::{Poller, external, memory_file, open_external};
use libfabric_common::{
    Client, Opened, gda_ops, open_domain, open_ep, open_ops, query_queues, with_opened, with_soft_adapter,
};

const INVALID: c_int = -libc::EINVAL;

#[test]
fn queues_have_the_geometry_of_the_info() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let opened = Opened::new(&client, |h| (h.tx().size, h.rx().size) = (256, 512));
        let (sq, rq) = opened.queues();
        assert_eq!((sq.entry_size, sq.num_entries), (64, 256));
        // 512 receives of up to 4 segments.
        assert_eq!((rq.entry_size, rq.num_entries, rq.max_batch), (16, 2048, 2048));
        assert!(sq.max_batch >= 1 && !sq.buffer.is_null());
        assert!(sq.doorbell.is_aligned() && rq.doorbell.is_aligned() && sq.doorbell != rq.doorbell);
        let cq = Poller::new(&opened).attr;
        assert_eq!((cq.entry_size, cq.num_entries), (32, 1024));

        let (wide_sq, _) = Opened::new(&client, |h| h.tx().inject_size = 80).queues();
        assert_eq!((wide_sq.entry_size, wide_sq.num_entries), (128, 2048));
    });
}

#[test]
fn queries_out_of_order_return_errors() {
    with_opened(&[("FI_EFA_USE_HW_CNTR", "0")], |opened| {
        let ops = gda_ops(opened.domain).unwrap();
        let ep = open_ep(opened.domain, opened.info).unwrap();
        let before = query_queues(opened.domain, ep).map(|_| ());
        assert_eq!(before, Err(-(fi::FI_EOPBADSTATE as c_int)), "before enable");
        let (mut handle, mut number, mut key) = (0, 0, 0);
        let mut query = |ep, index| call!(ops, query_addr, ep, index, &mut handle, &mut number, &mut key);
        assert_eq!(query(ep, 0), -(fi::FI_ENOAV as c_int), "before an address vector is bound");
        assert_eq!(query(opened.ep, 12), INVALID, "an unknown address");
        assert_eq!(query(opened.ep, fi::FI_ADDR_NOTAVAIL), INVALID, "no address");
        assert_eq!(query(ptr::null_mut(), 0), INVALID, "no endpoint");
        assert_eq!(call!(ops, query_cq, opened.cq, ptr::null_mut()), INVALID, "a null result");
        assert_eq!(
            call!(ops, query_cq, opened.ep.cast(), &mut Default::default()),
            INVALID,
            "not a completion queue"
        );
        let counter = call!(
            ops,
            cntr_open_ext,
            opened.domain,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut()
        );
        assert_eq!(counter, -libc::EOPNOTSUPP, "counters");
    });
}

#[test]
fn operations_open_by_name_if_the_release_has_them() {
    let releases = [
        ("207.0", 0, 0),
        ("206.0", 0, 0),
        ("205.1", 0, INVALID),
        ("203.0", 0, INVALID),
        ("202.0", INVALID, INVALID),
    ];
    for (version, gda, feature) in releases {
        with_soft_adapter(&[("SOFTEFA_PROV_VERSION", version)], |_| {
            let client = Client::load();
            let opened = Opened::new(&client, |_| {});
            let code = |result: Result<*const c_void, c_int>| result.err().unwrap_or(0);
            assert_eq!(code(open_ops(opened.domain, fi::FI_EFA_GDA_OPS)), gda, "GDA at {version}");
            assert_eq!(code(open_ops(opened.fabric, fi::FI_EFA_FEATURE_OPS)), feature, "{version}");
            assert_eq!(code(open_ops(opened.domain, fi::FI_EFA_DOMAIN_OPS)), 0, "domain at {version}");
            assert_eq!(code(open_ops(opened.domain, b"efa gdr ops\0")), INVALID, "unknown");
            assert_eq!(
                code(open_ops(opened.domain, fi::FI_EFA_FEATURE_OPS)),
                INVALID,
                "an operation of the fabric"
            );
        });
    }
}

#[test]
fn plain_efa_has_no_gda_operations() {
    with_soft_adapter(&[("SOFTEFA_FABRICS", "efa")], |_| {
        let client = Client::load();
        let info = client.getinfo_with(|h| h.fabric("efa")).unwrap();
        let domain = open_domain(client.fabric(info).unwrap(), info).unwrap();
        assert_eq!(gda_ops(domain).map(|_| ()), Err(-libc::EOPNOTSUPP));
    });
}

/// Reads the sixth pointer of the table, as a client does that does not check the version.
fn sixth_pointer(domain: *mut fi::fid_domain) -> *const c_void {
    let table = gda_ops(domain).unwrap().cast::<*const c_void>();
    // SAFETY: the default handler is restored because libpsm's exits with 1 and hides the signal. The read is unsound
    // on purpose: the test observes its result.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        table.add(5).read_volatile()
    }
}

#[test]
fn reading_past_a_table_of_five_pointers_faults() {
    let Some(five) = Child::of_this_test() else {
        let opened = Opened::new(&Client::load(), |_| {});
        std::hint::black_box(sixth_pointer(opened.domain));
        return;
    };
    let folder = provider_folder();
    let end =
        |child, version| on_provider(child, &folder).variables(&[("SOFTEFA_PROV_VERSION", version)]).end();
    let five = end(five, "205.1");
    assert!(matches!(&five, End::Failed(status, _) if status.signal() == Some(libc::SIGSEGV)), "{five:?}");
    let six = end(Child::of_this_test().unwrap(), "206.0");
    assert!(matches!(six, End::Passed(_)), "{six:?}");
}

#[test]
fn fi_cq_read_refuses_a_queue_in_memory_without_an_address() {
    with_opened(&[], |opened| {
        let (fd, _) = memory_file(64 * 32);
        let attr = fi::fi_cq_attr { size: 64, ..Default::default() };
        let cq = open_external(opened.domain, attr, external(fd, ptr::null_mut(), 64 * 32)).unwrap();
        let mut entry = 0_u64;
        let read = call!((*cq).ops, read, cq, (&raw mut entry).cast(), 1);
        assert_eq!(read, -libc::ENOSYS as isize);
    });
}

#[test]
fn memory_that_cannot_hold_a_queue_is_refused() {
    with_opened(&[], |opened| {
        let (fd, place) = memory_file(64 * 32);
        let attr = fi::fi_cq_attr { size: 64, ..Default::default() };
        let open = |attr, memory| open_external(opened.domain, attr, memory).map(|_| ());
        let memory = external(fd, place, 64 * 32);
        let fd_wait = fi::fi_cq_attr { wait_obj: fi::FI_WAIT_FD, ..attr };
        assert_eq!(open(fd_wait, memory), Err(-libc::ENOSYS), "a wait object");
        assert_eq!(open(attr, fi::fi_efa_cq_init_attr { flags: 0, ..memory }), Err(INVALID), "no flag");
        assert_eq!(open(attr, external(fd, place, 0)), Err(INVALID), "no length");
        assert_eq!(open(attr, external(-1, place, 64 * 32)), Err(INVALID), "no file");
        assert_eq!(open(attr, external(fd, place, 1 << 20)), Err(INVALID), "longer than the file");
        assert_eq!(open(fi::fi_cq_attr { size: 65, ..attr }, memory), Err(INVALID), "too small");
    });
}

#[test]
fn with_the_defect_no_gda_the_operations_do_not_open() {
    with_opened(&[("SOFTEFA_BREAK", "no-gda")], |opened| {
        assert_eq!(gda_ops(opened.domain).map(|_| ()), Err(INVALID));
    });
}

#[test]
fn an_injected_defect_makes_getinfo_crash_or_hang() {
    let Some(crashes) = Child::of_this_test() else {
        let _ = Client::load().getinfo_with(|_| {});
        return;
    };
    let folder = provider_folder();
    let crashed = on_provider(crashes, &folder).variables(&[("SOFTEFA_BREAK", "crash-getinfo")]).end();
    assert!(
        matches!(&crashed, End::Failed(status, _) if status.signal() == Some(libc::SIGSEGV)),
        "{crashed:?}"
    );
    let hangs = on_provider(Child::of_this_test().unwrap(), &folder).limit(Duration::from_secs(2));
    let hung = hangs.variables(&[("SOFTEFA_BREAK", "hang-getinfo")]).end();
    assert!(matches!(hung, End::TimedOut(_)), "{hung:?}");
}
