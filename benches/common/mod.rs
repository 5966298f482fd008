//! What the benches share: throughput in GFLOP/s, layers as rows, and the tables at the end of a
//! run.

#![allow(dead_code, unreachable_pub, reason = "each bench uses a part of this module")]

mod baseline;

use std::cell::{Cell, LazyCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use baseline::Baseline;
use convoke::{Algorithm, DType, ErrorKind, Op, PackedWeights, Plan, Planner, Workspace};
use convoke_tools::data::{Operands, Tensor, tensor};
use convoke_tools::limits::Roof;
use convoke_tools::named;
use convoke_tools::shapes::{self, Layer, LayerKind, describe, flops};
use convoke_tools::timing::geometric_mean;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput};

/// The environment variable that makes the layer benches run every layer of `benches/shapes`
/// instead of a selection, if it is `all`.
const ENV_LAYERS: &str = "CONVOKE_BENCH";

/// Criterion with GFLOP/s, and with times that let a full pass take minutes.
pub fn criterion() -> Criterion<FlopRate> {
    criterion_with(FlopRate::default())
}

/// The same as [`criterion`], with rates as shares of a measurement's yardstick.
pub fn criterion_with(measurement: FlopRate) -> Criterion<FlopRate> {
    Criterion::default()
        .with_measurement(measurement)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .nresamples(10_000)
        .without_plots()
        .configure_from_args()
}

/// Wall-clock time. `Throughput::Elements` counts floating-point operations, and is printed as
/// GFLOP/s. `BytesDecimal` is printed as GB/s.
#[derive(Debug, Default)]
pub struct FlopRate {
    formatter: Formatter,
}

