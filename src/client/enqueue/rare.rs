//! Rare: checks the options that few jobs have.

use std::time::Duration;

use chrono::Utc;

use crate::{
    enqueue::insert::EnqueueError,
    job::{AHEAD_MAX, PRIORITY_MAX, TAGS_MAX, check_key, check_lane, check_tag, options::JobOptions},
};

/// Checks the options that few jobs have.
pub(super) fn check(rare: &JobOptions, delay: Option<Duration>) -> Result<(), EnqueueError> {
    let wrong = |what, value: String, expected| Err(EnqueueError::Option { what, value, expected });
    let shown = |key: &str| format!("{:?} ({} bytes)", key.chars().take(80).collect::<String>(), key.len());
    if let Some(lane) = &rare.lane
        && let Err(expected) = check_lane(lane)
    {
        return wrong("lane", shown(lane), expected);
    }
    if let Some(priority) =
        rare.priority.filter(|priority| !(-PRIORITY_MAX..=PRIORITY_MAX).contains(priority))
    {
        return wrong("priority", priority.to_string(), "-100 to 100; the lower, the sooner");
    }
    if let Some(at) = rare.not_after.filter(|at| *at > Utc::now() + AHEAD_MAX) {
        return wrong("not_after", at.to_rfc3339(), "at most ten years ahead");
    }
    if let Some(within) = rare.expires_in_s {
        if !Duration::try_from_secs_f64(within).is_ok_and(|within| within <= AHEAD_MAX) {
            return wrong("expires_in", format!("{within} s"), "at most ten years");
        }
        if rare.key_while == Some("replace") {
            let expected = "left out of a job with `replace`, whose time moves on; not_after is a time";
            return wrong("expires_in", format!("{within} s"), expected);
        }
        if rare.not_after.is_some() {
            return wrong("expires_in", format!("{within} s"), "left out beside not_after, or this one");
        }
    }
    rare.tags.iter().try_for_each(|tag| check_tag(tag))?;
    if rare.tags.len() > TAGS_MAX {
        return wrong("the number of tags", rare.tags.len().to_string(), "at most 16");
    }
    let keys = [&rare.unique_key, &rare.lasting_key];
    if let Some(key) = keys.into_iter().flatten().find(|key| check_key(key).is_err()) {
        let expected = "1 to 512 bytes without control characters; escape or hash it";
        return wrong("unique_key", shown(key), expected);
    }
    if let [Some(_), Some(key)] = keys {
        let expected = "the job's only key; leave out unique_key, or this one";
        return wrong("the key of replace or unique_while", shown(key), expected);
    }
    if let Some(longest) = rare.longest_s {
        let is_fit = Duration::try_from_secs_f64(longest)
            .is_ok_and(|longest| longest <= AHEAD_MAX && delay.is_none_or(|delay| delay <= longest));
        if rare.key_while != Some("replace") || !is_fit {
            let expected = "the wait of a job with `replace`: at least its delay, and at most ten years";
            return wrong("longest_wait", format!("{longest} s"), expected);
        }
    }
    Ok(())
}
