//! Passes over bytes and their sums, and the macro by which an ISA lists its kernels of bytes.
//!
//! They are loops over slices, which the compiler makes vectors of, with the instructions of the function that they are
//! inlined into.

use core::ops::Range;

use pulp::bytemuck::cast_slice_mut;

use crate::dot::{AddedBytes, Byte, BytePixels, MOST_VALUES, Output, RequantiseArgs, UnitRows, four, pair};
use crate::simd::UnitSums;
use crate::unit::Unit;

/// As [`DotKernels::values_of_pixels`].
#[inline(always)]
pub(crate) fn values_of_pixels<X: Byte>(
    unit: Unit,
    &BytePixels { x, pixel: x_pixel, channels }: &BytePixels<'_, X>,
    zero: X,
    (to, pixel): (&mut [u8], usize),
) {
    let len = channels * unit.value_bytes();
    // Pixels without a gap are like one.
    if x_pixel == channels && pixel == len {
        return values_of(unit, &x[..to.len() / unit.value_bytes()], zero, to);
    }
    for (i, to) in to.chunks_exact_mut(pixel).enumerate() {
        values_of(unit, &x[i * x_pixel..][..channels], zero, &mut to[..len]);
    }
}

/// Makes values of bytes.
#[inline(always)]
fn values_of<X: Byte>(unit: Unit, x: &[X], zero: X, to: &mut [u8]) {
    match unit {
        Unit::Pairs => {
            let zero = zero.value();
            for (to, x) in to.as_chunks_mut().0.iter_mut().zip(x) {
                *to = ((x.value() - zero) as i16).to_ne_bytes();
            }
        }
        Unit::Bytes => {
            for (to, x) in to.iter_mut().zip(x) {
                *to = x.unsigned();
            }
        }
    }
}

/// As [`DotKernels::units_of_groups`].
#[inline(always)]
pub(crate) fn units_of_groups<X: Byte>(unit: Unit, (x, group): (&[X], usize), zero: X, to: &mut [i32]) {
    match group {
        1 => units_of_arrays::<X, 1>(unit, x, zero, to),
        2 => units_of_arrays::<X, 2>(unit, x, zero, to),
        3 => units_of_arrays::<X, 3>(unit, x, zero, to),
        _ => units_of_arrays::<X, 4>(unit, x, zero, to),
    }
}

/// Makes a unit of each array of `C` values.
#[inline(always)]
fn units_of_arrays<X: Byte, const C: usize>(unit: Unit, x: &[X], zero: X, to: &mut [i32]) {
    for (to, x) in to.iter_mut().zip(x.as_chunks::<C>().0) {
        let mut bits = 0;
        for i in 0..C {
            bits |= share(unit, x[i], zero, i);
        }
        *to = bits;
    }
}

/// The bits of value `i` of a unit.
#[inline(always)]
fn share<X: Byte>(unit: Unit, x: X, zero: X, i: usize) -> i32 {
    match (unit, i) {
        (Unit::Pairs, 0) => pair([x.value() - zero.value(), 0]),
        (Unit::Pairs, _) => pair([0, x.value() - zero.value()]),
        (Unit::Bytes, _) => i32::from(x.unsigned()) << (8 * i),
    }
}

/// Makes pairs of values. They are written value by value, because the compiler then makes vectors of 16 bits.
#[inline(always)]
fn pairs_of<X: Byte>(x: impl Iterator<Item = [X; 2]>, zero: X, to: &mut [i32]) {
    let (zero, to) = (zero.value(), cast_slice_mut::<i32, [i16; 2]>(to));
    for (to, [low, high]) in to.iter_mut().zip(x) {
        to[0] = (low.value() - zero) as i16;
        to[1] = (high.value() - zero) as i16;
    }
}

