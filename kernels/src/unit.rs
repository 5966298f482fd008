//! What kernels of bytes multiply.

use core::fmt;

/// How values share the 32 bits of a unit: neighbours in X, the channels of a small group, or neighbouring taps of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Two values of 16 bits, signed in X and in W. So they hold the difference of any byte and a zero point.
    Pairs,
    /// Four bytes, unsigned in X and signed in W.
    Bytes,
}

impl Unit {
    /// Values of a unit.
    #[must_use]
    pub const fn values(self) -> usize {
        match self {
            Self::Pairs => 2,
            Self::Bytes => 4,
        }
    }

    /// Bytes of a value.
    #[must_use]
    pub const fn value_bytes(self) -> usize {
        size_of::<i32>() / self.values()
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pairs => "pairs of 16 bits",
            Self::Bytes => "four bytes",
        })
    }
}
