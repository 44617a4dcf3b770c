//! Every kernel of the cores against the reference in f64, over odd shapes, types and numbers of threads.

// The counting allocator needs it.
#![allow(unsafe_code)]

mod address;
mod alibi;
mod allocations;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod amx;
mod attention;
mod carried;
mod compile;
mod copies;
mod cost;
#[cfg(target_os = "linux")]
mod disk;
mod documents;
mod elementwise;
mod errors;
mod experts;
mod experts_cuda;
mod finite_differences;
mod gemm;
mod gpu;
mod harness;
mod launched;
mod packed;
mod quantize;
mod reduce;
mod rows;
mod shared;
mod stochastic;
mod vocabulary;
mod written;
