//! One rank, from its arrival to its result: it opens a queue, exchanges addresses, puts, compares, and shares its
//! result.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use efa_gda::gpu::Gpu;
use efa_gda::wire::Peer;
use serde::{Deserialize, Serialize};

use super::nvlink::{Mapped, OR_EFA, Shared};
use super::reach::{self, Reach, Side, check_gpu, run_needed};
use super::transfer::{Landing, Target, Transfer, close};
use super::{Here, Job, Route, in_bounds};
use crate::checks::measure::{cases_of_one_queue, processor};
use crate::checks::rows::Turn;
use crate::checks::session::{Rig, Session, text};
use crate::exchange::member::Member;
use crate::exchange::{Deadline, RAISE_LIMIT};
use crate::model::bench::{Bench, Figure};
use crate::model::ranks::Pe;
use crate::model::text::make_visible;
use crate::model::{Memory, Over};
use crate::soft::checker::Checker;
use crate::worker::{BenchRequest, Executor, Group, PutRequest};

/// The longest time for one case of a bench: less than a step of the exchange may take (`ring.rs`).
const LONGEST_CASE: Duration = Duration::from_secs(20);
/// The most characters of a failure that other ranks get.
const MOST_TEXT: usize = 600;

/// A rank's message of one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Message {
    /// What the rank is to put. It is the first message, because the listener of a pair takes the sender's.
    Terms(Terms),
    /// The rank can be reached.
    Card(Card),
    /// The rank is ready for the next round.
    Ready,
    /// The rank is done; its result says whether it failed. It ends the job for all ranks.
    Done(Box<Pe>),
}

/// What a rank is to put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Terms {
    /// Bytes of each put.
    bytes: u64,
    /// Puts.
    count: u64,
    /// The path of the bytes.
    #[serde(default)]
    over: Over,
    /// Milliseconds of the measurements that follow the puts of a bench.
    #[serde(default)]
    bench: Option<u64>,
}

/// What other ranks need to reach a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    /// The process, for an adapter that reaches one process only.
    process: u64,
    /// The address of the queue that posts.
    sends: Vec<u8>,
    /// The address of the queue to which others put.
    receives: Vec<u8>,
    /// Where the source of the rank writes.
    landing: Option<Landing>,
    /// The same memory, for another process of the host.
    #[serde(default)]
    shared: Option<Shared>,
}

