//! The file of settings: a table of TOML, without sections.

use std::{fs, io, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

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

/// The file of the cells.
pub(super) struct CellsFile {
    pub(super) default: Option<String>,
    pub(super) cells: Vec<CellOfFile>,
}

/// A cell of that file.
pub(super) struct CellOfFile {
    pub(super) name: String,
    pub(super) queues: Vec<String>,
    pub(super) settings: Level,
}

/// Settings of the whole process, which a cell cannot change.
const OF_THE_PROCESS: [&str; 2] = ["TENURE_LISTEN", "TENURE_CELLS"];

/// Reads the file of the cells: `default`, and a table `[cells.NAME]` for each, with `queues` and settings.
pub(super) fn cells(path: &Path) -> Result<CellsFile, ConfigError> {
    let text =
        fs::read_to_string(path).map_err(|error| unreadable("TENURE_CELLS".to_owned(), path, error))?;
    let file = File { text: &text, path };
    let wrong = |name: &str, is: &DeValue<'_>, at: usize, expected| {
        let name = place(name, path, file.line(at));
        Err(ConfigError::WrongType { name, is: kind(is), expected })
    };
    let table = file.parse()?;
    let mut all = CellsFile { default: None, cells: Vec::new() };
    for (key, value) in table.get_ref() {
        let at = key.span().start;
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("default", DeValue::String(name)) => all.default = Some(name.to_string()),
            ("default", is) => return wrong("default", is, at, "the name of a cell, in quotes"),
            ("cells", DeValue::Table(cells)) => {
                // As they stand in the file: lists and pages show them in this order.
                let mut cells: Vec<_> = cells.iter().collect();
                cells.sort_by_key(|(name, _)| name.span().start);
                for (name, cell) in cells {
                    let DeValue::Table(of) = cell.get_ref() else {
                        let at = name.span().start;
                        return wrong(
                            name.get_ref(),
                            cell.get_ref(),
                            at,
                            "a table, which begins with [cells.NAME]",
                        );
                    };
                    all.cells.push(file.cell(name.get_ref(), of)?);
                }
            }
            ("cells", is) => return wrong("cells", is, at, "tables, each of which begins with [cells.NAME]"),
            (name, _) => {
                let name = place(name, path, file.line(at));
                let hint = "write default = \"NAME\", or tables that begin with [cells.NAME]".to_owned();
                return Err(ConfigError::Unknown { name, hint });
            }
        }
    }
    Ok(all)
}

pub(super) fn of_toml(text: &str, path: &Path) -> Result<Level, ConfigError> {
    let file = File { text, path };
    file.settings(file.parse()?.get_ref(), &[])
}

/// The text of a file, and its path, for messages.
struct File<'t> {
    text: &'t str,
    path: &'t Path,
}

impl<'t> File<'t> {
    fn line(&self, at: usize) -> usize {
        self.text.get(..at).unwrap_or(self.text).matches('\n').count() + 1
    }

    fn parse(&self) -> Result<Spanned<DeTable<'t>>, ConfigError> {
        // Leave out the error's own text: it quotes the line, which may hold a password.
        DeTable::parse(self.text).map_err(|error| ConfigError::NotToml {
            path: self.path.to_owned(),
            line: self.line(error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        })
    }

    fn cell(&self, name: &str, table: &DeTable<'_>) -> Result<CellOfFile, ConfigError> {
        let mut queues = Vec::new();
        for (key, value) in table {
            let (key, at) = (key.get_ref().as_ref(), key.span().start);
            if key == "queues" {
                let wrong = |is| ConfigError::WrongType {
                    name: place(key, self.path, self.line(at)),
                    is,
                    expected: "a list of names and patterns, such as [\"mail\", \"*-eu\"]",
                };
                let DeValue::Array(names) = value.get_ref() else { return Err(wrong(kind(value.get_ref()))) };
                for of in names {
                    match of.get_ref() {
                        DeValue::String(queue) => queues.push(queue.to_string()),
                        is => return Err(wrong(kind(is))),
                    }
                }
            } else if let Some((setting, _)) = by_key(key)
                && (OF_THE_PROCESS.contains(&setting.name) || setting.name.starts_with("TENURE_SERVE_"))
            {
                let name = place(key, self.path, self.line(at));
                let hint = "it belongs to the whole process, so set it outside of this file".to_owned();
                return Err(ConfigError::Unknown { name, hint });
            }
        }
        let settings = self.settings(table, &["queues"])?;
        Ok(CellOfFile { name: name.to_owned(), queues, settings })
    }

    /// Reads the settings of a table, without these keys.
    fn settings(&self, table: &DeTable<'_>, others: &[&str]) -> Result<Level, ConfigError> {
        let mut level = Level::new();
        for (key, value) in table {
            let line = self.line(key.span().start);
            let name: &str = key.get_ref();
            if others.contains(&name) {
                continue;
            }
            let value = value.get_ref();
            let Some((setting, form)) = by_key(name) else {
                let called = place(name, self.path, line);
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
                        Takes::Age(..) => "a duration in quotes, such as \"7d\", or \"forever\"",
                    };
                    let name = place(name, self.path, line);
                    return Err(ConfigError::WrongType { name, is: kind(value), expected });
                }
            };
            let origin = Origin::File { path: self.path.to_owned(), line };
            add(&mut level, Given { setting, form, text, origin })?;
        }
        Ok(level)
    }
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
