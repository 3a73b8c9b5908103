//! Ranks that put to each other on the software adapter, and ranks that cannot meet.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use efa_gda_test_support::{TempDir, cuda, until};
use serde_json::Value;
use support::{PATIENT, document, ended, output, probe, soft, state, status};

const TOKEN: (&str, &str) = ("EFA_GDA_JOB_TOKEN", "a token that all ranks of a test share");

/// Variables of launchers, which must not reach a test.
const LAUNCHERS: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "JOB_COMPLETION_INDEX",
    "EFA_GDA_JOB_TOKEN",
];

fn clean(mut command: Command) -> Command {
    LAUNCHERS.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// The document and the status of a ring whose ranks this process starts.
fn spawned(args: &[&str], set: &[(&str, &str)]) -> (Value, i32) {
    let mut command = clean(soft(&[&["ring", "--spawn"], args].concat()));
    let output = output(command.envs(set.iter().copied()));
    (document(&output), status(&output))
}

fn pes(document: &Value) -> &Vec<Value> {
    document["ranks"]["pes"].as_array().unwrap_or_else(|| panic!("no ranks: {document:#}"))
}

/// Rank `rank` of `of`, as torchrun starts it.
fn launched(rank: u32, of: u32, port: u16, args: &[&str]) -> Command {
    let mut command = clean(soft(&["ring"]));
    command.args(args).env(TOKEN.0, TOKEN.1);
    command.envs([
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", of.to_string()),
        ("MASTER_PORT", port.to_string()),
    ]);
    command.env("MASTER_ADDR", "127.0.0.1");
    command
}

/// A port that was free a moment ago, below those of outgoing connections, and another one at each call.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = (0..20_000).map(|_| {
        let number = std::process::id().wrapping_mul(41).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        10_000 + (number % 20_000) as u16
    });
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// Waits until a process listens at the port. (To connect or to bind would change what that process finds.)
fn until_listening(port: u16) {
    let listens = format!(" 0100007F:{port:04X} 00000000:0000 0A ");
    until(Duration::from_secs(60), &format!("a listener at port {port}"), || {
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&listens).then_some(())
    });
}

/// The failure of rank `rank` in its own document, and its status.
fn failure(command: &mut Command, rank: usize) -> (String, i32) {
    let (document, status) = ended(command);
    let pe = pes(&document).iter().find(|pe| pe["rank"] == rank).cloned().unwrap_or_default();
    let error = pe["error"].as_str().unwrap_or_else(|| panic!("no error: {document:#}"));
    (error.to_owned(), status)
}

#[test]
fn rings_of_1_2_4_and_8_ranks_verify_every_byte_with_reordering() {
    for size in [1, 2, 4, 8] {
        let (document, status) =
            spawned(&[&size.to_string(), "--bytes", "70001", "--count", "5"], &[("SOFTEFA_REORDER", "16")]);
        assert_eq!(status, 0, "{document:#}");
        assert_eq!(pes(&document).len(), size);
        for (rank, pe) in pes(&document).iter().enumerate() {
            let (from, value) = ((rank + size - 1) % size, (rank + size - 1) % size * 100);
            assert_eq!((&pe["rank"], &pe["from"], &pe["got"]), (&rank.into(), &from.into(), &value.into()));
            assert_eq!((&pe["verified"], &pe["completed"]), (&true.into(), &5.into()));
        }
    }
}

#[test]
fn each_rank_prints_the_line_of_nvshmem_style_tests() {
    let mut command = clean(probe(&["ring", "--soft", "--spawn", "2"]));
    command.args(PATIENT).env("SOFTEFA_LIBRARY", efa_gda_test_support::soft::provider());
    let output = output(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..2],
        ["[PE 0] PASS - Got expected value 100 from PE 1", "[PE 1] PASS - Got expected value 0 from PE 0"],
        "{output:?}"
    );
    assert!(lines[2].starts_with("2 of 2 ranks passed"), "{text}");
}

