//! Threads: where handlers run, and what is known of one that blocks its thread.
//!
//! Handlers run on threads of their own. One that blocks (a computation, a lock, a library without
//! `async`) then holds up neither heartbeats nor claims nor the shutdown. It cannot be dropped while it
//! blocks: nothing can end a thread from outside. It is reported, its job goes on without it, and when
//! every thread stays held by a handler that was given up, the worker ends.

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

/// The fewest threads for handlers: one that blocks for a moment should not hold up all others.
const THREADS_MIN: usize = 4;
/// How often abandoned handlers are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Milliseconds of this process; 0 is none.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX).saturating_add(1)
}

/// A handler has not been given a thread yet, has begun, or must not begin any more.
const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const REVOKED: u8 = 2;

/// When a handler was last given its thread, until it gave it back.
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

    /// For how long the handler has not given its thread back.
    pub(crate) fn blocked_for(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Acquire);
        (since > 0).then(|| Duration::from_millis(now().saturating_sub(since)))
    }

    /// Whether this is the first report of this time.
    pub(crate) fn report(&self) -> bool {
        !self.reported.swap(true, Ordering::AcqRel)
    }

    fn taken(&self) {
        self.reported.store(false, Ordering::Release);
        self.since.store(now(), Ordering::Release);
    }

    fn given_back(&self) {
        self.since.store(0, Ordering::Release);
    }
}

/// A handler's future that notes when it has a thread.
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
            // It was given back before it got a thread; the task is about to be dropped.
            return Poll::Pending;
        }
        self.thread.taken();
        let polled = self.handler.as_mut().poll(context);
        self.thread.given_back();
        polled
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        // After a panic, too.
        self.thread.given_back();
    }
}

/// A runtime for handlers, and those of them that were given up. The process's own serves all its workers.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    handle: Handle,
    abandoned: Arc<Mutex<Vec<Arc<Thread>>>>,
}

impl Threads {
    /// The user's runtime, or the process's own for handlers.
    ///
    /// That one is never shut down: what a handler left behind (a pool's connection, say) may be used by
    /// others, and would break with it.
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

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.handle.metrics().num_workers()
    }

    /// A handler was dropped, or would be if it gave its thread back.
    pub(crate) fn abandon(&self, thread: &Arc<Thread>) {
        if thread.blocked_for().is_some() {
            self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(thread.clone());
        }
    }

    /// Completes when a handler that was given up has given its thread back.
    pub(crate) async fn returned(thread: &Thread) {
        while thread.blocked_for().is_some() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Completes when every thread has been held for so long by handlers that were given up: no job can
    /// run any more.
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
    async fn a_handler_that_was_revoked_never_begins_and_one_that_has_begun_cannot_be_revoked() {
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
