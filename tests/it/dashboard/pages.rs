//! The dashboard's lists and forms: what they show, what they select, and what an action of them touches.

use serde_json::json;
use tenure::{JobId, JobRequest, Status, rows::DeadFilter, schedules::Schedule};

use super::{
    Dashboard,
    browser::{Browser, Look},
    calm, enqueue, form_urlencoded, until_processing, worker,
};
use crate::harness::{Bench, Child};

/// A Python traceback with this last line.
pub(super) fn traceback(line: &str) -> String {
    format!(
        "exit 1: Traceback (most recent call last):\n  File \"job.py\", line 3, in <module>\n    run(job)\n{line}\n"
    )
}

/// A dead letter of kind `k` in queue `q` for each of these errors.
pub(super) async fn dead(bench: &Bench, errors: &[String]) {
    for error in errors {
        let insert = "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts,
                             fencing_token, created_at, scheduled_at, died_at, last_error, category, execution_history)
                      VALUES (gen_random_uuid(), 'q', 'k', '1', 5, 5, 5, now(), now(), clock_timestamp(), $1,
                              'exhausted', '[]')";
        sqlx::query(insert).bind(error).execute(&bench.pool).await.unwrap();
    }
}

/// The part of a page between two texts.
pub(super) fn between<'p>(page: &'p str, from: &str, to: &str) -> &'p str {
    let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("no {from:?} in\n{page}"));
    rest.split(to).next().unwrap()
}

/// Two errors that begin alike, as all tracebacks do, are two groups, and an action on one leaves the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_dead_letters_is_of_one_error_and_an_action_touches_that_group_alone() {
    let bench = calm().await;
    bench.tenure.pause_queue("q").await.unwrap();
    let mut errors = vec![];
    for n in 0..5 {
        errors.push(traceback(&format!("KeyError: 'customer-{n}'")));
        errors.push(traceback(&format!("ValueError: amount {n} is not positive")));
    }
    dead(&bench, &errors).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let page = dashboard.get("/dead").await.body;
    let groups = between(&page, "id=\"groups\"", "</section>");
    let rows: Vec<_> = groups.split("<tr>").skip(2).collect();
    assert_eq!(rows.len(), 2, "{groups}");
    let mut links = std::collections::BTreeMap::new();
    for error in ["KeyError", "ValueError"] {
        let row = rows.iter().find(|row| row.contains(&format!(">{error}: "))).unwrap();
        assert!(row.contains("<b>5</b>") && !row.contains("Traceback"), "{row}");
        let link = between(row, "href=\"", "\"").replace("&amp;", "&");
        let of_group = dashboard.get(&link).await.body;
        assert!(of_group.contains("5 of 5") && of_group.contains("all 5 of this group"), "{of_group}");
        assert_eq!(
            of_group.matches(&format!(">{error}: ")).count(),
            6,
            "five rows and the notice: {of_group}"
        );
        links.insert(error, link);
    }
    // The question is open; then one more of the same group dies, and the page's update with it waits.
    let browser = Browser::at(dashboard.address).await;
    browser.open(&links["KeyError"]).await;
    browser.click("input[data-matching]").await;
    browser.until_text("button[formaction='/dead/redrive']", "Redrive 5").await;
    browser.click("button[formaction='/dead/redrive']").await;
    browser.until("document.querySelector('dialog.ask[open]')").await;
    dead(&bench, &[traceback("KeyError: 'late'")]).await;
    browser.until("document.querySelector('dialog.ask').dataset.held?.split(' ').includes('list')").await;
    browser.click("dialog.ask button[value=yes]").await;
    browser.until_text(".flash", "5 jobs are queued again").await;
    bench.until_count("tenure.dead_letter_jobs WHERE last_error LIKE '%KeyError%'", 1).await;
    assert_eq!(bench.count("tenure.dead_letter_jobs WHERE last_error LIKE '%ValueError%'").await, 5);
    // A refused message is no job: Redrive does not count it, and Purge does.
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, raw_payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             VALUES (gen_random_uuid(), 'q', 'k', 'x', 0, 1, 0, now(), now(), clock_timestamp(), 'no JSON',
                     'malformed', '[]')",
        )
        .await;
    browser.open("/dead").await;
    browser.click("input[data-matching]").await;
    browser.until_text("button[formaction='/dead/redrive']", "Redrive 6").await;
    browser.until_text("button[formaction='/dead/purge']", "Purge 7").await;
    // The library's filter and the terminal's select the same group.
    let group = links["ValueError"].split("group=").nth(1).unwrap();
    let tenure = async |arguments: &[&str]| {
        let output = bench.program(arguments).args(["--output", "json"]).output().await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let groups = tenure(&["dead", "groups", "--kind", "k", "--limit", "2"]).await;
    assert_eq!((&groups[0]["group"], &groups[0]["jobs"]), (&json!(group), &json!(5)), "{groups}");
    assert_eq!(tenure(&["dead", "list", "--group", group]).await.as_array().unwrap().len(), 5);
    let latest = bench.tenure.dead_letters(&DeadFilter::new().group(group), 1).await.unwrap()[0].id;
    assert_eq!(bench.tenure.purge_dead_jobs(&[latest]).await.unwrap(), 1);
    assert_eq!(tenure(&["dead", "redrive", "--group", group]).await, json!({ "redriven": 4 }));
    assert_eq!(
        tenure(&["dead", "purge", "--older-than", "0s", "--group", group]).await,
        json!({ "purged": 0 })
    );
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 2);
}

