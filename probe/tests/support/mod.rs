//! Running the probe, made-up machines, and validating documents.
#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    unused_macros,
    reason = "each test binary uses its own part"
)]

mod frozen;
pub(crate) mod schema;
pub(crate) mod sound;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use efa_gda_test_support::TempDir;
use efa_gda_test_support::soft::provider;

use serde_json::Value;

/// Variables that would change the probe's findings.
const FOREIGN: [&str; 13] = [
    "LIBFABRIC_PATH",
    "FI_PROVIDER",
    "FI_PROVIDER_PATH",
    "FI_EFA_IFACE",
    "FI_EFA_MTU_SIZE",
    "FI_EFA_TX_IOV_LIMIT",
    "FI_EFA_RX_IOV_LIMIT",
    "FI_HMEM_DISABLE_P2P",
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_EFA_USE_HW_CNTR",
    "RDMAV_FORK_SAFE",
    "LD_LIBRARY_PATH",
    "NO_COLOR",
];

/// The probe, in a clean environment.
pub(crate) fn probe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gda-probe"));
    FOREIGN.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.args(args);
    command
}

/// Arguments with time limits that suit a busy machine.
pub(crate) const PATIENT: [&str; 2] = ["--time-limit", "60000"];

/// Runs a command; a document that the probe prints is compared with its line of frozen behaviour.
pub(crate) fn output(command: &mut Command) -> Output {
    let output = efa_gda_test_support::output(command);
    frozen::compare(command, &output);
    output
}

pub(crate) fn run(args: &[&str]) -> Output {
    output(&mut probe(args))
}

pub(crate) fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

/// The document on stdout, validated against the schema.
pub(crate) fn document(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).expect("JSON is UTF-8");
    let document = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?} {output:?}"));
    schema::validate(&document);
    document
}

/// The check with this code.
pub(crate) fn check<'a>(document: &'a Value, code: &str) -> &'a Value {
    let checks = document["checks"].as_array().expect("a document of checks");
    let found = checks.iter().find(|check| check["code"] == code);
    found.unwrap_or_else(|| panic!("no {code} in {document:#}"))
}

pub(crate) fn state<'a>(document: &'a Value, code: &str) -> &'a str {
    check(document, code)["state"].as_str().expect("a state")
}

/// Asserts that `key` of the check `code` holds all of `words`.
pub(crate) fn says(document: &Value, code: &str, key: &str, words: &[&str]) {
    let check = check(document, code);
    let text = check[key].as_str().unwrap_or_default();
    assert!(words.iter().all(|word| text.contains(word)), "{key} lacks one of {words:?}: {check:#}");
}

/// The document and the exit status of a command.
pub(crate) fn ended(command: &mut Command) -> (Value, i32) {
    let output = output(command);
    (document(&output), status(&output))
}

/// Runs of the probe at a time in [`at_once`].
const AT_ONCE: usize = 5;

/// Runs `body` for each of `cases`, several at a time: a run of the probe mostly sleeps, while libfabric's providers start
/// (0.25 s in 1.17) or until a time limit.
pub(crate) fn at_once<T: Sync>(cases: &[T], body: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(cases.len()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    body(case);
                }
            });
        }
    });
}

/// A made-up machine: a folder that is removed when the value is dropped.
pub(crate) struct Machine(TempDir);

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        Self(TempDir::new(&format!("machine-{name}")))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn arg(&self) -> &str {
        self.path().to_str().expect("UTF-8")
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        self.bytes(path, text)
    }

    pub(crate) fn bytes(&self, path: &str, bytes: impl AsRef<[u8]>) -> &Self {
        let path = self.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, bytes).expect("a file");
        self
    }

    pub(crate) fn directory(&self, path: &str) -> &Self {
        fs::create_dir_all(self.path().join(path.trim_start_matches('/'))).expect("directories");
        self
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        symlink(target, path).expect("a link");
        self
    }

    /// An EFA adapter as a working host shows it; `number` is part of its names.
    pub(crate) fn adapter(&self, number: u32) -> &Self {
        let pci = format!("/sys/bus/pci/devices/0000:0{number}:00.0");
        self.file(&format!("{pci}/vendor"), "0x1d0f\n")
            .file(&format!("{pci}/device"), "0xefa3\n")
            .link(&format!("{pci}/driver"), "../../../../bus/pci/drivers/efa")
            .directory(&format!("{pci}/infiniband/rdmap{number}s0"))
            .directory(&format!("{pci}/infiniband_verbs/uverbs{number}"))
            .file(&format!("/sys/class/infiniband/rdmap{number}s0/ports/1/state"), "4: ACTIVE\n")
            .file(&format!("/dev/infiniband/uverbs{number}"), "")
            .file("/sys/module/efa/version", "3.3.1\n")
    }

    /// An NVIDIA driver with these registry words.
    pub(crate) fn nvidia(&self, words: &str) -> &Self {
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";
        self.file("/proc/driver/nvidia/version", version)
            .file("/proc/driver/nvidia/params", &format!("EnableMSI: 1\nRegistryDwords: \"{words}\"\n"))
    }

    /// The document of a check on this machine, without libfabric and without GPU.
    pub(crate) fn check(&self, more: &[&str]) -> Value {
        let mut command = probe(&["--json", "--root", self.arg()]);
        if !more.contains(&"--time-limit") {
            command.args(PATIENT);
        }
        command.args(more).env("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1");
        document(&output(&mut command))
    }
}

/// The probe on the software adapter, with JSON and [`PATIENT`].
pub(crate) fn soft(args: &[&str]) -> Command {
    let mut command = probe(args);
    command.args(PATIENT).args(["--soft", "--json"]).env("SOFTEFA_LIBRARY", provider());
    command
}
