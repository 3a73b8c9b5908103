//! GPUs: the NVIDIA kernel driver's settings, and what the CUDA driver says. The CUDA part runs in
//! a child process. Mapping queues into a GPU is `fabric::on_gpu`'s.

pub(crate) mod usable;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::time::Duration;

use crate::check::{Check, Nature, Outcome, Outcomes, Problem, Unit};
use crate::model::{Gpu, GpuChoice, Kind, NO_GPU, Pair, Who};
use crate::system::System;
use crate::system::topology::Nearness;
use crate::worker::stream::Progress;

/// The oldest CUDA that is supported, as cuDriverGetVersion packs it: 12.0.
const OLDEST_CUDA: i32 = 12_000;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` of `cuda.h`.
const ATTRIBUTE_WRITES_ORDERING: c_int = 118;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` of `cuda.h`.
const ATTRIBUTE_DMA_BUF: c_int = 124;

/// Whether a GPU takes part; runs first, in the parent.
pub(crate) static CHOICE: Unit<System> = Unit {
    check: Check {
        code: NO_GPU,
        title: "It is settled whether a GPU takes part",
        kind: Kind::Declared,
        nature: Nature::Any,
        needs: &[],
    },
    run: choice,
};

/// The kernel driver's settings.
pub(crate) static DRIVER_CHECKS: &[Unit<System>] = &[
    Unit {
        check: Check {
            code: "CUDA-001",
            title: "The NVIDIA kernel driver is loaded",
            kind: Kind::Declared,
            nature: Nature::GpuHardware,
            needs: &[NO_GPU],
        },
        run: kernel_driver,
    },
    Unit {
        check: Check {
            code: "CUDA-002",
            title: "The kernel driver lets a GPU map a foreign BAR",
            kind: Kind::Declared,
            nature: Nature::GpuHardware,
            needs: &["CUDA-001"],
        },
        run: peer_mapping,
    },
];

/// What the CUDA driver says of itself; run in a child.
pub(crate) static CHECKS: &[Unit<Cuda>] = &[
    unit("CUDA-003", "libcuda loads", Kind::Proven, &[NO_GPU], loads),
    unit("CUDA-004", "CUDA starts and is new enough", Kind::Proven, &["CUDA-003"], starts),
    unit("CUDA-005", "The GPU is there", Kind::Proven, &["CUDA-004"], gpus),
];

/// Which adapters are near a GPU; recorded by the parent, which knows both.
pub(crate) static NEAR: Check = Check {
    code: "CUDA-011",
    title: "The adapters near the GPU are known",
    kind: Kind::Declared,
    nature: Nature::Gpu,
    needs: &["CUDA-005"],
};

/// What it says of each GPU; run in a child, with the GPU's number as subject.
pub(crate) static GPU_CHECKS: &[Unit<Cuda>] = &[
    unit("CUDA-006", "GPU memory exports as dmabuf", Kind::Declared, &["CUDA-005"], dmabuf),
    unit("CUDA-007", "The adapter's writes are ordered for the GPU", Kind::Declared, &["CUDA-005"], ordering),
    unit("CUDA-009", "The GPU lets this process in", Kind::Proven, &["CUDA-005"], usable::opens),
    unit("CUDA-010", "Kernels compile for the GPU and load", Kind::Proven, &["CUDA-009"], usable::compiles),
];

const fn unit(
    code: &'static str,
    title: &'static str,
    kind: Kind,
    needs: &'static [&'static str],
    run: fn(&mut Cuda) -> Outcomes,
) -> Unit<Cuda> {
    Unit { check: Check { code, title, kind, nature: Nature::Gpu, needs }, run }
}

