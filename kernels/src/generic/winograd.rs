//! The input and output transforms of Winograd's minimal filtering, for tiles along one axis or
//! two.
//!
//! F(m, r) computes m outputs of an r-tap filter with n = m + r - 1 products (Winograd,
//! "Arithmetic Complexity of Computations", 1980; for convolution layers Lavin and Gray, "Fast
//! Algorithms for Convolutional Neural Networks", 2015). It is Toom and Cook's interpolation: the
//! polynomials are evaluated at n - 1 finite points and at infinity, their values are multiplied,
//! and the products are interpolated.
//!
//! The points are 0 and pairs +-a, so that the two points of a pair share their even and odd
//! parts. Where n is odd there is one single point c more. Let `P(x) = prod (x^2 - a^2)` over all
//! pairs, and `P_i(x)` the same without pair i. The values are:
//!
//! * at 0: `sum_q P[q] d[2q]`; at infinity: `sum_q P[q] d[2q + 1]`;
//! * at +-a_i: `t +- a_i u` with `t = sum_q P_i[q] d[2q + 2]`, `u = sum_q P_i[q] d[2q + 1]`;
//! * where n is odd, each of these polynomials has one more factor `x - c`: they are applied to
//!   `e[k] = d[k + 1] - c d[k]` instead of d. The value at c is `sum_q P[q] d[2q + 1]`;
//! * output: `y[i] = [i = 0] m_0 + sum_pairs a^i (m_+a +- m_-a) + c^i m_c + [i = m - 1] m_inf`,
//!   with plus for even i and minus for odd i.
//!
//! [`Points`] holds the polynomials' coefficients. The transform of the filter is
//! [`filter_rows`](crate::winograd::filter_rows): it is done once, in f64.

use super::{VectorEpilogue, constant};
use crate::Real;
use crate::simd::Simd;
use crate::winograd::points::{PAIRS, Points, has_single, pairs};
use crate::winograd::{
    Border, ExtendArgs, InputArgs, JOINED_VECTORS, Joined, MASKS, MOST_VALUES, OutputArgs, SplitArgs, StraightArgs,
    Tile, TilePixelArgs, tiles_of_a_vector, visible_lanes,
};

/// `sum_q c[q] d[first + 2q]` for `count + 1` terms. The last term has the coefficient 1.
#[inline(always)]
fn polynomial<V: Simd, const N: usize, const C: usize>(d: &[V; N], first: usize, c: &[f64; C], count: usize) -> V {
    let mut sum = d[first + 2 * count];
    for q in 0..count {
        let c = c[count - 1 - q];
        let d = d[first + 2 * (count - 1 - q)];
        sum = if c == 1.0 {
            sum.add(d)
        } else if c == -1.0 {
            sum.sub(d)
        } else {
            d.mul_add(constant(d, c), sum)
        };
    }
    sum
}

/// The values at 0 and at infinity.
#[inline(always)]
fn ends<V: Simd, const N: usize>(d: &[V; N]) -> [V; 2] {
    let points = const { Points::of(N) };
    [polynomial(d, 0, &points.all, pairs(N)), polynomial(d, 1, &points.all, pairs(N))]
}

/// The values at both points of pair `i`.
#[inline(always)]
fn pair<V: Simd, const N: usize>(d: &[V; N], i: usize) -> [V; 2] {
    let points = const { Points::of(N) };
    let even = polynomial(d, 2, &points.without[i], pairs(N) - 1);
    let odd = polynomial(d, 1, &points.without[i], pairs(N) - 1);
    let (a, minus) = (constant(odd, points.a[i]), constant(odd, -points.a[i]));
    [odd.mul_add(a, even), odd.mul_add(minus, even)]
}

/// The values at 0, at the pairs, at the single point if there is one, and at infinity.
#[inline(always)]
fn forward<V: Simd, const N: usize>(d: &[V; N]) -> [V; N] {
    let points = const { Points::of(N) };
    let (mut v, mut e) = (*d, *d);
    if has_single(N) {
        let minus = constant(d[0], -points.single);
        for k in 0..N - 1 {
            e[k] = d[k].mul_add(minus, d[k + 1]);
        }
        v[N - 2] = polynomial(d, 1, &points.all, pairs(N));
    }
    [v[0], v[N - 1]] = ends(&e);
    for i in 0..pairs(N) {
        [v[1 + 2 * i], v[2 + 2 * i]] = pair(&e, i);
    }
    v
}

