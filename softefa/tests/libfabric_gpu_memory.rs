//! GPU memory registered through libfabric, on a fake libcuda that needs no GPU: the bytes are copied, and failures are
//! reported with their reason. efa-gda's `tests/gpu_memory.rs` tests the same on a real GPU.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::c_int;
use std::ptr;

use efa_gda_sys::fi;
use efa_gda_test_support::cuda::{self, Driver, unmappable};
use efa_gda_test_support::pattern;
use efa_gda_wire::{Completion, CompletionStatus, LocalKey, Operation, RemoteKey, Request, RequestIdWidth};
use libfabric_common::queues::{ALL, Poller, Poster, external, memory, open_external, wait, write_to_self};
use libfabric_common::{
    Client, Hints, Opened, SoftAdapter, bind, close, enable, gda_ops, open_ep, with_soft_adapter,
};

fn with_gpu(hints: impl FnOnce(&mut Hints), body: impl FnOnce(&Driver, Opened)) {
    let variables = [
        ("SOFTEFA_HMEM", "1"),
        ("SOFTEFA_LIBCUDA", cuda::LIBRARY),
        ("SOFTEFA_CUDA_TIMEOUT_MS", "200"),
        // For any installed libfabric.
        ("SOFTEFA_MR_DMABUF", "1"),
    ];
    with_soft_adapter(&variables, |_| body(&Driver::loaded(), Opened::new(&Client::load(), hints)));
}

fn gpu_hints(hints: &mut Hints) {
    hints.info().caps |= fi::FI_HMEM;
    hints.change_mr_mode(0, fi::FI_MR_HMEM);
}

/// Registers memory with this interface and these flags.
fn register(
    domain: *mut fi::fid_domain,
    address: u64,
    length: usize,
    iface: fi::fi_hmem_iface,
    flags: u64,
) -> Result<*mut fi::fid_mr, c_int> {
    let part = fi::iovec { iov_base: address as *mut _, iov_len: length };
    let attr = fi::fi_mr_attr {
        __bindgen_anon_1: fi::fi_mr_attr__bindgen_ty_1 { mr_iov: &part },
        iov_count: 1,
        access: ALL,
        iface,
        ..Default::default()
    };
    register_attr(domain, &attr, flags)
}

fn register_dmabuf(
    domain: *mut fi::fid_domain,
    fd: c_int,
    address: u64,
    length: usize,
) -> Result<*mut fi::fid_mr, c_int> {
    let part = fi::fi_mr_dmabuf { fd, offset: 0, len: length, base_addr: address as *mut _ };
    let attr = fi::fi_mr_attr {
        __bindgen_anon_1: fi::fi_mr_attr__bindgen_ty_1 { dmabuf: &part },
        iov_count: 1,
        access: ALL,
        iface: fi::FI_HMEM_CUDA,
        ..Default::default()
    };
    register_attr(domain, &attr, fi::FI_MR_DMABUF)
}

fn register_attr(
    domain: *mut fi::fid_domain,
    attr: &fi::fi_mr_attr,
    flags: u64,
) -> Result<*mut fi::fid_mr, c_int> {
    let mut mr = ptr::null_mut();
    match call!((*domain).mr, regattr, domain.cast(), attr, flags, &mut mr) {
        0 => Ok(mr),
        error => Err(error),
    }
}

/// A write from one registered range to another, by an endpoint to itself.
fn write(
    opened: &Opened,
    from: (u64, *mut fi::fid_mr),
    to: (u64, *mut fi::fid_mr),
    length: usize,
) -> Request {
    let host = memory(1, 0);
    let mut request = write_to_self(opened, &host, &host, 7);
    let lkey = u32::try_from(call!(gda_ops(opened.domain).unwrap(), get_mr_lkey, from.1)).unwrap();
    let Operation::Write { remote, local } = &mut request.operation else { unreachable!() };
    (local.address, local.length, local.key) = (from.0, length as u32, LocalKey::new(lkey).unwrap());
    // SAFETY: an open region.
    let rkey = unsafe { (*to.1).key };
    (remote.address, remote.key) = (to.0, RemoteKey::new(u32::try_from(rkey).unwrap()));
    request
}

fn status_of(poster: &mut Poster, poller: &mut Poller, request: &Request) -> CompletionStatus {
    poster.post(request);
    poller.next().status
}

