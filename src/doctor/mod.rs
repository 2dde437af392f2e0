//! Doctor: finds what is wrong around the jobs, and says what to do. It asks both servers, tries a write that it rolls
//! back, and changes nothing.
//!
//! Statements and the client of NATS read; pure functions here say what the answers mean. A server that is away, a
//! missing schema, a missing right: each is one finding, and the checks that cannot run because of it are *skipped*.
//! Every call has tenure's usual time limit.
//!
//! Not here: the rules that the jobs themselves must keep (`verify`).

pub(crate) mod jobs;
mod postgres;
pub(crate) mod store;
mod stream;
pub(crate) mod verify;

pub use verify::RuleCheck;

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::{
    client::Tenure,
    config::Timing,
    groups,
    job::{
        JobError, check_queue,
        duration::{measured, written},
    },
    lanes,
    observe::repeats,
    quarantine,
    store::{Store, StoreError},
};

/// The state that a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// The check could not run.
    Skipped,
    /// Jobs run, but an operator should look.
    Warning,
    /// Jobs do not run, or not as they should.
    Wrong,
}

impl CheckState {
    /// Returns the state's word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

impl std::fmt::Display for CheckState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// One finding of [`Tenure::doctor`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// The check's name: `postgres`, `schema`, `relay` and so on; `docs/operations.md` has the list.
    pub check: &'static str,
    /// The queue, if the check is about one.
    pub queue: Option<String>,
    /// The state that the check found.
    pub state: CheckState,
    /// What the check found; if it was skipped, why.
    pub found: String,
    /// What to do, if anything.
    pub to_do: Option<String>,
}

impl Check {
    fn new(check: &'static str, state: CheckState, found: impl Into<String>) -> Self {
        Self { check, queue: None, state, found: found.into(), to_do: None }
    }

    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, CheckState::Ok, found)
    }

    fn skipped(check: &'static str, why: impl Into<String>) -> Self {
        Self::new(check, CheckState::Skipped, why)
    }

    pub(crate) fn warning(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, CheckState::Warning, found)
    }

    pub(crate) fn wrong(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, CheckState::Wrong, found)
    }

    pub(crate) fn of(mut self, queue: &str) -> Self {
        self.queue = Some(queue.into());
        self
    }

    pub(crate) fn advise(mut self, to_do: impl Into<String>) -> Self {
        self.to_do = Some(to_do.into());
        self
    }
}

/// The options of [`Tenure::doctor`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoctorOptions {
    /// The queues to check. Empty (the default): those that a worker serves, that have waiting jobs, or that have
    /// settings.
    pub queues: Vec<String>,
    /// The age from which a transaction is old. Default 10 min.
    pub old_after: Duration,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self { queues: Vec::new(), old_after: Duration::from_mins(10) }
    }
}

/// A queue to ask NATS about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    queue: String,
    /// Whether it should have a consumer by now.
    is_served: bool,
}

/// The reason for which doctor skips a check that reads what workers write. Such a server takes none of it, so that its
/// rows are old even if every worker is well.
const NO_WRITES: &str = "not known while this server takes no writes";

