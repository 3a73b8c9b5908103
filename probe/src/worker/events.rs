//! The probe's end of a worker's stream: events, as far as a worker may send them. Libraries run in the worker and can
//! write anything into the stream, so what is read is bounded, and its text is made visible.

use std::io::{BufRead, Read as _};
use std::sync::mpsc::Sender;

use super::Event;
use crate::model::text::make_visible;

/// The most bytes of an event. The longest that a worker sends is the log of a compiler.
const MAX_EVENT: u64 = 1 << 20;
/// The most events of a worker: 800 adapters with 16 GPUs have fewer.
const MAX_EVENTS: usize = 1 << 20;
/// The most bytes of all events of a worker.
const MAX_BYTES: u64 = 256 << 20;

/// Reads events and passes them on until the stream ends, or the worker exceeds a bound. The receiver then finds that
/// the sender was dropped.
pub(crate) fn read(mut stream: impl BufRead, sender: &Sender<Event>) {
    let mut left = MAX_BYTES;
    for _ in 0..MAX_EVENTS {
        let mut line = Vec::new();
        let limit = MAX_EVENT.min(left);
        match (&mut stream).take(limit).read_until(b'\n', &mut line) {
            Ok(length) if length > 0 && line.ends_with(b"\n") => left -= length as u64,
            Ok(length) if length as u64 == limit => {
                tracing::error!(
                    limit,
                    "a worker process sent more than an event may have; it is not read further"
                );
                return;
            }
            _ => return,
        }
        match parse(&line) {
            Ok(event) => {
                if sender.send(event).is_err() {
                    return;
                }
            }
            Err(error) => {
                let line = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                tracing::warn!(?line, %error, "a line of the worker's output is not an event");
            }
        }
    }
    tracing::error!(limit = MAX_EVENTS, "a worker process sent too many events; it is not read further");
}

/// The event in a line.
pub(crate) fn parse(line: &[u8]) -> serde_json::Result<Event> {
    let mut value = serde_json::from_slice(line)?;
    make_visible(&mut value);
    serde_json::from_value(value)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn events(stream: impl BufRead) -> Vec<Event> {
        let (sender, receiver) = channel();
        read(stream, &sender);
        drop(sender);
        receiver.into_iter().collect()
    }

    #[test]
    fn the_text_of_an_event_is_visible() {
        let line = br#"{"loaded":"/lib\n[ pass ] PUT-001\u001b[2K"}"#;
        let all = events(&[line, &b"\n"[..]].concat()[..]);
        assert!(matches!(&all[..], [Event::Loaded(path)] if path == "/lib\\n[ pass ] PUT-001\\u{1b}[2K"));
    }

    #[test]
    fn a_line_without_end_and_lines_without_end_are_read_up_to_a_bound() {
        assert!(events(std::io::BufReader::new(std::io::repeat(b'x'))).is_empty());
        let repeated = std::iter::repeat_n(&b"\"repeated\"\n"[..], MAX_EVENTS + 10);
        assert_eq!(events(&repeated.collect::<Vec<_>>().concat()[..]).len(), MAX_EVENTS);
    }

    #[test]
    fn a_line_that_is_no_event_is_passed_over() {
        assert_eq!(events(&b"\xff\n{}\n\"done\"\n"[..]).len(), 1);
    }
}
