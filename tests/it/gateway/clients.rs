//! The clients of `clients/`, under the conformance kit of `docs/conformance.md`.

use serde_json::json;
use tenure::{JobRequest, Status, groups::Signalled};

use crate::{
    harness::docs_hold,
    kit::{
        CASES, Client, run,
        world::{QUEUE, SOON, World, until_event},
    },
};

/// More would have cases wait for the machine.
const AT_ONCE: usize = 3;

async fn passes(name: &str) {
    let Some(client) = Client::all().into_iter().find(|client| client.name == name) else { return };
    let all: Vec<_> = CASES.iter().map(|case| (client.clone(), *case)).collect();
    let verdicts = run(all, AT_ONCE).await;
    let failed: Vec<_> = CASES
        .iter()
        .zip(verdicts)
        .filter_map(|(case, verdict)| Some(format!("{}: {}", case.name, verdict.err()?)))
        .collect();
    assert!(failed.is_empty(), "{name}:\n{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_for_python_passes_the_conformance_kit() {
    passes("python").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_for_node_passes_the_conformance_kit() {
    passes("node").await;
}

/// Handlers that block their threads, which other clients do not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_handler_in_python_reports_and_is_cancelled() {
    let world = World::patient(Client::python("python", "python/kit.py")).await;
    let _gateway = world.gateway();
    let worker = world.ready(4).await;
    let row = world.run("block", json!({"ms": 300, "every_ms": 50})).await;
    assert_eq!((row.output, row.stage.as_deref()), (Some(json!("slept")), Some("blocking")));
    let job = world.enqueue("block", json!({"ms": 30_000, "every_ms": 50})).await;
    until_event(&worker, "began", job).await;
    world.bench.tenure.cancel(job).await.unwrap();
    assert_eq!(world.ended(job).await.status, Status::Cancelled);
}

/// The same calls as in the kit's case `steps`, in a handler that blocks its thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_handler_in_python_does_steps_and_waits() {
    let world = World::patient(Client::python("python", "python/kit.py")).await;
    let _gateway = world.gateway();
    let worker = world.ready(1).await;
    let job = world.enqueue("steps_sync", json!({"ms": 50, "parts": [2, 1]})).await;
    assert_eq!(world.bench.tenure.signal(job, "go", &json!(7)).await.unwrap(), Signalled::Delivered);
    let output = world.ended(job).await.output.unwrap_or_default();
    let expected = json!({"one": {"token": 1}, "go": 7, "parts": [{"n": 2}, {"n": 1}], "late": "late",
                          "attempt": 1, "token": output["token"]});
    assert_eq!(output, expected, "{}", worker.log());
}

/// The work of a step is done once it is done, also if the handler is to stop meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_ends_after_its_handler_was_told_to_stop_is_recorded() {
    let world = World::patient(Client::python("odd", "../tests/it/clients/odd.py")).await;
    let _gateway = world.gateway();
    let _worker = world.ready(1).await;
    let job = world.enqueue("slow_step", json!(null)).await;
    world.bench.until_within("EXISTS (SELECT FROM tenure.jobs WHERE message = 'begins')", SOON).await;
    world.bench.tenure.cancel(job).await.unwrap();
    assert_eq!(world.ended(job).await.status, Status::Cancelled);
    assert_eq!(world.bench.count("tenure.effects WHERE key = 'one' AND step_kind = 'step'").await, 1);
}

/// With one slot, a job that did not end would keep the next one from running.
#[tokio::test(flavor = "multi_thread")]
async fn however_a_handler_in_python_ends_its_job_ends_and_the_worker_goes_on() {
    let world = World::patient(Client::python("odd", "../tests/it/clients/odd.py")).await;
    let _gateway = world.gateway();
    let _worker = world.ready(1).await;
    for (kind, status, says) in [
        ("odd", Status::Failed, "Odd: no ordinary exception"),
        ("odd_thread", Status::Failed, "Odd: no ordinary exception"),
        ("stops", Status::Failed, "StopIteration: "),
        ("mute", Status::Failed, "Mute"),
        ("exits", Status::Failed, "SystemExit: 3"),
        ("own_cancel", Status::Failed, "CancelledError"),
        ("no_time", Status::Failed, "ValueError: after must be a number of seconds or a timedelta, not nan"),
        ("no_json", Status::Failed, "TypeError: Object of type set is not JSON serializable"),
        ("refused", Status::Failed, "a report was refused"),
        ("past", Status::Completed, "2"),
        ("changes", Status::Completed, "{\"n\":1}"),
        ("lambda", Status::Completed, "7"),
        ("callable", Status::Completed, "7"),
    ] {
        let attempts = if kind == "past" { 2 } else { 1 };
        let job = JobRequest::new(QUEUE, kind, json!(7)).max_attempts(attempts);
        let job = world.bench.tenure.enqueue(job).await.unwrap().id;
        let row = world.ended(job).await;
        let said = row.output.map_or_else(|| row.last_error.unwrap_or_default(), |output| output.to_string());
        assert_eq!(row.status, status, "{kind}: {said}");
        assert!(said.starts_with(says), "{kind}: {said}");
    }
    let wide = world.run("wide", json!(null)).await;
    assert_eq!(wide.output.unwrap().as_str().unwrap().chars().count(), 200_000);
    assert_eq!(wide.message.as_deref(), Some("half a pair: ?"));
}

/// Postgres holds JSON that parsers of other languages refuse, if it did not come by a door of tenure's.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_a_client_cannot_read_fails_its_own_job_alone() {
    let world = World::patient(Client::python("odd", "../tests/it/clients/odd.py")).await;
    let _gateway = world.gateway();
    let _worker = world.ready(8).await;
    let mut odd = Vec::new();
    for payload in ["(repeat('[', 1200) || repeat(']', 1200))", "repeat('7', 5000)"] {
        let mut tx = world.bench.pool.begin().await.unwrap();
        let request = JobRequest::new(QUEUE, "echo", json!(null)).max_attempts(1);
        let job = world.bench.tenure.enqueue(request).tx(&mut tx).await.unwrap().id;
        let sql =
            sqlx::AssertSqlSafe(format!("UPDATE tenure.jobs SET payload = {payload}::jsonb WHERE id = $1"));
        sqlx::query(sql).bind(job).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        odd.push(job);
    }
    let plain = world.enqueue("echo", json!("plain")).await;
    assert_eq!(world.ended(plain).await.status, Status::Completed);
    for job in odd {
        let row = world.ended(job).await;
        let said = row.last_error.unwrap_or_default();
        assert_eq!(row.status, Status::Failed, "{said}");
        assert!(said.starts_with("RecursionError: ") || said.starts_with("ValueError: "), "{said}");
    }
    assert_eq!(world.bench.count("tenure.job_executions_all WHERE outcome = 'released'").await, 0);
}

#[test]
fn the_page_lists_every_case() {
    let row = |case: &crate::kit::Case| {
        let finds: Vec<_> = case.finds.iter().map(|mistake| format!("`{mistake}`")).collect();
        format!("| `{}` | {} | {} |", case.name, case.what, finds.join(", "))
    };
    let rows: Vec<_> = CASES.iter().map(row).collect();
    docs_hold(
        "conformance.md",
        (
            "<!-- the table of cases: written by tests/it/gateway/clients.rs -->",
            "<!-- the end of the table of cases -->",
        ),
        &format!("| case | a client that passes | must find |\n|---|---|---|\n{}", rows.join("\n")),
        "gateway::clients::the_page",
    );
}
