//! EFA adapters in sysfs.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::System;

/// The PCI vendor of EFA adapters: Amazon.
const VENDOR: u32 = 0x1d0f;
/// The PCI device ids of EFA adapters.
const DEVICES: std::ops::RangeInclusive<u32> = 0xefa0..=0xefa4;

/// An adapter in sysfs.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    /// PCI address, such as `0000:4f:00.0`.
    pub(crate) pci: String,
    /// PCI device id, `efa0` to `efa4`.
    pub(crate) device: u32,
    /// The kernel driver bound to it.
    pub(crate) driver: Option<String>,
    /// Its RDMA device, such as `rdmap79s0`.
    pub(crate) rdma: Option<String>,
    /// The name of its uverbs node, such as `uverbs0`.
    pub(crate) uverbs: Option<String>,
}

impl Adapter {
    /// Whether only the newest rdma-core knows its PCI id.
    pub(crate) fn needs_newest_rdma_core(&self) -> bool {
        self.device == 0xefa4
    }

    /// The name in reports: the RDMA device, or the PCI address without one.
    pub(crate) fn name(&self) -> &str {
        self.rdma.as_deref().unwrap_or(&self.pci)
    }

    /// Whether `name` is this adapter's RDMA device, a libfabric domain of it (the efa provider appends
    /// `-rdm` or `-dgrm`), or its PCI address.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        let rdma = self.rdma.as_deref();
        let domain_of = name.rsplit_once('-').map(|(device, _)| device);
        name == self.pci || rdma == Some(name) || (rdma.is_some() && rdma == domain_of)
    }
}

/// A verbs device that is no EFA adapter and that this process cannot open.
#[derive(Clone, Debug)]
pub(crate) struct ForeignDevice {
    /// Its RDMA device, such as `mlx5_0`.
    name: String,
    /// Why it cannot be opened.
    why: String,
}

impl ForeignDevice {
    /// The device and the reason, for a report.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.name, self.why)
    }
}

impl System {
    /// The verbs devices that are no EFA adapters and whose node is missing or refuses to open.
    pub(crate) fn unusable_verbs_devices(&self) -> Vec<ForeignDevice> {
        let base = Path::new("/sys/class/infiniband_verbs");
        let adapters = self.all_adapters();
        let of_adapter =
            |uverbs: &str| adapters.iter().any(|adapter| adapter.uverbs.as_deref() == Some(uverbs));
        let foreign =
            self.list(base).into_iter().filter(|name| name.starts_with("uverbs") && !of_adapter(name));
        let unusable = foreign.filter_map(|uverbs| {
            let node = format!("/dev/infiniband/{uverbs}");
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(self.path(&node));
            let why = format!("{node}: {}", opened.err()?);
            let name = self.read(base.join(&uverbs).join("ibdev")).unwrap_or(uverbs);
            Some(ForeignDevice { name, why })
        });
        unusable.collect()
    }

    /// The EFA adapters on the PCI bus; with `--device`, only the one that it names.
    pub(crate) fn adapters(&self) -> Vec<Adapter> {
        let is_wanted = |adapter: &&Adapter| self.device.as_ref().is_none_or(|name| adapter.is_named(name));
        self.all_adapters().iter().filter(is_wanted).cloned().collect()
    }

    /// All EFA adapters on the PCI bus. They are read once: checks ask for them as often as there are adapters.
    pub(crate) fn all_adapters(&self) -> &[Adapter] {
        let base = Path::new("/sys/bus/pci/devices");
        self.found.get_or_init(|| {
            self.list(base).into_iter().filter_map(|pci| self.adapter(&base.join(&pci), pci)).collect()
        })
    }

    fn adapter(&self, directory: &Path, pci: String) -> Option<Adapter> {
        let number = |file: &str| {
            let text = self.read(directory.join(file))?;
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let device = number("device")?;
        if number("vendor")? != VENDOR || !DEVICES.contains(&device) {
            return None;
        }
        Some(Adapter {
            pci,
            device,
            driver: self.link_name(directory.join("driver")),
            rdma: self.list(directory.join("infiniband")).into_iter().next(),
            uverbs: self.list(directory.join("infiniband_verbs")).into_iter().next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_read_once_however_often_checks_ask_for_them() {
        let root = std::env::temp_dir().join(format!("gda-probe-adapters-{}", std::process::id()));
        let pci = root.join("sys/bus/pci/devices/0000:01:00.0");
        std::fs::create_dir_all(&pci).unwrap();
        std::fs::write(pci.join("vendor"), "0x1d0f\n").unwrap();
        std::fs::write(pci.join("device"), "0xefa2\n").unwrap();
        let system = System { root: root.clone(), ..System::default() };
        let first = system.all_adapters().len();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((first, system.all_adapters().len()), (1, 1));
    }
}
