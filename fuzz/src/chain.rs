//! Chains: legal and hostile ones up to their plans, and small ones against their layers one after the other.

use arbitrary::{Result, Unstructured};
use convoke::{
    Activation, Algorithm, AutoPad, Chain, ChainRun, Conv, Error, ErrorKind, Geometry, Layout, Machine, Op,
    PackedWeights, Planner, Run, Threads, Workspace, bf16, f16,
};

use crate::layers::{FarAxis, channels, far, integers, is_small, layouts};
use crate::run::{InTurn, Number, Places, accuracy, gap, isa, narrowed, typed};
use crate::with_bytes;

/// Those that take whole numbers to whole numbers, which are exact.
const ACTIVATIONS: [Activation; 4] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { min: -8.0, max: 6.0 },
    Activation::LeakyRelu { alpha: STEEPEST as f32 },
];
const STEEPEST: f64 = 2.0;

/// Errors of planners that are told of an algorithm or a limit.
const NARROW: [ErrorKind; 2] = [ErrorKind::Unavailable, ErrorKind::Workspace];

/// Errors of pixels that are so far apart that tensors would be longer, or are not as long as their channels.
const FAR: [ErrorKind; 3] = [ErrorKind::InvalidShape, ErrorKind::BufferLength, ErrorKind::Overflow];

/// The greatest number in X, in a bias and in the residual.
const GREATEST: i64 = 4;

/// Chains, plans and runs of every kind.
pub fn check(data: &[u8]) {
    with_bytes(data, |u| {
        let case = Case::arbitrary(u)?;
        match u.int_in_range(0..=5)? {
            0..=2 => case.check::<f32>(u),
            3 => case.check::<f64>(u),
            4 => case.check::<f16>(u),
            _ => case.check::<bf16>(u),
        }
    });
}

/// A chain, and how it is planned.
#[derive(Debug)]
struct Case {
    layers: Vec<(Conv, Activation)>,
    x_shape: Vec<usize>,
    /// Those of the layers, up to the first illegal one.
    geometries: Vec<Geometry>,
    /// A planner of any algorithm and workspace, and one that may be narrower.
    planners: [Planner; 2],
    threads: usize,
    /// Kinds of errors, one of which planning gives. Without any, it succeeds.
    mistakes: Vec<ErrorKind>,
}

