//! What `Accuracy` promises: the bound of Winograd's errors, on data that are built to break it.

use std::collections::BTreeSet;
use std::f64::consts::PI;

use crate::common::{Combination, Layer, Operands, is_short, isas, layer};
use convoke::{Accuracy, Conv, ConvTranspose, Element, Geometry, Machine, Op, Plan, Planner, reference};
use convoke_kernels::winograd::{Tile, filter_rows};
use convoke_kernels::{Real, WinogradKernel, winograd_kernels};
use convoke_tools::data::{Random, Scalar};
use convoke_tools::named;

/// The transforms of a tile along one axis: its finite points, in the order of its values. Infinity
/// is the last value.
struct Transforms {
    tile: Tile,
    points: Vec<f64>,
}

impl Transforms {
    fn new(tile: Tile) -> Self {
        // A row of the filter's transform has the powers of a point, with a common factor.
        let rows = if tile == Tile::NONE { vec![vec![]] } else { filter_rows(tile.values, 2) };
        Self { tile, points: rows[..tile.values - 1].iter().map(|row| row[1] / row[0]).collect() }
    }

    /// The product of `x - b` over the finite points b but those of some values, from the lowest
    /// coefficient on.
    fn polynomial(&self, without: &[usize]) -> Vec<f64> {
        let kept = self.points.iter().enumerate().filter(|(value, _)| !without.contains(value));
        kept.fold(vec![1.0], |product, (_, point)| {
            let (mut low, mut high) = (product.clone(), product);
            low.push(0.0);
            high.insert(0, 0.0);
            high.iter().zip(low).map(|(high, low)| high - point * low).collect()
        })
    }

    /// Row `value` of B.
    fn input(&self, value: usize) -> Vec<f64> {
        self.polynomial(&[value])
    }

    /// The factor of input k in the steps by which `value` is computed, as a magnitude. With a single
    /// point c, differences `d[k + 1] - c d[k]` are computed first.
    fn input_magnitudes(&self, value: usize) -> Vec<f64> {
        let single = self.tile.values.saturating_sub(2);
        if self.tile.values.is_multiple_of(2) || self.tile == Tile::NONE || value == single {
            return self.input(value).iter().map(|factor| factor.abs()).collect();
        }
        let (c, mut sums) = (self.points[single].abs(), vec![0.0; self.tile.values]);
        for (k, factor) in self.polynomial(&[value, single]).iter().enumerate() {
            sums[k] += factor.abs() * c;
            sums[k + 1] += factor.abs();
        }
        sums
    }

    /// The factor of tap `tap` of `taps` in `value`: an element of G.
    fn filter(&self, value: usize, tap: usize, taps: usize) -> f64 {
        let Some(point) = self.points.get(value) else { return f64::from(u8::from(tap + 1 == taps)) };
        let others = self.points.iter().enumerate().filter(|(other, _)| *other != value);
        point.powi(tap as i32) / others.map(|(_, other)| point - other).product::<f64>()
    }

    /// The factor of `value` in output `output` of `outputs`: an element of A.
    fn output(&self, value: usize, output: usize, outputs: usize) -> f64 {
        match self.points.get(value) {
            Some(point) => point.powi(output as i32),
            None => f64::from(u8::from(output + 1 == outputs)),
        }
    }

    /// The greatest sum over `values` of |A| |G| |B| |inputs| for any output below `outputs` and any
    /// tap, with that output and tap.
    fn amplification(&self, values: &[usize], inputs: &[f64], outputs: usize) -> (f64, usize, usize) {
        let reached = |value: usize| -> f64 {
            self.input_magnitudes(value).iter().zip(inputs).map(|(factor, input)| factor * input).sum()
        };
        let of = |output: usize, tap: usize| {
            let both = |value: usize| {
                self.output(value, output, self.tile.outputs) * self.filter(value, tap, self.tile.taps())
            };
            (values.iter().map(|&value| both(value).abs() * reached(value)).sum(), output, tap)
        };
        let all = (0..outputs).flat_map(|output| (0..self.tile.taps()).map(move |tap| of(output, tap)));
        all.max_by(|a: &(f64, _, _), b| a.0.total_cmp(&b.0)).unwrap()
    }

    fn whole(&self) -> (f64, usize, usize) {
        let values: Vec<_> = (0..self.tile.values).collect();
        self.amplification(&values, &vec![1.0; self.tile.values], self.tile.outputs)
    }

