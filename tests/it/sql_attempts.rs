//! The functions of the schema that name an attempt: whose transactions may commit, at each isolation level.
//!
//! Each test forces the interleaving.

use sqlx::AssertSqlSafe;
use tenure::JobId;
use uuid::Uuid;

use crate::{
    harness::{bench, statement},
    sql::{LEVELS, begin, claimed, refusal, refused, reset, run, running},
};

/// Each function that names an attempt, at each level, before and after another attempt has the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_attempt_can_do_nothing_at_any_level() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.effects (n int)").await;
    let calls = [
        "fence({})",
        "hold({})",
        "once({}, 'a')",
        "once_store({}, 'a', '1')",
        "complete({})",
        "progress({})",
    ];
    for level in LEVELS {
        for call in calls {
            for claimed_again in [false, true] {
                let (job, attempt) = running(&bench).await;
                let call = format!("SELECT tenure.{}", call.replace("{}", &attempt));
                reset(&bench, job).await;
                if claimed_again {
                    claimed(&bench, job).await;
                }
                let mut tx = begin(&bench.pool, level).await;
                run(&mut tx, "INSERT INTO public.effects VALUES (1)").await;
                let said = refused(&mut *tx, &call).await;
                assert_eq!(said.code, "TN001", "{level} {call}: {said:?}");
                assert!(said.message.starts_with("this attempt, token 1, no longer owns job"), "{said:?}");
                let now = if claimed_again {
                    "Worker w-1-x runs it under token 2."
                } else {
                    "queued again, after token 1"
                };
                assert!(said.rest.contains(now), "{said:?}");
                // COMMIT of an aborted transaction is a ROLLBACK.
                run(&mut tx, "COMMIT").await;
                assert_eq!(bench.count("public.effects").await + bench.count("tenure.effects").await, 0);
                bench.execute("DELETE FROM tenure.jobs").await;
                bench.execute("DELETE FROM tenure.job_executions").await;
            }
        }
    }
    // The token alone is not enough: after a failover two claims may have one.
    let (_, attempt) = running(&bench).await;
    let forged = format!("{}'{}'", &attempt[..attempt.len() - 38], Uuid::new_v4());
    for call in calls {
        let said = refused(&bench.pool, &format!("SELECT tenure.{}", call.replace("{}", &forged))).await;
        assert_eq!(said.code, "TN001", "{call}");
    }
}

/// A snapshot that is older than the reset must never count as ownership.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_shows_the_attempt_as_the_owner_does_not_make_it_one() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.effects (n int)").await;
    for level in LEVELS {
        for call in ["fence({})", "hold({})", "once({}, 'a')", "complete({})", "progress({})"] {
            for claimed_again in [false, true] {
                let (job, attempt) = running(&bench).await;
                let mut tx = begin(&bench.pool, level).await;
                run(&mut tx, "INSERT INTO public.effects VALUES (1)").await;
                reset(&bench, job).await;
                if claimed_again {
                    claimed(&bench, job).await;
                }
                let said =
                    refused(&mut *tx, &format!("SELECT tenure.{}", call.replace("{}", &attempt))).await;
                let code = if level == LEVELS[0] { "TN001" } else { "40001" };
                assert_eq!(said.code, code, "{level} {call}, claimed again: {claimed_again}");
                run(&mut tx, "COMMIT").await;
                assert_eq!(bench.count("public.effects").await, 0);
                bench.execute("DELETE FROM tenure.jobs").await;
                bench.execute("DELETE FROM tenure.job_executions").await;
            }
        }
    }
}

