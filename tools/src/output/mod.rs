//! How figures are shown: as text, as pictures, as a page.

pub(crate) mod chart;
pub(crate) mod page;
pub(crate) mod text;
