//! What a cell takes on its machine, without running it.

mod job;

pub use job::job;
