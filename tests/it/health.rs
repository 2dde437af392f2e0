//! Health and metrics: a worker's answers to Prometheus and to the platform's probes.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};
use sqlx::Row;
use tenure::{JobContext, JobRequest, KindOptions, Tenure, Worker, WorkerError};

use crate::harness::{
    Bench, Child, Running, ask, bench, bench_with, bench_with_servers, free_address, statement,
};

/// The status and the body of a page; `None` if no process listens.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    ask(address, "GET", path, &[], "").map(|answer| (answer.status, answer.body))
}

async fn until(address: SocketAddr, path: &'static str, status: u16) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = tokio::task::spawn_blocking(move || get(address, path)).await.unwrap();
        match answer {
            Some((is, body)) if is == status => return body,
            _ if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
            other => panic!("{path} is not {status}, but {other:?}"),
        }
    }
}

/// Waits until the worker is unready for this reason, among others.
async fn until_it_lacks(address: SocketAddr, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let why = until(address, "/readyz", 503).await;
        if why.contains(what) {
            return;
        }
        assert!(Instant::now() < deadline, "{what} is not in {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn worker(bench: &Bench) -> Running {
    Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 3),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_makes_a_worker_unready_and_leaves_it_alive() {
    let address = free_address();
    let mut bench = bench_with_servers(|config| {
        config.listen = Some(address);
        config.timing.renew_every = Duration::from_millis(500);
    })
    .await;
    let worker = worker(&bench);
    assert_eq!(until(address, "/readyz", 200).await, "ok\n");
    until(address, "/startupz", 200).await;
    let servers = bench.own.as_mut().unwrap();
    servers.postgres.kill();
    until_it_lacks(address, "Postgres").await;
    // Longer than a runtime may be silent.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(get(address, "/livez").unwrap().0, 200);
    servers.postgres.restart().unwrap();
    until(address, "/readyz", 200).await;
    servers.nats.kill();
    until_it_lacks(address, "NATS").await;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(get(address, "/livez").unwrap().0, 200);
    servers.nats.restart().unwrap();
    until(address, "/readyz", 200).await;
    worker.stop().await;
    assert_eq!(get(address, "/livez"), None, "the port is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_may_not_claim_is_not_ready_and_says_why() {
    let bench = bench_with(|config| config.timing.renew_every = Duration::from_millis(300)).await;
    let builder =
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1);
    let health = builder.health();
    assert!(!health.has_started());
    let worker = Running::start(builder);
    let until = async |wanted: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let reasons = health.ready().err().unwrap_or_default().join("; ");
            if (wanted.is_empty() && reasons.is_empty()) || (!wanted.is_empty() && reasons.contains(wanted)) {
                return;
            }
            assert!(Instant::now() < deadline, "{wanted:?} is not {reasons:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until("").await;
    bench.execute("ALTER TABLE tenure.queues RENAME TO elsewhere").await;
    until("claims: ").await;
    bench.execute("ALTER TABLE tenure.elsewhere RENAME TO queues").await;
    until("").await;
    // This right is needed only for claims of a limited queue.
    bench.tenure.limit_queue("q", tenure::queues::QueueLimits::new().max_running(1)).await.unwrap();
    // By then the worker has read the limit.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    bench.execute("ALTER TABLE tenure.queue_slots RENAME TO elsewhere").await;
    until("claims: ").await;
    bench.execute("ALTER TABLE tenure.elsewhere RENAME TO queue_slots").await;
    until("").await;
    assert!(health.live().is_ok());
    worker.stop().await;
    assert!(health.is_draining() && health.ready().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_for_its_servers_is_alive_and_has_not_started() {
    let address = free_address();
    let mut bench = bench_with_servers(|config| {
        config.listen = Some(address);
        config.timing.renew_every = Duration::from_millis(300);
    })
    .await;
    bench.own.as_mut().unwrap().postgres.kill();
    let worker = worker(&bench);
    until(address, "/startupz", 503).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(get(address, "/livez").unwrap().0, 200);
    assert!(get(address, "/readyz").unwrap().1.contains("worker: starting"));
    bench.own.as_mut().unwrap().postgres.restart().unwrap();
    until(address, "/startupz", 200).await;
    until(address, "/readyz", 200).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_runtime_hangs_is_not_alive() {
    let address = free_address();
    let bench = bench_with(|config| {
        config.listen = Some(address);
        config.timing.renew_every = Duration::from_millis(300);
    })
    .await;
    let config = bench.config.clone();
    // A runtime of one thread, which is then blocked.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn(async move {
        let tenure = Tenure::connect(&config).await.unwrap();
        let worker =
            Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1);
        worker.run_until(std::future::pending()).await.unwrap();
    });
    until(address, "/readyz", 200).await;
    runtime.spawn(async { std::thread::sleep(Duration::from_secs(5)) });
    let why = until(address, "/livez", 503).await;
    assert!(why.contains("something blocks its threads"), "{why}");
    assert_eq!(get(address, "/readyz").unwrap().0, 503);
    // The runtime was only slow.
    until(address, "/livez", 200).await;
    runtime.shutdown_background();
}

/// A loop that ended stays ended until the worker is restarted: the others go on, but the probe must report it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_one_of_whose_loops_has_ended_is_not_alive() {
    let address = free_address();
    let bench = bench().await;
    let variables = [("TENURE_LISTEN", address.to_string()), ("TENURE_FAULT", "tick=panic".to_owned())];
    let mut child = Child::start_with(&bench, "idle", &variables);
    let why = until(address, "/livez", 503).await;
    assert!(why.contains("\"tick\" has ended"), "{why}");
    assert_eq!(get(address, "/readyz").unwrap().0, 503);
    child.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_ends_readiness_while_jobs_still_run() {
    let address = free_address();
    let bench = bench_with(|config| config.listen = Some(address)).await;
    let mut program = bench.program(&["work", "q", "--exec", "sleep 2", "--keepalive"]);
    program.env("TENURE_LISTEN", address.to_string());
    let mut worker = Child::spawn(program, "draining");
    until(address, "/readyz", 200).await;
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.signal(Signal::TERM);
    let why = until(address, "/readyz", 503).await;
    assert!(why.contains("stopping"), "{why}");
    assert_eq!(get(address, "/livez").unwrap().0, 200);
    assert_eq!(worker.wait().await, Some(0));
    assert_eq!(bench.until_finished(id).await.status, tenure::Status::Completed);
}

/// A separate program: the process of the tests has a recorder of its own.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one metric after the other")]
async fn the_metrics_page_shows_what_the_worker_has_done() {
    let address = free_address();
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let command = "grep -q bad && exit 65; exit 0";
    let mut program = bench.program(&["work", "q", "--exec", command, "--concurrency", "4"]);
    program.env("TENURE_LISTEN", address.to_string());
    let mut worker = Child::spawn(program, "metrics");
    until(address, "/readyz", 200).await;
    for n in 0..5 {
        let payload: Value = if n == 0 { json!("bad") } else { json!(n) };
        bench.tenure.enqueue(JobRequest::new("q", "k", payload)).await.unwrap();
    }
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(9)).delay(Duration::from_secs(3600))).await.unwrap();
    bench.publish("q.k", "not json").await;
    let tick = JobRequest::new("q", "tick", json!({}));
    bench.tenure.put_schedule(tenure::schedules::Schedule::new("s", "* * * * * *", tick)).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.job_history WHERE kind = 'tick')").await;
    bench.tenure.remove_schedule("s").await.unwrap();
    bench.tenure.put_quarantine("k", tenure::kinds::Quarantine::when_failed(0.9)).await.unwrap();
    // A worker died long enough ago: its job is reset, and its own late write refused.
    let lost =
        bench.tenure.enqueue(JobRequest::new("q", "lost", json!(1)).delay(Duration::from_secs(3600))).await;
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = gen_random_uuid(),
                    worker_id = 'w', worker_host = 'h', stale_after = '1 s', last_activity_at = now() - interval '1 min',
                    started_at = now(), scheduled_at = now(), publish_at = NULL, published_at = now() WHERE id = '{}'",
            lost.unwrap().id
        ))
        .await;
    bench.until_count("tenure.job_history WHERE kind = 'lost'", 1).await;
    bench.until_count("tenure.job_history WHERE kind = 'k'", 4).await;
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    bench.until("EXISTS (SELECT FROM tenure.queue_stats WHERE scheduled = 1 AND due = 0)").await;
    let expected = [
        "tenure_attempts_total{kind=\"k\",outcome=\"completed\"} 4",
        "tenure_attempts_total{kind=\"k\",outcome=\"failed\"} 1",
        "tenure_dead_letters_total{category=\"permanent\"} 1",
        "tenure_dead_letters_total{category=\"malformed\"} 1",
        "tenure_job_run_seconds_count{kind=\"k\",outcome=\"completed\"} 4",
        "tenure_job_run_seconds_bucket{kind=\"k\",outcome=\"completed\",le=\"600\"} 4",
        "tenure_slots{queue=\"q\"} 4",
        "tenure_active_jobs{queue=\"q\"} 0",
        "tenure_ready 1",
        "tenure_draining 0",
        "tenure_postgres_up 1",
        "tenure_nats_up 1",
        "tenure_queue_jobs{queue=\"q\",state=\"scheduled\"} 1",
        "tenure_queue_paused{queue=\"q\"} 0",
        "tenure_dead_jobs 2",
        "tenure_kind_quarantined{kind=\"k\"} 0",
        "tenure_workers 1",
        "tenure_scanner_held_back 0",
        "tenure_nats_pending{queue=\"q\"} 0",
        "# TYPE tenure_job_wait_seconds histogram",
        "# HELP tenure_claims_total Claims, by the database's answer.",
    ];
    // Values that vary from run to run.
    let begin = [
        "tenure_recoveries_total{path=\"scanner\",reason=\"silent\"} ",
        "tenure_attempts_total{kind=\"lost\",outcome=\"lost\"} 1",
        "tenure_reset_to_running_seconds_count{queue=\"q\"} 1",
        "tenure_schedule_ticks_total{result=\"enqueued\"} ",
        "tenure_jobs_enqueued_total{queue=\"q\"} ",
        "tenure_published_total ",
        "tenure_deliveries_total{queue=\"q\"} ",
        "tenure_redeliveries_total{queue=\"q\"} ",
        "tenure_claims_total{result=\"won\"} ",
        "tenure_job_wait_seconds_count{queue=\"q\"} ",
        "tenure_pickup_seconds_count{queue=\"q\"} ",
        "tenure_slot_idle_seconds_count{queue=\"q\"} ",
        "tenure_batch_size_count{of=\"claim\"} ",
        "tenure_batch_size_count{of=\"complete\"} ",
        "tenure_batch_size_count{of=\"settle\"} ",
        "tenure_terminated_messages_total{reason=\"malformed\"} 1",
        "tenure_slots_free{queue=\"q\"} 4",
        "tenure_queue_oldest_due_seconds{queue=\"q\"} ",
        "tenure_relay_lag_seconds ",
        "tenure_dead_group_jobs{queue=\"q\",kind=\"k\",category=\"",
        "tenure_stats_age_seconds ",
        "tenure_nats_unacknowledged{queue=\"q\"} ",
        "tenure_build_info{version=\"",
    ];
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let page = tokio::task::spawn_blocking(move || get(address, "/metrics")).await.unwrap().unwrap().1;
        let mut missing: Vec<_> =
            expected.iter().copied().filter(|line| !page.lines().any(|is| is == *line)).collect();
        missing.extend(begin.iter().copied().filter(|begin| !page.lines().any(|is| is.starts_with(begin))));
        if missing.is_empty() {
            for secret in ["postgres://", "not json", "bad"] {
                assert!(!page.contains(secret));
            }
            break;
        }
        assert!(Instant::now() < deadline, "{missing:#?} are not in\n{page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bench.execute("UPDATE tenure.quarantines SET began_at = now()").await;
    let is_loud = |page: &str| page.contains("tenure_kind_quarantined{kind=\"k\"} 1");
    while !is_loud(&tokio::task::spawn_blocking(move || get(address, "/metrics")).await.unwrap().unwrap().1) {
        assert!(Instant::now() < deadline + Duration::from_secs(20), "the quarantine is not in the metrics");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    worker.kill().await;
}

/// The relay lags behind jobs that wait for it. A job that a worker claimed before its publication was confirmed does
/// not count.
#[tokio::test(flavor = "multi_thread")]
async fn the_relays_lag_is_that_of_queued_jobs_alone() {
    let bench = bench().await;
    let put = "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at) SELECT gen_random_uuid(), 'q', 'k', '1', 5, now() - interval '2 h', now() + interval '1 h'";
    let lag = || async {
        let none = None::<Vec<String>>;
        let measure = sqlx::query(statement("measure"))
            .bind(&none)
            .bind(&none)
            .bind(None::<Vec<i64>>)
            .bind(None::<Vec<i64>>)
            .bind(60.0)
            .bind(true);
        measure.execute(&bench.pool).await.unwrap();
        let fleet = statement("fleet");
        let rows = sqlx::query(fleet).fetch_all(&bench.pool).await.unwrap();
        let all = rows.iter().find(|row| row.get::<Option<String>, _>("queue").is_none()).unwrap();
        all.get::<f64, _>("lag_s")
    };
    bench.execute(put).await;
    bench
        .execute(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = gen_random_uuid(),
                    worker_id = 'w', worker_host = 'h', stale_after = '1 h', last_activity_at = now(), started_at = now()",
        )
        .await;
    assert!(lag().await < 0.001, "it runs");
    bench.execute(put).await;
    assert!((7_200.0..7_260.0).contains(&lag().await), "it waits for the relay");
}

/// `serve` shows the fleet's figures even without a worker.
#[tokio::test(flavor = "multi_thread")]
async fn serve_shows_the_fleet_without_running_jobs() {
    let address = free_address();
    let mut bench = bench_with_servers(|_| {}).await;
    let working = worker(&bench);
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue(JobRequest::new("other", "k", json!(1))).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.queue_stats WHERE queue = 'other' AND due = 1)").await;
    working.stop().await;
    let listen = address.to_string();
    let mut serve = Child::spawn(bench.program(&["serve", "--listen", &listen]), "serve");
    until(address, "/readyz", 200).await;
    until(address, "/startupz", 200).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let page = until(address, "/metrics", 200).await;
        let shown = [
            "tenure_queue_jobs{queue=\"other\",state=\"due\"} 1",
            "tenure_workers 0",
            "tenure_postgres_up 1",
        ];
        if shown.iter().all(|line| page.lines().any(|is| is == *line)) {
            assert!(!page.contains("tenure_ready"), "it is no worker");
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bench.own.as_mut().unwrap().postgres.kill();
    until_it_lacks(address, "Postgres").await;
    assert_eq!(get(address, "/livez").unwrap().0, 200);
    serve.signal(Signal::TERM);
    assert_eq!(serve.wait().await, Some(0));
}

/// Connections that send nothing, or half of a request.
fn half_open(address: SocketAddr, n: usize) -> Vec<TcpStream> {
    let connected = (0..n).map(|i| {
        let mut stream = TcpStream::connect(address).unwrap();
        if i % 2 == 1 {
            // The listener may have closed it.
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: tenure\r\n").ok();
        }
        stream
    });
    connected.collect()
}

/// Connections that others hold open take no place from a probe, and not many files from the process.
#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_keep_no_probe_waiting() {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    for arguments in [&["work", "q", "--exec", "true"][..], &["serve"]] {
        let address = free_address();
        let mut program = bench.program(arguments);
        program.env("TENURE_LISTEN", address.to_string());
        let mut program = Child::spawn(program, "half-open");
        until(address, "/readyz", 200).await;
        let asked = tokio::task::spawn_blocking(move || {
            let mut held = Vec::new();
            for n in [300, 1_700] {
                held.extend(half_open(address, n));
                for path in ["/livez", "/readyz"].repeat(10) {
                    // More of them come meanwhile.
                    held.extend(half_open(address, 20));
                    let began_at = Instant::now();
                    let answer = get(address, path).map(|(status, _)| status);
                    let within = began_at.elapsed();
                    assert!(
                        answer == Some(200) && within < Duration::from_secs(1),
                        "{path}: {answer:?} {within:?}"
                    );
                }
            }
            held
        });
        let held = asked.await.unwrap();
        let files = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap().count();
        assert!(files < 256 + 100, "{files} files are open");
        assert!(program.log().contains("too many connections are open"), "{}", program.log());
        // A connection without a first request ends after five seconds.
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap().count() > 100 {
            assert!(Instant::now() < deadline, "idle connections stay");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(held);
        program.signal(Signal::TERM);
        assert_eq!(program.wait().await, Some(0));
    }
}

