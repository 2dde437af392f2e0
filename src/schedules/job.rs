//! Job: the ticks of a cron expression in a time zone, at which jobs are due.
//!
//! Not here: which of them get a job (`schedules::recover`).

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use chrono_tz::Tz;
use croner::Cron;

/// A parsed cron expression with its time zone.
#[derive(Debug, Clone)]
pub(crate) struct CronSchedule {
    pub(super) cron: Cron,
    pub(super) zone: Tz,
}

impl CronSchedule {
    /// # Errors
    ///
    /// Says what is wrong with the expression or the zone, and what to write.
    pub(crate) fn new(cron: &str, zone: &str) -> Result<Self, String> {
        let zone = zone.parse().map_err(|_| unknown_zone(zone))?;
        let cron = cron.parse::<Cron>().map_err(|error| {
            format!(
                "{cron:?} is not a cron expression ({error}); \
                 write minute hour day month weekday, such as 0 3 * * MON"
            )
        })?;
        Ok(Self { cron, zone })
    }

    /// Returns the first tick after this time. `None`: no tick follows.
    pub(crate) fn after(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // The search fails on a day that the zone skips: a second search starts after that day.
        [TimeDelta::zero(), TimeDelta::days(2)].into_iter().find_map(|skipped| {
            let from = at.checked_add_signed(skipped)?.with_timezone(&self.zone);
            let next =
                self.cron.find_next_occurrence(&from, false).ok()?.with_timezone(&Utc).trunc_subsecs(0);
            (next > at).then_some(next)
        })
    }
}

/// Returns the next ticks after this time, at most `most`.
///
/// # Errors
///
/// Says what is wrong with the expression or the zone, and what to write.
pub fn next_ticks(
    cron: &str,
    zone: &str,
    after: DateTime<Utc>,
    most: usize,
) -> Result<Vec<DateTime<Utc>>, String> {
    let schedule = CronSchedule::new(cron, zone)?;
    let next = |tick: &DateTime<Utc>| schedule.after(*tick);
    Ok(std::iter::successors(Some(after), next).skip(1).take(most).collect())
}

fn unknown_zone(zone: &str) -> String {
    let lower = zone.to_lowercase();
    let part = lower.rsplit(['/', ' ', '_']).next().filter(|part| part.len() > 2).unwrap_or(&lower);
    let like = chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name());
    let like: Vec<_> = like.filter(|name| name.to_lowercase().contains(part)).take(3).collect();
    let hint = if like.is_empty() { "Europe/Berlin or UTC".to_owned() } else { like.join(" or ") };
    format!("{zone:?} is not a time zone; write a name of the IANA database, such as {hint}")
}
