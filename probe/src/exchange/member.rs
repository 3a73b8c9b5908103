//! A rank's side of the exchange.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::channel::{self, Claim, Failure, Kind, Receiver, Sender};
use super::token::Token;
use super::{Deadline, Limits, MOST_BYTES, Party, split};
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
    /// later than this rank.
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
        while deadline.left().is_some() {
            let attempt = Deadline::after(ATTEMPT).min(deadline);
            let joined = connect(hub, attempt).map_err(Failure::from).and_then(|stream| {
                channel::introduce(
                    stream,
                    token,
                    Claim { rank, of },
                    Deadline::after(HANDSHAKE).min(deadline),
                )
            });
            match joined {
                Ok((sender, receiver)) => return Ok(Self { of, limits, arriving: true, sender, receiver }),
                Err(Failure::Token) => {
                    return Err(format!(
                        "rank {rank} of {of} and the exchange at {hub} have different tokens; give all ranks of a job \
                         the same {} or --token-file",
                        super::token::VARIABLE
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

fn connect(hub: &str, deadline: Deadline) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in hub.to_socket_addrs()? {
        let Some(left) = deadline.left() else { break };
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
