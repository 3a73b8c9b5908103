//! Publishes the directories of the C headers to dependent build scripts.
//!
//! With the feature `regenerate`, generates the bindings from these headers into `OUT_DIR`, where the crate includes
//! them in place of `src/generated/`. That needs libclang, and neither libfabric, rdma-core nor CUDA.

use std::env;
use std::path::PathBuf;

/// Names a copy of rdma-core's `efa_io_defs.h` to generate the descriptors from.
const EFA_IO_DEFS_H: &str = "EFA_IO_DEFS_H";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={EFA_IO_DEFS_H}");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let third_party = root.join("third_party/efa_gda");
    let kernels = root.join("kernels/include");
    println!("cargo::metadata=third_party={}", third_party.display());
    println!("cargo::metadata=kernels={}", kernels.display());

    let upstream = env::var_os(EFA_IO_DEFS_H).filter(|file| !file.is_empty()).map(PathBuf::from);
    if let Some(file) = upstream.as_ref().filter(|file| !file.is_file()) {
        println!(
            "cargo::error={EFA_IO_DEFS_H} names {}, which is not a file: unset it, or set it to the path of rdma-core's \
             providers/efa/efa_io_defs.h",
            file.display()
        );
        return;
    }
    #[cfg(feature = "regenerate")]
    generate::all(upstream.unwrap_or_else(|| third_party.join("efa_io_defs.h")), &third_party, &kernels);
    #[cfg(not(feature = "regenerate"))]
    if let Some(file) = upstream {
        println!(
            "cargo::error={EFA_IO_DEFS_H} names {}, but the bindings are not generated in this build: unset it, or build \
             with --features efa-gda-sys/regenerate, which needs libclang",
            file.display()
        );
    }
}

#[cfg(feature = "regenerate")]
mod generate {
    use std::env;
    use std::path::{Path, PathBuf};

    /// Masks that upstream defines by macro calls, which bindgen cannot evaluate. An enumeration makes the compiler
    /// evaluate them, for this project's header and for upstream's.
    const MASKS: &[&str] = &[
        "EFA_IO_TX_META_DESC_OP_TYPE_MASK",
        "EFA_IO_TX_META_DESC_HAS_IMM_MASK",
        "EFA_IO_TX_META_DESC_INLINE_MSG_MASK",
        "EFA_IO_TX_META_DESC_META_EXTENSION_MASK",
        "EFA_IO_TX_META_DESC_META_DESC_MASK",
        "EFA_IO_TX_META_DESC_PHASE_MASK",
        "EFA_IO_TX_META_DESC_FIRST_MASK",
        "EFA_IO_TX_META_DESC_LAST_MASK",
        "EFA_IO_TX_META_DESC_COMP_REQ_MASK",
        "EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK",
        "EFA_IO_TX_BUF_DESC_LKEY_MASK",
        "EFA_IO_RX_DESC_LKEY_MASK",
        "EFA_IO_RX_DESC_FIRST_MASK",
        "EFA_IO_RX_DESC_LAST_MASK",
        "EFA_IO_CDESC_COMMON_PHASE_MASK",
        "EFA_IO_CDESC_COMMON_Q_TYPE_MASK",
        "EFA_IO_CDESC_COMMON_HAS_IMM_MASK",
        "EFA_IO_CDESC_COMMON_OP_TYPE_MASK",
        "EFA_IO_CDESC_COMMON_UNSOLICITED_MASK",
    ];

    /// Generates every file of `src/generated/` into `OUT_DIR`.
    pub(super) fn all(io_defs: PathBuf, third_party: &Path, kernels: &Path) {
        for directory in [third_party, kernels] {
            println!("cargo::rerun-if-changed={}", directory.display());
        }
        println!("cargo::rerun-if-changed={}", io_defs.display());
        one("io", &io_wrapper(&io_defs), "(efa_io|EFA_IO)_.*|VALUE_OF_.*");
        let load = kernels.with_file_name("test").join("load.h");
        println!("cargo::rerun-if-changed={}", load.display());
        let header = |path: PathBuf| format!("#include \"{}\"\n", path.display());
        one("fi", &header(third_party.join("fi_ext_efa.h")), "(fi|fid|FI)_.*|fid");
        one(
            "verbs",
            &header(third_party.join("efadv.h")),
            "(ibv|efadv|IBV|EFADV)_.*|_compat_ibv_.*|efa_gda_(ibverbs|efadv)_calls",
        );
        // load.h: arguments of the load generator, for tests.
        let device = header(kernels.join("efa_gda/queue.h")) + &header(load);
        one("device", &device, "(efa_gda|EFA_GDA)_.*");
    }

