//! Threads as a value.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::workspace::Line;

/// Who executes a run. Nothing else is used: no global pool that was not given, no thread of the crate's own.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, Default)]
pub enum Threads<'a> {
    /// The calling thread alone.
    #[default]
    Serial,
    /// The threads of a rayon pool; the calling thread waits for them, unless it is one of them.
    #[cfg(feature = "rayon")]
    Pool(&'a rayon::ThreadPool),
    /// The rayon pool that the calling thread belongs to, or rayon's global pool where it belongs to none.
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

    /// Calls `task(i, scratch)` for each i below `tasks`, on at most `scratch.len() / share` threads at a time, each with `share` lines of
    /// scratch of its own.
    pub(crate) fn for_each(
        self,
        tasks: usize,
        scratch: &mut [Line],
        share: usize,
        task: &(impl Fn(usize, &mut [Line]) + Sync),
    ) {
        let fitting = scratch.len().checked_div(share).unwrap_or(usize::MAX);
        let slots = self.count().min(tasks).min(fitting).max(1);
        let next = AtomicUsize::new(0);
        let work = |scratch: &mut [Line]| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    return;
                }
                task(i, scratch);
            }
        };
        match self {
            #[cfg(feature = "rayon")]
            Self::Pool(pool) if slots > 1 => pool.install(|| spread(slots, scratch, share, &work)),
            #[cfg(feature = "rayon")]
            Self::Current if slots > 1 => spread(slots, scratch, share, &work),
            _ => {
                debug_assert_eq!(slots, 1, "no other threads");
                work(&mut scratch[..share]);
            }
        }
    }
}

/// Calls `work` on `slots` threads, by halves: `join` keeps its bookkeeping on the stack.
#[cfg(feature = "rayon")]
fn spread(slots: usize, scratch: &mut [Line], share: usize, work: &(impl Fn(&mut [Line]) + Sync)) {
    if slots == 1 {
        return work(&mut scratch[..share]);
    }
    let half = slots / 2;
    let (left, right) = scratch.split_at_mut(half * share);
    rayon::join(|| spread(half, left, share, work), || spread(slots - half, right, share, work));
}
