//! Look: which pages a user of some queues may open. What is not listed here is refused, also a page that is added
//! later.
//!
//! This module decides by the address alone. A page that shows a job, or a list of queues, itself leaves out what is
//! not the user's: [`View::looks`] names the user's queues.
//!
//! Invariants, each held by the test of that name:
//!
//! - `no_answer_to_a_user_of_one_queue_has_anything_of_another`

use axum::{
    extract::Request,
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use maud::{Markup, html};

use super::{Ask, Failure, View, failed, page::PAGES};
use crate::access::Who;

/// What is wrong with a page of several queues.
const OTHERS: &str = "and this shows others, too";

/// What a page shows to a user of some queues.
enum Shows<'a> {
    /// Nothing but what is in the user's queues: the page sees to that.
    Theirs,
    /// One queue: the one in its path, or else the one that its query names.
    One(Option<&'a str>),
}

/// The pages that such a user may open.
fn shows<'a>(view: &View, path: &[&'a str]) -> Option<Shows<'a>> {
    Some(match *path {
        [] | ["jobs", _] if view.shows_all_cells() => Shows::Theirs,
        ["queues", name] => Shows::One(Some(name)),
        _ if view.shows_all_cells() => return None,
        ["jobs" | "dead"] | ["jobs" | "dead", "count"] => Shows::One(None),
        ["queues", name, "lanes"] => Shows::One(Some(name)),
        ["queues" | "enqueue"] | ["jobs", _] | ["jobs", _, "graph"] => Shows::Theirs,
        _ => return None,
    })
}

/// Refuses a page to a user who may not open it.
pub(super) fn check(view: &View, ask: &Ask) -> Result<(), Failure> {
    if view.looks.is_all() {
        return Ok(());
    }
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    let queue = match shows(view, &path) {
        Some(Shows::Theirs) => return Ok(()),
        Some(Shows::One(Some(name))) => Some(name.to_owned()),
        Some(Shows::One(None)) => ask.query.get("queue"),
        None => None,
    };
    match queue.as_deref().map(str::trim) {
        Some(queue) if view.looks.has(queue) => Ok(()),
        Some(queue) => Err(Failure::Unseen(view.looks.unseen(&format!("not at {queue}")))),
        None => Err(Failure::Unseen(view.looks.unseen(OTHERS))),
    }
}

/// Answers a user of some queues who may not open a page: with the way to one that it may open, or with the reason.
pub(super) fn turned_away(view: &View, ask: &Ask, who: &Who) -> Option<Response> {
    let failure = check(view, ask).err()?;
    if let Some(to) = instead(view, ask) {
        let location = format!("{}{to}", view.base);
        return Some((StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response());
    }
    let (who, path, why) = (&who.name, ask.path.join("/"), failure.text());
    tracing::warn!(cell = view.cell, who, path, why, "a look was refused");
    Some(failed(view, ask, &failure))
}

/// The page to open instead: the first of the navigation for the top, and a list of the user's first queue for a list
/// of all.
fn instead(view: &View, ask: &Ask) -> Option<String> {
    let first = view.looks.queues()?.first()?;
    match &ask.path[..] {
        [] if !view.shows_all_cells() => pages(view).next().map(|(_, _, path, _)| path.to_owned()),
        [list] if ["jobs", "dead"].contains(&list.as_str()) && ask.query.get("queue").is_none() => {
            Some(format!("/{list}?{}", ask.query.with("queue", Some(first))))
        }
        _ => None,
    }
}

/// The pages of the navigation that the user may open.
pub(super) fn pages(
    view: &View,
) -> impl Iterator<Item = (&'static str, &'static str, &'static str, &'static str)> {
    PAGES.into_iter().filter(|(_, name, path, _)| {
        let path: &[&str] = if *path == "/" { &[] } else { &[*name] };
        // The page of all cells has a navigation of its own.
        !view.shows_all_cells() && (view.looks.is_all() || shows(view, path).is_some())
    })
}

/// The field of a list's filters for its queue.
pub(super) fn queue_field(view: &View, value: Option<String>) -> Markup {
    html! {
        @match view.looks.queues() {
            None => {
                input type="text" name="queue" value=[value] placeholder="every queue" aria-label="Queue" size="14";
            }
            Some(queues) => {
                select name="queue" aria-label="Queue" {
                    @for queue in queues {
                        option value=(queue) selected[value.as_deref() == Some(queue)] { (queue) }
                    }
                }
            }
        }
    }
}

/// Refuses what shows all queues at once to users of some.
pub(super) async fn all_queues(request: Request, next: Next) -> Response {
    let limited = request.extensions().get::<Who>().filter(|who| !who.looks.is_all());
    let Some(who) = limited else { return next.run(request).await };
    let (path, why) = (request.uri().path(), who.looks.unseen(OTHERS));
    tracing::warn!(who = who.name, path, why, "a look was refused");
    (StatusCode::FORBIDDEN, why + "\n").into_response()
}
