//! Every micro-kernel with all operands in the L1 cache: GFLOP/s, and the share of the FMA peak of its ISA and type.
//!
//! The peak is the rate of the fastest micro-kernel, measured at the start of each group. To see one kernel:
//! `cargo bench --bench kernels -- avx512/f32_gemm_14x32`.

mod common;

use std::hint::black_box;
use std::time::Duration;

use common::FlopRate;
use convoke::kernels::{ChannelKernel, Real, RowOffsets, SpatialKernel, channel_kernels, spatial_kernels};
use convoke::{DType, Isa};
use convoke_tools::peak;
use criterion::measurement::Measurement;
use criterion::{Bencher, Criterion, Throughput};

/// Bytes of the packed operand: with the other one and the tile it fits an L1 data cache of 32 KiB.
const PANEL_BYTES: usize = 16 << 10;
/// Longest dot product of a call: the order of a block of K.
const MAX_DEPTH: usize = 512;
/// Rows of the operand that is read through offsets; they are gone through again and again.
const ROWS: usize = 16;

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
        let depth = depth::<T>(kernel.mr());
        group.throughput(Throughput::Elements((2 * depth * kernel.mr() * kernel.nr()) as u64));
        group.bench_function(kernel.name(), |b| spatial(b, kernel, depth));
    }
    for kernel in channel_kernels::<T>(isa) {
        let depth = depth::<T>(kernel.nr());
        group.throughput(Throughput::Elements((2 * depth * kernel.mr() * kernel.nr()) as u64));
        group.bench_function(kernel.name(), |b| channel(b, kernel, depth));
    }
    group.finish();
}

fn spatial<T: Real, M: Measurement>(b: &mut Bencher<'_, M>, kernel: &SpatialKernel<T>, depth: usize) {
    let (a, rows) = (values(depth * kernel.mr()), values(ROWS * kernel.nr()));
    let offsets = offsets(depth, kernel.nr());
    let mut tile = vec![T::ZERO; kernel.mr() * kernel.nr()];
    b.iter(|| kernel.partial(black_box(&a), &rows, offsets.rows(0..depth), &mut tile, false));
}

fn channel<T: Real, M: Measurement>(b: &mut Bencher<'_, M>, kernel: &ChannelKernel<T>, depth: usize) {
    let (w, rows) = (values(depth * kernel.nr()), values(ROWS * kernel.mr()));
    let offsets = offsets(depth, kernel.mr());
    let mut tile = vec![T::ZERO; kernel.mr() * kernel.nr()];
    b.iter(|| kernel.partial(black_box(&rows), offsets.rows(0..depth), &w, &[], &mut tile, false));
}

/// The dot product's length with which a packed panel of `width` fits.
fn depth<T>(width: usize) -> usize {
    (PANEL_BYTES / (width * size_of::<T>())).min(MAX_DEPTH)
}

fn offsets(depth: usize, width: usize) -> RowOffsets {
    RowOffsets::new((0..depth).map(|k| (k % ROWS * width) as u32).collect())
}

/// Values that keep sums of products far from overflow and from subnormal numbers.
fn values<T: Real>(len: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f64((i % 17) as f64 / 16.0 - 0.5)).collect()
}
