//! Fuzzes the decoder of send-queue entries. Any 64 or 128 bytes decode, and an entry that breaks no rule
//! decodes to the same value after it is encoded again.
#![no_main]

use efa_gda_wire::{DecodedRequest, RequestIdWidth};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, entry)) = input.split_first() else { return };
    let ids = if first & 1 == 0 { RequestIdWidth::Bits16 } else { RequestIdWidth::Bits64 };
    let Ok(decoded) = DecodedRequest::decode(entry, ids) else {
        assert!(!matches!(entry.len(), 64 | 128), "an entry of {} bytes was refused", entry.len());
        return;
    };
    if !decoded.broken.is_empty() {
        return;
    }
    let request = decoded.request.expect("an entry that breaks no rule has a request");
    let again =
        request.encode(decoded.size, decoded.phase, ids).expect("a request that was decoded can be encoded");
    let twice = DecodedRequest::decode(&again, ids).expect("an encoded entry has a valid size");
    assert_eq!(twice, decoded);
});
