//! Scope: the queues that a user may act on, and those that it may look at.

use std::collections::BTreeSet;

/// The setting that lists the users who may act.
pub(super) const ACTORS: &str = "TENURE_SERVE_ACTORS";
/// The setting that lists the users who may look.
pub(super) const VIEWERS: &str = "TENURE_SERVE_VIEWERS";

/// The queues that a user may act on, or look at; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    queues: Option<BTreeSet<String>>,
    /// The setting that says so.
    by: &'static str,
}

impl Scope {
    /// Reads an entry of this setting: the user, and the queues if there are some, as in `ada=mail+billing`.
    pub(super) fn of(entry: &str, by: &'static str) -> (String, Self) {
        match entry.split_once('=') {
            Some((user, queues)) => {
                let queues = queues.split('+').map(|queue| queue.trim().to_owned()).collect();
                (user.trim().to_owned(), Self { queues: Some(queues), by })
            }
            None => (entry.to_owned(), Self { queues: None, by }),
        }
    }

    /// The queues of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let queues = self.queues.as_ref().zip(other.queues.as_ref()).map(|(own, more)| own | more);
        Self { queues, by: self.by }
    }

    /// Whether the user may do so with all queues, and with what belongs to none.
    pub(crate) fn is_all(&self) -> bool {
        self.queues.is_none()
    }

    /// Whether this queue is among them.
    pub(crate) fn has(&self, queue: &str) -> bool {
        self.queues.as_ref().is_none_or(|own| own.contains(queue))
    }

    /// The queues, by name; `None`: all.
    pub(crate) fn queues(&self) -> Option<&BTreeSet<String>> {
        self.queues.as_ref()
    }

    /// Refuses an act of this user on a queue that is not among theirs. `None`: it may touch any queue.
    pub(crate) fn check(&self, user: &str, queue: Option<&str>) -> Result<(), String> {
        if self.is_all() || queue.is_some_and(|queue| self.has(queue)) {
            return Ok(());
        }
        let what =
            queue.map_or("this may touch other queues".into(), |queue| format!("this is about {queue}"));
        Err(format!("{} lets {user} act on {}, and {what}.", self.by, self.named()))
    }

    /// Why this user may not look; `what` says what at, as in `not at billing`.
    pub(crate) fn unseen(&self, what: &str) -> String {
        let own = self.named();
        format!(
            "You may look at {own} alone ({VIEWERS}), {what}. If you need more, ask those who run this dashboard."
        )
    }

    fn named(&self) -> String {
        let own = self.queues.iter().flatten().cloned().collect::<Vec<_>>();
        own.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_of_two_entries_add_up() {
        let of = |entry| Scope::of(entry, VIEWERS).1;
        let both = of("ada=mail").and(&of("ada = chat + mail"));
        assert_eq!(both, of("ada=chat+mail"));
        assert!(both.has("chat") && both.has("mail") && !both.has("billing") && !both.is_all());
        for (one, other) in [("ada", "ada=mail"), ("ada=mail", "ada")] {
            let all = of(one).and(&of(other));
            assert!(all.is_all() && all.has("billing"), "{one} {other}");
        }
    }
}
