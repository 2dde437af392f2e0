//! Tests of the sources of settings.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use super::{file::of_toml, *};

const URLS: &str = "database_url = \"postgres://u:s3cr3t@file/d\"\nnats_url = \"nats://u:s3cr3t@file\"\n";

fn vars(given: &[(&str, &str)]) -> Vars {
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A test's own folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-config-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn of_text(text: &str) -> Result<Settings, ConfigError> {
    of_toml(text, Path::new("some/tenure.toml")).map(Settings)
}

fn config_of(text: &str) -> Result<Config, ConfigError> {
    of_text(&format!("{URLS}{text}"))?.config()
}

/// With the two lines of the URLs before it: the text is line 3.
fn refused(text: &str) -> String {
    config_of(text).unwrap_err().to_string()
}

fn refused_in_the_environment(given: &[(&str, &str)]) -> String {
    Settings::of_environment(&vars(given)).err().unwrap().to_string()
}

#[test]
fn a_flag_is_over_the_environment_which_is_over_the_file_which_is_over_the_defaults() {
    let folder = Folder::new("layers");
    let text = format!("{URLS}stream = \"FILE\"\nstale_after = \"4min\"\nhandler_connections = 3\n");
    let path = folder.file("a.toml", &text);
    let env =
        vars(&[("TENURE_STREAM", "ENV"), ("NATS_URL", "nats://env"), ("DATABASE_URL", "postgres://env")]);
    let flags =
        [("DATABASE_URL", "--database-url", Some("postgres://flag")), ("NATS_URL", "--nats-url", None)];
    let settings = Settings::read(Some((path.as_path(), "--config")), &env, &flags).unwrap();
    let config = settings.config().unwrap();
    assert_eq!(config.database_url, "postgres://flag");
    assert_eq!(config.nats_url, "nats://env");
    assert_eq!(config.stream, "ENV");
    assert_eq!(config.timing.stale_after, Duration::from_mins(4));
    assert_eq!((config.handler_connections, config.subject_prefix.as_str()), (3, "jobs"));
    let all = settings.in_force().unwrap();
    let of = |name: &str| {
        let one = all.iter().find(|setting| setting.name == name).unwrap();
        (one.value.as_deref().unwrap_or("-"), one.from.as_str())
    };
    let path = path.display().to_string();
    assert_eq!(of("DATABASE_URL"), ("postgres://flag", "flag"));
    assert_eq!(of("NATS_URL"), ("nats://env", "environment"));
    assert_eq!(of("TENURE_STREAM"), ("ENV", "environment"));
    assert_eq!(of("TENURE_STALE_AFTER"), ("4min", path.as_str()));
    assert_eq!(of("TENURE_HANDLER_CONNECTIONS"), ("3", path.as_str()));
    assert_eq!(of("TENURE_SCAN_EVERY"), ("30s", "default"));
    assert_eq!(of("TENURE_HOSTNAME"), ("-", "default"));
    assert_eq!(all.len(), SETTINGS.len());
}

#[test]
fn the_file_is_the_named_one_or_that_of_the_variable_and_must_exist() {
    let folder = Folder::new("named");
    let (a, b) = (folder.file("a.toml", "stream = \"A\""), folder.file("b.toml", "stream = \"B\""));
    let env = vars(&[("TENURE_CONFIG", b.to_str().unwrap())]);
    let stream = |named| Settings::read(named, &env, &[]).unwrap().check().unwrap().stream;
    assert_eq!(stream(None), "B");
    assert_eq!(stream(Some((a.as_path(), "--config"))), "A");
    let nowhere = folder.0.join("nowhere.toml");
    let missing = |named, env: &Vars| Settings::read(named, env, &[]).err().unwrap().to_string();
    let text = missing(Some((nowhere.as_path(), "--config")), &env);
    assert!(text.starts_with("--config: ") && text.contains("nowhere.toml must be a file"), "{text}");
    let text = missing(None, &vars(&[("TENURE_CONFIG", nowhere.to_str().unwrap())]));
    assert!(text.starts_with("TENURE_CONFIG: ") && text.contains("nowhere.toml"), "{text}");
    // These tests run where there is no `tenure.toml`; a variable that is empty names none.
    assert!(Settings::read(None, &vars(&[("TENURE_CONFIG", "")]), &[]).unwrap().0.is_empty());
    let error = Config::load(Some(&nowhere)).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }), "{error}");
}

