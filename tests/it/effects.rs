//! Exactly-once effects: a handler's transaction against a reset, a second claim and a retry, at each isolation level.
//! Each test forces the interleaving.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use tenure::{
    FencingToken, JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Status, Worker,
    handlers::{ContextError, Isolation},
};
use tokio::sync::{Mutex, Semaphore, mpsc};

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, statement, until_file},
    scenarios::{Step, step},
};

/// The state that a handler shares with its test: the handler says where it is, and waits until the test lets it go on.
struct App {
    pool: PgPool,
    said: mpsc::UnboundedSender<String>,
    /// Permits of the first attempt, and of later ones.
    go: [Semaphore; 2],
}

impl App {
    /// Says where the handler is, and waits for permission.
    async fn gate(&self, place: &str, token: FencingToken) {
        self.said.send(place.into()).unwrap();
        self.go[usize::from(token.0 > 1)].acquire().await.unwrap().forget();
    }
}

struct World {
    bench: Bench,
    app: Arc<App>,
    heard: Mutex<mpsc::UnboundedReceiver<String>>,
}

async fn world() -> World {
    world_with(|_| {}).await
}

async fn world_with(change: impl FnOnce(&mut tenure::Config)) -> World {
    // Only the test itself resets a job here.
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(300);
        config.timing.scan_every = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(600);
        change(config);
    })
    .await;
    // With the stream there, first messages need no relay.
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint)").await;
    let (said, heard) = mpsc::unbounded_channel();
    let pool = PgPool::connect(&bench.config.database_url).await.unwrap();
    World {
        bench,
        app: Arc::new(App { pool, said, go: [Semaphore::new(0), Semaphore::new(0)] }),
        heard: Mutex::new(heard),
    }
}

