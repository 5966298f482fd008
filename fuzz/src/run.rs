//! Plans, packs and runs small layers, and compares with the definition in whole numbers.

use arbitrary::{Result, Unstructured};
use convoke::{
    Accuracy, Activation, Algorithm, Element, Executor, Geometry, Isa, Layout, PackedWeights, Plan, Planner, Run,
    Threads, Workspace, bf16, f16,
};

use crate::layers::{Layer, integers};
use crate::{reference, with_bytes};

/// Layers, plans and runs of every kind.
pub fn check(data: &[u8]) {
    with_bytes(data, |u| {
        let Some((layer, setting)) = case(u)? else { return Ok(()) };
        match u.int_in_range(0..=5)? {
            0..=2 => check_type::<f32>(&layer, &setting, u),
            3 => check_type::<f64>(&layer, &setting, u),
            4 => check_type::<f16>(&layer, &setting, u),
            _ => check_type::<bf16>(&layer, &setting, u),
        }
    });
}

/// A layer that is run, and how. None if the bytes are of none.
pub fn case(u: &mut Unstructured<'_>) -> Result<Option<(Layer, Setting)>> {
    let Some(layer) = Layer::arbitrary(u)? else { return Ok(None) };
    let setting = Setting::arbitrary(u)?;
    Ok(Some((layer.in_layouts(u)?, setting)))
}

/// An element type whose values are made from whole numbers.
pub trait Number: Element {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    /// The unit round-off of sums, for algorithms that are not exact.
    const ROUNDOFF: f64;
}

macro_rules! number {
    ($($type:ty: $of:expr, $value:expr, $roundoff:expr;)+) => {
        $(impl Number for $type {
            fn of(value: f64) -> Self {
                $of(value)
            }

            fn value(self) -> f64 {
                $value(self)
            }

            const ROUNDOFF: f64 = $roundoff;
        })+
    };
}

const SINGLE: f64 = f32::EPSILON as f64 / 2.0;

number! {
    f32: |v| v as f32, f64::from, SINGLE;
    f64: |v| v, |v| v, f64::EPSILON / 2.0;
    f16: f16::from_f64, f16::to_f64, SINGLE;
    bf16: bf16::from_f64, bf16::to_f64, SINGLE;
}

/// How a layer is planned and run.
#[derive(Debug)]
pub struct Setting {
    planner: Planner,
    threads: usize,
    activation: Activation,
    residual: ResidualKind,
    has_bias: bool,
    seed: u64,
    /// Elements between the pixels of X, residual and Y, where channels are last.
    gaps: [Option<usize>; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ResidualKind {
    None,
    Tensor,
    Output,
}

impl Setting {
    pub fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let threads = u.int_in_range(1..=4)?;
        let planner = Planner::new().threads(threads).isa(isa(u)?);
        let planner = narrowed(planner, 3, u)?.accuracy(accuracy(u)?);
        let activation = *u.choose(&[Activation::None, Activation::Relu, Activation::Clip { min: -8.0, max: 6.0 }])?;
        Ok(Self {
            planner: planner.activation(activation),
            threads,
            activation,
            residual: *u.choose(&[ResidualKind::None, ResidualKind::Tensor, ResidualKind::Output])?,
            has_bias: u.arbitrary()?,
            seed: u64::from(u.arbitrary::<u16>()?),
            gaps: [gap(u)?, gap(u)?, gap(u)?],
        })
    }

    pub fn planner(&self) -> &Planner {
        &self.planner
    }
}

/// An ISA that this CPU has.
pub fn isa(u: &mut Unstructured<'_>) -> Result<Isa> {
    let isas: Vec<_> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    Ok(*u.choose(&isas)?)
}

/// Forces an algorithm in some quarters of the cases, and limits the workspace in one.
pub fn narrowed(mut planner: Planner, quarters: u8, u: &mut Unstructured<'_>) -> Result<Planner> {
    if u.ratio(quarters, 4)? {
        planner = planner.algorithm(*u.choose(&Algorithm::all().collect::<Vec<_>>())?);
    }
    if u.ratio(1, 4)? {
        planner = planner.workspace_limit(u.int_in_range(0..=1 << 20)?);
    }
    Ok(planner)
}

pub fn accuracy(u: &mut Unstructured<'_>) -> Result<Accuracy> {
    Ok(*u.choose(&[Accuracy::Standard, Accuracy::Fast, Accuracy::Strict])?)
}

/// Elements between pixels, if the run is told how far pixels are apart.
pub fn gap(u: &mut Unstructured<'_>) -> Result<Option<usize>> {
    Ok(u.int_in_range(0..=9_usize)?.checked_sub(1))
}

/// How the elements of a tensor lie. They are counted in ONNX's order.
pub struct Places {
    layout: Layout,
    len: usize,
    channels: usize,
    positions: usize,
    gap: Option<usize>,
}

impl Places {
    /// Those of X, and of Y for the residual and for itself.
    pub fn of(geometry: &Geometry, [x, residual, y]: [Option<usize>; 3]) -> [Self; 3] {
        let of_x = Self {
            layout: geometry.x_layout,
            len: geometry.input_len(),
            channels: geometry.in_channels,
            positions: geometry.input_spatial(),
            gap: x,
        };
        let of_y = |gap| Self {
            layout: geometry.y_layout,
            len: geometry.output_len(),
            channels: geometry.out_channels,
            positions: geometry.output_spatial(),
            gap,
        };
        [of_x, of_y(residual), of_y(y)]
    }

