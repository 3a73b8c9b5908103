//! The example of a low-latency dispatch (kernels/examples/low_latency_dispatch.cu): nine ranks, each with the other eight
//! as peers. All memory of a rank is one region.

use std::collections::BTreeSet;

use efa_gda::fabric::Region;
use efa_gda::queue::{MappedQueue, device_peer};
use efa_gda::wire::Peer;
use efa_gda_sys::device::{EFA_GDA_NOT_RUN, EFA_GDA_OK, efa_gda_peer, efa_gda_queue};

use super::SECOND;

pub(crate) const PEERS: usize = 8;
pub(crate) const RANKS: usize = PEERS + 1;
/// Threads of the block.
pub(crate) const THREADS: u32 = 1024;
const EXPERTS: usize = 4;
const DESTINATIONS: usize = PEERS * EXPERTS;
const TOKENS: usize = 40;
const TOKEN_BYTES: usize = 48;
const TOP_K: usize = 3;
const MESSAGE: usize = 16 + TOKEN_BYTES;
/// Messages of one source for one expert.
const MESSAGES: usize = TOKENS * MESSAGE;

/// Offsets in a rank's region.
const PACKED: usize = 0;
const COUNT_WORDS: usize = PACKED + DESTINATIONS * MESSAGES;
const RECEIVED: usize = COUNT_WORDS + DESTINATIONS * 8;
const COUNTS: usize = RECEIVED + DESTINATIONS * MESSAGES;
const OUTPUT: usize = COUNTS + DESTINATIONS * 8;
const TOKEN_MEMORY: usize = OUTPUT + DESTINATIONS * MESSAGES;
const ROUTES: usize = TOKEN_MEMORY + TOKENS * TOKEN_BYTES;
const NUM_OUTPUT: usize = ROUTES + TOKENS * TOP_K * 4;
const STATUS: usize = NUM_OUTPUT + EXPERTS * 4;
const END: usize = STATUS + DESTINATIONS * 4;

/// `struct dispatch_peer`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DispatchPeer {
    peer: efa_gda_peer,
    rkey: u32,
    reserved: u32,
    messages: u64,
    counts: u64,
}

/// `struct dispatch_args`, with addresses as numbers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Dispatch {
    queue: u64,
    peers: [DispatchPeer; PEERS],
    rank: u32,
    lkey: u32,
    num_tokens: u32,
    max_tokens: u32,
    token_bytes: u32,
    top_k: u32,
    tokens: u64,
    routes: u64,
    packed: u64,
    packed_address: u64,
    count_words: u64,
    count_words_address: u64,
    received: u64,
    counts: u64,
    output: u64,
    num_output: u64,
    timeout_ns: u64,
    status: u64,
}

/// A rank's region.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// What the ranks know of each other's regions. Each queue holds its rank's region.
pub(crate) fn memory(queues: &mut [MappedQueue], regions: &[Region]) -> Vec<Memory> {
    let of = |(queue, region): (&mut MappedQueue, &Region)| Memory {
        address: region.address(),
        lkey: queue.retain(region).expect("a region of the same domain").get(),
        rkey: region.remote_key().get(),
    };
    queues.iter_mut().zip(regions).map(of).collect()
}

/// The peers of rank `rank`; `introduce` gives two queues the address of each other.
pub(crate) fn peers(
    queues: &[MappedQueue],
    rank: usize,
    introduce: impl Fn(&MappedQueue, &MappedQueue) -> Peer,
) -> [efa_gda_peer; PEERS] {
    std::array::from_fn(|number| device_peer(introduce(&queues[rank], &queues[peer_of(rank, number)])))
}

fn token(rank: usize, token: usize) -> Vec<u8> {
    (0..TOKEN_BYTES).map(|at| (rank * 101 + token * 31 + at * 7) as u8).collect()
}

/// The destinations of a token, of which the last is sometimes none.
fn routes(rank: usize, token: usize) -> [u32; TOP_K] {
    let first = (rank * 5 + token * 11) as u32;
    [first % 32, (first + 7) % 32, (first + 19) % 40]
}

