//! The verbs layer over a fake rdma-core: the calls that it makes, the order in which it destroys objects,
//! and the errors that it returns.

#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, missing_docs)]

#[path = "verbs_layer/counters.rs"]
mod counters;
mod verbs_fake;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use efa_gda::memory::{DeviceMemory, Dmabuf};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::verbs::*;
use efa_gda::wire::{AddressHandle, EntrySize, Peer, QueueKey, QueuePairNumber, RequestIdWidth};
use efa_gda::{ErrorKind, Result};
use efa_gda_sys::verbs as sys;
use efa_gda_test_support::assert_error;
use verbs_fake::{library, state};

const KEY: QueueKey = QueueKey::new(0x1234);

fn context() -> Context {
    library(|_, _| {}).adapter(None).unwrap()
}

fn options() -> QueuePairOptions {
    QueuePairOptions { queue_key: KEY, ..QueuePairOptions::default() }
}

fn queue_pair(options: &QueuePairOptions) -> Result<QueuePair> {
    let context = context();
    let domain = ProtectionDomain::allocate(&context)?;
    let completions = CompletionQueue::create(&context, 1024)?;
    QueuePair::open(&domain, &completions, options)
}

fn fail(call: &'static str, errno: i32) {
    state(|state| state.fail.insert(call, errno));
}

fn buffer() -> Buffer {
    Buffer::zeroed(4096).unwrap()
}

#[test]
fn children_are_destroyed_first_even_if_parents_are_dropped_first() {
    let context = context();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, 16).unwrap();
    let region = domain.register(buffer(), Access::ALL).unwrap();
    let pair = QueuePair::open(&domain, &completions, &options()).unwrap();
    let mut queue = MappedQueue::over_verbs(pair).unwrap();
    queue.insert_peer(&queue.address().unwrap()).unwrap();
    queue.retain(&region).unwrap();
    state(|state| state.calls.clear());
    drop((context, domain, completions, region));
    assert_eq!(state(|state| state.calls.clone()), Vec::<&str>::new(), "every object is still in use");
    drop(queue);
    let calls = state(|state| state.calls.clone());
    assert_eq!(calls.first(), Some(&"ibv_destroy_qp"));
    assert_eq!(calls.last(), Some(&"ibv_close_device"));
    assert_eq!(state(|state| state.leaked()), Vec::<&str>::new());
}

#[test]
fn an_object_that_cannot_be_destroyed_leaves_its_parents_open() {
    let ready = queue_pair(&options()).unwrap();
    fail("ibv_destroy_qp", libc::EBUSY);
    let error = ready.close().unwrap_err();
    assert_eq!(error.code(), Some(libc::EBUSY));
    let calls = state(|state| state.calls.clone());
    assert!(!calls.contains(&"ibv_destroy_cq") && !calls.contains(&"ibv_dealloc_pd"), "{calls:?}");
}

#[test]
fn closing_a_parent_in_use_returns_busy() {
    let context = context();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let region = domain.register(buffer(), Access::LOCAL).unwrap();
    let error = domain.close().unwrap_err();
    assert_error!(error, ErrorKind::Busy, "protection domain", "1");
    region.close().unwrap();
}

#[test]
fn a_queue_pair_goes_through_init_and_rtr_to_rts() {
    queue_pair(&options()).unwrap();
    let modified = state(|state| state.modified.clone());
    let masks: Vec<_> = modified.iter().map(|(to, mask, _)| (*to, *mask)).collect();
    let init = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY;
    assert_eq!(
        masks,
        [
            (sys::IBV_QPS_INIT, init),
            (sys::IBV_QPS_RTR, sys::IBV_QP_STATE),
            (sys::IBV_QPS_RTS, sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN),
        ]
    );
    assert_eq!((modified[0].2.qkey, modified[0].2.port_num), (KEY.get(), 1));
}

#[test]
fn a_queue_pair_that_does_not_become_ready_is_destroyed() {
    fail("ibv_modify_qp", libc::EINVAL);
    let error = queue_pair(&options()).unwrap_err();
    assert_eq!(error.operation(), Some("ibv_modify_qp(INIT)"));
    assert_eq!(state(|state| state.leaked()), Vec::<&str>::new());
}

