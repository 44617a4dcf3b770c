//! What tests, benchmarks and examples need beside the kernels. No release compiles it: every use is a dev-dependency.
//!
//! [`Reference`] is the oracle in f64, [`ByName`] calls operations with their operands at hand, [`Late`] makes the CUDA kernels on
//! the processor do their work as late as a GPU may, and [`amx`] carries out AMX instructions on CPUs without them.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod amx;
mod by_name;
mod late;
mod reference;

pub use by_name::ByName;
pub use late::Late;
pub use reference::Reference;
