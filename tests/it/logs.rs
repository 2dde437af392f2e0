//! Logs of jobs: what commands and handlers print is kept with the job, the end of each of its last attempts.
//!
//! Not here: which lines stay (`logs::run`), and the log of a worker (`log`).

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobLogLayer, JobRequest, KindOptions, Tenure, Worker,
    codec::{Codec, CodecError, Codecs, Place, Sealed},
};
use tokio::runtime::Handle;
use tracing_subscriber::{Layer, filter::LevelFilter, layer::SubscriberExt};

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Child, Running, bench, bench_with, statement},
};

async fn texts(bench: &Bench, job: JobId) -> Vec<String> {
    bench.tenure.job_logs(job).await.unwrap().into_iter().map(|log| log.text).collect()
}

async fn run(bench: &Bench, arguments: &[&str]) -> (i32, String, String) {
    let ran = bench.program(arguments).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap(), text(ran.stdout), text(ran.stderr))
}

fn keeping(bench: &Bench, arguments: &[&str]) -> Child {
    let mut program = bench.program(arguments);
    program.env("TENURE_JOB_LOGS", "true");
    Child::spawn(program, "logs")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_prints_is_kept_with_each_attempt() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    // Reports and outputs are no lines of the log.
    let command = r#"echo out of $TENURE_ATTEMPT; echo error >&2; echo '{"progress": 50}'; echo '{"output": 1}'
                     [ $TENURE_ATTEMPT -ge 5 ]"#;
    let worker = keeping(&bench, &["work", "q", "--exec", command]);
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!("secret"))).await.unwrap().id;
    while !bench.tenure.job(job).await.unwrap().unwrap().status.is_finished() {
        // Without the pause after a failure.
        bench.tenure.retry(job).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let kept = texts(&bench, job).await;
    assert_eq!(kept.len(), 3, "{kept:?}");
    for (n, text) in [5, 4, 3].into_iter().zip(&kept) {
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["error".to_owned(), format!("out of {n}")]);
    }
    let quiet = bench.tenure.enqueue(JobRequest::new("other", "k", json!(1))).await.unwrap().id;
    let (code, out, _) = run(&bench, &["jobs", "log", &job.to_string()]).await;
    assert!(code == 0 && out.contains("out of 5") && !out.contains("out of 4"), "{out}");
    let (_, out, _) = run(&bench, &["jobs", "log", "--all", &job.to_string()]).await;
    assert!(out.find("out of 3") < out.find("out of 5") && out.contains("attempt with token 4"), "{out}");
    let (_, out, _) = run(&bench, &["jobs", "log", &job.to_string(), "--output", "json"]).await;
    let kept: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert_eq!((kept.len(), &kept[0]["is_cut"]), (1, &json!(false)));
    let (code, _, said) = run(&bench, &["jobs", "log", &quiet.to_string()]).await;
    assert!(code == 0 && said.contains("a worker or gateway with TENURE_JOB_LOGS=true keeps it"), "{said}");
    let (code, _, said) = run(&bench, &["jobs", "log", &JobId::generate().to_string()]).await;
    assert!(code == 1 && said.contains("does not exist"), "{said}");

    let link = [("TENURE_SERVE_LOG_URL", "https://logs.example.com/?q={job_id}&x=1")];
    let page = Dashboard::start(&bench, &[], &link).await.get(&format!("/jobs/{job}")).await.body;
    assert!(
        page.contains("out of 5") && page.contains(&format!("https://logs.example.com/?q={job}&amp;x=1")),
        "{page}"
    );
    let hidden = Dashboard::start(&bench, &["--hide-payloads", "--api"], &[]).await;
    assert!(!hidden.get(&format!("/jobs/{job}")).await.body.contains("out of 5"));
    let refused = hidden.get(&format!("/api/v1/jobs/{job}/logs")).await;
    assert!(refused.status == 403 && refused.body.contains("logs_hidden"), "{}", refused.body);
    drop(worker);
}

