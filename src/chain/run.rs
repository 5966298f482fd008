//! A run of a chain.

use core::array;

use spin::Mutex;

use super::plan::{Chain, StripLayer, of_layer, row_lens};
use super::strips::{MOST_PARTS, Strip};
use crate::Layout;
use crate::element::Element;
use crate::error::{Error, bail};
use crate::exec::{Arena, Line, Threads, Workspace, share};
use crate::plan::{MOST_SPREAD, PackedWeights, Plan, Run};
use crate::spec::Strides;
use crate::units::Count;

/// What a [run](Chain::run) of a chain reads and writes: X, the packed weights of each layer, Y, and what else is asked
/// for.
#[must_use]
pub struct ChainRun<'a, T: Element> {
    x: &'a [T],
    packed: &'a [PackedWeights<T>],
    residual: Option<&'a [T]>,
    y: &'a mut [T],
    /// Memory, and its size for error messages.
    workspace: Option<(&'a mut [Line], usize)>,
    threads: Threads<'a>,
    x_pixel: Option<usize>,
    residual_pixel: Option<usize>,
    y_pixel: Option<usize>,
}

impl<'a, T: Element> ChainRun<'a, T> {
    /// Computes Y from X, `(N, spatial..., C)`, with the weights of all layers in their order, on the calling thread.
    pub fn new(x: &'a [T], packed: &'a [PackedWeights<T>], y: &'a mut [T]) -> Self {
        let (residual, workspace, threads) = (None, None, Threads::Serial);
        Self { x, packed, residual, y, workspace, threads, x_pixel: None, residual_pixel: None, y_pixel: None }
    }

    /// Adds a tensor of Y's shape before the last activation: X itself, for example. `None` adds nothing.
    pub fn residual(self, residual: Option<&'a [T]>) -> Self {
        Self { residual, ..self }
    }

    /// The scratch memory. Without it, the run allocates its own.
    pub fn workspace(self, workspace: &'a mut Workspace<'_>) -> Self {
        let unaligned = workspace.unaligned();
        Self { workspace: Some((workspace.lines(), unaligned)), ..self }
    }

    /// The threads: no more than the chain was planned for.
    pub fn threads(self, threads: Threads<'a>) -> Self {
        Self { threads, ..self }
    }

    /// The distance between the pixels of X, as in [`Run::x_pixel_stride`].
    pub fn x_pixel_stride(self, elements: impl Into<Option<usize>>) -> Self {
        Self { x_pixel: elements.into(), ..self }
    }

    /// The same of the residual.
    pub fn residual_pixel_stride(self, elements: impl Into<Option<usize>>) -> Self {
        Self { residual_pixel: elements.into(), ..self }
    }

    /// The same of Y, whose elements between pixels stay as they are.
    pub fn y_pixel_stride(self, elements: impl Into<Option<usize>>) -> Self {
        Self { y_pixel: elements.into(), ..self }
    }
}

/// How the rows of X, of the residual or of Y lie.
#[derive(Clone, Copy)]
struct RowsOf {
    images: usize,
    /// Rows of an image, elements from one to the next, and from one pixel to the next.
    rows: usize,
    row: usize,
    pixel: Option<usize>,
}

impl RowsOf {
    /// Checks a tensor of `len` elements.
    fn new(name: &str, len: usize, shape: &[usize], pixel: Option<usize>) -> Result<Self, Error> {
        let (channels, rows) = (shape[1], shape[2]);
        let distance = pixel.unwrap_or(channels);
        if distance < channels {
            bail!(InvalidShape, "Conv: {name} has a pixel stride of {distance}, a pixel has {channels} elements");
        }
        let positions: usize = shape[2..].iter().product();
        let needed =
            Strides::new(Layout::ChannelsLast, channels, positions, distance).span(shape[0], channels, positions);
        // Without elements, it does not matter where they would be.
        let row = match needed {
            Some(0) => Some(0),
            _ => shape[3..].iter().try_fold(distance, |row, size| row.checked_mul(*size)),
        };
        let (Some(row), Some(needed)) = (row, needed) else {
            bail!(Overflow, "Conv: {name} exceeds the address space: its pixels are {distance} elements apart");
        };
        let of_image = rows.saturating_mul(row);
        if needed > 0 && pixel.is_some() && of_image > MOST_SPREAD {
            bail!(
                Overflow,
                "Conv: {name} has a pixel stride of {distance}: the pixels of an image spread over {of_image} elements, \
                 more than {MOST_SPREAD}"
            );
        }
        if len < needed || (pixel.is_none() && len != needed) {
            bail!(BufferLength, "Conv: {name} has {len} elements, its shape {shape:?} asks for {needed}");
        }
        Ok(Self { images: shape[0], rows, row, pixel })
    }

    /// Some rows of an image. The last pixel of a tensor may end before the next one would begin.
    fn get<'t, T>(&self, tensor: &'t [T], image: usize, rows: &core::ops::Range<usize>) -> &'t [T] {
        let at = |row: usize| ((image * self.rows + row) * self.row).min(tensor.len());
        &tensor[at(rows.start)..at(rows.end)]
    }
}

