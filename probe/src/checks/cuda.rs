//! GPUs: the settings of the NVIDIA kernel driver, and the CUDA driver's reports. The CUDA checks run in a
//! worker process. `fabric::on_gpu` maps queues into a GPU.

pub(crate) mod usable;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::time::Duration;

use crate::check::{Checked, Outcome, Outcomes};
use crate::model::{Gpu, GpuChoice, Pair, Party};
use crate::system::packages::Package;
use crate::system::topology::Nearness;
use crate::system::{System, version_numbers};
use crate::worker::stream::Progress;

/// The oldest supported CUDA, 12.0, as cuDriverGetVersion encodes it.
const OLDEST_CUDA: i32 = 12_000;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` of `cuda.h`.
const ATTRIBUTE_WRITES_ORDERING: c_int = 118;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR` of `cuda.h`.
const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` of `cuda.h`.
const ATTRIBUTE_DMA_BUF: c_int = 124;

/// What a machine without a GPU shows, and what to do.
const NO_DEVICE: &str = "no NVIDIA device in /sys/bus/pci/devices and no /proc/driver/nvidia";
const GET_GPU: &str = "run on an instance with a GPU, or check the rest with --gpu none";

pub(crate) fn choice(system: &mut System) -> Checked {
    match system.gpu {
        Some(GpuChoice::None) => return Outcome::pass("no GPU (--gpu none)").into(),
        Some(GpuChoice::Number(number)) => {
            return Outcome::pass(format!("GPU {number} (--gpu {number})")).into();
        }
        None => {}
    }
    if system.has_nvidia() {
        return Outcome::pass("every GPU that CUDA lists").into();
    }
    if system.soft {
        return Outcome::pass("no GPU: this machine shows none, and the software adapter needs none").into();
    }
    Outcome::fail(NO_DEVICE).fix(GET_GPU, Party::Operator).into()
}

/// Whether the run uses no GPU.
pub(crate) fn none_takes_part(system: &System) -> bool {
    match system.gpu {
        Some(choice) => choice == GpuChoice::None,
        None => system.soft && !system.has_nvidia(),
    }
}

/// CUDA-011 for `gpu` and its `pairs`.
pub(crate) fn near(system: &System, gpu: &Gpu, pairs: &[Pair]) -> Outcome {
    if system.soft {
        return Outcome::pass("every software adapter: it has no PCI address and pairs with every GPU");
    }
    let describe = |pair: &Pair| {
        let near = system.nearness(gpu, &pair.adapter).map(Nearness::describe);
        format!("{}: {}", pair.adapter, near.unwrap_or_else(|| "its PCI topology is not known".to_owned()))
    };
    let of_gpu = pairs.iter().filter(|pair| pair.gpu == gpu.number);
    let observed: Vec<String> = of_gpu.map(describe).collect();
    match observed.is_empty() {
        true => Outcome::unknown("no adapter was found for a pair with this GPU"),
        false => Outcome::pass(observed.join("; ")),
    }
}

pub(crate) fn kernel_driver(system: &mut System) -> Checked {
    let text = system.read("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    if let Some(version) = text.split_whitespace().find(is_version) {
        return Outcome::pass(version).into();
    }
    if !system.has_nvidia() {
        let required = "the NVIDIA kernel driver, 525 (CUDA 12.0) or newer";
        let why = "without a GPU, no kernel can post to the adapter";
        return Outcome::fail(NO_DEVICE).expects(required, why).fix(GET_GPU, Party::Operator).into();
    }
    Outcome::fail("no version in /proc/driver/nvidia/version")
        .expects(
            "the NVIDIA kernel driver, 525 (CUDA 12.0) or newer",
            "no program can use the GPU without this driver",
        )
        .fix(
            "on the host: load the module (modprobe nvidia); start the container with the NVIDIA runtime",
            Party::Operator,
        )
        .into()
}

pub(crate) fn peer_mapping(system: &mut System) -> Checked {
    let Some(params) = system.read("/proc/driver/nvidia/params") else {
        return Outcome::unknown("/proc/driver/nvidia/params cannot be read").into();
    };
    let line =
        params.lines().find_map(|line| line.strip_prefix("RegistryDwords:")).unwrap_or_default().trim();
    let on = line.trim_matches('"').split(';').any(|entry| {
        entry
            .split_once('=')
            .is_some_and(|(name, value)| name.trim() == "PeerMappingOverride" && value.trim() == "1")
    });
    if on {
        return Outcome::pass(format!("RegistryDwords: {line}")).into();
    }
    Outcome::fail(format!("the nvidia module runs without PeerMappingOverride=1 (RegistryDwords: {line})"))
        .into()
}

/// The CUDA driver and the state of its checks.
#[derive(Debug, Default)]
pub(crate) struct Cuda {
    library: Option<libloading::Library>,
    /// The GPU named by `--gpu`.
    wanted: Option<u32>,
    /// Whether the machine shows no NVIDIA GPU.
    absent: bool,
    /// The nvcc that programs find.
    nvcc: Option<Package>,
    /// The GPUs that were found.
    pub(crate) gpus: Vec<Gpu>,
    /// The GPU of the per-GPU checks.
    current: u32,
    /// The context on it, once it is open.
    opened: Option<efa_gda::gpu::Gpu>,
    /// Reports to the probe that a long check continues.
    progress: Option<Progress>,
}

impl Cuda {
    /// The state before libcuda is loaded; `wanted` is the GPU named by `--gpu`.
    pub(crate) fn new(wanted: Option<u32>, system: &System, progress: Progress) -> Self {
        let (absent, nvcc) = (!system.has_nvidia(), system.nvcc());
        Self { wanted, absent, nvcc, progress: Some(progress), ..Self::default() }
    }

    /// Selects the GPU of the per-GPU checks.
    pub(crate) fn select(&mut self, number: u32) {
        (self.current, self.opened) = (number, None);
    }

    /// Requests additional time for the next step.
    fn request_time(&mut self, time: Duration) {
        if let Some(progress) = &mut self.progress {
            progress.request_time(time);
        }
    }

    /// The function `name` of libcuda.
    ///
    /// # Safety
    /// `F` must be the function's type in `cuda.h`. The caller must not call the function after `self` is
    /// dropped.
    unsafe fn get<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        let library = self.library.as_ref().ok_or("libcuda is not loaded")?;
        // SAFETY: the caller guarantees the type.
        let symbol = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
    }

    /// An attribute of the current GPU.
    fn attribute(&self, attribute: c_int) -> Result<c_int, String> {
        type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        let device = self.device(self.current)?;
        // SAFETY: cuDeviceGetAttribute(int*, CUdevice_attribute, CUdevice) in cuda.h; both are int.
        let get: GetAttribute = unsafe { self.get(c"cuDeviceGetAttribute")? };
        let mut value = 0;
        // SAFETY: `value` is writable; `device` came from cuDeviceGet.
        self.checked("cuDeviceGetAttribute", unsafe { get(&mut value, attribute, device) })?;
        Ok(value)
    }

    fn device(&self, number: u32) -> Result<c_int, String> {
        // SAFETY: cuDeviceGet(CUdevice*, int) in cuda.h.
        let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = unsafe { self.get(c"cuDeviceGet")? };
        let mut device = 0;
        let number = c_int::try_from(number).map_err(|_| "no such GPU".to_owned())?;
        // SAFETY: `device` is writable; the call accepts any number.
        self.checked("cuDeviceGet", unsafe { get(&mut device, number) })?;
        Ok(device)
    }

    fn name(&self, number: u32) -> Result<String, String> {
        // SAFETY: cuDeviceGetName(char*, int, CUdevice) in cuda.h.
        let get: GetText = unsafe { self.get(c"cuDeviceGetName")? };
        let device = self.device(number)?;
        // SAFETY: the device came from cuDeviceGet.
        self.text("cuDeviceGetName", |to, size| unsafe { get(to, size, device) })
    }

    /// The PCI address, in sysfs's format.
    fn pci(&self, number: u32) -> Result<String, String> {
        // SAFETY: cuDeviceGetPCIBusId(char*, int, CUdevice) in cuda.h.
        let get: GetText = unsafe { self.get(c"cuDeviceGetPCIBusId")? };
        let device = self.device(number)?;
        // SAFETY: the device came from cuDeviceGet.
        let address = self.text("cuDeviceGetPCIBusId", |to, size| unsafe { get(to, size, device) })?;
        Ok(address.to_lowercase())
    }

    /// The text that `write` writes into a buffer of the length passed to it.
    fn text(&self, call: &str, write: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String, String> {
        // The last byte is not passed to the call and stays zero.
        let mut bytes = [0_u8; 256];
        self.checked(call, write(bytes.as_mut_ptr().cast(), 255))?;
        let text = CStr::from_bytes_until_nul(&bytes).map_err(|error| error.to_string())?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// Converts the CUresult of a call; an error has CUDA's name and description of it.
    fn checked(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let words: Vec<_> = [c"cuGetErrorName", c"cuGetErrorString"]
            .into_iter()
            .filter_map(|function| self.describe(function, code))
            .collect();
        match &words[..] {
            [] => Err(format!("{call} returned {code}")),
            words => Err(format!("{call} returned {code} ({})", words.join(": "))),
        }
    }

    /// The text of `function`, cuGetErrorName or cuGetErrorString, for a CUresult.
    fn describe(&self, function: &CStr, code: c_int) -> Option<String> {
        type GetErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        // SAFETY: both are CUresult (CUresult, const char **) in cuda.h.
        let get: GetErrorText = unsafe { self.get(function) }.ok()?;
        let mut text = std::ptr::null();
        // SAFETY: `text` is writable; the call accepts any code.
        if unsafe { get(code, &raw mut text) } != 0 || text.is_null() {
            return None;
        }
        // SAFETY: libcuda returns a string of its own, which lives as long as libcuda is loaded.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// Writes a text of a device, with a zero byte at its end, into a buffer of the length passed.
type GetText = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;

fn broken(observed: String, why: &str, fix: &str, who: Party) -> Checked {
    Outcome::fail(observed)
        .expects("a CUDA driver of version 12.0 or newer that starts", why)
        .fix(fix, who)
        .into()
}

pub(crate) fn loads(cuda: &mut Cuda) -> Checked {
    // SAFETY: loading runs libcuda's initialisers. NVIDIA guarantees that they are sound; a crash in them
    // ends only this worker process.
    match unsafe { libloading::Library::new("libcuda.so.1") } {
        Ok(library) => {
            cuda.library = Some(library);
            Outcome::pass("libcuda.so.1").into()
        }
        Err(error) if cuda.absent => broken(
            format!("{NO_DEVICE}; {error}"),
            "no GPU can post to the adapter",
            GET_GPU,
            Party::Operator,
        ),
        Err(error) => broken(
            error.to_string(),
            "programs reach the GPU through libcuda, which must match the kernel driver and comes from the host",
            "start the container with the NVIDIA runtime (docker --gpus all); do not copy libcuda into the image",
            Party::Pod,
        ),
    }
}

pub(crate) fn starts(cuda: &mut Cuda) -> Checked {
    match start(cuda) {
        Ok(version) if version >= OLDEST_CUDA => Outcome::pass(cuda_version(version)).into(),
        Ok(version) => broken(
            cuda_version(version),
            "the kernels and the mapping calls need CUDA 12",
            "on the host: update the NVIDIA driver to 525 or newer",
            Party::Operator,
        ),
        Err(observed) => broken(
            observed,
            "CUDA does not start if device nodes are missing, or if libcuda and the kernel driver differ in version",
            "compare nvidia-smi on the host and in the container; start the container with the NVIDIA runtime, which \
             adds /dev/nvidia* and the host's libcuda",
            Party::Pod,
        ),
    }
}

fn cuda_version(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

fn start(cuda: &Cuda) -> Result<c_int, String> {
    // SAFETY: cuInit(unsigned int) in cuda.h.
    let init: unsafe extern "C" fn(c_uint) -> c_int = unsafe { cuda.get(c"cuInit")? };
    // SAFETY: cuInit defines no flag but 0.
    cuda.checked("cuInit", unsafe { init(0) })?;
    // SAFETY: cuDriverGetVersion(int*) in cuda.h.
    let version: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { cuda.get(c"cuDriverGetVersion")? };
    let mut number = 0;
    // SAFETY: `number` is writable.
    cuda.checked("cuDriverGetVersion", unsafe { version(&mut number) })?;
    Ok(number)
}

pub(crate) fn gpus(cuda: &mut Cuda) -> Checked {
    let found = match count(cuda) {
        Ok(count) => count,
        Err(observed) => return no_gpu(observed),
    };
    for number in (0..found).filter(|number| cuda.wanted.is_none_or(|wanted| wanted == *number)) {
        let name = cuda.name(number).unwrap_or_else(|error| format!("unnamed ({error})"));
        let pci = cuda.pci(number).ok();
        cuda.gpus.push(Gpu { number, name, pci });
    }
    if cuda.gpus.is_empty() {
        let wanted = cuda.wanted.map(|wanted| format!(", but not GPU {wanted}")).unwrap_or_default();
        return no_gpu(format!("CUDA lists {found} GPUs{wanted}"));
    }
    let outcome = |gpu: &Gpu| (Some(gpu.number.to_string()), Outcome::pass(&gpu.name));
    Ok(Outcomes(cuda.gpus.iter().map(outcome).collect()))
}

fn no_gpu(observed: String) -> Checked {
    Outcome::fail(observed)
        .expects(
            "the GPU named by --gpu, or at least one GPU",
            "without a GPU, no kernel can post to the adapter",
        )
        .fix(
            "name a GPU that CUDA lists (--gpu N); check CUDA_VISIBLE_DEVICES and \
         NVIDIA_VISIBLE_DEVICES, which hide GPUs",
            Party::Job,
        )
        .into()
}

fn count(cuda: &Cuda) -> Result<u32, String> {
    // SAFETY: cuDeviceGetCount(int*) in cuda.h.
    let count: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { cuda.get(c"cuDeviceGetCount")? };
    let mut number = 0;
    // SAFETY: `number` is writable.
    cuda.checked("cuDeviceGetCount", unsafe { count(&mut number) })?;
    Ok(u32::try_from(number).unwrap_or(0))
}

pub(crate) fn dmabuf(cuda: &mut Cuda) -> Checked {
    match cuda.attribute(ATTRIBUTE_DMA_BUF) {
        Ok(0) => Outcome::warn("DMA_BUF_SUPPORTED is 0").into(),
        Ok(value) => Outcome::pass(format!("DMA_BUF_SUPPORTED is {value}")).into(),
        Err(error) => Outcome::unknown(error).into(),
    }
}

/// The first nvcc that compiles for GPUs of a compute capability.
const COMPILERS: [((c_int, c_int), &str); 4] =
    [((9, 0), "11.8"), ((10, 0), "12.8"), ((10, 3), "13.3"), ((12, 0), "12.8")];

/// CUDA-015.
pub(crate) fn compiler(cuda: &mut Cuda) -> Checked {
    let capability = cuda
        .attribute(ATTRIBUTE_MAJOR)
        .and_then(|major| Ok((major, cuda.attribute(ATTRIBUTE_MINOR)?)))
        .map_err(Outcome::unknown)?;
    judge_compiler(capability, cuda.nvcc.as_ref()).into()
}

fn judge_compiler(capability: (c_int, c_int), nvcc: Option<&Package>) -> Outcome {
    let Some((nvcc, release)) = nvcc.and_then(|nvcc| Some((nvcc, nvcc.release.as_deref()?))) else {
        return Outcome::unknown("no nvcc that states its release is found");
    };
    let observed = format!("{} for sm_{}{}", nvcc.describe(), capability.0, capability.1);
    let first = COMPILERS.iter().find(|(of, _)| *of == capability).map(|(_, first)| *first);
    match first.filter(|first| version_numbers(release) < version_numbers(first)) {
        Some(first) => Outcome::warn(observed)
            .required(format!("nvcc {first} or newer"))
            .hint(format!("install CUDA {first} or newer in the image, and name it in CUDA_HOME")),
        None => Outcome::pass(observed),
    }
}

pub(crate) fn ordering(cuda: &mut Cuda) -> Checked {
    // CUgpuDirectRDMAWritesOrdering: 0 none, 100 owner, 200 all devices.
    match cuda.attribute(ATTRIBUTE_WRITES_ORDERING) {
        Ok(value) => {
            let meaning = match value {
                0 => {
                    "none: after a flag, the host must call cuFlushGPUDirectRDMAWrites before a kernel reads the data"
                }
                100 => "ordered for the GPU that owns the memory",
                200 => "ordered for all devices",
                _ => {
                    "which is none of 0, 100 and 200: compare CUgpuDirectRDMAWritesOrdering in this driver's cuda.h"
                }
            };
            Outcome::pass(format!("{value}, {meaning}")).into()
        }
        Err(error) => Outcome::unknown(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_too_old_for_some_gpus_only() {
        let nvcc =
            Package { path: "/usr/local/cuda/bin/nvcc".to_owned(), release: Some("13.0.48".to_owned()) };
        for (capability, is_enough) in [((9, 0), true), ((10, 0), true), ((10, 3), false), ((13, 0), true)] {
            let outcome = judge_compiler(capability, Some(&nvcc));
            assert_eq!(matches!(outcome, Outcome::Pass(_)), is_enough, "{capability:?}: {outcome:?}");
        }
    }
}
