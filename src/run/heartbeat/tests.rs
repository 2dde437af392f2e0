//! Heartbeat: which progress is written when, and what a refused write means.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use futures::poll;
use sqlx::{Postgres, Transaction};
use tracing::Instrument;

use super::*;
use crate::{
    proof::{Counts, Logs, Place, RULES, ago, place, run_in, seconds},
    run::running::{Message, Reservation, Rules},
};

const WORKER: &str = "worker";

/// One running job, and the heartbeat that writes its progress.
#[expect(dead_code, reason = "the reservation is kept")]
struct One {
    place: Place,
    heartbeat: Heartbeat,
    job: Arc<RunningJob>,
    reservation: Reservation,
}

async fn one() -> One {
    one_under(RULES).await
}

async fn one_under(rules: Rules) -> One {
    let place = place().await;
    let running = Running::default();
    let job = place.running_under(rules, WORKER).await;
    let reservation = run_in(&running, &job);
    let heartbeat =
        Heartbeat::new(place.tenure.store().clone(), running, Timing::DEFAULT, WORKER.into(), None);
    One { place, heartbeat, job, reservation }
}

fn half(job: &RunningJob) -> ProgressWrite {
    ProgressWrite { percent: Some(50.0), ..nothing(job) }
}

fn checkpoint(job: &RunningJob) -> ProgressWrite {
    ProgressWrite { checkpoint: Some("7".into()), ..nothing(job) }
}

impl One {
    /// The value of a column of its row.
    async fn of(&self, column: &str) -> String {
        self.place.value(&format!("SELECT {column} FROM tenure.jobs WHERE id = '{}'", self.job.key.job)).await
    }

    async fn claimed_by_another(&self) {
        self.place.execute("UPDATE tenure.jobs SET fencing_token = 9, claim_id = gen_random_uuid()").await;
    }

    async fn cancelled(&self) {
        self.place.execute("UPDATE tenure.jobs SET cancel_requested_at = now()").await;
    }

    /// Blocks all writes of the job until the transaction is dropped.
    async fn lock(&self) -> Transaction<'static, Postgres> {
        let mut lock = self.place.pool.begin().await.unwrap();
        sqlx::query("SELECT FROM tenure.jobs FOR UPDATE").execute(&mut *lock).await.unwrap();
        lock
    }

    /// Makes every statement fail until [`One::mend_it`].
    async fn break_it(&self) {
        self.place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    }

    async fn mend_it(&self) {
        self.place.execute("ALTER TABLE tenure.hidden RENAME TO jobs").await;
    }
}

#[tokio::test]
async fn a_report_is_written_once_flush_every_has_passed_since_the_last() {
    let one = one().await;
    Heartbeat::report(&one.job, half(&one.job));
    one.heartbeat.beat().await;
    assert_eq!(one.of("progress").await, "", "too soon");
    one.job.pulse().flushed_at = ago(seconds(1));
    one.heartbeat.beat().await;
    assert_eq!(one.of("progress").await, "50");
    assert!(one.job.pulse().pending.is_none() && one.job.pulse().trying_since.is_none());
    // Without a report, nothing is written.
    let before = one.of("last_activity_at").await;
    one.job.pulse().flushed_at = ago(seconds(100));
    one.heartbeat.beat().await;
    assert_eq!(one.of("last_activity_at").await, before);
}

#[tokio::test]
async fn a_kind_with_keepalive_shows_a_sign_of_life_at_its_interval() {
    let one = one_under(Rules { keepalive: Some(seconds(30)), ..RULES }).await;
    let before = one.of("last_activity_at").await;
    one.job.pulse().flushed_at = ago(seconds(29));
    one.heartbeat.beat().await;
    assert_eq!(one.of("last_activity_at").await, before);
    one.job.pulse().flushed_at = ago(seconds(30));
    one.heartbeat.beat().await;
    assert_ne!(one.of("last_activity_at").await, before);
}

/// Without the hurry, the write would come with the next tick, two fifths of a second later.
#[tokio::test]
async fn a_hurried_report_is_written_at_once() {
    let one = one().await;
    let story = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Heartbeat::report(&one.job, half(&one.job));
        one.job.pulse().flushed_at = ago(seconds(1));
        one.heartbeat.hurry();
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(one.job.pulse().pending.is_none());
    };
    tokio::select! {
        () = one.heartbeat.write_for_ever() => panic!("it writes for ever"),
        () = story => {}
    }
}

