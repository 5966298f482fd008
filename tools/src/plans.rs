//! Writes what is planned for each layer as text, so that any change of a plan shows up as a
//! difference.
//!
//! The layers are the built-in ones and the [`hard`] ones. Each is planned for all named machines
//! and for 1, 2 and 16 threads, with the kernels of one ISA. The CPU need not have the ISA,
//! because plans depend only on the machine that they are made for. Hashes of the outputs are
//! written too, because kernels can change while plans do not.
//!
//! [`plans`] and [`outputs`] are the whole text, to compare two revisions. [`picks`] and
//! [`hard_outputs`] are the short record in `tests/plans`: the choices that few changes alter.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, anyhow, ensure};
use convoke::Absence;
use convoke::{Activation, Isa, Machine, Operator, PackedWeights, Plan, Planner, Run, Threads, Workspace, f16};

use crate::data::{Operands, Scalar, uniform};
use crate::has_foreign_blas;
use crate::{hard, shapes};

/// Numbers of threads that each layer is planned for.
const THREADS: [usize; 3] = [1, 2, 16];

/// Multiply-adds of a layer that is run for its output, at most. ISAs that are slow where they
/// are tested have a lower limit: the portable tier, and NEON, which runs in an emulator.
const MOST_MACS: u128 = 250_000_000;
const MOST_MACS_SLOW: u128 = 10_000_000;

/// The ISAs whose kernels are in this build, whether or not the CPU has the ISA.
pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| matches!(isa.absence(), None | Some(Absence::Cpu(_))))
}

/// A layer with its name.
struct PlannedLayer {
    name: String,
    operator: Operator,
    x_shape: Vec<usize>,
    /// Whether it is one of the [`hard`] layers, which are small.
    is_hard: bool,
}

/// All layers: the built-in ones, then the hard ones.
fn layers() -> impl Iterator<Item = PlannedLayer> {
    built_in_layers().chain(hard_layers())
}

/// The layers of `benches/shapes`.
fn built_in_layers() -> impl Iterator<Item = PlannedLayer> {
    shapes::built_in().into_iter().map(|layer| PlannedLayer {
        operator: layer.operator(),
        name: layer.name,
        x_shape: layer.x,
        is_hard: false,
    })
}

/// The hard layers, by number.
fn hard_layers() -> impl Iterator<Item = PlannedLayer> {
    hard::layers().into_iter().enumerate().map(|(i, case)| PlannedLayer {
        name: format!("hard.{i}"),
        operator: case.operator,
        x_shape: case.x_shape,
        is_hard: true,
    })
}

/// The plans of all layers with the kernels of one ISA. There is a paragraph for each layer and
/// element type. Its first line names them. Each plan has one line with what it decides, and one
/// line with the machines, the numbers of threads and the estimates in nanoseconds for which it
/// is made.
///
/// # Errors
/// The call fails if a layer cannot be planned.
pub fn plans(isa: Isa) -> Result<String> {
    let mut text = String::new();
    for layer in layers() {
        let geometry = layer.operator.geometry(&layer.x_shape).with_context(|| layer.name.clone())?;
        let single = paragraph::<f32>(&layer, isa)?;
        write!(text, "{}: {} {}\n{single}", layer.name, geometry.op, shapes::describe(&geometry))?;
        if layer.is_hard {
            let half = paragraph::<f16>(&layer, isa)?;
            match half == single {
                true => writeln!(text, "{} f16: as f32", layer.name)?,
                false => write!(text, "{} f16:\n{half}", layer.name)?,
            }
        }
    }
    Ok(text)
}

