//! Sealed: what the jobs of a kind with a codec carry is opened by processes with the key alone, and by no server.
//!
//! Not here: the form of a sealed value (`codec::job`).

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tenure::{
    EnqueueError, Job, JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Tenure, Worker,
    WorkerBuilder,
    batches::{Batch, BatchContext, Item, Verdict},
    codec::{Codec, CodecError, Codecs, Part, Place, Sealed, SealedWith},
    jobs::WaitError,
    rows::JobFilter,
    schedules::Schedule,
};
use tokio::runtime::Handle;

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Running, bench, bench_with_servers},
};

#[path = "../../examples/sealed/keyring.rs"]
pub mod keyring;

use keyring::Keyring;

const OLDER: (&str, [u8; 32]) = ("2026-10", [1; 32]);
const NEWER: (&str, [u8; 32]) = ("2026-11", [2; 32]);

/// No encoding of bytes contains it by chance.
const SECRET: &str = "4111-1111-1111-1111-is-secret";

async fn process(bench: &Bench, keys: &[(&str, [u8; 32])]) -> Tenure {
    let codecs = ["card", "card.part", "typed"]
        .into_iter()
        .fold(Codecs::new(), |codecs, kind| codecs.kind(kind, Keyring::new(keys)));
    Tenure::builder(&bench.config).codecs(codecs).connect().await.unwrap()
}

fn card(payload: Value) -> JobRequest {
    JobRequest::new("q", "card", payload)
}

/// A worker whose jobs return what they got.
fn echoing(tenure: &Tenure) -> WorkerBuilder {
    let echo = async |payload: Value, _: JobContext| Outcome::done(payload);
    let options =
        KindOptions::new().backoff(tenure::Backoff { first: Duration::ZERO, ..tenure::Backoff::DEFAULT });
    Worker::builder(tenure).handle_kind("card", options, echo).concurrency("q", 4)
}

