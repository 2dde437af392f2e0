//! Jobs: what surrounds them: workers, scans, the relay, schedules, dead letters and queues.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::sleep;
use uuid::Uuid;

use super::{
    Asked, Check, CheckState, NO_WRITES, jobs_of, skip, skip_by, some_of, span_of,
    store::{JobsSeen, QueueSeen, Slow, UnservedSchedule, WorkerSeen},
    text,
};
use crate::{
    config::Timing,
    job::duration::measured,
    nats::{
        Nats, Unseen,
        survey::{longer, survey},
        waiting,
    },
    schedules::store::ScheduleRow,
    store::{DeadGroup, Misnamed, Store, StoreError, Waiting},
};

const OF_WORKERS: [&str; 2] = ["workers", "versions"];
const OF_JOBS: [&str; 3] = ["scans", "relay", "dead_letters"];

pub(crate) const SLOW: &str = "slow";
/// `doctor` warns of an attempt that has run for longer than this, and for this many times as long as is usual.
const SLOW_AFTER: Duration = Duration::from_mins(1);
const SLOW_TIMES: f64 = 10.0;
/// The most kinds that have such a warning each.
const SLOW_SHOWN: i64 = 20;

/// The checks of queues, and of the kinds in them.
pub(crate) const OF_QUEUES: [&str; 3] = ["queue", "kinds", "subjects"];

/// How long NATS may take to count its messages, and again to say how long the first have waited.
const COUNTED_WITHIN: Duration = Duration::from_secs(5);
/// A kind that has waited for longer is wrong; before, a worker that runs it may be on its way.
const KIND_LATE: Duration = Duration::from_mins(1);
/// A job that has waited for the limit of its queue for longer has a warning.
const LIMITED_LATE: Duration = Duration::from_mins(1);
/// The most kinds that have a finding each.
const KINDS_SHOWN: usize = 20;

/// A tick whose job is this late was missed by every worker.
const TICK_LATE: TimeDelta = TimeDelta::minutes(1);

/// How often to look again at an overdue job, and at which intervals.
const LOOKS: u32 = 2;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The latest dead letters to group, and the most groups that a finding names.
const GROUPED: i64 = 1_000;
const GROUPS_SHOWN: i64 = 3;
/// The most jobs that the statements count.
const OVERDUE_MOST: i64 = 10_000;
const WAITING_MOST: i64 = 1_000;
const UNSERVED_MOST: i64 = 1_000;

/// After this many intervals without a scan, no worker scans. After a gap of three the next scan begins with a grace.
pub const SCANS_MISSED: u32 = 5;

/// Returns every check of this module as skipped, and why.
pub(crate) fn skipped(why: &str) -> Vec<Check> {
    let mut checks = skip(&OF_WORKERS, why);
    checks.extend(skip(&OF_JOBS, why));
    checks.extend(skip(&["schedules"], why));
    checks
}

/// The queues to ask NATS about when Postgres names none.
pub(crate) fn unknown(named: Option<&[String]>) -> Vec<Asked> {
    let named = named.unwrap_or_default().iter();
    named.map(|queue| Asked { queue: queue.clone(), is_served: false }).collect()
}

/// Checks what surrounds the jobs, except for their queues. `can_write`: whether Postgres takes writes, as far as is
/// known.
pub(crate) async fn look(store: &Store, timing: &Timing, can_write: bool) -> Vec<Check> {
    let seen = store.doctor_workers().await;
    let mut checks = match &seen {
        Ok(seen) if !can_write => vec![workers(seen, can_write), Check::skipped("versions", NO_WRITES)],
        Ok(seen) => vec![workers(seen, can_write), versions(seen)],
        Err(error) => skip_by(&OF_WORKERS, error),
    };
    if !can_write {
        checks.extend(skip(&OF_JOBS, NO_WRITES));
        checks.extend(skip(&["schedules"], NO_WRITES));
        return checks;
    }
    match overdue(store, timing).await {
        Ok(jobs) => {
            checks.extend(match &seen {
                // Before the first scan, the age of the workers decides.
                Err(error) if jobs.last_scan.is_none() => skip_by(&["scans"], error),
                seen => vec![scans(&jobs, seen.as_deref().unwrap_or_default(), timing)],
            });
            let groups = match jobs.died {
                0 => Ok(Vec::new()),
                _ => store.dead_lately(GROUPS_SHOWN, GROUPED).await,
            };
            checks.extend([relay(&jobs), dead_letters(&jobs, groups)]);
        }
        Err(error) => checks.extend(skip_by(&OF_JOBS, &error)),
    }
    let read = async {
        Ok::<_, StoreError>((store.schedules_now().await?, store.unserved_schedules(UNSERVED_MOST).await?))
    };
    match read.await {
        Ok(((rows, now), unserved)) => checks.push(schedules(&rows, &unserved, now)),
        Err(error) => checks.extend(skip_by(&["schedules"], &error)),
    }
    checks
}

/// Returns the first job that is overdue for the relay. If a worker has just handed it over, it is another a moment
/// later.
pub async fn first_overdue(store: &Store, timing: &Timing) -> Result<Option<Uuid>, StoreError> {
    Ok(store.doctor_jobs(overdue_after(timing)).await?.oldest)
}

