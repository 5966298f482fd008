//! Threads as a value, and the trait by which any pool can execute a run.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use spin::Mutex;

use super::tasks_of_thread;
use super::workspace::Line;

/// A pool of threads of the caller: an engine's own one, for example.
///
/// A run asks for at most [`width`](Executor::width) calls. Each call does tasks until none is
/// left, so the calls should begin at about the same time. They may also be made one after the
/// other: the result is the same.
///
/// A run does not trust an executor. If it leaves out a call, or makes one twice, each task is
/// still done once. If [`for_each`](Executor::for_each) returns while tasks are missing, for
/// example because it hid a panic of one, the run panics.
///
/// A pool whose threads outlive the run, and are sent work by a channel, sends them a [`Job`](crate::Job).
///
/// ```
/// use convoke::{Conv, Executor, Planner, Run, Threads};
///
/// /// Starts threads for each run.
/// struct Scoped(usize);
///
/// impl Executor for Scoped {
///     fn width(&self) -> usize {
///         self.0
///     }
///
///     fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
///         std::thread::scope(|scope| {
///             for i in 1..count {
///                 scope.spawn(move || call(i));
///             }
///             call(0);
///         });
///     }
/// }
///
/// # fn main() -> Result<(), convoke::Error> {
/// let executor = Scoped(2);
/// let threads = Threads::Executor(&executor);
/// let planner = Planner::new().threads(threads.count());
/// let plan = planner.plan::<f32>(Conv::new([32, 32, 3, 3]), &[1, 32, 30, 30])?;
/// let (x, w) = (vec![1.0; 32 * 30 * 30], vec![0.5; 32 * 32 * 3 * 3]);
/// let packed = plan.pack(&w, None)?;
/// let mut y = vec![0.0; plan.geometry().output_len()];
/// plan.run(Run::new(&x, &packed, &mut y).threads(threads))?;
/// assert!((y[0] - 0.5 * 32.0 * 9.0).abs() < 1e-3);
/// # Ok(()) }
/// ```
pub trait Executor: Sync {
    /// The number of threads that work at the same time. The calling thread is one of them if it
    /// does not only wait.
    fn width(&self) -> usize;

    /// Makes the calls `call(0)` to `call(count - 1)`, on any threads, and returns when all have
    /// returned. `count` is at most the width. Calls may be left out if at least one is made: the
    /// others do their work.
    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync));
}

struct Caller;

impl Executor for Caller {
    fn width(&self) -> usize {
        1
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(call);
    }
}

#[cfg(feature = "rayon")]
impl Executor for rayon::ThreadPool {
    fn width(&self) -> usize {
        self.current_num_threads()
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        self.install(|| by_halves(0, count, call));
    }
}

/// The rayon pool that the calling thread belongs to.
#[cfg(feature = "rayon")]
struct CurrentPool;

#[cfg(feature = "rayon")]
impl Executor for CurrentPool {
    fn width(&self) -> usize {
        rayon::current_num_threads()
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        by_halves(0, count, call);
    }
}

/// Makes `count` calls, from number `first` on. Allocates nothing: `join` keeps its state on the stack.
#[cfg(feature = "rayon")]
fn by_halves(first: usize, count: usize, call: &(dyn Fn(usize) + Sync)) {
    if count <= 1 {
        return (first..first + count).for_each(call);
    }
    let half = count / 2;
    rayon::join(|| by_halves(first, half, call), || by_halves(first + half, count - half, call));
}

