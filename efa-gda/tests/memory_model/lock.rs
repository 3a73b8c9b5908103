//! Early return from the ticket lock (kernels/include/efa_gda/combine.h): lock owners and posters, with their
//! branches.
//!
//! Loads and stores of serving are relaxed here: early return does not need the pairs of the hand-over (A1), which
//! pairs.rs tests.

use super::holds_only_with;
use super::program::{Notes, Program, Thread, assume};
use super::ptx::{Order, Place, Scope};

const PASSED: u64 = 0;
const CLOSING: u64 = 1;
const PASSED_MUST_COMBINE: u64 = 2;
const OPEN: u64 = 3;
const ENTRY: u64 = 7;
/// Of the calls that are posted while the group of ticket 0 combines. `END` is one past them.
const FIRST: u64 = 1;
const END: u64 = 3;

fn flag(ticket: u64) -> String {
    format!("flag {ticket}")
}
fn entry(ticket: u64) -> String {
    format!("entry {ticket}")
}
fn store_serving(t: &mut Thread<'_>, ticket: u64, state: u64) {
    t.store_relaxed("serving", ticket << 2 | state);
}
fn note(t: &mut Thread<'_>, keys: [&'static str; 2], ticket: u64, value: u64) {
    t.note(keys[(ticket - FIRST) as usize], value);
}
fn serve(t: &mut Thread<'_>, ticket: u64, entry: u64) {
    note(t, ["served 1", "served 2"], ticket, entry);
}

/// The lock owner combines from ticket `at` on. After how many rounds it stores Closing is left open.
fn combine(t: &mut Thread<'_>, mut at: u64) {
    let mut end = None;
    store_serving(t, at, OPEN);
    loop {
        let found = at < END && t.load_relaxed(&flag(at)) != 0;
        if found {
            t.fence("fence after the scan (A2)", Order::Acquire, Scope::Gpu);
            let copied = t.load_weak(&entry(at));
            serve(t, at, copied);
            at += 1;
            store_serving(t, at, if end.is_some() { CLOSING } else { OPEN });
        }
        let mut may_pass = end.is_some() && !found;
        if end.is_none() && (!found || t.choose(2) == 1) {
            may_pass = !found && !t.has("scan after F2");
            store_serving(t, at, CLOSING);
            t.fence_sc("F2");
            end = Some(t.load_relaxed("reserve.word"));
        }
        if end.is_some_and(|end| at >= end) {
            return store_serving(t, at, PASSED);
        }
        if may_pass {
            return store_serving(t, at, PASSED_MUST_COMBINE);
        }
    }
}

/// A group owns the lock that it received in `state`. Whether it saw other tickets is left open.
fn own(t: &mut Thread<'_>, ticket: u64, state: u64, published: bool) {
    let sees_others = t.choose(2) == 1;
    if sees_others {
        store_serving(t, ticket, OPEN);
    }
    let placed = if published { t.load_weak(&entry(ticket)) } else { ENTRY };
    serve(t, ticket, placed);
    if sees_others || (state == PASSED_MUST_COMBINE && t.has("combining after PassedMustCombine")) {
        combine(t, ticket + 1);
    } else {
        store_serving(t, ticket + 1, PASSED);
    }
}

/// A group waits until it owns the lock or its call is served; if it has published, it may return early.
fn wait(t: &mut Thread<'_>, ticket: u64, published: bool) -> Option<()> {
    let seen = t.load_relaxed("serving");
    let (at, state) = (seen >> 2, seen & 3);
    if at == ticket && (state == PASSED || state == PASSED_MUST_COMBINE) {
        own(t, ticket, state, published);
    } else if at <= ticket && published && state == OPEN {
        note(t, ["early 1", "early 2"], ticket, 1);
    } else if at <= ticket {
        // If the value that it saw is the last, nothing ends its wait.
        assume(t.load_last("serving") == seen)?;
        note(t, ["stuck 1", "stuck 2"], ticket, 1);
    }
    Some(())
}

/// A group posts a call of one entry. It publishes, unless it receives the lock first.
fn post(t: &mut Thread<'_>, ticket: u64) -> Option<()> {
    t.replace("reserve.word", Order::Relaxed, ticket, ticket + 1)?;
    let publishes = t.choose(2) == 1;
    if publishes {
        t.store_weak(&entry(ticket), ENTRY);
        t.fence("fence before the flag (A2)", Order::Release, Scope::Gpu);
        t.store_relaxed(&flag(ticket), 1);
        t.fence_sc("F1");
    }
    wait(t, ticket, publishes)
}

/// A group with an empty ticket has nothing to publish.
fn flush(t: &mut Thread<'_>, ticket: u64) -> Option<()> {
    t.replace("reserve.word", Order::Relaxed, ticket, ticket + 1)?;
    serve(t, ticket, ENTRY);
    wait(t, ticket, false)
}

fn program(of_ticket_1: fn(&mut Thread<'_>, u64) -> Option<()>) -> Program {
    let gpu = Place::Gpu(0);
    let owner = |t: &mut Thread<'_>| {
        combine(t, FIRST);
        Some(())
    };
    Program {
        threads: vec![
            (gpu, Box::new(owner)),
            (gpu, Box::new(move |t| of_ticket_1(t, 1))),
            (gpu, Box::new(|t| post(t, 2))),
        ],
        initial: vec![("reserve.word", FIRST)],
    }
}

/// A call is not served, or an older entry is in its place, or a group waits for ever.
fn loses_a_call(notes: &Notes) -> bool {
    ["served 1", "served 2"].iter().any(|key| notes.get(key) != Some(&ENTRY))
        || ["stuck 1", "stuck 2"].iter().any(|key| notes.contains_key(key))
}

const ELEMENTS: [&str; 8] = [
    "F1",
    "F1 as sc",
    "F2",
    "F2 as sc",
    "scan after F2",
    "combining after PassedMustCombine",
    "fence before the flag (A2)",
    "fence after the scan (A2)",
];

/// Two groups post while a lock owner combines. Either may publish, return early, receive the lock and combine in turn.
#[test]
fn each_call_is_served_also_if_it_returned_early() {
    holds_only_with(&program(post), loses_a_call, |_| true, &ELEMENTS);
}

/// One of the two groups has an empty ticket, past which no lock owner can combine.
#[test]
fn each_call_is_served_also_behind_an_empty_ticket() {
    holds_only_with(&program(flush), loses_a_call, |_| true, &ELEMENTS);
}

/// The two tests above are not about nothing: both calls may return early.
#[test]
fn two_calls_return_early() {
    let both = |notes: &Notes| notes.contains_key("early 1") && notes.contains_key("early 2");
    assert!(program(post).find("", &mut Default::default(), both, |_| true).is_some());
}
