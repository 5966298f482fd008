//! The kernels' public calls with slices of any length: they are refused by a panic, or stay within
//! the slices. The sanitizer sees any access beyond them.

mod direct;

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind};
use std::sync::Once;

use arbitrary::{Result, Unstructured};
use convoke::{bf16, f16};
use convoke_kernels::activation::Activation;
use convoke_kernels::stream::{self, Storage};
use convoke_kernels::{
    ChannelKernel, Column, Dest, Epilogue, Isa, PixelColumns, PixelEpilogue, PixelInput, PixelRows, PixelTaps,
    Prefetch, Real, Residual, RowOffsets, RowOffsetsRef, StoreMap, activation_kernel, channel_kernels,
    pixel_depthwise_kernels, pixel_kernels, spatial_kernels, transpose,
};

use crate::with_bytes;

/// The files of the kernels' public calls. Their checks refuse a call by a panic.
const CHECKS: [&str; 11] = [
    "activation.rs",
    "depthwise.rs",
    "grouped.rs",
    "pixel.rs",
    "pixel_depthwise.rs",
    "stream.rs",
    "transpose.rs",
    "ukernel.rs",
    "depthwise_transposed.rs",
    "interleave.rs",
    "winograd.rs",
];

/// Whether a panic is a refusal. The code behind the checks may not panic, and neither may
/// arithmetic overflow, which nobody would see in a release build.
fn is_refusal(info: &PanicHookInfo<'_>) -> bool {
    let file = info.location().map_or("", Location::file).replace('\\', "/");
    let is_check = file.rsplit_once("kernels/src/").is_some_and(|(_, file)| CHECKS.contains(&file));
    is_check && !info.payload_as_str().is_some_and(|message| message.starts_with("attempt to "))
}

/// One call, of which a refusal is an answer.
pub fn check(data: &[u8]) {
    // libFuzzer's hook ends the process at any panic, this one at those that are no refusals.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            if !is_refusal(info) {
                eprintln!("{info}");
                std::process::abort();
            }
        }));
    });
    with_bytes(data, |u| {
        let isas: Vec<_> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
        let isa = *u.choose(&isas)?;
        let call = AssertUnwindSafe(|| match u.int_in_range(0..=9)? {
            0 => streams::<f32>(u, isa),
            1 => streams::<f16>(u, isa),
            2 => streams::<bf16>(u, isa),
            3 => tiles::<f32>(u, isa),
            4 => tiles::<f64>(u, isa),
            5 => without_gemm::<f32>(u, isa),
            6 => without_gemm::<f64>(u, isa),
            7 => pixels::<f32>(u, isa),
            8 => pixels::<f64>(u, isa),
            _ => streams::<f64>(u, isa),
        });
        catch_unwind(call).unwrap_or(Ok(()))
    });
}

fn streams<T: Storage + Default>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let src = vec![T::default(); len(u)?];
    let mut sums = vec![T::Acc::ZERO; len(u)?];
    let near = len(u)?;
    match u.int_in_range(0..=8)? {
        0 => stream::widen(isa, &src, &mut sums),
        1 => stream::widen_strided(isa, &src, u.int_in_range(0..=9)?, &mut sums),
        2 => stream::narrow(isa, &sums, &mut vec![MaybeUninit::<T>::uninit(); near]),
        3 => stream::pack_rows(isa, &src, len(u)?, near, len(u)?, &mut sums),
        4 => {
            let from = sums.clone();
            stream::interleave(isa, &from, (u.int_in_range(0..=9)?, near), len(u)?, &mut sums);
        }
        5 => stream::add_assign(isa, &mut sums, &vec![T::default(); near]),
        6 => {
            stream::add_bias(isa, T::Acc::ONE, &mut sums);
            stream::add_assign(isa, &mut sums, &src);
        }
        7 => {
            let (size, src_row, dst_row) = ((len(u)?, near), len(u)?, len(u)?);
            let mut narrow = vec![T::default(); len(u)?];
            stream::narrow_rows(isa, size, (&sums, src_row), (&mut Dest::from_slice(&mut narrow), dst_row));
        }
        _ => {
            let activations = [
                Activation::IDENTITY,
                Activation::LeakyRelu(T::Acc::ONE),
                Activation::HardSwish,
                Activation::Silu,
                Activation::Sigmoid,
                Activation::Tanh,
                Activation::Gelu,
                Activation::GeluTanh,
                Activation::Mish,
            ];
            let (activation, size, ld) = (*u.choose(&activations)?, (len(u)?, near), len(u)?);
            // SAFETY: the sums are initialised.
            unsafe { activation_kernel(isa, activation).rows(&mut Dest::from_slice(&mut sums), size, ld) };
        }
    }
    Ok(())
}

