//! The checked-in bindings equal those that bindgen generates from the headers.
//!
//! The build script has generated the latter (feature `regenerate`), and the crate that is linked here asserts their
//! layouts when it is compiled. With `EFA_GDA_BLESS=1` the tests write them to `src/generated/` and pass.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

fn compare(name: &str) {
    let fresh = fs::read_to_string(Path::new(env!("OUT_DIR")).join(name)).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated").join(name);
    if std::env::var_os("EFA_GDA_BLESS").is_some_and(|value| value == "1") {
        return fs::write(&file, fresh).unwrap();
    }
    let checked_in = fs::read_to_string(&file).unwrap_or_default();
    let differs = checked_in.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    assert!(
        checked_in == fresh,
        "{} differs from the bindings of the headers, first in line {}; regenerate it with: \
         EFA_GDA_BLESS=1 cargo test -p {} --features regenerate --test bindings",
        file.display(),
        differs.unwrap_or_else(|| checked_in.lines().count().min(fresh.lines().count())) + 1,
        env!("CARGO_PKG_NAME"),
    );
}

#[test]
fn io_equals_the_generated_bindings() {
    if std::env::var_os("EFA_IO_DEFS_H").is_some_and(|file| !file.is_empty()) {
        return efa_gda_test_support::skip("EFA_IO_DEFS_H names another header");
    }
    compare("io.rs");
}

#[test]
fn fi_equals_the_generated_bindings() {
    compare("fi.rs");
}

#[test]
fn verbs_equals_the_generated_bindings() {
    compare("verbs.rs");
}

#[test]
fn device_equals_the_generated_bindings() {
    compare("device.rs");
}