/// Counts overdue jobs, and looks again if there are some: a job that its worker has just handed to the relay is
/// published by then.
async fn overdue(store: &Store, timing: &Timing) -> Result<JobsSeen, StoreError> {
    let first = store.doctor_jobs(overdue_after(timing)).await?;
    if first.overdue == 0 {
        return Ok(first);
    }
    for _ in 0..LOOKS {
        sleep(LOOK_EVERY).await;
        let seen = store.doctor_jobs(overdue_after(timing)).await?;
        if seen.oldest == first.oldest {
            return Ok(seen);
        }
    }
    Ok(JobsSeen { overdue: 0, overdue_for: None, ..first })
}

/// Checks the queues, and the kinds that wait in them: as jobs, and, if NATS is given, as submissions in the stream.
/// Also returns the queues to ask NATS about, and why messages could not be read.
pub(crate) async fn queues(
    store: &Store,
    nats: Option<&Nats>,
    named: Option<&[String]>,
) -> (Vec<Check>, Vec<Asked>, Option<Unseen>) {
    let counts = match nats {
        Some(nats) => waiting::counts(nats, COUNTED_WITHIN).await,
        None => None,
    };
    let is_counted = counts.is_some();
    let of_subjects = match (&counts, nats) {
        (Some(counts), Some(nats)) => vec![about_misnamed(&counts.misnamed, nats)],
        _ => vec![Check::skipped("subjects", "NATS did not count its messages")],
    };
    let kinds = store.doctor_kinds(counts.as_ref().map(|counts| counts.kinds.as_slice()), named).await;
    let mut unread = None;
    let (waits, of_kinds) = match kinds {
        Ok(mut waits) => {
            let ages = match nats {
                Some(nats) => {
                    let at = counts.as_ref().and_then(|counts| counts.at);
                    let (ages, why_not) = survey(store, nats, at, &mut waits, COUNTED_WITHIN).await;
                    unread = why_not;
                    ages
                }
                None => Vec::new(),
            };
            let ages = ages.into_iter().chain(std::iter::repeat(None));
            let waits: Vec<_> = waits.into_iter().zip(ages).collect();
            let purge = |queue: &str, kind: &str| Some(nats?.purge_command(queue, Some(kind)));
            let of_kinds = about_kinds(&waits, is_counted, purge);
            (waits, of_kinds)
        }
        Err(error) => (Vec::new(), skip_by(&["kinds"], &error)),
    };
    let submitted = || waits.iter().filter(|(of, _)| of.submitted > Some(0));
    // A mistyped queue may hold rows that have no message yet.
    let others = waits.iter().filter(|(of, _)| of.due > 0 || of.submitted > Some(0));
    let mut others: Vec<_> = others.map(|(of, _)| of.queue.clone()).collect();
    others.sort_unstable();
    others.dedup();
    match store.doctor_queues(named, &others).await {
        Ok(mut queues) => {
            let mut checks = Vec::new();
            if queues.is_empty() && named.is_none() {
                checks.push(Check::ok("queue", "no worker serves a queue, and no job waits"));
            }
            for seen in &mut queues {
                let of_queue = || submitted().filter(|(of, _)| of.queue == seen.queue);
                let oldest = of_queue().filter_map(|(_, age)| *age).reduce(f64::max);
                seen.submitted = is_counted.then(|| of_queue().filter_map(|(of, _)| of.submitted).sum());
                seen.submitted_for = oldest.and_then(seconds);
                // Those without a message wait, too.
                let due = || waits.iter().map(|(of, _)| of).filter(|of| of.queue == seen.queue);
                seen.waiting = seen.waiting.max(due().map(|of| of.due).sum());
                let oldest_due = due().filter_map(|of| of.oldest_due_s).reduce(f64::max);
                seen.waiting_for = seen.waiting_for.max(oldest_due.and_then(seconds));
            }
            let check = |seen: &QueueSeen| {
                let purge = nats.map(|nats| nats.purge_command(&seen.queue, None));
                queue(seen, purge.as_deref()).of(&seen.queue)
            };
            checks.extend(queues.iter().map(check));
            checks.extend(of_kinds);
            checks.extend(of_subjects);
            let asked = queues.into_iter().map(|seen| Asked { queue: seen.queue, is_served: seen.is_served });
            (checks, asked.collect(), unread)
        }
        Err(error) => {
            let mut checks = skip_by(&["queue"], &error);
            checks.extend(of_kinds);
            checks.extend(of_subjects);
            (checks, unknown(named), unread)
        }
    }
}

fn seconds(of: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(of).ok()
}

