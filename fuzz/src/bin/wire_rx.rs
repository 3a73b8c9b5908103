//! Fuzzes the decoder of receive descriptors. Any 16 bytes decode, and encoding restores all bits but the
//! reserved ones.
#![no_main]

use efa_gda_wire::ReceiveDescriptor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: [u8; 16]| {
    let decoded = ReceiveDescriptor::decode(&bytes);
    let again = decoded.encode();
    if decoded.reserved_zero {
        assert_eq!(again, bytes);
    }
    let expected = ReceiveDescriptor { reserved_zero: true, ..decoded };
    assert_eq!(ReceiveDescriptor::decode(&again), expected);
});