/// Computes `M` outputs, at least 2, from the products at all points.
#[inline(always)]
fn inverse<V: Simd, const N: usize, const M: usize>(p: &[V; N]) -> [V; M] {
    const { assert!(M <= 6, "a tile has at most six outputs") };
    let zero = constant(p[0], 0.0);
    let (mut plus, mut minus) = ([zero; PAIRS], [zero; PAIRS]);
    for i in 0..pairs(N) {
        plus[i] = p[1 + 2 * i].add(p[2 + 2 * i]);
        minus[i] = p[1 + 2 * i].sub(p[2 + 2 * i]);
    }
    let single = if has_single(N) { p[N - 2] } else { zero };
    let (even, odd) = ((&plus, p[0], single, p[N - 1]), (&minus, p[0], single, p[N - 1]));
    // Calls and not a loop: LLVM would not unroll a loop of so many rounds, and would compute
    // the powers in it. The calls for outputs from M on are not used, and vanish.
    let all = [
        output_of::<V, N, M, 0>(even),
        output_of::<V, N, M, 1>(odd),
        output_of::<V, N, M, 2>(even),
        output_of::<V, N, M, 3>(odd),
        output_of::<V, N, M, 4>(even),
        output_of::<V, N, M, 5>(odd),
    ];
    let mut y = [p[0]; M];
    for k in 0..M {
        y[k] = all[k];
    }
    y
}

/// Output `K` of [`inverse`]. `terms` are the sums of each pair's products, or the differences
/// where `K` is odd. The other operands are the products at 0, at the single point and at
/// infinity.
#[inline(always)]
fn output_of<V: Simd, const N: usize, const M: usize, const K: usize>(
    (terms, first, single, last): (&[V; PAIRS], V, V, V),
) -> V {
    let points = const { Points::of(N) };
    let mut sum = if K == M - 1 { last } else { first };
    let mut is_empty = K > 0 && K < M - 1;
    for i in 0..pairs(N) {
        let power = power(points.a[i], points.squares[i], K);
        sum = if is_empty {
            terms[i].mul(constant(first, power))
        } else if power == 1.0 {
            sum.add(terms[i])
        } else {
            terms[i].mul_add(constant(first, power), sum)
        };
        is_empty = false;
    }
    if has_single(N) {
        let power = power(points.single, points.single * points.single, K);
        sum = if power == 1.0 { sum.add(single) } else { single.mul_add(constant(first, power), sum) };
    }
    sum
}

/// `a^k`, from a point and its square.
#[inline(always)]
const fn power(a: f64, square: f64, k: usize) -> f64 {
    let (mut power, mut i) = (if k % 2 == 1 { a } else { 1.0 }, 0);
    while i < k / 2 {
        power *= square;
        i += 1;
    }
    power
}

/// Copies rows of one channel into planes: element `M t + j` of a padded row goes to place t of
/// plane j, for all `N` values of a tile. Tiles overlap along a row, but not in the planes.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SplitArgs`] states for `N` and `M`.
#[inline(always)]
pub(crate) unsafe fn split<V: Simd, const N: usize, const M: usize>(args: &SplitArgs<'_, V::Elem>) {
    let step = const { tiles_of_a_vector(V::LANES, Tile { values: N, outputs: M }) };
    let Border { elements, shape, masks, .. } = args.border;
    if let Some(joined) = &shape.joined {
        // SAFETY: the caller's promise, passed on.
        return unsafe { split_joined::<V, N, M>(args, joined) };
    }
    if M.is_multiple_of(2) && shape.is_paired {
        // SAFETY: the caller's promise, passed on.
        return unsafe { split_pairs::<V, N, M>(args) };
    }
    // SAFETY: SplitArgs promises the rows' live elements, and the masks select no others; it
    // promises whole vectors behind every place of the planes.
    unsafe {
        // The zero comes from memory: LLVM would turn stores of a constant zero into calls of memset.
        let zero = V::splat(args.zero);
        let (mut phase, mut place) = (0, 0);
        for r in 0..shape.rows {
            let dst = args.planes.add(phase * shape.phase_len + place);
            phase += 1;
            if phase == shape.down.outputs {
                (phase, place) = (0, place + shape.pitch);
            }
            let Some(row) = args.row(r) else {
                for t in (0..shape.pitch).step_by(V::LANES) {
                    for j in 0..N {
                        zero.store(dst.add(j * shape.plane_len + t));
                    }
                }
                continue;
            };
            let src = row.wrapping_sub(elements.start);
            let mut vector = 0;
            for t in (0..shape.pitch).step_by(step) {
                let mut v = [zero; M];
                for s in 0..M {
                    let at = M * t + s * V::LANES;
                    let mask = if vector < MASKS { masks[vector] } else { visible_lanes(elements, V::LANES, at) };
                    vector += 1;
                    let p = src.wrapping_add(at);
                    v[s] = if mask == V::ALL { V::load(p) } else { V::load_mask(p, mask) };
                    V::prefetch(p.wrapping_add(args.next));
                }
                let v = V::deinterleave(v);
                for j in 0..N {
                    let moved = v[j % M].compress(V::ALL - ((1 << (j / M)) - 1));
                    let v = if j < M { v[j] } else { moved };
                    v.store(dst.add(j * shape.plane_len + t));
                }
            }
        }
    }
}