/// Checks that a live worker runs every kind that waits in a served queue. The check of each queue reports one without
/// workers. `purge` is the command that removes the messages of a kind.
fn about_kinds(
    waits: &[(Waiting, Option<f64>)],
    is_counted: bool,
    purge: impl Fn(&str, &str) -> Option<String>,
) -> Vec<Check> {
    const CHECK: &str = "kinds";
    let waits_alone =
        |of: &Waiting| of.is_queue_served && !of.is_served && (of.due > 0 || of.submitted > Some(0));
    let unknown: Vec<_> = waits.iter().filter(|(of, _)| waits_alone(of)).collect();
    let put_off: Vec<_> =
        waits.iter().map(|(of, _)| of).filter(|of| of.is_served && of.put_off > 0).collect();
    let mut of_put_off: Vec<_> = put_off.iter().take(KINDS_SHOWN).map(|of| about_put_off(of)).collect();
    if put_off.len() > KINDS_SHOWN {
        let more = format!("and {} more kinds whose jobs were put off", put_off.len() - KINDS_SHOWN);
        of_put_off
            .push(Check::warning(CHECK, more).advise("let each worker of a queue know all of its kinds"));
    }
    if unknown.is_empty() && !of_put_off.is_empty() {
        return of_put_off;
    }
    if unknown.is_empty() {
        let found = "a live worker runs each kind that waits in a served queue";
        if !is_counted {
            return vec![Check::skipped(CHECK, format!("{found} as a row; NATS did not count its messages"))];
        }
        return vec![Check::ok(CHECK, found)];
    }
    let check = |(of, age): &&(Waiting, Option<f64>)| {
        let Waiting { queue, kind, due, .. } = of;
        let waited = longer(of.oldest_due_s, *age).and_then(seconds);
        let found = format!(
            "no live worker runs the kind {kind}; {}",
            amounts(
                (*due, of.oldest_due_s.and_then(seconds)),
                i64::MAX,
                (Some(of.submitted.unwrap_or_default()), age.and_then(seconds))
            )
        );
        let to_do = format!(
            "start a worker that runs it (`tenure work {queue} --kind {kind} --exec COMMAND`, or a program with a \
             handler of this kind), or cancel its jobs: `tenure jobs cancel --queue {queue} --kind {kind}`{}",
            purge(queue, kind).map(|purge| then_purge(&purge)).unwrap_or_default()
        );
        // In a deploy the producers may be first.
        let is_wrong = waited.is_none_or(|waited| waited >= KIND_LATE);
        let check = if is_wrong { Check::wrong(CHECK, found) } else { Check::warning(CHECK, found) };
        check.advise(to_do).of(queue)
    };
    let mut checks: Vec<_> = unknown.iter().take(KINDS_SHOWN).map(check).collect();
    if unknown.len() > KINDS_SHOWN {
        let more = format!("and {} more kinds that no live worker runs", unknown.len() - KINDS_SHOWN);
        checks.push(Check::wrong(CHECK, more).advise("start workers that run them, or cancel their jobs"));
    }
    checks.extend(of_put_off);
    checks
}

/// Says which jobs wait because workers that do not know their kind got them.
fn about_put_off(of: &Waiting) -> Check {
    let Waiting { queue, kind, put_off, .. } = of;
    let found = format!(
        "workers of this queue that do not know the kind {kind} put off {} of it, the first {} ago",
        match put_off {
            1 => "1 job".to_owned(),
            n => format!("{n} jobs"),
        },
        span_of(of.put_off_s.and_then(seconds))
    );
    Check::warning("kinds", found).of(queue).advise(
        "finish the deploy: each worker of a queue should know all of its kinds, because NATS gives a job to any of \
         them; or give the kind a queue of its own",
    )
}

/// Reports messages that no worker can read.
fn about_misnamed(misnamed: &Misnamed, nats: &Nats) -> Check {
    const CHECK: &str = "subjects";
    let Some(subject) = &misnamed.subject else {
        return Check::ok(CHECK, "each message names a queue and a kind");
    };
    let messages = match misnamed.messages {
        1 => "1 message".to_owned(),
        n => format!("{n} messages"),
    };
    let found = format!(
        "{messages} in the stream with a subject that names no valid queue or kind, as {subject:?}: no worker reads \
         them"
    );
    // A purge would take these for a pattern.
    let is_pattern = subject.split('.').any(|token| token == "*" || token == ">");
    let remove = if is_pattern { nats.remove_command() } else { nats.purge_subject(subject) };
    Check::wrong(CHECK, found).advise(format!(
        "correct the producer: it publishes to {}, with the names that `tenure enqueue` takes; then remove them: \
         `{remove}`",
        nats.subject_of("QUEUE", Some("KIND"))
    ))
}

/// What to do after a cancellation: the messages of the jobs stay, and no cancellation finds a submission.
fn then_purge(purge: &str) -> String {
    format!(", then remove their messages, submissions among them: `{purge}`")
}

/// Due jobs and submissions, each with the time that the first of them has waited. The count of due jobs stops at
/// `due_most`. `None`: NATS did not count the submissions.
fn amounts(
    (due, due_for): (i64, Option<Duration>),
    due_most: i64,
    (submitted, submitted_for): (Option<i64>, Option<Duration>),
) -> String {
    let due_text = || format!("{} due, the first for {}", jobs_of(due, due_most), span_of(due_for));
    let of_due = || if due == 0 { "no job is due".to_owned() } else { due_text() };
    let Some(submitted) = submitted else {
        return format!("{}; submissions unknown: NATS did not count its messages", of_due());
    };
    if submitted == 0 {
        return of_due();
    }
    let noun = if submitted == 1 { "submission" } else { "submissions" };
    let since = submitted_for.map(|since| format!(", the first for {}", measured(since))).unwrap_or_default();
    let submitted = format!("{submitted} {noun} in the stream{since}");
    if due == 0 { submitted } else { format!("{}, and {submitted}", due_text()) }
}

/// The relay looks every `relay_every`, and gives a publication its time: a job due for longer was missed.
fn overdue_after(timing: &Timing) -> Duration {
    timing.relay_every.saturating_mul(10).saturating_add(timing.publish_within)
}

