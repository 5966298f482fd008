//! The weights of a layer: folded with a normalisation, packed, and shared between sessions.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use convoke::{Element, Error, ErrorKind, Operator, Plan, PlanCache, Planner};
use num_traits::AsPrimitive;
use num_traits::float::FloatCore;
use xxhash_rust::xxh3::Xxh3;

use crate::api::{Failure, Result, lock};
use crate::graph::Value;

/// A node that scales and shifts each channel by constants.
#[derive(Clone, Copy)]
pub(crate) enum Scaling<'g> {
    /// A BatchNormalization by `scale`, `B`, `input_mean` and `input_var`.
    Normalisation { constants: [Value<'g>; 4], epsilon: f32 },
    /// A Mul by one factor for each channel, or for all.
    Factors(Value<'g>),
    /// An Add of one number for each channel, or for all.
    Shifts(Value<'g>),
    /// A factor and a shift for all.
    Numbers { factor: f64, shift: f64 },
}

/// Plans that a layer keeps for each set of packed weights, at most.
pub(crate) const MOST_PLANS: NonZeroUsize = NonZeroUsize::new(32).unwrap();
/// Sets of packed weights that a layer keeps, at most.
const MOST_SETS: usize = 4;
/// How often the size of an image may be that of the usual one before weights are packed anew for
/// it. Within half and twice the size, the documentation of `Planner::packed_for` says, little is
/// lost.
const MOST_RATIO: f64 = 4.0;

/// W and the bias: onnxruntime's own, or copies.
#[derive(Clone)]
pub(crate) struct Constants<'c, T: Clone> {
    pub(crate) w: Cow<'c, [T]>,
    pub(crate) bias: Option<Cow<'c, [T]>>,
}

impl<T: Clone> Constants<'_, T> {
    fn into_owned(self) -> Constants<'static, T> {
        Constants { w: self.w.into_owned().into(), bias: self.bias.map(|bias| bias.into_owned().into()) }
    }
}

/// Element types of layers.
pub(crate) trait Scalar: Element + FloatCore + AsPrimitive<f64> {
    /// The nearest element.
    fn of(value: f64) -> Self;

    /// The nearest element, if the value is finite and so is the element, and it has all its digits,
    /// which a subnormal number has not.
    fn exactly(value: f64) -> Option<Self> {
        let element = Self::of(value);
        (value == 0.0 || element.is_normal()).then_some(element)
    }
}

impl<T> Scalar for T
where
    T: Element + FloatCore + AsPrimitive<f64>,
    f64: AsPrimitive<T>,
{
    fn of(value: f64) -> Self {
        value.as_()
    }
}

/// The plans of one layer with constant weights.
pub(crate) struct PackedLayer<T: Element> {
    /// Missing where one set serves every run.
    source: Option<Source<T>>,
    /// The last one is the newest.
    sets: Mutex<Vec<Set<T>>>,
}

/// Packed weights, and their plans.
#[derive(Clone)]
struct Set<T: Element> {
    /// The shape of X that it was packed for.
    x_shape: Vec<usize>,
    cache: Arc<PlanCache<T>>,
}

/// What weights are packed from when X of another shape comes.
struct Source<T: Element> {
    planner: Planner,
    operator: Operator,
    constants: Constants<'static, T>,
}

/// A plan, and the cache whose weights it reads.
pub(crate) struct Planned<T: Element> {
    pub(crate) plan: Arc<Plan<T>>,
    pub(crate) cache: Arc<PlanCache<T>>,
}

/// The shape of one image of X.
fn image(x_shape: &[usize]) -> &[usize] {
    x_shape.get(1..).unwrap_or_default()
}

/// How often one image has the elements of the other, whichever is the larger one.
fn ratio(image: &[usize], other: &[usize]) -> f64 {
    let len = |image: &[usize]| image.iter().map(|size| *size as f64).product::<f64>().max(1.0);
    let (one, other) = (len(image), len(other));
    one.max(other) / one.min(other)
}

impl<T: Element> PackedLayer<T> {
    /// Of weights that are packed, for X whose images all have the size of this shape's.
    pub(crate) fn of_size(cache: Arc<PlanCache<T>>, x_shape: &[usize]) -> Self {
        Self { source: None, sets: Mutex::new(vec![Set { x_shape: x_shape.to_vec(), cache }]) }
    }

