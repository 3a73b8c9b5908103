//! The frozen behaviour of the probe on made-up machines: states, roles, verdicts and exit statuses, without wording.
//! Every run with JSON that the test binaries of [`FILES`] start is compared with its line in
//! `generated/BINARY.tsv`; a run without a line fails, and so does a line without a run.
//!
//! A line: the machine, the arguments and variables; the exit status; the verdicts, as GPU/ADAPTER=RESULT; the checks,
//! grouped by state with the role or the blocking code. `CODE×N` stands for N subjects, which are named where their
//! states differ. `EFA_GDA_BLESS=1 cargo test -p gda-probe --test BINARY` writes the lines anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex};

use serde_json::Value;

/// The test binaries whose runs are frozen.
const FILES: [&str; 5] = ["host_rung", "machines", "pains", "pains_soft", "people"];

/// Checks whose state depends on the libfabric of the machine that runs the tests.
const OF_THIS_LIBFABRIC: [&str; 2] = ["LIB-002", "FAB-011"];
/// The same for runs without `--root`, which search libraries where this machine has them.
const OF_THIS_MACHINE: [&str; 3] = ["LIB-001", "LIB-003", "LIB-004"];
/// The same for runs in which libfabric's own provider looks for adapters, because `FI_PROVIDER` is set.
const OF_ITS_PROVIDER: &str = "GDA-001";
/// A machine that not every file system can have; its test states what must hold.
const LEASED: &str = "stuck ";

/// The lines that the runs of this process gave, by their first column.
static FOUND: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
/// The lines of the file.
static FROZEN: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let text = fs::read_to_string(file()).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines.map(|(name, behaviour)| (name.to_owned(), behaviour.to_owned())).collect()
});

fn file() -> PathBuf {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/generated"));
    folder.join(concat!(env!("CARGO_CRATE_NAME"), ".tsv"))
}

fn blesses() -> bool {
    std::env::var_os("EFA_GDA_BLESS").is_some()
}

/// Compares a run that printed a document with its line. Runs on this machine itself have none.
pub(crate) fn compare(command: &Command, output: &Output) {
    let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) else { return };
    let made_up = command.get_args().any(|one| one == "--root" || one == "--soft");
    if !FILES.contains(&env!("CARGO_CRATE_NAME")) || !made_up || document["checks"].is_null() {
        return;
    }
    let (name, behaviour) = (name(command), behaviour(command, &document, output.status.code()));
    if name.starts_with(LEASED) {
        return;
    }
    let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if found.is_empty() {
        // SAFETY: the function has the type that atexit requires, and touches statics only, which are never dropped.
        assert_eq!(unsafe { libc::atexit(every_line_has_a_run) }, 0, "atexit");
    }
    let before = found.insert(name.clone(), behaviour.clone());
    drop(found);
    if !blesses() {
        let file = file();
        let frozen = FROZEN.get(&name);
        let frozen = frozen.unwrap_or_else(|| panic!("{} has no line {name:?}: {behaviour}", file.display()));
        let without = |one: &str, other: &str| -> Vec<String> {
            let other: Vec<_> = other.split(['\t', ';']).collect();
            one.split(['\t', ';']).filter(|part| !other.contains(part)).map(str::to_owned).collect()
        };
        let (lost, new) = (without(frozen, &behaviour), without(&behaviour, frozen));
        assert!(frozen == &behaviour, "{name:?} differs from {}: {lost:#?} became {new:#?}", file.display());
    }
    // A test gives a machine that it changes another name.
    assert!(before.is_none_or(|before| before == behaviour), "two runs of {name:?} differ");
}

/// The machine's name, the arguments except for its folder and the format, and the variables except for paths.
fn name(command: &Command) -> String {
    let mut words = Vec::new();
    let mut args = command.get_args().map(|one| one.to_string_lossy());
    while let Some(word) = args.next() {
        match &*word {
            "--root" => {
                let folder = args.next().expect("a folder").into_owned();
                let machine = folder.split_once("efa-gda-machine-").expect("a folder of a machine").1;
                words.insert(0, machine.rsplitn(3, '-').last().expect("a name").to_owned());
            }
            "--json" => {}
            "--time-limit" => _ = args.next(),
            _ => words.push(word.into_owned()),
        }
    }
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/..");
    let target = fs::canonicalize(target).expect("the target directory");
    let ours = [target, std::env::temp_dir()].map(|folder| folder.to_string_lossy().into_owned());
    for (variable, value) in command.get_envs() {
        let Some(value) = value.map(|value| value.to_string_lossy()) else { continue };
        if !ours.iter().any(|folder| value.starts_with(folder)) {
            words.push(format!(
                "{}={}",
                variable.to_string_lossy(),
                value.chars().take(40).collect::<String>()
            ));
        }
    }
    words.join(" ").replace(char::is_control, "?")
}

fn behaviour(command: &Command, document: &Value, status: Option<i32>) -> String {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let verdict =
        |one: &Value| format!("{}/{}={}", text(one, "gpu"), text(one, "adapter"), text(one, "result"));
    let verdicts: Vec<_> = document["verdict"].as_array().into_iter().flatten().map(verdict).collect();
    let own_libraries = !command.get_args().any(|one| one == "--root");
    let own_provider = command.get_envs().any(|(name, value)| name == "FI_PROVIDER" && value.is_some());
    let mut codes: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for check in document["checks"].as_array().expect("checks") {
        let (code, subject) = (text(check, "code"), text(check, "subject"));
        let left_out = OF_THIS_LIBFABRIC.contains(&&*code)
            || own_libraries && OF_THIS_MACHINE.contains(&&*code)
            || own_provider && code == OF_ITS_PROVIDER;
        if !left_out {
            let state = [text(check, "state"), text(check, "who"), text(check, "blocked_by")].join(" ");
            codes
                .entry(code)
                .or_default()
                .push((subject, state.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    let mut states: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (code, found) in codes {
        if found.iter().all(|(_, state)| *state == found[0].1) {
            let times = if found.len() == 1 { String::new() } else { format!("×{}", found.len()) };
            states.entry(found[0].1.clone()).or_default().push(code + &times);
        } else {
            for (subject, state) in found {
                states.entry(state).or_default().push(format!("{code}/{subject}"));
            }
        }
    }
    let states: Vec<_> =
        states.iter().map(|(state, codes)| format!("{state}: {}", codes.join(" "))).collect();
    let status = status.expect("no signal ended the probe");
    [status.to_string(), verdicts.join(" "), states.join("; ")].join("\t")
}

/// Runs after the last test: fails the process if a line had no run, or writes the file. Does neither where arguments
/// select tests.
extern "C" fn every_line_has_a_run() {
    if std::env::args().skip(1).any(|one| !one.starts_with('-') || one == "--skip" || one == "--ignored") {
        return;
    }
    let found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if blesses() {
        let lines: String = found.iter().map(|(name, behaviour)| format!("{name}\t{behaviour}\n")).collect();
        fs::write(file(), lines).expect("the file is written");
        return;
    }
    let missing: Vec<_> = FROZEN.keys().filter(|name| !found.contains_key(*name)).collect();
    if !missing.is_empty() {
        eprintln!("{} has lines that no test ran: {missing:#?}", file().display());
        // SAFETY: ends the process at once, after every test.
        unsafe { libc::_exit(101) };
    }
}
