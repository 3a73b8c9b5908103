//! Formats the model: for people ([`human`]) and a bench as a page ([`html`]). `--json` prints the
//! model itself.

mod bench;
pub(crate) mod html;
pub(crate) mod human;
