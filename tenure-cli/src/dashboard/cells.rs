//! Cells: all cells on one page, and the way from there to the cell that has a job or a queue.
//!
//! A cell that is away must not hold up this page: each is read at the same time as the others, and for [`WITHIN`] at
//! most.

use std::{sync::Arc, time::Duration};

use axum::{
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use axum_extra::extract::cookie::CookieJar;
use futures::future::{BoxFuture, join_all};
use maud::{Markup, html};
use tokio::time::timeout;

use super::{
    AGAIN_AFTER, Ask, Failure, View, cause, failed,
    page::{self, Page, Regions, number},
    queues::{State, state},
    shared::{Age, Shared},
    show,
};
use crate::access::Scope;
use tenure::{
    Health, JobId, StoreError,
    internals::{Fleet, Parts as _, QueueStats, duration::written},
};

/// How long to wait for the answer of a cell.
const WITHIN: Duration = Duration::from_secs(2);

/// The answer of a cell, or the reason why it did not answer.
type Answer<T> = Result<T, String>;
/// The counts of a cell's jobs and workers.
type Counts<'c> = (&'c Cell, Answer<Arc<Fleet>>);

/// One of several cells.
#[derive(Debug)]
pub(super) struct Cell {
    view: Arc<View>,
    /// What the last look at its servers found.
    health: Health,
    fleet: Shared<&'static str, Fleet>,
}

impl Cell {
    pub(super) fn new(view: &Arc<View>, health: &Health) -> Self {
        Self { view: view.clone(), health: health.clone(), fleet: Shared::default() }
    }

    fn name(&self) -> &str {
        self.view.cell.as_deref().unwrap_or_default()
    }

    /// Asks its Postgres, unless the last look has found the cell unusable: that is known at once.
    async fn ask<T>(&self, question: impl Future<Output = Result<T, StoreError>>) -> Answer<T> {
        if self.health.has_started()
            && let Err(reasons) = self.health.ready()
        {
            return Err(reasons.join("; "));
        }
        match timeout(WITHIN, question).await {
            Ok(answer) => answer.map_err(|error| cause(&error)),
            Err(_) => Err(format!("Postgres did not answer within {}", written(WITHIN))),
        }
    }

    /// Reads the counts of its jobs and workers.
    fn fleet(&self) -> BoxFuture<'_, Answer<Arc<Fleet>>> {
        Box::pin(self.ask(async move {
            let read = Box::pin(self.view.tenure.store().fleet());
            let (fleet, _) = self.fleet.get("fleet", Age::AMoment, read).await?;
            Ok::<_, StoreError>(fleet)
        }))
    }

    /// Asks whether it has a job, in one of these queues.
    fn has<'c>(&'c self, job: JobId, looks: &'c Scope) -> BoxFuture<'c, Answer<bool>> {
        let store = self.view.tenure.store();
        Box::pin(self.ask(async move {
            let queue = match store.show_job(job).await? {
                Some(job) => Some(job.queue),
                // A refused message has an ID, too, and a page.
                None => store.dead_letter(job).await?.map(|letter| letter.queue),
            };
            Ok::<_, StoreError>(queue.is_some_and(|queue| looks.has(&queue)))
        }))
    }
}

/// Answers a request at the top, where all cells are: no forms are there.
pub(super) async fn answer(view: Arc<View>, ask: Ask, method: Method, jar: CookieJar) -> Response {
    if !matches!(method, Method::GET | Method::HEAD) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    match base_of(&view, &ask).await {
        None => show(view, ask, jar).await,
        Some(Ok(base)) => {
            let location = format!("{base}{}", page::here(&ask));
            (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
        }
        Some(Err(failure)) => {
            let mut response = failed(&view, &ask, &failure);
            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                response.headers_mut().insert(header::REFRESH, AGAIN_AFTER.as_secs().into());
            }
            response
        }
    }
}

/// Returns the base of the cell that has this page; `None`: it is no page of a cell.
async fn base_of(view: &View, ask: &Ask) -> Option<Result<String, Failure>> {
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    match path[..] {
        ["jobs", id] => Some(base_of_job(view, id).await),
        ["queues", name] => Some(base_of_queue(view, name).await),
        _ => None,
    }
}

