//! Compiles the device library and its kernels for the host, so that tests and tools run every line of device code on a
//! CPU. This needs a C++17 compiler, and neither CUDA nor libfabric.
//!
//! With `EFA_GDA_NVCC=FILE`, the absolute path of nvcc, the script also compiles the kernels for GPUs into the library, for
//! programs that run without NVRTC.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kernel files that the library launches.
const KERNELS: [&str; 2] = ["put.cu", "receive.cu"];
/// Kernel files that the library launches only with the feature `test-utils`.
const TEST_KERNELS: [&str; 1] = ["bench.cu"];
/// Compute capabilities of GPUs that are paired with EFA adapters. Newer GPUs of the same generation run the same code.
const TARGETS: [&str; 4] = ["80", "90", "100", "120"];
/// Target of the PTX that the driver compiles for every other GPU.
const PTX: &str = "80";

fn main() {
    let root = directory("CARGO_MANIFEST_DIR").join("kernels");
    let include = root.join("include");
    let host = root.join("host");
    // Published by the build script of efa-gda-sys (`links = "efa_gda_headers"`).
    let third_party = directory("DEP_EFA_GDA_HEADERS_THIRD_PARTY");
    let io_defs = third_party.join("efa_io_defs.h");

    let test_utils = env::var_os("CARGO_FEATURE_TEST_UTILS").is_some();
    let kernels: Vec<&str> =
        KERNELS.into_iter().chain(TEST_KERNELS.into_iter().filter(|_| test_utils)).collect();

    let test = root.join("test");
    for path in [&include, &host, &test, &io_defs] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    for name in &kernels {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
    }
    // For `gpu::compile`, which includes its text.
    println!("cargo::rustc-env=EFA_GDA_IO_DEFS_FILE={}", io_defs.display());

    let mut build = cc::Build::new();
    if test_utils {
        // executor.cpp then also has the functions that executor/test_utils.rs calls; load_host.cpp is the load generator.
        build.define("EFA_GDA_TEST_UTILS", None).file(test.join("load_host.cpp"));
    }
    build
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(&third_party)
        .files([host.join("executor.cpp"), host.join("lanes.cpp")])
        // The code neither allocates through C++ nor throws, so no C++ runtime is linked.
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .cpp_link_stdlib(None)
        .warnings(true)
        .extra_warnings(true)
        // Programs that link libefa_gda.a do not see the functions as exports of theirs.
        .flag("-fvisibility=hidden")
        // These loops are hot even in tests (see the workspace's profiles).
        .opt_level(2)
        .compile("efa_gda_host_executor");

    println!("cargo::rustc-check-cfg=cfg(efa_gda_fatbin)");
    println!("cargo::rerun-if-env-changed=EFA_GDA_NVCC");
    if let Some(nvcc) = env::var_os("EFA_GDA_NVCC").filter(|file| !file.is_empty()).map(PathBuf::from) {
        // Cargo runs build scripts in the package's directory, so a relative path would mean another file.
        assert!(
            nvcc.is_absolute(),
            "EFA_GDA_NVCC={} is not an absolute path: set it to nvcc's",
            nvcc.display()
        );
        fatbins(&nvcc, &root, &kernels, &[&include, &third_party]);
        println!("cargo::rustc-cfg=efa_gda_fatbin");
    }
}

/// Compiles each kernel file to `OUT_DIR/NAME.fatbin`, which the library includes.
fn fatbins(nvcc: &Path, root: &Path, kernels: &[&str], headers: &[&Path]) {
    println!("cargo::rerun-if-changed={}", nvcc.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let known = run(Command::new(nvcc).arg("--list-gpu-code"));
    let (targets, missing): (Vec<&str>, Vec<&str>) = TARGETS
        .into_iter()
        .partition(|target| known.lines().any(|line| line.trim() == format!("sm_{target}")));
    if !missing.is_empty() {
        let missing = missing.join(" or sm_");
        println!(
            "cargo::warning={} does not support sm_{missing}; the driver compiles PTX for these GPUs",
            nvcc.display()
        );
    }
    for name in kernels {
        let mut command = Command::new(nvcc);
        command.args(["-fatbin", "-std=c++17", "--threads", "0"]);
        for target in &targets {
            command.arg(format!("-gencode=arch=compute_{target},code=sm_{target}"));
        }
        command.arg(format!("-gencode=arch=compute_{PTX},code=compute_{PTX}"));
        command.args(headers.iter().flat_map(|folder| ["-I".as_ref(), folder.as_os_str()]));
        run(command.arg("-o").arg(out.join(format!("{name}.fatbin"))).arg(root.join(name)));
    }
}

/// Runs a command that must succeed and returns its stdout.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{} does not start: {error}: set EFA_GDA_NVCC to nvcc's path", command.get_program().display())
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed ({}):\n{stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the directory that an environment variable names.
fn directory(variable: &str) -> PathBuf {
    println!("cargo::rerun-if-env-changed={variable}");
    PathBuf::from(env::var_os(variable).unwrap_or_else(|| {
        panic!("{variable} is not set: expected it from cargo or from the build script of efa-gda-sys")
    }))
}
