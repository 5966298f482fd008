//! Packed weights as bytes: to save them, and to read or map them in another process.
//!
//! ```text
//! bytes       what
//! 0..8        "convoke\n"
//! 8..16       XXH3 of everything from byte 16 on
//! 16..20      version of this form, in the machine's order of bytes
//! 20..24      bytes of the description
//! 24..        the description (postcard), then zeros up to a multiple of 64
//! then        for each packing its bias, its values: each from a multiple of 64 on
//! then        more, if a weight is not finite: memory that was made for another format
//! ```
//!
//! Weights of layers of bytes have a description of their own, which is text, and the bias, the sums and the values behind
//! it. Nothing of the text is read: it must be the one that the plan would write that loads them, and all lengths are
//! those of the plan (`QuantisedPlan::load`).
//!
//! The checksum finds damage, not forgery. A forged file can make results wrong, because nothing is
//! known of its values. But no field of its description is trusted:
//!
//! - the lengths of bias and values are those that the file has room for;
//! - values that are not finite are read only as W itself, for the definition's loops;
//! - all else must be what a plan for the caller's layer asks for (`Planner::packed_for`), the layout
//!   one that a lowering can offer there (`Request::layout`), and the number of values the one that
//!   the lowering computes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use bytemuck::Pod;
use xxhash_rust::xxh3::xxh3_64;

use super::memory::{PackedMemory, SharedLines};
use super::packed::{Format, Formats, PackedParts, PackedVisible, Packing};
use super::{Method, PackedWeights, Plan};
use crate::conv::layout::WeightLayout;
use crate::element::{Element, all_finite};
use crate::error::{Error, bail};
use crate::exec::{Line, lines_for, reserved};

const MAGIC: [u8; 8] = *b"convoke\n";

/// Changes whenever the form or the layout of any kernel's weights does.
const VERSION: u32 = 3;

/// The checksum covers everything from here on.
const CHECKED: usize = 16;

const HEAD: usize = 24;

const LINE: usize = size_of::<Line>();

/// The description of packed weights.
impl Formats {
    fn encoded(&self) -> Result<Vec<u8>, Error> {
        let Ok(encoded) = postcard::to_allocvec(self) else {
            bail!(OutOfMemory, "packed weights: the description of their layout cannot be allocated");
        };
        Ok(encoded)
    }

    /// Bytes of weights with this description. Saturates.
    fn saved_bytes<T: Element>(&self) -> Result<usize, Error> {
        let formats = [Some(&self.whole), self.visible.as_ref().map(|(_, format)| format)];
        let lines = formats.into_iter().flatten().flat_map(|format| {
            let channels = format.layer.out_channels().unwrap_or(usize::MAX);
            [lines_for::<T::Acc>(channels), lines_for::<T::Acc>(format.len)]
        });
        Ok(saved_bytes(&self.encoded()?, lines))
    }
}

/// Bytes of weights with a description, and parts of so many lines. Saturates.
fn saved_bytes(description: &[u8], parts: impl IntoIterator<Item = usize>) -> usize {
    let head = lines_for::<u8>(HEAD + description.len());
    parts.into_iter().fold(head, usize::saturating_add).saturating_mul(LINE)
}

/// Weights with a description, and parts of so many lines, which `write` writes.
pub(crate) fn saved(
    description: &[u8],
    parts: impl IntoIterator<Item = usize>,
    write: impl FnOnce(&mut FileParts<'_>),
) -> Result<Vec<u8>, Error> {
    let len = saved_bytes(description, parts);
    let mut bytes = reserved(len, format_args!("packed weights as {len} bytes"))?;
    bytes.resize(len, 0);
    write(&mut FileParts::behind(description, &mut bytes));
    seal(&mut bytes);
    Ok(bytes)
}

/// The parts behind a description that are still to be written.
pub(crate) struct FileParts<'a> {
    rest: &'a mut [u8],
}

impl<'a> FileParts<'a> {
    /// Clears `bytes`, writes all that precedes the values except the checksum, and returns the parts
    /// behind.
    fn behind(description: &[u8], bytes: &'a mut [u8]) -> Self {
        bytes.fill(0);
        let (head, rest) = bytes.split_at_mut((HEAD + description.len()).next_multiple_of(LINE));
        head[..MAGIC.len()].copy_from_slice(&MAGIC);
        head[CHECKED..CHECKED + 4].copy_from_slice(&VERSION.to_ne_bytes());
        head[CHECKED + 4..HEAD].copy_from_slice(&(description.len() as u32).to_ne_bytes());
        head[HEAD..HEAD + description.len()].copy_from_slice(description);
        Self { rest }
    }

