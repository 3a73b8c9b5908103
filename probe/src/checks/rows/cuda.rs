//! The rows of CUDA: GPU and CUDA.

use super::*;
use crate::checks::{cuda, fabric};

pub(super) static ROWS: &[Row] = &[
    declared(NO_GPU, "The GPUs to use are determined", Run::Machine(cuda::choice))
        .stops(EVERY)
        .who(&[Operator, Pod])
        .expects("an NVIDIA GPU, or --gpu none", "with GPU-Direct Async, a GPU posts to the adapter")
        .fix("run on a machine with a GPU, give the container the GPU, or use --gpu none")
        .page(
            "Reports the GPUs that the run checks: all that CUDA lists, the one that `--gpu N` names, or \
            none (`--gpu none`, or `--soft` on a machine without a GPU). It fails if the machine shows no \
            GPU and neither option was used. If no GPU takes part, this code blocks the checks of GPUs.",
        ),
    declared("CUDA-001", "The NVIDIA kernel driver is loaded", Run::Machine(cuda::kernel_driver))
        .needs(&["CUDA-000"])
        .of(GpuHardware)
        .stops(EVERY)
        .who(&[Operator])
        .fix("install the NVIDIA driver on the host; in a container, use the NVIDIA runtime")
        .page(
            "Reads the driver's version from `/proc/driver/nvidia/version`. In a container, the NVIDIA \
            runtime makes this file visible.",
        ),
    declared(
        PEER_MAPPING,
        "The kernel driver allows a GPU to map another device's BAR",
        Run::Machine(cuda::peer_mapping),
    )
    .needs(&["CUDA-001"])
    .of(GpuHardware)
    .stops(POSTING)
    .who(&[Operator])
    .expects(
        "RegistryDwords: \"PeerMappingOverride=1\"",
        "without it, the driver refuses to map another device's BAR into a GPU, and the GPU \
             can neither write to the send queue nor ring the doorbell",
    )
    .fix(
        "on the host: add this line to /etc/modprobe.d/nvidia.conf: `options nvidia \
             NVreg_RegistryDwords=\"PeerMappingOverride=1\"` then build the initramfs again, \
             which can hold the old options (update-initramfs -u, or dracut -f), and reboot",
    )
    .page(
        "`/proc/driver/nvidia/params` must hold `RegistryDwords: \"PeerMappingOverride=1\"`. Without \
            it, the driver refuses to map the adapter's BAR into the GPU, and the GPU can neither write to \
            the send queue nor ring the doorbell. On the host, add the line `options nvidia \
            NVreg_RegistryDwords=\"PeerMappingOverride=1\"` to a file in `/etc/modprobe.d`, build the \
            initramfs again, which can hold the module and its old options, and restart; or reload the \
            module while no program uses it.",
    ),
    proven("CUDA-003", "libcuda loads", Run::Cuda(cuda::loads))
        .needs(&["CUDA-000"])
        .of(OfGpu)
        .loads(Load::Cuda)
        .stops(EVERY)
        .who(&[Pod, Operator])
        .fix("run the container with the NVIDIA runtime, which brings the host's libcuda")
        .page(
            "`libcuda.so.1` must match the kernel driver and comes from the host. Do not copy it into the \
            image.",
        ),
    proven("CUDA-004", "CUDA starts and is new enough", Run::Cuda(cuda::starts))
        .needs(&["CUDA-003"])
        .of(OfGpu)
        .stops(EVERY)
        .who(&[Operator, Pod])
        .action(Action::Restart)
        .fix(
            "give the container the /dev/nvidia* nodes; install a driver of CUDA 12.0 or newer; restart a \
            host whose driver does not start",
        )
        .page(
            "`cuInit` must succeed, and the driver must be CUDA 12.0 or newer. The usual causes of a \
            failure are missing `/dev/nvidia*` nodes and a libcuda that does not match the kernel driver.",
        ),
    proven("CUDA-005", "CUDA lists the GPU", Run::Cuda(cuda::gpus))
        .needs(&["CUDA-004"])
        .of(OfGpu)
        .each(Subject::Gpu)
        .stops(EVERY)
        .who(&[Job])
        .fix("correct CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES, or the number in --gpu")
        .page(
            "There is one result for each GPU that CUDA lists, or for the one that `--gpu` names. \
            `CUDA_VISIBLE_DEVICES` and `NVIDIA_VISIBLE_DEVICES` hide GPUs.",
        ),
    declared("CUDA-006", "GPU memory can be exported as dmabuf", Run::Gpu(cuda::dmabuf))
        .needs(&["CUDA-005"])
        .of(OfGpu)
        .stops(NCCL_PASSES)
        .who(&[Operator])
        .expects("DMA_BUF_SUPPORTED is 1", "the adapter cannot register GPU memory through dmabuf")
        .fix("on the host: use the open kernel modules of the NVIDIA driver")
        .page(
            "Reads the attribute DMA_BUF_SUPPORTED. Without it the adapter cannot register GPU memory \
            through dmabuf, and completion queues cannot be in GPU memory.",
        ),
    declared(
        "CUDA-007",
        "The order of the adapter's writes to GPU memory is known",
        Run::Gpu(cuda::ordering),
    )
    .needs(&["CUDA-005"])
    .of(OfGpu)
    .who(&[Program])
    .fix(
        "let the host wait for the flag and call cuFlushGPUDirectRDMAWrites before a kernel reads the \
            data",
    )
    .page(
        "Reads the attribute GPU_DIRECT_RDMA_WRITES_ORDERING. With 0, GPU code that sees a flag of the \
            adapter may not yet see data that the adapter wrote before the flag. This is not a fault: the \
            check passes with every value. With 0, no fence in GPU code orders the two: the host must wait \
            for the flag and call `cuFlushGPUDirectRDMAWrites` before it starts the kernel that reads the \
            data.",
    ),
    proven("CUDA-009", "A CUDA context opens on the GPU", Run::Gpu(cuda::usable::opens))
        .needs(&["CUDA-005"])
        .of(OfGpu)
        .stops(EVERY_PASSES)
        .who(&[Operator, Pod])
        .action(Action::Restart)
        .fix("end the process that holds the GPU, or set its compute mode to default (nvidia-smi -c 0)")
        .page(
            "Opens a context and reports the settings on which this depends: the compute mode (default; \
            prohibited; exclusive process, in which a context fails while another process has one), \
            whether the GPU is under MPS, and whether it is a MIG device, which CUDA names with `MIG` and \
            its profile. MIG devices and MPS clients are used like any GPU, and the later checks prove \
            what works there. Under MPS all of them passed on an H200, for memory that is not a BAR. No \
            MIG device has been tested.",
        ),
    proven("CUDA-010", "Kernels compile for the GPU and load", Run::Gpu(cuda::usable::compiles))
        .needs(&["CUDA-009"])
        .of(OfGpu)
        .who(&[Image])
        .expects(
            "libnvrtc 12 or newer, and a GPU of compute capability 8.0 or newer",
            "kernels are compiled at run time for the GPU, unless the build included them",
        )
        .fix(
            "install libnvrtc in the image (package cuda-nvrtc, or pip install nvidia-cuda-nvrtc) and \
         add its directory to LD_LIBRARY_PATH; or use a gda-probe that was built with EFA_GDA_NVCC",
        )
        .page(
            "The probe loads its put kernel from the build (`EFA_GDA_NVCC=FILE cargo build`), from the \
            cache (`~/.cache/efa-gda`), or from NVRTC, which compiles it for the GPU's architecture. The \
            check fails if libnvrtc is not on the loader's path and the build has no kernel that the \
            driver loads.",
        ),
    declared("CUDA-011", "The adapters near the GPU are known", Run::Near(cuda::near))
        .needs(&["CUDA-005"])
        .of(OfGpu)
        .who(&[Operator])
        .fix("use --pairs all to check adapters that are not near the GPU")
        .page(
            "Lists the adapters with which a GPU forms pairs (`--pairs near`, the default): those that \
            share the most PCI bridges with it, and all of them if several share the same number. If no \
            adapter shares a bridge, they are the adapters on the GPU's NUMA node. The source is \
            `/sys/bus/pci/devices`. `--pairs all` uses every adapter. A software adapter has no PCI \
            address and pairs with every GPU.",
        ),
    proven(MAPS, "The send queue and doorbell map into the GPU", Run::Pair(fabric::on_gpu::sends))
        .needs(&["CUDA-005", "CUDA-009", "QUE-005"])
        .of(OfGpu)
        .stops(POSTING_PASSES)
        .who(&[Operator])
        .expects(
            "cuMemHostRegister accepts the send queue's memory and the doorbell",
            "the GPU cannot write entries or ring the doorbell without these mappings",
        )
        .fix(
            "on the host: set NVreg_RegistryDwords=\"PeerMappingOverride=1\" if it is not set \
             (CUDA-002), and search dmesg for NVRM; until then, use --doorbell record or \
             --doorbell staged, in which a host thread rings",
        )
        .page(
            "Registers the send queue's memory and the doorbell of one adapter with one GPU \
            (`cuMemHostRegister`) and unregisters them; the subject is the pair, `GPU/adapter`. The \
            `VmFlags` of the mapping in `/proc/self/smaps` decide whether the I/O-memory flag is used \
            (`io` or `pf`: device memory), and the observed text reports them. A refusal reports CUDA's \
            result; for device memory the usual cause is CUDA-002. If CUDA-002 failed and CUDA refuses a \
            part in the BAR, this is one problem: the result is a skip, blocked by CUDA-002, and its \
            reason holds CUDA's result. If this check does not pass, a host thread may still ring \
            (QUE-008), and the verdict is `host-rung`. In `put` and `bench`, a failure here becomes a \
            warning if the put was verified in the doorbell mode `record` or `staged`, which need fewer \
            mappings.",
        ),
    proven("CUDA-012", "The completion queue maps into the GPU", Run::Pair(fabric::on_gpu::completions))
        .needs(&["CUDA-005", "CUDA-009", "QUE-005"])
        .of(OfGpu)
        .who(&[Operator])
        .expects(
            "cuMemHostRegister accepts the completion queue for reading",
            "kernels read completions to learn which requests are done and how many slots are \
             free; without this mapping, a host thread relays each completion to the GPU",
        )
        .fix(
            "on the host: check CUDA-002 first; if CUDA refuses read-only memory, update the \
             NVIDIA driver, or use a GPU that reads memory without registration (nvidia-smi -q: \
             Addressing Mode HMM or ATS); in the program: use completion counters, or let \
             GpuQueue::with_doorbell relay completions",
        )
        .page(
            "Like CUDA-008, for the completion queue, which kernels read. Memory that is mapped for reading \
            only is registered for reading. If CUDA refuses to register ordinary memory, and the GPU reads \
            memory without registration (`CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS`: HMM, ATS), kernels \
            read it at the host's address, and the observed text reports this. Otherwise the result is a \
            warning: in every doorbell mode a host thread relays the completions to the GPU \
            (`GpuQueue::with_doorbell`), and the puts prove that it works. A queue with completion \
            counters, or with a completion queue in the GPU's memory, needs neither this mapping nor a \
            relay. The observed text states whether libfabric offers efa-direct without FI_CONTEXT2; where \
            it does, `fi_cq_read` can return the completions of a GPU's requests.",
        ),
    proven("CUDA-013", "The receive queue maps into the GPU", Run::Pair(fabric::on_gpu::receives))
        .needs(&["CUDA-005", "CUDA-009", "QUE-005"])
        .of(OfGpu)
        .who(&[Operator])
        .expects(
            "cuMemHostRegister accepts the receive queue and its doorbell",
            "without this mapping, the host must post receives for the GPU",
        )
        .fix(
            "on the host: check CUDA-002 first, and search dmesg for NVRM; programs that only \
             write and read need no receives",
        )
        .page(
            "Like CUDA-008, for the receive queue and its doorbell. A refusal is a warning, or a skip if \
            CUDA-002 explains it: the host must then post receives for the GPU.",
        ),
    proven(
        "CUDA-014",
        "The GPU's memory registers with the adapter",
        Run::Pair(fabric::gpu_memory::registers),
    )
    .needs(&["CUDA-005", "CUDA-009", "FAB-005"])
    .of(OfGpu)
    .stops(EVERY)
    .who(&[Image, Operator, Pod])
    .expects(
        "memory of the GPU registers, as a dmabuf or by its address",
        "NCCL, NVSHMEM and DeepEP register the GPU's memory; without that, only host memory can be moved",
    )
    .fix("let the image register GPU memory as a dmabuf, or load nvidia-peermem on the host")
    .page(
        "Allocates 64 KiB of GPU memory, registers it through libfabric as a dmabuf, or by address if \
            that fails, and deregisters it. The fix depends on the error: EINVAL, there is neither \
            nvidia-peermem nor a dmabuf (the host, if CUDA exports no dmabuf; otherwise the image, whose \
            libfabric registers none); EFAULT, libfabric registers the address as host memory; ENOSYS, \
            libfabric was built without CUDA, or with an rdma-core before 34; EOPNOTSUPP, the thread has \
            no CUDA context, or NVIDIA's kernel modules export no dmabuf; ENOMEM, the limit of ENV-003; \
            EPERM, or any error in a container without CAP_SYS_ADMIN, the pod lacks `privileged: true`, or \
            the rights that this option gives. A second registration runs in a thread without a CUDA \
            context. If only this one fails, the result is a warning: the program must make a context \
            current in each thread that registers. Under `--soft`, `unknown` without `SOFTEFA_HMEM=1`.",
    ),
    declared("CUDA-015", "The nvcc that programs find compiles for the GPU", Run::Gpu(cuda::compiler))
        .needs(&["CUDA-005"])
        .of(GpuHardware)
        .who(&[Image])
        .expects(
            "an nvcc that knows the GPU",
            "programs that compile kernels when they run end with \"ptxas fatal: Arguments mismatch for instruction \
            'mov'\" or \"Unsupported gpu architecture\"",
        )
        .fix("install a newer CUDA toolkit in the image, and name it in CUDA_HOME")
        .page(
            "Compares the nvcc of `CUDA_HOME`, `CUDA_PATH`, `PATH` or `/usr/local/cuda`, by its \
            `version.json`, with the GPU's compute capability: sm_103 needs nvcc 13.3, sm_100 and sm_120 \
            12.8, sm_90 11.8. It serves programs with a JIT compiler, such as DeepEP; the probe's kernels \
            are compiled by NVRTC (CUDA-010). `unknown` without nvcc.",
        ),
];
