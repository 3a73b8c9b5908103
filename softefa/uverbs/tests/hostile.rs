//! Programs that send bad messages and ioctls, scribble on rings, truncate files and die: the broker goes on serving
//! others, and keeps nothing of theirs.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use client::{Call, Client, Device};
use efa_gda_test_support::{TempDir, until};
use efa_gda_wire::CompletionStatus;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use served::{Process, serve};
use softefa_uverbs::broker::gid;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The numbers of descriptors and threads of a process.
fn used(process: &Process) -> [usize; 2] {
    ["fd", "task"].map(|kind| fs::read_dir(format!("/proc/{}/{kind}", process.id())).unwrap().count())
}

/// Makes `attack` on a broker. Checks that the broker still serves a program, and that it has no more descriptors and
/// threads than before.
fn survives(name: &str, attack: impl FnOnce(&Path, &mut Random)) {
    let folder = TempDir::new(name);
    let socket = folder.path().join("socket");
    let broker = serve(&socket, 1);
    let before = used(&broker);
    attack(&socket, &mut Random(name.len() as u64));
    let mut device = Device::new(&socket, gid(0).0, 16, 16);
    let mut bytes = vec![7_u8; 128];
    bytes[64..].fill(0);
    let address = bytes.as_mut_ptr() as u64;
    let [from, to] = [address, address + 64].map(|address| device.register(address, 64).unwrap());
    device.write(&from, &to, 64);
    assert_eq!(device.wait(), CompletionStatus::Ok);
    assert_eq!(*std::hint::black_box(&bytes), [7; 128]);
    drop(device);
    until(Duration::from_secs(60), "the broker to have what it had", || {
        (used(&broker) == before).then_some(())
    });
    // 3: a rule was broken, which scribbling does.
    let (status, report) = broker.end();
    assert!(matches!(status, Some(0 | 3)), "{report}");
}

/// A device with a queue pair.
fn device(socket: &Path, depth: u32) -> Device {
    Device::new(socket, gid(0).0, depth, depth)
}

#[test]
fn a_broker_survives_bad_messages() {
    survives("messages", |socket, random| {
        let file = File::from(memfd_create(c"any", MFdFlags::empty()).unwrap());
        for _ in 0..200 {
            let client = Client::connect(socket);
            for _ in 0..10 {
                let length = [0, 1, 47, 48, 48, 48, 49, 200][random.below(8) as usize];
                let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                if let Some(word) = bytes.first_chunk_mut::<4>() {
                    *word = [random.below(5) as u8, 0, 0, 0];
                }
                let descriptors: Vec<BorrowedFd<'_>> = (0..random.below(30)).map(|_| file.as_fd()).collect();
                if bytes.is_empty() || client.exchange_with(&bytes, &descriptors).0.errno == libc::EIO {
                    break;
                }
            }
        }
    });
}

#[test]
fn a_broker_survives_random_ioctls() {
    survives("ioctls", |socket, random| {
        // The memory that attributes point to. The broker writes its responses there, as a kernel would.
        let mut arena = vec![0_u64; 4096];
        let arena = arena.as_mut_ptr() as u64;
        let client = Client::open(socket);
        for _ in 0..20_000 {
            let objects = [0, 1, 3, 4, 6, 7, 16, 19, random.below(40)];
            let mut call = Call::new(objects[random.below(9) as usize] as u32, random.below(9) as u32);
            for index in 0..random.below(16) {
                let id = [index, 0x1000 + random.below(6), random.below(20)][random.below(3) as usize];
                let length = [0, 4, 8, 20, 32, 200, random.below(16_000)][random.below(7) as usize];
                let pointer = arena + 8 * random.below(2048);
                let values = [random.below(4), u64::MAX - random.below(64), random.below(1 << 31)];
                let data = match length {
                    0 => values[random.below(3) as usize],
                    1..=8 => [values[0], values[1], pointer][random.below(3) as usize],
                    // Longer data must point into the arena, which may be overwritten.
                    _ => pointer,
                };
                call = call.raw(id as u32, length as u16, data);
            }
            call.run(&client);
        }
    });
}

#[test]
fn a_broker_survives_scribbles_on_rings_and_doorbells() {
    survives("rings", |socket, random| {
        for _ in 0..20 {
            let device = device(socket, 64);
            for _ in 0..2000 {
                let at = random.below(64 * 64 - 8) as usize;
                // SAFETY: the offset is inside the mapped ring.
                unsafe { device.sq.add(at).cast::<u64>().write_unaligned(random.below(u64::MAX)) };
                device.ring_send_doorbell(random.below(1 << 32) as u32);
                device.ring_completion_doorbell(random.below(1 << 32) as u32);
            }
        }
    });
}

#[test]
fn a_broker_survives_a_file_that_loses_its_pages_under_requests() {
    const BYTES: u64 = 4 << 20;
    survives("files", |socket, _| {
        for _ in 0..10 {
            let mut device = device(socket, 16);
            let file = File::from(memfd_create(c"truncated", MFdFlags::empty()).unwrap());
            file.set_len(BYTES).unwrap();
            let region = device.register_descriptor(file.as_fd(), BYTES).unwrap();
            (0..8).for_each(|_| device.write(&region, &region, BYTES as u32));
            file.set_len(BYTES / 2).unwrap();
            device.wait();
            file.set_len(0).unwrap();
            for _ in 1..8 {
                device.wait();
            }
        }
    });
}

#[test]
fn a_broker_keeps_nothing_of_a_program_that_is_killed_in_mid_work() {
    survives("killed", |socket, _| {
        for _ in 0..10 {
            // SAFETY: the child opens a device, posts and is killed. It uses no lock of this process's other threads but
            // those of the allocator, which is usable after a fork.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => {
                    let mut device = device(socket, 64);
                    let mut memory = vec![7_u8; 1 << 20];
                    let region = device.register(memory.as_mut_ptr() as u64, 1 << 20).unwrap();
                    (0..32).for_each(|_| device.write(&region, &region, 1 << 20));
                    let _ = kill(Pid::this(), Signal::SIGKILL);
                }
                ForkResult::Parent { child } => {
                    waitpid(child, None).unwrap();
                }
            }
        }
    });
}
