//! Every micro-kernel with all operands in the caches of a core. Rows show GFLOP/s and the share of the FMA
//! peak of the ISA and type. Kernels that move and transform rather than multiply (Winograd's and the
//! interleaving ones) show the GB/s that they write (`input`, `interleave`, `deinterleave`, `transpose`) or
//! read (`output`). Direct kernels that can read X itself have a second row, `on-x`.
//!
//! The peak is the rate of the fastest micro-kernel, measured at the start of each group. To see
//! one kernel: `cargo bench --bench kernels -- avx512/f32_gemm_14x32`.

mod common;

use std::hint::black_box;
use std::time::Duration;

use common::{FlopRate, Yardstick};
use convoke::{DType, Isa};
use convoke_kernels::interleave::{Deinterleave, MOST_VECTORS, OutputRun, PhaseCopy, PhaseRows, SourceRow, Sum};
use convoke_kernels::winograd::{Border, MOST_VALUES, Pixels, Planes, Products, TilePixels, TileSource};
use convoke_kernels::{
    Dest, Epilogue, InterleaveKernel, Real, Residual, RowOffsets, WinogradKernel, channel_kernels, depthwise_kernels,
    grouped_kernels, interleave_kernels, pixel_depthwise_kernels, pixel_kernels, spatial_kernels, transpose,
    winograd_kernels,
};
use convoke_tools::peak::{self, DepthwisePixels, Direct, GemmOperands, Grouped, OnePixelTap};
use criterion::measurement::Measurement;
use criterion::{BenchmarkGroup, Criterion, Throughput};

fn main() {
    let rates = FlopRate::default();
    let yardstick = rates.yardstick();
    let mut criterion = common::criterion_with(rates)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(150));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for dtype in [DType::F32, DType::F64] {
            yardstick.set(Yardstick { gflops: peak::peak(dtype, isa).unwrap_or(0.0), name: "peak" });
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
        let mut operands = GemmOperands::spatial(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call_spatial(kernel)));
    }
    for kernel in channel_kernels::<T>(isa) {
        let mut operands = GemmOperands::channel(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call_channel(kernel)));
    }
    for kernel in pixel_kernels::<T>(isa) {
        let mut operands = OnePixelTap::new(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call(kernel)));
    }
    for kernel in pixel_depthwise_kernels::<T>(isa) {
        let mut operands = DepthwisePixels::new(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call(kernel)));
    }
    let direct = depthwise_kernels::<T>(isa);
    for kernel in direct.iter().flat_map(|kernels| [kernels.rows(), kernels.narrow(), kernels.channels()]).flatten() {
        let mut operands = Direct::new(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call(kernel)));
        if operands.reads_x() {
            group.bench_function(format!("{}/on-x", kernel.name()), |b| {
                b.iter(|| black_box(&mut operands).call_on_x(kernel));
            });
        }
    }
    for kernel in grouped_kernels::<T>(isa) {
        let mut operands = Grouped::new(kernel);
        group.throughput(Throughput::Elements(operands.flops() as u64));
        group.bench_function(kernel.name(), |b| b.iter(|| black_box(&mut operands).call(kernel)));
    }
    for kernel in winograd_kernels::<T>(isa) {
        bench_winograd(&mut group, kernel);
    }
    for kernel in interleave_kernels::<T>(isa) {
        bench_interleave(&mut group, kernel);
    }
    bench_transpose::<T, _>(&mut group, isa);
    group.finish();
}

