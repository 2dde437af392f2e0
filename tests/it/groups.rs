//! Groups: a follower starts once, when all jobs before it have completed, in any order, though processes die.

mod messages;
mod settled;
mod troubles;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sqlx::Row;
use tenure::{
    EnqueueError, JobContext, JobError, JobId, JobRequest, KindOptions, Status, Tenure, Worker,
    groups::{OnFailure, WaitsFor},
    jobs::CancelOutcome,
    lanes::Lanes,
};

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, statement},
    scenarios::Step,
};

const SOON: Duration = Duration::from_secs(20);

fn job(kind: &str, payload: Value) -> JobRequest {
    JobRequest::new("q", kind, payload).max_attempts(1)
}

/// The worker of a process that is killed: its jobs take a few milliseconds. With these slots, two jobs share a message.
pub async fn fan(tenure: &Tenure) {
    let part = async |payload: Value, _: JobContext| {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok::<_, JobError>(payload["n"].clone())
    };
    let merge = async |_: Value, ctx: JobContext| {
        let outputs: Vec<u64> = ctx.outputs().await?;
        Ok::<_, JobError>(json!([outputs.len(), outputs.iter().sum::<u64>()]))
    };
    let options = KindOptions::new;
    let worker =
        Worker::builder(tenure).handle_kind("part", options(), part).handle_kind("merge", options(), merge);
    worker.concurrency("q", 128).run_until(tenure::shutdown_signal()).await.unwrap();
}

/// Runs `part`, which returns its payload's `n` (or fails, if that is 13), and `merge`, which returns what came before.
fn worker(tenure: &Tenure) -> Running {
    let part = async |payload: Value, _: JobContext| match payload["n"].as_i64() {
        Some(13) => Err(JobError::permanent("unlucky")),
        n => Ok(json!(n)),
    };
    let merge = async |_: Value, ctx: JobContext| {
        let outputs: Vec<Value> = ctx.outputs().await?;
        Ok::<_, JobError>(json!({"outputs": outputs, "failed": ctx.failed_before().await?.len()}))
    };
    let options = KindOptions::new;
    let worker =
        Worker::builder(tenure).handle_kind("part", options(), part).handle_kind("merge", options(), merge);
    Running::start(worker.concurrency("q", 16))
}

async fn status(bench: &Bench, id: JobId) -> String {
    bench.value(&format!("SELECT status FROM tenure.all_jobs WHERE id = '{id}'")).await
}

async fn until_status(bench: &Bench, id: JobId, status: &str) {
    bench
        .until(&format!("EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{id}' AND status = '{status}')"))
        .await;
}

async fn is_held(bench: &Bench, id: JobId) -> bool {
    bench.count(&format!("tenure.jobs WHERE id = '{id}' AND publish_at = '9999-01-01Z'")).await == 1
}

