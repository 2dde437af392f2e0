//! Quarantine: the kinds that are watched, on the page of kinds, and those in quarantine, as banners of the overview.

use std::time::Duration;

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, number, stamped},
    params::encoded,
};
use tenure::{StoreError, internals::duration::written, rows::QuarantineRow};

/// The most kinds that the banner names.
const NAMED: usize = 5;
const UNREAD: &str = "The watched kinds";

/// The kinds that are watched, or why they could not be read.
pub(super) type Watched = Result<Vec<QuarantineRow>, StoreError>;

/// The kinds that are watched, if any is.
pub(super) fn panel(view: &View, ask: &Ask, watched: &Watched) -> Markup {
    let unread = watched.as_ref().err().map(|error| page::unread(UNREAD, &error.clone().into()));
    let watched = watched.as_deref().unwrap_or_default();
    html! {
        section.panel #watched hidden[watched.is_empty() && unread.is_none()] {
            @if let Some(unread) = unread {
                div.body { (unread) }
            } @else if !watched.is_empty() {
                header {
                    h2 { "Watched" }
                    p { "While too many attempts of such a kind fail, its jobs wait, and one at a time is tried." }
                }
                div.scroll { table.cards {
                    thead { tr {
                        th scope="col" { "Kind" }
                        th scope="col" { "Quarantine if failed" }
                        th scope="col" { "State" }
                        th.num scope="col" { "Failed" }
                        th.num scope="col" { "Waiting" }
                        th scope="col" { "Probes" }
                        @if view.has_actions { th scope="col" { span.unseen { "Action" } } }
                    } }
                    tbody { @for of in watched { (row(view, ask, of)) } }
                } }
            }
        }
    }
}

fn row(view: &View, ask: &Ask, of: &QuarantineRow) -> Markup {
    let percent = (of.share * 1e4).round() / 100.0;
    let (failed, ended) = match (of.began_at, of.failed, of.ended) {
        (Some(_), Some(failed), Some(ended)) => (failed, ended),
        _ => (of.lately_failed, of.lately_ended),
    };
    let question = format!("Let all jobs of {} run again?", of.kind);
    html! {
        tr id={ "watched-" (of.kind) } {
            th scope="row" { a.row href={ (view.base) "/jobs?kind=" (encoded(&of.kind)) } { (of.kind) } }
            td data-label="Quarantine if failed" {
                "> " (percent) " % of " (of.attempts) " in " (span(of.within_s))
            }
            td data-label="State" {
                @match of.began_at {
                    Some(at) => { (page::status("failed", "in quarantine")) " since " (stamped(at)) },
                    None => "runs",
                }
            }
            td.num data-label="Failed" { (number(failed)) " of " (number(ended)) }
            td.num data-label="Waiting" { (number(of.waiting)) }
            td data-label="Probes" {
                @if of.began_at.is_some() {
                    (number(of.probes))
                    @if let Some(how) = &of.last_probe { ", the last " (how) }
                    @if of.probe_job.is_some() { "; one runs" }
                    @else if let Some(at) = of.next_probe_at { "; next " (stamped(at)) }
                } @else { "–" }
            }
            @if view.has_actions {
                td.act {
                    @if of.began_at.is_some() {
                        form method="post" action={ (view.base) "/kinds/" (of.kind) "/release" }
                            data-confirm=(question) {
                            (page::own(ask))
                            button { "Release" }
                        }
                    }
                }
            }
        }
    }
}

fn span(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map(written).unwrap_or_default()
}

/// The banner of the overview.
pub(super) fn notice(view: &View, watched: &Watched) -> Markup {
    let unread = watched.as_ref().err().map(|error| Failure::from(error.clone()).text());
    let held: Vec<_> = watched.iter().flatten().filter(|of| of.began_at.is_some()).collect();
    html! {
        @if let Some(why) = unread { p.notice { span { b { (UNREAD) " could not be read." } " " (why) } } }
        @for of in held.iter().take(NAMED) {
            p.notice.bad { span {
                b { "The kind " (of.kind) " is in quarantine." }
                " " (number(of.failed.unwrap_or_default())) " of " (number(of.ended.unwrap_or_default()))
                " attempts had failed. Its jobs wait (" (number(of.waiting)) "), and one each " (span(of.probe_every_s))
                " is tried. " a href={ (view.base) "/dead?kind=" (encoded(&of.kind)) } { "Dead letters" } " "
                a href={ (view.base) "/kinds" } { "Kinds" }
            } }
        }
        @if held.len() > NAMED {
            p.notice.bad { span { b { "And " (held.len() - NAMED) " more kinds are in quarantine." } } }
        }
    }
}

/// Ends a quarantine.
pub(super) async fn release(view: &View, kind: &str) -> Result<String, Failure> {
    Ok(if view.tenure.end_quarantine(kind).await? {
        format!("The jobs of {kind} run again.")
    } else {
        format!("{kind} is not in quarantine.")
    })
}