fn without_gemm<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    match u.int_in_range(0..=4)? {
        0 => direct::grouped::<T>(u, isa),
        1 => direct::depthwise_transposed::<T>(u, isa),
        2 => direct::interleave::<T>(u, isa),
        3 => direct::depthwise::<T>(u, isa),
        _ => direct::winograd::<T>(u, isa),
    }
}

/// About `len` ones, as many as there should be, or off by a little.
fn near<T: Real>(u: &mut Unstructured<'_>, len: usize) -> Result<Vec<T>> {
    let len = if u.ratio(3, 4)? { len } else { (len + u.int_in_range(0..=8)?).saturating_sub(4) };
    Ok(vec![T::ONE; len])
}

fn tiles<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let depth = u.int_in_range(0..=20)?;
    let offsets: Vec<u32> = (0..depth).map(|_| Ok(u.int_in_range(0..=200)?)).collect::<Result<_>>()?;
    let rows = RowOffsets::new(offsets);
    let koff: RowOffsetsRef<'_> = rows.rows(0..depth);
    let (lo, hi) = (T::NEG_INFINITY, T::INFINITY);
    let accumulate = u.arbitrary()?;
    if u.arbitrary()? {
        let kernel = u.choose(spatial_kernels::<T>(isa))?;
        let (mr, nr) = (kernel.mr(), kernel.nr());
        let panels = u.int_in_range(0..=3)?;
        let (a, b) = (near::<T>(u, depth * mr * panels.max(1))?, near(u, 200 + nr)?);
        let mut tile = near(u, mr * nr)?;
        if u.arbitrary()? {
            let bias = near(u, mr)?;
            if u.arbitrary()? {
                kernel.partial(&a, &b, koff, Prefetch::lines(&b), &mut tile, accumulate);
            } else {
                let epilogue = Epilogue { bias: &bias, residual: Residual::NONE, lo, hi };
                kernel.finish_tile(&a, &b, koff, Prefetch::lines(&b), &mut tile, accumulate, &epilogue);
            }
            return Ok(());
        }
        let mut columns = Vec::new();
        for _ in 0..kernel.nrv() {
            columns.push(Column { offset: u.int_in_range(0..=60)?, mask: u.arbitrary()? });
        }
        let map = StoreMap::new(columns, kernel.lanes());
        let (ldy, rows) = (u.int_in_range(0..=130)?, mr * panels.max(1));
        let (bias, residual) = (near(u, rows)?, near(u, map.end() + (rows - 1) * ldy)?);
        let mut y = near(u, map.end() + (rows - 1) * ldy)?;
        let residual = if u.arbitrary()? { residual[..].into() } else { Residual::NONE };
        let epilogue = Epilogue { bias: &bias, residual, lo, hi };
        let mut dest = Dest::from_slice(&mut y);
        match u.int_in_range(0..=1)? {
            0 => {
                let (prefetch, tile, y) = (Prefetch::rows(&b, ldy), &mut tile, &mut dest);
                kernel.activate_panels(
                    panels, &a, &b, koff, prefetch, tile, accumulate, y, ldy, &map, 0, &epilogue, None,
                );
            }
            _ => {
                let places: Vec<_> = (0..kernel.nrv()).map(|_| u.int_in_range(0..=60)).collect::<Result<_>>()?;
                kernel.finish_pairs(
                    &a,
                    &b,
                    koff,
                    Prefetch::NONE,
                    &mut tile,
                    accumulate,
                    &mut dest,
                    ldy,
                    &places,
                    &epilogue,
                );
            }
        }
        return Ok(());
    }
    let kernel: &ChannelKernel<T> = u.choose(channel_kernels::<T>(isa))?;
    let panels = u.int_in_range(0..=3)?;
    let (mr, nr) = (kernel.mr(), kernel.nr());
    let (x, w) = (near(u, 200 + mr)?, near(u, depth * nr * panels.max(1))?);
    let mut tile = near(u, mr * nr * panels.max(1))?;
    match u.int_in_range(0..=2)? {
        0 => kernel.partial(&x, koff, &w, Prefetch::lines(&x), &mut tile, accumulate),
        1 => kernel.panels(panels, &x, koff, &w, &mut tile, accumulate),
        _ => {
            let (channels, ldy) = (u.int_in_range(0..=nr + 1)?, u.int_in_range(0..=40)?);
            let len = channels.saturating_sub(1) * ldy + mr;
            let (bias, residual, mut y) = (near(u, channels)?, near(u, len)?, near(u, len)?);
            let residual = if u.arbitrary()? { residual[..].into() } else { Residual::NONE };
            let (epilogue, mut y) = (Epilogue { bias: &bias, residual, lo, hi }, Dest::from_slice(&mut y));
            kernel.finish(&x, koff, &w, Prefetch::NONE, &mut tile, accumulate, &mut y, ldy, channels, &epilogue);
        }
    }
    Ok(())
}

