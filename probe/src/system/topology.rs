//! The nearness of a GPU and an adapter: the PCI bridges that they share, and their NUMA nodes, from
//! sysfs.

use std::path::Path;

use super::System;
use crate::model::{Gpu, Pair, Pairs};

/// The nearness of two devices; a greater value is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nearness {
    /// PCI bridges above both, the host bridge included.
    bridges: usize,
    same_node: bool,
}

impl Nearness {
    /// Describes the nearness in a report.
    pub(crate) fn describe(self) -> String {
        let node = if self.same_node { "same NUMA node" } else { "another NUMA node, or none known" };
        match self.bridges {
            0 => format!("no PCI bridge shared, {node}"),
            1 => format!("the same PCI host bridge, {node}"),
            more => format!("{more} PCI bridges shared, {node}"),
        }
    }
}

impl System {
    /// The nearness of `gpu` and the adapter of the libfabric domain `domain`. None unless sysfs has both;
    /// it has no software adapter.
    pub(crate) fn nearness(&self, gpu: &Gpu, domain: &str) -> Option<Nearness> {
        if self.soft {
            return None;
        }
        let gpu = gpu.pci.as_deref()?;
        let adapter = &self.all_adapters().iter().find(|adapter| adapter.is_named(domain))?.pci;
        let (left, right) = (self.pci_path(gpu)?, self.pci_path(adapter)?);
        let bridges = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
        let same_node = self.numa_node(gpu).is_some_and(|node| self.numa_node(adapter) == Some(node));
        Some(Nearness { bridges, same_node })
    }

    /// The host bridge and the PCI bridges above a device, from the root.
    fn pci_path(&self, address: &str) -> Option<Vec<String>> {
        let real = self.path(Path::new("/sys/bus/pci/devices").join(address)).canonicalize().ok()?;
        let mut names: Vec<String> =
            real.components().map(|name| name.as_os_str().to_string_lossy().into_owned()).collect();
        names.pop();
        let top = names.iter().position(|name| name.starts_with("pci") && name.contains(':'))?;
        Some(names.split_off(top))
    }

    fn numa_node(&self, address: &str) -> Option<u32> {
        self.read(format!("/sys/bus/pci/devices/{address}/numa_node"))?.parse().ok()
    }

    /// The RDMA device of the adapter nearest to `gpu`; None if the nearness of no adapter is known.
    pub(crate) fn nearest_adapter(&self, gpu: &Gpu) -> Option<String> {
        let names = self.all_adapters().iter().filter_map(|adapter| adapter.rdma.clone());
        let near = names.filter_map(|name| Some((self.nearness(gpu, &name)?, name)));
        near.max_by_key(|(nearness, _)| *nearness).map(|(_, name)| name)
    }

    /// The pairs that take part, ordered by GPU. A device whose nearness is unknown counts as near.
    pub(crate) fn pairs(&self, gpus: &[Gpu], adapters: &[String], choice: Pairs) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for gpu in gpus {
            let near: Vec<_> = adapters.iter().map(|adapter| self.nearness(gpu, adapter)).collect();
            let nearest = near.iter().flatten().max();
            for (adapter, nearness) in adapters.iter().zip(&near) {
                if choice == Pairs::All || nearness.is_none() || nearness.as_ref() == nearest {
                    pairs.push(Pair { gpu: gpu.number, adapter: adapter.clone() });
                }
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A machine of two sockets: GPU 0 shares a switch with two adapters, GPU 1 a NUMA node with one.
    struct Machine(PathBuf);

    impl Machine {
        fn new(test: &str) -> Self {
            let root = std::env::temp_dir().join(format!("gda-probe-topology-{test}-{}", std::process::id()));
            let machine = Self(root);
            let _ = std::fs::remove_dir_all(&machine.0);
            let switch = "pci0000:10/0000:10:01.0/0000:11:00.0";
            machine.device(&format!("{switch}/0000:12:00.0/0000:13:00.0"), 0, None);
            machine.device(&format!("{switch}/0000:12:01.0/0000:14:00.0"), 0, Some("rdmap20s0"));
            machine.device(&format!("{switch}/0000:12:02.0/0000:15:00.0"), 0, Some("rdmap21s0"));
            machine.device("pci0000:30/0000:30:01.0/0000:31:00.0", 0, Some("rdmap49s0"));
            machine.device("pci0000:80/0000:80:01.0/0000:81:00.0", 1, None);
            machine.device("pci0000:90/0000:90:01.0/0000:91:00.0", 1, Some("rdmap145s0"));
            machine
        }

        fn device(&self, path: &str, node: u32, rdma: Option<&str>) {
            let directory = self.0.join("sys/devices").join(path);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("numa_node"), format!("{node}\n")).unwrap();
            if let Some(rdma) = rdma {
                std::fs::write(directory.join("vendor"), "0x1d0f\n").unwrap();
                std::fs::write(directory.join("device"), "0xefa2\n").unwrap();
                std::fs::create_dir_all(directory.join("infiniband").join(rdma)).unwrap();
            }
            let all = self.0.join("sys/bus/pci/devices");
            std::fs::create_dir_all(&all).unwrap();
            // As sysfs does, relative to the directory of the link.
            let target = Path::new("../../../devices").join(path);
            symlink(&target, all.join(directory.file_name().unwrap())).unwrap();
        }

        fn pairs(&self, choice: Pairs, soft: bool) -> Vec<String> {
            let system = System { root: self.0.clone(), soft, ..System::default() };
            let gpu = |number, pci: &str| Gpu { number, name: String::new(), pci: Some(pci.to_owned()) };
            let gpus = [gpu(0, "0000:13:00.0"), gpu(1, "0000:81:00.0")];
            let adapters =
                ["rdmap20s0", "rdmap21s0", "rdmap49s0", "rdmap145s0"].map(|name| format!("{name}-rdm"));
            system.pairs(&gpus, &adapters, choice).iter().map(Pair::subject).collect()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn near_pairs_share_the_innermost_bridge_or_else_the_numa_node() {
        let pairs = Machine::new("near").pairs(Pairs::Near, false);
        assert_eq!(pairs, ["0/rdmap20s0-rdm", "0/rdmap21s0-rdm", "1/rdmap145s0-rdm"]);
    }

    #[test]
    fn all_pairs_are_every_gpu_with_every_adapter() {
        assert_eq!(Machine::new("all").pairs(Pairs::All, false).len(), 8);
    }

    #[test]
    fn a_software_adapter_pairs_with_every_gpu() {
        assert_eq!(Machine::new("soft").pairs(Pairs::Near, true).len(), 8);
    }
}
