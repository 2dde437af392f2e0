//! Scope: which queues a form is about, for users who may act on some queues alone.
//!
//! A user who may look at some queues alone is told nothing of the others, not even whether a job exists: a form that
//! names a job of another queue is refused as one is that names no job.

use std::collections::BTreeSet;

use super::{
    Ask, Failure, View,
    actions::{dead_filter, job, named},
    redrives,
};
use crate::access::Who;
use tenure::JobId;

/// Refuses a form of a user who may not act on each queue that it is about.
///
/// A job, a schedule or a redrive that does not exist is about no queue: the action itself says so.
pub(super) async fn check(view: &View, ask: &Ask, who: &Who) -> Result<(), Failure> {
    if who.scope.is_all() {
        return Ok(());
    }
    let may = |queue: Option<&str>| {
        who.scope
            .check(&who.name, queue)
            .map_err(|why| Failure::Refused(format!("Nothing was changed: {why}")))
    };
    match queues(view, ask).await? {
        Some(queues) if queues.iter().any(|queue| !view.looks.has(queue)) => Err(nowhere(view)),
        Some(queues) => queues.iter().try_for_each(|queue| may(Some(queue))),
        None => may(None),
    }
}

/// The refusal of a form about what its user may not see, or about nothing: both look the same.
fn nowhere(view: &View) -> Failure {
    let why = view.looks.unseen("and this is of another queue, or does not exist");
    Failure::Refused(format!("Nothing was changed: {why}"))
}

/// The queues of what a form names. Without any, the action itself says that it does not exist, if its user sees all.
fn known(view: &View, queues: BTreeSet<String>) -> Result<Option<BTreeSet<String>>, Failure> {
    if queues.is_empty() && !view.looks.is_all() { Err(nowhere(view)) } else { Ok(Some(queues)) }
}

/// The queues that a form is about. `None`: it may touch any.
async fn queues(view: &View, ask: &Ask) -> Result<Option<BTreeSet<String>>, Failure> {
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    let field =
        || ask.form.get("queue").map(|queue| queue.trim().to_owned()).filter(|queue| !queue.is_empty());
    let one = |queue: Option<String>| queue.map(|queue| BTreeSet::from([queue]));
    let is_all = ask.form.get("all").is_some();
    Ok(match path[..] {
        ["queues", queue, _] => one(Some(queue.to_owned())),
        ["jobs", "cancel" | "retry"] if is_all => one(field()),
        ["jobs", "cancel" | "retry"] => Some(of_jobs(view, &named(ask)?).await?),
        ["jobs", id, _] => Some(of_jobs(view, &[job(id)?]).await?),
        ["dead", "redrive" | "purge"] if !is_all => Some(of_jobs(view, &named(ask)?).await?),
        ["dead", "redrive" | "purge" | "calm"] => match (field(), ask.form.get("group")) {
            // A group is of one queue.
            (None, Some(_)) => {
                let filter = dead_filter(|name| ask.form.get(name));
                let first = view.tenure.dead_letters(&filter, 1).await?.pop();
                known(view, first.map(|letter| letter.queue).into_iter().collect())?
            }
            (queue, _) => one(queue),
        },
        ["dead", "redrives", id, "stop"] => match id.parse() {
            Ok(id) => match view.tenure.redrive_row(id).await? {
                // One of all dead letters may be of any queue.
                Some(row) if redrives::queue(&row).is_none() && !view.looks.is_all() => {
                    return Err(nowhere(view));
                }
                Some(row) => one(redrives::queue(&row)),
                None => known(view, BTreeSet::new())?,
            },
            Err(_) => known(view, BTreeSet::new())?,
        },
        ["enqueue"] => one(field()),
        // The new queue, and that of the schedule that it replaces.
        ["schedule"] => {
            let name = ask.form.get("name").unwrap_or_default();
            let mut both = of_schedule(view, name.trim()).await?;
            match field() {
                Some(queue) => {
                    both.insert(queue);
                    Some(both)
                }
                None => None,
            }
        }
        ["schedules", name, _] => known(view, of_schedule(view, name).await?)?,
        // A worker may serve several queues, and a kind may be in several.
        _ => None,
    })
}

async fn of_jobs(view: &View, jobs: &[JobId]) -> Result<BTreeSet<String>, Failure> {
    let mut queues = BTreeSet::new();
    for job in jobs {
        match view.tenure.job(*job).await? {
            Some(job) => {
                queues.insert(job.queue);
            }
            None if view.looks.is_all() => {}
            None => return Err(nowhere(view)),
        }
    }
    Ok(queues)
}

async fn of_schedule(view: &View, name: &str) -> Result<BTreeSet<String>, Failure> {
    let schedules = view.tenure.schedules().await?;
    Ok(schedules.into_iter().filter(|one| one.name == name).map(|one| one.queue).collect())
}