    /// The next values, all zero. They begin at a multiple of 64 bytes.
    pub(crate) fn next<V: Pod>(&mut self, len: usize) -> &'a mut [V] {
        let (part, rest) = core::mem::take(&mut self.rest).split_at_mut(lines_for::<V>(len) * LINE);
        self.rest = rest;
        &mut bytemuck::cast_slice_mut(part)[..len]
    }

    /// Packs W by a method. Returns whether all packed values are finite.
    fn pack<T: Element>(&mut self, method: &Method<T>, w: &[T], bias: &[T::Acc]) -> bool {
        self.next(bias.len()).copy_from_slice(bias);
        let packed = self.next(method.format.len);
        method.lowering.pack(w, packed);
        all_finite(packed)
    }
}

fn seal(bytes: &mut [u8]) {
    let sum = xxh3_64(&bytes[CHECKED..]).to_ne_bytes();
    bytes[MAGIC.len()..CHECKED].copy_from_slice(&sum);
}

impl<T: Element> Plan<T> {
    /// Bytes that [`pack_into`](Self::pack_into) writes, a multiple of 64: the packed weights with the
    /// description of their layout, or W as it is, whichever takes more.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn pack_into_bytes(&self) -> Result<usize, Error> {
        Ok(self.description().saved_bytes::<T>()?.max(self.exact_description().saved_bytes::<T>()?))
    }

    /// As [`pack`](Self::pack), into memory of the caller, which the weights keep and read. It may
    /// be a file that is mapped: it then holds what [`to_bytes`](PackedWeights::to_bytes) returns,
    /// for [`from_shared`](PackedWeights::from_shared); with zeros behind if a weight is not finite.
    ///
    /// The memory must have [`pack_into_bytes`](Self::pack_into_bytes) bytes, which begin at a
    /// multiple of [`Workspace::ALIGNMENT`](crate::Workspace::ALIGNMENT). Its owner must return the
    /// same bytes each time. If it returns fewer later, a run panics.
    ///
    /// ```
    /// use convoke::{Conv, Planner};
    ///
    /// /// Memory that begins at a multiple of 64 bytes.
    /// #[repr(align(64))]
    /// struct Memory([u8; 4096]);
    ///
    /// struct Part(Box<Memory>, usize);
    ///
    /// impl AsRef<[u8]> for Part {
    ///     fn as_ref(&self) -> &[u8] {
    ///         &self.0.0[..self.1]
    ///     }
    /// }
    ///
    /// impl AsMut<[u8]> for Part {
    ///     fn as_mut(&mut self) -> &mut [u8] {
    ///         &mut self.0.0[..self.1]
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let plan = Planner::new().plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 16, 16])?;
    /// let memory = Part(Box::new(Memory([0; 4096])), plan.pack_into_bytes()?);
    /// let packed = plan.pack_into(&vec![0.5; 4 * 3 * 3 * 3], None, memory)?;
    /// assert!(plan.accepts(&packed).is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`pack`](Self::pack); [`BufferLength`](crate::ErrorKind::BufferLength) also if the memory
    /// is longer or shorter, [`InvalidPacked`](crate::ErrorKind::InvalidPacked) if it is not
    /// aligned. The memory is unchanged then, unless nothing is left to allocate
    /// ([`OutOfMemory`](crate::ErrorKind::OutOfMemory)), or the memory does not keep what is written
    /// ([`InvalidPacked`](crate::ErrorKind::InvalidPacked)).
    pub fn pack_into(
        &self,
        w: &[T],
        bias: Option<&[T]>,
        mut memory: impl AsRef<[u8]> + AsMut<[u8]> + Send + Sync + 'static,
    ) -> Result<PackedWeights<T>, Error> {
        self.check_weights(w, bias)?;
        let (op, bytes, needed) = (self.geometry.op, memory.as_mut(), self.pack_into_bytes()?);
        if bytes.len() != needed {
            let len = bytes.len();
            bail!(BufferLength, "{op}: the memory for packed weights has {len} bytes, the plan needs {needed}");
        }
        let misaligned = bytes.as_ptr().addr() % LINE;
        if misaligned != 0 {
            bail!(
                InvalidPacked,
                "{op}: the memory for packed weights begins {misaligned} bytes behind a multiple of {LINE}"
            );
        }
        let bias = self.bias_values(bias)?;
        let visible = match &self.visible {
            Some((taps, method)) => Some((method, taps.select(&self.geometry, w)?)),
            None => None,
        };
        let mut description = self.description();
        let mut parts = FileParts::behind(&description.encoded()?, bytes);
        let mut is_finite = parts.pack(&self.whole, w, &bias);
        if let Some((method, w)) = visible.as_ref().filter(|_| is_finite) {
            is_finite = parts.pack(method, w, &bias);
        }
        if !is_finite {
            description = self.exact_description();
            FileParts::behind(&description.encoded()?, bytes).pack(&self.exact, w, &bias);
        }
        seal(bytes);
        let packed = PackedWeights::from_shared(memory)?;
        if packed.formats() != description {
            bail!(InvalidPacked, "{op}: the memory for packed weights does not keep what is written");
        }
        Ok(packed)
    }

    /// The description of finite weights.
    fn description(&self) -> Formats {
        let visible = self.visible.as_ref().map(|(taps, method)| (taps.ranges.clone(), method.format.clone()));
        Formats { whole: self.whole.format.clone(), visible }
    }

    /// The description of weights that are not all finite.
    fn exact_description(&self) -> Formats {
        Formats { whole: self.exact.format.clone(), visible: None }
    }
}

