//! Config: where the servers are, and when a worker is believed dead. No I/O but reading the environment.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use crate::job::check_queue;

/// Everything tenure needs to know. Only the two URLs have no default.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Postgres. `DATABASE_URL`.
    pub database_url: String,
    /// NATS: one URL, or several joined by commas. `NATS_URL`.
    pub nats_url: String,
    /// A NATS credentials file (JWT and seed), instead of a user in the URL. `TENURE_NATS_CREDENTIALS`.
    pub nats_credentials: Option<PathBuf>,
    /// Certificates (PEM) that NATS's own is checked by, besides the system's. `TENURE_NATS_CA`.
    pub nats_ca: Option<PathBuf>,
    /// The certificate (PEM) that this client shows to NATS, and its key. `TENURE_NATS_CERT`, `TENURE_NATS_KEY`.
    pub nats_certificate: Option<(PathBuf, PathBuf)>,
    /// The JetStream stream. `TENURE_STREAM`, default `JOBS`.
    pub stream: String,
    /// The first token of every subject. `TENURE_SUBJECT_PREFIX`, default `jobs`.
    pub subject_prefix: String,
    /// The inbox prefix of this role, if its NATS permissions name one. `TENURE_NATS_INBOX_PREFIX`.
    pub inbox_prefix: Option<String>,
    /// What this host is called; must differ between hosts. `TENURE_HOSTNAME`, default the system's.
    pub hostname: Option<String>,
    /// Where workers keep their lock files, which prove a death to the next process of the same host.
    /// `TENURE_RUNTIME_DIR`, default `tenure-<user>` in the system's temporary folder.
    pub runtime_dir: PathBuf,
    /// The largest payload. `TENURE_PAYLOAD_BYTES_MAX`, default 256 KiB.
    pub payload_bytes_max: usize,
    /// The largest checkpoint. `TENURE_CHECKPOINT_BYTES_MAX`, default 1 MiB.
    pub checkpoint_bytes_max: usize,
    /// The most connections for handlers' transactions; tenure's own work has others.
    /// `TENURE_HANDLER_CONNECTIONS`, default 10.
    pub handler_connections: u32,
    /// When things happen.
    pub timing: Timing,
}

/// When a worker is believed dead, and how soon anyone notices.
///
/// ```text
/// flush_every ×3 ≤ stale_after        stale_after + scan_every < ack_wait
///     1 s            5 min                5 min       30 s        10 min
/// ```
///
/// Recovery by the database comes first; redelivery by the queue is the backstop. Turn the second
/// inequality round, and every slow job is delivered again before anyone could ask whether its owner
/// is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Silence after which a running job is taken back. Default 5 min.
    pub stale_after: Duration,
    /// How often some worker looks for silent jobs. Default 30 s.
    pub scan_every: Duration,
    /// After this time JetStream delivers an unacknowledged message again. Default 10 min.
    pub ack_wait: Duration,
    /// The shortest time between two progress writes of one job. Default 1 s; at most a third of `stale_after`.
    pub flush_every: Duration,
    /// How often tenure reports for a kind with `keepalive`. Default 30 s; at most a third of `stale_after`.
    pub keepalive_every: Duration,
    /// How often a worker renews its own row. Default 5 s. One that has missed two renewals, and cannot be
    /// reached over NATS, is gone: its jobs are taken back.
    pub renew_every: Duration,
    /// How often the relay looks for jobs to publish. Default 1 s.
    pub relay_every: Duration,
    /// The longest a publication may take before its message counts as not sent. Default 10 s.
    pub publish_within: Duration,
    /// How long one request for jobs waits on the NATS server. A worker that dies takes messages for this
    /// long, and an idle one takes this long to stop. Default 5 s.
    pub pull_for: Duration,
    /// How long running jobs may go on after the worker was told to stop. Default 25 s.
    pub shutdown_grace: Duration,
    /// How long a cancelled handler may tidy up before it is dropped. Default 3 s.
    pub cancel_grace: Duration,
    /// How long a job of a kind that no worker knows waits before it is a dead letter. Default 24 h.
    pub unknown_kind_after: Duration,
    /// The longest one database call may take. Default 10 s.
    pub database_within: Duration,
}

