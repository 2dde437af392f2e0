//! Limits: time limits, handlers that block their thread, retry policies, crashes, sizes, waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json, value::RawValue};
use tenure::{
    Backoff, JobContext, JobError, JobRequest, KindOptions, Outcome, Retry, Status, Worker, WorkerError,
    handlers::OnCrash, jobs::WaitError,
};

use crate::{
    harness::{Child, Running, bench, bench_with, counted, until_file},
    scenarios::{Step, step},
};

/// Two threads for handlers, as on a small machine; the test itself runs on other threads.
fn two_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn job(kind: &str) -> JobRequest {
    JobRequest::new("q", kind, json!(1)).max_attempts(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_block_their_threads_stop_neither_heartbeats_nor_claims_nor_the_shutdown() {
    let bench = bench().await;
    let threads = two_threads();
    let blocks = |_: Value, _: JobContext| async {
        // Longer than stale_after.
        std::thread::sleep(Duration::from_secs(2));
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handlers_on(threads.handle().clone())
            .handle_kind("blocks", KindOptions::new().timeout(Duration::from_millis(300)), blocks)
            .handle_kind("lives", KindOptions::new().keepalive(), |_, ctx: JobContext| async move {
                ctx.cancelled().await;
            })
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("q", 3),
    );
    let lives = bench.tenure.enqueue(job("lives")).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let before = counted("tenure_blocked_handlers_total{kind=blocks}");
    let mut blocked = vec![];
    for _ in 0..2 {
        blocked.push(bench.tenure.enqueue(job("blocks")).await.unwrap().id);
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 3).await;
    let started = Instant::now();
    // Both threads are blocked. The worker settles the jobs that timed out without them, and frees their slots.
    for id in blocked {
        let failed = bench.until_finished(id).await;
        let error = failed.last_error.unwrap();
        assert!(failed.status == Status::Failed && error.contains("it ran longer than the 300ms"), "{error}");
    }
    let next = bench.tenure.enqueue(job("next")).await.unwrap().id;
    bench
        .until(&format!("EXISTS (SELECT FROM tenure.jobs WHERE id = '{next}' AND status = 'processing')"))
        .await;
    assert!(started.elapsed() < Duration::from_millis(1_900), "{:?}", started.elapsed());
    // Heartbeats went on: the live job was not reset, though no handler could report.
    tokio::time::sleep(Duration::from_secs(2).saturating_sub(started.elapsed())).await;
    assert_eq!(bench.count("tenure.recovery_events WHERE event = 'reset'").await, 0);
    assert_eq!(counted("tenure_blocked_handlers_total{kind=blocks}") - before, 2);
    // A claimed job that found no free thread was released, not charged. The handler that waits for its cancellation
    // gets it once a thread is free.
    let done = bench.until_finished(next).await;
    assert_eq!((done.status, done.attempt), (Status::Completed, 1));
    assert!(
        bench.count("tenure.recovery_events WHERE reason = 'no thread was free for its handler'").await > 0
    );
    bench.tenure.cancel(lives).await.unwrap();
    bench.until_finished(lives).await;
    worker.stop().await;
    threads.shutdown_background();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_a_handler_that_blocks() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_millis(100)).await;
    let threads = two_threads();
    let handler = |_: Value, _: JobContext| async { std::thread::sleep(Duration::from_secs(20)) };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handlers_on(threads.handle().clone())
            .handle_any(KindOptions::new(), handler)
            .concurrency("q", 1),
    );
    bench.tenure.enqueue(job("k")).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let started = Instant::now();
    worker.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(bench.text("SELECT status, attempt FROM tenure.jobs").await, "(queued,0)", "released");
    threads.shutdown_background();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_every_thread_is_held_by_abandoned_handlers_ends_and_says_so() {
    let bench = bench().await;
    let threads = two_threads();
    let handler = |_: Value, _: JobContext| async { std::thread::sleep(Duration::from_secs(20)) };
    let options = KindOptions::new().timeout(Duration::from_millis(50));
    let worker = Worker::builder(&bench.tenure)
        .handlers_on(threads.handle().clone())
        .handle_any(options, handler)
        .concurrency("q", 2);
    for _ in 0..2 {
        bench.tenure.enqueue(job("k")).await.unwrap();
    }
    let ended = tokio::time::timeout(Duration::from_secs(10), worker.run_until(std::future::pending())).await;
    let error = ended.expect("the worker ends by itself").unwrap_err();
    assert!(matches!(error, WorkerError::Blocked { threads: 2 }), "{error}");
    assert!(error.to_string().contains("spawn_blocking"));
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    assert_eq!(bench.count("tenure.workers").await, 0, "the worker deleted its row");
    threads.shutdown_background();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_of_zero_or_beyond_the_timers_is_refused_at_the_start() {
    let bench = bench().await;
    let refused = |options: KindOptions| {
        let worker =
            Worker::builder(&bench.tenure).handle_kind("k", options, |_, _| async {}).concurrency("q", 1);
        async move { worker.run_until(std::future::pending()).await.unwrap_err().to_string() }
    };
    for (options, expected) in [
        (KindOptions::new().timeout(Duration::ZERO), "kind \"k\": timeout is 0 s"),
        (KindOptions::new().stale_after(Duration::ZERO), "kind \"k\": stale_after is 0 s"),
        (KindOptions::new().stale_after(Duration::from_secs(60)), "raise TENURE_ACK_WAIT"),
        (
            KindOptions::new().stale_after(Duration::from_millis(100)),
            "at most a third of stale_after (100ms)",
        ),
        (KindOptions::new().stale_after(Duration::MAX), "raise TENURE_ACK_WAIT"),
        (KindOptions::new().keepalive_every(Duration::ZERO), "kind \"k\": keepalive_every is 0 s"),
        (
            KindOptions::new().keepalive_every(Duration::from_millis(600)),
            "keepalive_every (600ms) must be at most a third of stale_after (1s 500ms)",
        ),
    ] {
        let error = tokio::time::timeout(Duration::from_secs(10), refused(options)).await.expect(expected);
        assert!(error.contains(expected), "{error}");
    }
}

/// A kind's `stale_after` is shorter than the worker's: every worker resets its jobs sooner.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_judged_by_the_stale_after_of_their_kind() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(20);
        config.timing.ack_wait = Duration::from_secs(40);
    })
    .await;
    let handler = |_: Value, ctx: JobContext| async move {
        if ctx.token().0 == 1 {
            ctx.cancelled().await;
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("short", KindOptions::new().stale_after(Duration::from_millis(900)), handler)
            .handle_any(KindOptions::new(), handler)
            .concurrency("q", 2),
    );
    let short = bench.tenure.enqueue(job("short").max_attempts(2)).await.unwrap().id;
    let long = bench.tenure.enqueue(job("long").max_attempts(2)).await.unwrap().id;
    assert_eq!(bench.until_finished(short).await.fencing_token, 2);
    let still = bench.tenure.job(long).await.unwrap().unwrap();
    assert_eq!((still.status, still.fencing_token.0), (Status::Processing, 1));
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kinds_retry_policy_decides_and_one_that_panics_is_replaced() {
    let bench = bench().await;
    let options = KindOptions::new()
        .backoff(Backoff {
            first: Duration::from_millis(20),
            longest: Duration::from_millis(20),
            jitter: 0.0,
        })
        .retry(|error, attempt| match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
            Some(std::io::ErrorKind::NotFound) => Retry::Never,
            Some(std::io::ErrorKind::TimedOut) => Retry::After(Duration::from_millis(u64::from(attempt))),
            Some(_) => panic!("in the policy"),
            None => Retry::Usual,
        });
    let handler = |payload: Value, _: JobContext| async move {
        use std::io::{Error, ErrorKind};
        Err::<Outcome, JobError>(match payload.as_str().unwrap() {
            "not found" => Error::from(ErrorKind::NotFound).into(),
            "timed out" => Error::from(ErrorKind::TimedOut).into(),
            "panic" => Error::from(ErrorKind::Other).into(),
            "said so" => JobError::permanent("the error's own word"),
            _ => JobError::msg("as usual"),
        })
    };
    let worker =
        Running::start(Worker::builder(&bench.tenure).handle_any(options, handler).concurrency("q", 4));
    for (what, attempts, category) in [
        ("not found", 1, "permanent"),
        ("timed out", 3, "exhausted"),
        ("panic", 3, "exhausted"),
        ("said so", 1, "permanent"),
        ("usual", 3, "exhausted"),
    ] {
        let request = JobRequest::new("q", "k", json!(what)).max_attempts(3);
        let id = bench.tenure.enqueue(request).await.unwrap().id;
        let failed = bench.until_finished(id).await;
        let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
        assert_eq!((failed.attempt, letter.category.as_str()), (attempts, category), "{what}");
    }
    worker.stop().await;
}

