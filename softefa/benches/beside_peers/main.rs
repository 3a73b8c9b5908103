//! Compares softefa with its peers, alternately in one run: 64-byte RDMA writes with those of libfabric's
//! shm provider, and 64 KiB writes with `memcpy` of the same buffers. Prints medians, spread and ratios; it
//! has no pass or fail.
//!
//! Criterion measures one benchmark after the other. On a machine with other work, a ratio needs pairs: each
//! round here measures every series once, and the ratio is the median of the ratios of all rounds.

use std::time::Duration;

use efa_gda_wire::EntrySize;

#[path = "../client/mod.rs"]
mod client;
mod report;
mod shm;

use client::Client;
use report::Series;
use shm::Method;

/// Cores of the posting thread and of the engine's thread. The shm processes run on the same two.
const POSTER: usize = 0;
const ADAPTER: usize = 1;

const SMALL: usize = 64;
const SMALL_WINDOW: u32 = 1024;
const SMALL_BATCH: u32 = 64;
const LARGE: usize = 64 << 10;

const LARGE_WINDOW: u32 = 64;
const LARGE_BATCH: u32 = 16;
/// Time after which an idle engine sleeps.
const SETTLE: Duration = Duration::from_millis(3);

/// Buffer sizes of the 64 KiB writes: source and destination each have that size.
const LARGE_SETS: [(&str, usize); 3] = [
    ("256 KiB to 256 KiB, in a second-level cache", 256 << 10),
    ("4 MiB to 4 MiB, in the last-level cache", 4 << 20),
    ("128 MiB to 128 MiB, in no cache", 128 << 20),
];

/// The work of each round. It is small, so that most rounds end before other work of the machine takes a
/// core.
struct Effort {
    rounds: usize,
    small_writes: u64,
    shm_writes: u64,
    large_bytes: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if shm::serve(&arguments) {
        return;
    }
    // Without --bench (cargo test), one small round shows that the benchmark runs.
    let effort = match arguments.iter().any(|argument| argument == "--bench") {
        true => Effort { rounds: 301, small_writes: 1 << 14, shm_writes: 1 << 10, large_bytes: 16 << 20 },
        false => Effort { rounds: 1, small_writes: 1 << 10, shm_writes: 1 << 8, large_bytes: 1 << 20 },
    };
    Method::ALL.iter().for_each(|method| small(&effort, *method));
    LARGE_SETS.iter().for_each(|(name, bytes)| large(&effort, name, *bytes));
}

fn small(effort: &Effort, method: Method) {
    let mut pair = match shm::Pair::start(method) {
        Ok(pair) => Some(pair),
        Err(error) => {
            println!("{}: skipped, {error}", method.name());
            None
        }
    };
    let (mut softefa, mut shm) = (Series::new("softefa"), Series::new(method.name()));
    let mut client = Client::new(SMALL << 10, EntrySize::B64, POSTER, ADAPTER);
    let mut run = |count| {
        client.run(count, SMALL_BATCH, SMALL_WINDOW, |client, number| {
            client.write(SMALL * (number as usize % 1024), SMALL)
        })
    };
    for _ in 0..effort.rounds {
        // The first writes wake the engine.
        run(effort.small_writes / 8);
        softefa.push(rate(effort.small_writes, run(effort.small_writes)));
        std::thread::sleep(SETTLE);
        let Some(peer) = &mut pair else { continue };
        match peer.run(effort.shm_writes / 8).and_then(|_| peer.run(effort.shm_writes)) {
            Ok(elapsed) => shm.push(rate(effort.shm_writes, elapsed)),
            Err(error) => {
                println!("{}: skipped from here on, {error}", method.name());
                pair = None;
            }
        }
    }
    let library = pair.map(|pair| format!("; libfabric {}", pair.version())).unwrap_or_default();
    report::compare(&format!("64-byte RDMA writes, million a second{library}"), 1e-6, &softefa, &shm);
}

fn large(effort: &Effort, name: &str, bytes: usize) {
    let (mut softefa, mut memcpy) = (Series::new("softefa"), Series::new("memcpy"));
    let slots = bytes / LARGE;
    let count = (effort.large_bytes.min(4 * bytes) / LARGE).max(1) as u64;
    let mut client = Client::new(bytes, EntrySize::B64, POSTER, ADAPTER);
    let run = |client: &mut Client, count| {
        client.run(count, LARGE_BATCH, LARGE_WINDOW, |client, number| {
            client.write(number as usize % slots * LARGE, LARGE)
        })
    };
    for _ in 0..effort.rounds {
        // A first pass loads the buffers into the cache of the measured core, as far as they fit.
        run(&mut client, count);
        softefa.push(rate(count * LARGE as u64, run(&mut client, count)));
        std::thread::sleep(SETTLE);
        client.copy(count, LARGE);
        memcpy.push(rate(count * LARGE as u64, client.copy(count, LARGE)));
    }
    report::compare(&format!("64 KiB writes, GB/s; {name}"), 1e-9, &softefa, &memcpy);
}

fn rate(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
