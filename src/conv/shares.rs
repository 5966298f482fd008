//! Splits work evenly, so that threads end at about the same time.

use core::ops::Range;

use crate::Geometry;
use crate::exec::split::Patch;
use crate::exec::tasks_of_thread;

/// Rows that a chunk should have for each row that it shares with the next one. Then at most a quarter
/// of the rows is read, or summed, twice.
pub(crate) const ROWS_FOR_SHARED_ROW: usize = 4;

/// What a task of a GEMM lowering computes: a share of the panels of weights, for one chunk of
/// columns of one group of one image.
pub(crate) struct Part {
    pub(crate) image: usize,
    pub(crate) group: usize,
    /// The number of the chunk of columns, among those of one image and group.
    pub(crate) columns: usize,
    pub(crate) panels: Range<usize>,
}

/// How a GEMM lowering splits Y: for each image and group, into chunks of columns, and into
/// shares of the panels of weights. Where images are shared out in blocks, a block stands for an
/// image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GemmSplit {
    pub(crate) images: usize,
    pub(crate) groups: usize,
    pub(crate) columns: usize,
    pub(crate) panels: usize,
    pub(crate) shares: usize,
}

impl GemmSplit {
    /// Chunks of the pixels of all images. Too few of them for `threads` threads are computed in shares of the panels.
    pub(crate) fn of_chunks(columns: usize, panels: usize, threads: usize) -> Self {
        let mut split = Self { images: 1, groups: 1, columns, panels, shares: 1 };
        let tasks = split.tasks();
        if threads > 1 && tasks < TASKS_PER_THREAD * threads {
            split.shares = (TASKS_PER_THREAD * threads).div_ceil(tasks.max(1)).clamp(1, panels.max(1));
        }
        split
    }

    /// Tasks of all shares. Saturates: hostile sizes may exceed `usize`.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks_of_share().saturating_mul(self.shares)
    }

    fn tasks_of_share(&self) -> usize {
        self.images * self.groups * self.columns
    }

    /// What task `task` computes. Neighbouring tasks have the same share, so that a thread reads few
    /// panels.
    pub(crate) fn part(&self, task: usize) -> Part {
        let (share, rest) = (task / self.tasks_of_share(), task % self.tasks_of_share());
        let (plane, columns) = (rest / self.columns, rest % self.columns);
        Part {
            image: plane / self.groups,
            group: plane % self.groups,
            columns,
            panels: rotated_share(self.panels, self.shares, share, rest),
        }
    }

    /// The most panels of a share.
    pub(crate) fn share_panels(&self) -> usize {
        self.panels.div_ceil(self.shares)
    }

    /// The work of the busiest of `threads` threads over the mean of all. `work` is that of a task.
    pub(crate) fn unevenness(&self, threads: usize, work: impl Fn(&Part) -> usize) -> f64 {
        let tasks = self.tasks();
        if threads == 1 {
            return 1.0;
        }
        if tasks > MOST_TASKS_COUNTED {
            return tasks.div_ceil(threads) as f64 * threads as f64 / tasks as f64;
        }
        let of_thread = |thread: usize| {
            tasks_of_thread(tasks, threads, thread).map(|task| work(&self.part(task)) as f64).sum::<f64>()
        };
        // Threads without a task have the lowest numbers.
        let (mut busiest, mut all) = (0.0_f64, 0.0);
        for thread in threads - threads.min(tasks)..threads {
            let of_thread = of_thread(thread);
            (busiest, all) = (busiest.max(of_thread), all + of_thread);
        }
        if all > 0.0 { busiest * threads as f64 / all } else { 1.0 }
    }
}

impl Part {
    /// The part of Y: some output channels of the group, and some positions.
    pub(crate) fn patch(&self, geometry: &Geometry, rows: Range<usize>, positions: Range<usize>) -> Patch {
        let first = self.group * geometry.out_channels_per_group();
        let channels = first + rows.start..first + rows.end;
        Patch::rows(self.image..self.image + 1, channels, positions, geometry.output_spatial())
    }
}

