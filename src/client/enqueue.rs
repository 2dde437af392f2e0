//! Enqueue: the calls that producers make.
//!
//! Not here: the rows and their first messages (`insert`), jobs that arrive as messages (`deliver`).

mod rare;
mod within;

use std::{
    collections::BTreeMap,
    future::{Future, IntoFuture},
    pin::Pin,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use tracing::{Instrument, Span};

use crate::{
    client::Tenure,
    codec::job::{Codecs, Part, is_sealed},
    enqueue::{
        backpressure::Admitted,
        insert::{BUSY_AFTER, Created, EnqueueError, insert_in, insert_patiently},
    },
    job::{
        AHEAD_MAX, Job, JobId, MAX_ATTEMPTS_DEFAULT, check_kind, check_queue,
        duration::written,
        options::{JobOptions, OnExpiry},
        sizes::stored_bytes,
        unstorable_text,
    },
    observe::trace::{self, Sending},
    store::{NewJob, PublishedBy, StoreError},
};

/// The result of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The job: the new one, or the one that holds the unique key.
    pub id: JobId,
    /// Whether another job held the unique key, so that none was created.
    pub duplicate: bool,
}

/// A job to enqueue, with its options. Any [`Job`] turns into one.
#[derive(Clone)]
pub struct JobRequest {
    queue: String,
    kind: String,
    /// JSON text, as it will be stored.
    payload: Result<String, String>,
    max_attempts: u32,
    delay: Option<Duration>,
    run_at: Option<DateTime<Utc>>,
    trace_context: Option<String>,
    /// The id that a caller waits for already. `None`: a new one.
    id: Option<JobId>,
    options: JobOptions,
    /// The job's type has said the key: one of the call is taken instead.
    key_of_type: bool,
    /// And the expiry.
    expiry_of_type: bool,
    /// The payload comes from a row, sealed.
    is_sealed: bool,
}

/// Without the payload, which logs should not hold.
impl std::fmt::Debug for JobRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobRequest")
            .field("queue", &self.queue)
            .field("kind", &self.kind)
            .field("payload_bytes", &self.payload.as_ref().map(String::len))
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What a new job must fit, and how its payload is sealed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accepts<'a> {
    pub(crate) bytes_max: usize,
    pub(crate) codecs: &'a Codecs,
}

impl<J: Job> From<J> for JobRequest {
    fn from(job: J) -> Self {
        let payload = serde_json::to_string(&job).map_err(|error| error.to_string());
        let options = job.options();
        Self {
            max_attempts: J::MAX_ATTEMPTS,
            payload,
            key_of_type: options.any_key().is_some(),
            expiry_of_type: options.expires_in_s.is_some(),
            options,
            ..Self::new(J::QUEUE, J::KIND, Value::Null)
        }
    }
}

impl JobRequest {
    /// Requests a job without a Rust type.
    pub fn new(queue: impl Into<String>, kind: impl Into<String>, payload: Value) -> Self {
        Self {
            queue: queue.into(),
            kind: kind.into(),
            payload: Ok(payload.to_string()),
            max_attempts: MAX_ATTEMPTS_DEFAULT,
            delay: None,
            run_at: None,
            trace_context: None,
            id: None,
            options: JobOptions::new(),
            key_of_type: false,
            expiry_of_type: false,
            is_sealed: false,
        }
    }

    /// Requests a job with the payload of a row, sealed or not.
    pub(crate) fn from_row(queue: &str, kind: &str, json: impl Into<String>) -> Self {
        let json = json.into();
        let is_sealed = is_sealed(&json);
        Self { is_sealed, ..Self::from_json(queue, kind, json) }
    }

    /// Requests a job whose payload is JSON text, stored as it is: a number keeps all its digits.
    pub fn from_json(queue: impl Into<String>, kind: impl Into<String>, json: impl Into<String>) -> Self {
        Self { payload: Ok(json.into()), ..Self::new(queue, kind, Value::Null) }
    }

