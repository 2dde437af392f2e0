//! Answers that are lost, refused, or never come.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Connection;
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Tenure, Worker};

use super::{linked, worker};
use crate::{
    harness::{Child, Running, bench, bench_with, bench_with_servers, until_file},
    scenarios::{Step, step},
};

/// The client takes some 2,000 messages while NATS is away, and then makes its callers wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_nats_that_takes_nothing_does_not_stop_the_heartbeats() {
    let mut bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(8);
        config.timing.ack_wait = Duration::from_secs(12);
        config.timing.flush_every = Duration::from_secs(1);
    })
    .await;
    let go = bench.config.runtime_dir.join("go");
    let end = bench.config.runtime_dir.join("end");
    let (waits_for, ends_at) = (go.clone(), end.clone());
    let job = move |payload: Value, ctx: JobContext| {
        let until = if payload == json!("chat") { ends_at.clone() } else { waits_for.clone() };
        async move {
            while !until.exists() {
                ctx.progress("waiting", 1.0, "").await?;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Ok::<_, JobError>(())
        }
    };
    let working = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), job).concurrency("q", 2_500),
    );
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let chat = bench.tenure.enqueue(JobRequest::new("q", "k", json!("chat"))).await.unwrap().id;
    bench.tenure.enqueue_many((0..2_400).map(|n| JobRequest::new("q", "k", json!(n)))).await.unwrap();
    bench.until_count("tenure.jobs WHERE stage = 'waiting'", 2_401).await;
    bench.own.as_mut().unwrap().nats.stop();
    // Each handler's worker task now acknowledges its message.
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    std::fs::write(&go, "").unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2_400).await;
    // Longer than `ack_wait` and than `stale_after`.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let quiet: f64 = bench
        .value("SELECT extract(epoch FROM clock_timestamp() - last_activity_at)::float8 FROM tenure.jobs")
        .await;
    assert!(quiet < 4.0, "its last sign of life was {quiet} s ago");
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    std::fs::write(&end, "").unwrap();
    let done = bench.until_finished(chat).await;
    assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 1));
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_a_worker_with_other_limits_leaves_the_job_alone() {
    let bench = bench().await;
    let mut roomy = Child::on(&bench, "roomy", "worker");
    let job = Step::new(&bench, "report");
    let mut body = serde_json::to_value(&job).unwrap();
    body["padding"] = json!("x".repeat(10_000));
    bench.until_count("tenure.workers", 1).await;
    bench.publish("steps.step", &body.to_string()).await;
    until_file(&job.file("started")).await;
    roomy.kill().await;
    // The next worker accepts less, and gets the same message again.
    let mut config = bench.config.clone();
    config.payload_bytes_max = 1_000;
    let tenure = Tenure::connect(&config).await.unwrap();
    let narrow = Running::start(Worker::builder(&tenure).handle(step));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    // It refuses the same body in a new message.
    bench.publish("steps.step", &body.to_string()).await;
    bench.until_count("tenure.dead_letter_jobs WHERE category = 'too_large'", 1).await;
    narrow.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_dies_replaces_the_refusal_of_its_own_message() {
    let bench = bench().await;
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(1)).await.unwrap().id;
    // A refusal as an older version may have left it.
    bench
        .execute(&format!(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, raw_payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             VALUES ('{id}', 'q', 'k', 'raw', 0, 1, 0, now(), now(), now(), 'too large', 'too_large', '[]')"
        ))
        .await;
    let fails = |_: Value, _: JobContext| async { Err::<(), _>(JobError::permanent("no")) };
    let working = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), fails).concurrency("q", 1),
    );
    bench.until_count("tenure.jobs", 0).await;
    let dead =
        bench.text("SELECT payload, raw_payload, last_error, category FROM tenure.dead_letter_jobs").await;
    assert_eq!(dead, "(1,,no,permanent)");
    working.stop().await;
}

