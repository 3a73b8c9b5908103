//! Libraries and providers that are missing, old or broken. Each causes a failed check with a fix and exit status
//! 3, and the probe completes its report.

mod support;

use std::path::Path;

use efa_gda_test_support::soft::provider;
use efa_gda_test_support::{TempDir, compile};
use serde_json::Value;
use support::{PATIENT, at_once, check, document, ended, output, probe, says, soft, state, status};

/// The document of a check on a software adapter with a defect, which these variables select.
fn bad(set: &[(&str, &str)]) -> Value {
    let (document, status) = ended(soft(&["--gpu", "none"]).envs(set.iter().copied()));
    assert_eq!(status, 3, "{document:#}");
    document
}

fn fails_with_a_fix(document: &Value, code: &str) {
    let check = check(document, code);
    assert_eq!(check["state"], "fail", "{check:#}");
    assert!(check["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{check:#}");
}

#[test]
fn a_wrong_libfabric_path_is_reported_with_its_value_what_was_expected_and_what_to_do() {
    // No file, another library, and a file that is no library.
    let cases = [
        ("/nonexistent/libfabric.so.1", "cannot open shared object file"),
        ("libc.so.6", "does not export fi_version"),
        ("/proc/self/status", "invalid ELF header"),
    ];
    at_once(&cases, |&(value, reason)| {
        let document = bad(&[("LIBFABRIC_PATH", value)]);
        fails_with_a_fix(&document, "LIB-001");
        assert_eq!(check(&document, "PUT-002")["blocked_by"], "LIB-001");
        says(&document, "LIB-001", "observed", &[&format!("LIBFABRIC_PATH={value} "), reason]);
        says(&document, "LIB-001", "required", &["LIBFABRIC_PATH unset", "libfabric.so.1 of release 1.17"]);
        says(&document, "LIB-001", "fix", &["correct LIBFABRIC_PATH, or unset it", "libfabric.so.1"]);
        assert_eq!(check(&document, "LIB-001")["who"], "pod");
    });
}

#[test]
fn an_empty_libfabric_path_is_ignored() {
    let output = output(soft(&["--gpu", "none"]).env("LIBFABRIC_PATH", ""));
    assert_eq!((state(&document(&output), "LIB-001"), status(&output)), ("pass", 0));
}

#[test]
fn a_variable_that_excludes_efa_fails_env_006_and_blocks_gda() {
    let document = bad(&[("FI_PROVIDER", "^efa")]);
    fails_with_a_fix(&document, "ENV-006");
    assert_eq!(check(&document, "GDA-002")["blocked_by"], "ENV-006");
}

#[test]
fn fab_001_fails_without_an_adapter() {
    let output = output(probe(&["--json", "--gpu", "none"]).args(PATIENT).env("FI_EFA_IFACE", "none"));
    assert_eq!((state(&document(&output), "FAB-001"), status(&output)), ("fail", 3));
}

#[test]
fn a_libfabric_without_gda_operations_fails_gda_001_without_an_adapter() {
    let output = output(probe(&["--json", "--gpu", "none"]).args(PATIENT).env("FI_PROVIDER", "^efa"));
    let document = document(&output);
    let release = check(&document, "LIB-002")["observed"].as_str().unwrap();
    let numbers = release.strip_prefix("libfabric ").unwrap().split(',').next().unwrap();
    let (major, minor) = numbers.split_once('.').unwrap();
    let old = (major.parse::<u32>().unwrap(), minor.parse::<u32>().unwrap()) < (2, 3);
    assert_eq!(state(&document, "GDA-001"), if old { "fail" } else { "unknown" }, "{release}");
    if old {
        fails_with_a_fix(&document, "GDA-001");
    }
}

/// GDA-007 fails with `text`, blocks only GDA-010, and the put works with the other five operations.
fn five_operations_suffice(document: &Value, text: &str) {
    fails_with_a_fix(document, "GDA-007");
    says(document, "GDA-007", "observed", &[text]);
    assert_eq!(check(document, "GDA-010")["blocked_by"], "GDA-007");
    assert_eq!(document["put"]["verified"], true, "{document:#}");
}

#[test]
fn a_table_of_five_pointers_of_an_old_release_works_and_fails_gda_007() {
    for version in ["203.0", "205.0"] {
        let document = bad(&[("SOFTEFA_PROV_VERSION", version)]);
        five_operations_suffice(&document, &format!("not offered by efa provider {version}"));
        says(&document, "GDA-007", "required", &["206.0"]);
    }
}

#[test]
fn a_table_of_five_pointers_of_a_release_with_six_is_a_broken_provider() {
    let document = bad(&[("SOFTEFA_BREAK", "five-operations")]);
    five_operations_suffice(&document, "although efa provider 207.0 (libfabric 2.7) has six");
}

#[test]
fn a_table_whose_sixth_pointer_is_null_is_a_broken_provider() {
    five_operations_suffice(&bad(&[("SOFTEFA_BREAK", "null-counters")]), "null pointer");
}

#[test]
fn invalid_geometry_fails_que_001_and_blocks_the_put() {
    at_once(&["depth0", "depth3", "entry96", "unaligned-doorbell", "null-buffer"], |defect| {
        let document = bad(&[("SOFTEFA_BREAK", defect)]);
        fails_with_a_fix(&document, "QUE-001");
        assert_eq!(check(&document, "PUT-001")["blocked_by"], "QUE-001", "{defect}");
    });
}

#[test]
fn a_dead_endpoint_fails_put_001_and_closes() {
    // The wait for a completion takes half of the limit.
    at_once(&[&[][..], &["-v"]], |more| {
        let mut command = probe(&["--soft", "--json", "--gpu", "none", "--time-limit", "10000"]);
        command.args(*more).env("SOFTEFA_LIBRARY", provider()).env("SOFTEFA_BREAK", "dead-endpoint");
        let output = output(&mut command);
        let document = document(&output);
        assert_eq!(status(&output), 3, "{document:#}");
        fails_with_a_fix(&document, "PUT-001");
        assert_eq!(check(&document, "PUT-002")["blocked_by"], "PUT-001");
        assert_eq!(state(&document, "PUT-005"), "pass", "requests in flight are flushed with the endpoint");
        let log = String::from_utf8_lossy(&output.stderr);
        let logged = log.contains("state of the queue") && log.contains("1 in flight");
        assert!(if more.is_empty() { log.is_empty() } else { logged }, "{log}");
    });
}

#[test]
fn a_libfabric_that_does_not_load_is_not_reported_as_absent() {
    let directory = TempDir::new("garbage");
    std::fs::write(directory.path().join("libfabric.so.1"), "no library").unwrap();
    let mut command = soft(&["--gpu", "none"]);
    let (document, status) =
        ended(command.env("LD_LIBRARY_PATH", directory.path()).env_remove("LIBFABRIC_PATH"));
    assert_eq!(status, 3, "{document:#}");
    fails_with_a_fix(&document, "LIB-001");
    says(&document, "LIB-001", "observed", &["libfabric.so.1", "file too short"]);
}

#[test]
fn a_crash_in_getinfo_fails_fab_001_with_its_signal() {
    let document = bad(&[("SOFTEFA_BREAK", "crash-getinfo")]);
    fails_with_a_fix(&document, "FAB-001");
    says(&document, "FAB-001", "observed", &["SIGSEGV"]);
    assert_eq!(check(&document, "PUT-002")["blocked_by"], "FAB-001");
}

#[test]
fn a_hang_in_getinfo_fails_fab_001_with_its_limit() {
    // Long enough for the checks before it on a busy machine: time without a CPU does not count.
    let mut command = probe(&["--soft", "--json", "--gpu", "none", "--time-limit", "5000"]);
    command.env("SOFTEFA_LIBRARY", provider()).env("SOFTEFA_BREAK", "hang-getinfo");
    let (document, status) = ended(&mut command);
    fails_with_a_fix(&document, "FAB-001");
    says(&document, "FAB-001", "observed", &["no result within 5000 ms"]);
    assert_eq!(status, 3);
}

#[test]
fn a_timeout_below_the_default_limit_advises_to_raise_it() {
    let mut command = probe(&["--soft", "--json", "--gpu", "none", "--time-limit", "1000"]);
    command.env("SOFTEFA_LIBRARY", provider()).env("SOFTEFA_BREAK", "hang-getinfo");
    let document = document(&output(&mut command));
    // On a busy machine an earlier check reaches the limit.
    let timed_out = |check: &&Value| {
        check["observed"].as_str().is_some_and(|observed| observed.contains("no result within 1000 ms"))
    };
    let check = document["checks"].as_array().unwrap().iter().find(timed_out).unwrap();
    let fix = check["fix"].as_str().unwrap();
    assert!(fix.starts_with("raise --time-limit"), "{check:#}");
}

#[test]
fn lib_002_reports_the_api_version_in_use() {
    let document = document(&output(&mut soft(&["--gpu", "none"])));
    says(&document, "LIB-002", "observed", &["used at API"]);
}

/// A folder for LD_LIBRARY_PATH with the libcuda of `ending_cuda.c`. None, with the skip recorded, without a C compiler.
fn ending_cuda(define: &str) -> Option<TempDir> {
    let folder = TempDir::new("ending-cuda");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/ending_cuda.c");
    let mut compiler = compile::c();
    compiler.args(["-shared", "-fPIC", define, "-o"]).arg(folder.path().join("libcuda.so.1")).arg(source);
    compile::compile(&mut compiler).then_some(folder)
}

#[test]
fn a_driver_that_does_not_start_is_reported_with_cudas_name_of_the_error() {
    let Some(folder) = ending_cuda("-DSTARTS=100") else { return };
    let (document, status) =
        ended(soft(&["put", "--executor", "cuda"]).env("LD_LIBRARY_PATH", folder.path()));
    assert_eq!((state(&document, "CUDA-004"), status), ("fail", 3), "{document:#}");
    let text = "cuInit returned 100 (CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected)";
    assert_eq!(check(&document, "CUDA-004")["observed"], text);
}

#[test]
fn a_gpu_that_crashes_its_worker_fails_once_and_the_next_gpu_is_checked() {
    let Some(folder) = ending_cuda("-DSTARTS=0") else { return };
    let (document, status) =
        ended(soft(&["put", "--executor", "cuda"]).env("LD_LIBRARY_PATH", folder.path()));
    let checks = document["checks"].as_array().unwrap().iter();
    let found: Vec<_> = checks
        .filter(|check| check["code"] == "CUDA-006")
        .map(|check| (check["subject"].as_str().unwrap(), check["state"].as_str().unwrap()))
        .collect();
    assert_eq!((found, status), (vec![("0", "fail"), ("1", "fail")], 3), "{document:#}");
}
