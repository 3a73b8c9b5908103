//! FI_XPU through the libfabric frontend: a program as fi_xpu(3) of libfabric 2.7 describes it, whose device is the CPU
//! (kernels/examples/fi_xpu.cu on the host executor). libfabric_xpu_provider.rs has the provider's answers to the host.

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
use std::time::{Duration, Instant};

use device::{Device, Operation, Scope};
use efa_gda_sys::device::{EFA_GDA_TIMEOUT_SLOTS, efa_gda_xpu_cntr};
use efa_gda_sys::fi;
use libfabric_common::Client;
use libfabric_common::queues::wait;
use program::{Counts, Launch, Options, Program, on_2_7, pattern};

const INVALID: c_int = -libc::EINVAL;
const NOT_PROVIDED: c_int = -libc::ENOSYS;
const AGAIN: i64 = -(libc::EAGAIN as i64);
const ERROR_AVAILABLE: i64 = -(fi::FI_EAVAIL as i64);

/// Groups of a launch of 2 blocks of 64 threads.
const SCOPES: [(Scope, u32); 4] =
    [(Scope::Thread, 128), (Scope::Warp, 4), (Scope::Block, 2), (Scope::Device, 1)];
const CALLS: u32 = 5;

/// Moves `CALLS` pieces for each group of `scope`, by a counter.
fn move_pieces(client: &Client, operation: Operation, scope: Scope, groups: u32, seed: u64) {
    const WORDS: usize = 8;
    let pieces = (groups * CALLS) as usize;
    let program = Program::new(client, &Options::default());
    let full = pattern(pieces * WORDS);
    let (mut local, mut remote) = (vec![0; pieces * WORDS], vec![0; pieces * WORDS]);
    if operation == Operation::Read { &mut remote } else { &mut local }.copy_from_slice(&full);
    let ended = program.run(&Launch {
        operation,
        scope,
        calls: CALLS,
        threshold: pieces as u64,
        blocks: 2,
        threads: 64,
        seed,
        ..Launch::new(&local, &remote)
    });
    assert_eq!(ended.status, vec![0; 128], "{operation:?} by {scope:?}");
    assert_eq!(program.count(), Counts { success: pieces as u64, error: 0 });
    assert!(std::hint::black_box(&local) == &full && std::hint::black_box(&remote) == &full, "{operation:?}");
}

#[test]
fn threads_warps_blocks_and_the_grid_write_and_wait_by_a_counter() {
    on_2_7(&[], |client| {
        for (scope, groups) in SCOPES {
            move_pieces(client, Operation::Write, scope, groups, 0);
        }
    });
}

#[test]
fn every_scope_reads() {
    on_2_7(&[("SOFTEFA_REORDER", "16"), ("SOFTEFA_SEED", "5")], |client| {
        for (scope, groups) in SCOPES {
            move_pieces(client, Operation::Read, scope, groups, 0);
        }
    });
}

#[test]
fn calls_may_interleave_at_every_access() {
    on_2_7(&[("SOFTEFA_REORDER", "16"), ("SOFTEFA_SEED", "7")], |client| {
        for seed in 1..6 {
            move_pieces(client, Operation::Write, Scope::Thread, 128, seed);
            move_pieces(client, Operation::Write, Scope::Device, 1, seed);
        }
    });
}