/// The worker dies in the middle of an attempt: what it had kept by then stays, beside the next attempt's.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_an_attempt_outlives_its_worker() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let command = "echo before the end of $TENURE_FENCING_TOKEN; [ $TENURE_FENCING_TOKEN = 2 ] || sleep 60";
    let mut first = keeping(&bench, &["work", "q", "--exec", command, "--keepalive"]);
    let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    bench.until_within("EXISTS (SELECT FROM tenure.job_logs)", Duration::from_secs(20)).await;
    first.signal(Signal::KILL);
    first.wait().await;
    let second = keeping(&bench, &["work", "q", "--exec", command, "--keepalive"]);
    bench.until_finished(job).await;
    assert_eq!(texts(&bench, job).await, ["before the end of 2\n", "before the end of 1\n"]);
    drop(second);
}

/// The log of a process that stays: each line belongs to the job that the process has.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stays_logs_for_each_of_its_jobs() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let script = r#"while read -r line; do
        id=$(printf '%s' "$line" | sed 's/.*"claim_id":"\([^"]*\)".*/\1/')
        n=$(printf '%s' "$line" | sed 's/.*"payload":\([0-9]*\).*/\1/')
        echo "line of $n"; printf '{"settle": "complete", "claim_id": "%s"}\n' "$id"
    done"#;
    let worker = keeping(&bench, &["work", "q", "--exec", script, "--stay"]);
    let jobs = bench.tenure.enqueue_many((1..=3).map(|n| JobRequest::new("q", "k", json!(n)))).await.unwrap();
    for (n, job) in (1..=3).zip(&jobs) {
        bench.until_finished(job.id).await;
        assert_eq!(texts(&bench, job.id).await, [format!("line of {n}\n")]);
    }
    drop(worker);
}

/// On one thread, which has a subscriber of its own.
#[tokio::test]
async fn what_a_handler_logs_is_kept_if_the_worker_keeps_it() {
    // While a process has one subscriber, `tracing` asks the thread that first meets a span for its subscriber. The thread of
    // another test has none, and so switches the span off here, too. While a process has two, `tracing` asks both.
    let _another = tracing::Dispatch::new(tracing_subscriber::registry());
    for keeps in [true, false] {
        let bench = bench_with(|config| config.job_logs = keeps).await;
        let subscriber =
            tracing_subscriber::registry().with(JobLogLayer::new().with_filter(LevelFilter::INFO));
        let guard = tracing::subscriber::set_default(subscriber);
        let handler = async |n: u32, ctx: JobContext| {
            tracing::info!(n, who = "ada", "charging");
            tracing::debug!("not at this level");
            ctx.log(&format!("a line of {n}"));
            tokio::task::yield_now().await;
            tracing::warn_span!("inner").in_scope(|| tracing::warn!("in a span of the handler"));
            Ok::<_, JobError>(())
        };
        let handler = move |payload: Value, ctx| handler(serde_json::from_value(payload).unwrap(), ctx);
        let worker = Worker::builder(&bench.tenure)
            .handlers_on(Handle::current())
            .handle_kind("k", KindOptions::new(), handler)
            .concurrency("q", 4);
        let worker = Running::start(worker);
        let jobs =
            bench.tenure.enqueue_many((1..=4).map(|n| JobRequest::new("q", "k", json!(n)))).await.unwrap();
        for (n, job) in (1..=4).zip(&jobs) {
            bench.until_finished(job.id).await;
            let kept = texts(&bench, job.id).await;
            if !keeps {
                assert_eq!(kept, [] as [String; 0]);
                continue;
            }
            let lines: Vec<_> = kept[0].lines().collect();
            assert_eq!(lines.len(), 3, "{kept:?}");
            assert!(lines[0].ends_with(&format!("INFO it::logs: charging n={n} who=\"ada\"")), "{kept:?}");
            assert_eq!(lines[1], format!("a line of {n}"));
            assert!(lines[2].ends_with("WARN it::logs: in a span of the handler"), "{kept:?}");
        }
        worker.stop().await;
        drop(guard);
    }
}

