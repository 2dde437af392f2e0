//! Kinds: the jobs of each kind, how often they fail, and how long they run.

use std::{collections::BTreeMap, sync::Arc};

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    charts::Range,
    page::{self, Page, Regions, number},
    params::encoded,
    quarantine::{self, Watched},
    shared::Age,
};
use tenure::{
    StoreError,
    internals::{DeadKind, FinishedKind, Fleet, LiveKind, Parts as _, duration::rounded},
    rows::{WorkerRow, WorkerState},
};

/// The most finished jobs to read.
const READ: i64 = 20_000;
/// The parts of a unit of a range. A sample reads some jobs of each part: a burst of one kind hides no kind after it.
const PARTS: i64 = 10;
/// The most kinds to read, and to show.
const KINDS: i64 = 2_000;
const SHOWN: usize = 200;

/// What all viewers of one range share.
#[derive(Debug)]
pub(super) struct Figures {
    live: Vec<LiveKind>,
    dead: Vec<DeadKind>,
    finished: Vec<FinishedKind>,
    watched: Watched,
    pub(super) workers: Vec<WorkerRow>,
    /// What no worker runs has no job yet where it stands in the stream alone.
    fleet: Fleet,
}

/// A kind in a queue.
#[derive(Debug, Default)]
pub(super) struct Row {
    queue: String,
    kind: String,
    due: i64,
    /// Submissions, as far as the last scan has counted them by kind: those that no live worker runs.
    submitted: i64,
    scheduled: i64,
    held: i64,
    processing: i64,
    dead: i64,
    /// How many of its jobs ended in the range.
    ended: f64,
    /// The share of the attempts that failed.
    failed: Option<f64>,
    median_s: Option<f64>,
    p95_s: Option<f64>,
    /// Whether one of its finished jobs is among those that were read.
    is_read: bool,
    /// Whether it may have finished jobs that were not read.
    is_unread: bool,
    lacks: Option<&'static str>,
    /// A live worker keeps no history of the kind: its completed jobs are in no figure of ended jobs.
    is_unkept: bool,
}

/// The figures of a range, shared by all who look.
pub(super) async fn figures(view: &View, range: &'static Range) -> Result<Arc<Figures>, Failure> {
    let store = view.tenure.store();
    let read = Box::pin(async {
        let (live, dead, finished, watched, workers, fleet) = tokio::try_join!(
            store.live_kinds(KINDS),
            store.dead_kinds(range.seconds(), KINDS),
            store.finished_kinds(range.units * PARTS, range.unit_s / PARTS, READ, KINDS),
            async { Ok(view.tenure.quarantines().await) },
            view.tenure.workers(),
            store.fleet(),
        )?;
        Ok::<_, StoreError>(Figures { live, dead, finished, watched, workers, fleet })
    });
    Ok(view.figures.kinds.get(range.word, Age::AMoment, read).await?.0)
}

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let range = Range::of(ask)?;
    let figures = figures(view, range).await?;
    let rows = figures.rows(None);
    let mut live = Regions::default();
    let body = html! {
        (page::head("Kinds", html! { "The jobs of each kind: how many, how often they fail, and how long they run." }))
        (range.links(view, ask))
        (live.put("watched", quarantine::panel(view, ask, &figures.watched)))
        (live.put("kinds", html! {
            section.panel #kinds {
                @if rows.is_empty() {
                    div.empty { strong { "No jobs yet" } p { "A kind appears with its first job." } }
                } @else {
                    (table(view, &rows, range, true))
                    (figures.about(range, None))
                }
                (figures.submitted(None))
            }
        }))
    };
    Ok(live.page("Kinds", "kinds", body))
}

