//! FI_XPU on a GPU, through softefa's libfabric frontend: the program of softefa/tests/libfabric_xpu, whose kernels
//! (kernels/examples/fi_xpu.cu) the first GPU runs. Its memory callbacks are CUDA's.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe, reason = "a test fails by unwrapping")]

#[path = "../../softefa/tests/libfabric_xpu/device.rs"]
mod device;
#[path = "../../softefa/tests/libfabric_common/mod.rs"]
mod libfabric_common;
#[path = "../../softefa/tests/libfabric_xpu/program.rs"]
mod program;
mod support;

use std::collections::BTreeSet;
use std::ffi::c_void;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use cudarc::driver::{CudaContext, DeviceRepr, LaunchConfig, PushKernelArg, result};
use device::{Args, Operation, Scope};
use efa_gda_sys::fi;
use program::{Ended, Launch, Options, Program, client, pattern};
use support::kernel::Kernel;
use support::with_gpu;

/// CUDA's memory as a context's callbacks.
mod callbacks {
    use std::ffi::{c_int, c_void};

    use cudarc::driver::{result, sys};
    use efa_gda_sys::fi;

    pub(crate) const IFACE: u32 = fi::FI_HMEM_CUDA;
    pub(crate) const DEVICE: u64 = 0;

    pub(crate) fn ops() -> fi::fi_xpu_ops {
        fi::fi_xpu_ops {
            size: size_of::<fi::fi_xpu_ops>(),
            alloc: Some(alloc),
            import: Some(import),
            free: Some(free),
        }
    }

    /// Memory of the GPU.
    unsafe extern "C" fn alloc(
        _device: u64,
        size: u64,
        _alignment: u64,
        _flags: u64,
        addr: *mut *mut c_void,
        _fd: *mut c_int,
        _offset: *mut u64,
    ) -> c_int {
        // SAFETY: `addr` can be written (fi_xpu(3)). The memory is filled, as CUDA zeroes nothing.
        unsafe {
            let start = result::malloc_sync(size as usize).unwrap();
            result::memset_d8_sync(start, 0xa5, size as usize).unwrap();
            *addr = std::ptr::with_exposed_provenance_mut(start as usize);
        }
        0
    }

    unsafe extern "C" fn import(
        _device: u64,
        host: *mut c_void,
        size: u64,
        _flags: u64,
        to: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: the provider keeps this memory mapped; `to` can be written (fi_xpu(3)).
        unsafe {
            let mapped = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
            match sys::cuMemHostRegister_v2(host, size as usize, mapped) {
                // The doorbells of a domain's endpoints share a page, which each context imports.
                sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {}
                registered => registered.result().unwrap(),
            }
            let mut address = 0;
            sys::cuMemHostGetDevicePointer_v2(&raw mut address, host, 0).result().unwrap();
            *to = std::ptr::with_exposed_provenance_mut(address as usize);
        }
        0
    }

    unsafe extern "C" fn free(_device: u64, addr: *mut c_void) {
        // SAFETY: `alloc` allocated it, and it is freed once.
        unsafe { result::free_sync(addr.addr() as u64) }.unwrap();
    }
}

/// `bytes` bytes of pinned memory.
fn pinned(bytes: usize) -> *mut c_void {
    // SAFETY: the thread's context is current (`on_gpu`).
    let start =
        unsafe { result::malloc_host(bytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE) }.unwrap();
    // SAFETY: `bytes` bytes, just allocated.
    unsafe { start.cast::<u8>().write_bytes(0xa5, bytes) };
    start
}

/// A copy of `values` that a GPU reaches. It is not freed: the process ends with the test.
fn shared<T: Copy>(values: &[T]) -> &'static mut [T] {
    let start: *mut T = pinned(size_of_val(values).max(1)).cast();
    // SAFETY: as many values as the memory holds, which lives to the end of the process.
    unsafe {
        start.copy_from_nonoverlapping(values.as_ptr(), values.len());
        std::slice::from_raw_parts_mut(start, values.len())
    }
}

/// Arguments of a kernel, passed by value.
#[repr(transparent)]
struct Argument(Args);

// SAFETY: a plain C struct, which has the same layout for the device's compiler.
unsafe impl DeviceRepr for Argument {}

fn options() -> Options {
    Options { callbacks: true, ..Options::default() }
}

