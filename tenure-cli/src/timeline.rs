//! Timeline: every recorded event of one job, in order of time. Pure.
//!
//! No record says when a dead job was redriven; attempts that start at 1 again show that it was. The entry has the due
//! time that the redrive set; once that is overwritten, the latest possible time, the start of the next attempt.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use tenure::{
    FencingToken, Status,
    internals::{WhoRuns, duration::measured},
    rows::{ExecutionRow, JobRow, RecoveryRow, StepRow},
};

/// A job that had to wait less than this for its due time was not scheduled: it was due when enqueued, or retried at
/// once.
const SCHEDULED_MIN: TimeDelta = TimeDelta::seconds(1);

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) at: DateTime<Utc>,
    /// One of enqueued, scheduled, claimed, step, sleep, effect, ended, reset, release, `refused_write`, republished,
    /// redriven, dead, completed, cancelled.
    pub(crate) event: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<FencingToken>,
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

/// How a place writes a time that passed, in seconds: the terminal and the pages have a form each.
pub(crate) type Spans = fn(f64) -> String;

/// Merges a job's history, oldest first. The attempts must be in order of their tokens.
pub(crate) fn merged(
    job: &JobRow,
    executions: &[ExecutionRow],
    recoveries: &[RecoveryRow],
    steps: &[StepRow],
    spans: Spans,
) -> Vec<Entry> {
    let about = format!("in queue {}, of kind {}", job.queue, job.kind);
    let mut entries = vec![Entry::new(job.created_at, "enqueued", about)];
    // Entries are added in the order in which they must have happened: the stable sort keeps it for equal times.
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
        entries.extend(ended(execution, spans));
        before = Some(execution);
    }
    // The attempt that the job ended with was not redriven.
    let dead = before.filter(|last| last.finished_at != job.finished_at);
    if let Some(dead) = dead.filter(|last| is_redriven(last, job.attempt.saturating_add(1))) {
        entries.extend(redriven(dead, job.scheduled_at));
    }
    // A redriven job is due at once: a `scheduled` entry would repeat that.
    let is_repeated = entries.iter().any(|entry| entry.event == "redriven" && entry.at == job.scheduled_at);
    if let Some(scheduled) = scheduled(job, executions).filter(|_| !is_repeated) {
        entries.insert(1, scheduled);
    }
    entries.extend(recoveries.iter().map(|event| recovered(event, spans)));
    entries.extend(steps.iter().map(|step| recorded(step, spans)));
    entries.extend(finished(job, before, spans));
    entries.sort_by_key(|entry| entry.at);
    entries
}

/// The job's due time, if the job had to wait for it.
fn scheduled(job: &JobRow, executions: &[ExecutionRow]) -> Option<Entry> {
    // The end of an attempt is written slightly later than the due time of an immediate retry.
    let before = executions.iter().filter(|execution| execution.started_at < job.scheduled_at);
    let ends = before.filter_map(|execution| execution.finished_at);
    let since = ends.filter(|end| *end <= job.scheduled_at + SCHEDULED_MIN).max().unwrap_or(job.created_at);
    let has_waited = job.scheduled_at - since >= SCHEDULED_MIN;
    // A job that ended in its lane was never due: its time is that of its end.
    let never_was =
        executions.is_empty() && job.finished_at.is_some_and(|end| end - job.scheduled_at < SCHEDULED_MIN);
    let why =
        if job.lane.is_some() && !job.is_held { "released by its lane" } else { "not before this time" };
    (has_waited && !never_was).then(|| Entry::new(job.scheduled_at, "scheduled", why))
}

/// Whether the job was redriven after this attempt, given the number of the next one. Only a redrive lets an attempt
/// follow a failed one, or does not charge a lost one.
fn is_redriven(execution: &ExecutionRow, next_attempt: u32) -> bool {
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
        Entry::new(at.max(died_at), "redriven", "queued again; its attempts start at 1"),
    ]
}

