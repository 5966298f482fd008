//! The kernels without a GEMM: sizes that mostly fit one another, slices that are as long as they
//! should be or off by a little, and now and then a size that is far too large.

use arbitrary::{Result, Unstructured};
use convoke_kernels::interleave::{Deinterleave, OutputRun, PhaseCopy, PhaseRows, SourceRow, Sum};
use convoke_kernels::winograd::{Border, Pixels, Planes, Products, TilePixels, TileSource};
use convoke_kernels::{
    DepthwiseInput, DepthwiseKernel, DepthwiseOutput, DepthwiseTransposedInput, DepthwiseTransposedOutput, Dest,
    DirectInput, DirectTable, Epilogue, FlatInput, FlatTaps, Isa, Prefetch, Real, Residual, RowOffsets, Slots,
    TapTable, depthwise_kernels, depthwise_transposed_kernels, grouped_kernels, interleave_kernels, winograd_kernels,
};

use super::near;

/// A size up to `most`, or one of which products overflow.
fn size(u: &mut Unstructured<'_>, most: usize) -> Result<usize> {
    if u.ratio(1, 64)? {
        return Ok(*u.choose(&[1 << 31, 1 << 32, usize::MAX / 16, usize::MAX - 1, usize::MAX])?);
    }
    u.int_in_range(0..=most)
}

/// A position, before the beginning or behind it.
fn position(u: &mut Unstructured<'_>) -> Result<isize> {
    if u.ratio(1, 64)? { u.arbitrary() } else { u.int_in_range(-9..=9) }
}

/// The end of `count` parts that begin `step` apart, if the last one has `len` elements. It is
/// bounded, because slices of that length are made.
fn end(count: usize, step: usize, len: usize) -> usize {
    count.saturating_sub(1).saturating_mul(step).saturating_add(len).min(1 << 16)
}

/// Marks elements that no call may write.
const UNTOUCHED: f64 = 12345.0;

/// Calls with a destination of about `len` elements, and perhaps a residual. The inputs of the
/// calls are ones, so that a sum of some of them is never the mark. The elements of the
/// destination that `is_written` denies must be as before, also where the call panics.
fn stored<T: Real>(
    u: &mut Unstructured<'_>,
    (rows, len): (usize, usize),
    is_written: impl Fn(usize) -> bool,
    call: impl FnOnce(&mut Dest<'_, T>, &Epilogue<'_, T>),
) -> Result<()> {
    let (bias, residual) = (near::<T>(u, rows.min(1 << 16))?, near(u, len)?);
    let mut y = near(u, len)?;
    y.fill(T::from_f64(UNTOUCHED));
    let residual = if u.arbitrary()? { residual[..].into() } else { Residual::NONE };
    let hi = if u.arbitrary()? { T::INFINITY } else { T::ONE };
    call(&mut Dest::from_slice(&mut y), &Epilogue { bias: &bias, residual, lo: T::NEG_INFINITY, hi });
    for (at, y) in y.iter().enumerate().filter(|(at, _)| !is_written(*at)) {
        if y.to_f64() != UNTOUCHED {
            // A panic would be an answer.
            eprintln!("element {at} is written, which is none of the call's");
            std::process::abort();
        }
    }
    Ok(())
}

pub(super) fn grouped<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let kernel = u.choose(grouped_kernels::<T>(isa))?;
    let (channels, height, width, outputs) = (size(u, 3)?, size(u, 9)?, size(u, 40)?, size(u, 9)?);
    let plane = height.saturating_mul(width);
    let mut taps = |most: usize| -> Result<Vec<(usize, isize)>> {
        (0..u.int_in_range(0..=3)?).map(|_| Ok((u.int_in_range(0..=1)? * most, position(u)?))).collect()
    };
    let (rows, columns) = (taps(plane)?, taps(plane.saturating_mul(2))?);
    let pitch = plane.saturating_mul(4);
    let lanes = if u.ratio(1, 32)? { size(u, 40)? } else { kernel.lanes() };
    let Some(taps) = FlatTaps::new(lanes, (channels, pitch), (height, width), outputs, &rows, &columns) else {
        return Ok(());
    };
    let (first, vectors) = (size(u, 3)?, size(u, taps.outputs().div_ceil(kernel.lanes()))?);
    let (x, w) = (near::<T>(u, end(channels, pitch, pitch))?, near(u, taps.steps() * kernel.mr())?);
    let from = first.saturating_mul(kernel.lanes());
    let len = taps.outputs().saturating_sub(from).min(vectors.saturating_mul(kernel.lanes()));
    let ldy = len.saturating_add(size(u, 3)?);
    let input = FlatInput { taps: &taps, w: &w, x: &x, prefetch: Prefetch::NONE, first, vectors };
    stored(
        u,
        (kernel.mr(), end(kernel.mr(), ldy, len)),
        |at| at % ldy.max(1) < len,
        |y, epilogue| {
            kernel.run(&input, y, ldy, epilogue);
        },
    )
}