#[test]
fn a_gpu_posts_for_each_rank_on_request() {
    // The pretended driver has one GPU, which the ranks share.
    let set = cuda::VARIABLES;
    let (document, status) = spawned(&["2", "--executor", "cuda", "--bytes", "5000", "--count", "3"], &set);
    assert_eq!(status, 0, "{document:#}");
    for pe in pes(&document) {
        assert_eq!(
            (&pe["executor"], &pe["gpu"], &pe["verified"]),
            (&"cuda".into(), &"0".into(), &true.into())
        );
    }
}

/// Variables with which the ranks have the pretended driver, two GPUs, and softefa their memory.
fn two_gpus() -> Vec<(&'static str, &'static str)> {
    let of_softefa = [("SOFTEFA_LIBCUDA", cuda::LIBRARY), ("PRETEND_GPU_KNOWS_MEMORY", "1")];
    [&cuda::VARIABLES[..], &of_softefa, &[("PRETEND_GPU_TWO", "1")]].concat()
}

#[test]
fn ranks_put_between_memory_of_gpus_that_they_take_in_turn() {
    for executor in ["host", "cuda"] {
        let (document, status) = spawned(
            &["3", "--memory", "gpu", "--executor", executor, "--bytes", "5000", "--count", "3"],
            &two_gpus(),
        );
        assert_eq!(status, 0, "{document:#}");
        for (rank, pe) in pes(&document).iter().enumerate() {
            let gpu = (rank % 2).to_string();
            assert_eq!((&pe["memory"], &pe["over"]), (&"gpu".into(), &"efa".into()));
            assert_eq!((&pe["executor"], &pe["gpu"]), (&executor.into(), &gpu.into()));
            assert_eq!((&pe["verified"], &pe["completed"]), (&true.into(), &3.into()));
        }
    }
}

#[test]
fn a_ring_over_nvlink_fails_with_the_reason_why_gpus_do_not_map_each_other() {
    let peers = [two_gpus(), vec![("PRETEND_GPU_PEERS", "1")]].concat();
    for (args, set, expected) in [
        (&["2"][..], two_gpus(), "cuDeviceCanAccessPeer"),
        // The pretended driver opens no handle.
        (&["2"], peers.clone(), "cuIpcOpenMemHandle failed: CUDA_ERROR_NOT_SUPPORTED"),
        (&["3"], two_gpus(), "share GPU 0000:00:00.0"),
        (&["2", "--gpu", "1"], peers, "share GPU 0000:00:01.0"),
    ] {
        let (document, status) = spawned(&[args, &["--over", "nvlink"]].concat(), &set);
        assert_eq!(status, 3, "{document:#}");
        let errors: Vec<&str> = pes(&document).iter().filter_map(|pe| pe["error"].as_str()).collect();
        assert!(errors.iter().any(|error| error.contains(expected)), "{expected}: {errors:#?}");
        assert!(errors.iter().all(|error| error.contains("--over auto")), "{errors:#?}");
    }
}

#[test]
fn ranks_put_over_nvlink_to_memory_that_they_map() {
    let set = [two_gpus(), vec![("PRETEND_GPU_PEERS", "1"), ("PRETEND_GPU_IPC", "1")]].concat();
    let (document, status) = spawned(&["2", "--over", "nvlink", "--bytes", "70001", "--count", "1500"], &set);
    assert_eq!(status, 0, "{document:#}");
    for (rank, pe) in pes(&document).iter().enumerate() {
        assert_eq!((&pe["memory"], &pe["over"]), (&"gpu".into(), &"nvlink".into()));
        assert_eq!((&pe["gpu"], &pe["completed"]), (&rank.to_string().into(), &1500.into()));
    }
    // A launcher starts each rank as a process.
    let port = free_port();
    let launch = |rank| {
        let mut command = launched(rank, 2, port, &["--over", "auto", "--wait", "60"]);
        command.envs(set.iter().copied()).env("LOCAL_RANK", rank.to_string());
        ended(&mut command)
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| launch(1));
        (launch(0), second.join().unwrap())
    });
    for (document, status) in [first, second] {
        assert_eq!((status, &pes(&document)[0]["over"]), (0, &"nvlink".into()), "{document:#}");
    }
}

