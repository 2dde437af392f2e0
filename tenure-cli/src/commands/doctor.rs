//! `tenure doctor`.

use std::process::ExitCode;

use super::{Cli, Output, jobs::table, print};
use tenure::{
    check_queue,
    doctor::{Check, CheckState, DoctorOptions},
};

pub(super) async fn run(cli: &Cli, queues: &[String]) -> anyhow::Result<ExitCode> {
    for queue in queues {
        check_queue(queue)?;
    }
    let tenure = cli.connect().await?;
    let mut options = DoctorOptions::default();
    options.queues = queues.to_vec();
    let checks = Box::pin(tenure.doctor(&options)).await;
    tenure.close().await;
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&checks)?),
        Output::Table => print::line(format!("{}\n\n{}", list(&checks), verdict(&checks))),
    }
    let is_wrong = checks.iter().any(|checked| checked.state == CheckState::Wrong);
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn name(checked: &Check) -> String {
    match &checked.queue {
        Some(queue) => format!("{} {queue}", checked.check),
        None => checked.check.into(),
    }
}

/// One line per check; checks that were skipped for one reason share a line.
fn list(checks: &[Check]) -> comfy_table::Table {
    let mut table = table(&["STATE", "CHECK", "FOUND", "WHAT TO DO"]);
    let is_one_line = |one: &Check, next: &Check| {
        let skipped = (CheckState::Skipped, CheckState::Skipped);
        (one.state, next.state) == skipped && one.found == next.found && one.to_do == next.to_do
    };
    for line in checks.chunk_by(is_one_line) {
        let names: Vec<_> = line.iter().map(name).collect();
        let Some(first) = line.first() else { continue };
        table.add_row([
            first.state.to_string(),
            print::printable(&names.join(", ")),
            print::printable(&first.found),
            print::printable(first.to_do.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

fn verdict(checks: &[Check]) -> String {
    let states = [CheckState::Wrong, CheckState::Warning, CheckState::Ok, CheckState::Skipped];
    let counts: Vec<_> = states
        .into_iter()
        .map(|state| (state, checks.iter().filter(|checked| checked.state == state).count()))
        .filter(|(_, n)| *n > 0)
        .map(|(state, n)| format!("{n} {state}"))
        .collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use tenure::internals::examples;

    use super::*;

    #[test]
    fn checks_that_were_skipped_for_one_reason_share_a_line() {
        let checked = examples::check;
        let checks = [
            checked("a", CheckState::Ok, "away"),
            checked("b", CheckState::Skipped, "away"),
            checked("c", CheckState::Skipped, "away"),
            checked("d", CheckState::Skipped, "another"),
        ];
        let text = list(&checks).to_string();
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        assert_eq!(lines, 4, "{text}");
        assert!(text.contains("b q, c q"), "{text}");
        assert_eq!(verdict(&checks), "1 ok, 3 skipped");
    }
}
