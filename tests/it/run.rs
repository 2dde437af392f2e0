//! Running and settling: every end of a handler is recorded as such, and the worker goes on.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::{
    Backoff, Job, JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Worker,
    handlers::CancelReason,
};

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, counted, until_file},
    scenarios::Step,
};

#[derive(Debug, Serialize, Deserialize)]
struct Typed {
    number: u32,
}

impl Job for Typed {
    const KIND: &'static str = "typed";
    const QUEUE: &'static str = "q";
    const MAX_ATTEMPTS: u32 = 1;
}

fn quick() -> KindOptions {
    let backoff =
        Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(50), jitter: 0.25 };
    KindOptions::new().backoff(backoff)
}

/// A worker with one handler for every kind.
fn worker<F, Fut, O>(bench: &Bench, options: KindOptions, handler: F) -> Running
where
    F: Fn(Value, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: tenure::handlers::IntoOutcome,
{
    Running::start(Worker::builder(&bench.tenure).handle_any(options, handler).concurrency("q", 4))
}

async fn enqueue(bench: &Bench, payload: Value, attempts: u32) -> tenure::JobId {
    // The stream exists, so that the first message is the only one.
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue(JobRequest::new("q", "k", payload).max_attempts(attempts)).await.unwrap().id
}

/// `null` is no output. An error that went through `anyhow` still decides about retries.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_returns_any_value_as_the_output_of_its_job() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("number", KindOptions::new(), |n: Value, _: JobContext| async move {
                Ok::<i64, JobError>(n.as_i64().unwrap() + 1)
            })
            .handle_kind("none", KindOptions::new(), |_: Value, _: JobContext| async {
                Ok::<Option<String>, JobError>(None)
            })
            .handle_kind("outcome", KindOptions::new(), |_: Value, _: JobContext| async {
                anyhow::Ok(Outcome::Cancel("not wanted".into()))
            })
            .handle_kind("error", KindOptions::new(), |_: Value, _: JobContext| async {
                let error = anyhow::Error::from(JobError::permanent("the card is closed").into_error());
                Err::<(), _>(error.context("charging"))
            })
            // Two handlers that forget a `?`.
            .handle_kind("inner-error", KindOptions::new(), |_: Value, _: JobContext| async {
                Ok::<Result<i64, String>, JobError>(Err("the inner error".into()))
            })
            .handle_kind("inner-value", KindOptions::new(), |_: Value, _: JobContext| async {
                Ok::<Result<i64, String>, JobError>(Ok(9))
            })
            .concurrency("q", 4),
    );
    for (kind, expected) in [
        ("number", (Status::Completed, Some(json!(8)), None)),
        ("none", (Status::Completed, None, None)),
        ("outcome", (Status::Cancelled, None, Some("not wanted"))),
        ("error", (Status::Failed, None, Some("charging: the card is closed"))),
        ("inner-error", (Status::Failed, None, Some("the inner error"))),
        ("inner-value", (Status::Completed, Some(json!(9)), None)),
    ] {
        let id = bench.tenure.enqueue(JobRequest::new("q", kind, json!(7)).max_attempts(1)).await.unwrap().id;
        let job = bench.until_finished(id).await;
        assert_eq!((job.status, job.output, job.last_error.as_deref()), expected, "{kind}");
        assert_eq!(job.attempt, 1, "{kind}");
    }
    worker.stop().await;
}

