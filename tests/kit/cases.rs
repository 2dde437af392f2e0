//! What a client does while nothing goes wrong around it.

use std::time::Duration;

use serde_json::json;
use tenure::{
    JobRequest, Status,
    groups::{OnFailure, Signalled},
};
use tokio::time::sleep;

use super::{
    Client,
    world::{QUEUE, SOON, World, shown, until_event},
};

/// The one row of a worker of the queue.
const ROW: &str = "tenure.workers WHERE worker_id LIKE 'q/%'";

pub async fn hello(client: Client) {
    let world = World::patient(client).await;
    world.watch().await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    let row = world.bench.text(&format!("SELECT hostname <> '', pid, slots, queues, version <> '', language <> '', probe_subject <> '' FROM {ROW}")).await;
    assert_eq!(row, format!("(t,{},4,{{{QUEUE}}},t,t,t)", worker.pid()), "the row of the worker");
    // As another worker asks for it, once its row is old.
    let subject: String = world.bench.value(&format!("SELECT probe_subject FROM {ROW}")).await;
    let nats = async_nats::connect(&world.bench.config.nats_url).await.unwrap();
    let probe = async_nats::Request::new().timeout(Some(Duration::from_secs(2)));
    let answer = nats.send_request(subject, probe).await;
    assert!(answer.is_ok(), "a probe was not answered: {answer:?}");
    world.until_requests("beat", 2).await;
}

pub async fn hello_again(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    assert_eq!(world.run("echo", json!(1)).await.output, Some(json!(1)));
    world.bench.execute(&format!("DELETE FROM {ROW}")).await;
    world.bench.until_within(&format!("EXISTS (SELECT FROM {ROW})"), SOON).await;
    assert_eq!(world.run("echo", json!(2)).await.output, Some(json!(2)), "{}", worker.log());
}

pub async fn payload(client: Client) {
    let world = World::patient(client).await;
    let _gateways = (world.gateway(), world.gateway());
    let worker = world.ready(8).await;
    for odd in [
        json!({"text": "ü \u{1} \" \\ 😀\n", "n": [1, -0.5, 1e100, null, true], "": {}}),
        json!("text"),
        json!(-7),
        json!([]),
        json!({"deep": [[[[{"a": [1.5, "  two  "]}]]]]}),
    ] {
        let row = world.run("echo", odd.clone()).await;
        assert_eq!(row.output, Some(odd), "{}", worker.log());
    }
}

pub async fn parts(client: Client) {
    let world = World::with(client, |config| config.payload_bytes_max = 2 << 20).await;
    world.watch().await;
    let _gateways = (world.gateway(), world.gateway());
    let worker = world.ready(8).await;
    // With what is around it, an answer of NATS cannot hold it. A character of several bytes may lie on a border.
    let payload = json!({"every_ms": 10, "pad": "€".repeat(348_000), "reports": 2});
    let row = world.run("report", payload).await;
    assert_eq!(
        (row.status, row.output),
        (Status::Completed, Some(json!({"from": null}))),
        "{}",
        worker.log()
    );
    assert!(!world.requests("payload").is_empty(), "no part was asked for");
}

pub async fn confirm(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let worker = world.ready(8).await;
    let row = world.run("sleep", json!({"ms": 4_500, "every_ms": 50})).await;
    assert_eq!(row.output, Some(json!("slept")), "{}", worker.log());
    assert_eq!(world.outcomes(row.id).await, "(completed)", "how the attempts ended");
}

