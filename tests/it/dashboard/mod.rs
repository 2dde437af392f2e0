//! The dashboard's answers over HTTP. `browser` tests what a person sees.

mod access;
mod away;
mod browser;
mod cells;
mod example;
mod figures;
mod graph;
mod lanes;
mod pages;
mod pictures;
mod redrives;
mod troubles;
mod viewers;

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Worker, queues::QueueLimits,
    schedules::Schedule,
};

use crate::harness::{Answer, Bench, Child, Running, ask, bench_with, bench_with_servers, free_address};

const PAGES: [(&str, &str); 9] = [
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/queues", "Queues"),
    ("/kinds", "Kinds"),
    ("/workers", "Workers"),
    ("/dead", "Dead letters"),
    ("/recovery", "Recovery"),
    ("/schedules", "Schedules"),
    ("/audit", "Audit"),
];
/// Text of an attacker who wants a script to run in another user's browser.
const EVIL: &str = "<script>pwned()</script><img src=x onerror=pwned()>\"'&lt;";

/// Long timers: nothing is recovered while browsers keep the machine busy.
async fn calm() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await
}

/// `tenure serve`, in a separate process.
pub struct Dashboard {
    pub address: SocketAddr,
    pub serve: Child,
}

impl Dashboard {
    pub async fn start(bench: &Bench, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_at(bench, free_address(), arguments, variables).await
    }

    async fn start_at(
        bench: &Bench,
        address: SocketAddr,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let listen = address.to_string();
        let mut command = bench.program(&[&["serve", "--listen", &listen][..], arguments].concat());
        command.envs(variables.iter().copied());
        let mut serve = Child::spawn(command, "dashboard");
        serve.until_log("serving the dashboard").await;
        Self { address, serve }
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let (address, method, path, body) =
            (self.address, method.to_owned(), path.to_owned(), body.to_owned());
        let headers: Vec<_> = headers.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let asked = tokio::task::spawn_blocking(move || {
            let headers: Vec<_> = headers.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            ask(address, &method, &path, &headers, &body)
        });
        asked.await.unwrap().unwrap_or_else(|| panic!("the dashboard does not answer:\n{}", self.serve.log()))
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    /// Posts as a browser does with one of the dashboard's forms.
    pub async fn post(&self, path: &str, fields: &str) -> Answer {
        let headers = [("Cookie", "tenure_csrf=abc"), ("Sec-Fetch-Site", "same-origin")];
        self.ask("POST", path, &headers, &format!("csrf=abc&back=%2Fjobs&{fields}")).await
    }

    /// The result of the last action, as the next page shows it.
    pub async fn said(&self, answer: &Answer) -> String {
        let cookie = answer.all("set-cookie").into_iter().find(|of| of.starts_with("tenure_said="));
        let cookie = cookie.unwrap_or_else(|| panic!("{} {}", answer.status, answer.body));
        let cookie = cookie.split(';').next().unwrap();
        let page = self.ask("GET", answer.header("location").unwrap(), &[("Cookie", cookie)], "").await;
        let (_, said) = page.body.split_once("role=\"status\"><span>").unwrap();
        said.split("</span>").next().unwrap().to_owned()
    }
}

fn worker(bench: &Bench) -> Running {
    let handler = |payload: Value, ctx: JobContext| async move {
        match payload["do"].as_str() {
            Some("fail") => Err(JobError::permanent(payload["with"].as_str().unwrap_or("no").to_owned())),
            Some("wait") => {
                let said = payload["with"].as_str().unwrap_or("waiting").to_owned();
                ctx.progress(&said, 40.0, &said).await?;
                ctx.cancelled().await;
                Ok(Outcome::Cancel("told to stop".into()))
            }
            _ => Outcome::done(json!({ "said": payload["with"], "big": 9_007_199_254_740_993_u64 })),
        }
    };
    Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new().keepalive(), handler)
            .concurrency("q", 4),
    )
}

async fn enqueue(bench: &Bench, payload: Value) -> JobId {
    bench.tenure.enqueue(JobRequest::new("q", "k", payload)).await.unwrap().id
}

