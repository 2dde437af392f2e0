//! Groups: jobs that wait for other jobs, and events that jobs wait for.
//!
//! ```text
//! group(jobs).then(job)      graph: add(job), .after([..])
//!          └──────────┬──────────┘
//!                   Plan ──► jobs, edges and followers, in one transaction ──► tickets
//! ```
//!
//! A follower exists from the start, held: `migrations/functions/groups` says how it is released.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_group_is_enqueued_whole_or_not_at_all`
//! - `a_follower_starts_once_when_the_last_job_before_it_has_completed`

use std::{
    collections::{BTreeMap, HashSet},
    future::IntoFuture,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt;
use serde::Serialize;
use uuid::Uuid;

use super::store::{GroupEdge, GroupJob, Signalled, WaitsFor, add_followers, link_jobs};
use crate::{
    client::{
        Tenure,
        enqueue::{JobRequest, admit, in_time},
        jobs::CancelOutcome,
    },
    enqueue::insert::{Created, EnqueueError, insert_in},
    job::{JobId, check_key, unstorable},
    nats::Ticket,
    store::{NewJob, Store, StoreError},
};

/// The most jobs of one statement.
pub(crate) const JOBS_AT_ONCE: usize = 2_000;
/// The most edges of one statement.
pub(crate) const EDGES_AT_ONCE: usize = 10_000;
/// The most jobs that one call enqueues as a group.
const JOBS_MAX: usize = 200_000;
/// The most edges that one call enqueues or reads of a group.
pub(crate) const EDGES_MAX: u32 = 500_000;
/// The most edges of one look.
const EDGES_LOOKED_AT: i64 = 20_000;
/// How often a cancellation looks again for jobs that running members have added.
const LOOKS_MAX: usize = 10;
/// The most jobs of one look.
const LOOKED_AT_MAX: usize = 10_000;

/// What a follower does when a job before it has failed for good, or was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It is cancelled at once, and so are those that follow it in the same way. If the failed job is redriven and
    /// completes, it comes back, and runs.
    #[default]
    Cancel,
    /// It runs once all jobs before it have ended: completed, failed or cancelled.
    Run,
    /// It waits until the failed job is redriven and completes. It is cancelled when that job was cancelled, or its
    /// dead letter is purged.
    Hold,
}

impl OnFailure {
    fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Run => "run",
            Self::Hold => "hold",
        }
    }
}

/// The result of enqueueing a group or a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EnqueuedGroup {
    /// The follower of a group; of a graph, the job that was added last. If another job held the unique key, that job.
    pub id: JobId,
    /// Whether another job held the unique key, so that nothing was enqueued.
    pub duplicate: bool,
    /// The jobs that were enqueued, in the order in which they were given; the follower of a group is the last.
    pub jobs: Vec<JobId>,
}

/// Jobs that were created together, some of which wait for others.
#[derive(Debug, Clone, Default)]
struct Plan {
    jobs: Vec<JobRequest>,
    ids: Vec<JobId>,
    /// Which job comes before which, by their places: the first of each pair is the lower.
    edges: Vec<(usize, usize)>,
    on_failure: BTreeMap<usize, OnFailure>,
    /// A job that was to wait for one that was added later.
    fault: Option<(usize, usize)>,
}

impl Plan {
    fn add(&mut self, job: JobRequest) -> usize {
        let id = JobId::generate();
        self.jobs.push(job.with_id(id));
        self.ids.push(id);
        self.jobs.len() - 1
    }