    /// Packs when X is there.
    pub(crate) fn of_any_size(planner: Planner, operator: Operator, constants: Constants<'_, T>) -> Self {
        Self { source: None, sets: Mutex::default() }.or_packed_anew(planner, operator, constants)
    }

    /// The same, and packs for shapes that the weights at hand cannot serve.
    pub(crate) fn or_packed_anew(self, planner: Planner, operator: Operator, constants: Constants<'_, T>) -> Self {
        let source = Source { planner, operator, constants: constants.into_owned() };
        Self { source: Some(source), ..self }
    }

    /// The plan for X of a shape: over weights that are packed, or over new ones where these cannot
    /// serve this shape within the limits.
    pub(crate) fn plan(&self, x_shape: &[usize]) -> Result<Planned<T>> {
        for cache in self.candidates(x_shape) {
            match cache.plan(x_shape) {
                Err(error) if self.source.is_some() && error.kind() == ErrorKind::PackedMismatch => {}
                plan => return Ok(Planned { plan: plan?, cache }),
            }
        }
        let source = self.source.as_ref().ok_or_else(|| Failure::other("a layer without weights"))?;
        let usual = with_an_image(x_shape.to_vec());
        let cache = Arc::new(pack(&source.planner, &source.operator, &usual, &source.constants)?);
        let plan = cache.plan(x_shape)?;
        let mut sets = lock(&self.sets);
        // Another thread may have packed for this size meanwhile. Its set stays, too, and is the
        // first to go.
        if sets.len() >= MOST_SETS {
            sets.remove(0);
        }
        sets.push(Set { x_shape: x_shape.to_vec(), cache: cache.clone() });
        drop(sets);
        Ok(Planned { plan, cache })
    }

    /// The sets that may serve X of a shape, the best one first: the one that was packed for this shape,
    /// then one for such images, then those for others, by the sizes of these. Where there is room for
    /// another set, sizes that differ much are left out.
    fn candidates(&self, x_shape: &[usize]) -> impl Iterator<Item = Arc<PlanCache<T>>> {
        let mut sets = lock(&self.sets).clone();
        if self.source.is_some() && sets.len() < MOST_SETS {
            sets.retain(|set| ratio(image(&set.x_shape), image(x_shape)) <= MOST_RATIO);
        }
        sets.sort_by(|one, other| {
            let key = |Set { x_shape: other, .. }: &Set<T>| {
                (other != x_shape, image(other) != image(x_shape), ratio(image(other), image(x_shape)))
            };
            key(one).partial_cmp(&key(other)).expect("ratios are numbers")
        });
        sets.into_iter().map(|set| set.cache)
    }
}

/// The shape of X, with one image where there is none: weights are packed for that.
pub(crate) fn with_an_image(mut x_shape: Vec<usize>) -> Vec<usize> {
    if let Some(batch) = x_shape.first_mut() {
        *batch = (*batch).max(1);
    }
    x_shape
}

/// Plans for X of a shape and packs for it.
pub(crate) fn pack<T: Element>(
    planner: &Planner,
    operator: &Operator,
    x_shape: &[usize],
    constants: &Constants<'_, T>,
) -> std::result::Result<PlanCache<T>, Error> {
    let (w, bias) = (&constants.w[..], constants.bias.as_deref());
    PlanCache::new(planner.clone(), operator.clone(), &[x_shape], w, bias, MOST_PLANS)
}

/// What a scaling does to each channel: `(x - mean) * factor + shift`.
pub(crate) struct Affine {
    /// Whether one value stands for all channels.
    is_broadcast: bool,
    factors: Vec<f64>,
    means: Vec<f64>,
    shifts: Vec<f64>,
}

