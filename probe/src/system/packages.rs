//! NCCL, its EFA plugin and GDRCopy on disk: the copies that a process would load, and their releases. Nothing is
//! loaded.

use std::path::{Path, PathBuf};

use super::{System, elf};
use crate::model::text::visible;

/// Directories of aws-ofi-nccl beside the loader's.
const PLUGIN_DIRECTORIES: [&str; 5] = [
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/amazon/aws-ofi-nccl/lib",
];
/// The beginnings of the file names of NCCL and of its plugins.
pub(super) const NCCL: &str = "libnccl.so.2";
pub(super) const PLUGIN: &str = "libnccl-net";
/// What comes before the release in the two libraries.
pub(super) const NCCL_MARKER: &str = "NCCL version ";
pub(super) const PLUGIN_MARKER: &str = "aws-ofi-nccl ";
/// File names of the plugin, newest first.
const PLUGIN_NAMES: [&str; 3] = ["libnccl-net-ofi.so", "libnccl-net-aws-ofi.so", "libnccl-net.so"];
/// Prefixes of Python installations, in which NCCL's wheel lies.
const PYTHON_PREFIXES: [&str; 4] = ["/usr/local", "/usr", "/opt/conda", "/opt/venv"];

/// A library file and its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its path, as a program names it.
    pub(crate) path: String,
    /// Its release; None if its file states none.
    pub(crate) release: Option<String>,
}

impl Package {
    /// The path and the release, for a report.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.path, self.release.as_deref().unwrap_or("release unknown"))
    }
}

impl System {
    /// The copies of NCCL: those on the loader's path, then those of Python's packages.
    pub(crate) fn nccl(&self) -> Vec<Package> {
        self.both()[0].clone()
    }

    /// The copies of NCCL's EFA plugin: the one that NCCL_NET_PLUGIN names, then those on the loader's path and in
    /// the installer's directories.
    pub(crate) fn nccl_plugins(&self) -> Vec<Package> {
        self.both()[1].clone()
    }

    /// NCCL and its plugin. Their files are searched once: several checks ask for them.
    fn both(&self) -> &[Vec<Package>; 2] {
        self.found_nccl.get_or_init(|| [self.search_nccl(), self.search_plugins()])
    }

    fn search_nccl(&self) -> Vec<Package> {
        let mut directories = self.loader_directories();
        let of_environment = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| self.env(name));
        let prefixes = of_environment.map(PathBuf::from).chain(PYTHON_PREFIXES.map(PathBuf::from));
        for library in prefixes.map(|prefix| prefix.join("lib")) {
            let versions = self.list(&library).into_iter().filter(|name| name.starts_with("python3"));
            for version in versions {
                for packages in ["site-packages", "dist-packages"] {
                    directories.push(library.join(&version).join(packages).join("nvidia/nccl/lib"));
                }
            }
        }
        self.packages(&directories, &[NCCL], NCCL_MARKER)
    }

    fn search_plugins(&self) -> Vec<Package> {
        let mut directories = self.loader_directories();
        directories.extend(PLUGIN_DIRECTORIES.map(PathBuf::from));
        let named = self.env("NCCL_NET_PLUGIN").map(|name| name.to_string_lossy().into_owned());
        let mut first = named.iter().filter(|name| name.contains('/')).filter_map(|name| {
            let path = Path::new(name);
            let file = path.file_name()?.to_str()?;
            Some(self.packages(&[path.parent()?.to_owned()], &[file], PLUGIN_MARKER))
        });
        let mut found = first.next().unwrap_or_default();
        found.extend(self.packages(&directories, &PLUGIN_NAMES, PLUGIN_MARKER));
        // A file without the plugin's name inside is another vendor's.
        found.retain(|package| package.release.is_some());
        found
    }

    /// The nvcc that a program which compiles at run time finds: of CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda.
    pub(crate) fn nvcc(&self) -> Option<Package> {
        let named =
            ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| self.env(name)).map(PathBuf::from);
        let path = self.env("PATH").unwrap_or_default();
        let of_path = std::env::split_paths(&path).filter_map(|bin| Some(bin.parent()?.to_owned()));
        let roots = named.chain(of_path.collect::<Vec<_>>()).chain([PathBuf::from("/usr/local/cuda")]);
        let root = roots.into_iter().find(|root| self.exists(root.join("bin/nvcc")))?;
        let facts = self.read(root.join("version.json")).unwrap_or_default();
        let facts: serde_json::Value = serde_json::from_str(&facts).unwrap_or_default();
        let release = facts["cuda_nvcc"]["version"].as_str().map(visible);
        Some(Package { path: root.join("bin/nvcc").display().to_string(), release })
    }

    /// The first libgdrapi on the loader's path; its file name states its release.
    pub(crate) fn gdrapi(&self) -> Option<Package> {
        let copy = self.loader_directories().into_iter().map(|directory| directory.join("libgdrapi.so.2"));
        copy.into_iter().find_map(|path| {
            let file = self.path(&path).canonicalize().ok()?;
            let name = file.file_name()?.to_str()?.strip_prefix("libgdrapi.so.");
            // A plain file has the soname, which states no release.
            let release = name.filter(|release| release.contains('.')).map(str::to_owned);
            Some(Package { path: path.display().to_string(), release })
        })
    }

    /// The files called `names` in `directories`, each once, with the release that follows `marker` in them.
    fn packages(&self, directories: &[PathBuf], names: &[&str], marker: &str) -> Vec<Package> {
        let mut seen: Vec<PathBuf> = Vec::new();
        let mut found = Vec::new();
        for path in directories.iter().flat_map(|directory| names.iter().map(|name| directory.join(name))) {
            let Ok(file) = self.path(&path).canonicalize() else { continue };
            if seen.contains(&file) {
                continue;
            }
            let release = elf::release_after(&file, marker);
            found.push(Package { path: path.display().to_string(), release });
            seen.push(file);
        }
        found
    }
}