/// Whether a tile has a transform in one pass, [`straight`]. It needs two axes, three taps along
/// rows, groups of values that stay in registers, and an ISA with masked loads.
pub(crate) const fn is_straight<V: Simd>(nv: usize, nh: usize, mh: usize) -> bool {
    V::MASKS && nv > 1 && nv <= 6 && !has_single(nv) && nh == mh + 2 && mh <= 4
}

/// Transforms rows in one pass, in place of [`split`] and [`input`], for tiles that are
/// [straight](is_straight).
///
/// Rows are first combined down the column as they lie in memory. The results are taken apart
/// along the row in registers, and combined along the row. A tile is `MH` consecutive elements of
/// a row, and one element more on either side that it shares with its neighbours.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`StraightArgs`] states for the tile.
#[inline(always)]
pub(crate) unsafe fn straight<V: Simd, const NV: usize, const NH: usize, const MV: usize, const MH: usize>(
    args: &StraightArgs<'_, V::Elem>,
) {
    if const { !is_straight::<V>(NV, NH, MH) } {
        return;
    }
    let StraightArgs { source, v, v_plane } = args;
    let Border { elements, shape, masks, .. } = source.border;
    // SAFETY: StraightArgs promises the rows' live elements, and the masks select no others. It
    // promises masks for all vectors of a row, room in the planes for a row of zeros, and whole
    // vectors behind every place of the values. What a row of tiles stores beyond its last tile,
    // the next row of tiles overwrites.
    unsafe {
        // A row of padding: as many vectors as are read of a row, and one before it.
        let zero = V::splat(source.zero);
        for at in (0..shape.pitch.next_multiple_of(V::LANES) * MH + 2 * V::LANES).step_by(V::LANES) {
            zero.store(source.planes.add(at));
        }
        let nothing = source.planes.add(V::LANES).cast_const();
        let (mut row, mut place) = (0, 0);
        while place < shape.tiles {
            let is_last = place + shape.pitch >= shape.tiles;
            // Pointers to the second element of the first tile.
            let mut rows = [nothing; NV];
            for i in 0..NV {
                if let Some(live) = source.row(row + i) {
                    rows[i] = live.wrapping_sub(elements.start).wrapping_add(1);
                }
            }
            for (chunk, t) in (0..shape.pitch).step_by(V::LANES).enumerate() {
                for i in 0..NV {
                    // The tiles below prefetch the rows after these.
                    if i < MV || is_last {
                        for s in 0..MH {
                            V::prefetch_near(rows[i].wrapping_add(s * V::LANES).wrapping_add(source.next));
                        }
                    }
                }
                let masks = masks.get_unchecked(chunk * (MH + 1)..(chunk + 1) * (MH + 1));
                // Calls and not a loop: LLVM would not unroll it, and would keep the points in memory.
                // Each call returns where the next values go.
                let v = v.add(place + t);
                let v = straight_group::<V, NV, NH, MH, 0>(&rows, masks, v, *v_plane);
                if NV > 4 {
                    straight_group::<V, NV, NH, MH, 1>(&rows, masks, v, *v_plane);
                }
                for i in 0..NV {
                    rows[i] = rows[i].wrapping_add(MH * V::LANES);
                }
            }
            row += MV;
            place += shape.pitch;
        }
    }
}

/// The values down the column that [`straight`] computes together: value 0, both values of pair
/// `group`, and the last value. The result says which of these four belong to the group. They are
/// so few that they stay in registers together with a column of the tile.
const fn group_values(values: usize, group: usize) -> [bool; 4] {
    [group == 0, true, true, group + 1 == pairs(values)]
}

/// The values of a group, for one vector of each row `d` of the tiles. See [`group_values`].
#[inline(always)]
fn of_group<V: Simd, const NV: usize, const GROUP: usize>(d: &[V; NV]) -> [V; 4] {
    let points = const { Points::of(NV) };
    let [plus, minus] = pair(d, GROUP);
    let mut values = [plus, plus, minus, plus];
    if GROUP == 0 {
        values[0] = polynomial(d, 0, &points.all, pairs(NV));
    }
    if GROUP + 1 == pairs(NV) {
        values[3] = polynomial(d, 1, &points.all, pairs(NV));
    }
    values
}