async fn base_of_job(view: &View, id: &str) -> Result<String, Failure> {
    let Ok(job) = id.parse::<JobId>() else {
        return Err(Failure::NotFound("No cell has this job: its ID is not valid.".into()));
    };
    let asked: Vec<_> = view.cells.iter().map(|cell| cell.has(job, &view.looks)).collect();
    let answers = join_all(asked).await;
    let mut silent = Vec::new();
    for (cell, answer) in view.cells.iter().zip(answers) {
        match answer {
            Ok(true) => return Ok(cell.view.base.clone()),
            Ok(false) => {}
            Err(_) => silent.push(cell.name()),
        }
    }
    Err(nowhere("this job", &silent))
}

async fn base_of_queue(view: &View, name: &str) -> Result<String, Failure> {
    let mut found: Option<((bool, i64), String)> = None;
    let mut silent = Vec::new();
    for (cell, answer) in fleets(view).await {
        let Ok(fleet) = answer else {
            silent.push(cell.name());
            continue;
        };
        let Some(of) = fleet.queues.iter().find(|of| of.queue == name) else { continue };
        // Two cells have jobs of a queue that drains: its workers and most of its jobs are in the one that matters.
        let rank = (of.workers > 0, of.waiting() + of.jobs[1] + of.jobs[2]);
        if found.as_ref().is_none_or(|(highest, _)| *highest < rank) {
            found = Some((rank, cell.view.base.clone()));
        }
    }
    found.map(|(_, base)| base).ok_or_else(|| nowhere("this queue", &silent))
}

/// No cell that answers has this.
fn nowhere(what: &str, silent: &[&str]) -> Failure {
    if silent.is_empty() {
        return Failure::NotFound(format!("No cell has {what}."));
    }
    Failure::Unanswered(format!(
        "No cell that answers has {what}. It may be in a cell that does not answer: {}. This page tries again by \
         itself.",
        silent.join(", ")
    ))
}

/// Reads all cells at once.
async fn fleets(view: &View) -> Vec<Counts<'_>> {
    let asked: Vec<_> = view.cells.iter().map(Cell::fleet).collect();
    let answers = join_all(asked).await;
    view.cells.iter().zip(answers).collect()
}

/// The page of all cells.
pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    match path[..] {
        [] => {}
        ["cells", name, ..] => return Err(Failure::NotFound(format!("There is no cell {name:?}."))),
        _ => {
            let text = "This page does not exist here: the pages of each cell are in the list of the cells.";
            return Err(Failure::NotFound(text.into()));
        }
    }
    let cells = fleets(view).await;
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(&cells)))
        // It counts the jobs of all queues.
        @if view.looks.is_all() { (live.put("cells", table(&cells))) }
        (live.put("queues", queues(view, &cells)))
    };
    Ok(live.page("Cells", "cells", body))
}

fn head(cells: &[Counts<'_>]) -> Markup {
    let silent = cells.iter().filter(|(_, answer)| answer.is_err());
    let silent: Vec<_> = silent.map(|(cell, _)| cell.name()).collect();
    html! {
        header.head #head {
            div {
                h1 { "Cells" }
                p {
                    @if silent.is_empty() {
                        "Each cell is a Postgres and a stream. A queue lives in one of them."
                    } @else {
                        "The queues of " (silent.join(", ")) " are not shown."
                    }
                }
            }
        }
    }
}

fn table(cells: &[Counts<'_>]) -> Markup {
    html! {
        section.panel #cells {
            div.scroll { table.cards {
                thead { tr {
                    th scope="col" { "Cell" }
                    th scope="col" { "State" }
                    th.num scope="col" { "Waiting" }
                    th.num scope="col" { "Running" }
                    th.num scope="col" { "Dead" }
                    th.num scope="col" { "Workers" }
                } }
                tbody { @for (cell, answer) in cells { (row(cell, answer)) } }
            } }
        }
    }
}

