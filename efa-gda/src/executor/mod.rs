//! Runs device code. [`host`] runs the kernels of `kernels/` on a CPU; [`crate::status`] names how their calls end.

pub mod host;
