//! Worker: one process, its jobs now and what recovery did about it.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    actions::Said,
    page::{self, Page, Regions, dated, number, seconds_between, stamped, time},
    params::encoded,
    recovery,
};
use tenure::{
    Status,
    internals::{EventFilter, Parts as _, duration::whole},
    rows::{JobFilter, JobRow, WorkerRow, WorkerState},
    workers::DrainError,
};

/// The most jobs to show. A worker with more slots shows its newest ones.
const JOBS: i64 = 100;
const EVENTS: i64 = 20;
/// The question before a drain.
const DRAIN: &str = "Drain this worker? It takes no new jobs, lets its running jobs finish, and its process exits. \
                     A platform such as Kubernetes then starts it again.";

pub(super) async fn page(view: &View, ask: &Ask, id: &str) -> Result<Page, Failure> {
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
        (live.put("head", head(view, ask, id, worker)))
        (live.put("facts", html! {
            div #facts { @match worker { Some(of) => (facts(view, of)), None => (gone()) } }
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

fn head(view: &View, ask: &Ask, id: &str, worker: Option<&WorkerRow>) -> Markup {
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
                a.button href={ (view.base) "/jobs?worker=" (encoded(id)) } { "Jobs that it ran last" }
                @if view.has_actions && worker.is_some_and(|of| of.state != WorkerState::Draining) {
                    form method="post" action={ (view.base) "/workers/" (encoded(id)) "/drain" } data-confirm=(DRAIN) {
                        (page::own(ask))
                        button.danger { "Drain" }
                    }
                }
            }
        }
    }
}

/// Drains a worker.
pub(super) async fn drain(view: &View, id: &str) -> Said {
    let done = view.tenure.drain_worker(id).await?;
    let what = if done.was_draining { "was already stopping" } else { "drains: it takes no new jobs" };
    Ok(match done.running {
        0 => format!("{id} {what}. It runs no job, and exits at once."),
        1 => format!("{id} {what}. It exits when its 1 running job has ended."),
        jobs => format!("{id} {what}. It exits when its {jobs} running jobs have ended."),
    })
}

impl From<DrainError> for Failure {
    fn from(error: DrainError) -> Self {
        match error {
            DrainError::Store(error) => error.into(),
            error => Self::Bad(page::sentence(&error.to_string())),
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

fn facts(view: &View, of: &WorkerRow) -> Markup {
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
                            WorkerState::Draining => {
                                ": it finishes its jobs, takes no other, and ends"
                                @if let Some(at) = of.draining_at { "; since " (time(at)) }
                            }
                            WorkerState::Silent => ": it has missed three renewals, and may still answer over NATS",
                            _ => ": it missed renewals and does not answer over NATS; its jobs are about to be reset",
                        }
                    }
                    @if let Some(why) = &of.not_ready {
                        dt { "Not ready" }
                        dd { (why) span.soft { "; it takes no job until this has passed" } }
                    }
                    dt { "Last seen" }
                    dd { (whole(of.last_seen_s)) " ago " span.date { (page::date(of.last_seen_at)) } }
                    dt { "Slots busy" } dd { (number(of.running)) " of " (of.slots) }
                    dt { "Queues" } dd { (page::queue_links(view, &of.queues)) }
                    dt { "Kinds" }
                    dd { @match &of.kinds { Some(kinds) => (kinds.join(", ")), None => "every kind" } }
                    @if !of.unkept.is_empty() {
                        dt { "Keeps no history of" }
                        dd { @if of.unkept == ["*"] { "every kind" } @else { (of.unkept.join(", ")) } }
                    }
                    dt { "Host" } dd { (of.hostname) ", process " (of.pid) }
                    dt { "Version" } dd { (of.program()) }
                    dt { "Started" } dd { (dated(of.started_at)) }
                }
            }
        }
    }
}

fn running_jobs(view: &View, worker: Option<&WorkerRow>, jobs: &[JobRow]) -> Markup {
    let now = super::clock::now();
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
                        th.num scope="col" { "Last heartbeat, UTC" }
                    } }
                    tbody {
                        @for job in jobs {
                            tr id={ "job-" (job.id) } {
                                th.tight scope="row" { (page::job_link(view, job.id, &job.kind)) }
                                td data-label="Queue" { (page::queue_cell(view, &job.queue)) }
                                td.text.full { (super::jobs::progress(job)) }
                                td.num.tight data-label="Attempt" { (job.attempt) span.soft { "/" (job.max_attempts) } }
                                td.num.tight data-label="Ran, s" {
                                    @if let Some(from) = job.started_at { (seconds_between(from, now)) }
                                }
                                td.num.tight data-label="Last heartbeat" {
                                    @match job.last_activity_at { Some(at) => (stamped(at)), None => "–" }
                                }
                            }
                        }
                    }
                } }
            }
        }
    }
}
