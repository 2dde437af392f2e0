//! Live: follows a page over server-sent events. Renders the page again and again, and sends the regions that have
//! changed.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

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

use super::{
    Ask, Failure, View,
    page::{self, Region},
};

/// How often to render a page again.
const EVERY: Duration = Duration::from_secs(1);
/// A slow page is rendered less often: one viewer may cost the database at most a tenth of its time.
const REST: u32 = 10;
/// How soon to render a page again that could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(3);
/// How long to wait for a viewer that reads nothing.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// The most pages to follow at once.
pub(super) const STREAMS_MAX: usize = 100;

/// Follows a page until its viewer leaves.
pub(super) fn stream(view: Arc<View>, ask: Ask) -> Response {
    let Ok(permit) = view.streams.clone().try_acquire_owned() else {
        return Failure::Busy.into_response();
    };
    let (sender, receiver) = mpsc::channel(4);
    let main = view.main.clone();
    main.spawn(async move {
        let mut known: HashMap<&'static str, String> = HashMap::new();
        loop {
            let began_at = Instant::now();
            let (regions, is_over, failed) = match super::page(&view, &ask).await {
                Ok(page) => {
                    let is_final = page.is_final();
                    (page.into_regions(), is_final, false)
                }
                // The page's subject is gone.
                Err(Failure::NotFound(_)) => (vec![], true, false),
                // The page stays as it was.
                Err(failure) => (vec![page::notice(Some(&failure.text()))], false, true),
            };
            for Region { id, markup } in regions {
                let html = markup.into_string();
                if known.get(id).is_some_and(|is| *is == html) {
                    continue;
                }
                let data = json!({ "id": id, "html": html }).to_string();
                let sent = timeout(READ_WITHIN, sender.send(Event::default().event("region").data(data)));
                // The viewer has left, or does not read.
                if !matches!(sent.await, Ok(Ok(()))) {
                    return;
                }
                known.insert(id, html);
            }
            // The page no longer changes.
            if is_over {
                drop(sender.send(Event::default().event("gone").data("")).await);
                return;
            }
            let rest = if failed { AGAIN_AFTER } else { EVERY.max(began_at.elapsed() * REST) };
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = sender.closed() => return,
            }
        }
    });
    // The permit lives as long as the response.
    let events = ReceiverStream::new(receiver).map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().event(Event::default().event("ping").data("")))
        .into_response();
    // nginx and similar proxies would buffer the events.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
