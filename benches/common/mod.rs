//! What the benches share: GFLOP/s as criterion's throughput, and layers as rows.

#![allow(dead_code, unreachable_pub, reason = "each bench uses a part of this module")]

use std::cell::{Cell, LazyCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use convoke::{Algorithm, ErrorKind, Op, PackedWeights, Plan, Planner, Threads, Workspace};
use convoke_tools::data::{Operands, Tensor, tensor};
use convoke_tools::shapes::{self, Layer, describe, flops};
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput};

/// Set to `all`, it makes the layer benches run every layer of `benches/shapes`, not only a selection.
const ENV_LAYERS: &str = "CONVOKE_BENCH";

/// Criterion with GFLOP/s, and with times that let a full pass take minutes.
pub fn criterion() -> Criterion<FlopRate> {
    Criterion::default()
        .with_measurement(FlopRate::default())
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .nresamples(10_000)
        .without_plots()
        .configure_from_args()
}

/// Wall-clock time; `Throughput::Elements` counts floating-point operations, and is printed as GFLOP/s.
#[derive(Debug, Default)]
pub struct FlopRate {
    formatter: Formatter,
}

impl FlopRate {
    /// The rate that others are printed as a share of, in GFLOP/s; 0 for none.
    pub fn peak(&self) -> Rc<Cell<f64>> {
        Rc::clone(&self.formatter.peak)
    }
}

impl Measurement for FlopRate {
    type Intermediate = Instant;
    type Value = Duration;

    fn start(&self) -> Instant {
        WallTime.start()
    }

    fn end(&self, start: Instant) -> Duration {
        WallTime.end(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        WallTime.add(a, b)
    }

    fn zero(&self) -> Duration {
        WallTime.zero()
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &self.formatter
    }
}

/// Prints times as criterion does, and throughputs as GFLOP/s.
#[derive(Debug, Default)]
struct Formatter {
    peak: Rc<Cell<f64>>,
}

/// GFLOP/s from operations (or whatever else was counted) in a number of nanoseconds.
fn gflops(throughput: &Throughput, nanoseconds: f64) -> f64 {
    match throughput {
        Throughput::Elements(flops) => *flops as f64 / nanoseconds,
        other => panic!("the benches count floating-point operations, not {other:?}"),
    }
}

impl ValueFormatter for Formatter {
    fn format_throughput(&self, throughput: &Throughput, value: f64) -> String {
        let rate = gflops(throughput, value);
        match self.peak.get() {
            0.0 => format!("{rate:.1} GFLOP/s"),
            peak => format!("{rate:.1} GFLOP/s ({:.0} % of peak)", 100.0 * rate / peak),
        }
    }

    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(&self, _: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        for value in values {
            *value = gflops(throughput, *value);
        }
        "GFLOP/s"
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}

/// The layers of an operator: those of `selection`, or all with `CONVOKE_BENCH=all`.
pub fn layers(op: Op, selection: &[&str]) -> Vec<Layer> {
    let mut layers = shapes::built_in();
    layers.retain(|layer| layer.op == op);
    for name in selection {
        assert!(layers.iter().any(|layer| layer.name == *name), "no {op} layer {name} in benches/shapes");
    }
    match std::env::var(ENV_LAYERS) {
        Ok(value) if value == "all" => {}
        Ok(value) => panic!("{ENV_LAYERS}={value}: expected all, or the variable unset"),
        Err(_) => layers.retain(|layer| selection.contains(&layer.name.as_str())),
    }
    layers
}

/// One group a layer: a row for the planner's pick, and one for each algorithm that accepts the layer (the naive one aside), in f32 on one
/// thread. Packing is outside the timed part.
pub fn bench_layers(criterion: &mut Criterion<FlopRate>, layers: &[Layer]) {
    for layer in layers {
        let geometry = layer.geometry().expect("reading the layer validated it");
        let operands = LazyCell::new(|| Operands::<f32>::new(&geometry));
        let mut group = criterion.benchmark_group(&layer.name);
        group.throughput(Throughput::Elements(flops(&geometry) as u64));
        let forced = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Naive);
        for algorithm in [None].into_iter().chain(forced.map(Some)) {
            let planner = algorithm.map_or(Planner::new(), |algorithm| Planner::new().algorithm(algorithm));
            let plan = match planner.plan::<f32>(layer.operator(), &layer.x) {
                Ok(plan) => plan,
                Err(error) if algorithm.is_some() && error.kind() == ErrorKind::Unavailable => continue,
                Err(error) => panic!("{}: {error}", layer.name),
            };
            let mut run = None;
            group.bench_function(algorithm.map_or("plan", Algorithm::name), |b| {
                // Made when the row is first run, which a filter may prevent.
                let run = run.get_or_insert_with(|| {
                    if algorithm.is_none() {
                        eprintln!("{}: {}, the plan picks {}", layer.name, describe(&geometry), plan.algorithm());
                    }
                    Run::new(&plan, &operands)
                });
                b.iter(|| run.once());
            });
        }
        group.finish();
    }
}

/// A plan with everything that its runs need.
struct Run<'a> {
    plan: &'a Plan<f32>,
    x: &'a [f32],
    packed: PackedWeights<f32>,
    y: Tensor<f32>,
    workspace: Workspace<'static>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan<f32>, operands: &'a Operands<f32>) -> Self {
        let mut run = Self {
            plan,
            x: &operands.x,
            packed: plan.pack(&operands.w, Some(&operands.b)).expect("lengths are the geometry's"),
            y: tensor(std::iter::repeat_n(0.0, plan.geometry().output_len())),
            workspace: Workspace::for_plan(plan).expect("enough memory"),
        };
        // Touches every page, and fills the caches: quick mode has no warm-up of its own.
        run.once();
        run
    }

    fn once(&mut self) {
        let Self { plan, x, packed, y, workspace } = self;
        plan.run(x, packed, y, workspace, Threads::Serial).expect("lengths are the geometry's");
    }
}
