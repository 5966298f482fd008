//! How work is shared out, so that threads end at about the same time.

use core::ops::Range;

use crate::Geometry;
use crate::exec::region::Patch;
use crate::exec::tasks_of_thread;

/// What a task of a GEMM lowering computes: a share of the panels of weights, for one block of
/// columns of one group of one image.
pub(crate) struct Part {
    pub(crate) image: usize,
    pub(crate) group: usize,
    /// The block of columns, of those of an image and group.
    pub(crate) columns: usize,
    pub(crate) panels: Range<usize>,
}

/// How the GEMM lowerings split Y: for each image and group, into blocks of columns, and into
/// shares of the panels of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GemmSplit {
    pub(crate) images: usize,
    pub(crate) groups: usize,
    /// Blocks of columns of an image and group.
    pub(crate) columns: usize,
    /// Panels of a group, and shares of them.
    pub(crate) panels: usize,
    pub(crate) shares: usize,
}

impl GemmSplit {
    pub(crate) fn tasks(&self) -> usize {
        self.images * self.groups * self.columns * self.shares
    }

    /// What task number `task` computes.
    pub(crate) fn part(&self, task: usize) -> Part {
        Part::new((task, self.tasks()), self.groups, self.columns, self.panels, self.shares)
    }

    /// The most panels of a share.
    pub(crate) fn share_panels(&self) -> usize {
        self.panels.div_ceil(self.shares)
    }
}

impl Part {
    /// Task number `task` of `tasks`, with `columns` blocks of columns for each of `groups` groups,
    /// and `panels` panels in `splits` shares: a thread, whose tasks are neighbours, reads the
    /// weights of one share, and a panel more where shares take turns.
    pub(crate) fn new(
        (task, tasks): (usize, usize),
        groups: usize,
        columns: usize,
        panels: usize,
        splits: usize,
    ) -> Self {
        let (split, rest) = (task / (tasks / splits), task % (tasks / splits));
        let (plane, columns) = (rest / columns, rest % columns);
        Self {
            image: plane / groups,
            group: plane % groups,
            columns,
            panels: share_in_turn(panels, splits, split, rest),
        }
    }

    /// The part of Y: some output channels of the group, and some positions.
    pub(crate) fn patch(&self, geometry: &Geometry, rows: Range<usize>, positions: Range<usize>) -> Patch {
        let first = self.group * geometry.out_channels_per_group();
        let channels = first + rows.start..first + rows.end;
        Patch::rows(self.image..self.image + 1, channels, positions, geometry.output_spatial())
    }

    /// The work of the thread that has the most of it, over what each would have if all had the
    /// same: of `tasks` tasks, `splits` shares of `panels` panels whose work is `work`.
    pub(crate) fn unevenness(
        tasks: usize,
        panels: usize,
        splits: usize,
        threads: usize,
        work: impl Fn(Range<usize>) -> usize,
    ) -> f64 {
        if tasks > MOST_TASKS_COUNTED {
            return tasks.div_ceil(threads) as f64 * threads as f64 / tasks as f64;
        }
        let of_split = tasks / splits;
        let of_task = |task: usize| work(share_in_turn(panels, splits, task / of_split, task % of_split)) as f64;
        let most = (threads - threads.min(tasks)..threads)
            .map(|thread| tasks_of_thread(tasks, threads, thread).map(of_task).sum::<f64>())
            .fold(0.0, f64::max);
        let mean = work(0..panels) as f64 * of_split as f64 / threads as f64;
        if mean > 0.0 { most / mean } else { 1.0 }
    }
}

/// Tasks whose work is counted one by one, at the most: of more they count as equal.
const MOST_TASKS_COUNTED: usize = 1 << 10;

/// Share number `index` of `0..len` in `count` shares. The larger shares take turns: with `turn`
/// from 0 to `count - 1`, all of them have had the same.
fn share_in_turn(len: usize, count: usize, index: usize, turn: usize) -> Range<usize> {
    // Hermite's identity: over all turns, floor((index * len + turn) / count) adds up to index *
    // len.
    let start = |index: usize| ((index as u64 * len as u64 + (turn % count) as u64) / count as u64) as usize;
    start(index)..start(index + 1)
}

/// Tasks for each thread where they are short, so that threads end at about the same time.
pub(crate) const TASKS_PER_THREAD: usize = 4;

