//! The problems that users reported, each provoked on a made-up machine that is sound otherwise: the code that
//! `docs/troubleshooting.md` names must report it, with the fix that helped, and alone. `pains_soft.rs` has those that
//! need a software adapter.

mod support;

use serde_json::Value;
use support::sound::{LIBEFA, NCCL, PLUGIN, Stack, checked, libefa, pass, reported_alone, sound};
use support::{Machine, check, document, output, says, state};

use Stack::{Adapters, Files, FilesAndGpu, Libfabric, Whole};

#[test]
fn a_sound_machine_passes_every_check_of_releases_and_devices() {
    let document = checked(Files, &sound("sound"), &[]);
    pass(
        &document,
        &["ENV-002", "ENV-003", "ENV-007", "ENV-008", "DEV-001", "DEV-002", "DEV-008", "LIB-004"],
    );
    pass(&document, &["LIB-007", "LIB-008"]);
}

#[test]
fn an_rdma_core_before_the_queries_is_the_images() {
    let Some(old) = libefa(3) else { return };
    let machine = sound("old-rdma-core");
    machine.bytes(LIBEFA, old);
    reported_alone((Files, &machine, &[]), &["LIB-005"], "install rdma-core 59", "image");
    let machine = sound("no-rdma-core");
    machine.remove(LIBEFA);
    reported_alone((Files, &machine, &[]), &["LIB-005"], "install rdma-core 59", "image");
}

#[test]
fn a_kernel_driver_without_counters_or_external_queues_is_the_hosts() {
    for (version, lacks) in [("3.2.9g", &["counters"][..]), ("2.10.0g", &["counters", "external memory"])] {
        let machine = sound(&format!("old-driver-{version}"));
        machine.file("/sys/module/efa/version", version);
        reported_alone((Files, &machine, &[]), &["DEV-002"], "EFA installer 1.50.0", "host");
        let document = checked(Files, &machine, &[]);
        let why = check(&document, "DEV-002")["why"].as_str().expect("a reason");
        assert!(lacks.iter().all(|lack| why.contains(lack)), "{why}");
    }
}

#[test]
fn counters_that_the_kernel_driver_lacks_are_the_hosts() {
    let machine = sound("no-kernel-counters");
    machine.file("/sys/module/efa/version", "3.2.9g");
    let case = (Whole, &machine, &[("SOFTEFA_BREAK", "no-counters")][..]);
    reported_alone(case, &["GDA-010", "DEV-002"], "update the efa kernel driver 3.2.9g", "host");
}

#[test]
fn a_driver_without_peer_mapping_is_the_hosts() {
    let machine = sound("no-peer-mapping");
    machine.nvidia("");
    reported_alone((FilesAndGpu, &machine, &[]), &["CUDA-002"], "PeerMappingOverride=1", "host");
}

#[test]
fn mappings_that_a_missing_peer_mapping_forbids_are_no_problems_beside_it() {
    let machine = sound("no-peer-mapping-refused");
    machine.nvidia("");
    // The first places that are mapped: the send queue and its doorbell.
    let set = [("SOFTEFA_ADAPTERS", "1"), ("PRETEND_GPU_REFUSES", "1,2")];
    reported_alone((Whole, &machine, &set), &["CUDA-002"], "PeerMappingOverride=1", "host");
    let document = checked(Whole, &machine, &set);
    let mapping = check(&document, "CUDA-008");
    assert_eq!((&mapping["state"], &mapping["blocked_by"]), (&"skip".into(), &"CUDA-002".into()));
    assert!(mapping["why"].as_str().is_some_and(|why| why.contains("cuMemHostRegister")), "{mapping:#}");
    assert_eq!(document["verdict"][0]["result"], "host-rung", "{document:#}");
    assert!(document["verdict"][0]["next"].as_str().is_some_and(|next| next.contains("for gda: CUDA-002")));
    // A machine whose driver maps BARs has the refusal as a problem of its own.
    let document = checked(Whole, &sound("refused"), &set);
    assert_eq!(state(&document, "CUDA-008"), "fail", "{document:#}");
}

