//! Plans, runs, times and checks one layer after the other, with one choice of instruction set,
//! algorithm and threads.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use convoke::{Algorithm, Geometry, Isa, Operator, Planner, Workspace};
use convoke_tools::data::{Numbers, tensor};
use convoke_tools::limits::{Caches, Roof};
use convoke_tools::shapes::{LayerKind, describe, flops};
use convoke_tools::timing::{Evictor, Timing, touch};
use serde::Serialize;

use crate::interrupt;
use crate::layer_plan::{Io, LayerPlan, PlanFacts};
use crate::machine::free_memory;
use crate::options::Team;
use crate::output::text::{Column, bytes, percent, seconds};
use convoke_tools::named;

/// Elements of each output that are compared with the reference. More would make the reports
/// slow.
const SAMPLES: usize = 500;
/// Seconds that one run may take if it reaches its limit. A layer has at least five runs, and
/// Ctrl-C cannot stop a run.
const LONGEST_RUN_SECONDS: f64 = 20.0;

/// The columns that `report` and `profile` have in common, for the end of their help.
pub(crate) const COLUMNS: &str = "\
A terminal of 80 columns has room for five of these, a wider one for more, and --wide shows all:

  geometry      X -> Y, kernel k, stride s, pads p (begin:end), dilation d, groups g
  algorithm     what the plan picked; of bytes, what the kernel multiplies
  kernel        instruction set and micro-kernel
  best, median  time of one run
  GFLOP/s       of the best time; two operations a multiply-add of the definition, taps on
                padding included
  FMA           share of the FMA peak: the rate of the fastest micro-kernel from the L1 cache on
                that many threads
  limit         what bounds direct arithmetic: FMA, or the read bandwidth of the cache level (L1,
                L2, L3) or memory (DRAM) that holds input, weights and output
  of limit      the time at that limit as a share of the best time
  workspace     bytes that a run borrows
  packed        bytes of the packed weights and bias

Both shares may exceed 100 % if fewer multiply-adds are made than the definition has: by
Winograd, or by leaving out taps that see only padding. The share of the limit may also exceed
it by a little if a layer just exceeds a cache, because a part of its data is in the cache.";

/// What makes shares exceed 100 %. It is printed with all such shares.
pub(crate) const ABOVE_100: &str = "Shares above 100 % have two causes. Some layers make fewer multiply-adds than the definition has, by Winograd or by leaving \
    out taps that see only padding (large dilations, small images). Layers that just exceed a cache find a part of their data there, and exceed the limit \
    by a little.";

/// The figures of one layer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub(crate) kind: String,
    pub(crate) geometry: String,
    pub(crate) algorithm: String,
    pub(crate) isa: String,
    pub(crate) kernel: String,
    pub(crate) seconds_best: f64,
    pub(crate) seconds_median: f64,
    pub(crate) reps: usize,
    /// Operations of the definition.
    pub(crate) flop: f64,
    pub(crate) gflops: f64,
    /// Share of the FMA peak.
    pub(crate) share_of_peak: f64,
    /// Bytes of Y, and of the used part of X, W and B.
    pub(crate) compulsory_bytes: f64,
    /// `FMA`, `L1`, `L2`, `L3` or `DRAM`.
    pub(crate) limit: String,
    /// The time of a run at that limit.
    pub(crate) seconds_at_limit: f64,
    pub(crate) share_of_limit: f64,
    pub(crate) workspace_bytes: usize,
    pub(crate) packed_bytes: usize,
    pub(crate) max_error: f64,
    pub(crate) error_of_bound: f64,
    pub(crate) within_bound: bool,
}

impl Figures {
    /// The heads of [`cells`](Self::cells).
    pub(crate) const HEADS: [&str; 11] = [
        "geometry",
        "algorithm",
        "kernel",
        "best",
        "median",
        "GFLOP/s",
        "FMA",
        "limit",
        "of limit",
        "workspace",
        "packed",
    ];

    /// The heads that tables show on a narrow terminal, besides the name's.
    pub(crate) const FIRST: [&str; 4] = ["algorithm", "best", "GFLOP/s", "of limit"];

