//! The checked-in bindings equal those that bindgen generates from the headers.
//!
//! The build script has generated the latter (feature `regenerate`), and the crate that is linked here asserts their
//! layouts when it is compiled. With `EFA_GDA_BLESS=1` the test writes them to `src/generated/` and passes.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

#[test]
fn sys_equals_what_bindgen_generates() {
    let fresh = fs::read_to_string(concat!(env!("OUT_DIR"), "/sys.rs")).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated/sys.rs");
    if std::env::var_os("EFA_GDA_BLESS").is_some_and(|value| value == "1") {
        return fs::write(&file, fresh).unwrap();
    }
    let checked_in = fs::read_to_string(&file).unwrap_or_default();
    let differs = checked_in.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    assert!(
        checked_in == fresh,
        "{} differs from the bindings of the headers, first in line {}; regenerate it with: \
         EFA_GDA_BLESS=1 cargo test -p softefa-abi --features regenerate --test bindings",
        file.display(),
        differs.unwrap_or_else(|| checked_in.lines().count().min(fresh.lines().count())) + 1,
    );
}
