//! A machine on which nothing is wrong, with eight adapters and eight GPUs, and what a report of one problem must show.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use efa_gda_test_support::soft::{provider, provider_folder};
use efa_gda_test_support::{TempDir, compile, cuda};
use serde_json::Value;

use super::{Machine, PATIENT, at_once, document, output, probe, state};

/// NCCL, its EFA plugin, its settings and libefa on a sound machine.
pub(crate) const NCCL: &str = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2";
pub(crate) const PLUGIN: &str = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so";
pub(crate) const NCCL_CONF: &str = "/etc/nccl.conf";
pub(crate) const LIBEFA: &str = "/usr/lib/libefa.so.1";

/// A machine whose releases fit, with all devices of its type.
pub(crate) fn sound(name: &str) -> Machine {
    let machine = Machine::new(name);
    for number in 1..=8 {
        machine.adapter(number);
        let gpu = format!("/sys/bus/pci/devices/0000:1{number}:00.0");
        machine.file(&format!("{gpu}/vendor"), "0x10de").file(&format!("{gpu}/class"), "0x030200");
    }
    machine.nvidia("PeerMappingOverride=1");
    machine.directory("/sys/module/nvidia_peermem").memlock("unlimited").capabilities("000001ffffffffff");
    if let Some(library) = libefa(4) {
        machine.bytes(LIBEFA, library);
    }
    machine
        .file("/sys/class/dmi/id/sys_vendor", "Amazon EC2")
        .file("/sys/class/dmi/id/product_name", "p6-b200.48xlarge")
        .file("/usr/lib/libfabric.so.1", "x\0FABRIC_1.9\x002.6.0\0y")
        .file(NCCL, "NCCL version 2.32.3+cuda13")
        .file(PLUGIN, "Initializing aws-ofi-nccl 1.22.0\0")
        .file(NCCL_CONF, "# EFA-GDA\nNCCL_GIN_TYPE=5\nNCCL_SYM_GIN_KERNELS_ENABLE=0\n")
        .file("/usr/lib/libgdrapi.so.2.5", "")
        .link("/usr/lib/libgdrapi.so.2", "libgdrapi.so.2.5")
        .file("/sys/module/gdrdrv/version", "2.5\n")
        .file("/dev/gdrdrv", "")
        .file("/etc/ld.so.conf", "/opt/amazon/ofi-nccl/lib\n")
        .file("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=65906036k 0 0\n");
    for number in 1..=8 {
        let device = format!("/sys/class/infiniband/rdmap{number}s0/device/p2p");
        machine.file(&device, "NONE\n");
    }
    machine
}

impl Machine {
    /// The limit of locked memory.
    pub(crate) fn memlock(&self, limit: &str) -> &Self {
        self.file("/proc/self/limits", &format!("Max locked memory         {limit}  {limit}  bytes\n"))
    }

    /// The effective capabilities, in hex.
    pub(crate) fn capabilities(&self, mask: &str) -> &Self {
        self.file("/proc/self/status", &format!("Name:\tx\nCapEff:\t{mask}\n"))
    }

    /// A running process with these files in its maps.
    pub(crate) fn process(&self, number: u32, mapped: &[&str]) -> &Self {
        let line = |path: &&str| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 42   {path}\n");
        let maps: String = mapped.iter().map(line).collect();
        self.file(&format!("/proc/{number}/maps"), &maps).file(&format!("/proc/{number}/cmdline"), "train\0")
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        let path = self.path().join(path.trim_start_matches('/'));
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.expect("removed");
        self
    }
}

/// A library with the symbol versions of libefa from EFA_1.0 to EFA_1.`newest`. None, with the skip recorded, without a
/// C compiler.
pub(crate) fn libefa(newest: u32) -> Option<Vec<u8>> {
    let folder = TempDir::new("libefa");
    let (source, script) = (folder.path().join("libefa.c"), folder.path().join("libefa.map"));
    let function = |number: u32| format!("void of_{number}(void) {{}}\n");
    let node = |number: u32| format!("EFA_1.{number} {{ global: of_{number}; }};\n");
    fs::write(&source, (0..=newest).map(function).collect::<String>()).expect("a source");
    fs::write(&script, (0..=newest).map(node).collect::<String>()).expect("a version script");
    let library = folder.path().join("libefa.so.1");
    let mut compiler = compile::c();
    compiler.args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(&library).arg(source);
    compiler.arg(format!("-Wl,--version-script={}", script.display()));
    compile::compile(&mut compiler).then(|| fs::read(library).expect("the library"))
}

/// What checks run on, beside the files of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// Files alone: no library is loaded.
    Files,
    /// The same, and a GPU if the kernel's driver shows one.
    FilesAndGpu,
    /// This machine's libfabric, which finds no adapter.
    Libfabric,
    /// libfabric finds adapters of the software adapter and takes them for hardware; no GPU.
    Adapters,
    /// The same with a pretended GPU, and completion counters: a whole machine.
    Whole,
    /// The software adapter.
    Soft,
    /// The software adapter with memory of a pretended GPU.
    SoftAndGpu,
}

