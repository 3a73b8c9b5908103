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
mod ending;
mod exchange;
mod executable;
mod exit;
mod launcher;
mod model;
mod progress;
mod ranks;
mod releases;
mod report;
mod soft;
mod supervisor;
mod system;
mod terminal;
mod verdict;
mod worker;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::debug_fn;

use crate::cli::{CheckArgs, Cli, Command, Common};
use crate::command::CommandError;
use crate::command::file::is_stdout;
use crate::exit::Exit;
use crate::model::text::{is_hidden, note, visible};
use crate::model::{Document, Refusal, SCHEMA};
use crate::report::human::{npd_line, npd_text, render};
use crate::report::style::Style;

fn main() -> ExitCode {
    if let Some(error) = soft::uverbs::run_by_name() {
        note(&format!("gda-probe: {error}"));
        return Exit::Internal.code(false);
    }
    if let Some(hidden) = std::env::args_os().skip(1).find(|text| text.to_string_lossy().contains(is_hidden))
    {
        let hidden = visible(&hidden.to_string_lossy());
        let error = format!("the argument {hidden} contains a control character; remove it");
        note(&format!("gda-probe: {error}"));
        refuse("check", &error);
        return Exit::Usage.code(false);
    }
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        let usage = |why| Cli::command().error(clap::error::ErrorKind::ArgumentConflict, why);
        cli::refuse_ignored(&matches, &cli).map_err(usage).map(|()| cli)
    });
    let cli = match parsed {
        Ok(cli) => cli,
        Err(mut error) => return unparsed(&mut error),
    };
    let npd = cli.common.npd;
    log_to_stderr(cli.common.verbose);
    // The kernel ignores signals without a handler for the first process of a container.
    if std::process::id() == 1
        && let Err(error) = ending::watch()
    {
        tracing::warn!(%error, "a signal will not end this process");
    }
    let worked = match &cli.command {
        Some(Command::Worker) => Some(checks::groups::run()),
        Some(Command::Ranks) => Some(ranks::run()),
        _ => None,
    };
    if let Some(Err(error)) = worked {
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
fn unparsed(error: &mut clap::Error) -> ExitCode {
    cli::suggest_visible(error);
    cli::suggest_commands(error);
    let width = terminal::stated_width(&std::io::stderr()).filter(|_| error.use_stderr());
    let printed = match width {
        Some(width) => {
            // There is no other place to report that this failed.
            let _ = write!(std::io::stderr(), "{}", terminal::wrapped_lines(&error.to_string(), width));
            Ok(())
        }
        None => error.print(),
    };
    if !error.use_stderr() {
        let written = ignore_broken_pipe(printed.and_then(|()| std::io::stdout().flush()));
        return if written.is_ok() { Exit::Fine } else { Exit::Internal }.code(false);
    }
    let named = |argument: String| cli::COMMANDS.into_iter().find(|name| *name == argument);
    let command = std::env::args_os().skip(1).find_map(|argument| named(argument.into_string().ok()?));
    let text = error.to_string();
    // The usage and a pointer to --help follow the first empty line. A document's text is one line.
    let text = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = text.trim_start_matches("error: ").split_whitespace().collect();
    refuse(command.unwrap_or("check"), &words.join(" "));
    Exit::Usage.code(false)
}

fn command_of(cli: &Cli) -> &Command {
    static CHECK: Command = Command::Check(CheckArgs { prometheus: None });
    cli.command.as_ref().unwrap_or(&CHECK)
}

/// Prints the error as a document if the arguments contain `--json`, and as a detector's line if they contain `--npd`.
/// Reads the raw arguments, because parsing them may have failed.
fn refuse(command: &'static str, error: &str) {
    let is_set = |option: &str| std::env::args_os().any(|argument| argument == option);
    if !is_set("--json") {
        if is_set("--npd") {
            // As for a document below.
            let _ = print(&format!("{}\n", npd_text(&format!("unknown: {}", visible(error)))));
        }
        return;
    }
    let refusal = Refusal { schema: SCHEMA, command, error: &visible(error) };
    // The error is on stderr as well, so a failed write to stdout loses nothing.
    let _ = print_json(&refusal);
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::ERROR,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    // Messages and fields may hold text from outside.
    let fields = debug_fn(|out, field, value| {
        let text = visible(&format!("{value:?}"));
        match field.name() {
            "message" => write!(out, "{text}"),
            name => write!(out, "{name}={text}"),
        }
    });
    tracing_subscriber::fmt()
        .fmt_fields(fields.delimited(" "))
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // Reporting that stderr is closed would write to stderr and panic.
        .log_internal_errors(false)
        .with_ansi(terminal::is_coloured(&std::io::stderr()))
        .init();
}

fn execute(cli: &Cli) -> Exit {
    match run(cli) {
        Ok(exit) => exit,
        Err(error) => {
            note(&format!("gda-probe: {error}"));
            // stdout may already hold a document, or after a failed write half of one.
            if !matches!(error, CommandError::Output(_) | CommandError::AfterReport(_)) {
                refuse(command_of(cli).name(), &error.to_string());
            }
            error.exit()
        }
    }
}

fn run(cli: &Cli) -> Result<Exit, CommandError> {
    let common = &cli.common;
    match command_of(cli) {
        Command::Check(args) => {
            let file = args.prometheus.as_deref();
            command::file::check(file, "--prometheus", common)?;
            let (document, exit) = command::check::run(common)?;
            let metrics = || command::check::metrics(&document, exit);
            match file {
                Some(file) if is_stdout(file) => print(&metrics())?,
                Some(file) => {
                    report(&document, common)?;
                    command::file::replace(file, metrics().as_bytes()).map_err(after_report)?;
                }
                None => report(&document, common)?,
            }
            Ok(exit)
        }
        Command::Put(args) if args.peer.is_some() || args.listen.is_some() => {
            let (document, exit) = command::ring::pair(common, args)?;
            report(&document, common).map(|()| exit)
        }
        Command::Put(args) => {
            let (document, exit) = command::put::run(common, args)?;
            report(&document, common).map(|()| exit)
        }
        Command::Decode(args) => {
            let (document, exit) = command::decode::run(common, args)?;
            report(&document, common).map(|()| exit)
        }
        Command::Explain { code } => {
            let width = terminal::width(&std::io::stdout());
            let printed = match (command::explain::of(&code.join(" "))?, common.json) {
                (explained, true) => print_json(&explained),
                (explained, false) => print(&explained.text(width)),
            };
            printed.map(|()| Exit::Fine)
        }
        Command::Bench(args) => {
            let (document, exit) = command::bench::run(common, args)?;
            match command::bench::page_on_stdout(&document, args) {
                Some(page) => print(&page)?,
                None => report(&document, common)?,
            }
            command::bench::save(&document, args).map_err(after_report).map(|()| exit)
        }
        Command::Report(args) => {
            let (bytes, exit) = command::report::run(common, args)?;
            write(&bytes).map(|()| exit)
        }
        Command::Completions { shell } => print(&command::manual::completions(*shell)).map(|()| Exit::Fine),
        Command::Man => print(&command::manual::page()?).map(|()| Exit::Fine),
        Command::Ring(args) => {
            let (document, exit) = command::ring::run(common, args)?;
            report(&document, common).map(|()| exit)
        }
        Command::Worker | Command::Ranks => unreachable!("main handles these commands"),
    }
}

fn after_report(error: CommandError) -> CommandError {
    CommandError::AfterReport(Box::new(error))
}

fn report(document: &Document, common: &Common) -> Result<(), CommandError> {
    match (common.json, common.npd) {
        (true, _) => print_json(document),
        (false, true) => print(&format!("{}\n", npd_line(document))),
        (false, false) => print(&render(document, Style::of_stdout(common.verbose > 0))),
    }
}

fn print_json(document: &impl serde::Serialize) -> Result<(), CommandError> {
    print(&format!("{}\n", serde_json::to_string_pretty(document)?))
}

fn print(text: &str) -> Result<(), CommandError> {
    write(text.as_bytes())
}

/// Writes to stdout.
fn write(bytes: &[u8]) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    Ok(ignore_broken_pipe(out.write_all(bytes).and_then(|()| out.flush()))?)
}

/// Treats a broken pipe as success: the reader has closed its end and wants no more.
fn ignore_broken_pipe(written: std::io::Result<()>) -> std::io::Result<()> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
