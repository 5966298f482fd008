//! Conv, layer by layer: the planner's pick and its baselines. They are im2col with each BLAS
//! backend and, for small layers, the naive loops. Rows show GFLOP/s and the share of the layer's
//! limit (see `convoke_tools::limits`).
//!
//! Rows are named `kind/layer/algorithm`. A part of a name after `--` filters them: a kind, a
//! network, a layer, an algorithm. `--quick` takes a minute or two. `CONVOKE_BENCH=all` runs all
//! layers of `benches/shapes`.

mod common;

use convoke::Op;

/// One or two layers of each kind.
const SELECTION: [&str; 18] = [
    "resnet50.conv1.7x7s2",
    "resnet50.c2.3x3",
    "resnet50.c2.1x1.64-256",
    "resnet50.c3.3x3s2",
    "resnet50.c4.3x3",
    "resnet50.c5.3x3",
    "resnet50.c5.1x1.512-2048",
    "vgg16.1_1",
    "vgg16.3_2",
    "googlenet.3a.5x5.16-32@28",
    "resnext.g32.3x3.128@56",
    "mbv2.dw3x3.144@56",
    "mbv2.pw.96-24@56",
    "deeplab.d2.3x3.512@33",
    "yolov8.3x3s2.32@160",
    "hifigan.k7d3.128@8192",
    "wavenet.k2d512.64@16000",
    "c3d.conv2.3x3x3.64-128",
];

fn main() {
    common::bench_layers(Op::Conv, &SELECTION);
}
