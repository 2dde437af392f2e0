//! What waits in a test: lanes, followers, sleeps, events, expiry, sealed payloads.

use tenure::{Config, TenureBuilder, codec::Codecs, groups::Signalled, hooks::JobEnqueued, lanes::Lanes};

use super::*;
use crate::sealed::keyring::Keyring;

const MINUTE: Duration = Duration::from_mins(1);
/// Past a minute, by as much as the clocks of the test and of Postgres may differ.
const PAST: Duration = Duration::from_secs(61);

fn step(n: u32) -> JobRequest {
    JobRequest::from(Step { n })
}

/// Its jobs take a moment, so that those that may run at once do.
fn slow(test: &TestTenure) -> WorkerBuilder {
    let worker = Worker::builder(test).handle(|job: Step, _: JobContext| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Outcome::done(job.n)
    });
    worker.concurrency("steps", 20)
}

async fn holds_nothing(test: &TestTenure) {
    let held = test.held().await;
    assert!(held.is_empty(), "{held:?}");
    is_whole(test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_runs_all_jobs_of_a_lane_and_its_limit_holds() {
    let test = TestTenure::start().await;
    test.put_lanes("steps", Lanes::new().running(2)).await.unwrap();
    let mut tx = test.pool().begin().await.unwrap();
    test.enqueue(step(0).lane("acme")).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(test.drain(slow(&test)).await.len(), 1, "of a transaction");
    for n in 0..40 {
        test.enqueue(step(n).lane("acme")).await.unwrap();
    }
    let ended = test.drain(slow(&test)).await;
    assert_eq!(ended.len(), 40);
    assert_eq!(test.most_at_once(ended.iter().map(|job| job.id)).await, 2);
    let of = test.clone();
    let nothing = panic_of(async move { assert_eq!(of.most_at_once([]).await, 0) }).await;
    assert!(nothing.contains("no limit was tested"), "{nothing}");
    // A job that is not due yet waits for its time, in its lane, too.
    let later = test.enqueue(step(1).lane("acme").delay(MINUTE)).await.unwrap();
    assert!(test.drain(slow(&test)).await.is_empty());
    let held = test.held().await;
    assert!(held.len() == 1 && held[0].0.id == later.id && held[0].1.starts_with("waits until"), "{held:?}");
    test.advance(PAST).await;
    assert_eq!(test.drain(slow(&test)).await.len(), 1);
    holds_nothing(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rate_holds_back_waits_for_a_later_time() {
    let test = TestTenure::start().await;
    test.put_lanes("steps", Lanes::new().rate(2, MINUTE)).await.unwrap();
    for n in 0..3 {
        test.enqueue(step(n).lane("acme")).await.unwrap();
    }
    assert_eq!(test.drain(slow(&test)).await.len(), 2);
    let held = test.held().await;
    assert!(held.len() == 1 && held[0].1.contains("lane \"acme\""), "{held:?}");
    test.advance(PAST).await;
    assert_eq!(test.drain(slow(&test)).await.len(), 1);
    holds_nothing(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_when_the_jobs_that_follow_others_have_ended() {
    let test = TestTenure::start().await;
    for _ in 0..3 {
        test.group((1..=5).map(step)).then(step(6)).await.unwrap();
        assert_eq!(test.drain(slow(&test)).await.len(), 6);
    }
    holds_nothing(&test).await;
    let group = test.group([step(1).delay(HOUR)]).then(step(2)).await.unwrap();
    assert!(test.drain(slow(&test)).await.is_empty());
    let held = test.held().await;
    let of = |id| held.iter().find(|(job, _)| job.id == id).map(|(_, why)| why.as_str()).unwrap();
    assert!(of(group.jobs[0]).starts_with("waits until"), "{held:?}");
    assert!(of(group.id).starts_with("waits for the jobs before it: 0 of 1"), "{held:?}");
    test.advance(HOUR).await;
    assert_eq!(test.drain(slow(&test)).await.len(), 2);
    holds_nothing(&test).await;
}

/// Sleeps, and then waits for an event.
fn patient(test: &TestTenure) -> WorkerBuilder {
    Worker::builder(test).handle(|_: Step, ctx: JobContext| async move {
        ctx.sleep("a minute", MINUTE).await?;
        Outcome::done(ctx.event_within::<u32>("approved", MINUTE).await?)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeps_and_waits_for_events_end_when_their_time_has_passed() {
    let test = TestTenure::start().await;
    let job = test.enqueue(step(1)).await.unwrap();
    assert!(test.drain(patient(&test)).await.is_empty());
    test.advance(PAST).await;
    assert!(test.drain(patient(&test)).await.is_empty());
    let held = test.held().await;
    assert!(held.len() == 1 && held[0].1.contains("approved"), "{held:?}");
    test.advance(PAST).await;
    let ended = test.drain(patient(&test)).await;
    assert_eq!((ended[0].id, ended[0].output.clone()), (job.id, Some(json!(null))));
    // `finish` skips the sleep, and no event.
    let job = test.enqueue(step(2)).await.unwrap();
    assert_eq!(test.signal(job.id, "approved", &7).await.unwrap(), Signalled::Delivered);
    assert_eq!(test.finish(patient(&test), job.id).await.output, Some(json!(7)));
    holds_nothing(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_expires_when_its_time_has_passed() {
    let test = TestTenure::start().await;
    test.put_lanes("steps", Lanes::new().running(1)).await.unwrap();
    for (job, status) in
        [(step(1), Status::Failed), (step(2).on_expiry(tenure::OnExpiry::Cancel), Status::Cancelled)]
    {
        let expires = chrono::Utc::now() + MINUTE;
        test.enqueue(job.lane("acme").not_after(expires)).await.unwrap();
        test.advance(PAST).await;
        let ended = test.drain(slow(&test)).await;
        assert_eq!(ended.iter().map(|job| job.status).collect::<Vec<_>>(), [status]);
    }
    holds_nothing(&test).await;
}

/// As a program makes its own.
fn program(config: &Config) -> TenureBuilder {
    let codecs = Codecs::new().kind(Step::KIND, Keyring::new(&[("2026-10", [1; 32])]));
    Tenure::builder(config).codecs(codecs).on_enqueue(|_: &JobEnqueued| {
        HEARD.fetch_add(1, Ordering::SeqCst);
    })
}

static HEARD: AtomicU32 = AtomicU32::new(0);

#[tokio::test(flavor = "multi_thread")]
async fn a_test_has_the_codecs_and_hooks_of_its_program() {
    let host = TestTenure::start().await;
    let config = host.config();
    let elsewhere = TestTenure::on_as(&config.database_url, &config.nats_url, program).await;
    for test in [TestTenure::start_as(program).await, elsewhere] {
        let ended = test.run(slow(&test), step(5)).await;
        assert!(ended.payload.unwrap().to_string().contains("sealed"), "the job was enqueued in plain text");
        test.enqueue(Step { n: 6 }).await.unwrap();
        assert_eq!(test.assert_enqueued(|job: &Step| job.n == 6).await, Step { n: 6 });
        assert_eq!(test.enqueued::<Step>().await, [Step { n: 6 }]);
    }
    let all_heard = async {
        while HEARD.load(Ordering::SeqCst) < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all_heard).await.unwrap();
    let elsewhere =
        |_: &Config| Tenure::builder(&Config::new("postgres://127.0.0.1/orders", "nats://127.0.0.1"));
    let refused = panic_of(async move { drop(TestTenure::start_as(elsewhere).await) }).await;
    assert!(refused.contains("leads elsewhere"), "{refused}");
}