/// What all strips of an image have in common.
struct ImageRun<'a, T: Element> {
    chain: &'a Chain<T>,
    packed: &'a [PackedWeights<T>],
    x: &'a [T],
    residual: Option<&'a [T]>,
    image: usize,
    of_x: RowsOf,
    of_residual: RowsOf,
    y_pixel: Option<usize>,
    /// The threads of each layer.
    threads: Threads<'a>,
}

impl<T: Element> Chain<T> {
    /// Computes Y.
    ///
    /// With a workspace, it allocates nothing but what the runs of its layers do. The result is the same, bit for bit,
    /// for any number of threads. It need not have the bits of the layers one after the other, which cut their rows
    /// otherwise; the bound of errors is that of each layer.
    ///
    /// # Errors
    /// As [`Plan::run`](crate::Plan::run); [`InvalidInput`](crate::ErrorKind::InvalidInput) if there are not as many
    /// packed weights as layers. Y is untouched then.
    pub fn run(&self, run: ChainRun<'_, T>) -> Result<(), Error> {
        let ChainRun { x, packed, residual, y, workspace, threads, x_pixel, residual_pixel, y_pixel } = run;
        if packed.len() != self.layers.len() {
            let (given, layers) = (packed.len(), self.layers.len());
            bail!(InvalidInput, "a chain of {layers} layers was given the packed weights of {given}");
        }
        for (i, (StripLayer { plans, .. }, packed)) in self.layers.iter().zip(packed).enumerate() {
            let check = |(_, plan): &(_, Plan<T>)| plan.check_runnable().and_then(|()| plan.accepts(packed));
            plans.iter().try_for_each(check).map_err(|error| of_layer(i, &error))?;
        }
        let (of_x, y_shape) = (RowsOf::new("X", x.len(), &self.input_shape(), x_pixel)?, self.output_shape());
        let of_y = RowsOf::new("Y", y.len(), &y_shape, y_pixel)?;
        let of_residual = match residual {
            Some(residual) => RowsOf::new("the residual", residual.len(), &y_shape, residual_pixel)?,
            None => of_y,
        };
        let count = self.checked_count(threads)?;
        // An executor's width may change.
        let threads = threads.at_most(count);
        let (slots, of_layers) =
            if self.shares_layers { (1, threads) } else { (count.min(MOST_PARTS), Threads::Serial) };
        let share_of = self.scratch.lines();
        let needs = slots * share_of * size_of::<Line>();
        let mut own = None;
        let scratch = match workspace {
            Some((lines, unaligned)) if size_of_val(lines) < needs => {
                let has = Workspace::description(size_of_val(lines), unaligned);
                bail!(Workspace, "Conv: {has}, a chain on {} needs {needs}", Count(count, "thread"));
            }
            Some((lines, _)) => lines,
            None => own.insert(Workspace::with_bytes(needs)?).lines(),
        };
        let mut rest = y;
        for image in 0..if self.strips.is_empty() { 0 } else { of_y.images } {
            let (of_image, behind) = split_rows(rest, of_y.rows * of_y.row);
            rest = behind;
            let run =
                ImageRun { chain: self, packed, x, residual, image, of_x, of_residual, y_pixel, threads: of_layers };
            run.for_all(of_image, of_y.row, (threads, slots), (&mut *scratch, share_of));
        }
        Ok(())
    }

    /// The number of threads, if they may run the chain.
    fn checked_count(&self, threads: Threads<'_>) -> Result<usize, Error> {
        let (count, planned) = (threads.count(), self.threads);
        if count == 0 || count > planned {
            bail!(
                Threads,
                "Conv: the chain was planned for {}, the run has {count}; there must be at least 1 and at most {planned}",
                Count(planned, "thread")
            );
        }
        Ok(count)
    }
}

/// The first `len` elements, or all if the tensor ends before.
fn split_rows<T>(y: &mut [T], len: usize) -> (&mut [T], &mut [T]) {
    let len = len.min(y.len());
    y.split_at_mut(len)
}

