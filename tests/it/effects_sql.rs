//! Exactly-once effects through SQL, by the drivers of other languages: what `effects` shows for Rust.
//!
//! A session of each driver is a process that runs one statement after the other, so that a test forces each
//! interleaving: `tests/it/clients`. With `EFFECTS=1000`, the two tests that repeat themselves do so a thousand
//! times for each driver; without it, 90 and 15 times in all.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, KindOptions, Status, Worker};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child as Process, ChildStdin, ChildStdout, Command},
};

use crate::{
    harness::{self, Bench, Child, Running, bench, bench_with, statement, until_file},
    sql::{LEVELS, claimed, reset, running},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Psycopg,
    NodePg,
    Psql,
}

/// `psql` of the servers that the tests start, or the machine's.
pub fn psql() -> PathBuf {
    let own = std::env::var_os("TENURE_PG_BIN").map(|folder| PathBuf::from(folder).join("psql"));
    let mut installed: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin/psql"))
        .collect();
    installed.sort();
    own.into_iter().chain(installed.into_iter().rev()).find(|path| path.exists()).unwrap_or("psql".into())
}

fn root() -> &'static Path {
    Path::new(harness::ROOT)
}

/// A Node program that finds its libraries: a module looks for them beside itself. `None`: no Node here, or no library.
pub fn node_program(folder: &Path, program: &Path, libraries: &str, library: &str) -> Option<PathBuf> {
    let libraries = root().join(".tools").join(libraries).join("node_modules");
    let node = std::process::Command::new("node").arg("--version").output();
    if !node.is_ok_and(|node| node.status.success()) || !libraries.join(library).exists() {
        eprintln!("skipped: no Node here, or not {library} (scripts/setup test)");
        return None;
    }
    std::fs::create_dir_all(folder).unwrap();
    let copy = folder.join(program.file_name().unwrap());
    std::fs::copy(program, &copy).unwrap();
    // Another test of this run may have made it.
    std::os::unix::fs::symlink(libraries, folder.join("node_modules")).ok();
    Some(copy)
}

/// The drivers of this machine. `make test` installs those that it lacks; without Node, node-postgres is left out.
fn drivers(bench: &Bench) -> Vec<(Driver, Vec<String>)> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let clients = root().join("tests/it/clients");
    let mut all = vec![
        (Driver::Psycopg, vec!["python3".into(), text(&clients.join("session.py"))]),
        (
            Driver::Psql,
            [text(&psql()), "-XqAt".into(), "-vVERBOSITY=sqlstate".into(), bench.config.database_url.clone()]
                .into(),
        ),
    ];
    let folder = bench.config.runtime_dir.join("clients");
    if let Some(program) = node_program(&folder, &clients.join("session.mjs"), "node", "pg") {
        all.push((Driver::NodePg, vec!["node".into(), text(&program)]));
    }
    all
}

/// A session with the database, of another driver.
struct Session {
    driver: Driver,
    process: Process,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// What a statement answered: the first column of its row, or the SQLSTATE of its error.
type Answer = Result<Value, String>;

impl Session {
    fn start(bench: &Bench, driver: &(Driver, Vec<String>)) -> Self {
        let mut command = Command::new(&driver.1[0]);
        command.args(&driver.1[1..]).env("DATABASE_URL", &bench.config.database_url).kill_on_drop(true);
        // psql repeats each error there.
        if driver.0 == Driver::Psql {
            command.stderr(Stdio::null());
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { driver: driver.0, process, stdin, lines: BufReader::new(stdout).lines() }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(20), self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("{:?} does not answer", self.driver)).unwrap();
        line.unwrap_or_else(|| panic!("{:?} has ended", self.driver))
    }