/// Checks that a worker is alive and takes jobs, and that no silent one owns jobs.
fn workers(seen: &[WorkerSeen], can_write: bool) -> Check {
    let live = seen.iter().filter(|worker| !worker.is_silent).count();
    let draining = seen.iter().filter(|worker| !worker.is_silent && worker.is_draining).count();
    let alive = match draining {
        0 => format!("{live} alive"),
        n => format!("{live} alive, {n} of them draining"),
    };
    let owners: Vec<_> = seen.iter().filter(|worker| worker.is_silent && worker.jobs > 0).collect();
    let named: Vec<_> = owners
        .iter()
        .map(|worker| {
            let jobs = jobs_of(worker.jobs, i64::MAX);
            format!("{} ({jobs}, silent for {})", worker.worker_id, measured(worker.silence))
        })
        .collect();
    let unready = seen.iter().filter(|worker| !worker.is_silent && !worker.is_draining);
    let unready: Vec<_> = unready
        .filter_map(|worker| Some(format!("{} ({})", worker.worker_id, worker.not_ready.as_ref()?)))
        .collect();
    match (live, owners.is_empty()) {
        (0, _) if !can_write && !seen.is_empty() => {
            let found = "no worker has renewed its row of late, and none can while Postgres takes no writes";
            Check::wrong("workers", found).advise("make Postgres writable; live workers then continue")
        }
        (live, _) if !unready.is_empty() => {
            let silent = if named.is_empty() { "" } else { "; silent workers that own jobs: " };
            let unready_text = format!("{} of {live} alive not ready: {}", unready.len(), some_of(&unready));
            let found = format!("{unready_text}{silent}{}", some_of(&named));
            let state =
                if unready.len() + draining == live { CheckState::Wrong } else { CheckState::Warning };
            Check::new("workers", state, found).advise(
                "fix the cause that is named here: a worker that is not ready takes no job. If Postgres denies a \
                 right, run `tenure doctor` as the workers' role, and read `rights`",
            )
        }
        (0, true) => Check::warning("workers", "no worker is alive")
            .advise("start one: `tenure work QUEUE --exec COMMAND`, or your own program"),
        (0, false) => Check::wrong(
            "workers",
            format!("no worker is alive; silent workers that own jobs: {}", some_of(&named)),
        )
        .advise(
            "start a worker, which resets these jobs, or find out what keeps the silent ones from Postgres",
        ),
        (live, true) if draining == live => {
            let found = format!("{alive}: no worker takes jobs");
            Check::warning("workers", found).advise(
                "nothing, if a deploy is on its way; else start a worker: a draining one ends when its jobs have ended",
            )
        }
        (_, true) => Check::ok("workers", alive),
        (_, false) => {
            let found = format!("{alive}; silent workers that own jobs: {}", some_of(&named));
            Check::warning("workers", found).advise(
                "look at these processes: the other workers reset the jobs of one that is gone, or silent for \
                 stale_after; one that is cut off from Postgres stops its jobs first",
            )
        }
    }
}

/// Checks that all workers run this program's release.
fn versions(seen: &[WorkerSeen]) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    // Clients in other languages have versions of their own, and speak a protocol that has one, too.
    for worker in seen.iter().filter(|worker| !worker.is_silent && worker.language.is_none()) {
        *versions.entry(&worker.version).or_default() += 1;
    }
    if versions.is_empty() {
        return Check::skipped("versions", "no worker of tenure itself is alive");
    }
    let text = |(version, workers): (&&str, &usize)| match workers {
        1 => format!("1 runs {version}"),
        n => format!("{n} run {version}"),
    };
    let texts: Vec<_> = versions.iter().map(text).collect();
    let found = some_of(&texts);
    if versions.keys().all(|version| *version == ours) {
        return Check::ok("versions", found);
    }
    Check::warning("versions", format!("{found}; this program is {ours}"))
        .advise("finish the deploy: two releases may run side by side during a deploy, not for good")
}

/// Checks that workers scan for silent jobs, and may reset them.
fn scans(jobs: &JobsSeen, workers: &[WorkerSeen], timing: &Timing) -> Check {
    const CHECK: &str = "scans";
    let late = timing.scan_every.saturating_mul(SCANS_MISSED);
    let to_do = "start a worker; if some run, look at their logs, and check that they have these scan_every and \
                 stale_after: without scans, redelivery at best recovers the jobs of a worker that is gone";
    let Some(last_scan) = jobs.last_scan else {
        // A worker's first scan comes after a first interval.
        let oldest = workers.iter().filter(|worker| !worker.is_silent).map(|worker| worker.started).max();
        return match oldest {
            Some(started) if started > late => {
                let found = format!("no worker has scanned yet, and one has run for {}", measured(started));
                Check::wrong(CHECK, found).advise(to_do)
            }
            Some(_) => Check::ok(CHECK, "no scan yet: the first worker has just started"),
            None => Check::skipped(CHECK, "no worker has run yet"),
        };
    };
    let found = format!("the last scan was {} ago", measured(last_scan));
    if last_scan > late {
        return Check::wrong(CHECK, found).advise(to_do);
    }
    if let Some(left) = jobs.grace_left {
        let found = format!("{found}; recovery is paused for another {}", measured(left));
        return Check::warning(CHECK, found).advise(
            "nothing: Postgres was restarted, or no worker scanned for a while, and live workers get time to write",
        );
    }
    if let Some(since) = jobs.breaker_for.filter(|since| *since < timing.stale_after) {
        let found =
            format!("{found}; more than half of the running jobs have looked stale for {}", measured(since));
        return Check::warning(CHECK, found).advise(
            "find out what keeps workers from writing (the network, locks, a full disk): until stale_after has passed \
             no job is reset, because workers that fall silent together are rarely at fault themselves",
        );
    }
    Check::ok(CHECK, found)
}

