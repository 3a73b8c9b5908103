//! The problems that users reported, each provoked on a made-up machine that is sound otherwise: the code that
//! `docs/troubleshooting.md` names must report it, with the fix that helped, and alone. `pains_soft.rs` has those that
//! need a software adapter.

mod support;

use std::os::fd::AsRawFd;

use efa_gda_test_support::{TempDir, compile};
use serde_json::Value;
use support::sound::{
    Broken, LIBEFA, NCCL, NCCL_CONF, PLUGIN, Stack, all_alone, broken, checked, command, libefa, pass, sound,
};
use support::{Machine, at_once, check, document, output, says, state};

use Stack::{Adapters, Files, FilesAndGpu, Libfabric, Whole};

const OLD_PLUGIN: &str = "/opt/old/libnccl-net-ofi.so";
const NODE: &str = "/dev/infiniband/uverbs2";

const PAINS: &[Broken] = broken! {
    "an_rdma_core_before_the_queries_is_the_images" (Files) "image" "LIB-005", "install rdma-core 59":
        |m| _ = libefa(3).map(|old| _ = m.bytes(LIBEFA, old)), [];
    "no_rdma_core" (Files) "image" "LIB-005", "install rdma-core 59": |m| _ = m.remove(LIBEFA), [];
    "a_kernel_driver_without_counters_or_external_queues_is_the_hosts" (Files) "host" "DEV-002",
        "EFA installer 1.50.0", "counters", "external memory":
        |m| _ = m.file("/sys/module/efa/version", "2.10.0g"), [];
    "a_kernel_driver_without_counters" (Files) "host" "DEV-002", "EFA installer 1.50.0", "counters":
        |m| _ = m.file("/sys/module/efa/version", "3.2.9g"), [];
    "counters_that_the_kernel_driver_lacks_are_the_hosts" (Whole) "host" "GDA-010" & "DEV-002",
        "update the efa kernel driver 3.2.9g":
        |m| _ = m.file("/sys/module/efa/version", "3.2.9g"), [("SOFTEFA_BREAK", "no-counters")];
    "a_driver_without_peer_mapping_is_the_hosts" (FilesAndGpu) "host" "CUDA-002", "PeerMappingOverride=1":
        |m| _ = m.nvidia(""), [];
    "device_nodes_of_some_adapters_are_the_pods" (Files) "pod" "DEV-005" & "DEV-007", "vpc.amazonaws.com/efa":
        |m| _ = m.remove(NODE), [];
    // Adapters of which libfabric makes use are checked although another has no node.
    "nodes_of_some_adapters_that_libfabric_uses" (Adapters) "pod" "DEV-005" & "DEV-007", "vpc.amazonaws.com/efa":
        |m| _ = m.remove(NODE), [];
    "two_releases_of_libfabric_are_the_images" (Files) "image" "LIB-004", "remove all but one":
        |m| _ = m.file("/opt/amazon/efa/lib/libfabric.so.1", "x\0FABRIC_1.8\x002.3.1\0y"), [];
    "a_low_limit_of_locked_memory_is_the_pods" (Adapters) "pod" "ENV-003", "RLIMIT_MEMLOCK":
        |m| _ = m.memlock("65536").capabilities("00000000a80425fb"), [];
    "a_limit_that_a_transport_reaches" (Adapters) "pod" "ENV-003", "RLIMIT_MEMLOCK":
        |m| _ = m.memlock("8388608").capabilities("00000000a80425fb"), [];
    "ways_to_raise_the_limit" (Files) "pod" "ENV-003", "--ulimit memlock=-1", "Kubernetes: capability IPC_LOCK",
        "systemd: ", "Slurm: ", "Shell: ulimit -l", "effective":
        |m| _ = m.memlock("65536").capabilities("00000000a80425fb"), [];
    "a_type_without_gpu_direct_async_is_the_hosts" (Files) "host" "ENV-002", "run on p5en":
        |m| _ = m.file("/sys/class/dmi/id/product_name", "g6e.48xlarge"), [];
    "a_foreign_verbs_device_that_does_not_open_is_the_cause_of_no_adapter" (Libfabric) "pod" "FAB-001",
        "device plugin 0.5.10", "mlx5_0 (/dev/infiniband/uverbs9":
        |m| _ = m.file("/sys/class/infiniband_verbs/uverbs9/ibdev", "mlx5_0\n"), [];
    "an_adapter_of_the_newest_id_needs_the_newest_rdma_core" (Libfabric) "image" "FAB-001", "commit 8b1a1e9c2":
        |m| _ = m.file("/sys/bus/pci/devices/0000:01:00.0/device", "0xefa4"), [];
    "a_plugin_older_than_nccl_is_reported_with_the_release_that_fits" (Files) "image" "LIB-007",
        "aws-ofi-nccl 1.21":
        |m| plugin(m, "2.31.2", "1.20.0"), [];
    "a_plugin_older_than_the_newest_nccl" (Files) "image" "LIB-007", "aws-ofi-nccl 1.22":
        |m| plugin(m, "2.32.3", "1.21.1"), [];
    "nccl_without_the_plugin_is_reported" (Files) "image" "LIB-007", "LD_LIBRARY_PATH": |m| _ = m.remove(PLUGIN), [];
    // A file of the process's own root is read there.
    "a_running_process_with_an_older_plugin_is_reported_although_the_disk_is_right" (Files) "image" "LIB-007",
        "start them again", "loaded in 1 process: ", "(1.21.1)":
        |m| {
            m.file(OLD_PLUGIN, "aws-ofi-nccl 1.20.1\0").process(41, &[NCCL, PLUGIN]);
            m.file(&format!("/proc/42/root{OLD_PLUGIN}"), "aws-ofi-nccl 1.21.1\0");
            m.process(42, &[NCCL, OLD_PLUGIN]).process(43, &["/usr/lib/libc.so.6"]);
        }, [];
    "a_plugin_without_gin_of_type_5_is_the_images" (Files) "image" "LIB-007",
        "aws-ofi-nccl 1.22 in the image instead of", "does not define ncclGinPlugin_v14":
        |m| _ = gin_plugin(13, "/opt/amazon/efa/lib").map(|plugin| _ = m.bytes(PLUGIN, plugin)), [];
    "a_libfabric_before_the_operations_below_a_root" (Files) "image" "LIB-009", "libfabric 2.3", "1.17.0":
        |m| _ = m.file("/usr/lib/libfabric.so.1", "x\0FABRIC_1.5\x001.17.0\0y"), [];
    "a_stale_device_node_is_the_pods" (Files) "pod" "DEV-006", "start the container again", "stale": stale, [];
    "a_plugin_where_the_loader_does_not_look_is_the_images" (Files) "image" "LIB-010",
        "put /opt/amazon/ofi-nccl/lib on LD_LIBRARY_PATH", "/opt/amazon/aws-ofi-nccl/lib, which does not exist":
        |m| _ = m.file("/etc/ld.so.conf", "/opt/amazon/aws-ofi-nccl/lib\n"), [];
    "a_second_nccl_is_the_images" (Files) "image" "LIB-011", "remove all but one NCCL", "2.28.9":
        |m| _ = m.file("/usr/lib/libnccl.so.2", "NCCL version 2.32.3").file(NCCL, "NCCL version 2.28.9"), [];
    "a_plugin_with_a_libfabric_of_its_own_is_the_images" (Files) "image" "LIB-012", "remove the other libfabric",
        "the plugin names /opt/own/lib/libfabric.so.1":
        |m| {
            m.file("/opt/own/lib/libfabric.so.1", "x\0FABRIC_1.8\x002.3.1\0y");
            _ = gin_plugin(14, "/opt/own/lib").map(|plugin| _ = m.bytes(PLUGIN, plugin));
        }, [];
    "no_device_of_gdrcopy_in_the_container_is_the_pods" (Files) "pod" "DEV-009", "docker --device /dev/gdrdrv",
        "gdr_open error: Is gdrdrv driver installed and loaded?":
        |m| _ = m.remove("/dev/gdrdrv"), [];
    "closed_modules_without_peer_memory_are_the_hosts" (FilesAndGpu) "host" "DEV-010", "open kernel modules",
        "p2p is NONE":
        |m| {
            let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build\n";
            m.file("/proc/driver/nvidia/version", closed);
        }, [];
    "onboard_devices_beside_efa_are_the_jobs" (Files) "pod" "DEV-011", "NCCL_IB_HCA=rdmap",
        "only 2 GIN GDAKI NICs have been created":
        |m| _ = m.file("/sys/class/infiniband/ibp4s0/device/vendor", "0x15b3\n"), [];
    "docker_s_shared_memory_is_the_pods" (Files) "pod" "ENV-009", "--shm-size=8g", "67108864":
        |m| _ = m.file("/proc/self/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n"), [];
    "a_kernel_without_a_driver_of_dkms_is_the_hosts" (Files) "host" "DEV-002", "dkms autoinstall", "for 6.8.0-1 only":
        |m| {
            m.remove("/sys/module/efa/version").file("/proc/sys/kernel/osrelease", "6.8.0-2\n");
            m.file("/lib/modules/6.8.0-1/updates/dkms/efa.ko.zst", "").directory("/lib/modules/6.8.0-2/kernel");
        }, [];
    "another_network_plugin" (Files) "pod" "ENV-007", "unset NCCL_NET_PLUGIN", "NCCL_NET_PLUGIN=spcx":
        |_| {}, [("NCCL_NET_PLUGIN", "spcx")];
    "expandable_segments" (Files) "pod" "ENV-007", "leave expandable_segments out",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "Invalid argument":
        |_| {}, [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    "a_gdrdrv_older_than_libgdrapi_is_the_hosts" (Files) "host" "LIB-008", "upgrade the module gdrdrv to 2.5":
        |m| _ = m.file("/sys/module/gdrdrv/version", "2.4\n"), [];
    "a_libgdrapi_before_2_5_is_the_images" (Files) "image" "LIB-008", "install libgdrapi of GDRCopy 2.5":
        |m| {
            m.file("/usr/lib/libgdrapi.so.2.4", "").remove("/usr/lib/libgdrapi.so.2");
            m.link("/usr/lib/libgdrapi.so.2", "libgdrapi.so.2.4");
        }, [];
    "fewer_devices_than_the_type_has_are_reported" (Files) "host" "DEV-008", "adapters can appear minutes late",
        "\"warn\"", "fix-host":
        |m| _ = m.remove("/sys/bus/pci/devices/0000:08:00.0"), [];
    "a_lost_gpu" (Files) "host" "DEV-008", "fallen off the bus", "\"fail\"", "isolate":
        |m| _ = m.remove("/sys/bus/pci/devices/0000:18:00.0"), [];
    "each_variable_whose_meaning_moved_is_reported" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5",
        "NCCL_GIN_TYPE=2, which should be ":
        |_| {}, [("NCCL_GIN_TYPE", "2")];
    "gin_type_3" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5", "NCCL_GIN_TYPE=3, which should be ":
        |_| {}, [("NCCL_GIN_TYPE", "3")];
    "gin_type_4" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5", "NCCL_GIN_TYPE=4, which should be ":
        |_| {}, [("NCCL_GIN_TYPE", "4")];
    "gin_type_not_set" (Files) "pod" "ENV-007",
        "set NCCL_GIN_TYPE=5 and NCCL_SYM_GIN_KERNELS_ENABLE=0", "NCCL_GIN_TYPE is not set", "CPU proxy",
        "Loaded gin plugin Libfabric_GDAKI (v14)", "gin GDAKI: createContext done":
        |m| _ = m.remove(NCCL_CONF), [];
    // An empty variable hides that of a file.
    "gin_type_without_a_value" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5", "NCCL_GIN_TYPE is not set":
        |_| {}, [("NCCL_GIN_TYPE", "")];
    "gin_type_5_alone" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5", "NCCL_SYM_GIN_KERNELS_ENABLE is not set",
        "GIN strong signals are required, but the GIN plugin does not support them",
        "GIN: DevComm setup failed on all available backends":
        |m| _ = m.remove(NCCL_CONF), [("NCCL_GIN_TYPE", "5")];
    "gin_type_5_with_symmetric_kernels" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5",
        "NCCL_SYM_GIN_KERNELS_ENABLE is 1":
        |_| {}, [("NCCL_SYM_GIN_KERNELS_ENABLE", "1")];
    "gin_type_2_of_the_machines_file" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5",
        "NCCL_GIN_TYPE=2 (in /etc/nccl.conf)":
        |m| _ = m.file(NCCL_CONF, "NCCL_GIN_TYPE=2\n"), [];
    "gin_type_3_of_the_users_file" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5",
        "NCCL_GIN_TYPE=3 (in /home/a/.nccl.conf)":
        |m| {
            let user = nix::unistd::Uid::current();
            m.file("/etc/passwd", &format!("b:x:4711:0::/home/b:\na:x:{user}:0::/home/a:/bin/sh\n"));
            m.file("/home/a/.nccl.conf", "NCCL_GIN_TYPE=3\n").file("/home/b/.nccl.conf", "NCCL_GIN_TYPE=5\n");
        },
        [("HOME", "/home/b")];
    "gin_type_4_of_a_named_file" (Files) "pod" "ENV-007", "set NCCL_GIN_TYPE=5",
        "NCCL_GIN_TYPE=4 (in /opt/nccl.conf)":
        |m| {
            m.file("/home/a/.nccl.conf", "NCCL_GIN_TYPE=5\n").file("/opt/nccl.conf", "NCCL_GIN_TYPE=4\n");
        },
        [("HOME", "/home/a"), ("NCCL_CONF_FILE", "/opt/nccl.conf")];
    "gin_disabled" (Files) "pod" "ENV-007", "unset NCCL_GIN_ENABLE", "NCCL_GIN_ENABLE=0, which should be ":
        |_| {}, [("NCCL_GIN_ENABLE", "0")];
    "gdaki" (Files) "pod" "ENV-007", "NCCL_GIN_TYPE=5", "OFI_NCCL_GIN_GDAKI=1, which should be ":
        |_| {}, [("OFI_NCCL_GIN_GDAKI", "1")];
    "no_vmm" (Files) "pod" "ENV-007", "unset NVSHMEM_DISABLE_CUDA_VMM",
        "NVSHMEM_DISABLE_CUDA_VMM=1, which should be ":
        |_| {}, [("NVSHMEM_DISABLE_CUDA_VMM", "1")];
    "ibrc" (Files) "pod" "ENV-007", "NVSHMEM_REMOTE_TRANSPORT=libfabric",
        "NVSHMEM_REMOTE_TRANSPORT=ibrc, which should be ":
        |_| {}, [("NVSHMEM_REMOTE_TRANSPORT", "ibrc")];
    "ibgda" (Files) "pod" "ENV-007", "unset NVSHMEM_IB_ENABLE_IBGDA", "NVSHMEM_IB_ENABLE_IBGDA=1, which should be ":
        |_| {}, [("NVSHMEM_IB_ENABLE_IBGDA", "1")];
    // The file that the loader finds states 2.6.0.
    "a_name_that_libfabric_does_not_read_is_reported" (Libfabric) "pod" "ENV-008",
        "unset FI_EFA_USE_SQ_REQ_ID_64_BIT", "\"subject\":\"FI_EFA_USE_SQ_REQ_ID_64_BIT\"":
        |_| {}, [("FI_EFA_USE_SQ_REQ_ID_64_BIT", "1")];
    "a_name_with_a_letter_too_much" (Libfabric) "pod" "ENV-008", "unset FI_EFA_IFACES":
        |_| {}, [("FI_EFA_IFACES", "1")];
    "a_name_with_words_in_another_order" (Libfabric) "pod" "ENV-008", "unset FI_HMEM_P2P_DISABLED":
        |_| {}, [("FI_HMEM_P2P_DISABLED", "1")];
};

/// A plugin of a release that fits, with GIN of this version and this search path. None, with the skip recorded, without
/// a C compiler.
fn gin_plugin(version: u32, search: &str) -> Option<Vec<u8>> {
    let folder = TempDir::new("plugin");
    let (source, library) = (folder.path().join("plugin.c"), folder.path().join("plugin.so"));
    let text = format!(
        "const char release[] = \"aws-ofi-nccl 1.22.0\";\nint ncclGinPlugin_v{version}(void) {{ return release[0]; }}\n"
    );
    std::fs::write(&source, text).expect("a source");
    let mut compiler = compile::c();
    compiler.args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(&library).arg(source);
    compiler.arg(format!("-Wl,-rpath,{search}"));
    compile::compile(&mut compiler).then(|| std::fs::read(library).expect("the library"))
}

/// Makes a device node that exists and that no device answers to: like one, the file of a socket does not open.
fn stale(machine: &Machine) {
    machine.remove(NODE);
    let folder = std::fs::File::open(machine.path().join("dev/infiniband")).expect("the folder");
    // The path of a socket is short.
    let path = format!("/proc/self/fd/{}/uverbs2", folder.as_raw_fd());
    std::os::unix::net::UnixListener::bind(path).expect("a socket");
}

/// These releases of NCCL and its plugin.
fn plugin(machine: &Machine, of_nccl: &str, of_plugin: &str) {
    machine.file(NCCL, &format!("NCCL version {of_nccl}+cuda13.0"));
    machine.file(PLUGIN, &format!("NET/OFI Initializing aws-ofi-nccl {of_plugin}"));
}

#[test]
fn each_problem_is_reported_alone_with_its_fix() {
    all_alone(PAINS);
}

#[test]
fn a_sound_machine_passes_every_check_of_releases_and_devices() {
    let document = checked(Files, &sound("sound"), &[]);
    pass(
        &document,
        &["ENV-002", "ENV-003", "ENV-007", "ENV-008", "DEV-001", "DEV-002", "DEV-008", "LIB-004"],
    );
    pass(&document, &["LIB-007", "LIB-008"]);
    // The other states are frozen.
    at_once(&[FilesAndGpu, Libfabric, Adapters, Whole], |stack| _ = checked(*stack, &sound("healthy"), &[]));
}

#[test]
fn mappings_that_a_missing_peer_mapping_forbids_are_no_problems_beside_it() {
    let machine = sound("no-peer-mapping-refused");
    machine.nvidia("");
    // The first places that are mapped: the send queue and its doorbell.
    let set = [("SOFTEFA_ADAPTERS", "1"), ("PRETEND_GPU_REFUSES", "1,2")];
    let document = checked(Whole, &machine, &set);
    says(&document, "CUDA-008", "blocked_by", &["CUDA-002"]);
    says(&document, "CUDA-008", "why", &["cuMemHostRegister"]);
    assert!(document["verdict"][0]["next"].as_str().is_some_and(|next| next.contains("for gda: CUDA-002")));
    // A machine whose driver maps BARs has the refusal as a problem of its own.
    assert_eq!(state(&checked(Whole, &sound("refused"), &set), "CUDA-008"), "fail");
}

#[test]
fn no_device_node_at_all_is_the_pods_also_where_libfabric_finds_no_adapter() {
    let machine = sound("no-node");
    machine.remove("/dev/infiniband");
    let document = checked(Libfabric, &machine, &[]);
    says(&document, "FAB-001", "observed", &["no adapter has its device node", "DEV-005"]);
    for code in ["DEV-005", "FAB-001"] {
        assert_eq!(check(&document, code)["who"], "pod");
    }
}

#[test]
fn the_adapters_own_device_and_devices_that_open_are_not_foreign() {
    let machine = sound("own");
    machine.file("/sys/class/infiniband_verbs/uverbs1/ibdev", "rdmap1s0\n");
    machine.file("/sys/class/infiniband_verbs/uverbs9/ibdev", "mlx5_0\n").file("/dev/infiniband/uverbs9", "");
    let document = checked(Libfabric, &machine, &[]);
    let fix = check(&document, "FAB-001")["fix"].as_str().expect("a fix");
    assert!(!fix.contains("device plugin"), "{fix}");
}

#[test]
fn running_processes_that_fit_are_counted_and_nothing_else_of_them_is_printed() {
    let running = sound("running");
    running
        .file(OLD_PLUGIN, "aws-ofi-nccl 1.20.1\0")
        .process(41, &[NCCL, PLUGIN])
        .process(43, &["/usr/lib/libc.so.6"]);
    let document = checked(Files, &running, &[]);
    pass(&document, &["LIB-007"]);
    let observed = check(&document, "LIB-007")["observed"].as_str().expect("a text");
    assert!(!observed.contains("41") && !observed.contains("libc"), "{observed}");
}

#[test]
fn libraries_of_running_processes_decide_where_the_disk_has_none() {
    let on_no_disk = |name: &str| {
        let machine = sound(name);
        machine.remove(NCCL).remove(PLUGIN);
        machine
    };
    assert_eq!(state(&checked(Files, &on_no_disk("of-no-process"), &[]), "LIB-007"), "unknown");
    let machine = on_no_disk("of-processes");
    for process in [50, 51] {
        machine.file(&format!("/proc/{process}/root{NCCL}"), "NCCL version 2.32.3+cuda13");
        machine.file(&format!("/proc/{process}/root{PLUGIN}"), "aws-ofi-nccl 1.22.0\0");
        machine.process(process, &[NCCL, PLUGIN]);
    }
    let document = checked(Files, &machine, &[]);
    pass(&document, &["LIB-007"]);
    says(&document, "LIB-007", "observed", &["loaded in 2 processes: "]);
}

#[test]
fn processes_that_cannot_be_read_are_counted_and_threads_of_the_kernel_are_not() {
    let machine = sound("hidden");
    // A directory cannot be read as a file, even by root.
    machine.directory("/proc/60/maps").file("/proc/60/cmdline", "secret-job\0");
    machine.directory("/proc/61/maps").file("/proc/61/cmdline", "");
    let document = checked(Files, &machine, &[]);
    pass(&document, &["LIB-007"]);
    says(&document, "LIB-007", "observed", &["1 process not examined"]);
    assert!(!document.to_string().contains("secret-job"));
}

#[test]
fn values_that_are_right_today_are_not_reported() {
    let set = [("NCCL_GIN_TYPE", "5"), ("NCCL_GIN_ENABLE", "1"), ("NVSHMEM_REMOTE_TRANSPORT", "libfabric")];
    pass(&checked(Files, &sound("right"), &set), &["ENV-007"]);
}

#[test]
fn the_environment_decides_before_the_files_of_nccl() {
    let machine = sound("files-of-nccl");
    machine.file(NCCL_CONF, "NCCL_GIN_TYPE=2\n");
    let set = [("NCCL_GIN_TYPE", "5"), ("NCCL_SYM_GIN_KERNELS_ENABLE", "0")];
    pass(&checked(Files, &machine, &set), &["ENV-007"]);
}

#[test]
fn variables_that_select_efa_gda_are_missed_only_where_nccl_could_take_it_or_is_asked_for() {
    let machine = sound("no-nccl");
    machine.remove(NCCL_CONF).remove(NCCL);
    pass(&checked(Files, &machine, &[]), &["ENV-007"]);
    for stack in ["nccl", "deepep"] {
        let (mut command, _folder) = command(Files, &machine, &["check", "--json", "--for", stack]);
        let output = output(command.args(support::PATIENT));
        assert_eq!((state(&document(&output), "ENV-007"), support::status(&output)), ("warn", 3), "{stack}");
    }
    let old = sound("old-nccl");
    old.remove(NCCL_CONF).file(NCCL, "NCCL version 2.30.4+cuda13");
    let without_plugin = sound("no-plugin");
    without_plugin.remove(NCCL_CONF).remove(PLUGIN);
    for machine in [old, without_plugin] {
        pass(&checked(Files, &machine, &[]), &["ENV-007"]);
    }
}

#[test]
fn a_plugin_with_gin_of_type_5_and_a_libgdrapi_in_a_plain_file_are_sound() {
    let machine = sound("plain-files");
    if let Some(plugin) = gin_plugin(14, "$ORIGIN") {
        machine.bytes(PLUGIN, plugin);
    }
    machine.remove("/usr/lib/libgdrapi.so.2").file("/usr/lib/libgdrapi.so.2", "");
    pass(&checked(Files, &machine, &[]), &["LIB-007", "LIB-008"]);
}

#[test]
fn nccl_that_is_asked_for_gets_a_verdict_also_where_a_library_is_missing() {
    type Asked = (&'static str, fn(&Machine), &'static str);
    let machines: [Asked; 4] = [
        ("asked-old-nccl", |m| _ = m.file(NCCL, "NCCL version 2.30.4+cuda13"), "LIB-007"),
        ("asked-no-nccl", |m| _ = m.remove(NCCL), "LIB-007"),
        (
            "asked-two-nccl",
            |m| _ = m.file("/usr/lib/libnccl.so.2", "NCCL version 2.32.3").file(NCCL, "NCCL version 2.28.9"),
            "LIB-007",
        ),
        ("asked-no-gdrapi", |m| _ = m.remove("/usr/lib/libgdrapi.so.2"), "LIB-008"),
    ];
    at_once(&machines, |(name, make, code)| {
        let machine = sound(name);
        make(&machine);
        let (mut command, _folder) = command(Files, &machine, &["check", "--json", "--for", "nccl"]);
        let (document, status) = support::ended(command.args(support::PATIENT));
        assert_eq!((state(&document, code), status), ("warn", 3), "{name}");
        assert_eq!(stack(&document, "nccl"), ("no".to_owned(), (*code).into()), "{name}");
    });
}

#[test]
fn a_stack_is_stopped_by_what_it_requires_also_where_nothing_was_loaded() {
    let stops = |document: &Value, code: &str| check(document, code)["stops"].clone();
    let machine = sound("old-driver");
    machine.file("/sys/module/efa/version", "3.2.9g");
    let document = checked(Files, &machine, &[]);
    assert_eq!(stops(&document, "DEV-002"), serde_json::json!(["nccl", "deepep"]));
    assert_eq!(stack(&document, "nccl"), ("no".to_owned(), "DEV-002".into()));
    let machine = sound("no-libefa");
    machine.remove(LIBEFA);
    let document = checked(Files, &machine, &[]);
    assert_eq!(stops(&document, "LIB-005"), serde_json::json!(["gda", "nccl", "fi-xpu", "deepep"]));
    assert_eq!(stack(&document, "gda"), ("no".to_owned(), "LIB-005".into()));
}

#[test]
fn a_node_is_not_judged_by_the_environment_of_jobs() {
    let machine = sound("npd");
    machine.remove(NCCL_CONF);
    let (mut command, _folder) = command(Files, &machine, &["check", "--npd"]);
    let output = output(command.args(support::PATIENT));
    assert_eq!(support::status(&output), 0, "{output:?}");
}

#[test]
fn below_a_root_gpus_are_not_looked_at_and_on_the_software_adapter_a_limit_is_said() {
    let report = |stack, machine: &Machine| {
        let (mut command, _folder) = command(stack, machine, &["check"]);
        String::from_utf8(output(command.args(support::PATIENT)).stdout).expect("UTF-8")
    };
    let text = report(Files, &sound("not-looked-at"));
    assert!(text.starts_with("Verdict: GPUs not looked at  all 8 adapters: run gda-probe in the"), "{text}");
    let machine = sound("limited");
    machine.memlock("65536").capabilities("00000000a80425fb");
    let text = report(Stack::Soft, &machine);
    assert!(text.contains("skip  on an EFA adapter, a limit of 65536 bytes stops jobs: raise"), "{text}");
}

#[test]
fn the_readme_shows_a_report_of_this_version() {
    let shown =
        include_str!("../../README.md").split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let machine = sound("readme");
    machine.nvidia("");
    let (mut command, _folder) = command(FilesAndGpu, &machine, &["check"]);
    let report = String::from_utf8(output(command.args(support::PATIENT)).stdout).expect("UTF-8");
    assert!(report.contains(shown.expect("a block of text")), "{report}");
}

/// The verdict for one stack: runs, and the code that stops it.
fn stack(document: &Value, name: &str) -> (String, Value) {
    let stacks = document["stacks"].as_array().expect("verdicts for stacks");
    let found = stacks.iter().find(|stack| stack["stack"] == name).expect("the stack");
    (found["runs"].as_str().expect("a word").to_owned(), found["stopped_by"].clone())
}

#[test]
fn a_missing_node_stops_every_stack_and_dev_005_is_the_reason() {
    let machine = Machine::new("stacks");
    machine.adapter(1);
    std::fs::remove_file(machine.path().join("dev/infiniband/uverbs1")).expect("the node");
    let document = checked(Files, &machine, &[]);
    for name in ["gda", "nccl", "fi-xpu", "nvshmem", "deepep"] {
        assert_eq!(stack(&document, name), ("no".to_owned(), "DEV-005".into()), "{name}");
    }
}

#[test]
fn for_narrows_checks_and_exit_status_to_one_stack() {
    let run = |stack: &str, set: &[(&str, &str)]| {
        let mut command = support::soft(&["--gpu", "none", "--for", stack]);
        let output = output(command.envs(set.iter().copied()));
        (document(&output), support::status(&output))
    };
    let no_counters = [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_BREAK", "no-counters")];
    let (nccl, status) = run("nccl", &no_counters);
    assert_eq!((stack(&nccl, "nccl"), status), (("no".to_owned(), "GDA-010".into()), 3));
    let (gda, status) = run("gda", &no_counters);
    assert_eq!((stack(&gda, "gda"), status), (("unknown".to_owned(), "CUDA-000".into()), 3), "no verdict");
    let codes = |document: &Value| document["checks"].as_array().expect("checks").len();
    assert!(gda["checks"].as_array().expect("checks").iter().all(|check| check["code"] != "GDA-010"));
    assert!(codes(&gda) < codes(&nccl) + 10 && gda["stacks"].as_array().expect("one").len() == 1);
}

#[test]
fn other_commands_refuse_for() {
    assert_eq!(support::status(&support::run(&["put", "--for", "nccl"])), 2);
}

/// The rows of the tables of reported problems: the codes of their checks, and the test that provokes the problem.
fn rows() -> Vec<(Vec<&'static str>, &'static str)> {
    let mut rows = Vec::new();
    for line in include_str!("../docs/troubleshooting.md").lines() {
        let Some((row, test)) = line.strip_suffix(" --> |").and_then(|row| row.split_once("<!-- ")) else {
            continue;
        };
        let checks = row.split(" | ").nth(2).expect("the column of checks");
        let code = |link: &'static str| link[1..].split(']').next().expect("a code");
        rows.push((checks.split(", ").map(code).collect(), test));
    }
    rows
}

#[test]
fn every_reported_problem_has_a_code_and_a_test_that_provokes_it() {
    let sources = [("pains", include_str!("pains.rs")), ("pains_soft", include_str!("pains_soft.rs"))];
    let document = checked(Files, &sound("table"), &[]);
    let rows = rows();
    assert!(rows.len() >= 20, "{}", rows.len());
    for (codes, test) in rows {
        for code in &codes {
            check(&document, code);
        }
        let (file, name) = test.split_once("::").expect("a file and a test");
        let (_, source) = sources.iter().find(|(other, _)| *other == file).expect("a file of tests");
        // A row of a table of broken machines, or a test.
        let row = source.split(&format!("    \"{name}\" (")).nth(1).and_then(|rest| rest.split(';').next());
        let body =
            source.split(&format!("\nfn {name}() {{\n")).nth(1).and_then(|rest| rest.split("\n}\n").next());
        let body = body.filter(|body| body.contains("alone("));
        let provoked = row.or(body).unwrap_or_else(|| panic!("{file} has no problem {name} that is alone"));
        let named = |code: &&&str| provoked.contains(&format!("\"{code}\""));
        assert!(codes.iter().all(|code| named(&code)), "{test} does not name all of {codes:?}");
    }
}
