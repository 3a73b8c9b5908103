//! A transport of two processes that adds a tensor of each rank with a kernel of its own (`transport/reduce.cu`): a put
//! with signal in both directions, then the sum. Without arguments it is rank 0, starts rank 1, and talks to it through
//! pipes; `transport 0` and `transport 1` talk through their stdin and stdout. It uses rdma-core alone; `put.rs` uses
//! libfabric. The kernel runs on the first GPU, or where there is none on the host executor, for which a C++17 compiler
//! compiles it here.
//!
//! `scripts/realstack.sh` runs two of it on the software adapter: `softefa run -- transport`.

#[path = "transport/processor.rs"]
mod processor;

use std::error::Error;
use std::io::{Read, Write, stderr, stdin, stdout};
use std::process::{Command, ExitCode, Stdio};

use efa_gda::queue::device_peer;
use efa_gda::{Queue, Source};
use efa_gda_sys::device::{EFA_GDA_NOT_RUN, EFA_GDA_OK, efa_gda_peer, efa_gda_queue};
use processor::Processor;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BLOCKS: u32 = 4;
const THREADS: u32 = 64;
const WARPS: usize = (BLOCKS * THREADS / 32) as usize;
/// Bytes of the tensor that each warp moves.
const PART: usize = 16 << 10;
const TENSOR: usize = WARPS * PART;
const STATUS: usize = 3 * TENSOR + 16 * WARPS;

/// `struct reduce_args`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Reduce {
    queue: *mut efa_gda_queue,
    peer: efa_gda_peer,
    memory: u64,
    remote: u64,
    rkey: u32,
    lkey: u32,
    warps: u32,
    part_bytes: u32,
    timeout_ns: u64,
}
// SAFETY: blocks share the queue and the memory as `transport/reduce.cu` states.
unsafe impl Sync for Reduce {}

fn main() -> ExitCode {
    let ended = match std::env::args().nth(1).as_deref() {
        None => with_peer(),
        Some("0") => transport(&mut stdin(), &mut stdout(), 0),
        Some("1") => transport(&mut stdin(), &mut stdout(), 1),
        Some(other) => {
            Err(format!("unknown argument \"{other}\"; expected none, or the rank, 0 or 1").into())
        }
    };
    let failed = ended.map_err(|error| eprintln!("transport: {}", error)).is_err();
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Starts the other rank, and is the first one.
fn with_peer() -> Result<()> {
    let mut peer = Command::new(std::env::current_exe()?);
    let mut peer = peer.arg("1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut to, mut from) = (peer.stdin.take().ok_or("no pipe")?, peer.stdout.take().ok_or("no pipe")?);
    let ended = transport(&mut from, &mut to, 0);
    // Its reads end with the pipe, and its kernel's waits by their bound.
    drop((to, from));
    let peer = peer.wait()?;
    ended.and_then(
        |()| if peer.success() { Ok(()) } else { Err(format!("the peer ended with {peer}").into()) },
    )
}

/// Sends bytes to the peer and returns as many of its own. A peer that ended is an error.
fn exchange(from: &mut impl Read, to: &mut impl Write, bytes: &[u8]) -> Result<Vec<u8>> {
    to.write_all(bytes)
        .and_then(|()| to.flush())
        .map_err(|error| format!("the peer takes nothing: {error}"))?;
    let mut theirs = vec![0; bytes.len()];
    from.read_exact(&mut theirs).map_err(|error| format!("the peer sent too little: {error}"))?;
    Ok(theirs)
}

fn transport(from: &mut impl Read, to: &mut impl Write, rank: u8) -> Result<()> {
    let processor = Processor::open()?;
    // Each warp waits for its own requests.
    let mut queue = Queue::open(&processor.options().source(Source::RdmaCore).request_table())?;

    let tensor = |rank: u8| (0..TENSOR / 4).map(move |i| (i % 1000) as f32 + f32::from(rank) * 0.5);
    let mut bytes: Vec<u8> = tensor(rank).flat_map(f32::to_ne_bytes).collect();
    bytes.resize(STATUS, 0);
    bytes.extend((0..WARPS).flat_map(|_| EFA_GDA_NOT_RUN.to_ne_bytes()));
    let memory = processor.allocate(&queue, bytes.len())?;
    memory.write(0, &bytes)?;

    let (peer, regions) = queue.insert_card(&exchange(from, to, &queue.card(&[&memory])?)?)?;
    // An adapter refuses requests of a sender that it does not know, so both must have inserted each other.
    exchange(from, to, &[rank])?;

    let lkey = queue.retain(&memory)?.get();
    processor.run(
        &queue,
        Reduce {
            queue: queue.device_address(),
            peer: device_peer(peer),
            memory: memory.address(),
            remote: regions[0].address,
            rkey: regions[0].key.get(),
            lkey,
            warps: WARPS as u32,
            part_bytes: PART as u32,
            timeout_ns: 10_000_000_000,
        },
    )?;
    // Neither rank closes its queue while the other one's requests are in flight.
    exchange(from, to, &[rank])?;
    memory.read(0, &mut bytes)?;

    let (sums, ended) = (bytes[2 * TENSOR..3 * TENSOR].as_chunks().0, bytes[STATUS..].as_chunks().0);
    for (warp, status) in ended.iter().map(|word| u32::from_ne_bytes(*word)).enumerate() {
        if status != EFA_GDA_OK {
            return Err(format!(
                "warp {warp} of rank {rank} ended with status {status} (docs/kernels.md, Statuses)"
            )
            .into());
        }
    }
    let expected = tensor(0).zip(tensor(1)).map(|(mine, theirs)| mine + theirs);
    match sums.iter().zip(expected).position(|(sum, expected)| f32::from_ne_bytes(*sum) != expected) {
        Some(element) => return Err(format!("element {element} of the sum at rank {rank} is wrong").into()),
        None => {
            let name = processor.name()?;
            let line = format!("rank {rank}: the sum of {} elements is right, on {name}\n", TENSOR / 4);
            // One write, because both ranks may share this descriptor.
            stderr().write_all(line.as_bytes())?;
        }
    }
    Ok(())
}
