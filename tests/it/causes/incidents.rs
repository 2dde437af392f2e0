//! Incidents: what an operator sees of each, at each place where operators look.
//!
//! Each test makes its incidents on real servers, looks at every place, and waits for the words of [`INCIDENTS`].
//! `docs/operations.md` shows them as a table, and a test compares it with this list: neither can drift from the other.
//! `TENURE_WRITE_DOCS=1 cargo test --all-features --test it the_table_of_incidents` writes the table.

mod list;
mod queues;

use std::{
    fmt::Write,
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, dev::Nats, lanes::Lanes, queues::QueueLimits, schedules::Schedule};

use self::list::{INCIDENTS, Incident};
use super::wrong;
use crate::harness::{Bench, Child, ask, bench_with, docs_hold, free_address, run_folder};

fn incident(name: &str) -> &'static Incident {
    INCIDENTS.iter().find(|incident| incident.name == name).unwrap_or_else(|| panic!("no incident {name}"))
}

/// Whether a text holds these words: ` … ` stands for any text in between.
fn holds(text: &str, words: &str) -> bool {
    let mut rest = text;
    words.split(" … ").all(|part| {
        let after = rest.split_once(part).map(|(_, after)| after);
        rest = after.unwrap_or_default();
        after.is_some()
    })
}

/// A line of a text that holds these words.
fn has_line(text: &str, words: &str) -> bool {
    text.lines().any(|line| holds(line, words))
}

/// A worker in an incident, and its surroundings.
struct Scene<'a> {
    bench: &'a Bench,
    /// What differs from the bench's environment.
    environment: Vec<(&'static str, String)>,
    worker: Child,
    listens: SocketAddr,
    /// `tenure serve`, and where it shows its pages.
    _serve: Child,
    pages: SocketAddr,
    /// The job that `ID` stands for.
    job: Option<JobId>,
}

/// Timers with which an incident shows within seconds.
async fn stage() -> Bench {
    bench_with(|config| {
        config.timing.database_within = Duration::from_secs(1);
        config.timing.renew_every = Duration::from_millis(300);
    })
    .await
}

