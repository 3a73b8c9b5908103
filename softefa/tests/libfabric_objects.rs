//! Objects of the libfabric frontend: the order of opening, binding and closing, and the calls that are refused.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::c_int;
use std::ptr;

use efa_gda_sys::fi;
use libfabric_common::{
    Client, Opened, SoftAdapter, bind, close, enable, gda_ops, insert, name_of, open_av, open_cq,
    open_domain, open_ep, register, with_opened, with_soft_adapter,
};

const BUSY: c_int = -libc::EBUSY;
const INVALID: c_int = -libc::EINVAL;
const NOT_PROVIDED: c_int = -libc::ENOSYS;
const BOTH: u64 = fi::FI_TRANSMIT | fi::FI_RECV;

/// Runs `body` with a domain and its parents, for tests that need no endpoint.
fn with_domain(body: impl FnOnce(*mut fi::fi_info, *mut fi::fid_fabric, *mut fi::fid_domain)) {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let info = client.info();
        let fabric = client.fabric(info).unwrap();
        body(info, fabric, open_domain(fabric, info).unwrap());
    });
}

#[test]
fn closing_every_object_frees_it_in_the_adapter() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        // More rounds than the adapter has protection domains, completion queues or queue pairs.
        for _ in 0..1100 {
            let opened = Opened::new(&client, |h| (h.tx().size, h.rx().size) = (16, 16));
            let address = name_of(opened.ep);
            insert(opened.av, &address);
            let region = register(opened.domain, &[0; 8], fi::FI_SEND).unwrap();
            assert_eq!(close(region), 0);
            opened.close(&client);
        }
        assert_eq!(SoftAdapter::loaded().adapters(), 1);
    });
}

#[test]
fn a_parent_is_busy_while_a_child_is_open() {
    with_domain(|info, fabric, domain| {
        assert_eq!(close(fabric), BUSY, "fabric with a domain");
        let av = open_av(domain).unwrap();
        assert_eq!(close(domain), BUSY, "domain with an address vector");
        assert_eq!(close(av), 0);
        let cq = open_cq(domain, 64).unwrap();
        assert_eq!(close(domain), BUSY, "domain with a completion queue");
        assert_eq!(close(cq), 0);
        let memory = [0_u64; 8];
        let region = register(domain, &memory, 0).unwrap();
        assert_eq!(close(domain), BUSY, "domain with a region");
        assert_eq!(close(region), 0);
        let ep = open_ep(domain, info).unwrap();
        assert_eq!(close(domain), BUSY, "domain with an endpoint");
        assert_eq!(close(ep), 0);
        assert_eq!(close(domain), 0);
        assert_eq!(close(fabric), 0);
    });
}

#[test]
fn a_null_pointer_for_a_new_object_is_refused_and_leaves_no_object_open() {
    with_domain(|info, fabric, domain| {
        let context = ptr::null_mut();
        let (mut av, mut cq) = (fi::fi_av_attr::default(), fi::fi_cq_attr { size: 64, ..Default::default() });
        let memory = [0_u64; 8];
        let start = memory.as_ptr().cast();
        assert_eq!(call!((*fabric).ops, domain, fabric, info, ptr::null_mut(), context), INVALID);
        assert_eq!(call!((*domain).ops, av_open, domain, &mut av, ptr::null_mut(), context), INVALID);
        assert_eq!(call!((*domain).ops, cq_open, domain, &mut cq, ptr::null_mut(), context), INVALID);
        assert_eq!(call!((*domain).ops, endpoint, domain, info, ptr::null_mut(), context), INVALID);
        let region = call!((*domain).mr, reg, domain.cast(), start, 64, 0, 0, 0, 0, ptr::null_mut(), context);
        assert_eq!(region, INVALID);
        assert_eq!((close(domain), close(fabric)), (0, 0));
    });
}

#[test]
fn a_bound_object_is_busy_until_the_endpoint_is_closed() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        assert_eq!(close(opened.cq), BUSY);
        assert_eq!(close(opened.av), BUSY);
        opened.close(&client);
    });
}

