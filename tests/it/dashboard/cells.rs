//! One dashboard for several cells.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::{JobId, JobRequest};
use uuid::Uuid;

use super::{Dashboard, calm, pictures::at_every_look};
use crate::{
    cells::write,
    harness::{Answer, Bench},
};

/// A cell that is away is waited for as long as two seconds.
const WITHIN: Duration = Duration::from_secs(3);

async fn enqueue(bench: &Bench, queue: &str) -> JobId {
    bench.tenure.enqueue(JobRequest::new(queue, "k", json!(1))).await.unwrap().id
}

/// Asks again and again until the answer is as it must be.
async fn until(dashboard: &Dashboard, path: &str, is: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = dashboard.get(path).await;
        if is(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: {} {}", answer.status, answer.body);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_cells_have_one_dashboard() {
    let (main, eu) = (calm().await, calm().await);
    let (in_main, in_eu) = (enqueue(&main, "mail").await, enqueue(&eu, "mail-eu").await);
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    let file = file.to_str().unwrap();
    let dashboard = Dashboard::start(&main, &["--actions"], &[("TENURE_CELLS", file)]).await;

    let is_counted = |page: &Answer| page.body.contains(">mail<") && page.body.contains(">mail-eu<");
    let top = until(&dashboard, "/", is_counted).await;
    assert_eq!(top.status, 200);
    for part in [
        "<title>Cells · tenure</title>",
        "href=\"/cells/main/\"",
        "href=\"/cells/eu/\"",
        "href=\"/cells/main/queues/mail\"",
        "href=\"/cells/eu/queues/mail-eu\"",
        "data-live=\"/?live=",
        ">answers<",
    ] {
        assert!(top.body.contains(part), "no {part}:\n{}", top.body);
    }
    assert!(!top.body.contains("method=\"post\"") && !top.body.contains("read-only"), "{}", top.body);
    assert!(top.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert_eq!(dashboard.get("/assets/style.css").await.status, 200);
    // For eyes alone.
    if let Some(folder) = std::env::var_os("PICTURES_OF_ALL") {
        let folder = std::path::Path::new(&folder);
        at_every_look(&dashboard, folder, "cells", "/").await;
        at_every_look(&dashboard, folder, "cell", "/cells/eu/").await;
    }

    // Each cell has its own pages, and says which it is.
    for (cell, job, other) in [("main", in_main, in_eu), ("eu", in_eu, in_main)] {
        let base = format!("/cells/{cell}");
        let jobs = dashboard.get(&format!("{base}/jobs")).await;
        assert_eq!(jobs.status, 200);
        let (job, other) = (job.to_string(), other.to_string());
        assert!(jobs.body.contains(&job) && !jobs.body.contains(&other), "{}", jobs.body);
        assert!(jobs.body.contains(&format!("Cell <b>{cell}</b>")), "{}", jobs.body);
        assert!(jobs.body.contains(&format!("<title>Jobs · {cell} · tenure</title>")), "{}", jobs.body);
        for of in ["href=\"/", "src=\"/", "action=\"/", "data-live=\"/"] {
            for rest in jobs.body.split(of).skip(1) {
                let is_own = rest.starts_with(&base[1..]) || of == "href=\"/" && rest.starts_with('"');
                assert!(is_own, "{of}{}", &rest[..rest.len().min(60)]);
            }
        }
        let cookie = jobs.header("set-cookie").unwrap();
        assert!(cookie.contains(&format!("Path={base}")), "{cookie}");
        assert_eq!(dashboard.get(&format!("{base}/assets/live.js")).await.status, 200);
        // The top knows where a job or a queue is.
        let found = dashboard.get(&format!("/jobs/{job}")).await;
        let there = format!("{base}/jobs/{job}");
        assert_eq!((found.status, found.header("location")), (303, Some(there.as_str())));
        assert_eq!(dashboard.get(&there).await.status, 200);
        assert_eq!(dashboard.get(&format!("{base}/jobs/{other}")).await.status, 404);
    }
    let found = dashboard.get("/queues/mail-eu?range=1d").await;
    let there = "/cells/eu/queues/mail-eu?range=1d";
    assert_eq!((found.status, found.header("location")), (303, Some(there)));
    for (path, said) in [
        (format!("/jobs/{}", Uuid::now_v7()), "No cell has this job."),
        ("/jobs/17".into(), "No cell has this job"),
        ("/queues/nowhere".into(), "No cell has this queue."),
        ("/cells/us/jobs".into(), "There is no cell &quot;us&quot;."),
        ("/jobs/count".into(), "No cell has this job"),
        ("/workers".into(), "This page does not exist here"),
    ] {
        let missing = dashboard.get(&path).await;
        assert!(missing.status == 404 && missing.body.contains(said), "{path}: {}", missing.body);
    }
    // Its actions change a cell alone, and the top has none.
    let done = dashboard.post("/cells/eu/queues/mail-eu/pause", "").await;
    assert_eq!((done.status, done.header("location")), (303, Some("/cells/eu/jobs")), "{}", done.body);
    assert!(dashboard.said(&done).await.contains("mail-eu"));
    assert_eq!(eu.count("tenure.queues WHERE paused_at IS NOT NULL").await, 1);
    assert_eq!(main.count("tenure.queues WHERE paused_at IS NOT NULL").await, 0);
    assert_eq!(dashboard.post("/queues/mail/pause", "").await.status, 405);

    until(&dashboard, "/readyz", |answer| answer.status == 200).await;
    let has_both = |page: &Answer| page.body.contains("cell=\"main\"") && page.body.contains("cell=\"eu\"");
    let metrics = until(&dashboard, "/metrics", has_both).await.body;
    assert!(metrics.contains("tenure_postgres_up{cell=\"eu\"} 1"), "{metrics}");
}

/// While a queue drains, two cells have jobs of it: the page lists both, and leaves out the one that is empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_listed_in_each_cell_that_has_its_jobs() {
    let (main, eu) = (calm().await, calm().await);
    let (first, _) = (enqueue(&main, "mail").await, enqueue(&eu, "mail").await);
    enqueue(&eu, "mail").await;
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    let file = file.to_str().unwrap();
    let dashboard = Dashboard::start(&main, &[], &[("TENURE_CELLS", file)]).await;
    let rows = ["id=\"queue-main.mail\"", "id=\"queue-eu.mail\""];
    until(&dashboard, "/", |page| rows.iter().all(|row| page.body.contains(row))).await;
    // Most of its jobs are in this one.
    until(&dashboard, "/queues/mail", |page| page.header("location") == Some("/cells/eu/queues/mail")).await;
    main.tenure.cancel(first).await.unwrap();
    until(&dashboard, "/", |page| !page.body.contains(rows[0]) && page.body.contains(rows[1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_at_one_cell_is_known_at_all() {
    let (main, eu) = (calm().await, calm().await);
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    let variables = [
        ("TENURE_CELLS", file.to_str().unwrap()),
        ("TENURE_SERVE_PASSWORD", "correct horse"),
        ("TENURE_SERVE_BASE_PATH", "/ops"),
    ];
    let dashboard = Dashboard::start(&main, &[], &variables).await;
    for path in ["/ops", "/ops/", "/ops/cells/eu/", "/ops/jobs/17", "/ops/cells/us/", "/metrics"] {
        assert_eq!(dashboard.get(path).await.status, 401, "{path}");
    }
    let right = format!("Basic {}", data_encoding::BASE64.encode(b"tenure:correct horse"));
    let signed_in = dashboard.ask("GET", "/ops/cells/eu/jobs", &[("Authorization", &right)], "").await;
    assert_eq!(signed_in.status, 200);
    let cookie = signed_in.header("set-cookie").unwrap();
    assert!(cookie.starts_with("tenure_known_") && cookie.contains("Path=/ops;"), "{cookie}");
    let headers = [("Authorization", right.as_str()), ("Cookie", cookie.split(';').next().unwrap())];
    for path in ["/ops/", "/ops/cells/main/jobs"] {
        let page = dashboard.ask("GET", path, &headers, "").await;
        assert_eq!((page.status, page.header("set-cookie")), (200, None), "{path}");
        for rest in page.body.split("href=\"/").skip(1) {
            assert!(rest.starts_with("ops/"), "{path}: {}", &rest[..rest.len().min(60)]);
        }
    }
    assert_eq!(dashboard.ask("GET", "/cells/eu/", &headers, "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_whose_postgres_is_away_hides_no_other_and_the_page_says_why() {
    let (main, eu) = (calm().await, calm().await);
    let in_main = enqueue(&main, "mail").await;
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    let text = std::fs::read_to_string(&file).unwrap();
    let away = text.replacen(&eu.config.database_url, "postgres://u@127.0.0.1:1/d", 1);
    std::fs::write(&file, away).unwrap();
    let file = file.to_str().unwrap();
    let dashboard = Dashboard::start(&main, &[], &[("TENURE_CELLS", file)]).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    let top = loop {
        let began_at = Instant::now();
        let top = dashboard.get("/").await;
        assert!(began_at.elapsed() < WITHIN, "{:?}", began_at.elapsed());
        assert_eq!(top.status, 200);
        assert!(top.body.contains("id=\"cell-main\"") && top.body.contains("id=\"cell-eu\""), "{}", top.body);
        if top.body.contains("Connection refused") && top.body.contains(">mail<") {
            break top.body;
        }
        assert!(Instant::now() < deadline, "{}", top.body);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(top.contains(">unavailable<") && top.contains("The queues of eu are not shown."), "{top}");
    // Once that is known, no page waits for it.
    let began_at = Instant::now();
    let found = dashboard.get(&format!("/jobs/{in_main}")).await;
    let there = format!("/cells/main/jobs/{in_main}");
    assert_eq!((found.status, found.header("location")), (303, Some(there.as_str())));
    let unknown = dashboard.get(&format!("/jobs/{}", Uuid::now_v7())).await;
    assert!(unknown.status == 503 && unknown.body.contains("does not answer: eu."), "{}", unknown.body);
    assert!(began_at.elapsed() < Duration::from_secs(2), "{:?}", began_at.elapsed());
    assert_eq!(dashboard.get("/cells/main/jobs").await.status, 200);
    assert_eq!(dashboard.get("/cells/eu/jobs").await.status, 503);
    assert_eq!(dashboard.get("/readyz").await.status, 200);
    // Each change is told once, however often the servers are looked at.
    let log = dashboard.serve.log();
    let told = log.lines().filter(|line| line.contains("Postgres is unavailable")).collect::<Vec<_>>();
    assert!((1..=2).contains(&told.len()) && told.iter().all(|line| line.contains("\"eu\"")), "{told:?}");
}