fn choice(system: &mut System) -> Outcomes {
    match system.gpu {
        Some(GpuChoice::None) => return Outcome::pass("none is wanted (--gpu none)").into(),
        Some(GpuChoice::Number(number)) => return Outcome::pass(format!("GPU {number} is wanted")).into(),
        None => {}
    }
    if system.has_nvidia() {
        return Outcome::pass("every GPU that CUDA shows").into();
    }
    if system.soft {
        return Outcome::pass("none is in sight; the software adapter needs none").into();
    }
    Outcome::Fail(Problem {
        observed: "no NVIDIA device in /sys/bus/pci/devices, no /proc/driver/nvidia".to_owned(),
        required: "an NVIDIA GPU, or --gpu none".to_owned(),
        why: "GPU-Direct Async is a GPU that rings the adapter".to_owned(),
        fix: "run on a GPU instance (in a container: with the NVIDIA runtime), or check the rest with \
              --gpu none"
            .to_owned(),
        who: Who::Host,
    })
    .into()
}

/// Whether the choice leaves GPUs out.
pub(crate) fn none_takes_part(system: &System) -> bool {
    match system.gpu {
        Some(choice) => choice == GpuChoice::None,
        None => system.soft && !system.has_nvidia(),
    }
}

/// The answer of [`NEAR`] for `gpu`, whose `pairs` take part.
pub(crate) fn near(system: &System, gpu: &Gpu, pairs: &[Pair]) -> Outcome {
    if system.soft {
        return Outcome::pass("a software adapter has no place; it pairs with every GPU");
    }
    let describe = |pair: &Pair| {
        let near = system.nearness(gpu, &pair.adapter).map(Nearness::describe);
        format!("{}: {}", pair.adapter, near.unwrap_or_else(|| "its place is not known".to_owned()))
    };
    let of_gpu = pairs.iter().filter(|pair| pair.gpu == gpu.number);
    let observed: Vec<String> = of_gpu.map(describe).collect();
    match observed.is_empty() {
        true => Outcome::unknown("no adapter was found to pair it with"),
        false => Outcome::pass(observed.join("; ")),
    }
}

fn kernel_driver(system: &mut System) -> Outcomes {
    let text = system.read("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    if let Some(version) = text.split_whitespace().find(is_version) {
        return Outcome::pass(version).into();
    }
    Outcome::Fail(Problem {
        observed: "no version in /proc/driver/nvidia/version".to_owned(),
        required: "a loaded NVIDIA driver, 525 (CUDA 12.0) or newer".to_owned(),
        why: "the GPU cannot be used without it".to_owned(),
        fix: "load the nvidia module on the host; start the container with the NVIDIA runtime".to_owned(),
        who: Who::Host,
    })
    .into()
}

fn peer_mapping(system: &mut System) -> Outcomes {
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
    Outcome::Fail(Problem {
        observed: format!("RegistryDwords: {line}"),
        required: "RegistryDwords: \"PeerMappingOverride=1\"".to_owned(),
        why: "without it the driver refuses to map another device's BAR, so that the GPU cannot write to \
              the send queue or ring"
            .to_owned(),
        fix: "on the host: put options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1\" into \
              /etc/modprobe.d and load the module again (reboot)"
            .to_owned(),
        who: Who::Host,
    })
    .into()
}

/// The CUDA driver, as far as the checks have come.
#[derive(Debug, Default)]
pub(crate) struct Cuda {
    library: Option<libloading::Library>,
    /// The GPU that was asked for.
    wanted: Option<u32>,
    /// Those found.
    pub(crate) gpus: Vec<Gpu>,
    /// The one that the per-GPU checks look at.
    current: u32,
    /// Its context, once it is open.
    opened: Option<efa_gda::gpu::Gpu>,
    /// Tells the parent that a long check goes on.
    progress: Option<Progress>,
}

impl Cuda {
    /// Nothing is loaded yet; `wanted` is the GPU that was asked for.
    pub(crate) fn of(wanted: Option<u32>, progress: Progress) -> Self {
        Self { wanted, progress: Some(progress), ..Self::default() }
    }