fn pixels<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    if u.ratio(1, 4)? {
        let (size, src_ld, dst_ld) = ((u.int_in_range(0..=40)?, u.int_in_range(0..=40)?), len(u)?, len(u)?);
        let end = |count: usize, ld: usize, len: usize| count.saturating_sub(1) * ld + len;
        let (src, mut dst) = (near::<T>(u, end(size.0, src_ld, size.1))?, near(u, end(size.1, dst_ld, size.0))?);
        transpose(isa, size, (&src, src_ld), (&mut dst, dst_ld));
        return Ok(());
    }
    if u.ratio(1, 3)? {
        let kernel = u.choose(pixel_depthwise_kernels::<T>(isa))?;
        let (mr, channels) = (kernel.mr(), u.int_in_range(0..=2 * kernel.nr() + 1)?);
        let (mut tiles, group) = (RowTiles::new(u, (mr, channels))?, *u.choose(&[1, 1, 2, 4, 8, 3])?);
        let (x, zeros) = (near(u, tiles.end_of_x(channels))?, near(u, channels)?);
        let (w, size) = (near(u, tiles.taps() * group * channels)?, (tiles.pixels(mr), channels));
        for _ in 0..u.int_in_range(0..=1)? {
            tiles.claim(u)?;
        }
        let columns = tiles.columns;
        if columns.taps > 1 << 16 && columns.step == 0 {
            // Such taps share their weights, and nothing else limits their number.
            return Ok(());
        }
        let RowTiles { rows, width, tiles, from, ref numbers, ref places, .. } = tiles;
        let (x, zeros, prefetches_next) = (&x[..], &zeros[..], u.arbitrary()?);
        let operand =
            PixelRows { x, zeros, channels, rows, width, tiles, from, numbers, places, columns, prefetches_next };
        return stored_pixels(u, isa, size, |y, ld, epilogue| kernel.run(&operand, (&w, group), y, ld, epilogue));
    }
    let kernel = u.choose(pixel_kernels::<T>(isa))?;
    let (mr, nr) = (kernel.mr(), kernel.nr());
    let (table, depth) = (PixelTable::new(u, mr)?, u.int_in_range(0..=20)?);
    let (x, zeros, w) = (near(u, 200 + depth)?, near(u, depth)?, near(u, 6 * depth * nr)?);
    let x = PixelInput { x: &x, zeros: &zeros, channels: depth, taps: table.taps(mr) };
    let pixels = table.pixels(mr);
    let (mut tile, accumulate) = (near(u, pixels * nr)?, u.arbitrary()?);
    if u.arbitrary()? {
        kernel.partial(&x, &w, &mut tile, accumulate);
        return Ok(());
    }
    let channels = u.int_in_range(0..=nr + 1)?;
    if u.arbitrary()? {
        let ld = u.int_in_range(0..=130)?;
        let end = channels.saturating_sub(1) * ld + pixels;
        let (bias, residual, mut y) = (near(u, channels)?, near(u, end)?, near(u, end)?);
        let residual = if u.arbitrary()? { residual[..].into() } else { Residual::NONE };
        let epilogue = Epilogue { bias: &bias, residual, lo: T::NEG_INFINITY, hi: T::INFINITY };
        let y = &mut Dest::from_slice(&mut y);
        kernel.finish_planes(&x, &w, &mut tile, accumulate, y, ld, channels, &epilogue);
        return Ok(());
    }
    stored_pixels(u, isa, (pixels, channels), |y, ld, epilogue| {
        kernel.finish(&x, &w, &mut tile, accumulate, y, ld, channels, epilogue);
    })
}

