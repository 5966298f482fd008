//! What is planned for each layer, as text: a change of any plan is a difference that a reader
//! sees.
//!
//! The layers are the built-in ones and the [`hard`] ones. Each is planned for all named machines
//! and for 1, 2 and 16 threads, with the kernels of one ISA. The CPU need not have the ISA, because
//! plans depend on the machine that they are made for alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use convoke::kernels::isa::Absence;
use convoke::{Algorithm, Blas, Isa, Machine, Operator, Plan, Planner, Threads, Workspace, f16};

use crate::data::{Operands, Scalar};
use crate::{hard, shapes};

/// Threads that each layer is planned for.
const THREADS: [usize; 3] = [1, 2, 16];

/// Multiply-adds up to which a layer is run for its output: the portable tier is slow.
const MOST_MACS: u128 = 40_000_000;
const MOST_MACS_PORTABLE: u128 = 4_000_000;

/// The ISAs whose kernels this build has, whether or not the CPU has the ISA.
pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| matches!(isa.absence(), None | Some(Absence::Cpu)))
}

/// A layer with its name.
struct Layer {
    name: String,
    operator: Operator,
    x_shape: Vec<usize>,
}

/// All layers: the built-in ones, then the hard ones by number.
fn layers() -> Vec<Layer> {
    let built_in = shapes::built_in().into_iter();
    let built_in = built_in.map(|layer| Layer { operator: layer.operator(), name: layer.name, x_shape: layer.x });
    let hard = hard::layers().into_iter().enumerate();
    let hard =
        hard.map(|(i, case)| Layer { name: format!("hard.{i}"), operator: case.operator, x_shape: case.x_shape });
    built_in.chain(hard).collect()
}

/// The plans of all layers with the kernels of one ISA. A paragraph a layer: a line that names it,
/// and for each plan a line of what it is and one of the machines, threads and estimates that it is
/// for.
///
/// # Errors
/// A layer that cannot be planned.
pub fn plans(isa: Isa) -> Result<String> {
    let mut text = String::new();
    for layer in layers() {
        describe::<f32>(&layer, isa, &mut text)?;
        if layer.name.starts_with("hard.") {
            describe::<f16>(&layer, isa, &mut text)?;
        }
    }
    Ok(text)
}

/// The paragraph of a layer with one element type.
fn describe<T: Scalar>(layer: &Layer, isa: Isa, text: &mut String) -> Result<()> {
    let geometry = layer.operator.geometry(&layer.x_shape).with_context(|| layer.name.clone())?;
    writeln!(text, "{} {}: {} {}", layer.name, T::DTYPE, geometry.op, shapes::describe(&geometry))?;
    // In the order in which they are found.
    let mut plans: Vec<(String, String)> = Vec::new();
    for machine in Machine::named() {
        for threads in THREADS {
            let name = machine.name.clone();
            let plan = plan::<T>(layer, machine.clone().with_isa(isa), threads)?;
            let (what, why) = (what(&plan), plan.explain());
            let context = format!("{name} {threads}: {:.3e} ns", why.cost());
            match plans.iter_mut().find(|(known, _)| *known == what) {
                Some((_, contexts)) => write!(contexts, ", {context}")?,
                None => plans.push((what, context)),
            }
        }
    }
    for (what, contexts) in plans {
        writeln!(text, "  {what}\n    {contexts}")?;
    }
    Ok(())
}

fn plan<T: Scalar>(layer: &Layer, machine: Machine, threads: usize) -> Result<Plan<T>> {
    let planner = Planner::new().machine(machine).threads(threads);
    planner.plan::<T>(layer.operator.clone(), &layer.x_shape).with_context(|| layer.name.clone())
}

/// All that a plan has decided.
fn what<T: Scalar>(plan: &Plan<T>) -> String {
    let why = plan.explain();
    let taps = why.taps().map_or(String::new(), |taps| format!("; {taps}"));
    format!(
        "{}: {}; kernel {}; layout {:?}; packed {} bytes; {} tasks, workspace {} bytes a thread{taps}",
        why.picked(),
        why.details(),
        why.kernel(),
        why.layout(),
        why.packed_bytes(),
        why.tasks(),
        why.workspace_bytes() / why.threads(),
    )
}

