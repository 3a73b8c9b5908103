//! A broker that hostile programs attack, while an honest one works beside them: the honest one loses nothing, a
//! stranger's memory stays as it is, and at the end the broker has what it had. `scripts/test.sh --all` runs it (step
//! `hostile`), under AddressSanitizer as well.
//!
//! It prints how long the honest program waited at most for a call of the broker, for opening a device, for a write, and
//! for another thread, with the attackers and without them; `docs/benchmarks.md` has the figures. A call may take at most
//! 100 ms more with them. Time for which a thread of the broker or of the honest program had no CPU does not count
//! (`honest::Waited`), so a busy machine fails nothing, and a quiet one shows the bound. That no call waits for the end of
//! another client's request is tested without a clock in `softefa/tests/device_hostile.rs`.
//!
//! Each attack is a role of this program in a process of its own, for `EFA_GDA_HOSTILE_SECONDS` (default 10).

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod honest;
mod served;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Call, Client, Device, lingering, write};
use efa_gda_test_support::{TempDir, test_name};
use honest::Honest;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork};
use served::{Process, serve_limited};
use softefa_abi::protocol::Request;
use softefa_uverbs::broker::gid;

/// One round of an attack on the broker at a socket.
type Attack = fn(&Path, &mut Random);

/// What a hostile program does, again and again.
const ATTACKS: [(&str, Attack); 13] = [
    ("messages", bad_messages),
    ("ioctls", bad_ioctls),
    ("rings", scribbled_rings),
    ("killed", killed_in_mid_work),
    ("forked", left_to_a_child),
    ("greedy", everything_it_can_get),
    ("unread", unread_completions),
    ("long", long_requests),
    ("many", many_queue_pairs),
    ("files", truncated_files),
    ("lingering", descriptors_that_linger),
    ("locked", locked_address_space),
    ("faults", pages_that_do_not_arrive),
];

/// The role of this process, if it is not the test: the socket, and the name of an attack or `canary`.
const SOCKET: &str = "HOSTILE_SOCKET";
const ROLE: &str = "HOSTILE_ROLE";

