//! Jobs: a list with filters.

use std::{collections::HashMap, time::Duration};

use maud::{Markup, html};

use serde_json::{Value, json};

use super::{
    Ask, Failure, View,
    clock::now,
    look,
    page::{self, Page, Regions, job_link, number, owner, seconds_between, stamped},
    params::Params,
    selections::JOBS_MAX,
};
use crate::lanes;
use tenure::{
    JobId, Status, StoreError,
    internals::{Fleet, JobAction, ListedJob, Parts as _, WaitingJobs},
    rows::{JobFilter, JobRow},
};

const ON_A_PAGE: i64 = 50;
/// The most waiting jobs to count.
const COUNTED: i64 = 2_000;
/// The words to filter by: the statuses, and three parts of `queued`.
const STATUSES: [&str; 8] =
    ["queued", "scheduled", "retrying", "held", "processing", "completed", "failed", "cancelled"];
/// What narrows the list, besides its status.
const FILTERS: [&str; 6] = ["queue", "kind", "tag", "worker", "since", "q"];
const AGES: [(&str, &str, Duration); 4] = [
    ("1h", "last hour", Duration::from_hours(1)),
    ("1d", "last day", Duration::from_hours(24)),
    ("7d", "last 7 days", Duration::from_hours(24 * 7)),
    ("30d", "last 30 days", Duration::from_hours(24 * 30)),
];

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let (filter, status) = filter(view, &ask.query)?;
    let store = view.tenure.store();
    // An ID selects its job and overrides every filter.
    let id = ask.query.get("q").and_then(|text| text.trim().parse::<JobId>().ok());
    let listed = async {
        match id {
            Some(id) => {
                let job = store.show_job(id).await?.filter(|job| view.looks.has(&job.queue));
                Ok(job.map(found).into_iter().collect::<Vec<_>>())
            }
            None => store.listed_jobs(&filter, ON_A_PAGE + 1).await,
        }
    };
    let counted =
        async { if is_whole(ask) { store.count_waiting(COUNTED).await } else { Ok(WaitingJobs::default()) } };
    let (jobs, fleet, waiting) = tokio::try_join!(listed, store.fleet(), counted)?;
    let has_more = jobs.len() > usize::try_from(ON_A_PAGE).unwrap_or(usize::MAX);
    let jobs = &jobs[..jobs.len().min(usize::try_from(ON_A_PAGE).unwrap_or(usize::MAX))];
    let waits = waits(view, jobs).await?;
    let submitted: i64 = fleet.queues.iter().filter_map(|of| of.submitted).sum();
    let address = |name: &str, value: Option<&str>| address(view, ask, name, value);
    let tabs = tabs(view, ask, status.as_deref(), &fleet, waiting);
    let mut live = Regions::default();
    let worker = ask.query.get("worker");
    let body = html! {
        header.head {
            div {
                h1 { "Jobs" }
                @if let Some(worker) = &worker {
                    p {
                        "Jobs that " (owner(view, worker)) " runs or ran last. "
                        a href=(address("worker", None)) { "Show every worker" }
                    }
                }
            }
            @if view.has_actions {
                div.actions { a.button href={ (view.base) "/enqueue" } { "Enqueue a job" } }
            }
        }
        (live.put("tabs", page::tabs("Status", &tabs)))
        (filters(view, ask))
        (live.put("list", list(view, ask, (jobs, &waits), has_more, submitted)))
    };
    Ok(live.page("Jobs", "jobs", body))
}

/// For what held jobs wait besides their lanes, as for an event: some text a job.
type Waits = HashMap<JobId, String>;

async fn waits(view: &View, jobs: &[ListedJob]) -> Result<Waits, StoreError> {
    let held: Vec<_> = jobs.iter().filter(|of| of.job.is_held).map(|of| of.job.id).collect();
    let mut waits = Waits::new();
    if !held.is_empty() {
        for (job, for_what) in view.tenure.waits_for(&held).await? {
            let text = waits.entry(job).or_default();
            *text = if text.is_empty() { for_what.to_string() } else { format!("{text}; {for_what}") };
        }
    }
    Ok(waits)
}

