//! The rows of DEV: adapters and their kernel driver.

use super::*;
use crate::checks::{dev, node};

pub(super) static ROWS: &[Row] = &[
    declared("DEV-001", "An EFA adapter is on the PCI bus", Run::Machine(dev::pci))
        .of(Hardware)
        .stops(HARDWARE)
        .who(&[Account])
        .fix(dev::ATTACH)
        .page(
            "Searches `/sys/bus/pci/devices` for PCI devices 1d0f:efa0 to 1d0f:efa4, and for the adapter \
            that `--device` names. If there is none, no network interface of the type efa is attached to \
            the instance, or its type has no EFA. An EFA interface is attached at the launch, or while the \
            instance is stopped.",
        ),
    declared("DEV-002", "The efa kernel driver is loaded and new enough", Run::Machine(dev::driver))
        .needs(&["DEV-001"])
        .of(Hardware)
        .stops(EVERY)
        .who(&[Operator])
        .fix("run the EFA installer on the host")
        .page(
            "Reads `/sys/module/efa` and its version. Drivers before 3.3.0, which EFA installer 1.50.0 \
            contains, have no completion counters, which NCCL's EFA-GDA requires (warn). Drivers before \
            2.17 also refuse completion queues in external memory, such as a GPU's. The in-tree driver of \
            Linux has no version: `unknown`, or a warning if DKMS built the driver for another kernel only, as \
            after an update of the kernel. A driver that is not loaded beside MLNX_OFED's `mlx_compat` cannot \
            be: efa does not run on that RDMA stack.",
        ),
    declared("DEV-003", "The adapter has an RDMA device", Run::Machine(dev::bound))
        .needs(&["DEV-001"])
        .of(Hardware)
        .each(Subject::Adapter)
        .stops(EVERY)
        .who(&[Operator])
        .action(Action::Restart)
        .expects(
            "driver efa and an RDMA device",
            "the kernel module efa, which drives the adapter, is not loaded or did not start; \
             libfabric finds adapters through their RDMA devices",
        )
        .fix("bind the adapter to the driver efa; dmesg on the host says why the driver did not start")
        .page(
            "An adapter that is bound to no driver or to vfio, or whose driver failed to start, has no RDMA \
            device, and libfabric does not find it. `dmesg` on the host has the reason.",
        ),
    declared("DEV-004", "The adapter's port is active", Run::Machine(dev::port))
        .needs(&["DEV-003"])
        .of(Hardware)
        .each(Subject::Adapter)
        .stops(EVERY)
        .who(&[Account])
        .action(Action::Isolate)
        .expects("4: ACTIVE", "the adapter's port is down, and carries no traffic")
        .fix(dev::REPLACE)
        .page(
            "Reads the state of port 1 in `/sys/class/infiniband/<device>/ports/1/state`. A port that is \
            not active carries no traffic.",
        ),
    declared("DEV-005", "The adapter's device node is in /dev/infiniband", Run::Machine(dev::node))
        .needs(&["DEV-003"])
        .of(Hardware)
        .each(Subject::Adapter)
        .stops(EVERY)
        .who(&[Pod, Operator])
        .expects("a uverbs node in /dev/infiniband", "libibverbs reaches the adapter through this node")
        .fix("docker: --device /dev/infiniband/uverbsN; Kubernetes: the resource vpc.amazonaws.com/efa")
        .page(
            "The `uverbs` node that sysfs names must exist in the container's `/dev/infiniband`. Docker: \
            `--device /dev/infiniband/uverbsN`; Kubernetes: the resource `vpc.amazonaws.com/efa`. On the \
            host, the module `ib_uverbs` must be loaded; it is if sysfs shows any uverbs device. If the \
            host lacks the node although sysfs shows the device, `udevadm trigger` there lets udev create \
            it.",
        ),
    proven("DEV-006", "The adapter's device node opens", Run::Nodes(dev::opens))
        .needs(&["DEV-005"])
        .of(Hardware)
        .each(Subject::Adapter)
        .stops(EVERY)
        .who(&[Pod, Operator])
        .action(Action::Restart)
        .expects(
            "a device node that opens for reading and writing",
            "libraries report \"no adapter\" if the node exists and does not open",
        )
        .fix(
            "allow the device in the container's device cgroup (docker --device PATH; a bind \
             mount does not do that), and give the container's user read and write permission",
        )
        .page(
            "Opens the node for reading and writing, as libibverbs does, in a worker process, because an \
            open can block in a stuck driver. A node that was only bind-mounted exists, and its open fails \
            with \"operation not permitted\": the device cgroup must allow it. \"Permission denied\" is \
            caused by the file's owner and mode. \"No such device\" and \"no such device or address\" mean \
            that the node is stale: the driver was loaded again after the container got it, and the device \
            now has another number.",
        ),
    declared("DEV-007", "The device nodes of all adapters are visible", Run::Machine(dev::all_nodes))
        .needs(&["DEV-003"])
        .of(Hardware)
        .follows(IfSameRole(&["DEV-005"]))
        .who(&[Pod])
        .expects(
            "a device node for each adapter on the PCI bus",
            "a transport that counts adapters in sysfs waits for adapters that it cannot open",
        )
        .fix("add all EFA devices to the container, or name the adapters to use (--device, FI_EFA_IFACE)")
        .page(
            "Warns if some of several nodes are missing: programs that count adapters in sysfs then wait \
            for adapters that they cannot open. Add all nodes to the container, or name the adapters that \
            the program must use.",
        ),
    declared("DEV-008", "The machine shows all devices of its instance type", Run::Machine(dev::all_devices))
        .needs(&["DEV-001"])
        .of(Hardware)
        .who(&[Operator])
        .action(Action::Isolate)
        .fix(
            "wait a few minutes after the boot; attach the missing EFA interfaces; replace an instance that \
            lost a GPU",
        )
        .page(
            "Compares the EFA adapters and NVIDIA GPUs on the PCI bus with those that AWS documents for the \
            instance type (p4d to p6-b300). Fewer adapters are a warning: on P5en they can appear minutes \
            after the boot, and an instance can be launched with fewer EFA interfaces. A GPU that is \
            missing on the PCI bus is a failure, and the node is taken out of service (`isolate`). \
            `unknown` for other types, and where DMI does not identify EC2.",
        ),
    proven("DEV-009", "GDRCopy's device node opens", Run::Nodes(node::gdrdrv))
        .of(Hardware)
        .stops(NCCL_PASSES)
        .who(&[Pod, Operator])
        .expects(
            "/dev/gdrdrv opens for reading and writing",
            "libgdrapi reports \"gdr_open error: Is gdrdrv driver installed and loaded?\", and NCCL's EFA plugin does \
            without GIN",
        )
        .fix(
            "give the container the device (docker --device /dev/gdrdrv; Kubernetes: a hostPath of it, with the right \
            to open it); if the host lacks it, load gdrdrv again with GDRCopy's script, which makes the node",
        )
        .page(
            "Opens `/dev/gdrdrv` in a worker process, apart from the release of the module (LIB-008): the \
            module is the host's, and the node is the container's. `unknown` if the module is not loaded.",
        ),
    declared("DEV-010", "Something maps GPU memory for the adapter", Run::Machine(node::peer_to_peer))
        .needs(&["DEV-003"])
        .of(Hardware)
        .each(Subject::Adapter)
        .who(&[Operator])
        .expects(
            "a provider in /sys/class/infiniband/DEVICE/device/p2p, or NVIDIA's open kernel modules",
            "memory of the GPU does not register: closed modules on a new kernel leave neither peer memory nor dmabufs",
        )
        .fix("on the host: install NVIDIA's open kernel modules, or load nvidia-peermem (efa_nv_peermem)")
        .page(
            "Reads which provider of peer memory the efa driver found. `NONE` is right with NVIDIA's open \
            kernel modules, which export dmabufs; with closed ones nothing maps GPU memory (warn). NCCL then \
            logs `NET/OFI Disabling shared memory failed: Protocol not available` or does without GPUDirect. \
            `unknown` if the driver does not report it.",
        ),
    declared("DEV-011", "NCCL takes EFA among the RDMA devices", Run::Machine(node::other_devices))
        .needs(&["DEV-003"])
        .of(Hardware)
        .who(&[Job])
        .expects(
            "no RDMA device beside EFA, or NCCL_IB_HCA",
            "NCCL takes devices of other kinds for its own GIN, and reports \"only 2 GIN GDAKI NICs have been created\"",
        )
        .fix("set NCCL_IB_HCA=rdmap for jobs that use NCCL")
        .page(
            "Lists the devices in `/sys/class/infiniband` that are no EFA adapter, such as the two onboard \
            `ibp*` of a p6-b300. Without `NCCL_IB_HCA` NCCL can take them (warn).",
        ),
    declared("DEV-012", "The processes that hold an adapter are known", Run::Machine(node::holders))
        .needs(&["DEV-003"])
        .of(Hardware)
        .who(&[Job])
        .fix("end the processes that the observed text names, if their job has ended")
        .page(
            "Lists the processes that have a device node of an adapter open, by `/proc/*/fd` of those that \
            the user may examine. It always passes: jobs hold adapters. An adapter has 512 completion \
            counters and 768 queue pairs; ranks that a job left behind use them up, and \
            `cntr_open_ext failed: Cannot allocate memory` or an ENOMEM of `fi_enable` follows.",
        ),
];