/// When the handler returns, the report before the last is written and the last one is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_completed_job_says_what_its_handler_said_last() {
    let bench = bench_with(|config| config.timing.flush_every = Duration::from_millis(450)).await;
    let pool = bench.pool.clone();
    let worker = worker(&bench, quick(), move |payload: Value, ctx: JobContext| {
        let pool = pool.clone();
        async move {
            ctx.progress("half", 66.0, "two of three").await?;
            let written = "SELECT progress = 66 FROM tenure.jobs WHERE id = $1";
            while !sqlx::query_scalar(written)
                .bind(ctx.id())
                .fetch_one(&pool)
                .await
                .unwrap_or(Some(false))
                .unwrap_or(false)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ctx.progress("whole", 100.0, "three of three").await?;
            match payload.as_str() {
                Some("in") => {
                    let mut tx = pool.begin().await.unwrap();
                    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                        .execute(&mut *tx)
                        .await
                        .unwrap();
                    ctx.lock_job(&mut tx).await?;
                    ctx.complete_in(tx, None).await
                }
                _ => Ok::<_, JobError>(Outcome::Done(None)),
            }
        }
    });
    for how in ["plain", "in"] {
        let id = enqueue(&bench, json!(how), 1).await;
        let done = bench.until_finished(id).await;
        assert_eq!(
            (done.status, done.fencing_token.0),
            (Status::Completed, 1),
            "{how}: {:?}",
            done.last_error
        );
        assert_eq!((done.progress, done.stage.as_deref()), (Some(100.0), Some("whole")), "{how}");
        assert_eq!(done.message.as_deref(), Some("three of three"), "{how}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_share_a_state() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .state(AtomicU32::new(0))
            .handle(|job: Typed, ctx: JobContext<AtomicU32>| async move {
                ctx.state().fetch_add(job.number, Ordering::SeqCst);
                Outcome::done(ctx.state().load(Ordering::SeqCst))
            })
            .concurrency("q", 1),
    );
    for number in [1, 2, 3] {
        bench.tenure.enqueue(Typed { number }).await.unwrap();
    }
    bench.until_count("tenure.job_history WHERE output = '6'", 1).await;
    worker.stop().await;
}

/// The job ended in good order: no alarm may report a lost job.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_context_that_outlives_its_job_says_that_it_ended_and_none_is_a_refused_write() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint)").await;
    let worker = Child::start(&bench, "worker");
    let job = Step::new(&bench, "leaves a task behind");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    std::fs::write(job.file("go"), "").unwrap();
    until_file(&job.file("result")).await;
    assert_eq!(
        std::fs::read_to_string(job.file("result")).unwrap(),
        "progress: Ended, save_checkpoint: Ended, fenced_tx: Ended, once: Ended, lock_job: Ended, complete_in: Ended"
    );
    assert_eq!(bench.text("SELECT * FROM tenure.recovery_events").await, "");
    assert_eq!(bench.count("public.app_effects").await, 0);
    let log = worker.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("after its job had ended")).collect();
    assert!(told.len() == 1 && told[0].contains(&format!("job={id}")), "{log}");
    assert!(!log.contains("stale write"), "{log}");
}

