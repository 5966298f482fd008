//! An inverted residual block of MobileNetV2 on tensors with their channels last: `conv1x1(relu6(dw3x3(relu6(
//! conv1x1(x))))) + x`, where `dw3x3` has one channel in each group.
//!
//! All layers read and write NHWC: no tensor is converted between them. Plans are made and weights packed once.
//! The three layers share one workspace.
//!
//! A `Chain` computes the same block in strips of rows, and has no tensors between the layers. The same block with
//! channels first checks both results.

use convoke::{Activation, ChainRun, Conv, Error, Layout, PackedWeights, Plan, Planner, Run, Workspace};

const SIDE: usize = 28;
/// Channels of X and Y, and of the tensors between the layers.
const NARROW: usize = 32;
const WIDE: usize = 192;

/// The three layers, each with the activation behind it.
fn layers(layout: Layout) -> [(Conv, Activation); 3] {
    let relu6 = Activation::Clip { min: 0.0, max: 6.0 };
    let expand = Conv::new([WIDE, NARROW, 1, 1]);
    let depthwise = Conv::new([WIDE, 1, 3, 3]).group(WIDE as i64).pads([1, 1, 1, 1]);
    let project = Conv::new([NARROW, WIDE, 1, 1]);
    [(expand, relu6), (depthwise, relu6), (project, Activation::None)]
        .map(|(conv, activation)| (conv.layouts(layout, layout), activation))
}

/// W and bias of each layer. W is in ONNX's order in every layout.
fn weights() -> [(Vec<f32>, Vec<f32>); 3] {
    let (bias_narrow, bias_wide) = (vec![0.125; NARROW], vec![0.25; WIDE]);
    let (w_expand, w_project) = (values(WIDE * NARROW, 0.2), values(NARROW * WIDE, 0.2));
    [(w_expand, bias_wide.clone()), (values(WIDE * 9, 0.5), bias_wide), (w_project, bias_narrow)]
}

/// What an engine keeps for a layer.
struct Layer {
    plan: Plan<f32>,
    packed: PackedWeights<f32>,
}

impl Layer {
    fn new(
        (conv, activation): (Conv, Activation),
        channels: usize,
        (w, bias): &(Vec<f32>, Vec<f32>),
    ) -> Result<Self, Error> {
        // Shapes have ONNX's order in every layout, too.
        let plan = Planner::new().activation(activation).plan(conv, &[1, channels, SIDE, SIDE])?;
        let packed = plan.pack(w, Some(bias))?;
        Ok(Self { plan, packed })
    }
}

/// The block, layer after layer.
struct Block {
    expand: Layer,
    depthwise: Layer,
    project: Layer,
    workspace: Workspace<'static>,
}

impl Block {
    fn new(layout: Layout) -> Result<Self, Error> {
        let [expand, depthwise, project] = layers(layout);
        let [of_expand, of_depthwise, of_project] = &weights();
        let expand = Layer::new(expand, NARROW, of_expand)?;
        let depthwise = Layer::new(depthwise, WIDE, of_depthwise)?;
        let project = Layer::new(project, WIDE, of_project)?;
        let mut workspace = Workspace::for_plan(&expand.plan)?;
        workspace.grow_for(&depthwise.plan)?;
        workspace.grow_for(&project.plan)?;
        Ok(Self { expand, depthwise, project, workspace })
    }

    /// Computes `y` from `x`. `a` and `b` are the tensors between the layers.
    fn run(&mut self, x: &[f32], [a, b]: [&mut [f32]; 2], y: &mut [f32]) -> Result<(), Error> {
        let Self { expand, depthwise, project, workspace } = self;
        expand.plan.run(Run::new(x, &expand.packed, a).workspace(workspace))?;
        depthwise.plan.run(Run::new(a, &depthwise.packed, b).workspace(workspace))?;
        project.plan.run(Run::new(b, &project.packed, y).residual(Some(x)).workspace(workspace))?;
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let (pixels, channels_first) = (SIDE * SIDE, values(NARROW * SIDE * SIDE, 1.0));
    let mut channels_last = vec![0.0; channels_first.len()];
    for (pixel, channels) in channels_last.chunks_exact_mut(NARROW).enumerate() {
        for (c, value) in channels.iter_mut().enumerate() {
            *value = channels_first[c * pixels + pixel];
        }
    }

    let (mut a, mut b) = (vec![0.0; WIDE * pixels], vec![0.0; WIDE * pixels]);
    let (mut first, mut last) = (vec![0.0; channels_first.len()], vec![0.0; channels_last.len()]);
    let mut block = Block::new(Layout::ChannelsLast)?;
    block.run(&channels_last, [&mut a, &mut b], &mut last)?;
    Block::new(Layout::ChannelsFirst)?.run(&channels_first, [&mut a, &mut b], &mut first)?;

    // In strips. An engine keeps the chain, the packed weights and the workspace.
    let chain = Planner::new().chain::<f32>(layers(Layout::ChannelsLast), &[1, NARROW, SIDE, SIDE])?;
    let mut packed = Vec::new();
    for (i, (w, bias)) in weights().iter().enumerate() {
        packed.push(chain.layer(i).pack(w, Some(bias))?);
    }
    let (mut workspace, mut strips) = (Workspace::with_bytes(chain.workspace_bytes())?, vec![0.0; channels_last.len()]);
    let run = ChainRun::new(&channels_last, &packed, &mut strips).residual(Some(&channels_last));
    chain.run(run.workspace(&mut workspace))?;

    for (i, (pixel, c)) in (0..pixels).flat_map(|pixel| (0..NARROW).map(move |c| (pixel, c))).enumerate() {
        let expected = first[c * pixels + pixel];
        for (way, got) in [("channels last", last[i]), ("in strips", strips[i])] {
            let is_near = (got - expected).abs() < 1e-4;
            assert!(is_near, "{way}: channel {c} of pixel {pixel} is {got}, expected {expected}");
        }
    }
    println!("the block gives the same with channels first, with channels last, and in strips");
    println!("a pixel begins with {:?}", &last[..3]);
    for layer in [&block.expand, &block.depthwise, &block.project] {
        println!("{:?} by {}", layer.plan.geometry().weight_shape(), layer.plan.algorithm());
    }
    println!("the three layers share {} bytes of workspace", block.workspace.bytes());
    println!("the chain computes {} strips in {} bytes of workspace", chain.strips(), workspace.bytes());
    Ok(())
}

/// Numbers between `-most` and `most`.
fn values(len: usize, most: f32) -> Vec<f32> {
    (0..len).map(|i| most * (i as f32 * 0.7).sin()).collect()
}
