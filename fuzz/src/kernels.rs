//! The kernels' public calls with slices of any length: they are refused by a panic, or stay within
//! the slices. The sanitizer sees any access beyond them.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use arbitrary::{Result, Unstructured};
use convoke::kernels::stream::{self, Activation, Storage};
use convoke::kernels::{
    Ahead, Column, Dest, Epilogue, Isa, Real, Residual, RowOffsets, RowOffsetsRef, StoreMap, channel_kernels,
    spatial_kernels,
};
use convoke::{bf16, f16};

use crate::with_bytes;

/// One call, of which a panic is an answer.
pub fn check(data: &[u8]) {
    // libFuzzer's hook ends the process at any panic. This one does where arithmetic overflows,
    // which nobody would see in a release build.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            if info.payload_as_str().is_some_and(|message| message.starts_with("attempt to ")) {
                eprintln!("{info}");
                std::process::abort();
            }
        }));
    });
    with_bytes(data, |u| {
        let isas: Vec<_> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
        let isa = *u.choose(&isas)?;
        let call = AssertUnwindSafe(|| match u.int_in_range(0..=5)? {
            0 => streams::<f32>(u, isa),
            1 => streams::<f16>(u, isa),
            2 => streams::<bf16>(u, isa),
            3 => tiles::<f32>(u, isa),
            4 => tiles::<f64>(u, isa),
            _ => streams::<f64>(u, isa),
        });
        catch_unwind(call).unwrap_or(Ok(()))
    });
}

fn streams<T: Storage + Default>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let src = vec![T::default(); len(u)?];
    let mut sums = vec![T::Acc::ZERO; len(u)?];
    let near = len(u)?;
    match u.int_in_range(0..=6)? {
        0 => stream::widen(isa, &src, &mut sums),
        1 => stream::widen_strided(isa, &src, u.int_in_range(0..=9)?, &mut sums),
        2 => stream::narrow(isa, &sums, &mut vec![MaybeUninit::<T>::uninit(); near]),
        3 => stream::pack_rows(isa, &src, len(u)?, near, len(u)?, &mut sums),
        4 => {
            let from = sums.clone();
            stream::interleave(isa, &from, (u.int_in_range(0..=9)?, near), len(u)?, &mut sums);
        }
        5 => stream::add_assign(isa, &mut sums, &vec![T::Acc::ZERO; near]),
        _ => {
            let activations =
                [Activation::IDENTITY, Activation::LeakyRelu(T::Acc::ONE), Activation::HardSwish, Activation::Silu];
            let residual = if u.arbitrary()? { Some(&src[..]) } else { None };
            stream::epilogue::<T>(isa, *u.choose(&activations)?, T::Acc::ONE, residual, &mut sums);
        }
    }
    Ok(())
}

fn tiles<T: Real>(u: &mut Unstructured<'_>, isa: Isa) -> Result<()> {
    let depth = u.int_in_range(0..=20)?;
    // About as long as they should be, or off by a little.
    let near = |u: &mut Unstructured<'_>, len: usize| -> Result<Vec<T>> {
        let len = if u.ratio(3, 4)? { len } else { (len + u.int_in_range(0..=8)?).saturating_sub(4) };
        Ok(vec![T::ONE; len])
    };
    let offsets: Vec<u32> = (0..depth).map(|_| Ok(u.int_in_range(0..=200)?)).collect::<Result<_>>()?;
    let rows = RowOffsets::new(offsets);
    let rows: RowOffsetsRef<'_> = rows.rows(0..depth);
    let (lo, hi) = (T::NEG_INFINITY, T::INFINITY);
    let accumulate = u.arbitrary()?;
    if u.arbitrary()? {
        let kernel = u.choose(spatial_kernels::<T>(isa))?;
        let (mr, nr) = (kernel.mr(), kernel.nr());
        let (a, b, mut tile) = (near(u, depth * mr)?, near(u, 200 + nr)?, near(u, mr * nr)?);
        if u.arbitrary()? {
            kernel.partial(&a, &b, rows, Ahead::lines(&b), &mut tile, accumulate);
            return Ok(());
        }
        let mut columns = Vec::new();
        for _ in 0..kernel.nrv() {
            columns.push(Column { offset: u.int_in_range(0..=60)?, mask: u.arbitrary()? });
        }
        let map = StoreMap::new(columns, kernel.lanes());
        let ldy = u.int_in_range(0..=130)?;
        let (bias, residual) = (near(u, mr)?, near(u, map.end() + (mr - 1) * ldy)?);
        let mut y = near(u, map.end() + (mr - 1) * ldy)?;
        let residual = if u.arbitrary()? { residual[..].into() } else { Residual::NONE };
        let epilogue = Epilogue { bias: &bias, residual, lo, hi };
        let mut dest = Dest::from_slice(&mut y);
        kernel.finish(&a, &b, rows, Ahead::NONE, &mut tile, accumulate, &mut dest, ldy, &map, 0, &epilogue);
    } else {
        let kernel = u.choose(channel_kernels::<T>(isa))?;
        let (x, w) = (near(u, 200 + kernel.mr())?, near(u, depth * kernel.nr())?);
        let mut tile = near(u, kernel.mr() * kernel.nr())?;
        kernel.partial(&x, rows, &w, Ahead::NONE, &mut tile, accumulate);
    }
    Ok(())
}

fn len(u: &mut Unstructured<'_>) -> Result<usize> {
    u.int_in_range(0..=200)
}