    /// Enqueues into this queue instead of the type's own.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Allows at most one job of this key in its queue: a second enqueue returns the first job's id.
    /// A job holds its key while it is live or a dead letter, and for
    /// [`Retention::keys`](crate::settings::Retention::keys) after its end. A submission's `Tenure-Idempotency-Key`, or
    /// without one its `Nats-Msg-Id`, is a unique key of its queue, too.
    #[must_use]
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.options = self.options_without_key_of_type().unique_key(key);
        self
    }

    /// Allows at most one queued job of this key in its queue: while it has not started, a second enqueue returns its
    /// id. Once it runs, the next enqueue creates a new job: a change that is committed with the enqueue is seen by the
    /// job that the call returns. The keys of [`JobRequest::unique_key`] are apart from these.
    #[must_use]
    pub fn unique_while_queued(mut self, key: impl Into<String>) -> Self {
        self.options = self.options_without_key_of_type().unique_while_queued(key);
        self
    }

    /// Allows at most one live job of this key in its queue, queued or running. A job that has ended, or is a dead
    /// letter, holds no such key.
    #[must_use]
    pub fn unique_while_live(mut self, key: impl Into<String>) -> Self {
        self.options = self.options_without_key_of_type().unique_while_live(key);
        self
    }

    /// Debounces: at most one queued job of this key in its queue, as [`JobRequest::unique_while_queued`] has it, with
    /// the payload of the last enqueue. With [`JobRequest::after`], each enqueue moves its time on, but never beyond
    /// [`JobRequest::longest_wait`]. A job that runs keeps its payload, and the next enqueue creates a new one.
    ///
    /// A job that is to be retried gets the new payload, too, keeps its pause, and starts without the checkpoint of the
    /// old one.
    #[must_use]
    pub fn replace(mut self, key: impl Into<String>) -> Self {
        self.options = self.options_without_key_of_type().replace(key);
        self
    }

    /// The same as [`JobRequest::delay`].
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.delay(delay)
    }

    /// Bounds how long [`JobRequest::replace`] may move a job on, from the first enqueue of its key. Without it: ten
    /// times the delay of the enqueue that moves it.
    #[must_use]
    pub fn longest_wait(mut self, wait: Duration) -> Self {
        self.options.longest_s = Some(wait.as_secs_f64());
        self
    }

    /// Puts the job into a lane of its queue: a tenant, a customer, a document. See
    /// [`Tenure::put_lanes`](crate::Tenure::put_lanes). In a queue without lanes nothing limits it. 1 to 256 bytes
    /// without control characters.
    #[must_use]
    pub fn lane(mut self, key: impl Into<String>) -> Self {
        self.options = self.options.lane(key);
        self
    }

    /// Orders the job within its lane: the lower, the sooner; -100 to 100, and 0 without this option. A queue without
    /// lanes has no priorities. In one with lanes, jobs that name no lane share one.
    #[must_use]
    pub fn priority(mut self, priority: i16) -> Self {
        self.options = self.options.priority(priority);
        self
    }

    /// Starts no attempt of the job after this time, by the database's clock. A job that is queued then becomes a dead
    /// letter of the category `expired`, or as [`JobRequest::on_expiry`] says. An attempt that runs goes on.
    #[must_use]
    pub fn not_after(mut self, at: DateTime<Utc>) -> Self {
        self.options = self.options.not_after(at);
        self
    }

    /// Starts no attempt of the job later than this long after it is due: that is at the enqueue, or as
    /// [`JobRequest::delay`] or [`JobRequest::run_at`] says; of a schedule's job, once it is enqueued. One that follows
    /// others has no such time: give it a [`JobRequest::not_after`].
    #[must_use]
    pub fn expires_in(mut self, within: Duration) -> Self {
        (self.options, self.expiry_of_type) = (self.options.expires_in(within), false);
        self
    }

    /// What becomes of a job that was not started by its [time](JobRequest::not_after).
    #[must_use]
    pub fn on_expiry(mut self, becomes: OnExpiry) -> Self {
        self.options = self.options.on_expiry(becomes);
        self
    }

    /// Puts a tag on the job, to find it by: a word, or `key=value`, such as `customer=7`. At most 16 tags, each of 1
    /// to 100 bytes without spaces, commas and control characters. A tag that the job has already changes nothing.
    ///
    /// [`JobFilter::tag`](crate::rows::JobFilter::tag) and [`DeadFilter::tag`](crate::rows::DeadFilter::tag) select by
    /// tags. A handler does not see them, and a job that [replaces](JobRequest::replace) a queued one leaves that one's
    /// tags as they are.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.options = self.options.tag(tag);
        self
    }

    /// Runs the job no earlier than this long from now, by the database's clock.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        (self.delay, self.run_at) = (Some(delay), None);
        self
    }

    /// Runs the job no earlier than at this time, by the database's clock.
    #[must_use]
    pub fn run_at(mut self, at: DateTime<Utc>) -> Self {
        (self.delay, self.run_at) = (None, Some(at));
        self
    }

    /// Limits how often the job is tried, the first attempt included.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Passes the enqueuer's W3C `traceparent` to the handler. An invalid one is ignored.
    ///
    /// With the feature `otel`, where spans are exported, the enqueue has a span of its own, a child of this one, and
    /// the handler receives that span's context. Without this option it is a child of the current span.
    #[must_use]
    pub fn trace_context(mut self, traceparent: impl Into<String>) -> Self {
        self.trace_context = Some(traceparent.into());
        self
    }

    /// Gives the job these options, and no others.
    pub(crate) fn with_options(mut self, options: JobOptions) -> Self {
        self.options = options;
        self
    }

    /// Gives the job this id.
    pub(crate) fn with_id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// The key that the call has given: one of the type is left out of groups, whose jobs a key would hold apart.
    pub(crate) fn own_key(&self) -> Option<&str> {
        self.options.any_key().filter(|_| !self.key_of_type)
    }

    /// The options, for the caller to add the key of its own.
    fn options_without_key_of_type(&mut self) -> JobOptions {
        let options = std::mem::take(&mut self.options);
        if std::mem::take(&mut self.key_of_type) { options.without_key() } else { options }
    }

    /// Whether it replaces a queued job.
    pub(crate) fn replaces(&self) -> bool {
        self.options.key_while == Some("replace")
    }

    /// Its queue.
    pub(crate) fn queue_name(&self) -> &str {
        &self.queue
    }

    /// Opens the span of the enqueue, whose context the job then carries.
    fn sending(&mut self) -> Span {
        let (span, context) = trace::send(Sending {
            queue: Some(&self.queue),
            kind: Some(&self.kind),
            jobs: 1,
            given: self.trace_context.as_deref(),
        });
        self.trace_context = context;
        span
    }

    fn checked(self, accepts: Accepts<'_>, published_by: PublishedBy) -> Result<NewJob, EnqueueError> {
        check_queue(&self.queue)?;
        check_kind(&self.kind)?;
        let Accepts { bytes_max, codecs } = accepts;
        let mut payload = self.payload.map_err(EnqueueError::Payload)?;
        let is_to_seal = codecs.has(&self.kind) && !self.is_sealed;
        let fits = |bytes: usize| {
            if bytes <= bytes_max { Ok(()) } else { Err(EnqueueError::TooLarge { bytes, bytes_max }) }
        };
        // Before the payload is looked at: it may be huge. A codec that compresses makes it smaller.
        if !is_to_seal {
            fits(stored_bytes(&payload))?;
        }
        if let Some(why) = unstorable_text(&payload) {
            return Err(EnqueueError::Payload(why));
        }
        if is_to_seal {
            payload = codecs.seal(&self.kind, Part::Payload, payload).map_err(EnqueueError::Codec)?;
            fits(stored_bytes(&payload))?;
        }
        let wrong = |what, value: String, expected| Err(EnqueueError::Option { what, value, expected });
        if !(1..=1_000).contains(&self.max_attempts) {
            return wrong("max_attempts", self.max_attempts.to_string(), "1 to 1000");
        }
        if let Some(delay) = self.delay.filter(|delay| *delay > AHEAD_MAX) {
            return wrong("delay", written(delay), "at most ten years");
        }
        // By this host's clock: it need not be exact.
        if let Some(at) = self.run_at.filter(|at| *at > Utc::now() + AHEAD_MAX) {
            return wrong("run_at", at.to_rfc3339(), "at most ten years ahead");
        }
        rare::check(&self.options, self.delay)?;
        let mut rare = self.options;
        if rare.key_while == Some("replace") && rare.longest_s.is_none() {
            rare.longest_s = self.delay.map(|delay| delay.as_secs_f64() * 10.0);
        }
        let key = rare.unique_key.take();
        Ok(NewJob {
            rare: (rare != JobOptions::new()).then(|| Box::new(rare)),
            id: self.id.unwrap_or_else(JobId::generate),
            key: key.map(|key| (self.queue.clone(), key)),
            queue: self.queue,
            kind: self.kind,
            payload,
            max_attempts: self.max_attempts,
            run_at: self.run_at,
            delay: self.delay,
            trace_context: self.trace_context.as_deref().and_then(trace::valid),
            message: None,
            published_by,
        })
    }
}

