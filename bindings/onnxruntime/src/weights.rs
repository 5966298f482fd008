//! The weights of a layer: folded with a normalisation, packed, and shared between sessions.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use convoke::{Element, Error, ErrorKind, Operator, Plan, PlanCache, Planner};
use num_traits::AsPrimitive;
use xxhash_rust::xxh3::Xxh3;

use crate::api::{Failure, Result, lock};
use crate::fusion::Scaling;
use crate::graph::Value;

/// Plans that a layer keeps, at the most, for each set of packed weights.
pub(crate) const MOST_PLANS: NonZeroUsize = NonZeroUsize::new(32).unwrap();
/// Sets of packed weights that a layer keeps, at the most.
const MOST_SETS: usize = 4;
/// How often the size of an image may be that of the usual one before weights are packed anew for
/// it. Within half and twice the size, the documentation of `Planner::packed_for` says, little is
/// lost.
const MOST_RATIO: usize = 4;

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
pub(crate) trait Scalar: Element + AsPrimitive<f64> {
    /// The nearest element.
    fn of(value: f64) -> Self;
}

impl<T> Scalar for T
where
    T: Element + AsPrimitive<f64>,
    f64: AsPrimitive<T>,
{
    fn of(value: f64) -> Self {
        value.as_()
    }
}

/// The plans of one layer with constant weights.
pub(crate) struct PackedLayer<T: Element> {
    /// Missing where the size of an image is the same in every run.
    source: Option<Source<T>>,
    /// Each with the number of elements of an image that it was packed for.
    sets: Mutex<Vec<(usize, Arc<PlanCache<T>>)>>,
}

/// What weights are packed from when an image of another size comes.
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

/// The number of elements of one image of X.
fn image_len(x_shape: &[usize]) -> usize {
    x_shape.iter().skip(1).product()
}

fn is_near(len: usize, other: usize) -> bool {
    len.max(other) <= MOST_RATIO * len.min(other)
}

impl<T: Element> PackedLayer<T> {
    /// Of weights that are packed, for X whose images all have the size of this shape's.
    pub(crate) fn of_size(cache: Arc<PlanCache<T>>, x_shape: &[usize]) -> Self {
        Self { source: None, sets: Mutex::new(vec![(image_len(x_shape), cache)]) }
    }

    /// Packs when X is there.
    pub(crate) fn of_any_size(planner: Planner, operator: Operator, constants: Constants<'_, T>) -> Self {
        let constants = constants.into_owned();
        Self { source: Some(Source { planner, operator, constants }), sets: Mutex::default() }
    }

    /// The plan for X of a shape.
    pub(crate) fn plan(&self, x_shape: &[usize]) -> Result<Planned<T>> {
        let len = image_len(x_shape);
        let found = self.nearest(len);
        let Some(source) = &self.source else {
            let cache = found.ok_or_else(|| Failure::other("a layer without weights"))?;
            return Ok(Planned { plan: cache.plan(x_shape)?, cache });
        };
        if let Some(cache) = found {
            match cache.plan(x_shape) {
                Err(error) if error.kind() == ErrorKind::PackedMismatch => {}
                plan => return Ok(Planned { plan: plan?, cache }),
            }
        }
        let usual = with_an_image(x_shape.to_vec());
        let cache = Arc::new(pack(&source.planner, &source.operator, &usual, &source.constants)?);
        let plan = cache.plan(x_shape)?;
        let mut sets = lock(&self.sets);
        // Another thread may have packed for this size meanwhile. Its set stays, too, and is the
        // first to go.
        if sets.len() >= MOST_SETS {
            sets.remove(0);
        }
        sets.push((len, cache.clone()));
        drop(sets);
        Ok(Planned { plan, cache })
    }

    /// The set that was packed for the size nearest to that of an image, unless another one should
    /// be packed.
    fn nearest(&self, len: usize) -> Option<Arc<PlanCache<T>>> {
        let sets = lock(&self.sets);
        let (usual, cache) = sets.iter().min_by_key(|(usual, _)| len.max(*usual) / len.min(*usual).max(1))?;
        let fits = self.source.is_none() || is_near(*usual, len) || sets.len() >= MOST_SETS;
        fits.then(|| cache.clone())
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
    PlanCache::new(planner.clone(), operator.clone(), x_shape, w, bias, MOST_PLANS)
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
            Scaling::Shifts(shifts) => {
                Self { is_broadcast, factors: vec![1.0], means: vec![0.0], shifts: read(shifts)? }
            }
        })
    }

    /// Puts the factors into W, and the rest into the bias.
    pub(crate) fn fold_into<T: Scalar>(
        &self,
        constants: &mut Constants<'_, T>,
        operator: &Operator,
        group: usize,
    ) -> Result<()> {
        let channels = OutputChannels::of(operator, group);
        let of_channels = |values: &[f64]| match *values {
            [one] if self.is_broadcast => Ok(vec![one; channels.count]),
            _ if values.len() == channels.count => Ok(values.to_vec()),
            _ => Err(Failure::invalid(format_args!(
                "{}: the constants of the BatchNormalization behind it must have {} elements, one for each channel",
                operator.op_name(),
                channels.count
            ))),
        };
        let (factors, means, shifts) =
            (of_channels(&self.factors)?, of_channels(&self.means)?, of_channels(&self.shifts)?);
        for (i, w) in constants.w.to_mut().iter_mut().enumerate() {
            let own: f64 = (*w).as_();
            *w = T::of(own * factors[channels.of_weight(i)]);
        }
        let bias = constants.bias.take();
        let bias = (0..channels.count).map(|m| {
            let own: f64 = bias.as_ref().map_or(0.0, |bias| bias[m].as_());
            T::of((own - means[m]) * factors[m] + shifts[m])
        });
        constants.bias = Some(bias.collect::<Vec<_>>().into());
        Ok(())
    }
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
    /// W is `(M, C / group, k...)` for Conv, and `(C, M / group, k...)` for ConvTranspose.
    pub(crate) fn of(operator: &Operator, group: usize) -> Self {
        let (shape, group) = (operator.weight_shape(), group.max(1));
        let taps: usize = shape.iter().skip(2).product();
        let (rows, columns) = (shape[0], shape[1]);
        match operator {
            Operator::ConvTranspose(_) => Self {
                count: columns * group,
                in_group: columns,
                step: taps.max(1),
                group_step: (rows / group * columns * taps).max(1),
            },
            _ => Self { count: rows, in_group: rows, step: (columns * taps).max(1), group_step: usize::MAX },
        }
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
        let conv = OutputChannels::of(&Conv::new([4, 3, 2]).into(), 2);
        assert_eq!([0, 5, 6, 23].map(|i| conv.of_weight(i)), [0, 0, 1, 3]);
        // 4 input channels in 2 groups, 3 output channels in each, 2 taps.
        let transposed = OutputChannels::of(&ConvTranspose::new([4, 3, 2]).group(2).into(), 2);
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
}
