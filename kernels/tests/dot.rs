//! Checks the kernels of bytes on every ISA of this CPU against loops by their definition.

use std::panic::{AssertUnwindSafe, catch_unwind};

use convoke_kernels::dot::{
    AddedBytes, Byte, BytePixels, DotKernels, Output, Requantise, Unit, four, kept_sums, look_up, pair,
};
use convoke_kernels::{Dest, Isa, PixelColumns, PixelInput, PixelKernel, PixelRows, PixelTaps, dot_kernels};
use half::f16;

/// Channels of a block in units: none, one, an odd number, and many.
const UNITS: [usize; 4] = [0, 1, 7, 70];
const TAPS: usize = 3;
const TILES: usize = 2;
/// Pixels of X.
const PLACES: usize = 17;

/// Random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn on_every_isa(mut check: impl FnMut(&'static DotKernels)) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        check(dot_kernels(isa, Unit::Pairs).expect("every ISA has kernels of pairs"));
        let bytes = dot_kernels(isa, Unit::Bytes);
        assert_eq!(bytes.is_some(), isa.has_byte_products(), "{isa}");
        bytes.into_iter().for_each(&mut check);
    }
}

/// Random units, the extremes of their values among them.
fn units(numbers: &mut Numbers, len: usize) -> Vec<i32> {
    let mut value = || match numbers.below(6) {
        0 => i32::MIN,
        1 => i32::MAX,
        _ => (numbers.below(1 << 16) | numbers.below(1 << 16) << 16) as i32,
    };
    (0..len).map(|_| value()).collect()
}

/// The products of a unit of X and a unit of W. Those of pairs fit 32 bits, as their values are differences of bytes.
fn products(unit: Unit, x: i32, w: i32) -> i64 {
    match unit {
        Unit::Bytes => {
            x.to_le_bytes().iter().zip(w.to_le_bytes()).map(|(x, w)| i64::from(*x) * i64::from(w as i8)).sum()
        }
        Unit::Pairs => {
            let halves = |unit: i32| [i64::from(unit as i16), i64::from(unit >> 16)];
            halves(x).iter().zip(halves(w)).map(|(x, w)| x * w).sum()
        }
    }
}

/// Random units as packing makes them.
fn operands(numbers: &mut Numbers, unit: Unit, len: usize) -> Vec<i32> {
    let mut difference = || numbers.below(511) as i32 - 255;
    match unit {
        Unit::Bytes => units(numbers, len),
        Unit::Pairs => (0..len).map(|_| pair([difference(), difference()])).collect(),
    }
}

#[test]
fn tiles_are_sums_of_products() {
    on_every_isa(|kernels| {
        let (unit, numbers) = (kernels.unit(), &mut Numbers(7));
        for (kernel, units) in kernels.widths().flatten().flat_map(|kernel| UNITS.map(|units| (kernel, units))) {
            let (mr, nr) = (kernel.mr(), kernel.nr());
            // Units begin with any byte of X.
            let gap = 3;
            let x_pixel = units * size_of::<i32>() + gap;
            let x: Vec<Vec<i32>> = (0..PLACES).map(|_| operands(numbers, unit, units)).collect();
            let bytes: Vec<u8> = x.iter().flat_map(|x| in_memory(unit, x).into_iter().chain([77; 3])).collect();
            let w = operands(numbers, unit, TAPS * units * nr);
            let zeros = operands(numbers, unit, units);
            let table: Vec<u32> = (0..TILES * TAPS)
                .flat_map(|tap| {
                    let mut place = || match numbers.below(4) {
                        0 => PixelTaps::ZEROS,
                        _ => (numbers.below(PLACES as u64) as usize * x_pixel) as u32,
                    };
                    let places: Vec<u32> = (0..mr).map(|_| place()).collect();
                    [(tap % TAPS) as u32].into_iter().chain(places)
                })
                .collect();
            let mut arranged = w.clone();
            kernels.arrange(&mut arranged);
            let mut tile = sums_of(numbers, TILES * mr * nr);
            let before = tile.clone();
            for accumulate in [false, true] {
                tile.copy_from_slice(&before);
                let taps = PixelTaps::new(&table, TILES, mr);
                let zero_bytes = in_memory(unit, &zeros);
                let input = PixelInput { x: &bytes, zeros: &zero_bytes, channels: units, taps };
                kernel.sums(&input, &arranged, &mut tile, accumulate);
                for (i, sum) in tile.iter().enumerate() {
                    let (pixel, n) = (i / nr, i % nr);
                    let mut expected = if accumulate { i64::from(before[i]) } else { 0 };
                    for tap in table.chunks(1 + mr).skip(pixel / mr * TAPS).take(TAPS) {
                        let place = tap[1 + pixel % mr];
                        let x = if place < PixelTaps::ZEROS { &x[place as usize / x_pixel] } else { &zeros };
                        let w = |k: usize| w[(tap[0] as usize * units + k) * nr + n];
                        expected += x.iter().enumerate().map(|(k, x)| products(unit, *x, w(k))).sum::<i64>();
                    }
                    assert_eq!(*sum, expected as i32, "{kernel:?}, {units} units, sum {i}");
                }
                let call = (kernel, &input, &arranged[..]);
                for channels in [nr, nr - 1, 1] {
                    let (sums, tile) = ((&tile[..], nr), (&before[..], accumulate));
                    check_finished::<u8>(kernels, call, channels, sums, tile);
                    check_finished::<i8>(kernels, call, channels, sums, tile);
                    check_finished::<f32>(kernels, call, channels, sums, tile);
                }
            }
        }
    });
}

