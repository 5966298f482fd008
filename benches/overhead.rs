//! Times what does not grow with the arithmetic: planning, packing, the run of a tiny layer, and
//! the one-shot function.
//!
//! The tiny layer is 1x8x8x8, 3x3, 8 filters. Its 36,864 multiply-adds take about 0.3 us at the
//! FMA peak of a current core.

mod common;

use std::hint::black_box;

use common::FlopRate;
use convoke::{Conv, ConvTranspose, Operator, Planner, Run, Workspace};
use convoke_tools::data::Operands;
use criterion::Criterion;

fn main() {
    let mut criterion = common::criterion();
    for (name, operator, x_shape) in layers() {
        bench(&mut criterion, name, &operator, &x_shape);
    }
    criterion.final_summary();
}

/// The tiny layers, and larger ones that show how planning grows.
fn layers() -> Vec<(&'static str, Operator, Vec<usize>)> {
    let same = [1, 1, 1, 1];
    vec![
        ("tiny", Conv::new([8, 8, 3, 3]).pads(same).into(), vec![1, 8, 8, 8]),
        ("tiny-pointwise", Conv::new([8, 8, 1, 1]).into(), vec![1, 8, 8, 8]),
        ("tiny-1d", Conv::new([8, 8, 3]).pads([1, 1]).into(), vec![1, 8, 64]),
        ("tiny-transposed", ConvTranspose::new([8, 8, 2, 2]).strides([2, 2]).into(), vec![1, 8, 8, 8]),
        ("resnet50.conv1", Conv::new([64, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]).into(), vec![1, 3, 224, 224]),
        ("resnet50.c4.3x3", Conv::new([256, 256, 3, 3]).pads(same).into(), vec![1, 256, 14, 14]),
        ("depthwise", Conv::new([144, 1, 3, 3]).group(144).pads(same).into(), vec![1, 144, 56, 56]),
    ]
}

fn bench(criterion: &mut Criterion<FlopRate>, name: &str, operator: &Operator, x_shape: &[usize]) {
    let mut group = criterion.benchmark_group(name);
    let plan = Planner::new().plan::<f32>(operator.clone(), x_shape).expect("the layer is valid");
    group.bench_function("plan", |b| {
        b.iter(|| Planner::new().plan::<f32>(operator.clone(), black_box(x_shape)).map(|plan| plan.workspace_bytes()));
    });
    let Operands { x, w, b: bias } = Operands::<f32>::new(plan.geometry());
    let packed = plan.pack(&w, Some(&bias)).expect("lengths are the geometry's");
    let mut workspace = Workspace::for_plan(&plan).expect("enough memory");
    let mut y = vec![0.0; plan.geometry().output_len()];
    group.bench_function("pack", |b| b.iter(|| plan.pack(&w, Some(&bias)).map(|packed| packed.bytes())));
    group.bench_function("run", |b| {
        b.iter(|| {
            plan.run(Run::new(black_box(&x), &packed, &mut y).workspace(&mut workspace)).expect("a valid run");
        });
    });
    group.bench_function("one-shot", |b| {
        b.iter(|| match operator {
            Operator::Conv(conv) => convoke::conv(conv, x_shape, &x, &w, Some(&bias)),
            Operator::ConvTranspose(conv) => convoke::conv_transpose(conv, x_shape, &x, &w, Some(&bias)),
        });
    });
    group.finish();
}
