//! Lanes and keys in transactions that see an older state, and in those that call twice.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tenure::{
    JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Worker, groups::OnFailure, lanes::Lanes,
};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench, statement};

/// A connection of a transaction at REPEATABLE READ, whose snapshot is of now.
async fn snapshot(bench: &Bench) -> PgConnection {
    let mut user = PgConnection::connect(&bench.config.database_url).await.unwrap();
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").execute(&mut user).await.unwrap();
    user
}

const ADMIT: &str = "SELECT count(*) FROM tenure.admit('q', '{a}', NULL, 10)";

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_does_not_see_the_lanes_of_a_queue_releases_nothing_beyond_them() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    for before in [None, Some(Lanes::new().running(5))] {
        if let Some(lanes) = &before {
            bench.tenure.remove_lanes("q").await.unwrap();
            bench.execute("DELETE FROM tenure.jobs").await;
            bench.tenure.put_lanes("q", lanes.clone()).await.unwrap();
        }
        let mut user = snapshot(&bench).await;
        bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
        // The lane has no row yet, whose change would tell.
        let lane = if before.is_some() { "b" } else { "a" };
        let enqueue = format!("SELECT tenure.enqueue('q', 'k', lane => '{lane}') FROM generate_series(1, 5)");
        sqlx::query(AssertSqlSafe(enqueue)).execute(&mut user).await.unwrap();
        let admit = ADMIT.replace("{a}", &format!("{{{lane}}}"));
        let admitted = sqlx::query_scalar::<_, i64>(AssertSqlSafe(admit)).fetch_one(&mut user).await;
        if before.is_none() {
            assert_eq!(admitted.unwrap(), 0);
            sqlx::raw_sql("COMMIT").execute(&mut user).await.unwrap();
            assert_eq!(bench.value::<i64>(ADMIT).await, 1);
            continue;
        }
        let error = admitted.unwrap_err();
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("40001"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_a_transaction_enqueues_after_it_has_released_others_wakes_its_lane() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(5)).await.unwrap();
    let mut user = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = user.begin().await.unwrap();
    let enqueue = "SELECT tenure.enqueue('q', 'k', lane => 'a')";
    sqlx::query(enqueue).execute(&mut *tx).await.unwrap();
    assert_eq!(sqlx::query_scalar::<_, i64>(ADMIT).fetch_one(&mut *tx).await.unwrap(), 1);
    sqlx::query(enqueue).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    bench.execute("SELECT tenure.tend_lanes(10, true)").await;
    assert_eq!(bench.count("tenure.lane_slots").await, 2);
}

async fn waits(payload: Value, ctx: JobContext) -> Result<Outcome, JobError> {
    if payload == json!("waits") {
        ctx.event::<Value>("go").await?;
    }
    Outcome::done(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_is_not_ordered_any_more_gives_the_slot_of_a_suspended_job_to_the_next() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().ordered()).await.unwrap();
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), waits);
    let worker = Running::start(worker.concurrency("q", 2));
    let request = |what: &str| JobRequest::new("q", "k", json!(what)).lane("a");
    let first = bench.tenure.enqueue(request("waits")).await.unwrap().id;
    bench
        .until_count(
            "tenure.jobs WHERE status = 'queued' AND publish_at >= '9998-01-01Z' AND fencing_token = 1",
            1,
        )
        .await;
    let second = bench.tenure.enqueue(request("goes")).await.unwrap().id;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    assert_eq!(bench.until_finished(second).await.status, Status::Completed);
    assert_eq!(
        bench.tenure.signal(first, "go", &json!(1)).await.unwrap(),
        tenure::groups::Signalled::Delivered
    );
    assert_eq!(bench.until_finished(first).await.status, Status::Completed);
    worker.stop().await;
}

/// The follower of a failed job runs nevertheless, and snoozes; then the failed one is redriven, and completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_snoozes_in_its_lane_is_not_woken_by_the_end_of_a_redriven_job() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    let handler = async |payload: Value, ctx: JobContext| match payload.as_str().unwrap_or_default() {
        "fails" if ctx.token() == 1 => Err(JobError::permanent("no")),
        "snoozes" => Ok(Outcome::Snooze(std::time::Duration::from_secs(3_600))),
        _ => Outcome::done(()),
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler);
    let worker = Running::start(worker.concurrency("q", 2).concurrency("plain", 2));
    let graph = bench.tenure.graph();
    let fails = graph.add(JobRequest::new("plain", "k", json!("fails")));
    let snoozes = JobRequest::new("q", "k", json!("snoozes")).lane("a");
    let snoozes = graph.add(snoozes).after([&fails]).on_failure(OnFailure::Run);
    graph.await.unwrap();
    let held = format!(
        "tenure.lane_jobs WHERE job_id = '{}' AND due_at BETWEEN now() + interval '50 min' AND now() + interval '2 h'",
        snoozes.id()
    );
    bench.until_count(&held, 1).await;
    bench.tenure.retry(fails.id()).await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
    bench.until_count("tenure.group_ends", 0).await;
    let now = bench.text("SELECT l.*, j.status, j.publish_at, j.fencing_token FROM tenure.lane_jobs l JOIN tenure.jobs j ON j.id = l.job_id").await;
    assert_eq!(bench.count(&held).await, 1, "it pauses: {now}");
    worker.stop().await;
}

