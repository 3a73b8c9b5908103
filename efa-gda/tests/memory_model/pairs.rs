//! The pairs of the device library (kernels/include/efa_gda/*.h), each as a litmus test. A line is one thread, or one
//! lane of a group. The loads state the values of the bad outcome.

use super::ptx::Graph;
use super::{never, never_of_shape};

macro_rules! never {
    ($($(#[$doc:meta])* $name:ident: $text:expr;)*) => {
        $($(#[$doc])* #[test] fn $name() { never($text) })*
    };
}

never! {
    /// Another lane than the leader has written an entry, and the group has left the doorbell to a later call.
    t1_a_doorbell_covers_the_entries_of_the_calls_before:
        "poster's lane 1:  st.weak slot 7; bar @ sync before the fence
         poster's leader:  bar @ sync before the fence; fence.release.sys @ fence of step 3; cas.relaxed turn 0 1
         next leader:      ld.acquire turn 1 @ acquire of the turn; fence.release.sys @ second fence of step 4; \
                           st.relaxed.sys doorbell 2
         adapter:          ld.acquire.sys doorbell 2; ld.weak slot 0";

    /// The group between has fenced before it had the turn, and left the doorbell as well. Its exchange passes the first
    /// release on.
    t1_a_doorbell_covers_entries_of_turns_that_ended_without_a_fence_of_their_own:
        "first:    st.weak slot 7; fence.release.sys @ fence of step 3; cas.relaxed turn 0 1
         second:   cas.relaxed turn 1 2
         third:    ld.acquire turn 2 @ acquire of the turn; fence.release.sys @ second fence of step 4; \
                   st.relaxed.sys doorbell 3
         adapter:  ld.acquire.sys doorbell 3; ld.weak slot 0";

    t3_doorbells_ascend:
        "first:    st.relaxed.sys doorbell 1; fence.release.sys @ fence after the doorbell; cas.relaxed turn 0 1
         second:   cas.relaxed turn 1 2
         third:    ld.acquire turn 2 @ acquire of the turn; st.relaxed.sys doorbell 3
         adapter:  ld.relaxed.sys doorbell 3; ld.relaxed.sys doorbell 1";

    the_adapter_receives_an_entry_before_its_doorbell:
        "lane 1:   st.weak slot 7; bar @ sync of the ring
         leader:   bar @ sync of the ring; fence.release.sys @ fence of the ring; st.relaxed.sys doorbell 1
         adapter:  ld.acquire.sys doorbell 1; ld.weak slot 0";

    b1_a_completions_body_is_not_older_than_its_phase:
        "adapter:  st.weak body 7; st.release.sys head 1
         reader:   ld.relaxed.sys head 1; fence.acquire.sys @ fence after the head; ld.relaxed.sys body 0";

    /// Another lane of the reader than its leader has loaded the completion.
    b2_the_adapters_data_is_visible_once_its_request_is_counted:
        "adapter:          st.weak buffer 7; st.release.sys head 1
         reader's lane 1:  ld.acquire.sys head 1 @ acquire of the head; bar @ sync of the poll
         reader's leader:  bar @ sync of the poll; fence.release @ fence of B2; cas.relaxed completed 0 1
         group's leader:  ld.acquire completed 1 @ acquire of completed; bar @ sync after the wait
         group's lane 1:  bar @ sync after the wait; ld.weak buffer 0";

    b2_the_adapter_has_read_a_slot_before_it_is_written_again:
        "adapter:          ld.weak slot 2; st.release.sys head 1
         reader's lane 1:  ld.acquire.sys head 1 @ acquire of the head; bar @ sync of the poll
         reader's leader:  bar @ sync of the poll; fence.release @ fence of B2; cas.relaxed completed 0 1
         group's leader:  ld.acquire completed 1 @ acquire of completed; bar @ sync after the wait
         group's lane 1:  bar @ sync after the wait; st.weak slot 2";

    /// A reader of one thread.
    b2_the_adapter_has_read_a_slot_whose_completion_one_thread_read:
        "adapter:  ld.weak slot 2; st.release.sys head 1
         reader:   ld.relaxed.sys head 1; fence.acq_rel.sys @ fence of B2; st.relaxed completed 1
         group:    ld.acquire completed 1 @ acquire of completed; st.weak slot 2";

    /// Counters that never wrap: `completed` is not used, and quiet() itself fences (post.h).
    b2_the_adapters_data_is_visible_after_quiet_on_counters_that_never_wrap:
        "adapter:  st.weak buffer 7; st.release.sys success 1
         leader:   ld.relaxed.sys success 1; fence.acquire.sys @ fence of quiet(); bar @ sync after the wait
         lane 1:   bar @ sync after the wait; ld.weak buffer 0";

    b3_the_receiver_sees_the_copy:
        "reader:    st.relaxed entry 1; st.release inboxed 1 @ release of inboxed
         receiver:  ld.acquire inboxed 1 @ acquire of inboxed; ld.relaxed entry 0";

    b3_an_inbox_entry_is_written_after_it_was_taken:
        "receiver:  ld.relaxed entry 2; st.release taken 1 @ release of taken
         reader:    ld.acquire taken 1 @ acquire of taken; st.relaxed entry 2";

    /// With counters. The poller's load of error.count needs no acquire of its own, because the fence of B2 follows it.
    b4_a_counted_failure_has_its_report:
        "reader:  st.relaxed report 7; fence.release @ fence of B4; cas.relaxed error.count 0 1
         poller:  ld.relaxed error.count 1; fence.acq_rel.sys @ fence of B2; cas.relaxed completed 0 1
         group:   ld.acquire completed 1 @ acquire of completed; ld.relaxed error.count 1; ld.relaxed report 0";

    b4_a_counted_failure_is_in_error_count:
        "reader:  cas.relaxed error.count 0 1
         poller:  ld.relaxed error.count 1; fence.release.sys @ fence of B2; cas.relaxed completed 0 1
         group:   ld.acquire completed 1 @ acquire of completed; ld.relaxed error.count 0";

    /// The adapter counts an error before it counts requests that ended later. A poller that sees those sees the error.
    b5_counters_error_is_not_older_than_counters_success:
        "adapter:  st.relaxed.sys error 1; st.release.sys success 1
         poller:   ld.relaxed.sys success 1; fence.acquire.sys @ fence of B5; ld.relaxed.sys error 0";

    b6_a_lane_finds_no_older_completion_than_the_reader_before:
        "adapter:         st.relaxed.sys entry 1; st.relaxed.sys entry 2
         first reader:    ld.relaxed.sys entry 2; fence.release @ fence of B2; cas.relaxed lock 0 1
         second reader:   cas.relaxed lock 1 2; cas.relaxed lock 2 3
         third's leader:  cas.acquire lock 3 4 @ acquire of the lock; bar @ sync after the acquire
         third's lane 1:  bar @ sync after the acquire; ld.relaxed.sys entry 1";

    /// The store of reported must have system scope, as the fence has: the host is outside of the GPU's scope.
    the_host_sees_the_report_of_the_first_error:
        "reader:  st.relaxed report 7; fence.release.sys @ fence before reported; st.relaxed.sys reported 1
         host:    ld.acquire.sys reported 1; ld.weak report 0";

    r1_the_adapters_data_is_visible_once_a_request_is_done:
        "adapter:  st.weak buffer 7; st.release.sys head 1
         reader:   ld.acquire.sys head 1 @ acquire of the head; fence.release @ fence of B2; st.relaxed done 1
         leader:   ld.relaxed done 1; fence.acquire @ fence of the wait; bar @ sync after the wait
         lane 1:   bar @ sync after the wait; ld.weak buffer 0";

    /// A group finds its poster word overwritten by the next lap, and must then find its request before oldest.
    r2_oldest_is_not_older_than_the_next_laps_poster_word:
        "poster:  cas.relaxed oldest 0 1
         leader:  ld.relaxed oldest 1; bar @ sync before poster words
         lane 1:  bar @ sync before poster words; fence.release @ fence before poster words; st.relaxed poster 2
         waiter:  ld.acquire poster 2 @ acquire of the poster word; ld.relaxed oldest 0";

    /// The done word of the request stands for the adapter, the reader and a poster's scan. The next lap's word is stored
    /// after the first lap's, and so stays.
    r3_a_poster_word_is_stored_before_its_request_is_done:
        "poster:       st.relaxed poster 1; fence.release.sys @ fence of step 3; cas.relaxed turn 0 1
         next leader:  ld.acquire turn 1 @ acquire of the turn; fence.release.sys @ second fence of step 4; \
                       st.relaxed done 1
         next poster:  ld.acquire done 1 @ acquire of done; ld.relaxed poster 0";

    r3_the_adapters_data_is_visible_once_oldest_has_passed_a_request:
        "reader:  ld.relaxed.sys head 1; fence.acq_rel.sys @ fence of B2; st.relaxed done 1
         writer:  ld.relaxed done 1; fence.acq_rel @ fence before oldest; st.relaxed oldest 1
         waiter:  ld.acquire oldest 1 @ acquire of oldest; ld.weak buffer 0
         adapter: st.weak buffer 7; st.release.sys head 1";

    /// The words of requests i - 2 R and i - R, which have different phases; the first has that of request i.
    r3_the_next_posters_scan_sees_the_done_words_of_earlier_scans:
        "reader:       st.relaxed done 1; st.relaxed done 2
         poster:       ld.relaxed done 2; fence.release @ fence before oldest; cas.relaxed oldest 0 1
         next poster:  ld.acquire oldest 1 @ acquire of oldest; ld.relaxed done 1";

    a_group_that_sees_a_signal_sees_its_data:
        "adapter:  st.weak data 7; st.release.sys word 1
         leader:   ld.relaxed.sys word 1; fence.acquire.sys @ fence of wait_until(); bar @ sync of wait_until()
         lane 1:   bar @ sync of wait_until(); ld.weak data 0";
}

fn the_entry_overtakes(graph: &Graph) -> bool {
    !graph.arrives(("doorbell", 1), ("slot", 7))
}

/// The entry is past the batch window of the doorbell before this one.
#[test]
fn batch_window_an_entry_arrives_after_the_confirmed_doorbell() {
    never_of_shape(
        "leader:  st.relaxed.sys doorbell 1; fence.release.sys @ fence that confirms; bar @ sync after the fence
         lane 1:  bar @ sync after the fence; st.relaxed.sys slot 7",
        the_entry_overtakes,
    );
}

/// The entry is of a group that shares the queue, past the window of an earlier doorbell.
#[test]
fn batch_window_an_entry_of_the_next_group_arrives_after_the_confirmed_doorbell() {
    never_of_shape(
        "first:   st.relaxed.sys doorbell 1; fence.release.sys @ fence after the doorbell; cas.relaxed turn 0 1
         leader:  ld.acquire turn 1 @ acquire of the turn; bar @ sync before the stores
         lane 1:  bar @ sync before the stores; st.relaxed.sys slot 7",
        the_entry_overtakes,
    );
}