fn row(cell: &Cell, answer: &Answer<Arc<Fleet>>) -> Markup {
    html! {
        tr id={ "cell-" (cell.name()) } {
            th scope="row" { (overview_link(cell, "row")) }
            @match answer {
                Ok(fleet) => {
                    td data-label="State" {
                        (page::status("open", "answers"))
                        @if fleet.age_s.is_none() { " " span.soft { "jobs not counted yet" } }
                    }
                    td.num data-label="Waiting" {
                        (number(fleet.queues.iter().map(QueueStats::waiting).sum::<i64>()))
                    }
                    td.num data-label="Running" {
                        (number(fleet.queues.iter().map(|of| of.jobs[2]).sum::<i64>()))
                    }
                    td.num data-label="Dead" { (number(fleet.dead)) }
                    td.num data-label="Workers" {
                        (number(fleet.workers))
                        @if fleet.draining > 0 { " " span.soft { (number(fleet.draining)) " draining" } }
                    }
                }
                Err(why) => {
                    td.full data-label="State" colspan="5" {
                        (page::status("gone", "unavailable")) " " span.soft { (page::sentence(why)) }
                    }
                }
            }
        }
    }
}

fn overview_link(cell: &Cell, class: &str) -> Markup {
    html! { a class=(class) href={ (cell.view.base) "/" } { (cell.name()) } }
}

/// A queue in one of the cells.
struct Queue<'f> {
    cell: &'f Cell,
    fleet: &'f Fleet,
    of: &'f QueueStats,
}

impl Queue<'_> {
    /// Whether it has no jobs and no workers.
    fn is_idle(&self) -> bool {
        let of = self.of;
        of.waiting() + of.held == 0 && of.jobs == [0; 3] && of.workers == 0 && of.draining == 0
    }
}

fn queues(view: &View, cells: &[Counts<'_>]) -> Markup {
    let mut all = Vec::new();
    for (cell, answer) in cells {
        let Ok(fleet) = answer else { continue };
        let seen = fleet.queues.iter().filter(|of| view.looks.has(&of.queue));
        all.extend(seen.map(move |of| Queue { cell, fleet, of }));
    }
    all.sort_by(|a, b| (&a.of.queue, a.cell.name()).cmp(&(&b.of.queue, b.cell.name())));
    // The cell that a queue has left still knows its name: it is of no interest once its jobs are gone, too.
    let shown: Vec<_> = all
        .chunk_by(|a, b| a.of.queue == b.of.queue)
        .flat_map(|same| {
            let are_idle = same.iter().all(Queue::is_idle);
            same.iter().filter(move |queue| are_idle || !queue.is_idle())
        })
        .collect();
    html! {
        section.panel #queues {
            header { h2 { "Queues" } p { @if view.looks.is_all() { "of all cells" } @else { "that you may look at" } } }
            @if shown.is_empty() {
                div.empty { strong { "No queues yet" } p { "A queue appears with its first job." } }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Queue" }
                        th scope="col" { "Cell" }
                        th scope="col" { "State" }
                        th.num scope="col" { "Waiting" }
                        th.num scope="col" { "Running" }
                        th.num scope="col" { "Workers" }
                    } }
                    tbody { @for queue in shown { (queue_row(queue)) } }
                } }
            }
        }
    }
}

fn queue_row(Queue { cell, fleet, of }: &Queue<'_>) -> Markup {
    let state = state(&State {
        is_paused: of.is_paused,
        is_unserved: of.is_unserved(),
        is_draining: of.draining > 0,
        is_full: of.is_full(),
        has_unknown_kind: fleet.unserved.iter().any(|kind| kind.queue == of.queue && kind.is_queue_served),
        is_limited: of.is_limited(),
    });
    html! {
        // No name has a dot: one queue of a cell has this ID.
        tr id={ "queue-" (cell.name()) "." (of.queue) } {
            th scope="row" { (page::queue_row(&cell.view, &of.queue)) }
            td data-label="Cell" { (overview_link(cell, "name queue")) }
            td data-label="State" { (state) }
            td.num data-label="Waiting" { (number(of.waiting())) }
            td.num data-label="Running" {
                (number(of.jobs[2])) @if let Some(most) = of.max_running { span.soft { " of " (number(most)) } }
            }
            td.num data-label="Workers" {
                (number(of.workers))
                @if of.draining > 0 { " " span.soft { (number(of.draining)) " draining" } }
            }
        }
    }
}
