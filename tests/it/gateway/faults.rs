//! A gateway that dies, freezes or is cut off between any two of its steps: another one goes on, nothing is lost, nothing
//! runs twice, and no attempt is charged.

use std::time::Duration;

use futures::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{Config, JobId, Status};

use super::{Foreign, about, all, enqueue, gateway, outcomes};
use crate::harness::{Bench, Child, Running, bench, bench_with, counter_names};

/// The steps of a gateway, in order.
const STEPS: [&str; 7] = [
    "gateway_pulled",
    "gateway_claimed",
    "gateway_answered",
    "gateway_reported",
    "gateway_stepped",
    "gateway_settling",
    "gateway_settled",
];

/// How long this client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// No job is stale while a gateway is replaced; others take a dead worker's turns soon.
pub(super) fn patient(config: &mut Config) {
    config.timing.stale_after = Duration::from_secs(30);
    config.timing.ack_wait = Duration::from_secs(60);
    config.timing.renew_every = Duration::from_millis(500);
}

impl Foreign {
    /// One try of a request. `None`: no answer came, or one that asks to repeat.
    async fn try_once(&self, request: &str, mut body: Value, within: Duration) -> Option<Value> {
        body["v"] = json!(1);
        body["worker"] = json!(self.worker);
        let subject = format!("{}.w.q.{request}", self.prefix);
        let asked = self.nats.request(subject, body.to_string().into());
        let Ok(Ok(answer)) = tokio::time::timeout(within, asked).await else {
            tokio::time::sleep(Duration::from_millis(30)).await;
            return None;
        };
        if let Some(reply) = answer.reply {
            self.nats.publish(reply, "".into()).await.unwrap();
        }
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        if answer["error"]["retry"] == json!(true) {
            return None;
        }
        assert!(answer["ok"].is_object(), "{request}: {answer}");
        Some(answer["ok"].clone())
    }

    async fn until_answered(&self, request: &str, body: Value) -> Value {
        for _ in 0..200 {
            if let Some(answer) = self.try_once(request, body.clone(), PATIENCE).await {
                return answer;
            }
        }
        panic!("{request} is never answered");
    }

    /// Takes one job, reports, and settles it, as the page says.
    async fn run_one(&self) -> JobId {
        let mut uncertain = false;
        for _ in 0..200 {
            if uncertain {
                let first = self.until_answered("beat", json!({"running": []})).await;
                self.until_answered("beat", json!({"running": [], "as_of": first["now"]})).await;
            }
            let take = json!({"slots": 1, "wait_ms": 500, "kinds": all()});
            let taken = self.try_once("take", take, PATIENCE).await;
            uncertain |= taken.as_ref().is_none_or(|taken| taken["uncertain"] == json!(true));
            let Some(job) = taken.and_then(|taken| taken["jobs"].as_array()?.first().cloned()) else {
                continue;
            };
            let report = json!({"reports": [about(&job, json!({"stage": "on"}))]});
            assert_eq!(self.until_answered("report", report).await["results"], json!(["ok"]));
            let step = json!({"receipt": job["receipt"], "name": "one", "result": 7});
            assert_eq!(self.until_answered("step", step).await, json!({"recorded": true}));
            let settle = json!({"settles": [about(&job, json!({"outcome": "complete", "output": 1}))]});
            assert_eq!(self.until_answered("settle", settle).await["results"], json!(["settled"]));
            return super::id(&job);
        }
        panic!("no job comes");
    }
}

fn doomed(bench: &Bench, fault: &str) -> Child {
    let mut command = bench.program(&["gateway"]);
    command.env("TENURE_FAULT", fault).env("TENURE_HOSTNAME", "doomed");
    Child::spawn(command, "gateway")
}

async fn until_stopped(pid: i32) {
    for _ in 0..3_000 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{pid} does not stop");
}

