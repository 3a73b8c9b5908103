//! The tables of a bench for people.

use std::fmt::Write as _;

use crate::model::bench::{Bench, Quantiles, Spread};

fn spread(of: Spread) -> String {
    format!("{:>9.3}  ({:.3} to {:.3})", of.median, of.min, of.max)
}

fn quantiles(of: Quantiles) -> String {
    format!("{:>8.0} {:>8.0} {:>8.0} {:>8.0}", of.median, of.p25, of.p75, of.p99)
}

/// Appends the tables to `out`.
pub(super) fn render(out: &mut String, bench: &Bench) {
    let _ = writeln!(out, "Bench: {}", bench.heading());
    if !bench.latency.is_empty() {
        let _ = writeln!(out, "\nLatency of one write at a time, ns");
        let _ = writeln!(
            out,
            "  {:<9}{:<10}{:>7}  {:>8} {:>8} {:>8} {:>8}   {:>8} {:>8} {:>8} {:>8}",
            "doorbell", "producer", "bytes", "post", "p25", "p75", "p99", "complete", "p25", "p75", "p99"
        );
    }
    for row in &bench.latency {
        let (post, completion) = (quantiles(row.post_ns), quantiles(row.completion_ns));
        let _ =
            writeln!(out, "  {:<9}{:<10}{:>7}  {post}   {completion}", row.doorbell, row.producer, row.bytes);
    }
    if !bench.rate.is_empty() {
        let _ = writeln!(out, "\nMessage rate, million writes a second (range over runs)");
        let _ = writeln!(
            out,
            "  {:<9}{:<34}{:>7}{:>10}{:>9}",
            "doorbell", "producer", "queues", "per call", "rate"
        );
    }
    for row in &bench.rate {
        let _ = writeln!(
            out,
            "  {:<9}{:<34}{:>7}{:>10}{}",
            row.doorbell,
            row.producer,
            row.queues,
            row.per_call,
            spread(row.million_per_s)
        );
    }
    if !bench.bandwidth.is_empty() {
        let _ = writeln!(out, "\nBandwidth, 10^9 bytes a second (range over runs)");
    }
    for row in &bench.bandwidth {
        let _ = writeln!(
            out,
            "  {:<9}{:<20}{:>10} bytes {}",
            row.doorbell,
            row.producer,
            row.bytes,
            spread(row.gigabytes_per_s)
        );
    }
    for case in &bench.left_out {
        let _ = writeln!(out, "  not measured: {case}");
    }
    out.push('\n');
}
