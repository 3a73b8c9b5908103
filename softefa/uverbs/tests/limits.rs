//! Limits of the broker's process: what its clients get under a limit of descriptors, and what it does when the system
//! refuses it something.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::fs;
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use client::{Call, Client, Device, lingering};
use efa_gda_test_support::{TempDir, in_child, skip, until};
use efa_gda_wire::CompletionStatus;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::Signal;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use served::{Process, open_by_the_library, serve, serve_limited, stop};
use softefa_abi::protocol::Request;
use softefa_abi::sys::*;
use softefa_uverbs::broker::gid;

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

/// A field of a process's status, in kilobytes.
fn kilobytes(process: &Process, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn regions_of_more_bytes_than_an_address_space_take_none_of_the_brokers() {
    const BYTES: NonZeroUsize = NonZeroUsize::new(1 << 40).unwrap();
    let folder = TempDir::new("sparse");
    let socket = folder.path().join("socket");
    let broker = serve(&socket, 1);
    let device = Device::new(&socket, gid(0).0, 16, 16);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the kernel chooses the address.
    let Ok(start) = (unsafe { mmap_anonymous(None, BYTES, protection, flags) }) else {
        return skip("this machine maps no terabyte without memory");
    };
    let before = kilobytes(&broker, "VmSize:");
    for _ in 0..200 {
        device.register(start.as_ptr() as u64, BYTES.get() as u64).unwrap();
    }
    let after = kilobytes(&broker, "VmSize:");
    assert!(after < before + (1 << 20), "{before} KiB before, {after} KiB after");
}

#[test]
fn pages_of_a_clients_memory_file_are_the_clients() {
    const BYTES: u64 = 64 << 20;
    let folder = TempDir::new("pages");
    let socket = folder.path().join("socket");
    let broker = serve(&socket, 1);
    let mut device = Device::new(&socket, gid(0).0, 16, 16);
    let file = fs::File::from(memfd_create(c"pages", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(BYTES).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    let mut source = vec![7_u8; BYTES as usize];
    let from = device.register(source.as_mut_ptr() as u64, BYTES).unwrap();
    let to = device.register_descriptor(file.as_fd(), BYTES).unwrap();
    let before = kilobytes(&broker, "RssShmem:");
    device.write(&from, &to, BYTES as u32);
    assert_eq!(device.wait(), CompletionStatus::Ok);
    assert_eq!(file.metadata().unwrap().blocks() * 512, BYTES, "each page was written");
    let after = kilobytes(&broker, "RssShmem:");
    assert!(after < before + 1024, "{before} KiB before, {after} KiB after");
}

#[test]
fn a_refused_client_whose_descriptors_take_long_to_close_delays_no_other() {
    let folder = TempDir::new("delay");
    let socket = folder.path().join("socket");
    let broker = serve_limited(&socket, 1, 64);
    let _opened = [(); 3].map(|()| Client::open(&socket));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    stop(broker.id());
    let refused = patient(&socket);
    let socket_that_lingers = lingering(listener.local_addr().unwrap());
    refused.send(&Request::Open { adapter: 0 }.encode(), &[socket_that_lingers.as_fd()]);
    drop(socket_that_lingers);
    broker.signal(Signal::SIGCONT);
    assert_eq!(refused.reply().0.errno, libc::EMFILE);
    assert_eq!(patient(&socket).reply().0.errno, libc::EMFILE, "the next one is accepted");
}

#[test]
fn the_objects_of_an_ended_process_are_destroyed_before_its_descriptors_are_closed() {
    let folder = TempDir::new("lingers");
    let socket = folder.path().join("socket");
    let is_parent = std::env::var_os("BROKER").is_none();
    let broker = is_parent.then(|| serve(&socket, 1));
    let number = broker.as_ref().map_or(0, Process::id);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let [address, number] = [listener.local_addr().unwrap().to_string(), number.to_string()];
    let path = socket.to_str().unwrap();
    in_child(&[("SOCKET", path), ("BROKER", &number), ("ADDRESS", &address)], || {
        let [path, broker, address] =
            ["SOCKET", "BROKER", "ADDRESS"].map(|name| std::env::var(name).unwrap());
        let client = Client::open(std::path::Path::new(&path));
        assert_eq!(Call::create_completion_queue(16).run(&client), 0);
        let lingering = lingering(address.parse().unwrap());
        // Then the message has the last descriptor of the socket.
        stop(broker.parse().unwrap());
        client.send(&Request::Open { adapter: 0 }.encode(), &[lingering.as_fd()]);
    });
    let Some(broker) = broker else { return };
    let has_rings = || {
        let files = fs::read_dir(format!("/proc/{}/fd", broker.id())).unwrap();
        let mut links = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        links.any(|link| link.to_string_lossy().contains("memfd:softefa"))
    };
    assert!(has_rings());
    broker.signal(Signal::SIGCONT);
    until(Duration::from_secs(10), "the broker without rings of a process that has ended", || {
        (!has_rings()).then_some(())
    });
}

/// Starts a copy of this process that has the number `process`, runs `work`, and is killed. Returns whether that works:
/// the caller must be root, and no process may have the number.
fn child_with_number(process: i32, work: impl FnOnce()) -> bool {
    // SAFETY: all zeros is a valid value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.set_tid = &raw const process as u64;
    arguments.set_tid_size = 1;
    // SAFETY: without flags the call is a fork. The child makes system calls only.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of_val(&arguments)) } {
        0 => {
            work();
            // SAFETY: the call has an integer argument.
            unsafe { libc::_exit(0) }
        }
        child => child == i64::from(process),
    }
}

#[test]
fn a_process_that_gets_the_number_of_one_that_connected_and_ended_does_not_replace_it() {
    let folder = TempDir::new("number");
    let socket = folder.path().join("socket");
    let broker = serve(&socket, 1);
    stop(broker.id());
    let client = Client(
        socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap(),
    );
    let timeout = TimeVal::new(10, 0);
    setsockopt(&client.0, sockopt::ReceiveTimeout, &timeout).unwrap();
    let address = UnixAddr::new(&socket).unwrap();
    // A number above those that the kernel gives out next.
    let process = std::process::id() as i32 + 5000;
    let connects = || {
        let _ = socket::connect(client.0.as_raw_fd(), &address);
    };
    if !child_with_number(process, connects) {
        return skip("a process cannot get a number of this test's choice");
    }
    waitpid(Pid::from_raw(process), None).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    assert!(child_with_number(process, || {
        let _ = nix::unistd::close(writer.as_raw_fd());
        let _ = nix::unistd::read(&reader, &mut [0]);
    }));
    broker.signal(Signal::SIGCONT);
    let reply = client.exchange(&[0]).errno;
    drop(writer);
    waitpid(Pid::from_raw(process), None).unwrap();
    if kernel_has_peer_descriptors(&client) {
        assert_ne!(reply, libc::EINVAL, "the broker serves the process that has the number now");
    }
}

/// Whether the kernel is of version 6.5 or later.
fn kernel_has_peer_descriptors(client: &Client) -> bool {
    let (mut descriptor, mut length) = (-1_i32, 4);
    let (socket, value) = (client.0.as_raw_fd(), (&raw mut descriptor).cast());
    // SAFETY: the pointers are to values of this frame, and the length is that of the first.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, 77, value, &raw mut length) };
    result == 0 || nix::Error::last() != nix::Error::ENOPROTOOPT
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

/// A client whose wait for a reply ends after a minute.
fn patient(socket: &std::path::Path) -> Client {
    let client = Client::connect(socket);
    setsockopt(&client.0, sockopt::ReceiveTimeout, &TimeVal::new(60, 0)).unwrap();
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
    let mut first = None;
    // It tries again and again. A thread that has just started has no name yet.
    until(Duration::from_secs(60), "the broker's next tries", || {
        waits(&broker).filter(|now| *now >= *first.get_or_insert(*now) + 3)
    });
    limit(&broker, libc::RLIMIT_NOFILE, before);
    assert_eq!(client.exchange(&[0]).errno, libc::EINVAL, "the message is refused, and so was received");
    assert!([libc::EMFILE, libc::EINVAL].contains(&reserved.exchange(&[0]).errno));
    let before = limit(&broker, libc::RLIMIT_AS, 0);
    assert_eq!(patient(&socket).exchange(&[0]).errno, libc::EIO, "the connection was closed");
    limit(&broker, libc::RLIMIT_AS, before);
    assert_eq!(patient(&socket).exchange(&[0]).errno, libc::EINVAL);
    assert!(broker.end().1.contains("because no thread can be started for it"));
}
