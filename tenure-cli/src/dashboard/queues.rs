//! Queues: the jobs, the state and the limits of each queue.

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, number},
};
use tenure::{
    internals::{Fleet, Parts as _, duration::whole},
    rows::QueueRow,
};

/// What the state of a queue depends on.
#[expect(clippy::struct_excessive_bools, reason = "each may be so beside the others")]
pub(crate) struct State {
    pub(super) is_paused: bool,
    pub(super) is_unserved: bool,
    pub(super) is_draining: bool,
    pub(super) is_full: bool,
    pub(super) has_unknown_kind: bool,
    pub(super) is_limited: bool,
}

/// The word for the state of a queue, in its colour.
pub(super) fn state(of: &State) -> Markup {
    let is = match of.word() {
        "paused" => "paused",
        "active" => "open",
        "limited" => "queued",
        "draining" => "released",
        _ => "silent",
    };
    page::status(is, of.word())
}

impl State {
    /// Returns the word for the queue's most serious state. The command line has it, too.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self { is_paused: true, .. } => "paused",
            Self { is_unserved: true, is_draining: true, .. } => "draining",
            Self { is_unserved: true, .. } => "no worker",
            Self { is_full: true, .. } => "full",
            Self { has_unknown_kind: true, .. } => "unknown kind",
            Self { is_limited: true, .. } => "limited",
            _ => "active",
        }
    }

    pub(crate) fn of(of: &QueueRow, fleet: &Fleet) -> Self {
        Self {
            is_paused: of.paused_at.is_some(),
            is_unserved: of.is_unserved(),
            is_draining: of.draining > 0,
            is_full: of.is_full(),
            has_unknown_kind: fleet
                .unserved
                .iter()
                .any(|kind| kind.queue == of.queue && kind.is_queue_served),
            is_limited: of.is_limited(),
        }
    }
}

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let (mut queues, fleet) = tokio::try_join!(view.tenure.queues(), view.tenure.store().fleet())?;
    queues.retain(|of| view.looks.has(&of.queue));
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
                        th.num scope="col" { "Queued" }
                        th scope="col" { "Running" }
                        th.num scope="col" { "Dead" }
                        th.num scope="col" { "Workers" }
                        @if view.has_actions { th scope="col" { span.unseen { "Action" } } }
                    } }
                    tbody { @for of in &queues { (row(view, ask, &fleet, of)) } }
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

fn row(view: &View, ask: &Ask, fleet: &Fleet, of: &QueueRow) -> Markup {
    html! {
        tr id={ "queue-" (of.queue) } {
            th scope="row" { (page::queue_row(view, &of.queue)) }
            td data-label="State" {
                (state(&State::of(of, fleet)))
                @if let Some(at) = of.paused_at { " " span.soft { (page::time(at)) } }
            }
            td.num data-label="Due" {
                (number(of.due))
                @if of.held > 0 {
                    br; a.soft.tight href={ (view.base) "/queues/" (of.queue) "/lanes" } { (number(of.held)) " held" }
                }
            }
            td.num data-label="Submitted" {
                @if let Some(submitted) = of.submitted { (number(submitted)) } @else { "?" }
            }
            td.num.tight data-label="Oldest due" {
                @if let Some(s) = of.oldest_due_s { (whole(s)) } @else { "–" }
            }
            td.num data-label="Scheduled" { (number(of.scheduled)) }
            td.num.tight data-label="Queued" {
                (number(of.queued()))
                @if let Some(most) = of.max_queued { span.soft { " of " (number(most)) } }
            }
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
                @if of.draining > 0 { br; span.soft { (number(of.draining)) " draining" } }
                @else if let Some(s) = of.last_seen_s.filter(|_| of.workers == 0) {
                    br; span.soft { "seen " (whole(s)) " ago" }
                }
            }
            @if view.has_actions {
                td.act { (pause(view, ask, &of.queue, of.paused_at.is_some())) }
            }
        }
    }
}

/// The form that pauses or resumes a queue.
pub(super) fn pause(view: &View, ask: &Ask, queue: &str, is_paused: bool) -> Markup {
    let verb = if is_paused { "resume" } else { "pause" };
    let question = format!("Pause {queue}? Its running jobs continue; no new ones start.");
    html! {
        form method="post" action={ (view.base) "/queues/" (queue) "/" (verb) }
            data-confirm=[(!is_paused).then_some(question)] {
            (page::own(ask))
            button { @if is_paused { "Resume" } @else { "Pause" } }
        }
    }
}

/// The form of the limits. It is no live region, because users type here.
pub(super) fn limits(view: &View, ask: &Ask, queues: &[QueueRow]) -> Markup {
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// The words of the dashboard, of the command line and of the docs are the same.
    #[test]
    fn each_state_of_a_queue_is_in_the_glossary() {
        let glossary = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/concepts.md");
        let glossary = std::fs::read_to_string(glossary).unwrap();
        for bit in 0..7 {
            let is = |own: u32| bit == own;
            let state = State {
                is_paused: is(0),
                is_unserved: is(1) || is(2),
                is_draining: is(2),
                is_full: is(3),
                has_unknown_kind: is(4),
                is_limited: is(5),
            };
            let is_defined = |row: &str| {
                row.split('|').nth(1).is_some_and(|own| own.split(',').any(|w| w.trim() == state.word()))
            };
            assert!(glossary.lines().any(is_defined), "{} is not in docs/concepts.md", state.word());
        }
    }
}
