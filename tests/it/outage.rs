//! Servers that go away in the middle of a thousand jobs, and ten thousand jobs without any fault.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobContext, JobError, JobRequest, KindOptions, Worker, WorkerBuilder};

use crate::harness::{Bench, Proxy, Running, bench_with, bench_with_servers};

/// Handlers that use the database the whole time: progress, and a write of their own.
fn chatty(bench: &Bench) -> WorkerBuilder {
    let handler = |_, ctx: JobContext| async move {
        ctx.progress("working", 10.0, "").await?;
        let (id, token) = (ctx.id(), ctx.token());
        ctx.fenced_tx(async |tx| {
            sqlx::query("INSERT INTO public.app_effects (job, token) VALUES ($1, $2)")
                .bind(id)
                .bind(token)
                .execute(tx)
                .await?;
            Ok(())
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        ctx.progress("working", 90.0, "").await?;
        Ok::<_, JobError>(())
    };
    Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 10)
}

/// Longer than the outage, as in production.
fn steady(config: &mut tenure::Config) {
    config.timing.stale_after = Duration::from_secs(20);
    config.timing.scan_every = Duration::from_secs(1);
    config.timing.ack_wait = Duration::from_secs(30);
}

async fn a_thousand_jobs(bench: &Bench) {
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint, at timestamptz DEFAULT clock_timestamp())").await;
    bench
        .tenure
        .enqueue_many((0..1_000).map(|n| JobRequest::new("q", "k", json!(n)).max_attempts(1)))
        .await
        .unwrap();
}

