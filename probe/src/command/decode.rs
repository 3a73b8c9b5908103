//! `gda-probe decode`: prints every field of a queue entry and every rule that it breaks. [`input`]
//! converts hex and files to bytes, the module `decode` bytes to fields.

mod input;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use efa_gda_wire::RequestIdWidth;

use super::CommandError;
use crate::cli::{Common, DecodeArgs};
use crate::decode::{self, Decoded, EntryError};
use crate::exit::Exit;
use crate::model::Document;
use crate::model::text::note;

/// The most bytes that are read of a file; an entry in any format is much shorter.
const MAX_BYTES: u64 = 64 << 10;

/// How the bytes of an entry are decoded.
type Decode = fn(&[u8], RequestIdWidth) -> Result<Decoded, EntryError>;

/// Decodes the entry on the command line, in a file or on stdin.
pub(crate) fn run(common: &Common, args: &DecodeArgs) -> Result<(Document, Exit), CommandError> {
    let ids = if args.request_id_bits == "64" { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let (hex, decode): (_, Decode) = match (&args.wqe, &args.cqe) {
        (Some(hex), _) => (hex, decode::work_entry),
        (None, Some(hex)) => (hex, decode::completion),
        (None, None) => {
            return Err(malformed("give --wqe or --cqe, with hex, --file FILE, or bytes on stdin"));
        }
    };
    let bytes = bytes_of(hex.as_deref(), args)?;
    let decoded = decode(&bytes, ids).map_err(malformed)?;
    let breaks_no_rule = |ids| decode(&bytes, ids).is_ok_and(|decoded| decoded.broken.is_empty());
    if !decoded.broken.is_empty() && breaks_no_rule(RequestIdWidth::Bits64) {
        note(
            "gda-probe: with --request-id-bits 64 it breaks no rule; use that for a queue with wide request ids",
        );
    }
    let exit = if decoded.broken.is_empty() { Exit::Fine } else { Exit::Failed };
    let mut document = Document::new("decode", common.soft);
    document.decode = Some(decoded);
    Ok((document, exit))
}

fn malformed(why: impl ToString) -> CommandError {
    CommandError::Input(why.to_string())
}

/// The bytes of the hex on the command line; without hex, of the file; without a file, of stdin.
fn bytes_of(hex: Option<&str>, args: &DecodeArgs) -> Result<Vec<u8>, CommandError> {
    let stdin = Path::new("-");
    let (content, name) = match (hex.filter(|hex| *hex != "-"), args.file.as_deref().unwrap_or(stdin)) {
        (Some(_), file) if file != stdin => {
            return Err(malformed("the entry is on the command line and in --file; give one of them"));
        }
        (Some(hex), _) => return input::from_hex(hex).map_err(malformed),
        (None, file) if file == stdin => (read(std::io::stdin().lock(), "stdin")?, "stdin".to_owned()),
        (None, file) => {
            let name = format!("the file {}", file.display());
            // Without O_NONBLOCK, opening a pipe blocks until it has a writer.
            let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file);
            let opened = opened.map_err(|error| unreadable(&name, &error))?;
            if !opened.metadata().map_err(|error| unreadable(&name, &error))?.is_file() {
                return Err(malformed(format!(
                    "{name} is a directory, a pipe or a device; send the entry to stdin"
                )));
            }
            (read(opened, &name)?, name)
        }
    };
    if content.is_empty() {
        return Err(malformed(format!("{name} is empty; give the entry, as hex or as bytes")));
    }
    if args.binary {
        return Ok(content);
    }
    input::from_file(&content).map_err(|error| {
        malformed(format!("{name} holds text that is not hex: {error}; with --binary it is read as bytes"))
    })
}

fn unreadable(name: &str, error: &std::io::Error) -> CommandError {
    malformed(format!("{name} cannot be read: {error}; give --file the path of a file with one entry"))
}

fn read(from: impl Read, name: &str) -> Result<Vec<u8>, CommandError> {
    let mut content = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut content).map_err(|error| unreadable(name, &error))?;
    if content.len() as u64 > MAX_BYTES {
        return Err(malformed(format!(
            "{name} is longer than {MAX_BYTES} bytes; give a file with one entry"
        )));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::input::{from_file, from_hex};

    #[test]
    fn hex_is_accepted_in_the_formats_of_common_tools() {
        assert_eq!(from_hex("0x01:ff 7_f, 0x2a\n").unwrap(), [1, 255, 127, 42]);
    }

    #[test]
    fn an_odd_number_of_digits_and_other_characters_are_refused() {
        assert!(from_hex("123").is_err() && from_hex("zz").is_err());
    }

    #[test]
    fn a_line_of_a_capture_is_its_entry_and_several_lines_are_refused() {
        let entry = "01".repeat(64);
        let line = format!("0 1 7 {entry}\n");
        assert_eq!(from_hex(&line).unwrap(), [1; 64]);
        assert!(from_hex(&line.repeat(2)).unwrap_err().to_string().starts_with("2 captured entries"));
        // Words of hex are no capture.
        assert_eq!(from_hex("10 20 30 40").unwrap(), [0x10, 0x20, 0x30, 0x40]);
    }

    #[test]
    fn a_file_with_unprintable_characters_is_read_as_bytes() {
        assert_eq!(from_file(&[0, 0x41]).unwrap(), [0, 0x41]);
    }
}
