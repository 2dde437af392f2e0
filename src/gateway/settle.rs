//! Report and settle: the writes of workers, under the claims of their receipts, many at a time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::{
    ENTRIES_MAX, Gateway,
    protocol::{Code, Fields, Refusal},
    receipt::{Receipt, Signer},
    steps::check_name,
    take::worker_of,
};
use crate::{
    job::{
        JobError, JobId, Outcome,
        attempt::{AttemptOutcome, Reason},
        claim::{Ack, Claim, FencingToken, Missed, ack_for},
        sizes::stored_bytes,
        unstorable_text,
    },
    logs::store::LogWrite,
    observe::{metrics, trace},
    proof::fault,
    run::{
        context::{ContextError, WITHOUT_END},
        handlers::{Ended, RetryPolicy},
        running::{CancelReason, Message, OnCrash, OnWriteLoss, Rules, RunningJob},
        settle::{Settled, Verdict, verdict},
    },
    store::{
        ProgressWrite, Store, StoreError,
        batch::{Batcher, halve},
    },
};

/// A sender waits 5 s for an answer: a write that takes longer goes on, and a repetition finds it done.
pub(super) const WRITTEN_WITHIN: Duration = Duration::from_secs(4);
/// How often a report is tried whose row is locked, and the pause between.
const LOCKED_MAX: usize = 8;
const LOCKED_AGAIN: Duration = Duration::from_millis(150);
/// How often old extensions are forgotten.
const EXTENDED_PRUNED_EVERY: Duration = Duration::from_secs(5);
/// The fields of each entry of a `report` and a `settle`, of a report, and of a settle.
const OF_ENTRY: [&str; 3] = ["job", "token", "receipt"];
const OF_REPORT: [&str; 5] = ["stage", "progress", "message", "checkpoint", "log"];
const OF_SETTLE: [&str; 10] =
    ["outcome", "output", "error", "after_ms", "awaits", "left_ms", "began", "report", "steps", "ran_ms"];
/// What may stand in an entry, by its name.
#[cfg(test)]
pub(super) const OF_ENTRIES: [(&str, &[&[&str]]); 3] = [
    ("a report", &[&OF_ENTRY, &OF_REPORT, &["alone"]]),
    ("a settle", &[&OF_ENTRY, &OF_SETTLE]),
    ("a report of a settle", &[&OF_REPORT]),
];
/// The most characters of a stage and of a message.
const TEXT_MAX: usize = 100_000;

/// Makes the batches of progress writes.
pub(super) fn progress_batches(store: &Store) -> Batcher<ProgressWrite, Result<Option<bool>, StoreError>> {
    let store = store.clone();
    let bytes = |write: &ProgressWrite| write.checkpoint.as_ref().map_or(0, String::len);
    Batcher::spawn(bytes, move |batch: Vec<ProgressWrite>| {
        let store = store.clone();
        async move { write_all(&store, batch).await }
    })
}