impl Case {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let rank = u.int_in_range(1..=3)?;
        let mut x_shape = vec![*u.choose(&[1, 1, 1, 2, 2, 3, 0])?, channels(u)?];
        let least = if u.ratio(1, 16)? { 0 } else { 4 };
        for axis in 0..rank {
            x_shape.push(u.int_in_range(least..=[[100, 30, 15][rank - 1], 12, 9][axis])?);
        }
        if u.ratio(1, 16)? {
            let axis = u.choose_index(x_shape.len())?;
            x_shape[axis] = far(u)? as usize;
        }
        let (mut layers, mut geometries, mut mistakes) = (Vec::new(), Vec::<Geometry>::new(), Vec::new());
        let (count, mut shape) = (*u.choose(&[3, 3, 3, 3, 3, 3, 4, 4, 4, 2, 2, 1, 0])?, x_shape.clone());
        let middle = u.int_in_range(0..=count)?;
        for i in 0..count {
            let reads_several = i == middle || u.ratio(1, 32)?;
            let conv = conv(u, &shape, reads_several)?;
            let geometry = conv.geometry(&shape);
            layers.push((conv, *u.choose(&ACTIVATIONS)?));
            match geometry {
                Ok(geometry) => {
                    shape = geometry.output_shape();
                    geometries.push(geometry);
                }
                Err(error) => {
                    mistakes.push(error.kind());
                    break;
                }
            }
        }
        let is_last = |layout| layout == Layout::ChannelsLast;
        let reads_several = geometries
            .iter()
            .map(|geometry| geometry.axes[0])
            .filter(|axis| axis.kernel > 1 || axis.stride > 1 || axis.pad_begin > 0 || axis.pad_end > 0);
        if reads_several.count() > 1 || !geometries.iter().all(|g| is_last(g.x_layout) && is_last(g.y_layout)) {
            mistakes.push(ErrorKind::InvalidShape);
        }
        match layers.last_mut() {
            None => mistakes.push(ErrorKind::InvalidInput),
            Some((_, activation)) if u.ratio(1, 32)? => {
                *activation = Activation::Clip { min: 0.0, max: f32::NAN };
                mistakes.push(ErrorKind::InvalidAttribute);
            }
            Some(_) => {}
        }
        let threads = if u.ratio(1, 32)? { 0 } else { u.int_in_range(1..=3)? };
        if threads == 0 {
            mistakes.push(ErrorKind::Unavailable);
        }
        // With a small cache there are several strips.
        let mut machine = Machine::host().with_isa(isa(u)?);
        machine.l2_bytes = 4096 << *u.choose(&[0, 0, 1, 2, 5])?;
        let free = Planner::new().machine(machine).threads(threads).accuracy(accuracy(u)?);
        let planners = [free.clone(), narrowed(free, 1, u)?];
        Ok(Self { layers, x_shape, geometries, planners, threads, mistakes })
    }

    fn plan<T: Number>(&self, planner: &Planner) -> core::result::Result<Chain<T>, Error> {
        planner.chain(self.layers.clone(), &self.x_shape)
    }

    fn check<T: Number>(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let [free, narrow] = &self.planners;
        let is_small = self.geometries.iter().all(is_small);
        let chain = match self.plan::<T>(narrow) {
            Ok(chain) => chain,
            Err(error) => {
                let is_right = match self.plan::<T>(free) {
                    Ok(_) => self.mistakes.is_empty() && NARROW.contains(&error.kind()),
                    Err(error) => {
                        self.mistakes.contains(&error.kind()) || (error.kind() == ErrorKind::Overflow && !is_small)
                    }
                };
                assert!(is_right, "{error}: {self:?}");
                return Ok(());
            }
        };
        assert!(self.mistakes.is_empty(), "a plan in spite of {:?}: {self:?}", self.mistakes);
        assert_eq!((chain.layers(), chain.input_shape()), (self.layers.len(), self.x_shape.clone()));
        if is_small {
            let operands = Operands::<T>::arbitrary(self, u)?;
            let packed = operands.pack(&chain);
            operands.check(&chain, &packed, self, u.arbitrary()?);
            operands.check_refused(&chain, &packed, self, u)?;
            let again = self.plan::<T>(&free.clone().packed_for(&packed[0]));
            assert_eq!(again.map(|_| ()).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        Ok(())
    }
}

/// A layer on an X of some shape. It has taps, a stride and pads along the first axis only if it is to read several
/// rows.
fn conv(u: &mut Unstructured<'_>, x_shape: &[usize], reads_several: bool) -> Result<Conv> {
    let (c, rank) = (x_shape[1], x_shape.len() - 2);
    let groups: Vec<_> = (1..=8).filter(|group| c % group == 0).collect();
    let (group, m) = match u.int_in_range(0..=3)? {
        0 | 1 => (1, channels(u)?),
        2 => (c.max(1), c.saturating_mul(u.int_in_range(1..=2)?)),
        _ => {
            let group = *u.choose(&groups)?;
            (group, group * u.int_in_range(1..=9)?)
        }
    };
    let c = if u.ratio(63, 64)? { c / group } else { c + 1 };
    let is_pointwise = !reads_several && u.ratio(3, 4)?;
    let (mut w_shape, mut strides, mut dilations, mut pads) = (vec![m, c], vec![], vec![], [vec![], vec![]]);
    for axis in 0..rank {
        let most = if is_pointwise || (axis == 0 && !reads_several) { 0 } else { 3 };
        let mut up_to = |most: i64| u.int_in_range(0..=most);
        let kernel = 1 + up_to(most * [2, 1, 1][rank - 1])?;
        let mut stride = 1 + up_to(most.min(2))?;
        let mut dilation = 1 + up_to(most)? / 2;
        let mut of_axis = [up_to(most)?, up_to(most)?];
        if most > 0
            && u.ratio(1, 32)?
            && let Some(far) = FarAxis::arbitrary(u, Op::Conv, x_shape[2 + axis] as i64, kernel)?
        {
            (stride, dilation, of_axis) = (far.stride, far.dilation, far.pads);
        }
        w_shape.push(kernel as usize);
        strides.push(stride);
        dilations.push(dilation);
        pads.iter_mut().zip(of_axis).for_each(|(pads, pad)| pads.push(pad));
    }
    let conv = Conv::new(w_shape).group(group as i64).strides(strides).dilations(dilations);
    let conv = match *u.choose(&[AutoPad::NotSet, AutoPad::Valid, AutoPad::SameUpper, AutoPad::SameLower])? {
        AutoPad::NotSet => conv.pads(pads.concat()),
        auto_pad => conv.auto_pad(auto_pad),
    };
    let (x, y) = if u.ratio(1, 32)? { layouts(u)? } else { (Layout::ChannelsLast, Layout::ChannelsLast) };
    Ok(conv.layouts(x, y))
}

/// The tensors of a run, in ONNX's order, and how far apart pixels lie in memory.
struct Operands<T> {
    x: Vec<T>,
    w: Vec<Vec<T>>,
    bias: Option<Vec<Vec<T>>>,
    residual: Option<Vec<T>>,
    /// Of X, the residual and Y.
    places: [Places; 3],
}

impl<T: Number> Operands<T> {
    /// Whole numbers, of which one may be replaced by one that is not finite.
    fn arbitrary(case: &Case, u: &mut Unstructured<'_>) -> Result<Self> {
        let [first, .., last] = [&case.geometries[0], &case.geometries[case.geometries.len() - 1]];
        let mut seed = u64::from(u.arbitrary::<u16>()?);
        let mut tensor = |len: usize, most: i64| {
            seed += 1;
            typed::<T>(&integers(len, seed).iter().map(|value| value % (most + 1)).collect::<Vec<_>>())
        };
        let mut x = tensor(first.input_len(), GREATEST);
        // Small weights: numbers grow from layer to layer.
        let mut w: Vec<_> = case.geometries.iter().map(|geometry| tensor(geometry.weight_len(), 1)).collect();
        let bias = u.arbitrary::<bool>()?;
        let bias = bias.then(|| case.geometries.iter().map(|geometry| tensor(geometry.bias_len(), GREATEST)).collect());
        let mut residual = u.arbitrary::<bool>()?.then(|| tensor(last.output_len(), GREATEST));
        if u.ratio(1, 4)? {
            let mut tensors: Vec<_> = w.iter_mut().chain([&mut x]).chain(&mut residual).collect();
            let tensor = u.choose_index(tensors.len())?;
            if !tensors[tensor].is_empty() {
                let at = u.choose_index(tensors[tensor].len())?;
                tensors[tensor][at] = T::of(*u.choose(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN])?);
            }
        }
        let gaps = [gap(u)?, gap(u)?, gap(u)?];
        let ([of_x, ..], [_, of_residual, of_y]) = (Places::of(first, gaps), Places::of(last, gaps));
        Ok(Self { x, w, bias, residual, places: [of_x, of_residual, of_y] })
    }

    fn bias(&self, layer: usize) -> Option<&[T]> {
        self.bias.as_ref().map(|bias| &*bias[layer])
    }

    fn pack(&self, chain: &Chain<T>) -> Vec<PackedWeights<T>> {
        let pack = |i: usize| chain.layer(i).pack(&self.w[i], self.bias(i)).expect("memory suffices");
        (0..chain.layers()).map(pack).collect()
    }

    /// Y of the layers one after the other by the loops of the definition, and how far the chain's may be from it.
    /// None if it may be anything, where values are not finite and sums are not exact.
    fn expected(&self, chain: &Chain<T>, case: &Case) -> Option<(Vec<T>, f64)> {
        let naive = "naive".parse::<Algorithm>().expect("it is in every build");
        let (mut x, mut error) = (self.x.clone(), 0.0);
        for (i, ((conv, activation), geometry)) in case.layers.iter().zip(&case.geometries).enumerate() {
            let conv = conv.clone().layouts(Layout::ChannelsFirst, Layout::ChannelsFirst);
            let planner = Planner::new().algorithm(naive).activation(*activation);
            let plan = planner.plan::<T>(conv, &geometry.input_shape()).expect("it takes every layer");
            let packed = plan.pack(&self.w[i], self.bias(i)).expect("memory suffices");
            let mut y = vec![T::of(f64::NAN); geometry.output_len()];
            let residual = self.residual.as_deref().filter(|_| i + 1 == chain.layers());
            plan.run(Run::new(&x, &packed, &mut y).residual(residual)).expect("lengths are right");

            let products = (geometry.in_channels_per_group() * geometry.kernel_volume()) as f64;
            let magnitude = products * (greatest(&x) + error) + 2.0 * GREATEST as f64;
            error *= products;
            if chain.layer(i).kernel().contains("winograd") || magnitude * T::ROUNDOFF > 1.0 {
                error += (1000.0 + products) * T::ROUNDOFF * magnitude;
            }
            error *= STEEPEST;
            if error > 0.0 {
                let tensors = [&x, &self.w[i], &y];
                if !tensors.into_iter().flatten().chain(residual.unwrap_or(&[])).all(|value| value.value().is_finite())
                {
                    return None;
                }
                // Two values this far apart may be stored in 16 bits one step farther.
                error += (greatest(&y) + error) * if size_of::<T>() == 2 { 1.0 / 256.0 } else { 0.0 };
            }
            x = y;
        }
        Some((x, error))
    }

    /// Runs on one and on several threads, and compares.
    fn check(&self, chain: &Chain<T>, packed: &[PackedWeights<T>], case: &Case, has_workspace: bool) {
        let y = self.run(chain, packed, Threads::Serial, has_workspace);
        let shared = self.run(chain, packed, Threads::Executor(&InTurn(case.threads)), !has_workspace);
        let same = y.iter().zip(&shared).all(|(a, b)| {
            let (a, b) = (a.value(), b.value());
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        });
        assert!(same, "other bits by {} threads: {chain:?}, of {case:?}", case.threads);
        let Some((expected, error)) = self.expected(chain, case) else { return };
        let [.., of_y] = &self.places;
        for (i, (y, expected)) in y.iter().zip(of_y.spread(&expected)).enumerate() {
            let (value, right) = (y.value(), expected.value());
            assert!(is_near(*y, expected, error), "{value} at {i}, not {right}, by {error}: {chain:?}, of {case:?}");
        }
    }

    /// Memory of Y, where NaN is between pixels as before.
    fn run(&self, chain: &Chain<T>, packed: &[PackedWeights<T>], threads: Threads<'_>, has_workspace: bool) -> Vec<T> {
        // Scratch and output are full of NaN before. The workspace has the promised size.
        let mut memory = vec![0xff; chain.workspace_bytes() + 63];
        let mut workspace = Workspace::borrowed(&mut memory);
        let [of_x, of_residual, of_y] = &self.places;
        let (x, residual) = (of_x.spread(&self.x), self.residual.as_ref().map(|values| of_residual.spread(values)));
        let mut y = of_y.spread(&[]);
        let run = ChainRun::new(&x, packed, &mut y).residual(residual.as_deref()).threads(threads);
        let run = of_y.set(of_x.set(run, ChainRun::x_pixel_stride), ChainRun::y_pixel_stride);
        let run = of_residual.set(run, ChainRun::residual_pixel_stride);
        let run = if has_workspace { run.workspace(&mut workspace) } else { run };
        chain.run(run).unwrap_or_else(|error| panic!("{error}: {chain:?}"));
        y
    }

    /// A run with a mistake is refused, and leaves Y as it is.
    fn check_refused(
        &self,
        chain: &Chain<T>,
        packed: &[PackedWeights<T>],
        case: &Case,
        u: &mut Unstructured<'_>,
    ) -> Result<()> {
        let ones = |shape: Vec<usize>| vec![T::of(1.0); shape.iter().product()];
        let (all_x, all_y) = (ones(chain.input_shape()), ones(chain.output_shape()));
        let (mut y, mut others) = (all_y.clone(), packed.to_vec());
        others.rotate_left(1);
        let mut memory = vec![0; chain.workspace_bytes().saturating_sub(1)];
        let mut workspace = Workspace::borrowed(&mut memory);
        let stride = usize::MAX >> u.int_in_range(0..=63)?;

        let mistake = u.int_in_range(0..=8)?;
        let short = |of: i32, len: usize| if mistake == of { len.saturating_sub(1) } else { len };
        let packed = match mistake {
            3 => &packed[1..],
            4 => &others,
            _ => packed,
        };
        let in_turn = InTurn(case.threads + usize::from(mistake == 5));
        let run = ChainRun::new(&all_x[..short(0, all_x.len())], packed, &mut y[..short(1, all_y.len())]);
        let run = run.residual(Some(&all_y[..short(2, all_y.len())])).threads(Threads::Executor(&in_turn));
        let run = match mistake {
            6 => run.workspace(&mut workspace),
            7 => run.x_pixel_stride(stride),
            8 => run.y_pixel_stride(stride),
            _ => run,
        };
        let result = chain.run(run);

        let needs_no = |tensor: &[T], channels: usize| stride == channels || tensor.len() <= channels;
        let (kinds, may_run): (&[_], _) = match mistake {
            0 => (&[ErrorKind::BufferLength], all_x.is_empty()),
            1 | 2 => (&[ErrorKind::BufferLength], all_y.is_empty()),
            3 => (&[ErrorKind::InvalidInput], false),
            4 => {
                let accepts = |(i, packed)| chain.layer(i).accepts(packed).is_ok();
                (&[ErrorKind::PackedMismatch], others.iter().enumerate().all(accepts))
            }
            5 => (&[ErrorKind::Threads], false),
            6 => (&[ErrorKind::Workspace], chain.workspace_bytes() == 0),
            7 => (&FAR, needs_no(&all_x, chain.input_shape()[1])),
            _ => (&FAR, needs_no(&all_y, chain.output_shape()[1])),
        };
        match result {
            Ok(()) => assert!(may_run, "mistake {mistake} is not seen: {chain:?}, of {case:?}"),
            Err(error) => {
                assert!(kinds.contains(&error.kind()), "{error}: {chain:?}, of {case:?}");
                assert!(y.iter().all(|y| y.value() == 1.0), "Y is written in spite of {error}: {chain:?}");
            }
        }
        Ok(())
    }
}

fn greatest<T: Number>(values: &[T]) -> f64 {
    values.iter().map(|value| value.value().abs()).filter(|value| value.is_finite()).fold(0.0, f64::max)
}

fn is_near<T: Number>(a: T, b: T, error: f64) -> bool {
    let (a, b) = (a.value(), b.value());
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= error
}
