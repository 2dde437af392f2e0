//! The drawing of a group: live, at 375 pixels, and by keyboard.

use std::time::Duration;

use fantoccini::key::Key;
use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Worker};

use super::{
    Dashboard,
    browser::{Browser, Look},
    calm,
};
use crate::harness::{Running, bench_with};

#[tokio::test(flavor = "multi_thread")]
async fn the_drawing_of_a_group_moves_fits_a_phone_and_is_used_by_keyboard() {
    let bench = calm().await;
    let job = |kind: &str| JobRequest::new("q", kind, json!(1)).max_attempts(1);
    let graph = bench.tenure.graph();
    let fetch = graph.add(job("fetch"));
    let parts: Vec<_> = (0..4).map(|_| graph.add(job("score")).after([&fetch])).collect();
    let merge = graph.add(job("merge")).after(&parts);
    let report = graph.add(job("report")).after([&merge]);
    graph.await.unwrap();
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get(&format!("/jobs/{}/graph", merge.id())).await;
    assert!(page.status == 200 && page.body.contains("0 of 7 have ended"), "{}", page.body);
    // Four jobs alike are one box.
    assert_eq!(page.body.matches("<rect").count(), 8, "{}", page.body);
    assert!(page.body.contains("score × 4"), "{}", page.body);
    // The list of jobs says the same of each: none of them waits for a lane.
    let list = dashboard.get("/jobs?status=held").await.body;
    assert_eq!(list.matches("waits for the jobs before it: 0 of 1 have ended").count(), 5, "{list}");
    assert!(
        list.contains("waits for the jobs before it: 0 of 4 have ended") && !list.contains("lane <"),
        "{list}"
    );
    let alone = bench.tenure.enqueue(JobRequest::new("other", "k", json!(1))).await.unwrap().id;
    assert_eq!(dashboard.get(&format!("/jobs/{alone}/graph")).await.status, 404);
    assert!(!dashboard.get(&format!("/jobs/{alone}")).await.body.contains("/graph"));

    let browser = Browser::sized(dashboard.address, Look::new(375, 812)).await;
    browser.open(&format!("/jobs/{}", report.id())).await;
    browser.click("a[href$='/graph']").await;
    browser.until_text("#graph header p", "0 of 7 have ended").await;
    browser.until_text("#live-state", "live").await;
    browser.value("window.stayed = true").await;
    let wide =
        browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
    assert_eq!(wide, json!(0), "the page is too wide");
    let kinds = "[...document.querySelectorAll('.graph a')].map(a => a.querySelector('text').textContent)";
    assert_eq!(browser.value(kinds).await, json!(["fetch", "score × 4", "merge", "report"]));
    let inside = "[...document.querySelectorAll('.graph text')].every(text => {
        const box = text.closest('a').querySelector('rect').getBoundingClientRect();
        const at = text.getBoundingClientRect();
        return at.left >= box.left && at.right <= box.right && at.top >= box.top && at.bottom <= box.bottom; })";
    assert_eq!(browser.value(inside).await, json!(true), "a text leaves its box");
    // The drawing moves while one looks.
    let run = async |_: Value, _: JobContext| Ok::<_, JobError>(json!(1));
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), run).concurrency("q", 4);
    let running = Running::start(worker);
    browser.until_text("#graph header p", "7 of 7 have ended").await;
    assert_eq!(browser.value("window.stayed").await, json!(true));
    running.stop().await;
    // Each box is reached by the keyboard, and shows that it is.
    browser.value("document.querySelector('.graph a').focus()").await;
    let focused = "document.activeElement.querySelector('text').textContent";
    assert_eq!(browser.value(focused).await, json!("fetch"));
    browser.press(&String::from(char::from(Key::Tab))).await;
    assert_eq!(browser.value(focused).await, json!("score × 4"));
    let outline = "parseFloat(getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth)";
    assert_eq!(browser.value(outline).await, json!(3));
    browser.press(&String::from(char::from(Key::Enter))).await;
    browser.until_text("h1", "score").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signals_an_event_on_the_page_of_the_job_that_waits_for_it() {
    let bench = calm().await;
    let approve = async |_: Value, ctx: JobContext| {
        let by: Value = ctx.event("approved <by>").await?;
        Ok::<_, JobError>(by)
    };
    let worker = Worker::builder(&bench.tenure)
        .handle_kind("approve", KindOptions::new(), approve)
        .concurrency("q", 1);
    let running = Running::start(worker);
    let job = bench.tenure.enqueue(JobRequest::new("q", "approve", json!(1))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE publish_at = '9999-01-01Z'", 1).await;
    let (looks, acts) =
        (Dashboard::start(&bench, &[], &[]).await, Dashboard::start(&bench, &["--actions"], &[]).await);
    let page = looks.get(&format!("/jobs/{job}")).await.body;
    assert!(!page.contains("/signal"), "without --actions there is no form");

    let browser = Browser::sized(acts.address, Look::new(375, 812)).await;
    browser.open(&format!("/jobs/{job}")).await;
    browser.until_text("#job-events label", "approved <by>").await;
    browser.value("document.querySelector('#job-events input[name=payload]').value = 'ann'").await;
    browser.click("#job-events button").await;
    browser.until_text(".flash", "a string needs its own quotes").await;
    browser
        .value("document.querySelector('#job-events input[name=payload]').value = '{\"by\": \"ann\"}'")
        .await;
    browser.click("#job-events button").await;
    browser.until_text(".flash", "The job has the event \"approved <by>\".").await;
    let row = bench.until_finished(job).await;
    assert_eq!(row.output, Some(json!({"by": "ann"})));
    browser.until_text("#job-head", "completed").await;
    assert_eq!(browser.value("document.querySelector('#job-events').hidden").await, json!(true));
    running.stop().await;
}

/// Of a large group the page reads the oldest waits, says so, and stays live.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_group_that_is_read_in_part_does_not_say_that_all_have_ended() {
    // One statement links 20,001 jobs.
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(10)).await;
    let graph = bench.tenure.graph();
    let first = graph.add(JobRequest::new("q", "fetch", json!(1)));
    for _ in 0..20_001 {
        drop(graph.add(JobRequest::new("q", "score", json!(1))).after([&first]));
    }
    let id = first.id();
    graph.await.unwrap();
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get(&format!("/jobs/{id}/graph")).await.body;
    assert!(page.contains("0 of the first 20,001 have ended") && page.contains("score × 20,000"), "{page}");
    assert!(page.contains("The group has more jobs than these."), "{page}");
}
