//! Caller-owned scratch memory.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use crate::Op;
use crate::error::{Error, bail};

/// A cache line, the unit and alignment of the workspace.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// Lines that hold `count` values of type `T`. Saturates, so that an absurd count exceeds every limit.
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
pub struct Workspace<'a> {
    memory: Memory<'a>,
    /// Bytes of a borrowed slice that are not whole lines.
    unaligned: usize,
}

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
        Ok(Self { memory: Memory::Owned(memory), unaligned: 0 })
    }
}

impl<'a> Workspace<'a> {
    /// The alignment of the memory that runs use, in bytes.
    pub const ALIGNMENT: usize = align_of::<Line>();

    /// Memory of the caller, of which the part is used that is aligned to
    /// [`ALIGNMENT`](Self::ALIGNMENT).
    ///
    /// A slice that begins there needs [`Plan::workspace_bytes`](crate::Plan::workspace_bytes)
    /// bytes. A slice that begins anywhere needs `ALIGNMENT - 1` bytes more. With less, a run
    /// fails.
    #[must_use]
    pub fn borrowed(memory: &'a mut [u8]) -> Self {
        let (head, lines, tail) = bytemuck::pod_align_to_mut::<u8, Line>(memory);
        Self { unaligned: head.len() + tail.len(), memory: Memory::Borrowed(lines) }
    }

    /// Usable bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Owned(lines) => size_of_val(lines.as_slice()),
            Memory::Borrowed(lines) => size_of_val(*lines),
        }
    }

    pub(crate) fn unaligned(&self) -> usize {
        self.unaligned
    }

    /// The size of a workspace, for error messages.
    pub(crate) fn description(bytes: usize, unaligned: usize) -> String {
        match unaligned {
            0 => format!("the workspace has {bytes} bytes"),
            lost => {
                format!("the workspace has {bytes} bytes in lines of 64, of the {} that were borrowed", bytes + lost)
            }
        }
    }

    /// The memory of a workspace, whose size is for error messages, if it is enough for `slots` threads.
    ///
    /// # Errors
    /// [`Workspace`](crate::ErrorKind::Workspace).
    pub(crate) fn checked(
        (lines, unaligned): (&mut [Line], usize),
        op: Op,
        (slots, of_thread): (usize, usize),
    ) -> Result<&mut [Line], Error> {
        let (has, needs) = (size_of_val(lines), slots * of_thread * size_of::<Line>());
        if has < needs {
            let has = Self::description(has, unaligned);
            bail!(Workspace, "{op}: {has}, {slots} threads need {needs}");
        }
        Ok(lines)
    }

    pub(crate) fn lines(&mut self) -> &mut [Line] {
        match &mut self.memory {
            Memory::Owned(lines) => lines,
            Memory::Borrowed(lines) => lines,
        }
    }
}

/// An empty vector with room for `len` values. `what` begins the error's message.
pub(crate) fn reserved<T>(len: usize, what: impl core::fmt::Display) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    if values.try_reserve_exact(len).is_err() {
        bail!(OutOfMemory, "{what}: {len} elements of {} bytes cannot be allocated", size_of::<T>());
    }
    Ok(values)
}

/// What a task needs of the workspace. It is booked when a layer is planned, and each run takes it by
/// what the booking returned.
///
/// (oneDNN's registry of scratch memory is the model: `src/common/memory_tracking.hpp`.)
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ledger {
    /// Names and lines, in the order of booking.
    pieces: Vec<(&'static str, usize)>,
}

impl Ledger {
    /// Books `len` values, aligned to a cache line. The name is for the explanation.
    pub(crate) fn book<T>(&mut self, name: &'static str, len: usize) -> Piece<T> {
        let first = self.lines();
        self.pieces.push((name, lines_for::<T>(len)));
        Piece { first, len, of: PhantomData }
    }

    /// Lines of all pieces. Saturates.
    pub(crate) fn lines(&self) -> usize {
        self.pieces.iter().fold(0, |sum, (_, lines)| sum.saturating_add(*lines))
    }
}

/// The pieces that are not empty, with their bytes.
impl core::fmt::Display for Ledger {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut separator = "";
        for (name, lines) in self.pieces.iter().filter(|(_, lines)| *lines > 0) {
            write!(f, "{separator}{name} {}", lines * size_of::<Line>())?;
            separator = " + ";
        }
        if separator.is_empty() { f.write_str("none") } else { f.write_str(" bytes") }
    }
}

