//! Publish: the end of a group of messages, for every answer of the stream and for its silence.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use futures::poll;
use tokio::time::sleep;

use super::{
    publisher::{FAILED_MAX, HANDED_OVER_WITHIN, can_send},
    *,
};
use crate::{
    job::JobId,
    nats::silence,
    proof::{Counts, Logs, Place, place, place_with_nats, seconds},
};

const WITHIN: Duration = seconds(10);

/// A publisher that runs only when the test runs it, and the messages that producers hand to it.
struct Parts {
    place: Place,
    publications: Publications,
    publisher: Publisher,
    handed: mpsc::UnboundedReceiver<Handed>,
    confirmations: Confirmations,
}

async fn parts() -> Parts {
    parts_in(place().await).await
}

async fn parts_in(place: Place) -> Parts {
    let (store, nats) = (place.tenure.store().clone(), place.tenure.nats().clone());
    nats.ensure_stream().await.unwrap();
    let (publications, publisher, handed, confirmations) =
        Publications::with_publisher(store, nats, WITHIN).await.unwrap();
    Parts { place, publications, publisher, handed, confirmations }
}

impl Parts {
    async fn message(&self) -> Prepared {
        let job = self.place.job().await;
        self.message_of(job)
    }

    fn message_of(&self, job: JobId) -> Prepared {
        // Another dispatch than that of its enqueue.
        let (queue, kind) = ("q".into(), "k".into());
        let ticket = Ticket {
            job,
            queue,
            kind,
            dispatch: 2,
            clear_reason: None,
            trace_context: None,
            jobs_per_message: 1,
        };
        self.publications.prepare(&[ticket]).remove(0)
    }

    /// Adds a group of this number of unsent messages.
    async fn group(&self, messages: usize, until: Instant) -> u64 {
        let mut jobs = Vec::new();
        for _ in 0..messages {
            jobs.push(Some(vec![self.place.job().await]));
        }
        let held = self.held().await;
        let group =
            Group { left: jobs.len(), jobs, confirmed: 0, failed: Vec::new(), error: None, held, until };
        self.publications.groups.add(group).unwrap().0
    }

    async fn held(&self) -> InFlight {
        let room = self.publications.room(1).await.unwrap();
        InFlight { _room: room, _token: self.publications.pending.token() }
    }

    fn under_way(&self) -> usize {
        self.publications.groups.lock().groups.len()
    }

    async fn in_stream(&self) -> u64 {
        // Waits for the messages of the enqueues that made the jobs.
        self.place.tenure.flush().await;
        self.place.tenure.nats().stream_state().await.unwrap().1
    }

    /// Returns the number of rows that are left to the relay.
    async fn left_to_the_relay(&self) -> String {
        self.place.value("SELECT count(*) FROM tenure.jobs WHERE publish_at IS NOT NULL").await
    }

    /// Names the messages that were handed to the task, in a word each.
    fn was_handed(&mut self) -> Vec<&'static str> {
        let mut was = Vec::new();
        while let Ok(handed) = self.handed.try_recv() {
            was.push(match handed {
                Handed::First => "first",
                Handed::Unsent(_) => "unsent",
                Handed::Failed(_) => "failed",
            });
        }
        was
    }
}

fn confirmed(group: u64, place: usize) -> Confirmation {
    Confirmation { group, place, said: Ok(()) }
}

fn refused(group: u64, place: usize) -> Confirmation {
    Confirmation { group, place, said: Err(silence()) }
}

fn later() -> Instant {
    Instant::now() + WITHIN
}

fn before(time: Duration) -> Instant {
    Instant::now().checked_sub(time).unwrap()
}

