//! The verbs layer over the installed rdma-core, of any release: its functions are those of its release, and
//! failed calls return errors of their kind. Needs no adapter.

#![allow(clippy::unwrap_used, missing_docs)]

use efa_gda::ErrorKind;
use efa_gda::verbs::{Library, LoadError};
use efa_gda_sys::verbs as sys;
use efa_gda_test_support::{Need, missing};

/// The installed libraries. None, with the skip recorded, where they are not installed.
fn installed() -> Option<Library> {
    match Library::load() {
        Ok(library) => Some(library),
        Err(error) => match error.cause() {
            Some(LoadError::NotFound { library, .. }) => {
                missing(Need::Verbs, format!("{library} is not installed"));
                None
            }
            _ => panic!("{error}"),
        },
    }
}

#[test]
fn functions_are_present_from_the_release_that_introduced_them() {
    let Some(library) = installed() else { return };
    let (ibverbs, efa) = library.libraries().unwrap();
    let missing = library.missing();
    for call in sys::CALLS {
        let loaded = if call.library == sys::Library::Ibverbs { ibverbs } else { efa };
        let (major, _) = loaded.release.named.expect("distributions name the file by the release");
        assert_eq!(missing.contains(call), call.since > major, "{call} in {}", loaded.path.display());
    }
}

#[test]
fn an_unknown_device_is_reported_by_name_or_by_errno() {
    let Some(library) = installed() else { return };
    match library.adapter(Some("no such device")) {
        Err(error) if error.kind() == ErrorKind::NoAdapter => {
            assert!(error.to_string().starts_with("no device has the name no such device"), "{error}");
        }
        // The kernel has no InfiniBand support.
        Err(error) => assert_eq!(error.operation(), Some("ibv_get_device_list"), "{error}"),
        Ok(context) => panic!("{context:?}"),
    }
}
