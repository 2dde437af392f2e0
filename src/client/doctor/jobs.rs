//! Jobs: what surrounds them: workers, scans, the relay, schedules, dead letters and queues.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};

use super::{Asked, Check, jobs_of, skip, skip_by, some_of, span_of};
use crate::{
    config::Timing,
    job::span::span,
    store::{JobsSeen, QueueSeen, ScheduleRow, Store, WorkerSeen},
};

const OF_WORKERS: [&str; 2] = ["workers", "versions"];
const OF_JOBS: [&str; 3] = ["scans", "relay", "dead_letters"];

/// A tick whose job is this late was missed by every worker.
const TICK_LATE: TimeDelta = TimeDelta::minutes(1);

/// The most jobs that the statements count.
const OVERDUE_MOST: i64 = 10_000;
const WAITING_MOST: i64 = 1_000;

/// After this many intervals without a scan, no worker scans. After a gap of three the next scan begins with a grace.
const SCANS_MISSED: u32 = 5;

/// Returns every check of this module as skipped, and why.
pub(super) fn skipped(why: &str) -> Vec<Check> {
    let mut checks = skip(&OF_WORKERS, why);
    checks.extend(skip(&OF_JOBS, why));
    checks.extend(skip(&["schedules", "queue"], why));
    checks
}

/// The queues to ask NATS about when Postgres names none.
pub(super) fn unknown(named: Option<&[String]>) -> Vec<Asked> {
    let named = named.unwrap_or_default().iter();
    named.map(|queue| Asked { queue: queue.clone(), is_served: false }).collect()
}

/// Checks what surrounds the jobs. Also returns the queues to ask NATS about.
pub(super) async fn look(
    store: &Store,
    timing: &Timing,
    named: Option<&[String]>,
) -> (Vec<Check>, Vec<Asked>) {
    let seen = store.doctor_workers().await;
    let mut checks = match &seen {
        Ok(seen) => vec![workers(seen), versions(seen)],
        Err(error) => skip_by(&OF_WORKERS, error),
    };
    match store.doctor_jobs(overdue_after(timing)).await {
        Ok(jobs) => {
            let workers = seen.as_deref().unwrap_or_default();
            checks.extend([scans(&jobs, workers, timing), relay(&jobs), dead_letters(&jobs)]);
        }
        Err(error) => checks.extend(skip_by(&OF_JOBS, &error)),
    }
    match store.schedules_now().await {
        Ok((rows, now)) => checks.push(schedules(&rows, now)),
        Err(error) => checks.extend(skip_by(&["schedules"], &error)),
    }
    match store.doctor_queues(named).await {
        Ok(queues) => {
            if queues.is_empty() && named.is_none() {
                checks.push(Check::ok("queue", "no worker serves a queue, and no job waits"));
            }
            checks.extend(queues.iter().map(|seen| queue(seen).of(&seen.queue)));
            let asked = queues.into_iter().map(|seen| Asked { queue: seen.queue, is_served: seen.is_served });
            (checks, asked.collect())
        }
        Err(error) => {
            checks.extend(skip_by(&["queue"], &error));
            (checks, unknown(named))
        }
    }
}

/// The relay looks every `relay_every`, and gives a publication its time: a job due for longer was missed.
fn overdue_after(timing: &Timing) -> Duration {
    timing.relay_every.saturating_mul(10).saturating_add(timing.publish_within)
}