fn ended(execution: &ExecutionRow, spans: Spans) -> Option<Entry> {
    let at = execution.finished_at?;
    let outcome = execution.outcome.as_deref().unwrap_or("ended");
    let mut text = format!("{outcome} after {}", spans(passed(execution.started_at, at)));
    if let Some(error) = execution.error.as_deref().filter(|error| !error.is_empty()) {
        text = format!("{text}: {error}");
    }
    Some(Entry::of(execution, at, "ended", text))
}

fn recovered(event: &RecoveryRow, spans: Spans) -> Entry {
    let silence = event.silence_s.map(|s| format!(", after {} of silence", spans(s)));
    let text = format!(
        "{}{} ({}, by {})",
        event.reason,
        silence.unwrap_or_default(),
        event.path,
        event.recovered_by
    );
    Entry {
        // A job that was never claimed has no token.
        token: Some(event.fencing_token).filter(|token| *token > 0),
        worker: event.owner_before.clone(),
        ..Entry::new(event.at, &event.event, text)
    }
}

fn recorded(step: &StepRow, spans: Spans) -> Entry {
    let text = match (step.began_at, step.wakes_at) {
        (_, Some(wakes_at)) => format!("{}: {}", step.name, spans(passed(step.recorded_at, wakes_at))),
        (Some(began_at), None) => format!("{}, in {}", step.name, spans(passed(began_at, step.recorded_at))),
        (None, None) => step.name.clone(),
    };
    Entry { token: Some(step.fencing_token), ..Entry::new(step.recorded_at, &step.step, text) }
}

fn finished(job: &JobRow, last: Option<&ExecutionRow>, spans: Spans) -> Option<Entry> {
    let at = job.finished_at?;
    let event = match job.status {
        Status::Queued | Status::Processing => return None,
        Status::Completed => "completed",
        Status::Failed => "dead",
        Status::Cancelled => "cancelled",
    };
    let mut text = format!("{} after it was enqueued", spans(passed(job.created_at, at)));
    // The last attempt's entry already shows its error.
    let is_shown = last.is_some_and(|last| last.finished_at == Some(at) && last.error.is_some());
    if let Some(error) = job.last_error.as_deref().filter(|_| job.status != Status::Completed && !is_shown) {
        text = format!("{text}: {error}");
    }
    Some(Entry::new(at, event, text))
}

