//! Deliver: the ack of a delivery, for each state of its job in Postgres.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    claims::{Claimant, claim_all, claim_limited, claims_that_fit},
    *,
};
use crate::{
    config::Timing,
    lanes::Lanes,
    proof::{Counts, Place, RULES, ago, place, place_with},
    queues::QueueLimits,
    store::batch::ITEMS_MAX,
};

const WORKER: &str = "worker";

/// The `Deliver` of a worker that takes jobs over once it has had Postgres for twice `scan_every`.
fn deliver(place: &Place, scan_every: Duration) -> Deliver {
    let running = Running::default();
    let store = place.tenure.store().clone();
    let timing = Timing { scan_every, ..Timing::DEFAULT };
    let heartbeat = Heartbeat::new(store.clone(), running.clone(), timing, WORKER.into(), None);
    let settings = DeliverSettings {
        worker_id: WORKER.into(),
        worker_host: "host".into(),
        prefix: place.config.subject_prefix.as_str().into(),
        payload_bytes_max: 100,
        unknown_kind_after: Duration::from_secs(3600),
        scan_every,
        slots: Arc::new(Slots::shared(10, &[("q".into(), 1)])),
        hooks: Hooks::default(),
    };
    Deliver::new(store, running, heartbeat, settings)
}

/// The same, without the wait.
fn deliver_at_once(place: &Place) -> Deliver {
    deliver(place, Duration::ZERO)
}

async fn decide(deliver: &Deliver, delivery: &Delivery) -> Delivered {
    deliver.decide(delivery, |_| Some(RULES)).await
}

fn claim_of(delivered: Delivered) -> Claim {
    match delivered {
        Delivered::Ours(claim, ..) => *claim,
        Delivered::Missed(missed) => panic!("not claimed: {missed:?}"),
        Delivered::Kept => panic!("kept"),
    }
}

fn ack_of(delivered: &Delivered) -> Ack {
    match delivered {
        Delivered::Missed(missed) => ack_for(missed, 1),
        Delivered::Ours(claim, ..) => panic!("claimed: {claim:?}"),
        Delivered::Kept => panic!("kept"),
    }
}

fn submission(place: &Place, body: &str, deliveries: i64) -> Delivery {
    let subject = format!("{}.q.k", place.config.subject_prefix);
    Delivery::made_up(place.tenure.nats(), (subject, body.into()), None, 7, deliveries)
}

/// A worker with other limits refused it, and died before its ack.
#[tokio::test]
async fn a_refused_submission_does_not_become_a_job_when_it_is_redelivered() {
    let place = place().await;
    let body = format!("{:?}", "x".repeat(200));
    let small = deliver_at_once(&place);
    assert_eq!(ack_of(&decide(&small, &submission(&place, &body, 1)).await), Ack::Never);
    let large = Deliver { payload_bytes_max: 1_000, ..deliver_at_once(&place) };
    assert_eq!(ack_of(&decide(&large, &submission(&place, &body, 2)).await), Ack::Done);
    assert_eq!(place.value("SELECT count(*) FROM tenure.jobs").await, "0");
    assert_eq!(place.value("SELECT count(*) FROM tenure.dead_letter_jobs").await, "1");
}

/// Only a redelivered submission may have been refused before.
#[tokio::test]
async fn the_first_delivery_of_a_submission_does_not_read_the_history() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    // Nothing else reads it.
    place.execute("ALTER TABLE tenure.job_history RENAME TO hidden").await;
    claim_of(decide(&deliver, &submission(&place, "1", 1)).await);
    let again = submission(&place, "2", 2);
    assert!(
        matches!(ack_of(&decide(&deliver, &again).await), Ack::Later(_)),
        "a redelivery reads the history"
    );
}

/// Postgres refuses the data itself, for a reason that tenure does not know.
#[tokio::test]
async fn a_submission_that_postgres_cannot_store_becomes_a_dead_letter() {
    let place = place().await;
    place
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'too odd' USING ERRCODE = '22023'; END $$",
        )
        .await;
    place.execute("CREATE TRIGGER refuse BEFORE INSERT ON tenure.jobs EXECUTE FUNCTION refuse()").await;
    let deliver = deliver_at_once(&place);
    assert_eq!(ack_of(&decide(&deliver, &submission(&place, "1", 1)).await), Ack::Never);
    let error = place.value("SELECT last_error FROM tenure.dead_letter_jobs").await;
    assert!(error.contains("too odd"), "{error}");
}