    /// Where element `i` lies.
    pub fn at(&self, i: usize) -> usize {
        let position = i / self.positions / self.channels * self.positions + i % self.positions;
        match self.layout {
            Layout::ChannelsLast => position * self.pixel() + i / self.positions % self.channels,
            _ => i,
        }
    }

    fn pixel(&self) -> usize {
        self.channels + self.gap.unwrap_or(0)
    }

    /// Memory of the elements, with NaN between pixels.
    pub fn spread<T: Number>(&self, values: &[T]) -> Vec<T> {
        self.spread_among(values, T::of(f64::NAN))
    }

    /// The same, with another value between pixels.
    pub fn spread_among<T: Copy>(&self, values: &[T], between: T) -> Vec<T> {
        let end = self.len.checked_sub(1).map_or(0, |last| self.at(last) + 1);
        let mut memory = vec![between; end];
        values.iter().enumerate().for_each(|(i, value)| memory[self.at(i)] = *value);
        memory
    }

    /// The elements, of which none is NaN. What is between pixels is as before.
    fn gather<T: Number>(&self, memory: &[T]) -> Vec<T> {
        let between = memory.iter().filter(|value| value.value().is_nan()).count();
        assert_eq!(between, memory.len() - self.len, "elements that were not to be written, or were");
        (0..self.len).map(|i| memory[self.at(i)]).collect()
    }

    /// Tells a run how far pixels are apart.
    pub fn set<R>(&self, run: R, set: fn(R, usize) -> R) -> R {
        match self.layout {
            Layout::ChannelsLast if self.gap.is_some() => set(run, self.pixel()),
            _ => run,
        }
    }
}

/// Calls from the calling thread, last call first.
pub struct InTurn(pub usize);

impl Executor for InTurn {
    fn width(&self) -> usize {
        self.0
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        (0..count).rev().for_each(call);
    }
}

fn check_type<T: Number>(layer: &Layer, setting: &Setting, u: &mut Unstructured<'_>) -> Result<()> {
    let operands = Operands::new(&layer.geometry().expect("it was checked"), setting);
    let Ok(plan) = setting.planner.plan::<T>(layer.operator.clone(), &layer.x_shape) else { return Ok(()) };
    let packed = operands.pack(&plan);
    operands.check(&plan, &packed, setting);
    operands.check_poisoned(&plan, u)?;
    // The same weights at another size.
    if let Some(other) = layer.resized(u)? {
        let planner = setting.planner.clone().packed_for(&packed);
        if let Ok(plan) = planner.plan::<T>(other.operator.clone(), &other.x_shape) {
            let resized = Operands::new(plan.geometry(), setting);
            Operands { w: operands.w, bias: operands.bias, ..resized }.check(&plan, &packed, setting);
        }
    }
    Ok(())
}

/// The tensors of a run, in whole numbers.
pub struct Operands {
    x: Vec<i64>,
    w: Vec<i64>,
    bias: Option<Vec<i64>>,
    residual: Vec<i64>,
}

impl Operands {
    pub fn new(geometry: &Geometry, setting: &Setting) -> Self {
        let seed = setting.seed;
        Self {
            x: integers(geometry.input_len(), seed),
            w: integers(geometry.weight_len(), seed + 1),
            bias: setting.has_bias.then(|| integers(geometry.bias_len(), seed + 2)),
            residual: integers(geometry.output_len(), seed + 3),
        }
    }

    pub fn pack<T: Number>(&self, plan: &Plan<T>) -> PackedWeights<T> {
        plan.pack(&typed::<T>(&self.w), self.bias.as_deref().map(typed::<T>).as_deref()).expect("memory suffices")
    }

    /// The same with one value of X, W or the residual that is not finite.
    fn poisoned<T: Number>(&self, u: &mut Unstructured<'_>) -> Result<[Vec<T>; 3]> {
        let mut tensors = [typed::<T>(&self.x), typed::<T>(&self.w), typed::<T>(&self.residual)];
        let tensor = &mut tensors[u.choose_index(3)?];
        if !tensor.is_empty() {
            let at = u.choose_index(tensor.len())?;
            tensor[at] = T::of(*u.choose(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN])?);
        }
        Ok(tensors)
    }

