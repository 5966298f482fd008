//! The planner's list of lowerings, and what all of them need of a layer.

use alloc::string::String;
use core::any::Any;

use super::contract::{Answer, Request};
use super::{
    channel_gemm, col2im, depthwise, exact, grouped, im2col, implicit_gemm, pointwise, transposed, upsample, winograd,
};
use crate::choice::{Algorithm, Blas};
use crate::exec::Line;
use crate::{DType, Element, Geometry, bf16, f16};

/// The most rows, steps of k or channels of a GEMM. The product of two of these sizes fits the
/// address space, and so does that of one and a slab's columns: lowerings need not check each.
const MOST_SIZE: usize = 1 << (usize::BITS / 2 - 1);

/// The most taps of a kernel: tables have entries for each.
const MOST_TAPS: usize = 1 << 24;

/// Checks that the sizes are within the reach of all lowerings but the naive one.
///
/// # Errors
/// The reason why not.
pub(crate) fn check_sizes(geometry: &Geometry) -> Result<(), String> {
    let k = geometry.in_channels_per_group().checked_mul(geometry.kernel_volume());
    let sizes = [Some(geometry.out_channels), Some(geometry.in_channels), k];
    if geometry.kernel_volume() > MOST_TAPS {
        return Err(alloc::format!("the kernel has {} taps, more than {MOST_TAPS}", geometry.kernel_volume()));
    }
    match sizes.iter().all(|size| size.is_some_and(|size| size <= MOST_SIZE)) {
        true => Ok(()),
        false => Err(alloc::format!(
            "{} input and {} output channels, or channels times {} taps, exceed {MOST_SIZE}",
            geometry.in_channels,
            geometry.out_channels,
            geometry.kernel_volume()
        )),
    }
}

/// The offer of a lowering that fits the limit of the workspace: with slabs and tiles as large as
/// the caches suggest where they fit, and with smaller ones otherwise. `offer` is given the bytes
/// that they should not exceed, besides the caches' bound.
fn fitting<'a, T: Element>(request: &'a Request<'a, T>, offer: impl Fn(usize) -> Answer<'a, T>) -> Answer<'a, T> {
    let mut best = offer(usize::MAX)?;
    // Not all that a task needs is counted in these bytes: hence several attempts.
    for part in [1, 2, 4, 8] {
        if best.recipe.scratch.lines().saturating_mul(size_of::<Line>()) <= request.task_bytes {
            break;
        }
        if let Ok(smaller) = offer(request.task_bytes / part)
            && smaller.recipe.scratch.lines() < best.recipe.scratch.lines()
        {
            best = smaller;
        }
    }
    Ok(best)
}

/// A candidate of the planner.
pub(crate) struct Candidate<T: Element> {
    pub(crate) algorithm: Algorithm,
    /// Whether the algorithm can compute a layer at all: rules of shapes and attributes.
    accepts: Rules,
    offer: OfferOf<T>,
}

impl<T: Element> Candidate<T> {
    /// The offer, or the reason why there is none. An offer for weights that are packed already has
    /// their layout.
    pub(crate) fn ask<'a>(&self, request: &'a Request<'a, T>) -> Answer<'a, T> {
        if self.algorithm != Algorithm::Naive {
            check_sizes(request.geometry)?;
        }
        check_rules(self.algorithm, self.accepts, request.geometry)?;
        let offer = (self.offer)(request)?;
        match request.layout {
            Some(packed) if *packed != offer.recipe.layout => Err(packed.mismatch()),
            _ => Ok(offer),
        }
    }
}

/// Rules of shapes and attributes.
type Rules = fn(&Geometry) -> Result<(), String>;

/// The rules of algorithms that compute every layer of their operator.
const ANY: Rules = |_| Ok(());

/// Checks whether an algorithm can compute a layer at all: for the operator, and unless it is naive,
/// for what there is to compute; then by rules of its own.
///
/// # Errors
/// The reason why not.
fn check_rules(algorithm: Algorithm, accepts: Rules, geometry: &Geometry) -> Result<(), String> {
    if let Some(op) = algorithm.only_for()
        && op != geometry.op
    {
        return Err(alloc::format!("only for {op}"));
    }
    if algorithm != Algorithm::Naive && geometry.output_len() == 0 {
        return Err(String::from("the output is empty"));
    }
    accepts(geometry)
}

/// What a lowering offers for a request.
type OfferOf<T> = for<'a> fn(&'a Request<'a, T>) -> Answer<'a, T>;

/// The candidates of an element type.
type List<T> = fn() -> [Candidate<T>; Algorithm::ALL.len()];