/// With more tasks than this, all count as equal: to count each takes time, and a single task matters
/// little.
const MOST_TASKS_COUNTED: usize = 1 << 10;

/// Share `index` of `0..len` in `count` shares. `rotation` moves the larger shares, so that over `count`
/// rotations in a row all shares are equal.
fn rotated_share(len: usize, count: usize, index: usize, rotation: usize) -> Range<usize> {
    // Hermite's identity: over all rotations, floor((index * len + rotation) / count) adds up to index *
    // len.
    let start = |index: usize| ((index as u64 * len as u64 + (rotation % count) as u64) / count as u64) as usize;
    start(index)..start(index + 1)
}

/// Tasks for each thread where tasks are short: enough for threads to end at about the same time.
pub(crate) const TASKS_PER_THREAD: usize = 4;

/// The size of tasks for `pieces` equal pieces of each of `others` (images, or positions on the axes
/// before): at most `most` pieces, or fewer where threads then end more evenly.
pub(crate) fn even_share(pieces: usize, most: usize, others: usize, threads: usize) -> usize {
    let most = most.clamp(1, pieces.max(1));
    let fewest = pieces.div_ceil(most);
    let is_even_anyway = threads == 1 || others.saturating_mul(fewest) >= MANY_TASKS.saturating_mul(threads);
    if is_even_anyway || threads > MOST_EVENED || fewest == 0 || others == 0 {
        return most;
    }
    let busiest = |size: usize| {
        let tasks = pieces.div_ceil(size);
        let of_thread = |thread: usize| {
            let range = tasks_of_thread(others * tasks, threads, thread);
            // The last task is shorter, for each of the others.
            let last = range.end / tasks - range.start / tasks;
            range.len().saturating_mul(size) - last.saturating_mul(tasks.saturating_mul(size) - pieces)
        };
        (0..threads).map(of_thread).max().unwrap_or(0)
    };
    let (mut best, mut least, mut size) = (most, busiest(most), most);
    // The search ends at twice as many tasks, or at one for each thread where that is more.
    let end = (2 * fewest).max(threads.div_ceil(others));
    for _ in 0..MOST_TRIED {
        // One more task, with all of them equal; or one piece less, where that changes nothing.
        size = pieces.div_ceil(pieces.div_ceil(size) + 1).min(size - 1);
        if size == 0 || pieces.div_ceil(size) > end {
            break;
        }
        let busiest = busiest(size);
        if (busiest as f64) < least as f64 * WORTH_IT {
            (best, least) = (size, busiest);
        }
    }
    best
}