/// Checks that every due job gets its message.
fn relay(jobs: &JobsSeen) -> Check {
    if jobs.overdue == 0 {
        return Check::ok("relay", "no due job waits for its message");
    }
    let found = format!(
        "{} due, the first for {}, and no worker has published a message",
        jobs_of(jobs.overdue, OVERDUE_MOST),
        span_of(jobs.overdue_for)
    );
    Check::wrong("relay", found).advise(
        "start a worker: each has a relay. If some run, NATS is away or refuses messages: look at `nats`, `stream` and \
         `storage` here, and at the workers' logs",
    )
}

/// Checks that every tick is followed by its job.
fn schedules(rows: &[ScheduleRow], unserved: &[UnservedSchedule], now: DateTime<Utc>) -> Check {
    const CHECK: &str = "schedules";
    let (paused, going): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.paused_at.is_some());
    let for_long = |since: DateTime<Utc>| measured((now - since).to_std().unwrap_or_default());
    let late = going.iter().filter(|row| now - row.next_at > TICK_LATE);
    let late: Vec<_> =
        late.map(|row| format!("{} was due {} ago", row.name, for_long(row.next_at))).collect();
    if !late.is_empty() {
        let found = format!("{}, and no worker has enqueued its job", some_of(&late));
        return Check::wrong(CHECK, found)
            .advise("start a worker; if some run, their logs say what keeps them from it");
    }
    let lacks = |of: &UnservedSchedule| {
        let kind = if of.is_queue_served { format!("kind {} of ", of.kind) } else { String::new() };
        format!("{} ({kind}queue {})", of.name, of.queue)
    };
    let lacking: Vec<_> = unserved.iter().map(lacks).collect();
    if !lacking.is_empty() {
        let found = format!("no live worker would run the jobs of {}", some_of(&lacking));
        return Check::warning(CHECK, found).advise(
            "start a worker that serves the queue and runs the kind, or correct the names: `tenure schedules add \
             --replace`; until then the ticks' jobs wait",
        );
    }
    if paused.is_empty() {
        return Check::ok(
            CHECK,
            match going.len() {
                0 => "there are no schedules".to_owned(),
                1 => "1 schedule is on time".to_owned(),
                n => format!("{n} schedules are on time"),
            },
        );
    }
    let since = |row: &&ScheduleRow| row.paused_at.map(|at| format!("{} for {}", row.name, for_long(at)));
    let paused: Vec<_> = paused.iter().filter_map(since).collect();
    Check::warning(CHECK, format!("paused: {}", some_of(&paused)))
        .advise("`tenure schedules resume NAME`, when it is time")
}

/// Looks for attempts of these queues, or of all, that take far longer than their kind has taken.
pub(crate) async fn slow(store: &Store, named: Option<&[String]>) -> Vec<Check> {
    match store.doctor_slow(named, SLOW_AFTER, SLOW_TIMES, SLOW_SHOWN).await {
        Ok(slow) if slow.is_empty() => vec![Check::ok(SLOW, "no attempt runs for far longer than is usual")],
        Ok(slow) => slow.iter().map(about_slow).collect(),
        Err(error) => skip_by(&[SLOW], &error),
    }
}

fn about_slow(Slow { queue, kind, jobs, first, runs, usual }: &Slow) -> Check {
    let run = match jobs {
        1 => "1 attempt has run for".to_owned(),
        jobs => format!("{jobs} attempts have run for long, the first for"),
    };
    let found = format!(
        "{run} {}: of those of {kind} that completed, nineteen of twenty took {} at most",
        measured(*runs),
        measured(*usual),
    );
    Check::warning(SLOW, found).of(queue).advise(format!(
        "`tenure jobs show {first}` says what it has reported; if what it waits for does not come, cancel it, and give \
         the kind a timeout"
    ))
}

/// `groups`: the largest of the last hour.
fn dead_letters(jobs: &JobsSeen, groups: Result<Vec<DeadGroup>, StoreError>) -> Check {
    if jobs.died == 0 {
        return Check::ok("dead_letters", "none within the last hour");
    }
    let of = |DeadGroup { of, line, .. }: &DeadGroup| {
        let said = if line.is_empty() { String::new() } else { format!(": {line}") };
        format!("{} {} of {} ({}){said}", of.jobs, of.kind, of.queue, of.category)
    };
    let of = match groups {
        Ok(groups) => {
            let latest =
                if jobs.died > GROUPED { format!("of the latest {GROUPED} ") } else { String::new() };
            latest + &groups.iter().map(of).collect::<Vec<_>>().join("; ")
        }
        Err(error) => format!("they could not be grouped: {}", text(&error)),
    };
    Check::warning(
        "dead_letters",
        format!("{} died within the last hour; {of}", jobs_of(jobs.died, i64::MAX)),
    )
    .advise(
        "mend what fails; `tenure dead groups` names each group, and `tenure dead redrive --group G --canary 20` \
         queues its jobs again",
    )
}

