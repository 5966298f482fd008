//! What a run through the C interface takes beyond one of the crate: the same tiny layer, in turn.
//!
//!     cargo bench -p convoke-capi

use std::hint::black_box;
use std::time::Instant;

use convoke::{Conv, Planner, Run, Workspace};
use convoke_capi::{Error, Plan, RunArgs, Status, convoke_plan_run};

#[path = "../tests/layer/mod.rs"]
mod layer;

use layer::{FLOAT, Layer, ok};

const CHANNELS: usize = 1;
const SIZE: usize = 1;

/// Nanoseconds of a call: the mean of some.
fn nanoseconds(calls: usize, mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..calls).for_each(|_| call());
    begin.elapsed().as_secs_f64() * 1e9 / calls as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // As a test, `cargo test --bench '*' -- --test`, it only runs.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let (rounds, calls) = if is_test { (1, 1) } else { (201, 20_000) };

    let mut layer = Layer::new(FLOAT, 1, CHANNELS, SIZE, 1);
    let args = layer.args(None);
    let mut error = std::mem::MaybeUninit::<Error>::uninit();
    // As a pointer that the compiler knows nothing of, so that nothing is inlined.
    let run: unsafe extern "C" fn(*const Plan, *const RunArgs, *mut Error) -> Status = black_box(convoke_plan_run);

    let conv = Conv::new([CHANNELS, CHANNELS, 3, 3]).pads([1; 4]);
    let plan = Planner::new().plan::<f32>(conv, &[1, CHANNELS, SIZE, SIZE]).expect("the layer is valid");
    let packed = plan.pack(&[0.25; CHANNELS * CHANNELS * 9], None).expect("lengths are the geometry's");
    let mut workspace = Workspace::for_plan(&plan).expect("enough memory");
    let x = vec![0.5; plan.geometry().input_len()];
    let mut y = vec![0.0; plan.geometry().output_len()];

    let (mut of_crate, mut of_c) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        of_crate.push(nanoseconds(calls, || {
            plan.run(Run::new(black_box(&x), &packed, &mut y).workspace(&mut workspace)).expect("a valid run");
        }));
        // SAFETY: the layer's plan and memory.
        of_c.push(nanoseconds(calls, || ok(unsafe { run(layer.plan, black_box(&args), error.as_mut_ptr()) })));
    }
    let differences = of_c.iter().zip(&of_crate).map(|(c, rust)| c - rust).collect();
    println!(
        "a run: the crate {:.0} ns, through C {:.0} ns, more by {:.0} ns (medians of {rounds} rounds)",
        median(of_crate),
        median(of_c),
        median(differences)
    );
}