/// The clicks on one button of one page have one effect, even without a script.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_click_enqueues_nothing_and_a_changed_form_does() {
    let bench = calm().await;
    let job = JobRequest::new("q", "k", json!(1));
    bench.tenure.put_schedule(Schedule::new("s", "0 3 * * *", job)).await.unwrap();
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let page = dashboard.get("/enqueue").await.body;
    let once = between(&page, "name=\"once\" value=\"", "\"").to_owned();
    assert_ne!(between(&dashboard.get("/enqueue").await.body, "name=\"once\" value=\"", "\""), once);
    let form = |payload: &str| format!("once={once}&queue=q&kind=k&payload={payload}");
    // Both arrive before either is answered.
    let (one, two) = (form("1"), form("1"));
    let (one, two) = tokio::join!(dashboard.post("/enqueue", &one), dashboard.post("/enqueue", &two));
    assert_eq!((one.status, one.header("location")), (303, two.header("location")), "{}", one.body);
    assert_eq!(bench.count("tenure.jobs").await, 1);
    let said = dashboard.said(&dashboard.post("/enqueue", &form("1")).await).await;
    assert!(said.contains("has enqueued this job before"), "{said}");
    // The user went back and changed it. A wrong form keeps what it was opened with.
    let wrong = dashboard.post("/enqueue", &form("x")).await;
    assert!(
        wrong.status == 400 && wrong.body.contains(&format!("name=\"once\" value=\"{once}\"")),
        "{}",
        wrong.body
    );
    assert_eq!(dashboard.said(&dashboard.post("/enqueue", &form("2")).await).await, "The job is enqueued.");
    assert_eq!(bench.count("tenure.jobs").await, 2);

    // A double click in a browser.
    let browser = Browser::at(dashboard.address).await;
    browser.open("/enqueue?queue=q&kind=twice").await;
    browser
        .value(
            "(document.querySelectorAll('.form button.primary').forEach((b) => (b.click(), b.click())), 1)",
        )
        .await;
    browser.until("location.pathname.startsWith('/jobs/')").await;
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'twice'").await, 1);
    bench.execute("DELETE FROM tenure.jobs WHERE kind = 'twice'").await;

    // Run now. The live updates of a page repeat its own number, so they change nothing.
    let page = dashboard.get("/schedules").await.body;
    let once = between(&page, "name=\"once\" value=\"", "\"");
    assert!(page.contains(&format!("data-live=\"/schedules?live={once}\"")), "{page}");
    for words in ["the next tick stays", "is enqueued already by this page"] {
        let said = dashboard.said(&dashboard.post("/schedules/s/run", &format!("once={once}")).await).await;
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(bench.count("tenure.jobs").await, 3);
    assert!(!dashboard.serve.log().contains(once), "{}", dashboard.serve.log());
}

