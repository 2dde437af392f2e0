//! Tags: each producer writes them, lists and actions select by them, and they leave with their jobs.
//!
//! Not here: when rows leave (`retention`), and the plans of the statements (`plans`).

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Status, Worker,
    rows::{DeadFilter, JobFilter},
};

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Child, Running, ask, bench, free_address},
};

fn job(n: u32) -> JobRequest {
    JobRequest::new("q", "k", json!(n)).delay(Duration::from_secs(3_600))
}

async fn tagged(bench: &Bench, tags: &[&str]) -> JobId {
    bench.tenure.enqueue(tags.iter().fold(job(0), |job, tag| job.tag(*tag))).await.unwrap().id
}

async fn selected(bench: &Bench, tags: &[&str]) -> Vec<JobId> {
    let filter = tags.iter().fold(JobFilter::new(), |filter, tag| filter.tag(*tag));
    bench.tenure.jobs(&filter, 100).await.unwrap().into_iter().map(|job| job.id).collect()
}

async fn run(bench: &Bench, arguments: &[&str]) -> (i32, String) {
    let ran = bench.program(arguments).output().await.unwrap();
    let text = String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap();
    (ran.status.code().unwrap(), text)
}

/// A worker whose jobs fail for good.
fn failing(bench: &Bench) -> Running {
    let fail = async |_: Value, _: JobContext| Err::<(), _>(JobError::permanent("no"));
    Running::start(Worker::builder(&bench.tenure).handle_any(KindOptions::new(), fail).concurrency("q", 4))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_producer_writes_tags() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let expected = vec!["customer=7".to_owned(), "nightly".to_owned()];
    let mut ids = vec![
        tagged(&bench, &["nightly", "customer=7", "nightly"]).await,
        // Due, so that the enqueue of plain jobs would take it.
        bench
            .tenure
            .enqueue(JobRequest::new("q", "k", json!(1)).tag("nightly").tag("customer=7"))
            .await
            .unwrap()
            .id,
    ];
    let one = "SELECT tenure.enqueue('q', 'k', tags => ARRAY['nightly', 'customer=7', 'nightly'])";
    ids.push(JobId(bench.value(one).await));
    let many =
        r#"SELECT tenure.enqueue_many('[{"queue": "q", "kind": "k", "tags": ["nightly", "customer=7"]}]')"#;
    ids.push(JobId(bench.value(many).await));
    let mut tx = bench.pool.begin().await.unwrap();
    let many = (0..3).map(|n| job(n).tag("nightly").tag("customer=7"));
    ids.extend(bench.tenure.enqueue_many(many).tx(&mut tx).await.unwrap().iter().map(|job| job.id));
    tx.commit().await.unwrap();
    let (code, id) =
        run(&bench, &["enqueue", "q", "k", "{}", "--tag", "nightly", "--tag", "customer=7"]).await;
    assert_eq!(code, 0, "{id}");
    ids.push(id.trim().parse().unwrap_or_else(|_| panic!("{id}")));
    let dashboard = Dashboard::start(&bench, &["--actions", "--api"], &[]).await;
    let posted = dashboard.post("/enqueue", "queue=q&kind=k&payload=1&tags=nightly+customer%3D7").await;
    ids.push(posted.header("location").unwrap().strip_prefix("/jobs/").unwrap().parse().unwrap());
    let body = r#"{"queue": "q", "kind": "k", "payload": 1, "tags": ["nightly", "customer=7"]}"#;
    let posted = dashboard.ask("POST", "/api/v1/jobs", &[("content-type", "application/json")], body).await;
    let answer: Value = serde_json::from_str(&posted.body).unwrap();
    ids.push(answer["id"].as_str().unwrap().parse().unwrap());
    for id in &ids {
        assert_eq!(bench.tenure.job(*id).await.unwrap().unwrap().tags, expected, "{id}");
    }
    let found = selected(&bench, &["nightly"]).await;
    assert_eq!(found.len(), ids.len());
    assert!(ids.iter().all(|id| found.contains(id)));
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submissions_header_names_its_tags() {
    let bench = bench().await;
    let worker = failing(&bench);
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Tags", " nightly, customer=7,,nightly");
    let js = async_nats::jetstream::new(async_nats::connect(&bench.config.nats_url).await.unwrap());
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let subject = format!("{}.q.k", bench.config.subject_prefix);
    js.publish_with_headers(subject.clone(), headers, "1".into()).await.unwrap().await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.dead_letter_jobs)").await;
    let dead = bench.tenure.jobs(&JobFilter::new().tag("nightly").tag("customer=7"), 9).await.unwrap();
    assert_eq!((dead.len(), dead[0].status), (1, Status::Failed));
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Tags", "nightly, two words");
    js.publish_with_headers(subject, headers, "2".into()).await.unwrap().await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.dead_letter_jobs WHERE category = 'malformed')").await;
    let why = bench.text("SELECT last_error FROM tenure.dead_letter_jobs WHERE category = 'malformed'").await;
    assert!(why.contains("the header Tenure-Tags: tag \"\"two words\"\" is not valid"), "{why}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_selects_jobs_that_have_all_of_the_tags_page_by_page() {
    let bench = bench().await;
    let both = [tagged(&bench, &["a", "b=1"]).await, tagged(&bench, &["b=1", "a", "c"]).await];
    let one = tagged(&bench, &["a", "b=2"]).await;
    tagged(&bench, &[]).await;
    assert_eq!(selected(&bench, &["a"]).await, [one, both[1], both[0]]);
    assert_eq!(selected(&bench, &["a", "b=1"]).await, [both[1], both[0]]);
    assert_eq!(selected(&bench, &["b=1", "c", "b=1"]).await, [both[1]]);
    for none in [&["b"][..], &["a", "b=1", "b=2"], &["A"], &["a%"]] {
        assert_eq!(selected(&bench, none).await, [], "{none:?}");
    }
    let rest = bench.tenure.jobs(&JobFilter::new().tag("a").before(both[1]), 9).await.unwrap();
    assert_eq!(rest.iter().map(|job| job.id).collect::<Vec<_>>(), [both[0]]);
    let old = JobFilter::new().tag("a").older_than(Duration::from_secs(60));
    assert_eq!(bench.tenure.jobs(&old, 9).await.unwrap().len(), 0);
    let new = JobFilter::new().tag("a").newer_than(Duration::from_secs(60)).kind("k");
    assert_eq!(bench.tenure.jobs(&new, 9).await.unwrap().len(), 3);

    let (code, listed) =
        run(&bench, &["jobs", "list", "--tag", "a", "--tag", "b=1", "--output", "json"]).await;
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!((code, listed.len(), &listed[1]["tags"]), (0, 2, &json!(["a", "b=1"])));
    let (_, shown) = run(&bench, &["jobs", "show", &both[1].to_string()]).await;
    assert!(
        shown.lines().any(|line| line.trim().starts_with("tags ") && line.trim().ends_with(" a, b=1, c")),
        "{shown}"
    );
    let dashboard = Dashboard::start(&bench, &["--api"], &[]).await;
    let listed = dashboard.get("/api/v1/jobs?tag=a,b%3D1").await;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&listed.body).unwrap().len(), 2, "{}", listed.body);
    let page = dashboard.get("/jobs?tag=b%3D1+a").await.body;
    assert!(both.iter().all(|id| page.contains(&id.to_string())) && !page.contains(&one.to_string()));
    let page = dashboard.get(&format!("/jobs/{one}")).await.body;
    assert!(page.contains("/jobs?tag=b%3D2"), "the job's tags lead to their jobs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_by_tag_reaches_those_jobs_alone() {
    let bench = bench().await;
    let handler = async |_: Value, ctx: JobContext| {
        ctx.cancelled().await;
        Err::<(), _>(JobError::msg("stopped"))
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1);
    let worker = Running::start(worker);
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(0)).tag("org=7")).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.jobs WHERE status = 'processing')").await;
    // More than one step.
    bench.tenure.enqueue_many((0..1_200).map(|n| job(n).tag("org=7"))).await.unwrap();
    bench.tenure.enqueue_many((0..3).map(|n| job(n).tag("org=8"))).await.unwrap();
    let other = bench.tenure.enqueue(JobRequest::new("p", "k", json!(0)).tag("org=7")).await.unwrap().id;
    let cancel = |more: &'static [&'static str]| {
        let bench = &bench;
        async move { run(bench, &[&["jobs", "cancel", "--tag", "org=7", "--queue", "q"], more].concat()).await }
    };
    let (code, would) = cancel(&["--dry-run"]).await;
    assert_eq!((code, would.trim()), (0, "1200 queued would be cancelled, 1 running would be asked to stop"));
    assert_eq!(bench.count("tenure.job_history").await, 0);
    let (code, done) = cancel(&["--output", "json"]).await;
    assert_eq!(
        (code, serde_json::from_str::<Value>(&done).unwrap()),
        (0, json!({"cancelled": 1200, "asked": 1}))
    );
    bench.until("(SELECT count(*) FROM tenure.job_history WHERE status = 'cancelled') = 1201").await;
    assert_eq!(selected(&bench, &["org=8"]).await.len(), 3);
    assert_eq!(bench.tenure.job(other).await.unwrap().unwrap().status, Status::Queued);
    let left = bench.tenure.cancel_matching(&JobFilter::new().tag("org=7")).await.unwrap();
    assert_eq!((left.cancelled, left.asked), (1, 0));
    let acts = "tenure.audit WHERE act = 'cancel'";
    assert_eq!(bench.value::<i64>(&format!("SELECT sum(jobs)::bigint FROM {acts}")).await, 1_202);
    let (code, said) = run(&bench, &["jobs", "cancel", "--tag", "org=7", &other.to_string()]).await;
    assert!(code == 2 && said.contains("cannot be used with"), "{said}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_redriven_and_purged_by_tag_with_their_tags() {
    let bench = bench().await;
    let worker = failing(&bench);
    for tag in ["org=7", "org=7", "org=8"] {
        bench.tenure.enqueue(JobRequest::new("q", "k", json!(0)).tag(tag).tag("nightly")).await.unwrap();
    }
    bench.until("(SELECT count(*) FROM tenure.dead_letter_jobs) = 3").await;
    worker.stop().await;
    let filter = DeadFilter::new().tag("org=7").tag("nightly");
    assert_eq!(bench.tenure.dead_letters(&filter, 9).await.unwrap().len(), 2);
    let (code, said) = run(&bench, &["dead", "redrive", "--tag", "org=7", "--tag", "none"]).await;
    assert!(code == 0 && said.starts_with('0'), "{code} {said}");
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let page = dashboard.get("/dead?tag=org%3D8").await.body;
    assert_eq!(page.matches("id=\"job-").count(), 1);
    assert_eq!(bench.tenure.redrive_all(&filter).await.unwrap(), 2);
    bench.until("(SELECT count(*) FROM tenure.dead_letter_jobs) = 1").await;
    // A redriven job keeps its tags.
    assert_eq!(selected(&bench, &["org=7"]).await.len(), 2);
    let (code, said) = run(&bench, &["dead", "purge", "--older-than", "0s", "--tag", "org=8"]).await;
    assert_eq!((code, said.trim()), (0, "1 dead letter purged"));
    assert_eq!(bench.count("tenure.job_tags WHERE tag = 'org=8'").await, 0);
    assert_eq!(bench.count("tenure.job_tags").await, 4);
    let calm = tenure::redrives::CalmRedrive::new().canary(1);
    assert!(bench.tenure.redrive_calmly(&filter, calm).await.unwrap().is_none(), "none of these is dead");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_again_or_is_cloned_has_the_same_tags() {
    let bench = bench().await;
    let id = tagged(&bench, &["a", "b=1"]).await;
    bench.tenure.cancel(id).await.unwrap();
    let again = bench.tenure.run_again(id).await.unwrap().id;
    assert_eq!(bench.tenure.job(again).await.unwrap().unwrap().tags, ["a", "b=1"]);
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    assert!(dashboard.get(&format!("/enqueue?from={id}")).await.body.contains("value=\"a b=1\""));
    // A second job with the key is no job, and has no tags.
    let first = bench.tenure.enqueue(job(1).unique_key("u").tag("first")).await.unwrap().id;
    let second = bench.tenure.enqueue(job(2).unique_key("u").tag("second")).await.unwrap();
    assert!(second.duplicate && second.id == first);
    assert_eq!(bench.count("tenure.job_tags WHERE tag = 'second'").await, 0);
    let held: uuid::Uuid =
        bench.value("SELECT tenure.enqueue('q', 'k', unique_key => 'u', tags => ARRAY['third'])").await;
    assert_eq!((held, bench.count("tenure.job_tags WHERE tag = 'third'").await), (first.0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tags_are_refused_with_what_was_wrong_and_nothing_is_enqueued() {
    let bench = bench().await;
    let long = "x".repeat(101);
    for bad in ["", " ", "a b", "a,b", "a\nb", &long] {
        let error = bench.tenure.enqueue(job(1).tag(bad)).await.unwrap_err().to_string();
        assert!(error.contains("is not valid: use 1 to 100 bytes without spaces, commas"), "{error}");
        let call = sqlx::query("SELECT tenure.enqueue('q', 'k', tags => ARRAY[$1])").bind(bad);
        let error = call.execute(&bench.pool).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("TN003"));
        assert!(error.message().contains("bytes), but must have 1 to 100 bytes without spaces"), "{error}");
    }
    let many = (0..17).fold(job(1), |job, n| job.tag(n.to_string()));
    let error = bench.tenure.enqueue(many).await.unwrap_err().to_string();
    assert_eq!(error, "the number of tags is 17, but must be at most 16");
    for (tags, what) in [
        ("ARRAY(SELECT n::text FROM generate_series(1, 17) n)", "tags has 17 tags, but a job has at most 16"),
        ("ARRAY[NULL]::text[]", "a tag is NULL (0 bytes), but must have"),
    ] {
        let sql = format!("SELECT tenure.enqueue('q', 'k', tags => {tags})");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&bench.pool).await.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    for (tags, what) in [
        ("\"a\"", "jobs[0] has tags that are not an array of strings"),
        ("[1]", "jobs[0] has tags that are not an array of strings"),
        ("[\"a b\"]", "jobs[0]: a tag is \"a b\" (3 bytes), but must have"),
    ] {
        let sql = format!(r#"SELECT tenure.enqueue_many('[{{"queue": "q", "kind": "k", "tags": {tags}}}]')"#);
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&bench.pool).await.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    bench.execute(r#"SELECT tenure.enqueue_many('[{"queue": "q", "kind": "k", "tags": null, "delay": "1 h"},
                                                   {"queue": "q", "kind": "k", "tags": [], "delay": "1 h"}]')"#).await;
    for arguments in [
        &["enqueue", "q", "k", "1", "--tag", "a b"][..],
        &["jobs", "list", "--tag", ""],
        &["dead", "list", "--tag", "a,b"],
    ] {
        let (code, said) = run(&bench, arguments).await;
        assert!(code == 2 && said.contains("use 1 to 100 bytes without spaces"), "{said}");
    }
    assert_eq!((bench.count("tenure.jobs").await, bench.count("tenure.job_tags").await), (2, 0));
    let tick = tenure::schedules::Schedule::new(
        "daily",
        "0 3 * * *",
        JobRequest::new("q", "k", json!(1)).tag("a b"),
    );
    let error = bench.tenure.put_schedule(tick).await.unwrap_err().to_string();
    assert!(error.contains("use 1 to 100 bytes without spaces"), "{error}");
}

/// Waits until a worker shows all of these lines, and returns its metrics.
async fn until_shown(address: std::net::SocketAddr, lines: &[&str]) -> String {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let page =
            tokio::task::spawn_blocking(move || ask(address, "GET", "/metrics", &[], "")).await.unwrap();
        let page = page.map(|answer| answer.body).unwrap_or_default();
        if lines.iter().all(|line| page.contains(line)) {
            return page;
        }
        assert!(std::time::Instant::now() < deadline, "{lines:?} is not in {page}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_the_tags_that_were_asked_for_and_no_others() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let address = free_address();
    let mut program = bench.program(&["work", "q", "--exec", "exit 0", "--concurrency", "20"]);
    program.env("TENURE_LISTEN", address.to_string()).env("TENURE_METRIC_TAGS", "team, nightly");
    let mut worker = Child::spawn(program, "tags");
    let of_team = |n: u32| JobRequest::new("q", "k", json!(n)).tag("team=a").tag("org=7");
    bench.tenure.enqueue_many((0..3).map(of_team)).await.unwrap();
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(0)).tag("team=b").tag("nightly")).await.unwrap();
    let line = |tag, value, kind, n| {
        format!(
            "tenure_tagged_attempts_total{{tag=\"{tag}\",value=\"{value}\",kind=\"{kind}\",outcome=\"completed\"}} {n}\n"
        )
    };
    let lines = [line("team", "a", "k", 3), line("team", "b", "k", 1), line("nightly", "", "k", 1)];
    let page = until_shown(address, &lines.each_ref().map(String::as_str)).await;
    assert!(!page.contains("org"), "{page}");
    // More teams than have a series: three are there already.
    let many = |n: u32| JobRequest::new("q", "many", json!(n)).tag(format!("team={n}"));
    bench.tenure.enqueue_many((0..250).map(many)).await.unwrap();
    let page = until_shown(address, &[&line("team", "other", "many", 53)]).await;
    assert_eq!(page.matches("kind=\"many\",outcome=\"completed\"} 1\n").count(), 197);
    worker.kill().await;
    for bad in ["a=b", "a b"] {
        let ran = bench.program(&["config"]).env("TENURE_METRIC_TAGS", bad).output().await.unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(said.contains("without `=`: team,nightly"), "{bad:?}: {said}");
    }
}
