//! Schedules: a job at each tick.

use maud::html;

use tenure::{StoreError, internals::Parts as _};

use super::{
    Ask, Failure, View,
    page::{self, Page, Regions, stamped},
    schedule::{UNSERVED, colour, run_form, state},
};

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let read = async {
        let (all, unserved) =
            tokio::try_join!(view.tenure.schedules(), view.tenure.store().unserved_schedules(UNSERVED))?;
        Ok::<_, StoreError>((all, unserved))
    };
    let (schedules, unserved) = read.await?;
    let mut live = Regions::default();
    let table = html! {
        section.panel #schedules {
            @if schedules.is_empty() {
                div.empty {
                    strong { "No schedules yet" }
                    p { "Add one: " code { "tenure schedules add NAME CRON QUEUE KIND JSON" } }
                }
            } @else {
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Schedule" }
                        th scope="col" { "State" }
                        th scope="col" { "Expression" }
                        th scope="col" { "Enqueues" }
                        th scope="col" { "Missed ticks" }
                        th.num scope="col" { "Next tick, UTC" }
                        th.num scope="col" { "Last tick, UTC" }
                        @if view.has_actions { th scope="col" { span.unseen { "Action" } } }
                    } }
                    tbody {
                        @for of in &schedules {
                            @let is_paused = of.paused_at.is_some();
                            @let state = state(of, &unserved);
                            tr id={ "schedule-" (of.name) } {
                                th.tight scope="row" {
                                    a.row href={ (view.base) "/schedules/" (of.name) } { (of.name) }
                                }
                                td data-label="State" {
                                    (page::status(colour(state), state))
                                }
                                td.tight data-label="Expression" { code { (of.cron) } " " span.soft { (of.time_zone) } }
                                td data-label="Enqueues" {
                                    (of.kind) " " span.soft { "in " (page::queue_link(view, &of.queue)) }
                                }
                                td data-label="Missed ticks" { (of.missed) }
                                td.num.tight.none[is_paused] data-label="Next tick" { @if !is_paused
                                    { (stamped(of.next_at)) } }
                                td.num.tight data-label="Last tick" {
                                    @match (of.last_tick_at, of.last_job_id) {
                                        (Some(at), Some(job)) => a href={ (view.base) "/jobs/" (job) }
                                            { (stamped(at)) },
                                        (Some(at), None) => (stamped(at)),
                                        _ => "–",
                                    }
                                }
                                @if view.has_actions {
                                    td.act {
                                        @let verb = if is_paused { "resume" } else { "pause" };
                                        form method="post" action={ (view.base) "/schedules/" (of.name) "/" (verb) } {
                                            (page::own(ask))
                                            button { @if is_paused { "Resume" } @else { "Pause" } }
                                        }
                                        " "
                                        (run_form(view, ask, of))
                                    }
                                }
                            }
                        }
                    }
                } }
            }
        }
    };
    let body = html! {
        header.head {
            div { h1 { "Schedules" } p { "A job at each tick of a cron expression." } }
            @if view.has_actions {
                div.actions { a.button href={ (view.base) "/schedule" } { "Add a schedule" } }
            }
        }
        (live.put("schedules", table))
    };
    Ok(live.page("Schedules", "schedules", body))
}
