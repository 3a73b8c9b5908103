//! A bench as one HTML file: tables and inline SVG plots, without scripts and external resources.

use std::fmt::Write as _;

use crate::model::bench::{Bandwidth, Bench, Latency, Quantiles, Rate, Spread};
use crate::model::{Geometry, Queues};

/// Colours of the doorbell modes. Their order in the plots and the legend identifies them without colour.
const COLOURS: [(&str, &str); 3] = [("direct", "#1f6feb"), ("record", "#bf8700"), ("staged", "#8250df")];
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;\
color:#1f2328;background:#fff}table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;\
border-bottom:1px solid #d0d7de;text-align:right}td:first-child,th:first-child,td.t,th.t{text-align:left}\
svg{max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#1f2328}.n{color:#59636e}";

/// The plot area of a line plot, and its margins.
const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 20.0;

/// The HTML file.
pub(crate) fn page(bench: &Bench, queues: Option<&Queues>) -> String {
    let heading = escaped(&bench.heading());
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>gda-probe bench: {heading}</title>\
         <style>{STYLE}</style></head><body>\n<h1>gda-probe bench</h1>\n<p>{heading}.</p>\n"
    );
    if let Some(geometry) = queues.and_then(|queues| queues.sq.as_ref()) {
        let _ = writeln!(out, "<p class=\"n\">{}</p>", send_queue(geometry));
    }
    legend(&mut out, bench);
    latency(&mut out, &bench.latency);
    rate(&mut out, &bench.rate);
    bandwidth(&mut out, &bench.bandwidth);
    for what in &bench.left_out {
        let _ = writeln!(out, "<p class=\"n\">Not measured: {}.</p>", escaped(what));
    }
    out.push_str("</body></html>\n");
    out
}

fn send_queue(queue: &Geometry) -> String {
    let batch = queue.max_batch.map(|batch| format!(", at most {batch} between two doorbells"));
    format!(
        "Send queue: {} entries of {} bytes{}. Writes have 64 bytes unless a size is stated.",
        queue.num_entries,
        queue.entry_size,
        batch.unwrap_or_default()
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn colour(doorbell: &str) -> &'static str {
    COLOURS.iter().find(|(name, _)| *name == doorbell).map_or("#59636e", |(_, colour)| colour)
}

fn legend(out: &mut String, bench: &Bench) {
    out.push_str("<p>");
    for (name, colour) in COLOURS {
        let measured = bench.latency.iter().any(|row| row.doorbell == name)
            || bench.rate.iter().any(|row| row.doorbell == name);
        if measured {
            let _ = write!(out, "<b style=\"color:{colour}\">&#9632;</b> doorbell {name} &nbsp; ");
        }
    }
    out.push_str("</p>\n");
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `value`.
fn ceiling(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(value)
}

/// The powers of ten around all of `values`.
fn decades(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let log = |value: f64| value.max(1.0).log10();
    let low = values.clone().map(log).fold(f64::INFINITY, f64::min).floor();
    let low = if low.is_finite() { low } else { 0.0 };
    (low, values.map(log).fold(0.0, f64::max).ceil().max(low + 1.0))
}

/// Formats a number on an axis.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

fn frame(out: &mut String, height: f64) {
    let _ = write!(out, "<svg viewBox=\"0 0 {} {}\" role=\"img\">", LEFT + WIDTH + 40.0, height);
}

/// Draws horizontal lines at these fractions of the height, with their values.
fn grid(out: &mut String, lines: impl Iterator<Item = (f64, f64)>) {
    for (fraction, value) in lines {
        let y = TOP + HEIGHT * (1.0 - fraction);
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#d0d7de\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            y + 4.0,
            number(value)
        );
    }
}

/// Lines at quarters of the height, with values up to `top`.
fn quarters(top: f64) -> impl Iterator<Item = (f64, f64)> {
    (0..=4).map(move |step| (f64::from(step) / 4.0, top * f64::from(step) / 4.0))
}

fn line(out: &mut String, points: &[(f64, f64)], colour: &str, dashed: bool) {
    let path: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
    let dashes = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let _ = write!(
        out,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes} points=\"{}\"/>",
        path.trim_end()
    );
}

/// Percentages and their quantiles.
fn steps(of: &Quantiles) -> [(f64, f64); 6] {
    [(1.0, of.p1), (25.0, of.p25), (50.0, of.median), (75.0, of.p75), (90.0, of.p90), (99.0, of.p99)]
}

fn latency(out: &mut String, rows: &[Latency]) {
    if rows.is_empty() {
        return;
    }
    out.push_str("<h2>Latency of one write at a time</h2>\n<p>Time from the doorbell to the completion in ns, on a logarithmic scale: the percentage of writes that took at most this time. One line for each producer; dashed: a warp.</p>\n");
    let (low, high) = decades(rows.iter().flat_map(|row| steps(&row.completion_ns)).map(|(_, value)| value));
    frame(out, TOP + HEIGHT + 40.0);
    let powers = (0..=(high - low) as i32).map(f64::from);
    grid(out, powers.map(|power| (power / (high - low), 10_f64.powf(low + power))));
    for (percent, _) in steps(&rows[0].completion_ns) {
        let x = LEFT + WIDTH * percent / 100.0;
        let _ = write!(
            out,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{percent}%</text>",
            TOP + HEIGHT + 20.0
        );
    }
    for row in rows {
        let point = |(percent, value): (f64, f64)| {
            let fraction = (value.max(1.0).log10() - low) / (high - low);
            (LEFT + WIDTH * percent / 100.0, TOP + HEIGHT * (1.0 - fraction))
        };
        line(out, &steps(&row.completion_ns).map(point), colour(&row.doorbell), row.producer != "1 thread");
    }
    out.push_str("</svg>\n<table><tr><th>doorbell</th><th class=\"t\">producer</th><th>samples</th><th>post, median</th><th>25 to 75 %</th><th>99 %</th><th>completion, median</th><th>25 to 75 %</th><th>99 %</th></tr>\n");
    let cells = |of: &Quantiles| {
        format!("<td>{:.0}</td><td>{:.0} to {:.0}</td><td>{:.0}</td>", of.median, of.p25, of.p75, of.p99)
    };
    for row in rows {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"t\">{}</td><td>{}</td>{}{}</tr>",
            escaped(&row.doorbell),
            escaped(&row.producer),
            row.samples,
            cells(&row.post_ns),
            cells(&row.completion_ns)
        );
    }
    out.push_str("</table>\n");
}

