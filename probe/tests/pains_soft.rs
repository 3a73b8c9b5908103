//! The problems that users reported, each provoked on a software adapter: as `pains.rs`.

mod support;

use efa_gda_test_support::cuda;
use efa_gda_test_support::soft::provider;
use serde_json::Value;
use support::sound::{self, Broken, Stack, all_alone, alone, broken, checked, pass, sound};
use support::{at_once, check, document, ended, output, probe, says};

use Stack::{Adapters, Soft, SoftAndGpu};

const PAINS: &[Broken] = broken! {
    "a_provider_before_the_gda_operations_is_the_images" (Soft) "image" "GDA-001", "libfabric":
        |_| {}, [("SOFTEFA_PROV_VERSION", "201.0")];
    "a_domain_without_gda_operations_is_the_images" (Soft) "image" "GDA-002", "libfabric":
        |_| {}, [("SOFTEFA_BREAK", "no-gda")];
    "a_libfabric_built_without_the_queries_is_the_images" (Soft) "image" "GDA-003" & "GDA-004", "rdma-core 59":
        |_| {}, [("SOFTEFA_BREAK", "no-queries")];
    "a_provider_with_the_plain_fabric_alone_is_the_images" (Soft) "image" "FAB-002", "libfabric":
        |_| {}, [("SOFTEFA_FABRICS", "efa")];
    "counters_that_libfabric_was_built_without_are_the_images" (Soft) "image" "GDA-010", "built with rdma-core 65":
        |_| {}, [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_BREAK", "no-counters")];
    "counters_that_left_ranks_use_up_are_the_jobs" (Soft) "pod" "GDA-010", "end the processes", "are used up":
        |_| {}, [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_BREAK", "counters-12")];
    "a_word_in_the_variable_of_counters_disables_them" (Soft) "pod" "GDA-010", "set FI_EFA_USE_HW_CNTR=1":
        |_| {}, [("FI_EFA_USE_HW_CNTR", "yes"), ("SOFTEFA_PROV_VERSION", "206.0")];
    "a_zero_disables_counters" (Soft) "pod" "GDA-010", "set FI_EFA_USE_HW_CNTR=1":
        |_| {}, [("FI_EFA_USE_HW_CNTR", "0"), ("SOFTEFA_PROV_VERSION", "207.0")];
    "a_pod_that_is_not_privileged_is_the_first_cause" (SoftAndGpu) "pod" "CUDA-014",
        "run the pod with privileged: true":
        |m| _ = m.capabilities("00000000a80425fb"), [("SOFTEFA_BREAK", "gpu-memory-14")];
    "registration_that_is_not_permitted_is_the_pods" (SoftAndGpu) "pod" "CUDA-014",
        "run the pod with privileged: true":
        |_| {}, [("SOFTEFA_BREAK", "gpu-memory-1")];
    "an_invalid_address_without_peermem_and_dmabuf_is_the_hosts" (SoftAndGpu) "host" "CUDA-014",
        "load nvidia-peermem":
        |m| _ = m.remove("/sys/module/nvidia_peermem"), [("SOFTEFA_BREAK", "gpu-memory-22")];
    "a_bad_address_is_a_libfabric_that_registers_host_memory" (SoftAndGpu) "image" "CUDA-014",
        "registers GPU memory as a dmabuf":
        |_| {}, [("SOFTEFA_BREAK", "gpu-memory-14")];
    "a_libfabric_built_without_cuda_is_the_images" (SoftAndGpu) "image" "CUDA-014", "built with CUDA":
        |_| {}, [("SOFTEFA_BREAK", "gpu-memory-38")];
    "a_thread_without_a_context_is_the_programs" (SoftAndGpu) "code" "CUDA-014", "context current in the thread":
        |_| {}, [("SOFTEFA_BREAK", "gpu-memory-thread")];
};

#[test]
fn each_problem_is_reported_alone_with_its_fix() {
    all_alone(PAINS);
}

#[test]
fn memory_of_a_gpu_registers_on_a_sound_machine() {
    pass(&checked(SoftAndGpu, &sound("healthy"), &[]), &["CUDA-014"]);
    checked(Soft, &sound("healthy"), &[]);
}

/// A put's document and status. A wait that nothing ends takes half of the limit.
fn put_on(stack: Stack, args: &[&str], set: &[(&str, &str)]) -> (Value, i32) {
    let machine = sound("put");
    let (mut command, _folder) = sound::command(stack, &machine, &["put", "--executor", "host", "--json"]);
    command.args(["--time-limit", "5000"]).args(args).env("SOFTEFA_ADAPTERS", "2");
    ended(command.envs(set.iter().copied()))
}

/// The same on the software adapter.
fn put(args: &[&str], set: &[(&str, &str)]) -> (Value, i32) {
    put_on(Soft, args, set)
}

/// The observed text of PUT-001.
fn observed(document: &Value) -> &str {
    check(document, "PUT-001")["observed"].as_str().expect("a text")
}

const DEAD: (&str, &str) = ("SOFTEFA_BREAK", "dead-endpoint");
const DROPPED: (&str, &str) = ("SOFTEFA_DROP_LOOPBACK", "1");

#[test]
fn a_network_that_drops_everything_is_the_security_groups() {
    assert_eq!(put_on(Adapters, &[], &[]).1, 0);
    let (document, _) = put_on(Adapters, &[], &[DEAD]);
    alone(&document, &["PUT-001"], "security group", "host");
    assert!(
        observed(&document)
            .starts_with("no write completed within 2500 ms, neither to this adapter nor to softefa1-rdm"),
        "{document:#}"
    );
}

#[test]
fn lost_requests_of_the_software_adapter_are_no_matter_of_a_network() {
    assert_eq!(put(&[], &[]).1, 0);
    at_once(&[&[DEAD][..], &[DROPPED, ("SOFTEFA_ADAPTERS", "1")]], |defect| {
        let (document, _) = put(&[], defect);
        alone(&document, &["PUT-001"], "unset SOFTEFA_BREAK", "code");
        assert!(!document.to_string().contains("security group"), "{document:#}");
    });
}

#[test]
fn loopback_that_a_platform_drops_is_a_warning_and_puts_go_to_another_adapter() {
    at_once(&["write", "write-imm", "inline-write", "read", "send"], |op| {
        let (document, status) = put(&["--op", op, "--count", "300", "--bytes", "48"], &[DROPPED]);
        alone(&document, &["PUT-001"], "fi_pingpong -p efa HOST", "code");
        assert!(observed(&document).starts_with("a write to softefa1-rdm completed"), "{document:#}");
        let put = &document["put"];
        assert_eq!(
            (&put["verified"], &put["target"], status),
            (&true.into(), &"softefa1-rdm".into(), 4),
            "{op}"
        );
    });
}

#[test]
fn puts_to_another_adapter_have_the_requested_doorbell_mode() {
    let (document, status) = put(&["--doorbell", "staged"], &[DROPPED]);
    assert_eq!(
        (&document["put"]["verified"], &document["put"]["doorbell"], status),
        (&true.into(), &"staged".into(), 4)
    );
}

#[test]
fn a_counter_counts_writes_to_another_adapter_where_loopback_is_dropped() {
    let counters = [("FI_EFA_USE_HW_CNTR", "1"), ("SOFTEFA_HW_CNTR", "1"), DROPPED];
    let (document, _) = put(&[], &counters);
    says(&document, "GDA-010", "observed", &["one success and one error; the writes went to softefa1-rdm"]);
    let (document, _) = put(&["--device", "softefa1"], &counters);
    says(&document, "GDA-010", "why", &["of this adapter to itself", "--device leaves"]);
}

#[test]
fn lost_loopback_of_the_only_adapter_is_a_failure_that_names_the_way_to_a_peer() {
    let cases = [
        (&[][..], ("SOFTEFA_ADAPTERS", "1"), "this node shows no other adapter"),
        (&["--device", "softefa1"], ("SOFTEFA_ADAPTERS", "2"), "--device leaves"),
    ];
    at_once(&cases, |(args, set, why)| {
        let (document, _) = put_on(Adapters, args, &[DROPPED, *set]);
        assert!(observed(&document).contains(why), "{document:#}");
        says(&document, "PUT-001", "fix", &["fi_pingpong -p efa HOST"]);
    });
}

#[test]
fn a_put_of_a_gpu_alone_goes_to_another_adapter_where_loopback_is_dropped() {
    at_once(&["direct", "record", "staged"], |mode| {
        let mut command = probe(&["put", "--soft", "--json", "--executor", "cuda", "--gpu", "0"]);
        command.args(["--time-limit", "5000", "--doorbell", mode, "--count", "300"]);
        command.env("SOFTEFA_LIBRARY", provider()).env("SOFTEFA_ADAPTERS", "2").envs(cuda::VARIABLES);
        let (document, _) = ended(command.env(DROPPED.0, DROPPED.1));
        assert!(observed(&document).starts_with("a write to softefa1-rdm completed"), "{document:#}");
        let put = &document["put"];
        assert_eq!(
            (&put["verified"], &put["target"], &put["executor"], &put["doorbell"]),
            (&true.into(), &"softefa1-rdm".into(), &"cuda".into(), &(*mode).into())
        );
    });
}

#[test]
fn a_gpu_puts_to_another_adapter_where_loopback_is_dropped() {
    let mut command =
        probe(&["check", "--soft", "--json", "--gpu", "0", "--pairs", "all", "--time-limit", "5000"]);
    command.env("SOFTEFA_LIBRARY", provider()).env("SOFTEFA_ADAPTERS", "2").envs(cuda::VARIABLES);
    let document = document(&output(command.env(DROPPED.0, DROPPED.1)));
    assert_eq!(document["put"]["target"], "softefa1-rdm");
}