impl Affine {
    /// Source: the definition of BatchNormalization in ONNX's operators.
    pub(crate) fn of(scaling: &Scaling<'_>) -> Result<Self> {
        let read = |value: Value<'_>| -> Result<Vec<f64>> {
            let floats = value.constant()?.map(|tensor| tensor.floats()).transpose()?.flatten();
            floats.ok_or_else(|| Failure::other("a scaling by tensors that are not constant floats"))
        };
        let is_broadcast = !matches!(scaling, Scaling::Normalisation { .. });
        Ok(match *scaling {
            Scaling::Normalisation { constants: [scale, shift, mean, variance], epsilon } => {
                let epsilon = f64::from(epsilon);
                let factors = read(scale)?.iter().zip(read(variance)?).map(|(s, v)| s / (v + epsilon).sqrt()).collect();
                Self { is_broadcast, factors, means: read(mean)?, shifts: read(shift)? }
            }
            Scaling::Factors(factors) => {
                Self { is_broadcast, factors: read(factors)?, means: vec![0.0], shifts: vec![0.0] }
            }
            Scaling::Numbers { factor, shift } => {
                Self { is_broadcast, factors: vec![factor], means: vec![0.0], shifts: vec![shift] }
            }
            Scaling::Shifts(shifts) => {
                Self { is_broadcast, factors: vec![1.0], means: vec![0.0], shifts: read(shifts)? }
            }
        })
    }

    /// Puts the factors into W, and the rest into the bias. `None` where that changes results by more
    /// than roundings: a number is not finite, or has lost digits as a subnormal one; or where there
    /// is not one number for each channel.
    fn fold_into<'c, T: Scalar>(
        &self,
        mut constants: Constants<'c, T>,
        channels: &OutputChannels,
    ) -> Option<Constants<'c, T>> {
        let of_channels = |values: &[f64]| match *values {
            [one] if self.is_broadcast => Some(vec![one; channels.count]),
            _ => (values.len() == channels.count).then(|| values.to_vec()),
        };
        let (factors, means, shifts) =
            (of_channels(&self.factors)?, of_channels(&self.means)?, of_channels(&self.shifts)?);
        for (i, w) in constants.w.to_mut().iter_mut().enumerate() {
            let own = T::exactly((*w).as_())?;
            *w = T::exactly(product(own.as_(), factors[channels.of_weight(i)])?)?;
        }
        let bias = constants.bias.take();
        let bias = (0..channels.count).map(|m| {
            let own = bias.as_ref().map_or(Some(T::zero()), |bias| T::exactly((*bias.get(m)?).as_()))?;
            T::exactly(product(own.as_() - means[m], factors[m])? + shifts[m])
        });
        constants.bias = Some(bias.collect::<Option<Vec<_>>>()?.into());
        Some(constants)
    }
}

/// The product, if it is finite and has all its digits.
fn product(one: f64, other: f64) -> Option<f64> {
    let product = one * other;
    (product.is_normal() || (product == 0.0 && (one == 0.0 || other == 0.0))).then_some(product)
}

/// Puts scalings into W and the bias, one after the other; `None` where that changes results by more
/// than roundings.
pub(crate) fn folded<'c, T: Scalar>(
    constants: Constants<'c, T>,
    scalings: &[Affine],
    channels: &OutputChannels,
) -> Option<Constants<'c, T>> {
    scalings.iter().try_fold(constants, |constants, scaling| scaling.fold_into(constants, channels))
}

/// Whether scalings can be [`folded`]. It reads W once, and copies nothing.
pub(crate) fn can_fold<T: Scalar>(
    constants: &Constants<'_, T>,
    scalings: &[Affine],
    channels: &OutputChannels,
) -> bool {
    let (extremes, of_extremes) = extremes(constants, channels);
    folded(extremes, scalings, &of_extremes).is_some()
}

/// The constants of a layer that has only two weights in each channel: the smallest one and the largest
/// one of this layer, without their signs and without zeros. What scales these well scales all.
fn extremes<T: Scalar>(
    constants: &Constants<'_, T>,
    channels: &OutputChannels,
) -> (Constants<'static, T>, OutputChannels) {
    let mut w = vec![T::zero(); 2 * channels.count];
    for (i, weights) in constants.w.chunks(channels.step).enumerate() {
        let at = 2 * channels.of_weight(i * channels.step);
        let [least, most] = &mut w[at..at + 2] else { unreachable!("two weights") };
        for weight in weights.iter().map(|weight| weight.abs()).filter(|weight| !weight.is_zero()) {
            if least.is_zero() || weight < *least {
                *least = weight;
            }
            // NaN is the largest one.
            if weight.is_nan() || weight > *most {
                *most = weight;
            }
        }
    }
    let bias = constants.bias.as_ref().map(|bias| bias.to_vec().into());
    let count = channels.count;
    (Constants { w: w.into(), bias }, OutputChannels { count, in_group: count, step: 2, group_step: usize::MAX })
}

