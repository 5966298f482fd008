//! Saved weights whose description was forged. Their checksum is right, so that nothing but the
//! checks of each field stands between a file and a run.

#![cfg(feature = "save")]

use std::collections::BTreeSet;

use crate::common::{Combination, Context, Layer, Operands, is_short, isas, layer};
use convoke::{Conv, ConvTranspose, DType, ErrorKind, Isa, Op, PackedWeights, Planner, Threads, bf16, f16};
use convoke_tools::data::Scalar;
use convoke_tools::named;

/// Where the description begins; its length is in the four bytes before.
const HEAD: usize = 24;

/// The description of saved weights.
fn description(saved: &[u8]) -> &[u8] {
    &saved[HEAD..HEAD + described(saved)]
}

/// Saved weights with another description, and all else right.
fn with_description(saved: &[u8], description: &[u8]) -> Vec<u8> {
    let mut forged = [&saved[..HEAD], description].concat();
    forged.resize(forged.len().next_multiple_of(64), 0);
    forged.extend(&saved[(HEAD + described(saved)).next_multiple_of(64)..]);
    forged[20..HEAD].copy_from_slice(&(description.len() as u32).to_ne_bytes());
    with_checksum(forged)
}

fn described(saved: &[u8]) -> usize {
    u32::from_ne_bytes(saved[20..HEAD].try_into().unwrap()) as usize
}

pub(super) fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[16..]);
    bytes[8..16].copy_from_slice(&sum.to_ne_bytes());
    bytes
}

/// A name as it is saved.
fn name(name: &str) -> Vec<u8> {
    [&[name.len() as u8], name.as_bytes()].concat()
}

/// The places of some bytes.
fn places<'a>(bytes: &'a [u8], part: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes.windows(part.len()).enumerate().filter(move |(_, window)| *window == part).map(|(at, _)| at)
}

/// The same bytes with others instead of some at a place.
fn replaced(bytes: &[u8], at: usize, len: usize, by: &[u8]) -> Vec<u8> {
    [&bytes[..at], by, &bytes[at + len..]].concat()
}

/// The same weights with the `nth` occurrence of a name in the description replaced.
pub(super) fn renamed(saved: &[u8], from: &str, to: &str, nth: usize) -> Vec<u8> {
    let (from, to) = (name(from), name(to));
    let at = places(description(saved), &from).nth(nth).unwrap();
    with_description(saved, &replaced(description(saved), at, from.len(), &to))
}

/// Loads, plans and runs, as far as there is no error. Returns whether there was none.
///
/// # Panics
/// If a run fails, or leaves an element of Y as it was.
fn runs<T: Scalar>(layer: &Layer, planner: Planner, bytes: &[u8]) -> bool {
    let Ok(loaded) = PackedWeights::<T>::from_bytes(bytes) else { return false };
    match planner.packed_for(&loaded).plan::<T>(layer.operator.clone(), &layer.x_shape) {
        Ok(plan) => {
            let y = Operands::uniform(plan.geometry(), 53).run_packed(&plan, &loaded, Threads::Serial).unwrap();
            assert!(y.iter().all(|y| y.to_f64().is_finite()), "{layer}: {plan:?}");
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::PackedMismatch), "{layer}: {error}");
            false
        }
    }
}

fn saved<T: Scalar>(layer: &Layer, planner: &Planner) -> Vec<u8> {
    let plan = planner.plan::<T>(layer.operator.clone(), &layer.x_shape).unwrap();
    Operands::uniform(plan.geometry(), 52).pack(&plan).to_bytes().unwrap()
}

/// One more row in a panel of `grouped` was believed. The run went beyond the weights of the last
/// group.
#[test]
fn a_forged_height_of_a_panel_is_refused_before_a_run_panics() {
    let layer = layer(Conv::new([2, 12, 3]).pads([1, 1]), [1, 12, 91]);
    check_heights::<f64>(&layer, &[3]);
}

/// The same wrote elements of Y that belong to another task. Builds without debug assertions did not
/// see that.
#[test]
fn a_forged_height_of_a_panel_does_not_leave_the_region_of_a_task() {
    let layer = layer(Conv::new([4, 5, 3]).group(2).strides([2]).pads([2, 3]), [2, 10, 98]);
    check_heights::<f16>(&layer, &[3]);
}

