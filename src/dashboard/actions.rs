//! Actions: what the dashboard's buttons do. Each says what it did, on the page that it came from.

use std::fmt::Write;

use super::{Ask, Failure, View, access::Who};
use crate::{
    Cancelled, DeadFilter, JobId, ManageError, QueueLimits, QueueSettingsError, Retried, ScheduleError,
    store::StoreError,
};

/// The most jobs that one form may name.
const NAMED_MAX: usize = 1_000;

/// What was done, in words.
type Said = Result<String, Failure>;

/// Does what a form asks.
pub(super) async fn act(view: &View, ask: &Ask, who: &Who) -> Said {
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    let said = match path[..] {
        ["jobs", "cancel"] => cancel(view, &named(ask)?).await,
        ["jobs", "retry"] => retry(view, &named(ask)?).await,
        ["jobs", id, "cancel"] => cancel(view, &[job(id)?]).await,
        ["jobs", id, "retry"] => retry(view, &[job(id)?]).await,
        ["dead", "redrive"] => redrive(view, ask).await,
        ["dead", "purge"] => purge(view, ask).await,
        ["queues", queue, "pause"] => pause(view, queue).await,
        ["queues", queue, "resume"] => resume(view, queue).await,
        ["queues", queue, "limit"] => limit(view, queue, ask).await,
        ["schedules", name, "pause"] => pause_schedule(view, name).await,
        ["schedules", name, "resume"] => resume_schedule(view, name).await,
        _ => Err(Failure::NotFound("There is no such action.".into())),
    };
    let (path, who, of) = (ask.path.join("/"), &who.name, ask.form.for_log());
    match &said {
        Ok(said) => tracing::info!(who, action = path, of, said, "an action of the dashboard"),
        Err(failure) => {
            tracing::warn!(who, action = path, of, failure = failure.text(), "an action of the dashboard");
        }
    }
    said
}

fn job(id: &str) -> Result<JobId, Failure> {
    id.parse().map_err(|_| Failure::NotFound(format!("{id:?} is no job's id.")))
}

/// The jobs that are ticked.
fn named(ask: &Ask) -> Result<Vec<JobId>, Failure> {
    let ids: Vec<_> = ask.form.all("id").map(job).collect::<Result<_, _>>()?;
    match ids.len() {
        0 => Err(Failure::Bad("No job is ticked.".into())),
        1..=NAMED_MAX => Ok(ids),
        _ => Err(Failure::Bad(format!("At most {NAMED_MAX} jobs at a time."))),
    }
}

/// `3 jobs are cancelled`, and so on; nothing of none.
fn count(said: &mut String, jobs: usize, one: &str, many: &str) {
    if jobs > 0 {
        let sep = if said.is_empty() { "" } else { ", " };
        let words = if jobs == 1 { one } else { many };
        // Writing to a string does not fail.
        let _ = write!(said, "{sep}{jobs} {words}");
    }
}

async fn cancel(view: &View, jobs: &[JobId]) -> Said {
    let answers = view.tenure.cancel_many(jobs).await?;
    let of = |is: fn(&Cancelled) -> bool| answers.iter().filter(|answer| is(answer)).count();
    let mut said = String::new();
    count(&mut said, of(|a| matches!(a, Cancelled::Cancelled)), "job is cancelled", "jobs are cancelled");
    let asked = of(|a| matches!(a, Cancelled::Asked { .. }));
    count(&mut said, asked, "running job is told to stop", "running jobs are told to stop");
    let ended = of(|a| matches!(a, Cancelled::Finished { .. }));
    count(&mut said, ended, "had ended already", "had ended already");
    count(&mut said, of(|a| matches!(a, Cancelled::NotFound)), "does not exist", "do not exist");
    Ok(said + ".")
}

async fn retry(view: &View, jobs: &[JobId]) -> Said {
    Ok(retried(&view.tenure.retry_many(jobs).await?))
}

fn retried(answers: &[Retried]) -> String {
    let of = |is: fn(&Retried) -> bool| answers.iter().filter(|answer| is(answer)).count();
    let mut said = String::new();
    count(&mut said, of(|a| matches!(a, Retried::Due)), "job is due now", "jobs are due now");
    let redriven = of(|a| matches!(a, Retried::Redriven));
    count(&mut said, redriven, "job is queued again", "jobs are queued again");
    let live = of(|a| matches!(a, Retried::Live { .. }));
    count(&mut said, live, "waits for a worker or runs", "wait for a worker or run");
    let ended = of(|a| matches!(a, Retried::Finished { .. }));
    count(&mut said, ended, "has finished, and is not run again", "have finished, and are not run again");
    let refused = of(|a| matches!(a, Retried::Refused));
    count(
        &mut said,
        refused,
        "was refused before it became a job: publish a corrected message",
        "were refused before they became jobs: publish corrected messages",
    );
    count(&mut said, of(|a| matches!(a, Retried::NotFound)), "does not exist", "do not exist");
    said + "."
}

