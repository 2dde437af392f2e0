//! Deploys: a rolling update with a migration in between, and the way back. The old release is this program with fewer
//! kinds, and it does not know the migration: it must bear this of any later release.
//! `scripts/rolling-upgrade` does the same with the programs of two real releases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::{Job, JobContext, JobError, JobRequest, Tenure, Worker, WorkerBuilder};
use tokio::task::JoinHandle;

use crate::{
    harness::{Bench, Child, bench_with},
    migrations::{NEXT, NEXT_VERSION},
};

/// A kind that both releases know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mail {
    n: i64,
}

impl Job for Mail {
    const KIND: &'static str = "mail";
    const QUEUE: &'static str = "mails";
}

/// A kind that only the new release knows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Digest {
    n: i64,
}

impl Job for Digest {
    const KIND: &'static str = "digest";
    const QUEUE: &'static str = "mails";
}

async fn mail(job: Mail, ctx: JobContext) -> Result<(), JobError> {
    send(job.n, &ctx).await
}

async fn digest(job: Digest, ctx: JobContext) -> Result<(), JobError> {
    send(job.n, &ctx).await
}

/// Reports a few times and leaves an effect.
async fn send(n: i64, ctx: &JobContext) -> Result<(), JobError> {
    for step in 0_u8..3 {
        ctx.progress("sending", f32::from(step) * 30.0, &n.to_string()).await?;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let token = ctx.token();
    ctx.once("effect", async |tx| {
        let insert = sqlx::query("INSERT INTO public.effects (n, token) VALUES ($1, $2)");
        insert.bind(n).bind(token).execute(tx).await?;
        Ok(())
    })
    .await
}

/// The worker of a release, for `scenarios`.
pub fn worker(tenure: &Tenure, release: &str) -> WorkerBuilder {
    let worker = Worker::builder(tenure).handle(mail).concurrency("mails", 8);
    if release == "new release" { worker.handle(digest) } else { worker }
}

async fn world() -> Bench {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(20);
        config.timing.ack_wait = Duration::from_secs(30);
        config.timing.scan_every = Duration::from_secs(1);
        config.timing.shutdown_grace = Duration::from_secs(15);
    })
    .await;
    bench.tenure.setup(&["mails".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.effects (n bigint, token bigint)").await;
    bench
}

async fn start(bench: &Bench, host: &str, release: &str) -> Child {
    // A message is put off for at most half of this.
    let patience = ("TENURE_UNKNOWN_KIND_AFTER", "60s".to_owned());
    let mut child = Child::start_with(bench, release, &[("TENURE_HOSTNAME", host.to_owned()), patience]);
    child.until_log("worker started").await;
    child
}

/// Stops a worker as a platform does.
async fn end(mut child: Child) {
    child.signal(Signal::TERM);
    assert_eq!(child.wait().await, Some(0), "{}", child.log());
}

/// Enqueues jobs of both kinds in all three ways until it is stopped.
struct Producing {
    stop: Arc<AtomicBool>,
    task: JoinHandle<i64>,
}

impl Producing {
    fn start(bench: &Bench) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tenure, pool, js) = (bench.tenure.clone(), bench.pool.clone(), bench.js.clone());
        let (prefix, stopped) = (bench.config.subject_prefix.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut n = 0_i64;
            while !stopped.load(Ordering::Relaxed) {
                for kind in ["mail", "digest"] {
                    let payload = json!({ "n": n });
                    // One attempt: a job that is charged without completing becomes a dead letter.
                    let job = JobRequest::new("mails", kind, payload.clone()).max_attempts(1);
                    match n % 3 {
                        0 => {
                            tenure.enqueue(job).await.unwrap();
                        }
                        1 => {
                            let mut tx = pool.begin().await.unwrap();
                            tenure.enqueue(job).tx(&mut tx).await.unwrap();
                            tx.commit().await.unwrap();
                        }
                        _ => {
                            let subject = format!("{prefix}.mails.{kind}");
                            let published = js.publish(subject, payload.to_string().into()).await.unwrap();
                            published.await.unwrap();
                        }
                    }
                    n += 1;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            n
        });
        Self { stop, task }
    }

    /// Stops the producer. Returns the number of accepted jobs.
    async fn stop(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

const PUT_OFF: &str =
    "EXISTS (SELECT FROM tenure.jobs WHERE kind = 'digest' AND attempt = 0 AND put_off_since IS NOT NULL)";

/// Waits until all jobs have completed: each once, at its first attempt, and none was reset.
async fn the_account(bench: &Bench, accepted: i64) {
    let completed =
        format!("(SELECT count(*) FROM tenure.job_history WHERE status = 'completed') >= {accepted}");
    bench.until_within(&completed, Duration::from_secs(120)).await;
    assert_eq!(bench.count("tenure.all_jobs").await, accepted);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    assert_eq!(bench.count("tenure.job_executions WHERE outcome <> 'released'").await, 0);
    assert_eq!(bench.count("tenure.recovery_events WHERE event = 'reset'").await, 0);
    assert_eq!(bench.count("public.effects").await, accepted);
    assert_eq!(bench.count("(SELECT DISTINCT n FROM public.effects) e").await, accepted);
    bench.until_stream_is_empty(Duration::from_secs(40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_workers_side_by_side_with_a_migration_in_between_lose_nothing() {
    let bench = world().await;
    let mut old =
        vec![start(&bench, "old-0", "old release").await, start(&bench, "old-1", "old release").await];
    let producing = Producing::start(&bench);
    bench.until("(SELECT count(*) FROM tenure.job_history WHERE kind = 'mail') > 50").await;
    // The producers run the new release already.
    bench.until(PUT_OFF).await;
    let applied =
        bench.tenure.migrate_with(&[(NEXT_VERSION, "next", NEXT)], Duration::from_secs(60)).await.unwrap();
    assert_eq!(applied, [NEXT_VERSION]);
    let before = bench.count("tenure.job_history").await;
    bench.until(&format!("(SELECT count(*) FROM tenure.job_history) > {before} + 50")).await;
    // A node is drained meanwhile: a worker of the old release starts on the newer schema.
    end(old.remove(0)).await;
    old.push(start(&bench, "old-0", "old release").await);
    let mut new = Vec::new();
    for (n, worker) in old.into_iter().enumerate() {
        new.push(start(&bench, &format!("new-{n}"), "new release").await);
        end(worker).await;
    }
    the_account(&bench, producing.stop().await).await;
    assert_eq!(bench.count("tenure.job_history WHERE kind = 'digest' AND worker_id LIKE 'old-%'").await, 0);
    assert!(bench.count("tenure.job_history WHERE worker_id LIKE 'old-%'").await > 100);
    for worker in new {
        end(worker).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rollback_the_old_workers_go_on_and_kinds_that_only_the_new_ones_know_wait() {
    let bench = world().await;
    bench.tenure.migrate_with(&[(NEXT_VERSION, "next", NEXT)], Duration::from_secs(60)).await.unwrap();
    let new = start(&bench, "new-0", "new release").await;
    let producing = Producing::start(&bench);
    bench.until("(SELECT count(*) FROM tenure.job_history WHERE kind = 'digest') > 20").await;
    let old = start(&bench, "old-0", "old release").await;
    end(new).await;
    let before = bench.count("tenure.job_history").await;
    bench
        .until(&format!("(SELECT count(*) FROM tenure.job_history WHERE kind = 'mail') > {before} + 50"))
        .await;
    bench.until(PUT_OFF).await;
    let accepted = producing.stop().await;
    bench.until("NOT EXISTS (SELECT FROM tenure.jobs WHERE kind = 'mail')").await;
    assert!(bench.count("tenure.jobs WHERE kind = 'digest' AND status = 'queued'").await > 0);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    // Then forward again.
    let new = start(&bench, "new-0", "new release").await;
    end(old).await;
    the_account(&bench, accepted).await;
    end(new).await;
}
