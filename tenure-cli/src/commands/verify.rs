//! `tenure verify`.

use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use super::{Cli, Output, print};
use tenure::doctor::RuleCheck;

pub(super) async fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let verified = tenure.verify().await?;
    tenure.close().await;
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&verified)?),
        Output::Table => print::line(table(&verified)),
    }
    let is_whole = verified.iter().all(|rule| rule.jobs == 0);
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(verified: &[RuleCheck]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["every job", "broken by", "for example"]);
    for rule in verified {
        let examples: Vec<_> = rule.examples.iter().map(ToString::to_string).collect();
        table.add_row([rule.meaning.to_owned(), rule.jobs.to_string(), examples.join("\n")]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let broken = verified.iter().filter(|rule| rule.jobs > 0).count();
    let verdict = match broken {
        0 => "every job keeps every rule".into(),
        n => format!(
            "{n} of {} rules {} broken; `tenure jobs show ID` shows a job's history; please report it",
            verified.len(),
            if n == 1 { "is" } else { "are" }
        ),
    };
    format!("{table}\n{verdict}")
}
