//! What the tests of kernels share: numbers, and a mark.

use convoke_kernels::Real;

/// Deterministic values in (-1, 1).
pub(crate) struct Numbers(pub(crate) u32);

impl Numbers {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        f64::from(self.0 >> 8) / f64::from(1 << 23) - 1.0
    }

    pub(crate) fn vec<T: Real>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_f64(self.next())).collect()
    }
}

/// Marks elements that nothing may write.
pub(crate) const UNTOUCHED: f64 = 12345.0;
