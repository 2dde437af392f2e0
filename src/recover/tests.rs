//! Recover: what is counted of jobs that were taken back.

use super::*;
use crate::{
    job::{JobId, claim::FencingToken},
    proof::{Counts, seconds},
};

#[test]
fn jobs_that_were_taken_back_are_counted_by_path_and_by_what_became_of_them() {
    let counts = Counts::default();
    let _recording = counts.record();
    let taken = |route| EndedAttempt {
        ord: 0,
        job: JobId::generate(),
        queue: "q".into(),
        kind: "k".into(),
        token: FencingToken(1),
        owner: None,
        route,
        silence: seconds(1),
    };
    let died = || counts.of("tenure_dead_letters_total{category=lost}");
    let paths = [("reconcile", "process_died"), ("vanished", "worker_gone"), ("scanner", "silent")];
    for (path, reason) in paths {
        report_taken(path, &[taken(Route::Queued), taken(Route::Queued)], "me");
        assert_eq!(counts.of(&format!("tenure_recoveries_total{{path={path},reason={reason}}}")), 2);
    }
    assert_eq!((counts.of("tenure_attempts_total{kind=k,outcome=lost}"), died()), (6, 0));
    report_taken("scanner", &[taken(Route::Failed)], "me");
    assert_eq!(died(), 1);
}
