//! Schedules: one job per tick, under many workers, deaths and wrong clocks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{
    EnqueueError, JobContext, JobError, JobRequest, KindOptions, Worker,
    schedules::{MissedTicks, Overlap, Schedule, ScheduleError},
};

use tokio::sync::Notify;

use crate::harness::{Bench, Child, Running, bench, bench_with, bench_with_servers, statement};

fn every_second(name: &str) -> Schedule {
    Schedule::new(name, "* * * * * *", JobRequest::new("q", "tick", json!({"n": 1}))).tick_field("at")
}

fn worker(bench: &Bench) -> Running {
    Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 5),
    )
}

/// Fails unless every job has its own tick, with none missing from the first to the last.
async fn one_a_tick(bench: &Bench) {
    let ticks = "SELECT (payload->>'at')::timestamptz AS at FROM tenure.all_jobs WHERE kind = 'tick'";
    let (jobs, ticks, span): (i64, i64, i64) = (
        bench.value(&format!("SELECT count(*) FROM ({ticks}) t")).await,
        bench.value(&format!("SELECT count(DISTINCT at) FROM ({ticks}) t")).await,
        bench
            .value(&format!("SELECT extract(epoch FROM max(at) - min(at))::bigint + 1 FROM ({ticks}) t"))
            .await,
    );
    assert_eq!((jobs, ticks), (span, span));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_workers_one_enqueues_the_job_of_a_tick() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut child = Child::start(&bench, "idle");
    let workers: Vec<_> = (0..5).map(|_| worker(&bench)).collect();
    child.until_log("worker started").await;
    let done = bench.tenure.put_schedule(every_second("s").missed(MissedTicks::All)).await.unwrap();
    assert!(done.is_new);
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 4").await;
    child.signal(Signal::STOP);
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 6").await;
    child.signal(Signal::CONT);
    child.kill().await;
    // A second put, as by a program that starts, moves nothing.
    assert!(!bench.tenure.put_schedule(every_second("s").missed(MissedTicks::All)).await.unwrap().is_new);
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 8").await;
    bench.tenure.pause_schedule("s").await.unwrap();
    for worker in workers {
        worker.stop().await;
    }
    one_a_tick(&bench).await;
    let last = bench.text("SELECT s.last_job_id = j.id AND s.last_tick_at = (j.payload->>'at')::timestamptz FROM tenure.schedules s, LATERAL (SELECT * FROM tenure.all_jobs ORDER BY payload->>'at' DESC LIMIT 1) j").await;
    assert_eq!(last, "(t)");
}

