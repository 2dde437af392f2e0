//! The dashboard during faults: of a worker, of Postgres, of NATS.

use std::time::Duration;

use serde_json::json;
use tenure::{JobRequest, kinds::Quarantine};

use super::{Dashboard, calm, enqueue, worker};
use crate::{
    harness::{Child, bench, bench_with, bench_with_servers, until_file},
    scenarios::Step,
};

#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_is_away_the_dashboard_says_so_and_comes_back() {
    let mut bench = bench_with_servers(|config| config.timing.database_within = Duration::from_secs(2)).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    assert_eq!(dashboard.get("/jobs").await.status, 200);
    let postgres = &mut bench.own.as_mut().unwrap().postgres;
    postgres.kill();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let away = loop {
        let answer = dashboard.get("/jobs").await;
        // The process behind a connection may answer once more before it ends.
        if answer.status != 200 || std::time::Instant::now() > deadline {
            break answer;
        }
    };
    assert!(
        away.status == 503 && away.body.contains("Postgres does not answer"),
        "{} {}",
        away.status,
        away.body
    );
    assert_eq!(dashboard.get("/livez").await.status, 200);
    postgres.restart().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while dashboard.get("/jobs").await.status != 200 {
        assert!(std::time::Instant::now() < deadline, "{}", dashboard.serve.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A trigger raises what the server raises when its disk is full.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_postgres_refuses_is_no_missing_answer_and_the_overview_shows_it_until_one_succeeds() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let full = "CREATE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$";
    bench.execute(full).await;
    let trigger =
        "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON tenure.jobs EXECUTE FUNCTION public.full_disk()";
    bench.execute(trigger).await;
    let refused = dashboard.post("/enqueue", "queue=q&kind=k&payload=1&once=a").await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("Postgres refused the write"), "{}", refused.body);
    assert!(refused.body.contains("No space left on device"), "{}", refused.body);
    assert!(!refused.body.contains("in time"), "{}", refused.body);
    let overview = dashboard.get("/").await.body;
    assert!(overview.contains("Postgres does not take writes.") && !overview.contains("No worker is alive"));
    bench.execute("DROP TRIGGER full_disk ON tenure.jobs").await;
    assert_eq!(dashboard.post("/enqueue", "queue=q&kind=k&payload=1&once=b").await.status, 303);
    // The figures of the overview are shared for a moment, but not this.
    assert!(!dashboard.get("/").await.body.contains("Postgres does not take writes."));
}

/// A frozen worker loses its job and writes too late; a killed one loses its job, too. The pages show both, with the
/// job's owners before and after.
#[tokio::test(flavor = "multi_thread")]
async fn recoveries_are_shown_with_the_owners_before_and_after() {
    let bench = bench().await;
    let mut frozen = Child::on(&bench, "frozen", "worker that goes on");
    let step = Step::new(&bench, "then progress");
    let job = bench.tenure.enqueue(step.clone()).await.unwrap().id;
    until_file(&step.file("started")).await;
    frozen.signal(rustix::process::Signal::STOP);
    let mut after = Child::on(&bench, "after", "worker");
    bench.until("EXISTS (SELECT FROM tenure.job_history WHERE worker_id LIKE 'after-%')").await;
    std::fs::write(step.file("go"), "").unwrap();
    frozen.signal(rustix::process::Signal::CONT);
    bench.until("EXISTS (SELECT FROM tenure.recovery_events WHERE event = 'refused_write')").await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for path in ["/recovery".to_owned(), format!("/jobs/{job}")] {
        let page = dashboard.get(&path).await.body;
        for event in ["data-is=\"reset\"", "data-is=\"refused_write\""] {
            let row = page.split("<tr id=\"event-").skip(1).find(|row| row.contains(event));
            let row = row.unwrap_or_else(|| panic!("{path} has no {event}:\n{page}"));
            let (before, next) = (row.find("/workers/frozen-"), row.find("/workers/after-"));
            assert!(before.is_some() && before < next, "{path}: {row}");
        }
    }
    assert!(dashboard.get("/").await.body.contains("<b>1</b> <span>stale write refused"));
    frozen.kill().await;
    after.kill().await;
}

