//! Documents as text, one module per format.

pub mod csv;
pub mod cut;
pub mod html;
pub mod json;
pub mod long;
pub mod markdown;
mod spark;
pub mod terminal;

pub use crate::text::printable;
pub(crate) use spark::bars;
