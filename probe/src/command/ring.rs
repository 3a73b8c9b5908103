//! `gda-probe ring`: every rank of a job puts to the next one; and `gda-probe put --peer`, `put --listen` and
//! `bench --peer`, which are a job of two ranks.

use std::time::Duration;

use super::CommandError;
use super::run::{Run, Work};
use crate::cli::{BenchArgs, Common, DEFAULT_BENCH_TIME, ExchangeArgs, ExecutorChoice, PutArgs, RingArgs};
use crate::exchange::Limits;
use crate::exchange::hub::Hub;
use crate::exchange::token::{Token, VARIABLE};
use crate::exit::Exit;
use crate::launcher::{self, PORT, Place, Stated, with_port};
use crate::model::ranks::Ranks;
use crate::model::text::note;
use crate::model::{Document, Finding, GpuChoice, Memory, Op, Over, Put, State, Via, Who};
use crate::ranks::process::{self, Reported};
use crate::ranks::{Here, Job, MOST_BYTES, Route, in_bounds};
use crate::soft::uverbs;
use crate::worker::{BenchRequest, Executor, PutRequest};

/// Seconds that ranks wait for each other unless `--wait` is set.
const WAIT: u64 = 30;
/// The least time for a step of the exchange: the first includes opening a queue.
const LEAST_STEP: Duration = Duration::from_secs(20);
/// Time to start processes and to end them.
const STARTING: Duration = Duration::from_secs(20);
/// Time to move and compare the largest round, which is one put of `MOST_BYTES`.
const SLOWEST_ROUND: Duration = Duration::from_secs(30);

/// The ranks of this process, in the processes that run them, and where they meet.
struct Meeting {
    of: u32,
    route: Route,
    over: Over,
    processes: Vec<Vec<Here>>,
    /// Where rank 0 listens, or shall listen if it is here.
    rendezvous: String,
    token: Token,
}

/// Runs the ranks of this machine (`--spawn`), or the one of this process.
pub(crate) fn run(common: &Common, args: &RingArgs) -> Result<(Document, Exit), CommandError> {
    let put = put(Op::Write, args.bytes, args.count, args.max_seconds)?;
    let input = |why: String| CommandError::Input(why);
    let (memory, over) = (gpu_memory(common, args)?, args.over);
    let route = Route::Ring;
    let meeting = match args.spawn {
        Some(of) => {
            let all = (0..of).map(|rank| Here { rank, local: rank });
            // softefa's libfabric frontend reaches the queues of its own process only. CUDA maps no memory of the own
            // process.
            let processes = match common.soft && common.via == Via::Libfabric && over != Over::Nvlink {
                true => vec![all.collect()],
                false => all.map(|here| vec![here]).collect(),
            };
            let token = Token::generate().map_err(input)?;
            let rendezvous = "127.0.0.1:0".to_owned();
            Meeting { of, route, over, processes, rendezvous, token }
        }
        None => {
            let RingArgs { rank, ranks, rendezvous, .. } = args.clone();
            let stated = Stated { rank, of: ranks, rendezvous };
            let place = launcher::place(&stated, |name| std::env::var(name).ok()).map_err(input)?;
            let Place { rank, of, local, rendezvous } = place;
            let processes = vec![vec![Here { rank, local }]];
            Meeting { of, route, over, processes, rendezvous, token: token(&args.exchange)? }
        }
    };
    if args.spawn.is_none() {
        refuse_brokers(common, meeting.of)?;
    }
    let work = Work { executor: executor(common, args.executor)?, memory, ..put.into() };
    let (mut document, ranks) = meet("ring", common, args.exchange.wait, work, meeting)?;
    let exit = if ranks.passed() { Exit::Fine } else { Exit::Failed };
    document.ranks = Some(ranks);
    Ok((document, exit))
}

