//! NATS: the server, the stream and the consumers, beside what they should be.

use std::time::Duration;

use tokio::time::timeout;

use super::{Asked, Checked, clock, skip};
use crate::{
    client::Tenure,
    config::{Timing, masked},
    nats::{ConsumerSeen, NatsSeen, Queue, StreamSeen, Unseen},
};

/// Everything that is not looked at when NATS is not reached, but the consumers.
const REST: [&str; 6] = ["jetstream", "stream", "duplicates", "replicas", "nats_clock", "nats_rights"];
/// What the stream's own answer tells, besides that there is one.
const OF_STREAM: [&str; 3] = ["duplicates", "replicas", "nats_clock"];

/// How long a connection that has just been asked for may take.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// What was not looked at, and why.
pub(super) fn skipped(why: &str) -> Vec<Checked> {
    let mut checks = skip(&REST, why);
    checks.push(Checked::skipped("consumer", why));
    checks
}

/// Waits for the connection.
pub(super) async fn reach(tenure: &Tenure) -> (Checked, Option<NatsSeen>) {
    let (queue, url) = (tenure.queue(), masked(&tenure.config().nats_url));
    if timeout(CONNECTED_WITHIN, queue.connected()).await.is_err() {
        let said = queue.last_said();
        let why = if said.is_empty() { "no answer".into() } else { said };
        let checked =
            Checked::wrong("nats", format!("{url} was not reached within {CONNECTED_WITHIN:?}: {why}"));
        let to_do = "check NATS_URL (tls:// needs a server with TLS), the network and the server; an authorization \
                     violation is a user or a password that the server does not know";
        return (checked.advise(to_do), None);
    }
    let seen = queue.nats_seen();
    (about_server(&seen, &url), Some(seen))
}

fn about_server(seen: &NatsSeen, url: &str) -> Checked {
    let found = format!("nats-server {} at {url}", seen.version);
    if seen.is_too_old {
        return Checked::wrong("nats", found).advise(
            "upgrade it to 2.10.23 or later: older ones can lose a whole stream when they are killed",
        );
    }
    Checked::ok("nats", found)
}

/// Looks at the stream and the consumers. Creates nothing.
pub(super) async fn look(queue: &Queue, timing: &Timing, server: &NatsSeen, asked: &[Asked]) -> Vec<Checked> {
    let stream = queue.stream_seen().await;
    let mut checks = about_stream(&stream, server, timing);
    let why_not = match &stream {
        Err(Unseen::Missing) => Some("there is no stream"),
        Err(unseen) if asks_in_vain(unseen).is_some() => asks_in_vain(unseen),
        _ if asked.is_empty() => Some("no queue is known yet; name one with --queue"),
        _ => None,
    };
    let mut unseen: Vec<_> = stream.err().into_iter().collect();
    if let Some(why) = why_not {
        checks.push(Checked::skipped("consumer", why));
    } else {
        for Asked { queue: name, is_served } in asked {
            // Each costs a whole time limit.
            if let Some(why) = unseen.iter().find_map(asks_in_vain) {
                checks.push(Checked::skipped("consumer", why).of(name));
                continue;
            }
            let consumer = queue.consumer_seen(name).await;
            checks.push(about_consumer(&consumer, name, *is_served, timing).of(name));
            unseen.extend(consumer.err());
        }
    }
    checks.push(rights(&unseen));
    checks
}

/// Why there is no use in asking for a consumer after this.
fn asks_in_vain(unseen: &Unseen) -> Option<&'static str> {
    match unseen {
        Unseen::NoJetStream => Some("there is no JetStream"),
        Unseen::NoAnswer(_) => Some("the question before it was not answered"),
        Unseen::Missing | Unseen::Denied(_) | Unseen::Refused(_) => None,
    }
}

