//! The copies of a library that the dynamic loader could find: what the loader was told when it started
//! this program, LD_LIBRARY_PATH, the directories of `ld.so.conf`, the usual places, and where the EFA installer puts its own.

use std::path::{Path, PathBuf};

use super::{System, elf};

/// Where the EFA installer puts libfabric and rdma-core.
pub(crate) const INSTALLER: [&str; 2] = ["/opt/amazon/efa/lib", "/opt/amazon/efa/lib64"];

/// libfabric's name on the loader's path.
pub(crate) const LIBFABRIC: &str = "libfabric.so.1";

/// More than a library of either name has.
const MOST_BYTES: u64 = 256 << 20;
/// Includes of `ld.so.conf` nest no deeper than this.
const DEEPEST_INCLUDE: usize = 8;

/// A copy of a library.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Where it was found, as a loader would say it.
    pub(crate) path: String,
    /// The file behind its links, below the root.
    pub(crate) file: PathBuf,
    /// The versions that it defines; empty where it cannot be read.
    pub(crate) versions: Vec<String>,
    /// The release that it names itself by; a libfabric does.
    pub(crate) release: Option<String>,
}

impl Copy {
    /// The file's own name, which carries a version: `libefa.so.1.2.44.0`.
    pub(crate) fn file_name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The newest defined version under `prefix`: `EFA_1.4` is [1, 4] under `EFA_`.
    pub(crate) fn newest(&self, prefix: &str) -> Vec<u32> {
        let under = self.versions.iter().filter_map(|name| name.strip_prefix(prefix));
        under.map(super::version_numbers).max().unwrap_or_default()
    }
}

impl System {
    /// Every copy of `soname`, in the order of the loader's search, each file once.
    pub(crate) fn copies(&self, soname: &str) -> Vec<Copy> {
        let mut found: Vec<Copy> = Vec::new();
        for directory in self.loader_directories() {
            let path = directory.join(soname);
            let Ok(file) = self.path(&path).canonicalize() else { continue };
            if found.iter().any(|copy| copy.file == file) {
                continue;
            }
            let bytes = super::read_file(&file, MOST_BYTES).unwrap_or_default();
            let versions = elf::defined_versions(&bytes).unwrap_or_default();
            let release = if soname == LIBFABRIC { elf::package_version(&bytes) } else { None };
            found.push(Copy { path: path.display().to_string(), file, versions, release });
        }
        found
    }

    /// Where the loader looks, in its order, and then the EFA installer's places.
    fn loader_directories(&self) -> Vec<PathBuf> {
        let mut directories = crate::executable::loader_library_path();
        if !directories.is_empty() {
            // Whoever calls a loader with a path of its own brings all libraries; the machine's are for others.
            return directories;
        }
        if let Some(list) = self.env("LD_LIBRARY_PATH") {
            directories.extend(std::env::split_paths(&list).filter(|path| path.is_absolute()));
        }
        self.read_conf(Path::new("/etc/ld.so.conf"), &mut directories, 0);
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        for place in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
            let place = Path::new(place);
            if place.ends_with("lib") {
                directories.push(place.join(&triple));
            }
            directories.push(place.to_owned());
        }
        directories.extend(INSTALLER.iter().map(PathBuf::from));
        directories
    }

    fn read_conf(&self, conf: &Path, directories: &mut Vec<PathBuf>, depth: usize) {
        if depth > DEEPEST_INCLUDE {
            return;
        }
        for line in self.read(conf).unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(pattern) = line.strip_prefix("include ") {
                for file in self.matching(Path::new(pattern.trim())) {
                    self.read_conf(&file, directories, depth + 1);
                }
            } else if line.starts_with('/') {
                directories.push(PathBuf::from(line));
            }
        }
    }

    /// Files for an include line: a `*` may stand in the last part, as distributions write it.
    fn matching(&self, pattern: &Path) -> Vec<PathBuf> {
        let (Some(parent), Some(last)) = (pattern.parent(), pattern.file_name()) else {
            return Vec::new();
        };
        let last = last.to_string_lossy();
        let Some((before, after)) = last.split_once('*') else {
            return vec![pattern.to_owned()];
        };
        let fits = |name: &String| name.starts_with(before) && name.ends_with(after);
        self.list(parent).into_iter().filter(fits).map(|name| parent.join(name)).collect()
    }
}
