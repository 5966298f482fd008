//! Chains: layers behind one another in strips of rows.

use crate::common::operands::{apart, bits};
use crate::common::{Scoped, isas};
use convoke::{
    Accuracy, Activation, Chain, ChainRun, Conv, Error, ErrorKind, Executor, Isa, Layout, Machine, PackedWeights,
    Planner, Run, Threads, Workspace,
};
use convoke_tools::data::{Random, Scalar};
use convoke_tools::named;

/// A machine whose L2 cache has room for few rows, so that there are many strips.
fn machine(isa: Isa, l2_bytes: usize) -> Machine {
    let mut machine = Machine::host().with_isa(isa);
    machine.l2_bytes = l2_bytes;
    machine
}

fn last(conv: Conv) -> Conv {
    conv.layouts(Layout::ChannelsLast, Layout::ChannelsLast)
}

/// Small integers, whose sums are exact in any order.
fn integers<T: Scalar>(random: &mut Random, len: usize) -> Vec<T> {
    (0..len).map(|_| T::from_f64(random.below(3) as f64 - 1.0)).collect()
}

/// Layers with their weights and biases.
struct Layers<T> {
    convs: Vec<(Conv, Activation)>,
    w: Vec<Vec<T>>,
    bias: Vec<Vec<T>>,
    x_shape: Vec<usize>,
}

impl<T: Scalar> Layers<T> {
    /// Some layers that read one row, one that reads several, and some that read one, of `rank` axes.
    fn random(random: &mut Random, rank: usize) -> Self {
        let mut layers = Self { convs: Vec::new(), w: Vec::new(), bias: Vec::new(), x_shape: Vec::new() };
        let mut channels = 1 + random.below(9);
        layers.x_shape = vec![1 + random.below(2), channels];
        layers.x_shape.extend((0..rank).map(|axis| 4 + random.below(if axis == 0 { 13 } else { 5 })));
        let (before, behind) = (random.below(3), random.below(3));
        for i in 0..=before + behind {
            let is_middle = i == before;
            let is_depthwise = is_middle && random.below(2) == 0;
            let m = if is_depthwise { channels } else { 1 + random.below(20) };
            let of_group = if is_depthwise { 1 } else { channels };
            // The other axes may have taps in all layers.
            let kernels: Vec<_> =
                (0..rank).map(|axis| if axis == 0 && !is_middle { 1 } else { 1 + random.below(3) }).collect();
            let mut list = |of: &mut dyn FnMut(&mut Random) -> i64| -> Vec<i64> {
                (0..rank).map(|axis| if axis == 0 && !is_middle { 0 } else { of(random) }).collect()
            };
            let strides: Vec<_> = list(&mut |random| random.below(3) as i64).iter().map(|stride| 1 + stride).collect();
            let pads: Vec<_> =
                [list(&mut |random| random.below(3) as i64), list(&mut |random| random.below(3) as i64)].concat();
            let strides: Vec<_> = strides.into_iter().map(|stride| if is_middle { stride } else { 1 }).collect();
            let dilations: Vec<_> = list(&mut |random| random.below(2) as i64).iter().map(|more| 1 + more).collect();
            let mut shape = vec![m, of_group];
            shape.extend(&kernels);
            let conv = last(Conv::new(shape.clone()))
                .group((channels / of_group) as i64)
                .strides(strides)
                .dilations(dilations)
                .pads(pads);
            let activation =
                [Activation::None, Activation::Relu, Activation::LeakyRelu { alpha: 0.5 }][random.below(3)];
            layers.w.push(integers(random, shape.iter().product()));
            layers.bias.push(integers(random, m));
            layers.convs.push((conv, activation));
            channels = m;
        }
        layers
    }

    fn pack(&self, chain: &Chain<T>) -> Vec<PackedWeights<T>> {
        let of_layer = |i: usize| chain.layer(i).pack(&self.w[i], Some(&self.bias[i])).unwrap();
        (0..chain.layers()).map(of_layer).collect()
    }

    /// Layer after layer, by the definition.
    fn expected(&self, x: &[T], residual: Option<&[T]>) -> Vec<T> {
        let (mut x, mut shape) = (x.to_vec(), self.x_shape.clone());
        for (i, (conv, activation)) in self.convs.iter().enumerate() {
            let planner = Planner::new().algorithm(named("naive")).activation(*activation);
            let plan = planner.plan::<T>(conv.clone(), &shape).unwrap();
            let packed = plan.pack(&self.w[i], Some(&self.bias[i])).unwrap();
            let mut y = vec![T::from_f64(f64::NAN); plan.geometry().output_len()];
            let residual = residual.filter(|_| i + 1 == self.convs.len());
            plan.run(Run::new(&x, &packed, &mut y).residual(residual)).unwrap();
            (x, shape) = (y, plan.geometry().output_shape());
        }
        x
    }
}

