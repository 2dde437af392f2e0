//! Workers: the known processes, and whether they are alive.

use maud::html;

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, number, stamped},
};
use tenure::{internals::duration::whole, rows::WorkerState};

pub(super) async fn page(view: &View, _ask: &Ask) -> Result<Page, Failure> {
    let workers = view.tenure.workers().await?;
    let count = |state| workers.iter().filter(|of| of.state == state).count();
    let alive = count(WorkerState::Alive);
    let others = [WorkerState::Draining, WorkerState::Silent, WorkerState::Vanishing];
    let others = others.map(|state| (count(state), state.as_str()));
    let running: u64 = workers.iter().map(|of| of.running).sum();
    let slots: u64 = workers.iter().map(|of| u64::from(of.slots)).sum();
    let about = html! {
        (alive) " alive"
        @for (n, state) in others.iter().filter(|(n, _)| *n > 0) { ", " (n) " " (state) }
        "; " (number(running)) " of " (number(slots)) " slots busy."
    };
    let mut live = Regions::default();
    let table = html! {
        section.panel #workers {
            @if workers.is_empty() {
                div.empty { strong { "No workers yet" } p { "Start one: " code
                    { "tenure work QUEUE --exec COMMAND" } } }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Worker" }
                        th scope="col" { "State" }
                        th scope="col" { "Slots busy" }
                        th scope="col" { "Queues" }
                        th scope="col" { "Kinds" }
                        th.num scope="col" { "Last seen" }
                        th.num scope="col" { "Started, UTC" }
                        th.num scope="col" { "Version" }
                    } }
                    tbody {
                        @for of in &workers {
                            tr id={ "worker-" (of.worker_id) } {
                                th.tight scope="row" { (page::worker_row(view, &of.worker_id)) }
                                td data-label="State" {
                                    @let is = if of.state == WorkerState::Vanishing
                                        { "gone" } else { of.state.as_str() };
                                    (page::status(is, of.state.as_str()))
                                    @if let Some(why) = &of.not_ready {
                                        " " span.clip title=(why) { "not ready: " (why) }
                                    }
                                }
                                td data-label="Slots busy" {
                                    span.pair {
                                        progress max=(of.slots) value=(of.running.min(of.slots.into()))
                                            aria-label={ (of.running) " of " (of.slots) " slots busy" } {}
                                        span.tight { (of.running) " " span.soft { "of " (of.slots) } }
                                    }
                                }
                                td.full data-label="Queues" { (page::queue_links(view, &of.queues)) }
                                td.full data-label="Kinds" {
                                    @match &of.kinds {
                                        Some(kinds) => (kinds.join(", ")),
                                        None => span.soft { "every kind" },
                                    }
                                }
                                td.num.tight data-label="Last seen" { (whole(of.last_seen_s)) " ago" }
                                td.num.tight data-label="Started" { (stamped(of.started_at)) }
                                td.num data-label="Version" { (of.program()) }
                            }
                        }
                    }
                } }
            }
        }
    };
    let body = html! {
        (live.put("head", html! { header.head #head { div { h1 { "Workers" } p { (about) } } } }))
        (live.put("workers", table))
    };
    Ok(live.page("Workers", "workers", body))
}
