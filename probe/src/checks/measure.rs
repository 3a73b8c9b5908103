//! The cases of a bench, and their measurement on queues of any layer and executor.

use std::time::{Duration, Instant};

use efa_gda::Result;
use efa_gda::doorbell::DoorbellMode;
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::memory::RemoteRegion;
use efa_gda::queue::measure::{Load, Producer, Rate as Measured, Sample};
use efa_gda::queue::{MappedQueue, Region, WorkRequest};
use efa_gda::wire::Peer;

use crate::model::bench::{Bandwidth, Figure, Latency, Quantiles, Rate, Spread};

/// Bytes of a write, unless the size is the variable.
const SMALL: u64 = 64;
/// The sizes whose bandwidth is measured.
const SIZES: [u64; 7] = [64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Bytes of the source, and of the target.
pub(crate) const REGION: u64 = 32 << 20;
/// The most runs of a median; fewer if time runs out.
const RUNS: u32 = 7;
/// Calls that measure the duration of one call.
const TRIAL: u32 = 8;
/// The most calls whose latency is recorded.
const SAMPLES: u32 = 10_000;

/// The posters of a case: their name in the report, and the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Producers {
    name: &'static str,
    load: Load,
    /// Whether each block has a queue.
    queue_per_block: bool,
}

const fn producers(
    name: &'static str,
    producer: Producer,
    shape: (u32, u32, u32),
    shared: bool,
) -> Producers {
    let (blocks, threads, per_call) = shape;
    let load = Load { producer, shared, blocks, threads, calls: TRIAL, per_call };
    Producers { name, load, queue_per_block: !shared && blocks > 1 }
}

/// The posters whose rate of small writes is measured. If each block has a queue, there are as many blocks as
/// requested queues.
const PRODUCERS: [Producers; 6] = [
    producers("1 thread", Producer::Thread, (1, 1, 1), false),
    producers("1 warp", Producer::Warp, (1, 32, 32), false),
    producers("1 block of 4 warps", Producer::Block, (1, 128, 128), false),
    producers("4 blocks of 1 warp, one queue", Producer::Warp, (4, 32, 32), true),
    producers("1 warp for each queue", Producer::Warp, (u32::MAX, 32, 32), false),
    producers("1 block of 4 warps for each queue", Producer::Block, (u32::MAX, 128, 128), false),
];

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Case {
    Latency(Producer, &'static str),
    Rate(Producers),
    Bandwidth(u64),
}

impl Case {
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Latency(_, producer) => format!("latency, {producer}"),
            Self::Rate(producers) => format!("rate, {}", producers.name),
            Self::Bandwidth(bytes) => format!("bandwidth, {bytes} bytes"),
        }
    }
}

/// The cases of a doorbell mode; `first` for the first mode, which is also measured for bandwidth.
pub(crate) fn cases(first: bool) -> Vec<Case> {
    let mut all = vec![Case::Latency(Producer::Thread, "1 thread"), Case::Latency(Producer::Warp, "1 warp")];
    all.extend(PRODUCERS.map(Case::Rate));
    if first {
        all.extend(SIZES.map(Case::Bandwidth));
    }
    all
}

/// The cases of one queue, which two hosts measure.
pub(crate) fn cases_of_one_queue() -> Vec<Case> {
    let has_one = |case: &Case| !matches!(case, Case::Rate(producers) if producers.queue_per_block);
    cases(true).into_iter().filter(has_one).collect()
}

/// Queues that can be measured, by the processor that posts to them. Each work request is for the queue of its number.
pub(crate) enum Meter<'a> {
    Host(&'a mut [MappedQueue]),
    Gpu(&'a mut [GpuQueue]),
}

impl Meter<'_> {
    fn rate(&mut self, requests: &[WorkRequest], load: &Load) -> Result<Measured> {
        let used = requests.len();
        match self {
            Self::Host(queues) => Ok(MappedQueue::measure_rate(&mut queues[..used], requests, load)?),
            Self::Gpu(queues) => GpuQueue::measure_rate(&mut queues[..used], requests, load),
        }
    }

    /// The latency of the first queue.
    fn latency(&mut self, request: &WorkRequest, producer: Producer, calls: u32) -> Result<Vec<Sample>> {
        match self {
            Self::Host(queues) => Ok(queues[0].measure_latency(request, producer, calls)?),
            Self::Gpu(queues) => queues[0].measure_latency(request, producer, calls),
        }
    }
}

/// The work request of a queue: writes of `bytes` to consecutive addresses of `target`, which has [`REGION`] bytes.
pub(crate) fn request(
    peer: Peer,
    source: impl Into<Region>,
    target: RemoteRegion,
    bytes: u64,
    timeout: Duration,
) -> WorkRequest {
    let request = WorkRequest::write(peer, source, target).bytes(bytes);
    request.stride(bytes).count((REGION / bytes).min(4096)).timeout(timeout)
}