/// The threads that execute a run. No others are used: the crate starts no threads, and uses only
/// the pool that is named here.
///
/// A plan is made for a number of threads ([`Planner::threads`](crate::Planner::threads)). A run on
/// more threads than that is an error. Fewer are allowed, and
/// [`Plan::threads_with`](crate::Plan::threads_with) tells how many a run will use.
///
/// ```
/// # #[cfg(feature = "rayon")] {
/// use convoke::{Conv, Planner, Run, Threads, Workspace};
///
/// # fn main() -> Result<(), convoke::Error> {
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads can be started");
/// let threads = Threads::Pool(&pool);
/// let planner = Planner::new().threads(threads.count());
/// let plan = planner.plan::<f32>(Conv::new([32, 32, 3, 3]), &[1, 32, 30, 30])?;
/// let packed = plan.pack(&vec![0.5; 32 * 32 * 3 * 3], None)?;
/// let mut workspace = Workspace::for_plan(&plan)?; // with a share for each of the two
///
/// let (x, mut y) = (vec![1.0; 32 * 30 * 30], vec![0.0; plan.geometry().output_len()]);
/// plan.run(Run::new(&x, &packed, &mut y).workspace(&mut workspace).threads(threads))?;
/// let mut alone = vec![0.0; y.len()];
/// plan.run(Run::new(&x, &packed, &mut alone).workspace(&mut workspace).threads(threads.at_most(1)))?;
/// assert_eq!(y, alone); // the same bits
/// # Ok(()) }
/// # main().unwrap() }
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Default)]
pub enum Threads<'a> {
    /// The calling thread alone.
    #[default]
    Serial,
    /// The threads of any pool.
    Executor(&'a dyn Executor),
    /// Some of these threads: so many at most. [`Threads::at_most`] makes it.
    AtMost(usize, &'a Threads<'a>),
    /// The threads of a rayon pool. The calling thread waits for them, unless it belongs to the
    /// pool.
    #[cfg(feature = "rayon")]
    Pool(&'a rayon::ThreadPool),
    /// The rayon pool that the calling thread belongs to. If it belongs to none, it is rayon's
    /// global pool.
    #[cfg(feature = "rayon")]
    Current,
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serial => f.write_str("Serial"),
            Self::Executor(executor) => write!(f, "Executor({} threads)", executor.width()),
            Self::AtMost(most, threads) => write!(f, "AtMost({most}, {threads:?})"),
            #[cfg(feature = "rayon")]
            Self::Pool(pool) => write!(f, "Pool({} threads)", pool.width()),
            #[cfg(feature = "rayon")]
            Self::Current => f.write_str("Current"),
        }
    }
}

impl<'a> Threads<'a> {
    /// These threads, but no more than `most` of them.
    #[must_use]
    pub fn at_most(&'a self, most: usize) -> Self {
        Self::AtMost(most, self)
    }

    /// The number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::AtMost(most, threads) => threads.count().min(*most),
            _ => self.executor().width(),
        }
    }

    fn executor(&self) -> &dyn Executor {
        match self {
            Self::Serial => &Caller,
            Self::Executor(executor) => *executor,
            Self::AtMost(_, threads) => threads.executor(),
            #[cfg(feature = "rayon")]
            Self::Pool(pool) => *pool,
            #[cfg(feature = "rayon")]
            Self::Current => &CurrentPool,
        }
    }

    /// Calls `task(i, scratch)` for each `i` below `tasks`, on `slots` threads at most. Each
    /// has `share` lines of scratch for itself. One slot is the calling thread.
    pub(crate) fn for_each(
        self,
        slots: usize,
        tasks: usize,
        scratch: &mut [Line],
        share: usize,
        task: &(impl Fn(usize, &mut [Line]) + Sync),
    ) {
        if slots <= 1 {
            return (0..tasks).for_each(|i| task(i, &mut scratch[..share]));
        }
        let slots = RunSlots::new(tasks, slots, &mut scratch[..slots * share], share);
        self.executor().for_each(slots.count, &|i| slots.work(i, task));
        assert_eq!(slots.done.load(Ordering::Acquire), tasks, "the executor returned before all tasks were done");
    }
}

/// What the threads of a run share.
struct RunSlots<'s> {
    count: usize,
    queues: Queues,
    /// The scratch of free slots. A slot belongs to one thread, whatever the executor does.
    free: Mutex<Free<'s>>,
    share: usize,
    done: AtomicUsize,
}

