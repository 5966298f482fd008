//! How bytes of X become what kernels multiply: values that units begin with, or units.

use convoke_kernels::dot::{Byte, BytePixels, DotKernels, MOST_VALUES, Unit, four};
use convoke_kernels::{Isa, stream, transpose};

use super::row_units::RowUnits;
use super::source::PixelReader;

/// Bytes of X.
#[derive(Clone, Copy)]
pub(super) struct ByteInput<'a, X> {
    pub(super) isa: Isa,
    pub(super) kernels: &'static DotKernels,
    pub(super) x: &'a [X],
    pub(super) zero: X,
}

impl<X: Byte> ByteInput<'_, X> {
    /// A unit of padding.
    fn padding(&self) -> i32 {
        match self.kernels.unit() {
            Unit::Pairs => 0,
            Unit::Bytes => four([self.zero.unsigned(); MOST_VALUES]),
        }
    }

    /// Transposes rows of units. That moves 32 bits, whatever they mean.
    fn transpose(&self, (units, pixels): (usize, usize), from: &[i32], (to, ld): (&mut [i32], usize)) {
        let (from, to) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut::<_, f32>(to));
        transpose(self.isa, (units, pixels), (from, pixels), (to, ld));
    }
}

/// Values that are neighbours as in X: those of a unit are channels, or the last ones of a pixel and the first ones of the
/// next. With channels first, pixels are whole units.
pub(super) struct ValueReader<'a, X>(pub(super) ByteInput<'a, X>);

impl<X: Byte> PixelReader<u8> for ValueReader<'_, X> {
    fn in_place(&self) -> Option<&[u8]> {
        X::without_sign(self.0.x)
    }

    fn padding(&self) -> u8 {
        self.0.padding() as u8
    }

    fn pixels(&self, (first, x_pixel): (usize, usize), channels: usize, to: (&mut [u8], usize)) {
        let x = BytePixels { x: &self.0.x[first..], pixel: x_pixel, channels };
        self.0.kernels.values_of_pixels(&x, self.0.zero, to);
    }

    fn rows(
        &self,
        (first, x_channel): (usize, usize),
        channels: usize,
        (to, pixel): (&mut [u8], usize),
        widened: &mut [u8],
    ) {
        let ByteInput { kernels, x, zero, .. } = self.0;
        let (pixels, values) = (to.len() / pixel, kernels.unit().values());
        let (count, len) = (channels.div_ceil(values), to.len());
        let to: &mut [i32] = bytemuck::cast_slice_mut(to);
        let units = if count == 1 { &mut *to } else { bytemuck::cast_slice_mut(&mut widened[..len]) };
        for (u, units) in units.chunks_exact_mut(pixels).enumerate() {
            let rows = core::array::from_fn(|i| {
                let c = u * values + i;
                (i < values && c < channels).then(|| &x[first + c * x_channel..])
            });
            kernels.units_of_rows((rows, 1, 1), zero, (units, 1));
        }
        if count > 1 {
            self.0.transpose((count, pixels), bytemuck::cast_slice(&widened[..len]), (to, count));
        }
    }

    fn repeat(&self, copy: &[u8], repeats: usize, repeated: &mut [u8]) {
        for (repeated, value) in repeated.chunks_exact_mut(repeats).zip(copy) {
            repeated.fill(*value);
        }
    }
}

/// What the values of a unit are, where each group of channels has units of its own.
pub(super) enum GroupUnits {
    /// Neighbouring taps of a column of the kernel. A group has one channel.
    Taps(RowUnits),
    /// All channels of a group: so many.
    Channels(usize),
}

/// Units of the groups of X, which are the channels of a layer of units.
pub(super) struct UnitReader<'a, X> {
    pub(super) input: ByteInput<'a, X>,
    pub(super) units: &'a GroupUnits,
    /// Elements from one channel of X to the next.
    pub(super) channel: usize,
    /// Elements from one pixel of X to the next, if its channels are neighbours, and 1 otherwise.
    pub(super) pixel: usize,
}

