//! Kinds that keep no history: nothing stays of a job that completes but its key, and nothing else changes.

use std::{
    collections::BTreeSet,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Worker, jobs::WaitError};
use tokio::{sync::Semaphore, time::timeout};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench, bench_with};

/// The jobs whose handlers began, one entry an attempt.
type Runs = Arc<Mutex<Vec<JobId>>>;

fn times(runs: &Runs, job: JobId) -> usize {
    runs.lock().unwrap().iter().filter(|ran| **ran == job).count()
}

/// A worker of queue `q` that keeps no history. The payload says what its handler does.
fn forgetful(bench: &Bench, gate: &Arc<Semaphore>) -> (Running, Runs) {
    let runs = Runs::default();
    let (ran, gate, pool) = (runs.clone(), gate.clone(), bench.pool.clone());
    let handler = move |how: Value, ctx: JobContext| {
        ran.lock().unwrap().push(ctx.id());
        let (gate, pool) = (gate.clone(), pool.clone());
        async move {
            ctx.progress("runs", 50.0, "").await?;
            match how.as_str().unwrap_or_default() {
                "wait" => gate.acquire().await?.forget(),
                "twice" if ctx.attempt() == 1 => {
                    return Err(JobError::retry_after(Duration::ZERO, "once more"));
                }
                "cancel" => return Ok(Outcome::Cancel("it says so".into())),
                "die" => return Err(JobError::permanent("never")),
                "effect" | "commit" => {
                    ctx.once("effect", async |_| Ok::<_, JobError>(json!(1))).await?;
                }
                _ => {}
            }
            if how == "commit" {
                let mut tx = pool.begin().await?;
                sqlx::query("INSERT INTO public.done VALUES (1)").execute(&mut *tx).await?;
                return ctx.complete_in(tx, Some(json!(1))).await;
            }
            Ok(Outcome::Done(Some(json!(1))))
        }
    };
    let worker = Worker::builder(&bench.tenure)
        .handle_kind("way", KindOptions::new().no_history(), handler)
        .concurrency("q", 10);
    (Running::start(worker), runs)
}

