//! Scope: the queues that a user may act on.

use std::collections::BTreeSet;

/// The queues that a user may act on; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope(Option<BTreeSet<String>>);

impl Scope {
    /// Reads an entry of `TENURE_SERVE_ACTORS`: the user, and the queues if there are some, as in `ada=mail+billing`.
    pub(super) fn of(entry: &str) -> (String, Self) {
        match entry.split_once('=') {
            Some((user, queues)) => {
                let queues = queues.split('+').map(|queue| queue.trim().to_owned()).collect();
                (user.trim().to_owned(), Self(Some(queues)))
            }
            None => (entry.to_owned(), Self(None)),
        }
    }

    /// Whether the user may act on all queues, and on what belongs to none.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Refuses an act of this user on a queue that is not among theirs. `None`: it may touch any queue.
    pub(crate) fn check(&self, user: &str, queue: Option<&str>) -> Result<(), String> {
        let Some(queues) = &self.0 else { return Ok(()) };
        if queue.is_some_and(|queue| queues.contains(queue)) {
            return Ok(());
        }
        let own = queues.iter().cloned().collect::<Vec<_>>().join(", ");
        let what =
            queue.map_or("this may touch other queues".into(), |queue| format!("this is about {queue}"));
        Err(format!("TENURE_SERVE_ACTORS lets {user} act on {own}, and {what}."))
    }
}
