//! The planner's list of lowerings, and the checks that all of them need.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;
use core::str::FromStr;

use super::contract::{Answer, Request};
use super::{
    channel_gemm, col2im, depthwise, depthwise_transposed, exact, gemm, grouped, im2col, pixels, transposed, winograd,
};
use crate::choice::{Algorithm, Blas};
use crate::error::{Error, bail};
use crate::exec::Line;
use crate::{DType, Element, Geometry, Layout, Op, bf16, f16};

/// Rows, steps of k or channels of a GEMM, at most. The product of two of them, or of one and a chunk's
/// columns, fits the address space, so that lowerings need not check each.
const MOST_SIZE: usize = 1 << (usize::BITS / 2 - 1);

/// Taps of a kernel, at most: tables have an entry for each.
const MOST_TAPS: usize = 1 << 24;

/// Checks that the sizes are in the range of all lowerings but `naive`.
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

/// An offer that fits the limit of the workspace. Chunks and tiles are as large as the caches suggest,
/// or smaller if these do not fit. `offer` gets the bytes that they should not exceed.
fn fitting<'a, T: Element>(request: &'a Request<'a, T>, offer: OfferOf<T>) -> Answer<'a, T> {
    let mut best = offer(request, usize::MAX)?;
    // A task needs more than these bytes count, hence several attempts.
    for part in [1, 2, 4, 8] {
        if best.recipe.scratch.lines().saturating_mul(size_of::<Line>()) <= request.task_bytes {
            break;
        }
        if let Ok(smaller) = offer(request, request.task_bytes / part)
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
    /// The operator that it is for; none if it is for both.
    only_for: Option<Op>,
    accepts: Rules,
    offer: OfferOf<T>,
    /// The layout of X and Y that it needs; none if it takes any.
    layout: Option<Layout>,
}

type Rules = fn(&Geometry) -> Result<(), String>;

/// The rules of algorithms that compute every layer of their operator.
const ANY: Rules = |_| Ok(());

/// A lowering's offer for a request, with chunks and tiles of at most so many bytes.
type OfferOf<T> = for<'a> fn(&'a Request<'a, T>, usize) -> Answer<'a, T>;

impl<T: Element> Candidate<T> {
    fn new(name: &'static str, only_for: impl Into<Option<Op>>, accepts: Rules, offer: OfferOf<T>) -> Self {
        let layout = Some(Layout::ChannelsFirst);
        Self { algorithm: Algorithm(name), only_for: only_for.into(), accepts, offer, layout }
    }

    fn with_layout(self, layout: Option<Layout>) -> Self {
        Self { layout, ..self }
    }

    pub(crate) fn is_for(&self, op: Op) -> bool {
        self.only_for.is_none_or(|only| only == op)
    }

    /// The offer, or the reason why there is none. If weights are packed already, the offer has their
    /// layout.
    pub(crate) fn ask<'a>(&self, request: &'a Request<'a, T>) -> Answer<'a, T> {
        if self.algorithm != Algorithm::NAIVE {
            check_sizes(request.geometry)?;
        }
        self.check_rules(request.geometry)?;
        let offer = fitting(request, self.offer)?;
        match request.layout {
            Some(packed) if *packed != offer.recipe.layout => Err(packed.mismatch()),
            _ => Ok(offer),
        }
    }

    /// Checks whether it can compute a layer: the operator, whether there is anything to compute (unless
    /// it is `naive`), and its own rules.
    ///
    /// # Errors
    /// The reason why not.
    fn check_rules(&self, geometry: &Geometry) -> Result<(), String> {
        if let Some(op) = self.only_for
            && op != geometry.op
        {
            return Err(alloc::format!("only for {op}"));
        }
        if self.algorithm != Algorithm::NAIVE && geometry.output_len() == 0 {
            return Err(String::from("the output is empty"));
        }
        for (name, layout) in [("X", geometry.x_layout), ("Y", geometry.y_layout)] {
            if let Some(needed) = self.layout.filter(|needed| *needed != layout) {
                return Err(alloc::format!("{name} has its {layout}, only {needed}"));
            }
        }
        (self.accepts)(geometry)
    }
}

type List<T> = fn() -> Vec<Candidate<T>>;

// The lists of all element types. As they are named here, lowerings are compiled with this crate, and
// not again with each program that makes plans. Each is a static, so that a program links only those of
// its types.
static OF_F32: List<f32> = list;
static OF_F64: List<f64> = list;
static OF_F16: List<f16> = list;
static OF_BF16: List<bf16> = list;

/// The planner's list. The cheapest offer is taken, and the first of equal ones.
pub(crate) fn candidates<T: Element>() -> Vec<Candidate<T>> {
    let list: &dyn Any = match T::DTYPE {
        DType::F32 => &OF_F32,
        DType::F64 => &OF_F64,
        DType::F16 => &OF_F16,
        DType::BF16 => &OF_BF16,
    };
    list.downcast_ref::<List<T>>().expect("the list is that of the type")()
}

/// All algorithms: the one place that names them.
fn list<T: Element>() -> Vec<Candidate<T>> {
    use Op::{Conv, ConvTranspose};
    vec![
        Candidate::new(Algorithm::WINOGRAD.0, None, winograd::accepts, winograd::offer).with_layout(None),
        Candidate::new("gemm", Conv, ANY, gemm::offer),
        Candidate::new("im2col:native", Conv, ANY, |r, bytes| im2col::offer(r, Blas::Native, bytes)),
        Candidate::new("im2col:gemm", Conv, ANY, |r, bytes| im2col::offer(r, Blas::Gemm, bytes)),
        Candidate::new("im2col:matrixmultiply", Conv, ANY, |r, bytes| im2col::offer(r, Blas::Matrixmultiply, bytes)),
        Candidate::new("channel-gemm", ConvTranspose, ANY, channel_gemm::offer),
        Candidate::new("transposed", ConvTranspose, transposed::accepts, transposed::offer),
        Candidate::new("col2im:native", ConvTranspose, col2im::accepts, |r, bytes| {
            col2im::offer(r, Blas::Native, bytes)
        })
        .with_layout(None),
        Candidate::new("col2im:gemm", ConvTranspose, col2im::accepts, |r, bytes| col2im::offer(r, Blas::Gemm, bytes))
            .with_layout(None),
        Candidate::new("col2im:matrixmultiply", ConvTranspose, col2im::accepts, |r, bytes| {
            col2im::offer(r, Blas::Matrixmultiply, bytes)
        })
        .with_layout(None),
        Candidate::new(Algorithm::NAIVE.0, None, ANY, |r, _| Ok(exact::offer(r))).with_layout(None),
        Candidate::new("pixel-depthwise", None, pixels::depthwise::accepts, pixels::depthwise::offer).with_layout(None),
        Candidate::new("pixel-gemm", None, ANY, pixels::gemm::offer).with_layout(None),
        Candidate::new("depthwise", Conv, depthwise::accepts, depthwise::offer),
        Candidate::new("grouped", Conv, grouped::accepts, |r, _| grouped::offer(r)),
        Candidate::new(
            "depthwise-transposed",
            ConvTranspose,
            depthwise_transposed::accepts,
            depthwise_transposed::offer,
        ),
    ]
}

impl Algorithm {
    /// All of them, in the planner's order.
    pub fn all() -> impl Iterator<Item = Self> {
        candidates::<f32>().into_iter().map(|candidate| candidate.algorithm)
    }

    /// Whether the algorithm can compute a layer, by its shapes and attributes. A plan can still
    /// be refused: for sizes beyond its tables' reach, for the limit of the workspace, because the
    /// build or the ISA lacks kernels, because weights are packed otherwise, or, for `winograd`,
    /// because of [`Accuracy::Strict`](crate::Accuracy::Strict).
    ///
    /// # Errors
    /// The rule that the layer breaks, with the value that breaks it.
    ///
    /// ```
    /// use convoke::{Algorithm, Conv};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let geometry = Conv::new([8, 4, 3, 3]).geometry(&[1, 4, 16, 16])?;
    /// assert_eq!("gemm".parse::<Algorithm>()?.accepts(&geometry), Ok(()));
    /// assert_eq!("depthwise-transposed".parse::<Algorithm>()?.accepts(&geometry).unwrap_err(), "only for ConvTranspose");
    /// # Ok(()) }
    /// ```
    pub fn accepts(self, geometry: &Geometry) -> Result<(), String> {
        let candidates = candidates::<f32>();
        let candidate = candidates.iter().find(|candidate| candidate.algorithm == self);
        candidate.expect("every algorithm is a candidate").check_rules(geometry)
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    /// The algorithm of a [name](Algorithm::name), in upper or lower case.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable), with all names.
    fn from_str(s: &str) -> Result<Self, Error> {
        match Self::all().find(|algorithm| algorithm.name().eq_ignore_ascii_case(s)) {
            Some(algorithm) => Ok(algorithm),
            None => {
                let names = Self::all().map(Self::name).collect::<Vec<_>>().join(", ");
                bail!(Unavailable, "unknown algorithm {s:?}: expected one of {names}")
            }
        }
    }
}