#[tokio::test]
async fn the_worker_asks_about_a_silent_job_every_five_seconds() {
    let one = one().await;
    one.cancelled().await;
    one.heartbeat.beat().await;
    assert_eq!(one.job.cancel_reason(), None, "it was written just now");
    one.job.pulse().written_at = ago(seconds(6));
    one.job.pulse().check_at = Instant::now() + seconds(2);
    one.heartbeat.beat().await;
    assert_eq!(one.job.cancel_reason(), None, "the worker asked just now");
    one.job.pulse().check_at = Instant::now();
    one.heartbeat.beat().await;
    assert_eq!(one.job.cancel_reason(), Some(CancelReason::User));
    let again_in = one.job.pulse().check_at.saturating_duration_since(Instant::now());
    assert!(again_in > seconds(4) && again_in <= seconds(5), "{again_in:?}");
    assert!(one.job.pulse().trying_since.is_none(), "Postgres answers, and there was nothing to write");
}

#[tokio::test]
async fn a_report_that_cannot_be_written_waits_and_counts_as_tried() {
    let one = one().await;
    Heartbeat::report(&one.job, half(&one.job));
    one.job.pulse().flushed_at = ago(seconds(1));
    one.break_it().await;
    one.heartbeat.beat().await;
    assert_eq!(one.job.pulse().pending.as_ref().unwrap().percent, Some(50.0));
    assert!(one.job.pulse().trying_since.is_some());
}

#[tokio::test]
async fn a_check_that_fails_counts_as_tried() {
    let one = one().await;
    one.break_it().await;
    one.job.pulse().written_at = ago(seconds(6));
    one.heartbeat.beat().await;
    assert!(one.job.pulse().trying_since.is_some());
    assert!(one.heartbeat.is_ours(&one.job).await.is_err());
}

/// Two handlers, one of which reports something that Postgres refuses.
#[tokio::test]
async fn a_refused_report_silences_neither_its_own_job_nor_another() {
    let one = one().await;
    let other = one.place.running(WORKER).await;
    let before = one.of("last_activity_at").await;
    Heartbeat::report(&one.job, ProgressWrite { checkpoint: Some("{".into()), ..half(&one.job) });
    Heartbeat::report(&other, half(&other));
    one.heartbeat.write(&[one.job.clone(), other.clone()]).await.unwrap();
    assert_eq!(one.of("progress").await, "");
    assert_ne!(one.of("last_activity_at").await, before);
    let progress = format!("SELECT progress FROM tenure.jobs WHERE id = '{}'", other.key.job);
    assert_eq!(one.place.value(&progress).await, "50");
    assert!(one.job.pulse().pending.is_none() && other.pulse().pending.is_none());
    assert!(one.job.pulse().trying_since.is_none() && other.pulse().trying_since.is_none());
}

/// Postgres refuses each write of a row on a broken page.
#[tokio::test]
async fn a_row_that_cannot_be_written_silences_no_other_job() {
    let one = one().await;
    let mut jobs = vec![one.job.clone()];
    for _ in 0..4 {
        jobs.push(one.place.running(WORKER).await);
    }
    let broken = format!(
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'broken' USING ERRCODE = 'XX001'; END $$;
         CREATE TRIGGER broken BEFORE UPDATE ON tenure.jobs FOR EACH ROW WHEN (OLD.id = '{}')
             EXECUTE FUNCTION broken()",
        one.job.key.job
    );
    for sql in broken.split_inclusive("$$;") {
        one.place.execute(sql).await;
    }
    for turn in 0..jobs.len() {
        jobs.rotate_left(turn);
        for job in &jobs {
            Heartbeat::report(job, half(job));
        }
        one.heartbeat.write(&jobs).await.unwrap();
        for job in &jobs {
            let is_broken = job.key.job == one.job.key.job;
            assert_eq!((job.pulse().pending.is_some(), job.is_lost()), (is_broken, false));
            assert_eq!(job.pulse().trying_since.is_some(), is_broken);
        }
    }
    assert_eq!(one.place.value("SELECT count(*) FROM tenure.jobs WHERE progress = 50").await, "4");
}