#[test]
fn messages_arrive_in_posted_receives_with_their_contexts() {
    for scope in [Scope::Thread, Scope::Warp, Scope::Device] {
        on_2_7(&[], |client| {
            const WORDS: usize = 16;
            let groups = SCOPES.iter().find(|(one, _)| *one == scope).unwrap().1;
            let pieces = groups * CALLS;
            let sender = Program::new(client, &Options::default());
            let receiver = Program::beside(&sender, &Options::default());
            let from = pattern(pieces as usize * WORDS);
            let into = vec![0; from.len()];
            let launch = Launch { scope, calls: CALLS, blocks: 2, threads: 64, ..Launch::new(&[], &[]) };
            let posted = receiver.run(&Launch { operation: Operation::Receive, ..launch.on(&into, &[]) });
            assert_eq!(posted.status, vec![0; 128]);
            let sent = sender.run(&Launch {
                operation: Operation::Send,
                flags: fi::FI_REMOTE_CQ_DATA,
                threshold: pieces.into(),
                peer: Some(&receiver),
                ..launch.on(&from, &[])
            });
            assert_eq!(sent.status, vec![0; 128]);
            let entries = receiver.sread(pieces as usize);
            let sent_data: BTreeSet<u64> = entries.iter().map(|entry| entry.data).collect();
            assert_eq!(sent_data, (0..pieces.into()).collect(), "each message once");
            for entry in &entries {
                assert_eq!(entry.flags, fi::FI_MSG | fi::FI_RECV | fi::FI_REMOTE_CQ_DATA);
                assert_eq!(entry.len, 8 * WORDS);
                // The receive that the context names holds the message that the data names.
                let (receive, message) = (entry.op_context.addr() - 1, entry.data as usize);
                let words = |all: &[u64], piece: usize| all[piece * WORDS..][..WORDS].to_vec();
                assert_eq!(words(std::hint::black_box(&into), receive), words(&from, message));
            }
            let contexts: BTreeSet<usize> = entries.iter().map(|entry| entry.op_context.addr()).collect();
            assert_eq!(contexts, (1..=pieces as usize).collect(), "each receive once");
        });
    }
}

#[test]
fn a_shallow_queue_is_driven_by_reading_its_completions() {
    // 4,096 writes through 16 slots and 16 completions, by 64 threads that read completions where a call finds no room.
    on_2_7(&[("SOFTEFA_REORDER", "8"), ("SOFTEFA_SEED", "11")], |client| {
        const PIECES: u64 = 4096;
        let options = Options { depth: 16, completions: 16, counter: false, ..Options::default() };
        let program = Program::new(client, &options);
        let (from, to) = (pattern(PIECES as usize), vec![0; PIECES as usize]);
        let ended =
            program.run(&Launch { calls: PIECES as u32 / 64, threshold: PIECES, ..Launch::new(&from, &to) });
        assert_eq!(ended.status, vec![0; 64]);
        assert!(std::hint::black_box(&to) == &from);
        let contexts: BTreeSet<usize> = ended.entries.iter().map(|entry| entry.op_context.addr()).collect();
        assert_eq!((ended.entries.len() as u64, contexts), (PIECES, (1..=PIECES as usize).collect()));
        assert!(ended.entries.iter().all(|entry| entry.flags == fi::FI_RMA | fi::FI_WRITE));
    });
}

#[test]
fn an_unread_completion_queue_refuses_further_calls() {
    on_2_7(&[], |client| {
        let options = Options { completions: 16, ..Options::default() };
        let program = Program::new(client, &options);
        let (from, to) = (pattern(17), vec![0; 17]);
        let one = Launch { threads: 1, ..Launch::new(&from, &to) };
        assert_eq!(program.run(&Launch { calls: 16, threshold: 16, ..one }).status, [0]);
        assert_eq!(program.post_once(&one), AGAIN);
        assert_eq!(program.read(4).unwrap().len(), 4);
        assert_eq!(program.post_once(&one), 0);
    });
}

#[test]
fn a_receive_queue_refuses_more_than_it_holds() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options { receives: 16, ..Options::default() });
        let into = vec![0; 64];
        let launch = Launch { operation: Operation::Receive, threads: 1, ..Launch::new(&into, &[]) };
        let posted = (0..64).map(|_| program.post_once(&launch)).take_while(|result| *result == 0).count();
        // libfabric counts segments, of which a receive has up to four.
        assert_eq!((posted, program.post_once(&launch)), (16 * 4, AGAIN));
    });
}

/// A write with a wrong key, of a program that waits 20 s at most.
fn wrong_key(program: &Program, from: &[u64], to: &[u64]) -> Duration {
    let start = Instant::now();
    let ended = program.run(&Launch {
        key: Some(0x0bad_0bad),
        threshold: program.count().success + 1,
        timeout: 20_000,
        threads: 1,
        ..Launch::new(from, to)
    });
    assert_eq!(ended.status, [0]);
    start.elapsed()
}

