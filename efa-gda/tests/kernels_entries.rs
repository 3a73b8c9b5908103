//! The device code formats the same bytes as the wire crate for every kind of entry, and both format the bytes that
//! libefa wrote for 10,000 requests.

use efa_gda::executor::host::{EntrySpec, encode_entry, encode_inline_entry, encode_receive};
use efa_gda::wire::*;
use efa_gda_sys::device::*;
use sha2::{Digest, Sha256};

const ROUNDS: u32 = 2000;

/// In `softefa/uverbs/tests/verbs_requests.c`: bytes of a request's memory, most requests of a batch, and entries of a
/// queue.
const SLOT: u32 = 4096;
const SLOTS: u32 = 16;
const DEPTH: u32 = 64;

/// A fixed pseudo-random sequence, so that a failure is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    fn word(&mut self) -> u32 {
        self.next() as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 32) as u32 % limit
    }

    fn bytes(&mut self, count: u32) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// As `draw` of `verbs_requests.c`.
    fn draw(&mut self, bound: u32) -> u32 {
        self.next();
        (self.0 >> 33) as u32 % bound
    }

    /// Random values for every field. The caller sets the operation and its constraints.
    fn spec(&mut self) -> EntrySpec {
        EntrySpec {
            peer: efa_gda_peer { ah: self.next() as u16, qpn: self.next() as u16, qkey: self.word() },
            local_address: self.next(),
            second_address: self.next(),
            remote_address: self.next(),
            request_id: self.next(),
            lkey: self.word() & 0xff_ffff,
            length: self.word(),
            second_lkey: self.word() & 0xff_ffff,
            second_length: self.word(),
            rkey: self.word(),
            immediate: self.word(),
            hints: self.below(4),
            has_immediate: self.below(2) == 1,
            phase: self.below(2) == 1,
            wide_id: self.below(2) == 1,
            pieces: 1,
            ..EntrySpec::default()
        }
    }
}

fn key(number: u32) -> LocalKey {
    LocalKey::new(number).expect("24 bits")
}

fn expected(spec: &EntrySpec, data: &[u8], size: EntrySize) -> Vec<u8> {
    let ids = if spec.wide_id { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let remote = RemoteMemory { address: spec.remote_address, key: RemoteKey::new(spec.rkey) };
    let local = Segment { address: spec.local_address, length: spec.length, key: key(spec.lkey) };
    let second =
        Segment { address: spec.second_address, length: spec.second_length, key: key(spec.second_lkey) };
    let segments = Segments::new(&[local, second][..spec.pieces as usize]).expect("one or two");
    let data = InlineData::new(data).expect("at most 80");
    let request = Request {
        id: RequestId::new(spec.request_id & ids.largest().get()),
        peer: Peer {
            address_handle: AddressHandle::new(spec.peer.ah),
            queue_pair: QueuePairNumber::new(spec.peer.qpn),
            queue_key: QueueKey::new(spec.peer.qkey),
        },
        immediate: spec.has_immediate.then_some(spec.immediate),
        hints: ProcessingHints::from_bits(spec.hints as u8),
        operation: match spec.op {
            EFA_GDA_OP_SEND => Operation::Send(segments),
            EFA_GDA_OP_INLINE_SEND => Operation::SendInline(data),
            EFA_GDA_OP_WRITE => Operation::Write { remote, local },
            EFA_GDA_OP_INLINE_WRITE => Operation::WriteInline { remote, data },
            _ => Operation::Read { remote, local },
        },
    };
    request.encode(size, spec.phase, ids).expect("the request has an encoding").to_vec()
}

/// Compares the entry in each of `sizes`, and returns it in the last of them. `data` is that of an inline request.
fn compare(spec: &EntrySpec, data: &[u8], sizes: &[EntrySize]) -> Vec<u8> {
    let bytes = match spec.op {
        EFA_GDA_OP_INLINE_SEND | EFA_GDA_OP_INLINE_WRITE => encode_inline_entry(spec, data),
        _ => encode_entry(spec),
    };
    let mut entry = Vec::new();
    for size in sizes {
        entry = expected(spec, data, *size);
        assert_eq!(bytes[..entry.len()], entry, "{spec:x?}");
    }
    entry
}

const BOTH: &[EntrySize] = &[EntrySize::B64, EntrySize::B128];
const WIDE: &[EntrySize] = &[EntrySize::B128];

#[test]
fn writes_equal_the_wire_crate() {
    let mut random = Random(1);
    for _ in 0..ROUNDS {
        compare(&EntrySpec { op: EFA_GDA_OP_WRITE, ..random.spec() }, &[], BOTH);
    }
}

#[test]
fn reads_equal_the_wire_crate() {
    let mut random = Random(2);
    for _ in 0..ROUNDS {
        compare(&EntrySpec { op: EFA_GDA_OP_READ, has_immediate: false, ..random.spec() }, &[], BOTH);
    }
}

#[test]
fn sends_of_one_piece_equal_the_wire_crate() {
    let mut random = Random(3);
    for _ in 0..ROUNDS {
        compare(&EntrySpec { op: EFA_GDA_OP_SEND, ..random.spec() }, &[], BOTH);
    }
}

#[test]
fn sends_of_two_pieces_equal_the_wire_crate() {
    let mut random = Random(4);
    for _ in 0..ROUNDS {
        compare(&EntrySpec { op: EFA_GDA_OP_SEND, pieces: 2, ..random.spec() }, &[], BOTH);
    }
}

#[test]
fn inline_sends_equal_the_wire_crate() {
    let mut random = Random(5);
    for round in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_INLINE_SEND, ..random.spec() };
        let data = random.bytes(round % 81);
        compare(&spec, &data, if data.len() <= 32 { BOTH } else { WIDE });
    }
}