    async fn send(&mut self, text: String) {
        self.stdin.write_all(text.as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, order: Value) -> Answer {
        if self.driver != Driver::Psql {
            self.send(format!("{order}\n")).await;
            let answer: Value = serde_json::from_str(&self.line().await).unwrap();
            return match answer.get("code") {
                Some(code) => Err(code.as_str().unwrap().to_owned()),
                None => Ok(answer["row"].clone()),
            };
        }
        let literal = |value: &Value| match value {
            Value::Null => "NULL".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => format!("'{text}'"),
            json => format!("'{json}'"),
        };
        let sql = if let Some(sql) = order.get("sql") {
            sql.as_str().unwrap().to_owned()
        } else {
            let with: Vec<_> = order["with"].as_array().unwrap().iter().map(literal).collect();
            format!("SELECT tenure.{}({})", order["call"].as_str().unwrap(), with.join(", "))
        };
        self.send(format!("{sql};\n\\echo = :SQLSTATE\n")).await;
        let mut row = Value::Null;
        loop {
            let line = self.line().await;
            match line.strip_prefix("= ") {
                Some("00000") => return Ok(row),
                Some(code) => return Err(code.to_owned()),
                None => {
                    row = match line.as_str() {
                        "t" => json!(true),
                        "f" => json!(false),
                        "" => Value::Null,
                        text => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
                    }
                }
            }
        }
    }

    async fn sql(&mut self, sql: &str) -> Answer {
        self.ask(json!({ "sql": sql })).await
    }

    /// Runs a statement that must succeed.
    async fn run(&mut self, sql: &str) {
        self.sql(sql).await.unwrap_or_else(|code| panic!("{:?}: {sql}: {code}", self.driver));
    }

    /// Calls a function of the schema with the attempt that `claimed` returned, and more arguments.
    async fn call(&mut self, function: &str, attempt: &str, more: &[Value]) -> Answer {
        let parts: Vec<_> = attempt.split(", ").map(|part| part.trim_matches('\'')).collect();
        let mut with = vec![json!(parts[0]), json!(parts[1].parse::<i64>().unwrap()), json!(parts[2])];
        with.extend(more.iter().cloned());
        self.ask(json!({ "call": function, "with": with })).await
    }

    async fn begin(&mut self, level: &str) {
        self.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
    }

    async fn write(&mut self, job: JobId) {
        self.run(&format!("INSERT INTO public.effects VALUES ('{job}')")).await;
    }

    async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

async fn world() -> Bench {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(300);
        config.timing.scan_every = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(600);
    })
    .await;
    bench.execute("CREATE TABLE public.effects (job uuid)").await;
    bench
}

async fn effects(bench: &Bench, job: JobId) -> i64 {
    bench.count(&format!("public.effects WHERE job = '{job}'")).await
}

async fn ended(bench: &Bench, job: JobId) -> i64 {
    bench.count(&format!("tenure.job_history WHERE id = '{job}' AND status = 'completed'")).await
}

/// Whether the scanner's own statement could take a job that looks silent.
async fn is_free(bench: &Bench, job: JobId) -> bool {
    let silent = "UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h'
                   WHERE id IN (SELECT id FROM tenure.jobs FOR NO KEY UPDATE SKIP LOCKED)";
    bench.execute(silent).await;
    let reset = sqlx::query(statement("reset_stale")).bind(vec![job]).bind("the test");
    !reset.fetch_all(&bench.pool).await.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_any_driver_whose_job_was_reset_or_claimed_meanwhile_commits_nothing() {
    let bench = world().await;
    for driver in &drivers(&bench) {
        let mut session = Session::start(&bench, driver);
        for level in LEVELS {
            for call in ["fence", "complete", "once", "hold"] {
                for claimed_again in [false, true] {
                    let (job, attempt) = running(&bench).await;
                    session.begin(level).await;
                    session.write(job).await;
                    reset(&bench, job).await;
                    if claimed_again {
                        claimed(&bench, job).await;
                    }
                    let key = [json!("effect")];
                    let said = session.call(call, &attempt, if call == "once" { &key } else { &[] }).await;
                    let refused = if level == LEVELS[0] { "TN001" } else { "40001" };
                    assert_eq!(said, Err(refused.to_owned()), "{driver:?} {level} {call} {claimed_again}");
                    // A program that goes on regardless commits nothing either.
                    session.run("COMMIT").await;
                    assert_eq!(effects(&bench, job).await + bench.count("tenure.effects").await, 0);
                }
            }
        }
    }
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_any_driver_keeps_its_job_until_it_commits_both_or_neither() {
    let bench = world().await;
    for driver in &drivers(&bench) {
        let mut session = Session::start(&bench, driver);
        for level in LEVELS {
            let first = if level == LEVELS[0] { "fence" } else { "hold" };
            for commits in [true, false] {
                let (job, attempt) = running(&bench).await;
                session.begin(level).await;
                assert_eq!(session.call(first, &attempt, &[]).await.map(drop), Ok(()));
                session.write(job).await;
                assert!(!is_free(&bench, job).await, "{driver:?} {level}: held");
                let done = session.call("complete", &attempt, &[json!({"n": [1]})]).await;
                assert_eq!(done.map(drop), Ok(()), "{driver:?} {level}");
                assert!(!is_free(&bench, job).await, "{driver:?} {level}: held");
                session.run(if commits { "COMMIT" } else { "ROLLBACK" }).await;
                let one = i64::from(commits);
                assert_eq!((effects(&bench, job).await, ended(&bench, job).await), (one, one));
                if commits {
                    let output = bench.tenure.job(job).await.unwrap().unwrap().output;
                    assert_eq!(output, Some(json!({"n": [1]})), "{driver:?}");
                    // Once more: the program learns that its first commit did it.
                    session.begin(level).await;
                    session.write(job).await;
                    let again = session.call("complete", &attempt, &[]).await;
                    assert_eq!(again, Err("TN007".into()), "{driver:?} {level}");
                    session.run("COMMIT").await;
                    assert_eq!(effects(&bench, job).await, 1);
                }
            }
        }
        // Killed between the completion and the commit: neither has happened, and another attempt does both.
        let (job, attempt) = running(&bench).await;
        session.begin(LEVELS[0]).await;
        session.write(job).await;
        session.call("complete", &attempt, &[]).await.unwrap();
        session.kill().await;
        bench.until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction')").await;
        assert_eq!((effects(&bench, job).await, ended(&bench, job).await), (0, 0));
        reset(&bench, job).await;
        let attempt = claimed(&bench, job).await;
        let mut session = Session::start(&bench, driver);
        session.begin(LEVELS[0]).await;
        session.write(job).await;
        session.call("complete", &attempt, &[]).await.unwrap();
        session.run("COMMIT").await;
        assert_eq!((effects(&bench, job).await, ended(&bench, job).await), (1, 1));
    }
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_of_any_driver_happens_once_and_the_next_attempt_reads_its_result() {
    let bench = world().await;
    for driver in &drivers(&bench) {
        let mut session = Session::start(&bench, driver);
        for level in LEVELS {
            let (job, attempt) = running(&bench).await;
            let key = [json!("charge")];
            for time in ["rolled back", "committed"] {
                session.begin(level).await;
                assert_eq!(session.call("once", &attempt, &key).await, Ok(json!(true)), "{driver:?} {time}");
                session.write(job).await;
                assert!(!is_free(&bench, job).await, "{driver:?} {level}: held");
                let result = [json!("charge"), json!({"receipt": 7})];
                session.call("once_store", &attempt, &result).await.unwrap();
                session.run(if time == "committed" { "COMMIT" } else { "ROLLBACK" }).await;
            }
            assert!(is_free(&bench, job).await);
            let second = claimed(&bench, job).await;
            session.begin(level).await;
            let stale = session.call("once", &attempt, &key).await;
            assert_eq!(stale, Err("TN001".into()), "{driver:?} {level}");
            session.run("ROLLBACK").await;
            session.begin(level).await;
            assert_eq!(session.call("once", &second, &key).await, Ok(json!(false)), "{driver:?} {level}");
            let result = session.sql(&format!("SELECT tenure.once_result('{job}', 'charge')")).await;
            assert_eq!(result, Ok(json!({"receipt": 7})), "{driver:?}");
            session.call("complete", &second, &[]).await.unwrap();
            session.run("COMMIT").await;
            assert_eq!((effects(&bench, job).await, ended(&bench, job).await), (1, 1));
        }
    }
    bench.every_job_is_as_it_must_be().await;
}

/// A sign of life by SQL, and the answer that a cancellation was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn progress_of_any_driver_is_a_sign_of_life_and_says_when_to_stop() {
    let bench = world().await;
    for driver in &drivers(&bench) {
        let mut session = Session::start(&bench, driver);
        let (job, attempt) = running(&bench).await;
        bench.execute("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h'").await;
        let report = [json!("half"), json!(50.5), json!("on"), json!([7])];
        assert_eq!(session.call("progress", &attempt, &report).await, Ok(json!(false)), "{driver:?}");
        let row = "SELECT stage, progress, message, checkpoint, last_activity_at > now() - interval '1 min' FROM tenure.jobs";
        assert_eq!(bench.text(row).await, "(half,50.5,on,[7],t)", "{driver:?}");
        bench.tenure.cancel(job).await.unwrap();
        assert_eq!(session.call("progress", &attempt, &[]).await, Ok(json!(true)), "{driver:?}");
        assert_eq!(bench.text(row).await, "(half,50.5,on,[7],t)", "what is left out stays");
        bench.execute("DELETE FROM tenure.jobs").await;
    }
}

/// How often a test repeats itself for each of this number of drivers.
fn repetitions(drivers: usize, in_all: usize) -> usize {
    let asked = std::env::var("EFFECTS").ok().map(|text| text.parse().unwrap());
    asked.unwrap_or_else(|| in_all.div_ceil(drivers))
}

/// The reset and the next claim come between the write and the completion, each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_attempts_commit_is_refused_each_time() {
    let bench = world().await;
    let drivers = drivers(&bench);
    let times = repetitions(drivers.len(), 90);
    let began_at = Instant::now();
    let of_driver = async |driver: &(Driver, Vec<String>)| {
        let mut session = Session::start(&bench, driver);
        let mut refused = 0;
        for n in 0..times {
            let (job, attempt) = running(&bench).await;
            session.begin(LEVELS[n % 3]).await;
            session.write(job).await;
            reset(&bench, job).await;
            claimed(&bench, job).await;
            let said = session.call("complete", &attempt, &[]).await;
            refused += usize::from(said.is_err_and(|code| ["TN001", "40001"].contains(&code.as_str())));
            session.run("COMMIT").await;
        }
        refused
    };
    let refused = futures::future::join_all(drivers.iter().map(of_driver)).await;
    for ((driver, _), refused) in drivers.iter().zip(refused) {
        eprintln!("{driver:?}: {refused} of {times} commits of a stale attempt were refused");
        assert_eq!(refused, times);
    }
    eprintln!("in {:.1} s", began_at.elapsed().as_secs_f32());
    assert_eq!(bench.count("public.effects").await, 0);
}

/// The commands of `examples/jobs`, and what they need.
fn jobs_of_examples(bench: &Bench) -> Vec<String> {
    let jobs = root().join("examples/jobs");
    let mut all = vec![
        format!("python3 {}", jobs.join("charge.py").display()),
        format!("sh {}", jobs.join("charge.sh").display()),
    ];
    let folder = bench.config.runtime_dir.join("jobs");
    if let Some(program) = node_program(&folder, &jobs.join("charge.mjs"), "node", "pg") {
        all.push(format!("node {}", program.display()));
    }
    all
}

fn work(bench: &Bench, exec: &str, more: &[&str]) -> Child {
    let mut arguments = vec!["work", "q", "--exec", exec];
    arguments.extend(more);
    let mut command = bench.program(&arguments);
    let path = format!("{}:{}", psql().parent().unwrap().display(), std::env::var("PATH").unwrap());
    Child::spawn(
        {
            command.env("PATH", path);
            command
        },
        "work",
    )
}

/// The payload of a job of `examples/jobs`, and the number of its command.
fn charge(n: usize, command: usize) -> JobRequest {
    JobRequest::new("q", format!("command-{command}"), json!({"account": format!("a{n}"), "cents": n}))
}

/// `sh -c` picks the command by the kind.
fn by_kind(commands: &[String], after: &str) -> String {
    let cases: Vec<_> =
        commands.iter().enumerate().map(|(n, command)| format!("command-{n}) {command};;")).collect();
    format!("case $TENURE_KIND in {} esac; {after}", cases.join(" "))
}

/// The command commits, and is killed before it can say so. The worker asks how the claim has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_killed_between_its_commit_and_the_ack_leaves_one_effect() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.charges (account text, cents int)").await;
    let commands = jobs_of_examples(&bench);
    let jobs = repetitions(commands.len(), 15) * commands.len();
    let began_at = Instant::now();
    let mut worker = work(&bench, &by_kind(&commands, "kill -KILL $$"), &["--concurrency", "4"]);
    let requests = (0..jobs).map(|n| charge(n, n % commands.len()));
    bench.tenure.enqueue_many(requests).await.unwrap();
    let done = format!("(SELECT count(*) FROM tenure.job_history WHERE status = 'completed') = {jobs}");
    bench.until_within(&done, Duration::from_secs(40 + jobs as u64)).await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    eprintln!("{jobs} commands killed after their commit, in {:.1} s", began_at.elapsed().as_secs_f32());
    assert_eq!(
        bench.count("(SELECT DISTINCT account FROM public.charges) accounts").await,
        i64::try_from(jobs).unwrap()
    );
    assert_eq!(bench.count("public.charges").await, i64::try_from(jobs).unwrap());
    assert_eq!(bench.count("tenure.job_history WHERE fencing_token = 1").await, i64::try_from(jobs).unwrap());
    assert_eq!(bench.count("tenure.recovery_events").await, 0, "no attempt was lost");
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0));
    let log = worker.log();
    assert!(!log.contains("no longer owns") && !log.contains("\"WARN\"") && !log.contains(" WARN "), "{log}");
}