/// As [`DotKernels::units_of_rows`].
///
/// # Safety
/// CPU: the ISA of `V`, whose units are `unit`. Memory: rows have the elements of all pixels.
#[inline(always)]
pub(crate) unsafe fn units_of_rows<V: UnitSums, X: Byte>(
    unit: Unit,
    (rows, x_pixel, channels): (UnitRows<'_, X>, usize, usize),
    zero: X,
    (to, pixel): (&mut [i32], usize),
) {
    // Pixels without gaps are like one.
    if [x_pixel, channels] == [pixel; 2] {
        // SAFETY: the caller's promise.
        return unsafe { units_of_run::<V, X>(unit, rows, zero, to) };
    }
    for (i, to) in to.chunks_exact_mut(pixel).enumerate() {
        let (mut of_pixel, mut k) = ([None; MOST_VALUES], 0);
        while k < MOST_VALUES {
            if let Some(row) = rows[k] {
                of_pixel[k] = Some(&row[i * x_pixel..][..channels]);
            }
            k += 1;
        }
        // SAFETY: the caller's promise.
        unsafe { units_of_run::<V, X>(unit, of_pixel, zero, &mut to[..channels]) };
    }
}

/// Units of rows without gaps.
///
/// # Safety
/// CPU: the ISA of `V`, whose units are `unit`. Memory: rows have as many elements as there are units.
#[inline(always)]
unsafe fn units_of_run<V: UnitSums, X: Byte>(unit: Unit, rows: UnitRows<'_, X>, zero: X, to: &mut [i32]) {
    match (unit, rows) {
        (Unit::Pairs, [Some(low), Some(high), ..]) => {
            pairs_of(low.iter().zip(high).map(|(low, high)| [*low, *high]), zero, to);
        }
        (Unit::Bytes, [Some(a), Some(b), Some(c), Some(d)]) if V::INTERLEAVES && to.len() >= 4 * V::LANES => {
            // SAFETY: the caller's promise. The last block overlaps the one before it.
            unsafe { interleaved::<V>([a, b, c, d].map(|row| row.as_ptr().cast()), flipped(zero), to) };
        }
        (Unit::Bytes, [Some(a), Some(b), Some(c), Some(d)]) => {
            for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *to = four([a.unsigned(), b.unsigned(), c.unsigned(), d.unsigned()]);
            }
        }
        _ => {
            to.fill(0);
            for (i, row) in rows[..unit.values()].iter().enumerate() {
                match row {
                    Some(row) => to.iter_mut().zip(*row).for_each(|(to, x)| *to |= share(unit, *x, zero, i)),
                    None => to.iter_mut().for_each(|to| *to |= share(unit, zero, zero, i)),
                }
            }
        }
    }
}

/// The bits that differ in bytes of `X` and in those without sign.
#[inline(always)]
fn flipped<X: Byte>(x: X) -> i32 {
    four([x.unsigned() ^ x.value() as u8; 4])
}

/// Makes units of four rows of bytes, of which some bits are flipped.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: rows are readable for as many bytes as there are units, which fill four vectors.
#[inline(always)]
unsafe fn interleaved<V: UnitSums>(rows: [*const u8; 4], flipped: i32, to: &mut [i32]) {
    let mut done = 0;
    while done < to.len() {
        let at = done.min(to.len() - 4 * V::LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let units = V::interleave([rows[0].add(at), rows[1].add(at), rows[2].add(at), rows[3].add(at)]);
            for i in 0..4 {
                units[i].xor(V::splat(flipped)).store(to.as_mut_ptr().add(at + i * V::LANES));
            }
        }
        done += 4 * V::LANES;
    }
}

/// Finishes rows of sums whose columns are channels.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`RequantiseArgs`] states.
#[inline(always)]
pub(crate) unsafe fn by_columns<V: UnitSums, O: Output>(args: &RequantiseArgs<'_, O>) {
    // SAFETY: the caller's promise. Rows have as many channels as a vector or block.
    unsafe {
        if let (Some(is_signed), Some(residual)) = (O::BYTE, &args.residual) {
            return with_residual(args, residual, is_signed, false);
        }
        match O::BYTE {
            Some(true) if V::PACKS && args.len >= V::LANES => in_vectors::<V, O, true, true>(args),
            Some(false) if V::PACKS && args.len >= V::LANES => in_vectors::<V, O, false, true>(args),
            Some(true) if V::PACKS && V::MASKS => in_vectors::<V, O, true, false>(args),
            Some(false) if V::PACKS && V::MASKS => in_vectors::<V, O, false, false>(args),
            _ if args.len >= 16 => in_blocks::<O, 16>(args),
            _ if args.len >= 8 => in_blocks::<O, 8>(args),
            _ => in_blocks::<O, 1>(args),
        }
    }
}