    /// The same where the last `count` outputs are not wanted: for the values that are kept, and for
    /// all values. The last inputs are then sums of the others, as `convoke_kernels::winograd::Spare`
    /// describes.
    fn with_spare(&self, count: usize) -> [f64; 2] {
        let (n, pairs) = (self.tile.values, self.tile.values / 2 - 1);
        let known = n - count;
        let is_kept = |value: usize| match value {
            0 => known % 2 == 1,
            _ => value < n - 1 && (value - 1) / 2 >= pairs - known / 2,
        };
        let (kept, dropped): (Vec<_>, Vec<_>) = (0..n).partition(|value| is_kept(*value));
        let recurrence = self.polynomial(&dropped);
        let mut inputs: Vec<Vec<f64>> =
            (0..known).map(|i| (0..known).map(|j| f64::from(u8::from(i == j))).collect()).collect();
        for i in 0..count {
            let sum = |j: usize| -(0..known).map(|k| recurrence[k] * inputs[i + k][j]).sum::<f64>();
            inputs.push((0..known).map(sum).collect());
        }
        let magnitudes: Vec<f64> = inputs.iter().map(|row| row.iter().map(|factor| factor.abs()).sum()).collect();
        let (all, wanted) = ((0..n).collect::<Vec<_>>(), self.tile.outputs - count);
        [kept, all].map(|values| self.amplification(&values, &magnitudes, wanted).0)
    }

    /// Inputs of +-1 that make the greatest term of the amplification as large as can be; the tap and
    /// the output that it is of; and inputs whose products are those of the first ones times `u`, with
    /// the signs by which they add up in that output.
    fn worst(&self) -> Worst {
        let (n, (_, output, tap)) = (self.tile.values, self.whole());
        let both =
            |value: usize| self.output(value, output, self.tile.outputs) * self.filter(value, tap, self.tile.taps());
        let size = |value: usize| both(value).abs() * self.input(value).iter().map(|factor| factor.abs()).sum::<f64>();
        let greatest = (0..n).max_by(|a, b| size(*a).total_cmp(&size(*b))).unwrap();
        let mut first: Vec<f64> = self.input(greatest).iter().map(|factor| factor.signum()).collect();
        first.resize(n, 1.0);
        let reached =
            |value: usize| -> f64 { self.input(value).iter().zip(&first).map(|(factor, x)| factor * x).sum() };
        let wanted: Vec<f64> = (0..n).map(|value| reached(value).abs() * both(value).signum()).collect();
        // The inverse of B: n outputs of one tap, which is 1, are the inputs themselves.
        let input = |k: usize| (0..n).map(|v| self.output(v, k, n) * self.filter(v, 0, 1) * wanted[v]).sum::<f64>();
        Worst { tap, lost: (0..n).map(input).collect(), first }
    }
}

struct Worst {
    tap: usize,
    first: Vec<f64>,
    lost: Vec<f64>,
}

/// The factor of the bound, which a bound for one step of K is divided into by its operations.
fn limit(accuracy: Accuracy) -> f64 {
    let geometry = Conv::new([1, 1, 1]).geometry(&[1, 1, 1]).unwrap();
    reference::transform_tolerance::<f32>(&geometry, named("winograd"), accuracy, 1.0)
        / ((1.0 + 1.0 / 192.0 + 64.0) * f32::UNIT_ROUNDOFF)
}

fn accuracy_of<T: Real>(kernel: &WinogradKernel<T>) -> Accuracy {
    if kernel.values() > 48 { Accuracy::Fast } else { Accuracy::Standard }
}

/// The proof of `reference::transform_tolerance` needs this, for each tile. In a chain there are at
/// most 44 operations beside the sums over K, products without fused additions included: 11 of the
/// input's transform (5 for an axis, 6 with a single point), 22 of the filter's in f64 (and one
/// rounding in f32), a product, and 10 of the output's. A free input is a sum of at most 4 products,
/// whose errors also reach the values that are dropped.
#[test]
fn the_bound_covers_the_transforms_of_every_tile() {
    let mut greatest = [0.0_f64; 2];
    for kernel in isas().flat_map(winograd_kernels::<f32>) {
        let (down, along) = (Transforms::new(kernel.down()), Transforms::new(kernel.along()).whole().0);
        let limit = limit(accuracy_of(kernel));
        let most = &mut greatest[usize::from(accuracy_of(kernel) == Accuracy::Fast)];
        *most = most.max(down.whole().0 * along / limit);
        assert!(down.whole().0 * along <= limit, "{}", kernel.name());
        let spare = if kernel.down().values.is_multiple_of(2) { 1..kernel.down().outputs } else { 0..0 };
        for count in spare {
            let [kept, all] = down.with_spare(count).map(|amplification| amplification * along);
            *most = most.max(kept / limit);
            assert!(
                kept <= limit && 44.0 * kept + 4.0 * all <= 64.0 * limit,
                "{}, {count} unwanted: {kept}, {all}",
                kernel.name()
            );
        }
    }
    assert!(greatest.iter().all(|share| *share > 0.98), "the factors are larger than they need be: {greatest:?}");
}

