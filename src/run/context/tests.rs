//! Context: the answers that a handler gets, and which of its transactions commit.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use futures::{future::BoxFuture, poll};
use serde_json::json;
use sqlx::{Executor, PgConnection, PgPool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{
    config::Timing,
    proof::{Place, RULES, ago, place, place_with, run_in, seconds},
    run::running::{Reservation, Rules, Running},
    store::Isolation,
};

#[path = "../../steps/tests.rs"]
mod steps;

const WORKER: &str = "worker";
const SECOND: Duration = Duration::from_secs(1);
const BOTH: [Isolation; 2] = [Isolation::ReadCommitted, Isolation::RepeatableRead];

/// A job that runs, as its handler sees it.
#[expect(dead_code, reason = "the reservation is kept")]
struct One {
    place: Place,
    context: JobContext,
    running: Running,
    reservation: Reservation,
}

async fn one() -> One {
    one_in(place().await, RULES).await
}

async fn one_under(rules: Rules) -> One {
    one_in(place().await, rules).await
}

async fn one_in(place: Place, rules: Rules) -> One {
    let mut claim = place.claimed_by(WORKER).await;
    (claim.attempt, claim.max_attempts) = (3, 7);
    claim.trace_context = Some("00-1".into());
    claim.checkpoint = Some("12".into());
    let job = place.run_claim(claim, rules);
    let running = Running::default();
    let reservation = run_in(&running, &job);
    let store = place.tenure.store().clone();
    let heartbeat = Heartbeat::new(store.clone(), running.clone(), Timing::DEFAULT, WORKER.into(), None);
    let recorder = Recorder::new(&store);
    let context = JobContext {
        job,
        state: Arc::new(()),
        store,
        heartbeat,
        recorder,
        checkpoint_bytes_max: 10,
        payload_bytes_max: 100,
        codecs: crate::codec::job::Codecs::new(),
    };
    One { place, context, running, reservation }
}

impl One {
    async fn claimed_by_another(&self) {
        self.place.execute("UPDATE tenure.jobs SET fencing_token = 9, claim_id = gen_random_uuid()").await;
    }

    /// Creates a table of the user.
    async fn table(&self) {
        self.place.execute("CREATE TABLE tenure.done (n int)").await;
    }

    async fn done(&self) -> String {
        self.place.value("SELECT count(*) FROM tenure.done").await
    }

    /// Makes the next commit of a row in that table fail with this code.
    async fn commits_fail_with(&self, code: &str) {
        self.place
            .execute(&format!(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN RAISE EXCEPTION 'not so' USING ERRCODE = '{code}'; END $$"
            ))
            .await;
        self.place
            .execute(
                "CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON tenure.done DEFERRABLE INITIALLY DEFERRED \
                 FOR EACH ROW EXECUTE FUNCTION fail()",
            )
            .await;
    }
}

fn does(tx: &mut PgConnection) -> BoxFuture<'_, Result<(), JobError>> {
    Box::pin(async move {
        tx.execute("INSERT INTO tenure.done VALUES (1)").await?;
        Ok(())
    })
}

/// The error of a call of the context, in a word.
fn said(error: &JobError) -> &'static str {
    match error.downcast_ref::<ContextError>() {
        Some(ContextError::Lost { .. }) => "lost",
        Some(ContextError::Ended { .. }) => "ended",
        Some(ContextError::CutOff { .. }) => "cut off",
        Some(ContextError::Conflict { .. }) => "conflict",
        Some(ContextError::TooLong { .. }) => "too long",
        Some(ContextError::Suspended { .. }) => "suspended",
        Some(ContextError::Store(_)) => "store",
        None => "other",
    }
}

#[tokio::test]
async fn a_handler_sees_its_job() {
    let One { context, place, .. } = one().await;
    assert_eq!((context.attempt(), context.max_attempts()), (3, 7));
    assert_eq!(context.trace_context(), Some("00-1"));
    assert_eq!((context.checkpoint::<u32>(), context.checkpoint::<String>()), (Some(12), None));
    assert_eq!(context.raw_checkpoint(), Some("12"));
    let id = place.value("SELECT id FROM tenure.jobs").await;
    assert_eq!(context.idempotency_key("mail"), format!("{id}:mail"));
}

