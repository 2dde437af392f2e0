//! Addresses: a worker finds a gateway that answers, and asks it alone; another one may be frozen, or have stopped.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Foreign, about, all, enqueue, faults::patient, gateway, id, outcomes};
use crate::harness::{Child, bench_with};

impl Foreign {
    /// The address of the gateway that answers first.
    async fn address(&self) -> String {
        let ping = self.nats.request(format!("{}.w.q.ping", self.prefix), r#"{"v":1}"#.into());
        let Ok(Ok(pong)) = tokio::time::timeout(Duration::from_millis(300), ping).await else {
            return Box::pin(self.address()).await;
        };
        let pong: Value = serde_json::from_slice(&pong.payload).unwrap();
        pong["ok"]["gateway"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_answers_at_its_address_until_it_stops() {
    let bench = bench_with(patient).await;
    let first = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let address = worker.address().await;
    let second = gateway(&bench);
    let mut all = BTreeSet::from([address.clone()]);
    while all.len() < 2 {
        all.insert(worker.address().await);
    }
    for _ in 0..20 {
        assert_eq!(worker.ok(&format!("ping@{address}"), json!({})).await, json!({"gateway": address}));
    }
    worker.ok(&format!("beat@{address}"), json!({})).await;
    let producer = worker.raw(&format!("p.q.ping@{address}"), r#"{"v":1}"#).await;
    assert_eq!(producer, json!({"ok": {"gateway": address}}));
    first.stop().await;
    // At once: no one waits for a gateway that has gone.
    let gone = worker.nats.request(format!("{}.w.q.beat@{address}", worker.prefix), "{}".into()).await;
    assert_eq!(gone.unwrap_err().kind(), async_nats::RequestErrorKind::NoResponders);
    assert_ne!(worker.address().await, address);
    second.stop().await;
}

/// What it was sent, it reads when it wakes: the worker has gone on with another gateway long ago.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_wakes_does_nothing_twice_and_keeps_no_job() {
    let bench = bench_with(patient).await;
    let frozen = Child::spawn(bench.program(&["gateway"]), "gateway");
    let worker = Foreign::start(&bench, "one").await;
    let at = worker.address().await;
    let settled = enqueue(&bench, "k", json!(null)).await;
    let taken = worker.one().await;
    frozen.signal(Signal::STOP);
    let _second = gateway(&bench);
    let mut second = worker.address().await;
    while second == at {
        second = worker.address().await;
    }
    let mut inbox = worker.nats.subscribe("_INBOX.late").await.unwrap();
    let settle = json!({"settles": [about(&taken, json!({"outcome": "retry", "after_ms": 600_000}))]});
    let take = json!({"slots": 1, "wait_ms": 20_000, "kinds": all()});
    for (request, mut body) in [("settle", settle.clone()), ("take", take)] {
        (body["v"], body["worker"]) = (json!(1), json!("one"));
        let subject = format!("{}.w.q.{request}@{at}", worker.prefix);
        worker.nats.publish_with_reply(subject, "_INBOX.late", body.to_string().into()).await.unwrap();
    }
    worker.nats.flush().await.unwrap();
    let again = worker.ok(&format!("settle@{second}"), settle).await;
    assert_eq!(again["results"], json!(["settled"]));
    let waits = enqueue(&bench, "k", json!(null)).await;
    frozen.signal(Signal::CONT);

    let mut late = async || serde_json::from_slice::<Value>(&inbox.next().await.unwrap().payload).unwrap();
    let answers = [late().await, late().await];
    let of =
        |name: &str| answers.iter().find(|answer| !answer["ok"][name].is_null()).unwrap()["ok"][name].clone();
    assert_eq!(of("results"), json!(["settled"]), "it repeats what the other one did");
    assert_eq!(of("jobs")[0]["job"], json!(waits), "it claims for the worker, which does not confirm");
    assert_eq!(outcomes(&bench, settled).await, "(retried)");
    let body = json!({"slots": 1, "wait_ms": 10_000, "kinds": all()});
    let job = worker.ok(&format!("take@{second}"), body).await["jobs"][0].clone();
    assert_eq!((id(&job), &job["attempt"], &job["token"]), (waits, &json!(1), &json!(2)));
    assert_eq!(worker.settle(&job, json!({"outcome": "complete"})).await, json!("settled"));
    assert_eq!(outcomes(&bench, waits).await, "(released)\n(completed)");
}
