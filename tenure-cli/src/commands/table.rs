//! Table: lists that fit the terminal. Into a pipe a list goes whole, one line per item.
//!
//! A list that is too wide leaves out its spare columns, the least important first. If the others do not fit either, it
//! becomes one record per item. A header, an id and a time are never broken; only texts are cut or wrapped.

use std::{fmt, io::IsTerminal};

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Row, Table as Grid, Width,
    presets::{NOTHING, UTF8_FULL_CONDENSED},
};

/// The narrowest column of texts.
const TEXT_MIN: u16 = 24;
/// The longest word that a wrapped column keeps whole. An id has 36 characters.
const WORD_MAX: u16 = 40;
/// The spaces around a cell.
const PADDING: u16 = 2;

/// How a column fits its contents into its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Always as wide as its contents.
    Whole,
    /// On one line, which ends with `…` where it is cut.
    Cut,
    /// On several lines.
    Wrapped,
}

/// A list with a header.
pub(super) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    fits: Vec<Fit>,
    spare: &'static [&'static str],
    has_lines: bool,
    right: Option<usize>,
}

/// A list with these columns. The caller names those that need not be whole, and those that may be left out.
pub(super) fn table(header: &[&'static str]) -> Table {
    let fits = vec![Fit::Whole; header.len()];
    Table { header: header.to_vec(), rows: Vec::new(), fits, spare: &[], has_lines: false, right: None }
}

/// The width of the reader's screen; `None`: no screen, but a pipe or a file, whose reader gets everything. On a screen
/// `COLUMNS` has precedence over the terminal.
pub(super) fn width() -> Option<u16> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse::<u16>().ok());
    said.filter(|width| *width > 0).or_else(|| Grid::new().width()).filter(|width| *width > 0)
}

/// Names and values, one pair per line. Leaves out pairs without a value.
pub(super) fn pairs<'a>(of: impl IntoIterator<Item = (&'a str, String)>) -> String {
    pairs_at(of, width())
}

fn pairs_at<'a>(of: impl IntoIterator<Item = (&'a str, String)>, width: Option<u16>) -> String {
    let mut grid = grid(NOTHING, width);
    for (name, value) in of {
        if !value.is_empty() {
            grid.add_row([name.to_owned(), value]);
        }
    }
    if let Some(names) = grid.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    grid.trim_fmt()
}

fn grid(style: comfy_table::TableStyle, width: Option<u16>) -> Grid {
    let mut grid = Grid::new();
    grid.load_style(style).set_content_arrangement(ContentArrangement::Dynamic);
    match width {
        Some(width) => grid.set_width(width),
        None => grid.force_no_tty(),
    };
    grid
}

impl Table {
    /// Columns that a narrow screen does not show, the least important first.
    pub(super) fn spare(mut self, columns: &'static [&'static str]) -> Self {
        self.spare = columns;
        self
    }

    /// Cuts the texts of this column where they do not fit.
    pub(super) fn cut(self, column: &str) -> Self {
        self.fit(&[column], Fit::Cut)
    }

    /// Wraps the texts of these columns where they do not fit.
    pub(super) fn wrap(self, columns: &[&str]) -> Self {
        self.fit(columns, Fit::Wrapped)
    }

    /// Draws lines between the columns, and aligns this one to the right.
    pub(super) fn with_lines(mut self, right: &str) -> Self {
        self.has_lines = true;
        self.right = self.header.iter().position(|column| *column == right);
        self
    }

    fn fit(mut self, columns: &[&str], fit: Fit) -> Self {
        for (column, own) in self.header.iter().zip(&mut self.fits) {
            if columns.contains(column) {
                *own = fit;
            }
        }
        self
    }

    pub(super) fn add_row<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.into());
    }

    /// The list for a screen of this width.
    pub(super) fn at(&self, width: Option<u16>) -> String {
        let mut grid = grid(if self.has_lines { UTF8_FULL_CONDENSED } else { NOTHING }, width);
        grid.set_header(&self.header);
        for row in &self.rows {
            let mut row = Row::from(row.clone());
            if width.is_some() && self.fits.contains(&Fit::Cut) {
                row.max_height(1);
            }
            grid.add_row(row);
        }
        if let Some(right) = self.right.and_then(|right| grid.column_mut(right)) {
            right.set_cell_alignment(CellAlignment::Right);
        }
        let Some(width) = width else { return grid.trim_fmt() };
        let needed = self.needed(&grid.column_max_content_widths());
        let Some(is_shown) = self.shown(&needed, width) else { return self.records(width) };
        for (at, column) in grid.column_iter_mut().enumerate() {
            column.set_constraint(match self.fits[at] {
                _ if !is_shown[at] => ColumnConstraint::Hidden,
                Fit::Whole => ColumnConstraint::ContentWidth,
                Fit::Cut | Fit::Wrapped => ColumnConstraint::LowerBoundary(Width::Fixed(needed[at])),
            });
        }
        grid.trim_fmt()
    }

    /// The least width of each column, with its padding.
    fn needed(&self, longest: &[u16]) -> Vec<u16> {
        let least = |(at, longest): (usize, &u16)| {
            let content = match self.fits[at] {
                Fit::Whole => *longest,
                Fit::Cut => TEXT_MIN.max(length(self.header[at])).min(*longest),
                Fit::Wrapped => {
                    let cells = self.rows.iter().map(|row| row[at].as_str()).chain([self.header[at]]);
                    let word = cells.flat_map(str::split_whitespace).map(length).max().unwrap_or(0);
                    TEXT_MIN.max(word.min(WORD_MAX)).min(*longest)
                }
            };
            content.saturating_add(PADDING)
        };
        longest.iter().enumerate().map(least).collect()
    }

    /// The columns that fit. `None`: not even the important ones do.
    fn shown(&self, needed: &[u16], width: u16) -> Option<Vec<bool>> {
        let mut is_shown = vec![true; needed.len()];
        let fits = |is_shown: &[bool]| {
            let columns = needed.iter().zip(is_shown).filter(|(_, is_shown)| **is_shown);
            let line = usize::from(self.has_lines);
            let sum: usize = columns.map(|(needed, _)| usize::from(*needed) + line).sum();
            sum + line <= usize::from(width)
        };
        let spare: Vec<_> =
            self.spare.iter().filter_map(|name| self.header.iter().position(|own| own == name)).collect();
        for at in &spare {
            if !fits(&is_shown) {
                is_shown[*at] = false;
            }
        }
        if !fits(&is_shown) {
            return None;
        }
        // A narrow column may fit in the place of a wide one that was more important.
        for at in spare.iter().rev() {
            let was_shown = std::mem::replace(&mut is_shown[*at], true);
            if !was_shown && !fits(&is_shown) {
                is_shown[*at] = false;
            }
        }
        Some(is_shown)
    }

    /// A record for each item: a line for each of its columns.
    fn records(&self, width: u16) -> String {
        let names: Vec<_> = self.header.iter().map(|name| format!("{}:", name.to_lowercase())).collect();
        let record = |row: &Vec<String>| {
            pairs_at(names.iter().map(String::as_str).zip(row.iter().cloned()), Some(width))
        };
        self.rows.iter().map(record).collect::<Vec<_>>().join("\n\n")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at(width()))
    }
}

