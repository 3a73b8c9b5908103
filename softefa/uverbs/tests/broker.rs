//! The broker's replies to requests sent over its socket, without the preloaded library.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;

use std::io::Read as _;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::{Call, Client, Device, Region, map_descriptor};
use efa_gda_test_support::{TempDir, in_child, skip, until};
use efa_gda_wire::CompletionStatus;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use softefa_abi::encode;
use softefa_abi::protocol::{Mapping, Request};
use softefa_abi::sys::*;
use softefa_uverbs::broker::{Broker, gid};

/// A broker with its socket in a temporary folder.
struct Fixture {
    broker: Broker,
    socket: PathBuf,
    folder: TempDir,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let folder = TempDir::new(name);
        let socket = folder.path().join("socket");
        Self { broker: Broker::start(&socket, 2).unwrap(), socket, folder }
    }

    /// Waits until no device is open, for at most a minute. Returns whether that happened.
    fn becomes_idle(&self) -> bool {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.broker.open_devices() > 0 && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.broker.open_devices() == 0
    }
}

fn memory_file(bytes: u64) -> std::fs::File {
    let file = std::fs::File::from(memfd_create(c"region", MFdFlags::empty()).unwrap());
    file.set_len(bytes).unwrap();
    file
}

fn domain_of(call: &Call) -> u32 {
    u32::from_ne_bytes(call.bytes(UVERBS_ATTR_CORE_OUT).try_into().unwrap())
}

#[test]
fn a_domain_can_be_destroyed_once() {
    let fixture = Fixture::new("domain");
    let client = Client::open(&fixture.socket);
    let mut allocate = Call::allocate_domain();
    assert_eq!(allocate.run(&client), 0);
    let handle = domain_of(&allocate);
    assert_ne!(handle, 0);
    assert_eq!(Call::destroy_domain(handle).run(&client), 0);
    assert_eq!(Call::destroy_domain(handle).run(&client), libc::ENOENT);
}

#[test]
fn no_object_can_be_created_before_the_context() {
    let fixture = Fixture::new("before");
    let client = Client::try_open(&fixture.socket, 0).unwrap();
    assert_eq!(Call::allocate_domain().run(&client), libc::EINVAL);
}

#[test]
fn a_program_that_does_not_support_max_batch_is_refused() {
    let fixture = Fixture::new("batch");
    let client = Client::try_open(&fixture.socket, 0).unwrap();
    let mut call =
        Call::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT).number(UVERBS_ATTR_UHW_IN, 8, 0);
    assert_eq!(call.run(&client), libc::EOPNOTSUPP);
}

#[test]
fn a_handle_is_unknown_to_another_open_device() {
    let fixture = Fixture::new("handles");
    let (first, second) = (Client::open(&fixture.socket), Client::open(&fixture.socket));
    let mut allocate = Call::allocate_domain();
    assert_eq!(allocate.run(&first), 0);
    assert_eq!(Call::destroy_domain(domain_of(&allocate)).run(&second), libc::ENOENT);
}

#[test]
fn objects_are_destroyed_when_their_connection_ends() {
    let fixture = Fixture::new("leaves");
    // In total more domains than the adapter can have.
    for _ in 0..3 {
        let client = Client::open(&fixture.socket);
        for _ in 0..500 {
            assert_eq!(Call::allocate_domain().run(&client), 0);
        }
        drop(client);
        assert!(fixture.becomes_idle());
    }
}

#[test]
fn a_response_that_cannot_be_written_leaves_no_object() {
    let fixture = Fixture::new("unwritten");
    let client = Client::open(&fixture.socket);
    // The address of the response is not mapped.
    let mut unmapped = Call::command(IB_USER_VERBS_CMD_ALLOC_PD).raw(UVERBS_ATTR_CORE_OUT, 4, 64);
    for _ in 0..3000 {
        assert_eq!(unmapped.run(&client), libc::EFAULT);
    }
    assert_eq!(Call::allocate_domain().run(&client), 0);
}

#[test]
fn a_process_that_ends_leaves_nothing_to_a_child_that_has_its_socket() {
    let fixture = Fixture::new("keeper");
    let number = fixture.socket.with_file_name("keeper");
    let variables = [("BROKER", fixture.socket.to_str().unwrap()), ("KEEPER", number.to_str().unwrap())];
    in_child(&variables, || {
        let client = Client::open(&PathBuf::from(std::env::var_os("BROKER").unwrap()));
        assert_eq!(Call::allocate_domain().run(&client), 0);
        // Another program with the socket, as its standard input.
        let mut keeper = Command::new("sleep");
        keeper.arg("600").stdin(Stdio::from(client.0)).stdout(Stdio::null()).stderr(Stdio::null());
        let number = std::env::var_os("KEEPER").unwrap();
        std::fs::write(number, keeper.spawn().unwrap().id().to_string()).unwrap();
    });
    if let Ok(keeper) = std::fs::read_to_string(&number) {
        let is_idle = fixture.becomes_idle();
        let keeper = nix::unistd::Pid::from_raw(keeper.parse().unwrap());
        nix::sys::signal::kill(keeper, nix::sys::signal::SIGKILL).unwrap();
        assert!(is_idle, "the broker serves a process that has ended");
    }
}

