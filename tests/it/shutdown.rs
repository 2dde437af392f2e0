//! Graceful shutdown: finish, release, drain, exit 0. A second signal exits at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::json;
use tenure::{
    JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Worker, WorkerBuilder, WorkerError,
};
use tokio::sync::Semaphore;

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, until_file},
    scenarios::{Step, step},
};

#[tokio::test(flavor = "multi_thread")]
async fn on_sigterm_running_jobs_finish_and_the_worker_exits_0() {
    let bench = bench().await;
    let mut worker = Child::start(&bench, "worker");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    worker.signal(Signal::TERM);
    worker.until_log("stopping: no new jobs").await;
    // A job enqueued now is for other workers.
    let late = Step::new(&bench, "report");
    bench.tenure.enqueue(late.clone()).await.unwrap();
    std::fs::write(job.file("go"), "").unwrap();
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    let done = bench.tenure.job(id).await.unwrap().unwrap();
    assert_eq!((done.output, done.fencing_token.0), (Some(json!("first")), 1));
    assert!(!late.file("started").exists());
    assert_eq!(bench.count("tenure.workers").await, 0);
    assert_eq!(bench.messages().await, 1, "only the late job's message is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_outlast_the_grace_are_released_at_once_and_not_charged() {
    let bench = bench_with(|config| {
        config.timing.shutdown_grace = Duration::from_millis(300);
        // Long timers: only their own worker can release these jobs.
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    // One handler listens to its cancellation; the other does not and is dropped.
    let stubborn = |payload: serde_json::Value, ctx: JobContext| async move {
        if ctx.token().0 > 1 {
            return Outcome::done(ctx.attempt());
        }
        if payload == json!("polite") {
            let reason = ctx.cancelled().await;
            return Err(JobError::msg(format!("stopped: {reason}")));
        }
        std::future::pending().await
    };
    let build =
        || Worker::builder(&bench.tenure).handle_any(KindOptions::new(), stubborn).concurrency("q", 2);
    let worker = Running::start(build());
    let mut ids = vec![];
    for payload in ["polite", "stubborn"] {
        ids.push(bench.tenure.enqueue(JobRequest::new("q", "k", json!(payload))).await.unwrap().id);
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    let started = Instant::now();
    worker.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 0 AND fencing_token = 1 AND scheduled_at <= now()").await, 2);
    let events =
        bench.text("SELECT event, path, reason, count(*) FROM tenure.recovery_events GROUP BY 1, 2, 3").await;
    assert_eq!(events, "(release,worker,\"the worker was stopped\",2)");
    assert_eq!(bench.count("tenure.job_executions WHERE outcome = 'released'").await, 2);
    let next = Running::start(build());
    for id in ids {
        assert_eq!(
            bench.until_finished(id).await.output,
            Some(json!(1)),
            "the next attempt is number 1 again"
        );
    }
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    next.stop().await;
}

/// One real worker, drained from the terminal: while it cannot be asked, while it is frozen, and then for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_ends_its_job_takes_no_other_and_exits_0_and_one_that_cannot_answer_is_named() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
        // No renewal writes the subject back that this test changes.
        config.timing.renew_every = Duration::from_secs(60);
        config.timing.shutdown_grace = Duration::from_secs(60);
    })
    .await;
    let drain = async |id: &str, variables: &[(&str, &str)]| {
        let mut program = bench.program(&["workers", "drain", id]);
        let output = program.envs(variables.iter().copied()).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    let go = bench.config.runtime_dir.join("go");
    let command = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; echo '{{\"output\": \"whole\"}}'",
        go.to_str().unwrap()
    );
    let mut worker = Child::spawn(bench.program(&["work", "q", "--exec", &command]), "work");
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let id = bench.value::<String>("SELECT worker_id FROM tenure.workers").await;
    let process = format!("send SIGTERM to process {} on ", worker.pid());

    let (code, said) = drain("unknown-1-x", &[]).await;
    assert!(
        code == Some(1)
            && said.contains(&format!("no worker has the ID \"unknown-1-x\"; the workers are {id}")),
        "{said}"
    );
    let (code, said) = drain(&id, &[("NATS_URL", "nats://127.0.0.1:1")]).await;
    assert!(code == Some(1) && said.contains("was not asked, because") && said.contains(&process), "{said}");
    // A worker of a release before drains answers as to a probe; of a dead one, no process listens.
    let subject = bench.value::<String>("SELECT probe_subject FROM tenure.workers").await;
    let nats = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let mut old = nats.subscribe("tenure.old").await.unwrap();
    nats.flush().await.unwrap();
    let answers = tokio::spawn({
        let nats = nats.clone();
        async move {
            let asked = futures::StreamExt::next(&mut old).await.unwrap();
            nats.publish(asked.reply.unwrap(), "here".into()).await.unwrap();
            nats.flush().await.unwrap();
        }
    });
    for (elsewhere, part) in [
        ("'tenure.old'", "cannot be drained"),
        ("'tenure.gone'", "does not listen"),
        ("NULL", "does not listen"),
    ] {
        bench.execute(&format!("UPDATE tenure.workers SET probe_subject = {elsewhere}")).await;
        let (code, said) = drain(&id, &[]).await;
        assert!(code == Some(1) && said.contains(part) && said.contains(&process), "{elsewhere}: {said}");
    }
    answers.await.unwrap();
    bench.execute(&format!("UPDATE tenure.workers SET probe_subject = '{subject}'")).await;
    assert!(!worker.log().contains("stopping"), "{}", worker.log());

    let (code, said) = drain(&id, &[]).await;
    let drains = format!("{id} drains: it takes no new jobs, finishes its 1 running job, and exits\n");
    assert_eq!((code, said), (Some(0), drains));
    worker.until_log("an operator drains this worker").await;
    worker.until_log("stopping: no new jobs").await;
    let late = bench.tenure.enqueue(JobRequest::new("q", "k", json!(2))).await.unwrap().id;
    let (code, said) = drain(&id, &[]).await;
    assert!(
        code == Some(0) && said.contains("was already stopping; it finishes its 1 running job"),
        "{said}"
    );
    worker.signal(Signal::STOP);
    let (code, said) = drain(&id, &[]).await;
    assert!(code == Some(1) && said.contains("did not answer, and may stop later: it is frozen"), "{said}");
    assert!(said.contains(&process), "{said}");
    worker.signal(Signal::CONT);

    std::fs::write(&go, "").unwrap();
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    let done = bench.tenure.job(job).await.unwrap().unwrap();
    assert_eq!((done.output, done.fencing_token.0), (Some(json!("whole")), 1));
    let waits = bench.tenure.job(late).await.unwrap().unwrap();
    assert_eq!((waits.status, waits.attempt, waits.fencing_token.0), (Status::Queued, 0, 0));
    assert_eq!((bench.count("tenure.workers").await, bench.messages().await), (0, 1));
    let (code, said) = drain(&id, &[]).await;
    assert!(code == Some(1) && said.contains("no worker is registered"), "{said}");
}

/// A grace may be endless: the sum of the graces must not overflow.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_an_endless_cancel_grace_stops_when_its_handlers_have_ended() {
    let bench = bench_with(|config| {
        config.timing.shutdown_grace = Duration::ZERO;
        config.timing.cancel_grace = Duration::MAX;
    })
    .await;
    let polite = |_, ctx: JobContext| async move {
        let reason = ctx.cancelled().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        Err::<(), _>(JobError::msg(format!("stopped: {reason}")))
    };
    let options = KindOptions::new().cancel_grace(Duration::MAX).timeout(Duration::MAX);
    let worker =
        Running::start(Worker::builder(&bench.tenure).handle_any(options, polite).concurrency("q", 1));
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.stop().await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 0").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once_and_the_job_is_recovered() {
    let bench = bench().await;
    let command = bench.program(&["work", "steps", "--exec", "sleep 60"]);
    let mut worker = Child::spawn(command, "work");
    let id = bench
        .tenure
        .enqueue(JobRequest::new("steps", "step", json!({"folder": "/", "first": ""})))
        .await
        .unwrap()
        .id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.signal(Signal::TERM);
    worker.until_log("stopping: no new jobs").await;
    let started = Instant::now();
    worker.signal(Signal::INT);
    assert_eq!(worker.wait().await, Some(1), "{}", worker.log());
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
    let next = Running::start(Worker::builder(&bench.tenure).handle(step));
    assert_eq!(bench.until_finished(id).await.fencing_token, 2);
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_returns_the_messages_that_were_on_their_way_to_it() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    let build =
        || Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 5);
    // The worker stops again and again in the middle of a flood. With an ack_wait of two minutes, the test would notice
    // a single message that a stopped worker kept.
    let requests = (0..2_000).map(|n| JobRequest::new("q", "k", json!(n)));
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue_many(requests).await.unwrap();
    for _ in 0..5 {
        let before = bench.count("tenure.job_history").await;
        let worker = Running::start(build());
        bench
            .until(&format!("(SELECT count(*) FROM tenure.job_history) > {}", (before + 50).min(1_999)))
            .await;
        worker.stop().await;
    }
    let worker = Running::start(build());
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 2000", Duration::from_secs(20)).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'completed'").await, 2_000);
    worker.stop().await;
}

