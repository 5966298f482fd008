//! A run of a region.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use convoke::{DType, PackedWeights, Plan, f16};
use half::slice::HalfFloatSliceExt;
use lru::LruCache;

use crate::api::{Failure, Result, lock};
use crate::graph;
use crate::layer::{Layer, execute};
use crate::region::bytes::{ByteScale, RANGES};
use crate::region::integers::PlannedIntegers;
use crate::region::passes::{self, Part, Pixels};
use crate::region::program::{Act, Extent, Place, Program, What};
use crate::region::steps::{Element, Memory, Step, Tensor};
use crate::run::{Run, overlaps};
use crate::session::{LINE, Session};
use crate::sum;
use crate::weights::MOST_PLANS;

type ProgramsByShapes = LruCache<Vec<Vec<usize>>, Arc<Program>>;

/// A region that is compiled.
pub(crate) struct RegionLayer {
    session: Arc<Session>,
    /// The element type of inputs and outputs.
    dtype: DType,
    tensors: Vec<Tensor>,
    steps: Vec<Step>,
    inputs: usize,
    programs: Mutex<ProgramsByShapes>,
}

impl RegionLayer {
    pub(crate) fn new(session: Arc<Session>, dtype: DType, tensors: Vec<Tensor>, steps: Vec<Step>) -> Self {
        let place = |tensor: &Tensor| if let Memory::Input(i) = tensor.memory { i + 1 } else { 0 };
        let inputs = tensors.iter().map(place).max().unwrap_or(0);
        Self { session, dtype, tensors, steps, inputs, programs: Mutex::new(LruCache::new(MOST_PLANS)) }
    }

    fn program(&self, shapes: Vec<Vec<usize>>) -> Result<Arc<Program>> {
        if let Some(program) = lock(&self.programs).get(&shapes) {
            return Ok(program.clone());
        }
        let program = Arc::new(Program::new(&self.session, &self.steps, &self.tensors, &shapes)?);
        lock(&self.programs).put(shapes, program.clone());
        Ok(program)
    }
}

impl Layer for RegionLayer {
    fn run(&self, run: Run) -> Result<()> {
        let tensors = (0..self.inputs).map(|i| run.input(i)).collect::<Result<Vec<_>>>()?;
        let program = self.program(tensors.iter().map(|tensor| tensor.shape()).collect::<Result<_>>()?)?;
        match self.dtype {
            DType::F16 => self.run_short(run, &program, &tensors),
            _ => self.run_in_place(run, &program, &tensors),
        }
    }
}

