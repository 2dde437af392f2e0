//! Notices: what is wrong with the fleet, as banners of the overview. One cause has one banner.

use maud::{Markup, html};

use super::{
    View,
    overview::Figures,
    page::{self, number},
};
use tenure::internals::{
    Fleet, NEEDS, Parts as _, QueueStats, Unserved, UnservedSchedule,
    duration::{rounded, whole},
};

/// The most queues, and the most kinds and schedules, that have a notice of one sort each.
const QUEUES_SHOWN: usize = 10;
const KINDS_SHOWN: usize = 5;

pub(super) fn all(view: &View, of: &Figures) -> Markup {
    let fleet = &of.fleet;
    let (paused, active): (Vec<_>, Vec<_>) = fleet.queues.iter().partition(|of| of.is_paused);
    html! {
        div.stack #notices {
            @if fleet.is_read_only {
                p.notice.bad { span {
                    b { "Postgres is read-only." }
                    " No job starts, and none can be enqueued. The server is a standby, or set to read-only: point "
                    code { "DATABASE_URL" } " at the primary."
                } }
            }
            @if fleet.breaks_before > NEEDS {
                p.notice.bad { span {
                    b { "The schema is too new for this program." }
                    " A newer tenure has migrated the database: what these pages show may be wrong. \
                     Deploy a newer release."
                } }
            }
            @let no_room = view.tenure.store().no_room();
            @if let Some((ago, why)) = &no_room {
                p.notice.bad { span {
                    b { "Postgres does not take writes." }
                    " It refused one of this program " (whole(ago.as_secs_f64())) " ago: " (why)
                    ". Until it takes writes again, no job starts, and workers cannot show that they are alive."
                } }
            }
            // Workers cannot renew their rows then.
            @if fleet.workers == 0 && !fleet.is_read_only && no_room.is_none() { (no_worker(fleet)) }
            @if fleet.not_ready > 0 { (not_ready(view, fleet)) }
            @if fleet.is_held_back {
                p.notice { span {
                    b { "Recovery is paused." }
                    " After an outage, or when too many jobs look stale at once, live workers get time to write."
                } }
            }
            @if !view.tenure.nats().is_connected() {
                p.notice { span {
                    b { "NATS cannot be reached from here." }
                    " These pages come from Postgres; NATS delivers the waiting jobs when it is back."
                } }
            }
            // Without any worker, these would repeat the first notice.
            @if fleet.workers > 0 {
                (unserved_queues(view, &active))
                (unserved_kinds(view, fleet))
                (unserved_schedules(view, fleet, &of.schedules))
            }
            (full(view, &active))
            (paused_queues(view, fleet, &paused))
        }
    }
}

fn no_worker(fleet: &Fleet) -> Markup {
    html! {
        p.notice.bad { span {
            b { "No worker is alive." } " No job runs, and no job is reset."
            // A worker that stops removes its row.
            @if let Some(s) = fleet.last_seen_s {
                " The last one renewed its row " (whole(s)) " ago: it was killed, it is cut off from Postgres, or \
                 Postgres does not take its writes, as with a full disk. Its log says which; "
                code { "tenure doctor" } " tries a write."
            }
        } }
    }
}

fn not_ready(view: &View, fleet: &Fleet) -> Markup {
    html! {
        p.notice.bad[fleet.not_ready >= fleet.workers] { span {
            b {
                (number(fleet.not_ready)) " of " (number(fleet.workers))
                @if fleet.workers == 1 { " worker is" } @else { " workers are" } " not ready."
            }
            @if let Some(why) = &fleet.why_not_ready { " " (why) "." }
            " A worker that is not ready takes no job. " a href={ (view.base) "/workers" } { "Workers" }
        } }
    }
}

/// One notice for each of the first, and one for the number of the others.
fn some<T>(all: &[T], most: usize, one: impl Fn(&T) -> Markup, others: impl Fn(usize) -> Markup) -> Markup {
    html! {
        @for of in all.iter().take(most) { (one(of)) }
        @if all.len() > most { (others(all.len() - most)) }
    }
}

fn unserved_queues(view: &View, active: &[&QueueStats]) -> Markup {
    let unserved: Vec<_> = active.iter().filter(|of| of.is_unserved()).collect();
    let one = |of: &&&QueueStats| {
        html! {
            p.notice.bad { span {
                b { "No worker serves " (page::queue_link(view, &of.queue)) "." }
                @if let Some(s) = of.last_seen_s { " Its last worker was seen " (whole(s)) " ago." }
                @if of.waiting() > 0 {
                    " " (waiting(of.jobs[0], of.submitted, Some(of.oldest_due_s))) "."
                    @if of.is_full() { " It is full: enqueues are refused." }
                    " Start a worker: " code { "tenure work " (of.queue) " --exec COMMAND" }
                }
                @if of.jobs[2] > 0 { " " (number(of.jobs[2])) " of its jobs count as running." }
            } }
        }
    };
    let others = |n| {
        html! {
            p.notice.bad { span {
                b { (n) " more queues have no worker." } " " a href={ (view.base) "/queues" } { "Queues" }
            } }
        }
    };
    some(&unserved, QUEUES_SHOWN, one, others)
}

