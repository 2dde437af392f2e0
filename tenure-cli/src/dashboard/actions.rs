//! Actions: what the dashboard's buttons do. Each reports its outcome on the page that sent it.

use std::{
    collections::HashSet,
    fmt::Write,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;

use super::{Ask, Failure, View, jobs, page, params::Params, quarantine, redrives};
use crate::{access::Who, lanes};
use tenure::{
    EnqueueError, JobId, StoreError,
    audit::Actor,
    groups::SignalError,
    internals::JobAction,
    jobs::{ActionError, CancelOutcome, RetryOutcome, RunAgainError},
    queues::{QueueLimits, QueueSettingsError},
    rows::DeadFilter,
    schedules::ScheduleError,
};

/// The most jobs that one form may name.
const NAMED_MAX: usize = 1_000;
/// How many jobs of a selection to act on at once, and for how long: a proxy waits no longer than a minute.
const AT_ONCE: usize = 1_000;
const ACTS_FOR: Duration = Duration::from_secs(30);

/// What a user does about a limit that is out of range.
const LIMIT: &str = "leave the field empty for no limit, and pause a queue to start no jobs";

/// The outcome of an action, in words.
pub(super) type Said = Result<String, Failure>;

/// An action that succeeded.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) said: String,
    /// The page to show; `None`: the one that sent the form.
    pub(super) to: Option<String>,
}

/// Whether the form's user has filled in fields, which must not get lost.
pub(super) fn is_filled_in(ask: &Ask) -> bool {
    ask.path.len() == 1 && ["enqueue", "schedule"].contains(&ask.path[0].as_str())
}

/// Runs the action of a form.
pub(super) async fn act(view: &View, ask: &Ask, who: &Who) -> Result<Done, Failure> {
    let tenure = view.tenure.acting_as(Actor::new(&who.name).via("dashboard"));
    let view = &View { tenure, ..view.clone() };
    let mut to = None;
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    let said = match path[..] {
        ["jobs", "cancel"] if ask.form.get("all").is_some() => selected(view, ask, JobAction::Cancel).await,
        ["jobs", "retry"] if ask.form.get("all").is_some() => selected(view, ask, JobAction::Retry).await,
        ["jobs", "cancel"] => cancel(view, &named(ask)?).await,
        ["jobs", "retry"] => retry(view, &named(ask)?).await,
        ["jobs", id, "cancel"] => cancel(view, &[job(id)?]).await,
        ["jobs", id, "retry"] => retry(view, &[job(id)?]).await,
        ["jobs", id, "again"] => again(view, ask, job(id)?).await.map(|(said, job)| {
            to = Some(format!("/jobs/{job}"));
            said
        }),
        ["jobs", id, "signal"] => signal(view, ask, job(id)?).await,
        ["dead", "redrive"] => redrive(view, ask).await,
        ["dead", "calm"] => redrives::begin(view, ask).await,
        ["dead", "redrives", id, "stop"] => redrives::stop(view, id).await,
        ["dead", "purge"] => purge(view, ask).await,
        ["queues", queue, "pause"] => pause(view, queue).await,
        ["queues", queue, "resume"] => resume(view, queue).await,
        ["queues", queue, "limit"] => limit(view, queue, ask).await,
        ["kinds", kind, "release"] => quarantine::release(view, kind).await,
        ["workers", id, "drain"] => super::worker::drain(view, id).await,
        ["enqueue"] => super::enqueue::enqueue(view, ask).await.map(|(said, job)| {
            to = Some(format!("/jobs/{job}"));
            said
        }),
        ["schedule"] => super::schedule::put(view, ask).await.map(|(said, name)| {
            to = Some(format!("/schedules/{name}"));
            said
        }),
        ["schedules", name, "run"] => super::schedule::run(view, ask, name).await,
        ["schedules", name, "pause"] => pause_schedule(view, name).await,
        ["schedules", name, "resume"] => resume_schedule(view, name).await,
        _ => Err(Failure::NotFound("This action does not exist.".into())),
    };
    let (path, who, of) = (ask.path.join("/"), &who.name, ask.form.for_log());
    let cell = view.cell.as_deref();
    match &said {
        Ok(said) => tracing::info!(cell, who, action = path, of, said, "dashboard action done"),
        Err(failure) => {
            tracing::warn!(cell, who, action = path, of, failure = failure.text(), "dashboard action failed");
        }
    }
    said.map(|said| Done { said, to })
}