    /// The per-GPU checks look at this one from now on.
    pub(crate) fn select(&mut self, number: u32) {
        (self.current, self.opened) = (number, None);
    }

    /// The next step may take so much longer than a check usually may.
    fn request_time(&mut self, time: Duration) {
        if let Some(progress) = &mut self.progress {
            progress.request_time(time);
        }
    }

    /// The function `name` of libcuda.
    ///
    /// # Safety
    /// `F` is the function's type in `cuda.h`, and is not called after `self` is gone.
    unsafe fn get<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        let library = self.library.as_ref().ok_or("libcuda is not loaded")?;
        // SAFETY: the caller vouches for the type.
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
        // SAFETY: `value` can be written, `device` came from cuDeviceGet.
        checked("cuDeviceGetAttribute", unsafe { get(&mut value, attribute, device) })?;
        Ok(value)
    }

    fn device(&self, number: u32) -> Result<c_int, String> {
        // SAFETY: cuDeviceGet(CUdevice*, int) in cuda.h.
        let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = unsafe { self.get(c"cuDeviceGet")? };
        let mut device = 0;
        let number = c_int::try_from(number).map_err(|_| "no such GPU".to_owned())?;
        // SAFETY: `device` can be written; any number may be asked for.
        checked("cuDeviceGet", unsafe { get(&mut device, number) })?;
        Ok(device)
    }

    fn name(&self, number: u32) -> Result<String, String> {
        // SAFETY: cuDeviceGetName(char*, int, CUdevice) in cuda.h.
        let get: GetText = unsafe { self.get(c"cuDeviceGetName")? };
        let device = self.device(number)?;
        // SAFETY: the device came from cuDeviceGet.
        text("cuDeviceGetName", |to, size| unsafe { get(to, size, device) })
    }

    /// The PCI address, as sysfs has it.
    fn pci(&self, number: u32) -> Result<String, String> {
        // SAFETY: cuDeviceGetPCIBusId(char*, int, CUdevice) in cuda.h.
        let get: GetText = unsafe { self.get(c"cuDeviceGetPCIBusId")? };
        let device = self.device(number)?;
        // SAFETY: the device came from cuDeviceGet.
        let address = text("cuDeviceGetPCIBusId", |to, size| unsafe { get(to, size, device) })?;
        Ok(address.to_lowercase())
    }
}

/// Writes a text of at most so many bytes, with a zero byte behind it, for a device.
type GetText = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;

/// What `write` writes into a buffer of the length given.
fn text(call: &str, write: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String, String> {
    // The last byte stays zero.
    let mut bytes = [0_u8; 256];
    checked(call, write(bytes.as_mut_ptr().cast(), 255))?;
    let text = CStr::from_bytes_until_nul(&bytes).map_err(|error| error.to_string())?;
    Ok(text.to_string_lossy().into_owned())
}

fn checked(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} answered {code}")) }
}

fn broken(observed: String, why: &str, fix: &str, who: Who) -> Outcomes {
    Outcome::Fail(Problem {
        observed,
        required: "a CUDA driver of 12.0 or newer that starts".to_owned(),
        why: why.to_owned(),
        fix: fix.to_owned(),
        who,
    })
    .into()
}

fn loads(cuda: &mut Cuda) -> Outcomes {
    // SAFETY: runs libcuda's initialisers, in a process of its own; that they are sound is NVIDIA's
    // promise.
    match unsafe { libloading::Library::new("libcuda.so.1") } {
        Ok(library) => {
            cuda.library = Some(library);
            Outcome::pass("libcuda.so.1").into()
        }
        Err(error) => broken(
            error.to_string(),
            "libcuda is the way to the GPU; it belongs to the kernel driver and comes from the host",
            "start the container with the NVIDIA runtime (docker --gpus all); do not put libcuda into the image",
            Who::Pod,
        ),
    }
}

