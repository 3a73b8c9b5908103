//! The C interface, used from C (`capi/transport.c`) over the software adapter, with the host's
//! processor as the one that drives the queues.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;

use efa_gda::capi::*;
use efa_gda::fabric::Query;
use efa_gda_test_support::compile::{self, compile};
use efa_gda_test_support::{TempDir, binaries, gpu, output};
use support::side::Side;
use support::with_soft_adapter;

/// The compiler with strict warnings and the folders of the headers.
fn strict(mut compiler: Command) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    compiler.args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I"]);
    compiler.arg(root.join("include")).arg("-I").arg(root.join("../kernels/include"));
    compiler
}

/// Compiles and links the program in `folder`. None, with the skip recorded, where there is no compiler.
fn program(folder: &TempDir) -> Option<PathBuf> {
    let libraries = binaries();
    assert!(libraries.join("libefa_gda.so").is_file(), "cargo builds it with the tests");
    let file = folder.path().join("transport");
    let mut command = strict(compile::c());
    command.args(["-std=c11", "-o"]).arg(&file);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi/transport.c"));
    command.arg("-L").arg(&libraries).arg("-lefa_gda");
    // Ahead of LD_LIBRARY_PATH, where cargo names a folder with the libraries of an earlier build.
    command.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", libraries.display()));
    compile(&mut command).then_some(file)
}

/// Runs a test of the program on the software adapter.
fn in_c(name: &str, variables: &[(&str, &str)]) {
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

#[test]
fn a_put_from_c_through_a_gpu_arrives() {
    if gpu::present() {
        in_c("put", &[("EFA_GDA_TEST_GPU", "0")]);
    }
}

#[test]
fn an_error_completion_reaches_c_with_its_status() {
    in_c("errors", &[]);
}

#[test]
fn what_is_in_use_is_busy_in_c() {
    in_c("busy", &[]);
}

#[test]
fn a_snapshot_reaches_c_whole_and_cut() {
    in_c("snapshot", &[]);
}

#[test]
fn a_wait_that_ran_out_in_c_leaves_a_way_out() {
    in_c("timeout", &[("SOFTEFA_DELAY_US", "60000000")]);
}

#[test]
fn null_stale_and_foreign_arguments_are_errors_in_c() {
    in_c("misuse", &[]);
}

#[test]
fn structs_are_as_long_in_c_as_here() {
    let folder = TempDir::new("capi");
    let Some(program) = program(&folder) else { return };
    let printed = output(Command::new(&program).arg("sizes")).stdout;
    let sizes = [
        size_of::<RegionInfo>(),
        size_of::<MappedAttr>(),
        size_of::<MappedInfo>(),
        size_of::<Write>(),
        size_of::<Progress>(),
    ];
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    assert_eq!(String::from_utf8(printed).unwrap().trim(), sizes.join(" "));
}

#[test]
fn the_header_is_plain_c_and_cplusplus() {
    for (compiler, language) in [(compile::c(), "c"), (compile::cxx(), "c++")] {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/efa_gda.h");
        let mut command = strict(compiler);
        command.args(["-fsyntax-only", "-x", language]).arg(header);
        if !compile(&mut command) {
            return;
        }
    }
}

#[test]
fn a_borrowed_domain_is_let_go_and_stays_open() {
    with_soft_adapter(&[], |_| {
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
