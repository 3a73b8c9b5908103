//! Compiles the pretended CUDA driver (`cuda/driver.cpp`) and links to it under the names that loaders look for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    driver::build();
}

#[cfg(feature = "cuda")]
mod driver {
    use std::env;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    const SOURCES: [&str; 4] = [
        "test-support/cuda/driver.cpp",
        "kernels/host/executor.cpp",
        "kernels/host/lanes.cpp",
        "kernels/test/load_host.cpp",
    ];
    const INCLUDES: [&str; 2] = ["kernels/include", "third_party/efa_gda"];
    const NAMES: [&str; 5] =
        ["libcuda.so.1", "libcuda.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

    pub(super) fn build() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("cuda");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("OUT_DIR can be written");
        // Without CXXFLAGS: a library that is linked with a sanitizer's runtime does not load beside Rust's.
        let mut command = Command::new(env::var_os("CXX").unwrap_or_else(|| "c++".into()));
        command.args([
            "-std=c++17",
            "-O1",
            "-DEFA_GDA_TEST_UTILS",
            "-Wall",
            "-Wextra",
            "-shared",
            "-fPIC",
            "-pthread",
        ]);
        command.args(["-o", "libpretended.so"]).current_dir(&folder);
        command.args(INCLUDES.map(|include| format!("-I{}", root.join(include).display())));
        command.args(SOURCES.map(|source| root.join(source)));
        let status = command.status().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        assert!(status.success(), "the pretended CUDA driver does not compile: {command:?}");
        for name in NAMES {
            symlink("libpretended.so", folder.join(name)).expect("a link in OUT_DIR");
        }
        for path in ["test-support/cuda", "kernels/host", "kernels/test"].iter().chain(&INCLUDES) {
            println!("cargo::rerun-if-changed={}", root.join(path).display());
        }
        println!("cargo::rerun-if-env-changed=CXX");
        println!("cargo::rustc-env=PRETENDED_CUDA={}", folder.display());
    }
}
