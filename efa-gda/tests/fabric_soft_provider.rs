//! Old, broken and incomplete providers, through this machine's libfabric: each defect is an error of its
//! kind.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use efa_gda::ErrorKind;
use efa_gda::fabric::{
    Bindings, Domain, Fabric, Info, Library, Query, QueryOption, UnavailableReason, Version,
};
use efa_gda::queue::{MappedQueue, WorkRequest};
use efa_gda_test_support::assert_error;
use efa_gda_test_support::soft::provider;
use support::side::{Side, bytes_of};
use support::with_soft_adapter;

fn domain() -> (Info, Domain) {
    let library = Library::load().unwrap();
    let info = Query::new().first(&library).unwrap();
    let domain = Fabric::open(&library, &info).unwrap().domain(&info).unwrap();
    (info, domain)
}

/// Maps a queue of a provider with `defect`, and checks the error.
fn broken(defect: &str, kind: ErrorKind, text: &str) {
    with_soft_adapter(&[("SOFTEFA_BREAK", defect)], |_| {
        let (info, domain) = domain();
        let addresses = domain.address_vector(16).unwrap();
        let completions = domain.completion_queue(1024).unwrap();
        let endpoint = domain.endpoint(&info, Bindings::shared(&addresses, &completions)).unwrap();
        let error = MappedQueue::new(endpoint, &domain.gda_ops().unwrap()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_error!(error, _, text);
    });
}

#[test]
fn loading_a_missing_libfabric_is_an_error() {
    let variables = [("LIBFABRIC_PATH", "/nonexistent/libfabric.so.1")];
    with_soft_adapter(&variables, |_| {
        assert_error!(Library::load().unwrap_err(), ErrorKind::NoLibrary);
    });
}

#[test]
fn the_provider_alone_moves_bytes_without_libfabric() {
    with_soft_adapter(&[("SOFTEFA_PROV_VERSION", "206.0")], |_| {
        // SAFETY: softefa is a provider for the layouts of these bindings.
        let library = unsafe { Library::of_provider(&provider()) }.unwrap();
        let info = Query::new().first(&library).unwrap();
        // libfabric adds these two to a provider's infos.
        assert_eq!((info.provider_name().as_ref(), info.provider_version()), ("efa", Version::new(206, 0)));
        let side = Side::on(&library, info);
        let mut queue = side.queue();
        let (source, target) = (side.region(b"eighteen bytes ..."), side.region(&[0; 18]));
        let peer = queue.insert_peer(&queue.address().unwrap()).unwrap();
        queue.execute(&WorkRequest::write(peer, &source, target.remote())).unwrap();
        assert_eq!(bytes_of(&target), b"eighteen bytes ...");
        queue.close().unwrap();
    });
}

#[test]
fn a_provider_without_fi_xpu_is_an_error_of_that_option() {
    with_soft_adapter(&[], |_| {
        // SAFETY: softefa is a provider for the layouts of these bindings.
        let library = unsafe { Library::of_provider(&provider()) }.unwrap();
        let error = Query::new().xpu(true).first(&library).unwrap_err();
        assert_error!(error, ErrorKind::WithoutOption(QueryOption::Xpu));
    });
}

#[test]
fn a_library_that_is_no_provider_is_an_error() {
    with_soft_adapter(&[], |_| {
        // SAFETY: the C library is sound to load, and exports no entry point.
        let error = unsafe { Library::of_provider(std::path::Path::new("libc.so.6")) }.unwrap_err();
        assert!(error.to_string().contains("libc.so.6 is not a provider of libfabric"), "{error}");
    });
}

#[test]
fn a_query_without_an_efa_provider_reports_no_adapter() {
    with_soft_adapter(&[("FI_PROVIDER", "tcp")], |_| {
        let error = Query::new().find(&Library::load().unwrap()).unwrap_err();
        assert_error!(error, ErrorKind::NoAdapter);
        assert_eq!(error.code(), Some(-libc::ENODATA));
    });
}

#[test]
fn a_provider_without_the_direct_fabric_is_reported_with_its_fabrics() {
    let variables = [("SOFTEFA_FABRICS", "efa")];
    with_soft_adapter(&variables, |_| {
        let error = Query::new().find(&Library::load().unwrap()).unwrap_err();
        assert_error!(error, ErrorKind::NoDirectFabric, "offers the fabrics efa, not efa-direct");
    });
}

#[test]
fn a_query_returns_only_the_direct_fabric_where_both_fabrics_exist() {
    let variables = [("SOFTEFA_FABRICS", "efa,efa-direct")];
    with_soft_adapter(&variables, |_| {
        let infos = Query::new().find(&Library::load().unwrap()).unwrap();
        assert!(infos.iter().all(|info| info.fabric_name() == "efa-direct"), "{infos:?}");
    });
}

#[test]
fn an_adapter_is_found_by_its_name_among_several() {
    let variables = [("SOFTEFA_ADAPTERS", "3")];
    with_soft_adapter(&variables, |_| {
        let library = Library::load().unwrap();
        let infos = Query::new().find(&library).unwrap();
        assert_eq!(infos.len(), 3, "{infos:?}");
        let wanted = infos[1].domain_name();
        let found = Query::new().adapter(&*wanted).find(&library).unwrap();
        assert_eq!(found.iter().map(Info::domain_name).collect::<Vec<_>>(), [wanted]);
    });
}

#[test]
fn a_query_for_gpu_memory_fails_where_the_provider_has_none() {
    with_soft_adapter(&[("SOFTEFA_HMEM", "0")], |_| {
        let error = Query::new().gpu_memory(true).find(&Library::load().unwrap()).unwrap_err();
        assert_error!(error, ErrorKind::WithoutOption(QueryOption::GpuMemory));
    });
}

#[test]
fn provider_203_has_five_operations_and_206_the_sixth() {
    let (has, needs) = (Version::new(203, 0), Version::new(206, 0));
    let absent = ("cntr_open_ext", Err(UnavailableReason::ProviderTooOld { has, needs }));
    for (version, expected) in [("203.0", vec![absent]), ("206.0", vec![])] {
        with_soft_adapter(&[("SOFTEFA_PROV_VERSION", version)], |_| {
            let all = domain().1.gda_ops().unwrap().available();
            let absent: Vec<_> = all.into_iter().filter(|(_, op)| op.is_err()).collect();
            assert_eq!(absent, expected);
        });
    }
}

#[test]
fn a_queue_of_invalid_geometry_is_refused_with_the_rule_that_it_breaks() {
    let broken_rule = |defect, text| broken(defect, ErrorKind::Exposure, text);
    broken_rule("depth0", "the send queue has 0 entries");
    broken_rule("depth3", "the send queue has 3 entries; a power of two");
    broken("entry96", ErrorKind::Unsupported, "entries of the send queue have 96 bytes");
    broken_rule("unaligned-doorbell", "the send queue's doorbell is at");
    broken_rule("null-buffer", "the send queue's buffer is null");
}