/// The algorithm, kernel and layout of weights that are picked for each built-in layer on one thread,
/// with the kernels of one ISA: a line for each pick, with the machines where not all agree.
///
/// # Errors
/// The call fails if a layer cannot be planned.
pub fn picks(isa: Isa) -> Result<String> {
    let mut text = String::new();
    for layer in built_in_layers() {
        let pick = |machine: Machine| {
            let plan = plan::<f32>(&layer, &machine, isa, 1, Activation::None)?;
            let explanation = plan.explain();
            let pick = format!("{}, {}, {}", explanation.picked(), explanation.kernel(), explanation.layout());
            Ok((pick, machine.name.to_string()))
        };
        let cases = Machine::named().into_iter().map(pick).collect::<Result<Vec<_>>>()?;
        let picks = merged(cases, |case| case);
        let all_agree = picks.len() == 1;
        for (pick, machines) in picks {
            let machines = if all_agree { String::new() } else { format!(", {machines}") };
            writeln!(text, "{}: {pick}{machines}", layer.name)?;
        }
    }
    Ok(text)
}

/// What a plan is made for, and its cost: a machine, a number of threads, nanoseconds.
type PlannedCase = (String, usize, String);

/// The plans of a layer with one element type.
fn paragraph<T: Scalar>(layer: &PlannedLayer, isa: Isa) -> Result<String> {
    // The plans in the order in which they are found.
    let mut plans: Vec<(String, Vec<PlannedCase>)> = Vec::new();
    for machine in Machine::named() {
        for threads in THREADS {
            let plan = plan::<T>(layer, &machine, isa, threads, Activation::None)?;
            plan.prove_tasks().map_err(|error| anyhow!("{}: {error}: {:#}", layer.name, plan.explain()))?;
            let case = (machine.name.to_string(), threads, format!("{:.3e}", plan.explain().cost()));
            match plans.iter_mut().find(|(known, _)| *known == decisions(&plan)) {
                Some((_, cases)) => cases.push(case),
                None => plans.push((decisions(&plan), vec![case])),
            }
        }
    }
    let mut text = String::new();
    for (plan, cases) in plans {
        writeln!(text, "  {plan}\n    {}", gathered(cases))?;
    }
    Ok(text)
}

/// Machines, threads and costs in a short form: `zen5 no-l3 t1 t2 8.205e3`, then the next such
/// group.
fn gathered(cases: Vec<PlannedCase>) -> String {
    let of_machine = merged(cases, |(machine, threads, cost)| ((machine, cost), threads_name(threads)));
    let groups = merged(of_machine, |((machine, cost), threads)| ((cost, threads), machine));
    let groups = groups.into_iter().map(|((cost, threads), machines)| format!("{machines} {threads} {cost}"));
    groups.collect::<Vec<_>>().join(", ")
}

/// Joins the names of items with equal keys by spaces. The groups are in the order of their first
/// items.
fn merged<I, K: PartialEq>(items: Vec<I>, split: impl Fn(I) -> (K, String)) -> Vec<(K, String)> {
    let mut groups: Vec<(K, String)> = Vec::new();
    for (key, name) in items.into_iter().map(split) {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => *names += &format!(" {name}"),
            None => groups.push((key, name)),
        }
    }
    groups
}

fn threads_name(threads: usize) -> String {
    format!("t{threads}")
}

fn plan<T: Scalar>(
    layer: &PlannedLayer,
    machine: &Machine,
    isa: Isa,
    threads: usize,
    activation: Activation,
) -> Result<Plan<T>> {
    let planner = Planner::new().machine(machine.clone().with_isa(isa)).threads(threads).activation(activation);
    planner.plan::<T>(layer.operator.clone(), &layer.x_shape).with_context(|| layer.name.clone())
}

/// Everything that a plan decides.
fn decisions<T: Scalar>(plan: &Plan<T>) -> String {
    let explanation = plan.explain();
    let taps = explanation.taps().map_or(String::new(), |taps| format!("; {taps}"));
    format!(
        "{}: {}; kernel {}; weights {}, {} bytes; {} tasks, {} bytes each ({}){taps}",
        explanation.picked(),
        explanation.details(),
        explanation.kernel(),
        explanation.layout(),
        explanation.packed_bytes(),
        explanation.tasks(),
        explanation.workspace_bytes() / explanation.threads(),
        explanation.scratch(),
    )
}