/// Which output channel an element of W belongs to.
pub(crate) struct OutputChannels {
    pub(crate) count: usize,
    /// Of one group.
    in_group: usize,
    /// Elements of W from one output channel to the next.
    step: usize,
    /// Elements of W from one group to the next.
    group_step: usize,
}

impl OutputChannels {
    /// W is `(M, C / group, k...)` for Conv, and `(C, M / group, k...)` for ConvTranspose. `None` if the
    /// groups do not divide it, and if it has no elements.
    pub(crate) fn of(operator: &Operator, group: usize) -> Option<Self> {
        let (&[rows, columns, ref kernel @ ..], group) = (operator.weight_shape(), group.max(1)) else { return None };
        let taps: usize = kernel.iter().product();
        if !rows.is_multiple_of(group) || rows.min(columns).min(taps) == 0 {
            return None;
        }
        Some(match operator {
            Operator::ConvTranspose(_) => Self {
                count: columns * group,
                in_group: columns,
                step: taps,
                group_step: rows / group * columns * taps,
            },
            _ => Self { count: rows, in_group: rows, step: columns * taps, group_step: usize::MAX },
        })
    }

    fn of_weight(&self, i: usize) -> usize {
        i / self.group_step * self.in_group + i / self.step % self.in_group
    }
}

/// Packed layers that sessions share, by what they were made of.
static SHARED: LazyLock<Mutex<HashMap<Key, Weak<dyn Any + Send + Sync>>>> = LazyLock::new(Mutex::default);

/// What a packed layer is made of. Weights count as their hash, which is as good as unique among
/// models that nobody made to have the hash of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    element: TypeId,
    operator: Operator,
    x_shape: Vec<usize>,
    /// The options and the activation, as text.
    planner: String,
    hash_of_constants: u128,
}

/// As [`pack`], but what another session packed is taken if it is the same.
pub(crate) fn pack_shared<T: Element>(
    (planner, description): (&Planner, String),
    operator: &Operator,
    x_shape: &[usize],
    constants: &Constants<'_, T>,
) -> std::result::Result<Arc<PlanCache<T>>, Error> {
    let mut hash = Xxh3::new();
    hash.update(bytemuck::cast_slice(&constants.w));
    hash.update(&[u8::from(constants.bias.is_some())]);
    hash.update(bytemuck::cast_slice(constants.bias.as_deref().unwrap_or_default()));
    let key = Key {
        element: TypeId::of::<T>(),
        operator: operator.clone(),
        x_shape: x_shape.to_vec(),
        planner: description,
        hash_of_constants: hash.digest128(),
    };
    let there = lock(&SHARED).get(&key).and_then(Weak::upgrade).and_then(|cache| cache.downcast::<PlanCache<T>>().ok());
    if let Some(cache) = there {
        return Ok(cache);
    }
    let cache = Arc::new(pack(planner, operator, x_shape, constants)?);
    let weak: Weak<PlanCache<T>> = Arc::downgrade(&cache);
    let mut shared = lock(&SHARED);
    shared.retain(|_, cache| cache.strong_count() > 0);
    shared.insert(key, weak);
    Ok(cache)
}

#[cfg(test)]
mod tests {
    use convoke::{Conv, ConvTranspose};

    use super::*;

    #[test]
    fn weights_know_their_output_channel() {
        let conv = OutputChannels::of(&Conv::new([4, 3, 2]).into(), 2).unwrap();
        assert_eq!([0, 5, 6, 23].map(|i| conv.of_weight(i)), [0, 0, 1, 3]);
        // 4 input channels in 2 groups, 3 output channels in each, 2 taps.
        let transposed = OutputChannels::of(&ConvTranspose::new([4, 3, 2]).group(2).into(), 2).unwrap();
        assert_eq!(transposed.count, 6);
        assert_eq!([0, 2, 5, 6, 11, 12, 17, 23].map(|i| transposed.of_weight(i)), [0, 1, 2, 0, 2, 3, 5, 5]);
    }

