//! `tenure verify`: it finds nothing in a correct database, and every broken rule in a damaged one.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Worker};

use crate::harness::{Bench, Running, bench, statement};

/// Jobs of every course: completed at once, on the second attempt, snoozed, cancelled, dead, with an effect.
async fn lived_in(bench: &Bench) {
    let handler = |how: Value, ctx: JobContext| async move {
        match how.as_str().unwrap_or_default() {
            "retry" if ctx.attempt() == 1 => Err(JobError::retry_after(Duration::ZERO, "once more")),
            "snooze" if ctx.token().0 == 1 => Ok(Outcome::Snooze(Duration::ZERO)),
            "cancel" => Ok(Outcome::Cancel("it says so".into())),
            "die" => Err(JobError::permanent("never")),
            "effect" => {
                ctx.once("effect", async |_| Ok::<_, JobError>(json!(1))).await?;
                Ok(Outcome::Done(None))
            }
            _ => Ok(Outcome::Done(None)),
        }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_kind("way", KindOptions::new(), handler).concurrency("q", 10),
    );
    for how in ["done", "retry", "snooze", "cancel", "die", "effect"] {
        bench.tenure.enqueue(JobRequest::new("q", "way", json!(how))).unique_key(how).await.unwrap();
    }
    bench.until("(SELECT count(*) FROM tenure.all_jobs WHERE finished_at IS NOT NULL) = 6").await;
    // One is redriven and dies again; one waits; one is cancelled before it began.
    let dead: uuid::Uuid = bench.value("SELECT id FROM tenure.dead_letter_jobs").await;
    bench.tenure.redrive(&[tenure::JobId(dead)]).await.unwrap();
    bench.until_count("tenure.dead_letter_jobs WHERE fencing_token = 2", 1).await;
    worker.stop().await;
    bench.tenure.enqueue(JobRequest::new("q", "way", json!("waits"))).await.unwrap();
    let job = bench.tenure.enqueue(JobRequest::new("q", "way", json!("never"))).await.unwrap().id;
    bench.tenure.cancel(job).await.unwrap();
    let member = JobRequest::new("q", "way", json!("member")).delay(Duration::from_secs(3_600));
    bench.tenure.group([member]).then(JobRequest::new("q", "way", json!("follows"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_nothing_in_a_database_that_was_used_and_each_rule_that_is_broken() {
    let bench = bench().await;
    lived_in(&bench).await;
    let whole = bench.tenure.verify().await.unwrap();
    assert!(whole.iter().all(|rule| rule.jobs == 0 && rule.examples.is_empty()), "{whole:?}");
    assert!(bench.program(&["verify"]).output().await.unwrap().status.success());
    bench.execute("ALTER TABLE tenure.jobs DROP CONSTRAINT live_job").await;
    let wrongs = [
        (
            "stands_in_one_place",
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, attempt, fencing_token, scheduled_at,
                    publish_at)
             SELECT id, queue, kind, payload, max_attempts, attempt, fencing_token, now(), now()
               FROM tenure.job_history WHERE payload = '\"retry\"'",
        ),
        ("is_not_lost", "DELETE FROM tenure.job_history WHERE payload = '\"effect\"'"),
        ("is_owned_while_processing", "UPDATE tenure.jobs SET status = 'processing' WHERE payload = '\"waits\"'"),
        ("is_owned_while_processing", "UPDATE tenure.jobs SET claim_id = gen_random_uuid() WHERE payload = '\"waits\"'"),
        ("waits_for_its_message_or_the_relay", "UPDATE tenure.jobs SET publish_at = NULL, published_at = NULL WHERE payload = '\"waits\"'"),
        ("keeps_its_bounds", "UPDATE tenure.jobs SET attempt = max_attempts + 1 WHERE payload = '\"waits\"'"),
        ("keeps_its_bounds", "UPDATE tenure.jobs SET progress = 101 WHERE payload = '\"waits\"'"),
        (
            "has_a_record_of_every_token",
            "UPDATE tenure.job_history SET fencing_token = 7 WHERE payload = '\"done\"'",
        ),
        ("has_a_record_of_every_token", "DELETE FROM tenure.job_executions WHERE outcome = 'retried'"),
        (
            "ends_each_attempt_before_the_next",
            "UPDATE tenure.job_executions SET finished_at = now() + interval '1 min' WHERE outcome = 'snoozed'",
        ),
        ("has_effects_of_its_own_attempts", "UPDATE tenure.effects SET fencing_token = 2"),
        ("has_a_place_while_held", "DELETE FROM tenure.job_edges"),
        ("follows_jobs_that_have_not_ended", "UPDATE tenure.job_edges SET state = 'completed'"),
        ("waits_only_for_jobs_that_are_live", "UPDATE tenure.job_edges SET before = gen_random_uuid()"),
    ];
    let verify = statement("verify");
    for (rule, wrong) in wrongs {
        let mut tx = bench.pool.begin().await.unwrap();
        let changed = sqlx::query(sqlx::AssertSqlSafe(wrong)).execute(&mut *tx).await.unwrap();
        assert!(changed.rows_affected() > 0, "{wrong}");
        let rules: Vec<(String, i64, Option<Vec<uuid::Uuid>>)> =
            sqlx::query_as(verify).fetch_all(&mut *tx).await.unwrap();
        let broken = rules.iter().find(|(name, ..)| name == rule).unwrap();
        assert_eq!(broken.1, 1, "{rule}, after {wrong}: {rules:?}");
        assert_eq!(broken.2.as_ref().map(Vec::len), Some(1));
        tx.rollback().await.unwrap();
    }
    // The program names the rule and fails.
    bench.execute("UPDATE tenure.jobs SET progress = 101").await;
    let output = bench.program(&["verify", "--output", "json"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let rules: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let broken: Vec<_> = rules.iter().filter(|rule| rule["jobs"] != 0).map(|rule| &rule["rule"]).collect();
    assert_eq!(broken, ["keeps_its_bounds"]);
    let output = bench.program(&["verify"]).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 of 14 rules is broken"), "{text}");
}