async fn until_processing(bench: &Bench, job: JobId) {
    let condition = format!(
        "EXISTS (SELECT FROM tenure.jobs WHERE id = '{job}' AND status = 'processing' AND progress IS NOT NULL)"
    );
    bench.until(&condition).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_shows_its_subject_and_needs_no_script() {
    let bench = calm().await;
    let working = worker(&bench);
    let done = enqueue(&bench, json!({ "with": "a page" })).await;
    let dead = enqueue(&bench, json!({ "do": "fail", "with": "no such customer 17" })).await;
    let running = enqueue(&bench, json!({ "do": "wait", "with": "half way" })).await;
    bench.until_finished(done).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    until_processing(&bench, running).await;
    bench
        .tenure
        .put_schedule(Schedule::new("nightly", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
        .await
        .unwrap();
    bench.publish("q.k", "not json").await;
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    let refused: String =
        bench.value::<String>("SELECT id::text FROM tenure.dead_letter_jobs WHERE payload IS NULL").await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, silence, reason,
                    recovered_by)
             VALUES ('refused_write', 'worker', '{running}', 0, 'old-1-aa', '41 s', 'progress', 'old-1-aa')"
        ))
        .await;
    bench.until("EXISTS (SELECT FROM tenure.queue_stats WHERE processing = 1)").await;

    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for (path, title) in PAGES {
        let page = dashboard.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(page.body.contains(&format!("<title>{title} · tenure</title>")), "{path}");
        assert!(page.body.contains("aria-current=\"page\""), "{path}");
        assert_eq!(page.header("cache-control"), Some("no-store"));
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        for inside in [" style=\"", "<script>", "onclick", "javascript:"] {
            assert!(!page.body.contains(inside), "{path} has {inside}");
        }
    }
    let worker_id = bench.value::<String>("SELECT worker_id FROM tenure.workers").await;
    for (path, parts) in [
        ("/".to_owned(), vec!["on 1 worker", "stale write refused", "Stale write refused", "old-1-aa"]),
        ("/jobs".into(), vec!["no such customer 17", "half way", "40 %", ">completed<", &worker_id]),
        ("/jobs?status=failed".into(), vec!["no such customer 17"]),
        (format!("/jobs?worker={worker_id}"), vec!["completed"]),
        (format!("/jobs?q={dead}"), vec!["no such customer"]),
        ("/jobs?q=HALF+WAY".into(), vec!["processing"]),
        ("/queues".into(), vec![">q<", "no limit"]),
        ("/workers".into(), vec![&worker_id, "1 of 4 slots busy", "every kind"]),
        ("/dead".into(), vec!["no such customer 17", "permanent", "malformed", "By kind and error"]),
        ("/dead?error=customer".into(), vec!["no such customer 17", "1 of 1"]),
        ("/recovery".into(), vec!["write refused", "old-1-aa", &worker_id, "41.00"]),
        ("/recovery?path=refused".into(), vec!["write refused"]),
        ("/schedules".into(), vec!["nightly", "0 3 * * *", "UTC"]),
        (
            format!("/jobs/{done}"),
            vec!["a page", "9007199254740993", ">completed<", "attempt 1 of 5", "Output"],
        ),
        (format!("/jobs/{dead}"), vec!["Failed permanently", "no such customer 17", "Dead letters"]),
        (format!("/jobs/{running}"), vec!["half way", "40 %", "Stale after", "write refused"]),
        (format!("/jobs/{refused}"), vec!["not json", "A redriven message would be refused again", "jobs"]),
    ] {
        let page = dashboard.get(&path).await;
        assert_eq!(page.status, 200, "{path}");
        for part in parts {
            assert!(page.body.contains(part), "{path} has no {part:?}:\n{}", page.body);
        }
    }
    for (path, absent) in [
        ("/jobs?status=completed", "no such customer"),
        ("/jobs?queue=other", "half way"),
        ("/jobs?since=1h&q=nowhere", "half way"),
        ("/recovery?path=scanner", "old-1-aa"),
        ("/dead?category=exhausted", "no such customer"),
    ] {
        let page = dashboard.get(path).await;
        assert!(page.status == 200 && !page.body.contains(absent), "{path}");
    }
    bench.tenure.cancel(running).await.unwrap();
    bench.until_finished(running).await;
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_pages_and_invalid_requests_say_so() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for (path, status, word) in [
        ("/nowhere", 404, "This page does not exist"),
        ("/jobs/01a1ffbd-728a-75cf-834e-390dfb072af2", 404, "This job does not exist"),
        ("/jobs/17", 404, "This job does not exist"),
        ("/jobs?status=done", 400, "Unknown status"),
        ("/jobs?since=17y", 400, "Unknown age"),
        ("/jobs?before=x", 400, "Invalid job ID"),
        ("/dead?before=x", 400, "Invalid place in the list"),
        ("/recovery?path=x", 400, "Unknown path"),
        ("/assets/nothing.js", 404, ""),
    ] {
        let page = dashboard.get(path).await;
        assert!(page.status == status && page.body.contains(word), "{path}: {} {}", page.status, page.body);
    }
    assert_eq!(
        dashboard.get("/assets/style.css").await.header("content-type"),
        Some("text/css; charset=utf-8")
    );
    assert_eq!(dashboard.ask("DELETE", "/jobs", &[], "").await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dashboard_that_only_reads_has_no_buttons_and_takes_no_forms() {
    let bench = calm().await;
    let job = enqueue(&bench, json!(1)).await;
    bench
        .tenure
        .put_schedule(Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
        .await
        .unwrap();
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    for path in PAGES.map(|(path, _)| path.to_owned()).into_iter().chain([format!("/jobs/{job}")]) {
        let page = dashboard.get(&path).await.body;
        assert!(!page.contains("method=\"post\"") && page.contains("read-only"), "{path}");
    }
    for path in ["/queues/q/pause", &format!("/jobs/{job}/cancel"), "/dead/purge", "/nowhere"] {
        let refused = dashboard.post(path, "all=1&shown=0").await;
        assert!(refused.status == 403 && refused.body.contains("--actions"), "{path}: {}", refused.body);
    }
    assert_eq!(bench.count("tenure.queues WHERE paused_at IS NOT NULL").await, 0);
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_needs_a_form_of_our_own() {
    let bench = calm().await;
    let job = enqueue(&bench, json!(1)).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    // The page hands out a token and its cookie.
    let page = dashboard.get("/queues").await;
    let cookie = page.header("set-cookie").unwrap();
    for part in ["SameSite=Strict", "HttpOnly", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let token = cookie.split(['=', ';']).nth(1).unwrap();
    assert!(token.len() == 32 && page.body.contains(&format!("name=\"csrf\" value=\"{token}\"")));
    let own = format!("tenure_csrf={token}");
    let host = dashboard.address.to_string();
    let (origin, evil) = (format!("http://{host}"), "https://evil.example".to_owned());
    let form = format!("csrf={token}&back=%2Fqueues");
    let path = "/queues/q/pause";
    for (headers, form) in [
        (vec![], form.as_str()),
        (vec![("Cookie", own.as_str())], "back=%2F"),
        (vec![("Cookie", own.as_str())], "csrf=00000000000000000000000000000000"),
        (vec![("Cookie", "tenure_csrf=other")], form.as_str()),
        (vec![("Cookie", own.as_str()), ("Origin", &evil)], form.as_str()),
        (vec![("Cookie", own.as_str()), ("Origin", "null")], form.as_str()),
        (vec![("Cookie", own.as_str()), ("Sec-Fetch-Site", "cross-site")], form.as_str()),
        (vec![("Cookie", own.as_str()), ("Sec-Fetch-Site", "same-site"), ("Origin", &origin)], form.as_str()),
    ] {
        let refused = dashboard.ask("POST", path, &headers, form).await;
        assert!(
            refused.status == 403 && refused.body.contains("Nothing was changed"),
            "{headers:?}: {}",
            refused.body
        );
    }
    assert_eq!(bench.count("tenure.queues WHERE paused_at IS NOT NULL").await, 0);
    // A GET changes nothing either.
    assert_eq!(dashboard.get(path).await.status, 404);
    assert_eq!(bench.count("tenure.queues WHERE paused_at IS NOT NULL").await, 0);
    // A foreign host name that resolves to this server.
    let led = dashboard.ask("GET", "/jobs", &[("Host", "evil.example")], "").await;
    assert!(led.status == 403 && !led.body.contains(&job.to_string()), "{}", led.body);

    let done = dashboard.ask("POST", path, &[("Cookie", &own), ("Origin", &origin)], &form).await;
    assert_eq!((done.status, done.header("location")), (303, Some("/queues")));
    assert_eq!(bench.count("tenure.queues WHERE paused_at IS NOT NULL").await, 1);
    // No redirect leads to another site.
    let form = form.replace("%2Fqueues", "//evil.example");
    let away = dashboard.ask("POST", path, &[("Cookie", &own), ("Origin", &origin)], &form).await;
    assert_eq!(away.header("location"), Some("/"));
    let log = dashboard.serve.log();
    assert!(log.contains("queues/q/pause") && log.contains("this host"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_action_says_what_it_did() {
    let bench = calm().await;
    let working = worker(&bench);
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let running = enqueue(&bench, json!({ "do": "wait" })).await;
    until_processing(&bench, running).await;
    let later = JobRequest::new("q", "k", json!(1)).delay(Duration::from_secs(3_600));
    let later = bench.tenure.enqueue(later).await.unwrap().id;
    let mut dead = vec![];
    for n in 0..4 {
        dead.push(enqueue(&bench, json!({ "do": "fail", "with": format!("no {n}") })).await);
    }
    bench.until_count("tenure.dead_letter_jobs", 4).await;
    bench.publish("q.k", "not json").await;
    bench.until_count("tenure.dead_letter_jobs", 5).await;
    let missing = "01a1ffbd-728a-75cf-834e-390dfb072af2";
    bench
        .tenure
        .put_schedule(Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
        .await
        .unwrap();

    let runs_on = bench.value::<String>("SELECT worker_id FROM tenure.workers").await;
    let page = dashboard.get(&format!("/workers/{runs_on}")).await.body;
    assert!(page.contains(&format!("action=\"/workers/{runs_on}/drain\"")), "{page}");
    let shown: i64 = bench
        .value("SELECT (extract(epoch FROM max(died_at)) * 1000000)::bigint FROM tenure.dead_letter_jobs")
        .await;
    for (path, fields, words) in [
        (
            "/jobs/cancel".to_owned(),
            format!("id={running}&id={later}&id={missing}"),
            "1 job is cancelled, 1 running job is asked to stop, 1 does not exist.",
        ),
        (format!("/jobs/{later}/retry"), String::new(), "1 has finished and does not run again."),
        (format!("/jobs/{}/retry", dead[0]), String::new(), "1 job is queued again."),
        (
            "/jobs/retry".into(),
            format!("id={}&id={missing}", dead[1]),
            "1 job is queued again, 1 does not exist.",
        ),
        ("/jobs/cancel".into(), String::new(), "Tick at least one job."),
        ("/jobs/x/cancel".into(), String::new(), "Invalid job ID \"x\"."),
        ("/dead/redrive".into(), String::new(), "Tick at least one job."),
        ("/dead/redrive".into(), "all=1&shown=1".into(), "No dead letters match; nothing is redriven."),
        ("/dead/redrive".into(), format!("all=1&error=no+2&shown={shown}"), "1 job is queued again."),
        (
            "/dead/redrive".into(),
            format!("all=1&kind=x&shown={shown}"),
            "No dead letters match; nothing is redriven.",
        ),
        ("/dead/purge".into(), "all=1".into(), "The form does not say when it was shown; reload the page."),
        // Dead letters that came after the page was shown are left alone.
        (
            "/dead/purge".into(),
            "all=1&category=malformed&shown=0".into(),
            "No dead letters match; nothing is purged.",
        ),
        ("/dead/purge".into(), format!("id={}", dead[3]), "1 dead letter is purged."),
        ("/queues/q/pause".into(), String::new(), "q is paused; its running jobs continue."),
        ("/queues/q/pause".into(), String::new(), "q was already paused."),
        ("/queues/q/resume".into(), String::new(), "q is resumed."),
        ("/queues/q/resume".into(), String::new(), "q was not paused."),
        (
            "/queues/q/limit".into(),
            "max_running=3&max_queued=".into(),
            "q: max running 3, max queued unlimited.",
        ),
        (
            "/queues/q/limit".into(),
            "max_running=&max_queued=9".into(),
            "q: max running unlimited, max queued 9.",
        ),
        ("/queues/a b/pause".into(), String::new(), "use 1 to 64"),
        ("/queues/typo/pause".into(), String::new(), "Queue \"typo\" is unknown"),
        ("/queues/typo/resume".into(), String::new(), "Queue \"typo\" is unknown"),
        ("/queues/typo/limit".into(), "max_running=3".into(), "Queue \"typo\" is unknown"),
        ("/queues/q/limit".into(), "max_running=0".into(), "must be 1 to 10000"),
        ("/queues/q/limit".into(), "max_running=99999999999".into(), "Max running 99999999999 is too many"),
        ("/queues/q/limit".into(), "max_running=x".into(), "Invalid limit"),
        ("/schedules/s/pause".into(), String::new(), "s is paused."),
        ("/schedules/s/resume".into(), String::new(), "s is resumed; its next tick is at "),
        ("/schedules/s/resume".into(), String::new(), "s was not paused; its next tick is at "),
        ("/schedules/none/pause".into(), String::new(), "none"),
        ("/workers/none/drain".into(), String::new(), "No worker has the ID \"none\"; the workers are "),
        (format!("/workers/{runs_on}/drain"), String::new(), "drains: it takes no new jobs. It "),
    ] {
        let done = dashboard.post(&path.replace(' ', "%20"), &fields).await;
        assert_eq!(done.status, 303, "{path}: {}", done.body);
        let said = dashboard.said(&done).await.replace("&quot;", "\"");
        assert!(said.contains(words), "{path} {fields} said {said:?}");
    }
    bench.until_finished(running).await;
    bench.until_count("tenure.dead_letter_jobs WHERE payload IS NULL", 1).await;
    assert_eq!(bench.count("tenure.queues WHERE queue = 'typo'").await, 0);
    let limits = bench.tenure.limit_queue("q", QueueLimits::new()).await.unwrap();
    assert_eq!((limits.max_running, limits.max_queued), (None, Some(9)));
    let later = bench.tenure.job(later).await.unwrap().unwrap();
    assert_eq!(later.status, tenure::Status::Cancelled);
    let _ = dashboard.serve.log();
    working.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_input_is_text_on_every_page() {
    let bench = calm().await;
    let working = worker(&bench);
    let done = enqueue(&bench, json!({ "with": EVIL, EVIL: EVIL })).await;
    let dead = enqueue(&bench, json!({ "do": "fail", "with": EVIL })).await;
    let running = enqueue(&bench, json!({ "do": "wait", "with": EVIL })).await;
    bench.until_finished(done).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    until_processing(&bench, running).await;
    bench.publish("q.k", EVIL).await;
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    let refused =
        bench.value::<String>("SELECT id::text FROM tenure.dead_letter_jobs WHERE payload IS NULL").await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, reason, recovered_by)
             VALUES ('reset', 'scanner', '{running}', 0, $${EVIL}$$, $${EVIL}$$, $${EVIL}$$)"
        ))
        .await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let query = form_urlencoded(EVIL);
    let mut pages: Vec<String> = PAGES.map(|(path, _)| path.to_owned()).to_vec();
    pages.extend([done, dead, running].map(|id| format!("/jobs/{id}")));
    pages.extend([format!("/jobs/{refused}"), "/jobs?q=pwned".into()]);
    pages.extend([format!("/queues/{query}"), format!("/queues/q?range={query}")]);
    for name in
        ["q", "status", "queue", "kind", "worker", "since", "before", "path", "error", "category", "other"]
    {
        pages
            .extend(["/jobs", "/dead", "/recovery", "/nowhere"].map(|path| format!("{path}?{name}={query}")));
    }
    let mut shown = 0;
    for path in pages {
        let page = dashboard.get(&path).await.body;
        assert!(!page.contains("<script>") && !page.contains("<img"), "{path}:\n{page}");
        shown += usize::from(page.contains("&lt;script&gt;pwned()"));
    }
    assert!(shown > 10, "only {shown} pages show it at all");
    bench.tenure.cancel(running).await.unwrap();
    bench.until_finished(running).await;
    working.stop().await;
}

fn form_urlencoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_but_the_probes_asks_for_a_password_or_token() {
    let bench = calm().await;
    // The program does not open the dashboard to the network by accident.
    let open = bench.program(&["serve", "--listen", "0.0.0.0:0"]).output().await.unwrap();
    let text = String::from_utf8_lossy(&open.stderr).into_owned();
    assert!(open.status.code() == Some(1) && text.contains("TENURE_SERVE_PASSWORD"), "{text}");

    let (user, token) = ("ops:correct horse", "a-token-of-mine");
    let variables = [
        ("TENURE_SERVE_USER", "ops"),
        ("TENURE_SERVE_PASSWORD", "correct horse"),
        ("TENURE_SERVE_TOKEN", token),
    ];
    let dashboard = Dashboard::start(&bench, &[], &variables).await;
    let basic = |text: &str| format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()));
    for wrong in [basic("ops:wrong horse"), basic("tenure:correct horse"), "Bearer no".into()] {
        for path in ["/", "/metrics"] {
            let refused = dashboard.ask("GET", path, &[("Authorization", &wrong)], "").await;
            assert_eq!(refused.status, 401, "{path}");
        }
    }
    for path in ["/", "/jobs", "/jobs?live", "/metrics", "/assets/live.js", "/nowhere"] {
        let asked = dashboard.get(path).await;
        assert_eq!((asked.status, asked.body.contains("<html")), (401, false), "{path}");
        assert!(asked.header("www-authenticate").unwrap().starts_with("Basic"), "{path}");
        if !path.ends_with("live") && path != "/nowhere" {
            for right in [basic(user), format!("Bearer {token}")] {
                let got = dashboard.ask("GET", path, &[("Authorization", &right)], "").await;
                assert_eq!(got.status, 200, "{path}");
            }
        }
    }
    // The log has the first wrong password of a client at once, and not a request that carries none.
    let refused = dashboard.serve.log().matches("a wrong password or token was refused").count();
    assert!((1..=3).contains(&refused), "{}", dashboard.serve.log());
    for path in ["/livez", "/readyz", "/startupz"] {
        // Both servers have to be reached first.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while dashboard.get(path).await.status != 200 {
            assert!(std::time::Instant::now() < deadline, "{path}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // The token may only read.
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str()), ("Cookie", "tenure_csrf=abc")];
    let acting = Dashboard::start(&bench, &["--actions"], &variables).await;
    let refused = acting.ask("POST", "/queues/q/pause", &headers, "csrf=abc").await;
    assert!(refused.status == 403 && refused.body.contains("may only read"), "{}", refused.body);
    let basic_auth = basic(user);
    let headers = [("Authorization", basic_auth.as_str()), ("Cookie", "tenure_csrf=abc")];
    assert_eq!(acting.ask("POST", "/queues/q/pause", &headers, "csrf=abc").await.status, 303);
    // The log has the database's refusals, too.
    let at = bench.config.database_url.rfind('@').unwrap();
    let url = format!("postgres://nobody:wrong{}", &bench.config.database_url[at..]);
    let mut locked_out = Dashboard::start(&bench, &[], &[("DATABASE_URL", &url)]).await;
    locked_out.serve.until_log("Postgres is unavailable; the pages show the error").await;
    let page = locked_out.get("/jobs").await;
    for told in [&locked_out.serve.log(), &page.body] {
        assert!(told.contains("authentication failed"), "{told}");
    }
    // `tenure config` does not show the secrets.
    let config = bench.program(&["config"]).envs(variables).output().await.unwrap();
    let text = String::from_utf8_lossy(&config.stdout).into_owned();
    assert!(
        text.contains("TENURE_SERVE_PASSWORD") && !text.contains("horse") && !text.contains(token),
        "{text}"
    );
    drop(dashboard);

    let dashboard = Dashboard::start(&bench, &["--actions"], &[("TENURE_SERVE_AUTH", "proxy")]).await;
    let headers = [
        ("Host", "jobs.example"),
        ("X-Forwarded-User", "ada"),
        ("Cookie", "tenure_csrf=abc"),
        ("Origin", "https://jobs.example"),
    ];
    assert_eq!(dashboard.ask("GET", "/jobs", &headers, "").await.status, 200);
    assert_eq!(dashboard.ask("POST", "/queues/q/pause", &headers, "csrf=abc").await.status, 303);
    assert!(dashboard.serve.log().contains("ada"), "{}", dashboard.serve.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_base_path_every_address_is_below_it() {
    let bench = calm().await;
    let job = enqueue(&bench, json!(1)).await;
    let dashboard =
        Dashboard::start(&bench, &["--actions"], &[("TENURE_SERVE_BASE_PATH", "/ops/tenure/")]).await;
    for path in [
        "/ops/tenure",
        "/ops/tenure/",
        "/ops/tenure/jobs",
        &format!("/ops/tenure/jobs/{job}"),
        "/ops/tenure/queues",
    ] {
        let page = dashboard.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        for of in ["href=\"/", "src=\"/", "action=\"/", "data-live=\"/"] {
            for rest in page.body.split(of).skip(1) {
                assert!(rest.starts_with("ops/tenure/"), "{path}: {of}{}", &rest[..rest.len().min(60)]);
            }
        }
    }
    assert_eq!(dashboard.get("/ops/tenure/assets/style.css").await.status, 200);
    let done = dashboard.post("/ops/tenure/queues/q/pause", "").await;
    assert_eq!(done.header("location"), Some("/ops/tenure/jobs"));
    assert_eq!(dashboard.get("/jobs").await.status, 404);
    assert_eq!(dashboard.get("/livez").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_can_be_hidden_from_viewers() {
    let bench = calm().await;
    let working = worker(&bench);
    let secret = "4111-1111-1111-1111";
    let done = enqueue(&bench, json!({ "with": secret })).await;
    bench.until_finished(done).await;
    bench.publish("q.k", secret).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    let refused = bench.value::<String>("SELECT id::text FROM tenure.dead_letter_jobs").await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let shown = dashboard.get(&format!("/jobs/{done}")).await.body;
    assert!(shown.contains(secret));
    assert!(dashboard.get(&format!("/jobs?q={secret}")).await.body.contains(&done.to_string()));
    drop(dashboard);
    let dashboard = Dashboard::start(&bench, &["--hide-payloads"], &[]).await;
    for path in [format!("/jobs/{done}"), format!("/jobs/{refused}"), "/jobs".into(), "/dead".into()] {
        let page = dashboard.get(&path).await;
        assert!(page.status == 200 && !page.body.contains(secret), "{path}");
    }
    // A search does not reveal them either.
    assert!(!dashboard.get(&format!("/jobs?q={secret}")).await.body.contains(&done.to_string()));
    working.stop().await;
}

/// Each page has fifty rows, however many exist; a role that may only read serves all pages.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_hundred_thousand_jobs_every_page_is_short_and_a_viewer_may_serve_it() {
    // The time of a page as by default: this test is about what pages show.
    let bench = bench_with_servers(|config| config.timing.database_within = Duration::from_secs(10)).await;
    bench
        .execute(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
             SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000'
                     || lpad(to_hex(n), 12, '0'))::uuid,
                    'q', 'k', '{\"n\": 1}', 'completed', 1, 5, 1, gen_random_uuid(), 'w', at, at, at, at, at
               FROM (SELECT n, now() - n * interval '1 second' AS at FROM generate_series(1, 100000) n) jobs",
        )
        .await;
    let waiting = (0..20_000).map(|n| JobRequest::new(format!("q{}", n % 7), "k", json!(n)));
    bench.tenure.enqueue_many(waiting).await.unwrap();
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             SELECT gen_random_uuid(), 'q', 'k', '1', 5, 5, 5, now(), now(), now() - n * interval '1 second',
                    'customer ' || n || ' is unknown', 'exhausted', '[]' FROM generate_series(1, 20000) n",
        )
        .await;
    bench
        .execute(
            "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, reason, recovered_by)
             SELECT 'reset', 'scanner', gen_random_uuid(), 1, 'w', 'silent', 'v' FROM generate_series(1, 20000)",
        )
        .await;
    sqlx::raw_sql(include_str!("../../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    bench.execute("CREATE ROLE looker LOGIN PASSWORD 'looker' IN ROLE tenure_viewer").await;
    let url = bench.config.database_url.clone();
    let at = url.find('@').unwrap();
    let viewer = format!("postgres://looker:looker{}", &url[at..]);
    let dashboard = Dashboard::start(&bench, &["--actions"], &[("DATABASE_URL", &viewer)]).await;
    for path in PAGES.map(|(path, _)| path).into_iter().chain([
        "/jobs?kind=none",
        "/jobs?q=nowhere+to+be+found",
        "/jobs?status=completed",
        "/jobs?status=cancelled",
        "/dead?error=19999",
    ]) {
        let page = dashboard.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(page.body.len() < 200_000, "{path} has {} bytes", page.body.len());
    }
    let groups = dashboard.get("/dead").await.body;
    assert!(groups.contains("<b>10,000</b>"), "one group, with any number in the error");
    assert!(groups.contains("50 of 10,000 or more"));
    assert!(groups.contains("group="), "the link selects the group");
    // Page after page, each job once.
    let (mut path, mut seen) = ("/jobs?status=completed".to_owned(), std::collections::BTreeSet::new());
    for _ in 0..5 {
        let page = dashboard.get(&path).await.body;
        for id in page.split("id=\"job-").skip(1) {
            assert!(seen.insert(id[..36].to_owned()), "{id} twice");
        }
        let older = page.split("\" rel=\"next\"").next().unwrap().rsplit("href=\"").next().unwrap();
        path = older.replace("&amp;", "&");
    }
    assert_eq!(seen.len(), 250);
    // The page names an action that the role may not do, and does not do it.
    let refused = dashboard.post("/queues/q/pause", "").await;
    let said = dashboard.said(&refused).await;
    assert!(said.contains("tenure_operator"), "{said}");
    // The full role may.
    bench.execute("CREATE ROLE caller LOGIN PASSWORD 'caller' IN ROLE tenure_operator").await;
    let caller = format!("postgres://caller:caller{}", &url[at..]);
    let dashboard = Dashboard::start(&bench, &["--actions"], &[("DATABASE_URL", &caller)]).await;
    let dead: String = bench.value("SELECT id::text FROM tenure.dead_letter_jobs LIMIT 1").await;
    let queued: String = bench.value("SELECT id::text FROM tenure.jobs LIMIT 1").await;
    for (path, fields) in [
        ("/queues/q/pause", String::new()),
        ("/queues/q/limit", "max_running=2&max_queued=9".into()),
        ("/jobs/cancel", format!("id={queued}")),
        ("/dead/redrive", format!("id={dead}")),
        ("/dead/purge", "all=1&error=19999&shown=32503680000000000".into()),
    ] {
        let done = dashboard.post(path, &fields).await;
        let said = dashboard.said(&done).await;
        assert!(!said.contains("Postgres"), "{path}: {said}");
    }
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 19_998);
}

/// The rates add up the work of all workers by minute, also that of a stopping worker's last seconds.
#[tokio::test(flavor = "multi_thread")]
async fn rates_add_up_the_reports_of_all_workers() {
    let bench = calm().await;
    let (one, other) = (worker(&bench), worker(&bench));
    for n in 0..20 {
        let what = if n < 3 { json!({ "do": "fail" }) } else { json!(n) };
        enqueue(&bench, what).await;
    }
    bench.until_count("tenure.jobs", 0).await;
    one.stop().await;
    other.stop().await;
    let sum = "SELECT sum(claimed) || ' ' || sum(completed) || ' ' || sum(failed) || ' '
                   || sum((SELECT sum(n) FROM unnest(waited) n)) || ' ' || sum((SELECT sum(n) FROM unnest(ran) n))
                 FROM tenure.activity WHERE queue = 'q'";
    assert_eq!(bench.value::<String>(sum).await, "20 17 3 20 20");
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get("/").await.body;
    assert!(page.contains("17 in the last hour") && page.contains("completed <b>17</b>"), "{page}");
}

/// A job that polls has thousands of attempts: its page shows the latest.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_job_with_many_attempts_is_short() {
    let bench = calm().await;
    let job = enqueue(&bench, json!(1)).await;
    let attempts = format!(
        "INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at, finished_at,
                outcome)
         SELECT '{job}', n, 1, gen_random_uuid(), 'w-' || n, now(), now(), 'snoozed' FROM generate_series(1, 20000) n"
    );
    bench.execute(&attempts).await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get(&format!("/jobs/{job}")).await.body;
    assert!(page.len() < 200_000, "{}", page.len());
    assert!(
        page.contains("w-20000") && page.contains("the latest 100 of all") && !page.contains(">w-19900<")
    );
}
