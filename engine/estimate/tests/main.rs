//! Integration tests of the estimator: one binary, a module per topic.

mod claims;
mod deepspeed;
mod expectations;
mod memory;
mod monotone;
mod odd_rows;
mod published_band;
mod published_memory;
mod published_time;
mod spellings;