#[test]
fn over_auto_puts_over_efa_where_gpus_do_not_map_each_other() {
    let peers = [two_gpus(), vec![("PRETEND_GPU_PEERS", "1")]].concat();
    for set in [two_gpus(), peers] {
        let (document, status) = spawned(&["2", "--over", "auto"], &set);
        assert_eq!(status, 0, "{document:#}");
        for pe in pes(&document) {
            assert_eq!((&pe["memory"], &pe["over"]), (&"gpu".into(), &"efa".into()));
        }
    }
}

#[test]
fn memory_that_cannot_be_on_a_gpu_is_refused() {
    for (args, expected) in [
        (&["--over", "nvlink", "--memory", "host"][..], "omit --memory host"),
        (&["--over", "auto", "--gpu", "none"], "--gpu none leaves GPUs out"),
        (&["--memory", "gpu", "--gpu", "none"], "--gpu none leaves GPUs out"),
        (&["--gpu", "0"], "the host posts"),
    ] {
        let (document, status) = spawned(&[&["2"], args].concat(), &[]);
        assert_eq!(status, 2, "{document:#}");
        assert!(document["error"].as_str().unwrap().contains(expected), "{document:#}");
    }
}

#[test]
fn puts_of_several_rounds_are_compared_in_each() {
    let (document, status) = spawned(&["2", "--bytes", "8", "--count", "150000"], &[]);
    assert_eq!((status, &pes(&document)[1]["completed"]), (0, &150_000.into()), "{document:#}");
}

#[test]
fn a_ring_stops_at_max_seconds_and_reports_its_progress() {
    let (document, status) =
        spawned(&["2", "--count", "18446744073709551615", "--max-seconds", "1", "--wait", "1"], &[]);
    assert_eq!(status, 3, "{document:#}");
    let errors: Vec<&str> = pes(&document).iter().filter_map(|pe| pe["error"].as_str()).collect();
    assert!(errors.iter().any(|error| error.starts_with("stopped at --max-seconds 1: ")), "{errors:#?}");
    for pe in pes(&document) {
        assert!(pe["completed"].as_u64().unwrap() > 0, "{document:#}");
    }
}

#[test]
fn ranks_end_with_a_probe_that_is_killed() {
    let mut command = clean(soft(&["ring", "--spawn", "2", "--count", "18446744073709551615"]));
    let (mut stderr, writer) = std::io::pipe().unwrap();
    let mut probe = command.stdout(std::process::Stdio::null()).stderr(writer).spawn().unwrap();
    // The command holds the pipe too.
    drop(command);
    let children = format!("/proc/{0}/task/{0}/children", probe.id());
    until(Duration::from_secs(60), "the process of the ranks", || {
        std::fs::read_to_string(&children).ok().filter(|text| !text.is_empty())
    });
    probe.kill().unwrap();
    probe.wait().unwrap();
    let (report, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || report.send(std::io::Read::read_to_end(&mut stderr, &mut Vec::new())));
    ended.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
}

#[test]
fn a_rank_without_a_descriptor_names_the_limit() {
    for limit in ["8", "12", "16"] {
        let ring = probe(&["ring", "--soft", "--spawn", "8", "--wait", "2"]);
        let mut command = clean(Command::new("sh"));
        command
            .args(["-c", "ulimit -n $0; exec \"$@\"", limit])
            .arg(ring.get_program())
            .args(ring.get_args());
        let ended = output(command.env("SOFTEFA_LIBRARY", efa_gda_test_support::soft::provider()));
        let text = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        assert!(text.contains("ulimit -n"), "{limit}: {text}");
    }
}