/// The job of a search by ID.
fn found(job: JobRow) -> ListedJob {
    // Only a refused message has no payload.
    let is_refused = job.payload.is_none();
    ListedJob { job, is_refused }
}

/// Whether the list is of all jobs, but perhaps of one status only.
fn is_whole(ask: &Ask) -> bool {
    FILTERS.iter().all(|name| ask.query.get(name).is_none())
}

/// What an action can be for, besides ticked jobs.
const ACTIONS: [(&str, JobAction); 2] = [("cancel", JobAction::Cancel), ("retry", JobAction::Retry)];

/// Whether an action may be for all jobs that match: a filter or a status says which, and no ID is searched for. No
/// action can touch a job that has completed or was cancelled.
fn may_act_on_all(query: &Params) -> bool {
    let is_set = |name: &&str| query.get(name).is_some_and(|is| !is.trim().is_empty());
    let by_id = query.get("q").is_some_and(|text| text.trim().parse::<JobId>().is_ok());
    let status = query.get("status");
    let has_ended = status.as_deref().is_some_and(|status| ["completed", "cancelled"].contains(&status));
    !by_id && !has_ended && (status.is_some() || FILTERS.iter().any(is_set))
}

/// The jobs that match and that the action can touch, on all pages of the list.
pub(super) async fn matching(view: &View, form: &Params, action: JobAction) -> Result<Vec<JobId>, Failure> {
    if !may_act_on_all(form) {
        return Err(Failure::Bad(
            "Narrow the list first: by status, queue, kind, tag, worker, age or text.".into(),
        ));
    }
    let filters = Params::read(form.with("before", None).as_bytes());
    let (filter, _) = filter(view, &filters)?;
    // Twice as many as a selection may have: those that match since then come first.
    Ok(view.tenure.store().match_jobs(&filter, action, 2 * JOBS_MAX).await?)
}

/// Selects all jobs that match, for the question before an action: their number, by the name of the action, and the
/// token of the selection; or why there is no question.
pub(super) async fn count(view: &View, ask: &Ask) -> Result<Value, Failure> {
    let named = ask.query.get("action");
    let action = ACTIONS.iter().find(|(name, _)| view.has_actions && Some(*name) == named.as_deref());
    let (name, action) = action.ok_or_else(|| Failure::NotFound("This action does not exist.".into()))?;
    let jobs = matching(view, &ask.query, *action).await?;
    Ok(match jobs.len() {
        0 => {
            let done = if *action == JobAction::Retry { "retried" } else { "cancelled" };
            json!({ "why": format!("No job that matches can be {done}.") })
        }
        n if n > usize::try_from(JOBS_MAX).unwrap_or(usize::MAX) => {
            json!({ "why": format!("More than {} jobs match; narrow the list.", number(JOBS_MAX)) })
        }
        n => {
            let selection = view.figures.selections.keep(*action, jobs);
            let mut counted = json!({ "selection": selection });
            counted[name] = n.into();
            counted
        }
    })
}

/// The address of this list with a parameter changed, from its beginning.
fn address(view: &View, ask: &Ask, name: &str, value: Option<&str>) -> String {
    let mut query = ask.query.clone();
    if name != "before" {
        query = super::Params::read(query.with("before", None).as_bytes());
    }
    format!("{}/jobs?{}", view.base, query.with(name, value))
}