    /// Runs with a value that is not finite, with the residual beside Y and in it.
    fn check_poisoned<T: Number>(&self, plan: &Plan<T>, u: &mut Unstructured<'_>) -> Result<()> {
        let [x, w, residual] = self.poisoned::<T>(u)?;
        let packed = plan.pack(&w, None).expect("memory suffices");
        let workspace = &mut Workspace::for_plan(plan).expect("memory suffices");
        let (mut beside, mut inside) = (residual.clone(), residual.clone());
        let results = [
            plan.run(Run::new(&x, &packed, &mut beside).residual(Some(&residual)).workspace(workspace)).map(|_| ()),
            plan.run(Run::in_place(&x, &packed, &mut inside).workspace(workspace)).map(|_| ()),
        ];
        assert!(results.iter().all(|result| result.is_ok()), "{results:?}: {plan:?}");
        let same = beside.iter().zip(&inside).all(|(a, b)| {
            let (a, b) = (a.value(), b.value());
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        });
        assert!(same, "other values with the residual in Y: {plan:?}");
        Ok(())
    }

    /// Runs on one and on several threads, and compares.
    pub fn check<T: Number>(&self, plan: &Plan<T>, packed: &PackedWeights<T>, setting: &Setting) {
        let y = self.run(plan, packed, setting, Threads::Serial);
        let in_turn = InTurn(setting.threads);
        let shared = self.run(plan, packed, setting, Threads::Executor(&in_turn));
        let same = y.iter().zip(&shared).all(|(a, b)| a.value().to_bits() == b.value().to_bits());
        assert!(same, "other bits by {} threads: {plan:?}", setting.threads);

        let geometry = plan.geometry();
        let products = reference::products(geometry, &self.x, &self.w);
        // What errors of Winograd are proportional to.
        let wide = (geometry.in_channels_per_group() * geometry.kernel_volume() * 16) as f64;
        let is_exact = !plan.kernel().contains("winograd");
        let channels = geometry.out_channels;
        for (i, (y, sum)) in y.iter().zip(products).enumerate() {
            let channel = i / geometry.output_spatial() % channels;
            let residual = if setting.residual == ResidualKind::None { 0 } else { self.residual[i] };
            let sum = (sum + self.bias.as_ref().map_or(0, |bias| bias[channel]) + residual) as f64;
            let expected = T::of(activated(setting.activation, sum)).value();
            let y = y.value();
            let is_right = if is_exact {
                y == expected
            } else {
                let step = (expected.abs() + wide) * if size_of::<T>() == 2 { 1.0 / 256.0 } else { 0.0 };
                (y - expected).abs() <= 1000.0 * T::ROUNDOFF * wide + step
            };
            assert!(is_right, "element {i} is {y}, not {expected}: {plan:?}");
        }
    }

    fn run<T: Number>(
        &self,
        plan: &Plan<T>,
        packed: &PackedWeights<T>,
        setting: &Setting,
        threads: Threads<'_>,
    ) -> Vec<T> {
        // Scratch and output are full of NaN before. The workspace has the promised size.
        let mut memory = vec![0xff; plan.workspace_bytes() + 63];
        let workspace = &mut Workspace::borrowed(&mut memory);
        let [of_x, of_residual, of_y] = Places::of(plan.geometry(), setting.gaps);
        let (x, residual) = (of_x.spread(&typed::<T>(&self.x)), of_residual.spread(&typed::<T>(&self.residual)));
        let held = if setting.residual == ResidualKind::Output { typed::<T>(&self.residual) } else { Vec::new() };
        let mut y = of_y.spread(&held);
        let run = match setting.residual {
            ResidualKind::None => Run::new(&x, packed, &mut y),
            ResidualKind::Tensor => Run::new(&x, packed, &mut y).residual(Some(&residual)),
            ResidualKind::Output => Run::in_place(&x, packed, &mut y),
        };
        let run = of_residual.set(of_x.set(run, Run::x_pixel_stride), Run::residual_pixel_stride);
        let run = of_y.set(run, Run::y_pixel_stride);
        let result = plan.run(run.workspace(workspace).threads(threads)).map(|_| ());
        result.unwrap_or_else(|error| panic!("{error}: {plan:?}"));
        of_y.gather(&y)
    }
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::Clip { min, max } => x.max(f64::from(min)).min(f64::from(max)),
        _ => x,
    }
}

pub fn typed<T: Number>(values: &[i64]) -> Vec<T> {
    values.iter().map(|value| T::of(*value as f64)).collect()
}
