//! Compiles the device library and its kernels for the host, so that tests and tools run every
//! line of device code on a CPU. Needs a C++17 compiler, and neither CUDA nor libfabric.
//!
//! With EFA_GDA_NVCC=FILE, an absolute path, that nvcc compiles them for GPUs too, and the library then carries what came
//! out, for programs that run without NVRTC.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of kernels that the library launches itself.
const KERNELS: [&str; 3] = ["put.cu", "receive.cu", "bench.cu"];
/// GPUs that adapters are paired with; newer ones of the same generation run the same code.
const TARGETS: [&str; 4] = ["80", "90", "100", "120"];
/// The driver compiles this for GPUs that are newer than all of those.
const PTX: &str = "80";

fn main() {
    // Published by the build script of efa-gda-sys (`links = "efa_gda_headers"`).
    let kernels = directory("DEP_EFA_GDA_HEADERS_KERNELS");
    let third_party = directory("DEP_EFA_GDA_HEADERS_THIRD_PARTY");
    let root = kernels.parent().expect("the headers lie in kernels/include").to_path_buf();
    let host = root.join("host");

    for place in [&kernels.join("efa_gda"), &host, &root.join("load.cu")] {
        println!("cargo::rerun-if-changed={}", place.display());
    }
    for name in KERNELS {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
    }
    println!("cargo::rerun-if-changed={}", third_party.join("efa_io_defs.h").display());

    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(&kernels)
        .include(&third_party)
        .files([host.join("executor.cpp"), host.join("lanes.cpp")])
        // The code allocates nothing through C++ and throws nothing: no C++ runtime is linked.
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .cpp_link_stdlib(None)
        .warnings(true)
        .extra_warnings(true)
        // Hot even in tests, as the workspace's profiles say.
        .opt_level(2)
        .compile("efa_gda_host_executor");

    // Otherwise a program that was linked by path looks for the library at that path alone. No number: cargo makes no
    // links, and efa_gda_api_version says what a library has.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libefa_gda.so");

    println!("cargo::rustc-check-cfg=cfg(efa_gda_fatbin)");
    println!("cargo::rerun-if-env-changed=EFA_GDA_NVCC");
    if let Some(nvcc) = env::var_os("EFA_GDA_NVCC").filter(|file| !file.is_empty()).map(PathBuf::from) {
        // Build scripts run in a folder of their own.
        assert!(nvcc.is_absolute(), "EFA_GDA_NVCC={} must be an absolute path, of nvcc", nvcc.display());
        fatbins(&nvcc, &root, &[&kernels, &third_party]);
        println!("cargo::rustc-cfg=efa_gda_fatbin");
    }
}

/// Leaves NAME.fatbin for each file of kernels where the library includes it from.
fn fatbins(nvcc: &Path, root: &Path, headers: &[&Path]) {
    println!("cargo::rerun-if-changed={}", nvcc.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let known = run(Command::new(nvcc).arg("--list-gpu-code"));
    let (targets, missing): (Vec<&str>, Vec<&str>) = TARGETS
        .into_iter()
        .partition(|target| known.lines().any(|line| line.trim() == format!("sm_{target}")));
    if !missing.is_empty() {
        let missing = missing.join(" or sm_");
        println!("cargo::warning={} knows no sm_{missing}; such GPUs get code of PTX", nvcc.display());
    }
    for name in KERNELS {
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

/// What a command that must succeed prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("EFA_GDA_NVCC must name nvcc: {} does not start: {error}", command.get_program().display())
    });
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed ({}):\n{words}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn directory(variable: &str) -> PathBuf {
    println!("cargo::rerun-if-env-changed={variable}");
    PathBuf::from(env::var_os(variable).unwrap_or_else(|| {
        panic!(
            "{variable} is not set; the build script of efa-gda-sys publishes it, and efa-gda depends on it"
        )
    }))
}
