//! The kernels compile with nvcc and with NVRTC for the GPUs that are paired with EFA adapters. The output defines the entry
//! points, uses neither printf nor assert, and uses no more local memory than the bound of each kernel.
//!
//! The tests need no GPU. `scripts/cuda_toolchain.sh` provides the compilers; if it fails, the tests are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use efa_gda::gpu::compile_source;
use efa_gda_test_support::{Need, in_child, missing, output, root, run};

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// Whether the run covers an architecture. `EFA_GDA_TEST_ARCHITECTURES=sm_90,sm_100` limits the run to those two.
fn is_covered(architecture: &str) -> bool {
    std::env::var("EFA_GDA_TEST_ARCHITECTURES")
        .map_or(true, |list| list.split(',').any(|name| name == architecture))
}

/// Upper bounds on local memory, in bytes, as the pinned ptxas compiles it: the stack of a kernel and all that it calls,
/// the registers that a kernel spills, and those that a function of the library stores, most for its callers.
struct Local {
    stack: u32,
    spilled: u32,
    saved: u32,
}

/// What polls and waits keep lies in the thread's memory, and a handle's values that are rarely used.
const PUT: Local = Local { stack: 64, spilled: 0, saved: 0 };
/// Each kernel contains every kind of group.
const LOAD: Local = Local { stack: 112, spilled: 0, saved: 0 };
/// The kernel puts with a signal: two posts of a warp and waits; and it waits for a signal.
const EXAMPLE: Local = Local { stack: 208, spilled: 0, saved: 0 };
/// The kernel's waits and polls keep their state in the thread's memory.
const RECEIVE: Local = Local { stack: 120, spilled: 0, saved: 0 };

/// A source, the entry points that it must define, and its bounds on each of `ARCHITECTURES`.
type Source = (&'static str, &'static [&'static str], [Local; 3]);

const SOURCES: [Source; 4] = [
    ("put.cu", &["efa_gda_put_kernel", "__nvshmem_efa_test_put_kernel"], [PUT; 3]),
    ("receive.cu", &["efa_gda_receive_kernel"], [RECEIVE; 3]),
    ("test/load.cu", &["efa_gda_load_kernel", "efa_gda_load_mixed_kernel"], [LOAD; 3]),
    ("examples/put_signal.cu", &["put_signal"], [EXAMPLE; 3]),
];

/// The toolkit's folder. Records a skip and returns `None` if there is no toolkit.
fn toolkit() -> Option<&'static Path> {
    static TOOLKIT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = TOOLKIT.get_or_init(|| {
        let outcome =
            run(&mut Command::new(root().join("scripts/cuda_toolchain.sh")), Duration::from_secs(600));
        match outcome.status {
            Some(status) if status.success() => Ok(PathBuf::from(outcome.stdout.trim())),
            Some(_) => Err(outcome.stderr.trim().to_owned()),
            None => Err("scripts/cuda_toolchain.sh did not end within 10 minutes".to_owned()),
        }
    });
    match found {
        Ok(path) => Some(path),
        Err(reason) => {
            missing(Need::Nvcc, format!("no CUDA compilers: {reason}"));
            None
        }
    }
}

/// Runs a command, which must succeed. Returns its standard error.
fn succeed(command: &mut Command, case: &str) -> String {
    let output = output(command);
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{case}:\n{report}");
    report
}

fn include_options() -> [String; 3] {
    ["kernels/include", "kernels/test", "third_party/efa_gda"]
        .map(|folder| format!("-I{}", root().join(folder).display()))
}

/// Defined and undefined symbols of a 64-bit little-endian ELF file.
struct Symbols {
    defined: Vec<String>,
    undefined: Vec<String>,
}

fn symbols(elf: &[u8]) -> Symbols {
    let number = |at: usize, size: usize| {
        elf[at..at + size].iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)) as usize
    };
    assert_eq!(elf[..5], *b"\x7fELF\x02", "a 64-bit ELF file");
    let (table, entry_size, count) = (number(40, 8), number(58, 2), number(60, 2));
    let section = |index: usize| table + index * entry_size;
    let mut found = Symbols { defined: Vec::new(), undefined: Vec::new() };
    // SHT_SYMTAB is 2; sh_link names its strings.
    for header in (0..count).map(section).filter(|header| number(header + 4, 4) == 2) {
        let (offset, size, link) = (number(header + 24, 8), number(header + 32, 8), number(header + 40, 4));
        let strings = number(section(link) + 24, 8);
        for symbol in (offset..offset + size).step_by(24).skip(1) {
            let name = &elf[strings + number(symbol, 4)..];
            let end = name.iter().position(|byte| *byte == 0).expect("names end with a zero");
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            let undefined = number(symbol + 6, 2) == 0;
            if undefined { found.undefined.push(name) } else { found.defined.push(name) }
        }
    }
    found
}

