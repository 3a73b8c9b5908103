//! What the words that kernels keep in a queue say: indexes, requests in flight, and whether the queue can be closed.

use efa_gda_sys::device::{EFA_GDA_TURN_BITS, efa_gda_queue};

use crate::error::{Error, Result};

/// Returns how far the doorbell producer index is ahead of the completed index (both modulo 2^32), or 0 if it is
/// behind. That is the number of requests in flight.
pub fn outstanding(doorbell_index: u32, completed: u32) -> u32 {
    match doorbell_index.wrapping_sub(completed) {
        ahead if ahead < 1 << 31 => ahead,
        _ => 0,
    }
}

/// The bits of a turn's word that count entries that are not rung for.
const UNRUNG: u64 = (1 << EFA_GDA_TURN_BITS) - 1;

/// Returns the producer index of reserved slots, modulo 2^32. While a group owns the queue, `reserve.word` is 2^31 away
/// from it (`post.h`).
pub fn reserved(state: &efa_gda_queue) -> u32 {
    let (begun, reserved) = ((state.turn.word >> EFA_GDA_TURN_BITS) as u32, state.reserve.word as u32);
    if reserved ^ 1 << 31 == begun { begun } else { reserved }
}

/// Returns the producer index of the last doorbell that `turn.word` shows (`turns.h`), modulo 2^32.
pub fn doorbell_index(turn: u64) -> u32 {
    ((turn >> EFA_GDA_TURN_BITS) as u32).wrapping_sub((turn & UNRUNG) as u32)
}

/// Whether a group has a ticket whose turn has not ended, or owns the queue. If one does although no kernel runs, an
/// owner did not close its `Sender`, or a group of a poisoned queue failed with a ticket.
pub(crate) fn is_in_use(state: &efa_gda_queue) -> bool {
    state.reserve.word << EFA_GDA_TURN_BITS != state.turn.word & !UNRUNG
}

/// Returns the number of entries that have slots and whose doorbell was not rung. The queue must not be in use.
pub(crate) fn unrung_entries(state: &efa_gda_queue) -> u32 {
    (state.turn.word & UNRUNG) as u32
}

/// Refuses to close a queue of this state whose requests are not all known to be done.
pub(crate) fn refuse_unfinished(state: &efa_gda_queue, poisoned: bool) -> Result<()> {
    let in_flight = outstanding(doorbell_index(state.turn.word), state.completion.completed);
    let (why, hint) = if is_in_use(state) {
        let why = "a kernel that owned it returned without closing its Sender, or a group of a shared \
                   queue failed in its turn, so that what it posted is not known";
        (why.to_owned(), "destroy the queue (in C: efa_gda_queue_destroy), which flushes its requests")
    } else if in_flight != 0 {
        let why = format!("{in_flight} request(s) of it were rung and have not completed");
        let hint =
            "wait for them with quiet (in C: efa_gda_queue_wait), or destroy the queue, which flushes them";
        (
            why,
            if poisoned {
                "the queue is poisoned: destroy it (in C: efa_gda_queue_destroy), which flushes them"
            } else {
                hint
            },
        )
    } else if let entries @ 1.. = unrung_entries(state)
        && !poisoned
    {
        let why = format!("it has entries that were posted and never rung for ({entries})");
        (why, "quiet (in C: efa_gda_queue_wait) rings for them and waits; destroying the queue drops them")
    } else {
        return Ok(());
    };
    Err(Error::busy(format!("the queue was not closed, because {why}")).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use super::{doorbell_index, outstanding};

    #[test]
    fn requests_in_flight_are_counted_across_the_wrap() {
        assert_eq!((outstanding(3, u32::MAX), outstanding(7, 7), outstanding(9, 7)), (4, 0, 2));
    }

    #[test]
    fn the_last_doorbell_is_as_many_entries_before_the_turns_slot_as_are_not_rung_for() {
        let turn = |ticket: u64, unrung: u64| ticket << 12 | unrung;
        assert_eq!(
            (doorbell_index(turn(7 << 32 | 9, 4)), doorbell_index(turn(3, 4095))),
            (5, (3 - 4095_i32) as u32)
        );
    }

    #[test]
    fn nothing_is_in_flight_if_more_requests_completed_than_were_rung() {
        assert_eq!((outstanding(7, 8), outstanding(u32::MAX, 2)), (0, 0));
    }
}
