//! Overview: the state of the fleet on one page.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::Utc;
use maud::{Markup, html};
use uuid::Uuid;

use super::{
    Ask, Failure, View,
    charts::{self, Activity, Range},
    notices,
    page::{self, Aging, Page, Region, Regions, number, stamped},
    quarantine::Watched,
    queues::{State, state},
    shared::Age,
};
use tenure::{
    StoreError,
    internals::{
        DeadGroup, Event, EventCount, EventFilter, Fleet, Parts as _, QueueStats, Unit, UnservedSchedule,
        duration::whole, first_overdue,
    },
};

/// The panel of recoveries shows a day at least.
const DAY_S: i64 = 24 * 3_600;
const LATEST: i64 = 8;
/// The most schedules without a worker to read.
const SCHEDULES: i64 = 100;
/// A job that its worker hands to the relay has no message for a moment.
const STAYS_FOR: Duration = Duration::from_secs(3);
/// The most groups of dead letters to name, and the latest dead letters to group.
const GROUPS: i64 = 20;
pub(super) const GROUPED: i64 = 1_000;

/// The first overdue job, and since when it has been that: while one job is, NATS takes no messages.
#[derive(Debug, Default)]
pub(super) struct Overdue(Mutex<Option<(Uuid, Instant)>>);

impl Overdue {
    /// Whether this job has been the first for seconds.
    fn stays(&self, first: Option<Uuid>) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (first, *seen) {
            // No job is overdue, or the relay is just publishing it.
            (None, _) => false,
            (Some(job), Some((same, since))) if same == job => since.elapsed() > STAYS_FOR,
            (Some(job), _) => {
                *seen = Some((job, Instant::now()));
                false
            }
        }
    }
}

/// What all viewers of one range share. Five statements, however many look; one more while there
/// are dead letters.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) fleet: Fleet,
    units: Vec<Unit>,
    events: Vec<EventCount>,
    latest: Vec<Event>,
    pub(super) schedules: Vec<UnservedSchedule>,
    pub(super) watched: Watched,
    /// Whether a due job has had no message for seconds.
    pub(super) is_unpublished: bool,
    /// The largest groups of jobs that died within the last hour.
    pub(super) died: Vec<DeadGroup>,
}

async fn read(view: &View, range: &Range) -> Result<Figures, StoreError> {
    let (store, all, asked_at) = (view.tenure.store(), EventFilter::default(), Utc::now());
    let (fleet, units, events, latest, schedules) = tokio::try_join!(
        store.fleet(),
        store.activity(range.units, range.unit_s, None),
        store.recovery_counts(range.units, range.unit_s, DAY_S),
        store.recovery_events(&all, LATEST),
        store.unserved_schedules(SCHEDULES),
    )?;
    let is_unpublished = if notices::may_be_unpublished(view, &fleet) {
        // A role that may not read them sees the rest.
        let first = first_overdue(store, &view.tenure.config().timing).await;
        view.figures.overdue.stays(first.ok().flatten())
    } else {
        false
    };
    let died = if fleet.dead > 0 { store.dead_lately(GROUPS, GROUPED).await? } else { Vec::new() };
    // A role that may not read them yet sees the rest.
    let watched = if fleet.has_quarantines { view.tenure.quarantines().await } else { Ok(Vec::new()) };
    if let Some(now) = fleet.now {
        view.figures.clock.note(now, asked_at);
    }
    Ok(Figures { fleet, units, events, latest, schedules, watched, is_unpublished, died })
}

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let range = Range::of(ask)?;
    let read = view.figures.overview.get(range.word, Age::AMoment, Box::pin(read(view, range)));
    let (of, read_ago) = read.await?;
    let activity = Activity::of(range, &of.units, Some(&of.events));
    let age_s = of.fleet.age_s.map(|age_s| age_s + read_ago.as_secs_f64());
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(age_s).markup))
        (live.put("notices", notices::all(view, &of)))
        (range.links(view, ask))
        (live.put("tiles", tiles(&of.fleet, &activity)))
        div.columns.wide-left {
            (live.put("finished", charts::finished(&activity)))
            (live.put("waits", charts::waits(&activity)))
        }
        div.columns.wide-left {
            (live.put("queues", queues(view, &of.fleet)))
            (live.put("recoveries", recoveries(view, range, &of.events)))
        }
        (live.put("latest", feed(view, &of.latest)))
    };
    let aging = age_s.map(|age_s| Aging { region: head, age_s });
    Ok(live.page("Overview", "overview", body).aging(aging))
}

