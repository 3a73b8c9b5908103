//! Bytes in the memory of a completion queue can pass for completions, so opening one there needs the caller's word.

use efa_gda::Result;
use efa_gda::fabric::{CompletionQueue, GdaOps};
use efa_gda::memory::DeviceMemory;

fn open(ops: &GdaOps, written: DeviceMemory) -> Result<CompletionQueue> {
    ops.cq_open_device(written, 64)
}

fn main() {}
