//! Lanes on the pages: their own page, live; held jobs; keys are text.

use serde_json::json;
use tenure::{JobRequest, lanes::Lanes};

use super::{
    Dashboard, EVIL,
    browser::{Browser, Look},
    calm,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_queues_lanes_shows_those_that_wait_longest_and_keys_are_text() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &[], &[("TENURE_SERVE_PAYLOADS", "false")]).await;
    let page = dashboard.get("/queues/q/lanes").await;
    assert!(page.status == 200 && page.body.contains("This queue has no lanes"), "{}", page.body);
    bench
        .tenure
        .put_lanes("q", Lanes::new().running(1).rate(30, std::time::Duration::from_secs(60)))
        .await
        .unwrap();
    let job = |lane: &str| JobRequest::new("q", "k", json!(1)).lane(lane);
    let mut last = None;
    for _ in 0..3 {
        last = Some(bench.tenure.enqueue(job(EVIL)).await.unwrap().id);
    }
    bench.tenure.enqueue(job("org-8")).await.unwrap();
    bench.until_count("tenure.lane_slots", 2).await;
    let page = dashboard.get("/queues/q/lanes").await.body;
    for words in ["&lt;script&gt;pwned()", "1 of 1 slots used", "org-8", "30/min", "a slot"] {
        assert!(page.contains(words), "no {words} in\n{page}");
    }
    let first = page.find("&lt;script&gt;pwned()").unwrap();
    assert!(first < page.find("org-8").unwrap(), "the lane that waits comes first");
    let held = dashboard.get(&format!("/jobs/{}", last.unwrap())).await.body;
    assert!(held.contains("held: ") && held.contains("runs 1 of 1"), "{held}");
    assert!(held.contains("href=\"/queues/q/lanes\""), "{held}");
    let list = dashboard.get("/jobs?status=held").await.body;
    assert_eq!(list.matches("data-is=\"held\"").count(), 2, "{list}");
    for path in ["/", "/jobs", "/jobs?status=held", "/queues", "/queues/q", "/queues/q/lanes", "/kinds"] {
        let page = dashboard.get(path).await.body;
        assert!(!page.contains("<script>") && !page.contains("9999"), "{path}:\n{page}");
    }
    let queue = dashboard.get("/queues/q").await.body;
    assert!(queue.contains("href=\"/queues/q/lanes\"") && queue.contains("2 held"), "{queue}");
    assert!(dashboard.get("/queues").await.body.contains("2 held"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lanes_move_while_one_looks_and_fit_a_phone() {
    let bench = calm().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let long = "customer-with-a-key-of-many-characters-".repeat(6);
    let job = |lane: &str| JobRequest::new("q", "k", json!(1)).lane(lane);
    for lane in [long.as_str(), &long, "org-7", "org-7"] {
        bench.tenure.enqueue(job(lane)).await.unwrap();
    }
    bench.until_count("tenure.lane_slots", 2).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let browser = Browser::sized(dashboard.address, Look::new(375, 812)).await;
    browser.open("/queues/q").await;
    browser.click("a[href$='/queues/q/lanes']").await;
    browser.until_text("#lane-org-7 [data-label=Waiting]", "1").await;
    browser.until_text("#live-state", "live").await;
    browser.value("window.stayed = true").await;
    let wide =
        browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
    assert_eq!(wide, json!(0), "the page is too wide");
    for _ in 0..2 {
        bench.tenure.enqueue(job("org-7")).await.unwrap();
    }
    browser.until_text("#lane-org-7 [data-label=Waiting]", "3").await;
    assert_eq!(browser.value("window.stayed").await, json!(true));
}
