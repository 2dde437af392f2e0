//! Lanes: the lanes of one queue: what limits them, and those that wait longest.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, number},
    params::encoded,
    shared::Age,
};
use crate::lanes::{key, rate};
use tenure::{
    StoreError,
    internals::{
        Parts as _,
        duration::{rounded, whole},
    },
    rows::{LaneRow, LanesRow},
};

/// The most lanes to show.
const SHOWN: i64 = 50;
/// Where the library stops counting the jobs of a lane.
const COUNTED: u64 = 10_000;

/// What all viewers of one queue share.
#[derive(Debug)]
pub(super) struct Figures {
    settings: Option<LanesRow>,
    longest: Vec<LaneRow>,
}

async fn read(view: &View, name: &str) -> Result<Figures, StoreError> {
    let store = view.tenure.store();
    let (settings, longest) =
        tokio::try_join!(store.lane_settings(Some(name)), store.lanes(name, None, SHOWN))?;
    Ok(Figures { settings: settings.into_iter().next(), longest })
}

pub(super) async fn page(view: &View, ask: &Ask, name: &str) -> Result<Page, Failure> {
    let age = if ask.is_live { Age::AMoment } else { Age::New };
    let of = view.figures.lanes.get(name.to_owned(), age, Box::pin(read(view, name))).await?.0;
    let mut live = Regions::default();
    let body = html! {
        header.head {
            div {
                p.crumbs {
                    a href={ (view.base) "/queues" } { "Queues" } " / "
                    a href={ (view.base) "/queues/" (encoded(name)) } { (name) }
                }
                h1 { "Lanes" }
            }
            div.actions {
                a.button href={ (view.base) "/jobs?status=held&queue=" (encoded(name)) } { "Held jobs" }
            }
        }
        (live.put("settings", settings(name, of.settings.as_ref())))
        (live.put("lanes", lanes(&of)))
    };
    Ok(live.page(format!("Lanes of {name}"), "queues", body))
}

/// A rate and its burst.
fn limited(of: Option<f64>, burst: Option<f64>) -> Markup {
    html! {
        @match (of, burst) {
            (Some(of), Some(burst)) => { (rate(of)) " " span.soft { "burst " (rounded_tokens(burst)) } }
            _ => span.soft { "no limit" },
        }
    }
}

/// Tokens: whole ones without a point.
fn rounded_tokens(tokens: f64) -> String {
    if tokens.fract() == 0.0 { format!("{tokens:.0}") } else { format!("{tokens:.1}") }
}

fn settings(name: &str, of: Option<&LanesRow>) -> Markup {
    html! {
        section.panel #settings {
            header { h2 { "Settings" } }
            div.body {
                @match of {
                    None => p {
                        "This queue has no lanes: nothing limits its jobs by a key. Give it some: "
                        code { "tenure queues lanes " (name) " --running 2" }
                    },
                    Some(of) => dl.facts {
                        dt { "Running, each lane" }
                        dd {
                            @match of.running.or(of.ordered.then_some(1)) {
                                Some(most) => { "at most " (most) }
                                None => span.soft { "no limit" },
                            }
                        }
                        dt { "Rate, each lane" } dd { (limited(of.rate, of.burst)) }
                        dt { "Rate, the queue" }
                        dd {
                            (limited(of.queue_rate, of.queue_burst))
                            @if let Some(tokens) = of.tokens { ", " (rounded_tokens(tokens)) " tokens now" }
                        }
                        dt { "Turns" } dd { @if of.turns { "lanes take turns" } @else { "first come, first served" } }
                        dt { "Order" }
                        dd { @if of.ordered { "the jobs of a lane one by one" } @else { "by priority, then by time" } }
                        dt { "Lanes" } dd { (number(of.lanes)) }
                        dt { "Held" } dd { (number(of.held)) }
                        dt { "Released" } dd { (number(of.released)) " run, or have a message" }
                        dt { "Changed" } dd { (page::dated(of.changed_at)) }
                    },
                }
            }
        }
    }
}

fn lanes(of: &Figures) -> Markup {
    let all = of.settings.as_ref().map_or(0, |of| of.lanes);
    html! {
        section.panel #lanes {
            header { h2 { "Lanes that wait longest" } }
            @if of.longest.is_empty() {
                div.empty { strong { "No lane has a job" } p { "A lane appears with its first job." } }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Lanes that wait longest" { table.cards {
                    thead { tr {
                        th scope="col" { "Lane" }
                        th.num scope="col" { "Waiting" }
                        th scope="col" { "Slots" }
                        th.num scope="col" { "Tokens" }
                        th scope="col" { "Next" }
                        th.num scope="col" { "Waited" }
                    } }
                    tbody { @for lane in &of.longest { (row(lane)) } }
                } }
                @if all > of.longest.len() as u64 {
                    p.foot { "The first " (of.longest.len()) " of " (number(all)) " lanes." }
                }
            }
        }
    }
}

fn row(of: &LaneRow) -> Markup {
    html! {
        tr id={ "lane-" (encoded(&of.lane)) } {
            th scope="row" {
                // A key is user data: it must not change the direction of the words around it.
                bdi.clip title=(of.lane) { (key(&of.lane)) }
                @if let Some(weight) = of.weight { " " span.soft { "weight " (weight) } }
            }
            td.num data-label="Waiting" {
                (number(of.waiting)) @if of.waiting >= COUNTED { "+" }
            }
            td data-label="Slots" {
                @match of.most {
                    Some(most) => {
                        span.pair {
                            progress max=(most) value=(of.slots.min(most.into()))
                                aria-label={ (of.slots) " of " (most) " slots used" } {}
                            span.tight { (number(of.slots)) " " span.soft { "of " (most) } }
                        }
                    }
                    None => span.tight { (number(of.slots)) " " span.soft { "no limit" } },
                }
            }
            td.num.tight.none[of.tokens.is_none()] data-label="Tokens" {
                @if let (Some(tokens), Some(burst)) = (of.tokens, of.burst) {
                    (format!("{tokens:.1}")) " " span.soft { "of " (rounded_tokens(burst)) }
                }
            }
            td data-label="Next" { (next(of)) }
            td.num.tight data-label="Waited" {
                @match of.waited_s { Some(s) => (whole(s)), None => "–" }
            }
        }
    }
}

/// What the lane waits for: its turn, a slot, or a time.
fn next(of: &LaneRow) -> Markup {
    html! {
        @match of.next_s {
            _ if of.in_turn => "in turn",
            Some(s) if s > 0.0 => { "in " (rounded(s)) }
            Some(_) => "now",
            None if of.most.is_some_and(|most| of.slots >= most.into()) => "a slot",
            None => span.soft { "–" },
        }
    }
}