/// Checks that tiles are finished as their sums would be.
fn check_finished<O: Output + Default + PartialEq>(
    kernels: &DotKernels,
    call: (&PixelKernel<i32>, &PixelInput<'_, u8>, &[i32]),
    channels: usize,
    (sums, nr): (&[i32], usize),
    (before, accumulate): (&[i32], bool),
) {
    let (pixels, ld) = (sums.len() / nr, channels + 3);
    let add: Vec<i32> = (0..channels as i32).map(|c| c * 1000 - 5000).collect();
    let scale: Vec<f32> = (0..channels).map(|c| if c % 2 == 0 { 0.5 } else { 0.0007 }).collect();
    let table = std::array::from_fn(|i| (i as u8).wrapping_mul(77));
    for (zero, table) in [(3, None), (-7, Some(&table))] {
        let requantise = Requantise { add: &add, scale: &scale, zero, by_rows: false, residual: None, table };
        let [mut y, mut expected] = [(); 2].map(|()| vec![O::default(); pixels * ld]);
        kernels.finish(&requantise, (sums, nr), (pixels, channels), (&mut Dest::from_slice(&mut expected), ld));
        let mut tile = before.to_vec();
        let to = (&mut Dest::from_slice(&mut y), ld);
        kernels.finish_pixels(call, (&mut tile, accumulate), (&requantise, channels), to);
        assert!(y == expected, "{:?}, {channels} channels: {y:?} for {expected:?}", call.0);
    }
}

/// The values of units, as X has them.
fn in_memory(unit: Unit, units: &[i32]) -> Vec<u8> {
    let of_unit = |bits: &i32| match unit {
        Unit::Bytes => bits.to_le_bytes(),
        Unit::Pairs => bits.to_ne_bytes(),
    };
    units.iter().flat_map(of_unit).collect()
}

/// Sums of earlier blocks.
fn sums_of(numbers: &mut Numbers, len: usize) -> Vec<i32> {
    (0..len).map(|_| numbers.below(1 << 20) as i32 - (1 << 19)).collect()
}

#[test]
fn depthwise_tiles_are_sums_of_products() {
    on_every_isa(|kernels| {
        let numbers = &mut Numbers(8);
        for (kernel, channels) in kernels.depthwise().iter().flat_map(|kernel| [1, 8, 21, 70].map(|c| (kernel, c))) {
            for (taps, advance, from) in
                [(1, 1, -1), (3, 1, -1), (3, 2, -1), (5, 1, -1), (5, 2, 0), (4, 1, -1), (2, 3, -1), (3, 1, 0)]
            {
                // The weights of taps in their order, or in the opposite one as for ConvTranspose.
                // Some tiles read no column beside X.
                let (mr, width, is_reversed) = (kernel.mr(), if from == 0 { 40 } else { 9 }, taps + advance > 5);
                let (first, step) = if is_reversed { (taps - 1, -1) } else { (0, 1) };
                let x_pixel = channels + numbers.below(3) as usize;
                let x = operands(numbers, kernels.unit(), width * x_pixel);
                // Behind the row of X comes one of padding.
                let w = operands(numbers, kernels.unit(), 2 * taps * channels);
                let (zeros, no_bias) = (operands(numbers, kernels.unit(), channels), vec![0; channels]);
                let columns =
                    PixelColumns { first: from, advance, taps, spacing: 1, step, count: width, pixel: x_pixel };
                let rows = PixelRows {
                    x: &x,
                    zeros: &zeros,
                    channels,
                    rows: 1,
                    width: mr,
                    tiles: 1,
                    from: 0,
                    numbers: &[first as u32, (taps + first) as u32],
                    places: &[0, PixelTaps::ZEROS],
                    columns,
                    prefetches_next: false,
                };
                let mut sums = vec![77; mr * channels];
                kernel.run(&rows, (&w, 1), &mut Dest::from_slice(&mut sums), channels, &kept_sums(&no_bias));
                for (i, sum) in sums.iter().enumerate() {
                    let (pixel, c) = ((i / channels) as isize, i % channels);
                    let product = |tap: usize| {
                        let column = usize::try_from(pixel * advance as isize + tap as isize + from);
                        let column = column.ok().filter(|column| *column < width);
                        let x = column.map_or(zeros[c], |column| x[column * x_pixel + c]);
                        let place = (first as isize + step * tap as isize) as usize * channels + c;
                        products(kernels.unit(), x, w[place])
                            + products(kernels.unit(), zeros[c], w[taps * channels + place])
                    };
                    let expected: i64 = (0..taps).map(product).sum();
                    assert_eq!(*sum, expected as i32, "{kernel:?}, {channels} channels, {taps} taps, sum {i}");
                }
            }
        }
    });
}

#[test]
fn bytes_are_looked_up_whatever_their_number() {
    let table: [u8; 256] = std::array::from_fn(|i| (i as u8).wrapping_mul(77).wrapping_add(5));
    for isa in Isa::ALL {
        for len in [0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000] {
            let x: Vec<u8> = (0..len).map(|i: usize| (i * 151 + len) as u8).collect();
            let mut y = x.clone();
            look_up(isa, &table, &mut y);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == table[usize::from(*x)]), "{isa}, {len} bytes");
        }
    }
}