#[test]
fn an_unknown_setting_is_refused_with_the_one_that_was_probably_meant() {
    let refused_variable = |name: &str| refused_in_the_environment(&[(name, "1")]);
    for (name, hint) in [
        ("TENURE_STALE_AFTR", "did you mean TENURE_STALE_AFTER?"),
        ("TENURE_SALTE_AFTER", "did you mean TENURE_STALE_AFTER?"),
        ("TENURE_stale_after", "did you mean TENURE_STALE_AFTER?"),
        ("TENURE_DATABASE_URL", "did you mean DATABASE_URL?"),
        ("TENURE_NATS_CERTS", "did you mean TENURE_NATS_CERT?"),
        ("TENURE_STREAM_FILE", "`tenure config` lists them"),
        ("TENURE_COLOUR_OF_THE_SKY", "`tenure config` lists them"),
        ("TENURE_", "`tenure config` lists them"),
    ] {
        assert_eq!(refused_variable(name), format!("{name} is not a setting; {hint}"));
    }
    assert!(refused_variable(&format!("TENURE_{}", "A".repeat(100_000))).contains("lists them"));
    let at = "(some/tenure.toml, line 3) is not a setting";
    for (text, hint) in [
        ("stale_aftr = \"1min\"", format!("stale_aftr {at}; did you mean stale_after?")),
        ("TENURE_STREAM = \"A\"", format!("TENURE_STREAM {at}; did you mean stream?")),
        ("sky = \"blue\"", format!("sky {at}; `tenure config` lists them")),
        ("stream_file = \"/f\"", format!("stream_file {at}; `tenure config` lists them")),
        ("\"\\u001b[31m\" = 1", format!("\\u{{1b}}[31m {at}; `tenure config` lists them")),
    ] {
        assert_eq!(refused(text), hint);
    }
    assert!(refused("[timing]\nstale_after = \"1min\"").contains("timing (some/tenure.toml, line 3) is not"));
    assert!(refused("[timing]\nstale_after = \"1min\"").contains("there are no sections"));
}

#[test]
fn variables_of_other_programs_are_not_refused() {
    for name in OTHERS.iter().copied().chain([
        "TENURE_CHAOS_ROLE",
        "TENURE_SERVICE_HOST",
        "TENURE_SERVICE_PORT",
        "TENURE_SERVICE_PORT_HTTP",
        "TENURE_PORT",
        "TENURE_PORT_80_TCP",
        "TENURE_PORT_80_TCP_PROTO",
        "TENURE_PORT_80_TCP_ADDR",
    ]) {
        let given = Settings::of_environment(&vars(&[(name, "tcp://10.0.0.1:80")]));
        assert!(given.unwrap().0.is_empty(), "{name}");
    }
    // A Service called `tenure-nats`: only with its host.
    let port = ("TENURE_NATS_PORT_4222_TCP", "tcp://10.0.0.1:4222");
    assert!(refused_in_the_environment(&[port]).contains("is not a setting"));
    let both = [port, ("TENURE_NATS_SERVICE_HOST", "10.0.0.1"), ("TENURE_NATS_SERVICE_PORT", "4222")];
    Settings::of_environment(&vars(&both)).unwrap();
}