/// Computes one group of values for a vector of tiles. `rows` point to the second element of the
/// first tile in each row of the tile. Returns the place of the next value.
///
/// # Safety
/// CPU: the ISA. Memory: in each row, the lanes of `masks` are readable: those of the tiles'
/// vectors, and by the last mask the element behind these vectors and the element before them.
/// `v + i * v_plane` is writable for a vector, for each i below the number of the group's values
/// times `NH`.
#[inline(always)]
unsafe fn straight_group<V: Simd, const NV: usize, const NH: usize, const MH: usize, const GROUP: usize>(
    rows: &[*const V::Elem; NV],
    masks: &[u32],
    v: *mut V::Elem,
    v_plane: usize,
) -> *mut V::Elem {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        let (mut values, mut edges) = ([[zero; MH]; 4], [zero; 4]);
        // Straight-line code: a loop would keep the values in memory.
        macro_rules! vectors {
            ($masked:literal: $($s:literal)+) => {$(
                if $s < MH {
                    let d = load_rows::<V, NV, GROUP, $masked>(rows, $s * V::LANES, masks[$s]);
                    let of = of_group::<V, NV, GROUP>(&d);
                    for q in 0..4 {
                        values[q][$s] = of[q];
                    }
                }
            )+};
        }
        if masks[0] == V::ALL && masks[MH - 1] == V::ALL {
            vectors!(false: 0 1 2 3);
        } else {
            vectors!(true: 0 1 2 3);
        }
        if masks[MH] != 0 {
            let last = 1 << (V::LANES - 1);
            let mut both = load_rows::<V, NV, GROUP, true>(rows, MH * V::LANES, masks[MH] & 1);
            for k in 0..NV {
                if needs_row(NV, GROUP, k) {
                    both[k] = both[k].load_over(rows[k].wrapping_sub(V::LANES), masks[MH] & last);
                }
            }
            edges = of_group::<V, NV, GROUP>(&both);
        }
        let mut v = v;
        macro_rules! put_values {
            ($($q:literal)+) => {$(
                if const { group_values(NV, GROUP)[$q] } {
                    let inner = V::deinterleave(values[$q]);
                    let mut d = [zero; NH];
                    d[0] = inner[MH - 1].behind_last_of(edges[$q]);
                    for j in 0..MH {
                        d[1 + j] = inner[j];
                    }
                    d[NH - 1] = inner[0].before_first_of(edges[$q]);
                    put::<V, NH>(&forward(&d), v, v_plane);
                    v = V::advance(v, NH * v_plane).cast_mut();
                }
            )+};
        }
        put_values!(0 1 2 3);
        v
    }
}

/// Whether group `group` of values depends on row `k` of a tile.
const fn needs_row(values: usize, group: usize, k: usize) -> bool {
    (k > 0 || group == 0) && (k + 1 < values || group + 1 == pairs(values))
}

/// Loads the vectors at `at` of the rows that a group of values needs. If `MASKED`, lanes that are not in
/// `mask` are zero.
///
/// # Safety
/// CPU: the ISA. Memory: these rows are readable at `at` for a vector, or in the lanes of the mask.
#[inline(always)]
unsafe fn load_rows<V: Simd, const NV: usize, const GROUP: usize, const MASKED: bool>(
    rows: &[*const V::Elem; NV],
    at: usize,
    mask: u32,
) -> [V; NV] {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let mut d = [V::splat(V::Elem::ZERO); NV];
        for k in 0..NV {
            if needs_row(NV, GROUP, k) {
                let row = rows[k].wrapping_add(at);
                d[k] = if MASKED { V::load_mask(row, mask) } else { V::load(row) };
            }
        }
        d
    }
}

/// Computes the rows that are [free](crate::winograd::Spare), as combinations of rows before
/// them.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`ExtendArgs`] states.
#[inline(always)]
pub(crate) unsafe fn extend<V: Simd>(args: &ExtendArgs<'_, V::Elem>) {
    for (i, terms) in args.terms.iter().enumerate().take(args.rows) {
        for e in (0..args.len).step_by(V::LANES) {
            let n = (args.len - e).min(V::LANES);
            // SAFETY: the caller's promise of the terms' rows, and of room for whole vectors.
            unsafe {
                let mut sum = V::splat(args.zero);
                for term in terms {
                    if term.factor != 0.0 {
                        let row = args.x.wrapping_add((term.row - args.first) * args.row_stride + e);
                        sum = V::load_first(row, n).mul_add(V::splat(V::Elem::from_f64(term.factor)), sum);
                    }
                }
                sum.store(args.free.add(i * args.free_stride + e));
            }
        }
    }
}

