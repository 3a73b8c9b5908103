//! The hub: accepts the ranks of a job and passes their messages on.
//!
//! One thread accepts connections, one for each connection runs its handshake, and one for each rank receives its
//! frames. A connection that proves no token is refused, named in the report of a missing rank, and changes nothing
//! else: a port scanner must not end a job. A rank that proves the token and contradicts the others ends the job at
//! once.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use super::channel::{self, Claim, Failure, Kind, Receiver, Sender};
use super::token::Token;
use super::{Deadline, Limits, MOST_BYTES, Party, advice, join};

/// How long one handshake may take, on a busy machine too.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Handshakes at a time; more connections are closed at once, and ranks try again.
const HANDSHAKES: usize = 64;
/// The pause between two looks at the listener.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a failure's report to one rank may take.
const REPORT: Duration = Duration::from_secs(5);
/// Refused connections that a report names.
const NAMED: usize = 4;

/// A listener for the ranks of one job.
#[derive(Debug)]
pub(crate) struct Hub {
    listener: TcpListener,
    token: Token,
    of: u32,
    party: Party,
    limits: Limits,
    /// Why rank 0 does not take part, which each rank gets when it arrives.
    refusal: Option<String>,
}

/// A rank that has arrived.
#[derive(Debug)]
struct Arrived {
    from: SocketAddr,
    sender: Sender,
    receiver: Option<Receiver>,
}

/// A hub that serves.
#[derive(Debug)]
pub(crate) struct Serving {
    thread: JoinHandle<Result<(), String>>,
    stop: Arc<OnceLock<Stop>>,
}

/// Why a hub stops to wait for ranks that have not arrived.
#[derive(Debug)]
enum Stop {
    /// This process knows that they will not.
    Because(String),
    /// As if the time to arrive were over, once each connection has been heard. Tests do not wait for that time.
    #[cfg(test)]
    Late,
}

impl Serving {
    /// Ends the wait for ranks that have not arrived, because `why`. The first reason counts.
    pub(crate) fn stop_waiting(&self, why: String) {
        // A later reason follows from the first.
        let _ = self.stop.set(Stop::Because(why));
    }

    /// Ends the wait as the time to arrive does.
    #[cfg(test)]
    pub(crate) fn stop_as_late(&self) {
        self.stop.set(Stop::Late).unwrap();
    }

    /// Waits until the exchange has ended, which its limits bound. Returns the failure, which every rank that arrived
    /// gets too.
    pub(crate) fn join(self) -> Result<(), String> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err("the exchange panicked; the message is on stderr".to_owned()))
    }
}

type Handshake = (SocketAddr, Result<(Claim, Sender, Receiver), Failure>);

impl Hub {
    /// Listens at `place` (HOST:PORT). If this machine has no such address, as behind NAT, listens at all of its
    /// addresses: a rendezvous is the address at which others reach it. A pair's listener names an address of its own.
    pub(crate) fn bind(
        place: &str,
        token: Token,
        of: u32,
        party: Party,
        limits: Limits,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| {
            let who = if party == Party::Pair { "put --listen" } else { "rank 0" };
            let at_limit = advice(&error);
            format!("{who} cannot listen at {place}: {error}{at_limit}; {}", party.elsewhere())
        };
        let addresses: Vec<SocketAddr> = place.to_socket_addrs().map_err(failed)?.collect();
        let listener =
            TcpListener::bind(&addresses[..]).or_else(|error| match (error.kind(), addresses.first()) {
                (io::ErrorKind::AddrNotAvailable, Some(first)) if party == Party::Ranks => {
                    TcpListener::bind((Ipv4Addr::UNSPECIFIED, first.port()))
                }
                _ => Err(error),
            });
        Ok(Self { listener: listener.map_err(failed)?, token, of, party, limits, refusal: None })
    }