/// Puts to the host that listens (`--peer`), or listens (`--listen`).
pub(crate) fn pair(common: &Common, args: &PutArgs) -> Result<(Document, Exit), CommandError> {
    if args.op != Op::Write {
        return Err(CommandError::NotInThisVersion {
            what: "put --peer with an operation other than write",
            missing: "the receiving side of sends, reads and immediate data in another process",
            instead: "use --op write, or omit --peer",
        });
    }
    refuse_brokers(common, 2)?;
    let put = put(args.op, args.bytes, args.count, args.max_seconds)?;
    let (rank, host) = match (&args.peer, &args.listen) {
        (Some(peer), _) => (1, peer.as_str()),
        (None, listen) => (0, listen.as_deref().unwrap_or("0.0.0.0")),
    };
    let meeting = pair_at(rank, host, &args.exchange)?;
    let executor = executor(common, if rank == 0 { ExecutorChoice::Host } else { args.executor })?;
    let work = Work { executor, ..put.into() };
    let (mut document, ranks) = meet("put", common, args.exchange.wait, work, meeting)?;
    let exit = if ranks.passed() { Exit::Fine } else { Exit::Failed };
    // The sender's result is that of the put; the receiver learns it with the exchange's last step.
    // A sender that opened no queue did not put.
    let sender = ranks.pes.iter().find(|pe| pe.rank == 1 && !pe.adapter.is_empty());
    document.put = sender.map(|sender| Put {
        op: args.op.name(),
        bytes: ranks.bytes,
        count: ranks.count,
        completed: sender.completed,
        verified: ranks.passed(),
        doorbell: sender.doorbell.clone().unwrap_or_else(|| "direct".to_owned()),
        lost: None,
        executor: sender.executor.clone(),
        gpu: sender.gpu.clone(),
        adapter: sender.adapter.clone(),
        target: None,
        store_bytes: None,
        qualification: None,
        microseconds: sender.microseconds,
        violations: Vec::new(),
    });
    document.ranks = Some(ranks);
    Ok((document, exit))
}

/// Measures writes to the host that listens, after puts that are compared.
pub(crate) fn bench(
    common: &Common,
    args: &BenchArgs,
    peer: &str,
    put: PutRequest,
) -> Result<(Document, Exit), CommandError> {
    refuse_brokers(common, 2)?;
    let time_limit = common.time_limit.unwrap_or(DEFAULT_BENCH_TIME);
    let put = PutRequest { one_adapter: false, max_seconds: put.max_seconds + time_limit / 1000, ..put };
    let bench = Some(BenchRequest { queues: 1, time_limit });
    let meeting = pair_at(1, peer, &args.exchange)?;
    let work = Work { executor: executor(common, args.executor)?, bench, ..put.into() };
    // As in a bench of one host, --time-limit is that of the measurements.
    let common = &Common { time_limit: Some(DEFAULT_BENCH_TIME), ..common.clone() };
    let (mut document, ranks) = meet("bench", common, args.exchange.wait, work, meeting)?;
    let exit = if ranks.passed() && document.bench.is_some() { Exit::Fine } else { Exit::Failed };
    document.ranks = Some(ranks);
    Ok((document, exit))
}

/// A job of two ranks: the listener is rank 0, at `host`, and the sender rank 1.
fn pair_at(rank: u32, host: &str, exchange: &ExchangeArgs) -> Result<Meeting, CommandError> {
    Ok(Meeting {
        of: 2,
        route: Route::Pair,
        over: Over::Efa,
        processes: vec![vec![Here { rank, local: 0 }]],
        rendezvous: with_port(host, PORT),
        token: token(exchange)?,
    })
}

fn put(op: Op, bytes: u64, count: u64, max_seconds: u64) -> Result<PutRequest, CommandError> {
    if !in_bounds(bytes, count) {
        let why = format!("{count} × {bytes} bytes: --bytes is 1 to {MOST_BYTES}, and --count at least 1");
        return Err(CommandError::Input(why));
    }
    Ok(PutRequest { op, bytes, count, max_seconds, one_adapter: false, fault: None, qualify_laps: None })
}

