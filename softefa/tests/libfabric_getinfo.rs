//! `fi_getinfo` of the provider through an installed libfabric: the hints that match, and the infos that it returns. `names`
//! frees its list; the other lists end with the test's process.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::CStr;

use efa_gda_sys::fi;
use libfabric_common::{Change, Client, Hints, with_soft_adapter};

const NO_DATA: i32 = -libc::ENODATA;

fn text(string: *const std::ffi::c_char) -> String {
    assert!(!string.is_null());
    // SAFETY: a string of the info under test.
    unsafe { CStr::from_ptr(string) }.to_str().unwrap().to_owned()
}

/// The names of the infos in a list: fabric and domain.
fn names(client: &Client, list: *mut fi::fi_info) -> Vec<(String, String)> {
    let mut names = Vec::new();
    let mut info = list;
    while !info.is_null() {
        // SAFETY: an info of the list, with its attributes.
        unsafe {
            names.push((text((*(*info).fabric_attr).name), text((*(*info).domain_attr).name)));
            info = (*info).next;
        }
    }
    // SAFETY: a list of this library, not used again.
    unsafe { client.library.freeinfo(list) };
    names
}

fn direct(adapter: usize) -> (String, String) {
    ("efa-direct".into(), format!("softefa{adapter}-rdm"))
}

#[test]
fn the_usual_hints_return_one_adapter_on_efa_direct() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        assert_eq!(names(&client, client.info()), [direct(0)]);
    });
}

#[test]
fn the_provider_replaces_the_built_in_provider_of_its_name() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let info = client.info();
        // SAFETY: an info with its attributes.
        let fabric = unsafe { *(*info).fabric_attr };
        assert_eq!(text(fabric.prov_name), "efa");
        assert_eq!(fabric.prov_version, fi::fi_version(207, 0));
        assert_eq!(fabric.api_version, client.library.api_version());
    });
}

#[test]
fn an_info_describes_the_adapter() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let list = client.info();
        // SAFETY: an info with all its attributes.
        let (info, tx, ep) = unsafe { (*list, *(*list).tx_attr, *(*list).ep_attr) };
        assert_eq!(info.addr_format, fi::FI_ADDR_EFA);
        assert_eq!(info.src_addrlen, 32);
        assert_eq!((tx.inject_size, tx.size, tx.iov_limit, tx.rma_iov_limit), (32, 4096, 2, 1));
        assert_eq!((ep.type_, ep.protocol, ep.max_msg_size), (fi::FI_EP_RDM, fi::FI_PROTO_EFA, 1 << 30));
        // SAFETY: as above, and the nic with its attributes.
        let (mr_mode, device) = unsafe { ((*(*list).domain_attr).mr_mode, *(*info.nic).device_attr) };
        assert_eq!(mr_mode, fi::FI_MR_LOCAL | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_VIRT_ADDR);
        assert_eq!(text(device.name), "softefa0");
        assert_eq!(text(device.vendor_id), "0x1d0f");
        assert_eq!(text(device.device_id), "0xefa2");
        assert_eq!(text(device.driver), "softefa");
    });
}

#[test]
fn an_info_can_be_copied_and_used_as_hints() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let info = client.info();
        // SAFETY: an info of this library; the copy is freed below.
        let copy = unsafe { client.library.dupinfo(info) };
        assert!(!copy.is_null());
        // SAFETY: both infos have their names.
        unsafe {
            assert_eq!(text((*(*info).domain_attr).name), text((*(*copy).domain_attr).name));
            assert_eq!(text((*(*(*copy).nic).device_attr).name), "softefa0");
            assert_ne!((*copy).nic, (*info).nic, "each info closes a separate nic");
        }
        let again = client.getinfo(&Hints(copy)).expect("an info can be used as hints");
        assert_eq!(names(&client, again), [direct(0)]);
        // SAFETY: infos of this library, not used again.
        unsafe {
            client.library.freeinfo(copy);
            client.library.freeinfo(info);
        }
    });
}

/// Changes to the usual hints after which no adapter matches.
const REFUSED: &[(&str, Change)] = &[
    ("mr_mode 0", |h| h.change_mr_mode(!0, 0)),
    ("no FI_MR_LOCAL", |h| h.change_mr_mode(fi::FI_MR_LOCAL, 0)),
    ("no FI_MR_PROV_KEY", |h| h.change_mr_mode(fi::FI_MR_PROV_KEY, 0)),
    ("no FI_MR_ALLOCATED", |h| h.change_mr_mode(fi::FI_MR_ALLOCATED, 0)),
    ("no FI_MR_VIRT_ADDR", |h| h.change_mr_mode(fi::FI_MR_VIRT_ADDR, 0)),
    ("FI_TAGGED", |h| h.info().caps |= fi::FI_TAGGED),
    ("FI_ATOMIC", |h| h.info().caps |= fi::FI_ATOMIC),
    ("FI_HMEM without a GPU library", |h| h.info().caps |= fi::FI_HMEM),
    ("message order", |h| h.tx().msg_order = 1 << 9),
    ("another endpoint type", |h| h.endpoint_type(fi::FI_EP_MSG)),
    ("another address format", |h| h.info().addr_format = 1),
    ("another fabric", |h| h.fabric("efa")),
    ("another domain", |h| h.domain("rdmap0s0-rdm")),
    ("more inline bytes than an entry has", |h| h.tx().inject_size = 81),
    ("a deeper send queue", |h| h.tx().size = 8192),
    ("longer messages", |h| h.max_msg_size((1 << 30) + 1)),
];

