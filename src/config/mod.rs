//! Config: where the servers are, and when a worker is believed dead. No I/O except reading the settings.
//!
//! Not here: several cells (`cells::config`), the list of the settings (`settings`), where they are read from
//! (`sources`), the timers (`timing`).

mod settings;
mod sources;
mod timing;
mod values;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::job::{actor::Actor, chained};

pub use sources::{InForce, Settings};
pub use timing::{Timing, TimingError};
pub(crate) use values::{DATABASE_SCHEMES, has_scheme};

/// Everything tenure needs to know. Only the two URLs have no default.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Postgres. `DATABASE_URL`.
    pub database_url: String,
    /// NATS: one URL, or separate several by commas. `NATS_URL`.
    pub nats_url: String,
    /// A NATS credentials file (JWT and seed), instead of a user in the URL. `TENURE_NATS_CREDENTIALS`.
    pub nats_credentials: Option<PathBuf>,
    /// CA certificates (PEM) that verify the NATS server's, instead of the system's. `TENURE_NATS_CA`.
    pub nats_ca: Option<PathBuf>,
    /// The certificate (PEM) that this client shows to NATS, and its key. `TENURE_NATS_CERT`, `TENURE_NATS_KEY`.
    pub nats_certificate: Option<(PathBuf, PathBuf)>,
    /// The JetStream stream. `TENURE_STREAM`, default `JOBS`.
    pub stream: String,
    /// The first token of every subject. `TENURE_SUBJECT_PREFIX`, default `jobs`.
    pub subject_prefix: String,
    /// The inbox prefix of this role, if its NATS permissions name one. `TENURE_NATS_INBOX_PREFIX`.
    pub inbox_prefix: Option<String>,
    /// This host's name; must differ between hosts. `TENURE_HOSTNAME`, default the system's.
    pub hostname: Option<String>,
    /// The folder of the workers' lock files, which prove a death to the next process on the same host.
    /// `TENURE_RUNTIME_DIR`, default `tenure-<user>` in the system's temporary folder.
    pub runtime_dir: PathBuf,
    /// Who acts by this process, unless [`Tenure::acting_as`](crate::Tenure::acting_as) says another. `TENURE_ACTOR`.
    pub actor: Actor,
    /// The largest payload. `TENURE_PAYLOAD_BYTES_MAX`, default 256 KiB.
    pub payload_bytes_max: usize,
    /// The most jobs that one message names, if they become due together. `TENURE_JOBS_PER_MESSAGE`, 0 to 64. 1: each
    /// job has a message of its own. 0, the default: they share messages where every worker of their queue has many
    /// slots. With a larger number, messages name as many even if the workers have few slots. Update every worker
    /// before you raise it above 1: a worker of an earlier release takes such a message for a malformed one, and its
    /// jobs wait for the relay.
    pub jobs_per_message: usize,
    /// The largest checkpoint. `TENURE_CHECKPOINT_BYTES_MAX`, default 1 MiB.
    pub checkpoint_bytes_max: usize,
    /// The most connections for handlers' transactions; tenure's own work has others.
    /// `TENURE_HANDLER_CONNECTIONS`, default 10.
    pub handler_connections: u32,
    /// The address at which a worker answers `/metrics`, `/livez`, `/readyz` and `/startupz`; needs the feature `http`.
    /// `TENURE_LISTEN`.
    pub listen: Option<SocketAddr>,
    /// Whether a worker keeps what its jobs print with them: see [`JobContext::log`](crate::JobContext::log).
    /// `TENURE_JOB_LOGS`, default `false`.
    pub job_logs: bool,
    /// The keys of tags, and the tags without a value, by which the metrics of a worker count attempts.
    /// `TENURE_METRIC_TAGS`, default none.
    pub metric_tags: Vec<String>,
    /// The file that lists several cells, each a tenure of its own: see the module `cells`. `TENURE_CELLS`.
    pub cells: Option<PathBuf>,
    /// The name of this cell, if it is one of several. No setting: `Layout::cell` sets it.
    pub cell: Option<String>,
    /// The settings of `tenure serve`.
    #[doc(hidden)]
    pub serve: Serve,
    /// How the span of a job's first attempt relates to the span that enqueued it; needs the feature `otel`.
    /// `TENURE_TRACE_PARENT`, default `link`.
    pub trace_parent: TraceParent,
    /// How long finished jobs, keys, events and acts are kept.
    pub retention: Retention,
    /// The timers.
    pub timing: Timing,
}

