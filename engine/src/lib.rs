//! Many ranks, one model, one step.

pub mod config;
pub mod outcome;
