//! The memory of packed values.

#[cfg(feature = "save")]
use alloc::sync::Arc;
use alloc::vec::Vec;
#[cfg(feature = "save")]
use core::ops::Range;

use crate::exec::Line;

/// The memory of packed values.
pub(crate) enum PackedMemory {
    Owned(Vec<Line>),
    /// Lines of a file that is mapped, or of other memory of the caller.
    #[cfg(feature = "save")]
    Shared(SharedLines),
}

impl PackedMemory {
    pub(crate) fn lines(&self) -> &[Line] {
        match self {
            Self::Owned(lines) => lines,
            #[cfg(feature = "save")]
            Self::Shared(lines) => lines.get(),
        }
    }
}

/// Lines of memory that others own.
#[cfg(feature = "save")]
pub(crate) struct SharedLines {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// In bytes.
    range: Range<usize>,
}

#[cfg(feature = "save")]
impl SharedLines {
    /// Whole lines at some bytes of what the owner returns.
    pub(crate) fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        Self { owner, range }
    }

    /// # Panics
    /// If the owner returns fewer bytes than before, or bytes that are no lines.
    fn get(&self) -> &[Line] {
        bytemuck::cast_slice(&(*self.owner).as_ref()[self.range.clone()])
    }
}