/// A kind that must not run twice: a crash, and a handler dropped in the middle, make a dead letter at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_must_not_run_twice_is_dead_after_its_first_loss() {
    let bench = bench().await;
    let mut victim = Child::start(&bench, "never twice");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    victim.kill().await;
    // The worker that resets the job need not know the kind's policy: this one does not have it.
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    let dead = bench.until_finished(id).await;
    let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
    assert_eq!((dead.status, dead.attempt, letter.category.as_str()), (Status::Failed, 1, "lost"));
    assert!(letter.last_error.starts_with("worker lost: "), "{}", letter.last_error);
    assert_eq!(bench.count("tenure.job_executions_all").await, 1);
    // A person redrives the job after a look at it.
    bench.tenure.redrive(&[id]).await.unwrap();
    assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_is_dropped_in_the_middle_counts_as_a_crash_and_one_that_returns_does_not() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_millis(100)).await;
    let handler = |payload: Value, ctx: JobContext| async move {
        if payload == json!("polite") {
            ctx.cancelled().await;
            return Err(JobError::msg("stopped before the charge"));
        }
        std::future::pending::<Result<Outcome, JobError>>().await
    };
    let options = KindOptions::new().on_crash(OnCrash::DeadLetter);
    let worker =
        Running::start(Worker::builder(&bench.tenure).handle_any(options, handler).concurrency("q", 2));
    let mut ids = vec![];
    for how in ["polite", "stubborn"] {
        ids.push(bench.tenure.enqueue(JobRequest::new("q", "k", json!(how))).await.unwrap().id);
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    worker.stop().await;
    assert_eq!(bench.tenure.job(ids[0]).await.unwrap().unwrap().status, Status::Queued);
    let letter = bench.tenure.dead_letter(ids[1]).await.unwrap().unwrap();
    assert_eq!(letter.category, "interrupted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_too_large_says_what_to_do_and_the_last_good_one_stays() {
    let bench = bench_with(|config| config.checkpoint_bytes_max = 100).await;
    let handler = |_: Value, ctx: JobContext| async move {
        if let Some(kept) = ctx.checkpoint::<u32>() {
            return Outcome::done(kept);
        }
        ctx.save_checkpoint(&7).await?;
        ctx.save_checkpoint(&"x".repeat(98)).await?;
        ctx.save_checkpoint(&7).await?;
        // Postgres writes each of its digits.
        ctx.save_checkpoint(&1e-97).await.unwrap_err();
        ctx.save_checkpoint(&"x".repeat(99)).await?;
        Ok(Outcome::Done(None))
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let id = bench.tenure.enqueue(job("k")).await.unwrap().id;
    let error = bench.until_finished(id).await.last_error.unwrap();
    assert_eq!(
        error,
        "the checkpoint cannot be stored: it has 101 bytes, but at most 100 are allowed; save the position and store \
         results elsewhere, or raise TENURE_CHECKPOINT_BYTES_MAX"
    );
    bench.tenure.retry(id).await.unwrap();
    assert_eq!(bench.until_finished(id).await.output, Some(json!(7)));
    worker.stop().await;
}

/// Postgres writes each digit that an exponent stands for.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_count_as_they_are_stored_in_a_payload_a_checkpoint_a_result_and_an_output() {
    let bench = bench().await;
    let pool = bench.pool.clone();
    let floats = || json!(vec![1e-300_f64; 4_000]);
    let raw = |times: usize| RawValue::from_string(format!("[{}1]", "1e-16000,".repeat(times))).unwrap();
    let request = JobRequest::from_json("q", "k", raw(20).get());
    let error = bench.tenure.enqueue(request).await.unwrap_err();
    assert!(matches!(error, tenure::EnqueueError::TooLarge { bytes: 320_000..330_000, .. }), "{error}");
    let handler = move |payload: Value, ctx: JobContext| {
        let pool = pool.clone();
        async move {
            match payload.as_str().unwrap_or_default() {
                "checkpoint" => ctx.save_checkpoint(&raw(70)).await?,
                "effect" => drop(ctx.once("one", async |_| Ok(floats())).await?),
                "together" => return ctx.complete_in(pool.begin().await?, Some(floats())).await,
                "result" => drop::<Box<RawValue>>(ctx.step("one", async || Ok(raw(70))).await?),
                _ => return Ok::<_, JobError>(Outcome::DoneJson(raw(70).get().to_owned())),
            }
            Ok(Outcome::Done(None))
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    for (part, bytes) in [
        ("checkpoint", "1120"),
        ("result", "1120"),
        ("output", "1120"),
        ("effect", "1232"),
        ("together", "1232"),
    ] {
        let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(part))).await.unwrap().id;
        let job = bench.until_finished(id).await;
        let error = job.last_error.unwrap_or_default();
        assert!(error.contains("cannot be stored: it has ") && error.contains(bytes), "{part}: {error}");
        assert_eq!((job.status, job.attempt), (Status::Failed, 1), "{part}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_with_control_characters_says_what_to_do() {
    let bench = bench().await;
    for (key, shown) in [("a\tb", r#""a\tb" (3 bytes)"#), ("", r#""" (0 bytes)"#)] {
        let error = bench.tenure.enqueue(job("k")).unique_key(key).await.unwrap_err().to_string();
        let expected =
            format!("unique_key is {shown}, but must be 1 to 512 bytes without control characters");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_waits_for_a_jobs_end_and_gets_its_output() {
    let bench = bench().await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let handler = move |payload: Value, _: JobContext| {
        let counted = counted.clone();
        async move {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(JobError::retry_after(Duration::from_millis(100), "the first time"));
            }
            Outcome::done(json!({ "echo": payload }))
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!("ü"))).await.unwrap().id;
    let waits: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn({
                let tenure = bench.tenure.clone();
                async move { tenure.wait(id, Duration::from_secs(60)).await.unwrap().unwrap() }
            })
        })
        .collect();
    for wait in waits {
        let done = wait.await.unwrap();
        assert_eq!(
            (done.status, done.attempt, done.output),
            (Status::Completed, 2, Some(json!({"echo": "ü"})))
        );
    }
    let absent = tenure::JobId::generate();
    assert!(bench.tenure.job(absent).await.unwrap().is_none());
    assert!(bench.tenure.wait(absent, Duration::MAX).await.unwrap().is_none());
    let (tenure, soon) = (&bench.tenure, Duration::from_secs(60));
    let unknown = tenure.wait_for::<Value>(absent, soon).await;
    assert!(matches!(unknown, Err(WaitError::NotFound(id)) if id == absent));

    // The same on the command line, for jobs that complete and jobs that fail.
    let output = bench.program(&["enqueue", "q", "k", "[1]", "--wait"]).output().await.unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"{\"echo\":[1]}\n".as_slice()));
    let cancelled = bench.tenure.clone();
    let canceller = tokio::spawn(async move {
        loop {
            if let Ok(Some((_, tenure::jobs::CancelOutcome::Cancelled))) =
                cancelled.cancel_key("q", "later").await
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let arguments = ["enqueue", "q", "k", "1", "--delay", "1h", "--unique-key", "later", "--wait"];
    let output = bench.program(&arguments).output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("is cancelled"), "{error}");
    canceller.await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typed_wait_returns_the_output_or_says_how_the_job_ended_instead() {
    let bench = bench().await;
    let handler = |payload: Value, _: JobContext| async move {
        match payload.as_str() {
            Some("fails") => Err(JobError::permanent("the card is closed")),
            Some("cancels") => Ok(Outcome::Cancel("not wanted".into())),
            Some("nothing") => Ok(Outcome::Done(None)),
            _ => Outcome::done(json!({ "number": 7 })),
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Receipt {
        number: u32,
    }
    let (tenure, soon) = (&bench.tenure, Duration::from_secs(60));
    let enqueue = async |how: &str| tenure.enqueue(JobRequest::new("q", "k", json!(how))).await.unwrap().id;
    let paid = enqueue("pays").await;
    assert_eq!(tenure.wait_for::<Receipt>(paid, soon).await.unwrap(), Receipt { number: 7 });
    let other = tenure.wait_for::<Vec<u8>>(paid, soon).await;
    assert!(matches!(other, Err(WaitError::Output { job, .. }) if job == paid), "{other:?}");
    tenure.wait_for::<()>(enqueue("nothing").await, soon).await.unwrap();
    let failed = tenure.wait_for::<Receipt>(enqueue("fails").await, soon).await;
    assert!(
        matches!(&failed, Err(WaitError::Failed { last_error, .. }) if last_error == "the card is closed"),
        "{failed:?}"
    );
    let cancels = enqueue("cancels").await;
    let cancelled = tenure.wait_for::<Receipt>(cancels, soon).await;
    assert!(matches!(cancelled, Err(WaitError::Cancelled(job)) if job == cancels), "{cancelled:?}");
    // Not an end: it waits for its time.
    let later = JobRequest::new("q", "k", json!("pays")).delay(Duration::from_secs(3600));
    let later = tenure.enqueue(later).await.unwrap().id;
    for late in [
        tenure.wait(later, Duration::from_millis(50)).await.map(drop),
        tenure.wait_for::<Receipt>(later, Duration::from_millis(50)).await.map(drop),
    ] {
        assert!(matches!(late, Err(WaitError::TimedOut { job, .. }) if job == later), "{late:?}");
    }
    worker.stop().await;
}

/// A time limit, like a crash, ends the handler in the middle of work that must not be done twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_must_not_run_twice_is_dead_after_its_time_limit_too() {
    let bench = bench().await;
    let options = KindOptions::new().timeout(Duration::from_millis(100)).on_crash(OnCrash::DeadLetter);
    let handler = |_: Value, _: JobContext| std::future::pending::<()>();
    let worker =
        Running::start(Worker::builder(&bench.tenure).handle_any(options, handler).concurrency("q", 1));
    let id = bench.tenure.enqueue(job("k").max_attempts(5)).await.unwrap().id;
    assert_eq!(bench.until_finished(id).await.status, Status::Failed);
    assert_eq!(bench.tenure.dead_letter(id).await.unwrap().unwrap().category, "interrupted");
    worker.stop().await;
}

/// A handler that was dropped may still hold its thread: the same process does not begin the next attempt beside it.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_waits_for_the_thread_that_the_last_one_holds() {
    let bench = bench().await;
    let threads = two_threads();
    let running = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (now, seen) = (running.clone(), most.clone());
    let handler = move |_: Value, ctx: JobContext| {
        let (now, seen) = (now.clone(), seen.clone());
        async move {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            if ctx.token().0 == 1 {
                // Longer than the relay waits before it counts a message as lost.
                std::thread::sleep(Duration::from_secs(4));
            }
            now.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let backoff =
        Backoff { first: Duration::from_millis(10), longest: Duration::from_millis(10), jitter: 0.0 };
    let options = KindOptions::new().timeout(Duration::from_millis(100)).backoff(backoff);
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handlers_on(threads.handle().clone())
            .handle_any(options, handler)
            .concurrency("q", 2),
    );
    let id = bench.tenure.enqueue(job("k").max_attempts(2)).await.unwrap().id;
    assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    assert_eq!(most.load(Ordering::SeqCst), 1, "both attempts ran at once");
    assert_eq!(bench.text("SELECT * FROM tenure.recovery_events").await, "", "its message was not lost");
    worker.stop().await;
    threads.shutdown_background();
}

/// A command whose worker is killed, and whose kind must not run twice.
#[tokio::test(flavor = "multi_thread")]
async fn work_exec_knows_on_crash_and_stale_after() {
    let bench = bench().await;
    let arguments =
        ["work", "q", "--exec", "sleep 60", "--on-crash", "dead-letter", "--stale-after", "1200ms"];
    let worker = Child::spawn(bench.program(&arguments), "work");
    let id = bench.tenure.enqueue(job("k").max_attempts(5)).await.unwrap().id;
    bench
        .until_count(
            "tenure.jobs WHERE status = 'processing' AND stale_after = '1.2 s' AND on_crash = 'dead_letter'",
            1,
        )
        .await;
    worker.signal(Signal::KILL);
    let next = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    assert_eq!(bench.until_finished(id).await.status, Status::Failed);
    assert_eq!(bench.tenure.dead_counts().await.unwrap()[0].category, "lost");
    next.stop().await;
    let refused = bench.program(&["work", "q", "--exec", "true", "--timeout", "0s"]).output().await.unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("timeout is 0 s"), "{error}");
}
