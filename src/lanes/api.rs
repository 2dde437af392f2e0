//! Lanes: a queue's limits, rates and turns by a key that producers say.
//!
//! *Hold the ticket, not the job*: a job of a queue with lanes is a row without a message until its lane has a slot, a
//! token and the turn. `tenure.admit` in `migrations/functions/lanes` decides; no claim and no completion knows of
//! lanes.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_lane_never_runs_more_jobs_than_its_limit`
//! - `lanes_take_turns_whatever_their_backlog`
//! - `an_ordered_lane_runs_its_jobs_one_after_another_retries_included`

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::store::{HeldFor, LaneRow, LanesRow, NewLanes};
use crate::{
    client::Tenure,
    job::{JobId, NameError, check_lane, check_queue, duration::written},
    store::{Change, StoreError},
};

/// The highest limit of a lane.
const RUNNING_MAX: u32 = 10_000;
/// The most tokens of a bucket, and the most of a second.
const TOKENS_MAX: f64 = 1e6;
/// A bucket holds a second's tokens divided by this, or more.
const LOOKS_HOLD: f64 = 5.0;
/// The longest time in which a rate counts.
const PER_MAX: Duration = Duration::from_hours(24 * 366);
/// The bounds of a weight.
const WEIGHTS: std::ops::RangeInclusive<f64> = 0.01..=100.0;
/// How long a change waits for transactions that have enqueued and are still open.
const PUT_WITHIN: Duration = Duration::from_secs(30);
/// The pause between two tries.
const PUT_AGAIN_AFTER: Duration = Duration::from_millis(300);

/// The lanes of a queue: what limits each of them, and how they share the workers.
///
/// ```
/// use std::time::Duration;
/// use tenure::lanes::Lanes;
///
/// // Each lane: two jobs at once, ten started a second. Lanes take turns.
/// let lanes = Lanes::new().running(2).rate(10, Duration::from_secs(1)).turns();
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "give it to `Tenure::put_lanes`"]
pub struct Lanes {
    running: Option<u32>,
    rate: Option<(u32, Duration)>,
    burst: Option<u32>,
    queue_rate: Option<(u32, Duration)>,
    queue_burst: Option<u32>,
    turns: bool,
    ordered: bool,
    required: bool,
}

impl Lanes {
    /// Lanes that limit nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs at most this many jobs of each lane at once, in the whole fleet: 1 to 10,000.
    pub fn running(mut self, jobs: u32) -> Self {
        self.running = Some(jobs);
        self
    }

    /// Starts at most `jobs` of each lane in any `per` on average: a bucket of tokens, by the database's clock. A
    /// bucket holds `jobs` tokens, or as [`Lanes::burst`] says, so that up to twice as many may start in one `per`. A
    /// retry is a start. A job that is cancelled before it started gives its token back.
    pub fn rate(mut self, jobs: u32, per: Duration) -> Self {
        self.rate = Some((jobs, per));
        self
    }

    /// The most jobs of a lane with a rate that start at once, after a pause: a fifth of a second's or more.
    pub fn burst(mut self, jobs: u32) -> Self {
        self.burst = Some(jobs);
        self
    }

    /// As [`Lanes::rate`], for all lanes of the queue together.
    pub fn queue_rate(mut self, jobs: u32, per: Duration) -> Self {
        self.queue_rate = Some((jobs, per));
        self
    }

    /// As [`Lanes::burst`], for all lanes of the queue together.
    pub fn queue_burst(mut self, jobs: u32) -> Self {
        self.queue_burst = Some(jobs);
        self
    }

    /// Lanes take turns by [weight](LaneOptions::weight), even if one has a long backlog. At most twice as many jobs
    /// of the queue have messages as its live workers have slots (and at least 16); the others wait as rows, so that a
    /// new lane's job, or one of a [high priority](crate::JobRequest::priority), overtakes them.
    pub fn turns(mut self) -> Self {
        self.turns = true;
        self
    }

