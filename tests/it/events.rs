//! Events: a job that waits for one holds nothing, and no order of wait, signal, crash and settle loses it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Status, Worker,
    groups::{Signalled, WaitsFor},
    lanes::Lanes,
};
use tokio::sync::Notify;

use crate::harness::{Bench, Running, bench};

fn worker<F, Fut>(bench: &Bench, handler: F) -> Running
where
    F: Fn(Value, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Value, JobError>> + Send + 'static,
{
    Running::start(Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 4))
}

async fn enqueue(bench: &Bench) -> JobId {
    bench.tenure.enqueue(JobRequest::new("q", "k", json!({})).max_attempts(1)).await.unwrap().id
}

async fn until_held(bench: &Bench) {
    bench.until_count("tenure.jobs WHERE status = 'queued' AND publish_at = '9999-01-01Z'", 1).await;
}

async fn printed(bench: &Bench, arguments: &[&str]) -> String {
    String::from_utf8(bench.program(arguments).output().await.unwrap().stdout).unwrap()
}

async fn approval(_: Value, ctx: JobContext) -> Result<Value, JobError> {
    let approval: Value = ctx.event("approved").await?;
    Ok(json!([approval, ctx.attempt()]))
}

/// Times of before lie an hour ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_neither_suspends_a_job_for_ever_nor_starts_it_again_and_again() {
    let bench = bench().await;
    let job = enqueue(&bench).await;
    assert_eq!(bench.tenure.signal(job, "approved", &json!(1)).await.unwrap(), Signalled::Delivered);
    let suspended = async |since: &str| -> f64 {
        let since = format!("clock_timestamp() + interval '{since}'");
        bench.value(&format!("SELECT tenure.suspended_for('{job}', '', 3600, {since})")).await
    };
    let none = 0.0..0.001;
    assert!(none.contains(&suspended("-1 minute").await), "the event came after the attempt had begun");
    assert!(none.contains(&suspended("1 hour").await), "the attempt began before the step");
    bench.execute("UPDATE tenure.effects SET created_at = created_at + interval '1 hour'").await;
    let lasts = suspended("-1 minute").await;
    assert!((1.0..=30.0).contains(&lasts), "the event came before the step: {lasts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_holds_nothing_and_a_signal_runs_it_at_once() {
    let bench = bench().await;
    let running = worker(&bench, approval);
    let job = enqueue(&bench).await;
    until_held(&bench).await;
    bench.until_stream_is_empty(Duration::from_secs(2)).await;
    let waits = bench.tenure.waits_for(&[job]).await.unwrap();
    assert_eq!(waits, [(job, WaitsFor::Event { name: "approved".into(), until: None })]);
    bench.every_job_is_as_it_must_be().await;
    // Another worker, as after a deploy.
    running.stop().await;
    let running = worker(&bench, approval);
    let signalled_at = Instant::now();
    let signal = async |by: &str| bench.tenure.signal(job, "approved", &json!({ "by": by })).await.unwrap();
    assert_eq!(signal("ann").await, Signalled::Delivered);
    // Of two signals, the first counts.
    assert_eq!(signal("bob").await, Signalled::Known);
    let row = bench.until_finished(job).await;
    assert_eq!(row.output, Some(json!([{"by": "ann"}, 1])));
    assert!(signalled_at.elapsed() < Duration::from_secs(5), "{:?}", signalled_at.elapsed());
    assert_eq!(signal("eve").await, Signalled::Finished);
    let unknown = bench.tenure.signal(JobId::generate(), "approved", &()).await.unwrap();
    assert_eq!(unknown, Signalled::NotFound);
    let outcomes = bench.text("SELECT outcome FROM tenure.job_executions_all ORDER BY fencing_token").await;
    assert_eq!(outcomes, "(snoozed)\n(completed)");
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_comes_before_its_wait_is_there() {
    let bench = bench().await;
    let job = enqueue(&bench).await;
    // Before the first attempt, and by SQL.
    let said: String =
        bench.value(&format!("SELECT tenure.signal('{job}', 'approved', '{{\"by\": \"sql\"}}')")).await;
    assert_eq!(said, "signalled");
    bench.every_job_is_as_it_must_be().await;
    let running = worker(&bench, approval);
    let row = bench.until_finished(job).await;
    assert_eq!(row.output, Some(json!([{"by": "sql"}, 1])));
    assert_eq!(bench.count("tenure.job_executions_all").await, 1, "it did not wait");
    bench.every_job_is_as_it_must_be().await;
    running.stop().await;
    // It came before the attempt, which is not woken by it from the wait for another one.
    let running = worker(&bench, async |_: Value, ctx: JobContext| {
        ctx.event::<Value>("approved").await?;
        ctx.event::<Value>("later").await
    });
    let job = bench
        .tenure
        .enqueue(JobRequest::new("q", "k", json!({})).delay(Duration::from_secs(1)))
        .await
        .unwrap()
        .id;
    assert_eq!(bench.tenure.signal(job, "approved", &1).await.unwrap(), tenure::groups::Signalled::Delivered);
    until_held(&bench).await;
    assert_eq!(bench.count(&format!("tenure.job_executions WHERE job_id = '{job}'")).await, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_between_the_wait_and_its_settle_is_not_lost() {
    let bench = bench().await;
    let (waits, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (waits, go) = (waits.clone(), go.clone());
        move |_: Value, ctx: JobContext| {
            let (waits, go) = (waits.clone(), go.clone());
            async move {
                let came = ctx.event::<Value>("approved").await;
                if came.is_err() {
                    waits.notify_one();
                    go.notified().await;
                }
                came
            }
        }
    };
    let running = worker(&bench, handler);
    let job = enqueue(&bench).await;
    waits.notified().await;
    // The attempt has not ended.
    assert_eq!(bench.tenure.signal(job, "approved", &5).await.unwrap(), Signalled::Delivered);
    go.notify_one();
    assert_eq!(bench.until_finished(job).await.output, Some(json!(5)));
    running.stop().await;
}

/// The settle has written the row, and stops before its commit: both signals wait for it, find the job held, and wake it once.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_the_settle_finds_the_job_held() {
    let bench = bench().await;
    bench
        .execute(
            "CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$",
        )
        .await;
    bench
        .execute(
            "CREATE TRIGGER stop AFTER UPDATE ON tenure.jobs FOR EACH ROW
                 WHEN (OLD.status = 'processing' AND NEW.publish_at = '9999-01-01Z') EXECUTE FUNCTION public.stop()",
        )
        .await;
    let mut gate = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(7)").execute(&mut *gate).await.unwrap();
    let running = worker(&bench, approval);
    let job = enqueue(&bench).await;
    let waiting = |what: &str| {
        format!("pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND {what}")
    };
    bench.until_count(&waiting("wait_event = 'advisory'"), 1).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
    let signals = async {
        let (one, other) =
            tokio::join!(bench.tenure.signal(job, "approved", &1), bench.tenure.signal(job, "approved", &2));
        let mut answers = [one.unwrap(), other.unwrap()];
        answers.sort_by_key(|answer| *answer != Signalled::Delivered);
        assert_eq!(answers, [Signalled::Delivered, Signalled::Known]);
    };
    let commit = async {
        bench.until_count(&waiting("query LIKE '%tenure.signal%'"), 2).await;
        gate.commit().await.unwrap();
    };
    tokio::join!(signals, commit);
    assert_eq!(bench.until_finished(job).await.status, Status::Completed);
    let outcomes = bench.text("SELECT outcome FROM tenure.job_executions_all ORDER BY fencing_token").await;
    assert_eq!(outcomes, "(snoozed)\n(completed)");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_with_an_end_ends_once_and_for_all() {
    let bench = bench().await;
    let handler = async |_: Value, ctx: JobContext| {
        let came: Option<Value> = ctx.event_within("approved", Duration::from_millis(1_500)).await?;
        Ok(json!([came, ctx.attempt()]))
    };
    let running = worker(&bench, handler);
    let job = enqueue(&bench).await;
    bench.until_count("tenure.effects WHERE step_kind = 'awaited'", 1).await;
    let row = bench.until_finished(job).await;
    assert_eq!(row.output, Some(json!([null, 1])));
    assert_eq!(bench.count("tenure.effects WHERE step_kind = 'late'").await, 1);
    // In time.
    let job = enqueue(&bench).await;
    bench.until_count(&format!("tenure.effects WHERE job_id = '{job}'"), 1).await;
    assert_eq!(bench.tenure.signal(job, "approved", &true).await.unwrap(), Signalled::Delivered);
    assert_eq!(bench.until_finished(job).await.output, Some(json!([true, 1])));
    running.stop().await;
    // Too late, before the job has run again.
    let running = worker(&bench, async |_: Value, ctx: JobContext| {
        ctx.event_within::<Value>("approved", Duration::from_millis(1)).await?;
        Ok(json!(null))
    });
    bench.tenure.pause_queue("q").await.unwrap();
    let job = enqueue(&bench).await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.effects (job_id, key, fencing_token, result, step_kind, wakes_at)
         VALUES ('{job}', 'approved', 0, 'null', 'awaited', now())"
        ))
        .await;
    assert_eq!(bench.tenure.signal(job, "approved", &true).await.unwrap(), Signalled::Late);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_payloads_that_do_not_fit_are_told() {
    let bench = bench().await;
    let handler = async |_: Value, ctx: JobContext| {
        ctx.step("done", async || Ok(1)).await?;
        let taken = ctx.event::<Value>("done").await.unwrap_err();
        assert!(taken.to_string().contains("another effect"), "{taken}");
        let odd = ctx.event::<Value>("").await.unwrap_err();
        assert!(odd.to_string().contains("the name of an event"), "{odd}");
        ctx.event::<u8>("number").await?;
        Ok(json!(null))
    };
    let job = enqueue(&bench).await;
    assert_eq!(bench.tenure.signal(job, "number", &"text").await.unwrap(), Signalled::Delivered);
    let refused = bench.tenure.signal(job, "a\nb", &()).await.unwrap_err();
    assert!(refused.to_string().starts_with("the name of an event must"), "{refused}");
    let refused = sqlx::query("SELECT tenure.signal($1, repeat('x', 513))")
        .bind(job)
        .execute(&bench.pool)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("513 bytes"), "{refused}");
    let large = "x".repeat(300_000);
    let refused = bench.tenure.signal(job, "large", &large).await.unwrap_err();
    assert!(refused.to_string().contains("300002 bytes"), "{refused}");
    let running = worker(&bench, handler);
    let row = bench.until_finished(job).await;
    assert!(row.last_error.clone().unwrap().contains("does not fit its type"), "{row:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_in_a_lane_frees_it_for_others() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let handler = async |payload: Value, ctx: JobContext| {
        if payload["waits"] == json!(true) { ctx.event("go").await } else { Ok(json!("ran")) }
    };
    let running = worker(&bench, handler);
    let job = |waits| JobRequest::new("q", "k", json!({ "waits": waits })).lane("a").max_attempts(1);
    let waits = bench.tenure.enqueue(job(true)).await.unwrap().id;
    until_held(&bench).await;
    let other = bench.tenure.enqueue(job(false)).await.unwrap().id;
    assert_eq!(bench.until_finished(other).await.status, Status::Completed);
    bench.every_job_is_as_it_must_be().await;
    assert_eq!(bench.tenure.signal(waits, "go", &7).await.unwrap(), Signalled::Delivered);
    assert_eq!(bench.until_finished(waits).await.output, Some(json!(7)));
    bench.until_count("tenure.lane_jobs", 0).await;
    assert_eq!(bench.count("tenure.lane_wakes WHERE at > now() + interval '1 day'").await, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_lane_waits_for_a_job_that_waits() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().ordered()).await.unwrap();
    let handler = async |payload: Value, ctx: JobContext| {
        if payload["waits"] == json!(true) { ctx.event("go").await } else { Ok(json!("ran")) }
    };
    let running = worker(&bench, handler);
    let job = |waits| JobRequest::new("q", "k", json!({ "waits": waits })).lane("a").max_attempts(1);
    let waits = bench.tenure.enqueue(job(true)).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND fencing_token = 1", 1).await;
    let other = bench.tenure.enqueue(job(false)).await.unwrap().id;
    bench.execute("SELECT tenure.tend_lanes(10, true)").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.count(&format!("tenure.jobs WHERE id = '{other}' AND fencing_token = 0")).await, 1);
    // It is due at no time, to people as well.
    let row = bench.tenure.job(waits).await.unwrap().unwrap();
    assert!(row.is_held && row.scheduled_at == row.created_at, "{row:?}");
    let queue = &bench.tenure.queues().await.unwrap()[0];
    assert_eq!((queue.scheduled, queue.held), (0, 2));
    let list = printed(&bench, &["jobs", "list", "--status", "held", "--output", "json"]).await;
    assert!(list.contains(&waits.to_string()), "{list}");
    bench.every_job_is_as_it_must_be().await;
    assert_eq!(bench.tenure.signal(waits, "go", &7).await.unwrap(), Signalled::Delivered);
    assert_eq!(bench.until_finished(waits).await.output, Some(json!(7)));
    assert_eq!(bench.until_finished(other).await.status, Status::Completed);
    running.stop().await;
}

