//! Completion channels of the broker, without the preloaded library. When a queue sends an event, the tests of the
//! device core state (`device_events`).

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use client::{Call, Client, Device};
use efa_gda_test_support::TempDir;
use efa_gda_wire::CompletionStatus;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use served::{broker, serve, serve_limited, start};
use softefa_abi::get;
use softefa_abi::sys::*;
use softefa_uverbs::broker::gid;

/// A device whose completion queue has the events `handle` on this channel, armed.
fn armed(client: Client, channel: &OwnedFd, handle: u64) -> Device {
    let mut call = Call::create_notifying_queue(16, handle, channel.as_raw_fd());
    assert_eq!(call.run_on(&client, channel), 0);
    let device = Device::with_queue(client, gid(0).0, 16, 16, &call).unwrap();
    device.ring_completion_doorbell(ARM);
    device
}

const ARM: u32 = 1 << 31;

/// Makes the completion queue's first event, and waits until it is in the channel.
fn notify(device: &mut Device) {
    let mut bytes = vec![0_u8; 128];
    let region = device.register(bytes.as_mut_ptr() as u64, 128).unwrap();
    device.write(&region, &region, 64);
    assert_eq!(device.wait(), CompletionStatus::Ok);
    // The call waits until the engine has ended the queue pair's round.
    assert_eq!(Call::allocate_domain().run(&device.client), 0);
    assert_eq!(Call::deregister(region.handle).run(&device.client), 0);
}

fn readable(channel: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

/// The next event, which must be there. A longer buffer receives one event, too.
fn event(channel: &OwnedFd) -> u64 {
    assert!(readable(channel));
    let mut bytes = [0; 24];
    let mut file = File::from(channel.try_clone().unwrap());
    assert_eq!(file.read(&mut bytes).unwrap(), 8);
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

/// Destroys the device's queues. Returns how many events the broker states that the program has read.
fn destroy(device: &Device) -> u32 {
    assert_eq!(Call::destroy_queue_pair(device.queue_pair).run(&device.client), 0);
    let mut call = Call::destroy_completion_queue(device.queue);
    assert_eq!(call.run(&device.client), 0);
    get!(call.bytes(UVERBS_ATTR_DESTROY_CQ_RESP), ib_uverbs_destroy_cq_resp, comp_events_reported)
}

fn channel(client: &Client) -> OwnedFd {
    Call::create_channel().descriptor(client).unwrap()
}

#[test]
fn an_event_has_the_value_of_its_queue_and_counts_as_reported_once_it_is_read() {
    let folder = TempDir::new("event");
    let socket = folder.path().join("socket");
    let _broker = serve(&socket, 1);
    let client = Client::open(&socket);
    let channel = channel(&client);
    let mut device = armed(client, &channel, 0x1234_5678_9abc);
    assert!(!readable(&channel));
    notify(&mut device);
    assert_eq!(event(&channel), 0x1234_5678_9abc);
    assert!(!readable(&channel));
    assert_eq!(destroy(&device), 1);
}

#[test]
fn an_event_that_was_not_read_is_gone_with_its_queue_and_those_of_other_queues_stay() {
    let folder = TempDir::new("unread");
    let socket = folder.path().join("socket");
    let _broker = serve(&socket, 1);
    let client = Client::open(&socket);
    let channel = channel(&client);
    let queue = |handle| {
        let client = Client(client.0.try_clone().unwrap());
        let mut device = armed(client, &channel, handle);
        notify(&mut device);
        device
    };
    let devices = [queue(1), queue(2), queue(3)];
    assert_eq!(destroy(&devices[1]), 0);
    assert_eq!([event(&channel), event(&channel)], [1, 3]);
    assert!(!readable(&channel));
    assert_eq!([destroy(&devices[0]), destroy(&devices[2])], [1, 1]);
}

#[test]
fn only_a_channel_of_the_same_open_device_is_one() {
    let folder = TempDir::new("foreign");
    let socket = folder.path().join("socket");
    let _broker = serve(&socket, 1);
    let (client, other) = (Client::open(&socket), Client::open(&socket));
    let foreign = channel(&other);
    let plain = File::open("/dev/null").unwrap();
    let mut call = Call::create_notifying_queue(16, 1, 0);
    assert_eq!(call.run_on(&client, &foreign), libc::EBADF);
    assert_eq!(call.run_on(&client, &plain), libc::EBADF);
    assert_eq!(call.run(&client), libc::EBADF);
    assert_eq!(call.run_on(&other, &foreign), 0);
}

#[test]
fn a_completion_vector_that_the_device_does_not_have_is_refused() {
    let folder = TempDir::new("vector");
    let socket = folder.path().join("socket");
    let _broker = serve(&socket, 1);
    let client = Client::open(&socket);
    let queue = |vector| {
        Call::create_completion_queue(16).number(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, 4, vector).run(&client)
    };
    assert_eq!([queue(1), queue(2)], [0, libc::EINVAL]);
}

#[test]
fn an_adapter_without_completion_doorbells_has_no_notifications() {
    let folder = TempDir::new("without");
    let socket = folder.path().join("socket");
    let _broker = start(broker(&socket, 1).env("SOFTEFA_CQ_DOORBELL", "0"));
    let client = Client::open(&socket);
    let channel = channel(&client);
    let mut call = Call::create_notifying_queue(16, 1, channel.as_raw_fd());
    assert_eq!(call.run_on(&client, &channel), libc::EOPNOTSUPP);
}

#[test]
fn closed_channels_leave_no_descriptors_and_open_ones_are_limited() {
    let folder = TempDir::new("channels");
    let socket = folder.path().join("socket");
    let broker = serve_limited(&socket, 1, 64);
    let client = Client::open(&socket);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", broker.id())).unwrap().count();
    let before = descriptors();
    for _ in 0..200 {
        let channel = channel(&client);
        let mut call = Call::create_notifying_queue(16, 1, channel.as_raw_fd());
        assert_eq!(call.run_on(&client, &channel), 0);
        let queue = call.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE);
        assert_eq!(Call::destroy_completion_queue(queue).run(&client), 0);
    }
    assert_eq!(descriptors(), before + 2, "the file of rings, and the last channel");
    // 32 of the 64 descriptors are the broker's own, a device has eight, and a channel two.
    let open: Vec<_> = std::iter::from_fn(|| Call::create_channel().descriptor(&client).ok()).collect();
    assert_eq!(open.len(), 12);
    assert_eq!(Call::create_channel().descriptor(&client).unwrap_err(), libc::EMFILE);
}