fn contains(folder: &Path, what: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path)
                && String::from_utf8_lossy(&bytes).contains(what)
            {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Typed {
    n: u32,
}

impl Job for Typed {
    const KIND: &'static str = "typed";
    const QUEUE: &'static str = "q";
    const MAX_ATTEMPTS: u32 = 1;
}

/// All that a handler can leave.
async fn leave_all(payload: Value, ctx: JobContext) -> Result<Outcome, JobError> {
    assert_eq!(payload["card"], SECRET);
    let step: String = ctx.step("step", async || Ok(format!("step {SECRET}"))).await?;
    let once: String = ctx.once("once", async |_| Ok(format!("once {SECRET}"))).await?;
    assert!(step.contains(SECRET) && once.contains(SECRET));
    if ctx.attempt() == 1 {
        ctx.save_checkpoint(&json!({ "at": SECRET })).await?;
        // What was recorded does not fit, and the error says so.
        let misfit = ctx.clone();
        let error = async move { misfit.once::<u32>("once", async |_| Ok(1)).await }.await.unwrap_err();
        return Err(JobError::retry_after(Duration::ZERO, error.to_string()));
    }
    assert_eq!(ctx.checkpoint::<Value>().unwrap()["at"], SECRET);
    let parts: Vec<String> = ctx.all("parts", [JobRequest::new("q", "card.part", json!(SECRET))]).await?;
    assert_eq!(parts, [SECRET]);
    Outcome::done(json!({ "receipt": SECRET }))
}

/// On one thread, so that the log has what tenure's tasks and the clients of both servers say.
#[tokio::test]
async fn no_server_and_no_log_has_a_plain_byte() {
    // Beside another subscriber, as in `logs::what_a_handler_logs_is_kept_if_the_worker_keeps_it`.
    let _another = tracing::Dispatch::new(tracing_subscriber::registry());
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_env_filter("trace").with_writer(move || writer.clone()).finish();
    let bench = bench_with_servers(|_| {}).await;
    for setting in
        ["log_statement = 'all'", "log_min_duration_statement = 0", "log_parameter_max_length = -1"]
    {
        bench.execute(&format!("ALTER SYSTEM SET {setting}")).await;
    }
    bench.execute("SELECT pg_reload_conf()").await;
    bench.until("(SELECT current_setting('log_statement') = 'all')").await;
    let guard = tracing::subscriber::set_default(subscriber);
    let tenure = process(&bench, &[NEWER]).await;
    tenure.setup(&["q".into()]).await.unwrap();
    let part = async |payload: Value, _: JobContext| Outcome::done(payload);
    let typed = async |_: Typed, _: JobContext| Ok::<_, JobError>(());
    let worker = Worker::builder(&tenure)
        .handlers_on(Handle::current())
        .handle_kind("card", KindOptions::new(), leave_all)
        .handle_kind("card.part", KindOptions::new(), part)
        .handle(typed)
        .concurrency("q", 4);
    let payload = json!({ "card": SECRET });
    let first = tenure.enqueue(card(payload.clone())).await.unwrap().id;
    // A submission whose producer seals it.
    let sealed = tenure.codecs().seal("card", Part::Payload, payload.to_string()).unwrap();
    bench.publish("q.card", &sealed).await;
    let misfit = JobRequest::new("q", "typed", json!({ "n": SECRET })).max_attempts(1);
    let misfit = tenure.enqueue(misfit).await.unwrap().id;
    let marker = "a-plain-value-that-the-search-finds";
    bench.tenure.enqueue(card(json!(marker)).delay(Duration::from_secs(3_600))).await.unwrap();
    let folder = bench.config.runtime_dir.parent().unwrap();
    while !contains(folder, "tenure.sealed").iter().any(|path| path.contains("/nats/")) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(contains(folder, SECRET), [] as [String; 0]);
    let worker = Running::start(worker);
    let receipt: Value = tenure.wait_for(first, Duration::from_secs(20)).await.unwrap();
    assert_eq!(receipt["receipt"], SECRET);
    bench.until("(SELECT count(*) FROM tenure.job_history WHERE kind = 'card') = 2").await;
    bench.until("EXISTS (SELECT FROM tenure.dead_letter_jobs WHERE kind = 'typed')").await;
    let why = tenure.dead_letter(misfit).await.unwrap().unwrap();
    assert_eq!(why.category, "invalid_payload");
    assert!(why.last_error.ends_with("line 1 column 36; the value is sealed"), "{}", why.last_error);
    worker.stop().await;
    drop(guard);
    bench.execute("CHECKPOINT").await;
    assert!(contains(folder, marker).len() > 2, "rows, WAL and log");
    assert_eq!(contains(folder, SECRET), [] as [String; 0]);
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("attempt ended") && log.contains("does not fit its type"), "{} bytes", log.len());
    assert!(!log.contains(SECRET));
    tenure.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_rotated_while_jobs_wait_and_a_worker_without_it_puts_them_off() {
    let bench = bench().await;
    let (before, rotated) = (process(&bench, &[OLDER]).await, process(&bench, &[NEWER, OLDER]).await);
    let old = before.enqueue(card(json!("old"))).await.unwrap().id;
    let new = rotated.enqueue(card(json!("new"))).await.unwrap().id;
    let worker = Running::start(echoing(&before));
    assert_eq!(before.wait_for::<Value>(old, Duration::from_secs(10)).await.unwrap(), "old");
    let put_off = "EXISTS (SELECT FROM tenure.jobs WHERE status = 'queued' AND attempt = 0
                                                     AND scheduled_at > now() + interval '15 s')";
    bench.until(put_off).await;
    worker.stop().await;
    let history = bench.tenure.executions(new).await.unwrap();
    assert_eq!(history[0].outcome.as_deref(), Some("snoozed"));
    let why = "the payload cannot be opened: this process has no key \"2026-11\"";
    assert_eq!(history[0].error.as_deref(), Some(why));
    // So does a worker without any codec.
    bench.tenure.retry(new).await.unwrap();
    let worker = Running::start(echoing(&bench.tenure));
    bench.until(put_off).await;
    worker.stop().await;
    let history = bench.tenure.executions(new).await.unwrap();
    assert!(history.iter().any(|of| of.error.as_ref().unwrap().ends_with("no codec for the kind \"card\"")));
    bench.tenure.retry(new).await.unwrap();
    let worker = Running::start(echoing(&rotated));
    assert_eq!(rotated.wait_for::<Value>(new, Duration::from_secs(10)).await.unwrap(), "new");
    worker.stop().await;
    // Each output has the newest key of the process that ran the job.
    for (job, key) in [(old, "2026-10"), (new, "2026-11")] {
        let row = bench.tenure.job(job).await.unwrap().unwrap();
        let output = row.output_json().unwrap().get();
        assert_eq!((row.attempt, SealedWith::of(output).unwrap().key.as_str()), (1, key));
    }
    // serde's error would quote the output.
    let error = rotated.wait_for::<u32>(new, Duration::from_secs(1)).await.unwrap_err().to_string();
    assert!(error.ends_with("line 1 column 5; the value is sealed"), "{error}");
    let error = before.wait_for::<Value>(new, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, WaitError::Sealed { error: CodecError::UnknownKey(_), .. }), "{error}");
    let error = bench.tenure.wait_for::<Value>(old, Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().ends_with("cannot be opened: this process has no codec for the kind \"card\""));
    bench.every_job_is_as_it_must_be().await;
}