/// Which dead letters a page shows, by the parameters of its address or the fields of its form.
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
    filter
}

/// Those that match, and that had died when they were shown: nobody acts on what they have not seen.
fn all_shown(ask: &Ask) -> Result<DeadFilter, Failure> {
    let shown = ask.form.get("shown").and_then(|micros| micros.parse().ok());
    let shown = shown.and_then(chrono::DateTime::from_timestamp_micros).ok_or_else(|| {
        Failure::Bad("The form does not say when it was shown; load the page again.".into())
    })?;
    Ok(dead_filter(|name| ask.form.get(name)).until(shown))
}

async fn redrive(view: &View, ask: &Ask) -> Said {
    if ask.form.get("all").is_none() {
        return Ok(retried(&view.tenure.redrive(&named(ask)?).await?));
    }
    Ok(match view.tenure.redrive_all(&all_shown(ask)?).await? {
        0 => "There was nothing to redrive.".into(),
        1 => "1 job is queued again.".into(),
        jobs => format!("{jobs} jobs are queued again."),
    })
}

fn purged(gone: u64) -> String {
    match gone {
        0 => "There was nothing to purge.".into(),
        1 => "1 dead letter is purged.".into(),
        gone => format!("{gone} dead letters are purged."),
    }
}

async fn purge(view: &View, ask: &Ask) -> Said {
    if ask.form.get("all").is_none() {
        return Ok(purged(view.tenure.purge_dead_jobs(&named(ask)?).await?));
    }
    Ok(purged(view.tenure.purge_dead(&all_shown(ask)?).await?))
}

async fn pause(view: &View, queue: &str) -> Said {
    let paused = view.tenure.pause_queue(queue).await?;
    Ok(if paused.was_paused {
        format!("{queue} was paused already.")
    } else {
        format!("{queue} is paused: none of its jobs starts; those that run go on.")
    })
}

async fn resume(view: &View, queue: &str) -> Said {
    let resumed = view.tenure.resume_queue(queue).await?;
    Ok(if resumed { format!("{queue} goes on.") } else { format!("{queue} was not paused.") })
}

async fn limit(view: &View, queue: &str, ask: &Ask) -> Said {
    // What was not changed stays, also if somebody else has changed it since.
    let changed = |name: &str| -> Result<Option<Option<u64>>, Failure> {
        let is = ask.form.get(name);
        if !ask.form.has(name)
            || ask.form.has(&format!("was_{name}")) && ask.form.get(&format!("was_{name}")) == is
        {
            return Ok(None);
        }
        let Some(text) = is else { return Ok(Some(None)) };
        let wrong =
            || Failure::Bad(format!("{text:?} is no limit: a number above 0, or nothing for no limit."));
        text.trim().parse().map(|limit| Some(Some(limit))).map_err(|_| wrong())
    };
    let mut limits = QueueLimits::new();
    if let Some(limit) = changed("max_running")? {
        limits = limits.max_running(limit.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
    }
    if let Some(limit) = changed("max_queued")? {
        limits = limits.max_queued(limit);
    }
    let limited = view.tenure.limit_queue(queue, limits).await?;
    let word = |limit: Option<i64>| limit.map_or("any number".to_owned(), |limit| format!("at most {limit}"));
    Ok(format!(
        "Of {queue}, {} run at once and {} wait.",
        word(limited.max_running.map(i64::from)),
        word(limited.max_queued)
    ))
}

async fn pause_schedule(view: &View, name: &str) -> Said {
    let was_paused = view.tenure.pause_schedule(name).await?;
    Ok(if was_paused { format!("{name} was paused already.") } else { format!("{name} is paused.") })
}

async fn resume_schedule(view: &View, name: &str) -> Said {
    let next = view.tenure.resume_schedule(name).await?;
    Ok(format!("{name} goes on at {}.", next.format("%Y-%m-%d %H:%M:%S UTC")))
}

impl From<ManageError> for Failure {
    fn from(error: ManageError) -> Self {
        match error {
            ManageError::Store(error) => error.into(),
            error => Self::Bad(error.to_string()),
        }
    }
}

impl From<QueueSettingsError> for Failure {
    fn from(error: QueueSettingsError) -> Self {
        match error {
            QueueSettingsError::Store(error) => error.into(),
            error => Self::Bad(error.to_string()),
        }
    }
}

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::Store(error) => error.into(),
            error => Self::Bad(error.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
