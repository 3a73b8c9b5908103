//! The directory that the preloaded library shows as `/dev/infiniband` and as parts of `/sys`, and that libibverbs and
//! libfabric read as sysfs (`SYSFS_PATH`). It states the adapters' names, ids and GIDs, and no state that changes: the
//! library reads the counters from the broker.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use softefa_abi::protocol::{COUNTERS, FIRST_SLOT, NAME_PREFIX};

use crate::broker::gid;

/// The counters of a device, as the EFA driver names them (`EFA_DEFINE_DEVICE_STATS`, `efa_verbs.c`). They count commands
/// of an admin queue, which softefa does not have.
const DEVICE_COUNTERS: [&str; 12] = [
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "alloc_pd_err",
    "create_qp_err",
    "create_cq_err",
    "reg_mr_err",
    "alloc_ucontext_err",
    "create_ah_err",
    "mmap_err",
];
/// Milliseconds for which the kernel caches counters.
const LIFESPAN: &str = "10\n";
/// The PCI domain of the adapters, in which no machine has devices: another one could have its GPU at their address.
const DOMAIN: &str = "efa0";
/// The host bridge of the adapters' PCI functions.
const BRIDGE: &str = "devices/pciefa0:00";

/// The name of the adapter's RDMA device, formed of bus and slot as on EC2.
pub(crate) fn device_name(adapter: usize) -> String {
    format!("{NAME_PREFIX}{}", FIRST_SLOT as usize + adapter)
}

/// Creates `dev` and `sys` for `adapters` adapters under `root`.
pub(crate) fn create(root: &Path, adapters: usize) -> io::Result<()> {
    let (dev, sys) = (root.join("dev/infiniband"), root.join("sys"));
    fs::create_dir_all(&dev)?;
    write(&sys.join("class/infiniband_verbs/abi_version"), "6\n")?;
    for folder in ["class/infiniband", "bus/pci/devices", "bus/pci/drivers/efa"] {
        fs::create_dir_all(sys.join(folder))?;
    }
    for adapter in 0..adapters {
        // A character device, as the device file is one.
        symlink("/dev/null", dev.join(format!("uverbs{adapter}")))?;
        create_adapter(&sys, adapter)?;
    }
    show_machine(&sys);
    Ok(())
}

fn create_adapter(sys: &Path, adapter: usize) -> io::Result<()> {
    let (name, uverbs) = (device_name(adapter), format!("uverbs{adapter}"));
    let slot = FIRST_SLOT as usize + adapter;
    let function = format!("{DOMAIN}:00:{slot:02x}.0");
    let pci = sys.join(BRIDGE).join(&function);
    let alias = "pci:v00001D0Fd0000EFA2sv00001D0Fsd0000EFA2bc02sc00i00\n";
    for (file, text) in [
        ("modalias", alias),
        ("vendor", "0x1d0f\n"),
        ("device", "0xefa2\n"),
        ("subsystem_vendor", "0x1d0f\n"),
        ("subsystem_device", "0xefa2\n"),
        ("class", "0x020000\n"),
        ("revision", "0x00\n"),
        ("numa_node", "0\n"),
        ("current_link_speed", "32.0 GT/s PCIe\n"),
        ("current_link_width", "16\n"),
        ("max_link_speed", "32.0 GT/s PCIe\n"),
        ("max_link_width", "16\n"),
        // libpci and libpciaccess list no device at all if one lacks these.
        ("irq", "0\n"),
        ("resource", &"0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(13)),
        // The device number of /dev/null, which stands in for the device file.
        (&format!("infiniband_verbs/{uverbs}/dev"), "1:3\n"),
        (&format!("infiniband_verbs/{uverbs}/ibdev"), &format!("{name}\n")),
        (&format!("infiniband_verbs/{uverbs}/abi_version"), "1\n"),
    ] {
        write(&pci.join(file), text)?;
    }
    fs::write(pci.join("config"), configuration_space())?;
    let infiniband = pci.join("infiniband").join(&name);
    let gid = gid(adapter).0;
    let words = |bytes: &[u8]| {
        let words: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        format!("{}\n", words.join(":"))
    };
    for (file, text) in [
        ("node_type", "7: unspecified\n"),
        ("node_guid", &words(&gid[8..])),
        ("sys_image_guid", &words(&gid[8..])),
        ("fw_ver", "0.0.0.0\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/phys_state", "5: LinkUp\n"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("ports/1/link_layer", "Unspecified\n"),
        ("ports/1/pkeys/0", "0xffff\n"),
        ("ports/1/gids/0", &words(&gid)),
        ("hw_counters/lifespan", LIFESPAN),
        ("ports/1/hw_counters/lifespan", LIFESPAN),
    ] {
        write(&infiniband.join(file), text)?;
    }
    for counter in DEVICE_COUNTERS {
        write(&infiniband.join("hw_counters").join(counter), "0\n")?;
    }
    for counter in COUNTERS {
        // Empty: what reads it without the library must not take it for a value.
        write(&infiniband.join("ports/1/hw_counters").join(counter), "")?;
    }
    for (link, target) in [
        (pci.join("driver"), "../../../bus/pci/drivers/efa".to_owned()),
        (infiniband.join("device"), format!("../../../{function}")),
        (pci.join("infiniband_verbs").join(&uverbs).join("device"), format!("../../../{function}")),
        (sys.join("bus/pci/devices").join(&function), format!("../../../{BRIDGE}/{function}")),
        (sys.join("class/infiniband").join(&name), format!("../../{BRIDGE}/{function}/infiniband/{name}")),
        (
            sys.join("class/infiniband_verbs").join(&uverbs),
            format!("../../{BRIDGE}/{function}/infiniband_verbs/{uverbs}"),
        ),
    ] {
        symlink(target, link)?;
    }
    Ok(())
}

/// An adapter's PCI configuration space: the ids and the class that the files beside it state, and no BAR.
fn configuration_space() -> [u8; 256] {
    let mut bytes = [0; 256];
    for (at, value) in [(0, 0x1d0f), (2, 0xefa2), (0xa, 0x0200), (0x2c, 0x1d0f), (0x2e, 0xefa2_u16)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Adds the machine's own PCI devices, which programs such as the CUDA driver look up at the same paths. The links in
/// `bus/pci/devices` are the machine's; their targets are below links to the machine's directories.
fn show_machine(sys: &Path) {
    let machine = Path::new("/sys");
    for folder in ["bus/pci/devices", "devices"] {
        // A machine or container may not have the directory.
        for entry in fs::read_dir(machine.join(folder)).into_iter().flatten().flatten() {
            let path = entry.path();
            let target = fs::read_link(&path).unwrap_or(path);
            // Without the link, the program does not find the device. It can find the adapters.
            let _ = symlink(target, sys.join(folder).join(entry.file_name()));
        }
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)
}
