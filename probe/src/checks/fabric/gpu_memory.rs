//! Registers memory of a GPU with the adapter, in this thread and in one without a CUDA context, and names the cause of
//! a refusal.

use std::path::Path;

use efa_gda::Error;
use efa_gda::fabric::{Access, Domain, Fabric, Info, Query};
use efa_gda::gpu::{Gpu, GpuMemory};

use super::{Session, on_gpu};
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::session::open;
use crate::model::Party;
use crate::system::System;

/// Bytes that are registered.
const BYTES: usize = 64 << 10;
/// The bit of CAP_SYS_ADMIN in a capability mask (`linux/capability.h`); containers that are not privileged lack it.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// CUDA-014.
pub(crate) fn registers(session: &mut Session) -> Checked {
    let gpu = on_gpu::gpu(session)?;
    let library = open(&session.start.library, "libfabric")?;
    let adapter = open(&session.rig.objects.info, "libfabric")?;
    let query = Query::new().gpu_memory(true).adapter(adapter.domain_name().into_owned());
    let info = match query.first(library) {
        Ok(info) => info,
        Err(error) if session.request.soft => {
            let why = "the software adapter has GPU memory only with SOFTEFA_HMEM=1".to_owned();
            return Outcome::Unknown(Some(error.what().to_owned()), why).into();
        }
        Err(error) => {
            return Outcome::fail(error.what()).fix(WITH_CUDA, Party::Image).into();
        }
    };
    let fabric = Fabric::open(library, &info).map_err(super::refused)?;
    match register_twice(&fabric, &info, &gpu) {
        Ok((here, Ok(_))) => Outcome::pass(here).into(),
        Ok((here, Err(elsewhere))) => Outcome::warn(format!(
            "{here}; in a thread without a CUDA context: {elsewhere}"
        ))
        .expects(
            "registration succeeds in every thread",
            "programs register in threads of their own, and fi_mr_regattr then returns \"operation not supported\"",
        )
        .fix(
            "make the GPU's context current in the thread that registers (cudaSetDevice and cudaFree(0), or \
                  cuCtxSetCurrent), or pass memory as a dmabuf",
            Party::Program,
        )
        .into(),
        Err(error) => {
            let loaded = format!("; libfabric {} ({})", library.version(), library.path().display());
            Err(refused_on(&session.request.root, &error, &loaded))
        }
    }
}

/// The failure of a registration on this machine.
pub(super) fn refusal(error: Error) -> Outcomes {
    refused_on(Path::new("/"), &error, "")
}

/// `loaded`: the library, behind the facts of the machine.
fn refused_on(root: &Path, error: &Error, loaded: &str) -> Outcomes {
    let system = System { root: root.to_owned(), ..System::default() };
    let facts = Facts::of(&system);
    let (fix, who) = cause(&error.to_string(), &facts);
    let observed = error.what().to_owned();
    let observed = observed.strip_prefix("the GPU memory was not registered: ").unwrap_or(&observed);
    Outcome::fail(format!("{observed}; {}{loaded}", facts.describe())).fix(fix, who).into()
}

/// The fix if the provider has no FI_HMEM.
pub(super) const WITH_CUDA: &str = "install a libfabric that was built with CUDA (the current EFA installer's), where \
                                    libcuda.so.1 is on the loader's path, and unset FI_HMEM_DISABLE_P2P";
/// Registers memory in this thread, and in another one. Returns how it was registered here, and the other's result.
fn register_twice(
    fabric: &Fabric,
    info: &Info,
    gpu: &Gpu,
) -> Result<(String, Result<String, String>), Error> {
    let domain = fabric.domain(info)?;
    let (first, second) = (GpuMemory::zeroed(gpu, BYTES)?, GpuMemory::zeroed(gpu, BYTES)?);
    let here = register(&domain, first)?;
    let elsewhere = std::thread::scope(|scope| {
        let thread = scope.spawn(|| register(&domain, second).map_err(|error| error.what().to_owned()));
        thread.join().unwrap_or_else(|_| Err("the thread panicked".to_owned()))
    });
    domain.close()?;
    Ok((here, elsewhere))
}

fn register(domain: &Domain, memory: GpuMemory) -> Result<String, Error> {
    let (region, why) = domain.register_device(memory.into(), Access::ALL)?;
    region.close()?;
    Ok(described(why))
}

