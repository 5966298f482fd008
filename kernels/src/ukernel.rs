//! The GEMM kernels: descriptors, raw arguments, and safe calls, which assert all lengths before one
//! unsafe call.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::activation::ActivationKernel;
use crate::dest::{Dest, end};
use crate::isa::Code;
use crate::simd::first_lanes;
use crate::{Isa, Real};

/// Where the rows of an implicit im2col matrix begin: row k of B is at `base + offsets[k]`.
///
/// The table is validated once, so that a call checks one number and not the whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOffsets {
    offsets: Box<[u32]>,
    max: usize,
}

impl RowOffsets {
    /// Takes a table of offsets, in elements.
    #[must_use]
    pub fn new(offsets: Vec<u32>) -> Self {
        let max = offsets.iter().copied().max().unwrap_or(0) as usize;
        Self { offsets: offsets.into_boxed_slice(), max }
    }

    /// The rows of a packed panel: `count` offsets `0, step, 2 * step, ...`.
    ///
    /// # Panics
    /// If the last offset exceeds `u32`.
    #[must_use]
    pub fn packed(count: usize, step: usize) -> Self {
        let offset = |k: usize| {
            let offset = k.checked_mul(step).and_then(|offset| u32::try_from(offset).ok());
            offset.expect("a packed panel is far smaller than 2^32 elements")
        };
        Self::new((0..count).map(offset).collect())
    }

    /// The rows `range`.
    ///
    /// # Panics
    /// If the range ends beyond the table.
    // Inlined for speed. A call would return the value on the stack, where it is read back in pieces of
    // another size: such a load waits for all earlier stores.
    #[inline]
    #[must_use]
    pub fn rows(&self, range: core::ops::Range<usize>) -> RowOffsetsRef<'_> {
        RowOffsetsRef { offsets: &self.offsets[range], max: self.max }
    }

    /// Number of rows.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }
}

/// A range of rows of a [`RowOffsets`].
#[derive(Debug, Clone, Copy)]
pub struct RowOffsetsRef<'a> {
    pub(crate) offsets: &'a [u32],
    /// An upper bound of all offsets.
    pub(crate) max: usize,
}

impl RowOffsetsRef<'_> {
    /// The rows `range` of this range.
    ///
    /// # Panics
    /// If the range ends beyond them.
    // Inlined for the reason that `RowOffsets::rows` gives.
    #[inline]
    #[must_use]
    pub fn rows(&self, range: core::ops::Range<usize>) -> Self {
        Self { offsets: &self.offsets[range], ..*self }
    }

    /// Number of rows.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }
}

/// The cache lines that a kernel prefetches while it computes, into the L2 cache unless a constant says
/// otherwise.
///
/// Prefetches are hints: they never fault, and they change no result.
#[derive(Debug, Clone, Copy)]
pub struct Prefetch {
    /// The first line. Null if there is none, and for the stream.
    at: *const u8,
    /// Bytes between the lines of two steps.
    step: usize,
    /// The panels that have prefetched lines of the same rows before this call. Each panel prefetches
    /// another line of a row.
    panels_before: usize,
    is_stream: bool,
}

impl Prefetch {
    /// Bytes of a cache line.
    pub const LINE: usize = 64;

    /// Nothing is prefetched.
    pub const NONE: Self = Self { at: core::ptr::null(), step: 0, panels_before: 0, is_stream: false };

    /// The call prefetches its own weights into the L1 cache, [`STREAM_BYTES`](Self::STREAM_BYTES)
    /// before it reads them. At the end of a panel it prefetches what follows it in memory.
    ///
    /// This is for panels that follow one another in memory and are read once. Only kernels with vectors
    /// along channels do it, for up to [`STREAM_PIXELS`](Self::STREAM_PIXELS) pixels; others prefetch
    /// nothing.
    pub const STREAM: Self = Self { is_stream: true, ..Self::NONE };

    /// How far ahead [`STREAM`](Self::STREAM), and a [`PixelKernel`](crate::PixelKernel) too, prefetch weights: two pages.
    ///
    /// The CPU's own prefetchers stop at the end of a page, so that their success depends on where pages
    /// lie in memory. Hints at this distance hide that. See `docs/journal/channel-gemm-weights.md`.
    pub const STREAM_BYTES: usize = 8 << 10;

