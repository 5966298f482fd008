//! X, W, bias and residual of a layer, and a run on them.

use std::mem::MaybeUninit;

use convoke::{Error, Geometry, Layout, PackedWeights, Plan, Run, Threads, Workspace};
use convoke_tools::data::{Random, Scalar, uniform};

/// The inputs of a run.
#[derive(Debug, Clone)]
pub struct Operands<T> {
    pub x: Vec<T>,
    pub w: Vec<T>,
    pub bias: Option<Vec<T>>,
    pub residual: Option<Vec<T>>,
}

impl<T: Scalar> Operands<T> {
    /// X and W from a generator of values, without bias and residual.
    pub fn generate(geometry: &Geometry, mut value: impl FnMut() -> f64) -> Self {
        let mut tensor = |len: usize| (0..len).map(|_| T::from_f64(value())).collect::<Vec<_>>();
        let (x, w) = (tensor(geometry.input_len()), tensor(geometry.weight_len()));
        Self { x, w, bias: None, residual: None }
    }

    /// Numbers in -1..1.
    pub fn uniform(geometry: &Geometry, seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self::generate(geometry, || random.uniform())
    }

    /// Small integers. Sums of their products are exact in any order, in f32 too, up to 2^24 /
    /// `limit`^2 products.
    pub fn integers(geometry: &Geometry, limit: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let operands = Self::generate(geometry, || random.below(2 * limit + 1) as f64 - limit as f64);
        let mut tensor =
            |len: usize| (0..len).map(|_| T::from_f64(random.below(2 * limit + 1) as f64 - limit as f64)).collect();
        Self { bias: Some(tensor(geometry.out_channels)), residual: Some(tensor(geometry.output_len())), ..operands }
    }

    /// Adds a bias in -1..1.
    #[must_use]
    pub fn with_bias(self, geometry: &Geometry) -> Self {
        Self { bias: Some(uniform(geometry.out_channels, 1.0, 101)), ..self }
    }

    /// Adds a residual in -1..1.
    #[must_use]
    pub fn with_residual(self, geometry: &Geometry) -> Self {
        Self { residual: Some(uniform(geometry.output_len(), 1.0, 102)), ..self }
    }

    /// Packs the weights.
    ///
    /// # Panics
    /// If they are rejected.
    pub fn pack(&self, plan: &Plan<T>) -> PackedWeights<T> {
        plan.pack(&self.w, self.bias.as_deref()).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
    }

    /// Packs the weights, and runs on the calling thread.
    ///
    /// # Panics
    /// If anything is rejected.
    pub fn run(&self, plan: &Plan<T>) -> Vec<T> {
        self.run_packed(plan, &self.pack(plan), Threads::Serial).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
    }

    /// As [`run`](Self::run). If there is a residual, it also runs with the residual in Y, which
    /// must give the same bits.
    pub fn run_both_ways(&self, plan: &Plan<T>) -> Vec<T> {
        self.run_apart(plan, [None; 3])
    }

    /// As [`run_both_ways`](Self::run_both_ways), on [pixels that lie apart](Pixels::of). What is
    /// between them must stay as it is.
    pub fn run_apart(&self, plan: &Plan<T>, gaps: [Option<usize>; 3]) -> Vec<T> {
        let [of_x, of_residual, of_y] = Pixels::of(plan.geometry(), gaps);
        let (x, packed) = (of_x.spread(&self.x, T::from_f64(f64::NAN)), self.pack(plan));
        let residual = self.residual.as_ref().map(|values| of_residual.spread(values, T::from_f64(f64::NAN)));
        let mut memory = vec![NAN_BYTE; plan.workspace_bytes() + 63];
        let mut run = |run: Run<'_, '_, T>| {
            let mut workspace = Workspace::borrowed(&mut memory);
            let run = run.x_pixel_stride(of_x.stride).y_pixel_stride(of_y.stride).workspace(&mut workspace);
            let y = plan.run(run).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
            of_y.gather(y, T::from_f64(UNTOUCHED))
        };
        let mut wide = of_y.spread(&vec![T::from_f64(f64::NAN); plan.geometry().output_len()], T::from_f64(UNTOUCHED));
        let mut uninit: Vec<_> = wide.iter().copied().map(MaybeUninit::new).collect();
        // What is between pixels must be initialised.
        let is_apart = of_y.stride.is_some();
        let first = if is_apart { Run::new(&x, &packed, &mut wide) } else { Run::uninit(&x, &packed, &mut uninit) };
        let y = run(first.residual(residual.as_deref()).residual_pixel_stride(of_residual.stride));
        if let Some(residual) = &self.residual {
            let in_place = run(Run::in_place(&x, &packed, &mut of_y.spread(residual, T::from_f64(UNTOUCHED))));
            assert_eq!(bits(&in_place), bits(&y), "with the residual in Y: {plan:?}");
        }
        y
    }

