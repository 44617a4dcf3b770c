//! What zbench measures beside training: kernels, collectives, checkpoints and the links of offload alone, the calibration of a machine, the
//! largest batch that fits, the gate against regressions, and the configurations of other frameworks.

pub mod bench;
pub mod calibrate;
pub mod checkpoint;
pub mod collectives;
pub mod gate;
pub mod interop;
pub mod io;
pub mod kernels;
pub mod max_batch;
pub mod registry;
