//! Settings: the only list of them. Reading, the check for unknown names, `tenure config` and the docs follow it.

use std::{path::PathBuf, time::Duration};

#[cfg(test)]
use super::Serve;
use super::{
    Config, JOBS_PER_MESSAGE_MAX, OWN_SUBJECTS, Timing, TraceParent,
    values::{
        DATABASE_SCHEMES, NATS_SCHEMES, actors, bytes, duration, has_scheme, kept, kept_as_evidence,
        long_enough, not_empty, path, shown, tag_keys, viewers, word, yes_or_no,
    },
};

use crate::job::{actor::Actor, check_queue};

/// The prefix of every variable but the two URLs.
pub(super) const PREFIX: &str = "TENURE_";

/// Sets a field from a text, or says what the text must be.
type Put = fn(&mut Config, &str) -> Result<(), &'static str>;

/// Returns the field as [`Put`] takes it; `None` if it is not set.
type Get = fn(&Config) -> Option<String>;

/// Parses an age, or says what it must be.
type Parse = fn(&str) -> Result<Duration, &'static str>;

/// One setting.
#[allow(dead_code, reason = "the program and the docs also show what the library only reads")]
pub(super) struct Setting {
    /// The environment variable. [`Setting::key`] is its name in a file.
    pub(super) name: &'static str,
    /// Its description, in one line.
    pub(super) about: &'static str,
    /// Describes the default, if that is no value.
    pub(super) unset: Option<&'static str>,
    /// Its value is never shown whole, and `<NAME>_FILE` may name a file that holds it.
    pub(super) is_secret: bool,
    pub(super) takes: Takes,
}

/// The type of a setting's value, and the field that it sets.
#[allow(dead_code, reason = "the program and the docs also show what the library only reads")]
pub(super) enum Takes {
    Text(Put, Get),
    Number(Put, Get),
    Duration(fn(&mut Timing) -> &mut Duration),
    Age(fn(&mut Config) -> &mut Option<Duration>, Parse),
}

impl Setting {
    /// Its name in a file: the variable's without `TENURE_`, in lower case.
    pub(super) fn key(&self) -> String {
        self.name.strip_prefix(PREFIX).unwrap_or(self.name).to_lowercase()
    }

    /// Sets it in `config`.
    ///
    /// # Errors
    ///
    /// Says what the value must be.
    pub(super) fn put(&self, config: &mut Config, text: &str) -> Result<(), &'static str> {
        match self.takes {
            Takes::Text(put, _) | Takes::Number(put, _) => put(config, text),
            Takes::Duration(timer) => {
                *timer(&mut config.timing) = duration(text)?;
                Ok(())
            }
            Takes::Age(age, parse) => {
                *age(config) = match text {
                    "forever" => None,
                    text => Some(parse(text)?),
                };
                Ok(())
            }
        }
    }

    /// Returns its value in this configuration.
    pub(super) fn get(&self, config: &Config) -> Option<String> {
        use crate::job::duration::written;

        match self.takes {
            Takes::Text(_, get) | Takes::Number(_, get) => get(config),
            Takes::Duration(timer) => {
                let duration = *timer(&mut config.timing.clone());
                Some(written(duration))
            }
            Takes::Age(age, _) => Some(match age(&mut config.clone()) {
                Some(age) => written(*age),
                None => "forever".to_owned(),
            }),
        }
    }
}

const fn url(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: Some("none"), is_secret: true, takes: Takes::Text(put, get) }
}

/// A secret of which only its presence is shown.
const fn password(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: Some("none"), is_secret: true, takes: Takes::Text(put, get) }
}

const fn text(name: &'static str, about: &'static str, put: Put, get: Get) -> Setting {
    Setting { name, about, unset: None, is_secret: false, takes: Takes::Text(put, get) }
}

/// A text whose default is no value.
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
    Setting { name, about, unset: None, is_secret: false, takes: Takes::Age(field, kept) }
}

