//! Message: a delivered message, and the receipt that answers it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{
    HeaderMap,
    jetstream::{self, AckKind},
};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use super::{
    answers::{Answer, Line},
    connect::Nats,
    publish::{JOB_ID, SEVERAL, TicketBody, kind_and_jobs},
};
use crate::job::{JobId, claim::Ack};

/// The jobs of one message extend its `ack_wait` at most this often, and at most six times in it.
const EXTENDED_EVERY: Duration = Duration::from_secs(1);

/// One delivery of a message.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) subject: String,
    pub(crate) body: Bytes,
    headers: HeaderMap,
    /// Why the client could not read the subject or the headers. The body then holds the bytes of both.
    pub(crate) unreadable: Option<String>,
    pub(crate) sequence: u64,
    published_ns: i128,
    /// The number of deliveries of the message, this one included. A hint: the server may lose count.
    pub(crate) deliveries: i64,
    /// The number of undelivered messages of its queue at this delivery.
    pub(crate) pending: u64,
    /// The jobs that the message names, each with its dispatch, if it names several. Empty, too, if its body names
    /// another number of jobs than its subject: such a message is malformed.
    several: Vec<(JobId, i32)>,
    /// The job and its dispatch, if this is the part of one job in a message that names several.
    pub(crate) part: Option<(JobId, i32)>,
    pub(crate) receipt: Receipt,
}

impl Delivery {
    /// Of a message that was requested while `line` was up. Borrows `context` from the caller: a clone for each message
    /// would cost more than the rest.
    pub(crate) fn new(
        nats: &Nats,
        line: Option<Arc<Line>>,
        context: &mut Option<jetstream::Context>,
        message: async_nats::Message,
    ) -> Result<Self, async_nats::Error> {
        let lent = context.take().unwrap_or_else(|| nats.context.clone());
        let message = jetstream::Message { message, context: lent };
        let numbers = message.info().map(|info| {
            (info.stream_sequence, info.published.unix_timestamp_nanos(), info.delivered, info.pending)
        });
        let jetstream::Message { message, context: lent } = message;
        *context = Some(lent);
        let (sequence, published_ns, deliveries, pending) = numbers?;
        let mut delivery = Self {
            several: Vec::new(),
            part: None,
            subject: message.subject.into_string(),
            body: message.payload,
            headers: message.headers.unwrap_or_default(),
            // A job has no status, and so no description: this one is the client's, or its sender has written both.
            unreadable: match message.status {
                Some(status) => {
                    Some(format!("its headers have the status {status}, which only a server may set"))
                }
                None => message.description,
            },
            sequence,
            published_ns,
            deliveries,
            pending,
            receipt: Receipt {
                reply: message.reply,
                sequence,
                published_ns,
                line,
                arrived_at: Instant::now(),
                nats: nats.clone(),
                shared: None,
            },
        };
        delivery.several = delivery.read_several().unwrap_or_default();
        Ok(delivery)
    }

    /// It may have arrived at any time since then.
    pub(super) fn arrived_after(mut self, at: Instant) -> Self {
        self.receipt.arrived_at = at;
        self
    }

    fn read_several(&self) -> Option<Vec<(JobId, i32)>> {
        let jobs = jobs_of(&self.subject);
        let body = (jobs > 1).then(|| serde_json::from_slice::<TicketBody>(&self.body).ok())??;
        let is_named = |job: JobId| self.header(JOB_ID).is_some_and(|id| id.parse() == Ok(job));
        (body.more.len() + 1 == jobs && !body.cleared && is_named(body.job_id))
            .then(|| std::iter::once((body.job_id, body.dispatch)).chain(body.more).collect())
    }

    /// How many jobs the message names.
    pub(crate) fn jobs(&self) -> usize {
        self.several.len().max(1)
    }