impl FlopRate {
    /// The rate that other rates are printed as shares of.
    pub fn yardstick(&self) -> Rc<Cell<Yardstick>> {
        Rc::clone(&self.formatter.yardstick)
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

/// A rate, and its name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Yardstick {
    /// GFLOP/s; 0 if there is no yardstick.
    pub gflops: f64,
    /// The name in `90 % of <name>`.
    pub name: &'static str,
}

/// Prints times as criterion does, and throughputs as GFLOP/s or GB/s.
#[derive(Debug, Default)]
struct Formatter {
    yardstick: Rc<Cell<Yardstick>>,
}

/// The rate of a throughput in a number of nanoseconds, and its unit.
fn rate(throughput: &Throughput, nanoseconds: f64) -> (f64, &'static str) {
    match throughput {
        Throughput::Elements(flops) => (*flops as f64 / nanoseconds, "GFLOP/s"),
        Throughput::BytesDecimal(bytes) => (*bytes as f64 / nanoseconds, "GB/s"),
        other => panic!("the benches count floating-point operations or bytes, not {other:?}"),
    }
}

impl ValueFormatter for Formatter {
    fn format_throughput(&self, throughput: &Throughput, value: f64) -> String {
        let (rate, unit) = rate(throughput, value);
        match (self.yardstick.get(), throughput) {
            (Yardstick { gflops, name }, Throughput::Elements(_)) if gflops > 0.0 => {
                format!("{rate:.1} {unit} ({:.0} % of {name})", 100.0 * rate / gflops)
            }
            _ => format!("{rate:.1} {unit}"),
        }
    }

    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(&self, _: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        for value in values {
            *value = rate(throughput, *value).0;
        }
        rate(throughput, 1.0).1
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}

/// The layers of an operator: those of `selection`, or all with `CONVOKE_BENCH=all`.
fn layers(op: Op, selection: &[&str]) -> Vec<Layer> {
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

/// Multiply-adds up to which the naive loops are timed too. More would take longer than a tenth
/// of a second for each run.
const NAIVE_MACS: u128 = 1 << 25;

/// Says how to get the baselines over other crates, which are no default features.
fn say_missing_baselines() {
    if !cfg!(all(feature = "blas-gemm", feature = "blas-matrixmultiply")) {
        println!("Not all baselines: add --features blas-gemm,blas-matrixmultiply\n");
    }
}

/// Benches the layers of an operator by kind, in f32 on one thread. Each layer is a group with
/// the name `kind/layer`. It has a row for the planner's pick, and one for each algorithm that
/// accepts the layer. Packing is not timed. The geometric means by kind and by network come at
/// the end.
pub fn bench_layers(op: Op, selection: &[&str]) {
    say_missing_baselines();
    let rates = FlopRate::default();
    let yardstick = rates.yardstick();
    let mut criterion = criterion_with(rates);
    let geometry = |layer: Layer| {
        let geometry = layer.geometry().expect("reading the layer validated it");
        (layer, geometry)
    };
    let mut layers: Vec<_> = layers(op, selection).into_iter().map(geometry).collect();
    // The sort is stable, so that the layers of a network stay together.
    layers.sort_by_key(|(_, geometry)| LayerKind::of(geometry));
    let mut roofs = BTreeMap::new();
    let mut rows = Vec::new();
    let mut baseline = Baseline::from_args(&op.to_string());
    for (layer, geometry) in layers {
        let kind = LayerKind::of(&geometry);
        let operands = LazyCell::new(|| Operands::<f32>::new(&geometry));
        let name = format!("{}/{}", kind.to_string().replace(' ', "-"), layer.name);
        let mut group = criterion.benchmark_group(&name);
        group.throughput(Throughput::Elements(flops(&geometry) as u64));
        let mut seconds = BTreeMap::new();
        let mut limit = f64::NAN;
        for algorithm in [None].into_iter().chain(Algorithm::all().map(Some)) {
            if algorithm == Some(named("naive")) && geometry.macs() > NAIVE_MACS {
                continue;
            }
            let planner = algorithm.map_or(Planner::new(), |algorithm| Planner::new().algorithm(algorithm));
            let plan = match planner.plan::<f32>(layer.operator(), &layer.x) {
                Ok(plan) => plan,
                Err(error) if algorithm.is_some() && error.kind() == ErrorKind::Unavailable => continue,
                Err(error) => panic!("{}: {error}", layer.name),
            };
            let mut run = None;
            let mut best = f64::INFINITY;
            group.bench_function(algorithm.map_or("plan", Algorithm::name), |b| {
                // It is made when the row is first run. A filter may prevent that.
                let run = run.get_or_insert_with(|| {
                    let roof = roofs
                        .entry(plan.isa())
                        .or_insert_with(|| Roof::measure(DType::F32, plan.isa(), 1).expect("the plan's ISA is there"));
                    let bound = roof.bound(&geometry, size_of::<f32>());
                    limit = bound.seconds;
                    yardstick.set(Yardstick { gflops: flops(&geometry) / limit / 1e9, name: "limit" });
                    if algorithm.is_none() {
                        let (layer, picks, rate) = (&layer.name, plan.algorithm(), yardstick.get().gflops);
                        // On a line of its own, after criterion's progress.
                        println!(
                            "\n{layer}: {}: {picks}; limit {}, {rate:.0} GFLOP/s",
                            describe(&geometry),
                            bound.limit
                        );
                    }
                    Run::new(&plan, &operands)
                });
                b.iter_custom(|iterations| {
                    let start = Instant::now();
                    for _ in 0..iterations {
                        run.once();
                    }
                    let elapsed = start.elapsed();
                    best = best.min(elapsed.as_secs_f64() / iterations as f64);
                    elapsed
                });
            });
            if best.is_finite() {
                baseline.record(format!("{name}/{}", algorithm.map_or("plan", Algorithm::name)), best);
                seconds.insert(algorithm.map(Algorithm::name), best);
            }
        }
        group.finish();
        if seconds.contains_key(&None) {
            rows.push(Row {
                kind: kind.to_string(),
                network: layer.network().to_owned(),
                flops: flops(&geometry),
                limit,
                seconds,
            });
        }
    }
    criterion.final_summary();
    // With `--test`, criterion runs everything once, and there are no times.
    if !std::env::args().any(|argument| argument == "--test") {
        summarise("kind", &rows, |row| &row.kind);
        summarise("network", &rows, |row| &row.network);
        baseline.close();
    }
}

/// The fastest samples of one layer.
struct Row {
    kind: String,
    network: String,
    flops: f64,
    /// Seconds of a run at the limit.
    limit: f64,
    /// The best seconds by the algorithm that was forced. The planner's pick has the key `None`.
    seconds: BTreeMap<Option<&'static str>, f64>,
}

/// Prints the geometric means of groups of layers.
fn summarise(by: &str, rows: &[Row], key: impl Fn(&Row) -> &String) {
    const BASELINES: [&str; 7] = [
        "im2col:native",
        "im2col:gemm",
        "im2col:matrixmultiply",
        "col2im:native",
        "col2im:gemm",
        "col2im:matrixmultiply",
        "naive",
    ];
    let mut groups = BTreeMap::<&String, Vec<&Row>>::new();
    rows.iter().for_each(|row| groups.entry(key(row)).or_default().push(row));
    let is_timed = |name: &&'static str| rows.iter().any(|row| row.seconds.contains_key(&Some(*name)));
    let baselines: Vec<_> = BASELINES.into_iter().filter(is_timed).collect();
    if rows.is_empty() {
        return;
    }
    let columns: String = baselines.iter().map(|name| format!(" {name:>22}")).collect();
    println!("\nThe planner's pick: geometric means by {by}; how many times as fast as each baseline");
    println!("{by:<16} {:>6} {:>8} {:>9}{columns}", "layers", "GFLOP/s", "of limit");
    for (name, group) in groups {
        let mean = |value: &dyn Fn(&Row) -> Option<f64>| geometric_mean(group.iter().filter_map(|row| value(row)));
        let plan = |row: &Row| row.seconds[&None];
        let rate = mean(&|row| Some(row.flops / plan(row) / 1e9));
        let share = mean(&|row| Some(row.limit / plan(row)));
        let times = |baseline: &&'static str| match mean(&|row| Some(row.seconds.get(&Some(*baseline))? / plan(row))) {
            ratio if ratio.is_nan() => format!(" {:>22}", "-"),
            ratio => format!(" {ratio:>22.1}"),
        };
        let cells: String = baselines.iter().map(times).collect();
        println!("{name:<16} {:>6} {rate:>8.1} {:>7.0} %{cells}", group.len(), 100.0 * share);
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
        // This run touches every page and fills the caches, because quick mode has no warm-up.
        run.once();
        run
    }

    fn once(&mut self) {
        let Self { plan, x, packed, y, workspace } = self;
        plan.run(convoke::Run::new(x, packed, y).workspace(workspace)).expect("lengths are the geometry's");
    }
}