#[test]
fn the_queue_pair_is_srd_with_one_segment_per_receive() {
    queue_pair(&QueuePairOptions { send_entries: 512, receive_entries: 0, ..options() }).unwrap();
    let (attr, efa) = state(|state| state.queue_pair.unwrap());
    assert_eq!((attr.qp_type, efa.driver_qp_type), (sys::IBV_QPT_DRIVER, sys::EFADV_QP_DRIVER_TYPE_SRD));
    assert_eq!(attr.comp_mask, sys::IBV_QP_INIT_ATTR_PD);
    assert_eq!((attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_recv_sge), (512, 1, 1));
    assert_eq!((attr.cap.max_inline_data, efa.flags), (32, 0));
}

#[test]
fn wide_entries_request_inline_writes_up_to_the_adapters_limit() {
    queue_pair(&QueuePairOptions { entry_size: EntrySize::B128, ..options() }).unwrap();
    let (attr, efa) = state(|state| state.queue_pair.unwrap());
    assert_eq!(attr.cap.max_inline_data, 80);
    assert_eq!(u32::from(efa.flags), sys::EFADV_QP_FLAGS_INLINE_WRITE);
}

#[test]
fn wide_entries_are_refused_where_rdma_core_does_not_support_them() {
    state(|state| state.attributes.inline_buf_size_ex = 0);
    let error = queue_pair(&QueuePairOptions { entry_size: EntrySize::B128, ..options() }).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "the adapter allows at most", "inline bytes", "80", "32");
    assert!(!state(|state| state.calls.contains(&"efadv_create_qp_ex")));
}

#[test]
fn a_queue_deeper_than_the_adapter_allows_is_refused_with_the_limit() {
    let error = queue_pair(&QueuePairOptions { send_entries: 4097, ..options() }).unwrap_err();
    let expected = "4097 send queue entries were requested; the adapter allows at most 4096; request fewer";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn exposed_queues_match_the_results_of_the_queries() {
    let ready = queue_pair(&options()).unwrap();
    let exposure = ready.exposure().unwrap();
    assert_eq!(
        (exposure.sq.entry_size, exposure.sq.num_entries, exposure.sq.max_batch),
        (EntrySize::B64, 256, 16)
    );
    assert_eq!(exposure.sq.request_ids, RequestIdWidth::Bits64);
    assert_eq!((exposure.rq.num_entries, exposure.cq.num_entries), (256, 1024));
    assert!(exposure.cq.doorbell.is_some());
}

#[test]
fn rings_that_break_a_rule_are_not_exposed() {
    state(|state| state.send.num_entries = 100);
    let ready = queue_pair(&options()).unwrap();
    let error = ready.exposure().unwrap_err();
    assert_error!(error, ErrorKind::Exposure, "a power of two was expected");
}

#[test]
fn rdma_core_before_59_creates_queue_pairs_but_does_not_expose_them() {
    let library = library(|_, efadv| efadv.efadv_query_qp_wqs = None);
    let error = library.exposes_queues().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the loaded libefa.so.1 has no efadv_query_qp_wqs@EFA_1.4, which rdma-core 59 added; install an \
         rdma-core that has it, such as the current EFA installer's"
    );
    let context = library.adapter(None).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, 16).unwrap();
    let error = QueuePair::open(&domain, &completions, &options()).unwrap().exposure().unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "which rdma-core 59 added");
}

#[test]
fn a_device_of_another_vendor_is_reported_by_name_and_closed() {
    state(|state| state.devices = vec![c"mlx5_0"]);
    fail("efadv_query_device", libc::EOPNOTSUPP);
    let error = library(|_, _| {}).adapter(Some("mlx5_0")).unwrap_err();
    assert_error!(error, ErrorKind::NoAdapter, "does not accept mlx5_0");
    assert_eq!(state(|state| state.leaked()), Vec::<&str>::new());
}

