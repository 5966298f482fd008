//! Saved weights with a forged description: the checksum is right, and so are the places of the values,
//! so that the checks of each field are reached. Whatever is accepted can be run.

use std::ops::Range;

use arbitrary::{Result, Unstructured};
use convoke::{PackedWeights, Planner, Run, Workspace, bf16, f16};
use xxhash_rust::xxh3::xxh3_64;

use crate::layers::Layer;
use crate::run::{Number, Operands, Setting, case};
use crate::with_bytes;

/// The parts of the form that the crate documents: the checksum, and the bytes of the description,
/// which begins behind them.
const SUM: Range<usize> = 8..16;
const DESCRIBED: Range<usize> = 20..24;

/// Saves the weights of a layer, forges their description, and loads, plans and runs.
pub fn check(data: &[u8]) {
    with_bytes(data, |u| {
        let Some((layer, setting)) = case(u)? else { return Ok(()) };
        match u.int_in_range(0..=3)? {
            0 => check_type::<f32>(&layer, &setting, u),
            1 => check_type::<f64>(&layer, &setting, u),
            2 => check_type::<f16>(&layer, &setting, u),
            _ => check_type::<bf16>(&layer, &setting, u),
        }
    });
}

fn check_type<T: Number>(layer: &Layer, setting: &Setting, u: &mut Unstructured<'_>) -> Result<()> {
    let Ok(plan) = setting.planner().plan::<T>(layer.operator.clone(), &layer.x_shape) else { return Ok(()) };
    let packed = Operands::new(plan.geometry(), setting).pack(&plan);
    let saved = packed.to_bytes().expect("memory suffices");
    let described = DESCRIBED.end..DESCRIBED.end + described(&saved);
    let mut description = saved[described.clone()].to_vec();
    for _ in 0..u.int_in_range(1..=4)? {
        edit(&mut description, u)?;
    }
    let mut forged = [&saved[..DESCRIBED.end], &description].concat();
    forged.resize(forged.len().next_multiple_of(64), 0);
    forged.extend(&saved[described.end.next_multiple_of(64)..]);
    forged[DESCRIBED].copy_from_slice(&(description.len() as u32).to_ne_bytes());
    let sum = xxh3_64(&forged[SUM.end..]).to_ne_bytes();
    forged[SUM].copy_from_slice(&sum);

    let Ok(loaded) = PackedWeights::<T>::from_bytes(&forged) else { return Ok(()) };
    let other = layer.resized(u)?;
    for layer in [Some(layer), other.as_ref()].into_iter().flatten() {
        for planner in [setting.planner().clone(), Planner::new()] {
            run(layer, planner, &loaded);
        }
    }
    Ok(())
}

fn described(saved: &[u8]) -> usize {
    u32::from_ne_bytes(saved[DESCRIBED].try_into().expect("four bytes")) as usize
}

/// Changes one place of a description, whose numbers have seven bits in each byte.
fn edit(description: &mut Vec<u8>, u: &mut Unstructured<'_>) -> Result<()> {
    if description.is_empty() {
        return Ok(());
    }
    let at = u.choose_index(description.len())?;
    match u.int_in_range(0..=5)? {
        0 => description[at] = description[at].wrapping_add(u.int_in_range(1..=3)?),
        1 => description[at] = description[at].wrapping_sub(u.int_in_range(1..=3)?),
        2 => description[at] = u.arbitrary()?,
        3 => description.insert(at, u.arbitrary()?),
        4 => drop(description.remove(at)),
        _ => {
            let mut number: u64 = u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?;
            let mut bytes = Vec::new();
            while number > 0x7f {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
            description.splice(at..=at, bytes);
        }
    }
    Ok(())
}

/// Plans and runs. Each element of Y is written.
fn run<T: Number>(layer: &Layer, planner: Planner, loaded: &PackedWeights<T>) {
    let Ok(plan) = planner.packed_for(loaded).plan::<T>(layer.operator.clone(), &layer.x_shape) else { return };
    let x = vec![T::of(1.0); plan.geometry().input_len()];
    let mut y = vec![T::of(f64::NAN); plan.geometry().output_len()];
    let workspace = &mut Workspace::for_plan(&plan).expect("memory suffices");
    plan.run(Run::new(&x, loaded, &mut y).workspace(workspace)).expect("the plan was made for the weights");
    assert!(y.iter().all(|y| !y.value().is_nan()), "{plan:?}");
}
