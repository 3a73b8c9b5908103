//! Writes that a test posts into exposed queues, through an installed libfabric: the copied bytes, the completions, and
//! the reported errors.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::{CStr, c_int};
use std::ptr;

use efa_gda_sys::fi;
use efa_gda_wire::{CompletionStatus, Operation, RemoteKey};
use libfabric_common::queues::{ALL, Poller, Poster, memory, memory_file, wait, write_to_self};
use libfabric_common::{
    Client, Opened, SoftAdapter, bind, close, enable, name_of, open_cq, open_ep, with_opened,
    with_soft_adapter,
};

#[test]
fn a_posted_write_copies_the_bytes() {
    with_opened(&[], |opened| {
        let (from, to) = (memory(512, 0x5a), memory(512, 0));
        let request = write_to_self(&opened, &from, &to, 77);
        Poster::new(&opened, 0).post(&request);
        let completion = Poller::new(&opened).next();
        assert_eq!((completion.id.get(), completion.status), (77, CompletionStatus::Ok));
        assert_eq!(std::hint::black_box(&to), &from);
        assert_eq!(SoftAdapter::loaded().violation_count(), 0);
    });
}

#[test]
fn fi_cq_read_returns_a_completion_once() {
    with_opened(&[], |opened| {
        let (from, to) = (memory(1, 1), memory(1, 0));
        Poster::new(&opened, 0).post(&write_to_self(&opened, &from, &to, 9));
        let cq = opened.cq;
        let mut entries = [fi::fi_cq_data_entry::default(); 2];
        let read = wait("fi_cq_read", || {
            let read = call!((*cq).ops, read, cq, entries.as_mut_ptr().cast(), 2);
            (read != -libc::EAGAIN as isize).then_some(read)
        });
        assert_eq!(read, 1);
        assert_eq!((entries[0].op_context.addr(), entries[0].flags), (9, fi::FI_RMA | fi::FI_WRITE));
        let again = call!((*cq).ops, read, cq, entries.as_mut_ptr().cast(), 2);
        assert_eq!(again, -libc::EAGAIN as isize);
    });
}

#[test]
fn fi_cq_readerr_returns_an_error_completion_with_its_text() {
    with_opened(&[], |opened| {
        let (from, to) = (memory(1, 1), memory(1, 0));
        let mut request = write_to_self(&opened, &from, &to, 5);
        if let Operation::Write { remote, .. } = &mut request.operation {
            remote.key = RemoteKey::new(remote.key.get() ^ 0x55);
        }
        Poster::new(&opened, 0).post(&request);
        let cq = opened.cq;
        let mut entry = fi::fi_cq_data_entry::default();
        let read = wait("fi_cq_read", || {
            let read = call!((*cq).ops, read, cq, (&raw mut entry).cast(), 1);
            (read != -libc::EAGAIN as isize).then_some(read)
        });
        assert_eq!(read, -(fi::FI_EAVAIL as isize));
        let mut error = fi::fi_cq_err_entry::default();
        assert_eq!(call!((*cq).ops, readerr, cq, &mut error, 0), 1);
        assert_eq!((error.op_context.addr(), error.err), (5, libc::EINVAL));
        let status = CompletionStatus::RemoteBadAddress;
        assert_eq!(error.prov_errno, c_int::from(status.code()));
        let words = call!((*cq).ops, strerror, cq, error.prov_errno, ptr::null(), ptr::null_mut(), 0);
        // SAFETY: the provider's string.
        let words = unsafe { CStr::from_ptr(words) };
        assert_eq!(words.to_str().unwrap(), status.to_string());
        assert_eq!(call!((*cq).ops, readerr, cq, &mut error, 0), -libc::EAGAIN as isize);
    });
}

#[test]
fn a_dmabuf_region_is_written_at_the_base_address_of_the_client() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        if client.library.version() < fi::fi_version(1, 20) {
            // This API has no FI_MR_DMABUF, so the flag is refused.
            let opened = Opened::new(&client, |_| {});
            let mut region = ptr::null_mut();
            let domain = opened.domain;
            let attr = fi::fi_mr_attr::default();
            let code = call!((*domain).mr, regattr, domain.cast(), &attr, fi::FI_MR_DMABUF, &mut region);
            assert_eq!(code, -(fi::FI_EBADFLAGS as c_int));
            return;
        }
        let opened = Opened::new(&client, |_| {});
        let (fd, place) = memory_file(4096);
        let (from, to) = (memory(1, 0x42), memory(1, 0));
        let mut request = write_to_self(&opened, &from, &to, 2);
        let chosen = 0x7fff_0000_0000_usize;
        let dmabuf =
            fi::fi_mr_dmabuf { fd, offset: 64, len: 64, base_addr: ptr::without_provenance_mut(chosen) };
        let mut attr = fi::fi_mr_attr { access: ALL, ..Default::default() };
        attr.__bindgen_anon_1.dmabuf = &dmabuf;
        let (domain, mut region) = (opened.domain, ptr::null_mut());
        assert_eq!(call!((*domain).mr, regattr, domain.cast(), &attr, fi::FI_MR_DMABUF, &mut region), 0);
        if let Operation::Write { remote, .. } = &mut request.operation {
            remote.address = chosen as u64 + 64;
            // SAFETY: an open region.
            remote.key = RemoteKey::new(u32::try_from(unsafe { (*region).key }).unwrap());
        }
        Poster::new(&opened, 0).post(&request);
        assert_eq!(Poller::new(&opened).next().status, CompletionStatus::Ok);
        // SAFETY: inside the mapping, and the write has completed.
        assert_eq!(unsafe { place.add(64).cast::<u64>().read_volatile() }, from[0]);
        assert_eq!(close(region), 0);
    });
}

#[test]
fn two_endpoints_share_a_completion_queue() {
    with_opened(&[], |mut opened| {
        let first = opened.ep;
        opened.ep = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(bind(opened.ep, opened.cq, fi::FI_TRANSMIT), 0);
        let receives = open_cq(opened.domain, 64).unwrap();
        assert_eq!(bind(opened.ep, receives, fi::FI_RECV), 0);
        assert_eq!(bind(opened.ep, opened.av, 0), 0);
        assert_eq!(enable(opened.ep), 0);
        let second = name_of(opened.ep)[16..18].to_vec();
        assert_ne!(name_of(first)[16..18], second[..]);
        let (from, to) = (memory(1, 1), memory(1, 0));
        Poster::new(&opened, 0).post(&write_to_self(&opened, &from, &to, 30));
        let completion = Poller::new(&opened).next();
        assert_eq!(completion.queue_pair.get().to_ne_bytes(), second[..]);
    });
}
