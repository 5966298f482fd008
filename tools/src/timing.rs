//! Repeated runs of one computation, and the mean of their results.

use std::time::{Duration, Instant};

/// The seconds that one run takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The fastest run.
    pub min: f64,
    /// The median run. If their number is even, it is the upper of the two in the middle.
    pub median: f64,
    /// Number of timed runs.
    pub reps: usize,
}

impl Timing {
    /// Timed runs, at least, however long each takes.
    pub const MIN_REPS: usize = 3;
    /// Runs before timing starts. They touch every page, fill the caches and wake the threads.
    const WARM_UP: usize = 2;

    /// Runs `run` twice untimed, then again and again for `duration`, at least
    /// [`MIN_REPS`](Self::MIN_REPS) times.
    ///
    /// # Errors
    /// The first error of `run`; no further run is made.
    pub fn measure<E>(duration: Duration, run: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        Self::measure_after(duration, || {}, run)
    }

    /// The same as [`measure`](Self::measure), with an untimed `prepare` before each timed run.
    ///
    /// # Errors
    /// The first error of `run`; no further run is made.
    pub fn measure_after<E>(
        duration: Duration,
        mut prepare: impl FnMut(),
        mut run: impl FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        for _ in 0..Self::WARM_UP {
            run()?;
        }
        let mut seconds = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < duration || seconds.len() < Self::MIN_REPS {
            prepare();
            let start = Instant::now();
            run()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Self { min: seconds[0], median: seconds[seconds.len() / 2], reps: seconds.len() })
    }
}

/// Memory that pushes everything else out of the caches when it is read.
#[derive(Debug)]
pub struct Evictor(Vec<usize>);

impl Evictor {
    /// Memory for caches of `bytes` in all.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        // The values differ, because a system may map all pages of zeros to one page.
        Self((0..4 * bytes / size_of::<usize>()).collect())
    }

    /// Empties the caches of this thread's core.
    pub fn evict(&self) {
        touch(&self.0);
    }
}

/// Reads every cache line of `data`.
pub fn touch<T: Copy>(data: &[T]) {
    /// Bytes of a cache line on all current CPUs. On CPUs with longer lines, more reads do no harm.
    const LINE_BYTES: usize = 64;
    for element in data.iter().step_by((LINE_BYTES / size_of::<T>()).max(1)) {
        std::hint::black_box(*element);
    }
}

/// The geometric mean, which is the right mean of rates and ratios; NaN if there are no values.
#[must_use]
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (count, sum) = values.into_iter().fold((0, 0.0), |(count, sum), value| (count + 1, sum + value.ln()));
    (sum / f64::from(count)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn warm_up_runs_are_not_counted() {
        let mut calls = 0;
        let timing = Timing::measure(Duration::ZERO, || {
            calls += 1;
            Ok::<_, Infallible>(())
        })
        .unwrap();
        assert_eq!((timing.reps, calls), (Timing::MIN_REPS, Timing::MIN_REPS + Timing::WARM_UP));
        assert!(0.0 <= timing.min && timing.min <= timing.median);
    }

    #[test]
    fn every_timed_run_is_prepared() {
        let log = std::cell::RefCell::new(Vec::new());
        let run = || {
            log.borrow_mut().push('r');
            Ok::<_, Infallible>(())
        };
        Timing::measure_after(Duration::ZERO, || log.borrow_mut().push('p'), run).unwrap();
        assert_eq!(log.into_inner().iter().collect::<String>(), "rr".to_owned() + &"pr".repeat(Timing::MIN_REPS));
    }

    #[test]
    fn geometric_mean_of_known_numbers() {
        assert!((geometric_mean([1.0, 10.0, 100.0]) - 10.0).abs() < 1e-9);
        assert!(geometric_mean([]).is_nan());
    }

    #[test]
    fn stops_at_the_first_error() {
        let mut calls = 0;
        let result = Timing::measure(Duration::from_secs(60), || {
            calls += 1;
            if calls == 4 { Err("fourth") } else { Ok(()) }
        });
        assert_eq!((result, calls), (Err("fourth"), 4));
    }
}
