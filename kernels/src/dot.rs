//! Convolution of bytes: what kernels multiply, descriptors, and the pass that requantises their sums.
//!
//! A kernel of [`pixel_gemm`](crate::PixelKernel) multiplies [units](Unit) of 32 bits, which hold values that are
//! neighbours in X, and adds the products of a unit to one sum of 32 bits. One of [`pixel_dw`](DepthwisePixelKernel)
//! multiplies units that hold the channels of a small group, or neighbouring taps of a channel. All sums are exact as long as
//! they fit, so that their order does not matter.

use core::fmt;

use half::f16;

pub use crate::unit::Unit;

use crate::activation::{ActivateArgs, Activation, ActivationKernel};
use crate::dest::{Dest, end};
#[cfg(all(target_arch = "x86_64", feature = "avx512"))]
use crate::isa::has_vbmi;
use crate::isa::{Code, Isa};
use crate::pixel::{ByteStore, PixelEpilogue, PixelInput, PixelKernel};
use crate::pixel_depthwise::DepthwisePixelKernel;
use crate::simd::Value;
use crate::ukernel::Residual;

/// Neighbouring channels of pixels of bytes, which are `pixel` elements apart.
#[derive(Debug, Clone, Copy)]
pub struct BytePixels<'a, X> {
    /// The first channel of the first pixel.
    pub x: &'a [X],
    /// Elements from one pixel to the next.
    pub pixel: usize,
    /// Channels of a pixel.
    pub channels: usize,
}

/// The kernels of an ISA for one kind of unit.
pub struct DotKernels {
    pub(crate) unit: Unit,
    /// By width, the narrowest first, and then by pixels.
    pub(crate) pixel: &'static [PixelKernel<i32>],
    /// For groups of one unit, by pixels.
    pub(crate) depthwise: &'static [DepthwisePixelKernel<i32>],
    /// Kernels of tiles store a multiple of so many channels as bytes: any with masks, and none if this is 0.
    pub(crate) stored_channels: usize,
    /// Lanes of a vector whose first values come before their second ones; 0 where the values of a unit are neighbours.
    pub(crate) split_lanes: usize,
    pub(crate) passes: Code<DotPasses>,
}

