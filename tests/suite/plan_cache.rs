//! Plans of many shapes over one set of weights.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::common::{Operands, Oracle};
use convoke::{Activation, Conv, ConvTranspose, ErrorKind, Operator, PlanCache, Planner, Run, Workspace};
use convoke_tools::named;

fn conv() -> Conv {
    Conv::new([12, 6, 3, 3]).pads([1; 4])
}

fn cache(most: usize) -> (PlanCache<f32>, Operands<f32>) {
    let usual = [1, 6, 16, 16];
    let geometry = conv().geometry(&usual).unwrap();
    let weights = Operands::uniform(&geometry, 61).with_bias(&geometry);
    let most = NonZeroUsize::new(most).unwrap();
    let bias = weights.bias.as_deref();
    (PlanCache::new(Planner::new().threads(2), conv(), &[usual], &weights.w, bias, most).unwrap(), weights)
}

#[test]
fn eight_threads_get_right_results_for_a_hundred_shapes() {
    let (cache, weights) = cache(40);
    // Small and large, and images whose size asks for other algorithms.
    let shapes: Vec<_> = (0..100).map(|i| [1 + i % 3, 6, 1 + (i * 7) % 41, 1 + (i * 11) % 37]).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cache, shapes, weights) = (&cache, &shapes, &weights);
            scope.spawn(move || {
                let mut workspace = Workspace::with_bytes(0).unwrap();
                for i in 0..shapes.len() {
                    let shape = shapes[(i * 3 + thread * 13) % shapes.len()];
                    let plan = cache.plan(&shape).unwrap();
                    assert_eq!(plan.geometry().input_shape(), shape);
                    workspace.grow_for(&plan).unwrap();
                    let operands =
                        Operands { x: Operands::uniform(plan.geometry(), 62 + thread as u64).x, ..weights.clone() };
                    let mut y = vec![f32::NAN; plan.geometry().output_len()];
                    plan.run(Run::new(&operands.x, cache.packed(), &mut y).workspace(&mut workspace)).unwrap();
                    let oracle = Oracle::new(plan.geometry(), &operands);
                    assert_eq!(oracle.check(plan.algorithm(), Activation::None, &y), Ok(()), "{plan:?}");
                    assert!(cache.len() <= 40);
                }
            });
        }
    });
    assert_eq!(cache.len(), 40);
}

#[test]
fn an_empty_batch_runs_over_weights_of_any_layout() {
    let layers: [(Operator, [usize; 4]); 4] = [
        (conv().into(), [1, 6, 16, 16]),
        (Conv::new([32, 32, 3, 3]).pads([1; 4]).into(), [1, 32, 56, 56]),
        // Only some taps meet input.
        (Conv::new([8, 8, 3, 3]).pads([1; 4]).into(), [1, 8, 1, 40]),
        (ConvTranspose::new([16, 8, 2, 2]).strides([2, 2]).into(), [1, 16, 20, 20]),
    ];
    for (operator, usual) in layers {
        let w = vec![0.5_f32; operator.weight_shape().iter().product()];
        let most = NonZeroUsize::new(4).unwrap();
        let cache = PlanCache::new(Planner::new(), operator, &[usual], &w, None, most).unwrap();
        let empty = cache.plan(&[0, usual[1], usual[2], usual[3]]).unwrap();
        let mut workspace = Workspace::for_plan(&empty).unwrap();
        empty.run(Run::new(&[], cache.packed(), &mut []).workspace(&mut workspace)).unwrap();
    }
}

#[test]
fn the_plan_that_was_not_asked_for_the_longest_is_forgotten() {
    let (cache, _) = cache(2);
    let usual = cache.plan(&[1, 6, 16, 16]).unwrap();
    let other = cache.plan(&[1, 6, 20, 20]).unwrap();
    assert!(Arc::ptr_eq(&usual, &cache.plan(&[1, 6, 16, 16]).unwrap()), "kept");
    _ = cache.plan(&[2, 6, 20, 20]).unwrap();
    assert!(Arc::ptr_eq(&usual, &cache.plan(&[1, 6, 16, 16]).unwrap()), "kept, since it was asked for");
    assert!(!Arc::ptr_eq(&other, &cache.plan(&[1, 6, 20, 20]).unwrap()), "forgotten, and made again");
    assert_eq!(cache.len(), 2);
}

#[test]
fn errors_are_those_of_plans_and_are_not_kept() {
    let (cache, _) = cache(4);
    for _ in 0..2 {
        assert_eq!(cache.plan(&[1, 5, 9, 9]).unwrap_err().kind(), ErrorKind::InvalidShape);
    }
    assert_eq!(cache.len(), 1);
    let most = NonZeroUsize::new(4).unwrap();
    let error = PlanCache::<f32>::new(Planner::new(), conv(), &[[1, 6, 9, 9]], &[0.0; 5], None, most).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BufferLength);
}

/// The list of plans must not take memory for plans that may never come.
#[test]
fn a_cache_for_any_number_of_plans_is_made_at_once() {
    let plan = Planner::new().algorithm(named("naive")).plan::<f32>(conv(), &[1, 6, 9, 9]).unwrap();
    let packed = Operands::uniform(plan.geometry(), 63).pack(&plan);
    let cache = PlanCache::with_packed(Planner::new(), conv(), packed, NonZeroUsize::MAX);
    assert!(cache.is_empty());
    assert_eq!(cache.plan(&[1, 6, 9, 9]).unwrap().algorithm(), named("naive"));
    assert!(cache.len() == 1 && !cache.is_empty());
    assert!(format!("{cache:?}").starts_with("PlanCache { plans: 1, packed: PackedWeights {"), "{cache:?}");
}

#[test]
fn shapes_that_are_known_are_planned_at_once() {
    let (most, w) = (NonZeroUsize::new(4).unwrap(), [0.0; 8 * 6 * 9]);
    let conv = Conv::new([8, 6, 3, 3]);
    let new = |shapes: &[[usize; 4]]| PlanCache::<f32>::new(Planner::new(), conv.clone(), shapes, &w, None, most);
    let cache = new(&[[1, 6, 9, 9], [2, 6, 5, 7], [1, 6, 9, 9]]).unwrap();
    assert_eq!(cache.len(), 2);
    assert_eq!(new(&[[1, 6, 9, 9], [1, 5, 9, 9]]).unwrap_err().kind(), ErrorKind::InvalidShape);
    let error = new(&[]).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidShape, "Conv: no shape of X is given"));
}

/// A plan whose Y is empty packs for the naive loops, and so would all others compute.
#[test]
fn an_empty_usual_shape_is_refused() {
    let (most, w) = (NonZeroUsize::new(4).unwrap(), [0.0; 8 * 6 * 9]);
    let conv = Conv::new([8, 6, 3, 3]);
    let error = PlanCache::<f32>::new(Planner::new(), conv, &[[0, 6, 9, 9]], &w, None, most).unwrap_err();
    let expected = "Conv: the first X of shape [0, 6, 9, 9] gives a Y of shape [0, 8, 7, 7], which is empty";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidShape, expected));
}