fn seconds() -> Duration {
    let seconds = std::env::var("EFA_GDA_HOSTILE_SECONDS").map_or(10, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// This program in another role.
fn in_role(role: &str, socket: &Path) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&*test_name(), "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    Process(command.spawn().unwrap())
}

#[test]
fn attacks_cost_an_honest_program_nothing() {
    if let (Ok(role), Some(socket)) = (std::env::var(ROLE), std::env::var_os(SOCKET)) {
        return play(&role, &PathBuf::from(socket));
    }
    let folder = TempDir::new("hostile");
    let socket = folder.path().join("socket");
    let broker = serve_limited(&socket, 2, 1024);
    let mut honest = Honest::new(&socket, broker.id());
    let alone = honest.work(seconds() / 5);
    let before = Used::of(&broker);
    let mut canary = in_role("canary", &socket);
    let lines = BufReader::new(canary.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("ready")), "the canary does not start");
    let attackers: Vec<_> = ATTACKS.iter().map(|(name, _)| (*name, in_role(name, &socket))).collect();
    let attacked = honest.work(seconds());
    for (name, mut attacker) in attackers {
        assert!(attacker.0.wait().unwrap().success(), "the attack {name} ended by a failure");
    }
    println!("without attackers: {alone}\nwith attackers: {attacked}");
    let bound = alone.without_cpu_waits.call + MOST_MORE;
    assert!(
        attacked.without_cpu_waits.call <= bound,
        "a call waited for an attacker: {attacked}; alone {alone}"
    );
    drop(canary.0.stdin.take());
    assert!(canary.0.wait().unwrap().success(), "a stranger's memory changed");
    assert_returns_to(&broker, before);
    drop(honest);
    let (status, report) = broker.end();
    // 3: a rule was broken, which scribbling does.
    assert_eq!(status, Some(3), "{report}");
    assert!(report.contains("was refused"), "no greedy program is named: {report}");
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
struct Used {
    descriptors: usize,
    threads: usize,
    kilobytes: usize,
}

impl Used {
    fn of(process: &Process) -> Self {
        let folder = PathBuf::from(format!("/proc/{}", process.0.id()));
        let status = fs::read_to_string(folder.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let descriptors = fs::read_dir(folder.join("fd")).unwrap().count();
        Self { descriptors, threads: field("Threads:"), kilobytes: field("VmRSS:") }
    }
}

/// Waits until the broker uses what it did before, for at most a minute. Its allocator, and a sanitizer, may keep some
/// memory of what was freed.
fn assert_returns_to(broker: &Process, before: Used) {
    const KEPT: usize = 512 << 10;
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let now = Used::of(broker);
        let is_back = now.descriptors <= before.descriptors
            && now.threads <= before.threads
            && now.kilobytes <= before.kilobytes + KEPT;
        if is_back {
            return;
        }
        assert!(Instant::now() < limit, "before the attacks {before:?}, after them {now:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How much longer a call of the honest program may take beside the attackers.
const MOST_MORE: Duration = Duration::from_millis(100);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn play(role: &str, socket: &Path) {
    if role == "canary" {
        return canary();
    }
    let (_, attack) = ATTACKS.iter().find(|(name, _)| *name == role).unwrap();
    let limit = Instant::now() + seconds();
    let mut random = Random(role.len() as u64);
    while Instant::now() < limit {
        attack(socket, &mut random);
    }
}

/// A page at an address that attackers name too, in their own processes.
const NAMED: usize = 0x4000_0000_0000;

fn map_named() -> NonNull<u8> {
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    let (address, length) = (NonZeroUsize::new(NAMED), NonZeroUsize::new(1 << 20).unwrap());
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the kernel replaces no other mapping.
    unsafe { mmap_anonymous(address, length, protection, flags) }.unwrap().cast()
}

/// A process that nothing may touch. It ends when its input does, and fails if its memory changed.
fn canary() {
    let start = map_named();
    // SAFETY: the megabyte was mapped above, and only this function has its address.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), 1 << 20) };
    bytes.fill(0xca);
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    assert!(std::hint::black_box(&*bytes).iter().all(|byte| *byte == 0xca));
}

fn bad_messages(socket: &Path, random: &mut Random) {
    let client = Client::connect(socket);
    let file = File::from(memfd_create(c"any", MFdFlags::empty()).unwrap());
    for _ in 0..100 {
        let length = [0, 1, 23, 24, 24, 24, 25, 200][random.below(8) as usize];
        let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        if let Some(word) = bytes.first_chunk_mut::<4>() {
            *word = [random.below(5) as u8, 0, 0, 0];
        }
        let descriptors: Vec<BorrowedFd<'_>> = (0..random.below(30)).map(|_| file.as_fd()).collect();
        if bytes.is_empty() || client.exchange_with(&bytes, &descriptors).0.errno == libc::EIO {
            return;
        }
    }
}

fn bad_ioctls(socket: &Path, random: &mut Random) {
    let Ok(client) = Client::try_open(socket, random.below(2) as u32) else { return };
    let _ = Call::context().run(&client);
    let mut arena = vec![0_u64; 4096];
    let arena = arena.as_mut_ptr() as u64;
    for _ in 0..500 {
        let objects = [0, 1, 3, 4, 6, 7, 16, 19, random.below(40)];
        let mut call = Call::new(objects[random.below(9) as usize] as u32, random.below(9) as u32);
        for index in 0..random.below(16) {
            let id = [index, 0x1000 + random.below(6), random.below(20)][random.below(3) as usize];
            let length = [0, 4, 8, 20, 32, 200, random.below(16_000)][random.below(7) as usize];
            let pointer = arena + 8 * random.below(2048);
            let data = match random.below(2) {
                0 if length <= 8 => random.below(u64::MAX),
                _ => pointer,
            };
            call = call.raw(id as u32, length as u16, data);
        }
        call.run(&client);
    }
}

/// A device with a queue pair on adapter 0, unless the broker refuses that.
fn device(socket: &Path, depth: u32, completions: u32) -> Option<Device> {
    let client = Client::try_open(socket, 0).ok()?;
    let opened = Call::context().run(&client) == 0;
    opened.then(|| Device::with_client(client, gid(0).0, depth, completions).ok())?
}

fn scribbled_rings(socket: &Path, random: &mut Random) {
    let Some(device) = device(socket, 64, 64) else { return };
    for _ in 0..2000 {
        let at = random.below(64 * 64 - 8) as usize;
        // SAFETY: the offset is inside the mapped ring.
        unsafe { device.sq.add(at).cast::<u64>().write_unaligned(random.below(u64::MAX)) };
        device.ring_send_doorbell(random.below(1 << 32) as u32);
        device.ring_completion_doorbell(random.below(1 << 32) as u32);
    }
}

fn killed_in_mid_work(socket: &Path, _: &mut Random) {
    in_a_child(|| {
        let Some(mut device) = device(socket, 64, 64) else { return };
        let mut memory = vec![7_u8; 1 << 20];
        if let Ok(region) = device.register(memory.as_mut_ptr() as u64, 1 << 20) {
            (0..32).for_each(|_| device.write(&region, &region, 1 << 20));
        }
    });
}

/// Connects, registers memory at an address that another process has too, and ends, while a child keeps the socket.
fn left_to_a_child(socket: &Path, _: &mut Random) {
    in_a_child(|| {
        let Some(mut device) = device(socket, 64, 64) else { return };
        map_named();
        let Ok(region) = device.register(NAMED as u64, 1 << 20) else { return };
        // SAFETY: the child only posts requests, waits, and ends.
        if let Ok(ForkResult::Child) = unsafe { fork() } {
            for _ in 0..20 {
                device.post(write(&region, &region, 4096));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

/// Runs `work` in a child that then kills itself, so that nothing is closed in order.
fn in_a_child(work: impl FnOnce()) {
    // SAFETY: this process has one thread besides the test's harness, and the child uses no lock of it.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            work();
            let _ = kill(Pid::this(), Signal::SIGKILL);
        }
        ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
        }
    }
}

fn everything_it_can_get(socket: &Path, _: &mut Random) {
    let clients: Vec<Client> = std::iter::from_fn(|| Client::try_open(socket, 1).ok()).collect();
    for client in &clients {
        if Call::context().run(client) != 0 {
            continue;
        }
        let mut queues = (0..64).map(|_| Call::create_completion_queue(65_536).run(client));
        while queues.next() == Some(0) {}
    }
}

fn unread_completions(socket: &Path, _: &mut Random) {
    let Some(mut device) = device(socket, 64, 1) else { return };
    let mut memory = vec![7_u8; 64];
    let Ok(region) = device.register(memory.as_mut_ptr() as u64, 64) else { return };
    device.write(&region, &region, 64);
    device.wait();
    for _ in 0..100_000 {
        device.write(&region, &region, 64);
    }
}

/// Registers a file that loses its pages while requests write there.
fn truncated_files(socket: &Path, _: &mut Random) {
    const BYTES: u64 = 16 << 20;
    let Some(mut device) = device(socket, 16, 16) else { return };
    let file = File::from(memfd_create(c"truncated", MFdFlags::empty()).unwrap());
    file.set_len(BYTES).unwrap();
    let Ok(region) = device.register_descriptor(file.as_fd(), BYTES) else { return };
    (0..8).for_each(|_| device.write(&region, &region, BYTES as u32));
    file.set_len(BYTES / 2).unwrap();
    device.wait();
    file.set_len(0).unwrap();
    (1..8).for_each(|_| {
        device.wait();
    });
}

/// Passes descriptors whose closing waits for ten milliseconds, on an open device and on a new connection.
fn descriptors_that_linger(socket: &Path, _: &mut Random) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients = [Client::try_open(socket, 0).ok(), Some(Client::connect(socket))];
    let lingering = [lingering(address), lingering(address)];
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        drop(listener);
    });
    for (client, lingering) in clients.into_iter().zip(lingering) {
        let send = |client: Client| client.send(&Request::Open { adapter: 0 }.encode(), &[lingering.as_fd()]);
        client.map(send);
    }
    closing.join().unwrap();
}

/// Keeps the lock of its own address space, which the kernel takes for each access of the broker.
fn locked_address_space(socket: &Path, _: &mut Random) {
    const BYTES: NonZeroUsize = NonZeroUsize::new(8 << 30).unwrap();
    let Some(mut device) = device(socket, 16, 16) else { return };
    let mut memory = vec![7_u8; 8192];
    let Ok(region) = device.register(memory.as_mut_ptr() as u64, 8192) else { return };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: the kernel chooses the address.
    let large = unsafe { mmap_anonymous(None, BYTES, ProtFlags::PROT_READ, flags) }.unwrap();
    // Page tables, and no memory. SAFETY: the range was mapped above, as in the other calls.
    unsafe { libc::madvise(large.as_ptr(), BYTES.get(), libc::MADV_POPULATE_READ) };
    let is_over = AtomicBool::new(false);
    let address = large.as_ptr() as usize;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for protection in [libc::PROT_NONE, libc::PROT_READ] {
                        // SAFETY: as above.
                        unsafe { libc::mprotect(address as *mut libc::c_void, BYTES.get(), protection) };
                    }
                }
            });
        }
        for _ in 0..20 {
            device.write(&region, &region, 4096);
            device.wait();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // SAFETY: as above.
    unsafe { munmap(large, BYTES.get()) }.unwrap();
}

