//! The C interface on the software adapter: programs in C (`capi/transport.c` and the example) and C++
//! (`capi/signal.cpp`) that link `libefa_gda.so`, and the library's exports.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

#[path = "capi/exports.rs"]
mod exports;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use efa_gda_test_support::compile::{self, compile};
use efa_gda_test_support::soft::with_soft_adapter;
use efa_gda_test_support::{TempDir, output, run};

/// The library's files.
struct Libraries {
    /// Of cargo.
    archive: PathBuf,
    shared: PathBuf,
    /// What `link.sh` links, which is what `scripts/install.sh` installs: the folder of `libefa_gda.so`.
    installed: TempDir,
}

/// Builds the library as users build it, without features that the tests' dependencies enable.
///
/// Cargo builds no library of type cdylib for integration tests.
fn libraries() -> &'static Libraries {
    static BUILT: OnceLock<Libraries> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["build", "--quiet", "--locked", "--package", "efa-gda-capi", "--lib", "--target-dir"]);
        cargo.arg(target);
        if !cfg!(feature = "cuda") {
            cargo.arg("--no-default-features");
        }
        // On a busy machine this takes many minutes.
        let built = run(&mut cargo, Duration::from_secs(1800));
        assert!(built.status.is_some_and(|status| status.success()), "{cargo:?} failed: {}", built.stderr);
        let [archive, shared] = ["libefa_gda.a", "libefa_gda.so"].map(|name| target.join("debug").join(name));
        let installed = TempDir::new("capi-library");
        link(&root().join("link.sh"), &archive, &installed.path().join("libefa_gda.so"));
        Libraries { archive, shared, installed }
    })
}

/// Links a shared library from the static one.
fn link(script: &Path, archive: &Path, into: &Path) {
    // Through the shell: a script that a test wrote may be open for writing in a child that another test forks.
    let linked = output(Command::new("sh").arg(script).arg(archive).arg(into));
    assert!(linked.status.success(), "{script:?} failed: {}", String::from_utf8_lossy(&linked.stderr));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn library() -> PathBuf {
    libraries().installed.path().join("libefa_gda.so")
}

/// The headers for host programs.
fn headers() -> [PathBuf; 2] {
    ["efa_gda.h", "efa_gda_nvshmem.h"].map(|name| root().join("include").join(name))
}

/// The compiler with strict warnings and the folders of the headers.
fn strict(mut compiler: Command) -> Command {
    compiler.args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I"]);
    compiler.arg(root().join("include")).arg("-I").arg(root().join("kernels/include"));
    compiler.arg("-I").arg(root().join("third_party/efa_gda"));
    compiler
}

/// The programs.
#[derive(Clone, Copy)]
enum Program {
    /// In C, every function: its argument names a test.
    Transport,
    /// In C, the example.
    Put,
    /// In C++, with kernels on the host executor.
    Signal,
}

/// Compiles and links a program in `folder`. Returns None, with the skip recorded, where there is no compiler.
fn program(program: Program, folder: &TempDir) -> Option<PathBuf> {
    let file = folder.path().join("program");
    let mut command = match program {
        Program::Transport | Program::Put => strict(compile::c()),
        Program::Signal => strict(compile::cxx()),
    };
    match program {
        Program::Transport => command.arg("-std=c11").arg(root().join("tests/capi/transport.c")),
        Program::Put => command.arg("-std=c11").arg(root().join("examples/put.c")),
        Program::Signal => {
            command.args(["-std=c++17", "-O1"]).arg(root().join("kernels/host/lanes.cpp"));
            command.arg(root().join("tests/capi/signal.cpp"))
        }
    };
    let folder = libraries().installed.path();
    command.arg("-o").arg(&file).arg("-L").arg(folder).args(["-lefa_gda", "-lpthread"]);
    // Searched before LD_LIBRARY_PATH, in which cargo names a folder with libraries of earlier builds.
    command.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display()));
    compile(&mut command).then_some(file)
}

/// Runs a program on the software adapter, once with each word, or without arguments.
fn run_on_soft(of: Program, words: &[&str], variables: &[(&str, &str)]) {
    // Before the child starts, whose time is bounded.
    libraries();
    with_soft_adapter(variables, |_| {
        let folder = TempDir::new("capi");
        let Some(program) = program(of, &folder) else { return };
        for word in words {
            let output = output(Command::new(&program).args(word.split_whitespace()));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{word:?} ended with {}: {text}", output.status);
        }
    });
}

/// Runs a test of the C program.
fn in_c(name: &str, variables: &[(&str, &str)]) {
    run_on_soft(Program::Transport, &[name], variables);
}