impl World {
    fn worker<F, Fut>(&self, handler: F) -> Running
    where
        F: Fn(Value, JobContext<Arc<App>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, JobError>> + Send + 'static,
    {
        Running::start(self.builder(handler))
    }

    /// A worker that does not publish reset jobs: no second attempt begins meanwhile.
    fn worker_without_relay<F, Fut>(&self, handler: F) -> Running
    where
        F: Fn(Value, JobContext<Arc<App>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, JobError>> + Send + 'static,
    {
        Running::start(self.builder(handler).recovery(&[]))
    }

    fn builder<F, Fut>(&self, handler: F) -> tenure::WorkerBuilder<Arc<App>>
    where
        F: Fn(Value, JobContext<Arc<App>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, JobError>> + Send + 'static,
    {
        Worker::builder(&self.bench.tenure)
            .state(self.app.clone())
            .handle_any(KindOptions::new(), handler)
            .concurrency("q", 4)
    }

    async fn enqueue(&self, payload: Value) -> JobId {
        self.bench.tenure.enqueue(JobRequest::new("q", "k", payload)).await.unwrap().id
    }

    /// Waits until the handler says that it is somewhere.
    async fn hear(&self) -> String {
        let heard = async { self.heard.lock().await.recv().await.unwrap() };
        tokio::time::timeout(Duration::from_secs(20), heard).await.expect("the handler says nothing")
    }

    fn go(&self) {
        self.app.go[0].add_permits(1);
    }

    fn second_goes(&self) {
        self.app.go[1].add_permits(1);
    }

    /// Makes the job look silent and runs the scanner's own statement. Returns the number of jobs reset.
    async fn reset(&self, job: JobId) -> usize {
        // In one transaction: the worker scans, too, and must not act in between.
        let mut both = self.bench.pool.begin().await.unwrap();
        sqlx::query("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 hour' WHERE id = $1")
            .bind(job)
            .execute(&mut *both)
            .await
            .unwrap();
        let reset = sqlx::query(statement("reset_stale")).bind(vec![job]).bind("the test");
        let reset = reset.fetch_all(&mut *both).await.unwrap().len();
        both.commit().await.unwrap();
        reset
    }

    /// Runs the claim's own statement for a worker that exists only in the database.
    async fn claim_elsewhere(&self, job: JobId) {
        let claimed = sqlx::query(statement("claim"))
            .bind(vec![job])
            .bind("q")
            .bind("k")
            .bind(300.0_f64)
            .bind("retry")
            .bind("rival-1-x")
            .bind("rival")
            .fetch_all(&self.bench.pool)
            .await
            .unwrap();
        assert_eq!(claimed.len(), 1);
    }

    async fn effects(&self) -> i64 {
        self.bench.count("public.app_effects").await
    }
}

async fn insert(tx: &mut PgConnection, job: JobId, token: FencingToken) -> Result<(), JobError> {
    let insert = sqlx::query("INSERT INTO public.app_effects VALUES ($1, $2)").bind(job).bind(token);
    insert.execute(tx).await?;
    Ok(())
}

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

fn level(payload: &Value) -> Isolation {
    LEVELS[usize::try_from(payload["level"].as_u64().unwrap()).unwrap()]
}

async fn at_gate(tx: &mut PgConnection, job: JobId, token: FencingToken, app: &App) -> Result<u32, JobError> {
    insert(tx, job, token).await?;
    app.gate("inside", token).await;
    Ok(7)
}

/// A handler that fences an insert, with a gate before the transaction and one inside.
async fn fenced(payload: Value, ctx: JobContext<Arc<App>>) -> Result<Outcome, JobError> {
    let (id, token, app) = (ctx.id(), ctx.token(), ctx.state().clone());
    app.gate("before", token).await;
    let done = if payload["once"] == json!(true) {
        ctx.once_with(level(&payload), "effect", async |tx| at_gate(tx, id, token, &app).await).await
    } else {
        ctx.fenced_tx_with(level(&payload), async |tx| at_gate(tx, id, token, &app).await).await
    };
    let said = match &done {
        Ok(n) => format!("committed {n}"),
        Err(error) => format!("lost={} {error:?}", error.is_lost()),
    };
    app.said.send(said).unwrap();
    if payload["stays"] == json!(true) && token.0 == 1 {
        // The completion must not overtake the test.
        app.gate("after", token).await;
    }
    Outcome::done(done?)
}

/// READ COMMITTED: the fence comes last, so every change before it counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_committed_transaction_whose_job_was_reset_or_claimed_meanwhile_commits_nothing() {
    let world = world().await;
    let worker = world.worker_without_relay(fenced);
    for once in [false, true] {
        for claimed in [false, true] {
            let job = world.enqueue(json!({"level": 0, "once": once})).await;
            assert_eq!(world.hear().await, "before");
            world.go();
            assert_eq!(world.hear().await, "inside");
            assert_eq!(world.reset(job).await, 1, "an open transaction does not keep the job");
            if claimed {
                world.claim_elsewhere(job).await;
            }
            world.go();
            let said = world.hear().await;
            assert!(said.starts_with("lost=true") && said.contains("no longer owned"), "{said}");
            assert_eq!(world.effects().await, 0);
            assert_eq!(world.bench.count("tenure.effects").await, 0);
            let noted = format!("tenure.recovery_events WHERE event = 'refused_write' AND job_id = '{job}'");
            world.bench.until_count(&noted, 1).await;
            world.bench.execute("DELETE FROM tenure.jobs").await;
        }
    }
    worker.stop().await;
}

/// From REPEATABLE READ on, the fence comes first and holds the job until the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeatable_read_transaction_is_refused_before_it_begins_or_keeps_the_job_until_it_commits() {
    let world = world().await;
    let worker = world.worker(fenced);
    for (n, once) in [(1, false), (1, true), (2, false), (2, true)] {
        // Reset, and claimed elsewhere, before the transaction begins.
        let job = world.enqueue(json!({"level": n, "once": once})).await;
        assert_eq!(world.hear().await, "before");
        assert_eq!(world.reset(job).await, 1);
        world.claim_elsewhere(job).await;
        world.go();
        let said = world.hear().await;
        assert!(said.starts_with("lost=true"), "{said}");
        assert_eq!(world.effects().await, 0);
        world.bench.execute("DELETE FROM tenure.jobs").await;

        // The reset skips the job, which is locked; a takeover waits.
        let job = world.enqueue(json!({"level": n, "once": once, "stays": true})).await;
        assert_eq!(world.hear().await, "before");
        world.go();
        assert_eq!(world.hear().await, "inside");
        assert_eq!(world.reset(job).await, 0, "held");
        let pool = world.bench.pool.clone();
        let takeover = tokio::spawn(async move {
            let take_over =
                sqlx::query(statement("take_over")).bind(job).bind("w").bind(30.0_f64).bind(0.0_f64);
            take_over.fetch_all(&pool).await.unwrap().len()
        });
        world.bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
        world.go();
        assert_eq!(world.hear().await, "committed 7");
        assert_eq!(world.hear().await, "after");
        // The transaction committed while it owned the job; the takeover came after.
        assert_eq!(takeover.await.unwrap(), 1);
        world.go();
        assert_eq!(world.effects().await, 1);
        world.bench.execute("DELETE FROM public.app_effects").await;
        // In the next attempt `fenced_tx` repeats the effect and `once` does not.
        assert_eq!(world.hear().await, "before");
        world.second_goes();
        if once {
            assert_eq!(world.hear().await, "committed 7", "the stored result");
            assert_eq!(world.effects().await, 0);
        } else {
            assert_eq!(world.hear().await, "inside");
            world.second_goes();
            assert_eq!(world.hear().await, "committed 7");
            assert_eq!(world.effects().await, 1);
        }
        let job = world.bench.until_finished(job).await;
        assert_eq!((job.status, job.fencing_token.0), (Status::Completed, 2));
        world.bench.execute("DELETE FROM public.app_effects").await;
    }
    worker.stop().await;
}

/// A snapshot that is older than the reset must never count as ownership.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_of_the_jobs_row_is_no_ownership() {
    let world = world().await;
    let worker = world.worker_without_relay(|payload, ctx| async move {
        let app = ctx.state().clone();
        let begin = if payload["level"] == json!(1) { "REPEATABLE READ" } else { "SERIALIZABLE" };
        let mut tx =
            app.pool.begin_with(sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {begin}"))).await?;
        sqlx::query("SELECT count(*) FROM tenure.jobs").execute(&mut *tx).await?;
        insert(&mut tx, ctx.id(), ctx.token()).await?;
        app.gate("snapshot taken", ctx.token()).await;
        let refused = if payload["hold"] == json!(true) {
            let held = ctx.lock_job(&mut tx).await;
            assert!(
                matches!(held, Err(ContextError::Conflict { .. } | ContextError::Lost { .. })),
                "{held:?}"
            );
            JobError::from(held.unwrap_err())
        } else {
            ctx.complete_in(tx, None).await.unwrap_err()
        };
        app.said.send(format!("lost={} {refused:?}", refused.is_lost())).unwrap();
        Err(refused)
    });
    for n in [1, 2] {
        for hold in [false, true] {
            for claimed in [false, true] {
                let job = world.enqueue(json!({"level": n, "hold": hold})).await;
                assert_eq!(world.hear().await, "snapshot taken");
                assert_eq!(world.reset(job).await, 1);
                if claimed {
                    world.claim_elsewhere(job).await;
                }
                world.go();
                let said = world.hear().await;
                assert!(hold || said.starts_with("lost=true"), "{said}");
                assert_eq!(world.effects().await, 0);
                world.bench.execute("DELETE FROM tenure.jobs").await;
            }
        }
    }
    worker.stop().await;
}

/// Business writes and the completion commit together or not at all, against a reset and a second claim.
#[tokio::test(flavor = "multi_thread")]
async fn complete_in_commits_both_or_neither() {
    let world = world().await;
    let worker = world.worker_without_relay(|_, ctx| async move {
        let app = ctx.state().clone();
        let mut tx = app.pool.begin().await?;
        insert(&mut tx, ctx.id(), ctx.token()).await?;
        app.gate("inside", ctx.token()).await;
        let done = ctx.complete_in(tx, Some(json!("paid"))).await;
        let lost = done.as_ref().is_err_and(JobError::is_lost);
        app.said.send(format!("ok={} lost={lost}", done.is_ok())).unwrap();
        done
    });
    for (reset, claimed) in [(true, false), (true, true), (false, false)] {
        let job = world.enqueue(json!(1)).await;
        assert_eq!(world.hear().await, "inside");
        if reset {
            assert_eq!(world.reset(job).await, 1);
        }
        if claimed {
            world.claim_elsewhere(job).await;
        }
        world.go();
        assert_eq!(world.hear().await, format!("ok={} lost={reset}", !reset));
        assert_eq!(world.effects().await, i64::from(!reset));
        if reset {
            world.bench.execute("DELETE FROM tenure.jobs").await;
        } else {
            let done = world.bench.until_finished(job).await;
            assert_eq!((done.status, done.output), (Status::Completed, Some(json!("paid"))));
        }
    }
    worker.stop().await;
}

/// Progress changes the job's row. Under a snapshot of the whole transaction, the completion must still succeed if the
/// transaction began with `lock_job`, and otherwise say what to do.
#[tokio::test(flavor = "multi_thread")]
async fn complete_in_under_repeatable_read_goes_with_hold_and_says_so_without() {
    let world = world().await;
    let worker = world.worker(|payload, ctx| async move {
        let app = ctx.state().clone();
        let mut tx = app.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        if payload == json!("held") {
            ctx.lock_job(&mut tx).await?;
        } else {
            sqlx::query("SELECT 1").execute(&mut *tx).await?;
        }
        ctx.progress("working", 40.0, "in the middle").await?;
        app.gate("inside", ctx.token()).await;
        insert(&mut tx, ctx.id(), ctx.token()).await?;
        let done = ctx.complete_in(tx, None).await;
        if let Err(error) = &done {
            assert!(matches!(error.downcast_ref(), Some(ContextError::Conflict { .. })), "{error:?}");
            app.said.send(format!("{error:?}")).unwrap();
            return Ok(Outcome::Cancel("as expected".into()));
        }
        done
    });
    let held = world.enqueue(json!("held")).await;
    assert_eq!(world.hear().await, "inside");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.bench.count("tenure.jobs WHERE stage = 'working'").await, 0, "its progress waits");
    world.go();
    assert_eq!(world.bench.until_finished(held).await.status, Status::Completed);
    assert_eq!(world.effects().await, 1);

