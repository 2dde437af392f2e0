//! Settings: the one list of them. Reading, the check for unknown ones, `tenure config` and the docs follow it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

#[cfg(test)]
use super::Serve;
use super::{Config, OWN_SUBJECTS, Timing, TraceParent, timing::LONGEST};
use crate::job::check_queue;

/// What every setting but the two URLs and the program's own starts with.
pub(super) const PREFIX: &str = "TENURE_";

/// Puts a text where it belongs, or says what it should have been.
type Put = fn(&mut Config, &str) -> Result<(), &'static str>;

/// What it is now, as [`Put`] would take it; `None` if it is not set.
type Get = fn(&Config) -> Option<String>;

/// One setting.
#[allow(dead_code, reason = "the program and the docs also show what the library only reads")]
pub(super) struct Setting {
    /// The environment variable. In a file it is called as [`Setting::key`] says.
    pub(super) name: &'static str,
    /// What it is, in one line.
    pub(super) about: &'static str,
    /// What holds when it is not set, if that is no value.
    pub(super) unset: Option<&'static str>,
    /// Its value is never shown whole, and may stand in a file of its own, which `<NAME>_FILE` names.
    pub(super) is_secret: bool,
    pub(super) takes: Takes,
}

/// What a setting takes, and where it goes.
#[allow(dead_code, reason = "the program and the docs also show what the library only reads")]
pub(super) enum Takes {
    Text(Put, Get),
    Number(Put, Get),
    Duration(fn(&mut Timing) -> &mut Duration),
    Age(fn(&mut Config) -> &mut Option<Duration>),
}

impl Setting {
    /// Its name in a file: the variable's without `TENURE_`, in lower case.
    pub(super) fn key(&self) -> String {
        self.name.strip_prefix(PREFIX).unwrap_or(self.name).to_lowercase()
    }

    /// Sets it.
    ///
    /// # Errors
    ///
    /// What it must be.
    pub(super) fn put(&self, config: &mut Config, text: &str) -> Result<(), &'static str> {
        match self.takes {
            Takes::Text(put, _) | Takes::Number(put, _) => put(config, text),
            Takes::Duration(timer) => {
                *timer(&mut config.timing) = duration(text)?;
                Ok(())
            }
            Takes::Age(age) => {
                *age(config) = match text {
                    "forever" => None,
                    text => Some(kept(text)?),
                };
                Ok(())
            }
        }
    }

    /// What it is in this configuration.
    #[cfg(any(feature = "cli", test))]
    pub(super) fn get(&self, config: &Config) -> Option<String> {
        match self.takes {
            Takes::Text(_, get) | Takes::Number(_, get) => get(config),
            Takes::Duration(timer) => {
                let duration = *timer(&mut config.timing.clone());
                Some(humantime::format_duration(duration).to_string())
            }
            Takes::Age(age) => Some(match age(&mut config.clone()) {
                Some(age) => humantime::format_duration(*age).to_string(),
                None => "forever".to_owned(),
            }),
        }
    }
}

const fn url(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: Some("none"), is_secret: true, takes: Takes::Text(put, get) }
}

/// A secret that is shown as nothing but being there.
const fn password(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: Some("none"), is_secret: true, takes: Takes::Text(put, get) }
}

const fn text(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: None, is_secret: false, takes: Takes::Text(put, get) }
}

/// A text without which something else holds.
const fn optional(
    name: &'static str,
    about: &'static str,
    unset: &'static str,
    put: Put,
    get: Get,
) -> Setting {
    Setting { name, about, unset: Some(unset), is_secret: false, takes: Takes::Text(put, get) }
}

const fn number(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: None, is_secret: false, takes: Takes::Number(put, get) }
}

const fn timer(name: &'static str, about: &'static str, field: fn(&mut Timing) -> &mut Duration) -> Setting {
    Setting { name, about, unset: None, is_secret: false, takes: Takes::Duration(field) }
}

const fn age(
    name: &'static str,
    about: &'static str,
    field: fn(&mut Config) -> &mut Option<Duration>,
) -> Setting {
    Setting { name, about, unset: None, is_secret: false, takes: Takes::Age(field) }
}

