//! Number formats, rounding and random numbers.

pub(crate) mod dtype;
pub(crate) mod packed;
pub mod philox;
pub(crate) mod reduce_op;
pub(crate) mod round;
pub(crate) mod stochastic;