    /// Checks the jobs, before anything is written.
    fn checked(self, tenure: &Tenure) -> Result<Checked, EnqueueError> {
        let wrong = |what, value, expected| Err(EnqueueError::Option { what, value, expected });
        if self.jobs.len() > JOBS_MAX {
            let expected = "a group of at most 200,000 jobs: let the members add the others, or split it";
            return wrong("the number of jobs", self.jobs.len().to_string(), expected);
        }
        if self.jobs.is_empty() {
            return wrong("the number of jobs", "0".into(), "at least 1");
        }
        if self.edges.len() > EDGES_MAX as usize {
            let expected = "at most 500,000: let many jobs wait for one, and that one be waited for by many";
            return wrong("the number of waits", self.edges.len().to_string(), expected);
        }
        if let Some((before, after)) = self.fault {
            let value = format!("{before} for job {after}");
            return wrong("the job before", value, "one that was added to the same graph earlier");
        }
        let waiting: HashSet<usize> = self.edges.iter().map(|(_, after)| *after).collect();
        let linked: HashSet<usize> = self.edges.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let group = Uuid::now_v7();
        let accepts = tenure.accepts();
        let mut keyed = None;
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for (place, request) in self.jobs.into_iter().enumerate() {
            if let Some(key) = request.own_key() {
                if request.replaces() {
                    return wrong(
                        "replace",
                        format!("{key:?}"),
                        "left out: a job of a group is not replaced",
                    );
                }
                if keyed.replace(place).is_some() {
                    let expected =
                        "the only one of its group: it keeps the whole group from being enqueued twice";
                    return wrong("a second unique key", format!("{key:?}"), expected);
                }
            }
            let group = linked.contains(&place).then_some(group);
            jobs.push(request.in_group(accepts, group, waiting.contains(&place))?);
        }
        Ok(Checked { jobs, ids: self.ids, edges: self.edges, on_failure: self.on_failure, group, keyed })
    }
}

/// A plan without a fault.
struct Checked {
    jobs: Vec<NewJob>,
    ids: Vec<JobId>,
    edges: Vec<(usize, usize)>,
    on_failure: BTreeMap<usize, OnFailure>,
    group: Uuid,
    /// The job that has a unique key.
    keyed: Option<usize>,
}

impl Checked {
    /// Writes the rows, unless another job holds the unique key. Also returns the tickets to publish after the commit.
    async fn insert(
        mut self,
        tenure: &Tenure,
        tx: &mut sqlx::PgConnection,
    ) -> Result<(EnqueuedGroup, Vec<Ticket>), EnqueueError> {
        let hooks = tenure.enqueue_hooks();
        let mut tickets = Vec::new();
        if let Some(keyed) = self.keyed {
            // First: if the key is taken, nothing else is written.
            let job = self.jobs.remove(keyed);
            let (created, first) = within(tenure, insert_in(tx, hooks, &[job])).await?;
            if let [Created::HeldBy(id)] = created[..] {
                return Ok((EnqueuedGroup { id, duplicate: true, jobs: vec![] }, vec![]));
            }
            tickets.extend(first);
        }
        // Before the jobs: Postgres takes these for new jobs alone.
        let followers: BTreeMap<JobId, &str> = self
            .edges
            .iter()
            .map(|(_, after)| {
                (self.ids[*after], self.on_failure.get(after).copied().unwrap_or_default().word())
            })
            .collect();
        let (afters, words): (Vec<_>, Vec<_>) = followers.into_iter().unzip();
        for (afters, words) in afters.chunks(EDGES_AT_ONCE).zip(words.chunks(EDGES_AT_ONCE)) {
            let added = add_followers(tx, self.group, afters, words);
            within(tenure, async { Ok(added.await?) }).await?;
        }
        for edges in self.edges.chunks(EDGES_AT_ONCE) {
            let (befores, afters): (Vec<_>, Vec<_>) =
                edges.iter().map(|(before, after)| (self.ids[*before], self.ids[*after])).unzip();
            let linked = link_jobs(tx, self.group, &befores, &afters);
            within(tenure, async { Ok(linked.await?) }).await?;
        }
        for jobs in self.jobs.chunks(JOBS_AT_ONCE) {
            let (_, more) = within(tenure, insert_in(tx, hooks, jobs)).await?;
            tickets.extend(more);
        }
        let id = self.ids.last().copied().unwrap_or(JobId(Uuid::nil()));
        Ok((EnqueuedGroup { id, duplicate: false, jobs: self.ids }, tickets))
    }
}

