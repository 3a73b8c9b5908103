//! softefa's C interface, loaded beside libfabric from the file that libfabric loaded.

#![allow(clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod libfabric_common;

use std::ffi::c_int;
use std::io::Write;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::{Duration, Instant};

use efa_gda_sys::fi;
use efa_gda_test_support::{TempDir, compile, rest};
use efa_gda_wire::CompletionStatus;
use libfabric_common::queues::{Poller, Poster, memory, wait, write_to_self};
use libfabric_common::{
    Client, Opened, SoftAdapter, SoftefaStatistics, SoftefaViolation, bind, enable, name_of, open_cq,
    open_ep, with_opened, with_soft_adapter,
};

const INVALID: c_int = -libc::EINVAL;
/// The bound of a wait.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_wrong_phase_bit_is_reported_with_its_rule_queue_and_slot() {
    with_opened(&[], |opened| {
        let (from, to) = (memory(1, 1), memory(1, 0));
        let request = write_to_self(&opened, &from, &to, 5);
        Poster::new(&opened, 0).post_with_phase(&request, true);
        let softefa = SoftAdapter::loaded();
        wait("a violation", || (softefa.violation_count() != 0).then_some(()));
        let violation = softefa.violation(0).unwrap();
        assert_eq!(&violation.rule[..6], b"phase\0");
        let number = u16::from_ne_bytes(name_of(opened.ep)[16..18].try_into().unwrap());
        assert_eq!((violation.queue_kind, violation.queue), (0, number.into()));
        assert_eq!((violation.adapter, violation.slot, violation.counter), (0, 0, 0));
        assert!(softefa.violations()[0].starts_with("phase: "), "{}", softefa.violations()[0]);
        softefa.reset();
        assert_eq!(softefa.violation_count(), 0);
        assert_eq!(softefa.violation(0).map(|_| ()), Err(INVALID));
    });
}

/// Breaks a rule, and returns what this process wrote to its standard error.
fn stderr_after_a_violation() -> String {
    let client = Client::load();
    let opened = Opened::new(&client, |_| {});
    let (from, to) = (memory(1, 1), memory(1, 0));
    Poster::new(&opened, 0).post_with_phase(&write_to_self(&opened, &from, &to, 5), true);
    wait("a violation", || (SoftAdapter::loaded().violation_count() != 0).then_some(()));
    // A child's standard error is a file, which this opens again from its beginning.
    std::fs::read_to_string("/proc/self/fd/2").unwrap()
}

#[test]
fn a_violation_is_logged_with_softefa_log() {
    with_soft_adapter(&[("SOFTEFA_LOG", "1")], |_| {
        let stderr = stderr_after_a_violation();
        let text = &SoftAdapter::loaded().violations()[0];
        assert!(
            stderr.lines().any(|line| line.ends_with(&format!("softefa: VIOLATION: {text}"))),
            "{stderr}"
        );
    });
}

#[test]
fn a_violation_is_not_logged_without_softefa_log() {
    with_soft_adapter(&[], |_| {
        let stderr = stderr_after_a_violation();
        assert!(!stderr.contains("VIOLATION"), "{stderr}");
    });
}

/// Calls `body` while the standard error of this child is `file`.
fn with_stderr<T>(file: &impl AsRawFd, body: impl FnOnce() -> T) -> T {
    // SAFETY: duplicates of open descriptors; the copy of the standard error is put back.
    unsafe {
        let stderr = libc::dup(2);
        assert!(stderr > 2 && libc::dup2(file.as_raw_fd(), 2) == 2);
        let result = body();
        assert!(libc::dup2(stderr, 2) == 2 && libc::close(stderr) == 0);
        result
    }
}

#[test]
fn a_violation_is_found_also_if_nobody_reads_its_line() {
    with_opened(&[("SOFTEFA_LOG", "1")], |opened| {
        let (from, to) = (memory(1, 1), memory(1, 0));
        let (_reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: the pipe is open; its size is that of one page.
        let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        writer.write_all(&vec![0; size as usize]).unwrap();
        let poller = Poller::new(&opened);
        // Without a panic, whose message would wait for the pipe.
        let is_complete = with_stderr(&writer, || {
            Poster::new(&opened, 0).post_with_phase(&write_to_self(&opened, &from, &to, 5), true);
            let deadline = Instant::now() + LIMIT;
            while !poller.has_next() && Instant::now() < deadline {
                rest();
            }
            poller.has_next()
        });
        assert!(is_complete, "the engine waits for the pipe");
        assert_eq!(SoftAdapter::loaded().violation_count(), 1);
    });
}

/// Posts two writes on a queue that starts at this counter.
fn write_twice_from(client: &Client, counter: u64) {
    let opened = Opened::new(client, |_| {});
    let (from, to) = (memory(1, 1), memory(1, 0));
    let request = write_to_self(&opened, &from, &to, 5);
    let (mut poster, mut poller) = (Poster::new(&opened, counter as u32), Poller::new(&opened));
    for _ in 0..2 {
        poster.post(&request);
        assert_eq!(poller.next().status, CompletionStatus::Ok);
    }
    assert_eq!(SoftAdapter::loaded().violation_count(), 0);
}

#[test]
fn a_preset_counter_above_the_limit_is_refused_and_changes_nothing() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        for counter in [u64::MAX, (1 << 63) + 1] {
            assert_eq!(SoftAdapter::loaded().preset_counter(counter), INVALID);
        }
        write_twice_from(&client, 0);
    });
}

