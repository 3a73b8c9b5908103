//! Fuzzes the decoder of completions. Any bytes of any length are decoded or refused, and a decoded
//! completion that is encoded again decodes to the same value.
#![no_main]

use efa_gda_wire::{Completion, RequestIdWidth};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, entry)) = input.split_first() else { return };
    let ids = if first & 1 == 0 { RequestIdWidth::Bits16 } else { RequestIdWidth::Bits64 };
    let Ok(completion) = Completion::decode(entry, ids) else { return };
    let phase = Completion::phase(entry[Completion::FLAGS_OFFSET]);
    let mut again = vec![0; entry.len()];
    completion.encode(&mut again, phase, ids);
    assert_eq!(Completion::phase(again[Completion::FLAGS_OFFSET]), phase);
    let twice = Completion::decode(&again, ids).expect("the encoding of a decoded completion is valid");
    assert_eq!(twice, completion);
});
