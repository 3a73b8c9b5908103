//! The device code formats the same bytes as the wire crate for every kind of entry.

use efa_gda::executor::host::{EntrySpec, encode_entry, encode_inline_entry, encode_receive};
use efa_gda::wire::*;
use efa_gda_sys::device::*;

const ROUNDS: u32 = 2000;

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
            ..EntrySpec::default()
        }
    }
}

fn key(number: u32) -> LocalKey {
    LocalKey::new(number).expect("24 bits")
}

fn local(spec: &EntrySpec) -> Segment {
    Segment { address: spec.local_address, length: spec.length, key: key(spec.lkey) }
}

fn remote(spec: &EntrySpec) -> RemoteMemory {
    RemoteMemory { address: spec.remote_address, key: RemoteKey::new(spec.rkey) }
}

fn expected(spec: &EntrySpec, operation: Operation, size: EntrySize) -> Vec<u8> {
    let ids = if spec.wide_id { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let request = Request {
        id: RequestId::new(spec.request_id & ids.largest().get()),
        peer: Peer {
            address_handle: AddressHandle::new(spec.peer.ah),
            queue_pair: QueuePairNumber::new(spec.peer.qpn),
            queue_key: QueueKey::new(spec.peer.qkey),
        },
        immediate: spec.has_immediate.then_some(spec.immediate),
        hints: ProcessingHints::from_bits(spec.hints as u8),
        operation,
    };
    request.encode(size, spec.phase, ids).expect("the request has an encoding").to_vec()
}

/// Compares the entry in each of `sizes`.
fn compare(spec: &EntrySpec, bytes: [u8; 128], operation: Operation, sizes: &[EntrySize]) {
    for size in sizes {
        let expected = expected(spec, operation, *size);
        assert_eq!(bytes[..expected.len()], expected, "{spec:x?}");
    }
}

const BOTH: &[EntrySize] = &[EntrySize::B64, EntrySize::B128];
const WIDE: &[EntrySize] = &[EntrySize::B128];

#[test]
fn writes_equal_the_wire_crate() {
    let mut random = Random(1);
    for _ in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_WRITE, ..random.spec() };
        let operation = Operation::Write { remote: remote(&spec), local: local(&spec) };
        compare(&spec, encode_entry(&spec), operation, BOTH);
    }
}

#[test]
fn reads_equal_the_wire_crate() {
    let mut random = Random(2);
    for _ in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_READ, has_immediate: false, ..random.spec() };
        let operation = Operation::Read { remote: remote(&spec), local: local(&spec) };
        compare(&spec, encode_entry(&spec), operation, BOTH);
    }
}

#[test]
fn sends_of_one_piece_equal_the_wire_crate() {
    let mut random = Random(3);
    for _ in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_SEND, ..random.spec() };
        let operation = Operation::Send(Segments::new(&[local(&spec)]).expect("one"));
        compare(&spec, encode_entry(&spec), operation, BOTH);
    }
}

#[test]
fn sends_of_two_pieces_equal_the_wire_crate() {
    let mut random = Random(4);
    for _ in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_SEND, pieces: 2, ..random.spec() };
        let second =
            Segment { address: spec.second_address, length: spec.second_length, key: key(spec.second_lkey) };
        let operation = Operation::Send(Segments::new(&[local(&spec), second]).expect("two"));
        compare(&spec, encode_entry(&spec), operation, BOTH);
    }
}

#[test]
fn inline_sends_equal_the_wire_crate() {
    let mut random = Random(5);
    for round in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_INLINE_SEND, ..random.spec() };
        let bytes = random.bytes(round % 81);
        let operation = Operation::SendInline(InlineData::new(&bytes).expect("at most 80"));
        let sizes = if bytes.len() <= 32 { BOTH } else { WIDE };
        compare(&spec, encode_inline_entry(&spec, &bytes), operation, sizes);
    }
}

#[test]
fn inline_writes_equal_the_wire_crate() {
    let mut random = Random(6);
    for round in 0..ROUNDS {
        let spec = EntrySpec { op: EFA_GDA_OP_INLINE_WRITE, ..random.spec() };
        let bytes = random.bytes(round % 81);
        let data = InlineData::new(&bytes).expect("at most 80");
        let operation = Operation::WriteInline { remote: remote(&spec), data };
        compare(&spec, encode_inline_entry(&spec, &bytes), operation, WIDE);
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
