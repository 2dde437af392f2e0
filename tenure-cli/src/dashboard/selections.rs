//! Selections: the jobs that an action on all that match is for. They are fixed when they are counted for the question
//! before it: jobs that match later were in no question.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use uuid::Uuid;

use tenure::{JobId, internals::JobAction};

/// The most jobs of one selection.
pub(super) const JOBS_MAX: i64 = 100_000;
/// How many selections to remember: a few users, each with a question that is open.
const KEPT: usize = 16;
/// How long a question may stay open.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// The selections whose questions may still be open.
#[derive(Debug, Default)]
pub(super) struct Selections(Mutex<VecDeque<Selection>>);

#[derive(Debug)]
struct Selection {
    token: String,
    made_at: Instant,
    action: JobAction,
    jobs: Vec<JobId>,
}

impl Selections {
    /// Remembers these jobs; returns the token with which a form names them.
    pub(super) fn keep(&self, action: JobAction, jobs: Vec<JobId>) -> String {
        let token = Uuid::new_v4().simple().to_string();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|of| of.made_at.elapsed() < KEPT_FOR);
        all.truncate(KEPT - 1);
        all.push_front(Selection { token: token.clone(), made_at: Instant::now(), action, jobs });
        token
    }

    /// Takes the jobs that were selected for this action: each selection serves one click.
    pub(super) fn take(&self, token: &str, action: JobAction) -> Option<Vec<JobId>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|of| of.token == token && of.action == action)?;
        let selection = all.remove(at)?;
        (selection.made_at.elapsed() < KEPT_FOR).then_some(selection.jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_selection_serves_its_action_once_and_not_for_long() {
        let all = Selections::default();
        let jobs = vec![JobId::generate()];
        let token = all.keep(JobAction::Cancel, jobs.clone());
        assert_eq!(all.take(&token, JobAction::Retry), None);
        assert_eq!(all.take(&token, JobAction::Cancel), Some(jobs.clone()));
        assert_eq!(all.take(&token, JobAction::Cancel), None);
        let old = all.keep(JobAction::Cancel, jobs.clone());
        tokio::time::advance(KEPT_FOR).await;
        assert_eq!(all.take(&old, JobAction::Cancel), None);
        let first = all.keep(JobAction::Cancel, jobs.clone());
        for _ in 0..KEPT {
            all.keep(JobAction::Cancel, jobs.clone());
        }
        assert_eq!(all.take(&first, JobAction::Cancel), None, "the oldest makes room");
    }
}