impl DotKernels {
    /// What the kernels multiply.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The kernels for pixels, by width, the narrowest first: kernel i of a list has a tile of i + 1 pixels.
    pub fn widths(&self) -> impl Iterator<Item = &'static [PixelKernel<i32>]> + use<> {
        self.pixel.chunk_by(|a, b| a.nrv() == b.nrv())
    }

    /// The kernels for groups of one unit, by pixels. Their weights are not [arranged](Self::arrange).
    #[must_use]
    pub fn depthwise(&self) -> &'static [DepthwisePixelKernel<i32>] {
        self.depthwise
    }

    /// Brings packed units of W into the order that kernels read. There are whole vectors of them.
    pub fn arrange(&self, units: &mut [i32]) {
        let lanes = self.split_lanes;
        if lanes == 0 {
            return;
        }
        for vector in units.chunks_exact_mut(lanes) {
            let mut halves = [0_i16; 2 * MOST_SPLIT_LANES];
            for (lane, unit) in vector.iter().enumerate() {
                (halves[lane], halves[lanes + lane]) = (*unit as i16, (*unit >> 16) as i16);
            }
            for (lane, unit) in vector.iter_mut().enumerate() {
                *unit = i32::from(halves[2 * lane] as u16) | i32::from(halves[2 * lane + 1]) << 16;
            }
        }
    }

    /// Makes values of units of the channels of pixels, which become `pixel` bytes apart.
    ///
    /// # Panics
    /// If X is too short, or values do not fit their pixels.
    pub fn values_of_pixels<X: Byte>(&self, x: &BytePixels<'_, X>, zero: X, (to, pixel): (&mut [u8], usize)) {
        let fits = x.channels.checked_mul(self.unit.value_bytes()).is_some_and(|len| len <= pixel);
        assert!(pixel > 0 && fits, "the values do not fit a pixel");
        assert!(to.len().is_multiple_of(pixel), "the values end within a pixel");
        if to.is_empty() {
            return;
        }
        assert!(end(to.len() / pixel, x.pixel, x.channels) <= x.x.len(), "X is too short");
        // SAFETY: the code is that of this CPU.
        unsafe { (X::fns(&self.passes.on_this_cpu()).pixels)(x, zero, to, pixel) };
    }

    /// Makes a unit of each group of `group` values, which follow one another in X. Values of a unit that there are not
    /// become zero.
    ///
    /// # Panics
    /// If X is too short, or a group has no channel or more than a unit.
    pub fn units_of_groups<X: Byte>(&self, (x, group): (&[X], usize), zero: X, to: &mut [i32]) {
        assert!((1..=self.unit.values()).contains(&group), "the groups are no units");
        assert!(x.len() / group >= to.len(), "X is too short");
        // SAFETY: the code is that of this CPU.
        unsafe { (X::fns(&self.passes.on_this_cpu()).groups)((x, group), zero, to) };
    }

    /// Makes units of `channels` neighbouring elements of each pixel of rows, the first of which has the first value of each
    /// unit. Pixels of rows are `x_pixel` elements apart, and those of units `pixel`. Rows that there are not have the
    /// zero point. Rows behind those of a unit do not count.
    ///
    /// # Panics
    /// If a row is too short, or units do not fit their pixels.
    pub fn units_of_rows<X: Byte>(
        &self,
        (rows, x_pixel, channels): (UnitRows<'_, X>, usize, usize),
        zero: X,
        (to, pixel): (&mut [i32], usize),
    ) {
        assert!(pixel > 0 && channels <= pixel, "the units do not fit a pixel");
        assert!(to.len().is_multiple_of(pixel), "the units end within a pixel");
        let len = end(to.len() / pixel, x_pixel, channels);
        let mut of_unit = [None; MOST_VALUES];
        for (to_row, row) in of_unit.iter_mut().zip(rows).take(self.unit.values()) {
            *to_row = row.map(|row| &row[..len]);
        }
        // SAFETY: the code is that of this CPU. The rows have the elements of all pixels.
        unsafe { (X::fns(&self.passes.on_this_cpu()).rows)((of_unit, x_pixel, channels), zero, (to, pixel)) };
    }

    /// Finishes `rows` rows of sums, `sums_ld` apart, as [`Requantise`] says. Row i goes to `y[i * ld..]`.
    ///
    /// # Panics
    /// If a slice is too short, or rows of Y overlap.
    pub fn finish<O: Output>(
        &self,
        requantise: &Requantise<'_>,
        (sums, sums_ld): (&[i32], usize),
        (rows, len): (usize, usize),
        (y, ld): (&mut Dest<'_, O>, usize),
    ) {
        if rows == 0 || len == 0 {
            return;
        }
        let Requantise { add, scale, zero, by_rows, residual, .. } = *requantise;
        assert!(end(rows, sums_ld, len) <= sums.len(), "the sums are too short");
        requantise.check((rows, len), (y, ld));
        if let Some(AddedBytes { values, ld, step, zero, .. }) = residual {
            assert!(zero.unsigned_abs() <= u8::MAX.into(), "the zero point of the residual is no byte");
            assert!(end(rows, ld, end(len, step, 1)) <= values.len(), "the residual is too short");
        }
        let (sums, y, add, scale) = (sums.as_ptr(), y.as_mut_ptr(), add.as_ptr(), scale.as_ptr());
        let args = RequantiseArgs { rows, len, sums, sums_ld, add, scale, zero, residual, y, ld };
        let code = self.passes.on_this_cpu();
        // SAFETY: the assertions cover the memory that RequantiseArgs asks for. Dest grants the writes.
        unsafe { O::code(&code)[usize::from(by_rows)](&args) };
        // SAFETY: these rows were just written.
        unsafe { self.look_up(requantise.table, y, (rows, len, ld)) };
    }

    /// Computes the sums of tiles as [`PixelKernel::sums`] over the last block of units, and finishes them as `requantise` says:
    /// the first `channels` channels of pixel i go to `y[i * ld..]`.
    ///
    /// # Panics
    /// If a slice is too short, pixels of Y overlap, there are more channels than the kernel has, or it is another ISA's.
    pub fn finish_pixels<O: Output>(
        &self,
        (kernel, x, w): (&PixelKernel<i32>, &PixelInput<'_, u8>, &[i32]),
        (tile, accumulate): (&mut [i32], bool),
        (requantise, channels): (&Requantise<'_>, usize),
        (y, ld): (&mut Dest<'_, O>, usize),
    ) {
        assert!(self.pixel.as_ptr_range().contains(&core::ptr::from_ref(kernel)), "the kernel is another ISA's");
        assert!(0 < channels && channels <= kernel.nr(), "channels of this tile");
        let pixels = x.taps.all_pixels();
        let stores = self.stored_channels > 0 && channels.is_multiple_of(self.stored_channels);
        let is_signed = O::BYTE.filter(|_| stores && requantise.residual.is_none() && !requantise.by_rows);
        let Some(is_signed) = is_signed else {
            kernel.sums(x, w, tile, accumulate);
            return self.finish(requantise, (tile, kernel.nr()), (pixels, channels), (y, ld));
        };
        requantise.check((pixels, channels), (y, ld));
        let (add, scale, y) = (requantise.add.as_ptr(), requantise.scale.as_ptr(), y.as_mut_ptr());
        let store = ByteStore { y: y.cast(), ld, channels, add, scale, zero: requantise.zero, is_signed };
        // SAFETY: the assertions here and in check() cover the memory that ByteStore asks for. Dest grants the writes. The rows
        // that are looked up were just written.
        unsafe {
            kernel.bytes(x, w, (tile, accumulate), store);
            self.look_up(requantise.table, y, (pixels, channels, ld));
        }
    }

    /// Replaces the bytes of rows of Y by entries of a table, if there is one.
    ///
    /// # Safety
    /// Memory: `y + i * ld` is writable for `len` initialised elements for each i < `rows`.
    unsafe fn look_up<O: Output>(&self, table: Option<&[u8; 256]>, y: *mut O, (rows, len, ld): (usize, usize, usize)) {
        let Some(table) = table.filter(|_| O::BYTE.is_some()) else { return };
        let y = y.cast::<u8>();
        // Rows without gaps are like one.
        let (rows, len) = if ld == len { (1, rows * len) } else { (rows, len) };
        // SAFETY: the caller's promise.
        unsafe { look_up_rows(self.passes.isa(), table, y, (rows, len, ld)) };
    }
}

impl fmt::Debug for DotKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.unit, self.passes.isa())
    }
}

/// Replaces bytes by entries of a table: those whose numbers they are. It uses the instructions of an ISA, if that is
/// available.
#[inline]
pub fn look_up(isa: Isa, table: &[u8; 256], bytes: &mut [u8]) {
    // SAFETY: the slice is a row of so many bytes.
    unsafe { look_up_rows(isa, table, bytes.as_mut_ptr(), (1, bytes.len(), bytes.len())) };
}

/// As [`look_up`], in `rows` rows of `len` bytes, `ld` bytes apart.
///
/// # Safety
/// Memory: `p + i * ld` is writable for `len` initialised bytes for each i < `rows`.
unsafe fn look_up_rows(isa: Isa, table: &[u8; 256], p: *mut u8, (rows, len, ld): (usize, usize, usize)) {
    // SAFETY: the CPU has what the code needs, and the caller's promise of memory.
    unsafe {
        match isa {
            #[cfg(all(target_arch = "x86_64", feature = "avx512"))]
            Isa::Avx512 if has_vbmi() => crate::x86_64::avx512::look_up(table, p, (rows, len, ld)),
            #[cfg(all(target_arch = "x86_64", any(feature = "avx2", feature = "avx512")))]
            Isa::Avx2 | Isa::Avx512 if isa.is_available() => crate::x86_64::avx2::look_up(table, p, (rows, len, ld)),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little", feature = "neon"))]
            Isa::Neon => crate::aarch64::neon::look_up(table, p, (rows, len, ld)),
            _ => (0..rows).for_each(|row| crate::generic::dot::look_up(table, p.add(row * ld), 0..len)),
        }
    }
}

/// The epilogue of a depthwise kernel whose sums are kept. `zeros` has one for each channel.
#[must_use]
pub fn kept_sums(zeros: &[i32]) -> PixelEpilogue<'_, i32> {
    /// # Safety
    /// None: it does nothing.
    unsafe fn nothing(_: &ActivateArgs<i32>) {}

    let activation = ActivationKernel { f: nothing, activation: Activation::Clamp(i32::LEAST, i32::MOST) };
    PixelEpilogue { bias: zeros, residual: Residual::NONE, residual_ld: 0, activation }
}

