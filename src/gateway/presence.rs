//! Presence: the rows of workers behind gateways, and what they learn of their jobs.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use futures::FutureExt;
use serde::Serialize;
use tokio::{sync::Mutex, time::sleep};
use uuid::Uuid;

use super::{
    ENTRIES_MAX, Gateway, WAIT_MAX,
    protocol::{Code, Fields, Refusal, json},
    take::{Kinds, worker_of},
};
use crate::{
    job::{
        JobId,
        attempt::AttemptOutcome,
        claim::{ClaimKey, FencingToken},
    },
    nats::Probed,
    observe::repeats,
    store::{
        Registration, Store, StoreError,
        batch::{Batcher, ITEMS_MAX},
    },
};

/// The most slots of one worker, and the most jobs that it names.
const SLOTS_MAX: u64 = 10_000;
/// The most characters of a name for people.
const NAME_MAX: usize = 200;

/// The gateway pauses after each look at the claims of workers: four times as long as the look took.
const PAUSE_AFTER_CLAIMS: u32 = 4;
/// The longest such pause: the workers that ask take no jobs meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Makes the batches of questions after the claims of workers: one statement reads the table of live jobs for many of
/// them.
pub(super) fn claims_batches(
    store: &Store,
) -> Batcher<(String, DateTime<Utc>), Result<Vec<ClaimKey>, StoreError>> {
    let store = store.clone();
    let turns = Arc::<Mutex<()>>::default();
    Batcher::spawn(
        |_| 0,
        move |batch: Vec<(String, DateTime<Utc>)>| {
            let (store, turns) = (store.clone(), turns.clone());
            async move {
                let turn = turns.lock_owned().await;
                let began_at = Instant::now();
                let claims = store.claims_of(&batch).await;
                // Anybody may ask. The more the table holds, the less often it is read.
                if claims.is_ok() {
                    let pause = (began_at.elapsed() * PAUSE_AFTER_CLAIMS).min(PAUSE_MAX);
                    store.spawn(sleep(pause).map(|()| drop(turn)));
                }
                match claims {
                    // Not by the worker: another beat of it may be in the batch, of a moment before or after.
                    Ok(claims) => {
                        let of = |asked: usize| {
                            let own = claims.iter().filter(|(n, _)| *n == asked);
                            Ok(own.map(|(_, key)| *key).collect())
                        };
                        (0..batch.len()).map(of).collect()
                    }
                    Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
                }
            }
        },
    )
}

/// What a worker learns by its hello.
#[derive(Serialize)]
struct Timers {
    beat_every_ms: u64,
    report_every_ms: u64,
    stale_after_ms: u64,
    take_slots_max: usize,
    wait_ms_max: u64,
    payload_bytes_max: usize,
    checkpoint_bytes_max: usize,
    keeps_logs: bool,
    now: String,
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

fn written(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

impl Gateway {
    pub(super) async fn hello(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, worker) = worker_of(queue, request)?;
        let (hostname, language, version) = (
            request.text("hostname", NAME_MAX)?,
            request.text("language", NAME_MAX)?,
            request.text("version", NAME_MAX)?,
        );
        let pid = request.number("pid", 0, i32::MAX.cast_unsigned().into())?;
        let slots = request.number("slots", 1, SLOTS_MAX)?;
        let timing = &self.0.timing;
        let kinds = Kinds::read(request, timing)?;
        // Nothing but the row is kept of the queue, whose name may be made up: the first take makes the rest.
        let registration = Registration {
            probe_subject: self.probe(queue, &worker, &id).await,
            worker_id: id.clone(),
            hostname,
            pid: i32::try_from(pid).unwrap_or_default(),
            boot_id: None,
            pid_namespace: None,
            pid_started_at: None,
            lock_file: None,
            queues: vec![queue.to_owned()],
            kinds: kinds.names(),
            unkept: kinds.unkept(),
            slots: i32::try_from(slots).unwrap_or(i32::MAX),
            // A worker that asks for a few jobs gets a few.
            jobs_per_message: None,
            renew_every: timing.renew_every,
            client: Some((language.clone(), version.clone())),
        };
        self.0.store.register_worker(&registration).await?;
        let now = self.0.store.database_time().await?;
        // Anybody may say hello, under any name.
        if let Some(left_out) = repeats::tell("hello", &"a worker") {
            tracing::info!(
                worker = id,
                language,
                version,
                slots,
                left_out,
                "a worker behind the gateway said hello"
            );
        }
        json(&Timers {
            beat_every_ms: millis(timing.renew_every),
            report_every_ms: millis(timing.flush_every),
            stale_after_ms: millis(timing.stale_after),
            take_slots_max: ENTRIES_MAX,
            wait_ms_max: millis(WAIT_MAX),
            payload_bytes_max: self.0.tenure.config().payload_bytes_max,
            checkpoint_bytes_max: self.0.tenure.config().checkpoint_bytes_max,
            keeps_logs: self.0.logs.is_some(),
            now: written(now),
        })
    }

    /// Returns the subject under which others may judge this worker. `None`: it has no subscriber, so that its silence
    /// would prove nothing.
    async fn probe(&self, queue: &str, worker: &str, id: &str) -> Option<String> {
        let subject = self.0.nats.subject_of_worker(queue, worker);
        match self.0.nats.probe(&subject).await {
            Probed::Answered | Probed::NoAnswer => Some(subject),
            Probed::Gone => {
                if let Some(left_out) = repeats::tell("foreign probe", &"no subscriber") {
                    tracing::warn!(
                        worker = id,
                        subject,
                        left_out,
                        "a worker behind the gateway is not subscribed to its subject, or may not be; if it dies, its \
                         jobs are reset after stale_after, not within seconds"
                    );
                }
                None
            }
        }
    }

    pub(super) async fn beat(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, worker) = worker_of(queue, request)?;
        let draining = request.flag("draining", false)?;
        let expected = "a list of [job, token, claim], of at most 10000 jobs";
        let running: Vec<(JobId, i64, Uuid)> = request.optional("running", expected)?.unwrap_or_default();
        if running.len() as u64 > SLOTS_MAX {
            return Err(request.wrong("running", expected));
        }
        let expected = "the `now` of an earlier answer";
        let as_of = request.optional::<DateTime<Utc>>("as_of", expected)?;
        // A time that Postgres cannot hold would fail the beats of others, too.
        if as_of.is_some_and(|at| !(2_000..=9_998).contains(&at.year())) {
            return Err(request.wrong("as_of", expected));
        }
        let keys: Vec<_> = running
            .into_iter()
            .map(|(job, token, claim)| ClaimKey { job, token: FencingToken(token), claim })
            .collect();
        let subject = self.probe(queue, &worker, &id).await;
        let Some(now) = self.0.store.renew_foreign(&id, subject.as_deref(), draining).await? else {
            self.forget_worker(&id);
            return Err(Refusal::new(Code::HelloFirst, format!("the worker {id} has no row")));
        };
        let (lost, cancel) = self.judge(&keys).await?;
        let returned = match as_of {
            Some(before) => self.return_unknown(&id, before, &keys).await?,
            None => 0,
        };
        Ok(format!(
            r#"{{"now":"{}","lost":{},"cancel":{},"returned":{returned},"keeps_logs":{}}}"#,
            written(now),
            json(&lost)?,
            json(&cancel)?,
            self.0.logs.is_some(),
        ))
    }