#[tokio::test]
async fn a_report_waits_for_its_write_and_its_percent_is_clamped() {
    let One { context, .. } = one().await;
    for (said, kept) in [(-1.0, Some(0.0)), (40.0, Some(40.0)), (200.0, Some(100.0))] {
        context.progress("s", said, "m").await.unwrap();
        assert_eq!(context.job.pulse().pending.as_ref().unwrap().percent, kept);
    }
    context.job.pulse().pending = None;
    context.progress("s", f32::NAN, "m").await.unwrap();
    assert_eq!(context.job.pulse().pending.as_ref().unwrap().percent, None);
    context.save_checkpoint(&7).await.unwrap();
    assert_eq!(context.job.pulse().pending.as_ref().unwrap().checkpoint.as_deref(), Some("7"));
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_stored_is_refused_with_the_reason() {
    let One { context, .. } = one().await;
    let just = "x".repeat(8);
    assert_eq!(context.storable_checkpoint(format!("\"{just}\"")).unwrap().len(), 10);
    for (text, why) in
        [(format!("\"{just}x\""), "11 bytes"), ("\"\\u0000\"".into(), "u0000"), ("{".into(), "EOF")]
    {
        let error = context.storable_checkpoint(text).unwrap_err();
        assert!(
            error.permanent && error.text().to_lowercase().contains(&why.to_lowercase()),
            "{}",
            error.text()
        );
    }
}

/// `report_now` never waits, and a report with a refused checkpoint still is a sign of life.
#[tokio::test]
async fn a_program_reports_without_waiting() {
    let One { context, .. } = one().await;
    let report = |checkpoint: &str| context.report_now(None, Some(1.0), None, Some(checkpoint.into()));
    report("1").unwrap();
    let refused = report("\"far too long\"").unwrap_err();
    let pending = context.job.pulse().pending.clone().unwrap();
    assert_eq!((pending.checkpoint.as_deref(), pending.message), (Some("1"), Some(refused.text())));
    context.job.pulse().pending = None;
    context.job.end();
    assert_eq!(said(&report("1").unwrap_err()), "ended");
    let One { context, .. } = one().await;
    context.job.cancel(CancelReason::Lost);
    assert_eq!(said(&context.report_now(None, None, None, None).unwrap_err()), "lost");
    assert!(context.job.pulse().pending.is_none());
}

/// A handler that went on would soon work in vain.
#[tokio::test]
async fn a_report_waits_for_its_write_after_half_of_stale_after_without_one() {
    let keeps = Rules { on_write_loss: OnWriteLoss::KeepRunning, ..RULES };
    let before = Some(ago(seconds(1)));
    let later = Some(std::time::Instant::now() + seconds(60));
    for (rules, written, held, waits) in [
        (RULES, 31, None, true),
        (RULES, 29, None, false),
        (RULES, 31, later, false),
        (RULES, 31, before, true),
        (keeps, 31, None, false),
    ] {
        let One { context, .. } = one_under(rules).await;
        context.job.pulse().written_at = ago(seconds(written));
        context.job.pulse().held_until = held;
        let mut report = Box::pin(context.progress("s", 1.0, "m"));
        assert_eq!(poll!(&mut report).is_pending(), waits, "{written} s ago");
        if waits {
            context.job.written(std::time::Instant::now());
            report.await.unwrap();
        }
    }
    // The wait ends with the attempt.
    let One { context, .. } = one().await;
    context.job.pulse().written_at = ago(seconds(31));
    let mut report = Box::pin(context.progress("s", 1.0, "m"));
    assert!(poll!(&mut report).is_pending());
    context.job.end();
    let error = tokio::time::timeout(OVERDUE_LOOK * 4, report).await.unwrap().unwrap_err();
    assert!(matches!(error, ContextError::Ended { .. }));
}

#[tokio::test]
async fn a_handler_learns_why_it_should_stop() {
    let One { context, .. } = one().await;
    assert_eq!(context.cancel_reason(), None);
    context.job.cut_off();
    assert_eq!(context.cancel_reason(), Some(CancelReason::Lost));
    assert_eq!(context.cancelled().await, CancelReason::Lost);
    context.job.cancel(CancelReason::User);
    assert_eq!(context.cancel_reason(), Some(CancelReason::User));
}

#[tokio::test]
async fn a_call_of_a_job_that_this_worker_no_longer_owns_says_why() {
    let (lost, ended, both, cut_off) = (one().await, one().await, one().await, one().await);
    lost.context.job.cancel(CancelReason::Lost);
    ended.context.job.end();
    both.context.job.cancel(CancelReason::Lost);
    both.context.job.end();
    cut_off.context.job.cut_off();
    for (one, expected) in [(&lost, "lost"), (&ended, "ended"), (&both, "lost"), (&cut_off, "cut off")] {
        let error = JobError::from(one.context.check_owned("progress").await.unwrap_err());
        assert_eq!(said(&error), expected);
    }
    // Its row is gone: another worker's act, or this attempt's own end.
    let (lost, settled) = (one().await, one().await);
    settled.context.job.settled.store(true, Ordering::Release);
    for (one, expected) in [(&lost, "lost"), (&settled, "ended")] {
        assert_eq!(said(&one.context.refused("progress").await.into()), expected);
    }
    assert!(lost.context.job.is_lost() && !settled.context.job.is_lost());
}

/// The handler may have wrapped the error in its own.
#[test]
fn an_error_finds_its_causes() {
    let gone = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
    let refused = || sqlx::Error::RowNotFound;
    let (job, token) = (crate::job::JobId::generate(), FencingToken(1));
    // Lost, unavailable, an outage that the context has seen, a conflict.
    let knows = |error: &JobError| {
        (error.is_lost(), error.is_unavailable(), error.is_outage(), error.is(&ContextError::is_conflict))
    };
    let of = |error: JobError| knows(&error);
    assert_eq!(of(JobError::msg("x")), (false, false, false, false));
    assert_eq!(of(ContextError::Lost { job, token }.into()), (true, false, false, false));
    assert_eq!(of(ContextError::Conflict { job }.into()), (false, false, false, true));
    assert_eq!(of(gone().into()), (false, true, false, false));
    assert_eq!(of(JobError { answered: true, ..gone().into() }), (false, false, false, false));
    assert_eq!(of(refused().into()), (false, false, false, false));
    assert_eq!(of(StoreError::from(gone()).into()), (false, true, false, false));
    assert_eq!(of(StoreError::from(refused()).into()), (false, false, false, false));
    assert_eq!(of(ContextError::Store(gone().into()).into()), (false, true, true, false));
    assert_eq!(of(ContextError::Store(refused().into()).into()), (false, false, false, false));
    let io = JobError::from(std::io::Error::other("x"));
    assert!(io.downcast_ref::<std::io::Error>().is_some() && io.downcast_ref::<ContextError>().is_none());
    // The connection's own error becomes the context's.
    // The error of a whole batch is that of each of its jobs, and an outage charges none of them.
    let outage = JobError::from(ContextError::Store(StoreError::from(sqlx::Error::WorkerCrashed)));
    assert!(outage.is_outage() && outage.alike().is_outage() && outage.alike().alike().is_outage());
    let later = JobError::retry_after(seconds(3), "busy").alike();
    assert_eq!(
        (later.text().as_str(), later.retry_after, later.permanent),
        ("busy", Some(seconds(3)), false)
    );
    assert!(JobError::permanent("no").alike().is_permanent());
    assert!(JobError::from(gone()).into_outage().is_outage());
}

/// An error that the handler returns meanwhile is about that outage.
#[tokio::test]
async fn a_transaction_that_found_no_postgres_is_remembered_until_one_succeeds() {
    let One { context, place, .. } = one().await;
    let gone = || Err::<(), _>(JobError::from(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())));
    context.note(gone(), "fenced_tx").await.unwrap_err();
    assert!(context.job.met_an_outage());
    context.fenced_tx(async |_| Ok(())).await.unwrap();
    assert!(!context.job.met_an_outage());
    drop(place);
}