fn starts(cuda: &mut Cuda) -> Outcomes {
    match start(cuda) {
        Ok(version) if version >= OLDEST_CUDA => Outcome::pass(cuda_version(version)).into(),
        Ok(version) => broken(
            cuda_version(version),
            "kernels and mapping calls are written for CUDA 12",
            "update the NVIDIA driver on the host to 525 or newer",
            Who::Host,
        ),
        Err(observed) => broken(
            observed,
            "CUDA does not start: device nodes are missing, or libcuda and kernel driver differ",
            "compare nvidia-smi on the host and in the container; mount /dev/nvidia* and libcuda of the host",
            Who::Pod,
        ),
    }
}

fn cuda_version(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

fn start(cuda: &Cuda) -> Result<c_int, String> {
    // SAFETY: cuInit(unsigned int) in cuda.h.
    let init: unsafe extern "C" fn(c_uint) -> c_int = unsafe { cuda.get(c"cuInit")? };
    // SAFETY: 0 is the only flag there is.
    checked("cuInit", unsafe { init(0) })?;
    // SAFETY: cuDriverGetVersion(int*) in cuda.h.
    let version: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { cuda.get(c"cuDriverGetVersion")? };
    let mut number = 0;
    // SAFETY: `number` can be written.
    checked("cuDriverGetVersion", unsafe { version(&mut number) })?;
    Ok(number)
}

fn gpus(cuda: &mut Cuda) -> Outcomes {
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
        let wanted = cuda.wanted.map(|wanted| format!(", not GPU {wanted}")).unwrap_or_default();
        return no_gpu(format!("CUDA shows {found} GPUs{wanted}"));
    }
    let outcome = |gpu: &Gpu| (Some(gpu.number.to_string()), Outcome::pass(&gpu.name));
    Outcomes(cuda.gpus.iter().map(outcome).collect())
}

fn no_gpu(observed: String) -> Outcomes {
    Outcome::Fail(Problem {
        observed,
        required: "the GPU asked for, or at least one".to_owned(),
        why: "there is nothing that could ring".to_owned(),
        fix: "name a GPU that CUDA shows; look at CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES".to_owned(),
        who: Who::Pod,
    })
    .into()
}

fn count(cuda: &Cuda) -> Result<u32, String> {
    // SAFETY: cuDeviceGetCount(int*) in cuda.h.
    let count: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { cuda.get(c"cuDeviceGetCount")? };
    let mut number = 0;
    // SAFETY: `number` can be written.
    checked("cuDeviceGetCount", unsafe { count(&mut number) })?;
    Ok(u32::try_from(number).unwrap_or(0))
}

fn dmabuf(cuda: &mut Cuda) -> Outcomes {
    match cuda.attribute(ATTRIBUTE_DMA_BUF) {
        Ok(0) => Outcome::Warn(Problem {
            observed: "DMA_BUF_SUPPORTED is 0".to_owned(),
            required: "1".to_owned(),
            why: "GPU memory cannot be registered with the adapter through dmabuf".to_owned(),
            fix: "use the open kernel modules of the NVIDIA driver".to_owned(),
            who: Who::Host,
        })
        .into(),
        Ok(value) => Outcome::pass(format!("DMA_BUF_SUPPORTED is {value}")).into(),
        Err(error) => Outcome::unknown(error).into(),
    }
}

fn ordering(cuda: &mut Cuda) -> Outcomes {
    // CUgpuDirectRDMAWritesOrdering: 0 none, 100 owner, 200 all devices.
    match cuda.attribute(ATTRIBUTE_WRITES_ORDERING) {
        Ok(value) => {
            let meaning = match value {
                0 => "none: GPU code must not trust a flag that the adapter wrote without a flush",
                100 => "for the GPU that owns the memory",
                200 => "for all devices",
                _ => "a value that this version does not know",
            };
            Outcome::pass(format!("{value}, {meaning}")).into()
        }
        Err(error) => Outcome::unknown(error).into(),
    }
}