/// A worker never waits to report figures: it drops them and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_of_figures_stops_no_worker() {
    let bench = bench_with(|config| {
        config.timing.renew_every = Duration::from_millis(300);
        config.timing.database_within = Duration::from_secs(3);
    })
    .await;
    let working = worker(&bench);
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.activity IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(6);
    let mut done = 0;
    while std::time::Instant::now() < deadline {
        let job = enqueue(&bench, json!(1)).await;
        bench.until_finished(job).await;
        done += 1;
        // The worker renews its row meanwhile.
        let age: f64 = bench
            .value("SELECT extract(epoch FROM clock_timestamp() - last_seen_at)::float8 FROM tenure.workers")
            .await;
        assert!(age < 2.0, "{age}");
    }
    assert!(done > 10, "{done}");
    lock.rollback().await.unwrap();
    enqueue(&bench, json!(1)).await;
    bench.until("EXISTS (SELECT FROM tenure.activity WHERE completed > 0)").await;
    working.stop().await;
}

/// The dashboard shows a queue without a worker, and works without NATS.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_workers_and_an_unreachable_nats_are_shown() {
    let bench = calm().await;
    let working = worker(&bench);
    bench.tenure.setup(&["unserved".into()]).await.unwrap();
    let waits = bench.tenure.enqueue(JobRequest::new("unserved", "k", json!(1))).await.unwrap().id;
    bench.until("EXISTS (SELECT FROM tenure.queue_stats WHERE queue = 'unserved' AND due = 1)").await;
    let away = [("NATS_URL", "nats://127.0.0.1:1")];
    let dashboard = Dashboard::start(&bench, &["--actions"], &away).await;
    let page = dashboard.get("/").await.body;
    let of_queue = ">unserved</a>.</b> 1 job is due";
    for words in [of_queue, "Start a worker: ", "NATS cannot be reached from here."] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let queues = dashboard.get("/queues").await.body;
    let row = queues.split("id=\"queue-unserved\"").nth(1).unwrap();
    assert!(row.contains("no worker") && !row.split("</tr>").next().unwrap().contains(">active<"), "{row}");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while dashboard.get("/readyz").await.status != 200 {
        assert!(std::time::Instant::now() < deadline, "{}", dashboard.serve.log());
    }
    // Actions that need no NATS succeed, and the log names the job.
    let done = dashboard.post("/jobs/cancel", &format!("id={waits}")).await;
    assert!(dashboard.said(&done).await.contains("1 job is cancelled"));
    let log = dashboard.serve.log();
    assert!(log.contains(&format!("\"of\":\"id={waits}\"")), "{log}");
    working.stop().await;
}

/// A page whose read failed is read again soon, however long the failure took.
#[tokio::test(flavor = "multi_thread")]
async fn a_live_page_is_read_again_soon_after_a_failure() {
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(8)).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let address = dashboard.address;
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET /?live HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if line.starts_with("data:") && said.send(line).is_err() {
                return;
            }
        }
    });
    heard.recv().await.unwrap();
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.scanner_state IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .unwrap();
    while !heard.recv().await.unwrap().contains("Postgres does not answer") {}
    lock.rollback().await.unwrap();
    // The notice goes; ten times as long as the failure took would be more than half a minute.
    let back = async { while !heard.recv().await.unwrap().contains("\"id\":\"notice\"") {} };
    tokio::time::timeout(Duration::from_secs(15), back).await.expect("the page was not read again");
}

/// Nothing that could not be read looks like nothing that is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_says_what_it_could_not_read_and_shows_the_rest() {
    // `tenure serve` measures after a while without a worker, and would overwrite what this test has written.
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_secs(60);
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(180);
    })
    .await;
    bench.tenure.put_quarantine("k", Quarantine::when_failed(0.5)).await.unwrap();
    let unknown =
        "UPDATE tenure.scanner_state SET unserved = '[{\"queue\": 1}]', unserved_until = now() + '1 hour',
                                                   measured_at = now()";
    bench.execute(unknown).await;
    bench.execute("ALTER TABLE tenure.quarantine_counts RENAME TO hidden_counts").await;
    bench.execute("ALTER TABLE tenure.redrives RENAME TO hidden_redrives").await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for (page, unread, rest) in [
        ("/", "What waits without a worker could not be read.", "Dead letters"),
        ("/", "The watched kinds could not be read.", "Dead letters"),
        ("/kinds", "The watched kinds could not be read: ", "A kind appears with its first job."),
        ("/dead", "The redrives with a canary could not be read: ", "Nothing here has failed for good."),
    ] {
        let answer = dashboard.get(page).await;
        assert!(
            answer.status == 200 && answer.body.contains(unread) && answer.body.contains(rest),
            "{page}: {} {}",
            answer.status,
            answer.body
        );
    }
}