pub async fn slots(client: Client) {
    let world = World::patient(client).await;
    world.watch().await;
    let _gateway = world.gateway();
    let worker = world.ready(2).await;
    let mut jobs = Vec::new();
    for _ in 0..8 {
        jobs.push(world.enqueue("sleep", json!({"ms": 400, "every_ms": 50})).await);
    }
    let mut most = 0;
    loop {
        let running: i64 =
            world.bench.count("tenure.jobs WHERE status = 'processing' AND worker_id LIKE 'q/%'").await;
        most = most.max(running);
        let all = shown(&worker);
        let [began, ended] =
            ["began", "settled"].map(|event| all.iter().filter(|line| line["event"] == json!(event)).count());
        assert!(began <= ended + 2, "{began} handlers began and {ended} have ended, in two slots");
        if ended == jobs.len() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(most, 2, "the most jobs at once in two slots");
    let asked = world.requests("take").iter().filter_map(|take| take["slots"].as_u64()).max();
    assert_eq!(asked, Some(2), "the most slots that a take asked for");
}

pub async fn key(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let _worker = world.ready(2).await;
    let row = world.run("once_key", json!({})).await;
    let key = format!("{}/x", row.id);
    assert_eq!(row.output, Some(json!({"key": key, "again": key})), "the key of an effect");
}

pub async fn progress(client: Client) {
    const EVERY: Duration = Duration::from_millis(500);
    let world = World::with(client, |config| config.timing.flush_every = EVERY).await;
    world.watch().await;
    let _gateway = world.gateway();
    let worker = world.ready(2).await;
    let row = world.run("report", json!({"reports": 60, "every_ms": 50})).await;
    assert_eq!(row.output, Some(json!({"from": null})), "{}", worker.log());
    let row = (row.stage.as_deref(), row.progress, row.message.as_deref());
    assert_eq!(row, (Some("working"), Some(100.0), Some("60 of 60")), "the last progress in the row");
    // A slow machine takes longer for the handler's sleeps, and sends more of them.
    let (reports, ran) = (world.requests("report").len(), Duration::from_secs(6));
    let most = usize::try_from(ran.as_millis() / EVERY.as_millis()).unwrap();
    assert!((2..=most).contains(&reports), "{reports} reports in 3 s, at most one each {EVERY:?}");
}

pub async fn checkpoint(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let mut first = world.ready(2).await;
    let (job, other) = (
        world.enqueue("resume", json!({})).await,
        world.enqueue("sleep", json!({"ms": 60_000, "every_ms": 50})).await,
    );
    // Its handler kills the whole process.
    first.wait().await;
    let second = world.ready(2).await;
    let row = world.ended(job).await;
    assert_eq!((row.attempt, row.output), (2, Some(json!({"from": {"i": 3}}))), "{}", second.log());
    until_event(&second, "began", other).await;
    world.bench.tenure.cancel(other).await.unwrap();
    world.ended(other).await;
    world.bench.every_job_is_as_it_must_be().await;
}

pub async fn outcomes(client: Client) {
    let world = World::patient(client).await;
    let _gateways = (world.gateway(), world.gateway());
    let worker = world.ready(8).await;
    let again = |attempt: i32| Some(json!({"attempt": attempt}));
    for (kind, payload, status, output, ends) in [
        (
            "report",
            json!({"reports": 3, "every_ms": 80}),
            Status::Completed,
            Some(json!({"from": null})),
            "(completed)",
        ),
        ("fail", json!({}), Status::Failed, None, "(failed)"),
        ("snooze", json!({"ms": 10}), Status::Completed, again(1), "(snoozed)\n(completed)"),
        ("cancel", json!({}), Status::Cancelled, None, "(cancelled)"),
        ("sleep", json!({"ms": 200, "every_ms": 50}), Status::Completed, Some(json!("slept")), "(completed)"),
        ("retry", json!({"after_ms": 300}), Status::Completed, again(2), "(retried)\n(completed)"),
    ] {
        let row = world.run(kind, payload).await;
        assert_eq!((row.status, &row.output), (status, &output), "{kind}: {row:?}\n{}", worker.log());
        assert_eq!(world.outcomes(row.id).await, ends, "how the attempts of {kind} ended");
        let owner = row.worker_id.unwrap_or_default();
        assert!(owner.starts_with("q/"), "{owner}");
    }
    for (kind, payload, least, most) in [
        ("retry", json!({"after_ms": 700_000}), 690, 710),
        ("retry", json!({}), 1, 12),
        ("error", json!({}), 1, 12),
    ] {
        let job = world.enqueue(kind, payload).await;
        world
            .bench
            .until_within(
                &format!("(SELECT count(*) FROM tenure.job_executions WHERE job_id = '{job}') = 1"),
                SOON,
            )
            .await;
        let sql = format!(
            "SELECT extract(epoch FROM scheduled_at - now())::int FROM tenure.jobs WHERE id = '{job}' AND attempt = 1"
        );
        let due: i32 = world.bench.value(&sql).await;
        assert!((least..=most).contains(&due), "{kind} is due again in {due} s, not {least} to {most}");
        world.bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
        let row = world.ended(job).await;
        assert_eq!((row.status, row.output), (Status::Completed, again(2)), "{kind}");
        if kind == "error" {
            let sql = format!("SELECT error FROM tenure.job_executions WHERE job_id = '{job}'");
            let error = world.bench.text(&sql).await;
            assert!(error.contains("boom"), "the error of an attempt: {error}");
        }
    }
    world.bench.until_stream_is_empty(SOON).await;
}

pub async fn steps(client: Client) {
    let world = World::patient(client).await;
    let _gateways = (world.gateway(), world.gateway());
    // One slot: a job that kept it would wait for its own parts for ever.
    let mut first = world.ready(1).await;
    let job = world.enqueue("steps", json!({"ms": 300, "parts": [3, 1, 2]})).await;
    let waits =
        format!("EXISTS (SELECT FROM tenure.effects WHERE job_id = '{job}' AND step_kind = 'awaited')");
    world.bench.until_within(&waits, SOON).await;
    assert_eq!(
        world.bench.tenure.signal(job, "go", &json!({"by": "kit"})).await.unwrap(),
        Signalled::Delivered
    );
    let row = world.ended(job).await;
    let output = row.output.unwrap_or_default();
    let expected = json!({"one": {"token": 1}, "go": {"by": "kit"}, "parts": [{"n": 3}, {"n": 1}, {"n": 2}],
                          "late": "late", "attempt": 1, "token": output["token"]});
    assert_eq!(output, expected, "{}", first.log());
    assert!(output["token"].as_i64() > Some(3), "it was suspended at each wait: {output}");
    let others = format!(
        "tenure.job_executions_all WHERE job_id = '{job}' AND outcome NOT IN ('snoozed', 'completed')"
    );
    assert_eq!(world.bench.count(&others).await, 0, "attempts that ended in another way");

    let job = world.enqueue("steps_crash", json!({})).await;
    first.wait().await;
    let second = world.ready(1).await;
    let row = world.ended(job).await;
    let expected = Some(json!({"one": {"token": 1}, "attempt": 2, "token": 2}));
    assert_eq!(row.output, expected, "{}", second.log());

    let group = ["echo", "fail"].map(|kind| JobRequest::new(QUEUE, kind, json!("a")).max_attempts(1));
    let follower = JobRequest::new(QUEUE, "follow", json!({}));
    let group = world.bench.tenure.group(group).then(follower).on_failure(OnFailure::Run).await.unwrap();
    let row = world.ended(group.id).await;
    let expected = Some(json!({"outputs": ["a"], "failed": [group.jobs[1]]}));
    assert_eq!(row.output, expected, "{}", second.log());
    world.bench.every_job_is_as_it_must_be().await;
}

pub async fn cancel(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    // A handler that reports nothing, too.
    for every in [0, 50] {
        let job = world.enqueue("sleep", json!({"ms": 30_000, "every_ms": every})).await;
        until_event(&worker, "began", job).await;
        world.bench.tenure.cancel(job).await.unwrap();
        let is_cancelled =
            format!("EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{job}' AND status = 'cancelled')");
        world.bench.until_within(&is_cancelled, Duration::from_secs(1)).await;
        assert_eq!(until_event(&worker, "stopped", job).await["why"], json!("cancelled"));
    }
}

pub async fn timeout(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    let job = world.enqueue("slow", json!({})).await;
    let stopped = until_event(&worker, "stopped", job).await;
    assert_eq!(stopped["why"], json!("timeout"));
    let is_put_off = format!("tenure.jobs WHERE id = '{job}' AND status = 'queued' AND attempt = 1");
    world.bench.until_within(&format!("EXISTS (SELECT FROM {is_put_off})"), SOON).await;
    world.bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
    assert_eq!(world.ended(job).await.output, Some(json!({"attempt": 2})), "{}", worker.log());
    assert_eq!(world.outcomes(job).await, "(retried)\n(completed)", "how the attempts ended");
}

pub async fn hang(client: Client) {
    let world = World::with(client, |config| config.timing.stale_after = Duration::from_secs(4)).await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    let job = world.enqueue("sleep", json!({"ms": 60_000, "every_ms": 0})).await;
    until_event(&worker, "began", job).await;
    // The scanner finds it, and the worker is told.
    let stopped = until_event(&worker, "stopped", job).await;
    assert_eq!((&stopped["why"], &stopped["token"]), (&json!("lost"), &json!(1)), "{}", worker.log());
    let is_lost = format!("tenure.job_executions_all WHERE job_id = '{job}' AND outcome = 'lost'");
    assert!(world.bench.count(&is_lost).await > 0, "the attempt counts as lost");
}

pub async fn many(client: Client) {
    let world = World::patient(client).await;
    let _gateways = (world.gateway(), world.gateway());
    let jobs = world.jobs();
    // A line for each step of a million jobs would be most of the work.
    let variables: &[_] = if jobs > 100_000 { &[("TENURE_KIT_QUIET", "1")] } else { &[] };
    let nats = &world.bench.config.nats_url;
    let workers = [world.start(nats, 64, variables), world.start(nats, 64, variables)];
    let order = json!({"order": 1, "customer": "c", "lines": [{"sku": "s", "quantity": 2, "cents": 50}]});
    for first in (0..jobs).step_by(10_000) {
        let requests =
            (first..jobs.min(first + 10_000)).map(|_| JobRequest::new(QUEUE, "order", order.clone()));
        world.bench.tenure.enqueue_many(requests).await.unwrap();
    }
    // Asked often, so it may not count them.
    let within = SOON * 3 + Duration::from_millis(2 * jobs as u64);
    world.bench.until_within("NOT EXISTS (SELECT FROM tenure.jobs)", within).await;
    let once = world.bench.count("tenure.all_jobs WHERE status = 'completed' AND attempt = 1").await;
    assert_eq!(usize::try_from(once), Ok(jobs), "jobs that completed at their first attempt");
    let others = world.bench.count("tenure.job_executions_all WHERE outcome <> 'completed'").await;
    assert_eq!(others, 0, "attempts that ended in another way");
    world.bench.until_stream_is_empty(SOON).await;
    if variables.is_empty() {
        let all = workers.iter().flat_map(shown);
        let began = all.filter(|line| line["event"] == json!("began")).count();
        assert_eq!(began, jobs, "handlers that began");
    }
}