    let unheld = world.enqueue(json!("unheld")).await;
    assert_eq!(world.hear().await, "inside");
    world.bench.until_count("tenure.jobs WHERE stage = 'working'", 1).await;
    world.go();
    let said = world.hear().await;
    assert!(said.contains("ctx.lock_job(&mut tx)"), "{said}");
    assert_eq!(world.bench.until_finished(unheld).await.status, Status::Cancelled);
    assert_eq!(world.effects().await, 1, "rolled back");
    worker.stop().await;
}

/// At every isolation level, while a handler's transaction is open: the job's progress is written, its cancellation
/// arrives, and others' batches do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_holds_up_neither_progress_nor_cancellation_nor_others() {
    let world = world().await;
    let worker = world.worker(|payload, ctx| async move {
        if payload == json!("other") {
            ctx.progress("other", 1.0, "").await?;
            return Ok(Outcome::Done(None));
        }
        let app = ctx.state().clone();
        let report = ctx.clone();
        let reason = ctx.clone();
        ctx.fenced_tx_with(level(&payload), async |tx| {
            sqlx::query("SELECT 1").execute(&mut *tx).await?;
            report.progress("inside", 50.0, "written meanwhile").await?;
            app.said.send("inside".into()).unwrap();
            let why = reason.cancelled().await;
            app.said.send(format!("cancelled: {why:?}")).unwrap();
            Err::<(), _>(JobError::msg("rolled back"))
        })
        .await?;
        Ok(Outcome::Done(None))
    });
    for n in 0..3 {
        let job = world.enqueue(json!({ "level": n })).await;
        assert_eq!(world.hear().await, "inside");
        world
            .bench
            .until_count(&format!("tenure.jobs WHERE id = '{job}' AND message = 'written meanwhile'"), 1)
            .await;
        let other = world.enqueue(json!("other")).await;
        world.bench.until_finished(other).await;
        let cancelled = tokio::time::timeout(Duration::from_secs(2), world.bench.tenure.cancel(job)).await;
        assert!(matches!(cancelled, Ok(Ok(tenure::jobs::CancelOutcome::Asked { .. }))), "{cancelled:?}");
        assert_eq!(world.hear().await, "cancelled: User");
        assert_eq!(world.bench.until_finished(job).await.status, Status::Cancelled);
    }
    worker.stop().await;
}

