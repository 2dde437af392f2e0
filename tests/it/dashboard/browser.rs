//! The dashboard in a real browser: headless Chromium, driven by `chromedriver`.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use fantoccini::{
    Client, ClientBuilder, Locator,
    error::{CmdError, ErrorStatus},
    key::Key,
};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tenure::{JobContext, JobRequest, KindOptions, Outcome, Worker, schedules::Schedule};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child as Process, Command},
    sync::{Semaphore, SemaphorePermit, watch},
};

use super::{Dashboard, EVIL, PAGES, calm, enqueue, until_processing, worker};
use crate::harness::{Bench, Running};

/// The size of the window, and the preferences of its user's system.
#[derive(Clone, Copy)]
pub(super) struct Look {
    width: u32,
    height: u32,
    is_dark: bool,
    prefers_dark: bool,
}

impl Look {
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self { width, height, is_dark: false, prefers_dark: false }
    }

    pub(super) fn dark(self) -> Self {
        Self { is_dark: true, ..self }
    }
}

/// A browser of one test; it ends with the test.
pub(super) struct Browser {
    client: Client,
    _driver: Driver,
    _folder: tempfile::TempDir,
    _one_of_few: Option<SemaphorePermit<'static>>,
    base: String,
}

/// Limits the tests that have a browser at a time: each keeps a core busy while it starts and draws.
static AT_ONCE: Semaphore = Semaphore::const_new(3);

/// `chromedriver`, with its browser in the same process group: killed alone, it would leave the browser behind.
struct Driver(Process);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(group) = self.0.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// Starts a driver; returns its port. `None`: it has ended.
async fn start_driver() -> Option<(Driver, u16)> {
    let mut command = Command::new("chromedriver");
    command.args(["--port=0"]).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut driver = command.spawn().unwrap_or_else(|error| {
        panic!("chromedriver: {error}. Debian: apt-get install chromium chromium-driver")
    });
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let driver = Driver(driver);
    let port = loop {
        let line = lines.next_line().await.unwrap()?;
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            break port.trim_end_matches('.').parse().unwrap();
        }
    };
    // Keeps reading, or the process would block on a full pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Some((driver, port))
}

impl Browser {
    pub(super) async fn at(address: SocketAddr) -> Self {
        let permit = AT_ONCE.acquire().await.unwrap();
        let browser = Self::sized(address, Look::new(1_280, 900)).await;
        Self { _one_of_few: Some(permit), ..browser }
    }