/// Changes to the usual hints after which the adapter still matches.
const ACCEPTED: &[(&str, Change)] = &[
    ("no capabilities", |h| h.info().caps = 0),
    ("every capability", |h| h.info().caps |= fi::FI_SOURCE | fi::FI_LOCAL_COMM | fi::FI_REMOTE_COMM),
    ("both context modes", |h| h.info().mode |= fi::FI_CONTEXT),
    ("FI_RX_CQ_DATA", |h| h.info().mode |= fi::FI_RX_CQ_DATA),
    ("a small send queue", |h| h.tx().size = 16),
];

#[test]
fn hints_that_efa_direct_cannot_satisfy_return_no_data() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        for (what, change) in REFUSED {
            assert_eq!(client.getinfo_with(change).map(|_| ()), Err(NO_DATA), "{what}");
        }
    });
}

#[test]
fn hints_that_request_less_return_an_info() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        for (what, change) in ACCEPTED {
            let list = client.getinfo_with(change).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(names(&client, list), [direct(0)], "{what}");
        }
    });
}

#[test]
fn without_rma_max_msg_size_is_one_send() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let list = client.getinfo_with(|h| h.info().caps = fi::FI_MSG).unwrap();
        // SAFETY: an info with its attributes.
        assert_eq!(unsafe { (*(*list).ep_attr).max_msg_size }, 8928);
    });
}

#[test]
fn the_environment_sets_the_number_of_adapters() {
    with_soft_adapter(&[("SOFTEFA_ADAPTERS", "3")], |_| {
        let client = Client::load();
        assert_eq!(names(&client, client.info()), [direct(0), direct(1), direct(2)]);
    });
}

#[test]
fn with_softefa_hmem_fi_hmem_needs_fi_mr_hmem() {
    with_soft_adapter(&[("SOFTEFA_HMEM", "1")], |_| {
        let client = Client::load();
        let without = client.getinfo_with(|h| h.info().caps |= fi::FI_HMEM);
        assert_eq!(without.map(|_| ()), Err(NO_DATA));
        let list = client
            .getinfo_with(|h| {
                h.info().caps |= fi::FI_HMEM;
                h.change_mr_mode(0, fi::FI_MR_HMEM);
            })
            .unwrap();
        // SAFETY: an info with its attributes.
        let (caps, mode) = unsafe { ((*list).caps, (*(*list).domain_attr).mr_mode) };
        assert!(caps & fi::FI_HMEM != 0 && mode & fi::FI_MR_HMEM != 0);
    });
}

#[test]
fn an_invalid_environment_variable_makes_getinfo_fail() {
    with_soft_adapter(&[("SOFTEFA_ADAPTERS", "many")], |_| {
        assert_eq!(Client::load().getinfo_with(|_| {}).map(|_| ()), Err(NO_DATA))
    });
}

#[test]
fn without_unsolicited_writes_rma_needs_fi_rx_cq_data() {
    with_soft_adapter(&[("SOFTEFA_UNSOLICITED_WRITE", "0")], |_| {
        let client = Client::load();
        let refused = client.getinfo_with(|hints| hints.info().mode = fi::FI_CONTEXT2);
        assert_eq!(refused.unwrap_err(), NO_DATA);
        let info =
            client.getinfo_with(|hints| hints.info().mode = fi::FI_CONTEXT2 | fi::FI_RX_CQ_DATA).unwrap();
        // SAFETY: an info of the returned list.
        assert_ne!(unsafe { (*info).mode } & fi::FI_RX_CQ_DATA, 0);
    });
}

#[test]
fn without_unsolicited_writes_an_info_without_rma_has_messages_only() {
    with_soft_adapter(&[("SOFTEFA_UNSOLICITED_WRITE", "0")], |_| {
        let client = Client::load();
        let info = client.getinfo_with(|hints| {
            hints.info().mode = fi::FI_CONTEXT2;
            hints.info().caps &= !fi::FI_RMA;
        });
        let info = info.unwrap();
        // SAFETY: an info of the returned list.
        assert_eq!(unsafe { (*info).caps } & fi::FI_RMA, 0);
    });
}
