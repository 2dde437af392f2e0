//! Job: one job with its progress, its attempts and owners, and its history.

use std::fmt::Write;

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    clock::now,
    jobs::word,
    page::{self, Page, Regions, date, dated, owner, seconds_between, telling, time},
    params::Params,
    recovery,
};
use crate::{
    lanes::{self, Held},
    timeline::{self, Entry},
};
use tenure::{
    JobId, Status,
    codec::SealedWith,
    internals::{
        EventFilter, JobTexts, Parts as _, WhoRuns,
        duration::{rounded, whole},
    },
    rows::{DeadLetter, ExecutionRow, JobRow, LogRow},
};

/// The most characters to show of a payload, an output or a checkpoint.
const TEXT_MAX: i32 = 100_000;
/// The most attempts and events to show, the latest ones. A job that polls has thousands.
const LATEST: i64 = 100;

/// There is no such job, or it is in a queue that the user may not look at: both look the same.
fn gone() -> Failure {
    Failure::NotFound(
        "This job does not exist. It never did, or retention removed it after it finished, or it completed and its \
         kind keeps no history."
            .into(),
    )
}

pub(super) async fn page(view: &View, ask: &Ask, id: &str) -> Result<Page, Failure> {
    let id: JobId = id.parse().map_err(|_| gone())?;
    let store = view.tenure.store();
    let filter = EventFilter { job: Some(id), ..EventFilter::default() };
    // A role of before the logs shows the rest of the page.
    let logs = async {
        match view.tenure.job_logs(id).await {
            Err(error) if error.is_denied() => Ok(Vec::new()),
            logs => logs,
        }
    };
    let (job, texts, executions, recoveries, steps, events, edges, logs) = tokio::try_join!(
        store.show_job(id),
        store.job_texts(id, TEXT_MAX),
        store.executions(id, LATEST),
        store.recoveries(id, LATEST),
        store.list_steps(id, LATEST),
        store.recovery_events(&filter, LATEST),
        store.graph(id, 0, 1),
        logs,
    )?;
    // The job may have moved between two statements.
    let (Some(job), Some(texts)) = (job, texts) else {
        return match store.dead_letter(id).await? {
            Some(letter) if view.looks.has(&letter.queue) => Ok(refused(view, ask, &letter)),
            _ => Err(gone()),
        };
    };
    if !view.looks.has(&job.queue) {
        return Err(gone());
    }
    let letter = match job.status {
        Status::Failed => store.dead_letter(id).await?,
        _ => None,
    };
    if let Some(letter) = letter.as_ref().filter(|letter| letter.refused) {
        return Ok(refused(view, ask, letter));
    }
    let who_runs = match job.status {
        Status::Queued if !job.is_held => Some(store.who_runs(&job.queue, &job.kind, job.id).await?),
        _ => None,
    };
    let held = Held::read(&view.tenure, &job, now(), whole).await?;
    let entries = timeline::merged(&job, &executions, &recoveries, &steps, rounded);
    let mut live = Regions::default();
    let body = html! {
        (live.put("job-head", head(view, ask, &job, &texts, !edges.0.is_empty())))
        (live.put("job-progress", progress(view, &job, &texts, letter.as_ref(), who_runs, held.as_ref())))
        (live.put("job-events", events_of(view, ask, &job, held.as_ref())))
        (live.put("job-attempts", attempts(view, &job, &executions)))
        div.columns {
            (live.put("job-timeline", history(view, &entries)))
            (live.put("job-facts", facts(view, &job, &texts)))
        }
        (live.put("job-texts", folds(view, &job, &texts)))
        (live.put("job-logs", logs_of(view, &logs)))
        // The payload never changes, and may be large.
        @if view.shows_payloads && texts.payload.is_some() {
            section.panel #job-payload { (fold("payload", "Payload", texts.payload.as_deref())) }
        }
        (live.put("job-recovery", html! {
            section.panel #job-recovery hidden[events.is_empty()] {
                header { h2 { "Recovery" } p { "resets, releases and refused writes of this job" } }
                (recovery::table(view, &events, false))
            }
        }))
    };
    let of = if job.status == Status::Failed { "dead" } else { "jobs" };
    let is_final = matches!(job.status, Status::Completed | Status::Cancelled);
    Ok(live.page(job.kind.clone(), of, body).finally(is_final))
}

