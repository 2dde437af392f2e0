//! Settle: what is written about an attempt's end, and what is done when it cannot be.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{sync::atomic::Ordering, time::Instant};

use serde_json::json;
use sqlx::{Postgres, Transaction};

use super::*;
use crate::{
    proof::{Counts, Place, RULES, place, seconds},
    run::running::Rules,
};

const WORKER: &str = "worker";

/// In short: the verdict, its category, its delay in seconds, and the reason of a release.
type Short = (&'static str, Option<&'static str>, u64, Option<&'static str>);

fn short(verdict: Verdict) -> Short {
    match verdict {
        Verdict::Complete(_) => ("complete", None, 0, None),
        Verdict::Written => ("written", None, 0, None),
        Verdict::Lost => ("lost", None, 0, None),
        Verdict::End(end) => (end.verdict, end.category, end.delay.as_secs(), end.reason),
    }
}

fn policy() -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    policy.backoff.jitter = 0.0;
    policy.backoff.first = seconds(9);
    policy
}

fn of(job: &RunningJob, ended: Ended) -> Short {
    short(verdict(job, ended, &policy(), Some(seconds(3))))
}

fn failed_with(text: &str) -> Ended {
    Ended::Returned(Err(JobError::msg(text)))
}

const RELEASED: Short = ("released", None, 0, Some(STOPPED));
const RETRIED: Short = ("retried", None, 9, None);

#[tokio::test]
async fn an_attempt_that_was_asked_to_stop_ends_as_what_it_was_asked_for() {
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
        // What it did before it heard of that is done.
        if reason != Some(CancelReason::Lost) {
            assert_eq!(of(&job, Ended::Returned(Ok(Outcome::Done(None)))).0, "complete", "{reason:?}");
        }
    }
    let cut_off = place.running(WORKER).await;
    cut_off.cut_off();
    for ended in [failed_with("x"), Ended::Dropped] {
        assert_eq!(of(&cut_off, ended), ("released", None, 0, Some(CUT_OFF)));
    }
}

#[tokio::test]
async fn what_a_handler_returns_is_what_is_written() {
    let job = place().await.running(WORKER).await;
    let returned = |outcome| of(&job, Ended::Returned(Ok(outcome)));
    assert_eq!(returned(Outcome::Done(Some(json!(1)))).0, "complete");
    assert_eq!(returned(Outcome::DoneJson("1".into())).0, "complete");
    assert_eq!(returned(Outcome::Snooze(seconds(5))), ("snoozed", None, 5, None));
    assert_eq!(returned(Outcome::Snooze(Duration::MAX)).2, DELAY_MAX.as_secs());
    assert_eq!(returned(Outcome::Cancel("x".into())).0, "cancelled");
    let unfit = ("failed", Some("invalid_output"), 0, None);
    assert_eq!(returned(Outcome::Done(Some(json!("\0")))), unfit);
    assert_eq!(returned(Outcome::DoneJson("{".into())), unfit);
}

#[tokio::test]
async fn an_attempt_that_its_handler_settled_is_written_whatever_came_after() {
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
        short(verdict(&job, Ended::Returned(Err(error)), &policy, None))
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
    let unfit = PayloadError(serde_json::from_str::<u8>("x").unwrap_err());
    assert_eq!(with(JobError::permanent(unfit), None), ("failed", Some("invalid_payload"), 0, None));
    // An outage is not the job's fault, whatever anybody says of the error.
    *job.unavailable_at() = Some(Instant::now());
    assert_eq!(with(permanent(), None), fails, "it says itself that no attempt will mend it");
    let (verdict, category, delay, reason) = with(usual(), Some(Retry::Never));
    assert_eq!((verdict, category, delay), ("released", Some("outage"), 9));
    assert!(reason.unwrap().contains("database was away"));
}

/// As good as a crash, for a kind that must not run twice. What a person cancelled is cancelled.
#[tokio::test]
async fn a_kind_that_must_not_run_twice_is_a_dead_letter_when_it_is_ended_in_the_middle() {
    let place = place().await;
    let middle = || Ended::Returned(Err(JobError::permanent(EndedInTheMiddle("x".into()))));
    let interrupted = ("failed", Some("interrupted"), 0, None);
    let careful = Rules { on_crash: OnCrash::DeadLetter, ..RULES };
    let (once, often) = (place.running_under(careful, WORKER).await, place.running(WORKER).await);
    assert_eq!((of(&once, Ended::Dropped), of(&once, middle())), (interrupted, interrupted));
    assert_eq!((of(&often, Ended::Dropped), of(&often, middle()).1), (RELEASED, None));
    assert_eq!(of(&once, failed_with("x")), RETRIED, "it ended by itself");
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
    let (verdict, _, _, reason) = of(&job, Ended::NeverBegan);
    assert_eq!(verdict, "released");
    assert!(reason.unwrap().contains("no thread"));
    job.cancel(CancelReason::User);
    assert_eq!(of(&job, Ended::NeverBegan), ("cancelled", None, 0, None));
}

