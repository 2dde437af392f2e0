//! Settle: the verdict on an attempt's end, and the retries of its write.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{sync::atomic::Ordering, time::Instant};

use serde_json::json;
use sqlx::{Postgres, Transaction};

use super::*;
use crate::{
    job::{
        Outcome,
        attempt::{
            AttemptOutcome::{Cancelled, Failed, Released, Retried, Snoozed},
            Reason,
        },
    },
    proof::{Counts, Place, RULES, place, seconds},
    run::{
        handlers::{Ended, EndedInTheMiddle, PayloadError, Retry, RetryPolicy},
        running::{CancelReason, OnCrash, Rules},
    },
    tags::run::TagCounts,
};

const WORKER: &str = "worker";

/// A verdict in short: its word, its category, its delay in seconds, and the reason of a release.
type Short = (&'static str, Option<Category>, u64, Option<Reason>);

fn short(verdict: Verdict) -> Short {
    match verdict {
        Verdict::Complete(_) => ("complete", None, 0, None),
        Verdict::Written => ("written", None, 0, None),
        Verdict::Lost => ("lost", None, 0, None),
        Verdict::End(end) => (end.verdict.as_str(), end.category, end.delay.as_secs(), end.reason),
    }
}

fn policy() -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    policy.backoff.jitter = 0.0;
    policy.backoff.first = seconds(9);
    policy
}

fn of(job: &RunningJob, ended: Ended) -> Short {
    short(verdict(job, ended, &policy(), Some(seconds(3))).0)
}

fn failed_with(text: &str) -> Ended {
    Ended::Returned(Err(JobError::msg(text)))
}

const RELEASED: Short = ("released", None, 0, Some(Reason::Shutdown));
const RETRIED: Short = ("retried", None, 9, None);

#[tokio::test]
async fn an_attempt_that_was_asked_to_stop_ends_by_the_reason_for_it() {
    let place = place().await;
    for (reason, failed, dropped) in [
        (None, RETRIED, RELEASED),
        (Some(CancelReason::User), ("cancelled", None, 0, None), ("cancelled", None, 0, None)),
        (Some(CancelReason::Shutdown), RELEASED, RELEASED),
        (Some(CancelReason::Timeout), RETRIED, RETRIED),
        (Some(CancelReason::Lost), ("lost", None, 0, None), ("lost", None, 0, None)),
    ] {
        let job = place.running(WORKER).await;
        if let Some(reason) = reason {
            job.cancel(reason);
        }
        assert_eq!(of(&job, failed_with("x")), failed, "{reason:?}");
        assert_eq!(of(&job, Ended::Panicked("x".into())), failed, "{reason:?}");
        assert_eq!(of(&job, Ended::Dropped), dropped, "{reason:?}");
        // A handler that still finishes has completed the job.
        if reason != Some(CancelReason::Lost) {
            assert_eq!(of(&job, Ended::Returned(Ok(Outcome::Done(None)))).0, "complete", "{reason:?}");
        }
    }
    let cut_off = place.running(WORKER).await;
    cut_off.cut_off();
    for ended in [failed_with("x"), Ended::Dropped] {
        assert_eq!(of(&cut_off, ended), ("released", None, 0, Some(Reason::CouldNotWrite)));
    }
}

#[tokio::test]
async fn the_outcome_that_a_handler_returns_is_written() {
    let job = place().await.running(WORKER).await;
    let returned = |outcome| of(&job, Ended::Returned(Ok(outcome)));
    assert_eq!(returned(Outcome::Done(Some(json!(1)))).0, "complete");
    assert_eq!(returned(Outcome::DoneJson("1".into())).0, "complete");
    assert_eq!(returned(Outcome::Snooze(seconds(5))), ("snoozed", None, 5, None));
    assert_eq!(returned(Outcome::Snooze(Duration::MAX)).2, DELAY_MAX.as_secs());
    assert_eq!(returned(Outcome::Cancel("x".into())).0, "cancelled");
    let unfit = ("failed", Some(Category::InvalidOutput), 0, None);
    assert_eq!(returned(Outcome::Done(Some(json!("\0")))), unfit);
    assert_eq!(returned(Outcome::DoneJson("{".into())), unfit);
    // 1.6 MB of digits.
    assert_eq!(returned(Outcome::DoneJson(format!("[{}1]", "1e-16383,".repeat(100)))), unfit);
}

