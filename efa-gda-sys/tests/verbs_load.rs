//! Loading rdma-core, from libraries made here that export what a given release does.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_gda_sys::verbs::{CALLS, Call, Library, LoadError, RdmaCore, Release};

/// A directory with libraries, gone with the value.
struct Libdir(PathBuf);

impl Libdir {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Both libraries, as rdma-core's release `release` names them.
    fn with_release(test: &str, release: u16) -> Self {
        let directory = Self::new(test);
        for library in [Library::Ibverbs, Library::Efa] {
            let file = format!("{}.9.{release}.0", library.soname());
            directory.add(library, &file, |call| (call.since <= release).then_some(call.version));
            std::os::unix::fs::symlink(&file, directory.0.join(library.soname())).unwrap();
        }
        directory
    }

    /// `library` as `file`, exporting each call under the version that `version_of` gives it.
    fn add(&self, library: Library, file: &str, version_of: impl Fn(Call) -> Option<&'static str>) {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        if library == Library::Efa {
            // In every release, and not used here.
            versions.insert("EFA_1.0", vec!["efadv_create_driver_qp"]);
        }
        for call in CALLS.iter().filter(|call| call.library == library) {
            if let Some(version) = version_of(*call) {
                versions.entry(version).or_default().push(call.name);
            }
        }
        let source = self.0.join(format!("{file}.c"));
        let map = self.0.join(format!("{file}.map"));
        let functions = versions.values().flatten().map(|name| format!("void {name}(void) {{}}\n"));
        fs::write(&source, functions.collect::<String>()).unwrap();
        let nodes = versions.iter().map(|(node, names)| format!("{node} {{ {}; }};\n", names.join("; ")));
        fs::write(&map, nodes.collect::<String>()).unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let made = Command::new(compiler)
            .args(["-shared", "-fPIC", "-o"])
            .arg(self.0.join(file))
            .arg(&source)
            .arg(format!("-Wl,--version-script={}", map.display()))
            .status()
            .unwrap();
        assert!(made.success());
    }
}

impl Drop for Libdir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn load_from(directory: &Path) -> Result<RdmaCore, LoadError> {
    // SAFETY: the libraries are made here, and have no initialisers; nothing in them is called.
    unsafe { RdmaCore::load_from(directory) }
}

fn names(calls: &[Call]) -> Vec<&'static str> {
    calls.iter().map(|call| call.name).collect()
}

#[test]
fn rdma_core_65_lacks_nothing() {
    let directory = Libdir::with_release("r65", 65);
    let loaded = load_from(&directory.0).unwrap();
    assert_eq!(names(&loaded.missing()), Vec::<&str>::new());
}

#[test]
fn what_a_release_lacks_is_named_with_the_release_that_brought_it() {
    let directory = Libdir::with_release("r62", 62);
    let missing = load_from(&directory.0).unwrap().missing();
    let depth = missing.iter().find(|call| call.name == "efadv_get_max_sq_depth").unwrap();
    assert_eq!((depth.version, depth.since), ("EFA_1.5", 63));
    assert!(!names(&missing).contains(&"efadv_query_qp_wqs"), "59 brought it: {missing:?}");
}

#[test]
fn before_59_the_queues_cannot_be_queried() {
    let directory = Libdir::with_release("r58", 58);
    let loaded = load_from(&directory.0).unwrap();
    assert!(loaded.efadv().efadv_query_qp_wqs.is_none());
    assert!(loaded.efadv().efadv_create_cq.is_some());
}

#[test]
fn the_release_is_told_from_the_file_behind_the_link() {
    let directory = Libdir::with_release("r59", 59);
    let loaded = load_from(&directory.0).unwrap();
    let (ibverbs, efa) = loaded.libraries().unwrap();
    assert_eq!(efa.release, Release { named: Some((59, 0)), at_least: 59 });
    assert_eq!(ibverbs.release, Release { named: Some((59, 0)), at_least: 34 });
    assert!(efa.path.ends_with("libefa.so.1.9.59.0"), "{}", efa.path.display());
}

#[test]
fn a_file_that_does_not_name_its_release_is_dated_by_its_newest_function() {
    let directory = Libdir::new("unnamed");
    for library in [Library::Ibverbs, Library::Efa] {
        directory.add(library, library.soname(), |call| (call.since <= 63).then_some(call.version));
    }
    let loaded = load_from(&directory.0).unwrap();
    let (_, efa) = loaded.libraries().unwrap();
    assert_eq!(efa.release.to_string(), "63 or newer");
}

#[test]
fn a_function_under_another_version_is_not_taken() {
    let directory = Libdir::new("version");
    for library in [Library::Ibverbs, Library::Efa] {
        directory.add(library, library.soname(), |call| {
            Some(if call.name == "efadv_query_cq" { "EFA_9.9" } else { call.version })
        });
    }
    let loaded = load_from(&directory.0).unwrap();
    assert_eq!(names(&loaded.missing()), ["efadv_query_cq"]);
}

#[test]
fn rdma_core_before_26_is_refused_by_what_it_lacks() {
    let directory = Libdir::with_release("r25", 25);
    let error = load_from(&directory.0).unwrap_err();
    let LoadError::MissingSymbol { call, .. } = &error else { panic!("{error}") };
    assert_eq!(call.name, "efadv_query_device");
    assert!(error.to_string().contains("rdma-core 26 or newer"), "{error}");
}

#[test]
fn a_missing_libefa_is_named() {
    let directory = Libdir::with_release("noefa", 65);
    fs::remove_file(directory.0.join("libefa.so.1")).unwrap();
    let error = load_from(&directory.0).unwrap_err();
    assert!(matches!(error, LoadError::NotFound { library: Library::Efa, .. }), "{error}");
    assert!(error.to_string().contains("ibverbs-providers"), "{error}");
}

#[test]
fn a_missing_libibverbs_is_named_with_what_was_tried() {
    let error = load_from(Path::new("/nonexistent")).unwrap_err();
    let LoadError::NotFound { library: Library::Ibverbs, attempts } = &error else { panic!("{error}") };
    assert!(attempts[0].contains("/nonexistent/libibverbs.so.1"), "{attempts:?}");
}
