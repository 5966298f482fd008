//! Checks the streaming passes, on every ISA of this CPU and for every element type, against
//! loops by their definitions.

use core::cmp::Ordering;
use core::mem::MaybeUninit;

use convoke_kernels::half::{bf16, f16};
use convoke_kernels::stream::{self, Storage};
use convoke_kernels::{Dest, Isa, Real};

/// Elements: lengths around those of vectors and of the conversion buffer.
const LENGTHS: [usize; 9] = [0, 1, 2, 7, 15, 16, 33, 255, 600];

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn numbers<T: Storage>(len: usize) -> Vec<T> {
    (0..len).map(|i| T::from_acc(T::Acc::from_f64(((i * 7919) % 1009) as f64 / 64.0 - 7.5))).collect()
}

fn each_type(check: impl Fn(Isa) + Copy) {
    available().for_each(check);
}

fn widening<T: Storage>(isa: Isa) {
    for len in LENGTHS {
        for stride in 1..=9 {
            let src: Vec<T> = numbers((len * stride).saturating_sub(stride - 1));
            let mut dst = vec![T::Acc::ZERO; len];
            stream::widen_strided(isa, &src, stride, &mut dst);
            for (i, dst) in dst.iter().enumerate() {
                assert_eq!(*dst, src[i * stride].to_acc(), "{isa} stride {stride} at {i} of {len}");
            }
        }
    }
}

#[test]
fn widening_takes_every_strideth_element() {
    each_type(widening::<f32>);
    each_type(widening::<f64>);
    each_type(widening::<f16>);
    each_type(widening::<bf16>);
}

fn narrowing<T: Storage>(isa: Isa) {
    for len in LENGTHS {
        // Values between the stored ones, with ties among them.
        let src: Vec<T::Acc> = (0..len).map(|i| T::Acc::from_f64(1.0 + i as f64 / 4096.0)).collect();
        let mut dst = vec![MaybeUninit::new(T::default()); len];
        stream::narrow(isa, &src, &mut dst);
        for (src, dst) in src.iter().zip(dst) {
            // SAFETY: the element was initialised when the vector was made.
            assert_eq!(unsafe { dst.assume_init() }, T::from_acc(*src), "{isa} {src}");
        }
    }
}

/// Rows of every length up to two vectors and more, with gaps that stay as they are.
fn rows_with_gaps<T: Storage>(isa: Isa) {
    for len in 0..40 {
        let (rows, src_row, dst_row) = (3, len + 2, len + 5);
        let src: Vec<T> = numbers(2 * src_row + len);
        let wide: Vec<T::Acc> = (0..2 * dst_row + len)
            .map(|i| if i % dst_row < len { src[i / dst_row * src_row + i % dst_row].to_acc() } else { T::Acc::ONE })
            .collect();
        let mut narrow = vec![T::default(); 2 * src_row + len];
        stream::narrow_rows(isa, (rows, len), (&wide, dst_row), (&mut Dest::from_slice(&mut narrow), src_row));
        for (i, narrow) in narrow.iter().enumerate() {
            let want = if i % src_row < len { src[i] } else { T::default() };
            assert_eq!(*narrow, want, "{isa} element {i} of rows {len} long");
        }
    }
}

#[test]
fn rows_are_narrowed_and_what_lies_between_is_not_touched() {
    each_type(rows_with_gaps::<f32>);
    each_type(rows_with_gaps::<f64>);
    each_type(rows_with_gaps::<f16>);
    each_type(rows_with_gaps::<bf16>);
}

fn narrow_rows(size: (usize, usize), (src_len, src_row): (usize, usize), (dst_len, dst_row): (usize, usize)) {
    let (src, mut dst) = (vec![1.0; src_len], vec![0.0_f32; dst_len]);
    stream::narrow_rows(Isa::Portable, size, (&src, src_row), (&mut Dest::from_slice(&mut dst), dst_row));
}

#[test]
#[should_panic(expected = "a row ends beyond the destination")]
fn a_row_that_ends_beyond_the_destination_is_refused() {
    narrow_rows((2, 3), (8, 5), (7, 5));
}

