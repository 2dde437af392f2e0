//! Limits: the answers that a producer gets, with a database to count in.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use futures::poll;
use proptest::prelude::*;

use super::*;
use crate::proof::{Counts, Place, place};

const QUEUE: &str = "q";

proptest! {
    /// Workers drain the queue, and the producer wants more than fits.
    #[test]
    fn one_producer_never_exceeds_the_limit(
        limit in 1..200_u64,
        steps in prop::collection::vec((1..20_u64, 0..30_u64, 0..300_u64), 1..200),
    ) {
        let mut now = Instant::now();
        let mut queued = 0_u64;
        let mut counted: Option<Counted> = None;
        for (jobs, drained, passed_ms) in steps {
            now += Duration::from_millis(passed_ms);
            queued = queued.saturating_sub(drained);
            let answer = counted.as_mut().map_or(Answer::CountAgain, |counted| counted.admit(jobs, now));
            let answer = if answer == Answer::CountAgain {
                let mut new = Counted::new(queued, limit, jobs, now);
                let answer = new.admit(jobs, now);
                counted = Some(new);
                answer
            } else {
                answer
            };
            if answer == Answer::Admitted {
                queued += jobs;
            }
            prop_assert!(queued <= limit, "{queued} of {limit}");
        }
    }
}

#[test]
fn a_count_lets_through_a_tenth_of_the_room_or_just_the_jobs_that_asked() {
    let now = Instant::now();
    let left = |queued, jobs| Counted::new(queued, 100, jobs, now).left;
    assert_eq!((left(0, 1), left(40, 1), left(40, 30), left(99, 1)), (10, 6, 30, 1));
    assert_eq!((left(99, 2), left(100, 1), left(120, 1)), (0, 0, 0));
    assert_eq!(left(90, 10), 10, "just as many as fit");
}

#[test]
fn a_count_lasts_a_second_and_lets_no_more_through_than_it_left() {
    let now = Instant::now();
    let just = |time: Duration| now + time.saturating_sub(Duration::from_millis(1));
    let mut counted = Counted::new(0, 100, 1, now);
    assert_eq!(counted.admit(6, now), Answer::Admitted);
    assert_eq!(counted.admit(5, now), Answer::CountAgain, "four are left");
    assert_eq!(counted.admit(3, just(COUNT_LASTS)), Answer::Admitted);
    assert_eq!(counted.admit(1, now + COUNT_LASTS), Answer::CountAgain);
    assert_eq!(counted.admit(1, now), Answer::Admitted, "just the last one");
    assert_eq!(counted.admit(1, now), Answer::CountAgain);
    // A number of jobs that did not fit still does not, nor does a larger one; a smaller one may.
    let mut full = Counted::new(95, 100, 10, now);
    for jobs in [10, 11] {
        assert_eq!(full.admit(jobs, just(FULL_LASTS)), Answer::Full { queued: 95 });
        assert_eq!(full.admit(jobs, now + FULL_LASTS), Answer::CountAgain);
    }
    assert_eq!(full.admit(9, now), Answer::CountAgain);
}

#[test]
fn a_queue_is_counted_the_more_often_the_less_room_it_has() {
    let now = Instant::now();
    let mut counts = 0;
    let mut queued = 0;
    let mut counted = Counted::new(0, 10_000, 1, now);
    while queued < 10_000 {
        match counted.admit(1, now) {
            Answer::Admitted => queued += 1,
            Answer::Full { .. } | Answer::CountAgain => {
                counted = Counted::new(queued, 10_000, 1, now);
                counts += 1;
            }
        }
    }
    assert!((50..100).contains(&counts), "{counts}");
    assert_eq!(Counted::new(queued, 10_000, 1, now).admit(1, now), Answer::Full { queued: 10_000 });
    let later = now + FULL_LASTS;
    assert_eq!(Counted::new(queued, 10_000, 1, now).admit(1, later), Answer::CountAgain);
}

/// The queue `q` with this limit, in which this number of jobs wait.
async fn limited(max_queued: u64, queued: usize) -> (Place, Limits) {
    let place = place().await;
    for _ in 0..queued {
        place.job().await;
    }
    set_limit(&place, max_queued).await;
    let limits = Limits::new(place.tenure.store().clone(), place.tenure.nats().clone());
    (place, limits)
}

async fn set_limit(place: &Place, max_queued: u64) {
    let sql = format!(
        "INSERT INTO tenure.queues (queue, max_queued) VALUES ('q', {max_queued}) \
         ON CONFLICT (queue) DO UPDATE SET max_queued = excluded.max_queued"
    );
    place.execute(&sql).await;
}

async fn admit(limits: &Limits, jobs: usize) -> Result<Admitted, EnqueueError> {
    limits.admit(QUEUE, jobs, Instant::now() + Duration::from_secs(5)).await
}

/// Returns the number of queued jobs that a refusal names.
fn refused(answer: Result<Admitted, EnqueueError>) -> u64 {
    match answer {
        Err(EnqueueError::QueueFull { queued, .. }) => queued,
        other => panic!("not refused: {other:?}"),
    }
}

fn of(limits: &Limits) -> Arc<OfQueue> {
    limits.known().queues.entry(QUEUE.into()).or_default().clone()
}

async fn limit_of(limits: &Limits) -> Option<u64> {
    limits.limit(QUEUE).await.unwrap().map(|of| of.max_queued)
}