pub(super) fn job(id: &str) -> Result<JobId, Failure> {
    id.parse().map_err(|_| Failure::NotFound(format!("Invalid job ID {id:?}.")))
}

/// The ticked jobs.
pub(super) fn named(ask: &Ask) -> Result<Vec<JobId>, Failure> {
    let ids: Vec<_> = ask.form.all("id").map(job).collect::<Result<_, _>>()?;
    match ids.len() {
        0 => Err(Failure::Bad("Tick at least one job.".into())),
        1..=NAMED_MAX => Ok(ids),
        _ => Err(Failure::Bad(format!("Tick at most {NAMED_MAX} jobs at a time."))),
    }
}

/// Appends `3 jobs are cancelled` or the like; nothing if there are none.
fn count(said: &mut String, jobs: usize, one: &str, many: &str) {
    if jobs > 0 {
        let sep = if said.is_empty() { "" } else { ", " };
        let words = if jobs == 1 { one } else { many };
        // Writing to a string does not fail.
        let jobs = page::number(i64::try_from(jobs).unwrap_or(i64::MAX));
        let _ = write!(said, "{sep}{jobs} {words}");
    }
}

/// Acts on the jobs of a selection that still match.
async fn selected(view: &View, ask: &Ask, action: JobAction) -> Said {
    let taken = ask.form.get("selection").and_then(|token| view.figures.selections.take(&token, action));
    let again = || Failure::Bad("The question was open for too long; reload the page, and ask again.".into());
    let asked: HashSet<_> = taken.ok_or_else(again)?.into_iter().collect();
    // What has left the list meanwhile is spared.
    let jobs = super::jobs::matching(view, &ask.form, action).await?;
    let jobs: Vec<_> = jobs.into_iter().filter(|job| asked.contains(job)).collect();
    let (mut cancelled, mut again) = (Vec::new(), Vec::new());
    let until = Instant::now() + ACTS_FOR;
    let mut stopped = None;
    for some in jobs.chunks(AT_ONCE) {
        let done = match action {
            _ if Instant::now() > until => {
                stopped =
                    Some("That took long; the other jobs were not touched. Repeat it for them.".to_owned());
                break;
            }
            JobAction::Cancel => view.tenure.cancel_many(some).await.map(|done| cancelled.extend(done)),
            JobAction::Retry => view.tenure.retry_many(some).await.map(|done| again.extend(done)),
        };
        if let Err(error) = done {
            let more = "some of the next jobs may be changed, too. Repeat it for the rest: that is safe.";
            stopped = Some(
                super::unwritten(&error, more).replace("Nothing was changed", "No other job was changed"),
            );
            break;
        }
    }
    let said = match action {
        _ if cancelled.len() + again.len() == 0 => "No job was changed.".into(),
        JobAction::Cancel => cancelled_jobs(&cancelled),
        JobAction::Retry => retried(&again),
    };
    match stopped {
        Some(why) => Err(Failure::Unanswered(format!("{said} {why}"))),
        None => Ok(said),
    }
}

async fn cancel(view: &View, jobs: &[JobId]) -> Said {
    Ok(cancelled_jobs(&view.tenure.cancel_many(jobs).await?))
}

fn cancelled_jobs(answers: &[CancelOutcome]) -> String {
    let of = |is: fn(&CancelOutcome) -> bool| answers.iter().filter(|answer| is(answer)).count();
    let mut said = String::new();
    count(&mut said, of(|a| matches!(a, CancelOutcome::Cancelled)), "job is cancelled", "jobs are cancelled");
    let asked = of(|a| matches!(a, CancelOutcome::Asked { .. }));
    count(&mut said, asked, "running job is asked to stop", "running jobs are asked to stop");
    let ended = of(|a| matches!(a, CancelOutcome::Finished { .. }));
    count(&mut said, ended, "had already ended", "had already ended");
    count(&mut said, of(|a| matches!(a, CancelOutcome::NotFound)), "does not exist", "do not exist");
    said + "."
}

async fn retry(view: &View, jobs: &[JobId]) -> Said {
    Ok(retried(&view.tenure.retry_many(jobs).await?))
}