/// An operator may correct the reason.
#[tokio::test]
async fn a_submission_that_postgres_refuses_for_now_stays_in_the_stream() {
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
async fn a_worker_takes_a_stale_job_over_once_it_has_had_postgres_for_two_scans() {
    let place = place().await;
    let job = place.claimed_by("other").await.key.job;
    place.make_stale(job).await;
    let ticket = place.ticket(job, 1);
    // More than half of `scan_every` has passed, but less than twice.
    let scan_every = Duration::from_secs(4);
    tokio::time::sleep(scan_every.mul_f64(0.6).saturating_sub(place.tenure.store().up_for())).await;
    let cautious = deliver(&place, scan_every);
    let answer = decide(&cautious, &ticket).await;
    assert!(place.tenure.store().up_for() < scan_every * 2, "the machine is too slow for this test");
    assert_eq!(ack_of(&answer), ack_for(&Missed::Stale, 1));
    let claim = claim_of(decide(&deliver_at_once(&place), &ticket).await);
    assert_eq!((claim.key.job, claim.key.token.0, claim.after_reset), (job, 2, true));
}

/// The job was lost before, so it waits. The relay may be gone, too.
#[tokio::test]
async fn the_message_of_a_job_that_waits_after_a_takeover_stays_as_the_backstop() {
    let place = place().await;
    let job = place.claimed_by("other").await.key.job;
    place.make_stale(job).await;
    place.execute("UPDATE tenure.jobs SET losses = 3").await;
    let ack = ack_of(&decide(&deliver_at_once(&place), &place.ticket(job, 1)).await);
    let Ack::Later(wait) = ack else { panic!("{ack:?}") };
    assert!((10..60).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "queued");
}

/// No delivery can start a job that its lane holds: its message would only stay in the stream.
#[tokio::test]
async fn the_message_of_a_job_that_goes_back_to_its_lane_after_a_takeover_is_acknowledged() {
    let place = place().await;
    let job = place.claimed_by("other").await.key.job;
    place.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    place.execute("UPDATE tenure.jobs SET lane = 'a'").await;
    place.make_stale(job).await;
    let ack = ack_of(&decide(&deliver_at_once(&place), &place.ticket(job, 1)).await);
    assert_eq!(place.value("SELECT status FROM tenure.jobs").await, "queued");
    assert_eq!(ack, Ack::Done);
}

#[tokio::test]
async fn a_takeover_of_a_jobs_last_attempt_makes_it_a_dead_letter() {
    let place = place().await;
    let counts = Counts::default();
    let _recording = counts.record();
    let died = || counts.of("tenure_dead_letters_total{category=lost}");
    for (attempts, is_last) in [(5, 0), (1, 1)] {
        let job = place.claimed_by("other").await.key.job;
        place.make_stale(job).await;
        place.execute(&format!("UPDATE tenure.jobs SET max_attempts = {attempts}")).await;
        let answer = decide(&deliver_at_once(&place), &place.ticket(job, 1)).await;
        assert_eq!(died(), is_last);
        if is_last == 1 {
            assert_eq!(ack_of(&answer), Ack::Done);
        }
    }
}

/// The relay knows of a job that waits, unless this worker has just taken it over.
#[tokio::test]
async fn the_message_of_a_job_that_the_relay_publishes_later_is_acknowledged() {
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
async fn a_worker_releases_its_own_claim_whose_answer_was_lost_and_claims_again() {
    let place = place().await;
    let lost = place.claimed_by(WORKER).await;
    let claim = claim_of(decide(&deliver_at_once(&place), &place.ticket(lost.key.job, 1)).await);
    assert_eq!((claim.key.token.0, claim.attempt), (2, 1), "no attempt is charged");
    let others = place.claimed_by("other").await;
    let ack = ack_of(&decide(&deliver_at_once(&place), &place.ticket(others.key.job, 1)).await);
    assert!(matches!(ack, Ack::Later(wait) if wait > Duration::from_secs(50)), "{ack:?}");
}

/// Only a message of a later dispatch than the claim's means that the job may have been reset; only then does the worker
/// ask Postgres.
#[tokio::test]
async fn a_message_of_a_running_job_is_kept_unless_its_later_dispatch_reveals_another_owner() {
    let place = place().await;
    let running = place.running(WORKER).await;
    let (job, dispatch) = (running.key.job, running.claim.dispatch);
    let deliver = deliver_at_once(&place);
    let LocalJob::Unknown(reservation) = deliver.running.reserve(job) else { panic!("reserved") };
    reservation.run(running);
    assert!(
        matches!(decide(&deliver, &place.ticket(job, dispatch + 1)).await, Delivered::Kept),
        "it is ours"
    );
    // Another worker claims the job; this process does not know yet.
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

#[tokio::test]
async fn a_refused_claim_marks_the_slots_of_a_paused_or_full_queue() {
    let place = place().await;
    let named = JobRef {
        job: place.job().await,
        queue: "q".into(),
        kind: "k".into(),
        dispatch: None,
        cleared: false,
    };
    let marked = |missed: &Missed, room: Option<usize>| {
        let deliver = deliver_at_once(&place);
        deliver.slots["q"].settings(false, room, deliver.slots["q"].asks());
        deliver.answer(&named, missed.clone(), 1);
        (deliver.slots["q"].is_held(), deliver.slots["q"].is_limited())
    };
    assert_eq!(marked(&Missed::Free, None), (false, false));
    assert_eq!(marked(&Missed::Paused, None), (true, false));
    assert_eq!(marked(&Missed::Full, None), (true, true), "the worker learns that the queue is limited");
    assert_eq!(marked(&Missed::Full, Some(3)), (false, true), "the claim's room stands");
    assert_eq!(marked(&Missed::Stale, None), (false, false));
}

#[tokio::test]
async fn only_a_terminated_message_is_counted() {
    let place = place().await;
    let counts = Counts::default();
    let _recording = counts.record();
    let terminated =
        |reason: &str| counts.of(&format!("tenure_terminated_messages_total{{reason={reason}}}"));
    let named = JobRef {
        job: place.job().await,
        queue: "q".into(),
        kind: "other".into(),
        dispatch: None,
        cleared: false,
    };
    let deliver = deliver_at_once(&place);
    deliver.answer(&named, Missed::Foreign, 1);
    deliver.answer(&named, Missed::Superseded, 1);
    assert_eq!((terminated("foreign"), terminated("superseded")), (1, 0));
}

/// Postgres may still run a claim for a while after its call was dropped.
#[tokio::test]
async fn an_unanswered_claim_is_watched_for_three_deadlines_and_no_longer() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    let late = place.tenure.store().within() * 3;
    let (fresh, old) = (place.job().await, place.job().await);
    let sent = HashMap::from([(fresh, ago(late.mul_f64(0.8))), (old, ago(late))]);
    *deliver.unanswered.lock().unwrap() = sent;
    deliver.release_unanswered().await.unwrap();
    let left: Vec<_> = deliver.unanswered.lock().unwrap().keys().copied().collect();
    assert_eq!(left, [fresh]);
    // The claim arrives late, and wins.
    place.claim(fresh, WORKER).await.unwrap();
    deliver.release_unanswered().await.unwrap();
    assert_eq!(place.value(&format!("SELECT status FROM tenure.jobs WHERE id = '{fresh}'")).await, "queued");
}

/// Postgres refuses to write one of the jobs.
#[tokio::test]
async fn an_unanswered_claim_that_cannot_be_released_keeps_no_other() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    let jobs = [place.claimed_by(WORKER).await.key.job, place.claimed_by(WORKER).await.key.job];
    // No claim of them can be under way any more.
    let sent_at = ago(place.tenure.store().within() * 3);
    *deliver.unanswered.lock().unwrap() = jobs.map(|job| (job, sent_at)).into();
    place.raise_once("22023").await;
    for queued in ["1", "2"] {
        deliver.release_unanswered().await.unwrap();
        let count = "SELECT count(*) FROM tenure.jobs WHERE status = 'queued'";
        assert_eq!(place.value(count).await, queued);
    }
    assert!(deliver.unanswered.lock().unwrap().is_empty());
}

/// The first waits are short, for a rolling deploy; none is longer than half of `unknown_kind_after`.
#[tokio::test]
async fn a_job_of_an_unknown_kind_waits_longer_with_each_delivery() {
    let place = place().await;
    let deliver = deliver_at_once(&place);
    let job = place.job().await;
    let wait = async |deliver: &Deliver, deliveries| {
        let mut delivery = place.ticket(job, 1);
        delivery.deliveries = deliveries;
        match ack_of(&deliver.decide(&delivery, |_| None).await) {
            Ack::Later(wait) => wait.as_secs(),
            ack => panic!("{ack:?}"),
        }
    };
    for (deliveries, times) in [(1, 1), (2, 2), (3, 4), (6, 32), (100, 32)] {
        let wait = wait(&deliver, deliveries).await;
        assert!((15 * times..25 * times).contains(&wait), "{wait} s after {deliveries}");
    }
    let hasty = Deliver { unknown_kind_after: Duration::from_secs(20), ..deliver };
    assert_eq!(wait(&hasty, 6).await, 10);
}

#[tokio::test]
async fn a_job_whose_kind_was_unknown_for_too_long_becomes_a_dead_letter_that_says_so() {
    let place = place().await;
    let job = place.job().await;
    place.execute("UPDATE tenure.jobs SET put_off_since = now() - interval '2 h'").await;
    let deliver = Deliver { unknown_kind_after: Duration::from_secs(5_400), ..deliver_at_once(&place) };
    assert_eq!(ack_of(&deliver.decide(&place.ticket(job, 1), |_| None).await), Ack::Done);
    let error = place.value("SELECT last_error FROM tenure.dead_letter_jobs").await;
    assert!(error.starts_with("no worker knew the kind \"k\" within 1.5 h"), "{error}");
}

async fn slow_place() -> Place {
    place_with(|config| config.timing.database_within = Duration::from_secs(4)).await
}

#[tokio::test]
async fn a_job_that_no_claim_can_have_becomes_a_dead_letter_while_others_are_claimed() {
    let place = slow_place().await;
    let deliver = deliver_at_once(&place);
    buries(&place, &deliver, &deliver, "PERFORM pg_sleep(6)").await;
}

/// Each worker behind a gateway has claims of its own.
#[tokio::test]
async fn a_job_that_no_claim_behind_a_gateway_can_have_becomes_a_dead_letter() {
    let place = slow_place().await;
    let deliver = deliver_at_once(&place);
    let [one, two] = ["q/one", "q/two"].map(|worker| deliver.claiming_for(worker, "host", HashMap::new()));
    // A claim that wins in the end would stay the worker's, which gives it back by its beats.
    buries(&place, &one, &two, "PERFORM pg_sleep(6); RAISE EXCEPTION 'too late'").await;
}

#[tokio::test]
async fn a_job_that_no_claim_of_a_limited_queue_can_have_becomes_a_dead_letter() {
    let place = slow_place().await;
    place.tenure.limit_queue("q", QueueLimits::new().max_running(1_000)).await.unwrap();
    let deliver = deliver_at_once(&place);
    // From now on it knows of the limit.
    claim_limited(&claimant(&deliver), &deliver.slots["q"], &[request(place.job().await)]).await;
    buries(&place, &deliver, &deliver, "PERFORM pg_sleep(6)").await;
}

/// Decides about a delivery. In a limited queue it has no room for as long as another statement has the limit.
async fn decide_with_room(deliver: &Deliver, delivery: &Delivery) -> Delivered {
    for _ in 0..100 {
        match decide(deliver, delivery).await {
            Delivered::Missed(Missed::Full) => tokio::time::sleep(Duration::from_millis(200)).await,
            delivered => return delivered,
        }
    }
    panic!("the queue stays full");
}

async fn claims(place: &Place, deliver: &Deliver, job: JobId) {
    claim_of(decide_with_room(deliver, &place.ticket(job, 1)).await);
}

/// Postgres refuses the one, and takes for ever with the other; everybody else's jobs are claimed meanwhile.
async fn buries(place: &Place, deliver: &Deliver, another: &Deliver, endless: &str) {
    for (what, does) in
        [("refused", "RAISE EXCEPTION 'the page is broken' USING ERRCODE = 'XX001'"), ("endless", endless)]
    {
        let [hurts, other] = [place.job().await, place.job().await];
        place
            .execute(&format!(
                "CREATE FUNCTION {what}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NEW; END $$"
            ))
            .await;
        place
            .execute(&format!(
                "CREATE TRIGGER {what} BEFORE UPDATE ON tenure.jobs FOR EACH ROW WHEN (NEW.id = '{hurts}')
                 EXECUTE FUNCTION {what}()"
            ))
            .await;
        let again = |deliveries| {
            let mut delivery = place.ticket(hurts, 1);
            delivery.deliveries = deliveries;
            delivery
        };
        let buried = format!("SELECT count(*) FROM tenure.dead_letter_jobs WHERE id = '{hurts}'");
        // Nothing shows that this worker can claim anything at all.
        let first = decide_with_room(deliver, &again(9)).await;
        assert!(matches!(first, Delivered::Missed(Missed::Unanswered)), "{what}");
        let second = decide(another, &again(9)).await;
        // The claim of a limited queue may have won by now.
        let is_expected = if deliver.slots.get("q").is_some_and(Slots::is_limited) {
            !matches!(second, Delivered::Missed(Missed::Died))
        } else {
            matches!(second, Delivered::Missed(Missed::Unanswered))
        };
        assert!(is_expected, "{what}");
        claims(place, another, other).await;
        assert_eq!(place.value(&buried).await, "0", "{what}");
        // The statement that got no answer may hold the row for a while, and win in the end. Others are claimed.
        for _ in 0..100 {
            claims(place, deliver, place.job().await).await;
            if matches!(decide(another, &again(3)).await, Delivered::Missed(Missed::Died)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let error = place
            .value(&format!(
                "SELECT category || ': ' || last_error FROM tenure.dead_letter_jobs WHERE id = '{hurts}'"
            ))
            .await;
        assert!(error.starts_with("refused: Postgres refuses each claim of the job: "), "{what}: {error}");
    }
}

/// A missing right is that of all jobs of a queue, and a locked table stands in everybody's way.
#[tokio::test]
async fn what_no_claim_of_a_queue_can_have_buries_no_job() {
    let place = slow_place().await;
    let deliver = deliver_at_once(&place);
    let job = place.job().await;
    let mut again = place.ticket(job, 1);
    again.deliveries = 9;
    let refuse = "CREATE FUNCTION denied() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                      RAISE EXCEPTION 'permission denied' USING ERRCODE = '42501'; END $$";
    place.execute(refuse).await;
    let trigger = format!(
        "CREATE TRIGGER denied BEFORE UPDATE ON tenure.jobs FOR EACH ROW WHEN (NEW.id = '{job}')
         EXECUTE FUNCTION denied()"
    );
    place.execute(&trigger).await;
    for _ in 0..3 {
        assert!(matches!(decide(&deliver, &again).await, Delivered::Missed(Missed::Unanswered)));
        claim_of(decide(&deliver, &place.ticket(place.job().await, 1)).await);
    }
    place.execute("DROP TRIGGER denied ON tenure.jobs").await;
    let mut lock = place.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs").execute(&mut *lock).await.unwrap();
    assert!(matches!(decide(&deliver, &again).await, Delivered::Missed(Missed::Unanswered)));
    lock.rollback().await.unwrap();
    claim_of(decide(&deliver, &again).await);
}

fn request(job: JobId) -> ClaimRequest {
    ClaimRequest {
        job,
        queue: "q".into(),
        kind: "k".into(),
        stale_after: RULES.stale_after,
        on_crash: RULES.on_crash.as_str(),
    }
}

fn claimant(deliver: &Deliver) -> Claimant {
    Claimant {
        store: deliver.store.clone(),
        worker_id: WORKER.into(),
        host: "host".into(),
        slots: deliver.slots.clone(),
    }
}

/// The outcome of each claim: won, not won, locked, or another error.
fn outcomes(answers: &[Result<Option<Claim>, StoreError>]) -> Vec<&'static str> {
    let of = |answer: &Result<Option<Claim>, StoreError>| match answer {
        Ok(Some(_)) => "won",
        Ok(None) => "not won",
        Err(error) if error.is_locked() => "locked",
        Err(_) => "error",
    };
    answers.iter().map(of).collect()
}

/// The worker claims those of several jobs that no transaction has locked, and asks for halves of those of which one may
/// be at fault. A single job is not asked for twice.
#[tokio::test]
async fn a_locked_job_keeps_no_other_job_of_its_batch_from_being_claimed() {
    for (code, jobs, expected) in [
        ("55P03", 2, vec!["won", "won"]),
        ("55P03", 1, vec!["locked"]),
        ("22023", 2, vec!["won", "won"]),
        ("22023", 1, vec!["error"]),
    ] {
        let place = place().await;
        let deliver = deliver_at_once(&place);
        let mut part = Vec::new();
        for _ in 0..jobs {
            part.push(request(place.job().await));
        }
        place.raise_once(code).await;
        assert_eq!(outcomes(&claim_all(&claimant(&deliver), &part).await), expected, "{code}");
    }
    let place = place().await;
    let deliver = deliver_at_once(&place);
    let (locked, free) = (place.job().await, place.job().await);
    let mut lock = place.pool.begin().await.unwrap();
    let row = "SELECT FROM tenure.jobs WHERE id = $1 FOR UPDATE";
    sqlx::query(row).bind(locked).execute(&mut *lock).await.unwrap();
    let mut part = vec![request(locked), request(free)];
    part.sort_by_key(|request| request.job);
    let outcomes = outcomes(&claim_all(&claimant(&deliver), &part).await);
    assert_eq!(outcomes[usize::from(part[1].job == free)], "won");
    assert_eq!(outcomes[usize::from(part[1].job == locked)], "locked");
}

/// The worker asks again in a moment.
#[tokio::test]
async fn a_claim_of_a_limited_queue_that_meets_a_lock_wins_nothing_for_now() {
    for (code, jobs, expected) in [
        ("55P03", 1, vec!["locked"]),
        ("22023", 1, vec!["error"]),
        // One of several is at fault.
        ("22023", 2, vec!["won", "won"]),
    ] {
        let place = place().await;
        place.tenure.limit_queue("q", QueueLimits::new().max_running(5)).await.unwrap();
        let deliver = deliver_at_once(&place);
        let mut part = Vec::new();
        for _ in 0..jobs {
            part.push(request(place.job().await));
        }
        place.raise_once(code).await;
        let claimant = claimant(&deliver);
        let slots = deliver.slots["q"].clone();
        assert_eq!(outcomes(&claim_limited(&claimant, &slots, &part).await), expected, "{code}");
        if jobs == 1 {
            assert_eq!(outcomes(&claim_limited(&claimant, &slots, &part).await), ["won"]);
        }
        assert!(slots.is_limited());
    }
}

/// As many as fit into 16 MiB, or half as many after an answer that did not arrive.
#[tokio::test]
async fn an_answer_carries_as_many_claims_as_fit() {
    let claim = place().await.claimed_by(WORKER).await;
    let of = |payload: usize, checkpoint: usize| {
        let text = |bytes| "x".repeat(bytes);
        Ok(Some(Claim { payload: text(payload), checkpoint: Some(text(checkpoint)), ..claim.clone() }))
    };
    let mib = 1 << 20;
    assert_eq!(claims_that_fit(&[of(mib, 0), Ok(None), of(mib, 0)]), 16);
    assert_eq!(claims_that_fit(&[of(mib, mib), of(0, 2 * mib)]), 8);
    assert_eq!(claims_that_fit(&[of(40 * mib, 0)]), 1);
    assert_eq!(claims_that_fit(&[of(10, 0)]), ITEMS_MAX);
    assert_eq!(claims_that_fit(&[Ok(None)]), ITEMS_MAX);
    let lost = || Err(StoreError::from(sqlx::Error::PoolTimedOut));
    assert_eq!(claims_that_fit(&[lost(), lost(), of(mib, 0), Ok(None), Ok(None)]), 2);
    assert_eq!(claims_that_fit(&[lost()]), 1);
}

/// The parts of one message that names these jobs, each published once.
fn parts(place: &Place, jobs: &[JobId], names: usize) -> Vec<Delivery> {
    let more: Vec<_> = jobs[1..].iter().map(|job| format!("[\"{job}\",1]")).collect();
    let body = format!("{{\"job_id\":\"{}\",\"dispatch\":1,\"more\":[{}]}}", jobs[0], more.join(","));
    let subject = format!("{}.q.+{names}.k", place.config.subject_prefix);
    Delivery::made_up(place.tenure.nats(), (subject, body), Some(jobs[0]), 9, 1).split().into()
}

/// Else it would wait for that many free slots, and so would the next messages.
#[tokio::test]
async fn a_message_whose_body_names_fewer_jobs_than_its_subject_takes_one_slot() {
    let place = place().await;
    let job = JobId::generate();
    let of = |jobs: usize, body: String| {
        let subject = format!("{}.q.+{jobs}.k", place.config.subject_prefix);
        Delivery::made_up(place.tenure.nats(), (subject, body), Some(job), 1, 1)
    };
    let two = serde_json::json!({"job_id": job, "dispatch": 1, "more": [[JobId::generate(), 1]]}).to_string();
    assert_eq!(of(2, two.clone()).jobs(), 2);
    for stranger in [of(64, two), of(64, "{}".into()), of(64, "\u{fffd}".into())] {
        assert_eq!(stranger.jobs(), 1);
        assert_eq!(stranger.split().len(), 1);
    }
}

/// The relay publishes a job that must wait, so that its message does not.
#[tokio::test]
async fn each_job_of_a_message_has_its_own_answer() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    let (runs, ended, waits) = (place.job().await, place.job().await, place.job().await);
    place.tenure.flush().await;
    place.tenure.cancel(ended).await.unwrap();
    let deliver = deliver_at_once(&place);
    let parts = parts(&place, &[runs, ended, waits], 3);
    assert_eq!(claim_of(decide(&deliver, &parts[0]).await).key.job, runs);
    assert_eq!(ack_of(&decide(&deliver, &parts[1]).await), Ack::Done);
    place.tenure.pause_queue("q").await.unwrap();
    let Delivered::Missed(missed) = decide(&deliver, &parts[2]).await else { panic!("it is paused") };
    assert_eq!((&missed, deliver.ack(&parts[2], &missed).await), (&Missed::Paused, Ack::Done));
    let publish_at =
        "SELECT publish_at > now() AND published_at IS NULL FROM tenure.jobs WHERE status = 'queued'";
    assert_eq!(place.value(publish_at).await, "true");
    // Its message has been handed over: the part of a redelivery has nothing to wait for.
    let alone = place.ticket(waits, 1);
    assert!(matches!(deliver.ack(&alone, &missed).await, Ack::Later(_)), "a message of one job waits itself");
}

/// Otherwise the jobs that are not named would lose their message.
#[tokio::test]
async fn a_message_that_names_another_number_of_jobs_than_its_subject_is_malformed() {
    let place = place().await;
    let jobs = [place.job().await, place.job().await];
    let parts = parts(&place, &jobs, 3);
    assert_eq!(parts.len(), 1);
    let deliver = deliver_at_once(&place);
    assert_eq!(ack_of(&decide(&deliver, &parts[0]).await), Ack::Never);
    let dead = "SELECT count(*) FROM tenure.dead_letter_jobs WHERE category = 'malformed'";
    assert_eq!(place.value(dead).await, "1");
}

/// Another worker may run the job, or it has another message: of a first delivery, nothing is left to do.
#[tokio::test]
async fn a_job_without_a_slot_is_handed_to_the_relay_if_it_waits_for_this_message() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    let (waits, claimed) = (place.job().await, place.claimed_by("other").await.key.job);
    place.tenure.flush().await;
    let deliver = deliver_at_once(&place);
    let handed =
        "SELECT string_agg(id || ' ' || publish_at, ',') FROM tenure.jobs WHERE publish_at IS NOT NULL";
    deliver.hand_back(parts(&place, &[waits, claimed], 2)).await;
    let first = place.value(handed).await;
    assert!(first.starts_with(&waits.to_string()) && !first.contains(&claimed.to_string()), "{first}");
    // The worker died before its ack: the message comes again, and the relay's time stays.
    let mut again = parts(&place, &[waits, claimed], 2);
    for part in &mut again {
        part.deliveries = 2;
    }
    deliver.hand_back(again).await;
    assert_eq!(place.value(handed).await, first);
}
