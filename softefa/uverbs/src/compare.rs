//! `softefa compare`: entries that rdma-core wrote against what this project encodes for the same
//! requests, byte for byte.

use std::ffi::OsString;

use crate::command::Failure;

pub(crate) fn main(_arguments: Vec<OsString>) -> Result<u8, Failure> {
    Err(Failure::Usage("not yet".into()))
}
