//! EFA adapters in sysfs.

use std::path::Path;

use super::System;

/// The PCI vendor of EFA adapters: Amazon.
const VENDOR: u32 = 0x1d0f;
/// The PCI device ids of EFA adapters.
const DEVICES: std::ops::RangeInclusive<u32> = 0xefa0..=0xefa3;

/// An adapter in sysfs.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    /// PCI address, such as `0000:4f:00.0`.
    pub(crate) pci: String,
    /// PCI device id, `efa0` to `efa3`.
    pub(crate) device: u32,
    /// The kernel driver bound to it.
    pub(crate) driver: Option<String>,
    /// Its RDMA device, such as `rdmap79s0`.
    pub(crate) rdma: Option<String>,
    /// The name of its uverbs node, such as `uverbs0`.
    pub(crate) uverbs: Option<String>,
}

impl Adapter {
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

impl System {
    /// The EFA adapters on the PCI bus; with `--device`, only the one that it names.
    pub(crate) fn adapters(&self) -> Vec<Adapter> {
        let mut adapters = self.all_adapters();
        if let Some(wanted) = &self.device {
            adapters.retain(|adapter| adapter.is_named(wanted));
        }
        adapters
    }

    /// All EFA adapters on the PCI bus.
    pub(crate) fn all_adapters(&self) -> Vec<Adapter> {
        let base = Path::new("/sys/bus/pci/devices");
        self.list(base).into_iter().filter_map(|pci| self.adapter(&base.join(&pci), pci)).collect()
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
