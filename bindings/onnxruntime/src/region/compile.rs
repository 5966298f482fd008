//! The steps of a region, and which of its values share memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use convoke::Layout;

use crate::api::{Failure, Level, Result};
use crate::fusion::Fusion;
use crate::graph::{Node, Value};
use crate::layer::{Inputs, Layer, Packed, PackingConstants, on_threads, read_packed};
use crate::region::Region;
use crate::region::bytes::{ByteScale, Table, is_of_bytes};
use crate::region::find::inputs;
use crate::region::integers::IntegerLayer;
use crate::region::layouts::{Choice, FIRST, LAST, Layouts};
use crate::region::run::RegionLayer;
use crate::region::steps::{Element, Memory, Step, Tensor, Work, root};
use crate::region::unit::{Kind, are_neighbours, channels, dims};
use crate::session::Session;

/// The steps of a region while its layers are not packed.
enum Reading<'g> {
    Layer(PackingConstants<'g, Packed<f32>>),
    Ready(Work),
}

/// Numbers the tensors of a region.
struct Tensors<'s, 'g> {
    session: &'s Arc<Session>,
    all: Vec<Tensor>,
    /// The tensors of each value, with channels first and with channels last.
    by_name: HashMap<String, [Option<usize>; 2]>,
    /// The values that units read.
    read: HashSet<String>,
    outputs: HashMap<String, usize>,
    steps: Vec<(Reading<'g>, Vec<usize>, usize)>,
}

/// What is left to do when a region was read: packing the weights of its layers, on so many threads.
pub(crate) type RegionPacking<'g> = Box<dyn FnOnce(usize) -> Result<Box<dyn Layer>> + 'g>;

/// Reads a region, and all constants that it needs.
pub(crate) fn read<'g>(
    session: &Arc<Session>,
    region: &Region<'g>,
    fused: Node<'g>,
    places: &Inputs,
) -> Result<RegionPacking<'g>> {
    let outputs = fused.outputs()?.into_iter().enumerate();
    let outputs = outputs.filter_map(|(i, value)| Some(value?.name().map(|name| (name, i)))).collect::<Result<_>>()?;
    let read = region.units.iter().flat_map(|unit| &unit.inputs).map(|value| value.name()).collect::<Result<_>>()?;
    let (by_name, all, steps) = (HashMap::new(), Vec::new(), Vec::new());
    let mut tensors = Tensors { session, all, by_name, read, outputs, steps };
    for value in inputs(region)? {
        tensors.add(value, FIRST, Memory::Input(places.place(value)?))?;
    }
    let Choice { layouts, estimates } = Choice::of(session, region)?;
    for (unit, layouts) in region.units.iter().zip(layouts) {
        let y = unit.outputs[0];
        let mut reads = || unit.inputs.iter().map(|value| tensors.with(*value, LAST)).collect::<Result<Vec<_>>>();
        let (work, reads) = match &unit.kind {
            Kind::Layer(layer) => {
                tensors.add_layer(layer, y, layouts)?;
                continue;
            }
            Kind::Pool(pool) => (Work::Pool(pool.clone()), reads()?),
            Kind::Resize(resize) => (Work::Resize(resize.clone()), reads()?),
            Kind::Product => (Work::Product, reads()?),
            Kind::Slopes(slopes) => (Work::Slopes(slopes.clone()), reads()?),
            Kind::Concat(tables) => {
                let parts = reads()?;
                tensors.add_concat(y, parts, tables)?;
                continue;
            }
            Kind::Integers(layer) => (Work::Integers(Arc::new(IntegerLayer::of(layer)?)), reads()?),
            Kind::Table(table) => (Work::Copy(Some(table.clone())), reads()?),
            Kind::Lines(lines) => (Work::Lines(lines.clone()), reads()?),
            Kind::Blend(blend) => (Work::Blend(blend.clone()), reads()?),
            Kind::Means(pool, [x_scale, y_scale]) => {
                let mut reads = reads()?;
                for work in [Work::Dequantise(*x_scale), Work::Pool(pool.clone())] {
                    let floats = tensors.push(tensors.all[reads[0]].channels, LAST, Memory::Own, Element::Float);
                    tensors.steps.push((Reading::Ready(work), std::mem::replace(&mut reads, vec![floats]), floats));
                }
                (Work::Quantise(Some(*y_scale)), reads)
            }
            Kind::Quantise(scale) => {
                let y = tensors.add(y, LAST, Memory::Own)?;
                tensors.add_quantised(unit.inputs[0], y, Some(*scale))?;
                continue;
            }
            Kind::Dequantise(scale) => (Work::Dequantise(*scale), reads()?),
            Kind::Dynamic(layers) => {
                let x = unit.inputs[0];
                let count = channels(x)?.ok_or_else(|| Failure::other("a tensor without channels"))?;
                let bytes = tensors.push(count, LAST, Memory::Own, Element::Byte);
                let ranges = tensors.add_quantised(x, bytes, None)?;
                for (y, layer) in unit.outputs.iter().zip(layers) {
                    let y = tensors.add(*y, LAST, Memory::Own)?;
                    let work = Work::Integers(Arc::new(IntegerLayer::of(layer)?));
                    tensors.steps.push((Reading::Ready(work), [&[bytes], &ranges[..]].concat(), y));
                }
                continue;
            }
            Kind::Channels(picks) => {
                let reads = reads()?;
                let is_of_bytes = tensors.all[reads[0]].element == Element::Byte;
                for (y, (channels, table)) in unit.outputs.iter().zip(picks) {
                    let (memory, mut work) = match channels.first() {
                        Some(first) if are_neighbours(channels) && !is_of_bytes => {
                            (Memory::Within(reads[0], *first), Work::View)
                        }
                        _ => (Memory::Own, Work::Pick(channels[..].into())),
                    };
                    let y = tensors.add(*y, LAST, memory)?;
                    let mut reads = reads.clone();
                    if let Some(table) = table {
                        let picked = tensors.push(channels.len(), LAST, Memory::Own, Element::Byte);
                        tensors.steps.push((Reading::Ready(work), std::mem::replace(&mut reads, vec![picked]), picked));
                        work = Work::Copy(Some(table.clone()));
                    }
                    tensors.steps.push((Reading::Ready(work), reads, y));
                }
                continue;
            }
        };
        let y = tensors.add(y, LAST, Memory::Own)?;
        tensors.steps.push((Reading::Ready(work), reads, y));
    }
    tensors.add_outputs(region)?;
    let Tensors { all, steps, .. } = tensors;
    session.log().write(Level::Verbose, || {
        let times =
            estimates.map(|[here, apart]| format!(", estimated at {here:.0} ns, with channels first at {apart:.0} ns"));
        let (nodes, steps) = (region.nodes().len(), steps.len());
        format!("a region of {nodes} nodes: {steps} steps with channels last{}", times.unwrap_or_default())
    });
    let (session, dtype) = (session.clone(), region.dtype()?);
    Ok(Box::new(move |threads| {
        let job = |(reading, reads, writes)| {
            move || {
                let work = match reading {
                    Reading::Layer(packing) => Work::Layer(packing()?.into()),
                    Reading::Ready(work) => work,
                };
                Ok(Step { work, reads, writes })
            }
        };
        let steps = on_threads(steps.into_iter().map(job).collect(), threads)?;
        Ok(Box::new(RegionLayer::new(session, dtype, all, steps)))
    }))
}