    fn constants(first: f32) -> Constants<'static, f32> {
        Constants { w: vec![first, 1.0, 2.0, 3.0].into(), bias: None }
    }

    #[test]
    fn the_same_weights_are_packed_once() {
        let (planner, operator) = (Planner::new(), Operator::from(Conv::new([2, 2, 1])));
        let shared = |c: &Constants<'_, f32>, text: &str, shape: &[usize]| {
            pack_shared((&planner, text.to_owned()), &operator, shape, c).unwrap()
        };
        let one = shared(&constants(0.0), "a", &[1, 2, 5]);
        assert!(Arc::ptr_eq(&one, &shared(&constants(0.0), "a", &[1, 2, 5])));
        let others = [
            shared(&constants(1.0), "a", &[1, 2, 5]),
            shared(&constants(0.0), "b", &[1, 2, 5]),
            shared(&constants(0.0), "a", &[1, 2, 6]),
            shared(&Constants { bias: Some(vec![0.0; 2].into()), ..constants(0.0) }, "a", &[1, 2, 5]),
        ];
        assert!(others.iter().all(|other| !Arc::ptr_eq(&one, other)));
        let weak = Arc::downgrade(&one);
        drop(one);
        assert!(weak.upgrade().is_none(), "the table keeps nothing alive");
    }

    #[test]
    fn a_batch_without_an_image_may_be_the_first_one() {
        let constants = Constants { w: vec![0.5_f32; 6].into(), bias: None };
        let layer = PackedLayer::of_any_size(Planner::new(), Conv::new([2, 3, 1]).into(), constants);
        assert_eq!(layer.plan(&[0, 3, 5]).unwrap().plan.geometry().output_shape(), [0, 2, 5]);
        assert_eq!(layer.plan(&[4, 3, 5]).unwrap().plan.geometry().output_shape(), [4, 2, 5]);
    }

    #[test]
    fn sizes_that_differ_much_are_packed_anew_and_few_are_kept() {
        let constants = Constants { w: vec![0.5_f32; 8 * 8 * 9].into(), bias: None };
        let operator = Operator::from(Conv::new([8, 8, 3, 3]).pads([1, 1, 1, 1]));
        let layer = PackedLayer::of_any_size(Planner::new(), operator, constants);
        let set = |size: usize| layer.plan(&[1, 8, size, size]).unwrap().cache;
        let small = set(8);
        assert!(Arc::ptr_eq(&small, &set(10)) && Arc::ptr_eq(&small, &set(16)));
        assert!(!Arc::ptr_eq(&small, &set(40)));
        for size in [1, 80, 160, 320, 8] {
            set(size);
        }
        assert!(lock(&layer.sets).len() <= MOST_SETS);
    }

    #[test]
    fn sets_that_exceed_the_limit_for_a_size_are_packed_anew_and_few_are_kept() {
        let constants = Constants { w: vec![0.5_f32; 6 * 4 * 9].into(), bias: None };
        let operator = Operator::from(Conv::new([6, 4, 3, 3]).pads([1, 1, 1, 1]));
        for limit in (0..9000).step_by(500) {
            let planner = Planner::new().isa(convoke::Isa::Portable).workspace_limit(limit);
            let layer = PackedLayer::of_any_size(planner, operator.clone(), constants.clone());
            let plan = |size: usize| layer.plan(&[1, 4, size, size]).unwrap();
            for size in (8..24).chain([8, 40, 9]) {
                assert!(plan(size).plan.workspace_bytes() <= limit);
                assert!(lock(&layer.sets).len() <= MOST_SETS);
            }
            // Sizes in turns find the sets that were packed for them.
            let (one, other) = (plan(8).cache, plan(9).cache);
            assert!(Arc::ptr_eq(&one, &plan(8).cache) && Arc::ptr_eq(&other, &plan(9).cache));
        }
    }

    #[test]
    fn sets_that_exceed_the_limit_for_a_batch_are_packed_anew() {
        let constants = Constants { w: vec![0.5_f32; 8 * 2 * 2].into(), bias: None };
        let operator = Operator::from(ConvTranspose::new([8, 1, 2, 2]).group(2));
        let shapes = [1, 2, 3, 8, 33, 1, 33].map(|images| [images, 8, 15, 15]);
        let mut refused = 0;
        for limit in (0..20_000).step_by(250) {
            let planner = Planner::new().isa(convoke::Isa::Portable).threads(2).workspace_limit(limit);
            let cache = || Arc::new(pack(&planner, &operator, &shapes[0], &constants).unwrap());
            let alone = PackedLayer::of_size(cache(), &shapes[0]);
            refused += shapes.iter().filter(|shape| alone.plan(*shape).is_err()).count();
            let layer = PackedLayer::of_size(cache(), &shapes[0]);
            let layer = layer.or_packed_anew(planner.clone(), operator.clone(), constants.clone());
            for shape in &shapes {
                let planned = layer.plan(shape).unwrap();
                assert!(planned.plan.workspace_bytes() <= limit);
                assert!(Arc::ptr_eq(&planned.cache, &layer.plan(shape).unwrap().cache));
            }
        }
        assert!(refused > 0, "one set serves all: another layer shows more");
    }

    #[test]
    fn the_set_of_the_same_size_comes_before_others() {
        let constants = Constants { w: vec![0.5_f32; 6 * 4 * 9].into(), bias: None };
        let operator = Operator::from(Conv::new([6, 4, 3, 3]).pads([1, 1, 1, 1]));
        let layer = PackedLayer::of_any_size(Planner::new(), operator.clone(), constants.clone());
        let pack = |size: usize| {
            let x_shape = [1, 4, size, size];
            let source = layer.source.as_ref().unwrap();
            let cache = Arc::new(pack(&source.planner, &operator, &x_shape, &constants).unwrap());
            lock(&layer.sets).push(Set { x_shape: x_shape.to_vec(), cache: cache.clone() });
            cache
        };
        let sets = [8, 9, 12, 40].map(pack);
        for (size, order) in [(8, [0, 1, 2, 3]), (9, [1, 0, 2, 3]), (13, [2, 1, 0, 3]), (40, [3, 2, 1, 0])] {
            let found: Vec<_> = layer.candidates(&[3, 4, size, size]).collect();
            assert!(found.iter().zip(order).all(|(found, at)| Arc::ptr_eq(found, &sets[at])), "{size}");
        }
    }

    /// What the smallest and the largest weight of a channel say is what all of them say.
    #[test]
    fn extremes_fold_as_all_weights_do() {
        let numbers = [0.0, -0.0, 1.0, -3e38, 1e-30, -1.5e-38, 1e-40, f32::INFINITY, f32::NAN, 2.5e19];
        let mut state = 1_u32;
        let mut next = |count: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % count
        };
        let operators =
            [(Operator::from(Conv::new([4, 3, 2])), 2), (Operator::from(ConvTranspose::new([4, 3, 2]).group(2)), 2)];
        let mut folds = [0, 0];
        for i in 0..4000 {
            let (operator, group) = &operators[i % 2];
            let channels = OutputChannels::of(operator, *group).unwrap();
            // Mostly harmless numbers, so that both answers are frequent.
            let mut number =
                |odd: usize| if next(odd) == 0 { numbers[next(numbers.len())] } else { 1.0 + next(9) as f32 };
            let w: Vec<f32> = (0..24).map(|_| number(40)).collect();
            let bias: Vec<f32> = (0..channels.count).map(|_| number(40)).collect();
            let constants = Constants { w: w.into(), bias: (i % 3 > 0).then(|| bias.into()) };
            let mut scaling = |count: usize| Affine {
                is_broadcast: count == 1,
                factors: (0..count).map(|_| f64::from(number(10))).collect(),
                means: vec![f64::from(number(20)); count],
                shifts: vec![f64::from(number(20)); count],
            };
            let scalings = [scaling(channels.count), scaling(1)];
            let all = folded(constants.clone(), &scalings, &channels).is_some();
            assert_eq!(can_fold(&constants, &scalings, &channels), all, "{:?} {:?}", constants.w, constants.bias);
            folds[usize::from(all)] += 1;
        }
        assert!(folds.iter().all(|count| *count > 400), "{folds:?}");
    }

    #[test]
    fn groups_that_do_not_divide_and_empty_weights_have_no_channels() {
        let of = |operator: Operator, group| OutputChannels::of(&operator, group).is_none();
        assert!(of(ConvTranspose::new([5, 3, 2]).into(), 2));
        assert!(of(Conv::new([usize::MAX / 2, 0, 3]).into(), 1));
        assert!(of(ConvTranspose::new([0, usize::MAX / 2, 3]).into(), 4));
        assert!(of(Conv::new([4, 2, 0]).into(), 1));
    }
}
