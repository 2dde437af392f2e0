//! What stands between a follower and its start: redrives, cancellations, people, other keys, other locks.

use tenure::{OnExpiry, jobs::RetryOutcome, queues::QueueLimits};
use tokio::sync::Barrier;

use super::*;
use crate::queues;

async fn mended(bench: &Bench) {
    bench.execute("UPDATE tenure.dead_letter_jobs SET payload = '{\"n\": 2}'").await;
}

/// Somebody's constraint refuses the row of one follower, which is ready: the notes of all others wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_postgres_refuses_to_write_keeps_back_no_other_and_doctor_names_it() {
    let bench = bench().await;
    let group = async |n: i64| {
        let part = job("part", json!({ "n": n })).delay(Duration::from_secs(3_600));
        bench.tenure.group([part]).then(job("merge", json!({}))).await.unwrap()
    };
    let (refused, others) = (group(1).await, [group(2).await, group(3).await]);
    bench.refuse("UPDATE ON tenure.jobs", &format!("NEW.id = '{}'", refused.id)).await;
    let running = worker(&bench.tenure);
    for of in [&refused, &others[0], &others[1]] {
        bench.tenure.retry(of.jobs[0]).await.unwrap();
    }
    for of in &others {
        assert_eq!(bench.until_finished(of.id).await.status, Status::Completed);
    }
    assert!(is_held(&bench, refused.id).await);
    let checks = bench.tenure.doctor(&tenure::doctor::DoctorOptions::default()).await;
    let found = checks.iter().find(|check| check.check == "groups").unwrap();
    let names = |id: JobId| found.found.contains(&id.to_string());
    assert!(names(refused.id) || names(refused.jobs[0]), "{found:?}");
    bench.execute("DROP TRIGGER refuse ON tenure.jobs").await;
    assert_eq!(bench.until_finished(refused.id).await.status, Status::Completed);
    bench.until_count("tenure.group_ends", 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_follower_that_cannot_be_released_keeps_back_no_other() {
    let bench = bench().await;
    let group = async |n: i64| {
        bench.tenure.group([job("part", json!({ "n": n }))]).then(job("merge", json!({}))).await.unwrap()
    };
    let cut = group(13).await;
    let running = worker(&bench.tenure);
    until_status(&bench, cut.id, "cancelled").await;
    // It cannot come back: a trigger of somebody refuses its row.
    bench.refuse("INSERT ON tenure.jobs", &format!("NEW.id = '{}'", cut.id)).await;
    mended(&bench).await;
    bench.tenure.retry(cut.jobs[0]).await.unwrap();
    until_status(&bench, cut.jobs[0], "completed").await;
    assert_eq!(bench.until_finished(group(1).await.id).await.status, Status::Completed);
    assert_eq!(status(&bench, cut.id).await, "cancelled");
    // What stood in its way is gone: a look tries it again.
    bench.execute("DROP TRIGGER refuse ON tenure.jobs").await;
    bench.execute("SELECT tenure.mend_groups('00000000-0000-0000-0000-000000000000', 10)").await;
    until_status(&bench, cut.id, "completed").await;
    assert_eq!(bench.until_finished(cut.id).await.output, Some(json!({"outputs": [2], "failed": 0})));
    // A transaction has locked the next one.
    let later = job("part", json!({"n": 3})).delay(Duration::from_secs(3_600));
    let locked = bench.tenure.group([later]).then(job("merge", json!({}))).await.unwrap();
    let mut holds = bench.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE").bind(locked.id);
    lock.execute(&mut *holds).await.unwrap();
    bench.tenure.retry(locked.jobs[0]).await.unwrap();
    until_status(&bench, locked.jobs[0], "completed").await;
    for n in 0..3 {
        assert_eq!(bench.until_finished(group(n).await.id).await.status, Status::Completed);
    }
    assert!(is_held(&bench, locked.id).await);
    assert_eq!(bench.count(&format!("tenure.group_ends WHERE job_id = '{}'", locked.id)).await, 1);
    holds.rollback().await.unwrap();
    assert_eq!(bench.until_finished(locked.id).await.status, Status::Completed);
    bench.until_count("tenure.group_ends", 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_waits_again_for_a_redriven_job_and_hears_if_it_is_cancelled() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let bad = graph.add(job("part", json!({"n": 13})));
    let slow = graph.add(job("part", json!({"n": 1})).delay(Duration::from_secs(3_600)));
    let runs = graph.add(job("merge", json!({}))).after([&bad, &slow]).on_failure(OnFailure::Run);
    let holds = graph.add(job("merge", json!({}))).after([&bad]).on_failure(OnFailure::Hold);
    graph.await.unwrap();
    let running = worker(&bench.tenure);
    until_status(&bench, bad.id(), "failed").await;
    bench.until_count("tenure.job_edges WHERE state = 'failed'", 2).await;
    running.stop().await;
    bench.tenure.retry(bad.id()).await.unwrap();
    assert_eq!(bench.count("tenure.job_edges WHERE state IS NULL").await, 3);
    // The other one ends: the one that runs in any case waits for the redriven one.
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{}'", slow.id())).await;
    release(&bench).await;
    assert!(is_held(&bench, runs.id()).await);
    // The redriven one is cancelled, and will never come.
    assert_eq!(bench.tenure.cancel(bad.id()).await.unwrap(), CancelOutcome::Cancelled);
    assert_eq!(release(&bench).await, 1);
    assert!(!is_held(&bench, runs.id()).await);
    assert_eq!(status(&bench, holds.id()).await, "cancelled");
    bench.every_job_is_as_it_must_be().await;
}

/// Each of its reads is a statement, and the job before it completes between them.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_sees_each_job_before_it_as_completed_or_as_failed_to_its_end() {
    let bench = bench().await;
    let reads = Arc::new(Barrier::new(2));
    let at = Arc::clone(&reads);
    let part = async |_: Value, ctx: JobContext| match ctx.token().0 {
        1 => Err(JobError::permanent("unlucky")),
        _ => Ok(json!("late")),
    };
    let merge = move |asks_first: Value, ctx: JobContext| {
        let at = Arc::clone(&at);
        async move {
            let (mut outputs, mut failed) = (Vec::<Value>::new(), Vec::new());
            for ask in
                [asks_first.as_str().unwrap(), if asks_first == "failed" { "outputs" } else { "failed" }]
            {
                match ask {
                    "failed" => failed = ctx.failed_before().await?,
                    _ => outputs = ctx.outputs().await?,
                }
                at.wait().await;
                at.wait().await;
            }
            Ok::<_, JobError>(json!({"outputs": outputs, "failed": failed}))
        }
    };
    let options = KindOptions::new;
    let worker = Worker::builder(&bench.tenure);
    let worker = worker.handle_kind("part", options(), part).handle_kind("merge", options(), merge);
    let running = Running::start(worker.concurrency("q", 2));
    for asks_first in ["outputs", "failed"] {
        let graph = bench.tenure.graph();
        let bad = graph.add(job("part", json!({})));
        let merge = graph.add(job("merge", json!(asks_first))).after([&bad]).on_failure(OnFailure::Run);
        graph.await.unwrap();
        reads.wait().await;
        bench.tenure.retry(bad.id()).await.unwrap();
        let settled = format!("tenure.job_edges WHERE before = '{}' AND state = 'completed'", bad.id());
        bench.until_count(&settled, 1).await;
        // A redriven member may add to its group: what joins now is not waited for.
        bench
            .execute(&format!(
                "INSERT INTO tenure.job_edges (before, after, group_id)
                 SELECT gen_random_uuid(), after, group_id FROM tenure.job_edges WHERE before = '{}'",
                bad.id()
            ))
            .await;
        reads.wait().await;
        tokio::time::timeout(SOON, reads.wait()).await.expect("the second read has an end");
        reads.wait().await;
        let seen = bench.until_finished(merge.id()).await.output;
        assert_eq!(seen, Some(json!({"outputs": [], "failed": [bad.id()]})), "{asks_first} first");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_starts_no_follower_before_its_time() {
    let bench = bench().await;
    let waits = || job("part", json!({"n": 1})).delay(Duration::from_secs(3_600));
    for lanes in [None, Some(Lanes::new().running(1)), Some(Lanes::new().ordered())] {
        if let Some(lanes) = lanes {
            bench.tenure.put_lanes("q", lanes).await.unwrap();
        }
        let group = bench.tenure.group([waits()]).then(job("merge", json!({}))).await.unwrap();
        bench.tenure.retry(group.id).await.unwrap();
        bench.execute("SELECT tenure.tend_lanes(10, true)").await;
        assert!(is_held(&bench, group.id).await);
        assert_eq!(bench.count("tenure.lane_jobs WHERE due_at < now()").await, 0);
        bench.tenure.cancel_group(group.id).await.unwrap();
    }
    bench.tenure.remove_lanes("q").await.unwrap();
    // One that expired while it was held goes on waiting when it is redriven.
    let late = job("merge", json!({})).not_after(chrono::Utc::now()).on_expiry(OnExpiry::DeadLetter);
    let group = bench.tenure.group([waits()]).then(late).await.unwrap();
    let running = worker(&bench.tenure);
    until_status(&bench, group.id, "failed").await;
    assert_eq!(bench.tenure.retry(group.id).await.unwrap(), RetryOutcome::Redriven);
    assert!(is_held(&bench, group.id).await);
    bench.every_job_is_as_it_must_be().await;
    bench.tenure.retry(group.jobs[0]).await.unwrap();
    assert_eq!(bench.until_finished(group.id).await.output, Some(json!({"outputs": [1], "failed": 0})));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_counts_as_one_also_where_constraints_are_immediate() {
    let bench = bench().await;
    let part = job("part", json!({"n": 1})).delay(Duration::from_secs(3_600));
    let group = bench.tenure.group([part]).then(job("merge", json!({}))).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    sqlx::query("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut *tx).await.unwrap();
    sqlx::query("SELECT tenure.cancel($1)").bind(group.jobs[0]).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(release(&bench).await, 0);
    assert_eq!(status(&bench, group.id).await, "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_attempt_adds_nothing_to_its_group() {
    // No heartbeat finds the loss, and ends the handler, before it adds.
    let bench = crate::harness::bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    let steps = [(); 3].map(|()| Arc::new(tokio::sync::Notify::new()));
    let [began, go, tried] = steps.clone();
    let split = {
        move |_: Value, ctx: JobContext| {
            let [began, go, tried] = steps.clone();
            async move {
                began.notify_one();
                go.notified().await;
                let added = ctx.add_to_group("more", [job("part", json!({"n": 7}))]).await;
                assert!(added.is_err());
                let all = ctx.all::<Value, _>("all", [job("part", json!({"n": 8}))]).await;
                assert!(all.is_err());
                tried.notify_one();
                added.map(|_| json!(0))
            }
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("split", KindOptions::new(), split);
    let running = Running::start(worker.concurrency("q", 1));
    let group = bench.tenure.group([job("split", json!({}))]).then(job("merge", json!({}))).await.unwrap();
    began.notified().await;
    // Another attempt owns the job.
    bench
        .execute(
            "UPDATE tenure.jobs SET fencing_token = 2, claim_id = gen_random_uuid() WHERE kind = 'split'",
        )
        .await;
    go.notify_one();
    tokio::time::timeout(SOON, tried.notified()).await.unwrap();
    assert_eq!(bench.count("tenure.jobs").await, 2);
    assert_eq!(bench.count(&format!("tenure.job_edges WHERE after = '{}'", group.id)).await, 1);
    running.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edges_of_a_dense_graph_are_settled_part_by_part() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let firsts: Vec<_> = (0..120).map(|n| graph.add(job("part", json!({ "n": n })))).collect();
    for _ in 0..120 {
        drop(graph.add(job("merge", json!({}))).after(&firsts));
    }
    graph.await.unwrap();
    bench.execute("DELETE FROM tenure.jobs WHERE kind = 'part'").await;
    let mut calls = 0;
    let mut released = 0;
    while bench.count("tenure.group_ends").await > 0 {
        released += release(&bench).await;
        calls += 1;
        let settled = bench.count("tenure.job_edges WHERE state = 'completed'").await;
        assert!(settled <= calls * 5_000, "{settled} edges by {calls} calls");
    }
    assert_eq!((released, calls), (120, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_of_a_follower_and_of_what_it_follows_is_one_step() {
    let bench = bench().await;
    let late = job("merge", json!({})).not_after(chrono::Utc::now()).on_expiry(OnExpiry::DeadLetter);
    let group = bench.tenure.group([job("part", json!({"n": 13}))]).then(late);
    let group = group.on_failure(OnFailure::Run).await.unwrap();
    let running = worker(&bench.tenure);
    until_status(&bench, group.id, "failed").await;
    until_status(&bench, group.jobs[0], "failed").await;
    bench.until_count("tenure.group_ends", 0).await;
    running.stop().await;
    // Both at once: the follower waits for the other's next end.
    mended(&bench).await;
    bench.tenure.redrive(&[group.jobs[0], group.id]).await.unwrap();
    assert!(is_held(&bench, group.id).await);
    // A release that has seen the end of the member, and is not committed: the redrive of the follower waits for it.
    bench.execute(&format!("UPDATE tenure.jobs SET not_after = now() WHERE id = '{}'", group.id)).await;
    bench
        .execute(&format!("INSERT INTO tenure.job_expiries (at, job_id) VALUES (now(), '{}')", group.id))
        .await;
    sqlx::query(statement("expire"))
        .bind(None::<Vec<uuid::Uuid>>)
        .bind(10_i64)
        .bind(Vec::<uuid::Uuid>::new())
        .bind(None::<Vec<uuid::Uuid>>)
        .execute(&bench.pool)
        .await
        .unwrap();
    assert_eq!(status(&bench, group.id).await, "failed");
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{}'", group.jobs[0])).await;
    let mut releases = bench.pool.begin().await.unwrap();
    sqlx::query(statement("release_followers")).bind(10).execute(&mut *releases).await.unwrap();
    let redrive = async { bench.tenure.redrive(&[group.id]).await.unwrap() };
    let commit = async {
        bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- redrive%')").await;
        releases.commit().await.unwrap();
    };
    tokio::join!(redrive, commit);
    assert!(!is_held(&bench, group.id).await, "nothing would release it");
}

/// What a follower follows comes back with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_comes_back_is_waited_for_again() {
    let bench = bench().await;
    let graph = bench.tenure.graph();
    let first = graph.add(job("part", json!({"n": 13})));
    let slow = graph.add(job("part", json!({"n": 5})).delay(Duration::from_secs(3_600)));
    let second = graph.add(job("merge", json!({}))).after([&first]);
    let last = graph.add(job("merge", json!({}))).after([&second, &slow]).on_failure(OnFailure::Run);
    graph.await.unwrap();
    let running = worker(&bench.tenure);
    until_status(&bench, second.id(), "cancelled").await;
    bench.until_count("tenure.group_ends", 0).await;
    running.stop().await;
    mended(&bench).await;
    bench.tenure.retry(first.id()).await.unwrap();
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{}'", first.id())).await;
    release(&bench).await;
    assert_eq!(status(&bench, second.id()).await, "queued");
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{}'", slow.id())).await;
    release(&bench).await;
    assert!(is_held(&bench, last.id()).await, "it would run before the one that came back");
    let running = worker(&bench.tenure);
    assert_eq!(bench.until_finished(last.id()).await.status, Status::Completed);
    running.stop().await;
}

/// A queue's limit holds for members as for any job, and the follower waits for room as they do.
#[tokio::test(flavor = "multi_thread")]
async fn members_and_followers_keep_to_the_limit_of_their_queue() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(2)).await.unwrap();
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go.clone();
    let handler = move |payload: Value, _: JobContext| {
        let gate = gate.clone();
        async move {
            if payload["blocks"] == json!(true) {
                gate.acquire().await.unwrap().forget();
            }
            Ok::<_, JobError>(json!("ran"))
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new().keepalive(), handler);
    let running = Running::start(worker.concurrency("q", 8));
    let blocks = (0..2).map(|_| job("k", json!({"blocks": true})));
    bench.tenure.enqueue_many(blocks).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    let group =
        bench.tenure.group((0..3).map(|_| job("k", json!({})))).then(job("k", json!({}))).await.unwrap();
    let (follower, members) = group.jobs.split_last().unwrap();
    let claim = async |jobs: &[JobId]| {
        let jobs: Vec<_> = jobs.iter().map(|job| job.to_string().parse().unwrap()).collect();
        queues::claim_by(&bench.pool, statement("claim_limited"), &jobs).await
    };
    assert_eq!(claim(members).await, (vec![], Some(0)));
    for member in members {
        bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{member}'")).await;
    }
    bench
        .until(&format!(
            "EXISTS (SELECT FROM tenure.jobs WHERE id = '{follower}' AND publish_at IS DISTINCT FROM '9999-01-01Z')"
        ))
        .await;
    assert_eq!(claim(&[*follower]).await, (vec![], Some(0)));
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 2);
    go.add_permits(2);
    assert_eq!(bench.until_finished(*follower).await.output, Some(json!("ran")));
    running.stop().await;
}

/// A program of an earlier release knows nothing of groups: it claims a member, and ends it by its own statements.
#[tokio::test(flavor = "multi_thread")]
async fn the_ends_of_an_older_program_release_a_follower_too() {
    let bench = bench().await;
    let group = bench.tenure.group([job("old", json!({}))]).then(job("merge", json!({}))).await.unwrap();
    let member = group.jobs[0];
    let running = worker(&bench.tenure);
    for sql in [
        "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = gen_random_uuid(),
                worker_id = 'old', worker_host = 'old', started_at = now(), last_activity_at = now(), stale_after = '1 h'
          WHERE id = '{}'",
        "WITH done AS (DELETE FROM tenure.jobs WHERE id = '{}' RETURNING *)
         INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token, claim_id,
                worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at, output)
         SELECT id, queue, kind, payload, 'completed', attempt, max_attempts, fencing_token, claim_id,
                worker_id, created_at, scheduled_at, started_at, last_activity_at, now(), '7'
           FROM done",
    ] {
        bench.execute(&sql.replace("{}", &member.to_string())).await;
    }
    assert_eq!(bench.until_finished(group.id).await.output, Some(json!({"outputs": [7], "failed": 0})));
    running.stop().await;
}

/// The setting by which a statement says that it only completes ends with that statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_does_not_speak_for_the_next_end_of_its_session() {
    let bench = bench().await;
    let running = worker(&bench.tenure);
    for _ in 0..20 {
        let members = [job("part", json!({"n": 1})), job("part", json!({"n": 13}))];
        let group = bench.tenure.group(members).then(job("merge", json!({}))).await.unwrap();
        until_status(&bench, group.id, "cancelled").await;
    }
    assert_eq!(bench.count("tenure.job_edges WHERE state = 'failed'").await, 20);
    assert_eq!(bench.count("tenure.job_edges WHERE state = 'completed'").await, 20);
    running.stop().await;
}

/// A look for ends that fails each time, as one that passes its deadline, keeps back no other look.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_is_forgotten_although_no_end_can_be_looked_for() {
    let bench = bench().await;
    let parts = [job("part", json!({"n": 1}))];
    let group = bench.tenure.group(parts).then(job("merge", json!({}))).await.unwrap();
    let running = worker(&bench.tenure);
    bench.until_finished(group.id).await;
    bench
        .execute(
            "CREATE OR REPLACE FUNCTION tenure.mend_groups(after_follower uuid, most int) RETURNS uuid
             LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$",
        )
        .await;
    // As retention does.
    bench.execute("DELETE FROM tenure.job_history").await;
    bench.until_count("tenure.followers", 0).await;
    assert_eq!(bench.count("tenure.job_edges").await, 0);
    running.stop().await;
}

/// A member may add a hundred thousand jobs, but not before six that wait for each of them.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_would_make_too_many_waits_are_refused_before_they_are_written() {
    let bench = bench().await;
    let split = async |payload: Value, ctx: JobContext| {
        let many = payload["many"].as_u64().unwrap();
        let added = ctx.add_to_group("parts", (0..many).map(|n| job("part", json!({ "n": n })))).await?;
        Ok::<_, JobError>(json!(added.len()))
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("split", KindOptions::new().keepalive(), split);
    let running = Running::start(worker.concurrency("q", 1));
    let graph = async |many: u64| {
        let graph = bench.tenure.graph();
        let split = graph.add(job("split", json!({ "many": many })));
        for _ in 0..6 {
            drop(graph.add(job("merge", json!({}))).after([&split]));
        }
        let id = split.id();
        graph.await.unwrap();
        bench.until_finished(id).await
    };
    let refused = graph(83_334).await.last_error.unwrap();
    assert!(
        refused.starts_with("83334 jobs before the 6 that follow this one are more than 500000 waits"),
        "{refused}"
    );
    assert_eq!(bench.count("tenure.job_edges").await, 6);
    assert_eq!(graph(5).await.output, Some(json!(5)));
    // Of those that it adds, and its own.
    assert_eq!(bench.count("tenure.job_edges").await, 6 + 6 * 6);
    running.stop().await;
}
