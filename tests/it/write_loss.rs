//! A worker that cannot write, and the cost of an outage.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Tenure, Worker,
    handlers::{CancelReason, ContextError, OnWriteLoss},
};

use crate::{
    harness::{Bench, Child, Proxy, Running, bench_with, bench_with_servers, counted},
    scenarios::Chat,
};

/// A worker whose Postgres is behind a link that can be cut.
async fn behind_a_link(bench: &Bench) -> (Tenure, Proxy) {
    let link = Proxy::to_url(&bench.config.database_url).await;
    let mut config = bench.config.clone();
    config.database_url = link.of(&config.database_url);
    (Tenure::connect(&config).await.unwrap(), link)
}

fn timers(config: &mut tenure::Config) {
    config.timing.stale_after = Duration::from_secs(4);
    config.timing.ack_wait = Duration::from_secs(20);
    config.timing.database_within = Duration::from_millis(700);
}

/// The number of reports of the handler that keeps running.
static STEPS: AtomicU32 = AtomicU32::new(0);

type Seen = Arc<Mutex<Vec<(Option<CancelReason>, Instant, String)>>>;

/// A handler that reports all the time, and notes the reason for its end.
async fn chatty(seen: Seen, ctx: JobContext) -> Result<Outcome, JobError> {
    if ctx.token().0 > 1 {
        return Outcome::done(ctx.attempt());
    }
    let started = Instant::now();
    loop {
        if ctx.kind() == "k" {
            STEPS.fetch_add(1, Ordering::SeqCst);
        }
        match ctx.progress("chatting", 50.0, "").await {
            Ok(()) if started.elapsed() > Duration::from_secs(12) => return Outcome::done("first"),
            Ok(()) => {}
            Err(error) => {
                let seen = &mut seen.lock().unwrap();
                seen.push((ctx.cancel_reason(), Instant::now(), error.to_string()));
                return Err(error.into());
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_write_cancels_its_handlers_before_others_take_their_jobs_and_releases_them() {
    let bench = bench_with(timers).await;
    let (tenure, link) = behind_a_link(&bench).await;
    let seen = Seen::default();
    let (chats, silent) = (seen.clone(), seen.clone());
    let start = |tenure: &Tenure, chats: Seen, silent: Seen| {
        Running::start(
            Worker::builder(tenure)
                .handle_kind("chats", KindOptions::new(), move |_, ctx| chatty(chats.clone(), ctx))
                .handle_kind("silent", KindOptions::new(), move |_, ctx: JobContext| {
                    let silent = silent.clone();
                    async move {
                        if ctx.token().0 > 1 {
                            return Outcome::done(ctx.attempt());
                        }
                        let reason = ctx.cancelled().await;
                        let error = ctx.progress("", 0.0, "").await.unwrap_err();
                        assert!(matches!(error, ContextError::CutOff { .. }), "{error}");
                        silent.lock().unwrap().push((Some(reason), Instant::now(), error.to_string()));
                        Err(error.into())
                    }
                })
                .concurrency("q", 4),
        )
    };
    let worker = start(&tenure, chats.clone(), silent.clone());
    let mut ids = vec![];
    for kind in ["chats", "silent"] {
        let request = JobRequest::new("q", kind, json!(1)).max_attempts(1);
        ids.push(bench.tenure.enqueue(request).await.unwrap().id);
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    bench.until_count("tenure.jobs WHERE stage = 'chatting'", 1).await;
    let before = counted("tenure_cut_off_jobs_total{kind=chats}");
    link.cut();
    let cut_at = Instant::now();
    // The worker counts from its last write, which on a busy machine lies well before the cut.
    let last_write = "extract(epoch FROM clock_timestamp() - min(last_activity_at))::float8 FROM tenure.jobs";
    let before_cut: f64 = bench.value(&format!("SELECT {last_write}")).await;
    let deadline = Instant::now() + Duration::from_secs(15);
    while seen.lock().unwrap().len() < 2 {
        assert!(Instant::now() < deadline, "{:?}", seen.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Within the 4 s after which other workers may reset the jobs, but not long before.
    for (reason, at, error) in seen.lock().unwrap().iter() {
        assert_eq!(*reason, Some(CancelReason::Lost));
        let after = (*at - cut_at).as_secs_f64();
        assert!(
            after < 4.0 && after + before_cut >= 3.0,
            "{after} after the cut, {before_cut} after a write"
        );
        assert!(error.contains("succeeded for too long"), "{error}");
    }
    assert_eq!(counted("tenure_cut_off_jobs_total{kind=chats}") - before, 1);
    link.mend();
    for id in ids {
        let done = bench.until_finished(id).await;
        assert_eq!((done.status, done.output, done.fencing_token.0), (Status::Completed, Some(json!(1)), 2));
    }
    let outcomes = bench.text("SELECT outcome, count(*) FROM tenure.job_executions GROUP BY 1").await;
    assert_eq!(outcomes, "(released,2)", "no attempt charged");
    let events = bench.text("SELECT DISTINCT event, path, reason FROM tenure.recovery_events").await;
    assert_eq!(events, "(release,worker,\"nothing could be written for too long\")");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_keeps_running_completes_if_no_other_worker_took_its_job() {
    let bench = bench_with(timers).await;
    let (tenure, link) = behind_a_link(&bench).await;
    let seen = Seen::default();
    let chats = seen.clone();
    let options = KindOptions::new().on_write_loss(OnWriteLoss::KeepRunning);
    let worker = Running::start(
        Worker::builder(&tenure)
            .handle_any(options, move |_: Value, ctx| chatty(chats.clone(), ctx))
            .concurrency("q", 1),
    );
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(1)).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE stage = 'chatting'", 1).await;
    // Without a first scan, there would be no gap between scans to notice.
    bench.until("(SELECT last_scan_at IS NOT NULL FROM tenure.scanner_state)").await;
    link.cut();
    // Longer than stale_after: another worker would have reset the job.
    let silent_for = |seconds: f64| {
        format!(
            "EXISTS (SELECT FROM tenure.jobs WHERE last_activity_at < clock_timestamp() - interval '{seconds} s')"
        )
    };
    bench.until(&silent_for(4.5)).await;
    let steps = STEPS.load(Ordering::SeqCst);
    bench.until(&silent_for(5.0)).await;
    assert!(STEPS.load(Ordering::SeqCst) > steps + 5, "the handler goes on");
    link.mend();
    let done = bench.until_finished(id).await;
    let events =
        bench.text("SELECT event, path, reason, silence, recovered_by FROM tenure.recovery_events").await;
    let is = (done.status, done.output, done.fencing_token.0);
    assert_eq!(is, (Status::Completed, Some(json!("first")), 1), "{:?} {events}", done.last_error);
    assert!(seen.lock().unwrap().is_empty());
    worker.stop().await;
}

/// Postgres is away for twice `stale_after` while 200 jobs chat on two workers; one of the two dies meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_only_the_jobs_of_dead_workers_are_lost() {
    let mut bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(4);
        config.timing.scan_every = Duration::from_millis(500);
        config.timing.ack_wait = Duration::from_secs(30);
        config.timing.database_within = Duration::from_secs(1);
    })
    .await;
    let until = bench.config.runtime_dir.join("enough");
    let mut dies = Child::on(&bench, "web-a", "chats");
    let mut lives = Child::on(&bench, "web-b", "chats");
    for worker in [&mut dies, &mut lives] {
        worker.until_log("worker started").await;
    }
    bench.tenure.enqueue_many((0..200).map(|_| Chat { until: until.clone() })).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing' AND stage = 'chatting'", 200).await;
    let of = |host: &str| format!("tenure.jobs WHERE worker_host = '{host}'");
    let (of_dead, of_living) = (bench.count(&of("web-a")).await, bench.count(&of("web-b")).await);
    assert!(of_dead == 100 && of_living == 100, "{of_dead} {of_living}");

    bench.own.as_mut().unwrap().postgres.stop();
    tokio::time::sleep(Duration::from_secs(2)).await;
    dies.kill().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    bench.own.as_mut().unwrap().postgres.restart().unwrap();

    // Every owner that looks dead gets a grace at first; the dead ones do not write in it.
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.job_executions WHERE outcome = 'lost') = 100",
            Duration::from_secs(60),
        )
        .await;
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    std::fs::write(&until, "").unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 200).await;
    let outcomes = bench
        .text(
            "SELECT CASE WHEN worker_id LIKE 'web-a-%' THEN 'dead' ELSE 'living' END, outcome, count(*)
               FROM tenure.job_executions GROUP BY 1, 2 ORDER BY 1, 2",
        )
        .await;
    assert!(
        outcomes == "(dead,lost,100)" || outcomes == "(dead,lost,100)\n(living,released,100)",
        "only those of the dead worker are lost: {outcomes}"
    );
    // A released attempt is not charged: the output is the number of the attempt that completed the job.
    let attempts = bench.text("SELECT output, count(*) FROM tenure.job_history GROUP BY 1 ORDER BY 1").await;
    assert_eq!(attempts, "(1,100)\n(2,100)");
}