async fn another_goes_on(fault: &str) {
    for step in STEPS {
        let bench = bench_with(patient).await;
        let mut doomed = doomed(&bench, &format!("{step}={fault}"));
        let worker = Foreign::start(&bench, "one").await;
        let job = enqueue(&bench, "k", json!(null)).await;
        let failed = async {
            if fault == "kill" {
                doomed.wait().await;
            } else {
                until_stopped(doomed.pid()).await;
            }
            gateway(&bench)
        };
        let (ran, second): (JobId, Running) = tokio::join!(worker.run_one(), failed);
        assert_eq!(ran, job, "{step}");
        if fault == "stop" {
            // Its late acts are about claims of the past.
            doomed.signal(Signal::CONT);
        }
        let row = bench.until_finished(job).await;
        assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{step}: {row:?}");
        let ends = outcomes(&bench, job).await;
        let is_clean = ["(completed)", "(released)\n(completed)"].contains(&ends.as_str());
        assert!(is_clean, "{step}: {ends}\n{}", doomed.log());
        bench.every_job_is_as_it_must_be().await;
        drop(second);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_gateway_goes_on_after_one_that_dies_at_any_step() {
    another_goes_on("kill").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_gateway_goes_on_beside_one_that_freezes_at_any_step() {
    another_goes_on("stop").await;
}

/// A gateway that was frozen with its answer: the worker may have given up long ago, and knows nothing of the jobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_wakes_too_late_gives_back_what_it_has_claimed() {
    let bench = bench_with(patient).await;
    let mut doomed = doomed(&bench, "gateway_claimed=stop");
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let take = json!({"slots": 1, "wait_ms": 200, "kinds": all()});
    assert_eq!(worker.try_once("take", take, PATIENCE).await, None);
    until_stopped(doomed.pid()).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    // The worker never asks again: it has no answer, and ends here.
    tokio::time::sleep(Duration::from_secs(4)).await;
    doomed.signal(Signal::CONT);
    bench
        .until_count(&format!("tenure.job_executions_all WHERE job_id = '{job}' AND outcome = 'released'"), 1)
        .await;
    doomed.until_log("the answer to a claim was lost").await;
    doomed.kill().await;
    let _second = gateway(&bench);
    let other = Foreign::start(&bench, "two").await;
    assert_eq!(other.run_one().await, job);
    assert_eq!(bench.until_finished(job).await.attempt, 1);
}

/// SIGTERM: what was asked is answered, and the worker turns to another gateway.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_answers_what_it_was_asked() {
    let bench = bench_with(patient).await;
    let mut first = Child::spawn(bench.program(&["gateway"]), "gateway");
    let worker = Foreign::start(&bench, "one").await;
    let waits = worker.try_once(
        "take",
        json!({"slots": 1, "wait_ms": 20_000, "kinds": all()}),
        Duration::from_secs(20),
    );
    let stops = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        first.signal(Signal::TERM);
        first.wait().await
    };
    let (answer, code) = tokio::join!(waits, stops);
    assert_eq!(code, Some(0), "{}", first.log());
    assert_eq!(answer.unwrap()["jobs"], json!([]), "an empty answer, early: the worker asks again");
    let _second = gateway(&bench);
    let job = enqueue(&bench, "k", json!(null)).await;
    assert_eq!(worker.run_one().await, job);
}

/// Its worker sends beats, but no reports: a gateway reports for none.
#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_worker_that_is_gone_run_elsewhere_soon() {
    let bench = bench_with(patient).await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let (gone, other) = (Foreign::start(&bench, "gone").await, Foreign::start(&bench, "other").await);
    let job = enqueue(&bench, "k", json!(null)).await;
    let taken = gone.one().await;
    gone.beat(&[&taken], Value::Null).await;
    assert_eq!(
        bench.count("tenure.workers WHERE worker_id = 'q/gone' AND probe_subject IS NOT NULL").await,
        1
    );
    // Its connection ends, as with SIGKILL: its subject has no subscriber any more.
    drop(gone);
    assert_eq!(other.run_one().await, job);
    let row = bench.until_finished(job).await;
    assert_eq!(row.attempt, 2, "a crash is charged");
    let paths = bench
        .text(&format!("SELECT path FROM tenure.recovery_events WHERE job_id = '{job}' AND event = 'reset'"))
        .await;
    assert_eq!(paths, "(vanished)");
}