impl Figures {
    /// The kinds of all queues, or of one, in order of their names.
    #[expect(clippy::cast_precision_loss, reason = "counts of jobs are fewer than 2^52")]
    pub(super) fn rows(&self, only: Option<&str>) -> Vec<Row> {
        let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
        let is_wanted = |queue: &str| only.is_none_or(|only| only == queue);
        for of in self.live.iter().filter(|of| is_wanted(&of.queue)) {
            let row = rows.entry((&of.kind, &of.queue)).or_default();
            (row.due, row.scheduled, row.processing) = (of.due, of.scheduled, of.processing);
            row.held = of.held;
        }
        let submitted =
            self.fleet.unserved.iter().filter(|of| is_wanted(&of.queue) && of.submitted > Some(0));
        for of in submitted.filter(|of| !of.kind.is_empty()) {
            let row = rows.entry((&of.kind, &of.queue)).or_default();
            row.submitted = of.submitted.unwrap_or_default();
        }
        let is_sample = self.finished.iter().any(|of| !of.is_whole);
        // The attempts of each kind, and those that failed.
        let mut attempts: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
        for of in self.finished.iter().filter(|of| is_wanted(&of.queue)) {
            let key = (of.kind.as_str(), of.queue.as_str());
            let row = rows.entry(key).or_default();
            row.is_read = true;
            (row.median_s, row.p95_s, row.ended) = (of.median_s, of.p95_s, of.jobs as f64);
            // Each job that was read stands for this many.
            let weight = of.jobs as f64 / of.read.max(1) as f64;
            attempts.insert(key, (of.attempts as f64 * weight, of.failed as f64 * weight));
        }
        for of in self.dead.iter().filter(|of| is_wanted(&of.queue)) {
            let key = (of.kind.as_str(), of.queue.as_str());
            let row = rows.entry(key).or_default();
            row.dead = of.dead;
            row.ended += of.died as f64;
            let (all, failed) = attempts.entry(key).or_default();
            *all += of.attempts as f64;
            *failed += of.attempts as f64;
        }
        for ((kind, queue), row) in &mut rows {
            (row.kind, row.queue) = ((*kind).to_owned(), (*queue).to_owned());
            if row.due + row.submitted + row.scheduled + row.held > 0 && !self.is_served(queue, Some(kind)) {
                row.lacks = Some(if self.is_served(queue, None) { "unknown kind" } else { "no worker" });
            }
            row.is_unkept = self.workers.iter().any(|of| {
                let is_of = |own: &String| own == kind || own == "*" && of.kinds.is_none();
                of.state == WorkerState::Alive
                    && of.queues.iter().any(|own| own == queue)
                    && of.unkept.iter().any(is_of)
            });
            row.is_unread = is_sample && !row.is_read;
            row.failed = attempts
                .get(&(*kind, *queue))
                .filter(|(all, _)| *all > 0.0 && !row.is_unread)
                .map(|(all, failed)| failed / all);
        }
        rows.into_values().collect()
    }

    /// Whether a live worker serves the queue and, if a kind is given, runs it.
    fn is_served(&self, queue: &str, kind: Option<&str>) -> bool {
        self.workers.iter().any(|of| {
            of.state == WorkerState::Alive
                && of.queues.iter().any(|own| own == queue)
                && kind
                    .is_none_or(|kind| of.kinds.as_ref().is_none_or(|all| all.iter().any(|own| own == kind)))
        })
    }

    /// How many submissions stand in the stream, of all queues or of one. A scan counts them by kind only if no live
    /// worker runs the kind.
    pub(super) fn submitted(&self, only: Option<&str>) -> Markup {
        let of = self.fleet.queues.iter().filter(|of| only.is_none_or(|only| only == of.queue));
        let submitted: i64 = of.filter_map(|of| of.submitted).sum();
        html! {
            @if submitted > 0 {
                p.foot {
                    (number(submitted))
                    @if submitted == 1 { " submission stands" } @else { " submissions stand" }
                    " in the stream. A kind that workers run appears here with its first job."
                }
            }
        }
    }

    /// What the figures of finished jobs were computed from, of all queues or of one.
    pub(super) fn about(&self, range: &Range, only: Option<&str>) -> Markup {
        let of = || self.finished.iter().filter(|of| only.is_none_or(|only| only == of.queue));
        let read = of().map(|of| of.read).sum::<i64>();
        let jobs = of().map(|of| of.jobs).sum::<i64>();
        let is_whole = of().all(|of| of.is_whole);
        html! {
            p.foot {
                @if is_whole {
                    "Of all " (number(read)) " jobs that were created in the last " (range.name) " and have finished"
                } @else {
                    "Estimates from a sample: " (number(read)) " of about " (number(jobs))
                    " jobs that were created in the last " (range.name) " and have finished"
                }
                ", and of the dead letters of that time. Failed: the share of the attempts; one that was released or \
                 snoozed counts as none. Run time: median and p95 of completed attempts."
            }
        }
    }
}

