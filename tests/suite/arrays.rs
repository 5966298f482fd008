//! Arrays of the crate `ndarray` (feature `ndarray`).

use convoke::{
    Activation, Conv, ConvTranspose, ErrorKind, Planner, conv, conv_array, conv_transpose, conv_transpose_array, f16,
};
use ndarray::{Array, Array1, Array3, Array4, Array5, ArrayD, Axis, Dimension, s};

/// Whole numbers, so that all sums are exact.
fn numbers<D: Dimension>(shape: impl ndarray::ShapeBuilder<Dim = D>) -> Array<f32, D> {
    let mut next = 0;
    Array::from_shape_simple_fn(shape, || {
        next = (next * 5 + 3) % 17;
        next as f32 - 8.0
    })
}

#[test]
fn arrays_give_what_slices_give() {
    let (x, w, bias) = (numbers((2, 4, 7, 9)), numbers((6, 2, 3, 3)), numbers(6));
    let layer = Conv::new(w.shape()).group(2).pads([1, 0, 1, 2]).strides([2, 1]);
    let y = conv_array(&layer, x.view(), w.view(), Some(bias.view())).unwrap();
    let slices = (x.as_slice().unwrap(), w.as_slice().unwrap(), bias.as_slice());
    let (wanted, shape) = conv(&layer, x.shape(), slices.0, slices.1, slices.2).unwrap();
    assert_eq!((y.shape(), y.as_slice().unwrap()), (shape.as_slice(), wanted.as_slice()));

    let w = numbers((4, 3, 2, 2));
    let layer = ConvTranspose::new(w.shape()).strides([2, 2]);
    let y = conv_transpose_array(&layer, x.view(), w.view(), None).unwrap();
    let (wanted, shape) = conv_transpose(&layer, x.shape(), slices.0, w.as_slice().unwrap(), None).unwrap();
    assert_eq!((y.shape(), y.as_slice().unwrap()), (shape.as_slice(), wanted.as_slice()));
}

#[test]
fn any_number_of_axes_and_any_type() {
    let y = conv_array(&Conv::new([1, 1, 2]), numbers((1, 1, 4)).view(), Array3::ones((1, 1, 2)).view(), None).unwrap();
    assert_eq!(y.shape(), [1, 1, 3]);
    let ones = |shape: [usize; 5]| Array5::from_elem(shape, f16::ONE);
    let y = conv_array(&Conv::new([1, 2, 2, 2, 2]), ones([1, 2, 3, 3, 3]).view(), ones([1, 2, 2, 2, 2]).view(), None);
    assert!(y.unwrap().iter().all(|y| y.to_f32() == 16.0));
    let (x, w) = (ArrayD::<f64>::ones(vec![1; 7]), ArrayD::<f64>::ones(vec![1; 7]));
    assert_eq!(conv_array(&Conv::new([1; 7]), x.view(), w.view(), None).unwrap().ndim(), 7);
    let empty = Array4::<f32>::zeros((0, 2, 5, 5));
    let y = conv_array(&Conv::new([3, 2, 3, 3]), empty.view(), Array4::ones((3, 2, 3, 3)).view(), None).unwrap();
    assert_eq!(y.shape(), [0, 3, 3, 3]);
}

#[test]
fn a_plan_runs_on_views_of_larger_arrays() {
    let (x, w) = (numbers((3, 2, 6, 6)), numbers((5, 2, 1, 1)));
    let plan = Planner::new().activation(Activation::Relu).plan::<f32>(Conv::new(w.shape()), &[1, 2, 6, 6]).unwrap();
    let packed = plan.pack_array(w.view(), Some(Array1::ones(5).view())).unwrap();
    // The last five of eight channels: contiguous in one image.
    let mut joined = Array4::from_elem((3, 8, 6, 6), 7.0);
    for i in 0..3 {
        let (x, y) = (x.slice(s![i..=i, .., .., ..]), joined.slice_mut(s![i..=i, 3.., .., ..]));
        plan.run(plan.arrays(x, &packed, None, y).unwrap()).unwrap();
    }
    let plain = conv_array(&Conv::new(w.shape()), x.view(), w.view(), Some(Array1::ones(5).view())).unwrap();
    assert_eq!(joined.slice(s![.., 3.., .., ..]), plain.mapv(|y| y.max(0.0)));
    assert!(joined.slice(s![.., ..3, .., ..]).iter().all(|y| *y == 7.0));

    let residual = numbers((1, 5, 6, 6));
    let mut y = Array4::zeros((1, 5, 6, 6));
    let x = x.slice(s![..1, .., .., ..]);
    plan.run(plan.arrays(x, &packed, Some(residual.view()), y.view_mut()).unwrap()).unwrap();
    assert_eq!(y, (&plain.slice(s![..1, .., .., ..]) + &residual).mapv(|y| y.max(0.0)));
}

