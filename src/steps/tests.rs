//! Steps: what is recorded once, what is refused, and what a sleep leaves.

use super::*;
use crate::steps::store::{Recorded, Recording, Step, StepWrite};

/// The same job in its next attempt.
async fn again(one: &One) -> JobContext {
    let token = one.context.token().0 + 1;
    one.place
        .execute(&format!(
            "UPDATE tenure.jobs SET status = 'processing', fencing_token = {token}, claim_id = gen_random_uuid()"
        ))
        .await;
    let claim = one.place.value("SELECT claim_id FROM tenure.jobs").await.parse().unwrap();
    let mut next = one.context.job.claim.clone();
    (next.key.token.0, next.key.claim) = (token, claim);
    JobContext { job: one.place.run_claim(next, RULES), ..one.context.clone() }
}

#[tokio::test]
async fn no_recorded_step_runs_again() {
    let one = one().await;
    assert_eq!(one.context.step("a", async || Ok(5)).await.unwrap(), 5);
    let failed = one.context.step("b", async || Err::<(), _>("no".into())).await.unwrap_err();
    assert_eq!(failed.text(), "no");
    // As after an answer that was lost: the record is the same.
    let write = StepWrite {
        key: one.context.job.key,
        name: "a".into(),
        result: "6".into(),
        step: Step::Step(Duration::ZERO),
    };
    let store = &one.context.store;
    assert_eq!(store.record_steps(&[write]).await.unwrap(), [Recording::Recorded]);
    let next = again(&one).await;
    assert_eq!(next.step("a", async || Err::<i32, _>("it ran again".into())).await.unwrap(), 5);
    assert_eq!(next.step("b", async || Ok("x".to_owned())).await.unwrap(), "x");
    let last = again(&One { context: next, ..one }).await;
    assert_eq!(last.step("b", async || Ok(String::new())).await.unwrap(), "x");
    assert_eq!(last.job.steps.uncalled(), ["a"]);
}

#[tokio::test]
async fn the_step_of_a_stale_attempt_is_refused() {
    let one = one().await;
    one.claimed_by_another().await;
    let refused = one.context.step("a", async || Ok(5)).await.unwrap_err();
    assert_eq!(said(&refused), "lost");
    let refused = one.context.sleep("b", SECOND).await.unwrap_err();
    assert_eq!(said(&refused), "lost");
    assert_eq!(one.place.value("SELECT count(*) FROM tenure.effects").await, "0");
}

#[tokio::test]
async fn many_steps_of_many_jobs_are_recorded_together_and_a_stale_one_alone_is_refused() {
    let one = one().await;
    let steps = (0..50).map(|n| {
        let context = one.context.clone();
        async move { context.step(&n.to_string(), async || Ok(n)).await }
    });
    let done: Result<Vec<_>, _> = futures::future::join_all(steps).await.into_iter().collect();
    assert_eq!(done.unwrap(), (0..50).collect::<Vec<_>>());
    let write = |key, name: &str, result: &str| StepWrite {
        key,
        name: name.into(),
        result: result.into(),
        step: Step::Step(SECOND),
    };
    let key = one.context.job.key;
    let stale = crate::job::claim::ClaimKey { claim: uuid::Uuid::nil(), ..key };
    let writes = [write(stale, "s", "1"), write(key, "t", "2")];
    let recorded = one.context.store.record_steps(&writes).await.unwrap();
    assert_eq!(recorded, [Recording::NotWritten, Recording::Recorded]);
    let took =
        "SELECT round(extract(epoch FROM created_at - began_at))::int FROM tenure.effects WHERE key = 't'";
    assert_eq!(one.place.value(took).await, "1");
}

