//! Live: a page as it changes, over server-sent events. The page is rendered again, and those of its regions are sent
//! that read otherwise than before.

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

/// How often a page is rendered again.
const EVERY: Duration = Duration::from_secs(1);
/// A page that takes long is rendered seldom: nobody's look may cost the database more than a tenth of its time.
const REST: u32 = 10;
/// A page that cannot be read now, though, may be in a moment.
const AGAIN_AFTER: Duration = Duration::from_secs(3);
/// Who reads nothing for so long is not waited for.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// How many pages are followed at once.
pub(super) const STREAMS_MAX: usize = 100;

/// Follows a page, until nobody looks any more.
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
                // What the page is about has left.
                Err(Failure::NotFound(_)) => (vec![], true, false),
                // It stays as it was.
                Err(failure) => (vec![page::notice(Some(&failure.text()))], false, true),
            };
            for Region { id, markup } in regions {
                let html = markup.into_string();
                if known.get(id).is_some_and(|is| *is == html) {
                    continue;
                }
                let data = json!({ "id": id, "html": html }).to_string();
                let sent = timeout(READ_WITHIN, sender.send(Event::default().event("region").data(data)));
                // It has gone, or does not read.
                if !matches!(sent.await, Ok(Ok(()))) {
                    return;
                }
                known.insert(id, html);
            }
            // Nothing of it changes any more.
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
    // The permit lives as long as the answer is read.
    let events = ReceiverStream::new(receiver).map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().event(Event::default().event("ping").data("")))
        .into_response();
    // Proxies of the nginx kind would gather events.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
