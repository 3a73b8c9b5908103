//! The bench: measures separate queues on one adapter, to which the host executor or a GPU posts, within the
//! time limit. Each figure goes to the probe at once, so that it is not lost if the worker process ends early.

use std::time::{Duration, Instant};

use efa_gda::doorbell::{DoorbellMode, DoorbellProxy};
use efa_gda::fabric::{Access, Buffer, Region};
use efa_gda::gpu_queue::GpuQueue;
use efa_gda::queue::MappedQueue;
use efa_gda::wire::Peer;
use efa_gda::{Error, Result};

use super::objects::another_queue;
use super::{MOVES_REGISTERED, Session, failure};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::measure::{self, Bed, Case, Meter, REGION, cases, processor};
use crate::checks::session::missing;
use crate::model::Party;
use crate::model::bench::{Bench, Figure};

/// Added to a case's share of the time in the request for time, for a single slow call.
const GRACE: Duration = Duration::from_secs(10);

/// The queues, by the executor that posts to them.
#[derive(Debug)]
enum Queues {
    Host(Vec<MappedQueue>),
    Gpu(Vec<GpuQueue>),
}

/// The objects with which one doorbell mode is measured.
struct Rig {
    queues: Queues,
    peers: Vec<Peer>,
    source: Region,
    target: Region,
    /// Declared after the queues, so that it is dropped after them.
    _proxy: DoorbellProxy,
    mode: DoorbellMode,
    timeout: Duration,
}

impl Rig {
    /// Opens `count` queues that write to themselves, in this doorbell mode only.
    fn open(session: &mut Session, count: u32, mode: DoorbellMode) -> Result<Self, Outcomes> {
        let proxy = DoorbellProxy::start().map_err(|error| unusable(error.to_string()))?;
        let mut queues = Vec::new();
        for _ in 0..count {
            let (_, mut queue) = another_queue(&session.rig.objects).map_err(unusable)?;
            if session.gpu.is_none() && mode != DoorbellMode::Direct {
                queue.set_doorbell(mode, &proxy).map_err(|error| unusable(error.to_string()))?;
            }
            queues.push(queue);
        }
        let itself = |queue: &MappedQueue| queue.insert_peer(&queue.address()?);
        let peers: Result<_, _> = queues.iter().map(itself).collect();
        let peers = peers.map_err(|error: Error| unusable(error.to_string()))?;
        let queues = match &session.rig.objects.gpu {
            Some(gpu) if session.gpu.is_some() => {
                let on_gpu = |queue| {
                    let mapped = GpuQueue::with_doorbell(queue, gpu, Some(mode), &proxy);
                    mapped.map(|(queue, _)| queue).map_err(|error| unusable(error.to_string()))
                };
                Queues::Gpu(queues.into_iter().map(on_gpu).collect::<Result<_, _>>()?)
            }
            _ => Queues::Host(queues),
        };
        let (source, target) = (region(session, Access::WRITE)?, region(session, Access::REMOTE_WRITE)?);
        let timeout = Duration::from_millis(session.request.wait).max(Duration::from_secs(2));
        Ok(Self { queues, peers, source, target, _proxy: proxy, mode, timeout })
    }

    fn measure(&mut self, case: Case, share: Duration) -> Result<Figure> {
        let Self { queues, peers, source, target, mode, timeout, .. } = self;
        let of = |peer: &Peer, bytes| measure::request(*peer, &*source, target.remote(), bytes, *timeout);
        let requests = |bytes, count| peers.iter().take(count).map(|peer| of(peer, bytes)).collect();
        let meter = match queues {
            Queues::Host(queues) => Meter::Host(queues),
            Queues::Gpu(queues) => Meter::Gpu(queues),
        };
        Bed { meter, mode: *mode, queues: peers.len(), requests: &requests }.measure(case, share)
    }
}

fn region(session: &Session, access: Access) -> Result<Region, Outcomes> {
    let Some(domain) = &session.rig.objects.domain else { return Err(missing("the domain")) };
    let buffer = Buffer::zeroed(REGION as usize)
        .ok_or_else(|| unusable(format!("{REGION} bytes cannot be allocated")))?;
    domain.register(buffer, access).map_err(|error| {
        failure(&error).expects("fi_mr_reg succeeds", MOVES_REGISTERED).fix(error.hint(), Party::Pod).into()
    })
}

fn unusable(observed: String) -> Outcomes {
    Outcome::fail(observed)
        .expects("separate queues for the bench", "the bench measures queues that no check uses")
        .fix(
            "fix the FAB, GDA and QUE checks that fail; if none fails, use a smaller --queues",
            Party::Operator,
        )
        .into()
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

fn bench_failed(case: Case, error: &Error) -> Outcomes {
    Outcome::fail(format!("{}: {}", case.describe(), error))
        .expects("every write completes with status 0", "figures of failed writes mean nothing")
        .fix(
            "run gda-probe put with the same options and fix what fails; on a slow machine, \
             raise --time-limit (milliseconds)",
            Party::Operator,
        )
        .into()
}

pub(crate) fn run(session: &mut Session) -> Checked {
    let request = session.request.bench.ok_or_else(|| missing("the bench"))?;
    let modes: Vec<DoorbellMode> = DoorbellMode::candidates(session.request.doorbell.only()).collect();
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
                total -= measure::cases(false).len();
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
