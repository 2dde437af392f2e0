//! Hooks: what each event says, when it comes, and that no hook harms a job.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as channel,
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tenure::{
    Backoff, JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Status, Tenure, Worker,
    WorkerBuilder,
    hooks::{AttemptEnded, AttemptOutcome, Category, JobDied, JobEnqueued, JobLost, RecoveryPath},
};
use tokio::{
    runtime::Handle,
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, unbounded_channel},
    },
    time::timeout,
};

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, counted, until_file},
    scenarios::{self, Step},
};

/// A statement of this test's database waits for a lock.
const WAITS_FOR_A_LOCK: &str = "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                                AND datname = current_database())";

/// A hook that passes its events on, and what it passes.
fn heard<E: Clone + Send + 'static>() -> (impl FnMut(&E) + Clone + Send + 'static, UnboundedReceiver<E>) {
    let (pass, events) = unbounded_channel();
    (move |event: &E| drop(pass.send(event.clone())), events)
}

async fn next<E>(events: &mut UnboundedReceiver<E>) -> E {
    timeout(Duration::from_secs(20), events.recv()).await.expect("no event").expect("the hook has ended")
}

/// A world in which no job looks stale, and a worker that stops waits for none.
async fn patient() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(90);
        config.timing.shutdown_grace = Duration::from_millis(50);
    })
    .await
}

fn worker(bench: &Bench) -> WorkerBuilder {
    Worker::builder(&bench.tenure).concurrency("q", 4)
}

async fn enqueue(bench: &Bench, kind: &str, payload: Value, attempts: u32) -> JobId {
    let request = JobRequest::new("q", kind, payload).max_attempts(attempts);
    bench.tenure.enqueue(request).await.unwrap().id
}

