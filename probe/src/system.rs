//! What the machine says about itself: /sys, /proc, /dev and libraries' places, all below one root,
//! and the environment. Nothing here judges; the checks do.

pub(crate) mod adapters;
pub(crate) mod elf;
pub(crate) mod loader;
pub(crate) mod topology;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::model::GpuChoice;
use crate::soft::Unready;

/// The machine, as this run may read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct System {
    /// The directory below which the machine's files are.
    pub(crate) root: PathBuf,
    /// Whether the software adapter replaces hardware.
    pub(crate) soft: bool,
    /// The adapter named by `--device`.
    pub(crate) device: Option<String>,
    /// The GPU named by `--gpu`.
    pub(crate) gpu: Option<GpuChoice>,
    /// The software adapter's provider, or why it cannot be used; set when `--soft` loads it.
    pub(crate) provider: Option<Result<PathBuf, Unready>>,
}

impl System {
    /// Where `path`, an absolute one, lies below the root.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file, without white space around it. None where it cannot be read.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = read_file(&self.path(path), MOST_TEXT)?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The names in a directory, sorted; empty where it cannot be read.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<_> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Whether something lies at `path`.
    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The last name of what the link at `path` points to.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// An environment variable of this process.
    pub(crate) fn env(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    /// Whether an NVIDIA GPU is in sight: its kernel driver, or a PCI device.
    pub(crate) fn nvidia_in_sight(&self) -> bool {
        self.exists("/proc/driver/nvidia/version") || !self.nvidia_pci().is_empty()
    }

    /// PCI addresses of NVIDIA GPUs (vendor 10de, class 03: display).
    pub(crate) fn nvidia_pci(&self) -> Vec<String> {
        let base = Path::new("/sys/bus/pci/devices");
        let is_gpu = |name: &String| {
            let file = |file: &str| self.read(base.join(name).join(file)).unwrap_or_default();
            file("vendor") == "0x10de" && file("class").starts_with("0x03")
        };
        self.list(base).into_iter().filter(is_gpu).collect()
    }
}

/// More than any file of sysfs, procfs or a loader's configuration holds.
const MOST_TEXT: u64 = 1 << 20;

/// The first `most` bytes of a file; None where it is none, or a pipe or a device, which may never end.
fn read_file(path: &Path, most: u64) -> Option<Vec<u8>> {
    // A pipe without a writer opens at once.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = Vec::new();
    let read =
        file.metadata().is_ok_and(|found| found.is_file()) && file.take(most).read_to_end(&mut bytes).is_ok();
    read.then_some(bytes)
}

/// A dotted version's leading numbers: "2.13.0g" is [2, 13, 0]; empty where there is none.
pub(crate) fn version_numbers(text: &str) -> Vec<u32> {
    let number = |part: &str| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    text.split('.').map_while(number).collect()
}

#[cfg(test)]
mod tests {
    use super::version_numbers;

    #[test]
    fn a_version_ends_where_its_numbers_end() {
        assert_eq!(version_numbers("2.13.0g"), [2, 13, 0]);
        assert_eq!(version_numbers("580.65.06"), [580, 65, 6]);
        assert_eq!(version_numbers("none"), [0_u32; 0]);
    }
}
