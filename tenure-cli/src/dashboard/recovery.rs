//! Recovery: every reset, takeover, release and republished job, and every refused stale write.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, clip, number, seconds, stamped},
};
use tenure::internals::{Event, EventFilter, Parts as _, SCANS_MISSED, duration::whole};

const ON_A_PAGE: i64 = 50;
const DAY_S: i64 = 24 * 3_600;
/// The ways of recovery, and what each does.
const PATHS: [(&str, &str); 5] = [
    ("reconcile", "A worker that starts resets the jobs that dead processes of its host left."),
    (
        "scanner",
        "A worker looks for jobs without a heartbeat for longer than their stale_after, and resets them.",
    ),
    ("vanished", "A worker missed two renewals and does not answer over NATS: another one resets its jobs."),
    (
        "redelivery",
        "JetStream delivered the message of a stale job again: the worker that got it takes the job over.",
    ),
    ("relay", "A due job had no message in the stream: the relay publishes it again."),
];

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let which = ask.query.get("path");
    let before = match ask.query.get("before") {
        Some(id) => Some(id.parse().map_err(|_| Failure::Bad(format!("Invalid event ID {id:?}.")))?),
        None => None,
    };
    let mut filter = EventFilter { worker: ask.query.get("worker"), before, ..EventFilter::default() };
    match which.as_deref() {
        None => {}
        Some("released") => filter.event = Some("release".into()),
        Some("refused") => filter.event = Some("refused_write".into()),
        Some(path) if PATHS.iter().any(|(of, _)| *of == path) => filter.path = Some(path.into()),
        Some(other) => return Err(Failure::Bad(format!("Unknown path of recovery {other:?}."))),
    }
    let store = view.tenure.store();
    let (events, day, fleet) = tokio::try_join!(
        store.recovery_events(&filter, ON_A_PAGE + 1),
        store.recovery_counts(1, DAY_S, DAY_S),
        store.fleet(),
    )?;
    let most = usize::try_from(ON_A_PAGE).unwrap_or(usize::MAX);
    let (has_more, events) = (events.len() > most, &events[..events.len().min(most)]);
    let of = |event: &str, path: Option<&str>| -> i64 {
        let is = |own: &str| path.is_none_or(|path| own == path);
        day.iter().filter(|of| of.event == event && is(&of.path)).map(|of| of.jobs).sum()
    };
    let address = |path: Option<&str>| {
        let query = super::Params::read(ask.query.with("before", None).as_bytes()).with("path", path);
        format!("{}/recovery?{query}", view.base)
    };
    let mut tabs = vec![(address(None), "Every path".to_owned(), None, which.is_none())];
    for (path, _) in PATHS {
        let count = of("reset", Some(path)) + of("republished", Some(path));
        tabs.push((address(Some(path)), path.to_owned(), Some(count), which.as_deref() == Some(path)));
    }
    for (word, event, label) in
        [("released", "release", "released"), ("refused", "refused_write", "refused writes")]
    {
        tabs.push((address(Some(word)), label.into(), Some(of(event, None)), which.as_deref() == Some(word)));
    }
    let (resets, refused, republished) =
        (of("reset", None), of("refused_write", None), of("republished", None));
    let late = view.tenure.config().timing.scan_every.saturating_mul(SCANS_MISSED).as_secs_f64();
    let is_late = fleet.last_scan_s.is_some_and(|s| s > late);
    let tiles = html! {
        dl.tiles #tiles {
            div { dt { "Jobs reset or taken over, 24 h" } dd.big { (number(resets)) } dd
                { "workers gone or silent, or silent handlers" } }
            div { dt { "Stale writes refused, 24 h" } dd.big { (number(refused)) } dd { "by the fencing token" } }
            div { dt { "Jobs republished, 24 h" } dd.big { (number(republished)) } dd
                { "no worker took their messages in time" } }
            div {
                dt { "Scanner" }
                dd.big {
                    @if fleet.is_held_back { (page::status("paused", "paused")) }
                    @else if is_late { (page::status("silent", "not scanning")) }
                    @else if fleet.last_scan_s.is_some() { (page::status("alive", "scanning")) }
                    @else { (page::status("silent", "not seen yet")) }
                }
                dd {
                    @if fleet.is_held_back { "after an outage, or when too many jobs look stale" }
                    @else if let Some(s) = fleet.last_scan_s {
                        "last scan " (whole(s)) " ago" @if is_late { ": no silent job is reset" }
                    }
                    @else { "each worker can scan" }
                }
            }
        }
    };
    let mut live = Regions::default();
    let older = events.last().filter(|_| has_more).map(|last| {
        format!("{}/recovery?{}", view.base, ask.query.with("before", Some(&last.id.to_string())))
    });
    let newest = before.is_some().then(|| address(which.as_deref()));
    let said = if events.len() == 1 { "1 event".to_owned() } else { format!("{} events", events.len()) };
    let table = html! {
        section.panel #events {
            @if events.is_empty() {
                div.empty { strong { "No recovery events" } p
                    { "No job was reset, and no stale write was refused." } }
            } @else {
                (table(view, events, true))
                (page::pager(&said, newest, older))
            }
        }
    };
    let about = html! {
        "What tenure did when a worker or a message was lost: every job that it reset, \
         and every stale write that it refused."
    };
    let body = html! {
        (page::head("Recovery", about))
        (live.put("tiles", tiles))
        (live.put("tabs", page::tabs("Path", &tabs)))
        (live.put("events", table))
        (paths())
    };
    Ok(live.page("Recovery", "recovery", body))
}