#[test]
fn the_mappings_of_an_object_are_returned_when_it_is_destroyed() {
    let fixture = Fixture::new("mappings");
    let client = Client::open(&fixture.socket);
    let mut domain = Call::allocate_domain();
    assert_eq!(domain.run(&client), 0);
    let domain = domain_of(&domain);
    let file = memory_file(8192);
    let (mapping, none) = (map_descriptor(file.as_fd(), 8192), Mapping::default());
    let register = |length, mapping| {
        let mut call = Call::register(domain, 0, length, true, 0);
        let reply = call.run_with(&client, [mapping, none]);
        assert_eq!(reply.unmap, [none; 2]);
        (reply.errno, call)
    };
    assert_eq!(register(8193, mapping).0, libc::EINVAL, "past the end");
    assert_eq!(register(8192, none).0, libc::EBADF);
    assert_eq!(register(8192, Mapping { address: 4096, length: 8192 }).0, libc::EFAULT);
    let (errno, call) = register(8192, mapping);
    assert_eq!(errno, 0);
    let mut destroy = Call::deregister(call.new_handle(UVERBS_ATTR_REG_MR_HANDLE));
    assert_eq!(destroy.run_with(&client, [none; 2]).unmap, [mapping, none]);
    // A part of the file is gone: what is registered there is reached no more, and the rest is.
    let (_, call) = register(8192, mapping);
    file.set_len(4096).unwrap();
    assert_eq!(register(8192, mapping).0, 0, "the first page is there");
    file.set_len(0).unwrap();
    assert_eq!(register(8192, mapping).0, libc::EFAULT);
    assert_eq!(Call::deregister(call.new_handle(UVERBS_ATTR_REG_MR_HANDLE)).run(&client), 0);
}

#[test]
fn only_the_memory_that_a_program_supplies_is_accessed() {
    let fixture = Fixture::new("memory");
    let open = |files: &[&str]| {
        let files: Vec<_> = files.iter().map(|path| std::fs::File::open(path).unwrap()).collect();
        let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let request = Request::Open { adapter: 0 }.encode();
        Client::connect(&fixture.socket).exchange_with(&request, &descriptors).0.errno
    };
    assert_eq!(open(&[]), libc::EBADF);
    assert_eq!(open(&["/proc/self/mem"]), libc::EBADF);
    assert_eq!(open(&["/dev/zero", "/proc/self/maps"]), libc::EBADF);
    assert_eq!(open(&["/proc/self/maps", "/proc/self/maps"]), libc::EBADF);
    // A file without ends of lines, which the broker would hold whole.
    assert_eq!(open(&["/proc/self/mem", "/proc/self/pagemap"]), libc::EBADF);
    // One descriptor too many, which the broker does not receive.
    assert_eq!(open(&["/proc/self/mem", "/proc/self/maps", "/proc/self/maps"]), libc::EBADF);
    assert_eq!(open(&["/proc/self/mem", "/proc/self/maps"]), 0);
}

#[test]
fn invalid_messages_are_refused() {
    let fixture = Fixture::new("messages");
    let client = Client::connect(&fixture.socket);
    assert_eq!(client.exchange(&[1, 2, 3]).errno, libc::EINVAL);
    assert_eq!(client.exchange(&[0xff; 24]).errno, libc::EINVAL);
    assert_eq!(client.exchange(&[0xff; 4096]).errno, libc::EINVAL);
    assert_eq!(
        client.exchange(&Request::Ioctl { address: 0, mappings: [Mapping::default(); 2] }.encode()).errno,
        libc::EBADF
    );
    assert_eq!(client.exchange(&Request::Open { adapter: 9 }.encode()).errno, libc::ENODEV);
    let client = Client::open(&fixture.socket);
    assert_eq!(client.exchange(&Request::Open { adapter: 1 }.encode()).errno, libc::EBUSY);
    let map = Request::Map { offset: 4096, length: 4096, writable: true };
    assert_eq!(client.exchange(&map.encode()).errno, libc::EINVAL);
}

