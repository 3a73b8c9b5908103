//! Ranks that behave, and ranks that do not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::hub::{Hub, Serving};
use super::member::Member;
use super::token::Token;
use super::{Limits, Party, RAISE_LIMIT, advice, join, split};

/// Ample for ranks that arrive. Tests in which one does not arrive end the wait with `stop_as_late`.
const AMPLE: Limits = Limits { arrival: Duration::from_secs(60), step: Duration::from_secs(60) };

/// For waits that must not be waited for.
const NEVER: Limits = Limits { arrival: Duration::from_secs(24 * 3600), ..AMPLE };

fn token(seed: &str) -> Token {
    Token::new(&format!("the token of a test: {seed}")).unwrap()
}

fn serve(of: u32, limits: Limits) -> (String, Serving) {
    let hub = Hub::bind("127.0.0.1:0", token("right"), of, Party::Ranks, limits).unwrap();
    (hub.address().unwrap().to_string(), hub.serve().unwrap())
}

/// A rank that joins in a thread and shares `steps` messages.
fn rank(hub: &str, rank: u32, of: u32, steps: usize) -> JoinHandle<Result<Vec<Vec<u8>>, String>> {
    let hub = hub.to_owned();
    std::thread::spawn(move || {
        let mut member = Member::join(&hub, rank, of, Party::Ranks, &token("right"), AMPLE)?;
        let mut last = Vec::new();
        for step in 0..steps {
            last = member.share(format!("{rank}/{step}").as_bytes())?;
        }
        member.leave();
        Ok(last)
    })
}

fn joined(hub: &str, rank: u32, of: u32) -> Member {
    Member::join(hub, rank, of, Party::Ranks, &token("right"), AMPLE).unwrap()
}

fn texts(messages: Vec<Vec<u8>>) -> Vec<String> {
    messages.into_iter().map(|message| String::from_utf8(message).unwrap()).collect()
}

#[test]
fn only_a_limit_that_was_reached_is_advised_to_be_raised() {
    let text = |errno: nix::errno::Errno| advice(&std::io::Error::from(errno));
    assert_eq!(text(nix::errno::Errno::EAGAIN), format!("; {RAISE_LIMIT}"));
    assert!(text(nix::errno::Errno::EMFILE).contains("ulimit -n"));
    assert_eq!(text(nix::errno::Errno::ENOENT), "");
}

#[test]
fn every_rank_gets_the_messages_of_all_ranks_in_their_order() {
    let (hub, served) = serve(4, AMPLE);
    let ranks: Vec<_> = (0..4).map(|number| rank(&hub, number, 4, 3)).collect();
    for rank in ranks {
        assert_eq!(texts(rank.join().unwrap().unwrap()), ["0/2", "1/2", "2/2", "3/2"]);
    }
    assert_eq!(served.join(), Ok(()));
}

#[test]
fn a_rank_that_never_arrives_is_named_to_those_that_did() {
    let (hub, served) = serve(3, AMPLE);
    let ranks = [0, 2].map(|number| joined(&hub, number, 3));
    served.stop_as_late();
    let why = served.join().unwrap_err();
    assert!(why.starts_with("rank 1 did not arrive within 60 s"), "{why}");
    for mut rank in ranks {
        assert_eq!(rank.share(b"").unwrap_err(), why);
    }
}

