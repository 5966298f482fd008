//! The kernels, written once over [`Simd`](crate::simd::Simd), and the macros by which an ISA lists its
//! instances.

#![expect(
    clippy::needless_range_loop,
    clippy::manual_memcpy,
    reason = "loops over indices unroll before arrays are split into registers; loops over iterators do not, and spill them"
)]

pub(crate) mod activation;
pub(crate) mod depthwise;
pub(crate) mod depthwise_transposed;
pub(crate) mod dot;
pub(crate) mod gemm;
pub(crate) mod grouped;
pub(crate) mod interleave;
pub(crate) mod pixel;
pub(crate) mod pixel_depthwise;
pub(crate) mod transpose;
pub(crate) mod winograd;

use crate::real::Real;
use crate::simd::Simd;
use crate::ukernel::EpilogueArgs;

/// All lanes are `x`, rounded. The vector `beside` shows that the CPU has the ISA.
#[inline(always)]
fn constant<V: Simd>(beside: V, x: f64) -> V {
    beside.splat_beside(V::Elem::from_f64(x))
}

/// The end of the epilogue, for sums that have their bias: adds the residual, clamps, and stores.
#[derive(Clone, Copy)]
pub(crate) struct VectorEpilogue<V: Simd> {
    residual: *const V::Elem,
    bounds: [V; 2],
    y: *mut V::Elem,
}

impl<V: Simd> VectorEpilogue<V> {
    /// For the elements of the destination and of the residual from `from` on.
    ///
    /// # Safety
    /// CPU: the ISA of `V`. Memory: the destination and the residual, unless it is null, have that element.
    #[inline(always)]
    pub(crate) unsafe fn new(epilogue: &EpilogueArgs<V::Elem>, y: *mut V::Elem, from: usize) -> Self {
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            let bounds = [V::splat(epilogue.lo), V::splat(epilogue.hi)];
            Self { residual: epilogue.residual_from(from), bounds, y: y.add(from) }
        }
    }

    /// Finishes a vector of sums, which go to the elements from `at` on.
    ///
    /// # Safety
    /// CPU: the ISA of `V`. Memory: those elements are writable, and the residual, unless it is null, is
    /// readable for as many.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, sums: V, at: usize) {
        let [lo, hi] = self.bounds;
        // SAFETY: the caller's promise of ISA and memory.
        unsafe {
            let sums = if self.residual.is_null() { sums } else { sums.add(V::load(self.residual.add(at))) };
            sums.clamp(lo, hi).store(self.y.add(at));
        }
    }

    /// Does the same as [`store`](Self::store) for the first `n` sums. A choice between the two would take
    /// registers from the loop around it, where `n` is not known.
    ///
    /// # Safety
    /// As `store`, for `n <= LANES` elements.
    #[inline(always)]
    pub(crate) unsafe fn store_first(&self, sums: V, at: usize, n: usize) {
        let [lo, hi] = self.bounds;
        // SAFETY: as in `store`.
        unsafe {
            let sums = if self.residual.is_null() { sums } else { sums.add(V::load_first(self.residual.add(at), n)) };
            sums.clamp(lo, hi).store_first(self.y.add(at), n);
        }
    }
}

/// Compiles generic kernels for the vectors `V` of one ISA, with the attribute that enables it. Each kind of
/// kernel is a module of its own, so that the compiler works on all kinds in parallel.
macro_rules! compile {
    (
        mod $module:ident of $vector:path, #[$attr:meta];
        $(fn $name:ident$(<$($size:ident),+>)?($args:ty) $(-> $result:ty)? = $generic:expr;)+
    ) => {
        mod $module {
            use $vector as V;

            $(
                /// # Safety
                /// As for the generic kernel, with this ISA and these sizes.
                #[$attr]
                pub(super) unsafe fn $name$(<$(const $size: usize),+>)?(args: &$args) $(-> $result)? {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { $generic(args) }
                }
            )+
        }
    };
}
pub(crate) use compile;