/// The worker does not try each job alone after a statement that failed as a whole.
#[tokio::test]
async fn reports_of_a_statement_that_fails_for_another_reason_than_their_data_wait_together() {
    // The time limit of a statement, and a lock of the whole table.
    for code in ["57014", "55P03"] {
        let one = one().await;
        let other = one.place.running(WORKER).await;
        one.place.raise_once(code).await;
        for job in [&one.job, &other] {
            Heartbeat::report(job, half(job));
        }
        one.heartbeat.write(&[one.job.clone(), other.clone()]).await.unwrap_err();
        assert!(one.job.pulse().pending.is_some() && other.pulse().pending.is_some(), "{code}");
        assert_eq!(one.of("progress").await, "", "{code}");
    }
}

/// In the span of its attempt, which names the job; after the span's end, with fields of its own.
#[tokio::test]
async fn a_refused_write_is_logged_with_its_job() {
    let place = place().await;
    let logs = Logs::default();
    let _listening = logs.record();
    let span = tracing::info_span!("attempt");
    for (is_ending, is_inside, names_it) in [(false, false, false), (true, false, true), (true, true, false)]
    {
        let claim = place.claimed_by(WORKER).await;
        let message = Message { receipt: place.ticket(claim.key.job, 1).receipt, dispatch: None };
        let job = RunningJob::new(claim, message, RULES, span.id());
        let store = place.tenure.store().clone();
        let heartbeat = Heartbeat::new(store, Running::default(), Timing::DEFAULT, WORKER.into(), None);
        if is_ending {
            job.end();
        }
        let lost = heartbeat.lost(&job, "progress");
        if is_inside {
            lost.instrument(span.clone()).await;
        } else {
            lost.await;
        }
        let named = logs.lines(&job.key.job.to_string());
        let named = named.iter().any(|line| line.contains(REFUSED));
        assert_eq!(named, names_it, "{is_ending} {is_inside}");
    }
    assert_eq!(logs.lines(REFUSED).len(), 3);
}

/// The worker still owns the job.
#[tokio::test]
async fn a_report_of_a_locked_job_waits_even_beside_a_refused_one() {
    let one = one().await;
    let other = one.place.running(WORKER).await;
    let lock = one.lock().await;
    for refused in [false, true] {
        let bad = ProgressWrite { checkpoint: Some("{".into()), ..nothing(&other) };
        Heartbeat::report(&one.job, half(&one.job));
        Heartbeat::report(&other, if refused { bad } else { half(&other) });
        one.heartbeat.write(&[one.job.clone(), other.clone()]).await.unwrap();
        assert_eq!(one.job.pulse().pending.as_ref().unwrap().percent, Some(50.0));
        assert!(!one.job.is_lost());
    }
    drop(lock);
}

/// The future that waits for a statement may be dropped.
#[tokio::test]
async fn a_report_whose_statement_is_cut_off_waits_again() {
    let one = one().await;
    let mut lock = one.place.pool.begin().await.unwrap();
    sqlx::query("LOCK tenure.jobs").execute(&mut *lock).await.unwrap();
    Heartbeat::report(&one.job, half(&one.job));
    {
        let jobs = [one.job.clone()];
        let mut sending = Box::pin(one.heartbeat.send(&jobs));
        assert!(poll!(&mut sending).is_pending());
        assert!(one.job.pulse().pending.is_none(), "it is on its way");
    }
    assert_eq!(one.job.pulse().pending.as_ref().unwrap().percent, Some(50.0));
}

#[tokio::test]
async fn a_write_of_a_lost_job_cancels_its_handler_and_is_recorded_once() {
    let one = one().await;
    let counts = Counts::default();
    let _recording = counts.record();
    one.claimed_by_another().await;
    for _ in 0..2 {
        Heartbeat::report(&one.job, half(&one.job));
        one.heartbeat.write(std::slice::from_ref(&one.job)).await.unwrap();
        one.heartbeat.lost(&one.job, "progress").await;
    }
    assert!(one.job.is_lost());
    assert_eq!(one.place.value("SELECT count(*) FROM tenure.recovery_events").await, "1");
    assert_eq!(counts.of("tenure_refused_writes_total{write=progress}"), 1);
}

