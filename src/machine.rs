//! What the crate knows of the machine, and the environment variables that it reads.

pub use convoke_kernels::Isa;

/// Caps the instruction set that plans use by default: `portable`, `neon`, `avx2` or `avx512`. Read when a [`Planner`](crate::Planner) is
/// made; a name that is not known is an error of [`Planner::plan`](crate::Planner::plan). Needs the feature `std`.
pub const ENV_ISA: &str = "CONVOKE_ISA";

/// Sizes of the data caches that blocking is chosen for, in bytes.
///
/// Typical of the cores that the kernels are for; a wrong guess costs some speed, never correctness.
pub(crate) struct Caches {
    /// Level 2, private to a core.
    pub(crate) l2: usize,
}

pub(crate) const CACHES: Caches = Caches { l2: 1 << 20 };

/// The ISA that plans use where the caller names none.
pub(crate) fn default_isa() -> Result<Isa, alloc::string::String> {
    #[cfg(feature = "std")]
    if let Ok(name) = std::env::var(ENV_ISA) {
        return match name.parse() {
            Ok(cap) => Ok(Isa::detect_at_most(cap)),
            Err(error) => Err(alloc::format!("{ENV_ISA}={name}: {error}")),
        };
    }
    Ok(Isa::detect())
}
