//! Fuzz: what others send, as the fuzzer's targets take it (`fuzz/`). Built with `--cfg fuzzing`, and for the tests
//! below, which try the seeds and what comes of them by chance.
//!
//! Each takes any bytes, and panics if what comes out breaks what the rest of tenure relies on.

use std::collections::{BTreeMap, HashMap};

use crate::{
    Config,
    config::masked,
    deliver::message::{Message, Origin, RawMessage, read},
    job::{JobId, check_kind, check_queue, unstorable},
};

struct Given<'g> {
    subject: &'g str,
    headers: HashMap<String, &'g str>,
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
        self.headers.get(&name.to_lowercase()).copied()
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

/// A message: its first lines are the subject and the headers, an empty line ends them; the rest is its body.
///
/// # Panics
///
/// If it is taken for a job that it cannot be.
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
            assert!(check_queue(&job.queue).is_ok() && check_kind(&job.kind).is_ok());
            assert_eq!(job.payload.as_bytes(), body, "it is stored as it came");
            assert!(body.len() <= PAYLOAD_BYTES_MAX);
            let payload: serde_json::Value = serde_json::from_slice(body).expect("it is JSON");
            assert_eq!(unstorable(&payload), None);
            assert!((1..=1_000).contains(&job.max_attempts));
            let (scope, key) = job.key.expect("a submission has a key");
            assert!(!key.is_empty() && !key.contains('\0') && (scope.is_empty() || scope == job.queue));
            assert!(job.trace_context.is_none_or(|trace| !trace.contains('\0')));
        }
        Message::Rejected { reason, .. } => assert!(!reason.is_empty()),
    }
}

/// What a command writes to its standard output.
///
/// # Panics
///
/// If a report is no report.
#[cfg(feature = "cli")]
pub fn exec_output(data: &[u8]) {
    use futures::StreamExt;
    let lines = futures::executor::block_on(crate::cli::lines_of_a_command(data).collect::<Vec<_>>());
    for text in lines.into_iter().flatten() {
        assert!(!text.contains('\n'));
        let said = crate::cli::said_by_a_command(&text);
        assert!(said.percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{:?}", said.percent);
        assert!(said.checkpoint.is_none_or(|json| json != "null"));
        assert!(said.output.is_none_or(|json| json != "null"));
    }
}

/// Settings: lines of `NAME=value`.
///
/// # Panics
///
/// If timers that contradict each other are taken, or a password is printed.
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
    // Whatever a URL looks like, its password is not shown.
    let safe = text.chars().all(|c| !c.is_control() && !"@/,?#:".contains(c)) && !text.contains("s3cr3t");
    if safe && !text.is_empty() {
        for url in [format!("postgres://{text}:s3cr3t@host/d"), format!("nats://a,tls://u:s3cr3t@{text}")] {
            assert!(!masked(&url).contains("s3cr3t"), "{}", masked(&url));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use rand::RngExt;

    /// The seeds of a target, and a few thousand accidents that befall each.
    fn accidents(target: &str, run: fn(&[u8])) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
        let mut random = rand::rng();
        let mut seeds = 0;
        for seed in std::fs::read_dir(folder).unwrap() {
            let seed = std::fs::read(seed.unwrap().path()).unwrap();
            run(&seed);
            seeds += 1;
            for _ in 0..2_000 {
                let mut data = seed.clone();
                for _ in 0..random.random_range(1..6) {
                    let at = random.random_range(0..data.len());
                    match random.random_range(0..4) {
                        0 => data[at] = random.random(),
                        1 => data.truncate(at.max(1)),
                        2 => data.insert(at, random.random()),
                        _ => data[at] ^= 1 << random.random_range(0..8),
                    }
                }
                run(&data);
            }
        }
        assert!(seeds > 0, "{target} has no seeds");
    }

    #[test]
    fn messages_as_anybody_may_publish_them() {
        accidents("message", super::message);
    }

    #[test]
    #[cfg(feature = "cli")]
    fn the_output_of_commands() {
        accidents("exec_output", super::exec_output);
    }

    #[test]
    fn settings() {
        accidents("config", super::config);
    }
}
