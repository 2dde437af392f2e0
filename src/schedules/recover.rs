//! Ticks: enqueue the job of each tick. The worker that has the relay's turn looks. One statement moves the next ticks
//! of a page of schedules forward and enqueues their jobs (`schedules/sql/tick.sql`), so two workers may look at once.
//!
//! The only clock is that of Postgres. If it jumps ahead, the schedule misses ticks, and its policy decides about them.
//! If it steps back, a schedule that ticks at least once an hour goes on by the new time, and a rarer one repeats its
//! ticks after a step of three hours or more alone: the rule of cron(8) in Debian.
//!
//! Invariants, each held by the test of that name:
//!
//! - `of_many_workers_one_enqueues_the_job_of_a_tick`
//! - `missed_ticks_are_skipped_made_up_once_or_all_made_up`
//! - `the_next_tick_is_always_later_than_the_last_even_if_the_clock_jumps`
//! - `a_step_back_of_the_clock_repeats_no_rare_tick_and_stops_no_frequent_one`
//! - `schedules_that_fail_or_are_locked_keep_no_other_from_its_ticks`

use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use super::{
    job::CronSchedule,
    store::{DueSchedule, TickMove},
};
use crate::{
    job::{JobError, JobId, MissedTicks, Overlap},
    observe::{metrics, repeats},
    store::{Store, StoreError, batch::halve},
};

/// A tick that no worker enqueued for longer than this was missed: no worker ran, or Postgres was away.
const LATE: Duration = Duration::from_mins(1);
/// The most jobs of one schedule that one look enqueues; the next look goes on.
const TICKS_MAX: usize = 100;
/// The most schedules of one statement.
const PAGE: usize = 100;

impl CronSchedule {
    /// Returns the last tick at or before this time.
    fn until(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let last = self.cron.find_previous_occurrence(&at.with_timezone(&self.zone), true).ok()?;
        Some(last.with_timezone(&Utc).trunc_subsecs(0)).filter(|last| *last <= at)
    }

    /// Plans the jobs and the next tick of a schedule whose next tick was due at `due`.
    fn plan(&self, due: DateTime<Utc>, now: DateTime<Utc>, missed: MissedTicks) -> Plan {
        let is_late = |tick: DateTime<Utc>| now - tick > TimeDelta::from_std(LATE).unwrap_or(TimeDelta::MAX);
        let last = self.until(now).unwrap_or(due).max(due);
        let ticks = match missed {
            MissedTicks::Skip if is_late(last) => vec![],
            MissedTicks::Skip | MissedTicks::Once => vec![last],
            MissedTicks::All => {
                let following = |tick: &DateTime<Utc>| self.after(*tick).filter(|tick| *tick <= now);
                std::iter::successors(Some(due), following).take(TICKS_MAX).collect()
            }
        };
        let from = match (missed, ticks.last()) {
            (MissedTicks::All, Some(done)) => *done,
            _ => now.max(last),
        };
        Plan { ticks, next: self.after(from) }
    }

    /// Returns the tick to go on with, for a schedule: the clock has stepped back. `None`:
    /// it waits until `next`.
    fn after_a_step_back(&self, next: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let sooner = self.after(now).filter(|sooner| *sooner < next)?;
        let is_frequent = self.after(sooner).is_some_and(|then| then - sooner <= TimeDelta::hours(1));
        (is_frequent || next - sooner >= TimeDelta::hours(3)).then_some(sooner)
    }
}

impl CronSchedule {
    /// Of a plan, what the schedule's policy for overlaps leaves: at most one job, unless it allows them.
    fn without_overlap(&self, plan: Plan, of: &DueSchedule) -> Plan {
        let latest = |plan: Plan| Plan { ticks: plan.ticks.last().copied().into_iter().collect(), ..plan };
        match of.overlap {
            Overlap::Allow => plan,
            Overlap::Skip if of.live.is_some() => Plan { ticks: Vec::new(), ..plan },
            // The following ticks wait for the end of this one's job.
            Overlap::Queue if of.missed == MissedTicks::All => {
                let first = plan.ticks.first().copied();
                Plan { next: first.and_then(|first| self.after(first)), ticks: first.into_iter().collect() }
            }
            Overlap::Skip | Overlap::Queue | Overlap::Cancel => latest(plan),
        }
    }
}

/// The jobs to enqueue for a schedule that is due, and its next tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The ticks that get a job.
    pub(crate) ticks: Vec<DateTime<Utc>>,
    /// `None`: no tick follows, and the schedule pauses.
    pub(crate) next: Option<DateTime<Utc>>,
}

