//! Puts between GPUs of one host: a rank maps the memory of its right neighbour's GPU through CUDA IPC, and the copy
//! engine of its own GPU stores the bytes there.
//!
//! CUDA reports whether GPUs can map each other's memory, not over which links: that is NVLink where they have it,
//! otherwise PCIe.

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};
use efa_gda::gpu::{self, Gpu, GpuMemory};
use serde::{Deserialize, Serialize};

use crate::checks::session::text;

/// The kernel's number of this boot, which is another one on each host and the same in its containers.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The pause between two looks at a stream.
const PAUSE: Duration = Duration::from_micros(100);
/// The end of a sentence that says why GPUs are not joined.
pub(super) const OR_EFA: &str = "or use --over auto, which puts over EFA then";

/// What a rank sends so that another process of its host can map the memory to which it puts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shared {
    /// The host.
    boot: String,
    /// The GPU's PCI address.
    gpu: String,
    bytes: Export,
    signal: Export,
}

/// Memory of a GPU, as another process of the host maps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Export {
    /// CUDA's handle of the allocation (`CUipcMemHandle`).
    handle: Vec<u8>,
    /// Offset of the first byte in the allocation.
    offset: u64,
    length: u64,
}

/// Returns the text for a failed call of the driver.
fn failed(operation: &'static str) -> impl Fn(DriverError) -> String {
    move |result| text(gpu::failed_call(operation, result))
}

fn outside(offset: usize, length: usize, memory: usize) -> String {
    format!(
        "the range of length {length} at offset {offset} exceeds a GPU memory block of length {memory}; end the range \
         inside the block"
    )
}

/// Returns the context of `gpu`, which is then current on this thread.
fn context(gpu: &Gpu) -> Result<Arc<CudaContext>, String> {
    CudaContext::new(gpu.ordinal()).map_err(failed("cuDevicePrimaryCtxRetain"))
}

/// Returns start and length of the allocation or mapping that contains `address`. A context must be current.
fn range(address: u64) -> Result<(u64, usize), DriverError> {
    let (mut start, mut length) = (0, 0);
    // SAFETY: the call writes two numbers.
    unsafe { sys::cuMemGetAddressRange_v2(&mut start, &mut length, address) }.result()?;
    Ok((start, length))
}

impl Export {
    /// Exports `memory`. Its context must be current.
    fn of(memory: &GpuMemory) -> Result<Self, String> {
        let (start, _) = range(memory.device_address()).map_err(failed("cuMemGetAddressRange"))?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `start` is the address of an allocation; the call writes a handle.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, start) }
            .result()
            .map_err(failed("cuIpcGetMemHandle"))?;
        let handle = handle.reserved.iter().map(|byte| *byte as u8).collect();
        Ok(Self { handle, offset: memory.device_address() - start, length: memory.len() as u64 })
    }

    fn open(&self, gpu: &Gpu, rank: u32) -> Result<Mapping, String> {
        let handle = <[u8; 64]>::try_from(&self.handle[..]).map_err(|_| {
            let size = self.handle.len();
            format!(
                "rank {rank} sent a CUDA IPC handle of {size} bytes, not 64; start all with the same release"
            )
        })?;
        Mapping::open(gpu, handle, self).map_err(|error| {
            format!(
                "the memory of rank {rank} was not mapped: {error}; in containers, give the ranks one IPC and one process \
                 namespace (hostIPC, hostPID), {OR_EFA}"
            )
        })
    }
}

/// Memory of another process's GPU, mapped into this process until the value is dropped. The other process must keep
/// the memory until then (`cuIpcCloseMemHandle` of `cuda.h`).
#[derive(Debug)]
struct Mapping {
    stream: Arc<CudaStream>,
    allocation: u64,
    /// The exported range, as far as it is inside the allocation.
    start: u64,
    length: usize,
}

