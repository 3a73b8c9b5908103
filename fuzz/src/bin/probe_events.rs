//! What a worker process of the probe writes into its stream: any bytes are read, and handled as the probe handles the
//! events of a worker, without a panic or a wait, and no text that they leave has a character that is not visible.
#![no_main]
#![allow(dead_code, unused_imports)] // the parts of the probe that no event reaches

use std::sync::mpsc::channel;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde_json::Value;

/// The probe's own modules.
#[path = "../../../probe/src"]
mod probe {
    pub(crate) mod check;
    pub(crate) mod decode;
    pub(crate) mod ending;
    pub(crate) mod model;
    pub(crate) mod progress;
    pub(crate) mod supervisor;
    pub(crate) mod terminal;
    pub(crate) mod worker;
}
use probe::{check, decode, ending, model, progress, supervisor, terminal, worker};

/// In place of the probe's checks, which need its libraries: there is none.
mod checks {
    pub(crate) mod rows {
        pub(crate) struct Row {
            pub(crate) check: crate::check::Check,
        }

        pub(crate) enum Turn {
            Once,
            Opening,
            Each,
        }

        pub(crate) fn plan(_: &crate::worker::Request, _: Turn) -> Vec<&'static Row> {
            Vec::new()
        }

        pub(crate) fn row(_: &str) -> Option<&'static Row> {
            None
        }
    }
}

/// In place of the probe's, which would start this program.
mod executable {
    pub(crate) fn restart_command() -> std::io::Result<std::process::Command> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// In place of the probe's, which advises on processes that cannot be started.
mod exchange {
    pub(crate) fn advice(_: &std::io::Error) -> String {
        String::new()
    }
}

/// The texts of a value, other than names of keys.
fn is_visible(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.contains(model::text::is_hidden),
        Value::Array(values) => values.iter().all(is_visible),
        Value::Object(entries) => entries.values().all(is_visible),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

fn assert_visible(part: &impl Serialize) {
    let value = serde_json::to_value(part).expect("parts of a report are JSON");
    assert!(is_visible(&value), "{value}");
}

fuzz_target!(|stream: &[u8]| {
    let (sender, events) = channel();
    worker::events::read(stream, &sender);
    drop(sender);
    let (mut runner, mut results) = (check::Runner::default(), supervisor::Results::default());
    let limits = supervisor::Limits { each: Duration::from_secs(1), start: Duration::from_secs(1) };
    let end = supervisor::Dispatch::new(&mut runner, &mut results, limits, std::process::id()).run(&events);
    assert!(!matches!(end, supervisor::StreamEnd::TimedOut(_)), "the sender has ended");
    let lines = stream.split(|byte| *byte == b'\n').count();
    assert!(runner.findings.len() + results.puts.len() <= lines);
    assert_visible(&runner.findings);
    assert_visible(&(&results.loaded, &results.adapters, &results.gpus));
    assert_visible(&(&results.queues, &results.puts, &results.bench));
});