async fn write_all(store: &Store, batch: Vec<ProgressWrite>) -> Vec<Result<Option<bool>, StoreError>> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut rest = vec![batch];
    while let Some(part) = rest.pop() {
        match store.progress(&part).await {
            Ok(written) => {
                metrics::batch("progress", part.len());
                answers.extend(written.into_iter().map(Ok));
            }
            // Postgres refuses one report: the others must still be signs of life.
            Err(error) if part.len() > 1 && error.is_of_one_row() => halve(part, &mut rest),
            Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

/// How a worker ends an attempt.
struct Said {
    ended: Ended,
    /// Why its handler was asked to stop, if that decides the end.
    asked: Option<CancelReason>,
    report: Option<ProgressWrite>,
    log: Option<LogWrite>,
    /// The names of the steps that it has called, if it tells.
    steps: Option<Vec<String>>,
    ran: Duration,
}

/// Reads what an attempt has printed so far, or the end of it, from a report.
fn log_of(receipt: &Receipt, report: &Fields<'_>) -> Result<Option<LogWrite>, Refusal> {
    let Some(log) = report.object("log")? else { return Ok(None) };
    log.only("a log", &["text", "is_cut"])?;
    let (text, is_cut) = (log.value("text", "a text")?, log.flag("is_cut", false)?);
    Ok(Some(LogWrite { key: receipt.key(), text, is_cut }))
}

impl Signer {
    /// Reads the receipt of a request, or of an entry of one, and checks that it is this worker's.
    pub(super) fn of_worker(&self, id: &str, entry: &Fields<'_>) -> Result<Receipt, Refusal> {
        let text: String = entry.value("receipt", "the receipt of the job")?;
        let forged = |why: &str| Refusal::new(Code::ForgedReceipt, why);
        let receipt =
            self.read(&text).ok_or_else(|| forged("no gateway of this tenure has made this receipt"))?;
        if receipt.worker != id {
            return Err(forged(&format!("the receipt is of the worker {}, not of {id}", receipt.worker)));
        }
        Ok(receipt)
    }

    /// The same of an entry that also names its job and token.
    fn of_entry(&self, id: &str, entry: &Fields<'_>) -> Result<Receipt, Refusal> {
        let job: JobId = entry.value("job", "the id of a job, a UUID")?;
        let token: FencingToken = entry.value("token", "the token of the attempt, an integer")?;
        let receipt = self.of_worker(id, entry)?;
        if receipt.job != job || receipt.token != token {
            let (of, with) = (receipt.job, receipt.token);
            let why =
                format!("the receipt is of the job {of} with the token {with}, not of {job} with {token}");
            return Err(Refusal::new(Code::ForgedReceipt, why));
        }
        Ok(receipt)
    }
}

impl Gateway {
    pub(super) async fn report(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        let entries = request.objects("reports", ENTRIES_MAX)?;
        let signer = self.signer().await?;
        let (signer, id) = (&signer, id.as_str());
        let results = join_all(entries.iter().map(|entry| async move {
            let receipt = signer.of_entry(id, entry)?;
            entry.only("a report", &[&OF_ENTRY[..], &OF_REPORT, &["alone"]].concat())?;
            let (write, log) = (self.progress_of(&receipt, entry, false)?, log_of(&receipt, entry)?);
            if entry.flag("alone", false)? {
                // That the claim is no longer current, the write says.
                self.0.store.runs_alone(receipt.key()).await?;
            }
            self.report_one(&receipt, write, log).await
        }));
        Ok(self.listed(queue, "report entry", results.await))
    }

    /// Reads the fields of a report. With one that `ends` its attempt, a percentage out of range would refuse the end.
    fn progress_of(
        &self,
        receipt: &Receipt,
        entry: &Fields<'_>,
        ends: bool,
    ) -> Result<ProgressWrite, Refusal> {
        let text = |name: &str| -> Result<Option<String>, Refusal> {
            let text: Option<String> = entry.optional(name, "a text")?;
            if text.as_ref().is_some_and(|text| text.chars().count() > TEXT_MAX) {
                return Err(entry.wrong(name, "a text of at most 100000 characters"));
            }
            Ok(text)
        };
        let percent = if ends {
            entry.optional("progress", "a number")?.map(|percent: f64| percent.clamp(0.0, 100.0))
        } else {
            entry.percent("progress")?
        };
        let checkpoint = entry.raw("checkpoint");
        if let Some(checkpoint) = &checkpoint {
            let most = self.0.tenure.config().checkpoint_bytes_max;
            let bytes = stored_bytes(checkpoint);
            if bytes > most {
                let expected = format!(
                    "JSON of at most {most} bytes (TENURE_CHECKPOINT_BYTES_MAX), it has {bytes}; store results \
                     elsewhere"
                );
                return Err(entry.wrong("checkpoint", &expected));
            }
            if let Some(why) = unstorable_text(checkpoint) {
                return Err(entry.wrong("checkpoint", &format!("JSON that Postgres can hold ({why})")));
            }
        }
        Ok(ProgressWrite {
            key: receipt.key(),
            stage: text("stage")?,
            #[expect(clippy::cast_possible_truncation, reason = "it is at most 100")]
            percent: percent.map(|percent| percent as f32),
            message: text("message")?,
            checkpoint,
        })
    }

    async fn report_one(
        &self,
        receipt: &Receipt,
        write: ProgressWrite,
        log: Option<LogWrite>,
    ) -> Result<&'static str, Refusal> {
        let _turn = self.0.jobs.turn(receipt.job).await;
        let Some(cancel_requested) = self.write(&write).await? else {
            let job = self.running(receipt);
            self.0.heartbeat.lost(&job, "progress").await;
            return Ok("lost");
        };
        fault::point("gateway_reported");
        self.keep(receipt, log).await;
        self.0.hints.progressed(&claim_of(receipt), &write);
        self.extend(receipt).await;
        Ok(if cancel_requested { "cancel" } else { "ok" })
    }

    async fn keep(&self, receipt: &Receipt, log: Option<LogWrite>) {
        // A log is plain text.
        let is_sealed = || self.0.tenure.codecs().has(&receipt.kind);
        if let (Some(logs), Some(log)) = (&self.0.logs, log)
            && !is_sealed()
        {
            logs.write_said(log).await;
        }
    }

    /// Writes one report. Returns whether a cancellation was asked for; `None`: the job is not this worker's.
    async fn write(&self, write: &ProgressWrite) -> Result<Option<bool>, Refusal> {
        let unavailable = || Refusal::new(Code::Unavailable, "Postgres did not confirm the report in time");
        for _ in 0..LOCKED_MAX {
            let written = timeout(WRITTEN_WITHIN, self.0.progress.run(write.clone())).await;
            let written = written.ok().flatten().ok_or_else(unavailable)??;
            if written.is_some() {
                return Ok(written);
            }
            // No row was written: the claim is not current, or another transaction has locked the row.
            let mine = self.0.store.still_mine(&[write.key]).await?;
            if mine.first().copied().flatten().is_none() {
                return Ok(None);
            }
            sleep(LOCKED_AGAIN).await;
        }
        Err(Refusal::new(Code::Unavailable, "a transaction has locked the row of the job"))
    }

    /// Keeps NATS from redelivering a job that shows a sign of life.
    pub(super) async fn extend(&self, receipt: &Receipt) {
        let now = Instant::now();
        let ack_wait = self.0.timing.ack_wait;
        {
            let mut extended = self.0.extended.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if now.duration_since(extended.pruned_at) > EXTENDED_PRUNED_EVERY {
                extended.pruned_at = now;
                extended.at.retain(|_, at| now.duration_since(*at) < ack_wait / 6);
            }
            if extended.at.get(&receipt.claim).is_some_and(|at| now.duration_since(*at) < ack_wait / 6) {
                return;
            }
            extended.at.insert(receipt.claim, now);
        }
        self.message_of(receipt).receipt.in_progress().await;
    }

    pub(super) fn message_of(&self, receipt: &Receipt) -> Message {
        let restored = self.0.nats.receipt_of(&receipt.reply, &receipt.mark);
        Message { receipt: restored, dispatch: receipt.message_dispatch }
    }

    /// The attempt of a receipt, as the steps of a worker know it. Its handler runs elsewhere.
    pub(super) fn running(&self, receipt: &Receipt) -> RunningJob {
        let rules = Rules {
            stale_after: Duration::from_millis(receipt.stale_after),
            keepalive: None,
            on_crash: if receipt.dies_on_crash { OnCrash::DeadLetter } else { OnCrash::Retry },
            on_write_loss: OnWriteLoss::Cancel,
            no_history: receipt.no_history,
            halves: false,
        };
        let job = RunningJob::new(claim_of(receipt), self.message_of(receipt), rules, None);
        // Its worker has the claim's id, and may have used it in SQL.
        job.has_effects.store(true, Ordering::Release);
        job.knows_claim.store(true, Ordering::Release);
        job
    }

    pub(super) async fn settle(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        let entries = request.objects("settles", ENTRIES_MAX)?;
        let signer = self.signer().await?;
        let (signer, id) = (&signer, id.as_str());
        let results = join_all(entries.iter().map(|entry| async move {
            let receipt = signer.of_entry(id, entry)?;
            entry.only("a settle", &[&OF_ENTRY[..], &OF_SETTLE].concat())?;
            let said = self.said(&receipt, entry)?;
            self.settle_one(&receipt, said).await
        }));
        Ok(self.listed(queue, "settle entry", results.await))
    }

    /// Reads how a worker ends an attempt.
    fn said(&self, receipt: &Receipt, entry: &Fields<'_>) -> Result<Said, Refusal> {
        let expected = "complete, retry, fail, snooze, cancel, suspend or release";
        let outcome: String = entry.value("outcome", expected)?;
        let error = || -> Result<String, Refusal> {
            Ok(entry.optional::<String>("error", "a text")?.unwrap_or_else(|| "it gave no reason".to_owned()))
        };
        let mut asked = None;
        let ended = match outcome.as_str() {
            "complete" => {
                let output = entry.raw("output");
                Ended::Returned(Ok(output.map_or(Outcome::Done(None), Outcome::DoneJson)))
            }
            "retry" => Ended::Returned(Err(match entry.duration("after_ms")? {
                Some(after) => JobError::retry_after(after, error()?),
                None => JobError::msg(error()?),
            })),
            "fail" => Ended::Returned(Err(JobError::permanent(error()?))),
            "snooze" => {
                let after = entry.duration("after_ms")?;
                let after = after.ok_or_else(|| entry.wrong("after_ms", "a whole number of milliseconds"))?;
                Ended::Returned(Ok(Outcome::Snooze(after)))
            }
            "cancel" => Ended::Returned(Ok(Outcome::Cancel(error()?))),
            "suspend" => Ended::Returned(Err(suspension(entry)?)),
            "release" if entry.flag("began", true)? => {
                asked = Some(CancelReason::Shutdown);
                Ended::Dropped
            }
            "release" => Ended::NeverBegan,
            _ => return Err(entry.wrong("outcome", expected)),
        };
        let report = entry.object("report")?;
        report.as_ref().map_or(Ok(()), |report| report.only("the report of a settle", &OF_REPORT))?;
        let log = report.as_ref().map(|report| log_of(receipt, report)).transpose()?.flatten();
        let report = report.map(|report| self.progress_of(receipt, &report, true)).transpose()?;
        let ran = entry.duration("ran_ms")?.unwrap_or_default();
        let steps = entry.optional("steps", "a list of names")?;
        Ok(Said { ended, asked, report, log, steps, ran })
    }

    async fn settle_one(&self, receipt: &Receipt, said: Said) -> Result<&'static str, Refusal> {
        let _turn = self.0.jobs.turn(receipt.job).await;
        let job = Arc::new(self.running(receipt));
        let span = trace::process(&job.claim, &receipt.worker, self.0.tenure.config().trace_parent);
        self.end(receipt, &job, said).instrument(span).await
    }

    async fn end(&self, receipt: &Receipt, job: &RunningJob, said: Said) -> Result<&'static str, Refusal> {
        if let Some(asked) = said.asked {
            job.cancel(asked);
        }
        self.keep(receipt, said.log).await;
        let never_began = matches!(said.ended, Ended::NeverBegan);
        let completes = matches!(&said.ended, Ended::Returned(Ok(Outcome::Done(_) | Outcome::DoneJson(_))));
        let (mut verdict, error) = verdict(job, said.ended, &RetryPolicy::default(), None);
        let mut wanted = AttemptOutcome::Completed;
        let word = match &mut verdict {
            Verdict::Complete(completion) => {
                completion.report = said.report;
                "complete"
            }
            Verdict::End(end) => {
                if never_began {
                    end.reason = Some(Reason::Shutdown);
                }
                // The next attempt reads the last checkpoint. A claim that is not current is found by the next write.
                if let Some(report) = &said.report {
                    self.write(report).await?;
                }
                // An output that cannot be stored has failed the job.
                wanted = if completes { wanted } else { end.verdict };
                end.verdict.as_str()
            }
            Verdict::Written | Verdict::Lost => "complete",
        };
        fault::point("gateway_settling");
        let queue = self.queue(&receipt.queue);
        let rates = Some(&queue.measures.rates);
        let write = self.0.settle.write(job, verdict, error, said.ran, None, rates);
        let Ok((outcome, settled)) = timeout(WRITTEN_WITHIN, write).await else {
            return Err(Refusal::new(
                Code::Unavailable,
                "Postgres did not confirm the end of the attempt in time",
            ));
        };
        fault::point("gateway_settled");
        let message = self.message_of(receipt);
        let ack = match settled {
            Settled::Written => Ack::Done,
            Settled::Lost => {
                self.0.heartbeat.lost(job, word).await;
                let missed =
                    self.0.store.missed(receipt.job, &receipt.queue, &receipt.kind, message.dispatch);
                missed.await.map_or_else(|_| ack_for(&Missed::Unanswered, 1), |missed| ack_for(&missed, 1))
            }
        };
        message.receipt.send(ack).await;
        queue.slots.ended();
        if settled == Settled::Written
            && word == "complete"
            && let Some(steps) = said.steps
        {
            self.warn_of_uncalled(receipt.key(), steps);
        }
        match settled {
            Settled::Written if wanted.may_end_as(outcome) => Ok("settled"),
            Settled::Written if outcome == AttemptOutcome::Failed => Err(Refusal::new(
                Code::Refused,
                "a value of it cannot be stored: the job has failed, and its last error says why; send `fail`, which \
                 changes nothing more",
            )),
            // Its handler has completed the job by SQL, or another settle has ended the attempt otherwise.
            Settled::Written | Settled::Lost => Ok("lost"),
        }
    }

    /// The results of the entries of a request, in order. Tells of those that are refused.
    fn listed(&self, queue: &str, what: &'static str, results: Vec<Result<&'static str, Refusal>>) -> String {
        let results = results.into_iter().map(|result| match result {
            Ok(word) => format!("\"{word}\""),
            Err(refusal) => {
                self.tell(&refusal, queue, what);
                refusal.json()
            }
        });
        format!(r#"{{"results":[{}]}}"#, results.collect::<Vec<_>>().join(","))
    }
}

