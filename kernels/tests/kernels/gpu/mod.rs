//! The GPU's machine where there is no GPU: against libraries that only imitate NVIDIA's, which are compiled here and found as
//! the real ones are.

// The fakes' own functions are called.
#![allow(unsafe_code)]

mod fakes;
mod nvml;
mod nvtx;
mod probe;
mod product;
mod queue;
mod tensors;
