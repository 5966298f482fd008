//! The call of an executor as a value that may outlive the run. All unsafe code about its lifetime is
//! in this file.
#![expect(unsafe_code, reason = "threads that outlive a run take `'static` values, and what a run lends is not")]

use alloc::sync::Arc;
use core::fmt;
use core::mem::transmute;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The work of a run as a value that a pool with a channel can send to its threads (feature
/// `std`).
///
/// [`Executor::for_each`](crate::Executor::for_each) is given a closure that borrows from the run,
/// while the threads of a pool that outlives the run take `'static` values alone. A job is one. It
/// may be cloned, sent, dropped late and leaked: once [`lend`](Job::lend) has returned, its calls do
/// nothing.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
///
/// use convoke::{Executor, Job};
///
/// /// Channels to threads that live as long as these.
/// struct Pool(Vec<Sender<(Job, usize)>>);
///
/// impl Executor for Pool {
///     fn width(&self) -> usize {
///         self.0.len() + 1
///     }
///
///     fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
///         Job::lend(call, |job| {
///             for (i, thread) in (1..count).zip(&self.0) {
///                 _ = thread.send((job.clone(), i)); // a thread that has ended is left out
///             }
///             job.call(0);
///         });
///     }
/// }
///
/// let (sender, jobs) = channel::<(Job, usize)>();
/// std::thread::spawn(move || jobs.iter().for_each(|(job, i)| job.call(i)));
/// let pool = Pool(vec![sender]); // of two threads: for `Threads::Executor(&pool)`
/// # let calls = std::sync::Mutex::new(Vec::new());
/// # pool.for_each(2, &|i| calls.lock().unwrap().push(i));
/// # assert!(calls.into_inner().unwrap().contains(&0));
/// ```
#[derive(Clone)]
pub struct Job(Arc<JobState>);

struct JobState {
    state: Mutex<State>,
    /// Notified when no call is being made any more.
    idle: Condvar,
}

struct State {
    /// The closure, until the job ends.
    lent: Option<&'static (dyn Fn(usize) + Sync)>,
    /// Calls that are being made.
    calls: usize,
}

impl Job {
    /// Calls `with` with a job whose calls are those of `call`. When `with` is done, the job ends:
    /// calls that are being made are waited for, and later ones do nothing.
    ///
    /// The tasks of a run are all done when a call of the run's closure returns and no other is
    /// being made. So an executor need not wait for its threads itself if `with` makes one of the
    /// calls. Threads that come late are left out.
    ///
    /// # Panics
    /// If `with` panics, which includes the panics of calls that it makes. Calls of other threads are
    /// waited for before. Their panics are those of their threads: a run finds that tasks are
    /// missing, and panics.
    pub fn lend<R>(call: &(dyn Fn(usize) + Sync), with: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: The types differ in lifetimes alone. Only `Job::call` uses the reference, while it is
        // counted in `calls`. `End` takes the reference away and waits until nobody is counted.
        // It is dropped before this function returns or unwinds, and so before the closure's
        // lifetime ends. It is in no handle: what becomes of these does not matter.
        let lent = unsafe { transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(call) };
        let state = Mutex::new(State { lent: Some(lent), calls: 0 });
        let end = End(Self(Arc::new(JobState { state, idle: Condvar::new() })));
        with(&end.0)
    }

    /// Makes call number `i`, unless the job has ended.
    pub fn call(&self, i: usize) {
        let mut state = self.0.lock();
        let Some(lent) = state.lent else { return };
        state.calls += 1;
        drop(state);
        let leave = Leave(&self.0);
        lent(i);
        drop(leave);
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { lent, calls } = &*self.0.lock();
        f.debug_struct("Job").field("has_ended", &lent.is_none()).field("calls", calls).finish()
    }
}

impl JobState {
    /// The state. No calls are made while it is locked, so it is never poisoned.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a call when it is dropped.
struct Leave<'a>(&'a JobState);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        if state.calls == 0 {
            self.0.idle.notify_all();
        }
    }
}

/// Ends a job when it is dropped.
struct End(Job);