/// Splits as [`split`], where the tiles of a row fill at most half of a vector. The other half
/// takes the tiles of the next row of tiles.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SplitArgs`] states for `N` and `M`, which is even.
#[inline(always)]
unsafe fn split_pairs<V: Simd, const N: usize, const M: usize>(args: &SplitArgs<'_, V::Elem>) {
    let Border { shape, masks, elements, .. } = args.border;
    let (half, outputs) = (V::LANES / 2, shape.down.outputs);
    let tiles = (1_u32 << shape.pitch) - 1;
    let tiles = tiles | tiles << half;
    // SAFETY: SplitArgs promises the rows' live elements, and the masks select no others; it
    // promises whole vectors behind every place of the planes. The tiles of two rows fit in one
    // vector.
    unsafe {
        let zero = V::splat(args.zero);
        for phase in 0..outputs {
            let mut dst: *const V::Elem = args.planes.add(phase * shape.phase_len);
            for r in (phase..shape.rows).step_by(2 * outputs) {
                let mut v = [zero; M];
                for (i, r) in [r, r + outputs].into_iter().enumerate() {
                    if let Some(row) = args.row(r) {
                        let row = row.wrapping_sub(elements.start);
                        for s in 0..M / 2 {
                            let p = row.wrapping_add(s * V::LANES);
                            v[i * M / 2 + s] = V::load_mask(p, masks[s]);
                            V::prefetch(p.wrapping_add(args.next));
                        }
                    }
                }
                let v = V::deinterleave(v);
                let mut plane = dst;
                for j in 0..N {
                    if j > 0 {
                        plane = V::advance(plane, shape.plane_len);
                    }
                    v[j % M].compress(tiles << (j / M)).store(plane.cast_mut());
                }
                dst = V::advance(dst, 2 * shape.pitch);
            }
        }
    }
}

/// Splits as [`split`], where rows are narrow. Rows are first joined, so that vectors are full of
/// tiles from several rows.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`SplitArgs`] states for `N` and `M`. `N` is at most twice
/// `M`.
#[inline(always)]
unsafe fn split_joined<V: Simd, const N: usize, const M: usize>(args: &SplitArgs<'_, V::Elem>, to: &Joined) {
    let Border { elements, shape, .. } = args.border;
    // SAFETY: SplitArgs promises the rows' live elements, and the masks select no others; it
    // promises room for the joined rows behind the planes. A row ends at least a vector before
    // its phase does, and so do the vectors of the last tiles.
    unsafe {
        let zero = V::splat(args.zero);
        let joined = args.planes.add(shape.plane_len * N);
        // The lanes that are not padding. They are the same for all rows.
        let mut masks = [[0; 2]; JOINED_VECTORS];
        for i in 0..JOINED_VECTORS {
            let at = i * V::LANES;
            masks[i] = [visible_lanes(elements, V::LANES, at), visible_lanes(elements, V::LANES, M + at)];
        }
        for phase in 0..shape.down.outputs {
            let mut dst: *const V::Elem = joined.add(phase * to.phase);
            for r in (phase..shape.rows).step_by(shape.down.outputs) {
                let row = args.row(r);
                // The next row overwrites what a row's last vector stores beyond the row.
                for i in 0..JOINED_VECTORS {
                    let at = i * V::LANES;
                    if at < to.row {
                        let mut v = [zero; 2];
                        if let Some(row) = row {
                            let p = row.wrapping_sub(elements.start).wrapping_add(at);
                            V::prefetch(p.wrapping_add(args.next));
                            v = [V::load_mask(p, masks[i][0]), V::load_mask(p.wrapping_add(M), masks[i][1])];
                        }
                        v[0].store(dst.add(at).cast_mut());
                        v[1].store(dst.add(to.half + at).cast_mut());
                    }
                }
                dst = V::advance(dst, to.row);
            }
        }
        for phase in 0..shape.down.outputs {
            let tiles = (shape.rows - phase).div_ceil(shape.down.outputs) * shape.pitch;
            let mut src: *const V::Elem = joined.add(phase * to.phase);
            let mut place: *const V::Elem = args.planes.add(phase * shape.phase_len);
            for _ in (0..tiles).step_by(V::LANES) {
                let (mut first, mut behind) = ([zero; M], [zero; M]);
                for s in 0..M {
                    first[s] = V::load(src.add(s * V::LANES));
                    behind[s] = V::load(src.add(to.half + s * V::LANES));
                }
                let (first, behind) = (V::deinterleave(first), V::deinterleave(behind));
                let mut dst = place;
                for j in 0..N {
                    if j > 0 {
                        dst = V::advance(dst, shape.plane_len);
                    }
                    let v = if j < M { first[j] } else { behind[j % M] };
                    v.store(dst.cast_mut());
                }
                src = V::advance(src, M * V::LANES);
                place = V::advance(place, V::LANES);
            }
        }
    }
}

