//! Caller-owned scratch memory.

use alloc::vec::Vec;

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, bail};

/// One cache line, the unit and alignment of workspace.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// Lines that hold `count` values of type `T`; saturates, so that an absurd count exceeds every
/// limit.
pub(crate) fn lines_for<T>(count: usize) -> usize {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) => bytes.div_ceil(size_of::<Line>()),
        None => usize::MAX / size_of::<Line>(),
    }
}

/// Scratch memory for [`Plan::run`](crate::Plan::run): allocated once, used by any number of runs
/// of any plans that fit.
///
/// What it holds between runs does not matter.
///
/// ```
/// # fn main() -> Result<(), convoke::Error> {
/// let plan = convoke::Planner::new().plan::<f32>(convoke::Conv::new([8, 3, 3, 3]), &[1, 3, 16, 16])?;
/// let workspace = convoke::Workspace::for_plan(&plan)?;
/// assert!(workspace.bytes() >= plan.workspace_bytes());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Workspace<'a>(Memory<'a>);

enum Memory<'a> {
    Owned(Vec<Line>),
    Borrowed(&'a mut [Line]),
}

impl core::fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (kind, lines) = match self {
            Self::Owned(lines) => ("owned", lines.len()),
            Self::Borrowed(lines) => ("borrowed", lines.len()),
        };
        write!(f, "{kind}, {} bytes", lines * size_of::<Line>())
    }
}

impl Workspace<'static> {
    /// At least `bytes` bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if they cannot be allocated.
    pub fn with_bytes(bytes: usize) -> Result<Self, Error> {
        let lines = bytes.div_ceil(size_of::<Line>());
        let mut memory = reserved(lines, format_args!("workspace of {bytes} bytes"))?;
        memory.resize(lines, Line::zeroed());
        Ok(Self(Memory::Owned(memory)))
    }
}

impl<'a> Workspace<'a> {
    /// Memory of the caller's, of which the part that is aligned to 64 bytes is used.
    #[must_use]
    pub fn borrowed(memory: &'a mut [u8]) -> Self {
        let (_, lines, _) = bytemuck::pod_align_to_mut::<u8, Line>(memory);
        Self(Memory::Borrowed(lines))
    }

    /// Usable bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Memory::Owned(lines) => size_of_val(lines.as_slice()),
            Memory::Borrowed(lines) => size_of_val(*lines),
        }
    }

    pub(crate) fn lines(&mut self) -> &mut [Line] {
        match &mut self.0 {
            Memory::Owned(lines) => lines,
            Memory::Borrowed(lines) => lines,
        }
    }
}

/// An empty vector with room for `len` values; `what` begins the error's message.
pub(crate) fn reserved<T>(len: usize, what: impl core::fmt::Display) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    if values.try_reserve_exact(len).is_err() {
        bail!(OutOfMemory, "{what}: {len} elements of {} bytes cannot be allocated", size_of::<T>());
    }
    Ok(values)
}

/// One task's share of the workspace, handed out piece by piece.
pub(crate) struct Arena<'a>(&'a mut [Line]);

impl<'a> Arena<'a> {
    pub(crate) fn new(lines: &'a mut [Line]) -> Self {
        Self(lines)
    }

    /// The next `count` values, aligned to a cache line; what they hold is unspecified.
    pub(crate) fn take<T: Pod>(&mut self, count: usize) -> &'a mut [T] {
        let (head, tail) = core::mem::take(&mut self.0).split_at_mut(lines_for::<T>(count));
        self.0 = tail;
        &mut bytemuck::cast_slice_mut(head)[..count]
    }
}
