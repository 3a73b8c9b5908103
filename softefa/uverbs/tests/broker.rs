//! The broker's replies to requests sent over its socket, by valid and by hostile programs, without the preloaded
//! library. No request may end the broker.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::io::{IoSlice, Read as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use efa_gda_test_support::TempDir;
use nix::sys::socket::{self, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr};
use softefa_abi::protocol::{REPLY_BYTES, Reply, Request};
use softefa_abi::sys::*;
use softefa_uverbs::broker::Broker;

/// A broker with its socket in a temporary folder.
struct Fixture {
    broker: Broker,
    socket: PathBuf,
    _folder: TempDir,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let folder = TempDir::new(name);
        let socket = folder.path().join("socket");
        Self { broker: Broker::start(&socket, 2).unwrap(), socket, _folder: folder }
    }

    /// Waits until no device is open, for at most ten seconds. Returns whether that happened.
    fn becomes_idle(&self) -> bool {
        let limit = Instant::now() + Duration::from_secs(10);
        while self.broker.open_devices() > 0 && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.broker.open_devices() == 0
    }
}

/// A connection to the broker.
struct Client(OwnedFd);

impl Client {
    fn connect(path: &Path) -> Self {
        let client =
            socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        socket::connect(client.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        Self(client)
    }

    fn open(socket: &Path) -> Self {
        let client = Self::connect(socket);
        assert_eq!(client.exchange(&Request::Open { adapter: 0 }.encode()).errno, 0);
        client
    }

    fn exchange(&self, bytes: &[u8]) -> Reply {
        let sent = socket::send(self.0.as_raw_fd(), bytes, MsgFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
        self.reply()
    }

    fn reply(&self) -> Reply {
        let mut reply = [0_u8; REPLY_BYTES];
        // The kernel drops descriptors beside the reply.
        let received = socket::recv(self.0.as_raw_fd(), &mut reply, MsgFlags::empty()).unwrap();
        assert_eq!(received, REPLY_BYTES);
        Reply::decode(&reply).unwrap()
    }

    fn call(&self, words: &[u64]) -> i32 {
        // The broker marks outputs in the ioctl, so it needs a copy that it may write.
        let mut words = words.to_vec();
        self.exchange(&Request::Ioctl { address: words.as_mut_ptr() as u64, present: 0 }.encode()).errno
    }
}

/// An ioctl in words of 8 bytes: the header, then id, length and data of each attribute.
fn call(object: u32, method: u32, attributes: &[(u32, u16, u64)]) -> Vec<u64> {
    let length = (24 + 16 * attributes.len()) as u64;
    let mut words = vec![
        length | u64::from(object) << 16 | u64::from(method) << 32 | (attributes.len() as u64) << 48,
        0,
        u64::from(RDMA_DRIVER_EFA),
    ];
    for (id, length, data) in attributes {
        words.push(u64::from(*id) | u64::from(*length) << 16 | 1 << 32);
        words.push(*data);
    }
    words
}

fn context() -> Vec<u64> {
    call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, &[(UVERBS_ATTR_UHW_IN, 8, 3)])
}

fn allocate_domain(into: &mut u32) -> Vec<u64> {
    let into = std::ptr::from_mut(into) as u64;
    call(
        UVERBS_OBJECT_DEVICE,
        UVERBS_METHOD_INVOKE_WRITE,
        &[(UVERBS_ATTR_WRITE_CMD, 8, IB_USER_VERBS_CMD_ALLOC_PD.into()), (UVERBS_ATTR_CORE_OUT, 4, into)],
    )
}

fn destroy_domain(handle: u32) -> Vec<u64> {
    call(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, &[(UVERBS_ATTR_DESTROY_PD_HANDLE, 0, handle.into())])
}

#[test]
fn a_domain_can_be_destroyed_once() {
    let fixture = Fixture::new("domain");
    let client = Client::open(&fixture.socket);
    assert_eq!(client.call(&context()), 0);
    let mut handle = 0;
    assert_eq!(client.call(&allocate_domain(&mut handle)), 0);
    assert_ne!(handle, 0);
    assert_eq!(client.call(&destroy_domain(handle)), 0);
    assert_eq!(client.call(&destroy_domain(handle)), libc::ENOENT);
}

#[test]
fn no_object_can_be_created_before_the_context() {
    let fixture = Fixture::new("before");
    let mut handle = 0;
    assert_eq!(Client::open(&fixture.socket).call(&allocate_domain(&mut handle)), libc::EINVAL);
}

#[test]
fn a_program_that_does_not_support_max_batch_is_refused() {
    let fixture = Fixture::new("batch");
    let call = call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, &[(UVERBS_ATTR_UHW_IN, 8, 0)]);
    assert_eq!(Client::open(&fixture.socket).call(&call), libc::EOPNOTSUPP);
}