impl<X: Byte> UnitReader<'_, X> {
    /// Makes units of `channels` channels, which are neighbours, of the pixels of rows. They begin with element `first` of the
    /// layer of units, and become pixels of `pixel` units.
    fn units_of_rows(&self, rows: &RowUnits, first: usize, channels: usize, (to, pixel): (&mut [i32], usize)) {
        let (ByteInput { kernels, x, zero, .. }, x_pixel) = (self.input, self.pixel);
        let of_pixel = rows.neighbours;
        let (mut place, skipped, mut rest) = (first / of_pixel, first % of_pixel, to);
        while !rest.is_empty() {
            let (row, column) = (place / rows.width(), place % rows.width());
            let count = (rest.len() / pixel).min(rows.width() - column);
            let units = rest.split_off_mut(..count * pixel).unwrap_or_default();
            let starts = rows.rows(row).map(|row| Some((row? * rows.width() + column) * x_pixel + skipped));
            let rows = starts.map(|start| Some(&x[start?..]));
            kernels.units_of_rows((rows, x_pixel, channels), zero, (units, pixel));
            place += count;
        }
    }
}

impl<X: Byte> PixelReader<i32> for UnitReader<'_, X> {
    fn in_place(&self) -> Option<&[i32]> {
        None
    }

    fn padding(&self) -> i32 {
        self.input.padding()
    }

    fn pixels(&self, (first, x_pixel): (usize, usize), channels: usize, (to, pixel): (&mut [i32], usize)) {
        let ByteInput { kernels, x, zero, .. } = self.input;
        match self.units {
            GroupUnits::Taps(rows) if channels <= rows.neighbours => {
                self.units_of_rows(rows, first, channels, (to, pixel));
            }
            // One position of units, whose rows of X have other places for each channel.
            GroupUnits::Taps(rows) => {
                for (i, to) in to.chunks_exact_mut(pixel).enumerate() {
                    for (c, to) in to[..channels].chunks_exact_mut(1).enumerate() {
                        self.units_of_rows(rows, first + i * x_pixel + c, 1, (to, 1));
                    }
                }
            }
            GroupUnits::Channels(group) => {
                // Pixels without gaps are like one.
                let is_one = x_pixel == channels * group && pixel == channels;
                let (step, len) = if is_one { (to.len(), to.len()) } else { (pixel, channels) };
                for (i, to) in to.chunks_exact_mut(step).enumerate() {
                    kernels.units_of_groups((&x[first + i * x_pixel..], *group), zero, &mut to[..len]);
                }
            }
        }
    }

    fn rows(
        &self,
        (first, x_channel): (usize, usize),
        channels: usize,
        (to, pixel): (&mut [i32], usize),
        widened: &mut [i32],
    ) {
        let ByteInput { kernels, x, zero, .. } = self.input;
        let pixels = to.len() / pixel;
        let units = if pixel == 1 { &mut *to } else { &mut widened[..pixels * channels] };
        for (u, units) in units.chunks_exact_mut(pixels).enumerate() {
            let first = first + u * x_channel;
            match self.units {
                GroupUnits::Taps(rows) => self.units_of_rows(rows, first, 1, (units, 1)),
                GroupUnits::Channels(group) => {
                    let rows = core::array::from_fn(|i| (i < *group).then(|| &x[first + i * self.channel..]));
                    kernels.units_of_rows((rows, 1, 1), zero, (units, 1));
                }
            }
        }
        if pixel > 1 {
            self.input.transpose((channels, pixels), widened, (to, pixel));
        }
    }

    fn repeat(&self, copy: &[i32], repeats: usize, repeated: &mut [i32]) {
        // Repetition moves 32 bits, whatever they mean.
        let (copy, repeated) = (bytemuck::cast_slice(copy), bytemuck::cast_slice_mut(repeated));
        stream::repeat::<f32>(self.input.isa, copy, repeats, repeated);
    }
}