fn check_cubin(cubin: &[u8], entry_points: &[&str], case: &str) {
    let symbols = symbols(cubin);
    for name in entry_points {
        assert!(symbols.defined.iter().any(|defined| defined == name), "{case} does not define {name}");
    }
    for name in ["vprintf", "__assertfail", "malloc"] {
        let used = symbols.undefined.iter().chain(&symbols.defined).any(|symbol| symbol == name);
        assert!(!used, "{case} uses {name}");
    }
}

/// Checks the local memory that ptxas -v reports. The stack holds arguments that cold functions take by address, and
/// registers; arrays that should stay in registers would also be in it. ptxas counts registers that a function saves for
/// its callers as spills.
fn check_local(report: &str, most: &Local, case: &str) {
    let (mut function, mut kernels) = ("", 0);
    for line in report.lines() {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            function = name.trim();
        } else if line.contains("bytes cumulative stack size") {
            let stack = bytes_of_local(line, " bytes cumulative stack size");
            assert!(stack <= most.stack, "{case} has a larger stack: {line}");
        } else if line.contains("bytes stack frame") {
            let is_kernel = !function.starts_with("_ZN7efa_gda");
            kernels += u32::from(is_kernel);
            let (frame, stored) =
                (bytes_of_local(line, " bytes stack frame"), bytes_of_local(line, " bytes spill stores"));
            let most_stored = if is_kernel { most.spilled } else { most.saved };
            assert!(frame <= most.stack, "{case}: {function} has a larger frame: {line}");
            assert!(stored <= most_stored, "{case}: {function} spills: {line}");
        }
    }
    assert_ne!(kernels, 0, "{case}: ptxas reported no kernel:\n{report}");
}

/// The number in front of `kind` in a line of ptxas.
fn bytes_of_local(line: &str, kind: &str) -> u32 {
    let of_kind = line.split(',').find_map(|part| part.trim().strip_suffix(kind));
    of_kind.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no{kind}: {line}"))
}

/// The architectures for which the functions of the compatibility header are checked.
const COMPAT_ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90", "sm_100", "sm_120"];

/// The most bytes of registers that a function of the compatibility layer stores: those that it saves for its caller.
const SAVED: u32 = 208;

/// The most bytes of registers that a function may store or load a second time: `ibgda_post` for sm_120, where it waits
/// for free slots, and `wait_for_requests`.
const TWICE: u32 = 24;

/// Checks that a function of `report` stores no registers but those that it saves for its caller, and up to `TWICE` bytes:
/// each is stored once, at its beginning, and loaded once. A register that is spilled for lack of others is usually loaded
/// more often.
fn check_saved(report: &str, case: &str) {
    for line in report.lines().filter(|line| line.contains("bytes stack frame")) {
        let [stores, loads] =
            [" bytes spill stores", " bytes spill loads"].map(|kind| bytes_of_local(line, kind));
        assert!(stores <= SAVED && stores.abs_diff(loads) <= TWICE, "{case} spills: {line}\n{report}");
    }
}

#[test]
fn nvcc_compiles_the_kernels() {
    let Some(toolkit) = toolkit() else { return };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (source, entry_points, bounds) in SOURCES {
        for (architecture, most) in ARCHITECTURES.iter().zip(&bounds).filter(|(name, _)| is_covered(name)) {
            let case = format!("{source} for {architecture} by nvcc");
            let cubin = out.join(format!("{}.{architecture}.cubin", source.replace('/', "-")));
            let mut command = Command::new(toolkit.join("bin/nvcc"));
            command.args(["-cubin", "-std=c++17", "-Xptxas", "-v", "-Werror", "all-warnings"]);
            command.arg(format!("-arch={architecture}")).args(include_options()).arg("-o").arg(&cubin);
            let report = succeed(command.arg(root().join("kernels").join(source)), &case);
            check_local(&report, most, &case);
            check_cubin(&fs::read(&cubin).expect("nvcc wrote the cubin"), entry_points, &case);
        }
    }
}