#[test]
fn panels_of_grouped_must_be_those_of_a_group() {
    let layer = layer(Conv::new([14, 3, 3]).group(2).pads([1, 1]), [1, 6, 40]);
    // The rows of a group are 7. Sums must not overflow, either.
    let most = [u64::MAX, u64::MAX, 9].map(|height| usize::try_from(height).unwrap_or(usize::MAX));
    let forged: [&[usize]; 9] = [&[], &[0], &[7, 0], &[3, 3], &[4, 4], &[3, 4], &[100], &[usize::MAX], &most];
    for heights in forged {
        check_heights::<f32>(&layer, heights);
    }
}

/// Asserts that weights for `grouped` with other heights of panels are refused.
fn check_heights<T: Scalar>(layer: &Layer, heights: &[usize]) {
    for isa in isas() {
        let planner = Planner::new().isa(isa).algorithm(named("grouped"));
        let saved = saved::<T>(layer, &planner);
        assert!(runs::<T>(layer, planner.clone(), &saved));
        let layout = heights_in(&saved);
        let varints = |heights: &[usize]| heights.iter().flat_map(|height| varint(*height as u64)).collect::<Vec<_>>();
        let forged = [varint(heights.len() as u64), varints(heights)].concat();
        let forged = replaced(description(&saved), layout.start, layout.len(), &forged);
        let forged = with_description(&saved, &forged);
        assert!(!runs::<T>(layer, planner, &forged), "{heights:?}");
        assert!(!runs::<T>(layer, Planner::new(), &forged), "{heights:?}");
    }
}

/// Where the heights of panels are in the description of weights for `grouped`: behind the number of
/// the layout's kind.
fn heights_in(saved: &[u8]) -> std::ops::Range<usize> {
    const GROUPED: u8 = 8;
    let bytes = description(saved);
    // The list ends before the number of values.
    let is_list = |at: &usize| bytes[*at] == GROUPED && bytes.get(at + 1).is_some_and(|count| (1..=8).contains(count));
    let at = (0..bytes.len()).rev().find(is_list).unwrap();
    at + 1..at + 2 + usize::from(bytes[at + 1])
}

/// A number as postcard writes it.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The second packing of a file, that of the taps that meet input, was not compared with the layer.
/// As one of ConvTranspose, with fewer channels, it had a shorter bias than the run read.
#[test]
fn saved_weights_whose_second_operator_is_forged_are_not_read_beyond_their_bias() {
    let layer = layer(Conv::new([4, 3, 3, 3]).pads([9; 4]).dilations([9, 9]), [1, 3, 5, 5]);
    let saved = saved::<f32>(&layer, &Planner::new());
    let runs = |bytes: &[u8]| runs::<f32>(&layer, Planner::new(), bytes);
    assert!(runs(&saved));
    assert!(!runs(&renamed(&saved, "Conv", "ConvTranspose", 0)));
    assert!(runs(&renamed(&saved, "Conv", "ConvTranspose", 1)));
}

/// A lowering would leave out products of infinities with padding.
#[test]
fn values_that_are_not_finite_are_read_as_w_alone() {
    let layer = layer(Conv::new([3, 2, 3]).pads([1, 1]), [1, 2, 9]);
    let plan = Planner::new().plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
    let packed = Operands::uniform(plan.geometry(), 52).pack(&plan);
    let saved = packed.to_bytes().unwrap();
    // The values are behind the bias, which has a line.
    let values = (HEAD + described(&saved)).next_multiple_of(64) + 64;
    for value in [f32::INFINITY, f32::NAN] {
        let forged = with_checksum(replaced(&saved, values, 4, &value.to_ne_bytes()));
        let error = PackedWeights::<f32>::from_bytes(&forged).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidPacked);
        let message = format!("packed weights: not all are finite, and their layout is {}", packed.layout());
        assert_eq!(error.to_string(), message);
    }
}

