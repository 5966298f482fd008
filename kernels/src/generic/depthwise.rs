//! The direct kernels: sums over few channels, in registers over all taps, and the passes that bring X into the form they read.
//!
//! A GEMM has nothing to share among output channels here, so that the reuse is in space: a tile is a column of R output rows, one vector wide. A
//! tap column is a run of N taps below one another: its N weights are in registers, its R + N - 1 input rows are loaded once, at any alignment, and serve
//! R * N multiply-adds.
//! Two orientations share it:
//!
//! * rows: a vector is `LANES` neighbouring positions of one channel, a weight is broadcast;
//! * channels: a vector is one position of `LANES` channels, the weights are vectors. For narrow planes, and for one axis only, whose taps lie
//!   side by side: with channels as lanes they are below one another.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over indices unroll before the accumulators are split into registers; loops over iterators do not, and spill them"
)]

use crate::Real;
use crate::depthwise::{CopyArgs, DepthwiseArgs, DirectArgs, GatherArgs, MOST_SHORT, MOST_TAPS, TileOutput};
use crate::simd::Simd;
use crate::ukernel::ChannelStore;

/// Tiles of `R` rows, over planes, tiles below one another, and vectors side by side.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DepthwiseArgs`] states for `R`.
#[inline(always)]
pub(crate) unsafe fn tiles<V: Simd, const R: usize, const VECTOR_WEIGHTS: bool>(args: &DepthwiseArgs<V::Elem>) {
    // SAFETY: every pointer below stays inside what DepthwiseArgs promises for these planes, tiles and vectors.
    unsafe {
        let output = &args.output;
        if args.is_square && !VECTOR_WEIGHTS {
            let offsets = args.offsets;
            let positions = [*offsets as isize, *offsets.add(1) as isize, *offsets.add(2) as isize];
            let (steps, masks) = ((args.step, args.x_plane, args.w_plane), [[V::mask(0, V::LANES); 3]; 3]);
            return squares::<V, R, false>(args.x, args.w, steps, (0, 0), positions, &masks, output);
        }
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            for tile in 0..output.tiles {
                let x = args.x.add(plane * args.x_plane + tile * R * args.step);
                let at = plane * output.y_plane + tile * R * output.y_row;
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let x = x.add(vector * args.x_vector);
                    let mut offsets = args.offsets;
                    let mut w = args.w.add(plane * args.w_plane);
                    for group in 0..args.groups_len {
                        let group = &*args.groups.add(group);
                        let (columns, step) = (group.columns, args.step);
                        (offsets, w) = match group.taps {
                            1 => sum::<V, R, 1, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                            2 => sum::<V, R, 2, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                            3 => sum::<V, R, 3, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                            4 => sum::<V, R, 4, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                            5 => sum::<V, R, 5, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                            6 => sum::<V, R, 6, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                            _ => sum::<V, R, MOST_TAPS, VECTOR_WEIGHTS>(&mut acc, x, step, offsets, w, columns),
                        };
                    }
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// Adds `columns` tap columns of `N` taps each to the sums; returns where offsets and weights go on.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `offsets` readable for `columns`, `w` for `columns * N` weights; for each offset, `x + offset + i * step`
/// for a vector, i < R + N - 1.
#[inline(always)]
unsafe fn sum<V: Simd, const R: usize, const N: usize, const VECTOR_WEIGHTS: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    offsets: *const u32,
    w: *const V::Elem,
    columns: usize,
) -> (*const u32, *const V::Elem) {
    let weight = if VECTOR_WEIGHTS { V::LANES } else { 1 };
    let (mut offsets, mut w) = (offsets, w);
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let end = offsets.add(columns);
        while offsets < end {
            let mask = V::mask(0, V::LANES);
            sum_column::<V, R, N, VECTOR_WEIGHTS, false>(acc, x.add(*offsets as usize), step, mask, w);
            w = w.add(N * weight);
            offsets = offsets.add(1);
        }
    }
    (offsets, w)
}

/// As [`tiles`] along rows, straight from X: positions that are padding are masked, and rows that are left out, which asks for finite
/// weights.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
pub(crate) unsafe fn direct<V: Simd, const R: usize>(args: &DirectArgs<V::Elem>) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match args.taps {
            1 => direct_columns::<V, R, 1>(args),
            2 => direct_columns::<V, R, 2>(args),
            3 => direct_columns::<V, R, 3>(args),
            4 => direct_columns::<V, R, 4>(args),
            5 => direct_columns::<V, R, 5>(args),
            6 => direct_columns::<V, R, 6>(args),
            _ => direct_columns::<V, R, MOST_TAPS>(args),
        }
    }
}