/// The memory of a ring's bytes. Refuses a choice that cannot hold.
fn gpu_memory(common: &Common, args: &RingArgs) -> Result<Memory, CommandError> {
    let memory = args.memory();
    let refused = |why: &str| Err(CommandError::Input(why.to_owned()));
    match (memory, args.over, common.gpu) {
        (Memory::Host, Over::Efa, _) => Ok(memory),
        (Memory::Host, ..) => refused(
            "--memory host --over nvlink or auto: NVLink joins memory of GPUs; omit --memory host, or use --over efa",
        ),
        (_, _, Some(GpuChoice::None)) => refused(
            "--memory gpu, the default with --over nvlink and auto, needs a GPU, but --gpu none leaves GPUs out; omit \
             one of the options",
        ),
        _ if common.via == Via::Verbs => Err(CommandError::NotInThisVersion {
            what: "ring --memory gpu --via verbs",
            missing: "memory of GPUs that rdma-core registers for the probe",
            instead: "use --memory host, or --via libfabric",
        }),
        _ => Ok(memory),
    }
}

fn token(args: &ExchangeArgs) -> Result<Token, CommandError> {
    let found = Token::find(args.token_file.as_deref()).map_err(CommandError::Input)?;
    if let Some(warning) = args.token_file.as_deref().and_then(Token::warning) {
        note(&format!("gda-probe: warning: {warning}"));
    }
    found.ok_or_else(|| {
        CommandError::Input(format!(
            "no token: give all ranks of the job one secret of 16 bytes or more, in {VARIABLE} or --token-file FILE \
             (umask 077; openssl rand -hex 32 > FILE)"
        ))
    })
}

/// Refuses ranks that would each start a software adapter of their own.
fn refuse_brokers(common: &Common, of: u32) -> Result<(), CommandError> {
    if common.soft && common.via == Via::Verbs && of > 1 && !uverbs::has_broker() {
        let why = "--soft --via verbs: ranks that a launcher starts need one broker; start softefa serve \
                   --socket FILE, and set SOFTEFA_SOCKET=FILE for all ranks, or use --spawn";
        return Err(CommandError::Input(why.to_owned()));
    }
    Ok(())
}

fn executor(common: &Common, choice: ExecutorChoice) -> Result<Executor, CommandError> {
    match (choice, common.gpu) {
        (ExecutorChoice::Host, _) => Ok(Executor::Host),
        (ExecutorChoice::Cuda, Some(GpuChoice::None)) => {
            let why = "--executor cuda needs a GPU, but --gpu none leaves GPUs out; omit one of the options";
            Err(CommandError::Input(why.to_owned()))
        }
        (ExecutorChoice::Cuda, _) if common.via == Via::Verbs => Err(CommandError::NotInThisVersion {
            what: "--executor cuda --via verbs",
            missing: "GPUs that drive queues opened by rdma-core",
            instead: "use --executor host, or --via libfabric",
        }),
        (ExecutorChoice::Cuda, Some(GpuChoice::Number(number))) => Ok(Executor::Gpu(number)),
        (ExecutorChoice::Cuda, None) => Ok(Executor::Gpu(0)),
        // Ranks must agree on what they show; a GPU takes part on request.
        (ExecutorChoice::Auto, _) => Ok(Executor::Host),
    }
}