#[tokio::test]
async fn an_attempt_that_its_handler_settled_counts_as_written_even_if_it_fails_later() {
    let job = place().await.running(WORKER).await;
    job.settled.store(true, Ordering::Release);
    job.cancel(CancelReason::Lost);
    assert_eq!(of(&job, failed_with("x")).0, "written");
}

#[tokio::test]
async fn an_error_says_whether_and_when_there_is_another_attempt() {
    let place = place().await;
    let job = place.running(WORKER).await;
    let with = |error: JobError, decided: Option<Retry>| {
        let mut policy = policy();
        policy.decide =
            decided.map(|decided| -> Arc<crate::run::handlers::Decide> { Arc::new(move |_, _| decided) });
        short(verdict(&job, Ended::Returned(Err(error)), &policy, None).0)
    };
    let (usual, permanent) = (|| JobError::msg("x"), || JobError::permanent("x"));
    let after = || JobError::retry_after(seconds(7), "x");
    let fails = ("failed", None, 0, None);
    let tried_after = |seconds| ("retried", None, seconds, None);
    assert_eq!(with(usual(), None), RETRIED);
    assert_eq!(with(permanent(), None), fails);
    assert_eq!(with(after(), None), tried_after(7));
    // The kind's policy has the last word.
    assert_eq!(with(usual(), Some(Retry::Never)), fails);
    assert_eq!(with(permanent(), Some(Retry::After(seconds(2)))), tried_after(2));
    assert_eq!(with(permanent(), Some(Retry::Usual)), fails);
    assert_eq!(with(after(), Some(Retry::After(Duration::MAX))), tried_after(DELAY_MAX.as_secs()));
    let unfit = PayloadError::Misfit(serde_json::from_str::<u8>("x").unwrap_err().to_string());
    assert_eq!(with(JobError::permanent(unfit), None), ("failed", Some(Category::InvalidPayload), 0, None));
    // An outage is not the job's fault, even if the policy would never retry the error.
    *job.unavailable_at() = Some(Instant::now());
    assert_eq!(with(permanent(), None), fails, "the handler called the error permanent");
    assert_eq!(with(usual(), Some(Retry::Never)), ("released", None, 9, Some(Reason::Outage)));
}

/// An end in the middle counts as a crash for a kind that must not run twice. A job that a person cancels is cancelled.
#[tokio::test]
async fn a_kind_that_must_not_run_twice_is_a_dead_letter_when_it_is_ended_in_the_middle() {
    let place = place().await;
    let middle = || Ended::Returned(Err(JobError::permanent(EndedInTheMiddle::new("x".into()))));
    let interrupted = ("failed", Some(Category::Interrupted), 0, None);
    let careful = Rules { on_crash: OnCrash::DeadLetter, ..RULES };
    let (once, often) = (place.running_under(careful, WORKER).await, place.running(WORKER).await);
    assert_eq!((of(&once, Ended::Dropped), of(&once, middle())), (interrupted, interrupted));
    assert_eq!((of(&often, Ended::Dropped), of(&often, middle()).1), (RELEASED, None));
    assert_eq!(of(&once, failed_with("x")), RETRIED, "the handler ended by itself");
    for job in [&once, &often] {
        job.cancel(CancelReason::User);
        for ended in [Ended::Dropped, middle()] {
            assert_eq!(of(job, ended), ("cancelled", None, 0, None));
        }
    }
}

#[tokio::test]
async fn an_attempt_that_never_began_is_released_or_cancelled() {
    let job = place().await.running(WORKER).await;
    assert_eq!(of(&job, Ended::NeverBegan), ("released", None, 0, Some(Reason::NoThread)));
    job.cancel(CancelReason::User);
    assert_eq!(of(&job, Ended::NeverBegan), ("cancelled", None, 0, None));
}

fn ends(job: &RunningJob, verdict: AttemptOutcome) -> AttemptEnd {
    AttemptEnd::new(job.key, verdict)
}

fn completes(job: &RunningJob) -> Completion {
    Completion {
        key: job.key,
        output: Some("1".into()),
        report: None,
        keeps: Keeps::default(),
        in_group: false,
    }
}

