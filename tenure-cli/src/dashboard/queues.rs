//! Queues: the jobs, the state and the limits of each queue.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, number, whole},
};
use tenure::rows::QueueRow;

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let queues = view.tenure.queues().await?;
    let mut live = Regions::default();
    let table = html! {
        section.panel #queues {
            @if queues.is_empty() {
                div.empty { strong { "No queues yet" } p { "A queue appears with its first job." } }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Queue" }
                        th scope="col" { "State" }
                        th.num scope="col" { "Due" }
                        th.num scope="col" { "Submitted" }
                        th.num scope="col" { "Oldest due" }
                        th.num scope="col" { "Scheduled" }
                        th scope="col" { "Running" }
                        th.num scope="col" { "Dead" }
                        th.num scope="col" { "Workers" }
                        @if view.has_actions { th scope="col" { span.unseen { "Action" } } }
                    } }
                    tbody { @for of in &queues { (row(view, ask, of)) } }
                } }
            }
        }
    };
    let body = html! {
        (page::head("Queues", html! { "A paused queue starts no jobs; its running jobs continue." }))
        (live.put("queues", table))
        @if view.has_actions && !queues.is_empty() { (limits(view, ask, &queues)) }
    };
    Ok(live.page("Queues", "queues", body))
}

fn row(view: &View, ask: &Ask, of: &QueueRow) -> Markup {
    let is_paused = of.paused_at.is_some();
    let verb = if is_paused { "resume" } else { "pause" };
    let question = format!("Pause {}? Its running jobs continue; no new ones start.", of.queue);
    html! {
        tr id={ "queue-" (of.queue) } {
            th scope="row" { a.row href={ (view.base) "/jobs?queue=" (of.queue) } { (of.queue) } }
            td data-label="State" {
                @if let Some(at) = of.paused_at {
                    (page::status("paused", "paused")) " " span.soft { (page::time(at)) }
                } @else if of.is_unserved() {
                    (page::status("silent", "no worker"))
                } @else {
                    (page::status("open", "active"))
                }
            }
            td.num data-label="Due" {
                (number(of.due))
                @if let Some(most) = of.max_queued { span.soft { " of " (number(most)) } }
            }
            td.num data-label="Submitted" {
                @if let Some(submitted) = of.submitted { (number(submitted)) } @else { "?" }
            }
            td.num.tight data-label="Oldest due" {
                @if let Some(s) = of.oldest_due_s { (whole(s)) } @else { "–" }
            }
            td.num data-label="Scheduled" { (number(of.scheduled)) }
            td data-label="Running" {
                @match of.max_running {
                    Some(most) => {
                        span.pair {
                            progress max=(most) value=(of.processing.min(most.into()))
                                aria-label={ (of.processing) " of " (most) " running" } {}
                            span.tight { (number(of.processing)) " " span.soft { "of " (most) } }
                        }
                    }
                    None => span.tight { (number(of.processing)) " " span.soft { "no limit" } },
                }
            }
            td.num data-label="Dead" {
                @if of.dead > 0 { a href={ (view.base) "/dead?queue=" (of.queue) } { (number(of.dead)) } } @else { "0" }
            }
            td.num data-label="Workers" {
                (number(of.workers))
                @if let Some(s) = of.last_seen_s.filter(|_| of.workers == 0) {
                    br; span.soft { "seen " (whole(s)) " ago" }
                }
            }
            @if view.has_actions {
                td.act {
                    form method="post" action={ (view.base) "/queues/" (of.queue) "/" (verb) }
                        data-confirm=[(!is_paused).then_some(question)] {
                        (page::own(ask))
                        button { @if is_paused { "Resume" } @else { "Pause" } }
                    }
                }
            }
        }
    }
}

/// The form of the limits. It is no live region, because users type here.
fn limits(view: &View, ask: &Ask, queues: &[QueueRow]) -> Markup {
    html! {
        section.panel {
            header { h2 { "Limits" } p { "of all workers together; leave a field empty for no limit" } }
            div.scroll { table.cards {
                thead { tr {
                    th scope="col" { "Queue" }
                    th scope="col" { "Max running" }
                    th scope="col" { "Max queued" }
                    th scope="col" { span.unseen { "Action" } }
                } }
                tbody {
                    @for of in queues {
                        @let form = format!("limit-{}", of.queue);
                        tr {
                            th scope="row" { (of.queue) }
                            td data-label="Max running" {
                                input type="number" min="1" max="10000" name="max_running" form=(form)
                                    value=[of.max_running] placeholder="no limit"
                                        aria-label={ (of.queue) ": max running" };
                            }
                            td data-label="Max queued" {
                                input type="number" min="1" max="10000000" name="max_queued" form=(form)
                                    value=[of.max_queued] placeholder="no limit"
                                        aria-label={ (of.queue) ": max queued" };
                            }
                            td.num {
                                form method="post" id=(form) action={ (view.base) "/queues/" (of.queue) "/limit" } {
                                    (page::own(ask))
                                    input type="hidden" name="was_max_running" value=[of.max_running];
                                    input type="hidden" name="was_max_queued" value=[of.max_queued];
                                    button { "Set" }
                                }
                            }
                        }
                    }
                }
            } }
        }
    }
}
