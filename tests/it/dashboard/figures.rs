//! The dashboard's figures: of a queue, of kinds, of ranges of time; what they cost, and what is named as wrong.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use tenure::{
    JobRequest, KindOptions, Worker, doctor::DoctorOptions, queues::QueueLimits, schedules::Schedule,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use super::{
    Dashboard,
    browser::Browser,
    calm, enqueue,
    pages::{between, dead, traceback, waiting},
    until_processing, worker,
};
use crate::harness::{Bench, Running, bench_with, bench_with_servers, statement};

/// Finished jobs of a kind in queue `q`, created `ago` and a millisecond apart, each of which ran for as many
/// milliseconds as its number says. Every tenth one needed a second attempt.
async fn finished(bench: &Bench, kind: &str, jobs: usize, ago: &str) {
    bench
        .execute(&format!(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
             SELECT overlay(tenure.id_of_time(at)::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid,
                    'q', '{kind}', '{{\"from\": \"test\"}}', 'completed', 1 + (n % 10 = 0)::int, 5, 2, gen_random_uuid(),
                    'w-1-aa', at, at, at, at, at + n * interval '1 ms'
               FROM (SELECT n, date_trunc('minute', now()) - interval '{ago}' + n * interval '1 ms' AS at
                       FROM generate_series(1, {jobs}) n) jobs"
        ))
        .await;
}

/// Counts of a minute of this queue, this long ago: `completed` jobs of which each waited up to 4 ms.
async fn counted(bench: &Bench, queue: &str, ago: &str, completed: i64) {
    bench
        .execute(&format!(
            "INSERT INTO tenure.activity (minute, queue, claimed, completed, retried, snoozed, failed, cancelled, released,
                    waited, ran)
             VALUES (date_trunc('minute', now() - interval '{ago}'), '{queue}', {completed}, {completed}, 1, 0, 0, 0, 0,
                     ARRAY[0, 0, {completed}], ARRAY[0, {completed}])"
        ))
        .await;
}

fn cells(row: &str) -> BTreeMap<String, String> {
    let cells = row.split("data-label=\"").skip(1).map(|cell| {
        let (label, rest) = cell.split_once("\">").unwrap();
        (label.to_owned(), rest.split("</td>").next().unwrap().replace('\u{a0}', " "))
    });
    cells.collect()
}