/// [`direct`] for columns of `N` taps.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`DirectArgs`] states for `R`.
#[inline(always)]
unsafe fn direct_columns<V: Simd, const R: usize, const N: usize>(args: &DirectArgs<V::Elem>) {
    // SAFETY: DirectArgs promises the rows that are read, and the masks leave out what is not of them; the output's contract covers the rest.
    unsafe {
        let output = &args.output;
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let last = output.vectors - 1;
        // For the first vector of a row, those in between, and the last one.
        let mut masks = [[V::mask(0, V::LANES); MOST_SHORT]; 3];
        for column in 0..args.columns_len {
            let position = *args.columns.add(column);
            masks[0][column] = V::mask(position, args.width);
            masks[2][column] = V::mask(position + (last * V::LANES) as isize, args.width);
        }
        if N == 3 && args.columns_len == 3 {
            let positions = [*args.columns, *args.columns.add(1), *args.columns.add(2)];
            let three = |masks: &[V::Mask; MOST_SHORT]| [masks[0], masks[1], masks[2]];
            let masks = [three(&masks[0]), three(&masks[1]), three(&masks[2])];
            let (steps, rows) = ((args.step, args.x_plane, args.w_plane), (args.row, args.height));
            return squares::<V, R, true>(args.x, args.w, steps, rows, positions, &masks, output);
        }
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            let w = args.w.add(plane * args.w_plane);
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = args.row + (tile * R) as isize;
                let is_inside = first >= 0 && first as usize + R + N - 1 <= args.height;
                let x = args.x.add(plane * args.x_plane).wrapping_offset(first * args.step as isize);
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let masks = &masks[usize::from(vector > 0) + usize::from(vector > 0 && vector == last)];
                    let x = x.wrapping_add(vector * V::LANES);
                    for column in 0..args.columns_len {
                        let x = x.wrapping_offset(*args.columns.add(column));
                        let w = w.add(column * N);
                        if is_inside && !V::MASKS_ARE_FREE && vector > 0 && vector < last {
                            sum_column::<V, R, N, false, false>(&mut acc, x, args.step, masks[column], w);
                        } else if is_inside {
                            sum_column::<V, R, N, false, true>(&mut acc, x, args.step, masks[column], w);
                        } else {
                            sum_edge::<V, R, N>(&mut acc, x, args.step, (first, args.height), masks[column], w);
                        }
                    }
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// Rows that a tile reads for a column, at the most: 8 rows and [`MOST_TAPS`] are 14.
const MOST_READ: usize = 16;

/// Adds one tap column of `N` taps to the sums, from the rows at `x`, `x + step`, ...; where `MASKED`, the lanes of `mask` of them.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: R + N - 1 rows are readable for a vector, or for the lanes of the mask; `w` for `N` weights.
#[inline(always)]
unsafe fn sum_column<V: Simd, const R: usize, const N: usize, const VECTOR_WEIGHTS: bool, const MASKED: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    mask: V::Mask,
    w: *const V::Elem,
) {
    let weight = if VECTOR_WEIGHTS { V::LANES } else { 1 };
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let mut rows = [V::splat(V::Elem::ZERO); MOST_READ];
        for i in 0..R + N - 1 {
            rows[i] = if MASKED { V::load_lanes(row, mask) } else { V::load(row) };
            row = V::advance(row, step);
        }
        // Neighbouring multiply-adds belong to different sums, so that none waits for the one before it.
        for k in 0..N {
            let w = w.add(k * weight);
            let w = if VECTOR_WEIGHTS { V::load(w) } else { V::splat(*w) };
            for r in 0..R {
                acc[r] = w.mul_add(rows[r + k], acc[r]);
            }
        }
    }
}