impl Timing {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        stale_after: Duration::from_mins(5),
        scan_every: Duration::from_secs(30),
        ack_wait: Duration::from_mins(10),
        flush_every: Duration::from_secs(1),
        keepalive_every: Duration::from_secs(30),
        renew_every: Duration::from_secs(5),
        relay_every: Duration::from_secs(1),
        publish_within: Duration::from_secs(10),
        pull_for: Duration::from_secs(5),
        shutdown_grace: Duration::from_secs(25),
        cancel_grace: Duration::from_secs(3),
        unknown_kind_after: Duration::from_hours(24),
        database_within: Duration::from_secs(10),
    };

    /// Every timer with the name that its environment variable has after `TENURE_`, in lower case.
    fn all_mut(&mut self) -> [(&'static str, &mut Duration); 13] {
        [
            ("stale_after", &mut self.stale_after),
            ("scan_every", &mut self.scan_every),
            ("ack_wait", &mut self.ack_wait),
            ("flush_every", &mut self.flush_every),
            ("keepalive_every", &mut self.keepalive_every),
            ("renew_every", &mut self.renew_every),
            ("relay_every", &mut self.relay_every),
            ("publish_within", &mut self.publish_within),
            ("pull_for", &mut self.pull_for),
            ("shutdown_grace", &mut self.shutdown_grace),
            ("cancel_grace", &mut self.cancel_grace),
            ("unknown_kind_after", &mut self.unknown_kind_after),
            ("database_within", &mut self.database_within),
        ]
    }

    /// Checks that the timers do not contradict each other.
    ///
    /// # Errors
    ///
    /// Names both values and the rule. Change one of the two.
    pub fn validate(&self) -> Result<(), TimingError> {
        for (name, value) in self.clone().all_mut() {
            // The two graces may be nothing: stop at once.
            if value.is_zero() && !name.ends_with("_grace") {
                return Err(TimingError::Zero { name });
            }
        }
        self.validate_stale_after(self.stale_after)
    }

    fn validate_stale_after(&self, stale_after: Duration) -> Result<(), TimingError> {
        self.validate_kind(stale_after, Some(self.keepalive_every))
    }

    /// Checks a kind's own timers against those that hold for all kinds.
    pub(crate) fn validate_kind(
        &self,
        stale_after: Duration,
        keepalive_every: Option<Duration>,
    ) -> Result<(), TimingError> {
        if stale_after.is_zero() {
            return Err(TimingError::Zero { name: "stale_after" });
        }
        if self.ack_wait <= stale_after.saturating_add(self.scan_every) {
            return Err(TimingError::AckWait {
                ack_wait: self.ack_wait,
                stale_after,
                scan_every: self.scan_every,
            });
        }
        let keepalive = keepalive_every.map(|every| ("keepalive_every", every));
        for (name, value) in [("flush_every", self.flush_every)].into_iter().chain(keepalive) {
            if value > stale_after / 3 {
                return Err(TimingError::Interval { name, value, stale_after });
            }
        }
        Ok(())
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The first token of the subjects of what workers say to each other.
pub(crate) const OWN_SUBJECTS: &str = "tenure";

/// The longest timer: more is a mistake in a unit.
const LONGEST: Duration = Duration::from_hours(24 * 366);

/// Timers that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the timers of these names")]
#[non_exhaustive]
pub enum TimingError {
    #[error("{name} is 0 s, but must be longer; set TENURE_{} to a duration such as 30s", .name.to_uppercase())]
    Zero { name: &'static str },
    #[error(
        "ack_wait ({ack_wait:?}) must be longer than stale_after ({stale_after:?}) + scan_every ({scan_every:?}), \
         or the queue delivers a slow job again before anyone could ask whether its owner is alive; \
         raise TENURE_ACK_WAIT (and run `tenure migrate --queue NAME`) or lower TENURE_STALE_AFTER"
    )]
    AckWait { ack_wait: Duration, stale_after: Duration, scan_every: Duration },
    #[error(
        "{name} ({value:?}) must be at most a third of stale_after ({stale_after:?}), \
         or one late write makes a healthy job look dead; lower TENURE_{} or raise TENURE_STALE_AFTER",
        .name.to_uppercase()
    )]
    Interval { name: &'static str, value: Duration, stale_after: Duration },
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A setting without a default is missing.
    #[error("{name} is not set; {hint}")]
    Missing {
        /// The environment variable.
        name: &'static str,
        /// What to set it to.
        hint: &'static str,
    },
    /// A setting's value cannot be read.
    #[error("{name} is {value:?}, but must be {expected}")]
    Invalid {
        /// The environment variable.
        name: String,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The timers contradict each other.
    #[error(transparent)]
    Timing(#[from] TimingError),
}

impl Config {
    /// The defaults, and these two URLs.
    pub fn new(database_url: impl Into<String>, nats_url: impl Into<String>) -> Self {
        let user =
            std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "worker".into());
        Self {
            database_url: database_url.into(),
            nats_url: nats_url.into(),
            nats_credentials: None,
            nats_ca: None,
            nats_certificate: None,
            stream: "JOBS".into(),
            subject_prefix: "jobs".into(),
            inbox_prefix: None,
            hostname: None,
            runtime_dir: std::env::temp_dir().join(format!("tenure-{}", user.replace('/', "_"))),
            payload_bytes_max: 256 * 1024,
            checkpoint_bytes_max: 1024 * 1024,
            handler_connections: 10,
            timing: Timing::DEFAULT,
        }
    }

    /// Reads `DATABASE_URL`, `NATS_URL` and whatever starts with `TENURE_`.
    ///
    /// # Errors
    ///
    /// A URL that is missing, a value that cannot be read, timers that contradict each other.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_env_with(&[])
    }

    /// [`Config::from_env`], with some variables set otherwise where there is a value.
    pub(crate) fn from_env_with(over: &[(&str, Option<&str>)]) -> Result<Self, ConfigError> {
        // A name or a value that is not UTF-8 is none of ours.
        let env =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        let over = over.iter().filter_map(|(k, v)| Some(((*k).to_owned(), (*v)?.to_owned())));
        Self::from_vars(&env.chain(over).collect())
    }

    pub(crate) fn from_vars(vars: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let url = |name: &'static str, hint| {
            vars.get(name).filter(|url| !url.is_empty()).cloned().ok_or(ConfigError::Missing { name, hint })
        };
        let mut config = Self::new(
            url("DATABASE_URL", "for example postgres://user:password@host/database")?,
            url("NATS_URL", "for example nats://host:4222")?,
        );
        for (name, value) in vars {
            let invalid =
                |expected| ConfigError::Invalid { name: name.clone(), value: value.clone(), expected };
            match name.as_str() {
                "TENURE_STREAM" | "TENURE_SUBJECT_PREFIX" => {
                    check_queue(value).map_err(|_| invalid("1 to 64 of A-Z a-z 0-9 _ -"))?;
                    if name == "TENURE_SUBJECT_PREFIX" && value == OWN_SUBJECTS {
                        return Err(invalid("another word: tenure's own messages have that one"));
                    }
                    if name == "TENURE_STREAM" {
                        config.stream.clone_from(value);
                    } else {
                        config.subject_prefix.clone_from(value);
                    }
                }
                "TENURE_NATS_INBOX_PREFIX" => {
                    let tokens_ok = value.split('.').all(|token| check_queue(token).is_ok());
                    if !tokens_ok {
                        return Err(invalid("a subject prefix without wildcards or a dot at its end"));
                    }
                    config.inbox_prefix = Some(value.clone());
                }
                "TENURE_NATS_CREDENTIALS" => config.nats_credentials = Some(PathBuf::from(value)),
                "TENURE_NATS_CA" => config.nats_ca = Some(PathBuf::from(value)),
                "TENURE_NATS_CERT" => {
                    let key = vars.get("TENURE_NATS_KEY");
                    let key =
                        key.ok_or_else(|| invalid("a certificate whose key is named by TENURE_NATS_KEY"))?;
                    config.nats_certificate = Some((PathBuf::from(value), PathBuf::from(key)));
                }
                "TENURE_NATS_KEY" if !vars.contains_key("TENURE_NATS_CERT") => {
                    return Err(invalid("the key of a certificate that TENURE_NATS_CERT names"));
                }
                "TENURE_HOSTNAME" if value.is_empty() => return Err(invalid("a name, not empty")),
                "TENURE_HOSTNAME" => config.hostname = Some(value.clone()),
                "TENURE_RUNTIME_DIR" => config.runtime_dir = PathBuf::from(value),
                "TENURE_PAYLOAD_BYTES_MAX" | "TENURE_CHECKPOINT_BYTES_MAX" => {
                    let bytes = value.parse().ok().filter(|n| *n > 0);
                    let bytes = bytes.ok_or_else(|| invalid("a number of bytes above 0"))?;
                    if name == "TENURE_PAYLOAD_BYTES_MAX" {
                        config.payload_bytes_max = bytes;
                    } else {
                        config.checkpoint_bytes_max = bytes;
                    }
                }
                "TENURE_HANDLER_CONNECTIONS" => {
                    config.handler_connections =
                        value.parse().ok().filter(|n| *n > 0).ok_or_else(|| invalid("a number above 0"))?;
                }
                _ => {
                    let timer = name.strip_prefix("TENURE_").map(str::to_lowercase).unwrap_or_default();
                    for (known, duration) in config.timing.all_mut() {
                        if known == timer {
                            *duration = humantime::parse_duration(value)
                                .ok()
                                .filter(|duration| *duration <= LONGEST)
                                .ok_or_else(|| {
                                    invalid("a duration such as 500ms, 30s or 5min, at most a year")
                                })?;
                        }
                    }
                }
            }
        }
        config.timing.validate()?;
        Ok(config)
    }
}