/// Enqueues the jobs of ticks that are due, and returns their number. The relay publishes them.
pub(crate) async fn tick(store: &Store) -> Result<usize, StoreError> {
    let (mut jobs, mut last) = (0, None);
    loop {
        let page = store.due_schedules(last.as_ref(), false).await?;
        jobs += tick_page(store, &page).await?;
        let is_last = page.len() < PAGE;
        last = page.into_iter().next_back();
        if is_last || last.is_none() {
            return Ok(jobs);
        }
    }
}

/// Lets schedules go on by the database's clock, which has stepped back. The error of one keeps no other from it, and
/// is returned at the end.
pub(crate) async fn follow_clock(store: &Store) -> Result<(), StoreError> {
    let (mut last, mut first_error) = (None, None);
    loop {
        let page = store.due_schedules(last.as_ref(), true).await?;
        for DueSchedule { name, cron, time_zone, next_at, now, .. } in &page {
            let next =
                CronSchedule::new(cron, time_zone).ok().and_then(|of| of.after_a_step_back(*next_at, *now));
            let Some(next) = next else { continue };
            let moves = [TickMove { name, due: *next_at, next: Some(next), jobs: Vec::new() }];
            match store.tick(&moves).await {
                Ok(_) => tracing::warn!(
                    schedule = name,
                    was = %next_at,
                    %next,
                    "the clock of Postgres has stepped back; a schedule goes on by the new time"
                ),
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let is_last = page.len() < PAGE;
        last = page.into_iter().next_back();
        if is_last || last.is_none() {
            return first_error.map_or(Ok(()), Err);
        }
    }
}

/// Says why a schedule has no tick. Its error, or a lock on its row or its job's, keeps no other from its ticks.
fn failed(schedule: &str, error: StoreError) {
    let error = JobError::from(error).text();
    if let Some(left_out) = repeats::tell(&format!("tick of {schedule}"), &error) {
        tracing::error!(
            schedule,
            error,
            left_out,
            "could not enqueue the job of a schedule's tick; the worker will retry"
        );
    }
}

/// Enqueues the jobs of these schedules. One that Postgres refuses, or whose row stays locked, keeps no other from its
/// tick: the page is halved, down to that one.
async fn tick_page(store: &Store, page: &[DueSchedule]) -> Result<usize, StoreError> {
    let mut moves = Vec::with_capacity(page.len());
    for schedule in page {
        match plan(store, schedule).await {
            Ok(Some(plan)) => moves.push((schedule, plan)),
            Ok(None) => {}
            Err(error) if error.is_outage() => return Err(error),
            Err(error) => failed(&schedule.name, error),
        }
    }
    let (mut jobs, mut parts) = (0, vec![moves]);
    while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
        let asked: Vec<_> = part.iter().map(|(schedule, plan)| moved(schedule, plan)).collect();
        match store.tick(&asked).await {
            Ok(queues) => {
                for ((schedule, _), (asked, queue)) in part.iter().zip(asked.iter().zip(queues)) {
                    // Without a queue, another worker was faster, or the schedule was changed, or is locked.
                    if let Some(queue) = queue {
                        jobs += asked.jobs.len();
                        tell(schedule, &queue, asked.jobs.len());
                    }
                }
            }
            Err(error) if error.is_outage() => return Err(error),
            Err(_) if part.len() > 1 => halve(part, &mut parts),
            Err(error) => part.first().into_iter().for_each(|(of, _)| failed(&of.name, error.clone())),
        }
    }
    Ok(jobs)
}

/// Plans what is due. `None`: this version cannot read the schedule.
async fn plan(store: &Store, schedule: &DueSchedule) -> Result<Option<Plan>, StoreError> {
    let name = &schedule.name;
    let ticks = match CronSchedule::new(&schedule.cron, &schedule.time_zone) {
        Ok(ticks) => ticks,
        Err(error) => {
            // Another version wrote it, with other time zones.
            tracing::error!(schedule = name, error, "cannot parse a schedule; this worker skips its ticks");
            return Ok(None);
        }
    };
    let plan = ticks.plan(schedule.next_at, schedule.now, schedule.missed);
    let plan = ticks.without_overlap(plan, schedule);
    if let (Overlap::Cancel, Some(last)) = (schedule.overlap, schedule.live) {
        // Before the tick, which another look repeats if this worker dies in between.
        store.cancel_last(last).await?;
        tracing::info!(schedule = name, job = %last, "cancelled the job of a schedule's last tick");
    }
    if plan.next.is_none() {
        tracing::warn!(schedule = name, "a schedule has no further ticks; tenure paused it");
    }
    Ok(Some(plan))
}

fn moved<'s>(schedule: &'s DueSchedule, plan: &Plan) -> TickMove<'s> {
    let jobs = plan.ticks.iter().map(|tick| (JobId::generate(), *tick)).collect();
    TickMove { name: &schedule.name, due: schedule.next_at, next: plan.next, jobs }
}