#[test]
fn device_nodes_of_some_adapters_are_the_pods() {
    let machine = sound("partly");
    machine.remove("/dev/infiniband/uverbs2");
    let (codes, fix) = (["DEV-005", "DEV-007"], "vpc.amazonaws.com/efa");
    reported_alone((Files, &machine, &[]), &codes, fix, "pod");
    // Adapters of which libfabric makes use are checked although another has no node.
    reported_alone((Adapters, &machine, &[]), &codes, fix, "pod");
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
fn two_releases_of_libfabric_are_the_images() {
    let machine = sound("copies");
    machine.file("/opt/amazon/efa/lib/libfabric.so.1", "x\0FABRIC_1.8\x002.3.1\0y");
    reported_alone((Files, &machine, &[]), &["LIB-004"], "remove all but one", "image");
}

#[test]
fn a_low_limit_of_locked_memory_is_the_pods() {
    for limit in ["65536", "8388608"] {
        let machine = sound(&format!("memlock-{limit}"));
        machine.memlock(limit).capabilities("00000000a80425fb");
        reported_alone((Adapters, &machine, &[]), &["ENV-003"], "RLIMIT_MEMLOCK", "pod");
    }
    let machine = sound("memlock-platforms");
    machine.memlock("65536").capabilities("00000000a80425fb");
    let ways = [
        "--ulimit memlock=-1",
        "Kubernetes: capability IPC_LOCK",
        "systemd: ",
        "Slurm: ",
        "Shell: ulimit -l",
        "effective",
    ];
    says(&checked(Files, &machine, &[]), "ENV-003", "fix", &ways);
}

#[test]
fn a_type_without_gpu_direct_async_is_the_hosts() {
    let machine = sound("g6e");
    machine.file("/sys/class/dmi/id/product_name", "g6e.48xlarge");
    reported_alone((Files, &machine, &[]), &["ENV-002"], "run on p5en", "host");
}

#[test]
fn a_foreign_verbs_device_that_does_not_open_is_the_cause_of_no_adapter() {
    let machine = sound("foreign");
    machine.file("/sys/class/infiniband_verbs/uverbs9/ibdev", "mlx5_0\n");
    reported_alone((Libfabric, &machine, &[]), &["FAB-001"], "device plugin 0.5.10", "pod");
    let document = checked(Libfabric, &machine, &[]);
    says(&document, "FAB-001", "observed", &["mlx5_0 (/dev/infiniband/uverbs9"]);
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
fn an_adapter_of_the_newest_id_needs_the_newest_rdma_core() {
    let machine = sound("efa4");
    machine.file("/sys/bus/pci/devices/0000:01:00.0/device", "0xefa4");
    reported_alone((Libfabric, &machine, &[]), &["FAB-001"], "commit 8b1a1e9c2", "image");
}

#[test]
fn a_plugin_older_than_nccl_is_reported_with_the_release_that_fits() {
    for (of_nccl, of_plugin, needed) in
        [("2.31.2", "1.20.0", "aws-ofi-nccl 1.21"), ("2.32.3", "1.21.1", "aws-ofi-nccl 1.22")]
    {
        let machine = sound(&format!("plugin-{of_plugin}"));
        machine.file(NCCL, &format!("NCCL version {of_nccl}+cuda13.0"));
        machine.file(PLUGIN, &format!("NET/OFI Initializing aws-ofi-nccl {of_plugin}"));
        reported_alone((Files, &machine, &[]), &["LIB-007"], needed, "image");
    }
}

#[test]
fn nccl_without_the_plugin_is_reported() {
    let machine = sound("no-plugin");
    machine.remove(PLUGIN);
    reported_alone((Files, &machine, &[]), &["LIB-007"], "LD_LIBRARY_PATH", "image");
}

#[test]
fn a_running_process_with_an_older_plugin_is_reported_although_the_disk_is_right() {
    let old = "/opt/old/libnccl-net-ofi.so";
    let running = |name: &str| {
        let machine = sound(name);
        machine.file(old, "aws-ofi-nccl 1.20.1\0").process(41, &[NCCL, PLUGIN]);
        machine
    };
    pass(&checked(Files, &running("running"), &[]), &["LIB-007"]);
    let machine = running("running-old");
    // A file of the process's own root is read there.
    machine.file(&format!("/proc/42/root{old}"), "aws-ofi-nccl 1.21.1\0");
    machine.process(42, &[NCCL, old]).process(43, &["/usr/lib/libc.so.6"]);
    reported_alone((Files, &machine, &[]), &["LIB-007"], "start them again", "image");
    let document = checked(Files, &machine, &[]);
    let observed = check(&document, "LIB-007")["observed"].as_str().expect("a text");
    assert!(observed.contains("loaded in 1 process: ") && observed.contains("(1.21.1)"), "{observed}");
    assert!(!observed.contains("42") && !observed.contains("libc"), "nothing else of a process: {observed}");
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
fn a_gdrdrv_older_than_libgdrapi_is_the_hosts() {
    let machine = sound("gdrdrv");
    machine.file("/sys/module/gdrdrv/version", "2.4\n");
    reported_alone((Files, &machine, &[]), &["LIB-008"], "upgrade the module gdrdrv to 2.5", "host");
}

#[test]
fn a_libgdrapi_before_2_5_is_the_images() {
    let machine = sound("gdrapi");
    machine.file("/usr/lib/libgdrapi.so.2.4", "").remove("/usr/lib/libgdrapi.so.2");
    machine.link("/usr/lib/libgdrapi.so.2", "libgdrapi.so.2.4");
    reported_alone((Files, &machine, &[]), &["LIB-008"], "install libgdrapi of GDRCopy 2.5", "image");
}

#[test]
fn fewer_devices_than_the_type_has_are_reported() {
    let machine = sound("late");
    machine.remove("/sys/bus/pci/devices/0000:08:00.0");
    reported_alone((Files, &machine, &[]), &["DEV-008"], "adapters can appear minutes late", "host");
    let grade = |machine: &Machine| {
        let document = checked(Files, machine, &[]);
        let check = check(&document, "DEV-008");
        [check["state"].as_str(), check["action"].as_str()].map(|text| text.unwrap_or_default().to_owned())
    };
    assert_eq!(grade(&machine), ["warn", "fix-host"]);
    let machine = sound("lost-gpu");
    machine.remove("/sys/bus/pci/devices/0000:18:00.0");
    reported_alone((Files, &machine, &[]), &["DEV-008"], "fallen off the bus", "host");
    assert_eq!(grade(&machine), ["fail", "isolate"]);
}

#[test]
fn each_variable_whose_meaning_moved_is_reported() {
    for (name, value, fix) in [
        ("NCCL_GIN_TYPE", "2", "set it to 5"),
        ("NCCL_GIN_TYPE", "3", "set it to 5"),
        ("NCCL_GIN_TYPE", "4", "set it to 5"),
        ("NCCL_GIN_ENABLE", "0", "unset NCCL_GIN_ENABLE"),
        ("OFI_NCCL_GIN_GDAKI", "1", "NCCL_GIN_TYPE=5"),
        ("NVSHMEM_DISABLE_CUDA_VMM", "1", "unset NVSHMEM_DISABLE_CUDA_VMM"),
        ("NVSHMEM_REMOTE_TRANSPORT", "ibrc", "NVSHMEM_REMOTE_TRANSPORT=libfabric"),
        ("NVSHMEM_IB_ENABLE_IBGDA", "1", "unset NVSHMEM_IB_ENABLE_IBGDA"),
    ] {
        let machine = sound(&format!("{name}-{value}"));
        reported_alone((Files, &machine, &[(name, value)]), &["ENV-007"], fix, "pod");
        let document = checked(Files, &machine, &[(name, value)]);
        says(&document, "ENV-007", "observed", &[&format!("{name}={value}, which should be ")]);
    }
}

#[test]
fn values_that_are_right_today_are_not_reported() {
    let set = [("NCCL_GIN_TYPE", "5"), ("NCCL_GIN_ENABLE", "1"), ("NVSHMEM_REMOTE_TRANSPORT", "libfabric")];
    pass(&checked(Files, &sound("right"), &set), &["ENV-007"]);
}

#[test]
fn a_name_that_libfabric_does_not_read_is_reported() {
    for name in ["FI_EFA_USE_SQ_REQ_ID_64_BIT", "FI_EFA_IFACES", "FI_HMEM_P2P_DISABLED"] {
        // The file that the loader finds states 2.6.0.
        let (machine, fix) = (sound(name), format!("unset {name}"));
        reported_alone((Libfabric, &machine, &[(name, "1")]), &["ENV-008"], &fix, "pod");
        assert_eq!(check(&checked(Libfabric, &machine, &[(name, "1")]), "ENV-008")["subject"], name);
    }
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
    assert_eq!((stack(&gda, "gda"), status), (("unknown".to_owned(), "CUDA-000".into()), 0));
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
        let body = source.split(&format!("\nfn {name}() {{\n")).nth(1);
        let body = body.unwrap_or_else(|| panic!("{file} has no test {name}")).split("\n}\n").next();
        let body = body.expect("a body");
        assert!(body.contains("alone("), "{test} does not require that nothing else is reported");
        let named = |code: &&&str| body.contains(&format!("\"{code}\""));
        assert!(codes.iter().all(|code| named(&code)), "{test} does not name all of {codes:?}");
    }
}