/// Passwords do not belong in a log.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("database_url", &masked(&self.database_url))
            .field("nats_url", &masked(&self.nats_url))
            .field("stream", &self.stream)
            .field("subject_prefix", &self.subject_prefix)
            .field("hostname", &self.hostname)
            .field("runtime_dir", &self.runtime_dir)
            .field("payload_bytes_max", &self.payload_bytes_max)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

/// A URL (or several) without what stands before the `@`'s host, and without its parameters.
pub(crate) fn masked(urls: &str) -> String {
    let mask = |url: &str| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        let host = host.split_once('?').map_or(host, |(host, _)| host);
        let user = if host.len() < rest.len() && rest.contains('@') { "***@" } else { "" };
        if scheme.is_empty() { format!("{user}{host}") } else { format!("{scheme}://{user}{host}") }
    };
    urls.split(',').map(mask).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn vars(more: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let urls = [("DATABASE_URL", "postgres://me:secret@db/jobs"), ("NATS_URL", "nats://n:4222")];
        Config::from_vars(&urls.iter().chain(more).map(|(k, v)| ((*k).into(), (*v).into())).collect())
    }

    fn message(more: &[(&str, &str)]) -> String {
        vars(more).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_obey_their_own_rules() {
        Timing::DEFAULT.validate().unwrap();
        assert_eq!(vars(&[]).unwrap().timing, Timing::DEFAULT);
    }

    #[test]
    fn an_ack_wait_that_is_not_above_the_stale_threshold_and_a_scan_is_refused_with_the_three_values() {
        let text = message(&[("TENURE_ACK_WAIT", "330s")]);
        for part in ["ack_wait (330s)", "stale_after (300s)", "scan_every (30s)", "TENURE_ACK_WAIT"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        vars(&[("TENURE_ACK_WAIT", "331s")]).unwrap();
        assert!(message(&[("TENURE_STALE_AFTER", "10min")]).contains("ack_wait (600s)"));
        assert!(message(&[("TENURE_SCAN_EVERY", "5min")]).contains("scan_every (300s)"));
    }

    #[test]
    fn an_interval_above_a_third_of_the_stale_threshold_is_refused_with_both_values() {
        let text = message(&[("TENURE_FLUSH_EVERY", "101s")]);
        assert!(text.contains("flush_every (101s)") && text.contains("stale_after (300s)"), "{text}");
        assert!(text.contains("a third"), "{text}");
        let text = message(&[("TENURE_KEEPALIVE_EVERY", "2min")]);
        assert!(text.contains("keepalive_every (120s)") && text.contains("stale_after (300s)"), "{text}");
        vars(&[("TENURE_FLUSH_EVERY", "100s"), ("TENURE_KEEPALIVE_EVERY", "100s")]).unwrap();
    }

    #[test]
    fn zero_and_negative_timers_are_refused_by_name() {
        for (name, _) in Timing::DEFAULT.clone().all_mut() {
            if name.ends_with("_grace") {
                continue;
            }
            let variable = format!("TENURE_{}", name.to_uppercase());
            let text = message(&[(&variable, "0s")]);
            assert!(text.contains(name) && text.contains("0 s") && text.contains(&variable), "{text}");
            let text = message(&[(&variable, "-5s")]);
            assert!(
                text.contains(&variable) && text.contains("-5s") && text.contains("a duration such as"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_timer_of_centuries_is_a_mistake() {
        let text = message(&[("TENURE_STALE_AFTER", "18446744073709551615s")]);
        assert!(text.contains("TENURE_STALE_AFTER") && text.contains("at most a year"), "{text}");
    }

    #[test]
    fn what_is_missing_or_cannot_be_read_is_named_with_what_to_write() {
        let text = Config::from_vars(&BTreeMap::new()).unwrap_err().to_string();
        assert!(text.contains("DATABASE_URL is not set") && text.contains("postgres://"), "{text}");
        assert!(message(&[("TENURE_PAYLOAD_BYTES_MAX", "lots")]).contains("number of bytes"));
        assert!(message(&[("TENURE_STREAM", "a.b")]).contains("TENURE_STREAM"));
        assert!(message(&[("TENURE_HOSTNAME", "")]).contains("TENURE_HOSTNAME"));
        assert!(message(&[("TENURE_NATS_CERT", "c.pem")]).contains("TENURE_NATS_KEY"));
        assert!(message(&[("TENURE_NATS_KEY", "k.pem")]).contains("TENURE_NATS_CERT"));
    }

    #[test]
    fn a_password_is_never_printed() {
        let config = vars(&[]).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        assert_eq!(masked("postgres://u:p@h/d?password=x"), "postgres://***@h/d");
        assert_eq!(masked("nats://a,nats://u:p@b"), "nats://a,nats://***@b");
    }
}