#[test]
fn a_variable_forges_no_line_on_stderr() {
    let forged = "h\u{1b}[31m\n[PE 0] PASS - Got expected value 100 from PE 1";
    let variables =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", forged), ("MASTER_PORT", "1"), TOKEN];
    let mut command = clean(probe(&["ring", "--soft", "--wait", "1"]));
    let ended = output(command.envs(variables));
    let text = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("MASTER_ADDR") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn the_longest_times_are_as_good_as_none() {
    let longest = u64::MAX.to_string();
    let both = ["--max-seconds", &longest, "--time-limit", &longest];
    let run = |args: &[&str]| {
        let mut command = clean(probe(&["--soft", "--json"]));
        command.args(args).args(both).env(TOKEN.0, TOKEN.1);
        ended(command.env("SOFTEFA_LIBRARY", efa_gda_test_support::soft::provider()))
    };
    assert_eq!(run(&["ring", "--spawn", "2"]).1, 0);
    let listen = format!("127.0.0.1:{}", free_port());
    let (document, status) = run(&["put", "--listen", &listen, "--wait", "1"]);
    assert_eq!(status, 3);
    assert!(pes(&document)[0]["error"].as_str().unwrap().contains("the sender did not arrive"));
}

#[test]
fn a_put_that_fails_is_named_and_ends_all_ranks() {
    // Status 7: the target refuses the address.
    let mut command = clean(probe(&["ring", "--soft", "--json", "--spawn", "4", "--time-limit", "10000"]));
    command.env("SOFTEFA_LIBRARY", efa_gda_test_support::soft::provider()).env("SOFTEFA_INJECT", "3:7");
    let output = output(&mut command);
    let (document, status) = (document(&output), status(&output));
    assert_eq!(status, 3);
    let failed: Vec<&Value> = pes(&document).iter().filter(|pe| pe["verified"] == false).collect();
    assert!(!failed.is_empty() && pes(&document).len() == 4, "{document:#}");
    let texts: Vec<&str> = failed.iter().filter_map(|pe| pe["error"].as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("the put to rank")), "{texts:?}");
}

#[test]
fn a_queue_that_does_not_open_is_reported_with_the_check_that_fails() {
    let (document, status) = spawned(&["2"], &[("SOFTEFA_BREAK", "no-gda")]);
    assert_eq!(status, 3);
    for pe in pes(&document) {
        assert!(pe["error"].as_str().unwrap().contains("GDA-002"), "{document:#}");
    }
}

#[test]
fn a_library_that_crashes_is_the_failure_of_its_ranks() {
    let (document, status) = spawned(&["2"], &[("SOFTEFA_BREAK", "crash-getinfo")]);
    assert_eq!(status, 3);
    for pe in pes(&document) {
        assert!(pe["error"].as_str().unwrap().contains("SIG"), "{document:#}");
    }
}

#[test]
fn a_rank_that_does_not_arrive_is_named_by_rank_0() {
    // Ample for rank 0 itself.
    let (error, status) = failure(&mut launched(0, 2, free_port(), &["--wait", "10"]), 0);
    assert!(error.starts_with("rank 1 did not arrive within 10 s"), "{error}");
    assert_eq!(status, 3);
}

#[test]
fn ranks_learn_why_rank_0_cannot_start() {
    let port = free_port();
    let first = std::thread::spawn(move || {
        output(launched(0, 2, port, &["--wait", "60"]).env("FI_EFA_MTU_SIZE", "4096"))
    });
    let (error, status) = failure(&mut launched(1, 2, port, &["--wait", "60"]), 1);
    assert!(error.starts_with("rank 0 cannot start: ENV-005"), "{error}");
    assert!(error.contains("fix (pod): unset FI_EFA_MTU_SIZE"), "{error}");
    assert_eq!(status, 3);
    let first = first.join().unwrap();
    assert_eq!((state(&document(&first), "ENV-005"), self::status(&first)), ("fail", 3));
}

#[test]
fn a_rank_without_rank_0_names_the_address_that_it_tried() {
    let port = free_port();
    let (error, status) = failure(&mut launched(1, 2, port, &["--wait", "1"]), 1);
    assert!(error.contains(&format!("could not join the exchange at 127.0.0.1:{port}")), "{error}");
    assert_eq!(status, 3);
}

