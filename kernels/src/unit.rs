//! What kernels of bytes multiply.

use core::fmt;

/// How neighbouring channels share the 32 bits of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One value of 16 bits, signed in X and in W, for groups of one channel.
    One,
    /// Two values of 16 bits, signed in X and in W. So they hold the difference of any byte and a zero point.
    Pairs,
    /// Four bytes, unsigned in X and signed in W.
    Bytes,
}

impl Unit {
    /// Channels of a unit.
    #[must_use]
    pub const fn channels(self) -> usize {
        match self {
            Self::One => 1,
            Self::Pairs => 2,
            Self::Bytes => 4,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "16 bits",
            Self::Pairs => "pairs of 16 bits",
            Self::Bytes => "four bytes",
        })
    }
}
