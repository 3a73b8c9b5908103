//! The code of the kernels: included by the build, or compiled by NVRTC for the GPU of the machine.
//!
//! A build with `EFA_GDA_NVCC=FILE` includes code for GPUs from compute capability 8.0 on, which then need no NVRTC.
//! Otherwise the library compiles kernels when a program first needs them.
//!
//! The sources are part of this library, so a program needs no checkout at run time. Compiled code is cached in the
//! user's cache directory, keyed by source, compiler and architecture, in a directory of mode 0700 that the user owns.
//! Without such a directory nothing is cached.

use std::ffi::{CString, c_char};
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys as nvrtc;

use super::error;
use crate::Result;

/// A header of the device library, with the two names by which sources include it.
macro_rules! header {
    ($name:literal) => {
        ([$name, concat!("efa_gda/", $name)], include_str!(concat!("../../kernels/include/efa_gda/", $name)))
    };
}

/// The device library. The caller's kernels include its headers with the directory; the headers include each other
/// without it.
const HEADERS: [([&str; 2], &str); 23] = [
    header!("completion.h"),
    header!("cq.h"),
    header!("free_slots.h"),
    header!("gin.h"),
    header!("gin_handle.h"),
    header!("gin_post.h"),
    header!("group.h"),
    header!("host_executor.h"),
    header!("ibgda.h"),
    header!("ibgda_calls.h"),
    header!("ibgda_state.h"),
    header!("platform.h"),
    header!("post.h"),
    header!("put.h"),
    header!("queue.h"),
    header!("requests.h"),
    header!("round.h"),
    header!("rq.h"),
    header!("signal.h"),
    header!("sq.h"),
    header!("turns.h"),
    header!("waits.h"),
    header!("wqe.h"),
];

/// The header of the adapter's layouts, which the device library includes.
const ENTRIES: (&str, &str) = ("efa_io_defs.h", include_str!(env!("EFA_GDA_IO_DEFS_FILE")));

/// Returns every name that a source may include, with the header's text.
fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    let library = HEADERS.into_iter().flat_map(|(names, text)| names.map(|name| (name, text)));
    library.chain([ENTRIES])
}

/// A kernel file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    name: &'static str,
    text: &'static str,
    /// The fatbin, if the build compiled it.
    built: Option<&'static [u8]>,
}

/// The fatbin of a kernel file, if the build script compiled it.
#[cfg(efa_gda_fatbin)]
macro_rules! built {
    ($name:literal) => {
        Some(include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")))
    };
}
#[cfg(not(efa_gda_fatbin))]
macro_rules! built {
    ($name:literal) => {
        None
    };
}

macro_rules! source {
    ($name:literal) => {
        Source { name: $name, text: include_str!(concat!("../../kernels/", $name)), built: built!($name) }
    };
}

/// The put kernel.
pub(crate) const PUT: Source = source!("put.cu");
/// The receive kernel.
pub(crate) const RECEIVE: Source = source!("receive.cu");
/// The kernels for benches.
#[cfg(feature = "test-utils")]
pub(crate) const BENCH: Source = source!("bench.cu");

/// The code of a kernel file, and its origin.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// The image for the driver: a cubin, or a fatbin.
    pub(crate) image: Vec<u8>,
    /// The GPU's target, such as `sm_90`.
    pub(crate) architecture: String,
    /// The origin of the image.
    pub(crate) origin: Origin,
}

/// The origin of a kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The build of this library included it.
    BuiltIn,
    /// The cache on disk had it.
    Disk,
    /// NVRTC compiled it in this process.
    Compiled,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BuiltIn => "built in",
            Self::Disk => "found on disk",
            Self::Compiled => "compiled by NVRTC",
        })
    }
}

/// Returns the code that the build included, if it supports the GPU (`build.rs`).
pub(crate) fn built_in(source: Source, major: i32, minor: i32) -> Option<Kernels> {
    let image = source.built.filter(|_| major >= 8)?.to_vec();
    Some(Kernels { image, architecture: architecture(major, minor), origin: Origin::BuiltIn })
}

fn architecture(major: i32, minor: i32) -> String {
    format!("sm_{major}{minor}")
}