impl Tenure {
    /// Checks both servers, the schema, this role's rights, the timers, workers and queues, and returns what it found
    /// and what to do. Tries a write, and rolls it back; changes nothing, and never fails: it reports the checks that
    /// cannot run as skipped.
    ///
    /// If a server does not answer, it takes some 10 s.
    pub async fn doctor(&self, options: &DoctorOptions) -> Vec<Check> {
        let timing = &self.config().timing;
        let bad = options.queues.iter().filter_map(|queue| Some((queue, check_queue(queue).err()?)));
        let to_do = "use the name that its jobs and workers use";
        let bad: Vec<_> = bad
            .map(|(queue, error)| Check::wrong("queue", error.to_string()).advise(to_do).of(queue))
            .collect();
        let named: Vec<_> =
            options.queues.iter().filter(|queue| check_queue(queue).is_ok()).cloned().collect();
        // Both servers at once: a server that is away costs its whole time limit.
        let of_postgres = async {
            let (mut checks, is_fit) = postgres::look(self, options.old_after).await;
            let refuses = |check: &Check| {
                [postgres::WRITES, "primary"].contains(&check.check) && check.state == CheckState::Wrong
            };
            let can_write = !checks.iter().any(refuses);
            checks.extend(match &is_fit {
                Ok(()) => jobs::look(self.store(), timing, can_write).await,
                Err(why) => jobs::skipped(why),
            });
            (checks, is_fit, can_write)
        };
        let ((mut checks, is_fit, can_write), (connection, seen)) =
            tokio::join!(of_postgres, stream::reach(self));
        let named = (!options.queues.is_empty()).then_some(named.as_slice());
        // A queue may have nothing but messages.
        let (of_queues, of_lanes, asked, unread) = match is_fit {
            Ok(()) if !can_write => {
                let mut more = skip(&OF_RUNNING, NO_WRITES);
                more.extend(quarantine::doctor::look(self.store()).await);
                let nats = seen.as_ref().map(|_| self.nats());
                let (_, asked, unread) = jobs::queues(self.store(), nats, named).await;
                (skip(&jobs::OF_QUEUES, NO_WRITES), more, asked, unread)
            }
            Ok(()) => {
                let nats = seen.as_ref().map(|_| self.nats());
                let (of_queues, asked, unread) = jobs::queues(self.store(), nats, named).await;
                let mut more = of_running(self.store(), named).await;
                more.extend(quarantine::doctor::look(self.store()).await);
                (of_queues, more, asked, unread)
            }
            Err(why) => (
                skip(&jobs::OF_QUEUES, &why),
                [skip(&OF_RUNNING, &why), skip(&[quarantine::doctor::CHECK], &why)].concat(),
                jobs::unknown(named),
                None,
            ),
        };
        checks.extend(of_queues);
        checks.extend(of_lanes);
        checks.extend(bad);
        checks.push(timers(timing));
        checks.push(connection);
        checks.extend(match seen {
            Some(seen) => stream::look(self.nats(), timing, &seen, &asked, unread).await,
            None => stream::skipped("NATS was not reached"),
        });
        checks
    }
}

/// The checks of [`of_running`].
pub(crate) const OF_RUNNING: [&str; 3] = [lanes::doctor::CHECK, groups::doctor::CHECK, jobs::SLOW];

/// Checks what keeps jobs of these queues, or of all, from going on.
async fn of_running(store: &Store, named: Option<&[String]>) -> Vec<Check> {
    // In boxes: these futures are large.
    let mut found = Box::pin(lanes::doctor::look(store, named)).await;
    found.extend(Box::pin(groups::doctor::look(store)).await);
    found.extend(Box::pin(jobs::slow(store, named)).await);
    found
}

/// Notes what a scan finds wrong by [`of_running`], for the overview and the metrics. What a check that cannot run has
/// found before stays, for as long as it holds.
#[cfg(feature = "worker")]
pub(crate) async fn note(store: &Store, holds_for: Duration) -> Result<(), StoreError> {
    let mut found = of_running(store, None).await;
    let is_skipped = |check: &&Check| check.state == CheckState::Skipped;
    let skipped: Vec<_> = found.iter().filter(is_skipped).map(|check| check.check).collect();
    for check in found.iter().filter(is_skipped) {
        if let Some(left_out) = repeats::tell("findings", &format!("{}: {}", check.check, check.found)) {
            tracing::warn!(
                check = check.check,
                why = check.found,
                left_out,
                "a scan could not look for what is wrong"
            );
        }
    }
    found.retain(|check| matches!(check.state, CheckState::Warning | CheckState::Wrong));
    store.note_findings(serde_json::json!(found), &skipped, holds_for).await
}

fn timers(timing: &Timing) -> Check {
    let Timing { stale_after, scan_every, ack_wait, .. } = timing;
    match timing.validate() {
        Ok(()) => {
            let [stale_after, scan_every, ack_wait] =
                [stale_after, scan_every, ack_wait].map(|of| written(*of));
            let found = format!("stale_after {stale_after} + scan_every {scan_every} < ack_wait {ack_wait}");
            Check::ok("timers", found)
        }
        // The error's text says what to change.
        Err(error) => Check::wrong("timers", error.to_string()).advise(
            "change one of the two for all workers, then the consumers: `tenure migrate --queue NAME`",
        ),
    }
}

/// The difference from which the times in logs and headers mislead.
const SKEW: Duration = Duration::from_secs(5);

