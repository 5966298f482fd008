//! What the tests of runs share: layers, operands, every combination of algorithm and ISA, and
//! the comparison with the reference.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of this module")]

pub mod layers;
pub mod operands;
pub mod oracle;

use std::fmt;

use convoke::{Activation, Algorithm, Element, Error, ErrorKind, Executor, Geometry, Isa, Op, Operator, Plan, Planner};
use convoke_tools::named;

pub use layers::Layer;
pub use operands::Operands;
pub use oracle::Oracle;

/// An algorithm on an ISA. Tests force it, and failures name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combination {
    pub algorithm: Algorithm,
    pub isa: Isa,
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.algorithm, self.isa)
    }
}

impl Combination {
    /// Every algorithm of this build on every ISA of this CPU and build. With fewer cases than
    /// usual, the portable tier is left out where there is another one: emulators run the tests of an
    /// architecture for its own instructions.
    pub fn all() -> impl Iterator<Item = Self> {
        let is_tested = |isa: &Isa| *isa != Isa::Portable || !is_short() || Isa::detect() == Isa::Portable;
        algorithms().flat_map(move |algorithm| isas().filter(is_tested).map(move |isa| Self { algorithm, isa }))
    }

    /// The same, with the naive loops on one ISA alone: they do not depend on it. In short runs they
    /// are left to the random layers, because they are slow.
    pub fn distinct() -> impl Iterator<Item = Self> {
        let first = Self::all().next().map(|combination| combination.isa).filter(|_| !is_short());
        Self::all().filter(move |c| c.algorithm != named("naive") || Some(c.isa) == first)
    }

    /// A planner that is forced to this combination.
    pub fn planner(self) -> Planner {
        Planner::new().isa(self.isa).algorithm(self.algorithm)
    }

    /// Plans a layer. None if the algorithm may reject the layer. The plan has the algorithm and
    /// the ISA that were forced.
    ///
    /// # Panics
    /// If the algorithm rejects a layer that it must accept, or rejects a layer with an error of
    /// another kind.
    pub fn plan<T: Element>(self, layer: &Layer, tune: impl FnOnce(Planner) -> Planner) -> Option<Plan<T>> {
        let accepts = accepts(self.algorithm, &layer.geometry());
        match tune(self.planner()).plan::<T>(layer.operator.clone(), &layer.x_shape) {
            Ok(plan) => {
                assert_eq!(self.algorithm.accepts(&layer.geometry()), Ok(()), "{self}: {layer}");
                assert_eq!(
                    (plan.algorithm(), plan.isa()),
                    (self.algorithm, self.isa),
                    "{self}: {layer}: not what was forced"
                );
                Some(plan)
            }
            Err(error) if accepts => panic!("{self} rejects {layer}: {error}"),
            Err(error) => {
                self.check_rejection(&error);
                None
            }
        }
    }

    fn check_rejection(self, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{self}: {error}");
        let message = error.to_string();
        assert!(message.contains(self.algorithm.name()), "{self}: {message:?} does not name the algorithm");
    }
}

/// The algorithms of this build.
pub fn algorithms() -> impl Iterator<Item = Algorithm> {
    let lacking = [(":gemm", cfg!(feature = "blas-gemm")), (":matrixmultiply", cfg!(feature = "blas-matrixmultiply"))];
    let is_built = move |a: &Algorithm| !lacking.iter().any(|(end, is_there)| a.name().ends_with(end) && !is_there);
    Algorithm::all().filter(is_built)
}

/// The ISAs that this CPU has and this build includes.
pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// Whether an algorithm must accept a layer of a moderate size: by its own rules, which the planner
/// reads too.
pub fn accepts(algorithm: Algorithm, geometry: &Geometry) -> bool {
    // Channel-gemm keeps the sums of a panel of channels over the whole of Y, which has no rule of shapes.
    if algorithm == named("channel-gemm") && geometry.op == Op::ConvTranspose && geometry.input_spatial() > 1 << 11 {
        return false;
    }
    // Winograd interleaves phases within vectors, and the shortest vectors have four lanes.
    let is_interleaved = algorithm != named("winograd")
        || geometry.op == Op::Conv
        || geometry.axes.last().is_some_and(|axis| 4_usize.is_multiple_of(axis.stride));
    // Groups of several channels are parts of vectors.
    let is_part = algorithm != named("pixel-depthwise") || geometry.in_channels_per_group() <= 4;
    is_interleaved && is_part && algorithm.accepts(geometry).is_ok()
}

/// Random layers for each algorithm, ISA and element type, unless the environment variable
/// `CONVOKE_CASES` sets another number.
const CASES: u32 = 128;

/// The number of random layers.
pub fn cases() -> u32 {
    std::env::var("CONVOKE_CASES").map_or(CASES, |cases| cases.parse().expect("CONVOKE_CASES is a number"))
}

/// Whether fewer cases than usual are requested, as for an emulator. Tests that repeat the same
/// for many sizes then use only the smallest and the largest.
pub fn is_short() -> bool {
    cases() < CASES
}

/// Every activation, with parameters that make each of its branches matter for values around 1.
pub const ACTIVATIONS: [Activation; 12] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { min: -0.75, max: 1.25 },
    Activation::LeakyRelu { alpha: 0.125 },
    Activation::LeakyRelu { alpha: -1.5 },
    Activation::HardSwish,
    Activation::Silu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Mish,
];

/// Calls a generic function once for each element type.
#[macro_export]
macro_rules! for_each_type {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $function::<f32>($($argument),*);
        $function::<f64>($($argument),*);
        $function::<convoke::f16>($($argument),*);
        $function::<convoke::bf16>($($argument),*);
    };
}

/// Shorthand for tables of layers.
pub fn layer(operator: impl Into<Operator>, x_shape: impl Into<Vec<usize>>) -> Layer {
    Layer::new(operator, x_shape)
}

/// Threads of the standard library, started for each run.
pub struct Scoped(pub usize);

impl Executor for Scoped {
    fn width(&self) -> usize {
        self.0
    }

    fn for_each(&self, count: usize, call: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for i in 1..count {
                scope.spawn(move || call(i));
            }
            call(0);
        });
    }
}

/// Prints what was being done if a panic leaves the scope that holds it.
pub struct Context<F: Fn() -> String>(pub F);

impl<F: Fn() -> String> Drop for Context<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("while testing {}", (self.0)());
        }
    }
}