/// Wherever a page names a queue, its name leads to the queue's own page.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_has_a_page_with_its_figures_and_every_name_leads_there() {
    let bench = calm().await;
    let working = worker(&bench);
    let running = enqueue(&bench, json!({ "do": "wait", "with": "half way" })).await;
    until_processing(&bench, running).await;
    let retrying = waiting(&bench, "waits", 2).await;
    dead(&bench, &["no such customer".into(), traceback("KeyError: 'a'")]).await;
    finished(&bench, "fast", 100, "5 min").await;
    counted(&bench, "q", "3 min", 100).await;
    counted(&bench, "other", "3 min", 7_777).await;
    let limits = QueueLimits::new().max_running(4).max_queued(1);
    bench.tenure.limit_queue("q", limits).await.unwrap();
    let nightly = Schedule::new("nightly", "0 3 * * *", JobRequest::new("q", "k", json!(1)));
    bench.tenure.put_schedule(nightly).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.queue_stats WHERE scheduled = 1)").await;
    let worker_id: String = bench.value("SELECT worker_id FROM tenure.workers").await;

    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let page = dashboard.get("/queues/q").await.body;
    let tiles = between(&page, "id=\"tiles\"", "</dl>");
    for part in [
        "1 <small>of 4</small>",
        "1 of 1 queued<b>: full, enqueues are refused</b>",
        "on 1 worker",
        "100 in the last hour",
        "<a href=\"/dead?queue=q\">2</a>",
        "p95 about",
    ] {
        assert!(tiles.contains(part), "{part}: {tiles}");
    }
    assert!(between(&page, "id=\"head\"", "</header>").contains(">full<"), "{page}");
    let kinds = between(&page, "id=\"kinds\"", "</section>");
    let of = |kind: &str| cells(between(kinds, &format!("id=\"kind-q-{kind}\""), "</tr>"));
    assert_eq!((of("k")["Running"].as_str(), of("waits")["Scheduled"].as_str()), ("1", "1"));
    assert!(of("k")["Dead"].contains("href=\"/dead?queue=q&amp;kind=k\">2<"), "{kinds}");
    let fast = of("fast");
    assert_eq!(
        ["Ended/min", "Failed", "Run time", "p95"].map(|name| fast[name].as_str()),
        ["1.7", "9.1 %", "0.05 s", "0.10 s"]
    );
    for part in [
        &format!("href=\"/workers/{worker_id}\""),
        "of 4</span>",
        "href=\"/schedules/nightly\"",
        "href=\"/jobs?queue=q\"",
        "action=\"/queues/q/pause\"",
        "name=\"max_queued\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("7,777"), "another queue's: {page}");
    let link = "href=\"/queues/q\"";
    let job = format!("/jobs/{running}");
    let worker = format!("/workers/{worker_id}");
    for path in [
        "/",
        "/jobs",
        &job,
        "/queues",
        "/kinds",
        "/workers",
        &worker,
        "/dead",
        "/schedules",
        "/schedules/nightly",
    ] {
        let page = dashboard.get(path).await.body;
        assert!(page.contains(link), "{path}: {page}");
    }
    // The same words for one job in the list and on its page.
    let list = dashboard.get("/jobs").await.body;
    let row = between(&list, &format!("id=\"job-{retrying}\""), "</tr>").to_owned();
    let page = dashboard.get(&format!("/jobs/{retrying}")).await.body;
    for text in [&row, between(&page, "id=\"job-head\"", "</header>")] {
        assert!(text.contains("data-is=\"retrying\">retrying<"), "{text}");
    }
    let unknown = dashboard.get("/queues/typo").await;
    assert!(unknown.status == 200 && unknown.body.contains("Nothing waits or runs in this queue"));
    let done = dashboard.post("/queues/q/pause", "").await;
    assert!(dashboard.said(&done).await.contains("q is paused"));
    let page = dashboard.get("/queues/q").await.body;
    assert!(page.contains("action=\"/queues/q/resume\""), "what the action did: {page}");
    bench.tenure.cancel(running).await.unwrap();
    bench.until_finished(running).await;
    working.stop().await;
}

/// A burst of one kind takes no other's place in the sample, if that came seconds later.
#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_several_kinds_in_one_minute_are_all_read() {
    let bench = calm().await;
    for (kind, jobs, ago) in
        [("first", 5_000, "5 min"), ("second", 400, "4 min 40 s"), ("third", 10, "4 min 20 s")]
    {
        finished(&bench, kind, jobs, ago).await;
    }
    counted(&bench, "q", "5 min", 50_410).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get("/kinds").await.body;
    assert!(page.contains("Estimates from a sample"), "{page}");
    for kind in ["first", "second", "third"] {
        let row = cells(between(&page, &format!("id=\"kind-q-{kind}\""), "</tr>"));
        // Of eleven attempts one has failed, but at the beginning of `first`.
        let failed: f64 =
            row["Failed"].trim_end_matches(" %").parse().unwrap_or_else(|_| panic!("{kind}: {row:?}"));
        assert!((5.0..=10.0).contains(&failed), "{kind}: {row:?}");
    }
}

