//! Shows figures: as text, as pictures, and as a page.

pub(crate) mod chart;
pub(crate) mod page;
pub(crate) mod text;
