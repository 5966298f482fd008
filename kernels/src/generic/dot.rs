//! Passes over bytes and their sums, and the macro by which an ISA lists its kernels of bytes.
//!
//! They are loops over slices, which the compiler makes vectors of, with the instructions of the function that they are
//! inlined into.

use crate::dot::{Byte, BytePixels, MOST_CHANNELS, Output, RequantiseArgs, four, pair};
use crate::unit::Unit;

/// As [`DotKernels::units_of_pixels`].
#[inline(always)]
pub(crate) fn units_of_pixels<X: Byte>(
    unit: Unit,
    &BytePixels { x, pixel: x_pixel, channels }: &BytePixels<'_, X>,
    zero: i32,
    (to, pixel): (&mut [i32], usize),
) {
    // Pixels without a gap are like one.
    if x_pixel == channels && channels.is_multiple_of(unit.channels()) && channels / unit.channels() == pixel {
        return units_of_channels(unit, &x[..to.len() * unit.channels()], zero, to);
    }
    let count = channels.div_ceil(unit.channels());
    let pixels =
        to.chunks_exact_mut(pixel).enumerate().map(|(i, to)| (&x[i * x_pixel..][..channels], &mut to[..count]));
    if channels > FEW_CHANNELS {
        return pixels.for_each(|(x, to)| units_of_channels(unit, x, zero, to));
    }
    let missing = if unit == Unit::Bytes { 0 } else { zero };
    for (x, to) in pixels {
        let (mut values, mut unsigned) = ([missing; FEW_CHANNELS], [0; FEW_CHANNELS]);
        for (i, x) in x.iter().enumerate() {
            (values[i], unsigned[i]) = (x.value(), x.unsigned());
        }
        for (u, to) in to.iter_mut().enumerate() {
            *to = match unit {
                Unit::One => values[u] - zero,
                Unit::Pairs => pair([values[2 * u] - zero, values[2 * u + 1] - zero]),
                Unit::Bytes => four([0, 1, 2, 3].map(|i| unsigned[4 * u + i])),
            };
        }
    }
}

/// Channels up to which a pixel is gathered in an array, because loops over vectors would be too short.
const FEW_CHANNELS: usize = 8;

/// Makes units of neighbouring channels.
#[inline(always)]
fn units_of_channels<X: Byte>(unit: Unit, x: &[X], zero: i32, to: &mut [i32]) {
    match unit {
        Unit::One => {
            for (to, x) in to.iter_mut().zip(x) {
                *to = x.value() - zero;
            }
        }
        Unit::Pairs => {
            let (pairs, rest) = x.as_chunks();
            for (to, [low, high]) in to.iter_mut().zip(pairs) {
                *to = pair([low.value() - zero, high.value() - zero]);
            }
            if let ([last], Some(to)) = (rest, to.last_mut()) {
                *to = pair([last.value() - zero, 0]);
            }
        }
        Unit::Bytes => {
            let (fours, rest) = x.as_chunks();
            for (to, bytes) in to.iter_mut().zip(fours) {
                *to = four(bytes.map(X::unsigned));
            }
            if let (false, Some(to)) = (rest.is_empty(), to.last_mut()) {
                let mut bytes = [0; 4];
                bytes.iter_mut().zip(rest).for_each(|(to, x)| *to = x.unsigned());
                *to = four(bytes);
            }
        }
    }
}

/// As [`DotKernels::units_of_rows`]. Rows that are missing are empty.
#[inline(always)]
pub(crate) fn units_of_rows<X: Byte>(unit: Unit, rows: [&[X]; MOST_CHANNELS], zero: i32, to: &mut [i32]) {
    let [a, b, c, d] = rows;
    match unit {
        Unit::Pairs if !b.is_empty() => {
            for ((to, low), high) in to.iter_mut().zip(a).zip(b) {
                *to = pair([low.value() - zero, high.value() - zero]);
            }
        }
        Unit::One | Unit::Pairs => {
            for (to, low) in to.iter_mut().zip(a) {
                *to = if unit == Unit::One { low.value() - zero } else { pair([low.value() - zero, 0]) };
            }
        }
        Unit::Bytes if !d.is_empty() => {
            for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *to = four([a.unsigned(), b.unsigned(), c.unsigned(), d.unsigned()]);
            }
        }
        Unit::Bytes => {
            to.fill(0);
            for (i, row) in rows.into_iter().enumerate() {
                for (to, x) in to.iter_mut().zip(row) {
                    *to |= i32::from(x.unsigned()) << (8 * i);
                }
            }
        }
    }
}

/// Finishes rows of sums whose columns are channels.
///
/// # Safety
/// Memory: as [`RequantiseArgs`] states.
#[inline(always)]
pub(crate) unsafe fn by_columns<O: Output>(args: &RequantiseArgs<O>) {
    // SAFETY: the caller's promise.
    unsafe {
        let add = core::slice::from_raw_parts(args.add, args.len);
        let scale = core::slice::from_raw_parts(args.scale, args.len);
        for i in 0..args.rows {
            let sums = core::slice::from_raw_parts(args.sums.add(i * args.sums_ld), args.len);
            let y = args.y.add(i * args.ld);
            for j in 0..args.len {
                y.add(j).write(O::finish(sums[j].wrapping_add(add[j]), scale[j], args.zero));
            }
            look_up(args, y);
        }
    }
}

