//! The claim: one winner, and no write by any other worker.

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use sqlx::{PgPool, Row, postgres::PgPoolOptions};
use tenure::Worker;
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, statement, until_file},
    scenarios::{Step, step},
};

/// The production statement, for one job.
async fn claim(pool: &PgPool, job: Uuid, worker: &str) -> Option<i64> {
    loop {
        let rows = sqlx::query(statement("claim"))
            .bind(vec![job])
            .bind("steps")
            .bind("step")
            .bind(300.0_f64)
            .bind("retry")
            .bind(worker)
            .bind("host")
            .fetch_all(pool)
            .await;
        match rows {
            Ok(rows) => return rows.first().map(|row| row.try_get("fencing_token").unwrap()),
            // Another claim has held the row for 100 ms.
            Err(error) => assert_eq!(error.as_database_error().unwrap().code().unwrap(), "55P03"),
        }
    }
}

async fn queued(bench: &Bench) -> Uuid {
    let step = Step::new(bench, "report");
    bench.tenure.enqueue(step).await.unwrap().id.0
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_claimants_on_one_job_one_wins() {
    let bench = bench().await;
    let pool = PgPoolOptions::new().max_connections(100).connect(&bench.config.database_url).await.unwrap();
    for _ in 0..5 {
        let job = queued(&bench).await;
        // When the barrier opens, all hundred have a connection and have sent nothing.
        let barrier = Arc::new(Barrier::new(100));
        let claims: Vec<_> = (0..100)
            .map(|n| {
                let (pool, barrier) = (pool.clone(), barrier.clone());
                tokio::spawn(async move {
                    let held = pool.acquire().await.unwrap();
                    barrier.wait().await;
                    drop(held);
                    claim(&pool, job, &format!("w{n}")).await
                })
            })
            .collect();
        let mut won = Vec::new();
        for task in claims {
            won.extend(task.await.unwrap());
        }
        assert_eq!(won, [1], "the tokens that were won");
    }
}

/// The interleaving that a plain read would get wrong: the claim waits for a row lock until the winner commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_for_the_winner_sees_the_winner() {
    let bench = bench().await;
    let job = queued(&bench).await;
    let mut winner = bench.pool.begin().await.unwrap();
    let won = sqlx::query(statement("claim"))
        .bind(vec![job])
        .bind("steps")
        .bind("step")
        .bind(300.0_f64)
        .bind("retry")
        .bind("winner")
        .bind("host")
        .fetch_all(&mut *winner)
        .await
        .unwrap();
    assert_eq!(won.len(), 1);
    let pool = bench.pool.clone();
    let loser = tokio::spawn(async move { claim(&pool, job, "loser").await });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    winner.commit().await.unwrap();
    assert_eq!(loser.await.unwrap(), None);
    let why =
        sqlx::query(statement("missed")).bind(vec![job]).bind(vec![0]).fetch_one(&bench.pool).await.unwrap();
    assert_eq!(why.try_get::<String, _>("worker_id").unwrap(), "winner");
}

/// SIGSTOP for longer than `stale_after`, then SIGCONT, for each write that the woken worker may try.
#[tokio::test(flavor = "multi_thread")]
async fn a_woken_worker_whose_job_was_taken_can_write_nothing() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint)").await;
    let sleeper = Child::start(&bench, "worker that goes on");
    let steps = ["then complete", "then fail", "then progress", "then fenced_tx"]
        .map(|first| Step::new(&bench, first));
    let jobs = bench.tenure.enqueue_many(steps.clone()).await.unwrap();
    for step in &steps {
        until_file(&step.file("started")).await;
    }
    sleeper.signal(Signal::STOP);
    let rival = Running::start(Worker::builder(&bench.tenure).handle(step));
    // The rival's scanner resets all four, and its handler completes them.
    bench.until_count("tenure.job_history WHERE status = 'completed' AND fencing_token = 2", 4).await;
    for step in &steps {
        std::fs::write(step.file("go"), "").unwrap();
    }
    sleeper.signal(Signal::CONT);
    for step in &steps[2..] {
        until_file(&step.file("result")).await;
        let result = std::fs::read_to_string(step.file("result")).unwrap();
        assert!(result.starts_with("lost=true reason=Lost"), "{result}");
        assert!(result.contains("no longer owned under fencing token 1"), "{result}");
    }
    // Each refused write is on record, under the stale token.
    // (A handler that fails after its cancellation writes nothing.)
    for (write, job) in ["complete", "", "progress", "fenced_tx"].iter().zip(&jobs) {
        if write.is_empty() {
            continue;
        }
        let id = job.id;
        bench
            .until_count(
                &format!(
                    "tenure.recovery_events WHERE event = 'refused_write' AND job_id = '{id}' AND reason = '{write}' AND fencing_token = 1"
                ),
                1,
            )
            .await;
    }
    assert_eq!(bench.count("public.app_effects").await, 0);
    assert_eq!(bench.count("tenure.job_history WHERE output = '\"second\"'").await, 4);
    assert_eq!(bench.count("tenure.job_executions WHERE outcome = 'lost'").await, 4);
    assert_eq!(bench.count("tenure.job_executions_all").await, 8);
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    rival.stop().await;
    drop(sleeper);
}

