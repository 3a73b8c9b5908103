//! Loading rdma-core from libraries that the tests build, which export the functions of a chosen release.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use efa_gda_sys::verbs::{CALLS, Call, Library, LoadError, RdmaCore, Release};
use efa_gda_test_support::{TempDir, compile};

/// A directory with libraries; removed on drop.
struct Libdir(TempDir);

impl Libdir {
    fn new(test: &str) -> Self {
        Self(TempDir::new(test))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Builds both libraries with the functions and file names of rdma-core's release `release`.
    fn with_release(test: &str, release: u16) -> Self {
        let directory = Self::new(test);
        for library in [Library::Ibverbs, Library::Efa] {
            let file = format!("{}.9.{release}.0", library.soname());
            directory.add(library, &file, |call| (call.since <= release).then_some(call.version));
            std::os::unix::fs::symlink(&file, directory.path().join(library.soname())).unwrap();
        }
        directory
    }

    /// Builds `library` as `file`, which exports each call under the version that `version_of` returns.
    fn add(&self, library: Library, file: &str, version_of: impl Fn(Call) -> Option<&'static str>) {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        if library == Library::Efa {
            // Every release exports this version; the crate uses no function of it.
            versions.insert("EFA_1.0", vec!["efadv_create_driver_qp"]);
        }
        for call in CALLS.iter().filter(|call| call.library == library) {
            if let Some(version) = version_of(*call) {
                versions.entry(version).or_default().push(call.name);
            }
        }
        let source = self.path().join(format!("{file}.c"));
        let map = self.path().join(format!("{file}.map"));
        let functions = versions.values().flatten().map(|name| format!("void {name}(void) {{}}\n"));
        fs::write(&source, functions.collect::<String>()).unwrap();
        let nodes = versions.iter().map(|(node, names)| format!("{node} {{ {}; }};\n", names.join("; ")));
        fs::write(&map, nodes.collect::<String>()).unwrap();
        let mut command = compile::c();
        command.args(["-shared", "-fPIC", "-o"]).arg(self.path().join(file)).arg(&source);
        command.arg(format!("-Wl,--version-script={}", map.display()));
        assert!(compile::compile(&mut command), "there is no C compiler");
    }
}

fn load_from(directory: &Path) -> Result<RdmaCore, LoadError> {
    // SAFETY: the tests built the libraries without initialisers and call nothing in them.
    unsafe { RdmaCore::load_from(directory) }
}

fn names(calls: &[Call]) -> Vec<&'static str> {
    calls.iter().map(|call| call.name).collect()
}

#[test]
fn rdma_core_65_has_every_function() {
    let directory = Libdir::with_release("r65", 65);
    let loaded = load_from(directory.path()).unwrap();
    assert_eq!(names(&loaded.missing()), Vec::<&str>::new());
}

#[test]
fn missing_names_each_absent_function_and_the_release_that_introduced_it() {
    let directory = Libdir::with_release("r62", 62);
    let missing = load_from(directory.path()).unwrap().missing();
    let depth = missing.iter().find(|call| call.name == "efadv_get_max_sq_depth").unwrap();
    assert_eq!((depth.version, depth.since), ("EFA_1.5", 63));
    assert!(!names(&missing).contains(&"efadv_query_qp_wqs"), "59 introduced it: {missing:?}");
}

#[test]
fn releases_before_59_have_no_efadv_query_qp_wqs() {
    let directory = Libdir::with_release("r58", 58);
    let loaded = load_from(directory.path()).unwrap();
    assert!(loaded.efadv().efadv_query_qp_wqs.is_none());
    assert!(loaded.efadv().efadv_create_cq.is_some());
}

#[test]
fn release_comes_from_the_name_of_the_linked_file() {
    let directory = Libdir::with_release("r59", 59);
    let loaded = load_from(directory.path()).unwrap();
    let (ibverbs, efa) = loaded.libraries().unwrap();
    assert_eq!(efa.release, Release { named: Some((59, 0)), at_least: 59 });
    assert_eq!(ibverbs.release, Release { named: Some((59, 0)), at_least: 34 });
    assert!(efa.path.ends_with("libefa.so.1.9.59.0"), "{}", efa.path.display());
}

#[test]
fn release_of_a_file_without_one_in_its_name_is_at_least_that_of_its_newest_function() {
    let directory = Libdir::new("unnamed");
    for library in [Library::Ibverbs, Library::Efa] {
        directory.add(library, library.soname(), |call| (call.since <= 63).then_some(call.version));
    }
    let loaded = load_from(directory.path()).unwrap();
    let (_, efa) = loaded.libraries().unwrap();
    assert_eq!(efa.release.to_string(), "63 or newer");
}

#[test]
fn a_function_with_another_symbol_version_counts_as_missing() {
    let directory = Libdir::new("version");
    for library in [Library::Ibverbs, Library::Efa] {
        directory.add(library, library.soname(), |call| {
            Some(if call.name == "efadv_query_cq" { "EFA_9.9" } else { call.version })
        });
    }
    let loaded = load_from(directory.path()).unwrap();
    assert_eq!(names(&loaded.missing()), ["efadv_query_cq"]);
}

#[test]
fn loading_rdma_core_before_26_fails_with_the_missing_function() {
    let directory = Libdir::with_release("r25", 25);
    let error = load_from(directory.path()).unwrap_err();
    let LoadError::MissingSymbol { call, .. } = &error else { panic!("{error}") };
    assert_eq!(call.name, "efadv_query_device");
    assert!(error.to_string().contains("rdma-core 26 or newer"), "{error}");
}

#[test]
fn loading_without_libefa_fails_with_its_name() {
    let directory = Libdir::with_release("noefa", 65);
    fs::remove_file(directory.path().join("libefa.so.1")).unwrap();
    let error = load_from(directory.path()).unwrap_err();
    assert!(matches!(error, LoadError::NotFound { library: Library::Efa, .. }), "{error}");
    assert!(error.to_string().contains("ibverbs-providers"), "{error}");
}

#[test]
fn loading_without_libibverbs_fails_with_the_file_that_was_tried() {
    let error = load_from(Path::new("/nonexistent")).unwrap_err();
    let LoadError::NotFound { library: Library::Ibverbs, attempts } = &error else { panic!("{error}") };
    assert!(attempts[0].contains("/nonexistent/libibverbs.so.1"), "{attempts:?}");
}
