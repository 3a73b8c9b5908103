//! Completion counters over the fake rdma-core.

use std::ptr::NonNull;

use super::*;

#[test]
fn a_counter_accepts_host_memory_and_a_dmabuf_for_its_words() {
    let context = context();
    let mut word = 0_u64;
    let file = std::fs::File::open("/dev/null").unwrap();
    let completions = CounterMemory::host(NonNull::from(&mut word));
    let errors = CounterMemory::dmabuf(file.as_fd(), 64, std::ptr::null_mut());
    unsafe { CompletionCounter::create_external(&context, completions, errors) }.unwrap();
    let attr = state(|state| state.counter.unwrap());
    assert_eq!(attr.flags, 3);
    let (completions, errors) = (attr.comp_cntr_ext_mem, attr.err_cntr_ext_mem);
    assert_eq!(
        (u32::from(completions.type_), completions.ptr),
        (sys::EFADV_MEMORY_LOCATION_VA, (&raw mut word).cast())
    );
    assert_eq!((u32::from(errors.type_), errors.dmabuf.offset), (sys::EFADV_MEMORY_LOCATION_DMABUF, 64));
    assert_eq!(errors.dmabuf.fd, file.as_raw_fd());
}

#[test]
fn reading_a_counter_in_unmapped_memory_is_an_error() {
    let counter = CompletionCounter::create(&context()).unwrap();
    fail("ibv_read_comp_cntr", libc::EOPNOTSUPP);
    assert_eq!(counter.read().unwrap_err().code(), Some(libc::EOPNOTSUPP));
}

#[test]
fn a_counter_outlives_the_queue_pair_it_is_attached_to() {
    let context = context();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, 1024).unwrap();
    let counter = CompletionCounter::create(&context).unwrap();
    let counters = vec![(counter, CountedOperations::WRITE | CountedOperations::SEND)];
    let pair = QueuePair::open(&domain, &completions, &QueuePairOptions { counters, ..options() }).unwrap();
    assert_eq!(state(|state| state.live["counter"]), 1);
    drop(pair);
    let calls = state(|state| state.calls.clone());
    let position_of = |name| calls.iter().position(|call| *call == name).unwrap();
    assert!(position_of("ibv_destroy_qp") < position_of("ibv_destroy_comp_cntr"), "{calls:?}");
}

#[test]
fn rdma_core_before_65_refuses_counters_and_names_release_65() {
    let library = library(|_, efadv| efadv.efadv_create_comp_cntr = None);
    let error = CompletionCounter::create(&library.adapter(None).unwrap()).unwrap_err();
    assert_error!(error, ErrorKind::Unsupported, "which rdma-core 65 added");
}

#[test]
fn a_counter_on_the_host_owns_both_of_its_words() {
    let counter = CompletionCounter::on_host(&context()).unwrap();
    let words = counter.words().unwrap();
    assert_eq!(words.device, None);
    let attr = state(|state| state.counter.unwrap());
    for (location, word) in [(attr.comp_cntr_ext_mem, words.success), (attr.err_cntr_ext_mem, words.error)] {
        assert_eq!(u32::from(location.type_), sys::EFADV_MEMORY_LOCATION_VA);
        assert_eq!(location.ptr as u64, word);
        assert_eq!(word % 8, 0);
        // SAFETY: the counter owns the word.
        assert_eq!(unsafe { (word as *const u64).read_volatile() }, 0);
    }
    assert!(words.success.abs_diff(words.error) >= 8, "{words:?}");
    assert_eq!(CompletionCounter::create(&context()).unwrap().words(), None);
}