/// The worker dies with its commands: of some the job is completed, of others not, and none knows more.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_while_its_commands_commit_leaves_one_effect_of_each_job() {
    let bench = bench_with(|config| config.timing.renew_every = Duration::from_millis(300)).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.charges (account text, cents int)").await;
    let commands = jobs_of_examples(&bench);
    let exec = by_kind(&commands, "sleep 0.2");
    const JOBS: usize = 20;
    bench.tenure.enqueue_many((0..JOBS).map(|n| charge(n, n % commands.len()))).await.unwrap();
    let mut killed = 0;
    for round in 1..=3 {
        let mut worker = work(&bench, &exec, &["--concurrency", "8", "--keepalive"]);
        bench.until(&format!("(SELECT count(*) FROM public.charges) >= {}", round * 4)).await;
        worker.kill().await;
        killed += 1;
    }
    let _worker = work(&bench, &exec, &["--concurrency", "8", "--keepalive"]);
    bench.until_count("tenure.jobs", 0).await;
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
    eprintln!("{killed} workers killed; {} attempts were lost", bench.count("tenure.job_executions").await);
    assert_eq!(bench.count("public.charges").await, i64::try_from(JOBS).unwrap());
    assert_eq!(
        bench.count("(SELECT DISTINCT account FROM public.charges) accounts").await,
        i64::try_from(JOBS).unwrap()
    );
    assert_eq!(
        bench.count("tenure.job_history WHERE status = 'completed'").await,
        i64::try_from(JOBS).unwrap()
    );
}