/// Otherwise the handler would be dropped silently and its queue still served: the jobs would wait for a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_was_added_before_the_state_has_none_and_runs_beside_those_that_have_it() {
    let bench = bench().await;
    let typed = |_: Typed, ctx: JobContext| async move { Outcome::done(format!("{:?}", ctx.state())) };
    let any = |_: serde_json::Value, ctx: JobContext| async move { Outcome::done(ctx.kind().to_owned()) };
    let stated = |_: serde_json::Value, ctx: JobContext<i32>| async move { Outcome::done(*ctx.state()) };
    let worker = Worker::builder(&bench.tenure)
        .handle(typed)
        .handle_any(KindOptions::new(), any)
        .state(7)
        .handle_kind("stated", KindOptions::new(), stated);
    let worker = Running::start(worker);
    let queue = <Typed as tenure::Job>::QUEUE;
    for (kind, output) in
        [(<Typed as tenure::Job>::KIND, json!("()")), ("other", json!("other")), ("stated", json!(7))]
    {
        let payload = serde_json::to_value(Typed { number: 1 }).unwrap();
        let id = bench.tenure.enqueue(JobRequest::new(queue, kind, payload)).await.unwrap().id;
        assert_eq!(bench.until_finished(id).await.output, Some(output), "{kind}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_another_type_a_panic_an_error_and_a_timeout_are_each_recorded_as_such() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle(|job: Typed, _: JobContext| async move { Outcome::done(job.number) })
            .handle_kind(
                "sleep",
                KindOptions::new().timeout(Duration::from_millis(200)),
                |_: Value, _: JobContext| async move {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                    Outcome::done(())
                },
            )
            .handle_any(KindOptions::new(), |payload: Value, _: JobContext| async move {
                match payload.as_str().unwrap() {
                    "panic" => panic!("the roof is {}", "on fire"),
                    "odd panic" => std::panic::panic_any(7),
                    "error" => Err(JobError::from(std::io::Error::other("no such host"))),
                    "nul" => Err(JobError::msg("bad\0byte")),
                    "permanent" => Err(JobError::permanent("no such customer")),
                    _ => Ok(()),
                }
            })
            .concurrency("q", 2),
    );
    let cases = [
        ("panic", "exhausted", "the handler panicked: the roof is on fire"),
        ("odd panic", "exhausted", "the handler panicked: the panic has no text"),
        ("error", "exhausted", "no such host"),
        ("nul", "exhausted", "bad\u{fffd}byte"),
        ("permanent", "permanent", "no such customer"),
        ("sleep", "exhausted", "it ran longer than the 200ms that its kind allows"),
    ];
    let mut expected = vec![];
    for (what, category, error) in cases {
        let attempts = if what == "permanent" { 5 } else { 1 };
        bench.tenure.setup(&["q".into()]).await.unwrap();
        let kind = if what == "sleep" { "sleep" } else { "k" };
        let request = JobRequest::new("q", kind, json!(what)).max_attempts(attempts);
        expected.push((bench.tenure.enqueue(request).await.unwrap().id, category, error));
    }
    let odd = JobRequest::new("q", "typed", json!({"number": "seven"})).max_attempts(1);
    let odd = bench.tenure.enqueue(odd).await.unwrap().id;
    expected.push((
        odd,
        "invalid_payload",
        "the payload does not fit the type of its handler: invalid type: string \"seven\", expected u32",
    ));
    for (id, category, error) in expected {
        let job = bench.until_finished(id).await;
        assert_eq!(job.status, Status::Failed);
        let found = job.last_error.unwrap();
        assert!(found.starts_with(error), "{found:?} is not {error:?}");
        let letter = bench.text(&format!("SELECT category, attempt, execution_history->0->>'outcome' FROM tenure.dead_letter_jobs WHERE id = '{id}'")).await;
        assert_eq!(letter, format!("({category},1,failed)"));
    }
    // The worker still works.
    let fine = bench.tenure.enqueue(Typed { number: 1 }).await;
    assert!(fine.is_ok());
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_job_is_tried_with_growing_waits_and_dies_with_its_whole_history() {
    let bench = bench().await;
    let backoff =
        Backoff { first: Duration::from_millis(200), longest: Duration::from_millis(400), jitter: 0.0 };
    let worker = worker(&bench, KindOptions::new().backoff(backoff), |_, ctx| async move {
        Err::<(), _>(JobError::msg(format!("failure {}", ctx.attempt())))
    });
    let id = enqueue(&bench, json!(1), 4).await;
    let job = bench.until_finished(id).await;
    assert_eq!((job.status, job.attempt, job.fencing_token.0), (Status::Failed, 4, 4));
    let history = bench
        .text("SELECT e->>'attempt', e->>'outcome', e->>'error' FROM tenure.dead_letter_jobs, jsonb_array_elements(execution_history) WITH ORDINALITY h(e, n) ORDER BY n")
        .await;
    assert_eq!(
        history,
        "(1,retried,\"failure 1\")\n(2,retried,\"failure 2\")\n(3,retried,\"failure 3\")\n(4,failed,\"failure 4\")"
    );
    let waits: Vec<f64> = sqlx::query_scalar(
        "SELECT extract(epoch FROM started_at - lag(finished_at) OVER (ORDER BY fencing_token))::float8
           FROM tenure.job_executions_all ORDER BY fencing_token OFFSET 1",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    // The wait starts a little before the recorded end; the relay looks every 50 ms.
    for (wait, least) in waits.iter().zip([0.2, 0.4, 0.4]) {
        assert!(*wait > least - 0.1 && *wait < least + 1.0, "{waits:?}");
    }
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timed_retry_a_snooze_and_a_cancel_are_settled_as_the_handler_said() {
    let bench = bench().await;
    let worker = worker(&bench, KindOptions::new(), |payload: Value, ctx: JobContext| async move {
        match payload.as_str().unwrap() {
            _ if ctx.token().0 > 1 => Outcome::done(ctx.attempt()),
            "retry" => Err(JobError::retry_after(Duration::from_millis(100), "busy")),
            "snooze" => Ok(Outcome::Snooze(Duration::from_millis(100))),
            _ => Ok(Outcome::Cancel("not needed any more".into())),
        }
    });
    let retry = enqueue(&bench, json!("retry"), 5).await;
    let snooze = enqueue(&bench, json!("snooze"), 1).await;
    let cancel = enqueue(&bench, json!("cancel"), 5).await;
    assert_eq!(bench.until_finished(retry).await.output, Some(json!(2)));
    let snoozed = bench.until_finished(snooze).await;
    assert_eq!(
        (snoozed.output, snoozed.attempt, snoozed.fencing_token.0),
        (Some(json!(1)), 1, 2),
        "no attempt charged"
    );
    let cancelled = bench.until_finished(cancel).await;
    assert_eq!(
        (cancelled.status, cancelled.last_error.as_deref()),
        (Status::Cancelled, Some("not needed any more"))
    );
    let outcomes =
        bench.text("SELECT outcome, count(*) FROM tenure.job_executions_all GROUP BY 1 ORDER BY 1").await;
    assert_eq!(outcomes, "(cancelled,1)\n(completed,2)\n(retried,1)\n(snoozed,1)");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_reports_are_a_few_writes_and_the_last_one_stands() {
    let bench = bench_with(|config| config.timing.flush_every = Duration::from_millis(200)).await;
    let worker = worker(&bench, KindOptions::new(), |_, ctx: JobContext| async move {
        for n in 0..1_000_u16 {
            ctx.progress("counting", f32::from(n) / 10.0, &n.to_string()).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        ctx.progress("counting", f32::NAN, "last").await?;
        ctx.progress("counting", 1e9, "last").await?;
        // Until the last report is written.
        tokio::time::sleep(Duration::from_millis(600)).await;
        Ok::<_, JobError>(())
    });
    let before: (i64, i64) = updates(&bench).await;
    let id = enqueue(&bench, json!(1), 1).await;
    let job = bench.until_finished(id).await;
    assert_eq!((job.progress, job.message.as_deref()), (Some(100.0), Some("last")));
    bench.execute("SELECT pg_stat_force_next_flush()").await;
    bench
        .until(&format!(
            "(SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'jobs') > {}",
            before.0 + 4
        ))
        .await;
    let after = updates(&bench).await;
    let (all, hot) = (after.0 - before.0, after.1 - before.1);
    // The claim and the progress writes: at most one in 200 ms, over some 2 s; all of them HOT.
    assert!((5..=20).contains(&all), "{all} updates");
    assert_eq!(hot, all, "HOT updates");
    worker.stop().await;
}

async fn updates(bench: &Bench) -> (i64, i64) {
    sqlx::query_as("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'jobs'")
        .fetch_one(&bench.pool)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chatty_job_outlives_ack_wait_without_being_delivered_again() {
    let bench = bench().await;
    let worker = worker(&bench, KindOptions::new(), |_, ctx: JobContext| async move {
        // ack_wait is 4 s.
        for n in 0..60_u8 {
            ctx.progress("working", f32::from(n), "").await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok::<_, JobError>(())
    });
    let id = enqueue(&bench, json!(1), 1).await;
    bench.until_count("tenure.jobs WHERE progress > 50", 1).await;
    let info = bench.consumer("q").await;
    assert_eq!((info.num_redelivered, info.num_ack_pending), (0, 1));
    assert_eq!(bench.until_finished(id).await.fencing_token, 1);
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_job_is_reset_unless_its_kind_is_kept_alive() {
    let bench = bench().await;
    let silent = |_, ctx: JobContext| async move {
        if ctx.token().0 == 1 {
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        Outcome::done(ctx.token().0)
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("kept", KindOptions::new().keepalive(), silent)
            .handle_kind("silent", KindOptions::new(), silent)
            .concurrency("q", 4),
    );
    let kept = bench.tenure.enqueue(JobRequest::new("q", "kept", json!(1))).await.unwrap().id;
    let lost = bench.tenure.enqueue(JobRequest::new("q", "silent", json!(1))).await.unwrap().id;
    assert_eq!(bench.until_finished(kept).await.output, Some(json!(1)));
    // The process lives, but the job showed no sign of life within stale_after (1.5 s).
    assert_eq!(bench.until_finished(lost).await.output, Some(json!(2)));
    let event =
        bench.text("SELECT DISTINCT event, path FROM tenure.recovery_events WHERE event = 'reset'").await;
    assert_eq!(event, "(reset,scanner)");
    worker.stop().await;
    // The reset is recorded and counted.
    assert!(counted("tenure_recoveries_total{path=scanner,reason=silent}") >= 1);
    assert!(counted("tenure_attempts_total{kind=kept,outcome=completed}") >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_of_a_job_that_runs_here_is_kept_for_the_ack_and_not_run() {
    let bench = bench().await;
    let runs = Arc::new(AtomicU32::new(0));
    let (counted, gate) = (runs.clone(), Arc::new(tokio::sync::Semaphore::new(0)));
    let opened = gate.clone();
    let worker = worker(&bench, KindOptions::new(), move |_, ctx: JobContext| {
        let (counted, opened) = (counted.clone(), opened.clone());
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::select! {
                permit = opened.acquire() => permit.unwrap().forget(),
                () = async { loop { ctx.progress("", 0.0, "").await.unwrap(); tokio::time::sleep(Duration::from_millis(50)).await; } } => {}
            }
        }
    });
    let id = enqueue(&bench, json!(1), 3).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    // Twenty more messages for the job, as a relay in doubt would publish them.
    for dispatch in 2..22 {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Tenure-Job-Id", id.to_string());
        headers.insert("Nats-Msg-Id", format!("{id}:{dispatch}"));
        let body = json!({"job_id": id, "dispatch": dispatch}).to_string();
        let subject = format!("{}.q.k", bench.config.subject_prefix);
        bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
    }
    // All are delivered; none is acknowledged or run.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let consumer = bench.consumer("q").await;
        if consumer.num_ack_pending == 21 && consumer.num_pending == 0 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{consumer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(bench.messages().await, 21);
    gate.add_permits(1);
    bench.until_finished(id).await;
    bench.until_stream_is_empty(Duration::from_secs(3)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(bench.count("tenure.job_executions_all").await, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_saved_right_before_a_failure_reaches_the_next_attempt() {
    let bench = bench().await;
    let worker = worker(&bench, quick(), |_, ctx: JobContext| async move {
        let done: u32 = ctx.checkpoint().unwrap_or_default();
        if done == 3 {
            return Outcome::done(json!({"attempts": ctx.attempt()}));
        }
        ctx.save_checkpoint(&(done + 1)).await?;
        Err(JobError::msg("one step each"))
    });
    let id = enqueue(&bench, json!(1), 5).await;
    assert_eq!(bench.until_finished(id).await.output, Some(json!({"attempts": 4})));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_of_once_is_done_once_and_its_result_is_returned_again() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.charges (job uuid)").await;
    let worker = worker(&bench, quick(), |_, ctx: JobContext| async move {
        let job = ctx.id();
        let token = ctx.token().0;
        let receipt: i64 = ctx
            .once("charge-card", async |tx| {
                sqlx::query("INSERT INTO public.charges VALUES ($1)").bind(job).execute(tx).await?;
                Ok(token)
            })
            .await?;
        if ctx.attempt() < 3 {
            return Err(JobError::msg("after the effect"));
        }
        Outcome::done(receipt)
    });
    let id = enqueue(&bench, json!(1), 5).await;
    assert_eq!(bench.until_finished(id).await.output, Some(json!(1)), "the first attempt's result");
    assert_eq!(bench.count("public.charges").await, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn business_writes_and_completion_are_one_commit() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.charges (job uuid, attempt int)").await;
    let pool = bench.pool.clone();
    let worker = worker(&bench, quick(), move |_, ctx: JobContext| {
        let pool = pool.clone();
        async move {
            let mut tx = pool.begin().await?;
            sqlx::query("INSERT INTO public.charges VALUES ($1, $2)")
                .bind(ctx.id())
                .bind(i32::try_from(ctx.attempt()).unwrap())
                .execute(&mut *tx)
                .await?;
            if ctx.attempt() == 1 {
                return Err(JobError::msg("dropped before the commit"));
            }
            ctx.complete_in(tx, Some(json!("paid"))).await
        }
    });
    let id = enqueue(&bench, json!(1), 5).await;
    let job = bench.until_finished(id).await;
    assert_eq!((job.status, job.output), (Status::Completed, Some(json!("paid"))));
    assert_eq!(bench.text("SELECT attempt FROM public.charges").await, "(2)");
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    worker.stop().await;
}

/// The row is reset and claimed again between the handler's write and its commit.
/// A job is reset, and runs again, while its handler is in a transaction with the fence. Then, for `locked_for`, no
/// refusal can be recorded. Returns what the handler has learnt, if it was not dropped before.
async fn taken_meanwhile(bench: &Bench, locked_for: Duration) -> Vec<(bool, CancelReason)> {
    bench.execute("CREATE TABLE public.app_effects (token bigint)").await;
    let errors = Arc::new(Mutex::new(Vec::new()));
    let (seen, pool) = (errors.clone(), bench.pool.clone());
    let worker = worker(bench, KindOptions::new(), move |_, ctx: JobContext| {
        let (seen, pool) = (seen.clone(), pool.clone());
        async move {
            let token = ctx.token();
            if token.0 > 1 {
                return Outcome::done("second");
            }
            let id = ctx.id();
            let steal = pool.clone();
            let fenced = ctx
                .fenced_tx(async |tx| {
                        sqlx::query("INSERT INTO public.app_effects VALUES ($1)").bind(token).execute(&mut *tx).await?;
                        // The fence, not checked yet, holds no lock: the job is reset and runs again.
                        sqlx::query("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h' WHERE id = $1").bind(id).execute(&steal).await?;
                        loop {
                            // Over the transaction's own session: left idle for half of stale_after it would be ended.
                            let gone: i64 = sqlx::query_scalar("SELECT count(*) FROM tenure.all_jobs WHERE id = $1 AND (fencing_token > 1 OR status = 'queued')").bind(id).fetch_one(&mut *tx).await?;
                            if gone == 1 {
                                break;
                            }
                        }
                        let mut locked = steal.begin().await?;
                        if !locked_for.is_zero() {
                            sqlx::query("LOCK TABLE tenure.recovery_events IN SHARE MODE").execute(&mut *locked).await?;
                        }
                        tokio::spawn(async move {
                            tokio::time::sleep(locked_for).await;
                            locked.commit().await
                        });
                        Ok(())
                    })
                .await;
            let error = fenced.unwrap_err();
            let reason = ctx.cancelled().await;
            seen.lock().unwrap().push((error.is_lost(), reason));
            Err(error)
        }
    });
    let id = enqueue(bench, json!(1), 5).await;
    assert_eq!(bench.until_finished(id).await.output, Some(json!("second")));
    // Of a job's refused writes the first is recorded: a heartbeat may have come before the transaction's end.
    bench.until_count("tenure.recovery_events WHERE event = 'refused_write'", 1).await;
    assert_eq!(bench.count("public.app_effects").await, 0);
    worker.stop().await;
    std::mem::take(&mut *errors.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_job_was_taken_meanwhile_is_rolled_back() {
    let bench = bench_with(|config| config.timing.cancel_grace = Duration::from_secs(60)).await;
    let learnt = taken_meanwhile(&bench, Duration::ZERO).await;
    assert_eq!(learnt, [(true, CancelReason::Lost)]);
}

/// The handler that meets the refusal is dropped at the end of its grace, half a second, while the record waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_recorded_although_its_handler_is_dropped_meanwhile() {
    let bench = bench().await;
    taken_meanwhile(&bench, Duration::from_millis(1_500)).await;
}

/// Only the heartbeat can stop a handler that reports nothing; its slot must become free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_handler_learns_that_its_job_was_reset_and_the_job_runs_again_on_the_same_worker() {
    let bench = bench().await;
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let seen = reasons.clone();
    let options = KindOptions::new();
    let worker = worker(&bench, options, move |payload: Value, ctx: JobContext| {
        let seen = seen.clone();
        async move {
            if ctx.token().0 > 1 {
                return Outcome::done("again");
            }
            if payload == json!("listens") {
                let reason = ctx.cancelled().await;
                seen.lock().unwrap().push(reason);
                return Err(JobError::msg("stopped"));
            }
            std::future::pending().await
        }
    });
    let started = std::time::Instant::now();
    let listens = enqueue(&bench, json!("listens"), 3).await;
    let hangs = enqueue(&bench, json!("hangs"), 3).await;
    for id in [listens, hangs] {
        assert_eq!(bench.until_finished(id).await.output, Some(json!("again")));
    }
    // 1.5 s of silence, a scan, the grace of a cancelled handler: not a wait for ack_wait or a lost message.
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(*reasons.lock().unwrap(), [CancelReason::Lost]);
    let events = bench.text("SELECT event, path, count(*) FROM tenure.recovery_events GROUP BY 1, 2").await;
    assert_eq!(events, "(reset,scanner,2)", "no message was lost, and no write refused");
    bench.until_stream_is_empty(Duration::from_secs(8)).await;
    worker.stop().await;
}

/// A statement that hits its own time limit, or a deadlock, fails the attempt, which is charged and backed off. Only an
/// outage is not charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_statement_of_the_users_own_is_charged_like_any_failure() {
    let bench = bench().await;
    let worker = worker(&bench, quick(), |payload: Value, ctx: JobContext| async move {
        let code = payload.as_str().unwrap().to_owned();
        ctx.fenced_tx(async |tx| {
            let sql = format!("DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{code}'; END $$");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(tx).await?;
            Ok(())
        })
        .await
    });
    for code in ["57014", "40001", "55P03", "53300"] {
        let id = enqueue(&bench, json!(code), 2).await;
        let job = bench.until_finished(id).await;
        assert_eq!((job.status, job.attempt), (Status::Failed, 2), "{code}");
        assert!(job.last_error.unwrap().contains("on purpose"));
    }
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_or_a_retry_for_ever_is_bounded_and_settled() {
    let bench = bench().await;
    let worker = worker(&bench, KindOptions::new(), |payload: Value, _| async move {
        if payload == json!("snooze") {
            return Ok(Outcome::Snooze(Duration::MAX));
        }
        Err(JobError::retry_after(Duration::MAX, "never"))
    });
    enqueue(&bench, json!("snooze"), 2).await;
    enqueue(&bench, json!("retry"), 2).await;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND scheduled_at > now() + interval '9 years' AND fencing_token = 1", 2).await;
    worker.stop().await;
}

/// A right that is missing for a while does not fail the attempt: the completion waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_postgres_refuses_for_a_while_is_written_when_it_is_mended() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    let ended = Arc::new(AtomicU32::new(0));
    let counted = ended.clone();
    let worker = worker(&bench, KindOptions::new(), move |_, _| {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Outcome::done("precious")
        }
    });
    bench
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'permission denied' USING ERRCODE = '42501'; END $$",
        )
        .await;
    bench.execute("CREATE TRIGGER refuse BEFORE DELETE ON tenure.jobs FOR EACH ROW EXECUTE FUNCTION public.refuse()").await;
    let id = enqueue(&bench, json!(1), 1).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while ended.load(Ordering::SeqCst) == 0 {
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The completion is retried, and the job stays processing.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
    bench.execute("DROP TRIGGER refuse ON tenure.jobs").await;
    let job = bench.until_finished(id).await;
    assert_eq!(
        (job.status, job.output, job.fencing_token.0),
        (Status::Completed, Some(json!("precious")), 1)
    );
    worker.stop().await;
}