fn settle(place: &Place) -> Settle {
    let store = place.tenure.store().clone();
    let tags = TagCounts::new(store.clone(), &[]);
    Settle::new(store, WORKER.into(), Hooks::default(), None, tags)
}

async fn write(settle: &Settle, job: &RunningJob, verdict: Verdict) -> Settled {
    settle.write(job, verdict, None, seconds(1), None, None).await.1
}

/// Locks all jobs: a settle waits until this is dropped.
async fn lock(place: &Place) -> Transaction<'static, Postgres> {
    let mut lock = place.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs FOR UPDATE").execute(&mut *lock).await.unwrap();
    lock
}

/// The answer to the first write was lost: the second finds what the first has done.
#[tokio::test]
async fn a_repeated_end_answers_as_the_first_one() {
    let place = place().await;
    let settle = settle(&place);
    let done = place.running(WORKER).await;
    for _ in 0..2 {
        assert_eq!(write(&settle, &done, Verdict::Complete(completes(&done))).await, Settled::Written);
    }
    let (usual, last) = ("max_attempts = 5", "max_attempts = 1");
    for (verdict, with, outcome) in [
        (Retried, usual, Retried),
        (Retried, last, Failed),
        (Retried, "cancel_requested_at = now()", Cancelled),
        (Failed, usual, Failed),
        (Cancelled, usual, Cancelled),
        (Snoozed, usual, Snoozed),
    ] {
        let job = place.running(WORKER).await;
        place.execute(&format!("UPDATE tenure.jobs SET {with} WHERE id = '{}'", job.key.job)).await;
        for time in ["first", "again"] {
            let said = settle.end(&mut ends(&job, verdict)).await;
            assert_eq!(said, (outcome, Settled::Written), "{verdict} with {with}, {time}");
        }
        // An attempt that ended otherwise can no longer complete.
        assert_eq!(write(&settle, &job, Verdict::Complete(completes(&job))).await, Settled::Lost);
    }
    // An end is lost if the job was taken over, or if the claim never existed.
    let taken = place.running(WORKER).await;
    place.make_stale(taken.key.job).await;
    place.tenure.store().take_over(taken.key.job, "other", Duration::ZERO).await.unwrap().unwrap();
    let foreign =
        AttemptEnd { key: ClaimKey { claim: uuid::Uuid::nil(), ..taken.key }, ..ends(&taken, Failed) };
    for mut end in [ends(&taken, Retried), foreign] {
        assert_eq!(settle.end(&mut end).await.1, Settled::Lost);
    }
}