/// A silent job had no write to refuse.
#[tokio::test]
async fn the_handler_of_a_silent_lost_job_is_cancelled_and_no_refused_write_is_recorded() {
    let one = one().await;
    assert!(one.heartbeat.is_ours(&one.job).await.unwrap());
    one.claimed_by_another().await;
    assert!(!one.heartbeat.is_ours(&one.job).await.unwrap());
    assert_eq!(one.place.value("SELECT count(*) FROM tenure.recovery_events").await, "0");
}

/// The attempt's own end removes its row.
#[tokio::test]
async fn an_attempt_that_is_being_settled_is_not_lost() {
    let one = one().await;
    one.claimed_by_another().await;
    one.job.settled.store(true, Ordering::Release);
    one.heartbeat.look_after(std::slice::from_ref(&one.job)).await;
    assert!(!one.job.is_lost());
}

#[tokio::test]
async fn a_write_and_a_check_both_see_a_cancellation() {
    for by_write in [true, false] {
        let one = one().await;
        one.cancelled().await;
        if by_write {
            Heartbeat::report(&one.job, half(&one.job));
            one.heartbeat.write(std::slice::from_ref(&one.job)).await.unwrap();
        } else {
            one.heartbeat.look_after(std::slice::from_ref(&one.job)).await;
        }
        assert_eq!(one.job.cancel_reason(), Some(CancelReason::User), "{by_write}");
    }
}

/// A check shows that Postgres answers, but a waiting report still is unwritten.
#[tokio::test]
async fn a_check_clears_trying_since_only_if_no_report_waits() {
    let one = one().await;
    let since = ago(seconds(3));
    one.job.pulse().trying_since = Some(since);
    Heartbeat::report(&one.job, half(&one.job));
    one.heartbeat.look_after(std::slice::from_ref(&one.job)).await;
    assert_eq!(one.job.pulse().trying_since, Some(since));
    one.job.pulse().pending = None;
    one.heartbeat.look_after(std::slice::from_ref(&one.job)).await;
    assert_eq!(one.job.pulse().trying_since, None);
}

/// A third of `ack_wait`: often enough that one lost extension does no harm.
#[tokio::test]
async fn the_message_of_a_live_job_is_extended_every_third_of_ack_wait() {
    let one = one().await;
    let ack_wait = Timing::DEFAULT.ack_wait;
    for (last, is_extended) in [(ack_wait / 4, false), (ack_wait / 2, true)] {
        let before = ago(last);
        one.job.pulse().extended_at = before;
        Heartbeat::report(&one.job, half(&one.job));
        one.heartbeat.write(std::slice::from_ref(&one.job)).await.unwrap();
        assert_eq!(one.job.pulse().extended_at > before, is_extended, "{last:?} ago");
    }
}

#[tokio::test]
async fn nothing_is_written_while_a_transaction_of_the_handler_holds_the_job() {
    let one = one().await;
    one.heartbeat.pause(&one.job, seconds(60)).await;
    Heartbeat::report(&one.job, half(&one.job));
    one.job.pulse().flushed_at = ago(seconds(1));
    one.heartbeat.beat().await;
    assert_eq!(one.of("progress").await, "");
    one.job.pulse().held_until = Some(Instant::now());
    one.heartbeat.beat().await;
    assert_eq!(one.of("progress").await, "50");
}

#[tokio::test]
async fn no_progress_is_written_for_an_attempt_that_is_over() {
    let place = place().await;
    let job = || place.running(WORKER);
    let ended = job().await;
    assert!(writes(&ended));
    ended.end();
    let (lost, settled, completing, flushed) = (job().await, job().await, job().await, job().await);
    lost.cancel(CancelReason::Lost);
    settled.settled.store(true, Ordering::Release);
    completing.completing.store(true, Ordering::Release);
    flushed.last_words.store(true, Ordering::Release);
    for job in [ended, lost, settled, completing, flushed] {
        assert!(!writes(&job), "{job:?}");
    }
    // A handler that should stop goes on reporting until it does.
    let stopping = job().await;
    stopping.cancel(CancelReason::User);
    assert!(writes(&stopping));
}

