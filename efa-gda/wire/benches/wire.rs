//! What it costs to turn requests and completions into bytes and back.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use efa_gda_wire::{
    AddressHandle, Completion, CompletionKind, CompletionStatus, DecodedRequest, EntrySize, InlineData,
    LocalKey, Operation, Peer, ProcessingHints, QueueKey, QueuePairNumber, RemoteKey, RemoteMemory, Request,
    RequestId, RequestIdWidth, Segment, Segments,
};

const IDS: RequestIdWidth = RequestIdWidth::Bits16;

/// A request of each shape, with the size of entry that it needs.
fn requests() -> Vec<(&'static str, EntrySize, Request)> {
    let key = LocalKey::new(0x12_3456).expect("24 bits");
    let local = Segment { address: 0x7f00_1234_5000, length: 64, key };
    let remote = RemoteMemory { address: 0x7f00_4321_5000, key: RemoteKey::new(0x8765_4321) };
    let data = |length| InlineData::new(&[0x5a; 80][..length]).expect("at most 80 bytes");
    let request = |operation| Request {
        id: RequestId::new(0x1234),
        peer: Peer {
            address_handle: AddressHandle::new(3),
            queue_pair: QueuePairNumber::new(17),
            queue_key: QueueKey::new(0x1111_2222),
        },
        immediate: None,
        hints: ProcessingHints::NONE,
        operation,
    };
    let two = Segments::new(&[local, local]).expect("two segments fit");
    vec![
        ("write", EntrySize::B64, request(Operation::Write { remote, local })),
        ("send of two segments", EntrySize::B64, request(Operation::Send(two))),
        ("inline send of 32 B", EntrySize::B64, request(Operation::SendInline(data(32)))),
        ("inline write of 80 B", EntrySize::B128, request(Operation::WriteInline { remote, data: data(80) })),
    ]
}

fn entries(c: &mut Criterion) {
    for (name, size, request) in requests() {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(1));
        group.bench_function("encode", |b| b.iter(|| black_box(&request).encode(size, true, IDS)));
        let entry = request.encode(size, true, IDS).expect("the request has a form");
        group.bench_function("decode", |b| b.iter(|| DecodedRequest::decode(black_box(&entry), IDS)));
        group.finish();
    }
}

fn completions(c: &mut Criterion) {
    let completion = Completion {
        id: RequestId::new(0x1234),
        status: CompletionStatus::Ok,
        operation_code: 2,
        queue_pair: QueuePairNumber::new(17),
        kind: CompletionKind::Send,
    };
    let mut bytes = [0; 32];
    let mut group = c.benchmark_group("completion");
    group.throughput(Throughput::Elements(1));
    group.bench_function(BenchmarkId::from_parameter("encode"), |b| {
        b.iter(|| black_box(&completion).encode(black_box(&mut bytes), true, IDS));
    });
    group.bench_function(BenchmarkId::from_parameter("decode"), |b| {
        b.iter(|| Completion::decode(black_box(&bytes), IDS));
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().sample_size(30).configure_from_args();
    entries(&mut criterion);
    completions(&mut criterion);
    criterion.final_summary();
}