#[test]
fn garbage_is_refused_and_named_and_the_others_go_on() {
    let (hub, served) = serve(1, AMPLE);
    let mut garbage = TcpStream::connect(&hub).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n").unwrap();
    // The hub closes the connection; what it sent before that is its greeting.
    garbage.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let closed = garbage.read_to_end(&mut Vec::new());
    assert!(closed.is_ok() || closed.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    assert_eq!(texts(rank(&hub, 0, 1, 1).join().unwrap().unwrap()), ["0/0"]);
    assert_eq!(served.join(), Ok(()));
}

#[test]
fn garbage_in_place_of_a_rank_is_named_when_the_rank_is_missed() {
    let (hub, served) = serve(1, AMPLE);
    let mut garbage = TcpStream::connect(&hub).unwrap();
    garbage.write_all(&[0; 4096]).unwrap();
    served.stop_as_late();
    let why = served.join().unwrap_err();
    assert!(why.contains("rank 0 did not arrive"), "{why}");
    assert!(why.contains("127.0.0.1:") && why.contains("does not speak the protocol"), "{why}");
}

#[test]
fn a_wrong_token_is_refused_at_once_and_named() {
    let (hub, served) = serve(2, AMPLE);
    let mut right = joined(&hub, 0, 2);
    let begun = Instant::now();
    let why = Member::join(&hub, 1, 2, Party::Ranks, &token("wrong"), AMPLE).unwrap_err();
    assert!(why.contains("different tokens") && begun.elapsed() < AMPLE.arrival, "{why}");
    served.stop_as_late();
    let why = served.join().unwrap_err();
    assert!(why.contains("rank 1 did not arrive") && why.contains("it has another token"), "{why}");
    assert_eq!(right.share(b"").unwrap_err(), why);
}

#[test]
fn a_rank_does_not_trust_a_hub_that_does_not_prove_the_token() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = listener.local_addr().unwrap().to_string();
    let imposter = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"efa-gda/ranks/1\n").unwrap();
        stream.write_all(&[7; 32]).unwrap();
        let mut hello = [0; 16 + 8 + 32 + 32];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(b"efa-gda/ranks/1\n").unwrap();
        stream.write_all(&[7; 32]).unwrap();
        hello
    });
    let why = Member::join(&hub, 0, 1, Party::Ranks, &token("right"), AMPLE).unwrap_err();
    assert!(why.contains("different tokens"), "{why}");
    let hello = imposter.join().unwrap();
    let secret = String::from(token("right"));
    assert!(!hello.windows(8).any(|sent| secret.as_bytes().windows(8).any(|part| part == sent)));
}

#[test]
fn another_program_at_the_address_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let why = Member::join(&hub, 1, 2, Party::Ranks, &token("right"), AMPLE).unwrap_err();
    assert!(why.contains("another program listens at"), "{why}");
    other.join().unwrap();
}

#[test]
fn rank_0_of_another_release_is_named_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"efa-gda/ranks/2\n").unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let why = Member::join(&hub, 1, 2, Party::Ranks, &token("right"), NEVER).unwrap_err();
    assert!(
        why.contains("another release of gda-probe") && why.contains("one release on all hosts"),
        "{why}"
    );
    other.join().unwrap();
    // The hub names a rank of another release when it misses the rank.
    let (hub, served) = serve(1, AMPLE);
    let mut newer = TcpStream::connect(&hub).unwrap();
    newer.write_all(b"efa-gda/ranks/2\n").unwrap();
    served.stop_as_late();
    let why = served.join().unwrap_err();
    assert!(why.contains("127.0.0.1:") && why.contains("another release of gda-probe"), "{why}");
}

#[test]
fn a_place_to_which_there_is_no_way_is_refused_at_once() {
    // A port that is none, and an address that only a server can use. Ranks that tried again would never return.
    for hub in ["127.0.0.1:70000", "127.0.0.1", "255.255.255.255:9"] {
        let why = Member::join(hub, 1, 2, Party::Ranks, &token("right"), NEVER).unwrap_err();
        assert!(why.starts_with(&format!("rank 1 of 2 cannot reach {hub}: ")), "{why}");
    }
}

#[test]
fn a_rank_waits_for_rank_0_that_starts_later() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let early = rank(&place, 0, 1, 1);
    let hub = Hub::bind(&place, token("right"), 1, Party::Ranks, AMPLE).unwrap();
    let served = hub.serve().unwrap();
    assert_eq!(texts(early.join().unwrap().unwrap()), ["0/0"]);
    assert_eq!(served.join(), Ok(()));
}

#[test]
fn a_slow_connection_holds_up_nobody() {
    let (hub, served) = serve(2, AMPLE);
    // It sends a part of its greeting and no more, and stays open.
    let mut slow = TcpStream::connect(&hub).unwrap();
    slow.write_all(b"efa-gda/").unwrap();
    let ranks = [0, 1].map(|number| rank(&hub, number, 2, 1));
    for rank in ranks {
        assert_eq!(texts(rank.join().unwrap().unwrap()), ["0/0", "1/0"]);
    }
    assert_eq!(served.join(), Ok(()));
    drop(slow);
}

#[test]
fn a_rank_that_is_silent_in_a_step_is_named_and_one_that_left_is_not() {
    let (hub, served) = serve(3, Limits { step: Duration::from_secs(4), ..AMPLE });
    // These send before the step, and so its limit, begins with the arrival of the last rank.
    joined(&hub, 2, 3).leave();
    let mut quick = joined(&hub, 0, 3);
    let quick = std::thread::spawn(move || quick.share(b"0/0"));
    let silent = joined(&hub, 1, 3);
    let why = served.join().unwrap_err();
    assert!(why.starts_with("rank 1 sent no message within 4 s"), "{why}");
    assert_eq!(quick.join().unwrap().unwrap_err(), why);
    drop(silent);
}