#[derive(Debug, thiserror::Error)]
#[error("could not charge")]
struct ChargeError(#[source] io::Error);

/// Ends as its payload says.
async fn ends(payload: Value, ctx: JobContext) -> Result<Outcome, JobError> {
    let charge = || ChargeError(io::Error::other("the bank is away"));
    match payload.as_str().unwrap() {
        "done" => Outcome::done(1),
        "error" => Err(charge().into()),
        "permanent" => Err(JobError::permanent(charge())),
        "later" => Err(JobError::retry_after(Duration::from_secs(77), charge())),
        "snooze" => Ok(Outcome::Snooze(Duration::from_secs(55))),
        "cancel" => Ok(Outcome::Cancel("not wanted".into())),
        "unfit" => Outcome::done("\0"),
        "panic" => panic!("a panic on purpose"),
        "slow" => {
            tokio::time::sleep(Duration::from_millis(40)).await;
            Outcome::done(1)
        }
        _ => {
            ctx.cancelled().await;
            Err(JobError::msg("stopped"))
        }
    }
}

fn options() -> KindOptions {
    let first = Duration::from_secs(9);
    KindOptions::new().backoff(Backoff { first, longest: first, jitter: 0.0 })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_of_an_attempt_is_told_with_its_error_and_what_follows() {
    use AttemptOutcome::{Cancelled, Completed, Failed, Retried, Snoozed};
    let bench = patient().await;
    let (hook, mut ended) = heard::<AttemptEnded>();
    let (on_dead, mut died) = heard::<JobDied>();
    let worker = Running::start(
        worker(&bench)
            .handle_kind("timed", options().timeout(Duration::from_millis(50)), ends)
            .handle_any(options(), ends)
            .on_attempt_end(hook)
            .on_dead(on_dead),
    );
    let charge = "could not charge: the bank is away";
    for (kind, payload, attempts, outcome, error, again_in, category) in [
        ("k", "done", 5, Completed, None, None, None),
        ("k", "error", 5, Retried, Some(charge), Some(9), None),
        ("k", "later", 5, Retried, Some(charge), Some(77), None),
        ("k", "error", 1, Failed, Some(charge), None, Some(Category::Exhausted)),
        ("k", "permanent", 5, Failed, Some(charge), None, Some(Category::Permanent)),
        ("k", "snooze", 5, Snoozed, None, Some(55), None),
        ("k", "cancel", 5, Cancelled, Some("not wanted"), None, None),
        (
            "k",
            "unfit",
            5,
            Failed,
            Some(
                "the output cannot be stored: it contains the character \\u0000, which Postgres cannot store",
            ),
            None,
            Some(Category::InvalidOutput),
        ),
        ("k", "panic", 5, Retried, Some("the handler panicked: a panic on purpose"), Some(9), None),
        (
            "timed",
            "wait",
            5,
            Retried,
            Some("it ran longer than the 50ms that its kind allows"),
            Some(9),
            None,
        ),
        ("k", "slow", 5, Completed, None, None, None),
    ] {
        let id = enqueue(&bench, kind, json!(payload), attempts).await;
        let end = next(&mut ended).await;
        let said = end.error.as_ref().map(|error| format!("{error:#}"));
        assert_eq!((end.id, end.outcome, said.as_deref()), (id, outcome, error), "{payload}: {end:?}");
        assert_eq!(end.again_in, again_in.map(Duration::from_secs), "{payload}");
        assert_eq!((end.queue.as_str(), end.kind.as_str(), end.token.0), ("q", kind, 1));
        assert_eq!((end.attempt, end.max_attempts), (1, attempts));
        // The end that the event tells of is there, and its retry is due when the event says.
        let attempt = &bench.tenure.executions(id).await.unwrap()[0];
        assert_eq!(attempt.outcome.as_deref(), Some(outcome.as_str()));
        assert_eq!(attempt.worker_id, *end.worker);
        if let Some(seconds) = again_in {
            let due = format!(
                "scheduled_at - now() BETWEEN interval '{} s' AND interval '{seconds} s'",
                seconds - 5
            );
            assert_eq!(
                bench.count(&format!("tenure.jobs WHERE id = '{id}' AND {due}")).await,
                1,
                "{payload}"
            );
        }
        if payload == "slow" {
            assert!(end.ran >= Duration::from_millis(40), "{:?}", end.ran);
        }
        if error == Some(charge) {
            // The handler's own error, with its types, and not its text.
            let error = end.error.as_ref().unwrap();
            assert!(error.downcast_ref::<ChargeError>().is_some());
            let cause = error.as_error().source().unwrap();
            assert!(cause.is::<io::Error>(), "{cause:?}");
        }
        if let Some(category) = category {
            let dead = next(&mut died).await;
            let facts = (dead.id, dead.queue.as_str(), dead.kind.as_str(), dead.category);
            assert_eq!(facts, (id, "q", kind, category));
            assert_eq!(Some(format!("{:#}", dead.error)), said);
            assert_eq!(dead.worker, end.worker);
        }
    }
    // A worker that stops releases what still runs, and waits until its hooks have heard of it.
    let id = enqueue(&bench, "k", json!("wait"), 5).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.stop().await;
    let end = ended.try_recv().unwrap();
    assert_eq!((end.id, end.outcome, end.again_in), (id, AttemptOutcome::Released, Some(Duration::ZERO)));
    assert!(end.error.is_none() && ended.try_recv().is_err() && died.try_recv().is_err());
}

/// The handler completes its job by SQL, and then fails: the attempt records no error, and so no hook hears of one.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_completed_by_sql_is_told_without_the_error_that_followed() {
    let bench = patient().await;
    let (hook, mut ended) = heard::<AttemptEnded>();
    let (on_dead, mut died) = heard::<JobDied>();
    let pool = bench.pool.clone();
    let handler = move |_: Value, ctx: JobContext| {
        let pool = pool.clone();
        async move {
            let attempt = format!("'{}', {}, '{}'", ctx.id(), ctx.token(), ctx.claim_id());
            let complete = format!("SELECT tenure.complete({attempt}, '1')");
            sqlx::query(sqlx::AssertSqlSafe(complete)).execute(&pool).await.unwrap();
            Err::<(), _>(JobError::permanent("too late"))
        }
    };
    for options in [KindOptions::new(), KindOptions::new().no_history()] {
        let (hook, on_dead) = (hook.clone(), on_dead.clone());
        let worker = worker(&bench).handle_any(options, handler.clone());
        let worker = Running::start(worker.on_attempt_end(hook).on_dead(on_dead));
        let id = enqueue(&bench, "k", json!(1), 1).await;
        let end = next(&mut ended).await;
        assert_eq!((end.id, end.outcome, end.again_in), (id, AttemptOutcome::Completed, None));
        assert!(end.error.is_none(), "{end:?}");
        worker.stop().await;
        assert!(died.try_recv().is_err());
    }
}

/// The job's row is locked, so that its end cannot be committed: no hook hears of it. Once the lock is gone, the hook
/// itself finds the job completed.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_told_of_after_its_end_is_committed() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_secs(30)).await;
    let (said, mut statuses) = unbounded_channel();
    let tenure = bench.tenure.clone();
    let hook = move |end: &AttemptEnded| {
        let job = Handle::current().block_on(tenure.job(end.id)).unwrap();
        said.send(job.unwrap().status).unwrap();
    };
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let of_handler = (started.clone(), go_on.clone());
    let handler = move |_: Value, _: JobContext| {
        let (started, go_on) = of_handler.clone();
        async move {
            started.notify_one();
            go_on.notified().await;
        }
    };
    let worker = Running::start(worker(&bench).handle_any(KindOptions::new(), handler).on_attempt_end(hook));
    enqueue(&bench, "k", json!(1), 1).await;
    started.notified().await;
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs FOR UPDATE").execute(&mut *lock).await.unwrap();
    go_on.notify_one();
    bench.until(WAITS_FOR_A_LOCK).await;
    assert!(statuses.try_recv().is_err(), "told before its end");
    lock.rollback().await.unwrap();
    assert_eq!(next(&mut statuses).await, Status::Completed);
    worker.stop().await;
}