#[test]
fn a_wrong_key_ends_the_wait_with_an_error() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let (from, to) = (pattern(8), vec![0; 8]);
        assert!(wrong_key(&program, &from, &to) < Duration::from_secs(10));
        assert_eq!(program.count(), Counts { success: 0, error: 1 });
        assert_eq!(program.read(1).unwrap_err(), ERROR_AVAILABLE);
        let error = program.read_error().unwrap();
        assert_eq!((error.op_context.addr(), error.flags), (1, fi::FI_RMA | fi::FI_WRITE));
        // EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS
        assert_eq!((error.err, error.prov_errno), (libc::EINVAL, 7));
        assert_eq!(program.read(1).unwrap_err(), AGAIN);
        assert_eq!(program.read_error().unwrap_err(), AGAIN);
        assert_eq!(std::hint::black_box(&to), &[0; 8]);
    });
}

#[test]
fn the_host_reads_the_errors_of_an_endpoint_with_a_host_cq() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options { host_cq: true, ..Options::default() });
        let (from, to) = (pattern(64), vec![0; 64]);
        let ended = program.run(&Launch { threshold: 64, ..Launch::new(&from, &to) });
        assert_eq!(ended.status, vec![0; 64]);
        assert!(std::hint::black_box(&to) == &from);
        assert!(wrong_key(&program, &from[..8], &to[..8]) < Duration::from_secs(10));
        let mut entry = fi::fi_cq_data_entry::default();
        let mut read = || {
            let count = call!((*program.cq).ops, read, program.cq, (&raw mut entry).cast(), 1);
            (count != -libc::EAGAIN as isize).then_some(count)
        };
        for _ in 0..64 {
            assert_eq!(wait("a completion", &mut read), 1);
        }
        assert_eq!(wait("the error", read), -(fi::FI_EAVAIL as isize));
        let mut error = fi::fi_cq_err_entry::default();
        assert_eq!(call!((*program.cq).ops, readerr, program.cq, &mut error, 0), 1);
        assert_eq!((error.err, error.prov_errno), (libc::EINVAL, 7));
    });
}

#[test]
fn a_wait_ends_at_its_timeout() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let start = Instant::now();
        program.device().wait(&program, 1, 300);
        assert!((Duration::from_millis(300)..Duration::from_secs(20)).contains(&start.elapsed()));
        assert_eq!(program.count(), Counts { success: 0, error: 0 });
    });
}

#[test]
fn a_device_adds_to_and_sets_its_counter() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let (from, to) = (pattern(4), vec![0; 4]);
        assert_eq!(program.device().change(&program, 1, 1000), 0);
        assert_eq!(program.device().change(&program, 2, 3), 0);
        let launch = Launch { threshold: 1004, threads: 4, ..Launch::new(&from, &to) };
        assert_eq!(program.run(&launch).status, [0; 4]);
        assert_eq!(program.device().change(&program, 0, 10), 0);
        assert_eq!(program.count(), Counts { success: 1014, error: 3 });
        assert_eq!(program.device().change(&program, 3, 0), 0);
        assert_eq!(program.count(), Counts { success: 1014, error: 0 });
    });
}

#[test]
fn calls_that_no_entry_can_express_are_refused() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let (from, to) = (pattern(4096), vec![0; 4096]);
        let one = Launch { threads: 1, ..Launch::new(&from, &to) };
        let refused = |launch: Launch<'_>| -program.post_once(&launch) as c_int;
        assert_eq!(refused(Launch { key: Some(1 << 32), ..one }), libc::EINVAL);
        assert_eq!(refused(Launch { flags: fi::FI_TAGGED << 40, ..one }), fi::FI_EBADFLAGS as c_int);
        let long = Launch { bytes: 8 * 4096, operation: Operation::Send, ..one };
        assert_eq!(refused(long), libc::EMSGSIZE);
        assert_eq!(refused(Launch { bytes: 1 << 31, ..one }), libc::EMSGSIZE);
        let inject = Launch { flags: fi::FI_INJECT, bytes: 33, operation: Operation::Send, ..one };
        assert_eq!(refused(inject), libc::EMSGSIZE);
        // A warp that is not whole.
        let half = Launch { scope: Scope::Warp, threads: 16, ..one };
        assert_eq!(program.run(&half).status, [INVALID; 16]);
        assert_eq!(program.count(), Counts { success: 0, error: 0 });
    });
}

