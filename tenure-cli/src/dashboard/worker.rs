//! Worker: one process, its jobs now and what recovery did about it.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, dated, number, seconds_between, time, whole},
    recovery,
};
use tenure::{
    Status,
    internals::{EventFilter, Parts as _},
    rows::{JobFilter, JobRow, WorkerRow, WorkerState},
};

/// The most jobs to show. A worker with more slots shows its newest ones.
const JOBS: i64 = 100;
const EVENTS: i64 = 20;

pub(super) async fn page(view: &View, _ask: &Ask, id: &str) -> Result<Page, Failure> {
    let store = view.tenure.store();
    let running = JobFilter::new().status(Status::Processing).worker(id);
    let about = EventFilter { worker: Some(id.to_owned()), ..EventFilter::default() };
    let (workers, jobs, events) = tokio::try_join!(
        view.tenure.workers(),
        store.list_jobs(&running, JOBS, false),
        store.recovery_events(&about, EVENTS),
    )?;
    let worker = workers.iter().find(|of| of.worker_id == id);
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(view, id, worker)))
        (live.put("facts", html! {
            div #facts { @match worker { Some(of) => (facts(of)), None => (gone()) } }
        }))
        (live.put("jobs", running_jobs(view, worker, &jobs)))
        (live.put("recovery", html! {
            section.panel #recovery {
                header { h2 { "Recovery" } p { "of its jobs, and by this worker: the latest first" } }
                @if events.is_empty() {
                    div.body { p.soft { "No job of this worker was reset, and it has reset none." } }
                } @else {
                    (recovery::table(view, &events, true))
                }
            }
        }))
    };
    Ok(live.page(id, "workers", body))
}

fn head(view: &View, id: &str, worker: Option<&WorkerRow>) -> Markup {
    html! {
        header.head #head {
            div {
                p.crumbs { a href={ (view.base) "/workers" } { "Workers" } }
                div.title {
                    h1 { (id) }
                    @if let Some(of) = worker {
                        @let is = if of.state == WorkerState::Vanishing { "gone" } else { of.state.as_str() };
                        span.status.pill data-is=(is) { (of.state.as_str()) }
                    }
                }
            }
            div.actions {
                a.button href={ (view.base) "/jobs?worker=" (super::params::encoded(id)) } { "Jobs that it ran last" }
            }
        }
    }
}

/// What a page says of a worker without a row.
fn gone() -> Markup {
    html! {
        p.notice {
            span {
                b { "No running worker has this ID." }
                " A worker that stops removes its row, and recovery removes that of one that died."
            }
        }
    }
}

fn facts(of: &WorkerRow) -> Markup {
    html! {
        section.panel {
            header { h2 { "Facts" } }
            div.body {
                dl.facts {
                    dt { "State" }
                    dd {
                        (of.state.as_str())
                        @match of.state {
                            WorkerState::Alive => "",
                            WorkerState::Silent => ": it has missed three renewals, and may still answer over NATS",
                            _ => ": it missed renewals and does not answer over NATS; its jobs are about to be reset",
                        }
                    }
                    dt { "Last seen" }
                    dd { (whole(of.last_seen_s)) " ago " span.date { (page::date(of.last_seen_at)) } }
                    dt { "Slots busy" } dd { (number(of.running)) " of " (of.slots) }
                    dt { "Queues" } dd { (of.queues.join(", ")) }
                    dt { "Kinds" }
                    dd { @match &of.kinds { Some(kinds) => (kinds.join(", ")), None => "every kind" } }
                    dt { "Host" } dd { (of.hostname) ", process " (of.pid) }
                    dt { "Version" } dd { (of.version) }
                    dt { "Started" } dd { (dated(of.started_at)) }
                }
            }
        }
    }
}

fn running_jobs(view: &View, worker: Option<&WorkerRow>, jobs: &[JobRow]) -> Markup {
    let now = chrono::Utc::now();
    let shown = jobs.len() as u64;
    let more = worker.map_or(0, |of| of.running.saturating_sub(shown));
    html! {
        section.panel #jobs {
            header {
                h2 { "Jobs now" }
                @if more > 0 { p { "the newest " (shown) " of " (number(shown + more)) } }
            }
            @if jobs.is_empty() {
                div.body { p.soft { "It runs no job." } }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Job" }
                        th scope="col" { "Queue" }
                        th scope="col" { "Progress" }
                        th.num scope="col" { "Attempt" }
                        th.num scope="col" { "Ran, s" }
                        th.num scope="col" { "Last heartbeat" }
                    } }
                    tbody {
                        @for job in jobs {
                            tr id={ "job-" (job.id) } {
                                th.tight scope="row" { (page::job_link(view, job.id, &job.kind)) }
                                td data-label="Queue" { span.clip.name title=(job.queue) { (job.queue) } }
                                td.text.full { (super::jobs::progress(job)) }
                                td.num.tight data-label="Attempt" { (job.attempt) span.soft { "/" (job.max_attempts) } }
                                td.num.tight data-label="Ran, s" {
                                    @if let Some(from) = job.started_at { (seconds_between(from, now)) }
                                }
                                td.num.tight data-label="Last heartbeat" {
                                    @match job.last_activity_at { Some(at) => (time(at)), None => "–" }
                                }
                            }
                        }
                    }
                } }
            }
        }
    }
}
