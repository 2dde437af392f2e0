//! Metrics: what tenure counts, through the `metrics` facade. Install any recorder to read them.

use metrics::{Counter, counter};

/// Jobs that an enqueue created; a duplicate by unique key is none.
pub(crate) fn enqueued(queue: &str, jobs: usize) {
    counter!("tenure_jobs_enqueued_total", "queue" => queue.to_owned()).increment(jobs as u64);
}

/// Claims, by what the database said.
pub(crate) fn claims(result: &'static str, n: usize) {
    counter!("tenure_claims_total", "result" => result).increment(n as u64);
}

/// Attempts that ended, by outcome.
pub(crate) fn settled(kind: &str, outcome: &'static str) {
    counter!("tenure_attempts_total", "kind" => kind.to_owned(), "outcome" => outcome).increment(1);
}

/// The completions of one kind: counted so often that the counter is looked up once.
pub(crate) fn completions(kind: &str) -> Counter {
    counter!("tenure_attempts_total", "kind" => kind.to_owned(), "outcome" => "completed")
}

/// Jobs taken back, by who found them.
pub(crate) fn recovered(path: &'static str, jobs: usize) {
    counter!("tenure_recoveries_total", "path" => path).increment(jobs as u64);
}

/// Writes of workers that no longer owned their job.
pub(crate) fn refused_write(write: &'static str) {
    counter!("tenure_refused_writes_total", "write" => write).increment(1);
}

/// Messages published for jobs that exist.
pub(crate) fn published(messages: usize) {
    counter!("tenure_published_total").increment(messages as u64);
}

/// Messages that will never be a job, by why.
pub(crate) fn terminated(reason: &'static str) {
    counter!("tenure_terminated_messages_total", "reason" => reason).increment(1);
}

/// Handlers that kept their thread for longer than a second.
pub(crate) fn blocked(kind: &str) {
    counter!("tenure_blocked_handlers_total", "kind" => kind.to_owned()).increment(1);
}

/// Handlers that were cancelled because nothing could be written for too long.
pub(crate) fn cut_off(kind: &str) {
    counter!("tenure_cut_off_jobs_total", "kind" => kind.to_owned()).increment(1);
}

/// Cancellations, by what the job was doing.
pub(crate) fn cancelled(of: &'static str, jobs: usize) {
    counter!("tenure_cancellations_total", "of" => of).increment(jobs as u64);
}

/// Dead letters that went back to the queue.
pub(crate) fn redriven(jobs: usize) {
    counter!("tenure_redriven_total").increment(jobs as u64);
}

/// Ticks of schedules: each enqueued a job, or was missed and skipped.
pub(crate) fn ticked(result: &'static str, ticks: usize) {
    counter!("tenure_schedule_ticks_total", "result" => result).increment(ticks as u64);
}
