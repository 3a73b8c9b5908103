//! One rank, from its arrival to its result: it opens a queue, exchanges addresses, puts, compares, and shares its
//! result.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::reach::{Reach, Side, check_gpu, run_needed};
use super::transfer::{Landing, Transfer, close};
use super::{Here, Job, Route, in_bounds};
use crate::checks::session::{Rig, Session};
use crate::exchange::RAISE_LIMIT;
use crate::exchange::member::Member;
use crate::model::ranks::Pe;
use crate::model::text::make_visible;
use crate::soft::checker::Checker;
use crate::worker::{Executor, Group, PutRequest};

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
    Done(Pe),
}

/// What a rank is to put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Terms {
    /// Bytes of each put.
    bytes: u64,
    /// Puts.
    count: u64,
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
}

/// Runs the ranks of this process and writes the results of every rank that it learns of, one a line.
pub(super) fn run_all<L: Reach>(job: &Job, out: File) {
    let mut first = session::<L>(job, 0);
    let process = u64::from_ne_bytes(random());
    // Once in a process: it loads foreign libraries and sets variables, which one thread may do.
    let started = run_needed(&mut first, &L::starting().iter().collect::<Vec<_>>());
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
        // Each rank of a machine takes the next GPU, unless one is named.
        Executor::Gpu(first) => Some(if job.request.gpu.is_some() { first } else { gpu_of(first, local) }),
        _ => None,
    };
    session
}

/// The GPU of the rank with number `local` on its machine, from GPU `first` on.
fn gpu_of(first: u32, local: u32) -> u32 {
    let count = efa_gda::gpu::Gpu::count().ok().and_then(|count| u32::try_from(count).ok());
    (first + local).checked_rem(count.unwrap_or(0)).unwrap_or(first)
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
        let done = self.work(shared, &mut session, &mut member, &mut pe);
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
    ) -> Result<(), Stopped> {
        let Self { job, here: Here { rank, .. }, .. } = self;
        session.request.put = self.agree(member)?;
        (pe.bytes, pe.count) = (session.request.put.bytes, session.request.put.count);
        let (start, objects) = shared.map_err(Stopped::Own)?;
        session.start = start;
        session.rig = Rig::new(objects.ok_or_else(|| Stopped::Own("no adapter was found".to_owned()))?);
        pe.adapter = session.rig.objects.adapter();
        session.gpu.map_or(Ok(()), check_gpu).map_err(Stopped::Own)?;
        run_needed(session, &L::opening(session.gpu.is_some())).map_err(Stopped::Own)?;
        if session.rig.poster.is_some() {
            (pe.executor, pe.gpu) = ("cuda".to_owned(), session.gpu.map(|number| number.to_string()));
        }
        pe.doorbell = session.rig.sender().map(|queue| queue.doorbell_mode().name().to_owned());
        let transfer = Transfer::new(session, rank, [pe.to, pe.from]).map_err(Stopped::Own)?;
        let card = Card {
            process: self.process,
            sends: L::address(&session.rig, Side::Sends).map_err(Stopped::Own)?,
            receives: L::address(&session.rig, Side::Receives).map_err(Stopped::Own)?,
            landing: transfer.landing(),
        };
        let cards = self.share(member, &Message::Card(card))?;
        let peer = self.introduce(session, &cards, pe).map_err(Stopped::Own)?;
        for round in 0..transfer.rounds() {
            transfer.prepare(round).map_err(Stopped::Own)?;
            self.share(member, &Message::Ready)?;
            transfer.round(session, round, peer, pe).map_err(Stopped::Own)?;
        }
        let checker = job.request.provider.as_deref().and_then(|provider| Checker::of(provider).ok());
        match checker.map(|checker| checker.violations()).filter(|found| !found.is_empty()) {
            Some(violations) => {
                Err(Stopped::Own(format!("the software adapter reports: {}", violations.join("; "))))
            }
            None => Ok(()),
        }
    }

    /// What this rank puts: what every rank does, or in a pair what the sender does.
    fn agree(self, member: &mut Member) -> Result<PutRequest, Stopped> {
        let Self { job, here: Here { rank, .. }, .. } = self;
        let put = job.request.put;
        let own = Terms { bytes: put.bytes, count: put.count };
        let messages = self.share(member, &Message::Terms(own))?;
        for (other, message) in messages.iter().enumerate() {
            let Message::Terms(terms) = message else {
                return Err(Stopped::Others(format!("rank {other} did not say what it puts"), Vec::new()));
            };
            let Terms { bytes, count } = *terms;
            match job.route {
                Route::Pair if other == 1 && in_bounds(bytes, count) => {
                    return Ok(PutRequest { bytes, count, ..put });
                }
                Route::Pair if other == 0 => {}
                Route::Ring if *terms == own => {}
                _ => {
                    let why = format!(
                        "rank {other} puts {count} × {bytes} bytes, and rank {rank} {} × {}; start all with the same \
                         options",
                        own.count, own.bytes
                    );
                    return Err(Stopped::Others(why, Vec::new()));
                }
            }
        }
        Ok(put)
    }

    /// Inserts the neighbours' addresses. Returns the peer to which this rank puts, and its memory.
    fn introduce<L: Reach>(
        self,
        session: &mut Session<L>,
        messages: &[Message],
        pe: &Pe,
    ) -> Result<Option<(efa_gda::wire::Peer, Landing)>, String> {
        let card = |rank: u32| match messages.get(rank as usize) {
            Some(Message::Card(card)) => Ok(card),
            _ => Err(format!("rank {rank} sent no address")),
        };
        let in_process = self.job.request.soft && self.job.request.group == Group::Fabric;
        for neighbour in [pe.from, pe.to].into_iter().flatten() {
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
            L::peer(&mut session.rig, Side::Receives, &card(source)?.sends)
                .map_err(|error| format!("the address of rank {source} was refused: {error}"))?;
        }
        let Some(target) = pe.to else { return Ok(None) };
        let Card { receives, landing, .. } = card(target)?;
        let landing = landing.ok_or_else(|| format!("rank {target} sent no memory to put to"))?;
        let peer = L::peer(&mut session.rig, Side::Sends, receives)
            .map_err(|error| format!("the address of rank {target} was refused: {error}"))?;
        Ok(Some((peer, landing)))
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
        let messages = exchange(member, &Message::Done(pe.clone()));
        // The result is this rank's own, whatever the others do.
        messages.unwrap_or_default().iter().filter_map(result).cloned().collect()
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
        Message::Done(pe) => Some(pe),
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