/// A second rank with this variable and these options, and what its report contains.
type Second = ((&'static str, &'static str), &'static [&'static str], &'static str);

#[test]
fn ranks_with_different_tokens_or_options_do_not_meet() {
    let other_token = ("EFA_GDA_JOB_TOKEN", "another token of 16 bytes or more");
    let cases: [&[Second]; 3] = [
        // A process that rank 0 refuses, or that cannot be rank 0, ends no job: rank 0 waits for the next one.
        &[
            (other_token, &[], "different tokens"),
            (("RANK", "0"), &[], "cannot listen"),
            (("WORLD_SIZE", "3"), &[], "was started for 3 ranks, and rank 0 for 2"),
        ],
        &[(TOKEN, &["--bytes", "128"], "start all with the same options")],
        // What is left to name if everything else is right.
        &[(TOKEN, &[], "softefa's libfabric frontend reaches one process only")],
    ];
    for seconds in cases {
        let port = free_port();
        let first = std::thread::spawn(move || output(&mut launched(0, 2, port, &["--wait", "120"])));
        until_listening(port);
        for (set, args, expected) in seconds {
            let mut command = launched(1, 2, port, args);
            let second = output(command.env(set.0, set.1));
            let text = String::from_utf8_lossy(&second.stdout).into_owned();
            assert!(text.contains(expected), "{expected}: {text}");
            assert!(status(&second) >= 2, "{text}");
        }
        assert_eq!(status(&first.join().unwrap()), 3, "the first rank ends as well");
    }
}

#[test]
fn a_put_to_another_process_uses_the_same_exchange() {
    let place = format!("127.0.0.1:{}", free_port());
    let listen = ["put", "--listen", &place, "--wait", "60"];
    let mut listener = clean(soft(&listen));
    listener.env(TOKEN.0, TOKEN.1);
    let listener = std::thread::spawn(move || output(&mut listener));
    let mut sender =
        clean(soft(&["put", "--peer", &place, "--bytes", "100", "--count", "3", "--wait", "60"]));
    let sent = document(&output(sender.env(TOKEN.0, TOKEN.1)));
    assert_eq!((&sent["put"]["verified"], &sent["put"]["count"]), (&false.into(), &3.into()));
    let received = document(&listener.join().unwrap());
    for document in [sent, received] {
        let text = document.to_string();
        assert!(text.contains("softefa's libfabric frontend reaches one process only"), "{text}");
    }
}

#[test]
fn a_bench_of_two_hosts_meets_the_listener_of_a_put() {
    let place = format!("127.0.0.1:{}", free_port());
    let mut listener = clean(soft(&["put", "--listen", &place, "--wait", "60"]));
    listener.env(TOKEN.0, TOKEN.1);
    let listener = std::thread::spawn(move || output(&mut listener));
    let mut bench = clean(soft(&["bench", "--executor", "host", "--peer", &place, "--wait", "60"]));
    let output = output(bench.env(TOKEN.0, TOKEN.1));
    let measured = document(&output);
    assert!(measured.get("bench").is_none(), "nothing was measured: {measured:#}");
    assert_eq!((status(&output), &measured["command"]), (3, &"bench".into()));
    for document in [measured, document(&listener.join().unwrap())] {
        let text = document.to_string();
        assert!(text.contains("softefa's libfabric frontend reaches one process only"), "{text}");
    }
}

#[test]
fn a_put_without_a_listener_says_how_to_start_one() {
    let place = format!("127.0.0.1:{}", free_port());
    let mut sender = clean(soft(&["put", "--peer", &place, "--wait", "1"]));
    let output = output(sender.env(TOKEN.0, TOKEN.1));
    let document = document(&output);
    let error = pes(&document)[0]["error"].as_str().unwrap();
    assert!(error.contains("put --listen") && !error.contains("--rendezvous"), "{error}");
    assert!(document.get("put").is_none(), "nothing was put: {document:#}");
    assert_eq!(status(&output), 3);
}