/// A warp-specialised kernel gives up registers of the warps that post. ptxas ignores that, and says so, in a kernel with
/// a call through a pointer.
#[test]
fn a_kernel_that_posts_may_set_its_number_of_registers() {
    let Some(toolkit) = toolkit() else { return };
    let folder = efa_gda_test_support::TempDir::new("registers");
    for sharing in ["Device", "Warp"] {
        let source = folder.path().join(format!("{sharing}.cu"));
        let text = format!(
            "#include \"efa_gda/post.h\"\nusing namespace efa_gda;\n\
             extern \"C\" __global__ void __launch_bounds__(384, 1) kernel(efa_gda_queue *queue, float *x) {{\n\
             if (threadIdx.x >= 128) {{\nasm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");\n\
             x[threadIdx.x] *= 2;\nreturn;\n}}\nasm volatile(\"setmaxnreg.dec.sync.aligned.u32 56;\");\n\
             if (threadIdx.x >= 32) return;\nSender<Sharing::{sharing}, WarpGroup> sender(queue);\n\
             (void)sender.post(32, [](uint32_t) {{ return Entry(); }});\n(void)sender.quiet();\n(void)sender.close();\n}}\n"
        );
        fs::write(&source, text).expect("the source is written");
        let mut command = Command::new(toolkit.join("bin/nvcc"));
        command.args(["-cubin", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v"]);
        command.args(include_options()).arg("-o").arg(folder.path().join("kernel.cubin")).arg(&source);
        let report = succeed(&mut command, sharing);
        assert!(!report.contains("setmaxnreg"), "{sharing}:\n{report}");
    }
}

/// A host thread may store to the bytes of an inline put meanwhile (Buffer::write).
#[test]
fn inline_bytes_of_a_put_are_not_read_by_plain_loads() {
    let Some(toolkit) = toolkit() else { return };
    let ptx = Path::new(env!("CARGO_TARGET_TMPDIR")).join("put.ptx");
    let mut command = Command::new(toolkit.join("bin/nvcc"));
    command.args(["-ptx", "-std=c++17", "-arch=sm_90"]).args(include_options()).arg("-o").arg(&ptx);
    succeed(command.arg(root().join("kernels/put.cu")), "put.cu");
    let text = fs::read_to_string(&ptx).expect("nvcc wrote the PTX");
    let loads_of_bytes = |kind: &str| {
        text.lines().filter(|line| line.trim_start().starts_with(kind) && line.contains(".u8 ")).count()
    };
    // Two kernels, two operations, and up to 80 bytes of each: plain loads of them would be more than those of fields.
    let plain = loads_of_bytes("ld.u8") + loads_of_bytes("ld.global.u8");
    assert!(loads_of_bytes("ld.relaxed.sys.global.u8") > 0 && plain < 80, "{plain} plain loads of bytes");
}

/// Covers separate compilation of device code and whole-program compilation.
#[test]
fn two_source_files_that_include_the_library_link() {
    let Some(toolkit) = toolkit() else { return };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let sources = ["put.cu", "examples/put_signal.cu"].map(|name| root().join("kernels").join(name));
    for separate in [false, true] {
        let objects: Vec<_> = (0..2).map(|file| out.join(format!("link-{separate}-{file}.o"))).collect();
        for (source, object) in sources.iter().zip(&objects) {
            let mut command = Command::new(toolkit.join("bin/nvcc"));
            command.args(["-std=c++17", "-arch=sm_90", if separate { "-dc" } else { "-c" }]);
            command.args(include_options()).arg("-o").arg(object).arg(source);
            succeed(&mut command, "nvcc compiles a file");
        }
        if separate {
            let mut command = Command::new(toolkit.join("bin/nvcc"));
            command.args(["-arch=sm_90", "-dlink", "-o"]).arg(out.join("link-device.o")).args(&objects);
            succeed(&mut command, "nvlink");
        }
        // Each object also contains the host's copy of the functions that both files define.
        let mut command = Command::new("ld");
        command.args(["-r", "-o"]).arg(out.join("link-host.o")).args(&objects);
        succeed(&mut command, "ld");
    }
}