/// A piece of scratch that was booked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<T> {
    first: usize,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Clone for Piece<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Piece<T> {}

impl<T> Piece<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// One task's share of the workspace.
pub(crate) struct Arena<'a> {
    passed: usize,
    rest: &'a mut [Line],
}

impl<'a> Arena<'a> {
    pub(crate) fn new(lines: &'a mut [Line]) -> Self {
        Self { passed: 0, rest: lines }
    }

    /// A booked piece, with unspecified contents. Pieces must be taken in the order in which they were
    /// booked.
    pub(crate) fn get<T: Pod>(&mut self, piece: Piece<T>) -> &'a mut [T] {
        assert!(piece.first >= self.passed, "pieces are taken in the order of booking");
        let rest = core::mem::take(&mut self.rest).split_at_mut(piece.first - self.passed).1;
        self.rest = rest;
        self.passed = piece.first;
        self.take(piece.len)
    }

    /// The next `count` values, aligned to a cache line, with unspecified contents.
    fn take<T: Pod>(&mut self, count: usize) -> &'a mut [T] {
        let lines = lines_for::<T>(count);
        let (head, tail) = core::mem::take(&mut self.rest).split_at_mut(lines);
        (self.rest, self.passed) = (tail, self.passed + lines);
        // Lines need not be whole numbers of values.
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(head);
        bytemuck::cast_slice_mut(&mut bytes[..count * size_of::<T>()])
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn values_that_do_not_divide_a_line_may_be_booked() {
        let mut ledger = Ledger::default();
        let (a, b) = (ledger.book::<[u64; 7]>("a", 3), ledger.book::<[u64; 7]>("b", 0));
        let mut lines = [Line::zeroed(); 3];
        let mut arena = Arena::new(&mut lines);
        assert_eq!((arena.get(a).len(), arena.get(b).len()), (3, 0));
    }

    #[test]
    fn booked_pieces_are_disjoint_aligned_and_as_long_as_they_were_booked() {
        let mut ledger = Ledger::default();
        let (a, b, c) = (ledger.book::<f32>("a", 17), ledger.book::<u8>("b", 0), ledger.book::<f64>("c", 3));
        assert_eq!((ledger.lines(), ledger.to_string()), (3, "a 128 + c 64 bytes".to_string()));
        let mut lines = [Line::zeroed(); 3];
        let mut arena = Arena::new(&mut lines);
        let (a, b) = (arena.get(a), arena.get(b));
        assert_eq!((a.len(), b.len()), (17, 0));
        let c = arena.get(c);
        assert_eq!((c.len(), c.as_ptr().addr() % 64, c.as_ptr().addr() - a.as_ptr().addr()), (3, 0, 128));
    }

    #[test]
    fn an_absurd_number_of_values_takes_more_lines_than_memory_has() {
        assert_eq!((lines_for::<f64>(8), lines_for::<f64>(9)), (1, 2));
        for count in [usize::MAX, usize::MAX / 8 + 1] {
            assert_eq!(lines_for::<f64>(count), usize::MAX / 64);
        }
    }

    #[test]
    fn pieces_may_be_left_out() {
        let mut ledger = Ledger::default();
        let (_, b) = (ledger.book::<f32>("a", 17), ledger.book::<u8>("b", 5));
        let mut lines = [Line::zeroed(); 3];
        let begin = lines.as_ptr().addr();
        assert_eq!(Arena::new(&mut lines).get(b).as_ptr().addr() - begin, 128);
    }

    #[test]
    #[should_panic(expected = "in the order of booking")]
    fn no_piece_is_taken_twice() {
        let mut ledger = Ledger::default();
        let a = ledger.book::<f32>("a", 17);
        let mut lines = [Line::zeroed(); 3];
        let mut arena = Arena::new(&mut lines);
        _ = (arena.get(a), arena.get(a));
    }
}