    /// A header that includes `io_defs` and restates its masks as an enumeration. The macros before the include replace
    /// those that upstream's header takes from rdma-core's utility headers.
    fn io_wrapper(io_defs: &Path) -> String {
        let mut text = String::from(
            "#include <stdint.h>\n\
             #define BIT(n) (1u << (n))\n\
             #define GENMASK(h, l) ((~0u >> (31 - (h))) & (~0u << (l)))\n\
             #define HAVE_EFA_DATA_PATH_DIRECT 1\n",
        );
        text += &format!("#include \"{}\"\n", io_defs.display());
        text += "enum efa_io_mask {\n";
        for mask in MASKS {
            text += &format!("  VALUE_OF_{mask} = {mask},\n");
        }
        text += "};\n";
        text
    }

    /// Generates `NAME.rs` with the items of `header` that match `items`, and `asserted/NAME.rs`, which also asserts
    /// their layouts.
    ///
    /// The result depends on the headers and on bindgen's version alone: the formatter is bindgen's, the Rust version is
    /// the workspace's oldest, and no type of the C library whose layout differs between architectures is used.
    fn one(name: &str, header: &str, items: &str) {
        let oldest = bindgen::RustTarget::stable(88, 0).unwrap_or_else(|error| panic!("{error}"));
        let builder = bindgen::Builder::default()
            .header_contents("wrapper.h", header)
            // For load.h, which includes efa_gda/queue.h.
            .clang_arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/kernels/include"))
            .clang_arg("-fparse-all-comments")
            .clang_arg("-DEFA_GDA_BINDINGS")
            .allowlist_item(items)
            // Where a mask is a plain number, bindgen would generate it twice.
            .blocklist_item("EFA_IO_.*_MASK")
            .parse_callbacks(Box::new(Masks))
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .use_core()
            .derive_default(true)
            .rust_target(oldest)
            .rust_edition(bindgen::RustEdition::Edition2024)
            .formatter(bindgen::Formatter::Prettyplease);
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        for (folder, asserted) in [(out.clone(), false), (out.join("asserted"), true)] {
            let bindings = builder.clone().layout_tests(asserted).generate().unwrap_or_else(|error| {
                panic!("bindgen failed for {name}.rs: {error}; install libclang (Debian: libclang-dev)")
            });
            let file = folder.join(name).with_extension("rs");
            std::fs::create_dir_all(&folder)
                .and_then(|()| std::fs::write(&file, without_repeated_comments(&bindings.to_string())))
                .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
        }
    }

    /// Removes a comment that equals the one before it: libclang repeats an enumerator's comment for every following
    /// enumerator that has none.
    fn without_repeated_comments(bindings: &str) -> String {
        let (mut text, mut comment, mut last) = (String::new(), String::new(), String::new());
        for line in bindings.lines() {
            if line.trim_start().starts_with("///") {
                comment += line;
                comment.push('\n');
                continue;
            }
            if !comment.is_empty() && comment != last {
                text += &comment;
                last.clone_from(&comment);
            }
            comment.clear();
            text += line;
            text.push('\n');
        }
        text
    }

    /// Restores the masks' names.
    #[derive(Debug)]
    struct Masks;

    impl bindgen::callbacks::ParseCallbacks for Masks {
        fn enum_variant_name(
            &self,
            _enum_name: Option<&str>,
            original: &str,
            _value: bindgen::callbacks::EnumVariantValue,
        ) -> Option<String> {
            original.strip_prefix("VALUE_OF_").map(str::to_owned)
        }
    }
}