fn on_their_way(limits: &Limits) -> u64 {
    of(limits).on_their_way.load(Ordering::Acquire)
}

#[tokio::test]
async fn a_queue_takes_the_jobs_that_fit_and_not_one_more() {
    let (_place, limits) = limited(10, 6).await;
    assert_eq!(refused(admit(&limits, 5).await), 6);
    let all = admit(&limits, 4).await.unwrap();
    assert_eq!(on_their_way(&limits), 4);
    drop(all);
    assert_eq!(on_their_way(&limits), 0);
    // A queue without a limit is not counted.
    drop(limits.admit("other", 1_000, Instant::now() + Duration::from_secs(5)).await.unwrap());
    assert!(!limits.known().queues.contains_key("other"));
}

#[tokio::test]
async fn a_refusal_is_counted() {
    let (_place, limits) = limited(2, 1).await;
    let counts = Counts::default();
    let _recording = counts.record();
    refused(admit(&limits, 3).await);
    assert_eq!(counts.of("tenure_enqueues_refused_total{queue=q}"), 3);
}

/// Limits are read again after a second.
#[tokio::test]
async fn a_limit_is_believed_for_a_second() {
    let (place, limits) = limited(10, 1).await;
    assert_eq!(limit_of(&limits).await, Some(10));
    set_limit(&place, 20).await;
    // As if the limit had just been read, then as if a second ago.
    limits.known().read_at = Some(Instant::now() + LIMITS_LAST);
    assert_eq!(limit_of(&limits).await, Some(10));
    limits.known().read_at = Instant::now().checked_sub(LIMITS_LAST);
    assert_eq!(limit_of(&limits).await, Some(20));
    // The view of a queue goes with its limit.
    drop(admit(&limits, 1).await.unwrap());
    place.execute("DELETE FROM tenure.queues").await;
    limits.known().read_at = None;
    assert_eq!(limit_of(&limits).await, None);
    assert!(limits.known().queues.is_empty());
}

/// A count may have seen the jobs on their way or not: a producer that waits for them finds out.
#[tokio::test]
async fn a_producer_waits_for_the_jobs_on_their_way_if_they_decide() {
    let (_place, limits) = limited(10, 5).await;
    drop(admit(&limits, 1).await.unwrap());
    let forget = || async {
        *of(&limits).counted.lock().await = LastCount::default();
        Instant::now()
    };
    of(&limits).on_their_way.store(3, Ordering::Release);
    let began = forget().await;
    drop(admit(&limits, 2).await.unwrap());
    assert!(began.elapsed() < LANDED_MAX / 2, "there is room for all: {:?}", began.elapsed());

    of(&limits).on_their_way.store(4, Ordering::Release);
    let began = forget().await;
    assert_eq!(refused(admit(&limits, 2).await), 9, "they never land");
    assert!(began.elapsed() >= LANDED_MAX, "{:?}", began.elapsed());

    let began = forget().await;
    assert_eq!(refused(admit(&limits, 6).await), 9, "there is no room, wherever they are");
    assert!(began.elapsed() < LANDED_MAX / 2, "{:?}", began.elapsed());

    forget().await;
    let mut waits = Box::pin(admit(&limits, 5));
    let landing = async {
        tokio::time::sleep(LANDED_MAX / 5).await;
        of(&limits).on_their_way.store(0, Ordering::Release);
        of(&limits).landed.notify_one();
    };
    let (answer, ()) = tokio::join!(&mut waits, landing);
    drop(answer.unwrap());
}

/// Notified of a landing, a waiting producer asks at once, not when its time has passed.
#[tokio::test]
async fn a_landing_notifies_the_producer_that_waits() {
    let (_place, limits) = limited(10, 1).await;
    let admitted = admit(&limits, 2).await.unwrap();
    let of = of(&limits);
    let landed = of.landed.notified();
    drop(admitted);
    timeout(Duration::from_secs(5), landed).await.unwrap();
}

/// Each of many callers would wait as long again.
#[tokio::test]
async fn a_count_that_failed_answers_those_who_waited_for_it_and_those_who_come_just_after() {
    let (place, limits) = limited(10, 1).await;
    assert_eq!(limit_of(&limits).await, Some(10));
    place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    admit(&limits, 1).await.unwrap_err();
    place.execute("ALTER TABLE tenure.hidden RENAME TO jobs").await;
    let error = {
        let of = of(&limits);
        let mut last = of.counted.lock().await;
        let (at, error) = last.failed.as_mut().unwrap();
        // It failed just now.
        *at = Instant::now() + FAILURE_LASTS * 20;
        error.clone()
    };
    admit(&limits, 1).await.unwrap_err();
    // A while after that, Postgres is asked again.
    of(&limits).counted.lock().await.failed =
        Some((Instant::now().checked_sub(FAILURE_LASTS).unwrap(), error.clone()));
    drop(admit(&limits, 1).await.unwrap());

    // The failure answers a caller that waited for the count, however late.
    let of = of(&limits);
    let mut last = of.counted.lock().await;
    let mut waits = Box::pin(admit(&limits, 1));
    assert!(poll!(&mut waits).is_pending());
    tokio::time::sleep(Duration::from_millis(1)).await;
    *last = LastCount { counted: None, failed: Some((Instant::now(), error)) };
    tokio::time::sleep(FAILURE_LASTS + Duration::from_millis(20)).await;
    drop(last);
    waits.await.unwrap_err();
}