    /// Pixels of a tile that streams its weights, at most. More pixels take longer to compute than their
    /// weights take from the L3 cache.
    pub const STREAM_PIXELS: usize = 8;

    /// Prefetches consecutive lines of `data`, from the line in which its first [`LINE`](Self::LINE)
    /// bytes end. Nothing if `data` is empty.
    #[must_use]
    pub fn lines<T>(data: &[T]) -> Self {
        Self::rows(data, Self::LINE / size_of::<T>().max(1))
    }

    /// Prefetches two consecutive lines with each step of k, so that one tile prefetches the whole next
    /// panel.
    ///
    /// This is for kernels with vectors along channels, rows of weights longer than a line, and at least
    /// [`STREAM_PIXELS`](Self::STREAM_PIXELS) pixels. Other kernels prefetch every second line.
    #[must_use]
    pub fn pairs<T>(data: &[T]) -> Self {
        Self { step: 2 * Self::LINE, ..Self::lines(data) }
    }

    /// Prefetches a line of each row of `data`: the one in which its first [`LINE`](Self::LINE) bytes
    /// end. If rows do not begin at a line, the line before mostly is in the cache, with the preceding
    /// data. Rows are `ld` elements apart. Nothing if `data` is empty.
    #[must_use]
    pub fn rows<T>(data: &[T], ld: usize) -> Self {
        if data.is_empty() {
            return Self::NONE;
        }
        let at = data.as_ptr().cast::<u8>().wrapping_add(Self::LINE - 1);
        Self { at, step: ld.wrapping_mul(size_of::<T>()), panels_before: 0, is_stream: false }
    }

    /// Prefetches, for each row, the line `lines` lines after the first.
    #[must_use]
    pub fn line(self, lines: usize) -> Self {
        if self.at.is_null() { self } else { Self { at: self.at.wrapping_add(lines.wrapping_mul(Self::LINE)), ..self } }
    }

    /// Tells [`activate_panels`](SpatialKernel::activate_panels) that `panels_before` panels have
    /// prefetched their lines of the rows.
    #[must_use]
    pub fn after_panels(self, panels_before: usize) -> Self {
        Self { panels_before, ..self }
    }

    /// Address and step of the lines. If there are none, an address in an operand, which is in the cache
    /// anyway.
    pub(crate) fn or<T>(self, operand: &[T]) -> (*const u8, usize) {
        if self.at.is_null() { (operand.as_ptr().cast(), 0) } else { (self.at, self.step) }
    }
}

/// Where one vector of a tile's columns goes. The lanes in `mask` are stored, in order, from `offset`
/// on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Elements from the beginning of a row's destination.
    pub offset: usize,
    /// The lanes that are columns of the output. Others are garbage between the rows of a padded plane,
    /// or beyond the end.
    pub mask: u32,
}

/// Where the columns of a block go. It is validated once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreMap {
    columns: Box<[Column]>,
    /// For each entry: the end of the run of full, consecutive vectors that begins with it.
    plain_until: Box<[u32]>,
    lanes: usize,
    end: usize,
}

impl StoreMap {
    /// Takes a list with one entry for each vector of `lanes` elements.
    ///
    /// # Panics
    /// If a mask names a lane that does not exist, there are more lanes than a mask has bits, or an
    /// offset is near the end of the address space.
    #[must_use]
    pub fn new(columns: Vec<Column>, lanes: usize) -> Self {
        Self::check_lanes(lanes);
        assert!(columns.iter().all(|c| u64::from(c.mask) < 1 << lanes), "a mask is wider than a vector");
        let end = |c: &Column| {
            c.offset.checked_add(c.mask.count_ones() as usize).expect("a column's end fits the address space")
        };
        let end = columns.iter().map(end).max().unwrap_or(0);
        let mut plain_until = alloc::vec![0; columns.len()];
        for i in (0..columns.len()).rev() {
            let full = columns[i].mask.count_ones() as usize == lanes;
            let joins = i + 1 < columns.len() && columns[i].offset.checked_add(lanes) == Some(columns[i + 1].offset);
            plain_until[i] =
                if full && joins { plain_until[i + 1].max(i as u32 + 1) } else { (i + usize::from(full)) as u32 };
        }
        Self { columns: columns.into_boxed_slice(), plain_until: plain_until.into_boxed_slice(), lanes, end }
    }

