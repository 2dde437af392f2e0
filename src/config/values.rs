//! Values: what the text of a setting must be.

use std::{collections::HashSet, path::Path, time::Duration};

use super::timing::LONGEST;
use crate::job::{check_queue, check_tag};

/// The schemes of URLs of Postgres.
pub(crate) const DATABASE_SCHEMES: &[&str] = &["postgres", "postgresql"];
/// The schemes of URLs of NATS. Without one, it is `nats`.
pub(super) const NATS_SCHEMES: &[&str] = &["nats", "tls", "ws", "wss"];

/// Whether a URL has one of these schemes.
pub(crate) fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    url.split_once("://")
        .is_some_and(|(scheme, _)| schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known)))
}

pub(super) fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn shown(path: Option<&Path>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

pub(super) fn word(text: &str) -> Result<String, &'static str> {
    check_queue(text).map_err(|_| "1 to 64 of A-Z a-z 0-9 _ -")?;
    Ok(text.to_owned())
}

pub(super) fn long_enough(text: &str) -> Result<String, &'static str> {
    if text.chars().count() < 8 { Err("at least 8 characters") } else { Ok(text.to_owned()) }
}

/// Parses names separated by commas, at least one.
pub(super) fn names(text: &str) -> Result<Vec<String>, &'static str> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<_> = names.map(str::to_owned).collect();
    if names.is_empty() { Err("one or more names, separated by commas") } else { Ok(names) }
}

/// Parses keys of tags, and tags without a value, separated by commas.
pub(super) fn tag_keys(text: &str) -> Result<Vec<String>, &'static str> {
    let keys = names(text)?;
    let is_key = |key: &String| check_tag(key).is_ok() && !key.contains('=');
    if keys.iter().all(is_key) {
        return Ok(keys);
    }
    Err("keys of tags, or tags without a value, separated by commas, without `=`: team,nightly")
}

/// Parses users, each perhaps with the queues that it may act on.
pub(super) fn actors(text: &str) -> Result<Vec<String>, &'static str> {
    users(text).ok_or(
        "names of users, each once, separated by commas; after a name perhaps the queues that it may act on: \
         ada=mail+billing",
    )
}

/// Parses users, each perhaps with the queues that it may look at.
pub(super) fn viewers(text: &str) -> Result<Vec<String>, &'static str> {
    users(text).ok_or(
        "names of users, each once, separated by commas; after a name perhaps the queues that it may look at: \
         ada=mail+billing",
    )
}

/// Parses users, each perhaps with queues.
fn users(text: &str) -> Option<Vec<String>> {
    let entries = names(text).ok()?;
    let is_right = |entry: &String| match entry.split_once('=') {
        Some((user, queues)) => {
            !user.trim().is_empty() && queues.split('+').all(|queue| check_queue(queue.trim()).is_ok())
        }
        None => true,
    };
    let user = |entry: &String| entry.split('=').next().unwrap_or_default().trim().to_owned();
    let are_apart = entries.iter().map(user).collect::<HashSet<_>>().len() == entries.len();
    (are_apart && entries.iter().all(is_right)).then_some(entries)
}

pub(super) fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "true or false")
}

/// Returns the path without a slash at its end: empty at the top.
pub(super) fn path(text: &str) -> Result<String, &'static str> {
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

pub(super) fn bytes(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|bytes| *bytes > 0).ok_or("a number of bytes above 0")
}

pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text)
        .ok()
        .filter(|duration| *duration <= LONGEST)
        .ok_or("a duration such as 500ms, 30s or 5min, at most a year")
}

/// Parses a retention. The database removes nothing that is younger than an hour.
pub(super) fn kept(text: &str) -> Result<Duration, &'static str> {
    age_from(1, text).ok_or("a duration from 1h to a hundred years, such as 7d, or forever")
}

/// Parses the retention of acts. The database removes none that is younger than 30 days, so that a worker's password
/// does not hide what was done with it.
pub(super) fn kept_as_evidence(text: &str) -> Result<Duration, &'static str> {
    age_from(24 * 30, text).ok_or("a duration from 30d to a hundred years, such as 365d, or forever")
}

fn age_from(hours: u64, text: &str) -> Option<Duration> {
    let ages = Duration::from_hours(hours)..=Duration::from_hours(24 * 366 * 100);
    humantime::parse_duration(text).ok().filter(|age| ages.contains(age))
}