/// The size of tasks, of `pieces` equal pieces in all for each of `others` (images, positions on
/// the axes before): at most `most` pieces, and so few that threads end at about the same time.
/// (256 to 128 channels, 1x1 at 56x56, two threads: 14 tasks of 7 tiles take 427 us, 7 of 13 tiles
/// and one of the other 7 456.)
pub(crate) fn even_share(pieces: usize, most: usize, others: usize, threads: usize) -> usize {
    let most = most.clamp(1, pieces.max(1));
    let fewest = pieces.div_ceil(most);
    let is_even_anyway = threads == 1 || others.saturating_mul(fewest) >= MANY_TASKS.saturating_mul(threads);
    if is_even_anyway || threads > MOST_EVENED || fewest == 0 || others == 0 {
        return most;
    }
    // Pieces of the busiest thread.
    let busiest = |size: usize| {
        let tasks = pieces.div_ceil(size);
        let of_thread = |thread: usize| {
            let range = tasks_of_thread(others * tasks, threads, thread);
            // The last task of each of the others is shorter.
            let last = range.end / tasks - range.start / tasks;
            range.len().saturating_mul(size) - last.saturating_mul(tasks.saturating_mul(size) - pieces)
        };
        (0..threads).map(of_thread).max().unwrap_or(0)
    };
    let (mut best, mut least, mut size) = (most, busiest(most), most);
    // Up to twice as many tasks, or one for each thread.
    let end = (2 * fewest).max(threads.div_ceil(others));
    for _ in 0..MOST_TRIED {
        // Of equal tasks, one more, or as many more as it takes to be smaller.
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

/// From so many tasks a thread on, it does not matter that the last one to end is a task behind.
const MANY_TASKS: usize = 64;
/// What smaller tasks must save, as each has a price of its own.
const WORTH_IT: f64 = 0.99;
/// Sizes that are tried, and threads up to which they are: planning takes time, too.
const MOST_TRIED: usize = 64;
const MOST_EVENED: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Part, Range, even_share, tasks_of_thread};

    /// The pieces of the busiest of `threads` threads with tasks of `size` pieces, counted one by
    /// one.
    fn busiest(pieces: usize, size: usize, others: usize, threads: usize) -> usize {
        let of_one = (0..pieces).step_by(size).map(|first| size.min(pieces - first));
        let tasks: Vec<_> = (0..others).flat_map(|_| of_one.clone()).collect();
        (0..threads).map(|thread| tasks[tasks_of_thread(tasks.len(), threads, thread)].iter().sum()).max().unwrap_or(0)
    }

    #[test]
    fn each_panel_of_each_block_is_in_one_share_and_larger_shares_take_turns() {
        for (columns, panels, splits) in [(1, 5, 2), (2, 5, 2), (6, 7, 3), (4, 1, 2), (3, 3, 2), (8, 6, 4), (2, 9, 1)] {
            let tasks = columns * splits;
            let mut seen = alloc::vec![0; columns * panels];
            let mut of_split = alloc::vec![0; splits];
            for task in 0..tasks {
                let part = Part::new((task, tasks), 1, columns, panels, splits);
                assert!(part.panels.len() <= panels.div_ceil(splits));
                of_split[task / columns] += part.panels.len();
                for panel in part.panels {
                    seen[part.columns * panels + panel] += 1;
                }
            }
            assert!(seen.iter().all(|count| *count == 1), "{columns} {panels} {splits}: {seen:?}");
            if columns % splits == 0 {
                assert!(of_split.iter().all(|len| len * splits == columns * panels), "{of_split:?}");
            }
        }
    }

    #[test]
    fn the_busiest_thread_has_the_largest_shares() {
        let whole = |panels: Range<usize>| panels.len();
        // Five panels: three and two, or with two blocks five for each thread.
        assert_eq!(Part::unevenness(2, 5, 2, 2, whole), 1.2);
        assert_eq!(Part::unevenness(4, 5, 2, 2, whole), 1.0);
        // The last panel is narrow; three blocks for two threads; one for two.
        assert_eq!(Part::unevenness(2, 3, 2, 2, |panels| (2 * panels.end).min(5) - 2 * panels.start), 1.2);
        assert_eq!(Part::unevenness(3, 4, 1, 2, whole), 4.0 / 3.0);
        assert_eq!(Part::unevenness(1, 4, 1, 2, whole), 2.0);
        assert_eq!(Part::unevenness(1, 4, 1, 1, whole), 1.0);
        // More threads than tasks; and so many tasks that they are not counted one by one.
        assert_eq!(Part::unevenness(1000, 4, 1, 4000, whole), 4.0);
        assert_eq!(Part::unevenness(1100, 4, 1, 4400, whole), 4.0);
        assert_eq!(Part::unevenness(1100, 4, 1, 100, whole), 1.0);
    }

    #[test]
    fn tasks_are_shared_out_evenly() {
        // 98 tiles: two threads have 49 each, and three at most 33; twelve have a task each, though
        // two would do.
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