#[test]
fn excess_descriptors_of_a_first_message_are_closed() {
    let fixture = Fixture::new("descriptors");
    let client = Client::connect(&fixture.socket);
    let (mut reader, writer) = UnixStream::pair().unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // More than a message of the library has.
    let bytes = Request::Map { offset: 0, length: 0, writable: false }.encode();
    let descriptors: Vec<_> = (0..20).map(|_| writer.as_fd()).collect();
    assert_eq!(client.exchange_with(&bytes, &descriptors).0.errno, libc::EBADF);
    drop(writer);
    // The end of the stream: the broker, which runs in this process, has closed every copy.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn bytes_are_written_between_regions_of_memory_and_of_descriptors() {
    let fixture = Fixture::new("bytes");
    let mut device = Device::new(&fixture.socket, gid(0).0, 16, 16);
    let (mut source, mut target) = (vec![7_u8; 64], vec![0_u8; 64]);
    let register = |bytes: &mut [u8]| device.register(bytes.as_mut_ptr() as u64, 64).unwrap();
    let (from, to) = (register(&mut source), register(&mut target));
    let file = memory_file(4096);
    let between: Region = device.register_descriptor(file.as_fd(), 4096).unwrap();
    device.write(&from, &between, 64);
    assert_eq!(device.wait(), CompletionStatus::Ok);
    device.write(&between, &to, 64);
    assert_eq!(device.wait(), CompletionStatus::Ok);
    assert_eq!(std::hint::black_box(target), source);
}

#[test]
fn writes_to_a_region_with_relaxed_ordering_are_late_until_it_is_deregistered() {
    in_child(&[("SOFTEFA_LATE_WRITE_US", "3600000000")], || {
        let fixture = Fixture::new("relaxed");
        let mut device = Device::new(&fixture.socket, gid(0).0, 16, 16);
        let mut bytes = [[0xff_u8; 64], [0; 64], [0; 64]];
        let [from, strict, relaxed] = bytes.each_mut().map(|bytes| bytes.as_mut_ptr() as u64);
        let (from, strict) = (device.register(from, 64).unwrap(), device.register(strict, 64).unwrap());
        let relaxed = device.register_with(relaxed, 64, IB_UVERBS_ACCESS_RELAXED_ORDERING).unwrap();
        for region in [strict, relaxed] {
            for at in 0..64 {
                device.write(&from, &Region { address: region.address + at, ..region }, 1);
                assert_eq!(device.wait(), CompletionStatus::Ok);
            }
        }
        let [_, at_once, some] = std::hint::black_box(&mut bytes);
        assert_eq!(*at_once, [0xff; 64]);
        let landed = some.iter().filter(|byte| **byte == 0xff).count();
        assert!((1..64).contains(&landed), "{landed} of 64 writes landed");
        assert_eq!(Call::deregister(relaxed.handle).run(&device.client), 0);
        assert_eq!(std::hint::black_box(&mut bytes)[2], [0xff; 64]);
    });
}

#[test]
fn a_request_to_memory_that_was_unmapped_fails_and_the_program_is_named() {
    let fixture = Fixture::new("unmapped");
    let mut device = Device::new(&fixture.socket, gid(0).0, 16, 16);
    let mut source = [7_u8; 64];
    let from = device.register(source.as_mut_ptr() as u64, 64).unwrap();
    let length = NonZeroUsize::new(4096).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // Where the kernel maps nothing for other tests, which run beside this one.
    let (address, flags) = (NonZeroUsize::new(0x4100_0000_0000), MapFlags::MAP_FIXED_NOREPLACE);
    // SAFETY: the kernel replaces no other mapping.
    let page = unsafe { mmap_anonymous(address, length, protection, flags | MapFlags::MAP_PRIVATE) }.unwrap();
    let to = device.register(page.as_ptr() as u64, 4096).unwrap();
    // SAFETY: the page was mapped above, and nothing refers to it.
    unsafe { mprotect(page, 4096, ProtFlags::PROT_NONE) }.unwrap();
    device.write(&from, &to, 64);
    assert_eq!(device.wait(), CompletionStatus::Ok, "access is checked when memory is registered");
    // SAFETY: as above.
    unsafe { munmap(page, 4096) }.unwrap();
    for _ in 0..2 {
        device.write(&from, &to, 64);
        assert_eq!(device.wait(), CompletionStatus::RemoteBadAddress);
    }
    let warnings = fixture.broker.adapters()[0].warnings();
    let text: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    let start = format!("registered memory of process {} (", std::process::id());
    assert!(text.len() == 1 && text[0].starts_with(&start), "{text:?}");
}