/// The greatest |x| of each image and channel that the tile of an output may read, for each position
/// of the output, as the documentation of [`Accuracy`] describes it.
fn reach(geometry: &Geometry, x: &[f64]) -> Vec<f64> {
    let mut most: Vec<f64> = x.iter().map(|x| x.abs()).collect();
    for (i, axis) in geometry.axes.iter().enumerate() {
        let inner: usize = geometry.axes[i + 1..].iter().map(|axis| axis.input).product();
        let (o_step, length) = (axis.stride as isize, ((axis.kernel - 1) * axis.dilation) as isize);
        let window = |o: usize| {
            let o = o as isize;
            match geometry.op {
                Op::Conv => (o * o_step - axis.pad_begin as isize, o * o_step - axis.pad_begin as isize + length),
                Op::ConvTranspose => {
                    let last = o + axis.pad_begin as isize;
                    ((last - length).div_euclid(o_step), last.div_euclid(o_step))
                }
            }
        };
        let step = if geometry.op == Op::Conv { axis.stride.max(axis.dilation) } else { 1 };
        let wider = if i + 2 >= geometry.axes.len() { 8 * step as isize } else { 0 };
        let block = |block: &[f64]| -> Vec<f64> {
            let at = |o: usize, j: usize| {
                let (first, last) = window(o);
                let seen = (first - wider).max(0)..(last + wider + 1).min(axis.input as isize);
                seen.map(|i| block[i as usize * inner + j]).fold(0.0, f64::max)
            };
            (0..axis.output).flat_map(|o| (0..inner).map(move |j| (o, j))).map(|(o, j)| at(o, j)).collect()
        };
        most = most.chunks(axis.input * inner).flat_map(block).collect();
    }
    most
}

/// The greatest share of the bound in a run. It is infinite where an output errs whose tile reads
/// nothing but zeros.
fn share_of_bound<T: Scalar>(plan: &Plan<T>, accuracy: Accuracy, operands: &Operands<T>) -> f64 {
    let geometry = plan.geometry();
    let x: Vec<_> = operands.x.iter().map(|x| x.to_f64()).collect();
    let reach = reach(geometry, &x);
    let exact = reference::all(geometry, &operands.x, &operands.w, None);
    let (spatial, channels) = (geometry.output_spatial(), geometry.out_channels);
    let (c_group, m_group) = (geometry.in_channels_per_group(), geometry.out_channels_per_group());
    let sums: Vec<f64> =
        operands.w.chunks(geometry.kernel_volume()).map(|taps| taps.iter().map(|w| w.to_f64().abs()).sum()).collect();
    let share = |(index, (y, exact)): (usize, (T, reference::ReferenceElement))| {
        let (plane, at) = (index / spatial, index % spatial);
        let (n, m) = (plane / channels, plane % channels);
        let of_channel = |c: usize| {
            let channel = m / m_group * c_group + c;
            let filter = if geometry.op == Op::Conv { m * c_group + c } else { channel * m_group + m % m_group };
            reach[(n * geometry.in_channels + channel) * spatial + at] * sums[filter]
        };
        let wide = (0..c_group).map(of_channel).sum();
        let bound = reference::transform_tolerance::<T>(geometry, plan.algorithm(), accuracy, wide);
        let beyond = (y.to_f64() - exact.value).abs() - reference::tolerance::<T>(geometry, exact.magnitude);
        match beyond / bound {
            _ if beyond <= 0.0 => 0.0,
            // `max` would lose it.
            share if share.is_nan() => f64::INFINITY,
            share => share,
        }
    };
    operands.run(plan).into_iter().zip(exact).enumerate().map(share).fold(0.0, f64::max)
}

/// Data that are made to break the bound.
#[derive(Debug, Clone, Copy)]
enum Data {
    /// One spike in each image, at each position in turn. The rest are normal numbers times this.
    Spikes(f64),
    /// Signs as on a chessboard, in X and in W.
    Alternating,
    /// Cauchy's distribution, in X and in W.
    HeavyTails,
    /// Ten magnitudes, and zeros.
    Magnitudes,
}