    /// The map of `n` contiguous columns, in vectors of `lanes` elements.
    ///
    /// # Panics
    /// If there are no lanes, or more than a mask has bits.
    #[must_use]
    pub fn contiguous(n: usize, lanes: usize) -> Self {
        Self::check_lanes(lanes);
        let column = |j: usize| Column { offset: j * lanes, mask: first_lanes((n - j * lanes).min(lanes)) };
        Self::new((0..n.div_ceil(lanes)).map(column).collect(), lanes)
    }

    fn check_lanes(lanes: usize) {
        assert!((1..=u32::BITS as usize).contains(&lanes), "no lanes, or more than a mask has bits");
    }

    /// The entries, one for each vector.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The end of a row's destination.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end
    }
}

/// What is added to finished sums: nothing, a tensor with the layout of the destination, or what the
/// destination holds.
///
/// Kernels read an element of it before they write that element of the destination, and write each
/// element once.
#[derive(Debug, Clone, Copy)]
pub struct Residual<'a, T> {
    pub(crate) first: *const T,
    len: usize,
    life: core::marker::PhantomData<&'a T>,
}

impl<'a, T> Residual<'a, T> {
    /// Nothing is added.
    pub const NONE: Self = Self { first: core::ptr::null(), len: 0, life: core::marker::PhantomData };

    /// What a destination holds.
    ///
    /// # Safety
    /// Memory: those elements of the destination that the holder is going to write are initialised.
    #[must_use]
    pub unsafe fn of_dest(dest: &Dest<'a, T>) -> Self {
        Self { first: dest.as_mut_ptr(), len: dest.len(), life: core::marker::PhantomData }
    }

    /// Whether nothing is added.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.first.is_null()
    }

    /// Whether a kernel can read `len` elements, or there is no residual.
    pub(crate) fn reaches(&self, len: usize) -> bool {
        self.is_none() || len <= self.len
    }

    /// The residual of a destination that begins `offset` elements later.
    fn behind(&self, offset: usize) -> Self {
        assert!(self.reaches(offset), "the offset is beyond the end of the residual");
        match self.is_none() {
            true => Self::NONE,
            false => Self { first: self.first.wrapping_add(offset), len: self.len - offset, ..Self::NONE },
        }
    }
}

impl<'a, T> From<&'a [T]> for Residual<'a, T> {
    fn from(values: &'a [T]) -> Self {
        Self { first: values.as_ptr(), len: values.len(), life: core::marker::PhantomData }
    }
}

impl<'a, T> From<Option<&'a [T]>> for Residual<'a, T> {
    fn from(values: Option<&'a [T]>) -> Self {
        values.map_or(Self::NONE, Into::into)
    }
}

/// What follows a sum: bias and residual are added, and the result is clamped and stored.
#[derive(Debug)]
pub struct Epilogue<'a, T> {
    /// For each row of a tile, or for each channel.
    pub bias: &'a [T],
    /// Added after the bias. At least as long as the destination.
    pub residual: Residual<'a, T>,
    /// Lower bound of the result; NaN passes.
    pub lo: T,
    /// Upper bound of the result; NaN passes.
    pub hi: T,
}

impl<T: Real> Epilogue<'_, T> {
    /// The same epilogue for a destination that begins `offset` elements later.
    ///
    /// # Panics
    /// If the residual has fewer than `offset` elements.
    #[must_use]
    pub fn from(&self, offset: usize) -> Epilogue<'_, T> {
        Epilogue { bias: self.bias, residual: self.residual.behind(offset), lo: self.lo, hi: self.hi }
    }

    /// The raw form, for a call that writes elements before `end` and needs `biases` biases.
    ///
    /// # Panics
    /// If the destination, the bias or the residual is shorter.
    #[inline]
    pub(crate) fn checked(&self, y: &Dest<'_, T>, end: usize, biases: usize) -> EpilogueArgs<T> {
        assert!(end <= y.len(), "the destination is too short");
        assert!(self.bias.len() >= biases, "too few biases");
        assert!(self.residual.reaches(end), "the residual is too short");
        let Self { bias, residual, lo, hi } = *self;
        let is_plain = lo == T::NEG_INFINITY && hi == T::INFINITY;
        EpilogueArgs { bias: bias.as_ptr(), residual: residual.first, lo, hi, is_plain }
    }
}