    /// The columns of [`cells`](Self::cells), for geometries up to `geometry` characters.
    pub(crate) fn columns(geometry: usize) -> Vec<Column> {
        let algorithm = Algorithm::all().map(|algorithm| algorithm.name().len()).max().unwrap_or_default();
        let column = |head| match head {
            "geometry" => Column::text(head, geometry),
            "algorithm" => Column::text(head, algorithm),
            "kernel" => Column::text(head, 28),
            "limit" => Column::text(head, 5),
            "FMA" => Column::number(head, 5),
            "GFLOP/s" | "of limit" => Column::number(head, 7),
            _ => Column::number(head, 9),
        };
        Self::HEADS.map(column).into()
    }

    /// The figures as cells of a table.
    pub(crate) fn cells(&self) -> [String; 11] {
        [
            self.geometry.clone(),
            self.algorithm.clone(),
            format!("{} {}", self.isa, self.kernel),
            seconds(self.seconds_best),
            seconds(self.seconds_median),
            format!("{:.1}", self.gflops),
            percent(self.share_of_peak),
            self.limit.clone(),
            percent(self.share_of_limit),
            bytes(self.workspace_bytes),
            bytes(self.packed_bytes),
        ]
    }

    /// What is wrong with the result of the layer of this name.
    pub(crate) fn wrong(&self, name: &str) -> String {
        format!("{name}: error {:.1e}, {:.1} times its bound", self.max_error, self.error_of_bound)
    }

    /// Whether a share needs the explanation [`ABOVE_100`].
    pub(crate) fn is_above_100(&self) -> bool {
        self.share_of_peak.max(self.share_of_limit) > 1.0
    }

    /// Whether the layer was run by Winograd.
    pub(crate) fn is_winograd(&self) -> bool {
        self.algorithm == named("winograd").name()
    }
}

/// A layer that was not run, or not to its end.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) error: String,
}

impl Failure {
    pub(crate) fn new(name: &str, error: &anyhow::Error) -> Self {
        Self { name: name.to_owned(), error: format!("{error:#}") }
    }
}

/// The operator and the shapes of a layer in a cell of a table.
pub(crate) fn geometry_text(geometry: &Geometry) -> String {
    format!("{} {}", geometry.op, describe(geometry))
}

/// How many of the layers were measured, if the measurement was interrupted or some could not be
/// run.
pub(crate) fn partial(
    measured: usize,
    asked: usize,
    what: &str,
    interrupted: bool,
    failed: &[Failure],
) -> Option<String> {
    let why = match () {
        () if interrupted => "Interrupted",
        () if !failed.is_empty() => "Partial",
        () => return None,
    };
    Some(format!("{why}: {measured} of {asked} {what}"))
}

/// An error if this machine has too little memory to run a plan: operands, output, packed weights
/// and workspace. It is checked before, because systems promise more memory than they have, and
/// end the program when it is used.
pub(crate) fn ensure_fits<P: LayerPlan>(plan: &P) -> Result<()> {
    let PlanFacts { geometry, workspace_bytes, packed_bytes, .. } = plan.facts();
    let lens = [geometry.input_len(), geometry.weight_len(), geometry.bias_len(), geometry.output_len()];
    let elements: u128 = lens.iter().map(|&len| len as u128).sum();
    let own = (packed_bytes as u128) + (workspace_bytes as u128);
    let (needed, free) = (elements * size_of::<P::Element>() as u128 + own, free_memory());
    ensure!(
        needed <= free.into(),
        "{} needs {}, and {} are free",
        describe(geometry),
        bytes(usize::try_from(needed).unwrap_or(usize::MAX)),
        bytes(free as usize)
    );
    Ok(())
}

/// One choice of how to run layers, and the limits that belong to it.
pub(crate) struct Session {
    planner: Planner,
    numbers: Numbers,
    threads: usize,
    team: Team,
    seconds: Duration,
    /// If it is there, it empties the caches before each run.
    evictor: Option<Evictor>,
    roofs: BTreeMap<Isa, Roof>,
}

