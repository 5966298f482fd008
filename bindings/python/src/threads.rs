//! Threads and scratch memory of runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use convoke::{Element, ErrorKind, Executor, Plan, Planner, Threads, Workspace};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::errors::{exception, refusal};
use crate::integers::in_range;

/// A pool, and the process that has its threads.
struct Pool {
    process: u32,
    threads: Arc<ThreadPool>,
}

/// The pools of this process, by their number of threads. They live as long as the process does.
///
/// The lock is held only by threads that hold Python's lock, and so does a thread that forks: a
/// forked process never finds it locked.
static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());

/// The threads of a run.
pub(crate) enum Pooled {
    Caller,
    Pool(Arc<ThreadPool>),
}

/// A pool that has no threads: to ask how many a run would use.
struct Width(usize);

impl Executor for Width {
    fn width(&self) -> usize {
        self.0
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(call);
    }
}

impl Pooled {
    /// Starts the threads that the plan was made for, if a run uses more than one and they are not
    /// there yet.
    pub(crate) fn of<T: Element>(py: Python<'_>, plan: &Plan<T>) -> PyResult<Self> {
        let threads = plan.explain().threads();
        let used = plan.threads_with(Threads::Executor(&Width(threads)));
        Self::new(py, if used.map_err(|error| exception(py, &error))? > 1 { threads } else { 1 })
    }

    /// Starts so many threads, if they are more than one and not there yet.
    pub(crate) fn new(py: Python<'_>, threads: usize) -> PyResult<Self> {
        if threads <= 1 {
            return Ok(Self::Caller);
        }
        match pool(threads) {
            Ok(pool) => Ok(Self::Pool(pool)),
            Err(error) => {
                Err(refusal(py, ErrorKind::Threads, format_args!("{threads} threads cannot be started: {error}")))
            }
        }
    }

    pub(crate) fn threads(&self) -> Threads<'_> {
        match self {
            Self::Caller => Threads::Serial,
            Self::Pool(pool) => Threads::Pool(pool),
        }
    }
}

/// The pool of so many threads. Nothing of Python is called while the lock is held: it could hand
/// Python's lock to a thread that waits for this one.
fn pool(threads: usize) -> Result<Arc<ThreadPool>, ThreadPoolBuildError> {
    let (mut pools, process) = (POOLS.lock().unwrap_or_else(PoisonError::into_inner), process::id());
    let start = || {
        let name = move |i| format!("convoke {i} of {threads}");
        let made = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build()?;
        Ok(Pool { process, threads: Arc::new(made) })
    };
    let pool = match pools.entry(threads) {
        Entry::Vacant(place) => place.insert(start()?),
        Entry::Occupied(place) => {
            let pool = place.into_mut();
            if pool.process != process {
                // This process was forked: it has no threads but the one that forked, and the pool
                // must not be asked to end others.
                mem::forget(mem::replace(pool, start()?));
            }
            pool
        }
    };
    Ok(pool.threads.clone())
}

/// A number of threads, checked before anything is planned for it.
pub(crate) fn count(threads: &Bound<'_, PyAny>) -> PyResult<usize> {
    match in_range("threads", threads, 1, Planner::MOST_THREADS)? {
        Ok(threads) => Ok(threads),
        Err(rule) => Err(refusal(threads.py(), ErrorKind::Threads, rule)),
    }
}

/// Calls `run` with the calling thread's workspace, made as large as a plan needs.
pub(crate) fn with_workspace<R>(
    bytes: usize,
    run: impl FnOnce(&mut Workspace<'_>) -> Result<R, convoke::Error>,
) -> Result<R, convoke::Error> {
    thread_local! {
        static WORKSPACE: RefCell<Option<Workspace<'static>>> = const { RefCell::new(None) };
    }
    // A run calls nothing of Python, so that a thread is in one run at a time.
    WORKSPACE.with_borrow_mut(|kept| {
        let workspace = match kept {
            Some(workspace) => workspace,
            None => kept.insert(Workspace::with_bytes(0)?),
        };
        if workspace.bytes() < bytes {
            *workspace = Workspace::with_bytes(bytes)?;
        }
        run(workspace)
    })
}