fn about_stream(stream: &Result<StreamSeen, Unseen>, server: &NatsSeen, timing: &Timing) -> Vec<Checked> {
    let enabled = || Checked::ok("jetstream", "enabled");
    let (jetstream, stream, why) = match stream {
        Ok(seen) => {
            let mut checks = vec![enabled(), definition("stream", &seen.drift, stream_words(seen))];
            checks.push(duplicates(seen, timing));
            checks.push(replicas(seen, server));
            checks.push(match seen.answered_at {
                Some(answered_at) => clock("nats_clock", answered_at, seen.asked_at, seen.took),
                None => Checked::skipped("nats_clock", "this server does not tell its time"),
            });
            return checks;
        }
        Err(Unseen::Missing) => {
            let missing = Checked::wrong("stream", "it does not exist: nothing can be published")
                .advise("start a worker, which creates it, or run `tenure migrate --queue NAME`");
            (enabled(), missing, "there is no stream".to_owned())
        }
        Err(Unseen::NoJetStream) => {
            let why = "there is no JetStream";
            let disabled = Checked::wrong("jetstream", "it is not enabled, or not for this account")
                .advise("enable it, and give it a store_dir: see nats/server.conf");
            (disabled, Checked::skipped("stream", why), why.into())
        }
        Err(Unseen::Denied(_)) => {
            let why = "this user may not ask for the stream";
            (Checked::skipped("jetstream", why), Checked::skipped("stream", why), why.into())
        }
        Err(Unseen::NoAnswer(_)) => {
            let why = "nobody answered";
            (Checked::skipped("jetstream", why), Checked::skipped("stream", why), why.into())
        }
        Err(Unseen::Refused(said)) => {
            let refused = Checked::wrong("stream", said.as_str())
                .advise("look at the NATS server's log: a cluster without a majority answers so, too");
            (enabled(), refused, said.clone())
        }
    };
    let mut checks = vec![jetstream, stream];
    checks.extend(skip(&OF_STREAM, &why));
    checks
}

fn stream_words(seen: &StreamSeen) -> String {
    format!("as defined, with {} messages", seen.messages)
}

/// Whether what is there is as the files under `nats/` say.
fn definition(check: &'static str, drift: &[String], as_defined: String) -> Checked {
    if drift.is_empty() {
        return Checked::ok(check, as_defined);
    }
    Checked::wrong(check, drift.join("; ")).advise(
        "run `tenure migrate --queue NAME` with the settings of the workers, by a user who may change it; what cannot \
         be changed (retention, storage) takes a new stream",
    )
}

/// Publications are repeated under one id for as long as they may take; so are those of producers.
fn duplicates(seen: &StreamSeen, timing: &Timing) -> Checked {
    let (is, should) = (seen.duplicate_window, seen.duplicate_window_defined);
    let found = format!("the stream knows a repeated message for {is:?}");
    if is >= should.max(timing.publish_within) {
        return Checked::ok("duplicates", found);
    }
    Checked::warning("duplicates", format!("{found}, not {should:?}")).advise(
        "set the stream's duplicate_window as in nats/stream.json: a producer that publishes a submission again \
         later than that makes a second job",
    )
}

fn replicas(seen: &StreamSeen, server: &NatsSeen) -> Checked {
    let found = format!("the stream is kept {} times", seen.replicas);
    match (seen.replicas, server.is_clustered) {
        (1, true) => Checked::warning("replicas", "one server of the cluster has the stream, and no other").advise(
            "`nats stream edit --replicas 3`: while that server is away nothing is delivered, and what it loses is \
             published again only where a row is known",
        ),
        (1, false) => Checked::ok("replicas", "one server, and no cluster"),
        _ => Checked::ok("replicas", found),
    }
}

