//! Timeline: everything that is on record of one job, as one list in order of time. Pure.
//!
//! Not on record: when a dead job was redriven. That it was shows in attempts that start anew. The time is when it was
//! due then; once that is overwritten, the latest at which it can have been.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::{ExecutionRow, JobRow, RecoveryRow, Status};

/// A job that was due when it was enqueued, or tried again at once, was not scheduled.
const WORTH_TELLING: TimeDelta = TimeDelta::seconds(1);

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) at: DateTime<Utc>,
    /// A word: enqueued, scheduled, claimed, ended, reset, release, `refused_write`, republished, redriven, dead,
    /// completed, cancelled.
    pub(crate) event: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<String>,
    pub(crate) text: String,
}

impl Entry {
    fn new(at: DateTime<Utc>, event: &str, text: impl Into<String>) -> Self {
        Self { at, event: event.into(), attempt: None, token: None, worker: None, text: text.into() }
    }

    fn of(execution: &ExecutionRow, at: DateTime<Utc>, event: &str, text: impl Into<String>) -> Self {
        Self {
            attempt: Some(execution.attempt),
            token: Some(execution.fencing_token),
            worker: Some(execution.worker_id.clone()),
            ..Self::new(at, event, text)
        }
    }
}

/// A job's history, the oldest first. The attempts are in order of their tokens.
pub(crate) fn merged(job: &JobRow, executions: &[ExecutionRow], recoveries: &[RecoveryRow]) -> Vec<Entry> {
    let about = format!("in queue {}, of kind {}", job.queue, job.kind);
    let mut entries = vec![Entry::new(job.created_at, "enqueued", about)];
    // Each in the order in which it must have happened: sorting by time keeps it where the times are the same.
    let mut before: Option<&ExecutionRow> = None;
    for execution in executions {
        if let Some(dead) = before.filter(|before| is_redriven(before, execution.attempt)) {
            let was_due = dead.finished_at.is_some_and(|died| died <= job.scheduled_at)
                && job.scheduled_at <= execution.started_at;
            let at = if was_due { job.scheduled_at } else { execution.started_at };
            entries.extend(redriven(dead, at));
        }
        let text = format!("attempt {} of {}", execution.attempt, job.max_attempts);
        entries.push(Entry::of(execution, execution.started_at, "claimed", text));
        entries.extend(ended(execution));
        before = Some(execution);
    }
    // Not the attempt that the job ended with.
    let dead = before.filter(|last| last.finished_at != job.finished_at);
    if let Some(dead) = dead.filter(|last| is_redriven(last, job.attempt.saturating_add(1))) {
        entries.extend(redriven(dead, job.scheduled_at));
    }
    // A redriven job is due at once: that is no other news.
    let is_told = entries.iter().any(|entry| entry.event == "redriven" && entry.at == job.scheduled_at);
    if let Some(scheduled) = scheduled(job, executions).filter(|_| !is_told) {
        entries.insert(1, scheduled);
    }
    entries.extend(recoveries.iter().map(recovered));
    entries.extend(finished(job, before));
    entries.sort_by_key(|entry| entry.at);
    entries
}

/// When it is, or was, due, if it had to wait for that.
fn scheduled(job: &JobRow, executions: &[ExecutionRow]) -> Option<Entry> {
    // An end is written a little later than what is due at once after it.
    let before = executions.iter().filter(|execution| execution.started_at < job.scheduled_at);
    let ends = before.filter_map(|execution| execution.finished_at);
    let since = ends.filter(|end| *end <= job.scheduled_at + WORTH_TELLING).max().unwrap_or(job.created_at);
    let is_worth_telling = job.scheduled_at - since >= WORTH_TELLING;
    is_worth_telling.then(|| Entry::new(job.scheduled_at, "scheduled", "not before this time"))
}

/// Whether the job was dead after this attempt, given the number of the next: only then is a failed attempt not the
/// last, and only then does a lost one not count.
fn is_redriven(execution: &ExecutionRow, next_attempt: i32) -> bool {
    match execution.outcome.as_deref() {
        Some("failed") => true,
        Some("lost") => next_attempt <= execution.attempt,
        _ => false,
    }
}

