//! A calm redrive from the page of a group of dead letters.

use serde_json::{Value, json};
use tenure::{JobContext, JobError, KindOptions, Worker};

use super::{
    Dashboard,
    browser::{Browser, Look},
    calm,
    pages::{between, dead},
};
use crate::harness::Running;

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_redriven_with_a_canary_and_the_page_shows_why_it_stopped() {
    let bench = calm().await;
    dead(&bench, &vec!["no route to the shop".into(); 12]).await;
    dead(&bench, &["another error".into()]).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let groups = dashboard.get("/dead").await.body;
    assert!(!groups.contains("id=\"calm\""), "only a group has the form");
    let row = groups.split("<tr>").find(|row| row.contains(">no route to the shop<")).unwrap();
    let link = between(row, "href=\"", "\"").replace("&amp;", "&");
    let viewer = Dashboard::start(&bench, &[], &[]).await;
    assert!(!viewer.get(&link).await.body.contains("id=\"calm\""));

    let browser = Browser::sized(dashboard.address, Look::new(375, 812)).await;
    browser.open(&link).await;
    let wide =
        browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
    assert_eq!(wide, json!(0), "the page is too wide");
    browser.click("#calm summary").await;
    browser.value("document.querySelector('#calm [name=canary]').value = '3'").await;
    browser.confirm("#calm button", "A redrive of 12 jobs has begun with a canary of 3").await;
    browser.until_text("#redrives", "0 of 12").await;
    // The dependency is still broken.
    let fails = async |_: Value, _: JobContext| Err::<(), _>(JobError::msg("no route to the shop"));
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), fails).concurrency("q", 4);
    let worker = Running::start(worker);
    browser.until_text("#redrives", "of the latest 3 jobs failed").await;
    browser.until_text("#redrives", "3 of 12").await;
    assert_eq!(bench.count("tenure.redrives WHERE state = 'stopped' AND redriven = 3").await, 1);
    worker.stop().await;

    for (fields, wrong) in [
        ("canary=few&stop_at=10%25", "Canary: it must be a number of jobs"),
        ("canary=0", "1 to 100000 jobs, not 0"),
        ("canary=3&rate=fast", "Then at most: it must be a rate such as 10/s"),
        ("canary=3&stop_at=10", "Stop at: it must be a percentage such as 10%"),
        ("canary=3&stop_at=0%25", "above 0 %"),
    ] {
        let answer = dashboard.post("/dead/calm", &format!("shown=9000000000000000&{fields}")).await;
        let said = dashboard.said(&answer).await;
        assert!(said.contains(wrong), "{fields}: {said}");
    }
    // Another one, which a person stops while no worker runs.
    let begun = dashboard.post("/dead/calm", "shown=9000000000000000&canary=2&rate=5/s").await;
    assert!(dashboard.said(&begun).await.contains("has begun with a canary of 2"));
    browser.open("/dead").await;
    browser.confirm("#redrives form button", "The redrive is stopped").await;
    bench.until_count("tenure.redrives WHERE state = 'cancelled'", 1).await;
    browser.until_text("#redrives", "all dead letters").await;
}
