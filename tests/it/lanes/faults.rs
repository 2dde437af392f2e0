//! Lanes when something goes wrong: deaths, races, clocks, settings that change, transactions that stay open.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure::{
    Config, JobRequest, Status,
    lanes::{LaneOptions, Lanes, LanesError},
};

use super::{Ledger, drained, job, worker};
use crate::harness::{Child, Running, bench, bench_with};

const SECOND: Duration = Duration::from_secs(1);

/// Two calls that both want the last slot, each for another job: the second counts after the first has committed.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_calls_at_once_one_gets_the_last_slot() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let mut user = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = user.begin().await.unwrap();
    bench.tenure.enqueue_many([job("a", 1, 0), job("a", 2, 0)]).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    // Calls wait for each other's new rows in any case.
    bench.execute("INSERT INTO tenure.lanes (queue, lane) VALUES ('q', 'a')").await;
    let admit = "SELECT count(*) FROM tenure.admit('q', ARRAY['a'], '{}', 10)";
    let mut first = user.begin().await.unwrap();
    let released: i64 = sqlx::query_scalar(admit).fetch_one(&mut *first).await.unwrap();
    let mut other = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = other.begin().await.unwrap();
    bench.tenure.enqueue(job("a", 3, 0).priority(-1)).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    let second =
        tokio::spawn(async move { sqlx::query_scalar::<_, i64>(admit).fetch_one(&mut other).await.unwrap() });
    // The second call knows of no slot that is taken, and waits for the lane's row.
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%tenure.admit%')").await;
    first.commit().await.unwrap();
    assert_eq!((released, second.await.unwrap()), (1, 0));
    assert_eq!(bench.count("tenure.lane_slots").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_slots_are_free_when_its_jobs_are_and_no_sooner() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let mut first = Child::on(&bench, "one", "lanes");
    let jobs = (0..2).map(|n| JobRequest::new("q", "hangs", json!({"name": n})).lane("a"));
    let jobs = bench.tenure.enqueue_many(jobs).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    assert_eq!(bench.count("tenure.lane_jobs").await, 1);
    first.kill().await;
    // The lost job goes back to its lane, and one of the two runs again; never have both a slot.
    let second = Child::on(&bench, "two", "lanes");
    bench.until("EXISTS (SELECT FROM tenure.recovery_events WHERE event = 'reset')").await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let taken = "tenure.lane_slots s \
                 WHERE EXISTS (SELECT FROM tenure.jobs j WHERE j.id = s.job_id AND j.publish_at IS NULL)";
    assert_eq!(bench.count(taken).await, 1);
    for job in jobs {
        bench.tenure.cancel(job.id).await.unwrap();
        bench.until_finished(job.id).await;
    }
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_job_gives_its_slot_to_the_next_and_comes_back_to_its_lane() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let ledger = Ledger::default();
    let of_handler = ledger.clone();
    let handler = move |of: serde_json::Value, ctx: tenure::JobContext| {
        let ledger = of_handler.clone();
        async move {
            let lane = ledger.start(&of);
            ledger.end(&lane);
            let fails = of["name"] == json!(1) && ctx.attempt() == 1;
            if fails {
                Err(tenure::JobError::retry_after(Duration::from_millis(600), "later"))
            } else {
                Ok(())
            }
        }
    };
    let builder = tenure::Worker::builder(&bench.tenure);
    let worker = Running::start(builder.handle_any(tenure::KindOptions::new(), handler).concurrency("q", 4));
    bench.tenure.enqueue_many((1..4).map(|n| job("a", n, 0))).await.unwrap();
    drained(&bench, 3).await;
    assert_eq!(ledger.names(), ["1", "2", "3", "1"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_job_waits_in_its_lane() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let fails = |_: serde_json::Value, _: tenure::JobContext| async {
        Err::<(), _>(tenure::JobError::permanent("no"))
    };
    let builder = tenure::Worker::builder(&bench.tenure).handle_any(tenure::KindOptions::new(), fails);
    let failing = Running::start(builder.concurrency("q", 4));
    let dead = bench.tenure.enqueue(job("a", 1, 0).priority(7)).await.unwrap().id;
    bench.until_finished(dead).await;
    failing.stop().await;
    let first = bench.tenure.enqueue(job("a", 2, 0)).await.unwrap().id;
    bench.tenure.redrive(&[dead]).await.unwrap();
    assert_eq!(
        bench.text("SELECT lane, priority, publish_at > '9000-01-01' FROM tenure.jobs WHERE dispatch > 0 AND attempt = 0 AND clear_reason = 'redriven'").await,
        "(a,7,t)"
    );
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    drained(&bench, 2).await;
    assert_eq!(ledger.most(), 1);
    assert_eq!(bench.until_finished(first).await.status, Status::Completed);
    worker.stop().await;
}

/// A worker notes the end of an attempt; by the time of the call the job may run again.
#[tokio::test(flavor = "multi_thread")]
async fn the_slot_of_a_live_job_is_not_given_away_though_a_worker_says_that_it_has_ended() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let first = bench.tenure.enqueue(job("a", 1, 0)).await.unwrap().id;
    bench.tenure.enqueue(job("a", 2, 0)).await.unwrap();
    for ended in [format!("'{{{first}}}'"), "NULL".to_owned()] {
        let admit = format!("SELECT count(*) FROM tenure.admit('q', '{{a}}', {ended}, 10)");
        assert_eq!(bench.text(&admit).await, "(0)", "{ended}");
        assert_eq!(bench.count(&format!("tenure.lane_slots WHERE job_id = '{first}'")).await, 1, "{ended}");
    }
}

/// The clock was an hour ahead until now: every time that says when to look at a lane again lies there.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_next_look_lies_an_hour_ahead_goes_on_after_the_next_scan() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned(), "o".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().rate(2, SECOND).burst(1)).await.unwrap();
    bench.tenure.put_lanes("o", Lanes::new().ordered()).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    let mut ids = Vec::new();
    for (queue, n) in [("q", 1), ("q", 2), ("q", 3), ("o", 1), ("o", 2)] {
        let request = JobRequest::new(queue, "k", json!(n)).lane("a");
        ids.push(bench.tenure.enqueue(request).tx(&mut tx).await.unwrap().id);
    }
    tx.commit().await.unwrap();
    // The first ones end, and free their lanes unseen.
    bench.execute("SELECT tenure.tend_lanes(10, true)").await;
    assert_eq!(bench.execute("DELETE FROM tenure.jobs WHERE publish_at IS NULL").await, 2);
    bench.execute("DELETE FROM tenure.lane_slots").await;
    let left: Vec<_> = [ids[1], ids[2], ids[4]].into();
    for ahead in [
        "UPDATE tenure.lanes SET next_at = now() + interval '1 h', turn = NULL, refilled_at = refilled_at + interval '1 h'",
        "UPDATE tenure.lane_wakes SET at = at + interval '1 h'",
        "UPDATE tenure.scanner_state SET last_scan_at = now() + interval '1 h'",
    ] {
        bench.execute(ahead).await;
    }
    let worker = Child::spawn(bench.program(&["work", "q", "o", "--exec", "true"]), "work");
    for id in left {
        assert_eq!(bench.until_finished(id).await.status, Status::Completed, "{}", worker.log());
    }
}

