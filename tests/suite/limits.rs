//! Limits of the workspace.

use std::num::NonZeroUsize;

use crate::common::{Combination, Layer, Operands, cases, isas, layer, layers};
use crate::lowerings::runner;
use convoke::{Algorithm, Conv, ConvTranspose, ErrorKind, Operator, Plan, PlanCache, Planner};
use convoke_tools::data::Scalar;
use convoke_tools::named;
use proptest::prelude::*;

fn plan<T: Scalar>(planner: &Planner, layer: &Layer) -> Result<Plan<T>, convoke::Error> {
    planner.plan::<T>(layer.operator.clone(), &layer.x_shape)
}

/// Everything that was decided, and why.
fn text<T: Scalar>(plan: &Plan<T>) -> String {
    format!("{:#}", plan.explain())
}

/// Asserts that a limit of as many bytes as a plan needs, or of more, does not change it.
fn check_limits<T: Scalar>(planner: &Planner, layer: &Layer) {
    let Ok(free) = plan::<T>(planner, layer) else { return };
    let needed = free.workspace_bytes();
    for limit in [needed, needed + 1, needed + needed / 3, 2 * needed + 4096] {
        let limited = plan::<T>(&planner.clone().workspace_limit(limit), layer).unwrap();
        assert_eq!(text(&limited), text(&free), "{layer}: {limit} bytes");
    }
}

/// With a limit of the bytes that they need, these layers were planned for fewer.
#[test]
fn a_limit_that_suffices_does_not_change_these_plans() {
    let transposed = layer(ConvTranspose::new([29, 29, 5]).strides([2]), [1, 29, 63]);
    let volume = layer(Conv::new([4, 5, 5, 5, 5]).pads([2; 6]), [1, 5, 3, 3, 7]);
    let volume_transposed = layer(ConvTranspose::new([5, 4, 5, 5, 5]).pads([2; 6]), [1, 5, 3, 3, 7]);
    for isa in isas() {
        for threads in 1..=3 {
            let planner = Planner::new().isa(isa).threads(threads);
            check_limits::<f32>(&planner, &transposed);
            check_limits::<f64>(&planner, &volume);
            check_limits::<f64>(&planner, &volume_transposed);
        }
    }
}

/// Random layers, planned freely and by each algorithm.
#[test]
fn a_limit_that_suffices_does_not_change_a_plan() {
    let drawn = prop_oneof![
        3 => layers::conv(),
        3 => layers::conv_transpose(),
        2 => layers::winograd(),
        2 => layers::winograd_transposed(),
        1 => layers::pointwise(),
        1 => layers::grouped(),
        1 => layers::covered(),
        1 => layers::one_position(),
        1 => layers::depthwise_transposed(),
    ];
    let checked = runner(cases()).run(&(drawn, 1..=3_usize), |(layer, threads)| {
        check_limits::<f32>(&Planner::new().threads(threads), &layer);
        check_limits::<f64>(&Planner::new().threads(threads), &layer);
        check_limits::<convoke::f16>(&Planner::new().threads(threads), &layer);
        for combination in Combination::all() {
            check_limits::<f32>(&combination.planner().threads(threads), &layer);
        }
        Ok(())
    });
    checked.unwrap();
}

/// The taps that meet input need less workspace than all taps, which are packed beside them.
#[test]
fn a_limit_counts_what_is_run_and_not_what_is_packed() {
    let layer = layer(Conv::new([64, 64, 3, 3]).dilations([36, 36]).pads([36; 4]), [1, 64, 33, 33]);
    let free = plan::<f32>(&Planner::new(), &layer).unwrap();
    assert!(free.explain().taps().is_some());
    check_limits::<f32>(&Planner::new(), &layer);
    check_limits::<f32>(&Planner::new().threads(3), &layer);
}

/// Plans over weights that another planner has packed for `usual`. An error is `PackedMismatch` if, and
/// only if, weights that are packed for this X would serve. Returns whether it was.
fn must_pack_again<T: Scalar>(
    packer: &Planner,
    planner: &Planner,
    operator: &Operator,
    [usual, x_shape]: [&[usize]; 2],
) -> bool {
    let Ok(first) = packer.plan::<T>(operator.clone(), usual) else { return false };
    let packed = Operands::uniform(first.geometry(), 1).pack(&first);
    let most = NonZeroUsize::new(4).unwrap();
    let planned = planner.clone().packed_for(&packed).plan::<T>(operator.clone(), x_shape);
    let cache = PlanCache::with_packed(planner.clone(), operator.clone(), packed, most);
    let cached = cache.plan(x_shape);
    assert_eq!(planned.as_ref().err(), cached.as_ref().err());
    match (planned, planner.plan::<T>(operator.clone(), x_shape)) {
        (Ok(_), _) => false,
        (Err(error), Ok(fresh)) => {
            assert_eq!(error.kind(), ErrorKind::PackedMismatch, "{error}: {fresh:?}");
            assert!(error.to_string().ends_with("pack the weights again"), "{error}");
            true
        }
        (Err(error), Err(fresh)) => {
            assert_eq!(error, fresh);
            false
        }
    }
}

/// The provider for onnxruntime failed on the second size, because it packed again for
/// `PackedMismatch` alone, and not for `Workspace`.
#[test]
fn weights_that_do_not_serve_within_the_limit_are_to_be_packed_again() {
    let operator = Operator::from(Conv::new([6, 4, 3, 3]).pads([1; 4]));
    for isa in isas() {
        let packs_again = |algorithm: Algorithm, limit: usize, size: usize| {
            let planner = Planner::new().isa(isa).workspace_limit(limit);
            let packer = Planner::new().isa(isa).algorithm(algorithm);
            must_pack_again::<f32>(&packer, &planner, &operator, [&[1, 4, 8, 8], &[1, 4, size, size]])
        };
        for algorithm in [named("gemm"), named("winograd")] {
            for size in [8, 9, 40] {
                // Naive loops need nothing.
                assert!(packs_again(algorithm, 0, size), "{algorithm} on {isa}, {size}");
                packs_again(algorithm, 4000, size);
            }
        }
    }
}

/// Also where an algorithm is forced, and for reasons other than the limit.
#[test]
fn weights_are_to_be_packed_again_where_that_helps() {
    let draw = (prop_oneof![layers::conv(), layers::conv_transpose()], 1..=3_usize, 0..=24_u32, 1..=30_usize);
    runner(cases())
        .run(&draw, |(layer, threads, limit, size)| {
            let mut x_shape = layer.x_shape.clone();
            x_shape[2..].fill(size);
            if layer.operator.geometry(&x_shape).is_ok_and(|geometry| geometry.macs() < 1 << 24) {
                let limited = |planner: Planner| planner.threads(threads).workspace_limit((1 << limit) - 1);
                let packs_again = |planner: Planner| {
                    must_pack_again::<f32>(&planner, &planner, &layer.operator, [&layer.x_shape, &x_shape]);
                };
                packs_again(limited(Planner::new()));
                Combination::all().for_each(|combination| packs_again(limited(combination.planner())));
            }
            Ok(())
        })
        .unwrap();
}
