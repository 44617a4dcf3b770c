//! Results that others published: rows of CSV, turned into jobs, predicted and scored.

pub mod degrees;
pub mod flags;
pub mod formulas;
pub mod job;
pub mod limits;
pub mod memory;
pub mod models;
pub mod row;
pub mod score;
pub mod shape;
pub mod words;
pub mod collectives;
pub mod guess;
pub mod kernels;
pub mod throughput;
