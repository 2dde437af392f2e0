//! Sources: reads the settings from a file, from the environment, which overrides it, and from flags, which override
//! both.
//!
//! A name that is no setting is refused: a misspelt one would silently mean nothing.

mod file;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use file::of_file;

use super::{
    Config, ConfigError,
    settings::{PREFIX, SETTINGS, Setting},
};
use crate::cells::config::Layout;

/// The variable that names the file.
pub(super) const FILE_VARIABLE: &str = "TENURE_CONFIG";

/// Variables that have tenure's prefix, and are no settings.
const OTHERS: &[&str] = &[
    // Names the settings file.
    FILE_VARIABLE,
    // The format of the log, in which the program also reports settings that it cannot read.
    "TENURE_LOG_FORMAT",
    // `work --exec` sets these for a command, which may run `tenure enqueue`.
    "TENURE_JOB_ID",
    "TENURE_QUEUE",
    "TENURE_KIND",
    "TENURE_ATTEMPT",
    "TENURE_FENCING_TOKEN",
    "TENURE_CLAIM_ID",
    "TENURE_CHECKPOINT_FILE",
    // Where `tenure dev`, the tests and `scripts/setup` find the servers' programs.
    "TENURE_PG_BIN",
    "TENURE_NATS_SERVER",
    // The passwords of `nats/server.conf`: docker-compose.yml takes them from where it takes the settings.
    "TENURE_NATS_PRODUCER_PASSWORD",
    "TENURE_NATS_WORKER_PASSWORD",
    "TENURE_NATS_ADMIN_PASSWORD",
    // The tests' own, and those that they set for their workers. `make chaos` has `TENURE_CHAOS_…`.
    "TENURE_FAULT",
    "TENURE_SCENARIO",
    "TENURE_CASES",
    "TENURE_TRIALS",
    "TENURE_MILLION",
    "TENURE_WRITE_DOCS",
];

/// A longer name is no typing error, and takes long to compare.
const COMPARED_BYTES_MAX: usize = 64;

type Vars = BTreeMap<String, String>;

/// The settings that one source gives, by name.
type Level = BTreeMap<&'static str, Given>;

/// A setting's name, its flag, and the flag's value.
pub(crate) type Flag<'a> = (&'a str, &'static str, Option<&'a str>);

/// How a setting is given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By its value.
    Value,
    /// By the path of a file that holds its value: a secret.
    File,
}

#[derive(Clone)]
enum Origin {
    File { path: PathBuf, line: usize },
    Environment,
    Flag(&'static str),
}

/// A setting as it is given. No `Debug`: it may be a password.
#[derive(Clone)]
struct Given {
    setting: &'static Setting,
    form: Form,
    text: String,
    origin: Origin,
}

impl Given {
    /// Returns its name and place in its source, for a message.
    fn called(&self) -> String {
        let is_file = self.form == Form::File;
        match &self.origin {
            Origin::File { path, line } => {
                place(&format!("{}{}", self.setting.key(), if is_file { "_file" } else { "" }), path, *line)
            }
            Origin::Environment => format!("{}{}", self.setting.name, if is_file { "_FILE" } else { "" }),
            Origin::Flag(flag) => (*flag).to_owned(),
        }
    }

    /// Returns its value; reads a secret's file.
    fn value(&self) -> Result<String, ConfigError> {
        if self.form == Form::Value {
            return Ok(self.text.clone());
        }
        let path = Path::new(&self.text);
        let text = fs::read_to_string(path).map_err(|error| unreadable(self.called(), path, error))?;
        match text.trim() {
            "" => Err(ConfigError::Invalid {
                name: self.called(),
                value: self.text.clone(),
                expected: "a file that is not empty",
            }),
            value => Ok(value.to_owned()),
        }
    }

    fn invalid(&self, value: String, expected: &'static str) -> ConfigError {
        let value = if self.setting.is_secret { "***".to_owned() } else { value };
        ConfigError::Invalid { name: self.called(), value, expected }
    }

