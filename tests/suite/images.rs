//! Images that lie a distance apart, in X, residual and Y.

use crate::common::operands::bits;
use crate::common::{Combination, Context, Layer, Operands, layer};
use convoke::{Activation, Conv, ConvTranspose, ErrorKind, Plan, Planner, Run, Threads, Workspace, bf16};
use convoke_tools::data::Scalar;

fn layers() -> [Layer; 4] {
    [
        layer(Conv::new([6, 4, 3, 3]).pads([1; 4]), [3, 4, 7, 6]),
        layer(Conv::new([40, 20, 1, 1]), [3, 20, 5, 5]),
        layer(Conv::new([8, 1, 3, 3]).group(8).strides([2, 2]), [2, 8, 9, 9]),
        layer(ConvTranspose::new([4, 6, 4]).strides([2]).pads([1, 1]), [3, 4, 9]),
    ]
}

/// Images with elements between them, and behind the last one if there are `more`.
fn apart<T: Scalar>(images: &[T], batch: usize, stride: usize, more: usize) -> Vec<T> {
    let image = images.len() / batch;
    let mut values = vec![T::from_f64(f64::NAN); (batch - 1) * stride + image + more];
    for (from, to) in images.chunks(image).zip(values.chunks_mut(stride)) {
        to[..image].copy_from_slice(from);
    }
    values
}

fn separate<T: Scalar>(combination: Combination, layer: &Layer) -> Option<Plan<T>> {
    combination.plan::<T>(layer, |planner| planner.separate_images(true).threads(2).activation(Activation::Relu))
}

fn check<T: Scalar>() {
    for layer in layers() {
        let geometry = layer.geometry();
        let (batch, y_len) = (geometry.batch, geometry.output_len());
        let operands = Operands::<T>::uniform(&geometry, 61).with_bias(&geometry).with_residual(&geometry);
        let residual = operands.residual.as_deref().unwrap();
        for combination in Combination::all() {
            let _context = Context(|| format!("{combination}, {}: {layer}", T::DTYPE));
            let Some(plan) = separate::<T>(combination, &layer) else { continue };
            let packed = operands.pack(&plan);
            let mut workspace = Workspace::for_plan(&plan).unwrap();
            let expected = bits(&operands.run_packed(&plan, &packed, Threads::Serial).unwrap());
            for (gap, more) in [(0, 0), (1, 0), (5, 9), (64, 0)] {
                let image = |len: usize| len / batch;
                let (x_stride, y_stride) = (image(operands.x.len()) + gap, image(y_len) + gap);
                let r_stride = image(y_len) + 2 * gap;
                let (x, r) = (apart(&operands.x, batch, x_stride, more), apart(residual, batch, r_stride, more));
                let mut y = vec![T::from_f64(7.0); (batch - 1) * y_stride + image(y_len) + more];
                let run = Run::new(&x, &packed, &mut y).residual(Some(&r)).workspace(&mut workspace);
                let run = run.x_image_stride(x_stride).residual_image_stride(r_stride).y_image_stride(y_stride);
                plan.run(run).unwrap();
                let found: Vec<T> = y.chunks(y_stride).flat_map(|y| y.iter().take(image(y_len)).copied()).collect();
                assert_eq!(bits(&found[..y_len]), expected);
                let mut between = y.chunks(y_stride).flat_map(|y| y.iter().skip(image(y_len)));
                assert!(between.all(|y| y.to_f64() == 7.0));

                let mut y = apart(residual, batch, y_stride, more);
                let run = Run::in_place(&x, &packed, &mut y).workspace(&mut workspace);
                plan.run(run.x_image_stride(x_stride).y_image_stride(y_stride)).unwrap();
                let found: Vec<T> = y.chunks(y_stride).flat_map(|y| y.iter().take(image(y_len)).copied()).collect();
                assert_eq!(bits(&found[..y_len]), expected);
            }
        }
    }
}

#[test]
fn images_may_lie_apart() {
    check::<f32>();
    check::<bf16>();
}

#[test]
fn wrong_distances_are_refused() {
    let conv = Conv::new([4, 3, 3, 3]);
    let plan = |separate: bool, batch: usize| {
        let planner = Planner::new().separate_images(separate);
        planner.plan::<f32>(conv.clone(), &[batch, 3, 5, 5]).unwrap()
    };
    let packed = plan(true, 2).pack(&[0.5; 4 * 27], None).unwrap();
    let (x, residual) = (vec![1.0; 400], vec![1.0; 400]);
    let refused = |plan: &Plan<f32>, change: for<'a, 'y> fn(Run<'a, 'y, f32>) -> Run<'a, 'y, f32>| {
        let mut y = vec![7.0; 400];
        let run = Run::new(&x, &packed, &mut y).residual(Some(&residual));
        let run = run.x_image_stride(75).y_image_stride(36).residual_image_stride(36);
        let error = plan.run(change(run)).unwrap_err();
        assert!(y.iter().all(|y| *y == 7.0), "Y was written in spite of the error");
        (error.kind(), error.to_string())
    };
    let (both, together) = (plan(true, 2), plan(false, 2));
    let message = "Conv: X has an image stride of 74, an image has 75 elements";
    assert_eq!(refused(&both, |run| run.x_image_stride(74)), (ErrorKind::InvalidShape, message.into()));
    let message = "Conv: the residual has an image stride of 0, an image has 36 elements";
    assert_eq!(refused(&both, |run| run.residual_image_stride(0)), (ErrorKind::InvalidShape, message.into()));
    let message = "Conv: Y has an image stride of 40, and 2 images of 36 elements are computed together: plan with \
                   separate_images";
    assert_eq!(refused(&together, |run| run.y_image_stride(40)), (ErrorKind::InvalidShape, message.into()));
    let message = "Conv: Y has 400 elements, 2 images of 36 elements, 365 apart, ask for 401";
    assert_eq!(refused(&both, |run| run.y_image_stride(365)), (ErrorKind::BufferLength, message.into()));
    let message = format!("Conv: X has an image stride of {}: 2 such images exceed the address space", usize::MAX);
    assert_eq!(refused(&both, |run| run.x_image_stride(usize::MAX)), (ErrorKind::Overflow, message));

    // What is between images would be uninitialised.
    let mut y = vec![std::mem::MaybeUninit::new(7.0); 73];
    let run = Run::uninit(&x[..150], &packed, &mut y).y_image_stride(37);
    assert_eq!(both.run(run).unwrap_err().kind(), ErrorKind::BufferLength);
    // A single image has no other, whatever the stride is.
    let mut y = [7.0; 40];
    let run = Run::new(&x, &packed, &mut y).x_image_stride(100).y_image_stride(500);
    plan(false, 1).run(run).unwrap();
    assert!(y[..36].iter().all(|y| *y == 13.5) && y[36..] == [7.0; 4]);
}

/// A plan of separate images is one of the batch to its caller.
#[test]
fn a_plan_of_separate_images_has_the_sizes_of_the_batch() {
    let conv = Conv::new([4, 3, 3, 3]);
    let plan = Planner::new().separate_images(true).plan::<f32>(conv, &[5, 3, 8, 8]).unwrap();
    assert_eq!(plan.geometry().output_shape(), [5, 4, 6, 6]);
    assert!(plan.explain().to_string().contains("X [1, 3, 8, 8]"));
}
