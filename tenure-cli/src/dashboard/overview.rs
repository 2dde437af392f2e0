//! Overview: the state of the fleet on one page.

use std::fmt::Write;

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, Aging, Page, Region, Regions, about, number, span, time, whole},
};
use crate::timeline::seconds;
use tenure::internals::{Event, EventCount, EventFilter, Fleet, Minute, Parts as _, QueueCounts, quantile};

/// The ranges of the charts, in minutes.
const HOUR: i32 = 60;
const DAY: i32 = 24 * 60;
/// The minutes over which the tiles compute latencies.
const LATELY: i64 = 5;
const LATEST: i64 = 8;
/// The most queues, and the most kinds, without a worker that have a notice each.
const QUEUES_SHOWN: usize = 10;
const KINDS_SHOWN: usize = 5;
/// The outcomes of attempts, in the order in which the chart stacks them.
const ENDS: [&str; 5] = ["completed", "cancelled", "retried", "lost", "failed"];

pub(super) async fn page(view: &View, _ask: &Ask) -> Result<Page, Failure> {
    let (store, all) = (view.tenure.store(), EventFilter::default());
    let (fleet, minutes, lost, events, latest) = tokio::try_join!(
        store.fleet(),
        store.activity(HOUR),
        store.recovery_counts(HOUR, 1),
        store.recovery_counts(DAY, DAY),
        store.recovery_events(&all, LATEST),
    )?;
    let hour = Hour::of(&minutes, &lost);
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(fleet.age_s).markup))
        (live.put("notices", notices(view, &fleet)))
        (live.put("tiles", tiles(&fleet, &hour)))
        div.columns.wide-left {
            (live.put("finished", finished(&hour)))
            (live.put("waits", waits(&hour)))
        }
        div.columns.wide-left {
            (live.put("queues", queues(view, &fleet)))
            (live.put("recoveries", recoveries(view, &events)))
        }
        (live.put("latest", feed(view, &latest)))
    };
    let aging = fleet.age_s.map(|age_s| Aging { region: head, age_s });
    Ok(live.page("Overview", "overview", body).aging(aging))
}