#[test]
fn random_chains_agree_with_layer_after_layer() {
    fn check<T: Scalar>() {
        let mut random = Random::new(21);
        let (mut strips, mut runs) = (0, 0);
        for case in 0..60 {
            let layers = Layers::<T>::random(&mut random, 1 + case % 3);
            for isa in isas() {
                // Direct sums of integers are exact.
                let planner = Planner::new().machine(machine(isa, 1 << (12 + random.below(4)))).threads(3);
                let planner = planner.accuracy(Accuracy::Strict);
                let chain = match planner.chain::<T>(layers.convs.clone(), &layers.x_shape) {
                    Ok(chain) => chain,
                    // The kernel is larger than the padded X.
                    Err(error) if error.kind() == ErrorKind::InvalidShape => continue,
                    Err(error) => panic!("{error}"),
                };
                (strips, runs) = (strips.max(chain.strips()), runs + 1);
                let packed = layers.pack(&chain);
                let x = integers::<T>(&mut random, layers.x_shape.iter().product());
                let y_shape = chain.output_shape();
                let residual = integers::<T>(&mut random, y_shape.iter().product());
                let residual = (case % 2 == 0).then_some(&*residual);
                let expected = layers.expected(&x, residual);
                let mut workspace = Workspace::with_bytes(chain.workspace_bytes()).unwrap();

                let mut y = vec![T::from_f64(f64::NAN); expected.len()];
                chain.run(ChainRun::new(&x, &packed, &mut y).residual(residual).workspace(&mut workspace)).unwrap();
                assert!(bits(&y) == bits(&expected), "{chain:?}");
                let mut y = vec![T::from_f64(f64::NAN); expected.len()];
                let run = ChainRun::new(&x, &packed, &mut y).residual(residual).workspace(&mut workspace);
                chain.run(run.threads(Threads::Executor(&Scoped(3)))).unwrap();
                assert!(bits(&y) == bits(&expected), "{chain:?}");

                // Channels of wider tensors.
                let (c, m) = (layers.x_shape[1], y_shape[1]);
                let wide_x = apart(&x, (c, c + 3), T::from_f64(f64::NAN));
                let wide_residual = residual.map(|residual| apart(residual, (m, m + 1), T::from_f64(f64::NAN)));
                let mut y = apart(&vec![T::from_f64(f64::NAN); expected.len()], (m, m + 5), T::from_f64(77.0));
                let run = ChainRun::new(&wide_x, &packed, &mut y).residual(wide_residual.as_deref());
                let run = run.x_pixel_stride(c + 3).residual_pixel_stride(m + 1).y_pixel_stride(m + 5);
                chain.run(run.workspace(&mut workspace)).unwrap();
                assert!(bits(&y) == bits(&apart(&expected, (m, m + 5), T::from_f64(77.0))), "{chain:?}");
            }
        }
        assert!(strips > 4 && runs > 30, "{runs} chains of at most {strips} strips");
    }
    for_each_type!(check());
}

/// A block of MobileNet.
fn block(channels: usize, wide: usize, stride: i64) -> [(Conv, Activation); 3] {
    let relu6 = Activation::Clip { min: 0.0, max: 6.0 };
    let depthwise = Conv::new([wide, 1, 3, 3]).group(wide as i64).strides([stride, stride]).pads([1, 1, 1, 1]);
    [
        (last(Conv::new([wide, channels, 1, 1])), relu6),
        (last(depthwise), relu6),
        (last(Conv::new([channels, wide, 1, 1])), Activation::None),
    ]
}

#[test]
#[cfg(feature = "rayon")]
fn a_chain_gives_the_same_bits_on_any_number_of_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
    let threads = Threads::Pool(&pool);
    // With many strips each thread has some; with few, threads share each layer.
    let cases = |isa| [(isa, 1, 16 << 10), (isa, 2, 16 << 10), (isa, 1, 128 << 10)];
    for (isa, stride, l2_bytes) in isas().flat_map(cases) {
        let planner = Planner::new().machine(machine(isa, l2_bytes)).threads(5);
        let chain = planner.chain::<f32>(block(12, 40, stride), &[2, 12, 23, 17]).unwrap();
        assert_eq!(chain.strips() > 5, l2_bytes == 16 << 10, "{chain:?}");
        let mut random = Random::new(5);
        let mut tensor = |len: usize| (0..len).map(|_| random.uniform() as f32).collect::<Vec<_>>();
        let w = [tensor(40 * 12), tensor(40 * 9), tensor(12 * 40)];
        let packed: Vec<_> = (0..3).map(|i| chain.layer(i).pack(&w[i], None).unwrap()).collect();
        let x = tensor(2 * 12 * 23 * 17);
        let mut results = (1..=5).map(|count| {
            let mut y = vec![f32::NAN; chain.output_shape().iter().product()];
            chain.run(ChainRun::new(&x, &packed, &mut y).threads(threads.at_most(count))).unwrap();
            bits(&y)
        });
        let first = results.next().unwrap();
        assert!(results.all(|y| y == first), "{chain:?}");
    }
}