/// A line for each layer of moderate size with a hash of its output on fixed data: with the plans
/// for [`Machine::zen5`], one thread, and the kernels of an ISA that the CPU has. The same on every
/// CPU, as multiply-adds are rounded correctly.
///
/// # Errors
/// A layer that cannot be planned or run.
pub fn outputs(isa: Isa) -> Result<String> {
    let most = if isa == Isa::Portable { MOST_MACS_PORTABLE } else { MOST_MACS };
    let mut text = String::new();
    for layer in layers() {
        let plan = plan::<f32>(&layer, Machine::zen5().with_isa(isa), 1)?;
        // Another library's products may differ from version to version.
        let is_foreign = matches!(
            plan.algorithm(),
            Algorithm::Im2col(blas) | Algorithm::Col2im(blas) if blas != Blas::Native
        );
        if plan.geometry().macs() <= most && !is_foreign {
            writeln!(text, "{} {:016x}", layer.name, output_hash(&plan)?)?;
        }
    }
    Ok(text)
}

fn output_hash(plan: &Plan<f32>) -> Result<u64> {
    let operands = Operands::<f32>::new(plan.geometry());
    let packed = plan.pack(&operands.w, Some(&operands.b))?;
    let mut y = vec![0.0; plan.geometry().output_len()];
    plan.run(&operands.x, &packed, &mut y, &mut Workspace::for_plan(plan)?, Threads::Serial)?;
    Ok(hash(y.iter().flat_map(|y| y.to_bits().to_le_bytes())))
}

/// FNV-1a, which never changes.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Where two texts of this module differ: the paragraphs of the layers that one lacks or that are
/// not the same, lines of the old one with `-` and of the new one with `+`. Empty where they are
/// equal.
#[must_use]
pub fn difference(old: &str, new: &str) -> String {
    let (old, new) = (paragraphs(old), paragraphs(new));
    let mut text = String::new();
    for head in old.keys().chain(new.keys().filter(|head| !old.contains_key(*head))) {
        let [before, after] = [&old, &new].map(|all| all.get(head).map_or(&[][..], Vec::as_slice));
        if before == after && old.contains_key(head) == new.contains_key(head) {
            continue;
        }
        let sign = |all: &BTreeMap<_, _>| if all.contains_key(head) { ' ' } else { '!' };
        text.push_str(&format!("{}{}{head}\n", sign(&old), sign(&new)));
        for (sign, lines, others) in [('-', before, after), ('+', after, before)] {
            for line in lines.iter().filter(|line| !others.contains(line)) {
                text.push_str(&format!("{sign} {line}\n"));
            }
        }
    }
    text
}

/// The lines of each layer, by the line that names it.
fn paragraphs(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut paragraphs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut head = "";
    for line in text.lines() {
        if line.starts_with(' ') {
            paragraphs.entry(head).or_default().push(line);
        } else {
            head = line;
            paragraphs.entry(head).or_default();
        }
    }
    paragraphs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_layer_and_show_both() {
        let old = "a f32\n  pointwise\n    zen5 1\nb f32\n  naive\n";
        assert_eq!(difference(old, old), "");
        let new = "a f32\n  winograd\n    zen5 1\nc f32\n  naive\n";
        let expected = "  a f32\n-   pointwise\n+   winograd\n !b f32\n-   naive\n! c f32\n+   naive\n";
        assert_eq!(difference(old, new), expected);
        // A hash is part of the line that names the layer.
        assert_eq!(difference("a 01\n", "a 02\n"), " !a 01\n! a 02\n");
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(std::iter::empty()), 0xCBF2_9CE4_8422_2325);
        assert_eq!(hash(b"a".iter().copied()), 0xAF63_DC4C_8601_EC8C);
    }
}
