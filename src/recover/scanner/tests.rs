//! Scanner: one scan, also in a grace, and beside a job that Postgres refuses to write.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::json;

use super::*;
use crate::{
    JobRequest,
    proof::{Logs, Place, place, seconds},
    schedules::{Overlap, Schedule},
};

async fn scan_if_due(place: &Place) -> Option<usize> {
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    scan(store, nats, &Memory::default(), "me", seconds(30), seconds(300), &Hooks::default()).await.unwrap()
}

async fn scan_now(place: &Place) -> Option<usize> {
    place.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '31 s'").await;
    scan_if_due(place).await
}

async fn silent_jobs(place: &Place, n: usize) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for _ in 0..n {
        let job = place.claimed_by("dead").await.key.job;
        place.make_stale(job).await;
        jobs.push(job);
    }
    jobs
}

#[tokio::test]
async fn a_scan_resets_stale_jobs_when_it_is_due() {
    let place = place().await;
    assert_eq!(scan_now(&place).await, Some(0));
    assert_eq!(scan_if_due(&place).await, None);
    silent_jobs(&place, 2).await;
    place.claimed_by("alive").await;
    assert_eq!(scan_now(&place).await, Some(2));
    assert_eq!(place.value("SELECT count(*) FROM tenure.jobs WHERE status = 'queued'").await, "2");
}

/// Another table may have the name of a partition, for example.
#[tokio::test]
async fn days_that_cannot_be_made_ahead_keep_no_queue_from_being_counted() {
    let place = place().await;
    place.execute("ALTER FUNCTION tenure.create_history_partitions RENAME TO hidden").await;
    place.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '31 s'").await;
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    let (memory, hooks) = (Memory::default(), Hooks::default());
    let scanned = scan(store, nats, &memory, "me", seconds(30), seconds(300), &hooks).await;
    assert!(scanned.is_err(), "another worker may make them");
    assert_ne!(place.value("SELECT measured_at FROM tenure.scanner_state").await, "");
}

#[tokio::test]
async fn a_scan_in_a_grace_or_with_an_open_breaker_resets_nothing_and_counts_the_queues() {
    let place = place().await;
    place.execute("UPDATE tenure.scanner_state SET grace_until = now() + interval '1 h'").await;
    let measured_at = "SELECT measured_at FROM tenure.scanner_state";
    assert_eq!(scan_now(&place).await, Some(0));
    let first = place.value(measured_at).await;
    assert_ne!(first, "");
    silent_jobs(&place, 1).await;
    assert_eq!(scan_now(&place).await, Some(0));
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "processing");
    let second = place.value(measured_at).await;
    assert_ne!(second, first, "an incident is when its numbers are wanted");
    place.execute("UPDATE tenure.scanner_state SET grace_until = NULL").await;
    silent_jobs(&place, 21).await;
    assert_eq!(scan_now(&place).await, Some(0));
    assert_eq!(place.value("SELECT breaker_since IS NOT NULL FROM tenure.scanner_state").await, "true");
    assert_eq!(place.value("SELECT count(*) FROM tenure.jobs WHERE status = 'processing'").await, "22");
    assert_ne!(place.value(measured_at).await, second);
}

/// What a clock left behind that has stepped back by an hour since: nothing waits for that hour, and live owners get
/// their grace.
#[tokio::test]
async fn times_of_a_clock_that_was_an_hour_ahead_stop_no_scan_and_keep_no_job() {
    let place = place().await;
    let later = "now() + interval '1 h'";
    silent_jobs(&place, 1).await;
    place.execute(&format!("UPDATE tenure.jobs SET last_activity_at = {later}")).await;
    place.execute(&format!("UPDATE tenure.scanner_state SET last_scan_at = {later}")).await;
    assert_eq!(scan_if_due(&place).await, Some(0), "a scan in the future is a gap: a grace begins");
    assert_eq!(scan_if_due(&place).await, None);
    let grace = "SELECT grace_until BETWEEN now() + interval '290 s' AND now() + interval '300 s' FROM tenure.scanner_state";
    assert_eq!(place.value(grace).await, "true");
    place.execute(&format!("UPDATE tenure.scanner_state SET grace_until = {later}")).await;
    assert_eq!(scan_now(&place).await, Some(0));
    assert_eq!(place.value(grace).await, "true", "at most stale_after from now");
    place.execute("UPDATE tenure.scanner_state SET grace_until = NULL").await;
    assert_eq!(scan_now(&place).await, Some(0), "its owner gets stale_after from the step on");
    place.execute(&format!("UPDATE tenure.jobs SET last_activity_at = {later}")).await;
    assert_eq!(scan_now(&place).await, Some(1), "its owner has had its grace");
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "queued");
    // A breaker opens at the latest now, so that it closes.
    place.execute(&format!("UPDATE tenure.scanner_state SET breaker_since = {later}")).await;
    silent_jobs(&place, 21).await;
    assert_eq!(scan_now(&place).await, Some(0));
    assert_eq!(place.value("SELECT breaker_since <= now() FROM tenure.scanner_state").await, "true");
}