impl<T: Element> PackedWeights<T> {
    /// The packed weights as bytes, for [`from_bytes`](Self::from_bytes) and
    /// [`from_shared`](Self::from_shared) on a CPU with the same ISA and order of bytes, by the
    /// same version of this form. Their length is a multiple of 64.
    ///
    /// ```
    /// use convoke::{Conv, PackedWeights, Planner};
    ///
    /// # fn main() -> Result<(), convoke::Error> {
    /// let conv = Conv::new([8, 4, 3, 3]);
    /// let plan = Planner::new().plan::<f32>(conv.clone(), &[1, 4, 16, 16])?;
    /// let saved = plan.pack(&vec![0.5; 8 * 4 * 3 * 3], None)?.to_bytes()?;
    ///
    /// // In another process:
    /// let loaded = PackedWeights::<f32>::from_bytes(&saved)?;
    /// let plan = Planner::new().packed_for(&loaded).plan::<f32>(conv, &[1, 4, 16, 16])?;
    /// assert!(plan.accepts(&loaded).is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let packings = [Some(&self.parts.whole), self.parts.visible.as_ref().map(|visible| &visible.packing)];
        let packings = packings.into_iter().flatten();
        let lens = packings.clone().flat_map(|packing| [packing.bias.len(), packing.format.len]);
        saved(&self.formats().encoded()?, lens.map(lines_for::<T::Acc>), |parts| {
            for packing in packings {
                parts.next(packing.bias.len()).copy_from_slice(&packing.bias);
                parts.next(packing.format.len).copy_from_slice(packing.values());
            }
        })
    }

    /// Weights that [`to_bytes`](Self::to_bytes) wrote. They are copied.
    ///
    /// Make plans for them by [`Planner::packed_for`](crate::Planner::packed_for), which also
    /// checks that the layer is theirs.
    ///
    /// # Errors
    /// [`InvalidPacked`](crate::ErrorKind::InvalidPacked) if they were changed or cut, are of
    /// another version, order of bytes or element type, or of an ISA that this CPU or build lacks;
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes, |range| Ok(PackedMemory::Owned(copied(&bytes[range])?)))
    }

    /// As [`from_bytes`](Self::from_bytes), without a copy: the weights stay where they are, for
    /// example in a mapped file, which several processes share. The bytes must begin at a multiple
    /// of [`Workspace::ALIGNMENT`](crate::Workspace::ALIGNMENT), as mapped files do.
    ///
    /// The owner must return the same bytes each time. If it returns fewer later, this or a run panics.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); [`InvalidPacked`](crate::ErrorKind::InvalidPacked) also
    /// if the bytes are not aligned.
    pub fn from_shared(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, Error> {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(owner);
        let bytes = (*owner).as_ref();
        let misaligned = bytes.as_ptr().addr() % LINE;
        if misaligned != 0 {
            bail!(InvalidPacked, "packed weights: they begin {misaligned} bytes behind a multiple of {LINE}");
        }
        Self::read(bytes, |range| Ok(PackedMemory::Shared(SharedLines::new(owner.clone(), range))))
    }

    /// Reads weights whose values at some bytes become what `memory` returns.
    fn read(bytes: &[u8], memory: impl Fn(Range<usize>) -> Result<PackedMemory, Error>) -> Result<Self, Error> {
        let (description, mut rest) = checked(bytes)?;
        let Ok((description, [])) = postcard::take_from_bytes::<Formats>(description) else {
            bail!(InvalidPacked, "packed weights: their layout cannot be read");
        };
        let mut packing = |format: Format| {
            let layer = &format.layer;
            if layer.dtype != T::DTYPE {
                bail!(InvalidPacked, "packed weights: they are of {}, not of {}", layer.dtype, T::DTYPE);
            }
            if let Some(absence) = layer.isa.absence() {
                bail!(InvalidPacked, "packed weights: they are for the ISA {}: {absence}", layer.isa);
            }
            let Some(channels) = layer.out_channels() else {
                bail!(InvalidPacked, "packed weights: the shape {:?} is not that of a W", layer.weight_shape);
            };
            let bias = rest.copied::<T::Acc>(channels)?;
            let memory = memory(rest.lines(lines_for::<T::Acc>(format.len))?)?;
            let packing = Packing { format, memory, bias };
            if packing.format.layout != WeightLayout::Exact && !packing.is_finite() {
                let layout = &packing.format.layout;
                bail!(InvalidPacked, "packed weights: not all are finite, and their layout is {layout}");
            }
            Ok(packing)
        };
        let whole = packing(description.whole)?;
        let visible = match description.visible {
            Some((taps, described)) => Some(PackedVisible { taps, packing: packing(described)? }),
            None => None,
        };
        // Memory that was made for another layout may be longer.
        if !rest.is_empty() && whole.format.layout != WeightLayout::Exact {
            let (needed, len) = (rest.passed, bytes.len());
            bail!(InvalidPacked, "packed weights: {len} bytes, where their layout has {needed}");
        }
        Ok(PackedParts { whole, visible }.into())
    }
}