#[test]
fn a_handle_is_unknown_to_another_open_device() {
    let fixture = Fixture::new("handles");
    let (first, second) = (Client::open(&fixture.socket), Client::open(&fixture.socket));
    let mut handle = 0;
    for client in [&first, &second] {
        assert_eq!(client.call(&context()), 0);
    }
    assert_eq!(first.call(&allocate_domain(&mut handle)), 0);
    assert_eq!(second.call(&destroy_domain(handle)), libc::ENOENT);
}

#[test]
fn objects_are_destroyed_when_their_connection_ends() {
    let fixture = Fixture::new("leaves");
    // In total more domains than the adapter can have.
    for _ in 0..3 {
        let client = Client::open(&fixture.socket);
        assert_eq!(client.call(&context()), 0);
        for _ in 0..500 {
            assert_eq!(client.call(&allocate_domain(&mut 0)), 0);
        }
        drop(client);
        assert!(fixture.becomes_idle());
    }
}

#[test]
fn a_response_that_cannot_be_written_leaves_no_object() {
    let fixture = Fixture::new("unwritten");
    let client = Client::open(&fixture.socket);
    assert_eq!(client.call(&context()), 0);
    let mut unmapped = allocate_domain(&mut 0);
    unmapped[6] = 64; // The address of the response is not mapped.
    for _ in 0..3000 {
        assert_eq!(client.call(&unmapped), libc::EFAULT);
    }
    assert_eq!(client.call(&allocate_domain(&mut 0)), 0);
}

#[test]
fn invalid_messages_are_refused() {
    let fixture = Fixture::new("messages");
    let client = Client::connect(&fixture.socket);
    assert_eq!(client.exchange(&[1, 2, 3]).errno, libc::EINVAL);
    assert_eq!(client.exchange(&[0xff; 24]).errno, libc::EINVAL);
    assert_eq!(client.exchange(&[0xff; 4096]).errno, libc::EINVAL);
    assert_eq!(client.exchange(&Request::Ioctl { address: 0, present: 0 }.encode()).errno, libc::EBADF);
    assert_eq!(client.exchange(&Request::Open { adapter: 9 }.encode()).errno, libc::ENODEV);
    assert_eq!(client.exchange(&Request::Open { adapter: 1 }.encode()).errno, 0);
    assert_eq!(client.exchange(&Request::Open { adapter: 1 }.encode()).errno, libc::EBUSY);
    let map = Request::Map { offset: 4096, length: 4096, writable: true };
    assert_eq!(client.exchange(&map.encode()).errno, libc::EINVAL);
}

#[test]
fn excess_descriptors_of_a_message_are_closed() {
    let fixture = Fixture::new("descriptors");
    let client = Client::open(&fixture.socket);
    let (mut reader, writer) = UnixStream::pair().unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // More than the broker has memory for, so that the kernel truncates the message.
    let writers: Vec<RawFd> = vec![writer.as_raw_fd(); 20];
    let bytes = Request::Map { offset: 0, length: 0, writable: false }.encode();
    let (parts, rights) = ([IoSlice::new(&bytes)], [ControlMessage::ScmRights(&writers)]);
    socket::sendmsg::<()>(client.0.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None).unwrap();
    assert_eq!(client.reply().errno, libc::EINVAL);
    drop(writer);
    // The end of the stream: the broker, which runs in this process, has closed every copy.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn random_ioctls_leave_the_adapter_usable() {
    let fixture = Fixture::new("random");
    let client = Client::open(&fixture.socket);
    assert_eq!(client.call(&context()), 0);
    // The memory that attributes point to. The broker writes its responses there, as a kernel would.
    let mut arena = vec![0_u64; 4096];
    let arena = arena.as_mut_ptr() as u64;
    let mut state = 7_u64;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for _ in 0..20_000 {
        let objects = [0, 1, 3, 4, 6, 7, 16, 19, draw(40)];
        let object = objects[draw(9) as usize] as u32;
        let attributes: Vec<_> = (0..draw(16))
            .map(|index| {
                let id = [index as u32, 0x1000 + draw(6) as u32, draw(20) as u32][draw(3) as usize];
                let length = [0, 4, 8, 20, 32, 200, draw(65_536) as u16][draw(7) as usize];
                let pointer = arena + 8 * draw(2048);
                let data = [draw(4), pointer, u64::MAX - draw(64), draw(1 << 31)][draw(4) as usize];
                // Data of up to 8 bytes is in place. Longer data must point into the arena, which may be overwritten.
                (id, length.min(16_000), if length > 0 && data < u64::MAX - 64 { pointer } else { data })
            })
            .collect();
        client.call(&call(object, draw(9) as u32, &attributes));
    }
    let mut handle = 0;
    assert_eq!(client.call(&allocate_domain(&mut handle)), 0);
    assert_eq!(client.call(&destroy_domain(handle)), 0);
}