/// Its request waits in the gateway when it freezes or dies: the gateway claims for it, and hears no confirmation.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_or_freezes_while_it_waits_is_charged_for_no_job() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    for dies in [true, false] {
        let worker = Foreign::start(&bench, if dies { "dead" } else { "frozen" }).await;
        // The first take makes the queue's consumer.
        worker.take(1, 0).await;
        let subject = format!("{}.w.q.take", worker.prefix);
        let body = json!({"v": 1, "worker": worker.worker, "slots": 1, "wait_ms": 20_000, "kinds": all()})
            .to_string();
        // A frozen one is subscribed, and does not answer.
        let mut inbox = worker.nats.subscribe("_INBOX.answers").await.unwrap();
        worker.nats.publish_with_reply(subject, "_INBOX.answers", body.into()).await.unwrap();
        worker.nats.flush().await.unwrap();
        while bench.consumer("q").await.num_waiting == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if dies {
            inbox.unsubscribe().await.unwrap();
            worker.nats.flush().await.unwrap();
        }
        let job = enqueue(&bench, "k", json!(null)).await;
        bench
            .until_count(
                &format!("tenure.job_executions_all WHERE job_id = '{job}' AND outcome = 'released'"),
                1,
            )
            .await;
        let other = Foreign::start(&bench, "other").await;
        assert_eq!(other.run_one().await, job);
        assert_eq!(bench.until_finished(job).await.attempt, 1);
        // Long before `ack_wait`: the message of a job that was given back is answered, too.
        bench.until_stream_is_empty(Duration::from_secs(5)).await;
    }
}

/// Its requests come from a stranger, who may name any queue.
#[tokio::test(flavor = "multi_thread")]
async fn takes_of_made_up_queues_leave_nothing_in_the_gateway() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let body = json!({"v": 1, "worker": "one", "slots": 1, "wait_ms": 0, "kinds": all()}).to_string();
    for n in 0..50 {
        let answer = worker.raw(&format!("w.made-up-{n}.take"), &body).await;
        assert_eq!(answer["error"]["code"], json!("hello_first"), "{answer}");
    }
    worker.take(1, 0).await;
    assert!(counter_names("queue=q}") > 0);
    assert_eq!(counter_names("queue=made-up"), 0);
}

/// So do its hellos. A worker that takes is another matter: it serves the queue.
#[tokio::test(flavor = "multi_thread")]
async fn hellos_of_made_up_queues_leave_nothing_but_rows() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::connect(&bench, "one").await;
    let body = json!({"v": 1, "worker": "one", "hostname": "h", "pid": 7, "language": "test", "version": "9",
                      "slots": 1, "kinds": all()})
    .to_string();
    for n in 0..50 {
        let answer = worker.raw(&format!("w.made-up-hello-{n}.hello"), &body).await;
        assert!(answer["ok"].is_object(), "{answer}");
    }
    assert_eq!(counter_names("queue=made-up-hello"), 0);
    let stream = bench.js.get_stream(&bench.config.stream).await;
    assert_eq!(stream.map_or(0, |stream| stream.cached_info().state.consumer_count), 0);
    // Those go soon, as none of these workers has said anything more. One that has stays.
    let silent = "'made-up-hello-7/one'";
    bench
        .execute(&format!(
            "UPDATE tenure.workers
                SET started_at = started_at - interval '11 min',
                    last_seen_at = last_seen_at - interval '11 min'
                                 + CASE worker_id WHEN {silent} THEN interval '5 s' ELSE interval '0' END
              WHERE language IS NOT NULL"
        ))
        .await;
    bench.until_count("tenure.workers WHERE language IS NOT NULL", 1).await;
    assert_eq!(bench.count(&format!("tenure.workers WHERE worker_id = {silent}")).await, 1);
}

/// The gateway has not read its key yet, and no request waits for the answers to those before.
#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_is_silent_all_requests_are_answered_within_one_deadline() {
    let bench = bench_with(|config| {
        patient(config);
        config.timing.database_within = Duration::from_secs(1);
    })
    .await;
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.gateway_keys").execute(&mut *lock).await.unwrap();
    let _gateway = gateway(&bench);
    let worker = Foreign::connect(&bench, "one").await;
    let take = json!({"slots": 1, "wait_ms": 0, "kinds": all()});
    let first = worker.ask("take", take.clone()).await;
    let began = std::time::Instant::now();
    let answers = join_all((0..20).map(|_| worker.ask("take", take.clone()))).await;
    // One after the other, they would take twenty seconds.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    for answer in answers.iter().chain([&first]) {
        assert_eq!(answer["error"]["code"], json!("unavailable"), "{answer}");
    }
}