#[test]
fn a_value_of_another_type_is_refused_with_its_place() {
    let at = |key: &str| format!("{key} (some/tenure.toml, line 3)");
    for (text, should) in [
        (
            "stale_after = 300",
            format!("{} is an integer, but must be a duration in quotes", at("stale_after")),
        ),
        ("stream = 5", format!("{} is an integer, but must be a string, in quotes", at("stream"))),
        ("hostname = true", format!("{} is a boolean, but must be a string", at("hostname"))),
        (
            "handler_connections = 1.5",
            format!("{} is a float, but must be an integer", at("handler_connections")),
        ),
        ("stream = [\"A\"]", format!("{} is an array, but must be a string", at("stream"))),
        ("stream.of = \"A\"", format!("{} is a table, but must be a string", at("stream"))),
        // The right type, but an invalid value.
        (
            "stale_after = \"soon\"",
            format!("{} is \"soon\", but must be a duration such as", at("stale_after")),
        ),
        (
            "handler_connections = -1",
            format!("{} is \"-1\", but must be a number above 0", at("handler_connections")),
        ),
        ("nats_key = \"k\"", format!("{} is \"k\", but must be the key of a certificate", at("nats_key"))),
        ("ack_wait = \"1s\"", "ack_wait (1s) must be longer than stale_after (5m)".to_owned()),
    ] {
        let is = refused(text);
        assert!(is.starts_with(&should), "{is}");
    }
    for number in ["4096", "4_096", "0x1000", "\"4096\""] {
        let config = config_of(&format!("payload_bytes_max = {number}")).unwrap();
        assert_eq!(config.payload_bytes_max, 4_096, "{number}");
    }
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_the_number_of_the_line_and_without_its_text() {
    for text in ["database_url postgres://u:s3cr3t@h", "stream = \"s3cr3t", "scan_every = 5min s3cr3t"] {
        let error = of_text(&format!("# words\n\n{text}\n")).err().unwrap();
        assert!(matches!(error, ConfigError::NotToml { line: 3, .. }), "{error:?}");
        assert!(error.to_string().starts_with("some/tenure.toml, line 3: "), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error:?}");
    }
    let twice = of_text("stream = \"A\"\nstream = \"B\"\n").err().unwrap();
    assert!(matches!(twice, ConfigError::NotToml { line: 2, .. }), "{twice:?}");
}

#[test]
fn a_secret_may_stand_in_a_file_of_its_own_but_not_twice() {
    let folder = Folder::new("secrets");
    let database = folder.file("database", "  postgres://u:s3cr3t@of-file/d\n\n");
    let database = database.to_str().unwrap();
    let settings = Settings::of_environment(&vars(&[
        ("DATABASE_URL_FILE", database),
        ("DATABASE_URL", ""),
        ("NATS_URL", "nats://n"),
    ]))
    .unwrap();
    assert_eq!(settings.config().unwrap().database_url, "postgres://u:s3cr3t@of-file/d");
    let all = settings.in_force().unwrap();
    assert_eq!((all[0].value.as_deref(), all[0].from.as_str()), (Some("postgres://***@of-file/d"), database));

    let text = format!("database_url_file = {database:?}\nnats_url = \"nats://n\"");
    assert_eq!(of_text(&text).unwrap().config().unwrap().database_url, "postgres://u:s3cr3t@of-file/d");
    let toml = folder.file("a.toml", "database_url_file = \"/nowhere/database\"\n");
    let named = Some((toml.as_path(), "--config"));
    // The file of an overridden secret is not read.
    let env = vars(&[("DATABASE_URL", "postgres://env")]);
    assert_eq!(Settings::read(named, &env, &[]).unwrap().check().unwrap().database_url, "postgres://env");
    let text = Settings::read(named, &vars(&[]), &[]).unwrap().check().unwrap_err().to_string();
    assert!(text.contains("database_url_file (") && text.contains("/nowhere/database must be"), "{text}");
    let empty = folder.file("empty", "\n");
    let settings = Settings::of_environment(&vars(&[("NATS_URL_FILE", empty.to_str().unwrap())])).unwrap();
    let text = settings.check().unwrap_err().to_string();
    assert!(text.starts_with("NATS_URL_FILE is ") && text.contains("a file that is not empty"), "{text}");

    let text = refused_in_the_environment(&[("NATS_URL", "nats://u:s3cr3t@n"), ("NATS_URL_FILE", "/f")]);
    assert_eq!(text, "NATS_URL and NATS_URL_FILE are both set; remove one of them");
    let text = refused("nats_url_file = \"/f\"");
    assert!(text.contains("nats_url (some/tenure.toml, line 2)"), "{text}");
    assert!(text.contains("nats_url_file (some/tenure.toml, line 3)"), "{text}");
    assert!(!text.contains("s3cr3t"));
}

#[test]
fn the_settings_in_force_show_no_secret() {
    let settings = of_text(URLS).unwrap();
    let shown = format!("{:?}", settings.in_force().unwrap());
    assert!(!shown.contains("s3cr3t") && shown.contains("postgres://***@file/d"), "{shown}");
    let error = of_text("database_url = { password = \"s3cr3t\" }").err().unwrap();
    assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error:?}");
    // They are shown even if they contradict each other, and without a URL.
    let settings = of_text("ack_wait = \"1s\"").unwrap();
    let all = settings.in_force().unwrap();
    assert!(all[0].value.is_none() && all[1].value.is_none());
    assert!(all.iter().any(|setting| setting.value.as_deref() == Some("1s")));
    assert!(matches!(settings.check(), Err(ConfigError::Timing(_))));
    assert!(matches!(of_text("").unwrap().config(), Err(ConfigError::Missing { name: "DATABASE_URL", .. })));
    of_text("").unwrap().check().unwrap();
}

#[test]
fn another_process_gets_the_same_configuration_by_its_environment() {
    let mut config = Config::new("postgres://u:p@h/d?sslmode=require", "nats://a,nats://b");
    config.nats_ca = Some("ca.pem".into());
    config.nats_certificate = Some(("c.pem".into(), "k.pem".into()));
    config.inbox_prefix = Some("_INBOX_worker".into());
    config.timing.flush_every = Duration::from_millis(1_500);
    let given: Vars =
        config.variables().into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let settings = Settings::read(None, &given, &[]).unwrap();
    assert!(settings.config().unwrap() == config);
    assert_eq!(given[FILE_VARIABLE], "/dev/null");
    let removed = |name: &str| config.variables().contains(&(name.to_owned(), None));
    assert!(removed("DATABASE_URL_FILE") && removed("NATS_URL_FILE") && removed("TENURE_HOSTNAME"));
}

/// Word for word, except for the secret's file.
#[test]
fn the_example_of_the_docs_is_a_configuration() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let docs = fs::read_to_string(docs).unwrap();
    let example = docs.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = Folder::new("docs");
    let secret = folder.file("database_url", "postgres://u:p@h/d\n");
    assert!(example.contains("\"/run/secrets/database_url\""), "{example}");
    let example = example.replace("/run/secrets/database_url", secret.to_str().unwrap());
    let config = of_text(&example).unwrap().config().unwrap();
    assert_eq!(config.database_url, "postgres://u:p@h/d");
    assert_eq!(config.handler_connections, 20);
    assert_eq!(config.timing.stale_after, Duration::from_mins(15));
}
