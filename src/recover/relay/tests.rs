//! Relay: which jobs it publishes, how many at a time, and what happens when the stream accepts nothing.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::proof::{Counts, Logs, Place, ago, end, place, place_with_nats, seconds};

/// Inserts due, unpublished jobs into a queue.
async fn due(place: &Place, queue: &str, jobs: usize) {
    // As an enqueue writes them.
    let sql = format!(
        "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at) \
         SELECT gen_random_uuid(), '{queue}', 'k', '1', 5, now(), now() FROM generate_series(1, {jobs})"
    );
    place.execute(&sql).await;
}

/// Marks all jobs as published a minute ago.
async fn published_long_ago(place: &Place) {
    place
        .execute(
            "UPDATE tenure.jobs SET publish_at = NULL, published_at = now() - interval '1 min', dispatch = 1",
        )
        .await;
}

/// How many jobs the messages of the stream name.
async fn in_stream(place: &Place) -> i64 {
    let counts = place.tenure.nats().messages_by_kind().await.unwrap();
    counts.kinds.iter().map(|of| of.messages + of.named).sum()
}

async fn unpublished(place: &Place) -> String {
    place.value("SELECT count(*) FROM tenure.jobs WHERE publish_at IS NOT NULL").await
}

fn lost() -> Lost {
    Lost::new(&Timing::DEFAULT, Stop::default())
}

/// Looks as a relay that has looked before.
async fn look(place: &Place, lost: &mut Lost) -> usize {
    seen(place, lost).await;
    lost.look(place.tenure.store(), place.tenure.nats(), "me").await.unwrap()
}

/// Pretends that a look long ago saw all commits of now.
async fn seen(place: &Place, lost: &mut Lost) {
    let committed = place.value("SELECT pg_current_snapshot()::text").await;
    lost.seen = VecDeque::from([(ago(seconds(10)), committed)]);
}

#[tokio::test]
async fn due_jobs_are_published_burst_by_burst_until_none_is_left() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    let burst = usize::try_from(BURST).unwrap();
    for jobs in [0, 3, burst, burst + 1] {
        let before = in_stream(&place).await;
        due(&place, "q", jobs).await;
        assert_eq!(publish_due(store, nats, &Stop::default()).await.unwrap(), jobs);
        assert_eq!(in_stream(&place).await - before, i64::try_from(jobs).unwrap());
        assert_eq!(unpublished(&place).await, "0");
    }
}

/// Over several bursts, and within each.
#[tokio::test]
async fn messages_are_in_the_order_in_which_their_jobs_are_due() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    let first = place.tenure.nats().stream_state().await.unwrap().1 + 1;
    due(&place, "q", usize::try_from(BURST).unwrap() * 2 + 3).await;
    // In another order than their ids, and than that of the table.
    place
        .execute(
            "UPDATE tenure.jobs SET scheduled_at = t, publish_at = t \
             FROM (SELECT id AS job, now() - interval '1 s' * row_number() OVER (ORDER BY md5(id::text)) AS t FROM tenure.jobs) s \
             WHERE id = job",
        )
        .await;
    publish_due(place.tenure.store(), place.tenure.nats(), &Stop::default()).await.unwrap();
    let due: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY scheduled_at")
        .fetch_all(&place.pool)
        .await
        .unwrap();
    let client = async_nats::connect(&place.config.nats_url).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream(&place.config.stream).await.unwrap();
    let mut sent: Vec<uuid::Uuid> = Vec::new();
    let mut sequences = first..;
    while sent.len() < due.len() {
        let message = stream.get_raw_message(sequences.next().unwrap()).await.unwrap();
        let body: crate::nats::TicketBody = serde_json::from_slice(&message.payload).unwrap();
        sent.push(body.job_id.0);
        sent.extend(body.more.iter().map(|(job, _)| job.0));
    }
    assert!(sent == due, "another order");
}

/// The rows of the taken jobs say that they are published.
#[tokio::test]
async fn a_relay_that_stops_publishes_the_jobs_that_it_has_taken_and_takes_no_more() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    let burst = usize::try_from(BURST).unwrap();
    let before = in_stream(&place).await;
    due(&place, "q", burst * 3).await;
    let stop = Stop::default();
    stop.asked.cancel();
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    // The caller drops the future at once, as an ended task does.
    let asked = Box::pin(publish_due(store, nats, &stop));
    assert!(asked.now_or_never().is_none());
    stop.stop().await;
    assert_eq!(in_stream(&place).await - before, i64::try_from(burst).unwrap());
    assert_eq!(unpublished(&place).await, (burst * 2).to_string());
}

/// Nor is the burst published that was taken while the first one failed.
#[tokio::test]
async fn jobs_that_the_stream_refuses_are_left_to_a_later_look() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    place.tenure.nats().remove_stream().await.unwrap();
    let jobs = usize::try_from(BURST).unwrap() + 7;
    due(&place, "q", jobs).await;
    let counts = Counts::default();
    let _recording = counts.record();
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    let error = publish_all(store, nats, &Take::Due, &CancellationToken::new()).await.unwrap_err();
    assert!(!error.is_postgres_away(), "{error}");
    assert_eq!(counts.of("tenure_published_total{}"), 0);
    assert_eq!(unpublished(&place).await, jobs.to_string());
}

