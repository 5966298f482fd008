//! Random layers of the sizes that networks have: none of them is a published one, so that prices
//! and rules that only fit those are found out.

use convoke::{Geometry, Op};

use crate::data::Random;
use crate::shapes::{Layer, flops, join};

/// Operations of a run, at least and at most. Shorter runs are hard to time, and longer
/// ones take long.
const FLOPS: std::ops::RangeInclusive<f64> = 1e6..=2e9;
/// Elements of X or Y, at most.
const MOST_ELEMENTS: usize = 1 << 23;

/// `count` layers. The same seed always gives the same ones.
#[must_use]
pub fn layers(seed: u64, count: usize) -> Vec<Layer> {
    let mut random = Random::new(seed);
    let mut layers = Vec::new();
    while layers.len() < count {
        let layer = Draft::draw(&mut random).layer();
        let is_fit = |geometry: &Geometry| {
            FLOPS.contains(&flops(geometry)) && geometry.input_len().max(geometry.output_len()) <= MOST_ELEMENTS
        };
        if layer.geometry().is_ok_and(|geometry| is_fit(&geometry)) {
            layers.push(layer);
        }
    }
    layers
}

/// What is drawn of a layer. The rest follows.
struct Draft {
    kind: &'static str,
    op: Op,
    batch: usize,
    channels: [usize; 2],
    group: usize,
    sizes: Vec<usize>,
    kernel: Vec<usize>,
    stride: i64,
    dilation: i64,
}

impl Draft {
    fn draw(random: &mut Random) -> Self {
        let batch = [1, 1, 1, 1, 2, 4][random.below(6)];
        let [c, m] = [channels(random), channels(random)];
        let plane = |random: &mut Random| {
            let size = size(random);
            // Some maps are not square.
            vec![size, if random.below(4) == 0 { self::size(random) } else { size }]
        };
        let of = |kind, channels: [usize; 2], group, sizes, kernel: Vec<usize>, stride, dilation| Self {
            kind,
            op: if kind == "transposed" { Op::ConvTranspose } else { Op::Conv },
            batch,
            channels,
            group,
            sizes,
            kernel,
            stride,
            dilation,
        };
        match random.below(100) {
            0..25 => of("3x3", [c, m], 1, plane(random), vec![3, 3], 1, 1),
            25..45 => of("1x1", [c, m], 1, plane(random), vec![1, 1], 1, 1),
            45..49 => of("1x1s2", [c, m], 1, plane(random), vec![1, 1], 2, 1),
            49..57 => of("3x3s2", [c, m], 1, plane(random), vec![3, 3], 2, 1),
            57..62 => {
                let k = [4, 5, 7, 9][random.below(4)];
                let kernel = if random.below(2) == 0 { vec![k, k] } else { vec![1, k] };
                of("large", [c, m], 1, plane(random), kernel, 1 + random.below(2) as i64, 1)
            }
            62..65 => {
                of("stem", [3, m], 1, vec![160 + 16 * random.below(9); 2], vec![3 + 2 * random.below(3); 2], 2, 1)
            }
            65..75 => {
                let k = [3, 3, 5, 7][random.below(4)];
                of("depthwise", [c, c], c, plane(random), vec![k, k], 1 + random.below(2) as i64, 1)
            }
            75..80 => {
                let group = 1 << (1 + random.below(5));
                let [c, m] = [c, m].map(|n| n.next_multiple_of(group));
                of("grouped", [c, m], group, plane(random), vec![3, 3], 1 + random.below(2) as i64, 1)
            }
            80..84 => of("dilated", [c, m], 1, plane(random), vec![3, 3], 1, [2, 3, 4, 6, 12][random.below(5)]),
            84..91 => {
                let (k, dilation) = ([1, 3, 5, 7, 11][random.below(5)], [1, 1, 3, 5][random.below(4)]);
                of("1-D", [c, m], 1, vec![64 << random.below(9)], vec![k], 1, dilation)
            }
            91..94 => {
                let size = [4, 7, 8, 14, 16, 28][random.below(6)];
                of("3-D", [c, m], 1, vec![size / 2 + 1, size, size], vec![3, 3, 3], 1 + random.below(2) as i64, 1)
            }
            _ => {
                let (k, stride) = [(2, 2), (3, 2), (4, 2), (4, 4), (3, 1)][random.below(5)];
                of("transposed", [c, m], 1, plane(random), vec![k, k], stride, 1)
            }
        }
    }

    fn layer(&self) -> Layer {
        let Self { kind, op, batch, channels: [c, m], group, sizes, kernel, stride, dilation } = self;
        let [first, second] = if *op == Op::Conv { [*m, c / group] } else { [*c, m / group] };
        // As much padding as keeps the size with stride 1. An even kernel makes Y one smaller.
        let pad = |k: &usize| (k - 1) as i64 * dilation / 2;
        let pads: Vec<_> = kernel.iter().map(pad).collect();
        let axes = kernel.len();
        Layer {
            name: format!("{kind}.{batch}x{c}-{m}@{}.k{}s{stride}g{group}", join(sizes), join(kernel)),
            op: *op,
            x: [*batch, *c].into_iter().chain(sizes.iter().copied()).collect(),
            w: [first, second].into_iter().chain(kernel.iter().copied()).collect(),
            strides: vec![*stride; axes],
            pads: [pads.clone(), pads].concat(),
            dilations: vec![*dilation; axes],
            group: *group as i64,
            output_padding: vec![0; axes],
        }
    }
}

/// A number of channels: most are multiples of 8, and all sizes are equally likely on a
/// logarithmic scale.
fn channels(random: &mut Random) -> usize {
    let n = 2_f64.powf(6.5 + 3.5 * random.uniform()) as usize;
    if random.below(6) == 0 { n } else { n.next_multiple_of(8) }
}

/// A size of a map.
fn size(random: &mut Random) -> usize {
    let n = 2_f64.powf(4.9 + 2.1 * random.uniform()) as usize;
    [7, 14, 28, 56, 112, n, n][random.below(7)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::shapes::LayerKind;

    #[test]
    fn layers_are_of_all_kinds_and_the_same_for_a_seed() {
        let layers = layers(1, 200);
        assert_eq!(layers, super::layers(1, 200));
        assert_ne!(layers, super::layers(2, 200));
        let geometries: Vec<_> = layers.iter().map(|layer| layer.geometry().unwrap()).collect();
        let kinds: BTreeSet<_> = geometries.iter().map(LayerKind::of).collect();
        assert_eq!(kinds, BTreeSet::from(LayerKind::ALL));
        assert!(geometries.iter().all(|geometry| FLOPS.contains(&flops(geometry))));
    }
}