impl<T: Element> ImageRun<'_, T> {
    /// Computes an image in as many parts as there are slots, each some strips.
    fn for_all(
        &self,
        y: &mut [T],
        row: usize,
        (threads, slots): (Threads<'_>, usize),
        (scratch, share_of): (&mut [Line], usize),
    ) {
        let strips = &self.chain.strips;
        let mut rest = y;
        let parts: [_; MOST_PARTS] = array::from_fn(|part| {
            if part >= slots {
                return Mutex::new(&mut [][..]);
            }
            let of_part = &strips[share(strips.len(), slots, part)];
            let rows: usize = of_part.iter().map(|strip| strip.outputs.len()).sum();
            let (y, behind) = split_rows(core::mem::take(&mut rest), rows * row);
            rest = behind;
            Mutex::new(y)
        });
        threads.for_each(slots, slots, scratch, share_of, &|part: usize, scratch: &mut [Line]| {
            let mut y = parts[part].lock();
            self.part(&strips[share(strips.len(), slots, part)], &mut y, row, scratch);
        });
    }

    /// Computes neighbouring strips.
    fn part(&self, strips: &[Strip], y: &mut [T], row: usize, scratch: &mut [Line]) {
        let Chain { layers, middle, pieces, .. } = self.chain;
        let mut arena = Arena::new(scratch);
        let inputs = arena.get(pieces.inputs);
        let [a, b] = pieces.rows.map(|piece| arena.get(piece));
        let mut rows = RowsBetween { rows: [a, b], workspace: arena.get(pieces.workspace), threads: self.threads };
        let (before, behind) = (&layers[..*middle], &layers[*middle..]);
        let len = row_lens(&layers[*middle].geometry)[0];
        let (mut first, mut rest) = (0, y);
        for (i, strip) in strips.iter().enumerate() {
            let x = match before {
                [] => self.of_x.get(self.x, self.image, &strip.inputs),
                _ => {
                    let carried = strip.carried - strip.inputs.start;
                    if i > 0 && carried > 0 {
                        let from = (strip.inputs.start - first) * len;
                        inputs.copy_within(from..from + carried * len, 0);
                    } else if carried > 0 {
                        self.before(strip, &(strip.inputs.start..strip.carried), inputs, &mut rows);
                    }
                    self.before(strip, &(strip.carried..strip.halo), inputs, &mut rows);
                    self.before(strip, &(strip.halo..strip.inputs.end), inputs, &mut rows);
                    first = strip.inputs.start;
                    &inputs[..strip.inputs.len() * len]
                }
            };
            let (of_strip, next) = split_rows(core::mem::take(&mut rest), strip.outputs.len() * row);
            rest = next;
            let residual = self.residual.map(|residual| self.of_residual.get(residual, self.image, &strip.outputs));
            let last = LastRows { y: of_strip, pixel: self.y_pixel, residual, residual_pixel: self.of_residual.pixel };
            let x_pixel = if before.is_empty() { self.of_x.pixel } else { None };
            let calls = behind.iter().enumerate().map(|(i, layer)| {
                (layer, if i == 0 { (strip.inputs.len(), strip.pads) } else { (strip.outputs.len(), [0, 0]) })
            });
            rows.run(calls, &self.packed[*middle..], (x, x_pixel), last);
        }
    }

    /// Computes some of the rows that a strip reads, by the layers before the middle one.
    fn before(
        &self,
        strip: &Strip,
        rows: &core::ops::Range<usize>,
        inputs: &mut [T],
        between: &mut RowsBetween<'_, T>,
    ) {
        let Chain { layers, middle, .. } = self.chain;
        if rows.is_empty() {
            return;
        }
        let len = row_lens(&layers[*middle].geometry)[0];
        let y = &mut inputs[(rows.start - strip.inputs.start) * len..(rows.end - strip.inputs.start) * len];
        let calls = layers[..*middle].iter().map(|layer| (layer, (rows.len(), [0, 0])));
        let x = (self.of_x.get(self.x, self.image, rows), self.of_x.pixel);
        let last = LastRows { y, pixel: None, residual: None, residual_pixel: None };
        between.run(calls, self.packed, x, last);
    }
}

/// Where the rows of the last of some layers go.
struct LastRows<'y, T> {
    y: &'y mut [T],
    pixel: Option<usize>,
    residual: Option<&'y [T]>,
    residual_pixel: Option<usize>,
}

/// Rows between layers, which take them in turn, and the workspace of their plans.
struct RowsBetween<'s, T> {
    rows: [&'s mut [T]; 2],
    workspace: &'s mut [Line],
    threads: Threads<'s>,
}

impl<T: Element> RowsBetween<'_, T> {
    /// Runs layers behind one another, each with the rows of its call.
    fn run<'l>(
        &mut self,
        calls: impl ExactSizeIterator<Item = (&'l StripLayer<T>, super::plan::RowsOfCall)>,
        packed: &[PackedWeights<T>],
        (x, x_pixel): (&[T], Option<usize>),
        last: LastRows<'_, T>,
    ) {
        let (Self { rows: [to, from], workspace, threads }, end) = (self, calls.len() - 1);
        // Each call begins with the same rows: those of the last one are still near.
        let [mut from, mut to] = [&mut **from, &mut **to];
        let LastRows { y, pixel, residual, residual_pixel } = last;
        let (mut y, mut x_len) = (Some(y), 0);
        for (i, ((layer, rows), packed)) in calls.zip(packed).enumerate() {
            let plan = layer.plan(rows);
            let (x, x_pixel) = if i == 0 { (x, x_pixel) } else { (&from[..x_len], None) };
            let len = plan.geometry().output_len();
            let run = match y.take_if(|_| i == end) {
                Some(y) => {
                    let run = Run::new(x, packed, y).residual(residual).residual_pixel_stride(residual_pixel);
                    run.y_pixel_stride(pixel)
                }
                None => Run::new(x, packed, &mut to[..len]),
            };
            let done = plan.run(run.x_pixel_stride(x_pixel).scratch(workspace).threads(*threads));
            done.expect("lengths and weights were checked");
            core::mem::swap(&mut from, &mut to);
            x_len = len;
        }
    }
}
