//! Instruction-set clusters, and their detection at run time.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::unit::Unit;

/// A cluster of instruction-set extensions that micro-kernels are written for, from the least to the
/// most capable.
///
/// A kernel may use all extensions of its cluster. Detection asks for all of them.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What the compilation target guarantees; always available.
    Portable,
    /// AArch64 Advanced SIMD.
    Neon,
    /// x86-64 AVX2 and FMA.
    Avx2,
    /// x86-64 AVX-512 F, VL, BW, CD and DQ (and AVX2 and FMA, which every such CPU has).
    Avx512,
}

impl Isa {
    /// Every cluster, from least to most capable.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];

    /// Whether this CPU has the cluster and the build has its kernels (Cargo features `avx2`,
    /// `avx512`, `neon`).
    ///
    /// Every call of a kernel asks for it, and panics where the answer is no.
    // Inlined for speed: the answer is a byte that was computed before.
    #[inline]
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            // Nothing to detect at run time: AArch64 targets have NEON unless they lack floating-point
            // registers. The kernels need lanes in memory order, hence little endian. All that belongs
            // to NEON has this condition.
            Self::Neon => {
                cfg!(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))
            }
            Self::Avx2 => has_avx2(),
            Self::Avx512 => has_avx512(),
        }
    }

    /// Whether GEMM tiles can keep pointers to the rows of Y and of a residual in registers, beside
    /// their sums. NEON's cannot.
    pub(crate) const fn has_spare_pointers(self) -> bool {
        !matches!(self, Self::Neon)
    }

    /// Whether the cluster is available, and this CPU also multiplies bytes: four products for each sum of 32 bits. With
    /// AVX-512 that is AVX-512 VNNI, with AVX2 it is AVX-VNNI.
    #[inline]
    #[must_use]
    pub fn has_byte_products(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if matches!(self, Self::Avx2 | Self::Avx512) {
            return self.is_available() && VNNI[usize::from(self == Self::Avx512)].get();
        }
        let _ = self;
        false
    }

    /// Why the cluster is not available; `None` if it is.
    #[must_use]
    pub fn absence(self) -> Option<Absence> {
        let (is_architecture, is_feature) = match self {
            Self::Portable => (true, true),
            Self::Neon => (
                cfg!(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little")),
                cfg!(feature = "neon"),
            ),
            Self::Avx2 => (cfg!(target_arch = "x86_64"), cfg!(feature = "avx2")),
            Self::Avx512 => (cfg!(target_arch = "x86_64"), cfg!(feature = "avx512")),
        };
        if self.is_available() {
            None
        } else if !is_architecture {
            Some(Absence::Architecture)
        } else if !is_feature {
            Some(Absence::Feature(self))
        } else {
            Some(Absence::Cpu(self))
        }
    }

    /// The more capable clusters of this architecture that are not available, each with the reason.
    pub fn missing_above(self) -> impl Iterator<Item = (Self, Absence)> {
        let above = Self::ALL.into_iter().filter(move |isa| *isa > self);
        above.filter_map(|isa| Some((isa, isa.absence()?))).filter(|(_, absence)| *absence != Absence::Architecture)
    }

    fn lacking(self) -> Vec<&'static str> {
        match self {
            Self::Portable | Self::Neon => Vec::new(),
            Self::Avx2 => avx2_lacks(),
            Self::Avx512 => avx512_lacks(),
        }
    }

    /// The most capable available cluster.
    #[must_use]
    pub fn detect() -> Self {
        Self::detect_at_most(Self::ALL[Self::ALL.len() - 1])
    }

    /// The most capable available cluster that is not above `cap`.
    #[must_use]
    pub fn detect_at_most(cap: Self) -> Self {
        Self::ALL.into_iter().rfind(|isa| *isa <= cap && isa.is_available()).unwrap_or(Self::Portable)
    }

    /// The name used in reports, environment variables and kernel names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why an [`Isa`] is not available.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The build is for another architecture, or for a variant of it with another order of bytes
    /// or without floating-point registers.
    Architecture,
    /// The build was made without the kernels of this ISA.
    Feature(Isa),
    /// The CPU lacks some of the features that kernels of this ISA need; `Display` names them.
    Cpu(Isa),
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Architecture => f.write_str("this build is for another architecture"),
            Self::Feature(isa) => write!(f, "this build is without the Cargo feature `{isa}`"),
            Self::Cpu(isa) => write!(f, "this CPU lacks {}", isa.lacking().join(", ")),
        }
    }
}

impl core::error::Error for Absence {}

/// A string that names no [`Isa`]: its message repeats the string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseIsaError(String);

impl fmt::Display for ParseIsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an ISA: expected one of portable, neon, avx2, avx512", self.0)
    }
}

impl core::error::Error for ParseIsaError {}

impl FromStr for Isa {
    type Err = ParseIsaError;

    /// The cluster of a [name](Isa::name), in upper or lower case.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(s));
        named.ok_or_else(|| ParseIsaError(s.into()))
    }
}