    /// The jobs of a lane run strictly one after another, in the order in which they were inserted: a retry, a snooze
    /// and a delay hold up those behind them, and priorities do not count. A dead letter does not hold up the lane.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Refuses each new job that names no lane, from whichever program: without this, such jobs share the lane of the
    /// empty key. [`Job::options`](crate::Job::options) names the lane once for a type. A submission without a lane
    /// becomes a dead letter, and a tick of a schedule without one waits until the schedule is changed.
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    fn checked(&self) -> Result<NewLanes, LanesError> {
        if let Some(running) = self.running.filter(|n| !(1..=RUNNING_MAX).contains(n)) {
            return wrong("running", running.to_string(), "1 to 10000; to start no jobs, pause the queue");
        }
        if self.ordered && self.running.is_some_and(|n| n > 1) {
            let running = self.running.unwrap_or_default().to_string();
            return wrong("running", running, "1 or left out in ordered lanes");
        }
        Ok(NewLanes {
            running: self.running,
            rate: bucket(["rate", "burst"], self.rate, self.burst)?,
            queue_rate: bucket(["queue_rate", "queue_burst"], self.queue_rate, self.queue_burst)?,
            turns: self.turns,
            ordered: self.ordered,
            required: self.required,
        })
    }
}

/// Returns the tokens a second and the most tokens of a bucket with these names.
fn bucket(
    names: [&'static str; 2],
    rate: Option<(u32, Duration)>,
    burst: Option<u32>,
) -> Result<Option<(f64, f64)>, LanesError> {
    let Some((jobs, per)) = rate else {
        return match burst {
            Some(burst) => wrong(names[1], burst.to_string(), "left out without a rate"),
            None => Ok(None),
        };
    };
    let a_second = f64::from(jobs) / per.as_secs_f64();
    if jobs == 0 || per.is_zero() || per > PER_MAX || a_second > TOKENS_MAX {
        let expected = "at least 1 job, in a time above zero and of at most a year, and at most 1000000 a second; \
                        to start no jobs, pause the queue";
        return wrong(names[0], format!("{jobs} in {}", written(per)), expected);
    }
    // A full bucket loses tokens, and lanes are looked at ten times a second: two looks' tokens must have room.
    let least = (a_second / LOOKS_HOLD).ceil().max(1.0);
    let burst = burst.map_or(f64::from(jobs).max(least), f64::from);
    if !(least..=TOKENS_MAX).contains(&burst) {
        let expected =
            "a fifth of the starts of a second or more, for the rate to be reached, and 1 to 1000000";
        return wrong(names[1], burst.to_string(), expected);
    }
    Ok(Some((a_second, burst)))
}

fn wrong<T>(what: &'static str, value: String, expected: &'static str) -> Result<T, LanesError> {
    Err(LanesError::Option { what, value, expected })
}

/// Settings of one lane. Those that are not set stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[must_use = "give it to `Tenure::set_lane`"]
pub struct LaneOptions {
    weight: Change<f64>,
    running: Change<u32>,
}

impl LaneOptions {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the lane's share of the turns: 0.01 to 100, or `None` for 1. A lane of weight 3 gets three turns while one
    /// of weight 1 gets one.
    pub fn weight(mut self, weight: impl Into<Option<f64>>) -> Self {
        self.weight = weight.into().into();
        self
    }

    /// Sets how many of the lane's jobs may run: 1 to 10,000, or `None` for as many as the queue's other lanes.
    pub fn running(mut self, jobs: impl Into<Option<u32>>) -> Self {
        self.running = jobs.into().into();
        self
    }
}

/// Why a queue's lanes were not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LanesError {
    /// The queue's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A setting is invalid. Nothing has changed.
    #[error("{what} is {value}, but must be {expected}")]
    Option {
        /// The setting's name.
        what: &'static str,
        /// The given value.
        value: String,
        /// The values that it may have.
        expected: &'static str,
    },
    /// The queue has no lanes: give it some with [`Tenure::put_lanes`] or `tenure queues lanes`.
    #[error(
        "queue {queue:?} has no lanes; give it some with `tenure queues lanes {queue} --running N`, for example"
    )]
    NoLanes {
        /// The queue.
        queue: String,
    },
    /// A transaction that has enqueued jobs is still open. Nothing has changed; try again once it has ended.
    #[error(
        "a transaction that has enqueued jobs, or changes them, is still open; tenure tried for {} and changed \
         nothing. End it, or try again; `tenure doctor` names long transactions",
        written(*.waited)
    )]
    Busy {
        /// How long tenure tried.
        waited: Duration,
    },
    /// Postgres did not answer, or refused. Try again: the call is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn key_checked(lane: &str) -> Result<(), LanesError> {
    let shown = || format!("{:?} ({} bytes)", lane.chars().take(80).collect::<String>(), lane.len());
    // The lane of the jobs that name none has no key.
    if lane.is_empty() {
        return Ok(());
    }
    check_lane(lane).map_err(|expected| LanesError::Option { what: "lane", value: shown(), expected })
}