/// Two ways to the same row: a lost reply must not turn a completed job into a lost one.
#[tokio::test(flavor = "multi_thread")]
async fn completing_again_under_the_same_claim_is_the_same_completion() {
    let bench = bench().await;
    let job = queued(&bench).await;
    let claimed = sqlx::query(statement("claim"))
        .bind(vec![job])
        .bind("steps")
        .bind("step")
        .bind(300.0_f64)
        .bind("retry")
        .bind("w")
        .bind("host")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let claim_id: Uuid = claimed.get("claim_id");
    let complete = || async {
        sqlx::query(statement("complete"))
            .bind(vec![job])
            .bind(vec![1_i64])
            .bind(vec![claim_id])
            .bind(vec![Some("1")])
            .fetch_all(&bench.pool)
            .await
            .unwrap()
            .len()
    };
    let settled_as = |claim: Uuid| {
        let pool = bench.pool.clone();
        async move {
            let row = sqlx::query(statement("settled_as"))
                .bind(vec![job])
                .bind(vec![1_i64])
                .bind(vec![claim])
                .bind(vec![0])
                .fetch_optional(&pool)
                .await
                .unwrap();
            row.map(|row| row.try_get::<Option<String>, _>("outcome").unwrap())
        }
    };
    assert_eq!(settled_as(claim_id).await, Some(None), "it runs");
    assert_eq!(complete().await, 1);
    assert_eq!(complete().await, 0, "the row has moved");
    assert_eq!(settled_as(claim_id).await, Some(Some("completed".into())), "and by this very claim");
    assert_eq!(settled_as(Uuid::new_v4()).await, None, "not by another claim under the same token");
    assert_eq!(bench.count("tenure.job_history").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_the_claim_id_writes_nothing() {
    let bench = bench().await;
    let job = queued(&bench).await;
    assert_eq!(claim(&bench.pool, job, "new primary's").await, Some(1));
    let row = async || bench.text("SELECT * FROM tenure.jobs").await;
    let before = row().await;
    let current: Uuid = bench.value("SELECT claim_id FROM tenure.jobs").await;
    let stale = Uuid::new_v4();
    // A token issued twice, as after an asynchronous failover: the same number, another claim. And the reverse.
    for (token, claim) in [(1_i64, stale), (2, current), (0, current)] {
        for (name, says) in [
            ("progress", Some("{\"stage\": \"stale\"}")),
            ("still_mine", None),
            ("complete", Some("1")),
            ("complete_skip", Some("1")),
            ("complete_in", Some("1")),
        ] {
            let mut query = sqlx::query(statement(name)).bind(vec![job]).bind(vec![token]).bind(vec![claim]);
            if says.is_some() {
                query = query.bind(vec![says]);
            }
            assert_eq!(query.fetch_all(&bench.pool).await.unwrap().len(), 0, "{name} {token} {claim}");
        }
        for name in ["complete_told", "complete_unkept", "complete_unkept_skip"] {
            let query = sqlx::query(statement(name)).bind(vec![job]).bind(vec![token]).bind(vec![claim]);
            let query = if name == "complete_told" {
                query.bind(vec![Some("1")]).bind(vec![Some("{\"stage\": \"stale\"}")])
            } else {
                query.bind(vec![job])
            };
            assert_eq!(query.fetch_all(&bench.pool).await.unwrap().len(), 0, "{name} {token} {claim}");
        }
        let unkept = sqlx::query(statement("complete_unkept_one")).bind(job).bind(token).bind(claim);
        let unkept = unkept.bind(vec![job]).bind("100ms").fetch_all(&bench.pool).await.unwrap();
        assert_eq!(unkept.len(), 0, "complete_unkept_one {token} {claim}");
        let step = sqlx::query(statement("record_steps")).bind(vec![job]).bind(vec![token]).bind(vec![claim]);
        let step =
            step.bind(vec![claim]).bind(vec!["a"]).bind(vec!["step"]).bind(vec!["1"]).bind(vec![0.0_f64]);
        assert_eq!(step.fetch_all(&bench.pool).await.unwrap().len(), 0, "record_steps {token} {claim}");
        let awaits = sqlx::query(statement("await_event")).bind(job).bind(token).bind(claim);
        let awaits = awaits.bind("approved").bind(Some(60.0)).fetch_one(&bench.pool).await.unwrap();
        assert_eq!(awaits.get::<&str, _>("answer"), "lost", "await_event {token} {claim}");
        for name in ["fence", "lock_job", "complete_one"] {
            let mut query = sqlx::query(statement(name)).bind(job).bind(token).bind(claim);
            if name.starts_with("complete") {
                query = query.bind("1");
            }
            assert_eq!(query.fetch_all(&bench.pool).await.unwrap().len(), 0, "{name} {token} {claim}");
        }
    }
    assert_eq!(row().await, before, "nothing was written");
    assert_eq!(bench.count("tenure.effects").await, 0);
    // Every way to settle the attempt, a retry included.
    for verdict in ["retried", "snoozed", "released", "failed", "cancelled"] {
        let settle = statement("settle");
        let rows = sqlx::query(settle)
            .bind(vec![job])
            .bind(vec![1_i64])
            .bind(vec![stale])
            .bind(vec![verdict])
            .bind(vec![Some("an error")])
            .bind(vec![None::<String>])
            .bind(vec![0.0_f64])
            .bind(vec![None::<String>])
            .bind(vec![0])
            .bind("w")
            .bind(20_i64)
            .bind("an outage")
            .fetch_all(&bench.pool)
            .await
            .unwrap();
        assert_eq!(rows.len(), 0, "{verdict}");
    }
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
}

/// The scanner ends a job that was cancelled while its worker was frozen, under the frozen worker's own claim. Postgres
/// refuses that worker's later writes, and the worker must not count them as a completion.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_of_a_job_that_the_scanner_cancelled_is_not_ours() {
    let bench = bench().await;
    let go = bench.config.runtime_dir.join("go");
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    let until = go.clone();
    let silent = move |_: serde_json::Value, _: tenure::JobContext| {
        let until = until.clone();
        async move {
            // The handler blocks its thread: the worker cannot drop it before it returns.
            while !until.exists() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            tenure::Outcome::done("stale")
        }
    };
    let worker = Running::start(
        tenure::Worker::builder(&bench.tenure)
            .handle_kind("cancelled-elsewhere", tenure::KindOptions::new(), silent)
            .concurrency("q", 1),
    );
    let request = tenure::JobRequest::new("q", "cancelled-elsewhere", serde_json::json!(1));
    let id = bench.tenure.enqueue(request).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    // A cancellation without its announcement over NATS, and the silence that lets the scanner act at once.
    bench
        .execute(
            "UPDATE tenure.jobs SET cancel_requested_at = now(), last_activity_at = now() - interval '1 h'",
        )
        .await;
    assert_eq!(bench.until_finished(id).await.status, tenure::Status::Cancelled);
    let before = crate::harness::counted("tenure_attempts_total{kind=cancelled-elsewhere,outcome=completed}");
    std::fs::write(&go, "").unwrap();
    bench.until_stream_is_empty(std::time::Duration::from_secs(15)).await;
    worker.stop().await;
    let after = crate::harness::counted("tenure_attempts_total{kind=cancelled-elsewhere,outcome=completed}");
    assert_eq!(after, before, "no completion is counted");
    assert_eq!(bench.until_finished(id).await.status, tenure::Status::Cancelled);
}

/// A newer message comes while its job is being claimed for an older one, whose claim finds the job not due yet. The
/// older message is acknowledged then; if the newer one were too, no message would be left to run the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_while_its_job_is_being_claimed_is_delivered_again() {
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(30)).await;
    let worker = Running::start(
        // Without a relay: only these two messages can run the job.
        Worker::builder(&bench.tenure).handle(step).recovery(&[]).concurrency("steps", 2),
    );
    bench.until_count("tenure.workers", 1).await;
    let job = Step::new(&bench, "report");
    std::fs::write(job.file("go"), "").unwrap();
    let id = bench.tenure.enqueue(job).delay(Duration::from_secs(3_600)).await.unwrap().id;
    // Only the question why a claim was refused reads the dead letters: it waits, and the claim is still under way.
    let mut dead_letters = bench.pool.begin().await.unwrap();
    let lock = "LOCK TABLE tenure.dead_letter_jobs IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *dead_letters).await.unwrap();
    publish_ticket(&bench, id, 1).await;
    bench
        .until("EXISTS (SELECT FROM pg_locks WHERE relation = 'tenure.dead_letter_jobs'::regclass AND NOT granted)")
        .await;
    // A retry makes the job due now, and its message is published.
    bench
        .execute(
            "UPDATE tenure.jobs SET scheduled_at = now(), dispatch = 2, publish_at = NULL, published_at = now()",
        )
        .await;
    publish_ticket(&bench, id, 2).await;
    // Answered: the message is delivered a second time, or gone.
    let answered = async {
        while bench.messages().await == 2 && bench.consumer("steps").await.num_redelivered == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), answered).await.unwrap();
    assert_eq!(bench.messages().await, 2, "a message was acknowledged before its claim was answered");
    dead_letters.rollback().await.unwrap();
    assert_eq!(bench.until_finished(id).await.fencing_token, 1);
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    worker.stop().await;
}

/// Publishes a ticket as a relay does.
async fn publish_ticket(bench: &Bench, id: tenure::JobId, dispatch: u32) {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Job-Id", id.to_string());
    let body = format!(r#"{{"job_id": "{id}", "dispatch": {dispatch}, "cleared": false}}"#);
    let subject = format!("{}.steps.step", bench.config.subject_prefix);
    bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
}