fn redriven(dead: &ExecutionRow, at: DateTime<Utc>) -> [Entry; 2] {
    let died_at = dead.finished_at.unwrap_or(dead.started_at);
    [
        Entry::new(died_at, "dead", dead.error.clone().unwrap_or_default()),
        Entry::new(at.max(died_at), "redriven", "queued again; its attempts start anew"),
    ]
}

fn ended(execution: &ExecutionRow) -> Option<Entry> {
    let at = execution.finished_at?;
    let outcome = execution.outcome.as_deref().unwrap_or("ended");
    let mut text = format!("{outcome} after {}", span(execution.started_at, at));
    if let Some(error) = execution.error.as_deref().filter(|error| !error.is_empty()) {
        text = format!("{text}: {error}");
    }
    Some(Entry::of(execution, at, "ended", text))
}

fn recovered(event: &RecoveryRow) -> Entry {
    let silence = event.silence_s.map(|s| format!(", after a silence of {}", seconds(s)));
    let text = format!(
        "{}{} ({}, by {})",
        event.reason,
        silence.unwrap_or_default(),
        event.path,
        event.recovered_by
    );
    Entry {
        // Of a job that nobody has claimed yet there is none.
        token: Some(event.fencing_token).filter(|token| *token > 0),
        worker: event.owner_before.clone(),
        ..Entry::new(event.at, &event.event, text)
    }
}

fn finished(job: &JobRow, last: Option<&ExecutionRow>) -> Option<Entry> {
    let at = job.finished_at?;
    let event = match job.status {
        Status::Queued | Status::Processing => return None,
        Status::Completed => "completed",
        Status::Failed => "dead",
        Status::Cancelled => "cancelled",
    };
    let mut text = format!("{} after it was enqueued", span(job.created_at, at));
    // What the attempt said that ended the job is told with it.
    let is_told = last.is_some_and(|last| last.finished_at == Some(at) && last.error.is_some());
    if let Some(error) = job.last_error.as_deref().filter(|_| job.status != Status::Completed && !is_told) {
        text = format!("{text}: {error}");
    }
    Some(Entry::new(at, event, text))
}

/// A time span, to the second where that says enough.
pub(crate) fn seconds(seconds: f64) -> String {
    let span = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let shown = if span.as_secs() < 10 {
        Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or_default())
    } else {
        Duration::from_secs(span.as_secs())
    };
    humantime::format_duration(shown).to_string()
}

