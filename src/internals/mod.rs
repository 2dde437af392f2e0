//! Internals: the items of the library that the program `tenure` needs, and that are not for other programs.
//!
//! Not covered by semantic versioning: any release may change this module.

pub mod examples;

use std::time::Duration;

use crate::{Config, Health, JobError, StoreError, Tenure};

pub use crate::{
    config::{InForce, Serve, Settings},
    job::{
        MAX_ATTEMPTS_DEFAULT,
        attempt::{AttemptOutcome, Category, Reason, RecoveryPath, Route},
        chained,
        claim::{Claim, ClaimKey},
        span::span,
    },
    nats::{Progress, Queue},
    observe::{
        http::{self, Server},
        rates::{QueueCounts, quantile},
        repeats::Repeats,
        trace,
    },
    recover::{cron::next_ticks, retention},
    run::handlers::EndedInTheMiddle,
    store::{
        BenchCounters, BenchRelayed, BenchStarted, BenchState, CancelAnswer, ClaimRequest, Completion,
        DeadGroup, DeadMatches, DueJob, EndedAttempt, Event, EventCount, EventFilter, Fleet, JobTexts,
        LockPolicy, Minute, NEEDS, ProgressWrite, QueueStats, STATEMENTS, Schema, Store, Unserved,
        WaitingJobs, WhoRuns,
    },
    worker::{Recovery, counts},
};

/// The parts of a [`Tenure`].
pub trait Parts {
    fn config(&self) -> &Config;
    fn store(&self) -> &Store;
    fn queue(&self) -> &Queue;
}

impl Parts for Tenure {
    fn config(&self) -> &Config {
        self.config()
    }

    fn store(&self) -> &Store {
        self.store()
    }

    fn queue(&self) -> &Queue {
        self.queue()
    }
}

/// The settings of `tenure serve`, and the variables of a child process.
pub trait ProgramSettings {
    fn serve(&self) -> &Serve;
    fn serve_mut(&mut self) -> &mut Serve;
    /// Returns the environment in which another process reads the same configuration. `None` removes a variable.
    fn variables(&self) -> Vec<(String, Option<String>)>;
}

impl ProgramSettings for Config {
    fn serve(&self) -> &Serve {
        &self.serve
    }

    fn serve_mut(&mut self) -> &mut Serve {
        &mut self.serve
    }

    fn variables(&self) -> Vec<(String, Option<String>)> {
        self.variables()
    }
}

/// The texts of errors.
pub trait ErrorText {
    fn text(&self) -> String;
}

impl ErrorText for JobError {
    fn text(&self) -> String {
        self.text()
    }
}

/// Whether Postgres refused a statement because its role lacks a right.
pub trait Denied {
    fn is_denied(&self) -> bool;
}

impl Denied for StoreError {
    fn is_denied(&self) -> bool {
        self.is_denied()
    }
}

/// Reports the health of a process that has no worker.
pub trait Reports: Sized {
    fn new(hung_after: Duration) -> Self;
    fn started(&self);
    fn draining(&self);
    fn beat(&self);
    fn lacks(&self, what: &str, why: impl Into<String>);
    fn has(&self, what: &str);
}

impl Reports for Health {
    fn new(hung_after: Duration) -> Self {
        Self::new(hung_after)
    }

    fn started(&self) {
        self.started();
    }

    fn draining(&self) {
        self.draining();
    }

    fn beat(&self) {
        self.beat();
    }

    fn lacks(&self, what: &str, why: impl Into<String>) {
        self.lacks(what, why);
    }

    fn has(&self, what: &str) {
        self.has(what);
    }
}
