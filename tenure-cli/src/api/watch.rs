//! Watch: the changes of a job, as a stream.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::sleep;

use tenure::{JobId, Status, Tenure, jobs::WaitError, rows::JobRow};

/// How often to ask the database.
const EVERY: Duration = Duration::from_millis(500);

/// What watchers of a job are told.
#[derive(Debug, Clone, Serialize)]
pub(super) struct JobUpdate {
    id: JobId,
    queue: String,
    kind: String,
    pub(super) status: Status,
    attempt: u32,
    max_attempts: u32,
    stage: Option<String>,
    progress: Option<f32>,
    message: Option<String>,
    /// At the end.
    pub(super) output: Option<Box<RawValue>>,
    last_error: Option<String>,
}

impl JobUpdate {
    pub(super) fn of(job: JobRow) -> Self {
        Self {
            output: job.output_json().map(ToOwned::to_owned),
            id: job.id,
            queue: job.queue,
            kind: job.kind,
            status: job.status,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            stage: job.stage,
            progress: job.progress,
            message: job.message,
            last_error: job.last_error,
        }
    }
}

/// Returns the changes of a job, the job as it is first. The stream ends after the end of the job.
pub(super) async fn watch(
    tenure: &Tenure,
    id: JobId,
) -> Result<impl Stream<Item = JobUpdate> + use<>, WaitError> {
    let first = JobUpdate::of(tenure.job(id).await?.ok_or(WaitError::NotFound(id))?);
    let rest = stream::unfold((tenure.clone(), first.clone()), |(tenure, last)| async move {
        let update = next(&tenure, &last).await?;
        Some((update.clone(), (tenure, update)))
    });
    Ok(stream::once(async move { first }).chain(rest))
}

/// Returns the next change; `None` after the end.
async fn next(tenure: &Tenure, last: &JobUpdate) -> Option<JobUpdate> {
    while !last.status.is_finished() {
        sleep(EVERY).await;
        let update = match tenure.job(last.id).await {
            Ok(Some(job)) => JobUpdate::of(job),
            // It was live a moment ago: every end leaves a row but a completion without history.
            Ok(None) => JobUpdate { status: Status::Completed, ..last.clone() },
            Err(error) if error.is_unavailable() => continue,
            Err(error) => {
                tracing::warn!(job = %last.id, %error, "a job can no longer be watched");
                return None;
            }
        };
        if serde_json::to_string(&update).ok() != serde_json::to_string(last).ok() {
            return Some(update);
        }
    }
    None
}
