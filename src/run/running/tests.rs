//! Running: the state that this process keeps of its jobs.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::pin::pin;

use futures::FutureExt;

use super::*;
use crate::{
    proof::{Counts, place},
    run::threads::Watched,
};

fn reserved(running: &Running, job: JobId) -> Reservation {
    match running.reserve(job) {
        LocalJob::Unknown(reservation) => reservation,
        LocalJob::Claiming | LocalJob::Running(_) | LocalJob::Ending => panic!("{job} is reserved"),
    }
}

#[tokio::test]
async fn the_first_reason_to_stop_stays_unless_the_job_is_lost() {
    let job = place().await.running("w").await;
    assert_eq!((job.cancel_reason(), job.is_lost()), (None, false));
    assert!(!job.cancellation.is_cancelled());
    job.cancel(CancelReason::User);
    assert!(job.cancellation.is_cancelled());
    job.cancel(CancelReason::Timeout);
    assert_eq!((job.cancel_reason(), job.is_lost()), (Some(CancelReason::User), false));
    job.cancel(CancelReason::Lost);
    job.cancel(CancelReason::Shutdown);
    assert_eq!((job.cancel_reason(), job.is_lost()), (Some(CancelReason::Lost), true));
}

#[tokio::test]
async fn a_job_that_is_cut_off_is_cancelled_but_not_lost() {
    let job = place().await.running("w").await;
    assert!(!job.is_cut_off());
    job.cut_off();
    assert!(job.is_cut_off() && job.cancellation.is_cancelled() && !job.is_lost());
}

#[tokio::test]
async fn an_outage_is_remembered_for_a_minute() {
    let job = place().await.running("w").await;
    assert!(!job.met_an_outage());
    for (ago, is_remembered) in [(0, true), (59, true), (61, false)] {
        *job.unavailable_at() = Instant::now().checked_sub(Duration::from_secs(ago));
        assert_eq!(job.met_an_outage(), is_remembered, "{ago} s ago");
    }
}

/// A checkpoint is for a next attempt; alone it is no report.
#[tokio::test]
async fn the_unwritten_report_has_no_checkpoint() {
    let job = place().await.running("w").await;
    assert!(job.unwritten_report().is_none());
    let said = ProgressWrite {
        key: job.key,
        stage: None,
        percent: None,
        message: None,
        checkpoint: Some("1".into()),
    };
    job.pulse().pending = Some(said.clone());
    assert!(job.unwritten_report().is_none());
    job.pulse().pending = Some(ProgressWrite { percent: Some(50.0), ..said });
    let report = job.unwritten_report().unwrap();
    assert_eq!((report.percent, report.checkpoint), (Some(50.0), None));
}

#[tokio::test]
async fn a_write_counts_from_when_it_was_sent_and_a_later_answer_to_an_earlier_one_changes_nothing() {
    let job = place().await.running("w").await;
    let mut notified = pin!(job.writes.notified());
    notified.as_mut().enable();
    let (sent_at, earlier) = (Instant::now(), job.claim.sent_at);
    job.pulse().trying_since = Some(earlier);
    job.written(sent_at);
    assert!(notified.now_or_never().is_some(), "a task that waits for a write wakes up");
    let Pulse { written_at, trying_since, .. } = *job.pulse();
    assert_eq!((written_at, trying_since), (sent_at, None));
    job.written(earlier);
    assert_eq!(job.pulse().written_at, sent_at);
}

#[tokio::test]
async fn a_handler_that_keeps_its_thread_is_reported_once() {
    let job = place().await.running("w").await;
    let counts = Arc::new(Counts::default());
    let _recording = counts.record();
    let blocked = {
        let counts = counts.clone();
        move || counts.of("tenure_blocked_handlers_total{kind=k}")
    };
    job.report_blocked(Duration::ZERO);
    assert_eq!(blocked(), 0, "it holds no thread");
    let held = job.clone();
    let handler = Watched::new(
        async move {
            let begun = held.thread.blocked_for().unwrap();
            held.report_blocked(begun + Duration::from_secs(60));
            assert_eq!(blocked(), 0, "not for long enough");
            held.report_blocked(Duration::ZERO);
            held.report_blocked(Duration::ZERO);
            assert_eq!(blocked(), 1);
        },
        job.thread.clone(),
    );
    handler.await;
}