    /// Returns those of these claims that are no longer current, and those whose jobs are to be cancelled.
    async fn judge(&self, keys: &[ClaimKey]) -> Result<(Vec<JobId>, Vec<JobId>), Refusal> {
        let (mut lost, mut cancel) = (Vec::new(), Vec::new());
        for keys in keys.chunks(ITEMS_MAX) {
            let mut others = Vec::new();
            for (key, mine) in keys.iter().zip(self.0.store.still_mine(keys).await?) {
                match mine {
                    Some(true) => cancel.push(key.job),
                    Some(false) => {}
                    None => others.push(*key),
                }
            }
            if others.is_empty() {
                continue;
            }
            for (key, outcome) in others.iter().zip(self.0.store.all_settled_as(&others).await?) {
                // Its handler may have completed the job by SQL, and goes on. A standby does not know.
                if !matches!(outcome, Some(None | Some(AttemptOutcome::Completed))) {
                    lost.push(key.job);
                }
            }
        }
        Ok((lost, cancel))
    }

    /// Gives back the jobs that this worker has claimed before a moment and does not name.
    async fn return_unknown(
        &self,
        id: &str,
        before: DateTime<Utc>,
        known: &[ClaimKey],
    ) -> Result<usize, Refusal> {
        let known: HashSet<_> = known.iter().collect();
        let claims = self.0.claims_of.run((id.to_owned(), before)).await;
        let claims = claims.ok_or_else(|| Refusal::new(Code::Unavailable, "Postgres did not answer"))??;
        let unknown: Vec<_> = claims.into_iter().filter(|key| !known.contains(key)).collect();
        Ok(self.give_back(&unknown).await.len())
    }

    pub(super) async fn goodbye(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        self.forget_worker(&id);
        let us = std::slice::from_ref(&id);
        let forgotten = self.0.store.forget_workers(Some(us), Duration::ZERO).await?;
        let gone = !forgotten.is_empty() || self.0.store.host_of_worker(&id).await?.is_none();
        Ok(format!(r#"{{"gone":{gone}}}"#))
    }

    /// Tells the worker of a request to look at its jobs.
    pub(super) async fn tell_to_look(&self, queue: &str, body: &[u8], jobs: &[JobId]) {
        let Ok((_, worker)) = Fields::request(body).and_then(|request| worker_of(queue, &request)) else {
            return;
        };
        self.look(queue, &worker, jobs).await;
    }

    /// Sends a worker the event that some of these jobs may have changed.
    async fn look(&self, queue: &str, worker: &str, jobs: &[JobId]) {
        let Ok(jobs) = json(&jobs) else { return };
        let event = format!(r#"{{"event":"look","jobs":{jobs}}}"#);
        self.0.nats.send_plain(self.0.nats.subject_of_worker(queue, worker), event.into()).await;
    }

    /// Tells the workers behind gateways of cancellations of their jobs.
    pub(super) async fn announced(self, jobs: Vec<JobId>) {
        for some in jobs.chunks(ITEMS_MAX) {
            let owners = match self.0.store.owners(some).await {
                Ok(owners) => owners,
                Err(error) => {
                    tracing::debug!(%error, "could not tell workers of cancellations; their beats find them");
                    return;
                }
            };
            for (owner, job) in owners {
                if let Some((queue, worker)) = owner.split_once('/') {
                    self.look(queue, worker, &[job]).await;
                }
            }
        }
    }
}