impl Mapping {
    fn open(gpu: &Gpu, handle: [u8; 64], export: &Export) -> Result<Self, String> {
        let stream = context(gpu)?.new_stream().map_err(failed("cuStreamCreate"))?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut allocation = 0;
        // SAFETY: a context is current. The driver checks the handle and writes one address; the drop unmaps it once.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut allocation, handle, flags) }
            .result()
            .map_err(failed("cuIpcOpenMemHandle"))?;
        let mut mapping = Self { stream, allocation, start: allocation, length: 0 };
        // If the driver does not report the range of a mapping, a copy past its end fails.
        let memory = range(allocation).map_or(usize::MAX, |(start, length)| {
            length.saturating_sub(allocation.wrapping_sub(start) as usize)
        });
        let (offset, length) = (export.offset as usize, export.length as usize);
        match offset.checked_add(length) {
            Some(end) if end <= memory => {
                (mapping.start, mapping.length) = (allocation + export.offset, length);
                Ok(mapping)
            }
            _ => Err(outside(offset, length, memory)),
        }
    }

    /// Copies `count` pieces of `bytes` bytes, which follow each other from `offset` of `source` on, to the first bytes
    /// of this memory, and waits until they are there. After an error the copies may still run.
    fn copy_from(
        &self,
        source: &GpuMemory,
        offset: usize,
        (bytes, count): (usize, usize),
        limit: Duration,
    ) -> Result<(), String> {
        let length = bytes.saturating_mul(count);
        for (offset, memory) in [(offset, source.len()), (0, self.length)] {
            if offset.checked_add(length).is_none_or(|end| end > memory) {
                return Err(outside(offset, length, memory));
            }
        }
        let context = self.stream.context();
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        let from = source.device_address() + offset as u64;
        for piece in 0..count {
            let at = (piece * bytes) as u64;
            // SAFETY: a context is current, and both ranges were checked. A copy that outlives a failed wait touches
            // memory of GPUs only, whose driver faults the context if the range was freed.
            unsafe { sys::cuMemcpyDtoDAsync_v2(self.start + at, from + at, bytes, self.stream.cu_stream()) }
                .result()
                .map_err(failed("cuMemcpyDtoDAsync"))?;
        }
        let begun = Instant::now();
        loop {
            // SAFETY: an open stream of the current context.
            match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) }.result() {
                Ok(()) => return Ok(()),
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) if begun.elapsed() < limit => {
                    std::thread::sleep(PAUSE);
                }
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {
                    return Err(format!(
                        "the copies of a stream on GPU {} did not end within {limit:?}; see dmesg (Xid) and nvidia-smi",
                        context.ordinal()
                    ));
                }
                Err(error) => return Err(failed("cuStreamQuery")(error)),
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let closed = self.stream.context().bind_to_thread().and_then(|()| {
            // SAFETY: a context is current; `open` mapped the memory, and nothing else has its address.
            unsafe { sys::cuIpcCloseMemHandle(self.allocation) }.result()
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "memory of another process's GPU could not be unmapped");
        }
    }
}

/// Returns the GPU's address on the PCI bus, such as `0000:17:00.0`, which is the same in all processes.
fn pci_address(context: &CudaContext) -> Result<String, String> {
    let mut address: [c_char; 32] = [0; 32];
    let length = address.len() as c_int;
    // SAFETY: the call writes a terminated string of at most that length.
    unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr(), length, context.cu_device()) }
        .result()
        .map_err(failed("cuDeviceGetPCIBusId"))?;
    Ok(address.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect())
}

/// Whether `gpu` can map memory of the GPU at the PCI address `other`. It cannot map its own. Fails if this process does
/// not see that GPU.
fn can_map(gpu: &Gpu, other: &str) -> Result<bool, String> {
    let context = context(gpu)?;
    let name = CString::new(other).map_err(text)?;
    let (mut peer, mut can) = (0, 0);
    // SAFETY: a terminated string; the call writes a device's number.
    unsafe { sys::cuDeviceGetByPCIBusId(&mut peer, name.as_ptr()) }
        .result()
        .map_err(failed("cuDeviceGetByPCIBusId"))?;
    // SAFETY: the call writes a number.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, context.cu_device(), peer) }
        .result()
        .map_err(failed("cuDeviceCanAccessPeer"))?;
    Ok(can != 0)
}

