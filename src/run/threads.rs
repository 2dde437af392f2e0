//! Threads: run the handlers, and find those that block their thread.
//!
//! Handlers run on threads of their own. One that blocks (a computation, a lock, a library without
//! `async`) then holds up neither heartbeats nor claims nor the shutdown. The worker cannot drop it while it
//! blocks: nothing can end a thread from outside. The worker reports the handler and lets the job go on without
//! it. When abandoned handlers hold every thread, the worker ends.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::runtime::{Handle, Runtime};

/// The fewest threads: a handler that blocks for a moment should not hold up all others.
const THREADS_MIN: usize = 4;
/// The interval of checks of abandoned handlers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Milliseconds since this process first asked, plus 1: 0 means no time.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX).saturating_add(1)
}

/// A handler waits for its first thread, has begun, or must not begin any more.
const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const REVOKED: u8 = 2;

/// The time since which a handler holds its thread, while it does.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    stage: AtomicU8,
    since: AtomicU64,
    reported: AtomicBool,
}

impl Thread {
    /// Keeps a handler that has not begun from ever beginning. `false`: it has begun.
    pub(crate) fn revoke(&self) -> bool {
        self.stage.compare_exchange(WAITING, REVOKED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn may_run(&self) -> bool {
        let begun = self.stage.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire);
        begun != Err(REVOKED)
    }

    /// The time for which the handler has held its thread without yielding. `None`: it holds no thread.
    pub(crate) fn blocked_for(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Acquire);
        (since > 0).then(|| Duration::from_millis(now().saturating_sub(since)))
    }

    /// Marks the current hold as reported. Returns whether it was not before.
    pub(crate) fn report(&self) -> bool {
        !self.reported.swap(true, Ordering::AcqRel)
    }

    fn acquired(&self) {
        self.reported.store(false, Ordering::Release);
        self.since.store(now(), Ordering::Release);
    }

    fn yielded(&self) {
        self.since.store(0, Ordering::Release);
    }
}

/// A handler's future, which records when it holds a thread.
pub(crate) struct Watched<T> {
    handler: Pin<Box<dyn Future<Output = T> + Send>>,
    thread: Arc<Thread>,
}

impl<T> Watched<T> {
    pub(crate) fn new(handler: impl Future<Output = T> + Send + 'static, thread: Arc<Thread>) -> Self {
        Self { handler: Box::pin(handler), thread }
    }
}

impl<T> Future for Watched<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if !self.thread.may_run() {
            // Revoked before it got a thread; the task is about to be dropped.
            return Poll::Pending;
        }
        self.thread.acquired();
        let polled = self.handler.as_mut().poll(context);
        self.thread.yielded();
        polled
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        // After a panic, too.
        self.thread.yielded();
    }
}

/// A runtime for handlers, and the handlers that the worker abandoned. All workers of a process share its own one.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    handle: Handle,
    abandoned: Arc<Mutex<Vec<Arc<Thread>>>>,
}

impl Threads {
    /// Uses the user's runtime, or else the process's own for handlers.
    ///
    /// That one never shuts down: a connection of a pool, for instance, that a handler opened on it would break
    /// for its other users.
    pub(crate) fn new(of_user: Option<Handle>) -> io::Result<Self> {
        static OWN: Mutex<Option<(Runtime, Threads)>> = Mutex::new(None);
        if let Some(handle) = of_user {
            return Ok(Self { handle, abandoned: Arc::default() });
        }
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, threads)) = own.as_ref() {
            return Ok(threads.clone());
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.thread_name("tenure-handler").enable_all().worker_threads(cores.max(THREADS_MIN));
        let runtime = builder.build()?;
        let threads = Self { handle: runtime.handle().clone(), abandoned: Arc::default() };
        *own = Some((runtime, threads.clone()));
        Ok(threads)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The number of threads.
    pub(crate) fn count(&self) -> usize {
        self.handle.metrics().num_workers()
    }

    /// Remembers a dropped handler that still holds its thread.
    pub(crate) fn abandon(&self, thread: &Arc<Thread>) {
        if thread.blocked_for().is_some() {
            self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(thread.clone());
        }
    }

    /// Completes when an abandoned handler has yielded its thread.
    pub(crate) async fn returned(thread: &Thread) {
        while thread.blocked_for().is_some() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Completes when abandoned handlers have held every thread for `for_long`: no job can run any more.
    pub(crate) async fn all_lost(&self, for_long: Duration) {
        let mut since = None;
        loop {
            let held = {
                let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
                abandoned.retain(|thread| thread.blocked_for().is_some());
                abandoned.len()
            };
            if held < self.count() {
                since = None;
            } else if since.get_or_insert_with(Instant::now).elapsed() >= for_long {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_revoked_handler_never_begins_and_a_handler_that_has_begun_cannot_be_revoked() {
        let thread = Arc::new(Thread::default());
        assert!(thread.revoke());
        let mut handler = Box::pin(Watched::new(async { 1 }, thread));
        assert!(futures::poll!(&mut handler).is_pending());
        let thread = Arc::new(Thread::default());
        assert_eq!(Watched::new(async { 1 }, thread.clone()).await, 1);
        assert!(!thread.revoke());
        assert_eq!(thread.blocked_for(), None);
    }
}