/// A file with kernels of 1,024 threads, compiled for 64 registers, links with files of kernels that have more.
#[test]
fn files_with_different_register_limits_link() {
    let Some(toolkit) = toolkit() else { return };
    let folder = efa_gda_test_support::TempDir::new("limits");
    let files = [
        ("bounded", "WarpGroup", "__launch_bounds__(1024)", "-maxrregcount=64"),
        ("plain", "WarpGroup", "", "-maxrregcount=255"),
        ("block", "BlockGroup", "__launch_bounds__(512)", "-maxrregcount=128"),
    ];
    let objects = files.map(|(name, group, bounds, limit)| {
        let (source, object) =
            (folder.path().join(format!("{name}.cu")), folder.path().join(format!("{name}.o")));
        let text = format!(
            "#include \"efa_gda/post.h\"\nusing namespace efa_gda;\n\
             extern \"C\" __global__ void {bounds} {name}(efa_gda_queue *queue) {{\n\
             Sender<Sharing::Device, {group}> sender(queue);\n\
             sender.post(1, [](uint32_t) {{ return Entry(); }});\nsender.quiet();\nsender.close();\n}}\n"
        );
        fs::write(&source, text).expect("the source is written");
        let mut command = Command::new(toolkit.join("bin/nvcc"));
        command.args(["-std=c++17", "-arch=sm_90", "-dc", limit]).args(include_options());
        succeed(command.arg("-o").arg(&object).arg(&source), name);
        object
    });
    for other in &objects[1..] {
        let mut command = Command::new(toolkit.join("bin/nvcc"));
        command.args(["-arch=sm_90", "-dlink", "-o"]).arg(folder.path().join("linked.o"));
        succeed(command.arg(&objects[0]).arg(other), &other.display().to_string());
    }
}

#[test]
fn nvrtc_compiles_the_kernels_without_headers_of_the_toolkit() {
    let Some(toolkit) = toolkit() else { return };
    let libraries = toolkit.join("lib").display().to_string();
    in_child(&[("LD_LIBRARY_PATH", &libraries)], || {
        for (source, entry_points, _) in SOURCES {
            let text = fs::read_to_string(root().join("kernels").join(source)).expect("the source is there");
            // NVRTC gets only the headers of the device library, so the test header is pasted in.
            let text = text.replace("#include \"load.h\"", include_str!("../../kernels/test/load.h"));
            for architecture in ARCHITECTURES.into_iter().filter(|name| is_covered(name)) {
                let case = format!("{source} for {architecture} by NVRTC");
                let cubin = compile_source(source, &text, architecture);
                let cubin = cubin.unwrap_or_else(|error| panic!("{case}: {error}"));
                check_cubin(&cubin, entry_points, &case);
            }
        }
    });
}

/// The folders for sources that use the functions of `ibgda_compat.cuh`.
fn compat_options() -> Vec<String> {
    let deepep = format!("-I{}", root().join("kernels/deepep").display());
    include_options().into_iter().chain([deepep]).collect()
}

fn compat_source(name: &str) -> PathBuf {
    root().join("efa-gda/tests/ibgda").join(name)
}

/// Calls in DeepEP's shapes from two files, one of them with blocks of 1,024 threads. The device linker refuses a second
/// definition of the state, and functions that need more registers than such a block has. Nothing spills.
#[test]
fn two_files_that_use_the_compatibility_functions_link_without_spills_and_with_one_definition_of_the_state() {
    let Some(toolkit) = toolkit() else { return };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let nvcc = |arguments: &[&str], last: &[&Path]| {
        let mut command = Command::new(toolkit.join("bin/nvcc"));
        command.args(["-std=c++17", "-arch=sm_90"]).args(compat_options()).args(arguments).args(last);
        command
    };
    let objects = ["compat-low-latency.o", "compat-normal.o", "compat-state.o"].map(|name| out.join(name));
    let state = root().join("kernels/deepep/efa_device_state.cu");
    let sources = [compat_source("low_latency.cu"), compat_source("normal.cu"), state];
    for (source, object) in sources.iter().zip(&objects) {
        // The callers' own code may use more.
        let is_library = object.ends_with("compat-state.o");
        let registers: &[&str] = if is_library { &["-maxrregcount=64"] } else { &[] };
        let case = source.display().to_string();
        let arguments = [registers, &["-Xptxas", "-v", "-dc", "-o"]].concat();
        let report = succeed(&mut nvcc(&arguments, &[object, source]), &case);
        if is_library {
            check_saved(&report, &case);
        } else {
            check_local(&report, &Local { stack: 0, spilled: 0, saved: 0 }, &case);
        }
    }
    let [low_latency, normal, state] = objects.each_ref().map(PathBuf::as_path);
    let linked = out.join("compat-linked.o");
    let link = |objects: &[&Path]| nvcc(&["-dlink", "-o"], &[&[linked.as_path()], objects].concat());
    succeed(&mut link(&[low_latency, normal, state]), "one definition");
    let without = output(&mut link(&[low_latency, normal]));
    let text = String::from_utf8_lossy(&without.stderr);
    assert!(!without.status.success() && text.contains("efa_gda_ibgda_state_d"), "no definition: {text}");
    let again = out.join("compat-state-again.o");
    fs::copy(state, &again).expect("the object is there");
    let twice = output(&mut link(&[low_latency, normal, state, &again]));
    let text = String::from_utf8_lossy(&twice.stderr);
    assert!(!twice.status.success() && text.contains("efa_gda_ibgda_state_d"), "two definitions: {text}");
}