/// The owner tells once its handler has ended, and the worker that reset the job, here the same one, at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_job_is_told_of_by_its_owner_and_by_the_worker_that_reset_it() {
    let bench = bench().await;
    let (on_lost, mut lost) = heard::<JobLost>();
    let (on_dead, mut died) = heard::<JobDied>();
    let (hook, mut ended) = heard::<AttemptEnded>();
    let silent = |_: Value, ctx: JobContext| async move {
        if ctx.token().0 == 1 {
            ctx.cancelled().await;
        }
    };
    let worker = Running::start(
        worker(&bench)
            .handle_any(KindOptions::new(), silent)
            .on_lost(on_lost)
            .on_dead(on_dead)
            .on_attempt_end(hook),
    );
    let id = enqueue(&bench, "k", json!(1), 5).await;
    let done = next(&mut ended).await;
    assert_eq!(
        (done.id, done.token.0, done.outcome),
        (id, 2, AttemptOutcome::Completed),
        "the lost one is not told"
    );
    let mut both = [next(&mut lost).await, next(&mut lost).await];
    both.sort_by_key(|lost| lost.path == RecoveryPath::Worker);
    for lost in &both {
        assert_eq!((lost.id, lost.queue.as_str(), lost.kind.as_str(), lost.token.0), (id, "q", "k", 1));
        assert_eq!(lost.owner.as_deref(), Some(&*done.worker));
        assert_eq!(lost.worker, done.worker);
    }
    assert_eq!((both[0].path, both[1].path), (RecoveryPath::Scanner, RecoveryPath::Worker));
    assert!(both[0].silence.is_some_and(|silence| silence >= bench.config.timing.stale_after));
    assert_eq!(both[1].silence, None);
    // Without attempts left, recovery makes it a dead letter.
    assert!(died.try_recv().is_err());
    let id = enqueue(&bench, "k", json!(1), 1).await;
    let dead = next(&mut died).await;
    assert_eq!((dead.id, &dead.worker), (id, &done.worker));
    let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
    assert_eq!(letter.category, dead.category.as_str(), "silent, or lost if its worker looks so, too");
    assert_eq!(dead.error.to_string(), "silent for longer than stale_after");
    worker.stop().await;
}

