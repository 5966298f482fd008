//! Every micro-kernel with all operands in the L1 cache: GFLOP/s, and the share of the FMA peak of its ISA and type.
//!
//! The peak is the rate of the fastest micro-kernel, measured at the start of each group. To see one kernel:
//! `cargo bench --bench kernels -- avx512/f32_gemm_14x32`.

mod common;

use std::hint::black_box;
use std::time::Duration;

use common::FlopRate;
use convoke::kernels::{Real, channel_kernels, spatial_kernels};
use convoke::{DType, Isa};
use convoke_tools::peak::{self, Operands};
use criterion::{Criterion, Throughput};

fn main() {
    let peak = FlopRate::default();
    let shown = peak.peak();
    let mut criterion = common::criterion()
        .with_measurement(peak)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(150));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for dtype in [DType::F32, DType::F64] {
            shown.set(peak::peak(dtype, isa).unwrap_or(0.0));
            match dtype {
                DType::F64 => bench::<f64>(&mut criterion, isa),
                _ => bench::<f32>(&mut criterion, isa),
            }
        }
    }
    criterion.final_summary();
}

/// All kernels of an ISA and type.
fn bench<T: Real>(criterion: &mut Criterion<FlopRate>, isa: Isa) {
    let mut group = criterion.benchmark_group(isa.name());
    for kernel in spatial_kernels::<T>(isa) {
        let mut operands = Operands::spatial(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call_spatial(kernel)));
    }
    for kernel in channel_kernels::<T>(isa) {
        let mut operands = Operands::channel(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call_channel(kernel)));
    }
    group.finish();
}
