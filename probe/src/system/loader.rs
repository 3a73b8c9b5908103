//! The copies of a library in the dynamic loader's directories: those of its option `--library-path`, or
//! LD_LIBRARY_PATH, `ld.so.conf` and the default directories, and then the EFA installer's directories.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{System, elf};

/// The directories into which the EFA installer installs libfabric and rdma-core.
pub(crate) const INSTALLER: [&str; 2] = ["/opt/amazon/efa/lib", "/opt/amazon/efa/lib64"];

/// libfabric's soname.
pub(crate) const LIBFABRIC: &str = "libfabric.so.1";

/// The most bytes that are read of a library.
const MAX_BYTES: u64 = 256 << 20;
/// The most files of `ld.so.conf` that are read, and the most directories that are searched.
const MAX_CONF_FILES: usize = 1024;
const MAX_DIRECTORIES: usize = 4096;

/// A copy of a library.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Its path, as a loader prints it.
    pub(crate) path: String,
    /// The file to which its links lead, below the root.
    pub(crate) file: PathBuf,
    /// The symbol versions that it defines; empty if it cannot be read.
    pub(crate) versions: Vec<String>,
    /// Its release; libfabric only.
    pub(crate) release: Option<String>,
}

impl Copy {
    /// The file's name, which contains a version: `libefa.so.1.2.44.0`.
    pub(crate) fn file_name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The newest symbol version with `prefix`: `EFA_1.4` is [1, 4] with `EFA_`.
    pub(crate) fn newest(&self, prefix: &str) -> Vec<u32> {
        let numbers = self.versions.iter().filter_map(|name| name.strip_prefix(prefix));
        numbers.map(super::version_numbers).max().unwrap_or_default()
    }
}

impl System {
    /// The copies of `soname` in the order of the loader's search, each file once.
    pub(crate) fn copies(&self, soname: &str) -> Vec<Copy> {
        let mut copies: Vec<Copy> = Vec::new();
        for directory in self.loader_directories() {
            let path = directory.join(soname);
            let Ok(file) = self.path(&path).canonicalize() else { continue };
            if copies.iter().any(|copy| copy.file == file) {
                continue;
            }
            let bytes = super::read_file(&file, MAX_BYTES).unwrap_or_default();
            let versions = elf::defined_versions(&bytes).unwrap_or_default();
            let release = if soname == LIBFABRIC { elf::package_version(&bytes) } else { None };
            copies.push(Copy { path: path.display().to_string(), file, versions, release });
        }
        copies
    }

    /// The release of the libfabric that a program loads: of LIBFABRIC_PATH, or the first on the loader's path.
    pub(crate) fn libfabric_release(&self) -> Option<String> {
        let named = self.env("LIBFABRIC_PATH").map(PathBuf::from).filter(|path| path.is_absolute());
        match named {
            Some(path) => elf::package_version(&super::read_file(&path, MAX_BYTES)?),
            None => self.copies(LIBFABRIC).into_iter().next()?.release,
        }
    }

    /// The loader's directories in the order of its search, then those of the EFA installer.
    pub(crate) fn loader_directories(&self) -> Vec<PathBuf> {
        let mut directories = crate::executable::loader_library_path();
        if !directories.is_empty() && !self.is_foreign() {
            // With --library-path, the caller provides all libraries and the machine's are not used.
            return directories;
        }
        directories.clear();
        if let Some(list) = self.env("LD_LIBRARY_PATH") {
            directories.extend(std::env::split_paths(&list).filter(|path| path.is_absolute()));
        }
        self.read_conf(Path::new("/etc/ld.so.conf"), &mut directories);
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        for directory in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
            let directory = Path::new(directory);
            if directory.ends_with("lib") {
                directories.push(directory.join(&triple));
            }
            directories.push(directory.to_owned());
        }
        directories.extend(INSTALLER.iter().map(PathBuf::from));
        directories
    }

    /// Adds the directories of a file in the order of its lines, with those of the files that it includes. A file is
    /// read once, however often it is included.
    fn read_conf(&self, conf: &Path, directories: &mut Vec<PathBuf>) {
        let mut visited = HashSet::new();
        // The files that are being read: the remaining lines of each.
        let mut open = vec![self.conf_lines(conf, &mut visited)];
        while let Some(lines) = open.last_mut() {
            let Some(line) = lines.pop() else {
                open.pop();
                continue;
            };
            if let Some(pattern) = line.strip_prefix("include ") {
                let files = self.matching(Path::new(pattern.trim()));
                let included = files.iter().rev().map(|file| self.conf_lines(file, &mut visited));
                open.extend(included.collect::<Vec<_>>());
            } else if line.starts_with('/') && directories.len() < MAX_DIRECTORIES {
                directories.push(PathBuf::from(line));
            }
        }
    }

    /// The lines of a file, last line first; none if it was visited.
    fn conf_lines(&self, conf: &Path, visited: &mut HashSet<PathBuf>) -> Vec<String> {
        if visited.len() >= MAX_CONF_FILES || !visited.insert(self.path(conf)) {
            return Vec::new();
        }
        let text = self.read(conf).unwrap_or_default();
        text.lines().rev().map(|line| line.split('#').next().unwrap_or_default().trim().to_owned()).collect()
    }

    /// The files of an include line. A `*` is supported in the file name only, where distributions use it.
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