/// Products of padding and an infinite weight count, in the rows at the ends of X alone.
#[test]
fn weights_that_are_not_finite_are_computed_by_the_definition() {
    let convs = block(4, 8, 1).to_vec();
    let mut w = vec![vec![1.0; 8 * 4], vec![0.5; 8 * 9], vec![1.0_f32; 4 * 8]];
    w[1][9] = f32::INFINITY;
    let layers = Layers { convs, w, bias: vec![vec![1.0; 8], vec![0.0; 8], vec![0.0; 4]], x_shape: vec![1, 4, 9, 7] };
    let planner = Planner::new().machine(machine(Isa::detect(), 4096));
    let chain = planner.chain::<f32>(layers.convs.clone(), &layers.x_shape).unwrap();
    assert!(chain.strips() > 1, "{chain:?}");
    let (x, packed, mut y) = (vec![1.0; 4 * 63], layers.pack(&chain), vec![0.0; 4 * 63]);
    chain.run(ChainRun::new(&x, &packed, &mut y)).unwrap();
    let expected = layers.expected(&x, None);
    assert_eq!(bits(&y), bits(&expected));
    assert!(y.iter().any(|y| y.is_nan()) && y.iter().any(|y| y.is_finite()));
}

#[test]
fn a_chain_without_elements_runs() {
    let conv = |m: usize, c: usize| (last(Conv::new([m, c, 1, 1])), Activation::Relu);
    let chain = Planner::new().chain::<f32>([conv(8, 4), conv(2, 8)], &[0, 4, 5, 5]).unwrap();
    let packed = [chain.layer(0).pack(&[1.0; 32], None).unwrap(), chain.layer(1).pack(&[1.0; 16], None).unwrap()];
    chain.run(ChainRun::new(&[], &packed, &mut [])).unwrap();
    // A bias is left where X has no channels.
    let chain = Planner::new().chain::<f32>([(last(Conv::new([2, 0, 1])), Activation::None)], &[1, 0, 3]).unwrap();
    let packed = [chain.layer(0).pack(&[], Some(&[1.0, 2.0])).unwrap()];
    let mut y = [0.0; 6];
    chain.run(ChainRun::new(&[], &packed, &mut y)).unwrap();
    assert_eq!(y, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
}

/// Where X has no channels, its pixels may be any distance apart.
#[test]
fn an_x_without_channels_in_a_chain_may_have_any_pixel_stride() {
    let layer = (last(Conv::new([2, 0, 1, 1])), Activation::None);
    let chain = Planner::new().chain::<f32>([layer], &[2, 0, 3, 10]).unwrap();
    let packed = [chain.layer(0).pack(&[], Some(&[1.0, 2.0])).unwrap()];
    for stride in [3, usize::MAX / 8] {
        let mut y = [0.0; 120];
        chain.run(ChainRun::new(&[], &packed, &mut y).x_pixel_stride(stride)).unwrap();
        assert!(y.chunks(2).all(|pixel| pixel == [1.0, 2.0]));
    }
}

/// The rows of strips are listed, and must not take memory by the size of X.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_chain_of_absurdly_many_rows_has_few_strips() {
    let layer = || (last(Conv::new([1, 1, 1, 1])), Activation::None);
    let chain = Planner::new().chain::<f32>([layer()], &[1, 1, 1 << 28, 1 << 18]).unwrap();
    assert!((2..=4096).contains(&chain.strips()));
    // A batch of none has no elements, whatever the other sizes.
    let wide = (last(Conv::new([4, 1 << 30, 1, 1])), Activation::None);
    assert_eq!(Planner::new().chain::<f32>([wide], &[0, 1 << 30, 1, 1 << 40]).unwrap().strips(), 0);
}

/// An executor may say another number of threads whenever it is asked.
#[test]
fn an_executor_whose_width_grows_does_not_stop_a_chain() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Growing(AtomicUsize);
    impl Executor for Growing {
        fn width(&self) -> usize {
            1 + self.0.fetch_add(1, Ordering::Relaxed)
        }
        fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
            (0..count).for_each(call);
        }
    }
    let chain = Planner::new().threads(2).chain::<f32>(block(4, 8, 1), &[1, 4, 5, 5]).unwrap();
    let w = [vec![0.5; 8 * 4], vec![0.5; 8 * 9], vec![0.5; 4 * 8]];
    let packed: Vec<_> = (0..3).map(|i| chain.layer(i).pack(&w[i], None).unwrap()).collect();
    let mut results = [1, 2].map(|first| {
        let mut y = vec![f32::NAN; 100];
        let executor = Growing(AtomicUsize::new(first - 1));
        chain.run(ChainRun::new(&[1.0; 100], &packed, &mut y).threads(Threads::Executor(&executor))).unwrap();
        y
    });
    assert!(results[0].iter().all(|y| y.is_finite()));
    results.rotate_left(1);
    assert_eq!(results[0], results[1]);
}