/// What is measured in one doorbell mode.
pub(crate) struct Bed<'a> {
    pub(crate) meter: Meter<'a>,
    pub(crate) mode: DoorbellMode,
    /// The number of queues.
    pub(crate) queues: usize,
    /// The work requests of so many queues, by the bytes of a write.
    pub(crate) requests: &'a dyn Fn(u64, usize) -> Vec<WorkRequest>,
}

impl Bed<'_> {
    /// Measures a case within about `share`.
    pub(crate) fn measure(&mut self, case: Case, share: Duration) -> Result<Figure> {
        match case {
            Case::Latency(producer, name) => self.latency(producer, name, share),
            Case::Rate(producers) => {
                let (queues, mut load) =
                    (if producers.queue_per_block { self.queues } else { 1 }, producers.load);
                load.blocks =
                    load.blocks.min(if producers.queue_per_block { queues as u32 } else { u32::MAX });
                let rates = self.runs(SMALL, queues, load, share)?;
                Ok(Figure::Rate(Rate {
                    doorbell: self.mode.name().to_owned(),
                    producer: producers.name.to_owned(),
                    queues: queues as u32,
                    per_call: load.per_call,
                    bytes: SMALL,
                    runs: rates.len() as u64,
                    million_per_s: Spread::of(rates.iter().map(|rate| rate * 1e3).collect()),
                }))
            }
            Case::Bandwidth(bytes) => {
                let load = PRODUCERS[1].load;
                let rates = self.runs(bytes, 1, load, share)?;
                Ok(Figure::Bandwidth(Bandwidth {
                    doorbell: self.mode.name().to_owned(),
                    producer: PRODUCERS[1].name.to_owned(),
                    bytes,
                    runs: rates.len() as u64,
                    gigabytes_per_s: Spread::of(rates.iter().map(|rate| rate * bytes as f64).collect()),
                }))
            }
        }
    }

    fn latency(&mut self, producer: Producer, name: &str, share: Duration) -> Result<Figure> {
        let request = (self.requests)(SMALL, 1).remove(0);
        // The first call may compile the kernel.
        self.meter.latency(&request, producer, 1)?;
        let begin = Instant::now();
        self.meter.latency(&request, producer, TRIAL)?;
        let calls = affordable(begin.elapsed() / TRIAL, share, SAMPLES);
        let samples = self.meter.latency(&request, producer, calls)?;
        Ok(Figure::Latency(Latency {
            doorbell: self.mode.name().to_owned(),
            producer: name.to_owned(),
            bytes: SMALL,
            samples: calls.into(),
            post_ns: Quantiles::of(samples.iter().map(|sample| sample.post).collect()),
            completion_ns: Quantiles::of(samples.iter().map(|sample| sample.completion).collect()),
        }))
    }

    /// The requests per nanosecond of each run; all runs together take about `share`.
    fn runs(&mut self, bytes: u64, queues: usize, mut load: Load, share: Duration) -> Result<Vec<f64>> {
        let requests = (self.requests)(bytes, queues);
        self.meter.rate(&requests, &Load { calls: 1, ..load })?;
        let begin = Instant::now();
        self.meter.rate(&requests, &load)?;
        let call = begin.elapsed() / TRIAL;
        load.calls = affordable(call, share / (RUNS + 1), 1 << 20);
        let mut rates = Vec::new();
        // At least one run; the others only if runs do not take longer than estimated.
        while rates.is_empty() || (rates.len() < RUNS as usize && begin.elapsed() < share) {
            let rate = self.meter.rate(&requests, &load)?;
            rates.push(rate.requests as f64 / rate.nanoseconds.max(1) as f64);
        }
        Ok(rates)
    }
}

/// The number of calls that fit into `time` if one takes `each`: at least one, at most `most`.
fn affordable(each: Duration, time: Duration, most: u32) -> u32 {
    let calls = time.as_nanos() / each.as_nanos().max(1);
    u32::try_from(calls).unwrap_or(u32::MAX).clamp(1, most)
}

/// The processor's name, if the kernel reports it.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("this machine's CPU", |line| line.trim_start_matches([' ', '\t', ':'])).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_fill_their_share_of_the_time_and_are_at_least_one() {
        let ms = Duration::from_millis;
        assert_eq!(affordable(ms(2), ms(100), 1000), 50);
        assert_eq!(affordable(ms(2), ms(1), 1000), 1);
        assert_eq!(affordable(Duration::ZERO, ms(100), 1000), 1000);
    }

    #[test]
    fn bandwidth_is_measured_in_the_first_mode_and_rates_in_every_mode() {
        let of = |first, bandwidth| {
            cases(first).into_iter().filter(|case| matches!(case, Case::Bandwidth(_)) == bandwidth).count()
        };
        assert_eq!((of(true, true), of(false, true)), (SIZES.len(), 0));
        assert_eq!(of(true, false), of(false, false));
    }
}