#[tokio::test]
async fn each_group_has_a_number_of_its_own_and_the_first_wakes_the_task() {
    let parts = parts().await;
    let mut added = Vec::new();
    for _ in 0..3 {
        let group = Group {
            jobs: Vec::new(),
            left: 0,
            confirmed: 0,
            failed: Vec::new(),
            error: None,
            held: parts.held().await,
            until: later(),
        };
        added.push(parts.publications.groups.add(group).unwrap());
    }
    assert_eq!(added, [(0, true), (1, false), (2, false)]);
    let groups = parts.publications.groups.clone();
    let until = parts.publisher.next_deadline().unwrap();
    assert!(until > Instant::now() && groups.lock().is_watched);
    groups.lock().deadlines.clear();
    assert_eq!(parts.publisher.next_deadline(), None);
    assert!(!groups.lock().is_watched, "the next producer wakes it");
    // Nothing is confirmed once the task has ended.
    drop(parts.publisher);
    assert!(groups.lock().is_over && groups.lock().groups.is_empty());
}

#[test]
fn a_stream_that_was_silent_is_left_alone_for_a_second_or_until_it_speaks() {
    let gives_up = GivesUp::default();
    assert!(!gives_up.is_on());
    gives_up.begin();
    assert!(gives_up.is_on());
    let until = gives_up.until().unwrap();
    assert!(until > Instant::now() && until <= Instant::now() + GIVES_UP_FOR);
    *gives_up.until() = Some(before(Duration::from_millis(1)));
    assert!(!gives_up.is_on());
    gives_up.begin();
    gives_up.end();
    assert!(!gives_up.is_on());
}

#[tokio::test]
async fn a_wait_covers_the_work_that_began_before_it_and_none_that_comes_later() {
    let pending = Pending::default();
    let first = pending.token();
    let mut one = Box::pin(pending.wait());
    assert!(poll!(&mut one).is_pending());
    let later = pending.token();
    let mut two = Box::pin(pending.wait());
    assert!(poll!(&mut two).is_pending());
    drop(later);
    assert!(poll!(&mut two).is_pending(), "the first is under way");
    let _last = pending.token();
    drop(first);
    one.await;
    two.await;
    let mut three = Box::pin(pending.wait());
    assert!(poll!(&mut three).is_pending());
}

/// A caller with very many rows leaves room for others; one second of waiting is enough for all callers.
#[tokio::test]
async fn room_is_waited_for_once() {
    let parts = parts().await;
    let (publications, logs) = (&parts.publications, Logs::default());
    let _listening = logs.record();
    let said = || (logs.of("NATS confirms too slowly"), logs.of("NATS keeps up again"));
    let mut taken = vec![publications.room(1_000_000).await.unwrap()];
    assert_eq!(publications.room.available_permits(), WAITING_MAX * 3 / 4);
    for _ in 0..3 {
        taken.push(publications.room(1_000_000).await.unwrap());
    }
    let began = Instant::now();
    assert!(publications.room(1).await.is_none() && began.elapsed() >= ROOM_WITHIN);
    let began = Instant::now();
    assert!(publications.room(1).await.is_none() && began.elapsed() < ROOM_WITHIN / 2);
    assert_eq!(said(), (1, 0));
    taken.pop();
    assert!(publications.room(1).await.is_some() && !publications.stalled.load(Ordering::Acquire));
    assert_eq!(said(), (1, 1), "and that it is over");
}

/// The task sends the messages that their own caller cannot send.
#[tokio::test]
async fn a_caller_sends_its_messages_itself_unless_nats_takes_none() {
    let mut parts = parts().await;
    let before = parts.in_stream().await;
    let messages = vec![parts.message().await, parts.message().await];
    let enqueued = parts.in_stream().await - before;
    let room = parts.publications.room(2).await.unwrap();
    parts.publications.publish(messages, room).await;
    assert_eq!(parts.was_handed(), ["first"]);
    let until = parts.publications.groups.lock().groups[&0].until;
    assert!(until > Instant::now(), "the stream has time to confirm them");
    for _ in 0..2 {
        let confirmation = parts.confirmations.next().await.unwrap();
        parts.publisher.note(confirmation);
    }
    assert_eq!((parts.under_way(), parts.in_stream().await - before), (0, enqueued + 2));
    for trouble in ["silent", "unread"] {
        parts.publications.gives_up.end();
        parts.publications.unread.store(trouble == "unread", Ordering::Release);
        if trouble == "silent" {
            parts.publications.gives_up.begin();
        }
        let messages = vec![parts.message().await];
        let room = parts.publications.room(1).await.unwrap();
        parts.publications.publish(messages, room).await;
        assert_eq!(parts.was_handed(), ["unsent"], "{trouble}");
    }
    // An empty list makes no group.
    let room = parts.publications.room(1).await.unwrap();
    parts.publications.publish(Vec::new(), room).await;
    assert_eq!(parts.under_way(), 2);
}

