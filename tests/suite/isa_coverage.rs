//! The ISA tiers. Every tier that the CPU has is executed, and asking for any other is an error.
//! `processes` tests the environment variables.
//!
//! `CONVOKE_ENSURE_ISA` is a comma-separated list of tiers. The suite fails if one of them was
//! not executed. It is for CI machines that must have certain CPUs.

use crate::common::{Combination, Operands, Oracle, algorithms, isas, layer};
use convoke::{Activation, Conv, ConvTranspose, ErrorKind, Isa, Planner};
use convoke_kernels::{
    channel_kernels, depthwise_kernels, depthwise_transposed_kernels, grouped_kernels, interleave_kernels,
    pixel_depthwise_kernels, pixel_kernels, spatial_kernels, winograd_kernels,
};
use convoke_tools::data::Scalar;
use convoke_tools::kernels;
use convoke_tools::{has_foreign_blas, named};

pub(crate) const ENSURE: &str = "CONVOKE_ENSURE_ISA";

/// The tiers that the standard library detects and the build includes.
pub(crate) fn expected() -> Vec<Isa> {
    #[allow(unused_mut, reason = "only x86-64 and AArch64 have more")]
    let mut tiers = vec![Isa::Portable];
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    if cfg!(feature = "neon") && std::arch::is_aarch64_feature_detected!("neon") {
        tiers.push(Isa::Neon);
    }
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if cfg!(feature = "avx2") && has!("avx2") && has!("fma") {
            tiers.push(Isa::Avx2);
        }
        let is_avx512 = has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq");
        if cfg!(feature = "avx512") && is_avx512 {
            tiers.push(Isa::Avx512);
        }
    }
    tiers
}

/// Whether a kernel's name is in the tier's tables for a computing type.
fn is_kernel_of<A: convoke_kernels::Real>(isa: Isa, name: &str) -> bool {
    let spatial = spatial_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let channel = channel_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let pixel = pixel_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let pixel = pixel || pixel_depthwise_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let interleave = interleave_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let winograd = winograd_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let direct = depthwise_kernels::<A>(isa).is_some_and(|k| {
        k.rows().iter().chain(k.narrow()).chain(k.channels()).any(|k| k.name() == name && k.isa() == isa)
    });
    let grouped = grouped_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    let depthwise_transposed =
        depthwise_transposed_kernels::<A>(isa).iter().any(|k| k.name() == name && k.isa() == isa);
    depthwise_transposed || spatial || channel || pixel || winograd || direct || grouped || interleave
}

/// Runs layers of both operators on a tier with every algorithm that accepts them. The results must
/// be right, and the kernels must belong to that tier.
fn execute<T: Scalar>(isa: Isa) {
    let layers = [
        layer(Conv::new([20, 9, 3, 3]).pads([1, 1, 1, 1]), [1, 9, 12, 12]),
        layer(Conv::new([20, 9, 1, 1]), [1, 9, 12, 12]),
        layer(Conv::new([20, 9, 4, 5]), [3, 9, 4, 5]),
        layer(ConvTranspose::new([9, 20, 4, 4]).strides([2, 2]), [1, 9, 6, 6]),
        layer(ConvTranspose::new([9, 1, 4, 4]).strides([2, 2]).group(9), [1, 9, 6, 6]),
    ];
    for combination in algorithms().map(|algorithm| Combination { algorithm, isa }) {
        let mut runs = 0;
        for layer in &layers {
            let Some(plan) = combination.plan::<T>(layer, |planner| planner) else { continue };
            let operands = Operands::uniform(&layer.geometry(), 5);
            let difference = Oracle::new(&layer.geometry(), &operands).check(
                combination.algorithm,
                Activation::None,
                &operands.run(&plan),
            );
            assert_eq!(difference, Ok(()), "{combination}, {}", T::DTYPE);
            if combination.algorithm != named("naive") && !has_foreign_blas(combination.algorithm) {
                let kernel = plan.kernel();
                let is_known = if T::DTYPE == convoke::DType::F64 {
                    is_kernel_of::<f64>(isa, kernel)
                } else {
                    is_kernel_of::<f32>(isa, kernel)
                };
                assert!(is_known, "{combination}, {}: {kernel} is none of the tier's kernels", T::DTYPE);
            }
            runs += 1;
        }
        assert!(runs > 0, "{combination}, {}: nothing ran", T::DTYPE);
    }
}

