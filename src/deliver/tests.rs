//! Deliver: what a delivery is answered, whatever the database holds.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    config::Timing,
    proof::{Place, RULES, counted, place},
};

const WORKER: &str = "worker";

/// A worker's, which takes over from others once it has had Postgres for twice `scan_every`.
fn deliver(place: &Place, scan_every: Duration) -> Deliver {
    let running = Running::default();
    let store = place.tenure.store().clone();
    let timing = Timing { scan_every, ..Timing::DEFAULT };
    let heartbeat = Heartbeat::new(store.clone(), running.clone(), timing, WORKER.into());
    let settings = DeliverSettings {
        worker_id: WORKER.into(),
        worker_host: "host".into(),
        prefix: place.config.subject_prefix.as_str().into(),
        payload_bytes_max: 100,
        unknown_kind_after: Duration::from_secs(3600),
        scan_every,
        slots: Arc::new(Slots::shared(10, &[("q".into(), 1)])),
    };
    Deliver::new(store, running, heartbeat, settings)
}

/// One that may take over from the start.
fn deliver_at_once(place: &Place) -> Deliver {
    deliver(place, Duration::ZERO)
}

async fn decide(deliver: &Deliver, delivery: &Delivery) -> Delivered {
    deliver.decide(delivery, |_| Some(RULES)).await
}

fn claim_of(delivered: Delivered) -> Claim {
    match delivered {
        Delivered::Ours(claim, ..) => *claim,
        Delivered::Answer(ack) => panic!("not claimed: {ack:?}"),
        Delivered::Kept => panic!("kept"),
    }
}

fn ack_of(delivered: &Delivered) -> Ack {
    match delivered {
        Delivered::Answer(ack) => *ack,
        Delivered::Ours(claim, ..) => panic!("claimed: {claim:?}"),
        Delivered::Kept => panic!("kept"),
    }
}

fn submission(place: &Place, body: &str, deliveries: i64) -> Delivery {
    let subject = format!("{}.q.k", place.config.subject_prefix);
    Delivery::made_up(place.tenure.queue(), (subject, body.into()), None, 7, deliveries)
}

/// A worker with other limits refused it, and died before it said so to the stream.
#[tokio::test]
async fn a_submission_that_was_refused_is_no_job_when_it_comes_again() {
    let place = place().await;
    let body = format!("{:?}", "x".repeat(200));
    let small = deliver_at_once(&place);
    assert_eq!(ack_of(&decide(&small, &submission(&place, &body, 1)).await), Ack::Never);
    let large = Deliver { payload_bytes_max: 1_000, ..deliver_at_once(&place) };
    assert_eq!(ack_of(&decide(&large, &submission(&place, &body, 2)).await), Ack::Done);
    assert_eq!(place.value("SELECT count(*) FROM tenure.jobs").await, "0");
    assert_eq!(place.value("SELECT count(*) FROM tenure.dead_letter_jobs").await, "1");
}

/// That it was not refused before need not be asked of one that comes for the first time.
#[tokio::test]
async fn a_submission_that_comes_first_is_not_looked_for_among_what_has_ended() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    // Nothing else reads it.
    place.execute("ALTER TABLE tenure.job_history RENAME TO hidden").await;
    claim_of(decide(&deliver, &submission(&place, "1", 1)).await);
    let again = submission(&place, "2", 2);
    assert!(matches!(ack_of(&decide(&deliver, &again).await), Ack::Later(_)), "it was asked after all");
}

/// What the database refuses for a reason that may be mended stays in the stream.
#[tokio::test]
async fn a_submission_that_cannot_be_written_for_now_is_put_off() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    place.execute("ALTER TABLE tenure.jobs RENAME TO hidden").await;
    assert!(matches!(ack_of(&decide(&deliver, &submission(&place, "1", 1)).await), Ack::Later(_)));
    place.execute("ALTER TABLE tenure.hidden RENAME TO jobs").await;
    assert_eq!(place.value("SELECT count(*) FROM tenure.dead_letter_jobs").await, "0");
    claim_of(decide(&deliver, &submission(&place, "1", 2)).await);
}

/// A takeover waits until the worker has had Postgres for two scans: after an outage every owner looks silent.
#[tokio::test]
async fn a_silent_job_is_taken_over_by_a_worker_that_has_had_postgres_for_two_scans() {
    let place = place().await;
    let job = place.claimed_by("other").await.key.job;
    place.make_stale(job).await;
    let ticket = place.ticket(job, 1);
    // Half of it has passed, but not twice.
    let scan_every = Duration::from_secs(4);
    tokio::time::sleep(scan_every.mul_f64(0.6).saturating_sub(place.tenure.store().up_for())).await;
    let cautious = deliver(&place, scan_every);
    let answer = decide(&cautious, &ticket).await;
    assert!(place.tenure.store().up_for() < scan_every * 2, "the machine is too slow for this test");
    assert_eq!(ack_of(&answer), ack_for(&Missed::Stale, 1));
    let claim = claim_of(decide(&deliver_at_once(&place), &ticket).await);
    assert_eq!((claim.key.job, claim.key.token.0, claim.after_reset), (job, 2, true));
}

/// Lost before, it waits: its message stays, since no relay may be alive either.
#[tokio::test]
async fn the_message_of_a_job_taken_over_that_waits_stays_as_the_backstop() {
    let place = place().await;
    let job = place.claimed_by("other").await.key.job;
    place.make_stale(job).await;
    place.execute("UPDATE tenure.jobs SET losses = 3").await;
    let ack = ack_of(&decide(&deliver_at_once(&place), &place.ticket(job, 1)).await);
    let Ack::Later(wait) = ack else { panic!("{ack:?}") };
    assert!((10..60).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "queued");
}

