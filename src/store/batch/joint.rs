//! Joint: one piece of work that several tasks await, and that each of them drives.
//!
//! A `futures::future::Shared` with one difference: the end of the work does not wake the task that sees it. The
//! runtime takes a task that is woken while it runs for one that yields, and wakes another thread for it, which costs
//! as much as a short statement.

use std::{
    future::Future,
    panic::resume_unwind,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::{FutureExt, future::BoxFuture};

/// Work that every task drives which awaits a clone of this. Cheap to clone.
pub(crate) struct Joint<T>(Arc<Inner<T>>);

impl<T> Clone for Joint<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<T> {
    work: Mutex<Work<T>>,
    is_done: AtomicBool,
    /// A task that wanted to poll the work found another one polling it.
    was_missed: AtomicBool,
    waiting: Arc<Waiting>,
}

enum Work<T> {
    Going(BoxFuture<'static, T>),
    Done(T),
}

/// The tasks that wait. The work wakes all of them: the one that polled it last may have gone.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Waiting {
    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waker: &Waker) {
        let mut wakers = self.wakers();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Wakes all tasks but this one, which stays in the list.
    fn wake_others(&self, one: &Waker) {
        let (one, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *self.wakers()).into_iter().partition(|waker| waker.will_wake(one));
        self.wakers().extend(one);
        others.into_iter().for_each(Waker::wake);
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.wakers());
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Wakes all tasks if the work panics: none may wait for it any longer.
struct OnPanic<'w>(&'w Waiting);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake_all();
        }
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

impl<T: Clone + Send + 'static> Joint<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Arc::new(Inner {
            work: Mutex::new(Work::Going(work.boxed())),
            is_done: AtomicBool::new(false),
            was_missed: AtomicBool::new(false),
            waiting: Arc::default(),
        }))
    }

    /// Whether the work has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_done.load(Ordering::Acquire)
    }
}

