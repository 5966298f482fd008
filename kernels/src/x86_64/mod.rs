//! The kernels for x86-64.

pub(crate) mod avx2;
#[cfg(feature = "avx512")]
pub(crate) mod avx512;

/// Implements [`deinterleave`](crate::simd::Simd::deinterleave) for `M` = 4 vectors, by unzipping pairs.
#[inline(always)]
fn quarters<V: crate::simd::Simd, const M: usize>(v: [V; M]) -> [V; M] {
    let ((even0, odd0), (even1, odd1)) = (v[0].unzip(v[1]), v[2].unzip(v[3]));
    let mut every = v;
    (every[0], every[2]) = even0.unzip(even1);
    (every[1], every[3]) = odd0.unzip(odd1);
    every
}

/// Transposes the 4x4 blocks within 128-bit lanes of rows `$g` to `$g + 3` of `f32`: lane l of row `$g + c`
/// becomes column `4 * l + c` of these rows. `$low` and `$high` unpack two registers.
macro_rules! transpose_blocks {
    ($rows:ident: $($g:literal)+ by $low:ident $high:ident,
        $low_pairs:ident $high_pairs:ident, $to:ident $from:ident) => {$(
        let (a, b) = ($low($rows[$g].0, $rows[$g + 1].0), $high($rows[$g].0, $rows[$g + 1].0));
        let (c, d) = ($low($rows[$g + 2].0, $rows[$g + 3].0), $high($rows[$g + 2].0, $rows[$g + 3].0));
        let (a, b, c, d) = ($to(a), $to(b), $to(c), $to(d));
        let columns = [$low_pairs(a, c), $high_pairs(a, c), $low_pairs(b, d), $high_pairs(b, d)];
        for c in 0..4 {
            $rows[$g + c] = Self($from(columns[c]));
        }
    )+};
}
use transpose_blocks;

/// What the vectors of all ISAs of x86-64 have in common, by the operations of the module `$ops`.
macro_rules! common {
    ($elem:ident by $ops:ident) => {
        type Elem = $elem;
        const REGISTERS: usize = 1;
        crate::simd::broadcast_scalars!();
        crate::registers::lane_wise!($elem by $ops: 0);

        #[inline(always)]
        fn prefetch_near(p: *const $elem) {
            // SAFETY: a prefetch is a hint. It reads nothing that the program could see, and faults
            // on no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: SSE is part of x86-64, and the instruction only orders stores.
            unsafe { _mm_sfence() };
        }

        #[inline(always)]
        unsafe fn store_past_cache(self, p: *mut $elem) {
            // SAFETY: the caller's promise of ISA and memory.
            unsafe { $ops::stream(p, self.0) }
        }

        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: a vector is the proof of the ISA.
            unsafe { Self($ops::fmadd(self.0, b.0, c.0)) }
        }
    };
}
use common;
