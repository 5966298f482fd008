//! What the layers of a session share.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use convoke::{Activation, Conv, DType, Element, Executor, Operator, Planner, Threads, Tuning, Workspace, f16};

use crate::api::{Failure, Level, Log, Result, lock};
use crate::options::{Layout, Options};
use crate::run::buffer;
use crate::weights::{Constants, PackedLayer, pack, pack_shared};

/// A session's options, log and memory.
pub(crate) struct Session {
    options: Options,
    log: Log,
    /// The tuning file, and what is measured beside it.
    tuning: Mutex<TuningFile>,
    /// Workspaces that no run uses at the moment: as many as runs were active at the same time.
    workspaces: Mutex<Vec<Workspace<'static>>>,
    /// The same for the tensors of regions.
    memories: Mutex<Vec<Memory>>,
    /// Estimates of layers, by what they are.
    estimates: Mutex<HashMap<Estimated, Option<f64>>>,
}

/// What an estimate is of: the element type, the operator, the activation as text, and the shape of X.
type Estimated = (DType, Operator, String, Vec<usize>);

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Memory for the tensors of a region.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Memory {
    /// So many bytes, from the beginning of a cache line on.
    fn bytes(&mut self, len: usize) -> Result<&mut [u8]> {
        let most = len.saturating_add(LINE);
        if self.0.len() < most {
            // What is too small is freed before.
            self.0 = Vec::new();
            self.0 = buffer(most)?;
            self.0.resize(most, 0);
        }
        let first = self.0.as_ptr().align_offset(LINE);
        Ok(&mut self.0[first..first + len])
    }
}

/// A file of measured picks.
#[derive(Default)]
struct TuningFile {
    path: Option<PathBuf>,
    known: Arc<Tuning>,
    /// What was measured since the file was read or written.
    measured: Tuning,
}

impl Session {
    pub(crate) fn new(options: Options, log: Log) -> Result<Self> {
        let path = options.tuning_file.clone();
        let known = path.as_deref().map_or_else(|| Ok(Tuning::default()), |path| read(path, options.tune))?;
        log.write(Level::Info, || format!("{options:?}, {} layers in the tuning file", known.len()));
        let tuning = TuningFile { path, known: known.into(), measured: Tuning::default() };
        Ok(Self {
            options,
            log,
            tuning: Mutex::new(tuning),
            workspaces: Mutex::default(),
            estimates: Mutex::default(),
            memories: Mutex::default(),
        })
    }

    pub(crate) fn log(&self) -> Log {
        self.log
    }

    /// The number of threads that work is split for.
    pub(crate) fn threads(&self) -> usize {
        self.options.threads
    }

    /// Whether layers may not have all the scratch memory that they would take.
    pub(crate) fn has_workspace_limit(&self) -> bool {
        self.options.workspace_limit < usize::MAX
    }

    /// How tensors lie between layers.
    pub(crate) fn layout(&self) -> Layout {
        self.options.layout
    }

    /// The estimate of a layer, in nanoseconds, if it can be planned.
    pub(crate) fn estimate(
        &self,
        dtype: DType,
        operator: Operator,
        activation: Activation,
        x_shape: &[usize],
    ) -> Option<f64> {
        // An activation has floats, which are no keys.
        let key = (dtype, operator.clone(), format!("{activation:?}"), x_shape.to_vec());
        if let Some(known) = lock(&self.estimates).get(&key) {
            return *known;
        }
        let planner = self.planner().activation(activation);
        let estimate = match dtype {
            DType::F16 => planner.plan::<f16>(operator, x_shape).ok().map(|plan| plan.explain().cost()),
            _ => planner.plan::<f32>(operator, x_shape).ok().map(|plan| plan.explain().cost()),
        };
        lock(&self.estimates).insert(key, estimate);
        estimate
    }

    /// Whether the CPU multiplies bytes, as layers of integers are packed here.
    pub(crate) fn has_byte_products(&self) -> bool {
        let plan = self.planner().plan_quantised::<u8, i8, u8>(Conv::new([16, 16, 1]), &[1, 16, 16]);
        plan.is_ok_and(|plan| plan.has_byte_products())
    }

    /// Threads that may compile at the same time. Layers are measured one at a time.
    pub(crate) fn compiling_threads(&self) -> usize {
        if self.options.tune { 1 } else { self.options.threads }
    }

    /// A planner for the session's layers.
    pub(crate) fn planner(&self) -> Planner {
        self.options.planner().tuning(lock(&self.tuning).known.clone())
    }

