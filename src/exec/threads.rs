//! Threads as a value.

#[cfg(feature = "rayon")]
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "rayon")]
use super::tasks_of_thread;
use super::workspace::Line;

/// Who executes a run. Nothing else is used: no global pool that was not given, no thread of the
/// crate's own.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, Default)]
pub enum Threads<'a> {
    /// The calling thread alone.
    #[default]
    Serial,
    /// The threads of a rayon pool; the calling thread waits for them, unless it is one of them.
    #[cfg(feature = "rayon")]
    Pool(&'a rayon::ThreadPool),
    /// The rayon pool that the calling thread belongs to, or rayon's global pool where it belongs
    /// to none.
    #[cfg(feature = "rayon")]
    Current,
    #[doc(hidden)]
    #[cfg(not(feature = "rayon"))]
    Never(core::convert::Infallible, core::marker::PhantomData<&'a ()>),
}

impl Threads<'_> {
    /// How many threads there are.
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

    /// Calls `task(i, scratch)` for each i below `tasks`, on at most `scratch.len() / share`
    /// threads at a time, each with `share` lines of scratch of its own.
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

/// The tasks, in queues of neighbours. A thread begins with the same queue in every run, so that it
/// finds what it wrote the run before in its own caches, and goes on with the others' when its own
/// is empty.
#[cfg(feature = "rayon")]
struct Queues {
    tasks: usize,
    count: usize,
    /// How many tasks of a queue were taken.
    taken: [Taken; MOST_QUEUES],
}

/// Queues, at the most: they are made on the stack in every run.
#[cfg(feature = "rayon")]
const MOST_QUEUES: usize = 32;

/// On a cache line of its own, and its neighbour's that is fetched with it.
#[cfg(feature = "rayon")]
#[repr(align(128))]
struct Taken(AtomicUsize);

#[cfg(feature = "rayon")]
impl Queues {
    fn new(tasks: usize, slots: usize) -> Self {
        Self { tasks, count: slots.min(MOST_QUEUES), taken: [const { Taken(AtomicUsize::new(0)) }; MOST_QUEUES] }
    }

    /// Does all tasks on `slots` threads, by halves: `join` keeps its bookkeeping on the stack.
    fn run(&self, slots: usize, scratch: &mut [Line], share: usize, task: &(impl Fn(usize, &mut [Line]) + Sync)) {
        if slots == 1 {
            return self.work(&mut scratch[..share], task);
        }
        let half = slots / 2;
        let (left, right) = scratch.split_at_mut(half * share);
        rayon::join(|| self.run(half, left, share, task), || self.run(slots - half, right, share, task));
    }

    /// Does what is left of all tasks.
    fn work(&self, scratch: &mut [Line], task: &impl Fn(usize, &mut [Line])) {
        let own = rayon::current_thread_index().unwrap_or(0);
        for queue in (0..self.count).map(|i| (own + i) % self.count) {
            let (tasks, taken) = (tasks_of_thread(self.tasks, self.count, queue), &self.taken[queue].0);
            // An empty queue is only looked at: its counter stays in all caches.
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
