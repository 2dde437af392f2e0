//! Stream: compares the NATS server, the stream and the consumers with what they should be.

use std::{collections::HashSet, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::timeout;

use super::{Asked, Check, clock, skip};
use crate::{
    client::Tenure,
    config::Timing,
    job::duration::written,
    nats::{AHEAD, ASKED_AT_ONCE, ConsumerSeen, Limit, Nats, NatsSeen, StreamSeen, Unseen},
};

/// The checks that are skipped when NATS is not reached, besides those of the consumers.
const REST: [&str; 7] =
    ["jetstream", "stream", "storage", "duplicates", "replicas", "nats_clock", "nats_rights"];
/// The checks that need the stream's own answer.
const OF_STREAM: [&str; 4] = ["storage", "duplicates", "replicas", "nats_clock"];

/// How long a new connection may take.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// Returns every check of NATS as skipped, and why.
pub(crate) fn skipped(why: &str) -> Vec<Check> {
    let mut checks = skip(&REST, why);
    checks.push(Check::skipped("consumer", why));
    checks
}

/// Waits for the connection, and checks the server.
pub(crate) async fn reach(tenure: &Tenure) -> (Check, Option<NatsSeen>) {
    let (nats, url) = (tenure.nats(), tenure.nats().servers().to_owned());
    if timeout(CONNECTED_WITHIN, nats.connected()).await.is_err() {
        let said = nats.last_said();
        let why = if said.is_empty() { "NATS does not answer".into() } else { said };
        let checked = Check::wrong(
            "nats",
            format!("{url} was not reached within {}: {why}", written(CONNECTED_WITHIN)),
        );
        let to_do = "check NATS_URL (tls:// needs a server with TLS), the network and the server; an authorization \
                     violation means that the server does not know the user or the password";
        return (checked.advise(to_do), None);
    }
    let seen = nats.nats_seen();
    (about_server(&seen, &url), Some(seen))
}

fn about_server(seen: &NatsSeen, url: &str) -> Check {
    let found = format!("nats-server {} at {url}", seen.version);
    if seen.is_too_old {
        return Check::wrong("nats", found).advise(
            "upgrade NATS to 2.10.23 or later: an older server can lose a whole stream when it is killed",
        );
    }
    Check::ok("nats", found)
}

/// Checks the stream and the consumers. Creates nothing. `unread`: why messages could not be read.
pub(crate) async fn look(
    nats: &Nats,
    timing: &Timing,
    server: &NatsSeen,
    asked: &[Asked],
    unread: Option<Unseen>,
) -> Vec<Check> {
    let stream = nats.stream_seen().await;
    let mut checks = about_stream(&stream, server, timing);
    let why_not = match &stream {
        Err(Unseen::Missing) => Some("there is no stream"),
        Err(unseen) if asks_in_vain(unseen).is_some() => asks_in_vain(unseen),
        _ if asked.is_empty() => Some("no queue is known yet; name one with --queue"),
        _ => None,
    };
    let mut unseen: Vec<_> = stream.err().into_iter().collect();
    if let Some(why) = why_not {
        checks.push(Check::skipped("consumer", why));
    } else {
        let requests = asked.iter().map(|of| async move { (of, nats.consumer_seen(&of.queue).await) });
        let mut requests = stream::iter(requests).buffered(ASKED_AT_ONCE);
        let mut consumers = Vec::with_capacity(asked.len());
        // Each unanswered request costs a whole time limit.
        while !unseen.iter().any(|unseen| asks_in_vain(unseen).is_some())
            && let Some((of, consumer)) = requests.next().await
        {
            unseen.extend(consumer.as_ref().err().cloned());
            consumers.push((of, consumer));
        }
        let places = consumers.iter().filter_map(|(_, seen)| Some(seen.as_ref().ok()?.place.clone()));
        let places: Vec<_> = places.collect();
        // NATS that has not answered for a consumer would not answer for the stream.
        let is_in_vain = places.is_empty() || unseen.iter().any(|unseen| asks_in_vain(unseen).is_some());
        let ahead = if is_in_vain { Vec::new() } else { nats.ahead_of(places).await.unwrap_or_default() };
        let ahead: HashSet<_> = ahead.iter().map(|place| place.name.as_str()).collect();
        for (Asked { queue: name, is_served }, mut consumer) in consumers {
            if let Ok(seen) = &mut consumer
                && ahead.contains(name.as_str())
            {
                seen.drift.push(AHEAD.into());
            }
            checks.push(about_consumer(&consumer, name, *is_served, timing).of(name));
        }
        if let Some(why) = unseen.iter().find_map(asks_in_vain) {
            let rest = asked.iter().skip(checks.iter().filter(|check| check.check == "consumer").count());
            checks.extend(rest.map(|of| Check::skipped("consumer", why).of(&of.queue)).collect::<Vec<_>>());
        }
    }
    unseen.extend(unread);
    checks.push(rights(&unseen));
    checks
}

/// Says why a request for a consumer would fail as well after this.
fn asks_in_vain(unseen: &Unseen) -> Option<&'static str> {
    match unseen {
        Unseen::NoJetStream => Some("there is no JetStream"),
        Unseen::NoAnswer(_) => Some("NATS did not answer the request before it"),
        Unseen::Missing | Unseen::Denied(_) | Unseen::Refused(_) => None,
    }
}