/// Where tiles of pixels read X. Tables may end within a tap, or claim what cannot be.
struct PixelTable {
    entries: Vec<u32>,
    tiles: usize,
    claimed: usize,
    repeats: usize,
    shift: usize,
}

impl PixelTable {
    fn new(u: &mut Unstructured<'_>, mr: usize) -> Result<Self> {
        let (tiles, taps) = (u.int_in_range(0..=3)?, u.int_in_range(0..=5)?);
        let mut entries = Vec::new();
        for _ in 0..tiles * taps {
            entries.push(u.int_in_range(0..=5)?);
            for _ in 0..mr {
                let place = u.int_in_range(0..=200)?;
                entries.push(if u.ratio(1, 4)? { PixelTaps::ZEROS + place } else { place });
            }
        }
        entries.truncate(entries.len() - usize::from(u.ratio(1, 32)?).min(entries.len()));
        let claimed = if u.ratio(1, 32)? { u.arbitrary()? } else { tiles };
        let repeats = if u.ratio(1, 32)? { u.arbitrary()? } else { u.int_in_range(1..=3)? };
        let shift = if u.ratio(1, 32)? { u.arbitrary()? } else { u.int_in_range(0..=30)? };
        Ok(Self { entries, tiles, claimed, repeats, shift })
    }

    fn taps(&self, mr: usize) -> PixelTaps<'_> {
        PixelTaps::new(&self.entries, self.claimed, mr).repeated(self.repeats, self.shift)
    }

    /// Pixels of all tiles, as far as slices are made for them.
    fn pixels(&self, mr: usize) -> usize {
        self.tiles * self.repeats.min(3) * mr
    }
}

/// Tiles of rows of pixels, and where they read X.
struct RowTiles {
    rows: usize,
    width: usize,
    tiles: usize,
    from: usize,
    numbers: Vec<u32>,
    places: Vec<u32>,
    columns: PixelColumns,
}