#[test]
fn enable_needs_a_completion_queue_for_each_direction() {
    with_domain(|info, _, domain| {
        let cq = open_cq(domain, 64).unwrap();
        let none = open_ep(domain, info).unwrap();
        assert_eq!(enable(none), -(fi::FI_ENOCQ as c_int));
        let half = open_ep(domain, info).unwrap();
        assert_eq!(bind(half, cq, fi::FI_TRANSMIT), 0);
        assert_eq!(enable(half), -(fi::FI_ENOCQ as c_int));
    });
}

#[test]
fn a_bind_of_an_unsuitable_object_is_refused() {
    with_domain(|info, fabric, domain| {
        let (cq, av, ep) =
            (open_cq(domain, 64).unwrap(), open_av(domain).unwrap(), open_ep(domain, info).unwrap());
        assert_eq!(bind(ep, cq, 0), -(fi::FI_EBADFLAGS as c_int), "no direction");
        assert_eq!(bind(ep, domain, 0), INVALID, "a domain");
        assert_eq!(bind::<fi::fid_cq>(ep, ptr::null_mut(), BOTH), INVALID, "a null object");
        let other = open_domain(fabric, info).unwrap();
        assert_eq!(bind(ep, open_cq(other, 64).unwrap(), BOTH), INVALID, "another domain's queue");
        assert_eq!(bind(ep, open_av(other).unwrap(), 0), INVALID, "another domain's addresses");
        assert_eq!(bind(ep, cq, BOTH), 0);
        assert_eq!(bind(ep, cq, fi::FI_RECV), INVALID, "a second queue for a direction");
        assert_eq!(bind(ep, av, 0), 0);
        assert_eq!(bind(ep, av, 0), INVALID, "a second address vector");
    });
}

#[test]
fn a_second_enable_is_refused() {
    with_opened(&[], |opened| {
        assert_eq!(enable(opened.ep), -(fi::FI_EOPBADSTATE as c_int));
    });
}

#[test]
fn an_address_has_the_gid_and_after_enable_the_queue_pair() {
    with_opened(&[], |opened| {
        let fresh = name_of(open_ep(opened.domain, opened.info).unwrap());
        let enabled = name_of(opened.ep);
        assert_eq!(fresh[..16], enabled[..16]);
        assert_eq!(fresh[16..], [0; 16]);
        assert_ne!(enabled[20..24], [0; 4], "a queue key");
        assert_eq!(enabled[24..], [0; 8]);
    });
}

#[test]
fn getname_with_a_short_buffer_returns_the_length() {
    with_opened(&[], |opened| {
        let mut length = 0;
        let code = call!((*opened.ep).cm, getname, opened.ep.cast(), ptr::null_mut(), &mut length);
        assert_eq!((code, length), (-(fi::FI_ETOOSMALL as c_int), 32));
    });
}

#[test]
fn an_address_vector_looks_up_inserted_addresses() {
    with_opened(&[], |opened| {
        let (av, address) = (opened.av, name_of(opened.ep));
        let mut other = address;
        other[16] ^= 1;
        assert_eq!((insert(av, &address), insert(av, &other), insert(av, &address)), (0, 1, 0));

        let (mut found, mut length) = ([0_u8; 32], 32);
        assert_eq!(call!((*av).ops, lookup, av, 1, found.as_mut_ptr().cast(), &mut length), 0);
        assert_eq!(found, other);
        assert_eq!(call!((*av).ops, remove, av, &mut 1, 1, 0), 0);
        assert_eq!(call!((*av).ops, lookup, av, 1, found.as_mut_ptr().cast(), &mut length), INVALID);
        assert_eq!(call!((*av).ops, remove, av, &mut 1, 1, 0), INVALID);
        assert_eq!(insert(av, &other), 1, "a free index is used again");
    });
}