/// Values of a unit, at most.
pub const MOST_VALUES: usize = 4;

/// The rows of the values of units, those of the first values first.
pub type UnitRows<'a, X> = [Option<&'a [X]>; MOST_VALUES];

/// Lanes of a vector whose values are split, at most.
const MOST_SPLIT_LANES: usize = 4;

/// A tensor of bytes of Y's type that is added to outputs: `(byte - zero) * scale`.
#[derive(Debug, Clone, Copy)]
pub struct AddedBytes<'a> {
    /// The bits of the bytes: those for column j of row i are at `i * ld + j * step`.
    pub values: &'a [u8],
    /// Elements from one row to the next.
    pub ld: usize,
    /// Elements from one column to the next.
    pub step: usize,
    /// The zero point.
    pub zero: i32,
    /// The scale over that of Y.
    pub scale: f32,
}

/// How sums become outputs. A byte is `(sum + add) * scale`, plus what a residual adds, rounded to the nearest integer, or
/// to the even one of two, plus `zero`, and clamped to its type. An `f32` is `(sum + add) * scale`, an `f16` is that number
/// rounded, and an `i32` is `sum + add`.
#[derive(Debug, Clone, Copy)]
pub struct Requantise<'a> {
    /// For each channel.
    pub add: &'a [i32],
    /// For each channel.
    pub scale: &'a [f32],
    /// The zero point of Y, if that is a byte.
    pub zero: i32,
    /// Whether each row is a channel. Otherwise each column is one.
    pub by_rows: bool,
    /// What is added to Y, if that is a byte.
    pub residual: Option<AddedBytes<'a>>,
    /// Replaces each byte of Y by an entry: the one whose number has the byte's bits.
    pub table: Option<&'a [u8; 256]>,
}

