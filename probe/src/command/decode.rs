//! `gda-probe decode`: every field of a queue entry, and every rule that it breaks. Fields carry the
//! names of `efa_io_defs.h`.

use std::fmt::Write as _;
use std::mem::offset_of;

use efa_gda::wire::{
    Completion, CompletionDecodeError, CompletionKind, DecodedRequest, Operation, OperationCode,
    RemoteMemory, RequestIdWidth, Segment, WorkRequest,
};
use efa_gda_sys::io::efa_io_tx_meta_desc;
use serde::Serialize;

use super::CommandError;
use crate::cli::{Common, DecodeArgs};
use crate::exit::Exit;
use crate::report::Document;

/// A completion's phase bit and immediate flag in its flags byte, which is byte 3.
const CQE_FLAGS: usize = 3;

/// A decoded entry.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Decoded {
    /// `wqe` or `cqe`.
    kind: &'static str,
    /// Bytes of the entry.
    bytes: usize,
    /// Fields in the order of the entry.
    fields: Vec<Field>,
    /// Rules that it breaks.
    broken: Vec<String>,
}

/// A field's name and value.
#[derive(Debug, Serialize)]
struct Field {
    name: String,
    value: String,
}

impl Decoded {
    fn field(&mut self, name: impl Into<String>, value: impl ToString) {
        self.fields.push(Field { name: name.into(), value: value.to_string() });
    }

    /// Writes it for people.
    pub(crate) fn render(&self, out: &mut String) {
        let _ = writeln!(out, "{} of {} bytes", self.kind, self.bytes);
        for field in &self.fields {
            let _ = writeln!(out, "  {:<16} {}", field.name, field.value);
        }
        for rule in &self.broken {
            let _ = writeln!(out, "  broken rule: {rule}");
        }
        if self.broken.is_empty() {
            out.push_str("  no rule is broken\n");
        }
    }
}

