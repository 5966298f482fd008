//! The kernels for AArch64.

pub(crate) mod neon;