#[test]
fn a_dmabuf_that_cannot_be_mapped_is_accessed_at_its_base_address() {
    with_gpu(
        |_| {},
        |gpu, opened| {
            let (from, to) = (gpu.memory(&pattern(4096)), gpu.memory(&[0; 4096]));
            let source = register_dmabuf(opened.domain, unmappable(), from, 4096).unwrap();
            let target = register_dmabuf(opened.domain, unmappable(), to, 4096).unwrap();
            let request = write(&opened, (from, source), (to, target), 4096);
            let (mut poster, mut poller) = (Poster::new(&opened, 0), Poller::new(&opened));
            assert_eq!(status_of(&mut poster, &mut poller, &request), CompletionStatus::Ok);
            assert!(gpu.read(to, 4096) == pattern(4096));
        },
    );
}

#[test]
fn memory_that_is_not_gpu_memory_is_refused() {
    with_gpu(gpu_hints, |gpu, opened| {
        let host = memory(8, 0);
        let domain = opened.domain;
        let on_host = register(domain, host.as_ptr().addr() as u64, 64, fi::FI_HMEM_CUDA, 0);
        assert_eq!(on_host.unwrap_err(), -libc::ENOSYS, "memory of the host");
        let place = gpu.memory(&[0; 4096]);
        let past = register(domain, place + 8, 4096, fi::FI_HMEM_CUDA, 0);
        assert_eq!(past.unwrap_err(), -libc::ENOSYS, "past the allocation's end");
        assert_eq!(
            register(domain, place, 64, 2, 0).unwrap_err(),
            -libc::ENOSYS,
            "memory of another kind of GPU"
        );
        let as_host = register(domain, place, 64, fi::FI_HMEM_SYSTEM, 0);
        assert_eq!(as_host.unwrap_err(), -libc::EFAULT, "GPU memory as memory of the host");
        let nowhere = register_dmabuf(domain, unmappable(), 0x1000, 64);
        assert_eq!(nowhere.unwrap_err(), -libc::EOPNOTSUPP, "a dmabuf without GPU memory at its address");
    });
}

#[test]
fn a_lost_context_fails_the_request_and_stores_a_warning() {
    with_gpu(gpu_hints, |gpu, opened| {
        let place = gpu.memory(&[0; 4096]);
        let region = register(opened.domain, place, 4096, fi::FI_HMEM_CUDA, 0).unwrap();
        let request = write(&opened, (place, region), (place + 2048, region), 64);
        gpu.fail_copies(700);
        let (mut poster, mut poller) = (Poster::new(&opened, 0), Poller::new(&opened));
        let status = status_of(&mut poster, &mut poller, &request);
        assert_eq!(status, CompletionStatus::InvalidLocalKey);
        let warnings = SoftAdapter::loaded().warnings();
        assert!(
            warnings.iter().any(|words| words.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)")),
            "{warnings:?}"
        );
    });
}

/// Makes one copy fail. The next copy fails too, although nothing makes it fail. A warning contains `words`.
fn a_copy_makes_the_gpu_unreachable(set_failing: impl Fn(&Driver, bool), words: &str) {
    with_gpu(gpu_hints, |gpu, opened| {
        let place = gpu.memory(&[0; 4096]);
        let region = register(opened.domain, place, 4096, fi::FI_HMEM_CUDA, 0).unwrap();
        let request = write(&opened, (place, region), (place + 2048, region), 64);
        let (mut poster, mut poller) = (Poster::new(&opened, 0), Poller::new(&opened));
        // The first copy may still run, so no later copy may use its stream and its pinned memory.
        for failing in [true, false] {
            set_failing(gpu, failing);
            let status = status_of(&mut poster, &mut poller, &request);
            assert_eq!(status, CompletionStatus::InvalidLocalKey, "failing: {failing}");
        }
        let warnings = SoftAdapter::loaded().warnings();
        assert!(warnings.iter().any(|warning| warning.contains(words)), "{warnings:?}");
    });
}

#[test]
fn a_copy_that_never_ends_makes_the_gpu_unreachable() {
    a_copy_makes_the_gpu_unreachable(|gpu, failing| gpu.hang_copies(failing), "not observed within 200ms");
}