/// The settings of `tenure serve`: `TENURE_SERVE_…`.
#[derive(Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting")]
pub struct Serve {
    pub user: String,
    pub password: Option<String>,
    /// The password of users who may only look.
    pub viewer_password: Option<String>,
    /// The file of users, with the hashes of their passwords.
    pub users: Option<PathBuf>,
    pub token: Option<String>,
    /// A proxy authenticates the users.
    pub is_behind_proxy: bool,
    /// The users who may act, as the proxy or the file names them; `None`: everyone.
    pub actors: Option<Vec<String>>,
    /// The users who may look, as the proxy or the file names them; `None`: everyone.
    pub viewers: Option<Vec<String>>,
    pub has_actions: bool,
    /// Whether the HTTP API is served.
    pub has_api: bool,
    /// The token of programs that may act by the HTTP API.
    pub api_token: Option<String>,
    pub shows_payloads: bool,
    /// Without a slash at its end: empty at the top.
    pub base_path: String,
    /// The address of a trace; `{trace_id}` stands for its id.
    pub trace_url: Option<String>,
    /// The address of a job's log elsewhere; `{job_id}` stands for its id.
    pub log_url: Option<String>,
}

impl Default for Serve {
    fn default() -> Self {
        Self {
            user: "tenure".into(),
            password: None,
            viewer_password: None,
            users: None,
            token: None,
            is_behind_proxy: false,
            actors: None,
            viewers: None,
            has_actions: false,
            has_api: false,
            api_token: None,
            shows_payloads: true,
            base_path: String::new(),
            trace_url: None,
            log_url: None,
        }
    }
}

/// How long finished jobs, keys, events and acts are kept: at least an hour; `None` is for ever.
///
/// Retention removes completed jobs by days, counted in UTC: up to a day later, and together with the cancelled ones
/// of their day.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// Completed jobs, with their attempts and effects. Default 7 days.
    pub completed: Option<Duration>,
    /// Cancelled jobs. Default 7 days.
    pub cancelled: Option<Duration>,
    /// Dead letters. Default for ever: an operator has to look at them.
    pub dead: Option<Duration>,
    /// Unique keys, from the end of their jobs on; a dead letter holds its key as long as it exists.
    /// Default 30 days.
    pub keys: Option<Duration>,
    /// Recovery events, refusals included. Default 30 days.
    pub events: Option<Duration>,
    /// Acts of persons and programs: [`Tenure::audit`](crate::Tenure::audit). At least 30 days. Default a year.
    pub audit: Option<Duration>,
}

impl Retention {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        completed: Some(Duration::from_hours(24 * 7)),
        cancelled: Some(Duration::from_hours(24 * 7)),
        dead: None,
        keys: Some(Duration::from_hours(24 * 30)),
        events: Some(Duration::from_hours(24 * 30)),
        audit: Some(Duration::from_hours(24 * 365)),
    };
}

