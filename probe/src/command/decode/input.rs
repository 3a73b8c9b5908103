//! What `decode` is given, as bytes: hex the way tools print it, or the bytes themselves. Nothing here knows
//! what they mean, or where they came from.

/// Why an input is no bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InputError {
    /// A character that no hex dump has.
    #[error("{0:?} is no hex digit")]
    Digit(char),
    /// An odd number of digits.
    #[error("{0} hex digits do not make whole bytes")]
    Half(usize),
}

/// Bytes of hex digits; white space, colons, underscores, commas and a leading 0x of any word are passed over.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>, InputError> {
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

/// Bytes of a file: its hex where it holds nothing else, itself otherwise.
pub(crate) fn from_file(content: &[u8]) -> Result<Vec<u8>, InputError> {
    match std::str::from_utf8(content) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => {
            from_hex(text)
        }
        _ => Ok(content.to_vec()),
    }
}