/// Clocks may go backwards; time spans do not.
fn span(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    seconds((to - from).to_std().unwrap_or_default().as_secs_f64())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::JobId;

    fn at(ms: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap()
    }

    fn job(status: Status, attempt: i32) -> JobRow {
        JobRow {
            id: JobId::generate(),
            queue: "q".into(),
            kind: "k".into(),
            payload: None,
            payload_json: None,
            status,
            attempt,
            max_attempts: 3,
            fencing_token: 0,
            worker_id: None,
            created_at: at(0),
            scheduled_at: at(0),
            started_at: None,
            last_activity_at: None,
            finished_at: None,
            stage: None,
            progress: None,
            message: None,
            output: None,
            output_json: None,
            last_error: None,
        }
    }

    fn execution(
        token: i64,
        attempt: i32,
        from: i64,
        end: Option<(i64, &str, Option<&str>)>,
    ) -> ExecutionRow {
        ExecutionRow {
            fencing_token: token,
            attempt,
            worker_id: format!("w-{token}"),
            started_at: at(from),
            finished_at: end.map(|(to, ..)| at(to)),
            outcome: end.map(|(_, outcome, _)| outcome.into()),
            error: end.and_then(|(.., error)| error.map(str::to_owned)),
        }
    }

    fn told(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(|entry| format!("{}: {}", entry.event, entry.text)).collect()
    }

    #[test]
    fn a_job_that_was_lost_once_and_completed_is_told_in_order_of_time() {
        let mut job = job(Status::Completed, 2);
        job.finished_at = Some(at(9_000));
        job.scheduled_at = at(5_000);
        let executions = [
            execution(1, 1, 10, Some((3_000, "lost", Some("worker lost: w-1 is gone")))),
            execution(2, 2, 5_100, Some((9_000, "completed", None))),
        ];
        let recoveries = [RecoveryRow {
            at: at(3_001),
            event: "reset".into(),
            path: "vanished".into(),
            fencing_token: 1,
            owner_before: Some("w-1".into()),
            silence_s: Some(2.5),
            reason: "its worker could not be reached".into(),
            recovered_by: "w-2".into(),
        }];
        let entries = merged(&job, &executions, &recoveries);
        assert_eq!(
            told(&entries),
            [
                "enqueued: in queue q, of kind k",
                "claimed: attempt 1 of 3",
                "ended: lost after 2s 990ms: worker lost: w-1 is gone",
                "reset: its worker could not be reached, after a silence of 2s 500ms (vanished, by w-2)",
                "scheduled: not before this time",
                "claimed: attempt 2 of 3",
                "ended: completed after 3s 900ms",
                "completed: 9s after it was enqueued",
            ]
        );
        let reset = &entries[3];
        assert_eq!((reset.token, reset.worker.as_deref(), reset.attempt), (Some(1), Some("w-1"), None));
        assert_eq!((entries[1].token, entries[1].attempt), (Some(1), Some(1)));
    }

    #[test]
    fn a_redriven_job_was_dead_in_between_whether_or_not_it_has_run_again() {
        let failed = execution(1, 3, 10, Some((2_000, "failed", Some("no"))));
        let mut waiting = job(Status::Queued, 0);
        waiting.scheduled_at = at(60_000);
        let entries = merged(&waiting, std::slice::from_ref(&failed), &[]);
        let events: Vec<_> = entries.iter().map(|entry| entry.event.as_str()).collect();
        assert_eq!(events[..4], ["enqueued", "claimed", "ended", "dead"]);
        assert!(events[4..].contains(&"redriven") && entries.last().unwrap().at == at(60_000));

        let mut done = job(Status::Completed, 1);
        done.finished_at = Some(at(70_000));
        let again = execution(2, 1, 65_000, Some((70_000, "completed", None)));
        let entries = merged(&done, &[failed.clone(), again], &[]);
        let events: Vec<_> = entries.iter().map(|entry| entry.event.as_str()).collect();
        assert_eq!(
            events,
            ["enqueued", "claimed", "ended", "dead", "redriven", "claimed", "ended", "completed"]
        );
        // One that is dead now was not redriven.
        let mut dead = job(Status::Failed, 3);
        (dead.finished_at, dead.last_error) = (Some(at(2_000)), Some("no".into()));
        let events = told(&merged(&dead, &[failed], &[]));
        assert_eq!(events.last().unwrap(), "dead: 2s after it was enqueued");
        assert!(!events.iter().any(|event| event.starts_with("redriven")), "{events:?}");
        // A lost one whose attempt counts waits for its next.
        let lost = execution(1, 1, 10, Some((2_000, "lost", None)));
        let events = told(&merged(&job(Status::Queued, 1), std::slice::from_ref(&lost), &[]));
        assert!(!events.iter().any(|event| event.starts_with("redriven")), "{events:?}");
        let events = told(&merged(&job(Status::Queued, 0), &[lost], &[]));
        assert!(events.iter().any(|event| event.starts_with("redriven")), "{events:?}");
    }

    #[test]
    fn what_nobody_ran_has_its_reason_and_no_span_is_negative() {
        let mut cancelled = job(Status::Cancelled, 0);
        (cancelled.finished_at, cancelled.last_error) = (Some(at(-500)), Some("never mind".into()));
        let events = told(&merged(&cancelled, &[], &[]));
        assert_eq!(
            events,
            ["cancelled: 0s after it was enqueued: never mind", "enqueued: in queue q, of kind k"]
        );
        let backwards = execution(1, 1, 10, Some((5, "retried", None)));
        let events = told(&merged(&job(Status::Queued, 1), &[backwards], &[]));
        assert!(events.contains(&"ended: retried after 0s".to_owned()), "{events:?}");
    }

    #[test]
    fn a_job_that_is_due_again_at_once_was_not_scheduled() {
        let mut lost = job(Status::Queued, 1);
        lost.scheduled_at = at(60_000);
        let events = told(&merged(&lost, &[execution(1, 1, 10, Some((60_001, "lost", None)))], &[]));
        assert!(!events.iter().any(|event| event.starts_with("scheduled")), "{events:?}");
    }

    #[test]
    fn a_job_that_runs_has_no_end_yet() {
        let events = told(&merged(&job(Status::Processing, 1), &[execution(1, 1, 10, None)], &[]));
        assert_eq!(events, ["enqueued: in queue q, of kind k", "claimed: attempt 1 of 3"]);
    }
}