/// An enqueue of one job: set its options, then `.await` it, or pass it a transaction.
#[derive(Debug)]
#[must_use = "nothing is enqueued until you `.await` this, or pass a transaction to `tx`"]
pub struct Enqueue<'t> {
    tenure: &'t Tenure,
    request: JobRequest,
}

/// An enqueue of many jobs in one statement.
#[derive(Debug)]
#[must_use = "nothing is enqueued until you `.await` this, or pass a transaction to `tx`"]
pub struct EnqueueMany<'t> {
    tenure: &'t Tenure,
    requests: Vec<JobRequest>,
}

impl Tenure {
    /// What a new job must fit.
    pub(crate) fn accepts(&self) -> Accepts<'_> {
        Accepts { bytes_max: self.config().payload_bytes_max, codecs: self.codecs() }
    }

    /// Enqueues a job: a [`Job`], or a [`JobRequest`].
    ///
    /// Await it: `tenure.enqueue(job).unique_key("..").await?`. It returns once the row is committed and the kernel
    /// has its message: the process may end or freeze right after. While NATS is away, it waits for the row alone.
    ///
    /// Cancel safe: if the future is dropped, the job was either enqueued, with its message, or not. Drop the future or
    /// poll it to its end: while it is left half-way, the job's message may not go out.
    ///
    /// # Errors
    ///
    /// The future returns [`EnqueueError`]. [`EnqueueError::Store`] may hide a job that was enqueued: with a unique key
    /// the call is safe to repeat, without one a repetition may create a second job.
    pub fn enqueue(&self, job: impl Into<JobRequest>) -> Enqueue<'_> {
        Enqueue { tenure: self, request: job.into() }
    }

    /// Enqueues many jobs in one statement: all of them, or none.
    ///
    /// Cancel safe, as [`Tenure::enqueue`] is.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::enqueue`]. No job is then enqueued, but perhaps all after [`EnqueueError::Store`].
    pub fn enqueue_many<R: Into<JobRequest>>(&self, jobs: impl IntoIterator<Item = R>) -> EnqueueMany<'_> {
        EnqueueMany { tenure: self, requests: jobs.into_iter().map(Into::into).collect() }
    }
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty);)+) => {
        impl Enqueue<'_> {
            $($(#[$doc])* pub fn $name(mut self, $value: $type) -> Self {
                self.request = self.request.$name($value);
                self
            })+
        }
    };
}

