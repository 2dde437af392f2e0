//! Redrives: the form that begins a calm redrive of a group of dead letters, and the progress of the latest ones.

use chrono::{TimeDelta, Utc};
use maud::{Markup, html};
use serde_json::Value;
use tenure::{
    redrives::{CalmRedrive, RedriveError},
    rows::RedriveRow,
};

use super::{
    Ask, Failure, View,
    actions::{Said, all_shown},
    page::{self, number, stamped},
};
use crate::lanes::{Rate, percent, rate_of};

/// How many redrives to show, and for how long after their end.
const SHOWN: u32 = 5;
/// How many to read for a user of some queues: most may be of others.
const READ: u32 = 100;
const SHOWN_FOR: TimeDelta = TimeDelta::hours(24);

/// The latest redrives, for the page of dead letters: those of the user's queues.
pub(super) async fn latest(view: &View) -> Result<Vec<RedriveRow>, Failure> {
    let most = if view.looks.is_all() { SHOWN } else { READ };
    let all = view.tenure.redrives(most).await?;
    let is_recent = |of: &RedriveRow| of.ended_at.is_none_or(|at| Utc::now() - at < SHOWN_FOR);
    let is_seen =
        |of: &RedriveRow| view.looks.is_all() || queue(of).is_some_and(|queue| view.looks.has(&queue));
    Ok(all.into_iter().filter(is_recent).filter(is_seen).take(SHOWN as usize).collect())
}

/// The queue of a redrive; `None`: it is of all.
pub(super) fn queue(of: &RedriveRow) -> Option<String> {
    let selection: Value = serde_json::from_str(of.selection.as_ref()?.get()).ok()?;
    selection["queue"].as_str().map(str::to_owned)
}

/// The progress of these redrives. The page is useful without them.
pub(super) fn progress(view: &View, ask: &Ask, redrives: Result<&[RedriveRow], &Failure>) -> Markup {
    html! {
        div #redrives {
            @if let Err(failure) = redrives {
                section.panel { div.body { (page::unread("The redrives with a canary", failure)) } }
            } @else if let Ok(redrives @ [_, ..]) = redrives {
                section.panel {
                    header { h2 { "Redrives with a canary" } p { "under way, or ended within a day" } }
                    div.scroll { table.cards {
                        thead { tr {
                            th scope="col" { "Which" }
                            th scope="col" { "State" }
                            th.num scope="col" { "Redriven" }
                            th.num scope="col" { "Completed" }
                            th.num scope="col" { "Failed" }
                            th.num scope="col" { "Began, UTC" }
                            @if view.has_actions { th scope="col" { "Action" } }
                        } }
                        tbody { @for of in redrives { (row(view, ask, of)) } }
                    } }
                }
            }
        }
    }
}

fn row(view: &View, ask: &Ask, of: &RedriveRow) -> Markup {
    let colour = match of.state.as_str() {
        "stopped" => "failed",
        "done" => "completed",
        "cancelled" => "cancelled",
        _ => "processing",
    };
    html! {
        tr id={ "redrive-" (of.id) } {
            th.text scope="row" { (which(of)) }
            td data-label="State" {
                span.status data-is=(colour) { (of.state) }
                @if let Some(reason) = &of.reason { " " span.soft { (reason) } }
            }
            td.num data-label="Redriven" { (amount(of.redriven)) " of " (amount(of.jobs)) }
            td.num data-label="Completed" { (amount(of.completed)) }
            td.num data-label="Failed" { (amount(of.failed)) }
            td.num.tight data-label="Began" { (stamped(of.started_at)) }
            @if view.has_actions {
                td data-label="Action" {
                    @if of.ended_at.is_none() {
                        form method="post" action={ (view.base) "/dead/redrives/" (of.id) "/stop" }
                            data-confirm="Stop this redrive? What it has queued runs on." {
                            (page::own(ask))
                            button.danger { "Stop" }
                        }
                    }
                }
            }
        }
    }
}

fn amount(n: u64) -> String {
    number(i64::try_from(n).unwrap_or(i64::MAX))
}

/// The selection of a redrive in words: the kind and the queue, or what else it names.
fn which(of: &RedriveRow) -> String {
    let selection = of.selection.as_ref().and_then(|json| serde_json::from_str(json.get()).ok());
    let Some(Value::Object(fields)) = selection else { return String::new() };
    let named = |name: &str| match fields.get(name)? {
        Value::Array(tags) => Some(tags.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        value => value.as_str().map(str::to_owned),
    };
    let fields_shown = ["kind", "queue", "category", "group", "tags", "error"];
    let said = fields_shown.iter().filter_map(|name| Some(format!("{name} {}", named(name)?)));
    let said = said.collect::<Vec<_>>().join(", ");
    if said.is_empty() { "all dead letters".into() } else { said }
}

/// The form that begins one, on the page of a group. It repeats the filters of the page.
pub(super) fn form(view: &View, ask: &Ask, fields: &[&str], shown_at: i64) -> Markup {
    html! {
        details.panel #calm {
            summary { "Redrive with a canary" }
            form.form method="post" action={ (view.base) "/dead/calm" }
                data-confirm="Redrive this group, a canary first?" {
                (page::own(ask))
                input type="hidden" name="shown" value=(shown_at);
                @for field in fields {
                    @if let Some(value) = ask.query.get(field) { input type="hidden" name=(field) value=(value); }
                }
                (super::enqueue::line("canary", "Canary", "20", "20", "how many jobs of this group go first"))
                (super::enqueue::line("rate", "Then at most", "", "5/s", "a rate; empty: as fast as they complete"))
                (super::enqueue::line("stop_at", "Stop at", "10%", "10%",
                    "of the canary, or then of the latest hundred, that failed an attempt"))
                div.actions { button.primary { "Begin" } }
            }
        }
    }
}

/// Begins a redrive of all dead letters that the page has shown.
pub(super) async fn begin(view: &View, ask: &Ask) -> Said {
    let field = |name| ask.form.get(name).unwrap_or_default().trim().to_owned();
    let bad = |what: &str, why: &str| Failure::Bad(format!("{what}: {why}."));
    let (canary, rate, stop_at) = (field("canary"), field("rate"), field("stop_at"));
    let jobs = canary.parse().map_err(|_| bad("Canary", "it must be a number of jobs such as 20"))?;
    let mut calm = CalmRedrive::new().canary(jobs);
    if !rate.is_empty() {
        let Rate(jobs, per) = rate_of(&rate).map_err(|why| bad("Then at most", &why))?;
        calm = calm.then_rate(jobs, per);
    }
    if !stop_at.is_empty() {
        calm = calm.stop_at(percent(&stop_at).map_err(|why| bad("Stop at", &why))?);
    }
    match view.tenure.redrive_calmly(&all_shown(&ask.form)?, calm).await {
        Ok(None) => Ok("No dead letters match; nothing is redriven.".into()),
        Ok(Some(begun)) => {
            let jobs = amount(begun.jobs);
            Ok(format!(
                "A redrive of {jobs} jobs has begun with a canary of {canary}; the workers go on with it."
            ))
        }
        Err(RedriveError::Store(error)) => Err(error.into()),
        Err(error) => Err(Failure::Bad(page::sentence(&error.to_string()))),
    }
}

/// Stops a redrive.
pub(super) async fn stop(view: &View, id: &str) -> Said {
    let id = id.parse().map_err(|_| Failure::NotFound(format!("Invalid ID of a redrive {id:?}.")))?;
    Ok(if view.tenure.stop_redrive(id).await? {
        "The redrive is stopped; what it has queued runs on.".into()
    } else {
        "The redrive had ended already.".into()
    })
}
