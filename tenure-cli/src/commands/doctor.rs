//! `tenure doctor`.

use std::process::ExitCode;

use super::{
    Cli, DoctorArgs, Output, print,
    table::{Table, table, width},
};
use tenure::{
    doctor::{Check, CheckState, DoctorOptions},
    names::check_queue,
};

/// The states in the order in which people read them.
const STATES: [CheckState; 4] = [CheckState::Wrong, CheckState::Warning, CheckState::Ok, CheckState::Skipped];
/// Below this width, what to do stands below what was found, and not beside it.
const BESIDE_MIN: u16 = 120;
/// The width of the lines about skipped checks where no screen gives one.
const SKIPPED_WIDTH: u16 = 120;

pub(super) async fn run(cli: &Cli, args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    for queue in &args.queues {
        check_queue(queue)?;
    }
    let tenure = cli.connect_to_any().await?;
    let mut options = DoctorOptions::default();
    options.queues.clone_from(&args.queues);
    let mut checks = Box::pin(tenure.doctor(&options)).await;
    tenure.close().await;
    let verdict = verdict(&checks);
    if args.problems {
        checks.retain(|checked| matches!(checked.state, CheckState::Wrong | CheckState::Warning));
    }
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&checks)?),
        Output::Table if checks.is_empty() => print::line(format!("no problems: {verdict}")),
        Output::Table => {
            let width = width();
            let mut parts = vec![list(&checks, width).at(width)];
            parts.extend(skipped(&checks, width.unwrap_or(SKIPPED_WIDTH)));
            print::line(format!("{}\n\n{verdict}", parts.join("\n\n")));
        }
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

/// One row per check that ran, the wrong ones first.
fn list(checks: &[Check], width: Option<u16>) -> Table {
    let is_beside = width.is_none_or(|width| width >= BESIDE_MIN);
    let header: &[&str] =
        if is_beside { &["STATE", "CHECK", "FOUND", "WHAT TO DO"] } else { &["STATE", "CHECK", "FOUND"] };
    let mut table = table(header).wrap(&["CHECK", "FOUND", "WHAT TO DO"]);
    let ran = STATES.into_iter().filter(|state| *state != CheckState::Skipped);
    for checked in ran.flat_map(|state| checks.iter().filter(move |checked| checked.state == state)) {
        let (state, name) = (checked.state.to_string(), print::printable(&name(checked)));
        let found = print::printable(&checked.found);
        let to_do = print::printable(checked.to_do.as_deref().unwrap_or_default());
        match to_do.as_str() {
            _ if is_beside => table.add_row([state, name, found, to_do]),
            "" => table.add_row([state, name, found]),
            to_do => table.add_row([state, name, format!("{found}\n→ {to_do}")]),
        }
    }
    table
}

/// The skipped checks: a paragraph for those that were skipped for one reason.
fn skipped(checks: &[Check], width: u16) -> Option<String> {
    let skipped: Vec<_> = checks.iter().filter(|checked| checked.state == CheckState::Skipped).collect();
    let is_one = |one: &&Check, next: &&Check| one.found == next.found && one.to_do == next.to_do;
    let paragraphs = skipped.chunk_by(is_one).filter_map(|group| {
        let first = group.first()?;
        let names: Vec<_> = group.iter().map(|checked| name(checked)).collect();
        let to_do = first.to_do.as_ref().map(|to_do| format!("; {to_do}")).unwrap_or_default();
        let text = format!("skipped: {} ({}{to_do})", names.join(", "), first.found);
        Some(print::wrapped(&print::printable(&text), width, "         "))
    });
    let text = paragraphs.collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then_some(text)
}

fn verdict(checks: &[Check]) -> String {
    let counts: Vec<_> = STATES
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
    fn the_wrong_checks_come_first_and_those_skipped_for_one_reason_share_a_paragraph() {
        let checked = examples::check;
        let checks = [
            checked("fine", CheckState::Ok, "away"),
            checked("b", CheckState::Skipped, "away"),
            checked("c", CheckState::Skipped, "away"),
            checked("d", CheckState::Skipped, "another"),
            checked("late", CheckState::Warning, "late"),
            checked("gone", CheckState::Wrong, "gone"),
        ];
        let text = list(&checks, None).at(None);
        let states: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(states, ["STATE", "wrong", "warning", "ok"], "{text}");
        let mut gone = checks[5].clone();
        gone.to_do = Some("bring it back".into());
        let text = list(&[gone], Some(80)).at(Some(80));
        assert!(text.lines().count() == 3 && text.contains("→ bring it back"), "{text}");
        let paragraphs = skipped(&checks, 80);
        assert_eq!(paragraphs.as_deref(), Some("skipped: b q, c q (away)\nskipped: d q (another)"));
        assert_eq!(skipped(&checks, 20).map(|text| text.lines().count()), Some(4));
        assert_eq!(skipped(&checks[..1], 80), None);
        assert_eq!(verdict(&checks), "1 wrong, 1 warning, 1 ok, 3 skipped");
    }
}