#[test]
fn a_counter_wraps_to_zero_after_the_largest_value_that_the_device_reports() {
    let fixture = Fixture::new("wraps");
    let client = Client::open(&fixture.socket);
    let mut caps = Call::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_COMP_CNTR_CAPS)
        .output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE, 8);
    assert_eq!(caps.run(&client), 0);
    let most = caps.bytes(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE).try_into().unwrap();
    // libfabric takes 2^64 - 1 for a device without counters.
    assert_eq!(u64::from_ne_bytes(most), (1 << 31) - 1);
    let mut words = [7_u64; 2];
    let address = words.as_mut_ptr() as u64;
    let word =
        |addr: u64| encode!(ib_uverbs_buffer_desc { addr: addr, length: 8, type_: IB_UVERBS_BUFFER_TYPE_VA });
    let mut create = Call::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_CREATE)
        .handle(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE, 0)
        .input(EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER, &word(address))
        .input(EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER, &word(address + 8));
    assert_eq!(create.run(&client), 0);
    let counter = create.new_handle(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE);
    for (operation, value, expected) in [
        (IB_UVERBS_COMP_CNTR_MODIFY_OP_SET, (1 << 31) - 1, (1 << 31) - 1),
        (IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, 1, 0),
        (IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, 5, 5),
    ] {
        let mut modify = Call::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_MODIFY)
            .handle(UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE, counter)
            .number(UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY, 8, IB_UVERBS_COMP_CNTR_ENTRY_COMP.into())
            .number(UVERBS_ATTR_MODIFY_COMP_CNTR_OP, 8, operation.into())
            .number(UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE, 8, value);
        assert_eq!(modify.run(&client), 0);
        let mut read = Call::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_READ)
            .handle(UVERBS_ATTR_READ_COMP_CNTR_HANDLE, counter)
            .number(UVERBS_ATTR_READ_COMP_CNTR_ENTRY, 8, IB_UVERBS_COMP_CNTR_ENTRY_COMP.into())
            .output(UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE, 8);
        assert_eq!(read.run(&client), 0);
        let value = u64::from_ne_bytes(read.bytes(UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE).try_into().unwrap());
        assert_eq!((value, std::hint::black_box(&words)[0]), (expected, expected));
    }
}

#[test]
fn a_device_that_is_closed_with_requests_in_flight_overruns_nothing() {
    let fixture = Fixture::new("close");
    let adapter = &fixture.broker.adapters()[0];
    let mut device = Device::new(&fixture.socket, gid(0).0, 16, 1);
    let mut bytes = vec![7_u8; 64];
    let region = device.register(bytes.as_mut_ptr() as u64, 64).unwrap();
    device.write(&region, &region, 64);
    assert_eq!(device.wait(), CompletionStatus::Ok);
    adapter.hold(true);
    (0..4).for_each(|_| device.write(&region, &region, 64));
    until(Duration::from_secs(60), "five entries", || (adapter.statistics().entries >= 5).then_some(()));
    drop(device);
    assert!(fixture.becomes_idle());
    assert_eq!(adapter.violations(), []);
}

/// The reply to an open without descriptors, by a process of the user `nobody`.
fn open_as_nobody(socket: &std::path::Path) -> i32 {
    let socket = socket.to_owned();
    let mut command = Command::new("true");
    // SAFETY: the child of the fork changes its own user, connects, and ends by the error.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setresuid(NOBODY, NOBODY, NOBODY)?;
            let request = Request::Open { adapter: 0 }.encode();
            Err(std::io::Error::from_raw_os_error(Client::connect(&socket).exchange(&request).errno))
        })
    };
    command.spawn().unwrap_err().raw_os_error().unwrap()
}

const NOBODY: nix::unistd::Uid = nix::unistd::Uid::from_raw(65_534);

#[test]
fn programs_of_other_users_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can start a program of another user");
    }
    let fixture = Fixture::new("users");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&fixture.socket), 0o600);
    // Whatever the umask of this process.
    std::fs::set_permissions(fixture.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Were the mode of the file not enough.
    std::fs::set_permissions(&fixture.socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(open_as_nobody(&fixture.socket), libc::EPERM);
}

#[test]
fn a_counter_needs_no_open_device_and_must_exist() {
    let fixture = Fixture::new("counter");
    let client = Client::connect(&fixture.socket);
    for (adapter, counter, errno) in [(1, 0, 0), (0, 21, 0), (2, 0, libc::ENODEV), (0, 22, libc::EINVAL)] {
        let reply = client.exchange(&Request::Counter { adapter, counter }.encode());
        assert_eq!((reply.errno, reply.value), (errno, 0), "{counter} of {adapter}");
    }
}