/// As [`sum_column`] for a tile of which some rows are padding: rows from `first` on, of `height` that are there.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: the rows `0..height` among `first..first + R + N - 1` are readable for the lanes of the mask; `w` for `N` weights.
#[inline(always)]
unsafe fn sum_edge<V: Simd, const R: usize, const N: usize>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    (first, height): (isize, usize),
    mask: V::Mask,
    w: *const V::Elem,
) {
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA.
    unsafe {
        let mut weights = [V::splat(V::Elem::ZERO); MOST_TAPS];
        for k in 0..N {
            weights[k] = V::splat(*w.add(k));
        }
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + N - 1 {
                    if ((first + $i) as usize) < height {
                        let x = V::load_lanes(row, mask);
                        for k in 0..N {
                            if $i >= k && $i - k < R {
                                acc[$i - k] = weights[k].mul_add(x, acc[$i - k]);
                            }
                        }
                    }
                    row = V::advance(row, step);
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    }
    let _ = row;
}

/// Tiles of three tap columns of three taps: the nine weights of a plane stay in registers, and the three vectors of a row are read together.
/// `steps` are those of rows, planes, and weights; `masks` for the first vector of a row, those in between, and the last one. The first row that is
/// read, and where `MASKED` how many there are, is `rows`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: R + 2 rows of each tile are readable at each of `positions` for a vector, or where `MASKED`, those of them that are
/// there for the lanes of the mask; nine weights for each plane; the output as [`TileOutput`] states.
#[inline(always)]
unsafe fn squares<V: Simd, const R: usize, const MASKED: bool>(
    x: *const V::Elem,
    w: *const V::Elem,
    (step, x_plane, w_plane): (usize, usize, usize),
    rows: (isize, usize),
    positions: [isize; 3],
    masks: &[[V::Mask; 3]; 3],
    output: &TileOutput<V::Elem>,
) {
    // SAFETY: the caller's promise of memory and ISA; what is masked may be out of bounds, hence the wrapping arithmetic.
    unsafe {
        let (lo, hi) = (V::splat(output.lo), V::splat(output.hi));
        let last = output.vectors - 1;
        for plane in 0..output.planes {
            let bias = V::splat(*output.bias.add(plane));
            let w = w.add(plane * w_plane);
            let mut weights = [V::splat(V::Elem::ZERO); 9];
            for k in 0..9 {
                weights[k] = V::splat(*w.add(k));
            }
            for tile in 0..output.tiles {
                let at = plane * output.y_plane + tile * R * output.y_row;
                let first = rows.0 + (tile * R) as isize;
                let is_inside = !MASKED || (first >= 0 && first as usize + R + 2 <= rows.1);
                let x = x.add(plane * x_plane).wrapping_offset(first * step as isize);
                for vector in 0..output.vectors {
                    let mut acc = [bias; R];
                    let masks = &masks[usize::from(vector > 0) + usize::from(vector > 0 && vector == last)];
                    let x = x.wrapping_add(vector * V::LANES);
                    if is_inside && MASKED && !V::MASKS_ARE_FREE && vector > 0 && vector < last {
                        square::<V, R, false, false>(&mut acc, x, step, (first, rows.1), positions, masks, &weights);
                    } else if is_inside {
                        square::<V, R, MASKED, false>(&mut acc, x, step, (first, rows.1), positions, masks, &weights);
                    } else {
                        square::<V, R, MASKED, true>(&mut acc, x, step, (first, rows.1), positions, masks, &weights);
                    }
                    store::<V, R>(&mut acc, output, at, vector, (lo, hi));
                }
            }
        }
    }
}

/// One tile of [`squares`]; where `EDGE`, rows of it may be padding.
///
/// # Safety
/// As [`squares`].
#[inline(always)]
unsafe fn square<V: Simd, const R: usize, const MASKED: bool, const EDGE: bool>(
    acc: &mut [V; R],
    x: *const V::Elem,
    step: usize,
    (first, height): (isize, usize),
    positions: [isize; 3],
    masks: &[V::Mask; 3],
    weights: &[V; 9],
) {
    let mut row = x;
    // SAFETY: the caller's promise of memory and ISA; what is masked may be out of bounds, hence the wrapping arithmetic.
    unsafe {
        // Straight-line code: LLVM does not unroll a loop of so many rows. Neighbouring multiply-adds belong to different sums.
        macro_rules! rows {
            ($($i:literal)+) => {$(
                if $i < R + 2 {
                    if !EDGE || ((first + $i) as usize) < height {
                        for column in 0..3 {
                            let x = row.wrapping_offset(positions[column]);
                            let x = if MASKED { V::load_lanes(x, masks[column]) } else { V::load(x) };
                            for k in 0..3 {
                                if $i >= k && $i - k < R {
                                    acc[$i - k] = weights[3 * column + k].mul_add(x, acc[$i - k]);
                                }
                            }
                        }
                    }
                    row = V::advance(row, step);
                }
            )+};
        }
        rows!(0 1 2 3 4 5 6 7 8 9);
    }
    let _ = row;
}

/// Finishes a tile: residual, clamp; to the output's rows from `at` on, vector `vector` of them.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`TileOutput`] states.
#[inline(always)]
unsafe fn store<V: Simd, const R: usize>(
    acc: &mut [V; R],
    output: &TileOutput<V::Elem>,
    at: usize,
    vector: usize,
    (lo, hi): (V, V),
) {
    let at = at + vector * V::LANES;
    let n = (output.width - vector * V::LANES).min(V::LANES);
    // SAFETY: TileOutput promises that rows may be written, and the residual read, for `width` elements, of which this vector has n.
    unsafe {
        if !output.residual.is_null() {
            for r in 0..R {
                acc[r] = acc[r].add(V::load_first(output.residual.add(at + r * output.y_row), n));
            }
        }
        let y = output.y.add(at);
        if output.is_plain && n == V::LANES {
            for r in 0..R {
                acc[r].store(y.add(r * output.y_row));
            }
        } else if n == V::LANES {
            for r in 0..R {
                acc[r].clamp(lo, hi).store(y.add(r * output.y_row));
            }
        } else {
            for r in 0..R {
                acc[r].clamp(lo, hi).store_first(y.add(r * output.y_row), n);
            }
        }
    }
}

/// Copies rows into padded planes; the last vector of a row is filled up with zeros.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`CopyArgs`] states.
#[inline(always)]
pub(crate) unsafe fn copy<V: Simd>(args: &CopyArgs<V::Elem>) {
    // SAFETY: CopyArgs promises `width` elements of each row of src, and as many whole vectors of each row of dst.
    unsafe {
        for plane in 0..args.planes {
            for row in 0..args.rows {
                let src = args.src.add(plane * args.src_plane + row * args.src_row);
                let dst = args.dst.add(plane * args.dst_plane + row * args.dst_row);
                let mut at = 0;
                while at + V::LANES <= args.width {
                    V::load(src.add(at)).store(dst.add(at));
                    at += V::LANES;
                }
                if at < args.width {
                    V::load_first(src.add(at), args.width - at).store(dst.add(at));
                }
            }
        }
    }
}

/// As [`copy`], with the elements of even index to `dst`, and those of odd index to `dst + odd`.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`CopyArgs`] states.
#[inline(always)]
pub(crate) unsafe fn split<V: Simd>(args: &CopyArgs<V::Elem>) {
    // SAFETY: as in copy; each pair of vectors of src is one vector of either half.
    unsafe {
        for plane in 0..args.planes {
            for row in 0..args.rows {
                let src = args.src.add(plane * args.src_plane + row * args.src_row);
                let dst = args.dst.add(plane * args.dst_plane + row * args.dst_row);
                let mut at = 0;
                while at < args.width {
                    let n = args.width - at;
                    let (a, b) = if n >= 2 * V::LANES {
                        (V::load(src.add(at)), V::load(src.add(at + V::LANES)))
                    } else {
                        let first = n.min(V::LANES);
                        (V::load_first(src.add(at), first), V::load_first(src.add(at + first), n - first))
                    };
                    let (even, odd) = a.unzip(b);
                    even.store(dst.add(at / 2));
                    odd.store(dst.offset(args.odd + (at / 2) as isize));
                    at += 2 * V::LANES;
                }
            }
        }
    }
}

/// Gathers `LANES` channels: each position becomes a vector of them, at its slot.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`GatherArgs`] states.
#[inline(always)]
pub(crate) unsafe fn gather<V: Simd>(args: &GatherArgs<V::Elem>) {
    // SAFETY: GatherArgs promises `len` elements of each channel, `len` slots, and a vector of dst at each slot.
    unsafe {
        let mut at = 0;
        while at < args.len {
            let n = (args.len - at).min(V::LANES);
            let mut rows = [V::splat(V::Elem::ZERO); 16];
            if n == V::LANES && args.channels == V::LANES {
                for c in 0..V::LANES {
                    rows[c] = V::load(args.src.add(c * args.src_channel + at));
                }
            } else {
                for (c, row) in rows.iter_mut().enumerate().take(args.channels) {
                    *row = V::load_first(args.src.add(c * args.src_channel + at), n);
                }
            }
            V::transpose(&mut rows);
            // A loop of known length keeps the rows in registers.
            if n == V::LANES {
                for i in 0..V::LANES {
                    rows[i].store(args.dst.add(*args.slots.add(at + i) as usize));
                }
            } else {
                for (i, row) in rows.iter().enumerate().take(n) {
                    row.store(args.dst.add(*args.slots.add(at + i) as usize));
                }
            }
            at += n;
        }
    }
}

/// Turns vectors of channels, one for each of `len` positions, back into rows of positions: bias, residual, clamp.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: `src` is readable for `len * LANES` elements, the rest as [`ChannelStore`] states for `len` pixels.
#[inline(always)]
pub(crate) unsafe fn scatter<V: Simd>(src: *const V::Elem, len: usize, store: &ChannelStore<V::Elem>) {
    // SAFETY: the caller's promise, passed on; the loads of a full block end at its last position.
    unsafe {
        let mut done = 0;
        // Full blocks, in loops of known length, which keep the rows in registers.
        if store.channels == V::LANES && store.residual.is_null() {
            let (lo, hi) = (V::splat(store.lo), V::splat(store.hi));
            while done + V::LANES <= len {
                let mut rows = [V::splat(V::Elem::ZERO); 16];
                for i in 0..V::LANES {
                    rows[i] = V::load(src.add((done + i) * V::LANES));
                }
                V::transpose(&mut rows);
                for c in 0..V::LANES {
                    let y = store.y.add(c * store.ldy + done);
                    rows[c].add(V::splat(*store.bias.add(c))).clamp(lo, hi).store(y);
                }
                done += V::LANES;
            }
        }
        if done < len {
            let residual = if store.residual.is_null() { store.residual } else { store.residual.add(done) };
            let rest = ChannelStore { y: store.y.add(done), residual, ..*store };
            super::gemm::store_transposed::<V>(src.add(done * V::LANES), len - done, 1, &rest);
        }
    }
}

/// Instantiates the tiles and passes of an ISA and type, and lists them.
macro_rules! depthwise {
    ($vector:ty, $isa:expr, #[$attr:meta], direct: $($direct:ident),+; rows: $($row:ident($rr:literal)),+; channels: $($channel:ident($cr:literal)),+ $(,)?) => {
        type Elem = <$vector as crate::simd::Simd>::Elem;
        $(
            /// # Safety
            /// As the generic kernel's, for this ISA and tile.
            #[$attr]
            unsafe fn $direct(args: &crate::depthwise::DirectArgs<Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::depthwise::direct::<$vector, $rr>(args) }
            }
        )+
        $(
            /// # Safety
            /// As the generic kernel's, for this ISA and tile.
            #[$attr]
            unsafe fn $row(args: &crate::depthwise::DepthwiseArgs<Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::depthwise::tiles::<$vector, $rr, false>(args) }
            }
        )+
        $(
            /// # Safety
            /// As the generic kernel's, for this ISA and tile.
            #[$attr]
            unsafe fn $channel(args: &crate::depthwise::DepthwiseArgs<Elem>) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::generic::depthwise::tiles::<$vector, $cr, true>(args) }
            }
        )+
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn copy(args: &crate::depthwise::CopyArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::copy::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn split(args: &crate::depthwise::CopyArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::split::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn gather(args: &crate::depthwise::GatherArgs<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::gather::<$vector>(args) }
        }
        /// # Safety
        /// As the generic pass's, for this ISA.
        #[$attr]
        unsafe fn scatter(src: *const Elem, len: usize, store: &crate::ukernel::ChannelStore<Elem>) {
            // SAFETY: the caller's promise, passed on.
            unsafe { crate::generic::depthwise::scatter::<$vector>(src, len, store) }
        }
        pub(crate) static DEPTHWISE: &crate::depthwise::DepthwiseKernels<Elem> = &crate::depthwise::DepthwiseKernels {
            isa: $isa,
            lanes: <$vector as crate::simd::Simd>::LANES,
            rows: &[$(crate::depthwise::DepthwiseKernel {
                name: stringify!($row),
                isa: $isa,
                mr: $rr,
                lanes: <$vector as crate::simd::Simd>::LANES,
                weight: 1,
                f: $row,
                direct: Some($direct),
            }),+],
            channels: &[$(crate::depthwise::DepthwiseKernel {
                name: stringify!($channel),
                isa: $isa,
                mr: $cr,
                lanes: <$vector as crate::simd::Simd>::LANES,
                weight: <$vector as crate::simd::Simd>::LANES,
                f: $channel,
                direct: None,
            }),+],
            copy,
            split,
            gather,
            scatter,
        };
    };
}
pub(crate) use depthwise;