fn about_stream(stream: &Result<StreamSeen, Unseen>, server: &NatsSeen, timing: &Timing) -> Vec<Check> {
    let enabled = || Check::ok("jetstream", "enabled");
    let (jetstream, stream, why) = match stream {
        Ok(seen) => {
            let mut checks = vec![enabled(), definition("stream", &seen.drift, stream_words(seen))];
            checks.push(storage(&seen.limits, seen.account.as_ref()));
            checks.push(duplicates(seen, timing));
            checks.push(replicas(seen, server));
            checks.push(match seen.answered_at {
                Some(answered_at) => clock("nats_clock", answered_at, seen.asked_at, seen.took),
                None => Check::skipped("nats_clock", "this server does not report its time"),
            });
            return checks;
        }
        Err(Unseen::Missing) => {
            let missing = Check::wrong("stream", "the stream does not exist: no message can be published")
                .advise("start a worker, which creates it, or run `tenure migrate --queue NAME`");
            (enabled(), missing, "there is no stream".to_owned())
        }
        Err(Unseen::NoJetStream) => {
            let why = "there is no JetStream";
            let disabled = Check::wrong("jetstream", "JetStream is not enabled, or not for this account")
                .advise("enable it, and give it a store_dir: see nats/server.conf");
            (disabled, Check::skipped("stream", why), why.into())
        }
        Err(Unseen::Denied(_)) => {
            let why = "this user may not query the stream";
            (Check::skipped("jetstream", why), Check::skipped("stream", why), why.into())
        }
        Err(Unseen::NoAnswer(_)) => {
            let why = "NATS does not answer";
            (Check::skipped("jetstream", why), Check::skipped("stream", why), why.into())
        }
        Err(Unseen::Refused(said)) => {
            let refused = Check::wrong("stream", said.as_str())
                .advise("look at the NATS server's log: a cluster without a majority answers this, too");
            (enabled(), refused, said.clone())
        }
    };
    let mut checks = vec![jetstream, stream];
    checks.extend(skip(&OF_STREAM, &why));
    checks
}

fn stream_words(seen: &StreamSeen) -> String {
    match seen.messages {
        1 => "as defined, with 1 message".into(),
        n => format!("as defined, with {n} messages"),
    }
}

/// Compares what exists with its definition under `nats/`.
fn definition(check: &'static str, drift: &[String], as_defined: String) -> Check {
    if drift.is_empty() {
        return Check::ok(check, as_defined);
    }
    Check::wrong(check, drift.join("; ")).advise(
        "run `tenure migrate --queue NAME` with the settings of the workers, as a user that may change the stream; \
         its retention, storage, mirror and seal, and a consumer's deliver_policy and replay_policy, cannot change: \
         delete the consumer, or the stream with the submissions in it, and a worker creates it anew",
    )
}