#[test]
fn a_listener_without_the_address_refuses_it() {
    // TEST-NET-1, which no machine has.
    let mut listener = clean(soft(&["put", "--listen", "192.0.2.1", "--wait", "60"]));
    let output = output(listener.env(TOKEN.0, TOKEN.1));
    let text = document(&output)["error"].as_str().unwrap_or_default().to_owned();
    assert!(text.contains("192.0.2.1") && text.contains("--listen"), "{text}");
    assert_eq!(status(&output), 2);
}

#[test]
fn a_gpu_that_is_not_there_is_the_failure_of_its_own_check() {
    if Path::new("/proc/driver/nvidia").exists() {
        return;
    }
    for args in [&["2", "--executor", "cuda"][..], &["2", "--memory", "gpu"], &["2", "--over", "nvlink"]] {
        let (document, status) = spawned(args, &[]);
        assert_eq!(status, 3);
        for pe in pes(&document) {
            assert!(pe["error"].as_str().unwrap().contains("CUDA-003"), "{document:#}");
        }
    }
}

/// The limit of threads is the user's, so the ranks run as a user that runs nothing else.
#[test]
fn a_limit_of_processes_ends_all_ranks_at_once() {
    let public = TempDir::new("ring-limit");
    let copy = |file: &Path| {
        let copied = public.path().join(file.file_name().unwrap());
        std::fs::copy(file, &copied).unwrap();
        copied
    };
    let (program, library) =
        (copy(Path::new(env!("CARGO_BIN_EXE_gda-probe"))), copy(&efa_gda_test_support::soft::provider()));
    let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let may = Command::new("setpriv").args(as_nobody).arg(&program).arg("--version").output();
    if !may.is_ok_and(|output| output.status.success()) {
        return efa_gda_test_support::skip("setpriv cannot run programs as another user");
    }
    for limit in ["--nproc=5", "--nproc=6", "--nproc=8", "--nproc=10"] {
        let mut command = Command::new("setpriv");
        command.args(as_nobody).args(["prlimit", limit]).arg(&program);
        command.args(["ring", "--soft", "--spawn", "4", "--wait", "3600"]).env("SOFTEFA_LIBRARY", &library);
        let output = output(&mut clean(command));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!((status(&output), text.matches("] FAIL - ").count()), (3, 4), "limit {limit}: {output:?}");
        assert!(text.contains("ulimit -u"), "limit {limit}: {text}");
    }
}

#[test]
fn without_a_launcher_or_a_token_the_command_is_refused_with_what_to_do() {
    for (set, expected) in [
        (&[][..], "--spawn N"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")],
            "EFA_GDA_JOB_TOKEN or --token-file",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("EFA_GDA_JOB_TOKEN", "short")],
            "5 bytes",
        ),
    ] {
        let output = output(clean(soft(&["ring"])).envs(set.iter().copied()));
        let document = document(&output);
        assert_eq!(status(&output), 2, "{document:#}");
        assert!(document["error"].as_str().unwrap().contains(expected), "{document:#}");
    }
}

#[test]
fn a_token_file_that_others_can_read_is_accepted_with_a_warning() {
    let folder = TempDir::new("ring-token");
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN.1).unwrap();
    for (mode, warned) in [(0o600, false), (0o400, false), (0o644, true), (0o640, true)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        // No connection goes there, so that the command ends at once.
        let mut command =
            clean(soft(&["ring", "--rank", "1", "--ranks", "2", "--rendezvous", "255.255.255.255:9"]));
        let output = output(command.arg("--token-file").arg(&file));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(text.contains(&format!("has mode {mode:o}")), warned, "{mode:o}: {text}");
        assert!(!text.contains(TOKEN.1) && (!warned || text.contains("chmod 600")), "{text}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("cannot reach 255.255.255.255:9"),
            "the token was accepted: {output:?}"
        );
    }
}

#[test]
fn the_token_is_on_no_command_line() {
    let mut command = clean(probe(&["ring", "--help"]));
    let text = String::from_utf8_lossy(&output(&mut command).stdout).into_owned();
    assert!(text.contains("--token-file") && !text.contains("--token <"), "{text}");
}
