//! Users who may look at some queues alone: every address is tried, and none tells them of another queue.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, redrives::CalmRedrive, rows::DeadFilter, schedules::Schedule};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use uuid::Uuid;

use super::{
    Dashboard,
    access::{basic, lines},
    calm,
};
use crate::{
    cells::write,
    harness::{Answer, Bench},
};

const DASHBOARD: &str = include_str!("../../../tenure-cli/src/dashboard/mod.rs");
const ACTIONS: &str = include_str!("../../../tenure-cli/src/dashboard/actions.rs");
const API: &str = include_str!("../../../tenure-cli/src/api/mod.rs");
/// When the page of a form was shown: in the year 2255, so that every dead letter had died.
const SHOWN: &str = "shown=9000000000000000";

/// What a queue has: the words of `billing` are in no answer to a user of `mail`.
struct Of {
    queue: &'static str,
    word: &'static str,
    job: JobId,
    dead: JobId,
    refused: JobId,
    redrive: Uuid,
}

impl Of {
    async fn new(bench: &Bench, queue: &'static str, word: &'static str) -> Self {
        let tenure = &bench.tenure;
        let request = || JobRequest::new(queue, format!("{word}-kind"), json!(format!("{word}-payload")));
        let job = tenure.enqueue(request().tag(format!("{word}-tag"))).await.unwrap().id;
        tenure.put_schedule(Schedule::new(format!("{word}-schedule"), "0 3 * * *", request())).await.unwrap();
        let dead = buried(bench, queue, word, &format!("'\"{word}-payload\"', NULL")).await;
        let refused = buried(bench, queue, word, &format!("NULL, '{word}-payload'")).await;
        let filter = DeadFilter::new().queue(queue).kind(format!("{word}-kind"));
        let redrive = tenure.redrive_calmly(&filter, CalmRedrive::new()).await.unwrap().unwrap().id;
        bench
            .execute(&format!(
                "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, reason,
                        recovered_by)
                 VALUES ('reset', 'scanner', '{job}', 0, 'w-1', '{word}-reason', 'w-1')"
            ))
            .await;
        Self { queue, word, job, dead, refused, redrive }
    }

    /// Its words and IDs.
    fn marks(&self) -> Vec<String> {
        let words = ["kind", "payload", "tag", "schedule", "error", "reason"];
        let ids =
            [self.job.to_string(), self.dead.to_string(), self.refused.to_string(), self.redrive.to_string()];
        words.into_iter().map(|of| format!("{}-{of}", self.word)).chain(ids).collect()
    }

    /// An address of this form, such as `["jobs", id]`, with what the queue has.
    fn address(&self, form: &[String]) -> String {
        let mut address = String::new();
        for (at, part) in form.iter().enumerate() {
            let part = match (part.strip_prefix('"'), at.checked_sub(1).map(|before| form[before].as_str())) {
                (Some(literal), _) => literal.trim_end_matches('"').to_owned(),
                (None, Some("\"jobs\"")) => self.job.to_string(),
                (None, Some("\"queues\"")) => self.queue.to_owned(),
                (None, Some("\"workers\"")) => "w-1".to_owned(),
                (None, Some("\"kinds\"")) => format!("{}-kind", self.word),
                (None, Some("\"schedules\"")) => format!("{}-schedule", self.word),
                (None, Some("\"redrives\"")) => self.redrive.to_string(),
                other => panic!("the test has no example for {other:?} of {form:?}"),
            };
            address += &format!("/{part}");
        }
        if address.is_empty() { "/".into() } else { address }
    }
}

/// Adds a dead letter; `payloads` are its payload and its bytes.
async fn buried(bench: &Bench, queue: &str, word: &str, payloads: &str) -> JobId {
    let insert = format!(
        "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, raw_payload, attempt, max_attempts,
                fencing_token, created_at, scheduled_at, died_at, last_error, category, execution_history)
         VALUES (gen_random_uuid(), '{queue}', '{word}-kind', {payloads}, 0, 1, 0, now(), now(), now(), '{word}-error',
                 'permanent', '[]')
         RETURNING id"
    );
    JobId(bench.value::<Uuid>(&insert).await)
}

/// Two queues, and a worker of both.
async fn two_queues() -> (Bench, Of, Of) {
    let bench = calm().await;
    bench
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, kinds, slots, version)
             VALUES ('w-1', 'h', 1, '{mail,billing}', '{apple-kind,zebra-kind}', 1, '0')",
        )
        .await;
    let (mail, billing) = (Of::new(&bench, "mail", "apple").await, Of::new(&bench, "billing", "zebra").await);
    (bench, mail, billing)
}

