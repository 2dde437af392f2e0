//! The file of settings: a table of TOML, without sections.

use std::{fs, io, path::Path};

use toml::de::{DeTable, DeValue};

use super::{FILE_VARIABLE, Form, Given, Level, Origin, Vars, add, form, place, unknown, unreadable};
use crate::config::{
    ConfigError,
    settings::{SETTINGS, Setting, Takes},
};

/// The file that tenure reads if it exists and no other file is named.
const USUAL_FILE: &str = "tenure.toml";

pub(super) fn of_file(named: Option<(&Path, &str)>, vars: &Vars) -> Result<Level, ConfigError> {
    let variable = vars.get(FILE_VARIABLE).filter(|path| !path.is_empty());
    let named = named.or_else(|| Some((Path::new(variable?), FILE_VARIABLE)));
    let (path, named_by) = named.unwrap_or((Path::new(USUAL_FILE), "the working directory"));
    match fs::read_to_string(path) {
        Ok(text) => of_toml(&text, path),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(Level::new()),
        Err(error) => Err(unreadable(named_by.to_owned(), path, error)),
    }
}

pub(super) fn of_toml(text: &str, path: &Path) -> Result<Level, ConfigError> {
    let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    // Leave out the error's own text: it quotes the line, which may hold a password.
    let table = DeTable::parse(text).map_err(|error| ConfigError::NotToml {
        path: path.to_owned(),
        line: line(error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })?;
    let mut level = Level::new();
    for (key, value) in table.get_ref() {
        let line = line(key.span().start);
        let name: &str = key.get_ref();
        let value = value.get_ref();
        let Some((setting, form)) = by_key(name) else {
            let called = place(name, path, line);
            if matches!(value, DeValue::Table(_)) {
                let hint = "there are no sections; write lines such as stale_after = \"5min\"".to_owned();
                return Err(ConfigError::Unknown { name: called, hint });
            }
            return Err(unknown(&called, name, Setting::key));
        };
        let text = match (value, &setting.takes) {
            (DeValue::String(text), _) => text.to_string(),
            (DeValue::Integer(number), Takes::Number(..)) => {
                let decimal = i64::from_str_radix(number.as_str(), number.radix());
                decimal.map_or_else(|_| number.to_string(), |number| number.to_string())
            }
            (_, takes) => {
                let expected = match takes {
                    Takes::Text(..) => "a string, in quotes",
                    Takes::Number(..) => "an integer",
                    Takes::Duration(_) => "a duration in quotes, such as \"500ms\", \"30s\" or \"5min\"",
                    Takes::Age(_) => "a duration in quotes, such as \"7d\", or \"forever\"",
                };
                return Err(ConfigError::WrongType {
                    name: place(name, path, line),
                    is: kind(value),
                    expected,
                });
            }
        };
        let origin = Origin::File { path: path.to_owned(), line };
        add(&mut level, Given { setting, form, text, origin })?;
    }
    Ok(level)
}

/// Names a value's type, for a sentence.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn by_key(key: &str) -> Option<(&'static Setting, Form)> {
    SETTINGS.iter().find_map(|setting| Some((setting, form(setting, &setting.key(), key, "_file")?)))
}