#[tokio::test]
async fn a_lost_job_commits_nothing() {
    for isolation in BOTH {
        let one = one().await;
        one.table().await;
        one.context.fenced_tx_with(isolation, does).await.unwrap();
        assert_eq!(one.done().await, "1");
        let error = one.context.fenced_tx_with(isolation, async |_| Err::<(), _>(JobError::msg("my own")));
        assert_eq!(error.await.unwrap_err().text(), "my own");
        one.claimed_by_another().await;
        assert_eq!(said(&one.context.fenced_tx_with(isolation, does).await.unwrap_err()), "lost");
        assert_eq!(one.done().await, "1");
    }
}

/// Whether another worker can lock the job's row while a transaction of its handler runs.
async fn can_be_locked(one: &One, isolation: Isolation) -> bool {
    let pool = one.place.pool.clone();
    one.context
        .fenced_tx_with(isolation, async |_| {
            Ok(pool.execute("SELECT FROM tenure.jobs FOR UPDATE NOWAIT").await.is_ok())
        })
        .await
        .unwrap()
}

#[tokio::test]
async fn read_committed_locks_the_job_for_the_commit_alone_and_repeatable_read_throughout() {
    let one = one().await;
    assert!(can_be_locked(&one, Isolation::ReadCommitted).await);
    assert!(!can_be_locked(&one, Isolation::RepeatableRead).await);
    let before = one.context.job.pulse().written_at;
    one.context.fenced_tx(async |_| Ok(())).await.unwrap();
    assert!(one.context.job.pulse().written_at > before, "it is a sign of life");
}

