//! Upsampling by two with ConvTranspose: bilinear interpolation of each channel, as the last layers
//! of FCN begin with, and the learned 2x2 upsampling of a U-Net.

use convoke::{ConvTranspose, Error, Planner, Run, conv_transpose};

fn main() -> Result<(), Error> {
    // Bilinear: one filter of 4x4 taps for each channel, which makes it depthwise.
    let channels = 8;
    let taps = [0.25, 0.75, 0.75, 0.25];
    let filter: Vec<f32> = taps.iter().flat_map(|row| taps.map(|column| row * column)).collect();
    let bilinear = ConvTranspose::new([channels, 1, 4, 4]).group(channels as i64).strides([2, 2]).pads([1; 4]);
    let plan = Planner::new().plan::<f32>(bilinear, &[1, channels, 16, 16])?;
    assert_eq!(plan.geometry().output_shape(), [1, channels, 32, 32]);

    let packed = plan.pack(&filter.repeat(channels), None)?;
    // Each image is a ramp from left to right, so its upsampled form is a ramp of half the slope.
    let x: Vec<f32> = (0..channels * 16 * 16).map(|i| (i % 16) as f32).collect();
    let mut y = vec![0.0; plan.geometry().output_len()];
    plan.run(Run::new(&x, &packed, &mut y))?;
    let row = &y[5 * 32..6 * 32];
    for (column, value) in row.iter().enumerate().take(31).skip(1) {
        assert!((value - (column as f32 - 0.5) / 2.0).abs() < 1e-5);
    }
    println!("bilinear, {}: {:?} ...", plan.algorithm(), &row[1..6]);

    // Learned: each input position becomes 2x2 outputs, and half of the channels.
    let learned = ConvTranspose::new([64, 32, 2, 2]).strides([2, 2]);
    let (x, w) = (vec![1.0_f32; 64 * 16 * 16], vec![0.5; 64 * 32 * 2 * 2]);
    let (y, shape) = conv_transpose(&learned, &[1, 64, 16, 16], &x, &w, None)?; // plans, packs and runs
    assert_eq!(shape, [1, 32, 32, 32]);
    assert!(y.iter().all(|y| (y - 32.0).abs() < 1e-3)); // 64 products of 1 and 0.5
    println!("learned: {shape:?}, all {}", y[0]);
    Ok(())
}