#[tokio::test]
async fn the_relay_takes_no_job_without_a_connection() {
    let (place, nats) = place_with_nats().await;
    due(&place, "q", 1).await;
    end(nats, &place).await;
    let (store, nats) = (place.tenure.store(), place.tenure.nats());
    assert_eq!(publish_due(store, nats, &Stop::default()).await.unwrap(), 0);
    assert_eq!(place.value("SELECT dispatch FROM tenure.jobs").await, "0");
}

#[test]
fn a_burst_of_lost_messages_is_larger() {
    let lost = Take::Lost {
        of: "q".into(),
        published_before: DateTime::UNIX_EPOCH,
        visible_in: "1:1:".into(),
        worker_id: "me".into(),
    };
    assert_eq!((Take::Due.burst(), lost.burst()), (BURST, BURST_OF_LOST));
}

#[test]
fn the_margins_are_parts_of_the_time_that_a_publication_may_take() {
    let Lost { under_way, with_workers, publish_within, ack_wait, .. } = lost();
    assert_eq!((under_way, with_workers), (seconds(2), seconds(6)));
    assert_eq!((publish_within, ack_wait), (seconds(10), seconds(600)));
}

/// A hundred queues at a time, then those that follow, then from the start.
#[tokio::test]
async fn looks_go_round_all_queues() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    for n in 0..=QUEUES_MAX {
        due(&place, &format!("q{n:03}"), 1).await;
    }
    published_long_ago(&place).await;
    let mut lost = lost();
    for before in [Some("q001"), None, Some("q001")] {
        look(&place, &mut lost).await;
        assert_eq!(lost.before.as_deref(), before);
    }
    // Exactly a hundred queues: only the next look finds out that no more follow.
    place.execute("DELETE FROM tenure.jobs WHERE queue = 'q000'").await;
    lost.before = None;
    for before in [Some("q001"), None] {
        lost.drained.insert("q050".into(), DateTime::UNIX_EPOCH);
        look(&place, &mut lost).await;
        assert_eq!(lost.before.as_deref(), before);
        assert!(lost.drained.contains_key("q050"), "the findings about another queue stay");
    }
    place.execute("DELETE FROM tenure.jobs").await;
    look(&place, &mut lost).await;
    assert!(lost.drained.is_empty());
}

/// A queue with a consumer and a published job, whose message is not in the stream.
async fn lost_job() -> Place {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    place.tenure.nats().ensure_consumer("q").await.unwrap();
    due(&place, "q", 1).await;
    published_long_ago(&place).await;
    place
}

#[tokio::test]
async fn a_job_whose_message_is_lost_is_republished_and_counted_once() {
    let place = lost_job().await;
    let counts = Counts::default();
    let _recording = counts.record();
    let logs = Logs::default();
    let _listening = logs.record();
    let again = || counts.of("tenure_recoveries_total{path=relay,reason=message_lost}");
    let mut lost = lost();
    let before = in_stream(&place).await;
    assert_eq!((look(&place, &mut lost).await, again()), (1, 1));
    assert_eq!(in_stream(&place).await - before, 1);
    assert_eq!((look(&place, &mut lost).await, again()), (0, 1));
    // A second job, whose message may still wait: the stream holds a message of the queue.
    due(&place, "q", 1).await;
    place.execute("UPDATE tenure.jobs SET publish_at = NULL, published_at = now() - interval '3 s' WHERE publish_at IS NOT NULL").await;
    assert_eq!((look(&place, &mut lost).await, again()), (0, 1), "its message waits");
    assert_eq!(logs.of("messages were lost"), 1);
}

/// Postgres refuses the statement for one queue.
#[tokio::test]
async fn a_queue_whose_lost_jobs_cannot_be_taken_keeps_no_other_from_its_look() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    for queue in ["a", "b"] {
        place.tenure.nats().ensure_consumer(queue).await.unwrap();
        due(&place, queue, 1).await;
    }
    published_long_ago(&place).await;
    place.raise_once("42501").await;
    let mut lost = lost();
    assert_eq!(look(&place, &mut lost).await, 1, "of the other queue");
    assert_eq!(look(&place, &mut lost).await, 1, "of the first one");
}

#[tokio::test]
async fn a_lost_job_that_postgres_refuses_to_write_keeps_no_other_of_its_queue_from_a_message() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    place.tenure.nats().ensure_consumer("q").await.unwrap();
    due(&place, "q", 5).await;
    published_long_ago(&place).await;
    let second = place.value("SELECT id FROM tenure.jobs ORDER BY published_at, id OFFSET 1 LIMIT 1").await;
    place.refuses(second.parse().unwrap()).await;
    let (mut lost, mut published) = (lost(), 0);
    // A refused transaction unlocks its rows a moment after its answer: meanwhile a statement skips them.
    for _ in 0..50 {
        published += look(&place, &mut lost).await;
        if published == 4 {
            break;
        }
    }
    assert_eq!(published, 4);
    assert_eq!(look(&place, &mut lost).await, 0, "for a while, it is not tried again");
}