#[test]
fn a_handle_of_another_layout_is_refused() {
    on_2_7(&[], |client| {
        let mut program = Program::new(client, &Options::default());
        let (from, to) = (pattern(1), vec![0; 1]);
        let good = program.exported;
        for break_it in [
            (|ep: &mut fi::fid_xpu| ep.fclass = fi::FI_CLASS_CQ) as fn(&mut fi::fid_xpu),
            |ep| ep.prov_ctx = 0,
            // The magic number begins the struct.
            |ep| ep.prov_ctx += 8,
        ] {
            program.exported = good;
            break_it(&mut program.exported.0.fid);
            let one = Launch { threads: 1, ..Launch::new(&from, &to) };
            assert_eq!(program.post_once(&one), INVALID.into());
        }
        program.exported = good;
        program.exported.0.fid.prov_id = 2;
        let one = Launch { threads: 1, ..Launch::new(&from, &to) };
        assert_eq!(program.post_once(&one), NOT_PROVIDED.into());
    });
}

#[test]
fn blocks_that_do_not_meet_end_at_the_bound() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        // SAFETY: the exported struct is host memory, and no kernel runs.
        unsafe { (*program.exported_ep()).object.timeout_ns = 50_000_000 };
        let (from, to) = (pattern(1), vec![0; 1]);
        let launch = Launch { scope: Scope::Device, threads: 32, ..Launch::new(&from, &to) };
        // One block of a grid of two.
        let status = program.run_block_of(&launch, 0, 2);
        assert_eq!(status, vec![-libc::ETIMEDOUT; 32]);
        // And from then on.
        assert_eq!(program.run(&launch).status, vec![-libc::ETIMEDOUT; 32]);
        assert_eq!(program.run(&Launch { scope: Scope::Warp, ..launch }).status, vec![0; 32]);
    });
}

#[test]
fn a_grid_stays_refused_after_several_blocks_waited_in_vain() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        // SAFETY: the exported struct is host memory, and no kernel runs.
        unsafe { (*program.exported_ep()).object.timeout_ns = 50_000_000 };
        let (from, to) = (pattern(1), vec![0; 1]);
        let launch = Launch { scope: Scope::Device, blocks: 3, threads: 1, ..Launch::new(&from, &to) };
        let run = |block: u32| program.run_block_of(&launch, block, 3)[block as usize];
        let waited = std::thread::scope(|scope| {
            [0, 1].map(|block| scope.spawn(move || run(block))).map(|run| run.join().unwrap())
        });
        assert_eq!(waited, [-libc::ETIMEDOUT; 2]);
        // The third would complete a meeting of three.
        assert_eq!(run(2), -libc::ETIMEDOUT);
        assert_eq!(program.count(), Counts { success: 0, error: 0 });
    });
}

#[test]
fn a_wait_of_the_grid_may_last_longer_than_the_bound_in_which_its_blocks_must_meet() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let counter: *mut efa_gda_xpu_cntr =
            ptr::with_exposed_provenance_mut(program.exported.2.fid.prov_ctx as usize);
        // SAFETY: as above. The blocks meet within this time: two threads are started, and nothing else.
        unsafe { (*counter).object.timeout_ns = 3_000_000_000 };
        let wait = |block| program.device().wait_as_block(&program, 6000, block, 2);
        let results = std::thread::scope(|scope| {
            [0, 1].map(|block| scope.spawn(move || wait(block))).map(|run| run.join().unwrap())
        });
        assert_eq!(results, [0, 0]);
    });
}

#[test]
fn a_refused_call_reads_no_value_of_a_counter() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        assert_eq!(program.device().change(&program, 0, 7), 0);
        assert_eq!(program.device().change(&program, 2, 5), 0);
        assert_eq!(program.count(), Counts { success: 7, error: 5 });
        // One thread is no warp.
        assert_eq!(program.count_by(Scope::Warp), Counts { success: 0, error: 0 });
    });
}

