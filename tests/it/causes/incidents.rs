//! Incidents: what an operator sees of each, at each place where operators look.
//!
//! Each test makes its incidents on real servers, looks at every place, and waits for the words of [`INCIDENTS`].
//! `docs/operations.md` shows them as a table, and a test compares it with this list: neither can drift from the other.
//! `TENURE_WRITE_DOCS=1 cargo test --all-features --test it the_table_of_incidents` writes the table.

mod queues;

use std::{
    fmt::Write,
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, dev::Nats, queues::QueueLimits, schedules::Schedule};

use super::wrong;
use crate::harness::{Bench, Child, ask, bench_with, docs_hold, free_address, run_folder};

/// One incident, and the words at each place. ` … ` stands for any text in between; empty: nothing there shows it.
struct Incident {
    name: &'static str,
    doctor: &'static str,
    /// The text of the dashboard's overview.
    overview: &'static str,
    /// A command besides doctor, what it prints, and its exit code. `ID` stands for the job.
    command: (&'static str, &'static str, i32),
    log: &'static str,
    metric: &'static str,
    /// `ok`: the worker is ready.
    ready: &'static str,
    cure: &'static str,
}

const INCIDENTS: &[Incident] = &[
    Incident {
        name: "Postgres refuses connections",
        doctor: "postgres wrong … Connection refused",
        overview: "Postgres is unavailable … Connection refused",
        command: ("queues list", "the database is unavailable: … Connection refused", 1),
        log: "waiting for Postgres … Connection refused",
        metric: "tenure_postgres_up 0",
        ready: "Postgres: … Connection refused",
        cure: "start Postgres, or correct host and port in `DATABASE_URL`",
    },
    Incident {
        name: "wrong password",
        doctor: "postgres wrong … password authentication failed for user",
        overview: "Postgres is unavailable … password authentication failed for user",
        command: ("queues list", "the database is unavailable: … password authentication failed for user", 1),
        log: "waiting for Postgres … password authentication failed for user",
        metric: "tenure_postgres_up 0",
        ready: "Postgres: … password authentication failed for user",
        cure: "correct user and password in `DATABASE_URL`",
    },
    Incident {
        name: "the host's name is not found",
        doctor: "postgres wrong … failed to lookup address information",
        overview: "Postgres is unavailable … failed to lookup address information",
        command: ("queues list", "the database is unavailable: … failed to lookup address information", 1),
        log: "waiting for Postgres … failed to lookup address information",
        metric: "tenure_postgres_up 0",
        ready: "Postgres: … failed to lookup address information",
        cure: "correct the host in `DATABASE_URL`, or the name server",
    },
    Incident {
        name: "TLS is required, and the server has none",
        doctor: "postgres wrong … server does not support TLS",
        overview: "Postgres is unavailable … server does not support TLS",
        command: ("queues list", "the database is unavailable: … server does not support TLS", 1),
        log: "waiting for Postgres … server does not support TLS",
        metric: "tenure_postgres_up 0",
        ready: "Postgres: … server does not support TLS",
        cure: "switch TLS on in the server, or correct `sslmode` in `DATABASE_URL`",
    },
    Incident {
        name: "the database does not exist",
        doctor: "postgres wrong … database \"nowhere\" does not exist",
        overview: "Postgres is unavailable … database \"nowhere\" does not exist",
        command: ("queues list", "the database is unavailable: … database \"nowhere\" does not exist", 1),
        log: "waiting for Postgres … database \\\"nowhere\\\" does not exist",
        metric: "tenure_postgres_up 0",
        ready: "Postgres: … database \"nowhere\" does not exist",
        cure: "correct the database in `DATABASE_URL`, or create it",
    },
    Incident {
        name: "Postgres has no connection left",
        doctor: "postgres wrong … too many connections",
        overview: "Postgres is unavailable … too many connections",
        command: ("queues list", "the database is unavailable: … too many connections", 1),
        log: "waiting for Postgres … too many connections",
        metric: "tenure_postgres_up 0",
        ready: "Postgres: … too many connections",
        cure: "raise `max_connections` or the role's limit, lower `TENURE_HANDLER_CONNECTIONS`, or use PgBouncer",
    },
    Incident {
        name: "the server is read-only",
        doctor: "primary wrong … this server is a standby, or is set to read-only",
        overview: "Postgres is read-only.",
        command: ("enqueue q k 1", "the database is unavailable: … in a read-only transaction", 1),
        log: "could not renew the worker's row … in a read-only transaction",
        metric: "tenure_database_errors_total{class=\"25\"}",
        ready: "claims: … in a read-only transaction",
        cure: "point `DATABASE_URL` at the primary",
    },
    Incident {
        name: "the disk is full",
        doctor: "writes wrong … No space left on device",
        overview: "Postgres does not take writes. … No space left on device",
        command: ("enqueue q k 1", "the database is unavailable: … No space left on device", 1),
        log: "could not renew the worker's row … No space left on device",
        metric: "tenure_database_errors_total{class=\"53\"}",
        ready: "claims: … No space left on device",
        cure: "make room on the disk of Postgres",
    },
    Incident {
        name: "the role lacks a right",
        doctor: "workers wrong: 1 of 1 alive not ready: … claims: … permission denied for table jobs",
        overview: "1 of 1 worker is not ready. claims: … permission denied for table jobs",
        command: ("enqueue q k 1", "permission denied for table jobs", 1),
        log: "this worker cannot claim jobs … permission denied for table jobs",
        metric: "tenure_database_errors_total{class=\"42\"}",
        ready: "claims: … permission denied for table jobs",
        cure: "run `postgres/roles.sql` again, and grant the role `tenure_worker`",
    },
    Incident {
        name: "the schema is missing",
        doctor: "schema wrong … this database has no schema of tenure",
        overview: "tenure's schema is missing … run `tenure migrate`",
        command: (
            "queues list",
            "tenure's schema is missing or too old in this database; run `tenure migrate`",
            1,
        ),
        log: "waiting for the schema … this database has no tenure schema; run `tenure migrate`",
        metric: "tenure_ready 0",
        ready: "schema: this database has no tenure schema; run `tenure migrate`",
        cure: "`tenure migrate`, or correct the database in `DATABASE_URL`",
    },
    Incident {
        name: "the schema is too new",
        doctor: "schema wrong … which needs a program that knows version",
        overview: "The schema is too new for this program.",
        command: ("queues list", "this program is too old: it knows version … deploy a newer release", 1),
        log: "this program is too old: it knows version",
        metric: "",
        ready: "",
        cure: "deploy a newer release of the program",
    },
    Incident {
        name: "NATS refuses connections",
        doctor: "nats wrong … Connection refused",
        overview: "NATS cannot be reached from here. … Connection refused",
        command: ("", "", 0),
        log: "NATS connection event … Connection refused",
        metric: "tenure_nats_up 0",
        ready: "NATS: not connected to nats://127.0.0.1:1: … Connection refused",
        cure: "start NATS, or correct host and port in `NATS_URL`; the jobs wait in Postgres",
    },
    Incident {
        name: "the host of NATS is not found",
        doctor: "nats wrong … failed to lookup address information",
        overview: "NATS cannot be reached from here. … failed to lookup address information",
        command: ("", "", 0),
        log: "NATS connection event … failed to lookup address information",
        metric: "tenure_nats_up 0",
        ready: "NATS: not connected to nats://nowhere.invalid:4222: … failed to lookup address information",
        cure: "correct the host in `NATS_URL`, or the name server; the jobs wait in Postgres",
    },
    Incident {
        name: "TLS is required, and NATS has none",
        doctor: "nats wrong … the server does not support TLS",
        overview: "NATS cannot be reached from here. … the server does not support TLS",
        command: ("", "", 0),
        log: "NATS connection event … the server does not support TLS",
        metric: "tenure_nats_up 0",
        ready: "NATS: not connected to tls:// … the server does not support TLS",
        cure: "switch TLS on in the server, or correct the scheme in `NATS_URL`",
    },
    Incident {
        name: "wrong password for NATS",
        doctor: "nats wrong … authorization violation",
        overview: "NATS cannot be reached from here. … authorization violation",
        command: ("", "", 0),
        log: "NATS connection event … authorization violation",
        metric: "tenure_nats_up 0",
        ready: "NATS: not connected to … authorization violation",
        cure: "correct user and password in `NATS_URL`; the jobs wait in Postgres",
    },
    Incident {
        name: "the user of NATS lacks a right",
        doctor: "nats_rights warning: this user may not publish to",
        overview: "",
        command: (
            "workers list",
            "not ready: queue q: NATS refused to create the consumer: … ermissions Violation",
            0,
        ),
        log: "cannot serve the queue … ermissions Violation",
        metric: "tenure_ready 0",
        ready: "queue q: NATS refused to create the consumer: … ermissions Violation",
        cure: "give the user the rights of `worker` in nats/server.conf",
    },
    Incident {
        name: "a handler is silent, its worker lives",
        doctor: "dead_letters warning … 1 silent",
        overview: "its handler was silent",
        command: ("jobs show ID", "the handler was silent for … its worker … is alive", 0),
        log: "reset a job: its handler was silent; its worker is alive",
        metric: "tenure_dead_letters_total{category=\"silent\"}",
        ready: "ok",
        cure: "report progress more often, or give the kind `keepalive` or a longer `stale_after`",
    },
    Incident {
        name: "a worker was killed",
        doctor: "dead_letters warning … 1 lost",
        overview: "its worker missed two heartbeats and did not answer over NATS",
        command: (
            "jobs show ID",
            "worker lost: … vanished: it missed two heartbeats and did not answer over NATS",
            0,
        ),
        log: "reset a job … path=\"vanished\"",
        metric: "tenure_recoveries_total{path=\"vanished\",reason=\"worker_gone\"}",
        ready: "ok",
        cure: "look for its end in the platform's log: memory, a deploy, a lost node",
    },
    Incident {
        name: "a worker is frozen",
        doctor: "dead_letters warning … 1 lost",
        overview: "silent for longer than stale_after",
        command: ("jobs show ID", "worker lost: no sign of life from", 0),
        log: "reset a job … path=\"scanner\"",
        metric: "tenure_recoveries_total{path=\"scanner\",reason=\"silent\"}",
        ready: "ok",
        cure: "look at that process: CPU limits, a debugger, a full disk, swap; restart it",
    },
    Incident {
        name: "a queue is paused",
        doctor: "queue warning … paused for",
        overview: "q is paused",
        command: ("queues list", "paused since", 0),
        log: "",
        metric: "tenure_queue_paused{queue=\"q\"} 1",
        ready: "ok",
        cure: "`tenure queues resume q`, when it is time",
    },
    Incident {
        name: "a queue runs as many jobs as it may",
        doctor: "queue ok: limited: 1 of 1 running; 1 job due",
        overview: "limited",
        command: ("jobs show ID", "the queue q is limited: 1 of 1 running", 0),
        log: "",
        metric: "tenure_queue_max_running{queue=\"q\"} 1",
        ready: "ok",
        cure: "wait, or raise `tenure queues limit q --max-running`",
    },
    Incident {
        name: "a lane runs as many jobs as it may",
        doctor: "lanes ok: workers look after the lanes of 1 queue",
        overview: "1 held",
        command: ("jobs show ID", "held lane org-7 runs 1 of 1", 0),
        log: "",
        metric: "tenure_lanes_waiting{queue=\"q\"} 1",
        ready: "ok",
        cure: "wait, or raise `tenure queues lanes q --lane org-7 --running`",
    },
    Incident {
        name: "a job names a lane, and its queue has none",
        doctor: "lanes warning: 1 job names a lane, as \"org-7\", but the queue has none: nothing limits them",
        overview: "",
        command: ("queues lanes q", "queue \"q\" has no lanes", 1),
        log: "",
        metric: "",
        ready: "ok",
        cure: "`tenure queues lanes q --running 2`, or let producers name no lane",
    },
    Incident {
        name: "a queue is full",
        doctor: "queue warning … full: 2 jobs queued, and enqueues are refused",
        overview: "q is full",
        command: ("enqueue q k 1", "queue \"q\" is full", 1),
        log: "",
        metric: "tenure_queue_max_queued{queue=\"q\"} 2",
        ready: "ok",
        cure: "add workers, or `tenure queues limit q --max-queued N`",
    },
    Incident {
        name: "no worker serves a queue",
        doctor: "queue wrong … no worker serves this queue",
        overview: "No worker serves q.",
        command: ("queues list", "no worker", 0),
        log: "no live worker serves this queue, and its jobs wait",
        metric: "tenure_unserved_jobs{queue=\"q\",kind=\"k\"} 2",
        ready: "ok",
        cure: "start a worker: `tenure work q --exec COMMAND`; of a mistyped name, cancel the jobs and purge the messages",
    },
    Incident {
        name: "no worker of a queue runs a kind",
        doctor: "kinds … no live worker runs the kind k",
        overview: "No worker of q runs the kind k.",
        command: ("jobs show ID", "no live worker runs the kind k", 0),
        log: "no live worker runs this kind",
        metric: "tenure_unserved_jobs{queue=\"q\",kind=\"k\"} 2",
        ready: "ok",
        cure: "start a worker that knows the kind: `tenure work q --kind k --exec COMMAND`; for a mistyped name, cancel the jobs",
    },
    Incident {
        name: "no worker would run the jobs of a schedule",
        doctor: "schedules warning: no live worker would run the jobs of nightly",
        overview: "No worker would run the jobs of the schedule nightly.",
        command: ("schedules list", "no worker", 0),
        log: "",
        metric: "",
        ready: "ok",
        cure: "start a worker of its queue, or correct the names: `tenure schedules add --replace`",
    },
    Incident {
        name: "workers that do not know a kind put its jobs off",
        doctor: "kinds warning: workers of this queue that do not know the kind k put off 1 job of it",
        overview: "Workers of q do not know the kind k.",
        command: ("jobs show ID", "put off … by a worker of this queue that does not know the kind k", 0),
        log: "this worker has no handler for the kind; the job waits for a worker that has one",
        metric: "tenure_put_off_jobs{queue=\"q\",kind=\"k\"} 1",
        ready: "ok",
        cure: "finish the deploy, or give the kind a queue of its own",
    },
    Incident {
        name: "a message's subject names no valid queue",
        doctor: "subjects wrong: 1 message in the stream with a subject that names no valid queue or kind",
        overview: "1 message has a subject that names no valid queue or kind.",
        command: ("", "", 0),
        log: "the stream holds messages whose subject names no valid queue or kind",
        metric: "tenure_misnamed_messages 1",
        ready: "ok",
        cure: "correct the producer; `tenure doctor` prints the command that removes the messages",
    },
    Incident {
        name: "the only worker drains",
        doctor: "queue wrong … its only worker drains, and takes no job; 1 job due",
        overview: "All live workers are draining.",
        command: ("workers list", "draining", 0),
        log: "stopping: no new jobs",
        metric: "tenure_draining 1",
        ready: "worker: stopping",
        cure: "wait for the next worker of the deploy, or start one",
    },
    Incident {
        name: "no worker is alive",
        doctor: "workers warning: no worker is alive",
        overview: "No worker is alive.",
        command: ("workers list", "silent", 0),
        log: "",
        metric: "tenure_workers 0",
        ready: "",
        cure: "start a worker; look for the end of the last one in the platform's log",
    },
];

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
        let deadline = Instant::now() + Duration::from_secs(90);
        let mut missing = vec!["log", "metric", "ready", "overview", "command", "doctor"];
        loop {
            let mut seen = Vec::new();
            for place in missing {
                let (words, text) = match place {
                    "log" => (log, self.worker.log()),
                    "metric" => {
                        let [worker, serve] =
                            [self.listens, self.pages].map(|address| self.ask(address, "/metrics"));
                        (metric, worker.await + "\n" + &serve.await)
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
    let frozen = stage().await;
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