/// A worker that starts resets the jobs of a dead process of its host, and its hooks hear of that.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_a_worker_resets_at_its_start_are_told_of() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(90);
        config.hostname = Some("web-1".into());
    })
    .await;
    let mut first = Child::start(&bench, "worker");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    let owner: String = bench.value("SELECT worker_id FROM tenure.jobs").await;
    first.kill().await;
    let (on_lost, mut lost) = heard::<JobLost>();
    let second = Running::start(Worker::builder(&bench.tenure).handle(scenarios::step).on_lost(on_lost));
    let event = next(&mut lost).await;
    assert_eq!((event.id, event.queue.as_str(), event.path), (id, "steps", RecoveryPath::Reconcile));
    assert_eq!(event.owner.as_deref(), Some(owner.as_str()));
    assert_ne!(*event.worker, *owner);
    assert_eq!(bench.until_finished(id).await.fencing_token.0, 2);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_cannot_be_jobs_and_unknown_kinds_are_told_of_as_dead_letters() {
    let bench = bench_with(|config| config.timing.unknown_kind_after = Duration::from_secs(1)).await;
    let (on_dead, mut died) = heard::<JobDied>();
    let known = |_: Value, _: JobContext| async {};
    let worker =
        Running::start(worker(&bench).handle_kind("known", KindOptions::new(), known).on_dead(on_dead));
    bench.until_count("tenure.workers", 1).await;
    bench.publish("q.known", "no JSON").await;
    let malformed = next(&mut died).await;
    let facts = (malformed.queue.as_str(), malformed.kind.as_str(), malformed.category);
    assert_eq!(facts, ("q", "known", Category::Malformed));
    let letter = bench.tenure.dead_letter(malformed.id).await.unwrap().unwrap();
    assert_eq!(letter.last_error, malformed.error.to_string());
    let id = enqueue(&bench, "typo", json!(1), 1).await;
    let unknown = next(&mut died).await;
    assert_eq!((unknown.id, unknown.kind.as_str(), unknown.category), (id, "typo", Category::UnknownKind));
    let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
    assert_eq!(letter.last_error, unknown.error.to_string());
    worker.stop().await;
}

/// One hook hangs for ever, from its first event on. Hundreds of jobs end, another hook of the same event hears of
/// each, and the worker stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_hangs_holds_up_neither_the_worker_nor_another_hook() {
    const JOBS: usize = 400;
    let bench = bench().await;
    let (release, released) = channel::channel::<()>();
    let (hook, mut ended) = heard::<AttemptEnded>();
    let hangs = move |_: &AttemptEnded| {
        released.recv().ok();
    };
    let worker = Running::start(
        worker(&bench).handle_any(KindOptions::new(), ends).on_attempt_end(hangs).on_attempt_end(hook),
    );
    let jobs = (0..JOBS).map(|_| JobRequest::new("q", "k", json!("done")));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    for _ in 0..JOBS {
        next(&mut ended).await;
    }
    bench.until_count("tenure.job_history", JOBS.try_into().unwrap()).await;
    let began_at = Instant::now();
    worker.stop().await;
    let took = began_at.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(10)).contains(&took), "{took:?}");
    assert_eq!(bench.count("tenure.workers").await, 0, "it has signed off");
    drop(release);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_panics_hears_the_next_event() {
    let bench = bench().await;
    let (pass, mut ended) = unbounded_channel();
    let panicked = "tenure_hook_failures_total{hook=on_attempt_end,why=panicked}";
    let before = counted(panicked);
    let hook = move |end: &AttemptEnded| {
        pass.send(end.id).unwrap();
        panic!("a hook's panic on purpose");
    };
    let worker = Running::start(worker(&bench).handle_any(KindOptions::new(), ends).on_attempt_end(hook));
    for _ in 0..3 {
        let id = enqueue(&bench, "k", json!("done"), 1).await;
        assert_eq!(next(&mut ended).await, id);
        assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    }
    worker.stop().await;
    assert!(counted(panicked) >= before + 3);
}