/// A frozen worker must not keep its locks from the next attempt.
#[tokio::test]
async fn a_transaction_may_be_idle_for_half_of_stale_after() {
    let one = one().await;
    let idle = one.context.fenced_tx(async |tx| {
        let row = sqlx::query("SELECT current_setting('idle_in_transaction_session_timeout')")
            .fetch_one(tx)
            .await?;
        Ok(sqlx::Row::get::<String, _>(&row, 0))
    });
    assert_eq!(idle.await.unwrap(), "30s");
    assert_eq!(one.context.hold_limit(), seconds(15));
    for (stale_after, limit) in [(600, "10000ms"), (20, "5000ms"), (2, "1000ms")] {
        let rules = Rules { stale_after: seconds(stale_after), ..RULES };
        assert_eq!(one_under(rules).await.context.idle_limit(), limit);
    }
}

#[tokio::test]
async fn only_a_serialization_failure_at_the_commit_is_a_conflict() {
    for (code, expected) in [("40001", "conflict"), ("22023", "other")] {
        for isolation in BOTH {
            let one = one().await;
            one.table().await;
            one.commits_fail_with(code).await;
            let error = one.context.fenced_tx_with(isolation, does).await.unwrap_err();
            assert_eq!(said(&error), expected, "{code} {isolation:?}: {error:?}");
            let mut tx = one.place.pool.begin().await.unwrap();
            does(&mut tx).await.unwrap();
            let error = one.context.complete_in(tx, None).await.unwrap_err();
            assert_eq!(said(&error), expected, "{code}: {error:?}");
            assert!(!one.context.job.completing.load(Ordering::Acquire), "it is no longer completing");
            assert_eq!(one.done().await, "0");
        }
    }
}

/// The row changed while the first statement waited for it, and the user's SQL has not begun.
#[tokio::test]
async fn a_transaction_whose_first_statement_meets_a_change_is_restarted() {
    let one = one().await;
    one.table().await;
    let mut change = one.place.pool.begin().await.unwrap();
    // A lock of the key, which FOR KEY SHARE waits for.
    change.execute("SELECT FROM tenure.jobs FOR UPDATE").await.unwrap();
    change.execute("UPDATE tenure.jobs SET progress = 1, cancel_requested_at = NULL").await.unwrap();
    let waits = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        change.commit().await.unwrap();
    };
    let (done, ()) = tokio::join!(one.context.fenced_tx_with(Isolation::RepeatableRead, does), waits);
    done.unwrap();
    assert_eq!(one.done().await, "1");
    // A conflict that the closure itself returns is not retried.
    let (job, runs) = (one.context.id(), AtomicU32::new(0));
    let error = one.context.fenced_tx_with(Isolation::RepeatableRead, async |_| {
        runs.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(ContextError::Conflict { job }.into())
    });
    assert_eq!((said(&error.await.unwrap_err()), runs.load(Ordering::Relaxed)), ("conflict", 1));
}

async fn sleepers(pool: &PgPool) -> i64 {
    let sleepers = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(61)%' \
                    AND datname = current_database() AND state = 'active'";
    sqlx::query_scalar(sleepers).fetch_one(pool).await.unwrap()
}

