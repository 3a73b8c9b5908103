//! `softefa compare`: compares entries that rdma-core wrote with this project's encoding of the same requests, byte for
//! byte. It runs no adapter.
//!
//! The capture has a line for each entry (`SOFTEFA_CAPTURE`). The requests are the file that `tests/verbs_requests.c`
//! writes: `Q QPN ENTRY_BYTES DEPTH` for each queue pair, and
//! `R QPN KIND ID AH DEST_QPN QKEY IMMEDIATE ADDRESS RKEY DATA` for each request, in the order of posting. `-` means
//! that a request has no such field. DATA is `inline HEX` or `ADDRESS:LENGTH:LKEY …`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use efa_gda_wire::{
    AddressHandle, EntrySize, InlineData, LocalKey, Operation, Peer, ProcessingHints, QueueKey,
    QueuePairNumber, RemoteKey, RemoteMemory, Request, RequestId, RequestIdWidth, Ring, Segment, Segments,
};

use crate::command::Failure;

/// The exit status if an entry differs.
const DIFFERENT: u8 = 3;

struct Queue {
    entry: EntrySize,
    ring: Ring,
    posted: u32,
}

pub(crate) fn main(arguments: Vec<OsString>) -> Result<u8, Failure> {
    let [capture, requests] = arguments.as_slice() else {
        return Err(Failure::Usage("compare: expected two files, CAPTURE and REQUESTS".into()));
    };
    let read = |path: &OsString| {
        fs::read_to_string(path).map_err(|error| Failure::io("cannot read", Path::new(path), &error))
    };
    let (capture, requests) = (read(capture)?, read(requests)?);
    let outcome = compare(&capture, &requests).map_err(Failure::Other)?;
    print(&outcome.text()).map_err(|error| Failure::Other(format!("cannot write to stdout: {error}")))?;
    Ok(if outcome.differences.is_empty() { 0 } else { DIFFERENT })
}

/// Writes to stdout. A reader that has read enough, as `head`, is no error.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

struct Outcome {
    compared: usize,
    differences: Vec<String>,
}

impl Outcome {
    fn text(&self) -> String {
        let Self { compared, differences } = self;
        if differences.is_empty() {
            return format!("compare: {compared} entries, all equal to this project's encoding\n");
        }
        let shown = differences.iter().take(20).map(|difference| format!("DIFFERENCE: {difference}\n"));
        let count = differences.len();
        let last = format!("compare: {compared} entries, {count} differ from this project's encoding\n");
        shown.chain([last]).collect()
    }
}

fn compare(capture: &str, requests: &str) -> Result<Outcome, String> {
    let mut written = HashMap::new();
    for line in capture.lines() {
        let mut words = line.split(' ');
        let (Some(_), Some(queue_pair), Some(counter), Some(bytes)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(format!("capture: a line is not \"ADAPTER QPN INDEX BYTES\": {line}"));
        };
        let key = (number::<u16>(queue_pair)?, number::<u32>(counter)?);
        if written.insert(key, bytes).is_some() {
            return Err(format!("capture: entry {} of queue pair {} occurs twice", key.1, key.0));
        }
    }
    let mut queues: HashMap<u16, Queue> = HashMap::new();
    let mut outcome = Outcome { compared: 0, differences: Vec::new() };
    for line in requests.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["Q", queue_pair, entry, depth] => {
                let entry = EntrySize::try_from(number::<u32>(entry)?).map_err(|error| error.to_string())?;
                let ring = Ring::new(number(depth)?).map_err(|error| error.to_string())?;
                queues.insert(number(queue_pair)?, Queue { entry, ring, posted: 0 });
            }
            ["R", queue_pair, rest @ ..] => {
                let queue_pair = number(queue_pair)?;
                let queue = queues.get_mut(&queue_pair).ok_or(format!(
                    "requests: no Q line precedes the first request of its queue pair: {line}"
                ))?;
                let counter = queue.posted;
                queue.posted += 1;
                let request = request(rest).map_err(|error| format!("requests: {error}: {line}"))?;
                let entry = request
                    .encode(queue.entry, queue.ring.phase(counter), RequestIdWidth::Bits64)
                    .map_err(|error| format!("requests: {error}: {line}"))?;
                let expected: String = entry.iter().map(|byte| format!("{byte:02x}")).collect();
                let captured = written.remove(&(queue_pair, counter)).unwrap_or("nothing");
                outcome.compared += 1;
                if captured != expected {
                    outcome.differences.push(format!("{line}\n  captured {captured}\n  expected {expected}"));
                }
            }
            _ => {
                return Err(format!(
                    "requests: a line starts with neither Q nor R, or has too few words: {line}"
                ));
            }
        }
    }
    if outcome.compared == 0 || !written.is_empty() {
        return Err(format!(
            "{} requests were compared, and {} captured entries have no request; expected at least one request, and \
             one for each entry",
            outcome.compared,
            written.len()
        ));
    }
    Ok(outcome)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number, or too large for its field"))
}