/// The job counts as published from its INSERT on, but its producer publishes it after the commit.
#[tokio::test]
async fn a_job_of_a_transaction_that_has_just_been_committed_is_not_lost() {
    let place = place().await;
    place.tenure.nats().ensure_stream().await.unwrap();
    place.tenure.nats().ensure_consumer("q").await.unwrap();
    let mut transaction = place.pool.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at, dispatch) \
         SELECT gen_random_uuid(), 'q', 'k', '1', 5, now(), now() - interval '1 min', 1",
    )
    .execute(&mut *transaction)
    .await
    .unwrap();
    let mut lost = lost();
    seen(&place, &mut lost).await;
    transaction.commit().await.unwrap();
    let look_as_of =
        async |lost: &mut Lost| lost.look(place.tenure.store(), place.tenure.nats(), "me").await.unwrap();
    assert_eq!(look_as_of(&mut lost).await, 0, "no look of two seconds ago or more saw its commit");
    lost.seen = VecDeque::new();
    assert_eq!(look_as_of(&mut lost).await, 0, "no look is that old");
    seen(&place, &mut lost).await;
    assert_eq!(look_as_of(&mut lost).await, 1);
}

#[test]
fn the_newest_look_that_is_old_enough_says_which_jobs_were_committed() {
    let mut lost = lost();
    let start = Instant::now();
    let mut at = |s: u64, what: &str| lost.visible_for(seconds(2), start + seconds(s), what.to_owned());
    assert_eq!(at(0, "a"), None);
    assert_eq!(at(1, "b"), None);
    assert_eq!(at(2, "c").as_deref(), Some("a"));
    assert_eq!(at(3, "d").as_deref(), Some("b"));
    assert_eq!(at(60, "e").as_deref(), Some("d"));
    assert_eq!(at(61, "f").as_deref(), Some("d"), "the look of a moment ago is too new");
    assert_eq!(lost.seen.len(), 3);
}

#[tokio::test]
async fn after_an_outage_of_nats_no_message_counts_as_lost_until_producers_have_sent_theirs() {
    let place = lost_job().await;
    let mut lost = lost();
    let nats = place.tenure.nats();
    nats.connect_anew().await;
    assert!(!nats.is_up_since_the_start() && nats.is_connected());
    assert_eq!(look(&place, &mut lost).await, 0);
    lost.publish_within = Duration::ZERO;
    assert_eq!(look(&place, &mut lost).await, 1);
}

/// A message that arrived after the pause waits on the server.
#[tokio::test]
async fn the_messages_of_a_paused_queue_do_not_count_as_lost_at_once() {
    let place = lost_job().await;
    let mut lost = lost();
    place.execute("INSERT INTO tenure.queues (queue, paused_at) VALUES ('q', now())").await;
    assert_eq!(look(&place, &mut lost).await, 0);
    place.execute("DELETE FROM tenure.queues").await;
    assert_eq!(look(&place, &mut lost).await, 0, "it was paused a moment ago");
    let until = lost.paused["q"].saturating_duration_since(Instant::now());
    assert!(until > seconds(5) && until <= seconds(6), "{until:?}");
    lost.paused.insert("q".into(), Instant::now());
    assert_eq!(look(&place, &mut lost).await, 1);
    assert!(lost.paused.is_empty());
}

#[tokio::test]
async fn the_streams_progress_says_which_jobs_have_no_message_left() {
    let place = place().await;
    let store = place.tenure.store();
    let at = |seconds: i64| DateTime::from_timestamp(1_795_000_000 + seconds, 0).unwrap();
    let said = |pending, unacknowledged| Progress {
        stream_created: "s".into(),
        last_seq: 9,
        delivered: 9,
        pending,
        unacknowledged,
    };
    let mut lost = lost();
    let mut before = async |progress, now: DateTime<Utc>| {
        lost.lost_before(store, "q", &progress, now, seconds(6)).await.unwrap()
    };
    assert_eq!(before(said(0, 0), at(100)).await, Some(at(98)), "every message is acknowledged");
    assert_eq!(before(said(0, 3), at(110)).await, Some(at(94)), "delivered by the last look");
    assert_eq!(before(said(0, 3), at(120)).await, Some(at(104)));
    // While messages wait, only a mark can prove that one is lost; the relay has added no mark yet.
    assert_eq!(before(said(4, 3), at(130)).await, None);
    assert_eq!(before(said(0, 3), at(140)).await, None, "the messages were delivered a moment ago");
    store.add_mark(at(0), "s", 9, seconds(2)).await.unwrap();
    assert_eq!(before(said(4, 0), at(150)).await, Some(at(-6)), "less the margin");
    // A mark of a clock that was ahead proves nothing, and keeps no other from being made.
    place.execute("UPDATE tenure.relay_marks SET marked_at = now() + interval '1 h'").await;
    assert_eq!(before(said(4, 0), at(160)).await, None);
    store.add_mark(at(0), "s", 9, seconds(2)).await.unwrap();
    assert_eq!(place.value("SELECT array_agg(marked_at < now()) FROM tenure.relay_marks").await, "{t}");
}
