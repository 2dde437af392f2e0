//! Cancellation: of queued jobs at once, of running ones within a second, wherever they run.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Worker, handlers::CancelReason,
    jobs::CancelOutcome,
};
use tokio::sync::mpsc;

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, bench_with_servers, statement, until_file},
    scenarios::{Step, step},
};

/// Long timers: no recovery resets a job, and no progress write carries a cancellation by chance.
fn patient(config: &mut tenure::Config) {
    config.timing.stale_after = Duration::from_secs(300);
    config.timing.scan_every = Duration::from_secs(30);
    config.timing.ack_wait = Duration::from_secs(600);
}

fn job(n: u32) -> JobRequest {
    JobRequest::new("q", "k", json!(n))
}

/// A worker of silent handlers, which send the reason for their stop and its time.
fn silent(bench: &Bench, slots: u32) -> (Running, mpsc::UnboundedReceiver<(CancelReason, Instant)>) {
    let (tell, told) = mpsc::unbounded_channel();
    let handler = move |_: Value, ctx: JobContext| {
        let tell = tell.clone();
        async move {
            let reason = ctx.cancelled().await;
            assert_eq!(ctx.cancel_reason(), Some(reason));
            tell.send((reason, Instant::now())).ok();
            Err::<Outcome, _>(JobError::msg("stopped"))
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler);
    (Running::start(worker.concurrency("q", slots)), told)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_job_is_cancelled_at_once_and_its_message_runs_nothing() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let now = bench.tenure.enqueue(job(1)).await.unwrap().id;
    let later = bench.tenure.enqueue(job(2)).delay(Duration::from_secs(600)).await.unwrap().id;
    bench.tenure.flush().await;
    for id in [now, later] {
        assert_eq!(bench.tenure.cancel(id).await.unwrap(), CancelOutcome::Cancelled);
        // The second cancellation changes nothing.
        let again = bench.tenure.cancel(id).await.unwrap();
        assert_eq!(again, CancelOutcome::Finished { status: Status::Cancelled });
        assert_eq!(bench.tenure.job(id).await.unwrap().unwrap().status, Status::Cancelled);
    }
    assert_eq!(bench.messages().await, 1);
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_, _| async {
                assert!(std::env::args().count() == 0, "it runs");
            })
            .concurrency("q", 2),
    );
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_cancelled_within_a_second_wherever_it_runs() {
    let bench = bench_with(patient).await;
    // A silent job in another process, whose own next write is minutes away.
    let mut other = Child::start(&bench, "worker");
    let job = Step::new(&bench, "until cancelled");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    let asked = Instant::now();
    let CancelOutcome::Asked { worker } = bench.tenure.cancel(id).await.unwrap() else {
        panic!("not running")
    };
    assert!(worker.contains(&other.pid().to_string()), "{worker}");
    until_file(&job.file("result")).await;
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(std::fs::read_to_string(job.file("result")).unwrap(), "User");
    let ended = bench.until_finished(id).await;
    assert_eq!((ended.status, ended.attempt), (Status::Cancelled, 1));
    let outcome = bench.text("SELECT outcome FROM tenure.job_executions_all").await;
    assert_eq!(outcome, "(cancelled)");
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    other.signal(Signal::TERM);
    assert_eq!(other.wait().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_a_running_job_learns_with_its_next_progress_write() {
    let mut bench = bench_with_servers(patient).await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(step));
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    bench.own.as_mut().unwrap().nats.stop();
    let asked = Instant::now();
    assert!(matches!(bench.tenure.cancel(id).await.unwrap(), CancelOutcome::Asked { .. }));
    // The handler reports but ignores the cancellation, and is dropped after its grace of half a second.
    assert_eq!(bench.until_finished(id).await.status, Status::Cancelled);
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    worker.stop().await;
}

/// A job that writes nothing cannot learn from a progress write: its worker asks every five seconds.
#[tokio::test(flavor = "multi_thread")]
async fn without_nats_a_silent_job_learns_within_seconds_and_on_a_new_connection_at_once() {
    let mut bench = bench_with_servers(patient).await;
    let (worker, mut told) = silent(&bench, 2);
    let mut ids = vec![];
    for n in 0..2 {
        ids.push(bench.tenure.enqueue(job(n)).await.unwrap().id);
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    bench.own.as_mut().unwrap().nats.stop();
    let asked = Instant::now();
    bench.tenure.cancel(ids[0]).await.unwrap();
    assert_eq!(told.recv().await.unwrap().0, CancelReason::User);
    assert!(asked.elapsed() < Duration::from_secs(7), "{:?}", asked.elapsed());
    // Right after one question, so that the next is seconds away; the server is back before.
    bench.tenure.cancel(ids[1]).await.unwrap();
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    assert_eq!(told.recv().await.unwrap().0, CancelReason::User);
    for id in ids {
        assert_eq!(bench.until_finished(id).await.status, Status::Cancelled);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_cancelled_by_its_unique_key_and_jobs_by_queue_and_kind() {
    let bench = bench_with(patient).await;
    let (worker, mut told) = silent(&bench, 3);
    let keyed = bench.tenure.enqueue(job(0)).unique_key("order 7").await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    assert_eq!(bench.tenure.cancel_key("q", "order 8").await.unwrap(), None);
    assert_eq!(bench.tenure.cancel_key("other", "order 7").await.unwrap(), None);
    let (id, answer) = bench.tenure.cancel_key("q", "order 7").await.unwrap().unwrap();
    assert!(id == keyed && matches!(answer, CancelOutcome::Asked { .. }));
    assert_eq!(told.recv().await.unwrap().0, CancelReason::User);
    bench.until_finished(keyed).await;

    // More than one page of jobs, some of them running, in two queues and of two kinds.
    let of = |queue: &'static str, kind: &'static str, n: u32| {
        (0..n).map(move |n| JobRequest::new(queue, kind, json!(n)))
    };
    let jobs = of("q", "a", 700).chain(of("q", "b", 5)).chain(of("elsewhere", "a", 5));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 3).await;
    let running_a =
        bench.count("tenure.jobs WHERE status = 'processing' AND kind = 'a'").await.unsigned_abs();
    let done = bench.tenure.cancel_all("q", Some("a")).await.unwrap();
    assert_eq!(done.asked + done.cancelled, 700, "{done:?}");
    assert!(done.asked >= running_a, "{done:?}");
    bench
        .until_count("tenure.job_history WHERE status = 'cancelled' AND kind = 'a' AND queue = 'q'", 700)
        .await;
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'elsewhere'").await, 5);
    let done = bench.tenure.cancel_all("q", None).await.unwrap();
    assert_eq!(done.asked + done.cancelled, 5);
    bench.until_count("tenure.jobs WHERE queue = 'q'", 0).await;
    for bad in ["*", "", "a b"] {
        let error = bench.tenure.cancel_all(bad, None).await.unwrap_err().to_string();
        assert!(error.contains("use 1 to 64 of"), "{error}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_whose_worker_died_is_cancelled_by_its_reset() {
    let bench = bench().await;
    let mut victim = Child::start(&bench, "worker");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    victim.signal(Signal::STOP);
    assert!(matches!(bench.tenure.cancel(id).await.unwrap(), CancelOutcome::Asked { .. }));
    victim.kill().await;
    let next = Running::start(Worker::builder(&bench.tenure).handle(step));
    let ended = bench.until_finished(id).await;
    assert_eq!((ended.status, ended.fencing_token.0), (Status::Cancelled, 1), "the job never ran again");
    next.stop().await;
}

/// A thousand times: a job that is cancelled while it completes ends as one or the other, and stays so.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_that_races_with_the_completion_has_one_winner() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 20),
    );
    bench.until_count("tenure.workers", 1).await;
    let mut answers = std::collections::BTreeMap::new();
    for n in 0..20_u32 {
        let jobs = bench.tenure.enqueue_many((0..50).map(job)).await.unwrap();
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        // At a different moment each time: while the jobs wait, run, settle.
        tokio::time::sleep(Duration::from_micros(u64::from(n) * 700)).await;
        for (id, answer) in ids.iter().zip(bench.tenure.cancel_many(&ids).await.unwrap()) {
            let ended = bench.until_finished(*id).await;
            match answer {
                CancelOutcome::Cancelled => assert_eq!((ended.status, ended.attempt), (Status::Cancelled, 0)),
                CancelOutcome::Asked { .. } => assert!(ended.status.is_finished()),
                CancelOutcome::Finished { status } => {
                    assert_eq!((status, ended.status), (Status::Completed, status));
                }
                other => panic!("{other:?}"),
            }
            *answers.entry(format!("{answer:?}").split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    assert_eq!(bench.count("tenure.job_history").await, 1_000);
    assert_eq!(bench.count("tenure.jobs").await, 0);
    assert!(answers.len() > 1, "no race was run: {answers:?}");
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

/// Each of the four reasons, as the handler sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_sees_why_it_is_stopped() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::ZERO).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |_: Value, ctx: JobContext| {
        let tell = tell.clone();
        async move {
            tell.send(ctx.cancelled().await).unwrap();
            Ok::<_, JobError>(Outcome::Cancel("seen".into()))
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("limited", KindOptions::new().timeout(Duration::from_millis(50)), handler.clone())
            .handle_any(KindOptions::new().keepalive(), handler)
            .concurrency("q", 4),
    );
    bench.tenure.enqueue(JobRequest::new("q", "limited", json!(1))).await.unwrap();
    assert_eq!(told.recv().await, Some(CancelReason::Timeout));

    let user = bench.tenure.enqueue(job(1)).await.unwrap().id;
    let running = "tenure.jobs WHERE status = 'processing' AND kind = 'k'";
    bench.until_count(running, 1).await;
    bench.tenure.cancel(user).await.unwrap();
    assert_eq!(told.recv().await, Some(CancelReason::User));
    bench.until_finished(user).await;

    bench.tenure.enqueue(job(2)).await.unwrap();
    bench.until_count(running, 1).await;
    bench.execute("UPDATE tenure.jobs SET fencing_token = 9, claim_id = gen_random_uuid()").await;
    assert_eq!(told.recv().await, Some(CancelReason::Lost));
    bench.execute("DELETE FROM tenure.jobs").await;

    bench.tenure.enqueue(job(3)).await.unwrap();
    bench.until_count(running, 1).await;
    worker.stop().await;
    assert_eq!(told.recv().await, Some(CancelReason::Shutdown));
}

/// The actor of a statement that tenure runs by itself.
pub const BY_NOBODY: Option<Vec<Option<String>>> = None;

/// Batches of progress and of cancellations meet on the same rows, in any order.
#[tokio::test(flavor = "multi_thread")]
async fn cancellations_and_batches_of_progress_never_wait_for_each_other_in_a_circle() {
    let bench = bench_with(patient).await;
    bench.tenure.enqueue_many((0..60).map(job)).await.unwrap();
    bench.tenure.flush().await;
    bench
        .execute(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = id, worker_id = 'w',
                    worker_host = 'h', stale_after = '1 h', last_activity_at = now(), started_at = now()",
        )
        .await;
    // Rows in a different order than their ids.
    bench.execute("UPDATE tenure.jobs SET message = 'x' WHERE random() < 0.5").await;
    let ids: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY id DESC")
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    let (progress, cancel) = (statement("progress"), statement("cancel"));
    let until = Instant::now() + Duration::from_secs(3);
    let tasks: Vec<_> = (0..4)
        .map(|n| {
            let (pool, mut ids) = (bench.pool.clone(), ids.clone());
            tokio::spawn(async move {
                let mut done = 0;
                while Instant::now() < until {
                    ids.rotate_left(7 * n + 1);
                    let query = if n % 2 == 0 {
                        sqlx::query(cancel).bind(&ids).bind(BY_NOBODY)
                    } else {
                        sqlx::query(progress)
                            .bind(&ids)
                            .bind([1_i64])
                            .bind(&ids)
                            .bind(vec!["{\"progress\": 1}"; ids.len()])
                    };
                    let answered = query.fetch_all(&pool).await.unwrap().len();
                    // Progress skips rows that a cancellation has locked.
                    assert!(answered == 60 || n % 2 == 1, "{answered}");
                    done += 1;
                }
                done
            })
        })
        .collect();
    for task in tasks {
        assert!(task.await.unwrap() > 10);
    }
    assert_eq!(
        bench.value::<i64>("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_cancels_and_says_what_it_found() {
    let bench = bench_with(patient).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let waiting = bench.tenure.enqueue(job(1)).delay(Duration::from_secs(600)).await.unwrap().id;
    let keyed = bench.tenure.enqueue(job(2)).unique_key("k7").await.unwrap().id;
    bench.tenure.enqueue_many((0..3).map(job)).await.unwrap();
    let run = |arguments: Vec<String>| {
        let mut command = bench.program(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        async move {
            let output = command.output().await.unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
        }
    };
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (code, out, _) = run(words(&format!("jobs cancel {waiting}"))).await;
    assert_eq!((code, out.trim()), (0, format!("{waiting} is cancelled").as_str()));
    let (code, out, _) = run(words(&format!("jobs cancel {waiting} --output json"))).await;
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["result"], &answer["status"]), (0, &json!("finished"), &json!("cancelled")));
    let (code, out, _) = run(words("jobs cancel --queue q --unique-key k7")).await;
    assert!(code == 0 && out.contains(&keyed.to_string()), "{out}");
    let (code, out, _) = run(words("jobs cancel --queue q --kind k")).await;
    assert_eq!((code, out.trim()), (0, "3 cancelled, 0 running and asked to stop"));
    // A running handler learns within a second, too: the program waits until its connection has sent the message.
    let (worker, mut told) = silent(&bench, 1);
    let runs = bench.tenure.enqueue(job(3)).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let (code, out, _) = run(words(&format!("jobs cancel {runs}"))).await;
    let ended_at = Instant::now();
    assert!(code == 0 && out.contains("which is asked to stop it"), "{out}");
    let (reason, at) = told.recv().await.unwrap();
    assert_eq!(reason, CancelReason::User);
    assert!(at.saturating_duration_since(ended_at) < Duration::from_secs(1));
    worker.stop().await;
    let absent = uuid::Uuid::now_v7();
    let (code, out, _) = run(words(&format!("jobs cancel {absent}"))).await;
    assert!(code == 1 && out.contains("does not exist"), "{out}");
    for (arguments, code, expected) in [
        ("jobs cancel", 2, "name what to cancel: IDs, a selection such as --queue"),
        ("jobs cancel --queue q --unique-key none", 1, "no job holds the unique key \"none\" in queue \"q\""),
        (
            "jobs cancel --queue q --unique-key a\u{1}b",
            2,
            "must not contain control characters; escape or hash it",
        ),
        ("jobs cancel --queue a.b", 2, "use 1 to 64 of"),
        ("jobs list --limit -5", 2, "a number of at least 1, such as 50"),
        ("enqueue q k 1 --delay -5s", 2, "it must be a duration such as 500ms"),
        ("enqueue q k 1 --max-attempts -1", 2, "a number from 1 to"),
        ("enqueue q k 1 --max-attempts 5000", 2, "1 to 1000"),
        ("enqueue a.b k 1", 2, "use 1 to 64 of"),
        ("work q --exec true --concurrency -1", 2, "a number from 1 to"),
        ("work q --exec true --timeout -5s", 2, "it must be a duration such as"),
    ] {
        let (is, _, error) = run(words(arguments)).await;
        assert!(is == code && error.contains(expected), "{arguments}: {is} {error}");
    }
}