#[test]
fn what_is_wrong_with_a_chain_is_named() {
    let planner = Planner::new();
    let refused = |result: Result<Chain<f32>, Error>, kind: ErrorKind, text: &str| {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
    };
    let plan = |layers: &[(Conv, Activation)]| planner.chain::<f32>(layers.to_vec(), &[1, 4, 8, 8]);
    refused(plan(&[]), ErrorKind::InvalidInput, "a chain has no layers; it must have at least one");
    let first = (Conv::new([4, 4, 1, 1]), Activation::None);
    let text = "layer 0: Conv: X has its channels first and Y its channels first: in a chain, both have channels last";
    refused(plan(&[first]), ErrorKind::InvalidShape, text);
    let taps = |m: usize, c: usize| (last(Conv::new([m, c, 3, 3])), Activation::None);
    let text = "layer 1: Conv: spatial axis 0: its kernel, stride or pads read several rows, and so do those of layer \
                0: in a chain, one layer at most may";
    refused(plan(&[taps(4, 4), taps(4, 4)]), ErrorKind::InvalidShape, text);
    let error = plan(&[taps(6, 4), (last(Conv::new([4, 5, 1, 1])), Activation::None)]).unwrap_err();
    assert!(error.to_string().starts_with("layer 1: Conv: "), "{error}");
    let chain = plan(&[taps(4, 4)]).unwrap();
    let bytes = chain.workspace_bytes();
    let limited = planner.clone().workspace_limit(bytes.saturating_sub(1)).chain::<f32>([taps(4, 4)], &[1, 4, 8, 8]);
    let text = format!("a chain needs {bytes} bytes of workspace, the limit is {}", bytes - 1);
    refused(limited, ErrorKind::Workspace, &text);

    let packed = [chain.layer(0).pack(&[1.0; 144], None).unwrap()];
    let mut y = [7.0; 144];
    let mut fails = |run: &dyn Fn(&mut [f32]) -> Result<(), Error>, kind: ErrorKind, text: &str| {
        let error = run(&mut y).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
        assert_eq!(y, [7.0; 144], "Y is untouched");
    };
    let x = [1.0; 256];
    let text = "a chain of 1 layers was given the packed weights of 0";
    fails(&|y| chain.run(ChainRun::new(&x, &[], y)), ErrorKind::InvalidInput, text);
    let text = "Conv: X has 255 elements, its shape [1, 4, 8, 8] asks for 256";
    fails(&|y| chain.run(ChainRun::new(&x[1..], &packed, y)), ErrorKind::BufferLength, text);
    let text = "Conv: Y has 143 elements, its shape [1, 4, 6, 6] asks for 144";
    fails(&|y| chain.run(ChainRun::new(&x, &packed, &mut y[1..])), ErrorKind::BufferLength, text);
    let text = "Conv: the residual has 1 elements, its shape [1, 4, 6, 6] asks for 144";
    fails(&|y| chain.run(ChainRun::new(&x, &packed, y).residual(Some(&[1.0]))), ErrorKind::BufferLength, text);
    let text = "Conv: X has a pixel stride of 3, a pixel has 4 elements";
    fails(&|y| chain.run(ChainRun::new(&x, &packed, y).x_pixel_stride(3)), ErrorKind::InvalidShape, text);
    let text = "Conv: X exceeds the address space: its pixels are 18446744073709551615 elements apart";
    fails(&|y| chain.run(ChainRun::new(&x, &packed, y).x_pixel_stride(usize::MAX)), ErrorKind::Overflow, text);
    let text = "Conv: X has a pixel stride of 33554432: the pixels of an image spread over 2147483648 elements, more \
                than 1073741824";
    let spread = |y: &mut [f32]| chain.run(ChainRun::new(&x, &packed, y).x_pixel_stride(1 << 25));
    fails(&spread, ErrorKind::Overflow, text);
    let other = planner.plan::<f32>(last(Conv::new([4, 4, 3, 3])).strides([2, 2]), &[1, 4, 8, 8]).unwrap();
    let wrong = [other.pack(&[1.0; 144], None).unwrap()];
    let error = chain.run(ChainRun::new(&x, &wrong, &mut y)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PackedMismatch, "{error}");
}
