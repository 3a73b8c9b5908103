//! Signatures in the tables of calls equal those in rdma-core's headers: a C compiler accepts each function as the
//! table's member. `scripts/check_interfaces.sh` compares layouts and constants.

#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};

use efa_gda_sys::verbs::{CALLS, Library};
use efa_gda_test_support::{Need, TempDir, compile, missing};

/// Environment variable with the directory of `infiniband/efadv.h`, of rdma-core 65 or newer.
const INCLUDE: &str = "RDMA_CORE_INCLUDE";

/// A C program that initialises both tables with rdma-core's functions.
fn program(headers: &Path) -> String {
    let mut text = String::from(
        "#include <infiniband/efadv.h>\n\
         #undef ibv_get_device_list\n#undef ibv_query_port\n#undef ibv_reg_mr\n\
         #define EFA_GDA_VERBS_CALLS_ONLY\n",
    );
    text += &format!("#include \"{}\"\n", headers.join("efadv.h").display());
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
        let reason = format!("{INCLUDE} is not set to the include directory of rdma-core 65 or newer");
        return missing(Need::Headers, reason);
    };
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("third_party/efa_gda");
    let folder = TempDir::new("verbs-headers");
    let source = folder.path().join("calls.c");
    std::fs::write(&source, program(&headers)).unwrap();
    let mut command = compile::c();
    compile::compile(command.args(["-fsyntax-only", "-Wall", "-Werror", "-I"]).arg(&include).arg(&source));
}
