//! The dashboard while Postgres is away: an open page says that it is out of date, and each page comes back by itself.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{Dashboard, browser::Browser, worker};
use crate::harness::{Answer, bench_with_servers};

/// Follows a page: each event with its data.
fn follow(address: SocketAddr, path: &str) -> UnboundedReceiver<(String, String)> {
    let (said, heard) = tokio::sync::mpsc::unbounded_channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path}?live HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut event = String::new();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(name) = line.strip_prefix("event: ") {
                name.clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data:")
                && said.send((event.clone(), data.to_owned())).is_err()
            {
                return;
            }
        }
    });
    heard
}

/// The seconds since the jobs were counted, as the overview's heading says.
fn age(data: &str) -> Option<f64> {
    let text = data.split("Jobs were counted ").nth(1)?.replace('\u{a0}', " ");
    let (age, _) = text.split_once(" ago")?;
    let mut words = age.split(' ');
    let mut seconds = 0.0;
    while let (Some(n), Some(unit)) = (words.next(), words.next()) {
        seconds += n.parse::<f64>().ok()? * if unit == "min" { 60.0 } else { 1.0 };
    }
    Some(seconds)
}

/// Waits for the first event for which this returns a value.
async fn hear<T>(
    heard: &mut UnboundedReceiver<(String, String)>,
    what: &str,
    of: impl Fn(&str, &str) -> Option<T>,
) -> T {
    let found = async {
        loop {
            let (event, data) = heard.recv().await.expect("the stream goes on");
            if let Some(found) = of(&event, &data) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(40), found).await.unwrap_or_else(|_| panic!("no {what}"))
}

async fn until(dashboard: &Dashboard, path: &str, status: u16) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = dashboard.get(path).await;
        if answer.status == status {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: {} {}", answer.status, answer.body);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_page_says_that_it_is_out_of_date_and_each_page_comes_back() {
    let mut bench = bench_with_servers(|config| config.timing.database_within = Duration::from_secs(2)).await;
    let working = worker(&bench);
    bench.until("EXISTS (SELECT FROM tenure.scanner_state WHERE measured_at IS NOT NULL)").await;
    working.stop().await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/").await;
    browser.until_text("#live-state", "live").await;
    let mut heard = follow(dashboard.address, "/");
    hear(&mut heard, "fresh", |event, _| (event == "fresh").then_some(())).await;
    bench.own.as_mut().unwrap().postgres.kill();
    hear(&mut heard, "stale", |event, _| (event == "stale").then_some(())).await;
    let first = hear(&mut heard, "age", |_, data| age(data)).await;
    let next = hear(&mut heard, "age", |_, data| age(data)).await;
    assert!(first < next, "{first} {next}");
    browser.until_text("#live-state", "out of date").await;

    let away = until(&dashboard, "/queues", 503).await;
    assert!(
        away.body.contains("Postgres is unavailable") && away.body.contains("tries again by itself"),
        "{}",
        away.body
    );
    assert_eq!(away.header("refresh"), Some("5"));
    // A search may be what takes too long: it is repeated less often.
    assert_eq!(until(&dashboard, "/jobs?q=x", 503).await.header("refresh"), Some("30"));
    // A form says what is known of its own action, and keeps its entries.
    let schedule = "name=daily&cron=0+4+*+*+*&queue=q&kind=mine&payload=1&once=a";
    for (path, form, known) in [
        ("/schedule", format!("is_new=1&{schedule}"), "Nothing was saved: Postgres did not answer ("),
        ("/schedule", schedule.into(), "save it again, which is safe."),
        ("/enqueue", "queue=q&kind=mine&payload=1&once=a".into(), "Enqueue it again: it becomes one job."),
    ] {
        let failed = dashboard.post(path, &form).await;
        assert!(failed.status == 503 && failed.body.contains(known), "{path}: {}", failed.body);
        assert!(
            failed.body.contains("value=\"mine\"") && !failed.body.contains("narrow a search"),
            "{}",
            failed.body
        );
    }
    let other = Browser::at(dashboard.address).await;
    other.open("/queues").await;
    other.until_text("h1", "Postgres is unavailable").await;

    bench.own.as_mut().unwrap().postgres.restart().unwrap();
    hear(&mut heard, "fresh", |event, _| (event == "fresh").then_some(())).await;
    browser.until_text("#live-state", "live").await;
    other.until_text("h1", "Queues").await;
    assert_eq!(until(&dashboard, "/queues", 200).await.header("refresh"), None);

    // The statements of open pages lock tables in another order: one of the two may be ended for a deadlock.
    while sqlx::query("DROP SCHEMA IF EXISTS tenure CASCADE").execute(&bench.pool).await.is_err() {}
    let missing = until(&dashboard, "/queues", 503).await;
    let text = "run `tenure migrate`";
    assert!(missing.body.contains(text) && missing.header("refresh") == Some("5"), "{}", missing.body);
    hear(&mut heard, text, |_, data| data.contains(text).then_some(())).await;
}
