//! What the crate knows of the machine, and the environment variables that it reads.

pub use convoke_kernels::Isa;

/// Names the instruction set that plans use by default: `portable`, `neon`, `avx2` or `avx512`. Read when a [`Planner`](crate::Planner) is
/// made; a name that is not known, and an ISA that the CPU or the build lacks, is an error of [`Planner::plan`](crate::Planner::plan). Needs the
/// feature `std`.
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
    if let Some(name) = std::env::var_os(ENV_ISA) {
        let name = name.to_string_lossy();
        let isa = name.parse::<Isa>().map_err(|error| alloc::format!("{ENV_ISA}={name}: {error}"))?;
        return match isa.absence() {
            None => Ok(isa),
            Some(absence) => Err(alloc::format!("{ENV_ISA}={name}: {absence}")),
        };
    }
    Ok(Isa::detect())
}