/// Who knows a job's id can tell it of an event of any name, also of a step or an effect that has not run yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_with_the_name_of_something_else_takes_nothing_from_it() {
    let bench = bench().await;
    let job = enqueue(&bench).await;
    for name in ["step", "once", "nap", "own", "go"] {
        assert_eq!(bench.tenure.signal(job, name, &1).await.unwrap(), Signalled::Delivered);
        assert_eq!(bench.tenure.signal(job, name, &2).await.unwrap(), Signalled::Known);
    }
    let handler = async |payload: Value, ctx: JobContext| {
        if payload["is_own"] == json!(true) {
            return Ok(json!(3));
        }
        let step: i32 = ctx.step("step", async || Ok(4)).await?;
        let once: i32 = ctx.once("once", async |_| Ok(5)).await?;
        ctx.sleep("nap", Duration::from_millis(300)).await?;
        let own: Vec<i32> = ctx.all("own", [JobRequest::new("q", "k", json!({ "is_own": true }))]).await?;
        let go: i32 = ctx.event("go").await?;
        Ok(json!([step, once, own, go]))
    };
    let running = worker(&bench, handler);
    assert_eq!(bench.until_finished(job).await.output, Some(json!([4, 5, [3], 1])));
    let shown = printed(&bench, &["jobs", "show", &job.to_string()]).await;
    assert!(shown.contains("go") && !shown.contains('\u{1}'), "{shown}");
    // A name that two ask for is still refused.
    let twice = worker(&bench, async |_: Value, ctx: JobContext| {
        ctx.event::<Value>("name").await?;
        ctx.step("name", async || Ok(json!(1))).await
    });
    running.stop().await;
    let job = enqueue(&bench).await;
    assert_eq!(bench.tenure.signal(job, "name", &1).await.unwrap(), tenure::groups::Signalled::Delivered);
    assert_eq!(bench.until_finished(job).await.status, Status::Failed);
    twice.stop().await;
}