/// A stream discards new messages at its limits: rows wait for the relay then, and producers are refused. `account`:
/// why the account's limits are not known.
fn storage(limits: &[Limit], account: Option<&Unseen>) -> Check {
    const CHECK: &str = "storage";
    // NATS refuses a message that does not fit: the last bytes stay free.
    let is_full = |of: &&Limit| of.used.saturating_add(of.message) > of.most;
    let is_near = |of: &&Limit| of.used.saturating_mul(10) >= of.most.saturating_mul(8);
    let words = |of: &Limit| format!("{} of {} {}", of.used, of.most, of.of);
    let to_do = "start workers, so that messages go; remove the messages that no worker will read; or raise the limit \
                 (`nats stream edit --max-bytes`, `--max-msgs`, or the account's max_storage). Workers then publish \
                 what waits";
    let full: Vec<_> = limits.iter().filter(is_full).map(words).collect();
    if !full.is_empty() {
        let found = format!("full: {}: NATS refuses messages", full.join(", "));
        return Check::wrong(CHECK, found).advise(to_do);
    }
    let near: Vec<_> = limits.iter().filter(is_near).map(words).collect();
    if !near.is_empty() {
        return Check::warning(CHECK, near.join(", ")).advise(to_do);
    }
    let known = match limits {
        [] => "the stream has no limit".to_owned(),
        limits => limits.iter().map(words).collect::<Vec<_>>().join(", "),
    };
    match account {
        None if limits.is_empty() => {
            Check::ok(CHECK, "neither the stream nor the account has a limit of its own")
        }
        None => Check::ok(CHECK, known),
        Some(Unseen::Denied(_)) => Check::skipped(
            CHECK,
            format!("{known}; this user may not ask for the account's: see nats/server.conf"),
        ),
        Some(_) => Check::skipped(CHECK, format!("{known}; NATS did not tell the account's")),
    }
}

/// Publishers repeat a publication under one id for as long as it may take; producers do, too.
fn duplicates(seen: &StreamSeen, timing: &Timing) -> Check {
    let (is, should) = (seen.duplicate_window, seen.duplicate_window_defined);
    let found = format!("the stream recognises a repeated message for {}", written(is));
    if is >= should.max(timing.publish_within) {
        return Check::ok("duplicates", found);
    }
    Check::warning("duplicates", format!("{found}, not {}", written(should))).advise(
        "set the stream's duplicate_window as in nats/stream.json: a producer that repeats a submission after \
         that makes a second job",
    )
}

fn replicas(seen: &StreamSeen, server: &NatsSeen) -> Check {
    let found = format!("the stream has {} replicas", seen.replicas);
    match (seen.replicas, server.is_clustered) {
        (1, true) => Check::warning("replicas", "only one server of the cluster has the stream").advise(
            "`nats stream edit --replicas 3`: while that server is away nothing is delivered, and of the messages that \
             it loses only those with a row are republished",
        ),
        (1, false) => Check::ok("replicas", "one server, and no cluster"),
        _ => Check::ok("replicas", found),
    }
}

fn about_consumer(
    consumer: &Result<ConsumerSeen, Unseen>,
    name: &str,
    is_served: bool,
    timing: &Timing,
) -> Check {
    const CHECK: &str = "consumer";
    let migrate = format!("run `tenure migrate --queue {name}` with the settings of the workers");
    let seen = match consumer {
        Ok(seen) => seen,
        Err(Unseen::Missing) if is_served => {
            return Check::wrong(CHECK, "the consumer does not exist: no job of this queue is delivered")
                .advise(format!("look at the logs of its workers, which should create it, or {migrate}"));
        }
        Err(Unseen::Missing) => return Check::skipped(CHECK, "no worker has served this queue yet"),
        Err(Unseen::NoJetStream) => return Check::skipped(CHECK, "there is no JetStream"),
        Err(Unseen::Denied(_)) => return Check::skipped(CHECK, "this user may not query the consumer"),
        Err(Unseen::NoAnswer(_)) => return Check::skipped(CHECK, "NATS does not answer"),
        Err(Unseen::Refused(said)) => {
            return Check::wrong(CHECK, said.as_str()).advise("look at the NATS server's log");
        }
    };
    let mut drift = seen.drift.clone();
    let backstop = timing.stale_after.saturating_add(timing.scan_every);
    if seen.ack_wait <= backstop {
        drift.push(format!(
            "NATS delivers a slow job again after {}, before a scan can tell whether its owner is alive, which takes \
             {}",
            written(seen.ack_wait),
            written(backstop)
        ));
    }
    if !drift.is_empty() {
        return Check::wrong(CHECK, drift.join("; ")).advise(migrate);
    }
    if seen.is_paused {
        return Check::warning(CHECK, "paused in NATS itself: no job of this queue is delivered").advise(
            "`nats consumer resume`, when it is time; to pause a queue, use `tenure queues pause`, which workers know",
        );
    }
    let limit = seen.unacknowledged_max.map_or_else(|| "no limit".into(), |max| format!("limit {max}"));
    let noun = if seen.pending == 1 { "message" } else { "messages" };
    let found = format!("{} {noun} waiting, {} unacknowledged ({limit})", seen.pending, seen.unacknowledged);
    match seen.unacknowledged_max {
        Some(max) if seen.unacknowledged.saturating_mul(10) >= max.saturating_mul(8) => {
            Check::warning(CHECK, found).advise(format!(
                "at the limit NATS delivers nothing more: look for the jobs that hold the messages (`tenure jobs list \
                 --queue {name}`: jobs that run, or wait for a worker that knows their kind), or spread the jobs over \
                 more queues"
            ))
        }
        _ => Check::ok(CHECK, found),
    }
}