/// Runs the ranks of this process and writes the results of every rank that it learns of, one a line.
pub(super) fn run_all<L: Reach>(job: &Job, out: File) {
    let mut first = session::<L>(job, 0);
    let process = u64::from_ne_bytes(random());
    // Once in a process: it loads foreign libraries and sets variables, which one thread may do.
    let started = run_needed(&mut first, &[Turn::Once]);
    let out = Mutex::new(out);
    let report = |pe: &Pe| {
        // The process that reads it reports a missing result.
        let line = serde_json::to_string(pe).unwrap_or_default() + "\n";
        let _ = lock(&out).write_all(line.as_bytes());
    };
    // Why no rank may begin. It is locked until all threads have started: a rank that began would wait for others that
    // never arrive.
    let stopped = Mutex::new(None);
    std::thread::scope(|threads| {
        let mut stop = lock(&stopped);
        for here in &job.here {
            let shared = started.clone().map(|()| L::share(&first.start, here.local));
            let rank = Rank { job, here: *here, process };
            let (report, stopped) = (&report, &stopped);
            let work = move || {
                let stop = lock(stopped).clone();
                match stop {
                    Some(why) => report(&Pe { error: Some(why), ..rank.pe() }),
                    None => rank.run(shared).iter().for_each(report),
                }
            };
            if let Err(error) = std::thread::Builder::new().spawn_scoped(threads, work) {
                let why = format!("no thread can be started for rank {}: {error}; {RAISE_LIMIT}", here.rank);
                let not_started = job.here.iter().skip_while(|other| other.rank != here.rank);
                for here in not_started {
                    report(&Pe { error: Some(why.clone()), ..Rank { job, here: *here, process }.pe() });
                }
                *stop = Some(why);
                break;
            }
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without random bytes no rank joins, because its handshake needs them as well.
    let _ = getrandom::fill(&mut bytes);
    bytes
}

fn session<L: Reach>(job: &Job, local: u32) -> Session<L> {
    let mut session = Session::silent(job.request.clone());
    session.gpu = match job.request.executor {
        Executor::Gpu(_) => Some(gpu_of(job, local)),
        _ => None,
    };
    session
}

/// The GPU of the rank with number `local` on its machine: the ranks take turns, unless one is named.
fn gpu_of(job: &Job, local: u32) -> u32 {
    let count = || Gpu::count().ok().and_then(|count| local.checked_rem(u32::try_from(count).ok()?));
    job.request.gpu.or_else(count).unwrap_or_default()
}

/// A rank of this process.
#[derive(Clone, Copy)]
struct Rank<'a> {
    job: &'a Job,
    here: Here,
    process: u64,
}

impl Rank<'_> {
    /// The result of a rank that has done nothing.
    fn pe(self) -> Pe {
        let Self { job, here: Here { rank, .. }, .. } = self;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Pe {
            rank,
            host: host.map(|name| name.trim().to_owned()),
            executor: "host".to_owned(),
            to: job.route.target(rank, job.of),
            from: job.route.source(rank, job.of),
            ..Pe::default()
        }
    }

    /// Runs the rank. Returns its result first, and then those of other ranks, as far as it learned them.
    fn run<L: Reach>(self, shared: Result<(L::Start, Option<L>), String>) -> Vec<Pe> {
        let Self { job, here: Here { rank, .. }, .. } = self;
        let mut pe = self.pe();
        let joined = Member::join(&job.hub, rank, job.of, job.route.party(), &job.token, job.limits());
        let mut member = match joined {
            Ok(member) => member,
            Err(why) => {
                pe.error = Some(why);
                return vec![pe];
            }
        };
        let mut session = session::<L>(job, self.here.local);
        let mut transfer = None;
        let done = self.work(shared, &mut session, &mut member, &mut pe, &mut transfer);
        let others = match done {
            Err(Stopped::Own(why)) => {
                pe.error = Some(shortened(why));
                self.end(&mut member, &pe)
            }
            Err(Stopped::Others(why, others)) => {
                pe.error = Some(why);
                others
            }
            Ok(()) => {
                pe.verified = true;
                self.end(&mut member, &pe)
            }
        };
        // The source of this rank unmapped the memory before it shared its result.
        drop(transfer);
        member.leave();
        if let Err(why) = close(&mut session) {
            pe.verified = false;
            pe.error.get_or_insert(why);
        }
        let others = others.into_iter().filter(|other| other.rank != rank);
        std::iter::once(pe).chain(others).collect()
    }

    fn work<L: Reach>(
        self,
        shared: Result<(L::Start, Option<L>), String>,
        session: &mut Session<L>,
        member: &mut Member,
        pe: &mut Pe,
        held: &mut Option<Transfer>,
    ) -> Result<(), Stopped> {
        let Self { job, here: Here { rank, local }, .. } = self;
        let Terms { bytes, count, bench, .. } = self.agree(member)?;
        session.request.put = PutRequest { bytes, count, ..job.request.put };
        session.request.bench = bench.map(|time_limit| BenchRequest { queues: 1, time_limit });
        (pe.bytes, pe.count) = (bytes, count);
        let (start, objects) = shared.map_err(Stopped::Own)?;
        session.start = start;
        session.rig = Rig::new(objects.ok_or_else(|| Stopped::Own("no adapter was found".to_owned()))?);
        pe.adapter = session.rig.objects.adapter();
        let of_bytes = (job.request.memory == Memory::Gpu).then(|| gpu_of(job, local));
        let posts = session.gpu.is_some();
        let checked = session.gpu.or(of_bytes).map_or(Ok(()), |number| check_gpu(number, posts));
        checked.map_err(Stopped::Own)?;
        run_needed(session, &[Turn::Opening, Turn::Each]).map_err(Stopped::Own)?;
        if session.rig.poster.is_some() {
            pe.executor = "cuda".to_owned();
        }
        pe.gpu = session.gpu.or(of_bytes).map(|number| number.to_string());
        pe.doorbell = session.rig.sender().map(|queue| queue.doorbell_mode().name().to_owned());
        let gpu = of_bytes.map(|number| Gpu::open(number as usize).map_err(text));
        let gpu = gpu.transpose().map_err(Stopped::Own)?;
        let transfer = Transfer::new(session, rank, [pe.to, pe.from], gpu.as_ref()).map_err(Stopped::Own)?;
        let transfer = &*held.insert(transfer);
        pe.memory = Some(job.request.memory);
        let shared = gpu.as_ref().filter(|_| job.over != Over::Efa).map(|gpu| transfer.share(gpu));
        let shared = shared.transpose().or_else(|why| self.without_nvlink(why)).map_err(Stopped::Own)?;
        let card = Card {
            process: self.process,
            sends: address(session, Side::Sends).map_err(Stopped::Own)?,
            receives: address(session, Side::Receives).map_err(Stopped::Own)?,
            landing: transfer.landing(),
            shared,
        };
        let cards = self.share(member, &Message::Card(card))?;
        let target = self.introduce(session, &cards, gpu.as_ref(), pe).map_err(Stopped::Own)?;
        let deadline = Deadline::after(Duration::from_secs(job.request.put.max_seconds));
        for round in 0..transfer.rounds() {
            if deadline.left().is_none() {
                return Err(Stopped::Own(transfer.stopped(round)));
            }
            transfer.prepare(round).map_err(Stopped::Own)?;
            self.share(member, &Message::Ready)?;
            transfer.round(session, (round, deadline), target.as_ref(), pe).map_err(Stopped::Own)?;
        }
        self.bench(session, member, transfer, target.as_ref(), pe)?;
        let checker = job.request.provider.as_deref().and_then(|provider| Checker::of(provider).ok());
        match checker.map(|checker| checker.violations()).filter(|found| !found.is_empty()) {
            Some(violations) => {
                Err(Stopped::Own(format!("the software adapter reports: {}", violations.join("; "))))
            }
            None => Ok(()),
        }
    }

    /// Measures the queue of a bench's sender. Each case is a step of the exchange, whose bound it keeps; the other rank
    /// keeps its memory open meanwhile.
    fn bench<L: Reach>(
        self,
        session: &mut Session<L>,
        member: &mut Member,
        transfer: &Transfer,
        target: Option<&Target>,
        pe: &mut Pe,
    ) -> Result<(), Stopped> {
        let Some(BenchRequest { time_limit, .. }) = session.request.bench else { return Ok(()) };
        let deadline = Instant::now() + Duration::from_millis(time_limit);
        let cases = cases_of_one_queue();
        let name = |number: u32| efa_gda::gpu::Gpu::open(number as usize).and_then(|gpu| gpu.name());
        let mut bench = Bench {
            executor: pe.executor.clone(),
            machine: session.gpu.map_or_else(processor, |number| name(number).unwrap_or_default()),
            gpu: pe.gpu.clone(),
            adapter: pe.adapter.clone(),
            time_limit_ms: time_limit,
            ..Bench::default()
        };
        for (done, case) in cases.iter().enumerate() {
            self.share(member, &Message::Ready)?;
            let Some(Target::Efa(peer, landing)) = target else { continue };
            let left = deadline.saturating_duration_since(Instant::now());
            let share = (left / (cases.len() - done) as u32).min(LONGEST_CASE);
            bench.add(match left.is_zero() {
                true => Figure::LeftOut(format!("{}: --time-limit was reached", case.describe())),
                false => transfer.measure(session, (*peer, *landing), *case, share).map_err(Stopped::Own)?,
            });
        }
        pe.bench = target.map(|_| bench);
        // The last case has ended when the sender takes this step; until then the other rank's memory is open.
        self.share(member, &Message::Ready)?;
        Ok(())
    }

    /// What this rank puts: what every rank does, or in a pair what the sender does.
    fn agree(self, member: &mut Member) -> Result<Terms, Stopped> {
        let Self { job, here: Here { rank, .. }, .. } = self;
        let put = job.request.put;
        let bench = job.request.bench.map(|bench| bench.time_limit);
        let own = Terms { bytes: put.bytes, count: put.count, over: job.over, bench };
        let messages = self.share(member, &Message::Terms(own))?;
        for (other, message) in messages.iter().enumerate() {
            let Message::Terms(terms) = message else {
                return Err(Stopped::Others(
                    format!(
                        "rank {other} sent another message than its put's size and number; see its output"
                    ),
                    Vec::new(),
                ));
            };
            let Terms { bytes, count, .. } = *terms;
            match job.route {
                Route::Pair if other == 1 && in_bounds(bytes, count) => {
                    return Ok(*terms);
                }
                Route::Pair if other == 0 => {}
                Route::Ring if *terms == own => {}
                _ => {
                    let why = format!(
                        "rank {other} puts {count} × {bytes} bytes{}, and rank {rank} {} × {}{}; start all with the \
                         same options",
                        path(terms.over),
                        own.count,
                        own.bytes,
                        path(own.over)
                    );
                    return Err(Stopped::Others(why, Vec::new()));
                }
            }
        }
        Ok(own)
    }

    /// Maps the memory of the right neighbour, unless all bytes go over EFA. None if they go over EFA to this one.
    fn map(&self, cards: &[Message], gpu: Option<&Gpu>, pe: &Pe) -> Result<Option<Mapped>, String> {
        let shared = |rank: Option<u32>| match cards.get(rank? as usize) {
            Some(Message::Card(card)) => card.shared.as_ref(),
            _ => None,
        };
        let (Over::Nvlink | Over::Auto, Some(gpu), Some(target)) = (self.job.over, gpu, pe.to) else {
            return Ok(None);
        };
        let mapped = match (shared(Some(pe.rank)), shared(Some(target))) {
            (Some(own), Some(shared)) => Mapped::open(gpu, own, shared, target),
            _ => {
                let why = "exported no memory of its GPU; its output with -v has the reason";
                Err(format!("rank {} or rank {target} {why}; {OR_EFA}", pe.rank))
            }
        };
        mapped.map(Some).or_else(|why| self.without_nvlink(why))
    }

    /// Goes on over EFA if that is allowed.
    fn without_nvlink<T>(&self, why: String) -> Result<Option<T>, String> {
        if self.job.over == Over::Nvlink {
            return Err(why);
        }
        tracing::info!(%why, "this rank puts over EFA");
        Ok(None)
    }

    /// Maps the target's memory, or inserts the neighbours' addresses. Returns where this rank puts.
    fn introduce<L: Reach>(
        self,
        session: &mut Session<L>,
        messages: &[Message],
        gpu: Option<&Gpu>,
        pe: &mut Pe,
    ) -> Result<Option<Target>, String> {
        let mapped = self.map(messages, gpu, pe)?.map(Target::Mapped);
        pe.over = pe.to.map(|_| if mapped.is_some() { Over::Nvlink } else { Over::Efa });
        if self.job.over == Over::Nvlink {
            return Ok(mapped);
        }
        let card = |rank: u32| match messages.get(rank as usize) {
            Some(Message::Card(card)) => Ok(card),
            _ => Err(format!("rank {rank} sent no address")),
        };
        let in_process = self.job.request.soft && self.job.request.group == Group::Fabric;
        // The source of this rank may have mapped its memory, and knows whether it needs an adapter.
        let neighbours = [pe.from.filter(|_| self.job.over == Over::Efa), pe.to.filter(|_| mapped.is_none())];
        for neighbour in neighbours.into_iter().flatten() {
            if in_process && card(neighbour)?.process != self.process {
                return Err(format!(
                    "rank {neighbour} is in another process, and softefa's libfabric frontend reaches one process \
                     only; use --via verbs, with one broker for all ranks (softefa serve), or start the ranks with \
                     --spawn"
                ));
            }
        }
        if let Some(source) = pe.from {
            // A receiver refuses the requests of an adapter that it does not know.
            peer(session, Side::Receives, &card(source)?.sends)
                .map_err(|error| format!("the address of rank {source} was refused: {error}"))?;
        }
        if mapped.is_some() {
            return Ok(mapped);
        }
        let Some(target) = pe.to else { return Ok(None) };
        let Card { receives, landing, .. } = card(target)?;
        let landing =
            landing.ok_or_else(|| format!("rank {target} sent no region to put to; see its output"))?;
        let peer = peer(session, Side::Sends, receives)
            .map_err(|error| format!("the address of rank {target} was refused: {error}"))?;
        Ok(Some(Target::Efa(peer, landing)))
    }

    /// Shares a message. Fails if the exchange did, or a rank that others wait for is done.
    fn share(self, member: &mut Member, message: &Message) -> Result<Vec<Message>, Stopped> {
        let messages = exchange(member, message).map_err(|why| Stopped::Others(why, Vec::new()))?;
        let done: Vec<Pe> = messages.iter().filter_map(result).cloned().collect();
        match done.first() {
            None => Ok(messages),
            Some(first) => {
                let why = first.error.as_deref().unwrap_or("it ended early");
                Err(Stopped::Others(format!("rank {} failed: {why}", first.rank), done))
            }
        }
    }

    /// Shares this rank's result. Returns the results of the ranks that are done.
    fn end(self, member: &mut Member, pe: &Pe) -> Vec<Pe> {
        let messages = exchange(member, &Message::Done(Box::new(pe.clone())));
        // The result is this rank's own, whatever the others do.
        messages.unwrap_or_default().iter().filter_map(result).cloned().collect()
    }
}

/// The path of the bytes, for a sentence about them.
fn path(over: Over) -> &'static str {
    match over {
        Over::Efa => "",
        Over::Nvlink => " over NVLink",
        Over::Auto => " over NVLink or EFA",
    }
}

