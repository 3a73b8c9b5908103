//! A connection whose ends have proved that they know the token: frames with a code each.
//!
//! The handshake, in bytes: the hub sends `GREETING` and its nonce; the rank sends `GREETING`, its number, the number
//! of ranks (u32, little-endian), its nonce, and its code; the hub sends `GREETING` and its code, or `REFUSAL`. A
//! frame is a length (u32, little-endian), a kind, that many bytes, and a code over direction, number of the frame,
//! kind and bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::Deadline;
use super::token::{self, BYTES, Token};

/// The first bytes of either side.
const GREETING: &[u8; 16] = b"efa-gda/ranks/1\n";
/// The part of the greeting before the protocol's version.
const PROTOCOL: &[u8] = b"efa-gda/ranks/";
/// The hub's bytes in place of its code, after a code of another token.
const REFUSAL: &[u8; 16] = b"efa-gda/refused\n";

/// Why a connection cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The other side closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// The other side sent too little, or read too little.
    #[error("it did not send its message in time")]
    TimedOut,
    /// The first bytes are not those of this protocol.
    #[error("it does not speak the protocol of this exchange")]
    Foreign,
    /// The first bytes are those of another version of this protocol.
    #[error("it has another release of gda-probe, whose exchange differs")]
    Release,
    /// The other side has another token.
    #[error("it has another token")]
    Token,
    /// A frame is longer than its bound, or its code is wrong.
    #[error("it sent a malformed message: {0}")]
    Malformed(&'static str),
    /// The kernel reported an error.
    #[error("{}{}", .0, super::advice(.0))]
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::WouldBlock | Kind::TimedOut => Self::TimedOut,
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof => {
                Self::Closed
            }
            _ => Self::Io(error),
        }
    }
}