fn rate(out: &mut String, rows: &[Rate]) {
    if rows.is_empty() {
        return;
    }
    out.push_str("<h2>Message rate</h2>\n<p>Million writes a second. Bars show the median of the runs, thin lines their range.</p>\n");
    let top = ceiling(rows.iter().map(|row| row.million_per_s.max).fold(0.001, f64::max));
    let names = 290.0;
    let (width, each) = (LEFT + WIDTH - names, 22.0);
    frame(out, each * rows.len() as f64 + 10.0);
    for (index, row) in side_by_side(rows).into_iter().enumerate() {
        let y = each * index as f64 + 4.0;
        let length = |value: f64| width * (value / top).min(1.0);
        let Spread { median, min, max } = row.million_per_s;
        let _ = write!(
            out,
            "<text x=\"0\" y=\"{}\">{}{}</text>\
             <rect x=\"{names}\" y=\"{y}\" width=\"{:.1}\" height=\"14\" fill=\"{}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#1f2328\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>",
            y + 12.0,
            escaped(&row.producer),
            queues(row.queues),
            length(median),
            colour(&row.doorbell),
            names + length(min),
            names + length(max),
            y + 7.0,
            y + 7.0,
            names + length(max) + 6.0,
            y + 12.0,
            number(median)
        );
    }
    out.push_str("</svg>\n<table><tr><th>doorbell</th><th class=\"t\">producer</th><th>queues</th><th>a call</th><th>runs</th><th>M/s, median</th><th>range</th></tr>\n");
    for row in side_by_side(rows) {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"t\">{}</td><td>{}</td><td>{}</td><td>{}</td>{}</tr>",
            escaped(&row.doorbell),
            escaped(&row.producer),
            row.queues,
            row.per_call,
            row.runs,
            spread(row.million_per_s)
        );
    }
    out.push_str("</table>\n");
}

/// The rows with the doorbell modes of one producer next to each other.
fn side_by_side(rows: &[Rate]) -> Vec<&Rate> {
    let first = |row: &Rate| rows.iter().position(|other| other.producer == row.producer);
    let mut sorted: Vec<&Rate> = rows.iter().collect();
    sorted.sort_by_key(|row| first(row));
    sorted
}

fn queues(count: u32) -> String {
    if count == 1 { String::new() } else { format!(", {count} queues") }
}

fn spread(of: Spread) -> String {
    format!("<td>{:.3}</td><td>{:.3} to {:.3}</td>", of.median, of.min, of.max)
}

fn bandwidth(out: &mut String, rows: &[Bandwidth]) {
    let Some(first) = rows.first() else { return };
    out.push_str("<h2>Bandwidth by size</h2>\n<p>10<sup>9</sup> bytes a second, over the size of a write in bytes.</p>\n");
    let top = ceiling(rows.iter().map(|row| row.gigabytes_per_s.max).fold(0.001, f64::max));
    frame(out, TOP + HEIGHT + 40.0);
    grid(out, quarters(top));
    let log = |bytes: u64| (bytes.max(1) as f64).log2();
    let (low, high) = (log(first.bytes), rows.iter().map(|row| log(row.bytes)).fold(0.0, f64::max));
    let x = |bytes: u64| LEFT + WIDTH * (log(bytes) - low) / (high - low).max(1.0);
    let y = |value: f64| TOP + HEIGHT * (1.0 - (value / top).min(1.0));
    let points: Vec<_> = rows.iter().map(|row| (x(row.bytes), y(row.gigabytes_per_s.median))).collect();
    line(out, &points, colour(&first.doorbell), false);
    for row in rows {
        let (x, Spread { min, max, .. }) = (x(row.bytes), row.gigabytes_per_s);
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#1f2328\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            y(min),
            y(max),
            TOP + HEIGHT + 20.0,
            size(row.bytes)
        );
    }
    out.push_str("</svg>\n<table><tr><th>bytes</th><th>runs</th><th>GB/s, median</th><th>range</th></tr>\n");
    for row in rows {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td>{}</tr>",
            row.bytes,
            row.runs,
            spread(row.gigabytes_per_s)
        );
    }
    out.push_str("</table>\n");
}

/// Formats a size with binary units.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_above_all_values() {
        assert_eq!([0.7, 1.0, 3.2, 612.0, 2001.0].map(ceiling), [1.0, 1.0, 5.0, 1000.0, 5000.0]);
    }

    #[test]
    fn a_logarithmic_scale_contains_all_values_and_is_never_empty() {
        assert_eq!(decades([40.0, 3_500_000.0].into_iter()), (1.0, 7.0));
        assert_eq!(decades([100.0].into_iter()), (2.0, 3.0));
        assert_eq!(decades(std::iter::empty()), (0.0, 1.0));
    }

    #[test]
    fn names_are_escaped() {
        let bench = Bench { adapter: "<script>\"&".to_owned(), ..Bench::default() };
        let page = page(&bench, None);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;&quot;&amp;"), "{page}");
    }
}