/// Where the inputs of a vector of tiles lie, from some column on.
trait InputColumns<V: Simd>: Copy {
    /// Input `i` of the column.
    ///
    /// # Safety
    /// CPU: the ISA of `V`. Memory: as whoever made it promises.
    unsafe fn load(self, i: usize) -> V;

    /// The next column.
    fn next(self) -> Self;
}

/// Columns of tiles that [`split`] made neighbours.
#[derive(Clone, Copy)]
struct SplitColumns<'a, T> {
    x: *const T,
    rows: &'a [usize; MOST_VALUES],
    plane_len: usize,
}

impl<V: Simd> InputColumns<V> for SplitColumns<'_, V::Elem> {
    #[inline(always)]
    unsafe fn load(self, i: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(self.x.add(self.rows[i])) }
    }

    // The pointer moves from plane to plane: otherwise the compiler would keep the address of
    // every load in memory.
    #[inline(always)]
    fn next(self) -> Self {
        Self { x: V::advance(self.x, self.plane_len), ..self }
    }
}

/// Columns of one tile's pixels, from channel `c` on.
#[derive(Clone, Copy)]
struct ChannelColumns<T, const NV: usize> {
    pixels: *const [*const T; NV],
    c: usize,
}

impl<V: Simd, const NV: usize> InputColumns<V> for ChannelColumns<V::Elem, NV> {
    #[inline(always)]
    unsafe fn load(self, i: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load((*self.pixels)[i].add(self.c)) }
    }

    #[inline(always)]
    fn next(self) -> Self {
        Self { pixels: self.pixels.wrapping_add(1), ..self }
    }
}

/// Transforms the tiles of one channel, a vector of tiles at a time. `NV` and `NH` are the values
/// of a tile down the columns and along the rows. If one of them is 1, that axis has no
/// transform.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`InputArgs`] states for `NV` and `NH`.
#[inline(always)]
pub(crate) unsafe fn input<V: Simd, const NV: usize, const NH: usize>(args: &InputArgs<V::Elem>) {
    for tile in (0..args.tiles).step_by(V::LANES) {
        // SAFETY: InputArgs promises whole vectors at every place that is read or written.
        unsafe {
            let x = SplitColumns { x: args.planes.add(tile), rows: &args.rows, plane_len: args.plane_len };
            transform::<V, NV, NH>(x, args.v.add(tile), args.v_plane);
        }
    }
}

/// Transforms a row of tiles, each a vector of channels at a time. The last vector of a tile overlaps the one before it
/// if the channels do not fill it.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`TilePixelArgs`] states for `NV` and `NH`.
#[inline(always)]
pub(crate) unsafe fn input_pixels<V: Simd, const NV: usize, const NH: usize, const MH: usize>(
    args: &TilePixelArgs<V::Elem>,
) {
    for tile in 0..args.tiles {
        let mut pixels = [[args.zeros; NV]; NH];
        for j in 0..NH {
            let column = tile * MH + j;
            if column >= args.inside.start && column < args.inside.end {
                for i in 0..NV {
                    if !args.rows[i].is_null() {
                        pixels[j][i] = args.rows[i].wrapping_add((column - args.inside.start) * args.step);
                    }
                }
            }
        }
        // Hidden from LLVM, which would otherwise keep the pointers in registers, and spill them.
        let pixels = core::hint::black_box(pixels.as_ptr());
        let mut c = 0;
        loop {
            // SAFETY: TilePixelArgs promises pixels of at least a vector, at which the last one ends.
            unsafe {
                let v = args.v.add(tile * args.channels + c);
                transform::<V, NV, NH>(ChannelColumns { pixels, c }, v, args.v_plane);
            }
            c += V::LANES;
            if c >= args.channels {
                break;
            }
            c = if c + V::LANES > args.channels { args.channels - V::LANES } else { c };
        }
    }
}

/// Transforms a vector of tiles, or of a tile's channels, whose columns are those from `x` on.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: the inputs of all columns are readable, and `v + i * v_plane` is writable for a vector,
/// for each i below the number of values.
#[inline(always)]
unsafe fn transform<V: Simd, const NV: usize, const NH: usize>(
    x: impl InputColumns<V>,
    v: *mut V::Elem,
    v_plane: usize,
) {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        if NV == 1 {
            let (mut d, mut x) = ([zero; NH], x);
            for j in 0..NH {
                if j > 0 {
                    x = x.next();
                }
                d[j] = x.load(0);
            }
            return put::<V, NH>(&forward_or_same(&d), v, v_plane);
        }
        if NH == 1 {
            let mut d = [zero; NV];
            for i in 0..NV {
                d[i] = x.load(i);
            }
            return put::<V, NV>(&forward_or_same(&d), v, v_plane);
        }
        const { assert!(!has_single(NV), "pairs of rows have no place for a single point's") };
        // Calls and not a loop: LLVM would not unroll it, and would keep the points in
        // memory.
        two_rows::<V, NV, NH, 0>(x, v, v_plane);
        two_rows::<V, NV, NH, 1>(x, v, v_plane);
        if NV > 4 {
            two_rows::<V, NV, NH, 2>(x, v, v_plane);
        }
        if NV > 6 {
            two_rows::<V, NV, NH, 3>(x, v, v_plane);
        }
    }
}