/// Nothing stays of such a job that could say how it ended: only a write that got no answer may have completed it.
#[tokio::test]
async fn a_completion_without_history_is_written_once_and_a_stale_one_writes_nothing() {
    let place = place().await;
    let settle = settle(&place);
    let unkept = Rules { no_history: true, ..RULES };
    let complete = |job: &RunningJob| Verdict::Complete(completes(job));

    let done = place.running_under(unkept, WORKER).await;
    assert_eq!(write(&settle, &done, complete(&done)).await, Settled::Written);
    assert_eq!(write(&settle, &done, complete(&done)).await, Settled::Lost, "not this write");

    // The answer to the first write is lost, and the row is gone when the worker asks.
    let unanswered = place.running_under(unkept, WORKER).await;
    place
        .execute(
            "CREATE FUNCTION cut_off() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'cut off' USING ERRCODE = '08006'; END $$",
        )
        .await;
    let trigger =
        "CREATE TRIGGER cut_off BEFORE DELETE ON tenure.jobs FOR EACH ROW EXECUTE FUNCTION cut_off()";
    place.execute(trigger).await;
    let mut writing = Box::pin(write(&settle, &unanswered, complete(&unanswered)));
    tokio::time::timeout(seconds(1), &mut writing).await.unwrap_err();
    let mut both = place.pool.begin().await.unwrap();
    for sql in ["DROP TRIGGER cut_off ON tenure.jobs", "DELETE FROM tenure.jobs"] {
        sqlx::query(sql).execute(&mut *both).await.unwrap();
    }
    both.commit().await.unwrap();
    assert_eq!(writing.await, Settled::Written);

    // The first write fails, and a primary without this claim takes over: the job is queued, and is not completed.
    let forgotten = place.running_under(unkept, WORKER).await;
    place.execute(trigger).await;
    let mut writing = Box::pin(write(&settle, &forgotten, complete(&forgotten)));
    tokio::time::timeout(seconds(1), &mut writing).await.unwrap_err();
    let mut both = place.pool.begin().await.unwrap();
    let forget = "UPDATE tenure.jobs SET status = 'queued', attempt = 0, fencing_token = 0, claim_id = NULL, \
                  worker_id = NULL, worker_host = NULL, stale_after = NULL, last_activity_at = NULL, started_at = NULL";
    for sql in ["DROP TRIGGER cut_off ON tenure.jobs", forget] {
        sqlx::query(sql).execute(&mut *both).await.unwrap();
    }
    both.commit().await.unwrap();
    assert_eq!(writing.await, Settled::Lost);
    assert_eq!(place.value("SELECT count(*) FROM tenure.jobs").await, "1");
    place.execute("DELETE FROM tenure.jobs").await;

    // A job that was taken over: its second owner completes it, and the first writes nothing.
    let stale = place.running_under(unkept, WORKER).await;
    let id = stale.key.job;
    place.make_stale(id).await;
    place.tenure.store().take_over(id, "other", Duration::ZERO).await.unwrap().unwrap();
    let current = place.run_claim(place.claim(id, "other").await.unwrap(), unkept);
    assert_eq!(write(&settle, &stale, complete(&stale)).await, Settled::Lost);
    assert_eq!(place.value("SELECT fencing_token FROM tenure.jobs").await, "2");
    assert_eq!(write(&settle, &current, complete(&current)).await, Settled::Written);
    assert_eq!(write(&settle, &stale, complete(&stale)).await, Settled::Lost);
    let left =
        "SELECT (SELECT count(*) FROM tenure.all_jobs) + (SELECT count(*) FROM tenure.job_executions_all)";
    assert_eq!(place.value(left).await, "0");

    // One batch of both kinds of completion, and a locked row, which holds up no other.
    let mut jobs = Vec::new();
    for rules in [unkept, RULES, unkept, RULES, unkept] {
        jobs.push(place.running_under(rules, WORKER).await);
    }
    let mut locked = place.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(jobs[2].key.job)
        .execute(&mut *locked)
        .await
        .unwrap();
    let batch = jobs.iter().map(|job| Completion { keeps: job.keeps(), ..completes(job) }).collect();
    let answers = super::complete(place.tenure.store(), LockPolicy::Wait, batch).await;
    let written: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(written, [true, true, false, true, true]);
    locked.rollback().await.unwrap();
    assert_eq!(write(&settle, &jobs[2], complete(&jobs[2])).await, Settled::Written);
    assert_eq!(place.value("SELECT count(*) FROM tenure.job_history").await, "2");
    assert_eq!(place.value("SELECT count(*) FROM tenure.jobs").await, "0");
}

#[tokio::test]
async fn an_end_waits_for_a_lock_and_for_postgres_and_holds_up_no_other() {
    let place = place().await;
    let settle = settle(&place);
    let (locked, ended) = (place.running(WORKER).await, place.running(WORKER).await);
    let lock = lock(&place).await;
    let free = place.running(WORKER).await;
    let mut end = ends(&ended, Failed);
    let mut waiting =
        Box::pin(async { tokio::join!(settle.complete(completes(&locked)), settle.end(&mut end)) });
    let others = async {
        // Two jobs, because the first batch may hold the locked one.
        for job in [&free, &place.running(WORKER).await] {
            assert_eq!(settle.complete(completes(job)).await.unwrap(), Settled::Written);
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("a locked row was written"),
        () = others => {}
    }
    place.execute("ALTER TABLE tenure.job_history RENAME TO hidden").await;
    drop(lock);
    tokio::time::timeout(Duration::from_millis(500), &mut waiting).await.unwrap_err();
    place.execute("ALTER TABLE tenure.hidden RENAME TO job_history").await;
    let (completed, ended) = waiting.await;
    assert_eq!((completed.unwrap(), ended), (Settled::Written, (Failed, Settled::Written)));
}

/// Makes Postgres refuse rows that meet a condition, as invalid values.
async fn refuse(place: &Place, table: &str, condition: &str) {
    place
        .execute(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'too odd' USING ERRCODE = '22023'; END $$",
        )
        .await;
    let trigger = format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()"
    );
    place.execute(&trigger).await;
}