/// The transforms of one block of tiles: `input` for one channel, `input_pixels` and `output` for a vector of
/// channels and a row of tiles.
fn bench_winograd<T: Real, M: Measurement>(group: &mut BenchmarkGroup<'_, M>, kernel: &WinogradKernel<T>) {
    const ROWS: usize = 4;
    const COLUMNS: usize = 14;
    let shape = Planes::new(kernel, ROWS, COLUMNS, 0);
    let border = Border::new(kernel, &shape, 0..shape.rows(), 0..shape.row_len());
    let x = vec![T::from_f64(0.5); shape.rows() * shape.row_len()];
    let mut planes = vec![T::ZERO; shape.scratch_len()];
    let v_plane = shape.tiles() + kernel.lanes();
    let mut v = vec![T::ZERO; kernel.values() * v_plane];
    group.throughput(Throughput::BytesDecimal((kernel.values() * shape.tiles() * size_of::<T>()) as u64));
    group.bench_function(format!("{}/input", kernel.name()), |b| {
        b.iter(|| {
            let source = TileSource { x: black_box(&x), row_stride: shape.row_len(), next: 0 };
            kernel.input(&source, &border, &mut planes, black_box(&mut v), v_plane);
        });
    });

    let (lanes, plane) = (kernel.lanes(), COLUMNS * kernel.lanes());
    let row = vec![T::from_f64(0.5); shape.row_len() * lanes];
    let (rows, inside) = ([Some(&row[..]); MOST_VALUES], 0..shape.row_len());
    let pixels = TilePixels { rows, inside, step: lanes, channels: lanes, zeros: &vec![T::ZERO; lanes] };
    let mut v = vec![T::ZERO; kernel.values() * plane];
    group.throughput(Throughput::BytesDecimal(size_of_val(&v[..]) as u64));
    group.bench_function(format!("{}/input_pixels", kernel.name()), |b| {
        b.iter(|| kernel.input_pixels(black_box(&pixels), COLUMNS, black_box(&mut v), plane));
    });

    let values = vec![T::from_f64(0.5); kernel.values() * plane];
    let products = Products { values: &values, tile_step: lanes, plane, tiles: COLUMNS };
    let (width, height) = (COLUMNS * kernel.along().outputs, kernel.down().outputs);
    let pixels = Pixels {
        channels: lanes,
        channel_step: height * width,
        row_step: width,
        pixel_step: 1,
        width,
        height,
        past_cache: false,
    };
    let (mut y, bias, mut bad) = (vec![T::ZERO; lanes * height * width], vec![T::ZERO; lanes], [0; COLUMNS]);
    let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
    group.throughput(Throughput::BytesDecimal(size_of_val(&values[..]) as u64));
    group.bench_function(format!("{}/output", kernel.name()), |b| {
        b.iter(|| kernel.output(black_box(&products), &pixels, &mut Dest::from_slice(&mut y), &epilogue, &mut bad));
    });
}

/// A matrix of 64 rows of 64 elements.
fn bench_transpose<T: Real, M: Measurement>(group: &mut BenchmarkGroup<'_, M>, isa: Isa) {
    const SIDE: usize = 64;
    let (src, mut dst) = (vec![T::from_f64(0.5); SIDE * SIDE], vec![T::ZERO; SIDE * SIDE]);
    group.throughput(Throughput::BytesDecimal(size_of_val(&src[..]) as u64));
    group.bench_function(format!("{}_transpose", T::NAME), |b| {
        b.iter(|| transpose(isa, (SIDE, SIDE), (black_box(&src[..]), SIDE), (black_box(&mut dst[..]), SIDE)));
    });
}

/// One row of output from two phases. `interleave` interleaves sums, `sum` first makes each of four
/// products, and `deinterleave` takes one phase of a row.
fn bench_interleave<T: Real, M: Measurement>(group: &mut BenchmarkGroup<'_, M>, kernel: &InterleaveKernel<T>) {
    const LEN: usize = 1024;
    const PHASES: usize = 2;
    const TAPS: usize = 4;
    /// Elements of a vector, at most: more than any ISA has.
    const LANES: usize = 64;
    let values = vec![T::from_f64(0.5); PHASES * LEN + MOST_VECTORS * LANES];
    let phase_rows = PhaseRows { sums: &values, slots: &[0, 1], step: LEN / PHASES, pitch: 0 };
    let (mut y, bias) = (vec![T::ZERO; LEN], [T::ZERO]);
    let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo: T::NEG_INFINITY, hi: T::INFINITY };
    let runs = [OutputRun { from: 0, phase: 0, at: 0, len: LEN }];
    group.throughput(Throughput::BytesDecimal((LEN * size_of::<T>()) as u64));
    group.bench_function(format!("{}/interleave", kernel.name()), |b| {
        b.iter(|| kernel.run(black_box(&phase_rows), &runs, &epilogue, &mut Dest::from_slice(&mut y), LEN));
    });

    let rows = [SourceRow { src: Some(0), dst: 0 }];
    let phases: [_; PHASES] = std::array::from_fn(|p| PhaseCopy { offset: p, dst: p * (LEN / PHASES) });
    let copy = Deinterleave {
        planes: 1,
        src_pitch: 0,
        dst_pitch: 0,
        rows: &rows,
        width: LEN,
        first: 0,
        stride: PHASES,
        phases: &phases,
        len: LEN / PHASES,
        prefetch_distance: 0,
    };
    group.throughput(Throughput::BytesDecimal((LEN * size_of::<T>()) as u64));
    group.bench_function(format!("{}/deinterleave", kernel.name()), |b| {
        b.iter(|| kernel.deinterleave(black_box(&values), &copy, &mut y));
    });

    let offsets = RowOffsets::new((0..TAPS as u32).collect());
    let w = [T::from_f64(0.25); TAPS];
    let sums: [Sum<'_, T>; PHASES] = std::array::from_fn(|_| Sum { w: &w, koff: offsets.rows(0..TAPS) });
    group.throughput(Throughput::Elements((2 * TAPS * LEN) as u64));
    group.bench_function(format!("{}/sum", kernel.name()), |b| {
        b.iter(|| kernel.sum(black_box(&values), &sums, &runs, &epilogue, &mut Dest::from_slice(&mut y)));
    });
}
