//! Notices: what is wrong with the fleet, as banners of the overview. One cause has one banner.

use std::time::Duration;

use maud::{Markup, html};

use super::{
    View,
    overview::{Figures, GROUPED},
    page::{self, number},
    quarantine,
};
use tenure::internals::{
    DeadGroup, Finding, Fleet, NEEDS, Parts as _, QueueStats, Unserved, UnservedSchedule,
    duration::{rounded, whole},
};

/// The most queues, and the most kinds and schedules, that have a notice of one sort each.
const QUEUES_SHOWN: usize = 10;
const KINDS_SHOWN: usize = 5;
/// The most groups of dead letters that have a notice.
const GROUPS_SHOWN: usize = 3;
/// A job that had been due for longer has no message because NATS does not take it.
const RELAY_LATE_S: f64 = 15.0;

pub(super) fn all(view: &View, of: &Figures) -> Markup {
    let fleet = &of.fleet;
    // No worker can have renewed its row during an outage; each has a few tries afterwards.
    let renewed_within = view.tenure.config().timing.renew_every * 3;
    let fell_silent_then = |of: &(Duration, Duration)| {
        of.0 < renewed_within
            && fleet.last_seen_s.is_some_and(|s| s < (of.0 + of.1 + renewed_within).as_secs_f64())
    };
    let just_back = view.tenure.store().back_for().filter(fell_silent_then).map(|(back_for, _)| back_for);
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
            @if fleet.workers == 0 && fleet.draining > 0 {
                p.notice { span {
                    b { "All live workers are draining." }
                    " They finish their jobs, and no other starts. If no deploy is on its way, start a worker. "
                    a href={ (view.base) "/workers" } { "Workers" }
                } }
            } @else if fleet.workers == 0 && let Some(back_for) = just_back {
                p.notice { span {
                    b { "Postgres is back since " (whole(back_for.as_secs_f64())) "." }
                    " Live workers have not renewed their rows yet."
                } }
            } @else if fleet.workers == 0 && !fleet.is_read_only && no_room.is_none() { (no_worker(fleet)) }
            @if fleet.not_ready > 0 { (not_ready(view, fleet)) }
            // Without any worker, this would repeat the first notice.
            @if fleet.silent > 0 && fleet.workers > 0 && just_back.is_none() {
                p.notice { span {
                    b {
                        (number(fleet.silent))
                        @if fleet.silent == 1 { " worker is silent." } @else { " workers are silent." }
                    }
                    " It was killed, is frozen, or is cut off from Postgres; its jobs are reset when that is \
                     proven, or when they are stale. " a href={ (view.base) "/workers" } { "Workers" }
                } }
            }
            @if fleet.is_held_back {
                p.notice { span {
                    b { "Recovery is paused." }
                    " After an outage, or when too many jobs look stale at once, live workers get time to write."
                } }
            }
            @if !view.tenure.nats().is_connected() {
                p.notice { span {
                    b { "NATS cannot be reached from here." }
                    " " (page::sentence(&view.tenure.nats().why_away()))
                    " These pages come from Postgres; NATS delivers the waiting jobs when it is back."
                } }
            }
            (quarantine::notice(view, &of.watched))
            @if let Some(why) = &fleet.unread {
                p.notice { span {
                    b { "What waits without a worker could not be read." }
                    " A newer tenure may have written it: deploy that release here, too. " (page::sentence(why))
                } }
            }
            // Without any worker, these would repeat the first notice.
            @if fleet.workers > 0 {
                @if just_back.is_none() { (unserved_queues(view, &active)) }
                (unserved_kinds(view, fleet))
                (put_off_kinds(view, fleet))
                (unserved_schedules(view, fleet, &of.schedules))
            }
            @if of.is_unpublished && no_room.is_none() {
                p.notice.bad { span {
                    b { "Due jobs wait for their messages." }
                    " The first of them has been due for " (whole(fleet.relay_lag_s)) ", and NATS has not taken its \
                     message: the stream or its storage may be full. " code { "tenure doctor" } " says which limit."
                } }
            }
            (findings(view, fleet))
            (died(view, &of.died))
            (misnamed(fleet))
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

/// One notice: of the only one of its sort, or a list of the first ones and the number of the others.
fn some<T>(
    is_bad: bool,
    all: &[T],
    most: usize,
    one: impl Fn(&T) -> Markup,
    others: impl Fn(usize) -> Markup,
) -> Markup {
    html! {
        @match all {
            [] => {}
            [only] => { p.notice.bad[is_bad] { span { (one(only)) } } }
            _ => {
                div.notice.bad[is_bad] { ul {
                    @for of in all.iter().take(most) { li { (one(of)) } }
                    @if all.len() > most { li { (others(all.len() - most)) } }
                } }
            }
        }
    }
}

fn unserved_queues(view: &View, active: &[&QueueStats]) -> Markup {
    let unserved: Vec<_> = active.iter().filter(|of| of.is_unserved()).collect();
    let one = |of: &&&QueueStats| {
        html! {
            b {
                @if of.draining > 0 { "All live workers of " (page::queue_link(view, &of.queue)) " are draining." }
                @else { "No worker serves " (page::queue_link(view, &of.queue)) "." }
            }
            @if let Some(s) = of.last_seen_s.filter(|_| of.draining == 0) {
                " Its last worker was seen " (whole(s)) " ago."
            }
            @if of.waiting() > 0 {
                " " (waiting(of.jobs[0] + of.held_due, of.submitted, Some(of.oldest_due_s))) "."
                @if of.is_full() { " It is full: enqueues are refused." }
                " Start a worker: " code { "tenure work " (of.queue) " --exec COMMAND" }
            }
            @if of.jobs[2] > 0 { " " (number(of.jobs[2])) " of its jobs count as running." }
        }
    };
    let others = |n| {
        html! {
            b { (n) " more queues have no worker." } " " a href={ (view.base) "/queues" } { "Queues" }
        }
    };
    some(true, &unserved, QUEUES_SHOWN, one, others)
}

/// Whether NATS may take no messages of due jobs. A scan may count one between two looks of the relay: what counts is
/// for how long it had been due then.
pub(super) fn may_be_unpublished(view: &View, fleet: &Fleet) -> bool {
    let was_late_s = fleet.relay_lag_s - fleet.age_s.unwrap_or_default();
    was_late_s > RELAY_LATE_S && fleet.workers > 0 && !fleet.is_read_only && view.tenure.nats().is_connected()
}

/// What doctor says of lanes, groups and running jobs.
fn findings(view: &View, fleet: &Fleet) -> Markup {
    let found: Vec<_> = fleet.findings.iter().flatten().collect();
    let one = |of: &&Finding| {
        html! {
            b {
                @if let Some(queue) = &of.queue { (page::queue_link(view, queue)) ": " }
                (page::with_code(&of.found)) "."
            }
            @if let Some(to_do) = &of.to_do { " " (page::with_code(&page::sentence(to_do))) }
            @match (of.check.as_str(), &of.queue) {
                ("lanes", Some(queue)) => { " " a href={ (view.base) "/queues/" (queue) "/lanes" } { "Lanes" } }
                ("slow", Some(queue)) => {
                    " " a href={ (view.base) "/jobs?status=processing&queue=" (queue) } { "Show them" }
                }
                _ => {}
            }
        }
    };
    let others = |n| {
        html! {
            b { "Doctor found " (n) " more." } " " code { "tenure doctor" } " names them."
        }
    };
    let is_wrong = found.iter().any(|of| of.state == "wrong");
    some(is_wrong, &found, KINDS_SHOWN, one, others)
}

fn died(view: &View, groups: &[DeadGroup]) -> Markup {
    let is_cut = groups.iter().map(|group| group.of.jobs).sum::<u64>() >= GROUPED.unsigned_abs();
    let one = |DeadGroup { of, line, fingerprint }: &DeadGroup| {
        html! {
            b {
                @if is_cut { "At least " }
                (number(of.jobs.cast_signed()))
                @if of.jobs == 1 { " job of " } @else { " jobs of " }
                (of.kind) " in " (page::queue_link(view, &of.queue)) " died within the last hour."
            }
            " " @if !line.is_empty() { (page::sentence(line)) " " }
            "The first died " (page::time(of.oldest)) ". Mend what fails; then "
            code { "tenure dead redrive --group " (fingerprint) " --canary 20" } ". "
            a href={ (view.base) "/dead?group=" (fingerprint) } { "Show them" }
        }
    };
    let others = |n| {
        html! {
            b { (n) " more groups of jobs died within the last hour." } " "
            a href={ (view.base) "/dead" } { "Dead letters" }
        }
    };
    some(false, groups, GROUPS_SHOWN, one, others)
}

fn unserved_kinds(view: &View, fleet: &Fleet) -> Markup {
    let kinds: Vec<_> = fleet.unserved.iter().filter(|of| of.is_queue_served).collect();
    let one = |of: &&Unserved| {
        html! {
            b { "No worker of " (page::queue_link(view, &of.queue)) " runs the kind " (of.kind) "." }
            " " (waiting(of.due, of.submitted, of.oldest_s)) ". Start one: "
            code { "tenure work " (of.queue) " --kind " (of.kind) " --exec COMMAND" }
        }
    };
    let others = |n| {
        html! {
            b { (n) " more kinds have no worker." } " " code { "tenure doctor" } " names them."
        }
    };
    some(true, &kinds, KINDS_SHOWN, one, others)
}

/// Jobs that wait although a worker runs their kind: NATS gave them to workers that do not know it.
fn put_off_kinds(view: &View, fleet: &Fleet) -> Markup {
    let one = |of: &Unserved| {
        html! {
            b { "Workers of " (page::queue_link(view, &of.queue)) " do not know the kind " (of.kind) "." }
            " They got " @match of.put_off.unwrap_or_default() {
                1 => "1 of its jobs, and put it off",
                jobs => { (number(jobs)) " of its jobs, and put them off" }
            }
            @if let Some(s) = of.oldest_s { ", the first " (whole(s)) " ago" }
            ". Finish the deploy, or give the kind a queue of its own: NATS gives a job to any worker of its queue."
        }
    };
    let others = |n| {
        html! {
            b { "Jobs of " (n) " more kinds were put off." } " " code { "tenure doctor" } " names them."
        }
    };
    some(false, &fleet.put_off, KINDS_SHOWN, one, others)
}

/// Messages that no worker reads.
fn misnamed(fleet: &Fleet) -> Markup {
    html! {
        @if let Some(subject) = fleet.misnamed_subject.as_ref().filter(|_| fleet.misnamed > 0) {
            p.notice.bad { span {
                b {
                    (number(fleet.misnamed))
                    @if fleet.misnamed == 1 { " message has a subject that names" }
                    @else { " messages have a subject that names" }
                    " no valid queue or kind."
                }
                " No worker reads such a message, as of " code { (subject) } ". Correct the producer; "
                code { "tenure doctor" } " says how to remove them."
            } }
        }
    }
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
            b { "No worker would run the jobs of the schedule " (page::schedule_link(view, &of.name)) "." }
            " Its next tick is " @if of.next_in_s >= 1.0 { "in " (rounded(of.next_in_s)) } @else { "due" } "; "
            @if of.is_queue_served { "no worker of " (of.queue) " runs the kind " (of.kind) ". Start one: " }
            @else { "no worker serves the queue " (of.queue) ". Start one: " }
            code { "tenure work " (of.queue) " --kind " (of.kind) " --exec COMMAND" }
        }
    };
    let others = |n| {
        html! {
            b { (n) " more schedules have no worker." }
            " " a href={ (view.base) "/schedules" } { "Schedules" }
        }
    };
    some(true, &unnamed, KINDS_SHOWN, one, others)
}

