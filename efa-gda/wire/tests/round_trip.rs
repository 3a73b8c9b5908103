//! Decoding returns what was encoded, and no encoded entry breaks a rule.

#![allow(clippy::unwrap_used)]

use efa_gda_wire::*;
use proptest::prelude::*;

fn key() -> impl Strategy<Value = LocalKey> {
    (0u32..1 << 24).prop_map(|key| LocalKey::new(key).unwrap())
}

fn segment() -> impl Strategy<Value = Segment> {
    (any::<u64>(), any::<u32>(), key()).prop_map(|(address, length, key)| Segment { address, length, key })
}

fn remote() -> impl Strategy<Value = RemoteMemory> {
    (any::<u64>(), any::<u32>()).prop_map(|(address, key)| RemoteMemory { address, key: RemoteKey::new(key) })
}

fn inline(limit: usize) -> impl Strategy<Value = InlineData> {
    proptest::collection::vec(any::<u8>(), 0..=limit).prop_map(|bytes| InlineData::new(&bytes).unwrap())
}

fn operation(size: EntrySize) -> BoxedStrategy<Operation> {
    let common = prop_oneof![
        proptest::collection::vec(segment(), 0..=2)
            .prop_map(|segments| Operation::Send(Segments::new(&segments).unwrap())),
        inline(size.inline_limit()).prop_map(Operation::SendInline),
        (remote(), segment()).prop_map(|(remote, local)| Operation::Write { remote, local }),
        (remote(), segment()).prop_map(|(remote, local)| Operation::Read { remote, local }),
    ];
    match size {
        EntrySize::B64 => common.boxed(),
        EntrySize::B128 => prop_oneof![
            4 => common,
            1 => (remote(), inline(80)).prop_map(|(remote, data)| Operation::WriteInline { remote, data }),
        ]
        .boxed(),
    }
}

fn request(size: EntrySize, ids: RequestIdWidth) -> impl Strategy<Value = Request> {
    (0..=ids.largest().get(), any::<(u16, u16, u32)>(), any::<Option<u32>>(), 0u8..4, operation(size))
        .prop_map(|(id, (ah, qpn, qkey), immediate, hints, operation)| Request {
            id: RequestId::new(id),
            peer: Peer {
                address_handle: AddressHandle::new(ah),
                queue_pair: QueuePairNumber::new(qpn),
                queue_key: QueueKey::new(qkey),
            },
            immediate: immediate.filter(|_| operation.code() != OperationCode::Read),
            hints: ProcessingHints::from_bits(hints),
            operation,
        })
}

fn case() -> impl Strategy<Value = (EntrySize, RequestIdWidth, Request)> {
    let sizes = prop_oneof![Just(EntrySize::B64), Just(EntrySize::B128)];
    let ids = prop_oneof![Just(RequestIdWidth::Bits16), Just(RequestIdWidth::Bits64)];
    (sizes, ids).prop_flat_map(|(size, ids)| (Just(size), Just(ids), request(size, ids)))
}