impl Tenure {
    /// Gives a queue lanes, or replaces their settings. From then on, each new job of the queue is held until its lane
    /// may release it, whichever program enqueues it; a job that names no lane is in the lane of the empty key.
    ///
    /// Jobs that stood in the queue before count towards the limits of their lanes; those that have a message keep it.
    /// Jobs that run already go on. The relay hears of a queue's first lanes within a second or two.
    ///
    /// The call waits for open transactions that have enqueued jobs, at most for half a minute, and holds up others for
    /// at most 0.3 s at a time.
    ///
    /// Cancel safe: the settings changed or not; repeat a call that was dropped.
    ///
    /// # Errors
    ///
    /// See [`LanesError`].
    pub async fn put_lanes(&self, queue: &str, lanes: Lanes) -> Result<(), LanesError> {
        check_queue(queue)?;
        let lanes = lanes.checked()?;
        let began = Instant::now();
        loop {
            match self.store().put_lanes(queue, &lanes, self.actor()).await {
                Err(error) if error.is_locked() || error.is_deadlock() => {
                    if began.elapsed() > PUT_WITHIN {
                        return Err(LanesError::Busy { waited: began.elapsed() });
                    }
                    sleep(PUT_AGAIN_AFTER).await;
                }
                put => break put?,
            }
        }
        loop {
            match self.store().adopt_jobs(queue).await {
                Ok(0) => break,
                Ok(_) => {}
                // A transaction has locked such a job.
                Err(error) if error.is_locked() || error.is_deadlock() => {
                    if began.elapsed() > PUT_WITHIN {
                        tracing::warn!(
                            queue,
                            "a transaction holds jobs of a queue that has lanes now; they count in no lane"
                        );
                        break;
                    }
                    sleep(PUT_AGAIN_AFTER).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.nats().announce_settings().await;
        Ok(())
    }

    /// Takes a queue's lanes away: nothing limits its jobs any more, and those that are held are released within some
    /// seconds. Returns whether it had lanes.
    ///
    /// Cancel safe, as [`Tenure::put_lanes`] is.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::put_lanes`].
    pub async fn remove_lanes(&self, queue: &str) -> Result<bool, LanesError> {
        check_queue(queue)?;
        let had = self.store().remove_lanes(queue, self.actor()).await?;
        match self.store().forget_lanes(queue).await {
            // The trigger stays: new jobs are held for a moment, and released as the others are.
            Err(error) if error.is_locked() || error.is_deadlock() => {
                tracing::debug!(queue, %error, "the trigger of a queue's lanes stays");
            }
            forgotten => forgotten?,
        }
        self.nats().announce_settings().await;
        Ok(had)
    }

    /// Changes the settings of one lane of a queue.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::put_lanes`]; [`LanesError::NoLanes`].
    pub async fn set_lane(&self, queue: &str, lane: &str, options: LaneOptions) -> Result<(), LanesError> {
        check_queue(queue)?;
        key_checked(lane)?;
        if let Some(weight) = options.weight.value().filter(|weight| !WEIGHTS.contains(weight)) {
            return wrong("weight", weight.to_string(), "0.01 to 100");
        }
        if let Some(running) = options.running.value().filter(|n| !(1..=RUNNING_MAX).contains(n)) {
            return wrong("running", running.to_string(), "1 to 10000; to start no jobs, pause the queue");
        }
        let set = self.store().set_lane(queue, lane, options.weight, options.running, self.actor()).await?;
        set.map(|_| ()).ok_or_else(|| LanesError::NoLanes { queue: queue.to_owned() })
    }

    /// Returns the queues with lanes, and their settings. Counts the held jobs: a third of a second for each million.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn lane_settings(&self) -> Result<Vec<LanesRow>, StoreError> {
        self.store().lane_settings(None).await
    }

    /// Returns at most `limit` lanes of a queue, those first whose jobs have waited longest.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn lanes(&self, queue: &str, limit: u32) -> Result<Vec<LaneRow>, StoreError> {
        self.store().lanes(queue, None, limit.into()).await
    }

    /// Returns for what those of the jobs wait that are held.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn held_for(&self, jobs: &[JobId]) -> Result<Vec<HeldFor>, StoreError> {
        self.store().held_for(jobs).await
    }
}