    /// Divides a message that names several jobs into one part for each. The parts share its ack.
    pub(crate) fn split(mut self) -> VecDeque<Self> {
        let several = std::mem::take(&mut self.several);
        let subject = self.subject.rsplit_once(SEVERAL);
        let (false, Some((before, after))) = (several.is_empty(), subject) else { return [self].into() };
        let subject = format!("{before}{}", after.split_once('.').unwrap_or_default().1);
        let shared = Arc::new(Shared::of(several.len()));
        let part = |(place, part)| Self {
            subject: subject.clone(),
            body: Bytes::new(),
            headers: HeaderMap::new(),
            unreadable: None,
            several: Vec::new(),
            part: Some(part),
            receipt: Receipt { shared: Some((shared.clone(), place)), ..self.receipt.clone() },
            ..self
        };
        several.into_iter().enumerate().map(part).collect()
    }

    /// A header's value. The case of its name does not matter.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| AsRef::<str>::as_ref(*key).eq_ignore_ascii_case(name))
            .and_then(|(_, values)| values.first())
            .map(async_nats::HeaderValue::as_str)
    }

    /// The names of the headers, each as often as it has a value.
    pub(crate) fn header_names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().flat_map(|(name, values)| values.iter().map(move |_| AsRef::<str>::as_ref(name)))
    }

    /// When the stream stored the message.
    pub(crate) fn published(&self) -> DateTime<Utc> {
        let micros = i64::try_from(self.published_ns / 1_000).unwrap_or_default();
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    /// Returns the identity of this message, which is the same for all its deliveries on all workers.
    ///
    /// It consists of the time of storage and the sequence, both from the delivery itself. The stream's creation time
    /// would need a request, and two workers could get different answers: two ids, two runs. A recreated stream
    /// repeats neither.
    pub(crate) fn identity(&self) -> String {
        identity_of(self.published_ns, self.sequence)
    }

    /// Returns the id of this submission's job: a UUID v7 with the time of the message.
    pub(crate) fn derived_id(&self) -> JobId {
        derive_id(self.published_ns, &self.identity())
    }
}

/// Returns the id of the job of the submission with this sequence, stored at this time.
pub(super) fn id_of_submission(published_ns: i128, sequence: u64) -> JobId {
    derive_id(published_ns, &identity_of(published_ns, sequence))
}

fn identity_of(published_ns: i128, sequence: u64) -> String {
    format!("{published_ns}:{sequence}")
}

