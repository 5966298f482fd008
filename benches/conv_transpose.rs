//! ConvTranspose, layer by layer: the planner's pick, and col2im with each BLAS backend. Rows
//! show GFLOP/s.
//!
//! The options are those of the bench `conv`.

mod common;

use convoke::Op;

/// One or two layers of each kind.
const SELECTION: [&str; 10] = [
    "dcgan.4x4s2.512-256@8",
    "dcgan.4x4s2.128-3@32",
    "unet.up.2x2s2.128-64@64",
    "fcn.16x16s8.21@34",
    "fsrcnn.9x9s4.56-1@64",
    "sd.vae.3x3s2.256-128@64",
    "bilinear.dw4x4s2.32@64",
    "hifigan.up.k16s8.512-256@64",
    "demucs.up.k8s4.128-64@5000",
    "unet3d.2x2x2s2.64-32@16",
];

fn main() {
    common::bench_layers(Op::ConvTranspose, &SELECTION);
}
