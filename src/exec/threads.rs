//! Threads as a value.

#[cfg(feature = "rayon")]
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "rayon")]
use super::tasks_of_thread;
use super::workspace::Line;

/// The threads that execute a run. No others are used: the crate starts no threads, and uses only
/// the pool that is named here.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, Default)]
pub enum Threads<'a> {
    /// The calling thread alone.
    #[default]
    Serial,
    /// The threads of a rayon pool. The calling thread waits for them, unless it belongs to the
    /// pool.
    #[cfg(feature = "rayon")]
    Pool(&'a rayon::ThreadPool),
    /// The rayon pool that the calling thread belongs to. If it belongs to none, it is rayon's
    /// global pool.
    #[cfg(feature = "rayon")]
    Current,
    #[doc(hidden)]
    #[cfg(not(feature = "rayon"))]
    Never(core::convert::Infallible, core::marker::PhantomData<&'a ()>),
}

impl Threads<'_> {
    /// The number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Serial => 1,
            #[cfg(feature = "rayon")]
            Self::Pool(pool) => pool.current_num_threads(),
            #[cfg(feature = "rayon")]
            Self::Current => rayon::current_num_threads(),
            #[cfg(not(feature = "rayon"))]
            Self::Never(never, _) => match *never {},
        }
    }

    /// Calls `task(i, scratch)` for each `i` below `tasks`. At most `scratch.len() / share`
    /// threads do so at a time, each with `share` lines of scratch for itself.
    pub(crate) fn for_each(
        self,
        tasks: usize,
        scratch: &mut [Line],
        share: usize,
        task: &(impl Fn(usize, &mut [Line]) + Sync),
    ) {
        let fitting = scratch.len().checked_div(share).unwrap_or(usize::MAX);
        let slots = self.count().min(tasks).min(fitting).max(1);
        match self {
            #[cfg(feature = "rayon")]
            Self::Pool(pool) if slots > 1 => {
                pool.install(|| Queues::new(tasks, slots).run(slots, scratch, share, task));
            }
            #[cfg(feature = "rayon")]
            Self::Current if slots > 1 => Queues::new(tasks, slots).run(slots, scratch, share, task),
            _ => {
                debug_assert_eq!(slots, 1, "no other threads");
                (0..tasks).for_each(|i| task(i, &mut scratch[..share]));
            }
        }
    }
}

/// The tasks, in queues of neighbours. A thread begins with the same queue in every run, so that
/// it finds in its caches what it wrote in the run before. When its queue is empty, it goes on
/// with the queues of others.
#[cfg(feature = "rayon")]
struct Queues {
    tasks: usize,
    count: usize,
    /// The number of tasks of each queue that were taken.
    taken: [Taken; MOST_QUEUES],
}

/// The number of queues, at the most. They are on the stack in every run, so their memory is
/// bounded.
#[cfg(feature = "rayon")]
const MOST_QUEUES: usize = 32;

/// A counter with two cache lines of 64 bytes for itself, because CPUs fetch lines in pairs.
#[cfg(feature = "rayon")]
#[repr(align(128))]
struct Taken(AtomicUsize);

#[cfg(feature = "rayon")]
impl Queues {
    fn new(tasks: usize, slots: usize) -> Self {
        Self { tasks, count: slots.min(MOST_QUEUES), taken: [const { Taken(AtomicUsize::new(0)) }; MOST_QUEUES] }
    }

    /// Does all tasks on `slots` threads. It splits them by halves, because `join` keeps its
    /// bookkeeping on the stack and allocates nothing.
    fn run(&self, slots: usize, scratch: &mut [Line], share: usize, task: &(impl Fn(usize, &mut [Line]) + Sync)) {
        if slots == 1 {
            return self.work(&mut scratch[..share], task);
        }
        let half = slots / 2;
        let (left, right) = scratch.split_at_mut(half * share);
        rayon::join(|| self.run(half, left, share, task), || self.run(slots - half, right, share, task));
    }

    /// Does the tasks that are left in all queues, the thread's own queue first.
    fn work(&self, scratch: &mut [Line], task: &impl Fn(usize, &mut [Line])) {
        let own = rayon::current_thread_index().unwrap_or(0);
        for queue in (0..self.count).map(|i| (own + i) % self.count) {
            let (tasks, taken) = (tasks_of_thread(self.tasks, self.count, queue), &self.taken[queue].0);
            // The counter of an empty queue is only read, so that it stays in all caches.
            while taken.load(Ordering::Relaxed) < tasks.len() {
                let i = tasks.start + taken.fetch_add(1, Ordering::Relaxed);
                if i < tasks.end {
                    task(i, scratch);
                }
            }
        }
    }
}

#[cfg(all(test, feature = "rayon"))]
mod tests {
    use alloc::vec::Vec;

    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn each_task_is_done_once_whatever_the_slots_and_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for slots in [2, 3, 31, MOST_QUEUES, MOST_QUEUES + 1, 80] {
            for tasks in [slots, slots + 1, 2 * slots + 1, 1000] {
                let done: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let mut scratch = alloc::vec![Line::zeroed(); slots];
                let task = |i: usize, scratch: &mut [Line]| {
                    assert_eq!(scratch.len(), 1);
                    done[i].fetch_add(1, Ordering::Relaxed);
                };
                pool.install(|| Queues::new(tasks, slots).run(slots, &mut scratch, 1, &task));
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1), "{slots} slots, {tasks} tasks");
            }
        }
    }
}
