//! The bench: measures separate queues on one adapter, to which the host executor or a GPU posts, within the
//! time limit. Each figure goes to the probe at once, so that it is not lost if the worker process ends early.

use std::time::{Duration, Instant};

use efa_gda::doorbell::{DoorbellChoice, DoorbellMode, DoorbellProxy, ProxyOptions};
use efa_gda::error_chain;
use efa_gda::fabric::{Access, Buffer, MemoryRegion};
use efa_gda::gpu_queue::{GpuQueue, GpuQueueError, MapError};
use efa_gda::queue::measure::{Load, Producer, Sample};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda::wire::Peer;

use super::on_gpu::another_queue;
use super::{Session, refused};
use crate::check::{Checked, Outcome, Outcomes, Unit, proven};
use crate::checks::session::{failed, missing};
use crate::model::Who;
use crate::model::bench::{Bandwidth, Bench, Figure, Latency, Quantiles, Rate, Spread};

/// The bench as a check, so that a crash in it is reported as this check's failure.
pub(crate) static CHECK: Unit<Session> =
    proven("PUT-006", "The bench completes", &["PUT-002", "PUT-003"], run);

/// Bytes of a write, unless the size is the variable.
const SMALL: u64 = 64;
/// The sizes whose bandwidth is measured.
const SIZES: [u64; 7] = [64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Bytes of the source, and of the target.
const REGION: u64 = 32 << 20;
/// The most runs of a median; fewer if time runs out.
const RUNS: u32 = 7;
/// Calls that measure the duration of one call.
const TRIAL: u32 = 8;
/// The most calls whose latency is recorded.
const SAMPLES: u32 = 10_000;
/// Added to a case's share of the time in the request for time, for a single slow call.
const GRACE: Duration = Duration::from_secs(10);

/// The posters of a case: their name in the report, and the load.
#[derive(Clone, Copy, Debug)]
struct Producers {
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
enum Case {
    Latency(Producer, &'static str),
    Rate(Producers),
    Bandwidth(u64),
}

impl Case {
    fn describe(self) -> String {
        match self {
            Self::Latency(_, producer) => format!("latency, {producer}"),
            Self::Rate(producers) => format!("rate, {}", producers.name),
            Self::Bandwidth(bytes) => format!("bandwidth, {bytes} bytes"),
        }
    }
}

/// The cases of a doorbell mode; `first` for the first mode, which is also measured for bandwidth.
fn cases(first: bool) -> Vec<Case> {
    let mut all = vec![Case::Latency(Producer::Thread, "1 thread"), Case::Latency(Producer::Warp, "1 warp")];
    all.extend(PRODUCERS.map(Case::Rate));
    if first {
        all.extend(SIZES.map(Case::Bandwidth));
    }
    all
}

/// The queues, by the executor that posts to them.
#[derive(Debug)]
enum Queues {
    Host(Vec<MappedQueue>),
    Gpu(Vec<GpuQueue>),
}

impl Queues {
    fn rate(&mut self, requests: &[WorkRequest], load: &Load) -> Result<(u64, u64), GpuQueueError> {
        let used = requests.len();
        let rate = match self {
            Self::Host(queues) => MappedQueue::measure_rate(&mut queues[..used], requests, load)?,
            Self::Gpu(queues) => GpuQueue::measure_rate(&mut queues[..used], requests, load)?,
        };
        Ok((rate.requests, rate.nanoseconds.max(1)))
    }

    fn latency(
        &mut self,
        request: &WorkRequest,
        producer: Producer,
        calls: u32,
    ) -> Result<Vec<Sample>, GpuQueueError> {
        match self {
            Self::Host(queues) => Ok(queues[0].measure_latency(request, producer, calls)?),
            Self::Gpu(queues) => queues[0].measure_latency(request, producer, calls),
        }
    }
}

/// The objects with which one doorbell mode is measured.
struct Rig {
    queues: Queues,
    peers: Vec<Peer>,
    source: MemoryRegion,
    target: MemoryRegion,
    /// Declared after the queues, so that it is dropped after them.
    _proxy: DoorbellProxy,
    mode: DoorbellMode,
    timeout: Duration,
}

impl Rig {
    /// Opens `count` queues that write to themselves, in this doorbell mode only.
    fn open(session: &mut Session, count: u32, mode: DoorbellMode) -> Result<Self, Outcomes> {
        let proxy = DoorbellProxy::start(&ProxyOptions::new())
            .map_err(|error| unusable(error_chain(&error).to_string()))?;
        let mut queues = Vec::new();
        for _ in 0..count {
            let (_, mut queue) = another_queue(&session.rig.objects).map_err(unusable)?;
            if session.gpu.is_none() && mode != DoorbellMode::Direct {
                queue
                    .set_doorbell(mode, &proxy)
                    .map_err(|error| unusable(error_chain(&error).to_string()))?;
            }
            queues.push(queue);
        }
        let itself = |queue: &MappedQueue| queue.insert_peer(&queue.endpoint().address()?);
        let peers: Result<_, _> = queues.iter().map(itself).collect();
        let peers =
            peers.map_err(|error: efa_gda::fabric::Error| unusable(error_chain(&error).to_string()))?;
        let queues = match &session.rig.objects.gpu {
            Some(gpu) if session.gpu.is_some() => {
                let on_gpu =
                    |queue| match GpuQueue::with_doorbell(queue, gpu, DoorbellChoice::Only(mode), &proxy) {
                        Ok((queue, _)) => Ok(queue),
                        Err(MapError { error, .. }) => Err(unusable(error_chain(&error).to_string())),
                    };
                Queues::Gpu(queues.into_iter().map(on_gpu).collect::<Result<_, _>>()?)
            }
            _ => Queues::Host(queues),
        };
        let (source, target) = (region(session, Access::WRITE)?, region(session, Access::REMOTE_WRITE)?);
        let timeout = Duration::from_millis(session.request.wait).max(Duration::from_secs(2));
        Ok(Self { queues, peers, source, target, _proxy: proxy, mode, timeout })
    }

    /// The work request of each of `queues` queues: writes of `bytes` to consecutive addresses of the target.
    fn requests(&self, bytes: u64, queues: usize) -> Vec<WorkRequest> {
        let request = |peer: &Peer| {
            let request = WorkRequest::write(*peer, &self.source, self.target.remote()).bytes(bytes);
            request.stride(bytes).count((REGION / bytes).min(4096)).timeout(self.timeout)
        };
        self.peers.iter().take(queues).map(request).collect()
    }

    fn measure(&mut self, case: Case, share: Duration) -> Result<Figure, GpuQueueError> {
        match case {
            Case::Latency(producer, name) => self.latency(producer, name, share),
            Case::Rate(producers) => {
                let (queues, mut load) =
                    (if producers.queue_per_block { self.peers.len() } else { 1 }, producers.load);
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

    fn latency(&mut self, producer: Producer, name: &str, share: Duration) -> Result<Figure, GpuQueueError> {
        let request = self.requests(SMALL, 1).remove(0);
        // The first call may compile the kernel.
        self.queues.latency(&request, producer, 1)?;
        let begin = Instant::now();
        self.queues.latency(&request, producer, TRIAL)?;
        let calls = affordable(begin.elapsed() / TRIAL, share, SAMPLES);
        let samples = self.queues.latency(&request, producer, calls)?;
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
    fn runs(
        &mut self,
        bytes: u64,
        queues: usize,
        mut load: Load,
        share: Duration,
    ) -> Result<Vec<f64>, GpuQueueError> {
        let requests = self.requests(bytes, queues);
        self.queues.rate(&requests, &Load { calls: 1, ..load })?;
        let begin = Instant::now();
        self.queues.rate(&requests, &load)?;
        let call = begin.elapsed() / TRIAL;
        load.calls = affordable(call, share / (RUNS + 1), 1 << 20);
        let mut rates = Vec::new();
        // At least one run; the others only if runs do not take longer than estimated.
        while rates.is_empty() || (rates.len() < RUNS as usize && begin.elapsed() < share) {
            let (count, nanoseconds) = self.queues.rate(&requests, &load)?;
            rates.push(count as f64 / nanoseconds as f64);
        }
        Ok(rates)
    }
}

/// The number of calls that fit into `time` if one takes `each`: at least one, at most `most`.
fn affordable(each: Duration, time: Duration, most: u32) -> u32 {
    let calls = time.as_nanos() / each.as_nanos().max(1);
    u32::try_from(calls).unwrap_or(u32::MAX).clamp(1, most)
}

fn region(session: &Session, access: Access) -> Result<MemoryRegion, Outcomes> {
    let Some(domain) = &session.rig.objects.domain else { return Err(missing("the domain")) };
    let buffer = Buffer::zeroed(REGION as usize)
        .ok_or_else(|| unusable(format!("{REGION} bytes cannot be allocated")))?;
    domain.register(buffer, access).map_err(|error| {
        refused(&error, "fi_mr_reg succeeds", "the adapter moves bytes of registered memory only", Who::Pod)
    })
}

fn unusable(observed: String) -> Outcomes {
    failed(
        observed,
        "separate queues for the bench",
        "the bench measures queues that no check uses",
        "fix the FAB, GDA and QUE checks that fail; if none fails, use a smaller --queues",
        Who::Host,
    )
}

/// The observed texts of `outcomes`, or why there is no result.
fn describe(outcomes: &Outcomes) -> String {
    let of = |(_, outcome): &(Option<String>, Outcome)| match outcome {
        Outcome::Warn(problem) | Outcome::Fail(problem) => problem.observed.clone(),
        Outcome::Unknown(Some(text), _) | Outcome::Unknown(None, text) => text.clone(),
        Outcome::Pass(text) | Outcome::Skip(_, text) => text.clone(),
    };
    outcomes.0.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn bench_failed(case: Case, error: &GpuQueueError) -> Outcomes {
    failed(
        format!("{}: {}", case.describe(), error_chain(error)),
        "every write completes with status 0",
        "figures of failed writes mean nothing",
        "run gda-probe put with the same options and fix what fails; on a slow machine, raise --time-limit (milliseconds)",
        Who::Host,
    )
}

fn run(session: &mut Session) -> Checked {
    let request = session.request.bench.ok_or_else(|| missing("the bench"))?;
    let modes: Vec<DoorbellMode> = DoorbellChoice::from(session.request.doorbell).candidates().collect();
    let deadline = Instant::now() + Duration::from_millis(request.time_limit);
    session.progress.figure(Figure::Begun(begun(session, request.time_limit)));
    let mut total = modes.len() * cases(false).len() + cases(true).len() - cases(false).len();
    let (mut done, mut measured) = (0, 0);
    let (mut opened, mut refusal) = (false, None);
    for mode in &modes {
        let cases = cases(measured == 0);
        session.progress.request_time(GRACE);
        let mut rig = match Rig::open(session, request.queues, *mode) {
            Ok(rig) => rig,
            // Another doorbell mode may work.
            Err(outcomes) => {
                let what = format!("--doorbell {mode}: {}", describe(&outcomes));
                session.progress.figure(Figure::LeftOut(what));
                total -= self::cases(false).len();
                refusal = Some(outcomes);
                continue;
            }
        };
        opened = true;
        for case in cases {
            let remaining = deadline.saturating_duration_since(Instant::now());
            session.progress.step(done, total, format!("{mode}: {}", case.describe()));
            done += 1;
            if remaining.is_zero() {
                let what = format!("{mode}: {}: --time-limit was reached", case.describe());
                session.progress.figure(Figure::LeftOut(what));
                continue;
            }
            let share = remaining / (total - done + 1) as u32;
            session.progress.request_time(share * 4 + GRACE);
            match rig.measure(case, share) {
                Ok(figure) => session.progress.figure(figure),
                Err(error) => return Err(bench_failed(case, &error)),
            }
            measured += 1;
        }
    }
    session.progress.step(total, total, String::new());
    if let Some(outcomes) = refusal.filter(|_| !opened) {
        return Err(outcomes);
    }
    Outcome::pass(format!("{measured} of {total} figures")).into()
}

/// The description of the measurement, without figures.
fn begun(session: &Session, time_limit_ms: u64) -> Bench {
    let gpu = session.rig.objects.gpu.as_ref().filter(|_| session.gpu.is_some());
    Bench {
        executor: if gpu.is_some() { "cuda" } else { "host" }.to_owned(),
        machine: gpu.map_or_else(processor, |gpu| gpu.name().unwrap_or_default()),
        gpu: session.gpu.map(|number| number.to_string()),
        adapter: session
            .rig
            .objects
            .info
            .as_ref()
            .map(|info| info.domain_name().into_owned())
            .unwrap_or_default(),
        time_limit_ms,
        ..Bench::default()
    }
}

/// The processor's name, if the kernel reports it.
fn processor() -> String {
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
