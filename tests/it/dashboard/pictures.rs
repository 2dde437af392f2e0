//! Pictures of the dashboard for the README and the guide: `scripts/pictures`. The workers and jobs are real, one
//! worker killed and one frozen; only the hour before is made up. With `PICTURES_OF_ALL=FOLDER`, every page at four looks
//! is written there, too.

use std::{path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{
    Backoff, Config, JobContext, JobError, JobRequest, KindOptions, Outcome, Tenure, Worker,
    queues::QueueLimits, schedules::Schedule,
};

use super::{
    Dashboard, PAGES,
    browser::{Browser, Look},
};
use crate::harness::{Bench, Child, Running, bench_with};

/// A usual hour: some three hundred jobs a minute, and a quarter of an hour in which a gateway failed.
const HOUR: &str = "
    INSERT INTO tenure.activity (minute, queue, claimed, completed, retried, snoozed, failed, cancelled, released,
           waited, ran)
    SELECT date_trunc('minute', now()) - n * interval '1 minute', queue, jobs + ill, jobs, ill, 0, ill / 12,
           CASE WHEN n % 13 = 5 THEN 3 ELSE 0 END, 0,
           ARRAY[jobs / 20, jobs / 10, jobs / 4, jobs / 4, jobs / 5, jobs / 10, jobs / 20, 2 + ill / 4, 1 + ill / 4],
           ARRAY[0, jobs / 10, jobs / 10, jobs / 5, jobs / 5, jobs / 5, jobs / 10, jobs / 20, 4, 2, 1]
      FROM (SELECT n, queue, (share * (240 + 60 * sin(n / 9.0) + (n * 37) % 41))::bigint AS jobs,
                   CASE WHEN queue = 'billing' AND n BETWEEN 17 AND 30 THEN 6 + (n * 7) % 19 ELSE (n * 5) % 3 END AS ill
              FROM generate_series(1, 59) AS n,
                   (VALUES ('mail', 0.55), ('billing', 0.25), ('repos', 0.2)) AS q (queue, share)) hour";

async fn host(config: &Config, name: &str) -> Tenure {
    let mut config = config.clone();
    config.hostname = Some(name.into());
    Tenure::connect(&config).await.unwrap()
}

/// Obeys its payload: its duration, its number of steps, and its end.
fn worker(tenure: &Tenure, queues: &[(&str, u32)]) -> Running {
    let handler = |payload: Value, ctx: JobContext| async move {
        let steps = payload["steps"].as_u64().unwrap_or(1);
        let stage = payload["stage"].as_str().unwrap_or("working").to_owned();
        let from = ctx.checkpoint::<u64>().unwrap_or(0);
        for step in from..steps {
            let percent = f32::from(u16::try_from(step * 1_000 / steps).unwrap()) / 10.0;
            ctx.progress(&stage, percent, &format!("{step} of {steps} files")).await?;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(20))) => {}
                () = async { ctx.cancelled().await; } => return Ok(Outcome::Cancel("told to stop".into())),
            }
            if step % 10 == 9 {
                ctx.save_checkpoint(&(step + 1)).await?;
            }
        }
        match payload["error"].as_str() {
            Some(error) if payload["for_good"] == json!(true) => Err(JobError::permanent(error.to_owned())),
            Some(error) => Err(JobError::msg(error)),
            None => Outcome::done(json!({ "files": steps })),
        }
    };
    let options =
        KindOptions::new().backoff(Backoff { first: Duration::from_millis(300), ..Backoff::DEFAULT });
    let mut worker = Worker::builder(tenure).handle_any(options, handler);
    for (queue, slots) in queues {
        worker = worker.concurrency(queue, *slots);
    }
    Running::start(worker)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "scripts/pictures runs it: it writes into docs/images"]
