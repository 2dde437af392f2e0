//! Rows for the program's tests, which cannot build them: rows are non-exhaustive.

use chrono::{DateTime, Utc};

use crate::{
    FencingToken, JobId, Status,
    doctor::{Check, CheckState},
    groups::{GroupEdge, GroupJob, GroupView},
    rows::{ExecutionRow, HeldFor, JobRow, RecoveryRow, StepRow},
};

/// Returns a queued job, enqueued and due at `at`.
pub fn job(at: DateTime<Utc>) -> JobRow {
    JobRow {
        id: JobId::generate(),
        queue: "q".into(),
        kind: "k".into(),
        payload: None,
        payload_json: None,
        status: Status::Queued,
        attempt: 0,
        max_attempts: 3,
        fencing_token: FencingToken(0),
        worker_id: None,
        created_at: at,
        scheduled_at: at,
        started_at: None,
        last_activity_at: None,
        finished_at: None,
        stage: None,
        progress: None,
        message: None,
        output: None,
        output_json: None,
        last_error: None,
        lane: None,
        priority: None,
        not_after: None,
        is_held: false,
        tags: Vec::new(),
    }
}

/// Returns for what a job of the lane `org-7`, due at `at`, waits: nothing.
pub fn held_for(at: DateTime<Utc>) -> HeldFor {
    HeldFor {
        job: JobId::generate(),
        queue: "q".into(),
        lane: "org-7".into(),
        due_at: at,
        is_later: false,
        most: None,
        slots: 0,
        rate: None,
        tokens: None,
        queue_rate: None,
        queue_tokens: None,
        turns: false,
        ordered: false,
        paused: false,
        before: 0,
    }
}

/// Returns an attempt that has been running since `at`.
pub fn execution(fencing_token: i64, attempt: u32, at: DateTime<Utc>) -> ExecutionRow {
    ExecutionRow {
        fencing_token: FencingToken(fencing_token),
        attempt,
        worker_id: format!("w-{fencing_token}"),
        started_at: at,
        finished_at: None,
        outcome: None,
        error: None,
    }
}

/// Returns what an attempt has recorded at `at`.
pub fn step(name: &str, step: &str, began_at: Option<DateTime<Utc>>, at: DateTime<Utc>) -> StepRow {
    StepRow {
        name: name.into(),
        step: step.into(),
        fencing_token: FencingToken(1),
        began_at,
        recorded_at: at,
        wakes_at: (step == "sleep").then(|| at + chrono::TimeDelta::hours(1)),
    }
}

/// Returns the reset, at `at`, of a job whose worker was gone.
pub fn reset(at: DateTime<Utc>) -> RecoveryRow {
    RecoveryRow {
        at,
        event: "reset".into(),
        path: "vanished".into(),
        fencing_token: FencingToken(1),
        owner_before: Some("w-1".into()),
        silence_s: Some(2.5),
        reason: "its worker could not be reached".into(),
        recovered_by: "w-2".into(),
    }
}

/// Returns a finding of `doctor` about queue `q`.
pub fn check(check: &'static str, state: CheckState, found: &str) -> Check {
    Check { check, queue: Some("q".into()), state, found: found.into(), to_do: None }
}

/// Returns a group of jobs with these edges, by their places, in the order of their places.
pub fn group(ids: &[JobId], edges: &[(usize, usize)], status: impl Fn(usize) -> Status) -> GroupView {
    let job = |(place, id): (usize, &JobId)| GroupJob {
        id: *id,
        queue: "q".into(),
        kind: "kind".into(),
        status: Some(status(place)),
        progress: None,
        is_held: false,
    };
    let edge = |(before, after): &(usize, usize)| GroupEdge {
        before: ids[*before],
        after: ids[*after],
        step: None,
        state: None,
    };
    GroupView {
        jobs: ids.iter().enumerate().map(job).collect(),
        edges: edges.iter().map(edge).collect(),
        is_cut: false,
    }
}