impl<T: Clone + Send + 'static> Future for Joint<T> {
    type Output = T;

    /// Polls the work. A task may hold one clone only: of two, the one that sees the end would not wake the other.
    ///
    /// # Panics
    ///
    /// If the work has panicked.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let inner = &*self.0;
        // Add the waker before trying the lock: a task that sees the end releases the lock, and then wakes all wakers.
        inner.waiting.add(cx.waker());
        let mut work = match inner.work.try_lock() {
            Ok(work) => work,
            Err(TryLockError::Poisoned(_)) => {
                resume_unwind(Box::new("work that several tasks await has panicked"))
            }
            Err(TryLockError::WouldBlock) => {
                // The task that polls may have looked before there was news, and may not look again. Either it sees
                // this flag after its poll, or it has released the lock by now.
                inner.was_missed.store(true, Ordering::SeqCst);
                match inner.work.try_lock() {
                    Ok(work) => work,
                    Err(_) => return Poll::Pending,
                }
            }
        };
        let done = match &mut *work {
            Work::Done(done) => done.clone(),
            Work::Going(going) => {
                let _on_panic = OnPanic(&inner.waiting);
                let waker = Waker::from(inner.waiting.clone());
                match going.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => {
                        drop(work);
                        if inner.was_missed.swap(false, Ordering::SeqCst) {
                            inner.waiting.wake_others(cx.waker());
                        }
                        return Poll::Pending;
                    }
                    Poll::Ready(done) => {
                        *work = Work::Done(done.clone());
                        inner.is_done.store(true, Ordering::Release);
                        done
                    }
                }
            }
        };
        drop(work);
        inner.waiting.wake_others(cx.waker());
        Poll::Ready(done)
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::AssertUnwindSafe, sync::atomic::AtomicUsize};

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A task that waits, and how often it was woken.
    struct Waits(Joint<u32>, Arc<Wakes>);

    impl Waits {
        fn for_(joint: &Joint<u32>) -> Self {
            Self(joint.clone(), Arc::default())
        }

        fn poll(&mut self) -> Poll<u32> {
            let waker = Waker::from(self.1.clone());
            Pin::new(&mut self.0).poll(&mut Context::from_waker(&waker))
        }

        fn wakes(&self) -> usize {
            self.1.0.load(Ordering::SeqCst)
        }
    }

    fn joint() -> (oneshot::Sender<u32>, Joint<u32>) {
        let (end, ended) = oneshot::channel();
        (end, Joint::new(async move { ended.await.unwrap_or_default() }))
    }

    #[test]
    fn the_task_that_sees_the_end_is_not_woken_by_it_and_the_others_are() {
        let (end, joint) = joint();
        let (mut first, mut second) = (Waits::for_(&joint), Waits::for_(&joint));
        assert_eq!((first.poll(), second.poll()), (Poll::Pending, Poll::Pending));
        end.send(7).ok();
        assert_eq!((first.wakes(), second.wakes()), (1, 1));
        let mut third = Waits::for_(&joint);
        assert_eq!(first.poll(), Poll::Ready(7));
        assert_eq!(first.wakes(), 1);
        assert!(joint.is_done());
        assert_eq!((second.poll(), third.poll()), (Poll::Ready(7), Poll::Ready(7)));
    }

    #[test]
    fn the_work_goes_on_with_the_tasks_that_are_left() {
        let (end, joint) = joint();
        let (mut first, mut second) = (Waits::for_(&joint), Waits::for_(&joint));
        assert_eq!((first.poll(), second.poll()), (Poll::Pending, Poll::Pending));
        drop(second.0);
        // The task that polled last has gone; the end still wakes the first.
        end.send(7).ok();
        assert_eq!(first.wakes(), 1);
        assert_eq!(first.poll(), Poll::Ready(7));
    }

    #[test]
    fn a_task_that_finds_another_one_polling_is_woken_after_that_poll() {
        let (looked, looks) = std::sync::mpsc::channel::<std::sync::mpsc::Sender<()>>();
        let mut is_first = true;
        // The first poll lasts until the test lets it end.
        let work = std::future::poll_fn(move |_| {
            if std::mem::take(&mut is_first) {
                let (go, gone) = std::sync::mpsc::channel();
                looked.send(go).ok();
                gone.recv().ok();
            }
            Poll::<u32>::Pending
        });
        let joint = Joint::new(work);
        let (mut first, mut second) = (Waits::for_(&joint), Waits::for_(&joint));
        let slow = std::thread::spawn(move || (first.poll(), first));
        let go = looks.recv();
        assert_eq!(second.poll(), Poll::Pending);
        assert_eq!(second.wakes(), 0);
        go.map(|go| go.send(())).ok();
        let first = slow.join().ok();
        assert!(first.is_some_and(|(polled, first)| polled.is_pending() && first.wakes() == 0));
        assert_eq!(second.wakes(), 1);
    }

    #[test]
    fn a_panic_wakes_the_tasks_that_wait() {
        let mut looks = 0;
        let joint = Joint::new(std::future::poll_fn(move |_| {
            looks += 1;
            assert!(looks < 2, "a panic that was asked for");
            Poll::<u32>::Pending
        }));
        let (mut first, mut second) = (Waits::for_(&joint), Waits::for_(&joint));
        assert_eq!(first.poll(), Poll::Pending);
        assert!(std::panic::catch_unwind(AssertUnwindSafe(|| second.poll())).is_err());
        assert_eq!(first.wakes(), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn four_tasks_that_drive_the_work_at_once_all_see_its_end() {
        for _ in 0..2_000 {
            let (end, joint) = joint();
            let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(joint.clone())).collect();
            end.send(7).ok();
            let all = futures::future::join_all(waiting);
            let all = tokio::time::timeout(std::time::Duration::from_secs(10), all).await;
            assert!(all.is_ok_and(|all| all.into_iter().all(|done| done.is_ok_and(|done| done == 7))));
        }
    }
}
