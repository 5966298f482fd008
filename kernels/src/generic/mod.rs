//! The kernels, written once over [`Simd`](crate::simd::Simd) and instantiated by the lists of
//! each ISA.

pub(crate) mod activation;
pub(crate) mod depthwise;
pub(crate) mod gemm;
pub(crate) mod grouped;
pub(crate) mod upsample;
pub(crate) mod weave;
pub(crate) mod winograd;

/// Instantiates a generic GEMM micro-kernel for a list of tiles, and lists the instances in a
/// table. The first size of a tile is its MR; for two rows of pixels it is the number of pixels
/// of one row.
macro_rules! tiles {
    (spatial, $($list:tt)*) => {
        $crate::generic::tile_table! { spatial, SpatialKernel, SpatialArgs, 1, {}, $($list)* }
    };
    (channel, $($list:tt)*) => {
        $crate::generic::tile_table! { channel, ChannelKernel, ChannelArgs, 1, { rows: 1 }, $($list)* }
    };
    (two_rows, $($list:tt)*) => {
        $crate::generic::tile_table! { two_rows, ChannelKernel, ChannelArgs, 2, { rows: 2 }, $($list)* }
    };
}
pub(crate) use tiles;

/// The instances and the table of [`tiles`]. `$own` are the fields that only this kind of
/// descriptor has.
macro_rules! tile_table {
    ($generic:ident, $kernel:ident, $args:ident, $rows:literal, $own:tt, $vector:ty, $isa:expr, #[$attr:meta], $table:ident: $($name:ident($mr:literal, $nrv:literal)),+ $(,)?) => {
        $(
            /// # Safety
            /// As for the generic kernel, with this ISA and tile.
            #[$attr]
            unsafe fn $name(args: &crate::ukernel::$args<<$vector as crate::simd::Simd>::Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::gemm::$generic::<$vector, $mr, $nrv>(args) }
            }
        )+
        pub(crate) static $table: &[crate::ukernel::$kernel<<$vector as crate::simd::Simd>::Elem>] = &[$(
            $crate::generic::tile! {
                $kernel, $own,
                name: stringify!($name),
                isa: $isa,
                mr: $rows * $mr,
                nrv: $nrv,
                lanes: <$vector as crate::simd::Simd>::LANES,
                fmas: $rows * $mr * $nrv * <$vector as crate::simd::Simd>::REGISTERS,
                loads: $nrv * <$vector as crate::simd::Simd>::REGISTERS
                    + $rows * usize::div_ceil($mr, <$vector as crate::simd::Simd>::SCALARS),
                f: $name,
            }
        ),+];
    };
}
pub(crate) use tile_table;

/// A descriptor with the fields of all kinds, and its own.
macro_rules! tile {
    ($kernel:ident, { $($own:tt)* }, $($fields:tt)*) => {
        crate::ukernel::$kernel { $($fields)* $($own)* }
    };
}
pub(crate) use tile;

