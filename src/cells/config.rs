//! Layout: which cells there are, and which queues each has.

use std::{net::SocketAddr, path::Path};

use crate::{
    config::{Config, ConfigError, Settings},
    job::check_queue,
};

/// Which cells there are, and which queues each has.
///
/// A queue goes to the cell that names it; otherwise to the one with a pattern that it matches, of several patterns the
/// longest; otherwise to the default cell. In a pattern, `*` stands for any characters, also for none.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    cells: Vec<Place>,
    default: Option<usize>,
    listen: Option<SocketAddr>,
}

/// A cell of a layout.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) config: Config,
    queues: Vec<String>,
}

/// The cells of a layout contradict each other.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A name cannot be used.
    #[error(
        "cell {cell:?}: {what} {name:?} must be 1 to 64 characters of a-z, A-Z, 0-9, - and _{}",
        or_star(what)
    )]
    Name {
        /// The cell.
        cell: String,
        /// What is named: `its name`, or `the queue`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two cells have the same name, queue or pattern.
    #[error("cells {one:?} and {other:?} both have {what}; leave it out of one of them")]
    Twice {
        /// The one cell.
        one: String,
        /// The other.
        other: String,
        /// What both have.
        what: String,
    },
    /// Two cells are one: they share a database, or subjects of one NATS.
    #[error(
        "cells {one:?} and {other:?} have the same {what}; give each cell a database, a stream and a subject prefix of \
         its own"
    )]
    Shared {
        /// The one cell.
        one: String,
        /// The other.
        other: String,
        /// What they share: `database_url`, `stream` or `subject_prefix`.
        what: &'static str,
    },
    /// There is no cell of the default's name.
    #[error("the default names cell {name:?}, which the layout does not have")]
    Default {
        /// The name.
        name: String,
    },
}