#[test]
fn every_tier_of_this_cpu_is_executed() {
    let expected = expected();
    assert_eq!(isas().collect::<Vec<_>>(), expected, "the crate does not see the tiers that the standard library sees");
    assert_eq!(Some(Isa::detect()), expected.last().copied());
    for &isa in &expected {
        assert!(
            !spatial_kernels::<f32>(isa).is_empty() && !spatial_kernels::<f64>(isa).is_empty(),
            "{isa}: no kernels"
        );
        for_each_type!(execute(isa));
    }
    if let Ok(list) = std::env::var(ENSURE) {
        for name in list.split(',') {
            let isa = name.trim().parse().unwrap_or_else(|error| panic!("{ENSURE}={list}: {error}"));
            assert!(expected.contains(&isa), "{ENSURE}={list}: {isa} was not executed");
        }
    }
}

#[test]
fn the_tables_in_the_readme_of_the_kernels_are_what_the_crate_has() {
    let readme = include_str!("../../kernels/README.md");
    let (_, readme) = readme.split_once("\n<!-- kernels -->\n").expect("a marker before the tables");
    let (written, _) = readme.split_once("<!-- /kernels -->\n").expect("a marker behind the tables");
    let is_absent = |line: &str| Isa::ALL.iter().any(|i| !i.is_available() && line.starts_with(&format!("| {i} |")));
    let written: Vec<_> = written.lines().filter(|line| !is_absent(line)).collect();
    let printed = kernels::markdown(None);
    assert_eq!(written, printed.lines().collect::<Vec<_>>(), "the tables must be:\n{printed}");
}

#[test]
fn forcing_a_tier_that_is_not_there_is_an_error() {
    let missing: Vec<_> = Isa::ALL.into_iter().filter(|isa| absence(*isa).is_some()).collect();
    assert!(!missing.is_empty(), "no CPU has all tiers");
    for isa in missing {
        let error = Planner::new().isa(isa).plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 8, 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let expected = format!("Conv: the ISA {isa} was asked for: {}", absence(isa).unwrap());
        assert_eq!(error.to_string(), expected);
    }
}

/// The features of the CPU that a tier needs and the standard library does not detect.
fn lacking(isa: Isa) -> Vec<&'static str> {
    macro_rules! lacking {
        ($($feature:tt),+) => {{
            #[cfg(target_arch = "x86_64")]
            let features = vec![$((std::is_x86_feature_detected!($feature), $feature)),+];
            #[cfg(not(target_arch = "x86_64"))]
            let features = vec![$((true, $feature)),+];
            features.into_iter().filter(|(is_there, _)| !is_there).map(|(_, feature)| feature).collect()
        }};
    }
    match isa {
        Isa::Avx2 => lacking!("avx2", "fma"),
        _ => lacking!("avx512f", "avx512vl", "avx512bw", "avx512cd", "avx512dq", "avx2", "fma"),
    }
}

/// What the error must say about a missing tier, from the build's configuration and from what the
/// standard library detects.
pub(crate) fn absence(isa: Isa) -> Option<String> {
    let (is_architecture, is_built) = match isa {
        Isa::Portable => (true, true),
        Isa::Neon => (cfg!(all(target_arch = "aarch64", target_endian = "little")), cfg!(feature = "neon")),
        Isa::Avx2 => (cfg!(target_arch = "x86_64"), cfg!(feature = "avx2")),
        Isa::Avx512 => (cfg!(target_arch = "x86_64"), cfg!(feature = "avx512")),
        _ => panic!("say what {isa} needs"),
    };
    if expected().contains(&isa) {
        None
    } else if !is_architecture {
        Some(String::from("this build is for another architecture"))
    } else if !is_built {
        Some(format!("this build is without the Cargo feature `{isa}`"))
    } else {
        Some(format!("this CPU lacks {}", lacking(isa).join(", ")))
    }
}