async fn publish_ticket(bench: &Bench, job: JobId) {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Job-Id", job.to_string());
    let body = format!(r#"{{"job_id": "{job}", "dispatch": 9, "cleared": false}}"#);
    let subject = format!("{}.q.way", bench.config.subject_prefix);
    bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_a_job_that_completes_but_its_key() {
    // Long timers: a handler that waits for the test does not count as lost.
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.done (n int)").await;
    let gate = Arc::new(Semaphore::new(0));
    let (worker, runs) = forgetful(&bench, &gate);
    let mut jobs = Vec::new();
    let ways = ["done", "twice", "effect", "commit", "cancel", "die"];
    for how in ways {
        let job = JobRequest::new("q", "way", json!(how)).unique_key(how);
        jobs.push(bench.tenure.enqueue(job).await.unwrap().id);
    }
    let plain = bench.tenure.enqueue(JobRequest::new("q", "way", json!("done"))).await.unwrap().id;
    bench.publish("q.way", "\"done\"").await;
    bench.until("(SELECT count(*) FROM tenure.job_keys) = 7 AND NOT EXISTS (SELECT FROM tenure.jobs)").await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    let kept = "SELECT payload, status, (SELECT count(*) FROM tenure.job_executions),
                       (SELECT count(*) FROM tenure.effects) FROM tenure.all_jobs ORDER BY 1";
    assert_eq!(bench.text(kept).await, "(\"\"\"cancel\"\"\",cancelled,0,0)\n(\"\"\"die\"\"\",failed,0,0)");
    assert_eq!(bench.count("public.done").await, 1);
    assert_eq!(times(&runs, jobs[1]), 2);
    let keys = "SELECT key FROM tenure.job_keys WHERE stream_seq IS NULL AND ended_at IS NULL ORDER BY 1";
    assert_eq!(bench.text(keys).await, "(cancel)\n(die)");

    // The key outlives its job: it refuses the same job, and retention counts from the job's end.
    for (how, job) in ways.into_iter().zip(&jobs) {
        let again = JobRequest::new("q", "way", json!(how)).unique_key(how);
        let again = bench.tenure.enqueue(again).await.unwrap();
        assert_eq!((again.id, again.duplicate), (*job, true), "{how}");
    }
    bench
        .execute(
            "UPDATE tenure.job_keys SET job_id = tenure.id_of_time(now() - interval '40 days'),
                    created_at = now() - interval '40 days' WHERE key = 'done'",
        )
        .await;
    let purge = format!("gone FROM tenure.purge_keys('30 days', NULL, '{}', 1000)", Uuid::nil());
    assert_eq!(bench.value::<i64>(&format!("SELECT {purge}")).await, 0);
    bench
        .execute("UPDATE tenure.job_keys SET ended_at = now() - interval '31 days' WHERE key = 'done'")
        .await;
    assert_eq!(bench.value::<i64>(&format!("SELECT {purge}")).await, 1);

    // A late message of a job that is gone runs nothing, and is soon acknowledged.
    for job in [plain, jobs[1]] {
        publish_ticket(&bench, job).await;
    }
    bench.until_stream_is_empty(Duration::from_secs(8)).await;
    assert_eq!((times(&runs, plain), times(&runs, jobs[1])), (1, 2));

    // Who waits for such a job learns that it has ended.
    let job = bench.tenure.enqueue(JobRequest::new("q", "way", json!("wait"))).await.unwrap().id;
    let mut waiting = Box::pin(bench.tenure.wait(job, Duration::from_secs(60)));
    timeout(Duration::from_secs(1), &mut waiting).await.unwrap_err();
    gate.add_permits(1);
    let ended = waiting.await.unwrap_err();
    assert!(matches!(ended, WaitError::NoHistory(of) if of == job), "{ended}");
    assert!(bench.tenure.wait(job, Duration::from_secs(60)).await.unwrap().is_none());
    for (arguments, succeeds) in
        [(vec!["enqueue", "q", "way", "1", "--wait"], true), (vec!["jobs", "show", &job.to_string()], false)]
    {
        let output = bench.program(&arguments).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() == succeeds && said.contains("its kind keeps no history"), "{said}");
    }
    let output = bench.program(&["workers", "list", "--output", "json"]).output().await.unwrap();
    let workers: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(workers[0]["unkept"], json!(["way"]));
    worker.stop().await;
    // The rates count every end: the four ways, the two without a key, and the two that were waited for.
    let rates = "SELECT sum(completed), sum(unkept), sum(cancelled), sum(failed) FROM tenure.activity";
    assert_eq!(bench.text(rates).await, "(8,8,1,1)");
    bench.every_job_is_as_it_must_be().await;
}

const JOBS: usize = 100;

/// A worker dies after the commit of a batch of completions. The messages of the jobs that are gone come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_unkept_completions_and_their_acks_has_none_run_twice() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let order = |n: usize| json!({ "number": n, "customer": "c", "lines": [], "note": "" });
    for as_submissions in [false, true] {
        for n in 0..JOBS {
            let key = format!("{as_submissions} {n}");
            if as_submissions {
                bench.publish("q.order", &order(n).to_string()).await;
            } else {
                let job = JobRequest::new("q", "order", order(n)).unique_key(key);
                bench.tenure.enqueue(job).await.unwrap();
            }
        }
        let mut command = bench.program(&["bench-worker", "q", "--slots", "50", "--mode", "forget"]);
        command.env("TENURE_FAULT", "batch_completed=kill").env("TENURE_HOSTNAME", "elsewhere");
        // The victim ends when its standard input does.
        let mut victim = command.stdin(Stdio::piped()).spawn().unwrap();
        let input = victim.stdin.take();
        let status = timeout(Duration::from_secs(60), victim.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), None, "killed by the signal");
        drop(input);
        let ended: Vec<Uuid> =
            sqlx::query_scalar("SELECT job_id FROM tenure.job_keys WHERE ended_at IS NOT NULL")
                .fetch_all(&bench.pool)
                .await
                .unwrap();
        assert!(ended.len() > 1, "a batch, not one");
        let runs = Runs::default();
        let ran = runs.clone();
        let handler = move |_: Value, ctx: JobContext| {
            ran.lock().unwrap().push(ctx.id());
            async {}
        };
        let other = Running::start(
            Worker::builder(&bench.tenure)
                .handle_kind("order", KindOptions::new().no_history(), handler)
                .concurrency("q", 50),
        );
        bench.until_count("tenure.job_keys WHERE ended_at IS NOT NULL", i64::try_from(JOBS).unwrap()).await;
        bench.until_stream_is_empty(Duration::from_secs(20)).await;
        other.stop().await;
        let ran: Vec<_> = runs.lock().unwrap().iter().map(|job| job.0).collect();
        let both: BTreeSet<_> = ran.iter().chain(&ended).collect();
        assert_eq!((ran.len() + ended.len(), both.len()), (JOBS, JOBS), "each job completed once");
        assert_eq!(bench.count("tenure.all_jobs").await, 0);
        assert_eq!(bench.count("tenure.job_executions").await, 0);
        bench.execute("DELETE FROM tenure.job_keys").await;
    }
}