fn tell(schedule: &DueSchedule, queue: &str, jobs: usize) {
    metrics::enqueued(queue, jobs);
    metrics::ticked("enqueued", jobs);
    if jobs > 0 {
        return;
    }
    metrics::ticked("skipped", 1);
    let (name, due) = (&schedule.name, schedule.next_at);
    if let (Overlap::Skip, Some(last)) = (schedule.overlap, schedule.live) {
        tracing::info!(schedule = name, %due, job = %last, "a schedule skips a tick: the last job has not ended");
    } else {
        tracing::warn!(schedule = name, %due, "a schedule missed ticks; its policy skips them");
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{JobRequest, proof::place, schedules::Schedule};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn ticks(cron: &str, zone: &str) -> CronSchedule {
        CronSchedule::new(cron, zone).unwrap()
    }

    #[test]
    fn an_invalid_schedule_is_refused_with_what_to_write() {
        for (cron, zone, said) in [
            ("0 25 * * *", "UTC", "is not a cron expression"),
            ("often", "UTC", "minute hour day month weekday"),
            ("", "UTC", "is not a cron expression"),
            ("0 3 * * *", "Berlin", "Europe/Berlin"),
            ("0 3 * * *", "Mars/Olympus", "IANA"),
        ] {
            let error = CronSchedule::new(cron, zone).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(ticks("0 0 30 2 *", "UTC").after(at("2026-01-01T00:00:00Z")), None, "it never comes");
    }

    #[test]
    fn a_tick_follows_the_time_zone_through_both_changes_of_the_clocks() {
        // Berlin goes from 2:00 to 3:00 on 29 March 2026, and from 3:00 to 2:00 on 25 October.
        let nightly = ticks("30 2 * * *", "Europe/Berlin");
        let spring = nightly.after(at("2026-03-28T12:00:00Z")).unwrap();
        assert!(spring >= at("2026-03-29T01:00:00Z") && spring < at("2026-03-29T02:00:00Z"), "{spring}");
        let autumn = nightly.after(at("2026-10-24T12:00:00Z")).unwrap();
        let next = nightly.after(autumn).unwrap();
        assert!(
            next - autumn >= TimeDelta::hours(24),
            "once in a night of two half past twos: {autumn}, {next}"
        );
        // Apia had no 30 December 2011.
        let noon = ticks("0 12 * * *", "Pacific/Apia");
        assert!(noon.after(at("2011-12-29T23:00:00Z")).is_some());
        assert_eq!(
            ticks("0 9 * * *", "Asia/Tokyo").after(at("2026-01-01T00:00:00Z")),
            Some(at("2026-01-02T00:00:00Z"))
        );
    }

    #[test]
    fn missed_ticks_follow_the_policy() {
        let hourly = ticks("0 * * * *", "UTC");
        let (due, now) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T04:30:00Z"));
        let next = Some(at("2026-01-01T05:00:00Z"));
        let latest = at("2026-01-01T04:00:00Z");
        assert_eq!(hourly.plan(due, now, MissedTicks::Skip), Plan { ticks: vec![], next });
        assert_eq!(hourly.plan(due, now, MissedTicks::Once), Plan { ticks: vec![latest], next });
        let all = hourly.plan(due, now, MissedTicks::All);
        assert_eq!((all.ticks.len(), all.ticks.last(), all.next), (4, Some(&latest), next));
        // In time.
        let soon = due + TimeDelta::seconds(2);
        for missed in [MissedTicks::Skip, MissedTicks::Once, MissedTicks::All] {
            let plan = hourly.plan(due, soon, missed);
            assert_eq!(plan, Plan { ticks: vec![due], next: Some(at("2026-01-01T02:00:00Z")) });
        }
        // A year of seconds takes many looks.
        let every_second = ticks("* * * * * *", "UTC");
        let plan = every_second.plan(due, at("2027-01-01T00:00:00Z"), MissedTicks::All);
        assert_eq!((plan.ticks.len(), plan.next), (TICKS_MAX, Some(due + TimeDelta::seconds(100))));
    }

    #[test]
    fn a_step_back_of_the_clock_repeats_no_rare_tick_and_stops_no_frequent_one() {
        let next =
            |cron: &str, next: &str, now: &str| ticks(cron, "UTC").after_a_step_back(at(next), at(now));
        let some = |time: &str| Some(at(time));
        let (noon, one) = ("2026-01-01T12:00:30Z", "2026-01-01T13:00:00Z");
        assert_eq!(next("* * * * *", one, noon), some("2026-01-01T12:01:00Z"));
        assert_eq!(next("*/15 * * * *", one, noon), some("2026-01-01T12:15:00Z"));
        // It ran at 12:30 of before the step.
        assert_eq!(next("30 12 * * *", "2026-01-02T12:30:00Z", noon), some("2026-01-01T12:30:00Z"));
        let weekly = "30 12 * * THU";
        assert_eq!(
            next(weekly, "2026-01-08T12:30:00Z", "2026-01-01T12:40:00Z"),
            None,
            "its next tick is right"
        );
        assert_eq!(
            next("0 */2 * * *", "2026-01-01T14:00:00Z", "2026-01-01T11:30:00Z"),
            None,
            "less than three hours"
        );
    }

    /// More schedules fail than one statement names; the last job of one is locked, and so is the row of another.
    #[tokio::test]
    async fn schedules_that_fail_or_are_locked_keep_no_other_from_its_ticks() {
        let place = place().await;
        let (tenure, store) = (&place.tenure, place.tenure.store());
        let schedule =
            |name: &str, kind: &str| Schedule::new(name, "0 3 * * *", JobRequest::new("q", kind, json!(1)));
        for n in 0..PAGE + 20 {
            tenure.put_schedule(schedule(&format!("bad-{n}"), "bad")).await.unwrap();
        }
        tenure.put_schedule(schedule("cancels", "slow").overlap(Overlap::Cancel)).await.unwrap();
        tenure.put_schedule(schedule("locked", "good")).await.unwrap();
        tenure.put_schedule(schedule("last", "good")).await.unwrap();
        let slow = tenure.enqueue(JobRequest::new("q", "slow", json!(1))).await.unwrap().id;
        for sql in [
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'bad'; END $$",
            "CREATE TRIGGER refuse BEFORE INSERT ON tenure.jobs FOR EACH ROW WHEN (NEW.kind = 'bad')
                EXECUTE FUNCTION public.refuse()",
            "UPDATE tenure.schedules SET next_at = now() - interval '10 s'",
            "UPDATE tenure.schedules SET next_at = now() - interval '1 s' WHERE name = 'last'",
            &format!("UPDATE tenure.schedules SET last_job_id = '{slow}' WHERE name = 'cancels'"),
        ] {
            place.execute(sql).await;
        }
        let mut open = place.pool.begin().await.unwrap();
        for sql in [
            "SELECT 1 FROM tenure.jobs FOR UPDATE",
            "SELECT 1 FROM tenure.schedules WHERE name = 'locked' FOR UPDATE",
        ] {
            sqlx::query(sql).execute(&mut *open).await.unwrap();
        }
        assert_eq!(tick(store).await.unwrap(), 1);
        assert_eq!(place.value("SELECT count(*) FROM tenure.jobs WHERE kind = 'good'").await, "1");
        assert!(store.availability().borrow().up, "a lock of one row is no outage");
        open.rollback().await.unwrap();
        assert_eq!(tick(store).await.unwrap(), 2);
        assert_eq!(place.value("SELECT count(*) FROM tenure.jobs WHERE kind IN ('good', 'slow')").await, "3");
    }

    proptest! {
        #[test]
        fn the_next_tick_is_always_later_than_the_last_even_if_the_clock_jumps(
            cron in prop::sample::select(vec!["* * * * * *", "*/7 * * * *", "0 3 * * MON", "30 2 L * *", "0 0 29 2 *"]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
            start in 0..2_000_000_000_i64,
            late_s in 0..400_000_i64,
            policy in prop::sample::select(vec![MissedTicks::Skip, MissedTicks::Once, MissedTicks::All]),
        ) {
            let ticks = ticks(cron, zone);
            let start = DateTime::from_timestamp(start, 0).unwrap();
            let due = ticks.after(start).unwrap();
            let now = due + TimeDelta::seconds(late_s) + TimeDelta::milliseconds(250);
            let plan = ticks.plan(due, now, policy);
            prop_assert!(plan.ticks.is_sorted_by(|a, b| a < b));
            prop_assert!(plan.ticks.iter().all(|tick| *tick >= due && *tick <= now));
            let next = plan.next.unwrap();
            prop_assert!(next > due && plan.ticks.iter().all(|tick| next > *tick));
            if policy != MissedTicks::All {
                prop_assert!(next > now);
            }
        }
    }
}