/// The handler has asked for the pause.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_does_not_end_the_pause_before_a_retry() {
    for lanes in [false, true] {
        let bench = bench().await;
        if lanes {
            bench.tenure.put_lanes("q", Lanes::new()).await.unwrap();
        }
        let handler = async |_: Value, ctx: JobContext| {
            if ctx.attempt() == 1 {
                ctx.event::<Value>("go").await.ok();
                return Err(JobError::retry_after(Duration::from_secs(3), "later"));
            }
            ctx.event("go").await
        };
        let running = worker(&bench, handler);
        let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!({}))).await.unwrap().id;
        bench.until_count("tenure.job_executions WHERE outcome = 'retried'", 1).await;
        assert_eq!(bench.tenure.waits_for(&[job]).await.unwrap(), []);
        assert_eq!(bench.tenure.signal(job, "go", &1).await.unwrap(), Signalled::Delivered);
        assert_eq!(bench.until_finished(job).await.output, Some(json!(1)));
        let sql = "SELECT extract(epoch FROM h.started_at - e.finished_at)::float8 FROM tenure.job_history h
                     JOIN tenure.job_executions e ON e.job_id = h.id";
        let paused: f64 = bench.value(sql).await;
        assert!(paused > 2.9, "{paused} s");
        running.stop().await;
    }
}