    /// Where a rank in this network namespace reaches the hub.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let mut address = self.listener.local_addr()?;
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        Ok(address)
    }

    /// Reports to each other rank why rank 0 does not take part, until all of them have arrived or the time to arrive
    /// is over: they would look for a hub until their own wait is over, and not learn the reason.
    pub(crate) fn refuse(self, why: String) -> io::Result<()> {
        let refusing = Self { refusal: Some(why), ..self };
        // It ends with the refusal, or with a rank that contradicts the others: the job fails either way.
        let _ = refusing.serve()?.join();
        Ok(())
    }

    /// Serves the ranks in a thread until they leave or fail.
    pub(crate) fn serve(self) -> io::Result<Serving> {
        self.listener.set_nonblocking(true)?;
        let stop = Arc::new(OnceLock::new());
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            let mut ranks = BTreeMap::new();
            let served = self.await_ranks(&mut ranks, &stopped).and_then(|()| self.pass_messages(&mut ranks));
            if let (Err(why), None) = (&served, &self.refusal) {
                for arrived in ranks.values_mut() {
                    // A rank that cannot be reached finds out when its connection closes.
                    let _ = arrived.sender.send(Kind::Failed, why.as_bytes(), Deadline::after(REPORT));
                }
            }
            ranks.values().for_each(|arrived| arrived.sender.close());
            served
        })?;
        Ok(Serving { thread, stop })
    }

    /// Accepts connections until every rank has arrived.
    fn await_ranks(
        &self,
        ranks: &mut BTreeMap<u32, Arrived>,
        stopped: &OnceLock<Stop>,
    ) -> Result<(), String> {
        let deadline = Deadline::after(self.limits.arrival);
        let (report, reports) = mpsc::channel::<Handshake>();
        let (mut pending, mut refused) = (0, Vec::new());
        loop {
            while let Ok((from, shaken)) = reports.try_recv() {
                pending -= 1;
                match shaken {
                    Ok((claim, sender, receiver)) => {
                        let arrived = Arrived { from, sender, receiver: Some(receiver) };
                        self.admit(ranks, claim, arrived)?;
                    }
                    Err(failure) => refused.push(format!("{from}: {failure}")),
                }
            }
            if ranks.len() == self.of as usize - usize::from(self.refusal.is_some()) {
                return self.refusal.clone().map_or(Ok(()), Err);
            }
            if let Some(Stop::Because(why)) = stopped.get() {
                return Err(why.clone());
            }
            if deadline.left().is_none() {
                return Err(self.refusal.clone().unwrap_or_else(|| self.missing(ranks, &refused)));
            }
            match self.listener.accept() {
                Ok((stream, from)) if pending < HANDSHAKES => {
                    pending += 1;
                    self.start_handshake(stream, from, deadline, &report);
                }
                Ok((_, from)) => refused.push(format!("{from}: {HANDSHAKES} handshakes were in progress")),
                #[cfg(test)]
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && pending == 0
                        && matches!(stopped.get(), Some(Stop::Late)) =>
                {
                    return Err(self.missing(ranks, &refused));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                // The other side closed its connection before it was accepted, or descriptors are short for now.
                Err(error) => {
                    refused.push(Failure::Io(error).to_string());
                    std::thread::sleep(PAUSE);
                }
            }
            // The texts of a flood would fill memory.
            refused.truncate(1 << 10);
        }
    }

    /// Runs the handshake of a connection in a thread, or in this one if the limit of threads is reached: a hub that
    /// ended would leave ranks to look for it until their wait is over.
    fn start_handshake(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        deadline: Deadline,
        report: &mpsc::Sender<Handshake>,
    ) {
        let deadline = Deadline::after(HANDSHAKE).min(deadline);
        let spare = stream.try_clone();
        let handshake = |stream: TcpStream| {
            let (token, report) = (self.token.clone(), report.clone());
            move || {
                let shaken = stream.set_nonblocking(false).map_err(Failure::from);
                let shaken = shaken.and_then(|()| channel::accept(stream, &token, deadline));
                // The hub has ended if nobody receives it.
                let _ = report.send((from, shaken));
            }
        };
        if let Err(error) = std::thread::Builder::new().spawn(handshake(stream)) {
            match spare {
                Ok(stream) => handshake(stream)(),
                Err(_) => _ = report.send((from, Err(error.into()))),
            }
        }
    }

    /// Adds a rank that proved the token.
    fn admit(
        &self,
        ranks: &mut BTreeMap<u32, Arrived>,
        claim: Claim,
        arrived: Arrived,
    ) -> Result<(), String> {
        let (Claim { rank, of }, from, expected) = (claim, arrived.from, self.of);
        let problem = if of != expected {
            Some(format!(
                "rank {rank} ({from}) was started for {of} ranks, and rank 0 for {expected}; start all with one number"
            ))
        } else if rank >= expected {
            Some(format!(
                "{from} has the number {rank}, but the {expected} ranks count from 0; correct --rank"
            ))
        } else {
            ranks.get(&rank).map(|first| {
                format!("two ranks have the number {rank}: {} and {from}; give each its own", first.from)
            })
        };
        match problem {
            None => {
                let arrived = ranks.entry(rank).or_insert(arrived);
                if let Some(why) = &self.refusal {
                    let _ = arrived.sender.send(Kind::Failed, why.as_bytes(), Deadline::after(REPORT));
                }
                Ok(())
            }
            Some(why) => {
                let mut sender = arrived.sender;
                // Others are told when the exchange ends.
                let _ = sender.send(Kind::Failed, why.as_bytes(), Deadline::after(REPORT));
                Err(why)
            }
        }
    }

    fn missing(&self, ranks: &BTreeMap<u32, Arrived>, refused: &[String]) -> String {
        let missing: Vec<u32> = (0..self.of).filter(|rank| !ranks.contains_key(rank)).collect();
        let seconds = self.limits.arrival.as_secs_f64();
        let refusals = match refused {
            [] => String::new(),
            some => {
                let more = if some.len() > NAMED { "; and more" } else { "" };
                format!("; refused connections: {}{more}", some[..some.len().min(NAMED)].join("; "))
            }
        };
        format!(
            "{} did not arrive within {seconds} s: {}{refusals}",
            if self.party == Party::Pair { "the sender".to_owned() } else { names(&missing) },
            self.party.start_ranks()
        )
    }

    /// Collects one message of each rank, passes all of them on, and so on until all ranks leave.
    fn pass_messages(&self, ranks: &mut BTreeMap<u32, Arrived>) -> Result<(), String> {
        let (report, reports) = mpsc::channel();
        // A rank may send its message of the next step at its end, up to two steps after its last one. A rank whose
        // thread waits longer is missed by the step.
        let patience = self.limits.step.saturating_mul(2).saturating_add(HANDSHAKE);
        for (rank, arrived) in ranks.iter_mut() {
            let Some(mut receiver) = arrived.receiver.take() else { continue };
            let (rank, report) = (*rank, report.clone());
            let receive = move || {
                loop {
                    let received = receiver.receive(MOST_BYTES, Deadline::after(patience));
                    let last = !matches!(received, Ok((Kind::Message, _)));
                    if report.send((rank, received)).is_err() || last {
                        return;
                    }
                }
            };
            let started = std::thread::Builder::new().spawn(receive);
            started.map_err(|error| {
                format!("rank 0 cannot start a thread for rank {rank}: {error}; {}", super::RAISE_LIMIT)
            })?;
        }
        loop {
            let (mut messages, mut left) = (BTreeMap::new(), Vec::new());
            let deadline = Deadline::after(self.limits.step);
            while messages.len() + left.len() < ranks.len() {
                let waited = deadline.left().ok_or(RecvTimeoutError::Timeout);
                match waited.and_then(|time| reports.recv_timeout(time)) {
                    Ok((rank, Ok((Kind::Message, bytes)))) => {
                        if messages.insert(rank, bytes).is_some() {
                            return Err(format!("rank {rank} sent two messages in one step of the exchange"));
                        }
                    }
                    Ok((rank, Ok(_))) => left.push(rank),
                    Ok((rank, Err(failure))) => {
                        return Err(format!("rank {rank} left the exchange before its end: {failure}"));
                    }
                    Err(_) => {
                        let is_silent = |rank: &u32| !messages.contains_key(rank) && !left.contains(rank);
                        let silent: Vec<u32> = ranks.keys().copied().filter(is_silent).collect();
                        let seconds = self.limits.step.as_secs_f64();
                        let names = names(&silent);
                        return Err(format!(
                            "{names} sent no message within {seconds} s; see the output of each, or use a longer --wait"
                        ));
                    }
                }
            }
            match (messages.is_empty(), left.first()) {
                (true, _) => return Ok(()),
                (false, Some(rank)) => {
                    return Err(format!("rank {rank} left while others were not done; see its output"));
                }
                (false, None) => {}
            }
            let table = join(&messages.into_values().collect::<Vec<_>>());
            for (rank, arrived) in ranks.iter_mut() {
                let sent = arrived.sender.send(Kind::Message, &table, Deadline::after(self.limits.step));
                sent.map_err(|failure| {
                    format!("rank {rank} does not take messages: {failure}; see its output")
                })?;
            }
        }
    }
}

/// The names of some ranks: `rank 3`, or `ranks 1, 2 and 3`.
fn names(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().take(16).map(u32::to_string).collect();
    match &all[..] {
        [one] => format!("rank {one}"),
        _ if ranks.len() > all.len() => {
            format!("ranks {} and {} more", all.join(", "), ranks.len() - all.len())
        }
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
        [] => "no rank".to_owned(),
    }
}