impl Shared {
    /// Exports the memory for the bytes and for the signal.
    pub(super) fn of(gpu: &Gpu, bytes: &GpuMemory, signal: &GpuMemory) -> Result<Self, String> {
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        let context = context(gpu)?;
        let gpu = pci_address(&context)?;
        let export = |memory| {
            let why = |why| format!("this rank's memory was not exported for its neighbour: {why}; {OR_EFA}");
            Export::of(memory).map_err(why)
        };
        Ok(Self { boot, gpu, bytes: export(bytes)?, signal: export(signal)? })
    }

    /// Why this rank, whose own export is `own`, cannot map the memory of `rank`, as far as that shows without CUDA.
    fn refusal(&self, own: &Self, rank: u32) -> Option<String> {
        if self.boot != own.boot || self.boot.is_empty() {
            return Some(format!("rank {rank} is on another host, and NVLink joins GPUs of one; {OR_EFA}"));
        }
        (self.gpu == own.gpu).then(|| {
            let gpu = &own.gpu;
            format!(
                "rank {rank} and this rank share GPU {gpu}, and NVLink joins two; start no more ranks than GPUs, {OR_EFA}"
            )
        })
    }
}

/// The memory of the right neighbour, mapped.
#[derive(Debug)]
pub(super) struct Mapped {
    bytes: Mapping,
    signal: Mapping,
}

impl Mapped {
    /// Maps what `rank` shared. `own` is what this rank shared.
    pub(super) fn open(gpu: &Gpu, own: &Shared, shared: &Shared, rank: u32) -> Result<Self, String> {
        if let Some(why) = shared.refusal(own, rank) {
            return Err(why);
        }
        let (here, there) = (&own.gpu, &shared.gpu);
        match can_map(gpu, there) {
            Ok(true) => {}
            Ok(false) => {
                return Err(format!(
                    "GPU {here} of this rank cannot map memory of GPU {there} of rank {rank} (cuDeviceCanAccessPeer); \
                     nvidia-smi topo -p2p r shows which GPUs can: choose those, {OR_EFA}"
                ));
            }
            Err(error) => {
                return Err(format!(
                    "this process does not find GPU {there} of rank {rank}: {error}; let each rank see all GPUs \
                     (CUDA_VISIBLE_DEVICES), {OR_EFA}"
                ));
            }
        }
        Ok(Self { bytes: shared.bytes.open(gpu, rank)?, signal: shared.signal.open(gpu, rank)? })
    }

    /// Copies pieces, their length and their number, from the start of `source`, and waits until they are there.
    pub(super) fn put(
        &self,
        source: &GpuMemory,
        pieces: (usize, usize),
        limit: Duration,
    ) -> Result<(), String> {
        self.bytes.copy_from(source, 0, pieces, limit)
    }

    /// Copies the 8 bytes at `offset` of `source` to the signal word.
    pub(super) fn signal(&self, source: &GpuMemory, offset: usize, limit: Duration) -> Result<(), String> {
        self.signal.copy_from(source, offset, (size_of::<u64>(), 1), limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(boot: &str, gpu: &str) -> Shared {
        let export = Export { handle: vec![255; 64], offset: u64::MAX, length: u64::MAX };
        Shared { boot: boot.to_owned(), gpu: gpu.to_owned(), bytes: export.clone(), signal: export }
    }

    #[test]
    fn ranks_of_two_hosts_or_of_one_gpu_do_not_map_each_other() {
        let own = shared("a", "0000:17:00.0");
        let why = |boot, gpu| shared(boot, gpu).refusal(&own, 1).unwrap_or_default();
        assert!(why("b", "0000:2a:00.0").contains("rank 1 is on another host"));
        assert!(why("a", "0000:17:00.0").contains("share GPU 0000:17:00.0"));
        assert_eq!(why("a", "0000:2a:00.0"), "");
        let unknown = shared("", "0000:17:00.0");
        assert!(
            shared("", "0000:2a:00.0").refusal(&unknown, 1).is_some(),
            "hosts that are not known may differ"
        );
    }

    #[test]
    fn the_longest_export_is_a_small_part_of_a_message() {
        let longest = shared(&"f".repeat(36), &"0".repeat(31));
        let bytes = serde_json::to_vec(&longest).unwrap();
        assert!(bytes.len() < crate::exchange::MOST_BYTES / 4, "{} bytes", bytes.len());
        assert_eq!(serde_json::from_slice::<Shared>(&bytes).unwrap(), longest);
    }
}