/// A tab for each status. Workers count all jobs together, so the tabs have counts only without filters.
fn tabs(
    view: &View,
    ask: &Ask,
    status: Option<&str>,
    fleet: &Fleet,
    waiting: WaitingJobs,
) -> Vec<(String, String, Option<i64>, bool)> {
    let sum = |state: usize| fleet.queues.iter().map(|of| of.jobs[state]).sum::<i64>();
    let held = fleet.queues.iter().map(|of| of.held).sum::<i64>();
    let is_whole = is_whole(ask);
    let mut tabs = vec![(address(view, ask, "status", None), "All".to_owned(), None, status.is_none())];
    for name in STATUSES {
        let count = match name {
            _ if !is_whole => None,
            "queued" => Some(sum(0) + sum(1) + held),
            "scheduled" => waiting.scheduled,
            "retrying" => waiting.retrying,
            "held" => waiting.held,
            "processing" => Some(sum(2)),
            "failed" => Some(fleet.dead),
            _ => None,
        };
        let label = name[..1].to_uppercase() + &name[1..];
        tabs.push((address(view, ask, "status", Some(name)), label, count, status == Some(name)));
    }
    tabs
}

fn list(
    view: &View,
    ask: &Ask,
    (jobs, waits): (&[ListedJob], &Waits),
    has_more: bool,
    submitted: i64,
) -> Markup {
    let address = |value: Option<&str>| address(view, ask, "before", value);
    let older = jobs.last().filter(|_| has_more).map(|last| address(Some(&last.job.id.to_string())));
    let newest = ask.query.has("before").then(|| address(None));
    let said = match jobs.len() {
        1 => "1 job".to_owned(),
        n => format!("{n} jobs"),
    };
    let table = html! {
        div.scroll { table.cards {
            thead { tr {
                @if view.has_actions {
                    th.tick { input.needs-js type="checkbox" data-all aria-label="Select all on this page"; }
                }
                th scope="col" { "Job" }
                th scope="col" { "Queue" }
                th scope="col" { "Status" }
                th scope="col" { "Progress or error" }
                th.num scope="col" { "Attempt" }
                th.hide-narrow scope="col" { "Worker" }
                th.num scope="col" { "Ran, s" }
                th.num scope="col" { "Created, UTC" }
            } }
            tbody { @for job in jobs { (row(view, job, waits.get(&job.job.id).map(String::as_str))) } }
        } }
        (page::pager(&said, newest, older))
    };
    html! {
        div #list {
            @if jobs.is_empty() {
                (empty(view, ask, submitted))
            } @else if view.has_actions {
                form.panel method="post" data-bulk {
                    (page::own(ask))
                    div.bulk {
                        @if may_act_on_all(&ask.query) {
                            input type="hidden" name="selection" value="";
                            @for name in FILTERS.iter().chain(&["status"]) {
                                @if let Some(value) = ask.query.get(name) {
                                    input type="hidden" name=(name) value=(value);
                                }
                            }
                            // Only a script can ask how many that are.
                            label.check.needs-js {
                                input type="checkbox" name="all" value="1" data-matching;
                                " all that match"
                            }
                        } @else {
                            span.soft { "Tick jobs to act on them." }
                        }
                        span.actions {
                            button formaction={ (view.base) "/jobs/retry" } data-count="Retry now" data-can="retry"
                                data-more={ (view.base) "/jobs/count" }
                                data-confirm="Retry {n} jobs now? Those that wait become due, dead ones are queued." {
                                "Retry now"
                            }
                            button.danger formaction={ (view.base) "/jobs/cancel" } data-count="Cancel"
                                data-can="cancel" data-more={ (view.base) "/jobs/count" }
                                data-confirm="Cancel {n} jobs? Running jobs are asked to stop." {
                                "Cancel"
                            }
                        }
                    }
                    (table)
                }
            } @else {
                section.panel { (table) }
            }
        }
    }
}

/// The list without a job. `submitted`: how many submissions stand in the stream.
fn empty(view: &View, ask: &Ask, submitted: i64) -> Markup {
    let is_first = is_whole(ask) && ask.query.get("status").is_none() && !ask.query.has("before");
    html! {
        section.panel { div.empty {
            @if is_first {
                strong { "No jobs yet" }
                @if submitted > 0 {
                    p {
                        (number(submitted))
                        @if submitted == 1 { " submission stands" } @else { " submissions stand" }
                        " in the stream: a worker that receives one makes it a job. "
                        a href={ (view.base) "/queues" } { "Queues" }
                    }
                }
                p { "Enqueue the first one: " code { "tenure enqueue QUEUE KIND '{\"any\": \"JSON\"}'" } }
                @if view.has_actions { a.button href={ (view.base) "/enqueue" } { "Enqueue a job" } }
            } @else {
                strong { "No jobs match" }
                p { "Retention removes finished jobs after a while." }
                a.button href={ (view.base) "/jobs" } { "Show all jobs" }
            }
        } }
    }
}