/// The forms of addresses that a function matches, such as `["jobs", id]`.
fn forms(source: &str, function: &str) -> Vec<Vec<String>> {
    let (_, body) = source.split_once(&format!("async fn {function}(")).unwrap();
    let body = body.split("\n}\n").next().unwrap();
    let arms = body.lines().map(str::trim).filter(|line| line.starts_with('[') && line.contains("] "));
    arms.map(|arm| {
        let inside = arm[1..].split(']').next().unwrap();
        inside.split(", ").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    })
    .collect()
}

/// The paths of the API with this method.
fn routes(method: &str) -> Vec<String> {
    let starts = format!("(Method::{method}, \"/v1");
    let paths = API.lines().filter_map(|line| line.trim().strip_prefix(&starts)?.split('"').next());
    paths.map(|path| format!("/api/v1{path}")).collect()
}

/// Every address that shows something, for the examples of both queues, plain and with questions about `billing`.
fn looks(mail: &Of, billing: &Of) -> Vec<String> {
    let pages = forms(DASHBOARD, "page_of");
    assert!(pages.len() > 15 && pages.contains(&vec!["\"jobs\"".into(), "id".into()]), "{pages:?}");
    let counts = ["jobs", "dead"].map(|of| vec![format!("\"{of}\""), "\"count\"".into()]);
    let job = billing.job;
    let queries = [
        String::new(),
        "?queue=billing".into(),
        "?queue=+billing".into(),
        "?queue=mail".into(),
        "?queue=mail&queue=billing".into(),
        format!("?queue=mail&q={job}"),
        "?queue=mail&q=zebr".into(),
        format!("?queue=billing&q={job}"),
        format!("?from={job}"),
        "?queue=mail&error=zebr".into(),
        "?range=7d".into(),
        format!("?action=cancel&status=queued&{SHOWN}"),
        format!("?action=cancel&queue=billing&{SHOWN}"),
        format!("?action=cancel&queue=mail&{SHOWN}"),
    ];
    let mut all = BTreeSet::new();
    for of in [mail, billing] {
        for form in pages.iter().chain(&counts) {
            all.extend(queries.iter().map(|query| of.address(form) + query));
        }
        for id in [of.dead, of.refused] {
            all.extend([format!("/jobs/{id}"), format!("/enqueue?from={id}")]);
        }
        for route in routes("GET").iter().filter(|route| !route.ends_with("/watch")) {
            let path = route.replace("{id}", &of.job.to_string());
            let queries: &[_] = if path.ends_with("/wait") {
                &["?timeout=1ms"]
            } else {
                &["", "?queue=billing", "?queue=mail", "?error=zebr", "?limit=1"]
            };
            all.extend(queries.iter().map(|query| format!("{path}{query}")));
        }
    }
    all.insert("/metrics".into());
    all.into_iter().collect()
}

/// Every act, with what `billing` has.
fn acts(billing: &Of) -> Vec<(String, String)> {
    let forms = forms(ACTIONS, "act");
    assert!(forms.len() > 15, "{forms:?}");
    let own = format!("csrf=abc&back=%2Fqueues&{SHOWN}&event=e&canary=1&max_running=1&once=a");
    let of_queue = "queue=billing&all=1&selection=x&kind=k&payload=1&max_attempts=5";
    let of_name =
        "name=zebra-schedule&cron=0+4+*+*+*&time_zone=UTC&missed=once&overlap=allow&payload=1&kind=k";
    let mut all = Vec::new();
    for form in &forms {
        let path = billing.address(form);
        for fields in [
            format!("{own}&{of_queue}"),
            format!("{own}&{of_name}&id={}&id={}", billing.dead, billing.job),
            format!("{own}&{of_name}&all=1&group=x"),
        ] {
            all.push((path.clone(), fields));
        }
    }
    // A schedule of another queue cannot be taken.
    all.push(("/schedule".into(), format!("{own}&{of_name}&queue=mail")));
    for path in ["/enqueue", "/schedule"] {
        all.push((format!("{path}?from={}", billing.job), format!("{own}&preview=1")));
    }
    all
}

/// All that an answer says.
fn text(answer: &Answer) -> String {
    let head: Vec<_> = answer.headers().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{}\n\n{}", head.join("\n"), answer.body)
}

