//! Many ranks, one model, one step.

pub mod comm;
pub mod config;
pub mod outcome;
