//! Fault injection, and the environment variables that configure it.

#![allow(clippy::unwrap_used)]

mod device_support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use device_support::*;
use efa_gda_wire::*;
use softefa::device::*;

fn setup(config: impl Fn(&mut AdapterConfig)) -> (Side, Side, Request, (Buffer, Buffer)) {
    let (a, b, to_b, _) = pair_with(config, |_| {});
    let (from, to) = (Buffer::new(&a, 64, Access::ALL), Buffer::new(&b, 64, Access::ALL));
    from.fill(|_| 1);
    let write_request = write(0, to_b, to.remote(0), from.segment(0, 64));
    (a, b, write_request, (from, to))
}

#[test]
fn reordered_requests_complete_once_each_and_out_of_order() {
    let (mut a, _b, write_request, _buffers) = setup(|config| config.faults.reorder_window = 16);
    let mut order = Vec::new();
    for first in (0..256).step_by(64) {
        for id in first..first + 64 {
            a.post(&Request { id: RequestId::new(id), ..write_request });
        }
        for _ in 0..64 {
            let completion = a.completion();
            assert_eq!(completion.status, CompletionStatus::Ok);
            order.push(completion.id.get());
        }
    }
    assert_eq!(order.iter().copied().collect::<HashSet<_>>(), (0..256).collect());
    assert!(!order.is_sorted(), "256 requests in windows of 16 completed in order");
    assert_eq!(a.rules(), []);
}

#[test]
fn fewer_requests_than_the_reorder_window_complete() {
    let (mut a, _b, write_request, _buffers) = setup(|config| config.faults.reorder_window = 64);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
}

#[test]
fn a_delayed_request_is_not_executed_before_its_time() {
    let delay = Duration::from_millis(20);
    let (mut a, _b, write_request, _buffers) = setup(|config| config.faults.delay = delay);
    let posted = Instant::now();
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
    assert!(posted.elapsed() >= delay);
}

#[test]
fn a_slow_adapter_executes_the_requests_of_a_queue_pair_an_interval_apart() {
    let interval = Duration::from_millis(10);
    let (mut a, _b, write_request, _buffers) = setup(|config| config.faults.interval = interval);
    let posted = Instant::now();
    (0..4).for_each(|_| a.post(&write_request));
    for number in 0..4 {
        assert_eq!(a.completion().status, CompletionStatus::Ok);
        assert!(posted.elapsed() >= number * interval, "request {number}");
    }
}

#[test]
fn a_request_with_an_injected_status_moves_nothing() {
    let statuses: Vec<_> = (1..=255).map(CompletionStatus::from_code).collect();
    let injected = statuses.clone();
    let (mut a, _b, write_request, (_from, to)) = setup(move |config| {
        let numbered = injected.iter().enumerate();
        config.faults.injections =
            numbered.map(|(at, status)| Injection { nth: at as u64 + 1, status: *status }).collect();
    });
    for status in statuses {
        assert_eq!(a.run(&write_request), status);
    }
    assert_eq!(to.bytes(), [0; 64]);
    assert_eq!(a.run(&write_request), CompletionStatus::Ok);
}

fn variables(pairs: &'static [(&str, &str)]) -> Result<AdapterConfig, ConfigError> {
    AdapterConfig::new(Gid::link_local(1)).with_variables(|requested| {
        pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn environment_variables_are_applied() {
    let config = variables(&[
        ("SOFTEFA_SEED", "9"),
        ("SOFTEFA_REORDER", "8"),
        ("SOFTEFA_DELAY_US", "250"),
        ("SOFTEFA_INTERVAL_US", "40000"),
        ("SOFTEFA_INJECT", "3:10, 5:14"),
        ("SOFTEFA_DROP_LOOPBACK", "1"),
        ("SOFTEFA_MAX_BATCH", "4"),
        ("SOFTEFA_ENTRIES_128", "0"),
    ])
    .unwrap();
    assert_eq!((config.seed, config.limits.max_tx_batch, config.capabilities.entries_128), (9, 4, false));
    let expected = Faults {
        reorder_window: 8,
        delay: Duration::from_micros(250),
        interval: Duration::from_millis(40),
        injections: vec![
            Injection { nth: 3, status: CompletionStatus::ReceiverNotReady },
            Injection { nth: 5, status: CompletionStatus::UnknownPeer },
        ],
        drop_loopback: true,
    };
    assert_eq!(config.faults, expected);
}

#[test]
fn the_error_for_an_invalid_variable_names_the_variable() {
    for pairs in [
        &[("SOFTEFA_INJECT", "0:10")][..],
        &[("SOFTEFA_INJECT", "3")],
        &[("SOFTEFA_INJECT", "3:256")],
        &[("SOFTEFA_REORDER", "some")],
        &[("SOFTEFA_ENTRIES_128", "2")],
        &[("SOFTEFA_MAX_BATCH", "70000")],
    ] {
        let name = pairs[0].0;
        let error = variables(pairs).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
