//! A bench as one HTML file: tables and inline SVG plots, without scripts and external resources. It is made
//! for a narrow screen as well: plots are 480 units wide, and rows of tables become lists.

mod plot;

use std::fmt::Write as _;

use self::plot::{Look, Plot, number, size, time};
use crate::model::bench::{Bandwidth, Bench, Latency, Quantiles, Rate, Spread, significant};
use crate::model::{Geometry, Origin, Queues};

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:66em;margin:1.5em auto;padding:0 1em;color:#1f2328;background:#fff}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}figure{margin:1em 0}figcaption,.n{color:#59636e}\
.soft{background:#fff8c5;border:1px solid #bf8700;padding:.5em .8em;font-weight:600;margin:0}\
svg.plot{display:block;width:100%;max-width:600px;height:auto}svg text{font:13px system-ui,sans-serif;fill:#1f2328}\
.legend{list-style:none;padding:0;margin:.5em 0}.legend li{display:inline-block;margin-right:1.5em}\
.legend svg{vertical-align:middle;margin-right:.4em}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1em}dt{color:#59636e}dd{margin:0;overflow-wrap:anywhere}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #d0d7de;text-align:right}\
td.t,th.t{text-align:left}td{white-space:nowrap}th{vertical-align:bottom}\
@media(max-width:1000px){thead{display:none}table,tbody{display:block}\
tr{display:block;padding:.4em 0;border-bottom:2px solid #d0d7de}\
td,td.t{display:flex;white-space:normal;justify-content:space-between;gap:1em;border:0;padding:.1em 0;text-align:right}\
td::before{content:attr(data-l);color:#59636e;text-align:left}}";

/// The HTML file.
pub(crate) fn page(bench: &Bench, queues: Option<&Queues>, origin: &Origin, soft: bool) -> String {
    let adapter = escaped(&bench.adapter);
    let of = if soft { "software adapter" } else { "adapter" };
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>gda-probe bench: {of} {adapter}</title>\n<style>{STYLE}</style></head>\n<body>\n"
    );
    if soft {
        out.push_str(
            "<p class=\"soft\">Software adapter: these figures measure softefa on this machine&#39;s CPU. They say \
             nothing about an EFA adapter.</p>\n",
        );
    }
    let _ = writeln!(out, "<h1>gda-probe bench: {of} {adapter}</h1>");
    facts(&mut out, bench, queues, origin);
    latency(&mut out, &bench.latency);
    rate(&mut out, &bench.rate);
    bandwidth(&mut out, &bench.bandwidth);
    if !bench.left_out.is_empty() {
        out.push_str("<h2>Not measured</h2>\n<ul>\n");
        for what in &bench.left_out {
            let _ = writeln!(out, "<li>{}</li>", escaped(what));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// What was measured, where and when.
fn facts(out: &mut String, bench: &Bench, queues: Option<&Queues>, origin: &Origin) {
    let unknown = || "unknown".to_owned();
    let poster = match &bench.gpu {
        Some(gpu) => format!("GPU {gpu}, {}", bench.machine),
        None => format!(
            "host executor on {}; no GPU took part, so the figures say nothing about one",
            bench.machine
        ),
    };
    let mut all = vec![
        ("posted by", poster),
        ("host", origin.host.clone().unwrap_or_else(unknown)),
        ("kernel", origin.kernel.clone().unwrap_or_else(unknown)),
        ("date", origin.time.clone().unwrap_or_else(unknown)),
        ("gda-probe", origin.version.to_owned()),
    ];
    all.extend(queues.and_then(|queues| queues.sq.as_ref()).map(|queue| ("send queue", send_queue(queue))));
    all.push(("writes", "64 bytes each, unless a size is stated".to_owned()));
    out.push_str("<dl>\n");
    for (name, text) in all {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(&text));
    }
    out.push_str("</dl>\n");
}

fn send_queue(queue: &Geometry) -> String {
    let batch = queue.max_batch.map(|batch| format!(", at most {batch} between two doorbells"));
    format!("{} entries of {} bytes{}", queue.num_entries, queue.entry_size, batch.unwrap_or_default())
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table. The first `texts` columns hold text, the others numbers.
fn table(out: &mut String, heads: &[&str], texts: usize, rows: impl Iterator<Item = Vec<String>>) {
    let class = |column: usize| if column < texts { " class=\"t\"" } else { "" };
    out.push_str("<table><thead><tr>");
    for (column, head) in heads.iter().enumerate() {
        let _ = write!(out, "<th{}>{head}</th>", class(column));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (column, (cell, head)) in row.iter().zip(heads).enumerate() {
            let _ = write!(out, "<td{} data-l=\"{head}\">{}</td>", class(column), escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table>\n");
}

/// A list of samples with their meaning.
fn legend(out: &mut String, entries: &[(Look, String)]) {
    out.push_str("<ul class=\"legend\">\n");
    for (look, text) in entries {
        let _ = writeln!(out, "<li>{}{}</li>", look.sample(), escaped(text));
    }
    out.push_str("</ul>\n");
}

/// Percentages and their quantiles.
fn steps(of: &Quantiles) -> [(f64, f64); 6] {
    [(1.0, of.p1), (25.0, of.p25), (50.0, of.median), (75.0, of.p75), (90.0, of.p90), (99.0, of.p99)]
}

fn latency(out: &mut String, rows: &[Latency]) {
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Latency of one write at a time</h2>\n<p>Time from the doorbell to the completion, over the percentage \
         of writes that took at most this time. The scale of time is logarithmic.</p>\n",
    );
    let look = |row: &Latency| Look::of(&row.doorbell, row.producer != "1 thread");
    let series: Vec<_> =
        rows.iter().map(|row| (look(row), format!("doorbell {}, {}", row.doorbell, row.producer))).collect();
    out.push_str("<figure>");
    legend(out, &series);
    let values = rows.iter().flat_map(|row| steps(&row.completion_ns)).map(|(_, value)| value);
    let (low, high) = plot::decades(values);
    let mut plot = Plot::new("time from doorbell to completion", "percentage of writes");
    plot.horizontal((0..=(high - low) as i32).map(|power| {
        let power = f64::from(power);
        (power / (high - low), time(10_f64.powf(low + power)))
    }));
    // 1 % and 99 % are at the ends of the lines; their labels would touch 25 % and 90 % on a narrow screen.
    plot.vertical(
        [0.0, 25.0, 50.0, 75.0, 100.0].map(|percent| (percent / 100.0, format!("{percent} %"))).into_iter(),
    );
    for row in rows {
        let point =
            |(percent, value): (f64, f64)| (percent / 100.0, (value.max(1.0).log10() - low) / (high - low));
        plot.line(&steps(&row.completion_ns).map(point), look(row));
    }
    out.push_str(&plot.finish());
    out.push_str("<figcaption>Markers are at 1, 25, 50, 75, 90 and 99 %.</figcaption></figure>\n");
    let heads = [
        "doorbell",
        "producer",
        "samples",
        "post, median (µs)",
        "post, 25 to 75 % (µs)",
        "post, 99 % (µs)",
        "completion, median (µs)",
        "completion, 25 to 75 % (µs)",
        "completion, 99 % (µs)",
    ];
    let cells = |of: &Quantiles| {
        let [median, p25, p75, p99] =
            [of.median, of.p25, of.p75, of.p99].map(|nanoseconds| significant(nanoseconds / 1e3));
        [median, format!("{p25} to {p75}"), p99]
    };
    let row = |row: &Latency| {
        let mut all = vec![row.doorbell.clone(), row.producer.clone(), row.samples.to_string()];
        all.extend(cells(&row.post_ns));
        all.extend(cells(&row.completion_ns));
        all
    };
    table(out, &heads, 2, rows.iter().map(row));
}

fn rate(out: &mut String, rows: &[Rate]) {
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Message rate</h2>\n<p>Million writes a second. A bar ends at the median of the runs; the line with two \
         ends over it spans from the slowest run to the fastest.</p>\n",
    );
    let top = plot::ceiling(rows.iter().map(|row| row.million_per_s.max).fold(0.001, f64::max));
    out.push_str("<figure>");
    let bars: Vec<_> = side_by_side(rows)
        .into_iter()
        .map(|row| {
            let label = format!("{}: {}{}", row.doorbell, row.producer, queues(row.queues));
            (label, Look::of(&row.doorbell, false), row.million_per_s)
        })
        .collect();
    out.push_str(&plot::bars("million writes a second", top, &bars));
    out.push_str("</figure>\n");
    let heads = [
        "doorbell",
        "producer",
        "queues",
        "writes a call",
        "runs",
        "median (million/s)",
        "range (million/s)",
    ];
    let row = |row: &Rate| {
        let [median, range] = spread(row.million_per_s);
        let counts =
            [u64::from(row.queues), u64::from(row.per_call), row.runs].map(|count| count.to_string());
        let mut all = vec![row.doorbell.clone(), row.producer.clone()];
        all.extend(counts);
        all.extend([median, range]);
        all
    };
    table(out, &heads, 2, side_by_side(rows).into_iter().map(row));
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

fn spread(of: Spread) -> [String; 2] {
    let [median, min, max] = [of.median, of.min, of.max].map(significant);
    [median, format!("{min} to {max}")]
}

fn bandwidth(out: &mut String, rows: &[Bandwidth]) {
    let Some(first) = rows.first() else { return };
    let _ = writeln!(
        out,
        "<h2>Bandwidth by size</h2>\n<p>10<sup>9</sup> bytes a second, over the size of a write. Doorbell {}, {}. A \
         marker is the median of the runs; the line with two ends over it spans from the slowest run to the \
         fastest.</p>",
        escaped(&first.doorbell),
        escaped(&first.producer)
    );
    let top = plot::ceiling(rows.iter().map(|row| row.gigabytes_per_s.max).fold(0.001, f64::max));
    let log = |bytes: u64| (bytes.max(1) as f64).log2();
    let (low, high) = (log(first.bytes), rows.iter().map(|row| log(row.bytes)).fold(0.0, f64::max));
    let x = |bytes: u64| (log(bytes) - low) / (high - low).max(1.0);
    let look = Look::of(&first.doorbell, false);
    let mut plot = Plot::new("GB/s", "bytes of a write");
    plot.horizontal((0..=4).map(|quarter| {
        let fraction = f64::from(quarter) / 4.0;
        (fraction, number(top * fraction))
    }));
    plot.vertical(rows.iter().map(|row| (x(row.bytes), size(row.bytes))));
    let points: Vec<_> = rows.iter().map(|row| (x(row.bytes), row.gigabytes_per_s.median / top)).collect();
    plot.line(&points, look);
    for row in rows {
        let Spread { min, max, .. } = row.gigabytes_per_s;
        plot.range(x(row.bytes), min / top, max / top);
    }
    let _ = writeln!(out, "<figure>{}</figure>", plot.finish());
    let heads = ["size of a write", "runs", "median (GB/s)", "range (GB/s)"];
    let row = |row: &Bandwidth| {
        let [median, range] = spread(row.gigabytes_per_s);
        vec![size(row.bytes), row.runs.to_string(), median, range]
    };
    table(out, &heads, 1, rows.iter().map(row));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(value: f64) -> Quantiles {
        Quantiles::of(vec![value, value * 2.0, value * 40.0])
    }

    fn measured() -> Bench {
        let spread = |value: f64| Spread { median: value, min: value / 2.0, max: value * 1.5 };
        let mut bench = Bench { adapter: "<script>\"&".to_owned(), ..Bench::default() };
        for doorbell in ["direct", "record", "staged"] {
            let producer = "1 thread".to_owned();
            bench.latency.push(Latency {
                doorbell: doorbell.to_owned(),
                producer: producer.clone(),
                bytes: 64,
                samples: 3,
                post_ns: quantiles(50.0),
                completion_ns: quantiles(5e6),
            });
            let (queues, per_call, bytes, runs) = (4, 16, 64, 5);
            let million_per_s = spread(1.5);
            let doorbell = doorbell.to_owned();
            bench.rate.push(Rate { doorbell, producer, queues, per_call, bytes, runs, million_per_s });
        }
        bench
    }

    fn shown(soft: bool) -> String {
        page(&measured(), None, &Origin { host: Some("node-7".to_owned()), ..Origin::default() }, soft)
    }

    #[test]
    fn names_are_escaped() {
        let page = shown(true);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;&quot;&amp;"), "{page}");
    }

    #[test]
    fn the_first_line_says_that_figures_are_of_the_software_adapter() {
        let first = |page: &str| page.split("<body>\n").nth(1).unwrap().lines().next().unwrap().to_owned();
        assert!(first(&shown(true)).contains("Software adapter"));
        assert!(!shown(false).contains("oftware adapter"));
    }

    #[test]
    fn the_page_says_where_it_is_from() {
        let page = shown(false);
        for part in ["<dt>date</dt>", "<dd>node-7</dd>", "<dt>kernel</dt>", env!("CARGO_PKG_VERSION")] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn every_line_of_the_latency_plot_is_in_its_legend() {
        let page = shown(false);
        for doorbell in ["direct", "record", "staged"] {
            assert!(page.contains(&format!("</svg>doorbell {doorbell}, 1 thread</li>")), "{doorbell}");
        }
    }

    #[test]
    fn bars_of_one_producer_differ_in_their_labels() {
        let page = shown(false);
        for doorbell in ["direct", "record", "staged"] {
            assert!(page.contains(&format!(">{doorbell}: 1 thread, 4 queues<")), "{doorbell}");
        }
    }

    #[test]
    fn times_on_the_axis_have_units() {
        let page = shown(false);
        assert!(page.contains(">10 ms</text>") && !page.contains(">10000000</text>"));
    }
}