/// More values than a statement can have: sqlx refuses it without asking Postgres, as if the connection were broken.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_never_can_be_sent_is_the_attempts_failure() {
    let bench = bench().await;
    let many = |_: Value, ctx: JobContext| async move {
        ctx.fenced_tx(async |tx| {
            let query = (0..70_000).fold(sqlx::query("SELECT 1"), |query, n: i32| query.bind(n));
            query.execute(tx).await?;
            Ok(())
        })
        .await
    };
    let working = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), many).concurrency("q", 1),
    );
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(1)).await.unwrap();
    bench.until_count("tenure.dead_letter_jobs WHERE category = 'exhausted'", 1).await;
    working.stop().await;
}

/// SQL that ends its own connection each time is charged in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_breaks_its_own_connection_again_and_again_is_charged_at_last() {
    let bench = bench().await;
    let breaks = |_: Value, ctx: JobContext| async move {
        ctx.fenced_tx(async |tx| {
            sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())").execute(tx).await?;
            Ok(())
        })
        .await
    };
    let backoff = tenure::Backoff {
        first: Duration::from_millis(10),
        longest: Duration::from_millis(20),
        ..tenure::Backoff::DEFAULT
    };
    let options = KindOptions::new().backoff(backoff);
    let working =
        Running::start(Worker::builder(&bench.tenure).handle_any(options, breaks).concurrency("q", 1));
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(2)).await.unwrap();
    bench.until_count("tenure.dead_letter_jobs WHERE category = 'exhausted'", 1).await;
    let released = bench.count("tenure.job_executions WHERE outcome = 'released'").await;
    assert_eq!(released, 20);
    working.stop().await;
}

/// The message may next come to another worker, which would find the first one to be a live owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_is_released_by_its_worker() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
        config.timing.pull_for = Duration::from_secs(30);
    })
    .await;
    bench.execute("CREATE TABLE public.effects (job uuid, token bigint)").await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let link = linked(&bench).await;
    let first = Running::start(worker(&link.tenure, 1).recovery(&[]));
    bench.until_count("tenure.workers", 1).await;
    let waiting = || async { bench.consumer("q").await.num_waiting };
    while waiting().await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The worker gets the message that it requested, and cannot answer it.
    link.nats.cut_requests();
    let id: tenure::JobId = "01977777-cafe-7abc-8def-0123456789ab".parse().unwrap();
    link.postgres.lose_answer_to(id.0.as_bytes());
    // The id must be known before.
    bench
        .execute(&format!(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, status, attempt, max_attempts, fencing_token, scheduled_at, publish_at)
             VALUES ('{id}', 'q', 'k', '{{}}', 'queued', 0, 1, 0, now(), now())"
        ))
        .await;
    let relay = Running::start(worker(&bench.tenure, 1));
    let done = bench.until_finished(id).await;
    assert_eq!(link.postgres.lost(), 1, "the answer was lost");
    assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 2));
    let how = bench.text("SELECT event, path, reason FROM tenure.recovery_events").await;
    assert_eq!(how, "(release,worker,\"the answer to its claim was lost\")");
    relay.stop().await;
    drop(first);
}