/// The completion might overtake a report that is on its way.
#[tokio::test]
async fn a_completion_waits_for_the_report_on_its_way_and_includes_the_one_that_waits() {
    let one = one().await;
    Heartbeat::report(&one.job, half(&one.job));
    {
        let _turn = one.heartbeat.shared.turn.lock().await;
        let report = one.heartbeat.last_report(&one.job).await.unwrap();
        assert_eq!(report.percent, Some(50.0), "none is on its way");
        one.job.pulse().trying_since = Some(Instant::now());
        assert!(poll!(&mut Box::pin(one.heartbeat.last_report(&one.job))).is_pending());
    }
    assert!(one.heartbeat.last_report(&one.job).await.is_some());
    assert!(!writes(&one.job));
}

#[tokio::test]
async fn the_last_report_is_written_once_its_row_is_unlocked() {
    let one = one().await;
    one.heartbeat.flush(&one.job).await;
    assert_eq!(one.of("progress").await, "", "there is nothing to write");
    Heartbeat::report(&one.job, half(&one.job));
    let lock = one.lock().await;
    let (flush, free) = (one.heartbeat.flush(&one.job), async {
        tokio::time::sleep(FLUSH_AGAIN / 5).await;
        drop(lock);
    });
    let before = one.job.pulse().written_at;
    tokio::join!(flush, free);
    assert_eq!(one.of("progress").await, "50");
    assert!(one.job.pulse().written_at > before);
}

/// The next attempt begins with the checkpoint; no other report is worth the wait.
#[tokio::test]
async fn flush_waits_for_a_locked_row_with_a_checkpoint_and_gives_other_reports_up() {
    let (with, without) = (one().await, one().await);
    Heartbeat::report(&with.job, checkpoint(&with.job));
    Heartbeat::report(&without.job, half(&without.job));
    let locks = (with.lock().await, without.lock().await);
    let mut kept = Box::pin(with.heartbeat.flush(&with.job));
    let least = FLUSH_AGAIN * u32::try_from(FLUSHES_MAX - 1).unwrap();
    let began = Instant::now();
    tokio::select! {
        () = &mut kept => panic!("it gave the checkpoint up"),
        () = without.heartbeat.flush(&without.job) => {}
    }
    assert!(began.elapsed() >= least && began.elapsed() < least * 2);
    assert!(poll!(&mut kept).is_pending());
    tokio::time::timeout(FLUSH_AGAIN * 2, &mut kept).await.unwrap_err();
    drop(locks);
    kept.await;
    assert_eq!(with.of("checkpoint").await, "7");
}

#[tokio::test]
async fn flush_does_not_retry_the_last_report_of_a_lost_job() {
    let one = one().await;
    Heartbeat::report(&one.job, checkpoint(&one.job));
    one.claimed_by_another().await;
    let began = Instant::now();
    one.heartbeat.flush(&one.job).await;
    assert!(began.elapsed() < FLUSH_AGAIN, "{:?}", began.elapsed());
    one.job.cancel(CancelReason::Lost);
    one.heartbeat.flush(&one.job).await;
}

