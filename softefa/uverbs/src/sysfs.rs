//! The directory that libibverbs and libfabric read as sysfs (`SYSFS_PATH`). It states the adapters' names, ids and
//! GIDs, and no state that changes.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::broker::gid;

/// The name of the adapter's RDMA device, formed of bus and slot as on EC2.
pub(crate) fn device_name(adapter: usize) -> String {
    format!("rdmap0s{}", 6 + adapter)
}

/// Creates the files for `adapters` adapters under `root`.
pub(crate) fn create(root: &Path, adapters: usize) -> io::Result<()> {
    let classes = root.join("class");
    write(&classes.join("infiniband_verbs/abi_version"), "6\n")?;
    for adapter in 0..adapters {
        let name = device_name(adapter);
        let slot = 6 + adapter;
        let function = format!("0000:{:02x}:{:02x}.0", slot / 32, slot % 32);
        let uverbs = classes.join(format!("infiniband_verbs/uverbs{adapter}"));
        write(&uverbs.join("ibdev"), &format!("{name}\n"))?;
        // The device number of /dev/null, which stands in for the device file.
        write(&uverbs.join("dev"), "1:3\n")?;
        write(&uverbs.join("abi_version"), "1\n")?;

        let pci = root.join("devices/pci0000:00").join(&function);
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
        ] {
            write(&pci.join(file), text)?;
        }
        fs::create_dir_all(root.join("bus/pci/drivers/efa"))?;
        symlink("../../../bus/pci/drivers/efa", pci.join("driver"))?;
        fs::create_dir_all(pci.join("infiniband_verbs"))?;
        symlink(
            format!("../../../../class/infiniband_verbs/uverbs{adapter}"),
            pci.join(format!("infiniband_verbs/uverbs{adapter}")),
        )?;

        let infiniband = classes.join("infiniband").join(&name);
        let gid = gid(adapter).0;
        let words = |bytes: &[u8]| {
            let words: Vec<_> =
                bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
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
        ] {
            write(&infiniband.join(file), text)?;
        }
        symlink(format!("../../../devices/pci0000:00/{function}"), infiniband.join("device"))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)
}