/// Fills `bytes` until `deadline`, however slowly they come.
fn read(mut stream: &TcpStream, mut bytes: &mut [u8], deadline: Deadline) -> Result<(), Failure> {
    while !bytes.is_empty() {
        stream.set_read_timeout(Some(deadline.left().ok_or(Failure::TimedOut)?))?;
        match stream.read(bytes) {
            Ok(0) => return Err(Failure::Closed),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Checks the first bytes of the other side.
fn check_greeting(bytes: &[u8; GREETING.len()]) -> Result<(), Failure> {
    match bytes {
        GREETING => Ok(()),
        other if other.starts_with(PROTOCOL) => Err(Failure::Release),
        _ => Err(Failure::Foreign),
    }
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], deadline: Deadline) -> Result<(), Failure> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(deadline.left().ok_or(Failure::TimedOut)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(Failure::Closed),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The rank that a connection is for, as it proved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The rank's number.
    pub(crate) rank: u32,
    /// The number of ranks that it expects.
    pub(crate) of: u32,
}

impl Claim {
    fn bytes(self) -> [u8; 8] {
        (u64::from(self.of) << 32 | u64::from(self.rank)).to_le_bytes()
    }
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of a step.
    Message,
    /// The exchange has failed; the bytes are the reason.
    Failed,
    /// The rank is done.
    Leaves,
}

/// The end of a channel that sends.
#[derive(Debug)]
pub(crate) struct Sender {
    stream: TcpStream,
    key: [u8; BYTES],
    direction: u8,
    sent: u64,
}

/// The end of a channel that receives.
#[derive(Debug)]
pub(crate) struct Receiver {
    stream: TcpStream,
    key: [u8; BYTES],
    direction: u8,
    received: u64,
}

impl Sender {
    /// Sends a frame.
    pub(crate) fn send(&mut self, kind: Kind, bytes: &[u8], deadline: Deadline) -> Result<(), Failure> {
        let length = u32::try_from(bytes.len()).map_err(|_| Failure::Malformed("more than 4 GiB"))?;
        let head = [self.direction, kind as u8];
        let code = token::code(&self.key, &[&head, &self.sent.to_le_bytes(), bytes]);
        self.sent += 1;
        let frame = [&length.to_le_bytes()[..], &[kind as u8], bytes, &code].concat();
        write(&self.stream, &frame, deadline)
    }

    /// Closes both directions, which ends the receiver's wait.
    pub(crate) fn close(&self) {
        // An error means that the connection is closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Receiver {
    /// Receives a frame of at most `most` bytes.
    pub(crate) fn receive(&mut self, most: usize, deadline: Deadline) -> Result<(Kind, Vec<u8>), Failure> {
        let mut head = [0; 5];
        read(&self.stream, &mut head, deadline)?;
        let [a, b, c, d, kind] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > most {
            return Err(Failure::Malformed("it is longer than its bound"));
        }
        let mut bytes = vec![0; length + BYTES];
        read(&self.stream, &mut bytes, deadline)?;
        let proof = bytes.split_off(length);
        let parts: [&[u8]; 3] = [&[self.direction, kind], &self.received.to_le_bytes(), &bytes];
        if !token::proves(&self.key, &parts, &proof) {
            return Err(Failure::Malformed("its code is wrong"));
        }
        self.received += 1;
        let all = [Kind::Message, Kind::Failed, Kind::Leaves];
        let kind = all
            .into_iter()
            .find(|one| *one as u8 == kind)
            .ok_or(Failure::Malformed("its kind is unknown"))?;
        Ok((kind, bytes))
    }
}

/// Both ends of a channel on `stream`; `hub` says which side this is.
fn ends(stream: TcpStream, key: [u8; BYTES], hub: bool) -> Result<(Sender, Receiver), Failure> {
    let reading = stream.try_clone()?;
    let sender = Sender { stream, key, direction: hub.into(), sent: 0 };
    Ok((sender, Receiver { stream: reading, key, direction: (!hub).into(), received: 0 }))
}

/// The hub's side of a handshake: the rank proves first.
pub(crate) fn accept(
    stream: TcpStream,
    token: &Token,
    deadline: Deadline,
) -> Result<(Claim, Sender, Receiver), Failure> {
    stream.set_nodelay(true)?;
    let own = token::nonce().map_err(|error| Failure::Io(io::Error::other(error)))?;
    write(&stream, &[&GREETING[..], &own].concat(), deadline)?;
    let (mut greeting, mut claim, mut nonce, mut proof) =
        ([0; GREETING.len()], [0; 8], [0; BYTES], [0; BYTES]);
    read(&stream, &mut greeting, deadline)?;
    check_greeting(&greeting)?;
    for part in [&mut claim[..], &mut nonce, &mut proof] {
        read(&stream, part, deadline)?;
    }
    if !token.proves(&[b"rank", &own, &nonce, &claim], &proof) {
        // The rank learns why, so that it ends at once. That the hub refuses is no secret.
        let _ = write(&stream, REFUSAL, deadline);
        return Err(Failure::Token);
    }
    let code = token.code(&[b"hub", &own, &nonce, &claim]);
    write(&stream, &[&GREETING[..], &code].concat(), deadline)?;
    let key = token.code(&[b"messages", &own, &nonce, &claim]);
    let number = u64::from_le_bytes(claim);
    let (sender, receiver) = ends(stream, key, true)?;
    Ok((Claim { rank: number as u32, of: (number >> 32) as u32 }, sender, receiver))
}

/// The rank's side of a handshake.
pub(crate) fn introduce(
    stream: TcpStream,
    token: &Token,
    claim: Claim,
    deadline: Deadline,
) -> Result<(Sender, Receiver), Failure> {
    stream.set_nodelay(true)?;
    let (mut greeting, mut nonce, mut proof) = ([0; GREETING.len()], [0; BYTES], [0; BYTES]);
    read(&stream, &mut greeting, deadline)?;
    check_greeting(&greeting)?;
    read(&stream, &mut nonce, deadline)?;
    let (own, claim) = (token::nonce().map_err(|error| Failure::Io(io::Error::other(error)))?, claim.bytes());
    let code = token.code(&[b"rank", &nonce, &own, &claim]);
    write(&stream, &[&GREETING[..], &claim, &own, &code].concat(), deadline)?;
    read(&stream, &mut greeting, deadline)?;
    if greeting == *REFUSAL {
        return Err(Failure::Token);
    }
    read(&stream, &mut proof, deadline)?;
    if greeting != *GREETING || !token.proves(&[b"hub", &nonce, &own, &claim], &proof) {
        return Err(Failure::Token);
    }
    ends(stream, token.code(&[b"messages", &nonce, &own, &claim]), false)
}