/// Why a rank ends before its last round.
enum Stopped {
    /// It failed, and the others do not know yet.
    Own(String),
    /// Others failed, or the exchange; the results that it learned.
    Others(String, Vec<Pe>),
}

fn result(message: &Message) -> Option<&Pe> {
    match message {
        Message::Done(pe) => Some(pe.as_ref()),
        _ => None,
    }
}

fn exchange(member: &mut Member, message: &Message) -> Result<Vec<Message>, String> {
    let bytes = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    let parse = |(rank, bytes): (usize, Vec<u8>)| {
        let mut value = serde_json::from_slice(&bytes)?;
        make_visible(&mut value);
        let message: Message = serde_json::from_value(value)?;
        // A rank speaks for itself only.
        match result(&message).is_none_or(|pe| pe.rank as usize == rank) {
            true => Ok(message),
            false => Err(serde::de::Error::custom("the result of another rank")),
        }
    };
    let all = member.share(&bytes)?;
    let parsed: serde_json::Result<Vec<Message>> = all.into_iter().enumerate().map(parse).collect();
    parsed.map_err(|error| format!("a rank sent a message that is none of this version: {error}"))
}

/// A text that fits a message of the exchange.
fn shortened(text: String) -> String {
    match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The address of a queue, for other ranks.
fn address<L: Reach>(session: &Session<L>, side: Side) -> Result<Vec<u8>, String> {
    reach::queue(&session.rig, side)?.address().map_err(text)
}

/// The peer at an address that another rank sent.
fn peer<L: Reach>(session: &Session<L>, side: Side, address: &[u8]) -> Result<Peer, String> {
    reach::queue(&session.rig, side)?.insert_peer(address).map_err(text)
}