/// Declares a function that says whether the build has a cluster's kernels, and this CPU their features,
/// and a function that lists the missing features.
macro_rules! detection {
    ($name:ident, $lacks:ident, $feature:literal, $cpuid:ident: $($cpu_feature:tt),+) => {
        #[cfg(all(target_arch = "x86_64", feature = $feature))]
        cpufeatures::new!($cpuid, $($cpu_feature),+);

        #[inline]
        fn $name() -> bool {
            #[cfg(all(target_arch = "x86_64", feature = $feature))]
            return $cpuid::get();
            #[cfg(not(all(target_arch = "x86_64", feature = $feature)))]
            false
        }

        fn $lacks() -> Vec<&'static str> {
            let lacking: &[Option<&'static str>] = &[
                $({
                    #[cfg(all(target_arch = "x86_64", feature = $feature))]
                    cpufeatures::new!(single, $cpu_feature);
                    #[cfg(all(target_arch = "x86_64", feature = $feature))]
                    let has_it = single::get();
                    #[cfg(not(all(target_arch = "x86_64", feature = $feature)))]
                    let has_it = true;
                    if has_it { None } else { Some($cpu_feature) }
                }),+
            ];
            lacking.iter().copied().flatten().collect()
        }
    };
}

detection!(has_avx2, avx2_lacks, "avx2", cpuid_avx2: "avx2", "fma");
detection!(
    has_avx512, avx512_lacks, "avx512", cpuid_avx512:
    "avx512f", "avx512vl", "avx512bw", "avx512cd", "avx512dq", "avx2", "fma"
);

/// Whether this CPU has AVX-512 VBMI, which permutes bytes.
#[cfg(all(target_arch = "x86_64", feature = "avx512"))]
#[inline]
pub(crate) fn has_vbmi() -> bool {
    cpufeatures::new!(cpuid_vbmi, "avx512f", "avx512bw", "avx512vl", "avx512vbmi");
    cpuid_vbmi::get()
}

/// AVX-VNNI and AVX-512 VNNI, which `cpufeatures` does not know. A CPU is asked for each of them only where AVX2, or AVX-512, was found.
#[cfg(target_arch = "x86_64")]
static VNNI: [Extension; 2] = [
    Extension::new(|| features(0).eax >= 1 && features(1).eax >> 4 & 1 == 1),
    Extension::new(|| features(0).ecx >> 11 & 1 == 1),
];

/// A list of the CPU's extensions; that of 0 has the number of the last one, too.
#[cfg(target_arch = "x86_64")]
fn features(list: u32) -> core::arch::x86_64::CpuidResult {
    #[allow(unused_unsafe, reason = "a safe function in newer versions of Rust")]
    // SAFETY: each CPU with AVX2 has this leaf.
    unsafe {
        core::arch::x86_64::__cpuid_count(7, list)
    }
}

/// An extension of instructions. The CPU is asked once, because on a virtual machine each `cpuid` takes microseconds.
#[cfg(target_arch = "x86_64")]
struct Extension {
    known: core::sync::atomic::AtomicU8,
    detect: fn() -> bool,
}

#[cfg(target_arch = "x86_64")]
impl Extension {
    const UNKNOWN: u8 = 2;

    const fn new(detect: fn() -> bool) -> Self {
        Self { known: core::sync::atomic::AtomicU8::new(Self::UNKNOWN), detect }
    }

    #[inline]
    fn get(&self) -> bool {
        use core::sync::atomic::Ordering::Relaxed;

        match self.known.load(Relaxed) {
            Self::UNKNOWN => {
                let has_it = !cfg!(miri) && (self.detect)();
                self.known.store(u8::from(has_it), Relaxed);
                has_it
            }
            known => known == 1,
        }
    }
}

/// The code of a kernel, which only a CPU with the ISA may run. As nothing else hands it out,
/// descriptors are plain data, which any CPU may read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code<F> {
    isa: Isa,
    /// Whether it needs [byte products](Isa::has_byte_products) too.
    multiplies_bytes: bool,
    functions: F,
}

impl<F: Copy> Code<F> {
    pub(crate) const fn new(isa: Isa, functions: F) -> Self {
        Self { isa, multiplies_bytes: false, functions }
    }

    /// The same code, if it multiplies units.
    pub(crate) const fn of(self, unit: Unit) -> Self {
        Self { multiplies_bytes: matches!(unit, Unit::Bytes), ..self }
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// The functions. Who has them knows that the CPU can run them.
    ///
    /// # Panics
    /// If the CPU lacks the ISA.
    #[inline]
    pub(crate) fn on_this_cpu(&self) -> F {
        let is_there = if self.multiplies_bytes { self.isa.has_byte_products() } else { self.isa.is_available() };
        assert!(is_there, "this CPU lacks the instruction set of the kernel");
        self.functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "this CPU lacks the instruction set")]
    fn code_for_another_cpu_is_refused() {
        let absent = Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no CPU has all of them");
        Code::new(absent, ()).on_this_cpu();
    }
}