options! {
    /// See [`JobRequest::queue`].
    queue(name: impl Into<String>);
    /// See [`JobRequest::unique_key`].
    unique_key(key: impl Into<String>);
    /// See [`JobRequest::delay`].
    delay(delay: Duration);
    /// See [`JobRequest::run_at`].
    run_at(at: DateTime<Utc>);
    /// See [`JobRequest::max_attempts`].
    max_attempts(attempts: u32);
    /// See [`JobRequest::trace_context`].
    trace_context(traceparent: impl Into<String>);
    /// See [`JobRequest::unique_while_queued`].
    unique_while_queued(key: impl Into<String>);
    /// See [`JobRequest::unique_while_live`].
    unique_while_live(key: impl Into<String>);
    /// See [`JobRequest::replace`].
    replace(key: impl Into<String>);
    /// See [`JobRequest::after`].
    after(delay: Duration);
    /// See [`JobRequest::longest_wait`].
    longest_wait(wait: Duration);
    /// See [`JobRequest::lane`].
    lane(key: impl Into<String>);
    /// See [`JobRequest::priority`].
    priority(priority: i16);
    /// See [`JobRequest::not_after`].
    not_after(at: DateTime<Utc>);
    /// See [`JobRequest::expires_in`].
    expires_in(within: Duration);
    /// See [`JobRequest::tag`].
    tag(tag: impl Into<String>);
    /// See [`JobRequest::on_expiry`].
    on_expiry(becomes: OnExpiry);
}