/// The batch is halved until only the refused row is left.
#[tokio::test]
async fn a_refused_row_of_a_batch_becomes_a_dead_letter_and_the_others_are_written() {
    let place = place().await;
    refuse(&place, "tenure.job_history", "NEW.output::text = '666' OR NEW.last_error = 'odd'").await;
    refuse(&place, "tenure.dead_letter_jobs", "NEW.last_error = 'odd'").await;
    let mut jobs = Vec::new();
    for _ in 0..6 {
        jobs.push(place.running(WORKER).await);
    }
    let store = place.tenure.store();
    let mut batch: Vec<_> = jobs[..3].iter().map(|job| completes(job)).collect();
    batch[1].output = Some("666".into());
    let answers = complete(store, LockPolicy::Wait, batch).await;
    let written: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().copied()).collect();
    assert_eq!(written, [Some(true), None, Some(true)], "{answers:?}");

    let failed = |n: usize| AttemptEnd { error: (n == 5).then(|| "odd".into()), ..ends(&jobs[n], Failed) };
    let mut answers = end(store, WORKER, (3..6).map(failed).collect()).await;
    // Postgres answers before it has released the locks of a refused statement: the next one may skip such a row.
    for (n, answer) in answers.iter_mut().enumerate() {
        while matches!(answer, Ok(None)) {
            *answer = end(store, WORKER, vec![failed(3 + n)]).await.remove(0);
        }
    }
    let routes: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().copied().flatten()).collect();
    assert_eq!(routes, [Some(Route::Failed), Some(Route::Failed), None], "{answers:?}");

    // Settle then writes an end that Postgres accepts, and that says why.
    let settle = settle(&place);
    let output = Completion { output: Some("666".into()), ..completes(&jobs[1]) };
    assert_eq!(write(&settle, &jobs[1], Verdict::Complete(output)).await, Settled::Written);
    let mut odd = AttemptEnd { error: Some("odd".into()), ..ends(&jobs[5], Failed) };
    assert_eq!(settle.end(&mut odd).await, (Failed, Settled::Written));
    assert_eq!(odd.category, Some(Category::Refused), "what was written, for the hooks");
    let letter = "SELECT string_agg(category || ': ' || last_error, E'\\n') FROM tenure.dead_letter_jobs \
                  WHERE category IN ('invalid_output', 'refused')";
    let letters = place.value(letter).await;
    assert!(letters.contains("invalid_output: the completion was refused"), "{letters}");
    assert!(letters.contains("refused: odd (the verdict failed was refused"), "{letters}");
}

/// A statement that fails as a whole is not tried for each of its rows.
#[tokio::test]
async fn a_batch_whose_statement_fails_is_answered_as_a_whole() {
    let place = place().await;
    let jobs = [place.running(WORKER).await, place.running(WORKER).await];
    place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    let counts = Counts::default();
    let _recording = counts.record();
    let store = place.tenure.store();
    let answers = complete(store, LockPolicy::Wait, jobs.iter().map(|job| completes(job)).collect()).await;
    assert!(answers.len() == 2 && answers.iter().all(Result::is_err));
    let answers = end(store, WORKER, jobs.iter().map(|job| ends(job, Failed)).collect()).await;
    assert!(answers.len() == 2 && answers.iter().all(Result::is_err));
}

