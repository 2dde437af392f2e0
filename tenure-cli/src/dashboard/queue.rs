//! Queue: one queue, with its rates and latencies, its kinds, its workers, its limits and its schedules.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    charts::{self, Activity, Range},
    kinds,
    page::{self, Page, Regions, number, stamped, time},
    params::encoded,
    queues::{self, State, state},
    shared::Age,
};
use tenure::{
    StoreError,
    internals::{Fleet, Parts as _, Unit, duration::whole},
    rows::{QueueRow, ScheduleRow, WorkerRow, WorkerState},
};

/// The most workers and schedules to show.
const SHOWN: usize = 50;

/// What all viewers of one queue and range share.
#[derive(Debug)]
pub(super) struct Figures {
    row: Option<QueueRow>,
    fleet: Fleet,
    units: Vec<Unit>,
    schedules: Vec<ScheduleRow>,
}

async fn read(view: &View, range: &Range, name: &str) -> Result<Figures, StoreError> {
    let store = view.tenure.store();
    let (rows, fleet, units, mut schedules) = tokio::try_join!(
        store.list_queues(Some(name)),
        store.fleet(),
        store.activity(range.units, range.unit_s, Some(name)),
        view.tenure.schedules(),
    )?;
    schedules.retain(|of| of.queue == name);
    Ok(Figures { row: rows.into_iter().next(), fleet, units, schedules })
}

pub(super) async fn page(view: &View, ask: &Ask, name: &str) -> Result<Page, Failure> {
    let range = Range::of(ask)?;
    // After an action the page shows what it did.
    let age = if ask.is_live { Age::AMoment } else { Age::New };
    let key = (name.to_owned(), range.word);
    let (of, kinds) = tokio::try_join!(
        async { Ok(view.figures.queue.get(key, age, Box::pin(read(view, range, name))).await?.0) },
        kinds::figures(view, range),
    )?;
    let activity = Activity::of(range, &of.units, None);
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(view, ask, name, &of)))
        (live.put("notices", html! {
            div.stack #notices {
                @if of.row.is_none() {
                    p.notice { span {
                        b { "Nothing waits or runs in this queue." }
                        " No worker serves it, and it has no settings. A queue appears with its first job."
                    } }
                }
            }
        }))
        (range.links(view, ask))
        (live.put("tiles", tiles(view, name, of.row.as_ref(), &activity)))
        div.columns.wide-left {
            (live.put("finished", charts::finished(&activity)))
            (live.put("waits", charts::waits(&activity)))
        }
        (live.put("kinds", kinds_of(view, range, name, &kinds)))
        // A worker may serve other queues, too.
        @if view.looks.is_all() { (live.put("workers", workers(view, name, &kinds.workers))) }
        (live.put("schedules", schedules(view, &of.schedules)))
        @match &of.row {
            Some(row) if view.has_actions => (queues::limits(view, ask, std::slice::from_ref(row))),
            _ => {}
        }
    };
    Ok(live.page(name, "queues", body))
}

fn head(view: &View, ask: &Ask, name: &str, of: &Figures) -> Markup {
    let is_paused = of.row.as_ref().is_some_and(|row| row.paused_at.is_some());
    let filter = format!("queue={}", encoded(name));
    html! {
        header.head #head {
            div {
                p.crumbs { a href={ (view.base) "/queues" } { "Queues" } }
                div.title {
                    h1 { (name) }
                    @if let Some(row) = &of.row {
                        (state(&State::of(row, &of.fleet)))
                        @if let Some(at) = row.paused_at { span.soft { (time(at)) } }
                    }
                }
            }
            div.actions {
                a.button href={ (view.base) "/jobs?" (filter) } { "Jobs" }
                @if of.row.as_ref().is_some_and(|row| row.has_lanes || row.held > 0) {
                    a.button href={ (view.base) "/queues/" (name) "/lanes" } { "Lanes" }
                }
                a.button href={ (view.base) "/dead?" (filter) } { "Dead letters" }
                @if view.has_actions {
                    a.button href={ (view.base) "/enqueue?" (filter) } { "Enqueue a job" }
                    @if of.row.is_some() { (queues::pause(view, ask, name, is_paused)) }
                }
            }
        }
    }
}