/// Bounds the time of one statement.
async fn within<T>(
    tenure: &Tenure,
    statement: impl Future<Output = Result<T, EnqueueError>>,
) -> Result<T, EnqueueError> {
    in_time(tenure, tenure.store().until(), statement).await.map_err(EnqueueError::said)
}

async fn enqueue_in(
    tenure: &Tenure,
    plan: Plan,
    tx: &mut sqlx::PgConnection,
) -> Result<EnqueuedGroup, EnqueueError> {
    let checked = plan.checked(tenure)?;
    let _admitted = admit(tenure, &checked.jobs, tenure.store().until()).await?;
    let (enqueued, tickets) = checked.insert(tenure, tx).await?;
    tenure.uncommitted().watch(tickets);
    Ok(enqueued)
}

async fn enqueue(tenure: &Tenure, plan: Plan) -> Result<EnqueuedGroup, EnqueueError> {
    let of_task = tenure.clone();
    let enqueued = tenure
        .store()
        .long_transaction(move |tx| async move { enqueue_in(&of_task, plan, tx).await }.boxed());
    let enqueued = enqueued.await?;
    tenure.uncommitted().look().await;
    Ok(enqueued)
}

type EnqueueFuture<'t> = Pin<Box<dyn Future<Output = Result<EnqueuedGroup, EnqueueError>> + Send + 't>>;

/// Jobs that come before one other. See [`Tenure::group`].
#[derive(Debug)]
#[must_use = "nothing is enqueued until you call `then`, and await that or pass it a transaction"]
pub struct Group<'t> {
    tenure: &'t Tenure,
    members: Vec<JobRequest>,
}

impl<'t> Group<'t> {
    /// Adds the follower: the job that starts once all the others have completed. Its handler reads what they left
    /// with [`JobContext::outputs`](crate::JobContext::outputs). Without members it starts at once.
    ///
    /// A unique key of the follower keeps the whole group from being enqueued twice.
    pub fn then(self, job: impl Into<JobRequest>) -> Then<'t> {
        let mut plan = Plan::default();
        for member in self.members {
            plan.add(member);
        }
        let follower = plan.add(job.into());
        plan.edges = (0..follower).map(|member| (member, follower)).collect();
        Then { tenure: self.tenure, plan }
    }
}

/// A group with its follower: `.await` it, or pass it a transaction.
#[derive(Debug)]
#[must_use = "nothing is enqueued until you `.await` this, or pass a transaction to `tx`"]
pub struct Then<'t> {
    tenure: &'t Tenure,
    plan: Plan,
}

impl Then<'_> {
    /// Says what the follower does when a member fails.
    pub fn on_failure(mut self, does: OnFailure) -> Self {
        self.plan.on_failure.insert(self.plan.jobs.len() - 1, does);
        self
    }

    /// Enqueues the group inside the user's transaction, as [`Enqueue::tx`](crate::Enqueue::tx) does a job.
    ///
    /// # Errors
    ///
    /// Those of [`Enqueue::tx`](crate::Enqueue::tx): roll the transaction back.
    pub async fn tx(self, tx: &mut sqlx::PgConnection) -> Result<EnqueuedGroup, EnqueueError> {
        enqueue_in(self.tenure, self.plan, tx).await
    }
}

impl<'t> IntoFuture for Then<'t> {
    type Output = Result<EnqueuedGroup, EnqueueError>;
    type IntoFuture = EnqueueFuture<'t>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(enqueue(self.tenure, self.plan))
    }
}

/// Jobs of which each may wait for several others. See [`Tenure::graph`].
#[derive(Debug)]
#[must_use = "nothing is enqueued until you `.await` this, or pass a transaction to `tx`"]
pub struct Graph<'t> {
    tenure: &'t Tenure,
    plan: Arc<Mutex<Plan>>,
}

/// A job of a [`Graph`] that is being made. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    plan: Arc<Mutex<Plan>>,
    place: usize,
    id: JobId,
}

