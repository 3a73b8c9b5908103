//! What else is on the node beside adapters and their driver: GDRCopy's device, peer-to-peer access, devices that are no
//! EFA, processes that hold an adapter, and shared memory.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::check::{Checked, Outcome, Outcomes};
use crate::system::System;

/// GDRCopy's device node.
const GDRDRV: &str = "/dev/gdrdrv";
/// The PCI vendor of EFA adapters.
const AMAZON: &str = "0x1d0f";
/// The most processes whose open files are read.
const MOST_PROCESSES: usize = 4096;
/// Below this size of shared memory, libraries that share memory between a node's ranks run out of it: docker's default
/// is 64 MiB.
const SHARED_ENOUGH: u64 = 1 << 30;

/// DEV-009.
pub(crate) fn gdrdrv(system: &mut System) -> Checked {
    if !system.exists("/sys/module/gdrdrv") {
        return Outcome::unknown("the module gdrdrv is not loaded").into();
    }
    if !system.exists(GDRDRV) {
        return Outcome::warn(format!("no {GDRDRV}, although the module is loaded")).into();
    }
    let mut options = OpenOptions::new();
    match options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(system.path(GDRDRV)) {
        Ok(_) => Outcome::pass(format!("{GDRDRV} opens for reading and writing")).into(),
        Err(error) => Outcome::warn(format!("{GDRDRV}: {error}")).into(),
    }
}

/// DEV-010: the driver's word for what maps GPU memory for the adapter. Open NVIDIA modules need none: they export dmabufs.
pub(crate) fn peer_to_peer(system: &mut System) -> Checked {
    let open = system.read("/proc/driver/nvidia/version").map(|text| text.contains("Open Kernel Module"));
    let one = |name: &str| {
        let provider = system.read(format!("/sys/class/infiniband/{name}/device/p2p"))?;
        Some(match (provider.as_str(), open) {
            ("NONE", Some(false)) => Outcome::warn("p2p is NONE, and NVIDIA's kernel modules are closed"),
            ("NONE", _) => Outcome::pass("NONE; memory of the GPU is registered as dmabufs"),
            (other, _) => Outcome::pass(other),
        })
    };
    let named = system.adapters().into_iter().filter_map(|adapter| adapter.rdma);
    let all: Vec<_> = named.filter_map(|name| Some((Some(name.clone()), one(&name)?))).collect();
    match all.is_empty() {
        true => Outcome::unknown("this driver does not report it").into(),
        false => Ok(Outcomes(all)),
    }
}

/// DEV-011.
pub(crate) fn other_devices(system: &mut System) -> Checked {
    let base = Path::new("/sys/class/infiniband");
    let vendor = |name: &String| system.read(base.join(name).join("device/vendor"));
    let is_other = |name: &String| vendor(name).is_some_and(|vendor| vendor != AMAZON);
    let others: Vec<String> = system.list(base).into_iter().filter(is_other).collect();
    if others.is_empty() {
        return Outcome::pass("no RDMA device beside EFA").into();
    }
    match system.nccl_variable("NCCL_IB_HCA") {
        Some((value, _)) => Outcome::pass(format!("{}; NCCL_IB_HCA={value}", others.join(", "))).into(),
        None => Outcome::warn(format!("{}, and NCCL_IB_HCA is not set", others.join(", "))).into(),
    }
}

/// DEV-012.
pub(crate) fn holders(system: &mut System) -> Checked {
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let is_adapter =
        |target: &Path| target.starts_with("/dev/infiniband") && target.to_string_lossy().contains("uverbs");
    let own = std::process::id().to_string();
    let holds = |process: &String| {
        let folder = Path::new("/proc").join(process).join("fd");
        let target = |name: &String| std::fs::read_link(system.path(&folder).join(name)).ok();
        *process != own && system.list(&folder).iter().filter_map(target).any(|target| is_adapter(&target))
    };
    let all = system.list("/proc").into_iter().filter(is_number).take(MOST_PROCESSES);
    let processes: Vec<String> = all.filter(holds).collect();
    match processes.len() {
        0 => Outcome::pass("none that this user may examine").into(),
        _ => Outcome::pass(format!("processes {}", processes.join(", "))).into(),
    }
}

/// ENV-009.
pub(crate) fn shared_memory(system: &mut System) -> Checked {
    let Some(mounts) = system.read("/proc/self/mounts") else {
        return Outcome::unknown("/proc/self/mounts cannot be read").into();
    };
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    // A later mount hides an earlier one.
    let Some(options) = fields.rfind(|line| line.get(1) == Some(&"/dev/shm")) else {
        return Outcome::unknown("nothing is mounted at /dev/shm").into();
    };
    let size = options.get(3).and_then(|all| all.split(',').find_map(|one| one.strip_prefix("size=")));
    let bytes = size.and_then(|size| Some(size.strip_suffix('k')?.parse::<u64>().ok()?.saturating_mul(1024)));
    match bytes {
        None => Outcome::pass("/dev/shm with no stated size, which is half of the memory").into(),
        Some(bytes) if bytes >= SHARED_ENOUGH => Outcome::pass(format!("/dev/shm of {bytes} bytes")).into(),
        Some(bytes) => Outcome::warn(format!("/dev/shm of {bytes} bytes")).into(),
    }
}
