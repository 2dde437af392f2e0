//! The clients of `clients/`, under the conformance kit of `docs/conformance.md`.

use serde_json::json;

use crate::{
    harness::docs_hold,
    kit::{
        CASES, Client, run,
        world::{World, until_event},
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
    assert_eq!(world.ended(job).await.status, tenure::Status::Cancelled);
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