fn about_consumer(
    consumer: &Result<ConsumerSeen, Unseen>,
    name: &str,
    is_served: bool,
    timing: &Timing,
) -> Checked {
    const CHECK: &str = "consumer";
    let migrate = format!("run `tenure migrate --queue {name}` with the settings of the workers");
    let seen = match consumer {
        Ok(seen) => seen,
        Err(Unseen::Missing) if is_served => {
            return Checked::wrong(CHECK, "it does not exist: nothing of this queue is delivered")
                .advise(format!("look at the log of its workers, which should create it, or {migrate}"));
        }
        Err(Unseen::Missing) => return Checked::skipped(CHECK, "no worker has served this queue yet"),
        Err(Unseen::NoJetStream) => return Checked::skipped(CHECK, "there is no JetStream"),
        Err(Unseen::Denied(_)) => return Checked::skipped(CHECK, "this user may not ask for it"),
        Err(Unseen::NoAnswer(_)) => return Checked::skipped(CHECK, "nobody answered"),
        Err(Unseen::Refused(said)) => {
            return Checked::wrong(CHECK, said.as_str()).advise("look at the NATS server's log");
        }
    };
    let mut drift = seen.drift.clone();
    let backstop = timing.stale_after.saturating_add(timing.scan_every);
    if seen.ack_wait <= backstop {
        drift.push(format!(
            "a slow job is delivered again after {:?}, before anyone could ask whether its owner is alive, which \
             takes {backstop:?}",
            seen.ack_wait
        ));
    }
    if !drift.is_empty() {
        return Checked::wrong(CHECK, drift.join("; ")).advise(migrate);
    }
    if seen.is_paused {
        return Checked::warning(CHECK, "it is paused in NATS itself: nothing of this queue is delivered").advise(
            "`nats consumer resume`, when it is time; `tenure queues pause` is the way that the workers know of",
        );
    }
    let limit = seen.unacknowledged_max.map_or_else(|| "any number".into(), |max| max.to_string());
    let found =
        format!("{} messages wait, {} of {limit} are not acknowledged", seen.pending, seen.unacknowledged);
    match seen.unacknowledged_max {
        Some(max) if seen.unacknowledged.saturating_mul(10) >= max.saturating_mul(8) => {
            Checked::warning(CHECK, found).advise(format!(
                "at the limit nothing more is delivered: look for what holds them (`tenure jobs list --queue {name}`: \
                 jobs that run, or that wait for a worker which knows their kind), or spread the jobs over more queues"
            ))
        }
        _ => Checked::ok(CHECK, found),
    }
}