/// Hashes of the outputs of all layers of moderate size, on fixed data. There is a line for each
/// layer, with the plans for [`Machine::zen5`] and for 1, 2 and 16 threads, and the kernels of an
/// ISA that the CPU has. The hashes are the same on every CPU, because multiply-adds are rounded
/// correctly. Hard layers have two more lines, with a residual and an activation, in two element
/// types.
///
/// Each plan is run on the calling thread and on `team`, which must give the same bits.
///
/// # Errors
/// The call fails if a layer cannot be planned or run, or if its output depends on the threads.
pub fn outputs(isa: Isa, team: Threads<'_>) -> Result<String> {
    layers().map(|layer| outputs_of(&layer, isa, team)).collect()
}

/// As [`outputs`], for the hard layers alone, with one hash of all that a layer has there.
///
/// # Errors
/// As [`outputs`].
pub fn hard_outputs(isa: Isa, team: Threads<'_>) -> Result<String> {
    let mut text = String::new();
    for layer in hard_layers() {
        let outputs = outputs_of(&layer, isa, team)?;
        if !outputs.is_empty() {
            writeln!(text, "{}: {:016x}", layer.name, hash(outputs.as_bytes()))?;
        }
    }
    Ok(text)
}

/// The lines of a layer in [`outputs`]: none if it is too large.
fn outputs_of(layer: &PlannedLayer, isa: Isa, team: Threads<'_>) -> Result<String> {
    let (mut text, name) = (String::new(), &layer.name);
    let most = if matches!(isa, Isa::Portable | Isa::Neon) { MOST_MACS_SLOW } else { MOST_MACS };
    if layer.operator.geometry(&layer.x_shape).with_context(|| name.clone())?.macs() > most {
        return Ok(text);
    }
    writeln!(text, "{name}: {}", hashes::<f32>(layer, isa, Activation::None, team)?)?;
    if layer.is_hard {
        // Its arithmetic is the same everywhere. A system's `exp` may differ.
        let activation = Activation::HardSwish;
        writeln!(text, "{name} finished: {}", hashes::<f32>(layer, isa, activation, team)?)?;
        writeln!(text, "{name} f16 finished: {}", hashes::<f16>(layer, isa, activation, team)?)?;
    }
    Ok(text)
}

/// The hashes of a layer's output for each number of threads that it is planned for. If there is
/// an activation, there is a residual too.
fn hashes<T: Scalar>(layer: &PlannedLayer, isa: Isa, activation: Activation, team: Threads<'_>) -> Result<String> {
    let geometry = layer.operator.geometry(&layer.x_shape)?;
    let operands = Operands::<T>::new(&geometry);
    let residual = (activation != Activation::None).then(|| uniform(geometry.output_len(), 1.0, 4));
    let mut hashes = Vec::new();
    for threads in THREADS {
        let plan = plan::<T>(layer, &Machine::zen5(), isa, threads, activation)?;
        let hash = match has_foreign_blas(plan.algorithm()) {
            // The products of another library may differ between its versions.
            true => "not hashed".to_owned(),
            false => {
                let packed = plan.pack(&operands.w, Some(&operands.b))?;
                let run = |threads| output_bits(&plan, &operands.x, &packed, residual.as_deref(), threads);
                let alone = run(Threads::Serial)?;
                ensure!(
                    alone == run(team.at_most(threads))?,
                    "{} on {isa}, planned for {threads} threads: {} threads give other bits than one",
                    layer.name,
                    team.count()
                );
                format!("{:016x}", hash(alone.as_flattened()))
            }
        };
        hashes.push((hash, threads_name(threads)));
    }
    let groups = merged(hashes, |hash| hash).into_iter().map(|(hash, threads)| format!("{threads} {hash}"));
    Ok(groups.collect::<Vec<_>>().join(", "))
}