/// All settings, in the order in which they are shown.
pub(super) static SETTINGS: &[Setting] = &[
    url(
        "DATABASE_URL",
        "Postgres, for example `postgres://user:password@host/database`. It must be set.",
        |config, text| {
            if !has_scheme(text, DATABASE_SCHEMES) {
                return Err("the URL of a Postgres: postgres://user:password@host/database");
            }
            config.database_url = text.into();
            Ok(())
        },
        |config| not_empty(&config.database_url),
    ),
    url(
        "NATS_URL",
        "NATS, for example `nats://host:4222`; separate several by commas. It must be set.",
        |config, text| {
            if !text.split(',').all(|url| !url.contains("://") || has_scheme(url.trim(), NATS_SCHEMES)) {
                return Err(
                    "the URL of a NATS server: nats://host:4222, or tls://host:4222; separate several by commas",
                );
            }
            config.nats_url = text.into();
            Ok(())
        },
        |config| not_empty(&config.nats_url),
    ),
    optional(
        "TENURE_ACTOR",
        "Who acts by this process, for `tenure audit`: a user, or a program.",
        "of a command, the system's user",
        |config, text| {
            config.actor = Actor::program(text);
            Ok(())
        },
        |config| config.actor.name().map(str::to_owned),
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
        "A file of CA certificates (PEM) that verify the NATS server's, instead of the system's.",
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
                return Err("another word: tenure's own messages use that one");
            }
            config.subject_prefix = prefix;
            Ok(())
        },
        |config| Some(config.subject_prefix.clone()),
    ),
    optional(
        "TENURE_HOSTNAME",
        "This host's name; must differ between hosts.",
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
        "The folder of the workers' lock files, which prove a death to the next process on the same host.",
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
        "TENURE_JOBS_PER_MESSAGE",
        "The most jobs that one message names, if they become due together: 1 to 64. `0`: as many as the workers of \
         their queue [have slots for](jobs.md#messages).",
        |config, text| {
            let number = text.parse().ok().filter(|jobs| (0..=JOBS_PER_MESSAGE_MAX).contains(jobs));
            config.jobs_per_message = number.ok_or("a number from 0 to 64")?;
            Ok(())
        },
        |config| Some(config.jobs_per_message.to_string()),
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
        "The address at which a worker answers `/metrics`, `/livez`, `/readyz` and `/startupz`, \
         such as `0.0.0.0:9090`.",
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
        "TENURE_JOB_LOGS",
        "`true`: a worker or gateway keeps what its jobs print with them, the last 64 KiB of each of the last three \
         attempts.",
        |config, text| {
            config.job_logs = yes_or_no(text)?;
            Ok(())
        },
        |config| Some(config.job_logs.to_string()),
    ),
    optional(
        "TENURE_METRIC_TAGS",
        "The keys of tags, and the tags without a value, by which a worker's metrics count attempts; separate several \
         by commas, such as `team,nightly`.",
        "none",
        |config, text| {
            config.metric_tags = tag_keys(text)?;
            Ok(())
        },
        |config| not_empty(&config.metric_tags.join(",")),
    ),
    optional(
        "TENURE_CELLS",
        "The file that lists several cells, each a Postgres and a stream ([cells](cells.md)).",
        "none: there is one",
        |config, text| {
            if text.is_empty() {
                return Err("a file, not empty");
            }
            config.cells = Some(text.into());
            Ok(())
        },
        |config| shown(config.cells.as_deref()),
    ),
    text(
        "TENURE_SERVE_USER",
        "The user that signs in to the dashboard with `TENURE_SERVE_PASSWORD`.",
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
        "TENURE_SERVE_VIEWER_PASSWORD",
        "The password of the dashboard's user `viewer`, who may only look, at least 8 characters.",
        |config, text| {
            config.serve.viewer_password = Some(long_enough(text)?);
            Ok(())
        },
        |config| config.serve.viewer_password.clone(),
    ),
    password(
        "TENURE_SERVE_TOKEN",
        "A bearer token that the dashboard and its `/metrics` take, at least 8 characters. Better take 32.",
        |config, text| {
            config.serve.token = Some(long_enough(text)?);
            Ok(())
        },
        |config| config.serve.token.clone(),
    ),
    optional(
        "TENURE_SERVE_AUTH",
        "`proxy`: a proxy in front of the dashboard authenticates the users; the dashboard does not.",
        "the password or the token",
        |config, text| {
            if text != "proxy" {
                return Err("proxy, or not set: then the dashboard asks for a password or a token");
            }
            config.serve.is_behind_proxy = true;
            Ok(())
        },
        |config| config.serve.is_behind_proxy.then(|| "proxy".to_owned()),
    ),
    optional(
        "TENURE_SERVE_USERS",
        "A file of the dashboard's users, read at its start: a line each, the name, a colon and a hash of the \
         password, as `htpasswd -B` writes it.",
        "one user, with the password",
        |config, text| {
            config.serve.users = Some(text.into());
            Ok(())
        },
        |config| config.serve.users.as_ref().map(|path| path.display().to_string()),
    ),
    optional(
        "TENURE_SERVE_ACTORS",
        "With `TENURE_SERVE_AUTH=proxy` or `TENURE_SERVE_USERS`: the users who may act, as the proxy or the file names \
         them, separated by commas; the others may only look. A user with queues, as in `ada,grace=mail+billing`, may \
         act on these alone.",
        "every user",
        |config, text| {
            config.serve.actors = Some(actors(text)?);
            Ok(())
        },
        |config| config.serve.actors.as_ref().map(|names| names.join(",")),
    ),
    optional(
        "TENURE_SERVE_VIEWERS",
        "With `TENURE_SERVE_AUTH=proxy` or `TENURE_SERVE_USERS`: the users who may look, as the proxy or the file \
         names them, separated by commas; the others see nothing. A user with queues, as in `ada,grace=mail+billing`, \
         sees these alone. A user who may act on a queue may look at it, too.",
        "every user",
        |config, text| {
            config.serve.viewers = Some(viewers(text)?);
            Ok(())
        },
        |config| config.serve.viewers.as_ref().map(|names| names.join(",")),
    ),
    text(
        "TENURE_SERVE_ACTIONS",
        "`true`: the dashboard can also enqueue, cancel, retry, redrive, purge, pause, limit and schedule; the HTTP \
         API can enqueue, cancel and retry.",
        |config, text| {
            config.serve.has_actions = yes_or_no(text)?;
            Ok(())
        },
        |config| Some(config.serve.has_actions.to_string()),
    ),
    text(
        "TENURE_SERVE_API",
        "`true`: an [HTTP API](http.md) is served beside the dashboard, at `/api/v1`.",
        |config, text| {
            config.serve.has_api = yes_or_no(text)?;
            Ok(())
        },
        |config| Some(config.serve.has_api.to_string()),
    ),
    password(
        "TENURE_SERVE_API_TOKEN",
        "A bearer token of programs that may act by the HTTP API, at least 8 characters. Better take 32.",
        |config, text| {
            config.serve.api_token = Some(long_enough(text)?);
            Ok(())
        },
        |config| config.serve.api_token.clone(),
    ),
    text(
        "TENURE_SERVE_PAYLOADS",
        "`false`: the dashboard and the HTTP API show no payload, output or checkpoint, and search none.",
        |config, text| {
            config.serve.shows_payloads = yes_or_no(text)?;
            Ok(())
        },
        |config| Some(config.serve.shows_payloads.to_string()),
    ),
    text(
        "TENURE_SERVE_BASE_PATH",
        "The path at which a proxy shows the dashboard, if not at the top, such as `/tenure`.",
        |config, text| {
            config.serve.base_path = path(text)?;
            Ok(())
        },
        |config| Some(format!("{}/", config.serve.base_path)),
    ),
    optional(
        "TENURE_SERVE_TRACE_URL",
        "The address of a trace, for the link on the page of a job: `{trace_id}` stands for its ID, as in \
         `https://traces.example.com/trace/{trace_id}`.",
        "no link",
        |config, text| {
            let is_web = text.starts_with("https://") || text.starts_with("http://");
            if !is_web || !text.contains("{trace_id}") {
                return Err("an address that starts with https:// or http:// and contains {trace_id}");
            }
            config.serve.trace_url = Some(text.into());
            Ok(())
        },
        |config| config.serve.trace_url.clone(),
    ),
    optional(
        "TENURE_SERVE_LOG_URL",
        "The address of a job's log where it is kept as a whole, for the link on the page of the job: `{job_id}` \
         stands for its ID, as in `https://logs.example.com/?query={job_id}`.",
        "no link",
        |config, text| {
            let is_web = text.starts_with("https://") || text.starts_with("http://");
            if !is_web || !text.contains("{job_id}") {
                return Err("an address that starts with https:// or http:// and contains {job_id}");
            }
            config.serve.log_url = Some(text.into());
            Ok(())
        },
        |config| config.serve.log_url.clone(),
    ),
    text(
        "TENURE_TRACE_PARENT",
        "How the span of a first attempt relates to the span that enqueued the job: by a `link`, or as its `child`, \
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
    age("TENURE_KEEP_EVENTS", "How long recovery events are kept; at least 1h, or forever.", |config| {
        &mut config.retention.events
    }),
    Setting {
        takes: Takes::Age(|config| &mut config.retention.audit, kept_as_evidence),
        ..age(
            "TENURE_KEEP_AUDIT",
            "How long acts of persons and programs are kept: `tenure audit`; at least 30d, or forever.",
            |config| &mut config.retention.audit,
        )
    },
    timer("TENURE_STALE_AFTER", "The silence after which a running job is stale, and is reset.", |timing| {
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
        "How often tenure sends a heartbeat for a job of a kind with `keepalive`; at most a third of `stale_after`.",
        |timing| &mut timing.keepalive_every,
    ),
    timer(
        "TENURE_RENEW_EVERY",
        "How often a worker renews its own row. \
         A worker that misses two renewals, and does not answer over NATS, is gone: recovery resets its jobs.",
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
         A dead worker's request takes messages for this long.",
        |timing| &mut timing.pull_for,
    ),
    timer(
        "TENURE_SHUTDOWN_GRACE",
        "How long running jobs may go on after the worker was asked to stop; 0s stops them at once.",
        |timing| &mut timing.shutdown_grace,
    ),
    timer(
        "TENURE_CANCEL_GRACE",
        "How long a cancelled handler may tidy up before it is dropped; 0s drops it at once.",
        |timing| &mut timing.cancel_grace,
    ),
    timer(
        "TENURE_UNKNOWN_KIND_AFTER",
        "How long a job of a kind that no worker knows waits before it becomes a dead letter.",
        |timing| &mut timing.unknown_kind_after,
    ),
    timer("TENURE_DATABASE_WITHIN", "The longest one database call may take.", |timing| {
        &mut timing.database_within
    }),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::{collections::BTreeSet, fmt::Write, path::Path};

    use super::*;

    #[test]
    fn every_setting_has_its_own_name_and_every_timer_has_a_setting() {
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
    fn a_setting_takes_the_text_that_it_shows() {
        let mut given = Config::new("postgres://a", "nats://b");
        given.nats_certificate = Some(("c.pem".into(), "k.pem".into()));
        given.hostname = Some("h".into());
        given.listen = Some(([127, 0, 0, 1], 9090).into());
        given.cells = Some("cells.toml".into());
        given.serve = Serve {
            user: "u".into(),
            password: Some("12345678".into()),
            viewer_password: Some("23456789".into()),
            users: Some("/etc/tenure/users".into()),
            token: Some("87654321".into()),
            is_behind_proxy: true,
            actors: Some(vec!["ada".into(), "grace".into()]),
            viewers: Some(vec!["eve".into(), "bob=mail".into()]),
            log_url: Some("https://logs/{job_id}".into()),
            has_actions: true,
            has_api: true,
            api_token: Some("98765432".into()),
            shows_payloads: false,
            base_path: "/a/b".into(),
            trace_url: Some("https://t/{trace_id}".into()),
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

    /// Writes the docs' table from the list.
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
            "write the table again: TENURE_WRITE_DOCS=1 cargo test --all-features --lib the_table_of_settings"
        );
    }
}
