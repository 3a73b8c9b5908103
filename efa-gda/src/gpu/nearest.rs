//! The adapter for a GPU: one of those that share most PCI bridges with it. GPUs that are equally near to the same
//! adapters take different ones of them, so that the ranks of one machine, one for each GPU, use all of its adapters.

use std::path::{Path, PathBuf};

use super::Gpu;

const DEVICES: &str = "/sys/bus/pci/devices";
/// NVIDIA's PCI vendor.
const VENDOR: &str = "0x10de";
/// The base class of display controllers, GPUs without a display included.
const DISPLAY: &str = "0x03";

impl Gpu {
    /// Returns the index of the adapter for this GPU, of those whose entries of sysfs are `adapters`. 0 if sysfs, as this
    /// process sees it, does not have the GPU or an adapter.
    pub(crate) fn nearest(&self, adapters: &[PathBuf]) -> usize {
        let Some(address) = self.pci_address() else { return 0 };
        let gpus: Vec<PathBuf> = gpus(Path::new(DEVICES));
        choose(&Path::new(DEVICES).join(address), &gpus, adapters)
    }
}

/// The entries of sysfs of the machine's GPUs.
fn gpus(devices: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten();
    let is = |device: &Path, file: &str, begin: &str| {
        std::fs::read_to_string(device.join(file)).is_ok_and(|text| text.starts_with(begin))
    };
    let all = entries.map(|entry| entry.path());
    all.filter(|device| is(device, "vendor", VENDOR) && is(device, "class", DISPLAY)).collect()
}

/// The index of the adapter for `gpu`, of all `gpus` of the machine.
fn choose(gpu: &Path, gpus: &[PathBuf], adapters: &[PathBuf]) -> usize {
    let adapters: Vec<Option<PathBuf>> = adapters.iter().map(|adapter| bridges(adapter)).collect();
    let near = |gpu: &Path| nearest(&bridges(gpu)?, &adapters);
    let Some(mine) = near(gpu) else { return 0 };
    let Ok(gpu) = gpu.canonicalize() else { return mine[0] };
    let mut sharing: Vec<PathBuf> = gpus.iter().filter_map(|other| other.canonicalize().ok()).collect();
    sharing.retain(|other| near(other).as_ref() == Some(&mine));
    sharing.sort();
    let position = sharing.iter().position(|other| *other == gpu).unwrap_or(0);
    // 2 GPUs and 4 adapters: the first and the third. 4 GPUs and 2 adapters: two GPUs to each.
    mine[position * mine.len() / sharing.len().max(1)]
}

/// The PCI bridges above a device, from the host bridge on, as one path.
fn bridges(device: &Path) -> Option<PathBuf> {
    Some(device.canonicalize().ok()?.parent()?.to_owned())
}

/// The indices of the adapters that share most bridges. None if nothing is known of any.
fn nearest(gpu: &Path, adapters: &[Option<PathBuf>]) -> Option<Vec<usize>> {
    let shared = |adapter: &PathBuf| {
        gpu.components().zip(adapter.components()).take_while(|(left, right)| left == right).count()
    };
    let near: Vec<Option<usize>> = adapters.iter().map(|adapter| adapter.as_ref().map(shared)).collect();
    let most = near.iter().flatten().max()?;
    Some((0..near.len()).filter(|index| near[*index].as_ref() == Some(most)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine whose devices are links to their places on the PCI tree, as in sysfs.
    struct Machine(PathBuf);

    impl Machine {
        fn new(test: &str, devices: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("efa-gda-nearest-{test}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            std::fs::create_dir_all(root.join("devices")).unwrap();
            for (name, bridges) in devices {
                let device = root.join(bridges).join(name);
                std::fs::create_dir_all(&device).unwrap();
                let (vendor, class) = if name.starts_with("gpu") {
                    ("0x10de\n", "0x030200\n")
                } else {
                    ("0x1d0f\n", "0x020000\n")
                };
                std::fs::write(device.join("vendor"), vendor).unwrap();
                std::fs::write(device.join("class"), class).unwrap();
                symlink(&device, root.join("devices").join(name)).unwrap();
            }
            Self(root)
        }

        /// The adapter that each of `names` takes, of `adapters`.
        fn chosen(&self, names: &[&str], adapters: &[&str]) -> Vec<String> {
            let devices = self.0.join("devices");
            let paths: Vec<PathBuf> = adapters.iter().map(|name| devices.join(name)).collect();
            let of = |name: &&str| adapters[choose(&devices.join(name), &gpus(&devices), &paths)].to_owned();
            names.iter().map(of).collect()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_gpu_takes_an_adapter_of_its_own_switch() {
        let machine = Machine::new(
            "switch",
            &[("gpu0", "pci0/s0"), ("gpu1", "pci1/s1"), ("efa0", "pci1/s1"), ("efa1", "pci0/s0")],
        );
        assert_eq!(machine.chosen(&["gpu0", "gpu1"], &["efa0", "efa1"]), ["efa1", "efa0"]);
    }

    #[test]
    fn gpus_that_are_equally_near_share_all_of_their_adapters() {
        let two = Machine::new(
            "spread",
            &[("gpu0", "pci0"), ("gpu1", "pci0"), ("a", "pci0"), ("b", "pci0"), ("c", "pci0"), ("d", "pci0")],
        );
        assert_eq!(two.chosen(&["gpu0", "gpu1"], &["a", "b", "c", "d"]), ["a", "c"]);
        assert_eq!(two.chosen(&["gpu0", "gpu1"], &["a"]), ["a", "a"]);
    }

    #[test]
    fn the_first_adapter_is_taken_if_sysfs_does_not_show_the_devices() {
        let machine = Machine::new("unknown", &[("efa0", "pci0")]);
        assert_eq!(machine.chosen(&["gpu9"], &["absent", "efa0"]), ["absent"]);
    }
}
