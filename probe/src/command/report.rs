//! `gda-probe report`: one archive for a bug report. It holds what is on the lists below and nothing else, and
//! names, addresses and secrets in it are replaced.

mod archive;
mod redact;
mod shape;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use self::redact::Redactor;
use super::{CommandError, check, file};
use crate::cli::{Common, ReportArgs};
use crate::exit::Exit;
use crate::model::text::visible;
use crate::report::human;
use crate::report::style::Style;
use crate::system::System;
use crate::terminal;

/// Environment variables of whose values the known parts are packed.
const VARIABLES: [&str; 38] = [
    "CUDA_VISIBLE_DEVICES",
    "EFA_GDA_NVCC",
    "FI_EFA_ENABLE_SHM_TRANSFER",
    "FI_EFA_FORK_SAFE",
    "FI_EFA_IFACE",
    "FI_EFA_MR_RELAXED_ORDERING",
    "FI_EFA_MTU_SIZE",
    "FI_EFA_RX_IOV_LIMIT",
    "FI_EFA_TX_IOV_LIMIT",
    "FI_EFA_TX_MIN_CREDITS",
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_EFA_USE_HUGE_PAGE",
    "FI_EFA_USE_HW_CNTR",
    "FI_EFA_USE_UNSOLICITED_WRITE_RECV",
    "FI_HMEM_CUDA_USE_GDRCOPY",
    "FI_HMEM_P2P_DISABLED",
    "FI_LOG_LEVEL",
    "FI_PROVIDER",
    "FI_PROVIDER_PATH",
    "IBV_FORK_SAFE",
    "LD_LIBRARY_PATH",
    "LIBFABRIC_PATH",
    "NCCL_CONF_FILE",
    "NCCL_DEBUG",
    "NCCL_GIN_ENABLE",
    "NCCL_GIN_TYPE",
    "NCCL_NET_PLUGIN",
    "NCCL_SYM_GIN_KERNELS_ENABLE",
    "NVIDIA_VISIBLE_DEVICES",
    "NVSHMEM_DISABLE_CUDA_VMM",
    "NVSHMEM_LIBFABRIC_PROVIDER",
    "NVSHMEM_REMOTE_TRANSPORT",
    "OFI_NCCL_GIN_GDAKI",
    "OFI_NCCL_PROTOCOL",
    "RDMAV_FORK_SAFE",
    "RDMAV_HUGEPAGES_SAFE",
    "RDMA_CORE_LIBDIR",
    "SOFTEFA_LIBRARY",
];
/// Prefixes of variables of which the name alone is packed.
const PREFIXES: [&str; 9] =
    ["CUDA_", "EFA_", "FI_", "IBV_", "NCCL_", "NVSHMEM_", "OFI_", "RDMAV_", "SOFTEFA_"];

/// Files that are packed.
const FILES: [&str; 15] = [
    "/etc/os-release",
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia/version",
    "/proc/self/limits",
    "/proc/sys/kernel/osrelease",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/module/efa/srcversion",
    "/sys/module/efa/version",
    "/sys/module/gdrdrv/version",
    "/sys/module/ib_core/srcversion",
    "/sys/module/ib_uverbs/srcversion",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia_peermem/version",
    "/sys/module/nvidia_uvm/version",
];

/// Runs every check and packs the archive. Writes it to its file and returns what to print, or returns the archive for
/// stdout; and the exit of the checks.
pub(crate) fn run(common: &Common, args: &ReportArgs) -> Result<(Vec<u8>, Exit), CommandError> {
    file::check(Some(&args.output), "--output", common)?;
    let (mut document, exit) = check::run(common)?;
    let system = System { root: common.root.clone(), ..System::default() };
    let redactor = Redactor::of_this_process(document.origin.host.as_deref(), &VARIABLES, &system);
    // The name may be too short to be found in texts.
    document.origin.host = document.origin.host.map(|_| redact::HOST.to_owned());
    let mut json = serde_json::to_value(&document)?;
    redact_strings(&mut json, &redactor);
    let members = [
        ("report.json", serde_json::to_string_pretty(&json)? + "\n"),
        ("report.txt", redactor.text(&human::render(&document, Style::of_file()))),
        ("environment.txt", environment(&redactor)),
        ("machine.txt", machine(&system, &redactor)),
    ];
    let archive = archive::tar(&members);
    if file::is_stdout(&args.output) {
        return Ok((archive, exit));
    }
    file::replace(&args.output, &archive)?;
    Ok((written(&args.output, &members).into_bytes(), exit))
}

fn written(file: &Path, members: &[(&str, String)]) -> String {
    let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let width = terminal::width(&std::io::stdout());
    let mut text = terminal::wrapped("", 0, &format!("{}: {}", file.display(), names.join(", ")), width);
    let note = "Names of hosts and users, addresses and secrets were replaced. Read it before you send it:";
    text.push_str(&terminal::wrapped("", 0, note, width));
    // A command is not wrapped, so that it can be copied.
    text + &format!("  tar -xOf {} | less\n", quoted(&file.to_string_lossy()))
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:@%,".contains(letter);
    match text.chars().all(is_plain) && !text.starts_with('-') {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn redact_strings(value: &mut Value, redactor: &Redactor) {
    match value {
        Value::String(text) => *text = redactor.text(text),
        Value::Array(values) => values.iter_mut().for_each(|value| redact_strings(value, redactor)),
        Value::Object(values) => values.values_mut().for_each(|value| redact_strings(value, redactor)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn environment(redactor: &Redactor) -> String {
    let mut all: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect();
    all.sort();
    let lines = all.iter().filter_map(|(name, value)| {
        if VARIABLES.contains(&name.as_str()) {
            return Some(format!("{name}={}", shape::shown(&redactor.text(value))));
        }
        let is_known = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        is_known.then(|| format!("{} is set; its value is not on the list", redactor.text(name)))
    });
    lines.map(|line| visible(&line) + "\n").collect()
}

fn machine(system: &System, redactor: &Redactor) -> String {
    let mut out = String::new();
    // Lines of a file are indented, so that none looks like the name of another file.
    let mut add = |name: &str, lines: &mut dyn Iterator<Item = &str>| {
        let lines: String = lines.map(|line| format!("  {}\n", visible(&redactor.text(line)))).collect();
        let _ = writeln!(out, "==== {name}\n{lines}");
    };
    for file in FILES {
        let text = system.read(file).unwrap_or_else(|| "cannot be read, or does not exist".to_owned());
        add(file, &mut text.lines());
    }
    let status = system.read("/proc/self/status").unwrap_or_default();
    add("capabilities", &mut status.lines().filter(|line| line.starts_with("Cap")));
    out
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, word) in [
            ("/tmp/report-1.tar", "/tmp/report-1.tar"),
            ("a b.tar", "'a b.tar'"),
            ("it's.tar", "'it'\\''s.tar'"),
            ("$HOME.tar", "'$HOME.tar'"),
        ] {
            assert_eq!(quoted(path), word);
        }
    }
}