/// Compares a server's clock with this host's. The server read its own at some moment of the call.
fn clock(check: &'static str, answered_at: DateTime<Utc>, asked_at: DateTime<Utc>, took: Duration) -> Check {
    // The call's duration hides any shorter difference.
    let early = (asked_at - answered_at).to_std().unwrap_or_default();
    let late = (answered_at - asked_at).to_std().unwrap_or_default().saturating_sub(took);
    let (skew, how) = if late.is_zero() { (early, "behind") } else { (late, "ahead of") };
    if skew < SKEW {
        return Check::ok(check, format!("within {} of this host's clock", written(SKEW)));
    }
    Check::warning(check, format!("{} {how} this host's clock", measured(skew))).advise(
        "set both hosts' clocks by NTP: only Postgres's clock decides anything, but the times in logs and in \
         Tenure-Run-At mislead",
    )
}

/// Returns these checks as skipped, and why.
fn skip(checks: &[&'static str], why: &str) -> Vec<Check> {
    checks.iter().map(|check| Check::skipped(check, why)).collect()
}

/// Returns these checks as skipped because a statement failed.
pub(crate) fn skip_by(checks: &[&'static str], error: &StoreError) -> Vec<Check> {
    let mut skipped = skip(checks, &text(error));
    if error.is_denied() {
        for check in &mut skipped {
            check.to_do =
                Some("connect as a role in tenure_worker or tenure_viewer: see postgres/roles.sql".into());
        }
    }
    skipped
}

/// An error and its causes.
fn text(error: &StoreError) -> String {
    JobError::from(error.clone()).text()
}

/// [`span`] of a duration that may be unknown.
fn span_of(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "?".into(), measured)
}

/// Joins the first of many texts.
pub(crate) fn some_of(all: &[String]) -> String {
    const SHOWN: usize = 5;
    match all.len() {
        n if n > SHOWN + 1 => format!("{}, and {} more", all[..SHOWN].join(", "), n - SHOWN),
        _ => all.join(", "),
    }
}

/// "1 job" or "2 jobs"; a count that stopped at its limit says so.
pub(crate) fn jobs_of(jobs: i64, most: i64) -> String {
    match jobs {
        1 => "1 job".into(),
        n if n >= most => format!("{n} jobs or more"),
        n => format!("{n} jobs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_only_by_more_than_the_call_took() {
        let asked_at = DateTime::UNIX_EPOCH;
        let state = |ahead_s: i64, took_s: u64| {
            let answered_at = asked_at + chrono::TimeDelta::seconds(ahead_s);
            clock("clock", answered_at, asked_at, Duration::from_secs(took_s)).state
        };
        assert_eq!(state(0, 0), CheckState::Ok);
        assert_eq!(state(4, 0), CheckState::Ok);
        assert_eq!(state(-4, 0), CheckState::Ok);
        assert_eq!(state(5, 0), CheckState::Warning);
        assert_eq!(state(-5, 0), CheckState::Warning);
        assert_eq!(state(9, 8), CheckState::Ok, "the server may have read its clock at the end of the call");
        assert_eq!(state(14, 8), CheckState::Warning);
        let found = |ahead_s| {
            let answered_at = asked_at + chrono::TimeDelta::seconds(ahead_s);
            clock("clock", answered_at, asked_at, Duration::ZERO).found
        };
        assert_eq!(found(3_600), "1h ahead of this host's clock");
        assert_eq!(found(-90), "1m 30s behind this host's clock");
    }

    #[test]
    fn spans_and_counts_are_short() {
        assert_eq!(span_of(None), "?");
        let names: Vec<_> = (0..9).map(|n| n.to_string()).collect();
        assert_eq!(some_of(&names[..6]), "0, 1, 2, 3, 4, 5");
        assert_eq!(some_of(&names), "0, 1, 2, 3, 4, and 4 more");
        assert_eq!(jobs_of(1, 10), "1 job");
        assert_eq!(jobs_of(10, 10), "10 jobs or more");
    }

    #[test]
    fn timers_that_contradict_each_other_are_wrong() {
        assert_eq!(timers(&Timing::DEFAULT).state, CheckState::Ok);
        let short = Timing { ack_wait: Duration::from_secs(1), ..Timing::DEFAULT };
        let checked = timers(&short);
        assert_eq!(checked.state, CheckState::Wrong);
        assert!(checked.found.contains("ack_wait (1s)"), "{}", checked.found);
    }
}