fn head(age_s: Option<f64>) -> Region {
    let counted = html! {
        @match age_s {
            Some(age) => { "Jobs were counted " (whole(age)) " ago." }
            None => "No worker has counted the jobs yet.",
        }
    };
    Region { id: "head", markup: html! { header.head #head { div { h1 { "Overview" } p { (counted) } } } } }
}

fn tiles(fleet: &Fleet, activity: &Activity) -> Markup {
    let sum = |state: usize| fleet.queues.iter().map(|of| of.jobs[state]).sum::<i64>();
    let submitted: Vec<_> = fleet.queues.iter().filter_map(|of| of.submitted).collect();
    let is_counted = fleet.queues.is_empty() || !submitted.is_empty();
    let submitted = submitted.into_iter().sum::<i64>();
    let held = fleet.queues.iter().map(|of| of.held_due).sum::<i64>();
    let waits_longest = fleet.queues.iter().max_by(|a, b| a.oldest_due_s.total_cmp(&b.oldest_due_s));
    html! {
        dl.tiles #tiles {
            div {
                dt { "Waiting" }
                dd.big { (number(sum(0) + held + submitted)) }
                dd {
                    (number(sum(0))) " due, "
                    @if held > 0 { (number(held)) " held, " }
                    @if is_counted { (number(submitted)) " submitted" } @else { "submissions not counted" }
                    "; "
                    @match waits_longest.filter(|of| of.oldest_due_s >= 1.0) {
                        Some(of) => { "oldest for " (whole(of.oldest_due_s)) ", in " (of.queue) }
                        None => { (number(sum(1))) " scheduled for later" }
                    }
                }
            }
            div {
                dt { "Running" }
                dd.big { (number(sum(2))) }
                dd {
                    "on " (number(fleet.workers)) @if fleet.workers == 1 { " worker" } @else { " workers" }
                    @if fleet.draining > 0 { ", " (number(fleet.draining)) " draining" }
                }
            }
            (charts::tiles(activity))
            div {
                dt { "Dead letters" }
                dd.big { (number(fleet.dead)) }
                dd { (number(activity.failed())) " failed in the last " (activity.range_name()) }
            }
        }
    }
}

fn queues(view: &View, fleet: &Fleet) -> Markup {
    let mut queues: Vec<_> = fleet.queues.iter().collect();
    queues.sort_by(|a, b| a.queue.cmp(&b.queue));
    let is_limited = queues.iter().any(|of| of.max_queued.is_some());
    html! {
        section.panel #queues {
            header { h2 { "Queues" } a href={ (view.base) "/queues" } { "All queues" } }
            @if queues.is_empty() {
                div.empty { strong { "No jobs are queued or running" } p { "Enqueue one: " code
                    { "tenure enqueue QUEUE KIND JSON" } } }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Queue" }
                        th scope="col" { "State" }
                        th.num scope="col" { "Due" }
                        th.num scope="col" { "Submitted" }
                        th.num scope="col" { "Oldest due" }
                        th.num scope="col" { "Scheduled" }
                        @if is_limited { th.num scope="col" { "Queued" } }
                        th.num scope="col" { "Running" }
                    } }
                    tbody { @for of in queues { (row(view, fleet, of, is_limited)) } }
                } }
            }
        }
    }
}

