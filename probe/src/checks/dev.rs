//! Adapters on the PCI bus, their kernel driver, and their device nodes in this container.

use std::fs::OpenOptions;
use std::path::Path;

use crate::check::{Checked, Outcome, Outcomes};
use crate::model::Party;
use crate::releases::{COUNTERS_OF_DRIVER, EXTERNAL_QUEUES, INSTALLER_WITH_COUNTERS};
use crate::system::System;
use crate::system::adapters::Adapter;
use crate::system::instance::devices_of;

/// How a machine gets an adapter.
pub(crate) const ATTACH: &str = "in the AWS account: launch a type with GPU-Direct Async (p5en, p6-b200, p6-b300) \
             with network interfaces of the type efa, or stop the instance and attach such an \
             interface; without EFA, use the software adapter (--soft)";
/// What helps if an adapter's port is down.
pub(crate) const REPLACE: &str = "in the AWS account: check that the adapter's EFA interface is attached, then stop \
             and start the instance; replace the instance if the port stays down";

/// One outcome for each adapter.
fn for_each(system: &System, check: impl Fn(&Adapter) -> Option<Outcome>) -> Checked {
    let one = |adapter: Adapter| Some((Some(adapter.name().to_owned()), check(&adapter)?));
    Ok(Outcomes(system.adapters().into_iter().filter_map(one).collect()))
}

pub(crate) fn pci(system: &mut System) -> Checked {
    let found = system.adapters();
    if !found.is_empty() {
        let describe = |adapter: &Adapter| format!("{} (1d0f:{:04x})", adapter.pci, adapter.device);
        return Outcome::pass(found.iter().map(describe).collect::<Vec<_>>().join(", ")).into();
    }
    let all = system.all_adapters();
    let why = "without an adapter there is no queue to map";
    match &system.device {
        Some(wanted) if !all.is_empty() => {
            let names: Vec<&str> = all.iter().map(Adapter::name).collect();
            Outcome::fail(format!("no adapter is named {wanted}; found: {}", names.join(", ")))
                .expects("an adapter of that name", why)
                .fix("name one of those in --device, or omit the option", Party::Caller)
        }
        _ => Outcome::fail("no PCI device 1d0f:efa0 to efa4 in /sys/bus/pci/devices")
            .expects("at least one EFA adapter", why)
            .fix(ATTACH, Party::Account),
    }
    .into()
}

pub(crate) fn driver(system: &mut System) -> Checked {
    let required = format!("{} or newer", COUNTERS_OF_DRIVER.describe());
    if !system.exists("/sys/module/efa") {
        if system.exists("/sys/module/mlx_compat") {
            return Outcome::fail(
                "no /sys/module/efa, and mlx_compat is loaded: the RDMA stack is MLNX_OFED's",
            )
            .expects(required, "efa does not run on the ib_core of MLNX_OFED, which replaces the kernel's")
            .fix(
                "on the host: uninstall MLNX_OFED (ofed_uninstall.sh), and run the EFA installer again",
                Party::Operator,
            )
            .into();
        }
        return Outcome::fail("no /sys/module/efa: the module is not loaded")
            .expects(required, "the kernel driver creates queues and maps them")
            .fix(
                "on the host: install the EFA driver with the EFA installer, or load it (modprobe efa)",
                Party::Operator,
            )
            .into();
    }
    let Some(version) = system.read("/sys/module/efa/version") else {
        let kernel = system.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let observed = format!("the in-tree driver of Linux {kernel}");
        let others = kernels_with_driver(system);
        if !others.is_empty() && !others.contains(&kernel) {
            return Outcome::warn(format!("{observed}; DKMS has efa for {} only", others.join(", ")))
                .expects(
                    required,
                    "DKMS did not build the driver for the kernel that runs, and Linux loaded its own, which can lack \
                     completion counters",
                )
                .fix(
                    format!(
                        "on the host: install the headers of Linux {kernel}, build the driver (dkms autoinstall), and \
                         load it again or reboot"
                    ),
                    Party::Operator,
                )
                .into();
        }
        return Outcome::Unknown(Some(observed), "the in-tree driver has no version".to_owned()).into();
    };
    let lacks = [
        (&COUNTERS_OF_DRIVER, "completion counters, which NCCL's EFA-GDA requires"),
        (&EXTERNAL_QUEUES, "completion queues in external memory, such as a GPU's"),
    ];
    let lacks: Vec<&str> =
        lacks.iter().filter(|(release, _)| !release.is_in(&version)).map(|(_, piece)| *piece).collect();
    if lacks.is_empty() {
        return Outcome::pass(format!("efa {version}")).into();
    }
    Outcome::warn(format!("efa {version}"))
        .expects(required, format!("this driver lacks {}", lacks.join(", and ")))
        .fix(
            format!(
                "on the host: update the efa kernel driver {version} to {} or newer ({} contains it)",
                COUNTERS_OF_DRIVER.first,
                INSTALLER_WITH_COUNTERS.describe()
            ),
            Party::Operator,
        )
        .into()
}