/// An [`Epilogue`] in raw arguments, which state what of bias and residual is readable.
#[derive(Clone, Copy)]
pub(crate) struct EpilogueArgs<T> {
    pub(crate) bias: *const T,
    /// Null if there is none.
    pub(crate) residual: *const T,
    pub(crate) lo: T,
    pub(crate) hi: T,
    /// Whether the bounds are infinite.
    pub(crate) is_plain: bool,
}

impl<T: Real> EpilogueArgs<T> {
    /// The residual of a destination that begins `offset` elements later; null if there is none.
    ///
    /// # Safety
    /// Memory: the residual, if there is one, has `offset` elements.
    #[inline(always)]
    pub(crate) unsafe fn residual_from(&self, offset: usize) -> *const T {
        // SAFETY: the caller's promise.
        if self.residual.is_null() { self.residual } else { unsafe { self.residual.add(offset) } }
    }
}

/// Raw arguments of a kernel with vectors along positions and a tile of `MR x NR`.
///
/// Memory: `a` is readable for `panels * kc * MR` elements, `koff` for `kc`, `b + koff[k]` for
/// `NR` at every k < `kc`. `tile` is readable and writable for `MR * NR`. `store` is valid as
/// [`TileStore`] states.
pub(crate) struct SpatialArgs<T> {
    /// Panels, one behind the other. 1 without a `store`, with a `store` of pairs, and with
    /// `accumulate`, because panels share the tile.
    pub(crate) panels: usize,
    pub(crate) kc: usize,
    pub(crate) a: *const T,
    pub(crate) b: *const T,
    pub(crate) koff: *const u32,
    /// The address that is prefetched, any address. It moves by `prefetch_step` bytes with each step of
    /// k.
    pub(crate) prefetch: *const u8,
    pub(crate) prefetch_step: usize,
    /// The panels that have prefetched lines of the same rows before this call.
    pub(crate) panels_before: usize,
    pub(crate) tile: *mut T,
    pub(crate) accumulate: bool,
    pub(crate) store: Option<TileStore<T>>,
}

/// Where the sums of a spatial kernel go.
///
/// Memory: for each row i of all panels, or for each pair i of rows if rows are paired, `bias` is
/// readable at i. `y + i * ldy` is writable at the elements that `places` names. Unless
/// `residual` is null, `residual + i * ldy` is readable at the same elements.
///
/// With [consecutive](Places::Consecutive) columns and one panel, `y` may be the tile itself: its
/// last element is read before the first one is stored.
#[derive(Clone, Copy)]
pub(crate) struct TileStore<T> {
    pub(crate) y: *mut T,
    pub(crate) ldy: usize,
    pub(crate) places: Places,
    /// There is no residual for [pairs](Places::Pairs), nor for [consecutive](Places::Consecutive)
    /// columns with an ISA without [spare pointers](Isa::has_spare_pointers).
    pub(crate) epilogue: EpilogueArgs<T>,
    /// Takes the sums from the tile to [consecutive](Places::Consecutive) columns, in place of the
    /// clamp.
    pub(crate) activation: Option<ActivationKernel<T>>,
}

impl<T: Real> TileStore<T> {
    /// The same destination for the rows from `row` on.
    ///
    /// # Safety
    /// Memory: `row` is one of the rows, or the number of rows.
    #[inline(always)]
    pub(crate) unsafe fn at_row(&self, row: usize) -> Self {
        // SAFETY: the bias, Y, and the residual unless it is null, reach at least to the last
        // row, and `row` is at most the number of rows.
        unsafe {
            let (at, epilogue) = (row * self.ldy, self.epilogue);
            let (bias, residual) = (epilogue.bias.add(row), epilogue.residual_from(at));
            Self { y: self.y.add(at), epilogue: EpilogueArgs { bias, residual, ..epilogue }, ..*self }
        }
    }
}