#[test]
fn a_copy_whose_end_cuda_does_not_report_makes_the_gpu_unreachable() {
    let set_failing = |gpu: &Driver, failing| gpu.set_result(c"cuStreamQuery", if failing { 900 } else { 0 });
    a_copy_makes_the_gpu_unreachable(set_failing, "cuStreamQuery returned");
}

#[test]
fn a_graph_capture_in_another_thread_does_not_stop_copies() {
    with_gpu(gpu_hints, |gpu, opened| {
        gpu.capture(true);
        let (from, to) = (gpu.memory(&pattern(4096)), gpu.memory(&[0; 4096]));
        let source = register(opened.domain, from, 4096, fi::FI_HMEM_CUDA, 0).unwrap();
        let target = register(opened.domain, to, 4096, fi::FI_HMEM_CUDA, fi::FI_HMEM_DEVICE_ONLY).unwrap();
        assert_eq!(gpu.capture_mode(), 0, "the registering thread's capture mode is restored");
        let request = write(&opened, (from, source), (to, target), 4096);
        let (mut poster, mut poller) = (Poster::new(&opened, 0), Poller::new(&opened));
        assert_eq!(status_of(&mut poster, &mut poller, &request), CompletionStatus::Ok);
        assert!(gpu.read(to, 4096) == pattern(4096));
    });
}

/// A completion queue of `size` entries in `bytes` of GPU memory at `place`.
fn open_cq_at(
    domain: *mut fi::fid_domain,
    size: usize,
    place: u64,
    bytes: u64,
) -> Result<*mut fi::fid_cq, c_int> {
    let attr = fi::fi_cq_attr { size, format: fi::FI_CQ_FORMAT_DATA, ..Default::default() };
    open_external(domain, attr, external(unmappable(), place as *mut u8, bytes))
}

#[test]
fn completions_are_written_to_a_queue_in_gpu_memory() {
    with_gpu(gpu_hints, |gpu, opened| {
        let place = gpu.memory(&[0; 64 * 32]);
        let cq = open_cq_at(opened.domain, 64, place, 64 * 32).unwrap();
        let ep = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(bind(ep, cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!(bind(ep, opened.av, 0), 0);
        assert_eq!(enable(ep), 0);
        let second = Opened { ep, cq, ..opened };
        let (from, to) = (memory(4, 0x5a), memory(4, 0));
        Poster::new(&second, 0).post(&write_to_self(&second, &from, &to, 5));
        let bytes = wait("a completion in the GPU's memory", || {
            let bytes = gpu.read(place, 32);
            Completion::phase(bytes[Completion::FLAGS_OFFSET]).then_some(bytes)
        });
        let completion = Completion::decode(&bytes, RequestIdWidth::Bits16).unwrap();
        assert_eq!((completion.id.get(), completion.status), (5, CompletionStatus::Ok));
        assert_eq!(std::hint::black_box(&to), &from);
        let mut entry = [0_u64; 8];
        let read = call!((*cq).ops, read, cq, entry.as_mut_ptr().cast(), 1);
        assert_eq!(read, -(libc::ENOSYS as isize), "the CPU cannot read GPU memory");
        assert_eq!((close(ep), close(cq)), (0, 0));
    });
}

#[test]
fn a_completion_queue_that_does_not_fit_its_gpu_memory_is_refused() {
    with_gpu(gpu_hints, |gpu, opened| {
        let place = gpu.memory(&[0; 64 * 32]);
        let open = |size, bytes| open_cq_at(opened.domain, size, place, bytes);
        assert_eq!(open(64, 63 * 32), Err(-libc::EINVAL));
        assert_eq!(open(33, 63 * 32), Err(-libc::EINVAL), "33 entries are rounded up to 64");
        assert_eq!(close(open(33, 64 * 32).unwrap()), 0);
    });
}

#[test]
fn without_a_driver_gpu_memory_is_refused() {
    let variables = [("SOFTEFA_HMEM", "1"), ("SOFTEFA_LIBCUDA", "/nonexistent/libcuda.so")];
    with_soft_adapter(&variables, |_| {
        let client = Client::load();
        let opened = Opened::new(&client, gpu_hints);
        let refused = register(opened.domain, 0x7000_0000_0000, 64, fi::FI_HMEM_CUDA, 0);
        assert_eq!(refused.unwrap_err(), -libc::ENOSYS);
    });
}