/// A process that may open few files leaves three quarters of them to its connections with both servers.
#[tokio::test(flavor = "multi_thread")]
async fn the_listener_leaves_files_for_the_servers_connections() {
    let address = free_address();
    let bench = bench().await;
    let tenure = bench.program(&[]);
    let mut limited = tokio::process::Command::new("sh");
    let script = "ulimit -n 120; exec \"$0\" serve --listen \"$1\"";
    limited.args(["-c", script]).arg(tenure.as_std().get_program()).arg(address.to_string());
    limited.envs(bench.environment());
    let mut serve = Child::spawn(limited, "few-files");
    until(address, "/readyz", 200).await;
    let held = tokio::task::spawn_blocking(move || half_open(address, 400)).await.unwrap();
    for _ in 0..5 {
        assert_eq!(until(address, "/livez", 200).await, "ok\n");
        until(address, "/jobs", 200).await;
    }
    assert!(!serve.log().contains("accepting a connection failed"), "{}", serve.log());
    drop(held);
    serve.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_is_an_error_at_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let bench = bench_with(|config| config.listen = Some(address)).await;
    let worker =
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_: Value, _: JobContext| async {});
    let refused = worker.concurrency("q", 1).run_until(async {}).await.unwrap_err();
    assert!(matches!(refused, WorkerError::Listen { .. }), "{refused}");
    assert!(refused.to_string().contains("TENURE_LISTEN"), "{refused}");
    let wrong = bench.program(&["jobs", "list"]).env("TENURE_LISTEN", "9090").output().await.unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("0.0.0.0:9090"));
}
