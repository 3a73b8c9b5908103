//! Messages to softefa's broker, with descriptors beside them: whatever a client sends, the broker replies or closes that
//! connection, keeps serving others, and closes every descriptor that it received. The broker runs in this process.
#![no_main]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::munmap;
use nix::unistd::ftruncate;
use softefa_abi::encode;
use softefa_abi::protocol::{Mapping, REQUEST_BYTES, Request};
use softefa_abi::sys::*;
use softefa_uverbs::broker::Broker;

#[path = "../../../softefa/uverbs/tests/client/mod.rs"]
mod client;

use client::{Call, Client, map_descriptor};

#[derive(Arbitrary, Debug)]
enum Message {
    /// Any bytes, with descriptors.
    Bytes {
        bytes: Vec<u8>,
        descriptors: Vec<Kind>,
    },
    /// An open of a device, on a connection of its own.
    Open {
        adapter: u8,
        descriptors: Vec<Kind>,
    },
    Map {
        page: u8,
        length: u16,
        writable: bool,
    },
    /// An ioctl with attributes, and the memory of descriptors.
    Ioctl {
        object: u8,
        method: u8,
        attributes: Vec<Attribute>,
        mappings: [Place; 2],
    },
    /// The size of the file that the program can still change.
    Resize {
        bytes: u16,
    },
    /// One of the calls that an honest client makes.
    Domain,
    Region {
        domain: u8,
        length: u32,
        descriptor: Option<Place>,
    },
    Queue {
        entries: u16,
        /// The memory of its completions, and where in it.
        memory: Option<(Place, u16)>,
    },
    Counter {
        memory: [Place; 2],
        offset: u16,
    },
    QueuePair {
        domain: u8,
        queue: u8,
        depth: u16,
        receives: u16,
    },
    State {
        queue_pair: u8,
        state: u8,
    },
}

/// A file that a client can pass.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Null,
    Memory,
    Mappings,
    /// A memory file.
    Shared,
    Pipe,
    Directory,
}

/// Memory that a client states as that of a descriptor.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    None,
    /// A file whose size the program changes.
    Shared,
    Arena,
    Unmapped,
}

struct Files {
    files: [OwnedFd; 6],
    shared: Mapping,
}

impl Drop for Files {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and only the broker accesses it, through the kernel.
        let _ = unsafe {
            munmap(NonNull::new(self.shared.address as *mut _).expect("mapped"), FILE_BYTES as usize)
        };
    }
}

impl Files {
    fn new() -> io::Result<Self> {
        let shared = File::from(memfd_create(c"any", MFdFlags::MFD_CLOEXEC)?);
        shared.set_len(FILE_BYTES)?;
        let mapping = map_descriptor(shared.as_fd(), FILE_BYTES);
        let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
        let files = [
            File::open("/dev/null")?.into(),
            memory.into(),
            File::open("/proc/self/maps")?.into(),
            shared.into(),
            io::pipe()?.0.into(),
            File::open("/proc/self")?.into(),
        ];
        Ok(Self { files, shared: mapping })
    }

    fn mapping(&self, place: Place) -> Mapping {
        match place {
            Place::None => Mapping::default(),
            Place::Shared => self.shared,
            Place::Arena => Mapping { address: arena(), length: ARENA_BYTES as u64 },
            Place::Unmapped => Mapping { address: 4096, length: u64::MAX },
        }
    }

    fn of(&self, kind: Kind) -> BorrowedFd<'_> {
        self.files[kind as usize].as_fd()
    }

    fn all<'a>(&self, kinds: impl IntoIterator<Item = &'a Kind>) -> Vec<BorrowedFd<'_>> {
        kinds.into_iter().take(32).map(|kind| self.of(*kind)).collect()
    }
}

#[derive(Arbitrary, Debug)]
struct Attribute {
    id: u8,
    is_common: bool,
    length: u16,
    data: u16,
    is_pointer: bool,
}

/// Memory that attributes point to. The broker writes there, as a kernel would, so no attribute points elsewhere.
fn arena() -> u64 {
    static ARENA: OnceLock<u64> = OnceLock::new();
    *ARENA.get_or_init(|| vec![0_u64; ARENA_BYTES / 8].leak().as_mut_ptr() as u64)
}

const ARENA_BYTES: usize = 256 << 10;
/// Bytes of the memory file, at first.
const FILE_BYTES: u64 = 256 << 10;