/// As [`by_columns`], for a vector of channels of four rows at a time. The last vector overlaps the one before it, and the
/// last row may be there several times. Unless `WHOLE`, there are fewer channels than a vector has.
///
/// # Safety
/// CPU: the ISA of `V`, which has masked loads unless `WHOLE`. Memory: as [`RequantiseArgs`] states. There is a row. `O` is a
/// byte.
#[inline(always)]
unsafe fn in_vectors<V: UnitSums, O: Output, const SIGNED: bool, const WHOLE: bool>(args: &RequantiseArgs<'_, O>) {
    let n = if WHOLE { V::LANES } else { args.len };
    for j in (0..args.len).step_by(V::LANES).map(|j| j.min(args.len - n)) {
        // SAFETY: the caller's promise. Vectors end within a row.
        unsafe {
            let (add, scale) = (first::<V, WHOLE>(args.add.add(j), n), args.scale.add(j));
            for i in (0..args.rows).step_by(4) {
                let row = |k: usize| (i + k).min(args.rows - 1);
                let (mut sums, mut y) = ([add; 4], [args.y.cast::<u8>(); 4]);
                for k in 0..4 {
                    sums[k] = first::<V, WHOLE>(args.sums.add(row(k) * args.sums_ld + j), n).add(add);
                    y[k] = y[k].add(row(k) * args.ld + j);
                }
                V::store_bytes::<SIGNED, WHOLE>(sums, scale, args.zero, (y, n));
            }
        }
    }
}

/// The first `n` elements, which are all of a vector if `WHOLE`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `p` is readable for `n` elements.
#[inline(always)]
unsafe fn first<V: UnitSums, const WHOLE: bool>(p: *const i32, n: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { if WHOLE { V::load(p) } else { V::load_first(p, n) } }
}

/// As [`by_columns`], in blocks of `N` channels, which the compiler makes vectors of. The last one overlaps the one before
/// it.
///
/// # Safety
/// Memory: as [`RequantiseArgs`] states. There are at least `N` channels, or none.
#[inline(always)]
unsafe fn in_blocks<O: Output, const N: usize>(args: &RequantiseArgs<'_, O>) {
    for i in 0..args.rows {
        // SAFETY: the caller's promise. Blocks end within a row.
        unsafe {
            let (sums, y) = (args.sums.add(i * args.sums_ld), args.y.add(i * args.ld));
            for j in (0..args.len).step_by(N).map(|j| j.min(args.len - N)) {
                let (add, scale) = (&*args.add.add(j).cast::<[i32; N]>(), &*args.scale.add(j).cast::<[f32; N]>());
                let sums = &*sums.add(j).cast::<[i32; N]>();
                // Not in Y itself, which may be where sums are, for what the compiler knows.
                let mut block = [O::finish(0, 1.0, None, 0); N];
                for l in 0..N {
                    block[l] = O::finish(sums[l].wrapping_add(add[l]), scale[l], None, args.zero);
                }
                y.add(j).cast::<[O; N]>().write(block);
            }
        }
    }
}

/// Finishes rows of sums, each of which is a channel.
///
/// # Safety
/// Memory: as [`RequantiseArgs`] states.
#[inline(always)]
pub(crate) unsafe fn by_rows<O: Output>(args: &RequantiseArgs<'_, O>) {
    // SAFETY: the caller's promise.
    unsafe {
        if let (Some(is_signed), Some(residual)) = (O::BYTE, &args.residual) {
            return with_residual(args, residual, is_signed, true);
        }
        for i in 0..args.rows {
            let (add, scale) = (*args.add.add(i), *args.scale.add(i));
            let sums = core::slice::from_raw_parts(args.sums.add(i * args.sums_ld), args.len);
            let y = args.y.add(i * args.ld);
            for (j, sum) in sums.iter().enumerate() {
                y.add(j).write(O::finish(sum.wrapping_add(add), scale, None, args.zero));
            }
        }
    }
}

/// Finishes sums to which a residual is added. Its bytes have a sign or not, as those of Y.
///
/// # Safety
/// Memory: as [`RequantiseArgs`] states.
#[inline(always)]
unsafe fn with_residual<O: Output>(
    args: &RequantiseArgs<'_, O>,
    residual: &AddedBytes<'_>,
    is_signed: bool,
    by_rows: bool,
) {
    let values = residual.values.as_ptr();
    for i in 0..args.rows {
        for j in 0..args.len {
            let channel = if by_rows { i } else { j };
            // SAFETY: the caller's promise.
            unsafe {
                let byte = *values.add(i * residual.ld + j * residual.step);
                let value = if is_signed { i32::from(byte as i8) } else { i32::from(byte) };
                let addend = (value - residual.zero) as f32 * residual.scale;
                let sum = (*args.sums.add(i * args.sums_ld + j)).wrapping_add(*args.add.add(channel));
                let y = O::finish(sum, *args.scale.add(channel), Some(addend), args.zero);
                args.y.add(i * args.ld + j).write(y);
            }
        }
    }
}

/// Replaces some bytes of a row by entries of a table, one by one.
///
/// # Safety
/// Memory: these bytes are initialised, and writable.
#[inline(always)]
pub(crate) unsafe fn look_up(table: &[u8; 256], row: *mut u8, columns: Range<usize>) {
    for column in columns {
        // SAFETY: the caller's promise.
        unsafe { *row.add(column) = table[usize::from(*row.add(column))] };
    }
}

