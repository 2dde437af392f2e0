//! The scenarios of separate processes: `harness::Child` starts this test program again.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tenure::{
    Config, FencingToken, Job, JobContext, JobError, JobId, KindOptions, Outcome, Retry, Tenure, Worker,
    batches::Batch,
    handlers::{ContextError, OnCrash, OnWriteLoss},
};

/// A job whose handler notes its progress as files in a folder, and waits there for permission to go on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    pub folder: PathBuf,
    /// The act of the first attempt; later attempts just complete.
    pub first: String,
}

impl Job for Step {
    const KIND: &'static str = "step";
    const QUEUE: &'static str = "steps";
}

impl Step {
    pub fn new(bench: &crate::harness::Bench, first: &str) -> Self {
        let folder = bench.config.runtime_dir.join(format!("step-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, first: first.into() }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn touch(&self, name: &str, text: &str) {
        // The rename makes the file appear whole: a test waits for it.
        std::fs::write(self.file("new"), text).unwrap();
        std::fs::rename(self.file("new"), self.file(name)).unwrap();
    }

    async fn permission(&self) {
        while !self.file("go").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// An application's own write.
async fn insert(tx: &mut PgConnection, job: JobId, token: FencingToken) -> Result<(), JobError> {
    sqlx::query("INSERT INTO public.app_effects VALUES ($1, $2)").bind(job).bind(token).execute(tx).await?;
    Ok(())
}

/// The write, fenced.
async fn effect(ctx: &JobContext) -> Result<(), JobError> {
    let (job, token) = (ctx.id(), ctx.token());
    ctx.fenced_tx(async |tx| insert(tx, job, token).await).await
}

/// The write, once for the job.
async fn effect_once(ctx: &JobContext) -> Result<(), JobError> {
    let (job, token) = (ctx.id(), ctx.token());
    ctx.once("effect", async |tx| insert(tx, job, token).await).await
}

/// Tries every call of a context after its job has ended, and writes down each answer.
async fn outlives(job: Step, ctx: JobContext) {
    job.permission().await;
    let url = std::env::var("DATABASE_URL").unwrap();
    let mut tx = sqlx::PgPool::connect(&url).await.unwrap().begin().await.unwrap();
    let mut said = vec![
        ("progress", ctx.progress("late", 99.0, "").await.map_err(JobError::from)),
        ("save_checkpoint", ctx.save_checkpoint(&7).await),
        ("fenced_tx", effect(&ctx).await),
        ("once", effect_once(&ctx).await),
        ("lock_job", ctx.lock_job(&mut tx).await.map_err(JobError::from)),
    ];
    said.push(("complete_in", ctx.complete_in(tx, None).await.map(drop)));
    let said = said.iter().map(|(call, said)| match said {
        Ok(()) => format!("{call}: Ok"),
        Err(error) => match error.downcast_ref::<ContextError>() {
            Some(ContextError::Ended { job, .. }) if *job == ctx.id() => format!("{call}: Ended"),
            other => format!("{call}: {other:?}"),
        },
    });
    job.touch("result", &said.collect::<Vec<_>>().join(", "));
}

pub async fn step(job: Step, ctx: JobContext) -> Result<Outcome, JobError> {
    if ctx.token().0 > 1 {
        if job.first == "commit" || job.first == "once" {
            effect_once(&ctx).await?;
        }
        if job.first == "complete in" {
            return complete_in(&job, &ctx, false).await;
        }
        return Outcome::done("second");
    }
    job.touch("started", "");
    match job.first.as_str() {
        "report" => loop {
            ctx.progress("reporting", 50.0, "alive").await?;
            if job.file("go").exists() {
                return Outcome::done("first");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        },
        "commit" => {
            effect_once(&ctx).await?;
            job.touch("committed", "");
            loop {
                ctx.progress("committed", 90.0, "").await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        "once" => {
            let (id, token, inside) = (ctx.id(), ctx.token(), job.clone());
            ctx.once("effect", async |tx| {
                insert(tx, id, token).await?;
                inside.touch("inside", "");
                inside.permission().await;
                Ok(())
            })
            .await?;
            Outcome::done("first")
        }
        "complete in" => complete_in(&job, &ctx, true).await,
        "takes its time" => {
            for step in 0_u8..8 {
                ctx.progress("working", f32::from(step) * 12.0, "").await?;
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            Outcome::done("first")
        }
        "leaves a task behind" => {
            tokio::spawn(outlives(job, ctx));
            Outcome::done("first")
        }
        "exits" => std::process::exit(0),
        "aborts" => std::process::abort(),
        "overflows" => Outcome::done(deep(1)),
        "devours" => {
            let mut held = Vec::new();
            loop {
                held.push(vec![1_u8; 64 << 20]);
            }
        }
        "until cancelled" => {
            let reason = ctx.cancelled().await;
            job.touch("result", &format!("{reason:?}"));
            Err(JobError::msg("stopped"))
        }
        // The handler is silent until it has permission; by then another worker owns the job.
        "then complete" => {
            job.permission().await;
            Outcome::done("stale")
        }
        "then fail" => {
            job.permission().await;
            Err(JobError::msg("a stale failure"))
        }
        "then progress" => {
            job.permission().await;
            // The first write may still be under way when the second comes.
            let error = loop {
                if let Err(error) = ctx.progress("late", 99.0, "stale").await {
                    break error;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            let lost = matches!(error, ContextError::Lost { .. });
            let reason = ctx.cancelled().await;
            job.touch("result", &format!("lost={lost} reason={reason:?} error={error}"));
            Outcome::done("stale")
        }
        "then fenced_tx" => {
            job.permission().await;
            let error = effect(&ctx).await.unwrap_err();
            let reason = ctx.cancelled().await;
            job.touch("result", &format!("lost={} reason={reason:?} error={error:?}", error.is_lost()));
            Err(error)
        }
        other => panic!("no such step: {other}"),
    }
}

/// An effect and the completion in one transaction of the user's own.
async fn complete_in(job: &Step, ctx: &JobContext, waits: bool) -> Result<Outcome, JobError> {
    let url = Config::from_env().map_err(JobError::permanent)?.database_url;
    let pool = sqlx::PgPool::connect(&url).await?;
    let mut tx = pool.begin().await?;
    insert(&mut tx, ctx.id(), ctx.token()).await?;
    if waits {
        job.touch("inside", "");
        job.permission().await;
    }
    ctx.complete_in(tx, None).await
}

/// Deeper than any stack.
#[expect(unconditional_recursion, reason = "it is to overflow")]
fn deep(n: u64) -> u64 {
    std::hint::black_box(n) + std::hint::black_box(deep(n + 1))
}

/// A job that reports until a file appears.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Chat {
    pub until: PathBuf,
}

impl Job for Chat {
    const KIND: &'static str = "chat";
    const QUEUE: &'static str = "chats";
}

pub async fn chat(job: Chat, ctx: JobContext) -> Result<Outcome, JobError> {
    let mut n = 0_u32;
    while !job.until.exists() {
        n += 1;
        ctx.progress("chatting", 50.0, &n.to_string()).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Outcome::done(ctx.attempt())
}

#[derive(Debug, Serialize, Deserialize)]
struct Typed {
    number: u32,
}

impl Job for Typed {
    const KIND: &'static str = "typed";
    const QUEUE: &'static str = "q";
}

/// Fails in the way that its kind says.
fn fails(how: &str) -> Result<Outcome, JobError> {
    match how {
        "error" => {
            Err(anyhow::anyhow!("the cable is out").context("no route").context("charge the card").into())
        }
        "panic" => panic!("the roof is {}", "on fire"),
        "cancel" => Ok(Outcome::Cancel("never mind".into())),
        other => panic!("no such way: {other}"),
    }
}

/// A worker whose handlers run until they are cancelled.
fn lanes(tenure: &Tenure) -> tenure::WorkerBuilder<()> {
    let hangs = |_: serde_json::Value, ctx: JobContext| async move {
        ctx.cancelled().await;
    };
    Worker::builder(tenure).handle_kind("hangs", KindOptions::new().keepalive(), hangs).concurrency("q", 4)
}

/// Not a test: the body of `harness::Child`. Without its variable it does nothing.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one line for each scenario")]
async fn child() {
    let Ok(scenario) = std::env::var("TENURE_SCENARIO") else { return };
    let filter = tracing_subscriber::EnvFilter::new("info,async_nats=error");
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let tenure = Tenure::connect(&Config::from_env().unwrap()).await.unwrap();
    match scenario.as_str() {
        "worker" => Worker::builder(&tenure)
            .handle(step)
            .concurrency("steps", 4)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "mistyped queue" => Worker::builder(&tenure)
            .handle(step)
            .concurrency("stepps", 7)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        // It goes on even when it must assume that its jobs were taken: so only the database can stop it.
        "worker that goes on" => Worker::builder(&tenure)
            .handle_with(KindOptions::new().on_write_loss(OnWriteLoss::KeepRunning), step)
            .concurrency("steps", 4)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "never twice" => Worker::builder(&tenure)
            .handle_with(KindOptions::new().on_crash(OnCrash::DeadLetter), step)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "lanes" => lanes(&tenure).run_until(tenure::shutdown_signal()).await.unwrap(),
        "batches" => Worker::builder(&tenure)
            .handle_batch(Batch::up_to(64).within(Duration::from_millis(500)), crate::handle_batch::shoot)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        // Recovers and relays for all queues, and runs no job.
        "idle" => Worker::builder(&tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("idle", 1)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "chats" => Worker::builder(&tenure)
            .handle(chat)
            .concurrency("chats", 100)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "old release" | "new release" => {
            crate::deploys::worker(&tenure, &scenario).run_until(tenure::shutdown_signal()).await.unwrap();
        }
        "sleepy" => Worker::builder(&tenure)
            .handle_any(KindOptions::new().keepalive(), |_: serde_json::Value, _| {
                tokio::time::sleep(Duration::from_millis(60))
            })
            .concurrency("q", 5)
            .run_until(std::future::pending())
            .await
            .unwrap(),
        "fan" => crate::groups::fan(&tenure).await,
        "twenty" => Worker::builder(&tenure)
            .handle_any(KindOptions::new(), crate::steps::twenty)
            .concurrency("q", 1)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "noops" => Worker::builder(&tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("noops", 500)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "fails" => Worker::builder(&tenure)
            .handle_with(KindOptions::new(), |_: Typed, _: JobContext| async {})
            .handle_any(
                KindOptions::new().retry(|_, _| Retry::After(Duration::from_millis(20))),
                |_: serde_json::Value, ctx: JobContext| async move { fails(ctx.kind()) },
            )
            .concurrency("q", 4)
            .run_until(tenure::shutdown_signal())
            .await
            .unwrap(),
        "enqueue" => {
            let job = tenure::JobRequest::new("steps", "noop", serde_json::json!(1));
            tenure.enqueue(job).await.unwrap();
            tenure.flush().await;
        }
        "enqueue thrice" => {
            for n in 0..3 {
                tenure.enqueue(tenure::JobRequest::new("steps", "noop", serde_json::json!(n))).await.unwrap();
                tenure.flush().await;
            }
        }
        "enqueue and exit" => {
            tenure.enqueue(tenure::JobRequest::new("q", "k", serde_json::json!(1))).await.unwrap();
            std::process::exit(0);
        }
        "enqueue in a transaction" => {
            let pool = sqlx::PgPool::connect(&Config::from_env().unwrap().database_url).await.unwrap();
            let mut tx = pool.begin().await.unwrap();
            let job = tenure::JobRequest::new("steps", "noop", serde_json::json!(1));
            tenure.enqueue(job).tx(&mut tx).await.unwrap();
            tracing::info!("about to commit");
            std::future::pending::<()>().await;
        }
        other => panic!("no such scenario: {other}"),
    }
    tenure.close().await;
}