/// Instantiates the Winograd transforms of one ISA and element type, and lists them in a table.
/// The tiles are the same for all:
/// `name(values down, outputs down; values along, outputs along)`. A name says outputs and taps.
macro_rules! winograd_tiles {
    ($vector:ty, $elem:ident, $isa:expr, #[$attr:meta]) => {
        $crate::generic::winograd_tiles! {
            $vector, $elem, $isa, #[$attr]:
            f5x5_2x2(6, 5; 6, 5), f2x2_3x3(4, 2; 4, 2), f4x2_3x3(6, 4; 4, 2), f4x4_3x3(6, 4; 6, 4), f4x5_3x3(6, 4; 7, 5), f3x3_4x4(6, 3; 6, 3), f2x2_5x5(6, 2; 6, 2), f2x4_5x5(6, 2; 8, 4), f4x4_5x5(8, 4; 8, 4), f6x6_3x3(8, 6; 8, 6),
            f1x5_1x2(1, 1; 6, 5), f1x2_1x3(1, 1; 4, 2), f1x4_1x3(1, 1; 6, 4), f1x3_1x4(1, 1; 6, 3), f1x4_1x5(1, 1; 8, 4), f1x6_1x3(1, 1; 8, 6),
            f4x1_3x1(6, 4; 1, 1), f3x1_4x1(6, 3; 1, 1), f4x1_5x1(8, 4; 1, 1)
        }
    };
    ($vector:ty, $elem:ident, $isa:expr, #[$attr:meta]: $($name:ident($nv:literal, $mv:literal; $nh:literal, $mh:literal)),+) => {
        $(
            mod $name {
                use super::*;

                /// # Safety
                /// As for the generic transform, with this ISA and tile.
                #[$attr]
                pub(super) unsafe fn split(args: &crate::winograd::SplitArgs<'_, $elem>) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::winograd::split::<$vector, $nh, $mh>(args) }
                }

                /// # Safety
                /// As for the generic transform, with this ISA and tile.
                #[$attr]
                pub(super) unsafe fn input(args: &crate::winograd::InputArgs<$elem>) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::winograd::input::<$vector, $nv, $nh>(args) }
                }

                /// # Safety
                /// As for the generic transform, with this ISA and tile.
                #[$attr]
                pub(super) unsafe fn straight(args: &crate::winograd::StraightArgs<'_, $elem>) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::winograd::straight::<$vector, $nv, $nh, $mv, $mh>(args) }
                }

                /// # Safety
                /// As for the generic transform, with this ISA and tile.
                #[$attr]
                pub(super) unsafe fn output(args: &crate::winograd::OutputArgs<$elem>) -> bool {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::winograd::output::<$vector, $nv, $nh, $mv, $mh>(args) }
                }
            }
        )+

        /// # Safety
        /// As for the generic function, with this ISA.
        #[$attr]
        unsafe fn extend(args: &crate::winograd::SplitArgs<'_, $elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::winograd::extend::<$vector>(args) }
        }

        pub(crate) static WINOGRAD: &[crate::WinogradKernel<$elem>] = &[$(
            crate::WinogradKernel {
                name: concat!(stringify!($elem), "_winograd_", stringify!($name)),
                isa: $isa,
                lanes: <$vector as crate::simd::Simd>::LANES,
                down: crate::winograd::Tile { values: $nv, outputs: $mv },
                along: crate::winograd::Tile { values: $nh, outputs: $mh },
                split: $name::split,
                extend,
                input: $name::input,
                straight: if crate::generic::winograd::is_straight::<$vector>($nv, $nh, $mh) { Some($name::straight) } else { None },
                output: $name::output,
            }
        ),+];
    };
}
pub(crate) use winograd_tiles;

/// Instantiates the weaving kernels of one ISA and element type, and lists them in a table.
macro_rules! weave_kernel {
    ($vector:ty, $isa:expr, #[$attr:meta], $table:ident: $name:ident, $fetch:ident, $sum:ident, $pick:ident) => {
        /// # Safety
        /// As for the generic kernel, with this ISA.
        #[$attr]
        unsafe fn $sum(args: &crate::weave::SumArgs<'_, <$vector as crate::simd::Simd>::Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::weave::sum::<$vector>(args) }
        }

        /// # Safety
        /// As for the generic kernel, with this ISA.
        #[$attr]
        unsafe fn $pick(args: &crate::weave::PickArgs<'_, <$vector as crate::simd::Simd>::Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::weave::pick::<$vector>(args) }
        }

        /// # Safety
        /// As for the generic kernel, with this ISA.
        #[$attr]
        unsafe fn $fetch(args: &crate::weave::FetchArgs<'_, <$vector as crate::simd::Simd>::Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::weave::fetch::<$vector>(args) }
        }

        /// # Safety
        /// As for the generic kernel, with this ISA.
        #[$attr]
        unsafe fn $name(args: &crate::weave::WeaveArgs<'_, <$vector as crate::simd::Simd>::Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::weave::weave::<$vector>(args) }
        }
        pub(crate) static $table: &[crate::WeaveKernel<<$vector as crate::simd::Simd>::Elem>] = &[crate::WeaveKernel {
            name: stringify!($name),
            isa: $isa,
            lanes: <$vector as crate::simd::Simd>::LANES,
            f: $name,
            fetch: $fetch,
            sum: $sum,
            pick: $pick,
        }];
    };
}
pub(crate) use weave_kernel;

/// Instantiates the activations of one ISA and element type.
macro_rules! activation_kernel {
    ($vector:ty, #[$attr:meta], $kernel:ident: $name:ident) => {
        /// # Safety
        /// As for the generic kernel, with this ISA.
        #[$attr]
        unsafe fn $name(args: &crate::activation::ActivateArgs<<$vector as crate::simd::Simd>::Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::activation::activate::<$vector>(args) }
        }
        pub(crate) const $kernel: crate::activation::ActivateKernel<<$vector as crate::simd::Simd>::Elem> = $name;
    };
}
pub(crate) use activation_kernel;