const COMPLETE: &str = r#"psql "$DATABASE_URL" -Xqc "SELECT tenure.complete('$TENURE_JOB_ID', $TENURE_FENCING_TOKEN, '$TENURE_CLAIM_ID', '{\"by\": \"sql\"}')" >/dev/null || exit 99"#;

/// The command's commit has completed the job. Its exit code and its output change nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_its_command_has_completed_is_completed_whatever_the_command_does_then() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let folder = bench.config.runtime_dir.join("after");
    std::fs::create_dir_all(&folder).unwrap();
    let ways = [
        "exit 0",
        "exit 1",
        "exit 65",
        "kill -KILL $$",
        "echo '{\"output\": 1}'",
        "echo '{\"progress\": 90}'; exit 3",
    ];
    for more in [&[][..], &["--no-history"][..]] {
        let kept = i64::from(more.is_empty());
        let cases: Vec<_> = ways.iter().enumerate().map(|(n, way)| format!("way-{n}) {way};;")).collect();
        let once = r#"psql "$DATABASE_URL" -Xqc "SELECT tenure.once('$TENURE_JOB_ID', $TENURE_FENCING_TOKEN, '$TENURE_CLAIM_ID', 'a')" >/dev/null || exit 98"#;
        let exec = format!("{once}; {COMPLETE}; case $TENURE_KIND in {} esac", cases.join(" "));
        let mut worker = work(&bench, &exec, &[more, &["--concurrency", "4"]].concat());
        for n in 0..ways.len() {
            bench.tenure.enqueue(JobRequest::new("q", format!("way-{n}"), json!(n))).await.unwrap();
        }
        bench.until_count("tenure.jobs", 0).await;
        bench.until_stream_is_empty(Duration::from_secs(20)).await;
        let ends =
            "tenure.job_history WHERE status = 'completed' AND output = '{\"by\": \"sql\"}' AND attempt = 1";
        let ways = i64::try_from(ways.len()).unwrap();
        assert_eq!(bench.count(ends).await, kept * ways, "{more:?}");
        assert_eq!(bench.count("tenure.effects").await, kept * ways);
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0));
        let log = worker.log();
        assert!(!log.contains("no longer owns") && !log.contains("WARN") && !log.contains("lost"), "{log}");
        assert_eq!(
            log.matches("\"outcome\":\"completed\"").count() + log.matches("outcome=\"completed\"").count(),
            6,
            "{log}"
        );
        let rates = "SELECT sum(completed), sum(unkept), sum(retried) + sum(failed) + sum(released) FROM tenure.activity";
        assert_eq!(bench.text(rates).await, format!("({ways},{},0)", (1 - kept) * ways));
        for table in ["job_history", "effects", "activity"] {
            bench.execute(&format!("DELETE FROM tenure.{table}")).await;
        }
        assert_eq!(bench.count("tenure.recovery_events").await, 0);
    }
}