/// Returns a worker of one slot, the permits that its jobs add when they begin, and those that they wait for to end.
fn gated(bench: &Bench) -> (WorkerBuilder, Arc<Semaphore>, Arc<Semaphore>) {
    let (begun, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (tell, wait) = (begun.clone(), may_end.clone());
    let handler = move |_: serde_json::Value, _: JobContext| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.add_permits(1);
            wait.acquire().await.unwrap().forget();
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1);
    (worker, begun, may_end)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_shows_its_workers_health_and_stops_it_when_its_jobs_have_ended() {
    let bench = bench().await;
    let (worker, begun, may_end) = gated(&bench);
    let worker = worker.start().unwrap();
    let health = worker.health();
    let within = Instant::now() + Duration::from_secs(10);
    while let Err(lacks) = health.ready() {
        assert!(Instant::now() < within, "{lacks:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    begun.acquire().await.unwrap().forget();
    worker.stop();
    worker.stop();
    // A wait that is dropped changes nothing.
    let early = tokio::time::timeout(Duration::from_millis(300), worker.wait()).await;
    assert!(early.is_err() && !worker.is_finished(), "it waits for its job: {early:?}");
    assert!(health.is_draining() && health.live().is_ok());
    let late = bench.tenure.enqueue(JobRequest::new("q", "k", json!(2))).await.unwrap().id;
    may_end.add_permits(1);
    let (one, other) = tokio::join!(worker.wait(), worker.wait());
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    let [done, waits] = [id, late].map(|id| bench.tenure.job(id));
    let (done, waits) = (done.await.unwrap().unwrap(), waits.await.unwrap().unwrap());
    assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 1));
    assert_eq!((waits.status, waits.fencing_token.0), (Status::Queued, 0), "it took no new job");
    assert_eq!(bench.count("tenure.workers").await, 0);
    worker.wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_or_a_run_until_that_is_dropped_asks_its_worker_to_stop_and_does_not_wait() {
    for by_handle in [true, false] {
        let bench = bench().await;
        let (worker, begun, may_end) = gated(&bench);
        let health = worker.health();
        let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
        if by_handle {
            let worker = worker.start().unwrap();
            begun.acquire().await.unwrap().forget();
            drop(worker);
        } else {
            tokio::select! {
                ended = worker.run_until(std::future::pending()) => panic!("{ended:?}"),
                begun = begun.acquire() => begun.unwrap().forget(),
            }
        }
        bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
        let within = Instant::now() + Duration::from_secs(5);
        while !health.is_draining() {
            assert!(Instant::now() < within);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        may_end.add_permits(1);
        assert_eq!(bench.until_finished(id).await.fencing_token, 1, "the job ran to its end");
        bench.until_count("tenure.workers", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wait_on_a_handle_returns_the_error_that_ended_its_worker() {
    let bench = bench().await;
    bench
        .execute(
            "INSERT INTO tenure.migrations (version, name, checksum, breaks_before) VALUES (99, 'less', '', 98)",
        )
        .await;
    let (worker, ..) = gated(&bench);
    let worker = worker.start().unwrap();
    for _ in 0..2 {
        let error = worker.wait().await.unwrap_err();
        assert!(matches!(error, WorkerError::TooOld { version: 99, breaks_before: 98, .. }), "{error}");
    }
    worker.stop();
    assert!(worker.wait().await.is_err());

    bench.execute("DELETE FROM tenure.migrations WHERE version = 99").await;
    let (worker, begun, _) = gated(&bench);
    let worker = worker.start().unwrap();
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    begun.acquire().await.unwrap().forget();
    worker.abort();
    let error = worker.wait().await.unwrap_err();
    assert!(matches!(error, WorkerError::Aborted), "{error}");
    assert_eq!(
        bench.count("tenure.jobs WHERE status = 'processing'").await,
        1,
        "the job stays as a crash leaves it"
    );

    let wrong = Worker::builder(&bench.tenure).start().unwrap_err();
    assert!(matches!(wrong, WorkerError::Nothing("handler")), "{wrong}");
}