async fn until_sleepers(pool: &PgPool, n: i64) {
    let began = std::time::Instant::now();
    while sleepers(pool).await != n {
        assert!(began.elapsed() < seconds(20), "there are not {n} sleepers");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Otherwise Postgres would go on with the statement, and keep other workers from the job.
#[tokio::test]
async fn an_abandoned_transaction_that_holds_the_job_is_ended_on_the_server() {
    let one = one().await;
    {
        let mut sleeps = Box::pin(one.context.fenced_tx_with(Isolation::RepeatableRead, async |tx| {
            tx.execute("SELECT pg_sleep(61)").await?;
            Ok(())
        }));
        tokio::select! {
            done = &mut sleeps => panic!("{done:?}"),
            () = until_sleepers(&one.place.pool, 1) => {}
        }
    }
    until_sleepers(&one.place.pool, 0).await;
}

/// A progress write would change the row after the snapshot.
#[tokio::test]
async fn a_hold_stops_progress_until_the_completion_but_not_for_a_lost_job() {
    let one = one().await;
    let held = |one: &One| one.context.job.pulse().held_until.is_some();
    let mut tx = one.place.pool.begin().await.unwrap();
    one.context.lock_job(&mut tx).await.unwrap();
    assert!(held(&one));
    one.context.complete_in(tx, Some(json!("x"))).await.unwrap();
    assert!(!held(&one) && one.context.job.settled.load(Ordering::Acquire));

    let lost = one_in(place().await, RULES).await;
    lost.claimed_by_another().await;
    let mut tx = lost.place.pool.begin().await.unwrap();
    assert_eq!(said(&lost.context.lock_job(&mut tx).await.unwrap_err().into()), "lost");
    assert!(!held(&lost));
}

#[tokio::test]
async fn a_hold_that_comes_too_late_is_a_conflict_and_one_that_fails_is_not() {
    let one = one().await;
    let mut tx = one.place.pool.begin().await.unwrap();
    tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    tx.execute("SELECT FROM tenure.jobs").await.unwrap();
    // Not only progress, but the key: FOR KEY SHARE ignores other changes.
    one.place.execute("UPDATE tenure.jobs SET id = id, progress = 1").await;
    one.place.execute("DELETE FROM tenure.jobs").await;
    assert_eq!(said(&one.context.lock_job(&mut tx).await.unwrap_err().into()), "conflict");
    let broken = one_in(place().await, RULES).await;
    broken.place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    let mut tx = broken.place.pool.begin().await.unwrap();
    assert_eq!(said(&broken.context.lock_job(&mut tx).await.unwrap_err().into()), "store");
}

#[tokio::test]
async fn a_completion_says_whether_it_conflicts_or_was_refused_or_the_job_is_lost() {
    let stale = one().await;
    let mut tx = stale.place.pool.begin().await.unwrap();
    tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    tx.execute("SELECT FROM tenure.jobs").await.unwrap();
    stale.place.execute("UPDATE tenure.jobs SET progress = 1").await;
    assert_eq!(said(&stale.context.complete_in(tx, None).await.unwrap_err()), "conflict");

    let broken = one_in(place().await, RULES).await;
    broken.place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    let tx = broken.place.pool.begin().await.unwrap();
    assert_eq!(said(&broken.context.complete_in(tx, None).await.unwrap_err()), "other");

    // A second call, after a commit whose answer was lost, is the same completion.
    let twice = one_in(place().await, RULES).await;
    for _ in 0..2 {
        let tx = twice.place.pool.begin().await.unwrap();
        twice.context.complete_in(tx, None).await.unwrap();
    }
    let lost = one_in(place().await, RULES).await;
    lost.claimed_by_another().await;
    let tx = lost.place.pool.begin().await.unwrap();
    assert_eq!(said(&lost.context.complete_in(tx, None).await.unwrap_err()), "lost");
    let unfit = one_in(place().await, RULES).await;
    let tx = unfit.place.pool.begin().await.unwrap();
    assert!(unfit.context.complete_in(tx, Some(json!("\0"))).await.unwrap_err().permanent);
}

#[tokio::test]
async fn a_changed_row_is_a_conflict_while_this_worker_owns_the_job_and_a_loss_otherwise() {
    let one = one().await;
    assert!(matches!(one.context.conflict_or_lost().await, ContextError::Conflict { .. }));
    one.claimed_by_another().await;
    assert!(matches!(one.context.conflict_or_lost().await, ContextError::Lost { .. }));
    one.place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    assert!(matches!(one.context.conflict_or_lost().await, ContextError::Store(_)));
}

/// A proxy between a client and Postgres. It forwards everything, only the requests, or nothing.
struct Wire {
    port: u16,
    is_mute: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Wire {
    async fn to(place: &Place) -> (Self, String) {
        let options: sqlx::postgres::PgConnectOptions = place.config.database_url.parse().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, server) = (listener.local_addr().unwrap().port(), options.get_port());
        let is_mute = Arc::new(AtomicBool::new(false));
        let mute = is_mute.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let mute = mute.clone();
                connections.spawn(async move {
                    let server = tokio::net::TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let answers = async {
                        let mut bytes = vec![0; 65_536];
                        while let Ok(n @ 1..) = from_server.read(&mut bytes).await {
                            if !mute.load(Ordering::Acquire) {
                                to_client.write_all(&bytes[..n]).await.ok();
                            }
                        }
                    };
                    tokio::join!(tokio::io::copy(&mut from_client, &mut to_server), answers).0.ok();
                });
            }
        });
        let url = place.config.database_url.replace(&format!(":{server}/"), &format!(":{port}/"));
        assert_ne!(url, place.config.database_url);
        (Self { port, is_mute, task }, url)
    }
}

