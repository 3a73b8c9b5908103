//! Limits of the broker: what programs get under a limit of descriptors.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::fs;
use std::time::Duration;

use client::{Call, Client};
use efa_gda_test_support::{TempDir, until};
use served::{open_by_the_library, serve_limited};
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
    assert_eq!(descriptors(), before + 1, "the file of rings");
}

#[test]
fn a_program_that_opens_too_many_devices_is_refused_by_name_until_one_is_closed() {
    let folder = TempDir::new("devices");
    let socket = folder.path().join("socket");
    let broker = serve_limited(&socket, 1, 64);
    // 32 of the 64 descriptors are the broker's own, and a device has eight.
    let mut opened: Vec<_> = (0..4).map(|_| Client::open(&socket)).collect();
    assert_eq!(Client::try_open(&socket, 0).unwrap_err(), libc::EMFILE);
    opened.pop();
    until(Duration::from_secs(60), "a device to be free", || open_by_the_library(&socket).0.then_some(()));
    let (_, report) = broker.end();
    let name = format!("softefa: process {} (", std::process::id());
    assert!(report.lines().any(|line| line.starts_with(&name) && line.contains("was refused")), "{report}");
}