/// The values that bytes are of.
fn copied<V: Pod>(bytes: &[u8]) -> Result<Vec<V>, Error> {
    let len = bytes.len() / size_of::<V>();
    let mut values = reserved(len, "packed weights")?;
    values.resize(len, V::zeroed());
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    Ok(values)
}

/// The description and what is behind it, if the bytes are what was written.
pub(crate) fn checked(bytes: &[u8]) -> Result<(&[u8], Rest<'_>), Error> {
    let len = bytes.len();
    let Some((head, body)) = bytes.split_at_checked(HEAD) else {
        bail!(InvalidPacked, "packed weights: {len} bytes are too few");
    };
    let number = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..MAGIC.len()] != MAGIC {
        bail!(InvalidPacked, "packed weights: the bytes are something else");
    }
    match number(16) {
        VERSION => {}
        other if other.swap_bytes() == VERSION => {
            bail!(InvalidPacked, "packed weights: they were written on a machine with another order of bytes")
        }
        other => bail!(InvalidPacked, "packed weights: their form has version {other}, this one is {VERSION}"),
    }
    if head[MAGIC.len()..CHECKED] != xxh3_64(&bytes[CHECKED..]).to_ne_bytes() {
        bail!(InvalidPacked, "packed weights: the checksum of {len} bytes is wrong, they were changed or cut");
    }
    let described = number(20) as usize;
    match body.get(..described) {
        Some(description) => Ok((description, Rest { passed: HEAD + described, bytes })),
        None => bail!(InvalidPacked, "packed weights: their layout cannot be read"),
    }
}

/// The bytes that were not read yet.
pub(crate) struct Rest<'a> {
    passed: usize,
    bytes: &'a [u8],
}

impl Rest<'_> {
    /// The next values, which begin at a multiple of 64.
    pub(crate) fn copied<V: Pod>(&mut self, len: usize) -> Result<Vec<V>, Error> {
        let lines = self.lines(lines_for::<V>(len))?;
        copied(&self.bytes[lines.start..lines.start + len * size_of::<V>()])
    }

    /// Whether all bytes were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed == self.bytes.len()
    }

    /// The places of the next lines.
    fn lines(&mut self, lines: usize) -> Result<Range<usize>, Error> {
        let begin = self.passed.next_multiple_of(LINE);
        match lines.checked_mul(LINE).and_then(|len| begin.checked_add(len)) {
            Some(end) if end <= self.bytes.len() => {
                self.passed = end;
                Ok(begin..end)
            }
            _ => bail!(InvalidPacked, "packed weights: {} bytes are fewer than their layout has", self.bytes.len()),
        }
    }
}
