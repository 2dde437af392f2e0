//! `tenure config`: prints the settings in force and the source of each.

use std::process::ExitCode;

use super::{Cli, Output, print, table::table};

pub(super) fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let settings = cli.settings()?;
    let in_force = settings.in_force()?;
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&in_force)?),
        Output::Table => {
            let mut table = table(&["SETTING", "VALUE", "FROM"]).wrap(&["VALUE", "FROM"]);
            for setting in in_force {
                let value = setting.value.unwrap_or_else(|| "not set".to_owned());
                table.add_row([
                    setting.name.to_owned(),
                    print::printable(&value),
                    print::printable(&setting.from),
                ]);
            }
            print::line(table);
        }
    }
    // Checked only after printing, so that the user sees the settings that contradict each other. It needs no URL.
    settings.check()?;
    Ok(ExitCode::SUCCESS)
}