/// A message may have been sent: the relay's is another dispatch.
#[tokio::test]
async fn a_group_that_is_dropped_in_the_middle_is_left_to_the_task() {
    let mut parts = parts().await;
    let unsent = |parts: &Parts, messages: Vec<Prepared>| Unsent {
        group: 4,
        place: 0,
        messages: messages.into_iter(),
        until: parts.publications.groups.lock().deadlines.front().map_or_else(later, |(until, _)| *until),
    };
    let handed = parts.publications.handed.clone();
    let rest = unsent(&parts, vec![parts.message().await]);
    drop(Sending { unsent: Some(rest), in_hand: Some((4, 0)), handed: &handed });
    assert_eq!(parts.was_handed(), ["failed", "unsent"]);
    let all = unsent(&parts, vec![parts.message().await, parts.message().await]);
    let mut sending = Sending { unsent: Some(all), in_hand: None, handed: &handed };
    sending.send_all(parts.place.tenure.nats(), &parts.publications.reply_to).await;
    drop(sending);
    assert_eq!(parts.was_handed(), Vec::<&str>::new());
    let mut places = Vec::new();
    for _ in 0..2 {
        let Confirmation { group, place, said } = parts.confirmations.next().await.unwrap();
        said.unwrap();
        places.push((group, place));
    }
    assert_eq!(places, [(4, 0), (4, 1)]);
}