/// A command of the probe on `machine`, without a time limit. The folder must live until it ends.
pub(crate) fn command(stack: Stack, machine: &Machine, args: &[&str]) -> (Command, Option<TempDir>) {
    let mut command = probe(args);
    command.args(["--root", machine.arg()]);
    // A put by the host executor has no use for the option, and refuses it.
    if !matches!(stack, Stack::FilesAndGpu | Stack::SoftAndGpu | Stack::Whole) && args.first() != Some(&"put")
    {
        command.args(["--gpu", "none"]);
    }
    let mut folder = None;
    if matches!(stack, Stack::Libfabric | Stack::Adapters | Stack::Whole) {
        // This machine's, although the files are another's.
        command.env("LIBFABRIC_PATH", "libfabric.so.1");
    }
    match stack {
        Stack::Files | Stack::FilesAndGpu => {}
        Stack::Libfabric => _ = command.env("FI_PROVIDER", "efa"),
        Stack::Adapters | Stack::Whole => {
            let providers = provider_folder();
            // Also in domains of the API of an old libfabric, which have no counters.
            command.env("FI_PROVIDER_PATH", providers.path()).env("SOFTEFA_HW_CNTR", "1");
            folder = Some(providers);
        }
        Stack::Soft | Stack::SoftAndGpu => _ = command.arg("--soft").env("SOFTEFA_LIBRARY", provider()),
    }
    if matches!(stack, Stack::SoftAndGpu | Stack::Whole) {
        command.args(["--gpu", "0", "--pairs", "all"]).envs(cuda::VARIABLES);
        command.env("SOFTEFA_HMEM", "1").env("SOFTEFA_LIBCUDA", cuda::LIBRARY);
        command.env("PRETEND_GPU_KNOWS_MEMORY", "1");
    }
    (command, folder)
}

/// The document of a check on `machine` with these variables.
pub(crate) fn checked(stack: Stack, machine: &Machine, set: &[(&str, &str)]) -> Value {
    let (mut command, _folder) = command(stack, machine, &["check", "--json"]);
    command.args(PATIENT);
    document(&output(command.envs(set.iter().copied())))
}

/// A machine with one defect.
pub(crate) struct Broken {
    pub(crate) name: &'static str,
    pub(crate) stack: Stack,
    /// What must be reported: for whom, by which codes, with which words in the first one's fix and elsewhere.
    pub(crate) who: &'static str,
    pub(crate) codes: &'static [&'static str],
    pub(crate) fix: &'static str,
    pub(crate) words: &'static [&'static str],
    /// The defect: in the files of a sound machine, and in variables.
    pub(crate) make: fn(&Machine),
    pub(crate) set: &'static [(&'static str, &'static str)],
}

/// Rows of [`Broken`].
macro_rules! broken {
    ($($name:literal ($stack:ident) $who:literal $($code:literal)&+, $fix:literal $(, $word:literal)*: $make:expr, $set:tt;)*) => {
        &[$($crate::support::sound::Broken {
            name: $name, stack: $crate::support::sound::Stack::$stack, who: $who, codes: &[$($code),+], fix: $fix,
            words: &[$($word),*], make: $make, set: &$set,
        }),*]
    };
}
pub(crate) use broken;

/// Asserts that `document` reports `codes`, the first of them with `fix` and for `who`, and that nothing fails or warns
/// beside them. The frozen behaviour has the other states. Returns the text of the first one's check.
pub(crate) fn alone(document: &Value, codes: &[&str], fix: &str, who: &str) -> String {
    let checks = document["checks"].as_array().expect("checks").iter();
    let bad: Vec<_> = checks.filter(|one| one["state"] == "fail" || one["state"] == "warn").collect();
    let found: BTreeSet<_> = bad.iter().map(|one| one["code"].as_str().expect("a code")).collect();
    assert_eq!(found, codes.iter().copied().collect(), "{document:#}");
    let right = |one: &&&Value| one["code"] == codes[0] && one["who"] == who;
    let has = |one: &&&Value| one["fix"].as_str().is_some_and(|text| text.contains(fix));
    let right = bad.iter().find(|one| right(one) && has(one));
    right.unwrap_or_else(|| panic!("no {fix:?} for {who} in {bad:#?}")).to_string()
}

/// Checks each machine: [`alone`], with the words.
pub(crate) fn all_alone(machines: &[Broken]) {
    at_once(machines, |&Broken { name, stack, who, codes, fix, words, make, set }| {
        let machine = sound(name);
        make(&machine);
        let mut document = checked(stack, &machine, set);
        if stack == Stack::Libfabric
            && let Some(checks) = document["checks"].as_array_mut()
        {
            // libfabric finds no adapter, and may be too old; that is of the machine that runs the test.
            checks.retain(|one| {
                one["code"] != "GDA-001" && (one["code"] != "FAB-001" || codes[0] == "FAB-001")
            });
        }
        let text = alone(&document, codes, fix, who);
        assert!(words.iter().all(|word| text.contains(word)), "{name}: not all of {words:?}: {text}");
    });
}

/// Asserts that these checks of `document` pass.
pub(crate) fn pass(document: &Value, codes: &[&str]) {
    for code in codes {
        assert_eq!(state(document, code), "pass", "{:#}", super::check(document, code));
    }
}
