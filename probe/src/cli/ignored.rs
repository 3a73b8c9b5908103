//! Options that a command would ignore. They are refused, because a script that passes one expects an effect.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

use super::{Cli, Command, ExecutorChoice, Via};
use crate::model::{GpuChoice, Memory};

/// Options of the machine and its adapters.
const MACHINE: [&str; 9] =
    ["soft", "device", "gpu", "via", "doorbell", "pairs", "root", "time_limit", "stack"];

/// The common options that a command ignores.
fn ignored(command: &Command) -> Vec<&'static str> {
    match command {
        Command::Check(_) => Vec::new(),
        Command::Put(_) | Command::Bench(_) | Command::Ring(_) => vec!["pairs", "stack"],
        Command::Report(_) => vec!["json", "npd"],
        Command::Decode(_) => MACHINE.to_vec(),
        Command::Explain { .. } => MACHINE.into_iter().chain(["npd"]).collect(),
        Command::Completions { .. } | Command::Man => {
            MACHINE.into_iter().chain(["json", "npd", "verbose"]).collect()
        }
        // The probe that started the process has refused them.
        Command::Worker | Command::Ranks => Vec::new(),
    }
}

/// An error for the first option on the command line that the command ignores.
pub(crate) fn refuse(matches: &ArgMatches, cli: &Cli) -> Result<(), String> {
    if cli.common.json && cli.common.npd {
        return Err("--json and --npd are two formats of one report on stdout; omit one of them".to_owned());
    }
    let Some(command) = &cli.command else { return Ok(()) };
    let sub = matches.subcommand().map(|(_, sub)| sub);
    let given = |id: &str| {
        let of = |matches: &ArgMatches| matches.value_source(id) == Some(ValueSource::CommandLine);
        of(matches) || sub.is_some_and(of)
    };
    if let Some(id) = ignored(command).into_iter().find(|id| given(id)) {
        let name = command.name();
        return Err(format!("{name} has no use for {}; omit it (gda-probe {name} --help)", option(id)));
    }
    let common = &cli.common;
    let on_host = match command {
        Command::Put(args) => args.executor == ExecutorChoice::Host,
        Command::Bench(args) => args.executor == ExecutorChoice::Host,
        Command::Ring(args) => args.executor == ExecutorChoice::Host && args.memory() == Memory::Host,
        Command::Check(_) if common.via == Via::Verbs && given("pairs") => {
            return Err("--pairs has no use with --via verbs, where no GPU takes part; omit it".to_owned());
        }
        Command::Decode(args) if args.binary && has_hex(args) => {
            return Err("--binary reads a file, but the entry is on the command line; omit one".to_owned());
        }
        _ => return Ok(()),
    };
    match common.gpu {
        Some(GpuChoice::Number(_)) if on_host || common.via == Via::Verbs => {
            let why = if on_host { "--executor host" } else { "--via verbs" };
            Err(format!("--gpu names a GPU, but with {why} the host posts; omit one of the options"))
        }
        _ => Ok(()),
    }
}

fn has_hex(args: &super::DecodeArgs) -> bool {
    let is_hex = |entry: &Option<Option<String>>| matches!(entry, Some(Some(hex)) if hex != "-");
    is_hex(&args.wqe) || is_hex(&args.cqe)
}

/// Names the commands that have an unknown option: `check`, the default, has its own too.
pub(crate) fn suggest_commands(error: &mut clap::Error) {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let long = unknown.trim_start_matches('-');
    let all = Cli::command();
    let has = |command: &&clap::Command| {
        command.get_arguments().any(|argument| !argument.is_hide_set() && argument.get_long() == Some(long))
    };
    let names: Vec<&str> = all.get_subcommands().filter(has).map(clap::Command::get_name).collect();
    if !names.is_empty() {
        let tip = format!("{unknown} is an option of gda-probe {}", names.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Removes the suggestion of a command or an option that the help hides.
pub(crate) fn suggest_visible(error: &mut clap::Error) {
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand)
        && names.iter().any(|name| name.starts_with("__"))
    {
        error.remove(ContextKind::SuggestedSubcommand);
    }
    let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg) else { return };
    let hides = |command: &clap::Command| {
        command.get_arguments().any(|argument| {
            let long = argument.get_long();
            argument.is_hide_set() && long.is_some_and(|long| suggested.trim_start_matches('-') == long)
        })
    };
    if Cli::command().get_subcommands().any(hides) {
        error.remove(ContextKind::SuggestedArg);
    }
}

/// An option's name on the command line.
fn option(id: &str) -> String {
    let command = Cli::command();
    let found = command.get_arguments().find(|argument| argument.get_id() == id);
    found.and_then(|argument| argument.get_long()).map_or_else(|| id.to_owned(), |long| format!("--{long}"))
}