fn head(view: &View, ask: &Ask, job: &JobRow, texts: &JobTexts, in_group: bool) -> Markup {
    let (list, all) =
        if job.status == Status::Failed { ("/dead", "Dead letters") } else { ("/jobs", "Jobs") };
    let is_live = !job.status.is_finished();
    let waits = job.status == Status::Queued && job.scheduled_at > now();
    let form = |verb: &str, word: &str, class: &str, question: Option<&str>| {
        html! {
            form method="post" action={ (view.base) "/jobs/" (job.id) "/" (verb) } data-confirm=[question] {
                (page::own(ask))
                button class=(class) { (word) }
            }
        }
    };
    html! {
        header.head #job-head {
            div {
                p.crumbs {
                    a href={ (view.base) (list) } { (all) } " / "
                    a href={ (view.base) (list) "?queue=" (job.queue) } { (job.queue) }
                }
                div.title {
                    h1 { (job.kind) }
                    span.status.pill data-is=(word(job)) { (word(job)) }
                    @if texts.cancel_requested_at.is_some() {
                        span.status.pill data-is="cancelled" { "asked to stop" }
                    }
                }
                p.id { (job.id) }
                @if in_group { p.small { a href={ (view.base) "/jobs/" (job.id) "/graph" } { "Group of this job" } } }
            }
            @if view.has_actions {
                div.actions {
                    a.button href={ (view.base) "/enqueue?from=" (job.id) } { "Clone" }
                    @if waits { (form("retry", "Run now", "", None)) }
                    @if matches!(job.status, Status::Completed | Status::Cancelled) {
                        @let question = "Run this job again? Another job with the same payload is enqueued.";
                        (form("again", "Run again", "", Some(question)))
                    }
                    @if job.status == Status::Failed {
                        @let question = "Redrive this job? It is queued again, with new attempts.";
                        (form("retry", "Redrive", "primary", Some(question)))
                    }
                    @if is_live {
                        @let question = "Cancel this job? If it runs, its handler is asked to stop.";
                        (form("cancel", "Cancel", "danger", Some(question)))
                    }
                }
            }
        }
    }
}