/// Works off the ends, as a worker does.
async fn release(bench: &Bench) -> usize {
    let rows = sqlx::query(statement("release_followers")).bind(1_000).fetch_all(&bench.pool).await.unwrap();
    rows.iter().filter(|row| row.get::<Option<JobId>, _>("id").is_some()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_starts_once_when_the_last_job_before_it_has_completed() {
    let bench = bench().await;
    let parts = (0..300).map(|n| job("part", json!({ "n": n % 13 })));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    assert_eq!((group.jobs.len(), group.jobs.last()), (301, Some(&group.id)));
    assert!(is_held(&bench, group.id).await);
    let waits = bench.tenure.waits_for(&[group.id]).await.unwrap();
    assert_eq!(waits, [(group.id, WaitsFor::Jobs { step: None, ended: 0, of: 300, lacking: 0 })]);
    let running = [worker(&bench.tenure), worker(&bench.tenure)];
    let row = bench.until_finished(group.id).await;
    assert_eq!((row.status, row.attempt), (Status::Completed, 1));
    // In the order in which they were added, not in that of their ends.
    let outputs: Vec<_> = (0..300).map(|n| n % 13).collect();
    assert_eq!(row.output, Some(json!({"outputs": outputs, "failed": 0})));
    let began = format!("tenure.job_executions_all WHERE job_id = '{}'", group.id);
    assert_eq!(bench.count(&began).await, 1);
    bench.until_count("tenure.group_ends", 0).await;
    assert_eq!(bench.count("tenure.job_edges WHERE state <> 'completed' OR state IS NULL").await, 0);
    bench.every_job_is_as_it_must_be().await;
    for worker in running {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_enqueued_whole_or_not_at_all() {
    let bench = bench().await;
    let (tenure, parts) = (&bench.tenure, || (0..3).map(|n| job("part", json!({ "n": n }))));
    let nothing = async || {
        for table in ["jobs", "followers", "job_edges", "job_keys"] {
            assert_eq!(bench.count(&format!("tenure.{table}")).await, 0, "{table}");
        }
    };
    let mut tx = bench.pool.begin().await.unwrap();
    tenure.group(parts()).then(job("merge", json!({}))).tx(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    nothing().await;
    // One that cannot be stored.
    let odd = parts().chain([JobRequest::from_json("q", "part", "{")]);
    let refused = tenure.group(odd).then(job("merge", json!({}))).await.unwrap_err();
    assert!(matches!(refused, EnqueueError::Payload(_)), "{refused}");
    let keyed = parts().map(|part| part.unique_key("k"));
    let refused = tenure.group(keyed).then(job("merge", json!({}))).await.unwrap_err();
    assert!(refused.to_string().contains("a second unique key"), "{refused}");
    let later = job("merge", json!({})).delay(SOON);
    let refused = tenure.group(parts()).then(later).await.unwrap_err();
    assert!(refused.to_string().starts_with("the time of a follower is 20s"), "{refused}");
    let graph = tenure.graph();
    let (first, last) = (graph.add(job("part", json!({}))), graph.add(job("part", json!({}))));
    drop(first.after([last]));
    let refused = graph.await.unwrap_err();
    assert!(refused.to_string().contains("added to the same graph earlier"), "{refused}");
    nothing().await;
    // A key of the follower is the group's.
    let keyed = || tenure.group(parts()).then(job("merge", json!({})).unique_key("k"));
    let first = keyed().await.unwrap();
    let again = keyed().await.unwrap();
    assert_eq!((again.id, again.duplicate, again.jobs.len()), (first.id, true, 0));
    assert_eq!(bench.count("tenure.jobs").await, 4);
    assert!(is_held(&bench, first.id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_group_and_a_graph_of_one_job_start_at_once() {
    let bench = bench().await;
    let running = worker(&bench.tenure);
    let none: [JobRequest; 0] = [];
    let alone = bench.tenure.group(none).then(job("merge", json!({}))).await.unwrap();
    assert_eq!(bench.until_finished(alone.id).await.status, Status::Completed);
    let graph = bench.tenure.graph();
    let one = graph.add(job("part", json!({"n": 1}))).id();
    assert_eq!(graph.await.unwrap().id, one);
    assert_eq!(bench.until_finished(one).await.status, Status::Completed);
    assert!(bench.tenure.group_of(one).await.unwrap().is_none());
    running.stop().await;
}

/// Two calls that settle the last two edges, each without the other's commit: neither sees the other's edge, and each has the
/// follower looked at again.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_last_jobs_that_end_at_once_one_releases_the_follower() {
    let bench = bench().await;
    let parts = (0..2).map(|n| job("part", json!({ "n": n })));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    let end = async |id: JobId| bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{id}'")).await;
    end(group.jobs[0]).await;
    let mut first = bench.pool.begin().await.unwrap();
    let released =
        sqlx::query(statement("release_followers")).bind(1_000).fetch_all(&mut *first).await.unwrap();
    assert!(released.iter().all(|row| row.get::<Option<JobId>, _>("id").is_none()));
    end(group.jobs[1]).await;
    assert_eq!((release(&bench).await, release(&bench).await), (0, 0));
    first.commit().await.unwrap();
    assert_eq!(release(&bench).await, 1);
    assert!(!is_held(&bench, group.id).await);
    assert_eq!(release(&bench).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_cancels_what_follows_and_a_redrive_resumes_the_graph() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let good = graph.add(job("part", json!({"n": 1})));
    let bad = graph.add(job("part", json!({"n": 13})));
    let merge = graph.add(job("merge", json!({}))).after([&good, &bad]);
    let last = graph.add(job("merge", json!({}))).after([&merge]);
    let nevertheless = graph.add(job("merge", json!({}))).after([&good, &bad]).on_failure(OnFailure::Run);
    let held = graph.add(job("merge", json!({}))).after([&bad]).on_failure(OnFailure::Hold);
    graph.await.unwrap();
    let running = worker(&bench.tenure);
    until_status(&bench, merge.id(), "cancelled").await;
    until_status(&bench, last.id(), "cancelled").await;
    let ran = bench.until_finished(nevertheless.id()).await;
    assert_eq!(ran.output, Some(json!({"outputs": [1], "failed": 1})));
    let why: String =
        bench.value(&format!("SELECT last_error FROM tenure.all_jobs WHERE id = '{}'", merge.id())).await;
    assert_eq!(why, format!("job {}, which it was to follow, has failed", bad.id()));
    assert!(is_held(&bench, held.id()).await);
    bench.until_count("tenure.group_ends", 0).await;
    bench.every_job_is_as_it_must_be().await;
    assert_eq!(bench.count("tenure.audit").await, 0, "what tenure does itself is no act");
    // The cause is mended, and the dead letter redriven.
    bench.execute("UPDATE tenure.dead_letter_jobs SET payload = '{\"n\": 2}'").await;
    assert_eq!(bench.tenure.retry(bad.id()).await.unwrap(), tenure::jobs::RetryOutcome::Redriven);
    for follower in [&merge, &last, &held] {
        bench.until_finished(follower.id()).await;
        until_status(&bench, follower.id(), "completed").await;
    }
    let merged = bench.until_finished(merge.id()).await;
    assert_eq!(merged.output, Some(json!({"outputs": [1, 2], "failed": 0})));
    // The one that had run did not run again.
    let runs = format!("tenure.job_executions_all WHERE job_id = '{}'", nevertheless.id());
    assert_eq!(bench.count(&runs).await, 1);
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_redriven_cancels_a_follower_that_holds() {
    let bench = bench().await;
    let group = async || {
        let group = bench.tenure.group([job("part", json!({"n": 13}))]).then(job("merge", json!({})));
        group.on_failure(OnFailure::Hold).await.unwrap()
    };
    // Cancelled.
    let first = group().await;
    assert_eq!(bench.tenure.cancel(first.jobs[0]).await.unwrap(), CancelOutcome::Cancelled);
    release(&bench).await;
    assert_eq!(status(&bench, first.id).await, "cancelled");
    // Dead, and purged.
    let second = group().await;
    let running = worker(&bench.tenure);
    until_status(&bench, second.jobs[0], "failed").await;
    bench.until_count("tenure.job_edges WHERE state = 'failed'", 1).await;
    running.stop().await;
    assert_eq!(bench.tenure.purge_dead_jobs(&second.jobs[..1]).await.unwrap(), 1);
    assert!(is_held(&bench, second.id).await);
    bench.execute("SELECT tenure.mend_groups('00000000-0000-0000-0000-000000000000', 10)").await;
    release(&bench).await;
    assert_eq!(status(&bench, second.id).await, "cancelled");
    let why: String =
        bench.value(&format!("SELECT last_error FROM tenure.all_jobs WHERE id = '{}'", second.id)).await;
    assert!(why.ends_with("was purged"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_no_trigger_noted_is_found() {
    let bench = bench().await;
    let group =
        bench.tenure.group([job("part", json!({"n": 1}))]).then(job("merge", json!({}))).await.unwrap();
    // As a program that knows no groups redrives it.
    bench.execute("UPDATE tenure.jobs SET group_id = NULL").await;
    let running = worker(&bench.tenure);
    until_status(&bench, group.jobs[0], "completed").await;
    assert!(is_held(&bench, group.id).await);
    // The worker looks every ten seconds.
    let row = bench.until_finished(group.id).await;
    assert_eq!(row.output, Some(json!({"outputs": [1], "failed": 0})));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cancelled_while_it_is_held_stays_cancelled() {
    let bench = bench().await;
    let parts = (0..3).map(|n| job("part", json!({ "n": n })));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    assert_eq!(bench.tenure.cancel(group.id).await.unwrap(), CancelOutcome::Cancelled);
    let running = worker(&bench.tenure);
    for member in &group.jobs[..3] {
        assert_eq!(bench.until_finished(*member).await.status, Status::Completed);
    }
    bench.until_count("tenure.group_ends", 0).await;
    assert_eq!(status(&bench, group.id).await, "cancelled");
    assert_eq!(bench.count("tenure.jobs").await, 0);
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

/// By each of the ways to cancel a job. The third follower shows what a redrive does without that.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_a_failure_and_then_a_person_has_cancelled_stays_cancelled() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let bad = graph.add(job("part", json!({"n": 13})));
    let merges: Vec<_> = (0..3).map(|_| graph.add(job("merge", json!({}))).after([&bad]).id()).collect();
    let bad = bad.id();
    graph.await.unwrap();
    let running = worker(&bench.tenure);
    for merge in &merges {
        until_status(&bench, *merge, "cancelled").await;
    }
    assert_eq!(
        bench.tenure.cancel(merges[0]).await.unwrap(),
        CancelOutcome::Finished { status: Status::Cancelled }
    );
    let said: String = bench.value(&format!("SELECT tenure.cancel('{}')", merges[1])).await;
    assert_eq!(said, "finished");
    // The person's cancellation; the failure's is no act.
    for (merge, acts) in merges.iter().zip([1, 1, 0]) {
        let noted = format!("tenure.audit WHERE act = 'cancel' AND subject = '{merge}'");
        assert_eq!(bench.count(&noted).await, acts);
    }
    bench.execute("UPDATE tenure.dead_letter_jobs SET payload = '{\"n\": 2}'").await;
    bench.tenure.retry(bad).await.unwrap();
    until_status(&bench, merges[2], "completed").await;
    bench.until_count("tenure.group_ends", 0).await;
    for merge in &merges[..2] {
        assert_eq!(status(&bench, *merge).await, "cancelled");
    }
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

/// The cancellation waits for the row of a follower that a failure is about to cancel, and finds it gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_cancels_a_follower_while_a_failure_does_is_heard() {
    let bench = bench().await;
    let id =
        bench.tenure.group([job("part", json!({"n": 13}))]).then(job("merge", json!({}))).await.unwrap().id;
    // As `release_followers` does.
    let mut cut = bench.pool.begin().await.unwrap();
    for sql in ["UPDATE tenure.followers SET cut_at = now() WHERE job_id = $1", "SELECT tenure.cancel($1)"] {
        sqlx::query(sql).bind(id).execute(&mut *cut).await.unwrap();
    }
    let tenure = bench.tenure.clone();
    let cancel = tokio::spawn(async move { tenure.cancel(id).await.unwrap() });
    bench.until("(SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()) = 1").await;
    cut.commit().await.unwrap();
    assert_eq!(cancel.await.unwrap(), CancelOutcome::Finished { status: Status::Cancelled });
    assert_eq!(bench.count("tenure.followers WHERE cut_at IS NOT NULL").await, 0);
}

/// The row of its end is seen, that of its return is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_comes_back_while_sql_cancels_it_is_cancelled() {
    let bench = bench().await;
    let group =
        bench.tenure.group([job("part", json!({"n": 1}))]).then(job("merge", json!({}))).await.unwrap();
    let id = group.id;
    for sql in ["UPDATE tenure.followers SET cut_at = now() WHERE job_id = $1", "SELECT tenure.cancel($1)"] {
        sqlx::query(sql).bind(id).execute(&bench.pool).await.unwrap();
    }
    bench.execute("DELETE FROM tenure.jobs WHERE kind = 'part'").await;
    let mut back = bench.pool.begin().await.unwrap();
    for _ in 0..3 {
        sqlx::query(statement("release_followers")).bind(1_000).fetch_all(&mut *back).await.unwrap();
    }
    let live = "SELECT count(*) FROM tenure.jobs WHERE kind = 'merge'";
    assert_eq!(sqlx::query_scalar::<_, i64>(live).fetch_one(&mut *back).await.unwrap(), 1);
    let pool = bench.pool.clone();
    let cancel = tokio::spawn(async move {
        sqlx::query_scalar::<_, String>("SELECT tenure.cancel($1)").bind(id).fetch_one(&pool).await.unwrap()
    });
    bench.until("(SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()) = 1").await;
    back.commit().await.unwrap();
    assert_eq!(cancel.await.unwrap(), "cancelled");
    assert_eq!(bench.count("tenure.jobs").await, 0);
}

/// Twenty thousand edges are open, and the lost end is the last one: each look sees the next five thousand.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_end_before_a_follower_of_many_is_found_by_looks_that_each_see_a_part() {
    let bench = bench().await;
    let group =
        bench.tenure.group([job("part", json!({"n": 1}))]).then(job("merge", json!({}))).await.unwrap();
    let (id, lost) = (group.id, group.jobs[0]);
    let edges = format!(
        "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, group_id)
         SELECT gen_random_uuid(), 'other', 'part', '1', 5, now(), now() + interval '1 h', group_id
           FROM tenure.followers, generate_series(1, 20000);
         INSERT INTO tenure.job_edges (before, after, group_id)
         SELECT j.id, '{id}', group_id FROM tenure.jobs j WHERE queue = 'other';
         UPDATE tenure.job_edges SET n = DEFAULT WHERE before = '{lost}';
         SET LOCAL session_replication_role = replica;
         DELETE FROM tenure.jobs WHERE id = '{lost}'"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(edges)).execute(&bench.pool).await.unwrap();
    let mend = "SELECT tenure.mend_groups('00000000-0000-0000-0000-000000000000', 200)";
    let noted = format!("tenure.group_ends WHERE job_id = '{lost}'");
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS off) {mend}");
    let mut looks = 0;
    while bench.count(&noted).await == 0 {
        looks += 1;
        assert!(looks <= 5, "it is not found");
        let plan: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(explain.clone())).fetch_all(&bench.pool).await.unwrap();
        let plan = plan.join("\n");
        let read = plan.split("shared hit=").nth(1).and_then(|read| read.split([' ', ')', ',', '\n']).next());
        // An edge costs some six; twenty thousand would cost 120,000.
        assert!(read.unwrap().parse::<u32>().unwrap() < 60_000, "look {looks}: {plan}");
    }
    assert_eq!(bench.count("tenure.group_ends").await, 1, "a live job has not ended");
    // After the last edge the first ones come again.
    let first = "FROM tenure.job_edges ORDER BY n LIMIT 1";
    let lost = format!(
        "SET LOCAL session_replication_role = replica;
         DELETE FROM tenure.jobs WHERE id = (SELECT before {first})"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(lost)).execute(&bench.pool).await.unwrap();
    bench.execute(mend).await;
    assert_eq!(bench.count(&format!("tenure.group_ends WHERE job_id = (SELECT before {first})")).await, 1);
    assert_eq!(bench.count("tenure.group_ends").await, 2);
}

/// Twenty followers of a thousand edges each: a look ends where it has seen enough, and the next one goes on there.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_followers_of_many_ends_sooner_and_leaves_none_out() {
    let bench = bench().await;
    let edges = "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, group_id)
         SELECT gen_random_uuid(), 'q', 'merge', '1', 5, '9999-01-01 00:00:00+00', '9999-01-01 00:00:00+00',
                gen_random_uuid() FROM generate_series(1, 20);
         INSERT INTO tenure.followers (job_id, group_id, on_failure) SELECT id, group_id, 'cancel' FROM tenure.jobs;
         INSERT INTO tenure.job_edges (before, after, group_id)
         SELECT gen_random_uuid(), f.job_id, f.group_id FROM tenure.followers f, generate_series(1, 1000);
         INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, group_id)
         SELECT before, 'q', 'part', '1', 5, now(), now() + interval '1 h', group_id FROM tenure.job_edges;
         SET LOCAL session_replication_role = replica;
         DELETE FROM tenure.jobs j USING tenure.job_edges d WHERE j.id = d.before AND d.n % 1000 = 0";
    sqlx::raw_sql(edges).execute(&bench.pool).await.unwrap();
    let (mut after, mut looks) = (Some(uuid::Uuid::nil()), 0);
    while let Some(follower) = after {
        looks += 1;
        let mend = "SELECT tenure.mend_groups($1, 200)";
        after = sqlx::query_scalar(mend).bind(follower).fetch_one(&bench.pool).await.unwrap();
    }
    // Five followers a look, and one that finds none.
    assert_eq!(looks, 5);
    assert_eq!(bench.count("tenure.group_ends").await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_a_group_reaches_each_of_its_jobs() {
    let bench = bench().await;
    let parts = (0..20).map(|n| job("part", json!({ "n": n })));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    let other = bench.tenure.enqueue(job("part", json!({}))).await.unwrap().id;
    let cancelled = bench.tenure.cancel_group(group.jobs[7]).await.unwrap();
    assert_eq!(cancelled.len(), 21);
    // The follower first: it is not released meanwhile.
    assert_eq!(cancelled[0].0, group.id);
    assert!(cancelled.iter().all(|(_, outcome)| *outcome == CancelOutcome::Cancelled), "{cancelled:?}");
    assert_eq!(status(&bench, other).await, "queued");
    while bench.count("tenure.group_ends").await > 0 {
        assert_eq!(release(&bench).await, 0);
    }
    assert_eq!(bench.count("tenure.jobs").await, 1);
}

/// Members that run are asked to stop, one that has completed stays as it is, and nothing starts afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn cancelling_a_group_reaches_members_that_run() {
    let bench = bench().await;
    let part = async |payload: Value, ctx: JobContext| {
        if payload["n"] == json!(0) {
            return Ok(json!(0));
        }
        ctx.cancelled().await;
        Err(JobError::msg("stopped"))
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("part", KindOptions::new().keepalive(), part);
    let running = Running::start(worker.concurrency("q", 3));
    let parts = (0..6).map(|n| job("part", json!({ "n": n })));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    bench.until_finished(group.jobs[0]).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 3).await;
    let cancelled = bench.tenure.cancel_group(group.jobs[5]).await.unwrap();
    let said = |of: fn(&CancelOutcome) -> bool| cancelled.iter().filter(|(_, outcome)| of(outcome)).count();
    // The follower and two members that waited; three that ran.
    assert_eq!(said(|outcome| *outcome == CancelOutcome::Cancelled), 3, "{cancelled:?}");
    assert_eq!(said(|outcome| matches!(outcome, CancelOutcome::Asked { .. })), 3, "{cancelled:?}");
    bench.until_count("tenure.jobs", 0).await;
    let ended = "SELECT status, count(*) FROM tenure.all_jobs GROUP BY 1 ORDER BY 1";
    assert_eq!(bench.text(ended).await, "(cancelled,6)\n(completed,1)");
    assert_eq!(bench.count("tenure.job_executions_all").await, 4);
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_runs_adds_members_once_under_its_fence() {
    let bench = bench().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let split = {
        let tries = tries.clone();
        move |_: Value, ctx: JobContext| {
            let tries = tries.clone();
            async move {
                let more = (10..12).map(|n| job("part", json!({ "n": n })));
                let ids = ctx.add_to_group("parts", more).await?;
                assert_eq!(ids.len(), 2);
                if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                    return Err(JobError::msg("once more"));
                }
                Ok(json!(0))
            }
        }
    };
    let alone = async |_: Value, ctx: JobContext| {
        ctx.add_to_group("parts", [job("part", json!({}))]).await?;
        Ok::<_, JobError>(json!(null))
    };
    let merge = async |_: Value, ctx: JobContext| Ok::<_, JobError>(json!(ctx.outputs::<Value>().await?));
    let part = async |payload: Value, _: JobContext| Ok::<_, JobError>(payload["n"].clone());
    let worker = Worker::builder(&bench.tenure)
        .handle_kind("split", KindOptions::new(), split)
        .handle_kind("alone", KindOptions::new(), alone)
        .handle_kind("part", KindOptions::new(), part)
        .handle_kind("merge", KindOptions::new(), merge);
    let running = Running::start(worker.concurrency("q", 4));
    let split = JobRequest::new("q", "split", json!({})).max_attempts(3);
    let group = bench.tenure.group([split]).then(job("merge", json!({}))).await.unwrap();
    assert_eq!(bench.until_finished(group.id).await.output, Some(json!([0, 10, 11])));
    let alone = bench.tenure.enqueue(job("alone", json!({}))).await.unwrap().id;
    let row = bench.until_finished(alone).await;
    assert!(row.last_error.unwrap().contains("in no group"));
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_step_end_before_it_returns_and_hold_no_slot_meanwhile() {
    let bench = bench().await;
    let parent = async |payload: Value, ctx: JobContext| {
        let none: Vec<Value> = ctx.all("none", [] as [JobRequest; 0]).await?;
        assert!(none.is_empty());
        let parts = payload["parts"].as_array().unwrap().iter().map(|n| job("part", json!({ "n": n })));
        let first: Vec<i64> = ctx.all("first", parts).await?;
        let more = first.iter().map(|n| job("part", json!({ "n": n + 100 })));
        let second: Vec<i64> = ctx.all("second", more).await?;
        Ok::<_, JobError>(json!([first, second, ctx.attempt()]))
    };
    let part = async |payload: Value, _: JobContext| match payload["n"].as_i64() {
        Some(13) => Err(JobError::permanent("unlucky")),
        n => Ok(json!(n)),
    };
    let worker = Worker::builder(&bench.tenure)
        .handle_kind("parent", KindOptions::new(), parent)
        .handle_kind("part", KindOptions::new(), part);
    // One slot: a parent that kept it would wait for ever.
    let running = Running::start(worker.concurrency("q", 1));
    let good = bench.tenure.enqueue(job("parent", json!({"parts": [3, 1, 2]}))).await.unwrap().id;
    let row = bench.until_finished(good).await;
    assert_eq!(row.output, Some(json!([[3, 1, 2], [103, 101, 102], 1])), "{:?}", row.last_error);
    let bad = bench.tenure.enqueue(job("parent", json!({"parts": [1, 13]}))).await.unwrap().id;
    let row = bench.until_finished(bad).await;
    let dead: JobId = bench.value("SELECT id FROM tenure.dead_letter_jobs WHERE kind = 'part'").await;
    let error = row.last_error.unwrap();
    assert!(error.starts_with("1 of 2 jobs of step \"first\" did not complete"), "{error}");
    assert!(error.contains(&dead.to_string()), "{error}");
    // The part is mended and redriven, and then the job that waited for it.
    bench.execute("UPDATE tenure.dead_letter_jobs SET payload = '{\"n\": 4}' WHERE kind = 'part'").await;
    bench.tenure.retry(dead).await.unwrap();
    until_status(&bench, dead, "completed").await;
    bench.until_count("tenure.group_ends", 0).await;
    bench.tenure.retry(bad).await.unwrap();
    let row = bench.until_finished(bad).await;
    assert_eq!(row.output, Some(json!([[1, 4], [101, 104], 1])), "{:?}", row.last_error);
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_between_an_end_and_its_release_leaves_no_follower_behind() {
    let bench = bench().await;
    let fault = ("TENURE_FAULT", "settled=kill".to_owned());
    let mut victim = Child::start_with(&bench, "worker", &[fault]);
    let member = Step::new(&bench, "report");
    let go = member.file("go");
    let group = bench.tenure.group([member]).then(job("merge", json!({}))).await.unwrap();
    // Its relay may look before it dies.
    let mut holds = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(group.id)
        .execute(&mut *holds)
        .await
        .unwrap();
    std::fs::write(go, "").unwrap();
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
    // What it had sent is over, too.
    bench.until_count("pg_stat_activity WHERE datname = current_database() AND query LIKE '%release_followers%' AND state = 'active' AND pid <> pg_backend_pid()", 0).await;
    holds.rollback().await.unwrap();
    assert!(is_held(&bench, group.id).await);
    let running = worker(&bench.tenure);
    assert_eq!(bench.until_finished(group.id).await.status, Status::Completed, "{}", victim.log());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_in_a_queue_with_lanes_waits_for_its_lane_too() {
    for lanes in [Lanes::new().running(1), Lanes::new().ordered()] {
        let bench = bench().await;
        bench.tenure.put_lanes("q", lanes).await.unwrap();
        let blocks = bench.tenure.enqueue(job("waits", json!({})).lane("a")).await.unwrap().id;
        let (gate, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
        let waits = {
            let (gate, go) = (gate.clone(), go.clone());
            move |_: Value, _: JobContext| {
                let (gate, go) = (gate.clone(), go.clone());
                async move {
                    gate.notify_one();
                    go.notified().await;
                    Ok::<_, JobError>(json!("went"))
                }
            }
        };
        let blocker =
            Worker::builder(&bench.tenure).handle_kind("waits", KindOptions::new().keepalive(), waits);
        let blocker = Running::start(blocker.concurrency("q", 1));
        gate.notified().await;
        assert_eq!(status(&bench, blocks).await, "processing");
        let parts = (0..3).map(|n| job("part", json!({ "n": n })).lane(format!("part {n}")));
        let group = bench.tenure.group(parts).then(job("merge", json!({})).lane("a")).await.unwrap();
        let running = worker(&bench.tenure);
        // Its members have ended, and it waits in its lane.
        bench
            .until_count(&format!("tenure.lane_jobs WHERE job_id = '{}' AND due_at <= now()", group.id), 1)
            .await;
        bench.execute("SELECT tenure.tend_lanes(10, true)").await;
        assert_eq!(bench.count(&format!("tenure.lane_jobs WHERE job_id = '{}'", group.id)).await, 1);
        assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
        go.notify_one();
        let row = bench.until_finished(group.id).await;
        assert_eq!(row.output, Some(json!({"outputs": [0, 1, 2], "failed": 0})));
        blocker.stop().await;
        // A held one does not keep back one that comes later.
        let parts = (0..3).map(|n| job("part", json!({ "n": n })).lane("a"));
        let group = bench.tenure.group(parts).then(job("merge", json!({})).lane("a")).await.unwrap();
        let later = bench.tenure.enqueue(job("part", json!({"n": 7})).lane("a")).await.unwrap().id;
        assert_eq!(bench.until_finished(later).await.status, Status::Completed);
        let row = bench.until_finished(group.id).await;
        assert_eq!(row.output, Some(json!({"outputs": [0, 1, 2], "failed": 0})));
        bench.until_count("tenure.lane_jobs", 0).await;
        assert_eq!(bench.count("tenure.lane_wakes WHERE at > now() + interval '1 day'").await, 0);
        bench.every_job_is_as_it_must_be().await;
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_crosses_queues_and_shows_what_it_is() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let first = graph.add(JobRequest::new("q", "part", json!({"n": 5})));
    let second = graph.add(JobRequest::new("other", "merge", json!({}))).after([&first]);
    graph.await.unwrap();
    let view = bench.tenure.group_of(second.id()).await.unwrap().unwrap();
    let shown: Vec<_> = view.jobs.iter().map(|job| (job.id, job.queue.as_str(), job.is_held)).collect();
    assert_eq!(shown, [(first.id(), "q", false), (second.id(), "other", true)]);
    assert_eq!((view.edges[0].before, view.edges[0].after, view.is_cut), (first.id(), second.id(), false));
    let merge = async |_: Value, ctx: JobContext| Ok::<_, JobError>(json!(ctx.outputs::<Value>().await?));
    let other = Worker::builder(&bench.tenure).handle_kind("merge", KindOptions::new(), merge);
    let running = [worker(&bench.tenure), Running::start(other.concurrency("other", 1))];
    assert_eq!(bench.until_finished(second.id()).await.output, Some(json!([5])));
    let view = bench.tenure.group_of(first.id()).await.unwrap().unwrap();
    assert!(view.jobs.iter().all(|job| job.status == Some(Status::Completed)), "{view:?}");
    assert_eq!(view.edges[0].state.as_deref(), Some("completed"));
    for worker in running {
        worker.stop().await;
    }
}

/// What a follower may still read outlives the rows of those before it, and goes with the follower.
#[tokio::test(flavor = "multi_thread")]
async fn outputs_stay_until_the_follower_is_gone() {
    let bench = bench_with(|config| config.timing.relay_every = Duration::from_millis(50)).await;
    let parts = (0..2).map(|n| job("part", json!({ "n": n })));
    let late = JobRequest::new("q", "part", json!({"n": 9})).delay(Duration::from_secs(3_600));
    let group = bench.tenure.group(parts.chain([late])).then(job("merge", json!({}))).await.unwrap();
    let running = worker(&bench.tenure);
    bench.until_count("tenure.job_edges WHERE state = 'completed'", 2).await;
    // Retention removes them.
    bench.execute("DELETE FROM tenure.job_history").await;
    bench.execute("DELETE FROM tenure.job_executions").await;
    bench.execute("SELECT tenure.sweep_groups('00000000-0000-0000-0000-000000000000', 10)").await;
    bench.execute("SELECT tenure.mend_groups('00000000-0000-0000-0000-000000000000', 10)").await;
    bench.tenure.retry(group.jobs[2]).await.unwrap();
    let row = bench.until_finished(group.id).await;
    assert_eq!(row.output, Some(json!({"outputs": [0, 1, 9], "failed": 0})));
    running.stop().await;
    bench.execute("DELETE FROM tenure.job_history").await;
    bench.execute("SELECT tenure.sweep_groups('00000000-0000-0000-0000-000000000000', 10)").await;
    assert_eq!((bench.count("tenure.followers").await, bench.count("tenure.job_edges").await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_draws_a_group_signals_and_cancels_it() {
    let bench = bench().await;
    let parts = (0..3).map(|n| job("part", json!({ "n": n })).delay(Duration::from_secs(3_600)));
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    let id = group.id.to_string();
    let run = async |arguments: &[&str]| {
        let output = bench.program(arguments).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (code, drawn) = run(&["jobs", "graph", &group.jobs[1].to_string()]).await;
    let last = drawn.lines().find(|line| line.contains(&id)).unwrap();
    assert_eq!(code, Some(0), "{drawn}");
    assert!(
        last.trim_start().starts_with('4') && last.contains("held") && last.trim_end().ends_with("1 to 3"),
        "{drawn}"
    );
    assert!(drawn.ends_with("0 of 4 jobs have ended\n"), "{drawn}");
    let (_, shown) = run(&["jobs", "show", &id]).await;
    assert!(shown.contains("waits for the jobs before it: 0 of 3 have ended"), "{shown}");
    let (code, said) = run(&["jobs", "signal", &id, "go", "{\"by\": 1}"]).await;
    assert_eq!((code, said), (Some(0), format!("{id} has the event \"go\"\n")));
    let (code, said) = run(&["jobs", "signal", &id, "go", "text"]).await;
    assert!(code == Some(2) && said.contains("the payload is not JSON"), "{said}");
    let (code, said) = run(&["jobs", "cancel", "--group", &id]).await;
    assert!(code == Some(0) && said.lines().count() == 4, "{said}");
    assert!(said.starts_with(&format!("{id} is cancelled")), "{said}");
    let (code, said) = run(&["jobs", "signal", &id, "go"]).await;
    assert_eq!((code, said), (Some(1), format!("{id} has ended\n")));
    let alone = bench.tenure.enqueue(job("part", json!({}))).await.unwrap().id.to_string();
    let (code, said) = run(&["jobs", "graph", &alone]).await;
    assert!(code == Some(1) && said.contains("is in no group"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn to_watch_a_follower_shows_how_far_its_group_is() {
    let bench = bench().await;
    let slow = job("part", json!({"n": 2})).delay(Duration::from_secs(3));
    let group =
        bench.tenure.group([job("part", json!({"n": 1})), slow]).then(job("merge", json!({}))).await.unwrap();
    let id = group.id.to_string();
    let mut watch = bench.program(&["jobs", "watch", &id]);
    let watched = async { watch.output().await.unwrap() };
    let runs = async { worker(&bench.tenure) };
    let (watched, running) = tokio::join!(watched, runs);
    let said = String::from_utf8(watched.stdout).unwrap();
    assert!(said.contains("waits for the jobs before it: 1 of 2 have ended\n"), "{said}");
    assert!(said.lines().last().unwrap().contains("completed"), "{said}");
    running.stop().await;
}

/// `make trials` sets `KILLS=100 MEMBERS=10000`, which is the whole drill.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_thousands_runs_once_though_workers_are_killed_again_and_again() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (kills, members) = (number("KILLS", 8), number("MEMBERS", 1_500));
    let bench = bench().await;
    let part = |n| job("part", json!({ "n": n })).max_attempts(100);
    let graph = bench.tenure.graph();
    let first = graph.add(part(0));
    let mut parts: Vec<_> = (1..members).map(|n| graph.add(part(n)).after([&first])).collect();
    parts.push(first);
    drop(graph.add(job("merge", json!({})).max_attempts(100)).after(&parts));
    let group = graph.await.unwrap();
    let ended = format!("tenure.job_edges WHERE after = '{}' AND state IS NOT NULL", group.id);
    let mut log = String::new();
    for n in 1..=kills {
        let mut worker = Child::start(&bench, "fan");
        // In the middle of the work, each time a little later; the last at the last member, before or after the follower begins.
        let due = i64::try_from(members * n / kills).unwrap();
        while bench.count(&ended).await < due {
            // Losses in a row back off: the drill is not about that.
            bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now() WHERE losses > 1 AND publish_at > now() AND publish_at < '9999-01-01Z'").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        worker.kill().await;
        log = worker.log();
    }
    let last = Child::start(&bench, "fan");
    bench
        .until_within(&format!("EXISTS (SELECT FROM tenure.job_history WHERE id = '{}')", group.id), SOON * 6)
        .await;
    let row = bench.until_finished(group.id).await;
    assert_eq!(row.output, Some(json!([members, members * (members - 1) / 2])), "{log}\n{}", last.log());
    // But for attempts whose worker was killed, it has run once.
    let ran = format!("tenure.job_executions_all WHERE job_id = '{}' AND outcome <> 'lost'", group.id);
    assert_eq!(bench.count(&ran).await, 1);
    bench.until_count("tenure.jobs", 0).await;
    bench.until_count("tenure.group_ends", 0).await;
    bench.every_job_is_as_it_must_be().await;
    let lost = bench.count("tenure.job_executions WHERE outcome = 'lost'").await;
    println!("{kills} kills, {lost} attempts lost, {members} members");
}
