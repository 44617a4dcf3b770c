//! Many ranks, one model, one step.

pub mod checkpoint;
pub mod comm;
pub mod config;
pub mod data;
pub mod hf;
pub mod outcome;