impl RegionLayer {
    /// A run whose tensors are read and written where they are.
    fn run_in_place(&self, run: Run, program: &Program, tensors: &[graph::Tensor<'_>]) -> Result<()> {
        let mut inputs: Vec<&[u8]> = Vec::new();
        for tensor in tensors {
            inputs.push(match tensor.bytes()? {
                Some(bytes) => bytes,
                None => bytemuck::cast_slice(tensor.elements::<f32>()?),
            });
        }
        let outputs = outputs_of(program, |i, shape, element| {
            let len = shape.iter().product();
            Ok(match element {
                Element::Byte => run.output::<u8>(i, shape, len)?,
                Element::Float => run.output::<f32>(i, shape, len)?.map(bytes_of),
            })
        })?;
        // The caller of the run may have bound an output to memory of an input.
        let is_shared = |x: &&[u8]| outputs.iter().flatten().any(|y| overlaps(*y, x));
        let copies: Vec<Option<Vec<u8>>> = inputs.iter().map(|x| is_shared(x).then(|| x.to_vec())).collect();
        for (input, copy) in inputs.iter_mut().zip(&copies) {
            *input = copy.as_deref().unwrap_or(input);
        }
        self.session.with_memory(program.memory, |memory| self.compute(run, program, (inputs, outputs), memory))
    }

    /// A run whose tensors are short floats: inputs are converted before, and outputs behind it.
    fn run_short(&self, run: Run, program: &Program, tensors: &[graph::Tensor<'_>]) -> Result<()> {
        let short = tensors.iter().map(|tensor| tensor.elements::<f16>()).collect::<Result<Vec<_>>>()?;
        let outputs = outputs_of(program, |i, shape, _| run.output::<f16>(i, shape, shape.iter().product()))?;
        let lens = short.iter().map(|x| x.len()).chain(outputs.iter().map(|y| y.map_or(0, NonNull::len)));
        let lens: Vec<usize> = lens.map(|len| (len * size_of::<f32>()).next_multiple_of(LINE)).collect();
        let len = lens.iter().fold(program.memory, |sum, len| sum.saturating_add(*len));
        self.session.with_memory(len, |mut memory| {
            let mut floats = lens.iter().map(|len| memory.split_off_mut(..*len).unwrap_or_default());
            let x: Vec<_> = floats.by_ref().take(short.len()).collect();
            let mut y: Vec<_> = floats.collect();
            let inputs = x.into_iter().zip(&short).map(|(x, short)| {
                let x = &mut bytemuck::cast_slice_mut(x)[..short.len()];
                short.convert_to_f32_slice(x);
                bytemuck::cast_slice(x)
            });
            let floats = y.iter_mut().zip(&outputs).map(|(y, short)| {
                let y = &mut y[..(*short)?.len() * size_of::<f32>()];
                NonNull::new(std::ptr::from_mut(y) as *mut [MaybeUninit<u8>])
            });
            self.compute(run, program, (inputs.collect(), floats.collect()), memory)?;
            for (y, mut short) in y.iter().zip(outputs).filter_map(|(y, short)| Some((y, short?))) {
                // SAFETY: onnxruntime gave room for so many elements, and nothing else has this memory.
                let short = unsafe { short.as_mut() };
                short.fill(MaybeUninit::new(f16::ZERO));
                // SAFETY: every element was initialised.
                let short = unsafe { &mut *(std::ptr::from_mut(short) as *mut [f16]) };
                short.convert_from_f32_slice(&bytemuck::cast_slice(y)[..short.len()]);
            }
            Ok(())
        })
    }

    /// Does all that is to be done, from inputs to outputs.
    fn compute(
        &self,
        run: Run,
        program: &Program,
        (inputs, outputs): (Vec<&[u8]>, Vec<Output<u8>>),
        memory: &mut [u8],
    ) -> Result<()> {
        let tensors = TensorsOfRun { run, session: &self.session, program, inputs, outputs };
        program.acts.iter().try_for_each(|act| tensors.compute(act, memory))
    }
}

/// Room for the elements of an output, unless nobody reads it.
type Output<T> = Option<NonNull<[MaybeUninit<T>]>>;

/// The outputs of a run, by their numbers.
fn outputs_of<T>(
    program: &Program,
    output: impl Fn(usize, &[usize], Element) -> Result<Output<T>>,
) -> Result<Vec<Output<T>>> {
    let most = program.outputs.iter().map(|(i, ..)| i + 1).max().unwrap_or(0);
    let mut outputs = vec![None; most];
    for (i, shape, element) in &program.outputs {
        outputs[*i] = output(*i, shape, *element)?;
    }
    Ok(outputs)
}

/// Floats as bytes.
fn bytes_of(floats: NonNull<[MaybeUninit<f32>]>) -> NonNull<[MaybeUninit<u8>]> {
    NonNull::slice_from_raw_parts(floats.cast(), floats.len() * size_of::<f32>())
}

/// The tensors of a run.
struct TensorsOfRun<'a> {
    run: Run,
    session: &'a Session,
    program: &'a Program,
    inputs: Vec<&'a [u8]>,
    outputs: Vec<Output<u8>>,
}

/// The memory of a region but for what an act writes to.
#[derive(Clone, Copy)]
struct Others<'a> {
    before: &'a [u8],
    behind: &'a [u8],
    /// Where the bytes behind begin.
    end: usize,
}

impl<'a> Others<'a> {
    /// The bytes of a tensor, which has none if all in which it lies have none.
    fn bytes(self, Extent { end, first, .. }: Extent) -> Result<&'a [u8]> {
        if first >= end {
            return Ok(&[]);
        }
        let (part, begin) = if first < self.end { (self.before, 0) } else { (self.behind, self.end) };
        part.get(first - begin..end - begin).ok_or_else(|| Failure::other("a region reads what it writes"))
    }
}