fn tiles(view: &View, name: &str, row: Option<&QueueRow>, activity: &Activity) -> Markup {
    let of = |count: fn(&QueueRow) -> u64| row.map_or(0, count);
    let submitted = row.map_or(Some(0), |row| row.submitted);
    html! {
        dl.tiles #tiles {
            div {
                dt { "Waiting" }
                dd.big { (number(of(QueueRow::waiting))) }
                dd {
                    (number(of(|row| row.due))) " due, "
                    @if row.is_some_and(|row| row.held_due > 0) {
                        a href={ (view.base) "/queues/" (name) "/lanes" } {
                            (number(of(|row| row.held_due))) " held"
                        }
                        ", "
                    }
                    @match submitted {
                        Some(submitted) => { (number(submitted)) " submitted" }
                        None => "submissions not counted",
                    }
                    "; "
                    @match row.and_then(|row| row.oldest_due_s).filter(|s| *s >= 1.0) {
                        Some(s) => { "oldest for " (whole(s)) }
                        None => { (number(of(|row| row.scheduled))) " scheduled for later" }
                    }
                    @if let Some(most) = row.and_then(|row| row.max_queued) {
                        "; " (number(of(QueueRow::queued))) " of " (number(most)) " queued"
                        @if row.is_some_and(QueueRow::is_full) { b { ": full, enqueues are refused" } }
                    }
                }
            }
            div {
                dt { "Running" }
                dd.big {
                    (number(of(|row| row.processing)))
                    @if let Some(most) = row.and_then(|row| row.max_running) { " " small { "of " (number(most)) } }
                }
                @let workers = of(|row| row.workers);
                @let draining = of(|row| row.draining);
                dd {
                    "on " (number(workers)) @if workers == 1 { " worker" } @else { " workers" }
                    @if draining > 0 { ", " (number(draining)) " draining" }
                }
            }
            (charts::tiles(activity))
            div {
                dt { "Dead letters" }
                dd.big {
                    a href={ (view.base) "/dead?queue=" (encoded(name)) } { (number(of(|row| row.dead))) }
                }
                dd { (number(activity.failed())) " failed in the last " (activity.range_name()) }
            }
        }
    }
}

fn kinds_of(view: &View, range: &Range, name: &str, figures: &kinds::Figures) -> Markup {
    let rows = figures.rows(Some(name));
    html! {
        section.panel #kinds {
            header {
                h2 { "Kinds" }
                @if view.looks.is_all() { a href={ (view.base) "/kinds" } { "Kinds of all queues" } }
            }
            @if rows.is_empty() {
                div.body { p.soft { "No job of this queue lives, or has ended in the last " (range.name) "." } }
            } @else {
                (kinds::table(view, &rows, range, false))
                (figures.about(range, Some(name)))
            }
            (figures.submitted(Some(name)))
        }
    }
}

fn workers(view: &View, name: &str, workers: &[WorkerRow]) -> Markup {
    let serve: Vec<_> = workers.iter().filter(|of| of.queues.iter().any(|own| own == name)).collect();
    html! {
        section.panel #workers {
            header {
                h2 { "Workers" }
                @if serve.len() > SHOWN { p { "the latest " (SHOWN) " of " (serve.len()) } }
            }
            @if serve.is_empty() {
                div.body {
                    p { "No worker serves it. Start one: " code { "tenure work " (name) " --exec COMMAND" } }
                }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Worker" }
                        th scope="col" { "State" }
                        th.num scope="col" { "Slots busy" }
                        th scope="col" { "Kinds" }
                        th.num scope="col" { "Last seen" }
                    } }
                    tbody {
                        @for of in serve.iter().take(SHOWN) {
                            tr id={ "worker-" (of.worker_id) } {
                                th.tight scope="row" { (page::worker_row(view, &of.worker_id)) }
                                td data-label="State" {
                                    @let is_gone = of.state == WorkerState::Vanishing;
                                    @let is = if is_gone { "gone" } else { of.state.as_str() };
                                    (page::status(is, of.state.as_str()))
                                    @if let Some(why) = &of.not_ready {
                                        " " span.clip title=(why) { "not ready: " (why) }
                                    }
                                }
                                td.num.tight data-label="Slots busy"
                                    { (number(of.running)) " " span.soft { "of " (of.slots) } }
                                td.full data-label="Kinds" {
                                    @match &of.kinds {
                                        Some(kinds) => (kinds.join(", ")),
                                        None => span.soft { "every kind" },
                                    }
                                }
                                td.num.tight data-label="Last seen" { (whole(of.last_seen_s)) " ago" }
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn schedules(view: &View, schedules: &[ScheduleRow]) -> Markup {
    html! {
        section.panel #schedules hidden[schedules.is_empty()] {
            header {
                h2 { "Schedules" }
                @if view.looks.is_all() { a href={ (view.base) "/schedules" } { "All schedules" } }
            }
            div.body {
                ul.lines {
                    @for of in schedules.iter().take(SHOWN) {
                        li {
                            (page::schedule_link(view, &of.name)) " "
                            span.soft { (of.kind) ", " code { (of.cron) } ", " }
                            @if of.paused_at.is_some() { "paused" } @else { "next tick " (stamped(of.next_at)) }
                        }
                    }
                    @if schedules.len() > SHOWN { li.soft { (schedules.len() - SHOWN) " more" } }
                }
            }
        }
    }
}
