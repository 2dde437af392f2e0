//! The kinds besides the plain one: jobs that are called in batches, jobs that no server can read, and ticks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tenure::{
    Job, JobContext, JobError, JobRequest, Outcome,
    batches::{Batch, BatchContext, Item, Verdict},
    codec::{Codec, CodecError, Codecs, Place, Sealed},
    schedules::{MissedTicks, Schedule},
};

use crate::roles::{Task, insert, run};

/// A job that is called with others.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Batched(pub Task);

impl Job for Batched {
    const KIND: &'static str = "batched";
    const QUEUE: &'static str = Task::QUEUE;
    const MAX_ATTEMPTS: u32 = Task::MAX_ATTEMPTS;
}

/// A job whose payload and output are sealed. Its unique key is its number.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub Task);

impl Job for Hidden {
    const KIND: &'static str = "hidden";
    const QUEUE: &'static str = Task::QUEUE;
    const MAX_ATTEMPTS: u32 = Task::MAX_ATTEMPTS;
}

pub fn batch() -> Batch {
    Batch::up_to(8).within(Duration::from_millis(100))
}

pub async fn run_batch(
    items: Vec<Item<Batched, PgPool>>,
    ctx: BatchContext<PgPool>,
) -> Result<Vec<Verdict>, JobError> {
    ctx.progress("together", 50.0, "").await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut verdicts = Vec::new();
    for item in items {
        let (n, token, attempt) = (item.0.n, item.context().token(), item.context().attempt());
        item.context().log(&format!("token {token}"));
        let verdict = match item.0.act.as_str() {
            "aborts at first" if token.0 == 1 => std::process::abort(),
            // It takes the whole call with it.
            "panics" if attempt < 4 => panic!("as planned"),
            "never" | "panics" => item.fail(JobError::permanent("as planned")),
            "fails at first" if attempt < 3 => item.fail(JobError::msg("as planned")),
            "snoozes" if token.0 == 1 => item.end(Outcome::Snooze(Duration::from_millis(700))),
            _ => match item.context().once("effect", async |tx| insert(tx, "once", n, token).await).await {
                Ok(()) => item.done(n),
                Err(error) => item.fail(error),
            },
        };
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

pub async fn run_hidden(Hidden(task): Hidden, ctx: JobContext<PgPool>) -> Result<Outcome, JobError> {
    run(task, ctx).await
}

/// Each process knows both keys and seals with either.
struct Keys;

const KEYS: [(&str, u8); 2] = [("old", 0x5a), ("new", 0xa5)];

impl Codec for Keys {
    fn seal(&self, _: Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        let (key, mask) = KEYS[rand::random_range(0..KEYS.len())];
        Ok(Sealed { key: key.into(), bytes: plain.iter().map(|byte| byte ^ mask).collect() })
    }

    fn open(&self, _: Place<'_>, key: &str, sealed: &[u8]) -> Result<Vec<u8>, CodecError> {
        let (_, mask) =
            KEYS.iter().find(|(id, _)| *id == key).ok_or_else(|| CodecError::UnknownKey(key.into()))?;
        Ok(sealed.iter().map(|byte| byte ^ mask).collect())
    }
}

pub fn codecs() -> Codecs {
    Codecs::new().kind(Hidden::KIND, Keys)
}

pub const TICK: &str = "tick";
/// The seconds between two ticks.
pub const TICK_SECONDS: u32 = 5;

/// A job each few seconds, also for the ticks that pass while Postgres is away.
pub fn ticks() -> Schedule {
    let job = JobRequest::new(Task::QUEUE, TICK, json!({})).max_attempts(Task::MAX_ATTEMPTS);
    Schedule::new(TICK, format!("*/{TICK_SECONDS} * * * * *"), job).missed(MissedTicks::All).tick_field("at")
}