#[test]
fn an_address_without_a_gid_is_not_inserted() {
    with_opened(&[], |opened| {
        let addresses = [name_of(opened.ep), [0; 32], name_of(opened.ep)];
        let mut indices = [0; 3];
        let inserted = call!(
            (*opened.av).ops,
            insert,
            opened.av,
            addresses.as_ptr().cast(),
            3,
            indices.as_mut_ptr(),
            0,
            ptr::null_mut()
        );
        assert_eq!(inserted, 1);
        assert_eq!(indices, [0, fi::FI_ADDR_NOTAVAIL, fi::FI_ADDR_NOTAVAIL]);
    });
}

#[test]
fn straddr_writes_libfabrics_text_of_an_address() {
    with_opened(&[], |opened| {
        let mut address = [0_u8; 32];
        (address[0], address[1], address[15], address[16], address[20]) = (0xfe, 0x80, 1, 7, 9);
        let (mut text, mut length) = ([0_u8; 64], 64);
        let av = opened.av;
        let written =
            call!((*av).ops, straddr, av, address.as_ptr().cast(), text.as_mut_ptr().cast(), &mut length);
        assert_eq!(written.cast(), text.as_ptr());
        assert_eq!(&text[..length], b"fi_addr_efa://[fe80::1]:7:9\0");
    });
}

#[test]
fn a_region_has_an_rkey_and_an_lkey_of_24_bits() {
    with_domain(|_, _, domain| {
        let memory = [0_u64; 8];
        let (first, second) = (register(domain, &memory, 0).unwrap(), register(domain, &memory, 0).unwrap());
        // SAFETY: open regions.
        let keys = unsafe { ((*first).key, (*second).key) };
        assert!(keys.0 <= u32::MAX.into() && keys.0 != keys.1);
        // SAFETY: as above.
        assert!(!unsafe { (*first).mem_desc }.is_null());
        let ops = gda_ops(domain).unwrap();
        let lkey = call!(ops, get_mr_lkey, first);
        assert!(lkey < 1 << 24 && lkey != call!(ops, get_mr_lkey, second));
        assert_eq!(call!(ops, get_mr_lkey, ptr::null_mut()), fi::FI_KEY_NOTAVAIL);
    });
}

#[test]
fn memory_that_cannot_be_registered_is_refused() {
    with_domain(|_, _, domain| {
        let (fid, none) = (domain.cast::<fi::fid>(), ptr::null_mut());
        let memory = [0_u64; 8];
        let mut region = ptr::null_mut();
        let reg = |buf: *const u64, flags: u64, out: *mut *mut fi::fid_mr| {
            call!((*domain).mr, reg, fid, buf.cast(), 64, 0, 0, 0, flags, out, none)
        };
        assert_eq!(reg(ptr::null(), 0, &mut region), INVALID, "no memory");
        assert_eq!(reg(memory.as_ptr(), 1, &mut region), -(fi::FI_EBADFLAGS as c_int), "unknown flags");
        let part = fi::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: 32 };
        let parts = [part, part];
        let code = call!((*domain).mr, regv, fid, parts.as_ptr(), 2, 0, 0, 0, 0, &mut region, none);
        assert_eq!(code, INVALID, "two segments");
        assert_eq!(call!((*domain).mr, regv, fid, parts.as_ptr(), 1, 0, 0, 0, 0, &mut region, none), 0);
        let mut attr = fi::fi_mr_attr { iov_count: 1, ..Default::default() };
        attr.__bindgen_anon_1.mr_iov = parts.as_ptr();
        assert_eq!(call!((*domain).mr, regattr, fid, &attr, 0, &mut region), 0);
    });
}

