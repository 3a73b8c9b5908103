//! The C interface on the software adapter: a C program (`capi/transport.c`) that links `libefa_gda.so`, and the
//! library's exports.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;

use efa_gda::fabric::{Access, Buffer, Fabric, Library, Query};
use efa_gda_test_support::compile::{self, compile};
use efa_gda_test_support::soft::with_soft_adapter;
use efa_gda_test_support::{TempDir, output};
use libloading::Symbol;
use object::Endianness;
use object::elf::{DT_SONAME, FileHeader64};
use object::read::elf::FileHeader;
use object::read::{Object, ObjectSymbol};

/// Builds the library as users build it, without features that the tests' dependencies enable, and returns its folder.
///
/// Cargo builds no library of type cdylib for integration tests.
fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["build", "--quiet", "--locked", "--package", "efa-gda-capi", "--lib", "--target-dir"]);
        cargo.arg(target);
        if !cfg!(feature = "cuda") {
            cargo.arg("--no-default-features");
        }
        let built = output(&mut cargo);
        assert!(built.status.success(), "{cargo:?} failed: {}", String::from_utf8_lossy(&built.stderr));
        target.join("debug")
    })
}

fn library() -> PathBuf {
    libraries().join("libefa_gda.so")
}

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/efa_gda.h")
}

/// The compiler with strict warnings and the folders of the headers.
fn strict(mut compiler: Command) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    compiler.args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I"]);
    compiler.arg(root.join("include")).arg("-I").arg(root.join("kernels/include"));
    compiler
}

/// Compiles and links the program in `folder`. Returns None, with the skip recorded, where there is no compiler.
fn program(folder: &TempDir) -> Option<PathBuf> {
    let file = folder.path().join("transport");
    let mut command = strict(compile::c());
    command.args(["-std=c11", "-o"]).arg(&file);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi/transport.c"));
    command.arg("-L").arg(libraries()).arg("-lefa_gda");
    // Searched before LD_LIBRARY_PATH, in which cargo names a folder with libraries of earlier builds.
    command.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", libraries().display()));
    compile(&mut command).then_some(file)
}

/// Runs a test of the program on the software adapter.
fn in_c(name: &str, variables: &[(&str, &str)]) {
    // Before the child starts, whose time is bounded.
    libraries();
    with_soft_adapter(variables, |_| {
        let folder = TempDir::new("capi");
        let Some(program) = program(&folder) else { return };
        let output = output(Command::new(&program).arg(name));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} ended with {}: {text}", output.status);
    });
}

#[test]
fn a_put_from_c_arrives_and_everything_closes() {
    in_c("put", &[]);
}

#[cfg(feature = "cuda")]
#[test]
fn a_put_from_c_through_a_gpu_arrives() {
    if efa_gda_test_support::gpu::present() {
        in_c("put", &[("EFA_GDA_TEST_GPU", "0")]);
    }
}

#[test]
fn an_error_completion_reaches_c_with_its_status() {
    in_c("errors", &[]);
}

#[test]
fn close_returns_busy_to_c_while_an_object_is_in_use() {
    in_c("busy", &[]);
}

#[test]
fn a_snapshot_reaches_c_whole_and_truncated() {
    in_c("snapshot", &[]);
}

#[test]
fn a_queue_whose_wait_timed_out_can_be_destroyed_from_c() {
    in_c("timeout", &[("SOFTEFA_DELAY_US", "60000000")]);
}

#[test]
fn null_closed_and_foreign_arguments_are_errors_in_c() {
    in_c("misuse", &[]);
}

#[test]
fn the_header_compiles_as_c_and_as_cplusplus() {
    for (compiler, language) in [(compile::c(), "c"), (compile::cxx(), "c++")] {
        let mut command = strict(compiler);
        command.args(["-fsyntax-only", "-x", language]).arg(header());
        if !compile(&mut command) {
            return;
        }
    }
}

/// Names of functions that the header declares: `efa_gda_NAME(` outside comments.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(header()).unwrap();
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let before_parentheses = code.split('(').map(|part| part.rsplit([' ', '*', '\n']).next().unwrap());
    before_parentheses.filter(|name| name.starts_with("efa_gda_")).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_no_others() {
    let bytes = std::fs::read(library()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let exported = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let exported: BTreeSet<String> = exported.map(|symbol| symbol.name().unwrap().to_owned()).collect();
    assert_eq!(exported, declared());
    assert!(exported.contains("efa_gda_api_version"));
}

#[test]
fn the_soname_is_the_name_of_the_file() {
    let bytes = std::fs::read(library()).unwrap();
    let elf = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = elf.endian().unwrap();
    let dynamic = elf.sections(endian, &*bytes).unwrap().dynamic_table(endian, &*bytes).unwrap();
    let soname = dynamic.iter().find(|entry| entry.tag == DT_SONAME).expect("the library has a soname");
    assert_eq!(dynamic.string(soname).unwrap(), b"libefa_gda.so");
}

#[test]
fn a_borrowed_domain_stays_open_after_its_handle_is_closed() {
    type Borrow = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
    type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, *mut *mut c_void) -> c_int;
    type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

    libraries();
    with_soft_adapter(&[], |_| {
        let libfabric = Library::load().unwrap();
        let info = Query::new().first(&libfabric).unwrap();
        let domain = Fabric::open(&libfabric, &info).unwrap().domain(&info).unwrap();
        // SAFETY: the library's initialisers are sound. The types are those of the header. The domain and its info stay
        // open until the handle is closed, and one thread makes all calls.
        unsafe {
            let library = libloading::Library::new(library()).unwrap();
            let borrow: Symbol<'_, Borrow> = library.get(b"efa_gda_domain_borrow\0").unwrap();
            let register: Symbol<'_, Register> = library.get(b"efa_gda_region_register\0").unwrap();
            let close_region: Symbol<'_, Close> = library.get(b"efa_gda_region_close\0").unwrap();
            let close_domain: Symbol<'_, Close> = library.get(b"efa_gda_domain_close\0").unwrap();
            let (mut handle, mut region) = (null_mut(), null_mut());
            assert_eq!(borrow(domain.as_ptr().cast(), info.as_ptr().cast(), &mut handle), 0);
            let mut bytes = [0_u64; 8];
            let start = bytes.as_mut_ptr().cast();
            assert_eq!(register(handle, start, 64, Access::SEND.bits(), &mut region), 0);
            assert_eq!(close_domain(handle), -8, "expected EFA_GDA_ERROR_BUSY");
            assert_eq!(close_region(region), 0);
            assert_eq!(close_domain(handle), 0);
        }
        drop(domain.register(Buffer::zeroed(64).unwrap(), Access::SEND).unwrap());
        domain.close().unwrap();
    });
}
