//! Saved weights: what was written is read again, and anything else is an error or harmless.

use std::sync::Arc;

use convoke::{PackedWeights, Run, Workspace};
use xxhash_rust::xxh3::xxh3_64;

use crate::run::{Operands, case};
use crate::with_bytes;

/// Where the checksum is, and from where on it counts: the form that the crate documents.
const SUM: std::ops::Range<usize> = 8..16;

/// Bytes whose address is a multiple of 64.
struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let mut memory = vec![0; bytes.len() + 64];
        let begin = memory.as_ptr().align_offset(64);
        memory[begin..][..bytes.len()].copy_from_slice(bytes);
        Self { memory, begin, len: bytes.len() }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.begin..][..self.len]
    }
}

/// Saves the weights of a layer, changes some bytes, and loads them. Half of the time the checksum
/// is right after the change.
pub fn check(data: &[u8]) {
    with_bytes(data, |u| {
        let Some((layer, setting)) = case(u)? else { return Ok(()) };
        let Ok(plan) = setting.planner().plan::<f32>(layer.operator.clone(), &layer.x_shape) else { return Ok(()) };
        let operands = Operands::new(plan.geometry(), &setting);
        let packed = operands.pack(&plan);
        let mut bytes = packed.to_bytes().expect("memory suffices");
        let original = bytes.clone();
        for _ in 0..u.int_in_range(0..=4)? {
            if bytes.is_empty() {
                break;
            }
            // Mostly the description, behind the first 24 bytes.
            let most = if u.ratio(3, 4)? { bytes.len().min(160) } else { bytes.len() } - 1;
            let at = u.int_in_range(0..=most)?;
            match u.int_in_range(0..=3)? {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, u.arbitrary()?),
                2 => drop(bytes.remove(at)),
                _ => bytes[at] = u.arbitrary()?,
            }
        }
        if u.arbitrary()? && bytes.len() >= SUM.end {
            let sum = xxh3_64(&bytes[SUM.end..]).to_ne_bytes();
            bytes[SUM].copy_from_slice(&sum);
        }
        let copied = PackedWeights::<f32>::from_bytes(&bytes);
        let shared = PackedWeights::<f32>::from_shared(Aligned::new(&bytes));
        assert_eq!(copied.as_ref().err(), shared.as_ref().err());
        for loaded in [copied, shared].into_iter().flatten() {
            let planner = setting.planner().clone().packed_for(&loaded);
            let Ok(plan) = planner.plan::<f32>(layer.operator.clone(), &layer.x_shape) else { continue };
            if bytes == original {
                operands.check(&plan, &loaded, &setting);
            } else {
                let x = vec![1.0; plan.geometry().input_len()];
                let mut y = vec![0.0; plan.geometry().output_len()];
                let workspace = &mut Workspace::for_plan(&plan).expect("memory suffices");
                plan.run(Run::new(&x, &loaded, &mut y).workspace(workspace))
                    .expect("the plan was made for the weights");
            }
        }
        if bytes == original {
            let loaded = PackedWeights::<f32>::from_shared(Arc::<[u8]>::from(&bytes[..]));
            assert!(loaded.is_ok() || loaded.unwrap_err().to_string().contains("behind a multiple"));
        }
        Ok(())
    });
}
