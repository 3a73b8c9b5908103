//! Fuzzes the decoder of `gda-probe decode`. A file of any content is refused or described field by field,
//! and every field is inside the entry. Whether the described values are right is tested in the wire crate.
#![no_main]
#![allow(dead_code, unused_imports)] // the parts of the probe that `decode` does not use

use efa_gda_wire::RequestIdWidth;
use libfuzzer_sys::fuzz_target;

/// The probe's own modules.
#[path = "../../../probe/src"]
mod probe {
    pub(crate) mod decode;
    pub(crate) mod model;
    pub(crate) mod terminal;

    #[path = "command/decode"]
    pub(crate) mod command {
        pub(crate) mod input;
    }

    pub(crate) mod report {
        mod decoded;
        mod style;

        /// What `gda-probe decode` writes into a file.
        pub(crate) fn text(of: &super::decode::Decoded) -> String {
            let mut text = String::new();
            decoded::render(&mut text, of, style::Style::of_file());
            text
        }
    }
}
use probe::command::input;
use probe::{decode, model, terminal};

fuzz_target!(|file: &[u8]| {
    let Ok(bytes) = input::from_file(file) else { return };
    for ids in [RequestIdWidth::Bits16, RequestIdWidth::Bits64] {
        for decoded in
            [decode::work_entry(&bytes, ids), decode::completion(&bytes, ids)].into_iter().flatten()
        {
            assert_eq!(decoded.bytes, bytes.len());
            assert!(!decoded.kind.is_empty() && !decoded.fields.is_empty());
            for field in &decoded.fields {
                assert!(field.offset < bytes.len(), "{} lies at {}", field.name, field.offset);
                assert!(
                    !field.name.is_empty() && !field.meaning.is_empty() && field.bits.as_deref() != Some("")
                );
            }
            assert!(probe::report::text(&decoded).lines().count() > decoded.fields.len());
        }
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(input::from_hex(&hex), Ok(bytes));
});
