//! The bench: queues of its own on one adapter, posted to by the host executor or by a GPU, for as long
//! as the time limit lets it. Figures go to the parent one by one, so that what was measured is kept
//! whatever happens after it.

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
use crate::check::{Check, Nature, Outcome, Outcomes, Unit};
use crate::checks::session::{failed, missing};
use crate::model::bench::{Bandwidth, Bench, Figure, Latency, Quantiles, Rate, Spread};
use crate::model::{Kind, Who};

/// The bench as a check, so that a crash in it is told as what it is.
pub(crate) static CHECK: Unit<Session> = Unit {
    check: Check {
        code: "PUT-006",
        title: "The bench runs to its end",
        kind: Kind::Proven,
        nature: Nature::Any,
        needs: &["PUT-002", "PUT-003"],
    },
    run,
};

/// Bytes of a write where its size is not what is measured.
const SMALL: u64 = 64;
/// Sizes whose bandwidth is measured.
const SIZES: [u64; 7] = [64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Bytes of the source, and of the target.
const REGION: u64 = 32 << 20;
/// Runs of which a median is taken, where time allows.
const RUNS: u32 = 7;
/// Calls that tell how long a call takes.
const TRIAL: u32 = 8;
/// Calls whose latency is kept at most.
const SAMPLES: u32 = 10_000;
/// Added to a case's share of the time, for the parent to wait: a call that is slow for once.
const GRACE: Duration = Duration::from_secs(10);

/// Who posts, in words and as a load of a case.
#[derive(Clone, Copy, Debug)]
struct Producers {
    name: &'static str,
    load: Load,
    /// Whether there is a queue for each block.
    many: bool,
}

const fn producers(
    name: &'static str,
    producer: Producer,
    shape: (u32, u32, u32),
    shared: bool,
) -> Producers {
    let (blocks, threads, per_call) = shape;
    let load = Load { producer, shared, blocks, threads, calls: TRIAL, per_call };
    Producers { name, load, many: !shared && blocks > 1 }
}

/// What posts of small writes are measured with. Blocks of those with a queue each are as many as the
/// queues asked for.
const PRODUCERS: [Producers; 6] = [
    producers("1 thread", Producer::Thread, (1, 1, 1), false),
    producers("1 warp", Producer::Warp, (1, 32, 32), false),
    producers("1 block of 4 warps", Producer::Block, (1, 128, 128), false),
    producers("4 blocks of 1 warp, one queue", Producer::Warp, (4, 32, 32), true),
    producers("1 warp for each queue", Producer::Warp, (u32::MAX, 32, 32), false),
    producers("1 block of 4 warps for each queue", Producer::Block, (u32::MAX, 128, 128), false),
];

/// One thing to measure.
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

/// The cases of a way to ring, `first` for the first one alone.
fn cases(first: bool) -> Vec<Case> {
    let mut all = vec![Case::Latency(Producer::Thread, "1 thread"), Case::Latency(Producer::Warp, "1 warp")];
    all.extend(PRODUCERS.map(Case::Rate));
    if first {
        all.extend(SIZES.map(Case::Bandwidth));
    }
    all
}

/// Queues, and who posts to them.
#[derive(Debug)]
enum Queues {
    Host(Vec<MappedQueue>),
    Gpu(Vec<GpuQueue>),
}

impl Queues {
    fn rate(&mut self, puts: &[WorkRequest], load: &Load) -> Result<(u64, u64), GpuQueueError> {
        let used = puts.len();
        let rate = match self {
            Self::Host(queues) => MappedQueue::measure_rate(&mut queues[..used], puts, load)?,
            Self::Gpu(queues) => GpuQueue::measure_rate(&mut queues[..used], puts, load)?,
        };
        Ok((rate.requests, rate.nanoseconds.max(1)))
    }

    fn latency(
        &mut self,
        put: &WorkRequest,
        producer: Producer,
        calls: u32,
    ) -> Result<Vec<Sample>, GpuQueueError> {
        match self {
            Self::Host(queues) => Ok(queues[0].measure_latency(put, producer, calls)?),
            Self::Gpu(queues) => queues[0].measure_latency(put, producer, calls),
        }
    }
}

/// What one way to ring is measured with.
struct Rig {
    queues: Queues,
    peers: Vec<Peer>,
    source: MemoryRegion,
    target: MemoryRegion,
    /// Stops once the queues that it rings for are gone too.
    _proxy: DoorbellProxy,
    mode: DoorbellMode,
    timeout: Duration,
}

impl Rig {
    /// Opens `count` queues that write to themselves, on this way to ring and no other.
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

    /// Writes of so many bytes to every place in the memory, one after the other, from `queues` queues.
    fn puts(&self, bytes: u64, queues: usize) -> Vec<WorkRequest> {
        let put = |peer: &Peer| {
            let put = WorkRequest::write(*peer, &self.source, self.target.remote()).bytes(bytes);
            put.stride(bytes).count((REGION / bytes).min(4096)).timeout(self.timeout)
        };
        self.peers.iter().take(queues).map(put).collect()
    }

    fn measure(&mut self, case: Case, share: Duration) -> Result<Figure, GpuQueueError> {
        match case {
            Case::Latency(producer, name) => self.latency(producer, name, share),
            Case::Rate(producers) => {
                let (queues, mut load) = (if producers.many { self.peers.len() } else { 1 }, producers.load);
                load.blocks = load.blocks.min(if producers.many { queues as u32 } else { u32::MAX });
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
        let put = self.puts(SMALL, 1).remove(0);
        // Once for what happens the first time, which may be compiling.
        self.queues.latency(&put, producer, 1)?;
        let begin = Instant::now();
        self.queues.latency(&put, producer, TRIAL)?;
        let calls = affordable(begin.elapsed() / TRIAL, share, SAMPLES);
        let samples = self.queues.latency(&put, producer, calls)?;
        Ok(Figure::Latency(Latency {
            doorbell: self.mode.name().to_owned(),
            producer: name.to_owned(),
            bytes: SMALL,
            samples: calls.into(),
            post_ns: Quantiles::of(samples.iter().map(|sample| sample.post).collect()),
            completion_ns: Quantiles::of(samples.iter().map(|sample| sample.completion).collect()),
        }))
    }

    /// Requests a nanosecond, run by run, in about `share` of time.
    fn runs(
        &mut self,
        bytes: u64,
        queues: usize,
        mut load: Load,
        share: Duration,
    ) -> Result<Vec<f64>, GpuQueueError> {
        let puts = self.puts(bytes, queues);
        self.queues.rate(&puts, &Load { calls: 1, ..load })?;
        let begin = Instant::now();
        self.queues.rate(&puts, &load)?;
        let call = begin.elapsed() / TRIAL;
        load.calls = affordable(call, share / (RUNS + 1), 1 << 20);
        let mut rates = Vec::new();
        // At least one; the others where a run is as long as was thought.
        while rates.is_empty() || (rates.len() < RUNS as usize && begin.elapsed() < share) {
            let (requests, nanoseconds) = self.queues.rate(&puts, &load)?;
            rates.push(requests as f64 / nanoseconds as f64);
        }
        Ok(rates)
    }
}

/// Calls that fit into `time` where one takes `each`: at least one, at most `most`.
fn affordable(each: Duration, time: Duration, most: u32) -> u32 {
    let calls = time.as_nanos() / each.as_nanos().max(1);
    u32::try_from(calls).unwrap_or(u32::MAX).clamp(1, most)
}

fn region(session: &Session, access: Access) -> Result<MemoryRegion, Outcomes> {
    let Some(domain) = &session.rig.objects.domain else { return Err(missing("the domain")) };
    let buffer = Buffer::zeroed(REGION as usize)
        .ok_or_else(|| unusable(format!("{REGION} bytes cannot be allocated")))?;
    domain.register(buffer, access).map_err(|error| {
        refused(&error, "memory that registers", "the adapter reads and writes it", Who::Pod)
    })
}

fn unusable(observed: String) -> Outcomes {
    failed(
        observed,
        "queues of the bench's own",
        "each is measured by itself",
        "see the checks of objects and queues above; ask for fewer --queues",
        Who::Host,
    )
}

/// What was seen, and where nothing was, why there is no answer.
fn describe(outcomes: &Outcomes) -> String {
    let of = |(_, outcome): &(Option<String>, Outcome)| match outcome {
        Outcome::Warn(trouble) | Outcome::Fail(trouble) => trouble.observed.clone(),
        Outcome::Unknown(Some(text), _) | Outcome::Unknown(None, text) => text.clone(),
        Outcome::Pass(text) | Outcome::Skip(_, text) => text.clone(),
    };
    outcomes.0.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn bench_failed(case: Case, error: &GpuQueueError) -> Outcomes {
    failed(
        format!("{}: {}", case.describe(), error_chain(error)),
        "every write completes with status 0",
        "a figure of writes that fail says nothing",
        "see whether gda-probe put passes with the same options; raise --time-limit on a slow machine",
        Who::Host,
    )
}

fn run(session: &mut Session) -> Outcomes {
    let Some(request) = session.request.bench else { return missing("the bench") };
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
            // Another way to ring may do.
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
                let what = format!("{mode}: {}, for --time-limit ran out", case.describe());
                session.progress.figure(Figure::LeftOut(what));
                continue;
            }
            let share = remaining / (total - done + 1) as u32;
            session.progress.request_time(share * 4 + GRACE);
            match rig.measure(case, share) {
                Ok(figure) => session.progress.figure(figure),
                Err(error) => return bench_failed(case, &error),
            }
            measured += 1;
        }
    }
    session.progress.step(total, total, String::new());
    if let Some(outcomes) = refusal.filter(|_| !opened) {
        return outcomes;
    }
    Outcome::pass(format!("{measured} of {total} figures")).into()
}

/// What is measured, without a figure.
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

/// The processor's name, where the kernel says it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("this machine's CPU", |line| line.trim_start_matches([' ', '\t', ':'])).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_fill_their_share_of_the_time_and_are_never_none() {
        let ms = Duration::from_millis;
        assert_eq!(affordable(ms(2), ms(100), 1000), 50);
        assert_eq!(affordable(ms(2), ms(1), 1000), 1);
        assert_eq!(affordable(Duration::ZERO, ms(100), 1000), 1000);
    }

    #[test]
    fn bandwidth_is_measured_once_and_rates_on_every_way_to_ring() {
        let of = |first, bandwidth| {
            cases(first).into_iter().filter(|case| matches!(case, Case::Bandwidth(_)) == bandwidth).count()
        };
        assert_eq!((of(true, true), of(false, true)), (SIZES.len(), 0));
        assert_eq!(of(true, false), of(false, false));
    }
}