impl Requantise<'_> {
    /// Asserts that rows of outputs, `ld` apart, fit Y, and that each channel has its numbers.
    fn check<O>(&self, (rows, len): (usize, usize), (y, ld): (&Dest<'_, O>, usize)) {
        let channels = if self.by_rows { rows } else { len };
        assert!(end(rows, ld, len) <= y.len(), "the destination is too short");
        assert!(rows <= 1 || len <= ld, "rows of Y overlap");
        assert!(self.add.len() >= channels && self.scale.len() >= channels, "too few channels");
        assert!(self.zero.unsigned_abs() <= u8::MAX.into(), "the zero point is no byte");
    }
}

/// Raw arguments of the pass.
///
/// Memory: `sums + i * sums_ld` is readable, and `y + i * ld` writable, for `len` elements for each i < `rows`. `add` and
/// `scale` are readable for as many as there are channels. The residual has a value for each row and column.
pub(crate) struct RequantiseArgs<'a, O> {
    pub(crate) rows: usize,
    pub(crate) len: usize,
    pub(crate) sums: *const i32,
    pub(crate) sums_ld: usize,
    pub(crate) add: *const i32,
    pub(crate) scale: *const f32,
    pub(crate) zero: i32,
    pub(crate) residual: Option<AddedBytes<'a>>,
    pub(crate) y: *mut O,
    pub(crate) ld: usize,
}

