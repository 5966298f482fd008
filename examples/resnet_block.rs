//! A bottleneck block of ResNet-50: `relu(conv1x1(relu(conv3x3(relu(conv1x1(x))))) + x)`.
//!
//! Bias, activation and the addition of `x` are fused into the convolutions, and the three layers
//! share one workspace.

use convoke::{Activation, Conv, Error, PackedWeights, Plan, Planner, Run, Workspace, reference};

/// What an engine keeps for a layer.
struct Layer {
    plan: Plan<f32>,
    packed: PackedWeights<f32>,
}

impl Layer {
    fn new(conv: Conv, x_shape: &[usize], w: &[f32], bias: &[f32]) -> Result<Self, Error> {
        let plan = Planner::new().activation(Activation::Relu).plan(conv, x_shape)?;
        let packed = plan.pack(w, Some(bias))?;
        Ok(Self { plan, packed })
    }
}

fn main() -> Result<(), Error> {
    let (wide, narrow, shape) = (256, 64, [1, 256, 14, 14]);
    let (w_reduce, w_middle, w_expand) =
        (values(narrow * wide, 0.1), values(narrow * narrow * 9, 0.1), values(wide * narrow, 0.1));
    let (bias_narrow, bias_wide) = (vec![0.25; narrow], vec![0.125; wide]);

    let reduce = Layer::new(Conv::new([narrow, wide, 1, 1]), &shape, &w_reduce, &bias_narrow)?;
    let inner = reduce.plan.geometry().output_shape();
    let middle = Conv::new([narrow, narrow, 3, 3]).pads([1, 1, 1, 1]);
    let middle = Layer::new(middle, &inner, &w_middle, &bias_narrow)?;
    let expand = Layer::new(Conv::new([wide, narrow, 1, 1]), &inner, &w_expand, &bias_wide)?;

    // As large as the layer wants that wants the most.
    let mut workspace = Workspace::for_plan(&reduce.plan)?;
    workspace.grow_for(&middle.plan)?;
    workspace.grow_for(&expand.plan)?;

    let x = values(wide * 14 * 14, 1.0);
    let (mut a, mut b, mut y) = (vec![0.0; narrow * 14 * 14], vec![0.0; narrow * 14 * 14], vec![0.0; x.len()]);
    reduce.plan.run(Run::new(&x, &reduce.packed, &mut a).workspace(&mut workspace))?;
    middle.plan.run(Run::new(&a, &middle.packed, &mut b).workspace(&mut workspace))?;
    expand.plan.run(Run::new(&b, &expand.packed, &mut y).residual(Some(&x)).workspace(&mut workspace))?;

    // The last layer by its definition, in f64.
    for (i, expected) in reference::all(expand.plan.geometry(), &b, &w_expand, Some(&bias_wide)).iter().enumerate() {
        let expected = (expected.value + f64::from(x[i])).max(0.0);
        assert!((f64::from(y[i]) - expected).abs() < 1e-4, "y[{i}] is {}, expected {expected}", y[i]);
    }
    println!("y has shape {:?}; the first values are {:?}", expand.plan.geometry().output_shape(), &y[..3]);
    println!("the three layers share {} bytes of workspace", workspace.bytes());
    Ok(())
}

/// Numbers between `-most` and `most`.
fn values(len: usize, most: f32) -> Vec<f32> {
    (0..len).map(|i| most * (i as f32 * 0.7).sin()).collect()
}
