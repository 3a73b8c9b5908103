//! Formats the model: for people ([`human`]), a bench as a page ([`html`]), a check for Prometheus
//! ([`prometheus`]). `--json` prints the model itself.

mod bench;
mod decoded;
pub(crate) mod html;
pub(crate) mod human;
mod problems;
pub(crate) mod prometheus;
mod ranks;
mod sections;
pub(crate) mod style;
mod verdicts;