#[test]
fn without_an_efa_adapter_the_error_lists_the_devices() {
    state(|state| state.devices = vec![c"mlx5_0", c"mlx5_1"]);
    fail("efadv_query_device", libc::EOPNOTSUPP);
    let error = library(|_, _| {}).adapter(None).unwrap_err();
    assert!(
        error.to_string().starts_with("no device is an EFA adapter; devices found: mlx5_0, mlx5_1;"),
        "{error}"
    );
}

#[test]
fn an_unknown_device_name_is_reported_with_the_devices_that_exist() {
    let error = library(|_, _| {}).adapter(Some("efa_9")).unwrap_err();
    assert_error!(error, ErrorKind::NoAdapter, "devices found: efa_0;");
}

#[test]
fn an_empty_list_of_devices_is_not_an_error() {
    state(|state| state.devices.clear());
    assert_eq!(library(|_, _| {}).devices().unwrap().len(), 0);
    assert_eq!(state(|state| state.leaked()), Vec::<&str>::new());
}

#[test]
fn enosys_from_the_device_list_hints_at_the_ib_uverbs_module() {
    fail("ibv_get_device_list", libc::ENOSYS);
    let error = library(|_, _| {}).devices().unwrap_err();
    assert_eq!(error.code(), Some(libc::ENOSYS));
    assert_eq!(error.hint(), "load the ib_uverbs kernel module");
}

#[test]
fn a_query_that_returns_minus_one_reports_errno() {
    let context = context();
    fail("ibv_query_gid", libc::EIO);
    assert_eq!(context.gid().unwrap_err().code(), Some(libc::EIO));
}

#[test]
fn access_flags_translate_to_the_kernels_bits() {
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    for (access, bits) in [
        (Access::SEND | Access::WRITE, 0),
        (Access::RECEIVE, sys::IBV_ACCESS_LOCAL_WRITE),
        (Access::READ, sys::IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_READ, sys::IBV_ACCESS_REMOTE_READ),
        (Access::SEND | Access::RELAXED_ORDERING, sys::IBV_ACCESS_RELAXED_ORDERING),
    ] {
        let region = domain.register(buffer(), access).unwrap();
        assert_eq!(state(|state| state.access), bits as i32, "{access:?}");
        let relaxed = region.ordering() == RegionOrdering::Relaxed;
        assert_eq!(relaxed, access.contains(Access::RELAXED_ORDERING), "{access:?}");
    }
}

#[test]
fn remote_access_that_the_adapter_lacks_is_refused_with_the_capability() {
    state(|state| state.attributes.device_caps = 0);
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    let error = domain.register(buffer(), Access::ALL).unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "does not have the capability: RDMA write");
}

#[test]
fn an_lkey_of_more_than_24_bits_is_refused_and_its_region_deregistered() {
    state(|state| state.keys = (1 << 24, 0));
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    let error = domain.register(buffer(), Access::LOCAL).unwrap_err();
    assert_error!(error, ErrorKind::Other, "an entry has", "lkey", "24");
    assert!(state(|state| state.calls.contains(&"ibv_dereg_mr")));
}

#[test]
fn a_queue_pair_with_a_number_of_more_than_16_bits_is_refused_and_destroyed() {
    state(|state| state.number = 1 << 16);
    let error = queue_pair(&options()).unwrap_err();
    assert_error!(error, ErrorKind::Other, "an entry has", "queue pair number", "16");
    assert_eq!(state(|state| state.leaked()), Vec::<&str>::new());
}

#[test]
fn memory_that_cannot_be_pinned_hints_at_the_locked_memory_limit() {
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    fail("ibv_reg_mr", libc::ENOMEM);
    let error = domain.register(buffer(), Access::LOCAL).unwrap_err();
    assert!(error.hint().contains("ulimit -l"), "{error}");
}

#[test]
fn a_registration_that_fails_hints_at_its_cause() {
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    for (errno, hint) in [
        (libc::EINVAL, "a length of at least 1 byte"),
        (libc::EOPNOTSUPP, "remote access"),
        (libc::EMFILE, "ulimit -n"),
    ] {
        fail("ibv_reg_mr", errno);
        let error = domain.register(buffer(), Access::LOCAL).unwrap_err();
        assert!(error.hint().contains(hint), "{error}");
    }
}