#[test]
fn a_caller_whose_client_has_lost_its_runtime_gets_an_error() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let (bench, tenure) = first.block_on(async {
        let bench = bench().await;
        let tenure = Tenure::connect(&bench.config).await.unwrap();
        tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
        (bench, tenure)
    });
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        let answer = tokio::time::timeout(Duration::from_secs(20), async {
            tenure.enqueue(JobRequest::new("q", "k", json!(2))).await
        });
        let error = answer.await.expect("an answer").unwrap_err();
        assert!(matches!(error, tenure::EnqueueError::Store(_)), "{error:?}");
        drop(bench);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_was_saved_during_an_outage_reaches_the_next_attempt() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(10);
        config.timing.ack_wait = Duration::from_secs(30);
        config.timing.database_within = Duration::from_millis(500);
    })
    .await;
    let link = linked(&bench).await;
    let fail = bench.config.runtime_dir.join("fail");
    let when = fail.clone();
    let job = move |_: Value, ctx: JobContext| {
        let when = when.clone();
        async move {
            if ctx.attempt() > 1 {
                return Outcome::done(ctx.checkpoint::<u32>());
            }
            ctx.progress("begun", 1.0, "").await?;
            while !when.exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ctx.save_checkpoint(&42).await?;
            Err(JobError::msg("failed during the outage"))
        }
    };
    let backoff = tenure::Backoff { first: Duration::from_millis(50), ..tenure::Backoff::DEFAULT };
    let options = KindOptions::new().backoff(backoff);
    let working = Running::start(Worker::builder(&link.tenure).handle_any(options, job).concurrency("q", 1));
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE stage = 'begun'", 1).await;
    link.postgres.cut();
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    std::fs::write(&fail, "").unwrap();
    // Longer than a call's deadline.
    tokio::time::sleep(Duration::from_secs(3)).await;
    link.postgres.mend();
    let done = bench.until_finished(id).await;
    assert_eq!((done.status, done.output), (Status::Completed, Some(json!(42))));
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_read_only_for_a_while_is_left_as_soon_as_it_says_so() {
    let bench = bench().await;
    let database = bench.config.database_url.rsplit('/').next().unwrap().to_owned();
    super::enqueue(&bench, 20, 100).await;
    let working = Running::start(worker(&bench.tenure, 20));
    bench.until_count("tenure.jobs WHERE stage = 'working'", 20).await;
    let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
    bench.execute(&format!("ALTER DATABASE {database} SET default_transaction_read_only = on")).await;
    bench.execute(others).await;
    let request = || JobRequest::new("q", "k", json!({}));
    let error = loop {
        match bench.tenure.enqueue(request()).await {
            // The first answer comes from a session that was ended.
            Err(error) if format!("{error:?}").contains("25006") => break error,
            other => assert!(other.is_err(), "written to a read-only database"),
        }
    };
    assert!(matches!(&error, tenure::EnqueueError::Store(error) if error.is_unavailable()), "{error:?}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Sessions that connected meanwhile stay read-only, as on the old primary after a failover.
    let mut admin = sqlx::PgConnection::connect(&bench.config.database_url).await.unwrap();
    let reset = format!("ALTER DATABASE {database} RESET default_transaction_read_only");
    for sql in ["SET default_transaction_read_only = off", &reset] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    }
    let began = Instant::now();
    while bench.tenure.enqueue(request()).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(5), "still read-only connections");
    }
    super::all_done_once(&bench, 21).await;
    working.stop().await;
}

/// What Postgres does with one output takes longer than a call may.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_late_each_time_is_that_jobs_fault() {
    let bench = bench_with(|config| {
        config.timing.database_within = Duration::from_secs(1);
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    let slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(2); RAISE query_canceled; END $$";
    bench.execute(slow).await;
    let trigger = "CREATE TRIGGER slow BEFORE INSERT ON tenure.job_history FOR EACH ROW
                   WHEN (length(NEW.output::text) > 1000000 AND NEW.status = 'completed') EXECUTE FUNCTION public.slow()";
    bench.execute(trigger).await;
    let handler = async |payload: Value, _: JobContext| {
        let output = if payload == json!("slow") { json!("x".repeat(1_200_000)) } else { payload };
        Ok::<_, JobError>(Outcome::Done(Some(output)))
    };
    let working = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 4),
    );
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let slow = bench.tenure.enqueue(JobRequest::new("q", "k", json!("slow"))).await.unwrap().id;
    let mut others = Vec::new();
    let ended = loop {
        let other = bench.tenure.enqueue(JobRequest::new("q", "k", json!("quick"))).await.unwrap().id;
        others.push(other);
        bench.until_finished(other).await;
        match bench.tenure.job(slow).await.unwrap() {
            Some(job) if job.status == Status::Failed => break job,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let error = ended.last_error.unwrap_or_default();
    assert!(error.contains("the completion was refused"), "{error}");
    assert_eq!(ended.fencing_token.0, 1, "its only attempt");
    for other in others {
        let other = bench.until_finished(other).await;
        assert_eq!((other.status, other.fencing_token.0), (Status::Completed, 1));
    }
    working.stop().await;
}