/// With so many tasks per thread, one task more or less does not matter.
const MANY_TASKS: usize = 64;
/// Smaller tasks must reduce the busiest thread's pieces to this share, as they have a price of their
/// own.
const WORTH_IT: f64 = 0.99;
/// Sizes that are tried, at most: planning takes time.
const MOST_TRIED: usize = 64;
/// Sizes are tried for at most so many threads, for the same reason.
const MOST_EVENED: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{GemmSplit, even_share, tasks_of_thread};

    /// The pieces of the busiest of `threads` threads, counted one by one.
    fn busiest(pieces: usize, size: usize, others: usize, threads: usize) -> usize {
        let of_one = (0..pieces).step_by(size).map(|first| size.min(pieces - first));
        let tasks: Vec<_> = (0..others).flat_map(|_| of_one.clone()).collect();
        (0..threads).map(|thread| tasks[tasks_of_thread(tasks.len(), threads, thread)].iter().sum()).max().unwrap_or(0)
    }

    #[test]
    fn each_panel_of_each_block_is_in_one_share_and_larger_shares_take_turns() {
        for (columns, panels, shares) in [(1, 5, 2), (2, 5, 2), (6, 7, 3), (4, 1, 2), (3, 3, 2), (8, 6, 4), (2, 9, 1)] {
            let split = GemmSplit { images: 1, groups: 1, columns, panels, shares };
            let mut seen = alloc::vec![0; columns * panels];
            let mut of_share = alloc::vec![0; shares];
            for task in 0..split.tasks() {
                let part = split.part(task);
                assert!(part.panels.len() <= split.share_panels());
                of_share[task / columns] += part.panels.len();
                for panel in part.panels {
                    seen[part.columns * panels + panel] += 1;
                }
            }
            assert!(seen.iter().all(|count| *count == 1), "{columns} {panels} {shares}: {seen:?}");
            if columns % shares == 0 {
                assert!(of_share.iter().all(|len| len * shares == columns * panels), "{of_share:?}");
            }
        }
    }

    #[test]
    fn the_busiest_thread_has_the_largest_shares() {
        let uneven = |columns: usize, panels: usize, shares: usize, threads: usize| {
            GemmSplit { images: 1, groups: 1, columns, panels, shares }.unevenness(threads, |part| part.panels.len())
        };
        // Five panels are three and two. Two blocks are five panels for each thread.
        assert_eq!(uneven(1, 5, 2, 2), 1.2);
        assert_eq!(uneven(2, 5, 2, 2), 1.0);
        // The last panel is narrow.
        let split = GemmSplit { images: 1, groups: 1, columns: 1, panels: 3, shares: 2 };
        assert_eq!(split.unevenness(2, |part| (2 * part.panels.end).min(5) - 2 * part.panels.start), 1.2);
        // The last block of columns is short.
        let split = GemmSplit { images: 1, groups: 1, columns: 4, panels: 1, shares: 1 };
        assert_eq!(split.unevenness(2, |part| if part.columns == 3 { 1 } else { 2 }), 8.0 / 7.0);
        // Three blocks for two threads, one block for two, one block for one.
        assert_eq!(uneven(3, 4, 1, 2), 4.0 / 3.0);
        assert_eq!(uneven(1, 4, 1, 2), 2.0);
        assert_eq!(uneven(1, 4, 1, 1), 1.0);
        // More threads than tasks; and so many tasks that they are not counted one by one.
        assert_eq!(uneven(1000, 4, 1, 4000), 4.0);
        assert_eq!(uneven(1100, 4, 1, 4400), 4.0);
        assert_eq!(uneven(1100, 4, 1, 100), 1.0);
    }

    #[test]
    fn tasks_are_shared_out_evenly() {
        // 98 tiles: two threads have 49 each, and three at most 33; twelve have a task each,
        // though two would do.
        assert_eq!(even_share(98, 13, 1, 2), 7);
        assert_eq!(even_share(98, 13, 1, 3), 11);
        assert_eq!(even_share(12, 6, 1, 12), 1);
        // Tasks are as large as they may be for a single thread, where threads have whole images,
        // or equal tasks, or very many.
        assert_eq!(even_share(98, 13, 1, 1), 13);
        assert_eq!(even_share(98, 13, 4, 2), 13);
        assert_eq!(even_share(96, 12, 1, 8), 12);
        assert_eq!(even_share(98, 13, 1000, 2), 13);
        for (pieces, most) in (1..120).step_by(7).flat_map(|pieces| (1..pieces + 3).map(move |most| (pieces, most))) {
            for (others, threads) in [(1, 2), (1, 3), (3, 2), (2, 7), (1, 16), (5, 4)] {
                let size = even_share(pieces, most, others, threads);
                let [even, plain] = [size, most.min(pieces)].map(|size| busiest(pieces, size, others, threads));
                assert!(size <= most && even <= plain, "{pieces} {most} {others} {threads}: {size}, {even} of {plain}");
            }
        }
    }

    #[test]
    fn hostile_sizes_are_shared_out_at_once() {
        let large = usize::MAX >> 2;
        for (pieces, most, others, threads) in [
            (0, 5, 1, 2),
            (5, 5, 0, 2),
            (large, large, 1, 2),
            (large, large, 1, 1 << 10),
            (7, 100, large, 3),
            (large, 1, 1, usize::MAX),
            (3, 3, 1, 1 << 10),
        ] {
            let size = even_share(pieces, most, others, threads);
            assert!((1..=most.clamp(1, pieces.max(1))).contains(&size), "{pieces} {most} {others} {threads}: {size}");
        }
    }
}