/// Whether libnvrtc can be loaded.
pub(crate) fn has_compiler() -> bool {
    // SAFETY: loads libnvrtc, which runs only NVIDIA's initialisers.
    unsafe { nvrtc::is_culib_present() }
}

/// Returns the code of a kernel file from the cache, or compiles it with NVRTC.
///
/// # Errors
/// [`ErrorKind::Gpu`](crate::ErrorKind::Gpu) without libnvrtc, or with the compiler's log.
pub(crate) fn compiled(source: Source, major: i32, minor: i32) -> Result<Kernels> {
    if !has_compiler() {
        return Err(error::no_compiler());
    }
    let architecture = architecture(major, minor);
    let cached = cache_directory().map(|folder| folder.join(file_name(source, &architecture)));
    if let Some(image) = cached.as_deref().and_then(read_cached) {
        return Ok(Kernels { image, architecture, origin: Origin::Disk });
    }
    let image = compile_source(source.name, source.text, &architecture)?;
    if let Some(file) = cached {
        cache(&file, &image);
    }
    Ok(Kernels { image, architecture, origin: Origin::Compiled })
}

/// Returns the name of a cached image, which is different for each source, width, compiler and target.
fn file_name(source: Source, architecture: &str) -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers into locals.
    unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
    let mut key = DefaultHasher::new();
    (source.text, HEADERS, ENTRIES, major, minor).hash(&mut key);
    let name = source.name;
    format!("{name}-{architecture}-nvrtc{major}.{minor}-{:016x}.cubin", key.finish())
}

/// Returns `$XDG_CACHE_HOME/efa-gda` or `~/.cache/efa-gda`, if only the user can access it.
fn cache_directory() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .filter(|base| base.is_absolute())?;
    let folder = base.join("efa-gda");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    let metadata = fs::symlink_metadata(&folder).ok()?;
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    (metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0).then_some(folder)
}

/// The most bytes of a cached image. Compiled kernels have less than one megabyte.
const MAX_IMAGE: u64 = 64 << 20;
/// Bytes of the checksum at the end of a cached image.
const CHECKSUM: usize = 8;

fn checksum(image: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

/// Returns the image of a cached file. `None` if there is no such file, or if it is not what [`cache`] wrote; a warning
/// then names the file, and the image that is compiled next replaces it.
fn read_cached(file: &Path) -> Option<Vec<u8>> {
    // Opening a pipe would wait for its writer.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let opened = match fs::File::options().read(true).custom_flags(flags).open(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        opened => opened,
    };
    let mut bytes = Vec::new();
    let is_read = opened.is_ok_and(|opened| {
        let is_image = opened.metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_IMAGE);
        is_image && opened.take(MAX_IMAGE).read_to_end(&mut bytes).is_ok()
    });
    let image = bytes.split_last_chunk().filter(|(image, sum)| is_read && checksum(image) == **sum);
    if image.is_none() {
        let file = file.display();
        tracing::warn!(%file, "the cached kernel is damaged or not a regular file; it is compiled again and replaced");
    }
    image.map(|(image, _)| image.to_vec())
}

/// Stores an image and its checksum in the cache, atomically. A cache that cannot be written is no error.
fn cache(file: &Path, image: &[u8]) {
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    let written =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial).and_then(|mut to| {
            to.write_all(image)?;
            to.write_all(&checksum(image))?;
            fs::rename(&partial, file)
        });
    if let Err(error) = written {
        let _ = fs::remove_file(&partial);
        tracing::debug!(file = %file.display(), %error, "the kernel was not cached on disk");
    }
}

