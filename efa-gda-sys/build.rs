//! Generates the bindings from the headers in `third_party/efa_gda/` and from the
//! queue struct in `kernels/include/`. Needs libclang, and neither libfabric nor CUDA.

use std::env;
use std::path::{Path, PathBuf};

/// Masks whose upstream definitions are macro calls, which bindgen cannot evaluate;
/// an enumeration makes the compiler evaluate them, for our header and upstream's alike.
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

fn main() {
    println!("cargo::rerun-if-env-changed=EFA_IO_DEFS_H");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let root = root.parent().expect("the crate lies in the workspace").to_path_buf();
    let third_party = root.join("third_party/efa_gda");
    let kernels = root.join("kernels/include");

    let io_defs = match env::var_os("EFA_IO_DEFS_H") {
        Some(file) => PathBuf::from(file),
        None => third_party.join("efa_io_defs.h"),
    };
    if !io_defs.is_file() {
        panic!(
            "EFA_IO_DEFS_H names {}, which is not a file; unset it, or give the path of rdma-core's \
             providers/efa/efa_io_defs.h",
            io_defs.display()
        );
    }

    generate(&io_wrapper(&io_defs), &[], "(efa_io|EFA_IO)_.*", &out.join("io.rs"), &[&io_defs]);
    let fi_ext = third_party.join("fi_ext_efa.h");
    generate(
        &format!("#include \"{}\"\n", fi_ext.display()),
        &[],
        "(fi|fid|FI)_.*|fid",
        &out.join("fi.rs"),
        &[&fi_ext, &third_party.join("libfabric_abi.h")],
    );
    let efadv = third_party.join("efadv.h");
    generate(
        &format!("#include \"{}\"\n", efadv.display()),
        &[],
        "(ibv|efadv|IBV|EFADV)_.*|_compat_ibv_.*|efa_gda_(ibverbs|efadv)_calls",
        &out.join("verbs.rs"),
        &[&efadv, &third_party.join("verbs_abi.h")],
    );
    let queue = kernels.join("efa_gda/queue.h");
    generate(
        &format!("#include \"{}\"\n", queue.display()),
        &[&kernels],
        "(efa_gda|EFA_GDA)_.*",
        &out.join("device.rs"),
        &[&queue],
    );
    // For crates that compile C or CUDA against the same headers.
    println!("cargo::metadata=third_party={}", third_party.display());
    println!("cargo::metadata=kernels={}", kernels.display());
}

/// A header that includes `io_defs` and restates its masks as an enumeration. The macros before
/// the include are what rdma-core's copy takes from its own utility headers.
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

fn generate(header: &str, include: &[&Path], names: &str, output: &Path, depends: &[&Path]) {
    for file in depends {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let mut builder = bindgen::Builder::default()
        .header_contents("wrapper.h", header)
        .clang_args(include.iter().map(|dir| format!("-I{}", dir.display())))
        .clang_arg("-fparse-all-comments")
        .allowlist_item(format!("({names})|VALUE_OF_.*"))
        .parse_callbacks(Box::new(Masks))
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .use_core()
        .derive_default(true)
        .layout_tests(true)
        .formatter(bindgen::Formatter::None);
    // Where a mask is a plain number, bindgen finds it twice; the enumeration serves both headers.
    builder = builder.blocklist_item("EFA_IO_.*_MASK");
    let bindings = builder.generate().unwrap_or_else(|error| {
        panic!("bindgen failed: {error}; it needs libclang with its headers (Debian: libclang-14-dev)")
    });
    bindings
        .write_to_file(output)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", output.display()));
}

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