fn request(words: &[&str]) -> Result<Request, String> {
    let [kind, id, handle, queue_pair, key, immediate, address, rkey, data @ ..] = words else {
        return Err("the line has too few words".into());
    };
    let inline = match data {
        ["inline", hex] => Some(bytes(hex)?),
        _ => None,
    };
    let inline_data = |bytes: &Vec<u8>| InlineData::new(bytes).map_err(|error| error.to_string());
    let segments = |data: &[&str]| data.iter().map(|text| segment(text)).collect::<Result<Vec<_>, _>>();
    let remote = || -> Result<_, String> {
        Ok(RemoteMemory { address: number(address)?, key: RemoteKey::new(number(rkey)?) })
    };
    let local = || -> Result<_, String> {
        segments(data)?.first().copied().ok_or("the request has no segment".into())
    };
    let operation = match (*kind, &inline) {
        ("send", Some(data)) => Operation::SendInline(inline_data(data)?),
        ("send", None) => {
            Operation::Send(Segments::new(&segments(data)?).map_err(|error| error.to_string())?)
        }
        ("write", Some(data)) => Operation::WriteInline { remote: remote()?, data: inline_data(data)? },
        ("write", None) => Operation::Write { remote: remote()?, local: local()? },
        ("read", None) => Operation::Read { remote: remote()?, local: local()? },
        _ => {
            return Err(format!(
                "{kind} is not an operation for this data; expected send, write, or read (not inline)"
            ));
        }
    };
    Ok(Request {
        id: RequestId::new(number(id)?),
        peer: Peer {
            address_handle: AddressHandle::new(number(handle)?),
            queue_pair: QueuePairNumber::new(number(queue_pair)?),
            queue_key: QueueKey::new(number(key)?),
        },
        immediate: if *immediate == "-" { None } else { Some(number(immediate)?) },
        hints: ProcessingHints::NONE,
        operation,
    })
}

fn segment(text: &str) -> Result<Segment, String> {
    let mut parts = text.split(':');
    let (Some(address), Some(length), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(format!("{text} is not a segment, ADDRESS:LENGTH:LKEY"));
    };
    let key = LocalKey::new(number(key)?).map_err(|error| error.to_string())?;
    Ok(Segment { address: number(address)?, length: number(length)?, key })
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let text = std::str::from_utf8(pair).map_err(|error| error.to_string())?;
            u8::from_str_radix(text, 16).map_err(|_| format!("{text} is not a byte in hexadecimal"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: &str = "Q 5 64 16\nR 5 send 7 1 6 3 - - - inline 0a0b\n";

    fn encoded() -> String {
        let words = ["send", "7", "1", "6", "3", "-", "-", "-", "inline", "0a0b"];
        let ring = Ring::new(16).unwrap();
        let entry = request(&words).unwrap();
        let entry = entry.encode(EntrySize::B64, ring.phase(0), RequestIdWidth::Bits64).unwrap();
        entry.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn equal_bytes_are_no_difference() {
        let outcome = compare(&format!("0 5 0 {}\n", encoded()), REQUESTS).unwrap();
        assert_eq!((outcome.compared, outcome.differences.len()), (1, 0));
    }

    #[test]
    fn one_different_byte_is_a_difference() {
        let other = encoded().replacen("0a0b", "0a0c", 1);
        assert_eq!(compare(&format!("0 5 0 {other}\n"), REQUESTS).unwrap().differences.len(), 1);
    }

    #[test]
    fn a_captured_entry_without_a_request_is_an_error() {
        let capture = format!("0 5 0 {0}\n0 5 1 {0}\n", encoded());
        assert!(compare(&capture, REQUESTS).is_err());
    }
}
