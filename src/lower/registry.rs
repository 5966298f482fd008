//! The planner's list of lowerings, and what all of them need of a layer.

use alloc::string::String;

use super::contract::{Answer, Request};
use super::{
    channel_gemm, col2im, depthwise, grouped, im2col, implicit_gemm, naive, pointwise, transposed, upsample, winograd,
};
use crate::choice::{Algorithm, Blas};
use crate::exec::Line;
use crate::{Element, Geometry};

/// Rows, steps of k or channels of a GEMM, at the most: products of two of them, and of one of them
/// with a slab's columns, fit the address space, so that the lowerings need not check each.
const MOST: usize = 1 << (usize::BITS / 2 - 1);

/// Taps of a kernel, at the most: tables have entries for each.
const MOST_TAPS: usize = 1 << 24;

/// Whether the sizes are of this world, for every lowering but the naive one.
///
/// # Errors
/// The reason why not.
pub(crate) fn check_sizes(geometry: &Geometry) -> Result<(), String> {
    let k = geometry.in_channels_per_group().checked_mul(geometry.kernel_volume());
    let sizes = [Some(geometry.out_channels), Some(geometry.in_channels), k];
    if geometry.kernel_volume() > MOST_TAPS {
        return Err(alloc::format!("the kernel has {} taps, more than {MOST_TAPS}", geometry.kernel_volume()));
    }
    match sizes.iter().all(|size| size.is_some_and(|size| size <= MOST)) {
        true => Ok(()),
        false => Err(alloc::format!(
            "{} input and {} output channels, or channels times {} taps, exceed {MOST}",
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
    accepts: fn(&Geometry) -> Result<(), String>,
    offer: for<'a> fn(&'a Request<'a, T>) -> Answer<'a, T>,
}

impl<T: Element> Candidate<T> {
    /// The offer, or the reason why there is none.
    pub(crate) fn ask<'a>(&self, request: &'a Request<'a, T>) -> Answer<'a, T> {
        if self.algorithm != Algorithm::Naive {
            check_sizes(request.geometry)?;
        }
        (self.accepts)(request.geometry)?;
        (self.offer)(request)
    }
}

/// The planner's list. Of the offers, the cheapest is taken; of equals, the first.
pub(crate) fn candidates<T: Element>() -> [Candidate<T>; 18] {
    Algorithm::ALL.map(|algorithm| {
        let offer: for<'a> fn(&'a Request<'a, T>) -> Answer<'a, T> = match algorithm {
            Algorithm::Winograd => winograd::offer,
            Algorithm::Pointwise => |r| fitting(r, |bytes| pointwise::offer(r, bytes)),
            Algorithm::ImplicitGemm => |r| fitting(r, |bytes| implicit_gemm::offer(r, bytes)),
            Algorithm::ChannelGemm => |r| fitting(r, |bytes| channel_gemm::padded::offer(r, bytes)),
            Algorithm::ChannelGemmUnpadded => |r| fitting(r, |bytes| channel_gemm::unpadded::offer(r, bytes)),
            Algorithm::ChannelGemmImages => |r| fitting(r, |bytes| channel_gemm::images::offer(r, bytes)),
            Algorithm::ChannelGemmAdded => |r| fitting(r, |bytes| channel_gemm::added::offer(r, bytes)),
            Algorithm::Im2col(Blas::Native) => |r| fitting(r, |bytes| im2col::offer(r, Blas::Native, bytes)),
            Algorithm::Im2col(Blas::Gemm) => |r| fitting(r, |bytes| im2col::offer(r, Blas::Gemm, bytes)),
            Algorithm::Im2col(Blas::Matrixmultiply) => {
                |r| fitting(r, |bytes| im2col::offer(r, Blas::Matrixmultiply, bytes))
            }
            Algorithm::Transposed => |r| fitting(r, |bytes| transposed::offer(r, bytes)),
            Algorithm::Col2im(Blas::Native) => |r| fitting(r, |bytes| col2im::offer(r, Blas::Native, bytes)),
            Algorithm::Col2im(Blas::Gemm) => |r| fitting(r, |bytes| col2im::offer(r, Blas::Gemm, bytes)),
            Algorithm::Col2im(Blas::Matrixmultiply) => {
                |r| fitting(r, |bytes| col2im::offer(r, Blas::Matrixmultiply, bytes))
            }
            Algorithm::Naive => naive::offer,
            Algorithm::Depthwise => |r| fitting(r, |bytes| depthwise::offer(r, bytes)),
            Algorithm::Grouped => grouped::offer,
            Algorithm::Upsample => |r| fitting(r, |bytes| upsample::offer(r, bytes)),
        };
        Candidate { algorithm, accepts: rules(algorithm), offer }
    })
}

/// The rules of each algorithm.
fn rules(algorithm: Algorithm) -> fn(&Geometry) -> Result<(), String> {
    match algorithm {
        Algorithm::Pointwise => pointwise::accepts,
        Algorithm::ImplicitGemm => implicit_gemm::accepts,
        Algorithm::ChannelGemm => channel_gemm::padded::accepts,
        Algorithm::ChannelGemmUnpadded => channel_gemm::unpadded::accepts,
        Algorithm::ChannelGemmImages => channel_gemm::images::accepts,
        Algorithm::ChannelGemmAdded => channel_gemm::added::accepts,
        Algorithm::Im2col(_) => im2col::accepts,
        Algorithm::Transposed => transposed::accepts,
        Algorithm::Col2im(_) => col2im::accepts,
        Algorithm::Naive => |_| Ok(()),
        Algorithm::Depthwise => depthwise::accepts,
        Algorithm::Grouped => grouped::accepts,
        Algorithm::Upsample => upsample::accepts,
        Algorithm::Winograd => winograd::accepts,
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
        rules(self)(geometry)
    }
}