/// Two people edit one schedule; the second to save sees both versions, even if the first saves between its look and its write.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_changed_since_its_form_was_opened_is_not_overwritten_unseen() {
    let bench = calm().await;
    let put = async |cron: &str, kind: &str| {
        let job = JobRequest::new("q", kind, json!({ "format": "pdf" }));
        bench.tenure.put_schedule(Schedule::new("daily", cron, job)).await.unwrap();
    };
    put("0 3 * * *", "report").await;
    bench.tenure.pause_schedule("daily").await.unwrap();
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let loaded = |page: &str| between(page, "name=\"loaded\" value=\"", "\"").to_owned();
    let form = |loaded: &str, kind: &str| {
        let payload = form_urlencoded("{\"format\": \"pdf\"}");
        format!(
            "name=daily&cron=0+4+*+*+*&time_zone=UTC&queue=q&kind={kind}&payload={payload}&max_attempts=5&missed=once\
             &tick_field=&loaded={loaded}"
        )
    };
    let opened = loaded(&dashboard.get("/schedule?name=daily").await.body);
    // A program that puts the same schedule when it starts is in no user's way.
    put("0 3 * * *", "report").await;
    let changed = dashboard.said(&dashboard.post("/schedule", &form(&opened, "report")).await).await;
    assert_eq!(changed, "daily is changed; it is paused, and has no tick until it is resumed.");
    // The answer got lost, and the user saves again.
    assert_eq!(dashboard.post("/schedule", &form(&opened, "report")).await.status, 303);

    let opened = loaded(&dashboard.get("/schedule?name=daily").await.body);
    put("0 5 * * *", "theirs").await;
    let refused = dashboard.post("/schedule", &form(&opened, "mine")).await;
    assert!(refused.status == 400 && refused.body.contains("since you opened this form"), "{}", refused.body);
    let both = between(&refused.body, "id=\"changed\"", "</section>");
    for part in [">0 5 * * *<", ">0 4 * * *<", ">theirs<", ">mine<"] {
        assert!(both.contains(part), "{part}: {both}");
    }
    assert!(!both.contains("Payload") && refused.body.contains("value=\"mine\""), "{both}");
    assert_eq!(bench.count("tenure.schedules WHERE kind = 'theirs'").await, 1);
    // Having seen both, the user replaces it.
    let again = dashboard.post("/schedule", &form(&loaded(&refused.body), "mine")).await;
    assert_eq!((again.status, bench.count("tenure.schedules WHERE kind = 'mine'").await), (303, 1));

    let browser = Browser::at(dashboard.address).await;
    browser.open("/schedule?name=daily").await;
    put("0 6 * * *", "theirs").await;
    browser.value("(document.querySelector('#kind').value = 'typed', 1)").await;
    browser.click(".form button.primary").await;
    browser.until_text("#changed", "0 6 * * *").await;
    browser.click(".form button.primary").await;
    browser.until_text(".flash", "daily is changed").await;
    assert_eq!(bench.count("tenure.schedules WHERE kind = 'typed'").await, 1);

    // Another change commits after the dashboard has compared, and before it writes.
    let opened = loaded(&dashboard.get("/schedule?name=daily").await.body);
    let mut other = bench.pool.begin().await.unwrap();
    sqlx::query("UPDATE tenure.schedules SET kind = 'between', changed_at = clock_timestamp()")
        .execute(&mut *other)
        .await
        .unwrap();
    let form = form(&opened, "late");
    let (refused, ()) = tokio::join!(dashboard.post("/schedule", &form), async {
        bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())").await;
        other.commit().await.unwrap();
    });
    assert!(
        refused.status == 400 && refused.body.contains(">between<"),
        "{} {}",
        refused.status,
        refused.body
    );
    assert_eq!(bench.count("tenure.schedules WHERE kind = 'between'").await, 1);
}

