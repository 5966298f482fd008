//! The pool of an engine, which lives as long as its session: threads that wait at channels.
//!
//! What a run gives to an executor borrows from the run, and a channel takes values of any lifetime
//! alone. `Job` stands between the two, so that nothing here is unsafe.

use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, spawn};

use convoke::{Conv, Error, Executor, Job, Planner, Run, Threads, Workspace};

/// What the threads of the engine are sent: here work of convoke, or of other parts of the engine.
enum Message {
    Convoke(Job, usize),
    Other(Box<dyn FnOnce() + Send>),
}

/// Threads that are started once.
struct Pool(Vec<(Sender<Message>, JoinHandle<()>)>);

impl Pool {
    fn start(threads: usize) -> Self {
        let start = |_| {
            let (sender, messages) = channel();
            let work = move || {
                for message in messages {
                    match message {
                        Message::Convoke(job, call) => job.call(call),
                        Message::Other(work) => work(),
                    }
                }
            };
            (sender, spawn(work))
        };
        Self((0..threads).map(start).collect())
    }

    /// Ends the threads when they have done what they were sent.
    fn end(self) {
        for (sender, thread) in self.0 {
            drop(sender);
            thread.join().expect("no work panics here");
        }
    }
}

impl Executor for Pool {
    /// The threads, and the one that calls `Plan::run`.
    fn width(&self) -> usize {
        self.0.len() + 1
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        Job::lend(call, |job| {
            for (i, (thread, _)) in (1..count).zip(&self.0) {
                // A thread that has ended does not take part. The others do its share.
                _ = thread.send(Message::Convoke(job.clone(), i));
            }
            // The calling thread works until no task is left. Threads that are busy with something
            // else until then are not waited for: what they find later is a job that has ended.
            job.call(0);
        });
    }
}

fn main() -> Result<(), Error> {
    let pool = Pool::start(2);
    let threads = Threads::Executor(&pool);

    // A session: two layers, which one pool and one workspace serve.
    let planner = Planner::new().threads(threads.count());
    let first = planner.plan::<f32>(Conv::new([64, 3, 3, 3]).pads([1, 1, 1, 1]), &[1, 3, 56, 56])?;
    let second = planner.plan::<f32>(Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]), &[1, 64, 56, 56])?;
    let packed = (first.pack(&vec![0.5; 64 * 3 * 9], None)?, second.pack(&vec![0.25; 64 * 64 * 9], None)?);
    let mut workspace = Workspace::for_plan(&first)?;
    workspace.grow_for(&second)?;

    let (mut middle, mut y) = (vec![0.0; 64 * 56 * 56], vec![0.0; 64 * 56 * 56]);
    let mut infer = |image: &[f32], threads| {
        first.run(Run::new(image, &packed.0, &mut middle).workspace(&mut workspace).threads(threads))?;
        second.run(Run::new(&middle, &packed.1, &mut y).workspace(&mut workspace).threads(threads))?;
        Ok::<_, Error>(y.clone())
    };
    for pixel in [0.5, 0.25] {
        let image = vec![pixel; 3 * 56 * 56];
        // The rest of the engine uses the same threads.
        let (sender, log) = channel();
        _ = pool.0[0].0.send(Message::Other(Box::new(move || _ = sender.send(pixel))));
        let by_all = infer(&image, threads)?;
        assert_eq!(by_all, infer(&image, Threads::Serial)?);
        assert_eq!(log.recv(), Ok(pixel));
        println!("{} threads and one computed the same: y[0] = {}", threads.count(), by_all[0]);
    }
    pool.end();
    Ok(())
}