fn check_units<X: Byte>(of: impl Fn(u64) -> X) {
    on_every_isa(|kernels| {
        let numbers = &mut Numbers(9);
        let unit = kernels.unit();
        let zero = of(numbers.below(256));
        let unit_of = |values: &dyn Fn(usize) -> Option<X>, missing: u8| match unit {
            Unit::Pairs => pair([0, 1].map(|i| values(i).map_or(0, |x| x.value() - zero.value()))),
            Unit::Bytes => four([0, 1, 2, 3].map(|i| values(i).map_or(missing, X::unsigned))),
        };
        for channels in [1_usize, 2, 3, 4, 5, 6, 7, 8, 9, 40] {
            let (pixels, of_unit) = (37, unit.values());
            let len = channels * unit.value_bytes();
            for (gap, room) in [(0, 0), (3, 2)] {
                let (x_pixel, pixel) = (channels + gap, len + room);
                let x: Vec<X> = (0..pixels * x_pixel).map(|_| of(numbers.below(256))).collect();
                let mut to = vec![77; pixels * pixel];
                let input = BytePixels { x: &x, pixel: x_pixel, channels };
                kernels.values_of_pixels(&input, zero, (&mut to, pixel));
                for (p, to) in to.chunks(pixel).enumerate() {
                    let values = x[p * x_pixel..][..channels].iter().flat_map(|x| match unit {
                        Unit::Pairs => ((x.value() - zero.value()) as i16).to_ne_bytes().to_vec(),
                        Unit::Bytes => vec![x.unsigned()],
                    });
                    assert_eq!(to[..len], values.collect::<Vec<u8>>(), "{kernels:?}, {channels} channels, pixel {p}");
                    assert!(to[len..].iter().all(|byte| *byte == 77), "{kernels:?}: the gap stays");
                }
                let rows: Vec<Vec<X>> =
                    (0..channels).map(|c| (0..pixels).map(|p| x[p * x_pixel + c]).collect()).collect();
                for u in 0..channels.div_ceil(of_unit) {
                    let mut to = vec![77; pixels];
                    let row = |i: usize| rows.get(u * of_unit + i).filter(|_| i < of_unit).map(|row| &row[..]);
                    kernels.units_of_rows(([0, 1, 2, 3].map(row), 1, 1), zero, (&mut to, 1));
                    let value = |p: usize, i: usize| row(i).map(|row| row[p]);
                    // A row that there is not has the zero point.
                    let units: Vec<i32> = (0..pixels).map(|p| unit_of(&|i| value(p, i), zero.unsigned())).collect();
                    assert_eq!(to, units, "{kernels:?}, {unit}, {channels} channels, rows of unit {u}");
                }
            }
            // Neighbours in rows whose pixels lie apart, and whose values are rows of the same pixels.
            for (pixels, gap, room) in [(37, 0, 0), (1, 3, 2), (5, 3, 2)] {
                let (channels, of_row) = (channels * 5, pixels * (channels * 5 + gap));
                let rows: Vec<Vec<X>> =
                    (0..of_unit).map(|_| (0..of_row).map(|_| of(numbers.below(256))).collect()).collect();
                let (x_pixel, pixel) = (channels + gap, channels + room);
                let mut to = vec![77; pixels * pixel];
                let row = |i: usize| rows.get(i).map(|row| &row[..]);
                kernels.units_of_rows(([0, 1, 2, 3].map(row), x_pixel, channels), zero, (&mut to, pixel));
                for (i, to) in to.iter().enumerate() {
                    let (p, c) = (i / pixel, i % pixel);
                    let value = |i: usize| row(i).map(|row| row[p * x_pixel + c]);
                    let expected = if c < channels { unit_of(&value, zero.unsigned()) } else { 77 };
                    assert_eq!(*to, expected, "{kernels:?}, {unit}, {channels} channels, pixel {p}, channel {c}");
                }
            }
            if channels <= of_unit {
                let x: Vec<X> = (0..pixels * channels).map(|_| of(numbers.below(256))).collect();
                let mut to = vec![77; pixels];
                kernels.units_of_groups((&x, channels), zero, &mut to);
                let value = |g: usize, i: usize| (i < channels).then(|| x[g * channels + i]);
                let units: Vec<i32> = (0..pixels).map(|g| unit_of(&|i| value(g, i), 0)).collect();
                assert_eq!(to, units, "{kernels:?}, {unit}, groups of {channels}");
            }
        }
    });
}