fn socket() -> &'static PathBuf {
    static BROKER: OnceLock<(Broker, PathBuf)> = OnceLock::new();
    let (_, socket) = BROKER.get_or_init(|| {
        let socket = std::env::temp_dir().join(format!("softefa-fuzz.{}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        (Broker::start(&socket, 1).expect("a broker"), socket)
    });
    socket
}

/// The number of entries of a folder of `/proc/self`: its descriptors, or its threads.
fn count(folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{folder}")).expect("procfs").count()
}

/// Waits until there are at most `most` entries: the broker ends connections a little later.
fn await_count(folder: &str, most: usize) {
    let limit = Instant::now() + Duration::from_secs(10);
    while count(folder) > most {
        assert!(Instant::now() < limit, "more than {most} entries of {folder} were left");
        std::thread::yield_now();
    }
}

/// Sends a message. Returns whether the connection still exists.
fn send(client: &Client, files: &Files, message: &Message) -> bool {
    let (arena, none) = (arena(), [Place::None; 2]);
    let (mut call, places) = match message {
        Message::Bytes { bytes, descriptors } => {
            // An ioctl at any address could write anywhere in this process, which the broker is part of.
            let is_ioctl = bytes.len() == REQUEST_BYTES && bytes.starts_with(&[2, 0, 0, 0]);
            let descriptors = files.all(descriptors);
            return bytes.is_empty()
                || is_ioctl
                || client.exchange_with(bytes, &descriptors).0.errno != libc::EIO;
        }
        Message::Open { adapter, descriptors } => {
            let request = Request::Open { adapter: u32::from(*adapter % 2) }.encode();
            Client::connect(socket()).exchange_with(&request, &files.all(descriptors));
            return true;
        }
        Message::Map { page, length, writable } => {
            let (offset, length) = (u64::from(*page) << 12, u64::from(*length));
            client.exchange(&Request::Map { offset, length, writable: *writable }.encode());
            return true;
        }
        Message::Resize { bytes } => {
            let _ = ftruncate(files.of(Kind::Shared), i64::from(*bytes) * 8);
            return true;
        }
        Message::Ioctl { object, method, attributes, mappings } => {
            let mut call = Call::new((*object).into(), (*method).into());
            for attribute in attributes.iter().take(32) {
                let id = u32::from(attribute.id) + if attribute.is_common { 0x1000 } else { 0 };
                let data = match attribute.is_pointer || attribute.length > 8 {
                    true => arena + u64::from(attribute.data),
                    false => u64::from(attribute.data % 4096),
                };
                call = call.raw(id, attribute.length, data);
            }
            (call, *mappings)
        }
        Message::Domain => (Call::allocate_domain(), none),
        Message::Region { domain, length, descriptor } => {
            let address = if descriptor.is_some() { 0 } else { arena };
            let call = Call::register((*domain).into(), address, (*length).into(), descriptor.is_some(), 0);
            (call, [descriptor.unwrap_or(Place::None), Place::None])
        }
        Message::Queue { entries, memory: None } => (Call::create_completion_queue((*entries).into()), none),
        Message::Queue { entries, memory: Some((place, offset)) } => {
            let call = Call::create_completion_queue((*entries).into())
                .number(UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH, 8, 32 * u64::from(*entries))
                .number(UVERBS_ATTR_CREATE_CQ_BUFFER_FD, 0, 0)
                .number(UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET, 8, u64::from(*offset));
            (call, [*place, Place::None])
        }
        Message::Counter { memory, offset } => {
            let word = encode!(ib_uverbs_buffer_desc {
                addr: u64::from(*offset),
                length: 8,
                type_: IB_UVERBS_BUFFER_TYPE_DMABUF,
            });
            let call = Call::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_CREATE)
                .handle(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE, 0)
                .input(EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER, &word)
                .input(EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER, &word);
            (call, *memory)
        }
        Message::QueuePair { domain, queue, depth, receives } => {
            let (domain, queue) = ((*domain).into(), (*queue).into());
            (Call::create_queue_pair(domain, queue, (*depth).into(), (*receives).into()), none)
        }
        Message::State { queue_pair, state } => {
            (Call::modify_queue_pair((*queue_pair).into(), (*state).into()), none)
        }
    };
    call.run_with(client, places.map(|place| files.mapping(place)));
    true
}

fn exchange(socket: &Path, messages: &[Message]) {
    let files = Files::new().expect("files");
    let client = Client::open(socket);
    let before = count("fd");
    if messages.iter().take(64).all(|message| send(&client, &files, message)) {
        // Two files of rings at most.
        await_count("fd", before + 2);
        assert_eq!(Call::allocate_domain().run(&Client::open(socket)), 0, "another client is served");
    }
}

/// The least number of threads before an input: those that stay. There can be more for a while, because the broker
/// replaces an engine whose access takes long, as on a busy machine.
static THREADS: AtomicUsize = AtomicUsize::new(usize::MAX);

fuzz_target!(|messages: Vec<Message>| {
    let socket = socket();
    THREADS.fetch_min(count("task"), Ordering::Relaxed);
    exchange(socket, &messages);
    // Memory of a thread that ends while the sanitizer looks for leaks would be one.
    await_count("task", THREADS.load(Ordering::Relaxed));
});