#[test]
fn the_compatibility_functions_fit_blocks_of_1024_threads_in_both_ways_of_compilation() {
    let Some(toolkit) = toolkit() else { return };
    let cubin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compat.cubin");
    let library: &[&str] = &["-rdc=true", "-maxrregcount=64"];
    for architecture in COMPAT_ARCHITECTURES.into_iter().filter(|name| is_covered(name)) {
        for (source, options) in
            [(root().join("kernels/nvshmem/device.cu"), library), (compat_source("low_latency.cu"), &[])]
        {
            let case = format!("{} for {architecture}", source.display());
            let mut command = Command::new(toolkit.join("bin/nvcc"));
            command.args(["-cubin", "-std=c++17", "-Xptxas", "-v", "-Werror", "all-warnings"]).args(options);
            command.arg(format!("-arch={architecture}")).args(compat_options()).arg("-o").arg(&cubin);
            let report = succeed(command.arg(&source), &case);
            check_saved(&report, &case);
            if options.is_empty() {
                // What a block of 1,024 threads has.
                assert!(report.contains("Used 64 registers"), "{case}:\n{report}");
                let kernel =
                    report.split("Function properties for ").skip(1).find(|part| part.contains("shapes"));
                let kernel = kernel.and_then(|part| part.lines().nth(1)).expect("ptxas reports the kernel");
                check_local(kernel, &Local { stack: 0, spilled: 0, saved: 0 }, &case);
            }
        }
    }
}

#[test]
fn a_host_compiler_sees_no_device_code_in_the_compatibility_header() {
    let mut command = efa_gda_test_support::compile::cxx();
    command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).args(compat_options());
    efa_gda_test_support::compile::compile(command.arg(compat_source("host_only.cpp")));
}

/// The releases of NCCL whose handles `nccl_gin.h` knows.
const NCCL: [&str; 2] = ["nvidia-nccl-cu13==2.32.3", "nvidia-nccl-cu13==2.31.2"];
/// NCCL's switches that leave other networks' code out.
const ONLY_EFA: [&str; 3] =
    ["-DNCCL_GIN_PROXY_ENABLE=0", "-DNCCL_GIN_GDAKI_ENABLE=0", "-DNCCL_GIN_GPI_ENABLE=0"];

/// The folder of a release's headers. Records a skip and returns `None` if the package cannot be downloaded.
fn nccl_headers(package: &str) -> Option<PathBuf> {
    let script = "source scripts/lib/setup.sh; source scripts/lib/headers.sh; peer_headers \"$1\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", package]).current_dir(root());
    let outcome = run(&mut command, Duration::from_secs(300));
    if outcome.status.is_some_and(|status| status.success()) {
        return Some(PathBuf::from(outcome.stdout.trim()));
    }
    missing(
        Need::Nvcc,
        format!("the headers of {package} could not be downloaded: {}", outcome.stderr.trim()),
    );
    None
}