    /// Plans a layer for X of a shape, measures it if the user asked for it, and packs.
    pub(crate) fn pack<T: Element>(
        &self,
        title: &str,
        operator: &Operator,
        activation: Activation,
        x_shape: &[usize],
        constants: &Constants<'_, T>,
    ) -> Result<PackedLayer<T>> {
        if self.options.tune {
            self.measure::<T>(operator, activation, x_shape)?;
        }
        let planner = self.planner().activation(activation);
        let cache = if self.options.share_weights {
            // Sessions with other options must not share.
            let description = format!("{:?} {activation:?}", self.options);
            pack_shared((&planner, description), operator, x_shape, constants)?
        } else {
            Arc::new(pack(&planner, operator, x_shape, constants)?)
        };
        let plan = cache.plan(x_shape)?;
        self.log.write(Level::Verbose, || format!("{title}: {:#}", plan.explain()));
        Ok(PackedLayer::of_size(cache, x_shape))
    }

    /// Measures a layer that the tuning file lacks.
    fn measure<T: Element>(&self, operator: &Operator, activation: Activation, x_shape: &[usize]) -> Result<()> {
        let mut file = lock(&self.tuning);
        let planner = self.options.planner().activation(activation).tuning(file.known.clone());
        if planner.is_tuned::<T>(operator.clone(), x_shape)? {
            return Ok(());
        }
        let (pool, mut measured) = (ScopedThreads(self.options.threads), Tuning::default());
        _ = planner.tune::<T>(operator.clone(), x_shape, Threads::Executor(&pool), &mut measured)?;
        Arc::make_mut(&mut file.known).merge(measured.clone());
        file.measured.merge(measured);
        Ok(())
    }

    /// Writes what was measured. Layers that other sessions and processes wrote meanwhile stay.
    pub(crate) fn save_tuning(&self) -> Result<()> {
        let mut file = lock(&self.tuning);
        let Some(path) = file.path.clone().filter(|_| !file.measured.is_empty()) else { return Ok(()) };
        let failure = |error| Failure::other(format_args!("cannot write the tuning file {}: {error}", path.display()));
        // One session at a time reads the file, adds to it, and writes it. The lock ends with its
        // file. It is not the tuning file's own, because that one is replaced.
        let turn = fs::File::create(beside(&path, "lock")).map_err(failure)?;
        turn.lock().map_err(failure)?;
        let mut all = read(&path, true)?;
        all.merge(std::mem::take(&mut file.measured));
        // Renaming replaces a file at once: a reader sees the old one or the new one.
        let new = beside(&path, "new");
        let written = fs::write(&new, all.to_string()).and_then(|()| fs::rename(&new, &path));
        written.map_err(|error| {
            // What is left of it is of no use.
            _ = fs::remove_file(&new);
            failure(error)
        })
    }

    /// Lends a workspace that no other run uses. It keeps the size that it grows to.
    pub(crate) fn with_workspace<R>(&self, body: impl FnOnce(&mut Workspace<'static>) -> Result<R>) -> Result<R> {
        let free = lock(&self.workspaces).pop();
        let mut workspace = free.map_or_else(|| Workspace::with_bytes(0), Ok)?;
        let result = body(&mut workspace);
        lock(&self.workspaces).push(workspace);
        result
    }

    /// Lends so many bytes that no other run uses, from the beginning of a cache line on.
    pub(crate) fn with_memory<R>(&self, len: usize, body: impl FnOnce(&mut [u8]) -> Result<R>) -> Result<R> {
        let mut memory = lock(&self.memories).pop().unwrap_or_default();
        let result = memory.bytes(len).and_then(body);
        lock(&self.memories).push(memory);
        result
    }
}

/// The path of a file beside another one.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Bytes of a tuning file, at most: those of some hundred thousand layers.
const MOST_BYTES: u64 = 16 << 20;

/// Reads a tuning file. One that is still to be written may be missing.
fn read(path: &Path, may_be_missing: bool) -> Result<Tuning> {
    let failure = |what: &str, error: &dyn std::fmt::Display| {
        Failure::invalid(format_args!("the option tuning_file: cannot {what} {}: {error}", path.display()))
    };
    match read_text(path) {
        // The error of a text may quote all of a line.
        Ok(text) => text.parse().map_err(|error: convoke::Error| {
            failure("understand", &error.to_string().chars().take(300).collect::<String>())
        }),
        Err(error) if may_be_missing && error.kind() == ErrorKind::NotFound => Ok(Tuning::default()),
        Err(error) => Err(failure("read", &error)),
    }
}

/// The text of a file of limited size. What is no regular file may have no end, or wait for a writer
/// when it is opened.
fn read_text(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it is larger than the limit of {} MiB", MOST_BYTES >> 20)));
    }
    Ok(text)
}

/// Threads for a measurement: onnxruntime lends its pool only to nodes that run.
struct ScopedThreads(usize);

impl Executor for ScopedThreads {
    fn width(&self) -> usize {
        self.0
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for i in 1..count {
                scope.spawn(move || call(i));
            }
            call(0);
        });
    }
}