/// A heartbeat finds no row: the worker asks before it calls the job lost, and lets the command finish.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_on_after_it_has_completed_its_job() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(2);
        config.timing.ack_wait = Duration::from_secs(5);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let folder = bench.config.runtime_dir.join("goes-on");
    std::fs::create_dir_all(&folder).unwrap();
    for more in [&["--keepalive"][..], &[][..], &["--no-history", "--keepalive"][..]] {
        let exec = format!(
            "{COMPLETE}; touch {0}/completed; for n in 1 2 3 4 5 6 7 8; do echo '{{\"message\": \"more\"}}'; sleep 0.3; done; \
             touch {0}/finished; exit 5",
            folder.display()
        );
        let mut worker = work(&bench, &exec, more);
        bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
        until_file(&folder.join("completed")).await;
        until_file(&folder.join("finished")).await;
        bench.until_stream_is_empty(Duration::from_secs(20)).await;
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0));
        let log = worker.log();
        assert!(!log.contains("no longer owns") && !log.contains("WARN"), "{more:?}: {log}");
        assert_eq!(bench.count("tenure.recovery_events").await, 0);
        for file in ["completed", "finished"] {
            std::fs::remove_file(folder.join(file)).unwrap();
        }
    }
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 2);
}

/// A job without history leaves nothing to ask for. One that was reset leaves that: the worker does not take the later
/// attempt's completion for its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_history_that_another_attempt_completed_is_lost_to_the_first() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let folder = bench.config.runtime_dir.join("lost");
    std::fs::create_dir_all(&folder).unwrap();
    let exec = format!(
        "if [ $TENURE_ATTEMPT = 1 ]; then trap '' TERM; touch {0}/first; while [ ! -e {0}/go ]; do sleep 0.05; done; fi",
        folder.display()
    );
    // The second attempt needs a worker of its own: the first keeps the job until its command has ended.
    let mut first = work(&bench, &exec, &["--no-history"]);
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    until_file(&folder.join("first")).await;
    let mut second = work(&bench, &exec, &["--no-history"]);
    bench.until_count(&format!("tenure.recovery_events WHERE event = 'reset' AND job_id = '{job}'"), 1).await;
    bench.until_count("tenure.jobs", 0).await;
    std::fs::write(folder.join("go"), "").unwrap();
    first.until_log("no longer owns").await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    for worker in [&mut first, &mut second] {
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0));
    }
    assert_eq!(bench.value::<i64>("SELECT sum(completed)::bigint FROM tenure.activity").await, 1);
}

/// A handler in Rust whose database layer is not sqlx does the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_completes_its_job_by_sql_needs_no_more() {
    let bench = bench().await;
    let url = bench.config.database_url.clone();
    let handler = move |_: Value, ctx: tenure::JobContext| {
        let url = url.clone();
        async move {
            let attempt = format!("'{}', {}, '{}'", ctx.id(), ctx.token(), ctx.claim_id());
            let sql = format!("SELECT tenure.complete({attempt}, '\"by sql\"')");
            let done = Command::new(psql()).args(["-Xqc", &sql, &url]).stdout(Stdio::null()).status().await?;
            assert!(done.success());
            // Long enough for a look at jobs that write nothing.
            tokio::time::sleep(Duration::from_millis(600)).await;
            if ctx.cancel_reason().is_some() {
                Ok(())
            } else {
                Err(tenure::JobError::msg("as if it had failed"))
            }
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 2);
    let worker = Running::start(worker);
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    let done = bench.until_finished(job).await;
    assert_eq!((done.status, done.output), (Status::Completed, Some(json!("by sql"))));
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
    assert_eq!(bench.text("SELECT sum(completed), sum(retried) FROM tenure.activity").await, "(1,0)");
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
}