/// Enqueues a job that has ended anew, once for each page that shows the button.
async fn again(view: &View, ask: &Ask, job: JobId) -> Result<(String, JobId), Failure> {
    let key = super::enqueue::once(ask, &[&job.to_string()]);
    match view.tenure.run_again_keyed(job, key).await {
        Ok(enqueued) if enqueued.duplicate => {
            Ok(("This page has enqueued it already; this is the job.".into(), enqueued.id))
        }
        Ok(enqueued) => Ok((format!("The job runs again, as this one. The old one is {job}."), enqueued.id)),
        // Safe to repeat: the form has a key.
        Err(RunAgainError::Store(error) | RunAgainError::Enqueue(EnqueueError::Store(error))) => {
            Err(error.into())
        }
        Err(error) => Err(Failure::Bad(page::sentence(&error.to_string()))),
    }
}

async fn signal(view: &View, ask: &Ask, job: JobId) -> Said {
    let event = ask.form.get("event").ok_or_else(|| Failure::Bad("Name an event.".into()))?;
    let text = ask.form.get("payload").unwrap_or_else(|| "null".into());
    // As text: a value would round its numbers.
    let payload = RawValue::from_string(text).map_err(|error| {
        Failure::Bad(format!(
            "The payload is not JSON ({error}); a string needs its own quotes, as in \"text\"."
        ))
    })?;
    match view.tenure.signal(job, &event, &payload).await {
        Ok(answer) => {
            let (has_it, said) = lanes::told(answer, &event);
            let said = format!("The job {said}.");
            if has_it { Ok(said) } else { Err(Failure::Bad(said)) }
        }
        Err(SignalError::Store(error)) => Err(error.into()),
        Err(error) => Err(Failure::Bad(page::sentence(&error.to_string()))),
    }
}

fn retried(answers: &[RetryOutcome]) -> String {
    let of = |is: fn(&RetryOutcome) -> bool| answers.iter().filter(|answer| is(answer)).count();
    let mut said = String::new();
    count(&mut said, of(|a| matches!(a, RetryOutcome::Due)), "job is due now", "jobs are due now");
    let redriven = of(|a| matches!(a, RetryOutcome::Redriven));
    count(&mut said, redriven, "job is queued again", "jobs are queued again");
    let live = of(|a| matches!(a, RetryOutcome::Live { .. }));
    count(&mut said, live, "is already due or running", "are already due or running");
    let ended = of(|a| matches!(a, RetryOutcome::Finished { .. }));
    count(&mut said, ended, "has finished and does not run again", "have finished and do not run again");
    let refused = of(|a| matches!(a, RetryOutcome::Refused));
    count(
        &mut said,
        refused,
        "is a refused message: publish a corrected one",
        "are refused messages: publish corrected ones",
    );
    count(&mut said, of(|a| matches!(a, RetryOutcome::NotFound)), "does not exist", "do not exist");
    said + "."
}

/// The filter of a page's dead letters, from the parameters of its address or the fields of its form.
pub(super) fn dead_filter(get: impl Fn(&str) -> Option<String>) -> DeadFilter {
    let mut filter = DeadFilter::new();
    if let Some(queue) = get("queue") {
        filter = filter.queue(queue);
    }
    if let Some(kind) = get("kind") {
        filter = filter.kind(kind);
    }
    if let Some(category) = get("category") {
        filter = filter.category(category);
    }
    if let Some(error) = get("error") {
        filter = filter.error(error);
    }
    if let Some(group) = get("group") {
        filter = filter.group(group);
    }
    jobs::tags(get("tag")).into_iter().fold(filter, DeadFilter::tag)
}

/// The dead letters that match and had died when the page was shown: an action spares those that its user has not
/// seen.
pub(super) fn all_shown(form: &Params) -> Result<DeadFilter, Failure> {
    Ok(dead_filter(|name| form.get(name)).until(shown_at(form)?))
}

/// When the page of a form was shown.
fn shown_at(form: &Params) -> Result<DateTime<Utc>, Failure> {
    let shown = form.get("shown").and_then(|micros| micros.parse().ok());
    shown
        .and_then(DateTime::from_timestamp_micros)
        .ok_or_else(|| Failure::Bad("The form does not say when it was shown; reload the page.".into()))
}

async fn redrive(view: &View, ask: &Ask) -> Said {
    if ask.form.get("all").is_none() {
        return Ok(retried(&view.tenure.redrive(&named(ask)?).await?));
    }
    Ok(match view.tenure.redrive_all(&all_shown(&ask.form)?).await? {
        0 => "No dead letters match; nothing is redriven.".into(),
        1 => "1 job is queued again.".into(),
        jobs => format!("{jobs} jobs are queued again."),
    })
}

fn purged(gone: u64) -> String {
    match gone {
        0 => "No dead letters match; nothing is purged.".into(),
        1 => "1 dead letter is purged.".into(),
        gone => format!("{gone} dead letters are purged."),
    }
}