/// A gateway may publish to the stream and ask its API; those who ask it may not.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_wants_its_answer_elsewhere_is_ignored() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let subject = format!("{}.w.q.beat", worker.prefix);
    let body = json!({"v": 1, "worker": worker.worker}).to_string();
    let mut elsewhere = worker.nats.subscribe("elsewhere").await.unwrap();
    let mut inbox = worker.nats.subscribe("_INBOX_mine.answers").await.unwrap();
    worker.nats.publish_with_reply(subject.clone(), "elsewhere", body.clone().into()).await.unwrap();
    // The second of these is asked after the first is answered, and so long after the one to be ignored.
    for _ in 0..2 {
        let (subject, body) = (subject.clone(), body.clone().into());
        worker.nats.publish_with_reply(subject, "_INBOX_mine.answers", body).await.unwrap();
        assert!(inbox.next().await.unwrap().payload.starts_with(b"{\"ok\""));
    }
    assert!(elsewhere.next().now_or_never().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_many_jobs_fits_into_a_message() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let payload = json!("x".repeat(12_000));
    for _ in 0..150 {
        enqueue(&bench, "k", payload.clone()).await;
    }
    bench.tenure.flush().await;
    let mut taken = Vec::new();
    while taken.len() < 150 {
        taken.extend(worker.take(1_000, 5_000).await);
    }
    let in_parts = taken.iter().filter(|job| !job["parts"].is_null()).count();
    assert!(in_parts > 0 && in_parts < 100, "{in_parts}");
    assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'released'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_died_right_after_a_beat_is_still_probed() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let mut worker = Foreign::start(&bench, "one").await;
    // The gateway reads the beat when its sender has no subscription any more.
    worker.listens.abort();
    assert!((&mut worker.listens).await.unwrap_err().is_cancelled());
    worker.nats.flush().await.unwrap();
    worker.beat(&[], Value::Null).await;
    assert!(
        bench
            .value::<bool>("SELECT probe_subject IS NOT NULL FROM tenure.workers WHERE worker_id = 'q/one'")
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_a_job_with_long_texts_fits_into_a_message() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::connect(&bench, "one").await;
    let job = enqueue(&bench, "k", json!({})).await;
    // Each character is six in JSON.
    bench
        .execute(
            "UPDATE tenure.jobs SET message = repeat(chr(1), 200000), last_error = repeat(chr(1), 200000)",
        )
        .await;
    let answer = worker.raw("p.q.job", &json!({"v": 1, "job": job}).to_string()).await;
    let message = answer["ok"]["message"].as_str().unwrap();
    assert!((10_000..200_000).contains(&message.len()), "{}", message.len());
    assert_eq!(answer["ok"]["status"], json!("queued"));
}

#[tokio::test(flavor = "multi_thread")]
async fn takes_that_cannot_claim_in_time_put_their_messages_back() {
    let bench = bench_with(|config| {
        patient(config);
        // The first takes hold their turns for longer than the others wait.
        config.timing.database_within = Duration::from_secs(6);
    })
    .await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    for n in 0..40 {
        enqueue(&bench, "k", json!(n)).await;
    }
    bench.tenure.flush().await;
    // No claim is answered while this lasts; what only reads goes on.
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs IN SHARE MODE").execute(&mut *lock).await.unwrap();
    let take = json!({"slots": 1, "wait_ms": 100, "kinds": all()});
    let mut answers: FuturesUnordered<_> = (0..40).map(|_| worker.ask("take", take.clone())).collect();
    for _ in 0..16 {
        let answer = answers.next().await.unwrap();
        assert_eq!(answer["error"]["message"], json!("the gateway claims too many jobs"));
        assert_eq!(answer["error"]["retry"], json!(true));
    }
    lock.rollback().await.unwrap();
    while let Some(answer) = answers.next().await {
        assert_eq!(answer["error"]["message"], json!("the gateway was too slow; it gave the jobs back"));
    }

    let mut done = std::collections::BTreeSet::new();
    while done.len() < 40 {
        let jobs = worker.take(40, 500).await;
        for job in &jobs {
            assert_eq!(job["attempt"], json!(1), "{job}");
            assert!(done.insert(job["payload"].as_u64().unwrap()));
            assert_eq!(worker.settle(job, json!({"outcome": "complete"})).await, json!("settled"));
        }
        if jobs.is_empty() {
            worker.reconcile(&[]).await;
        }
    }
}
