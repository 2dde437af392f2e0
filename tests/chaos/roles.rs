//! The processes of a chaos run: workers whose handlers leave effects, and a producer that keeps a journal.

use std::{
    io::Write,
    path::Path,
    time::{Duration, SystemTime},
};

use async_nats::jetstream;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};
use tenure::{
    Backoff, Config, FencingToken, Job, JobContext, JobError, JobRequest, KindOptions, Outcome, Tenure,
    Worker, codec::Part,
};
use uuid::Uuid;

use crate::{
    graphs::{self, children, note_tried},
    kinds::{Batched, Hidden, TICK, batch, codecs, run_batch, run_hidden},
};

/// A job, numbered by the producer, so that the account does not depend on tenure's ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    pub n: Uuid,
    pub act: String,
    pub lasts_ms: u64,
    #[serde(default)]
    pub lane: Option<String>,
    /// Whether a worker in another language runs it.
    #[serde(default)]
    pub foreign: bool,
    /// Whether it has a tag.
    #[serde(default)]
    pub tagged: bool,
    /// How it is called, and what its row shows of it.
    #[serde(default)]
    pub form: Form,
    /// The key of a debounced job, and the number of the payload among those of its key.
    #[serde(default)]
    pub debounce: Option<String>,
    #[serde(default)]
    pub seq: Option<u32>,
    /// Of a member of a group: the number of the job that follows it.
    #[serde(default)]
    pub before: Option<Uuid>,
    /// Of a job that follows others: their numbers, in order, and what it does when one of them fails.
    #[serde(default)]
    pub members: Vec<Uuid>,
    #[serde(default)]
    pub on_failure: Option<String>,
    /// The number of the member that adds others while it runs, and theirs.
    #[serde(default)]
    pub adder: Option<Uuid>,
    #[serde(default)]
    pub added: Vec<Uuid>,
    /// The numbers of the jobs that it enqueues itself.
    #[serde(default)]
    pub children: Vec<Uuid>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    #[default]
    Plain,
    /// In batches with others.
    Batched,
    /// Sealed.
    Hidden,
}

/// The tag of a third of the jobs.
pub const TAG: &str = "chaos";
/// The queue with lanes.
pub const LANES: &str = "chaos-lanes";
/// The queue of the workers in other languages.
pub const FOREIGN_QUEUE: &str = "chaos-foreign";
/// How many jobs of a lane may run at once.
pub const RUNNING: u32 = 3;

/// How many jobs of a lane may start in a second on average, and at once, if the producer sends this many in total: the
/// busiest lane gets a twelfth of them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few jobs")]
pub fn lane_rate(of_producer: f64) -> u32 {
    (of_producer / 6.0).ceil().max(1.0) as u32
}

impl Job for Task {
    const KIND: &'static str = "task";
    const QUEUE: &'static str = "chaos";
    /// High enough that the deaths of workers never use up a job's attempts.
    const MAX_ATTEMPTS: u32 = 60;
}

/// Acts, and how often each occurs in a thousand jobs.
const ACTS: &[(&str, u32)] = &[
    ("once", 330),
    ("steps", 50),
    ("asks", 40),
    ("all", 25),
    ("dies at first", 15),
    ("fenced", 250),
    ("together", 200),
    ("fails at first", 60),
    ("silent at first", 25),
    ("blocks", 25),
    ("snoozes", 25),
    ("never", 20),
    ("panics", 10),
    ("aborts at first", 5),
];

fn act() -> String {
    let mut at = rand::random_range(0..ACTS.iter().map(|(_, share)| share).sum::<u32>());
    for (act, share) in ACTS {
        if at < *share {
            return (*act).to_owned();
        }
        at -= share;
    }
    ACTS[0].0.to_owned()
}

