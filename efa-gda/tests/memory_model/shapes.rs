//! The explorer on shapes whose verdicts under PTX are known.

use super::program::Program;

fn is_allowed(text: &str) -> bool {
    Program::parse(text).find("", &mut Default::default(), |_| true, |_| true).is_some()
}

#[test]
fn a_message_needs_a_release_and_an_acquire_of_a_scope_that_has_both_threads() {
    for (send, receiver, receive, allowed) in [
        ("st.release y 1", "b", "ld.acquire y 1", false),
        ("fence.acq_rel; st.relaxed y 1", "b", "ld.relaxed y 1; fence.acq_rel", false),
        ("fence.release; st.relaxed y 1", "b", "ld.relaxed y 1; fence.acquire", false),
        ("fence.acquire; st.relaxed y 1", "b", "ld.acquire y 1", true),
        ("st.release y 1", "b", "ld.relaxed y 1; fence.release", true),
        ("st.relaxed y 1", "b", "ld.acquire y 1", true),
        ("st.release y 1", "b", "ld.relaxed y 1", true),
        ("st.release y 1", "host", "ld.acquire.sys y 1", true),
        ("st.release y 1", "other gpu", "ld.acquire.sys y 1", true),
        ("st.release.sys y 1", "host", "ld.acquire.sys y 1", false),
        ("fence.acq_rel; st.relaxed.sys y 1", "host", "ld.acquire.sys y 1", true),
    ] {
        let text = format!("a: st.weak x 1; {send}\n {receiver}: {receive}; ld.weak x 0");
        assert_eq!(is_allowed(&text), allowed, "{text}");
    }
}

#[test]
fn a_release_passes_through_atomic_operations_and_through_acquirers() {
    for (second, allowed) in [
        ("cas.relaxed y 1 2", false),
        ("ld.relaxed y 1; branch; st.relaxed y 2", true),
        ("ld.acquire y 1; st.release y 2", false),
        ("ld.acquire y 1; st.relaxed y 2", true),
    ] {
        let text = format!("a: st.weak x 1; st.release y 1\n b: {second}\n c: ld.acquire y 2; ld.weak x 0");
        assert_eq!(is_allowed(&text), allowed, "{text}");
    }
}

#[test]
fn store_buffering_and_independent_reads_need_fence_sc_on_both_sides() {
    for (one, two, allowed) in [
        ("fence.sc", "fence.sc", false),
        ("fence.sc", "fence.acq_rel", true),
        ("fence.acq_rel.sys", "fence.acq_rel.sys", true),
    ] {
        let buffering =
            format!("a: st.relaxed x 1; {one}; ld.relaxed y 0\n b: st.relaxed y 1; {two}; ld.relaxed x 0");
        let reads =
            format!("c: ld.relaxed x 1; {one}; ld.relaxed y 0\n d: ld.relaxed y 1; {two}; ld.relaxed x 0");
        assert_eq!(is_allowed(&buffering), allowed, "{buffering}");
        assert_eq!(
            is_allowed(&format!("a: st.relaxed x 1\n b: st.relaxed y 1\n {reads}")),
            allowed,
            "{reads}"
        );
    }
}

#[test]
fn a_load_may_be_served_by_a_later_store_unless_that_depends_on_it() {
    assert!(is_allowed("a: ld.relaxed x 1; st.relaxed y 1\n b: ld.relaxed y 1; st.relaxed x 1"));
    assert!(!is_allowed(
        "a: ld.relaxed x 1; branch; st.relaxed y 1\n b: ld.relaxed y 1; branch; st.relaxed x 1"
    ));
}

#[test]
fn one_word_is_coherent_where_its_accesses_are_strong() {
    assert!(!is_allowed("a: st.relaxed x 1\n b: ld.relaxed x 1; ld.relaxed x 0"));
    assert!(is_allowed("a: st.relaxed x 1\n b: ld.weak x 1; ld.weak x 0"));
    assert!(!is_allowed("a: cas.relaxed x 0 1\n b: cas.relaxed x 0 1"));
    assert!(!is_allowed("a: st.relaxed x 1; st.relaxed x 2\n b: ld.relaxed x 2; ld.relaxed x 1"));
}
