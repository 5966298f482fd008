//! The points of Winograd's transforms, and the polynomials that follow from them.
//!
//! The transforms of input, output and filters all read the same points. The algebra stands in
//! `generic/winograd.rs`.

/// The most pairs of points of a transform: those of 8 values.
pub(crate) const PAIRS: usize = 3;

/// The points of an n-value transform, and the polynomials of its input transform.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Points {
    /// The positive point of each pair, and its square.
    pub(crate) a: [f64; PAIRS],
    pub(crate) squares: [f64; PAIRS],
    /// Coefficients of P in x^2, from the lowest on; the leading one is 1.
    pub(crate) all: [f64; PAIRS + 1],
    /// Coefficients of each P_i in x^2, from the lowest on.
    pub(crate) without: [[f64; PAIRS]; PAIRS],
    /// The single point c, if the number of values is odd.
    pub(crate) single: f64,
}

impl Points {
    /// Computes the polynomials from the squares of the pairs' points: the squares are exact
    /// where the points are not.
    const fn new(a: [f64; PAIRS], squares: [f64; PAIRS], pairs: usize) -> Self {
        let (mut all, mut without) = ([0.0; PAIRS + 1], [[0.0; PAIRS]; PAIRS]);
        all[0] = 1.0;
        let mut degree = 0;
        while degree < pairs {
            multiply(&mut all, degree, squares[degree]);
            degree += 1;
        }
        let mut i = 0;
        while i < pairs {
            let (mut p, mut j, mut degree) = ([0.0; PAIRS + 1], 0, 0);
            p[0] = 1.0;
            while j < pairs {
                if j != i {
                    multiply(&mut p, degree, squares[j]);
                    degree += 1;
                }
                j += 1;
            }
            let [lowest @ .., _] = p;
            without[i] = lowest;
            i += 1;
        }
        Self { a, squares, all, without, single: 0.0 }
    }

    /// The points of the transform with `n` values.
    ///
    /// For n = 6, +-sqrt(1/2) and +-sqrt(2) have the least error among the points tried in the
    /// literature (Barabasz, Anderson, Soodhalter and Gregg, "Error Analysis and Improving the
    /// Accuracy of Winograd Convolution for Deep Neural Networks", 2020). For n = 8 the pairs are
    /// reciprocal for the same reason: no power of a point grows much. For n = 7 the single point
    /// replaces the pair with the fastest growing powers; -2 has less error than 2 if all weights
    /// have one sign.
    pub(crate) const fn of(n: usize) -> Self {
        const ROOT_2: f64 = core::f64::consts::SQRT_2;
        match n {
            4 => Self::new([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], 1),
            6 => Self::new([ROOT_2 / 2.0, ROOT_2, 0.0], [0.5, 2.0, 0.0], 2),
            7 => Self { single: -2.0, ..Self::new([0.5, 1.0, 0.0], [0.25, 1.0, 0.0], 2) },
            8 => Self::new([0.5, 1.0, 2.0], [0.25, 1.0, 4.0], 3),
            // There is no transform for n = 1, nor for any other n.
            _ => Self::new([0.0; PAIRS], [0.0; PAIRS], 0),
        }
    }
}

/// Number of pairs of points of an n-value transform.
pub(crate) const fn pairs(n: usize) -> usize {
    if n == 1 { 0 } else { n / 2 - 1 }
}

/// Whether an n-value transform has a single point beside its pairs. Its value is the last but
/// one.
pub(crate) const fn has_single(n: usize) -> bool {
    n > 1 && n % 2 == 1
}

/// Multiplies `p`, a polynomial of degree `degree` in x^2, by `x^2 - square`.
const fn multiply(p: &mut [f64; PAIRS + 1], degree: usize, square: f64) {
    let mut q = degree + 1;
    while q > 0 {
        p[q] = p[q - 1] - square * p[q];
        q -= 1;
    }
    p[0] *= -square;
}
