//! Writes the first inputs of the fuzz targets that decode entries, encoded by the wire crate, and of the one that reads
//! events: `efa-gda-fuzz DIRECTORY`. The inputs of the other targets have no format outside the fuzzer, so it writes
//! none for them.

use std::path::Path;
use std::{env, fs, io, process};

use efa_gda_wire::*;

fn main() {
    let Some(directory) = env::args_os().nth(1) else {
        eprintln!("usage: efa-gda-fuzz DIRECTORY");
        process::exit(2);
    };
    if let Err(error) = write(Path::new(&directory)) {
        eprintln!("efa-gda-fuzz: {}: {error}", Path::new(&directory).display());
        process::exit(1);
    }
}

fn write(directory: &Path) -> io::Result<()> {
    let put = |target: &str, name: String, bytes: &[u8]| {
        let folder = directory.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    for (ids, flag) in [(RequestIdWidth::Bits16, 0), (RequestIdWidth::Bits64, 1)] {
        for (number, request) in requests().into_iter().enumerate() {
            for size in [EntrySize::B64, EntrySize::B128] {
                let Ok(entry) = request.encode(size, number % 2 == 1, ids) else { continue };
                let name = format!("{number}-{}-{flag}", size.bytes());
                put("wire_tx", name.clone(), &[&[flag], &*entry].concat())?;
                put("probe_decode", name, &entry)?;
            }
        }
        for (number, completion) in completions().into_iter().enumerate() {
            for length in [16, 32] {
                let mut entry = vec![0; length];
                completion.encode(&mut entry, number % 2 == 0, ids);
                let name = format!("completion-{number}-{length}-{flag}");
                put("wire_completion", name.clone(), &[&[flag], entry.as_slice()].concat())?;
                put("probe_decode", name, &entry)?;
            }
        }
    }
    let key = LocalKey::new(0x55).expect("24 bits");
    let receive = Receive { id: 5, address: 0x1000, length: 8192, key };
    put("wire_rx", "receive".to_owned(), &receive.encode())?;
    put("probe_decode", "receive".to_owned(), &receive.encode())?;
    put("probe_decode", "hex".to_owned(), b"0x07:00 82 1d")?;
    for (number, event) in EVENTS.iter().enumerate() {
        put("probe_events", number.to_string(), format!("{event}\n").as_bytes())?;
    }
    put("probe_events", "all".to_owned(), EVENTS.join("\n").as_bytes())
}

/// Events of the probe's worker, one of each kind.
const EVENTS: [&str; 13] = [
    r#"{"event":"begin","code":"FAB-001","subject":"rdmap0s6"}"#,
    r#"{"event":"finding","finding":{"code":"FAB-001","subject":"a","title":"t","state":"pass","kind":"proven"}}"#,
    r#"{"event":"repeated"}"#,
    r#"{"event":"loaded","path":"/lib/libfabric.so.1"}"#,
    r#"{"event":"started","milliseconds":300}"#,
    r#"{"event":"adapters","names":["rdmap0s6","rdmap0s7"]}"#,
    r#"{"event":"gpus","gpus":[{"number":0,"name":"GPU","pci":"0000:00:04.0"}]}"#,
    r#"{"event":"queues","queues":{}}"#,
    r#"{"event":"more_time","milliseconds":1000}"#,
    r#"{"event":"figure","figure":{"left_out":"case"}}"#,
    r#"{"event":"step","done":1,"total":2,"now":"latency"}"#,
    concat!(
        r#"{"event":"put","put":{"op":"write","bytes":64,"count":1,"completed":1,"verified":true,"#,
        r#""doorbell":"direct","executor":"host","adapter":"rdmap0s6"}}"#
    ),
    r#"{"event":"done"}"#,
];

fn requests() -> Vec<Request> {
    let local = Segment { address: 0x1000, length: 64, key: LocalKey::new(0xab_cdef).expect("24 bits") };
    let remote = RemoteMemory { address: 0x7f00_0000_0000, key: RemoteKey::new(0xdead_beef) };
    let inline = |length: usize| InlineData::new(&vec![0x5a; length]).expect("at most 80");
    let segments = |count: usize| Segments::new(&[local; 2][..count]).expect("at most two");
    let operations = [
        Operation::Send(segments(0)),
        Operation::Send(segments(1)),
        Operation::Send(segments(2)),
        Operation::SendInline(inline(0)),
        Operation::SendInline(inline(32)),
        Operation::SendInline(inline(80)),
        Operation::Write { remote, local },
        Operation::WriteInline { remote, data: inline(80) },
        Operation::Read { remote, local },
    ];
    let peer = Peer {
        address_handle: AddressHandle::new(3),
        queue_pair: QueuePairNumber::new(101),
        queue_key: QueueKey::new(0x1234),
    };
    let mut requests = Vec::new();
    for (id, operation) in operations.into_iter().enumerate() {
        for immediate in [None, Some(0xfeed)] {
            let (id, hints) = (RequestId::new(id as u64), ProcessingHints::BURST_PPS_SENSITIVE);
            requests.push(Request { id, peer, immediate, hints, operation });
        }
    }
    requests
}

fn completions() -> Vec<Completion> {
    let receive = |length, immediate, unsolicited| {
        CompletionKind::Receive(ReceiveInfo {
            length,
            address_handle: AddressHandle::new(2),
            source_queue_pair: QueuePairNumber::new(9),
            immediate,
            unsolicited,
        })
    };
    let of = |status, operation: OperationCode, kind| Completion {
        id: RequestId::new(7),
        status: CompletionStatus::from_code(status),
        operation_code: operation.get() as u8,
        queue_pair: QueuePairNumber::new(1),
        kind,
    };
    vec![
        of(0, OperationCode::Send, CompletionKind::Send),
        of(7, OperationCode::Write, CompletionKind::Send),
        of(0, OperationCode::Send, receive(4096, None, false)),
        of(0, OperationCode::Write, receive(0x2_0010, Some(0xfeed), true)),
    ]
}