/// Finishes rows of sums, each of which is a channel.
///
/// # Safety
/// Memory: as [`RequantiseArgs`] states.
#[inline(always)]
pub(crate) unsafe fn by_rows<O: Output>(args: &RequantiseArgs<O>) {
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..args.rows {
            let (add, scale) = (*args.add.add(i), *args.scale.add(i));
            let sums = core::slice::from_raw_parts(args.sums.add(i * args.sums_ld), args.len);
            let y = args.y.add(i * args.ld);
            for (j, sum) in sums.iter().enumerate() {
                y.add(j).write(O::finish(sum.wrapping_add(add), scale, args.zero));
            }
            look_up(args, y);
        }
    }
}

/// Replaces the outputs of a row by entries of the table, if there is one.
///
/// # Safety
/// Memory: as [`RequantiseArgs`] states. The row `y` was written.
#[inline(always)]
unsafe fn look_up<O: Output>(args: &RequantiseArgs<O>, y: *mut O) {
    let Some(table) = args.table else { return };
    // SAFETY: the caller's promise.
    unsafe {
        for j in 0..args.len {
            let y = y.add(j);
            y.write(y.read().looked_up(table.as_ref()));
        }
    }
}

/// The kernels of one ISA and kind of unit, as the static `KERNELS` of the module `$module`.
macro_rules! kernels {
    (
        mod $module:ident: $isa:expr, #[$attr:meta], $unit:ident in $vector:ident
        $(, split $lanes:literal)?;
        $name:literal: $($nr:literal x [$($mr:literal)+]),+;
        $(dw: $dw_nr:literal x [$($dw_mr:literal)+];)?
    ) => {
        pub(crate) mod $module {
            use super::vector::$vector as V;
            use crate::dot::{BytePixels, DotKernels, DotPasses, RequantiseArgs, UnitFns};
            use crate::generic::dot::{by_columns, by_rows};
            use crate::unit::Unit;
            use crate::isa::Code;
            use crate::simd::Accumulator;

            /// # Safety
            /// As for the generic kernel, with this ISA and these sizes.
            #[$attr]
            unsafe fn pixel_gemm<const MR: usize, const NRV: usize>(args: &crate::pixel::PixelArgs<i32>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::pixel::sums::<V, MR, NRV>(args) }
            }

            $(
                /// # Safety
                /// As for the generic kernel, with this ISA and these sizes.
                #[$attr]
                unsafe fn pixel_dw<const MR: usize>(args: &crate::pixel_depthwise::DepthwisePixelArgs<i32>) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { crate::generic::pixel_depthwise::sums::<V, MR, { $dw_nr / V::LANES }>(args) }
                }
            )?

            macro_rules! passes {
                ($t:ident) => {{
                    /// # Safety
                    /// As for the generic pass, with this ISA.
                    #[$attr]
                    unsafe fn columns(args: &RequantiseArgs<$t>) {
                        // SAFETY: the caller's promise, passed on.
                        unsafe { by_columns(args) }
                    }

                    /// # Safety
                    /// As for the generic pass, with this ISA.
                    #[$attr]
                    unsafe fn rows(args: &RequantiseArgs<$t>) {
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
                    unsafe fn pixels(unit: Unit, x: &BytePixels<'_, $t>, zero: i32, to: &mut [i32], pixel: usize) {
                        crate::generic::dot::units_of_pixels(unit, x, zero, (to, pixel));
                    }

                    /// # Safety
                    /// CPU: the ISA.
                    #[$attr]
                    unsafe fn rows(unit: Unit, rows: [&[$t]; 4], zero: i32, to: &mut [i32]) {
                        crate::generic::dot::units_of_rows(unit, rows, zero, to);
                    }
                    UnitFns { pixels, rows }
                }};
            }

            pub(crate) static KERNELS: DotKernels = DotKernels {
                unit: Unit::$unit,
                pixel: &[$($(crate::PixelKernel::new::<V>(
                    (concat!($name, "_pixel_gemm_", $mr, "x", $nr), $isa),
                    ($mr, $nr),
                    pixel_gemm::<$mr, { $nr / V::LANES }>,
                ).of(Unit::$unit)),+),+],
                depthwise: &[$($(crate::DepthwisePixelKernel::of_units::<V>(
                    (concat!($name, "_pixel_dw_", $dw_mr, "x", $dw_nr), $isa),
                    ($dw_mr, $dw_nr),
                    pixel_dw::<$dw_mr>,
                ).of(Unit::$unit)),+)?],
                split_lanes: 0 $(+ $lanes)?,
                passes: Code::new($isa, DotPasses {
                    of_u8: units!(u8),
                    of_i8: units!(i8),
                    u8: passes!(u8),
                    i8: passes!(i8),
                    i32: passes!(i32),
                    f32: passes!(f32),
                })
                .of(Unit::$unit),
            };
        }
    };
}
pub(crate) use kernels;
