//! The caller's own threads, by the trait `Executor`. convoke starts none.
//!
//! An engine implements it over the pool that it has, as persistent_executor.rs shows. Here the
//! threads are started for each run, which costs tens of microseconds, but needs no pool.

use std::sync::atomic::{AtomicUsize, Ordering};

use convoke::{Conv, Error, Executor, Planner, Run, Threads, Workspace};

/// So many threads, the calling one among them.
struct Scoped {
    threads: usize,
    /// Calls that were made, to show that threads took part.
    calls: AtomicUsize,
}

impl Executor for Scoped {
    fn width(&self) -> usize {
        self.threads
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        self.calls.fetch_add(count, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for i in 1..count {
                scope.spawn(move || call(i));
            }
            call(0);
        });
    }
}

fn main() -> Result<(), Error> {
    let executor = Scoped { threads: 3, calls: AtomicUsize::new(0) };
    let threads = Threads::Executor(&executor);

    // The plan splits the work for this number of threads, and the workspace has a share for each.
    let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    let plan = Planner::new().threads(threads.count()).plan::<f32>(conv, &[1, 64, 56, 56])?;
    let (x, w) = (vec![0.5; 64 * 56 * 56], vec![0.25; 64 * 64 * 9]);
    let packed = plan.pack(&w, None)?;
    let mut workspace = Workspace::for_plan(&plan)?;

    let mut y = vec![0.0; plan.geometry().output_len()];
    plan.run(Run::new(&x, &packed, &mut y).workspace(&mut workspace).threads(threads))?;
    assert_eq!(executor.calls.load(Ordering::Relaxed), plan.threads_with(threads)?);

    // Fewer threads may run the plan too. The result has the same bits.
    let mut alone = vec![0.0; y.len()];
    plan.run(Run::new(&x, &packed, &mut alone).workspace(&mut workspace))?;
    assert_eq!(y, alone);
    println!("{} threads and one computed the same: y[0] = {}", plan.threads_with(threads)?, y[0]);
    Ok(())
}
