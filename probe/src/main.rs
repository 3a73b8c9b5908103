//! `gda-probe`: says whether a GPU can ring an EFA adapter here, and if not, why, and who can change
//! it.
//!
//! - [`cli`], [`exit`]: what goes in, and the status that comes out.
//! - [`check`], [`checks`]: what a check is, and every check there is.
//! - [`system`]: what the machine says about itself.
//! - [`part`]: checks that load foreign libraries, in child processes.
//! - [`mod@report`], [`verdict`]: what is said, to people and programs.
//!
//! Reports go to stdout, logs to stderr. It moves bytes only through the library `efa-gda`; nothing
//! of the data path is here.

mod check;
mod checks;
mod cli;
mod command;
mod exit;
mod own;
mod part;
mod report;
mod soft;
mod softefa_checker;
mod system;
mod verdict;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::{Cli, Command, Common};
use crate::command::CommandError;
use crate::exit::Exit;
use crate::report::Document;
use crate::report::human::{Style, render};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return unparsed(&error),
    };
    let npd = cli.common.npd;
    log_to_stderr(cli.common.verbose);
    if matches!(cli.command, Some(Command::Part)) {
        return match part::child::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(%error, "a child process cannot do its work");
                Exit::Internal.code(npd)
            }
        };
    }
    // The panic's message is on stderr by then; unwinding has cleaned up.
    let exit = std::panic::catch_unwind(|| obey(&cli)).unwrap_or(Exit::Internal);
    exit.code(npd)
}

/// Help and version are fine; anything else is a usage error.
fn unparsed(error: &clap::Error) -> ExitCode {
    // Nothing is left to do where even this cannot be written.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.code(false) } else { Exit::Fine.code(false) }
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::ERROR,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !forbidden)
        .init();
}

fn obey(cli: &Cli) -> Exit {
    match perform(cli) {
        Ok(exit) => exit,
        Err(error) => {
            // A reader that went away is no fault of this program; its status stands as it was.
            eprintln_quietly(&format!("gda-probe: {error}"));
            error.exit()
        }
    }
}

fn eprintln_quietly(text: &str) {
    // Nothing is left to do where even stderr is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn perform(cli: &Cli) -> Result<Exit, CommandError> {
    let common = &cli.common;
    match cli.command.as_ref().unwrap_or(&Command::Check) {
        Command::Check => report(command::check::run(common)?, common),
        Command::Put(args) => report(command::put::run(common, args)?, common),
        Command::Decode(args) => report(command::decode::run(common, args)?, common),
        Command::Explain { code } => {
            print(&format!("{}\n", command::explain::page(code)?)).map(|()| Exit::Fine)
        }
        Command::Bench(later) => {
            tracing::debug!(?later.rest, "bench was given");
            Err(CommandError::NotInThisVersion { what: "bench", missing: "posting from a GPU" })
        }
        Command::Ring(later) => {
            tracing::debug!(?later.rest, "ring was given");
            Err(CommandError::NotInThisVersion { what: "ring", missing: "the exchange between ranks" })
        }
        Command::Part => unreachable!("main runs parts before it comes here"),
    }
}

fn report((document, exit): (Document, Exit), common: &Common) -> Result<Exit, CommandError> {
    let text = if common.json {
        let mut text = serde_json::to_string_pretty(&document)?;
        text.push('\n');
        text
    } else {
        render(&document, Style::of_stdout(common.verbose > 0))
    };
    print(&text)?;
    Ok(exit)
}

/// Writes to stdout. A reader that went away (a broken pipe) is no error.
fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
