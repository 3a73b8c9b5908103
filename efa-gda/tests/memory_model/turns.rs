//! A shared queue by turns (kernels/include/efa_gda/turns.h): two groups that post one entry each, with their branches,
//! and the adapter.

use super::holds_only_with;
use super::program::{Notes, Program, Thread, assume};
use super::ptx::{Order, Place, Scope};

const ENTRY: u64 = 7;
/// The tickets are 0 and 1.
const END: u64 = 2;

/// `turn.word`: the ticket, and how many entries before it are not rung for.
fn turn(ticket: u64, unrung: u64) -> u64 {
    ticket << 2 | unrung
}
fn slot(index: u64) -> String {
    format!("slot {index}")
}

/// A group posts one entry. Whether it has the turn before its fence is left open.
fn post(t: &mut Thread<'_>, ticket: u64) -> Option<()> {
    t.replace("reserve.word", Order::Relaxed, ticket, ticket + 1)?;
    t.store_weak(&slot(ticket), ENTRY);
    let is_covered = t.choose(2) == 1;
    let acquire = |t: &mut Thread<'_>| t.load_acquire("acquire of the turn", "turn", Scope::Gpu);
    let before = if is_covered { acquire(t) } else { 0 };
    t.fence("fence of step 3", Order::Release, Scope::System);
    let seen = if is_covered { before } else { acquire(t) };
    // It waits until it has the turn.
    assume(seen >> 2 == ticket)?;
    let unrung = seen & 3;
    if t.load_relaxed("reserve.word") > ticket + 1 || !t.has("a later call, to leave the doorbell to") {
        t.note("left", ticket + 1);
        return t.replace("turn", Order::Relaxed, seen, turn(ticket + 1, unrung + 1));
    }
    // Also if no entry before is left: the adapter may read this doorbell and not the one before.
    if !is_covered {
        t.fence("second fence of step 4", Order::Release, Scope::System);
    }
    t.store_relaxed("doorbell", ticket + 1, Scope::System);
    t.note("rung", ticket + 1);
    t.fence("fence after the doorbell", Order::Release, Scope::System);
    t.replace("turn", Order::Relaxed, seen, turn(ticket + 1, 0))
}

/// Reads the doorbell twice, and the entries that the first value covers.
fn adapter(t: &mut Thread<'_>) -> Option<()> {
    let doorbell = t.load_acquire("", "doorbell", Scope::System);
    for index in 0..doorbell {
        if t.load_weak(&slot(index)) != ENTRY {
            t.note("an entry is missing", index);
        }
    }
    if t.load_acquire("", "doorbell", Scope::System) < doorbell {
        t.note("the doorbell goes back", doorbell);
    }
    Some(())
}

fn program() -> Program {
    let gpu = Place::Gpu(0);
    Program {
        threads: vec![
            (gpu, Box::new(|t| post(t, 0))),
            (gpu, Box::new(|t| post(t, 1))),
            (Place::Host, Box::new(adapter)),
        ],
        initial: vec![],
    }
}

/// An entry is not there when the adapter reads it, a doorbell goes back, or the last entry is never rung for.
fn breaks_a_rule(notes: &Notes) -> bool {
    ["an entry is missing", "the doorbell goes back"].iter().any(|key| notes.contains_key(key))
        || notes.get("rung") != Some(&END)
}

const ELEMENTS: [&str; 5] = [
    "acquire of the turn",
    "fence of step 3",
    "a later call, to leave the doorbell to",
    "second fence of step 4",
    "fence after the doorbell",
];

#[test]
fn two_groups_that_share_a_queue_ring_for_whole_entries_in_order() {
    holds_only_with(&program(), breaks_a_rule, |_| true, &ELEMENTS);
}

/// The test above is not about nothing: one group may ring for both.
#[test]
fn a_group_rings_for_an_entry_of_another() {
    let left = |notes: &Notes| notes.get("left") == Some(&1) && notes.get("rung") == Some(&END);
    assert!(program().find("", &mut Default::default(), left, |_| true).is_some());
}