fn ends(job: &RunningJob, verdict: &'static str) -> AttemptEnd {
    AttemptEnd { key: job.key, verdict, error: None, category: None, delay: Duration::ZERO, reason: None }
}

fn completes(job: &RunningJob) -> Completion {
    Completion { key: job.key, output: Some("1".into()), report: None }
}

fn settle(place: &Place) -> Settle {
    Settle::new(place.tenure.store().clone(), WORKER.into())
}

async fn write(settle: &Settle, job: &RunningJob, verdict: Verdict) -> Settled {
    settle.write(job, verdict, seconds(1), None, None).await
}

/// Whoever settles it waits until this is dropped.
async fn lock(place: &Place) -> Transaction<'static, Postgres> {
    let mut lock = place.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs FOR UPDATE").execute(&mut *lock).await.unwrap();
    lock
}

/// The answer to the first write was lost: the second finds what the first has done.
#[tokio::test]
async fn an_end_that_is_written_again_is_as_it_was_written_first() {
    let place = place().await;
    let settle = settle(&place);
    let done = place.running(WORKER).await;
    for _ in 0..2 {
        assert_eq!(write(&settle, &done, Verdict::Complete(completes(&done))).await, Settled::Written);
    }
    let (usual, last) = ("max_attempts = 5", "max_attempts = 1");
    for (verdict, with, outcome) in [
        ("retried", usual, "retried"),
        ("retried", last, "failed"),
        ("retried", "cancel_requested_at = now()", "cancelled"),
        ("failed", usual, "failed"),
        ("cancelled", usual, "cancelled"),
        ("snoozed", usual, "snoozed"),
    ] {
        let job = place.running(WORKER).await;
        place.execute(&format!("UPDATE tenure.jobs SET {with} WHERE id = '{}'", job.key.job)).await;
        for time in ["first", "again"] {
            let said = settle.end(ends(&job, verdict)).await;
            assert_eq!(said, (outcome, Settled::Written), "{verdict} with {with}, {time}");
        }
        // A completion of what ended otherwise is none.
        assert_eq!(write(&settle, &job, Verdict::Complete(completes(&job))).await, Settled::Lost);
    }
    // And what was taken back, or never was, is lost.
    let taken = place.running(WORKER).await;
    place.make_stale(taken.key.job).await;
    place.tenure.store().take_over(taken.key.job, "other", Duration::ZERO).await.unwrap().unwrap();
    let foreign =
        AttemptEnd { key: ClaimKey { claim: uuid::Uuid::nil(), ..taken.key }, ..ends(&taken, "failed") };
    for end in [ends(&taken, "retried"), foreign] {
        assert_eq!(settle.end(end).await.1, Settled::Lost);
    }
}