fn locked(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graph<'_> {
    /// Adds a job. At most one job of a graph has a unique key: it keeps the whole graph from being enqueued twice.
    pub fn add(&self, job: impl Into<JobRequest>) -> Node {
        let mut plan = locked(&self.plan);
        let place = plan.add(job.into());
        Node { plan: self.plan.clone(), place, id: plan.ids[place] }
    }

    /// Enqueues the graph inside the user's transaction, as [`Enqueue::tx`](crate::Enqueue::tx) does a job.
    ///
    /// # Errors
    ///
    /// Those of [`Enqueue::tx`](crate::Enqueue::tx), and [`EnqueueError::Option`] if a job was to wait for one that
    /// was added later, or to another graph.
    pub async fn tx(self, tx: &mut sqlx::PgConnection) -> Result<EnqueuedGroup, EnqueueError> {
        let plan = std::mem::take(&mut *locked(&self.plan));
        enqueue_in(self.tenure, plan, tx).await
    }
}

impl<'t> IntoFuture for Graph<'t> {
    type Output = Result<EnqueuedGroup, EnqueueError>;
    type IntoFuture = EnqueueFuture<'t>;

    fn into_future(self) -> Self::IntoFuture {
        let plan = std::mem::take(&mut *locked(&self.plan));
        Box::pin(enqueue(self.tenure, plan))
    }
}

impl Node {
    /// Lets the job wait until these have ended. They were added to the same graph before it, so that no circle can
    /// be made.
    #[expect(clippy::return_self_not_must_use, reason = "the call has changed the graph already")]
    pub fn after<N: std::borrow::Borrow<Node>>(self, nodes: impl IntoIterator<Item = N>) -> Self {
        let mut plan = locked(&self.plan);
        for node in nodes {
            let before = node.borrow();
            if Arc::ptr_eq(&before.plan, &self.plan) && before.place < self.place {
                plan.edges.push((before.place, self.place));
            } else {
                plan.fault.get_or_insert((before.place, self.place));
            }
        }
        drop(plan);
        self
    }

    /// Says what the job does when one before it fails.
    #[expect(clippy::return_self_not_must_use, reason = "the call has changed the graph already")]
    pub fn on_failure(self, does: OnFailure) -> Self {
        locked(&self.plan).on_failure.insert(self.place, does);
        self
    }

    /// The id that the job will have.
    pub fn id(&self) -> JobId {
        self.id
    }
}

/// Why a job was not told of an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// The event's name is not valid.
    #[error("the name of an event {rule}: {name:?}")]
    Name {
        /// The name.
        name: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The payload is not JSON that Postgres can hold.
    #[error("the payload of an event cannot be stored: {0}")]
    Payload(String),
    /// Postgres did not answer, or refused. The call is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The jobs of a group, and which waits for which.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GroupView {
    /// The jobs: those first that wait for none, each before those that follow it.
    pub jobs: Vec<GroupJob>,
    /// Which job waits for which.
    pub edges: Vec<GroupEdge>,
    /// Whether the group has more edges than are shown.
    pub is_cut: bool,
}