/// Describes a registration by why it is no dmabuf.
pub(super) fn described(why: Option<String>) -> String {
    why.map_or("dmabuf".to_owned(), |why| format!("by address, not as a dmabuf: {why}"))
}

/// The facts of the machine on which the cause depends.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// The module nvidia-peermem, or its predecessor, is loaded.
    peermem: bool,
    /// The process has the capabilities of a privileged container.
    privileged: bool,
    /// The kernel modules of NVIDIA's driver are the open ones; None if nothing says so.
    open: Option<bool>,
}

impl Facts {
    fn of(system: &System) -> Self {
        let loaded = |module: &str| system.exists(format!("/sys/module/{module}"));
        Self {
            peermem: loaded("nvidia_peermem") || loaded("nv_peer_mem"),
            // Without a mask nothing is known, and the pod is not blamed.
            privileged: system.capabilities().is_none_or(|mask| mask & CAP_SYS_ADMIN != 0),
            open: system.read("/proc/driver/nvidia/version").map(|text| text.contains("Open Kernel Module")),
        }
    }

    fn describe(&self) -> String {
        let peermem = if self.peermem { "loaded" } else { "not loaded" };
        let mut all = vec![format!("nvidia-peermem {peermem}")];
        if !self.privileged {
            all.insert(0, "no CAP_SYS_ADMIN (not a privileged pod)".to_owned());
        }
        if let Some(open) = self.open {
            all.push(format!("{} NVIDIA modules", if open { "open" } else { "closed" }));
        }
        all.join(", ")
    }
}

/// The call that exports GPU memory as a dmabuf, as an error text names it.
const EXPORT: &str = "cuMemGetHandleForAddressRange failed";

/// The fix for an error text, by the last code in it, which is that of the registration by address.
fn cause(error: &str, facts: &Facts) -> (String, Party) {
    let codes = error.split("(-").skip(1).filter_map(|rest| rest.split(')').next()?.parse::<i32>().ok());
    let dmabuf =
        "a libfabric that registers GPU memory as a dmabuf (API 1.20 or newer; the current EFA installer's)";
    let (fix, who) = match codes.last() {
        Some(libc::EPERM | libc::EACCES) => return (PRIVILEGED.to_owned(), Party::Pod),
        // CUDA refused to export the memory, so no library can register a dmabuf.
        Some(libc::EINVAL) if !facts.peermem && error.contains(EXPORT) => {
            let other = match facts.open {
                Some(true) => "(CUDA exports no dmabuf here, and another libfabric does not change that)",
                _ => "or install NVIDIA's open kernel modules, whose driver exports dmabufs",
            };
            (format!("on the host: load nvidia-peermem: `modprobe nvidia-peermem` {other}"), Party::Operator)
        }
        Some(libc::EINVAL) if !facts.peermem => (
            format!(
                "use {dmabuf}, or load nvidia-peermem on the host: without either, the adapter cannot reach the memory"
            ),
            Party::Image,
        ),
        Some(libc::EFAULT) => (
            format!("use {dmabuf}, instead of one that registers the address as if it were host memory"),
            Party::Image,
        ),
        Some(libc::ENOSYS) => (
            "install a libfabric that was built with CUDA and with an rdma-core that has ibv_reg_dmabuf_mr (34)"
                .to_owned(),
            Party::Image,
        ),
        Some(libc::EOPNOTSUPP) => (
            "make the GPU's context current in the thread that registers; on the host, use the open kernel modules of \
             NVIDIA's driver, which export dmabufs"
                .to_owned(),
            Party::Operator,
        ),
        Some(libc::ENOMEM) => ("raise the limit of locked memory (ENV-003)".to_owned(), Party::Pod),
        _ => (
            "on the host: load the efa driver 2.x and NVIDIA's open kernel modules for dmabuf, or nvidia-peermem"
                .to_owned(),
            Party::Operator,
        ),
    };
    match facts.privileged {
        true => (fix, who),
        // The next run names what is left.
        false => (PRIVILEGED.to_owned(), Party::Pod),
    }
}

const PRIVILEGED: &str = "run the pod with privileged: true, or with /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0 \
                          (each GPU), /dev/infiniband/uverbs0 (each adapter) and the capabilities SYS_ADMIN and \
                          IPC_LOCK; IPC_LOCK alone is not enough";