/// Every column with a time stands in the list, and only those.
#[tokio::test]
async fn every_stored_time_stands_once_in_the_list() {
    let place = place().await;
    let differs = "WITH listed AS (SELECT relation, name FROM tenure.stored_times()), found AS (
            SELECT c.relname::text, a.attname::text
              FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
             WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
               AND c.relname NOT IN ('migrations', 'functions') AND a.atttypid = 'timestamptz'::regtype AND a.attnum > 0 AND NOT a.attisdropped)
        SELECT string_agg(o::text, ', ') FROM (
            (TABLE listed EXCEPT ALL TABLE found) UNION ALL (TABLE found EXCEPT ALL TABLE listed)) o";
    assert_eq!(place.value(differs).await, "");
}

/// Each time an hour ahead, and an hour ago: after a scan none that tenure keeps lies further ahead than it may.
#[tokio::test]
async fn no_stored_time_lies_further_ahead_than_it_may_once_the_clock_has_stepped_back() {
    let place = place().await;
    place.claimed_by("alive").await;
    let sleeps = place.claimed_by("alive").await.key.job;
    for sql in [
        "INSERT INTO tenure.lanes (queue, lane, next_at, refilled_at) VALUES ('q', 'a', now(), now())".to_owned(),
        "INSERT INTO tenure.lane_wakes (at, queue, lane) VALUES (now(), 'q', 'a')".to_owned(),
        "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, suspected_at, probed_at)
         VALUES ('alive', 'h', 1, '{q}', 1, '', now(), now())".to_owned(),
        format!("UPDATE tenure.jobs SET status = 'queued', claim_id = NULL, worker_id = NULL, worker_host = NULL, stale_after = NULL,
                 last_activity_at = NULL, started_at = NULL, publish_at = now() + interval '20 s',
                 scheduled_at = now() + interval '20 s', published_at = NULL WHERE id = '{sleeps}'"),
        format!("INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at, finished_at, outcome)
                 VALUES ('{sleeps}', 1, 1, gen_random_uuid(), 'alive', now(), now(), 'retried')"),
        format!("INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, began_at, wakes_at)
                 VALUES ('{sleeps}', 'nap', 1, 'null', 'sleep', now(), now() + interval '20 s')"),
        "INSERT INTO tenure.lane_settings (queue, rate, burst, turns, ordered, tokens, refilled_at)
         VALUES ('laned', 1, 1, false, false, 0, now())".to_owned(),
        "WITH r AS (INSERT INTO tenure.redrives (selection, canary, stop_at, jobs) VALUES ('{}', 1, 0.5, 1) RETURNING id)
         INSERT INTO tenure.redrive_jobs (redrive_id, place, job_id, redriven_at, outcome, ended_at)
         SELECT id, 1, gen_random_uuid(), now(), 'completed', now() FROM r".to_owned(),
        "INSERT INTO tenure.quarantines (kind, share, attempts, within, probe_every, next_probe_at, called_at)
         VALUES ('k', 0.5, 1, '1 m', '1 m', now(), now())".to_owned(),
        "INSERT INTO tenure.job_edges (before, after, group_id, state, ended_at)
         VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'completed', now())".to_owned(),
        "INSERT INTO tenure.group_ends (job_id, ended_as, rests_until) VALUES (gen_random_uuid(), 'settled', now())".to_owned(),
        "UPDATE tenure.jobs SET put_off_since = now() WHERE status = 'queued'".to_owned(),
    ] {
        place.execute(&sql).await;
    }
    let times = "SELECT string_agg(relation || ' ' || name, ',') FROM tenure.stored_times()";
    let times: Vec<_> = place.value(times).await.split(',').map(str::to_owned).collect();
    scan_now(&place).await;
    for sql in [
        "INSERT INTO tenure.queue_stats (queue, due, scheduled, processing, submitted_until, standing_until)
         VALUES ('none', 0, 0, 0, now(), now())",
        "UPDATE tenure.scanner_state SET measured_at = now(), stream_measured_at = now(), purged_at = now(),
                stream_until = now(), unserved_until = now(), findings_until = now(), measuring_until = now()",
        "UPDATE tenure.looks_from SET at = now()",
        "UPDATE tenure.jobs SET published_at = now() WHERE status = 'processing'",
    ] {
        place.execute(sql).await;
    }
    let mut empty = Vec::new();
    for time in &times {
        let (table, column) = time.split_once(' ').unwrap();
        let bounded = format!(
            "SELECT ahead IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.{table} WHERE {column} IS NOT NULL)
               FROM tenure.stored_times() WHERE (relation, name) = ('{table}', '{column}')"
        );
        if place.value(&bounded).await == "true" {
            empty.push(time);
        }
    }
    assert!(empty.is_empty(), "no row has these times: {empty:?}");
    for by in ["+ interval '1 h'", "- interval '1 h'"] {
        for time in &times {
            let (table, column) = time.split_once(' ').unwrap();
            place.execute(&format!("UPDATE tenure.{table} SET {column} = {column} {by}")).await;
        }
        scan_if_due(&place).await;
        for time in &times {
            let (table, column) = time.split_once(' ').unwrap();
            let ahead = format!(
                "SELECT count(*) FROM tenure.{table}, tenure.stored_times() t
                  WHERE (t.relation, t.name) = ('{table}', '{column}')
                    AND {table}.{column} > clock_timestamp() + t.ahead"
            );
            assert_eq!(place.value(&ahead).await, "0", "{time} {by}");
        }
        for pause in
            ["scheduled_at FROM tenure.jobs WHERE publish_at = scheduled_at", "wakes_at FROM tenure.effects"]
        {
            let left = format!(
                "SELECT coalesce(max(at), now()) <= now() + interval '20 s' FROM (SELECT {pause}) p (at)"
            );
            assert_eq!(place.value(&left).await, "true", "{pause} {by}: a pause keeps its length");
        }
    }
}

/// Before the step: a retry's pause, a hand-back to the relay, and schedules whose next tick lies an hour ahead, one of
/// which is locked. After it: a delay that a caller has chosen.
#[tokio::test]
async fn a_step_back_of_the_clock_is_followed_once_until_it_is_done_and_spares_what_came_after_it() {
    let place = place().await;
    let store = place.tenure.store();
    let [pauses, handed_back, chosen] = [place.job().await, place.job().await, place.job().await];
    for name in ["waits", "locked"] {
        let every_minute = Schedule::new(name, "* * * * *", JobRequest::new("q", "k", json!(1)));
        place.tenure.put_schedule(every_minute.overlap(Overlap::Queue)).await.unwrap();
    }
    let due = |job: JobId, created: &str, scheduled: &str, publish: &str| {
        format!(
            "UPDATE tenure.jobs SET created_at = now() + interval '{created}', published_at = NULL,
                    scheduled_at = now() + interval '{scheduled}', publish_at = now() + interval '{publish}'
              WHERE id = '{job}'"
        )
    };
    for sql in [
        due(pauses, "59 min", "61 min", "61 min"),
        format!(
            "INSERT INTO tenure.job_executions
                    (job_id, fencing_token, attempt, claim_id, worker_id, started_at, finished_at, outcome)
             SELECT '{pauses}', fencing_token, 1, gen_random_uuid(), 'w', now(), now() + interval '60 min', 'retried'
               FROM tenure.jobs WHERE id = '{pauses}'"
        ),
        due(handed_back, "-3 h", "-2 h", "55 min"),
        due(chosen, "-1 s", "10 min", "10 min"),
        format!(
            "UPDATE tenure.schedules SET next_at = now() + interval '1 h', last_tick_at = now() - interval '1 day',
                    last_job_id = '{chosen}'"
        ),
        "UPDATE tenure.scanner_state SET last_scan_at = now() + interval '60 min'".into(),
    ] {
        place.execute(&sql).await;
    }
    let moved = |name: &str| {
        format!("SELECT next_at < now() + interval '2 min' FROM tenure.schedules WHERE name = '{name}'")
    };
    let mut open = place.pool.begin().await.unwrap();
    let lock = "SELECT FROM tenure.schedules WHERE name = 'locked' FOR UPDATE";
    sqlx::query(lock).execute(&mut *open).await.unwrap();
    // The tries of other tests count, too. At the last one, the schedule that stays locked keeps the jobs from nothing.
    let mut tries = 0;
    while scan_if_due(&place).await.is_none() {
        tries += 1;
        assert!(tries < 20 * FOLLOWED_TRIES, "it tries for ever");
        assert_eq!(place.value(&moved("waits")).await, "true", "although its last job lives");
        assert_eq!(place.value("SELECT last_scan_at > now() FROM tenure.scanner_state").await, "true");
    }
    assert_eq!(place.value(&moved("locked")).await, "false");
    open.rollback().await.unwrap();
    // Another worker that has found the same step comes later.
    store.follow_clock().await.unwrap();
    for (job, from, to) in
        [(pauses, "50 s", "61 s"), (handed_back, "-1 min", "0 s"), (chosen, "9 min", "10 min")]
    {
        let lies = format!(
            "SELECT publish_at BETWEEN now() + interval '{from}' AND now() + interval '{to}' FROM tenure.jobs
              WHERE id = '{job}'"
        );
        assert_eq!(place.value(&lies).await, "true", "from {from} to {to}");
    }
}

#[tokio::test]
async fn turns_of_a_worker_that_has_stopped_or_whose_clock_was_ahead_are_free() {
    let place = place().await;
    let store = place.tenure.store();
    let turn = ["scan"];
    let take = async |worker: &str| store.take_turns(&turn, worker, seconds(10)).await.unwrap().taken.len();
    assert_eq!((take("one").await, take("other").await), (1, 0));
    store.leave_turns("one").await.unwrap();
    // Another clock, an hour behind, sees the turn as free, too.
    assert_eq!(
        place.value("SELECT until < now() - interval '1 h' FROM tenure.turns WHERE turn = 'scan'").await,
        "true"
    );
    assert_eq!(take("other").await, 1);
    place.execute("UPDATE tenure.turns SET until = now() + interval '1 h' WHERE turn = 'scan'").await;
    assert_eq!(take("one").await, 1);
}

#[tokio::test]
async fn a_job_that_postgres_refuses_to_write_keeps_no_other_from_being_reset() {
    let place = place().await;
    let jobs = silent_jobs(&place, 5).await;
    place.refuses(jobs[3]).await;
    let logs = Logs::default();
    let _listening = logs.record();
    let mut reset = 0;
    // A refused transaction unlocks its rows a moment after its answer: meanwhile a reset skips them.
    let began = std::time::Instant::now();
    let refused = || logs.of("Postgres refused to reset a stale job");
    while (reset < 4 || refused() == 0) && began.elapsed() < seconds(20) {
        reset += reset_some(place.tenure.store(), &jobs, "me", &Hooks::default()).await.unwrap();
    }
    reset += reset_some(place.tenure.store(), &jobs, "me", &Hooks::default()).await.unwrap();
    assert_eq!(reset, 4);
    assert!(refused() > 0);
    let left =
        place.value("SELECT string_agg(id::text, ' ') FROM tenure.jobs WHERE status = 'processing'").await;
    assert_eq!(left, jobs[3].to_string());
    // A statement that fails as a whole is not tried for each job.
    place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    reset_some(place.tenure.store(), &jobs, "me", &Hooks::default()).await.unwrap_err();
}