/// What this user may ask, as far as the questions above have shown.
fn rights(unseen: &[Unseen]) -> Checked {
    let about = |wanted: fn(&Unseen) -> Option<&str>| {
        unseen.iter().filter_map(wanted).map(str::to_owned).collect::<Vec<_>>()
    };
    let denied = about(|unseen| match unseen {
        Unseen::Denied(subject) => Some(subject.as_str()),
        _ => None,
    });
    if !denied.is_empty() {
        let found = format!("this user may not publish to {}", super::some_of(&denied));
        return Checked::warning("nats_rights", found)
            .advise("a producer need not; a worker has to: give it the rights that nats/server.conf gives to `worker`");
    }
    let unanswered = about(|unseen| match unseen {
        Unseen::NoAnswer(subject) => Some(subject.as_str()),
        _ => None,
    });
    if !unanswered.is_empty() {
        let found = format!("no answer on {}", super::some_of(&unanswered));
        return Checked::warning("nats_rights", found).advise(
            "either the server is slow or has no majority, or this user may not ask: a denied permission looks like no \
             answer. The rights of a worker are those in nats/server.conf",
        );
    }
    if unseen.contains(&Unseen::NoJetStream) {
        return Checked::skipped("nats_rights", "there is no JetStream");
    }
    Checked::ok("nats_rights", "this user may ask for the stream and its consumers")
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::client::doctor::CheckState;

    const ALONE: NatsSeen = NatsSeen { version: String::new(), is_too_old: false, is_clustered: false };

    fn stream() -> StreamSeen {
        StreamSeen {
            drift: Vec::new(),
            messages: 3,
            replicas: 1,
            duplicate_window: Duration::from_mins(2),
            duplicate_window_defined: Duration::from_mins(2),
            answered_at: Some(DateTime::UNIX_EPOCH),
            asked_at: DateTime::UNIX_EPOCH,
            took: Duration::ZERO,
        }
    }

    /// What is not as it should be.
    fn findings(checks: &[Checked]) -> Vec<(&'static str, CheckState)> {
        let findings = checks.iter().filter(|checked| checked.state != CheckState::Ok);
        findings.map(|checked| (checked.check, checked.state)).collect()
    }

    #[test]
    fn each_thing_that_is_wrong_with_the_stream_is_one_finding() {
        let about =
            |stream, server: &NatsSeen| findings(&about_stream(&Ok(stream), server, &Timing::DEFAULT));
        let cluster = NatsSeen { is_clustered: true, ..ALONE };
        assert!(about(stream(), &ALONE).is_empty());
        assert!(about(StreamSeen { replicas: 3, ..stream() }, &cluster).is_empty());
        assert_eq!(about(stream(), &cluster), [("replicas", CheckState::Warning)]);
        let drifted = StreamSeen { drift: vec!["max_age is 1s, expected 0ns".into()], ..stream() };
        assert_eq!(about(drifted, &ALONE), [("stream", CheckState::Wrong)]);
        let forgetful = StreamSeen { duplicate_window: Duration::from_secs(1), ..stream() };
        assert_eq!(about(forgetful, &ALONE), [("duplicates", CheckState::Warning)]);
        let silent = StreamSeen { answered_at: None, ..stream() };
        assert_eq!(about(silent, &ALONE), [("nats_clock", CheckState::Skipped)]);
        let old = NatsSeen { is_too_old: true, ..ALONE };
        assert_eq!(about_server(&old, "nats://n").state, CheckState::Wrong);
    }

    #[test]
    fn a_stream_that_cannot_be_seen_is_one_finding_at_most() {
        let wrong = |unseen| {
            let checks = about_stream(&Err(unseen), &ALONE, &Timing::DEFAULT);
            assert_eq!(checks.len(), 5);
            let mut wrong = findings(&checks);
            wrong.retain(|(_, state)| *state != CheckState::Skipped);
            wrong
        };
        assert_eq!(wrong(Unseen::Missing), [("stream", CheckState::Wrong)]);
        assert_eq!(wrong(Unseen::NoJetStream), [("jetstream", CheckState::Wrong)]);
        assert_eq!(wrong(Unseen::Refused("no".into())), [("stream", CheckState::Wrong)]);
        assert!(wrong(Unseen::Denied("s".into())).is_empty());
        assert!(wrong(Unseen::NoAnswer("s".into())).is_empty());
    }

    #[test]
    fn a_consumer_is_judged_by_its_definition_its_backstop_and_its_room() {
        let seen = || ConsumerSeen {
            drift: Vec::new(),
            ack_wait: Duration::from_mins(10),
            pending: 1,
            unacknowledged: 79,
            unacknowledged_max: Some(100),
            is_paused: false,
        };
        let about = |consumer| about_consumer(&consumer, "q", true, &Timing::DEFAULT);
        assert_eq!(about(Ok(seen())).state, CheckState::Ok);
        assert_eq!(about(Ok(ConsumerSeen { unacknowledged: 80, ..seen() })).state, CheckState::Warning);
        assert_eq!(about(Ok(ConsumerSeen { unacknowledged_max: None, ..seen() })).state, CheckState::Ok);
        assert_eq!(about(Ok(ConsumerSeen { is_paused: true, ..seen() })).state, CheckState::Warning);
        let drifted = about(Ok(ConsumerSeen { drift: vec!["max_deliver is 1".into()], ..seen() }));
        assert_eq!((drifted.state, drifted.found.as_str()), (CheckState::Wrong, "max_deliver is 1"));
        let early = about(Ok(ConsumerSeen { ack_wait: Duration::from_secs(330), ..seen() }));
        assert_eq!(early.state, CheckState::Wrong);
        assert!(early.found.contains("330s"), "{}", early.found);
        assert_eq!(about(Err(Unseen::Missing)).state, CheckState::Wrong);
        let unserved = about_consumer(&Err(Unseen::Missing), "q", false, &Timing::DEFAULT);
        assert_eq!(unserved.state, CheckState::Skipped);
        assert_eq!(about(Err(Unseen::Denied("s".into()))).state, CheckState::Skipped);
    }

    #[test]
    fn a_denied_question_and_an_unanswered_one_are_told_apart_where_they_can_be() {
        assert_eq!(rights(&[]).state, CheckState::Ok);
        let denied = rights(&[Unseen::NoAnswer("a".into()), Unseen::Denied("$JS.API.x".into())]);
        assert_eq!(denied.state, CheckState::Warning);
        assert!(denied.found.ends_with("may not publish to $JS.API.x"), "{}", denied.found);
        let unanswered = rights(&[Unseen::NoAnswer("a".into())]);
        assert!(unanswered.to_do.is_some_and(|to_do| to_do.contains("looks like no answer")));
    }
}
