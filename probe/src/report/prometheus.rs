//! A check in Prometheus's text format, for the textfile collector of node_exporter.

use std::fmt::Write as _;

use crate::model::{Document, Graded, Reach, State, Who};

/// Formats the metrics; `status` is the exit status, `seconds` the time since 1970.
pub(crate) fn metrics(document: &Document, status: u8, seconds: u64) -> String {
    let mut out = String::new();
    let origin = &document.origin;
    head(&mut out, "info", "The probe and the kernel.");
    let kernel = origin.kernel.as_deref().unwrap_or_default();
    let soft = if document.soft { "true" } else { "false" };
    sample(&mut out, "info", &[("version", origin.version), ("kernel", kernel), ("soft", soft)], 1);
    head(&mut out, "last_run_timestamp_seconds", "When the probe ran; alert if it is old.");
    sample(&mut out, "last_run_timestamp_seconds", &[], seconds);
    head(&mut out, "exit_status", "0 fine, 3 a check failed, 4 warnings only.");
    sample(&mut out, "exit_status", &[], u64::from(status));
    checks(&mut out, document.checks.as_deref().unwrap_or_default());
    head(&mut out, "verdict", "How far a GPU can drive an adapter: 2 gda, 1 host-rung, 0 none.");
    for verdict in document.verdict.as_deref().unwrap_or_default() {
        let value = match verdict.result {
            Reach::Gda => 2,
            Reach::HostRung => 1,
            Reach::None => 0,
        };
        sample(&mut out, "verdict", &[("gpu", &verdict.gpu), ("adapter", &verdict.adapter)], value);
    }
    head(&mut out, "adapter_counter_increase", "Increase of an adapter's counters during the run.");
    for counter in document.counters.as_deref().unwrap_or_default() {
        let labels = [("adapter", counter.adapter.as_str()), ("counter", counter.name.as_str())];
        sample(&mut out, "adapter_counter_increase", &labels, counter.after - counter.before);
    }
    out
}

fn checks(out: &mut String, checks: &[Graded]) {
    head(out, "checks", "Checks by state.");
    for (name, state) in [
        ("pass", State::Pass),
        ("warn", State::Warn),
        ("fail", State::Fail),
        ("skip", State::Skip),
        ("unknown", State::Unknown),
    ] {
        let count = checks.iter().filter(|one| one.finding.state == state).count();
        sample(out, "checks", &[("state", name)], count as u64);
    }
    head(out, "problem", "A check that failed or warned.");
    for one in checks {
        let (Some(severity), Some(action)) = (one.severity, one.action) else { continue };
        let (severity, action) = (word(&severity), word(&action));
        let finding = &one.finding;
        let labels = [
            ("code", finding.code.as_str()),
            ("subject", finding.subject.as_deref().unwrap_or_default()),
            ("severity", &severity),
            ("action", &action),
            ("who", finding.who.map(Who::role).unwrap_or_default()),
        ];
        sample(out, "problem", &labels, 1);
    }
}

/// The word that JSON has for a value.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn head(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP gda_probe_{name} {help}\n# TYPE gda_probe_{name} gauge");
}

fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: u64) {
    let escaped = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let labels: Vec<_> = labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escaped(text))).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(out, "gda_probe_{name}{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut out = String::new();
        sample(&mut out, "x", &[("a", "q\"b\\c\nd")], 7);
        assert_eq!(out, "gda_probe_x{a=\"q\\\"b\\\\c\\nd\"} 7\n");
    }
}