fn derive_id(published_ns: i128, identity: &str) -> JobId {
    let millis = u64::try_from(published_ns / 1_000_000).unwrap_or_default();
    let hash = Sha256::digest(identity.as_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    JobId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// Returns how many jobs a message of this subject names.
fn jobs_of(subject: &str) -> usize {
    let several = subject.rsplit_once(SEVERAL).map(|(_, several)| format!("{SEVERAL}{several}"));
    several.and_then(|several| Some(kind_and_jobs(&several)?.1)).unwrap_or(1)
}

/// The right to answer one message. Answers are sent without a confirmation: a lost answer is harmless.
///
/// The jobs that one message names have a receipt each. NATS gets one answer, once each of them has its own: done, or
/// later if one of them was put off. If one of them has none, because its worker has died, NATS redelivers the message.
#[derive(Clone)]
pub(crate) struct Receipt {
    reply: Option<async_nats::Subject>,
    pub(crate) sequence: u64,
    published_ns: i128,
    /// The connection for answers that was up when the message was requested. `None`: it is not known.
    line: Option<Arc<Line>>,
    arrived_at: Instant,
    nats: Nats,
    /// The message's state, and the place of this job in it. `None`: the message names one job.
    shared: Option<(Arc<Shared>, usize)>,
}

/// The state of a message that names several jobs.
#[derive(Debug)]
struct Shared(Mutex<Answers>);

#[derive(Debug)]
struct Answers {
    /// For each job without an answer, its last sign of life; at first, the delivery.
    signs: Vec<Option<Instant>>,
    /// Whether each job runs here.
    runs: Vec<bool>,
    /// The shortest wait of those that were put off.
    later: Option<Duration>,
    extended_at: Option<Instant>,
}

impl Shared {
    fn of(jobs: usize) -> Self {
        let signs = vec![Some(Instant::now()); jobs];
        Self(Mutex::new(Answers { signs, runs: vec![false; jobs], later: None, extended_at: None }))
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the answer to the job in this place. Returns the answer to the message with the last of them.
    fn note(&self, place: usize, ack: Ack) -> Option<Ack> {
        let mut answers = self.answers();
        answers.signs.get_mut(place)?.take()?;
        if let Ack::Later(wait) = ack {
            answers.later = Some(answers.later.map_or(wait, |later| later.min(wait)));
        }
        answers.signs.iter().all(Option::is_none).then(|| answers.later.map_or(Ack::Done, Ack::Later))
    }

    /// Notes a sign of life of the job in this place. Returns whether to extend the message's `ack_wait`: one extension
    /// is enough for several jobs, and none keeps from redelivery a job that has been silent for an `ack_wait`.
    fn is_to_extend(&self, place: usize, ack_wait: Duration) -> bool {
        let now = Instant::now();
        let mut answers = self.answers();
        if let Some(Some(sign)) = answers.signs.get_mut(place) {
            *sign = now;
        }
        let is_silent = |sign: &Instant| now.duration_since(*sign) >= ack_wait;
        let every = EXTENDED_EVERY.min(ack_wait / 6);
        let is_due = answers.extended_at.is_none_or(|at| now.duration_since(at) >= every)
            && !answers.signs.iter().flatten().any(is_silent);
        if is_due {
            answers.extended_at = Some(now);
        }
        is_due
    }
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receipt").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Receipt {
    /// Restores the receipt of a message that this or another process has pulled, from the subject of its answers and
    /// its [mark](Self::mark). Of another subject, it answers nothing.
    pub(crate) fn restored(nats: &Nats, reply: &str, mark: &str) -> Self {
        let message = async_nats::Message {
            subject: reply.into(),
            reply: Some(reply.into()),
            payload: Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        };
        let line = nats.answers.line_now();
        let arrived_at = line.as_ref().and_then(|line| line.arrival(mark));
        let line = line.filter(|_| arrived_at.is_some());
        let arrived_at = arrived_at.unwrap_or_else(Instant::now);
        match Delivery::new(nats, line, &mut None, message) {
            Ok(delivery) => Self { arrived_at, ..delivery.receipt },
            Err(_) => Self {
                reply: None,
                sequence: 0,
                published_ns: 0,
                line: None,
                arrived_at,
                nats: nats.clone(),
                shared: None,
            },
        }
    }

    /// What a receipt that leaves the process says of its arrival.
    pub(crate) fn mark(&self) -> String {
        self.line.as_ref().map(|line| line.mark(self.arrived_at)).unwrap_or_default()
    }

    /// The subject of its answers.
    pub(crate) fn reply(&self) -> Option<&str> {
        self.reply.as_deref()
    }

    /// Answers the message.
    pub(crate) async fn send(&self, ack: Ack) {
        let ack = match &self.shared {
            None => ack,
            Some((shared, place)) => match shared.note(*place, ack) {
                Some(ack) => ack,
                None => return,
            },
        };
        let kind = match ack {
            Ack::Done => AckKind::Ack,
            // Without a delay, NATS would redeliver it within 100 µs, before every new message.
            Ack::Later(wait) => AckKind::Nak(Some(wait.max(Duration::from_millis(50)))),
            Ack::Never => AckKind::Term,
        };
        self.send_kind(kind).await;
    }

    /// Extends the message's `ack_wait`.
    pub(crate) async fn in_progress(&self) {
        let is_to_extend =
            |(shared, place): &(Arc<Shared>, usize)| shared.is_to_extend(*place, self.nats.ack_wait);
        if !self.shared.as_ref().is_none_or(is_to_extend) {
            return;
        }
        self.send_kind(AckKind::Progress).await;
    }

    /// Notes that this job runs here.
    pub(crate) fn runs(&self) {
        if let Some((shared, place)) = &self.shared
            && let Some(runs) = shared.answers().runs.get_mut(*place)
        {
            *runs = true;
        }
    }

    /// Whether the answer to this job waits for a job of its message that runs here.
    pub(crate) fn waits_for_another(&self) -> bool {
        self.shared.as_ref().is_some_and(|(shared, _)| {
            let answers = shared.answers();
            answers.signs.iter().zip(&answers.runs).any(|(sign, runs)| *runs && sign.is_some())
        })
    }

    /// Returns the message at once, for another worker. The part of one job waits for the others.
    pub(crate) async fn nak(&self) {
        if self.shared.is_some() {
            return self.send(Ack::Later(Duration::ZERO)).await;
        }
        self.send_kind(AckKind::Nak(None)).await;
    }

    async fn send_kind(&self, kind: AckKind) {
        let Some(reply) = self.reply.clone() else { return };
        // An answer that is not sent is harmless: NATS redelivers the message.
        if let Some(line) = self.line.as_ref().filter(|line| line.is_fresh(self.arrived_at)) {
            self.nats.tell_over(&line.client, reply, kind.into()).await;
        } else {
            let (sequence, published_ns) = (self.sequence, self.published_ns);
            self.nats.answers.send(Answer { reply, sequence, published_ns, kind });
        }
    }
}

#[cfg(test)]
impl Delivery {
    /// Makes up a delivery, of a ticket or a submission. Its answers reach no stream.
    pub(crate) fn made_up(
        nats: &Nats,
        (subject, body): (String, String),
        ticket: Option<JobId>,
        sequence: i32,
        deliveries: i64,
    ) -> Self {
        let mut headers = HeaderMap::new();
        if let Some(job) = ticket {
            headers.insert(super::JOB_ID, job.to_string());
        }
        let message = async_nats::Message {
            length: body.len(),
            subject: subject.into(),
            reply: Some(format!("$JS.ACK.S.c.{deliveries}.{sequence}.1.1795000000123456789.0").into()),
            payload: body.into(),
            headers: Some(headers),
            status: None,
            description: None,
        };
        Self::new(nats, None, &mut None, message).unwrap_or_else(|error| panic!("{error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_several_jobs_is_answered_with_the_last_of_them() {
        let wait = Duration::from_secs;
        for (answers, expected) in [
            (vec![Ack::Done, Ack::Never, Ack::Done], Ack::Done),
            (vec![Ack::Later(wait(9)), Ack::Done, Ack::Later(wait(5))], Ack::Later(wait(5))),
        ] {
            let shared = Shared::of(answers.len());
            let last = answers.len() - 1;
            assert!((0..last).all(|place| shared.note(place, answers[place]).is_none()));
            assert_eq!(shared.note(0, Ack::Done), None, "a second answer to a job changes nothing");
            assert_eq!(shared.note(last, answers[last]), Some(expected));
            assert_eq!(shared.note(last, Ack::Done), None, "a second answer to a job changes nothing");
        }
    }

    #[test]
    fn a_silent_job_of_a_message_is_redelivered_although_another_reports() {
        let (shared, ack_wait) = (Shared::of(2), Duration::from_millis(60));
        assert!(shared.is_to_extend(0, ack_wait), "both were delivered just now");
        assert!(!shared.is_to_extend(0, ack_wait), "one extension is enough");
        std::thread::sleep(ack_wait);
        assert!(!shared.is_to_extend(0, ack_wait), "the other has been silent for too long");
        assert!(shared.is_to_extend(1, ack_wait), "it reports again");
        std::thread::sleep(ack_wait);
        shared.note(0, Ack::Done);
        assert!(shared.is_to_extend(1, ack_wait), "a job that has ended needs no sign of life");
    }

    #[test]
    fn a_subject_says_how_many_jobs_its_message_names() {
        for (subject, jobs) in
            [("t.q.k", 1), ("t.q.+16.k", 16), ("t.q.+2.a.b", 2), ("t.q.+0.k", 1), ("t.q.+", 1)]
        {
            assert_eq!(jobs_of(subject), jobs, "{subject}");
        }
    }

    #[test]
    fn a_derived_id_is_a_v7_of_the_messages_time_and_the_same_for_every_delivery() {
        let at_ns = 1_795_000_000_123_456_789_i128;
        let id = derive_id(at_ns, "1795000000123456789:42");
        assert_eq!(id, derive_id(at_ns, "1795000000123456789:42"));
        assert_ne!(id, derive_id(at_ns, "1795000000123456789:43"));
        assert_eq!(id.0.get_version_num(), 7);
        assert_eq!(id.0.get_timestamp().map(|t| t.to_unix()), Some((1_795_000_000, 123_000_000)));
    }
}