async fn purge(view: &View, ask: &Ask) -> Said {
    if ask.form.get("all").is_none() {
        return Ok(purged(view.tenure.purge_dead_jobs(&named(ask)?).await?));
    }
    Ok(purged(view.tenure.purge_dead(&all_shown(&ask.form)?).await?))
}

/// Refuses a queue that a mistyped or old address names: a setting would create it.
async fn check_known(view: &View, queue: &str) -> Result<(), Failure> {
    view.tenure.known_queue(queue).await?.map_err(|unknown| {
        Failure::Bad(format!("{} Nothing was changed.", page::sentence(&unknown.to_string())))
    })
}

async fn pause(view: &View, queue: &str) -> Said {
    check_known(view, queue).await?;
    let paused = view.tenure.pause_queue(queue).await?;
    Ok(if paused.was_paused {
        format!("{queue} was already paused.")
    } else {
        format!("{queue} is paused; its running jobs continue.")
    })
}

async fn resume(view: &View, queue: &str) -> Said {
    let resumed = view.tenure.resume_queue(queue).await?;
    if !resumed.was_paused {
        check_known(view, queue).await?;
    }
    Ok(if resumed.was_paused { format!("{queue} is resumed.") } else { format!("{queue} was not paused.") })
}

async fn limit(view: &View, queue: &str, ask: &Ask) -> Said {
    // A field that the user did not change keeps its limit, even if another user has changed it since.
    let changed = |name: &str| -> Result<Option<Option<u64>>, Failure> {
        let is = ask.form.get(name);
        if !ask.form.has(name)
            || ask.form.has(&format!("was_{name}")) && ask.form.get(&format!("was_{name}")) == is
        {
            return Ok(None);
        }
        let Some(text) = is else { return Ok(Some(None)) };
        let wrong = || {
            Failure::Bad(format!("Invalid limit {text:?}; enter a number above 0, or nothing for no limit."))
        };
        text.trim().parse().map(|limit| Some(Some(limit))).map_err(|_| wrong())
    };
    let mut limits = QueueLimits::new();
    if let Some(limit) = changed("max_running")? {
        let large = |n: u64| Failure::Bad(format!("Max running {n} is too many; {LIMIT}."));
        let limit = limit.map(|n| u32::try_from(n).map_err(|_| large(n)));
        limits = limits.max_running(limit.transpose()?);
    }
    if let Some(limit) = changed("max_queued")? {
        limits = limits.max_queued(limit);
    }
    check_known(view, queue).await?;
    let limited = view.tenure.limit_queue(queue, limits).await?;
    let word = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    Ok(format!(
        "{queue}: max running {}, max queued {}.",
        word(limited.max_running.map(u64::from)),
        word(limited.max_queued)
    ))
}

async fn pause_schedule(view: &View, name: &str) -> Said {
    let paused = view.tenure.pause_schedule(name).await?;
    Ok(if paused.was_paused { format!("{name} was already paused.") } else { format!("{name} is paused.") })
}

async fn resume_schedule(view: &View, name: &str) -> Said {
    let resumed = view.tenure.resume_schedule(name).await?;
    let what = if resumed.was_paused { "is resumed" } else { "was not paused" };
    let next =
        resumed.next_at.map(|next| format!("; its next tick is at {}", next.format("%Y-%m-%d %H:%M:%S UTC")));
    Ok(format!("{name} {what}{}.", next.unwrap_or_default()))
}

impl From<ActionError> for Failure {
    fn from(error: ActionError) -> Self {
        match error {
            ActionError::Store(error) => error.into(),
            error => Self::Bad(page::sentence(&error.to_string())),
        }
    }
}

impl From<QueueSettingsError> for Failure {
    fn from(error: QueueSettingsError) -> Self {
        match error {
            QueueSettingsError::Store(error) => error.into(),
            QueueSettingsError::Limit { what, value, most } => {
                let what = if what == "max_running" { "Max running" } else { "Max queued" };
                Self::Bad(format!("{what} is {value}, but must be 1 to {most}; {LIMIT}."))
            }
            error => Self::Bad(page::sentence(&error.to_string())),
        }
    }
}

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::Store(error) => error.into(),
            // In the words of the form.
            ScheduleError::Option(rule) => {
                Self::Bad(rule.replacen("tick_field", "The field with the tick", 1) + ".")
            }
            error => Self::Bad(page::sentence(&error.to_string())),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