/// The kinds of all queues, or, without the column of the queue, of one.
pub(super) fn table(view: &View, rows: &[Row], range: &Range, has_queue: bool) -> Markup {
    html! {
        div.scroll { table.cards {
            thead { tr {
                th scope="col" { "Kind" }
                @if has_queue { th scope="col" { "Queue" } }
                th.num scope="col" { "Due" }
                th.num scope="col" { "Scheduled" }
                th.num scope="col" { "Running" }
                th.num scope="col" { "Dead" }
                th.num scope="col" { "Ended/min" }
                th.num scope="col" { "Failed" }
                th.num scope="col" { "Run time" }
                th.num scope="col" { "p95" }
            } }
            tbody { @for of in rows.iter().take(SHOWN) { (row(view, of, range, has_queue)) } }
        } }
        @if rows.len() > SHOWN {
            p.foot { "The first " (SHOWN) " of " (rows.len()) " kinds, by name." }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the seconds of a week")]
fn row(view: &View, of: &Row, range: &Range, has_queue: bool) -> Markup {
    let filter = format!("queue={}&kind={}", encoded(&of.queue), encoded(&of.kind));
    let seconds = |value: Option<f64>| value.map_or("–".into(), rounded);
    let unread = html! { span title="None of its finished jobs is in the sample that was read." { "–" } };
    html! {
        tr id={ "kind-" (of.queue) "-" (of.kind) } {
            th scope="row" {
                a.row href={ (view.base) "/jobs?" (filter) } title=(of.kind) { (of.kind) }
                @if let Some(lacks) = of.lacks { " " (page::status("silent", lacks)) }
                @if of.is_unkept {
                    " " span.soft title="Completed jobs are counted in the rates of the queue only." { "no history" }
                }
            }
            @if has_queue { td data-label="Queue" { (page::queue_cell(view, &of.queue)) } }
            td.num data-label="Due" {
                (number(of.due))
                @if of.submitted > 0 { br; span.soft { (number(of.submitted)) " submitted" } }
                @if of.held > 0 { br; span.soft { (number(of.held)) " held" } }
            }
            td.num data-label="Scheduled" { (number(of.scheduled)) }
            td.num data-label="Running" { (number(of.processing)) }
            td.num data-label="Dead" {
                @if of.dead > 0 { a href={ (view.base) "/dead?" (filter) } { (number(of.dead)) } } @else { "0" }
            }
            td.num data-label="Ended/min" {
                @if of.is_unread { (unread) } @else { (rate(of.ended * 60.0 / range.seconds() as f64)) }
            }
            td.num data-label="Failed" {
                @match of.failed { Some(share) => (percent(share)), None if of.is_unread => (unread), None => "–" }
            }
            td.num.tight data-label="Run time" { (seconds(of.median_s)) }
            td.num.tight data-label="p95" { (seconds(of.p95_s)) }
        }
    }
}

/// Formats a rate: `0`, `0.03`, `2.5`, `1,240`.
#[expect(clippy::cast_possible_truncation, reason = "a rate is less than 2^52")]
fn rate(a_minute: f64) -> String {
    match a_minute {
        of if of <= 0.0 => "0".into(),
        of if of < 0.01 => "< 0.01".into(),
        of if of < 1.0 => format!("{of:.2}"),
        of if of < 100.0 => format!("{of:.1}"),
        of => number(of.round() as i64),
    }
}

/// Formats a share: none and all only if that is exact.
fn percent(share: f64) -> String {
    match share * 100.0 {
        of if of <= 0.0 => "0\u{a0}%".into(),
        of if of < 0.1 => "< 0.1\u{a0}%".into(),
        of if of >= 100.0 => "100\u{a0}%".into(),
        of if of > 99.9 => "> 99.9\u{a0}%".into(),
        of => format!("{of:.1}\u{a0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_read_well() {
        for (of, text) in [(0.0, "0"), (0.001, "< 0.01"), (0.25, "0.25"), (2.54, "2.5"), (1_240.4, "1,240")] {
            assert_eq!(rate(of), text);
        }
        for (of, text) in
            [(0.0, "0 %"), (0.000_1, "< 0.1 %"), (0.125, "12.5 %"), (0.999_9, "> 99.9 %"), (1.0, "100 %")]
        {
            assert_eq!(percent(of).replace('\u{a0}', " "), text);
        }
    }

    /// A kind that was sampled and has dead letters: each job that was read stands for ten.
    #[test]
    fn the_share_of_failed_attempts_weighs_a_sample_as_what_it_stands_for() {
        let (queue, kind) = ("q".to_owned(), "k".to_owned());
        let finished = FinishedKind {
            queue: queue.clone(),
            kind: kind.clone(),
            is_whole: false,
            jobs: 900,
            read: 90,
            completed: 90,
            attempts: 100,
            failed: 10,
            median_s: Some(1.0),
            p95_s: Some(2.0),
        };
        let dead = DeadKind { queue, kind, dead: 70, died: 60, attempts: 200 };
        let figures = Figures {
            live: vec![],
            dead: vec![dead],
            finished: vec![finished],
            watched: Ok(vec![]),
            workers: vec![],
            fleet: Fleet::default(),
        };
        let rows = figures.rows(Some("q"));
        assert_eq!((rows.len(), rows[0].dead, rows[0].ended), (1, 70, 960.0));
        // 1,000 attempts of finished jobs, 100 of them failed, and 200 of dead ones.
        assert_eq!(rows[0].failed, Some(0.25));
        assert!(figures.rows(Some("other")).is_empty());
        // A kind that has died and is not in the sample may have completed as well: nothing is known of its share.
        let others = FinishedKind { kind: "other".into(), ..figures.finished[0].clone() };
        let rows = Figures { finished: vec![others], ..figures }.rows(Some("q"));
        assert_eq!((rows[0].kind.as_str(), rows[0].dead, rows[0].failed), ("k", 70, None));
        assert!(rows[0].is_unread && !rows[1].is_unread);
    }
}