/// Formats a time that passed, in seconds, as the terminal shows it.
pub(crate) fn seconds(seconds: f64) -> String {
    measured(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Returns the seconds between two times. Clocks may go backwards; the span is never negative.
fn passed(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).to_std().unwrap_or_default().as_secs_f64()
}

/// Returns what a due job waits for.
pub(crate) fn waits_for(job: &JobRow, of: &WhoRuns, spans: Spans) -> String {
    let JobRow { queue, kind, .. } = job;
    match of {
        WhoRuns { is_paused: true, .. } => format!("the queue {queue} is paused"),
        WhoRuns { serves_queue: false, draining: 1.., .. } => {
            format!("all live workers of the queue {queue} are draining")
        }
        WhoRuns { serves_queue: false, .. } => format!("no live worker serves the queue {queue}"),
        WhoRuns { runs_kind: false, .. } => format!("no live worker runs the kind {kind}"),
        WhoRuns { not_ready: Some(why), .. } => format!("no worker that runs it is ready: {why}"),
        WhoRuns { max_running: Some(most), running: Some(running), .. } if *running >= i64::from(*most) => {
            format!("the queue {queue} is limited: {running} of {most} running")
        }
        // A job in its first moments is put off in every rolling deploy.
        WhoRuns { put_off_s: Some(s), strangers: 1.., again_in_s: Some(again_in_s), .. }
            if *again_in_s > 0.0 =>
        {
            format!(
                "put off {} ago by a worker of this queue that does not know the kind {kind}; its message comes again \
                 in {}",
                spans(s.round()),
                spans(again_in_s.ceil())
            )
        }
        WhoRuns { slots, busy, .. } if busy >= slots => match of.fit {
            1 => format!("the only worker that runs it is busy: {busy} of {slots} slots"),
            fit => format!("the {fit} workers that run it are busy: {busy} of {slots} slots"),
        },
        _ => "waiting for a worker".into(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use tenure::internals::examples;

    fn at(ms: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap()
    }

    fn job(status: Status, attempt: u32) -> JobRow {
        let mut job = examples::job(at(0));
        job.status = status;
        job.attempt = attempt;
        job
    }

    fn execution(
        token: i64,
        attempt: u32,
        from: i64,
        end: Option<(i64, &str, Option<&str>)>,
    ) -> ExecutionRow {
        let mut execution = examples::execution(token, attempt, at(from));
        if let Some((to, outcome, error)) = end {
            execution.finished_at = Some(at(to));
            execution.outcome = Some(outcome.into());
            execution.error = error.map(str::to_owned);
        }
        execution
    }

    fn texts(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(|entry| format!("{}: {}", entry.event, entry.text)).collect()
    }

    #[test]
    fn the_history_of_a_job_that_was_lost_once_is_in_order_of_time() {
        let mut job = job(Status::Completed, 2);
        job.finished_at = Some(at(9_000));
        job.scheduled_at = at(5_000);
        let executions = [
            execution(1, 1, 10, Some((3_000, "lost", Some("worker lost: w-1 is gone")))),
            execution(2, 2, 5_100, Some((9_000, "completed", None))),
        ];
        let recoveries = [examples::reset(at(3_001))];
        let entries = merged(&job, &executions, &recoveries, &[], seconds);
        assert_eq!(
            texts(&entries),
            [
                "enqueued: in queue q, of kind k",
                "claimed: attempt 1 of 3",
                "ended: lost after 2s 990ms: worker lost: w-1 is gone",
                "reset: its worker could not be reached, after 2s 500ms of silence (vanished, by w-2)",
                "scheduled: not before this time",
                "claimed: attempt 2 of 3",
                "ended: completed after 3s 900ms",
                "completed: 9s after it was enqueued",
            ]
        );
        let reset = &entries[3];
        assert_eq!(
            (reset.token, reset.worker.as_deref(), reset.attempt),
            (Some(FencingToken(1)), Some("w-1"), None)
        );
        assert_eq!((entries[1].token, entries[1].attempt), (Some(FencingToken(1)), Some(1)));
    }

    #[test]
    fn a_redriven_job_was_dead_in_between_whether_or_not_it_has_run_again() {
        let failed = execution(1, 3, 10, Some((2_000, "failed", Some("no"))));
        let mut waiting = job(Status::Queued, 0);
        waiting.scheduled_at = at(60_000);
        let entries = merged(&waiting, std::slice::from_ref(&failed), &[], &[], seconds);
        let events: Vec<_> = entries.iter().map(|entry| entry.event.as_str()).collect();
        assert_eq!(events[..4], ["enqueued", "claimed", "ended", "dead"]);
        assert!(events[4..].contains(&"redriven") && entries.last().unwrap().at == at(60_000));

        let mut done = job(Status::Completed, 1);
        done.finished_at = Some(at(70_000));
        let again = execution(2, 1, 65_000, Some((70_000, "completed", None)));
        let entries = merged(&done, &[failed.clone(), again], &[], &[], seconds);
        let events: Vec<_> = entries.iter().map(|entry| entry.event.as_str()).collect();
        assert_eq!(
            events,
            ["enqueued", "claimed", "ended", "dead", "redriven", "claimed", "ended", "completed"]
        );
        // A job that is dead now was not redriven.
        let mut dead = job(Status::Failed, 3);
        (dead.finished_at, dead.last_error) = (Some(at(2_000)), Some("no".into()));
        let events = texts(&merged(&dead, &[failed], &[], &[], seconds));
        assert_eq!(events.last().unwrap(), "dead: 2s after it was enqueued");
        assert!(!events.iter().any(|event| event.starts_with("redriven")), "{events:?}");
        // A lost attempt that was charged: the job waits for the next one.
        let lost = execution(1, 1, 10, Some((2_000, "lost", None)));
        let events = texts(&merged(&job(Status::Queued, 1), std::slice::from_ref(&lost), &[], &[], seconds));
        assert!(!events.iter().any(|event| event.starts_with("redriven")), "{events:?}");
        let events = texts(&merged(&job(Status::Queued, 0), &[lost], &[], &[], seconds));
        assert!(events.iter().any(|event| event.starts_with("redriven")), "{events:?}");
    }

    #[test]
    fn a_job_that_never_ran_has_its_reason_and_no_span_is_negative() {
        let mut cancelled = job(Status::Cancelled, 0);
        (cancelled.finished_at, cancelled.last_error) = (Some(at(-500)), Some("never mind".into()));
        let events = texts(&merged(&cancelled, &[], &[], &[], seconds));
        assert_eq!(
            events,
            ["cancelled: 0s after it was enqueued: never mind", "enqueued: in queue q, of kind k"]
        );
        let backwards = execution(1, 1, 10, Some((5, "retried", None)));
        let events = texts(&merged(&job(Status::Queued, 1), &[backwards], &[], &[], seconds));
        assert!(events.contains(&"ended: retried after 0s".to_owned()), "{events:?}");
    }

    #[test]
    fn a_job_of_a_lane_was_released_by_it_unless_it_ended_there() {
        let mut job = job(Status::Queued, 0);
        (job.lane, job.scheduled_at) = (Some("org-7".into()), at(5_000));
        let last = |job: &JobRow| texts(&merged(job, &[], &[], &[], seconds)).pop().unwrap();
        assert_eq!(last(&job), "scheduled: released by its lane");
        job.is_held = true;
        assert_eq!(last(&job), "scheduled: not before this time");
        (job.is_held, job.status, job.finished_at) = (false, Status::Cancelled, Some(at(5_010)));
        assert_eq!(texts(&merged(&job, &[], &[], &[], seconds)).len(), 2, "enqueued and cancelled");
    }

    #[test]
    fn a_job_that_is_due_again_at_once_was_not_scheduled() {
        let mut lost = job(Status::Queued, 1);
        lost.scheduled_at = at(60_000);
        let events =
            texts(&merged(&lost, &[execution(1, 1, 10, Some((60_001, "lost", None)))], &[], &[], seconds));
        assert!(!events.iter().any(|event| event.starts_with("scheduled")), "{events:?}");
    }

    #[test]
    fn what_an_attempt_has_recorded_stands_between_its_claim_and_its_end() {
        let executions = [execution(1, 1, 10, Some((3_000, "snoozed", None)))];
        let steps = [
            examples::step("fetch", "step", Some(at(500)), at(2_000)),
            examples::step("charge", "effect", None, at(2_500)),
            examples::step("cool down", "sleep", Some(at(2_900)), at(2_900)),
        ];
        let entries = merged(&job(Status::Queued, 0), &executions, &[], &steps, seconds);
        assert_eq!(
            texts(&entries)[2..],
            [
                "step: fetch, in 1s 500ms",
                "effect: charge",
                "sleep: cool down: 1h",
                "ended: snoozed after 2s 990ms"
            ]
        );
        assert_eq!(entries[2].token, Some(FencingToken(1)));
    }

    #[test]
    fn a_job_that_runs_has_no_end_yet() {
        let events =
            texts(&merged(&job(Status::Processing, 1), &[execution(1, 1, 10, None)], &[], &[], seconds));
        assert_eq!(events, ["enqueued: in queue q, of kind k", "claimed: attempt 1 of 3"]);
    }
}