fn filter(view: &View, query: &Params) -> Result<(JobFilter, Option<String>), Failure> {
    let mut filter = JobFilter::new();
    let status = query.get("status");
    match status.as_deref() {
        None => {}
        Some("scheduled") => filter = filter.scheduled(),
        Some("retrying") => filter = filter.retrying(),
        Some("held") => filter = filter.held(),
        Some(word) => {
            let unknown = |_| {
                let (last, others) = STATUSES.split_last().unwrap_or((&"", &[]));
                Failure::Bad(format!("Unknown status {word:?}; use {} or {last}.", others.join(", ")))
            };
            filter = filter.status(word.parse().map_err(unknown)?);
        }
    }
    if let Some(queue) = query.get("queue") {
        filter = filter.queue(queue.trim());
    }
    if let Some(kind) = query.get("kind") {
        filter = filter.kind(kind.trim());
    }
    filter = tags(query.get("tag")).into_iter().fold(filter, JobFilter::tag);
    if let Some(worker) = query.get("worker") {
        filter = filter.worker(worker);
    }
    if let Some(since) = query.get("since") {
        let age = AGES.iter().find(|(word, ..)| *word == since);
        let (.., age) =
            age.ok_or_else(|| Failure::Bad(format!("Unknown age {since:?}; use 1h, 1d, 7d or 30d.")))?;
        filter = filter.newer_than(*age);
    }
    if let Some(text) = query.get("q") {
        // A hidden payload is not searched: the answer would reveal it.
        filter = if view.shows_payloads { filter.text(text.trim()) } else { filter.error(text.trim()) };
    }
    if let Some(before) = query.get("before") {
        let id = before.parse().map_err(|_| Failure::Bad(format!("Invalid job ID {before:?}.")))?;
        filter = filter.before(id);
    }
    Ok((filter, status))
}

/// The tags of a filter's field: no tag holds a space or a comma.
pub(super) fn tags(field: Option<String>) -> Vec<String> {
    let field = field.unwrap_or_default();
    field.split([' ', ',']).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

fn filters(view: &View, ask: &Ask) -> Markup {
    let value = |name: &str| ask.query.get(name);
    let since = value("since");
    let about = if view.shows_payloads {
        "id, or text in the kind, the error or the payload"
    } else {
        "id, or text in the error"
    };
    html! {
        form.filters method="get" action={ (view.base) "/jobs" } role="search" {
            input #search type="search" name="q" value=[value("q")] placeholder={ "Search: " (about) }
                aria-label="Search";
            (look::queue_field(view, value("queue")))
            input type="text" name="kind" value=[value("kind")] placeholder="every kind" aria-label="Kind" size="14";
            input type="text" name="tag" value=[value("tag")] placeholder="every tag" aria-label="Tags" size="14";
            select name="since" aria-label="Created" data-submit {
                option value="" { "any time" }
                @for (word, label, _) in AGES {
                    option value=(word) selected[since.as_deref() == Some(word)] { (label) }
                }
            }
            @for name in ["status", "worker"] {
                @if let Some(value) = value(name) { input type="hidden" name=(name) value=(value); }
            }
            button { "Search" }
        }
    }
}

/// The word for a job's state: a queued job that waits for its time has one of two, one that its lane holds another.
pub(super) fn word(job: &JobRow) -> &'static str {
    match job.status {
        Status::Queued if job.is_held => "held",
        Status::Queued if job.scheduled_at <= now() => "queued",
        Status::Queued if job.attempt > 0 => "retrying",
        Status::Queued => "scheduled",
        status => status.as_str(),
    }
}