/// Checks that a worker is alive, and that no silent one owns jobs.
fn workers(seen: &[WorkerSeen]) -> Check {
    let live = seen.iter().filter(|worker| !worker.is_silent).count();
    let owners: Vec<_> = seen.iter().filter(|worker| worker.is_silent && worker.jobs > 0).collect();
    let named: Vec<_> = owners
        .iter()
        .map(|worker| {
            let jobs = jobs_of(worker.jobs, i64::MAX);
            format!("{} ({jobs}, silent for {})", worker.worker_id, span(worker.silence))
        })
        .collect();
    match (live, owners.is_empty()) {
        (0, true) => Check::warning("workers", "no worker is alive")
            .advise("start one: `tenure work QUEUE --exec COMMAND`, or your own program"),
        (0, false) => Check::wrong(
            "workers",
            format!("no worker is alive; silent ones own jobs: {}", some_of(&named)),
        )
        .advise(
            "start a worker, which resets these jobs, or find out what keeps the silent ones from Postgres",
        ),
        (live, true) => Check::ok("workers", format!("{live} alive")),
        (live, false) => {
            let found = format!("{live} alive; silent ones own jobs: {}", some_of(&named));
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
    for worker in seen.iter().filter(|worker| !worker.is_silent) {
        *versions.entry(&worker.version).or_default() += 1;
    }
    if versions.is_empty() {
        return Check::skipped("versions", "no worker is alive");
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
                let found = format!("no worker has scanned yet, and one has run for {}", span(started));
                Check::wrong(CHECK, found).advise(to_do)
            }
            Some(_) => Check::ok(CHECK, "no scan yet: the first worker has just started"),
            None => Check::skipped(CHECK, "no worker has run yet"),
        };
    };
    let found = format!("the last scan was {} ago", span(last_scan));
    if last_scan > late {
        return Check::wrong(CHECK, found).advise(to_do);
    }
    if let Some(left) = jobs.grace_left {
        let found = format!("{found}; recovery is paused for another {}", span(left));
        return Check::warning(CHECK, found).advise(
            "nothing: Postgres was restarted, or no worker scanned for a while, and live workers get time to write",
        );
    }
    if let Some(since) = jobs.breaker_for.filter(|since| *since < timing.stale_after) {
        let found =
            format!("{found}; more than half of the running jobs have looked stale for {}", span(since));
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
        "start a worker: each has a relay. If some run, none of them reaches NATS: look at `nats` and `stream` here, \
         and at the workers' logs",
    )
}

