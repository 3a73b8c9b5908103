//! The broker as a program meets it, spoken to directly: what a good program gets, what a hostile one
//! gets, and that neither ends it.

#![allow(clippy::unwrap_used)] // a test says so by failing

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use efa_gda_test_support::TempDir;
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

    fn idle(&self) -> bool {
        let limit = Instant::now() + Duration::from_secs(10);
        while self.broker.open_devices() > 0 && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.broker.open_devices() == 0
    }
}

struct Client(OwnedFd);

impl Client {
    fn connect(socket: &Path) -> Self {
        // SAFETY: integers only; the descriptor is new.
        let fd = unsafe {
            OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0))
        };
        // SAFETY: all zeros is a valid socket address.
        let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (place, byte) in address.sun_path.iter_mut().zip(socket.as_os_str().as_bytes()) {
            *place = *byte as _;
        }
        // SAFETY: an initialised address of this length.
        let result = unsafe {
            libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_un>() as u32)
        };
        assert_eq!(result, 0);
        Self(fd)
    }

    fn open(socket: &Path) -> Self {
        let client = Self::connect(socket);
        assert_eq!(client.ask(&Request::Open { adapter: 0 }.encode()).errno, 0);
        client
    }

    fn ask(&self, bytes: &[u8]) -> Reply {
        // SAFETY: the slice and its length.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        assert_eq!(sent, bytes.len() as isize);
        let mut reply = [0_u8; REPLY_BYTES];
        // SAFETY: the array and its length; descriptors beside the answer are dropped by the kernel.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
        assert_eq!(got, REPLY_BYTES as isize);
        Reply::decode(&reply).unwrap()
    }

    fn call(&self, words: &[u64]) -> i32 {
        // The broker marks outputs in the call itself.
        let mut words = words.to_vec();
        self.ask(&Request::Ioctl { address: words.as_mut_ptr() as u64, present: 0 }.encode()).errno
    }
}

/// A call in words of 8 bytes: header, then id, length and data of each attribute.
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
fn a_domain_is_made_and_destroyed_once() {
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
fn nothing_can_be_made_before_the_context() {
    let fixture = Fixture::new("before");
    let mut handle = 0;
    assert_eq!(Client::open(&fixture.socket).call(&allocate_domain(&mut handle)), libc::EINVAL);
}

#[test]
fn a_program_that_cannot_keep_max_batch_is_refused() {
    let fixture = Fixture::new("batch");
    let call = call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, &[(UVERBS_ATTR_UHW_IN, 8, 0)]);
    assert_eq!(Client::open(&fixture.socket).call(&call), libc::EOPNOTSUPP);
}

#[test]
fn handles_of_one_open_device_mean_nothing_in_another() {
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
fn what_a_program_leaves_goes_with_its_connection() {
    let fixture = Fixture::new("leaves");
    // More domains in all than the adapter has at once.
    for _ in 0..3 {
        let client = Client::open(&fixture.socket);
        assert_eq!(client.call(&context()), 0);
        for _ in 0..500 {
            assert_eq!(client.call(&allocate_domain(&mut 0)), 0);
        }
        drop(client);
        assert!(fixture.idle());
    }
}

#[test]
fn an_answer_that_cannot_be_written_leaves_no_object() {
    let fixture = Fixture::new("unwritten");
    let client = Client::open(&fixture.socket);
    assert_eq!(client.call(&context()), 0);
    let mut lost = allocate_domain(&mut 0);
    lost[6] = 64; // An address that is not there.
    for _ in 0..3000 {
        assert_eq!(client.call(&lost), libc::EFAULT);
    }
    assert_eq!(client.call(&allocate_domain(&mut 0)), 0);
}

#[test]
fn messages_that_are_none_are_refused() {
    let fixture = Fixture::new("messages");
    let client = Client::connect(&fixture.socket);
    assert_eq!(client.ask(&[1, 2, 3]).errno, libc::EINVAL);
    assert_eq!(client.ask(&[0xff; 24]).errno, libc::EINVAL);
    assert_eq!(client.ask(&[0xff; 4096]).errno, libc::EINVAL);
    assert_eq!(client.ask(&Request::Ioctl { address: 0, present: 0 }.encode()).errno, libc::EBADF);
    assert_eq!(client.ask(&Request::Open { adapter: 9 }.encode()).errno, libc::ENODEV);
    assert_eq!(client.ask(&Request::Open { adapter: 1 }.encode()).errno, 0);
    assert_eq!(client.ask(&Request::Open { adapter: 1 }.encode()).errno, libc::EBUSY);
    let map = Request::Map { offset: 4096, length: 4096, writable: true };
    assert_eq!(client.ask(&map.encode()).errno, libc::EINVAL);
}

#[test]
fn random_calls_get_numbers_and_the_adapter_goes_on() {
    let fixture = Fixture::new("random");
    let client = Client::open(&fixture.socket);
    assert_eq!(client.call(&context()), 0);
    // What a call points to; the broker writes its answers here, as a kernel would.
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
                // Short data lies in place; anything longer must point where nothing is lost.
                (id, length.min(16_000), if length > 0 && data < u64::MAX - 64 { pointer } else { data })
            })
            .collect();
        client.call(&call(object, draw(9) as u32, &attributes));
    }
    let mut handle = 0;
    assert_eq!(client.call(&allocate_domain(&mut handle)), 0);
    assert_eq!(client.call(&destroy_domain(handle)), 0);
}