    /// Returns the source of its value, for `tenure config`.
    fn source(&self) -> String {
        match &self.origin {
            _ if self.form == Form::File => self.text.clone(),
            Origin::File { path, .. } => path.display().to_string(),
            Origin::Environment => "environment".to_owned(),
            Origin::Flag(_) => "flag".to_owned(),
        }
    }
}

/// The given settings, each from the highest source that has it. Every other has its default.
pub struct Settings(Level);

/// A setting as it is in force.
#[derive(Debug, serde::Serialize)]
pub struct InForce {
    /// The environment variable.
    pub name: &'static str,
    /// `None`: it is not set, and there is no default. Passwords are masked.
    pub value: Option<String>,
    /// `default`, `environment`, `flag`, or the file.
    pub from: String,
}

impl Settings {
    /// Reads the file, this process's environment, and these flags. `named`: a path, and the flag that names it.
    pub fn load(named: Option<(&Path, &str)>, flags: &[Flag<'_>]) -> Result<Self, ConfigError> {
        Self::read(named, &environment()?, flags)
    }

    fn read(named: Option<(&Path, &str)>, vars: &Vars, flags: &[Flag<'_>]) -> Result<Self, ConfigError> {
        let mut all = of_file(named, vars)?;
        all.extend(of_vars(vars)?);
        all.extend(of_flags(flags));
        Ok(Self(all))
    }

    /// Reads these variables, and nothing else.
    pub(super) fn of_environment(vars: &Vars) -> Result<Self, ConfigError> {
        Ok(Self(of_vars(vars)?))
    }

    /// Returns the configuration; both URLs are set.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let config = self.check()?;
        for (name, url, hint) in [
            (
                "DATABASE_URL",
                &config.database_url,
                "for example postgres://user:password@host/database; `tenure dev` prints one",
            ),
            ("NATS_URL", &config.nats_url, "for example nats://host:4222; `tenure dev` prints one"),
        ] {
            if url.is_empty() {
                return Err(ConfigError::Missing { name, hint });
            }
        }
        Ok(config)
    }

    /// Returns the configuration; a URL that is not set is empty.
    pub fn check(&self) -> Result<Config, ConfigError> {
        let mut config = Config::new("", "");
        for given in self.0.values() {
            let value = given.value()?;
            let put = given.setting.put(&mut config, &value);
            put.map_err(|expected| given.invalid(value, expected))?;
        }
        for (name, other, expected) in [
            ("TENURE_NATS_CERT", "TENURE_NATS_KEY", "a certificate whose key is named by TENURE_NATS_KEY"),
            ("TENURE_NATS_KEY", "TENURE_NATS_CERT", "the key of a certificate that TENURE_NATS_CERT names"),
        ] {
            if let Some(given) = self.0.get(name)
                && !self.0.contains_key(other)
            {
                return Err(given.invalid(given.text.clone(), expected));
            }
        }
        config.timing.validate()?;
        Ok(config)
    }

    /// Returns the cells that the file of `TENURE_CELLS` lists; `None`: that is not set. A cell has this process's
    /// settings, but for those that the file gives it.
    pub fn layout(&self) -> Result<Option<Layout>, ConfigError> {
        let own = self.check()?;
        let Some(path) = own.cells else { return Ok(None) };
        let file = file::cells(&path)?;
        let wrong = |reason: String| ConfigError::Cells { path: path.clone(), reason };
        let mut layout = Layout::new();
        for cell in file.cells {
            let mut settings = self.0.clone();
            settings.remove("TENURE_LISTEN");
            settings.extend(cell.settings);
            let config = Self(settings).config().map_err(|error| match error {
                ConfigError::Missing { name, .. } => {
                    wrong(format!("cell {:?} has no {}", cell.name, name.to_lowercase()))
                }
                error => error,
            })?;
            layout =
                layout.cell(&cell.name, config, cell.queues).map_err(|error| wrong(error.to_string()))?;
        }
        if layout.cells().is_empty() {
            return Err(wrong("it lists no cell; begin one with a line such as [cells.main]".to_owned()));
        }
        if let Some(name) = file.default {
            layout = layout.default_cell(&name).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Some(layout.listen_at(own.listen)))
    }

    /// Returns every setting in force, even if they contradict each other.
    pub fn in_force(&self) -> Result<Vec<InForce>, ConfigError> {
        let defaults = Config::new("", "");
        let mut all = Vec::with_capacity(SETTINGS.len());
        for setting in SETTINGS {
            let (value, from) = match self.0.get(setting.name) {
                Some(given) => (Some(given.value()?), given.source()),
                None => (setting.get(&defaults), "default".to_owned()),
            };
            let shown = |value: String| match setting.name {
                _ if !setting.is_secret => value,
                name if name.ends_with("_URL") => super::masked(&value),
                _ => "***".to_owned(),
            };
            let value = value.filter(|value| !value.is_empty()).map(shown);
            all.push(InForce { name: setting.name, value, from });
        }
        Ok(all)
    }
}

/// Reads the variables of this process.
pub(super) fn environment() -> Result<Vars, ConfigError> {
    let mut vars = Vars::new();
    for (name, value) in std::env::vars_os() {
        // No setting has such a name.
        let Ok(name) = name.into_string() else { continue };
        match (value.into_string(), by_variable(&name)) {
            (Ok(value), _) => {
                vars.insert(name, value);
            }
            (Err(value), Some((setting, form))) => {
                let text = value.to_string_lossy().into_owned();
                let given = Given { setting, form, text: text.clone(), origin: Origin::Environment };
                return Err(given.invalid(text, "text in UTF-8"));
            }
            // No setting, but it may be a misspelt one.
            (Err(value), None) => {
                vars.insert(name, value.to_string_lossy().into_owned());
            }
        }
    }
    Ok(vars)
}

fn of_vars(vars: &Vars) -> Result<Level, ConfigError> {
    let mut level = Level::new();
    for (name, text) in vars {
        let Some((setting, form)) = by_variable(name) else {
            if name.starts_with(PREFIX) && !is_of_others(name, vars) {
                return Err(unknown(&name.escape_debug().to_string(), name, |setting| {
                    setting.name.to_owned()
                }));
            }
            continue;
        };
        // `DATABASE_URL: ${DATABASE_URL:-}` leaves an empty text if the variable is not set.
        if setting.is_secret && text.is_empty() {
            continue;
        }
        add(&mut level, Given { setting, form, text: text.clone(), origin: Origin::Environment })?;
    }
    Ok(level)
}

fn of_flags(flags: &[Flag<'_>]) -> Level {
    let given = flags.iter().filter_map(|&(name, flag, text)| {
        let (setting, form) = by_variable(name)?;
        Some((setting.name, Given { setting, form, text: text?.to_owned(), origin: Origin::Flag(flag) }))
    });
    given.collect()
}

/// Adds a setting to a level, which may give it only once.
fn add(level: &mut Level, given: Given) -> Result<(), ConfigError> {
    let called = given.called();
    match level.insert(given.setting.name, given) {
        None => Ok(()),
        Some(before) => Err(ConfigError::GivenTwice { name: before.called(), other: called }),
    }
}

fn by_variable(name: &str) -> Option<(&'static Setting, Form)> {
    SETTINGS.iter().find_map(|setting| Some((setting, form(setting, setting.name, name, "_FILE")?)))
}

/// Returns how `given` names the setting: its value or its file; `None`: another setting.
fn form(setting: &Setting, own: &str, given: &str, suffix: &str) -> Option<Form> {
    match given.strip_prefix(own)? {
        "" => Some(Form::Value),
        rest if rest == suffix && setting.is_secret => Some(Form::File),
        _ => None,
    }
}

/// Whether a variable that has tenure's prefix, and is no setting, belongs to another program.
fn is_of_others(name: &str, vars: &Vars) -> bool {
    OTHERS.contains(&name) || name.starts_with("TENURE_CHAOS_") || is_of_a_service(name, vars)
}

/// Kubernetes tells every container about the Services of its namespace. For one that is called `tenure` it sets
/// `TENURE_SERVICE_HOST`, `TENURE_SERVICE_PORT`, `TENURE_SERVICE_PORT_HTTP`, `TENURE_PORT`, `TENURE_PORT_80_TCP_ADDR`
/// and so on; for a `tenure-nats` those that start with `TENURE_NATS_`. Only a host proves that the latter
/// exists.
fn is_of_a_service(name: &str, vars: &Vars) -> bool {
    if name.ends_with("_SERVICE_HOST") {
        return true;
    }
    ["_SERVICE_PORT", "_PORT"].into_iter().any(|mark| {
        name.match_indices(mark).any(|(at, _)| {
            let (service, rest) = (&name[..at], &name[at + mark.len()..]);
            let is_whole = rest.is_empty() || rest.starts_with('_');
            is_whole && (service == "TENURE" || vars.contains_key(&format!("{service}_SERVICE_HOST")))
        })
    })
}

fn unknown(called: &str, name: &str, spelt: impl FnOnce(&Setting) -> String) -> ConfigError {
    let hint = match meant(name) {
        Some(setting) => format!("did you mean {}?", spelt(setting)),
        None => "`tenure config` lists them".to_owned(),
    };
    ConfigError::Unknown { name: called.to_owned(), hint }
}

/// The setting that was probably meant: at most a third of its letters are wrong.
fn meant(name: &str) -> Option<&'static Setting> {
    if name.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let name = name.to_lowercase();
    let key = name.strip_prefix("tenure_").unwrap_or(&name);
    let distances = SETTINGS.iter().map(|setting| {
        let own = setting.key();
        (strsim::damerau_levenshtein(key, &own), own.len(), setting)
    });
    let (distance, letters, setting) = distances.min_by_key(|(distance, ..)| *distance)?;
    (distance * 3 <= letters).then_some(setting)
}

/// Names a setting of a file and its place, for a message.
fn place(name: &str, path: &Path, line: usize) -> String {
    format!("{} ({}, line {line})", name.escape_debug(), path.display())
}

fn unreadable(named_by: String, path: &Path, source: io::Error) -> ConfigError {
    ConfigError::Unreadable { named_by, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
