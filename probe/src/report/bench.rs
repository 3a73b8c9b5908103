//! What a bench measured, and the table of it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bench {
    /// What ran the device code: `host` or `cuda`.
    pub(crate) executor: String,
    /// The GPU's name, or words for the processor.
    pub(crate) machine: String,
    /// The GPU's number, where one posted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gpu: Option<String>,
    /// The adapter's domain.
    pub(crate) adapter: String,
    /// Milliseconds that all measuring together might take.
    pub(crate) time_limit_ms: u64,
    pub(crate) latency: Vec<Latency>,
    pub(crate) rate: Vec<Rate>,
    pub(crate) bandwidth: Vec<Bandwidth>,
    /// What was not measured, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) left_out: Vec<String>,
}

/// One request at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) doorbell: String,
    pub(crate) producer: String,
    pub(crate) bytes: u64,
    pub(crate) samples: u64,
    /// From the call to the doorbell's store.
    pub(crate) post_ns: Quantiles,
    /// From there to the completion.
    pub(crate) completion_ns: Quantiles,
}

/// Many requests, as fast as they go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) doorbell: String,
    pub(crate) producer: String,
    pub(crate) queues: u32,
    /// Requests of each call, which ends with a doorbell.
    pub(crate) per_call: u32,
    pub(crate) bytes: u64,
    pub(crate) runs: u64,
    /// Million requests a second.
    pub(crate) million_per_s: Spread,
}

/// Likewise, by size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    pub(crate) doorbell: String,
    pub(crate) producer: String,
    pub(crate) bytes: u64,
    pub(crate) runs: u64,
    /// 10^9 bytes a second.
    pub(crate) gigabytes_per_s: Spread,
}

/// A median and how far values lie around it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Values below which so many percent of all lie.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) min: f64,
    pub(crate) p1: f64,
    pub(crate) p25: f64,
    pub(crate) median: f64,
    pub(crate) p75: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// The value that `part` of the sorted `values` lie below; 0 where there is none.
fn quantile(values: &[f64], part: f64) -> f64 {
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
}

/// To three digits behind the point, which is what is looked at.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

impl Spread {
    /// Of some values.
    pub(crate) fn of(values: Vec<f64>) -> Self {
        let values = sorted(values);
        let at = |part| rounded(quantile(&values, part));
        Self { median: at(0.5), min: at(0.0), max: at(1.0) }
    }

    fn words(self) -> String {
        format!("{:>9.3}  ({:.3} to {:.3})", self.median, self.min, self.max)
    }
}

impl Quantiles {
    /// Of some values.
    pub(crate) fn of(values: Vec<f64>) -> Self {
        let values = sorted(values);
        let at = |part| rounded(quantile(&values, part));
        Self {
            min: at(0.0),
            p1: at(0.01),
            p25: at(0.25),
            median: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }

    fn words(self) -> String {
        format!("{:>8.0} {:>8.0} {:>8.0} {:>8.0}", self.median, self.p25, self.p75, self.p99)
    }
}

/// One figure, as the child that measured it says it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// What the rest was measured on: everything but the figures.
    Begun(Bench),
    Latency(Latency),
    Rate(Rate),
    Bandwidth(Bandwidth),
    LeftOut(String),
}

impl Bench {
    /// Takes a figure in.
    pub(crate) fn take(&mut self, figure: Figure) {
        match figure {
            Figure::Begun(begun) => *self = begun,
            Figure::Latency(row) => self.latency.push(row),
            Figure::Rate(row) => self.rate.push(row),
            Figure::Bandwidth(row) => self.bandwidth.push(row),
            Figure::LeftOut(what) => self.left_out.push(what),
        }
    }

    /// Where and with what it was measured.
    pub(crate) fn heading(&self) -> String {
        let from = match &self.gpu {
            Some(gpu) => format!("posted by GPU {gpu} ({})", self.machine),
            None => format!("posted by the host executor ({}): no GPU took part", self.machine),
        };
        format!("adapter {}, {from}", self.adapter)
    }

    /// Tables for people.
    pub(crate) fn render(&self, out: &mut String) {
        let _ = writeln!(out, "Bench: {}", self.heading());
        if !self.latency.is_empty() {
            let _ = writeln!(out, "\nLatency of one write at a time, ns");
            let _ = writeln!(
                out,
                "  {:<9}{:<10}{:>7}  {:>8} {:>8} {:>8} {:>8}   {:>8} {:>8} {:>8} {:>8}",
                "doorbell", "producer", "bytes", "post", "p25", "p75", "p99", "complete", "p25", "p75", "p99"
            );
        }
        for row in &self.latency {
            let _ = writeln!(
                out,
                "  {:<9}{:<10}{:>7}  {}   {}",
                row.doorbell,
                row.producer,
                row.bytes,
                row.post_ns.words(),
                row.completion_ns.words()
            );
        }
        if !self.rate.is_empty() {
            let _ = writeln!(out, "\nMessage rate, million writes a second (range over runs)");
            let _ = writeln!(
                out,
                "  {:<9}{:<34}{:>7}{:>10}{:>9}",
                "doorbell", "producer", "queues", "per call", "rate"
            );
        }
        for row in &self.rate {
            let _ = writeln!(
                out,
                "  {:<9}{:<34}{:>7}{:>10}{}",
                row.doorbell,
                row.producer,
                row.queues,
                row.per_call,
                row.million_per_s.words()
            );
        }
        if !self.bandwidth.is_empty() {
            let _ = writeln!(out, "\nBandwidth, 10^9 bytes a second (range over runs)");
        }
        for row in &self.bandwidth {
            let _ = writeln!(
                out,
                "  {:<9}{:<20}{:>10} bytes {}",
                row.doorbell,
                row.producer,
                row.bytes,
                row.gigabytes_per_s.words()
            );
        }
        for what in &self.left_out {
            let _ = writeln!(out, "  not measured: {what}");
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let of = Quantiles::of((1..=101).rev().map(f64::from).collect());
        assert_eq!((of.min, of.p25, of.median, of.p99, of.max), (1.0, 26.0, 51.0, 100.0, 101.0));
    }

    #[test]
    fn one_value_is_its_own_median_and_spread() {
        let of = Spread::of(vec![2.5]);
        assert_eq!((of.median, of.min, of.max), (2.5, 2.5, 2.5));
    }
}