/// Computes two rows of a tile's values: for group 0 those of the points 0 and infinity, for
/// group i those of pair i - 1. Two rows are so few that they stay in registers together with a
/// column of the tile.
///
/// # Safety
/// As [`transform`].
#[inline(always)]
unsafe fn two_rows<V: Simd, const NV: usize, const NH: usize, const GROUP: usize>(
    x: impl InputColumns<V>,
    v: *mut V::Elem,
    v_plane: usize,
) {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        let mut rows = [[zero; NH]; 2];
        let mut x = x;
        for j in 0..NH {
            if j > 0 {
                x = x.next();
            }
            let mut d = [zero; NV];
            for k in 0..NV {
                if GROUP == 0 || (k > 0 && k < NV - 1) {
                    d[k] = x.load(k);
                }
            }
            let two = if GROUP == 0 { ends(&d) } else { pair(&d, GROUP.saturating_sub(1)) };
            [rows[0][j], rows[1][j]] = two;
        }
        let [upper, lower] = if GROUP == 0 { [0, NV - 1] } else { [2 * GROUP - 1, 2 * GROUP] };
        put::<V, NH>(&forward_or_same(&rows[0]), v.add(upper * NH * v_plane), v_plane);
        put::<V, NH>(&forward_or_same(&rows[1]), v.add(lower * NH * v_plane), v_plane);
    }
}

/// [`forward`] if the axis has a transform, otherwise the same value.
#[inline(always)]
fn forward_or_same<V: Simd, const N: usize>(d: &[V; N]) -> [V; N] {
    if N == 1 { *d } else { forward(d) }
}

/// Stores values to consecutive planes.
///
/// # Safety
/// CPU: the ISA. Memory: `v + i * v_plane` is writable for a vector, i below N.
#[inline(always)]
unsafe fn put<V: Simd, const N: usize>(values: &[V; N], v: *mut V::Elem, v_plane: usize) {
    let mut v = v;
    for i in 0..N {
        if i > 0 {
            v = V::advance(v, v_plane).cast_mut();
        }
        // SAFETY: the caller's promise of ISA and memory.
        unsafe { values[i].store(v) };
    }
}

/// Vectors of pixels of a group of tiles, at most: 6 rows of 16 vectors.
const PIXELS: usize = 6 * 16;

/// Computes the pixels of one row of tiles from its products, a vector of channels at a time, and
/// writes `MV` rows of Y with `MH` pixels for each tile.
///
/// Returns whether all sums were finite. `bad` marks the tiles with sums that were not.
///
/// # Safety
/// CPU: the ISA of `V`. Memory: as [`OutputArgs`] states for the sizes.
#[inline(always)]
pub(crate) unsafe fn output<V: Simd, const NV: usize, const NH: usize, const MV: usize, const MH: usize>(
    args: &OutputArgs<'_, V::Elem>,
) -> bool {
    let per = const { if V::LANES < MH { 1 } else { V::LANES / MH } };
    // SAFETY: OutputArgs promises whole vectors of channels at every product, and the pixels of Y
    // that are written below.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        let (products, to) = (&args.products, &args.pixels);
        let bias = V::load_first(args.epilogue.bias, to.channels);
        let mut pixels = [zero; PIXELS];
        let mut is_good = true;
        for first in (0..products.tiles).step_by(per) {
            let count = if products.tiles - first < per { products.tiles - first } else { per };
            for k in 0..count {
                let p = products.values.as_ptr().add((first + k) * products.tile_step);
                let check = take_back::<V, NV, NH, MV, MH>(p, products.plane, bias, &mut pixels, k * MH);
                if !check.is_finite() {
                    is_good = false;
                    *args.bad.add(first + k) = 1;
                }
            }
            let width = to.width - first * MH;
            let width = if width < count * MH { width } else { count * MH };
            let rows = if to.height < MV { to.height } else { MV };
            if to.pixel_step != 1 {
                for i in 0..rows {
                    let at = i * to.row_step + first * MH * to.pixel_step;
                    put_pixels::<V>(pixels.as_ptr().add(i * 16), args, at, width);
                }
                continue;
            }
            for i in 0..rows {
                // One round, unless tiles are wider than a vector.
                for start in (0..width).step_by(V::LANES) {
                    let mut t = [zero; 16];
                    for c in 0..V::LANES {
                        t[c] = pixels[i * 16 + start + c];
                    }
                    V::transpose(&mut t);
                    let width = if width - start < V::LANES { width - start } else { V::LANES };
                    put_rows::<V>(&t, args, i * to.row_step + first * MH + start, width);
                }
            }
        }
        if to.past_cache {
            V::fence();
        }
        is_good
    }
}