#[test]
fn one_address_handle_serves_all_queue_pairs_of_an_adapter() {
    let ready = queue_pair(&options()).unwrap();
    let first = ready.address().unwrap();
    let mut second = first;
    second[16..18].copy_from_slice(&8_u16.to_ne_bytes());
    let (first, second) = (ready.peer(&first).unwrap(), ready.peer(&second).unwrap());
    assert_eq!((first.address_handle, second.queue_pair), (second.address_handle, QueuePairNumber::new(8)));
    assert_eq!(state(|state| state.live["ah"]), 1);
    let handle = state(|state| state.handle.unwrap());
    assert_eq!((handle.is_global, handle.port_num, unsafe { handle.grh.dgid.raw }), (1, 1, [0xfe; 16]));
}

#[test]
fn a_raw_address_has_libfabrics_layout() {
    state(|state| (state.gid, state.number) = ([7; 16], 0x0201));
    let pair = queue_pair(&options()).unwrap();
    let mut expected = [0; 32];
    expected[..16].fill(7);
    expected[16..18].copy_from_slice(&0x0201_u16.to_ne_bytes());
    expected[20..24].copy_from_slice(&0x1234_u32.to_ne_bytes());
    let peer = pair.peer(&expected).unwrap();
    assert_eq!((pair.address().unwrap(), peer.queue_pair.get(), peer.queue_key), (expected, 0x0201, KEY));
}

#[test]
fn a_raw_address_of_the_wrong_length_is_refused() {
    let queue = MappedQueue::over_verbs(queue_pair(&options()).unwrap()).unwrap();
    let error = queue.insert_peer(&[0; 31]).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "has length 31; that of an efa endpoint has length 32");
}

#[test]
fn an_external_completion_queue_passes_its_dmabuf_on_unchanged() {
    let context = context();
    let file = std::fs::File::open("/dev/null").unwrap();
    let memory =
        ExternalMemory { dmabuf: file.as_fd(), offset: 4096, length: 65536, buffer: std::ptr::null_mut() };
    unsafe { CompletionQueue::create_external(&context, &memory, 1024) }.unwrap();
    let external = state(|state| state.external.unwrap());
    assert_eq!(external.flags, u64::from(sys::EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF));
    assert_eq!((external.ext_mem_dmabuf.offset, external.ext_mem_dmabuf.length), (4096, 65536));
}

#[test]
fn an_external_completion_queue_is_refused_on_an_adapter_without_the_capability() {
    state(|state| state.attributes.device_caps &= !sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF);
    let context = context();
    let file = std::fs::File::open("/dev/null").unwrap();
    let memory =
        ExternalMemory { dmabuf: file.as_fd(), offset: 0, length: 4096, buffer: std::ptr::null_mut() };
    let error = unsafe { CompletionQueue::create_external(&context, &memory, 16) }.unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "does not have the capability", "external");
    assert!(!state(|state| state.calls.contains(&"efadv_create_cq")));
}

#[test]
fn a_dmabuf_is_registered_at_the_address_that_entries_use() {
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (descriptor, dmabuf) = (file.as_raw_fd(), Dmabuf { file, offset: 8192 });
    let memory = unsafe { DeviceMemory::new(0x7000_0000, 4096, 0, Ok(dmabuf), Arc::new(())) }.unwrap();
    let region = domain.register_device(memory, Access::LOCAL).unwrap();
    assert_eq!(state(|state| state.dmabuf), Some((8192, 4096, 0x7000_0000, descriptor)));
    assert_eq!((region.address(), region.at(4095, 1).unwrap()), (0x7000_0000, 0x7000_0fff));
}

#[test]
fn bytes_past_the_end_of_a_region_have_no_address() {
    let domain = ProtectionDomain::allocate(&context()).unwrap();
    let region = domain.register(buffer(), Access::LOCAL).unwrap();
    let error = region.at(4096, 1).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "offset 4096 is not in a region of length 4096");
}

#[test]
fn querying_the_gid_of_an_adapter_without_one_is_an_error() {
    state(|state| state.gid = [0; 16]);
    assert_eq!(context().gid().unwrap_err().code(), Some(libc::ENODATA));
}