/// A program of NVRTC, which is destroyed on drop.
struct Program(nvrtc::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created, and only this call destroys it.
        unsafe { nvrtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Compiles the caller's kernels for `architecture` (such as `sm_90`) and returns the cubin. The source is CUDA C++17.
/// It may include every `.h` of the device library except `nccl_gin.h`, with the directory (`"efa_gda/post.h"`) or
/// without it; no checkout is needed. `nccl_gin.h` and the `.cuh` files are for nvcc. The compiler's messages name the
/// source `name`.
///
/// # Errors
/// [`ErrorKind::Gpu`](crate::ErrorKind::Gpu) without libnvrtc, or with the compiler's log.
pub fn compile_source(name: &str, source: &str, architecture: &str) -> Result<Vec<u8>> {
    if !has_compiler() {
        return Err(error::no_compiler());
    }
    let failed = |log: String| error::not_compiled(architecture, &log);
    let text = |text: &str| {
        CString::new(text).map_err(|_| failed("the source or its name contains a zero byte".into()))
    };
    let (source, name) = (text(source)?, text(name)?);
    let mut names = Vec::new();
    let mut bodies = Vec::new();
    for (name, body) in headers() {
        names.push(text(name)?);
        bodies.push(text(body)?);
    }
    let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
    let (header_names, header_bodies) = (pointers(&names), pointers(&bodies));
    let mut program = Program(ptr::null_mut());
    // SAFETY: every string ends in a zero byte and outlives the call. Both arrays have as many elements as the call
    // says.
    let created = unsafe {
        nvrtc::nvrtcCreateProgram(
            &mut program.0,
            source.as_ptr(),
            name.as_ptr(),
            header_names.len() as i32,
            header_bodies.as_ptr(),
            header_names.as_ptr(),
        )
    };
    if created != nvrtc::nvrtcResult::NVRTC_SUCCESS {
        // The program was not created, so it must not be destroyed.
        std::mem::forget(program);
        return Err(failed(format!("nvrtcCreateProgram: {created:?}")));
    }
    let options = [text(&format!("--gpu-architecture={architecture}"))?, text("--std=c++17")?];
    let options = pointers(&options);
    // SAFETY: the program is live. The options end in zero bytes and outlive the call.
    let compiled = unsafe { nvrtc::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    if compiled != nvrtc::nvrtcResult::NVRTC_SUCCESS {
        // SAFETY: the program is live, and the second call writes as many bytes as the first reports.
        let log = unsafe { fetch(program.0, nvrtc::nvrtcGetProgramLogSize, nvrtc::nvrtcGetProgramLog) };
        let log = log.map(|log| String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned());
        return Err(failed(log.unwrap_or_else(|| format!("{compiled:?}"))));
    }
    // SAFETY: as above.
    let cubin = unsafe { fetch(program.0, nvrtc::nvrtcGetCUBINSize, nvrtc::nvrtcGetCUBIN) };
    cubin.filter(|cubin| !cubin.is_empty()).ok_or_else(|| failed("NVRTC returned no binary code".into()))
}

/// Returns the bytes that `get` writes, as many as `size` reports.
///
/// # Safety
/// `program` must be live, and `get` must write as many bytes as `size` reports.
unsafe fn fetch(
    program: nvrtc::nvrtcProgram,
    size: unsafe fn(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult,
    get: unsafe fn(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult,
) -> Option<Vec<u8>> {
    let mut length = 0;
    // SAFETY: the caller vouches for the program.
    if unsafe { size(program, &mut length) } != nvrtc::nvrtcResult::NVRTC_SUCCESS {
        return None;
    }
    let mut bytes = vec![0u8; length];
    // SAFETY: the buffer has the length that `size` reported.
    let got = unsafe { get(program, bytes.as_mut_ptr().cast()) };
    (got == nvrtc::nvrtcResult::NVRTC_SUCCESS).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use efa_gda_test_support::{Need, TempDir, missing};

    use super::*;

    fn missing_nvrtc() {
        missing(Need::Nvrtc, "no libnvrtc on the loader's path (scripts/cuda_toolchain.sh installs one)");
    }

    #[test]
    fn a_cached_image_is_read_unless_it_is_damaged() {
        let folder = TempDir::new("kernel-cache");
        let file = folder.path().join("put.cubin");
        assert_eq!(read_cached(&file), None);
        cache(&file, b"\x7fELF and code");
        assert_eq!(read_cached(&file).as_deref(), Some(&b"\x7fELF and code"[..]));
        let whole = fs::read(&file).unwrap();
        for at in [0, 5, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, damaged).unwrap();
            assert_eq!(read_cached(&file), None, "byte {at}");
        }
        fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        assert_eq!(read_cached(&file), None, "truncated");
        cache(&file, b"\x7fELF again");
        assert!(read_cached(&file).is_some(), "replaced");
    }

    #[test]
    fn a_pipe_a_link_and_a_huge_file_in_the_cache_are_refused_and_replaced() {
        let folder = TempDir::new("kernel-cache-pipe");
        let file = folder.path().join("put.cubin");
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        assert_eq!(read_cached(&file), None);
        cache(&file, b"image");
        assert!(read_cached(&file).is_some());
        fs::File::options().write(true).open(&file).unwrap().set_len(8 << 30).unwrap();
        assert_eq!(read_cached(&file), None);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert_eq!(read_cached(&file), None);
    }

    #[test]
    fn the_embedded_sources_compile_without_a_checkout_or_a_gpu() {
        // SAFETY: as in `compiled`.
        if !unsafe { nvrtc::is_culib_present() } {
            return missing_nvrtc();
        }
        for architecture in ["sm_80", "sm_90", "sm_100"] {
            for (source, kernels) in [
                (PUT, &["efa_gda_put_kernel", "__nvshmem_efa_test_put_kernel"][..]),
                (RECEIVE, &["efa_gda_receive_kernel"]),
                (BENCH, &["efa_gda_bench_rate_kernel", "efa_gda_bench_latency_kernel"]),
            ] {
                let cubin = compile_source(source.name, source.text, architecture).unwrap();
                let has = |name: &str| cubin.windows(name.len()).any(|bytes| bytes == name.as_bytes());
                assert!(kernels.iter().copied().all(has), "{architecture}: {kernels:?}");
            }
        }
    }

    #[cfg(efa_gda_fatbin)]
    #[test]
    fn the_built_in_code_supports_every_intended_gpu() {
        const PTX: u64 = 1;
        const ELF: u64 = 2;
        let number = |bytes: &[u8], at: usize, size: usize| {
            bytes[at..at + size].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let kernels = ["efa_gda_put_kernel", "efa_gda_receive_kernel", "efa_gda_bench_rate_kernel"];
        for (source, kernel) in std::iter::zip([PUT, RECEIVE, BENCH], kernels) {
            let image = source.built.unwrap();
            // A header, and parts. Each part has a header too: its kind, the lengths of both, and its GPU.
            assert_eq!(number(image, 0, 4), 0xba55_ed50, "{}", source.name);
            let (mut at, mut parts) = (number(image, 6, 2) as usize, Vec::new());
            while at < image.len() {
                parts.push((number(image, at, 2), number(image, at + 28, 4)));
                at += (number(image, at + 4, 4) + number(image, at + 8, 8)) as usize;
            }
            parts.sort_unstable();
            assert_eq!(parts, [(PTX, 80), (ELF, 80), (ELF, 90), (ELF, 100), (ELF, 120)], "{}", source.name);
            assert!(image.windows(kernel.len()).any(|bytes| bytes == kernel.as_bytes()), "{kernel}");
        }
        assert_eq!(built_in(PUT, 9, 0).unwrap().origin, Origin::BuiltIn);
        assert!(built_in(PUT, 7, 5).is_none(), "older than all targets");
    }

    #[test]
    fn every_header_of_the_device_library_compiles_under_both_names() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/include/efa_gda");
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            // Files for nvcc, which includes them from the folder; the last includes NCCL's headers.
            .filter(|name| !name.ends_with(".cuh") && name != "nccl_gin.h")
            .collect();
        files.sort();
        assert_eq!(files, HEADERS.map(|(names, _)| names[0]), "all headers are embedded, in order");
        // SAFETY: as in `compiled`.
        if !unsafe { nvrtc::is_culib_present() } {
            return missing_nvrtc();
        }
        for (names, _) in HEADERS {
            for name in names {
                let source = format!("#include \"{name}\"\nextern \"C\" __global__ void nothing() {{}}\n");
                compile_source("names.cu", &source, "sm_90").unwrap();
            }
        }
    }

    #[test]
    fn every_header_that_a_source_includes_is_embedded() {
        let sources = headers().map(|(_, text)| text).chain([PUT.text, RECEIVE.text, BENCH.text]);
        for line in sources.flat_map(str::lines) {
            let Some(name) = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next()) else {
                continue;
            };
            let known = headers().any(|(known, _)| known == name);
            assert!(known, "{name} is included but not embedded");
        }
    }
}