/// Checks that a queue's jobs can run. `purge` is the command that removes its messages.
fn queue(seen: &QueueSeen, purge: Option<&str>) -> Check {
    const CHECK: &str = "queue";
    let no_worker = match seen.draining {
        0 => "no worker serves this queue; ".to_owned(),
        1 => "its only worker drains, and takes no job; ".to_owned(),
        n => format!("its {n} workers drain, and take no job; "),
    };
    let name = &seen.queue;
    let is_waited_for = seen.waiting > 0 || seen.submitted > Some(0);
    let lacks_worker = !seen.is_served && is_waited_for;
    let waiting =
        amounts((seen.waiting, seen.waiting_for), WAITING_MOST, (seen.submitted, seen.submitted_for));
    let start = format!(
        "start a worker that serves {name}: `tenure work {name} --exec COMMAND`, or your own program"
    );
    if let Some(paused_for) = seen.paused_for {
        let no_worker = if lacks_worker { &*no_worker } else { "" };
        let found = format!("paused for {}; {no_worker}{waiting}", measured(paused_for));
        let resume = format!("`tenure queues resume {name}`, when it is time");
        let to_do = if lacks_worker { format!("{start}; {resume}") } else { resume };
        return Check::warning(CHECK, found).advise(to_do);
    }
    let is_limited =
        seen.waiting > 0 && seen.running.zip(seen.max_running).is_some_and(|(is, most)| is >= most.into());
    let waiting = match (seen.running, seen.max_running) {
        (Some(running), Some(most)) if is_limited => {
            format!("limited: {running} of {most} running; {waiting}")
        }
        (Some(running), Some(most)) => format!("{running} of {most} running; {waiting}"),
        _ => waiting,
    };
    // The limit counts the submissions that were read in the stream, too.
    let full = match (seen.queued, seen.max_queued) {
        (Some(queued), Some(most)) if queued + seen.standing >= most => {
            format!("full: {} queued, and enqueues are refused; ", jobs_of(most, i64::MAX))
        }
        _ => String::new(),
    };
    if lacks_worker {
        let cancel = format!("cancel its jobs: `tenure jobs cancel --queue {name}`");
        let purge = purge.map(then_purge).unwrap_or_default();
        return Check::wrong(CHECK, format!("{full}{no_worker}{waiting}"))
            .advise(format!("{start}; or {cancel}{purge}"));
    }
    if !full.is_empty() {
        return Check::warning(CHECK, format!("{full}{waiting}"))
            .advise(format!("add workers, or `tenure queues limit {name} --max-queued N`"));
    }
    if is_limited && seen.waiting_for.is_some_and(|waited| waited >= LIMITED_LATE) {
        return Check::warning(CHECK, waiting).advise(format!(
            "nothing, if the limit is meant to hold jobs back; else `tenure queues limit {name} --max-running N`"
        ));
    }
    let no_worker = if seen.is_served { "" } else { &*no_worker };
    let found = format!("{no_worker}{waiting}");
    if seen.submitted.is_none() { Check::skipped(CHECK, found) } else { Check::ok(CHECK, found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DeadCount;

    const SECOND: Duration = Duration::from_secs(1);

    fn worker(silence_s: u64, jobs: i64) -> WorkerSeen {
        WorkerSeen {
            worker_id: "web-1-7-abc".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            language: None,
            is_silent: silence_s > 15,
            not_ready: None,
            is_draining: false,
            silence: Duration::from_secs(silence_s),
            started: 1_000 * SECOND,
            jobs,
        }
    }

    #[test]
    fn silent_workers_matter_while_they_own_jobs_and_more_when_no_worker_is_alive() {
        let state = |seen: &[WorkerSeen]| workers(seen, true).state;
        assert_eq!(state(&[]), CheckState::Warning);
        assert_eq!(state(&[worker(1, 0)]), CheckState::Ok);
        assert_eq!(state(&[worker(1, 0), worker(99, 0)]), CheckState::Ok);
        assert_eq!(state(&[worker(1, 0), worker(99, 2)]), CheckState::Warning);
        assert_eq!(state(&[worker(99, 2)]), CheckState::Wrong);
        let found = workers(&[worker(1, 0), worker(99, 2)], true).found;
        assert!(found.ends_with("web-1-7-abc (2 jobs, silent for 1m 39s)"), "{found}");
        // Silence proves nothing while no worker can write.
        let blocked = workers(&[worker(99, 0)], false);
        assert!(
            blocked.state == CheckState::Wrong && blocked.found.contains("takes no writes"),
            "{blocked:?}"
        );
        let unready = || WorkerSeen { not_ready: Some("claims: denied".into()), ..worker(1, 0) };
        assert_eq!(state(&[unready(), worker(1, 0)]), CheckState::Warning);
        let all = workers(&[unready(), worker(99, 2)], true);
        assert_eq!(all.state, CheckState::Wrong);
        let silent = "web-1-7-abc (2 jobs, silent for 1m 39s)";
        let found = format!(
            "1 of 1 alive not ready: web-1-7-abc (claims: denied); silent workers that own jobs: {silent}"
        );
        assert_eq!(all.found, found);
    }

    #[test]
    fn workers_of_another_release_are_reported_while_they_run() {
        let other = |silence_s| WorkerSeen { version: "0.0.1".into(), ..worker(silence_s, 0) };
        assert_eq!(versions(&[]).state, CheckState::Skipped);
        assert_eq!(versions(&[worker(1, 0), other(99)]).state, CheckState::Ok);
        let mixed = versions(&[worker(1, 0), other(1), other(1)]);
        assert_eq!(mixed.state, CheckState::Warning);
        assert!(mixed.found.contains("2 run 0.0.1"), "{}", mixed.found);
        let foreign = WorkerSeen { language: Some("python".into()), ..other(1) };
        assert_eq!(versions(std::slice::from_ref(&foreign)).state, CheckState::Skipped);
        assert_eq!(versions(&[worker(1, 0), foreign]).state, CheckState::Ok);
    }

    fn quiet() -> JobsSeen {
        JobsSeen {
            overdue: 0,
            overdue_for: None,
            oldest: None,
            last_scan: Some(30 * SECOND),
            grace_left: None,
            breaker_for: None,
            died: 0,
        }
    }

    #[test]
    fn a_scan_that_is_late_a_grace_and_a_breaker_are_told_apart() {
        let state = |jobs: &JobsSeen, workers: &[WorkerSeen]| scans(jobs, workers, &Timing::DEFAULT).state;
        assert_eq!(state(&quiet(), &[]), CheckState::Ok);
        assert_eq!(state(&JobsSeen { last_scan: Some(151 * SECOND), ..quiet() }, &[]), CheckState::Wrong);
        let never = JobsSeen { last_scan: None, ..quiet() };
        assert_eq!(state(&never, &[]), CheckState::Skipped);
        assert_eq!(state(&never, &[worker(1, 0)]), CheckState::Wrong);
        assert_eq!(state(&never, &[WorkerSeen { started: SECOND, ..worker(1, 0) }]), CheckState::Ok);
        assert_eq!(state(&JobsSeen { grace_left: Some(SECOND), ..quiet() }, &[]), CheckState::Warning);
        assert_eq!(state(&JobsSeen { breaker_for: Some(299 * SECOND), ..quiet() }, &[]), CheckState::Warning);
        assert_eq!(state(&JobsSeen { breaker_for: Some(301 * SECOND), ..quiet() }, &[]), CheckState::Ok);
    }

    #[test]
    fn overdue_jobs_and_dead_letters_are_counted() {
        assert_eq!(relay(&quiet()).state, CheckState::Ok);
        let overdue = relay(&JobsSeen { overdue: 10_000, overdue_for: Some(90 * SECOND), ..quiet() });
        assert_eq!(overdue.state, CheckState::Wrong);
        assert!(
            overdue.found.starts_with("10000 jobs or more due, the first for 1m 30s"),
            "{}",
            overdue.found
        );
        assert_eq!(dead_letters(&quiet(), Ok(Vec::new())).state, CheckState::Ok);
        let at = DateTime::UNIX_EPOCH;
        let (queue, kind, category) = ("mail".into(), "send".into(), "permanent".into());
        let of = DeadCount { queue, kind, category, jobs: 2, oldest: at, newest: at };
        let group = DeadGroup { of, line: "550 no such user".into(), fingerprint: "f".into() };
        let died = dead_letters(&JobsSeen { died: 2, ..quiet() }, Ok(vec![group]));
        let found = "2 jobs died within the last hour; 2 send of mail (permanent): 550 no such user";
        assert_eq!((died.state, died.found.as_str()), (CheckState::Warning, found));
        assert_eq!(overdue_after(&Timing::DEFAULT), 11 * SECOND);
    }

    fn checked(seen: &QueueSeen) -> Check {
        queue(seen, Some("nats stream purge JOBS --subject 'jobs.mail.>'"))
    }

    #[test]
    fn a_queue_needs_a_worker_when_a_job_waits() {
        let seen = |is_served, waiting| QueueSeen {
            queue: "mail".into(),
            is_served,
            draining: 0,
            paused_for: None,
            waiting,
            waiting_for: Some(SECOND),
            max_running: None,
            running: None,
            max_queued: None,
            queued: None,
            submitted: Some(0),
            submitted_for: None,
            standing: 0,
        };
        assert_eq!(checked(&seen(true, 5)).state, CheckState::Ok);
        assert_eq!(checked(&seen(false, 0)).state, CheckState::Ok);
        let alone = checked(&seen(false, 5));
        assert_eq!(
            (alone.state, alone.found.as_str()),
            (CheckState::Wrong, "no worker serves this queue; 5 jobs due, the first for 1s")
        );
        let paused = checked(&QueueSeen { paused_for: Some(7_200 * SECOND), ..seen(true, 1_000) });
        assert_eq!(paused.state, CheckState::Warning);
        assert_eq!(paused.found, "paused for 2h; 1000 jobs or more due, the first for 1s");
        assert!(paused.to_do.is_some_and(|to_do| to_do.contains("tenure queues resume mail")));
        let limited = QueueSeen { max_running: Some(20), running: Some(20), ..seen(true, 5) };
        let of_limited = checked(&limited);
        assert_eq!(
            (of_limited.state, &*of_limited.found),
            (CheckState::Ok, "limited: 20 of 20 running; 5 jobs due, the first for 1s")
        );
        let for_long = checked(&QueueSeen { waiting_for: Some(61 * SECOND), ..limited.clone() });
        assert_eq!(for_long.state, CheckState::Warning);
        assert!(
            for_long.to_do.is_some_and(|to_do| to_do.contains("`tenure queues limit mail --max-running N`"))
        );
        let draining = checked(&QueueSeen { draining: 1, ..seen(false, 5) });
        assert_eq!(
            (draining.state, draining.found.as_str()),
            (CheckState::Wrong, "its only worker drains, and takes no job; 5 jobs due, the first for 1s")
        );
        let full = checked(&QueueSeen { max_queued: Some(9), queued: Some(9), ..limited });
        assert_eq!(full.state, CheckState::Warning);
        assert!(full.found.starts_with("full: 9 jobs queued"), "{}", full.found);
        let room = QueueSeen { max_queued: Some(9), queued: Some(8), ..seen(true, 5) };
        assert_eq!(checked(&room).state, CheckState::Ok);
        // Submissions count, and a worker that is missing is never hidden by a limit.
        let submitted =
            QueueSeen { submitted: Some(1), standing: 1, submitted_for: Some(90 * SECOND), ..room };
        let found = checked(&submitted).found;
        let words = "5 jobs due, the first for 1s, and 1 submission in the stream, the first for 1m 30s";
        assert_eq!(found, format!("full: 9 jobs queued, and enqueues are refused; {words}"));
        let alone = checked(&QueueSeen { is_served: false, ..submitted });
        assert_eq!(alone.state, CheckState::Wrong);
        assert!(alone.found.contains("refused; no worker serves this queue; 5 jobs due"), "{}", alone.found);
        let to_do = alone.to_do.unwrap_or_default();
        assert!(to_do.contains("`tenure work mail --exec COMMAND`"), "{to_do}");
        assert!(to_do.contains("`nats stream purge JOBS --subject 'jobs.mail.>'`"), "{to_do}");
        let unseen = checked(&QueueSeen { submitted: Some(7), ..seen(false, 0) });
        assert_eq!(unseen.state, CheckState::Wrong);
        assert_eq!(unseen.found, "no worker serves this queue; 7 submissions in the stream");
        let uncounted = checked(&QueueSeen { submitted: None, ..seen(true, 0) });
        assert_eq!(uncounted.state, CheckState::Skipped, "it may be full of them");
        assert_eq!(uncounted.found, "no job is due; submissions unknown: NATS did not count its messages");
        // What was not read in the stream refuses no enqueue.
        let unread = QueueSeen { max_queued: Some(9), queued: Some(8), submitted: Some(7), ..seen(true, 5) };
        assert_eq!(checked(&unread).state, CheckState::Ok);
    }

    #[test]
    fn a_kind_without_a_worker_is_wrong_after_a_minute() {
        let waits = |is_served, waited_s: f64| Waiting {
            queue: "mail".into(),
            kind: "other.kind".into(),
            due: 5,
            submitted: Some(0),
            has_several: false,
            messages: 0,
            oldest_due_s: Some(waited_s),
            put_off: 0,
            put_off_s: None,
            is_queue_served: true,
            is_served,
        };
        let check = |of: Waiting| about_kinds(&[(of, None)], true, |_, _| Some("PURGE".into())).remove(0);
        assert_eq!(check(waits(true, 99.0)).state, CheckState::Ok);
        assert_eq!(check(waits(false, 59.0)).state, CheckState::Warning);
        let found = check(waits(false, 60.0));
        assert_eq!(found.state, CheckState::Wrong);
        assert_eq!(found.found, "no live worker runs the kind other.kind; 5 jobs due, the first for 1m");
        assert!(
            found.to_do.is_some_and(|to_do| to_do.contains("`tenure work mail --kind other.kind --exec")
                && to_do.ends_with("their messages, submissions among them: `PURGE`"))
        );
        let of_another_queue = Waiting { is_queue_served: false, ..waits(false, 99.0) };
        assert_eq!(check(of_another_queue).state, CheckState::Ok);
        let many: Vec<_> = (0..25).map(|_| (waits(false, 99.0), None)).collect();
        assert_eq!(about_kinds(&many, true, |_, _| None).len(), KINDS_SHOWN + 1);
    }

    #[test]
    fn a_tick_without_a_job_is_wrong_and_a_pause_is_a_warning() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(9);
        let row = |next_s: i64, paused_s: Option<i64>| ScheduleRow {
            name: "nightly".into(),
            cron: "0 3 * * *".into(),
            time_zone: "UTC".into(),
            queue: "q".into(),
            kind: "k".into(),
            payload: None,
            payload_json: None,
            tick_field: None,
            max_attempts: 5,
            missed: crate::schedules::MissedTicks::Once,
            overlap: crate::schedules::Overlap::Allow,
            options: None,
            paused_at: paused_s.map(|ago| now - TimeDelta::seconds(ago)),
            next_at: now + TimeDelta::seconds(next_s),
            last_tick_at: None,
            last_job_id: None,
            created_at: now,
            changed_at: now,
        };
        assert_eq!(schedules(&[], &[], now).state, CheckState::Ok);
        assert_eq!(schedules(&[row(60, None), row(-59, None)], &[], now).state, CheckState::Ok);
        let late = schedules(&[row(60, None), row(-300, None)], &[], now);
        assert_eq!(late.state, CheckState::Wrong);
        assert!(late.found.contains("nightly was due 5m ago"), "{}", late.found);
        let paused = schedules(&[row(-300, Some(7_200))], &[], now);
        assert_eq!((paused.state, &*paused.found), (CheckState::Warning, "paused: nightly for 2h"));
    }
}