#[test]
fn units_have_the_values_of_their_channels() {
    check_units(|number| number as u8);
    check_units(|number| number as u8 as i8);
}

/// The zero point and the scale of a residual, and the value of its bits.
type TestedResidual = (i32, f32, fn(u8) -> i32);

fn check_requantised<O: Output + PartialEq>(
    (guard, zero): (O, i32),
    table: Option<&[u8; 256]>,
    residual: Option<TestedResidual>,
    expected: impl Fn(i32, f32, f32) -> O,
) {
    on_every_isa(|kernels| {
        let numbers = &mut Numbers(10);
        for (rows, len, by_rows) in [
            (1, 1, false),
            (6, 7, false),
            (5, 15, false),
            (3, 40, false),
            (3, 70, false),
            (3, 40, true),
            (7, 5, true),
            (2, 0, false),
        ] {
            let (sums_ld, ld, channels) = (len + 3, len + 2, if by_rows { rows } else { len });
            // Halves, which are rounded to even, and sums far outside of a byte.
            let sums: Vec<i32> = (0..rows * sums_ld)
                .map(|i| {
                    if i % 5 == 0 {
                        numbers.below(1 << 30) as i32 - (1 << 29)
                    } else {
                        numbers.below(1200) as i32 - 600
                    }
                })
                .collect();
            let add: Vec<i32> = (0..channels).map(|_| numbers.below(9) as i32 - 4).collect();
            let scale: Vec<f32> = (0..channels).map(|c| if c % 2 == 0 { 0.5 } else { 0.017 }).collect();
            let mut y = vec![guard; rows * ld];
            // Neighbours, or not.
            let step = 1 + 2 * (rows % 2);
            let added_ld = len * step + 1;
            let bytes: Vec<u8> = (0..rows * added_ld).map(|_| numbers.below(256) as u8).collect();
            let addend =
                residual.map(|(zero, scale, _)| AddedBytes { values: &bytes, ld: added_ld, step, zero, scale });
            let requantise = Requantise { add: &add, scale: &scale, zero, by_rows, residual: addend, table };
            kernels.finish(&requantise, (&sums, sums_ld), (rows, len), (&mut Dest::from_slice(&mut y), ld));
            for (i, y) in y.iter().enumerate() {
                let (row, column) = (i / ld, i % ld);
                let c = if by_rows { row } else { column };
                let addend = |(zero, scale, value): TestedResidual| {
                    (value(bytes[row * added_ld + column * step]) - zero) as f32 * scale
                };
                let expected = if column < len {
                    expected(sums[row * sums_ld + column] + add[c], scale[c], residual.map_or(0.0, addend))
                } else {
                    guard
                };
                assert!(*y == expected, "{kernels:?}: {rows} x {len}, element {i} is {y:?}, not {expected:?}");
            }
        }
    });
}

