//! Internals: the items of the library that the program `tenure` needs, and that are not for other programs.
//!
//! Not covered by semantic versioning: any release may change this module.

pub mod examples;

use crate::{Config, JobId, StoreError, Tenure, groups::GroupView};

pub use crate::{
    client::queues::UnknownQueue,
    config::{InForce, Serve, Settings},
    doctor::{
        jobs::{SCANS_MISSED, first_overdue},
        store::UnservedSchedule,
    },
    job::{
        MAX_ATTEMPTS_DEFAULT,
        attempt::{AttemptOutcome, Category, Reason, RecoveryPath, Route},
        chained,
        claim::{Claim, ClaimKey},
        duration,
    },
    nats::{Nats, Progress},
    observe::{
        http::{self, Server},
        rates::{QueueCounts, quantile},
        repeats::Repeats,
        trace,
    },
    recover::{
        retention,
        waiting::{Memory, measure_alone},
    },
    run::handlers::EndedInTheMiddle,
    schedules::{job::next_ticks, store::Replaces},
    store::{
        BASELINE, BenchCounters, BenchRelayed, BenchStarted, BenchState, CancelAnswer, ClaimRequest,
        Completion, DeadGroup, DeadKind, DeadMatches, DueJob, EndedAttempt, Event, EventCount, EventFilter,
        FUNCTIONS, Finding, FinishedKind, Fleet, JobAction, JobTexts, Keeps, ListedJob, LiveKind, LockPolicy,
        MIGRATIONS, NEEDS, ProgressWrite, QueueStats, Schema, Store, Unit, Unserved, WaitingJobs, WhoRuns,
        statements,
    },
    worker::{Recovery, counts},
};

/// The parts of a [`Tenure`].
pub trait Parts {
    fn config(&self) -> &Config;
    fn store(&self) -> &Store;
    fn nats(&self) -> &Nats;
}

impl Parts for Tenure {
    fn config(&self) -> &Config {
        self.config()
    }

    fn store(&self) -> &Store {
        self.store()
    }

    fn nats(&self) -> &Nats {
        self.nats()
    }
}

/// [`Tenure::group_of`] with at most `edges_max` edges.
pub async fn group_view(
    tenure: &Tenure,
    job: JobId,
    edges_max: u32,
) -> Result<Option<GroupView>, StoreError> {
    tenure.group_view(job, edges_max).await
}
