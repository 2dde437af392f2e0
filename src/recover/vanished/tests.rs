//! Vanished: which worker may judge which processes, and after which looks.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::proof::{Place, end, place, place_with_nats, seconds};

const RENEW: Duration = seconds(10);

fn timing() -> Timing {
    Timing { renew_every: RENEW, ..Timing::DEFAULT }
}

/// A worker that renews its row every four seconds, was last seen this many renewals ago, and owns a job. Its renewals
/// are shorter than this process's own, which has just started and judges no worker that was silent for longer.
async fn silent_for(place: &Place, renewals: f64, subject: &str) {
    let claim = place.claimed_by("dead").await;
    let sql = format!(
        "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, probe_subject, renew_every, last_seen_at) \
         VALUES ('dead', 'h', 1, '{{q}}', 1, '0', '{subject}', interval '4 s', \
                 clock_timestamp() - interval '4 s' * {renewals})"
    );
    place.execute(&sql).await;
    let sql = format!(
        "UPDATE tenure.jobs SET last_activity_at = now() - interval '1 min' WHERE id = '{}'",
        claim.key.job
    );
    place.execute(&sql).await;
}

async fn look_once(place: &Place) -> usize {
    match looked(place).await {
        Looked::Reset(jobs) => jobs,
        Looked::Unanswered => 0,
    }
}

async fn looked(place: &Place) -> Looked {
    look(place.tenure.store(), place.tenure.nats(), &timing(), "me", &Hooks::default()).await.unwrap()
}

/// Moves the last look, or the suspicion, this many renewals into the past.
async fn set(place: &Place, column: &str, renewals: f64) {
    let sql = format!(
        "UPDATE tenure.workers SET {column} = clock_timestamp() - interval '10 s' * {renewals} WHERE {column} IS NOT NULL \
         AND worker_id = 'dead'"
    );
    place.execute(&sql).await;
}

async fn of(place: &Place, column: &str) -> String {
    place.value(&format!("SELECT {column} FROM tenure.workers WHERE worker_id = 'dead'")).await
}

#[test]
fn a_worker_looks_five_times_in_a_renewal() {
    assert_eq!(look_every(&timing()), seconds(2));
}

#[test]
fn a_worker_that_has_seen_an_outage_judges_no_other_for_three_renewals() {
    let up = |postgres, nats, postgres_never_broke, nats_never_broke| Up {
        postgres: seconds(postgres),
        nats: seconds(nats),
        postgres_never_broke,
        nats_never_broke,
    };
    let settled = |up: Up| up.has_settled(&timing());
    assert!(settled(up(30, 30, false, false)));
    assert!(!settled(up(29, 30, false, false)) && !settled(up(30, 29, false, false)));
    assert!(settled(up(1, 1, true, true)));
    assert!(!settled(up(1, 1, true, false)) && !settled(up(1, 1, false, true)));
    assert!(settled(up(31, 31, true, false)));
}

#[test]
fn a_worker_that_has_just_started_judges_only_those_that_renewed_their_row_shortly_before() {
    let heard = |postgres, nats, within| {
        let up = Up {
            postgres: seconds(postgres),
            nats: seconds(nats),
            postgres_never_broke: true,
            nats_never_broke: true,
        };
        up.heard_within(seconds(within), &timing()).map(|time| time.as_secs())
    };
    // A call of 10 s, and two fifths of a renewal.
    assert_eq!((heard(13, 99, 10), heard(99, 13, 10), heard(14, 14, 10)), (Some(25), Some(25), None));
    assert_eq!((heard(0, 0, 10), heard(1, 1, 10)), (Some(12), Some(13)));
    // Three renewals at most.
    assert_eq!((heard(29, 29, 100), heard(30, 30, 100)), (Some(41), None));
}