fn length(text: &str) -> u16 {
    text.chars().count().try_into().unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "019a3c5e-7d1b-7c3a-9f00-2b1c5d6e7f80";

    fn jobs() -> Table {
        let mut jobs = table(&["ID", "QUEUE", "STATUS", "CREATED", "LAST ERROR"])
            .spare(&["LAST ERROR", "CREATED"])
            .cut("LAST ERROR");
        let error = "connection refused by the server of the mail provider";
        jobs.add_row([ID, "mail", "failed", "2026-11-23 06:50:03.123", error].map(Into::into));
        jobs
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn a_list_leaves_out_its_least_important_columns_and_then_becomes_records() {
        let jobs = jobs();
        let whole = jobs.at(None);
        assert_eq!(whole.lines().count(), 2, "{whole}");
        assert!(whole.contains("mail provider") && widest(&whole) > 120, "{whole}");
        let cut = jobs.at(Some(120));
        assert_eq!((cut.lines().count(), widest(&cut) <= 120), (2, true), "{cut}");
        assert!(cut.contains("connection refused") && cut.contains('…'), "{cut}");
        let fewer = jobs.at(Some(90));
        assert!(fewer.contains("CREATED") && !fewer.contains("LAST ERROR"), "{fewer}");
        // The times are less important here, and shown where only they fit.
        let other = Table { spare: &["CREATED", "LAST ERROR"], ..self::jobs() };
        for (width, shown, hidden) in [(79, "LAST ERROR", "CREATED"), (78, "CREATED", "LAST ERROR")] {
            let text = other.at(Some(width));
            assert!(text.contains(shown) && !text.contains(hidden), "{width}: {text}");
        }
        let records = jobs.at(Some(52));
        assert!(records.starts_with(&format!(" id:          {ID}\n queue:       mail\n")), "{records}");
        assert!(
            records.contains(" last error:  connection refused by the") && widest(&records) <= 52,
            "{records}"
        );
    }

    #[test]
    fn no_width_breaks_a_header_an_id_or_a_line() {
        let mut doctor =
            table(&["STATE", "CHECK", "FOUND", "WHAT TO DO"]).wrap(&["CHECK", "FOUND", "WHAT TO DO"]);
        let found = format!("{ID} is not published, and five other jobs are late as well");
        doctor.add_row(
            ["warning", "prepared_transactions", &found, "start a worker that serves it"].map(Into::into),
        );
        for width in 52..200 {
            for list in [&jobs(), &doctor] {
                let text = list.at(Some(width));
                assert!(widest(&text) <= width.into(), "{width}:\n{text}");
                assert!(text.contains(ID), "{width}:\n{text}");
            }
            let text = doctor.at(Some(width));
            assert!(text.contains("WHAT TO DO") || text.contains("what to do:"), "{width}:\n{text}");
            assert!(text.contains("prepared_transactions"), "{width}:\n{text}");
        }
    }

    #[test]
    fn lines_between_columns_count() {
        let mut rules =
            table(&["every job", "broken by", "for example"]).wrap(&["every job"]).with_lines("broken by");
        rules.add_row(["is in one place only, live or finished or dead", "3", ID].map(Into::into));
        let text = rules.at(Some(90));
        assert!(widest(&text) <= 90 && text.contains('│') && text.contains("        3 "), "{text}");
        assert!(rules.at(Some(60)).contains("broken by:"), "{}", rules.at(Some(60)));
    }
}