impl Default for Retention {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How the span of a job's first attempt relates to the span that enqueued it. A retry's span is always linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TraceParent {
    /// The span has its own trace, linked to the enqueuer's: jobs may wait for hours, and one enqueuer may have many.
    #[default]
    Link,
    /// The span is a child: the job is in the enqueuer's trace.
    Child,
}

/// The largest [`Config::jobs_per_message`]: a larger value counts as this one. A worker takes a message that names
/// more jobs for a malformed one.
pub(crate) const JOBS_PER_MESSAGE_MAX: usize = 64;

/// The first token of the subjects of messages between workers.
pub(crate) const OWN_SUBJECTS: &str = "tenure";

/// Why the settings cannot be used.
#[derive(thiserror::Error)]
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
    /// A setting's value cannot be used.
    #[error("{name} is {value:?}, but must be {expected}")]
    Invalid {
        /// The environment variable, or the flag, or the name in a file with its place.
        name: String,
        /// Its value; `***` for a secret.
        value: String,
        /// The value that it should have.
        expected: &'static str,
    },
    /// There is no such setting.
    #[error("{name} is not a setting; {hint}")]
    Unknown {
        /// The environment variable, or the name in a file with its place.
        name: String,
        /// The setting that was probably meant, or where to look.
        hint: String,
    },
    /// A setting of a file has a value of another type.
    #[error("{name} is {is}, but must be {expected}")]
    WrongType {
        /// Its name and place.
        name: String,
        /// The type that it has.
        is: &'static str,
        /// The type that it should have.
        expected: &'static str,
    },
    /// Both a secret and a file that holds it are given.
    #[error("{name} and {other} are both set; remove one of them")]
    GivenTwice {
        /// The one.
        name: String,
        /// The other.
        other: String,
    },
    /// A file cannot be read: that of the settings, or one that holds a secret.
    #[error("{named_by}: {} must be a file that can be read", .path.display())]
    Unreadable {
        /// The flag, variable or setting that names the file.
        named_by: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file of the settings is not TOML.
    #[error("{}, line {line}: {reason}; a setting is a line such as stale_after = \"5min\"", .path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The mistake in that line.
        reason: String,
    },
    /// The timers contradict each other.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// The file of the cells cannot be used.
    #[error("{}: {reason}", .path.display())]
    Cells {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Config {
    /// Returns the defaults with these two URLs.
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
            actor: Actor::default(),
            payload_bytes_max: 256 * 1024,
            jobs_per_message: 0,
            checkpoint_bytes_max: 1024 * 1024,
            handler_connections: 10,
            listen: None,
            job_logs: false,
            metric_tags: Vec::new(),
            cells: None,
            cell: None,
            serve: Serve::default(),
            trace_parent: TraceParent::Link,
            retention: Retention::DEFAULT,
            timing: Timing::DEFAULT,
        }
    }

    /// Reads the environment: `DATABASE_URL`, `NATS_URL` and the variables that start with `TENURE_`. Reads no file but
    /// those that `DATABASE_URL_FILE` and `NATS_URL_FILE` name.
    ///
    /// # Errors
    ///
    /// A URL is missing, a value cannot be used, a variable that starts with `TENURE_` is no setting, or the timers
    /// contradict each other. The message says what to change.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(&sources::environment()?)
    }

    /// Reads the settings as the program does: the environment overrides a file, which overrides the defaults.
    ///
    /// The file is TOML, one setting a line, named as its variable without `TENURE_`, in lower case:
    /// `stale_after = "5min"`. It is `file`, or the one that `TENURE_CONFIG` names, and must exist; without either it
    /// is `tenure.toml` in the working directory, if that exists. `docs/configuration.md` lists the settings.
    ///
    /// # Errors
    ///
    /// As for [`Config::from_env`]; also if the file cannot be read or is not TOML, a value has the wrong type, or a
    /// name in the file is no setting. The message says what to change, and in which line.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        Settings::load(file.map(|path| (path, "the settings file")), &[])?.config()
    }

    pub(crate) fn from_vars(vars: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        Settings::of_environment(vars)?.config()
    }

    /// Returns the environment in which another process reads the same configuration. Variables with `None` must be
    /// removed from it.
    #[cfg(any(feature = "internals", test))]
    #[doc(hidden)]
    pub fn variables(&self) -> Vec<(String, Option<String>)> {
        let mut variables = Vec::new();
        for setting in settings::SETTINGS {
            variables.push((setting.name.to_owned(), setting.get(self)));
            if setting.is_secret {
                variables.push((format!("{}_FILE", setting.name), None));
            }
        }
        // An empty file: the process must not read another one, such as `tenure.toml`.
        variables.push((sources::FILE_VARIABLE.to_owned(), Some("/dev/null".to_owned())));
        variables
    }
}

/// Passwords do not belong in a log.
/// As its `Display`, with its causes: a `main` that returns it prints this.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chained(self))
    }
}

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
            .field("jobs_per_message", &self.jobs_per_message)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

