//! Integration tests of the engine: one binary, a module per topic. What watches the whole process has one of its own
//! (heap.rs), as has what loom runs (loom/) and what mpirun starts (comm_mpi.rs).

mod checkpoint;
mod comm;
mod comm_nccl;
mod conformance;
mod data;
mod device;
mod documents;
mod folders;
mod golden;
mod hf;
mod mesh;
mod paper;
mod peft;
mod schedules;
mod stages;
mod training;
