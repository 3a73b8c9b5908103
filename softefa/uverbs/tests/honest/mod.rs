//! A program that keeps every rule, and measures how long it waits beside others that do not.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)] // a failed unwrap fails the test

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use efa_gda_wire::CompletionStatus;
use softefa_abi::sys::UVERBS_ATTR_CORE_OUT;
use softefa_uverbs::broker::gid;

use crate::client::{Call, Client, Device, u32_of};

/// How long each thread of some processes has waited for a CPU, in nanoseconds (`/proc/PID/task/TID/schedstat`).
fn cpu_waits(processes: [i32; 2]) -> HashMap<PathBuf, u64> {
    let tasks = processes.iter().filter_map(|process| fs::read_dir(format!("/proc/{process}/task")).ok());
    let threads = tasks.flatten().filter_map(|thread| Some(thread.ok()?.path()));
    let waits = threads.filter_map(|thread| {
        let times = fs::read_to_string(thread.join("schedstat")).ok()?;
        Some((thread, times.split_whitespace().nth(1)?.parse().ok()?))
    });
    waits.collect()
}

/// What the threads of some processes have waited for a CPU since `before`, which it brings up to date. Any time, if the
/// kernel does not report it.
fn more_cpu_waits(before: &mut HashMap<PathBuf, u64>, processes: [i32; 2]) -> Duration {
    let now = cpu_waits(processes);
    if now.is_empty() {
        return Duration::MAX;
    }
    let more = now.iter().map(|(thread, now)| now.saturating_sub(*before.get(thread).unwrap_or(&0)));
    let more = Duration::from_nanos(more.sum());
    *before = now;
    more
}

/// Makes a call, and notes how long it took.
fn timed<T>(longest: &mut Duration, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    *longest = start.elapsed().max(*longest);
    result
}

/// The longest waits of each kind: for a call of the broker, for a device to be opened, for a write, and for a reply of
/// another thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Longest {
    pub call: Duration,
    pub open: Duration,
    pub write: Duration,
    pub reply: Duration,
}

impl Longest {
    fn each(self, other: Self, choose: impl Fn(Duration, Duration) -> Duration) -> Self {
        Self {
            call: choose(self.call, other.call),
            open: choose(self.open, other.open),
            write: choose(self.write, other.write),
            reply: choose(self.reply, other.reply),
        }
    }
}

impl Display for Longest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { call, open, write, reply } = self;
        write!(f, "call {call:.1?}, open {open:.1?}, write {write:.1?}, reply of a thread {reply:.1?}")
    }
}

/// What the honest program waited for at most in its rounds, and what is left of that without waits for a CPU: in each
/// round, what all threads of the broker and of this process waited for a CPU is subtracted from each wait. On a machine
/// with idle cores that is next to nothing, and elsewhere at least what the round lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    pub rounds: u64,
    pub longest: Longest,
    pub without_cpu_waits: Longest,
}

impl Display for Waited {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { rounds, longest, without_cpu_waits } = self;
        write!(f, "{rounds} rounds, longest {longest}; without waits for a CPU {without_cpu_waits}")
    }
}

/// The honest program: opens a device, registers memory, moves bytes, compares them, and measures how long it waits.
pub struct Honest {
    device: Device,
    socket: PathBuf,
    memory: Vec<u8>,
    thread: UnixStream,
    /// This process and the broker.
    processes: [i32; 2],
}

impl Honest {
    const BYTES: usize = 4096;

    pub fn new(socket: &Path, broker: i32) -> Self {
        let (thread, mut other) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut byte = [0];
            while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
        });
        let device = Device::new(socket, gid(0).0, 16, 16);
        let processes = [std::process::id() as i32, broker];
        Self { device, socket: socket.to_owned(), memory: vec![0; 2 * Self::BYTES], thread, processes }
    }

    /// Works for a time.
    pub fn work(&mut self, time: Duration) -> Waited {
        let mut waited = Waited::default();
        let limit = Instant::now() + time;
        let mut before = cpu_waits(self.processes);
        while Instant::now() < limit {
            let longest = self.work_once(waited.rounds as u8);
            let lost = more_cpu_waits(&mut before, self.processes);
            let rest = longest.each(longest, |wait, _| wait.saturating_sub(lost));
            waited.longest = waited.longest.each(longest, Duration::max);
            waited.without_cpu_waits = waited.without_cpu_waits.each(rest, Duration::max);
            waited.rounds += 1;
        }
        waited
    }

    fn work_once(&mut self, value: u8) -> Longest {
        let mut longest = Longest::default();
        timed(&mut longest.reply, || {
            self.thread.write_all(&[1]).unwrap();
            self.thread.read_exact(&mut [0]).unwrap();
        });
        // Refused if other programs have left no device to this one, which has one already.
        let _ = timed(&mut longest.open, || Client::try_open(&self.socket, 0));
        self.memory[..Self::BYTES].fill(value);
        self.memory[Self::BYTES..].fill(!value);
        let (address, length) = (self.memory.as_mut_ptr() as u64, Self::BYTES as u64);
        let [from, to] = [address, address + length]
            .map(|address| timed(&mut longest.call, || self.device.register(address, length)).unwrap());
        timed(&mut longest.write, || {
            self.device.write(&from, &to, Self::BYTES as u32);
            assert_eq!(self.device.wait(), CompletionStatus::Ok);
        });
        assert!(std::hint::black_box(&self.memory).iter().all(|byte| *byte == value));
        let mut run = |mut call: Call| {
            assert_eq!(timed(&mut longest.call, || call.run(&self.device.client)), 0);
            call
        };
        run(Call::deregister(from.handle));
        run(Call::deregister(to.handle));
        let domain = run(Call::allocate_domain());
        run(Call::destroy_domain(u32_of(domain.bytes(UVERBS_ATTR_CORE_OUT))));
        longest
    }
}