fn or_star(what: &&'static str) -> &'static str {
    if *what == "the queue" { "; * stands for any characters" } else { "" }
}

impl Layout {
    /// Returns a layout without cells.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cell with these queues: names, or patterns with `*`.
    ///
    /// # Errors
    ///
    /// A name cannot be used, or the cell has what another one has.
    pub fn cell<Q: Into<String>>(
        mut self,
        name: &str,
        mut config: Config,
        queues: impl IntoIterator<Item = Q>,
    ) -> Result<Self, LayoutError> {
        let wrong = |what, of: &str| LayoutError::Name { cell: name.to_owned(), what, name: of.to_owned() };
        check_queue(name).map_err(|_| wrong("its name", name))?;
        let queues: Vec<String> = queues.into_iter().map(Into::into).collect();
        for queue in &queues {
            let plain = queue.replace('*', "x");
            check_queue(&plain).map_err(|_| wrong("the queue", queue))?;
        }
        for other in &self.cells {
            let twice = |what| LayoutError::Twice { one: other.name.clone(), other: name.to_owned(), what };
            if other.name == name {
                return Err(twice("this name".to_owned()));
            }
            if let Some(queue) = queues.iter().find(|queue| other.queues.contains(queue)) {
                return Err(twice(format!("{queue:?}")));
            }
            let is_one_nats = other.config.nats_url == config.nats_url;
            for (what, is_shared) in [
                ("database_url", other.config.database_url == config.database_url),
                ("stream", is_one_nats && other.config.stream == config.stream),
                ("subject_prefix", is_one_nats && other.config.subject_prefix == config.subject_prefix),
            ] {
                if is_shared {
                    let (one, other) = (other.name.clone(), name.to_owned());
                    return Err(LayoutError::Shared { one, other, what });
                }
            }
        }
        config.cell = Some(name.to_owned());
        // One address cannot have several listeners: see `CellsWorker`.
        config.listen = None;
        self.cells.push(Place { name: name.to_owned(), config, queues });
        Ok(self)
    }

    /// Sets the cell of the queues that no cell names.
    ///
    /// # Errors
    ///
    /// No cell that was added before has this name.
    pub fn default_cell(mut self, name: &str) -> Result<Self, LayoutError> {
        let place = self.cells.iter().position(|cell| cell.name == name);
        self.default = Some(place.ok_or_else(|| LayoutError::Default { name: name.to_owned() })?);
        Ok(self)
    }

    /// Sets the address at which the workers of `Cells::work` together answer `/metrics`, `/livez`, `/readyz` and
    /// `/startupz`; needs the feature `http`. That of a single cell's settings counts for nothing.
    #[must_use]
    pub fn listen_at(mut self, address: Option<SocketAddr>) -> Self {
        self.listen = address;
        self
    }

    /// Reads the settings as [`Config::load`] does, and the cells from the file that `TENURE_CELLS` names. `None`: it
    /// is not set.
    ///
    /// ```toml
    /// default = "main"
    ///
    /// [cells.main]
    /// database_url_file = "/run/secrets/main"
    /// nats_url = "nats://nats:4222"
    ///
    /// [cells.eu]
    /// database_url_file = "/run/secrets/eu"
    /// nats_url = "nats://nats:4222"
    /// stream = "JOBS_EU"
    /// subject_prefix = "jobs-eu"
    /// queues = ["mail-eu", "*-eu"]
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError`] says what to change, and in which line.
    pub fn load(file: Option<&Path>) -> Result<Option<Self>, ConfigError> {
        Settings::load(file.map(|path| (path, "the settings file")), &[])?.layout()
    }

    /// The settings of a cell; `None`: there is no such cell.
    #[doc(hidden)]
    #[must_use]
    pub fn config_of(&self, name: &str) -> Option<&Config> {
        self.cells.iter().find(|cell| cell.name == name).map(|cell| &cell.config)
    }

    /// The names of the cells.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.cells.iter().map(|cell| cell.name.as_str())
    }

    /// The address of [`Layout::listen_at`].
    #[must_use]
    pub fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Changes the settings of every cell.
    #[doc(hidden)]
    #[must_use]
    pub fn each_config(mut self, change: impl Fn(&mut Config)) -> Self {
        self.cells.iter_mut().for_each(|cell| change(&mut cell.config));
        self
    }

    /// The cell of a queue's new jobs.
    #[doc(hidden)]
    #[must_use]
    pub fn cell_of(&self, queue: &str) -> Option<&str> {
        self.place_of(queue).map(|place| self.cells[place].name.as_str())
    }

    pub(crate) fn cells(&self) -> &[Place] {
        &self.cells
    }

    /// Returns the place of the cell to which a queue belongs.
    pub(crate) fn place_of(&self, queue: &str) -> Option<usize> {
        let exact = self.cells.iter().position(|cell| cell.queues.iter().any(|own| own == queue));
        let patterns = self.cells.iter().enumerate().flat_map(|(place, cell)| {
            cell.queues.iter().filter(|own| own.contains('*')).map(move |pattern| (pattern, place))
        });
        let matching = patterns.filter(|(pattern, _)| matches(pattern, queue));
        // Of two patterns of one length, the first in the alphabet: the answer must not depend on the cells' order.
        let longest = || matching.max_by_key(|(pattern, _)| (pattern.len(), std::cmp::Reverse(*pattern)));
        exact.or_else(|| longest().map(|(_, place)| place)).or(self.default)
    }
}

/// Whether a pattern stands for a name: each `*` for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn config(name: &str) -> Config {
        let mut config = Config::new(format!("postgres://{name}"), "nats://n");
        config.stream = name.to_uppercase();
        config.subject_prefix = name.to_owned();
        config
    }

    #[test]
    fn a_pattern_matches_from_end_to_end() {
        for (pattern, name, is) in [
            ("*", "", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*-eu", "mail-eu", true),
            ("*-eu", "mail-eu-2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("ab*ba", "aba", false),
            ("a**b", "ab", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }

    #[test]
    fn an_exact_name_wins_then_the_longest_pattern_then_the_default() {
        let layout = Layout::new().cell("a", config("a"), ["mail", "*-eu"]).unwrap();
        let layout = layout.cell("b", config("b"), ["mail-*", "m*-eu"]).unwrap();
        let named =
            |layout: &Layout, queue: &str| layout.place_of(queue).map(|at| layout.cells[at].name.clone());
        for (queue, cell) in [
            ("mail", Some("a")),
            ("mail-1", Some("b")),
            ("x-eu", Some("a")),
            ("mx-eu", Some("b")),
            ("mail-eu", Some("b")),
            ("other", None),
        ] {
            assert_eq!(named(&layout, queue).as_deref(), cell, "{queue}");
        }
        let layout = layout.default_cell("a").unwrap();
        assert_eq!(named(&layout, "other").as_deref(), Some("a"));
        assert!(layout.default_cell("c").unwrap_err().to_string().contains("\"c\""));
    }

    #[test]
    fn cells_that_are_one_or_share_a_queue_are_refused_by_name() {
        let one = || Layout::new().cell("a", config("a"), ["q"]).unwrap();
        let mut same_stream = config("b");
        same_stream.stream = "A".into();
        let mut same_prefix = config("b");
        same_prefix.subject_prefix = "a".into();
        for (name, config, queue, said) in [
            ("a", config("b"), "r", "this name"),
            ("b", config("b"), "q", "\"q\""),
            ("b", config("a"), "r", "database_url"),
            ("b", same_stream, "r", "stream"),
            ("b", same_prefix, "r", "subject_prefix"),
            ("b c", config("b"), "r", "its name"),
            ("b", config("b"), "r.s", "the queue"),
        ] {
            let error = one().cell(name, config, [queue]).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
