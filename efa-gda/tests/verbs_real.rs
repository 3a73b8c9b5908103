//! The verbs layer over the rdma-core that is installed, of any release: what is told of it holds,
//! and calls into it answer with errors that have names. Needs no adapter.

#![allow(clippy::unwrap_used, missing_docs)]

use efa_gda::verbs::{Error, Library, LoadError};
use efa_gda_sys::verbs as sys;
use efa_gda_test_support::{Need, missing};

/// The installed libraries. None, with the skip recorded, where they are not installed.
fn installed() -> Option<Library> {
    match Library::load() {
        Ok(library) => Some(library),
        Err(Error::Load(LoadError::NotFound { library, .. })) => {
            missing(Need::Verbs, format!("{library} is not installed"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn functions_are_there_from_the_release_on_that_is_said_to_have_brought_them() {
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
fn both_libraries_are_of_one_release() {
    let Some(library) = installed() else { return };
    let (ibverbs, efa) = library.libraries().unwrap();
    assert_eq!(ibverbs.release.named, efa.release.named);
}

#[test]
fn a_device_that_is_not_there_is_answered_by_name_or_by_errno() {
    let Some(library) = installed() else { return };
    match library.adapter(Some("no such device")) {
        Err(Error::NoSuchDevice { wanted, .. }) => assert_eq!(wanted, "no such device"),
        // A kernel without InfiniBand at all.
        Err(error) => assert_eq!(error.operation(), Some("ibv_get_device_list"), "{error}"),
        Ok(context) => panic!("{context:?}"),
    }
}