/// A job that waits for an hour: for its first attempt, or for another one.
pub(super) async fn waiting(bench: &Bench, kind: &str, attempt: i32) -> JobId {
    let insert = "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, attempt, fencing_token, scheduled_at,
                         publish_at, last_error)
                  VALUES (uuidv7(), 'q', $1, '{\"n\": 3.14159265358979323846}', 5, $2, $2, now() + interval '1 hour',
                          now() + interval '1 hour', $3)
                  RETURNING id::text";
    let error = (attempt > 0).then(|| traceback("KeyError: 'customer'"));
    let insert = insert.replace("uuidv7()", &format!("'{}'", uuid::Uuid::now_v7()));
    let id: String = sqlx::query_scalar(sqlx::AssertSqlSafe(insert))
        .bind(kind)
        .bind(attempt)
        .bind(error)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    id.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_says_why_it_waits_and_an_action_counts_only_what_it_can_touch() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let empty = dashboard.get("/jobs").await.body;
    assert!(empty.contains("No jobs yet") && empty.contains("tenure enqueue QUEUE KIND"), "{empty}");
    assert!(dashboard.get("/jobs?kind=none").await.body.contains("No jobs match"));

    let working = worker(&bench);
    let done = enqueue(&bench, json!(1)).await;
    bench.until_finished(done).await;
    let (retrying, scheduled) = (waiting(&bench, "retries", 2).await, waiting(&bench, "waits", 0).await);
    let page = dashboard.get("/jobs").await.body;
    for tab in ["Retrying", "Scheduled"] {
        assert!(page.contains(&format!("{tab} <span class=\"count\">1</span>")), "{tab}: {page}");
    }
    for (status, is, is_not) in [("retrying", retrying, scheduled), ("scheduled", scheduled, retrying)] {
        let page = dashboard.get(&format!("/jobs?status={status}")).await.body;
        assert!(page.contains(&format!("id=\"job-{is}\"")), "{status}: {page}");
        for other in [is_not, done] {
            assert!(!page.contains(&format!("id=\"job-{other}\"")), "{status}: {page}");
        }
    }
    let row = between(&page, &format!("id=\"job-{retrying}\""), "</tr>");
    for part in
        ["next attempt <time", ">in 59\u{a0}min<", ">KeyError: 'customer'<", "2<span class=\"soft\">/5<"]
    {
        assert!(row.contains(part), "{part}: {row}");
    }
    let job = dashboard.get(&format!("/jobs/{retrying}")).await.body;
    for part in ["Waits for attempt 3 of 5, due", "Last error: <bdi>KeyError: 'customer'"] {
        assert!(job.contains(part), "{part}: {job}");
    }
    // The finished job cannot be ticked, and a queued one that is due cannot be retried now.
    assert!(!between(&page, &format!("id=\"job-{done}\""), "</tr>").contains("checkbox"));
    bench.tenure.pause_queue("paused").await.unwrap();
    bench.tenure.enqueue(JobRequest::new("paused", "k", json!(1))).await.unwrap();
    let browser = Browser::at(dashboard.address).await;
    browser.open("/jobs").await;
    browser.click("input[data-all]").await;
    browser.until_text("button[formaction='/jobs/cancel']", "Cancel 3").await;
    browser.until_text("button[formaction='/jobs/retry']", "Retry now 2").await;
    working.stop().await;
}