fn full(view: &View, active: &[&QueueStats]) -> Markup {
    // A queue without a worker has a notice that says so, too.
    let full: Vec<_> = active.iter().filter(|of| of.is_full() && !of.is_unserved()).collect();
    let one = |of: &&&QueueStats| {
        html! {
            b { (page::queue_link(view, &of.queue)) " is full." }
            " " (queued(of)) " of at most " (number(of.max_queued.unwrap_or_default()))
            ": enqueues are refused. Add workers, or raise the limit: "
            code { "tenure queues limit " (of.queue) " --max-queued N" }
        }
    };
    let others = |n| {
        html! {
            b { (n) " more queues are full." } " " a href={ (view.base) "/queues" } { "Queues" }
        }
    };
    some(false, &full, QUEUES_SHOWN, one, others)
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
            b { (page::queue_link(view, &of.queue)) " is paused" }
            @if of.waiting() > 0 { "; " (waiting(of.jobs[0] + of.held_due, of.submitted, Some(of.oldest_due_s))) }
            "."
            @if of.is_full() { " It is full: enqueues are refused." }
            @if fleet.workers > 0 && of.is_unserved() { " No worker serves it, either." }
        }
    };
    let others = |n| {
        html! {
            b { (n) " more queues are paused." } " " a href={ (view.base) "/queues" } { "Queues" }
        }
    };
    some(false, paused, QUEUES_SHOWN, one, others)
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