// The lists of all element types. Because they are named here, lowerings are compiled with this
// crate, and not again with every program that makes plans. Each is a static of its own, so that a
// program links those of its types alone.
static OF_F32: List<f32> = list;
static OF_F64: List<f64> = list;
static OF_F16: List<f16> = list;
static OF_BF16: List<bf16> = list;

/// The planner's list. Of the offers, the cheapest is taken; of equals, the first.
pub(crate) fn candidates<T: Element>() -> [Candidate<T>; Algorithm::ALL.len()] {
    let list: &dyn Any = match T::DTYPE {
        DType::F32 => &OF_F32,
        DType::F64 => &OF_F64,
        DType::F16 => &OF_F16,
        DType::BF16 => &OF_BF16,
    };
    list.downcast_ref::<List<T>>().expect("the list is that of the type")()
}

fn list<T: Element>() -> [Candidate<T>; Algorithm::ALL.len()] {
    Algorithm::ALL.map(|algorithm| {
        let (accepts, offer) = entry(algorithm);
        Candidate { algorithm, accepts, offer }
    })
}

/// The lowering of an algorithm.
fn entry<T: Element>(algorithm: Algorithm) -> (Rules, OfferOf<T>) {
    match algorithm {
        Algorithm::Winograd => (winograd::accepts, |r| fitting(r, |bytes| winograd::offer(r, bytes))),
        Algorithm::Pointwise => (pointwise::accepts, |r| fitting(r, |bytes| pointwise::offer(r, bytes))),
        Algorithm::ImplicitGemm => (ANY, |r| fitting(r, |bytes| implicit_gemm::offer(r, bytes))),
        Algorithm::ChannelGemm => (channel_gemm::accepts, |r| fitting(r, |bytes| channel_gemm::offer(r, bytes))),
        Algorithm::Im2col(blas) => (
            ANY,
            match blas {
                Blas::Native => |r| fitting(r, |bytes| im2col::offer(r, Blas::Native, bytes)),
                Blas::Gemm => |r| fitting(r, |bytes| im2col::offer(r, Blas::Gemm, bytes)),
                Blas::Matrixmultiply => |r| fitting(r, |bytes| im2col::offer(r, Blas::Matrixmultiply, bytes)),
            },
        ),
        Algorithm::Transposed => (transposed::accepts, |r| fitting(r, |bytes| transposed::offer(r, bytes))),
        Algorithm::Col2im(blas) => (
            ANY,
            match blas {
                Blas::Native => |r| fitting(r, |bytes| col2im::offer(r, Blas::Native, bytes)),
                Blas::Gemm => |r| fitting(r, |bytes| col2im::offer(r, Blas::Gemm, bytes)),
                Blas::Matrixmultiply => |r| fitting(r, |bytes| col2im::offer(r, Blas::Matrixmultiply, bytes)),
            },
        ),
        Algorithm::Naive => (ANY, |r| Ok(exact::offer(r))),
        Algorithm::Depthwise => (depthwise::accepts, |r| fitting(r, |bytes| depthwise::offer(r, bytes))),
        Algorithm::Grouped => (grouped::accepts, grouped::offer),
        Algorithm::Upsample => (upsample::accepts, |r| fitting(r, |bytes| upsample::offer(r, bytes))),
    }
}

impl Algorithm {
    /// Whether the algorithm can compute a layer, by its shapes and attributes. A plan can still
    /// be refused: for sizes beyond its tables' reach, for the limit of the workspace, because the
    /// build or the ISA lacks kernels, because weights are packed otherwise, or, for
    /// [`Winograd`](Self::Winograd), because of [`Accuracy::Strict`](crate::Accuracy::Strict).
    ///
    /// # Errors
    /// The rule that the layer breaks, with the value that breaks it.
    ///
    /// ```
    /// use convoke::{Algorithm, Conv};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let geometry = Conv::new([8, 4, 3, 3]).geometry(&[1, 4, 16, 16])?;
    /// assert_eq!(Algorithm::ImplicitGemm.accepts(&geometry), Ok(()));
    /// assert_eq!(
    ///     Algorithm::Pointwise.accepts(&geometry).unwrap_err(),
    ///     "spatial axis 0 has kernel 3, stride 1, pads 0 + 0, only kernel 1, stride 1 and no padding can be"
    /// );
    /// # Ok(()) }
    /// ```
    pub fn accepts(self, geometry: &Geometry) -> Result<(), String> {
        let (accepts, _) = entry::<f32>(self);
        check_rules(self, accepts, geometry)
    }
}