/// A pass, with channels along columns and along rows.
type RequantiseFns<O> = [unsafe fn(&RequantiseArgs<'_, O>); 2];

/// As [`DotKernels::units_of_rows`].
type UnitRowsFn<X> = unsafe fn((UnitRows<'_, X>, usize, usize), X, (&mut [i32], usize));

/// Passes that make values and units of bytes: of the channels of pixels, of groups, and of rows.
#[derive(Clone, Copy)]
pub(crate) struct UnitFns<X> {
    pub(crate) pixels: unsafe fn(&BytePixels<'_, X>, X, &mut [u8], usize),
    pub(crate) groups: unsafe fn((&[X], usize), X, &mut [i32]),
    pub(crate) rows: UnitRowsFn<X>,
}

/// The passes of an ISA.
#[derive(Clone, Copy)]
pub(crate) struct DotPasses {
    pub(crate) of_u8: UnitFns<u8>,
    pub(crate) of_i8: UnitFns<i8>,
    pub(crate) u8: RequantiseFns<u8>,
    pub(crate) i8: RequantiseFns<i8>,
    pub(crate) i32: RequantiseFns<i32>,
    pub(crate) f32: RequantiseFns<f32>,
    pub(crate) f16: RequantiseFns<f16>,
}

pub(crate) mod sealed {
    use super::{DotPasses, RequantiseFns, UnitFns};

    /// The passes for a type of bytes. It is private, and so seals [`Byte`](super::Byte).
    pub trait Bytes: Copy {
        #[doc(hidden)]
        #[expect(private_interfaces, reason = "sealed")]
        fn fns(code: &DotPasses) -> UnitFns<Self>;
    }

    /// What the passes do with one sum. It is private, and so seals [`Output`](super::Output).
    pub trait Finish: Copy {
        #[doc(hidden)]
        #[expect(private_interfaces, reason = "sealed")]
        fn code(code: &DotPasses) -> RequantiseFns<Self>;
        /// The addend is for bytes alone.
        #[doc(hidden)]
        fn finish(sum: i32, scale: f32, addend: Option<f32>, zero: i32) -> Self;
        /// Whether it is a byte, and whether that has a sign.
        #[doc(hidden)]
        const BYTE: Option<bool> = None;
    }
}

/// A type of quantised values: `u8` or `i8`. The trait is sealed.
pub trait Byte: sealed::Bytes + Send + Sync + fmt::Debug + 'static {
    /// The zero point of symmetric weights.
    const CENTRE: i32;

    /// The number.
    fn value(self) -> i32;
    /// The number plus the constant that makes all numbers of the type unsigned.
    fn unsigned(self) -> u8;
    /// Whether numbers have a sign.
    const IS_SIGNED: bool;
    /// The same bytes, if they have no sign.
    fn without_sign(x: &[Self]) -> Option<&[u8]>
    where
        Self: Sized;
}

macro_rules! byte {
    ($t:ident, $of:ident: centre $centre:literal, flip $flip:literal, signed $signed:literal, |$x:ident| $unsigned:expr) => {
        impl sealed::Bytes for $t {
            #[expect(private_interfaces, reason = "sealed")]
            fn fns(code: &DotPasses) -> UnitFns<Self> {
                code.$of
            }
        }

        impl Byte for $t {
            const CENTRE: i32 = $centre;

            #[inline(always)]
            fn value(self) -> i32 {
                i32::from(self)
            }

            #[inline(always)]
            fn unsigned(self) -> u8 {
                self as u8 ^ $flip
            }

            const IS_SIGNED: bool = $signed;

            fn without_sign($x: &[Self]) -> Option<&[u8]> {
                $unsigned
            }
        }
    };
}
byte!(u8, of_u8: centre 128, flip 0, signed false, |x| Some(x));
byte!(i8, of_i8: centre 0, flip 0x80, signed true, |_x| None);

/// A type of outputs: `u8`, `i8`, `i32`, `f32` or `f16`. The trait is sealed.
pub trait Output: sealed::Finish + Send + Sync + fmt::Debug + 'static {}

/// 1.5 * 2^23: a small number that is added to it is rounded to an integer, to nearest even, in the lowest bits. An even
/// number, so that the integer is as even as the sum.
const INTEGERS: f32 = 12_582_912.0;

macro_rules! output {
    ($t:ident: |$sum:ident, $scale:ident, $addend:ident, $zero:ident| $finish:expr $(, byte is signed: $signed:expr)?) => {
        impl sealed::Finish for $t {
            #[expect(private_interfaces, reason = "sealed")]
            fn code(code: &DotPasses) -> RequantiseFns<Self> {
                code.$t
            }

            #[inline(always)]
            fn finish($sum: i32, $scale: f32, $addend: Option<f32>, $zero: i32) -> Self {
                $finish
            }

            $(const BYTE: Option<bool> = Some($signed);)?
        }

        impl Output for $t {}
    };
    (byte $t:ident) => {
        output!($t: |sum, scale, addend, zero| {
            let (least, most) = ((i32::from($t::MIN) - zero) as f32, (i32::from($t::MAX) - zero) as f32);
            let y = sum as f32 * scale;
            let y = if let Some(addend) = addend { y + addend } else { y };
            // Comparisons, because min and max have cases for NaN.
            let y = if y > least { y } else { least };
            let y = if y < most { y } else { most };
            ((y + INTEGERS).to_bits() as i32).wrapping_add(zero) as $t
        }, byte is signed: $t::MIN != 0);
    };
}
output!(byte u8);
output!(byte i8);
output!(i32: |sum, _scale, _addend, _zero| sum);
output!(f32: |sum, scale, _addend, _zero| sum as f32 * scale);
output!(f16: |sum, scale, _addend, _zero| f16::from_f32(sum as f32 * scale));

/// Two values of 16 bits, in this order in memory.
#[inline(always)]
pub const fn pair([first, second]: [i32; 2]) -> i32 {
    let ([a, b], [c, d]) = ((first as i16).to_ne_bytes(), (second as i16).to_ne_bytes());
    i32::from_ne_bytes([a, b, c, d])
}

/// Four bytes.
#[inline(always)]
pub const fn four(bytes: [u8; 4]) -> i32 {
    i32::from_le_bytes(bytes)
}