/// The kernels of one ISA and element type: its vectors, and its tiles. `32 x [1 2]` are tiles with an
/// NR of 32 and an MR of 1 and 2. They are the static `KERNELS` of the module `$module`.
macro_rules! kernels {
    (mod $module:ident: $isa:expr, #[$attr:meta], $elem:ident in $vector:ident; $($tiles:tt)+) => {
        pub(crate) mod $module {
            use super::vector::$vector;

            $crate::generic::kernels! { $isa, #[$attr], $elem in $vector; $($tiles)+ }
        }
    };
    (
        $isa:expr, #[$attr:meta], $elem:ident in $vector:ident;
        gemm: $($gemm_nr:literal x [$($gemm_mr:literal)+]),+;
        channel_gemm: $($channel_nr:literal x [$($channel_mr:literal)+]),+;
        pixel_gemm: $($pixel_nr:literal x [$($pixel_mr:literal)+]),+;
        pixel_dw: $($pixel_dw_nr:literal x [$($pixel_dw_mr:literal)+]),+;
        dw: $dw_nr:literal x [$($dw_mr:literal)+];
        $(dw in $half:path: $half_nr:literal x [$($half_mr:literal)+];)?
        dwt: $dwt_nr:literal x [$($dwt_mr:literal)+];
        group: $($group_nr:literal x [$($group_mr:literal)+]),+;
    ) => {
        use crate::depthwise::{DepthwiseKernel, DepthwiseKernels, DepthwisePasses};
        use crate::isa::Code;
        use crate::simd::Accumulator;
        use crate::catalogue::Kernels;

        const LANES: usize = $vector::LANES;

        $crate::generic::compile! {
            mod gemm of super::$vector, #[$attr];
            fn gemm<MR, NRV>(crate::ukernel::SpatialArgs<$elem>) = crate::generic::gemm::spatial::<V, MR, NRV>;
            fn channel_gemm<MR, NRV>(crate::ukernel::ChannelArgs<$elem>) = crate::generic::gemm::channel::<V, MR, NRV>;
        }

        $crate::generic::compile! {
            mod pixel of super::$vector, #[$attr];
            fn pixel_gemm<MR, NRV>(crate::pixel::PixelArgs<$elem>) = crate::generic::pixel::pixels::<V, MR, NRV>;
            fn pixel_dw<MR, NRV>(crate::pixel_depthwise::DepthwisePixelArgs<$elem>) =
                crate::generic::pixel_depthwise::pixels::<V, MR, NRV>;
        }

        $crate::generic::compile! {
            mod grouped of super::$vector, #[$attr];
            fn group<MR, NRV>(crate::grouped::FlatArgs<'_, $elem>) = crate::generic::grouped::flat::<V, MR, NRV>;
        }

        $crate::generic::compile! {
            mod depthwise of super::$vector, #[$attr];
            fn dw<R>(crate::depthwise::DepthwiseArgs<$elem>) = crate::generic::depthwise::tiles::<V, R, false>;
            fn dw_direct<R>(crate::depthwise::DirectArgs<'_, $elem>) = crate::generic::depthwise::direct::<V, R>;
            fn dwt<R>(crate::depthwise::DepthwiseArgs<$elem>) = crate::generic::depthwise::tiles::<V, R, true>;
            fn threes(crate::depthwise::DirectArgs<'_, $elem>) = crate::generic::depthwise::threes::<V>;
            fn gather(crate::depthwise::GatherArgs<$elem>) = crate::generic::depthwise::gather::<V>;
            fn scatter(crate::depthwise::ScatterArgs<$elem>) = crate::generic::depthwise::scatter::<V>;
        }

        $($crate::generic::compile! {
            mod narrow of $half, #[$attr];
            fn dw<R>(crate::depthwise::DepthwiseArgs<$elem>) = crate::generic::depthwise::tiles::<V, R, false>;
            fn dw_direct<R>(crate::depthwise::DirectArgs<'_, $elem>) = crate::generic::depthwise::direct::<V, R>;
        })?

        $crate::generic::compile! {
            mod winograd of super::$vector, #[$attr];
            fn extend(crate::winograd::ExtendArgs<'_, $elem>) = crate::generic::winograd::extend::<V>;
            fn split<NH, MH>(crate::winograd::SplitArgs<'_, $elem>) = crate::generic::winograd::split::<V, NH, MH>;
            fn input<NV, NH>(crate::winograd::InputArgs<$elem>) = crate::generic::winograd::input::<V, NV, NH>;
            fn straight<NV, NH, MV, MH>(crate::winograd::StraightArgs<'_, $elem>) =
                crate::generic::winograd::straight::<V, NV, NH, MV, MH>;
            fn input_pixels<NV, NH, MH>(crate::winograd::TilePixelArgs<$elem>) =
                crate::generic::winograd::input_pixels::<V, NV, NH, MH>;
            fn output<NV, NH, MV, MH>(crate::winograd::OutputArgs<'_, $elem>) -> bool =
                crate::generic::winograd::output::<V, NV, NH, MV, MH>;
        }

        $crate::generic::compile! {
            mod passes of super::$vector, #[$attr];
            fn activate(crate::activation::ActivateArgs<$elem>) = crate::generic::activation::activate::<V>;
            fn transpose(crate::transpose::TransposeArgs<$elem>) = crate::generic::transpose::transpose::<V>;
            fn interleave(crate::interleave::InterleaveArgs<'_, $elem>) = crate::generic::interleave::interleave::<V>;
            fn sum(crate::interleave::SumArgs<'_, $elem>) = crate::generic::interleave::sum::<V>;
            fn deinterleave(crate::interleave::DeinterleaveArgs<'_, $elem>) = crate::generic::interleave::deinterleave::<V>;
            fn depthwise_transposed<SH, KH, KW, ODD>(crate::depthwise_transposed::DepthwiseTransposedArgs<'_, $elem>) =
                crate::generic::depthwise_transposed::depthwise_transposed::<V, SH, KH, KW, ODD>;
        }

        pub(crate) static KERNELS: Kernels<$elem> = Kernels {
            spatial: &[$($(crate::SpatialKernel::new::<$vector>(
                (concat!(stringify!($elem), "_gemm_", $gemm_mr, "x", $gemm_nr), $isa),
                ($gemm_mr, $gemm_nr),
                gemm::gemm::<$gemm_mr, { $gemm_nr / LANES }>,
            )),+),+],
            channel: &[$($(crate::ChannelKernel::new::<$vector>(
                (concat!(stringify!($elem), "_channel_gemm_", $channel_nr, "x", $channel_mr), $isa),
                ($channel_mr, $channel_nr),
                gemm::channel_gemm::<$channel_mr, { $channel_nr / LANES }>,
            )),+),+],
            pixel: &[$($(crate::PixelKernel::new::<$vector>(
                (concat!(stringify!($elem), "_pixel_gemm_", $pixel_mr, "x", $pixel_nr), $isa),
                ($pixel_mr, $pixel_nr),
                pixel::pixel_gemm::<$pixel_mr, { $pixel_nr / LANES }>,
            )),+),+],
            pixel_depthwise: &[$($(crate::DepthwisePixelKernel::new::<$vector>(
                (concat!(stringify!($elem), "_pixel_dw_", $pixel_dw_mr, "x", $pixel_dw_nr), $isa),
                ($pixel_dw_mr, $pixel_dw_nr),
                pixel::pixel_dw::<$pixel_dw_mr, { $pixel_dw_nr / LANES }>,
            )),+),+],
            grouped: &[$($(crate::GroupedKernel::new::<$vector>(
                (concat!(stringify!($elem), "_group_", $group_mr, "x", $group_nr), $isa),
                ($group_mr, $group_nr),
                grouped::group::<$group_mr, { $group_nr / LANES }>,
            )),+),+],
            winograd: &$crate::generic::transforms!($isa, $elem, $vector),
            interleave: &[crate::InterleaveKernel {
                name: concat!(stringify!($elem), "_interleave"),
                lanes: LANES,
                code: Code::new($isa, crate::interleave::InterleaveCode {
                    interleave: passes::interleave,
                    sum: passes::sum,
                    deinterleave: passes::deinterleave,
                }),
            }],
            depthwise_transposed: &$crate::generic::transposed_table!($isa, $elem, $vector),
            activate: Code::new($isa, passes::activate),
            transpose: Code::new($isa, passes::transpose),
            depthwise: DepthwiseKernels {
                lanes: LANES,
                rows: &[$(DepthwiseKernel::along_rows::<$vector>(
                    (concat!(stringify!($elem), "_dw_", $dw_mr, "x", $dw_nr), $isa),
                    $dw_mr,
                    (depthwise::dw::<$dw_mr>, depthwise::dw_direct::<$dw_mr>, Some(depthwise::threes)),
                )),+],
                // No plan has narrow rows with stride 2.
                narrow: &[$($(DepthwiseKernel::along_rows::<$half>(
                    (concat!(stringify!($elem), "_dw_", $half_mr, "x", $half_nr), $isa),
                    $half_mr,
                    (narrow::dw::<$half_mr>, narrow::dw_direct::<$half_mr>, None),
                )),+)?],
                channels: &[$(DepthwiseKernel::along_channels::<$vector>(
                    (concat!(stringify!($elem), "_dwt_", $dwt_nr, "x", $dwt_mr), $isa),
                    $dwt_mr,
                    depthwise::dwt::<$dwt_mr>,
                )),+],
                code: Code::new($isa, DepthwisePasses {
                    gather: depthwise::gather,
                    scatter: depthwise::scatter,
                }),
            },
        };
    };
}
pub(crate) use kernels;

/// The Winograd transforms, the same for all ISAs and types: `name(values down, outputs down; values
/// along, outputs along)`. A name says outputs and taps.
macro_rules! transforms {
    ($isa:expr, $elem:ident, $vector:ident) => {
        $crate::generic::transforms! {
            $isa, $elem, $vector:
            f5x5_2x2(6, 5; 6, 5), f2x2_3x3(4, 2; 4, 2), f4x2_3x3(6, 4; 4, 2), f4x4_3x3(6, 4; 6, 4),
            f4x5_3x3(6, 4; 7, 5), f3x3_4x4(6, 3; 6, 3), f2x2_5x5(6, 2; 6, 2), f2x4_5x5(6, 2; 8, 4),
            f4x4_5x5(8, 4; 8, 4), f6x6_3x3(8, 6; 8, 6),
            f1x5_1x2(1, 1; 6, 5), f1x2_1x3(1, 1; 4, 2), f1x4_1x3(1, 1; 6, 4), f1x3_1x4(1, 1; 6, 3),
            f1x4_1x5(1, 1; 8, 4), f1x6_1x3(1, 1; 8, 6),
            f4x1_3x1(6, 4; 1, 1), f3x1_4x1(6, 3; 1, 1), f4x1_5x1(8, 4; 1, 1)
        }
    };
    ($isa:expr, $elem:ident, $vector:ident: $($name:ident($nv:literal, $mv:literal; $nh:literal, $mh:literal)),+) => {
        [$(crate::WinogradKernel {
            name: concat!(stringify!($elem), "_winograd_", stringify!($name)),
            lanes: LANES,
            down: crate::winograd::Tile { values: $nv, outputs: $mv },
            along: crate::winograd::Tile { values: $nh, outputs: $mh },
            is_straight: crate::generic::winograd::is_straight::<$vector>($nv, $nh, $mh),
            code: Code::new($isa, crate::winograd::WinogradCode {
                extend: winograd::extend,
                split: winograd::split::<$nh, $mh>,
                input: winograd::input::<$nv, $nh>,
                straight: winograd::straight::<$nv, $nh, $mv, $mh>,
                input_pixels: winograd::input_pixels::<$nv, $nh, $mh>,
                output: winograd::output::<$nv, $nh, $mv, $mh>,
            }),
        }),+]
    };
}
pub(crate) use transforms;

/// The kernels of depthwise transposed convolution, the same for all ISAs and types: the stride down,
/// and taps down x along.
macro_rules! transposed_table {
    ($isa:expr, $elem:ident, $vector:ident) => {
        $crate::generic::transposed_table! {
            $isa, $elem, $vector:
            (2: 2 x 2), (2: 3 x 3), (2: 4 x 4), (2: 5 x 5), (1: 1 x 2), (1: 1 x 3), (1: 1 x 4), (1: 1 x 5)
        }
    };
    ($isa:expr, $elem:ident, $vector:ident: $(($sh:literal: $kh:literal x $kw:literal)),+) => {
        [$(crate::DepthwiseTransposedKernel {
            name: concat!(stringify!($elem), "_dw_transposed_", $kh, "x", $kw),
            lanes: LANES,
            stride: $sh,
            kernel: ($kh, $kw),
            code: Code::new($isa, [passes::depthwise_transposed::<$sh, $kh, $kw, 0>, passes::depthwise_transposed::<$sh, $kh, $kw, 1>]),
        }),+]
    };
}
pub(crate) use transposed_table;
