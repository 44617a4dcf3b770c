//! What a cell takes on its machine, without running it.

pub mod explain;
pub mod forecast;
mod job;
pub mod search;
pub mod validate;

#[cfg(test)]
mod tests;

pub use job::{job, no_such_pair, no_zero_plus_plus, software};