pub fn task() -> Task {
    let lasts_ms = if rand::random_range(0..10) == 0 { 2_000 } else { 300 };
    // A quarter of the jobs have a lane, and a third of these the first one.
    let lane = match rand::random_range(0..44) {
        at @ 0..11 => Some(format!("l{}", if at < 8 { at } else { 0 })),
        _ => None,
    };
    let lasts_ms = rand::random_range(0..lasts_ms);
    let foreign = lane.is_none() && rand::random_range(0..3) == 0;
    let form = match rand::random_range(0..8) {
        _ if foreign => Form::Plain,
        0 => Form::Batched,
        1 => Form::Hidden,
        _ => Form::Plain,
    };
    // The account cannot read what a hidden job was to do.
    let act = if form == Form::Hidden { "once".to_owned() } else { act() };
    Task {
        n: Uuid::new_v4(),
        children: if form == Form::Plain && !foreign { children(&act) } else { vec![] },
        act,
        lasts_ms,
        lane,
        foreign,
        form,
        debounce: None,
        seq: None,
        tagged: form != Form::Hidden && rand::random_range(0..3) == 0,
        before: None,
        members: vec![],
        on_failure: None,
        adder: None,
        added: vec![],
    }
}

/// A plain job: one in a group, or one that later ones may replace.
pub fn plain_task() -> Task {
    Task { form: Form::Plain, foreign: false, ..task() }
}

/// The subject, the headers and the body of a job that is published.
fn submission(tenure: &Tenure, task: &Task) -> (String, async_nats::HeaderMap, String) {
    let mut headers = async_nats::HeaderMap::new();
    let mut body = serde_json::to_string(task).expect("JSON");
    let kind = match task.form {
        Form::Plain => Task::KIND,
        Form::Batched => Batched::KIND,
        Form::Hidden => {
            headers.insert("Tenure-Idempotency-Key", task.n.to_string());
            body = tenure.codecs().seal(Hidden::KIND, Part::Payload, body).expect("a sealed payload");
            Hidden::KIND
        }
    };
    let mut queue = if task.foreign { FOREIGN_QUEUE } else { Task::QUEUE };
    if let Some(lane) = &task.lane {
        headers.insert("Tenure-Lane", lane.as_str());
        queue = LANES;
    }
    if task.tagged {
        headers.insert("Tenure-Tags", TAG);
    }
    (format!("jobs.{queue}.{kind}"), headers, body)
}

pub fn request(task: Task) -> JobRequest {
    let (lane, foreign, tagged) = (task.lane.clone(), task.foreign, task.tagged);
    let request = match task.form {
        Form::Plain => JobRequest::from(task),
        Form::Batched => JobRequest::from(Batched(task)),
        Form::Hidden => {
            let key = task.n.to_string();
            JobRequest::from(Hidden(task)).unique_key(key)
        }
    };
    let request = match lane {
        Some(lane) => request.queue(LANES).lane(lane),
        None if foreign => request.queue(FOREIGN_QUEUE),
        None => request,
    };
    if tagged { request.tag(TAG) } else { request }
}

pub async fn insert(
    tx: &mut PgConnection,
    table: &str,
    n: Uuid,
    token: FencingToken,
) -> Result<(), JobError> {
    let sql = match table {
        "once" => "INSERT INTO chaos.effects (way, n, token) VALUES ('once', $1, $2)",
        "fenced" => "INSERT INTO chaos.effects (way, n, token) VALUES ('fenced', $1, $2)",
        _ => "INSERT INTO chaos.effects (way, n, token) VALUES ('together', $1, $2)",
    };
    sqlx::query(sql).bind(n).bind(token).execute(tx).await?;
    Ok(())
}

