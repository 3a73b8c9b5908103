//! The measurements of a bench.

use serde::{Deserialize, Serialize};

/// All measurements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bench {
    /// Where the device code ran: `host` or `cuda`.
    pub(crate) executor: String,
    /// The GPU's name, or a description of the processor.
    pub(crate) machine: String,
    /// The number of the GPU that posted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) gpu: Option<String>,
    /// The adapter's domain.
    pub(crate) adapter: String,
    /// Milliseconds that all measurements together might take.
    pub(crate) time_limit_ms: u64,
    pub(crate) latency: Vec<Latency>,
    pub(crate) rate: Vec<Rate>,
    pub(crate) bandwidth: Vec<Bandwidth>,
    /// Cases that were not measured, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) left_out: Vec<String>,
}

/// The latency of one request at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) doorbell: String,
    pub(crate) producer: String,
    pub(crate) bytes: u64,
    pub(crate) samples: u64,
    /// From the call to the doorbell's store.
    pub(crate) post_ns: Quantiles,
    /// From the doorbell's store to the completion.
    pub(crate) completion_ns: Quantiles,
}

/// The message rate of requests that are posted without pause.
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

/// The bandwidth of requests of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    pub(crate) doorbell: String,
    pub(crate) producer: String,
    pub(crate) bytes: u64,
    pub(crate) runs: u64,
    /// 10^9 bytes a second.
    pub(crate) gigabytes_per_s: Spread,
}

/// A median and the range of the values.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Quantiles of measured values.
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

/// The quantile of sorted values at `fraction`, to six decimal places, so that a few hundred writes a second are not
/// 0 million; 0 without values.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let value = sorted.get((last as f64 * fraction).round() as usize).copied().unwrap_or(0.0);
    (value * 1e6).round() / 1e6
}

impl Spread {
    /// The spread of `values`.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |fraction| quantile(&values, fraction);
        Self { median: at(0.5), min: at(0.0), max: at(1.0) }
    }
}

impl Quantiles {
    /// The quantiles of `values`.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |fraction| quantile(&values, fraction);
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
}

/// One measurement, as the worker process sends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// The machine and the adapter; the first figure of a bench.
    Begun(Bench),
    Latency(Latency),
    Rate(Rate),
    Bandwidth(Bandwidth),
    LeftOut(String),
}

/// A value with at least three significant digits.
pub(crate) fn significant(value: f64) -> String {
    let decimals = if value > 0.0 { (2.0 - value.log10().floor()).clamp(0.0, 9.0) as usize } else { 0 };
    format!("{value:.decimals$}")
}

impl Bench {
    /// Adds a figure.
    pub(crate) fn add(&mut self, figure: Figure) {
        match figure {
            Figure::Begun(begun) => *self = begun,
            Figure::Latency(row) => self.latency.push(row),
            Figure::Rate(row) => self.rate.push(row),
            Figure::Bandwidth(row) => self.bandwidth.push(row),
            Figure::LeftOut(case) => self.left_out.push(case),
        }
    }

    /// The machine and the adapter that were measured.
    pub(crate) fn heading(&self) -> String {
        let poster = match &self.gpu {
            Some(gpu) => format!("posted by GPU {gpu} ({})", self.machine),
            None => format!("posted by the host executor ({}): no GPU took part", self.machine),
        };
        format!("adapter {}, {poster}", self.adapter)
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
    fn figures_have_three_significant_digits_whatever_their_size() {
        let shown = [0.000_217, 0.324_4, 10.04, 52_845.32, 0.0].map(significant);
        assert_eq!(shown, ["0.000217", "0.324", "10.0", "52845", "0"]);
    }

    #[test]
    fn one_value_is_its_own_median_and_spread() {
        let of = Spread::of(vec![2.5]);
        assert_eq!((of.median, of.min, of.max), (2.5, 2.5, 2.5));
    }
}