    pub(super) async fn sized(address: SocketAddr, look: Look) -> Self {
        let Look { width, height, is_dark, prefers_dark } = look;
        // It takes a port for IPv4 first and then the same one for IPv6, which may be taken: then it ends.
        let mut started = None;
        for _ in 0..5 {
            started = start_driver().await;
            if started.is_some() {
                break;
            }
        }
        let (driver, port) = started.expect("chromedriver says its port");
        let folder = tempfile::tempdir().unwrap();
        let mut options = json!({
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--hide-scrollbars", "--force-prefers-reduced-motion",
                format!("--blink-settings=preferredColorScheme={}", u8::from(!prefers_dark)),
                format!("--window-size={width},{height}"),
                format!("--user-data-dir={}", folder.path().display()),
            ] },
        });
        // A window cannot be as narrow as a phone.
        if width < 500 {
            let metrics = json!({ "width": width, "height": height, "pixelRatio": 1.0 });
            options["goog:chromeOptions"]["mobileEmulation"] = json!({ "deviceMetrics": metrics });
        }
        let Value::Object(options) = options else { unreachable!() };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(options)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap();
        // A headless window has a frame; this is the size of the page.
        client.set_window_size(width, height).await.unwrap();
        let base = format!("http://{address}");
        let browser = Self { client, _driver: driver, _folder: folder, _one_of_few: None, base };
        if is_dark {
            browser.open("/").await;
            browser.value("localStorage.setItem('tenure.theme', 'dark')").await;
        }
        browser
    }

    /// A screenshot as PNG.
    pub(super) async fn picture(&self) -> Vec<u8> {
        self.client.screenshot().await.unwrap()
    }

    pub(super) async fn open(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap();
        self.until("document.readyState === 'complete'").await;
    }

    pub(super) async fn value(&self, script: &str) -> Value {
        self.client
            .execute(&format!("return ({script})"), vec![])
            .await
            .unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Waits until a script returns true.
    pub(super) async fn until(&self, script: &str) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            // While the browser changes pages, scripts fail.
            let asked = self.client.execute(&format!("return Boolean({script})"), vec![]).await;
            if asked.as_ref().is_ok_and(|is| *is == json!(true)) {
                return;
            }
            if std::time::Instant::now() > deadline {
                let shown = self.client.source().await.unwrap_or_default();
                panic!("{script} does not become true ({asked:?}) on\n{shown}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) async fn until_text(&self, selector: &str, text: &str) {
        self.until(&format!("document.querySelector({selector:?})?.innerText.includes({text:?})")).await;
    }

    /// Clicks what there is, or comes soon: on a busy machine, a page is not whole at once.
    pub(super) async fn click(&self, selector: &str) {
        self.until(&format!("document.querySelector({selector:?}) !== null")).await;
        let found = self.client.find(Locator::Css(selector)).await;
        let found = found.unwrap_or_else(|error| panic!("{selector}: {error}"));
        found.click().await.unwrap_or_else(|error| panic!("{selector}: {error}"));
    }

    /// Clicks a button that asks for confirmation, confirms, and waits for these words on the next page.
    pub(super) async fn confirm(&self, selector: &str, said: &str) {
        self.click(selector).await;
        self.until("document.querySelector('dialog.ask[open]')").await;
        self.click("dialog.ask button[value=yes]").await;
        self.until_text(".flash", said).await;
    }

    pub(super) async fn press(&self, keys: &str) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let body = self.client.find(Locator::Css("body")).await.unwrap();
            let active = self.client.active_element().await.unwrap_or(body);
            match active.send_keys(keys).await {
                Ok(()) => return,
                // A page that is not drawn yet takes no key.
                Err(CmdError::Standard(error))
                    if error.error == ErrorStatus::ElementNotInteractable
                        && std::time::Instant::now() < deadline => {}
                Err(error) => panic!("{keys:?}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) async fn path(&self) -> String {
        self.value("location.pathname + location.search").await.as_str().unwrap().to_owned()
    }
}

/// A handler that reports what the test sends, and ends when the test says so.
fn told_worker(bench: &Bench) -> (Running, watch::Sender<(f32, &'static str)>) {
    let (tell, told) = watch::channel((0.0, "begin"));
    let handler = move |_: Value, ctx: JobContext| {
        let mut told = told.clone();
        async move {
            loop {
                let (percent, stage) = *told.borrow_and_update();
                if stage == "end" {
                    return Outcome::done(json!({ "rows": 7 }));
                }
                ctx.progress(stage, percent, "").await?;
                if told.changed().await.is_err() {
                    return Outcome::done(json!(null));
                }
            }
        }
    };
    let worker = Worker::builder(&bench.tenure)
        .handle_any(KindOptions::new().keepalive(), handler)
        .concurrency("q", 2);
    (Running::start(worker), tell)
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_moves_and_a_job_ends_without_a_reload() {
    let bench = calm().await;
    let (working, tell) = told_worker(&bench);
    let job = enqueue(&bench, json!({ "with": "a payload" })).await;
    until_processing(&bench, job).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open(&format!("/jobs/{job}")).await;
    browser.value("window.stayed = true").await;
    // Opened details stay open, and the focus stays where it is.
    browser.click("#payload summary").await;
    for (percent, stage) in [(25.0, "reading"), (60.0, "counting"), (90.0, "writing")] {
        tell.send((percent, stage)).unwrap();
        browser.until_text("#job-progress", &format!("{percent:.0} %")).await;
        browser.until_text("#job-progress", stage).await;
        let bar = browser.value("document.querySelector('#job-progress progress').value").await;
        assert!((bar.as_f64().unwrap() - f64::from(percent)).abs() < 0.01, "{bar}");
    }
    assert_eq!(browser.value("document.querySelector('#payload').open").await, json!(true));
    assert_eq!(browser.value("document.activeElement.tagName").await, json!("SUMMARY"));
    tell.send((100.0, "end")).unwrap();
    browser.until_text("#job-head", "completed").await;
    browser.until_text("#job-timeline", "completed").await;
    browser.until("document.querySelector('#output')").await;
    assert_eq!(browser.value("window.stayed").await, json!(true), "the page was loaded again");
    // So does the list of jobs.
    browser.open("/jobs").await;
    browser.value("window.stayed = true").await;
    let (again, _tell) = (enqueue(&bench, json!(1)).await, tell);
    browser.until(&format!("document.getElementById('job-{again}')?.innerText.includes('completed')")).await;
    assert_eq!(browser.value("window.stayed").await, json!(true));
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_button_does_what_it_says() {
    let bench = calm().await;
    let working = worker(&bench);
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;

    // One job: cancelled while it runs.
    let running = enqueue(&bench, json!({ "do": "wait" })).await;
    until_processing(&bench, running).await;
    browser.open(&format!("/jobs/{running}")).await;
    // A dismissed confirmation changes nothing.
    browser.click("#job-head .danger").await;
    browser.until("document.querySelector('dialog.ask[open]')").await;
    browser.click("dialog.ask button[value=no]").await;
    browser.until("!document.querySelector('dialog.ask')").await;
    assert_eq!(bench.count("tenure.jobs WHERE cancel_requested_at IS NOT NULL").await, 0);
    browser.confirm("#job-head .danger", "asked to stop").await;
    browser.until_text("#job-head", "cancelled").await;
    assert_eq!(browser.path().await, format!("/jobs/{running}"));

    // A job that waits until it is due: run now.
    let later = JobRequest::new("q", "k", json!(1)).delay(Duration::from_secs(3_600));
    let later = bench.tenure.enqueue(later).await.unwrap().id;
    browser.open(&format!("/jobs/{later}")).await;
    browser.click("#job-head .actions button").await;
    browser.until_text(".flash", "due now").await;
    browser.until_text("#job-head", "completed").await;

    // Many: ticked in the list, counted by the button, cancelled.
    let mut waiting = vec![];
    for _ in 0..3 {
        let later = JobRequest::new("q", "k", json!(1)).delay(Duration::from_secs(3_600));
        waiting.push(bench.tenure.enqueue(later).await.unwrap().id);
    }
    browser.open("/jobs?status=queued").await;
    for job in &waiting[..2] {
        browser.click(&format!("#job-{job} input[name=id]")).await;
    }
    browser.until_text("button[formaction='/jobs/cancel']", "Cancel 2").await;
    browser.confirm("button[formaction='/jobs/cancel']", "2 jobs are cancelled").await;
    browser.until(&format!("!document.getElementById('job-{}')", waiting[0])).await;
    assert_eq!(browser.path().await, "/jobs?status=queued");
    // All of them by one tick: only one is left.
    browser.click("input[data-all]").await;
    browser.until_text("button[formaction='/jobs/retry']", "Retry now 1").await;
    browser.confirm("button[formaction='/jobs/retry']", "1 job is due now").await;

    // Dead letters: two by tick, the rest by filter, and one for good.
    let mut dead = vec![];
    for n in 0..5 {
        dead.push(enqueue(&bench, json!({ "do": "fail", "with": format!("customer {n} is unknown") })).await);
    }
    bench.until_count("tenure.dead_letter_jobs", 5).await;
    bench.tenure.pause_queue("q").await.unwrap();
    browser.open("/dead").await;
    browser.until_text("#groups", "5").await;
    for job in &dead[..2] {
        browser.click(&format!("#job-{job} input[name=id]")).await;
    }
    browser.confirm("button[formaction='/dead/redrive']", "2 jobs are queued again").await;
    bench.until_count("tenure.dead_letter_jobs", 3).await;
    browser.open("/dead?error=customer+4").await;
    browser.click("input[data-matching]").await;
    browser.until_text("button[formaction='/dead/purge']", "Purge 1").await;
    browser.confirm("button[formaction='/dead/purge']", "1 dead letter is purged").await;
    assert!(bench.tenure.dead_letter(dead[4]).await.unwrap().is_none());
    browser.open(&format!("/jobs/{}", dead[3])).await;
    browser.confirm("#job-head .primary", "1 job is queued again").await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;

    // Queues.
    browser.open("/queues").await;
    browser.click("#queue-q button").await;
    browser.until_text(".flash", "q is resumed").await;
    browser.until_text("#queue-q", "active").await;
    browser.confirm("#queue-q button", "q is paused").await;
    browser.until_text("#queue-q", "paused").await;
    let field = browser.client.find(Locator::Css("input[name=max_running]")).await.unwrap();
    field.send_keys("3").await.unwrap();
    browser.click("form#limit-q button").await;
    browser.until_text(".flash", "max running 3").await;
    browser.until_text("#queue-q", "of 3").await;
    assert_eq!(bench.count("tenure.queues WHERE max_running = 3 AND paused_at IS NOT NULL").await, 1);

    // Schedules.
    bench
        .tenure
        .put_schedule(Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
        .await
        .unwrap();
    browser.open("/schedules").await;
    browser.click("#schedule-s button").await;
    browser.until_text(".flash", "s is paused").await;
    browser.click("#schedule-s button").await;
    browser.until_text(".flash", "s is resumed").await;
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_script_in_a_payload_runs_and_no_page_breaks_the_policy() {
    let bench = calm().await;
    let working = worker(&bench);
    let dead = enqueue(&bench, json!({ "do": "fail", "with": EVIL })).await;
    let running = enqueue(&bench, json!({ "do": "wait", "with": EVIL })).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    until_processing(&bench, running).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    let mut pages: Vec<String> = PAGES.map(|(path, _)| path.to_owned()).to_vec();
    pages.extend([dead, running].map(|id| format!("/jobs/{id}")));
    for path in pages {
        browser.open(&path).await;
        let listen = "document.addEventListener('securitypolicyviolation', () => window.broken++)";
        browser.value(&format!("(window.broken = 0, {listen}, 1)")).await;
        // Updates from the stream are merged, too.
        browser.until("document.getElementById('live-state').dataset.state === 'live'").await;
        let merged = "performance.getEntriesByType('resource').some(of => of.name.includes('idiomorph'))";
        browser.until(merged).await;
        assert_eq!(browser.value("typeof window.pwned").await, json!("undefined"), "{path}");
        assert_eq!(
            browser.value("document.querySelectorAll('img, main script').length").await,
            json!(0),
            "{path}"
        );
        assert_eq!(browser.value("window.broken").await, json!(0), "{path}");
    }
    browser.open(&format!("/jobs/{running}")).await;
    browser.until_text("#job-progress", "<script>pwned()</script>").await;
    bench.tenure.cancel(running).await.unwrap();
    bench.until_finished(running).await;
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_works_by_keyboard_alone_and_fits_a_phone() {
    let bench = calm().await;
    let working = worker(&bench);
    let done = enqueue(&bench, json!({ "with": "x" })).await;
    let dead = enqueue(&bench, json!({ "do": "fail", "with": "a very long error ".repeat(30) })).await;
    bench.until_finished(done).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/").await;
    for (key, path) in [
        ("j", "/jobs"),
        ("q", "/queues"),
        ("w", "/workers"),
        ("d", "/dead"),
        ("r", "/recovery"),
        ("s", "/schedules"),
        ("a", "/audit"),
        ("o", "/"),
    ] {
        browser.press("g").await;
        browser.press(key).await;
        browser.until(&format!("location.pathname === {path:?} && document.readyState === 'complete'")).await;
    }
    browser.open("/jobs").await;
    // Down to the second row, and into it.
    browser.press("j").await;
    browser.press("j").await;
    browser.press(&String::from(char::from(Key::Enter))).await;
    browser.until(&format!("location.pathname === '/jobs/{done}'")).await;
    browser.until("document.readyState === 'complete'").await;
    browser.press("?").await;
    browser.until("document.querySelector('#keys').open").await;
    browser.press(&String::from(char::from(Key::Escape))).await;
    browser.until("!document.querySelector('#keys').open").await;
    browser.open("/queues").await;
    browser.until_text("#live-state", "live").await;
    browser.press("p").await;
    browser.until_text("#live-state", "paused").await;
    // The first stop of the tab key leads past the navigation.
    browser.open("/queues").await;
    browser.press(&String::from(char::from(Key::Tab))).await;
    assert_eq!(browser.value("document.activeElement.className").await, json!("skip"));

    let mut pages: Vec<String> = PAGES.map(|(path, _)| path.to_owned()).to_vec();
    pages.extend([format!("/jobs/{done}"), format!("/jobs/{dead}"), "/nowhere".into()]);
    let own: String = bench.value("SELECT worker_id FROM tenure.workers LIMIT 1").await;
    let nightly =
        Schedule::new("nightly-report-of-a-long-name", "0 3 * * *", JobRequest::new("q", "k", json!(1)));
    bench.tenure.put_schedule(nightly).await.unwrap();
    let others = ["/queues/q", "/schedules/nightly-report-of-a-long-name", "/schedule", "/enqueue"];
    pages.extend(others.map(String::from));
    pages.extend([format!("/workers/{own}"), "/kinds?range=7d".into(), "/?range=1d".into()]);
    for theme in ["light", "dark"] {
        let phone = Browser::sized(dashboard.address, Look::new(375, 812)).await;
        phone.open("/").await;
        phone.value(&format!("localStorage.setItem('tenure.theme', {theme:?})")).await;
        for path in &pages {
            phone.open(path).await;
            let wide = phone
                .value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                .await;
            assert_eq!(wide, json!(0), "{path} is too wide");
            assert_eq!(phone.value("document.documentElement.clientWidth").await, json!(375));
            let ground = phone.value("getComputedStyle(document.body).backgroundColor").await;
            assert_eq!(is_bright(ground.as_str().unwrap()), theme == "light", "{path}: {ground}");
        }
    }
    working.stop().await;
}

/// Whether a computed colour is nearer to white than to black.
fn is_bright(colour: &str) -> bool {
    let parts = colour.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    parts.take(3).sum::<u32>() > 3 * 127
}

/// Until users choose, they get the theme of their system.
#[tokio::test(flavor = "multi_thread")]
async fn the_theme_follows_the_system_until_the_user_chooses() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for prefers_dark in [false, true] {
        let browser = Browser::sized(dashboard.address, Look { prefers_dark, ..Look::new(1_280, 900) }).await;
        browser.open("/").await;
        let ground = "getComputedStyle(document.body).backgroundColor";
        assert_eq!(is_bright(browser.value(ground).await.as_str().unwrap()), !prefers_dark);
        for (choice, bright) in [("light", true), ("dark", false), ("auto", !prefers_dark)] {
            browser.click("#theme").await;
            browser.until_text("#theme", choice).await;
            assert_eq!(is_bright(browser.value(ground).await.as_str().unwrap()), bright, "{choice}");
        }
        // The choice stays.
        browser.click("#theme").await;
        browser.open("/jobs").await;
        browser.until_text("#theme", "light").await;
    }
}

/// The first job of an empty list appears without a reload.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_was_empty_fills() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/jobs").await;
    browser.until_text("#list", "No jobs yet").await;
    browser.value("window.stayed = true").await;
    let job = enqueue(&bench, json!(1)).await;
    browser.until(&format!("document.getElementById('job-{job}')")).await;
    // A tick stays while other jobs come, and the button counts it.
    browser.click(&format!("#job-{job} input[name=id]")).await;
    let other = enqueue(&bench, json!(2)).await;
    browser.until(&format!("document.getElementById('job-{other}')")).await;
    browser.until_text("button[formaction='/jobs/cancel']", "Cancel 1").await;
    assert_eq!(browser.value("window.stayed").await, json!(true));
    browser.confirm("button[formaction='/jobs/cancel']", "1 job is cancelled").await;
    assert_eq!(bench.count("tenure.jobs").await, 1);
}

/// The server is away for a while, or for good: the page says so, and goes on when the server is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_server_is_gone_says_so_and_reconnects() {
    let bench = calm().await;
    let mut dashboard = Dashboard::start(&bench, &[], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/queues").await;
    browser.value("window.stayed = true").await;
    browser.until_text("#live-state", "live").await;
    dashboard.serve.signal(Signal::KILL);
    dashboard.serve.wait().await;
    browser.until_text("#live-state", "reconnecting").await;
    let address = dashboard.address;
    let _again = Dashboard::start_at(&bench, address, &[], &[]).await;
    browser.until_text("#live-state", "live").await;
    enqueue(&bench, json!(1)).await;
    browser.until("document.getElementById('queue-q')").await;
    assert_eq!(browser.value("window.stayed").await, json!(true));
}
