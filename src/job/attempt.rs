//! Attempt: the words for how an attempt ends, where its job goes, and who recovers it.
//!
//! Each is an enum from the handler to the statement and back. Postgres, metrics and logs contain the words.

use std::{fmt, str::FromStr};

/// An enum whose variants have a word each.
macro_rules! words {
    ($(#[$of_all:meta])* $name:ident, $what:literal { $($(#[$of_one:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of_one])* $variant,)+
        }

        impl $name {
            /// Every variant.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the word of this variant.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                let known = Self::ALL.iter().find(|one| one.as_str() == word);
                known.copied().ok_or_else(|| format!(concat!("{:?} is no ", $what), word))
            }
        }
    };
}

words! {
    /// How an attempt ended: `outcome` in Postgres.
    #[non_exhaustive]
    AttemptOutcome, "outcome" {
        /// The handler succeeded.
        Completed = "completed",
        /// The attempt failed, and is charged. The job runs again after a wait.
        Retried = "retried",
        /// The handler asked to run later; the attempt is not charged.
        Snoozed = "snoozed",
        /// The attempt could not go on, and is not charged.
        Released = "released",
        /// The attempt failed, and the job is a dead letter.
        Failed = "failed",
        /// The job is cancelled.
        Cancelled = "cancelled",
        /// The worker is gone or was silent for too long; the attempt is charged.
        Lost = "lost",
    }
}

/// How many releases a job may have before its outages are charged.
///
/// A job that takes the database down with it looks like a job that met an outage, and would be released for ever. A
/// true outage costs a job one release: no worker claims the job again before Postgres is back. Twenty outages in the
/// life of one job are rarely chance; a job that causes them has then cost twenty connections, or restarts of the
/// server.
pub(crate) const RELEASES_MAX: i64 = 20;

words! {
    /// Where a job went when its attempt ended without completing.
    Route, "route" {
        /// Back to the queue.
        Queued = "queued",
        /// To the dead letters.
        Failed = "failed",
        /// To the history.
        Cancelled = "cancelled",
    }
}

impl AttemptOutcome {
    /// Returns the outcome of an attempt whose verdict was this and whose job took `route`: after its last attempt, for
    /// example, a job that was to be retried has failed.
    pub(crate) const fn by(self, route: Route) -> Self {
        match route {
            Route::Queued => self,
            Route::Failed => Self::Failed,
            Route::Cancelled => Self::Cancelled,
        }
    }

    /// Whether an attempt whose verdict was this may have ended with `outcome`: by its last attempt, by a charge of its
    /// release, or because a cancellation had been asked for. Any other end was not written for this verdict.
    pub(crate) const fn may_end_as(self, outcome: Self) -> bool {
        match outcome {
            Self::Cancelled => !matches!(self, Self::Completed),
            Self::Failed => matches!(self, Self::Failed | Self::Retried | Self::Released),
            Self::Retried => matches!(self, Self::Retried | Self::Released),
            Self::Completed => matches!(self, Self::Completed),
            Self::Snoozed => matches!(self, Self::Snoozed),
            Self::Released => matches!(self, Self::Released),
            Self::Lost => false,
        }
    }
}

words! {
    /// Why a job or a message is a dead letter.
    #[non_exhaustive]
    Category, "category" {
        /// The last attempt failed.
        Exhausted = "exhausted",
        /// The handler said that the job can never succeed.
        Permanent = "permanent",
        /// The last attempt lost its worker.
        Lost = "lost",
        /// The handler of the last attempt was silent for too long, and its worker lives.
        Silent = "silent",
        /// The handler was ended in the middle, and its kind must not run twice.
        Interrupted = "interrupted",
        /// The payload does not fit the type of the handler.
        InvalidPayload = "invalid_payload",
        /// The output cannot be stored.
        InvalidOutput = "invalid_output",
        /// Postgres refused the end of the attempt, or each claim of the job.
        Refused = "refused",
        /// No worker knew the kind for too long.
        UnknownKind = "unknown_kind",
        /// It was not started by its time.
        Expired = "expired",
        /// The message cannot be a job.
        Malformed = "malformed",
        /// The message is too large for a job.
        TooLarge = "too_large",
    }
}

words! {
    /// The part of tenure that recovered a job: `path` in Postgres.
    #[non_exhaustive]
    RecoveryPath, "path" {
        /// A worker at its start, for earlier processes of its host.
        Reconcile = "reconcile",
        /// The scanner.
        Scanner = "scanner",
        /// The prober of vanished workers.
        Vanished = "vanished",
        /// A worker that received the job's message again.
        Redelivery = "redelivery",
        /// The relay.
        Relay = "relay",
        /// The job's own worker.
        Worker = "worker",
    }
}

words! {
    /// Why a job was recovered: the label of the metric. `Reason::text` is the text in Postgres.
    Reason, "reason" {
        /// An earlier process of this host died.
        ProcessDied = "process_died",
        /// A worker vanished.
        WorkerGone = "worker_gone",
        /// The job was silent for longer than its `stale_after`.
        Silent = "silent",
        /// The job's message was lost.
        MessageLost = "message_lost",
        /// The worker was stopped.
        Shutdown = "shutdown",
        /// The worker could not write for 80 % of `stale_after`.
        CouldNotWrite = "could_not_write",
        /// No thread was free for the handler.
        NoThread = "no_thread",
        /// Postgres went away while the handler needed it.
        Outage = "outage",
        /// The answer to the claim was lost.
        AnswerLost = "answer_lost",
    }
}

