//! A layer in eight bits beside the same layer in f32: how large its error is, and how long both take.
//!
//! X is quantised to `u8` with a zero point, W to `i8` with one scale for each output channel, as static quantisation of
//! ONNX models does it.

use std::time::{Duration, Instant};

use convoke::{Conv, Error, Layout, Planner, QuantisedRun, Run, Scales, Workspace};

/// Numbers between -1 and 1 that look random.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(next).collect()
}

/// The shortest of many runs.
fn time(mut run: impl FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
    let (begin, mut best) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < Duration::from_millis(200) {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn main() -> Result<(), Error> {
    let (m, c, size, taps) = (64, 64, 28, 9);
    let x_shape = [1, c, size, size];
    let conv = Conv::new([m, c, 3, 3]).pads([1; 4]).layouts(Layout::ChannelsLast, Layout::ChannelsLast);
    let (x, w) = (numbers(c * size * size, 1), numbers(m * c * taps, 2));

    let plan = Planner::new().plan::<f32>(conv.clone(), &x_shape)?;
    let packed = plan.pack(&w, None)?;
    let mut workspace = Workspace::for_plan(&plan)?;
    let mut y = vec![0.0; plan.geometry().output_len()];
    let float = time(|| plan.run(Run::new(&x, &packed, &mut y).workspace(&mut workspace)).map(|_| ()))?;

    // X is between -1 and 1: scale and zero point map it to 0 to 255.
    let (x_scale, x_zero_point) = (2.0 / 255.0, 128_u8);
    let x_bytes: Vec<u8> = x.iter().map(|x| ((x / x_scale).round_ties_even() + 128.0) as u8).collect();
    // The largest weight of an output channel becomes 127.
    let largest = |channel: &[f32]| channel.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
    let w_scale: Vec<f32> = w.chunks(c * taps).map(|channel| largest(channel) / 127.0).collect();
    let w_bytes: Vec<i8> = w
        .chunks(c * taps)
        .zip(&w_scale)
        .flat_map(|(channel, scale)| channel.iter().map(move |w| (w / scale).round_ties_even() as i8))
        .collect();
    let y_scale = y.iter().fold(0.0_f32, |most, y| most.max(y.abs())) / 127.0;

    let plan = Planner::new().plan_quantised::<u8, i8, i8>(conv, &x_shape)?;
    println!("{}", plan.explain());
    let weights = plan.pack(&w_bytes, &[], None)?;
    let scales = Scales { x_scale, x_zero_point, w_scale: &w_scale, y_scale, y_zero_point: 0 };
    let scaled = weights.scaled(&scales)?;
    let mut workspace = Workspace::with_bytes(plan.workspace_bytes())?;
    let mut y_bytes = vec![0; plan.geometry().output_len()];
    let bytes = time(|| {
        let run = QuantisedRun::new(&x_bytes, &weights, &scaled, &mut y_bytes);
        plan.run(run.workspace(&mut workspace)).map(|_| ())
    })?;

    let squares = y.iter().zip(&y_bytes).map(|(y, byte)| (y - f32::from(*byte) * y_scale).powi(2));
    let error = (squares.sum::<f32>() / y.len() as f32).sqrt();
    let rms = (y.iter().map(|y| y * y).sum::<f32>() / y.len() as f32).sqrt();
    println!("f32 {float:?}, eight bits {bytes:?}; error {:.2} % of the output's RMS", 100.0 * error / rms);
    assert!(error < 0.03 * rms);
    Ok(())
}