#[test]
fn sums_are_requantised_by_the_definition() {
    // `as` saturates.
    let of_u8 = |sum: i32, scale: f32, addend: f32| ((sum as f32 * scale + addend).round_ties_even() + 13.0) as u8;
    let of_i8 = |sum: i32, scale: f32, addend: f32| ((sum as f32 * scale + addend).round_ties_even() - 27.0) as i8;
    check_requantised((99_u8, 13), None, None, of_u8);
    check_requantised((99_i8, -27), None, None, of_i8);
    check_requantised((99_i32, 0), None, None, |sum, _, _| sum);
    check_requantised((99_f32, 0), None, None, |sum, scale, _| sum as f32 * scale);
    // Large sums are infinite.
    check_requantised((f16::MAX, 0), None, None, |sum, scale, _| f16::from_f64(f64::from(sum as f32 * scale)));
    let residuals: [TestedResidual; 2] = [(40, 0.25, i32::from), (-3, 1.7, |bits| i32::from(bits as i8))];
    check_requantised((99_u8, 13), None, Some(residuals[0]), of_u8);
    check_requantised((99_i8, -27), None, Some(residuals[1]), of_i8);
    check_requantised((99_i32, 0), None, Some(residuals[1]), |sum, _, _| sum);
    // A permutation, so that each entry is told from all others.
    let table: [u8; 256] = std::array::from_fn(|i| (i as u8).wrapping_mul(77).wrapping_add(5));
    let entry = |bits: u8| table[usize::from(bits)];
    check_requantised((99_u8, 13), Some(&table), None, |sum, scale, _| entry(of_u8(sum, scale, 0.0)));
    check_requantised((99_i8, -27), Some(&table), None, |sum, scale, _| entry(of_i8(sum, scale, 0.0) as u8) as i8);
    check_requantised((99_i8, -27), Some(&table), Some(residuals[1]), |sum, scale, addend| {
        entry(of_i8(sum, scale, addend) as u8) as i8
    });
    check_requantised((99_i32, 0), Some(&table), None, |sum, _, _| sum);
}

/// The message by which a call is refused.
fn refusal(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("refused");
    let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    message.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic has a message")
}