fn hard_operands<T: Scalar>(geometry: &Geometry, data: Data, seed: u64) -> Operands<T> {
    let mut random = Random::new(seed);
    let (spatial, channels) = (geometry.input_spatial(), geometry.in_channels);
    // Sums stay in the range of 16-bit types.
    let most = if size_of::<T>() == 2 { 30.0 } else { 1e6 };
    let mut operands = match data {
        Data::Spikes(rest) => Operands::<f64>::generate(geometry, || rest * random.uniform()),
        Data::Alternating => Operands::generate(geometry, || random.uniform().abs()),
        Data::HeavyTails => Operands::generate(geometry, || (random.uniform() * PI / 2.0).tan().clamp(-most, most)),
        Data::Magnitudes => Operands::generate(geometry, || {
            let value = 0.1_f64.powi(random.below(10) as i32) * random.uniform();
            if random.below(4) == 0 { 0.0 } else { value }
        }),
    };
    match data {
        Data::Spikes(_) => {
            for (image, x) in operands.x.chunks_mut(channels * spatial).enumerate() {
                x[image % channels * spatial + image % spatial] = if image / 2 % 2 == 0 { 1.0 } else { -1.0 };
            }
            operands.w.fill_with(|| random.uniform());
        }
        Data::Alternating => {
            let last = |axis_of: fn(&convoke::Axis) -> usize| geometry.axes.last().map_or(1, axis_of);
            for (values, width) in [(&mut operands.x, last(|a| a.input)), (&mut operands.w, last(|a| a.kernel))] {
                for (at, value) in values.iter_mut().enumerate() {
                    *value *= if (at / width + at % width) % 2 == 0 { 1.0 } else { -1.0 };
                }
            }
        }
        _ => {}
    }
    let to = |values: Vec<f64>| values.into_iter().map(T::from_f64).collect();
    Operands { x: to(operands.x), w: to(operands.w), bias: None, residual: None }
}

/// Small layers for as many tiles as can be: both operators, one to three axes, groups, strides,
/// dilations, several filters, last tiles of fewer outputs.
fn layers(batch: usize) -> Vec<Layer> {
    vec![
        layer(Conv::new([3, 2, 3, 3]).pads([1; 4]), [batch, 2, 12, 12]),
        layer(Conv::new([3, 2, 3, 3]).pads([1; 4]), [batch, 2, 13, 10]),
        layer(Conv::new([3, 2, 3, 3]), [batch, 2, 5, 9]),
        layer(Conv::new([3, 2, 3, 3]).pads([1; 4]), [batch, 2, 7, 6]),
        layer(Conv::new([3, 2, 5, 5]).pads([2; 4]), [batch, 2, 12, 12]),
        layer(Conv::new([3, 2, 5, 5]).pads([2; 4]), [batch, 2, 7, 6]),
        layer(Conv::new([2, 2, 7, 7]).pads([3; 4]), [batch, 2, 9, 11]),
        layer(Conv::new([3, 2, 4, 4]).pads([1; 4]), [batch, 2, 10, 10]),
        layer(Conv::new([3, 2, 2, 2]), [batch, 2, 11, 11]),
        layer(Conv::new([3, 2, 3]).pads([1, 1]), [batch, 2, 40]),
        layer(Conv::new([3, 2, 5]).pads([2, 2]), [batch, 2, 41]),
        layer(Conv::new([3, 2, 2]), [batch, 2, 41]),
        layer(Conv::new([3, 2, 4]), [batch, 2, 41]),
        layer(Conv::new([3, 2, 3, 1]).pads([1, 0, 1, 0]), [batch, 2, 11, 8]),
        layer(Conv::new([3, 2, 5, 1]).pads([2, 0, 2, 0]), [batch, 2, 11, 8]),
        layer(Conv::new([3, 2, 4, 1]), [batch, 2, 13, 8]),
        layer(Conv::new([4, 1, 3, 3]).group(2).pads([1; 4]), [batch, 2, 12, 12]),
        layer(Conv::new([3, 2, 5, 5]).strides([2, 2]).pads([2; 4]), [batch, 2, 13, 14]),
        layer(Conv::new([3, 2, 3, 3]).dilations([2, 3]).pads([2, 3, 2, 3]), [batch, 2, 10, 13]),
        layer(Conv::new([3, 2, 3, 3, 3]).pads([1; 6]), [batch, 2, 3, 8, 8]),
        layer(ConvTranspose::new([2, 3, 4, 4]).strides([2, 2]).pads([1; 4]), [batch, 2, 7, 8]),
        layer(ConvTranspose::new([2, 3, 3, 3]), [batch, 2, 10, 11]),
        layer(ConvTranspose::new([2, 3, 3]).strides([2]).pads([1, 1]), [batch, 2, 30]),
    ]
}

