//! Checks of hardware and environment on simulated machines: /sys, /proc and /dev below a root directory.

mod support;

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use efa_gda_test_support::skip;
use support::{Machine, check, document, output, probe, says, state};

#[test]
fn a_machine_without_an_adapter_fails_dev_001_and_skips_dependent_checks() {
    let document = Machine::new("empty").check(&[]);
    assert_eq!(state(&document, "DEV-001"), "fail");
    assert_eq!(check(&document, "DEV-006")["blocked_by"], "DEV-001");
}

#[test]
fn every_failure_has_a_fix_and_a_role() {
    let document = Machine::new("who").check(&[]);
    for check in document["checks"].as_array().unwrap() {
        if check["state"] == "fail" {
            assert!(check["who"].is_string() && check["fix"].as_str() != Some(""), "{check}");
        }
    }
}

#[test]
fn a_report_has_at_least_forty_checks_of_all_categories() {
    let document = Machine::new("count").check(&[]);
    let mut codes: Vec<&str> =
        document["checks"].as_array().unwrap().iter().map(|check| check["code"].as_str().unwrap()).collect();
    codes.dedup();
    assert!(codes.len() >= 40, "{}", codes.len());
    for category in ["ENV", "DEV", "LIB", "CUDA", "FAB", "GDA", "QUE", "PUT"] {
        assert!(codes.iter().any(|code| code.starts_with(category)), "{category}");
    }
}