async fn all_completed_with_one_attempt_each(bench: &Bench) {
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.job_history WHERE status = 'completed') = 1000",
            Duration::from_secs(90),
        )
        .await;
    // max_attempts is 1: an error of the outage that was charged would have made a dead letter.
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    assert_eq!(
        bench.count("tenure.job_executions WHERE outcome <> 'released'").await,
        0,
        "{}",
        bench.text("SELECT outcome, error, count(*) FROM tenure.job_executions GROUP BY 1, 2").await
    );
    assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'completed'").await, 1_000);
    // A fenced write stands only under a token that was the job's at that moment; the last one completed it.
    assert_eq!(bench.count("(SELECT DISTINCT job FROM public.app_effects) e").await, 1_000);
    let foreign = "public.app_effects e LEFT JOIN tenure.job_executions_all x
         ON x.job_id = e.job AND x.fencing_token = e.token AND e.at BETWEEN x.started_at AND x.finished_at
         WHERE x.job_id IS NULL";
    assert_eq!(bench.count(foreign).await, 0);
    bench.until_stream_is_empty(Duration::from_secs(40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_restarted_in_the_middle_of_a_thousand_jobs() {
    let mut bench = bench_with_servers(steady).await;
    a_thousand_jobs(&bench).await;
    let workers = [Running::start(chatty(&bench)), Running::start(chatty(&bench))];
    bench.until("(SELECT count(*) FROM tenure.job_history) > 200").await;
    let own = bench.own.as_mut().unwrap();
    own.postgres.stop();
    tokio::time::sleep(Duration::from_secs(2)).await;
    own.postgres.restart().unwrap();
    bench.until("(SELECT count(*) FROM tenure.job_history) > 500").await;
    // Once more, by SIGKILL.
    let own = bench.own.as_mut().unwrap();
    own.postgres.kill();
    own.postgres.restart().unwrap();
    all_completed_with_one_attempt_each(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}

/// With the timers of production: what was published meanwhile lies in the workers, or in the stream.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_while_postgres_restarts_starts_soon_after_its_return() {
    let mut bench = bench_with_servers(|config| config.timing = tenure::Timing::default()).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let starts = std::sync::Arc::new(std::sync::Mutex::new(std::collections::HashMap::new()));
    let build = || {
        let starts = starts.clone();
        let handler = move |n: serde_json::Value, _: JobContext| {
            starts.lock().unwrap().entry(n.as_u64().unwrap()).or_insert_with(Instant::now);
            async {}
        };
        // The outage brings fewer messages than a worker requests: the request is open when Postgres is back.
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 200)
    };
    let workers = [Running::start(build()), Running::start(build())];
    bench.until_count("tenure.workers", 2).await;
    let mut published = Vec::new();
    let (js, subject) = (bench.js.clone(), format!("{}.q.k", bench.config.subject_prefix));
    let mut publish = async |lasts: Duration| {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            let body = published.len().to_string().into();
            js.publish(subject.clone(), body).await.unwrap().await.unwrap();
            published.push(Instant::now());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        published.len()
    };
    let before = publish(Duration::from_secs(1)).await;
    bench.own.as_mut().unwrap().postgres.stop();
    publish(Duration::from_secs(2)).await;
    bench.own.as_mut().unwrap().postgres.restart().unwrap();
    let back = Instant::now();
    let all = publish(Duration::from_secs(2)).await;
    bench.until_count("tenure.job_history WHERE status = 'completed'", all.try_into().unwrap()).await;
    let starts = starts.lock().unwrap().clone();
    let mut waited: Vec<_> = (before..all)
        .map(|n| starts[&(n as u64)].saturating_duration_since(back.max(published[n])))
        .collect();
    waited.sort_unstable();
    let (median, longest) = (waited[waited.len() / 2], waited[waited.len() - 1]);
    eprintln!("{} jobs: median {median:?}, longest {longest:?}", waited.len());
    assert!(median < Duration::from_secs(3) && longest < Duration::from_secs(6), "{median:?}, {longest:?}");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_is_restarted_in_the_middle_of_a_thousand_jobs() {
    let mut bench = bench_with_servers(steady).await;
    a_thousand_jobs(&bench).await;
    let workers = [Running::start(chatty(&bench)), Running::start(chatty(&bench))];
    bench.until("(SELECT count(*) FROM tenure.job_history) > 200").await;
    let own = bench.own.as_mut().unwrap();
    own.nats.stop();
    tokio::time::sleep(Duration::from_secs(2)).await;
    own.nats.restart().unwrap();
    bench.until("(SELECT count(*) FROM tenure.job_history) > 500").await;
    // Killed, and everything it stored is gone.
    let own = bench.own.as_mut().unwrap();
    own.nats.kill();
    own.nats.wipe().unwrap();
    own.nats.restart().unwrap();
    all_completed_with_one_attempt_each(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_does_not_answer_wedges_nothing() {
    let bench = bench_with_servers(|config| {
        steady(config);
        config.timing.database_within = Duration::from_secs(1);
    })
    .await;
    a_thousand_jobs(&bench).await;
    let worker = Running::start(chatty(&bench));
    bench.until("(SELECT count(*) FROM tenure.job_history) > 100").await;
    // Frozen, not gone: connections stay open without answers, for longer than the deadline of a call.
    let children = || {
        let postmaster = bench.own.as_ref().unwrap().postgres.pid().unwrap();
        let output = std::process::Command::new("ps")
            .args(["-o", "pid=", "--ppid", &postmaster.to_string()])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut pids: Vec<i32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        pids.push(postmaster);
        pids
    };
    let frozen = children();
    let signal = |signal| {
        for pid in &frozen {
            rustix::process::kill_process(rustix::process::Pid::from_raw(*pid).unwrap(), signal).ok();
        }
    };
    signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(4)).await;
    signal(Signal::CONT);
    all_completed_with_one_attempt_each(&bench).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_jobs_through_two_workers_complete_once_each_and_leave_nothing_behind() {
    // As in production: on a busy machine a claim may come later than the relay of the other tests waits for it.
    let bench =
        bench_with(|config| config.timing.publish_within = tenure::Timing::default().publish_within).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let build = || {
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 100)
    };
    let workers = [Running::start(build()), Running::start(build())];
    for chunk in 0..10 {
        let requests = (0..1_000).map(|n| JobRequest::new("q", "k", json!(chunk * 1_000 + n)));
        bench.tenure.enqueue_many(requests).await.unwrap();
    }
    bench.until_count("tenure.job_history WHERE status = 'completed'", 10_000).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    let consumer = bench.consumer("q").await;
    assert_eq!((consumer.num_ack_pending, consumer.num_pending), (0, 0));
    assert_eq!(bench.count("tenure.job_executions_all").await, 10_000);
    assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'completed'").await, 10_000);
    assert_eq!(bench.count("(SELECT DISTINCT job_id FROM tenure.job_executions_all) j").await, 10_000);
    let events = "SELECT event, path, reason, count(*) FROM tenure.recovery_events GROUP BY 1, 2, 3";
    assert_eq!(bench.text(events).await, "", "nothing had to be recovered");
    for worker in workers {
        worker.stop().await;
    }
}

/// A count of a limited queue takes up to a call's whole time; callers must not wait for one another's counts.
#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_every_caller_of_a_limited_queue_is_answered_within_one_deadline() {
    let bench = bench_with_servers(|_| {}).await;
    let link = Proxy::to_url(&bench.config.database_url).await;
    let mut config = bench.config.clone();
    config.database_url = link.of(&bench.config.database_url);
    config.timing.database_within = Duration::from_secs(1);
    let tenure = tenure::Tenure::connect(&config).await.unwrap();
    tenure.limit_queue("q", tenure::queues::QueueLimits::new().max_queued(1_000)).await.unwrap();
    tenure.enqueue(JobRequest::new("q", "k", json!(0))).await.unwrap();
    // The last count has expired.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    link.cut();
    let began = Instant::now();
    let callers: Vec<_> = (0..20)
        .map(|n| {
            let (tenure, pool) = (tenure.clone(), bench.pool.clone());
            tokio::spawn(async move {
                let job = JobRequest::new("q", "k", json!(n));
                if n % 4 == 0 && n < 12 {
                    let mut tx = pool.begin().await.unwrap();
                    tenure.enqueue(job).tx(&mut tx).await.map(drop)
                } else {
                    tenure.enqueue(job).await.map(drop)
                }
            })
        })
        .collect();
    for caller in callers {
        let answer = caller.await.unwrap();
        assert!(
            matches!(&answer, Err(tenure::EnqueueError::Store(error)) if error.is_unavailable()),
            "{answer:?}"
        );
    }
    assert!(began.elapsed() < Duration::from_millis(1_700), "{:?}", began.elapsed());
    // Postgres is back, and the queue accepts jobs.
    link.lead_to(
        bench.config.database_url.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap(),
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while tenure.enqueue(JobRequest::new("q", "k", json!(0))).await.is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
    }
}

/// A call waits first for a connection, then for its statement. One deadline covers both.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_connection_and_then_for_its_statement_has_one_deadline() {
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(2)).await;
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(0))).await.unwrap().id;
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs").execute(&mut *lock).await.unwrap();
    let ask = || {
        let tenure = bench.tenure.clone();
        tokio::spawn(async move {
            let began = Instant::now();
            assert!(tenure.job(id).await.unwrap_err().is_unavailable());
            began.elapsed()
        })
    };
    // They have every connection.
    let mut calls: Vec<_> = (0..6).map(|_| ask()).collect();
    bench.until("(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock') = 6").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    calls.push(ask());
    for call in calls {
        let took = call.await.unwrap();
        assert!(took < Duration::from_millis(2_700), "{took:?}");
    }
}