struct Free<'s> {
    slots: usize,
    scratch: &'s mut [Line],
}

impl<'s> RunSlots<'s> {
    fn new(tasks: usize, count: usize, scratch: &'s mut [Line], share: usize) -> Self {
        let free = Mutex::new(Free { slots: count, scratch });
        Self { count, queues: Queues::new(tasks, count), free, share, done: AtomicUsize::new(0) }
    }

    /// Does the tasks that are left, as call `call` of the executor.
    fn work(&self, call: usize, task: &impl Fn(usize, &mut [Line])) {
        let Some(scratch) = self.take() else { return };
        let mut done = 0;
        self.queues.drain(own_queue(call), |i| {
            task(i, scratch);
            done += 1;
        });
        // Who reads the count also sees what the tasks wrote.
        self.done.fetch_add(done, Ordering::AcqRel);
    }

    fn take(&self) -> Option<&'s mut [Line]> {
        let mut free = self.free.lock();
        free.slots = free.slots.checked_sub(1)?;
        let (scratch, rest) = core::mem::take(&mut free.scratch).split_at_mut(self.share);
        free.scratch = rest;
        Some(scratch)
    }
}

/// The queue that a thread begins with. For threads of rayon it is by their own number, as they make
/// different calls in each run.
fn own_queue(call: usize) -> usize {
    #[cfg(feature = "rayon")]
    return rayon::current_thread_index().unwrap_or(call);
    #[cfg(not(feature = "rayon"))]
    call
}

/// The tasks, in queues of neighbours. A thread begins with the same queue in every run, to find in its
/// caches what it wrote before. When the queue is empty, it goes on with those of others.
struct Queues {
    tasks: usize,
    count: usize,
    taken: [Taken; MOST_QUEUES],
}

/// Queues, at most. They are on the stack in every run.
const MOST_QUEUES: usize = 32;

/// A counter with two cache lines of 64 bytes for itself, because CPUs fetch lines in pairs.
#[repr(align(128))]
struct Taken(AtomicUsize);

impl Queues {
    fn new(tasks: usize, slots: usize) -> Self {
        Self { tasks, count: slots.min(MOST_QUEUES), taken: [const { Taken(AtomicUsize::new(0)) }; MOST_QUEUES] }
    }