pub(super) fn depthwise_transposed<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let kernel = u.choose(depthwise_transposed_kernels::<T>(isa))?;
    let (planes, height, width) = (size(u, 3)?, size(u, 6)?, size(u, 40)?);
    let (x_plane, taps) = (height.saturating_mul(width), kernel.kernel().0 * kernel.kernel().1);
    let (out_width, rows) = (size(u, width.saturating_mul(2).saturating_add(4))?, size(u, 8)?);
    let used = rows.saturating_mul(out_width);
    let output = DepthwiseTransposedOutput {
        width: out_width,
        cropped: size(u, 6)?,
        row: size(u, 8)?,
        rows,
        plane: used.saturating_add(2),
    };
    let (x, w) = (near::<T>(u, end(planes, x_plane, x_plane))?, near(u, end(planes, taps, taps))?);
    let input = DepthwiseTransposedInput { planes, x: &x, x_plane, height, width, w: &w };
    stored(
        u,
        (planes, end(planes, output.plane, used)),
        |at| at % output.plane < used,
        |y, epilogue| {
            kernel.run(&input, y, &output, epilogue);
        },
    )
}

pub(super) fn interleave<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let kernel = u.choose(interleave_kernels::<T>(isa))?;
    let phases = u.int_in_range(0..=9)?;
    let runs = (0..u.int_in_range(0..=3)?)
        .map(|_| Ok(OutputRun { from: size(u, 9)?, phase: size(u, phases)?, at: size(u, 40)?, len: size(u, 99)? }))
        .collect::<Result<Vec<_>>>()?;
    let most = |of: fn(&OutputRun) -> usize| runs.iter().map(of).max().unwrap_or(0);
    let (read, written) = (most(|run| run.from.saturating_add(run.len)), most(|run| run.at.saturating_add(run.len)));
    let is_in_a_run = |at: usize| runs.iter().any(|run| at >= run.at && at - run.at < run.len);
    match u.int_in_range(0..=2)? {
        0 => {
            let (rows, ldy) = (u.int_in_range(0..=3)?, written.saturating_add(size(u, 3)?).max(1));
            let slots = (0..phases).map(|_| size(u, phases)).collect::<Result<Vec<_>>>()?;
            let (pitch, step) = (size(u, 120)?, size(u, 400)?);
            let slot = slots.iter().copied().max().unwrap_or(0);
            let sums = near::<T>(u, slot.saturating_mul(step).saturating_add(end(rows, pitch, read)).min(1 << 16))?;
            let phase_rows = PhaseRows { sums: &sums, slots: &slots, step, pitch };
            stored(
                u,
                (rows, end(rows, ldy, written)),
                |at| is_in_a_run(at % ldy),
                |y, epilogue| {
                    kernel.run(&phase_rows, &runs, epilogue, y, ldy);
                    // To prefetch a run that is far too long would take years; it was refused.
                    kernel.prefetch(&runs, rows, y, ldy);
                },
            )
        }
        1 => {
            let taps = (0..phases)
                .map(|_| (0..u.int_in_range(0..=3)?).map(|_| u.int_in_range(0..=60)).collect::<Result<Vec<u32>>>())
                .collect::<Result<Vec<_>>>()?;
            let w = taps.iter().map(|taps| near::<T>(u, taps.len())).collect::<Result<Vec<_>>>()?;
            let koff: Vec<_> = taps.into_iter().map(RowOffsets::new).collect();
            let sums: Vec<_> = koff.iter().zip(&w).map(|(koff, w)| Sum { w, koff: koff.rows(0..koff.len()) }).collect();
            let behind = u.int_in_range(0..=400)?;
            let x = near(u, read.saturating_add(behind).min(1 << 16))?;
            stored(u, (1, written.min(1 << 16)), is_in_a_run, |y, epilogue| {
                kernel.sum(&x, &sums, &runs, epilogue, y);
            })
        }
        _ => {
            let (planes, width, stride, len) = (size(u, 3)?, size(u, 99)?, size(u, 20)?, size(u, 40)?);
            let mut offset = 0;
            let mut phases = Vec::new();
            for _ in 0..u.int_in_range(0..=4)? {
                phases.push(PhaseCopy { offset, dst: size(u, 200)? });
                offset += u.int_in_range(0..=5)?;
            }
            let rows = (0..u.int_in_range(0..=3)?)
                .map(|_| {
                    Ok(SourceRow { src: if u.arbitrary()? { Some(size(u, 99)?) } else { None }, dst: size(u, 99)? })
                })
                .collect::<Result<Vec<_>>>()?;
            let (src_pitch, dst_pitch) = (size(u, 200)?, size(u, 400)?);
            let (src, mut dst) = (near::<T>(u, end(planes, src_pitch, 200))?, near(u, end(planes, dst_pitch, 340))?);
            let (first, prefetch_distance) = (position(u)?, size(u, 99)?);
            let copy = Deinterleave {
                planes,
                src_pitch,
                dst_pitch,
                rows: &rows,
                width,
                first,
                stride,
                phases: &phases,
                len,
                prefetch_distance,
            };
            kernel.deinterleave(&src, &copy, &mut dst);
            Ok(())
        }
    }
}