/// Masks a URL, or separate several by commas: hides everything before the `@`, and leaves the parameters out. A text
/// that is no URL is hidden whole.
pub(crate) fn masked(urls: &str) -> String {
    let mask = |url: &str| {
        // A NATS server may be named without a scheme.
        let (scheme, rest) = url.split_once("://").map_or((None, url), |(scheme, rest)| (Some(scheme), rest));
        if scheme.is_none() && rest.contains(|c: char| c.is_whitespace() || c == '=') {
            return "***".to_owned();
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let authority = authority.split_once('?').map_or(authority, |(authority, _)| authority);
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        // A password may hold an unescaped `/`: then the part between it and the `@` is hidden, too.
        let (user, shown) = match (authority.rsplit_once('@'), path.rsplit_once('@')) {
            (_, Some((_, host))) => ("***@", host.to_owned()),
            (Some((_, host)), None) => ("***@", format!("{host}{path}")),
            (None, None) => ("", format!("{authority}{path}")),
        };
        scheme.map_or_else(|| format!("{user}{shown}"), |scheme| format!("{scheme}://{user}{shown}"))
    };
    // A password may hold a comma: only a comma before another NATS server separates.
    let separates = urls.starts_with("nats") || urls.starts_with("tls") || urls.starts_with("ws");
    let parts: Vec<_> = if separates && !urls.contains('@') {
        urls.split(',').map(str::to_owned).collect()
    } else {
        let mut parts: Vec<String> = Vec::new();
        for part in urls.split(',') {
            match parts.last_mut() {
                Some(last) if !part.contains("://") => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => parts.push(part.to_owned()),
            }
        }
        parts
    };
    parts.iter().map(|url| mask(url)).collect::<Vec<_>>().join(",")
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
        for part in ["ack_wait (5m 30s)", "stale_after (5m)", "scan_every (30s)", "TENURE_ACK_WAIT"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        vars(&[("TENURE_ACK_WAIT", "331s")]).unwrap();
        assert!(message(&[("TENURE_STALE_AFTER", "10min")]).contains("ack_wait (10m)"));
        assert!(message(&[("TENURE_SCAN_EVERY", "5min")]).contains("scan_every (5m)"));
    }

    #[test]
    fn an_interval_above_a_third_of_the_stale_threshold_is_refused_with_both_values() {
        let text = message(&[("TENURE_FLUSH_EVERY", "101s")]);
        assert!(text.contains("flush_every (1m 41s)") && text.contains("stale_after (5m)"), "{text}");
        assert!(text.contains("a third"), "{text}");
        let text = message(&[("TENURE_KEEPALIVE_EVERY", "2min")]);
        assert!(text.contains("keepalive_every (2m)") && text.contains("stale_after (5m)"), "{text}");
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

    /// The code adds two or six times a timer to the time of day, and spreads it by a fifth.
    #[test]
    fn a_program_cannot_set_timers_of_centuries_but_graces_without_an_end() {
        for n in 0..Timing::DEFAULT.clone().all_mut().len() {
            let mut timing = Timing::DEFAULT;
            timing.ack_wait = timing::LONGEST;
            let (name, timer) = timing.all_mut().into_iter().nth(n).unwrap();
            *timer = Duration::MAX;
            let is_refused =
                matches!(timing.validate(), Err(TimingError::TooLong { name: of, .. }) if of == name);
            assert_eq!(is_refused, !name.ends_with("_grace"), "{name}: {:?}", timing.validate());
        }
    }

    #[test]
    fn an_error_names_the_missing_or_invalid_setting_and_what_to_write() {
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
        assert_eq!(masked("nats://a,b:4222"), "nats://a,b:4222");
        for secret in [
            "postgres://me:se,cret@db/x",
            "postgres://db/x?user=a&password=s@secret",
            "host=db password=secret",
            "postgres://me:s/ecret@secret-no-more/x",
            "nats://u:se,cret@a,nats://v:secret@b",
        ] {
            let shown = masked(secret);
            assert!(!shown.contains("cret@") && !shown.contains("=s") && !shown.contains("se,"), "{shown}");
        }
        assert_eq!(masked("postgres://me:se,cret@db/x"), "postgres://***@db/x");
        assert_eq!(masked("postgres://db/x?user=a&password=s@secret"), "postgres://db/x");
    }
}