/// One queue's lane is in another's open transaction, a second queue's look ends in an error, and a third has a lane with
/// more wakes than a look sees.
#[tokio::test(flavor = "multi_thread")]
async fn the_trouble_of_one_queues_lanes_is_no_other_queues() {
    let bench = bench().await;
    let names = ["open", "broken", "crowded", "good"].map(str::to_owned);
    bench.tenure.setup(&names).await.unwrap();
    for queue in &names {
        bench.tenure.put_lanes(queue, Lanes::new().running(1)).await.unwrap();
    }
    let mut open = bench.pool.begin().await.unwrap();
    sqlx::query("INSERT INTO tenure.lanes (queue, lane) VALUES ('open', 'new')")
        .execute(&mut *open)
        .await
        .unwrap();
    let held = bench.tenure.enqueue(JobRequest::new("crowded", "k", json!(0)).lane("held")).await.unwrap().id;
    bench.execute("INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT now() - interval '1 h', 'crowded', 'held' FROM generate_series(1, 5000)").await;
    sqlx::query("SELECT FROM tenure.lanes WHERE lane = 'held' FOR UPDATE").execute(&mut *open).await.unwrap();
    let refuses = "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN RAISE EXCEPTION 'on purpose'; END $$;
                   CREATE TRIGGER refuse BEFORE INSERT ON tenure.lane_slots FOR EACH ROW
                     WHEN (NEW.queue = 'broken') EXECUTE FUNCTION public.refuse()";
    sqlx::raw_sql(refuses).execute(&bench.pool).await.unwrap();
    // In transactions, which release nothing themselves.
    let mut tx = bench.pool.begin().await.unwrap();
    let mut ids = Vec::new();
    for (queue, lane) in
        [("open", "new"), ("open", "other"), ("broken", "a"), ("crowded", "b"), ("good", "a")]
    {
        let request = JobRequest::new(queue, "k", json!(1)).lane(lane);
        ids.push(bench.tenure.enqueue(request).tx(&mut tx).await.unwrap().id);
    }
    tx.commit().await.unwrap();
    let mut worker =
        Child::spawn(bench.program(&["work", "open", "broken", "crowded", "good", "--exec", "true"]), "work");
    for ran in [1, 3, 4] {
        assert_eq!(bench.until_finished(ids[ran]).await.status, Status::Completed, "{ran}");
    }
    worker.until_log("on purpose").await;
    worker.until_log("could not look after the lanes of a queue").await;
    assert!(bench.count("tenure.lane_wakes WHERE lane = 'held'").await < 10, "one is left of five thousand");
    // `doctor` names the session; its threshold is 20 s.
    bench.execute("UPDATE tenure.lane_wakes SET at = at - interval '1 minute'").await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *open).await.unwrap();
    let this = format!("pg_stat_activity WHERE pid = {pid} AND xact_start < now() - interval '2.1 s'");
    bench.until(&format!("EXISTS (SELECT FROM {this})")).await;
    let checks = bench.tenure.doctor(&tenure::doctor::DoctorOptions::default()).await;
    let said = format!("{checks:?}");
    assert!(said.contains(&format!("pg_terminate_backend({pid})")), "{said}");
    open.rollback().await.unwrap();
    bench.execute("DROP TRIGGER refuse ON tenure.lane_slots").await;
    for id in ids.into_iter().chain([held]) {
        assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    }
}