async fn of_the_dashboard() {
    let folder = Path::new(crate::harness::ROOT).join("docs/images");
    std::fs::create_dir_all(&folder).unwrap();
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(4);
        config.timing.ack_wait = Duration::from_secs(20);
    })
    .await;
    let (web, batch) = (host(&bench.config, "web-1").await, host(&bench.config, "batch-7c9d8").await);
    let on_web = worker(&web, &[("mail", 8), ("billing", 4)]);
    let on_batch = worker(&batch, &[("repos", 4)]);
    let enqueue = async |queue: &str, kind: &str, payload: Value| {
        bench.tenure.enqueue(JobRequest::new(queue, kind, payload).max_attempts(3)).await.unwrap().id
    };
    bench.execute(HOUR).await;
    let nightly = JobRequest::new("reports", "daily", json!({ "format": "pdf" }));
    let daily = Schedule::new("daily-report", "0 3 * * MON-FRI", nightly).time_zone("Europe/Berlin");
    bench.tenure.put_schedule(daily).await.unwrap();
    bench.tenure.limit_queue("billing", QueueLimits::new().max_running(4)).await.unwrap();

    // One worker is frozen in the middle of its job, and one is killed.
    let script =
        "for i in 1 2 3 4 5 6 7 8 9; do echo '{\"stage\":\"encode\",\"progress\":'$i'0}'; sleep 0.4; done";
    let gpu = |name: &str| {
        let mut command = bench.program(&["work", "media", "--exec", script, "--concurrency", "2"]);
        command.env("TENURE_HOSTNAME", name);
        Child::spawn(command, name)
    };
    let (frozen, mut killed) = (gpu("gpu-3"), gpu("gpu-4"));
    for n in 0..4 {
        enqueue("media", "thumbnail", json!({ "image": format!("{n}.png") })).await;
    }
    bench.until("(SELECT count(*) FROM tenure.jobs WHERE queue = 'media' AND progress > 5) >= 3").await;
    frozen.signal(Signal::STOP);
    killed.kill().await;
    let _third = gpu("gpu-5");
    let repo = "https://git.example.org/acme/storefront.git";
    let repo = json!({ "repo_url": repo, "steps": 400, "ms": 60, "stage": "parse" });
    let first = enqueue("repos", "analyze", repo.clone()).await;
    bench.until(&format!("(SELECT progress FROM tenure.jobs WHERE id = '{first}') > 8")).await;
    on_batch.abandon().await;
    let other = host(&bench.config, "batch-x2x4k").await;
    let _on_other = worker(&other, &[("repos", 4)]);
    for n in 0..60 {
        let what = match n % 12 {
            3 => json!({ "error": "gateway answered 503 Service Unavailable", "customer": n }),
            7 => json!({ "error": format!("customer {n} has no address"), "for_good": true }),
            _ => json!({ "to": format!("customer-{n}@example.org") }),
        };
        let (queue, kind) = if n % 3 == 0 { ("billing", "invoice.charge") } else { ("mail", "receipt.send") };
        enqueue(queue, kind, what).await;
    }
    bench.tenure.pause_queue("reports").await.unwrap();
    enqueue("reports", "export.csv", json!({})).await;
    bench.until("EXISTS (SELECT FROM tenure.recovery_events WHERE owner_before LIKE 'gpu-3%')").await;
    frozen.signal(Signal::CONT);
    bench.until("EXISTS (SELECT FROM tenure.recovery_events WHERE event = 'refused_write')").await;
    for _ in 0..2 {
        enqueue("repos", "analyze", repo.clone()).await;
    }
    bench
        .until(&format!("(SELECT attempt > 1 AND progress > 30 FROM tenure.jobs WHERE id = '{first}')"))
        .await;
    bench.until("EXISTS (SELECT FROM tenure.queue_stats WHERE queue = 'repos' AND processing > 0)").await;

    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let looks = [
        ("overview", "/".to_owned(), Look::new(1_280, 1_180)),
        ("overview-dark", "/".to_owned(), Look::new(1_280, 1_180).dark()),
        ("job", format!("/jobs/{first}"), Look::new(1_280, 1_000)),
        ("recovery", "/recovery".to_owned(), Look::new(1_280, 800)),
        ("dead", "/dead".to_owned(), Look::new(1_280, 800)),
        ("queue", "/queues/billing".to_owned(), Look::new(1_280, 1_000)),
        ("kinds", "/kinds".to_owned(), Look::new(1_280, 700)),
        ("phone", format!("/jobs/{first}"), Look::new(375, 812).dark()),
    ];
    for (name, path, look) in looks {
        take(&dashboard, &folder, name, &path, look).await;
    }
    if let Some(folder) = std::env::var_os("PICTURES_OF_ALL") {
        of_every_page(&bench, &dashboard, Path::new(&folder)).await;
    }
    on_web.stop().await;
}

pub(super) async fn take(dashboard: &Dashboard, folder: &Path, name: &str, path: &str, look: Look) {
    let browser = Browser::sized(dashboard.address, look).await;
    browser.open(path).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    std::fs::write(folder.join(format!("{name}.png")), browser.picture().await).unwrap();
}

/// A page at each look, for eyes alone.
pub(super) async fn at_every_look(dashboard: &Dashboard, folder: &Path, name: &str, path: &str) {
    for (at, look) in [
        ("1280", Look::new(1_280, 900)),
        ("1280-dark", Look::new(1_280, 900).dark()),
        ("375", Look::new(375, 812)),
        ("375-dark", Look::new(375, 812).dark()),
    ] {
        take(dashboard, folder, &format!("{name}-{at}"), path, look).await;
    }
}

/// Every page.
async fn of_every_page(bench: &Bench, dashboard: &Dashboard, folder: &Path) {
    let id = async |sql: &str| bench.value::<String>(sql).await;
    let worker = id("SELECT worker_id FROM tenure.workers WHERE hostname = 'web-1'").await;
    let dead = id("SELECT id::text FROM tenure.dead_letter_jobs LIMIT 1").await;
    let long = id("SELECT id::text FROM tenure.all_jobs WHERE kind = 'analyze' ORDER BY id LIMIT 1").await;
    let mut pages: Vec<_> = PAGES.map(|(path, name)| (path.to_owned(), name)).to_vec();
    pages.extend([
        (format!("/workers/{worker}"), "worker"),
        (format!("/jobs/{dead}"), "dead-job"),
        (format!("/jobs/{long}"), "job"),
        ("/queues/billing".into(), "queue"),
        ("/queues/reports?range=1d".into(), "queue-paused"),
        ("/schedules/daily-report".into(), "schedule"),
        ("/schedule?name=daily-report".into(), "edit-schedule"),
        ("/enqueue".into(), "enqueue"),
        ("/jobs?status=retrying".into(), "retrying"),
    ]);
    for (path, name) in pages {
        at_every_look(dashboard, folder, &name.replace(' ', "-"), &path).await;
    }
}