/// Computes the pixels of one tile, into their places in the rows of `pixels`. Returns the sum of
/// all pixels before the bias: it is finite only if all of them are.
///
/// # Safety
/// CPU: the ISA. Memory: `p + xi * plane` is readable for a vector, for each xi below NV * NH.
#[inline(always)]
unsafe fn take_back<V: Simd, const NV: usize, const NH: usize, const MV: usize, const MH: usize>(
    p: *const V::Elem,
    plane: usize,
    bias: V,
    pixels: &mut [V; PIXELS],
    column: usize,
) -> V {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let zero = V::splat(V::Elem::ZERO);
        let mut check = zero;
        let mut half = [[zero; NH]; MV];
        for j in 0..NH {
            let mut d = [zero; NV];
            for i in 0..NV {
                d[i] = V::load(p.add((i * NH + j) * plane));
            }
            let taken = inverse_or_same::<V, NV, MV>(&d);
            for i in 0..MV {
                half[i][j] = taken[i];
            }
        }
        for i in 0..MV {
            let taken = inverse_or_same::<V, NH, MH>(&half[i]);
            for j in 0..MH {
                check = check.add(taken[j]);
                pixels[i * 16 + column + j] = taken[j].add(bias);
            }
        }
        check
    }
}

/// [`inverse`] if the axis has a transform, otherwise the same value.
#[inline(always)]
fn inverse_or_same<V: Simd, const N: usize, const M: usize>(d: &[V; N]) -> [V; M] {
    if N == 1 { [d[0]; M] } else { inverse(d) }
}

/// Adds the residual to a row of pixels whose channels are neighbours, clamps them and stores them to Y.
///
/// # Safety
/// CPU: the ISA. Memory: as [`OutputArgs`] states. `pixels` has `width` vectors.
#[inline(always)]
unsafe fn put_pixels<V: Simd>(pixels: *const V, args: &OutputArgs<'_, V::Elem>, at: usize, width: usize) {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let (lo, hi, to) = (V::splat(args.epilogue.lo), V::splat(args.epilogue.hi), &args.pixels);
        let is_plain = args.epilogue.residual.is_null() && to.channels == V::LANES;
        let finish = VectorEpilogue::<V>::new(&args.epilogue, args.y, at);
        for j in 0..width {
            let (sums, y) = (*pixels.add(j), args.y.add(at + j * to.pixel_step));
            match is_plain {
                true => sums.clamp(lo, hi).store(y),
                false => finish.store_first(sums, j * to.pixel_step, to.channels),
            }
        }
    }
}

/// Adds the residual to one row of pixels of each channel, clamps it and stores it to Y.
///
/// # Safety
/// CPU: the ISA. Memory: as [`OutputArgs`] states.
#[inline(always)]
unsafe fn put_rows<V: Simd>(t: &[V; 16], args: &OutputArgs<'_, V::Elem>, at: usize, width: usize) {
    // SAFETY: the caller's promise of ISA and memory.
    unsafe {
        let (lo, hi) = (V::splat(args.epilogue.lo), V::splat(args.epilogue.hi));
        let (y, to) = (args.y.add(at), &args.pixels);
        if args.epilogue.residual.is_null() && to.channels == V::LANES {
            if width < V::LANES {
                for c in 0..V::LANES {
                    t[c].clamp(lo, hi).store_first(y.add(c * to.channel_step), width);
                }
            } else if to.past_cache {
                for c in 0..V::LANES {
                    t[c].clamp(lo, hi).store_past_cache(y.add(c * to.channel_step));
                }
            } else {
                for c in 0..V::LANES {
                    t[c].clamp(lo, hi).store(y.add(c * to.channel_step));
                }
            }
            return;
        }
        let finish = VectorEpilogue::<V>::new(&args.epilogue, args.y, at);
        // A loop with a fixed count: LLVM would not unroll a loop over `channels`, and would keep `t` in
        // memory.
        for c in 0..V::LANES {
            if c < to.channels {
                finish.store_first(t[c], c * to.channel_step, width);
            }
        }
    }
}