/// Thirty thousand slots, and the jobs of thirty have ended unseen: each look judges a part of the slots, and looks that
/// come within two seconds of each other see all.
#[tokio::test(flavor = "multi_thread")]
async fn looks_for_slots_of_ended_jobs_see_a_part_each_and_together_all() {
    let bench = bench().await;
    let slots = "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at)
         SELECT gen_random_uuid(), 'other', 'k', '1', 5, now(), now() + interval '1 h' FROM generate_series(1, 30000);
         INSERT INTO tenure.lane_slots (queue, lane, job_id, fencing_token)
         SELECT 'q', 'lane-' || row_number() OVER (), id, 0 FROM tenure.jobs;
         DELETE FROM tenure.jobs j USING tenure.lane_slots s WHERE j.id = s.job_id AND s.lane LIKE '%000'";
    sqlx::raw_sql(slots).execute(&bench.pool).await.unwrap();
    let looks = "SELECT count(DISTINCT k.lane) FROM generate_series(0, 7) AS n,
                        LATERAL tenure.lost_slots('2026-01-01'::timestamptz + n * interval '1.9 s', 200) AS k";
    assert_eq!(bench.text(looks).await, "(30)");
    let explain = "EXPLAIN (ANALYZE, BUFFERS, COSTS off) SELECT * FROM tenure.tend_lanes(10, true)";
    let plan: Vec<String> = sqlx::query_scalar(explain).fetch_all(&bench.pool).await.unwrap();
    let plan = plan.join("\n");
    let read = plan.split("shared hit=").nth(1).and_then(|read| read.split([' ', ')', ',', '\n']).next());
    // A slot costs some five; thirty thousand would cost 120,000.
    assert!(read.unwrap().parse::<u32>().unwrap() < 60_000, "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_cancelled_before_it_ran_gives_its_token_back() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().rate(1, Duration::from_secs(3600))).await.unwrap();
    // No worker runs: the first job has the lane's only token, and a message.
    let first = bench.tenure.enqueue(job("a", 1, 0)).await.unwrap().id;
    let second = bench.tenure.enqueue(job("a", 2, 0)).await.unwrap().id;
    let held = |id: tenure::JobId| format!("tenure.jobs WHERE id = '{id}' AND publish_at > '9000-01-01'");
    assert_eq!((bench.count(&held(first)).await, bench.count(&held(second)).await), (0, 1));
    bench.tenure.cancel(first).await.unwrap();
    let admit = "SELECT count(*) FROM tenure.tend_lanes(10, true)";
    assert_eq!(bench.text(admit).await, "(1)");
    assert_eq!(bench.count(&held(second)).await, 0);
    // A held job has no token to give back.
    let third = bench.tenure.enqueue(job("a", 3, 0)).await.unwrap().id;
    bench.tenure.cancel(third).await.unwrap();
    assert_eq!(bench.count("tenure.lane_jobs").await, 0);
    let fourth = bench.tenure.enqueue(job("a", 4, 0)).await.unwrap().id;
    assert_eq!(bench.text(admit).await, "(0)");
    assert_eq!(bench.count(&held(fourth)).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_back_fills_no_bucket_twice_and_stops_no_lane() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().rate(1, SECOND).burst(2)).await.unwrap();
    bench.tenure.enqueue_many((0..4).map(|n| job("a", n, 0))).await.unwrap();
    assert_eq!(bench.count("tenure.lane_slots").await, 2);
    // An hour's jump: the bucket was filled at a time that is now ahead. The released jobs have ended.
    bench
        .execute("UPDATE tenure.lanes SET tokens = 0, refilled_at = clock_timestamp() + interval '1 hour'")
        .await;
    bench.execute("DELETE FROM tenure.jobs WHERE publish_at IS NULL").await;
    let admit = "SELECT count(*) FROM tenure.admit('q', ARRAY['a'], NULL, 10)";
    assert_eq!(bench.text(admit).await, "(0)");
    // From the jump on, time counts as ever.
    bench.execute("UPDATE tenure.lanes SET refilled_at = refilled_at - interval '1.1 seconds'").await;
    assert_eq!(bench.text(admit).await, "(1)");
    assert_eq!(bench.text(admit).await, "(0)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_that_enqueues_stops_no_lane() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let mut user = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = user.begin().await.unwrap();
    bench.tenure.enqueue(job("a", 1, 0)).tx(&mut tx).await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    bench.tenure.enqueue_many((2..5).map(|n| job("a", n, 0))).await.unwrap();
    drained(&bench, 3).await;
    tx.commit().await.unwrap();
    drained(&bench, 4).await;
    assert_eq!(ledger.names(), ["2", "3", "4", "1"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_take_hold_of_what_stands_in_the_queue_and_let_go_of_it() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    let published = bench.tenure.enqueue(job("a", 1, 0)).await.unwrap().id;
    let scheduled = bench.tenure.enqueue(job("a", 2, 0).delay(Duration::from_secs(3600))).await.unwrap().id;
    // An open transaction that has enqueued holds up the change, and is not held up by it for long.
    let mut user = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = user.begin().await.unwrap();
    bench.tenure.enqueue(job("a", 3, 0)).tx(&mut tx).await.unwrap();
    let tenure = bench.tenure.clone();
    let put = tokio::spawn(async move { tenure.put_lanes("q", Lanes::new().running(1)).await });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%put_lanes%')").await;
    assert!(!put.is_finished());
    tx.commit().await.unwrap();
    put.await.unwrap().unwrap();
    let state = |id: tenure::JobId| {
        format!(
            "SELECT publish_at > '9000-01-01', EXISTS (SELECT FROM tenure.lane_slots WHERE job_id = id), \
                 EXISTS (SELECT FROM tenure.lane_jobs WHERE job_id = id) FROM tenure.jobs WHERE id = '{id}'"
        )
    };
    assert_eq!(bench.text(&state(published)).await, "(,t,f)");
    assert_eq!(bench.text(&state(scheduled)).await, "(t,f,t)");
    // A job of an older producer, which knows no lanes, has a message; its row is held.
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, dispatch, published_at) \
             VALUES (gen_random_uuid(), 'q', 'k', '{}', 5, clock_timestamp(), 1, clock_timestamp())",
        )
        .await;
    assert_eq!(
        bench.text("SELECT lane, dispatch, published_at FROM tenure.jobs WHERE payload = '{}'").await,
        "(\"\",0,)"
    );
    // Without lanes again, all run, but for the one that is scheduled.
    assert!(bench.tenure.remove_lanes("q").await.unwrap());
    assert!(!bench.tenure.remove_lanes("q").await.unwrap());
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    drained(&bench, 3).await;
    bench.execute("UPDATE tenure.lane_jobs SET due_at = clock_timestamp()").await;
    bench.execute("UPDATE tenure.lane_wakes SET at = clock_timestamp()").await;
    drained(&bench, 4).await;
    assert_eq!(bench.count("pg_trigger WHERE tgname LIKE 'lanes%'").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_releases_nothing_and_goes_on_once_it_is_resumed() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    bench.tenure.pause_queue("q").await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    bench.tenure.enqueue_many((0..4).map(|n| job("a", n, 0))).await.unwrap();
    bench.until_count("tenure.lane_wakes", 0).await;
    assert_eq!(bench.count("tenure.lane_slots").await, 0);
    bench.tenure.resume_queue("q").await.unwrap();
    drained(&bench, 4).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_names_its_lane_in_a_header() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    let client = tenure::async_nats::connect(&bench.config.nats_url).await.unwrap();
    for n in 0..6 {
        let mut headers = tenure::async_nats::HeaderMap::new();
        headers.insert("Tenure-Lane", "org-7");
        headers.insert("Tenure-Priority", (10 - n).to_string());
        let body = json!({"lane": "org-7", "name": n, "ms": 5}).to_string();
        client
            .publish_with_headers(format!("{}.q.k", bench.config.subject_prefix), headers, body.into())
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    drained(&bench, 6).await;
    assert_eq!(ledger.most(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_its_own_limit_follows_it_and_bad_settings_are_refused() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned(), "other".to_owned()]).await.unwrap();
    let message = |error: LanesError| error.to_string();
    for (lanes, says) in [
        (Lanes::new().running(0), "running is 0, but must be 1 to 10000; to start no jobs, pause the queue"),
        (Lanes::new().rate(0, SECOND), "rate is 0 in 1s, but must be at least 1 job"),
        (
            Lanes::new().rate(5, Duration::ZERO),
            "rate is 5 in 0s, but must be at least 1 job, in a time above zero",
        ),
        (Lanes::new().burst(2), "burst is 2, but must be left out without a rate"),
        (Lanes::new().rate(30, SECOND).burst(5), "burst is 5, but must be a fifth of the starts of a second"),
        (Lanes::new().queue_rate(40, SECOND).queue_burst(1), "queue_burst is 1, but must be a fifth"),
        (Lanes::new().running(2).ordered(), "running is 2, but must be 1 or left out in ordered lanes"),
    ] {
        let said = message(bench.tenure.put_lanes("q", lanes).await.unwrap_err());
        assert!(said.starts_with(says), "{said}");
    }
    let none = bench.tenure.set_lane("q", "a", LaneOptions::new().running(3)).await.unwrap_err();
    assert!(message(none).starts_with("queue \"q\" has no lanes"));
    for (lane, says) in
        [("", "1 to 256 bytes"), (&"x".repeat(257), "1 to 256 bytes"), ("a\nb", "without control characters")]
    {
        let said = bench.tenure.enqueue(job("x", 1, 0).lane(lane)).await.unwrap_err().to_string();
        assert!(said.starts_with("lane is") && said.contains(says), "{said}");
    }
    let said = bench.tenure.enqueue(job("a", 1, 0).priority(101)).await.unwrap_err().to_string();
    assert_eq!(said, "priority is 101, but must be -100 to 100; the lower, the sooner");
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    bench.tenure.set_lane("q", "a", LaneOptions::new().running(3)).await.unwrap();
    bench.tenure.enqueue_many((0..5).map(|n| job("a", n, 0))).await.unwrap();
    bench.tenure.enqueue_many((0..5).map(|n| job("b", n, 0))).await.unwrap();
    let by_lane = "SELECT lane, count(*) FROM tenure.lane_slots GROUP BY lane ORDER BY lane";
    assert_eq!(bench.text(by_lane).await, "(a,3)\n(b,1)");
    // A queue without lanes takes the key, and limits nothing.
    let other = JobRequest::new("other", "k", json!({})).lane("a");
    bench.tenure.enqueue_many([other.clone(), other.clone(), other]).await.unwrap();
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'other' AND published_at IS NOT NULL").await, 3);
}

/// The worker with the relay's turn is killed: a lane with a rate goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_with_a_rate_goes_on_when_the_relay_dies() {
    let bench = bench_with(|config: &mut Config| config.timing.relay_every = Duration::from_millis(50)).await;
    bench.tenure.put_lanes("q", Lanes::new().rate(20, SECOND).burst(4)).await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    bench.until("EXISTS (SELECT FROM tenure.turns WHERE turn = 'relay' AND until > clock_timestamp())").await;
    // Another worker has the turn, and is frozen.
    bench
        .execute(
            "UPDATE tenure.turns SET worker_id = 'frozen', until = clock_timestamp() + interval '1 hour'",
        )
        .await;
    tokio::time::sleep(SECOND * 2).await;
    bench.tenure.enqueue_many((0..20).map(|n| job("a", n, 0))).await.unwrap();
    drained(&bench, 20).await;
    worker.stop().await;
}

/// Before the release, and between the release and its message.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_dies_before_or_after_it_released_its_job_loses_nothing() {
    for point in ["enqueued", "released"] {
        let bench = bench().await;
        bench.tenure.setup(&["steps".to_owned()]).await.unwrap();
        bench.tenure.put_lanes("steps", Lanes::new().running(1)).await.unwrap();
        let killed = ("TENURE_FAULT", format!("{point}=kill"));
        let mut producer = Child::start_with(&bench, "enqueue", &[killed]);
        assert_eq!(producer.wait().await, None, "{point}: {}", producer.log());
        let slots = i64::from(point == "released");
        assert_eq!(bench.count("tenure.lane_slots").await, slots, "{point}");
        let handler = |_: serde_json::Value, _: tenure::JobContext| async {};
        let builder = tenure::Worker::builder(&bench.tenure);
        let builder = builder.handle_any(tenure::KindOptions::new(), handler);
        let worker = Running::start(builder.concurrency("steps", 2));
        drained(&bench, 1).await;
        worker.stop().await;
        bench.every_job_is_as_it_must_be().await;
    }
}

/// The worker that has released a job and has not published it is killed, or is frozen and publishes it when the job has
/// long ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_or_freezes_after_it_released_a_job_delays_it_and_runs_it_once() {
    for act in ["kill", "stop"] {
        let bench = bench().await;
        bench.tenure.setup(&["noops".to_owned()]).await.unwrap();
        bench.tenure.put_lanes("noops", Lanes::new().running(1)).await.unwrap();
        let at_release = ("TENURE_FAULT", format!("released={act}"));
        let mut first = Child::start_with(&bench, "noops", &[at_release]);
        let noop = |n| JobRequest::new("noops", "noop", json!(n)).lane("a");
        bench.tenure.enqueue_many((0..3).map(noop)).await.unwrap();
        bench.until_count("tenure.job_history", 1).await;
        let released = "EXISTS (SELECT FROM tenure.lane_slots s JOIN tenure.jobs j ON j.id = s.job_id \
                                 WHERE j.status = 'queued' AND j.published_at IS NOT NULL)";
        bench.until(released).await;
        let second = Child::on(&bench, "two", "noops");
        drained(&bench, 3).await;
        if act == "stop" {
            first.signal(Signal::CONT);
            bench.until_stream_is_empty(Duration::from_secs(20)).await;
        }
        assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'completed'").await, 3, "{act}");
        first.kill().await;
        drop(second);
        bench.every_job_is_as_it_must_be().await;
    }
}

/// A wake for each of a hundred thousand jobs would keep `tend_lanes` from all other lanes.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_wakes_each_of_its_lanes_once() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    let mut user = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = user.begin().await.unwrap();
    let jobs = (0..60).map(|n| job(["a", "b", "c"][n as usize % 3], n, 0));
    bench.tenure.enqueue_many(jobs).tx(&mut tx).await.unwrap();
    // What a part that is rolled back has woken is woken again.
    for (end, lane) in [("ROLLBACK TO part", "d"), ("RELEASE part", "d"), ("RELEASE part", "a")] {
        sqlx::raw_sql("SAVEPOINT part").execute(&mut *tx).await.unwrap();
        bench.tenure.enqueue(job(lane, 1, 0)).tx(&mut tx).await.unwrap();
        sqlx::raw_sql(end).execute(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();
    assert_eq!(bench.text("SELECT lane FROM tenure.lane_wakes ORDER BY lane").await, "(a)\n(b)\n(c)\n(d)");
    assert_eq!(bench.count("tenure.jobs").await, 62);
}
