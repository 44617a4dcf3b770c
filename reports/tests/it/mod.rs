mod answers;
pub mod any;
mod comparison;
mod documents;
pub mod grid;
mod record;
mod render;
mod stats;
mod store;