/// Reads for what a worker's job waits.
fn suspension(entry: &Fields<'_>) -> Result<JobError, Refusal> {
    let awaits: Option<String> = entry.optional("awaits", "the name of an event or of an `all`")?;
    awaits.as_deref().map_or(Ok(()), |name| check_name("awaits", name))?;
    let left = entry.duration("left_ms")?;
    if awaits.is_none() && left.is_none() {
        return Err(entry.wrong("left_ms", "a whole number of milliseconds, if `awaits` is absent"));
    }
    let left = left.unwrap_or(WITHOUT_END);
    Ok(ContextError::Suspended { left, since: Instant::now(), awaits }.into())
}

/// The claim of a receipt, without the job's payload.
pub(super) fn claim_of(receipt: &Receipt) -> Claim {
    Claim {
        key: receipt.key(),
        queue: receipt.queue.clone(),
        kind: receipt.kind.clone(),
        payload: String::new(),
        attempt: receipt.attempt,
        max_attempts: receipt.max_attempts,
        waited: Duration::ZERO,
        after_reset: false,
        checkpoint: None,
        trace_context: None,
        lane: receipt.lane.clone(),
        group: receipt.group,
        losses: 0,
        dispatch: receipt.dispatch,
        sent_at: Instant::now(),
    }
}