pub async fn run(task: Task, ctx: JobContext<PgPool>) -> Result<Outcome, JobError> {
    let (n, token) = (task.n, ctx.token());
    let first = token.0 == 1;
    ctx.log(&format!("token {token}"));
    let steps = task.lasts_ms / 50;
    for step in 0..steps {
        #[expect(clippy::cast_precision_loss, reason = "percents")]
        ctx.progress("working", 100.0 * step as f32 / steps as f32, "").await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if !task.members.is_empty() {
        graphs::look_back(&task, &ctx).await?;
    }
    match task.act.as_str() {
        "fenced" => ctx.fenced_tx(async |tx| insert(tx, "fenced", n, token).await).await?,
        "together" => {
            let mut tx = ctx.state().begin().await?;
            insert(&mut tx, "together", n, token).await?;
            return ctx.complete_in(tx, Some(json!(n))).await;
        }
        "fails at first" if ctx.attempt() < 3 => return Err(JobError::msg("as planned")),
        "never" => return Err(JobError::permanent("as planned")),
        "dies at first" if token.0 < 3 => {
            return Err(JobError::permanent("as planned, until it is redriven"));
        }
        "asks" => graphs::ask(&task, &ctx).await?,
        "all" => graphs::all(&task, &ctx).await?,
        "adds" => graphs::add(&task, &ctx).await?,
        "panics" if ctx.attempt() < 4 => panic!("as planned"),
        "panics" => return Err(JobError::permanent("as planned, at last")),
        "aborts at first" if first => std::process::abort(),
        // The attempts before and after the pause must see the same result.
        "steps" => {
            let drawn = ctx.step("draw", async || Ok(Uuid::new_v4())).await?;
            ctx.fenced_tx(async |tx| {
                let sql = "INSERT INTO chaos.steps (n, drawn) VALUES ($1, $2)";
                sqlx::query(sql).bind(n).bind(drawn).execute(tx).await?;
                Ok(())
            })
            .await?;
            ctx.sleep("pause", Duration::from_millis(300)).await?;
        }
        "snoozes" if first => return Ok(Outcome::Snooze(Duration::from_millis(700))),
        "blocks" => std::thread::sleep(Duration::from_millis(1_500)),
        // Silent for longer than stale_after.
        "silent at first" if first => tokio::time::sleep(Duration::from_secs(5)).await,
        _ => {}
    }
    ctx.once("effect", async |tx| insert(tx, "once", n, token).await).await?;
    Outcome::done(n)
}

pub async fn worker() {
    let config = Config::from_env().expect("the configuration");
    let tenure = Tenure::builder(&config).codecs(codecs()).connect().await.expect("a connection");
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(3))
        .connect_lazy(&config.database_url)
        .expect("a pool");
    let backoff =
        Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1), ..Backoff::DEFAULT };
    let ended = Worker::builder(&tenure)
        .state(pool)
        .handle_with(KindOptions::new().backoff(backoff), run)
        .handle_with(KindOptions::new().backoff(backoff), run_hidden)
        .handle_batch_with(batch(), KindOptions::new().backoff(backoff), run_batch)
        .handle_kind(TICK, KindOptions::new().backoff(backoff), |_: Value, _: JobContext<PgPool>| async {})
        .concurrency("chaos", 20)
        .concurrency(LANES, 20)
        .gateway()
        .run_until(tenure::shutdown_signal())
        .await;
    tenure.close().await;
    if let Err(error) = ended {
        eprintln!("the worker ended: {error}");
        std::process::exit(1);
    }
}

/// Writes a line of the journal: `what` is "tried" or "accepted".
pub fn note(what: &str, way: &str, n: Uuid, id: &str) {
    let ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what} {way} {n} {ms} {id}").and_then(|()| out.flush()).expect("the journal");
}