fn row(view: &View, fleet: &Fleet, of: &QueueStats, is_limited: bool) -> Markup {
    html! {
        tr id={ "queue-" (of.queue) } {
            th scope="row" { (page::queue_row(view, &of.queue)) }
            td data-label="State" {
                (state(&State {
                    is_paused: of.is_paused,
                    is_unserved: of.is_unserved(),
                    is_draining: of.draining > 0,
                    is_full: of.is_full(),
                    has_unknown_kind: fleet.unserved.iter().any(|kind| kind.queue == of.queue && kind.is_queue_served),
                    is_limited: of.is_limited(),
                }))
            }
            td.num data-label="Due" {
                (number(of.jobs[0]))
                @if of.held > 0 {
                    br; a.soft.tight href={ (view.base) "/queues/" (of.queue) "/lanes" } { (number(of.held)) " held" }
                }
            }
            td.num data-label="Submitted" {
                @if let Some(submitted) = of.submitted { (number(submitted)) } @else { "?" }
            }
            td.num.tight data-label="Oldest due" {
                @if of.oldest_due_s > 0.0 { (whole(of.oldest_due_s)) } @else { "–" }
            }
            td.num data-label="Scheduled" { (number(of.jobs[1])) }
            @if is_limited {
                td.num.tight data-label="Queued" {
                    (number(of.queued()))
                    @if let Some(most) = of.max_queued { span.soft { " of " (number(most)) } }
                }
            }
            td.num.tight data-label="Running" {
                (number(of.jobs[2])) @if let Some(most) = of.max_running { span.soft { " of " (number(most)) } }
            }
        }
    }
}

fn recoveries(view: &View, range: &Range, events: &[EventCount]) -> Markup {
    let within = if range.seconds() > DAY_S { "7 d" } else { "24 h" };
    let refused: i64 = events.iter().filter(|of| of.event == "refused_write").map(|of| of.jobs).sum();
    let mut paths: Vec<(&str, i64)> = Vec::new();
    for of in events.iter().filter(|of| of.event != "refused_write") {
        let path = if of.event == "release" { "released" } else { of.path.as_str() };
        match paths.iter_mut().find(|(own, _)| *own == path) {
            Some((_, jobs)) => *jobs += of.jobs,
            None => paths.push((path, of.jobs)),
        }
    }
    paths.sort_by_key(|(_, jobs)| -jobs);
    let most = paths.first().map_or(1, |(_, jobs)| *jobs).max(1);
    html! {
        section.panel #recoveries {
            header { h2 { "Recovery" } a href={ (view.base) "/recovery" } { "All events" } }
            div.body {
                p.verdict {
                    b { (number(refused)) } " "
                    span {
                        @if refused == 1 { "stale write" } @else { "stale writes" }
                        " refused in " (within) "," br; "by the fencing token"
                    }
                }
                @if paths.is_empty() {
                    p.soft { "No job was reset in " (within) "." }
                } @else {
                    ul.bars aria-label={ "Jobs reset, released and republished, by path, " (within) } {
                        @for (path, jobs) in &paths {
                            li {
                                span { (path) }
                                svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
                                    rect.s-plain width=(jobs * 100 / most) height="8" {}
                                }
                                b { (number(*jobs)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn feed(view: &View, latest: &[Event]) -> Markup {
    html! {
        section.panel #latest {
            header { h2 { "Latest recoveries" } }
            div.body {
                @if latest.is_empty() { p.soft { "No recovery events yet." } }
                ol.timeline {
                    @for of in latest {
                        li data-is=(of.event) {
                            div {
                                b { (page::event_title(of)) }
                                p {
                                    (page::job_link(view, of.job, "job")) ": " bdi { (of.reason) }
                                    @if of.owner_before.is_some() { "; " (page::handover(view, of)) }
                                }
                            }
                            div.when { (stamped(of.at)) }
                        }
                    }
                }
            }
        }
    }
}
