//! Audit: who did what to jobs, queues, lanes, schedules and dead letters.

use maud::{Markup, html};
use tenure::audit::{AuditFilter, AuditRow};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, clip, number, stamped},
    params::encoded,
};

const ON_A_PAGE: u32 = 50;

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let mut filter = AuditFilter::new();
    let text = |name: &str| ask.query.get(name).map(|text| text.trim().to_owned()).filter(|t| !t.is_empty());
    if let Some(queue) = text("queue") {
        filter = filter.queue(queue);
    }
    if let Some(act) = text("act") {
        filter = filter.act(act);
    }
    if let Some(who) = text("by") {
        filter = filter.by(who);
    }
    if let Some(what) = text("on") {
        filter = filter.subject(what);
    }
    let before = text("before");
    if let Some(id) = &before {
        filter =
            filter.before(id.parse().map_err(|_| Failure::Bad(format!("Invalid ID of an act {id:?}.")))?);
    }
    let mut acts = view.tenure.audit(&filter, ON_A_PAGE + 1).await?;
    let most = usize::try_from(ON_A_PAGE).unwrap_or(usize::MAX);
    let has_more = acts.len() > most;
    acts.truncate(most);
    let at = |id: Option<&str>| format!("{}/audit?{}", view.base, ask.query.with("before", id));
    let older = acts.last().filter(|_| has_more).map(|last| at(Some(&last.id.to_string())));
    let newest = before.is_some().then(|| at(None));
    let said = if acts.len() == 1 { "1 act".to_owned() } else { format!("{} acts", acts.len()) };
    let list = html! {
        section.panel #acts {
            @if acts.is_empty() {
                div.empty { strong { "No acts" } p
                    { "No cancellation, redrive, pause or other change matches." } }
            } @else {
                (table(view, &acts))
                (page::pager(&said, newest, older))
            }
        }
    };
    let mut live = Regions::default();
    let about = html! {
        "Who did what, when, from where, to how many jobs: by the command line, this dashboard, programs and SQL."
    };
    let body = html! {
        (page::head("Audit", about))
        (filters(view, ask))
        (live.put("acts", list))
    };
    Ok(live.page("Audit", "audit", body))
}

fn filters(view: &View, ask: &Ask) -> Markup {
    let fields = [
        ("by", "Who", "every user and role"),
        ("act", "Act", "every act"),
        ("queue", "Queue", "every queue"),
        ("on", "On", "any job or name"),
    ];
    html! {
        form.filters method="get" action={ (view.base) "/audit" } role="search" {
            @for (name, label, every) in fields {
                input type="text" name=(name) value=[ask.query.get(name)] placeholder=(every) aria-label=(label)
                    size="14";
            }
            button { "Search" }
        }
    }
}

fn table(view: &View, acts: &[AuditRow]) -> Markup {
    html! {
        div.scroll { table.cards {
            thead { tr {
                th scope="col" { "Act" }
                th scope="col" { "Who" }
                th scope="col" { "By" }
                th scope="col" { "Queue" }
                th scope="col" { "On" }
                th.num scope="col" { "Jobs" }
                th scope="col" { "Details" }
                th.num scope="col" { "When, UTC" }
            } }
            tbody {
                @for of in acts {
                    tr id={ "act-" (of.id) } {
                        th.tight scope="row" { (of.act) }
                        td.text data-label="Who" {
                            span title={ "role " (of.role) } { (clip(of.actor.as_ref().unwrap_or(&of.role))) }
                        }
                        td.tight data-label="By" {
                            span title=[of.address.as_ref().map(|address| format!("from {address}"))] { (of.via) }
                        }
                        td.tight.none[of.queue.is_none()] data-label="Queue" {
                            @if let Some(queue) = &of.queue {
                                a href={ (view.base) "/queues/" (encoded(queue)) } { (queue) }
                            }
                        }
                        td.text.none[of.subject.is_none()] data-label="On" { (subject(view, of)) }
                        td.num.tight.none[of.jobs.is_none()] data-label="Jobs" {
                            @if let Some(jobs) = of.jobs { (number(i64::try_from(jobs).unwrap_or(i64::MAX))) }
                        }
                        td.text.full.none[of.details.is_none()] data-label="Details" {
                            @if let Some(details) = &of.details { (clip(details.get())) }
                        }
                        td.num.tight data-label="When" { (stamped(of.at)) }
                    }
                }
            }
        } }
    }
}

/// What an act was on: a job and a schedule have pages.
fn subject(view: &View, of: &AuditRow) -> Markup {
    let Some(subject) = &of.subject else { return Markup::default() };
    let folder = match of.act.as_str() {
        "cancel" | "run_now" | "redrive" | "signal" => "jobs",
        act if act.ends_with("_schedule") && act != "remove_schedule" => "schedules",
        _ => return clip(subject),
    };
    html! { a href={ (view.base) "/" (folder) "/" (encoded(subject)) } { (clip(subject)) } }
}
