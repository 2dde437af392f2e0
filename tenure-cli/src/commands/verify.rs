//! `tenure verify`.

use std::process::ExitCode;

use super::{Cli, Output, print, table::table};
use tenure::doctor::RuleCheck;

pub(super) async fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let verified = tenure.verify().await?;
    tenure.close().await;
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&verified)?),
        Output::Table => print::line(list(&verified)),
    }
    let is_whole = verified.iter().all(|rule| rule.jobs == 0);
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(verified: &[RuleCheck]) -> String {
    let mut table =
        table(&["every job", "broken by", "for example"]).wrap(&["every job"]).with_lines("broken by");
    for rule in verified {
        let examples: Vec<_> = rule.examples.iter().map(ToString::to_string).collect();
        table.add_row([rule.meaning.to_owned(), rule.jobs.to_string(), examples.join("\n")]);
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
