//! Recover: the metrics of jobs that were reset.

use super::*;
use crate::{
    job::{JobId, claim::FencingToken},
    proof::{Counts, seconds},
};

#[test]
fn reset_jobs_are_counted_by_path_and_by_outcome() {
    let counts = Counts::default();
    let _recording = counts.record();
    let ended_as = |route, category| EndedAttempt {
        ord: 0,
        job: JobId::generate(),
        queue: "q".into(),
        kind: "k".into(),
        token: FencingToken(1),
        owner: None,
        route,
        category: Some(category),
        silence: seconds(1),
    };
    let ended = |route| ended_as(route, Category::Lost);
    let died = || counts.of("tenure_dead_letters_total{category=lost}");
    let paths = [
        (RecoveryPath::Reconcile, Reason::ProcessDied),
        (RecoveryPath::Vanished, Reason::WorkerGone),
        (RecoveryPath::Scanner, Reason::Silent),
    ];
    for (path, reason) in paths {
        report_reset(path, reason, &[ended(Route::Queued), ended(Route::Queued)], "me", &Hooks::default());
        assert_eq!(counts.of(&format!("tenure_recoveries_total{{path={path},reason={reason}}}")), 2);
    }
    assert_eq!((counts.of("tenure_attempts_total{kind=k,outcome=lost}"), died()), (6, 0));
    report_reset(RecoveryPath::Scanner, Reason::Silent, &[ended(Route::Failed)], "me", &Hooks::default());
    assert_eq!(died(), 1);
    report_reset(
        RecoveryPath::Scanner,
        Reason::Silent,
        &[ended_as(Route::Failed, Category::Silent)],
        "me",
        &Hooks::default(),
    );
    assert_eq!((died(), counts.of("tenure_dead_letters_total{category=silent}")), (1, 1));
}
