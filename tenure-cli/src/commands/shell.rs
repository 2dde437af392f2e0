//! `tenure completions` and `tenure man`: the files that a package installs. Reads no setting, and asks no server.

use std::{fs, io::Write, path::Path, process::ExitCode};

use anyhow::Context;
use clap::{Command, CommandFactory, builder::StyledStr};
use clap_complete::Shell;

use super::Cli;

pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut for_people(), "tenure", &mut script);
    print(&script)
}

pub(super) fn man(folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(for_people()).render(&mut page)?;
        return Ok(print(&page));
    };
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    clap_mangen::generate_to(for_people(), folder)
        .with_context(|| format!("write the pages to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The command line without its hidden commands, which completions would offer.
fn for_people() -> Command {
    let all = Cli::command();
    let command = Command::new("tenure")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
    let about = |text: Option<&StyledStr>| text.cloned().unwrap_or_default();
    command.about(about(all.get_about())).after_help(about(all.get_after_help()))
}

/// Prints the text unchanged. Ignores a reader that has gone.
fn print(text: &[u8]) -> ExitCode {
    let mut out = std::io::stdout();
    drop(out.write_all(text).and_then(|()| out.flush()));
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_valid_and_hides_its_internal_commands() {
        Cli::command().debug_assert();
        for_people().debug_assert();
        let names: Vec<_> = for_people().get_subcommands().map(|c| c.get_name().to_owned()).collect();
        assert!(names.iter().any(|name| name == "jobs") && !names.iter().any(|name| name == "exec-guard"));
    }
}