fn head(age_s: Option<f64>) -> Region {
    let counted = html! {
        "The last hour. "
        @match age_s {
            Some(age) => { "Jobs were counted " (whole(age)) " ago." }
            None => "No worker has counted the jobs yet.",
        }
    };
    Region { id: "head", markup: html! { header.head #head { div { h1 { "Overview" } p { (counted) } } } } }
}

/// An hour of the fleet, minute by minute: the oldest first, the current minute last.
struct Hour {
    minutes: Vec<QueueCounts>,
    lost: Vec<i64>,
}

impl Hour {
    fn of(minutes: &[Minute], events: &[EventCount]) -> Self {
        let count = usize::try_from(HOUR).unwrap_or_default();
        let at = |ago: i64| count.checked_sub(usize::try_from(ago).ok()? + 1);
        let mut hour = Self { minutes: vec![QueueCounts::default(); count], lost: vec![0; count] };
        for minute in minutes {
            if let Some(of) = at(minute.minutes_ago).and_then(|at| hour.minutes.get_mut(at)) {
                of.add(&minute.done);
            }
        }
        for event in events.iter().filter(|event| event.event == "reset") {
            if let Some(lost) = at(event.ago).and_then(|at| hour.lost.get_mut(at)) {
                *lost += event.jobs;
            }
        }
        hour
    }

    /// How many attempts finished in this minute, by outcome in the order of [`ENDS`].
    fn ends(&self, minute: usize) -> [i64; 5] {
        let of = &self.minutes[minute];
        [of.completed, of.cancelled, of.retried + of.snoozed + of.released, self.lost[minute], of.failed]
    }

    fn totals(&self) -> [i64; 5] {
        (0..self.minutes.len()).map(|minute| self.ends(minute)).fold([0; 5], |mut all, some| {
            for (all, some) in all.iter_mut().zip(some) {
                *all += some;
            }
            all
        })
    }

    fn lately(&self) -> QueueCounts {
        let from = self.minutes.len().saturating_sub(usize::try_from(LATELY).unwrap_or_default());
        self.minutes[from..].iter().fold(QueueCounts::default(), |mut all, some| {
            all.add(some);
            all
        })
    }

    /// The jobs completed in the last whole minute.
    fn a_minute(&self) -> i64 {
        self.minutes.len().checked_sub(2).map_or(0, |last| self.minutes[last].completed)
    }
}

fn notices(view: &View, fleet: &Fleet) -> Markup {
    let paused: Vec<_> = fleet.queues.iter().filter(|of| of.is_paused).collect();
    html! {
        div.stack #notices {
            @if fleet.workers == 0 {
                p.notice.bad { span { b { "No worker is alive." } " No job runs, and no job is reset." } }
            }
            @if fleet.is_held_back {
                p.notice { span {
                    b { "Recovery is paused." }
                    " After an outage, or when too many jobs look stale at once, live workers get time to write."
                } }
            }
            @if !view.tenure.queue().is_connected() {
                p.notice { span {
                    b { "NATS cannot be reached from here." }
                    " These pages come from Postgres; NATS delivers the waiting jobs when it is back."
                } }
            }
            @let unserved: Vec<_> = fleet.queues.iter().filter(|of| of.is_unserved() && fleet.workers > 0).collect();
            @if unserved.len() > QUEUES_SHOWN {
                p.notice.bad { span {
                    b { (unserved.len() - QUEUES_SHOWN) " more queues have no worker." }
                    " " a href={ (view.base) "/queues" } { "Queues" }
                } }
            }
            @for of in unserved.into_iter().take(QUEUES_SHOWN) {
                p.notice.bad { span {
                    b { "No worker serves " (of.queue) "." }
                    @if let Some(s) = of.last_seen_s { " Its last worker was seen " (seconds(s)) " ago." }
                    @if of.waiting() > 0 {
                        " " (waiting(of.jobs[0], of.submitted, Some(of.oldest_due_s))) ". Start a worker: "
                        code { "tenure work " (of.queue) " --exec COMMAND" }
                    }
                    @if of.jobs[2] > 0 { " " (number(of.jobs[2])) " of its jobs count as running." }
                } }
            }
            @let kinds: Vec<_> = fleet.unserved.iter().filter(|of| of.is_queue_served).collect();
            @for of in kinds.iter().take(KINDS_SHOWN) {
                p.notice.bad { span {
                    b { "No worker of " (of.queue) " runs the kind " (of.kind) "." }
                    " " (waiting(of.due, of.submitted, of.oldest_s)) ". Start one: "
                    code { "tenure work " (of.queue) " --kind " (of.kind) " --exec COMMAND" }
                } }
            }
            @if kinds.len() > KINDS_SHOWN {
                p.notice.bad { span {
                    b { (kinds.len() - KINDS_SHOWN) " more kinds have no worker." }
                    " " code { "tenure doctor" } " names them."
                } }
            }
            @for of in paused {
                p.notice { span {
                    b { (of.queue) " is paused" }
                    @if of.waiting() > 0 { "; " (waiting(of.jobs[0], of.submitted, Some(of.oldest_due_s))) }
                    ". " a href={ (view.base) "/queues" } { "Queues" }
                } }
            }
        }
    }
}

/// "3 jobs are due and 4 submissions wait, the oldest for 2m".
fn waiting(due: i64, submitted: Option<i64>, oldest_s: Option<f64>) -> String {
    let due = match due {
        0 => None,
        1 => Some("1 job is due".to_owned()),
        due => Some(format!("{} jobs are due", number(due))),
    };
    let submitted = match submitted.unwrap_or_default() {
        0 => None,
        1 => Some("1 submission waits".to_owned()),
        submitted => Some(format!("{} submissions wait", number(submitted))),
    };
    let both: Vec<_> = due.into_iter().chain(submitted).collect();
    let since = oldest_s.filter(|s| *s >= 1.0).map(|s| format!(", the oldest for {}", seconds(s)));
    both.join(" and ") + &since.unwrap_or_default()
}

fn tiles(fleet: &Fleet, hour: &Hour) -> Markup {
    let sum = |state: usize| fleet.queues.iter().map(|of| of.jobs[state]).sum::<i64>();
    let submitted: Vec<_> = fleet.queues.iter().filter_map(|of| of.submitted).collect();
    let is_counted = fleet.queues.is_empty() || !submitted.is_empty();
    let submitted = submitted.into_iter().sum::<i64>();
    let waits_longest = fleet.queues.iter().max_by(|a, b| a.oldest_due_s.total_cmp(&b.oldest_due_s));
    let lately = hour.lately();
    let [completed, .., failed] = hour.totals();
    let latency = |counts: &[i64]| {
        let share = |share| quantile(counts, share).map(|is| about(is.as_secs_f64()));
        html! {
            dd.big { (share(0.5).unwrap_or_else(|| "–".into())) }
            dd {
                @match share(0.95) {
                    Some(p95) => { "median of " (LATELY) " min; p95 about " (p95) }
                    None => { "none in the last " (LATELY) " minutes" }
                }
            }
        }
    };
    html! {
        dl.tiles #tiles {
            div {
                dt { "Waiting" }
                dd.big { (number(sum(0) + submitted)) }
                dd {
                    (number(sum(0))) " due, "
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
                dd { "on " (number(fleet.workers)) @if fleet.workers == 1 { " worker" } @else { " workers" } }
            }
            div {
                dt { "Completed" }
                dd.big { (number(hour.a_minute())) " " small { "per minute" } }
                dd { (number(completed)) " in the last hour" }
            }
            div { dt { "Queue latency" } (latency(&lately.waited)) }
            div { dt { "Run time" } (latency(&lately.ran)) }
            div {
                dt { "Dead letters" }
                dd.big { (number(fleet.dead)) }
                dd { (number(failed)) " failed for good in the last hour" }
            }
        }
    }
}

const WIDE: usize = 600;
const HIGH: f64 = 120.0;

/// The beginning of a chart, with these attributes as its label.
fn chart(label: &str) -> String {
    let size = format!(r#"viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none""#);
    let mut svg = format!(r#"<svg class="chart" {size} role="img" {label}>"#);
    for y in [0.0, HIGH / 2.0, HIGH] {
        let _ = write!(svg, r#"<line x1="0" x2="{WIDE}" y1="{y}" y2="{y}"/>"#);
    }
    svg
}

fn axis() -> Markup {
    html! {
        div.axis aria-hidden="true" {
            span { "60 min ago" } span { "45" } span { "30" } span { "15" } span { "now" }
        }
    }
}

/// Attempts by outcome, stacked, a bar per minute. It holds only our own numbers and words.
#[expect(clippy::cast_precision_loss, reason = "an hour's attempts are fewer than 2^52")]
fn finished(hour: &Hour) -> Markup {
    let minutes = hour.minutes.len();
    let most = (0..minutes).map(|minute| hour.ends(minute).iter().sum::<i64>()).max().unwrap_or_default();
    let scale = HIGH / (most.max(1) as f64 * 1.08);
    let mut svg = chart(r#"aria-labelledby="finished-title finished-text""#);
    for minute in 0..minutes {
        let (x, ends) = (minute * 10, hour.ends(minute));
        let words: Vec<_> = ENDS
            .iter()
            .zip(ends)
            .filter(|(_, n)| *n > 0)
            .map(|(end, n)| format!("{} {end}", number(n)))
            .collect();
        let words = if words.is_empty() { "nothing".into() } else { words.join(", ") };
        let when = match minutes - 1 - minute {
            0 => "this minute".to_owned(),
            ago => format!("{ago} min ago"),
        };
        let _ = write!(
            svg,
            r#"<g><title>{when}: {words}</title><rect class="hit" x="{x}" width="10" y="0" height="{HIGH}"/>"#
        );
        let mut y = HIGH;
        for (end, n) in ENDS.iter().zip(ends).filter(|(_, n)| *n > 0) {
            let high = (n as f64 * scale).max(1.5);
            y -= high;
            let _ = write!(
                svg,
                r#"<rect class="s-{end}" x="{}" width="8" y="{y:.1}" height="{high:.1}"/>"#,
                x + 1
            );
        }
        svg.push_str("</g>");
    }
    svg.push_str("</svg>");
    html! {
        section.panel #finished {
            header {
                h2 #finished-title { "Attempts finished per minute" }
                p #finished-text { "last hour (peak " (number(most)) ")" }
            }
            div.body {
                ul.legend {
                    @for (end, n) in ENDS.iter().zip(hour.totals()) {
                        li {
                            svg aria-hidden="true" { rect class={ "s-" (end) } width="100%" height="100%" {} }
                            (end) " " b { (number(n)) }
                        }
                    }
                }
                (page::drawn(svg))
                (axis())
            }
        }
    }
}

/// Queue latency: the time from due to claimed. It holds only our own numbers and words.
fn waits(hour: &Hour) -> Markup {
    let of = |share: f64| -> Vec<Option<f64>> {
        hour.minutes.iter().map(|of| quantile(&of.waited, share).map(|is| is.as_secs_f64())).collect()
    };
    let (median, p95) = (of(0.5), of(0.95));
    let top = p95.iter().flatten().copied().fold(0.001, f64::max);
    let points = |values: &[Option<f64>]| {
        let mut points = String::new();
        for (minute, value) in values.iter().enumerate() {
            if let Some(value) = value {
                let _ = write!(points, "{},{:.1} ", minute * 10 + 5, HIGH - value / top * HIGH);
            }
        }
        points
    };
    let last =
        |values: &[Option<f64>]| values.iter().rev().flatten().next().map_or("–".into(), |s| span(*s));
    let words = format!("last hour: median {}, p95 {}", last(&median), last(&p95));
    let mut svg = chart(&format!(r#"aria-label="Queue latency, {words}""#));
    let _ = write!(
        svg,
        r#"<polyline class="line-1" points="{}"/><polyline class="line-2" points="{}"/></svg>"#,
        points(&median),
        points(&p95)
    );
    html! {
        section.panel #waits {
            header { h2 { "Queue latency" } p { "last hour (peak p95 " (span(top)) ")" } }
            div.body {
                ul.legend {
                    li {
                        svg.stroke viewBox="0 0 20 10" aria-hidden="true" { path.line-1 d="M0 5h20" {} }
                        "median " b { (last(&median)) }
                    }
                    li {
                        svg.stroke viewBox="0 0 20 10" aria-hidden="true" { path.line-2 d="M0 5h20" {} }
                        "p95 " b { (last(&p95)) }
                    }
                }
                (page::drawn(svg))
                (axis())
            }
        }
    }
}

fn queues(view: &View, fleet: &Fleet) -> Markup {
    let mut queues: Vec<_> = fleet.queues.iter().collect();
    queues.sort_by(|a, b| a.queue.cmp(&b.queue));
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
                        th.num scope="col" { "Running" }
                    } }
                    tbody {
                        @for of in queues {
                            tr id={ "queue-" (of.queue) } {
                                th scope="row" { a.row href={ (view.base) "/jobs?queue=" (of.queue) } { (of.queue) } }
                                td data-label="State" {
                                    @if of.is_paused { (page::status("paused", "paused")) }
                                    @else if of.is_unserved() { (page::status("silent", "no worker")) }
                                    @else { (page::status("open", "active")) }
                                }
                                td.num data-label="Due" { (number(of.jobs[0])) }
                                td.num data-label="Submitted" {
                                    @if let Some(submitted) = of.submitted { (number(submitted)) } @else { "?" }
                                }
                                td.num.tight data-label="Oldest due" {
                                    @if of.oldest_due_s > 0.0 { (whole(of.oldest_due_s)) } @else { "–" }
                                }
                                td.num data-label="Scheduled" { (number(of.jobs[1])) }
                                td.num data-label="Running" { (number(of.jobs[2])) }
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn recoveries(view: &View, events: &[EventCount]) -> Markup {
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
                        " refused in 24 h," br; "by the fencing token"
                    }
                }
                @if paths.is_empty() {
                    p.soft { "No job was reset in 24 h." }
                } @else {
                    ul.bars aria-label="Jobs reset, released and republished, by path, 24 h" {
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
                            (time(of.at))
                        }
                    }
                }
            }
        }
    }
}