#[test]
#[should_panic(expected = "a row ends beyond its slice")]
fn a_row_that_ends_beyond_the_sums_is_refused() {
    narrow_rows((2, 3), (7, 5), (8, 5));
}

/// So many rows would not end.
#[test]
#[should_panic(expected = "rows overlap")]
fn rows_at_one_place_are_not_narrowed() {
    narrow_rows((usize::MAX, 1), (1, 0), (1, 0));
}

#[test]
fn rows_of_no_elements_are_none() {
    narrow_rows((usize::MAX, 0), (1, 0), (1, 0));
    narrow_rows((0, 3), (0, 5), (0, 5));
}

/// Rows longer than the buffer in which residuals of 16-bit types are widened.
fn residuals<T: Storage>(isa: Isa) {
    for len in LENGTHS {
        let residual: Vec<T> = numbers(len);
        let mut row: Vec<T::Acc> = (0..len).map(|i| T::Acc::from_f64(i as f64)).collect();
        stream::add_assign(isa, &mut row, &residual);
        for (i, got) in row.iter().enumerate() {
            assert_eq!(got.to_f64(), i as f64 + residual[i].to_acc().to_f64(), "{isa} at {i} of {len}");
        }
    }
}

#[test]
fn residuals_of_every_type_are_added() {
    each_type(residuals::<f32>);
    each_type(residuals::<f64>);
    each_type(residuals::<f16>);
    each_type(residuals::<bf16>);
}

#[test]
fn narrowing_rounds_each_value_to_nearest_even() {
    each_type(narrowing::<f32>);
    each_type(narrowing::<f64>);
    each_type(narrowing::<f16>);
    each_type(narrowing::<bf16>);
    assert_eq!(f16::from_acc(2049.0).to_f32(), 2048.0);
    assert_eq!(f16::from_acc(2051.0).to_f32(), 2052.0);
}

/// A 16-bit type, by its definition.
#[derive(Clone, Copy)]
struct Format<T> {
    /// Bits behind the binary point.
    mantissa: u32,
    bias: i32,
    of_bits: fn(u16) -> T,
    to_bits: fn(T) -> u16,
}

const F16: Format<f16> = Format { mantissa: 10, bias: 15, of_bits: f16::from_bits, to_bits: f16::to_bits };
const BF16: Format<bf16> = Format { mantissa: 7, bias: 127, of_bits: bf16::from_bits, to_bits: bf16::to_bits };

impl<T: Storage<Acc = f32>> Format<T> {
    /// The bits of infinity. Lower bits are those of the finite numbers, from zero on in order.
    fn infinity(self) -> u16 {
        0x7fff >> self.mantissa << self.mantissa
    }

    /// The number without its sign. For infinity it is the number that would follow the largest
    /// one.
    fn magnitude(self, bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> self.mantissa), f64::from(bits & ((1 << self.mantissa) - 1)));
        let fraction = fraction / f64::from(1 << self.mantissa) + if exponent > 0 { 1.0 } else { 0.0 };
        fraction * 2_f64.powi(exponent.max(1) - self.bias)
    }

    fn widens_every_number(self, isa: Isa) {
        let src: Vec<T> = (0..=u16::MAX).map(self.of_bits).collect();
        let mut dst = vec![0.0; src.len()];
        stream::widen(isa, &src, &mut dst);
        for (bits, got) in (0..=u16::MAX).zip(dst) {
            let (sign, rest) = (if bits >> 15 == 1 { -1.0 } else { 1.0 }, bits & 0x7fff);
            let is_right = match rest.cmp(&self.infinity()) {
                Ordering::Less => f64::from(got) == sign * self.magnitude(rest),
                Ordering::Equal => got.is_infinite(),
                Ordering::Greater => got.is_nan(),
            };
            assert!(is_right && got.is_sign_negative() == (sign < 0.0), "{isa}: {bits:#x} is {got}");
        }
    }

    fn narrows_to_the_nearest(self, isa: Isa) {
        let (mut src, mut want) = (Vec::new(), Vec::new());
        for bits in 0..self.infinity() {
            let (low, high) = (self.magnitude(bits), self.magnitude(bits + 1));
            let middle = ((low + high) / 2.0) as f32;
            let ties = [(middle, bits + (bits & 1)), (middle.next_down(), bits), (middle.next_up(), bits + 1)];
            for (x, rounded) in ties.into_iter().chain([(low as f32, bits)]) {
                src.extend([x, -x]);
                want.extend([rounded, rounded | 0x8000]);
            }
        }
        src.extend([f32::INFINITY, f32::NEG_INFINITY]);
        want.extend([self.infinity(), self.infinity() | 0x8000]);
        let nans = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)];
        src.extend(nans);
        let mut dst = vec![MaybeUninit::new(T::default()); src.len()];
        stream::narrow(isa, &src, &mut dst);
        // SAFETY: the elements were initialised when the vector was made.
        let got: Vec<u16> = dst.into_iter().map(|x| (self.to_bits)(unsafe { x.assume_init() })).collect();
        for ((src, got), want) in src.iter().zip(&got).zip(&want) {
            assert_eq!(got, want, "{isa}: {src:e}");
        }
        assert!(got[want.len()..].iter().all(|bits| bits & 0x7fff > self.infinity()), "{isa}: NaN stays NaN");
    }
}