#[test]
fn operations_that_are_not_provided_return_errors() {
    with_opened(&[("FI_EFA_USE_HW_CNTR", "0")], |opened| {
        let (ep, domain, none) = (opened.ep, opened.domain, ptr::null_mut());
        let mut byte = 0_u8;
        let data = (&raw mut byte).cast();
        assert_eq!(call!((*ep).msg, send, ep, data, 1, none, 0, none), NOT_PROVIDED as isize);
        assert_eq!(call!((*ep).rma, write, ep, data, 1, none, 0, 0, 0, none), NOT_PROVIDED as isize);
        let option = -libc::ENOPROTOOPT;
        assert_eq!(call!((*ep).ops, getopt, ep.cast(), 0, 0, data, &mut 0), option);
        assert_eq!(call!((*ep).ops, setopt, ep.cast(), 0, 0, data, 1), option);
        let mut attr = fi::fi_cq_attr { wait_obj: fi::FI_WAIT_FD, ..Default::default() };
        let mut cq = ptr::null_mut();
        assert_eq!(call!((*domain).ops, cq_open, domain, &mut attr, &mut cq, none), NOT_PROVIDED);
        let mut counter = ptr::null_mut();
        let code = call!((*domain).ops, cntr_open, domain, &mut Default::default(), &mut counter, none);
        assert_eq!(code, -libc::EOPNOTSUPP);
    });
}

#[test]
fn a_domain_needs_a_known_name_and_local_registration() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let info = client.info();
        let fabric = client.fabric(info).unwrap();
        // SAFETY: an info with its attributes; the name is restored, so that libfabric frees it.
        unsafe {
            let attr = (*info).domain_attr;
            let name = std::mem::replace(&mut (*attr).name, libfabric_common::libc_string("softefa7-rdm"));
            assert_eq!(open_domain(fabric, info), Err(-libc::ENODEV));
            libc::free((*attr).name.cast());
            (*attr).name = name;
            (*attr).mr_mode &= !fi::FI_MR_LOCAL;
            assert_eq!(open_domain(fabric, info), Err(-libc::ENODATA));
        }
    });
}

/// Reads an option that is a number of bytes or retries.
fn size_option(ep: *mut fi::fid_ep, option: c_int) -> Result<usize, c_int> {
    let (mut value, mut length) = (0_usize, size_of::<usize>());
    // SAFETY: an open endpoint; value and length are locals.
    let code = unsafe {
        let getopt = (*(*ep).ops).getopt.unwrap();
        getopt(ep.cast(), fi::FI_OPT_ENDPOINT as c_int, option, (&raw mut value).cast(), &raw mut length)
    };
    if code == 0 { Ok(value) } else { Err(code) }
}

/// `FI_OPT_EFA_RNR_RETRY`.
const RNR_RETRY: c_int = -(0xefa << 16);

fn set_retries(ep: *mut fi::fid_ep, retries: usize) -> c_int {
    // SAFETY: an open endpoint, and a value of the passed length.
    unsafe {
        let setopt = (*(*ep).ops).setopt.unwrap();
        let value = (&raw const retries).cast();
        setopt(ep.cast(), fi::FI_OPT_ENDPOINT as c_int, RNR_RETRY, value, size_of::<usize>())
    }
}

#[test]
fn endpoint_options_report_the_largest_sizes() {
    with_soft_adapter(&[("SOFTEFA_MAX_MSG_SIZE", "4096")], |_| {
        let client = Client::load();
        let opened = Opened::new(&client, |_| ());
        assert_eq!(
            [12, 14, 16, 18].map(|option| size_option(opened.ep, option)),
            [4096, 1 << 30, 32, 0].map(Ok)
        );
        assert_eq!(size_option(opened.ep, 13), Err(-libc::ENOPROTOOPT), "tagged");
        opened.close(&client);
    });
}

#[test]
fn retries_can_be_set_before_enable_only() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        let opened = Opened::new(&client, |_| ());
        let second = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(size_option(second, RNR_RETRY), Ok(7), "no limit");
        assert_eq!((set_retries(second, 2), size_option(second, RNR_RETRY)), (0, Ok(2)));
        assert_eq!(set_retries(opened.ep, 2), -libc::EINVAL, "enabled");
        assert_eq!(close(second), 0);
        opened.close(&client);
    });
}