/// The kernels for which DKMS or the installer built the driver.
fn kernels_with_driver(system: &System) -> Vec<String> {
    let base = Path::new("/lib/modules");
    let has = |kernel: &String| {
        ["updates/dkms", "extra", "updates"].iter().any(|folder| {
            system.list(base.join(kernel).join(folder)).iter().any(|name| name.starts_with("efa.ko"))
        })
    };
    system.list(base).into_iter().filter(has).collect()
}

pub(crate) fn bound(system: &mut System) -> Checked {
    for_each(system, |adapter| {
        if let (Some("efa"), Some(rdma)) = (adapter.driver.as_deref(), &adapter.rdma) {
            return Some(Outcome::pass(rdma));
        }
        Some(
            Outcome::fail(format!(
                "kernel driver of the adapter: {}; its RDMA device: {}",
                adapter.driver.as_deref().unwrap_or("none"),
                adapter.rdma.as_deref().unwrap_or("none")
            ))
            .fix(bind(adapter, shows_uverbs(system)), Party::Operator),
        )
    })
}

/// Whether a device of the module ib_uverbs is in sysfs, so that the module is loaded.
fn shows_uverbs(system: &System) -> bool {
    let is_device = |name: &String| name.starts_with("uverbs");
    system.all_adapters().iter().any(|adapter| adapter.uverbs.is_some())
        || system.list(Path::new("/sys/class/infiniband_verbs")).iter().any(is_device)
}

/// How an adapter gets its driver.
fn bind(adapter: &Adapter, has_uverbs: bool) -> String {
    let (pci, drivers) = (&adapter.pci, "/sys/bus/pci/drivers");
    let load = if has_uverbs { "modprobe efa" } else { "modprobe -a efa ib_uverbs" };
    match adapter.driver.as_deref() {
        Some("efa") => {
            format!("on the host: search dmesg for efa's errors, and load it again (modprobe -r efa; {load})")
        }
        Some(other) => format!(
            "on the host: load the driver ({load}), and bind the adapter to it instead of \
             {other} (echo {pci} > {drivers}/{other}/unbind; echo {pci} > {drivers}/efa/bind)"
        ),
        None => format!(
            "on the host: load the driver ({load}); if it is loaded, bind the adapter to it (echo {pci} > \
             {drivers}/efa/bind); dmesg has its errors"
        ),
    }
}

pub(crate) fn port(system: &mut System) -> Checked {
    for_each(system, |adapter| {
        let rdma = adapter.rdma.as_deref()?;
        let Some(state) = system.read(format!("/sys/class/infiniband/{rdma}/ports/1/state")) else {
            return Some(Outcome::unknown("sysfs has no state of this port"));
        };
        if state.contains("ACTIVE") {
            return Some(Outcome::pass(state));
        }
        Some(Outcome::fail(state).fix(REPLACE, Party::Account))
    })
}

/// The path of the adapter's device node. None without a uverbs device.
pub(crate) fn node_path(adapter: &Adapter) -> Option<String> {
    Some(format!("/dev/infiniband/{}", adapter.uverbs.as_deref()?))
}

