//! Throughput and latency of the device core: operations through the real rings, with one poster and one
//! engine thread, by size and batch.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use efa_gda_wire::{EntrySize, InlineData, Operation};

mod client;

use client::Client;

const WINDOW: u32 = 1024;

fn small_writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("write 64 B");
    group.throughput(Throughput::Elements(1));
    let mut client = Client::new(1 << 16, EntrySize::B64, 0, 1);
    for batch in [1, 8, 64] {
        group.bench_function(BenchmarkId::new("entries to a doorbell", batch), |b| {
            b.iter_custom(|count| {
                client.run(count, batch, WINDOW, |client, number| {
                    client.write(64 * (number as usize % 1024), 64)
                })
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("inline write 64 B");
    group.throughput(Throughput::Elements(1));
    let mut client = Client::new(1 << 16, EntrySize::B128, 0, 1);
    let data = InlineData::new(black_box(&[7; 64])).expect("64 bytes fit");
    group.bench_function("32 entries to a doorbell", |b| {
        b.iter_custom(|count| {
            client.run(count, 32, WINDOW, |client, number| Operation::WriteInline {
                remote: client.remote(64 * (number as usize % 1024)),
                data,
            })
        });
    });
    group.finish();
}

fn one_at_a_time(c: &mut Criterion) {
    let mut client = Client::new(1 << 16, EntrySize::B64, 0, 1);
    c.bench_function("write 64 B, doorbell to completion", |b| {
        b.iter_custom(|count| client.run(count, 1, 1, |client, _| client.write(0, 64)));
    });
}

fn large_writes(c: &mut Criterion) {
    for (name, bytes) in [("write, in the cache", 1 << 19), ("write, beyond the cache", 128 << 20)] {
        let mut group = c.benchmark_group(name);
        let mut client = Client::new(bytes, EntrySize::B64, 0, 1);
        for length in [4 << 10, 64 << 10] {
            group.throughput(Throughput::Bytes(length as u64));
            let slots = bytes / length;
            group.bench_function(BenchmarkId::from_parameter(length), |b| {
                b.iter_custom(|count| {
                    client.run(count, 8, 32, |client, number| {
                        client.write(number as usize % slots * length, length)
                    })
                });
            });
        }
        group.finish();
    }
}

fn main() {
    let time = std::time::Duration::from_secs(3);
    let mut criterion = Criterion::default().sample_size(20).measurement_time(time).configure_from_args();
    small_writes(&mut criterion);
    one_at_a_time(&mut criterion);
    large_writes(&mut criterion);
    criterion.final_summary();
}