/// Decodes what was given.
pub(crate) fn run(common: &Common, args: &DecodeArgs) -> Result<(Document, Exit), CommandError> {
    let ids = if args.request_id_bits == "64" { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let decoded = match (&args.wqe, &args.cqe) {
        (Some(hex), _) => work_request(&bytes_of(hex)?, ids)?,
        (None, Some(hex)) => completion(&bytes_of(hex)?, ids)?,
        (None, None) => return Err(CommandError::Input("give --wqe HEX or --cqe HEX".to_owned())),
    };
    let exit = if decoded.broken.is_empty() { Exit::Fine } else { Exit::Failed };
    let mut document = Document::new("decode", common.soft);
    document.decode = Some(decoded);
    Ok((document, exit))
}

/// Bytes of hex digits; white space, colons, underscores and a leading 0x are passed over.
fn bytes_of(hex: &str) -> Result<Vec<u8>, CommandError> {
    let hex = hex.trim();
    let hex = hex.strip_prefix("0x").unwrap_or(hex);
    let passed_over = |digit: &char| digit.is_whitespace() || matches!(digit, ':' | '_');
    let mut digits = Vec::new();
    for digit in hex.chars().filter(|digit| !passed_over(digit)) {
        let value = digit.to_digit(16).and_then(|value| u8::try_from(value).ok());
        digits.push(value.ok_or_else(|| CommandError::Input(format!("{digit:?} is no hex digit")))?);
    }
    if digits.len() % 2 != 0 {
        return Err(CommandError::Input(format!("{} hex digits do not make whole bytes", digits.len())));
    }
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn bit(value: u8, at: u32) -> u8 {
    value >> at & 1
}

fn work_request(bytes: &[u8], ids: RequestIdWidth) -> Result<Decoded, CommandError> {
    let entry = DecodedRequest::decode(bytes, ids).map_err(|error| CommandError::Input(error.to_string()))?;
    let mut decoded = Decoded { kind: "wqe", bytes: bytes.len(), ..Decoded::default() };
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let word = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
    let long = |at: usize| u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
    let (ctrl1, ctrl2) =
        (byte(offset_of!(efa_io_tx_meta_desc, ctrl1)), byte(offset_of!(efa_io_tx_meta_desc, ctrl2)));
    let operation = OperationCode::from_number(u32::from(entry.operation_code));
    let name = operation.map_or_else(|| "unknown".to_owned(), |operation| operation.to_string());
    decoded.field("req_id", entry.id.get());
    decoded.field("op_type", format!("{} ({name})", entry.operation_code));
    for (name, at) in [("has_imm", 4), ("inline_msg", 5), ("meta_extension", 6), ("meta_desc", 7)] {
        decoded.field(name, bit(ctrl1, at));
    }
    for (name, at) in [("phase", 0), ("first", 2), ("last", 3), ("comp_req", 4)] {
        decoded.field(name, bit(ctrl2, at));
    }
    decoded.field("dest_qp_num", word(offset_of!(efa_io_tx_meta_desc, dest_qp_num)));
    decoded.field("length", word(offset_of!(efa_io_tx_meta_desc, length)));
    decoded.field("immediate_data", format!("{:#x}", long(offset_of!(efa_io_tx_meta_desc, immediate_data))));
    decoded.field("ah", word(offset_of!(efa_io_tx_meta_desc, ah)));
    decoded.field("ctrl3", format!("{:#x}", byte(offset_of!(efa_io_tx_meta_desc, ctrl3))));
    decoded.field("qkey", format!("{:#x}", long(offset_of!(efa_io_tx_meta_desc, qkey))));
    match &entry.request {
        Some(request) => payload(&mut decoded, request),
        None => decoded.field("payload", "cannot be told from these fields"),
    }
    decoded.broken = entry.broken.iter().map(|rule| rule.to_string()).collect();
    Ok(decoded)
}

fn payload(decoded: &mut Decoded, request: &WorkRequest) {
    match &request.operation {
        Operation::Send(segments) => {
            segments
                .iter()
                .enumerate()
                .for_each(|(index, one)| segment(decoded, &format!("sgl[{index}]"), one));
        }
        Operation::SendInline(data) => decoded.field("inline_data", hex(data)),
        Operation::Write { remote, local } | Operation::Read { remote, local } => {
            target(decoded, remote);
            decoded.field("remote_mem.length", local.length);
            segment(decoded, "local_mem", local);
        }
        Operation::WriteInline { remote, data } => {
            target(decoded, remote);
            decoded.field("remote_mem.length", data.len());
            decoded.field("inline_data", hex(data));
        }
        // The enumeration may grow; its fields above are named all the same.
        #[allow(unreachable_patterns)]
        _ => decoded.field("payload", "of a kind that this version does not name"),
    }
}

fn segment(decoded: &mut Decoded, name: &str, segment: &Segment) {
    decoded.field(format!("{name}.length"), segment.length);
    decoded.field(format!("{name}.lkey"), format!("{:#x}", segment.key.get()));
    decoded.field(format!("{name}.buf_addr"), format!("{:#x}", segment.address));
}

fn target(decoded: &mut Decoded, remote: &RemoteMemory) {
    decoded.field("remote_mem.rkey", format!("{:#x}", remote.key.get()));
    decoded.field("remote_mem.buf_addr", format!("{:#x}", remote.address));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn completion(bytes: &[u8], ids: RequestIdWidth) -> Result<Decoded, CommandError> {
    let mut decoded = Decoded { kind: "cqe", bytes: bytes.len(), ..Decoded::default() };
    let completion = match Completion::decode(bytes, ids) {
        Ok(completion) => completion,
        Err(error @ CompletionDecodeError::UnknownQueue(_)) => {
            decoded.field("flags", format!("{:#04x}", bytes[CQE_FLAGS]));
            decoded.broken.push(error.to_string());
            return Ok(decoded);
        }
        Err(error) => return Err(CommandError::Input(error.to_string())),
    };
    let flags = bytes[CQE_FLAGS];
    let operation = OperationCode::from_number(u32::from(completion.operation_code));
    let name = operation.map_or_else(|| "unknown".to_owned(), |operation| operation.to_string());
    decoded.field("req_id", completion.id.get());
    decoded.field("status", format!("{} ({})", completion.status.code(), completion.status));
    decoded.field("phase", bit(flags, 0));
    let send = matches!(completion.kind, CompletionKind::Send);
    decoded.field("q_type", if send { "1 (send queue)" } else { "2 (receive queue)" });
    decoded.field("has_imm", bit(flags, 3));
    decoded.field("op_type", format!("{} ({name})", completion.operation_code));
    decoded.field("unsolicited", bit(flags, 7));
    decoded.field("qp_num", completion.queue_pair.get());
    if let CompletionKind::Receive(info) = completion.kind {
        decoded.field("length", info.length);
        decoded.field("ah", info.address_handle.get());
        decoded.field("src_qp_num", info.source_queue_pair.get());
        if let Some(immediate) = info.immediate {
            decoded.field("imm", format!("{immediate:#x}"));
        }
    }
    if operation.is_none() {
        decoded.broken.push(format!(
            "op_type (flags bits 6:4) is {}, which is no operation",
            completion.operation_code
        ));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::bytes_of;

    #[test]
    fn hex_may_be_written_the_way_tools_print_it() {
        assert_eq!(bytes_of("0x01:ff 7_f").unwrap(), [1, 255, 127]);
    }

    #[test]
    fn half_a_byte_and_other_letters_are_refused() {
        assert!(bytes_of("123").is_err() && bytes_of("zz").is_err());
    }
}