/// At 1280 px no column is cut off, however long the names; on a phone a value stands beside its label.
#[tokio::test(flavor = "multi_thread")]
async fn long_names_clip_no_table_and_an_id_can_be_copied_whole() {
    let bench = calm().await;
    let (host, kind, queue) =
        ("batch-worker-7c9d8f6b5-".repeat(3), "analyze.repository.".repeat(3), "q".repeat(64));
    bench
        .execute(&format!(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, dispatch, published_at,
                    status, attempt, fencing_token, claim_id, worker_id, worker_host, stale_after, last_activity_at,
                    started_at, stage, progress, message)
             SELECT gen_random_uuid(), '{queue}', '{kind}x', '{{}}', 1000, now(), 1, now(), 'processing', 1000, 1000,
                    gen_random_uuid(), '{host}-' || n || '-a1b2c3', '{host}', interval '5 min', now(), now(),
                    'a stage of some length', 40, 'a message that says much about how it goes'
               FROM generate_series(1, 5) n"
        ))
        .await;
    let job: String = bench.value("SELECT id::text FROM tenure.jobs LIMIT 1").await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/jobs").await;
    let wide = "Math.max(...[...document.querySelectorAll('.scroll')].map((box) => box.scrollWidth - box.clientWidth))";
    assert_eq!(browser.value(wide).await, json!(0), "the table is cut off");
    // The end of a worker's ID stays visible.
    let cell = "document.querySelector('#list td .owner').getBoundingClientRect()";
    let text = "(() => { const all = document.createRange(); \
                all.selectNode(document.querySelector('#list td .owner').lastChild); \
                return all.getBoundingClientRect(); })()";
    assert_eq!(browser.value(&format!("{text}.right <= {cell}.right + 1")).await, json!(true));
    let select = format!(
        "(() => {{ getSelection().selectAllChildren(document.querySelector('#job-{job} .id.short')); \
         return getSelection().toString(); }})()"
    );
    assert_eq!(browser.value(&select).await, json!(job));
    let phone = Browser::sized(dashboard.address, Look::new(375, 812)).await;
    phone.open("/jobs").await;
    let high = "[...document.querySelectorAll('.cards td[data-label]:not(.full)')]\
                .filter((cell) => cell.offsetHeight > 30).map((cell) => cell.innerText)";
    assert_eq!(phone.value(high).await, json!([]), "a value wraps under its label");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_job_has_dates_a_link_to_its_trace_and_an_error_without_loose_ends() {
    let bench = calm().await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let context = format!("00-{trace}-b7ad6b7169203331-01");
    let job = JobRequest::new("x", "k", json!(1)).max_attempts(1).trace_context(context);
    let job = bench.tenure.enqueue(job).await.unwrap().id;
    let mut command = Child::spawn(bench.program(&["work", "x", "--exec", "exit 3"]), "worker");
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    command.kill().await;
    let addresses = [("TENURE_SERVE_TRACE_URL", "https://traces.example.com/?id={trace_id}&from=tenure")];
    let dashboard = Dashboard::start(&bench, &[], &addresses).await;
    let page = dashboard.get(&format!("/jobs/{job}")).await.body;
    let link = format!("href=\"https://traces.example.com/?id={trace}&amp;from=tenure\"");
    assert!(page.contains(&link) && page.contains("exit 3</bdi>, token 1"), "{page}");
    assert!(!page.contains("exit 3:"), "{page}");
    let created = bench.tenure.job(job).await.unwrap().unwrap().created_at;
    let facts = between(&page, "id=\"job-facts\"", "</section>");
    assert!(
        facts.contains(&format!("<span class=\"date\">{}", created.format("%Y-%m-%d %H:%M:%S"))),
        "{facts}"
    );
    // Without the setting there is no link; with a wrong one the program does not start.
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    assert!(!dashboard.get(&format!("/jobs/{job}")).await.body.contains("Show the trace"));
    let mut wrong = bench.program(&["serve"]);
    let wrong = wrong.env("TENURE_SERVE_TRACE_URL", "javascript:x").output().await.unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && said.contains("{trace_id}"), "{said}");
}

