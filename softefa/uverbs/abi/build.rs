//! With the feature `regenerate`, generates the bindings from `third_party/efa_gda/{uverbs,efa}_abi.h` into `OUT_DIR`,
//! where the crate includes them in place of `src/generated/`. That needs libclang. Without it, does nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "regenerate")]
    generate();
}

/// Generates `sys.rs`, and `asserted/sys.rs`, which also asserts layouts. The result depends on the headers and on bindgen's version alone: the formatter is bindgen's, and
/// the Rust version is the workspace's oldest.
#[cfg(feature = "regenerate")]
fn generate() {
    use std::env;
    use std::path::PathBuf;

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for name in ["uverbs_abi.h", "efa_abi.h"] {
        let header = root.join("third_party/efa_gda").join(name);
        println!("cargo::rerun-if-changed={}", header.display());
        text += &format!("#include \"{}\"\n", header.display());
    }
    let oldest = bindgen::RustTarget::stable(88, 0).unwrap_or_else(|error| panic!("{error}"));
    let builder = bindgen::Builder::default()
        .header_contents("wrapper.h", &text)
        .allowlist_item("(ib_uverbs|efa|uverbs|rdma)_.*|(UVERBS|IB|EFA|RDMA)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .translate_enum_integer_types(true)
        .use_core()
        .derive_default(true)
        .rust_target(oldest)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease);
    for (folder, asserted) in [(out.clone(), false), (out.join("asserted"), true)] {
        let bindings = builder.clone().layout_tests(asserted).generate().unwrap_or_else(|error| {
            panic!("bindgen failed for sys.rs: {error}; install libclang (Debian: libclang-dev)")
        });
        let file = folder.join("sys.rs");
        std::fs::create_dir_all(&folder)
            .and_then(|()| bindings.write_to_file(&file))
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    }
}