impl Drop for End {
    fn drop(&mut self) {
        let shared = &*self.0.0;
        let mut state = shared.lock();
        state.lent = None;
        while state.calls > 0 {
            state = shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_handle_that_comes_late_finds_nothing_to_do() {
        let kept = {
            let calls = AtomicUsize::new(0);
            let call = |i| _ = calls.fetch_add(i, Ordering::Relaxed);
            let kept = Job::lend(&call, |job| {
                job.call(3);
                job.clone()
            });
            assert_eq!(calls.into_inner(), 3);
            kept
        };
        // The borrow has ended.
        kept.call(5);
        thread::spawn(move || kept.call(7)).join().unwrap();
    }

    /// Without the wait of `End`, the call would read what is gone.
    #[test]
    fn the_end_waits_for_calls_of_other_threads() {
        let (sender, jobs) = channel::<Job>();
        let (begun, has_begun) = channel();
        let worker = thread::spawn(move || jobs.iter().for_each(|job| job.call(1)));
        for _ in 0..20 {
            let is_done = AtomicBool::new(false);
            let begun = begun.clone();
            let call = move |done: &AtomicBool| {
                begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(2));
                done.store(true, Ordering::Relaxed);
            };
            Job::lend(&|_| call(&is_done), |job| {
                sender.send(job.clone()).unwrap();
                has_begun.recv().unwrap();
            });
            assert!(is_done.into_inner());
        }
        drop(sender);
        worker.join().unwrap();
    }

    #[test]
    fn leaked_handles_keep_nothing_waiting_and_call_nothing() {
        let value = AtomicUsize::new(0);
        let leaked = Job::lend(&|i| value.store(i, Ordering::Relaxed), |job| {
            job.call(1);
            core::mem::forget(job.clone());
            &*alloc::boxed::Box::leak(alloc::boxed::Box::new(job.clone()))
        });
        leaked.call(2);
        assert_eq!(value.into_inner(), 1);
    }

    #[test]
    fn a_panic_of_the_lender_waits_for_calls_and_ends_the_job() {
        let (sender, jobs) = channel::<Job>();
        let (begun, has_begun) = channel();
        let (ended, has_ended) = channel();
        let worker = thread::spawn(move || {
            let job = jobs.recv().unwrap();
            job.call(1);
            has_ended.recv().unwrap();
            job.call(2);
        });
        let (first, second) = (AtomicBool::new(false), AtomicBool::new(false));
        let call = |i| match i {
            1 => {
                begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(20));
                first.store(true, Ordering::Relaxed);
            }
            _ => second.store(true, Ordering::Relaxed),
        };
        let lend = || {
            Job::lend(&call, |job| {
                sender.send(job.clone()).unwrap();
                if has_begun.recv().is_ok() {
                    resume_unwind(alloc::boxed::Box::new("the lender panics"));
                }
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(lend)).is_err());
        assert!(first.load(Ordering::Relaxed), "the call was waited for");
        ended.send(()).unwrap();
        worker.join().unwrap();
        assert!(!second.into_inner(), "the job had ended");
    }

    #[test]
    fn a_panic_of_a_call_is_its_threads_and_the_end_does_not_hang() {
        let (sender, jobs) = channel::<Job>();
        let worker = thread::spawn(move || jobs.recv().unwrap().call(1));
        let panicked = AtomicBool::new(false);
        let call = |i: usize| {
            panicked.store(true, Ordering::Relaxed);
            assert_eq!(i, 0, "the call panics");
        };
        Job::lend(&call, |job| {
            sender.send(job.clone()).unwrap();
            while !panicked.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        assert!(worker.join().is_err());
    }

    /// A call may make others of the same job.
    #[test]
    fn calls_may_be_nested() {
        let (sum, own) = (AtomicUsize::new(0), Mutex::new(None::<Job>));
        let call = |i: usize| {
            sum.fetch_add(1, Ordering::Relaxed);
            let own = own.lock().unwrap().clone();
            if let Some(job) = own.filter(|_| i > 0) {
                job.call(i - 1);
            }
        };
        Job::lend(&call, |job| {
            *own.lock().unwrap() = Some(job.clone());
            job.call(4);
        });
        assert_eq!(sum.into_inner(), 5);
    }
}