/// All of them, in the order in which they are shown.
pub(super) static SETTINGS: &[Setting] = &[
    url(
        "DATABASE_URL",
        "Postgres, for example `postgres://user:password@host/database`. It must be set.",
        |config, text| {
            config.database_url = text.into();
            Ok(())
        },
        |config| not_empty(&config.database_url),
    ),
    url(
        "NATS_URL",
        "NATS, for example `nats://host:4222`; several joined by commas. It must be set.",
        |config, text| {
            config.nats_url = text.into();
            Ok(())
        },
        |config| not_empty(&config.nats_url),
    ),
    optional(
        "TENURE_NATS_CREDENTIALS",
        "A NATS credentials file (JWT and seed), instead of a user in the URL.",
        "none",
        |config, text| {
            config.nats_credentials = Some(text.into());
            Ok(())
        },
        |config| shown(config.nats_credentials.as_deref()),
    ),
    optional(
        "TENURE_NATS_CA",
        "A file of certificates (PEM) that NATS's own is checked by, besides the system's.",
        "none",
        |config, text| {
            config.nats_ca = Some(text.into());
            Ok(())
        },
        |config| shown(config.nats_ca.as_deref()),
    ),
    optional(
        "TENURE_NATS_CERT",
        "A file with the certificate (PEM) that this client shows to NATS.",
        "none",
        |config, text| {
            config.nats_certificate.get_or_insert_default().0 = text.into();
            Ok(())
        },
        |config| shown(config.nats_certificate.as_ref().map(|(certificate, _)| certificate.as_path())),
    ),
    optional(
        "TENURE_NATS_KEY",
        "A file with that certificate's key (PEM).",
        "none",
        |config, text| {
            config.nats_certificate.get_or_insert_default().1 = text.into();
            Ok(())
        },
        |config| shown(config.nats_certificate.as_ref().map(|(_, key)| key.as_path())),
    ),
    optional(
        "TENURE_NATS_INBOX_PREFIX",
        "The inbox prefix of this role, if its NATS permissions name one.",
        "NATS's own, `_INBOX`",
        |config, text| {
            if !text.split('.').all(|token| check_queue(token).is_ok()) {
                return Err("a subject prefix without wildcards or a dot at its end");
            }
            config.inbox_prefix = Some(text.into());
            Ok(())
        },
        |config| config.inbox_prefix.clone(),
    ),
    text(
        "TENURE_STREAM",
        "The JetStream stream.",
        |config, text| {
            config.stream = word(text)?;
            Ok(())
        },
        |config| Some(config.stream.clone()),
    ),
    text(
        "TENURE_SUBJECT_PREFIX",
        "The first token of every subject.",
        |config, text| {
            let prefix = word(text)?;
            if prefix == OWN_SUBJECTS {
                return Err("another word: tenure's own messages have that one");
            }
            config.subject_prefix = prefix;
            Ok(())
        },
        |config| Some(config.subject_prefix.clone()),
    ),
    optional(
        "TENURE_HOSTNAME",
        "What this host is called; must differ between hosts.",
        "the system's",
        |config, text| {
            if text.is_empty() {
                return Err("a name, not empty");
            }
            config.hostname = Some(text.into());
            Ok(())
        },
        |config| config.hostname.clone(),
    ),
    optional(
        "TENURE_RUNTIME_DIR",
        "Where workers keep their lock files, which prove a death to the next process of the same host.",
        "`tenure-<user>` in the system's temporary folder",
        |config, text| {
            config.runtime_dir = PathBuf::from(text);
            Ok(())
        },
        |config| shown(Some(&config.runtime_dir)),
    ),
    number(
        "TENURE_PAYLOAD_BYTES_MAX",
        "The largest payload, in bytes.",
        |config, text| {
            config.payload_bytes_max = bytes(text)?;
            Ok(())
        },
        |config| Some(config.payload_bytes_max.to_string()),
    ),
    number(
        "TENURE_CHECKPOINT_BYTES_MAX",
        "The largest checkpoint, in bytes.",
        |config, text| {
            config.checkpoint_bytes_max = bytes(text)?;
            Ok(())
        },
        |config| Some(config.checkpoint_bytes_max.to_string()),
    ),
    number(
        "TENURE_HANDLER_CONNECTIONS",
        "The most connections for handlers' transactions; tenure's own work has others.",
        |config, text| {
            let number = text.parse().ok().filter(|number| *number > 0);
            config.handler_connections = number.ok_or("a number above 0")?;
            Ok(())
        },
        |config| Some(config.handler_connections.to_string()),
    ),
    optional(
        "TENURE_LISTEN",
        "Where a worker answers `/metrics`, `/livez`, `/readyz` and `/startupz`, such as `0.0.0.0:9090`.",
        "nowhere",
        |config, text| {
            let address =
                text.parse().map_err(|_| "an address and a port, such as 0.0.0.0:9090 or [::]:9090")?;
            config.listen = Some(address);
            Ok(())
        },
        |config| config.listen.map(|address| address.to_string()),
    ),
    text(
        "TENURE_SERVE_USER",
        "Who signs in to the dashboard with `TENURE_SERVE_PASSWORD`.",
        |config, text| {
            if text.is_empty() || text.contains(':') {
                return Err("a name, not empty and without a colon");
            }
            config.serve.user = text.into();
            Ok(())
        },
        |config| Some(config.serve.user.clone()),
    ),
    password(
        "TENURE_SERVE_PASSWORD",
        "The dashboard's password (HTTP basic authentication), at least 8 characters.",
        |config, text| {
            config.serve.password = Some(long_enough(text)?);
            Ok(())
        },
        |config| config.serve.password.clone(),
    ),
    password(
        "TENURE_SERVE_TOKEN",
        "A bearer token that the dashboard and its `/metrics` take, at least 8 characters.",
        |config, text| {
            config.serve.token = Some(long_enough(text)?);
            Ok(())
        },
        |config| config.serve.token.clone(),
    ),
    optional(
        "TENURE_SERVE_AUTH",
        "`proxy`: the dashboard asks nobody who they are, because a proxy in front of it does.",
        "the password or the token",
        |config, text| {
            if text != "proxy" {
                return Err("proxy, or not set: then a password or a token is asked for");
            }
            config.serve.is_behind_proxy = true;
            Ok(())
        },
        |config| config.serve.is_behind_proxy.then(|| "proxy".to_owned()),
    ),
    text(
        "TENURE_SERVE_ACTIONS",
        "`true`: the dashboard can also cancel, retry, redrive, purge, pause and limit.",
        |config, text| {
            config.serve.has_actions = yes_or_no(text)?;
            Ok(())
        },
        |config| Some(config.serve.has_actions.to_string()),
    ),
    text(
        "TENURE_SERVE_PAYLOADS",
        "`false`: the dashboard shows no payload, output or checkpoint, and searches none.",
        |config, text| {
            config.serve.shows_payloads = yes_or_no(text)?;
            Ok(())
        },
        |config| Some(config.serve.shows_payloads.to_string()),
    ),
    text(
        "TENURE_SERVE_BASE_PATH",
        "Where a proxy shows the dashboard, if not at the top, such as `/tenure`.",
        |config, text| {
            config.serve.base_path = path(text)?;
            Ok(())
        },
        |config| Some(format!("{}/", config.serve.base_path)),
    ),
    text(
        "TENURE_TRACE_PARENT",
        "How the span of a first attempt hangs on the one that enqueued the job: by a `link`, or as its `child`, \
         in the same trace.",
        |config, text| {
            config.trace_parent = match text {
                "link" => TraceParent::Link,
                "child" => TraceParent::Child,
                _ => return Err("link or child"),
            };
            Ok(())
        },
        |config| {
            let name = match config.trace_parent {
                TraceParent::Link => "link",
                TraceParent::Child => "child",
            };
            Some(name.to_owned())
        },
    ),
    age("TENURE_KEEP_COMPLETED", "How long completed jobs are kept; at least 1h, or forever.", |config| {
        &mut config.retention.completed
    }),
    age("TENURE_KEEP_CANCELLED", "How long cancelled jobs are kept; at least 1h, or forever.", |config| {
        &mut config.retention.cancelled
    }),
    age("TENURE_KEEP_DEAD", "How long dead letters are kept; at least 1h, or forever.", |config| {
        &mut config.retention.dead
    }),
    age(
        "TENURE_KEEP_KEYS",
        "How long a unique key is held after its job has ended; at least 1h, or forever.",
        |config| &mut config.retention.keys,
    ),
    age(
        "TENURE_KEEP_EVENTS",
        "How long it is kept what was recovered and refused; at least 1h, or forever.",
        |config| &mut config.retention.events,
    ),
    timer("TENURE_STALE_AFTER", "Silence after which a running job is taken back.", |timing| {
        &mut timing.stale_after
    }),
    timer("TENURE_SCAN_EVERY", "How often some worker looks for silent jobs.", |timing| {
        &mut timing.scan_every
    }),
    timer(
        "TENURE_ACK_WAIT",
        "After this time JetStream delivers an unacknowledged message again. \
         It must be longer than `stale_after` and `scan_every` together.",
        |timing| &mut timing.ack_wait,
    ),
    timer(
        "TENURE_FLUSH_EVERY",
        "The shortest time between two progress writes of one job; at most a third of `stale_after`.",
        |timing| &mut timing.flush_every,
    ),
    timer(
        "TENURE_KEEPALIVE_EVERY",
        "How often tenure reports for a kind with `keepalive`; at most a third of `stale_after`.",
        |timing| &mut timing.keepalive_every,
    ),
    timer(
        "TENURE_RENEW_EVERY",
        "How often a worker renews its own row. \
         One that has missed two renewals, and cannot be reached over NATS, is gone: its jobs are taken back.",
        |timing| &mut timing.renew_every,
    ),
    timer("TENURE_RELAY_EVERY", "How often the fleet's relay looks for jobs to publish.", |timing| {
        &mut timing.relay_every
    }),
    timer(
        "TENURE_PUBLISH_WITHIN",
        "The longest a publication may take before its message counts as not sent.",
        |timing| &mut timing.publish_within,
    ),
    timer(
        "TENURE_PULL_FOR",
        "How long one request for jobs waits on the NATS server. \
         A worker that dies takes messages for this long.",
        |timing| &mut timing.pull_for,
    ),
    timer(
        "TENURE_SHUTDOWN_GRACE",
        "How long running jobs may go on after the worker was told to stop; 0s is not at all.",
        |timing| &mut timing.shutdown_grace,
    ),
    timer(
        "TENURE_CANCEL_GRACE",
        "How long a cancelled handler may tidy up before it is dropped; 0s is not at all.",
        |timing| &mut timing.cancel_grace,
    ),
    timer(
        "TENURE_UNKNOWN_KIND_AFTER",
        "How long a job of a kind that no worker knows waits before it is a dead letter.",
        |timing| &mut timing.unknown_kind_after,
    ),
    timer("TENURE_DATABASE_WITHIN", "The longest one database call may take.", |timing| {
        &mut timing.database_within
    }),
];

fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn shown(path: Option<&Path>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

fn word(text: &str) -> Result<String, &'static str> {
    check_queue(text).map_err(|_| "1 to 64 of A-Z a-z 0-9 _ -")?;
    Ok(text.to_owned())
}

fn long_enough(text: &str) -> Result<String, &'static str> {
    if text.chars().count() < 8 { Err("at least 8 characters") } else { Ok(text.to_owned()) }
}

fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "true or false")
}

/// A path without a slash at its end: empty at the top.
fn path(text: &str) -> Result<String, &'static str> {
    let inside = text.trim_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~');
    let is_name = |part: &str| !part.is_empty() && part != ".." && part != "." && part.chars().all(is_plain);
    if inside.is_empty() {
        return Ok(String::new());
    }
    if !inside.split('/').all(is_name) {
        return Err("a path such as /tenure, of A-Z a-z 0-9 - _ . ~");
    }
    Ok(format!("/{inside}"))
}

fn bytes(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|bytes| *bytes > 0).ok_or("a number of bytes above 0")
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text)
        .ok()
        .filter(|duration| *duration <= LONGEST)
        .ok_or("a duration such as 500ms, 30s or 5min, at most a year")
}

/// How long something is kept. The database does not purge what is younger than an hour.
fn kept(text: &str) -> Result<Duration, &'static str> {
    let age = humantime::parse_duration(text).ok();
    let ages = Duration::from_hours(1)..=Duration::from_hours(24 * 366 * 100);
    age.filter(|age| ages.contains(age))
        .ok_or("a duration from 1h to a hundred years, such as 7d, or forever")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::{collections::BTreeSet, fmt::Write};

    use super::*;

    #[test]
    fn every_setting_is_called_once_and_every_timer_is_one() {
        let names: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), SETTINGS.len());
        let keys: BTreeSet<_> = SETTINGS.iter().map(Setting::key).collect();
        assert_eq!(keys.len(), SETTINGS.len());
        for (name, _) in Timing::DEFAULT.clone().all_mut() {
            assert!(keys.contains(name), "{name} cannot be set");
        }
        for setting in SETTINGS {
            let Takes::Duration(timer) = setting.takes else { continue };
            let mut timing = Timing::DEFAULT;
            *timer(&mut timing) = Duration::from_millis(17);
            let set = timing.all_mut().into_iter().find(|(_, value)| value.as_millis() == 17);
            assert_eq!(set.unwrap().0, setting.key(), "it sets another timer");
        }
    }

    #[test]
    fn what_a_setting_is_can_be_set_again() {
        let mut given = Config::new("postgres://a", "nats://b");
        given.nats_certificate = Some(("c.pem".into(), "k.pem".into()));
        given.hostname = Some("h".into());
        given.listen = Some(([127, 0, 0, 1], 9090).into());
        given.serve = Serve {
            user: "u".into(),
            password: Some("12345678".into()),
            token: Some("87654321".into()),
            is_behind_proxy: true,
            has_actions: true,
            shows_payloads: false,
            base_path: "/a/b".into(),
        };
        given.trace_parent = TraceParent::Child;
        given.retention.dead = Some(Duration::from_hours(36));
        given.retention.keys = None;
        given.timing.stale_after = Duration::from_millis(90_007);
        let mut read = Config::new("", "");
        for setting in SETTINGS {
            let Some(text) = setting.get(&given) else { continue };
            setting.put(&mut read, &text).unwrap_or_else(|must| panic!("{}: {must}", setting.name));
        }
        assert!(read == given);
    }

    /// The docs' table, made of the list.
    fn table() -> String {
        let defaults = Config::new("", "");
        let mut table = String::from("| variable | in a file | default | what it is |\n|---|---|---|---|\n");
        for setting in SETTINGS {
            let Setting { name, about, unset, is_secret, .. } = setting;
            let key = setting.key();
            let default = match unset {
                Some(unset) => (*unset).to_owned(),
                None => format!("`{}`", setting.get(&defaults).unwrap()),
            };
            let (or_name, or_key) = if *is_secret {
                (format!(", `{name}_FILE`"), format!(", `{key}_file`"))
            } else {
                (String::new(), String::new())
            };
            writeln!(table, "| `{name}`{or_name} | `{key}`{or_key} | {default} | {about} |").unwrap();
        }
        table
    }

    const BEGIN: &str = "<!-- the table of settings: written by src/config/settings.rs -->\n";
    const END: &str = "<!-- the end of the table of settings -->";

    #[test]
    fn the_table_of_settings_is_that_of_the_docs() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (is, after) = rest.split_once(END).unwrap();
        let should = format!("\n{}\n", table());
        if std::env::var_os("TENURE_WRITE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{BEGIN}{should}{END}{after}")).unwrap();
            return;
        }
        assert!(
            is == should,
            "write it anew: TENURE_WRITE_DOCS=1 cargo test --all-features --lib the_table_of_settings"
        );
    }
}