#[test]
fn a_queue_starts_at_the_preset_counter_up_to_the_highest() {
    with_soft_adapter(&[], |_| {
        let client = Client::load();
        // The highest counter has the slot, phase and doorbell of 0, as if the preset were ignored. The other counters
        // have different ones. Past the last, the doorbell wraps.
        for counter in [1 << 63, (1 << 63) - 2, 65_535] {
            assert_eq!(SoftAdapter::loaded().preset_counter(counter), 0);
            write_twice_from(&client, counter);
        }
    });
}

#[test]
fn statistics_count_requests_since_the_reset() {
    with_opened(&[], |opened| {
        let (from, to) = (memory(2, 1), memory(2, 0));
        let request = write_to_self(&opened, &from, &to, 5);
        let (mut poster, mut poller, softefa) =
            (Poster::new(&opened, 0), Poller::new(&opened), SoftAdapter::loaded());
        poster.post(&request);
        poller.next();
        wait("the first write's count", || (softefa.statistics().entries == 1).then_some(()));
        softefa.reset();
        poster.post(&request);
        poller.next();
        let statistics = wait("the second write's count", || {
            let statistics = softefa.statistics();
            (statistics.completions == 1).then_some(statistics)
        });
        assert_eq!((statistics.entries, statistics.errors), (1, 0));
    });
}

#[test]
fn an_overrun_is_reported_once_a_consumer_index_is_set() {
    with_opened(&[], |mut opened| {
        opened.cq = open_cq(opened.domain, 4).unwrap();
        opened.ep = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(bind(opened.ep, opened.cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!((bind(opened.ep, opened.av, 0), enable(opened.ep)), (0, 0));
        let softefa = SoftAdapter::loaded();
        assert!(softefa.warnings().iter().any(|warning| warning.contains("overrun")));
        assert_eq!(softefa.set_consumer_index(opened.cq.cast(), 0), 0);
        let (from, to) = (memory(1, 1), memory(1, 0));
        let (request, mut poster) = (write_to_self(&opened, &from, &to, 5), Poster::new(&opened, 0));
        for _ in 0..5 {
            poster.post(&request);
        }
        wait("a violation", || (softefa.violation_count() != 0).then_some(()));
        assert_eq!(&softefa.violation(0).unwrap().rule[..11], b"cq-overrun\0");
    });
}

#[test]
fn a_null_or_foreign_completion_queue_is_refused() {
    with_opened(&[], |opened| {
        let softefa = SoftAdapter::loaded();
        assert_eq!(softefa.set_consumer_index(ptr::null_mut(), 0), INVALID);
        assert_eq!(softefa.set_consumer_index(opened.av.cast(), 0), INVALID);
    });
}

/// A C program that does not compile if a struct of the header has another layout.
const LAYOUTS: &str = r#"
#include <softefa.h>
#define SAME(type, field, offset) _Static_assert(offsetof(struct type, field) == offset, #field)
"#;

#[test]
fn the_c_header_matches_the_library() {
    let mut program = String::from(LAYOUTS);
    let mut layout = |name: &str, size: usize, fields: &[(&str, usize)]| {
        program += &format!("_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");\n");
        for (field, offset) in fields {
            program += &format!("SAME({name}, {field}, {offset});\n");
        }
    };
    macro_rules! fields {
        ($type:ty: $($field:ident),*) => { &[$((stringify!($field), offset_of!($type, $field))),*] };
    }
    layout(
        "softefa_violation",
        size_of::<SoftefaViolation>(),
        fields!(SoftefaViolation: adapter, queue_kind, queue, slot, counter, rule),
    );
    layout(
        "softefa_statistics",
        size_of::<SoftefaStatistics>(),
        fields!(
            SoftefaStatistics: doorbells, entries, bytes, completions, errors, receives, rnr_retries,
            violations, overruns
        ),
    );
    program += "int main(void) { return SOFTEFA_VERSION == 2 ? 0 : 1; }\n";
    let folder = TempDir::new("softefa-header");
    let source = folder.path().join("layouts.c");
    std::fs::write(&source, program).unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", include];
    compile::compile(compile::c().args(options).arg(&source));
}
