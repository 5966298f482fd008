//! A small network at three sizes of its input, on a rayon pool of two threads.
//!
//! Each layer has a `PlanCache`: its weights are packed once, and each new shape is planned once.
//! All layers share one workspace, which grows with the largest plan.

use std::num::NonZeroUsize;

use convoke::{Activation, Conv, Error, PlanCache, Planner, Run, Threads, Workspace, conv};

fn main() -> Result<(), Error> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads can be started");
    let threads = Threads::Pool(&pool);

    // Plans must know how many threads will run them. Weights are packed for a usual shape.
    let convs = [Conv::new([16, 3, 3, 3]).pads([1; 4]), Conv::new([32, 16, 3, 3]).pads([1; 4]).strides([2, 2])];
    let weights = [values(16 * 3 * 9), values(32 * 16 * 9)];
    let planner = Planner::new().threads(threads.count()).activation(Activation::Relu);
    let most = NonZeroUsize::new(8).expect("8 is not 0");
    let layers = [
        PlanCache::new(planner.clone(), convs[0].clone(), &[[1, 3, 64, 64]], &weights[0], None, most)?,
        PlanCache::new(planner, convs[1].clone(), &[[1, 16, 64, 64]], &weights[1], None, most)?,
    ];

    let mut workspace = Workspace::with_bytes(0)?;
    for size in [64, 96, 48, 64] {
        let mut shape = vec![1, 3, size, size];
        let mut x = values(3 * size * size);
        for layer in &layers {
            let plan = layer.plan(&shape)?; // planned if this shape is new
            workspace.grow_for(&plan)?;
            let mut y = vec![0.0; plan.geometry().output_len()];
            plan.run(Run::new(&x, layer.packed(), &mut y).workspace(&mut workspace).threads(threads))?;
            (x, shape) = (y, plan.geometry().output_shape());
        }

        assert_eq!(shape, [1, 32, size / 2, size / 2]);
        let expected = by_single_calls(&convs, &weights, size)?;
        assert!(x.iter().zip(&expected).all(|(y, expected)| (y - expected).abs() < 1e-3));
        println!("{size}x{size}: Y has shape {shape:?}, y[0] is {}", x[0]);
    }
    assert_eq!((layers[0].len(), layers[1].len()), (3, 3)); // 64x64 came twice
    Ok(())
}

/// The same network on one thread: each call plans, packs and runs a layer.
fn by_single_calls(convs: &[Conv], weights: &[Vec<f32>], size: usize) -> Result<Vec<f32>, Error> {
    let (mut x, mut shape) = (values(3 * size * size), vec![1, 3, size, size]);
    for (layer, w) in convs.iter().zip(weights) {
        (x, shape) = conv(layer, &shape, &x, w, None)?;
        x.iter_mut().for_each(|x| *x = x.max(0.0));
    }
    Ok(x)
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.7).sin()).collect()
}
