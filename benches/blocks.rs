//! Times blocks of published networks, with channels last, on one thread: layer after layer, and as a chain in strips
//! of rows.
//!
//! A buffer larger than the L3 cache is read before each run, so that X and the weights come from memory. A buffer that
//! is written would leave lines in the caches that the run had to write back.

mod common;

use std::hint::black_box;

use common::FlopRate;
use convoke::{Activation, ChainRun, Conv, Layout, Machine, Plan, Planner, Run, Workspace};
use convoke_tools::data::{Operands, tensor};
use convoke_tools::shapes::flops;
use criterion::{BatchSize, Criterion, Throughput};

/// The size of the buffer in L3 caches. A CPU's cache may be larger than `Machine` says, which caps it.
const L3_CACHES: usize = 4;
/// The size that counts for smaller caches, and for CPUs without one.
const LEAST_L3_BYTES: usize = 16 << 20;
/// Elements of the buffer from one cache line to the next.
const LINE: usize = 64 / size_of::<u64>();

fn main() {
    let mut criterion = common::criterion();
    let buffer = vec![1_u64; L3_CACHES * Machine::host().l3_bytes.max(LEAST_L3_BYTES) / size_of::<u64>()];
    let blocks = [
        ("mobilenetv2", [16, 96, 24], 112, 3, 2),
        ("mobilenetv2", [24, 144, 24], 56, 3, 1),
        ("mobilenetv2", [24, 144, 32], 56, 3, 2),
        ("mobilenetv2", [32, 192, 32], 28, 3, 1),
        ("mobilenetv2", [64, 384, 64], 14, 3, 1),
        ("mobilenetv3", [40, 120, 40], 28, 5, 1),
        ("mobilenetv3", [80, 184, 80], 14, 3, 1),
        ("mobilenetv3", [160, 960, 160], 7, 5, 1),
        // Without squeeze-and-excitation, as in EfficientNet-Lite. So are those of MobileNetV3.
        ("efficientnet", [24, 144, 40], 56, 5, 2),
        ("efficientnet", [40, 240, 40], 28, 5, 1),
        ("large", [64, 64, 64], 160, 3, 1),
    ];
    for (network, channels, side, kernel, stride) in blocks {
        let block = Block { channels, side, kernel, stride };
        let [c, wide, m] = channels;
        let name = format!("{network}.{c}-{wide}-{m}.{kernel}x{kernel}s{stride}@{side}");
        bench(&mut criterion, &name, &block, &buffer);
    }
    criterion.final_summary();
}

/// An inverted residual block: 1x1, depthwise and 1x1.
struct Block {
    /// Channels of X, between the layers, and of Y.
    channels: [usize; 3],
    side: usize,
    /// Of the depthwise layer.
    kernel: usize,
    stride: i64,
}

impl Block {
    fn layers(&self) -> [(Conv, Activation); 3] {
        let Self { channels: [c, wide, m], kernel, stride, .. } = *self;
        let relu6 = Activation::Clip { min: 0.0, max: 6.0 };
        let last = |conv: Conv| conv.layouts(Layout::ChannelsLast, Layout::ChannelsLast);
        let depthwise = Conv::new([wide, 1, kernel, kernel]).group(wide as i64).strides([stride; 2]);
        [
            (last(Conv::new([wide, c, 1, 1])), relu6),
            (last(depthwise.pads([kernel as i64 / 2; 4])), relu6),
            (last(Conv::new([m, wide, 1, 1])), Activation::None),
        ]
    }
}

fn bench(criterion: &mut Criterion<FlopRate>, name: &str, block: &Block, buffer: &[u64]) {
    let mut shape = vec![1, block.channels[0], block.side, block.side];
    let chain = Planner::new().chain::<f32>(block.layers(), &shape).expect("the layers are valid");
    let plans = block.layers().map(|(conv, activation)| {
        let plan = Planner::new().activation(activation).plan::<f32>(conv, &shape).expect("the layer is valid");
        shape = plan.geometry().output_shape();
        plan
    });
    let operands = plans.each_ref().map(|plan| Operands::<f32>::new(plan.geometry()));
    let pack = |plan: &Plan<f32>, of: &Operands<f32>| plan.pack(&of.w, Some(&of.b)).expect("a valid layer");
    let packed = [0, 1, 2].map(|i| pack(&plans[i], &operands[i]));
    let of_chain = [0, 1, 2].map(|i| pack(chain.layer(i), &operands[i]));
    let mut workspace = Workspace::with_bytes(chain.workspace_bytes()).expect("enough memory");
    plans.iter().for_each(|plan| workspace.grow_for(plan).expect("enough memory"));
    let zeros = |plan: &Plan<f32>| tensor(std::iter::repeat_n(0.0, plan.geometry().output_len()));
    let [mut a, mut b, mut y] = plans.each_ref().map(zeros);
    let x = &operands[0].x;
    let residual = (x.len() == y.len()).then_some(&x[..]);

    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(plans.iter().map(|plan| flops(plan.geometry()) as u64).sum()));
    let mut bench = |name: &str, run: &mut dyn FnMut()| {
        let empty_caches = || buffer.iter().step_by(LINE).for_each(|value| _ = black_box(*value));
        group.bench_function(name, |b| b.iter_batched(empty_caches, |()| run(), BatchSize::PerIteration));
    };
    bench("layer-after-layer", &mut || {
        let mut run = |i: usize, run: Run<'_, '_, f32>| {
            plans[i].run(run.workspace(&mut workspace)).expect("a valid run");
        };
        run(0, Run::new(x, &packed[0], &mut a));
        run(1, Run::new(&a, &packed[1], &mut b));
        run(2, Run::new(&b, &packed[2], &mut y).residual(residual));
    });
    bench("chain", &mut || {
        let run = ChainRun::new(x, &of_chain, &mut y).residual(residual);
        chain.run(run.workspace(&mut workspace)).expect("a valid run");
    });
    group.finish();
}
