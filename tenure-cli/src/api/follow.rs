//! Follow: waits for the end of a job, or watches it by server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::StreamExt as _;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{Api, Failure, Id, failure::MOMENT_S, jobs, jobs::shown, query::Query};
use crate::access::{Full, Place, Who, digest};
use tenure::{
    JobId, Tenure,
    jobs::WaitError,
    rows::{JobRow, JobUpdate},
};

/// How long a request waits, if its client does not say.
const WAIT: Duration = Duration::from_secs(30);
/// The longest wait: proxies cut off a request that takes longer than a minute.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often a stream without news sends a comment.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// How long one stream lasts. A browser connects again by itself, and a client that has gone without a word is noticed.
const STREAM_FOR: Duration = Duration::from_secs(15 * 60);
/// How long to wait for a client that reads nothing.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// When a browser connects again after its stream has ended.
const AGAIN_AFTER: Duration = Duration::from_secs(3);

/// Takes one of the places of those that wait or watch.
fn place(api: &Api, who: &Who) -> Result<Place, Failure> {
    let busy = |full| {
        let (of, most) = match full {
            Full::OfAll(most) => ("", most),
            Full::OfOne(most) => (" of this client", most),
        };
        let message = format!("{most} requests{of} wait for jobs or watch them, the most at once");
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).retry_after(MOMENT_S)
    };
    api.followed.take(&who.client).map_err(busy)
}

/// The program is ending.
fn ending() -> Failure {
    let failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ending", "`tenure serve` is ending");
    failure.hint("the job goes on; send the request again").retry_after(MOMENT_S)
}

/// Answers once the job has ended (200), or with the job as it is when the time is over (202).
pub(super) async fn wait(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let _response = api.closing.responses.token();
    let query = Query::read(query.as_deref(), &["timeout"])?;
    let within = query.parsed("timeout", "a duration of at most 60s, such as 500ms or 30s", |text| {
        humantime::parse_duration(text).ok().filter(|within| *within <= WAIT_MAX)
    })?;
    let within = within.unwrap_or(WAIT);
    let _place = place(&api, &who)?;
    let waits = api.read(|api| async move {
        let (tenure, job) = api.tenures.find(id, &who.looks).await?;
        if job.status.is_finished() { Ok(job) } else { ended(tenure, id, within).await }
    });
    let job = tokio::select! {
        job = waits => job?,
        () = api.closing.begun.cancelled() => return Err(ending()),
    };
    let status = if job.status.is_finished() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(shown(&api, status, job))
}

/// Waits for the end of a job. Returns it as it is when the time is over.
async fn ended(tenure: &Tenure, id: JobId, within: Duration) -> Result<JobRow, Failure> {
    match tenure.wait(id, within).await {
        Ok(Some(job)) => Ok(job),
        Ok(None) | Err(WaitError::NoHistory(_)) => Err(Failure::no_history(id)),
        Err(WaitError::TimedOut { .. }) => tenure.job(id).await?.ok_or_else(|| Failure::no_history(id)),
        Err(WaitError::Store(error)) => Err(error.into()),
        Err(error) => Err(Failure::unavailable(error.to_string())),
    }
}

/// Sends the job's changes until it has ended.
pub(super) async fn watch(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Id(id): Id,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    Query::read(query.as_deref(), &[])?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let place = place(&api, &who)?;
    let read = |api: Arc<Api>| async move {
        let (tenure, job) = api.tenures.find(id, &who.looks).await?;
        Ok((job, tenure.clone()))
    };
    let (job, tenure) = api.read(read).await?;
    let now = Change::of(&api, JobUpdate::from(job));
    if now.is_end && last.as_deref() == Some(now.id.as_str()) {
        // A browser that is told so does not connect again.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let (sender, receiver) = mpsc::channel(4);
    let follower = Follower { api: api.clone(), id, tenure, last, sender };
    api.main.spawn(async move {
        // Its place is free as soon as the client has left, the job has ended, or the client reads nothing.
        let _place = place;
        follower.follow().await;
    });
    let response = api.closing.responses.token();
    let events = ReceiverStream::new(receiver).map(move |event| {
        let _written = &response;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE_EVERY)).into_response();
    // nginx and similar proxies would buffer the events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// A change of a job, as it is sent.
struct Change {
    /// A hash of the data: what a client has seen is not sent again when it connects again, to this process or another.
    id: String,
    data: String,
    is_end: bool,
}

impl Change {
    fn of(api: &Api, mut update: JobUpdate) -> Self {
        if !api.shows_payloads {
            update.output = None;
            jobs::cut(&mut update.last_error);
        }
        let data = serde_json::to_string(&update).unwrap_or_default();
        Self { id: digest(&data), data, is_end: update.status.is_finished() }
    }

    fn event(&self) -> Event {
        let name = if self.is_end { "end" } else { "progress" };
        Event::default().event(name).id(&self.id).data(&self.data)
    }
}

/// Sends the changes of a job to a client.
struct Follower {
    api: Arc<Api>,
    id: JobId,
    tenure: Tenure,
    /// The change that the client saw last.
    last: Option<String>,
    sender: mpsc::Sender<Event>,
}

impl Follower {
    /// Sends changes until the job has ended, the client has left or reads nothing, or the program ends.
    async fn follow(self) {
        let changes = async {
            // At once, so that a client knows that it is connected, even if it has seen the job as it is.
            let hello = Event::default().comment("tenure").retry(AGAIN_AFTER);
            self.send(hello).await?;
            let mut updates = self.tenure.watch(self.id).await.ok()?;
            while let Some(update) = updates.next().await {
                let change = Change::of(&self.api, update);
                if self.last.as_ref() != Some(&change.id) {
                    self.send(change.event()).await?;
                }
                if change.is_end {
                    break;
                }
            }
            Some(())
        };
        tokio::select! {
            _ = changes => {}
            () = self.sender.closed() => {}
            () = self.api.closing.begun.cancelled() => {}
            () = sleep(STREAM_FOR) => {}
        }
    }

    async fn send(&self, event: Event) -> Option<()> {
        timeout(READ_WITHIN, self.sender.send(event)).await.ok()?.ok()
    }
}
