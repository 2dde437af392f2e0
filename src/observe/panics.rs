//! Panics: logs and counts the panic of an internal task, and restarts the task.
//!
//! A panic is a bug. It must not stop the task's work for all jobs.

use std::{any::Any, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::time::Instant;

use crate::observe::metrics;

/// A task that panics this often within [`WITHIN`] is not restarted.
const MOST: u32 = 5;
const WITHIN: Duration = Duration::from_mins(1);
/// The pause after the first panic; it doubles with each.
const PAUSE: Duration = Duration::from_millis(50);

/// The panics of one task.
pub(crate) struct Panics {
    task: &'static str,
    first: Option<Instant>,
    count: u32,
}

impl Panics {
    pub(crate) fn new(task: &'static str) -> Self {
        Self { task, first: None, count: 0 }
    }

    /// Logs and counts a panic. Returns how long to wait before the restart; `None`: the task has panicked too often.
    pub(crate) fn note(&mut self, panic: &(dyn Any + Send)) -> Option<Duration> {
        metrics::panicked(self.task);
        let now = Instant::now();
        if self.first.is_none_or(|first| now - first > WITHIN) {
            (self.first, self.count) = (Some(now), 0);
        }
        self.count += 1;
        let goes_on = self.count < MOST;
        tracing::error!(
            task = self.task,
            panic = text(panic),
            count = self.count,
            goes_on,
            "a task of tenure panicked; please report it"
        );
        goes_on.then(|| PAUSE * (1 << (self.count - 1)))
    }
}

/// Logs and counts a panic in work that is not restarted: other tasks or workers do it.
pub(crate) fn tell(task: &'static str, panic: &(dyn Any + Send)) {
    metrics::panicked(task);
    tracing::error!(task, panic = text(panic), "an internal task of tenure panicked; please report it");
}

/// Starts work whose result no caller needs; logs and counts its panic.
pub(crate) fn spawn_logged(task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
            tell(task, &*panic);
        }
    });
}

/// Returns the message of a panic.
pub(crate) fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::Counts;

    #[tokio::test]
    async fn a_panic_in_work_that_is_not_restarted_is_counted() {
        let counts = Counts::default();
        let _recording = counts.record();
        spawn_logged("test", async { panic!("a panic on purpose") });
        spawn_logged("calm", async {});
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let of = |task: &str| counts.of(&format!("tenure_panics_total{{task={task}}}"));
        assert_eq!((of("test"), of("calm")), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_again_and_again_ends_and_one_that_panics_now_and_then_goes_on() {
        let mut panics = Panics::new("test");
        let pauses: Vec<_> = (0..5).map(|_| panics.note(&"boom").map(|pause| pause.as_millis())).collect();
        assert_eq!(pauses, [Some(50), Some(100), Some(200), Some(400), None]);
        let mut panics = Panics::new("test");
        for _ in 0..20 {
            assert!(panics.note(&String::from("boom")).is_some());
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
    }
}