fn progress(
    view: &View,
    job: &JobRow,
    texts: &JobTexts,
    letter: Option<&DeadLetter>,
    who_runs: Option<WhoRuns>,
    held: Option<&Held>,
) -> Markup {
    let silence = texts.silence_s.map(|s| s.max(0.0));
    html! {
        @match (job.status, letter) {
            (Status::Failed, Some(letter)) => {
                p.notice.bad #job-progress {
                    (died_of(letter))
                }
            }
            (Status::Processing, _) => {
                section.panel #job-progress {
                    div.body.progress {
                        div.figures {
                            @if let Some(percent) = job.progress { b { (format!("{percent:.0} %")) } }
                            span {
                                @if let Some(stage) = &job.stage { b.small { (stage) } " " }
                                @if let Some(message) = &job.message { span.soft { (message) } }
                                @if job.progress.is_none() && job.stage.is_none() && job.message.is_none() {
                                    span.soft { "Running; no progress reported yet." }
                                }
                            }
                        }
                        @if let Some(percent) = job.progress {
                            progress.big max="100" value=(format!("{percent:.1}")) aria-label="Progress" {}
                        }
                        @if let (Some(silence), Some(stale_after)) = (silence, texts.stale_after_s) {
                            p.small.soft {
                                "Last heartbeat " (whole(silence)) " ago. Stale after "
                                (rounded(stale_after)) " of silence"
                                @if silence >= 2.0 && silence < stale_after {
                                    ", in " (whole(stale_after - silence))
                                }
                                "."
                            }
                        }
                    }
                }
            }
            _ => {
                section.panel #job-progress hidden[job.status != Status::Queued] {
                    div.body {
                        @if job.is_held {
                            p {
                                b { "held: " }
                                @match held {
                                    // A lane's key must not change the direction of the words around it.
                                    Some(held) => bdi { (held.says) },
                                    None => "its lane is releasing it",
                                }
                                ". "
                                @if job.lane.is_some() {
                                    a href={ (view.base) "/queues/" (job.queue) "/lanes" } { "Lanes of the queue" }
                                }
                            }
                            @if job.attempt > 0 && let Some(error) = &job.last_error {
                                p.soft { "Last error: " bdi { (telling(error)) } }
                            }
                        } @else if job.scheduled_at > now() && job.attempt > 0 {
                            p {
                                "Waits for attempt " (job.attempt + 1) " of " (job.max_attempts) ", due "
                                (dated(job.scheduled_at)) "."
                            }
                            @if let Some(error) = &job.last_error {
                                p.soft { "Last error: " bdi { (telling(error)) } }
                            }
                        } @else if job.scheduled_at > now() {
                            p { "Due " (dated(job.scheduled_at)) "." }
                        } @else {
                            p {
                                "Due for " (page::since(job.scheduled_at))
                                @if let Some(of) = who_runs { "; " (timeline::waits_for(job, &of, rounded)) }
                                "."
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The forms that tell the job of the events for which it waits. They change only with these: users type here.
fn events_of(view: &View, ask: &Ask, job: &JobRow, held: Option<&Held>) -> Markup {
    let events: Vec<_> = held.into_iter().flat_map(Held::events).collect();
    html! {
        section.panel #job-events hidden[events.is_empty() || !view.has_actions] {
            header { h2 { "Events" } p { "the job goes on once it has one of these" } }
            @if view.has_actions {
                @for event in &events {
                    // A page that changes while one types must not take one event's field for another's.
                    @let id = event.bytes().fold("event-".to_owned(), |id, byte| format!("{id}{byte:02x}"));
                    form.form id={ "form-" (id) } method="post" action={ (view.base) "/jobs/" (job.id) "/signal" } {
                        (page::own(ask))
                        input type="hidden" name="event" value=(event);
                        label for=(id) { bdi { (event) } }
                        div {
                            input type="text" id=(id) name="payload" placeholder="null" autocomplete="off"
                                spellcheck="false";
                            p.soft { "what it is told, as JSON; a string needs its own quotes" }
                        }
                        div.actions { button.primary { "Signal" } }
                    }
                }
            }
        }
    }
}

fn died_of(letter: &DeadLetter) -> Markup {
    html! {
        span {
            b { (category(&letter.category)) } " (" (letter.category) "), " (time(letter.died_at)) ": "
            bdi { (letter.last_error) }
        }
    }
}

/// The category of a dead letter, in words.
fn category(of: &str) -> &'static str {
    match of {
        "exhausted" => "Attempts used up",
        "permanent" => "Failed permanently",
        "lost" => "Lost its worker on every attempt",
        "silent" => "Its handler was silent for too long",
        "interrupted" => "Interrupted, and must not run twice",
        "invalid_payload" => "The handler cannot read the payload",
        "invalid_output" => "The output cannot be stored",
        "unknown_kind" => "No worker knew the kind for too long",
        "expired" => "Not started by its time",
        "malformed" => "The message is not a job",
        "too_large" => "Too large",
        _ => "Failed",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a job's life is shorter than 2^52 ms")]
fn lane(job: &JobRow, of: &ExecutionRow, end: DateTime<Utc>) -> Markup {
    let whole = (end - job.created_at).num_milliseconds().max(1) as f64;
    let at = |moment: DateTime<Utc>| {
        ((moment - job.created_at).num_milliseconds() as f64 / whole * 100.0).clamp(0.0, 100.0)
    };
    let (from, to) = (at(of.started_at), at(of.finished_at.unwrap_or(end)));
    let class = match of.outcome.as_deref() {
        None => "processing",
        Some("completed") => "completed",
        Some("cancelled") => "cancelled",
        Some("lost") => "lost",
        Some("failed") => "failed",
        Some(_) => "retried",
    };
    let mut svg = String::from(
        r#"<svg class="lane" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">"#,
    );
    let _ = write!(
        svg,
        r#"<rect class="s-{class}" x="{from:.2}" width="{:.2}" height="14"/></svg>"#,
        (to - from).max(0.6)
    );
    page::drawn(svg)
}

fn attempts(view: &View, job: &JobRow, executions: &[ExecutionRow]) -> Markup {
    let now = now();
    let end = job.finished_at.unwrap_or(now);
    html! {
        section.panel #job-attempts {
            header {
                h2 { "Attempts and owners" }
                p {
                    (job.attempt) " of " (job.max_attempts) " used"
                    @if executions.len() >= usize::try_from(LATEST).unwrap_or(usize::MAX) {
                        "; the latest " (LATEST) " of all"
                    }
                }
            }
            @if executions.is_empty() {
                div.body { p.soft { "No worker has claimed it yet." } }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Attempt" }
                        th.num scope="col" { "Token" }
                        th scope="col" { "Outcome" }
                        th scope="col" { "Worker" }
                        th scope="col" { "Creation to " @if job.status.is_finished() { "its end" } @else { "now" } }
                        th.num scope="col" { "Took, s" }
                        th.num scope="col" { "Started" }
                    } }
                    tbody {
                        @for of in executions.iter().rev() {
                            tr {
                                th.tight scope="row" { (of.attempt) }
                                td.num data-label="Token" { (of.fencing_token) }
                                td data-label="Outcome" {
                                    @let word = of.outcome.as_deref().unwrap_or("processing");
                                    (page::status(word, word))
                                }
                                td.tight data-label="Worker" { (owner(view, &of.worker_id)) }
                                td.lane-cell.full { (lane(job, of, end)) }
                                td.num.tight data-label="Took, s"
                                    { (seconds_between(of.started_at, of.finished_at.unwrap_or(now))) }
                                td.num.tight data-label="Started" { (dated(of.started_at)) }
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn history(view: &View, entries: &[Entry]) -> Markup {
    let is = |entry: &Entry| match entry.event.as_str() {
        "enqueued" => "created",
        "dead" => "failed",
        "redriven" => "retried",
        "ended" => ["completed", "retried", "snoozed", "failed", "cancelled", "lost", "released"]
            .into_iter()
            .find(|word| entry.text.starts_with(word))
            .unwrap_or("queued"),
        "scheduled" => "scheduled",
        "claimed" => "claimed",
        "sleep" => "snoozed",
        "reset" => "reset",
        "release" => "release",
        "refused_write" => "refused_write",
        "republished" => "republished",
        "completed" | "step" | "effect" => "completed",
        "cancelled" => "cancelled",
        _ => "queued",
    };
    html! {
        section.panel #job-timeline {
            header { h2 { "Timeline" } p { "latest first" } }
            div.body {
                ol.timeline {
                    @for entry in entries.iter().rev() {
                        li data-is=(is(entry)) {
                            div {
                                b { (entry.event.replace('_', " ")) }
                                p {
                                    // A user's text must not change the direction of the words around it.
                                    bdi { (entry.text) }
                                    @if let (Some(worker), "claimed") = (&entry.worker, entry.event.as_str()) {
                                        ", by " (owner(view, worker))
                                    }
                                    @if let Some(token) = entry.token { ", token " (token) }
                                }
                            }
                            div.when { (time(entry.at)) span.date { (date(entry.at)) } }
                        }
                    }
                }
            }
        }
    }
}

fn facts(view: &View, job: &JobRow, texts: &JobTexts) -> Markup {
    // A list for users of some queues is one of a queue.
    let queue = (!view.looks.is_all()).then_some(job.queue.as_str());
    let list_of = |name: &str, value: &str| {
        let of_queue = Params::read(Params::default().with("queue", queue).as_bytes());
        of_queue.with(name, Some(value))
    };
    html! {
        section.panel #job-facts {
            header { h2 { "Facts" } }
            div.body {
                dl.facts {
                    dt { "Queue" } dd { (page::queue_link(view, &job.queue)) }
                    dt { "Kind" } dd { a href={ (view.base) "/jobs?" (list_of("kind", &job.kind)) } { (job.kind) } }
                    dt { "Status" } dd { (word(job)) }
                    dt { "Attempt" } dd { (job.attempt) " of " (job.max_attempts) }
                    @if let Some(lane) = &job.lane {
                        dt { "Lane" } dd { bdi { (lanes::key(lane)) } }
                    }
                    @if let Some(priority) = job.priority.filter(|n| *n != 0) {
                        dt { "Priority" } dd { (priority) }
                    }
                    @if !job.tags.is_empty() {
                        dt { "Tags" }
                        dd.tags {
                            @for tag in &job.tags {
                                a href={ (view.base) "/jobs?" (list_of("tag", tag)) } {
                                    bdi { (tag) }
                                }
                                " "
                            }
                        }
                    }
                    @if let Some(at) = job.not_after { dt { "Not after" } dd { (dated(at)) } }
                    dt { "Fencing token" } dd { (job.fencing_token) }
                    @if let Some(worker) = &job.worker_id {
                        dt { @if job.status.is_finished() { "Last owner" } @else { "Owner" } }
                        dd { (owner(view, worker)) }
                    }
                    dt { "Created" } dd { (dated(job.created_at)) }
                    // What waits for other jobs or for an event is due at no time.
                    @if !job.is_held || job.lane.is_some() { dt { "Due" } dd { (dated(job.scheduled_at)) } }
                    @if let Some(at) = job.started_at { dt { "Started" } dd { (dated(at)) } }
                    @if let Some(at) = job.last_activity_at { dt { "Last heartbeat" } dd { (dated(at)) } }
                    @if let Some(at) = texts.cancel_requested_at { dt { "Asked to stop" } dd { (dated(at)) } }
                    @if let Some(at) = job.finished_at { dt { "Finished" } dd { (dated(at)) } }
                    @if let Some(address) = &view.log_url {
                        dt { "Log" }
                        dd {
                            a href=(address.replace("{job_id}", &job.id.to_string())) rel="noreferrer" {
                                "Show the whole log"
                            }
                        }
                    }
                    @if let Some(trace) = &texts.trace_context {
                        dt { "Trace" }
                        dd {
                            span.mono { (trace) }
                            @if let Some(address) = trace_address(view, trace) {
                                " " a href=(address) rel="noreferrer" { "Show the trace" }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The address of a trace at `TENURE_SERVE_TRACE_URL`, from a W3C `traceparent`.
fn trace_address(view: &View, traceparent: &str) -> Option<String> {
    let id = traceparent.split('-').nth(1)?;
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(view.trace_url.as_ref().filter(|_| is_id)?.replace("{trace_id}", id))
}

fn fold(id: &str, name: &str, text: Option<&str>) -> Markup {
    let count = |text: &str| {
        let characters = text.chars().count();
        let is_cut = usize::try_from(TEXT_MAX).is_ok_and(|most| characters >= most);
        if is_cut { format!("the first {characters} characters") } else { format!("{characters} characters") }
    };
    html! {
        @if let Some(text) = text {
            details.fold id=(id) {
                summary {
                    (name) " "
                    span.count { @if let Some(sealed) = SealedWith::of(text) { (sealed) ", " } (count(text)) }
                }
                pre tabindex="0" { (text) }
            }
        }
    }
}

/// What the last attempts have printed. It may quote a payload.
fn logs_of(view: &View, logs: &[LogRow]) -> Markup {
    let shown = if view.shows_payloads { logs } else { &[] };
    html! {
        section.panel #job-logs hidden[shown.is_empty()] {
            header { h2 { "Log" } p { "what the last attempts have printed, the latest first" } }
            @for log in shown {
                @let end = if log.is_cut { ", its end" } else { "" };
                @let name = format!("Attempt with token {}{end}", log.fencing_token);
                (fold(&format!("log-{}", log.fencing_token), &name, Some(&log.text)))
            }
        }
    }
}

fn folds(view: &View, job: &JobRow, texts: &JobTexts) -> Markup {
    let texts_here = view.shows_payloads && (texts.output.is_some() || texts.checkpoint.is_some());
    let is_empty = view.shows_payloads && !texts_here && job.last_error.is_none();
    html! {
        section.panel #job-texts hidden[is_empty] {
            @if let Some(error) = &job.last_error {
                details.fold #last-error open {
                    summary { "Last error" }
                    pre.error tabindex="0" { (error) }
                }
            }
            @if view.shows_payloads {
                (fold("output", "Output", texts.output.as_deref()))
                (fold("checkpoint", "Checkpoint", texts.checkpoint.as_deref()))
            } @else {
                div.body { p.soft { "Payloads, outputs and checkpoints are not shown here." } }
            }
        }
    }
}

/// The page of a refused message.
fn refused(view: &View, ask: &Ask, letter: &DeadLetter) -> Page {
    let bytes = letter.raw_payload.as_deref().unwrap_or_default();
    let most = usize::try_from(TEXT_MAX).unwrap_or(usize::MAX);
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).replace('\0', "\u{fffd}");
    let body = html! {
        header.head {
            div {
                p.crumbs { a href={ (view.base) "/dead" } { "Dead letters" } " / " (letter.queue) }
                div.title { h1 { (letter.kind) } span.status.pill data-is="failed" { "refused" } }
                p.id { (letter.id) }
            }
            @if view.has_actions {
                div.actions {
                    form method="post" action={ (view.base) "/dead/purge" }
                        data-confirm="Purge this message? Its bytes are deleted." {
                        (page::own(&Ask { path: vec!["dead".into()], ..ask.clone() }))
                        input type="hidden" name="id" value=(letter.id);
                        button.danger { "Purge" }
                    }
                }
            }
        }
        p.notice.bad {
            (died_of(letter))
        }
        section.panel {
            header { h2 { "The message" } p { (letter.subject.as_deref().unwrap_or("?")) } }
            @if view.shows_payloads {
                pre tabindex="0" { (text) }
            } @else {
                div.body { p.soft { (bytes.len()) " bytes, not shown here." } }
            }
        }
        p.soft { "A redriven message would be refused again. Correct it, and publish it again." }
    };
    Regions::default().page(letter.kind.clone(), "dead", body)
}