pub async fn producer(hold: &Path) {
    let config = Config::from_env().expect("the configuration");
    let rate: f64 = std::env::var("TENURE_CHAOS_RATE").expect("a rate").parse().expect("a number");
    let tenure = Tenure::builder(&config).codecs(codecs()).connect().await.expect("a connection");
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(3))
        .connect_lazy(&config.database_url)
        .expect("a pool");
    let nats = async_nats::ConnectOptions::new()
        .retry_on_initial_connect()
        .connect(&config.nats_url)
        .await
        .expect("a client");
    let mut js = jetstream::new(nats);
    js.set_timeout(Duration::from_secs(2));
    let pause = move || {
        let mean = 3.0 / rate;
        tokio::time::sleep(Duration::from_secs_f64(rand::rng().random_range(0.0..2.0 * mean)))
    };
    let alone = async {
        loop {
            pause().await;
            let task = task();
            let n = task.n;
            note_tried("enqueue", &task);
            let request = request(task).unique_key(n.to_string());
            // A repeated enqueue under the same key returns the answer that was lost.
            for _ in 0..5 {
                match tenure.enqueue(request.clone()).await {
                    Ok(enqueued) => {
                        note("accepted", "enqueue", n, &enqueued.id.to_string());
                        break;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
                }
            }
        }
    };
    let in_transactions = async {
        loop {
            pause().await;
            let task = task();
            let n = task.n;
            note_tried("transaction", &task);
            let committed = async {
                let mut tx = pool.begin().await?;
                sqlx::query("INSERT INTO chaos.orders VALUES ($1)").bind(n).execute(&mut *tx).await?;
                let enqueued =
                    tenure.enqueue(request(task)).tx(&mut tx).await.map_err(JobError::permanent)?;
                // One transaction in ten is rolled back.
                if n.as_u128().is_multiple_of(10) {
                    tx.rollback().await?;
                } else {
                    tx.commit().await?;
                    note("accepted", "transaction", n, &enqueued.id.to_string());
                }
                Ok::<_, JobError>(())
            };
            drop(tokio::time::timeout(Duration::from_secs(5), committed).await);
        }
    };
    let submissions = async {
        loop {
            pause().await;
            if hold.exists() {
                continue;
            }
            let task = task();
            let n = task.n;
            note_tried("submission", &task);
            for _ in 0..5 {
                let (subject, headers, body) = submission(&tenure, &task);
                let message = jetstream::message::PublishMessage::build()
                    .payload(body.into())
                    .headers(headers)
                    .message_id(n.to_string());
                let published = async { js.send_publish(subject, message).await?.await };
                match tokio::time::timeout(Duration::from_secs(3), published).await {
                    Ok(Ok(_)) => {
                        note("accepted", "submission", n, "");
                        break;
                    }
                    _ if hold.exists() => break,
                    _ => tokio::time::sleep(Duration::from_millis(500)).await,
                }
            }
        }
    };
    tokio::join!(alone, in_transactions, submissions, debounced(&tenure), graphs::producer(&tenure));
}

/// Enqueues bursts of debounced jobs, of four keys: two in each queue.
async fn debounced(tenure: &Tenure) {
    // An enqueue without an answer may take effect later, after its successors: no payload follows one under its key.
    let new_key = |of: u32| format!("d{of}-{:08x}", rand::random::<u32>());
    let mut keys = [0, 1, 2, 3].map(|of| (new_key(of), 0));
    loop {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..1_000))).await;
        let of = rand::random_range(0..4);
        for _ in 0..rand::random_range(1..6) {
            let (key, seq) = &mut keys[of as usize];
            *seq += 1;
            let lane = (of >= 2).then(|| format!("l{of}"));
            let mut task = Task { debounce: Some(key.clone()), seq: Some(*seq), lane, ..plain_task() };
            // The payload of one that waits may be replaced: an answer would not know which payload asked.
            if matches!(task.act.as_str(), "asks" | "all" | "dies at first") {
                (task.act, task.children) = ("once".into(), vec![]);
            }
            let (n, way) = (task.n, format!("debounce/{key}/{seq}"));
            note("tried", &way, n, "");
            let request = request(task).replace(key.clone()).after(Duration::from_millis(300));
            match tenure.enqueue(request).await {
                Ok(enqueued) => note("accepted", &way, n, &enqueued.id.to_string()),
                Err(_) => keys[of as usize] = (new_key(of), 0),
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..400))).await;
        }
    }
}
