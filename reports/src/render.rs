//! Documents as text, one module per format.

pub mod csv;
pub mod html;
pub mod json;
pub mod markdown;
pub(crate) mod screen;
mod spark;
pub mod terminal;

pub use crate::text::printable;
pub(crate) use spark::bars;
