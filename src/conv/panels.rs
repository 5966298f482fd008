//! The order of K in packed weights, and panels of Conv's weights.

use alloc::vec;

use convoke_kernels::{Isa, Real, stream, transpose};

use crate::element::Element;

/// Columns of W that are transposed at once, at most, but at least those of one channel: so many stay in the L1
/// cache with the rows of a panel.
const COLUMNS: usize = 64;

/// The order of K: by blocks of channels, then taps, then channels of the block. A row of W has channels, then
/// taps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepOrder {
    pub(crate) channels: usize,
    pub(crate) taps: usize,
    /// Channels of a block.
    pub(crate) block: usize,
}

impl StepOrder {
    /// The tap and the channel of step `k`.
    pub(crate) fn step(&self, k: usize) -> (usize, usize) {
        let Self { channels, taps, block } = *self;
        let first = k / (block * taps) * block;
        let width = block.min(channels - first);
        let within = k - first * taps;
        (within / width, first + within % width)
    }

    /// Packs a panel, `[K][width]`. `w` begins with the first of its `rows` rows. Columns of the panel beyond `rows`
    /// become zero.
    pub(crate) fn pack<T: Element>(&self, isa: Isa, w: &[T], (rows, width): (usize, usize), panel: &mut [T::Acc]) {
        let Self { channels, taps, block } = *self;
        let (k, values) = (channels * taps, T::as_acc(w));
        if rows < width {
            panel.fill(T::Acc::ZERO);
        }
        let at_once = (COLUMNS / taps).clamp(1, block);
        let columns = at_once * taps;
        let mut widened = vec![T::Acc::ZERO; if values.is_some() { 0 } else { rows * columns }];
        let mut transposed = vec![T::Acc::ZERO; if taps == 1 { 0 } else { width * columns }];
        for first in (0..channels).step_by(block) {
            let block = block.min(channels - first);
            for c in (0..block).step_by(at_once) {
                let count = at_once.min(block - c);
                let (column, columns_of_w) = ((first + c) * taps, count * taps);
                let rows_of_w = match values {
                    Some(values) => (&values[column..], k),
                    None => {
                        for (i, row) in widened.chunks_exact_mut(columns).enumerate() {
                            stream::widen(isa, &w[i * k + column..][..columns_of_w], &mut row[..columns_of_w]);
                        }
                        (&widened[..], columns)
                    }
                };
                if taps == 1 {
                    transpose(isa, (rows, count), rows_of_w, (&mut panel[column * width..], width));
                    continue;
                }
                transpose(isa, (rows, columns_of_w), rows_of_w, (&mut transposed, width));
                let panel = &mut panel[first * taps * width..];
                for (c, of_channel) in (c..c + count).zip(transposed.chunks_exact(taps * width)) {
                    for (tap, values) in of_channel.chunks_exact(width).enumerate() {
                        panel[(tap * block + c) * width..][..rows].copy_from_slice(&values[..rows]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn check<T: Element>(isa: Isa) {
        for (channels, taps, block) in [(1, 1, 1), (70, 1, 32), (3, 49, 2), (20, 9, 16), (130, 3, 130)] {
            for (rows, width) in [(1, 1), (3, 16), (14, 14), (32, 32)] {
                // Few whole numbers are those of every type. Neighbours differ, and none is the zero of the padding.
                let value = |i: usize| <T::Acc as Real>::from_f64((i % 251 + 1) as f64);
                let w: alloc::vec::Vec<T> = (0..rows * channels * taps).map(|i| T::from_acc(value(i))).collect();
                let mut panel = vec![value(0); width * channels * taps];
                let order = StepOrder { channels, taps, block };
                order.pack(isa, &w, (rows, width), &mut panel);
                for (k, step) in panel.chunks_exact(width).enumerate() {
                    let (tap, c) = order.step(k);
                    let expected = (0..width).map(|row| match row < rows {
                        true => value((row * channels + c) * taps + tap),
                        false => T::Acc::ZERO,
                    });
                    assert!(expected.eq(step.iter().copied()), "{isa} {order:?} {rows} {width} {k}");
                }
            }
        }
    }

    #[test]
    fn panels_have_the_weight_of_each_step_and_zeros() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            check::<f32>(isa);
            check::<f64>(isa);
            check::<bf16>(isa);
        }
    }
}