/// Where the vectors of a tile's row go, in elements from the beginning of the row's destination.
#[derive(Clone, Copy)]
pub(crate) enum Places {
    /// Full vectors one behind the other, from this element on.
    Consecutive(usize),
    /// As the `NR / LANES` entries of a [`StoreMap`] say.
    Mapped(*const Column),
    /// Rows i and `MR / 2 + i` are two phases of one row of Y, and alternate in it. The `2 * LANES`
    /// elements of vector j go where entry j says.
    Pairs(*const usize),
}

/// Raw arguments of a kernel with vectors along channels and a tile of `MR` pixels x `NR`
/// channels.
///
/// Memory: `w` is readable for `panels * kc * NR` elements, and `koff` for `kc`. For every k <
/// `kc`, `x + koff[k]` is readable for MR elements. `tile` is readable and writable for `panels * MR * NR`. `store`
/// is valid as [`ChannelStore`] states.
pub(crate) struct ChannelArgs<T> {
    /// Panels, one behind the other. 1 unless `MR` is 1 and there is no `store`.
    pub(crate) panels: usize,
    pub(crate) kc: usize,
    pub(crate) x: *const T,
    pub(crate) koff: *const u32,
    pub(crate) w: *const T,
    /// The address that is prefetched, any address. It moves by `prefetch_step` bytes with each step of
    /// k.
    pub(crate) prefetch: *const u8,
    pub(crate) prefetch_step: usize,
    /// Whether the panel's own weights are prefetched instead: [`Prefetch::STREAM`].
    pub(crate) is_stream: bool,
    pub(crate) tile: *mut T,
    pub(crate) accumulate: bool,
    pub(crate) store: Option<ChannelStore<T>>,
}

/// Where the sums of a channel kernel go.
///
/// Memory: `bias` is readable for `channels <= NR` elements. For each channel c < `channels`,
/// `y + c * ldy` is writable for `MR` elements, and `residual + c * ldy` is readable for `MR`
/// elements unless `residual` is null.
pub(crate) struct ChannelStore<T> {
    pub(crate) y: *mut T,
    pub(crate) ldy: usize,
    pub(crate) channels: usize,
    pub(crate) epilogue: EpilogueArgs<T>,
}

impl<T: Real> ChannelStore<T> {
    /// The same destination for the pixels from `pixel` on.
    ///
    /// # Safety
    /// Memory: `pixel` is one of the pixels, or their number.
    #[inline(always)]
    pub(crate) unsafe fn at_pixel(&self, pixel: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let epilogue = EpilogueArgs { residual: self.epilogue.residual_from(pixel), ..self.epilogue };
            Self { y: self.y.add(pixel), epilogue, ..*self }
        }
    }
}

/// The getters that every kernel has. `$name` documents the name.
macro_rules! common_getters {
    ($kernel:ident, $name:literal) => {
        impl<T: Copy> $kernel<T> {
            #[doc = $name]
            #[must_use]
            pub fn name(&self) -> &'static str {
                self.name
            }

            /// Elements of a vector.
            #[must_use]
            pub fn lanes(&self) -> usize {
                self.lanes
            }

            /// The ISA that it needs.
            #[must_use]
            pub fn isa(&self) -> crate::Isa {
                self.code.isa()
            }
        }

        impl<T: Copy> core::fmt::Debug for $kernel<T> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{} ({})", self.name, self.code.isa())
            }
        }
    };
}
pub(crate) use common_getters;