/// Neither would go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_would_wait_for_jobs_behind_it_in_its_ordered_lane_is_refused_by_name() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().ordered()).await.unwrap();
    let handler = async |payload: Value, ctx: JobContext| {
        if payload["is_own"] == json!(true) {
            return Ok(json!(3));
        }
        let own =
            JobRequest::new("q", "k", json!({ "is_own": true })).lane(payload["lane"].as_str().unwrap());
        Ok(json!(ctx.all::<i32, _>("own", [own]).await?))
    };
    let running = worker(&bench, handler);
    let job = |lane| JobRequest::new("q", "k", json!({ "lane": lane })).lane("a");
    let behind = bench.tenure.enqueue(job("a")).await.unwrap().id;
    let row = bench.until_finished(behind).await;
    let error = row.last_error.unwrap();
    let says = r#"neither would go on; give it another lane than "a", or another queue than "q""#;
    assert!(error.contains(says), "{error}");
    let beside = bench.tenure.enqueue(job("b")).await.unwrap().id;
    assert_eq!(bench.until_finished(beside).await.output, Some(json!([3])));
    assert_eq!(
        bench.count("tenure.job_edges WHERE after = (SELECT id FROM tenure.dead_letter_jobs)").await,
        0
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_one_of_several_is_woken_by_each() {
    let bench = bench().await;
    let handler = async |payload: Value, ctx: JobContext| {
        let first = ctx.event::<Value>("first").await;
        if first.is_ok() {
            return first;
        }
        let second = ctx.event::<Value>("second").await;
        if second.is_ok() {
            return second;
        }
        if payload["naps"] == json!(true) && ctx.sleep("nap", Duration::from_millis(1_500)).await.is_ok() {
            return Ok(json!("slept"));
        }
        // Of the three waits, the attempt ends with this one.
        first
    };
    let running = worker(&bench, handler);
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!({}))).await.unwrap().id;
    until_held(&bench).await;
    assert_eq!(bench.tenure.signal(job, "second", &2).await.unwrap(), Signalled::Delivered);
    assert_eq!(bench.until_finished(job).await.output, Some(json!(2)));
    // The sleep ends before the attempt is settled, or after it.
    let naps = bench.tenure.enqueue(JobRequest::new("q", "k", json!({"naps": true}))).await.unwrap().id;
    assert_eq!(bench.until_finished(naps).await.output, Some(json!("slept")));
    running.stop().await;
}