#[test]
fn every_number_of_16_bits_is_widened_exactly() {
    each_type(|isa| F16.widens_every_number(isa));
    each_type(|isa| BF16.widens_every_number(isa));
}

#[test]
fn numbers_between_those_of_16_bits_are_rounded_to_nearest_even() {
    each_type(|isa| F16.narrows_to_the_nearest(isa));
    each_type(|isa| BF16.narrows_to_the_nearest(isa));
}

#[test]
fn rows_are_packed_and_filled_up_with_zeros() {
    for isa in available() {
        for (n, nr) in [(16, 16), (32, 32), (48, 48), (64, 64), (96, 96), (5, 16), (33, 48), (0, 16)] {
            let (kc, ld) = (5, n + 3);
            let src: Vec<f16> = numbers(kc * ld);
            let mut dst = vec![f32::NAN; kc * nr];
            stream::pack_rows(isa, &src, ld, n, nr, &mut dst);
            for (at, got) in dst.iter().enumerate() {
                let (k, j) = (at / nr, at % nr);
                assert_eq!(*got, if j < n { src[k * ld + j].to_f32() } else { 0.0 }, "{isa} {n} of {nr} at {k},{j}");
            }
        }
    }
}

#[test]
fn phases_are_put_in_order() {
    for isa in available() {
        for (phases, len, first) in
            [(2, 11, 0), (2, 12, 0), (2, 12, 4), (2, 12, 3), (3, 20, 0), (3, 20, 5), (8, 64, 16), (3, 3, 0)]
        {
            let span = usize::div_ceil(len, phases);
            let src: Vec<f64> = numbers(phases * span);
            let mut dst = vec![f64::NAN; len - first];
            stream::interleave(isa, &src, (phases, span), first, &mut dst);
            for (i, got) in dst.iter().enumerate() {
                let r = first + i;
                assert_eq!(*got, src[r % phases * span + r / phases], "{isa} {phases} phases, element {r}");
            }
        }
    }
}

#[test]
fn rows_are_added() {
    for isa in available() {
        for len in LENGTHS {
            let (mut dst, src): (Vec<f32>, Vec<f32>) = (vec![0.5; len], numbers(len));
            stream::add_assign(isa, &mut dst, &src);
            assert!(dst.iter().zip(&src).all(|(d, s)| *d == 0.5 + s), "{isa} {len}");
        }
    }
}

#[test]
fn bias_is_added() {
    for isa in available() {
        for len in LENGTHS {
            let (row, mut got): (Vec<f32>, Vec<f32>) = (numbers(len), numbers(len));
            stream::add_bias(isa, 0.25, &mut got);
            assert!(got.iter().zip(&row).all(|(got, x)| *got == x + 0.25), "{isa} {len}");
        }
    }
}

#[test]
#[should_panic(expected = "rows of no elements")]
fn rows_of_no_elements_are_refused() {
    stream::pack_rows::<f32>(Isa::Portable, &[1.0; 4], 1, 0, 0, &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "there is no phase")]
fn a_row_of_no_phases_is_refused() {
    stream::interleave(Isa::Portable, &[1.0; 4], (0, 1), 0, &mut [0.0; 4]);
}