/// Until NATS has caught up, no producer waits for it.
#[tokio::test]
async fn a_server_that_reads_too_slowly_is_waited_for_by_one_task_alone() {
    let parts = parts().await;
    let publications = &parts.publications;
    publications.written().await;
    assert!(!publications.unread.load(Ordering::Acquire), "all is written");
    let logs = Logs::default();
    let _listening = logs.record();
    publications.note_unread();
    publications.note_unread();
    assert!(publications.unread.load(Ordering::Acquire));
    assert_eq!(logs.of("NATS reads too slowly"), 1);
    let began = Instant::now();
    while publications.unread.load(Ordering::Acquire) {
        assert!(began.elapsed() < seconds(20), "it has caught up");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The server is frozen, and more is on its way than sockets hold.
#[tokio::test]
async fn a_server_that_reads_nothing_is_waited_for_once_and_by_no_caller_that_comes_later() {
    let (place, nats) = place_with_nats().await;
    let pid = rustix::process::Pid::from_raw(nats.pid().unwrap()).unwrap();
    let parts = parts_in(place).await;
    let job = parts.place.job().await;
    parts.place.tenure.flush().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    for dispatch in 1..80 {
        let ticket = Ticket {
            job,
            queue: "q".into(),
            kind: "k".into(),
            dispatch,
            clear_reason: None,
            trace_context: Some("x".repeat(500_000)),
            jobs_per_message: 1,
        };
        let message = parts.publications.prepare(&[ticket]).remove(0);
        parts.place.tenure.nats().send(message, &parts.publications.reply_to, 0, 0).await.unwrap();
    }
    parts.place.tenure.nats().note_sent();
    let is_unread = || parts.publications.unread.load(Ordering::Acquire);
    parts.publications.written().await;
    assert!(is_unread());
    let began = Instant::now();
    parts.publications.written().await;
    assert!(began.elapsed() < WRITTEN_WITHIN, "{:?}", began.elapsed());
    sleep(WRITTEN_WITHIN * 4).await;
    assert!(is_unread(), "it reads nothing still");
    // The task that waits for it ends with the last producer.
    drop(parts.publications);
    let began = Instant::now();
    while tasks() > before {
        assert!(began.elapsed() < seconds(5), "{} tasks, {before} before", tasks());
        sleep(Duration::from_millis(20)).await;
    }
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
}

#[tokio::test]
async fn the_first_answer_to_a_message_counts() {
    let mut parts = parts().await;
    let group = parts.group(3, later()).await;
    parts.place.tenure.flush().await;
    let counts = Counts::default();
    let _recording = counts.record();
    let published = || counts.of("tenure_published_total{}");
    parts.publications.gives_up.begin();
    parts.publisher.note(refused(group, 0));
    assert!(parts.publications.gives_up.is_on() && parts.publisher.heard_at.is_none());
    for again in [confirmed(group, 0), confirmed(group + 7, 0), confirmed(group, 9)] {
        parts.publisher.note(again);
    }
    assert!(parts.publications.gives_up.is_on(), "none of these was waited for");
    parts.publisher.note(confirmed(group, 1));
    assert!(!parts.publications.gives_up.is_on() && parts.publisher.heard_at.is_some());
    assert_eq!((parts.under_way(), published()), (1, 0), "one is left");
    parts.publisher.note(confirmed(group, 2));
    assert_eq!((parts.under_way(), published()), (0, 2));
    parts.publications.wait().await;
    assert_eq!(parts.left_to_the_relay().await, "1");
}

/// Makes a group that has ended, and in which this number of messages has failed.
fn ended(parts: &Parts, held: InFlight, failed: usize) -> Group {
    Group {
        jobs: Vec::new(),
        left: 0,
        confirmed: 0,
        failed: (0..failed).map(|_| JobId::generate()).collect(),
        error: (failed > 0).then(silence),
        held,
        until: parts.publications.groups.lock().deadlines.front().map_or_else(later, |(until, _)| *until),
    }
}

/// The task hands failures over together: with the last group, or five hundred at a time.
#[tokio::test]
async fn failed_messages_are_handed_to_the_relay_together() {
    let mut parts = parts().await;
    parts.group(1, later()).await;
    let logs = Logs::default();
    let _listening = logs.record();
    // Failures before, those of the group that ends, and those left after it.
    for (before, failed, left) in
        [(0, 3, 3), (3, 0, 3), (FAILED_MAX - 2, 1, FAILED_MAX - 1), (FAILED_MAX - 1, 1, 0)]
    {
        parts.publisher.failed = (0..before).map(|_| JobId::generate()).collect();
        let held = parts.held().await;
        let group = ended(&parts, held, failed);
        parts.publisher.end(group);
        assert_eq!(parts.publisher.failed.len(), left, "{before} and {failed}");
    }
    assert_eq!(logs.of("could not publish; the relay will retry"), 1, "the first of each hand-over");
    parts.publications.groups.lock().groups.clear();
    let held = parts.held().await;
    let group = ended(&parts, held, 1);
    parts.publisher.end(group);
    assert!(parts.publisher.failed.is_empty(), "it was the last");
    parts.publications.wait().await;
}

/// Other groups may be under way for longer.
#[tokio::test]
async fn a_failed_message_is_left_to_the_relay_within_a_moment() {
    let mut parts = parts().await;
    let _under_way = parts.group(1, later()).await;
    let held = parts.held().await;
    let group = ended(&parts, held, 1);
    parts.publisher.end(group);
    assert_eq!(parts.publisher.failed.len(), 1);
    let run = parts.publisher.run(&mut parts.handed, &mut parts.confirmations);
    timeout(HANDED_OVER_WITHIN * 10, run).await.unwrap_err();
    assert_eq!((parts.publisher.failed.len(), parts.publisher.failed_at), (0, None));
}

/// A group whose messages were sent later has more time; one whose messages wait to be sent has all the time it needs.
#[tokio::test]
async fn a_message_that_the_stream_has_not_confirmed_in_time_has_failed() {
    let mut parts = parts().await;
    let past = before(Duration::from_millis(1));
    let (late, early) = (parts.group(2, past).await, parts.group(1, past).await);
    let waiting = parts.group(1, past).await;
    let (sent_later, timely) = (parts.group(1, past).await, parts.group(1, later()).await);
    {
        let mut under_way = parts.publications.groups.lock();
        under_way.groups.get_mut(&sent_later).unwrap().until = later();
        // This group was confirmed meanwhile.
        under_way.groups.remove(&early);
    }
    let messages = Vec::new().into_iter();
    parts.publisher.unsent.push_back(Unsent { group: waiting, place: 0, messages, until: later() });
    parts.publisher.note(confirmed(late, 0));
    parts.publisher.heard_at = None;
    parts.publisher.end_late();
    let mut left: Vec<_> = parts.publications.groups.lock().groups.keys().copied().collect();
    left.sort_unstable();
    assert_eq!(left, [waiting, sent_later, timely]);
    assert_eq!(parts.publications.groups.lock().deadlines.len(), 1, "the timely one's");
    assert_eq!(parts.publisher.failed.len(), 1);
    assert!(parts.publications.gives_up.is_on(), "the stream was silent all the time");
}

/// A connection that broke in between took confirmations with it.
#[tokio::test]
async fn a_stream_that_has_spoken_since_is_not_silent() {
    for (heard, is_silent) in [(WITHIN / 2, false), (WITHIN * 3 / 2, true)] {
        let mut parts = parts().await;
        parts.group(1, before(Duration::from_millis(1))).await;
        parts.publisher.heard_at = Some(before(heard));
        parts.publisher.end_late();
        assert_eq!(parts.under_way(), 0);
        assert_eq!(parts.publications.gives_up.is_on(), is_silent, "{heard:?} ago");
        parts.publications.wait().await;
        assert_eq!(parts.left_to_the_relay().await, "1");
    }
}

#[tokio::test]
async fn messages_that_have_waited_longest_are_sent_first_and_have_their_time_from_then_on() {
    let mut parts = parts().await;
    let past = before(Duration::from_millis(1));
    let group = parts.group(2, past).await;
    let before = parts.in_stream().await;
    let messages = vec![parts.message().await, parts.message().await];
    let enqueued = parts.in_stream().await - before;
    let unsent =
        |messages: Vec<Prepared>| Unsent { group, place: 0, messages: messages.into_iter(), until: past };
    parts.publisher.unsent.push_back(unsent(messages));
    can_send(parts.place.tenure.nats(), &parts.publisher.unsent).await;
    parts.publisher.send_first().await;
    assert!(parts.publications.groups.lock().groups[&group].until > Instant::now());
    for place in 0..2 {
        let confirmation = parts.confirmations.next().await.unwrap();
        assert_eq!((confirmation.group, confirmation.place), (group, place));
        parts.publisher.note(confirmation);
    }
    assert_eq!((parts.in_stream().await - before, parts.under_way()), (enqueued + 2, 0));
    parts.publisher.send_first().await;
    // While the stream is silent, the task sends none.
    let group = parts.group(1, later()).await;
    let messages = vec![parts.message().await].into_iter();
    parts.publisher.unsent.push_back(Unsent { group, place: 0, messages, until: later() });
    parts.publications.gives_up.begin();
    let before = parts.in_stream().await;
    parts.publisher.send_first().await;
    assert_eq!((parts.in_stream().await, parts.under_way()), (before, 0));
    parts.publications.wait().await;
    assert_eq!(parts.left_to_the_relay().await, "1");
    assert!(poll!(&mut Box::pin(can_send(parts.place.tenure.nats(), &VecDeque::new()))).is_pending());
}

/// The task ends with its last producer, and not before its groups are confirmed or have failed.
#[tokio::test]
async fn the_task_lives_as_long_as_a_producer_or_a_group() {
    let parts = parts().await;
    let group = parts.group(1, later()).await;
    let Parts { place, publications, publisher, handed, confirmations } = parts;
    let (groups, sender) = (publications.groups.clone(), publications.handed.clone());
    let mut task = Box::pin(publisher.run_on(handed, confirmations));
    let pause = || tokio::time::sleep(Duration::from_millis(50));
    tokio::select! {
        () = &mut task => panic!("a group is under way"),
        () = pause() => {}
    }
    sender.send(Handed::Failed(confirmed(group, 0))).unwrap();
    tokio::select! {
        () = &mut task => panic!("there is a producer"),
        () = pause() => {}
    }
    assert!(groups.lock().groups.is_empty());
    drop((publications, sender));
    timeout(seconds(5), task).await.unwrap();
    assert!(groups.lock().is_over);
    drop(place);
}

/// The alarm goes off at the start, when there is no deadline, and is set again for a group that comes later.
#[tokio::test]
async fn the_task_watches_the_deadline_of_a_group_that_comes_later() {
    let parts = parts().await;
    let Parts { place, publications, publisher, handed, confirmations } = parts;
    let (room, token) = (publications.room(1).await.unwrap(), publications.pending.token());
    let job = place.job().await;
    let task = tokio::spawn(publisher.run_on(handed, confirmations));
    tokio::time::sleep(Duration::from_millis(30)).await;
    let group = Group {
        jobs: vec![Some(vec![job])],
        left: 1,
        confirmed: 0,
        failed: Vec::new(),
        error: None,
        held: InFlight { _room: room, _token: token },
        until: Instant::now() + Duration::from_millis(50),
    };
    assert!(publications.groups.add(group).unwrap().1);
    publications.handed.send(Handed::First).unwrap();
    timeout(seconds(5), publications.wait()).await.unwrap();
    assert!(publications.groups.lock().groups.is_empty());
    task.abort();
}

/// The client's buffers are full, too: the task waits for it for a moment.
#[tokio::test]
async fn the_task_waits_a_moment_for_a_client_that_takes_nothing() {
    let (place, nats) = place_with_nats().await;
    let pid = rustix::process::Pid::from_raw(nats.pid().unwrap()).unwrap();
    let mut parts = parts_in(place).await;
    let group = parts.group(1, later()).await;
    parts.place.tenure.flush().await;
    let job = JobId::generate();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let fill = async {
        loop {
            let message = Ticket {
                job,
                queue: "q".into(),
                kind: "k".into(),
                dispatch: 1,
                clear_reason: None,
                trace_context: Some("x".repeat(10_000)),
                jobs_per_message: 1,
            };
            let message = parts.publications.prepare(&[message]).remove(0);
            parts.place.tenure.nats().send(message, &parts.publications.reply_to, 9, 0).await.unwrap();
        }
    };
    // The client is full when it has taken nothing for a while.
    timeout(seconds(3), fill).await.unwrap_err();
    let messages = vec![parts.message_of(job)].into_iter();
    parts.publisher.unsent.push_back(Unsent { group, place: 0, messages, until: later() });
    let began = Instant::now();
    parts.publisher.send_first().await;
    let took = began.elapsed();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(took >= WRITTEN_WITHIN.mul_f64(0.9) && took < WRITTEN_WITHIN * 5, "{took:?}");
    assert_eq!(parts.under_way(), 0);
}

/// The task waits for the client, which cannot take this many without a pause.
#[tokio::test]
async fn the_task_sends_more_than_the_client_takes_at_once() {
    let mut parts = parts().await;
    let group = parts.group(1, later()).await;
    let job = parts.place.job().await;
    let jobs = 10_000;
    {
        let mut under_way = parts.publications.groups.lock();
        let group = under_way.groups.get_mut(&group).unwrap();
        (group.jobs, group.left) = (vec![Some(vec![job]); jobs], jobs);
    }
    let messages: Vec<_> = (0..jobs).map(|_| parts.message_of(job)).collect();
    let messages = messages.into_iter();
    parts.publisher.unsent.push_back(Unsent { group, place: 0, messages, until: later() });
    parts.publisher.send_first().await;
    for _ in 0..jobs {
        let confirmation = timeout(seconds(5), parts.confirmations.next()).await.unwrap().unwrap();
        parts.publisher.note(confirmation);
    }
    assert!(parts.under_way() == 0 && parts.publisher.failed.is_empty());
}

#[tokio::test]
async fn work_that_is_waited_for_is_done() {
    let parts = parts().await;
    let (done, is_done) = tokio::sync::oneshot::channel();
    parts.publications.spawn(async move { done.send(()).unwrap() });
    parts.publications.wait().await;
    is_done.await.unwrap();
}