impl Tenure {
    /// Enqueues jobs, and one that follows them: it starts once all of them have completed. All rows are written in
    /// one transaction, or none.
    ///
    /// The members run as any jobs do, on any workers, in any queues. The follower exists from the start, held: it has
    /// no message, and takes no slot. [`OnFailure`] says what becomes of it when a member fails. A member may add
    /// others while it runs, with [`JobContext::add_to_group`](crate::JobContext::add_to_group).
    ///
    /// ```no_run
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{EnqueueError, Job, Tenure};
    /// # #[derive(Serialize, Deserialize)] struct Score { part: u32 }
    /// # impl Job for Score { const KIND: &'static str = "score"; }
    /// # #[derive(Serialize, Deserialize)] struct Report { day: u32 }
    /// # impl Job for Report { const KIND: &'static str = "report"; }
    /// # async fn f(tenure: Tenure) -> Result<(), EnqueueError> {
    /// let parts = (0..100).map(|part| Score { part });
    /// let report = tenure.group(parts).then(Report { day: 7 }).await?;
    /// println!("the report will be job {}", report.id);
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe: if the future is dropped, the group was either enqueued or not.
    ///
    /// # Errors
    ///
    /// The future returns [`EnqueueError`]; nothing was enqueued, but perhaps all after [`EnqueueError::Store`].
    /// [`EnqueueError::Option`] also if a member has a unique key and the follower has one, too: one job of a group
    /// may have a key.
    pub fn group<R: Into<JobRequest>>(&self, jobs: impl IntoIterator<Item = R>) -> Group<'_> {
        Group { tenure: self, members: jobs.into_iter().map(Into::into).collect() }
    }

    /// Enqueues jobs of which each may wait for others: all of them, or none.
    ///
    /// ```no_run
    /// # use serde_json::json;
    /// # use tenure::{EnqueueError, JobRequest, Tenure, groups::OnFailure};
    /// # async fn f(tenure: Tenure) -> Result<(), EnqueueError> {
    /// let job = |kind| JobRequest::new("train", kind, json!({}));
    /// let graph = tenure.graph();
    /// let fetch = graph.add(job("fetch"));
    /// let parts: Vec<_> = (0..4).map(|_| graph.add(job("score")).after([&fetch])).collect();
    /// let merge = graph.add(job("merge")).after(&parts);
    /// graph.add(job("tidy")).after([&merge]).on_failure(OnFailure::Run);
    /// graph.await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe, as [`Tenure::group`] is.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::group`]; [`EnqueueError::Option`] if a job was to wait for one that was added later.
    pub fn graph(&self) -> Graph<'_> {
        Graph { tenure: self, plan: Arc::default() }
    }

    /// Tells a job of an event: its [`JobContext::event`](crate::JobContext::event) of this name returns the payload,
    /// whether it waits already or will. The first event of a name counts.
    ///
    /// Cancel safe: if the future is dropped, the job was told or not; the call is safe to repeat.
    ///
    /// # Errors
    ///
    /// See [`SignalError`].
    pub async fn signal(
        &self,
        job: JobId,
        name: &str,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<Signalled, SignalError> {
        Ok(self.store().signal(job, name, &signal_text(name, payload)?, self.actor()).await?)
    }

    /// [`Tenure::signal`] inside the user's transaction: the job is told when that commits.
    ///
    /// # Errors
    ///
    /// See [`SignalError`]. After [`SignalError::Store`] roll the transaction back.
    pub async fn signal_in(
        &self,
        tx: &mut sqlx::PgConnection,
        job: JobId,
        name: &str,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<Signalled, SignalError> {
        Ok(Store::signal_in(tx, job, name, &signal_text(name, payload)?, self.actor()).await?)
    }

    /// Returns for what these jobs wait, besides their lanes: for other jobs, or for events. A job that waits for
    /// nothing is left out.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn waits_for(&self, jobs: &[JobId]) -> Result<Vec<(JobId, WaitsFor)>, StoreError> {
        self.store().waits_for(jobs).await
    }

    /// Returns the group of a job, which is any of its jobs. `None`: the job waits for none, and none waits for it.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn group_of(&self, job: JobId) -> Result<Option<GroupView>, StoreError> {
        self.group_view(job, EDGES_MAX).await
    }

    /// [`Tenure::group_of`] with at most `edges_max` edges.
    pub(crate) async fn group_view(
        &self,
        job: JobId,
        edges_max: u32,
    ) -> Result<Option<GroupView>, StoreError> {
        let mut edges = self.edges_of(job, edges_max.saturating_add(1)).await?;
        if edges.is_empty() {
            return Ok(None);
        }
        let is_cut = edges.len() > edges_max as usize;
        edges.truncate(edges_max as usize);
        let ids = in_order(&edges);
        let mut known = BTreeMap::new();
        for some in ids.chunks(LOOKED_AT_MAX) {
            known.extend(self.store().nodes(some).await?.into_iter().map(|node| (node.id, node)));
        }
        let gone = |id| GroupJob {
            id,
            queue: String::new(),
            kind: String::new(),
            status: None,
            progress: None,
            is_held: false,
        };
        let jobs = ids.into_iter().map(|id| known.remove(&id).unwrap_or_else(|| gone(id))).collect();
        Ok(Some(GroupView { jobs, edges, is_cut }))
    }

    /// Returns at most `most` edges of the group of a job, the oldest first.
    async fn edges_of(&self, job: JobId, most: u32) -> Result<Vec<GroupEdge>, StoreError> {
        let (mut edges, mut after) = (Vec::new(), 0);
        loop {
            let left = i64::from(most).saturating_sub_unsigned(edges.len() as u64);
            let (some, last) = self.store().graph(job, after, left.min(EDGES_LOOKED_AT)).await?;
            if some.is_empty() {
                return Ok(edges);
            }
            edges.extend(some);
            after = last;
        }
    }

    /// Cancels every job of the group of this job, as [`Tenure::cancel`] does one: those first that wait for others,
    /// and also those that members add meanwhile. Returns the result for each. A job without a group is cancelled
    /// alone.
    ///
    /// Cancel safe: jobs that it did not reach were not cancelled; call it again.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. Some of the jobs may be cancelled; the call is safe to
    /// repeat.
    pub async fn cancel_group(&self, job: JobId) -> Result<Vec<(JobId, CancelOutcome)>, StoreError> {
        let mut known = HashSet::new();
        let mut all = Vec::new();
        for _ in 0..LOOKS_MAX {
            let edges = self.edges_of(job, u32::MAX).await?;
            let mut jobs = in_order(&edges);
            if jobs.is_empty() {
                jobs.push(job);
            }
            // From the last to the first: no follower is released meanwhile.
            let new: Vec<_> = jobs.into_iter().rev().filter(|job| known.insert(*job)).collect();
            if new.is_empty() {
                break;
            }
            let outcomes = self.cancel_many(&new).await?;
            all.extend(new.into_iter().zip(outcomes));
        }
        Ok(all)
    }
}

