//! Batches: the faults that group commit could introduce.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Row;
use tenure::{EnqueueError, JobContext, JobRequest, KindOptions, Outcome, Worker};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench, bench_with, bench_with_servers, statement};

/// A job of the kind that the workers of `tenure bench` run.
fn order(n: usize) -> JobRequest {
    JobRequest::new("q", "order", json!({ "number": n, "customer": "c", "lines": [], "note": "" }))
}

/// Long timers: no job counts as lost while a test holds it up.
async fn patient() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(180);
        config.timing.ack_wait = Duration::from_secs(360);
    })
    .await
}

fn worker(bench: &Bench, slots: u32) -> Running {
    Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("order", KindOptions::new(), |_: Value, _: JobContext| async {})
            .concurrency("q", slots),
    )
}

/// Claims by the production statement. Returns `(claim id, token)` of each claim won.
async fn claim(bench: &Bench, jobs: &[Uuid]) -> Vec<(Uuid, i64)> {
    let rows = sqlx::query(statement("claim"))
        .bind(jobs)
        .bind("q")
        .bind("order")
        .bind(300.0_f64)
        .bind("retry")
        .bind("w")
        .bind("h")
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    rows.iter().map(|row| (row.get("claim_id"), row.get("fencing_token"))).collect()
}

async fn complete(bench: &Bench, jobs: &[Uuid], tokens: &[i64], claims: &[Uuid]) -> Vec<Uuid> {
    let rows = sqlx::query(statement("complete"))
        .bind(jobs)
        .bind(tokens)
        .bind(claims)
        .bind(vec![None::<String>; jobs.len()])
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    rows.iter().map(|row| row.get("claim_id")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_inside_one_batch_of_claims_wins_once() {
    let bench = bench().await;
    let job = bench.tenure.enqueue(order(1)).await.unwrap().id.0;
    let won = claim(&bench, &[job, job, job]).await;
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(won[0].1, 1, "the token was raised once");
    let owner: Uuid = bench.value("SELECT claim_id FROM tenure.jobs").await;
    assert_eq!(owner, won[0].0, "the answer is about the claim that owns it");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_stale_and_a_current_completion_in_one_batch_only_the_current_one_completes() {
    let bench = bench().await;
    let job = bench.tenure.enqueue(order(1)).await.unwrap().id.0;
    let (stale, token) = claim(&bench, &[job]).await[0];
    assert_eq!(token, 1);
    bench
        .execute(
            "UPDATE tenure.jobs SET status = 'queued', claim_id = NULL, worker_id = NULL, worker_host = NULL,
                    stale_after = NULL, last_activity_at = NULL, started_at = NULL",
        )
        .await;
    let (current, token) = claim(&bench, &[job]).await[0];
    assert_eq!(token, 2);
    for batch in [[(1, stale), (2, current)], [(2, current), (1, stale)]] {
        let mut tx = bench.pool.begin().await.unwrap();
        // The statement that the client sends when a batch names one job twice.
        let pairwise = "complete_skip";
        let done: Vec<Uuid> = sqlx::query(statement(pairwise))
            .bind(vec![job, job])
            .bind(batch.map(|(token, _)| i64::from(token)).to_vec())
            .bind(batch.map(|(_, claim)| claim).to_vec())
            .bind(vec![Some("\"x\""); 2])
            .fetch_all(&mut *tx)
            .await
            .unwrap()
            .iter()
            .map(|row| row.get("claim_id"))
            .collect();
        assert_eq!(done, [current]);
        tx.rollback().await.unwrap();
    }
    // The same completion twice in one batch, as after a lost answer: one of the two gets the answer.
    assert_eq!(complete(&bench, &[job, job], &[2, 2], &[current, current]).await.len(), 1);
    assert_eq!(bench.count("tenure.job_history WHERE fencing_token = 2").await, 1);
    assert_eq!(complete(&bench, &[job], &[1], &[stale]).await.len(), 0);
}

/// 200 jobs. The victim has claimed or completed a batch of them when it dies, and got no answer.
async fn killed_with_a_batch(point: &str) {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue_many((0..200).map(order)).await.unwrap();
    bench.tenure.flush().await;
    let mut command = bench.program(&["bench-worker", "q", "--slots", "100", "--mode", "decode"]);
    command.env("TENURE_FAULT", format!("{point}=kill")).env("TENURE_HOSTNAME", "elsewhere");
    // The victim ends when its standard input does.
    let mut victim = command.stdin(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let input = victim.stdin.take();
    let status = timeout(Duration::from_secs(60), victim.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), None, "killed by the signal");
    drop(input);
    let touched = "tenure.all_jobs WHERE fencing_token = 1";
    assert!(bench.count(touched).await > 1, "a batch, not one");
    let completed = "SELECT id, fencing_token, claim_id, worker_id, finished_at FROM tenure.job_history
                      WHERE worker_id LIKE 'elsewhere-%' ORDER BY id";
    let before = bench.text(completed).await;
    let other = worker(&bench, 100);
    bench.until_count("tenure.job_history WHERE status = 'completed'", 200).await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    assert_eq!(bench.text(completed).await, before, "no completed job ran again");
    if point == "batch_claimed" {
        assert!(
            bench.count("tenure.job_history WHERE fencing_token = 2").await > 1,
            "its claims were taken over"
        );
    }
    assert_eq!(bench.count("tenure.jobs").await, 0);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_a_batch_of_claims_and_its_answer_loses_no_job() {
    killed_with_a_batch("batch_claimed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_a_batch_of_completions_and_its_answer_completes_none_twice() {
    killed_with_a_batch("batch_completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_refused_job_fails_alone_and_the_others_of_its_batch_are_enqueued() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'poison'; END $$",
        )
        .await;
    bench
        .execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON tenure.jobs FOR EACH ROW
             WHEN (NEW.payload ->> 'number' = '13') EXECUTE FUNCTION public.refuse()",
        )
        .await;
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            let tenure = bench.tenure.clone();
            tokio::spawn(async move { tenure.enqueue(order(n)).await })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        let answer = task.await.unwrap();
        assert_eq!(answer.is_err(), n == 13, "{n}: {answer:?}");
    }
    assert_eq!(bench.count("tenure.jobs").await, 59);
    bench.tenure.flush().await;
    assert_eq!(bench.named().await, 59);
    // All or none, where the caller asked for that.
    assert!(bench.tenure.enqueue_many((0..20).map(order)).await.is_err());
    assert_eq!(bench.count("tenure.jobs").await, 59);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_an_open_transaction_holds_delays_no_other_enqueue() {
    let bench = bench().await;
    let mut tx = bench.pool.begin().await.unwrap();
    let holder = bench.tenure.enqueue(order(0)).unique_key("held").tx(&mut tx).await.unwrap();
    let enqueue = |key: String| {
        let tenure = bench.tenure.clone();
        tokio::spawn(async move { tenure.enqueue(order(1)).unique_key(key).await })
    };
    let waiting = enqueue("held".into());
    let others: Vec<_> = (0..30).map(|n| enqueue(format!("free {n}"))).collect();
    for other in others {
        let other = timeout(Duration::from_secs(2), other).await.expect("it waited for the transaction");
        assert!(!other.unwrap().unwrap().duplicate);
    }
    assert!(!waiting.is_finished());
    tx.commit().await.unwrap();
    let waited = waiting.await.unwrap().unwrap();
    assert_eq!((waited.id, waited.duplicate), (holder.id, true));
    assert_eq!(bench.count("tenure.jobs").await, 31);
}

/// Jobs without a key do not wait, however many keys are held.
#[tokio::test(flavor = "multi_thread")]
async fn held_keys_delay_no_job_without_a_key() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    for n in 0..20 {
        bench.tenure.enqueue(order(0)).unique_key(format!("held {n}")).tx(&mut tx).await.unwrap();
    }
    let waiting: Vec<_> = (0..20)
        .map(|n| {
            let tenure = bench.tenure.clone();
            // One by one, and as batches: neither may take all of tenure's connections.
            tokio::spawn(async move {
                let key = format!("held {n}");
                if n % 2 == 0 {
                    tenure.enqueue(order(1)).unique_key(key).await.map(drop)
                } else {
                    tenure.enqueue_many([order(1).unique_key(key)]).await.map(drop)
                }
            })
        })
        .collect();
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    let worker = worker(&bench, 10);
    let since = Instant::now();
    for n in 0..100 {
        bench.tenure.enqueue(order(n)).await.unwrap();
    }
    bench.until_count("tenure.job_history", 100).await;
    assert!(since.elapsed() < Duration::from_secs(5), "each waited: {:?}", since.elapsed());
    tx.rollback().await.unwrap();
    for waiting in waiting {
        // Or it waited in vain for its turn, and the error says so.
        match waiting.await.unwrap() {
            Ok(()) => {}
            Err(error) => assert!(matches!(error, EnqueueError::KeyBusy { .. }), "{error:?}"),
        }
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_delays_no_other_claim() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let jobs = bench.tenure.enqueue_many((0..40).map(order)).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(jobs[17].id.0)
        .execute(&mut *tx)
        .await
        .unwrap();
    // Only the message can run this job: it must not be acknowledged.
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("order", KindOptions::new(), |_: Value, _: JobContext| async {})
            .concurrency("q", 40)
            .recovery(&[]),
    );
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 39", Duration::from_secs(10)).await;
    tx.rollback().await.unwrap();
    bench.until_count("tenure.job_history", 40).await;
    assert_eq!(bench.count("tenure.job_history WHERE attempt > 1").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_delays_no_other_progress_and_no_other_completion() {
    let bench = patient().await;
    let go = bench.config.runtime_dir.join("go");
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    let seen = go.clone();
    let reporter = move |_: Value, ctx: JobContext| {
        let go = seen.clone();
        async move {
            for n in 0_u8.. {
                ctx.progress("reporting", f32::from(n % 100), "").await?;
                if go.exists() {
                    break;
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, tenure::JobError>(Outcome::Done(None))
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("order", KindOptions::new(), reporter)
            .concurrency("q", 20),
    );
    let jobs = bench.tenure.enqueue_many((0..20).map(order)).await.unwrap();
    bench.until_count("tenure.jobs WHERE progress > 0", 20).await;
    let mut tx = bench.pool.begin().await.unwrap();
    let locked = jobs[7].id.0;
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(locked)
        .execute(&mut *tx)
        .await
        .unwrap();
    let since: chrono::DateTime<chrono::Utc> = bench.value("SELECT clock_timestamp()").await;
    let alive = format!("(SELECT count(*) FROM tenure.jobs WHERE last_activity_at > '{since}') = 19");
    bench.until_within(&alive, Duration::from_secs(2)).await;
    std::fs::write(&go, "").unwrap();
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 19", Duration::from_secs(2)).await;
    assert_eq!(bench.value::<Uuid>("SELECT id FROM tenure.jobs").await, locked);
    tx.rollback().await.unwrap();
    bench.until_count("tenure.job_history WHERE attempt = 1", 20).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0, "no recovery path judged it lost");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_give_up_leave_nothing_half_done() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    for n in 0..300 {
        let enqueue = bench.tenure.enqueue(order(n)).into_future();
        // Some calls are dropped before their statement is sent, some while it is in flight.
        let patience = Duration::from_micros(u64::try_from(n).unwrap() * 10);
        drop(timeout(patience, enqueue).await);
    }
    // Calls for many jobs at once, too: all jobs with their messages, or none.
    for n in 0..20 {
        let enqueue = bench.tenure.enqueue_many((0..5).map(order)).into_future();
        drop(timeout(Duration::from_micros(n * 200), enqueue).await);
    }
    // The connection still works, and its answers arrive in order.
    let last = bench.tenure.enqueue(order(1_000)).await.unwrap();
    assert_eq!(bench.tenure.job(last.id).await.unwrap().unwrap().payload.unwrap()["number"], 1_000);
    // Statements that were under way when their callers gave up may commit between the two counts, or later.
    let deadline = Instant::now() + Duration::from_secs(20);
    let rows = loop {
        bench.tenure.flush().await;
        let (rows, named) = (bench.count("tenure.jobs").await, bench.named().await);
        if u64::try_from(rows).unwrap() == named {
            break rows;
        }
        assert!(Instant::now() < deadline, "{rows} rows, and messages for {named}");
    };
    assert!((1..=401).contains(&rows));
    let worker = worker(&bench, 50);
    bench
        .until(&format!(
            "NOT EXISTS (SELECT FROM tenure.jobs) AND (SELECT count(*) FROM tenure.job_history) >= {rows}"
        ))
        .await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_every_caller_gets_its_own_answer_and_may_try_again() {
    let mut bench = bench_with_servers(|_| {}).await;
    bench.tenure.enqueue(order(0)).await.unwrap();
    let mut servers = bench.own.take().unwrap();
    servers.postgres.stop();
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            let tenure = bench.tenure.clone();
            tokio::spawn(async move { tenure.enqueue(order(n)).await })
        })
        .collect();
    for task in tasks {
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(&error, EnqueueError::Store(store) if store.is_unavailable()), "{error:?}");
    }
    servers.postgres.restart().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while bench.tenure.enqueue(order(1)).await.is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
    }
    drop(servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn flush_waits_until_the_relay_has_the_messages_that_failed() {
    let mut bench = bench_with_servers(|_| {}).await;
    let mut servers = bench.own.take().unwrap();
    servers.nats.stop();
    let tenure = tenure::Tenure::connect(&bench.config).await.unwrap();
    for n in 0..20 {
        tenure.enqueue(order(n)).await.unwrap();
        tenure.flush().await;
        let waiting = bench.count("tenure.jobs WHERE publish_at IS NULL").await;
        assert_eq!(waiting, 0, "after {n}: the relay does not know that its message was not sent");
    }
    tenure.close().await;
    drop(servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_locked_rows_delay_the_others_once() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue_many((0..100).map(order)).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    let every_third = "SELECT FROM tenure.jobs WHERE (payload ->> 'number')::int % 3 = 0 FOR UPDATE";
    sqlx::query(every_third).execute(&mut *tx).await.unwrap();
    let worker = worker(&bench, 100);
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 66", Duration::from_secs(5)).await;
    tx.rollback().await.unwrap();
    bench.until_count("tenure.job_history WHERE attempt = 1", 100).await;
    worker.stop().await;
}

/// Submissions become rows in batches, too; one whose key another transaction holds delays no other.
#[tokio::test(flavor = "multi_thread")]
async fn submissions_share_their_commits_and_a_held_key_delays_no_other() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    bench.tenure.enqueue(order(0)).unique_key("held").tx(&mut tx).await.unwrap();
    let subject = format!("{}.q.order", bench.config.subject_prefix);
    for n in 0..300 {
        let mut headers = async_nats::HeaderMap::new();
        if n == 100 {
            headers.insert("Nats-Msg-Id", "held");
        }
        let sent = bench.js.publish_with_headers(subject.clone(), headers, n.to_string().into()).await;
        sent.unwrap().await.unwrap();
    }
    let worker = worker(&bench, 300);
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 299", Duration::from_secs(10)).await;
    let commits = bench.count("(SELECT DISTINCT xmin::text FROM tenure.job_keys) AS commits").await;
    assert!(commits < 60, "{commits} transactions for 299 submissions");
    // The key is free again: the submission makes its job.
    tx.rollback().await.unwrap();
    bench.until_count("tenure.job_history WHERE payload = '100'", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_refused_output_fails_alone_and_the_others_of_its_batch_complete() {
    let bench = patient().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION USING ERRCODE = TG_ARGV[0], MESSAGE = 'poison'; END $$",
        )
        .await;
    // An output that Postgres will never accept, and one that a trigger of the user's refuses for now.
    for (number, code) in [(13, "22000"), (14, "P0001")] {
        bench
            .execute(&format!(
                "CREATE TRIGGER refuse_{number} BEFORE INSERT ON tenure.job_history FOR EACH ROW
                 WHEN (NEW.output ->> 'number' = '{number}') EXECUTE FUNCTION public.refuse('{code}')"
            ))
            .await;
    }
    let echo =
        |payload: Value, _: JobContext| async { Ok::<_, tenure::JobError>(Outcome::Done(Some(payload))) };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_kind("order", KindOptions::new(), echo).concurrency("q", 60),
    );
    bench.tenure.enqueue_many((0..60).map(order)).await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed' AND attempt = 1", 58).await;
    bench.until_count("tenure.dead_letter_jobs WHERE category = 'invalid_output'", 1).await;
    assert_eq!(
        bench.value::<Value>("SELECT payload -> 'number' FROM tenure.dead_letter_jobs").await,
        json!(13)
    );
    // The worker retries the other one until the trigger lets it pass. (To drop the trigger of a partitioned table,
    // Postgres locks the partitions before the table: a deadlock with each insert between.)
    assert_eq!(bench.value::<Value>("SELECT payload -> 'number' FROM tenure.jobs").await, json!(14));
    bench
        .execute(
            "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        )
        .await;
    bench.until_count("tenure.job_history WHERE status = 'completed' AND attempt = 1", 59).await;
    worker.stop().await;
}

/// While its row is locked, a completion is retried on its own, so that the others need not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_completion_costs_the_others_one_delay_and_not_one_each_time_it_is_tried() {
    let bench = patient().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let held = gate.clone();
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("order", KindOptions::new(), move |_: Value, _: JobContext| {
                let held = held.clone();
                async move { held.acquire().await.unwrap().forget() }
            })
            .concurrency("q", 10),
    );
    let job = bench.tenure.enqueue(order(0)).await.unwrap().id.0;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let mut tx = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(job)
        .execute(&mut *tx)
        .await
        .unwrap();
    let rollbacks = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let before: i64 = bench.value(rollbacks).await;
    gate.add_permits(1);
    // The completion is tried some six times meanwhile; a try that fails to get the lock rolls its transaction back.
    sleep(Duration::from_secs(4)).await;
    let after: i64 = bench.value(rollbacks).await;
    assert!(after > before, "it was not tried, or did not wait");
    assert!(after - before <= 1, "{} statements gave up waiting for the lock", after - before);
    tx.rollback().await.unwrap();
    bench.until_count("tenure.job_history WHERE attempt = 1", 1).await;
    worker.stop().await;
}

/// A frozen stream confirms nothing. The number of waiting messages is bounded, and each caller waits at most once.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_frozen_stream_does_not_confirm_are_bounded_and_left_to_the_relay() {
    let mut bench = bench_with_servers(|config| config.timing.publish_within = Duration::from_secs(6)).await;
    let servers = bench.own.take().unwrap();
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue(order(0)).await.unwrap();
    bench.tenure.flush().await;
    servers.nats.signal(rustix::process::Signal::STOP);
    for _ in 0..4 {
        bench.tenure.enqueue_many((0..4_096).map(order)).await.unwrap();
    }
    let to_relay = "tenure.jobs WHERE publish_at IS NOT NULL";
    assert_eq!(bench.count(to_relay).await, 0, "there is room for these");
    let since = Instant::now();
    let told = bench.tenure.enqueue(order(1)).await.unwrap().id;
    assert!(since.elapsed() >= Duration::from_millis(500), "it did not wait for room");
    // No room came free, or the messages before it failed; this one fails like them.
    bench.until_count(&format!("{to_relay} AND id = '{told}'"), 1).await;
    let since = Instant::now();
    for n in 0..50 {
        bench.tenure.enqueue(order(n)).await.unwrap();
    }
    assert!(since.elapsed() < Duration::from_secs(20), "each waited for room again");
    servers.nats.signal(rustix::process::Signal::CONT);
    // There is room again, and new messages are published.
    let mut more = 0;
    loop {
        let id = bench.tenure.enqueue(order(2)).await.unwrap().id;
        bench.tenure.flush().await;
        more += 1;
        if bench.count(&format!("{to_relay} AND id = '{id}'")).await == 0 {
            break;
        }
        assert!(more < 100, "every message is still left to the relay");
        sleep(Duration::from_millis(100)).await;
    }
    let worker = worker(&bench, 1_000);
    bench.until_count("tenure.job_history", 1 + 4 * 4_096 + 51 + more).await;
    worker.stop().await;
    drop(servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_may_flush_while_others_enqueue() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let tenure = bench.tenure.clone();
    let busy = tokio::spawn(async move {
        for n in 0.. {
            tenure.enqueue(order(n)).await.unwrap();
        }
    });
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let tenure = bench.tenure.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    tenure.enqueue(order(1)).await.unwrap();
                    tenure.flush().await;
                }
            })
        })
        .collect();
    for waiting in waiting {
        timeout(Duration::from_secs(30), waiting)
            .await
            .expect("a flush waits for the jobs that others enqueue")
            .unwrap();
    }
    busy.abort();
}