/// Of two steps of one name in one call, the first is recorded; so it is when the call is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_records_of_one_name_in_one_call_the_second_is_told_that_it_is_not_recorded() {
    let bench = bench().await;
    let (id, claim): (Uuid, Uuid) = (bench.value("SELECT tenure.enqueue('q', 'k')").await, Uuid::new_v4());
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = '{claim}', worker_id = 'w',
                    worker_host = 'w', stale_after = '1 h', started_at = now(), last_activity_at = now() WHERE id = '{id}'"
        ))
        .await;
    for call in 1..=2 {
        let rows = sqlx::query(statement("record_steps"))
            .bind([id])
            .bind([1_i64])
            .bind([claim])
            .bind([claim, claim, claim])
            .bind(["one", "one", "two"])
            .bind(["step"; 3])
            .bind(["1", "2", "3"])
            .bind([0.0_f64; 3])
            .fetch_all(&bench.pool)
            .await
            .unwrap();
        let mut recorded: Vec<_> =
            rows.iter().map(|row| (row.get::<i32, _>("ord"), row.get::<bool, _>("recorded"))).collect();
        recorded.sort_unstable();
        assert_eq!(recorded, [(0, true), (1, false), (2, true)], "call {call}");
    }
}

/// However many queues have lanes, an insert into another one meets two conditions, and runs no function.
#[tokio::test(flavor = "multi_thread")]
async fn all_queues_with_lanes_share_two_triggers_which_hold_the_jobs_of_no_other_queue() {
    let bench = bench().await;
    let held = async |queue: &str| -> bool {
        let enqueue = format!("SELECT tenure.enqueue('{queue}', 'k')");
        let id: Uuid = bench.value(&enqueue).await;
        bench.count(&format!("tenure.lane_jobs WHERE job_id = '{id}'")).await == 1
    };
    let triggers = "pg_trigger WHERE tgrelid = 'tenure.jobs'::regclass AND tgname LIKE 'lanes%'";
    let mut user = snapshot(&bench).await;
    for n in 0..20 {
        let lanes = if n % 2 == 0 { Lanes::new().running(1) } else { Lanes::new().ordered() };
        bench.tenure.put_lanes(&format!("q{n}"), lanes).await.unwrap();
    }
    assert_eq!(bench.count(triggers).await, 2);
    for (queue, is_held) in [("q0", true), ("q1", true), ("q19", true), ("q", false), ("q20", false)] {
        assert_eq!(held(queue).await, is_held, "{queue}");
    }
    // A list of many queues stands elsewhere, and is as exact.
    let many = "SELECT tenure.put_lanes(k || n, 2, NULL, NULL, NULL, NULL, false, k = 'o', '5s')
                  FROM generate_series(1, 70) n, unnest(ARRAY['o', 'u']) k";
    // Producers call the function, even if the owner grants nothing by default.
    bench.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC").await;
    bench.execute(many).await;
    bench.execute("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC").await;
    let may_ask = "bool_and(has_function_privilege('public', p.oid, 'EXECUTE')) FROM pg_proc p WHERE p.proname LIKE 'has_lanes%'";
    assert!(bench.value::<bool>(&format!("SELECT {may_ask}")).await);
    let before_many = held("q0").await && held("q1").await && held("o70").await && held("u70").await;
    assert!(before_many && !held("q").await && !held("o71").await);
    assert_eq!(bench.count("pg_proc WHERE proname LIKE 'has_lanes%'").await, 2);
    let mut user_of_few = snapshot(&bench).await;
    bench.tenure.put_lanes("last", Lanes::new().running(1)).await.unwrap();
    sqlx::query("SELECT tenure.enqueue('last', 'k')").execute(&mut user_of_few).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut user_of_few).await.unwrap();
    assert_eq!(bench.count("tenure.lane_jobs WHERE queue = 'last'").await, 1);
    bench.execute("DELETE FROM tenure.lane_jobs WHERE queue IN ('last', 'o70', 'u70')").await;
    bench.execute("DELETE FROM tenure.jobs WHERE queue IN ('last', 'o70', 'u70')").await;
    bench.execute("DELETE FROM tenure.lane_settings WHERE queue ~ '^([ou][0-9]+|last)$'").await;
    bench.execute("SELECT tenure.hold_new_jobs()").await;
    // A snapshot of before has its jobs held, and cannot change what is held.
    let lanes_change = "SELECT tenure.put_lanes('other', 1, NULL, NULL, NULL, NULL, false, false, '1s')";
    let error = sqlx::query(lanes_change).execute(&mut user).await.unwrap_err();
    assert!(
        error.to_string().contains("lanes change at READ COMMITTED, and not at REPEATABLE READ"),
        "{error}"
    );
    let mut user = snapshot(&bench).await;
    bench.tenure.put_lanes("late", Lanes::new().running(1)).await.unwrap();
    sqlx::query("SELECT tenure.enqueue('late', 'k')").execute(&mut user).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut user).await.unwrap();
    assert_eq!(bench.count("tenure.lane_jobs WHERE queue = 'late'").await, 1);
    // One queue lets go of its own jobs, and another becomes ordered.
    assert!(bench.tenure.remove_lanes("q0").await.unwrap());
    bench.tenure.put_lanes("q2", Lanes::new().ordered()).await.unwrap();
    for (queue, is_held) in [("q0", false), ("q1", true), ("q2", true), ("q4", true)] {
        assert_eq!(held(queue).await, is_held, "{queue}");
    }
    for queue in (1..20).map(|n| format!("q{n}")).chain(["late".to_owned()]) {
        assert!(bench.tenure.remove_lanes(&queue).await.unwrap(), "{queue}");
    }
    assert_eq!(bench.count(triggers).await, 0, "without lanes, an insert meets no condition");
    assert_eq!(bench.count("pg_proc WHERE proname LIKE 'has_lanes%'").await, 0);
    bench.tenure.put_lanes("q0", Lanes::new().running(1)).await.unwrap();
    assert!(held("q0").await, "lanes that come back hold");
}