#[tokio::test]
async fn of_each_message_the_latest_receipt_is_kept_until_the_attempt_is_settled() {
    let place = place().await;
    let job = place.running("w").await;
    let of = |n| Message { receipt: place.ticket(job.key.job, n).receipt, dispatch: Some(n) };
    let sequences = |job: &RunningJob| job.receipts().iter().map(|one| one.sequence).collect::<Vec<_>>();
    let first = job.claim.dispatch;
    assert!(job.keep(of(8)) && job.keep(of(8)) && job.keep(of(9)));
    assert_eq!(sequences(&job), [u64::try_from(first).unwrap(), 8, 9]);
    assert!(!job.is_ending() && !job.is_over());
    let ended: Vec<_> = job.end().iter().map(|message| message.dispatch).collect();
    assert_eq!(ended, [Some(first), Some(8), Some(9)]);
    assert!(job.is_ending() && job.is_over());
    assert!(!job.keep(of(10)), "too late");
    assert!(job.receipts().is_empty() && job.end().is_empty());
}

/// The handler has completed the job in its own transaction, or is about to.
#[tokio::test]
async fn an_attempt_that_its_handler_ends_is_over() {
    let place = place().await;
    for is_settled in [true, false] {
        let (job, other) = (place.running("w").await, place.running("w").await);
        job.settled.store(is_settled, Ordering::Release);
        job.completing.store(!is_settled, Ordering::Release);
        assert!(job.is_over() && !job.is_ending());
        assert!(!other.is_over());
    }
}

#[tokio::test]
async fn a_process_claims_a_job_once_and_again_when_its_reservation_is_dropped() {
    let place = place().await;
    let job = place.running("w").await;
    let id = job.key.job;
    let running = Running::default();
    let reservation = reserved(&running, id);
    assert!(matches!(running.reserve(id), LocalJob::Claiming));
    assert!(running.all().is_empty(), "it does not run yet");
    assert!(!reservation.run(job.clone()), "it was not cancelled");
    assert!(matches!(running.reserve(id), LocalJob::Running(found) if found.key == job.key));
    assert_eq!(running.all().len(), 1);
    job.cancel(CancelReason::Lost);
    assert!(matches!(running.reserve(id), LocalJob::Ending), "another worker owns it");
    drop(reservation);
    assert!(running.all().is_empty());
    let ending = place.running("w").await;
    let reservation = reserved(&running, ending.key.job);
    reservation.run(ending.clone());
    ending.end();
    assert!(matches!(running.reserve(ending.key.job), LocalJob::Ending), "it is being settled");
    drop(reserved(&running, id));
}

#[tokio::test]
async fn a_cancellation_reaches_a_job_that_runs_and_one_that_is_being_claimed() {
    let place = place().await;
    let running = Running::default();
    let (runs, claimed) = (place.running("w").await, place.running("w").await);
    let first = reserved(&running, runs.key.job);
    assert!(!first.run(runs.clone()));
    let second = reserved(&running, claimed.key.job);
    let ids = [runs.key.job, claimed.key.job, place.job().await];
    let found: Vec<_> = running.announce_cancelled(&ids).iter().map(|job| job.key).collect();
    assert_eq!(found, [runs.key]);
    assert!(second.run(claimed.clone()), "it was cancelled meanwhile");
}

#[tokio::test]
async fn stop_all_cancels_the_jobs_that_run_and_those_that_start_later() {
    let place = place().await;
    let running = Running::default();
    assert_eq!(running.stop_all(), 0);
    let running = Running::default();
    let jobs = [place.running("w").await, place.running("w").await];
    let kept: Vec<_> = jobs
        .iter()
        .map(|job| {
            let reservation = reserved(&running, job.key.job);
            reservation.run(job.clone());
            reservation
        })
        .collect();
    assert!(!jobs[0].cancellation.is_cancelled());
    assert_eq!(running.stop_all(), 2);
    for job in &jobs {
        assert_eq!(job.cancel_reason(), Some(CancelReason::Shutdown));
    }
    let late = place.running("w").await;
    let reservation = reserved(&running, late.key.job);
    reservation.run(late.clone());
    assert_eq!(late.cancel_reason(), Some(CancelReason::Shutdown));
    drop((reservation, kept));
}
