//! Lanes: whether jobs name lanes that their queue lacks, whether workers look after lanes, and which wait for long.

use std::time::Duration;

use super::store::LanesSeen;
use crate::{
    doctor::{Check, jobs_of, skip_by},
    job::{JobId, duration::measured},
    store::Store,
};

pub(crate) const CHECK: &str = "lanes";

/// The relay looks at lanes ten times a second: after this, none does.
const LATE: Duration = Duration::from_secs(20);
/// A lane whose slots were taken for as long while a job of it was due has a warning.
const BLOCKED: Duration = Duration::from_mins(10);
/// The most lanes that have a finding each.
const SHOWN: i64 = 20;

/// Checks the lanes of these queues, or of all.
pub(crate) async fn look(store: &Store, named: Option<&[String]>) -> Vec<Check> {
    match store.doctor_lanes(named, LATE, BLOCKED, SHOWN).await {
        Ok(seen) => found(&seen),
        Err(error) => skip_by(&[CHECK], &error),
    }
}

fn found(seen: &[LanesSeen]) -> Vec<Check> {
    let with_lanes = seen.iter().filter(|of| matches!(of, LanesSeen::Queue(_))).count();
    let checks: Vec<_> = seen.iter().filter_map(about).collect();
    if !checks.is_empty() {
        return checks;
    }
    vec![Check::ok(
        CHECK,
        match with_lanes {
            0 => "no queue has lanes, and no job names one".to_owned(),
            1 => "workers look after the lanes of 1 queue".to_owned(),
            n => format!("workers look after the lanes of {n} queues"),
        },
    )]
}

fn seconds(of: f64) -> String {
    measured(Duration::try_from_secs_f64(of.max(0.0)).unwrap_or_default())
}

fn about(seen: &LanesSeen) -> Option<Check> {
    Some(match seen {
        LanesSeen::Queue(_) => return None,
        LanesSeen::None { queue, lane, jobs } => {
            let names = if *jobs == 1 { "names a lane" } else { "name lanes" };
            let found = format!(
                "{} {names}, as {lane:?}, but the queue has none: nothing limits them",
                jobs_of(*jobs, i64::MAX)
            );
            Check::warning(CHECK, found).of(queue).advise(format!(
                "give the queue lanes, such as `tenure queues lanes {queue} --running 2`, or let producers name none"
            ))
        }
        LanesSeen::Late { queue, lanes, age_s, pid } => {
            let lanes = if *lanes == 1 { "1 lane".to_owned() } else { format!("{lanes} lanes") };
            let found =
                format!("no worker looks after {lanes}, the first for {}: held jobs stay", seconds(*age_s));
            let start = "start a worker, of any queue: `tenure workers list` shows those that live. If workers live, \
                         their log says why (\"lanes\", WARN)";
            let check = Check::wrong(CHECK, found).of(queue);
            match pid {
                Some(pid) => check.advise(format!(
                    "{start}; session {pid} of Postgres has written to lanes in a transaction that is open: end that \
                     transaction, or the session by pg_terminate_backend({pid})"
                )),
                None => check.advise(start),
            }
        }
        LanesSeen::Blocked { queue, lane, waited_s, holder } => {
            let found = format!(
                "lane {lane:?} has a job that has been due for {}, and all its slots are taken{}",
                seconds(*waited_s),
                holder.as_ref().map(said).unwrap_or_default()
            );
            let show = match holder {
                Some((id, ..)) => format!("look at it: `tenure jobs show {id}`; cancel it, or "),
                None => String::new(),
            };
            Check::warning(CHECK, found).of(queue).advise(format!(
                "{show}let more of its jobs run: `tenure queues lanes {queue} --lane KEY --running N`"
            ))
        }
    })
}

/// The job that has had a slot for longest.
fn said((id, is_running, held_s): &(JobId, bool, f64)) -> String {
    let does = if *is_running { "has run" } else { "has waited for a worker" };
    format!("; job {id} {does} for {}", seconds(*held_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckState;

    #[test]
    fn each_trouble_of_a_lane_says_what_to_do() {
        let (queue, lane) = ("q".to_owned(), "org-7".to_owned());
        let id = JobId::generate();
        for (seen, state, words) in [
            (LanesSeen::Queue(queue.clone()), CheckState::Ok, "the lanes of 1 queue"),
            (
                LanesSeen::None { queue: queue.clone(), lane: lane.clone(), jobs: 3 },
                CheckState::Warning,
                "3 jobs name lanes, as \"org-7\"",
            ),
            (
                LanesSeen::Late { queue: queue.clone(), lanes: 2, age_s: 61.0, pid: Some(7) },
                CheckState::Wrong,
                "no worker looks after 2 lanes, the first for 1m 1s",
            ),
            (
                LanesSeen::Blocked { queue, lane, waited_s: 700.0, holder: Some((id, true, 7_200.0)) },
                CheckState::Warning,
                "has run for 2h",
            ),
        ] {
            let checks = found(&[seen]);
            assert_eq!((checks.len(), checks[0].state), (1, state));
            assert!(checks[0].found.contains(words), "{}", checks[0].found);
            assert_eq!(checks[0].to_do.is_some(), state != CheckState::Ok);
        }
    }
}