/// The kernels of one ISA and kind of unit, as the static `KERNELS` of the module `$module`.
macro_rules! kernels {
    (
        mod $module:ident: $isa:expr, #[$attr:meta], $unit:ident in $vector:ident
        $(, split $lanes:literal)?;
        $name:literal: $($nr:literal x [$($mr:literal)+]),+;
        dw: $dw_nr:literal x [$($dw_mr:literal)+];
    ) => {
        pub(crate) mod $module {
            use super::vector::$vector as V;
            use crate::dot::{BytePixels, DotKernels, DotPasses, RequantiseArgs, UnitFns, UnitRows};
            use crate::generic::dot::{by_columns, by_rows};
            use crate::unit::Unit;
            use crate::isa::Code;
            use crate::simd::{Accumulator, UnitSums};
            use half::f16;

            /// # Safety
            /// As for the generic kernel, with this ISA and these sizes.
            #[$attr]
            unsafe fn pixel_gemm<const MR: usize, const NRV: usize>(args: &crate::pixel::PixelArgs<i32>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::pixel::sums::<V, MR, NRV>(args) }
            }

            /// # Safety
            /// As for the generic kernel, with this ISA and these sizes.
            #[$attr]
            unsafe fn pixel_dw<const MR: usize>(args: &crate::pixel_depthwise::DepthwisePixelArgs<i32>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::pixel_depthwise::sums::<V, MR, { $dw_nr / V::LANES }>(args) }
            }

            macro_rules! passes {
                ($t:ident) => {{
                    /// # Safety
                    /// As for the generic pass, with this ISA.
                    #[$attr]
                    unsafe fn columns(args: &RequantiseArgs<'_, $t>) {
                        // SAFETY: the caller's promise, passed on.
                        unsafe { by_columns::<V, _>(args) }
                    }

                    /// # Safety
                    /// As for the generic pass, with this ISA.
                    #[$attr]
                    unsafe fn rows(args: &RequantiseArgs<'_, $t>) {
                        // SAFETY: the caller's promise, passed on.
                        unsafe { by_rows(args) }
                    }
                    [columns, rows]
                }};
            }

            macro_rules! units {
                ($t:ident) => {{
                    /// # Safety
                    /// CPU: the ISA.
                    #[$attr]
                    unsafe fn pixels(x: &BytePixels<'_, $t>, zero: $t, to: &mut [u8], pixel: usize) {
                        crate::generic::dot::values_of_pixels(Unit::$unit, x, zero, (to, pixel));
                    }

                    /// # Safety
                    /// CPU: the ISA.
                    #[$attr]
                    unsafe fn groups(x: (&[$t], usize), zero: $t, to: &mut [i32]) {
                        crate::generic::dot::units_of_groups(Unit::$unit, x, zero, to);
                    }

                    /// # Safety
                    /// CPU: the ISA. Memory: rows have the elements of all pixels.
                    #[$attr]
                    unsafe fn rows(rows: (UnitRows<'_, $t>, usize, usize), zero: $t, to: (&mut [i32], usize)) {
                        // SAFETY: the caller's promise, passed on.
                        unsafe { crate::generic::dot::units_of_rows::<V, _>(Unit::$unit, rows, zero, to) };
                    }
                    UnitFns { pixels, groups, rows }
                }};
            }

            pub(crate) static KERNELS: DotKernels = DotKernels {
                unit: Unit::$unit,
                pixel: &[$($(crate::PixelKernel::new::<V>(
                    (concat!($name, "_pixel_gemm_", $mr, "x", $nr), $isa),
                    ($mr, $nr),
                    pixel_gemm::<$mr, { $nr / V::LANES }>,
                ).of(Unit::$unit)),+),+],
                depthwise: &[$(crate::DepthwisePixelKernel::of_units::<V>(
                    (concat!($name, "_pixel_dw_", $dw_mr, "x", $dw_nr), $isa),
                    ($dw_mr, $dw_nr),
                    pixel_dw::<$dw_mr>,
                ).of(Unit::$unit)),+],
                stored_channels: if !V::PACKS { 0 } else if V::MASKS { 1 } else { V::LANES },
                split_lanes: 0 $(+ $lanes)?,
                passes: Code::new($isa, DotPasses {
                    of_u8: units!(u8),
                    of_i8: units!(i8),
                    u8: passes!(u8),
                    i8: passes!(i8),
                    i32: passes!(i32),
                    f32: passes!(f32),
                    f16: passes!(f16),
                })
                .of(Unit::$unit),
            };
        }
    };
}
pub(crate) use kernels;
