//! Fuzzes the decoder of `gda-probe decode`. A file of any content is refused or described field by field,
//! and every field is inside the entry. Whether the described values are right is tested in the wire crate.
#![no_main]

use efa_gda_wire::RequestIdWidth;
use libfuzzer_sys::fuzz_target;

#[path = "../../probe/src/decode.rs"]
mod decode;
#[path = "../../probe/src/command/decode/input.rs"]
mod input;

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
            assert!(decoded.to_string().lines().count() > decoded.fields.len());
        }
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(input::from_hex(&hex), Ok(bytes));
});