pub(super) fn depthwise<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let Some(kernels) = depthwise_kernels::<T>(isa) else { return Ok(()) };
    let lists = [kernels.rows(), kernels.narrow(), kernels.channels()];
    match u.int_in_range(0..=4)? {
        list @ 0..=2 => {
            let kernel = u.choose(lists[list])?;
            sums(u, kernel)
        }
        3 => {
            let kernel = u.choose(lists[0])?;
            direct(u, kernel)
        }
        _ => {
            let (channels, len) = (size(u, kernels.lanes())?, u.int_in_range(0..=40)?);
            let pitch = size(u, 60)?;
            if u.arbitrary()? {
                let slots = (0..len).map(|_| u.int_in_range(0..=300)).collect::<Result<Vec<u32>>>()?;
                let most = slots.iter().copied().max().unwrap_or(0) as usize;
                let (src, mut dst) = (near::<T>(u, end(channels, pitch, len))?, near(u, most + kernels.lanes())?);
                kernels.gather(&src, pitch, channels, &Slots::new(slots), 0..len, &mut dst);
                return Ok(());
            }
            let src = near::<T>(u, len * kernels.lanes())?;
            let ldy = pitch.saturating_add(src.len() / kernels.lanes()).max(1);
            let written = src.len() / kernels.lanes();
            stored(
                u,
                (channels, end(channels, ldy, written)),
                |at| at % ldy < written,
                |y, epilogue| {
                    kernels.scatter(&src, y, ldy, epilogue);
                },
            )
        }
    }
}

/// The output of `tiles` tiles for each plane, whose rows have a gap behind them.
fn output<T: Real>(
    u: &mut Unstructured<'_>,
    kernel: &DepthwiseKernel<T>,
    (planes, tiles, width): (usize, usize, usize),
    call: impl FnOnce(&mut Dest<'_, T>, &DepthwiseOutput, &Epilogue<'_, T>),
) -> Result<()> {
    let (rows, row) = (tiles.saturating_mul(kernel.mr()), width.saturating_add(size(u, 2)?).max(1));
    let output = DepthwiseOutput { width, row, plane: rows.saturating_mul(row) };
    let len = end(planes, output.plane, end(rows, row, width));
    stored(u, (planes, len), |at| at % row < width, |y, epilogue| call(y, &output, epilogue))
}

/// Sums over copies of X, with vectors along rows or along channels.
fn sums<T: Real>(u: &mut Unstructured<'_>, kernel: &DepthwiseKernel<T>) -> Result<()> {
    let (planes, tiles, width) = (size(u, 3)?, size(u, 3)?, size(u, 50)?);
    let groups = (0..u.int_in_range(0..=3)?)
        .map(|_| {
            let taps = u.int_in_range(0..=9)?;
            let columns = (0..u.int_in_range(0..=4)?).map(|_| u.int_in_range(0..=60));
            Ok((taps, columns.collect::<Result<Vec<u32>>>()?))
        })
        .collect::<Result<Vec<(usize, Vec<u32>)>>>()?;
    let step = size(u, 80)?;
    let taps = TapTable::new(&groups, step);
    let (first, last) = (size(u, taps.groups())?, size(u, taps.groups())?);
    let (x_vector, x_plane, w_plane) = (size(u, 20)?, size(u, 999)?, size(u, 200)?);
    let rows = end(tiles.saturating_mul(kernel.mr()), step, 60 + 9 * 80 + kernel.lanes());
    let x = near::<T>(u, end(planes, x_plane, end(width.div_ceil(kernel.lanes()), x_vector, rows)))?;
    let w = near(u, end(planes, w_plane, taps.weights().saturating_mul(kernel.lanes())))?;
    let input =
        DepthwiseInput { taps: &taps, groups: first..last, w: &w, w_plane, x: &x, x_plane, x_vector, planes, tiles };
    output(u, kernel, (planes, tiles, width), |y, output, epilogue| kernel.run(&input, y, output, epilogue))
}

