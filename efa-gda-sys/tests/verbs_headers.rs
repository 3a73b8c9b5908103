//! The signatures of rdma-core's functions as stated here, against its real headers: the compiler
//! takes each function into its place of the table, or refuses. Layouts and constants are compared
//! by `scripts/check_interfaces.sh`.

#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

use efa_gda_sys::verbs::{CALLS, Library};

/// Where `infiniband/efadv.h` of rdma-core 65 or newer lies.
const INCLUDE: &str = "RDMA_CORE_INCLUDE";

fn program(ours: &Path) -> String {
    let mut text = String::from(
        "#include <infiniband/efadv.h>\n\
         #undef ibv_get_device_list\n#undef ibv_query_port\n#undef ibv_reg_mr\n\
         #define EFA_GDA_VERBS_CALLS_ONLY\n",
    );
    text += &format!("#include \"{}\"\n", ours.join("efadv.h").display());
    for (library, table) in [(Library::Ibverbs, "ibverbs"), (Library::Efa, "efadv")] {
        text += &format!("struct efa_gda_{table}_calls {table} = {{\n");
        for call in CALLS.iter().filter(|call| call.library == library) {
            text += &format!("  .{0} = {0},\n", call.name);
        }
        text += "};\n";
    }
    text
}

#[test]
fn every_function_has_the_signature_of_the_real_header() {
    let Some(include) = std::env::var_os(INCLUDE).map(PathBuf::from) else {
        eprintln!("skipped: {INCLUDE} names no directory with infiniband/efadv.h of rdma-core 65 or newer");
        return;
    };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("third_party/efa_gda");
    let source =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verbs_headers-{}.c", std::process::id()));
    std::fs::write(&source, program(&ours)).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let done = Command::new(compiler)
        .args(["-fsyntax-only", "-Wall", "-Werror", "-I"])
        .arg(&include)
        .arg(&source)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::remove_file(&source).unwrap();
}