/// A debounced job that waits begins anew with the new payload.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_is_replaced() {
    for lanes in [false, true] {
        is_replaced(lanes).await;
    }
}

async fn is_replaced(lanes: bool) {
    let bench = bench().await;
    if lanes {
        bench.tenure.put_lanes("q", Lanes::new().ordered()).await.unwrap();
    }
    let handler = async |payload: Value, ctx: JobContext| {
        let came: Value = ctx.event(payload["event"].as_str().unwrap()).await?;
        Ok(json!([payload["event"], came]))
    };
    let running = worker(&bench, handler);
    let job = |event| JobRequest::new("q", "k", json!({ "event": event })).replace("key");
    let id = bench.tenure.enqueue(job("old")).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND fencing_token = 1", 1).await;
    let again = bench.tenure.enqueue(job("new")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (id, true));
    bench.until_count("tenure.effects WHERE key = 'new' AND step_kind = 'awaited'", 1).await;
    assert_eq!(bench.count("tenure.effects").await, 1);
    bench.until_count("tenure.jobs WHERE status = 'queued' AND fencing_token = 2", 1).await;
    assert_eq!(bench.tenure.signal(id, "new", &1).await.unwrap(), Signalled::Delivered);
    assert_eq!(bench.until_finished(id).await.output, Some(json!(["new", 1])));
    running.stop().await;
}

/// What ends while the attempt goes on is not waited for afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_or_a_step_that_ends_during_an_attempt_of_several_waits_wakes_the_job() {
    let bench = bench().await;
    let go = Arc::new(Notify::new());
    let handler = {
        let go = go.clone();
        move |payload: Value, ctx: JobContext| {
            let go = go.clone();
            async move {
                if payload["how"] == json!("part") {
                    return Ok(json!("part"));
                }
                let never = ctx.event::<Value>("never").await;
                if payload["how"] == json!("sleeps") {
                    if ctx.sleep("nap", Duration::from_millis(50)).await.is_ok() {
                        return Ok(json!("slept"));
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                } else {
                    let parts = [JobRequest::new("q", "k", json!({"how": "part"}))];
                    if let Ok(outputs) = ctx.all::<Value, _>("parts", parts).await {
                        return Ok(json!(outputs));
                    }
                    go.notified().await;
                }
                never
            }
        }
    };
    let running = worker(&bench, handler);
    let job = async |how: &str| {
        bench.tenure.enqueue(JobRequest::new("q", "k", json!({ "how": how }))).await.unwrap().id
    };
    let sleeps = job("sleeps").await;
    assert_eq!(bench.until_finished(sleeps).await.output, Some(json!("slept")));
    let asks = job("asks").await;
    bench.until_count("tenure.job_edges WHERE state = 'completed'", 1).await;
    bench.until_count("tenure.group_ends", 0).await;
    go.notify_one();
    assert_eq!(bench.until_finished(asks).await.output, Some(json!(["part"])));
    running.stop().await;
}