#[tokio::test]
async fn a_step_with_a_wrong_name_or_result_says_so() {
    let one = one().await;
    let context = &one.context;
    let why = |error: JobError| {
        assert!(error.permanent, "{error:?}");
        error.text()
    };
    assert!(why(context.step("", async || Ok(())).await.unwrap_err()).contains("1 to 512 bytes"));
    // What left no record may be called again.
    context.step("a", async || Err::<i32, _>("no".into())).await.unwrap_err();
    drop(poll!(Box::pin(context.step("a", async || std::future::pending::<Result<i32, JobError>>().await))));
    context.step("a", async || Ok(1)).await.unwrap();
    assert!(why(context.step("a", async || Ok(1)).await.unwrap_err()).contains("called twice"));
    let nan = context.step("nan", async || Ok(f64::NAN)).await.unwrap_err();
    assert!(why(nan).contains("does not read back"));
    assert!(why(context.sleep("a", SECOND).await.unwrap_err()).contains("called twice"));
    let large = context.step("large", async || Ok("x".repeat(9))).await.unwrap_err();
    assert!(why(large).contains("11 bytes, but at most 10"));
    let unstorable = context.step("nul", async || Ok("\0".to_owned())).await.unwrap_err();
    assert!(why(unstorable).contains("u0000"));
    context.once("effect", async |_| Ok(1)).await.unwrap();
    assert!(why(context.step("effect", async || Ok(1)).await.unwrap_err()).contains("another effect"));
    let refused: JobError = context.once("a", async |_| Ok(1)).await.unwrap_err();
    assert!(why(refused).contains("another effect"));
    let next = again(&one).await;
    assert!(why(next.sleep("a", SECOND).await.unwrap_err()).contains("another effect"));
    let next = again(&One { context: next, ..one }).await;
    assert!(why(next.step("a", async || Ok(String::new())).await.unwrap_err()).contains("does not fit"));
}

#[tokio::test]
async fn a_step_waits_for_a_locked_row_and_for_its_own_earlier_call() {
    let one = one().await;
    let (job, token) = (one.context.id(), one.context.token());
    let pool = PgPool::connect(&one.place.tenure.config().database_url).await.unwrap();
    // As after `tenure.cancel` in a transaction of an application.
    let mut holder = pool.begin().await.unwrap();
    holder.execute("SELECT FROM tenure.jobs FOR NO KEY UPDATE").await.unwrap();
    let step = one.context.clone();
    let waits = tokio::spawn(async move { step.step("locked", async || Ok(1)).await });
    let write = |name: &str| StepWrite {
        key: one.context.job.key,
        name: name.into(),
        result: "1".into(),
        step: Step::Step(SECOND),
    };
    let store = &one.context.store;
    assert_eq!(store.record_steps(&[write("b")]).await.unwrap(), [Recording::NotWritten], "it does not wait");
    assert!(!waits.is_finished());
    holder.rollback().await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap(), 1);
    // An earlier call whose answer was lost has not committed yet when this one takes its snapshot.
    let mut earlier = pool.begin().await.unwrap();
    let record = "INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind) \
                  VALUES ($1, 'twice', $2, '7', 'step')";
    sqlx::query(record).bind(job).bind(token).execute(&mut *earlier).await.unwrap();
    let step = one.context.clone();
    let again = tokio::spawn(async move { step.step("twice", async || Ok(7)).await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    while one.place.value(waiting).await == "0" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    earlier.commit().await.unwrap();
    assert_eq!(again.await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn a_large_result_is_read_when_it_is_asked_for() {
    let mut one = one().await;
    one.context.checkpoint_bytes_max = 100_000;
    // Nothing that Postgres could compress.
    let numbers = (0..3_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_string());
    let large = numbers.collect::<String>();
    let result = large.clone();
    one.context.step("large", async || Ok(result)).await.unwrap();
    let recorded = one.context.store.steps(one.context.id(), None).await.unwrap();
    assert_eq!(recorded, [("large".to_owned(), Recorded::Step(None))]);
    let next = again(&one).await;
    assert_eq!(next.step("large", async || Ok(String::new())).await.unwrap(), large);
}

#[tokio::test]
async fn a_result_counts_with_each_digit_that_postgres_writes() {
    let mut one = one().await;
    one.context.checkpoint_bytes_max = 100_000;
    let tiny = async || Ok(vec![1e-300_f64; 500]);
    let error = one.context.step("tiny", tiny).await.unwrap_err();
    let said = error.text();
    assert!(said.contains("but at most 100000 are allowed"), "{said}");
}

#[tokio::test]
async fn a_sleep_lasts_by_the_clock_of_postgres() {
    let one = one().await;
    let left = |error: JobError| error.suspended().unwrap();
    let whole = left(one.context.sleep("nap", SECOND * 60).await.unwrap_err());
    assert!(whole > SECOND * 59 && whole <= SECOND * 60, "{whole:?}");
    one.context.sleep("nothing", Duration::ZERO).await.unwrap();
    one.place.execute("UPDATE tenure.effects SET wakes_at = wakes_at - interval '20 s'").await;
    let next = again(&one).await;
    let error = next.sleep("nap", SECOND).await.unwrap_err();
    assert_eq!(said(&error), "suspended");
    assert!(left(error) <= SECOND * 40);
    one.place.execute("UPDATE tenure.effects SET wakes_at = wakes_at - interval '40 s'").await;
    again(&One { context: next, ..one }).await.sleep("nap", SECOND).await.unwrap();
}