impl RowTiles {
    /// Tiles of `mr` pixels that mostly can be.
    fn new(u: &mut Unstructured<'_>, (mr, channels): (usize, usize)) -> Result<Self> {
        let (rows, tiles, from) = (u.int_in_range(0..=3)?, u.int_in_range(0..=3)?, u.int_in_range(0..=3)?);
        let columns = PixelColumns {
            first: u.int_in_range(-9..=9)?,
            advance: u.int_in_range(0..=4)?,
            taps: u.int_in_range(0..=8)?,
            spacing: u.int_in_range(0..=2)?,
            step: u.int_in_range(-2..=2)?,
            count: u.int_in_range(0..=30)?,
            pixel: channels + u.int_in_range(0..=3)?,
        };
        let (mut numbers, mut places) = (Vec::new(), Vec::new());
        for _ in 0..u.int_in_range(0..=3)? {
            // The last tap of a row mostly has a number too.
            let before = columns.step.min(0).unsigned_abs() * columns.taps;
            numbers.push((before + u.int_in_range(0..=5)?) as u32 - u32::from(before > 0 && u.ratio(1, 32)?));
        }
        for _ in 0..rows * numbers.len() {
            let place = u.int_in_range(0..=200)?;
            places.push(if u.ratio(1, 4)? { PixelTaps::ZEROS + place } else { place });
        }
        places.truncate(places.len() - usize::from(u.ratio(1, 32)?).min(places.len()));
        let width = (tiles * mr + u.int_in_range(0..=5)?).saturating_sub(usize::from(u.ratio(1, 32)?));
        Ok(Self { rows, width, tiles, from, numbers, places, columns })
    }

    /// The end of the furthest row of X.
    fn end_of_x(&self, channels: usize) -> usize {
        let furthest = self.places.iter().filter(|place| **place < PixelTaps::ZEROS).max();
        let end = self.columns.count.saturating_sub(1) * self.columns.pixel + channels;
        furthest.map_or(0, |furthest| *furthest as usize + end)
    }

    /// Taps up to that of the highest number.
    fn taps(&self) -> usize {
        let more = self.columns.step.max(0).unsigned_abs() * self.columns.taps.saturating_sub(1);
        self.numbers.iter().max().map_or(0, |number| *number as usize + more + 1)
    }

    /// Pixels of Y up to the last one.
    fn pixels(&self, mr: usize) -> usize {
        self.rows.saturating_sub(1) * self.width + self.from + self.tiles * mr
    }

    /// Puts any value in the place of one of the sizes.
    fn claim(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let columns = &mut self.columns;
        match u.int_in_range(0..=10)? {
            0 => self.rows = u.arbitrary()?,
            1 => self.width = u.arbitrary()?,
            2 => self.tiles = u.arbitrary()?,
            3 => self.from = u.arbitrary()?,
            4 => columns.first = u.arbitrary()?,
            5 => columns.advance = u.arbitrary()?,
            6 => columns.taps = u.arbitrary()?,
            7 => columns.spacing = u.arbitrary()?,
            8 => columns.step = u.arbitrary()?,
            9 => columns.count = u.arbitrary()?,
            _ => columns.pixel = u.arbitrary()?,
        }
        Ok(())
    }
}

/// Calls with a destination and an epilogue for about so many pixels and channels.
fn stored_pixels<T: Real>(
    u: &mut Unstructured<'_>,
    isa: Isa,
    (pixels, channels): (usize, usize),
    call: impl FnOnce(&mut Dest<'_, T>, usize, &PixelEpilogue<'_, T>),
) -> Result<()> {
    let (ld, residual_ld) = (u.int_in_range(0..=130)?, u.int_in_range(0..=130)?);
    let end = |ld: usize| pixels.saturating_sub(1) * ld + channels;
    let (bias, residual, mut y) = (near(u, channels)?, near(u, end(residual_ld))?, near(u, end(ld))?);
    let residual = if u.arbitrary()? { residual[..].into() } else { Residual::NONE };
    let activation = if u.arbitrary()? { Activation::IDENTITY } else { Activation::LeakyRelu(T::ONE) };
    let activation = activation_kernel(isa, activation);
    let epilogue = PixelEpilogue { bias: &bias, residual, residual_ld, activation };
    call(&mut Dest::from_slice(&mut y), ld, &epilogue);
    Ok(())
}

fn len(u: &mut Unstructured<'_>) -> Result<usize> {
    u.int_in_range(0..=200)
}