#[test]
fn slices_that_are_too_short_are_refused() {
    on_every_isa(|kernels| {
        let requantise =
            Requantise { add: &[0; 4], scale: &[1.0; 4], zero: 0, by_rows: false, residual: None, table: None };
        let added = AddedBytes { values: &[0; 8], ld: 5, step: 1, zero: 0, scale: 1.0 };
        let short = Requantise { residual: Some(added), ..requantise };
        let message =
            refusal(|| kernels.finish(&short, (&[0; 8], 4), (2, 4), (&mut Dest::from_slice(&mut [0_u8; 8]), 4)));
        assert_eq!(message, "the residual is too short");
        let finish = |sums: usize, y: usize, (rows, len): (usize, usize), ld: usize| {
            let mut y = vec![0_u8; y];
            refusal(|| {
                let sums = vec![0; sums];
                kernels.finish(&requantise, (&sums, 4), (rows, len), (&mut Dest::from_slice(&mut y), ld));
            })
        };
        assert_eq!(finish(7, 8, (2, 4), 4), "the sums are too short");
        assert_eq!(finish(8, 7, (2, 4), 4), "the destination is too short");
        assert_eq!(finish(8, 8, (2, 4), 3), "rows of Y overlap");
        assert_eq!(finish(9, 9, (1, 5), 5), "too few channels");
        let width = kernels.unit().value_bytes();
        let pixels = |x: usize, pixel: usize, channels: usize, (bytes, ld): (usize, usize)| {
            let (x, mut to) = (vec![0_u8; x], vec![0; bytes]);
            refusal(|| {
                let x = BytePixels { x: &x, pixel, channels };
                kernels.values_of_pixels(&x, 0, (&mut to, ld));
            })
        };
        assert_eq!(pixels(11, 4, 4, (3 * 8, 8)), "X is too short");
        assert_eq!(pixels(100, 4, 4, (18, 8)), "the values end within a pixel");
        assert_eq!(pixels(100, 9, 9, (8 * width, 8 * width)), "the values do not fit a pixel");
        assert_eq!(pixels(100, 9, 0, (6, 0)), "the values do not fit a pixel");
        let groups = |x: usize, group: usize, units: usize| {
            refusal(|| kernels.units_of_groups((&vec![0_u8; x], group), 0, &mut vec![0; units]))
        };
        assert_eq!(groups(100, 0, 1), "the groups are no units");
        assert_eq!(groups(100, kernels.unit().values() + 1, 1), "the groups are no units");
        assert_eq!(groups(7, 2, 4), "X is too short");
        let rows = |channels: usize, (units, pixel): (usize, usize)| {
            refusal(|| {
                kernels.units_of_rows(([Some(&[0_u8; 9][..]); 4], 4, channels), 0, (&mut vec![0; units], pixel));
            })
        };
        assert_eq!(rows(5, (4, 4)), "the units do not fit a pixel");
        assert_eq!(rows(4, (9, 4)), "the units end within a pixel");
        assert!(rows(4, (12, 4)).contains("out of range"));
        let kernel = &kernels.widths().next().unwrap()[0];
        let finish = |kernel: &PixelKernel<i32>, channels: usize, (y, ld): (usize, usize)| {
            let (mut tile, w, mut y) = (vec![0; 64], vec![0; 64], vec![0_u8; y]);
            refusal(|| {
                let x = PixelInput { x: &[0; 4], zeros: &[], channels: 1, taps: PixelTaps::new(&[0, 0], 1, 1) };
                let y = (&mut Dest::from_slice(&mut y), ld);
                kernels.finish_pixels((kernel, &x, &w), (&mut tile, false), (&requantise, channels), y);
            })
        };
        assert_eq!(finish(kernel, kernel.nr() + 1, (99, 99)), "channels of this tile");
        assert_eq!(finish(kernel, 0, (99, 99)), "channels of this tile");
        assert_eq!(finish(kernel, 4, (3, 4)), "the destination is too short");
        if kernel.nr() > requantise.add.len() {
            assert_eq!(finish(kernel, kernel.nr(), (99, 99)), "too few channels");
        }
        let other = dot_kernels(Isa::Portable, Unit::Pairs).unwrap().widths().next().unwrap();
        if kernels.widths().all(|widths| !std::ptr::eq(widths, other)) {
            assert_eq!(finish(&other[0], 1, (99, 99)), "the kernel is another ISA's");
        }
    });
}
