//! A rank's side of the exchange.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::channel::{self, Claim, Failure, Kind, Receiver, Sender};
use super::token::Token;
use super::{Deadline, Limits, MOST_BYTES, Party, advice, split};
use crate::model::text::visible;

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest attempt to connect: a lost packet must not cost the whole wait.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long the handshake on a connection may take, as at the hub.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// How much longer a rank waits than the hub, which names the rank that is missing.
const GRACE: Duration = Duration::from_secs(5);

/// The words of the error of a rank that never reached the hub.
pub(crate) const NOT_JOINED: &str = "could not join the exchange";

/// A rank that has arrived.
#[derive(Debug)]
pub(crate) struct Member {
    of: u32,
    limits: Limits,
    arriving: bool,
    sender: Sender,
    receiver: Receiver,
}

impl Member {
    /// Connects to the hub at `hub` (HOST:PORT), and tries until the ranks' time to arrive is over: the hub may start
    /// later than this rank. What no later start of the hub can heal is reported at once.
    pub(crate) fn join(
        hub: &str,
        rank: u32,
        of: u32,
        party: Party,
        token: &Token,
        limits: Limits,
    ) -> Result<Self, String> {
        let deadline = Deadline::after(limits.arrival);
        let late = |last: &str| {
            let seconds = limits.arrival.as_secs_f64();
            format!(
                "rank {rank} of {of} {NOT_JOINED} at {hub} within {seconds} s: {last}; {}",
                party.start_hub()
            )
        };
        let mut last = "no attempt was made".to_owned();
        while let Some(left) = deadline.left() {
            let attempt = Deadline::after(ATTEMPT).min(deadline);
            let handshake = Deadline::after(HANDSHAKE).min(deadline);
            let stream = match connect(hub, attempt) {
                Ok(stream) => stream,
                Err(error) if is_permanent(&error) => {
                    let todo = match advice(&error) {
                        none if none.is_empty() => format!("; {}", party.start_hub()),
                        at_limit => at_limit,
                    };
                    return Err(format!("rank {rank} of {of} cannot reach {hub}: {error}{todo}"));
                }
                Err(error) => {
                    last = described(&error);
                    std::thread::sleep(PAUSE.min(left));
                    continue;
                }
            };
            match channel::introduce(stream, token, Claim { rank, of }, handshake) {
                Ok((sender, receiver)) => return Ok(Self { of, limits, arriving: true, sender, receiver }),
                Err(Failure::Token) => {
                    return Err(format!(
                        "rank {rank} of {of} and the exchange at {hub} have different tokens; give all ranks of a job \
                         the same {} or --token-file",
                        super::token::VARIABLE
                    ));
                }
                Err(Failure::Release) => {
                    return Err(format!(
                        "rank 0 at {hub} has another release of gda-probe, whose exchange differs; install one release \
                         on all hosts of the job (gda-probe --version)"
                    ));
                }
                Err(Failure::Foreign) => {
                    return Err(format!(
                        "another program listens at {hub}, where rank 0 of {of} should; {}",
                        party.elsewhere()
                    ));
                }
                Err(failure) => last = failure.to_string(),
            }
            std::thread::sleep(PAUSE.min(deadline.left().unwrap_or_default()));
        }
        Err(late(&last))
    }

    /// Sends this rank's message of a step, and returns those of all ranks in their order.
    pub(crate) fn share(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        if message.len() > MOST_BYTES {
            return Err(format!("a message of {} bytes exceeds {MOST_BYTES}", message.len()));
        }
        // In the first step, ranks may still be missing.
        let arrival = if std::mem::take(&mut self.arriving) { self.limits.arrival } else { Duration::ZERO };
        let deadline = Deadline::after(arrival + self.limits.step + GRACE);
        let sent = self.sender.send(Kind::Message, message, deadline);
        let most = self.of as usize * (MOST_BYTES + 4);
        let received = self.receiver.receive(most, deadline);
        match (sent, received) {
            (_, Ok((Kind::Failed, why))) => Err(visible(&String::from_utf8_lossy(&why))),
            (Err(failure), _) | (_, Err(failure)) => Err(format!("the exchange at rank 0 ended: {failure}")),
            (_, Ok((Kind::Leaves, _))) => Err("the exchange at rank 0 ended early".to_owned()),
            (_, Ok((Kind::Message, all))) => {
                split(&all, self.of).ok_or_else(|| "rank 0 sent a malformed table of messages".to_owned())
            }
        }
    }

    /// Leaves the exchange, so that the end of the connection is no failure.
    pub(crate) fn leave(mut self) {
        // The hub reports a rank that it does not hear from.
        let _ = self.sender.send(Kind::Leaves, &[], Deadline::after(GRACE));
    }
}

/// Connects to the first address of `hub` that accepts. Of several errors, returns one that can heal.
fn connect(hub: &str, deadline: Deadline) -> io::Result<TcpStream> {
    let mut last: Option<io::Error> = None;
    for address in hub.to_socket_addrs()? {
        let Some(left) = deadline.left() else { break };
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) if last.as_ref().is_none_or(is_permanent) => last = Some(error),
            Err(_) => {}
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// Whether no later start of rank 0 heals the error: the place is none, this host has no way to it, or this process has
/// no descriptor for it. A name that
/// does not resolve can heal, because clusters add the names of pods when they start; so can a host that is silent.
fn is_permanent(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::InvalidInput | Kind::PermissionDenied | Kind::AddrNotAvailable | Kind::NetworkUnreachable
    ) || matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EINVAL | libc::EMFILE))
}

/// An error that can heal, for people.
fn described(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => {
            "nothing answers: the host is not up, or a firewall or security group drops the connection"
                .to_owned()
        }
        io::ErrorKind::ConnectionRefused => format!("{error}: nothing listens there"),
        _ => error.to_string(),
    }
}