impl Session {
    /// Runs layers by this planner on `threads` threads, and times each for `seconds`.
    pub(crate) fn new(
        planner: Planner,
        numbers: impl Into<Numbers>,
        threads: usize,
        seconds: Duration,
    ) -> Result<Self> {
        let planner = planner.threads(threads);
        let team = Team::new(threads)?;
        let numbers = numbers.into();
        Ok(Self { planner, numbers, threads, team, seconds, evictor: None, roofs: BTreeMap::new() })
    }

    /// Whether the caches are emptied before each run. X is then read again, as if the layer
    /// before had just written it.
    pub(crate) fn cold(mut self, is_cold: bool) -> Self {
        self.evictor = is_cold.then(|| {
            let Caches { l1, l2, l3 } = Caches::of_this_machine();
            Evictor::new(l1 + l2 + l3)
        });
        self
    }

    /// Plans, packs, runs, times and checks one layer.
    ///
    /// It fails if the planner rejects the layer, if the layer is too large for this machine, and
    /// after Ctrl-C ([`interrupt::Interrupted`]).
    pub(crate) fn run<P: LayerPlan>(&mut self, operator: &Operator, x: &[usize]) -> Result<(Figures, P)> {
        let plan = P::new(&self.planner, operator.clone(), x)?;
        let PlanFacts { geometry, pick, isa, kernel, workspace_bytes, packed_bytes } = plan.facts();
        ensure_fits(&plan)?;
        let roof = self.roof(isa)?;
        let (peak, bound) = (roof.fma, roof.bound(geometry, size_of::<P::Element>()));
        ensure!(
            bound.seconds <= LONGEST_RUN_SECONDS,
            "{}: one run takes {} at least, and {} are the most",
            describe(geometry),
            seconds(bound.seconds),
            seconds(LONGEST_RUN_SECONDS)
        );
        let operands = plan.operands();
        let (x, packed) = (P::x(&operands), plan.pack(&operands)?);
        let mut y = tensor(std::iter::repeat_n(P::unwritten(), geometry.output_len()));
        let mut workspace = Workspace::with_bytes(workspace_bytes)?;
        let prepare = || {
            if let Some(evictor) = &self.evictor {
                self.team.on_each_thread(|| evictor.evict());
                touch(x);
            }
        };
        let timing = self.team.install(|threads| {
            Timing::measure_after(self.seconds, prepare, || {
                interrupt::check()?;
                plan.run(&packed, Io { x, y: &mut y, workspace: &mut workspace, threads })
            })
        })?;
        let worst = plan.worst(&operands, &y, SAMPLES);
        let flop = flops(geometry);
        let gflops = flop / timing.min / 1e9;
        let figures = Figures {
            kind: LayerKind::of(geometry).to_string(),
            geometry: geometry_text(geometry),
            algorithm: pick.to_owned(),
            isa: isa.to_string(),
            kernel: kernel.to_owned(),
            seconds_best: timing.min,
            seconds_median: timing.median,
            reps: timing.reps,
            flop,
            gflops,
            share_of_peak: gflops / peak,
            compulsory_bytes: bound.bytes,
            limit: bound.limit.to_string(),
            seconds_at_limit: bound.seconds,
            share_of_limit: bound.seconds / timing.min,
            workspace_bytes,
            packed_bytes,
            max_error: worst.error,
            error_of_bound: worst.of_tolerance,
            within_bound: worst.is_within(),
        };
        Ok((figures, plan))
    }

    /// The number of threads that layers run on.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The limits that were measured so far.
    pub(crate) fn roofs(&self) -> &BTreeMap<Isa, Roof> {
        &self.roofs
    }

    /// The limits of an ISA. They are measured when they are first needed.
    fn roof(&mut self, isa: Isa) -> Result<&Roof> {
        match self.roofs.entry(isa) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let roof = Roof::measure(self.numbers, isa, self.threads);
                Ok(entry.insert(roof.with_context(|| format!("no kernel for {isa}"))?))
            }
        }
    }
}