/// The end of a quarantine calls its jobs, and so a job that waits for a key must not be among them: it would be claimed
/// each second.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_key_waits_although_its_kind_is_watched() {
    let bench = bench().await;
    let tenure = process(&bench, &[NEWER]).await;
    for kind in ["card", "plain"] {
        bench.tenure.put_quarantine(kind, tenure::kinds::Quarantine::when_failed(0.9)).await.unwrap();
    }
    let done = async |_: Value, _: JobContext| Ok::<_, JobError>(());
    let worker = Running::start(echoing(&bench.tenure).handle_kind("plain", KindOptions::new(), done));
    let counted = |n: u32| format!("(SELECT coalesce(sum(ended), 0) FROM tenure.quarantine_counts) >= {n}");
    // The worker knows the rules once it counts.
    let plain = || JobRequest::new("q", "plain", json!(1));
    while !bench.value::<bool>(&format!("SELECT {}", counted(1))).await {
        bench.tenure.enqueue(plain()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let job = tenure.enqueue(card(json!(1))).await.unwrap().id;
    bench.until("EXISTS (SELECT FROM tenure.job_executions WHERE outcome = 'snoozed')").await;
    // A later report of the worker would have told of the job.
    let before: i64 = bench.value("SELECT sum(ended)::bigint FROM tenure.quarantine_counts").await;
    bench.tenure.enqueue(plain()).await.unwrap();
    bench.until(&counted(u32::try_from(before).unwrap() + 1)).await;
    assert_eq!(bench.count("tenure.quarantined_jobs").await, 0);
    assert_eq!(bench.tenure.executions(job).await.unwrap().len(), 1);
    worker.stop().await;
}

/// The payload has the older key, the step's result the newer one, and the next attempt is made by a worker that was
/// left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_with_a_newer_key_puts_the_job_off_and_charges_nothing() {
    let bench = bench().await;
    let (before, rotated) = (process(&bench, &[OLDER]).await, process(&bench, &[NEWER, OLDER]).await);
    let handler = async |_: Value, ctx: JobContext| {
        let value: u32 = ctx.step("step", async || Ok(7)).await?;
        if ctx.attempt() == 1 {
            return Err(JobError::retry_after(Duration::from_millis(200), "once"));
        }
        Outcome::done(value)
    };
    let worker = |tenure: &Tenure| {
        Running::start(
            Worker::builder(tenure).handle_kind("card", KindOptions::new(), handler).concurrency("q", 1),
        )
    };
    let job = before.enqueue(card(json!(1))).await.unwrap().id;
    let first = worker(&rotated);
    bench.until("EXISTS (SELECT FROM tenure.job_executions WHERE outcome = 'retried')").await;
    first.stop().await;
    let second = worker(&before);
    bench
        .until(
            "EXISTS (SELECT FROM tenure.jobs WHERE attempt = 1 AND scheduled_at > now() + interval '15 s')",
        )
        .await;
    second.stop().await;
    let history = bench.tenure.executions(job).await.unwrap();
    let why = "the recorded result of step \"step\" cannot be opened: this process has no key \"2026-11\"";
    assert!(
        history.iter().any(|of| of.outcome.as_deref() == Some("snoozed") && of.error.as_deref() == Some(why))
    );
    bench.tenure.retry(job).await.unwrap();
    let third = worker(&rotated);
    assert_eq!(rotated.wait_for::<u32>(job, Duration::from_secs(10)).await.unwrap(), 7);
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_or_belongs_elsewhere_reaches_no_handler() {
    let bench = bench().await;
    let tenure = process(&bench, &[NEWER]).await;
    let ran = Arc::new(Mutex::new(Vec::new()));
    let seen = ran.clone();
    let note = move |payload: Value, ctx: JobContext| {
        seen.lock().unwrap().push(payload.to_string());
        async move { Ok::<_, JobError>(ctx.checkpoint::<Value>().is_some()) }
    };
    let fit = tenure.enqueue(card(json!("fit")).delay(Duration::from_secs(1))).await.unwrap().id;
    let codecs = tenure.codecs();
    let of_output = codecs.seal("card", Part::Output, "\"output\"".into()).unwrap();
    let of_kind = codecs.seal("card.part", Part::Payload, "\"part\"".into()).unwrap();
    let mut renamed: Value = serde_json::from_str(&of_kind).unwrap();
    renamed["tenure.sealed"]["kind"] = json!("card");
    let mut short: Value = serde_json::from_str(&of_output).unwrap();
    short["tenure.sealed"]["data"] = json!("AAAA");
    let mut garbage = short.clone();
    garbage["tenure.sealed"]["data"] = json!("!");
    let wrong = [
        (of_output, "it was changed, or belongs to another kind or another part of a job"),
        (of_kind, "it was sealed for the kind \"card.part\", not for \"card\""),
        (renamed.to_string(), "it was changed, or belongs"),
        (short.to_string(), "it was changed, or belongs"),
        (garbage.to_string(), "its data is not base64"),
    ];
    for (payload, _) in &wrong {
        // By a producer without the codec.
        bench
            .tenure
            .enqueue(JobRequest::from_json("q", "card", payload.as_str()).max_attempts(1))
            .await
            .unwrap();
    }
    let checkpoint = codecs.seal("card", Part::Payload, "1".into()).unwrap();
    sqlx::query("UPDATE tenure.jobs SET checkpoint = $1::text::jsonb, max_attempts = 1 WHERE id = $2")
        .bind(checkpoint)
        .bind(fit)
        .execute(&bench.pool)
        .await
        .unwrap();
    let plain = bench.tenure.enqueue(card(json!("plain"))).await.unwrap().id;
    let worker = Worker::builder(&tenure).handle_kind("card", KindOptions::new(), note).concurrency("q", 4);
    let worker = Running::start(worker);
    bench.until("(SELECT count(*) FROM tenure.dead_letter_jobs) = 6").await;
    bench.until_finished(plain).await;
    worker.stop().await;
    for (_, why) in wrong {
        let letters = "tenure.dead_letter_jobs WHERE category = 'invalid_payload' AND strpos(last_error, ";
        assert!(bench.count(&format!("{letters} '{why}') > 0")).await > 0, "{why}");
    }
    let dead = bench.tenure.dead_letter(fit).await.unwrap().unwrap();
    assert!(
        dead.last_error.starts_with("the checkpoint cannot be opened: it was changed"),
        "{}",
        dead.last_error
    );
    // What was enqueued without the codec runs as it is.
    assert_eq!(*ran.lock().unwrap(), ["\"plain\""]);
}

/// Fails, or names an invalid key.
struct Broken(&'static str);

impl Codec for Broken {
    fn seal(&self, place: Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        match (self.0, place.part) {
            ("fails", _) | ("output", Part::Output) => Err(CodecError::failed("the module does not answer")),
            ("unnamed", _) => Ok(Sealed { key: String::new(), bytes: plain.to_vec() }),
            _ => Ok(Sealed { key: "k".into(), bytes: [plain, &vec![b' '; 200_000]].concat() }),
        }
    }

    fn open(&self, _: Place<'_>, _: &str, sealed: &[u8]) -> Result<Vec<u8>, CodecError> {
        Ok(sealed.to_vec())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_codec_that_fails_costs_an_attempt_and_enqueues_nothing() {
    let bench = bench().await;
    let with = async |how| {
        let codecs = Codecs::new().kind("card", Broken(how));
        Tenure::builder(&bench.config).codecs(codecs).connect().await.unwrap()
    };
    for (how, why) in [
        ("fails", "the payload cannot be sealed: the module does not answer"),
        ("unnamed", "names a key of 0 bytes; it must have 1 to 100, without control characters"),
        ("large", "bytes, but at most 262144 are allowed"),
    ] {
        let tenure = with(how).await;
        let error = tenure.enqueue(card(json!(1))).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(matches!(error, EnqueueError::Codec(_) | EnqueueError::TooLarge { .. }));
    }
    assert_eq!(bench.count("tenure.jobs").await, 0);
    let tenure = with("output").await;
    let job = bench.tenure.enqueue(card(json!(1)).max_attempts(2)).await.unwrap().id;
    let worker = Running::start(echoing(&tenure));
    bench.until("EXISTS (SELECT FROM tenure.dead_letter_jobs)").await;
    worker.stop().await;
    let dead = bench.tenure.dead_letter(job).await.unwrap().unwrap();
    let why = "the output cannot be sealed: the module does not answer";
    assert_eq!((dead.attempt, dead.last_error.as_str()), (2, why));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_completions_by_hand_groups_and_schedules_are_sealed() {
    let bench = bench().await;
    let tenure = process(&bench, &[NEWER]).await;
    let batch = async |items: Vec<Item<Typed>>, _: BatchContext| {
        let double = |item: Item<Typed>| {
            let twice = item.n * 2;
            item.done(twice)
        };
        items.into_iter().map(double).collect::<Vec<Verdict>>()
    };
    let pool = bench.pool.clone();
    let by_hand = move |payload: Value, ctx: JobContext| {
        let pool = pool.clone();
        async move { ctx.complete_in(pool.begin().await?, Some(payload)).await }
    };
    let follow = async |_: Value, ctx: JobContext| Outcome::done(ctx.outputs::<u32>().await?);
    let worker = Worker::builder(&tenure)
        .handle_batch(Batch::up_to(8).within(Duration::from_millis(10)), batch)
        .handle_kind("card.part", KindOptions::new(), by_hand)
        .handle_kind("card", KindOptions::new(), follow)
        .concurrency("q", 8);
    let members: Vec<JobRequest> = vec![Typed { n: 21 }.into(), JobRequest::new("q", "card.part", json!(43))];
    let follower = tenure.group(members).then(card(json!(null))).await.unwrap().id;
    let worker = Running::start(worker);
    assert_eq!(tenure.wait_for::<Vec<u32>>(follower, Duration::from_secs(10)).await.unwrap(), [42, 43]);
    assert_eq!(tenure.call(Typed { n: 4 }).within::<u32>(Duration::from_secs(10)).await.unwrap(), 8);

    let again = tenure.run_again(follower).await.unwrap().id;
    bench.until_finished(again).await;
    tenure.put_schedule(Schedule::new("daily", "0 3 1 1 *", card(json!("tick")))).await.unwrap();
    let ticked = tenure.run_schedule("daily").await.unwrap().id;
    bench.until_finished(ticked).await;
    worker.stop().await;
    // Each value was sealed once.
    for (job, plain) in [(follower, "null"), (again, "null"), (ticked, "\"tick\"")] {
        let row = bench.tenure.job(job).await.unwrap().unwrap();
        let payload = row.payload_json().unwrap().get().to_owned();
        assert!(row.status == Status::Completed && SealedWith::of(&payload).is_some(), "{row:?}");
        assert_eq!(tenure.codecs().open(Part::Payload, payload).unwrap(), plain);
    }
    let sealed = "tenure.job_history WHERE output IS NOT NULL AND NOT output ? 'tenure.sealed'";
    assert_eq!(bench.count(sealed).await, 0);
    let ticking = Schedule::new("hourly", "0 * * * *", card(json!({}))).tick_field("at");
    assert!(!format!("{:?}", card(json!(SECRET))).contains(SECRET));
    let error = tenure.put_schedule(ticking).await.unwrap_err().to_string();
    assert!(error.contains("tick_field cannot be put into a payload that a codec seals"), "{error}");
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_id_of_the_key() {
    let bench = bench().await;
    let tenure = process(&bench, &[NEWER]).await;
    let id = tenure.enqueue(card(json!(SECRET)).delay(Duration::from_secs(60))).await.unwrap().id;
    let shown = bench.program(&["jobs", "show", &id.to_string()]).output().await.unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" sealed with key \"2026-11\"\n"), "{shown}");
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let page = dashboard.get(&format!("/jobs/{id}")).await.body;
    assert!(page.contains("sealed with key &quot;2026-11&quot;, "), "{page}");
    // A search finds the jobs of a key: which are left, before it is forgotten?
    assert!(dashboard.get("/jobs?q=2026-11").await.body.contains(&id.to_string()));
    assert_eq!(bench.tenure.jobs(&JobFilter::new().text("2026-11"), 9).await.unwrap().len(), 1);
    assert_eq!(bench.tenure.jobs(&JobFilter::new().text("2026-10"), 9).await.unwrap().len(), 0);
}
