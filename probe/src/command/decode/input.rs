//! Converts the input of `decode` to bytes: hex in the formats of common tools, or binary.

/// Hex digits of the shortest entry, a receive descriptor.
const SHORTEST: usize = 32;

/// Why text is not hex.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InputError {
    /// A character that is neither a hex digit nor a separator.
    #[error("{0:?} is not a hex digit; between digits only spaces, colons, commas and underscores may stand")]
    Digit(char),
    /// Several entries.
    #[error(
        "{0} captured entries: give one of them, such as the third: sed -n 3p FILE | gda-probe decode --wqe"
    )]
    Captured(usize),
    /// An odd number of digits.
    #[error("the input has {0} hex digits; whole bytes need an even number")]
    Half(usize),
}

/// The hex in a line of softefa's capture, whose first three words are numbers: adapter, queue pair and index.
fn captured(text: &str) -> Option<&str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_number = |word: &&str| word.parse::<u64>().is_ok();
    match words[..] {
        [adapter, pair, index, bytes] if [adapter, pair, index].iter().all(is_number) => {
            (bytes.len() >= SHORTEST).then_some(bytes)
        }
        _ => None,
    }
}

/// Parses hex digits. White space, colons, underscores, commas and the prefix 0x of a word are ignored.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>, InputError> {
    let lines = text.lines().filter(|line| captured(line).is_some()).count();
    if lines > 1 {
        return Err(InputError::Captured(lines));
    }
    let text = captured(text).unwrap_or(text);
    let mut digits = Vec::new();
    for word in text.split(|letter: char| letter.is_whitespace() || matches!(letter, ':' | '_' | ',')) {
        let word = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
        for letter in word.chars() {
            let value = letter.to_digit(16).and_then(|value| u8::try_from(value).ok());
            digits.push(value.ok_or(InputError::Digit(letter))?);
        }
    }
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(InputError::Half(digits.len()));
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Parses the content of a file: as hex if it holds only printable characters, otherwise as bytes.
pub(crate) fn from_file(content: &[u8]) -> Result<Vec<u8>, InputError> {
    match std::str::from_utf8(content) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => {
            from_hex(text)
        }
        _ => Ok(content.to_vec()),
    }
}