impl<'g> Tensors<'_, 'g> {
    fn push(&mut self, channels: usize, layout: Layout, memory: Memory, element: Element) -> usize {
        self.all.push(Tensor { channels, layout, memory, element });
        self.all.len() - 1
    }

    fn add(&mut self, value: Value<'_>, layout: Layout, memory: Memory) -> Result<usize> {
        let count = channels(value)?.ok_or_else(|| Failure::other("a tensor without channels"))?;
        let element = if is_of_bytes(value)? { Element::Byte } else { Element::Float };
        let place = self.push(count, layout, memory, element);
        self.by_name.entry(value.name()?).or_default()[usize::from(layout == LAST)] = Some(place);
        Ok(place)
    }

    /// The tensors of a value, with channels first and with channels last.
    fn both(&self, value: Value<'_>) -> Result<[Option<usize>; 2]> {
        let name = value.name()?;
        let known = self.by_name.get(&name).copied();
        known.ok_or_else(|| Failure::other(format_args!("a region does not compute {name}")))
    }

    /// The tensor of a value with a layout, converted if it has another one.
    fn with(&mut self, value: Value<'_>, layout: Layout) -> Result<usize> {
        let [first, last] = self.both(value)?;
        let (own, other, from) = if layout == FIRST { (first, last, LAST) } else { (last, first, FIRST) };
        match (own, other) {
            (Some(own), _) => Ok(own),
            (None, Some(x)) => {
                let y = self.add(value, layout, Memory::Own)?;
                self.convert(value, (x, y), [from, layout])?;
                Ok(y)
            }
            (None, None) => Err(Failure::other("a value without a tensor")),
        }
    }

    fn convert(&mut self, value: Value<'_>, (x, y): (usize, usize), layouts: Layouts) -> Result<()> {
        let work = match value.tensor_type()?.and_then(|ty| ty.flip()) {
            Some(flip) => {
                let flipped = || Arc::new(std::array::from_fn(|byte| byte as u8 ^ flip));
                Work::Reorder((flip != 0).then(flipped))
            }
            None => {
                let rank = dims(value)?.map_or(0, |dims| dims.len());
                Work::Layer(Packed::converting(self.session, self.all[x].channels, rank, layouts).into())
            }
        };
        self.steps.push((Reading::Ready(work), vec![x], y));
        Ok(())
    }

    /// Whether a value is an output of the node, and nothing else.
    fn is_only_output(&self, value: Value<'_>) -> Result<bool> {
        let name = value.name()?;
        Ok(self.outputs.contains_key(&name) && !self.read.contains(&name))
    }

    fn add_layer(&mut self, layer: &Fusion<'g>, y: Value<'g>, layouts: Layouts) -> Result<()> {
        let [x_layout, y_layout] = layouts;
        let packing = read_packed::<f32>(self.session, layer, layouts)?
            .ok_or_else(|| Failure::other("a layer of a region whose weights are not constant"))?;
        let mut reads = vec![self.with(layer.x, x_layout)?];
        reads.extend(layer.residual.map(|value| self.with(value, y_layout)).transpose()?);
        let is_direct = y_layout == FIRST && self.is_only_output(y)?;
        let memory = if is_direct { Memory::Output(self.outputs[&y.name()?]) } else { Memory::Own };
        let y = self.add(y, y_layout, memory)?;
        self.steps.push((Reading::Layer(packing), reads, y));
        Ok(())
    }

    /// Floats with channels first become bytes with channels first before these are moved. Without a scale, it is that of
    /// the ranges, whose tensor is returned.
    fn add_quantised(&mut self, x: Value<'_>, y: usize, scale: Option<ByteScale>) -> Result<Vec<usize>> {
        let first = if let [Some(first), None] = self.both(x)? { Some(first) } else { None };
        let x = first.map_or_else(|| self.with(x, LAST), Ok)?;
        let mut ranges = Vec::new();
        if scale.is_none() {
            ranges.push(self.push(2, LAST, Memory::Own, Element::Float));
            self.steps.push((Reading::Ready(Work::Ranges), vec![x], ranges[0]));
        }
        let bytes = first.map_or(y, |_| self.push(self.all[x].channels, FIRST, Memory::Own, Element::Byte));
        self.steps.push((Reading::Ready(Work::Quantise(scale)), [&[x], &ranges[..]].concat(), bytes));
        if first.is_some() {
            self.steps.push((Reading::Ready(Work::Reorder(None)), vec![bytes], y));
        }
        Ok(ranges)
    }

    /// Parts lie within the whole, where they can: they are computed here, lie in no other tensor, and no step
    /// would read from the memory that it writes to. Others are copied.
    fn add_concat(&mut self, y: Value<'_>, parts: Vec<usize>, tables: &[Option<Arc<Table>>]) -> Result<()> {
        let whole = self.add(y, LAST, Memory::Own)?;
        self.steps.push((Reading::Ready(Work::Join), parts.clone(), whole));
        let mut first = 0;
        let mut copies = Vec::new();
        for (part, table) in parts.into_iter().zip(tables) {
            let Tensor { channels: count, element, .. } = self.all[part];
            let place = self.push(count, LAST, Memory::Within(whole, first), element);
            copies.push(self.steps.len());
            self.steps.push((Reading::Ready(Work::Copy(table.clone())), vec![part], place));
            first += count;
        }
        for copy in copies {
            let (part, place) = (self.steps[copy].1[0], self.steps[copy].2);
            // Convolutions of bytes write pixels without gaps.
            let is_of_integers = self
                .steps
                .iter()
                .any(|(reading, _, y)| *y == part && matches!(reading, Reading::Ready(Work::Integers(_))));
            if self.all[part].memory != Memory::Own || self.all[part].element == Element::Byte || is_of_integers {
                continue;
            }
            self.all[part].memory = self.all[place].memory;
            self.steps[copy].0 = Reading::Ready(Work::View);
            let overlaps = self.steps.iter().any(|(reading, reads, y)| {
                let is_work = !matches!(reading, Reading::Ready(Work::View | Work::Join));
                is_work && reads.iter().any(|x| root(&self.all, *x).0 == root(&self.all, *y).0)
            });
            if overlaps {
                self.all[part].memory = Memory::Own;
                self.steps[copy].0 = Reading::Ready(Work::Copy(None));
            }
        }
        Ok(())
    }

    /// Converts what leaves the region, unless a layer writes it as it leaves.
    fn add_outputs(&mut self, region: &Region<'g>) -> Result<()> {
        for value in region.units.iter().flat_map(|unit| &unit.outputs) {
            let Some(&output) = self.outputs.get(&value.name()?) else { continue };
            let (x, layout) = match self.both(*value)? {
                [Some(first), _] if matches!(self.all[first].memory, Memory::Output(_)) => continue,
                [Some(first), _] => (first, FIRST),
                _ => (self.with(*value, LAST)?, LAST),
            };
            let Tensor { channels, element, .. } = self.all[x];
            let y = self.push(channels, FIRST, Memory::Output(output), element);
            self.convert(*value, (x, y), [layout, FIRST])?;
        }
        Ok(())
    }
}