/// Runs the kernel on the GPU.
fn run(kernel: &Kernel, program: &Program, launch: &Launch<'_>) -> Ended {
    let mut results = None;
    let mut ended = program.prepared(launch, |args| {
        // SAFETY: `prepared` passes pointers to live values, and null for objects that are not there.
        let (ep, cq, cntr, peer, desc) = unsafe {
            let cq = args.cq.as_ref().map_or(std::ptr::null(), |cq| shared(&[*cq]).as_ptr());
            let cntr = args.cntr.as_ref().map_or(std::ptr::null(), |cntr| shared(&[*cntr]).as_ptr());
            (shared(&[*args.ep]), cq, cntr, shared(&[*args.peer]), shared(&[*args.desc]))
        };
        let threads = (launch.blocks * launch.threads) as usize;
        let status = shared(&vec![i32::MIN; threads]);
        let entries = shared(&vec![fi::fi_cq_data_entry::default(); launch.calls as usize * threads + 4096]);
        let read = shared(&[0_u32]);
        let (status_at, entries_at, read_at) = (status.as_mut_ptr(), entries.as_mut_ptr(), read.as_mut_ptr());
        let argument = Argument(Args {
            ep: ep.as_ptr(),
            cq,
            cntr,
            peer: peer.as_ptr(),
            desc: desc.as_ptr(),
            status: status_at,
            entries: entries_at,
            read: read_at,
            ..*args
        });
        let config = LaunchConfig {
            grid_dim: (launch.blocks, 1, 1),
            block_dim: (launch.threads, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the struct that the kernel takes; what it leads to lives to the end of the process.
        unsafe { kernel.stream.launch_builder(&kernel.function).arg(&argument).launch_cooperative(config) }
            .unwrap();
        kernel.stream.synchronize().unwrap();
        // SAFETY: the kernel has ended; it wrote `read` of the entries.
        let (status, entries) = unsafe {
            let read = read_at.read_volatile() as usize;
            let status = std::slice::from_raw_parts(status_at, threads);
            (status.to_vec(), std::slice::from_raw_parts(entries_at, read).to_vec())
        };
        results = Some((status, entries));
    });
    (ended.status, ended.entries) = results.unwrap();
    ended
}

/// Runs `body` with the kernel on the first GPU, and checks the adapter's verdict.
fn on_gpu(variables: &[(&str, &str)], body: impl FnOnce(&Kernel, &libfabric_common::Client)) {
    with_gpu(variables, |adapter, _| {
        CudaContext::new(0).unwrap().bind_to_thread().unwrap();
        let kernel = Kernel::compile(include_str!("../../kernels/examples/fi_xpu.cu"), "fi_xpu_requests");
        body(&kernel, &client());
        assert_eq!(adapter.violations(), [""; 0]);
    });
}

const REORDERED: [(&str, &str); 3] =
    [("SOFTEFA_HMEM", "1"), ("SOFTEFA_REORDER", "32"), ("SOFTEFA_SEED", "5")];

#[test]
fn every_scope_writes_and_reads_and_waits_by_a_counter() {
    on_gpu(&REORDERED, |kernel, client| {
        const WORDS: usize = 8;
        const CALLS: u32 = 20;
        let (blocks, threads) = (16, 128);
        let scopes = [
            (Scope::Thread, blocks * threads),
            (Scope::Warp, blocks * threads / 32),
            (Scope::Block, blocks),
            (Scope::Device, 1),
        ];
        for (scope, groups) in scopes {
            for operation in [Operation::Write, Operation::Read] {
                // All completions have room: nobody reads them.
                let program = Program::new(client, &Options { completions: 65_536, ..options() });
                let pieces = (groups * CALLS) as usize;
                let full = pattern(pieces * WORDS);
                let (local, remote) = (shared(&vec![0; full.len()]), shared(&vec![0; full.len()]));
                if operation == Operation::Read { &mut *remote } else { &mut *local }.copy_from_slice(&full);
                let ended = run(
                    kernel,
                    &program,
                    &Launch {
                        operation,
                        scope,
                        calls: CALLS,
                        threshold: pieces as u64,
                        blocks,
                        threads,
                        ..Launch::new(local, remote)
                    },
                );
                assert!(ended.status.iter().all(|status| *status == 0), "{operation:?} by {scope:?}");
                assert!(std::hint::black_box(&*local) == full && std::hint::black_box(&*remote) == full);
            }
        }
    });
}

#[test]
fn messages_arrive_in_receives_that_a_gpu_posted() {
    on_gpu(&REORDERED, |kernel, client| {
        const WORDS: usize = 16;
        const CALLS: u32 = 5;
        for (scope, groups) in [(Scope::Thread, 128), (Scope::Warp, 4), (Scope::Device, 1)] {
            let sender = Program::new(client, &options());
            // The counter counts no receives, so the kernel waits by the completion queue.
            let receiver = Program::beside(&sender, &Options { counter: false, ..options() });
            let pieces = (groups * CALLS) as usize;
            let (from, into) = (shared(&pattern(pieces * WORDS)), shared(&vec![0; pieces * WORDS]));
            let launch = Launch { scope, calls: CALLS, blocks: 2, threads: 64, ..Launch::new(&[], &[]) };
            let posted =
                run(kernel, &receiver, &Launch { operation: Operation::Receive, ..launch.on(into, &[]) });
            assert!(posted.status.iter().all(|status| *status == 0), "receives by {scope:?}");
            let sent = run(
                kernel,
                &sender,
                &Launch {
                    operation: Operation::Send,
                    flags: fi::FI_REMOTE_CQ_DATA,
                    threshold: pieces as u64,
                    peer: Some(&receiver),
                    ..launch.on(from, &[])
                },
            );
            assert!(sent.status.iter().all(|status| *status == 0), "sends by {scope:?}");
            // No calls: thread 0 reads the completions.
            let waited = run(
                kernel,
                &receiver,
                &Launch { calls: 0, threshold: pieces as u64, threads: 32, ..Launch::new(&[], &[]) },
            );
            assert_eq!((waited.status[0], waited.entries.len()), (0, pieces));
            for entry in &waited.entries {
                let (receive, message) = (entry.op_context.addr() - 1, entry.data as usize);
                assert_eq!(into[receive * WORDS..][..WORDS], from[message * WORDS..][..WORDS]);
            }
            let contexts: BTreeSet<usize> =
                waited.entries.iter().map(|entry| entry.op_context.addr()).collect();
            assert_eq!(contexts, (1..=pieces).collect(), "each receive once");
        }
    });
}

#[test]
fn a_shallow_queue_is_driven_by_reading_its_completions() {
    on_gpu(&REORDERED, |kernel, client| {
        const PIECES: u64 = 4096;
        let shallow = Options { depth: 16, completions: 16, counter: false, ..options() };
        let program = Program::new(client, &shallow);
        let (from, to) = (shared(&pattern(PIECES as usize)), shared(&vec![0; PIECES as usize]));
        let calls = PIECES as u32 / 64;
        let ended = run(kernel, &program, &Launch { calls, threshold: PIECES, ..Launch::new(from, to) });
        assert_eq!(ended.status, vec![0; 64]);
        assert!(std::hint::black_box(&*to) == from);
        let contexts: BTreeSet<usize> = ended.entries.iter().map(|entry| entry.op_context.addr()).collect();
        assert_eq!((ended.entries.len() as u64, contexts), (PIECES, (1..=PIECES as usize).collect()));
    });
}

#[test]
fn a_wrong_key_ends_the_wait_and_is_read_as_an_error() {
    on_gpu(&REORDERED[..1], |kernel, client| {
        let (from, to) = (shared(&pattern(8)), shared(&[0; 8]));
        let wrong = Launch { key: Some(0x0bad_0bad), timeout: 20_000, threads: 32, ..Launch::new(from, to) };
        let program = Program::new(client, &options());
        // The wait's end by the error leaves the status of the call, which was posted.
        let begin = std::time::Instant::now();
        assert_eq!(run(kernel, &program, &Launch { threshold: 64, ..wrong }).status[0], 0);
        assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{:?}", begin.elapsed());
        let program = Program::new(client, &Options { counter: false, ..options() });
        let ended = run(kernel, &program, &Launch { threshold: 32, ..wrong });
        assert_eq!(ended.status[0], -(fi::FI_EAVAIL as i32));
        assert_eq!(std::hint::black_box(&*to), &[0; 8]);
    });
}