/// Reports this user's rights, as far as the requests above have shown them.
fn rights(unseen: &[Unseen]) -> Check {
    let about = |wanted: fn(&Unseen) -> Option<&str>| {
        unseen.iter().filter_map(wanted).map(str::to_owned).collect::<Vec<_>>()
    };
    let denied = about(|unseen| match unseen {
        Unseen::Denied(subject) => Some(subject.as_str()),
        _ => None,
    });
    if !denied.is_empty() {
        let found = format!("this user may not publish to {}", super::some_of(&denied));
        return Check::warning("nats_rights", found).advise(
            "a producer needs no such right; a worker does: give it those of `worker` in nats/server.conf",
        );
    }
    let unanswered = about(|unseen| match unseen {
        Unseen::NoAnswer(subject) => Some(subject.as_str()),
        _ => None,
    });
    if !unanswered.is_empty() {
        let found = format!("no answer on {}", super::some_of(&unanswered));
        return Check::warning("nats_rights", found).advise(
            "the server is slow or has no majority, or this user lacks the right: a denied request looks like no \
             answer. nats/server.conf has the rights of a worker",
        );
    }
    if unseen.contains(&Unseen::NoJetStream) {
        return Check::skipped("nats_rights", "there is no JetStream");
    }
    Check::ok("nats_rights", "this user may query the stream and its consumers")
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::doctor::CheckState;
    use crate::nats::Place;

    const ALONE: NatsSeen = NatsSeen { version: String::new(), is_too_old: false, is_clustered: false };

    fn stream() -> StreamSeen {
        StreamSeen {
            drift: Vec::new(),
            messages: 3,
            limits: Vec::new(),
            account: None,
            replicas: 1,
            duplicate_window: Duration::from_mins(2),
            duplicate_window_defined: Duration::from_mins(2),
            answered_at: Some(DateTime::UNIX_EPOCH),
            asked_at: DateTime::UNIX_EPOCH,
            took: Duration::ZERO,
        }
    }

    /// The checks that are not ok.
    fn findings(checks: &[Check]) -> Vec<(&'static str, CheckState)> {
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
        let limit = |used| vec![Limit { of: "bytes of the stream", used, most: 10_000, message: 1_024 }];
        let filled = |used| about(StreamSeen { limits: limit(used), ..stream() }, &ALONE);
        assert!(filled(7_999).is_empty());
        assert_eq!(filled(8_000), [("storage", CheckState::Warning)]);
        assert_eq!(filled(8_977), [("storage", CheckState::Wrong)]);
        let denied = StreamSeen { account: Some(Unseen::Denied("$JS.API.INFO".into())), ..stream() };
        assert_eq!(about(denied, &ALONE), [("storage", CheckState::Skipped)]);
        let old = NatsSeen { is_too_old: true, ..ALONE };
        assert_eq!(about_server(&old, "nats://n").state, CheckState::Wrong);
    }

    #[test]
    fn a_stream_that_cannot_be_seen_is_one_finding_at_most() {
        let wrong = |unseen| {
            let checks = about_stream(&Err(unseen), &ALONE, &Timing::DEFAULT);
            assert_eq!(checks.len(), 6);
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
            place: Place::default(),
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
        assert!(early.found.contains("5m 30s"), "{}", early.found);
        assert_eq!(about(Err(Unseen::Missing)).state, CheckState::Wrong);
        let unserved = about_consumer(&Err(Unseen::Missing), "q", false, &Timing::DEFAULT);
        assert_eq!(unserved.state, CheckState::Skipped);
        assert_eq!(about(Err(Unseen::Denied("s".into()))).state, CheckState::Skipped);
    }

    #[test]
    fn a_denied_request_and_an_unanswered_one_are_told_apart_where_possible() {
        assert_eq!(rights(&[]).state, CheckState::Ok);
        let denied = rights(&[Unseen::NoAnswer("a".into()), Unseen::Denied("$JS.API.x".into())]);
        assert_eq!(denied.state, CheckState::Warning);
        assert!(denied.found.ends_with("may not publish to $JS.API.x"), "{}", denied.found);
        let unanswered = rights(&[Unseen::NoAnswer("a".into())]);
        assert!(unanswered.to_do.is_some_and(|to_do| to_do.contains("looks like no answer")));
    }
}
