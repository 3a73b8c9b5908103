//! The completions of shells and the manual page, both generated from the command line's definition.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::CommandError;
use crate::cli::Cli;

/// The exit statuses, in the manual page's format.
const STATUSES: &str = r#".SH "EXIT STATUS"
.TP
0
nothing failed or warned
.TP
1
gda\-probe itself failed, or a report could not be written
.TP
2
wrong usage, or malformed input
.TP
3
a check failed, a put was not verified, or a decoded entry breaks a rule
.TP
4
warnings, and nothing worse
.PP
With \-\-npd: 0 no problem, 1 a problem, 2 unknown.
"#;

/// The completions of `shell`.
pub(crate) fn completions(shell: Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut visible(), "gda-probe", &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// The manual page: the common options, and each command with its own.
pub(crate) fn page() -> Result<String, CommandError> {
    let mut all = visible();
    all.build();
    let mut out = Vec::new();
    let top = Man::new(all.clone());
    top.render_title(&mut out)?;
    top.render_name_section(&mut out)?;
    top.render_synopsis_section(&mut out)?;
    top.render_description_section(&mut out)?;
    top.render_options_section(&mut out)?;
    for command in all.get_subcommands().filter(|command| command.get_name() != "help") {
        let heading = format!(".SH \"gda\\-probe {}\"\n", command.get_name());
        out.extend_from_slice(heading.as_bytes());
        let mut own = command.clone();
        // The common options are stated once.
        for common in all.get_arguments().filter(|argument| argument.is_global_set()) {
            own = own.mut_args(|argument| {
                let hidden = argument.get_id() == common.get_id();
                if hidden { argument.hide(true) } else { argument }
            });
        }
        let page = Man::new(own);
        let mut body = Vec::new();
        page.render_description_section(&mut body)?;
        page.render_options_section(&mut body)?;
        let body = String::from_utf8_lossy(&body).replace(".SH DESCRIPTION\n", ".PP\n");
        out.extend_from_slice(body.replace(".SH ", ".SS ").as_bytes());
    }
    out.extend_from_slice(STATUSES.as_bytes());
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// The command line without the worker's command, which is internal.
fn visible() -> clap::Command {
    let all = Cli::command();
    let about = all.get_about().cloned().unwrap_or_default();
    clap::Command::new("gda-probe")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}