/// While the transaction holds the job, recovery cannot reset it: so its length is limited.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeatable_read_transaction_that_lasts_is_ended_with_an_error_that_says_what_to_do() {
    let bench = bench_with(|_| {}).await;
    let handler = |_: Value, ctx: JobContext| async move {
        ctx.fenced_tx_with(Isolation::RepeatableRead, async |tx| {
            sqlx::query("SELECT pg_sleep(60)").execute(tx).await?;
            Ok(())
        })
        .await
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let started = std::time::Instant::now();
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(1)).await.unwrap().id;
    let job = bench.until_finished(job).await;
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(job.status, Status::Failed);
    let error = job.last_error.unwrap();
    // Either tenure's limit or the server's fires first.
    assert!(error.contains("375ms, a quarter of") || error.contains(" timeout"), "{error}");
    bench.until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid() AND datname = current_database())").await;
    worker.stop().await;
}

/// Two claims of one job reach its one effect at the same time: the second waits for the first, whose fence fails, and
/// then does the effect.
#[tokio::test(flavor = "multi_thread")]
async fn once_happens_once_under_two_claims_at_the_same_time() {
    for n in 0..3 {
        // The long grace keeps the first attempt alive until it goes on.
        let world = world_with(|config| config.timing.cancel_grace = Duration::from_secs(100)).await;
        // The first attempt has this worker's only slot: the other worker runs the second one.
        let first = Running::start(world.builder(fenced).concurrency("q", 1));
        let job = world.enqueue(json!({"level": n, "once": true})).await;
        assert_eq!(world.hear().await, "before");
        let second = world.worker(fenced);
        if n == 0 {
            world.go();
            assert_eq!(world.hear().await, "inside");
        }
        assert_eq!(world.reset(job).await, 1);
        assert_eq!(world.hear().await, "before");
        world.second_goes();
        if n == 0 {
            // The second attempt waits for the first one's uncommitted key.
            world.bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
        }
        world.go();
        world.second_goes();
        let mut said = vec![world.hear().await, world.hear().await, world.hear().await];
        said.sort();
        assert_eq!(said[0], "committed 7");
        assert_eq!(said[1], "inside");
        assert!(said[2].starts_with("lost=true"), "{said:?}");
        let done = world.bench.until_finished(job).await;
        assert_eq!((done.fencing_token.0, done.output), (2, Some(json!(7))));
        assert_eq!(world.bench.text("SELECT token FROM public.app_effects").await, "(2)");
        for worker in [first, second] {
            worker.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_effect_key_and_a_result_with_nul_are_errors_that_say_so() {
    let world = world().await;
    let worker = world.worker(|payload, ctx| async move {
        let key = payload["key"].as_str().unwrap().to_owned();
        let result = payload["result"].as_str().unwrap().to_owned() + "\0";
        ctx.once(&key, async |_| Ok(result)).await?;
        Ok(Outcome::Done(None))
    });
    let long = "x".repeat(513);
    for (key, expected) in [
        ("a\nb", "must not contain control characters; escape or hash it"),
        ("", "must have 1 to 512 bytes; hash a longer one"),
        (&long, "must have 1 to 512 bytes; hash a longer one"),
        ("good", "the result of effect \"good\" cannot be stored"),
    ] {
        let job = world.enqueue(json!({"key": key, "result": "r"})).await;
        let job = world.bench.until_finished(job).await;
        assert_eq!((job.status, job.attempt), (Status::Failed, 1));
        assert!(job.last_error.as_ref().unwrap().contains(expected), "{job:?}");
    }
    worker.stop().await;
}

/// A statement failed, and so aborted the transaction, but the closure ignores the error: sqlx's commit would return
/// `Ok`.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_transaction_is_never_reported_as_committed() {
    let world = world().await;
    let worker = world.worker(|payload, ctx| async move {
        let (id, token) = (ctx.id(), ctx.token());
        let done = ctx
            .fenced_tx_with(level(&payload), async |tx| {
                insert(tx, id, token).await?;
                sqlx::query("SELECT 1 / 0").execute(tx).await.ok();
                Ok(())
            })
            .await;
        ctx.state().said.send(format!("ok={}", done.is_ok())).unwrap();
        Ok(Outcome::Cancel("seen".into()))
    });
    for n in 0..3 {
        let job = world.enqueue(json!({ "level": n })).await;
        assert_eq!(world.hear().await, "ok=false", "level {n}");
        world.bench.until_finished(job).await;
    }
    assert_eq!(world.effects().await, 0);
    worker.stop().await;
}

/// SERIALIZABLE may find a conflict only at the commit: a failure like any other, charged and typed.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_at_the_commit_is_a_failure_that_says_so() {
    let world = world().await;
    world.bench.execute("CREATE TABLE public.on_call (name text PRIMARY KEY, active bool)").await;
    world.bench.execute("INSERT INTO public.on_call VALUES ('a', true), ('b', true)").await;
    let worker = world.worker(|_, ctx| async move {
        let (app, token) = (ctx.state().clone(), ctx.token());
        let inside = app.clone();
        let done = ctx
            .fenced_tx_with(Isolation::Serializable, async |tx| {
                sqlx::query("SELECT count(*) FROM public.on_call WHERE active").execute(&mut *tx).await?;
                sqlx::query("UPDATE public.on_call SET active = false WHERE name = 'a'").execute(tx).await?;
                inside.gate("inside", token).await;
                Ok(())
            })
            .await;
        let conflict = |error: &JobError| matches!(error.downcast_ref(), Some(ContextError::Conflict { .. }));
        app.said.send(format!("conflict={}", done.as_ref().is_err_and(conflict))).unwrap();
        done?;
        Ok(Outcome::Done(None))
    });
    let request = JobRequest::new("q", "k", json!(1)).max_attempts(1);
    let job = world.bench.tenure.enqueue(request).await.unwrap().id;
    assert_eq!(world.hear().await, "inside");
    // Write skew: each transaction saw two rows, each removes one, and the other commits first.
    let mut other = world.bench.pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await.unwrap();
    sqlx::query("SELECT count(*) FROM public.on_call WHERE active").execute(&mut *other).await.unwrap();
    sqlx::query("UPDATE public.on_call SET active = false WHERE name = 'b'")
        .execute(&mut *other)
        .await
        .unwrap();
    other.commit().await.unwrap();
    world.go();
    assert_eq!(world.hear().await, "conflict=true");
    let failed = world.bench.until_finished(job).await;
    assert_eq!((failed.status, failed.attempt), (Status::Failed, 1), "charged, not for ever");
    assert_eq!(world.bench.count("public.on_call WHERE active").await, 1);
    worker.stop().await;
}

/// A transaction that is dropped in the middle of a long statement must end on the server, too: it holds the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_dropped_ends_on_the_server_and_holds_up_no_other_job() {
    let world = world().await;
    let worker = world.worker(|payload, ctx| async move {
        if payload == json!("other") {
            return Err(JobError::permanent("an end that is settled"));
        }
        let app = ctx.state().clone();
        ctx.fenced_tx_with(level(&payload), async |tx| {
            app.said.send("inside".into()).unwrap();
            sqlx::query("SELECT pg_sleep(61)").execute(tx).await?;
            Ok(())
        })
        .await?;
        Ok(Outcome::Done(None))
    });
    for n in [1, 2] {
        let job = world.enqueue(json!({ "level": n })).await;
        assert_eq!(world.hear().await, "inside");
        world.bench.tenure.cancel(job).await.unwrap();
        let started = std::time::Instant::now();
        // The handler is dropped after its grace of half a second.
        assert_eq!(world.bench.until_finished(job).await.status, Status::Cancelled);
        let other = world.enqueue(json!("other")).await;
        world.bench.until_finished(other).await;
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        world.bench.until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep(61)%' AND pid <> pg_backend_pid() AND datname = current_database())").await;
    }
    worker.stop().await;
}

