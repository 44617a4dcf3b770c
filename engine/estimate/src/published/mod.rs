//! Results that others published: rows of CSV, turned into jobs, predicted and scored.

pub mod collectives;
pub mod degrees;
pub mod flags;
pub mod formulas;
pub mod guess;
pub mod job;
pub mod kernels;
pub mod limits;
pub mod memory;
pub mod models;
pub mod row;
pub mod score;
pub mod shape;
mod suppose;
pub mod throughput;
pub mod validate;
pub mod words;