/// Sums from rows of X itself.
fn direct<T: Real>(u: &mut Unstructured<'_>, kernel: &DepthwiseKernel<T>) -> Result<()> {
    let (planes, tiles, outputs) = (size(u, 3)?, size(u, 3)?, size(u, 50)?);
    let (taps, stride) = (*u.choose(&[1, 2, 3, 5, 7, 4])?, u.int_in_range(1..=2)?);
    let left = position(u)?;
    let positions: Vec<_> = (0..u.int_in_range(0..=7)?).map(|i| left.saturating_add(i)).collect();
    let width = size(u, outputs.saturating_mul(stride).saturating_add(8))?;
    let (channels, height) = (size(u, 3)?, size(u, 12)?);
    let distance = height.saturating_mul(width);
    let Some(table) = DirectTable::new(taps, stride, &positions, (channels, distance), width) else { return Ok(()) };
    let (x_plane, w_plane) = (distance.saturating_mul(channels), taps * positions.len() * channels);
    let (x, w) = (near::<T>(u, end(planes, x_plane, x_plane))?, near(u, end(planes, w_plane, w_plane))?);
    let row = position(u)?;
    let input = DirectInput { table: &table, row, height, w: &w, w_plane, x: &x, x_plane, planes, tiles };
    output(u, kernel, (planes, tiles, outputs), |y, output, epilogue| kernel.run_direct(&input, y, output, epilogue))
}

pub(super) fn winograd<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let kernel = u.choose(winograd_kernels::<T>(isa))?;
    if u.arbitrary()? {
        let (rows, columns) = (size(u, 4)?, size(u, 40)?);
        let spare = size(u, kernel.down().outputs)?;
        let shape = Planes::new(kernel, rows, columns, spare);
        if shape.scratch_len() > 1 << 20 {
            return Ok(());
        }
        let mut range = |len: usize| -> Result<_> { Ok(size(u, len)?..size(u, len)?) };
        let (live_rows, live) = (range(shape.rows())?, range(shape.row_len())?);
        let border = Border::new(kernel, &shape, live_rows.clone(), live.clone());
        let (row_stride, v_plane) = (live.len().saturating_add(size(u, 2)?), shape.tiles() + kernel.lanes());
        let x = near::<T>(u, end(live_rows.len(), row_stride, live.len()))?;
        let (mut planes, mut v) = (near(u, shape.scratch_len())?, near(u, kernel.values() * v_plane)?);
        let source = TileSource { x: &x, row_stride, next: u.arbitrary()? };
        kernel.input(&source, &border, &mut planes, &mut v, v_plane);
        return Ok(());
    }
    if u.arbitrary()? {
        let (tiles, channels, width) = (size(u, 5)?, size(u, 3 * kernel.lanes())?, size(u, 20)?);
        let (pixel, inside) = (channels.max(kernel.lanes()), size(u, width)?..width);
        let (step, v_plane) = (pixel.saturating_add(size(u, 2)?), tiles.saturating_mul(channels).saturating_add(pixel));
        let row = near::<T>(u, end(inside.len(), step, pixel))?;
        let mut v = near(u, kernel.values().saturating_mul(v_plane))?;
        let (present, zeros): (u8, _) = (u.arbitrary()?, near(u, pixel)?);
        let rows = core::array::from_fn(|i| (present >> i & 1 == 1).then_some(&row[..]));
        kernel.input_pixels(&TilePixels { rows, inside, step, channels, zeros: &zeros }, tiles, &mut v, v_plane);
        return Ok(());
    }
    let (tiles, tile_step) = (size(u, 9)?, size(u, 2 * kernel.lanes())?);
    let plane = tiles.saturating_mul(tile_step);
    let values = near::<T>(u, end(kernel.values(), plane, end(tiles, tile_step, kernel.lanes())))?;
    let products = Products { values: &values, tile_step, plane, tiles };
    let (channels, height) = (size(u, kernel.lanes())?, size(u, kernel.down().outputs)?);
    let width = size(u, tiles.saturating_mul(kernel.along().outputs))?;
    // Channels or pixels of a row are neighbours.
    let is_last: bool = u.arbitrary()?;
    let pixel_step = if is_last { channels.saturating_add(size(u, 2)?).max(2) } else { 1 };
    let row_step = width.saturating_add(size(u, 2)?).max(1).saturating_mul(pixel_step);
    let channel_step = if is_last { 1 } else { row_step.saturating_mul(height) };
    let pixels = Pixels { channels, channel_step, row_step, pixel_step, width, height, past_cache: u.arbitrary()? };
    let mut bad = vec![0; if u.ratio(3, 4)? { tiles.min(1 << 16) } else { u.int_in_range(0..=9)? }];
    let len = end(channels, channel_step, end(height, row_step, end(width, pixel_step, 1)));
    stored(
        u,
        (channels, len),
        |at| match is_last {
            true => at % row_step / pixel_step < width && at % pixel_step < channels,
            false => at % row_step < width,
        },
        |y, epilogue| {
            kernel.output(&products, &pixels, y, epilogue, &mut bad);
        },
    )
}