    /// Runs with the smallest workspace that is enough for all threads. Workspace and output are
    /// full of NaN before, so that the result shows what is read before it is written, or not
    /// written.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run_packed(&self, plan: &Plan<T>, packed: &PackedWeights<T>, threads: Threads<'_>) -> Result<Vec<T>, Error> {
        let mut memory = vec![NAN_BYTE; plan.workspace_bytes() + 63];
        let mut workspace = Workspace::borrowed(&mut memory);
        let mut y = vec![MaybeUninit::new(T::from_f64(f64::NAN)); plan.geometry().output_len()];
        plan.run(
            Run::uninit(&self.x, packed, &mut y)
                .residual(self.residual.as_deref())
                .workspace(&mut workspace)
                .threads(threads),
        )
        .map(|y| y.to_vec())
    }
}

/// What lies between the pixels of Y, before and after a run.
pub const UNTOUCHED: f64 = 77.0;

/// Pixels of a tensor in memory, which may be those of a wider tensor.
#[derive(Debug, Clone, Copy)]
pub struct Pixels {
    channels: usize,
    /// Elements from pixel to pixel, if a run is to be told.
    pub stride: Option<usize>,
}

impl Pixels {
    /// Those of X, the residual and Y, with so many elements between them where channels are last.
    pub fn of(geometry: &Geometry, [x, residual, y]: [Option<usize>; 3]) -> [Self; 3] {
        let of = |layout, channels, gap: Option<usize>| {
            let gap = gap.filter(|_| layout == Layout::ChannelsLast);
            Self { channels, stride: gap.map(|gap| channels + gap) }
        };
        let of_y = |gap| of(geometry.y_layout, geometry.out_channels, gap);
        [of(geometry.x_layout, geometry.in_channels, x), of_y(residual), of_y(y)]
    }

    /// Memory of the pixels of `values`, with `fill` between them.
    pub fn spread<T: Copy>(self, values: &[T], fill: T) -> Vec<T> {
        apart(values, (self.channels, self.stride.unwrap_or(self.channels)), fill)
    }

    /// The values of the pixels of Y.
    ///
    /// # Panics
    /// If what is between them is not `untouched`.
    pub fn gather<T: Copy + PartialEq>(self, memory: &[T], untouched: T) -> Vec<T> {
        let mut values = Vec::with_capacity(memory.len());
        for pixel in memory.chunks(self.stride.unwrap_or(self.channels).max(1)) {
            let (pixel, between) = pixel.split_at(pixel.len().min(self.channels));
            assert!(between.iter().all(|y| *y == untouched), "elements between pixels were written");
            values.extend_from_slice(pixel);
        }
        values
    }
}

/// Memory of pieces of `len` elements that begin `distance` elements apart, with `fill` between
/// them. It ends with the last piece.
pub fn apart<T: Copy>(values: &[T], (len, distance): (usize, usize), fill: T) -> Vec<T> {
    let mut memory = vec![fill; (values.len() / len.max(1) * distance).saturating_sub(distance - len)];
    for (from, to) in values.chunks_exact(len.max(1)).zip(memory.chunks_mut(distance.max(1))) {
        to[..len].copy_from_slice(from);
    }
    memory
}

/// The byte with which NaNs of every element type can be filled.
pub const NAN_BYTE: u8 = 0xff;

/// The bits of values, for comparisons that distinguish zeros and NaNs.
pub fn bits<T: Scalar>(values: &[T]) -> Vec<u64> {
    values.iter().map(|v| v.to_f64().to_bits()).collect()
}
