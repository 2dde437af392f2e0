//! Claims: whether this worker may claim, and claims without an answer.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Work, failed, jittered};
use crate::{
    config::Timing,
    deliver::Deliver,
    job::{JobError, JobId},
    observe::{health::Health, repeats},
    run::running::OnCrash,
    store::{ClaimRequest, LockPolicy, Store},
    worker::{queues::Queues, turns::Turns},
};

/// About this many workers of the fleet test at each renewal whether they may claim; in a larger fleet each tests less
/// often.
const CLAIMS_TRIED_BY: u32 = 8;

/// The longest time after an outage of Postgres before a worker tests whether it may claim.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);

/// Tests at intervals whether this worker may claim.
#[derive(Clone)]
pub(crate) struct TryClaims {
    pub(crate) store: Store,
    pub(crate) health: Health,
    pub(crate) queues: Arc<Queues>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) timing: Timing,
    pub(crate) worker_id: String,
    pub(crate) hostname: String,
}

impl Work for TryClaims {
    const NAME: &'static str = "claims";

    async fn run(self) {
        let mut database = self.store.availability();
        loop {
            database.mark_unchanged();
            self.check().await;
            let pause = jittered(self.turns.in_step(self.timing.renew_every, CLAIMS_TRIED_BY));
            // Postgres is back: a reason that has passed must not stay. The workers must not all ask at once.
            let back = async {
                while database.changed().await.is_ok() && !database.borrow().up {}
                sleep(AGAIN_WITHIN.mul_f64(rand::random())).await;
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = back => {}
            }
        }
    }
}

impl TryClaims {
    /// Claims a job that does not exist: Postgres refuses the claim if this worker may not claim.
    async fn check(&self) {
        // A gateway alone serves no queue of its own.
        let queue = self.queues.names().next().cloned().unwrap_or_else(|| "default".into());
        let no_such_job = ClaimRequest {
            job: JobId(uuid::Uuid::nil()),
            queue,
            kind: "none".into(),
            stale_after: self.timing.stale_after,
            on_crash: OnCrash::Retry.as_str(),
        };
        let limited =
            self.queues.slots.iter().find(|(_, slots)| slots.is_limited()).map(|(name, _)| name.clone());
        let tried = match self
            .store
            .claim(LockPolicy::Wait, std::slice::from_ref(&no_such_job), &self.worker_id, &self.hostname)
            .await
        {
            Ok(_) => match limited {
                Some(queue) => {
                    let no_such_job = ClaimRequest { queue, ..no_such_job };
                    self.store.claim_limited(&[no_such_job], &self.worker_id, &self.hostname).await.map(drop)
                }
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        match tried {
            Ok(()) => self.health.has("claims"),
            Err(error) => {
                let is_refused = !error.is_unavailable();
                let error = JobError::from(error).text();
                if is_refused && let Some(left_out) = repeats::tell("claims", &error) {
                    tracing::error!(
                        error,
                        left_out,
                        "this worker cannot claim jobs; it is not ready, and will retry"
                    );
                }
                self.health.lacks("claims", error);
            }
        }
    }
}

/// Releases the jobs of claims whose answer was lost.
#[derive(Clone)]
pub(crate) struct ReleaseUnanswered {
    pub(crate) deliver: Deliver,
}

impl Work for ReleaseUnanswered {
    const NAME: &'static str = "unanswered claims";

    async fn run(self) {
        loop {
            sleep(jittered(Duration::from_secs(1))).await;
            if let Err(error) = self.deliver.release_unanswered().await {
                failed("look for claims without an answer", &error, error.is_unavailable());
            }
        }
    }
}
