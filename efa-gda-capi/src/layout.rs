//! Compares this crate's structs and numbers with those of `efa_gda.h`, by assertions that the C compiler checks.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;

use efa_gda_test_support::TempDir;
use efa_gda_test_support::compile::{c, compile};

use crate::error::Code;
use crate::queue::ADDRESS_BYTES;
use crate::{API_VERSION, NvshmemState, Progress, QueueInfo, QueueOptions, ReceivedOne, Work};

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
    expect_layout!(
        text, QueueOptions, "efa_gda_options",
        size gpu source adapter doorbell flags requests receives completions counted beside domain info
    );
    expect_layout!(
        text, QueueInfo, "efa_gda_queue_info",
        size address adapter source doorbell flags entry_size num_entries receives qpn store_bytes max_message max_rdma
        max_inline counter_gpu successes failures
    );
    expect_layout!(
        text, Work, "efa_gda_work",
        size peer remote_address rkey op local local_offset bytes count timeout_ns immediate
    );
    expect_layout!(
        text, ReceivedOne, "efa_gda_received",
        flags receive status length immediate source_ah source_qpn
    );
    expect_layout!(text, NvshmemState, "nvshmemt_efa_gda_device_state", size handle queue gpu store_bytes);
    expect_layout!(
        text, Progress, "efa_gda_progress",
        size reserved completed in_flight poison errors first_status first_request
    );
    expect(text, "EFA_GDA_ADDRESS_BYTES", ADDRESS_BYTES as i64);
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