async fn producer(bench: &Bench, hook: impl FnMut(&JobEnqueued) + Send + 'static) -> Tenure {
    Tenure::builder(&bench.config).on_enqueue(hook).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_that_an_enqueue_creates_is_told_of_and_no_duplicate() {
    let bench = bench().await;
    let (hook, mut enqueued) = heard::<JobEnqueued>();
    let tenure = producer(&bench, hook).await;
    let request = |n: u32| JobRequest::new("q", "k", json!(n));
    let delayed = request(1).unique_key("one").delay(Duration::from_secs(60)).max_attempts(3);
    let id = tenure.enqueue(delayed.clone()).await.unwrap().id;
    let job = next(&mut enqueued).await;
    assert_eq!((job.id, job.queue.as_str(), job.kind.as_str(), job.max_attempts), (id, "q", "k", 3));
    assert_eq!((job.unique_key.as_deref(), job.delay), (Some("one"), Some(Duration::from_secs(60))));
    assert_eq!((job.run_at, job.in_transaction), (None, false));
    assert!(tenure.enqueue(delayed.clone()).await.unwrap().duplicate);
    // A duplicate among many, and jobs in a transaction that rolls back.
    let many = tenure.enqueue_many([request(2), delayed, request(3)]).await.unwrap();
    for at in [0, 2] {
        assert_eq!(next(&mut enqueued).await.id, many[at].id);
    }
    let mut tx = bench.pool.begin().await.unwrap();
    let one = tenure.enqueue(request(4)).tx(&mut tx).await.unwrap().id;
    let two = tenure.enqueue_many([request(5)]).tx(&mut tx).await.unwrap()[0].id;
    tx.rollback().await.unwrap();
    for id in [one, two] {
        let job = next(&mut enqueued).await;
        assert_eq!((job.id, job.in_transaction), (id, true));
    }
    // What was refused is not told of; what was told of is heard before `close` returns.
    tenure.enqueue(request(6).max_attempts(0)).await.unwrap_err();
    let last = tenure.enqueue(request(7)).await.unwrap().id;
    tenure.close().await;
    assert_eq!(enqueued.try_recv().unwrap().id, last);
    assert!(enqueued.try_recv().is_err());
}

/// No row can be inserted: no hook hears of one. Once that is possible, the hook itself finds the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_told_of_after_it_is_committed() {
    let bench = bench().await;
    let (said, mut found) = unbounded_channel();
    let looks = bench.tenure.clone();
    let hook = move |job: &JobEnqueued| {
        let row = Handle::current().block_on(looks.job(job.id)).unwrap();
        said.send(row.map(|row| row.id)).unwrap();
    };
    let tenure = producer(&bench, hook).await;
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs IN SHARE MODE").execute(&mut *lock).await.unwrap();
    let enqueue = tokio::spawn(async move { tenure.enqueue(JobRequest::new("q", "k", json!(1))).await });
    bench.until(WAITS_FOR_A_LOCK).await;
    assert!(found.try_recv().is_err(), "told before it is there");
    lock.rollback().await.unwrap();
    let id = enqueue.await.unwrap().unwrap().id;
    assert_eq!(next(&mut found).await, Some(id));
}

/// A hook of enqueues hangs: no enqueue waits for it, and `close` waits for a bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_waits_for_no_hook() {
    let bench = bench().await;
    let (release, released) = channel::channel::<()>();
    let hung = Arc::new(AtomicBool::new(false));
    let hangs = hung.clone();
    let hook = move |_: &JobEnqueued| {
        hangs.store(true, Ordering::SeqCst);
        released.recv().ok();
    };
    let tenure = producer(&bench, hook).await;
    for n in 0..100 {
        tenure.enqueue(JobRequest::new("q", "k", json!(n))).await.unwrap();
    }
    assert_eq!(bench.count("tenure.jobs").await, 100);
    let began_at = Instant::now();
    tenure.close().await;
    let took = began_at.elapsed();
    assert!(hung.load(Ordering::SeqCst) && took < Duration::from_secs(10), "{took:?}");
    drop(release);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attempt_names_the_jobs_lane() {
    let bench = patient().await;
    bench.tenure.put_lanes("q", tenure::lanes::Lanes::new().running(2)).await.unwrap();
    let (hook, mut ended) = heard::<AttemptEnded>();
    let running = Running::start(worker(&bench).handle_any(options(), ends).on_attempt_end(hook));
    for lane in [Some("org-7"), None] {
        let request = JobRequest::new("q", "k", json!("done"));
        let request = lane.map_or_else(|| request.clone(), |lane| request.clone().lane(lane));
        bench.tenure.enqueue(request).await.unwrap();
        assert_eq!(next(&mut ended).await.lane.as_deref(), lane);
    }
    running.stop().await;
}