/// Runs the ranks of `meeting` and collects their results.
fn meet(
    name: &'static str,
    common: &Common,
    wait: Option<u64>,
    work: Work,
    meeting: Meeting,
) -> Result<(Document, Ranks), CommandError> {
    let Meeting { of, route, over, processes, rendezvous, token } = meeting;
    let (put, measures) = (work.put, work.bench.is_some());
    let mut run = Run::new(common)?;
    run.prerequisites(put);
    let here: Vec<u32> = processes.iter().flatten().map(|here| here.rank).collect();
    let via = if common.via == Via::Verbs { "verbs" } else { "libfabric" }.to_owned();
    let mut ranks = Ranks { size: of, bytes: put.bytes, count: put.count, via, here, ..Ranks::default() };
    let limits = limits(&run, wait.unwrap_or(WAIT));
    if let Some(failure) = run.runner.findings.iter().find(|finding| finding.state == State::Fail) {
        if ranks.here.contains(&0) && (ranks.here.len() as u32) < of {
            match Hub::bind(&rendezvous, token, of, route.party(), limits) {
                Ok(hub) => refuse(hub, failure, route, limits),
                // The failed check is the result.
                Err(why) => tracing::warn!("the other ranks do not learn of {}: {why}", failure.code),
            }
        }
        let findings = run.findings();
        return Ok((run.document(name, findings), ranks));
    }
    let (group, provider_path) = run.layer();
    let mut job = Job {
        request: run.request(group, work),
        of,
        route,
        over,
        hub: rendezvous,
        token: token.clone(),
        arrival: milliseconds(limits.arrival),
        step: milliseconds(limits.step),
        here: Vec::new(),
    };
    let mut hub = None;
    if ranks.here.contains(&0) {
        let bound = Hub::bind(&job.hub, token, of, route.party(), limits).map_err(CommandError::Input)?;
        if route == Route::Pair {
            note(&format!(
                "gda-probe: waiting {} s at {} for put --peer or bench --peer",
                limits.arrival.as_secs(),
                job.hub
            ));
        }
        job.hub = bound.address().map_err(start_error)?.to_string();
        hub = Some(bound);
    }
    let jobs: Vec<Job> = processes.into_iter().map(|here| Job { here, ..job.clone() }).collect();
    let limit = STARTING + limits.arrival * 2 + Duration::from_secs(put.max_seconds) + limits.step;
    let Reported { pes, exchange } =
        process::run(&jobs, hub, provider_path.as_deref(), limit).map_err(start_error)?;
    // The listener of a pair learned them from the sender.
    if let Some(agreed) = pes.iter().find(|pe| pe.count > 0) {
        (ranks.bytes, ranks.count) = (agreed.bytes, agreed.count);
    }
    (ranks.pes, ranks.error) = (pes, exchange);
    // The listener knows them too, and its document is that of a put.
    let measured = ranks.pes.iter_mut().find_map(|pe| pe.bench.take());
    let bench = measured.filter(|_| measures);
    Ok((Document { checks: None, bench, ..run.document(name, Vec::new()) }, ranks))
}

/// Reports to the ranks of other machines why rank 0 does not start.
fn refuse(hub: Hub, failure: &Finding, route: Route, limits: Limits) {
    let Finding { code, title, observed, fix, who, .. } = failure;
    let host = if route == Route::Pair { "the listening host" } else { "rank 0" };
    let seconds = limits.arrival.as_secs();
    note(&format!("gda-probe: {code} failed; reporting it for {seconds} s to the ranks that arrive"));
    let why = format!(
        "{host} cannot start: {code}, \"{title}\", does not hold: {}; fix ({}): {}",
        observed.as_deref().unwrap_or_default(),
        who.map(Who::role).unwrap_or_default(),
        fix.as_deref().unwrap_or_default()
    );
    if let Err(error) = hub.refuse(why) {
        tracing::warn!(%error, "the other ranks do not learn why");
    }
}

fn start_error(error: std::io::Error) -> CommandError {
    CommandError::Ranks(error)
}

/// How long ranks wait for each other: in a step, each opens a queue, or moves a round of puts.
fn limits(run: &Run, wait: u64) -> Limits {
    let (calls, wait) = (run.limits(), Duration::from_secs(wait));
    Limits { arrival: wait, step: wait.max(LEAST_STEP) + (calls.each + calls.start) * 4 + SLOWEST_ROUND }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