/// The descriptor of a kernel for tiles of MR x NR. `$rows` and `$vectors` say what MR and NR count.
macro_rules! tile_kernel {
    ($(#[$doc:meta])* $kernel:ident, $args:ident, $rows:literal, $vectors:literal) => {
        $(#[$doc])*
        pub struct $kernel<T: 'static> {
            name: &'static str,
            mr: usize,
            nrv: usize,
            lanes: usize,
            fmas: usize,
            loads: usize,
            code: Code<unsafe fn(&$args<T>)>,
        }

        impl<T: Copy> $kernel<T> {
            /// A kernel with vectors `V`.
            pub(crate) const fn new<V: crate::simd::Accumulator<Elem = T>>(
                (name, isa): (&'static str, Isa),
                (mr, nr): (usize, usize),
                f: unsafe fn(&$args<T>),
            ) -> Self {
                let nrv = nr / V::LANES;
                let loads = nrv * V::REGISTERS + mr.div_ceil(V::SCALARS);
                let (fmas, code) = (mr * nrv * V::REGISTERS, Code::new(isa, f));
                Self { name, mr, nrv, lanes: V::LANES, fmas, loads, code }
            }

            #[doc = $rows]
            #[must_use]
            pub fn mr(&self) -> usize {
                self.mr
            }

            #[doc = $vectors]
            #[must_use]
            pub fn nr(&self) -> usize {
                self.nrv * self.lanes
            }

            /// NR in vectors.
            #[must_use]
            pub fn nrv(&self) -> usize {
                self.nrv
            }

            /// Multiply-adds of whole registers in one step of k.
            #[must_use]
            pub fn fmas(&self) -> usize {
                self.fmas
            }

            /// Registers that one step of k loads: NR in vectors, and MR scalars. A register holds one
            /// scalar or several.
            #[must_use]
            pub fn loads(&self) -> usize {
                self.loads
            }
        }

        $crate::ukernel::common_getters!($kernel, "Name, as `<dtype>_<op>_<MR>x<NR>`.");
    };
}
pub(crate) use tile_kernel;

tile_kernel!(
    /// A GEMM micro-kernel with vectors along output positions.
    SpatialKernel, SpatialArgs, "MR: rows of the tile (output channels, broadcast).", "NR: columns of the tile (output positions, in vectors)."
);
tile_kernel!(
    /// A GEMM micro-kernel with vectors along output channels.
    ChannelKernel, ChannelArgs, "MR: rows of the tile (output positions, broadcast).", "NR: columns of the tile (output channels, in vectors)."
);

impl<T: Real> SpatialKernel<T> {
    /// Computes `tile = [tile +] A * B` over one K block, and keeps it in `tile` as `[MR][NR]`.
    ///
    /// * `a`: a packed panel, `[kc][MR]`;
    /// * `b`, `koff`: row k of B is `b[koff[k]..][..NR]`;
    /// * `prefetch`: what to prefetch meanwhile;
    /// * `accumulate`: whether the sums are added to the tile's old values.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn partial(
        &self,
        a: &[T],
        b: &[T],
        koff: RowOffsetsRef<'_>,
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
    ) {
        // SAFETY: nothing is stored but the tile.
        unsafe { self.call(1, (a, b), koff, prefetch, tile, accumulate, None) };
    }

    /// Computes `tile = clamp([tile +] A * B + bias)` over the last K block, and keeps it in `tile`
    /// as `[MR][NR]`. There is no residual.
    ///
    /// # Panics
    /// If a slice is too short, or there is a residual.
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination")]
    pub fn finish_tile(
        &self,
        a: &[T],
        b: &[T],
        koff: RowOffsetsRef<'_>,
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
        epilogue: &Epilogue<'_, T>,
    ) {
        assert!(epilogue.residual.is_none(), "no residual");
        let epilogue = epilogue.checked(&Dest::from_slice(tile), self.mr * self.nr(), self.mr);
        let (tile, places) = (&raw mut *tile, Places::Consecutive(0));
        let store = TileStore { y: tile.cast(), ldy: self.nr(), places, epilogue, activation: None };
        // SAFETY: the assertions above cover the memory that TileStore asks for: rows of NR elements, NR
        // apart, are the tile itself, which kernels read before they write.
        unsafe { self.call(1, (a, b), koff, prefetch, tile, accumulate, Some(store)) };
    }

    /// Computes `y = [activation of] clamp([tile +] A * B + bias + residual)`, for one panel over the
    /// last block of K, or for any number of panels over the whole of K.
    ///
    /// `a` is `[panels][kc][MR]`. Row i of all panels goes to `y[i * ldy..]`, its vectors as the entries
    /// of `map` from `first` on say. `prefetch` names one line of each row; each panel prefetches
    /// another of the neighbouring lines, up to the length of a row of B. The contents of `tile` are
    /// unspecified afterwards.
    ///
    /// An activation takes the place of the clamp. Sums go to it through the tile, which is in the L1
    /// cache. What was just stored in Y may not be: rows of Y a multiple of a page apart share a cache
    /// set.
    ///
    /// # Panics
    /// If a slice is too short, or there are several panels and old sums.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination and its stride")]
    pub fn activate_panels(
        &self,
        panels: usize,
        a: &[T],
        b: &[T],
        koff: RowOffsetsRef<'_>,
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
        y: &mut Dest<'_, T>,
        ldy: usize,
        map: &StoreMap,
        first: usize,
        epilogue: &Epilogue<'_, T>,
        activation: Option<ActivationKernel<T>>,
    ) {
        assert!(panels == 1 || !accumulate, "panels share the tile");
        let columns = &map.columns[first..][..self.nrv];
        let rows = self.mr.saturating_mul(panels);
        assert!(map.lanes == self.lanes, "the map is for vectors of another length");
        let adds_residual = self.isa().has_spare_pointers() || epilogue.residual.is_none();
        let is_plain = adds_residual && first + self.nrv <= map.plain_until[first] as usize;
        let places = if is_plain { Places::Consecutive(columns[0].offset) } else { Places::Mapped(columns.as_ptr()) };
        let mut epilogue = epilogue.checked(y, end(rows, ldy, map.end), rows);
        if activation.is_some() {
            (epilogue.lo, epilogue.hi) = (T::NEG_INFINITY, T::INFINITY);
        }
        let of_tile = activation.filter(|_| is_plain);
        let store = TileStore { y: y.as_mut_ptr(), ldy, places, epilogue, activation: of_tile };
        // SAFETY: the assertions above cover the memory that TileStore asks for: each entry of the map
        // ends at or before map.end, and with no panels nothing is touched. With accumulate there is
        // one panel. Dest grants the writes.
        unsafe { self.call(panels, (a, b), koff, prefetch, tile, accumulate, Some(store)) };
        let Some(activation) = activation.filter(|_| !is_plain) else { return };
        for column in columns {
            let size = (rows, column.mask.count_ones() as usize);
            // SAFETY: the kernel has stored these elements.
            unsafe { activation.rows(&mut y.from(column.offset), size, ldy) };
        }
    }

    /// Computes `y = clamp([tile +] A * B + bias)` over the last block of K, for a stride of 2. Rows i
    /// and `MR / 2 + i` of the tile are the two phases of one row of Y. They alternate in `y[i *
    /// ldy..]`, those of vector j from `places[j]` on. `epilogue` has no residual, and one bias for each
    /// pair of rows.
    ///
    /// # Panics
    /// If a slice is too short, MR is odd, or there is a residual.
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination and its stride")]
    pub fn finish_pairs(
        &self,
        a: &[T],
        b: &[T],
        koff: RowOffsetsRef<'_>,
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
        y: &mut Dest<'_, T>,
        ldy: usize,
        places: &[usize],
        epilogue: &Epilogue<'_, T>,
    ) {
        let pairs = self.mr / 2;
        assert!(pairs > 0 && self.mr == 2 * pairs, "rows come in pairs");
        let places = &places[..self.nrv];
        let last = places.iter().copied().max().unwrap_or(0);
        let end = end(pairs, ldy, last.saturating_add(2 * self.lanes));
        assert!(epilogue.residual.is_none(), "no residual");
        let (epilogue, places) = (epilogue.checked(y, end, pairs), Places::Pairs(places.as_ptr()));
        let store = TileStore { y: y.as_mut_ptr(), ldy, places, epilogue, activation: None };
        // SAFETY: the assertions above cover the memory that TileStore asks for. Dest grants the writes.
        unsafe { self.call(1, (a, b), koff, prefetch, tile, accumulate, Some(store)) };
    }

    /// Asserts the lengths of the operands, and calls the kernel.
    ///
    /// # Safety
    /// Memory: the tile is readable and writable, `store` is valid as [`TileStore`] states, and `panels` is
    /// 1 where [`SpatialArgs`] says.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination")]
    unsafe fn call(
        &self,
        panels: usize,
        (a, b): (&[T], &[T]),
        koff: RowOffsetsRef<'_>,
        prefetch: Prefetch,
        tile: *mut [T],
        accumulate: bool,
        store: Option<TileStore<T>>,
    ) {
        let (kc, panels_before) = (koff.offsets.len(), prefetch.panels_before);
        assert!(a.len() >= kc.saturating_mul(self.mr.saturating_mul(panels)), "the panels of A are too short");
        assert!(kc == 0 || b.len() >= koff.max.saturating_add(self.nr()), "the rows of B end beyond its slice");
        assert!(tile.len() >= self.mr * self.nr(), "the tile is too short");
        let (prefetch, prefetch_step) = prefetch.or(a);
        let (a, b, koff, tile) = (a.as_ptr(), b.as_ptr(), koff.offsets.as_ptr(), tile.cast());
        let args =
            SpatialArgs { panels, kc, a, b, koff, prefetch, prefetch_step, panels_before, tile, accumulate, store };
        // SAFETY: the assertions cover the memory that SpatialArgs asks for, and the caller promises the
        // rest.
        unsafe { (self.code.on_this_cpu())(&args) };
    }
}

impl<T: Real> ChannelKernel<T> {
    /// Computes `tile = [tile +] X * W` over one K block, and keeps it in `tile` as `[MR][NR]`.
    ///
    /// * `x`, `koff`: element k of pixel i is `x[koff[k] + i]`;
    /// * `w`: a packed panel, `[kc][NR]`;
    /// * `prefetch`: what to prefetch meanwhile.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn partial(
        &self,
        x: &[T],
        koff: RowOffsetsRef<'_>,
        w: &[T],
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
    ) {
        self.call(1, x, koff, w, prefetch, tile, accumulate, None);
    }

    /// Computes `tile = [tile +] X * W` for one pixel and any number of panels, with the sums of
    /// [`partial`](Self::partial).
    ///
    /// `w` is `[panels][kc][NR]`, `tile` is `[panels][NR]`. Weights are prefetched as by
    /// [`Prefetch::STREAM`].
    ///
    /// # Panics
    /// If a slice is too short, or `MR` is not 1.
    pub fn panels(&self, panels: usize, x: &[T], koff: RowOffsetsRef<'_>, w: &[T], tile: &mut [T], accumulate: bool) {
        assert!(self.mr == 1, "a kernel of one pixel");
        self.call(panels, x, koff, w, Prefetch::STREAM, tile, accumulate, None);
    }

    /// Computes the sums of [`partial`](Self::partial) over the last block of K, and finishes them. The
    /// `MR` pixels of channel c go, `+ bias + residual` and clamped, to `y[c * ldy..][..MR]`, for the
    /// first `channels` channels.
    ///
    /// # Panics
    /// If a slice is too short.
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination and its stride")]
    pub fn finish(
        &self,
        x: &[T],
        koff: RowOffsetsRef<'_>,
        w: &[T],
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
        y: &mut Dest<'_, T>,
        ldy: usize,
        channels: usize,
        epilogue: &Epilogue<'_, T>,
    ) {
        assert!(0 < channels && channels <= self.nr(), "channels of this tile");
        let epilogue = epilogue.checked(y, end(channels, ldy, self.mr), channels);
        let store = ChannelStore { y: y.as_mut_ptr(), ldy, channels, epilogue };
        self.call(1, x, koff, w, prefetch, tile, accumulate, Some(store));
    }

    // A call of its own would cost as much as a step of a few k.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "BLAS-like: operands, then the destination")]
    fn call(
        &self,
        panels: usize,
        x: &[T],
        koff: RowOffsetsRef<'_>,
        w: &[T],
        prefetch: Prefetch,
        tile: &mut [T],
        accumulate: bool,
        store: Option<ChannelStore<T>>,
    ) {
        let kc = koff.offsets.len();
        assert!(kc == 0 || x.len() >= koff.max.saturating_add(self.mr), "the pixels end beyond the slice of X");
        let channels = self.nr().saturating_mul(panels);
        assert!(w.len() >= kc.saturating_mul(channels), "the panels of W are too short");
        assert!(tile.len() >= self.mr.saturating_mul(channels), "the tile is too short");
        let is_stream = prefetch.is_stream;
        let (prefetch, prefetch_step) = prefetch.or(w);
        let (x, koff, w, tile) = (x.as_ptr(), koff.offsets.as_ptr(), w.as_ptr(), tile.as_mut_ptr());
        let args = ChannelArgs { panels, kc, x, koff, w, prefetch, prefetch_step, is_stream, tile, accumulate, store };
        // SAFETY: the assertions here and in finish() cover the memory that ChannelArgs and
        // ChannelStore ask for. Dest grants the writes.
        unsafe { (self.code.on_this_cpu())(&args) };
    }
}