/// Lets libfabric before 2.5 open completion counters.
const COUNTERS: &[(&str, &str)] = &[("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1")];

#[test]
fn the_example_puts_in_every_doorbell_mode_and_its_page_shows_it() {
    let source = std::fs::read_to_string(root().join("examples/put.c")).unwrap();
    let main: Vec<_> = source.lines().skip_while(|line| !line.starts_with("int main")).collect();
    assert!(main.len() <= 40, "main of examples/put.c has {} lines", main.len());
    let page = std::fs::read_to_string(root().join("../docs/c.md")).unwrap();
    let shown = page.split("```c\n").nth(1).and_then(|block| block.split("```").next());
    assert_eq!(shown, Some(&*source), "the first block of C in docs/c.md");
    run_on_soft(Program::Put, &["", "record", "staged"], &[]);
}

#[cfg(feature = "cuda")]
#[test]
fn the_example_puts_through_a_gpu_in_every_doorbell_mode() {
    let words = ["gpu", "gpu record", "gpu staged"];
    run_on_soft(Program::Put, &words, &efa_gda_test_support::cuda::VARIABLES);
}

#[test]
fn a_put_from_c_arrives_and_everything_closes() {
    in_c("put", &[]);
}

#[test]
fn regions_close_before_and_after_their_queue_and_serve_queues_beside_it() {
    in_c("order", &[]);
}

#[test]
fn registration_and_abort_do_not_wait_for_a_thread_that_waits_on_the_queue() {
    in_c("threads", &[]);
}

#[cfg(feature = "cuda")]
#[test]
fn a_put_from_c_through_a_gpu_arrives() {
    if efa_gda_test_support::gpu::present() {
        in_c("put", &[("EFA_GDA_TEST_GPU", "0")]);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn completions_are_relayed_to_a_gpu_that_cannot_map_the_completion_queue() {
    // The pretended driver registers send queue, doorbell and completion queue, in this order.
    let refused = [("EFA_GDA_TEST_GPU", "0"), ("EFA_GDA_TEST_RELAYED", "1"), ("PRETEND_GPU_REFUSES", "3")];
    in_c("put", &[&efa_gda_test_support::cuda::VARIABLES[..], &refused].concat());
}

#[cfg(feature = "cuda")]
#[test]
fn a_queue_says_what_it_could_not_use_and_why() {
    in_c("refused", &[&efa_gda_test_support::cuda::VARIABLES[..], &[("EFA_GDA_TEST_GPU", "0")]].concat());
}

#[cfg(feature = "cuda")]
#[test]
fn a_queue_that_a_kernel_left_open_stays_mapped_into_its_gpu_after_a_refused_close() {
    let gpu = [("EFA_GDA_TEST_GPU", "0")];
    in_c("abandoned", &[&efa_gda_test_support::cuda::VARIABLES[..], &gpu].concat());
}

#[test]
fn an_error_completion_reaches_c_with_its_status() {
    in_c("errors", &[]);
}

#[test]
fn close_returns_busy_to_c_while_an_object_is_in_use() {
    in_c("busy", &[]);
}

#[test]
fn every_operation_and_receives_work_from_c() {
    in_c("operations", &[]);
}

#[test]
fn wide_entries_carry_inline_writes_from_c() {
    in_c("wide", &[]);
}

#[test]
fn counters_count_for_a_queue_and_for_its_peer_in_c() {
    in_c("counters", COUNTERS);
}

#[test]
fn a_cplusplus_program_signals_behind_its_data_and_waits_for_its_own_requests() {
    let reordered = [("SOFTEFA_REORDER", "48"), ("SOFTEFA_INTERVAL_US", "20")];
    run_on_soft(Program::Signal, &[""], &reordered);
}

#[test]
fn writes_to_a_region_with_relaxed_ordering_may_be_late_in_c() {
    in_c("relaxed", &[("SOFTEFA_LATE_WRITE_US", "3600000000")]);
}

#[test]
fn a_snapshot_reaches_c() {
    in_c("snapshot", &[]);
}

#[test]
fn a_queue_whose_wait_timed_out_can_be_destroyed_from_c() {
    in_c("timeout", &[("SOFTEFA_DELAY_US", "60000000")]);
}

#[test]
fn a_domain_of_another_transport_is_borrowed_and_its_misuse_is_named_in_c() {
    in_c("borrowed", &[("EFA_GDA_GPU", "-1"), ("SOFTEFA_FABRICS", "efa,efa-direct")]);
}

#[test]
fn null_closed_and_foreign_arguments_are_errors_in_c() {
    in_c("misuse", &[]);
}
