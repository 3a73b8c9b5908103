//! Checks of hardware and environment on simulated machines: /sys, /proc and /dev below a root directory.

mod support;

use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use efa_gda_test_support::skip;
use support::{Machine, at_once, check, document, output, probe, says, state};

/// A made-up machine without libfabric: its name, what it has, the arguments of the check, a code with its state, and
/// words of that check.
type Case = (&'static str, fn(&Machine), &'static [&'static str], &'static str, &'static [&'static str]);

const PCI: &str = "/sys/bus/pci/devices/0000:05:00.0";
const CONF: &str = "include /etc/ld.so.conf.d/*.conf\n";
const LIBRARY: &str = "/opt/mine/lib/libfabric.so.1";

const MACHINES: &[Case] = &[
    ("empty", |_| {}, &[], "DEV-001 fail", &[]),
    ("whole", |m| _ = m.adapter(1), &[], "DEV-005 pass", &["rdmap1s0"]),
    (
        "one-verdict-for-each-adapter",
        |m| _ = m.adapter(1).adapter(2),
        &["--gpu", "none"],
        "DEV-001 pass",
        &[],
    ),
    (
        "a-missing-device-is-named-with-the-adapters-found",
        |m| _ = m.adapter(1),
        &["--device", "rdmap9s0"],
        "DEV-001 fail",
        &["rdmap9s0", "rdmap1s0", "--device"],
    ),
    (
        "a-device-named-by-its-domain",
        |m| _ = m.adapter(1).adapter(2),
        &["--device", "rdmap2s0-rdm"],
        "DEV-003 pass",
        &["\"subject\":\"rdmap2s0\""],
    ),
    (
        "an-adapter-without-a-driver",
        |m| _ = pci(m, "0xefa1"),
        &[],
        "DEV-003 fail",
        &["modprobe -a efa ib_uverbs", "0000:05:00.0 > /sys/bus/pci/drivers/efa/bind"],
    ),
    ("another-device-of-the-vendor", |m| _ = pci(m, "0xec20"), &[], "DEV-001 fail", &[]),
    ("id-0xefa0", |m| id(m, "0xefa0"), &[], "DEV-001 pass", &["1d0f:efa0"]),
    ("id-0xefa1", |m| id(m, "0xefa1"), &[], "DEV-001 pass", &["1d0f:efa1"]),
    ("id-0xefa2", |m| id(m, "0xefa2"), &[], "DEV-001 pass", &["1d0f:efa2"]),
    ("id-0xefa3", |m| id(m, "0xefa3"), &[], "DEV-001 pass", &["1d0f:efa3"]),
    ("id-0xefa4", |m| id(m, "0xefa4"), &[], "DEV-001 pass", &["1d0f:efa4"]),
    (
        "a-driver-of-the-kernel",
        |m| _ = m.adapter(1).remove("/sys/module/efa/version"),
        &[],
        "DEV-002 unknown",
        &[],
    ),
    (
        "down",
        |m| _ = m.adapter(1).file("/sys/class/infiniband/rdmap1s0/ports/1/state", "1: DOWN\n"),
        &[],
        "DEV-004 fail",
        &[],
    ),
    // A directory exists, and even root cannot open it for writing.
    (
        "a-node-that-does-not-open",
        |m| _ = m.adapter(1).remove("/dev/infiniband/uverbs1").directory("/dev/infiniband/uverbs1"),
        &[],
        "DEV-006 fail",
        &[],
    ),
    ("nvidia", |m| _ = m.nvidia(""), &[], "CUDA-001 pass", &["580.65.06"]),
    ("no-gpu", |m| _ = m.nvidia(""), &["--gpu", "none"], "CUDA-002 skip", &["CUDA-000"]),
    ("soft", |_| {}, &["--soft"], "DEV-001 skip", &["ENV-000", "software adapter"]),
    (
        "two-links-to-one-libfabric",
        |m| {
            m.file("/usr/lib/libfabric.so.1.20.0", "no library").link("/lib", "usr/lib");
            m.link("/usr/lib/libfabric.so.1", "libfabric.so.1.20.0");
        },
        &[],
        "LIB-004 pass",
        &[],
    ),
    (
        "directories-of-ld-so-conf",
        |m| {
            m.file("/etc/ld.so.conf", &format!("# comment\n{CONF}")).file(LIBRARY, "no library");
            m.file("/etc/ld.so.conf.d/efa.conf", "/opt/mine/lib\n");
        },
        &[],
        "LIB-004 pass",
        &[LIBRARY],
    ),
    (
        "includes-that-include-each-other",
        |m| {
            m.file(LIBRARY, "").file("/etc/ld.so.conf", CONF);
            for number in 0..16 {
                let text = format!("{}/opt/mine/lib\n", CONF.repeat(64));
                m.file(&format!("/etc/ld.so.conf.d/{number}.conf"), &text);
            }
        },
        &[],
        "LIB-004 pass",
        &[LIBRARY],
    ),
    (
        "the-release-of-libfabric",
        |m| _ = m.file("/usr/lib/libfabric.so.1", "x\0FABRIC_1.6\x002.1.0\0y"),
        &[],
        "LIB-004 pass",
        &["libfabric 2.1.0"],
    ),
    (
        "endless-files",
        |m| {
            m.adapter(4).directory("/usr/lib").directory("/etc");
            for pipe in ["etc/ld.so.conf", "usr/lib/libfabric.so.1"] {
                assert!(output(Command::new("mkfifo").arg(m.path().join(pipe))).status.success());
            }
        },
        &[],
        "LIB-004 pass",
        &[],
    ),
];

/// A PCI device of Amazon without a driver.
fn pci<'a>(machine: &'a Machine, device: &str) -> &'a Machine {
    machine.file(&format!("{PCI}/vendor"), "0x1d0f").file(&format!("{PCI}/device"), device)
}

/// An adapter with this id.
fn id(machine: &Machine, device: &str) {
    machine.adapter(1).file("/sys/bus/pci/devices/0000:01:00.0/device", device);
}

#[test]
fn each_machine_is_judged_by_its_files() {
    at_once(MACHINES, |&(name, make, args, expected, words)| {
        let machine = Machine::new(name);
        make(&machine);
        let document = machine.check(args);
        let (code, expected) = expected.split_once(' ').expect("a code and a state");
        let found = check(&document, code);
        assert_eq!(found["state"], expected, "{name}: {found:#}");
        let text = found.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{name}: not all of {words:?}: {found:#}");
    });
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
fn an_endless_value_is_cut_and_says_so() {
    let machine = Machine::new("endless-value");
    machine.adapter(1);
    for file in [
        "/sys/module/efa/version",
        "/sys/class/infiniband/rdmap1s0/ports/1/state",
        "/proc/sys/kernel/osrelease",
    ] {
        machine.file(file, "");
        let file = std::fs::File::options().write(true).open(machine.path().join(&file[1..])).unwrap();
        file.set_len(64 << 30).unwrap();
    }
    let document = machine.check(&[]);
    says(&document, "DEV-002", "observed", &["… (cut at 4096 bytes)"]);
    assert!(document.to_string().len() < 1 << 20);
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
