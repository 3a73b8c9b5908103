//! `softefa`: runs EFA programs on a software adapter.

use std::process::ExitCode;

fn main() -> ExitCode {
    softefa_uverbs::command::main(std::env::args_os().skip(1).collect())
}