/// What a reset meets while a transaction that called one of the functions is open: `None`, it takes the job; else the
/// function keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn from_the_call_to_the_commit_no_session_can_take_the_job_and_the_server_ends_who_freezes() {
    let bench = bench().await;
    for level in LEVELS {
        for (call, limit, reports_pass) in [
            ("fence({})", if level == LEVELS[0] { "10s" } else { "75s" }, level != LEVELS[0]),
            ("hold({})", "75s", false),
            ("once({}, 'a')", "75s", true),
            ("complete({})", "10s", false),
        ] {
            let (job, attempt) = running(&bench).await;
            bench.execute("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h'").await;
            let mut tx = begin(&bench.pool, level).await;
            run(&mut tx, &format!("SELECT tenure.{}", call.replace("{}", &attempt))).await;
            let idle: String = sqlx::query_scalar("SHOW idle_in_transaction_session_timeout")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            assert_eq!(idle.replace("1min 15s", "75s"), limit, "{call}");
            // A reset as the scanner's passes over the row; the worker's reports do not wait for it.
            let silent = sqlx::query(statement("reset_stale")).bind(vec![job]).bind("the test");
            assert!(silent.fetch_all(&bench.pool).await.unwrap().is_empty());
            let ours = attempt.split(", ").map(|part| part.trim_matches('\'').to_owned()).collect::<Vec<_>>();
            let report = sqlx::query(statement("progress"))
                .bind(vec![job])
                .bind(vec![ours[1].parse::<i64>().unwrap()])
                .bind(vec![ours[2].parse::<Uuid>().unwrap()])
                .bind(vec![r#"{"stage": "on"}"#])
                .fetch_all(&bench.pool)
                .await
                .unwrap();
            assert_eq!(!report.is_empty(), reports_pass, "{level} {call}");
            let locked = sqlx::query("SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE NOWAIT").bind(job);
            let locked = refusal(&locked.fetch_all(&bench.pool).await.unwrap_err());
            assert_eq!(locked.code, "55P03");
            tx.commit().await.unwrap();
            let completes = call.starts_with("complete");
            assert_eq!(
                bench.count(&format!("tenure.job_history WHERE id = '{job}'")).await,
                i64::from(completes)
            );
            bench.execute("DELETE FROM tenure.jobs").await;
        }
        // A shorter limit of one's own stays.
        let (_, attempt) = running(&bench).await;
        let mut tx = begin(&bench.pool, level).await;
        run(&mut tx, "SET LOCAL idle_in_transaction_session_timeout = '2s'").await;
        run(&mut tx, &format!("SELECT tenure.fence({attempt})")).await;
        let idle: String =
            sqlx::query_scalar("SHOW idle_in_transaction_session_timeout").fetch_one(&mut *tx).await.unwrap();
        assert_eq!(idle, "2s");
        tx.commit().await.unwrap();
        bench.execute("DELETE FROM tenure.jobs").await;
    }
}

/// A report of the attempt's own worker, which comes between two statements of a transaction, never makes the fence fail.
/// It does make the completion fail from REPEATABLE READ on, unless the transaction began with the hold.
#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_the_fence_decides_what_a_report_in_between_does() {
    let bench = bench().await;
    for (level, first, last, code) in [
        (LEVELS[0], "SELECT count(*) FROM tenure.jobs", "fence", None),
        (LEVELS[0], "SELECT count(*) FROM tenure.jobs", "complete", None),
        (LEVELS[0], "fence", "complete", None),
        (LEVELS[1], "SELECT count(*) FROM tenure.jobs", "fence", None),
        (LEVELS[1], "SELECT count(*) FROM tenure.jobs", "complete", Some("40001")),
        (LEVELS[1], "fence", "complete", Some("40001")),
        (LEVELS[1], "fence", "fence", None),
        (LEVELS[1], "fence", "SELECT 1", None),
        (LEVELS[1], "SELECT count(*) FROM tenure.jobs", "hold", Some("40001")),
        (LEVELS[1], "hold", "complete", None),
        (LEVELS[2], "hold", "complete", None),
        (LEVELS[2], "fence", "SELECT 1", None),
        (LEVELS[2], "fence", "complete", Some("40001")),
    ] {
        let (_, attempt) = running(&bench).await;
        let sql = |of: &str| {
            if of.contains(' ') { of.to_owned() } else { format!("SELECT tenure.{of}({attempt})") }
        };
        let mut tx = begin(&bench.pool, level).await;
        run(&mut tx, &sql(first)).await;
        let report = "UPDATE tenure.jobs SET last_activity_at = now()
                       WHERE id = (SELECT id FROM tenure.jobs FOR NO KEY UPDATE SKIP LOCKED)";
        bench.execute(report).await;
        let done = sqlx::query(AssertSqlSafe(sql(last))).execute(&mut *tx).await;
        let said = done.err().map(|error| refusal(&error).code);
        assert_eq!(said.as_deref(), code, "{level}: {first}, then {last}");
        drop(tx);
        bench.execute("DELETE FROM tenure.jobs").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_happens_once_and_later_attempts_read_its_result() {
    let bench = bench().await;
    let (job, attempt) = running(&bench).await;
    let result = format!("SELECT tenure.once_result('{job}', 'charge')::text");
    assert_eq!(bench.value::<Option<String>>(&result).await, None);
    let said = refused(&bench.pool, &format!("SELECT tenure.once_store({attempt}, 'charge', '1')")).await;
    assert!(said.code == "TN003" && said.message.contains("has not begun effect \"charge\""), "{said:?}");
    let once = |of: &str| format!("SELECT tenure.once({of}, 'charge')");
    // Rolled back, it has not happened.
    let mut tx = bench.pool.begin().await.unwrap();
    run(&mut tx, &once(&attempt)).await;
    tx.rollback().await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    assert!(sqlx::query_scalar::<_, bool>(AssertSqlSafe(once(&attempt))).fetch_one(&mut *tx).await.unwrap());
    run(&mut tx, &format!("SELECT tenure.once_store({attempt}, 'charge', '{{\"id\": 7}}')")).await;
    tx.commit().await.unwrap();
    let said = refused(&bench.pool, &format!("SELECT tenure.once_store({attempt}, 'charge', '8')")).await;
    assert_eq!(said.code, "TN003", "a committed result stays");
    assert!(!bench.value::<bool>(&once(&attempt)).await, "not again by this attempt");
    assert!(bench.value::<bool>(&once(&attempt).replace("charge", "mail")).await, "another effect");
    reset(&bench, job).await;
    let second = claimed(&bench, job).await;
    assert!(!bench.value::<bool>(&once(&second)).await, "nor by the next one");
    assert_eq!(bench.value::<Option<String>>(&result).await.as_deref(), Some("{\"id\": 7}"));
    assert_eq!(
        bench.value::<Option<String>>(&result.replace("charge", "mail")).await.as_deref(),
        Some("null")
    );
    // Two calls of one attempt at the same time: the second waits for the first, and then reads its result.
    let mut tx = bench.pool.begin().await.unwrap();
    run(&mut tx, &format!("SELECT tenure.once({second}, 'slow')")).await;
    run(&mut tx, &format!("SELECT tenure.once_store({second}, 'slow', '[1]')")).await;
    let both =
        format!("SELECT tenure.once({second}, 'slow')::text || tenure.once_result('{job}', 'slow')::text");
    let pool = bench.pool.clone();
    let waits = tokio::spawn(async move {
        sqlx::query_scalar::<_, String>(AssertSqlSafe(both)).fetch_one(&pool).await.unwrap()
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    tx.commit().await.unwrap();
    assert_eq!(waits.await.unwrap(), "false[1]");
    // An attempt stores results of its own effects alone.
    let said = refused(&bench.pool, &format!("SELECT tenure.once_store({second}, 'charge', '1')")).await;
    assert_eq!(said.code, "TN003");
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_the_librarys_row_and_a_second_one_says_that_it_is_done() {
    let bench = bench().await;
    let kept = "SELECT queue, kind, payload, status, attempt, max_attempts, fencing_token, claim_id IS NOT NULL, worker_id,
                       started_at IS NOT NULL, stage, progress, message, output, trace_context, last_error
                  FROM tenure.job_history WHERE id = ";
    let mut rows = Vec::new();
    for by_sql in [true, false] {
        let (job, attempt) = running(&bench).await;
        let told = format!("SELECT tenure.progress({attempt}, 'half', 120, 'on', '[1]')");
        assert!(!bench.value::<bool>(&told).await);
        bench.execute(&format!("SELECT tenure.progress({attempt}, progress => 'NaN')")).await;
        assert_eq!(
            bench.text("SELECT stage, progress, message, checkpoint FROM tenure.jobs").await,
            "(half,100,on,[1])"
        );
        if by_sql {
            // Few bytes here, and eight million as text, which each reader gets.
            let grows = "to_jsonb(array_fill(1e-16000::numeric, ARRAY[500]))";
            let said = refused(&bench.pool, &format!("SELECT tenure.complete({attempt}, {grows})")).await;
            assert!(said.code == "TN003" && said.message.contains("with each digit"), "{said:?}");
            let stored = format!("SELECT tenure.once_store({attempt}, 'e', {grows})");
            assert_eq!(refused(&bench.pool, &stored).await.message, said.message.replace("output", "result"));
            bench.execute(&format!("SELECT tenure.complete({attempt}, '{{\"n\": 1}}')")).await;
            let mut tx = bench.pool.begin().await.unwrap();
            for call in ["complete", "fence", "hold", "progress"] {
                let said = refused(&mut *tx, &format!("SELECT tenure.{call}({attempt})")).await;
                assert_eq!(said.code, "TN007", "{said:?}");
                assert!(said.rest.contains("end the program with success"), "{said:?}");
                run(&mut tx, "ROLLBACK").await;
                run(&mut tx, "BEGIN").await;
            }
            tx.rollback().await.unwrap();
        } else {
            let parts: Vec<_> = attempt.split(", ").map(|part| part.trim_matches('\'')).collect();
            sqlx::query(statement("complete_one"))
                .bind(job)
                .bind(parts[1].parse::<i64>().unwrap())
                .bind(parts[2].parse::<Uuid>().unwrap())
                .bind("{\"n\": 1}")
                .execute(&bench.pool)
                .await
                .unwrap();
        }
        rows.push(bench.text(&format!("{kept}'{job}'")).await);
    }
    assert_eq!(rows[0], rows[1]);
    // A caller with another token or claim is stale, also after the completion.
    let (job, attempt) = running(&bench).await;
    reset(&bench, job).await;
    let second = claimed(&bench, job).await;
    bench.execute(&format!("SELECT tenure.complete({second})")).await;
    let said = refused(&bench.pool, &format!("SELECT tenure.complete({attempt})")).await;
    assert!(said.code == "TN001" && said.rest.contains("The job is completed, under token 2."), "{said:?}");
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_completion_in_one_transaction_says_that_it_is_not_committed_yet() {
    let bench = bench().await;
    let (_, attempt) = running(&bench).await;
    for call in ["complete", "fence", "hold", "progress"] {
        let mut tx = bench.pool.begin().await.unwrap();
        run(&mut tx, &format!("SELECT tenure.complete({attempt})")).await;
        let said = refused(&mut *tx, &format!("SELECT tenure.{call}({attempt})")).await;
        assert_eq!(said.code, "TN008", "{said:?}");
        tx.rollback().await.unwrap();
    }
}

/// As the library: of a kind that keeps none, nothing stays but the key, which knows when its job ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_keeps_history_as_the_worker_of_the_job_says() {
    let bench = bench().await;
    for (unkept, stays) in [("NULL", 1), ("'{other}'", 1), ("'{k}'", 0), ("'{*}'", 0)] {
        bench.execute("DELETE FROM tenure.workers").await;
        bench
            .execute(&format!(
                "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, unkept)
             VALUES ('w-1-x', 'w', 1, '{{q}}', 1, '', {unkept})"
            ))
            .await;
        let job =
            JobId(bench.value(&format!("SELECT tenure.enqueue('q', 'k', unique_key => $${unkept}$$)")).await);
        claimed(&bench, job).await;
        reset(&bench, job).await;
        let attempt = claimed(&bench, job).await;
        bench.execute(&format!("SELECT tenure.once({attempt}, 'a')")).await;
        bench.execute(&format!("SELECT tenure.complete({attempt})")).await;
        let said = refused(&bench.pool, &format!("SELECT tenure.complete({attempt})")).await;
        assert_eq!(said.code, if stays == 1 { "TN007" } else { "TN001" }, "{unkept}");
        assert!(!said.rest.contains("Another attempt does the job"), "{said:?}");
        for table in ["job_history WHERE id", "job_executions WHERE job_id", "effects WHERE job_id"] {
            assert_eq!(bench.count(&format!("tenure.{table} = '{job}'")).await, stays, "{unkept} {table}");
        }
        let ended = format!("tenure.job_keys WHERE job_id = '{job}' AND ended_at IS NOT NULL");
        assert_eq!(bench.count(&ended).await, 1 - stays);
    }
    bench.every_job_is_as_it_must_be().await;
}