/// The two looks must be far enough apart, and each must find no subscriber.
#[tokio::test]
async fn a_worker_without_a_subscriber_on_two_looks_is_gone() {
    let place = place().await;
    silent_for(&place, 2.5, "nobody").await;
    // Somebody said hello to a gateway under many names, and fell silent before. One look probes a hundred.
    place
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, language, renew_every,
                    probe_subject, last_seen_at, probed_at) \
             SELECT 'made-up-' || n, 'h', 1, '{q}', 1, '0', 'test', interval '4 s', 'made-up.' || n,
                    clock_timestamp() - interval '60 s', clock_timestamp() - interval '60 s'
               FROM generate_series(1, 100) n",
        )
        .await;
    assert_eq!(look_once(&place).await, 0);
    assert_ne!(of(&place, "suspected_at").await, "");
    // Two fifths of a renewal apart; meanwhile other workers look, every fifth.
    for (suspected, probed, reset) in [(0.2, 0.3, 0), (0.6, 0.05, 0), (0.6, 0.3, 1)] {
        set(&place, "suspected_at", suspected).await;
        set(&place, "probed_at", probed).await;
        assert_eq!(look_once(&place).await, reset, "{suspected} {probed}");
    }
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "queued");
}

#[tokio::test]
async fn a_job_that_postgres_refuses_to_write_keeps_no_other_of_its_worker_from_being_reset() {
    let place = place().await;
    silent_for(&place, 2.5, "nobody").await;
    let refused = place.claimed_by("dead").await.key.job;
    place.claimed_by("dead").await;
    place.execute("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 min'").await;
    place.refuses(refused).await;
    let mut reset = look_once(&place).await;
    // A refused transaction unlocks its rows a moment after its answer: meanwhile a statement skips them.
    for _ in 0..50 {
        set(&place, "suspected_at", 0.6).await;
        set(&place, "probed_at", 0.3).await;
        reset += look_once(&place).await;
        if reset == 2 {
            break;
        }
    }
    assert_eq!(reset, 2);
    assert_eq!(of(&place, "worker_id").await, "dead", "it owns a job still");
}

#[tokio::test]
async fn a_worker_without_a_connection_to_nats_judges_no_other() {
    let (place, server) = place_with_nats().await;
    silent_for(&place, 2.5, "nobody").await;
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    assert!(has_settled(store, nats, &timing()));
    end(server, &place).await;
    assert!(!has_settled(store, nats, &timing()));
    assert_eq!(look_once(&place).await, 0);
    assert_eq!(of(&place, "probed_at").await, "", "it sent no probe");
}

/// Its row is only late, even though it has no subscriber: the next look probes it again.
#[tokio::test]
async fn a_worker_that_has_missed_one_renewal_is_not_forgotten() {
    let place = place().await;
    silent_for(&place, 1.6, "nobody").await;
    place.execute("DELETE FROM tenure.jobs").await;
    assert_eq!(look_once(&place).await, 0);
    assert_ne!(of(&place, "suspected_at").await, "");
}

#[tokio::test]
async fn an_answer_clears_the_suspicion() {
    let place = place().await;
    let subject = place.tenure.nats().new_probe_subject();
    silent_for(&place, 2.5, &subject).await;
    look_once(&place).await;
    assert_ne!(of(&place, "suspected_at").await, "");
    let mut control = place.tenure.nats().listen(&subject).await.unwrap();
    let answers = tokio::spawn(async move { while control.next().await.is_some() {} });
    set(&place, "probed_at", 1.0).await;
    set(&place, "suspected_at", 1.0).await;
    assert_eq!(look_once(&place).await, 0);
    assert_eq!(of(&place, "suspected_at").await, "");
    answers.abort();
}

/// The worker may be frozen.
#[tokio::test]
async fn a_subscriber_that_does_not_answer_is_neither_suspected_nor_cleared() {
    let place = place().await;
    let subject = place.tenure.nats().new_probe_subject();
    let _frozen = place.tenure.nats().listen(&subject).await.unwrap();
    silent_for(&place, 2.5, &subject).await;
    assert_eq!(looked(&place).await, Looked::Unanswered);
    assert_eq!(of(&place, "suspected_at").await, "");
    place
        .execute("UPDATE tenure.workers SET suspected_at = now() - interval '1 min', probed_at = NULL")
        .await;
    assert_eq!(look_once(&place).await, 0);
    assert_ne!(of(&place, "suspected_at").await, "");
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "processing");
}