/// Postgres refuses the write for another reason than its data, such as a missing privilege.
#[tokio::test]
async fn flush_retries_a_refused_checkpoint_up_to_a_limit_and_other_reports_not_at_all() {
    let one = one().await;
    one.break_it().await;
    Heartbeat::report(&one.job, half(&one.job));
    let began = Instant::now();
    one.heartbeat.flush(&one.job).await;
    assert!(began.elapsed() < FLUSH_AGAIN, "it is no checkpoint: {:?}", began.elapsed());
    Heartbeat::report(&one.job, checkpoint(&one.job));
    let mend = async {
        tokio::time::sleep(FLUSH_AGAIN * 3 / 2).await;
        one.mend_it().await;
    };
    tokio::join!(one.heartbeat.flush(&one.job), mend);
    assert_eq!(one.of("checkpoint").await, "7");
    one.break_it().await;
    Heartbeat::report(&one.job, checkpoint(&one.job));
    let began = Instant::now();
    let least = FLUSH_AGAIN * u32::try_from(FLUSHES_MAX - 1).unwrap();
    tokio::time::timeout(least * 2, one.heartbeat.flush(&one.job)).await.unwrap();
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_short_stale_after_shortens_the_interval_of_checks() {
    let place = place().await;
    for (stale_after, every) in [(60, 5), (30, 5), (12, 2)] {
        let rules = Rules { stale_after: seconds(stale_after), ..RULES };
        assert_eq!(look_every(&*place.running_under(rules, WORKER).await), seconds(every));
    }
}

#[tokio::test]
async fn a_job_cannot_be_written_once_writes_have_failed_for_four_fifths_of_stale_after() {
    let place = place().await;
    // stale_after, for how long it was tried, how long ago the last write was; all in seconds.
    for (stale_after, tried, written, is_cut_off) in [
        (60, Some(7), 49, true),
        (60, Some(7), 47, false),
        (60, Some(5), 49, false),
        (60, None, 59, false),
        (12, Some(3), 10, true),
        // One failed check is not enough: they come every two seconds.
        (12, Some(2), 10, false),
        (600, Some(61), 500, true),
        (600, Some(50), 500, false),
    ] {
        let rules = Rules { stale_after: seconds(stale_after), ..RULES };
        let job = place.running_under(rules, WORKER).await;
        let keeps = Rules { on_write_loss: OnWriteLoss::KeepRunning, ..rules };
        let kept = place.running_under(keeps, WORKER).await;
        for job in [&job, &kept] {
            let mut pulse = job.pulse();
            pulse.trying_since = tried.map(|tried| ago(seconds(tried)));
            pulse.written_at = ago(seconds(written));
        }
        assert_eq!(cannot_be_written(&job), is_cut_off, "{stale_after} {tried:?} {written}");
        assert!(!cannot_be_written(&kept), "its kind keeps running");
        job.cut_off();
        assert!(!cannot_be_written(&job), "it is cut off already");
    }
}

/// A process that was frozen does not know yet how its last writes ended.
#[tokio::test]
async fn a_job_that_cannot_be_written_is_cut_off_unless_this_process_has_just_slept() {
    let one = one().await;
    let healthy = one.place.running(WORKER).await;
    let _reservation = run_in(&one.heartbeat.shared.running, &healthy);
    let story = async {
        tokio::time::sleep(WATCH_EVERY / 2).await;
        one.job.pulse().trying_since = Some(ago(seconds(50)));
        one.job.pulse().written_at = ago(seconds(59));
        std::thread::sleep(WATCH_EVERY * 5);
        // The overdue look comes now, and the next one a tenth of a second later.
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!one.job.is_cut_off());
        let began = Instant::now();
        while !one.job.is_cut_off() {
            assert!(began.elapsed() < seconds(10));
            tokio::time::sleep(WATCH_EVERY / 5).await;
        }
        assert!(!healthy.is_cut_off());
    };
    tokio::select! {
        () = one.heartbeat.watch() => panic!("it watches for ever"),
        () = story => {}
    }
}

/// Also if the earlier report is put back after the later one.
#[tokio::test]
async fn a_later_report_replaces_an_earlier_one_field_by_field() {
    let job = place().await.running(WORKER).await;
    let text = |text: &str| Some(text.to_owned());
    let first =
        ProgressWrite { stage: text("a"), percent: Some(1.0), message: text("a"), ..checkpoint(&job) };
    let second = ProgressWrite { stage: text("b"), percent: Some(2.0), ..nothing(&job) };
    let said = |job: &RunningJob| {
        let ProgressWrite { stage, percent, message, checkpoint, .. } = job.pulse().pending.take().unwrap();
        (stage, percent, message, checkpoint)
    };
    let both = (text("b"), Some(2.0), text("a"), text("7"));
    Heartbeat::report(&job, first.clone());
    Heartbeat::report(&job, second.clone());
    assert_eq!(pending_bytes(&job), 1);
    assert_eq!(said(&job), both);
    assert_eq!(pending_bytes(&job), 0);
    Heartbeat::report(&job, second);
    put_back(&job, first.clone());
    assert_eq!(said(&job), both);
    put_back(&job, first);
    assert_eq!(said(&job).0, text("a"));
}
