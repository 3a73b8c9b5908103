//! Limits of the broker's process: what its clients get under a limit of descriptors, and what it does when the system
//! refuses it something.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use client::{Call, Client};
use efa_gda_test_support::TempDir;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use served::{Process, open_by_the_library, serve, serve_limited};
use softefa_abi::sys::*;

#[test]
fn as_many_queue_pairs_as_advertised_can_be_had_at_a_limit_of_1024_descriptors() {
    let folder = TempDir::new("many");
    let socket = folder.path().join("socket");
    let broker = serve_limited(&socket, 1, 1024);
    let client = Client::open(&socket);
    let mut call = Call::allocate_domain();
    assert_eq!(call.run(&client), 0);
    let domain = u32::from_ne_bytes(call.bytes(UVERBS_ATTR_CORE_OUT).try_into().unwrap());
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", broker.id())).unwrap().count();
    let before = descriptors();
    for _ in 0..1024 {
        let mut queue = Call::create_completion_queue(16);
        assert_eq!(queue.run(&client), 0);
        let queue = queue.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE);
        assert_eq!(Call::create_queue_pair(domain, queue, 16, 16).run(&client), 0);
    }
    assert_eq!(descriptors(), before + 2, "the files of rings");
}

#[test]
fn a_client_that_opens_too_many_devices_is_refused_by_name_and_another_is_served() {
    let folder = TempDir::new("greedy");
    let socket = folder.path().join("socket");
    let broker = serve_limited(&socket, 1, 64);
    // Half of the six that 64 descriptors allow.
    let opened = [(); 3].map(|()| Client::open(&socket));
    assert_eq!(Client::try_open(&socket, 0).unwrap_err(), libc::EMFILE);
    assert_eq!(open_by_the_library(&socket), (true, String::new()));
    drop(opened);
    let (_, report) = broker.end();
    let name = format!("softefa: process {} (", std::process::id());
    let is_named = |line: &str| line.starts_with(&name) && line.contains("was refused 1 open devices more");
    assert!(report.lines().any(is_named), "{report}");
}

/// How often the broker's accepting thread has waited. `None`: there is no such thread.
fn waits(broker: &Process) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{}/task", broker.id())).unwrap();
    let mut folders = threads.map(|entry| entry.unwrap().path());
    let is_accepting = |folder: &PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == "softefa-accept")
    };
    let status = fs::read_to_string(folders.find(is_accepting)?.join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    Some(line.split_whitespace().nth(1).unwrap().parse().unwrap())
}

/// Sets the soft limit of a resource of the broker. Returns the one before.
fn limit(broker: &Process, resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers are to values of this frame, or null.
    assert_eq!(unsafe { libc::prlimit(broker.id(), resource, std::ptr::null(), &raw mut old) }, 0);
    let new = libc::rlimit { rlim_cur: soft, rlim_max: old.rlim_max };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::prlimit(broker.id(), resource, &raw const new, std::ptr::null_mut()) }, 0);
    old.rlim_cur
}

/// A client whose wait for a reply ends after ten seconds.
fn patient(socket: &std::path::Path) -> Client {
    let client = Client::connect(socket);
    setsockopt(&client.0, sockopt::ReceiveTimeout, &TimeVal::new(10, 0)).unwrap();
    client
}

#[test]
fn a_broker_that_cannot_accept_or_start_a_thread_serves_when_it_can_again() {
    let folder = TempDir::new("retry");
    let socket = folder.path().join("socket");
    let broker = serve(&socket, 1);
    let before = limit(&broker, libc::RLIMIT_NOFILE, 0);
    // The broker may have reserved a descriptor for the first connection.
    let reserved = patient(&socket);
    let client = patient(&socket);
    let end = Instant::now() + Duration::from_secs(10);
    let mut first = None;
    // It tries again and again. A thread that has just started has no name yet.
    while waits(&broker).is_none_or(|now| now < *first.get_or_insert(now) + 3) {
        assert!(Instant::now() < end, "the broker does not try again");
        std::thread::sleep(Duration::from_millis(1));
    }
    limit(&broker, libc::RLIMIT_NOFILE, before);
    assert_eq!(client.exchange(&[0]).errno, libc::EINVAL, "the message is refused, and so was received");
    assert!([libc::EMFILE, libc::EINVAL].contains(&reserved.exchange(&[0]).errno));
    let before = limit(&broker, libc::RLIMIT_AS, 0);
    assert_eq!(patient(&socket).exchange(&[0]).errno, libc::EIO, "the connection was closed");
    limit(&broker, libc::RLIMIT_AS, before);
    assert_eq!(patient(&socket).exchange(&[0]).errno, libc::EINVAL);
    assert!(broker.end().1.contains("because no thread can be started for it"));
}