/// Wherever a page names a worker, its name leads to the worker's own page.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_a_page_with_its_jobs_and_recoveries_and_every_name_leads_there() {
    let bench = calm().await;
    let working = worker(&bench);
    let running = enqueue(&bench, json!({ "do": "wait", "with": "half way" })).await;
    until_processing(&bench, running).await;
    let id: String = bench.value("SELECT worker_id FROM tenure.workers").await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, silence, reason,
                    recovered_by)
             VALUES ('reset', 'scanner', '{running}', 0, 'gone-1-aa', '41 s', 'silent', '{id}'),
                    ('reset', 'vanished', gen_random_uuid(), 1, 'gone-1-aa', '12 s', 'gone', '{id}')"
        ))
        .await;
    let dashboard = Dashboard::start(&bench, &[], &[]).await;
    let page = dashboard.get(&format!("/workers/{id}")).await.body;
    for part in [
        &format!("<title>{id} · tenure</title>"),
        "half way",
        "1 of 4",
        "every kind",
        "ago <span class=\"date\">",
        "Last heartbeat",
        "gone-1-aa",
        &format!("href=\"/jobs/{running}\""),
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let link = format!("href=\"/workers/{id}\"");
    for path in ["/jobs", "/workers", "/recovery", "/", &format!("/jobs/{running}")] {
        let page = dashboard.get(path).await.body;
        // The overview and the page of recoveries name the owner after the reset.
        assert!(page.contains(&link), "{path}: {page}");
    }
    let gone = dashboard.get("/workers/gone-1-aa").await;
    assert!(gone.status == 200 && gone.body.contains("No running worker has this ID"), "{}", gone.body);
    assert!(gone.body.contains("41.00"), "its recoveries: {}", gone.body);

    // The recoveries name kind and job, and say what each path is.
    let page = dashboard.get("/recovery").await.body;
    let events = between(&page, "id=\"events\"", "</section>");
    assert!(events.contains(">k</a>") && events.contains(">removed job</a>"), "{events}");
    for path in ["reconcile", "scanner", "vanished", "redelivery", "relay", "released", "refused writes"] {
        assert!(page.contains(&format!("<dt>{path}</dt><dd>")), "{path}: {page}");
    }
    bench.tenure.cancel(running).await.unwrap();
    bench.until_finished(running).await;
    assert!(
        !dashboard.get(&format!("/workers/{id}")).await.body.contains("Drain"),
        "a button for those who look"
    );
    let acting = Dashboard::start(&bench, &["--actions"], &[]).await;
    let browser = Browser::at(acting.address).await;
    browser.open(&format!("/workers/{id}")).await;
    let drains = "drains: it takes no new jobs. It runs no job, and exits at once.";
    browser.confirm("form[action$='/drain'] button", drains).await;
    working.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_enqueued_and_cloned_from_a_page_and_a_wrong_form_keeps_its_fields() {
    let bench = calm().await;
    let original = waiting(&bench, "waits", 0).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    for (fields, wrong) in [
        ("kind=mine&payload=%7B%22a%22%3A&max_attempts=5", "The payload is not JSON"),
        ("kind=mine&payload=1&max_attempts=many", "Invalid number of attempts"),
        ("kind=mine&payload=1&max_attempts=0", "Invalid number of attempts \"0\""),
        ("kind=mine&payload=1&run_at=tomorrow", "Invalid time \"tomorrow\""),
        ("kind=no+kind&payload=1", "use 1 to 64"),
    ] {
        let answer = dashboard.post("/enqueue", &format!("queue=typed&{fields}")).await;
        let page = answer.body.replace("&quot;", "\"");
        assert!(answer.status == 400 && page.contains(wrong), "{fields}: {} {page}", answer.status);
        let kind = if fields.starts_with("kind=mine") { "mine" } else { "no kind" };
        for kept in ["value=\"typed\"", &format!("value=\"{kind}\""), "name=\"csrf\" value=\"abc\""] {
            assert!(page.contains(kept), "{fields} lost {kept}: {page}");
        }
    }
    assert!(
        dashboard
            .post("/enqueue", "queue=q&kind=k&payload=%7B%22a%22%3A")
            .await
            .body
            .contains(">\n{&quot;a&quot;:</textarea>")
    );
    assert_eq!(bench.count("tenure.jobs").await, 1);

    let fields =
        "queue=q&kind=k&payload=%7B%22secret%22%3A+17%7D&run_at=2h&max_attempts=3&unique_key=order-17";
    let done = dashboard.post("/enqueue", fields).await;
    let job: JobId = done.header("location").unwrap().strip_prefix("/jobs/").unwrap().parse().unwrap();
    assert_eq!(dashboard.said(&done).await, "The job is enqueued.");
    let row = bench.tenure.job(job).await.unwrap().unwrap();
    assert_eq!((row.kind.as_str(), row.max_attempts, row.status), ("k", 3, Status::Queued));
    assert_eq!(row.payload, Some(json!({ "secret": 17 })));
    assert!((row.scheduled_at - row.created_at - chrono::TimeDelta::hours(2)).num_seconds().abs() < 5);
    // A payload of the full length, of which the form has three times as many bytes.
    let long = |bytes: usize| format!("queue=q&kind=long&payload=%22{}%22", "%C3%A9".repeat((bytes - 2) / 2));
    assert_eq!(dashboard.post("/enqueue", &long(256 * 1024)).await.status, 303);
    for (bytes, why) in [(256 * 1024 + 2, "262146 bytes"), (512 * 1024, "at most 262144 bytes")] {
        let refused = dashboard.post("/enqueue", &long(bytes)).await;
        assert!(refused.status == 400 && refused.body.contains(why), "{bytes}: {}", refused.body);
    }
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'long' AND length(payload::text) = 131073").await, 1);
    let again = dashboard.post("/enqueue", fields).await;
    assert_eq!(again.header("location").unwrap(), format!("/jobs/{job}"));
    assert!(dashboard.said(&again).await.contains("nothing was enqueued"));
    assert!(!dashboard.serve.log().contains("secret"), "{}", dashboard.serve.log());

    // A clone has all digits of the payload; a person changes it in the browser.
    let browser = Browser::at(dashboard.address).await;
    browser.open(&format!("/jobs/{original}")).await;
    browser.click("#job-head a.button").await;
    browser.until("document.querySelector('#payload')?.value.includes('3.14159265358979323846')").await;
    assert_eq!(browser.value("document.querySelector('#kind').value").await, json!("waits"));
    browser.value("(document.querySelector('#queue').value = 'other', 1)").await;
    browser.click(".form button.primary").await;
    browser.until_text(".flash", "The job is enqueued").await;
    assert_eq!(
        bench.count("tenure.jobs WHERE queue = 'other' AND payload->>'n' = '3.14159265358979323846'").await,
        1
    );

    // Neither a dashboard that only reads nor one that hides payloads lets them out.
    let reading = Dashboard::start(&bench, &[], &[]).await;
    assert_eq!(reading.get("/enqueue").await.status, 403);
    assert_eq!(reading.post("/enqueue", fields).await.status, 403);
    assert!(!reading.get(&format!("/jobs/{original}")).await.body.contains("/enqueue"));
    let hiding = Dashboard::start(&bench, &["--actions", "--hide-payloads"], &[]).await;
    let page = hiding.get(&format!("/enqueue?from={original}")).await.body;
    assert!(!page.contains("3.14159") && page.contains("value=\"waits\""), "{page}");
    assert_eq!(hiding.get("/enqueue?from=x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_added_previewed_changed_and_run_from_its_pages() {
    let bench = calm().await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    assert!(dashboard.get("/schedules").await.body.contains("href=\"/schedule\""));
    let form = |cron: &str, more: &str| {
        let (cron, payload) = (form_urlencoded(cron), form_urlencoded("{\"format\": \"pdf\"}"));
        format!(
            "name=daily&cron={cron}&time_zone=Europe%2FBerlin&queue=q&kind=report&payload={payload}&max_attempts=3\
             &missed=skip&tick_field=at&{more}"
        )
    };
    // The next three ticks, and nothing is changed.
    let preview = dashboard.post("/schedule", &form("30 3 1 1 *", "is_new=1&preview=1")).await;
    let ticks = between(&preview.body, "id=\"ticks\"", "</ol>");
    assert_eq!(
        (preview.status, ticks.matches("-01-01 02:30:00.000 UTC</span>").count()),
        (200, 3),
        "{ticks}"
    );
    assert_eq!(bench.count("tenure.schedules").await, 0);
    let wrong = dashboard.post("/schedule", &form("at noon", "is_new=1")).await;
    assert!(wrong.status == 400 && wrong.body.contains("is not a cron expression"), "{}", wrong.body);
    assert!(
        wrong.body.contains("value=\"at noon\"") && wrong.body.contains("value=\"daily\""),
        "{}",
        wrong.body
    );

    let added = dashboard.post("/schedule", &form("30 3 1 1 *", "is_new=1")).await;
    assert_eq!(added.header("location"), Some("/schedules/daily"), "{}", added.body);
    assert!(dashboard.said(&added).await.contains("daily is added; its next tick is at "));
    // A second click is no second schedule; another one of this name is refused.
    let again = dashboard.post("/schedule", &form("30 3 1 1 *", "is_new=1")).await;
    assert!(dashboard.said(&again).await.contains("daily is added"), "{}", again.body);
    let again = dashboard.post("/schedule", &form("30 4 1 1 *", "is_new=1")).await;
    assert!(again.status == 400 && again.body.contains("already exists"), "{}", again.body);
    let edit = dashboard.get("/schedule?name=daily").await.body;
    for part in ["value=\"30 3 1 1 *\"", "value=\"skip\" selected", "Europe/Berlin", "format&quot;:&quot;pdf"]
    {
        assert!(edit.contains(part), "{part}: {edit}");
    }
    let changed = dashboard.post("/schedule", &form("0 4 1 1 *", "")).await;
    assert!(dashboard.said(&changed).await.contains("daily is changed"));

    // Run now: one job at once, and the next tick stays.
    let next = bench.tenure.schedules().await.unwrap()[0].next_at;
    let browser = Browser::at(dashboard.address).await;
    browser.open("/schedules/daily").await;
    browser.until_text("#jobs", "No job yet").await;
    browser.confirm("form[action='/schedules/daily/run'] button", "the next tick stays").await;
    browser.until("document.querySelectorAll('#jobs tbody tr').length === 1").await;
    let job: (String, i32, serde_json::Value) =
        sqlx::query_as("SELECT kind, max_attempts, payload FROM tenure.jobs")
            .fetch_one(&bench.pool)
            .await
            .unwrap();
    assert_eq!((job.0.as_str(), job.1, &job.2["format"]), ("report", 3, &json!("pdf")));
    assert!(job.2["at"].as_str().unwrap().ends_with('Z'), "{}", job.2);
    let after = &bench.tenure.schedules().await.unwrap()[0];
    assert_eq!((after.next_at, after.last_tick_at), (next, None));
    let page = dashboard.get("/schedules/daily").await.body;
    let facts = between(&page, "id=\"facts\"", "</section>");
    assert_eq!(facts.matches("-01-01 03:00:00.000 UTC</span>").count(), 3, "{facts}");
    // Of another payload: not this schedule's.
    enqueue(&bench, json!(1)).await;
    bench
        .tenure
        .put_schedule(Schedule::new("plain", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
        .await
        .unwrap();
    let plain = dashboard.get("/schedules/plain").await.body;
    assert_eq!(plain.matches("<tr id=\"job-").count(), 1, "{plain}");
    assert_eq!(dashboard.get("/schedules/none").await.status, 404);
    // A hidden payload stays as it is.
    let hiding = Dashboard::start(&bench, &["--actions", "--hide-payloads"], &[]).await;
    assert!(!hiding.get("/schedule?name=daily").await.body.contains("pdf"));
    let form =
        "name=daily&cron=0+5+*+*+*&time_zone=UTC&queue=q&kind=report&payload=&max_attempts=3&missed=once";
    let changed = hiding.post("/schedule", form).await;
    assert!(hiding.said(&changed).await.contains("daily is changed"));
    assert_eq!(bench.count("tenure.schedules WHERE payload = '{\"format\": \"pdf\"}'").await, 1);
}