impl Enqueue<'_> {
    /// Enqueues inside the user's transaction: the job exists if and when that commits. This process looks for the
    /// commit, and publishes the job within milliseconds of it. If the transaction lasts for more than a minute, or
    /// this process ends, the relay publishes the job, some seconds later.
    ///
    /// Pass `&mut tx` of a `sqlx::PgTransaction`, or the connection that
    /// [`JobContext::once`](crate::JobContext::once) and [`JobContext::fenced_tx`](crate::JobContext::fenced_tx)
    /// hand to their closures.
    ///
    /// # Errors
    ///
    /// See [`EnqueueError`]. After an error of Postgres the transaction is aborted: roll it back. After an error that
    /// tenure found itself, such as an invalid name or [`EnqueueError::QueueFull`], it is as before.
    ///
    /// Cancel safe in this sense: if the future is dropped, the job may be part of the transaction or not. Roll the
    /// transaction back.
    pub async fn tx(self, tx: &mut sqlx::PgConnection) -> Result<Enqueued, EnqueueError> {
        let Self { tenure, mut request } = self;
        let span = request.sending();
        let enqueue = async move {
            let job = request.checked(tenure.accepts(), PublishedBy::Caller)?;
            let _admitted = tenure.limits().admit(&job.queue, 1, tenure.store().until()).await?;
            let id = job.id;
            let (created, tickets) = insert_in(tx, tenure.enqueue_hooks(), &[job]).await?;
            tenure.uncommitted().watch(tickets);
            let enqueued = answers(&[id], &created).pop().ok_or(EnqueueError::KeyNotVisible)?;
            Ok::<_, EnqueueError>(enqueued)
        };
        let enqueued = traced(&span, enqueue).await?;
        trace::sent(&span, enqueued.id, enqueued.duplicate);
        Ok(enqueued)
    }
}

impl EnqueueMany<'_> {
    /// Enqueues all of the jobs inside the user's transaction: see [`Enqueue::tx`].
    ///
    /// # Errors
    ///
    /// Those of [`Enqueue::tx`]. No job is enqueued.
    pub async fn tx(self, tx: &mut sqlx::PgConnection) -> Result<Vec<Enqueued>, EnqueueError> {
        let Self { tenure, mut requests } = self;
        let span = sending(&mut requests);
        let enqueue = async move {
            let accepts = tenure.accepts();
            let jobs = requests.into_iter().map(|request| request.checked(accepts, PublishedBy::Caller));
            let jobs: Vec<_> = jobs.collect::<Result<_, _>>()?;
            let _admitted = admit(tenure, &jobs, tenure.store().until()).await?;
            let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
            let (created, tickets) = insert_in(tx, tenure.enqueue_hooks(), &jobs).await?;
            tenure.uncommitted().watch(tickets);
            Ok::<_, EnqueueError>(answers(&ids, &created))
        };
        traced(&span, enqueue).await
    }
}

type EnqueueFuture<'t, T> = Pin<Box<dyn Future<Output = Result<T, EnqueueError>> + Send + 't>>;

impl<'t> IntoFuture for Enqueue<'t> {
    type Output = Result<Enqueued, EnqueueError>;
    type IntoFuture = EnqueueFuture<'t, Enqueued>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { tenure, mut request } = self;
        let span = request.sending();
        let enqueue = async move {
            let job = request.checked(tenure.accepts(), PublishedBy::Caller)?;
            let store = tenure.store();
            let (until, busy_at) = (store.until(), Instant::now() + BUSY_AFTER);
            let id = job.id;
            let inserted = async {
                let _admitted = tenure.limits().admit(&job.queue, 1, until).await?;
                // Only a job with a key can wait for another transaction: such jobs have a lane of their own.
                let spare = job.any_key().is_some().then(|| job.clone());
                let created = tenure.enqueues(spare.is_some()).run(job).await;
                // Only a panic, or a runtime that shuts down, leaves a batch unanswered.
                let created = created.ok_or(StoreError::from(sqlx::Error::WorkerCrashed))?;
                match (created, spare) {
                    (Err(busy @ EnqueueError::KeyBusy { .. }), Some(job)) => {
                        let (publications, hooks) = (tenure.publications(), tenure.enqueue_hooks());
                        let alone =
                            insert_patiently(store, publications, hooks, vec![job], Some(busy), busy_at)
                                .await?;
                        alone.into_iter().next().unwrap_or(Err(EnqueueError::KeyNotVisible))
                    }
                    (created, _) => created,
                }
            };
            let created = in_time(tenure, until, inserted).await?;
            Ok::<_, EnqueueError>(match created {
                Created::New => Enqueued { id, duplicate: false },
                Created::HeldBy(id) => Enqueued { id, duplicate: true },
            })
        };
        Box::pin(async move {
            let enqueued = traced(&span, enqueue).await?;
            trace::sent(&span, enqueued.id, enqueued.duplicate);
            Ok(enqueued)
        })
    }
}