#[tokio::test]
async fn an_end_waits_for_a_lock_and_for_postgres_and_holds_up_no_other() {
    let place = place().await;
    let settle = settle(&place);
    let (locked, ended) = (place.running(WORKER).await, place.running(WORKER).await);
    let lock = lock(&place).await;
    let free = place.running(WORKER).await;
    let mut waiting = Box::pin(async {
        tokio::join!(settle.complete(completes(&locked)), settle.end(ends(&ended, "failed")))
    });
    let others = async {
        // Twice: the first batch may hold the locked one.
        for job in [&free, &place.running(WORKER).await] {
            assert_eq!(settle.complete(completes(job)).await.unwrap(), Settled::Written);
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("it was written over a lock"),
        () = others => {}
    }
    place.execute("ALTER TABLE tenure.job_history RENAME TO hidden").await;
    drop(lock);
    tokio::time::timeout(Duration::from_millis(500), &mut waiting).await.unwrap_err();
    place.execute("ALTER TABLE tenure.hidden RENAME TO job_history").await;
    let (completed, ended) = waiting.await;
    assert_eq!((completed.unwrap(), ended), (Settled::Written, ("failed", Settled::Written)));
}

/// Makes Postgres refuse what a condition is true of, as a value that cannot be.
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

/// Its batch is divided until only the one that is refused is left.
#[tokio::test]
async fn of_a_batch_the_one_that_is_refused_is_a_dead_letter_and_the_others_are_as_they_were() {
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
    assert_eq!(written, [Some(true), None, Some(true)]);

    let mut batch: Vec<_> = jobs[3..].iter().map(|job| ends(job, "failed")).collect();
    batch[2].error = Some("odd".into());
    let answers = end(store, WORKER, batch).await;
    let routes: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().copied().flatten()).collect();
    assert_eq!(routes, [Some(Route::Failed), Some(Route::Failed), None]);

    // By itself it becomes one that Postgres takes, and says why.
    let settle = settle(&place);
    let output = Completion { output: Some("666".into()), ..completes(&jobs[1]) };
    assert_eq!(write(&settle, &jobs[1], Verdict::Complete(output)).await, Settled::Written);
    let odd = AttemptEnd { error: Some("odd".into()), ..ends(&jobs[5], "failed") };
    assert_eq!(settle.end(odd).await, ("failed", Settled::Written));
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
    let answers = end(store, WORKER, jobs.iter().map(|job| ends(job, "failed")).collect()).await;
    assert!(answers.len() == 2 && answers.iter().all(Result::is_err));
}

/// A completion takes the last report along; one that says nothing sends none.
#[tokio::test]
async fn a_completed_job_says_what_its_handler_said_last() {
    let place = place().await;
    let job = place.running(WORKER).await;
    let report = crate::store::ProgressWrite {
        key: job.key,
        stage: None,
        percent: Some(70.0),
        message: None,
        checkpoint: None,
    };
    let completion = Completion { report: Some(report), ..completes(&job) };
    assert_eq!(settle(&place).complete(completion).await.unwrap(), Settled::Written);
    assert_eq!(place.value("SELECT progress FROM tenure.job_history").await, "70");
}

#[tokio::test]
async fn what_became_of_an_attempt_is_counted() {
    let place = place().await;
    let counts = Counts::default();
    let _recording = counts.record();
    let job = place.running(WORKER).await;
    let died = |category: &str| counts.of(&format!("tenure_dead_letters_total{{category={category}}}"));
    let recovered =
        |reason: &str| counts.of(&format!("tenure_recoveries_total{{path=worker,reason={reason}}}"));
    measure(&ends(&job, "retried"), Route::Queued);
    assert_eq!((died("exhausted"), died("permanent")), (0, 0));
    measure(&ends(&job, "retried"), Route::Failed);
    assert_eq!((died("exhausted"), died("permanent")), (1, 0));
    measure(&ends(&job, "failed"), Route::Failed);
    measure(&AttemptEnd { category: Some("refused"), ..ends(&job, "failed") }, Route::Failed);
    assert_eq!((died("exhausted"), died("permanent"), died("refused")), (1, 1, 1));
    let reasons = ["shutdown", "could_not_write", "no_thread"];
    for reason in [STOPPED, CUT_OFF, "none was free"] {
        measure(&AttemptEnd { reason: Some(reason), ..ends(&job, "released") }, Route::Queued);
    }
    assert_eq!(reasons.map(recovered), [1, 1, 1]);
    // An attempt is counted when it is this worker's word that stands.
    let settle = settle(&place);
    let attempts = |outcome: &str| counts.of(&format!("tenure_attempts_total{{kind=k,outcome={outcome}}}"));
    write(&settle, &job, Verdict::Lost).await;
    assert_eq!(attempts("lost"), 0, "by whoever took it");
    write(&settle, &job, Verdict::End(ends(&job, "failed"))).await;
    assert_eq!(attempts("failed"), 1);
}

/// What serde says of a payload quotes it.
#[tokio::test]
async fn the_log_quotes_no_payload() {
    let job = place().await.running(WORKER).await;
    let end = |category, error: Option<&str>| AttemptEnd {
        category,
        error: error.map(str::to_owned),
        ..ends(&job, "failed")
    };
    assert_eq!(loggable(&end(None, Some("x"))), Some("x".into()));
    assert_eq!(loggable(&end(None, None)), None);
    let unfit = loggable(&end(Some("invalid_payload"), Some("secret"))).unwrap();
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