/// A slice with more jobs than are read makes the figures a sample, which they say.
#[tokio::test(flavor = "multi_thread")]
async fn the_figures_of_kinds_are_exact_until_there_are_too_many_jobs_and_then_say_that_they_are_a_sample() {
    let bench = calm().await;
    finished(&bench, "few", 200, "5 min").await;
    finished(&bench, "old", 100, "3 hours").await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get("/kinds").await.body;
    assert!(page.contains("Of all 200 jobs that were created in the last hour"), "{page}");
    assert!(!page.contains("kind-q-old"), "{page}");
    let day = dashboard.get("/kinds?range=1d").await.body;
    assert!(day.contains("Of all 300 jobs") && day.contains("kind-q-old"), "{day}");
    // A thousand more in one second; workers have counted more than are read.
    finished(&bench, "many", 1_000, "10 min").await;
    counted(&bench, "q", "10 min", 40_000).await;
    // Figures of a moment ago serve for a while.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let page = loop {
        let page = dashboard.get("/kinds").await.body;
        if page.contains("Estimates from a sample: ") {
            break page;
        }
        assert!(std::time::Instant::now() < deadline, "{}", between(&page, "<tbody>", "</section>"));
        sleep(Duration::from_millis(200)).await;
    };
    let many = cells(between(&page, "id=\"kind-q-many\"", "</tr>"));
    // The burst of a second is read in one part of a minute or two, as that of `few`: 33 or 66 of each.
    let a_minute: f64 = many["Ended/min"].parse().unwrap();
    assert!((222.0..=445.0).contains(&a_minute) && many["Queue"].contains("/queues/q"), "{many:?}");
    assert!(page.contains(" of about 40,000 jobs"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_reach_back_an_hour_a_day_or_a_week_and_the_counts_of_earlier_times_are_added_up() {
    let bench = calm().await;
    for (ago, completed) in [
        ("10 min", 1),
        ("3 hours", 10),
        ("3 hours 1 min", 20),
        ("30 hours", 100),
        ("30 hours 1 min", 200),
        ("6 days", 1_000),
        ("9 days", 5_000),
    ] {
        counted(&bench, "q", ago, completed).await;
        counted(&bench, "r", ago, completed).await;
    }
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let shown = async || {
        let mut shown = vec![];
        for (path, of) in [("", "hour"), ("?range=1d", "day"), ("?range=7d", "week")] {
            let page = dashboard.get(&format!("/queues/q{path}")).await.body;
            let finished = between(&page, "id=\"finished\"", "</section>");
            assert!(finished.contains(&format!("last {of} (peak")), "{finished}");
            // The address keeps the range.
            assert!(
                page.contains(&format!(
                    "data-live=\"/queues/q?{}live=",
                    path.replace('?', "").replace("7d", "7d&amp;").replace("1d", "1d&amp;")
                )),
                "{page}"
            );
            shown.push(between(finished, "completed <b>", "<").to_owned());
        }
        shown
    };
    assert_eq!(shown().await, ["1", "31", "1,331"]);
    let rows = bench.count("tenure.activity").await;
    for _ in 0..2 {
        sqlx::query(statement("thin_activity")).bind(5_000_i64).execute(&bench.pool).await.unwrap();
    }
    assert_eq!(shown().await, ["1", "31", "1,331"], "added up, and nothing twice");
    let after = bench.count("tenure.activity").await;
    assert!(after < rows - 2, "{rows} rows became {after}");
    let sum = "SELECT sum(completed) || ' ' || sum(waited[3]) || ' ' || sum(ran[2]) FROM tenure.activity WHERE queue = 'q'";
    assert_eq!(bench.value::<String>(sum).await, "1331 1331 1331");
    assert_eq!(bench.count("tenure.activity WHERE minute < now() - interval '8 days'").await, 0);
    let overview = dashboard.get("/?range=7d").await.body;
    assert!(
        overview.contains("2,662 in the last week") && overview.contains("aria-current=\"true\">Last week"),
        "{overview}"
    );
    assert_eq!(dashboard.get("/?range=2y").await.status, 400);
    // The mark in the middle of a bar's list of words: how long ago.
    assert!(overview.contains("<title>this 2 h: "), "{overview}");
}

/// The statements that the dashboard sends during three refreshes or more, by name, while this many people look at the
/// overview, and how many refreshes there may be in that time.
async fn sent_while_looking(
    dashboard: &Dashboard,
    log: &std::path::Path,
    viewers: usize,
) -> (BTreeMap<String, usize>, usize) {
    let mut looking = vec![];
    for _ in 0..viewers {
        let mut stream = TcpStream::connect(dashboard.address).await.unwrap();
        let request = format!("GET /?live HTTP/1.1\r\nHost: {}\r\n\r\n", dashboard.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut some = vec![0; 4_096];
        assert!(stream.read(&mut some).await.unwrap() > 0);
        looking.push(tokio::spawn(async move { while stream.read(&mut some).await.is_ok_and(|n| n > 0) {} }));
    }
    // Everybody has a first page, and the refreshes have begun: on a busy machine the first read may come late.
    let len = || std::fs::read_to_string(log).unwrap().len();
    let refreshed = async |from: usize, times: usize| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while std::fs::read_to_string(log).unwrap()[from..].matches("-- activity:").count() < times {
            assert!(std::time::Instant::now() < deadline, "the overview is not refreshed");
            sleep(Duration::from_millis(100)).await;
        }
    };
    refreshed(len(), 2).await;
    // At its start, the program measures the fleet, because no worker does.
    sleep(Duration::from_secs(1)).await;
    let (before, began) = (len(), std::time::Instant::now());
    refreshed(before, 3).await;
    sleep(Duration::from_millis(500)).await;
    let sent = std::fs::read_to_string(log).unwrap()[before..].to_owned();
    // Once a second, and perhaps one refresh more than whole seconds have passed.
    let most = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    looking.iter().for_each(tokio::task::JoinHandle::abort);
    sleep(Duration::from_secs(1)).await;
    let mut names = BTreeMap::new();
    for line in
        sent.lines().filter(|line| line.contains("LOG:  execute ") || line.contains("LOG:  statement: "))
    {
        let name = line.split("-- ").nth(1).and_then(|rest| rest.split(':').next()).unwrap_or(line);
        *names.entry(name.to_owned()).or_default() += 1;
    }
    (names, most)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_costs_five_statements_a_refresh_however_many_look() {
    // The program itself reads the fleet for its metrics; with the usual timers, seldom.
    let bench = bench_with_servers(|config| config.timing = tenure::Timing::DEFAULT).await;
    let folder: String = bench.value("SHOW data_directory").await;
    let log = std::path::Path::new(&folder).parent().unwrap().join("postgres.log");
    let (_, database) = bench.config.database_url.rsplit_once('/').unwrap();
    // For the connections of the dashboard alone: this process has its own already.
    bench.execute(&format!("ALTER DATABASE {database} SET log_statement = 'all'")).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for viewers in [1, 20] {
        let (mut sent, most) = sent_while_looking(&dashboard, &log, viewers).await;
        // The readiness of the program itself, and its question whether a worker measures.
        sent.remove("schema_version");
        sent.remove("measure_alone");
        let names: Vec<_> = sent.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["activity", "fleet", "recovery_counts", "recovery_events", "unserved_schedules"],
            "{viewers} viewers: {sent:?}"
        );
        let are_few = sent.values().all(|times| (2..=most).contains(times));
        assert!(are_few, "{viewers} viewers, at most {most} refreshes: {sent:?}");
    }
}

/// What each notice says, and each item of one that is a list.
fn notices(page: &str) -> Vec<String> {
    let all = between(page, "id=\"notices\"", "<nav class=\"tabs\"").replace("<li>", "<p class=\"notice\">");
    let plain = |text: &str| {
        let parts = text.split('<').map(|part| part.split_once('>').map_or(part, |(_, after)| after));
        parts.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    all.split("<p class=\"notice").skip(1).map(|notice| plain(&format!("<{notice}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_names_each_cause_once() {
    let bench = bench_with(|config| {
        config.timing.renew_every = Duration::from_millis(300);
        config.timing.scan_every = Duration::from_millis(500);
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get("/").await.body;
    assert_eq!(notices(&page), ["No worker is alive. No job runs, and no job is reset."]);
    let working = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("known", KindOptions::new(), |_, _| async {})
            .concurrency("q", 1),
    );
    bench.until_count("tenure.workers", 1).await;
    for (name, queue, kind) in [
        ("served", "q", "known"),
        ("mistyped", "q", "knwon"),
        ("nowhere", "nowhere", "k"),
        ("resting", "nowhere", "k"),
    ] {
        let job = JobRequest::new(queue, kind, json!(null));
        bench.tenure.put_schedule(Schedule::new(name, "0 3 1 1 *", job)).await.unwrap();
    }
    bench.tenure.pause_schedule("resting").await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(1)).await.unwrap();
    bench.tenure.enqueue(JobRequest::new("q", "other", json!(1))).await.unwrap();
    bench.tenure.pause_queue("rests").await.unwrap();
    bench.tenure.enqueue(JobRequest::new("rests", "k", json!(1))).await.unwrap();
    bench.until("(SELECT count(*) FROM tenure.queue_stats WHERE due = 1) = 2").await;
    bench.until("(SELECT unserved::text LIKE '%other%' FROM tenure.scanner_state)").await;
    let expected = [
        "No worker of q runs the kind other.",
        "No worker would run the jobs of the schedule mistyped.",
        "No worker would run the jobs of the schedule nowhere.",
        "q is full. 1 job is queued, of at most 1: enqueues are refused.",
        "rests is paused; 1 job is due",
    ];
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let page = dashboard.get("/").await.body;
        let seen = notices(&page);
        let is_so = seen.len() == expected.len()
            && seen.iter().zip(expected).all(|(is, begin)| is.starts_with(begin));
        if is_so {
            assert!(seen[1].contains("no worker of q runs the kind knwon"), "{seen:?}");
            assert!(seen[2].contains("no worker serves the queue nowhere"), "{seen:?}");
            assert!(seen[4].ends_with("No worker serves it, either."), "{seen:?}");
            assert!(page.contains("1<span class=\"soft\"> of 1</span>"), "the column of the limit: {page}");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{seen:#?}");
        sleep(Duration::from_millis(200)).await;
    }
    let schedules = dashboard.get("/schedules").await.body;
    for (name, word) in
        [("served", "active"), ("mistyped", "unknown kind"), ("nowhere", "no worker"), ("resting", "paused")]
    {
        let row = between(&schedules, &format!("id=\"schedule-{name}\""), "</tr>");
        assert!(row.contains(&format!(">{word}<")), "{name}: {row}");
    }
    for (name, word) in [("served", "active"), ("mistyped", "unknown kind"), ("nowhere", "no worker")] {
        let page = dashboard.get(&format!("/schedules/{name}")).await.body;
        assert!(
            between(&page, "<div class=\"title\">", "</div>").contains(&format!(">{word}<")),
            "{name}: {page}"
        );
    }
    // The command line has the same words.
    let listed = async |what: &str| {
        let output = bench.program(&[what, "list"]).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (schedules, queues) = (listed("schedules").await, listed("queues").await);
    let says = |text: &str, name: &str, word: &str| {
        assert!(text.lines().any(|line| line.contains(name) && line.contains(word)), "{name} {word}: {text}");
    };
    says(&schedules, "mistyped", "unknown kind");
    says(&schedules, "nowhere", "no worker");
    says(&queues, "q ", "full");
    let checks = bench.tenure.doctor(&DoctorOptions::default()).await;
    let found = &checks.iter().find(|of| of.check == "schedules").unwrap().found;
    let lacking = "mistyped (kind knwon of queue q), nowhere (queue nowhere)";
    assert_eq!(*found, format!("no live worker would run the jobs of {lacking}"));
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(None)).await.unwrap();
    says(&listed("queues").await, "q ", "unknown kind");
    working.stop().await;
}

/// Redrive would refuse a message that is no job: the list of jobs offers none for it.
#[tokio::test(flavor = "multi_thread")]
async fn retry_now_counts_no_refused_message() {
    let bench = calm().await;
    dead(&bench, &["no".into(), "no".into()]).await;
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, raw_payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             VALUES (gen_random_uuid(), 'q', 'k', 'x', 0, 1, 0, now(), now(), now(), 'no JSON', 'malformed', '[]')",
        )
        .await;
    let refused: String =
        bench.value("SELECT id::text FROM tenure.dead_letter_jobs WHERE payload IS NULL").await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    for path in ["/jobs".to_owned(), "/jobs?status=failed".into(), format!("/jobs?q={refused}")] {
        let page = dashboard.get(&path).await.body;
        assert!(!between(&page, &format!("id=\"job-{refused}\""), "</tr>").contains("checkbox"), "{path}");
    }
    let browser = Browser::at(dashboard.address).await;
    browser.open("/jobs").await;
    browser.click("input[data-all]").await;
    browser.until_text("button[formaction='/jobs/retry']", "Retry now 2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_question_before_an_action_on_very_many_dead_letters_has_their_exact_number() {
    let bench = calm().await;
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             SELECT gen_random_uuid(), 'q', 'k', '1', 5, 5, 5, now(), now(), now() - n * interval '1 ms', 'no', 'exhausted',
                    '[]' FROM generate_series(1, 10007) n",
        )
        .await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/dead?kind=k").await;
    browser.click("input[data-matching]").await;
    browser.until_text("button[formaction='/dead/purge']", "Purge 10,000 or more").await;
    browser.click("button[formaction='/dead/purge']").await;
    browser.until_text("dialog.ask", "Purge 10,007 dead letters of kind k for good").await;
    browser.click("dialog.ask button[value=yes]").await;
    browser.until_text(".flash", "10007 dead letters are purged").await;
    let wrong = dashboard.get("/dead/count").await;
    assert!(wrong.status == 400 && wrong.body.contains("when it was shown"), "{}", wrong.body);
}

/// A nightly job behind thousands of others is found by the time of its tick, and a failure to read says why.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_schedule_finds_its_jobs_in_a_long_history_or_says_why_not() {
    let bench = bench_with_servers(|config| config.timing.database_within = Duration::from_secs(2)).await;
    let job = JobRequest::new("q", "report", json!({ "from": "test" }));
    bench.tenure.put_schedule(Schedule::new("hourly", "0 * * * *", job)).await.unwrap();
    bench
        .execute("UPDATE tenure.schedules SET last_tick_at = date_trunc('hour', now() - interval '5 hours')")
        .await;
    for hours in [5, 6] {
        bench
            .execute(&format!(
                "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                        claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
                 SELECT tenure.id_of_time(at), 'q', 'report', '{{\"from\": \"test\"}}', 'completed', 1, 5, 1,
                        gen_random_uuid(), 'w', at, at, at, at, at
                   FROM (SELECT date_trunc('hour', now() - interval '{hours} hours') + interval '1 second' AS at) t"
            ))
            .await;
    }
    finished(&bench, "other", 5_000, "30 min").await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    // On a busy machine, the first look may find no time.
    let mut page = String::new();
    for _ in 0..5 {
        page = dashboard.get("/schedules/hourly").await.body;
        if !page.contains("The jobs could not be read") {
            break;
        }
    }
    assert_eq!(page.matches("<tr id=\"job-").count(), 2, "{page}");
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.job_history IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let page = dashboard.get("/schedules/hourly").await;
    assert!(
        page.status == 200 && page.body.contains("The jobs could not be read: Postgres"),
        "{}",
        page.body
    );
    lock.rollback().await.unwrap();
}

/// "All that match" acts on every page of the list, on what its user has seen, and on what the action can touch.
#[tokio::test(flavor = "multi_thread")]
async fn an_action_on_all_jobs_that_match_touches_those_and_says_how_many() {
    let bench = calm().await;
    bench.tenure.pause_queue("q").await.unwrap();
    let of = |queue: &str, kind: &str| JobRequest::new(queue, kind, json!({ "Straße": "ÄPFEL" }));
    let mut jobs: Vec<_> = (0..1_100).map(|_| of("q", "wrong")).collect();
    jobs.extend((0..60).map(|_| of("q", "right")));
    jobs.extend((0..30).map(|_| of("q", "wrong").delay(Duration::from_secs(3600))));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let all = "data-matching";
    for path in [
        "/jobs",
        "/jobs?q=%20",
        "/jobs?q=01920000-0000-7000-8000-000000000000",
        "/jobs?kind=wrong&status=completed",
    ] {
        assert!(!dashboard.get(path).await.body.contains(all), "{path}");
    }
    // Searches ignore case, also beyond ASCII; a sign that SQL or a pattern knows stands for itself.
    for (text, jobs) in
        [("ÄPFEL", 50), ("äpfel", 50), ("STRASSE", 0), ("straße", 50), ("WRONG", 50), ("wr_ng", 0)]
    {
        let text = text.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
        let page = dashboard.get(&format!("/jobs?q={text}")).await.body;
        assert_eq!(page.matches("<tr id=\"job-").count(), jobs, "{text}");
    }
    let browser = Browser::at(dashboard.address).await;
    browser.open("/jobs?kind=wrong&status=queued").await;
    browser.click("input[data-matching]").await;
    browser.until_text("button[formaction='/jobs/cancel']", "Cancel all").await;
    browser.click("button[formaction='/jobs/cancel']").await;
    browser.until_text("dialog.ask", "Cancel 1,130 jobs?").await;
    // These come into the list while the question is open, new ones and an old one, and were in no question; others
    // leave it.
    bench.tenure.enqueue_many((0..2).map(|_| of("q", "wrong"))).await.unwrap();
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, created_at, scheduled_at, published_at)
             SELECT tenure.id_of_time(at), 'q', 'wrong', '1', 5, at, at, at FROM (SELECT now() - interval '1 hour' AS at) t",
        )
        .await;
    bench
        .execute(
            "UPDATE tenure.jobs SET kind = 'left' WHERE id IN (SELECT id FROM tenure.jobs WHERE kind = 'wrong' AND queue = 'q'
              AND created_at > now() - interval '30 min' AND scheduled_at > now() LIMIT 10)",
        )
        .await;
    browser.click("dialog.ask button[value=yes]").await;
    browser.until_text(".flash", "1,120 jobs are cancelled").await;
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'left'").await, 10);
    bench.execute("DELETE FROM tenure.jobs WHERE kind = 'left'").await;
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'wrong'").await, 3);
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'right'").await, 60);
    // A retry touches those alone that wait for their time, and dead letters.
    bench
        .tenure
        .enqueue_many((0..2).map(|_| of("q", "right").delay(Duration::from_secs(3600))))
        .await
        .unwrap();
    dead(&bench, &["no".to_owned()]).await;
    browser.open("/jobs?queue=q").await;
    browser.click("input[data-matching]").await;
    browser.click("button[formaction='/jobs/retry']").await;
    browser.until_text("dialog.ask", "Retry 3 jobs now?").await;
    browser.click("dialog.ask button[value=yes]").await;
    browser.until_text(".flash", "2 jobs are due now, 1 job is queued again").await;
    // Where no job can be touched, no question is asked.
    browser.open("/jobs?kind=nothing-else").await;
    browser.open("/jobs?queue=q&status=queued").await;
    browser.click("input[data-matching]").await;
    browser.click("button[formaction='/jobs/retry']").await;
    browser.until_text("dialog.ask", "No job that matches can be retried.").await;
    browser.until("document.querySelectorAll('dialog.ask button').length == 1").await;
    // Without a question, nothing is touched.
    for (form, why) in [("all=1&selection=1", "open for too long"), ("all=1&queue=q", "open for too long")] {
        let said = dashboard.said(&dashboard.post("/jobs/cancel", form).await).await;
        assert!(said.contains(why), "{form}: {said}");
    }
    assert_eq!(bench.count("tenure.jobs WHERE kind IN ('right', 'wrong')").await, 65);
    let wrong = dashboard.get("/jobs/count?action=cancel").await;
    assert!(wrong.status == 400 && wrong.body.contains("Narrow the list first"), "{}", wrong.body);
}
