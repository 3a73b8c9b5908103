//! Puts between GPUs of one host: a rank maps the memory of its right neighbour's GPU through CUDA IPC, and the copy
//! engine of its own GPU stores the bytes there.
//!
//! CUDA reports whether GPUs can map each other's memory, not over which links: that is NVLink where they have it,
//! otherwise PCIe.

use std::time::Duration;

use efa_gda::gpu::{Gpu, GpuMemory, MappedMemory, SharedMemory};
use serde::{Deserialize, Serialize};

use crate::checks::session::text;

/// The kernel's number of this boot, which is another one on each host and the same in its containers.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
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

/// An export of memory ([`SharedMemory`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Export {
    handle: Vec<u8>,
    offset: u64,
    length: u64,
}

impl Export {
    fn of(memory: &GpuMemory) -> Result<Self, String> {
        let SharedMemory { handle, offset, length } = memory.share().map_err(text)?;
        Ok(Self { handle: handle.to_vec(), offset, length })
    }

    fn open(&self, gpu: &Gpu, rank: u32) -> Result<MappedMemory, String> {
        let Self { handle, offset, length } = self;
        let wrong = |handle: Vec<u8>| {
            let size = handle.len();
            format!(
                "rank {rank} sent a CUDA IPC handle of {size} bytes, not 64; start all with the same release"
            )
        };
        let handle = handle.clone().try_into().map_err(wrong)?;
        MappedMemory::open(gpu, &SharedMemory { handle, offset: *offset, length: *length }).map_err(|error| {
            format!(
                "the memory of rank {rank} was not mapped: {}; in containers, give the ranks one IPC and one process \
                 namespace (hostIPC, hostPID), {OR_EFA}",
                text(error)
            )
        })
    }
}

impl Shared {
    /// Exports the memory for the bytes and for the signal.
    pub(super) fn of(gpu: &Gpu, bytes: &GpuMemory, signal: &GpuMemory) -> Result<Self, String> {
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        let gpu = gpu.pci_address().map_err(text)?;
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
    bytes: MappedMemory,
    signal: MappedMemory,
}

impl Mapped {
    /// Maps what `rank` shared. `own` is what this rank shared.
    pub(super) fn open(gpu: &Gpu, own: &Shared, shared: &Shared, rank: u32) -> Result<Self, String> {
        if let Some(why) = shared.refusal(own, rank) {
            return Err(why);
        }
        let (here, there) = (&own.gpu, &shared.gpu);
        match gpu.can_map(there) {
            Ok(true) => {}
            Ok(false) => {
                return Err(format!(
                    "GPU {here} of this rank cannot map memory of GPU {there} of rank {rank} (cuDeviceCanAccessPeer); \
                     nvidia-smi topo -p2p r shows which GPUs can: choose those, {OR_EFA}"
                ));
            }
            Err(error) => {
                return Err(format!(
                    "this process does not find GPU {there} of rank {rank}: {}; let each rank see all GPUs \
                     (CUDA_VISIBLE_DEVICES), {OR_EFA}",
                    text(error)
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
        self.bytes.copy_from(source, 0, pieces, limit).map_err(text)
    }

    /// Copies the 8 bytes at `offset` of `source` to the signal word.
    pub(super) fn signal(&self, source: &GpuMemory, offset: usize, limit: Duration) -> Result<(), String> {
        self.signal.copy_from(source, offset, (size_of::<u64>(), 1), limit).map_err(text)
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
