//! The frozen interface of the probe: its commands and options without their prose, the keys of the schema, and the keys
//! of the documents that the commands print. `EFA_GDA_BLESS=1 cargo test -p gda-probe --test interface` writes the list
//! anew.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use efa_gda_test_support::cuda;
use efa_gda_test_support::soft::provider;
use serde_json::Value;
use support::{Machine, PATIENT, at_once, document, output, probe, run, schema};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/generated/interface.tsv");

/// The names in the help of a command: its own commands, arguments and options, with their values and defaults. Options
/// of every command are named for the program alone.
fn named(command: &[&str]) -> String {
    let text = String::from_utf8(run(&[command, &["-h"]].concat()).stdout).expect("UTF-8");
    let all = "\nOptions of every command:\n";
    assert!(text.contains(all), "{command:?}: {text}");
    let text = if command.is_empty() { &text } else { text.split(all).next().unwrap_or_default() };
    let mut names: Vec<String> = Vec::new();
    let mut brackets = String::new();
    for line in text.lines().skip_while(|line| !line.starts_with("Usage")) {
        let words = line.trim_start();
        // Lines that continue a description are indented further.
        let begins = line.len() - words.len();
        if (2..=6).contains(&begins) {
            let (name, prose) = words.split_once("  ").unwrap_or((words, ""));
            names.push(name.to_owned());
            brackets = prose.to_owned();
        } else {
            brackets = format!("{brackets} {words}");
        }
        for kind in ["[default: ", "[possible values: "] {
            while let Some((_, rest)) = brackets.split_once(kind)
                && let Some((stated, rest)) = rest.split_once(']')
            {
                names.last_mut().expect("a name").push_str(&format!(" {kind}{stated}]"));
                brackets = rest.to_owned();
            }
        }
    }
    names.join("; ")
}

/// The paths of the keys that `schema` allows.
fn allowed(root: &Value, schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        allowed(root, root.pointer(&reference[1..]).expect("a definition"), at, found);
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(format!("{at}{key}"));
        allowed(root, inner, &format!("{at}{key}."), found);
    }
    if !schema["items"].is_null() {
        allowed(root, &schema["items"], at, found);
    }
}

/// The paths of the keys that `value` has.
fn printed(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    for (key, inner) in value.as_object().into_iter().flatten() {
        found.insert(format!("{at}{key}"));
        printed(inner, &format!("{at}{key}."), found);
    }
    value.as_array().into_iter().flatten().for_each(|inner| printed(inner, at, found));
}

/// Runs whose documents have the keys that depend neither on hardware nor on the machine's speed: a bench without time
/// has no rows.
const RUNS: [(&str, &[(&str, &str)]); 13] = [
    ("check --soft --gpu 0", &[]),
    ("check --soft --gpu 0", &[("PRETEND_GPU_REFUSES", "1")]),
    ("check --gpu none", &[("LIBFABRIC_PATH", "/nonexistent")]),
    (
        "put --soft --executor cuda --gpu 0 --time-limit 5000",
        &[("SOFTEFA_ADAPTERS", "2"), ("SOFTEFA_DROP_LOOPBACK", "1")],
    ),
    ("put --soft --executor host --doorbell staged", &[]),
    ("put --soft --gpu 0 --qualify-stores 1", &[]),
    ("put --soft --executor host --plant phase", &[]),
    ("bench --soft --executor host --time-limit 1", &[]),
    ("ring --soft --spawn 2", &[]),
    ("decode --cqe 07000723650000000000000000000000", &[]),
    ("explain FAB-004", &[]),
    ("explain", &[]),
    ("report", &[]),
];

/// The keys of the documents of [`RUNS`], by command.
fn keys_of_documents() -> BTreeMap<String, BTreeSet<String>> {
    let keys = Mutex::new(BTreeMap::<String, BTreeSet<String>>::new());
    let machine = Machine::new("interface");
    at_once(&RUNS, |(line, set)| {
        let mut command = probe(&line.split(' ').collect::<Vec<_>>());
        if !line.contains("--soft") && line.starts_with("check") {
            command.args(["--root", machine.arg()]);
        } else if !line.contains("--time-limit") && line.contains("--soft") {
            command.args(PATIENT);
        }
        command.arg("--json").env("SOFTEFA_LIBRARY", provider()).envs(cuda::VARIABLES);
        let document = document(&output(command.envs(set.iter().copied())));
        let name = document["command"].as_str().expect("a command").to_owned();
        printed(&document, "", keys.lock().expect("no panic").entry(name).or_default());
    });
    keys.into_inner().expect("no panic")
}

#[test]
fn commands_options_and_keys_are_those_of_the_list() {
    let mut lines = vec![format!("gda-probe\t{}", named(&[]))];
    for command in ["check", "put", "bench", "ring", "decode", "explain", "report", "completions", "man"] {
        lines.push(format!("gda-probe {command}\t{}", named(&[command])));
    }
    let of_schema = schema::schema();
    let mut keys = BTreeSet::new();
    allowed(&of_schema, &of_schema, "", &mut keys);
    lines.push(format!("schema\t{}", keys.into_iter().collect::<Vec<_>>().join(" ")));
    for (command, keys) in keys_of_documents() {
        lines.push(format!("gda-probe {command} --json\t{}", keys.into_iter().collect::<Vec<_>>().join(" ")));
    }
    let text = lines.join("\n") + "\n";
    if std::env::var_os("EFA_GDA_BLESS").is_some() {
        std::fs::write(FILE, &text).expect("the list is written");
    }
    let frozen = std::fs::read_to_string(FILE).expect("the list");
    for (frozen, line) in frozen.lines().zip(text.lines()) {
        assert_eq!(frozen, line, "{FILE}, against this version");
    }
    assert_eq!(frozen.lines().count(), text.lines().count(), "lines of {FILE}");
}
