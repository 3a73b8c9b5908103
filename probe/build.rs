//! Facts about the build for `--version`, and the software adapter's files for a self-contained program.
//!
//! `EFA_GDA_STANDALONE=DIR` names the directory with softefa's files, which are then part of the program
//! (`scripts/build_standalone_probe.sh` builds and names them). `EFA_GDA_COMMIT` names the commit. `EFA_GDA_NVCC` makes
//! `efa-gda` compile the kernels into it.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The program `softefa`, and the libraries that it and libfabric load.
const FILES: [&str; 3] = ["libsoftefa.so", "libsoftefa_preload.so", "softefa"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["EFA_GDA_STANDALONE", "EFA_GDA_COMMIT", "EFA_GDA_NVCC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let files = env::var_os("EFA_GDA_STANDALONE").filter(|value| !value.is_empty()).map(PathBuf::from);
    let entries: Vec<String> = files.iter().flat_map(|from| FILES.map(|name| entry(from, name))).collect();
    let code = format!("static FILES: &[(&str, &[u8])] = &[{}];\n", entries.join(", "));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("embedded.rs"), code).expect("cargo's output directory can be written");

    let fact = |name: &str, value: &str| println!("cargo::rustc-env=GDA_PROBE_{name}={value}");
    fact("COMMIT", &commit());
    fact("PROFILE", &env::var("PROFILE").unwrap_or_default());
    fact("TARGET", &env::var("TARGET").unwrap_or_default());
    fact("SOFTEFA", if files.is_some() { "built in" } else { "separate files" });
    let nvcc = env::var_os("EFA_GDA_NVCC").is_some_and(|value| !value.is_empty());
    fact(
        "KERNELS",
        if nvcc { "compiled by nvcc, built in" } else { "compiled by NVRTC when they are needed" },
    );
}

/// A line of the table: the file's name and its bytes.
fn entry(from: &Path, name: &str) -> String {
    let file = from.join(name);
    let file = file.canonicalize().unwrap_or_else(|error| {
        panic!(
            "EFA_GDA_STANDALONE: {}: {error}; scripts/build_standalone_probe.sh builds this file",
            file.display()
        )
    });
    println!("cargo::rerun-if-changed={}", file.display());
    format!("({name:?}, include_bytes!({:?}))", file.display().to_string())
}

/// The commit: stated by the caller, or recorded in a package by cargo.
fn commit() -> String {
    let stated = env::var("EFA_GDA_COMMIT").ok();
    let packaged = || {
        let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
        let (_, rest) = text.split_once("\"sha1\": \"")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let is_word = |text: &String| !text.is_empty() && !text.contains(char::is_whitespace);
    stated.or_else(packaged).filter(is_word).unwrap_or_else(|| "not recorded".to_owned())
}