#[test]
fn a_rank_that_dies_ends_the_exchange_for_the_others() {
    let (hub, served) = serve(2, AMPLE);
    let other = rank(&hub, 0, 2, 2);
    let mut dying = joined(&hub, 1, 2);
    dying.share(b"1/0").unwrap();
    drop(dying);
    let why = served.join().unwrap_err();
    assert!(why.starts_with("rank 1 left the exchange before its end"), "{why}");
    assert_eq!(other.join().unwrap().unwrap_err(), why);
}

#[test]
fn a_wrong_number_of_ranks_ends_the_job_for_all() {
    let (hub, served) = serve(3, AMPLE);
    let mut right = joined(&hub, 0, 3);
    let wrong = rank(&hub, 1, 4, 1);
    let why = served.join().unwrap_err();
    assert!(why.contains("was started for 4 ranks, and rank 0 for 3"), "{why}");
    assert_eq!(wrong.join().unwrap().unwrap_err(), why);
    assert_eq!(right.share(b"0/0").unwrap_err(), why);
}

#[test]
fn two_ranks_with_one_number_end_the_job_for_all() {
    let (hub, served) = serve(3, AMPLE);
    let mut first = joined(&hub, 1, 3);
    let second = rank(&hub, 1, 3, 1);
    let why = served.join().unwrap_err();
    assert!(why.starts_with("two ranks have the number 1: 127.0.0.1:"), "{why}");
    assert_eq!(second.join().unwrap().unwrap_err(), why);
    assert_eq!(first.share(b"1/0").unwrap_err(), why);
}

#[test]
fn a_number_beyond_the_ranks_ends_the_job() {
    let (hub, served) = serve(2, AMPLE);
    let beyond = rank(&hub, 2, 2, 1);
    let why = served.join().unwrap_err();
    assert!(why.contains("has the number 2, but the 2 ranks count from 0"), "{why}");
    assert_eq!(beyond.join().unwrap().unwrap_err(), why);
}

#[test]
fn the_end_of_rank_0_ends_the_wait_for_others() {
    let (hub, served) = serve(2, AMPLE);
    let mut arrived = joined(&hub, 1, 2);
    served.stop_waiting("the process of rank 0 ended".to_owned());
    let why = served.join().unwrap_err();
    assert!(why.starts_with("the process of rank 0 ended"), "{why}");
    assert_eq!(arrived.share(b"1/0").unwrap_err(), why);
}

#[test]
fn ranks_that_arrive_at_a_rank_0_that_cannot_start_learn_why() {
    let hub = Hub::bind("127.0.0.1:0", token("right"), 3, Party::Ranks, NEVER).unwrap();
    let place = hub.address().unwrap().to_string();
    let refusing = std::thread::spawn(move || hub.refuse("rank 0 cannot start: ENV-005".to_owned()));
    for number in [2, 1] {
        // One after the other: each is told at once.
        assert_eq!(rank(&place, number, 3, 1).join().unwrap().unwrap_err(), "rank 0 cannot start: ENV-005");
    }
    refusing.join().unwrap().unwrap();
    let soon = Limits { arrival: Duration::from_millis(100), ..AMPLE };
    let hub = Hub::bind("127.0.0.1:0", token("right"), 2, Party::Ranks, soon).unwrap();
    hub.refuse("nobody arrives".to_owned()).unwrap();
}

#[test]
fn tables_of_another_length_are_no_tables() {
    let all = join(&[b"one".to_vec(), Vec::new()]);
    assert_eq!(split(&all, 2), Some(vec![b"one".to_vec(), Vec::new()]));
    assert_eq!(split(&all, 1), None, "bytes are left");
    assert_eq!(split(&all, 3), None, "a message is missing");
    assert_eq!(split(&[255, 255, 255, 255, 0], 1), None, "longer than the table");
}

#[test]
fn a_short_token_is_refused() {
    assert!(Token::new("  0123456789abcde \n").unwrap_err().contains("15 bytes"));
    assert_eq!(String::from(Token::new(" 0123456789abcdef\n").unwrap()), "0123456789abcdef");
}