fn kernel_of<T: Element>(plan: &Plan<T>) -> &'static WinogradKernel<T::Acc> {
    let kernel = winograd_kernels::<T::Acc>(plan.isa()).iter().find(|kernel| plan.kernel().ends_with(kernel.name()));
    kernel.unwrap_or_else(|| panic!("{plan:?}"))
}

/// Plans on every ISA, for the tiles of `Standard` and of `Fast`. The machine, whose ISA alone varies,
/// decides the tile.
fn plans<T: Scalar>(layer: &Layer) -> Vec<(Plan<T>, Accuracy)> {
    let of = |isa, accuracy| {
        let tune = |planner: Planner| planner.accuracy(accuracy).machine(Machine::zen5().with_isa(isa));
        Some((Combination { algorithm: named("winograd"), isa }.plan::<T>(layer, tune)?, accuracy))
    };
    isas()
        .flat_map(|isa| [Accuracy::Standard, Accuracy::Fast].map(|accuracy| (isa, accuracy)))
        .filter_map(|(isa, accuracy)| of(isa, accuracy))
        .collect()
}

#[test]
fn spikes_signs_and_heavy_tails_keep_the_bound() {
    fn check<T: Scalar>() {
        let (mut most, mut tiles) = ((0.0, String::new()), BTreeSet::new());
        let all = [Data::Spikes(0.0), Data::Spikes(1e-6), Data::Alternating, Data::HeavyTails, Data::Magnitudes];
        for (kind, data) in all.into_iter().enumerate() {
            // Spikes have an image for each of their positions.
            let spatial = |layer: &Layer| layer.geometry().input_spatial();
            let is_spike = matches!(data, Data::Spikes(_));
            // Short runs have some of the layers with each kind of data.
            let some = |(index, _): &(usize, _)| !is_short() || (index + kind) % all.len() == 0;
            for (index, small) in layers(1).iter().enumerate().filter(some) {
                let layer = layers(if is_spike { spatial(small) } else { 2 }).swap_remove(index);
                let operands = hard_operands::<T>(&layer.geometry(), data, index as u64);
                for (plan, accuracy) in plans::<T>(&layer) {
                    tiles.insert(kernel_of(&plan).name());
                    let share = share_of_bound(&plan, accuracy, &operands);
                    assert!(share <= 1.0, "{data:?}, {layer}: {share} of the bound, {plan:?}");
                    if share > most.0 {
                        most = (share, format!("{data:?}, {layer}: {}", plan.kernel()));
                    }
                }
            }
        }
        println!("{}: {:.2e} of the bound, {}; {tiles:?}", T::DTYPE, most.0, most.1);
        assert!(tiles.len() >= 12, "only {tiles:?}");
    }
    for_each_type!(check());
}

/// The first channel makes products that are as large as can be. Those of all further channels are
/// less than half a unit of them, so that each addition loses one, and all that is lost adds up in
/// one output of each tile.
#[test]
fn sums_that_lose_every_product_keep_the_bound() {
    const CHANNELS: usize = 192;
    fn check<T: Scalar>() {
        let (mut most, mut tiles) = ((0.0, ""), BTreeSet::new());
        for layer in [
            layer(Conv::new([2, CHANNELS, 3, 3]), [1, CHANNELS, 26, 26]),
            layer(Conv::new([2, CHANNELS, 3, 3]), [1, CHANNELS, 34, 34]),
            layer(Conv::new([2, CHANNELS, 3, 3]), [1, CHANNELS, 50, 50]),
            layer(Conv::new([2, CHANNELS, 3, 3]), [1, CHANNELS, 12, 12]),
            layer(Conv::new([2, CHANNELS, 5, 5]), [1, CHANNELS, 28, 28]),
            layer(Conv::new([2, CHANNELS, 2, 2]), [1, CHANNELS, 21, 21]),
            layer(Conv::new([2, CHANNELS, 3]), [1, CHANNELS, 98]),
            layer(Conv::new([2, CHANNELS, 5]), [1, CHANNELS, 98]),
            layer(Conv::new([2, CHANNELS, 5, 1]), [1, CHANNELS, 26, 16]),
        ] {
            for (plan, accuracy) in plans::<T>(&layer) {
                let kernel = kernel_of(&plan);
                let operands = losing_operands::<T>(plan.geometry(), kernel.down(), kernel.along());
                let share = share_of_bound(&plan, accuracy, &operands);
                assert!(share <= 1.0, "{layer}: {share} of the bound, {plan:?}");
                tiles.insert(kernel.name());
                if share > most.0 {
                    most = (share, kernel.name());
                }
            }
        }
        println!("{}: {:.2e} of the bound, {}; {tiles:?}", T::DTYPE, most.0, most.1);
        // The data do what they are meant to: no others come near. Sixteen bits do not hold them.
        assert!(most.0 > if T::DIRECT { 0.05 } else { 0.0 }, "{most:?}");
    }
    for_each_type!(check());
}