/// A completion takes the last report along.
#[tokio::test]
async fn a_completed_job_keeps_the_last_report_of_its_handler() {
    let place = place().await;
    let told = |job: &RunningJob, percent| {
        let (stage, message, checkpoint) = (None, None, None);
        let report =
            crate::store::ProgressWrite { key: job.key, stage, percent: Some(percent), message, checkpoint };
        Completion { report: Some(report), ..completes(job) }
    };
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(place.running(WORKER).await);
    }
    place.execute("UPDATE tenure.jobs SET stage = 'counting', progress = 50").await;
    let settle = settle(&place);
    assert_eq!(settle.complete(told(&jobs[0], 70.0)).await.unwrap(), Settled::Written);
    // In one statement with others, and of a row that was locked meanwhile.
    let mut lock = place.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(jobs[3].key.job)
        .execute(&mut *lock)
        .await
        .unwrap();
    let batch = vec![told(&jobs[3], 90.0), completes(&jobs[1]), told(&jobs[2], 80.0)];
    let written = complete(place.tenure.store(), LockPolicy::Wait, batch).await;
    assert_eq!(written.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [false, true, true]);
    lock.rollback().await.unwrap();
    assert_eq!(settle.complete(told(&jobs[3], 90.0)).await.unwrap(), Settled::Written);
    let kept = "SELECT string_agg(stage || progress || output, ' ' ORDER BY id) FROM tenure.job_history";
    assert_eq!(place.value(kept).await, "counting701 counting501 counting801 counting901");
    // A batch in one statement: each job has its own report.
    let mut batch = Vec::new();
    for n in 0_u8..20 {
        let job = place.running(WORKER).await;
        batch.push(told(&job, f32::from(n)));
    }
    complete(place.tenure.store(), LockPolicy::Wait, batch).await;
    let last = "SELECT string_agg(progress::text, ' ' ORDER BY id) FROM (SELECT id, progress FROM \
                tenure.job_history ORDER BY id DESC LIMIT 20) last";
    let each: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(place.value(last).await, each.join(" "));
}

#[tokio::test]
async fn each_outcome_of_an_attempt_is_counted() {
    let place = place().await;
    let counts = Counts::default();
    let _recording = counts.record();
    let job = place.running(WORKER).await;
    let died = |category: &str| counts.of(&format!("tenure_dead_letters_total{{category={category}}}"));
    let recovered =
        |reason: &str| counts.of(&format!("tenure_recoveries_total{{path=worker,reason={reason}}}"));
    measure(&ends(&job, Retried), Route::Queued);
    assert_eq!((died("exhausted"), died("permanent")), (0, 0));
    measure(&ends(&job, Retried), Route::Failed);
    assert_eq!((died("exhausted"), died("permanent")), (1, 0));
    measure(&ends(&job, Failed), Route::Failed);
    measure(&AttemptEnd { category: Some(Category::Refused), ..ends(&job, Failed) }, Route::Failed);
    assert_eq!((died("exhausted"), died("permanent"), died("refused")), (1, 1, 1));
    measure(&ends(&job, Released), Route::Failed);
    assert_eq!((died("exhausted"), died("permanent")), (2, 1), "a release that was charged");
    for reason in [Reason::Shutdown, Reason::CouldNotWrite, Reason::NoThread, Reason::Outage] {
        measure(&AttemptEnd { reason: Some(reason), ..ends(&job, Released) }, Route::Queued);
        assert_eq!(recovered(reason.as_str()), 1);
    }
    // A worker counts only the attempts whose verdict it has written.
    let settle = settle(&place);
    let attempts = |outcome: &str| counts.of(&format!("tenure_attempts_total{{kind=k,outcome={outcome}}}"));
    write(&settle, &job, Verdict::Lost).await;
    assert_eq!(attempts("lost"), 0, "the recovery that reset it counts it");
    write(&settle, &job, Verdict::End(ends(&job, Failed))).await;
    assert_eq!(attempts("failed"), 1);
}

/// serde's error about a payload quotes the payload.
#[tokio::test]
async fn the_log_quotes_no_payload() {
    let job = place().await.running(WORKER).await;
    let end = |category, error: Option<&str>| AttemptEnd {
        category,
        error: error.map(str::to_owned),
        ..ends(&job, Failed)
    };
    assert_eq!(loggable(&end(None, Some("x"))), Some("x".into()));
    assert_eq!(loggable(&end(None, None)), None);
    let unfit = loggable(&end(Some(Category::InvalidPayload), Some("secret"))).unwrap();
    assert!(!unfit.contains("secret") && unfit.contains("payload"), "{unfit}");
}

#[tokio::test]
async fn waits_grow_to_two_seconds() {
    let mut waits = Waits::new();
    let began = Instant::now();
    waits.next().await;
    assert!(began.elapsed() >= Duration::from_millis(25), "{:?}", began.elapsed());
    assert_eq!(waits.0, Duration::from_millis(100));
    waits.0 = Duration::from_millis(1_200);
    waits.next().await;
    assert_eq!(waits.0, seconds(2));
}
