//! Fuzz: untrusted input, as the fuzzer's targets take it (`fuzz/`). Built with `--cfg fuzzing`, and for the tests
//! below, which try the seeds and random changes of them.
//!
//! Each target takes any bytes, and panics if the result breaks a rule that the rest of tenure relies on.

use std::collections::BTreeMap;

use crate::{
    Config,
    config::masked,
    deliver::message::{Message, Origin, RawMessage, read},
    job::{JobId, check_kind, check_queue, unstorable},
};

struct Given<'g> {
    subject: &'g str,
    headers: Vec<(String, &'g str)>,
    body: &'g [u8],
}

impl RawMessage for Given<'_> {
    fn subject(&self) -> &str {
        self.subject
    }

    fn body(&self) -> &[u8] {
        self.body
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    fn header_names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|(name, _)| name.as_str())
    }

    fn origin(&self) -> Origin {
        Origin {
            id: JobId::generate(),
            identity: "1:1".into(),
            sequence: 1,
            published: chrono::DateTime::default(),
        }
    }
}

/// The largest payload of this target.
const PAYLOAD_BYTES_MAX: usize = 4 * 1024;

/// Reads a message: its first lines are the subject and the headers, an empty line ends them; the rest is the body.
///
/// # Panics
///
/// If the message is accepted as a job that it cannot be.
pub fn message(data: &[u8]) {
    let end = data.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    let Ok(head) = std::str::from_utf8(head) else { return };
    let mut lines = head.lines();
    let subject = lines.next().unwrap_or_default();
    let headers =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value));
    let given = Given { subject, headers: headers.collect(), body };
    match read(&given, "jobs", PAYLOAD_BYTES_MAX) {
        Message::Ticket(named) => {
            assert!(check_queue(&named.queue).is_ok() && check_kind(&named.kind).is_ok());
            assert_eq!(subject, format!("jobs.{}.{}", named.queue, named.kind));
        }
        Message::Submission(job) => {
            let mut own: Vec<_> = given.header_names().filter(|name| name.starts_with("tenure-")).collect();
            own.sort_unstable();
            assert!(own.windows(2).all(|two| two[0] != two[1]), "{own:?}");
            assert!(check_queue(&job.queue).is_ok() && check_kind(&job.kind).is_ok());
            assert_eq!(job.payload.as_bytes(), body, "the payload is stored unchanged");
            assert!(body.len() <= PAYLOAD_BYTES_MAX);
            let payload: serde_json::Value = serde_json::from_slice(body).expect("the payload is JSON");
            assert_eq!(unstorable(&payload), None);
            assert!((1..=1_000).contains(&job.max_attempts));
            let (scope, key) = job.key.expect("a submission has a key");
            assert!(!key.is_empty() && !key.contains('\0') && (scope.is_empty() || scope == job.queue));
            assert!(job.trace_context.is_none_or(|trace| !trace.contains('\0')));
        }
        Message::Rejected { reason, .. } => assert!(!reason.is_empty()),
    }
}

/// Reads settings: lines of `NAME=value`.
///
/// # Panics
///
/// If timers that contradict each other are accepted, or a password is shown.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let given = text.lines().filter_map(|line| line.split_once('='));
    let mut vars: BTreeMap<String, String> =
        given.map(|(name, value)| (format!("TENURE_{name}"), value.to_owned())).collect();
    vars.insert("DATABASE_URL".into(), "postgres://u:s3cr3t@h/d".into());
    vars.insert("NATS_URL".into(), "nats://u:s3cr3t@h".into());
    match Config::from_vars(&vars) {
        Ok(config) => {
            config.timing.validate().expect("timers that agree");
            assert!(check_queue(&config.stream).is_ok() && check_queue(&config.subject_prefix).is_ok());
            assert!(config.payload_bytes_max > 0 && config.handler_connections > 0);
            assert!(text.contains("s3cr3t") || !format!("{config:?}").contains("s3cr3t"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // No form of URL shows its password.
    let safe = text.chars().all(|c| !c.is_control() && !"@/,?#:".contains(c)) && !text.contains("s3cr3t");
    if safe && !text.is_empty() {
        for url in [format!("postgres://{text}:s3cr3t@host/d"), format!("nats://a,tls://u:s3cr3t@{text}")] {
            assert!(!masked(&url).contains("s3cr3t"), "{}", masked(&url));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
#[path = "../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn messages_from_untrusted_clients() {
        seeds::try_each("message", super::message);
    }

    #[test]
    fn settings() {
        seeds::try_each("config", super::config);
    }
}