/// What each path means.
fn paths() -> Markup {
    html! {
        section.panel {
            header { h2 { "The paths" } p { "how tenure notices that a worker or a message was lost" } }
            div.body {
                dl.facts {
                    @for (path, does) in PATHS { dt { (path) } dd { (does) } }
                    dt { "released" }
                    dd { "The owner ended its attempt without a result, as at a shutdown; it is not charged." }
                    dt { "refused writes" }
                    dd { "A worker that had lost its job wrote to it, and Postgres refused the write." }
                }
            }
        }
    }
}

/// What the path of an event is, and which worker took it.
fn explained(of: &Event) -> String {
    let does = PATHS.iter().find(|(path, _)| *path == of.path).map_or("", |(_, does)| does);
    format!("{does} By {}.", of.recovered_by).trim_start().to_owned()
}

/// Events, with their jobs or, on a job's own page, without.
pub(super) fn table(view: &View, events: &[Event], with_job: bool) -> Markup {
    html! {
        div.scroll { table.cards {
            thead { tr {
                th scope="col" { "Event" }
                th scope="col" { "Path" }
                @if with_job { th scope="col" { "Job" } }
                th scope="col" { "Owner before → after" }
                th.num scope="col" { "Token" }
                th.num scope="col" { "Silence, s" }
                th scope="col" { "Reason" }
                th.num scope="col" { "When, UTC" }
            } }
            tbody {
                @for of in events {
                    tr id={ "event-" (of.id) } {
                        th scope="row" { (page::event(of)) }
                        td.tight data-label="Path" { span title=(explained(of)) { (of.path) } }
                        @if with_job {
                            td.tight data-label="Job"
                                { (page::job_link(view, of.job, of.kind.as_deref().unwrap_or("removed job"))) }
                        }
                        td.full data-label="Owner before → after" { (page::handover(view, of)) }
                        td.num.tight data-label="Token" { (page::tokens(of)) }
                        td.num.tight.none[of.silence_s.is_none()] data-label="Silence, s" {
                            @if let Some(silence) = of.silence_s { (seconds(silence)) }
                        }
                        td.text.full data-label="Reason" { (clip(&of.reason)) }
                        td.num.tight data-label="When" { (stamped(of.at)) }
                    }
                }
            }
        } }
    }
}