async fn until_so(pool: &PgPool, condition: &str) {
    let began = std::time::Instant::now();
    let condition = format!("SELECT {condition}");
    while !sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(condition.as_str()))
        .fetch_one(pool)
        .await
        .unwrap()
    {
        assert!(began.elapsed() < seconds(20), "{condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Postgres commits the completion, and its answer is lost.
#[tokio::test]
async fn complete_in_checks_a_commit_that_got_no_answer() {
    let one = one().await;
    let (wire, url) = Wire::to(&one.place).await;
    one.table().await;
    one.place
        .execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$",
        )
        .await;
    one.place
        .execute(
            "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON tenure.done DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        .await;
    let pool = PgPool::connect(&url).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    does(&mut tx).await.unwrap();
    let loss = async {
        until_so(&one.place.pool, "EXISTS (SELECT FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active' AND datname = current_database())").await;
        wire.is_mute.store(true, Ordering::Release);
        until_so(&one.place.pool, "EXISTS (SELECT FROM tenure.job_history)").await;
        wire.task.abort();
    };
    let (completed, ()) = tokio::join!(one.context.complete_in(tx, None), loss);
    completed.unwrap();
    assert!(one.context.job.settled.load(Ordering::Acquire) && wire.port > 0);
}

/// The error must not blame another transaction for a broken connection.
#[tokio::test]
async fn an_effect_whose_connection_breaks_says_so() {
    let one = one().await;
    let (wire, url) = Wire::to(&one.place).await;
    let mut config = one.place.config.clone();
    config.database_url = url;
    let tenure = crate::Tenure::connect(&config).await.unwrap();
    let context = JobContext { store: tenure.store().clone(), ..one.context.clone() };
    let mut other = one.place.pool.begin().await.unwrap();
    let begun =
        "INSERT INTO tenure.effects (job_id, key, fencing_token, result) VALUES ($1, 'mail', 1, 'null')";
    sqlx::query(begun).bind(context.id()).execute(&mut *other).await.unwrap();
    let cut = async {
        until_so(&one.place.pool, "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())").await;
        wire.task.abort();
    };
    let (done, ()) = tokio::join!(context.once("mail", async |_| { Ok(1) }), cut);
    let error = done.unwrap_err();
    assert!(!error.text().contains("another transaction") && error.is_unavailable(), "{}", error.text());
}

/// Another transaction of this job has begun the effect, and does not end.
#[tokio::test]
async fn an_effect_that_another_transaction_has_begun_is_not_done_and_says_so() {
    let place = place_with(|config| config.timing.database_within = seconds(1)).await;
    let one = one_in(place, RULES).await;
    let id = one.context.id();
    let mut other = one.place.pool.begin().await.unwrap();
    let begun =
        "INSERT INTO tenure.effects (job_id, key, fencing_token, result) VALUES ($1, 'mail', 1, 'null')";
    sqlx::query(begun).bind(id).execute(&mut *other).await.unwrap();
    let error = one.context.once("mail", async |_| Ok(1)).await.unwrap_err();
    assert!(error.text().contains("in another transaction of this job"), "{}", error.text());
    other.rollback().await.unwrap();
    for n in [1, 2] {
        assert_eq!(one.context.once("mail", async |_| { Ok(n) }).await.unwrap(), 1);
    }
    // Another refusal gives its own reason.
    one.place.execute("ALTER TABLE tenure.effects RENAME TO hidden").await;
    let error = one.context.once("mail", async |_| Ok(1)).await.unwrap_err();
    assert!(!error.text().contains("another transaction"), "{}", error.text());
    assert!(one.running.all().len() == 1);
}
