//! Quarantine: which kinds mostly fail, so that their jobs wait.

use super::store::QuarantineRow;
use crate::{
    doctor::{Check, skip_by, some_of},
    store::Store,
};

pub(crate) const CHECK: &str = "quarantine";

/// Checks the kinds that are watched.
pub(crate) async fn look(store: &Store) -> Vec<Check> {
    match store.quarantines().await {
        Ok(watched) => vec![found(&watched)],
        Err(error) => skip_by(&[CHECK], &error),
    }
}

fn found(watched: &[QuarantineRow]) -> Check {
    let about = |of: &QuarantineRow| {
        of.began_at.map(|_| {
            let (failed, ended) = (of.failed.unwrap_or_default(), of.ended.unwrap_or_default());
            format!("{} ({failed} of {ended} attempts had failed; waiting jobs: {})", of.kind, of.waiting)
        })
    };
    let held: Vec<_> = watched.iter().filter_map(about).collect();
    if !held.is_empty() {
        return Check::warning(CHECK, format!("in quarantine: {}", some_of(&held))).advise(
            "mend what fails: `tenure dead groups`, `tenure jobs list --status retrying`. A probe that completes ends \
             the quarantine; `tenure kinds release KIND` ends it at once",
        );
    }
    Check::ok(
        CHECK,
        match watched.len() {
            0 => "no kind is watched".to_owned(),
            1 => "1 kind is watched, and is not in quarantine".to_owned(),
            n => format!("{n} kinds are watched, and none of them is in quarantine"),
        },
    )
}