impl Reason {
    /// Returns the text of the recovery event.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::ProcessDied => "an earlier process of this host, proven dead",
            Self::WorkerGone => "its worker missed two heartbeats and did not answer over NATS",
            // The statement says whether its worker was silent, too.
            Self::Silent => "silent for longer than stale_after",
            Self::MessageLost => "no worker took its message in time",
            Self::Shutdown => "the worker was stopped",
            Self::CouldNotWrite => "nothing could be written for too long",
            Self::NoThread => "no thread was free for its handler",
            Self::Outage => "the database was away while the handler needed it",
            Self::AnswerLost => "the answer to its claim was lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        job::{MissedTicks, Status},
        store::{BASELINE, statements},
    };

    /// Returns the words that each CHECK of this column allows.
    fn allowed(column: &str) -> Vec<BTreeSet<&'static str>> {
        let start = format!("CHECK ({column} IN (");
        // A redrive has words of its own for what became of its jobs.
        let tables = BASELINE.iter().filter(|(subject, _)| *subject != "redrives");
        let checks = tables.flat_map(|(_, sql)| sql.split(start.as_str()).skip(1).collect::<Vec<_>>());
        checks
            .map(|rest| rest.split(')').next().unwrap_or_default().split('\'').skip(1).step_by(2).collect())
            .collect()
    }

    fn words<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> BTreeSet<&'static str> {
        all.iter().map(|one| word(*one)).collect()
    }

    #[test]
    fn the_words_are_those_that_postgres_allows() {
        use AttemptOutcome::{Cancelled, Completed, Failed, Lost, Released, Retried, Snoozed};
        // The job's row in the history records an attempt that completed or cancelled it.
        let of_executions = [Retried, Snoozed, Failed, Lost, Released];
        assert_eq!(AttemptOutcome::ALL.len(), of_executions.len() + 2);
        assert_eq!(allowed("outcome"), [words(&of_executions, AttemptOutcome::as_str)]);
        assert_eq!(allowed("last_outcome"), [words(&[Failed, Lost], AttemptOutcome::as_str)]);
        let in_history = words(&[Completed, Cancelled], AttemptOutcome::as_str);
        assert_eq!(allowed("status"), [in_history]);
        let jobs = BASELINE.iter().find(|(subject, _)| *subject == "jobs").map_or("", |(_, sql)| sql);
        for status in [Status::Queued, Status::Processing] {
            assert!(jobs.contains(&format!("WHEN '{}' THEN", status.as_str())), "{status:?}");
        }
        assert_eq!(allowed("path"), [words(RecoveryPath::ALL, RecoveryPath::as_str)]);
        let missed = [MissedTicks::Skip, MissedTicks::Once, MissedTicks::All];
        assert_eq!(allowed("missed"), [words(&missed, MissedTicks::as_str)]);
    }

    /// Returns the words that statements write into a column.
    fn given(column: &str) -> BTreeSet<&'static str> {
        let end = format!("' AS {column}");
        let of = |sql: &'static str| {
            let texts: Vec<_> = sql.split(end.as_str()).collect();
            texts[..texts.len() - 1].iter().filter_map(|text| text.rsplit('\'').next()).collect::<Vec<_>>()
        };
        statements().filter(|(name, _)| *name != "lose").flat_map(|(_, sql)| of(sql)).collect()
    }

    #[test]
    fn statements_use_no_other_words() {
        for (column, known) in [
            ("verdict", words(AttemptOutcome::ALL, AttemptOutcome::as_str)),
            ("category", words(Category::ALL, Category::as_str)),
            ("path", words(RecoveryPath::ALL, RecoveryPath::as_str)),
            ("reason", words(Reason::ALL, Reason::text)),
        ] {
            let given = given(column);
            assert!(given.len() > 1 && given.is_subset(&known), "{column}: {given:?}");
        }
        // Their reasons also say whether the worker was silent.
        for name in ["reset_stale", "take_over"] {
            let sql = statements().find(|(own, _)| *own == name).map_or("", |(_, sql)| sql);
            for word in [Reason::Silent.text(), "'silent'", "'lost' END AS category"] {
                assert!(sql.contains(word), "{name}: {word}");
            }
        }
        let end_attempt = statements().find(|(name, _)| *name == "settle").map_or("", |(_, sql)| sql);
        for route in Route::ALL {
            assert!(end_attempt.contains(&format!("WHERE route = '{route}'")), "{route}");
        }
    }

    #[test]
    fn every_word_reads_back() {
        macro_rules! read_back {
            ($($name:ident)+) => {$(
                for one in $name::ALL {
                    assert_eq!(one.as_str().parse(), Ok(*one));
                }
                assert!("Queued".parse::<$name>().is_err());
            )+};
        }
        read_back!(AttemptOutcome Route Category RecoveryPath Reason);
    }
}