/// The worker asks for due ticks every five seconds here, and has just asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_added_or_resumed_has_its_next_tick_in_time() {
    let bench = bench_with(|config| {
        config.timing = tenure::Timing::DEFAULT;
        config.timing.relay_every = Duration::from_millis(500);
        config.timing.renew_every = Duration::from_secs(60);
        config.timing.scan_every = Duration::from_secs(60);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let worker = worker(&bench);
    let asked = || async { bench.text("SELECT until FROM tenure.turns WHERE turn = 'relay'").await };
    bench.until("EXISTS (SELECT FROM tenure.turns WHERE turn = 'relay' AND until > clock_timestamp())").await;
    for step in ["added", "resumed"] {
        let before = asked().await;
        while asked().await == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let ticks = bench.count("tenure.all_jobs").await;
        if step == "added" {
            bench.tenure.put_schedule(every_second("s")).await.unwrap();
        } else {
            bench.tenure.resume_schedule("s").await.unwrap();
        }
        let began = std::time::Instant::now();
        bench.until(&format!("(SELECT count(*) FROM tenure.all_jobs) > {ticks}")).await;
        // The tick is due in a second; the worker would have asked only after four or more.
        assert!(began.elapsed() < Duration::from_secs(3), "{step}: {:?}", began.elapsed());
        bench.tenure.pause_schedule("s").await.unwrap();
    }
    worker.stop().await;
}

/// The test forces the interleaving: the tick's statement runs twice with the values that both had read.
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_was_taken_is_not_taken_again() {
    let bench = bench().await;
    bench.tenure.put_schedule(every_second("s")).await.unwrap();
    let tick = statement("tick");
    let due: chrono::DateTime<chrono::Utc> = bench.value("SELECT next_at FROM tenure.schedules").await;
    let take = move || {
        sqlx::query(tick)
            .bind(vec!["s"])
            .bind(vec![due])
            .bind(vec![Some(due + chrono::TimeDelta::seconds(1))])
            .bind(vec![uuid::Uuid::now_v7()])
            .bind(vec![due])
            .bind(vec![1_i64])
            .bind(false)
    };
    let mut first = bench.pool.begin().await.unwrap();
    assert_eq!(take().fetch_all(&mut *first).await.unwrap().len(), 1);
    let waits = tokio::spawn({
        let pool = bench.pool.clone();
        async move { take().fetch_all(&pool).await.unwrap().len() }
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    first.commit().await.unwrap();
    assert_eq!(waits.await.unwrap(), 0);
    assert_eq!(bench.count("tenure.jobs").await, 1);
    // A statement that would move the schedule back takes no tick.
    let back = sqlx::query(tick)
        .bind(vec!["s"])
        .bind(vec![due + chrono::TimeDelta::seconds(1)])
        .bind(vec![Some(due - chrono::TimeDelta::hours(1))])
        .bind(vec![uuid::Uuid::now_v7()])
        .bind(vec![due])
        .bind(vec![1_i64])
        .bind(false);
    assert!(back.fetch_all(&bench.pool).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_ticks_are_skipped_made_up_once_or_all_made_up() {
    let bench = bench().await;
    for missed in [MissedTicks::Skip, MissedTicks::Once, MissedTicks::All] {
        let job = JobRequest::new("q", missed.as_str(), json!({}));
        let schedule = Schedule::new(missed.as_str(), "*/10 * * * *", job).missed(missed).tick_field("at");
        bench.tenure.put_schedule(schedule).await.unwrap();
    }
    // As if no worker had run for an hour, which ended two minutes after a tick.
    bench
        .execute(
            "UPDATE tenure.schedules SET next_at = next_at - interval '70 min'
              WHERE extract(minute FROM now())::int % 10 BETWEEN 0 AND 9",
        )
        .await;
    let due: i64 = bench
        .value("SELECT (extract(epoch FROM now() - min(next_at))::bigint / 600) + 1 FROM tenure.schedules")
        .await;
    let late: bool = bench.value("SELECT extract(epoch FROM now())::bigint % 600 > 75").await;
    let worker = worker(&bench);
    bench.until("(SELECT bool_and(next_at > now()) FROM tenure.schedules)").await;
    bench.until_count("tenure.job_history WHERE kind = 'all'", due).await;
    bench.until_count("tenure.job_history WHERE kind = 'once'", 1).await;
    // Less than a minute late, a tick does not count as missed.
    if late {
        assert_eq!(bench.count("tenure.all_jobs WHERE kind = 'skip'").await, 0);
    }
    let ticks: i64 =
        bench.value("SELECT count(DISTINCT payload->>'at') FROM tenure.job_history WHERE kind = 'all'").await;
    assert_eq!(ticks, due);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_schedule_has_no_ticks_and_a_resumed_one_goes_on_with_the_next() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let worker = worker(&bench);
    bench.tenure.put_schedule(every_second("s").missed(MissedTicks::All)).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.job_history)").await;
    for was_paused in [false, true] {
        let outcome = bench.tenure.pause_schedule("s").await.unwrap();
        assert_eq!((outcome.was_paused, outcome.next_at), (was_paused, None));
    }
    let put = bench.tenure.put_schedule(every_second("s").missed(MissedTicks::All)).await.unwrap();
    assert!(put.paused_at.is_some() && !put.is_new, "a paused schedule stays paused: {put:?}");
    let paused: chrono::DateTime<chrono::Utc> = bench.value("SELECT paused_at FROM tenure.schedules").await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let resumed = bench.tenure.resume_schedule("s").await.unwrap();
    assert!(resumed.was_paused);
    let again = bench.tenure.resume_schedule("s").await.unwrap();
    assert!(!again.was_paused && again.next_at >= resumed.next_at, "{again:?}");
    let resumed = resumed.next_at.unwrap();
    bench
        .until(&format!(
            "EXISTS (SELECT FROM tenure.job_history WHERE (payload->>'at')::timestamptz >= '{resumed}')"
        ))
        .await;
    let between = format!(
        "tenure.all_jobs WHERE (payload->>'at')::timestamptz > '{paused}' AND (payload->>'at')::timestamptz < '{resumed}'"
    );
    assert_eq!(bench.count(&between).await, 0);
    assert!(bench.tenure.remove_schedule("s").await.unwrap());
    assert!(!bench.tenure.remove_schedule("s").await.unwrap());
    let after = bench.count("tenure.all_jobs").await;
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(bench.count("tenure.all_jobs").await, after);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_postgres_costs_no_tick_and_repeats_none() {
    let mut bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let workers: Vec<_> = (0..3).map(|_| worker(&bench)).collect();
    bench.tenure.put_schedule(every_second("s").missed(MissedTicks::All)).await.unwrap();
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 2").await;
    let postgres = &mut bench.own.as_mut().unwrap().postgres;
    postgres.kill();
    tokio::time::sleep(Duration::from_secs(2)).await;
    postgres.restart().unwrap();
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 8").await;
    bench.tenure.pause_schedule("s").await.unwrap();
    bench.until("NOT EXISTS (SELECT FROM tenure.jobs)").await;
    one_a_tick(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_schedule_is_refused_with_what_to_write() {
    let bench = bench_with(|config| config.payload_bytes_max = 100).await;
    let job = || JobRequest::new("q", "k", json!({}));
    let put = async |schedule: Schedule| bench.tenure.put_schedule(schedule).await.unwrap_err();
    for (schedule, said) in [
        (Schedule::new("s", "0 0 30 2 *", job()), "no tick in the future"),
        (Schedule::new("s", "* * *", job()), "is not a cron expression"),
        (Schedule::new("s", "0 3 * * *", job()).time_zone("Berlin"), "Europe/Berlin"),
        (Schedule::new("a b", "0 3 * * *", job()), "1 to 64 of"),
        (
            Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))).tick_field("at"),
            "JSON object",
        ),
        (Schedule::new("s", "0 3 * * *", job().unique_key("u")), "its own job"),
        (Schedule::new("s", "0 3 * * *", job().delay(Duration::from_secs(1))), "its own job"),
    ] {
        let error = put(schedule).await.to_string();
        assert!(error.contains(said), "{error}");
    }
    let large = JobRequest::new("q", "k", json!({"text": "x".repeat(200)}));
    let error = put(Schedule::new("s", "0 3 * * *", large)).await;
    assert!(matches!(error, ScheduleError::Job(EnqueueError::TooLarge { .. })), "{error}");
    let missing = bench.tenure.pause_schedule("s").await.unwrap_err();
    assert!(matches!(&missing, ScheduleError::NotFound { .. }), "{missing}");
    assert_eq!(bench.count("tenure.schedules").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_adds_lists_pauses_resumes_and_removes_schedules() {
    let bench = bench().await;
    let run = async |arguments: &[&str], code: i32| {
        let output = bench.program(arguments).output().await.unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        text
    };
    let add = ["schedules", "add", "nightly", "0 3 * * *", "q", "report", "{\"a\": 1}"];
    assert!(
        run(&[&add[..], &["--time-zone", "Asia/Tokyo", "--missed", "all"]].concat(), 0)
            .await
            .contains("18:00:00")
    );
    assert!(run(&add, 1).await.contains("--replace"));
    assert!(run(&[&add[..], &["--replace"]].concat(), 0).await.contains("is changed"));
    let listed: Value =
        serde_json::from_str(&run(&["schedules", "list", "--output", "json"], 0).await).unwrap();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["time_zone"], &listed[0]["payload"]),
        (&json!("nightly"), &json!("UTC"), &json!({"a": 1}))
    );
    run(&["schedules", "pause", "nightly"], 0).await;
    assert!(run(&["schedules", "list"], 0).await.contains("paused"));
    assert!(run(&["schedules", "resume", "nightly"], 0).await.contains("03:00:00"));
    // An unknown name keeps none of the others from its turn; an invalid one, all of them.
    for (act, done) in [("pause", "is paused"), ("resume", "is resumed"), ("remove", "is removed")] {
        let invalid = run(&["schedules", act, "nightly", "a.b"], 2).await;
        assert!(invalid.contains("not valid") && !invalid.contains(done), "{invalid}");
        let text = run(&["schedules", act, "other", "nightly"], 1).await;
        assert!(
            text.contains("no schedule \"other\"") && text.contains(&format!("nightly {done}")),
            "{text}"
        );
    }
    assert!(run(&["schedules", "remove", "nightly"], 1).await.contains("no schedule \"nightly\""));
    for (arguments, said) in [
        (["schedules", "add", "s", "0 3 * * *", "q", "k", "1", "--time-zone", "Mars"].as_slice(), "IANA"),
        (&["schedules", "add", "s", "0 0 30 2 *", "q", "k", "1"], "no tick in the future"),
        (&["schedules", "add", "s", "x", "q", "k", "1"], "not a cron expression"),
        (
            &["schedules", "add", "s", "0 3 * * *", "q", "k", "1", "--missed", "some"],
            "possible values: skip, once, all",
        ),
    ] {
        let text = run(arguments, 2).await;
        assert!(text.contains(said), "{text}");
    }
}

/// The schedule's tick stays due: it is tried again and again, and the other schedules tick.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_this_version_cannot_read_is_tried_once_a_second() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench
        .execute(
            "INSERT INTO tenure.schedules (name, queue, kind, payload, max_attempts, cron, time_zone, missed, next_at) \
             VALUES ('unread', 'q', 'k', '{}', 5, '* * * * *', 'Moon/Tycho', 'skip', now() - interval '1 min')",
        )
        .await;
    let mut worker = Child::start(&bench, "idle");
    let said = "cannot parse a schedule";
    worker.until_log(said).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let times = worker.log().matches(said).count();
    assert!((2..=6).contains(&times), "{times} times in some three seconds");
}

/// Makes the next tick of every schedule due now.
async fn tick_now(bench: &Bench) {
    bench.execute("UPDATE tenure.schedules SET next_at = date_trunc('second', now())").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_during_the_last_job_follows_the_policy_for_overlaps() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let go = Arc::new(Notify::new());
    let permission = go.clone();
    // The first job of each kind runs until it may end, or is cancelled.
    let handler = move |of: Value, ctx: JobContext| {
        let permission = permission.clone();
        async move {
            if ctx.token() == 1 && of["waits"] == json!(true) {
                tokio::select! {
                    () = permission.notified() => {}
                    _ = ctx.cancelled() => return Err(JobError::msg("stopped")),
                }
            }
            Ok(())
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 20);
    let worker = Running::start(worker);
    for policy in Overlap::ALL {
        let job = JobRequest::new("q", policy.as_str(), json!({ "waits": true }));
        // Once a year, so that no tick of its own comes.
        let schedule = Schedule::new(policy.as_str(), "0 3 1 1 *", job).overlap(policy);
        bench.tenure.put_schedule(schedule).await.unwrap();
    }
    tick_now(&bench).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 4).await;
    tick_now(&bench).await;
    bench.until_count("tenure.all_jobs WHERE kind = 'allow'", 2).await;
    bench.until_count("tenure.all_jobs WHERE kind = 'cancel'", 2).await;
    bench.until_count("tenure.job_history WHERE kind = 'cancel' AND status = 'cancelled'", 1).await;
    bench.until("(SELECT next_at > now() FROM tenure.schedules WHERE name = 'skip')").await;
    assert_eq!(bench.count("tenure.all_jobs WHERE kind = 'skip'").await, 1);
    // The tick waits, and comes when the job has ended.
    assert_eq!(bench.count("tenure.schedules WHERE name = 'queue' AND next_at <= now()").await, 1);
    assert_eq!(bench.count("tenure.all_jobs WHERE kind = 'queue'").await, 1);
    while bench.count("tenure.jobs WHERE kind = 'queue'").await > 0
        && bench.count("tenure.all_jobs WHERE kind = 'queue'").await < 2
    {
        go.notify_waiters();
    }
    bench.until_count("tenure.all_jobs WHERE kind = 'queue'", 2).await;
    bench.until("(SELECT next_at > now() FROM tenure.schedules WHERE name = 'queue')").await;
    // Without a live job, each policy enqueues one.
    while bench.count("tenure.jobs").await > 0 {
        go.notify_waiters();
    }
    tick_now(&bench).await;
    bench.until_count("tenure.all_jobs WHERE kind = 'skip'", 2).await;
    bench.until_count("tenure.all_jobs WHERE kind = 'cancel'", 3).await;
    assert_eq!(bench.count("tenure.job_history WHERE status = 'cancelled'").await, 1);
    let listed = bench.program(&["schedules", "list", "--output", "json"]).output().await.unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let overlaps: Vec<_> = listed.as_array().unwrap().iter().map(|of| &of["overlap"]).collect();
    assert_eq!(overlaps, ["allow", "cancel", "queue", "skip"]);
    worker.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_ticks_of_a_schedule_without_overlap_come_one_after_the_other() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let job = JobRequest::new("q", "k", json!({}));
    let schedule = Schedule::new("s", "*/10 * * * *", job).missed(MissedTicks::All).overlap(Overlap::Queue);
    bench.tenure.put_schedule(schedule.tick_field("at")).await.unwrap();
    bench.execute("UPDATE tenure.schedules SET next_at = next_at - interval '40 min'").await;
    let due: i64 = bench
        .value("SELECT (extract(epoch FROM now() - min(next_at))::bigint / 600) + 1 FROM tenure.schedules")
        .await;
    let most = Arc::new(AtomicUsize::new(0));
    let running = Arc::new(AtomicUsize::new(0));
    let (of_most, of_running) = (most.clone(), running.clone());
    let handler = move |_: Value, _: JobContext| {
        let (most, running) = (of_most.clone(), of_running.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            running.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 20);
    let worker = Running::start(worker);
    bench.until_count("tenure.job_history", due).await;
    let ticks: i64 = bench.value("SELECT count(DISTINCT payload->>'at') FROM tenure.job_history").await;
    assert_eq!((ticks, most.load(Ordering::SeqCst)), (due, 1));
    worker.stop().await;
}
