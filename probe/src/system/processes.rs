//! NCCL and its EFA plugin as running processes have loaded them, by the maps of those that this user may read. Of a
//! process only the paths of these two libraries are kept: not its number, its name, its arguments or its other maps.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::packages::{NCCL, NCCL_MARKER, PLUGIN, PLUGIN_MARKER, Package};
use super::{System, elf, read_file};
use crate::model::text::visible;

/// The most processes whose maps are read, and the most bytes of all maps and of one process's.
const MAX_PROCESSES: usize = 16_384;
const MAX_MAPS: u64 = 32 << 20;
const MAX_MAPS_OF_ONE: u64 = 4 << 20;
/// The most files whose release is searched; each costs a read of its constants.
const MAX_FILES: usize = 16;
/// What the kernel appends to the path of a file that was removed or replaced after it was mapped.
const DELETED: &str = " (deleted)";

/// NCCL and its plugin in the same process.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// NCCL.
    pub(crate) nccl: Package,
    /// The EFA plugin; None if the process has loaded none so far.
    pub(crate) plugin: Option<Package>,
    /// Processes with these files.
    pub(crate) processes: usize,
}

/// The result of the search.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// What processes have loaded; alike ones once.
    pub(crate) loaded: Vec<Loaded>,
    /// Processes whose maps this user may not read.
    pub(crate) unreadable: usize,
    /// Whether the search ended at one of its limits.
    pub(crate) cut: bool,
}

impl System {
    /// The libraries of NCCL that running processes have loaded.
    pub(crate) fn loaded_nccl(&self) -> Processes {
        let mut found = Processes::default();
        let mut releases = Releases { system: self, known: HashMap::new() };
        let is_process = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
        let mut left = MAX_MAPS;
        for (number, process) in self.list("/proc").into_iter().filter(is_process).enumerate() {
            if number >= MAX_PROCESSES || left == 0 {
                found.cut = true;
                break;
            }
            let proc = Path::new("/proc").join(&process);
            let limit = left.min(MAX_MAPS_OF_ONE);
            let Some(maps) = read_file(&self.path(proc.join("maps")), limit) else {
                // A thread of the kernel has no command line. A process that has ended has no file.
                let command = read_file(&self.path(proc.join("cmdline")), 1);
                found.unreadable += usize::from(command.is_some_and(|command| !command.is_empty()));
                continue;
            };
            left -= maps.len() as u64;
            found.cut |= maps.len() as u64 == limit;
            let paths = libraries(&String::from_utf8_lossy(&maps));
            let Some(nccl) = paths[0].as_deref().and_then(|path| releases.of(&proc, path, NCCL_MARKER))
            else {
                continue;
            };
            let plugin = paths[1].as_deref().and_then(|path| releases.of(&proc, path, PLUGIN_MARKER));
            // A plugin that states no release, and is still there, is another vendor's.
            let plugin = plugin.filter(|one| one.release.is_some() || one.path.ends_with(DELETED));
            found.add(nccl, plugin);
        }
        found
    }
}

impl Processes {
    fn add(&mut self, nccl: Package, plugin: Option<Package>) {
        match self.loaded.iter_mut().find(|one| one.nccl == nccl && one.plugin == plugin) {
            Some(one) => one.processes += 1,
            None => self.loaded.push(Loaded { nccl, plugin, processes: 1 }),
        }
    }
}

/// The paths of NCCL and of its plugin in a process's maps.
fn libraries(maps: &str) -> [Option<String>; 2] {
    let mut paths = [None, None];
    for path in maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])) {
        let file = path.rsplit('/').next().unwrap_or_default();
        for (prefix, found) in [NCCL, PLUGIN].into_iter().zip(&mut paths) {
            if file.starts_with(prefix) && found.is_none() {
                *found = Some(path.to_owned());
            }
        }
    }
    paths
}

/// The releases of files, each read once.
struct Releases<'a> {
    system: &'a System,
    known: HashMap<(u64, u64), Option<String>>,
}

impl Releases<'_> {
    /// The package at `path` in the file system of the process in `proc`. None at the limit of files.
    fn of(&mut self, proc: &Path, path: &str, marker: &str) -> Option<Package> {
        let package = |release| Some(Package { path: visible(path), release });
        if path.ends_with(DELETED) {
            return package(None);
        }
        // A process in a container has other files at this path.
        let own = self.system.path(proc.join("root").join(path.trim_start_matches('/')));
        let file = if own.exists() { own } else { self.system.path(path) };
        let Ok(metadata) = file.metadata() else { return package(None) };
        let key = (metadata.dev(), metadata.ino());
        if !self.known.contains_key(&key) && self.known.len() >= MAX_FILES {
            return None;
        }
        let release = self.known.entry(key).or_insert_with(|| elf::release_after(&file, marker));
        package(release.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::libraries;

    #[test]
    fn only_the_two_libraries_are_kept_of_a_processs_maps() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 11 /home/kay/secret/libtorch.so\n\
                    7f02-7f03 r-xp 00000000 08:01 12 /opt/my env/libnccl.so.2.32.3 (deleted)\n\
                    7f02-7f03 r--p 00000000 08:01 12 /opt/other/libnccl.so.2\n\
                    7f04-7f05 rw-p 00000000 00:00 0 [heap]\n\
                    7f06-7f07 r-xp 00000000 08:01 13 /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so\n";
        let [nccl, plugin] = libraries(maps);
        assert_eq!(nccl.as_deref(), Some("/opt/my env/libnccl.so.2.32.3 (deleted)"));
        assert_eq!(plugin.as_deref(), Some("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"));
    }
}
