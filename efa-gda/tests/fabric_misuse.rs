//! Misuse of the API that must not compile. Each file in `ui/` holds one mistake, and its `.stderr` the
//! compiler's messages (`TRYBUILD=overwrite` regenerates them).
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

use std::process::Command;

use efa_gda_test_support::{output, skip};

/// The release whose messages the `.stderr` files hold; other releases word them differently.
const WRITTEN_BY: &str = "rustc 1.95.";

#[test]
fn misuse_does_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("--version")).stdout;
    let version = String::from_utf8(version).unwrap();
    if !version.starts_with(WRITTEN_BY) && std::env::var_os("TRYBUILD").is_none() {
        return skip(format!("tests/ui/*.stderr hold the messages of {WRITTEN_BY}x; RUSTC is {version}"));
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