#[test]
fn inline_writes_equal_the_wire_crate() {
    let mut random = Random(6);
    for round in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_INLINE_WRITE, ..random.spec() };
        compare(&spec, &random.bytes(round % 81), WIDE);
    }
}

#[test]
fn receives_equal_the_wire_crate() {
    let mut random = Random(7);
    for _ in 0..ROUNDS {
        let receive = Receive {
            id: random.next() as u16,
            address: random.next(),
            length: random.next() as u16,
            key: key(random.word() & 0xff_ffff),
        };
        let (first, last) = (random.below(2) == 1, random.below(2) == 1);
        let descriptor = ReceiveDescriptor { receive, first, last, reserved_zero: true };
        let length = u32::from(receive.length);
        let device = encode_receive(receive.address, receive.key.get(), length, receive.id, first, last);
        assert_eq!(device, descriptor.encode());
    }
}

/// The next request of `verbs_requests.c` in entries of `bytes` bytes, and its length. The numbers and keys are those
/// that the software adapter assigns with `SOFTEFA_SEED=1`.
fn drawn(random: &mut Random, bytes: u32, slot: u32) -> (EntrySpec, u32) {
    let offset = (1 << 44) + u64::from(slot * SLOT);
    let request_id = u64::from(random.draw(1 << 31)) << 32 | u64::from(random.draw(1 << 31));
    let kind = random.draw(3);
    let (send, read) = (kind == 0, kind == 2);
    let has_immediate = !read && random.draw(2) == 1;
    let immediate = random.draw(1 << 31);
    let inline = random.draw(3) == 0 && (send || !read && bytes == 128);
    let limit = match (inline, bytes) {
        (false, _) => SLOT,
        (true, 128) => 80,
        (true, _) => 32,
    };
    let total = random.draw(limit) + 1;
    let two = send && !inline && total > 1 && random.draw(2) == 1;
    let length = if two { random.draw(total - 1) + 1 } else { total };
    let spec = EntrySpec {
        op: match (kind, inline) {
            (0, false) => EFA_GDA_OP_SEND,
            (0, true) => EFA_GDA_OP_INLINE_SEND,
            (1, false) => EFA_GDA_OP_WRITE,
            (1, true) => EFA_GDA_OP_INLINE_WRITE,
            _ => EFA_GDA_OP_READ,
        },
        peer: efa_gda_peer { ah: 1, qpn: 2, qkey: 0x1122_3344 },
        request_id,
        wide_id: true,
        has_immediate,
        immediate,
        remote_address: offset + (1 << 32),
        rkey: 0xdcc0_0002,
        pieces: 1 + u32::from(two),
        local_address: offset,
        length,
        lkey: 0x1_0001,
        second_address: offset + u64::from(length),
        second_length: total - length,
        second_lkey: 0x1_0001,
        ..EntrySpec::default()
    };
    (spec, total)
}

/// The SHA-256 of the entries of the 5,000 or more requests that `verbs_requests.c` draws from the seed `bytes`, each
/// entry a line in hexadecimal.
fn hash_of_drawn_requests(bytes: u32, size: EntrySize) -> String {
    let mut random = Random(bytes.into());
    let mut hash = Sha256::new();
    let mut posted = 0;
    while posted < 5000 {
        let batch = random.draw(SLOTS) + 1;
        // The program fills the local and the remote region in turn.
        let filled: Vec<u8> = (0..2 * SLOT * SLOTS).map(|_| random.draw(256) as u8).collect();
        let local: Vec<u8> = filled.into_iter().step_by(2).collect();
        for slot in 0..batch {
            let (mut spec, length) = drawn(&mut random, bytes, slot);
            spec.phase = posted / DEPTH % 2 == 1;
            let inline = matches!(spec.op, EFA_GDA_OP_INLINE_SEND | EFA_GDA_OP_INLINE_WRITE);
            let data = &local[(slot * SLOT) as usize..][..if inline { length as usize } else { 0 }];
            for byte in compare(&spec, data, &[size]) {
                hash.update(format!("{byte:02x}"));
            }
            hash.update("\n");
            posted += 1;
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

// What libefa of rdma-core 65 wrote. scripts/realstack.sh compares it with what the libefa of Debian sid writes.
#[test]
fn entries_of_drawn_requests_equal_those_of_libefa() {
    let libefa = [
        (64, EntrySize::B64, "dd5d51f712a8fcaf315d8dfc01f42a2654fdfe153c93a1d316f3c22d226596fd"),
        (128, EntrySize::B128, "0d43eb8c78b205f63a4adb13d78b2f99175bc015661b2e08ffb4c454531eb77e"),
    ];
    for (bytes, size, hash) in libefa {
        assert_eq!(hash_of_drawn_requests(bytes, size), hash, "entries of {bytes} bytes");
    }
}