/// A write of the running attempt waits for a lock while the attempt prints more and dies: nothing of its log is lost, and
/// the last write does not overtake it. A lock that lasts does not hold the end of the attempt up.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_lines_of_an_attempt_are_kept_although_an_earlier_write_is_under_way() {
    let bench = bench_with(|config| config.job_logs = true).await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let handler = {
        let gate = gate.clone();
        move |_: Value, ctx: JobContext| {
            let gate = gate.clone();
            async move {
                ctx.log("first");
                gate.acquire().await.unwrap().forget();
                ctx.log("second");
                Err::<(), _>(JobError::permanent("no"))
            }
        }
    };
    let options = KindOptions::new().keepalive_every(Duration::from_millis(200));
    let worker = Worker::builder(&bench.tenure).handle_kind("k", options, handler).concurrency("q", 2);
    let worker = Running::start(worker);
    for released_at_once in [true, false] {
        let job = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
        bench
            .until(&format!("EXISTS (SELECT FROM tenure.jobs WHERE id = '{job}' AND status = 'processing')"))
            .await;
        let mut lock = bench.pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE tenure.job_logs").execute(&mut *lock).await.unwrap();
        let waits = "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                                 AND wait_event_type = 'Lock' AND query LIKE '%write_logs%')";
        bench.until_within(waits, Duration::from_secs(10)).await;
        gate.add_permits(1);
        if released_at_once {
            lock.commit().await.unwrap();
            bench.until_finished(job).await;
            assert_eq!(texts(&bench, job).await, ["first\nsecond\n"]);
        } else {
            bench.until_finished(job).await;
            lock.rollback().await.unwrap();
        }
    }
    worker.stop().await;
}

struct Plain;

impl Codec for Plain {
    fn seal(&self, _: Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        Ok(Sealed { key: "k".into(), bytes: plain.to_vec() })
    }

    fn open(&self, _: Place<'_>, _: &str, sealed: &[u8]) -> Result<Vec<u8>, CodecError> {
        Ok(sealed.to_vec())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_attempt_and_a_sealed_kind_keep_nothing_and_logs_leave_with_their_jobs() {
    let bench = bench_with(|config| config.job_logs = true).await;
    let codecs = Codecs::new().kind("sealed", Plain);
    let tenure = Tenure::builder(&bench.config).codecs(codecs).connect().await.unwrap();
    let say = async |_: Value, ctx: JobContext| {
        ctx.log("\u{1b}[31mred and \0");
        Err::<(), _>(JobError::permanent("no"))
    };
    let worker = Worker::builder(&tenure)
        .handle_kind("sealed", KindOptions::new(), say)
        .handle_kind("k", KindOptions::new(), say)
        .concurrency("q", 2);
    let worker = Running::start(worker);
    let job = |kind| JobRequest::new("q", kind, json!(1));
    let sealed = tenure.enqueue(job("sealed")).await.unwrap().id;
    let plain = tenure.enqueue(job("k")).await.unwrap().id;
    bench.until("(SELECT count(*) FROM tenure.dead_letter_jobs) = 2").await;
    worker.stop().await;
    assert_eq!(texts(&bench, sealed).await, [] as [String; 0]);
    assert_eq!(texts(&bench, plain).await, ["\u{1b}[31mred and \u{fffd}\n"]);
    let (_, out, _) = run(&bench, &["jobs", "log", &plain.to_string()]).await;
    assert!(!out.contains('\u{1b}'), "{out:?}");
    // The attempt has ended: its token writes no more, although another job is live.
    tenure.enqueue(job("k")).await.unwrap();
    let late = format!(
        "PREPARE late AS {}; EXECUTE late ('{{{plain}}}', '{{1}}', '{{late}}', '{{f}}')",
        statement("write_logs")
    );
    let mut connection = bench.pool.acquire().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(late)).execute(&mut *connection).await.unwrap();
    assert_eq!(texts(&bench, plain).await, ["\u{1b}[31mred and \u{fffd}\n"]);
    bench.tenure.purge_dead(&tenure::rows::DeadFilter::new()).await.unwrap();
    assert_eq!(bench.count("tenure.job_logs").await, 0);
    tenure.close().await;
}
