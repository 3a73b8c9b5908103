//! An error and its sources as one text.

use std::error::Error;
use std::fmt;

/// Returns an error and all of its sources for display, separated by `": "`.
///
/// The `Display` of this library's errors does not contain the text of their sources, so that a report that prints
/// the chain prints each text once. Use this function where an error becomes text.
///
/// ```
/// # use std::io;
/// #[derive(Debug)]
/// struct Refused(io::Error);
/// # impl std::error::Error for Refused {
/// #     fn source(&self) -> Option<&(dyn std::error::Error + 'static)> { Some(&self.0) }
/// # }
/// # impl std::fmt::Display for Refused {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("the queue is refused") }
/// # }
///
/// let error = Refused(io::Error::other("no memory"));
/// assert_eq!(efa_gda::error_chain(&error).to_string(), "the queue is refused: no memory");
/// ```
pub fn error_chain<'a>(error: &'a (dyn Error + 'static)) -> impl fmt::Display + use<'a> {
    Chain(error)
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = self.0.to_string();
        f.write_str(&printed)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            let text = source.to_string();
            // Errors of other libraries may include the text of their sources.
            if !printed.contains(&text) {
                write!(f, ": {text}")?;
                printed = text;
            }
            next = source.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::error_chain;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn each_text_of_a_chain_is_printed_once() {
        let chain = |texts: &[&'static str]| {
            let layers = texts.iter().rev().fold(None, |source, text| Some(Box::new(Layer(text, source))));
            error_chain(&*layers.unwrap()).to_string()
        };
        assert_eq!(chain(&["alone"]), "alone");
        assert_eq!(chain(&["outer", "middle", "root"]), "outer: middle: root");
        assert_eq!(chain(&["outer: root", "root"]), "outer: root");
    }
}