fn signal_text(name: &str, payload: &(impl Serialize + ?Sized)) -> Result<String, SignalError> {
    check_key(name).map_err(|rule| SignalError::Name { name: name.into(), rule })?;
    let value = serde_json::to_value(payload).map_err(|error| SignalError::Payload(error.to_string()))?;
    if let Some(why) = unstorable(&value) {
        return Err(SignalError::Payload(why.to_owned()));
    }
    serde_json::to_string(payload).map_err(|error| SignalError::Payload(error.to_string()))
}

/// Returns the jobs of these edges, each before those that follow it.
fn in_order(edges: &[GroupEdge]) -> Vec<JobId> {
    let mut before: BTreeMap<JobId, usize> = BTreeMap::new();
    let mut after: BTreeMap<JobId, Vec<JobId>> = BTreeMap::new();
    for edge in edges {
        before.entry(edge.before).or_default();
        *before.entry(edge.after).or_default() += 1;
        after.entry(edge.before).or_default().push(edge.after);
    }
    let mut next: std::collections::VecDeque<_> =
        before.iter().filter(|(_, count)| **count == 0).map(|(job, _)| *job).collect();
    let mut ordered = Vec::with_capacity(before.len());
    while let Some(job) = next.pop_front() {
        ordered.push(job);
        for follower in after.get(&job).into_iter().flatten() {
            if let Some(count) = before.get_mut(follower) {
                *count -= 1;
                if *count == 0 {
                    next.push_back(*follower);
                }
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_before_those_that_follow_them() {
        let ids: Vec<_> = (0..5).map(|_| JobId::generate()).collect();
        let edge = |before: usize, after: usize| GroupEdge {
            before: ids[before],
            after: ids[after],
            step: None,
            state: None,
        };
        let ordered = in_order(&[edge(3, 1), edge(0, 3), edge(1, 2), edge(0, 2)]);
        assert_eq!(ordered, [0, 3, 1, 2].map(|place| ids[place]));
        assert!(in_order(&[]).is_empty());
    }
}