/// Layers of every kind of layout, and with taps that see only padding.
fn layers() -> Vec<Layer> {
    let mut layers = vec![
        layer(Conv::new([9, 5, 3, 3]).pads([1; 4]), [1, 5, 7, 8]),
        layer(Conv::new([9, 5, 1, 1]), [1, 5, 7, 5]),
        layer(Conv::new([6, 1, 3, 3]).group(6).pads([1; 4]), [1, 6, 5, 6]),
        layer(Conv::new([32, 1, 3, 3]).group(32).strides([2, 2]).pads([1; 4]), [1, 32, 3, 3]),
        layer(Conv::new([32, 1, 5, 5]).group(32), [1, 32, 5, 5]),
        layer(Conv::new([4, 5, 3]).group(2).strides([2]).pads([2, 3]), [2, 10, 18]),
        layer(Conv::new([4, 3, 3, 3]).pads([9; 4]).dilations([9, 9]), [1, 3, 5, 5]),
        layer(ConvTranspose::new([3, 4, 4, 4]).strides([2, 2]).pads([1; 4]), [1, 3, 5, 6]),
        layer(ConvTranspose::new([6, 1, 4, 4]).group(6).strides([2, 2]).pads([1; 4]), [1, 6, 5, 6]),
        layer(ConvTranspose::new([4, 3, 3]).strides([3]), [1, 4, 9]),
    ];
    if !is_short() {
        layers.extend([
            layer(Conv::new([3, 4, 3, 2, 3]).pads([1; 6]), [1, 4, 3, 4, 5]),
            layer(ConvTranspose::new([40, 18, 3]).strides([3]), [1, 40, 9]),
        ]);
    }
    layers
}

/// Names that may stand in a description.
fn names() -> Vec<Vec<String>> {
    vec![
        Isa::ALL.iter().map(ToString::to_string).collect(),
        [Op::Conv, Op::ConvTranspose].iter().map(ToString::to_string).collect(),
        [DType::F32, DType::F64, DType::F16, DType::BF16].iter().map(ToString::to_string).collect(),
    ]
}

/// Descriptions that differ in one place: each byte by some values, by numbers of several bytes, by
/// none and by two; each name by all others of its kind.
fn mutants(description: &[u8], names: &[Vec<String>]) -> Vec<Vec<u8>> {
    const BYTES: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 0x7f, 0xff];
    let large = [128, 1 << 16, 1 << 31, u64::from(u32::MAX), 1 << 33, 1 << 58, u64::MAX].map(varint);
    let mut mutants = Vec::new();
    for at in 0..description.len() {
        let near = [description[at].wrapping_add(1), description[at].wrapping_sub(1)];
        let single = BYTES.into_iter().chain(near).map(|byte| vec![byte]);
        let several = [vec![], vec![description[at]; 2], vec![0, description[at]], vec![description[at], 0]];
        for by in single.chain(large.clone()).chain(several) {
            mutants.push(replaced(description, at, 1, &by));
        }
    }
    for kind in names {
        for (from, to) in kind.iter().flat_map(|from| kind.iter().map(move |to| (name(from), name(to)))) {
            mutants.extend(places(description, &from).map(|at| replaced(description, at, from.len(), &to)));
        }
    }
    mutants.retain(|mutant| mutant != description);
    mutants
}

/// Whatever a description says, loading, planning and running end in an error or in a result.
#[test]
fn every_field_of_a_description_is_checked() {
    fn check<T: Scalar>(names: &[Vec<String>]) {
        let (mut accepted, mut layouts) = (0, BTreeSet::new());
        for layer in layers() {
            for combination in Combination::distinct() {
                let Some(plan) = combination.plan::<T>(&layer, |planner| planner) else { continue };
                layouts.insert(plan.explain().layout().replace(|c: char| c.is_ascii_digit(), ""));
                let saved = saved::<T>(&layer, &combination.planner());
                assert!(runs::<T>(&layer, combination.planner(), &saved));
                for mutant in mutants(description(&saved), names) {
                    let _context = Context(|| format!("{combination}, {}: {layer}: {mutant:?}", T::DTYPE));
                    let forged = with_description(&saved, &mutant);
                    accepted += usize::from(runs::<T>(&layer, Planner::new(), &forged));
                }
            }
        }
        // Panels of another height, for example, are as good as those that were packed.
        assert!(accepted > 0);
        let kinds = [
            ["as given", ""],
            ["panels of  row", ""],
            ["panels of  row", ", blocks of  channel"],
            ["panels of  channel", ", blocks of  channel"],
            ["panels of  and  row", ""],
            [" channel", " in panels of  and  row"],
            ["phases, ", " in panels of "],
            ["values x for x outputs", ""],
            ["taps along rows", ""],
            ["taps along channels", ""],
            ["panels of [", "] channels"],
        ];
        for [begin, rest] in kinds {
            let is_kind = |layout: &String| layout.starts_with(begin) && layout.contains(rest);
            assert!(layouts.iter().any(is_kind), "no weights are {begin}...{rest}: {layouts:?}");
        }
    }
    let names = names();
    check::<f32>(&names);
    check::<f64>(&names);
    check::<f16>(&names);
    check::<bf16>(&names);
}