impl<'t> IntoFuture for EnqueueMany<'t> {
    type Output = Result<Vec<Enqueued>, EnqueueError>;
    type IntoFuture = EnqueueFuture<'t, Vec<Enqueued>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { tenure, mut requests } = self;
        let span = sending(&mut requests);
        let enqueue = async move {
            let accepts = tenure.accepts();
            let jobs = requests.into_iter().map(|request| request.checked(accepts, PublishedBy::Caller));
            let jobs: Vec<_> = jobs.collect::<Result<_, _>>()?;
            let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
            let store = tenure.store();
            let (until, busy_at) = (store.until(), Instant::now() + BUSY_AFTER);
            let inserted = async {
                let _admitted = admit(tenure, &jobs, until).await?;
                insert_patiently(store, tenure.publications(), tenure.enqueue_hooks(), jobs, None, busy_at)
                    .await
            };
            let created = in_time(tenure, until, inserted).await?;
            let created: Vec<_> = created.into_iter().collect::<Result<_, _>>()?;
            Ok::<_, EnqueueError>(answers(&ids, &created))
        };
        Box::pin(async move { traced(&span, enqueue).await })
    }
}

/// Sets one deadline for all that an enqueue waits for: its turn, a batch before its own, the statements.
///
/// Cancel safe as `enqueue` is: a batch that has begun ends without the caller.
pub(crate) async fn in_time<T>(
    tenure: &Tenure,
    until: Instant,
    enqueue: impl Future<Output = Result<T, EnqueueError>>,
) -> Result<T, EnqueueError> {
    let late = |_| Err(StoreError::from(tenure.store().no_answer()).into());
    tokio::time::timeout_at(until.into(), enqueue).await.unwrap_or_else(late)
}

/// Opens the span of an enqueue of many jobs. Jobs without a context of their own carry it.
fn sending(requests: &mut [JobRequest]) -> Span {
    let (span, context) = trace::send(Sending {
        queue: common(requests, |request| request.queue.as_str()),
        kind: common(requests, |request| request.kind.as_str()),
        jobs: requests.len(),
        given: None,
    });
    for request in requests.iter_mut().filter(|request| request.trace_context.is_none()) {
        request.trace_context.clone_from(&context);
    }
    span
}

/// Returns the value that all requests have in common, if there is one.
fn common(requests: &[JobRequest], of: fn(&JobRequest) -> &str) -> Option<&str> {
    let first = of(requests.first()?);
    requests.iter().all(|request| of(request) == first).then_some(first)
}

/// Enqueues in this span, and marks it if that fails. Cancel safe as `enqueue` is.
async fn traced<T>(
    span: &Span,
    enqueue: impl Future<Output = Result<T, EnqueueError>>,
) -> Result<T, EnqueueError> {
    let enqueued = enqueue.instrument(span.clone()).await;
    if enqueued.is_err() {
        trace::not_sent(span);
    }
    enqueued.map_err(EnqueueError::said)
}

/// Admits all jobs, or none. Asks for queue after queue in the order of their names: otherwise two calls could each
/// wait for jobs that the other has admitted, for ever.
pub(crate) async fn admit(
    tenure: &Tenure,
    jobs: &[NewJob],
    until: Instant,
) -> Result<Vec<Admitted>, EnqueueError> {
    let mut queues: BTreeMap<&str, usize> = BTreeMap::new();
    for job in jobs {
        *queues.entry(&job.queue).or_default() += 1;
    }
    let mut admitted = Vec::with_capacity(queues.len());
    for (queue, jobs) in queues {
        admitted.push(tenure.limits().admit(queue, jobs, until).await?);
    }
    Ok(admitted)
}

fn answers(ids: &[JobId], created: &[Created]) -> Vec<Enqueued> {
    ids.iter()
        .zip(created)
        .map(|(&id, created)| match *created {
            Created::New => Enqueued { id, duplicate: false },
            Created::HeldBy(id) => Enqueued { id, duplicate: true },
        })
        .collect()
}