#[test]
fn code_and_subject_together_are_unique() {
    let machine = Machine::new("unique");
    machine.adapter(1).adapter(2);
    let document = machine.check(&[]);
    let mut names: Vec<String> = document["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| format!("{} {}", check["code"], check["subject"]))
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn a_working_adapter_passes_every_dev_check() {
    let machine = Machine::new("whole");
    machine.adapter(1);
    let document = machine.check(&[]);
    for code in ["DEV-001", "DEV-002", "DEV-003", "DEV-004", "DEV-005", "DEV-006", "DEV-007"] {
        assert_eq!(state(&document, code), "pass", "{code}");
    }
    assert_eq!(check(&document, "DEV-005")["subject"], "rdmap1s0");
}

#[test]
fn gpu_none_gives_one_verdict_for_each_adapter() {
    let machine = Machine::new("verdict");
    machine.adapter(1).adapter(2);
    let document = machine.check(&["--gpu", "none"]);
    let verdicts = document["verdict"].as_array().unwrap();
    let pairs: Vec<_> = verdicts.iter().map(|one| (&one["gpu"], &one["adapter"], &one["result"])).collect();
    assert_eq!(pairs.len(), 2);
    assert!(pairs.iter().all(|(gpu, _, result)| *gpu == "none" && *result == "none"), "{pairs:?}");
}

#[test]
fn a_missing_device_is_named_with_the_adapters_found() {
    let machine = Machine::new("device");
    machine.adapter(1);
    let document = machine.check(&["--device", "rdmap9s0"]);
    says(&document, "DEV-001", "observed", &["rdmap9s0", "rdmap1s0"]);
    says(&document, "DEV-001", "fix", &["--device"]);
    assert_eq!(check(&document, "DEV-001")["who"], "code");
}

#[test]
fn a_device_can_be_named_by_its_libfabric_domain() {
    let machine = Machine::new("domain");
    machine.adapter(1).adapter(2);
    let document = machine.check(&["--device", "rdmap2s0-rdm"]);
    assert_eq!(check(&document, "DEV-003")["subject"], "rdmap2s0");
}

#[test]
fn an_adapter_without_a_driver_fails_dev_003() {
    let machine = Machine::new("unbound");
    let pci = "/sys/bus/pci/devices/0000:05:00.0";
    machine.file(&format!("{pci}/vendor"), "0x1d0f").file(&format!("{pci}/device"), "0xefa1");
    let document = machine.check(&[]);
    assert_eq!((state(&document, "DEV-003"), state(&document, "DEV-005")), ("fail", "skip"));
    says(
        &document,
        "DEV-003",
        "fix",
        &["modprobe -a efa ib_uverbs", "0000:05:00.0 > /sys/bus/pci/drivers/efa/bind"],
    );
}

#[test]
fn a_module_that_other_adapters_use_is_not_advised_to_be_loaded() {
    let without_uverbs = |name: &str| {
        let machine = Machine::new(name);
        machine.adapter(1).adapter(2);
        machine.remove("/sys/bus/pci/devices/0000:01:00.0/infiniband_verbs");
        machine
    };
    let document = without_uverbs("uverbs-is-loaded").check(&[]);
    says(&document, "DEV-005", "observed", &["although ib_uverbs is loaded"]);
    let (machine, pci) = (without_uverbs("vfio"), "/sys/bus/pci/devices/0000:00:00.0");
    machine.file(&format!("{pci}/vendor"), "0x1d0f").file(&format!("{pci}/device"), "0xefa1");
    machine.link(&format!("{pci}/driver"), "/sys/bus/pci/drivers/vfio-pci");
    let document = machine.check(&[]);
    says(&document, "DEV-003", "fix", &["modprobe efa)", "/sys/bus/pci/drivers/vfio-pci/unbind"]);
    let text = document.to_string();
    assert!(!text.contains("modprobe -a efa ib_uverbs") && !text.contains("modprobe ib_uverbs"), "{text}");
}

#[test]
fn another_device_of_the_same_vendor_is_not_an_adapter() {
    let machine = Machine::new("ena");
    let pci = "/sys/bus/pci/devices/0000:05:00.0";
    machine.file(&format!("{pci}/vendor"), "0x1d0f").file(&format!("{pci}/device"), "0xec20");
    assert_eq!(state(&machine.check(&[]), "DEV-001"), "fail");
}

#[test]
fn adapters_of_every_known_device_id_are_found() {
    for device in ["0xefa0", "0xefa1", "0xefa2", "0xefa3", "0xefa4"] {
        let machine = Machine::new(&format!("id-{device}"));
        machine.adapter(1).file("/sys/bus/pci/devices/0000:01:00.0/device", device);
        let document = machine.check(&[]);
        says(&document, "DEV-001", "observed", &[&format!("1d0f:{}", &device[2..])]);
    }
}

#[test]
fn an_in_tree_kernel_driver_is_unknown() {
    let machine = Machine::new("in-tree");
    machine.adapter(1);
    std::fs::remove_file(machine.path().join("sys/module/efa/version")).unwrap();
    assert_eq!(state(&machine.check(&[]), "DEV-002"), "unknown");
}

#[test]
fn a_port_that_is_down_fails_dev_004() {
    let machine = Machine::new("down");
    machine.adapter(1).file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n");
    assert_eq!(state(&machine.check(&[]), "DEV-004"), "fail");
}

#[test]
fn a_node_that_does_not_open_fails_dev_006() {
    let machine = Machine::new("closed");
    machine.adapter(1);
    let node = machine.path().join("dev/infiniband/uverbs1");
    // A directory exists, and even root cannot open it for writing.
    std::fs::remove_file(&node).unwrap();
    std::fs::create_dir(&node).unwrap();
    std::fs::set_permissions(&node, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(state(&machine.check(&[]), "DEV-006"), "fail");
}

#[test]
fn memlock_is_checked_by_limit_and_capability() {
    let limits = |bytes: &str| {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max locked memory         {bytes}  {bytes}  bytes\n"
        )
    };
    for (bytes, capability, expected) in [
        ("unlimited", "0000000000000000", "pass"),
        ("65536", "0000000000000000", "fail"),
        ("8388608", "0000000000000000", "warn"),
        ("65536", "0000000000004000", "pass"),
        ("68719476736", "0000000000000000", "pass"),
    ] {
        let machine = Machine::new(&format!("memlock-{bytes}-{capability}"));
        machine
            .file("/proc/self/limits", &limits(bytes))
            .file("/proc/self/status", &format!("Name:\tx\nCapEff:\t{capability}\n"));
        assert_eq!(state(&machine.check(&[]), "ENV-003"), expected, "{bytes} {capability}");
    }
}

#[test]
fn the_instance_type_is_compared_with_the_types_with_gda() {
    for (product, vendor, expected) in [
        ("p5en.48xlarge", "Amazon EC2", "pass"),
        ("p6-b200.48xlarge", "Amazon EC2", "pass"),
        ("p5.48xlarge", "Amazon EC2", "warn"),
        ("PowerEdge", "Dell Inc.", "unknown"),
    ] {
        let machine = Machine::new(&format!("dmi-{product}"));
        machine.file("/sys/class/dmi/id/sys_vendor", vendor).file("/sys/class/dmi/id/product_name", product);
        assert_eq!(state(&machine.check(&[]), "ENV-002"), expected, "{product}");
    }
}

#[test]
fn peer_mapping_must_be_enabled() {
    for (words, expected) in [
        ("PeerMappingOverride=1", "pass"),
        ("RMNvLinkDisable=1;PeerMappingOverride=1;", "pass"),
        ("PeerMappingOverride=0", "fail"),
        ("NotPeerMappingOverride=1", "fail"),
        ("", "fail"),
    ] {
        let machine = Machine::new(&format!("peer-{words}"));
        machine.nvidia(words);
        assert_eq!(state(&machine.check(&[]), "CUDA-002"), expected, "{words}");
    }
}

#[test]
fn cuda_001_reports_the_driver_version() {
    let machine = Machine::new("nvidia");
    machine.nvidia("");
    assert_eq!(check(&machine.check(&[]), "CUDA-001")["observed"], "580.65.06");
}

#[test]
fn gpu_none_skips_the_checks_of_gpus() {
    let machine = Machine::new("no-gpu");
    machine.nvidia("");
    let document = machine.check(&["--gpu", "none"]);
    assert_eq!(check(&document, "CUDA-002")["blocked_by"], "CUDA-000");
    assert_eq!(check(&document, "CUDA-008")["blocked_by"], "CUDA-000");
}

#[test]
fn soft_skips_the_checks_of_hardware() {
    let document = Machine::new("soft").check(&["--soft"]);
    for code in ["ENV-002", "ENV-003", "DEV-001", "DEV-007", "LIB-005", "CUDA-002"] {
        assert_eq!(
            (state(&document, code), &check(&document, code)["blocked_by"]),
            ("skip", &"ENV-000".into()),
            "{code}"
        );
    }
    assert_eq!(check(&document, "DEV-001")["why"], "software adapter");
}

#[test]
fn a_variable_that_aborts_libfabric_blocks_its_loading() {
    let machine = Machine::new("aborts");
    let mut command = probe(&["--json", "--root", machine.arg()]);
    command.env("FI_EFA_MTU_SIZE", "4096").env("LIBFABRIC_PATH", "libfabric.so.1");
    let document = document(&output(&mut command));
    assert_eq!(state(&document, "ENV-005"), "fail");
    says(&document, "ENV-005", "observed", &["FI_EFA_MTU_SIZE=4096"]);
    for code in ["LIB-001", "FAB-001", "PUT-002"] {
        assert_eq!(check(&document, code)["blocked_by"], "ENV-005", "{code}");
    }
}

#[test]
fn a_root_is_judged_by_its_files_and_by_no_library_of_this_container() {
    let machine = support::sound::sound("root");
    let on = |set: &[(&str, &str)]| {
        let mut command = probe(&["--json", "--root", machine.arg(), "--gpu", "none"]);
        document(&output(command.args(support::PATIENT).envs(set.iter().copied())))
    };
    let files = on(&[]);
    says(&files, "LIB-000", "observed", &["none: --root"]);
    for code in ["LIB-001", "FAB-001", "PUT-002"] {
        assert_eq!(check(&files, code)["blocked_by"], "LIB-000", "{code}");
    }
    assert!(
        files["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| !one["code"].as_str().unwrap().starts_with("VRB"))
    );
    says(&files, "LIB-004", "observed", &["libfabric 2.6.0"]);
    let next = files["verdict"][0]["next"].as_str().unwrap();
    assert!(next.contains("in the container of the job"), "{next}");
    let named = on(&[("LIBFABRIC_PATH", "/nonexistent"), ("RDMA_CORE_LIBDIR", "/nonexistent")]);
    assert_eq!((state(&named, "LIB-001"), state(&named, "VRB-001")), ("fail", "fail"));
    let own = document(&output(
        probe(&["--json", "--gpu", "none"]).args(support::PATIENT).env("FI_PROVIDER", "tcp"),
    ));
    says(&own, "LIB-000", "observed", &["those of this machine"]);
    assert_ne!(check(&own, "LIB-001")["blocked_by"], "LIB-000");
}

#[test]
fn fork_support_and_huge_pages_are_judged_as_the_efa_provider_judges_them() {
    const FORK: &str = "RDMAV_FORK_SAFE";
    const OF_PROVIDER: &str = "FI_EFA_FORK_SAFE";
    const HUGE: &str = "FI_EFA_USE_HUGE_PAGE";
    const HUGE_SAFE: &str = "RDMAV_HUGEPAGES_SAFE";
    let judged = |kernel: &str, pages: u32, args: &[&str], set: &[(&str, &str)]| {
        let machine = Machine::new(&format!("fork-{kernel}-{pages}"));
        machine.file("/proc/sys/kernel/osrelease", kernel);
        machine.file("/proc/meminfo", &format!("HugePages_Total:   {pages}\n"));
        let mut command = probe(&["--json", "--root", machine.arg(), "--gpu", "none"]);
        document(&output(command.args(args).envs(set.iter().copied())))
    };
    for (pages, set, expected, fix) in [
        (64, &[][..], "pass", ""),
        (0, &[(FORK, "1")], "pass", ""),
        (64, &[(HUGE, "1"), (HUGE_SAFE, "1")], "pass", ""),
        (64, &[(OF_PROVIDER, "0")], "pass", ""),
        // libfabric ignores a word that is no boolean.
        (64, &[(OF_PROVIDER, "2")], "pass", ""),
        (64, &[(OF_PROVIDER, "On")], "warn", "unset FI_EFA_FORK_SAFE; otherwise register no memory in huge"),
        // rdma-core and the provider read no value of these two.
        (64, &[("IBV_FORK_SAFE", "0")], "warn", "unset IBV_FORK_SAFE"),
        (0, &[(FORK, ""), (HUGE, "1")], "fail", "unset FI_EFA_USE_HUGE_PAGE; or, if no program"),
        (0, &[(FORK, "1"), (HUGE, "1"), (HUGE_SAFE, "1")], "fail", "unset FI_EFA_USE_HUGE_PAGE RDMAV_HUGE"),
        (
            64,
            &[(OF_PROVIDER, "1"), (HUGE_SAFE, "0")],
            "fail",
            "unset RDMAV_HUGEPAGES_SAFE; or, if no program",
        ),
    ] {
        let document = judged("5.12.19-generic", pages, &[], set);
        assert_eq!(state(&document, "ENV-004"), expected, "{set:?}");
        if expected != "pass" {
            says(&document, "ENV-004", "fix", &[fix]);
        }
    }
    let all = [(FORK, "1"), (HUGE, "1"), (HUGE_SAFE, "1")];
    assert_eq!(state(&judged("5.13.0", 64, &[], &all), "ENV-004"), "pass");
    assert_eq!(state(&judged("5.10.0", 0, &["--via", "verbs"], &all), "ENV-004"), "warn");
}

#[test]
fn each_restricting_variable_is_a_separate_warning() {
    let machine = Machine::new("restricts");
    let mut command = probe(&["--json", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent").env("FI_PROVIDER", "^efa").env("FI_EFA_IFACE", "rdmap1s0");
    let document = document(&output(&mut command));
    let subjects: Vec<_> = document["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["code"] == "ENV-006")
        .map(|check| check["subject"].as_str().unwrap())
        .collect();
    assert_eq!(subjects, ["FI_PROVIDER", "FI_EFA_IFACE"]);
}

#[test]
fn two_links_to_one_libfabric_count_once() {
    let machine = Machine::new("one-copy");
    machine
        .file("/usr/lib/libfabric.so.1.20.0", "no library")
        .link("/usr/lib/libfabric.so.1", "libfabric.so.1.20.0")
        .link("/lib", "usr/lib");
    assert_eq!(state(&machine.check(&[]), "LIB-004"), "pass");
}

#[test]
fn directories_of_ld_so_conf_are_searched() {
    let machine = Machine::new("ld-conf");
    machine
        .file("/etc/ld.so.conf", "# comment\ninclude /etc/ld.so.conf.d/*.conf\n")
        .file("/etc/ld.so.conf.d/efa.conf", "/opt/mine/lib\n")
        .file("/opt/mine/lib/libfabric.so.1", "no library");
    let document = machine.check(&[]);
    says(&document, "LIB-004", "observed", &["/opt/mine/lib/libfabric.so.1"]);
}

#[test]
fn the_release_of_libfabric_is_read_from_its_file() {
    let machine = Machine::new("release");
    machine.file("/usr/lib/libfabric.so.1", "x\0FABRIC_1.6\x002.1.0\0y");
    let document = machine.check(&[]);
    says(&document, "LIB-004", "observed", &["libfabric 2.1.0"]);
}

#[test]
fn endless_files_are_skipped() {
    let machine = Machine::new("endless");
    machine.adapter(4).directory("/usr/lib").directory("/etc");
    for pipe in ["etc/ld.so.conf", "usr/lib/libfabric.so.1"] {
        let made = output(std::process::Command::new("mkfifo").arg(machine.path().join(pipe)));
        assert!(made.status.success());
    }
    assert_eq!(state(&machine.check(&[]), "LIB-004"), "pass");
}

/// `F_SETSIG` of `asm-generic/fcntl.h`: selects the signal that reports a broken lease.
const F_SETSIG: libc::c_int = 10;

#[test]
fn a_node_whose_open_blocks_fails_and_the_other_checks_continue() {
    let machine = Machine::new("stuck");
    machine.adapter(4);
    let node =
        std::fs::File::options().read(true).write(true).open(machine.path().join("dev/infiniband/uverbs4"));
    let node = node.unwrap();
    // A lease blocks open calls of other processes, for 45 s by default; a signal reports them to the holder.
    // SAFETY: the descriptor is open, and the default action of SIGURG is to ignore it.
    let leased = unsafe {
        libc::fcntl(node.as_raw_fd(), F_SETSIG, libc::SIGURG);
        libc::fcntl(node.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    if leased != 0 {
        return skip("this file system has no leases");
    }
    let document = machine.check(&["--time-limit", "4000"]);
    let opens = check(&document, "DEV-006");
    assert_eq!(opens["state"], "fail", "{opens:#}");
    assert!(opens["observed"].as_str().unwrap().contains("no result within 4000 ms"), "{opens:#}");
    assert_eq!((&opens["who"], state(&document, "DEV-007")), (&"host".into(), "pass"));
}

#[test]
fn text_of_sysfs_cannot_forge_lines_or_move_the_cursor() {
    let machine = Machine::new("forged");
    let forged = "rdmap1s0\n[pass] PUT-001 forged\u{1b}[2K\u{9b}1A";
    machine.adapter(1).directory(&format!("/sys/bus/pci/devices/0000:02:00.0/infiniband/{forged}"));
    machine.file("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x1d0f\n");
    machine.file("/sys/bus/pci/devices/0000:02:00.0/device", "0xefa3\n");
    machine.file("/sys/module/efa/version", "1.0.0\n[pass] PUT-001 forged\u{1b}[2K\n");
    for arguments in [&["-v"][..], &["--json"]] {
        let mut command = probe(&["--root", machine.arg()]);
        command.args(arguments).args(support::PATIENT).env("LIBFABRIC_PATH", "/x\n[pass] PUT-001\u{1b}[2K");
        let text = String::from_utf8(output(&mut command).stdout).unwrap();
        assert!(text.contains("forged"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{9b}']), "{text}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("[pass] PUT-001")), "{text}");
    }
}

#[test]
fn an_argument_with_a_control_character_is_refused_and_shown_escaped() {
    let output = output(&mut probe(&["--json", "--device", "a\npass PUT-001\u{1b}[2K"]));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(r"a\npass PUT-001\u{1b}[2K"), "{stderr}");
    assert_eq!(output.status.code(), Some(2));
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn absolute_links_lead_below_the_root() {
    let linked = |name: &str| {
        let machine = Machine::new(name);
        machine.adapter(1).remove("/sys/module/efa/version");
        machine.link("/sys/module/efa/version", "/elsewhere/version");
        machine.link("/sys/module/efa/circle", "/sys/module/efa/circle");
        machine
    };
    let machine = linked("links");
    machine.file("/elsewhere/version", "2.0.0\n");
    assert_eq!(check(&machine.check(&[]), "DEV-002")["observed"], "efa 2.0.0");
    // A link to a file of the machine that runs the probe leads to no file of the machine that is examined.
    let machine = linked("links-to-this-machine");
    machine.link("/elsewhere/version", env!("CARGO_MANIFEST_PATH"));
    assert_eq!(state(&machine.check(&[]), "DEV-002"), "unknown");
}

#[test]
fn includes_of_ld_so_conf_that_include_each_other_are_read_once() {
    let machine = Machine::new("ld-conf-circle");
    machine
        .file("/opt/mine/lib/libfabric.so.1", "")
        .file("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    let include = "include /etc/ld.so.conf.d/*.conf\n".repeat(64);
    for number in 0..16 {
        machine.file(&format!("/etc/ld.so.conf.d/{number}.conf"), &format!("{include}/opt/mine/lib\n"));
    }
    let document = machine.check(&[]);
    says(&document, "LIB-004", "observed", &["/opt/mine/lib/libfabric.so.1"]);
}

/// The CPU time of a check of a machine with so many adapters, in microseconds.
fn cpu_time(adapters: u32) -> i64 {
    let machine = Machine::new(&format!("many-{adapters}"));
    (0..adapters).for_each(|number| {
        machine.adapter(number);
    });
    let mut command = probe(&["--json", "--gpu", "none", "--root", machine.arg()]);
    command.env("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1").stdout(Stdio::null());
    let child = command.spawn().expect("the probe starts").id() as i32;
    // SAFETY: all zeros is a valid value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are null, or to a value of this frame. The child is not waited for elsewhere.
    assert_eq!(unsafe { libc::wait4(child, std::ptr::null_mut(), 0, &raw mut used) }, child);
    let micros = |time: libc::timeval| 1_000_000 * time.tv_sec + time.tv_usec;
    micros(used.ru_utime) + micros(used.ru_stime)
}

/// Every check that reads all adapters for each of them would take ten thousand times as long. About 20 times is usual,
/// because the start of the probe counts as well.
#[test]
fn a_check_of_a_hundred_times_as_many_adapters_takes_about_a_hundred_times_as_long() {
    let (few, many) = (cpu_time(8), cpu_time(800));
    assert!(many < 400 * few, "8 adapters took {few} µs of CPU time, and 800 took {many}");
}
