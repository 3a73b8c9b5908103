//! Generates layouts and constants from `third_party/efa_gda/{uverbs,efa}_abi.h`. Needs libclang.

use std::env;
use std::path::PathBuf;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let headers =
        ["uverbs_abi.h", "efa_abi.h"].map(|name| root.join("../../../third_party/efa_gda").join(name));
    let mut text = String::new();
    for header in &headers {
        println!("cargo::rerun-if-changed={}", header.display());
        text += &format!("#include \"{}\"\n", header.display());
    }
    let bindings = bindgen::Builder::default()
        .header_contents("abi.h", &text)
        .allowlist_item("(ib_uverbs|efa|uverbs|rdma)_.*|(UVERBS|IB|EFA|RDMA)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .translate_enum_integer_types(true)
        .use_core()
        .derive_default(true)
        .layout_tests(true)
        .formatter(bindgen::Formatter::None)
        .generate()
        .unwrap_or_else(|error| {
            panic!("bindgen failed: {error}; it needs libclang with its headers (Debian: libclang-14-dev)")
        });
    bindings.write_to_file(out.join("sys.rs")).unwrap_or_else(|error| panic!("cannot write sys.rs: {error}"));
}