/// nvcc's result for a source that includes NCCL's headers from `headers`, with the drop-in in front of it or without.
fn compile_for_nccl(
    toolkit: &Path,
    headers: &[&Path],
    source: &str,
    drop_in: bool,
    options: &[&str],
) -> (bool, String) {
    let folder = efa_gda_test_support::TempDir::new("nccl-cubin");
    let cubin = folder.path().join("kernels.cubin");
    let mut command = Command::new(toolkit.join("bin/nvcc"));
    command
        .args(["-cubin", "-std=c++17", "-arch=sm_90", "-Xptxas", "-v"])
        .args(options)
        .arg("-o")
        .arg(&cubin);
    command.args(headers.iter().map(|folder| format!("-I{}", folder.display())));
    command.arg(format!("-I{}", root().join("kernels/include").display()));
    if drop_in {
        command.args(["-include", "efa_gda/nccl_gin.h"]);
        command.arg(format!("-I{}", root().join("third_party/efa_gda").display()));
    }
    let output = output(command.arg(root().join(source)));
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_program_of_ncclgin_compiles_with_and_without_the_drop_in() {
    let Some(toolkit) = toolkit() else { return };
    for package in NCCL {
        let Some(headers) = nccl_headers(package) else { return };
        for source in ["efa-gda/tests/kernels_own/gin_api.cu", "kernels/bench/soft_adapter_nccl.cu"] {
            for drop_in in [false, true] {
                let case = format!("{source} with {package}, drop-in: {drop_in}");
                let (compiled, report) = compile_for_nccl(toolkit, &[&headers], source, drop_in, &ONLY_EFA);
                assert!(compiled, "{case}:\n{report}");
                if !drop_in {
                    continue;
                }
                // Each call fits blocks of 1,024 threads. This kernel contains four, and is compiled for smaller blocks.
                let of_four = " 'soft_adapter_nccl_signals'";
                let parts = report.split("Compiling entry function");
                let report: String = parts.filter(|part| !part.starts_with(of_four)).collect();
                // The rare parts of a put lie in functions of their own, which take their arguments by address.
                check_local(&report, &Local { stack: 256, spilled: 0, saved: 0 }, &case);
                let registers = |line: &str| {
                    let count = line.split("Used ").nth(1)?.split(' ').next()?;
                    Some(count.parse::<u32>().expect("a number of registers"))
                };
                let used: Vec<u32> = report.lines().filter_map(registers).collect();
                assert!(
                    !used.is_empty() && used.iter().all(|count| *count <= 64),
                    "{case}: {used:?}\n{report}"
                );
            }
        }
    }
    // With all networks of NCCL.
    let Some(headers) = nccl_headers(NCCL[0]) else { return };
    let (compiled, report) =
        compile_for_nccl(toolkit, &[&headers], "efa-gda/tests/kernels_own/gin_api.cu", true, &[]);
    assert!(compiled, "{report}");
}

#[test]
fn the_drop_in_refuses_handles_that_it_does_not_know() {
    let Some(toolkit) = toolkit() else { return };
    let Some(headers) = nccl_headers(NCCL[0]) else { return };
    let refused = |file: &str, text: &str, expected: &str| {
        let overlay = efa_gda_test_support::TempDir::new("nccl-overlay");
        let file = overlay.path().join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is made");
        fs::write(&file, text).expect("the header is written");
        let source = "efa-gda/tests/kernels_own/gin_api.cu";
        let (compiled, report) =
            compile_for_nccl(toolkit, &[overlay.path(), &headers], source, true, &ONLY_EFA);
        assert!(!compiled && report.contains(expected), "{report}");
    };
    let later = "#include_next <nccl.h>\n#undef NCCL_MINOR\n#define NCCL_MINOR 33\n";
    refused("nccl.h", later, "it knows EFA-GDA of NCCL 2.31 (efa-dp-direct 0.0) and 2.32 (1.1)");
    let handles = "nccl_device/gin/efa_gda/gin_efa_gda_dev.h";
    let text = fs::read_to_string(headers.join(handles)).expect("the header is there");
    let moved = text.replacen("uint32_t sq_lock;", "uint64_t cq_lock; uint32_t sq_lock;", 1);
    assert_ne!(text, moved);
    refused(handles, &moved, "sq_lock of NCCL's NcclEndpoint has moved");
    let (compiled, report) = compile_for_nccl(
        toolkit,
        &[&headers],
        "efa-gda/tests/kernels_own/gin_api.cu",
        true,
        &["-include", "nccl_device.h"],
    );
    assert!(!compiled && report.contains("include it first"), "{report}");
}