    /// Takes all tasks that are left, those of queue `own` first.
    fn drain(&self, own: usize, mut task: impl FnMut(usize)) {
        for queue in (0..self.count).map(|i| (own % self.count + i) % self.count) {
            let (tasks, taken) = (tasks_of_thread(self.tasks, self.count, queue), &self.taken[queue].0);
            // The counter of an empty queue is only read, so that it stays in all caches.
            while taken.load(Ordering::Relaxed) < tasks.len() {
                let i = tasks.start + taken.fetch_add(1, Ordering::Relaxed);
                if i < tasks.end {
                    task(i);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use bytemuck::Zeroable;

    use super::*;

    /// Calls some numbers, one after the other.
    struct Calls(Vec<usize>);

    impl Executor for Calls {
        fn width(&self) -> usize {
            self.0.len()
        }

        fn for_each(&self, _: usize, call: &(dyn Fn(usize) + Sync)) {
            self.0.iter().for_each(|i| call(*i));
        }
    }

    /// Checks that each task is done once, with a line of scratch.
    fn check(threads: Threads<'_>, slots: usize, tasks: usize) {
        let done: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        let mut scratch = alloc::vec![Line::zeroed(); slots];
        threads.for_each(slots, tasks, &mut scratch, 1, &|i: usize, scratch: &mut [Line]| {
            assert_eq!(scratch.len(), 1);
            done[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1), "{slots} slots, {tasks} tasks");
    }

    #[test]
    #[cfg(feature = "rayon")]
    fn each_task_is_done_once_whatever_the_slots_and_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for slots in [2, 3, 31, MOST_QUEUES, MOST_QUEUES + 1, 80] {
            for tasks in [slots, slots + 1, 2 * slots + 1, 1000] {
                check(Threads::Pool(&pool), slots, tasks);
                pool.install(|| check(Threads::Current, slots, tasks));
            }
        }
    }

    #[test]
    fn each_task_is_done_once_whatever_an_executor_calls() {
        for calls in [&[0, 1, 2][..], &[2, 0], &[1, 1, 1, 1, 1], &[usize::MAX], &[7, 0, 0, 0, 3, 3]] {
            check(Threads::Executor(&Calls(calls.to_vec())), 3, 100);
        }
    }

    #[test]
    fn a_single_slot_is_the_calling_thread_whatever_the_executor() {
        check(Threads::Executor(&Calls(Vec::new())), 1, 100);
    }

    #[test]
    #[should_panic(expected = "before all tasks were done")]
    fn an_executor_that_calls_nothing_is_found() {
        check(Threads::Executor(&Calls(Vec::new())), 3, 100);
    }

    /// Catches panics of calls.
    #[cfg(feature = "std")]
    struct Hiding;

    #[cfg(feature = "std")]
    impl Executor for Hiding {
        fn width(&self) -> usize {
            2
        }

        fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
            for i in 0..count {
                let call = std::panic::AssertUnwindSafe(|| call(i));
                _ = std::panic::catch_unwind(call);
            }
        }
    }

    #[test]
    #[cfg(feature = "std")]
    #[should_panic(expected = "before all tasks were done")]
    fn a_panic_that_an_executor_hides_is_found() {
        let panics = |i: usize, _: &mut [Line]| assert_ne!(i, 5, "a task panics");
        Threads::Executor(&Hiding).for_each(2, 10, &mut [], 0, &panics);
    }

    /// The thread of a pool ends by a task's panic. The run does not hang, and says that something is
    /// missing.
    #[test]
    #[cfg(feature = "std")]
    #[should_panic(expected = "before all tasks were done")]
    fn a_panic_in_a_thread_that_was_sent_a_job_is_found() {
        use crate::Job;

        struct Sent;

        impl Executor for Sent {
            fn width(&self) -> usize {
                2
            }

            fn for_each(&self, _: usize, call: &(dyn Fn(usize) + Sync)) {
                Job::lend(call, |job| {
                    let sent = job.clone();
                    assert!(std::thread::spawn(move || sent.call(1)).join().is_err());
                    job.call(0);
                });
            }
        }

        let panics = |i: usize, _: &mut [Line]| assert_ne!(i, 5, "a task panics");
        Threads::Executor(&Sent).for_each(2, 10, &mut [], 0, &panics);
    }

    /// Between the look at a queue's counter and the count, another thread may take the last task.
    #[test]
    #[cfg(feature = "std")]
    fn the_last_task_is_done_once_where_threads_race_for_it() {
        const TASKS: usize = 10_000;
        let start = std::sync::Barrier::new(2);
        for _ in 0..100 {
            let (queues, done) = (Queues::new(TASKS, 1), AtomicUsize::new(0));
            let drain = || {
                start.wait();
                let mut own = 0;
                queues.drain(0, |_| own += 1);
                done.fetch_add(own, Ordering::Relaxed);
            };
            std::thread::scope(|scope| {
                scope.spawn(drain);
                drain();
            });
            assert_eq!(done.into_inner(), TASKS);
        }
    }

    #[test]
    fn threads_are_counted() {
        let three = Calls(alloc::vec![0, 1, 2]);
        let threads = Threads::Executor(&three);
        assert_eq!((threads.count(), threads.at_most(2).count(), threads.at_most(9).count()), (3, 2, 3));
        assert_eq!(threads.at_most(2).at_most(1).count(), 1);
        assert_eq!(alloc::format!("{:?}", threads.at_most(2)), "AtMost(2, Executor(3 threads))");
    }
}