/// The bits of the output as f64, in little-endian order.
fn output_bits<T: Scalar>(
    plan: &Plan<T>,
    x: &[T],
    packed: &PackedWeights<T>,
    residual: Option<&[T]>,
    threads: Threads<'_>,
) -> Result<Vec<[u8; 8]>> {
    // NaN shows elements that are not written.
    let mut y = vec![T::from_f64(f64::NAN); plan.geometry().output_len()];
    let workspace = &mut Workspace::for_plan(plan)?;
    plan.run(Run::new(x, packed, &mut y).residual(residual).workspace(workspace).threads(threads))?;
    Ok(y.iter().map(|y| y.to_f64().to_le_bytes()).collect())
}

/// FNV-1a, a hash that never changes.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The difference of two texts of this module. For each layer that differs, it has the layer's
/// name, the plans that only the old text has with `-`, and those that only the new text has with
/// `+`. It is empty if no layer differs.
#[must_use]
pub fn difference(old: &str, new: &str) -> String {
    let (old, new) = (paragraphs(old), paragraphs(new));
    let mut text = String::new();
    let added = new.keys().filter(|name| !old.contains_key(*name));
    for name in old.keys().chain(added) {
        let [before, after] = [&old, &new].map(|all| all.get(name).map_or(&[][..], Vec::as_slice));
        if before == after {
            continue;
        }
        text += &format!("{name}\n");
        for (sign, plans, others) in [('-', before, after), ('+', after, before)] {
            let lines = plans.iter().filter(|plan| !others.contains(plan)).flat_map(|plan| plan.lines());
            text.extend(lines.map(|line| format!("{sign} {line}\n")));
        }
    }
    text
}

/// The plans of each layer, by the layer's name: the rest of the line that begins with the name,
/// and its plans, each of two lines.
fn paragraphs(text: &str) -> BTreeMap<&str, Vec<String>> {
    let mut paragraphs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        let plans = match line.split_once(':').filter(|_| !line.starts_with(' ')) {
            Some((layer, _)) => {
                name = layer;
                paragraphs.entry(name).or_default()
            }
            None => paragraphs.entry(name).or_default(),
        };
        match plans.last_mut().filter(|_| line.starts_with("    ")) {
            Some(plan) => *plan += &format!("\n{line}"),
            None => plans.push(line.to_owned()),
        }
    }
    paragraphs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_layer_and_show_both() {
        let old = "a: Conv\n  pointwise\n    zen5 t1\n  naive\n    zen5 t2\nb: Conv\n  naive\n    zen5 t1\n";
        assert_eq!(difference(old, old), "");
        // Machines and threads belong to the plan above them.
        let swapped = old.replacen("t1", "t3", 1).replacen("t2", "t1", 1).replacen("t3", "t2", 1);
        let expected = "a\n-   pointwise\n-     zen5 t1\n-   naive\n-     zen5 t2\n+   pointwise\n+     zen5 t2\n+   naive\n+     zen5 t1\n";
        assert_eq!(difference(old, &swapped), expected);
        let new = old.replacen("pointwise", "winograd", 1).replace("b: ", "c: ");
        let expected = "a\n-   pointwise\n-     zen5 t1\n+   winograd\n+     zen5 t1\n\
            b\n- b: Conv\n-   naive\n-     zen5 t1\nc\n+ c: Conv\n+   naive\n+     zen5 t1\n";
        assert_eq!(difference(old, &new), expected);
        assert_eq!(difference("a: t1 01\n", "a: t1 02\n"), "a\n- a: t1 01\n+ a: t1 02\n");
    }

    #[test]
    fn equal_cases_are_gathered() {
        let case = |machine: &str, threads, cost: &str| (machine.to_owned(), threads, cost.to_owned());
        let cases = vec![
            case("zen5", 1, "8e3"),
            case("zen5", 2, "8e3"),
            case("zen5", 16, "9e3"),
            case("no-l3", 1, "8e3"),
            case("no-l3", 2, "8e3"),
        ];
        assert_eq!(gathered(cases), "zen5 no-l3 t1 t2 8e3, zen5 t16 9e3");
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(hash(b"a"), 0xAF63_DC4C_8601_EC8C);
    }
}
