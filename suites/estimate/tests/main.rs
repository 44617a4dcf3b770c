//! Integration tests of the estimator: one binary, a module per topic.

mod claims;
mod deepspeed;
mod formulas;
mod kernels;
mod memory;
mod monotone;
