//! Numbers with their units, as people read them.

use core::fmt;

/// A time in nanoseconds, in the largest unit of which it is at least one.
pub(crate) struct Time(pub(crate) f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            ns if ns < 1e3 => (ns, "ns"),
            ns if ns < 1e6 => (ns / 1e3, "us"),
            ns if ns < 1e9 => (ns / 1e6, "ms"),
            ns => (ns / 1e9, "s"),
        };
        // Three digits, which is more than an estimate is good for.
        match value {
            v if v < 9.995 => write!(f, "{v:.2} {unit}"),
            v if v < 99.95 => write!(f, "{v:.1} {unit}"),
            v => write!(f, "{v:.0} {unit}"),
        }
    }
}

/// A number of bytes, in the largest unit of which it is at least one.
pub(crate) struct ByteCount(pub(crate) usize);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIB: f64 = 1024.0;
        match self.0 as f64 {
            b if b < KIB => write!(f, "{}", Count(self.0, "byte")),
            b if b < KIB * KIB => write!(f, "{:.1} KiB", b / KIB),
            b if b < KIB * KIB * KIB => write!(f, "{:.1} MiB", b / (KIB * KIB)),
            b => write!(f, "{:.1} GiB", b / (KIB * KIB * KIB)),
        }
    }
}

/// A number of things: "1 filter", "2 filters". The word is that for one.
pub(crate) struct Count(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, word) = self;
        write!(f, "{count} {word}{}", if *count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn times_have_three_digits_and_their_unit() {
        for (nanoseconds, text) in [
            (0.0, "0.00 ns"),
            (8.25, "8.25 ns"),
            (999.0, "999 ns"),
            (1e3, "1.00 us"),
            (99_960.0, "100 us"),
            (462_422_000.0, "462 ms"),
            (12_340_000.0, "12.3 ms"),
            (9.996e9, "10.0 s"),
        ] {
            assert_eq!(Time(nanoseconds).to_string(), text);
        }
    }

    #[test]
    fn bytes_and_counts() {
        for (bytes, text) in
            [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB")]
        {
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
        assert_eq!(
            [Count(0, "task"), Count(1, "task"), Count(2, "task")].map(|c| c.to_string()),
            ["0 tasks", "1 task", "2 tasks"]
        );
    }
}
