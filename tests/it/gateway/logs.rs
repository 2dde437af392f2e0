//! Logs by the worker protocol: a gateway that keeps them writes what workers in other languages have printed.

use serde_json::{Value, json};
use tenure::JobId;

use super::{Foreign, about, enqueue, gateway};
use crate::{
    harness::{Bench, bench, bench_with, run_folder},
    kit::{Client, world::World},
};

async fn kept(bench: &Bench, job: JobId) -> Vec<(i64, String, bool)> {
    let logs = bench.tenure.job_logs(job).await.unwrap();
    logs.into_iter().map(|log| (log.fencing_token.0, log.text, log.is_cut)).collect()
}

fn log(text: &str) -> Value {
    json!({"text": text, "is_cut": false})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_reports_of_its_log_is_kept_while_its_claim_is_current() {
    let bench = bench_with(|config| config.job_logs = true).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let id = enqueue(&bench, "k", json!(null)).await;
    let first = worker.one().await;
    assert_eq!(worker.report(&first, json!({"log": log("begun\n")})).await, json!("ok"));
    assert_eq!(kept(&bench, id).await, [(1, "begun\n".into(), false)]);
    let end = json!({"outcome": "retry", "after_ms": 1, "report": {"log": log("begun\nnul \0\n")}});
    assert_eq!(worker.settle(&first, end).await, json!("settled"));
    assert_eq!(kept(&bench, id).await, [(1, "begun\nnul \u{fffd}\n".into(), false)], "in its place");

    let second = worker.one().await;
    // The first attempt speaks again, late.
    for (request, late) in [
        ("report", json!({"reports": [about(&first, json!({"log": log("late\n")}))]})),
        (
            "settle",
            json!({"settles": [about(&first, json!({"outcome": "complete", "report": {"log": log("late\n")}}))]}),
        ),
    ] {
        assert_eq!(worker.ok(request, late).await["results"][0], json!("lost"));
    }
    let long = (0..9_000).map(|n| format!("line {n:04}\n")).collect::<Vec<_>>().concat();
    assert_eq!(worker.report(&second, json!({"log": log(&long)})).await, json!("ok"));
    let logs = kept(&bench, id).await;
    let [(2, text, true), (1, before, false)] = &logs[..] else { panic!("{logs:?}") };
    assert!(text.len() <= 64 * 1024 && text.starts_with("line ") && text.ends_with("line 8999\n"), "{text}");
    assert_eq!(before, "begun\nnul \u{fffd}\n");
    for (wrong, says) in [
        (json!({"log": "a text"}), "\"reports[0].log\" must be an object"),
        (json!({"log": {}}), "\"reports[0].log.text\" must be a text"),
        (json!({"log": {"text": "x", "is_cut": 1}}), "\"reports[0].log.is_cut\" must be"),
    ] {
        let refused = worker.report(&second, wrong.clone()).await;
        let said = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains(says), "{wrong}: {refused}");
    }
    assert_eq!(worker.settle(&second, json!({"outcome": "complete"})).await, json!("settled"));
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_keeps_no_logs_says_so_and_writes_none() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::connect(&bench, "one").await;
    let hello =
        json!({"hostname": "h", "pid": 7, "language": "t", "version": "9", "slots": 1, "kinds": {"*": {}}});
    assert_eq!(worker.ok("hello", hello).await["keeps_logs"], json!(false));
    let id = enqueue(&bench, "k", json!(null)).await;
    let job = worker.one().await;
    assert_eq!(worker.report(&job, json!({"log": log("x\n")})).await, json!("ok"));
    let end = json!({"outcome": "complete", "report": {"log": log("x\n")}});
    assert_eq!(worker.settle(&job, end).await, json!("settled"));
    assert_eq!(kept(&bench, id).await, []);
}

/// In a task and in a thread, by the context and by the standard library's logging: each job gets its own lines.
#[tokio::test(flavor = "multi_thread")]
async fn what_handlers_in_python_log_is_kept_with_their_own_job() {
    let client = Client::python("odd", "../tests/it/clients/odd.py");
    let world = World::with(client, |config| config.job_logs = true).await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    for kind in ["logs", "logs_thread"] {
        let (one, two) = (world.enqueue(kind, json!("one")).await, world.enqueue(kind, json!("two")).await);
        for (job, name) in [(one, "one"), (two, "two")] {
            world.ended(job).await;
            let logs = kept(&world.bench, job).await;
            let expected = format!("{name} by the context\nWARNING {name} by logging\n");
            assert_eq!(logs, [(1, expected, false)], "{kind}: {}", worker.log());
        }
    }
    let both =
        [world.enqueue("logs_batch", json!("one")).await, world.enqueue("logs_batch", json!("two")).await];
    for (job, name) in both.into_iter().zip(["one\n", "two\n"]) {
        world.ended(job).await;
        assert_eq!(kept(&world.bench, job).await, [(1, name.into(), false)], "no log is another job's");
    }
    let job = world.enqueue("logs_refused", json!(null)).await;
    world.ended(job).await;
    assert_eq!(kept(&world.bench, job).await, [(1, "5\n".into(), false)], "though the report is refused");
    // A gateway that had no time for it has not written it: the end carries it again.
    let go = run_folder().join(format!("go-{}", world.bench.config.stream));
    let job = world.enqueue("logs_quiet", json!(go)).await;
    world.bench.until(&format!("EXISTS (SELECT FROM tenure.job_logs WHERE job_id = '{job}')")).await;
    world.bench.execute(&format!("DELETE FROM tenure.job_logs WHERE job_id = '{job}'")).await;
    std::fs::write(&go, "").unwrap();
    world.ended(job).await;
    assert_eq!(kept(&world.bench, job).await, [(1, "once\n".into(), false)]);
    let job = world.run("logs_large", json!(null)).await;
    assert_eq!(job.output, Some(json!(1_000_000)), "the checkpoint is worth more than the log");
    let job = world.enqueue("logs_much", json!(null)).await;
    world.ended(job).await;
    let logs = kept(&world.bench, job).await;
    let [(1, text, true)] = &logs[..] else { panic!("{} logs", logs.len()) };
    assert!(text.len() <= 64 * 1024 && text.len() > 60_000 && text.ends_with("ä 19999\n"), "{}", text.len());
}
