//! Compares this crate's structs and numbers with those of `efa_gda.h`, by assertions that the C compiler checks.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;

use efa_gda_test_support::TempDir;
use efa_gda_test_support::compile::{c, compile};

use crate::error::Code;
use crate::{
    API_VERSION, CounterInfo, MappedAttr, MappedInfo, NvshmemState, Progress, ReceivedOne, ReceivesToPost,
    RegionInfo, Work,
};

/// Appends an assertion that `expression` of C has a value.
fn expect(source: &mut String, expression: &str, value: i64) {
    writeln!(source, "_Static_assert({expression} == {value}, \"{expression}\");").expect("a string grows");
}

/// Appends assertions of a struct's size and of its fields' offsets.
macro_rules! expect_layout {
    ($source:expr, $type:ty, $name:literal, $($field:ident)*) => {
        expect($source, concat!("sizeof(struct ", $name, ")"), size_of::<$type>() as i64);
        $(expect(
            $source,
            concat!("offsetof(struct ", $name, ", ", stringify!($field), ")"),
            offset_of!($type, $field) as i64,
        );)*
    };
}

#[test]
fn structs_and_numbers_equal_those_of_the_header() {
    let mut source = "#include \"efa_gda_nvshmem.h\"\n".to_owned();
    let text = &mut source;
    expect_layout!(text, RegionInfo, "efa_gda_region_info", size address length lkey rkey is_dmabuf relaxed_ordering);
    expect_layout!(text, CounterInfo, "efa_gda_counter_info", size success error gpu reserved);
    expect_layout!(
        text, MappedAttr, "efa_gda_mapped_attr",
        size completions peers gpu doorbell store_width flags requests receives counter counted
    );
    expect_layout!(
        text, MappedInfo, "efa_gda_mapped_info",
        size entry_size num_entries max_batch completion_size completions receives qpn doorbell completions_in_gpu
        max_inline max_rdma_size max_msg_size store_bytes flags
    );
    expect_layout!(
        text, Work, "efa_gda_work",
        size peer local local_offset remote_address rkey op bytes count timeout_ns immediate reserved
    );
    expect_layout!(
        text, ReceivesToPost, "efa_gda_receives",
        size region offset bytes stride timeout_ns count reserved
    );
    expect_layout!(
        text, ReceivedOne, "efa_gda_received",
        flags receive status length immediate source_ah source_qpn arrival
    );
    expect_layout!(
        text, NvshmemState, "nvshmemt_efa_gda_device_state",
        size domain mapped queue gpu store_bytes
    );
    expect_layout!(
        text, Progress, "efa_gda_progress",
        size reserved doorbell_index completed in_flight errors first_status first_request poison launches
    );
    expect(text, "EFA_GDA_API_VERSION", API_VERSION.into());
    expect(text, "EFA_GDA_ACCESS_RELAXED_ORDERING", efa_gda_sys::fi::FI_EFA_MR_RELAXED_ORDERING as i64);
    for (name, code) in [
        ("ARGUMENT", Code::Argument),
        ("NO_ADAPTER", Code::NoAdapter),
        ("FABRIC", Code::Fabric),
        ("UNSUPPORTED", Code::Unsupported),
        ("EXPOSURE", Code::Exposure),
        #[cfg(feature = "cuda")]
        ("GPU", Code::Gpu),
        #[cfg(feature = "cuda")]
        ("GPU_LOST", Code::GpuLost),
        ("BUSY", Code::Busy),
        ("DEVICE", Code::Device),
        ("COMPLETION", Code::Completion),
        ("INTERNAL", Code::Internal),
        ("TIMEOUT", Code::Timeout),
        ("LOST", Code::Lost),
    ] {
        expect(text, &format!("EFA_GDA_ERROR_{name}"), code as i64);
    }

    let folder = TempDir::new("layout");
    let file = folder.path().join("layout.c");
    std::fs::write(&file, source).expect("the folder is writable");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = c();
    command.args(["-std=c11", "-fsyntax-only", "-I"]).arg(root.join("include"));
    compile(command.arg("-I").arg(root.join("kernels/include")).arg(file));
}
