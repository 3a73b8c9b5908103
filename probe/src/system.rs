//! Facts about the machine: /sys, /proc, /dev and library directories, all below one root, and the
//! environment. Checks judge them; this module does not.

pub(crate) mod adapters;
pub(crate) mod counters;
pub(crate) mod elf;
mod identity;
pub(crate) mod instance;
pub(crate) mod loader;
mod nccl;
pub(crate) mod packages;
pub(crate) mod processes;
pub(crate) mod topology;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use crate::model::text::visible;
use crate::model::{GpuChoice, StackName, Via};
use crate::soft::Unready;
use crate::system::adapters::Adapter;
use crate::system::packages::Package;

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
    /// The library that opens the queues.
    pub(crate) via: Via,
    /// Whether the node is judged and no job, whose environment is another one (`--npd`).
    pub(crate) of_node: bool,
    /// The stack named by `--for`.
    pub(crate) stack: Option<StackName>,
    /// The software adapter's provider, or why it cannot be used; set when `--soft` loads it.
    pub(crate) provider: Option<Result<PathBuf, Unready>>,
    /// All adapters, once they were read.
    pub(crate) found: OnceLock<Vec<Adapter>>,
    /// The copies of NCCL and of its plugin, once their files were searched.
    pub(crate) found_nccl: OnceLock<[Vec<Package>; 2]>,
}

impl System {
    /// The absolute `path` below the root. Links on the way lead to where they would if the root were `/`.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let path = path.strip_prefix("/").unwrap_or(path);
        if self.is_foreign() { below(&self.root, path) } else { self.root.join(path) }
    }

    /// Whether the files are another system's (`--root`), and not those of this process.
    pub(crate) fn is_foreign(&self) -> bool {
        self.root.parent().is_some()
    }

    /// The text of a file without white space around it; None if the file cannot be read. A longer text than the kernel
    /// and the loader have is cut, and says so.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let most = if path.as_ref().starts_with("/sys") { MAX_VALUE } else { MAX_TEXT };
        let bytes = read_file(&self.path(path), most + 1)?;
        if bytes.len() as u64 <= most {
            return Some(String::from_utf8_lossy(&bytes).trim().to_owned());
        }
        let kept = String::from_utf8_lossy(&bytes[..most as usize]);
        Some(format!("{}… (cut at {most} bytes)", kept.trim()))
    }

    /// The sorted names in a directory, visible; empty if it cannot be read.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<_> =
            entries.flatten().map(|entry| visible(&entry.file_name().to_string_lossy())).collect();
        names.sort();
        names
    }

    /// Whether `path` exists.
    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The file name of the target of the link at `path`.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let target = std::fs::read_link(self.path(path.parent()?).join(path.file_name()?)).ok()?;
        Some(visible(&target.file_name()?.to_string_lossy()))
    }

    /// The mask of this process's effective capabilities; None if the kernel does not report it.
    pub(crate) fn capabilities(&self) -> Option<u64> {
        let status = self.read("/proc/self/status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    }

    /// An environment variable of this process.
    pub(crate) fn env(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    /// Whether the machine shows an NVIDIA GPU: its kernel driver, or a PCI device.
    pub(crate) fn has_nvidia(&self) -> bool {
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

/// The most links that lead to a file.
const MAX_LINKS: usize = 40;

/// The file to which `path` leads below `root`, as if `root` were `/`.
fn below(root: &Path, path: &Path) -> PathBuf {
    let parts = |path: &Path| {
        let parts = path.components().rev();
        let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        parts.map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>()
    };
    let (mut reached, mut left, mut links) = (PathBuf::new(), parts(path), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            reached.pop();
            continue;
        }
        reached.push(&part);
        if let Ok(target) = std::fs::read_link(root.join(&reached)) {
            links += 1;
            if links > MAX_LINKS {
                // No file has this name, so that nothing is found at the end of a circle.
                return root.join("too many links\0");
            }
            if target.is_absolute() {
                reached.clear();
            } else {
                reached.pop();
            }
            left.extend(parts(&target));
        }
    }
    root.join(reached)
}

/// The most bytes that are read of a file of sysfs, which returns at most a page.
const MAX_VALUE: u64 = 1 << 12;
/// The most bytes that are read of another text; files of procfs and the loader are smaller.
const MAX_TEXT: u64 = 1 << 14;

/// The first `limit` bytes of a regular file. Returns None for a pipe or a device, which may never end.
fn read_file(path: &Path, limit: u64) -> Option<Vec<u8>> {
    // Without O_NONBLOCK, opening a pipe blocks until it has a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = Vec::new();
    let read = file.metadata().is_ok_and(|metadata| metadata.is_file())
        && file.take(limit).read_to_end(&mut bytes).is_ok();
    read.then_some(bytes)
}

/// The leading numbers of a dotted version: "2.13.0g" is [2, 13, 0]. Empty without a number.
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
    fn only_the_leading_numbers_of_a_version_are_returned() {
        assert_eq!(version_numbers("2.13.0g"), [2, 13, 0]);
        assert_eq!(version_numbers("580.65.06"), [580, 65, 6]);
        assert_eq!(version_numbers("none"), [0_u32; 0]);
    }
}
