//! GPUs: the report on a machine without one, and a GPU with the software adapter.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use efa_gda_test_support::{Need, gpu, missing, skip};
use serde_json::Value;
use support::{ended, says, soft, state};

fn run(args: &[&str]) -> (Value, i32) {
    ended(&mut soft(args))
}

#[test]
fn a_put_from_a_gpu_without_a_driver_fails_cuda_003() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return skip("there is an NVIDIA driver");
    }
    let (document, status) = run(&["put", "--executor", "cuda"]);
    assert_eq!((state(&document, "CUDA-003"), status), ("fail", 3), "{document:#}");
    assert!(document.get("put").is_none(), "no other executor may move the bytes");
}

#[test]
fn executor_cuda_with_gpu_none_is_a_usage_error() {
    assert_eq!(run(&["put", "--executor", "cuda", "--gpu", "none"]).1, 2);
}

#[test]
fn executor_auto_without_a_gpu_is_the_host() {
    let (document, status) = run(&["put", "--executor", "auto", "--gpu", "none"]);
    let put = &document["put"];
    assert_eq!((&put["executor"], &put["verified"], status), (&"host".into(), &true.into(), 0));
    assert!(put.get("gpu").is_none());
}

#[test]
fn a_gpu_maps_the_queue_and_reports_the_kind_of_memory() {
    if !gpu::present() {
        return;
    }
    let (document, _) = run(&["check"]);
    says(&document, "CUDA-008", "observed", &["ordinary memory", "device map"]);
    assert_eq!((state(&document, "CUDA-012"), state(&document, "CUDA-013")), ("pass", "pass"));
}

#[test]
fn the_verdict_is_gda_when_the_gpu_maps_the_queue_and_its_put_arrives() {
    if !gpu::present() {
        return;
    }
    let (document, status) = run(&["check"]);
    assert_eq!((&document["verdict"][0]["result"], status), (&"gda".into(), 0), "{document:#}");
    assert_eq!((&document["put"]["executor"], &document["put"]["gpu"]), (&"cuda".into(), &"0".into()));
}

#[test]
fn the_verdict_is_host_rung_in_mode_staged() {
    if !gpu::present() {
        return;
    }
    let (document, _) = run(&["check", "--doorbell", "staged"]);
    assert_eq!(document["verdict"][0]["result"], "host-rung", "{document:#}");
}

#[test]
fn every_operation_of_a_gpu_is_verified_in_every_doorbell_mode() {
    if !gpu::present() {
        return;
    }
    for op in ["write", "write-imm", "inline-write", "read", "send"] {
        for doorbell in ["direct", "record", "staged"] {
            let (document, status) =
                run(&["put", "--executor", "cuda", "--op", op, "--count", "5000", "--doorbell", doorbell]);
            assert_eq!((&document["put"]["verified"], status), (&true.into(), 0), "{op}: {document:#}");
            assert_eq!(state(&document, "PUT-003"), "pass", "{op}: a rule was broken");
        }
    }
}

/// The results of a ring of two ranks, which passed.
fn ring(args: &[&str]) -> Vec<Value> {
    let (document, status) = run(&[&["ring", "--spawn", "2"], args].concat());
    let pes = document["ranks"]["pes"].as_array().cloned().unwrap_or_default();
    assert_eq!((status, pes.len()), (0, 2), "{document:#}");
    pes
}

#[test]
fn ranks_put_between_memory_of_gpus_through_softefa() {
    if !gpu::present() {
        return;
    }
    for executor in ["host", "cuda"] {
        let args = ["--memory", "gpu", "--executor", executor, "--bytes", "70001", "--count", "1500"];
        for pe in ring(&args) {
            assert_eq!((&pe["memory"], &pe["over"]), (&"gpu".into(), &"efa".into()), "{pe:#}");
            assert_eq!((&pe["executor"], &pe["completed"]), (&executor.into(), &1500.into()), "{pe:#}");
        }
    }
}

#[test]
fn ranks_of_two_gpus_that_map_each_other_put_over_nvlink() {
    if !gpu::present() {
        return;
    }
    let [_one, two] = [0, 1].map(efa_gda::gpu::Gpu::open);
    if two.is_err() {
        return missing(Need::SecondGpu, "no second GPU");
    }
    let mut can = 0;
    // SAFETY: the call writes a number; CUDA numbers the devices from 0 on.
    unsafe { cudarc::driver::sys::cuDeviceCanAccessPeer(&mut can, 0, 1) }.result().unwrap();
    if can == 0 {
        return missing(Need::SecondGpu, "the two GPUs cannot map each other's memory");
    }
    for bytes in ["8", "70001"] {
        let pes = ring(&["--over", "nvlink", "--bytes", bytes, "--count", "1500"]);
        assert_eq!([&pes[0]["gpu"], &pes[1]["gpu"]], [&Value::from("0"), &"1".into()], "{pes:#?}");
        for pe in pes {
            assert_eq!((&pe["memory"], &pe["over"]), (&"gpu".into(), &"nvlink".into()), "{pe:#}");
            assert_eq!(pe["completed"], 1500, "{pe:#}");
        }
    }
}

#[test]
fn a_missing_gpu_fails_cuda_005_by_its_number() {
    if !gpu::present() {
        return;
    }
    let (document, status) = run(&["put", "--executor", "cuda", "--gpu", "4096"]);
    assert_eq!((state(&document, "CUDA-005"), status), ("fail", 3));
    says(&document, "CUDA-005", "observed", &["not GPU 4096"]);
}