proptest! {
    #[test]
    fn decoding_an_entry_returns_the_request((size, ids, request) in case(), phase: bool) {
        let entry = request.encode(size, phase, ids).unwrap();
        prop_assert_eq!(entry.len(), size.bytes());
        let decoded = DecodedRequest::decode(&entry, ids).unwrap();
        prop_assert!(decoded.broken.is_empty(), "{}", decoded.broken);
        prop_assert_eq!(decoded.request, Some(request));
        prop_assert_eq!(decoded.phase, phase);
        prop_assert_eq!(decoded.id, request.id);
    }

    #[test]
    fn any_bytes_decode_without_panic(bytes in prop_oneof![any::<[u8; 64]>().prop_map(|b| b.to_vec()), any::<[u8; 128]>().prop_map(|b| b.to_vec())]) {
        for ids in [RequestIdWidth::Bits16, RequestIdWidth::Bits64] {
            let decoded = DecodedRequest::decode(&bytes, ids).unwrap();
            if let (Some(request), true) = (decoded.request, decoded.broken.is_empty()) {
                let again = request.encode(decoded.size, decoded.phase, ids).unwrap();
                let reread = DecodedRequest::decode(&again, ids).unwrap();
                prop_assert_eq!(reread.request, Some(request));
            }
        }
    }

    #[test]
    fn decoding_a_descriptor_returns_the_receive(address: u64, id: u16, length: u16, key in key()) {
        let receive = Receive { id, address, length, key };
        let descriptor = ReceiveDescriptor::decode(&receive.encode());
        prop_assert_eq!(descriptor.receive, receive);
        prop_assert!(descriptor.first && descriptor.last && descriptor.reserved_zero);
    }

    #[test]
    fn decoding_an_entry_returns_the_completion(
        id: u64, status: u8, qp: u16, op in 0u8..8, phase: bool, wide: bool,
        receive in any::<Option<(u32, u16, u16, Option<u32>, bool)>>(),
    ) {
        let ids = if wide { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
        let is_write = op == 2;
        let kind = receive.map_or(CompletionKind::Send, |(length, ah, source, immediate, unsolicited)| {
            CompletionKind::Receive(ReceiveInfo {
                length: if is_write { length } else { length & 0xffff },
                address_handle: AddressHandle::new(ah),
                source_queue_pair: QueuePairNumber::new(source),
                immediate,
                unsolicited,
            })
        });
        let id = if wide && kind == CompletionKind::Send { id } else { id & 0xffff };
        let completion = Completion {
            id: RequestId::new(id),
            status: CompletionStatus::from_code(status),
            operation_code: op,
            queue_pair: QueuePairNumber::new(qp),
            kind,
        };
        let mut bytes = [0xff; 32];
        completion.encode(&mut bytes, phase, ids);
        prop_assert_eq!(Completion::phase(bytes[Completion::FLAGS_OFFSET]), phase);
        prop_assert_eq!(Completion::decode(&bytes, ids), Ok(completion));
    }

    #[test]
    fn slots_and_phases_follow_a_ring_that_wraps(shift in 0u32..16, start: u32, steps in 0u32..200_000) {
        let ring = Ring::new(1 << shift).unwrap();
        let counter = start.wrapping_add(steps);
        prop_assert_eq!(u64::from(ring.slot(counter)), u64::from(counter) % u64::from(ring.entries()));
        prop_assert_eq!(ring.phase(counter), (u64::from(counter) / u64::from(ring.entries())) % 2 == 1);
        prop_assert_eq!(ring.phase(counter.wrapping_add(ring.entries())), !ring.phase(counter));
        prop_assert_eq!(doorbell_advance(ring.doorbell(start) as u16, counter), (steps & 0xffff) as u16);
    }
}

#[test]
fn a_flipped_bit_breaks_exactly_its_rule() {
    let request = Request {
        id: RequestId::new(0x1234),
        peer: Peer::default(),
        immediate: None,
        hints: ProcessingHints::NONE,
        operation: Operation::Write {
            remote: RemoteMemory { address: 0x1000, key: RemoteKey::new(9) },
            local: Segment { address: 0x2000, length: 64, key: LocalKey::new(5).unwrap() },
        },
    };
    let good = request.encode(EntrySize::B64, true, RequestIdWidth::Bits16).unwrap();
    // (offset, bits to flip, the only rule that this breaks), from the field comments of efa_io_defs.h
    let cases = [
        (2, 0x80, Rule::MetaDescSet),
        (2, 0x40, Rule::MetaExtensionZero),
        (2, 0x0c, Rule::KnownOperation),
        (3, 0x04, Rule::FirstSet),
        (3, 0x08, Rule::LastSet),
        (3, 0x10, Rule::CompletionRequested),
        (3, 0x02, Rule::Ctrl2ReservedZero),
        (3, 0x20, Rule::Ctrl2ReservedZero),
        (14, 0x04, Rule::Ctrl3ReservedZero),
        (15, 0x01, Rule::ReservedZero),
        (20, 0x01, Rule::ReservedZero),
        (25, 0x80, Rule::ReservedZero),
        (26, 0x01, Rule::ExtendedIdZero),
        (6, 0x03, Rule::SegmentCount),
        (2, 0x20, Rule::InlineSupported),
        (55, 0x01, Rule::LocalKeyWidth),
        (32, 0x01, Rule::RemoteLength),
    ];
    for (offset, bits, rule) in cases {
        let mut bad = good;
        bad[offset] ^= bits;
        let broken = DecodedRequest::decode(&bad, RequestIdWidth::Bits16).unwrap().broken;
        assert_eq!(broken.iter().collect::<Vec<_>>(), [rule], "byte {offset} with {bits:#x} flipped");
    }
}

#[test]
fn a_request_without_an_encoding_is_refused_with_its_reason() {
    let base = Request {
        id: RequestId::new(1),
        peer: Peer::default(),
        immediate: None,
        hints: ProcessingHints::NONE,
        operation: Operation::SendInline(InlineData::new(&[7; 33]).unwrap()),
    };
    let ids = RequestIdWidth::Bits16;
    assert_eq!(
        base.encode(EntrySize::B64, false, ids),
        Err(EncodeError::InlineTooLong { length: 33, limit: 32 })
    );
    assert!(base.encode(EntrySize::B128, false, ids).is_ok());
    let wide = Request { id: RequestId::new(65_536), ..base };
    assert_eq!(
        wide.encode(EntrySize::B128, false, ids),
        Err(EncodeError::RequestIdTooWide { id: RequestId::new(65_536) })
    );
    let remote = RemoteMemory::default();
    let write =
        Request { operation: Operation::WriteInline { remote, data: InlineData::new(&[]).unwrap() }, ..base };
    assert_eq!(write.encode(EntrySize::B64, false, ids), Err(EncodeError::InlineWriteNeeds128));
    let read = Request {
        immediate: Some(1),
        operation: Operation::Read { remote, local: Segment::default() },
        ..base
    };
    assert_eq!(read.encode(EntrySize::B64, false, ids), Err(EncodeError::ImmediateOnRead));
    assert_eq!(InlineData::new(&[0; 81]), Err(InlineTooLong { length: 81, limit: 80 }));
    assert_eq!(Segments::new(&[Segment::default(); 3]), Err(TooManySegments(3)));
    assert_eq!(LocalKey::new(1 << 24), Err(LocalKeyTooWide(1 << 24)));
}

#[test]
fn status_codes_are_those_of_the_interface_and_unknown_ones_stay_numbers() {
    let codes: Vec<u8> = CompletionStatus::ALL.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 18]);
    for code in 0..=255 {
        let status = CompletionStatus::from_code(code);
        assert_eq!(status.code(), code);
        assert_eq!(matches!(status, CompletionStatus::Unknown(_)), !codes.contains(&code));
    }
}

#[test]
fn a_completion_cursor_flips_its_phase_with_each_lap() {
    let mut cursor = CompletionCursor::new(Ring::new(4).unwrap());
    let slots_and_phases: Vec<(u32, bool)> = (0..9)
        .map(|_| {
            let slot_and_phase = (cursor.slot(), cursor.phase());
            cursor.advance();
            slot_and_phase
        })
        .collect();
    let expected = [
        (0, true),
        (1, true),
        (2, true),
        (3, true),
        (0, false),
        (1, false),
        (2, false),
        (3, false),
        (0, true),
    ];
    assert_eq!(slots_and_phases, expected);
}