/// An error's message, and that its kind is that of shapes.
fn refused<R>(result: Result<R, convoke::Error>) -> String {
    let Err(error) = result else { panic!("nothing was refused") };
    assert_eq!(error.kind(), ErrorKind::InvalidShape, "{error}");
    error.to_string()
}

#[test]
fn wrong_shapes_and_layouts_are_refused() {
    let (x, w) = (numbers((1, 2, 6, 5)), numbers((3, 2, 3, 3)));
    let layer = Conv::new(w.shape());
    let plan = Planner::new().plan::<f32>(layer.clone(), x.shape()).unwrap();
    let packed = plan.pack_array(w.view(), None).unwrap();
    let mut y = Array4::from_elem((1, 3, 4, 3), 7.0);

    let mut swapped = numbers((1, 2, 5, 6));
    swapped.swap_axes(2, 3);
    let message = "Conv: X has strides [60, 30, 1, 6], must be in standard layout: as_standard_layout() copies it";
    assert_eq!(refused(plan.arrays(swapped.view(), &packed, None, y.view_mut())), message);
    assert_eq!(refused(conv_array(&layer, swapped.view(), w.view(), None)), message);
    let copy = swapped.as_standard_layout();
    plan.run(plan.arrays(copy.view(), &packed, None, y.clone().view_mut()).unwrap()).unwrap();

    let message = "Conv: X has shape [1, 2, 5, 5], must have [1, 2, 6, 5]";
    let part = x.slice(s![.., .., ..5, ..]);
    assert_eq!(refused(plan.arrays(part, &packed, None, y.view_mut())), message);
    let mut small = Array4::from_elem((1, 3, 4, 2), 7.0);
    let message = "Conv: Y has shape [1, 3, 4, 2], must have [1, 3, 4, 3]";
    assert_eq!(refused(plan.arrays(x.view(), &packed, None, small.view_mut())), message);
    let mut backwards = y.view_mut();
    backwards.invert_axis(Axis(3));
    let result = plan.arrays(x.view(), &packed, None, backwards);
    assert_eq!(
        refused(result),
        "Conv: Y has strides [36, 12, 3, -1], must be in standard layout: as_standard_layout() copies it"
    );
    let wide = Array4::<f32>::zeros((1, 3, 4, 6));
    let every_second = wide.slice(s![.., .., .., ..;2]);
    let result = plan.arrays(x.view(), &packed, Some(every_second), y.view_mut());
    let message = refused(result);
    assert!(message.starts_with("Conv: the residual has strides ["), "{message}");

    let result = plan.pack_array(w.slice(s![..2, .., .., ..]), None).map(|_| ());
    assert_eq!(refused(result), "Conv: W has shape [2, 2, 3, 3], must have [3, 2, 3, 3]");
    let result = plan.pack_array(w.view(), Some(numbers(4).view())).map(|_| ());
    assert_eq!(refused(result), "Conv: B has shape [4], must have [3]");
    assert!(y.iter().all(|y| *y == 7.0));

    // One element stands for all: Y would take the address space.
    let broadcast = Array3::<f32>::zeros((1, 1, 1));
    let huge = broadcast.broadcast((1, 1, 1 << 40)).unwrap();
    assert!(refused(conv_array(&Conv::new([1, 1, 1]), huge, Array3::ones((1, 1, 1)).view(), None)).contains("strides"));
}

/// Y has no element, but axes that an array cannot have.
#[test]
fn an_output_without_elements_whose_axes_are_too_long_is_an_error() {
    let (x, w) = (Array3::<f32>::zeros((0, 1, 1 << 44)), Array3::<f32>::zeros((1 << 20, 1, 1)));
    let error = conv_array(&Conv::new([1 << 20, 1, 1]), x.view(), w.view(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overflow, "{error}");
    assert!(error.to_string().contains("what an array can have"), "{error}");
}

/// The program of docs/linking.md, word for word.
#[test]
fn the_program_of_the_page_on_linking_runs() -> Result<(), convoke::Error> {
    use convoke::{Conv, conv_array};
    use ndarray::{Array4, array};

    let (x, w) = (Array4::<f32>::ones((1, 2, 5, 5)), Array4::<f32>::ones((3, 2, 3, 3)));
    let conv = Conv::new(w.shape()).strides([2, 2]);
    let y = conv_array(&conv, x.view(), w.view(), Some(array![0.0, 1.0, 2.0].view()))?;
    assert_eq!((y.shape(), y[[0, 2, 1, 1]]), ([1, 3, 2, 2].as_slice(), 20.0));

    let lines = |text: &'static str| text.lines().map(str::trim).collect::<Vec<_>>();
    let page = include_str!("../../docs/linking.md");
    let mut blocks = page.split("```rust,ignore\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let program = lines(blocks.find(|block| block.contains("conv_array")).unwrap());
    assert!(program.len() == 7 && lines(include_str!("arrays.rs")).windows(7).any(|own| own == program));
    Ok(())
}