/// Checks that every tick is followed by its job.
fn schedules(rows: &[ScheduleRow], now: DateTime<Utc>) -> Check {
    const CHECK: &str = "schedules";
    let (paused, going): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.paused_at.is_some());
    let for_long = |since: DateTime<Utc>| span((now - since).to_std().unwrap_or_default());
    let late = going.iter().filter(|row| now - row.next_at > TICK_LATE);
    let late: Vec<_> =
        late.map(|row| format!("{} was due {} ago", row.name, for_long(row.next_at))).collect();
    if !late.is_empty() {
        let found = format!("{}, and no worker has enqueued its job", some_of(&late));
        return Check::wrong(CHECK, found)
            .advise("start a worker; if some run, their logs say what keeps them from it");
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

fn dead_letters(jobs: &JobsSeen) -> Check {
    if jobs.died == 0 {
        return Check::ok("dead_letters", "none within the last hour");
    }
    let of = jobs.died_of.as_deref().unwrap_or("?");
    Check::warning(
        "dead_letters",
        format!("{} died within the last hour: {of}", jobs_of(jobs.died, i64::MAX)),
    )
    .advise("`tenure dead list` shows their errors; `tenure dead redrive` queues them again")
}

/// Checks that a queue's jobs can run.
fn queue(seen: &QueueSeen) -> Check {
    const CHECK: &str = "queue";
    let name = &seen.queue;
    let waiting = match seen.waiting {
        0 => "no job is due".into(),
        n => format!("{} due, the first for {}", jobs_of(n, WAITING_MOST), span_of(seen.waiting_for)),
    };
    if let Some(paused_for) = seen.paused_for {
        return Check::warning(CHECK, format!("paused for {}; {waiting}", span(paused_for)))
            .advise(format!("`tenure queues resume {name}`, when it is time"));
    }
    let waiting = match (seen.running, seen.max_running) {
        (Some(running), Some(most)) => format!("{running} of {most} running; {waiting}"),
        _ => waiting,
    };
    if let (Some(queued), Some(most)) = (seen.queued, seen.max_queued)
        && queued >= most
    {
        let found = format!("full: {} queued, and enqueues are refused; {waiting}", jobs_of(most, i64::MAX));
        return Check::warning(CHECK, found)
            .advise(format!("add workers, or `tenure queues limit {name} --max-queued N`"));
    }
    if seen.is_served {
        return Check::ok(CHECK, waiting);
    }
    let found = format!("no worker serves this queue; {waiting}");
    if seen.waiting == 0 {
        return Check::ok(CHECK, found);
    }
    Check::wrong(CHECK, found).advise(format!(
        "start a worker that serves {name}, or cancel its jobs: `tenure jobs cancel --queue {name}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::doctor::CheckState;

    const SECOND: Duration = Duration::from_secs(1);

    fn worker(silence_s: u64, jobs: i64) -> WorkerSeen {
        WorkerSeen {
            worker_id: "web-1-7-abc".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            is_silent: silence_s > 15,
            silence: Duration::from_secs(silence_s),
            started: 1_000 * SECOND,
            jobs,
        }
    }

    #[test]
    fn silent_workers_matter_while_they_own_jobs_and_more_when_no_worker_is_alive() {
        let state = |seen: &[WorkerSeen]| workers(seen).state;
        assert_eq!(state(&[]), CheckState::Warning);
        assert_eq!(state(&[worker(1, 0)]), CheckState::Ok);
        assert_eq!(state(&[worker(1, 0), worker(99, 0)]), CheckState::Ok);
        assert_eq!(state(&[worker(1, 0), worker(99, 2)]), CheckState::Warning);
        assert_eq!(state(&[worker(99, 2)]), CheckState::Wrong);
        let found = workers(&[worker(1, 0), worker(99, 2)]).found;
        assert!(found.ends_with("web-1-7-abc (2 jobs, silent for 1m 39s)"), "{found}");
    }

    #[test]
    fn workers_of_another_release_are_reported_while_they_run() {
        let other = |silence_s| WorkerSeen { version: "0.0.1".into(), ..worker(silence_s, 0) };
        assert_eq!(versions(&[]).state, CheckState::Skipped);
        assert_eq!(versions(&[worker(1, 0), other(99)]).state, CheckState::Ok);
        let mixed = versions(&[worker(1, 0), other(1), other(1)]);
        assert_eq!(mixed.state, CheckState::Warning);
        assert!(mixed.found.contains("2 run 0.0.1"), "{}", mixed.found);
    }

    fn quiet() -> JobsSeen {
        JobsSeen {
            overdue: 0,
            overdue_for: None,
            last_scan: Some(30 * SECOND),
            grace_left: None,
            breaker_for: None,
            died: 0,
            died_of: None,
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
        assert_eq!(dead_letters(&quiet()).state, CheckState::Ok);
        let died = dead_letters(&JobsSeen { died: 2, died_of: Some("2 lost".into()), ..quiet() });
        assert_eq!(
            (died.state, died.found.as_str()),
            (CheckState::Warning, "2 jobs died within the last hour: 2 lost")
        );
        assert_eq!(overdue_after(&Timing::DEFAULT), 11 * SECOND);
    }

    #[test]
    fn a_queue_needs_a_worker_when_a_job_waits() {
        let seen = |is_served, waiting| QueueSeen {
            queue: "mail".into(),
            is_served,
            paused_for: None,
            waiting,
            waiting_for: Some(SECOND),
            max_running: None,
            running: None,
            max_queued: None,
            queued: None,
        };
        assert_eq!(queue(&seen(true, 5)).state, CheckState::Ok);
        assert_eq!(queue(&seen(false, 0)).state, CheckState::Ok);
        let alone = queue(&seen(false, 5));
        assert_eq!(
            (alone.state, alone.found.as_str()),
            (CheckState::Wrong, "no worker serves this queue; 5 jobs due, the first for 1s")
        );
        let paused = queue(&QueueSeen { paused_for: Some(7_200 * SECOND), ..seen(true, 1_000) });
        assert_eq!(paused.state, CheckState::Warning);
        assert_eq!(paused.found, "paused for 2h; 1000 jobs or more due, the first for 1s");
        assert!(paused.to_do.is_some_and(|to_do| to_do.contains("tenure queues resume mail")));
        let limited = QueueSeen { max_running: Some(20), running: Some(20), ..seen(true, 5) };
        let checked = queue(&limited);
        assert_eq!(
            (checked.state, &*checked.found),
            (CheckState::Ok, "20 of 20 running; 5 jobs due, the first for 1s")
        );
        let full = queue(&QueueSeen { max_queued: Some(9), queued: Some(9), ..limited });
        assert_eq!(full.state, CheckState::Warning);
        assert!(full.found.starts_with("full: 9 jobs queued"), "{}", full.found);
        let room = QueueSeen { max_queued: Some(9), queued: Some(8), ..seen(true, 5) };
        assert_eq!(queue(&room).state, CheckState::Ok);
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
            missed: crate::MissedTicks::Once,
            paused_at: paused_s.map(|ago| now - TimeDelta::seconds(ago)),
            next_at: now + TimeDelta::seconds(next_s),
            last_tick_at: None,
            last_job_id: None,
            created_at: now,
            changed_at: now,
        };
        assert_eq!(schedules(&[], now).state, CheckState::Ok);
        assert_eq!(schedules(&[row(60, None), row(-59, None)], now).state, CheckState::Ok);
        let late = schedules(&[row(60, None), row(-300, None)], now);
        assert_eq!(late.state, CheckState::Wrong);
        assert!(late.found.contains("nightly was due 5m ago"), "{}", late.found);
        let paused = schedules(&[row(-300, Some(7_200))], now);
        assert_eq!((paused.state, &*paused.found), (CheckState::Warning, "paused: nightly for 2h"));
    }
}
