//! `gda-probe decode`: every field of a queue entry, and every rule that it breaks.
//!
//! - [`input`]: from hex, a file or stdin to bytes.

mod input;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use efa_gda_wire::RequestIdWidth;

use super::CommandError;
use crate::cli::{Common, DecodeArgs};
use crate::decode;
use crate::exit::Exit;
use crate::model::Document;

/// Far more than an entry in any dump; the rest of a file is not read.
const MOST_BYTES: u64 = 64 << 10;

/// Decodes what was given.
pub(crate) fn run(common: &Common, args: &DecodeArgs) -> Result<(Document, Exit), CommandError> {
    let ids = if args.request_id_bits == "64" { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
    let decoded = match (&args.wqe, &args.cqe) {
        (Some(given), _) => decode::work_entry(&bytes_of(given.as_deref(), args)?, ids),
        (None, Some(given)) => decode::completion(&bytes_of(given.as_deref(), args)?, ids),
        (None, None) => {
            return Err(malformed("give --wqe or --cqe, with hex, --file FILE, or bytes on stdin"));
        }
    }
    .map_err(malformed)?;
    let exit = if decoded.broken.is_empty() { Exit::Fine } else { Exit::Failed };
    let mut document = Document::new("decode", common.soft);
    document.decode = Some(decoded);
    Ok((document, exit))
}

fn malformed(why: impl ToString) -> CommandError {
    CommandError::Input(why.to_string())
}

/// The bytes: of the hex on the command line, or else of the file, or else of stdin.
fn bytes_of(given: Option<&str>, args: &DecodeArgs) -> Result<Vec<u8>, CommandError> {
    let stdin = Path::new("-");
    let content = match (given.filter(|hex| *hex != "-"), args.file.as_deref().unwrap_or(stdin)) {
        (Some(_), file) if file != stdin => {
            return Err(malformed("give either hex or --file, not both"));
        }
        (Some(hex), _) => return input::from_hex(hex).map_err(malformed),
        (None, file) if file == stdin => read(std::io::stdin().lock(), "stdin")?,
        (None, file) => {
            let opened =
                File::open(file).map_err(|error| malformed(format!("{}: {error}", file.display())))?;
            read(opened, &file.display().to_string())?
        }
    };
    if args.binary { Ok(content) } else { input::from_file(&content).map_err(malformed) }
}

fn read(from: impl Read, name: &str) -> Result<Vec<u8>, CommandError> {
    let mut content = Vec::new();
    from.take(MOST_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(|error| malformed(format!("{name}: {error}")))?;
    if content.len() as u64 > MOST_BYTES {
        return Err(malformed(format!("{name} holds more than {MOST_BYTES} bytes; cut one entry out of it")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::input::{from_file, from_hex};

    #[test]
    fn hex_may_be_written_the_way_tools_print_it() {
        assert_eq!(from_hex("0x01:ff 7_f, 0x2a\n").unwrap(), [1, 255, 127, 42]);
    }

    #[test]
    fn half_a_byte_and_other_letters_are_refused() {
        assert!(from_hex("123").is_err() && from_hex("zz").is_err());
    }

    #[test]
    fn a_file_of_anything_but_printable_letters_is_its_bytes() {
        assert_eq!(from_file(&[0, 0x41]).unwrap(), [0, 0x41]);
    }
}