/// Every other tile, down and along, has the worst values, and the rest of X are zeros.
fn losing_operands<T: Scalar>(geometry: &Geometry, down: Tile, along: Tile) -> Operands<T> {
    let axes = [down, along].map(|tile| Transforms::new(tile).worst());
    let most = axes.each_ref().map(|worst| worst.lost.iter().fold(0.0, |most: f64, x| most.max(x.abs())));
    let u = <T::Acc as Real>::UNIT_ROUNDOFF;
    let sizes = |of: fn(&convoke::Axis) -> usize| match &geometry.axes[..] {
        [along] => [1, of(along)],
        axes => [of(&axes[0]), of(&axes[1])],
    };
    let ([height, width], [taps_down, taps_along]) = (sizes(|axis| axis.input), sizes(|axis| axis.kernel));
    let (spatial, taps) = (height * width, taps_down * taps_along);
    let mut operands = Operands::<T>::generate(geometry, || 0.0);
    let tap = axes[0].tap * taps_along + axes[1].tap;
    for (at, filter) in operands.w.chunks_mut(taps).enumerate() {
        let is_first = at % geometry.in_channels == 0;
        filter[tap] = T::from_f64(if is_first { 1.0 } else { 0.45 * u * most[0] * most[1] });
    }
    let starts =
        |tile: Tile, len: usize| (0..=len - tile.values).step_by(tile.values.div_ceil(tile.outputs) * tile.outputs);
    for (channel, plane) in operands.x.chunks_mut(spatial).enumerate() {
        for (y, x) in starts(down, height).flat_map(|y| starts(along, width).map(move |x| (y, x))) {
            for (i, j) in (0..down.values).flat_map(|i| (0..along.values).map(move |j| (i, j))) {
                let [first, lost] =
                    [axes[0].first[i] * axes[1].first[j], axes[0].lost[i] * axes[1].lost[j] / (most[0] * most[1])];
                plane[(y + i) * width + x + j] = T::from_f64(if channel == 0 { first } else { lost });
            }
        }
    }
    operands
}

/// What was promised before, a share of the output's root mean square, did not hold for these.
#[test]
fn sparse_and_spiky_inputs_keep_the_bound_and_leave_the_rest_alone() {
    let spiky = |layer: &Layer, rest: f64, spike: f64| {
        let geometry = layer.geometry();
        let mut operands = Operands::<f32>::uniform(&geometry, 3);
        operands.x.iter_mut().for_each(|x| *x *= rest as f32);
        let at = geometry.input_spatial() * 3 / 2 + geometry.axes[1].input / 2;
        operands.x[at] = spike as f32;
        operands
    };
    for (layer, rest, spike) in [
        (layer(Conv::new([8, 64, 3, 3]).pads([1; 4]), [1, 64, 112, 112]), 1e-6, 1.0),
        (layer(Conv::new([8, 16, 5, 5]).pads([2; 4]), [1, 16, 224, 224]), 1e-4, 1.0),
        (layer(Conv::new([8, 64, 3, 3]).pads([1; 4]), [1, 64, 28, 28]), 0.0, 1e10),
    ] {
        let operands = spiky(&layer, rest, spike);
        for (plan, accuracy) in plans::<f32>(&layer) {
            let share = share_of_bound(&plan, accuracy, &operands);
            assert!(share > 0.0 && share <= 1.0, "{layer}: {share} of the bound, {plan:?}");
        }
        // Direct sums have no error where a window has zeros only.
        let strict = Planner::new().accuracy(Accuracy::Strict);
        let strict = strict.plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
        assert_eq!(share_of_bound(&strict, Accuracy::Strict, &operands), 0.0, "{layer}");
    }
}
