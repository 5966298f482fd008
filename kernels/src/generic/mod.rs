//! Algorithms written once over [`Simd`](crate::simd::Simd), instantiated by every ISA's tile list.

pub(crate) mod depthwise;
pub(crate) mod gemm;

/// Instantiates a generic micro-kernel for a list of tiles, and lists the instances in a table.
macro_rules! tiles {
    ($generic:ident, $kernel:ident, $args:ident, $vector:ty, $isa:expr, #[$attr:meta], $table:ident: $($name:ident($mr:literal, $nrv:literal)),+ $(,)?) => {
        $(
            /// # Safety
            /// As the generic kernel's, for this ISA and tile.
            #[$attr]
            unsafe fn $name(args: &crate::ukernel::$args<<$vector as crate::simd::Simd>::Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::gemm::$generic::<$vector, $mr, $nrv>(args) }
            }
        )+
        pub(crate) static $table: &[crate::ukernel::$kernel<<$vector as crate::simd::Simd>::Elem>] = &[$(
            crate::ukernel::$kernel {
                name: stringify!($name),
                isa: $isa,
                mr: $mr,
                nrv: $nrv,
                lanes: <$vector as crate::simd::Simd>::LANES,
                f: $name,
            }
        ),+];
    };
}
pub(crate) use tiles;
