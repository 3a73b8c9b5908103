//! The tables of a bench for people. A narrow terminal has fewer columns of them; the page and JSON have all.

use std::fmt::Write as _;

use super::style::Style;
use crate::model::Document;
use crate::model::bench::{Bench, Latency, Quantiles, Rate, Spread, significant};

/// Columns from which a line has room for quartiles, and for the writes of each call.
const WITH_QUARTILES: usize = 104;
const WITH_CALLS: usize = 92;

fn spread(of: Spread) -> String {
    let [median, min, max] = [of.median, of.min, of.max].map(significant);
    format!("{median:>9}  ({min} to {max})")
}

/// Appends the tables to `out`.
pub(super) fn render(out: &mut String, bench: &Bench, document: &Document, style: Style) {
    let origin = &document.origin;
    if document.soft {
        let note = "Software adapter: these figures say nothing about an EFA adapter.";
        out.push_str(&style.wrapped("", 0, note));
    }
    out.push_str(&style.wrapped("Bench: ", 7, &bench.heading()));
    let host = origin.host.as_deref().unwrap_or("unknown host");
    let time = origin.time.as_deref().unwrap_or("unknown time");
    out.push_str(&style.wrapped("       ", 7, &format!("gda-probe {} on {host}, {time}", origin.version)));
    latency(out, &bench.latency, style);
    rate(out, &bench.rate, style);
    if !bench.bandwidth.is_empty() {
        out.push_str("\nBandwidth, 10^9 bytes a second (range over runs)\n");
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
        out.push_str(&style.wrapped("  not measured: ", 16, case));
    }
    out.push('\n');
}

fn latency(out: &mut String, rows: &[Latency], style: Style) {
    if rows.is_empty() {
        return;
    }
    let quartiles = style.width >= WITH_QUARTILES;
    let heads = |name: &str| match quartiles {
        true => format!("{name:>9}{:>9}{:>9}{:>9}", "p25", "p75", "p99"),
        false => format!("{name:>9}{:>9}", "p99"),
    };
    let cells = |of: &Quantiles| match quartiles {
        true => format!("{:>9.0}{:>9.0}{:>9.0}{:>9.0}", of.median, of.p25, of.p75, of.p99),
        false => format!("{:>9.0}{:>9.0}", of.median, of.p99),
    };
    let heading = "Latency of one write at a time, ns: median of the post and of the completion after it";
    out.push_str(&style.wrapped("\n", 0, heading));
    let (post, complete) = (heads("post"), heads("complete"));
    let _ = writeln!(out, "  {:<9}{:<10}{:>7} {post}  {complete}", "doorbell", "producer", "bytes");
    for row in rows {
        let (post, completion) = (cells(&row.post_ns), cells(&row.completion_ns));
        let _ =
            writeln!(out, "  {:<9}{:<10}{:>7} {post}  {completion}", row.doorbell, row.producer, row.bytes);
    }
}

fn rate(out: &mut String, rows: &[Rate], style: Style) {
    if rows.is_empty() {
        return;
    }
    let calls = |text: &str| if style.width >= WITH_CALLS { format!("{text:>10}") } else { String::new() };
    out.push_str("\nMessage rate, million writes a second (range over runs)\n");
    let _ = writeln!(
        out,
        "  {:<9}{:<34}{:>6}{}{:>9}",
        "doorbell",
        "producer",
        "queues",
        calls("per call"),
        "rate"
    );
    for row in rows {
        let per_call = calls(&row.per_call.to_string());
        let rate = spread(row.million_per_s);
        let _ = writeln!(out, "  {:<9}{:<34}{:>6}{per_call}{rate}", row.doorbell, row.producer, row.queues);
    }
}