impl TensorsOfRun<'_> {
    /// What is read, and the distance of its pixels if it is in memory of the region with channels last.
    fn read<'s, T: Pod>(&'s self, tensor: usize, others: Others<'s>) -> Result<(&'s [T], Option<usize>)> {
        let (bytes, pixel) = match self.program.places[tensor] {
            Place::Input(i) => (self.inputs[i], None),
            Place::Own(extent) => (others.bytes(extent)?, extent.pixel),
            Place::Output(_) => return Err(Failure::other("a region reads its output")),
        };
        let elements = bytemuck::try_cast_slice(bytes);
        Ok((elements.map_err(|_| Failure::other("a region reads elements of another type"))?, pixel))
    }

    fn pixels<'s, T: Pod>(&'s self, tensor: usize, others: Others<'s>, channels: usize) -> Result<Pixels<'s, T>> {
        let (elements, step) = self.read(tensor, others)?;
        Ok(Pixels { elements, step: step.unwrap_or(channels), channels })
    }

    fn compute(&self, act: &Act, memory: &mut [u8]) -> Result<()> {
        match self.program.places[act.writes] {
            Place::Output(i) => {
                let Some(mut y) = self.outputs[i] else { return Ok(()) };
                // SAFETY: it is room for so many bytes, of `run_in_place` or `run_short`. Nothing else has this memory:
                // inputs that share it were copied, and no act reads an output.
                let y = unsafe { y.as_mut() };
                let others = Others { before: memory, behind: &[], end: memory.len() };
                if act.element == Element::Byte {
                    y.fill(MaybeUninit::new(0));
                    // SAFETY: every byte was initialised.
                    let y = unsafe { &mut *(std::ptr::from_mut(y) as *mut [u8]) };
                    return self.fill_bytes(act, others, y, None);
                }
                let len = y.len() / size_of::<f32>();
                // SAFETY: it is memory of so many floats, which is aligned for them.
                let y = unsafe { std::slice::from_raw_parts_mut(y.as_mut_ptr().cast::<MaybeUninit<f32>>(), len) };
                self.layer(act, others, |_, x, packed| convoke::Run::uninit(x, packed, y))
            }
            Place::Own(Extent { begin, end, first, pixel }) => {
                // Nothing that an act reads lies in the tensor in which it writes: `compile` makes a copy otherwise.
                let (before, rest) = memory.split_at_mut(begin);
                let (y, behind) = rest.split_at_mut(end - begin);
                let (others, y) = (Others { before, behind, end }, &mut y[first - begin..]);
                match act.element {
                    Element::Byte => self.fill_bytes(act, others, y, pixel),
                    Element::Float => self.fill(act, others, bytemuck::cast_slice_mut(y), pixel),
                }
            }
            Place::Input(_) => Err(Failure::other("a region writes to its input")),
        }
    }

    /// Runs a plan, for Y as `into` gives it.
    fn layer<'s, 'y>(
        &'s self,
        act: &'s Act,
        others: Others<'s>,
        into: impl FnOnce(&Plan<f32>, &'s [f32], &'s PackedWeights<f32>) -> convoke::Run<'s, 'y, f32>,
    ) -> Result<()> {
        let (plan, packed) = match &act.what {
            What::Layer(planned) => (&*planned.plan, planned.cache.packed()),
            What::Add(add) => (&add.0, &add.1),
            _ => return Err(Failure::other("a region writes an output by another step than a layer")),
        };
        let (x, pixel) = self.read(act.reads[0], others)?;
        let residual = act.reads.get(1).map(|tensor| self.read(*tensor, others)).transpose()?;
        let mut what = into(plan, x, packed).x_pixel_stride(pixel);
        if let Some((residual, pixel)) = residual {
            what = what.residual(Some(residual)).residual_pixel_stride(pixel);
        }
        execute(self.session, self.run, plan, what).map(drop)
    }

    /// Has `compute` write pixels of channels, which are `step` elements apart if that is told, on the threads of the run.
    fn share<T: Send>(
        &self,
        (y, step): (&mut [T], Option<usize>),
        (pixels, channels): (usize, usize),
        compute: impl Fn(Part<'_, T>) + Sync,
    ) {
        let step = step.unwrap_or(channels);
        let len = pixels.saturating_sub(1) * step + if pixels > 0 { channels } else { 0 };
        self.run.share(self.session.threads(), step, &mut y[..len], |begin, elements| {
            compute(Part { elements, step, channels, first: begin / step });
        });
    }

    /// The scale of ranges that an act reads behind X, if it does.
    fn scale_of_ranges(&self, act: &Act, others: Others<'_>) -> Result<Option<ByteScale>> {
        let ranges = act.reads.get(1).map(|ranges| self.read::<f32>(*ranges, others)).transpose()?;
        Ok(ranges.map(|(ranges, _)| ByteScale::of_ranges(&ranges[..2 * RANGES])))
    }

    /// An act whose Y is of floats.
    fn fill(&self, act: &Act, others: Others<'_>, y: &mut [f32], step: Option<usize>) -> Result<()> {
        let x = |channels: usize| self.pixels::<f32>(act.reads[0], others, channels);
        match &act.what {
            What::Layer(_) | What::Add(_) => {
                return self.layer(act, others, |_, x, packed| convoke::Run::new(x, packed, y).y_pixel_stride(step));
            }
            What::Integers(PlannedIntegers::Floats(planned)) => {
                let x = self.read(act.reads[0], others)?.0;
                return match self.scale_of_ranges(act, others)? {
                    Some(scale) => planned.run_scaled(self.session, self.run, (x, scale), y),
                    None => planned.run(self.session, self.run, x, y),
                };
            }
            What::Ranges { pixels, channels } => {
                let x = x(*channels)?;
                self.share((y, step), (RANGES, 2), |part| passes::ranges(x, *pixels, part));
            }
            What::Pool(windows) => {
                let (x, size) = (x(windows.channels)?, (windows.pixels(), windows.channels));
                self.share((y, step), size, |part| passes::pool(x, windows, part));
            }
            What::Resize { images, x_sizes, channels, sources } => {
                let (x, pixels) = (x(*channels)?, images * sources[0].len() * sources[1].len());
                self.share((y, step), (pixels, *channels), |part| passes::resize(x, *x_sizes, sources, part));
            }
            What::Product { pixels, channels, of_factors } => {
                let (x, by) = (x(*channels)?, self.pixels(act.reads[1], others, *channels)?);
                self.share((y, step), (*pixels, *channels), |part| passes::product(x, by, *of_factors, part));
            }
            What::Slopes { pixels, slopes } => {
                let x = x(slopes.len())?;
                self.share((y, step), (*pixels, slopes.len()), |part| passes::slopes(x, slopes, part));
            }
            What::Dequantise { scale, pixels, channels } => {
                let x = self.pixels(act.reads[0], others, *channels)?;
                self.share((y, step), (*pixels, *channels), |part| passes::dequantise(x, *scale, part));
            }
            _ => return self.fill_any(act, others, y, step),
        }
        Ok(())
    }

    /// An act whose Y is of bytes.
    fn fill_bytes(&self, act: &Act, others: Others<'_>, y: &mut [u8], step: Option<usize>) -> Result<()> {
        let x = |channels: usize| self.pixels::<u8>(act.reads[0], others, channels);
        match &act.what {
            What::Integers(PlannedIntegers::Bytes(planned)) => {
                return planned.run(self.session, self.run, self.read(act.reads[0], others)?.0, y);
            }
            What::Pool(windows) => {
                let (x, size) = (x(windows.channels)?, (windows.pixels(), windows.channels));
                self.share((y, step), size, |part| passes::pool_bytes(x, windows, part));
            }
            What::Resize { images, x_sizes, channels, sources } => {
                let (x, pixels) = (x(*channels)?, images * sources[0].len() * sources[1].len());
                self.share((y, step), (pixels, *channels), |part| passes::resize_bytes(x, *x_sizes, sources, part));
            }
            What::Blend { blend, pixels, channels, of_factors } => {
                let (x, by) = (x(*channels)?, self.pixels(act.reads[1], others, *channels)?);
                self.share((y, step), (*pixels, *channels), |part| {
                    passes::blend_bytes(x, by, *of_factors, blend, part);
                });
            }
            What::Lines { lines, pixels } => {
                let x = x(lines.channels)?;
                self.share((y, step), (*pixels, lines.channels), |part| passes::lines(x, lines, part));
            }
            What::Quantise { scale, pixels, channels } => {
                let x = self.pixels(act.reads[0], others, *channels)?;
                let scale = scale.map_or_else(|| self.scale_of_ranges(act, others), |scale| Ok(Some(scale)))?;
                let scale = scale.ok_or_else(|| Failure::other("a region quantises without a scale"))?;
                self.share((y, step), (*pixels, *channels), |part| passes::quantise(x, scale, part));
            }
            What::Copy { pixels, channels, table: Some(table) } => {
                let x = x(*channels)?;
                self.share((y, step), (*pixels, *channels), |part| passes::look_up(x, table, part));
            }
            What::Reorder { channels, positions, to, table } => {
                let (x, size) = (self.read(act.reads[0], others)?.0, (*channels, *positions));
                self.run.share(self.session.threads(), channels * positions, y, |first, y| {
                    passes::reorder(&x[first..], size, *to, y, table.as_deref());
                });
            }
            _ => return self.fill_any(act, others, y, step),
        }
        Ok(())
    }

    /// An act that moves elements of any type.
    fn fill_any<T: Pod + Send + Sync>(
        &self,
        act: &Act,
        others: Others<'_>,
        y: &mut [T],
        step: Option<usize>,
    ) -> Result<()> {
        let x = |channels: usize| self.pixels::<T>(act.reads[0], others, channels);
        match &act.what {
            What::Copy { pixels, channels, .. } => {
                let x = x(*channels)?;
                self.share((y, step), (*pixels, *channels), |part| passes::copy(x, part));
            }
            What::Pick { pixels, of, channels } => {
                let x = x(*of)?;
                self.share((y, step), (*pixels, channels.len()), |part| passes::pick(x, channels, part));
            }
            What::Repeat { from, to } => {
                let (x, pixel) = self.read::<T>(act.reads[0], others)?;
                let last = from.last().copied().unwrap_or(0);
                let len = from.iter().product::<usize>();
                let x: Vec<T> = match pixel {
                    Some(pixel) => x.chunks(pixel).take(len / last).flat_map(|pixel| &pixel[..last]).copied().collect(),
                    None => x[..len].to_vec(),
                };
                let repeated = sum::repeated(&x, from, to)?;
                y[..repeated.len()].copy_from_slice(&repeated);
            }
            _ => return Err(Failure::other("a step of a region computes elements of another type")),
        }
        Ok(())
    }
}
