//! `gda-probe`: reports whether a GPU can ring an EFA adapter on this machine, and if not, why and which
//! role can change it.
//!
//! Each module imports only modules below it in the order that `docs/architecture.md` states ("The
//! probe"). Reports go to stdout, logs to stderr. Bytes are moved by the library `efa-gda`; no code of
//! the data path is here.

mod check;
mod checks;
mod cli;
mod command;
mod decode;
mod executable;
mod exit;
mod model;
mod report;
mod soft;
mod supervisor;
mod system;
mod verdict;
mod worker;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::{Cli, Command, Common};
use crate::command::CommandError;
use crate::exit::Exit;
use crate::model::{Document, Explanation, Refusal, SCHEMA};
use crate::report::human::{Style, render};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return unparsed(&error),
    };
    let npd = cli.common.npd;
    log_to_stderr(cli.common.verbose);
    if matches!(cli.command, Some(Command::Worker)) {
        let Err(error) = checks::groups::run();
        tracing::error!(%error, "the worker process cannot run");
        return Exit::Internal.code(npd);
    }
    // The panic handler has written its message to stderr, and unwinding has dropped all guards.
    let exit = std::panic::catch_unwind(|| execute(&cli)).unwrap_or_else(|_| {
        refuse(
            command_of(&cli).name(),
            "gda-probe panicked; the message is on stderr: report it with the command line",
        );
        Exit::Internal
    });
    exit.code(npd)
}

/// Prints what clap reports. Help and version are no errors; anything else is a usage error.
fn unparsed(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if !error.use_stderr() {
        let written = ignore_broken_pipe(printed.and_then(|()| std::io::stdout().flush()));
        return if written.is_ok() { Exit::Fine } else { Exit::Internal }.code(false);
    }
    let named = |argument: String| cli::COMMANDS.into_iter().find(|name| *name == argument);
    let command = std::env::args_os().skip(1).find_map(|argument| named(argument.into_string().ok()?));
    let text = error.to_string();
    // The usage and a pointer to --help follow the first empty line.
    let text = text.split("\n\n").next().unwrap_or_default();
    refuse(command.unwrap_or("check"), text.trim_start_matches("error: "));
    Exit::Usage.code(false)
}

fn command_of(cli: &Cli) -> &Command {
    cli.command.as_ref().unwrap_or(&Command::Check)
}

/// Prints the error as a document if the arguments contain `--json`. Reads the raw arguments, because
/// parsing them may have failed.
fn refuse(command: &'static str, error: &str) {
    if !std::env::args_os().any(|argument| argument == "--json") {
        return;
    }
    let refusal = Refusal { schema: SCHEMA, command, error };
    // The error is on stderr as well, so a failed write to stdout loses nothing.
    let _ = print_json(&refusal);
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
        // Reporting that stderr is closed would write to stderr and panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal() && !forbidden)
        .init();
}

fn execute(cli: &Cli) -> Exit {
    match run(cli) {
        Ok(exit) => exit,
        Err(error) => {
            eprintln_quietly(&format!("gda-probe: {error}"));
            // After a failed write, stdout may already hold half a document.
            if !matches!(error, CommandError::Output(_)) {
                refuse(command_of(cli).name(), &error.to_string());
            }
            error.exit()
        }
    }
}

/// Writes to stderr. Ignores errors, because there is no other place to report them.
fn eprintln_quietly(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn run(cli: &Cli) -> Result<Exit, CommandError> {
    let common = &cli.common;
    match command_of(cli) {
        Command::Check => report(command::check::run(common)?, common),
        Command::Put(args) => report(command::put::run(common, args)?, common),
        Command::Decode(args) => report(command::decode::run(common, args)?, common),
        Command::Explain { code } => {
            let page = command::explain::page(code)?;
            let printed = match common.json {
                true => print_json(&Explanation::of(page)),
                false => print(&format!("{page}\n")),
            };
            printed.map(|()| Exit::Fine)
        }
        Command::Bench(args) => report(command::bench::run(common, args)?, common),
        Command::Ring(later) => {
            tracing::debug!(?later.rest, "arguments of the missing command ring");
            Err(CommandError::NotInThisVersion { what: "ring", missing: "the exchange between ranks" })
        }
        Command::Worker => unreachable!("main handles this command"),
    }
}

fn report((document, exit): (Document, Exit), common: &Common) -> Result<Exit, CommandError> {
    match common.json {
        true => print_json(&document)?,
        false => print(&render(&document, Style::of_stdout(common.verbose > 0)))?,
    }
    Ok(exit)
}

fn print_json(document: &impl serde::Serialize) -> Result<(), CommandError> {
    print(&format!("{}\n", serde_json::to_string_pretty(document)?))
}

/// Writes to stdout.
fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    Ok(ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?)
}

/// Treats a broken pipe as success: the reader has closed its end and wants no more.
fn ignore_broken_pipe(written: std::io::Result<()>) -> std::io::Result<()> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