#[test]
fn an_adapter_without_rdma_has_an_rdma_limit_of_zero() {
    let rdma = sys::EFADV_DEVICE_ATTR_CAPS_RDMA_READ | sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
    state(|state| state.attributes.device_caps &= !rdma);
    assert_eq!(context().limits().unwrap(), Limits { message: 8192, rdma: 0, reads: false });
}

#[test]
fn a_read_is_refused_by_a_queue_of_an_adapter_without_rdma_reads() {
    state(|state| state.attributes.device_caps &= !sys::EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
    let ready = queue_pair(&options()).unwrap();
    let domain = ready.domain().clone();
    let mut queue = MappedQueue::over_verbs(ready).unwrap();
    let region = domain.register(Buffer::zeroed(64).unwrap(), Access::READ).unwrap();
    let peer = Peer { address_handle: AddressHandle::new(1), queue_pair: queue.number(), queue_key: KEY };
    let error = queue.execute(&WorkRequest::read(peer, &region, region.remote())).unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "an RDMA read");
    assert_eq!(queue.in_flight(), 0);
}

/// Threads can send objects to each other and share them.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Library>();
    shared::<Device>();
    shared::<Context>();
    shared::<Region>();
    shared::<CompletionQueue>();
    shared::<CompletionCounter>();
    shared::<QueuePair>();
};

#[test]
fn objects_of_two_contexts_cannot_be_combined() {
    let library = library(|_, _| {});
    let (first, second) = (library.adapter(None).unwrap(), library.adapter(None).unwrap());
    let domain = ProtectionDomain::allocate(&first).unwrap();
    let completions = CompletionQueue::create(&second, 16).unwrap();
    let error = QueuePair::open(&domain, &completions, &options()).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "belongs to another context", "completion queue");
}

#[test]
fn a_region_of_another_protection_domain_has_no_key_for_a_queue() {
    let ready = queue_pair(&options()).unwrap();
    let own = ready.domain().clone();
    let other = ProtectionDomain::allocate(own.context()).unwrap();
    let mut queue = MappedQueue::over_verbs(ready).unwrap();
    let foreign = other.register(buffer(), Access::ALL).unwrap();
    let error = queue.retain(&foreign).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "belong to different domains");
    let peer = Peer { address_handle: AddressHandle::new(1), queue_pair: queue.number(), queue_key: KEY };
    let error = queue.execute(&WorkRequest::write(peer, &foreign, foreign.remote())).unwrap_err();
    assert_error!(error, ErrorKind::Argument, "the local memory");
    foreign.close().expect("the queue does not hold the region");
    queue.retain(own.register(buffer(), Access::ALL).unwrap()).unwrap();
}

#[test]
fn two_mapped_queues_cannot_share_a_completion_queue() {
    let context = context();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, 1024).unwrap();
    let make = || QueuePair::open(&domain, &completions, &options()).unwrap();
    let (first, second) = (make(), make());
    let error = MappedQueue::over_verbs(first).unwrap_err();
    assert_error!(error, ErrorKind::Busy, "2 endpoints complete on the completion queue");
    // The failed call destroyed the first queue pair, whose completions may be in the queue.
    let error = MappedQueue::over_verbs(second).unwrap_err();
    assert_error!(error, ErrorKind::Busy, "an endpoint that was closed completed");
}

#[test]
fn a_polled_completion_queue_takes_no_other_queue_pair() {
    let context = context();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, 1024).unwrap();
    let make = || QueuePair::open(&domain, &completions, &options());
    let _mapped = MappedQueue::over_verbs(make().unwrap()).unwrap();
    let error = make().unwrap_err();
    assert_error!(error, ErrorKind::Busy, "another reader polls the completion queue");
}

#[test]
fn closing_a_mapped_queue_reports_a_queue_pair_that_was_not_destroyed() {
    let ready = queue_pair(&options()).unwrap();
    let queue = MappedQueue::over_verbs(ready).unwrap();
    fail("ibv_destroy_qp", libc::EBUSY);
    let refused = queue.close().unwrap_err();
    assert!(refused.queue.is_none() && refused.error.code() == Some(libc::EBUSY), "{}", refused.error);
}