/// Of one that nobody took over the relay knows.
#[tokio::test]
async fn the_message_of_a_job_that_the_relay_publishes_later_is_done() {
    let place = place().await;
    let job = place.job().await;
    place
        .execute(
            "UPDATE tenure.jobs SET scheduled_at = now() + interval '1 h', publish_at = now() + interval '1 h', published_at = NULL",
        )
        .await;
    assert_eq!(ack_of(&decide(&deliver_at_once(&place), &place.ticket(job, 1)).await), Ack::Done);
}

#[tokio::test]
async fn a_claim_of_our_own_whose_answer_was_lost_is_given_back_and_made_again() {
    let place = place().await;
    let lost = place.claimed_by(WORKER).await;
    let claim = claim_of(decide(&deliver_at_once(&place), &place.ticket(lost.key.job, 1)).await);
    assert_eq!((claim.key.token.0, claim.attempt), (2, 1), "no attempt is charged");
    let others = place.claimed_by("other").await;
    let ack = ack_of(&decide(&deliver_at_once(&place), &place.ticket(others.key.job, 1)).await);
    assert!(matches!(ack, Ack::Later(wait) if wait > Duration::from_secs(50)), "{ack:?}");
}

/// Only a message of a later dispatch than the claim's says that the job may have been taken back: the database is asked
/// because of that one alone.
#[tokio::test]
async fn a_message_of_a_running_job_is_kept_unless_a_later_one_than_its_claim_finds_it_taken() {
    let place = place().await;
    let running = place.running(WORKER).await;
    let (job, dispatch) = (running.key.job, running.claim.dispatch);
    let deliver = deliver_at_once(&place);
    let Here::No(reservation) = deliver.running.reserve(job) else { panic!("reserved") };
    reservation.run(running);
    assert!(
        matches!(decide(&deliver, &place.ticket(job, dispatch + 1)).await, Delivered::Kept),
        "it is ours"
    );
    // Taken by another, which this process has not heard.
    place
        .execute(
            "UPDATE tenure.jobs SET fencing_token = 2, claim_id = gen_random_uuid(), worker_id = 'other'",
        )
        .await;
    for earlier in [dispatch - 1, dispatch] {
        let answer = decide(&deliver, &place.ticket(job, earlier)).await;
        assert!(matches!(answer, Delivered::Kept), "dispatch {earlier}");
    }
    assert_eq!(ack_of(&decide(&deliver, &place.ticket(job, dispatch + 1)).await), Ack::Later(ENDING));
    drop(reservation);
}

/// What a refusal says of the queue, its slots hear.
#[tokio::test]
async fn slots_hear_that_their_queue_is_paused_or_full() {
    let place = place().await;
    let named =
        Named { job: place.job().await, queue: "q".into(), kind: "k".into(), dispatch: None, cleared: false };
    let told = |missed: &Missed, room: Option<usize>| {
        let deliver = deliver_at_once(&place);
        deliver.slots["q"].settings(false, room);
        deliver.answer(&named, missed, 1);
        (deliver.slots["q"].is_held(), deliver.slots["q"].is_limited())
    };
    assert_eq!(told(&Missed::Free, None), (false, false));
    assert_eq!(told(&Missed::Paused, None), (true, false));
    assert_eq!(told(&Missed::Full, None), (true, true), "news: it is limited");
    assert_eq!(told(&Missed::Full, Some(3)), (false, true), "the claim knows better");
    assert_eq!(told(&Missed::Stale, None), (false, false));
}

#[tokio::test]
async fn a_message_that_is_given_up_is_counted_and_no_other() {
    let place = place().await;
    let terminated = |reason: &str| counted(&format!("tenure_terminated_messages_total{{reason={reason}}}"));
    let named = Named {
        job: place.job().await,
        queue: "q".into(),
        kind: "other".into(),
        dispatch: None,
        cleared: false,
    };
    let deliver = deliver_at_once(&place);
    let before = terminated("foreign");
    deliver.answer(&named, &Missed::Foreign, 1);
    assert_eq!(terminated("foreign"), before + 1);
    let before = terminated("superseded");
    deliver.answer(&named, &Missed::Superseded, 1);
    assert_eq!(terminated("superseded"), before);
}

/// A statement that was cut off may still be carried out: its job is looked after for three deadlines, not longer.
#[tokio::test]
async fn what_was_not_answered_is_looked_after_for_three_deadlines() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    let late = place.tenure.store().within() * 3;
    let (fresh, old) = (place.job().await, place.job().await);
    let ago = |time: Duration| Instant::now().checked_sub(time).unwrap();
    let sent = HashMap::from([(fresh, ago(late - Duration::from_secs(5))), (old, ago(late))]);
    *deliver.unanswered.lock().unwrap() = sent;
    deliver.give_back_unanswered().await.unwrap();
    let left: Vec<_> = deliver.unanswered.lock().unwrap().keys().copied().collect();
    assert_eq!(left, [fresh]);
    // It was won after all.
    place.claim(fresh, WORKER).await.unwrap();
    deliver.give_back_unanswered().await.unwrap();
    assert_eq!(place.value(&format!("SELECT status FROM tenure.jobs WHERE id = '{fresh}'")).await, "queued");
}