/// Registers pages that do not arrive for a while: their faults are delivered to nobody who answers. The process needs
/// the right to that.
fn pages_that_do_not_arrive(socket: &Path, random: &mut Random) {
    const BYTES: usize = 16 * 4096;
    let Some(mut device) = device(socket, 16, 16) else { return };
    let (length, flags) = (NonZeroUsize::new(BYTES).unwrap(), MapFlags::MAP_PRIVATE);
    // SAFETY: the kernel chooses the address.
    let pages = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) };
    let pages = pages.unwrap();
    let address = pages.as_ptr() as u64;
    let Ok(region) = device.register(address, BYTES as u64) else { return };
    if let Some(faults) = take_faults(address, BYTES as u64) {
        (0..8).for_each(|_| device.write(&region, &region, 4096));
        std::thread::sleep(Duration::from_millis(random.below(500)));
        drop(faults);
        (0..8).for_each(|_| {
            device.wait();
        });
    } else {
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(device);
    // SAFETY: the range was mapped above.
    unsafe { munmap(pages, BYTES) }.unwrap();
}

/// A descriptor that the kernel delivers the faults of a range to, until it is closed (`linux/userfaultfd.h`).
fn take_faults(start: u64, length: u64) -> Option<OwnedFd> {
    const API: u64 = 0xc018_aa3f;
    const REGISTER: u64 = 0xc020_aa00;
    const MISSING: u64 = 1;
    // SAFETY: the call has an integer argument.
    let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    // SAFETY: a result that is not negative is a new descriptor, which has no other owner.
    let faults = (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number as i32) })?;
    let (mut api, mut range) = ([0xaa_u64, 0, 0], [start, length, MISSING, 0]);
    // SAFETY: the arrays are the structures of the calls.
    let results = unsafe {
        [
            libc::ioctl(faults.as_raw_fd(), API, api.as_mut_ptr()),
            libc::ioctl(faults.as_raw_fd(), REGISTER, range.as_mut_ptr()),
        ]
    };
    (results == [0, 0]).then_some(faults)
}

fn long_requests(socket: &Path, _: &mut Random) {
    const BYTES: usize = 128 << 20;
    let Some(mut device) = device(socket, 16, 16) else { return };
    let mut memory = vec![7_u8; BYTES];
    let Ok(region) = device.register(memory.as_mut_ptr() as u64, BYTES as u64) else { return };
    (0..8).for_each(|_| device.write(&region, &region, BYTES as u32));
    for _ in 0..8 {
        device.wait();
    }
}

/// Keeps many queue pairs busy with long requests, so that each waits for its turn.
fn many_queue_pairs(socket: &Path, _: &mut Random) {
    const BYTES: usize = 2 << 20;
    let mut memory = vec![7_u8; BYTES];
    let mut devices: Vec<_> = std::iter::from_fn(|| device(socket, 16, 16)).take(16).collect();
    devices.retain_mut(|device| {
        let region = device.register(memory.as_mut_ptr() as u64, BYTES as u64);
        region.map(|region| (0..4).for_each(|_| device.write(&region, &region, BYTES as u32))).is_ok()
    });
    for device in &mut devices {
        (0..4).for_each(|_| {
            device.wait();
        });
    }
}
