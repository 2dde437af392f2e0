//! Live: follows a page over server-sent events. Renders the page again and again, and sends the regions that have
//! changed.

use std::{collections::HashMap, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use tenure::JobId;

use super::{
    Ask, Failure, View,
    page::{self, Aging, Page, Region},
};

/// How often to render a page again.
const EVERY: Duration = Duration::from_secs(1);
/// The same of a job's page: a change is told at once, and what is left to follow is how long its worker is silent.
const JOB_EVERY: Duration = Duration::from_secs(3);
/// The least time between two readings of a job's page.
const JOB_APART: Duration = Duration::from_millis(200);
/// A slow page is rendered less often: one viewer may cost the database at most a tenth of its time.
const REST: u32 = 10;
/// How soon to render a page again that could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(3);
/// A page whose reading takes longer is out of date, and says so each time this passes.
const LATE_AFTER: Duration = Duration::from_secs(3);
/// How long to wait for a viewer that reads nothing.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// The data of an event whose name says it all: a browser ignores an event without data.
const NOTHING: &str = "{}";
/// The most pages to follow at once, and the most of one client.
pub(super) const STREAMS_MAX: usize = 200;
pub(super) const STREAMS_OF_ONE: usize = 50;

/// Follows a page until its viewer leaves.
pub(super) fn stream(view: Arc<View>, ask: Ask) -> Response {
    let Ok(place) = view.streams.take(&ask.client) else {
        return Failure::Busy.into_response();
    };
    let (sender, receiver) = mpsc::channel(4);
    let main = view.main.clone();
    main.spawn(async move {
        // It ends when the viewer has left, or does not read.
        follow(&view, &ask, Viewer::of(sender)).await;
    });
    // The place is taken for as long as the response lasts.
    let events = ReceiverStream::new(receiver).map(move |event| {
        let _held = &place;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().event(Event::default().event("ping").data(NOTHING)))
        .into_response();
    // nginx and similar proxies would buffer the events.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// Renders the page again and again. `None`: the viewer has left, or reads nothing.
async fn follow(view: &View, ask: &Ask, mut viewer: Viewer) -> Option<()> {
    let mut changes = changes(view, ask).await;
    loop {
        let began_at = Instant::now();
        // A place for each search, not for the stream: it searches again and again.
        let mut reading = pin!(async {
            let place = ask.searches().then(|| view.searches.take(&ask.client)).transpose();
            let _place = place.map_err(|_| Failure::Busy)?;
            super::page(view, ask).await
        });
        let read = loop {
            match timeout(LATE_AFTER, &mut reading).await {
                Ok(read) => break read,
                Err(_) => viewer.wait().await?,
            }
        };
        let rest = match read {
            Ok(page) => {
                let is_final = page.is_final();
                viewer.show(page).await?;
                // The page no longer changes.
                if is_final {
                    return viewer.event("gone", NOTHING).await;
                }
                if changes.is_some() { JOB_EVERY } else { EVERY }.max(began_at.elapsed() * REST)
            }
            // The page's subject is gone.
            Err(Failure::NotFound(_)) => return viewer.event("gone", NOTHING).await,
            // The page stays as it was, and grows old.
            Err(failure) => {
                viewer.region(page::notice(Some(&failure.text()))).await?;
                viewer.wait().await?;
                AGAIN_AFTER
            }
        };
        let apart = JOB_APART.max(began_at.elapsed() * REST);
        let change = async {
            tokio::time::sleep(apart).await;
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        let is_over = tokio::select! {
            () = tokio::time::sleep(rest) => false,
            change = change => change.is_none(),
            () = viewer.sender.closed() => return None,
        };
        if is_over {
            // What its page shows besides may still change, and the job may be redriven.
            changes = None;
        }
    }
}

/// Returns the changes of the job whose page it is; `None`: it is another page, or there is no such job.
async fn changes(view: &View, ask: &Ask) -> Option<tenure::jobs::Watch> {
    let [page, id] = ask.path.as_slice() else { return None };
    let id = (page == "jobs").then(|| id.parse::<JobId>().ok()).flatten()?;
    timeout(LATE_AFTER, view.tenure.watch(id)).await.ok()?.ok()
}

/// The browser that follows a page, and what it shows.
struct Viewer {
    sender: mpsc::Sender<Event>,
    known: HashMap<&'static str, String>,
    is_fresh: Option<bool>,
    /// The age of the data when the page was read, and that time.
    aging: Option<(Aging, Instant)>,
}

impl Viewer {
    fn of(sender: mpsc::Sender<Event>) -> Self {
        Self { sender, known: HashMap::new(), is_fresh: None, aging: None }
    }

    async fn show(&mut self, page: Page) -> Option<()> {
        self.aging = page.ages().map(|aging| (aging, Instant::now()));
        for region in page.into_regions() {
            self.region(region).await?;
        }
        self.fresh(true).await
    }

    /// Says that the page is out of date, and how old its data are by now.
    async fn wait(&mut self) -> Option<()> {
        if let Some((Aging { region, age_s }, read_at)) = self.aging {
            self.region(region(Some(age_s + read_at.elapsed().as_secs_f64()))).await?;
        }
        self.fresh(false).await
    }

    async fn fresh(&mut self, is_fresh: bool) -> Option<()> {
        if self.is_fresh != Some(is_fresh) {
            self.is_fresh = Some(is_fresh);
            self.event(if is_fresh { "fresh" } else { "stale" }, NOTHING).await?;
        }
        Some(())
    }

    /// Sends a region that the viewer does not have.
    async fn region(&mut self, Region { id, markup }: Region) -> Option<()> {
        let html = markup.into_string();
        if self.known.get(id).is_some_and(|is| *is == html) {
            return Some(());
        }
        self.event("region", &json!({ "id": id, "html": html }).to_string()).await?;
        self.known.insert(id, html);
        Some(())
    }

    async fn event(&self, name: &str, data: &str) -> Option<()> {
        let sent = self.sender.send(Event::default().event(name).data(data));
        timeout(READ_WITHIN, sent).await.ok()?.ok()
    }
}
