//! Compiles the device library and its kernels for the host, so that tests and tools run every
//! line of device code on a CPU. Needs a C++17 compiler, and neither CUDA nor libfabric.

use std::env;
use std::path::PathBuf;

fn main() {
    // Published by the build script of efa-gda-sys (`links = "efa_gda_headers"`).
    let kernels = directory("DEP_EFA_GDA_HEADERS_KERNELS");
    let third_party = directory("DEP_EFA_GDA_HEADERS_THIRD_PARTY");
    let root = kernels.parent().expect("the headers lie in kernels/include").to_path_buf();
    let host = root.join("host");

    for place in
        [&kernels.join("efa_gda"), &host, &root.join("put.cu"), &root.join("load.cu"), &root.join("bench.cu")]
    {
        println!("cargo::rerun-if-changed={}", place.display());
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
}

fn directory(variable: &str) -> PathBuf {
    println!("cargo::rerun-if-env-changed={variable}");
    PathBuf::from(env::var_os(variable).unwrap_or_else(|| {
        panic!(
            "{variable} is not set; the build script of efa-gda-sys publishes it, and efa-gda depends on it"
        )
    }))
}
