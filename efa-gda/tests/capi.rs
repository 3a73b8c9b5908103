//! The C interface, used from C (`capi/transport.c`) over the software adapter, with the host's
//! processor as the one that drives the queues.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod fabric_soft_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;

use efa_gda::capi::*;
use efa_gda::fabric::Query;
use efa_gda::gpu::Gpu;
use fabric_soft_support::side::Side;
use fabric_soft_support::with_soft_adapter;

fn compiler(variable: &str, usual: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(std::env::var(variable).unwrap_or_else(|_| usual.into()));
    command.args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I"]);
    command.arg(root.join("include")).arg("-I").arg(root.join("../kernels/include"));
    command
}

/// The program, compiled and linked once for this process; tests' own processes run the same.
fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let compile = || {
        let tests = std::env::current_exe().unwrap();
        let libraries = tests.parent().unwrap();
        assert!(libraries.join("libefa_gda.so").is_file(), "cargo builds it with the tests");
        let name = format!("capi-transport-{}", std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut command = compiler("CC", "cc");
        command.args(["-std=c11", "-o"]).arg(&file);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi/transport.c"));
        command.arg("-L").arg(libraries).arg("-lefa_gda");
        // Ahead of LD_LIBRARY_PATH, where cargo names a folder with what an earlier build left.
        command.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", libraries.display()));
        assert!(command.status().unwrap().success(), "transport.c does not compile");
        file
    };
    PROGRAM.get_or_init(compile).clone()
}

/// Runs a test of the program's on the software adapter.
fn in_c(test: &str, name: &str, variables: &[(&str, &str)]) {
    with_soft_adapter(test, variables, |_| {
        let program = program();
        let output = Command::new(&program).arg(name).output().unwrap();
        std::fs::remove_file(program).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} ended with {}: {said}", output.status);
    });
}

#[test]
fn a_put_from_c_arrives_and_everything_closes() {
    in_c("a_put_from_c_arrives_and_everything_closes", "put", &[]);
}

#[test]
fn a_put_from_c_through_a_gpu_arrives() {
    match Gpu::open(0) {
        Ok(_) => in_c("a_put_from_c_through_a_gpu_arrives", "put", &[("EFA_GDA_TEST_GPU", "0")]),
        Err(error) => println!("SKIPPED: no GPU: {error}"),
    }
}

#[test]
fn an_error_completion_reaches_c_with_its_status() {
    in_c("an_error_completion_reaches_c_with_its_status", "errors", &[]);
}

#[test]
fn what_is_in_use_is_busy_in_c() {
    in_c("what_is_in_use_is_busy_in_c", "busy", &[]);
}

#[test]
fn a_snapshot_reaches_c_whole_and_cut() {
    in_c("a_snapshot_reaches_c_whole_and_cut", "snapshot", &[]);
}

#[test]
fn a_wait_that_ran_out_in_c_leaves_a_way_out() {
    in_c("a_wait_that_ran_out_in_c_leaves_a_way_out", "timeout", &[("SOFTEFA_DELAY_US", "60000000")]);
}

#[test]
fn null_stale_and_foreign_arguments_are_errors_in_c() {
    in_c("null_stale_and_foreign_arguments_are_errors_in_c", "misuse", &[]);
}

#[test]
fn structs_are_as_long_in_c_as_here() {
    let program = program();
    let said = Command::new(&program).arg("sizes").output().unwrap().stdout;
    std::fs::remove_file(program).unwrap();
    let sizes = [
        size_of::<RegionInfo>(),
        size_of::<MappedAttr>(),
        size_of::<MappedInfo>(),
        size_of::<Write>(),
        size_of::<Progress>(),
    ];
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    assert_eq!(String::from_utf8(said).unwrap().trim(), sizes.join(" "));
}

#[test]
fn the_header_is_plain_c_and_cplusplus() {
    for (variable, usual, language) in [("CC", "cc", "c"), ("CXX", "c++", "c++")] {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/efa_gda.h");
        let mut command = compiler(variable, usual);
        command.args(["-fsyntax-only", "-x", language]).arg(header);
        assert!(command.status().unwrap().success(), "{language}");
    }
}

#[test]
fn a_borrowed_domain_is_let_go_and_stays_open() {
    with_soft_adapter("a_borrowed_domain_is_let_go_and_stays_open", &[], |_| {
        let side = Side::open(&Query::new());
        let mut handle = null_mut();
        // SAFETY: domain and info stay open until the handle is closed; one thread makes all calls.
        unsafe {
            assert_eq!(efa_gda_domain_borrow(side.domain.as_ptr(), side.info.as_ptr(), &mut handle), 0);
            let mut region = null_mut();
            let mut bytes = [0_u64; 8];
            let start = bytes.as_mut_ptr().cast();
            // FI_SEND.
            assert_eq!(efa_gda_region_register(handle, start, 64, 1 << 11, &mut region), 0);
            assert_eq!(efa_gda_domain_close(handle), -8, "busy");
            assert_eq!(efa_gda_region_close(region), 0);
        }
        assert_eq!(efa_gda_domain_close(handle), 0);
        drop(side.region(&[0; 64]));
        side.domain.close().unwrap();
    });
}
