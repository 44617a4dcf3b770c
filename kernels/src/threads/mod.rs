//! Threads, the cores that they keep to, and what they wait with.

pub mod affinity;
pub(crate) mod pool;
pub mod spawn;
pub mod sync;