fn unserved_kinds(view: &View, fleet: &Fleet) -> Markup {
    let kinds: Vec<_> = fleet.unserved.iter().filter(|of| of.is_queue_served).collect();
    let one = |of: &&Unserved| {
        html! {
            p.notice.bad { span {
                b { "No worker of " (page::queue_link(view, &of.queue)) " runs the kind " (of.kind) "." }
                " " (waiting(of.due, of.submitted, of.oldest_s)) ". Start one: "
                code { "tenure work " (of.queue) " --kind " (of.kind) " --exec COMMAND" }
            } }
        }
    };
    let others = |n| {
        html! {
            p.notice.bad { span {
                b { (n) " more kinds have no worker." } " " code { "tenure doctor" } " names them."
            } }
        }
    };
    some(&kinds, KINDS_SHOWN, one, others)
}

/// Schedules whose next job would wait: named before it does. Once it waits, its queue or its kind has a notice.
fn unserved_schedules(view: &View, fleet: &Fleet, schedules: &[UnservedSchedule]) -> Markup {
    let is_named = |of: &&UnservedSchedule| {
        let queue = fleet.queues.iter().find(|queue| queue.queue == of.queue);
        queue.is_some_and(|queue| queue.is_paused || queue.is_unserved())
            || fleet.unserved.iter().any(|kind| kind.queue == of.queue && kind.kind == of.kind)
    };
    let unnamed: Vec<_> = schedules.iter().filter(|of| !is_named(of)).collect();
    let one = |of: &&UnservedSchedule| {
        html! {
            p.notice.bad { span {
                b { "No worker would run the jobs of the schedule " (page::schedule_link(view, &of.name)) "." }
                " Its next tick is " @if of.next_in_s >= 1.0 { "in " (rounded(of.next_in_s)) } @else { "due" } "; "
                @if of.is_queue_served { "no worker of " (of.queue) " runs the kind " (of.kind) ". Start one: " }
                @else { "no worker serves the queue " (of.queue) ". Start one: " }
                code { "tenure work " (of.queue) " --kind " (of.kind) " --exec COMMAND" }
            } }
        }
    };
    let others = |n| {
        html! {
            p.notice.bad { span {
                b { (n) " more schedules have no worker." }
                " " a href={ (view.base) "/schedules" } { "Schedules" }
            } }
        }
    };
    some(&unnamed, KINDS_SHOWN, one, others)
}

fn full(view: &View, active: &[&QueueStats]) -> Markup {
    // A queue without a worker has a notice that says so, too.
    let full: Vec<_> = active.iter().filter(|of| of.is_full() && !of.is_unserved()).collect();
    let one = |of: &&&QueueStats| {
        html! {
            p.notice { span {
                b { (page::queue_link(view, &of.queue)) " is full." }
                " " (queued(of)) " of at most " (number(of.max_queued.unwrap_or_default()))
                ": enqueues are refused. Add workers, or raise the limit: "
                code { "tenure queues limit " (of.queue) " --max-queued N" }
            } }
        }
    };
    let others = |n| {
        html! {
            p.notice { span { b { (n) " more queues are full." } " " a href={ (view.base) "/queues" } { "Queues" } } }
        }
    };
    some(&full, QUEUES_SHOWN, one, others)
}

/// "3 jobs are queued", or "3 jobs and submissions are queued": what counts towards the limit.
fn queued(of: &QueueStats) -> String {
    let what = match (of.queued(), of.standing) {
        (1, 0) => "job is queued,",
        (1, _) => "submission is queued,",
        (_, 0) => "jobs are queued,",
        _ => "jobs and submissions are queued,",
    };
    format!("{} {what}", number(of.queued()))
}

fn paused_queues(view: &View, fleet: &Fleet, paused: &[&QueueStats]) -> Markup {
    let one = |of: &&QueueStats| {
        html! {
            p.notice { span {
                b { (page::queue_link(view, &of.queue)) " is paused" }
                @if of.waiting() > 0 { "; " (waiting(of.jobs[0], of.submitted, Some(of.oldest_due_s))) }
                "."
                @if of.is_full() { " It is full: enqueues are refused." }
                @if fleet.workers > 0 && of.is_unserved() { " No worker serves it, either." }
            } }
        }
    };
    let others = |n| {
        html! {
            p.notice { span { b { (n) " more queues are paused." } " " a href={ (view.base) "/queues" } { "Queues" } } }
        }
    };
    some(paused, QUEUES_SHOWN, one, others)
}

/// "3 jobs are due and 4 submissions wait, the oldest for 2m".
fn waiting(due: i64, submitted: Option<i64>, oldest_s: Option<f64>) -> String {
    let due = match due {
        0 => None,
        1 => Some("1 job is due".to_owned()),
        due => Some(format!("{} jobs are due", number(due))),
    };
    let submitted = match submitted.unwrap_or_default() {
        0 => None,
        1 => Some("1 submission waits".to_owned()),
        submitted => Some(format!("{} submissions wait", number(submitted))),
    };
    let both: Vec<_> = due.into_iter().chain(submitted).collect();
    let since = oldest_s.filter(|s| *s >= 1.0).map(|s| format!(", the oldest for {}", whole(s)));
    both.join(" and ") + &since.unwrap_or_default()
}