/// A handler that begins with `lock_job` gets no conflict, however much it reports.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_job_that_chats_all_the_time_completes_in_its_transaction() {
    let world = world().await;
    let worker = world.worker(|_, ctx| async move {
        let chatter = ctx.clone();
        let chat = tokio::spawn(async move {
            while chatter.progress("chatting", 1.0, "").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(60)).await;
        let mut tx = ctx.state().pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        ctx.lock_job(&mut tx).await?;
        insert(&mut tx, ctx.id(), ctx.token()).await?;
        tokio::time::sleep(Duration::from_millis(60)).await;
        let done = ctx.complete_in(tx, None).await;
        chat.abort();
        done
    });
    let jobs = (0..60).map(|n| JobRequest::new("q", "k", json!(n)).max_attempts(1));
    world.bench.tenure.enqueue_many(jobs).await.unwrap();
    world.bench.until("(SELECT count(*) FROM tenure.all_jobs WHERE finished_at IS NOT NULL) = 60").await;
    let dead = world.bench.text("SELECT last_error FROM tenure.dead_letter_jobs").await;
    assert_eq!(dead, "");
    assert_eq!(world.effects().await, 60);
    worker.stop().await;
}

/// A `complete_in` that is dropped in the middle leaves the job as it was: owned, and reporting.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_dropped_does_not_silence_the_job() {
    let world = world().await;
    let worker = world.worker(|_, ctx| async move {
        let mut tx = ctx.state().pool.begin().await?;
        insert(&mut tx, ctx.id(), ctx.token()).await?;
        tokio::time::timeout(Duration::from_millis(200), ctx.complete_in(tx, None)).await.unwrap_err();
        ctx.progress("afterwards", 1.0, "").await?;
        ctx.state().gate("dropped", ctx.token()).await;
        Ok(Outcome::Done(None))
    });
    // The completion waits for this lock; the claim does not.
    let job = world.bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).delay(Duration::from_secs(1)));
    let job = job.await.unwrap().id;
    let mut locked = world.bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR KEY SHARE")
        .bind(job)
        .execute(&mut *locked)
        .await
        .unwrap();
    let heard = world.hear().await;
    locked.rollback().await.unwrap();
    assert_eq!(heard, "dropped");
    world.bench.until_count("tenure.jobs WHERE stage = 'afterwards'", 1).await;
    world.go();
    assert_eq!(world.bench.until_finished(job).await.status, Status::Completed);
    assert_eq!(world.effects().await, 0);
    worker.stop().await;
}

/// A worker that freezes inside `once` holds the effect's key, but no longer than the next attempt can wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_freezes_inside_once_does_not_hold_up_the_next_attempt() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint)").await;
    let frozen = Child::start(&bench, "worker");
    let job = Step::new(&bench, "once");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("inside")).await;
    frozen.signal(rustix::process::Signal::STOP);
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    let done = bench.until_finished(id).await;
    assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 2));
    assert_eq!(bench.text("SELECT token FROM public.app_effects").await, "(2)");
    std::fs::write(job.file("go"), "").unwrap();
    frozen.signal(rustix::process::Signal::CONT);
    other.stop().await;
    assert_eq!(bench.text("SELECT token FROM public.app_effects").await, "(2)");
}