/// The marks that an answer has, besides those that its request had.
fn leaked<'m>(marks: &'m [String], asked: &str, said: &str) -> Vec<&'m str> {
    marks.iter().map(String::as_str).filter(|mark| said.contains(mark) && !asked.contains(mark)).collect()
}

async fn get(dashboard: &Dashboard, user: &str, path: &str) -> Answer {
    dashboard.ask("GET", path, &[("X-Forwarded-User", user)], "").await
}

async fn post(dashboard: &Dashboard, user: &str, path: &str, fields: &str) -> Answer {
    let headers =
        [("Cookie", "tenure_csrf=abc"), ("Sec-Fetch-Site", "same-origin"), ("X-Forwarded-User", user)];
    dashboard.ask("POST", path, &headers, fields).await
}

/// Gets each of these addresses as this user.
async fn all(dashboard: &Dashboard, user: &str, paths: &[String]) -> Vec<(String, Answer)> {
    let asked = paths.iter().map(|path| async move { (path.clone(), get(dashboard, user, path).await) });
    futures::stream::iter(asked).buffered(8).collect().await
}

/// The first answer of a page that is followed.
async fn followed(dashboard: &Dashboard, user: &str, path: &str) -> String {
    let address = dashboard.address;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mark = if path.contains('?') { '&' } else { '?' };
    let head =
        format!("GET {path}{mark}live=x HTTP/1.1\r\nHost: {address}\r\nX-Forwarded-User: {user}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut said, mut bytes) = (String::new(), [0; 16 * 1024]);
    let read = async {
        while !said.contains("event: fresh") && !said.contains("event: gone") {
            match stream.read(&mut bytes).await.unwrap() {
                0 => break,
                n => said += &String::from_utf8_lossy(&bytes[..n]),
            }
        }
    };
    timeout(Duration::from_secs(20), read).await.unwrap();
    said
}

async fn start(bench: &Bench, viewers: &str, more: &[(&str, &str)]) -> Dashboard {
    let own =
        [("TENURE_SERVE_AUTH", "proxy"), ("TENURE_SERVE_API", "true"), ("TENURE_SERVE_VIEWERS", viewers)];
    Dashboard::start(bench, &["--actions"], &[&own, more].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_to_a_user_of_one_queue_has_anything_of_another() {
    let (bench, mail, billing) = two_queues().await;
    let dashboard = start(&bench, "ada, grace=mail", &[]).await;
    let (paths, marks) = (looks(&mail, &billing), billing.marks());

    // A user of all queues finds each mark somewhere: the test would see it.
    let seen: String = all(&dashboard, "ada", &paths).await.iter().map(|(_, of)| text(of)).collect();
    let unseen: Vec<_> = marks.iter().filter(|mark| !seen.contains(mark.as_str())).collect();
    assert!(unseen.is_empty(), "no page shows {unseen:?}");

    let answers = all(&dashboard, "grace", &paths).await;
    for (path, answer) in &answers {
        let leaked = leaked(&marks, path, &text(answer));
        assert!(leaked.is_empty(), "{path}: {} has {leaked:?}:\n{}", answer.status, answer.body);
        assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.body);
    }
    let seen: String = answers.iter().map(|(_, of)| text(of)).collect();
    let unseen: Vec<_> = mail.marks().into_iter().filter(|mark| !seen.contains(mark.as_str())).collect();
    assert!(unseen.is_empty(), "grace does not see {unseen:?} of her own");

    // A page that is followed is read again and again.
    for (path, answer) in answers.iter().filter(|(path, _)| !path.starts_with("/api")) {
        if answer.status != 200 || path.contains("count") {
            let mark = if path.contains('?') { '&' } else { '?' };
            let live = get(&dashboard, "grace", &format!("{path}{mark}live=x")).await;
            let leaked = leaked(&marks, path, &text(&live));
            assert!(leaked.is_empty() && !live.body.contains("event: region"), "{path}: {}", live.body);
        }
    }
    let of_job = format!("/jobs/{}", mail.job);
    for path in ["/queues", "/queues/mail", "/jobs?queue=mail", "/dead?queue=mail", of_job.as_str()] {
        let said = Box::pin(followed(&dashboard, "grace", path)).await;
        assert!(said.contains("event: region"), "{path}: {said}");
        assert_eq!(leaked(&marks, path, &said), [""; 0], "{path}");
    }
    for end in ["", "/logs", "/wait", "/watch"] {
        let path = format!("/api/v1/jobs/{}{end}", billing.job);
        assert_eq!(get(&dashboard, "grace", &path).await.status, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_one_queue_acts_on_no_other_and_is_told_nothing_of_it() {
    let (bench, mail, billing) = two_queues().await;
    let dashboard = start(&bench, "ada, grace=mail", &[]).await;
    let marks = billing.marks();
    let before = bench.count("tenure.audit").await;
    for (path, fields) in acts(&billing) {
        let refused = post(&dashboard, "grace", &path, &fields).await;
        assert!([403, 404].contains(&refused.status), "{path} {fields}: {} {}", refused.status, refused.body);
        assert_eq!(leaked(&marks, &format!("{path} {fields}"), &text(&refused)), [""; 0], "{path} {fields}");
    }
    let json = ("Content-Type", "application/json");
    let api = async |path: &str, body: &str| {
        dashboard.ask("POST", path, &[("X-Forwarded-User", "grace"), json], body).await
    };
    for route in routes("POST") {
        let path = route.replace("{id}", &billing.job.to_string());
        let (body, status) = if route.contains("{id}") {
            ("{}", 404)
        } else {
            (r#"{"queue": "billing", "kind": "k", "payload": 1}"#, 403)
        };
        let refused = api(&path, body).await;
        assert_eq!(refused.status, status, "{path}: {}", refused.body);
        assert_eq!(leaked(&marks, &path, &text(&refused)), [""; 0], "{path}");
    }
    assert_eq!(bench.count("tenure.audit").await, before, "nothing was done");
    // What does not exist is refused in the same words.
    for end in ["cancel", "retry", "again", "signal"] {
        let of = async |job: String| {
            post(&dashboard, "grace", &format!("/jobs/{job}/{end}"), "csrf=abc&event=e&payload=1").await
        };
        let (other, none) = (of(billing.job.to_string()).await, of(Uuid::now_v7().to_string()).await);
        assert_eq!((other.status, other.body), (none.status, none.body), "{end}");
    }
    // Her own queue is hers.
    let pause = post(&dashboard, "grace", "/queues/mail/pause", "csrf=abc").await;
    assert_eq!(pause.status, 303, "{}", pause.body);
    let cancel = post(&dashboard, "grace", "/jobs/cancel", &format!("csrf=abc&id={}", mail.job)).await;
    assert_eq!(cancel.status, 303, "{}", cancel.body);
    assert_eq!(bench.count("tenure.audit").await, before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_one_queue_opens_its_pages_alone_and_every_other_is_refused() {
    let (bench, mail, billing) = two_queues().await;
    let graph = bench.tenure.graph();
    let other = graph.add(JobRequest::new("billing", "zebra-kind", json!(1)));
    let follower = graph.add(JobRequest::new("mail", "apple-kind", json!(2))).after([&other]);
    graph.await.unwrap();
    let graph = bench.tenure.graph();
    let first = graph.add(JobRequest::new("mail", "apple-kind", json!(1)));
    let last = graph.add(JobRequest::new("mail", "apple-kind", json!(2))).after([&first]);
    graph.await.unwrap();
    let dashboard = start(&bench, "ada, grace=mail", &[]).await;
    let open = |path: &str| match path {
        "/" => (303, "/jobs".to_owned()),
        "/jobs" | "/dead" => (303, format!("{path}?queue=mail")),
        "/queues" | "/queues/mail" | "/queues/mail/lanes" | "/enqueue" => (200, String::new()),
        _ if path == format!("/jobs/{}", mail.job) => (200, String::new()),
        // The job is in no group.
        _ if path == format!("/jobs/{}/graph", mail.job) => (404, String::new()),
        _ => (403, String::new()),
    };
    for form in forms(DASHBOARD, "page_of") {
        let path = mail.address(&form);
        let answer = get(&dashboard, "grace", &path).await;
        let location = answer.header("location").unwrap_or_default().to_owned();
        assert_eq!((answer.status, location), open(&path), "{path}: {}", answer.body);
        if answer.status == 403 {
            for part in ["You may not look here", "You may look at mail alone", "ask those who run this"] {
                assert!(answer.body.contains(part), "{path} does not say {part}: {}", answer.body);
            }
        }
        assert!(get(&dashboard, "ada", &path).await.status != 403, "{path}: ada may look at all");
    }
    for (path, status) in [
        ("/queues/billing".to_owned(), 403),
        ("/queues/billing/lanes".into(), 403),
        ("/jobs?queue=billing".into(), 403),
        ("/jobs/count?action=cancel&queue=billing".into(), 403),
        ("/jobs/count?action=cancel&status=queued".into(), 403),
        ("/jobs/count?action=cancel&queue=mail".into(), 200),
        (format!("/dead/count?{SHOWN}"), 403),
        (format!("/dead/count?queue=mail&{SHOWN}"), 200),
        ("/metrics".into(), 403),
        ("/nowhere".into(), 403),
        ("/assets/style.css".into(), 200),
        (format!("/jobs/{}", mail.refused), 200),
        (format!("/jobs/{}", follower.id()), 200),
        (format!("/jobs/{}/graph", follower.id()), 403),
        (format!("/jobs/{}/graph", other.id()), 404),
        (format!("/jobs/{}/graph", last.id()), 200),
    ] {
        let answer = get(&dashboard, "grace", &path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    let of_group = get(&dashboard, "grace", &format!("/jobs/{}/graph", last.id())).await.body;
    assert!(of_group.contains(&first.id().to_string()), "{of_group}");
    // A job of another queue is no job: the answers are the same, letter by letter.
    for (path, other) in
        [("/jobs/ID", billing.job), ("/jobs/ID/graph", other.id()), ("/jobs/ID", billing.refused)]
    {
        let of = |id: String| path.replace("ID", &id);
        let other = get(&dashboard, "grace", &of(other.to_string())).await;
        let none = get(&dashboard, "grace", &of(Uuid::now_v7().to_string())).await;
        assert_eq!((other.status, other.body), (none.status, none.body), "{path}");
    }
    let found = get(&dashboard, "grace", &format!("/jobs?queue=mail&q={}", billing.job)).await.body;
    assert!(found.contains("No jobs match"), "{found}");
    let log = lines(&dashboard, "a look was refused");
    assert!(log.iter().all(|line| line["who"] == "grace" && line["level"] == "WARN"), "{log:?}");
    assert!(log.iter().any(|line| line["path"] == "kinds"), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_navigation_and_the_filters_of_a_user_of_some_queues_are_those_of_their_queues() {
    let (bench, mail, billing) = two_queues().await;
    let dashboard = start(&bench, "ada, grace=mail+billing, ken=mail", &[]).await;
    let list = get(&dashboard, "ken", "/jobs?queue=mail").await.body;
    let keys = |page: &str| {
        let keys = page.split("data-key=\"").skip(1);
        keys.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect::<String>()
    };
    assert_eq!(keys(&list), "jqd", "{list}");
    assert!(!list.contains("<dd>Kinds</dd>") && list.contains("<dd>Queues</dd>"), "{list}");
    assert!(list.contains("<option value=\"mail\" selected>") && !list.contains("every queue"), "{list}");
    // Names of workers and schedules lead nowhere, and the worker's other kinds are not named.
    let queue = get(&dashboard, "ken", "/queues/mail").await.body;
    assert!(queue.contains("apple-schedule") && !queue.contains("/schedules"), "{queue}");
    assert!(
        !queue.contains("/workers") && !queue.contains("id=\"workers\"") && !queue.contains("/kinds\""),
        "{queue}"
    );
    let of_job = get(&dashboard, "ken", &format!("/jobs/{}", mail.job)).await.body;
    assert!(of_job.contains("w-1") && !of_job.contains("/workers/"), "{of_job}");
    assert!(of_job.contains("/jobs?queue=mail&amp;kind=apple-kind"), "{of_job}");
    let queues = get(&dashboard, "ken", "/queues").await.body;
    assert!(queues.contains(">mail<") && !queues.contains(">billing<"), "{queues}");
    let redrives = get(&dashboard, "ken", "/dead?queue=mail").await.body;
    assert!(redrives.contains("kind apple-kind, queue mail"), "{redrives}");

    // Grace has two: the first one comes first, and the others are in the list.
    let first = get(&dashboard, "grace", "/jobs?status=queued").await;
    assert_eq!(first.header("location"), Some("/jobs?status=queued&queue=billing"));
    let list = get(&dashboard, "grace", "/jobs?queue=billing").await.body;
    assert!(
        list.contains("<option value=\"mail\">mail") && list.contains(&billing.job.to_string()),
        "{list}"
    );
    assert_eq!(get(&dashboard, "grace", &format!("/jobs/{}", billing.job)).await.status, 200);

    // The API's list has the jobs of both, the newest first, page by page; ken's has those of one.
    let ids = async |user: &str, query: &str| {
        let answer = get(&dashboard, user, &format!("/api/v1/jobs{query}")).await;
        let jobs: Vec<Value> = serde_json::from_str(&answer.body).unwrap();
        let ids: Vec<_> = jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
        (ids, answer.header("link").map(str::to_owned))
    };
    let (all, _) = ids("ada", "?status=queued").await;
    assert_eq!(all, [billing.job.to_string(), mail.job.to_string()]);
    assert_eq!(ids("grace", "?status=queued").await.0, all);
    assert_eq!(ids("ken", "?status=queued").await.0, all[1..]);
    let (page, next) = ids("grace", "?status=queued&limit=1").await;
    let next = next.unwrap();
    let query = next.split(['?', '>']).nth(1).unwrap();
    assert_eq!([page, ids("grace", &format!("?{query}")).await.0].concat(), all);
    let refused = get(&dashboard, "ken", "/api/v1/jobs?queue=billing").await;
    assert!(refused.status == 403 && refused.body.contains("other_queue"), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_is_not_listed_sees_nothing_and_one_who_acts_sees_what_it_acts_on() {
    let bench = calm().await;
    bench.tenure.setup(&["mail".into(), "billing".into()]).await.unwrap();
    for queue in ["mail", "billing"] {
        bench.tenure.enqueue(JobRequest::new(queue, "k", json!(1))).await.unwrap();
    }
    let dashboard = start(&bench, "ada, grace=mail", &[]).await;
    for path in
        ["/", "/queues", "/nowhere", "/assets/style.css", "/metrics", "/api/v1/jobs", "/api/v1/openapi.json"]
    {
        let refused = get(&dashboard, "eve", path).await;
        assert_eq!(refused.status, 403, "{path}");
        for part in ["eve may not look", "TENURE_SERVE_VIEWERS", "Ask those who run this dashboard"] {
            assert!(refused.body.contains(part), "{path}: {}", refused.body);
        }
        let is_of_api = path.starts_with("/api");
        assert_eq!(refused.body.contains("may_not_look"), is_of_api, "{path}: {}", refused.body);
    }
    let refused = post(&dashboard, "eve", "/queues/mail/pause", "csrf=abc").await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    for (headers, part) in [
        (&[("X-Forwarded-User", "ada"), ("Remote-User", "eve")][..], "may be forged"),
        (&[], "the proxy sends no user name, and TENURE_SERVE_VIEWERS"),
    ] {
        let refused = dashboard.ask("GET", "/queues", headers, "").await;
        assert!(refused.status == 403 && refused.body.contains(part), "{}", refused.body);
    }
    let log = lines(&dashboard, "a look was refused");
    assert!(log[0]["who"] == "eve" && log[0]["level"] == "WARN", "{log:?}");
    // Without a list of actors, a user acts on what it may look at.
    for (user, queue, status) in
        [("grace", "billing", 403), ("grace", "mail", 303), ("ada", "billing", 303), ("ada", "mail", 303)]
    {
        let answer = post(&dashboard, user, &format!("/queues/{queue}/pause"), "csrf=abc").await;
        assert_eq!(answer.status, status, "{user} {queue}: {}", answer.body);
    }
    assert_eq!(get(&dashboard, "ada", "/metrics").await.status, 200);
    drop(dashboard);

    // With one, the queues of both lists are seen.
    let actors = [("TENURE_SERVE_ACTORS", "bob=mail, grace=billing")];
    let dashboard = start(&bench, "ada, grace=mail", &actors).await;
    for (user, queue, looks, acts) in [
        ("bob", "mail", 200, 303),
        ("bob", "billing", 403, 403),
        ("grace", "mail", 200, 403),
        ("grace", "billing", 200, 303),
        ("ada", "billing", 200, 403),
    ] {
        let page = get(&dashboard, user, &format!("/queues/{queue}")).await;
        assert_eq!(page.status, looks, "{user} {queue}: {}", page.body);
        let act = post(&dashboard, user, &format!("/queues/{queue}/resume"), "csrf=abc").await;
        assert_eq!(act.status, acts, "{user} {queue}: {}", act.body);
    }
    drop(dashboard);

    // Users of a file: a right password of a user who is not listed is no guess. A token is no user, and reads all.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let hashed = |password: &str| bcrypt::hash(password, 4).unwrap();
    std::fs::write(&path, format!("grace:{}\neve:{}\n", hashed("two"), hashed("three"))).unwrap();
    let variables = [
        ("TENURE_SERVE_USERS", path.to_str().unwrap()),
        ("TENURE_SERVE_VIEWERS", "grace=mail"),
        ("TENURE_SERVE_TOKEN", "a-token-of-mine"),
    ];
    let dashboard = Dashboard::start(&bench, &[], &variables).await;
    for (credentials, path, status) in [
        (basic("grace:two"), "/queues/mail", 200),
        (basic("grace:two"), "/queues/billing", 403),
        (basic("eve:three"), "/queues/mail", 403),
        (basic("eve:two"), "/queues/mail", 401),
        ("Bearer a-token-of-mine".into(), "/metrics", 200),
        ("Bearer a-token-of-mine".into(), "/queues/billing", 200),
    ] {
        let answer = dashboard.ask("GET", path, &[("Authorization", &credentials)], "").await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_list_of_viewers_is_refused_at_the_start() {
    let bench = calm().await;
    let proxy = ("TENURE_SERVE_AUTH", "proxy");
    let shape = "may look at: ada=mail+billing";
    for (variables, told) in [
        (&[proxy, ("TENURE_SERVE_VIEWERS", "ada=two words")][..], shape),
        (&[proxy, ("TENURE_SERVE_VIEWERS", "ada=")], shape),
        (&[proxy, ("TENURE_SERVE_VIEWERS", "=mail")], shape),
        // The last one would count, and show ada everything.
        (&[proxy, ("TENURE_SERVE_VIEWERS", "ada=mail,ada")], "each once"),
        (&[proxy, ("TENURE_SERVE_VIEWERS", " , ")], shape),
        (&[("TENURE_SERVE_VIEWERS", "ada")], "TENURE_SERVE_AUTH=proxy"),
        (
            &[("TENURE_SERVE_VIEWERS", "ada"), ("TENURE_SERVE_PASSWORD", "correct horse")],
            "or remove TENURE_SERVE_VIEWERS",
        ),
    ] {
        let mut serve = bench.program(&["serve", "--listen", "127.0.0.1:0"]);
        let output = serve.envs(variables.iter().copied()).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(told), "{variables:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dashboard_of_several_cells_shows_a_user_their_queues_alone() {
    let (main, eu) = (calm().await, calm().await);
    let job = |queue: &str| JobRequest::new(queue, "k", json!(1));
    let own = main.tenure.enqueue(job("mail")).await.unwrap().id;
    let other = eu.tenure.enqueue(job("billing-eu")).await.unwrap().id;
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    let cells = [("TENURE_CELLS", file.to_str().unwrap())];
    let dashboard = start(&main, "ada, grace=mail", &cells).await;
    let top = async |user: &str, queue: &str| {
        let shown = format!(">{queue}<");
        for _ in 0..300 {
            let page = get(&dashboard, user, "/").await;
            if page.body.contains(&shown) {
                return page.body;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{user} does not see {queue}");
    };
    let all = top("ada", "billing-eu").await;
    assert!(all.contains("id=\"cells\""), "{all}");
    let seen = top("grace", "mail").await;
    assert!(!seen.contains("billing-eu") && !seen.contains("id=\"cells\""), "{seen}");
    for (path, status, to) in [
        (format!("/jobs/{own}"), 303, Some(format!("/cells/main/jobs/{own}"))),
        (format!("/jobs/{other}"), 404, None),
        ("/queues/mail".into(), 303, Some("/cells/main/queues/mail".into())),
        ("/queues/billing-eu".into(), 403, None),
        ("/workers".into(), 403, None),
        ("/cells/eu/".into(), 303, Some("/cells/eu/jobs".into())),
        ("/cells/eu/jobs".into(), 303, Some("/cells/eu/jobs?queue=mail".into())),
        (format!("/cells/eu/jobs/{other}"), 404, None),
        (format!("/api/v1/jobs/{other}"), 404, None),
        (format!("/api/v1/jobs/{own}"), 200, None),
    ] {
        let answer = get(&dashboard, "grace", &path).await;
        let location = answer.header("location").map(str::to_owned);
        assert_eq!((answer.status, location), (status, to), "{path}: {}", answer.body);
    }
}