impl<'a> Scene<'a> {
    fn new(bench: &'a Bench, work: &[&str], environment: &[(&'static str, String)]) -> Self {
        let listens = free_address();
        let mut command = bench.program(work);
        command
            .envs(environment.iter().map(|(name, value)| (*name, value.as_str())))
            .env("TENURE_LISTEN", listens.to_string())
            .env("TENURE_LOG_FORMAT", "text")
            .env("RUST_LOG", "warn,tenure=info");
        let worker = Child::spawn(command, "incident");
        let pages = free_address();
        let mut command = bench.program(&["serve", "--listen", &pages.to_string()]);
        command.envs(environment.iter().map(|(name, value)| (*name, value.as_str())));
        let serve = Child::spawn(command, "incident-serve");
        Self { bench, environment: environment.to_vec(), worker, listens, _serve: serve, pages, job: None }
    }

    fn of_url(bench: &'a Bench, url: String) -> Self {
        Self::new(bench, &["work", "q", "--exec", "true"], &[("DATABASE_URL", url)])
    }

    /// Returns what a command prints as its output and its errors, and its exit code.
    async fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        let mut command = self.bench.program(arguments);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value.as_str())));
        let ran = command.output().await.unwrap();
        let code = ran.status.code().unwrap();
        (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap(), code)
    }

    /// Doctor's findings, one a line.
    async fn doctor(&self) -> String {
        let (said, _, code) = self.run(&["--output", "json", "doctor", "--queue", "q"]).await;
        let checks: Vec<Value> =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        let text = |check: &Value, name: &str| check[name].as_str().unwrap_or_default().to_owned();
        let line = |check: &Value| {
            format!("{} {}: {}", text(check, "check"), text(check, "state"), text(check, "found"))
        };
        assert_eq!(code, i32::from(checks.iter().any(|check| check["state"] == "wrong")), "{said}");
        checks.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    async fn ask(&self, address: SocketAddr, path: &'static str) -> String {
        let answer = tokio::task::spawn_blocking(move || ask(address, "GET", path, &[], "")).await.unwrap();
        answer.map(|answer| answer.body).unwrap_or_default()
    }

    /// The words of the overview, in one line.
    async fn overview(&self) -> String {
        let page = self.ask(self.pages, "/").await;
        let text = page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
        text.collect::<String>().replace("&quot;", "\"").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    async fn command(&self, line: &str, exits: i32) -> String {
        let job = self.job.map(|job| job.to_string()).unwrap_or_default();
        let arguments: Vec<_> =
            line.split(' ').map(|part| if part == "ID" { job.as_str() } else { part }).collect();
        // The lines of a table are broken to fit; a page has one line for all.
        let (out, errors, code) = self.run(&arguments).await;
        let code = if code == exits { String::new() } else { format!("exits with {code}: ") };
        format!("{code}{out} {errors}").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Waits until each place shows the incident.
    async fn shows(&self, name: &str) {
        let Incident { doctor, overview, command, log, metric, ready, .. } = incident(name);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut missing = vec!["log", "metric", "ready", "overview", "command", "doctor"];
        loop {
            let mut seen = Vec::new();
            for place in missing {
                let (words, text) = match place {
                    "log" => (log, self.worker.log()),
                    "metric" => {
                        let [worker, serve] =
                            [self.listens, self.pages].map(|address| self.ask(address, "/metrics"));
                        let all = worker.await + "\n" + &serve.await;
                        (
                            metric,
                            all.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"),
                        )
                    }
                    "ready" => (ready, self.ask(self.listens, "/readyz").await),
                    "overview" if overview.is_empty() => continue,
                    "overview" => (overview, self.overview().await),
                    "command" if command.0.is_empty() => continue,
                    "command" => (&command.1, self.command(command.0, command.2).await),
                    _ if doctor.is_empty() => continue,
                    _ => (doctor, self.doctor().await),
                };
                if !words.is_empty() && !has_line(&text, words) || text.starts_with("exits with ") {
                    seen.push((place, words, text));
                }
            }
            if seen.is_empty() {
                return;
            }
            let told =
                || seen.iter().map(|(place, words, text)| format!("{place}: no {words:?} in:\n{text}\n"));
            assert!(Instant::now() < deadline, "{name}\n{}", told().collect::<String>());
            missing = seen.into_iter().map(|(place, ..)| place).collect();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Scene<'_> {
    /// Waits until no place shows the incident any more.
    async fn shows_no_more(&self, name: &str) {
        let Incident { doctor, overview, metric, .. } = incident(name);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let seen = [
                (doctor, self.doctor().await),
                (overview, self.overview().await),
                (metric, self.ask(self.listens, "/metrics").await),
            ];
            let Some((words, text)) = seen.iter().find(|(words, text)| has_line(text, words)) else { return };
            assert!(Instant::now() < deadline, "{name}: still {words:?} in:\n{text}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_gives_no_connection_is_named_by_its_cause_at_each_place() {
    let bench = stage().await;
    let url = &bench.config.database_url;
    let (_, host) = url.split_once('@').unwrap();
    let full = format!("full_{}", host.rsplit('/').next().unwrap());
    bench.execute(&format!("CREATE ROLE {full} LOGIN PASSWORD 'pw' CONNECTION LIMIT 0")).await;
    let scenes = [
        ("Postgres refuses connections", wrong(&bench, "port")),
        ("wrong password", wrong(&bench, "password")),
        ("the host's name is not found", wrong(&bench, "host")),
        ("TLS is required, and the server has none", format!("{url}?sslmode=require")),
        ("the database does not exist", wrong(&bench, "database")),
        ("Postgres has no connection left", format!("postgres://{full}:pw@{host}")),
    ];
    let scenes = scenes.map(|(name, url)| (name, Scene::of_url(&bench, url)));
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}

/// A statement-level trigger raises what the server raises when its disk is full.
const FULL_DISK: &str = "CREATE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$";

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_does_not_write_is_named_by_its_cause_at_each_place() {
    let [read_only, full, denied] = [stage().await, stage().await, stage().await];
    let (_, host) = denied.config.database_url.split_once('@').unwrap();
    let role = format!("denied_{}", host.rsplit('/').next().unwrap());
    for sql in [
        format!("CREATE ROLE {role} LOGIN PASSWORD 'pw'"),
        format!("GRANT ALL ON SCHEMA tenure TO {role}"),
        format!("GRANT ALL ON ALL TABLES IN SCHEMA tenure TO {role}"),
        format!("GRANT ALL ON ALL SEQUENCES IN SCHEMA tenure TO {role}"),
        format!("GRANT ALL ON ALL FUNCTIONS IN SCHEMA tenure TO {role}"),
    ] {
        denied.execute(&sql).await;
    }
    let mut scenes = [
        ("the server is read-only", Scene::of_url(&read_only, read_only.config.database_url.clone())),
        ("the disk is full", Scene::of_url(&full, full.config.database_url.clone())),
        ("the role lacks a right", Scene::of_url(&denied, format!("postgres://{role}:pw@{host}"))),
    ];
    for (_, scene) in &mut scenes {
        scene.worker.until_log("worker started").await;
    }
    let (_, database) = read_only.config.database_url.rsplit_once('/').unwrap();
    read_only.execute(&format!("ALTER DATABASE {database} SET default_transaction_read_only = on")).await;
    read_only
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'tenure'",
        )
        .await;
    full.execute(FULL_DISK).await;
    for table in ["jobs", "workers", "scanner_state"] {
        let trigger = "BEFORE INSERT OR UPDATE ON tenure.";
        full.execute(&format!(
            "CREATE TRIGGER full_disk {trigger}{table} EXECUTE FUNCTION public.full_disk()"
        ))
        .await;
    }
    denied.execute(&format!("REVOKE INSERT, UPDATE ON tenure.jobs FROM {role}")).await;
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
    // An operator with another role sees it, too.
    let id = job(&denied).await.to_string();
    for (line, says) in [
        (&["jobs", "show", &id][..], "no worker that runs it is ready: claims: "),
        (&["workers", "list"], "alive, not ready: claims: "),
        (&["doctor", "--problems"], "1 of 1 alive not ready: "),
    ] {
        let output = denied.program(line).output().await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(says), "{line:?}: {said}");
    }
    let pages = &scenes[2].1;
    assert!(pages.ask(pages.pages, "/workers").await.contains("not ready: claims: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_does_not_fit_and_a_nats_that_refuses_are_named_by_their_cause_at_each_place() {
    let [missing, new, nats] = [stage().await, stage().await, stage().await];
    missing.execute("DROP SCHEMA tenure CASCADE").await;
    new.execute("UPDATE tenure.migrations SET breaks_before = 999").await;
    let work = ["work", "q", "--exec", "true"];
    let scenes = [
        ("the schema is missing", Scene::new(&missing, &work, &[])),
        ("the schema is too new", Scene::new(&new, &work, &[])),
        (
            "NATS refuses connections",
            Scene::new(&nats, &work, &[("NATS_URL", "nats://127.0.0.1:1".to_owned())]),
        ),
        (
            "the host of NATS is not found",
            Scene::new(&nats, &work, &[("NATS_URL", "nats://nowhere.invalid:4222".to_owned())]),
        ),
        (
            "TLS is required, and NATS has none",
            Scene::new(&nats, &work, &[("NATS_URL", nats.config.nats_url.replace("nats://", "tls://"))]),
        ),
    ];
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nats_that_refuses_a_user_or_a_request_is_named_at_each_place() {
    let [refused, denied] = [stage().await, stage().await];
    let folder = run_folder().join("incident-nats");
    std::fs::create_dir_all(&folder).unwrap();
    let conf = folder.join("server.conf");
    let deny = "permissions: { publish: { deny: [\"$JS.API.CONSUMER.>\"] } }";
    let users = "{ user: u, password: p }, { user: poor, password: p, ".to_owned() + deny + " }";
    std::fs::write(&conf, format!("accounts {{ A {{ jetstream: enabled, users: [ {users} ] }} }}")).unwrap();
    let start = move || Nats::start_with(&folder.join("nats"), Some(&conf)).unwrap();
    let nats = tokio::task::spawn_blocking(start).await.unwrap();
    let url = |user: &str| format!("nats://{user}@127.0.0.1:{}", nats.port());
    let work = ["work", "q", "--exec", "true"];
    let scenes = [
        ("wrong password for NATS", Scene::new(&refused, &work, &[("NATS_URL", url("u:wrong"))])),
        ("the user of NATS lacks a right", Scene::new(&denied, &work, &[("NATS_URL", url("poor:p"))])),
    ];
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}

/// A job with one attempt, which runs as soon as a worker is there.
async fn job(bench: &Bench) -> JobId {
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(1)).await.unwrap().id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_handler_is_not_called_a_lost_worker_at_any_place() {
    let bench = stage().await;
    let id = job(&bench).await;
    let twice = bench.tenure.enqueue(JobRequest::new("q", "k", json!(2)).max_attempts(2)).await.unwrap().id;
    let mut scene = Scene::new(&bench, &["work", "q", "--exec", "sleep 100"], &[]);
    scene.job = Some(id);
    scene.shows("a handler is silent, its worker lives").await;
    assert!(!scene.worker.log().contains("worker lost"), "{}", scene.worker.log());
    let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
    assert_eq!(letter.category, "silent");
    assert!(
        holds(&letter.last_error, "the handler was silent for … s; its worker … is alive"),
        "{}",
        letter.last_error
    );
    // The end of an attempt that its job survives says the same, and so does the event.
    bench
        .until_count(&format!("tenure.job_executions WHERE job_id = '{twice}' AND outcome = 'lost'"), 1)
        .await;
    let error =
        bench.text(&format!("SELECT error FROM tenure.job_executions WHERE job_id = '{twice}'")).await;
    assert!(error.contains("the handler was silent for"), "{error}");
    let reasons = bench.text("SELECT DISTINCT reason FROM tenure.recovery_events").await;
    assert_eq!(
        reasons, "(\"its handler was silent for longer than stale_after; its worker is alive\")",
        "each reset is of a silent handler"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_and_a_frozen_one_are_named_at_each_place() {
    let [of_killed, of_frozen] = ["a worker was killed", "a worker is frozen"];
    // A scan that comes late begins a grace, in which no job is reset: a busy machine keeps only a long interval.
    let killed = bench_with(|config| {
        config.timing.renew_every = Duration::from_millis(300);
        config.timing.scan_every = Duration::from_secs(10);
        config.timing.stale_after = Duration::from_secs(100);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    let frozen = bench_with(|config| config.timing.renew_every = Duration::from_millis(300)).await;
    let ends = async |bench: &Bench, name: &str, signal| {
        let id = job(bench).await;
        let work = ["work", "q", "--exec", "sleep 100", "--keepalive"];
        let first = Scene::new(bench, &work, &[]);
        bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
        let mut scene = Scene::new(bench, &["work", "q", "--exec", "true"], &[]);
        scene.worker.until_log("worker started").await;
        scene.job = Some(id);
        first.worker.signal(signal);
        scene.shows(name).await;
    };
    tokio::join!(ends(&killed, of_killed, Signal::KILL), ends(&frozen, of_frozen, Signal::STOP));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_and_jobs_without_a_worker_are_named_at_each_place() {
    let [full, queue, kind, none] = [stage().await, stage().await, stage().await, stage().await];
    full.tenure.setup(&["q".into()]).await.unwrap();
    full.tenure.limit_queue("q", QueueLimits::new().max_queued(2)).await.unwrap();
    let mut ids = Vec::new();
    for bench in [&full, &queue, &kind] {
        job(bench).await;
        ids.push(job(bench).await);
    }
    let scenes = [
        // The limit is met as long as no slot comes free.
        ("a queue is full", Scene::new(&full, &["work", "q", "--kind", "other", "--exec", "true"], &[])),
        ("no worker serves a queue", Scene::new(&queue, &["work", "other", "--exec", "true"], &[])),
        (
            "no worker of a queue runs a kind",
            Scene::new(&kind, &["work", "q", "--kind", "other", "--exec", "true"], &[]),
        ),
        ("no worker is alive", Scene::new(&none, &["work", "q", "--exec", "true"], &[])),
    ];
    let mut scenes = scenes;
    scenes[2].1.job = Some(ids[2]);
    let last = &mut scenes[3].1.worker;
    last.until_log("worker started").await;
    last.kill().await;
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_no_worker_can_take_are_named_at_each_place() {
    let [strangers, misnamed, draining, ticking] =
        [stage().await, stage().await, stage().await, stage().await];
    let nightly = Schedule::new("nightly", "0 3 1 1 *", JobRequest::new("nowhere", "k", json!(1)));
    ticking.tenure.put_schedule(nightly).await.unwrap();
    // One worker knows the kind and is busy; the other gets the second job, and does not know it.
    let busy = ["work", "q", "--kind", "k", "--concurrency", "1", "--exec", "sleep 100", "--keepalive"];
    let _busy = Child::spawn(strangers.program(&busy), "incident-busy");
    job(&strangers).await;
    strangers.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let mut other = Scene::new(&strangers, &["work", "q", "--kind", "other", "--exec", "true"], &[]);
    other.job = Some(job(&strangers).await);
    strangers.until_count("tenure.jobs WHERE put_off_since IS NOT NULL", 1).await;
    strangers
        .execute(
            "UPDATE tenure.jobs SET put_off_since = put_off_since - interval '2 min' WHERE status = 'queued'",
        )
        .await;

    misnamed.tenure.setup(&["q".into()]).await.unwrap();
    misnamed.publish("q!.send", "1").await;

    job(&draining).await;
    let work = ["work", "q", "--concurrency", "1", "--exec", "sleep 100", "--keepalive"];
    let grace = [("TENURE_SHUTDOWN_GRACE", "100s".to_owned())];
    let drains = Scene::new(&draining, &work, &grace);
    draining.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    job(&draining).await;
    drains.worker.signal(Signal::TERM);

    let scenes = [
        ("workers that do not know a kind put its jobs off", other),
        (
            "a message's subject names no valid queue",
            Scene::new(&misnamed, &["work", "q", "--exec", "true"], &[]),
        ),
        ("the only worker drains", drains),
        (
            "no worker would run the jobs of a schedule",
            Scene::new(&ticking, &["work", "q", "--exec", "true"], &[]),
        ),
    ];
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_jobs_from_going_on_is_named_at_each_place_until_it_is_cured() {
    let [laned, refused, slow] = [stage().await, stage().await, stage().await];
    let sleeps = ["work", "q", "--keepalive", "--exec", "if grep -q slow; then sleep 100; fi"];
    let job = |what: &str| JobRequest::new("q", "k", json!(what));
    laned.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let of_lane = Scene::new(&laned, &sleeps, &[]);
    let holder = laned.tenure.enqueue(job("slow").lane("l")).await.unwrap().id;
    laned.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    laned.tenure.enqueue(job("quick").lane("l")).await.unwrap();
    laned.execute("UPDATE tenure.lane_jobs SET due_at = due_at - interval '15 min'").await;

    let member = job("member").delay(Duration::from_secs(3_600));
    let group = refused.tenure.group([member]).then(job("after")).await.unwrap();
    refused.refuse("UPDATE ON tenure.jobs", &format!("NEW.id = '{}'", group.id)).await;
    refused.tenure.retry(group.jobs[0]).await.unwrap();
    let of_group = Scene::new(&refused, &sleeps, &[]);

    slow.tenure.enqueue_many((0..20).map(|_| job("quick"))).await.unwrap();
    let of_kind = Scene::new(&slow, &sleeps, &[]);
    slow.until_count("tenure.job_history", 20).await;
    let stuck = slow.tenure.enqueue(job("slow")).await.unwrap().id;
    slow.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    slow.execute("UPDATE tenure.jobs SET started_at = started_at - interval '1 h'").await;

    let scenes = [
        ("a lane's slots are taken for long", of_lane),
        ("Postgres refuses a job that follows others", of_group),
        ("a handler is far slower than usual", of_kind),
    ];
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
    laned.tenure.cancel(holder).await.unwrap();
    refused.execute("DROP TRIGGER refuse ON tenure.jobs").await;
    slow.tenure.cancel(stuck).await.unwrap();
    join_all(scenes.iter().map(|(name, scene)| scene.shows_no_more(name))).await;
}

const BEGIN: &str = "<!-- the table of incidents: written by tests/it/causes/incidents.rs -->\n";
const END: &str = "<!-- the end of the table of incidents -->";

fn table() -> String {
    let mut table = String::from(
        "| incident | `tenure doctor` | overview | command line | log of a worker | metric | `/readyz` | cure |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let words = |words: &str| match words {
        "" => "–".to_owned(),
        words => words.replace("\\\"", "\"").replace('|', "\\|"),
    };
    for Incident { name, doctor, overview, command, log, metric, ready, cure } in INCIDENTS {
        let command = match command {
            ("", ..) => "–".to_owned(),
            (command, says, 0) => format!("`{command}`: {}", words(says)),
            (command, says, code) => format!("`{command}`: {}, exit {code}", words(says)),
        };
        let metric = if metric.is_empty() { "–".to_owned() } else { format!("`{metric}`") };
        let [doctor, overview, log, ready] = [doctor, overview, log, ready].map(|text| words(text));
        writeln!(
            table,
            "| {name} | {doctor} | {overview} | {command} | {log} | {metric} | {ready} | {cure} |"
        )
        .unwrap();
    }
    table
}

#[test]
fn the_table_of_incidents_is_that_of_the_docs() {
    docs_hold("operations.md", (BEGIN, END), &table(), "the_table_of_incidents");
}