/// The rank that is peer number `peer` of `rank`.
pub(crate) fn peer_of(rank: usize, peer: usize) -> usize {
    (rank + 1 + peer) % RANKS
}

/// The bytes of a rank's region before the dispatch.
pub(crate) fn image(rank: usize) -> Vec<u8> {
    let mut bytes = vec![0; END];
    for number in 0..TOKENS {
        bytes[TOKEN_MEMORY + number * TOKEN_BYTES..][..TOKEN_BYTES].copy_from_slice(&token(rank, number));
        let routes = routes(rank, number).map(u32::to_le_bytes).concat();
        bytes[ROUTES + number * TOP_K * 4..][..TOP_K * 4].copy_from_slice(&routes);
    }
    bytes[STATUS..].copy_from_slice(&EFA_GDA_NOT_RUN.to_le_bytes().repeat(DESTINATIONS));
    bytes
}

/// The kernel's argument for `rank`, whose peers `peers` are in order. `memory` has the regions of all ranks.
pub(crate) fn arguments(
    rank: usize,
    queue: *mut efa_gda_queue,
    memory: &[Memory],
    peers: [efa_gda_peer; PEERS],
) -> Dispatch {
    let reach = |number: usize| {
        let to = peer_of(rank, number);
        let source = (0..PEERS).find(|back| peer_of(to, *back) == rank).expect("ranks are mutual peers");
        DispatchPeer {
            peer: peers[number],
            rkey: memory[to].rkey,
            reserved: 0,
            messages: memory[to].address + (RECEIVED + source * EXPERTS * MESSAGES) as u64,
            counts: memory[to].address + (COUNTS + source * EXPERTS * 8) as u64,
        }
    };
    let at = |offset: usize| memory[rank].address + offset as u64;
    Dispatch {
        queue: queue as u64,
        peers: std::array::from_fn(reach),
        rank: rank as u32,
        lkey: memory[rank].lkey,
        num_tokens: TOKENS as u32,
        max_tokens: TOKENS as u32,
        token_bytes: TOKEN_BYTES as u32,
        top_k: TOP_K as u32,
        tokens: at(TOKEN_MEMORY),
        routes: at(ROUTES),
        packed: at(PACKED),
        packed_address: at(PACKED),
        count_words: at(COUNT_WORDS),
        count_words_address: at(COUNT_WORDS),
        received: at(RECEIVED),
        counts: at(COUNTS),
        output: at(OUTPUT),
        num_output: at(NUM_OUTPUT),
        timeout_ns: 60 * SECOND,
        status: at(STATUS),
    }
}

/// The messages that `rank` must receive for its expert number `expert`.
fn expected(rank: usize, expert: usize) -> BTreeSet<Vec<u8>> {
    let mut messages = BTreeSet::new();
    for source in (0..RANKS).filter(|source| *source != rank) {
        let number = (0..PEERS).find(|peer| peer_of(source, *peer) == rank).expect("ranks are mutual peers");
        let destination = (number * EXPERTS + expert) as u32;
        for number in (0..TOKENS).filter(|number| routes(source, *number).contains(&destination)) {
            let header = [source as u32, number as u32, 0, 0].map(u32::to_le_bytes).concat();
            messages.insert([header, token(source, number)].concat());
        }
    }
    messages
}

/// Checks a rank's region after the dispatch: each token has arrived at the experts that it is routed to, once.
pub(crate) fn check(rank: usize, bytes: &[u8]) {
    let word = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"));
    for warp in 0..DESTINATIONS {
        assert_eq!(word(STATUS + 4 * warp), EFA_GDA_OK, "rank {rank}, warp {warp}");
    }
    for expert in 0..EXPERTS {
        let expected = expected(rank, expert);
        let count = word(NUM_OUTPUT + 4 * expert) as usize;
        let output = &bytes[OUTPUT + expert * PEERS * MESSAGES..];
        let messages: Vec<_> = output.chunks(MESSAGE).take(count).map(<[u8]>::to_vec).collect();
        assert_eq!(messages.len(), expected.len(), "rank {rank}, expert {expert}");
        assert!(messages.into_iter().collect::<BTreeSet<_>>() == expected, "rank {rank}, expert {expert}");
    }
}