/// The actions that can touch a job. A refused message cannot become a job; a held job that is due waits for its lane.
fn acts(job: &JobRow, word: &str, is_refused: bool) -> &'static str {
    match word {
        _ if is_refused => "",
        "held" if job.scheduled_at > now() => "cancel retry",
        "held" | "queued" | "processing" => "cancel",
        "scheduled" | "retrying" => "cancel retry",
        "failed" => "retry",
        _ => "",
    }
}

fn row(view: &View, ListedJob { job, is_refused }: &ListedJob, waits: Option<&str>) -> Markup {
    let word = word(job);
    let acts = acts(job, word, *is_refused);
    let ran = match (job.started_at, job.finished_at) {
        (Some(from), Some(to)) => Some(seconds_between(from, to)),
        (Some(from), None) if job.status == Status::Processing => Some(seconds_between(from, now())),
        _ => None,
    };
    html! {
        tr id={ "job-" (job.id) } {
            @if view.has_actions {
                td.tick {
                    // No action can touch a finished job, or a refused message.
                    @if !acts.is_empty() {
                        input type="checkbox" name="id" value=(job.id) data-can=(acts)
                            aria-label={ "Select " (job.kind) " " (job.id) };
                    }
                }
            }
            th.tight scope="row" { (job_link(view, job.id, &job.kind)) }
            td data-label="Queue" { (page::queue_cell(view, &job.queue)) }
            td data-label="Status" { (page::status(word, word)) }
            (progress_or_error(job, word, waits))
            td.num.tight data-label="Attempt" { (job.attempt) span.soft { "/" (job.max_attempts) } }
            td.tight.hide-narrow.none[job.worker_id.is_none()] data-label="Worker" {
                @if let Some(worker) = &job.worker_id { (owner(view, worker)) }
            }
            td.num.tight.none[ran.is_none()] data-label="Ran, s" { @if let Some(ran) = ran { (ran) } }
            td.num.tight data-label="Created" { (stamped(job.created_at)) }
        }
    }
}

/// The cell with a job's progress, due time or error; of a held one, for what it `waits`, if not for its lane.
fn progress_or_error(job: &JobRow, word: &str, waits: Option<&str>) -> Markup {
    let error = job.last_error.as_deref().map(page::error);
    let said = match word {
        "processing" => Some(progress(job)),
        "held" => Some(html! {
            span.soft { @if let Some(waits) = waits { (waits) } @else { (in_lane(job)) } }
            @if job.attempt > 0 && let Some(error) = error { span.sub { (error) } }
        }),
        "scheduled" => Some(html! { span.soft { "due " (stamped(job.scheduled_at)) } }),
        // Why it waits, and until when.
        "retrying" => Some(html! {
            @if let Some(error) = error { (error) }
            span.sub.tight { "next attempt " (stamped(job.scheduled_at)) }
        }),
        "completed" => None,
        _ => error,
    };
    html! {
        td.text.full.none[said.is_none()] { @if let Some(said) = said { (said) } }
    }
}

/// Where a held job waits, and since when or until when.
fn in_lane(job: &JobRow) -> Markup {
    let lane = job.lane.as_deref().map(lanes::key).unwrap_or_default();
    html! {
        @if job.lane.is_some() { "lane " bdi.clip { (lane) } ", " }
        "due "
        @if job.scheduled_at > now() { (stamped(job.scheduled_at)) } @else { "for " (page::since(job.scheduled_at)) }
    }
}

/// A running job's progress.
pub(super) fn progress(job: &JobRow) -> Markup {
    let words: Vec<_> =
        [&job.stage, &job.message].into_iter().flatten().filter(|word| !word.is_empty()).collect();
    let words = words.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(": ");
    html! {
        span.pair {
            @if let Some(percent) = job.progress {
                progress max="100" value=(format!("{percent:.1}")) aria-label=(format!("{percent:.0} %")) {}
                span.tight { (format!("{percent:.0} %")) }
            }
            @if !words.is_empty() { span.clip.soft { (words) } }
        }
    }
}