#[test]
fn a_change_of_the_errors_ends_a_wait_that_has_begun() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let start = Instant::now();
        std::thread::scope(|scope| {
            // As in `wrong_key`: without the change it ends after 20 s.
            let waiting = scope.spawn(|| program.device().wait(&program, 1, 20_000));
            while !waiting.is_finished() {
                assert_eq!(program.device().change(&program, 2, 1), 0);
                std::thread::yield_now();
            }
        });
        assert!(start.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn a_refused_request_leaves_its_entry_of_the_completion_queue_to_others() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options { completions: 16, ..Options::default() });
        let (from, to) = (pattern(1), vec![0; 1]);
        let one = Launch { threads: 1, ..Launch::new(&from, &to) };
        // SAFETY: the exported struct is host memory, and no kernel runs.
        let max_batch = unsafe { &raw mut (*program.exported_ep()).queue.sq.max_batch };
        // SAFETY: as above. The engine opens no handle of a queue with max_batch 0.
        let valid = unsafe { max_batch.replace(0) };
        for _ in 0..17 {
            assert_eq!(program.post_once(&one), INVALID.into());
        }
        // SAFETY: as above.
        unsafe { max_batch.write(valid) };
        assert_eq!(program.post_once(&one), 0);
    });
}

#[test]
fn an_endpoint_out_of_service_refuses_requests_and_receives() {
    on_2_7(&[], |client| {
        let program = Program::new(client, &Options::default());
        let (from, to) = (pattern(1), vec![0; 1]);
        // SAFETY: the exported struct is host memory, and no kernel runs.
        unsafe { (*program.exported_ep()).queue.error.poison = EFA_GDA_TIMEOUT_SLOTS };
        for operation in [Operation::Write, Operation::Receive] {
            let one = Launch { operation, threads: 1, ..Launch::new(&from, &to) };
            assert_eq!(program.post_once(&one), -i64::from(libc::ECANCELED), "{operation:?}");
        }
    });
}

#[test]
fn the_device_reports_statuses_as_libfabrics_errors() {
    // prov/efa/src/efa_errno.h of libfabric, by EFA_IO_COMP_STATUS.
    let (invalid, other) = (libc::EINVAL, fi::FI_EOTHER as c_int);
    let errors = [
        0,
        libc::ECANCELED,
        invalid,
        invalid,
        invalid,
        invalid,
        libc::EMSGSIZE,
        invalid,
        libc::ECONNABORTED,
        libc::ENOTCONN,
        fi::FI_ENORX as c_int,
        libc::EMSGSIZE,
        libc::EREMOTEIO,
        libc::ECONNABORTED,
        libc::ENOTCONN,
        libc::EHOSTUNREACH,
        other,
        other,
        invalid,
    ];
    let device = Device::get();
    let reported: Vec<c_int> = (0..errors.len() as u32).map(|status| device.error_of(status)).collect();
    assert_eq!(reported, errors);
}

#[test]
fn libfabrics_own_device_header_dispatches_to_this_one() {
    let Some(folder) = std::env::var_os("LIBFABRIC_DIR").filter(|folder| !folder.is_empty()) else {
        return efa_gda_test_support::skip("LIBFABRIC_DIR names no libfabric");
    };
    let include = std::path::Path::new(&folder).join("include");
    if !include.join("rdma/fi_xpu_device.h").is_file() {
        return efa_gda_test_support::skip("the libfabric in LIBFABRIC_DIR is older than 2.7");
    }
    on_2_7(&[("LIBFABRIC_INCLUDE", include.to_str().unwrap())], |client| {
        let device = Device::compiled(std::env::var_os("LIBFABRIC_INCLUDE"));
        let program = Program::new(client, &Options { device: Some(device), ..Options::default() });
        let (from, to) = (pattern(64), vec![0; 64]);
        let launch = Launch { threshold: 64, ..Launch::new(&from, &to) };
        assert_eq!(program.run(&launch).status, vec![0; 64]);
        assert!(std::hint::black_box(&to) == &from);
    });
}
