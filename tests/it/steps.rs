//! Steps: a recorded step never runs again, whichever process dies; a sleeping job holds no slot and no message.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Status, Worker};

use crate::harness::{Bench, Child, Running, bench, bench_with};

/// The steps of [`twenty`].
const STEPS: usize = 20;

/// A handler of twenty steps, which notes each run of one in a file. Its process dies before each record of one, and after it.
pub async fn twenty(payload: Value, ctx: JobContext) -> Result<usize, JobError> {
    let runs = PathBuf::from(payload["runs"].as_str().unwrap());
    let die = || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    let mut sum = 0;
    for n in 0..STEPS {
        let mut has_run = false;
        let work = async || {
            has_run = true;
            let mut text = std::fs::read_to_string(&runs).unwrap_or_default();
            let is_first = !text.lines().any(|line| line == n.to_string());
            text += &format!("{n}\n");
            std::fs::write(&runs, text).unwrap();
            if is_first {
                die().unwrap();
                std::future::pending::<()>().await;
            }
            Ok(n)
        };
        sum += ctx.step(&format!("part {n}"), work).await?;
        if has_run {
            die().unwrap();
            std::future::pending::<()>().await;
        }
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_recorded_step_runs_again_though_its_worker_is_killed_at_each_boundary() {
    let bench = bench().await;
    let runs = bench.config.runtime_dir.join("runs");
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    let job = JobRequest::new("q", "twenty", json!({ "runs": runs })).max_attempts(100);
    let job = bench.tenure.enqueue(job).await.unwrap().id;
    let mut kills = 0;
    loop {
        // A worker that starts resets the jobs of its predecessors at once; repeated losses would wait.
        bench.execute("UPDATE tenure.jobs SET losses = 0").await;
        let mut worker = Child::start(&bench, "twenty");
        tokio::select! {
            code = worker.wait() => assert_eq!(code, None, "killed by the signal:\n{}", worker.log()),
            row = bench.until_finished(job) => {
                assert_eq!((row.status, row.output), (Status::Completed, Some(json!(190))));
                break;
            }
        }
        kills += 1;
    }
    assert_eq!(kills, 2 * STEPS);
    // Only the work of which no record stands was done again.
    let runs = std::fs::read_to_string(runs).unwrap();
    let expected: String = (0..STEPS).map(|n| format!("{n}\n").repeat(2)).collect();
    assert_eq!(runs, expected);
    let steps = bench.text("SELECT key, fencing_token FROM tenure.effects ORDER BY fencing_token").await;
    assert_eq!(steps.lines().count(), STEPS, "{steps}");
}

fn worker<F, Fut>(bench: &Bench, handler: F) -> Running
where
    F: Fn(Value, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Value, JobError>> + Send + 'static,
{
    Running::start(Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 4))
}

async fn enqueue(bench: &Bench) -> tenure::JobId {
    bench.tenure.enqueue(JobRequest::new("q", "k", json!({})).max_attempts(1)).await.unwrap().id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_job_holds_nothing_and_wakes_in_time() {
    let bench = bench_with(|config| config.timing.relay_every = Duration::from_millis(100)).await;
    let handler = async |_: Value, ctx: JobContext| {
        let began: i64 = ctx.step("begin", async || Ok(chrono::Utc::now().timestamp_millis())).await?;
        ctx.sleep("nap", Duration::from_secs(2)).await?;
        ctx.sleep("no time at all", Duration::ZERO).await?;
        Ok(json!([chrono::Utc::now().timestamp_millis() - began, ctx.attempt()]))
    };
    let running = worker(&bench, handler);
    let job = enqueue(&bench).await;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND fencing_token = 1 AND attempt = 0", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(1)).await;
    let row = bench.until_finished(job).await;
    assert_eq!(row.status, Status::Completed);
    let output = row.output.unwrap();
    let slept = output[0].as_i64().unwrap();
    // The one attempt that it may have was not spent.
    assert_eq!(output[1], json!(1));
    assert!((2_000..4_000).contains(&slept), "{slept} ms");
    let outcomes = bench.text("SELECT outcome FROM tenure.job_executions_all ORDER BY fencing_token").await;
    assert_eq!(outcomes, "(snoozed)\n(completed)");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_and_a_crash_do_not_prolong_a_sleep() {
    let bench = bench().await;
    let handler = async |payload: Value, ctx: JobContext| {
        let slept = ctx.sleep("nap", Duration::from_secs(6)).await;
        if slept.is_err() && payload["hangs"] == json!(true) && ctx.attempt() == 1 {
            // Its worker dies between the record and the end of the attempt.
            std::future::pending::<()>().await;
        }
        slept.map(|()| json!("woken"))
    };
    let enqueue = async |hangs: bool| {
        let job = JobRequest::new("q", "k", json!({ "hangs": hangs })).max_attempts(3);
        bench.tenure.enqueue(job).await.unwrap().id
    };
    let wakes = "SELECT job_id, wakes_at FROM tenure.effects WHERE step_kind = 'sleep' ORDER BY job_id";
    let asleep = "tenure.jobs WHERE status = 'queued' AND fencing_token > 0 AND scheduled_at > now()";
    let victim = worker(&bench, handler);
    let jobs = [enqueue(false).await, enqueue(true).await];
    bench.until_count("tenure.effects WHERE step_kind = 'sleep'", 2).await;
    bench.until_count(asleep, 1).await;
    let recorded = bench.text(wakes).await;
    victim.abandon().await;
    // It finds what the one before it left, and the attempt after the lost one sleeps to the same end.
    let deployed = worker(&bench, handler);
    bench.until_count(asleep, 2).await;
    deployed.stop().await;
    let last = worker(&bench, handler);
    for job in jobs {
        assert_eq!(bench.until_finished(job).await.output, Some(json!("woken")));
    }
    assert_eq!(bench.text(wakes).await, recorded);
    let late: i64 = bench
        .value(
            "SELECT max(extract(epoch FROM h.started_at - e.wakes_at) * 1000)::bigint
               FROM tenure.job_history h JOIN tenure.effects e ON e.job_id = h.id",
        )
        .await;
    assert!((0..2_000).contains(&late), "woken {late} ms after the time of the first attempt");
    let attempts = "SELECT outcome FROM tenure.job_executions_all ORDER BY job_id, fencing_token";
    assert_eq!(bench.text(attempts).await, "(snoozed)\n(completed)\n(lost)\n(snoozed)\n(completed)");
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_job_is_cancelled_at_once() {
    let bench = bench().await;
    let running = worker(&bench, async |_: Value, ctx: JobContext| {
        ctx.sleep("a year", Duration::from_hours(24 * 365)).await?;
        Ok(json!("woken"))
    });
    let job = enqueue(&bench).await;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND fencing_token = 1", 1).await;
    bench.tenure.cancel(job).await.unwrap();
    assert_eq!(bench.until_finished(job).await.status, Status::Cancelled);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_dead_letter_are_done_when_it_is_redriven() {
    let bench = bench().await;
    let fails = async |_: Value, ctx: JobContext| {
        ctx.step("charge", async || Ok(7)).await?;
        Err(JobError::permanent("no such card"))
    };
    let running = worker(&bench, fails);
    let job = enqueue(&bench).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    running.stop().await;
    let goes_on = async |_: Value, ctx: JobContext| {
        let charged: i64 = ctx.step("charge", async || panic!("it is recorded")).await?;
        Ok(json!(charged))
    };
    let running = worker(&bench, goes_on);
    bench.tenure.redrive(&[job]).await.unwrap();
    assert_eq!(bench.until_finished(job).await.output, Some(json!(7)));
    running.stop().await;
}

/// A deploy has renamed a step while the job slept: the new name runs, and the old one is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_step_runs_again_and_the_log_names_the_old_one() {
    let bench = bench_with(|config| config.job_logs = true).await;
    let step = |name: &'static str| {
        async move |_: Value, ctx: JobContext| {
            ctx.step("kept", async || Ok(1)).await?;
            let fetched: i64 = ctx.step(name, async || Ok(2)).await?;
            let _: Value = ctx.event("go").await?;
            Ok(json!(fetched))
        }
    };
    let before = worker(&bench, step("fetch"));
    let job = enqueue(&bench).await;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND publish_at = '9999-01-01Z'", 1).await;
    before.stop().await;
    let after = worker(&bench, step("download"));
    assert_eq!(bench.tenure.signal(job, "go", &()).await.unwrap(), tenure::groups::Signalled::Delivered);
    assert_eq!(bench.until_finished(job).await.output, Some(json!(2)));
    let logs = bench.tenure.job_logs(job).await.unwrap();
    let lines: Vec<_> = logs.iter().flat_map(|log| log.text.lines()).collect();
    assert_eq!(lines, [r#"completed without these recorded steps: ["fetch"]; a renamed step has run again"#]);
    let steps = bench.text("SELECT key FROM tenure.effects WHERE step_kind = 'step' ORDER BY key").await;
    assert_eq!(steps, "(download)\n(fetch)\n(kept)");
    after.stop().await;
}