pub(crate) fn node(system: &mut System) -> Checked {
    for_each(system, |adapter| {
        adapter.rdma.as_ref()?;
        let Some(path) = node_path(adapter) else {
            let (observed, fix) = match shows_uverbs(system) {
                true => (
                    "no uverbs device of this adapter in sysfs, although ib_uverbs is loaded",
                    "on the host: search dmesg for the errors of efa and ib_uverbs, and load efa again \
             (modprobe -r efa; modprobe efa)",
                ),
                false => (
                    "no uverbs device in sysfs: ib_uverbs is not loaded",
                    "on the host: load ib_uverbs (modprobe ib_uverbs)",
                ),
            };
            return Some(Outcome::fail(observed).fix(fix, Party::Operator));
        };
        if system.exists(&path) {
            return Some(Outcome::pass(path));
        }
        Some(Outcome::fail(format!("no {path}")).fix(
            format!(
                "give the container the device. Kubernetes: request the resource \
             vpc.amazonaws.com/efa. Docker: `--device {path}`"
            ),
            Party::Pod,
        ))
    })
}

pub(crate) fn opens(system: &mut System) -> Checked {
    for_each(system, |adapter| {
        let path = node_path(adapter)?;
        if !system.exists(&path) {
            return None;
        }
        let error = match OpenOptions::new().read(true).write(true).open(system.path(&path)) {
            Ok(_) => return Some(Outcome::pass(format!("{path} opens for reading and writing"))),
            Err(error) => error,
        };
        let failure = Outcome::fail(format!("{path}: {error}"));
        Some(match error.raw_os_error() {
            // The node is there, and no device of the kernel answers to its number.
            Some(libc::ENXIO | libc::ENODEV) => failure
                .why("the node is stale: the driver was loaded again since the container got it, and the device has another number")
                .fix(
                    "start the container again, so that it gets the present nodes; on the host, `udevadm trigger` makes \
                     them anew",
                    Party::Pod,
                ),
            _ => failure,
        })
    })
}

pub(crate) fn all_nodes(system: &mut System) -> Checked {
    let nodes: Vec<String> = system.all_adapters().iter().filter_map(node_path).collect();
    let (visible, missing): (Vec<&String>, Vec<&String>) =
        nodes.iter().partition(|path| system.exists(Path::new(path)));
    let observed = format!("{} of {} nodes are visible", visible.len(), nodes.len());
    if missing.is_empty() {
        return Outcome::pass(observed).into();
    }
    let name = |path: &&String| path.trim_start_matches("/dev/infiniband/").to_owned();
    let list: Vec<String> = missing.iter().map(name).collect();
    Outcome::warn(format!("{observed}; missing in /dev/infiniband: {}", list.join(", "))).into()
}

pub(crate) fn all_devices(system: &mut System) -> Checked {
    let instance = match system.instance_type() {
        Ok(instance) => instance,
        Err(observed) => {
            return Outcome::Unknown(Some(observed), "DMI does not identify an EC2 instance".to_owned())
                .into();
        }
    };
    let Some(devices) = devices_of(&instance) else {
        let why = "the probe does not know how many devices this type has".to_owned();
        return Outcome::Unknown(Some(instance), why).into();
    };
    let (adapters, gpus) = (system.all_adapters().len(), system.nvidia_pci().len());
    let observed = format!("{instance}: {adapters} EFA adapters and {gpus} GPUs on the PCI bus");
    // A machine without any GPU fails CUDA-000.
    let gpu_lost = gpus > 0 && gpus < devices.gpus;
    if adapters >= devices.adapters && !gpu_lost {
        return Outcome::pass(observed).into();
    }
    let required = format!("{} EFA adapters and {} GPUs", devices.adapters, devices.gpus);
    if gpu_lost {
        return Outcome::fail(observed)
            .expects(required, "a GPU left the PCI bus; ranks that count on the type's GPUs fail")
            .fix(
                "on the host: search dmesg for Xid and \"fallen off the bus\", and replace the \
             instance (stop and start it, or report it to AWS)",
                Party::Operator,
            )
            .into();
    }
    Outcome::warn(observed)
        .expects(required, "ranks that count on the type's adapters fail, or share an adapter and are slow")
        .fix(
            "if the machine has just booted, wait and run again: adapters can appear minutes \
             late; otherwise launch it with an EFA interface on each network card that supports \
             EFA; if they are attached, replace the instance",
            Party::Operator,
        )
        .into()
}
